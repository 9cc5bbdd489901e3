"""Whether this is the ledger that was seen before: how far it was seen is kept beside it, so that one that is gone,
older or another is noticed, and not acted on.

The mark is in the state directory, and who runs us keeps a copy elsewhere (Dagster's storage). It may lag, by seconds:
it names a line that was on the disk, so that no crash makes a false alarm. What a person orders (to continue with
another ledger, or with a restored one) begins a new generation: an older mark elsewhere counts no more.

`Watch` is that half of `SqlLedger`; who is refused what, the ledger's own methods say.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection

from ops_pipelines.core.action import MESSAGES, ActionRecord
from ops_pipelines.core.entries import EntryKind, LedgerConflict, LedgerError, LedgerNews, Pause
from ops_pipelines.core.proof import Patience, Refusal
from ops_pipelines.resources.documents import encode
from ops_pipelines.resources.files import hand_over, put_whole
from ops_pipelines.resources.ledger.chain import (
    ChainWriter,
    Found,
    LedgerOrder,
    ensure_identity,
    forget_the_past,
    has_identity,
    read_found,
    read_hash_at,
    read_history_until,
)
from ops_pipelines.resources.ledger.database import LedgerDatabase
from ops_pipelines.resources.ledger.evidence import read_held_lease

# -- how far a ledger was seen --


SEEN_FILE = "ledger_seen.json"
_LOCK_FILE = "ledger_seen.lock"
_MODE = 0o600
_MOST_BYTES = 100_000
_TOLD_KEPT_COUNT = 20
WAY_OUT = (
    "Nothing is started, in no mode. Put the ledger back (`ops-pipelines restore`, or its address in cluster.yaml), or "
    'start over with the one that is there: `ops-pipelines resume-autopilot --new-ledger --reason "..."`.'
)


class SeenError(ValueError):
    """A mark that cannot be read, so that nobody can tell how far the ledger was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a ledger was seen."""

    generation: int = 1
    """Grows with each order of a person about which ledger to continue with: the time of the order, in seconds."""
    ledger: str | None = None
    """Its id; None: a person stated that any ledger will do, the next one that is met."""
    seq: int = 0
    head_hash: str = ""
    seen_at: str = ""
    news: str = ""
    """What people are notified of about the generation, once."""
    told: tuple[str, ...] = ()
    """Names of what people were notified of."""

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
        words = f"The ledger is not what it was: another line is where {seen}; it is a copy that was written on."
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
    """Return the mark with what people were notified of; the oldest names are forgotten."""
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


# -- what is watched --


_SEEN_EVERY = timedelta(seconds=5)
"""How far the mark of what was seen may lag: it is synced to the disk, and no act waits for it."""


class Watch:
    """What one process knows of the identity of its ledger; without a file beside it nothing is refused."""

    def __init__(self, database: LedgerDatabase, file: SeenFile | None) -> None:
        self._database = database
        self._file = file
        self._noted_at: datetime | None = None
        self._told_here: set[str] = set()

    def identify(self, now: datetime) -> None:
        with self._database.read() as connection:
            if has_identity(connection):
                return
        with self._database.write() as connection:
            ensure_identity(connection, now)

    def history_until(self) -> datetime | None:
        with self._database.read() as connection:
            return read_history_until(connection)

    def compare(self, elsewhere: str | None) -> str | None:
        if self._file is None:
            return None
        try:
            told = None if elsewhere is None else mark_from(elsewhere)
        except SeenError:
            told = None  # It is written over with what is known here.
        with self._database.read() as connection:
            found = read_found(connection)

            def why(mark: Mark | None) -> LedgerNews | None:
                return judge_found(found, mark, hash_at=lambda seq: read_hash_at(connection, seq))

            def stricter(own: Mark | None) -> Mark | None:
                if told is None or (own is not None and own.generation > told.generation):
                    return None
                is_newer = own is None or own.generation < told.generation
                return told if is_newer or (why(own) is None and why(told) is not None) else None

            try:
                kept = self._file.change(stricter)
            except (OSError, SeenError):
                return None
            return None if kept is None or why(kept) is not None else kept.as_text()

    def untold_news(self) -> tuple[LedgerNews, ...]:
        with self._database.read() as connection:
            refused = self.refused_in(connection)
        mark = self._mark()
        news = [] if refused is None else [refused]
        if mark is not None and mark.news:
            news.append(LedgerNews(key=f"generation {mark.generation}", words=mark.news, is_refusal=False))
        told = self._told_here | set(() if mark is None else mark.told)
        return tuple(each for each in news if each.key not in told)

    def mark_told(self, news: LedgerNews) -> None:
        self._told_here.add(news.key)
        if self._file is None:
            return
        with suppress(OSError, SeenError):  # It is reported again after the next start: better than never.
            self._file.change(lambda mark: None if mark is None else with_told(mark, news.key))

    def begin_anew(self, *, actor: str, reason: str, now: datetime) -> None:
        if self._file is None:
            raise LedgerConflict("nobody keeps how far this ledger was seen, so it cannot be refused")
        with self._database.write() as connection:
            refused = self.refused_in(connection)
            if refused is None:
                raise LedgerConflict("this ledger is the one that was seen here before; nothing was changed")
            held = read_held_lease(connection, now)
            if held is not None:
                raise LedgerConflict(
                    f"{held.holder} works with this ledger until {held.expires_at:%Y-%m-%d %H:%M:%S} UTC: is it "
                    "another cluster's? Nothing was changed"
                )
            before = self._mark()
            ensure_identity(connection, now)
            forget_the_past(connection, now)
            order = LedgerOrder(
                actor=actor, at=now, reason=reason, in_place_of="" if before is None else before.as_text()
            )
            with ChainWriter(connection) as writer:
                writer.append(encode(order), kind=EntryKind.LEDGER, actor=actor, incident=None, now=now)
        words = f"{actor} had the autopilot start over with the ledger that is there: {reason}"
        with self._database.read() as connection:
            self._accept(connection, before=before, news=words, now=now)

    def record_restoration(self, order: LedgerOrder, *, pause: Pause | None) -> None:
        """Write that this ledger comes from a backup; with a `pause`, because it does not know what happened since."""
        with self._database.write() as connection:
            ensure_identity(connection, order.at)
            if pause is not None:
                forget_the_past(connection, order.at)
            with ChainWriter(connection) as writer:
                writer.append(encode(order), kind=EntryKind.LEDGER, actor=order.actor, incident=None, now=order.at)
                if pause is not None:
                    writer.append(
                        encode(pause), kind=EntryKind.PAUSE, actor=pause.actor, incident=None, now=pause.since
                    )

    def _accept(self, connection: Connection, *, before: Mark | None, news: str, now: datetime) -> None:
        """Begin a new generation with this ledger as it is now. Raises LedgerError where that cannot be written."""
        assert self._file is not None, "who accepts keeps a mark"
        found = read_found(connection)
        try:
            self._file.put(next_generation(found, before, news=news, now=now))
        except OSError as problem:
            raise LedgerError(f"{self._file.path} cannot be written ({problem.strerror}); do it again") from problem

    def _mark(self) -> Mark | None:
        try:
            return None if self._file is None else self._file.read()
        except SeenError:
            return None

    def refused_in(self, connection: Connection) -> LedgerNews | None:
        """Return why nothing may be started, as the file beside says now; one that cannot be read refuses, too."""
        if self._file is None:
            return None
        try:
            mark = self._file.read()
        except SeenError as problem:
            words = f"How far the ledger was seen cannot be known: {problem}. {WAY_OUT}"
            return LedgerNews(key="refused unreadable", words=words, is_refusal=True)
        if mark is None or mark.ledger is None:
            return None
        found = read_found(connection)
        return judge_found(found, mark, hash_at=lambda seq: read_hash_at(connection, seq))

    def refuse_evidence(self, connection: Connection) -> None:
        """Raise LedgerError where this ledger is refused: evidence of now would be cause once a person takes it."""
        refused = self.refused_in(connection)
        if refused is not None:
            raise LedgerError(refused.words)

    def note_seen(self, now: datetime) -> None:
        """Note now and then how far the ledger is, once what it says is on the disk; where that cannot be, it lags."""
        if self._file is None or (self._noted_at is not None and abs(now - self._noted_at) < _SEEN_EVERY):
            return
        self.identify(now)  # One that came new to its place, before any was seen there.
        with self._database.read() as connection:
            found = read_found(connection)
        with suppress(OSError, SeenError):
            self._file.change(lambda mark: seen_of(found, mark, now=now))
            self._noted_at = now


def refusal_of(record: ActionRecord, refused: LedgerNews | None) -> Refusal | None:
    """Return why an act is not started on a refused ledger; people are notified all the same."""
    if refused is None or record.action.verb in MESSAGES:
        return None
    return Refusal(guardrail="ledger", reason=refused.words, patience=Patience.WAIT)
