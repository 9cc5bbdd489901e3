"""What of the autopilot's work has a time that people plan by: windows, rollouts, freezes, waits, silences, repairs.

Values for a calendar (`terminal.served_pages`); reads the ledger and the policy, and decides nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import digest_of, listed
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.rollout import Rollout, RolloutState, Wave
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.repair_report import queued_at
from ops_pipelines.rollouts.cycle import calendar_of

_PAST_FREEZES_ARE_SHOWN = timedelta(days=30)
_WINDOWS_AHEAD = timedelta(days=30)
_LONGEST_WINDOW = timedelta(days=60)
"""Cut off at one that is longer; all others are shown whole, so that they stay the same event from day to day."""
_SHOWN_COUNT = 12
_LEAST = timedelta(minutes=1)
_WAITING = frozenset({RolloutState.AWAITING_YES, RolloutState.PAUSED, RolloutState.ASKING})
_AHEAD = frozenset({RolloutState.RUNNING, RolloutState.SOAKING}) | _WAITING


class PlannedKind(Enum):
    FREEZE = "freeze"
    WINDOW = "window"
    ROLLOUT = "rollout"
    PROBATION = "probation"
    WAIT = "wait"
    SILENCE = "silence"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTime:
    """One stretch of time. `name` is the same as long as it is the same thing, however its times move."""

    kind: PlannedKind
    name: str
    begins_at: datetime
    ends_at: datetime
    title: str
    about: str = ""


def planned_times(cluster: Cluster) -> tuple[PlannedTime, ...]:
    """Return everything that has a time, by its beginning. What a silent source tells is left out.

    Silences need Alertmanager, maintenance windows the calendars that policy.yaml names.
    """
    now = cluster.clock.now()
    policy = cluster.rules.policy
    state = cluster.ledger.read_state(now)
    incidents = state.incidents
    found = [
        *_freezes(policy, now=now),
        *_windows(cluster, now=now),
        *(wave for each in state.rollouts for wave in _waves(each, now=now)),
        *(_probation(each, policy) for each in incidents if each.state is IncidentState.PROBATION),
        *(wait for each in incidents if each.state is IncidentState.ACTING for wait in _waits(each, cluster, now=now)),
        *(_repair(each, now=now) for each in incidents if each.state is IncidentState.IN_REPAIR),
        *_silences(cluster),
    ]
    return tuple(sorted(found, key=lambda each: (each.begins_at, each.kind.value, each.name)))


def _freezes(policy: Policy, *, now: datetime) -> Iterator[PlannedTime]:
    for window in policy.freeze_windows:
        if window.ends_at < now - _PAST_FREEZES_ARE_SHOWN:
            continue
        yield PlannedTime(
            kind=PlannedKind.FREEZE,
            name=digest_of(window.name, window.begins_at.isoformat())[:16],
            begins_at=window.begins_at,
            ends_at=window.ends_at,
            title=f"Freeze: {window.name}",
            about="Nothing destructive is begun"
            + ("; new work may be kept off a broken node." if window.allows_drains else ", drains included."),
        )


def _windows(cluster: Cluster, *, now: datetime) -> Iterator[PlannedTime]:
    """Yield when rollouts may take nodes, freezes taken away; nothing where every time will do."""
    try:
        calendar, _ = calendar_of(cluster, now=now)
    except SourceError:
        return
    if calendar.windows is None:
        return
    for each in calendar.open_stretches(now - _LONGEST_WINDOW, now + _WINDOWS_AHEAD + _LONGEST_WINDOW):
        if each.ends_at <= now or each.begins_at >= now + _WINDOWS_AHEAD:
            continue
        yield PlannedTime(
            kind=PlannedKind.WINDOW,
            name=digest_of(each.name, each.begins_at.isoformat())[:16],
            begins_at=each.begins_at,
            ends_at=each.ends_at,
            title=f"Maintenance window: {each.name or 'unnamed'}",
            about="Rollouts take nodes, a few at a time. No job is killed.",
        )


def _waves(rollout: Rollout, *, now: datetime) -> Iterator[PlannedTime]:
    """Yield the present wave and those that come, as planned, moved by as much as the present one is early or late."""
    if rollout.state not in _AHEAD:
        return
    moved = _moved(rollout.waves[rollout.wave - 1], now=now)
    waits = f" ({rollout.state.value.replace('_', ' ')})" if rollout.state in _WAITING else ""
    for wave in rollout.waves[rollout.wave - 1 :]:
        if wave.planned_from is None or wave.planned_until is None:
            continue
        is_present = wave.number == rollout.wave
        begins_at = min(wave.planned_from, now) if is_present else wave.planned_from + moved
        names = ", ".join(wave.nodes[:_SHOWN_COUNT])
        more = f" and {len(wave.nodes) - _SHOWN_COUNT} more" if len(wave.nodes) > _SHOWN_COUNT else ""
        yield PlannedTime(
            kind=PlannedKind.ROLLOUT,
            name=f"{rollout.rollout}-w{wave.number}",
            begins_at=begins_at,
            ends_at=max(wave.planned_until + moved, begins_at + _LEAST),
            title=f"{rollout.rollout} {rollout.release}: wave {wave.number} of {len(rollout.waves)}, "
            f"{len(wave.nodes)} node(s){waits}",
            about=f"As foreseen, soak included. No job is killed. {names}{more}",
        )


def _moved(present: Wave, *, now: datetime) -> timedelta:
    if present.planned_from is not None and present.planned_from > now:
        return now - present.planned_from
    if present.planned_until is not None and present.planned_until < now:
        return now - present.planned_until
    return timedelta(0)


def _probation(incident: Incident, policy: Policy) -> PlannedTime:
    begins_at = incident.returned_at or incident.changed_at
    return PlannedTime(
        kind=PlannedKind.PROBATION,
        name=incident.incident,
        begins_at=begins_at,
        ends_at=begins_at + policy.durations.probation,
        title=f"Probation of {_nodes(incident)}",
        about=f"{incident.incident}: {incident.cause}. Back in service as last choice until then.",
    )


def _waits(incident: Incident, cluster: Cluster, *, now: datetime) -> Iterator[PlannedTime]:
    plan = None if incident.plan is None else cluster.ledger.plan(incident.plan)
    for timing in () if plan is None else plan.timings:
        if timing.until is None or timing.until <= now:
            continue
        attempt = digest_of(timing.attempt.job, timing.attempt.started_at.isoformat())
        yield PlannedTime(
            kind=PlannedKind.WAIT,
            name=f"{incident.incident}-{attempt[:16]}",
            begins_at=min(incident.changed_at, timing.until),
            ends_at=timing.until,
            title=f"Job {timing.attempt.job} leaves {_nodes(incident)}, by then at the latest",
            about=f"{incident.incident}: {incident.cause}",
        )


def _repair(incident: Incident, *, now: datetime) -> PlannedTime:
    begins_at = min(queued_at(incident), now)
    return PlannedTime(
        kind=PlannedKind.REPAIR,
        name=incident.incident,
        begins_at=begins_at,
        ends_at=max(now, begins_at + timedelta(minutes=1)),
        title=f"{_nodes(incident)} waits for repair by hands",
        about=f"{incident.incident}: {incident.cause}. Afterwards: ops-pipelines repair done {incident.incident}",
    )


def _silences(cluster: Cluster) -> Iterator[PlannedTime]:
    try:
        silences = () if cluster.silencer is None else cluster.silencer.ours()
    except SourceError:
        return
    for silence in silences:
        if silence.node is None:
            continue
        yield PlannedTime(
            kind=PlannedKind.SILENCE,
            name=silence.silence_id,
            begins_at=silence.starts_at,
            ends_at=max(silence.ends_at, silence.starts_at + timedelta(minutes=1)),
            title=f"Alerts of {silence.node} are silenced",
            about=f"{silence.comment}. Renewed while the work lasts.",
        )


def _nodes(incident: Incident) -> str:
    return listed(sorted(incident.nodes)) or "no node"
