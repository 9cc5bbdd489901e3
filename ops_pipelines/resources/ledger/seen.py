"""How far a ledger was seen, kept beside it: so that one that is gone, older or another is noticed, and not acted on.

The mark stands in the state directory, and whoever runs us keeps a copy elsewhere (Dagster's storage). It may lag, by
seconds: it names a line that was on the disk, so that no crash makes a false alarm. What a person orders (to go on with
another ledger, or with a restored one) begins a new generation: an older mark elsewhere counts no more.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path

from ops_pipelines.core.entries import LedgerNews
from ops_pipelines.resources.ledger.identity import Found
from ops_pipelines.resources.whole_file import hand_over, put_whole

SEEN_FILE = "ledger_seen.json"
_LOCK_FILE = "ledger_seen.lock"
_MODE = 0o600
_MOST_BYTES = 100_000
_TOLD_KEPT_COUNT = 20
WAY_OUT = (
    "Nothing is begun, in no mode. Put the ledger back (`ops-pipelines restore`, or its address in cluster.yaml), or "
    'begin anew with the one that is there: `ops-pipelines resume-autopilot --new-ledger --reason "..."`.'
)


class SeenError(ValueError):
    """A mark that cannot be read, so that nobody can tell how far the ledger was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a ledger was seen."""

    generation: int = 1
    """Grows with each order of a person about which ledger to go on with: the time of the order, in seconds."""
    ledger: str | None = None
    """Its id; None: a person said that any ledger will do, the next one that is met."""
    seq: int = 0
    head_hash: str = ""
    seen_at: str = ""
    news: str = ""
    """What people are told of the generation, once."""
    told: tuple[str, ...] = ()
    """Names of what people were told."""

    def as_text(self) -> str:
        """Return the mark as it is kept."""
        return json.dumps(asdict(self))


def mark_from(text: str) -> Mark:
    """Return the mark that `as_text` wrote. Raises SeenError."""
    try:
        said = json.loads(text)
        mark = Mark(**{each.name: said[each.name] for each in fields(Mark)})
        mark = replace(mark, told=tuple(str(each) for each in mark.told))
        if not isinstance(mark.generation, int) or not isinstance(mark.seq, int):
            raise TypeError("no number")
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise SeenError(f"the mark of how far the ledger was seen cannot be read ({problem})") from problem
    return mark


class SeenFile:
    """The mark of one state directory."""

    def __init__(self, state_directory: Path) -> None:
        self.path = state_directory / SEEN_FILE

    def read(self) -> Mark | None:
        """Return the mark; None if there is none yet. Raises SeenError."""
        try:
            with self.path.open("rb") as file:
                content = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise SeenError(f"{self.path} cannot be read ({problem.strerror})") from problem
        return mark_from(content.decode("utf-8", errors="replace"))

    def change(self, make: Callable[[Mark | None], Mark | None]) -> Mark | None:
        """Put what `make` makes of the mark in its place; None leaves it. Raises OSError and SeenError.

        Nobody else changes it meanwhile: a process that is behind must not write over a person's order.
        """
        with self._alone():
            before = self.read()
            mark = make(before)
            if mark is None or mark == before:
                return before
            put_whole(self.path, f"{mark.as_text()}\n", mode=_MODE)
            hand_over(self.path)
            return mark

    def put(self, mark: Mark) -> None:
        """Put a mark in place of one that may not even be readable: a person's order. Raises OSError."""
        with self._alone():
            put_whole(self.path, f"{mark.as_text()}\n", mode=_MODE)
            hand_over(self.path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        lock = self.path.with_name(_LOCK_FILE)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            hand_over(lock)
            yield
        finally:
            os.close(descriptor)


def judge_found(found: Found, mark: Mark | None, *, hash_at: Callable[[int], str | None]) -> LedgerNews | None:
    """Return why a ledger is not the one that was seen; None if it is, or if nobody has seen any yet."""
    if mark is None or mark.ledger is None:
        return None
    seen = f"entry {mark.seq} of ledger {mark.ledger[:12]} was seen at {mark.seen_at}"
    if found.ledger != mark.ledger:
        what = "is not there any more; in its place there is" if found.head_seq == 0 else "is another:"
        words = f"The ledger {what} {_name(found)}. {seen[0].upper()}{seen[1:]}."
    elif found.head_seq < mark.seq:
        words = f"The ledger is older than it was: it ends before what was seen, as a copy of earlier does ({seen})."
    elif hash_at(mark.seq) != mark.head_hash:
        words = f"The ledger is not what it was: another line stands where {seen}; it is a copy that was written on."
    else:
        return None
    key = f"refused {mark.generation} {mark.ledger} {found.ledger} {found.head_seq >= mark.seq}"
    return LedgerNews(key=key, words=f"{words} {WAY_OUT}", is_refusal=True)


def next_generation(found: Found | None, before: Mark | None, *, news: str, now: datetime) -> Mark:
    """Return the mark with which a person's order begins: this ledger as it is, or None: any that is met next.

    Newer than any other, also where the one before cannot be read.
    """
    generation = max(int(now.timestamp()), 1 if before is None else before.generation + 1)
    blank = Mark(generation=generation, news=news)
    return blank if found is None else seen_of(found, blank, now=now) or blank


def with_told(mark: Mark, key: str) -> Mark:
    """Return the mark with what people were told; the oldest names are forgotten."""
    return mark if key in mark.told else replace(mark, told=(*mark.told, key)[-_TOLD_KEPT_COUNT:])


def seen_of(found: Found, mark: Mark | None, *, now: datetime) -> Mark | None:
    """Return the mark for a ledger that is accepted, as far as it is now; None where nothing is new, or it is not."""
    if mark is None or mark.ledger is None:
        before = Mark() if mark is None else mark
    elif mark.ledger != found.ledger or found.head_seq <= mark.seq:
        return None
    else:
        before = mark
    return replace(
        before,
        ledger=found.ledger,
        seq=found.head_seq,
        head_hash=found.head_hash,
        seen_at=f"{now:%Y-%m-%d %H:%M:%S} UTC",
    )


def _name(found: Found) -> str:
    if found.head_seq == 0:
        return "an empty one"
    return f"ledger {(found.ledger or 'without an id')[:12]} with {found.head_seq} entries"
