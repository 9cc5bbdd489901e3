"""The page of a month's costs: who bears how much of what machines cost, and how budgets stand. Values in, HTML out.

What stays with the operator stands apart from what teams pay. Every line of the statement is in exactly one row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from ops_pipelines.core.money import Cents
from ops_pipelines.costs.charges import CostRow, HoursRow, cost_rows, hours_by_fate, hours_rows
from ops_pipelines.costs.statement import Service
from ops_pipelines.costs.statements import Charge
from ops_pipelines.costs.usage import Fate
from ops_pipelines.pages.amounts import DASH, hours, money, part_of
from ops_pipelines.pages.budget_bars import budget_bar
from ops_pipelines.pages.render import render
from ops_pipelines.pages.rollouts import clipped

_TEAMS_OPEN = 30
"""More than these are folded."""
_SERVICES: tuple[tuple[str, tuple[Service, ...]], ...] = (
    ("GPUs", (Service.GPU,)),
    ("Energy", (Service.ENERGY,)),
    ("Network", (Service.NETWORK,)),
    ("Storage", (Service.STORAGE,)),
    ("Credits", (Service.CREDIT, Service.INCIDENT_CREDIT)),
)
_FATES: Mapping[Fate, str] = {
    Fate.ALLOCATED: "held by teams",
    Fate.IDLE: "idle",
    Fate.BROKEN: "broken",
    Fate.MAINTENANCE: "maintenance",
    Fate.OVERHEAD: "overhead",
}
_OF_OPERATOR: Mapping[Fate, str] = {
    Fate.IDLE: "free, and nobody held them",
    Fate.BROKEN: "out by an incident, or down",
    Fate.MAINTENANCE: "rollouts and reservations of ours",
    Fate.OVERHEAD: "tests, probation, and what nobody can be told to have caused",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthChoice:
    """One month that can be looked at."""

    name: str
    """As 2026-11."""
    files: tuple[str, ...]
    """Of these kinds a file is kept: csv, parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeMatter:
    """What the page is made from."""

    cluster: str
    month: str
    charge: Charge | None
    """None: nothing can be counted; `why_not` says why."""
    why_not: str
    months: Sequence[MonthChoice]
    """Newest first."""
    filed_cents: Cents | None
    """What the kept CSV of the month adds up to; None: none is kept."""
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    what: str
    about: str
    is_project: bool
    gpu_hours: str
    used: str
    wasted: str
    services: tuple[str, ...]
    total: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    what: str
    shade: str
    at: float
    wide: float
    gpu_hours: str
    percent: str


def write_chargeback(matter: ChargeMatter) -> str:
    """Return the page."""
    charge = matter.charge
    values: dict[str, object] = {
        "cluster": matter.cluster,
        "month": matter.month,
        "months": matter.months,
        "files": next((each.files for each in matter.months if each.name == matter.month), ()),
        "now": matter.now,
        "why_not": matter.why_not if charge is None else charge.why_not,
        "charge": charge,
    }
    return render("chargeback.html", values | ({} if charge is None else _charged(charge, matter)))


def team_total_cents(charge: Charge) -> Cents | None:
    """Return what all teams pay together; None where nothing is charged."""
    if charge.statement is None:
        return None
    return Cents(sum(each.cents for each in charge.statement.lines if each.bearer.owner is not None))


def _charged(charge: Charge, matter: ChargeMatter) -> dict[str, object]:
    statement, part = charge.statement, charge.usage.part
    hours_of = {(each.fate, each.team, each.project): each for each in hours_rows(charge.usage.total)}
    costs = (
        dict.fromkeys(hours_of)
        if statement is None
        else {(each.fate, each.team, each.project): each for each in cost_rows(statement)}
    )
    keys = list(dict.fromkeys((*costs, *hours_of)))
    pairs = [(key, hours_of.get(key), costs.get(key)) for key in keys]
    teams = _team_lines([each for each in pairs if each[0][1]])
    by_fate = hours_by_fate(charge.usage.total)
    paid = team_total_cents(charge)
    every = [each for _, each, _ in pairs if each is not None]
    return {
        "since": part.since,
        "until": part.until,
        "is_over": part.until == part.month.ends_at,
        "currency": "" if statement is None else statement.currency,
        "statement": statement,
        "asset": None if statement is None else money(statement.asset_cents),
        "residual": None if statement is None else money(statement.residual_cents),
        "line_sum": None if statement is None else money(Cents(sum(each.cents for each in statement.lines))),
        "paid": money(paid),
        "kept": DASH if statement is None or paid is None else money(Cents(statement.asset_cents - paid)),
        "shares": _shares(by_fate),
        "installed_hours": hours(sum(by_fate.values())),
        "held_hours": hours(by_fate[Fate.ALLOCATED]),
        "used_ratio": _used_ratio(every),
        "services": [name for name, _ in _SERVICES],
        "teams": teams[:_TEAMS_OPEN],
        "folded": teams[_TEAMS_OPEN:],
        "all_teams": _sum_line("All teams", [each for each in pairs if each[0][1]]),
        "operator": [
            _line(_FATES[key[0]], _OF_OPERATOR.get(key[0], ""), row, cost) for key, row, cost in pairs if not key[1]
        ],
        "budgets": [budget_bar(each) for each in charge.standings],
        "rates": []
        if statement is None
        else [(name or "all", f"{float(rate) / 100:,.2f}") for name, rate in statement.rates.items()],
        "notes": [clipped(each) for each in charge.notes],
        "refused": charge.usage.refused_by_reason,
        "filed": None if matter.filed_cents is None else money(matter.filed_cents),
        "is_as_filed": statement is not None and matter.filed_cents == statement.asset_cents,
    }


_Key = tuple[Fate, str, str]
_Pair = tuple[_Key, HoursRow | None, CostRow | None]


def _team_lines(pairs: Sequence[_Pair]) -> list[list[_Line]]:
    """Return the rows of each team, its sum first, and its projects where it has any; who pays most comes first."""
    groups = [(team, list(each)) for team, each in groupby(sorted(pairs, key=_by_team), key=lambda pair: pair[0][1])]
    groups.sort(key=lambda group: (-_cents(group[1]), -_hours(group[1]), group[0]))
    found = []
    for team, group in groups:
        projects = [_line(key[2] or "without a project", "", row, cost, is_project=True) for key, row, cost in group]
        has_projects = any(key[2] for key, _, _ in group)
        found.append([_sum_line(team, group), *(projects if has_projects else ())])
    return found


def _by_team(pair: _Pair) -> tuple[str, str]:
    return pair[0][1], pair[0][2]


def _cents(group: Iterable[_Pair]) -> int:
    return sum(cost.total_cents for _, _, cost in group if cost is not None)


def _hours(group: Iterable[_Pair]) -> float:
    return sum(row.gpu_hours for _, row, _ in group if row is not None)


def _sum_line(team: str, group: Sequence[_Pair]) -> _Line:
    rows = [row for _, row, _ in group if row is not None]
    costs = [cost for _, _, cost in group if cost is not None]
    whole = HoursRow(
        fate=Fate.ALLOCATED,
        team=team,
        project="",
        gpu_hours=sum(each.gpu_hours for each in rows),
        used_gpu_hours=sum(each.used_gpu_hours for each in rows),
        wasted_gpu_hours=sum(each.wasted_gpu_hours for each in rows),
    )
    cents = {service: Cents(sum(each.of(service) for each in costs)) for service in Service}
    cost = CostRow(fate=Fate.ALLOCATED, team=team, project="", gpu_hours=whole.gpu_hours, cents=cents)
    return _line(team, "", whole, cost if costs else None)


def _line(what: str, about: str, row: HoursRow | None, cost: CostRow | None, *, is_project: bool = False) -> _Line:
    # Of hours that nobody measured neither is known.
    is_measured = row is not None and row.used_gpu_hours + row.wasted_gpu_hours > 0
    return _Line(
        what=clipped(what, at_most=60),
        about=about,
        is_project=is_project,
        gpu_hours=hours(0.0 if row is None else row.gpu_hours),
        used=hours(row.used_gpu_hours) if is_measured and row is not None else DASH,
        wasted=hours(row.wasted_gpu_hours) if is_measured and row is not None else DASH,
        services=tuple(DASH if cost is None else money(cost.of(*services)) for _, services in _SERVICES),
        total=DASH if cost is None else money(cost.total_cents),
    )


def _shares(by_fate: Mapping[Fate, float]) -> list[_Share]:
    """Return the bar of all installed GPU-hours, by what became of them."""
    whole, at = sum(by_fate.values()), 0.0
    found = []
    for fate, count in by_fate.items():
        wide = part_of(count, whole)
        found.append(
            _Share(
                what=_FATES[fate],
                shade=fate.value,
                at=round(at, 2),
                wide=round(min(wide, 100 - at), 2),
                gpu_hours=hours(count),
                percent=f"{wide:.1f} %",
            )
        )
        at += wide
    return found


def _used_ratio(rows: Iterable[HoursRow]) -> float | None:
    """Return how much of the measured hours was used; None: nothing was measured."""
    listed = [each for each in rows if each.fate is Fate.ALLOCATED]
    used, wasted = sum(each.used_gpu_hours for each in listed), sum(each.wasted_gpu_hours for each in listed)
    return used / (used + wasted) if used + wasted > 0 else None
