"""Keeps silences in step with planned work: one for each node that we took out of service, none for any other.

A silence lives an hour and is renewed while the work lasts, so that it lapses if we die. What is wanted and what has
to change are pure; asking Alertmanager is the port's. Its silence is told once, and stops nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.action import OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.identity import NodeName, cause_of
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import Audience, Message, Severity, Silence, Silencer, WantedSilence
from ops_pipelines.core.sources import SourceError, SourceUnavailable
from ops_pipelines.observe.alerts import end_what_is_gone, fired

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
    """Return what turns the present silences of ours into the wanted ones: one a node, and no other."""
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

    Where Alertmanager does not answer the rest is left for the next turn, and a person is told once.
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
        body=f"{problem}. The autopilot goes on; nodes that it repairs may page until Alertmanager answers again.",
        severity=Severity.WARNING,
        key=f"{_CURSOR}/{since}",
    )
    try:
        cluster.notifier.send(message)
    except SourceUnavailable:
        return  # The next turn tries again.
    _remember(f"{since} told", cluster)


def _note_answer(cluster: Cluster) -> None:
    if cluster.ledger.cursor(_CURSOR):
        _remember("", cluster)


def _remember(words: str, cluster: Cluster) -> None:
    cluster.ledger.take_in(source=_CURSOR, observations=(), rejected=(), cursor=words, now=cluster.clock.now())
