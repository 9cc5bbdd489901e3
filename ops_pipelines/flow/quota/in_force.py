"""What holds now, of one type of GPU: the scheduler's limits and shares, and the proposals that were applied. Pure."""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta

from ops_pipelines.core.proposal import GpuType, ProposalRecord, ProposalState, QuotaProposal, TeamName
from ops_pipelines.core.quota_limits import ALL_TYPES, AccountQuota
from ops_pipelines.flow.quota.morning import Morning


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
