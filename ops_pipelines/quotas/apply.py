"""Applying a proposal of quotas and undoing it: judged again, recorded before, sent once, read back.

What is sent, and whether it may be, is `applying`'s and `guards`' business.

The key is the proposal's name: one that is applied is not sent again. Whatever happens after the before-entry is
reported by what the scheduler says is in force: all, some or nothing of it. What runs is never touched: limits decide
what starts.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.proof import QuotaProof
from ops_pipelines.core.proposal import ProposalEvent, ProposalId, ProposalRecord, ProposalState, SentChange
from ops_pipelines.core.scheduler import Change, Quotas, QuotasInForce
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines.quotas.changes import ApplyRefused, Witnessed, changes_of, standing_now, to_change, to_sent, witness
from ops_pipelines.quotas.guards import (
    below_what_runs,
    find_hindrances,
    hindrances_of_scheduler,
    part_settable,
    prove_now,
    refuse_without_consent,
    warnings_of,
)
from ops_pipelines.remediate.judgement import is_current
from ops_pipelines.teams.desk import LimitsOn, TeamsDesk

# -- sending one batch of quotas under the ledger's eyes --


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
    """Somebody who sets quotas, with what is behind them."""

    desk: TeamsDesk
    actor: str
    lease_token: str | None
    warnings: tuple[str, ...]
    proof: QuotaProof | None = None
    """Of the proposal that is applied, as it was just made; None where nothing is started that needs one."""

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
            # Anyone who has the lease by now settles what was started, by what is in force: nothing of it is.
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


# -- applying a proposal of quotas and undoing it --


SETTLED_AFTER = timedelta(minutes=10)
"""Anyone who began longer ago than this is gone: no batch takes so long."""
_LOOKED_BACK = 60
"""Newest proposals among which one that is half-way is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What applying a proposal would do now. Nothing was changed."""

    record: ProposalRecord
    changes: tuple[Change, ...]
    """What would be set; nothing: all is as proposed."""
    standing: Mapping[Change, int | None]
    """What is there now; of accounts that the scheduler does not know, nothing."""
    hindrances: tuple[str, ...]
    """Why it would be refused; nothing: it would be applied."""
    warnings: tuple[str, ...]
    """What limits are worth less by, here."""


def preview(
    proposal: ProposalId, desk: TeamsDesk, *, actor: str | None = None, limits_on: LimitsOn | None = None
) -> Preview:
    """Return what `apply` would do now. Raises ApplyRefused for an unknown proposal, SourceError, NoTeams.

    With the person who asks, `actor`, also whether the policy lets people set anything; None: the caller says so.
    """
    record = _known(proposal, desk)
    quotas = desk.limits()
    in_force, probe = quotas.read(), quotas.probe()
    changes, left_out = _changes(record, desk, limits_on=limits_on or desk.limits_on, in_force=in_force)
    policy, now = desk.cluster.rules.policy, desk.clock.now()
    proof = prove_now(record.proposal, desk, now=now)
    hindrances = (
        *(() if actor is None else refuse_without_consent(policy, actor=actor, lease_token=None)),
        *find_hindrances(record.proposal, changes, desk, in_force=in_force, probe=probe, proof=proof, now=now),
    )
    is_open = record.state in (ProposalState.PROPOSED, ProposalState.HALF_APPLIED)
    return Preview(
        record=record,
        changes=changes,
        standing=standing_now(changes, in_force),
        hindrances=hindrances if is_open else (_why_closed(record), *hindrances),
        warnings=(*warnings_of(probe), *left_out, *below_what_runs(changes, desk, in_force=in_force)),
    )


def apply(
    proposal: ProposalId,
    desk: TeamsDesk,
    *,
    actor: str,
    lease_token: str | None,
    limits_on: LimitsOn | None = None,
    pause: Pause | None = None,
) -> ProposalRecord:
    """Set what a proposal says and return its record: applied, half applied, or proposed as before where nothing is in.

    `lease_token` None: a person's word. `limits_on` None: as cluster.yaml says. One that is half applied is completed:
    with the changes that it was started with. What somebody never ended is settled first. Raises ApplyRefused, and then
    nothing was set.
    """
    settle(desk, actor=actor, lease_token=lease_token)
    record = _known(proposal, desk)
    if record.state is ProposalState.APPLIED:
        return _as_it_was(record)
    if record.state not in (ProposalState.PROPOSED, ProposalState.HALF_APPLIED):
        raise ApplyRefused(_why_closed(record))
    now = desk.clock.now()
    _refuse(proposal, refuse_without_consent(desk.cluster.rules.policy, actor=actor, lease_token=lease_token))
    quotas = desk.limits()
    in_force, probe = quotas.read(), quotas.probe()
    changes, left_out = _changes(record, desk, limits_on=limits_on or desk.limits_on, in_force=in_force)
    proof = prove_now(record.proposal, desk, now=now)
    _refuse(
        proposal,
        find_hindrances(record.proposal, changes, desk, in_force=in_force, probe=probe, proof=proof, now=now),
    )
    warnings = (*warnings_of(probe), *left_out, *below_what_runs(changes, desk, in_force=in_force))
    hand = Hand(desk=desk, actor=actor, lease_token=lease_token, warnings=warnings, proof=proof)
    return hand.carry_out(record, changes, Deed.APPLY, pause=pause or desk.clock.wait)


def undo(
    proposal: ProposalId,
    desk: TeamsDesk,
    *,
    actor: str,
    lease_token: str | None,
    pause: Pause | None = None,
) -> ProposalRecord:
    """Set what stood there before a proposal was applied, and return its record; only the newest that is in.

    What somebody never ended is settled first. Raises ApplyRefused, and nothing was set.
    """
    settle(desk, actor=actor, lease_token=lease_token)
    record = _known(proposal, desk)
    if record.state is ProposalState.UNDONE:
        return _as_it_was(record)
    if record.state not in (ProposalState.APPLIED, ProposalState.HALF_APPLIED, ProposalState.HALF_UNDONE):
        raise ApplyRefused(f"{_why_closed(record)}; only what was applied can be undone")
    _refuse(proposal, refuse_without_consent(desk.cluster.rules.policy, actor=actor, lease_token=lease_token))
    quotas = desk.limits()
    changes = tuple(to_change(each).undone for each in record.sent)
    probe = quotas.probe()
    _refuse(proposal, hindrances_of_scheduler(changes, in_force=quotas.read(), probe=probe))
    hand = Hand(desk=desk, actor=actor, lease_token=lease_token, warnings=warnings_of(probe))
    return hand.carry_out(record, changes, Deed.UNDO, pause=pause or desk.clock.wait)


def settle(desk: TeamsDesk, *, actor: str, lease_token: str | None) -> tuple[ProposalRecord, ...]:
    """Judge what somebody began and never ended, by what is in force; return what was settled. Nothing is sent.

    Somebody who began less than `SETTLED_AFTER` ago may still be at it, and is left alone. Raises SourceError where
    what is in force cannot be read.
    """
    now = desk.clock.now()
    settled = []
    for record in desk.cluster.ledger.proposals(limit=_LOOKED_BACK):
        if record.state not in (ProposalState.APPLYING, ProposalState.UNDOING) or now - record.since < SETTLED_AFTER:
            continue
        deed = Deed.APPLY if record.state is ProposalState.APPLYING else Deed.UNDO
        sent = (to_change(each) for each in record.sent)
        changes = tuple(each if deed is Deed.APPLY else each.undone for each in sent)
        found = witness(changes, desk.limits().read())
        hand = Hand(desk=desk, actor=actor, lease_token=lease_token, warnings=())
        with suppress(LedgerConflict):  # Somebody else settled it meanwhile, or our lease ran out.
            settled.append(hand.write_down(record, deed, found, trouble=f"{record.actor} began it and never ended it"))
    return tuple(settled)


def _changes(
    record: ProposalRecord, desk: TeamsDesk, *, limits_on: LimitsOn, in_force: QuotasInForce
) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Return what is to be set, and what is left out in words: of one that is half in, what it was started with."""
    if record.state is ProposalState.HALF_APPLIED:
        return tuple(map(to_change, record.sent)), ()
    return part_settable(changes_of(record.proposal, limits_on=limits_on, in_force=in_force), desk, in_force=in_force)


def _known(proposal: ProposalId, desk: TeamsDesk) -> ProposalRecord:
    record = desk.cluster.ledger.proposal(proposal)
    if record is None:
        raise ApplyRefused(f"there is no proposal {proposal[:80]!r}; `ops-pipelines quota history` lists them")
    return record


def _as_it_was(record: ProposalRecord) -> ProposalRecord:
    since = _at(record.since)
    return replace(record, reason=f"nothing was changed: {record.state.value} by {record.actor} on {since} already")


def _why_closed(record: ProposalRecord) -> str:
    if record.state in (ProposalState.APPLYING, ProposalState.UNDOING):
        return (
            f"{record.name} is {record.state.value} by {record.actor} since {_at(record.since)}; wait for its end. If "
            f"that process is gone, apply or undo it after {_at(record.since + SETTLED_AFTER)}: it is settled first"
        )
    return (
        f"{record.name} is {record.state.value} since {_at(record.since)} by {record.actor} ({record.reason}); only "
        "what is proposed, or half applied, is applied: propose again"
    )


def _refuse(proposal: ProposalId, hindrances: Iterable[str]) -> None:
    found = tuple(hindrances)
    if found:
        raise ApplyRefused(f"{proposal} was not touched: {'; '.join(found)}")


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
