"""Hands an incident to a person: the page first, then the state; with what is left for them, such as held jobs.

When it is handed over is for whoever waits: `carry_out`, `verify`, `probation`. A person is reminded by `overdue`.
"""

from collections.abc import Sequence

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.identity import JobId
from ops_pipelines.core.incident import Incident, IncidentEvent, advance
from ops_pipelines.core.plan import Order
from ops_pipelines.flow.acts.perform import Stage, perform
from ops_pipelines.flow.lease import Lease


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
