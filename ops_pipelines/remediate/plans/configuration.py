"""What follows when the configuration or the ledger changes under a running autopilot; the beat of what watches.

A beat is written once a tick, so that a dead process shows as an old beat. Reading is cheap and writes nothing.

Read by `wiring`, which gives each pass the rules that hold. Here the process that may act pages about a file that
cannot be used, says which file only a restart takes up, and notes since when the rules hold: what waits is asked anew.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerConflict, LedgerState, Pause
from ops_pipelines.core.health import WATCHER, VitalSigns
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.incident import IncidentEvent, advance, handed_to_people
from ops_pipelines.core.notes import Audience, Message, Severity
from ops_pipelines.core.plan import Order
from ops_pipelines.core.policy import ConfigTrouble
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.acts.facts import Lease
from ops_pipelines.remediate.acts.perform import perform
from ops_pipelines.remediate.timeliness import in_force, read_lateness

# -- the beat of the processes that watch --


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


# -- what follows when the configuration, or the ledger itself --


_RULES_SOURCE = "rules in force"
_OVER = 2
"""The page that the hour is over is the second one about the same trouble."""
_SINCE = " cannot be used since "


def see_to_configuration(cluster: Cluster, *, lease: Lease) -> None:
    """Note what holds now, and page about what cannot be used; called by the process that holds the lease.

    Raises LedgerError.
    """
    _note_rules(cluster)
    _note(RESTART_SOURCE, _restart_words(cluster), cluster)
    state = cluster.ledger.read_state(cluster.clock.now())
    _close_what_is_mended(cluster, state)
    for trouble in cluster.troubles:
        with suppress(LedgerConflict, SourceError):  # Somebody opened an incident in this moment: the next tick pages.
            _page(trouble, cluster, state, lease=lease)


def tell_ledger_news(cluster: Cluster) -> None:
    """Page once that the ledger is refused, or was restored; a channel that does not answer is tried with each call.

    Past the ledger: one that is gone keeps no outbox, and in another's nothing of ours is written. Raises LedgerError.
    """
    for news in cluster.ledger.untold_news():
        message = Message(
            audience=Audience.ON_CALL,
            recipient="on-call",
            thread=f"{cluster.name}/ledger",
            title=f"{cluster.name}: " + ("nothing is begun: the ledger" if news.is_refusal else "the ledger"),
            body=news.words,
            severity=Severity.CRITICAL,
            key=f"{cluster.name}/ledger/{news.key}",
        )
        with suppress(SourceError):
            cluster.notifier.send(message)
            cluster.ledger.mark_told(news)


def rules_changed_at(cluster: Cluster) -> datetime | None:
    """Return since when the rules in force hold; None if the ledger saw no others before."""
    noted = cluster.ledger.cursor(_RULES_SOURCE) or ""
    _, _, since = noted.partition(" ")
    return datetime.fromisoformat(since) if since else None


def _note_rules(cluster: Cluster) -> None:
    noted = cluster.ledger.cursor(_RULES_SOURCE) or ""
    digest, _, _ = noted.partition(" ")
    if digest != cluster.rules_digest:
        since = cluster.clock.now().isoformat() if digest else ""
        _note(_RULES_SOURCE, f"{cluster.rules_digest} {since}", cluster)


def _restart_words(cluster: Cluster) -> str:
    if not cluster.restart_for:
        return ""
    return (
        f"{cluster.restart_for} has changed since the code server read it; restart the code server to take that up "
        "(`systemctl restart ops-pipelines-code`)"
    )


def _note(source: str, words: str, cluster: Cluster) -> None:
    if (cluster.ledger.cursor(source) or "") != words:
        cluster.ledger.take_in(source=source, observations=(), rejected=(), cursor=words, now=cluster.clock.now())


def _page(trouble: ConfigTrouble, cluster: Cluster, state: LedgerState, *, lease: Lease) -> None:
    now = cluster.clock.now()
    # Also one that a person has closed: they know, and are not paged about the same trouble again.
    since, _, name = (cluster.ledger.cursor(_trouble_with(trouble)) or "").partition(" ")
    is_known = since == trouble.since.isoformat()
    incident = cluster.ledger.incident(IncidentId(name)) if is_known else None
    if incident is None:
        incident = handed_to_people(number=state.incident_count + 1, note=str(trouble), now=now)
        cluster.ledger.change_incident(incident, actor=AUTOPILOT, now=now)
        _note(_trouble_with(trouble), f"{trouble.since.isoformat()} {incident.incident}", cluster)
    pages = [Action(verb=Verb.PAGE_HUMAN, incident=incident.incident, text=str(trouble))]
    if trouble.since < trouble.until <= now:
        text = f"{_mark(trouble)}: what it said before holds no longer. Mode observe: nothing is begun until it can."
        pages.append(Action(verb=Verb.PAGE_HUMAN, incident=incident.incident, text=text, try_number=_OVER))
    told = {record.action.key for record in state.records if record.outcome is not None}
    for page in pages:
        if page.key not in told:
            perform(Order(action=page), cluster, lease=lease)


def _close_what_is_mended(cluster: Cluster, state: LedgerState) -> None:
    now = cluster.clock.now()
    lasting = [_mark(trouble) for trouble in cluster.troubles]
    for incident in state.incidents:
        file, is_such, _ = incident.note.partition(_SINCE)
        if incident.findings or not is_such or any(incident.note.startswith(each) for each in lasting):
            continue
        closed = advance(incident, IncidentEvent.CLEARED, at=now, note=f"{file} can be used again")
        with suppress(LedgerConflict):
            cluster.ledger.change_incident(closed, actor=AUTOPILOT, now=now)


def _trouble_with(trouble: ConfigTrouble) -> str:
    return f"trouble with {trouble.file}"


def _mark(trouble: ConfigTrouble) -> str:
    """Return how the words about a trouble begin, whatever its fault is by now."""
    return f"{trouble.file}{_SINCE}{trouble.since:%Y-%m-%d %H:%M:%S} UTC"
