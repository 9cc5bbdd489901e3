"""Which charts the report of capacity has, each with the same in numbers beside it. Chooses and scales."""

from collections.abc import Sequence
from datetime import date

from ops_pipelines.capacity.model import (
    BoundHeld,
    CapacityReport,
    OrderLine,
    Resource,
    SeriesKey,
    SeriesLimit,
    SeriesOutlook,
    ShortWeek,
    SupplyWeek,
    chance_of_short,
    percent,
)
from ops_pipelines.capacity.tables import Scale, scale_of, series_name, type_name, usable_at
from ops_pipelines.report import document as doc
from ops_pipelines.report.pictures.capacity import Fan, FanWeek, ShortColumn, ThereWeek, fan_svg, shortage_svg

_NARROW_PAST_WEEKS = 40
_LEVELS = ((0.01, 0.99), (0.05, 0.95), (0.1, 0.9), (0.25, 0.75))
_BAND_WORDS = ("98 % within", "90 %", "80 %", "50 %")
_TOLD_WEEKS = (1, 13, 26, 52)
_WIDE, _NARROW = 720, 336
_DWARFED = 3.0
"""A limit so many times above all that is expected is reported, and not drawn."""


def type_sections(report: CapacityReport) -> tuple[tuple[doc.Block, ...], ...]:
    """Return the types of GPU, the one with the likeliest short week first."""
    weeks: dict[str, list[ShortWeek]] = {}
    for each in report.plan.short_weeks:
        weeks.setdefault(each.gpu_type, []).append(each)
    ordered = sorted(
        report.forecast.with_projects,
        key=lambda each: (
            -max((week.shortage_probability for week in weeks.get(each.key.gpu_type, ())), default=-1.0),
            each.key,
        ),
    )
    return tuple(_section(each, weeks.get(each.key.gpu_type, []), report) for each in ordered)


def resource_charts(report: CapacityReport) -> tuple[doc.Chart, ...]:
    """Return the further resources, those that run short first, then those that grow most."""
    lines = {each.series: each for each in report.plan.orders}
    limits = {each.series: each for each in report.plan.limits}
    others = [each for each in report.forecast.outlooks if each.key.kind is not Resource.GPUS and each.weeks]
    never = date.max
    others.sort(key=lambda each: (_short_from(lines.get(each.key)) or never, -_growth(each), each.key))
    return tuple(_small(each, lines.get(each.key), limits.get(each.key), report) for each in others)


def hindsight_charts(report: CapacityReport) -> tuple[doc.Chart, ...]:
    """Return how the last forecast of each type of GPU did, the worst first."""
    if report.hindsight is None:
        return ()
    by_key: dict[SeriesKey, list[BoundHeld]] = {}
    for each in report.hindsight.bounds:
        if each.key.kind is Resource.GPUS and not each.key.name:
            by_key.setdefault(each.key, []).append(each)
    ordered = sorted(by_key.items(), key=lambda item: (-sum(not each.is_held for each in item[1]), item[0]))
    return tuple(_judged(key, bounds) for key, bounds in ordered)


def verdict_of(outlook: SeriesOutlook, report: CapacityReport) -> tuple[str, doc.Mood]:
    """Return whether a type of GPU runs short, in words."""
    short = [each for each in report.plan.short_weeks if each.gpu_type == outlook.key.gpu_type]
    found = _short_from(_order_of(outlook, report))
    if found is not None:
        return f"short from {found} on", doc.Mood.BAD
    if not short:
        return "whether it runs short is not known", doc.Mood.WARN
    return f"not short within {len(short)} weeks", doc.Mood.GOOD


def _section(outlook: SeriesOutlook, short: Sequence[ShortWeek], report: CapacityReport) -> tuple[doc.Block, ...]:
    verdict, mood = verdict_of(outlook, report)
    limit = report.plan.shortage_probability_max
    nothing = doc.Note(words='Nothing can be forecast of it; "How series were treated" says why.')
    return doc.sections(
        doc.Heading(text=(type_name(outlook.key.gpu_type), ": ", doc.toned(verdict, mood)), level=3),
        _peaks(outlook, _order_of(outlook, report), report) if outlook.weeks else nothing,
        _shortage(outlook, short, limit=limit) if short else None,
    )


def _order_of(outlook: SeriesOutlook, report: CapacityReport) -> OrderLine | None:
    return next((each for each in report.plan.orders if each.series == outlook.key), None)


def _peaks(outlook: SeriesOutlook, order: OrderLine | None, report: CapacityReport) -> doc.Chart:
    name = type_name(outlook.key.gpu_type)
    supply = [each for each in report.forecast.supply if each.gpu_type == outlook.key.gpu_type]
    by_day = {each.first_day: each for each in supply}
    numbers = []
    for number in _TOLD_WEEKS:
        if number > len(outlook.weeks):
            break
        week = outlook.weeks[number - 1]
        there = by_day.get(week.first_day)
        usable = "" if there is None else f"; usable {_gpus(there.mean_gpus)} of {_gpus(there.installed)} installed"
        numbers.append(
            f"Week {number}, from {week.first_day}: peak {_gpus(week.at(0.5))} (median), at most "
            f"{_gpus(week.at(0.9))} with 90 %{usable}"
        )
    by_rule = sum(not each.is_vouched for each in outlook.weeks)
    if by_rule:
        numbers.append(f"{by_rule} of {len(outlook.weeks)} weeks are striped: no past window was that long")
    if not supply:
        numbers.append("What will be usable is not known")
    return _fan_picture(
        f"{name}: weekly peaks and what is usable",
        outlook,
        tuple(numbers),
        past=_past(report, outlook.key),
        there=_there(supply),
        short_from=_short_from(order),
        as_of=report.forecast.as_of,
        scale=Scale(divisor=1.0, unit="GPUs"),
    )


def _small(
    outlook: SeriesOutlook, order: OrderLine | None, limit: SeriesLimit | None, report: CapacityReport
) -> doc.Chart:
    first, last = outlook.weeks[0], outlook.weeks[-1]
    past = _past(report, outlook.key)
    scale = scale_of(outlook.key, [last.quantiles[-1], first.quantiles[-1], *(peak for _, peak in past)])
    found = _short_from(order)
    numbers = (
        f"Week 1: at most {scale.said(first.at(0.9))} with 90 %",
        f"Week {len(outlook.weeks)}: at most {scale.said(last.at(0.9))} with 90 %",
        _limit_words(limit, found, scale),
    )
    return _fan_picture(
        series_name(outlook.key),
        outlook,
        numbers,
        past=past,
        there=(),
        levels=_levels(limit, most=max(each.quantiles[-1] for each in outlook.weeks)),
        short_from=found,
        as_of=report.forecast.as_of,
        scale=scale,
        wide=336,
        height=180,
    )


def _limit_words(limit: SeriesLimit | None, passed_on: date | None, scale: Scale) -> str:
    if limit is None:
        return "No limit of it is known"
    share = "" if limit.usable == limit.limit else f", {percent(limit.usable / limit.limit)} of its limit,"
    passed = "are not passed" if passed_on is None else f"are passed from {passed_on} on"
    return f"{scale.said(limit.usable)}{share} {passed}"


def _levels(limit: SeriesLimit | None, *, most: float) -> tuple[tuple[float, str], ...]:
    """Return the lines to draw: what may be used and the limit itself, where they do not dwarf the forecast."""
    if limit is None:
        return ()
    lines = [(limit.usable, "may be used")]
    if limit.limit != limit.usable:
        lines.append((limit.limit, "limit"))
    return tuple(each for each in lines if each[0] <= _DWARFED * most)


def _fan_picture(
    title: str,
    outlook: SeriesOutlook,
    numbers: tuple[str, ...],
    *,
    past: Sequence[tuple[date, float]],
    there: Sequence[ThereWeek],
    levels: Sequence[tuple[float, str]] = (),
    short_from: date | None,
    as_of: date,
    scale: Scale,
    wide: int = _WIDE,
    height: int = 300,
) -> doc.Chart:
    def drawn_as(width: int, shown: Sequence[tuple[date, float]]) -> str:
        fan = Fan(
            title=title,
            said="; ".join(numbers),
            unit=scale.unit,
            past=[(each, peak / scale.divisor) for each, peak in shown],
            weeks=[
                FanWeek(
                    first_day=week.first_day,
                    median=week.at(0.5) / scale.divisor,
                    bands=tuple((week.at(low) / scale.divisor, week.at(high) / scale.divisor) for low, high in _LEVELS),
                    is_measured=week.is_vouched,
                )
                for week in outlook.weeks
            ],
            band_words=_BAND_WORDS,
            there=there,
            levels=[(value / scale.divisor, words) for value, words in levels],
            marked=short_from,
            marked_words="" if short_from is None else f"short from {short_from}",
            as_of=as_of,
        )
        return fan_svg(fan, width=width, height=height)

    narrow_past = past[-_NARROW_PAST_WEEKS:]
    return doc.Chart(
        title=title,
        svg=drawn_as(wide, past if wide > _NARROW else narrow_past),
        is_small=wide <= _NARROW,
        narrow=drawn_as(_NARROW, narrow_past),
        numbers=numbers,
    )


def _shortage(outlook: SeriesOutlook, short: Sequence[ShortWeek], *, limit: float) -> doc.Chart:
    measured = {each.first_day for each in outlook.weeks if each.is_vouched}
    columns = [
        ShortColumn(
            first_day=each.first_day,
            probability=each.shortage_probability,
            is_measured=each.first_day in measured,
        )
        for each in short
    ]
    worst = max(short, key=lambda each: each.shortage_probability)
    over = [each for each in short if each.shortage_probability > limit]
    hours = sum(each.expected_short_gpu_hours for each in short)
    numbers = (
        f"Worst week: from {worst.first_day}, {chance_of_short(worst.shortage_probability)}; then "
        f"{_gpus(worst.expected_short_gpus)} GPUs are missing at the peak on average",
        f"{len(over)} of {len(short)} weeks are above the limit of {100 * limit:g} %"
        + (f", the first from {over[0].first_day}" if over else ""),
        f"GPU-hours expected to be missing over all weeks: {hours:,.0f}",
    )
    title = f"{type_name(outlook.key.gpu_type)}: how likely each week is short"
    said = "; ".join(numbers)
    return doc.Chart(
        title=title,
        svg=shortage_svg(columns, limit=limit, title=title, said=said, width=_WIDE),
        narrow=shortage_svg(columns, limit=limit, title=title, said=said, width=_NARROW),
        numbers=numbers,
    )


def _judged(key: SeriesKey, bounds: Sequence[BoundHeld]) -> doc.Chart:
    missed = [each for each in bounds if not each.is_held]
    numbers = (
        f"{len(bounds) - len(missed)} of {len(bounds)} bounds of 90 % held",
        *(
            f"Week from {each.first_day}: {_gpus(each.peak)} came, the bound was {_gpus(each.bound_90)}"
            for each in missed[:5]
        ),
        *((f"and {len(missed) - 5} more were passed",) if len(missed) > 5 else ()),
    )
    title = f"{type_name(key.gpu_type)}: what was forecast, and what came"
    fan = Fan(
        title=title,
        said="; ".join(numbers),
        unit="GPUs",
        weeks=[
            FanWeek(first_day=each.first_day, median=each.median, bands=((each.median, each.bound_90),))
            for each in bounds
        ],
        band_words=("median to bound of 90 %",),
        dots=[(each.first_day, each.peak, each.is_held) for each in bounds],
    )
    return doc.Chart(
        title=title,
        svg=fan_svg(fan, width=_WIDE, height=220),
        narrow=fan_svg(fan, width=_NARROW, height=220),
        numbers=numbers,
    )


def _there(supply: Sequence[SupplyWeek]) -> tuple[ThereWeek, ...]:
    return tuple(
        ThereWeek(
            first_day=each.first_day,
            low=usable_at(each, 0.05),
            middle=each.mean_gpus,
            high=usable_at(each, 0.95),
            whole=each.installed,
        )
        for each in supply
    )


def _past(report: CapacityReport, key: SeriesKey) -> tuple[tuple[date, float], ...]:
    return next((weeks for each, weeks in report.history if each == key), ())


def _short_from(order: OrderLine | None) -> date | None:
    return None if order is None else order.short_from


def _growth(outlook: SeriesOutlook) -> float:
    first = outlook.weeks[0].at(0.9)
    return outlook.weeks[-1].at(0.9) / first if first > 0 else 0.0


def _gpus(count: float) -> str:
    return f"{count:,.0f}" if count >= 10 or count == 0 else f"{count:,.1f}"
