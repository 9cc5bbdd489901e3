"""Planned work: its times for calendars, and Alertmanager's silences for the nodes that we took out of service.

Windows, rollouts, freezes, waits, silences and repairs have times that people plan by; they are values for a calendar
(`terminal.served_pages`), read from the ledger and the policy.

A silence lives an hour and is renewed while the work lasts, so that it lapses if we die. Which are needed and what has
to change is pure; asking Alertmanager is the port's. That it is silent is reported once, and stops nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.action import OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.identity import NodeName, cause_of, digest_of, listed
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.notes import Audience, Message, Severity, Silence, Silencer, WantedSilence
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.rollout import Rollout, RolloutState, Wave
from ops_pipelines.core.sources import SourceError, SourceUnavailable
from ops_pipelines.observe.alerts import end_what_is_gone, fired
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
    """One interval of time. `name` is the same as long as it is the same thing, however its times move."""

    kind: PlannedKind
    name: str
    begins_at: datetime
    ends_at: datetime
    title: str
    about: str = ""


def planned_times(cluster: Cluster) -> tuple[PlannedTime, ...]:
    """Return everything that has a time, by its beginning. What a silent source shows is left out.

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
            about="Nothing destructive is started"
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
    for each in calendar.open_intervals(now - _LONGEST_WINDOW, now + _WINDOWS_AHEAD + _LONGEST_WINDOW):
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
            about=f"As expected, soak included. No job is killed. {names}{more}",
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


LIFE = timedelta(hours=1)
_RENEWED_BEFORE = timedelta(minutes=30)
"""A silence with less than this left is renewed: thirty turns may fail before one lapses."""
_TOLD_AFTER = timedelta(minutes=5)
"""Alertmanager is restarted in less: nobody need hear of that."""
_OUT_OF_SERVICE = frozenset({IncidentState.ACTING, IncidentState.VERIFYING, IncidentState.IN_REPAIR})
"""While we work on a node, or it waits for hands. What was handed over to a person is theirs, alerts and all."""
_CURSOR = "silence of the alertmanager"


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceChanges:
    """What has to be asked for."""

    make: tuple[WantedSilence, ...] = ()
    renew: tuple[tuple[Silence, WantedSilence], ...] = ()
    expire: tuple[Silence, ...] = ()


def wanted_silences(state: LedgerState) -> tuple[WantedSilence, ...]:
    """Return one silence for each node that one of our incidents drained and has not returned, by name.

    The same for each node that a rollout has in hand: its silence is made and ended with the wave.
    """
    wanted: dict[NodeName, WantedSilence] = {}
    for incident in state.incidents:
        if incident.state not in _OUT_OF_SERVICE or incident.is_mass_event:
            continue
        drained: set[NodeName] = set()
        for record in state.records:
            action = record.action
            is_done = record.outcome is not None and record.outcome.kind is OutcomeKind.DONE
            if action.incident != incident.incident or action.node is None or not is_done:
                continue
            if action.verb is Verb.DRAIN:
                drained.add(action.node)
            elif action.verb is Verb.RESUME:
                drained.discard(action.node)
        for node in sorted(drained & incident.nodes):
            wanted.setdefault(node, WantedSilence(node=node, incident=incident.incident))
    for node, rollout in state.owned.items():
        wanted.setdefault(node, WantedSilence(node=node, incident=cause_of(rollout)))
    return tuple(wanted[node] for node in sorted(wanted))


def changes_of(wanted: Sequence[WantedSilence], present: Sequence[Silence], *, now: datetime) -> SilenceChanges:
    """Return what turns the present silences of ours into the requested ones: one a node, and no other."""
    by_node = {each.node: each for each in wanted}
    kept: dict[NodeName, Silence] = {}
    expire: list[Silence] = []
    for silence in sorted(present, key=lambda each: (each.ends_at, each.silence_id), reverse=True):
        if silence.node is None or silence.node not in by_node or silence.node in kept:
            expire.append(silence)
        else:
            kept[silence.node] = silence
    return SilenceChanges(
        make=tuple(each for each in wanted if each.node not in kept),
        renew=tuple(
            (silence, by_node[node])
            for node, silence in sorted(kept.items())
            if silence.ends_at - now < _RENEWED_BEFORE or by_node[node].incident not in silence.comment.split()
        ),
        expire=tuple(expire),
    )


def keep_silences(silencer: Silencer, cluster: Cluster) -> str:
    """Make, renew and end silences, and end the alerts that Alertmanager shows no more; return what was done, in words.

    Where Alertmanager does not answer the rest is left for the next turn, and a person is notified once.
    """
    try:
        done = _keep(silencer, cluster)
        done += _end_alerts(silencer, cluster)
    except SourceError as problem:
        _tell_once(str(problem), cluster)
        return f"Alertmanager: {problem}"
    _note_answer(cluster)
    return ", ".join(done) or "nothing to silence"


def _keep(silencer: Silencer, cluster: Cluster) -> list[str]:
    now = cluster.clock.now()
    changes = changes_of(wanted_silences(cluster.ledger.read_state(now)), silencer.ours(), now=now)
    # Ends come first: a node that is back in service must be heard again, whatever fails afterwards.
    for silence in changes.expire:
        silencer.expire(silence)
    for silence, wanted in changes.renew:
        silencer.renew(silence, wanted, ends_at=now + LIFE)
    for wanted in changes.make:
        silencer.silence(wanted, starts_at=now, ends_at=now + LIFE)
    told = [
        (f"silenced {', '.join(each.node for each in changes.make)}", changes.make),
        (f"renewed {len(changes.renew)}", changes.renew),
        (f"ended {len(changes.expire)} silence(s)", changes.expire),
    ]
    return [words for words, changed in told if changed]


def _end_alerts(silencer: Silencer, cluster: Cluster) -> list[str]:
    if not fired(cluster):
        return []
    standing = silencer.standing_alerts()
    if standing is None:
        return []
    gone = end_what_is_gone(standing, cluster)
    return [f"{len(gone)} alert(s) are over"] if gone else []


def _tell_once(problem: str, cluster: Cluster) -> None:
    now = cluster.clock.now()
    since, _, told = (cluster.ledger.cursor(_CURSOR) or "").partition(" ")
    if not since:
        _remember(now.isoformat(), cluster)
        return
    if told or now - datetime.fromisoformat(since) < _TOLD_AFTER:
        return
    message = Message(
        audience=Audience.ON_CALL,
        recipient="on-call",
        thread=_CURSOR,
        title="Alertmanager does not answer: alerts of planned work are not silenced",
        body=f"{problem}. The autopilot continues; nodes that it repairs may page until Alertmanager answers again.",
        severity=Severity.WARNING,
        key=f"{_CURSOR}/{since}",
    )
    try:
        cluster.notifier.send(message)
    except SourceUnavailable:
        return  # The next turn tries again.
    _remember(f"{since} reported", cluster)


def _note_answer(cluster: Cluster) -> None:
    if cluster.ledger.cursor(_CURSOR):
        _remember("", cluster)


def _remember(words: str, cluster: Cluster) -> None:
    cluster.ledger.take_in(source=_CURSOR, observations=(), rejected=(), cursor=words, now=cluster.clock.now())
