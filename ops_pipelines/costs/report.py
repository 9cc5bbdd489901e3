"""What a month cost whom, as a document and as JSON. Shows a charge; computes nothing.

What stays with the operator is apart from what teams pay. Every line of the statement is in exactly one row. The
keys of the JSON are a contract with the scripts of operators.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby

from ops_pipelines.core.money import Cents
from ops_pipelines.costs.charges import CostRow, HoursRow, cost_rows, hours_by_fate, hours_rows
from ops_pipelines.costs.statement import Service, Statement
from ops_pipelines.costs.statements import BudgetAlert, BudgetStanding, Charge
from ops_pipelines.costs.usage import Fate
from ops_pipelines.report import document as doc
from ops_pipelines.report.numbers import hours, moment, money, percent, share_of

_TEAMS_OPEN = 30
"""More than these are folded."""
_SERVICES: tuple[tuple[str, tuple[Service, ...]], ...] = (
    ("GPU", (Service.GPU,)),
    ("Energy", (Service.ENERGY,)),
    ("Network", (Service.NETWORK,)),
    ("Storage", (Service.STORAGE,)),
    ("Credits", (Service.CREDIT, Service.INCIDENT_CREDIT)),
)
_FATES: Mapping[Fate, tuple[str, str, doc.Shade]] = {
    Fate.ALLOCATED: ("held by teams", "", doc.Shade.BLUE),
    Fate.IDLE: ("idle", "free, and nobody held them", doc.Shade.PALE),
    Fate.BROKEN: ("broken", "out by an incident, or down", doc.Shade.ORANGE),
    Fate.MAINTENANCE: ("maintenance", "rollouts and reservations of ours", doc.Shade.YELLOW),
    Fate.OVERHEAD: ("overhead", "tests, probation, and what has no known cause", doc.Shade.GREY),
}
_ALERTS: Mapping[BudgetAlert, tuple[str, doc.Mood, doc.Shade]] = {
    BudgetAlert.FORECAST_OVERRUN: ("will not last", doc.Mood.WARN, doc.Shade.YELLOW),
    BudgetAlert.NEARLY_SPENT: ("80 % are spent", doc.Mood.WARN, doc.Shade.YELLOW),
    BudgetAlert.SPENT: ("spent", doc.Mood.BAD, doc.Shade.ORANGE),
}
_Key = tuple[Fate, str, str]
"""Fate, team, project."""
_Pair = tuple[_Key, HoursRow | None, CostRow | None]


def cost_document(
    charge: Charge | None,
    *,
    cluster: str,
    month: str,
    why_not: str = "",
    months: Mapping[str, Sequence[str]] | None = None,
    filed_cents: Cents | None = None,
    team: str | None = None,
    now: datetime | None = None,
) -> doc.Document:
    """Return the report of a month as 2026-11; of `team` alone, if it is given.

    `charge` None: nothing can be counted, and `why_not` says why. `months`: those that have a page, newest first, each
    with the kinds of files kept of it. `filed_cents`: what the kept CSV of the month adds up to.
    """
    command = f"ops-pipelines cost --month {month}"
    choices = doc.Choices(
        about="Months", current=month, links={each: f"chargeback?month={each}" for each in months or ()}
    )
    if charge is None:
        blocks = _nothing(why_not, command=command)
    else:
        kinds = (months or {}).get(month, ())
        blocks = doc.sections(
            _sums(charge),
            _budgets(charge, team=team),
            _teams(charge, team=team),
            () if team is not None else _operator(charge),
            () if team is not None or months is None else _files(charge, month, kinds=kinds, filed_cents=filed_cents),
            doc.listed_under(
                "Rows that were not believed",
                [f"{reason}: {count}" for reason, count in charge.usage.refused_by_reason.items()],
            ),
            doc.listed_under("What is not known", charge.notes, key="not_known"),
        )
    return doc.Document(
        title=f"Costs of {month}",
        cluster=cluster,
        about="what became of each installed GPU-hour, and who bears what it costs",
        blocks=(choices, *blocks),
        command=command,
        now=now,
        measures=None if charge is None else _measures(charge),
    )


def holders(charge: Charge) -> Sequence[str]:
    """Return the teams that held anything, by name."""
    return sorted({key[1] for key, _, _ in _pairs(charge) if key[1]})


def team_total_cents(charge: Charge) -> Cents | None:
    """Return what all teams pay together; None where nothing is charged."""
    if charge.statement is None:
        return None
    return Cents(sum(each.cents for each in charge.statement.lines if each.bearer.owner is not None))


def _nothing(why_not: str, *, command: str) -> tuple[doc.Block, ...]:
    return (
        doc.Note(words=why_not),
        doc.Note(
            words=(
                "Hours are counted from the lake (the jobs of the groups ", doc.code("hours"), " and ",
                doc.code("jobs"), " fill it), from what cluster.yaml says is in the racks since when, and charged "
                "by its ", doc.code("prices"), " (docs/COST.md).",
            )
        ),
        doc.Note(words=doc.code(command)),
    )  # fmt: skip


def _sums(charge: Charge) -> tuple[doc.Block, ...]:
    statement, part = charge.statement, charge.usage.part
    by_fate = hours_by_fate(charge.usage.total)
    installed = sum(by_fate.values())
    span = "The whole month" if part.until == part.month.ends_at else "Month to date"
    paid = team_total_cents(charge)
    amounts = () if statement is None or paid is None else (
        doc.Number(value=statement.asset_cents, kind=doc.Kind.CENTS, about=f"{statement.currency}, cost of the assets"),
        doc.Number(value=paid, kind=doc.Kind.CENTS, about=f"{statement.currency}, borne by teams"),
        doc.Number(value=statement.asset_cents - paid, kind=doc.Kind.CENTS,
               about=f"{statement.currency}, stays with the operator"),
    )  # fmt: skip
    used = _used_ratio(hours_rows(charge.usage.total))
    return doc.sections(
        doc.Note(words=doc.soft(f"{span}: {moment(part.since)} to {moment(part.until)}")),
        doc.Note(words=charge.why_not, mood=doc.Mood.WARN) if charge.why_not else None,
        doc.Numbers(
            numbers=(
                *amounts,
                doc.Number(value=by_fate[Fate.ALLOCATED], kind=doc.Kind.GPU_HOURS,
                       about=f"of {hours(installed)} GPU-hours were held"),
                doc.Number(value=used, kind=doc.Kind.RATIO, about="of the hours that were held and measured did work"),
            )
        ),
        doc.Shares(
            title="Installed GPU-hours by what became of them",
            whole=installed,
            parts=[
                doc.Share(what=_FATES[fate][0], size=count, shade=_FATES[fate][2],
                      said=f"{percent(share_of(count, installed))} ({hours(count)} h)")
                for fate, count in by_fate.items()
            ],
        ),
    )  # fmt: skip


def _budgets(charge: Charge, *, team: str | None) -> tuple[doc.Block, ...]:
    standings = [each for each in charge.standings if team is None or each.budget.team == team]
    if not standings:
        return ()
    currency = "" if charge.statement is None else charge.statement.currency
    return (
        doc.Heading(text="Budgets"),
        doc.Table(
            key="budgets",
            columns=(
                doc.Column(title="Team", kind=doc.Kind.NAME, is_strong=True),
                doc.Column(title="", kind=doc.Kind.DRAWN, key="bar"),
                doc.Column(title=f"Spent{f', {currency}' if currency else ''}", kind=doc.Kind.CENTS, key="spent"),
                doc.Column(title="Budget", kind=doc.Kind.CENTS),
                doc.Column(title="Share", kind=doc.Kind.RATIO),
                doc.Column(title="Forecast", kind=doc.Kind.CENTS),
                doc.Column(title="State", key="stands"),
            ),
            rows=[_budget(each) for each in standings],
        ),
        doc.Legend(
            parts=(
                "bar: spent up to today",
                "│ the budget",
                "○ forecast at the end of the month, by the same weekdays of the last week",
            )
        ),
    )


def _budget(standing: BudgetStanding) -> doc.Row:
    budget, spent, forecast = standing.budget.cents, standing.spent_cents, standing.forecast_cents
    whole = max(budget, spent, forecast or 0) * 1.02
    worst = _ALERTS[standing.alerts[-1]] if standing.alerts else ("", doc.Mood.GOOD, doc.Shade.SKY)
    words = ", ".join(_ALERTS[each][0] for each in standing.alerts) or "within"
    foreseen = "not known" if forecast is None else money(forecast)
    bar = doc.Bar(
        said=f"{money(spent)} of {money(budget)} spent, forecast {foreseen}",
        parts=((share_of(spent, whole), worst[2]),),
        ticks=(share_of(budget, whole),),
        rings=() if forecast is None else (share_of(forecast, whole),),
    )
    ratio = float(standing.spent_ratio)
    return doc.Row(cells=(standing.budget.team, bar, spent, budget, ratio, forecast, doc.strong(words, worst[1])))


def _teams(charge: Charge, *, team: str | None) -> tuple[doc.Block, ...]:
    pairs = [each for each in _pairs(charge) if each[0][1] and team in (None, each[0][1])]
    groups = [list(each) for _, each in groupby(sorted(pairs, key=_by_team), key=lambda pair: pair[0][1])]
    groups.sort(key=lambda group: (-_cents(group), -_hours(group), group[0][0][1]))
    rows = [row for group in groups for row in _team_rows(group, charge.statement)]
    if rows and team is None:
        rows.append(_sum_row("All teams", pairs, charge.statement, role=doc.RowRole.SUM))
    return doc.Heading(text="Teams"), _team_table(charge.statement, rows)


def _team_table(statement: Statement | None, rows: Sequence[doc.Row]) -> doc.Table:
    services = () if statement is None else (
        *(doc.Column(title=name, kind=doc.Kind.CENTS) for name, _ in _SERVICES),
        doc.Column(title=f"Total {statement.currency}", key="total", kind=doc.Kind.CENTS, is_strong=True),
    )  # fmt: skip
    return doc.Table(
        key="statement",
        columns=(
            doc.Column(title="Who", key="team", is_strong=True),
            doc.Column(title="GPU-hours", key="gpu_hours", kind=doc.Kind.GPU_HOURS),
            doc.Column(title="Used", kind=doc.Kind.GPU_HOURS),
            doc.Column(title="Wasted", kind=doc.Kind.GPU_HOURS),
            *services,
        ),
        rows=rows,
        at_most=_TEAMS_OPEN,
        folded="teams",
        empty="No team held a GPU.",
    )


def _operator(charge: Charge) -> tuple[doc.Block, ...]:
    statement = charge.statement
    total = (
        ()
        if statement is None
        else (doc.Column(title=f"Total {statement.currency}", key="total", kind=doc.Kind.CENTS),)
    )
    rows: list[tuple[doc.Cell, ...]] = [
        (
            _FATES[fate][0],
            0.0 if row is None else row.gpu_hours,
            *(() if statement is None else (0 if cost is None else cost.total_cents,)),
            doc.soft(_FATES[fate][1]),
        )
        for (fate, team, _), row, cost in _pairs(charge)
        if not team
    ]
    table = doc.Table(
        key="operator_lines",
        columns=(
            doc.Column(title="What", is_strong=True),
            doc.Column(title="GPU-hours", key="gpu_hours", kind=doc.Kind.GPU_HOURS),
            *total,
            doc.Column(title="That is", kind=doc.Kind.WORDS),
        ),
        rows=rows,
    )
    if statement is None:
        return doc.Heading(text="With the operator"), table
    every = Cents(sum(each.cents for each in statement.lines))
    residual = statement.residual_cents
    rates = ", ".join(f"{name or 'all'} {float(rate) / 100:,.2f}" for name, rate in statement.rates.items())
    hour = f"An installed GPU-hour costs, without energy and network: {rates} {statement.currency}."
    return doc.sections(
        doc.Heading(text="With the operator"),
        table,
        doc.Note(
            words=(
                doc.strong(f"All lines together: {money(every)} {statement.currency}."),
                f" The assets cost {money(statement.asset_cents)}: ",
                doc.toned(f"residual {money(residual)}", doc.Mood.BAD if residual else doc.Mood.GOOD), ".",
            )
        ),
        doc.Note(words=doc.soft(hour)) if rates else None,
    )  # fmt: skip


def _files(charge: Charge, month: str, *, kinds: Sequence[str], filed_cents: Cents | None) -> tuple[doc.Block, ...]:
    statement = charge.statement
    if statement is None:
        return ()
    if not kinds:
        export = f"ops-pipelines cost export --month {month} --to DIRECTORY"
        return (
            doc.Note(
                words=("No file is kept of this month yet: the asset ", doc.code("chargeback"), " writes it, and ",
                       doc.code(export), "."),
                mood=doc.Mood.SOFT,
            ),
        )  # fmt: skip
    files: list[str | doc.Span] = ["As a file (FOCUS): "]
    for kind in kinds:
        files += [doc.link(f"{month}.{kind}", f"chargeback/{month}.{kind}"), " "]
    if filed_cents is not None:
        files.append(f"of {money(filed_cents)} {statement.currency}")
        if filed_cents != statement.asset_cents:
            files.append(
                doc.toned(
                    f": written before; the page counts on, up to {moment(charge.usage.part.until)}", doc.Mood.WARN
                )
            )
    return (doc.Note(words=tuple(files)),)


# -- rows --


def _pairs(charge: Charge) -> list[_Pair]:
    """Return the hours and the costs of each bearer beside each other, in the order of the statement."""
    hours_of = {(each.fate, each.team, each.project): each for each in hours_rows(charge.usage.total)}
    statement = charge.statement
    costs = {} if statement is None else {(each.fate, each.team, each.project): each for each in cost_rows(statement)}
    return [(key, hours_of.get(key), costs.get(key)) for key in dict.fromkeys((*costs, *hours_of))]


def _team_rows(group: Sequence[_Pair], statement: Statement | None) -> list[doc.Row]:
    """Return the rows of a team, its sum first, and its projects where it has any."""
    team = group[0][0][1]
    if not any(key[2] for key, _, _ in group):
        return [_sum_row(team, group, statement)]
    parts = [
        _sum_row(f"{team} / {key[2] or 'without a project'}", [(key, row, cost)], statement, role=doc.RowRole.PART)
        for key, row, cost in group
    ]
    return [_sum_row(team, group, statement, role=doc.RowRole.WHOLE), *parts]


def _sum_row(
    who: str, group: Sequence[_Pair], statement: Statement | None, *, role: doc.RowRole = doc.RowRole.PLAIN
) -> doc.Row:
    rows = [row for _, row, _ in group if row is not None]
    costs = [cost for _, _, cost in group if cost is not None]
    used, wasted = sum(each.used_gpu_hours for each in rows), sum(each.wasted_gpu_hours for each in rows)
    # Of hours that nobody measured neither is known.
    is_measured = used + wasted > 0
    services = () if statement is None else (
        *(sum(each.of(*of) for each in costs) if costs else None for _, of in _SERVICES),
        sum(each.total_cents for each in costs) if costs else None,
    )  # fmt: skip
    return doc.Row(
        cells=(
            who,
            sum((each.gpu_hours for each in rows), 0.0),
            used if is_measured else None,
            wasted if is_measured else None,
            *services,
        ),
        role=role,
    )


def _by_team(pair: _Pair) -> tuple[str, str]:
    return pair[0][1], pair[0][2]


def _cents(group: Iterable[_Pair]) -> int:
    return sum(cost.total_cents for _, _, cost in group if cost is not None)


def _hours(group: Iterable[_Pair]) -> float:
    return sum(row.gpu_hours for _, row, _ in group if row is not None)


def _used_ratio(rows: Iterable[HoursRow]) -> float | None:
    """Return how much of the measured hours was used; None: nothing was measured."""
    listed = [each for each in rows if each.fate is Fate.ALLOCATED]
    used, wasted = sum(each.used_gpu_hours for each in listed), sum(each.wasted_gpu_hours for each in listed)
    return used / (used + wasted) if used + wasted > 0 else None


def _measures(charge: Charge) -> Mapping[str, int | float | str]:
    """Return what Dagster plots by month."""
    statement = charge.statement
    until = {"until": f"{charge.usage.part.until:%Y-%m-%d %H:%M} UTC"}
    if statement is None:
        return {"nothing_is_charged": charge.why_not, **until}
    return {
        **until,
        "currency": statement.currency,
        "asset_cost": statement.asset_cents / 100,
        "residual_cents": statement.residual_cents,
        "sum_of_lines": sum(line.cents for line in statement.lines) / 100,
        **{f"cents_of_an_hour_{name or 'all'}": float(rate) for name, rate in statement.rates.items()},
    }


# -- JSON --


def cost_json(charge: Charge, *, cluster: str, team: str | None = None) -> dict[str, object]:
    """Return what `ops-pipelines cost --json` prints; with `team`, of its lines only those of that team."""
    statement, part = charge.statement, charge.usage.part
    return {
        "cluster": cluster,
        "month": part.month.name,
        "since": part.since,
        "until": part.until,
        "is_over": part.until == part.month.ends_at,
        "currency": None if statement is None else statement.currency,
        "asset_cents": None if statement is None else statement.asset_cents,
        "residual_cents": None if statement is None else statement.residual_cents,
        "why_nothing_is_charged": charge.why_not or None,
        "gpu_hours": {fate.value: round(each, 6) for fate, each in hours_by_fate(charge.usage.total).items()},
        "lines": [_json_line(*each) for each in _pairs(charge) if team in (None, each[0][1])],
        "rates": {} if statement is None else {name: float(rate) for name, rate in statement.rates.items()},
        "budgets": [
            {
                "team": each.budget.team,
                "budget_cents": each.budget.cents,
                "spent_cents": each.spent_cents,
                "today": each.today.isoformat(),
                "spent_ratio": round(float(each.spent_ratio), 6),
                "forecast_cents": each.forecast_cents,
                "alerts": [alert.value for alert in each.alerts],
            }
            for each in charge.standings
            if team in (None, each.budget.team)
        ],
        "refused": dict(charge.usage.refused_by_reason),
        "not_known": charge.notes,
    }


def _json_line(key: _Key, row: HoursRow | None, cost: CostRow | None) -> dict[str, object]:
    fate, team, project = key
    # Of hours that nobody measured neither is known.
    is_measured = row is not None and row.used_gpu_hours + row.wasted_gpu_hours > 0
    return {
        "what": fate.value,
        "team": team or None,
        "project": project or None,
        "gpu_hours": round(row.gpu_hours, 6) if row is not None else 0.0,
        "used_gpu_hours": round(row.used_gpu_hours, 6) if is_measured and row is not None else None,
        "wasted_gpu_hours": round(row.wasted_gpu_hours, 6) if is_measured and row is not None else None,
        "gpu_cents": None if cost is None else cost.of(Service.GPU),
        "energy_cents": None if cost is None else cost.of(Service.ENERGY),
        "storage_cents": None if cost is None else cost.of(Service.STORAGE),
        "network_cents": None if cost is None else cost.of(Service.NETWORK),
        "credit_cents": None if cost is None else cost.of(Service.CREDIT, Service.INCIDENT_CREDIT),
        "total_cents": None if cost is None else cost.total_cents,
    }
