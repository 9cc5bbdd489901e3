"""The statement of a month, or of as much of it as is over, and how the budgets of teams stand.

Joins usage, prices and lost hours; the arithmetic is `costs`'s. What cannot be charged is a value with its
reason: hours are counted all the same.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from ops_pipelines.core.money import Amount, Cents
from ops_pipelines.core.periods import BilledPart, CostMonth
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.costs.budgets import Budget, BudgetStanding, judge_budget
from ops_pipelines.costs.charges import LossAt, Losses, find_losses
from ops_pipelines.costs.gather_usage import DayUsage, MonthUsage, part_of, usage_of
from ops_pipelines.costs.statement import Held, LostHours, Statement, make_statement
from ops_pipelines.costs.usage import PartUsage
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import AssetCost, Installed, InstalledAsset, PriceModel, asset_cost

_LEARNED_DAYS = 7
"""How many days of the month before a forecast looks at, as `costs.budgets` does."""
_DAY = timedelta(days=1)
_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What a part of a month costs whom."""

    usage: MonthUsage
    cost: AssetCost | None = None
    statement: Statement | None = None
    why_not: str = ""
    """Why there is no statement; empty where there is one."""
    standings: tuple[BudgetStanding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def month(self) -> CostMonth:
        return self.usage.part.month


def statement_of(month: CostMonth, desk: TeamsDesk, *, until: datetime) -> Charge:
    """Return the statement of a month, or of what of it is over at `until`.

    Raises NothingYet before its first hour is over, NoTeams without a register of nodes, LakeError and LedgerError.
    """
    return charge(usage_of(part_of(month, now=until), desk), desk)


def charge(usage: MonthUsage, desk: TeamsDesk) -> Charge:
    """Return what a usage costs whom. Raises LakeError and LedgerError."""
    if desk.prices is None:
        return Charge(
            usage=usage,
            why_not="cluster.yaml has no `prices`: hours are counted, nothing is charged (docs/COST.md)",
            notes=usage.notes,
        )
    losses = find_losses(usage.part, desk)
    notes = (*usage.notes, *losses.notes)
    try:
        cost, statement = _charge_part(
            usage.part, usage.total, usage.days, desk.prices, lost=[each.lost for each in losses.losses]
        )
    except ValueError as problem:
        return Charge(usage=usage, why_not=str(problem), notes=notes)
    refused = sum(each.gpu_seconds for each in statement.refused_credits)
    if refused:
        told = f"{refused / 3600:,.1f} GPU-hours that incidents cost are no credit: their team held fewer in this part"
        notes = (*notes, told)
    standings, unknown = budgets_of(usage, desk, losses=losses)
    return Charge(usage=usage, cost=cost, statement=statement, standings=standings, notes=(*notes, *unknown))


def _charge_part(
    part: BilledPart,
    total: PartUsage,
    days: Iterable[DayUsage],
    prices: PriceModel,
    *,
    lost: Sequence[LostHours],
) -> tuple[AssetCost, Statement]:
    """Return cost and statement; ValueError says which price or measurement is missing."""
    listed = list(days)
    joules = _added(each.joules for each in listed)
    unmeasured = _added(each.unmeasured_gpu_seconds for each in listed)
    cost = asset_cost(
        part,
        Installed(
            assets=_assets(each.assets for each in listed),
            joules=sum(joules.values()),
            unmeasured_gpu_seconds=sum(unmeasured.values()),
            storage_byte_seconds=sum(each.storage_byte_seconds for each in listed),
        ),
        prices,
    )
    watts: Amount = prices.unmeasured_watts_per_gpu or 0
    held = {
        each: joules.get(each, 0) + unmeasured.get(each, 0) * watts
        for each in sorted({*joules, *unmeasured}, key=_names)
    }
    return cost, make_statement(cost, total, joules=held, lost=lost)


def _names(held: Held) -> tuple[str, ...]:
    return *held[0].names, held[1]


def _added(parts: Iterable[Mapping[Held, int]]) -> dict[Held, int]:
    sums: dict[Held, int] = {}
    for each in parts:
        for held, amount in each.items():
            sums[held] = sums.get(held, 0) + amount
    return sums


def _assets(parts: Iterable[Sequence[InstalledAsset]]) -> tuple[InstalledAsset, ...]:
    sums: dict[tuple[str, GpuType], InstalledAsset] = {}
    for asset in (each for listed in parts for each in listed):
        before = sums.get((asset.asset, asset.gpu_type))
        sums[asset.asset, asset.gpu_type] = (
            asset
            if before is None
            else replace(
                asset,
                node_seconds=asset.node_seconds + before.node_seconds,
                gpu_seconds=asset.gpu_seconds + before.gpu_seconds,
            )
        )
    return tuple(sums[key] for key in sorted(sums))


# -- budgets --


def budgets_of(
    usage: MonthUsage, desk: TeamsDesk, *, losses: Losses | None = None
) -> tuple[tuple[BudgetStanding, ...], tuple[str, ...]]:
    """Return how each team's budget stands at the begin of the last day of a part, and what cannot be judged.

    A team that has teams of its own pays for these, too. Days are charged one by one: rounding may part their sum from
    the statement by a cent a day.
    """
    agreements = desk.agreements
    if agreements is None or not agreements.monthly_budget_cents or desk.prices is None:
        return (), ()
    losses = find_losses(usage.part, desk) if losses is None else losses
    spent = _spent_by_day(usage.days, desk, losses=losses.losses)
    today = usage.part.until.astimezone(desk.zone).date()
    first = date(usage.part.month.year, usage.part.month.month, 1)
    if (today - first).days < _LEARNED_DAYS:
        spent |= _spent_before(usage.part.month, desk)
    standings: list[BudgetStanding] = []
    notes: list[str] = []
    for team in sorted(agreements.monthly_budget_cents):
        cents = agreements.monthly_budget_cents[team]
        if cents <= 0:
            notes.append(f"{team} has a budget of 0: any hour exceeds it, so no share of it is told")
            continue
        members = _members(team, agreements)
        by_day = {
            day: Cents(sum(each for name, each in by_team.items() if name in members)) for day, by_team in spent.items()
        }
        budget = Budget(team=team, first_day=first, cents=Cents(cents))
        standings.append(judge_budget(budget, by_day, today=today))
    return tuple(standings), tuple(notes)


def _spent_by_day(
    days: Iterable[DayUsage], desk: TeamsDesk, *, losses: Collection[LossAt]
) -> dict[date, dict[TeamName, Cents]]:
    """Return what each team pays for each full local day."""
    from ops_pipelines.costs.usage import days_of

    prices, zone = desk.priced(), desk.zone
    found: dict[date, dict[TeamName, Cents]] = {}
    for each in days:
        month = each.usage.part.month
        whole = next(
            (
                part
                for day, part in days_of(
                    replace(each.usage.part, since=month.begins_at, until=month.ends_at), zone=zone
                )
                if day == each.day
            ),
            None,
        )
        if whole != each.usage.part:
            continue
        lost = [loss.lost for loss in losses if (loss.at - _MOMENT).astimezone(zone).date() == each.day]
        try:
            _, statement = _charge_part(each.usage.part, each.usage, [each], prices, lost=lost)
        except ValueError:
            continue  # A day that cannot be charged is not learned from.
        by_team: dict[TeamName, Cents] = {}
        for line in statement.lines:
            if line.bearer.owner is not None:
                team = line.bearer.owner.team
                by_team[team] = Cents(by_team.get(team, 0) + line.cents)
        found[each.day] = by_team
    return found


def _spent_before(month: CostMonth, desk: TeamsDesk) -> dict[date, dict[TeamName, Cents]]:
    """Return the same for the last days of the month before, as far as the register reaches."""
    from ops_pipelines.costs.usage import days_of, month_at

    before = month_at(month.begins_at - _MOMENT, zone=desk.zone)
    days = list(days_of(BilledPart(month=before, since=before.begins_at, until=before.ends_at), zone=desk.zone))
    since = days[-_LEARNED_DAYS][1].since
    usage = usage_of(BilledPart(month=before, since=since, until=before.ends_at), desk)
    known = [each for each in usage.days if each.usage.by_bearer and _has_jobs(each)]
    return _spent_by_day(known, desk, losses=())


def _has_jobs(day: DayUsage) -> bool:
    """Return whether anything ran on a day: before the lake began, nothing did, and nothing is learned from that."""
    return any(bearer.owner is not None for bearer, _ in day.usage.by_bearer)


def _members(team: TeamName, agreements: Agreements) -> frozenset[TeamName]:
    """Return a team with all that belong to it."""
    found, open_ = {team}, [team]
    while open_:
        below = agreements.children.get(open_.pop(), ())
        fresh = [each for each in below if each not in found]
        found.update(fresh)
        open_ += fresh
    return frozenset(found)
