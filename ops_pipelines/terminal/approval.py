"""Whether a yes to a plan can still have an effect, and what stands in its way; `people.orders` records it."""

from collections.abc import Iterator

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.proof import Patience, Refusal
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.people.orders import waiting_plan
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.remediate.guardrails.consents import needs_yes
from ops_pipelines.remediate.testimony import explain_action
from ops_pipelines.terminal.outlook import Outlook


def plan_to_approve(plan: PlanId, cluster: Cluster, outlook: Outlook) -> IncidentPlan:
    """Return the plan if a yes to it can still have an effect; raise ByHandRefused with the reason otherwise.

    Raises SourceUnavailable where the scheduler does not answer: then nobody knows whether the plan still holds.
    """
    known = cluster.ledger.plan(plan)
    if known is None:
        raise ByHandRefused(f"there is no plan {plan}; `ops-pipelines incidents` lists what waits for approval")
    if cluster.rules.policy.mode is Mode.OBSERVE:
        raise ByHandRefused("policy.yaml says mode: observe, so no plan is begun; set mode: approve first")
    waiting_plan(plan, cluster)
    incident = cluster.ledger.incident(known.incident)
    if incident is not None and incident.state is not IncidentState.OPEN:
        return known  # In force, and waits half-way: what is done next is this plan's, whatever a new one would be.
    present = outlook.present(known.incident)
    if present is None:
        told = "; ".join(outlook.problems)
        raise SourceUnavailable(f"whether {plan} still holds cannot be judged: {told}. Nothing was approved.")
    if isinstance(present, Refusal):
        if present.patience is Patience.NEVER:
            raise ByHandRefused(f"{plan} cannot be begun: {present.reason}")
    elif present.plan != plan:
        raise ByHandRefused(
            f"{plan} is outdated: the cluster has changed, and {present.plan} would be done now; "
            f"`ops-pipelines show {known.incident}` shows it"
        )
    return known


def what_stands_in_the_way(plan: IncidentPlan, cluster: Cluster, outlook: Outlook) -> Iterator[str]:
    """Yield why an approved plan would not begin at once, in words."""
    present = outlook.present(plan.incident)
    if isinstance(present, Refusal):
        yield f"it cannot begin yet: {present.reason}"
    awaited = outlook.awaited(plan.incident)
    if awaited is not None:
        yield f"it is half-way: {explain_action(awaited)} waits for this yes"
    if outlook.state.pause is not None:
        yield "the autopilot is paused; nothing begins before `ops-pipelines resume-autopilot`"
    policy = cluster.rules.policy
    if not any(needs_yes(action, policy) for action in plan.actions):
        yield f"policy.yaml says mode: {policy.mode.value}, so it begins without an approval"
    if cluster.ledger.current_lease(cluster.clock.now()) is None:
        yield "no autopilot is running; nothing begins before it is started"
