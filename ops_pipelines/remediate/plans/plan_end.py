"""What becomes of an incident when its plan is over: done, failed, or handed to a person.

When it is handed over is for whoever waits: `carry_out`, `verify`, `probation`. A person is reminded by `overdue`.

Each writes one change of the incident and returns what is to be said of it. A person takes over in `escalation`.
"""

from collections.abc import Sequence
from dataclasses import replace

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import JobId
from ops_pipelines.core.incident import PAGED, Incident, IncidentEvent, IncidentState, advance, climb
from ops_pipelines.core.plan import IncidentPlan, Order
from ops_pipelines.remediate.acts.facts import Lease
from ops_pipelines.remediate.acts.perform import Stage, perform
from ops_pipelines.remediate.by_hand import store_report
from ops_pipelines.remediate.plans.gate import is_in_force
from ops_pipelines.remediate.verification import REPAIR_MARKS

# -- hands an incident to a person --


def escalate(incident: Incident, cluster: Cluster, *, lease: Lease, why: str) -> bool:
    """Hand an incident to a person and return whether the page went out.

    The page comes first: where no channel takes it the incident stays as it is, and the next pass pages again.
    """
    held = sorted(held_jobs(cluster.ledger.records(incident.incident)))
    left = f" Still held, to be released by you: job {', '.join(held)}." if held else ""
    page = Action(
        verb=Verb.PAGE_HUMAN,
        incident=incident.incident,
        text=f"{incident.incident} needs you: {why}. Nothing more is done by itself.{left}",
        try_number=incident.plan_count + 1,
    )
    if perform(Order(action=page), cluster, lease=lease).stage is not Stage.DONE:
        return False
    now = cluster.clock.now()
    given_up = advance(incident, IncidentEvent.NEEDS_HUMAN, at=now, note=why)
    cluster.ledger.change_incident(given_up, actor=AUTOPILOT, now=now)
    return True


def held_jobs(records: Sequence[ActionRecord]) -> set[JobId]:
    """Return the jobs that we began to hold and have not been seen to release."""
    jobs: set[JobId] = set()
    for record in records:
        attempt = record.action.attempt
        if attempt is None:
            continue
        if record.action.verb is Verb.HOLD:
            jobs.add(attempt.job)
        elif (
            record.action.verb is Verb.RELEASE
            and record.outcome is not None
            and record.outcome.kind is OutcomeKind.DONE
        ):
            jobs.discard(attempt.job)
    return jobs


# -- what becomes of an incident when its plan is over --


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
