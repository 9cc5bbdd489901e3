"""Puts plans in force: which may begin by now, together within the budgets, each with its evidence kept before.

Of an incident one plan is in force at most. What is then done is `carry_out`'s, how far it came `plan_progress`'.
"""

from collections.abc import Sequence
from dataclasses import replace

from ops_pipelines.core.action import MESSAGES, SOFT, Action, ActionRecord
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerState
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.domain.guardrails.judge import ClusterFacts, Refusal, judge
from ops_pipelines.flow.acts.fresh_facts import FreshFacts, read_facts
from ops_pipelines.flow.acts.judgement import authority_of, words_of
from ops_pipelines.flow.acts.perform import Stage
from ops_pipelines.flow.evidence.bundle import BundleReport, note_with, save_before_acting
from ops_pipelines.flow.plans.gate import why_not_passed
from ops_pipelines.flow.plans.plan_progress import PlanProgress


def put_in_force(plans: Sequence[PlanProgress], cluster: Cluster) -> tuple[list[PlanProgress], FreshFacts | None]:
    """Begin, in one transaction, every plan whose incident waits and whose first act is allowed; settle the others.

    Return those that are in force then, and what was read to judge the first acts: None where no plan waited, for then
    the cluster is not asked. Raises SourceError if the scheduler does not list its nodes and jobs, and LedgerConflict
    if an incident has changed meanwhile.
    """
    state = cluster.ledger.read_state(cluster.clock.now())
    present = {incident.incident: incident for incident in state.incidents}
    known = [(each, present[each.plan.incident]) for each in plans if each.plan.incident in present]
    waiting = [(each, incident) for each, incident in known if is_yet_to_begin(each, incident)]
    begun: dict[PlanProgress, Incident] = {}
    fresh: FreshFacts | None = None
    if waiting:
        verbs = frozenset(first_act(each.plan).verb for each, _ in waiting)
        facts = read_facts(verbs, cluster, state=state)
        fresh = FreshFacts(facts=facts, verbs=verbs)
        for each, incident in waiting:
            refusal = why_not_passed(each.plan, cluster) or _why_not_begun(each.plan, facts, state, cluster)
            if refusal is not None:
                each.settle(Stage.WAITING, words_of(refusal))
                continue
            begun[each] = _begin(each.plan, incident, cluster)
            # What this plan will drain is spent for the next one: together they stay within the budget.
            intended = ActionRecord(action=first_act(each.plan), plan=begun[each].plan, begun_at=facts.taken_at)
            facts = replace(facts, records=(*facts.records, intended))
        about_to_begin = [(incident, each.plan) for each, incident in begun.items()]
        evidence = save_before_acting(about_to_begin, cluster, nodes=facts.nodes, jobs=facts.jobs)
        begun = {each: _with_evidence(incident, evidence) for each, incident in begun.items()}
        cluster.ledger.change_incidents(begun.values(), actor=AUTOPILOT, now=cluster.clock.now())
    return [*begun, *(each for each, incident in known if is_in_force(each.plan, incident))], fresh


def is_in_force(plan: IncidentPlan, incident: Incident) -> bool:
    """Return whether the incident is being acted on by this very plan."""
    return incident.state is IncidentState.ACTING and incident.plan == plan.plan


def is_yet_to_begin(progress: PlanProgress, incident: Incident) -> bool:
    """Return whether a plan is yet to be put in force; settle if it never will be."""
    if incident.state is not IncidentState.OPEN and not is_in_force(progress.plan, incident):
        progress.settle(Stage.WAITING, f"the incident is {incident.state.value}; this plan is not in force")
    if incident.state is IncidentState.OPEN and not _is_of_now(progress.plan, incident):
        progress.settle(Stage.WAITING, "the incident calls for another plan by now")
    return incident.state is IncidentState.OPEN and progress.is_under_way


def _is_of_now(plan: IncidentPlan, incident: Incident) -> bool:
    """Return whether the plan was made for the incident as it is: for this response, and as its next try."""
    is_next_try = plan.actions[0].try_number == incident.plan_count + 1
    return incident.response is (plan.calls_for or plan.response) and is_next_try


def first_act(plan: IncidentPlan) -> Action:
    """Return the first act on the cluster: it decides whether the plan may begin.

    Messages need nobody's yes, and a plan goes on without the room that it would keep free.
    """
    acts = [action for action in plan.actions if action.verb not in MESSAGES | SOFT]
    return acts[0] if acts else plan.actions[0]


def _why_not_begun(plan: IncidentPlan, facts: ClusterFacts, state: LedgerState, cluster: Cluster) -> Refusal | None:
    """Return why the guardrails do not allow the first act."""
    incident = next((each for each in state.incidents if each.incident == plan.incident), None)
    return judge(
        first_act(plan),
        facts,
        policy=cluster.rules.policy,
        topology=cluster.rules.topology,
        authority=authority_of(plan.plan, state, cluster.rules.policy, actor=AUTOPILOT),
        origin=frozenset() if incident is None else incident.nodes,
    )


def _begin(plan: IncidentPlan, incident: Incident, cluster: Cluster) -> Incident:
    """Return the incident as it is with this plan in force."""
    begun = advance(incident, IncidentEvent.PLAN_BEGUN, at=cluster.clock.now(), note=plan.reason)
    # The plan may stand above what the findings call for: from now on the incident stands there, too.
    return replace(begun, plan=plan.plan, plan_count=incident.plan_count + 1, response=plan.response)


def _with_evidence(incident: Incident, evidence: BundleReport) -> Incident:
    """Return the incident with what the ledger keeps of its bundle; a plan goes on without, and the note says so."""
    saved = evidence.saved.get(incident.incident)
    note = note_with(incident.note, evidence.problems.get(incident.incident))
    return replace(incident, bundle=None if saved is None else saved.digest, note=note)
