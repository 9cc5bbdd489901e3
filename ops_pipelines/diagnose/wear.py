"""When a part will be worn out: its readings, a robust slope, and the dates between which it ends.

Reads; what the readings come to is `wear_out`.

Readings over days in, forecasts out: a date with bounds, "no trend", or "too little to say". The slope is Theil and
Sen's (the median of the slopes of all pairs), its interval that of Sen (1968) by Kendall's variance: neither asks for a
distribution, and a few wild readings do not move them. Where the quantity is a sum of what happened (wear, remapped
rows), one day's excess stays for ever and that interval is far too narrow (docs/HISTORY.md has the numbers): there it
is widened to what ten intervals of the time say by themselves. A reading that falls where it can only rise is another
part or a counter that began again: what came before is not its past. What is worn by now is a finding of the detectors,
not of this module.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from math import floor, inf, sqrt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

# -- readings of what wears, from rows of the lake --


BANK_COLUMNS = (
    "remap_banks_none_count",
    "remap_banks_low_count",
    "remap_banks_partial_count",
    "remap_banks_high_count",
    "remap_banks_max_count",
)
"""Banks by what is left of their 8 spare rows, the worst class first."""
_IDENTITIES = {"node", "device", "time", "gpu_serial", "gpu_uuid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """One part's readings of one quantity, oldest first."""

    part: str
    """`node/device`, of a GPU its serial or UUID."""
    at_seconds: NDArray[np.float64]
    """Seconds since 1970, strictly rising."""
    values: NDArray[np.float64]


def readings_of(hours: Iterable[pa.Table], columns: Collection[str]) -> pa.Table:
    """Return the newest row of each part in each hour, with these columns alone. Hours are large: each is released."""
    wanted = set(columns)
    kept: list[pa.Table] = []
    for rows in hours:
        names = [each for each in rows.column_names if each in wanted | _IDENTITIES]
        values = [each for each in names if each in wanted]
        if not rows.num_rows or not values:
            continue
        told = rows.select(names).filter(_any_valid(rows, values)).sort_by("time")
        place = told.append_column("place", pa.array(range(told.num_rows)))
        newest = place.group_by(["node", "device"]).aggregate([("place", "max")]).column("place_max")
        kept.append(told.take(newest))
    return pa.concat_tables(kept, promote_options="default") if kept else pa.table({})


def _any_valid(rows: pa.Table, columns: Sequence[str]) -> pa.ChunkedArray:
    is_told = pc.is_valid(rows.column(columns[0]))
    for column in columns[1:]:
        is_told = pc.or_(is_told, pc.is_valid(rows.column(column)))
    return is_told


def read_series(rows: pa.Table, column: str) -> Iterable[Readings]:
    """Yield each part's readings of a column, the last of each hour. A GPU goes by its serial, else its UUID.

    Rows without a value are no readings; of two at one time the greater counts.
    """
    if column not in rows.column_names:
        return
    rows = rows.filter(pc.is_finite(pc.cast(rows.column(column), pa.float64())))
    names = _names(rows)
    seconds = pc.cast(pc.cast(rows.column("time"), pa.timestamp("us", tz="UTC")), pa.int64()).to_numpy() / 1e6
    values = pc.cast(rows.column(column), pa.float64()).to_numpy()
    hours = np.floor(seconds / 3600)
    order = np.lexsort((values, seconds, names))
    for place in np.split(order, np.flatnonzero(names[order][1:] != names[order][:-1]) + 1):
        if not len(place):
            continue
        is_last = np.append(hours[place][1:] != hours[place][:-1], True)
        kept = place[is_last]
        yield Readings(part=str(names[kept[0]]), at_seconds=seconds[kept], values=values[kept])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """What is left of the spare rows of one GPU, by its worst bank."""

    part: str
    worst: str
    """none, low, partial, high or max."""
    bank_count: int
    """Banks in that class."""
    explanation: str


def worst_banks(rows: pa.Table) -> tuple[Reserve, ...]:
    """Return the worst class of banks of each GPU at its newest reading, where it is low or worse; worst first.

    A bank without spare rows cannot repair its next uncorrectable error, however many rows the GPU has left.
    """
    known = [name for name in BANK_COLUMNS if name in rows.column_names]
    if not known:
        return ()
    newest: dict[str, tuple[datetime, dict[str, float]]] = {}
    listed = rows.select([*known, "time"]).to_pylist()
    for name, row in zip(_names(rows), listed, strict=True):
        counts = {column: row[column] for column in known if row[column] is not None}
        if counts and (name not in newest or row["time"] >= newest[name][0]):
            newest[name] = (row["time"], counts)
    found: list[tuple[int, Reserve]] = []
    for name, (_, counts) in newest.items():
        worst = next((column for column in BANK_COLUMNS[:2] if counts.get(column, 0) > 0), None)
        if worst is None:
            continue
        word = worst.removeprefix("remap_banks_").removesuffix("_count")
        banks = int(counts[worst])
        what = (
            "the next uncorrectable error there cannot be repaired: plan an RMA" if word == "none" else "nearly used up"
        )
        text = f"{banks} bank(s) with {word} spare rows: {what}"
        found.append(
            (BANK_COLUMNS.index(worst), Reserve(part=str(name), worst=word, bank_count=banks, explanation=text))
        )
    return tuple(each for _, each in sorted(found, key=lambda each: (each[0], -each[1].bank_count, each[1].part)))


def _names(rows: pa.Table) -> NDArray[np.object_]:
    place = pc.binary_join_element_wise(rows.column("node"), rows.column("device"), "/")
    columns = [rows.column(name) for name in ("gpu_serial", "gpu_uuid") if name in rows.column_names]
    names: NDArray[np.object_] = np.array(pc.coalesce(*columns, place).to_pylist(), dtype=object)
    return names


# -- when a part will be worn out --


MIN_POINTS = 8
"""# Assumption: fewer daily readings give a slope by accident."""
MIN_DAYS = 14.0
"""# Assumption: a shorter interval shows a week's work, not a life."""
FAR = timedelta(days=5 * 365)
"""What lies further ahead is no plan's business: it is reported as "not before"."""
_CONFIDENCE_Z = 1.96
"""95 %, both sides."""
_TREND_Z = 3.29
"""One in 2,000 links without a trend may seem to have one: there are thousands of links, and dates are planned by."""
_STUDENT = {6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Stretches -> the 97.5 % point of Student's distribution with one degree of freedom less."""
_DAY_SECONDS = 86_400.0
_POINTS_AT_MOST = 400
"""Newest readings that are looked at: all pairs of more cost more than they tell."""


class Outlook(Enum):
    """What can be stated of the future."""

    REACHED = "reached"
    """It is at its limit now."""
    WEARS_OUT = "wears_out"
    """The whole interval of the slope leads to the limit, and the early bound lies near enough to plan for."""
    FAR_OFF = "far_off"
    """It moves towards the limit, and is not there for years."""
    NO_TREND = "no_trend"
    """It does not move, or moves both ways."""
    TOO_LITTLE = "too_little"
    """Too few readings, or too short a time: nothing is stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WearLimit:
    """One quantity that wears, and where its end is."""

    column: str
    table: str
    limit: float
    is_rate: bool
    """The column is a counter, and what nears the limit is how fast it grows, per hour."""
    what: str
    unit: str
    source: str


WEAR_LIMITS = (
    WearLimit(
        column="wear_ratio",
        table="storage_telemetry",
        limit=1.0,
        is_rate=False,
        what="rated endurance used",
        unit="",
        source="NVMe specification, SMART log, Percentage Used: 100 is the endurance that the maker vouches for",
    ),
    WearLimit(
        column="row_remap_uncorrectable_count",
        table="gpu_telemetry",
        limit=512.0,
        is_rate=False,
        what="rows remapped for uncorrectable errors",
        unit="rows",
        source="NVIDIA GPU memory error management: 512 a GPU, 8 a bank",
    ),
    WearLimit(
        column="symbol_error_count",
        table="fabric_telemetry",
        limit=120.0,
        is_rate=True,
        what="symbol errors an hour",
        unit="/h",
        source="NVSentinel: 120 an hour breaks the bit error ratio of 1e-12 that IBTA asks for",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Theil and Sen's slope with its interval (95 %, unless asked otherwise), per second."""

    median: float
    low: float
    high: float
    level: float
    """The line's height at the newest reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What one quantity of one part comes to."""

    part: str
    quantity: str
    outlook: Outlook
    value: float | None
    """The newest reading, or growth an hour; None if there is none."""
    limit: float
    point_count: int
    """Readings since the part was built in, or its counter began again."""
    days: float
    slope_per_day: float | None
    reaches_at: datetime | None
    """When the line meets the limit; None without a trend that leads there."""
    earliest_at: datetime | None
    latest_at: datetime | None
    """None besides a known `earliest_at`: so slow at the least that it is years."""
    lead_days: float | None
    """From now to `earliest_at`: the time that is left to act."""
    explanation: str
    source: str


def theil_sen(
    at_seconds: NDArray[np.float64], values: NDArray[np.float64], *, deviations: float = _CONFIDENCE_Z
) -> Slope:
    """Return the median of the slopes of all pairs, and Sen's interval so many standard deviations wide.

    Raises ValueError below three points.

    `at_seconds` is strictly rising. With few points the interval is unbounded: it then says that nothing is known.
    """
    count = len(values)
    if count < 3:
        raise ValueError(f"{count} points; a slope with an interval needs three or more")
    first, second = np.triu_indices(count, k=1)
    slopes = np.sort((values[second] - values[first]) / (at_seconds[second] - at_seconds[first]))
    spread = deviations * sqrt(count * (count - 1) * (2 * count + 5) / 18)
    below = floor((len(slopes) - spread) / 2)
    above = len(slopes) - below - 1
    median = float(np.median(slopes))
    low, high = (float(slopes[below]), float(slopes[above])) if below >= 0 else (-inf, inf)
    level = float(np.median(values - median * (at_seconds - at_seconds[-1])))
    return Slope(median=median, low=low, high=high, level=level)


def widen_by_stretches(slope: Slope, at_seconds: NDArray[np.float64], values: NDArray[np.float64]) -> Slope:
    """Return the slope with an interval that also holds for sums: Student's, over the rates of up to ten intervals.

    Takes 7 points or more; raises ValueError below.
    """
    count = min(10, len(values) - 1)
    if count not in _STUDENT:
        raise ValueError(f"{len(values)} points; the interval of a sum needs 7 or more")
    edges = np.linspace(at_seconds[0], at_seconds[-1], count + 1)
    rates = np.diff(np.interp(edges, at_seconds, values)) / np.diff(edges)
    mean, half = float(rates.mean()), _STUDENT[count] * float(rates.std(ddof=1)) / sqrt(count)
    return replace(slope, low=min(slope.low, mean - half), high=max(slope.high, mean + half))


def forecast(readings: Readings, limit: WearLimit, *, now: datetime) -> Forecast:
    """Return when a part meets a limit from below, by the readings since it last began again. Later ones are not known.

    Nothing is stated from fewer than MIN_POINTS readings or less than MIN_DAYS.
    """
    known = readings.at_seconds <= now.timestamp()
    at, values = _since_begun_anew(readings.at_seconds[known], readings.values[known])
    if limit.is_rate:
        at, values = _growth_per_hour(readings.at_seconds[known], readings.values[known])
    at, values = at[-_POINTS_AT_MOST:], values[-_POINTS_AT_MOST:]
    said = _Said(readings.part, limit, at, values)
    if len(values) and _is_reached(values, limit):
        return said.forecast(Outlook.REACHED, f"{said.now_text}: at its limit of {said.limit_text}")
    if len(values) < MIN_POINTS or said.days < MIN_DAYS:
        needed = f"{MIN_POINTS} readings over {MIN_DAYS:.0f} days are needed"
        return said.forecast(Outlook.TOO_LITTLE, f"{len(values)} reading(s) over {said.days:.1f} days; {needed}")
    slope = theil_sen(at, values)
    if limit.is_rate:
        is_rising = theil_sen(at, values, deviations=_TREND_Z).low > 0
    else:
        slope = widen_by_stretches(slope, at, values)
        is_rising = slope.low > 0 and slope.median > 0
    if not is_rising:
        between = f"{slope.low * _DAY_SECONDS:.2g} to {slope.high * _DAY_SECONDS:.2g}"
        return said.forecast(Outlook.NO_TREND, f"{said.now_text}: no trend ({between} {limit.unit} a day)", slope=slope)
    # Whichever of line and newest reading is nearer to the limit: the date must not lie too late.
    left = max(0.0, limit.limit - max(slope.level, float(values[-1]) if not limit.is_rate else slope.level))
    begin = datetime.fromtimestamp(float(at[-1]), tz=now.tzinfo)
    likely, early, late = (_after(begin, left / each) for each in (slope.median, slope.high, slope.low))
    return said.trend(slope, likely=likely, early=early, late=late, now=now)


WEAR_COLUMNS: Mapping[str, tuple[str, ...]] = {
    table: tuple(limit.column for limit in WEAR_LIMITS if limit.table == table)
    for table in sorted({limit.table for limit in WEAR_LIMITS})
}
"""Table of the lake -> the columns of it that wear."""


def forecast_tables(tables: Mapping[str, pa.Table], *, now: datetime) -> tuple[Forecast, ...]:
    """Return the forecasts of every part in the tables of the lake, the shortest lead first. Tables may span days.

    `tables` are by name; those that have no limit, and columns that are missing, are passed over.
    """
    found = [
        forecast(readings, limit, now=now)
        for limit in WEAR_LIMITS
        if limit.table in tables
        for readings in read_series(tables[limit.table], limit.column)
    ]
    order = list(Outlook)
    return tuple(
        sorted(
            found,
            key=lambda each: (
                order.index(each.outlook),
                inf if each.lead_days is None else each.lead_days,
                each.quantity,
                each.part,
            ),
        )
    )


def _since_begun_anew(
    at: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    falls = np.flatnonzero(np.diff(values) < 0)
    begin = int(falls[-1]) + 1 if len(falls) else 0
    return at[begin:], values[begin:]


def _growth_per_hour(
    at: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how fast a counter grew between readings; over a fall nothing is known. A counter that restarts is the
    same link, so what came before still counts."""
    grown = np.diff(values)
    kept = grown >= 0
    return at[1:][kept], grown[kept] / np.diff(at)[kept] * 3600


def _is_reached(values: NDArray[np.float64], limit: WearLimit) -> bool:
    newest = float(np.median(values[-3:])) if limit.is_rate else float(values[-1])
    return newest >= limit.limit


def _after(begin: datetime, seconds: float) -> datetime | None:
    """Return the time so long after `begin`; None if that is years away."""
    return begin + timedelta(seconds=seconds) if seconds <= FAR.total_seconds() else None


@dataclass(frozen=True, slots=True)
class _Said:
    """What is common to all forecasts of one series."""

    part: str
    limit: WearLimit
    at: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def days(self) -> float:
        return float(self.at[-1] - self.at[0]) / _DAY_SECONDS if len(self.at) else 0.0

    @property
    def now_text(self) -> str:
        return f"{self._number(float(self.values[-1]))} {self.limit.what}"

    @property
    def limit_text(self) -> str:
        return self._number(self.limit.limit)

    def _number(self, value: float) -> str:
        return f"{value:.0%}" if self.limit.unit == "" else f"{value:.4g}"

    def trend(
        self, slope: Slope, *, likely: datetime | None, early: datetime | None, late: datetime | None, now: datetime
    ) -> Forecast:
        if early is None:
            years = FAR.days // 365
            return self.forecast(
                Outlook.FAR_OFF, f"{self.now_text}: not at its limit within {years} years", slope=slope
            )
        until = f"{late:%Y-%m-%d}" if late is not None else "years later"
        likely_text = f", most likely {likely:%Y-%m-%d}" if likely is not None else ""
        lead_days = max(0.0, (early - now).total_seconds() / _DAY_SECONDS)
        return self.forecast(
            Outlook.WEARS_OUT,
            f"{self.now_text}: at {self.limit_text} between {early:%Y-%m-%d} and {until}{likely_text}; "
            f"{lead_days:.0f} days left at the least ({len(self.values)} readings over {self.days:.0f} days)",
            slope=slope,
            dates=(likely, early, late),
            lead_days=lead_days,
        )

    def forecast(
        self,
        outlook: Outlook,
        explanation: str,
        *,
        slope: Slope | None = None,
        dates: Sequence[datetime | None] = (None, None, None),
        lead_days: float | None = None,
    ) -> Forecast:
        likely, early, late = dates
        return Forecast(
            part=self.part,
            quantity=self.limit.column,
            outlook=outlook,
            value=float(self.values[-1]) if len(self.values) else None,
            limit=self.limit.limit,
            point_count=len(self.values),
            days=self.days,
            slope_per_day=None if slope is None else slope.median * _DAY_SECONDS,
            reaches_at=likely,
            earliest_at=early,
            latest_at=late,
            lead_days=lead_days if outlook is not Outlook.REACHED else 0.0,
            explanation=explanation,
            source=self.limit.source,
        )
