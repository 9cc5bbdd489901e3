"""What becomes of an incident when its plan is over: done, failed, or overtaken by what the fault does meanwhile.

Each writes one change of the incident and returns what is to be said of it. A person takes over in `escalation`.
"""

from dataclasses import replace

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.incident import PAGED, Incident, IncidentEvent, IncidentState, advance, climb
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.domain.returning.verification import REPAIR_MARKS
from ops_pipelines.flow.hands.repairs import store_report
from ops_pipelines.flow.plans.in_force import is_in_force


def end_plan(plan: IncidentPlan, incident: Incident, cluster: Cluster) -> str:
    """Let the incident go on after the last step of its plan: a repair is proven next, hands are waited for."""
    now = cluster.clock.now()
    repaired = REPAIR_MARKS & {action.verb for action in plan.actions}
    if plan.response is Response.RETURN_TO_VENDOR:
        event, note = IncidentEvent.QUEUED, "it waits for hands: `ops-pipelines repair list`"
    elif plan.response is Response.ISOLATE and any(action.verb is Verb.DRAIN for action in plan.actions):
        event, note = IncidentEvent.STEPS_DONE, "isolated; the node must prove itself before it is returned"
    elif repaired:
        event, note = IncidentEvent.STEPS_DONE, "repaired; the node must prove itself before it is returned"
    elif plan.response in REPAIRS or any(action.verb is Verb.PAGE_HUMAN for action in plan.actions):
        event, note = IncidentEvent.NEEDS_HUMAN, f"{PAGED}: {plan.reason}"
    else:
        event, note = IncidentEvent.NOTHING_TO_VERIFY, "the owner was told; no node is at fault"
    after = advance(incident, event, at=now, note=note)
    if after.state is IncidentState.IN_REPAIR:
        # What the vendor is told is kept as it was on this day.
        after = replace(after, note=f"{note}; report {store_report(after, cluster)[:12]}")
    cluster.ledger.change_incident(after, actor=AUTOPILOT, now=now)
    return note


def climb_after(plan: IncidentPlan, cluster: Cluster, *, why: str) -> None:
    """Put the incident a rung higher, if the plan that failed is still in force: the next decision plans that rung."""
    incident = cluster.ledger.incident(plan.incident)
    if incident is not None and is_in_force(plan, incident):
        now = cluster.clock.now()
        higher = climb(incident, IncidentEvent.REPAIR_FAILED, why=why, at=now)
        cluster.ledger.change_incident(higher, actor=AUTOPILOT, now=now)


def plan_anew(incident: Incident, cluster: Cluster) -> str:
    """Supersede the plan in force, so that the jobs that it left are moved by the next one."""
    now = cluster.clock.now()
    note = "the fault has turned worse, or other replicas serve by now: its jobs are moved after all"
    superseded = advance(incident, IncidentEvent.SUPERSEDED, at=now, note=note)
    cluster.ledger.change_incident(superseded, actor=AUTOPILOT, now=now)
    return note
