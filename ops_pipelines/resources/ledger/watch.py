"""Watches that a ledger is the one that was seen before, and keeps how far it was seen: that half of `SqlLedger`.

What is compared with what is `seen`'s; who is refused what, the ledger's own methods say.
"""

from contextlib import suppress
from datetime import datetime, timedelta

from sqlalchemy import Connection

from ops_pipelines.core.action import MESSAGES, ActionRecord
from ops_pipelines.core.entries import EntryKind, LedgerConflict, LedgerError, LedgerNews, Pause
from ops_pipelines.core.proof import Patience, Refusal
from ops_pipelines.resources.documents import encode
from ops_pipelines.resources.ledger.chain import ChainWriter, LedgerOrder
from ops_pipelines.resources.ledger.database import LedgerDatabase
from ops_pipelines.resources.ledger.evidence import read_held_lease
from ops_pipelines.resources.ledger.identity import (
    ensure_identity,
    forget_the_past,
    has_identity,
    read_found,
    read_hash_at,
    read_history_until,
)
from ops_pipelines.resources.ledger.seen import (
    WAY_OUT,
    Mark,
    SeenError,
    SeenFile,
    judge_found,
    mark_from,
    next_generation,
    seen_of,
    with_told,
)

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
        with suppress(OSError, SeenError):  # It is told again after the next start: better than never.
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
        words = f"{actor} let the autopilot begin anew with the ledger that is there: {reason}"
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
        assert self._file is not None, "whoever accepts keeps a mark"
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
        """Return why nothing may be begun, as the file beside says now; one that cannot be read refuses, too."""
        if self._file is None:
            return None
        try:
            mark = self._file.read()
        except SeenError as problem:
            words = f"How far the ledger was seen cannot be told: {problem}. {WAY_OUT}"
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
    """Return why an act is not begun on a refused ledger; people are told all the same."""
    if refused is None or record.action.verb in MESSAGES:
        return None
    return Refusal(guardrail="ledger", reason=refused.words, patience=Patience.WAIT)
