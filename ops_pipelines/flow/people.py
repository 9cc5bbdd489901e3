"""What people say to the autopilot: stop, go on, yes to exactly this plan. Writes it to the ledger."""

from datetime import timedelta

from ops_pipelines.domain.identity import IncidentId, PlanId
from ops_pipelines.domain.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.domain.repair.remediation import IncidentPlan
from ops_pipelines.flow.by_hand import ByHandRefused
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.ports.ledger import Approval, Pause


def pause(cluster: Cluster, *, actor: str, reason: str) -> Pause:
    """Stop new actions from now on, over restarts, until `resume_autopilot`. What is begun is finished."""
    order = Pause(actor=actor, since=cluster.clock.now(), reason=reason)
    cluster.ledger.pause(order)
    return order


def resume_autopilot(cluster: Cluster, *, actor: str) -> None:
    """Allow new actions again; while not paused this changes nothing but is recorded."""
    cluster.ledger.resume_autopilot(actor=actor, now=cluster.clock.now())


def approve(plan: PlanId, cluster: Cluster, *, actor: str, valid_for: timedelta) -> tuple[IncidentPlan, Approval]:
    """Say yes to exactly this plan until it expires; refuse a plan that is unknown or no longer waits for a yes.

    A plan that changes gets another name, so an approval never carries over.
    """
    known = cluster.ledger.plan(plan)
    if known is None:
        raise ByHandRefused(f"there is no plan {plan}; `ops-pipelines incidents` lists what waits for approval")
    incident = cluster.ledger.incident(known.incident)
    is_in_force = incident is not None and incident.state is IncidentState.ACTING and incident.plan == plan
    if incident is None or (incident.state is not IncidentState.OPEN and not is_in_force):
        state = "unknown" if incident is None else incident.state.value
        raise ByHandRefused(f"{known.incident} is {state}; {plan} no longer waits for approval")
    now = cluster.clock.now()
    approval = Approval(plan=plan, actor=actor, given_at=now, expires_at=now + valid_for)
    cluster.ledger.approve(approval)
    return known, approval


def close(incident: IncidentId, cluster: Cluster, *, actor: str, reason: str) -> Incident:
    """End an incident that a person has dealt with; refuse one that the autopilot still works on.

    Closing touches no node: a drain of ours stays until the node is returned.
    """
    known = cluster.ledger.incident(incident)
    if known is None:
        raise ByHandRefused(f"there is no incident {incident}")
    if known.state is not IncidentState.ESCALATED:
        raise ByHandRefused(
            f"{incident} is {known.state.value}; only an escalated incident is a person's to close. "
            "`ops-pipelines pause` stops the autopilot first"
        )
    now = cluster.clock.now()
    closed = advance(known, IncidentEvent.CLEARED, at=now, note=f"closed by {actor}: {reason}")
    cluster.ledger.change_incident(closed, actor=actor, now=now)
    return closed
