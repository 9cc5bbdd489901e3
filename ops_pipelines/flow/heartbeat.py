"""The beat of the processes that watch, and the reading of all vital signs from the ledger. Judges nothing.

A beat is written once a tick, so that a dead process shows as an old beat. Reading is cheap and writes nothing.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerState, Pause
from ops_pipelines.core.health import WATCHER, VitalSigns
from ops_pipelines.flow.timeliness import in_force, read_lateness

RESTART_SOURCE = "what only a restart takes up"
"""The cursor under which the code server says so; empty: there is nothing."""


def beat(cluster: Cluster, *, name: str, holder: str, note: str, answers: Mapping[str, str | None]) -> None:
    """Record the tick of `name` by the process `holder`, in words, with what each source asked in it answered.

    A source that was not asked in this tick keeps what it answered this process last: most ticks ask only the logs.
    """
    before = next((each for each in cluster.ledger.heartbeats() if each.name == name), None)
    remembered: Mapping[str, str | None] = before.answers if before is not None and before.holder == holder else {}
    cluster.ledger.beat(
        name=name,
        holder=holder,
        note=note,
        mode=in_force(cluster.rules.policy, read_lateness(cluster.ledger, cluster.clock.now())).mode,
        answers={**remembered, **answers},
        now=cluster.clock.now(),
    )


def read_vital_signs(cluster: Cluster) -> VitalSigns:
    """Return what the ledger knows of the program itself now; raise LedgerError if it cannot be read."""
    now = cluster.clock.now()
    return vital_signs(cluster, cluster.ledger.read_state(now), now=now)


def vital_signs(cluster: Cluster, state: LedgerState, *, now: datetime) -> VitalSigns:
    """Return the vital signs where the state of the ledger at `now` is known already."""
    ledger = cluster.ledger
    restart_for = ledger.cursor(RESTART_SOURCE)
    newest = ledger.evidence_after(state.evidence_head - 1, limit=1)
    lateness = read_lateness(ledger, now)
    beats = ledger.heartbeats()
    refused = ledger.why_refused()
    acting = {each.holder for each in beats if each.name == WATCHER}
    unfinished = [record.begun_at for record in state.records if record.outcome is None]
    return VitalSigns(
        taken_at=now,
        mode=cluster.rules.policy.mode,
        heartbeats=tuple(each for each in beats if not each.is_beside),
        lateness=None if lateness is None else lateness.why,
        is_lease_held=ledger.current_lease(now) is not None,
        pause=None if state.pause is None else _explain(state.pause),
        head_seq=state.head_seq,
        refusal=None if refused is None else refused.words,
        newest_evidence_at=newest[0].observation.observed_at if newest else None,
        undecided_evidence_count=state.evidence_head - state.decided_through,
        open_incidents=Counter((incident.state, incident.response) for incident in state.incidents),
        unfinished_action_count=len(unfinished),
        oldest_unfinished_begun_at=min(unfinished, default=None),
        # Who waited and acts by now is no second one, nor is who was last seen a minute ago.
        bystanders=tuple(
            each for each in beats if each.is_beside and each.holder not in acting and not each.is_silent(now)
        ),
        troubles=(*(str(each) for each in cluster.troubles), *([restart_for] if restart_for else [])),
    )


def _explain(pause: Pause) -> str:
    return f"by {pause.actor} since {pause.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC: {pause.reason}"
