"""From the lines of a proposal to what is set in the scheduler, and whether that is in force.

For who reads one line: the largest change first. Names and reasons hold words of the scheduler, so they are escaped.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from ops_pipelines.core.policy import RequestRefused
from ops_pipelines.core.proposal import (
    GpuType,
    ProposalRecord,
    ProposalState,
    ProposedQuota,
    QuotaProposal,
    SentChange,
    TeamName,
)
from ops_pipelines.core.scheduler import ALL_TYPES, AccountQuota, Change, FairshareChange, QuotaChange, QuotasInForce
from ops_pipelines.quotas.morning import Morning
from ops_pipelines.report.numbers import escape_markdown
from ops_pipelines.teams.desk import LimitsOn

# -- what holds now, of one type of GPU --


def in_force_before(day: date, records: Sequence[ProposalRecord]) -> tuple[QuotaProposal, ...]:
    """Return what was applied on earlier days, the newest last; of a day with several the newest."""
    by_day: dict[date, QuotaProposal] = {}
    for record in records:
        if record.state is ProposalState.APPLIED and record.proposal.day < day:
            by_day.setdefault(record.proposal.day, record.proposal)
    return tuple(by_day[each] for each in sorted(by_day))


def limits_of(morning: Morning, kind: GpuType) -> Mapping[TeamName, int | None]:
    """Return what the scheduler holds each team to, of one type.

    Where only all types together are limited: that, if the cluster has one type; else a team's part of it by the newest
    applied proposal, as long as its parts still add up to the limit.
    """
    if morning.in_force is None:
        return {}
    applied = in_force_before(morning.day + timedelta(days=1), morning.records)
    return {
        team: limit_of(account, kind, count=len(morning.supplies), newest=applied[-1] if applied else None)
        for team, account in morning.in_force.accounts.items()
    }


def limit_of(account: AccountQuota, kind: GpuType, *, count: int, newest: QuotaProposal | None) -> int | None:
    """Return what an account is held to of one of `count` types; None: to nothing, or nobody can tell."""
    own = account.limit_of(kind)
    if own is not None:
        return own
    total = account.limit_of(ALL_TYPES)
    if total is None or count == 1:
        return total
    parts = (
        {} if newest is None else {line.gpu_type: line.after for line in newest.lines if line.team == account.account}
    )
    return parts.get(kind) if parts and sum(parts.values()) == total else None


def fairshares_of(morning: Morning) -> Mapping[TeamName, int | None] | None:
    if not morning.policy.sets_fairshare or morning.in_force is None:
        return None
    return {team: account.fairshare for team, account in morning.in_force.accounts.items()}


# -- from the lines of a proposal to what is set in the scheduler --


class ApplyRefused(RequestRefused):
    """Nothing was set. The message says what is in the way and what to do about it."""


def changes_of(proposal: QuotaProposal, *, limits_on: LimitsOn, in_force: QuotasInForce) -> tuple[Change, ...]:
    """Return what applying a proposal sets, by account; what would stay as it is, is left out.

    A change counts from what the proposal was made from, so that a limit that somebody changed since is seen. Only
    where the proposal could not tell that limit (a team's types were limited otherwise than they will be), it counts
    from what is there now. Raises ApplyRefused for two shares of one team.
    """
    by_team: defaultdict[TeamName, list[ProposedQuota]] = defaultdict(list)
    for line in proposal.lines:
        by_team[line.team].append(line)
    changes: list[Change] = []
    for team, lines in sorted(by_team.items()):
        quota = in_force.accounts.get(team)
        limits = _total(team, lines, quota) if limits_on is LimitsOn.TOTAL else _typed(lines, quota)
        changes += [each for each in limits if each.before != each.after]
        changes += [each for each in _shares(team, lines) if each.before != each.after]
    return tuple(changes)


def _total(team: TeamName, lines: Sequence[ProposedQuota], quota: AccountQuota | None) -> tuple[QuotaChange, ...]:
    known = [line.limit for line in lines if line.limit is not None]
    is_told = len(known) == len(lines) or len(lines) == 1
    is_typed = quota is not None and any(line.gpu_type in quota.limits for line in lines if line.gpu_type != ALL_TYPES)
    if is_told and not is_typed:
        before = sum(known) if known else None
    else:
        before = None if quota is None else quota.limit_of(ALL_TYPES)
    return (QuotaChange(account=team, before=before, after=sum(line.after for line in lines)),)


def _typed(lines: Sequence[ProposedQuota], quota: AccountQuota | None) -> tuple[QuotaChange, ...]:
    return tuple(
        QuotaChange(account=line.team, gpu_type=line.gpu_type, before=_typed_before(line, quota), after=line.after)
        for line in lines
    )


def _typed_before(line: ProposedQuota, quota: AccountQuota | None) -> int | None:
    if quota is None or line.gpu_type in quota.limits or ALL_TYPES not in quota.limits:
        return line.limit
    return None  # What the line was counted from is the limit on all types together.


def _shares(team: TeamName, lines: Sequence[ProposedQuota]) -> tuple[FairshareChange, ...]:
    named = {(line.fairshare_before, line.fairshare_after) for line in lines if line.fairshare_after is not None}
    if len(named) > 1:
        raise ApplyRefused(f"the proposal names {len(named)} fair shares of {team}; a team has one: propose again")
    return tuple(FairshareChange(account=team, before=before, after=after) for before, after in named)


# -- as the ledger keeps them --


def to_sent(change: Change) -> SentChange:
    """Return a change as the ledger keeps it."""
    is_fairshare = isinstance(change, FairshareChange)
    return SentChange(
        account=change.account,
        gpu_type=change.gpu_type if isinstance(change, QuotaChange) else ALL_TYPES,
        is_fairshare=is_fairshare,
        before=change.before,
        after=change.after,
    )


def to_change(sent: SentChange) -> Change:
    """Return what the ledger kept as a change."""
    if sent.is_fairshare:
        return FairshareChange(account=sent.account, before=sent.before, after=sent.after)
    return QuotaChange(account=sent.account, gpu_type=sent.gpu_type, before=sent.before, after=sent.after)


# -- the witness --


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnessed:
    """What one reading says of a batch of changes."""

    are_in: tuple[Change, ...]
    are_not_in: tuple[Change, ...]
    others: tuple[tuple[Change, str], ...]
    """What is neither as before nor as after, with what it is."""
    unheeded: tuple[TeamName, ...]
    """Accounts of the batch of which the running scheduler follows other limits than those kept."""

    @property
    def is_all_in(self) -> bool:
        return not self.are_not_in and not self.others

    @property
    def is_done(self) -> bool:
        return self.is_all_in and not self.unheeded

    @property
    def is_nothing_in(self) -> bool:
        return bool(self.are_not_in) and not self.are_in and not self.others

    @property
    def words(self) -> str:
        """What is in and what is not."""
        parts = []
        if self.are_in:
            parts.append(f"in: {_listed(self.are_in)}")
        if self.are_not_in:
            parts.append(f"not in: {_listed(self.are_not_in)}")
        parts += [f"{change} is {found}" for change, found in self.others]
        if self.unheeded:
            parts.append(
                f"kept, but the running scheduler follows other limits of {', '.join(self.unheeded)}: see whether "
                "slurmctld reaches slurmdbd, or restart it"
            )
        return "; ".join(parts)


def witness(changes: Sequence[Change], in_force: QuotasInForce) -> Witnessed:
    """Return what a reading says of changes that were sent."""
    are_in: list[Change] = []
    are_not_in: list[Change] = []
    others: list[tuple[Change, str]] = []
    for change in changes:
        quota = in_force.accounts.get(change.account)
        if quota is None:
            others.append((change, f"unknown: the reading has no account {change.account}"))
        elif (value := change.stands_in(quota)) == change.after:
            are_in.append(change)
        elif value == change.before:
            are_not_in.append(change)
        else:
            others.append((change, f"{'none' if value is None else value}: somebody else changed it"))
    accounts = {change.account for change in changes}
    return Witnessed(
        are_in=tuple(are_in),
        are_not_in=tuple(are_not_in),
        others=tuple(others),
        unheeded=tuple(sorted(in_force.unheeded & accounts)),
    )


def standing_now(changes: Sequence[Change], in_force: QuotasInForce) -> Mapping[Change, int | None]:
    """Return what is there now of each change; accounts that are unknown have nothing."""
    return {
        change: change.stands_in(in_force.accounts[change.account])
        for change in changes
        if change.account in in_force.accounts
    }


def _listed(changes: Sequence[Change]) -> str:
    return ", ".join(map(str, changes))


# -- the changes of a proposal as a short Markdown list --


_REASON_CHARS = (400, 240, 160, 120)
"""How long a reason may be: the longest that lets every change stand there."""
_NAME_CHARS = 40


def list_changes(lines: Sequence[ProposedQuota], *, most_chars: int) -> str:
    """Return a line for each quota that changes, within so many characters; what does not fit is counted, never lost.

    The reason is cut before a change is left out; the first change is always named.
    """
    changed = sorted(
        (each for each in lines if _moves(each)),
        key=lambda each: (-abs(each.after - each.before), each.team, each.gpu_type),
    )
    if not changed:
        return "no quota changes"
    for reason_chars in _REASON_CHARS:
        words = [_line(each, reason_chars=reason_chars) for each in changed]
        if len(text := "\n".join(words)) < most_chars:
            return text
    count = len(words)
    while count > 1 and len(text := "\n".join((*words[:count], _rest(len(words) - count)))) >= most_chars:
        count -= 1
    return text if count > 1 else "\n".join((words[0], *([_rest(len(words) - 1)] if words[1:] else [])))


def _moves(line: ProposedQuota) -> bool:
    return line.changes_anything or round(line.before) != line.after


def _line(line: ProposedQuota, *, reason_chars: int) -> str:
    kind = f" {escape_markdown(line.gpu_type, at_most=_NAME_CHARS)}" if line.gpu_type else ""
    name = escape_markdown(line.team, at_most=_NAME_CHARS)
    return f"- **{name}**{kind} {line.before:g} → {line.after}: {escape_markdown(line.reason, at_most=reason_chars)}"


def _rest(count: int) -> str:
    return f"- and {count} more: see `why`"
