"""Sending one batch of quotas under the ledger's eyes: a line before, one order, what is in force, a line after.

What is sent, and whether it may be, is `applying`'s and `guards`' business.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.proof import QuotaProof
from ops_pipelines.core.proposal import ProposalEvent, ProposalRecord, SentChange
from ops_pipelines.core.quota_limits import Change, Quotas
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines.flow.quota.changes import ApplyRefused, Witnessed, to_sent, witness
from ops_pipelines.remediate.acts.facts import is_current
from ops_pipelines.teams.desk import TeamsDesk

READ_COUNT = 10
PAUSE_SECONDS = 2.0
"""After sending, so often and so far apart it is read what is in force: schedulers hear of limits within seconds."""

Pause = Callable[[float], None]
"""Lets seconds pass."""


class Deed(Enum):
    """Applying and undoing differ in their events alone."""

    APPLY = (
        ProposalEvent.BEGIN,
        ProposalEvent.READ_BACK,
        ProposalEvent.STOP_HALF_WAY,
        ProposalEvent.NOTHING_DONE,
    )
    UNDO = (
        ProposalEvent.UNDO,
        ProposalEvent.UNDO_READ_BACK,
        ProposalEvent.UNDO_STOPPED,
        ProposalEvent.UNDO_NOTHING_DONE,
    )

    def __init__(
        self, begin: ProposalEvent, done: ProposalEvent, stopped: ProposalEvent, nothing: ProposalEvent
    ) -> None:
        self.begin, self.done, self.stopped, self.nothing = begin, done, stopped, nothing


@dataclass(frozen=True, kw_only=True)
class Hand:
    """Somebody who sets quotas, with what stands behind them."""

    desk: TeamsDesk
    actor: str
    lease_token: str | None
    warnings: tuple[str, ...]
    proof: QuotaProof | None = None
    """Of the proposal that is applied, as it was just made; None where nothing is begun that needs one."""

    def carry_out(
        self, record: ProposalRecord, changes: tuple[Change, ...], deed: Deed, *, pause: Pause
    ) -> ProposalRecord:
        """Write the before-entry, send, read back, write down what came of it."""
        sent = tuple(map(to_sent, changes)) if deed is Deed.APPLY else ()
        words = "; ".join((f"sets {', '.join(map(str, changes)) or 'nothing: all is as proposed'}", *self.warnings))
        try:
            begun = self._event(record, deed.begin, words, sent=sent)
        except LedgerConflict as overtaken:
            raise ApplyRefused(str(overtaken)) from overtaken
        quotas = self.desk.limits()
        if not is_current(self.lease_token, self.desk.cluster.ledger, self.desk.clock.now()):
            # Whoever has the lease by now settles what was begun, by what is in force: nothing of it is.
            raise ApplyRefused(f"{record.name}: the lease went to another process before anything was sent")
        problem = _send(quotas, changes)
        # After a no nothing more happens; after silence what was sent may still take effect.
        most = 1 if isinstance(problem, SourceRefused) else READ_COUNT
        found = _read_back(quotas, changes, most=most, pause=pause)
        try:
            return self.write_down(begun, deed, found, trouble="" if problem is None else str(problem))
        except LedgerConflict:
            # Somebody took us for dead and settled it, or our lease ran out: the ledger says what is known.
            return _present(begun, self.desk)

    def write_down(
        self, record: ProposalRecord, deed: Deed, found: Witnessed | None, *, trouble: str
    ) -> ProposalRecord:
        """Write the after-entry: what is in, by the last reading."""
        told = (trouble,) if trouble else ()
        if found is None:
            words = (*told, "what is in force could not be read; apply or undo it again once the scheduler answers")
            return self._event(record, deed.stopped, "; ".join(words))
        if found.is_done:
            read = f"read back: {len(found.are_in)} set" if found.are_in else "read back: nothing was to be set"
            return self._event(record, deed.done, "; ".join((*told, read, *self.warnings)))
        event = deed.nothing if found.is_nothing_in else deed.stopped
        return self._event(record, event, "; ".join((*told, found.words)))

    def _event(
        self, record: ProposalRecord, event: ProposalEvent, reason: str, *, sent: tuple[SentChange, ...] = ()
    ) -> ProposalRecord:
        return self.desk.cluster.ledger.change_proposal(
            record.name,
            event,
            actor=self.actor,
            reason=reason,
            lease_token=self.lease_token,
            now=self.desk.clock.now(),
            sent=sent,
            proof=self.proof if event is ProposalEvent.BEGIN else None,
        )


def _send(quotas: Quotas, changes: tuple[Change, ...]) -> SourceError | None:
    """Send the changes; return what went wrong. Whatever it was, what is in is read afterwards."""
    try:
        quotas.apply(changes)
    except SourceError as problem:
        return problem
    return None


def _read_back(quotas: Quotas, changes: tuple[Change, ...], *, most: int, pause: Pause) -> Witnessed | None:
    """Return the last reading: once all is in and followed, or after so many tries; None if that could not be read."""
    found = _read(quotas, changes)
    for _ in range(most - 1):
        if found is not None and found.is_done:
            break
        pause(PAUSE_SECONDS)
        found = _read(quotas, changes)
    return found


def _read(quotas: Quotas, changes: tuple[Change, ...]) -> Witnessed | None:
    try:
        return witness(changes, quotas.read())
    except SourceError:
        return None  # The ledger then says that what is in force could not be read.


def _present(record: ProposalRecord, desk: TeamsDesk) -> ProposalRecord:
    return desk.cluster.ledger.proposal(record.name) or record
