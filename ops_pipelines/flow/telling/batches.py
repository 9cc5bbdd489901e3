"""Which waiting notes go out now, and together: alike ones as one, a digest for what came due with it or is too much.

Pure, and sparing: a recipient gets no more messages than there is room for, and every note goes into exactly one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.identity import digest_of
from ops_pipelines.core.notes import BATCH_PREFIX, Audience, KeptNote, Lane, Note, Severity, TellRules, room_for

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
    """Return the notes that are due in groups; whoever is alike goes along, also before its own time."""
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
