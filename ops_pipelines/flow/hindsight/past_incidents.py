"""The incidents that recorded time shows: what the lake holds before a moment, through the same rules as live.

Reads the lake alone. What was done about them, and by whom, is the ledger's to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.lake import Lake
from ops_pipelines.core.plan import Rules
from ops_pipelines.flow.hindsight.from_lake import Detect, RecordedStretch, evidence_from_lake
from ops_pipelines.flow.hindsight.retrace import JobTimeline, Retrace, turns

LOOK_EVERY = timedelta(seconds=5)
"""As often as the daemon looks at its sensors."""
_CLOSE_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastIncidents:
    """What was wrong in [start, end], as far as was recorded."""

    start: datetime
    end: datetime
    incidents: tuple[Incident, ...]
    """Those that would have troubled somebody, by when they began; named PAST-1 and so on, as the ledger knows none."""
    gaps: tuple[str, ...]
    """What the lake does not hold, in words."""
    is_blind: bool
    """Nobody recorded a sample of anything: that no incident was found then says nothing."""


def find_past_incidents(
    lake: Lake,
    *,
    at: datetime,
    back: timedelta,
    rules: Rules,
    release: Mapping[str, str],
    step_seconds: int | None = None,
    detect: Detect | None = None,
) -> PastIncidents:
    """Return the incidents of [at - back, at]. Raises LakeError; ValueError for a stretch that is empty.

    `step_seconds` and `detect` as in `from_lake.evidence_from_lake`.
    """
    known = evidence_from_lake(
        lake, at=at, back=back, topology=rules.topology, step_seconds=step_seconds, release=release, detect=detect
    )
    retrace = Retrace(catalogue=rules.catalogue, topology=rules.topology, mass_event=rules.policy.mass_event)
    _go_through(known, retrace)
    raised = [
        each
        for each in retrace.incidents.values()
        if each.state is not IncidentState.MERGED and each.incident in retrace.raised_at
    ]
    return PastIncidents(
        start=known.start,
        end=known.end,
        incidents=_named(sorted(raised, key=lambda each: (each.began_at, each.incident))),
        gaps=known.gaps,
        is_blind=known.is_blind,
    )


def _go_through(known: RecordedStretch, retrace: Retrace) -> None:
    learnt = {turn.at: turn for turn in turns(known.events, known.spells, tick=LOOK_EVERY, until=known.end)}
    count = int((known.end - known.start) / _CLOSE_EVERY)
    looks = {known.start + (number + 1) * _CLOSE_EVERY for number in range(count)}
    jobs = JobTimeline(known.jobs)
    for at in sorted({*learnt, *looks}):
        turn = learnt.get(at)
        if turn is not None:
            retrace.step(at, events=turn.events, begun=turn.begun, ended=turn.ended, jobs=jobs.at(at))
        else:
            retrace.step(at, jobs=jobs.at(at))


def _named(incidents: list[Incident]) -> tuple[Incident, ...]:
    return tuple(
        replace(incident, incident=IncidentId(f"PAST-{number}")) for number, incident in enumerate(incidents, start=1)
    )
