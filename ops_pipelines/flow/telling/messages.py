"""A batch of notes as the message that people read: one alone, several alike ones, or a digest with counts.

The text follows from the notes alone, so that a message that is sent once more is word for word the same.
"""

from collections import Counter
from collections.abc import Sequence

from ops_pipelines.core.identity import IncidentId, is_rollout
from ops_pipelines.core.notes import Audience, Lane, Link, Message, Note, PersonalLinks, Severity, no_links
from ops_pipelines.flow.telling.batches import Batch

_ORDER = tuple(Severity)
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
