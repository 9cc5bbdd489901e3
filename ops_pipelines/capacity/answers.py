"""Capacity as JSON: what the commands answer, and a whole report as it is kept and read back.

The keys of a forecast and of a plan are a contract with the scripts of operators. A whole report has each value under
the names of its fields, dates as ISO, members of enums by their value; numbers are rounded to nine significant digits,
so that the same report gives the same bytes on any machine. Keys are sorted.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import date
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

from ops_pipelines.capacity.chances import Tail, chance_short
from ops_pipelines.capacity.model import (
    LEVELS,
    CapacityForecast,
    CapacityPlan,
    CapacityReport,
    Resource,
    SeriesOutlook,
    SupplyWeek,
    WeekPeak,
)
from ops_pipelines.report.document import fields_of


def forecast_json(forecast: CapacityForecast, *, shortage_probability_max: float) -> dict[str, object]:
    """Return what `ops-pipelines capacity forecast --json` prints: days as ISO dates."""
    supply = {(each.gpu_type, each.first_day): each for each in forecast.supply}
    return {
        "cluster": forecast.cluster,
        "quarter": forecast.quarter,
        "as_of": forecast.as_of.isoformat(),
        "timezone": forecast.timezone,
        "vouched_weeks": forecast.vouched_weeks,
        "shortage_probability_max": shortage_probability_max,
        "weeks": [
            _json_week(outlook, number, week, supply.get((outlook.key.gpu_type, week.first_day)))
            for outlook in forecast.with_projects
            for number, week in enumerate(outlook.weeks, start=1)
        ],
        "series": [_json_series(each) for each in forecast.outlooks],
        "notes": forecast.notes,
    }


def _json_week(outlook: SeriesOutlook, number: int, week: WeekPeak, supply: SupplyWeek | None) -> dict[str, object]:
    chance = chance_of(week, supply)
    return {
        "gpu_type": outlook.key.gpu_type,
        "week": number,
        "first_day": week.first_day.isoformat(),
        "peak_median": round(week.at(0.5), 3),
        "peak_90": round(week.at(0.9), 3),
        "usable": None if supply is None else round(supply.mean_gpus, 3),
        "installed": None if supply is None else round(supply.installed, 3),
        "shortage_probability": None if chance is None else round(chance, 6),
        "is_vouched": week.is_vouched,
    }


def _json_series(outlook: SeriesOutlook) -> dict[str, object]:
    highest = max((week.at(0.9) for week in outlook.weeks), default=None)
    return {
        "resource": outlook.key.resource,
        "gpu_type": outlook.key.gpu_type,
        "name": outlook.key.name,
        "treatment": outlook.treatment,
        # Bytes and ratios stand side by side here: digits that count, whatever the size.
        "peak_90": None if highest is None else float(f"{highest:.9g}"),
        "notes": outlook.notes,
    }


def plan_json(plan: CapacityPlan) -> dict[str, object]:
    """Return what `ops-pipelines capacity plan --json` prints: whole cents, days as ISO dates."""
    return {
        "cluster": plan.cluster,
        "quarter": plan.quarter,
        "as_of": plan.as_of.isoformat(),
        "currency": plan.currency,
        "shortage_probability_max": plan.shortage_probability_max,
        "orders": [
            {
                "what": each.what,
                "gpu_type": each.gpu_type,
                "resource": each.series.resource,
                "name": each.series.name,
                "count": each.count,
                "order_by": _iso(each.order_by),
                "is_overdue": each.is_overdue,
                "short_from": _iso(each.short_from),
                "earliest_relief": _iso(each.earliest_relief),
                "cents": each.cents,
                "why": each.why,
            }
            for each in plan.orders
        ],
        "alternatives": [
            {
                "gpu_type": each.gpu_type,
                "way": each.way,
                "gpus": round(each.gpus, 3),
                "worst_shortage_probability": round(each.worst_shortage_probability, 6),
                "short_gpu_hours": round(each.short_gpu_hours, 3),
                "cents": each.cents,
                "takes_effect_on": _iso(each.takes_effect_on),
                "said": each.said,
            }
            for each in plan.alternatives
        ],
        "regret_ratios": plan.regret_ratios,
        "regret": [
            {
                "gpu_type": each.gpu_type,
                "nodes": each.nodes,
                "short_gpu_hours": round(each.short_gpu_hours, 3),
                "idle_gpu_hours": round(each.idle_gpu_hours, 3),
                "cents_by_ratio": each.cents_by_ratio,
                "regret_by_ratio": each.regret_by_ratio,
            }
            for each in plan.regret
        ],
        "refresh": [
            {**fields_of(each, "asset racks gpu_type gpus age_months replacement is_due"), "said": each.said}
            for each in plan.refresh
        ],
        "notes": plan.notes,
    }


def _iso(day: date | None) -> str | None:
    return None if day is None else day.isoformat()


def chance_of(week: WeekPeak, supply: SupplyWeek | None) -> float | None:
    return None if supply is None else chance_short(Tail(week), supply.points)


DOCUMENT_VERSION = 1
"""Rises when a field goes or changes its meaning; a new one with a default needs no new version."""
_VERSION = "version"
_DIGITS = 9
_MOST = 1e30
"""No number of a report is larger; pages can still reckon with it."""
_YEARS, _FIRST_YEAR, _LAST_YEAR = 20, 1970, 9000


def document_of(report: CapacityReport) -> dict[str, object]:
    """Return the report as what JSON has; raises ValueError where a number is not finite."""
    told = _told(report, CapacityReport, "report")
    assert isinstance(told, dict)  # a dataclass is reported as a dict, always
    return {_VERSION: DOCUMENT_VERSION, **told}


def report_of(document: Mapping[str, object]) -> CapacityReport:
    """Return the report that was kept. Raises ValueError: it says where something else is than is expected."""
    version = document.get(_VERSION)
    if type(version) is not int or version != DOCUMENT_VERSION:
        raise ValueError(
            f"a capacity report of version {version!r}; this program reads version {DOCUMENT_VERSION}: "
            "read it with the program that wrote it, or make it again"
        )
    rest = {name: value for name, value in document.items() if name != _VERSION}
    found = _read(rest, CapacityReport, "report")
    assert isinstance(found, CapacityReport)  # what was asked for
    _refuse_impossible(found)
    return found


def _refuse_impossible(report: CapacityReport) -> None:
    """Raise ValueError for what has the right shape and can be no week or series: pages reckon with them."""
    forecast = report.forecast
    held = () if report.hindsight is None else report.hindsight.bounds
    outlooks = (*forecast.outlooks, *forecast.with_projects)
    keys = (
        *(each.key for each in outlooks),
        *(each.key for each in held),
        *(key for key, _ in report.history),
        *(each.series for each in report.plan.orders),
    )
    known = {each.value for each in Resource}
    for key in keys:
        if key.resource not in known:
            raise _not_as(key.resource, f"one of {', '.join(sorted(known))}", "the resource of a series")
    ratios = len(report.plan.regret_ratios)
    for row in report.plan.regret:
        if not len(row.cents_by_ratio) == len(row.regret_by_ratio) == ratios:
            raise _not_as(len(row.cents_by_ratio), f"{ratios} ratios", f"the regret of {row.gpu_type} {row.nodes}")
    weeks = [week for each in outlooks for week in each.weeks]
    for week in weeks:
        if len(week.quantiles) != len(LEVELS):
            raise _not_as(len(week.quantiles), f"{len(LEVELS)} quantiles", f"the week of {week.first_day}")
    for at in (
        *(day for _, peaks in report.history for day, _ in peaks),
        *(each.first_day for each in weeks),
        *(each.first_day for each in forecast.supply),
        *(each.first_day for each in report.plan.short_weeks),
        *(each.first_day for each in held),
        forecast.as_of,
    ):
        if abs(at.year - forecast.as_of.year) > _YEARS or not _FIRST_YEAR <= at.year <= _LAST_YEAR:
            raise _not_as(at, f"a day within {_YEARS} years of the forecast's", "the first day of a week")


def json_of(report: CapacityReport) -> bytes:
    """Return the document as the bytes that are kept: sorted keys, a line's end at its end."""
    text = json.dumps(document_of(report), sort_keys=True, ensure_ascii=False, allow_nan=False, indent=1)
    return (text + "\n").encode("utf-8")


def report_in(content: bytes) -> CapacityReport:
    """Return the report that bytes hold. Raises ValueError, also where they are no JSON."""
    try:
        document = json.loads(content)
    except RecursionError as problem:
        raise ValueError("a capacity report is nested too deeply; no program wrote that") from problem
    if not isinstance(document, dict):
        raise ValueError(f"a capacity report is {type(document).__name__}; expected a JSON object")
    return report_of(document)


def round_number(number: float) -> float:
    """Return a number as it is reported: nine significant digits, and no negative zero."""
    return float(f"{number:.{_DIGITS}g}") + 0.0


def _told(value: object, kind: object, place: str) -> object:
    kind = _plain(kind)
    if _is_union(kind):
        return None if value is None else _told(value, _only(kind), place)
    if get_origin(kind) is tuple:
        assert isinstance(value, tuple)  # as the field is declared
        kinds = _kinds_of(kind, len(value), place)
        return [
            _told(each, of, f"{place}[{number}]") for number, (each, of) in enumerate(zip(value, kinds, strict=True))
        ]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {
            name: _told(getattr(value, name), of, f"{place}.{name}") for name, of in sorted(_hints(type(value)).items())
        }
    if kind is float:
        assert isinstance(value, int | float)
        if not math.isfinite(value):
            raise ValueError(f"{place} is {value}; expected a number that JSON has")
        return round_number(float(value))
    if isinstance(value, str | bool | int):
        return value
    raise ValueError(f"{place} is {type(value).__name__}; a report has no such value")


def _read(told: object, kind: object, place: str) -> object:
    kind = _plain(kind)
    if _is_union(kind):
        return None if told is None else _read(told, _only(kind), place)
    if get_origin(kind) is tuple:
        if not isinstance(told, list):
            raise _not_as(told, "a list", place)
        kinds = _kinds_of(kind, len(told), place)
        return tuple(
            _read(each, of, f"{place}[{number}]") for number, (each, of) in enumerate(zip(told, kinds, strict=True))
        )
    assert isinstance(kind, type)
    if is_dataclass(kind):
        return _read_fields(told, kind, place)
    try:
        if issubclass(kind, Enum):
            return kind(told)
        if kind is date and isinstance(told, str):
            return date.fromisoformat(told)
    except ValueError as problem:
        raise _not_as(told, f"one of {kind.__name__}", place) from problem
    if isinstance(told, int | float) and not isinstance(told, bool) and not abs(told) <= _MOST:
        raise _not_as("a number too large, or none", f"a number up to {_MOST:g}", place)
    if kind is float and isinstance(told, int | float) and not isinstance(told, bool):
        return float(told)
    if isinstance(told, str) and not _is_text(told):
        raise _not_as(ascii(told[:40]), "text that can be written", place)
    if isinstance(told, kind) and isinstance(told, bool) == (kind is bool):
        return told
    raise _not_as(told, kind.__name__, place)


def _read_fields(told: object, kind: type, place: str) -> object:
    if not isinstance(told, dict):
        raise _not_as(told, "an object", place)
    hints = _hints(kind)
    unknown = sorted(str(each) for each in told.keys() - hints.keys())
    if unknown:
        raise ValueError(f"{place} has {', '.join(unknown)[:200]}; expected only {', '.join(sorted(hints))}")
    missing = sorted(each.name for each in fields(kind) if each.name not in told and not _has_default(each))
    if missing:
        raise ValueError(f"{place} lacks {', '.join(missing)}")
    try:
        return kind(**{name: _read(told[name], of, f"{place}.{name}") for name, of in hints.items() if name in told})
    except TypeError as problem:
        raise ValueError(f"{place}: {problem}") from problem


def _is_text(told: str) -> bool:
    """Return whether it can be written: half of a pair of surrogates cannot."""
    try:
        told.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _not_as(told: object, expected: str, place: str) -> ValueError:
    return ValueError(f"{place} is {str(told)[:80]!r}; expected {expected}")


def _has_default(each: "Field[object]") -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


@cache
def _hints(kind: type) -> dict[str, object]:
    """Return the fields of a dataclass with what they hold."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _plain(kind: object) -> object:
    """Return what is behind a name of its own for a type, as int behind Cents."""
    while (behind := getattr(kind, "__supertype__", None)) is not None:
        kind = behind
    return kind


def _is_union(kind: object) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _only(kind: object) -> object:
    """Return the one kind beside None."""
    (only,) = (each for each in get_args(kind) if each is not NoneType)
    return only


def _kinds_of(kind: object, count: int, place: str) -> tuple[object, ...]:
    kinds = get_args(kind)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return (kinds[0],) * count
    if len(kinds) != count:
        raise ValueError(f"{place} has {count} values; expected {len(kinds)}")
    return tuple(kinds)
