"""Which waiting notes go out now and together, as which message, over which channel.

Pure, and sparing: a recipient gets no more messages than there is room for, and every note goes into exactly one.

The text follows from the notes alone, so that a message that is sent once more is word for word the same.

Who dies between delivery and mark has the message repeated once, under the same key. Composing is `people.compose`'s.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import IncidentId, PlanId, RolloutId, digest_of, is_rollout
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import (
    BATCH_PREFIX,
    NOT_SENT,
    Audience,
    KeptNote,
    Lane,
    Link,
    Message,
    Note,
    Outbox,
    PersonalLinks,
    Severity,
    TellRules,
    no_links,
    room_for,
)
from ops_pipelines.core.sources import SourceError
from ops_pipelines.people.orders import link_for
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.rollouts.notices import is_still_asked

# -- which waiting notes go out now --


_ORDER = tuple(Severity)
"""From the least to the most that it may disturb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Notes that are one message. The name follows from the notes, and so does its text: a repetition is recognised."""

    name: str
    notes: tuple[Note, ...]
    attempt_count: int
    """How often it was tried before."""

    @property
    def severity(self) -> Severity:
        return max((note.severity for note in self.notes), key=_ORDER.index)


def gather(
    waiting: Sequence[KeptNote],
    sent: Mapping[tuple[Audience, str], Sequence[datetime]],
    *,
    rules: TellRules,
    now: datetime,
) -> tuple[Batch, ...]:
    """Return the messages to be sent now, the most urgent first.

    `sent` are the times of earlier messages by recipient. What was tried before keeps its batch and goes out again when
    its time has come; until it is taken it uses up room.
    """
    batches: list[Batch] = []
    fresh: dict[tuple[Audience, str], list[Note]] = {}
    tried: dict[str, list[KeptNote]] = {}
    for kept in waiting:
        if kept.batch is not None:
            tried.setdefault(kept.batch, []).append(kept)
        else:
            fresh.setdefault(_recipient(kept.note), []).append(kept.note)
    for name, again in tried.items():
        if all(each.next_at <= now for each in again):
            notes = tuple(each.note for each in again)
            attempt_count = max(each.attempt_count for each in again)
            batches.append(Batch(name=name, notes=notes, attempt_count=attempt_count))
    under_way = Counter(_recipient(again[0].note) for again in tried.values())
    for recipient, notes_of_one in fresh.items():
        room = room_for(sent.get(recipient, ()), rules, now) - under_way[recipient]
        place = {note.key: number for number, note in enumerate(notes_of_one)}
        batches += [_batch(group, place) for group in _within(_due(notes_of_one, now), room)]
    return tuple(sorted(batches, key=lambda batch: -_ORDER.index(batch.severity)))


def _recipient(note: Note) -> tuple[Audience, str]:
    return note.audience, note.recipient


def _due(notes: Sequence[Note], now: datetime) -> list[list[Note]]:
    """Return the notes that are due in groups; who is alike goes along, also before its own time."""
    groups: dict[tuple[Lane, str], list[Note]] = {}
    for note in notes:
        likeness = note.likeness if note.lane is Lane.AT_ONCE else ""
        groups.setdefault((note.lane, likeness), []).append(note)
    due = []
    for (lane, _), group in groups.items():
        ready = [note for note in group if note.ready_at <= now]
        if ready:
            due.append(group if lane is Lane.AT_ONCE else ready)
    return due


def _within(groups: list[list[Note]], room: int) -> list[list[Note]]:
    """Return as many groups as there is room for: the most urgent as they are, all others as one digest."""
    if room <= 0:
        return []
    if len(groups) <= room:
        return groups
    urgent = sorted(groups, key=lambda group: -max(_ORDER.index(note.severity) for note in group))
    return [*urgent[: room - 1], [note for group in urgent[room - 1 :] for note in group]]


def _batch(notes: Sequence[Note], place: Mapping[str, int]) -> Batch:
    """Return the batch of these notes, in the order of the outbox: so it is read back when it is tried again."""
    ordered = tuple(sorted(notes, key=lambda note: place[note.key]))
    return Batch(name=BATCH_PREFIX + digest_of(*(note.key for note in ordered))[:12], notes=ordered, attempt_count=0)


# -- a batch of notes as the message that people read --


_LINE_COUNT = 30
_LINK_COUNT = 8


def message_of(batch: Batch, *, pages_url: str | None, personal_links: PersonalLinks = no_links) -> Message:
    """Return the message; `pages_url` is where incidents can be looked at, None if nowhere."""
    notes = batch.notes
    first = notes[0]
    threads = list(dict.fromkeys(note.thread for note in notes))
    is_one_thread = len(threads) == 1
    if len(notes) == 1 and first.lane is Lane.AT_ONCE:
        title, body = first.title, first.body
    elif first.lane is Lane.AT_ONCE and len({note.likeness for note in notes}) == 1:
        title = (first.lines_title or first.title).replace("{count}", str(len(notes)))
        body = _lines(notes)
    else:
        title, body = _digest_title(notes), _lines(notes)
    return Message(
        audience=first.audience,
        recipient=first.recipient,
        thread=threads[0] if is_one_thread else batch.name,
        title=title,
        subject=first.subject if is_one_thread else title,
        body=body,
        severity=batch.severity,
        key=batch.name,
        links=_reports(first.audience, threads, pages_url),
        personal_links=personal_links,
        closes=tuple(dict.fromkeys(note.thread for note in notes if note.is_last)),
    )


def _reports(audience: Audience, threads: Sequence[str], pages_url: str | None) -> tuple[Link, ...]:
    """Return links to the pages, for the on-call alone: a report shows the jobs of everybody that it touched."""
    if pages_url is None or audience is not Audience.ON_CALL:
        return ()
    return tuple(
        Link(label=f"rollout {thread}", url=f"{pages_url}/rollouts/{thread}")
        if is_rollout(IncidentId(thread))
        else Link(label=f"report of {thread}", url=f"{pages_url}/incidents/{thread}")
        for thread in threads[:_LINK_COUNT]
    )


def _lines(notes: Sequence[Note]) -> str:
    urgent_first = sorted(notes, key=lambda note: -_ORDER.index(note.severity))
    lines = [f"- {' '.join(note.line.split())}" for note in urgent_first[:_LINE_COUNT]]
    more = urgent_first[_LINE_COUNT:]
    if more:
        counts = Counter(note.likeness for note in more)
        words = ", ".join(f"{count} x {likeness}" for likeness, count in sorted(counts.items()))
        lines.append(f"- and {len(more)} more ({words}): `ops-pipelines messages` lists them")
    return "\n".join(lines)


def _digest_title(notes: Sequence[Note]) -> str:
    lost = sum(note.lost_gpu_hours for note in notes)
    threads = {note.thread for note in notes}
    rollouts = sum(is_rollout(IncidentId(thread)) for thread in threads)
    counts = ((len(threads) - rollouts, "incident"), (rollouts, "rollout"))
    whose = " and ".join(_counted(count, word) for count, word in counts if count)
    loss = f", {lost:.1f} GPU-hours lost" if lost >= 0.05 else ""
    return f"digest: {_counted(len(notes), 'fact')} of {whose}{loss}"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


# -- hands waiting notes to the channels --


_NOTES_AT_ONCE = 2_000
_CLAIM_LASTS = timedelta(minutes=2)
"""Longer than the slowest channel takes to answer; then who tried counts as dead."""
_FIRST_PAUSE = timedelta(seconds=30)
_LONGEST_PAUSE = timedelta(hours=1)
_FEWEST_TRIES = 5
"""Also of what is a day old when we come back after a stop of our own."""
_MOST_LINKS = 8
_SETTLED = f"{NOT_SENT}it was settled before, or a newer plan took its place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What came of one look at the outbox; counts of messages."""

    sent_count: int
    failed_count: int
    given_up_count: int
    waiting_count: int
    """Notes that wait for company, for their time, for room, or for another try."""


def deliver(cluster: Cluster, *, stop_at: datetime) -> Delivered:
    """Send what is due until `stop_at`, each recipient within their limit; raises LedgerError.

    A message under way at `stop_at` is finished: how long a channel may take is the notifier's limit.
    """
    outbox = cluster.outbox
    if outbox is None:
        return Delivered(sent_count=0, failed_count=0, given_up_count=0, waiting_count=0)
    rules, now = cluster.tell_rules, cluster.clock.now()
    waiting = _without_answered(outbox.waiting_notes(limit=_NOTES_AT_ONCE), outbox, cluster)
    sent = outbox.sent_times(now - rules.burst_count * rules.refill) if waiting else {}
    sent_count = failed_count = given_up_count = 0
    for batch in gather(waiting, sent, rules=rules, now=now):
        if cluster.clock.now() >= stop_at:
            break
        keys = [note.key for note in batch.notes]
        at = cluster.clock.now()
        if not outbox.claim_notes(batch.name, keys, until=at + _CLAIM_LASTS, now=at):
            continue
        message = message_of(batch, pages_url=cluster.pages_url, personal_links=_links_of(batch, cluster))
        try:
            receipt = cluster.notifier.send(message)
        except SourceError as problem:
            failed_count += 1
            given_up_count += _note_failure(batch, str(problem), outbox, cluster)
        else:
            outbox.mark_delivered(batch.name, receipt=receipt, now=cluster.clock.now())
            sent_count += 1
    return Delivered(
        sent_count=sent_count, failed_count=failed_count, given_up_count=given_up_count, waiting_count=len(waiting)
    )


def forget_old(cluster: Cluster) -> int:
    """Delete what was sent long ago and return how many notes; what waits or failed stays."""
    if cluster.outbox is None:
        return 0
    return cluster.outbox.forget_sent(cluster.clock.now() - cluster.tell_rules.kept_for)


def pause_after(attempt_count: int) -> timedelta:
    """Return how long a message waits after so many attempts: half a minute, doubled each time, an hour at most."""
    doubled = int(2 ** min(max(0, attempt_count - 1), 10))
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * doubled)


def _note_failure(batch: Batch, problem: str, outbox: Outbox, cluster: Cluster) -> bool:
    """Write what went wrong and when it is tried again; return whether it is given up."""
    now = cluster.clock.now()
    attempts = batch.attempt_count + 1
    due_since = min(note.ready_at for note in batch.notes)
    is_hopeless = now - due_since >= cluster.tell_rules.give_up_after and attempts >= _FEWEST_TRIES
    again_at = None if is_hopeless else now + pause_after(attempts)
    outbox.mark_undelivered(batch.name, problem=problem, again_at=again_at, now=now)
    return is_hopeless


def _without_answered(waiting: Sequence[KeptNote], outbox: Outbox, cluster: Cluster) -> list[KeptNote]:
    """Return what still needs to be stated: a question that is settled before it went out is put to nobody."""
    now = cluster.clock.now()
    fresh = [each for each in waiting if each.batch is None]
    asked = [each for each in fresh if each.note.asks_for is not None]
    approved = {each.plan for each in cluster.ledger.read_state(now).approvals} if asked else set()
    settled = {each.note.key for each in asked if not _is_still_asked(each.note, approved, outbox, cluster)}
    names = {each.note.thread for each in fresh if is_rollout(IncidentId(each.note.thread))}
    rollouts = {name: cluster.ledger.rollout(RolloutId(name)) for name in names}
    settled |= {each.note.key for each in fresh if not is_still_asked(each.note, rollouts)}
    for key in settled:
        name = f"{BATCH_PREFIX}{digest_of(key)[:12]}"
        if outbox.claim_notes(name, [key], until=now + _CLAIM_LASTS, now=now):
            outbox.mark_delivered(name, receipt=_SETTLED, now=now)
    return [each for each in waiting if each.note.key not in settled]


def _is_still_asked(note: Note, approved: Collection[PlanId], outbox: Outbox, cluster: Cluster) -> bool:
    incident = cluster.ledger.incident(IncidentId(note.thread))
    if incident is None or note.asks_for in approved:
        return False
    if incident.state is not IncidentState.OPEN and (not incident.is_open or incident.plan != note.asks_for):
        return False
    newest = [each.note.asks_for for each in outbox.notes_of(note.thread) if each.note.asks_for is not None]
    return not newest or newest[-1] == note.asks_for


def _links_of(batch: Batch, cluster: Cluster) -> PersonalLinks:
    """Return what gives a named person the right to approve what is asked; made when it is sent, and kept nowhere."""
    asked = [note.asks_for for note in batch.notes if note.asks_for is not None][:_MOST_LINKS]
    if not asked or cluster.approval_links is None:
        return no_links

    def links(person: str) -> tuple[Link, ...]:
        found = ((plan, _link(plan, cluster, person)) for plan in asked)
        return tuple(Link(label=f"{plan}, for {person} alone, once", url=url) for plan, url in found if url)

    return links


def _link(plan: PlanId, cluster: Cluster, person: str) -> str | None:
    try:
        return link_for(plan, cluster, person=person)
    except (ValueError, ByHandRefused):  # PolicyError is a ValueError: a key that cannot be used
        return None  # The message still names the plan, and the command that approves it.
