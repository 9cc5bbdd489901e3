"""The statement of a month, how the budgets of teams are doing, and who is notified of them.

Joins usage, prices and lost hours; the arithmetic is `statement`'s. What cannot be charged is a value with its reason:
hours are counted all the same.

The forecast of a budget is the spend so far, and for each day to come the cost of the same weekday in the last 7 days:
work stops at weekends, and a plain mean would promise too much on a Friday. A note is known by month, team, kind and
audience, so that none is sent twice, also after a crash.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import Enum
from fractions import Fraction

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.identity import digest_of
from ops_pipelines.core.money import Amount, Cents, show_cents, to_cents
from ops_pipelines.core.notes import ON_CALL, Audience, Lane, Note, Severity, TellRules, body_of, next_time, quiet_end
from ops_pipelines.core.periods import BilledPart, CostMonth
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.costs.charges import LossAt, Losses, find_losses
from ops_pipelines.costs.gather_usage import DayUsage, MonthUsage, part_of, usage_of
from ops_pipelines.costs.statement import Held, LostHours, Statement, make_statement
from ops_pipelines.costs.usage import PartUsage
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import AssetCost, Installed, InstalledAsset, PriceModel, asset_cost

_LOOK_BACK_DAYS = 7
_DAY = timedelta(days=1)
_NEARLY_ALL = Fraction(8, 10)


class BudgetAlert(Enum):
    """What is reported of a budget, once a month each."""

    FORECAST_OVERRUN = "forecast_overrun"
    """It will not last, if the month continues as the last days did."""
    NEARLY_SPENT = "80_percent"
    SPENT = "100_percent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a team may spend in one month."""

    team: TeamName
    first_day: date
    """Of the month."""
    cents: Cents

    def __post_init__(self) -> None:
        if self.first_day.day != 1:
            raise ValueError(f"{self.team}: a budget from {self.first_day}; expected the first day of a month")
        if self.cents <= 0:
            raise ValueError(f"{self.team}: a budget of {self.cents} cents; expected more than 0")

    @property
    def days(self) -> tuple[date, ...]:
        """The days of its month."""
        first = self.first_day
        return tuple(first + _DAY * each for each in range(31) if (first + _DAY * each).month == first.month)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStanding:
    """How a budget is at the begin of a day."""

    budget: Budget
    today: date
    spent_cents: Cents
    """In the month, before today."""
    forecast_cents: Cents | None
    """At the end of the month; None: none of the last 7 days is known."""

    @property
    def spent_ratio(self) -> Fraction:
        return Fraction(self.spent_cents, self.budget.cents)

    @property
    def alerts(self) -> tuple[BudgetAlert, ...]:
        """What holds now."""
        will_overrun = self.forecast_cents is not None and self.forecast_cents > self.budget.cents
        holds = {
            BudgetAlert.FORECAST_OVERRUN: will_overrun and self.spent_ratio < 1,
            BudgetAlert.NEARLY_SPENT: _NEARLY_ALL <= self.spent_ratio < 1,
            BudgetAlert.SPENT: self.spent_ratio >= 1,
        }
        return tuple(alert for alert, is_true in holds.items() if is_true)


def judge_budget(budget: Budget, spent: Mapping[date, Cents], *, today: date) -> BudgetStanding:
    """Return how the budget is at the begin of `today`, a day of its month or the one after it.

    `spent`: what each full local day cost, of the month before, too. A day of this month that is missing counts as
    nothing spent so far, and is not learned from. Raises ValueError for another month's day.
    """
    days = budget.days
    if not days[0] <= today <= days[-1] + _DAY:
        raise ValueError(f"{budget.team}: {today} is not in the month from {budget.first_day}; expected a day of it")
    so_far = sum(cents for day, cents in spent.items() if days[0] <= day < today)
    to_come = [day for day in days if day >= today]
    expected = _expected(spent, to_come=to_come, today=today)
    return BudgetStanding(
        budget=budget,
        today=today,
        spent_cents=Cents(so_far),
        forecast_cents=None if expected is None else to_cents(so_far + expected),
    )


def _expected(spent: Mapping[date, Cents], *, to_come: Collection[date], today: date) -> Amount | None:
    """Return what the days to come will cost: each as its weekday did, or as the mean where that one is not known."""
    if not to_come:
        return 0
    seen = [today - _DAY * back for back in range(1, _LOOK_BACK_DAYS + 1)]
    known = {day.weekday(): spent[day] for day in seen if day in spent}
    if not known:
        return None
    mean = Fraction(sum(known.values()), len(known))
    return sum((Fraction(known.get(day.weekday(), mean)) for day in to_come), Fraction(0))


_LEARNED_DAYS = 7
"""How many days of the month before a forecast looks at, as `costs.statements` does."""

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
    """Return how each team's budget is at the begin of the last day of a part, and what cannot be judged.

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
            notes.append(f"{team} has a budget of 0: any hour exceeds it, so no share of it is reported")
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


SOURCE = "messages on budgets"
_SEVERITY = {
    BudgetAlert.FORECAST_OVERRUN: Severity.NOTICE,
    BudgetAlert.NEARLY_SPENT: Severity.NOTICE,
    BudgetAlert.SPENT: Severity.WARNING,
}


def tell_of_budgets(standings: Sequence[BudgetStanding], cluster: Cluster, *, currency: str) -> int:
    """Keep a note for each alert that is new in its month; return how many are. Raises LedgerError."""
    outbox = cluster.outbox
    if outbox is None:
        return 0
    now = cluster.clock.now()
    notes = budget_notes(standings, currency=currency, rules=cluster.tell_rules, now=now)
    if not notes:
        return 0
    after = cluster.ledger.cursor(SOURCE)
    with suppress(LedgerConflict):  # Somebody else reported in between: the next run finds what is left.
        return outbox.hand_in(notes, source=SOURCE, after=after, cursor=now.isoformat(), now=now)
    return 0


def budget_notes(
    standings: Iterable[BudgetStanding], *, currency: str, rules: TellRules, now: datetime
) -> tuple[Note, ...]:
    """Return what holds now, for the team and for the operators. Pure."""
    return tuple(
        _note(standing, alert, audience=audience, currency=currency, rules=rules, now=now)
        for standing in standings
        for alert in standing.alerts
        for audience in (Audience.TEAM, Audience.ON_CALL)
    )


def _note(
    standing: BudgetStanding,
    alert: BudgetAlert,
    *,
    audience: Audience,
    currency: str,
    rules: TellRules,
    now: datetime,
) -> Note:
    budget = standing.budget
    month = f"{budget.first_day:%Y-%m}"
    whom = f"team/{digest_of(budget.team)[:12]}" if audience is Audience.TEAM else audience.value
    title = _title(standing, alert, month=month)
    morning = quiet_end(rules, now)
    to_team = audience is Audience.TEAM
    return Note(
        key=f"budget/{month}/{digest_of(budget.team)[:12]}/{alert.value}/{whom}",
        audience=audience,
        recipient=budget.team if to_team else ON_CALL,
        thread=f"budget {month} {budget.team}",
        subject=f"budget of {budget.team} in {month}",
        title=title,
        body=body_of(_parts(standing, currency=currency)),
        line=title,
        lines_title="{count} budgets need a look",
        severity=_SEVERITY[alert] if to_team else Severity.INFO,
        lane=Lane.AT_ONCE if to_team and morning is None else Lane.DIGEST,
        likeness=f"budget {alert.value}",
        made_at=now,
        ready_at=_ready_at(morning, rules, now, is_digest=not to_team),
    )


def _ready_at(morning: datetime | None, rules: TellRules, now: datetime, *, is_digest: bool) -> datetime:
    if is_digest:
        return next_time(rules.digest_at, rules.zone, now)
    return now + rules.group_window if morning is None else morning


def _title(standing: BudgetStanding, alert: BudgetAlert, *, month: str) -> str:
    team, share = standing.budget.team, f"{float(standing.spent_ratio):.0%}"
    if alert is BudgetAlert.SPENT:
        return f"{team} has spent its budget of {month}: {share} of it"
    if alert is BudgetAlert.NEARLY_SPENT:
        return f"{team} has spent {share} of its budget of {month}"
    return f"{team} will exceed its budget of {month} if it continues like this"


def _parts(standing: BudgetStanding, *, currency: str) -> tuple[tuple[str, str], ...]:
    budget = standing.budget
    forecast = (
        "not known: none of the last days is"
        if standing.forecast_cents is None
        else (f"{show_cents(standing.forecast_cents)} {currency} at the end of the month")
    )
    return (
        ("Budget", f"{show_cents(budget.cents)} {currency}"),
        ("Spent", f"{show_cents(standing.spent_cents)} {currency} before {standing.today}"),
        ("Forecast", f"{forecast}, if each day to come costs what its weekday cost last"),
        ("What we do", "nothing: a budget stops no job"),
        ("What you must do", "look at what ran, or have the budget changed; `ops-pipelines cost` shows it by project"),
    )
