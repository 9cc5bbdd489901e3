"""Applying a proposal of quotas and undoing it: judged afresh, written down before, sent once, read back.

The key is the proposal's name: one that is applied is not sent again. Whatever happens after the before-entry is told
by what the scheduler says is in force: all, some or nothing of it. What runs is never touched: limits decide what
starts.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.proposal import ProposalId, ProposalRecord, ProposalState
from ops_pipelines.core.quota_limits import Change, QuotasInForce
from ops_pipelines.flow.quota.changes import ApplyRefused, changes_of, standing_now, to_change, witness
from ops_pipelines.flow.quota.guards import (
    below_what_runs,
    find_hindrances,
    hindrances_of_scheduler,
    part_settable,
    prove_now,
    refuse_without_consent,
    warnings_of,
)
from ops_pipelines.flow.quota.hand import Deed, Hand, Pause
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.settings import LimitsOn

SETTLED_AFTER = timedelta(minutes=10)
"""Whoever began longer ago than this is gone: no batch takes so long."""
_LOOKED_BACK = 60
"""Newest proposals among which one that is half-way is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What applying a proposal would do now. Nothing was changed."""

    record: ProposalRecord
    changes: tuple[Change, ...]
    """What would be set; nothing: all is as proposed."""
    standing: Mapping[Change, int | None]
    """What stands there now; of accounts that the scheduler does not know, nothing."""
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
    with the changes that it was begun with. What somebody never ended is settled first. Raises ApplyRefused, and then
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
    """Return what is to be set, and what is left out in words: of one that is half in, what it was begun with."""
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
        "what is proposed, or half applied, is applied: propose anew"
    )


def _refuse(proposal: ProposalId, hindrances: Iterable[str]) -> None:
    found = tuple(hindrances)
    if found:
        raise ApplyRefused(f"{proposal} was not touched: {'; '.join(found)}")


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
