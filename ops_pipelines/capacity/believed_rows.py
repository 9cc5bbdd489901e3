"""Rows of `daily_peaks` that are believed, and what is kept beside the days of a series.

A row's day is the local date of its beginning in the zone that it names, so that days continue where a cluster's zone
was changed. Of rows for one day the same numbers count once, the zone of now comes before another, and of two that
differ neither is believed. Nothing here fills or guesses.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.capacity.forecast.windows import WHOLE_RATIO, DailyPeaks, Flags, Floats, Places
from ops_pipelines.capacity.model import Resource, SeriesKey
from ops_pipelines.core.periods import day_begins
from ops_pipelines.core.proposal import GpuType

# -- rows of `daily_peaks` -> those that are believed, by series and local day --


KEY = ("resource", "gpu_type", "name")
NUMBERS = (
    *("peak", "mean", "limit", "hour_count", "near_peak_hours", "running_mean", "idle_mean", "waiting_mean"),
    "censored_hours",
)
_MOST = 1e24
"""No resource has so much in base units: bytes of a million million disks."""
_MOST_GPUS = 1e7
"""No cluster has so many."""
_OF_GPUS = frozenset({Resource.GPUS.value, Resource.GPUS_OUT.value, Resource.GPUS_STRANDED.value})
_MOST_HOURS = 25
"""Of the longest local day."""
_HOURS = ("hour_count", "near_peak_hours", "censored_hours")
_OPTIONAL = ("running_mean",)
"""Rows of other writers may lack it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Rows of one series that were not believed, or were joined."""

    key: SeriesKey
    words: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BelievedRows:
    """One row a series and local day."""

    keys: tuple[SeriesKey, ...]
    """In their order; of those with at least one row."""
    series: Places
    """Of each row: the place of its key."""
    day: Places
    """Of each row: its local date, as an ordinal."""
    columns: Mapping[str, Floats]
    """Of each row: `NUMBERS`; NaN where null."""
    faults: tuple[Fault, ...]
    other_zones: Mapping[str, tuple[date, date]]
    """Zones other than that of now, each with the first and the last day that was reported in it."""


def believe_rows(rows: pa.Table, *, until: date, zone: ZoneInfo) -> BelievedRows:
    """Return what counts of the rows of days before `until`. Raises KeyError where a column is missing."""
    missing = {*KEY, "time", "zone", *NUMBERS} - {*rows.column_names, *_OPTIONAL}
    if missing:
        raise KeyError(f"rows of daily_peaks lack {', '.join(sorted(missing))}")
    keys, series = _keys(rows)
    days = _Days(rows, zone=zone)
    columns = {name: _numbers(rows, name) for name in NUMBERS}
    is_kept = days.ordinal < until.toordinal()
    faults: list[Fault] = []
    for is_wrong, words in _wrong(keys, series, days=days, columns=columns):
        faults += _say(is_wrong & is_kept, words, keys=keys, series=series, days=days)
        is_kept &= ~is_wrong
    is_kept &= _settle_repeated(is_kept, keys=keys, series=series, days=days, columns=columns, faults=faults)
    used, place = np.unique(series[is_kept], return_inverse=True)
    return BelievedRows(
        keys=tuple(keys[each] for each in used.tolist()),
        series=place.astype(np.int64),
        day=days.ordinal[is_kept],
        columns={name: column[is_kept] for name, column in columns.items()},
        faults=tuple(faults),
        other_zones=days.others(is_kept),
    )


class _Days:
    """The local day of each row, by the zone that it names. What cannot be a day is 0."""

    def __init__(self, rows: pa.Table, *, zone: ZoneInfo) -> None:
        zones = rows["zone"].combine_chunks().cast(pa.string()).dictionary_encode(null_encoding="encode")
        self.names: list[str] = [str(each or "") for each in zones.dictionary.to_pylist()]
        self.zone = zones.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self.ordinal = np.zeros(rows.num_rows, dtype=np.int64)
        self.whole = np.zeros(rows.num_rows, dtype=np.int64)
        """Hours of the whole day."""
        self.now = zone.key
        times, place = np.unique(
            rows["time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy(), return_inverse=True
        )
        codes, back = np.unique(place * len(self.names) + self.zone, return_inverse=True)
        ordinals, wholes = np.zeros(len(codes), dtype=np.int64), np.zeros(len(codes), dtype=np.int64)
        known = [_zone(name) for name in self.names]
        for number, code in enumerate(codes.tolist()):
            own = known[code % len(self.names)]
            if own is not None:
                at = datetime.fromtimestamp(int(times[code // len(self.names)]) // 1_000_000, own)
                after = at.date() + timedelta(days=1)
                ordinals[number] = at.date().toordinal()
                length = day_begins(after, zone=own) - day_begins(at.date(), zone=own)
                wholes[number] = length // timedelta(hours=1)
        if len(codes):
            self.ordinal, self.whole = ordinals[back], wholes[back]

    def others(self, is_kept: Flags) -> dict[str, tuple[date, date]]:
        found = {}
        for place, name in sorted(enumerate(self.names), key=lambda each: each[1]):
            days = self.ordinal[is_kept & (self.zone == place)]
            if name != self.now and len(days):
                found[name] = (date.fromordinal(int(days.min())), date.fromordinal(int(days.max())))
        return found


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _keys(rows: pa.Table) -> tuple[list[SeriesKey], Places]:
    """Return the series in their order, and the place of each row's."""
    if not rows.num_rows:
        return [], np.zeros(0, dtype=np.int64)
    encoded = [pc.fill_null(rows[name].cast(pa.string()), "").combine_chunks().dictionary_encode() for name in KEY]
    code = np.zeros(rows.num_rows, dtype=np.int64)
    for each in encoded:
        code = code * len(each.dictionary) + each.indices.to_numpy(zero_copy_only=False)
    present, place = np.unique(code, return_inverse=True)
    keys = []
    for value in present.tolist():
        words = []
        for each in reversed(encoded):
            words.append(each.dictionary[value % len(each.dictionary)].as_py())
            value //= len(each.dictionary)
        name, gpu_type, resource = words
        keys.append(SeriesKey(resource=resource, gpu_type=GpuType(gpu_type), name=name))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    rank = np.empty(len(keys), dtype=np.int64)
    rank[order] = np.arange(len(keys))
    return [keys[each] for each in order], rank[place]


def _numbers(rows: pa.Table, name: str) -> Floats:
    if name not in rows.column_names:
        return np.full(rows.num_rows, np.nan)
    # A whole number that no float has exactly is no reason to stop: it is refused as too many.
    found: Floats = rows[name].cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
    return found


def _wrong(
    keys: Sequence[SeriesKey], series: Places, *, days: _Days, columns: Mapping[str, Floats]
) -> Iterator[tuple[Flags, str]]:
    """Yield which rows cannot be true, and why."""
    resources = {each.value for each in Resource}
    is_stranger = np.array([key.resource not in resources for key in keys], dtype=bool)
    yield is_stranger[series], f"is none of {', '.join(sorted(resources))}"
    yield days.ordinal == 0, "names no time zone; expected one such as Asia/Shanghai"
    for name in ("peak", "mean"):
        yield np.isnan(columns[name]), f"has no {name}; expected a number of 0 or more"
    for name in NUMBERS:
        yield columns[name] > _MOST, f"has a {name} without end or beyond {_MOST:g}; expected a number"
        yield columns[name] < 0, f"has a {name} below 0; expected 0 or more"
    for name in _HOURS:
        yield columns[name] > _MOST_HOURS, f"has a {name} above {_MOST_HOURS}; expected no more than a day has"
    is_of_gpus = np.array([key.resource in _OF_GPUS for key in keys], dtype=bool)
    yield is_of_gpus[series] & (columns["peak"] > _MOST_GPUS), f"has a peak beyond {_MOST_GPUS:g} GPUs; no cluster does"
    highest = np.minimum(columns["peak"], _MOST) * (1 + 1e-9) + 1e-9
    yield columns["mean"] > highest, "has a mean above its peak; expected none higher"
    yield columns["hour_count"] < WHOLE_RATIO * days.whole, "is reported by less than three quarters of the hours"


def _say(is_it: Flags, words: str, *, keys: Sequence[SeriesKey], series: Places, days: _Days) -> list[Fault]:
    """Return a sentence a series: how many rows, and which was the first."""
    if not is_it.any():
        return []
    first: dict[int, int] = {}
    for place, day in zip(series[is_it].tolist(), days.ordinal[is_it].tolist(), strict=True):
        first[place] = min(day, first.get(place, day))
    counts = Counter(series[is_it].tolist())
    return [
        Fault(
            key=keys[place],
            words=f"{counts[place]} row{'s' if counts[place] > 1 else ''} left out{_since(first[place])}: {words}",
        )
        for place in sorted(first)
    ]


def _since(ordinal: int) -> str:
    return f", the first of {date.fromordinal(ordinal)}" if ordinal else ""


def _settle_repeated(
    is_kept: Flags,
    *,
    keys: Sequence[SeriesKey],
    series: Places,
    days: _Days,
    columns: Mapping[str, Floats],
    faults: list[Fault],
) -> Flags:
    """Return which rows stay where a day of a series has several; notes of each other why it does not."""
    stays = np.ones(len(series), dtype=bool)
    rows = np.flatnonzero(is_kept)
    order = rows[np.lexsort((rows, days.ordinal[rows], series[rows]))]
    same = (series[order][1:] == series[order][:-1]) & (days.ordinal[order][1:] == days.ordinal[order][:-1])
    if not same.any():
        return stays
    differs, again, elsewhere = (np.zeros(len(series), dtype=bool) for _ in range(3))
    for group in np.split(order, np.flatnonzero(~same) + 1):
        if len(group) == 1:
            continue
        here = [each for each in group.tolist() if days.names[days.zone[each]] == days.now]
        if here and len(here) < len(group):
            elsewhere[[each for each in group.tolist() if each not in here]] = True
            group = np.array(here)
        told = {tuple(np.nan_to_num(columns[name][each], nan=-1.0) for name in NUMBERS) for each in group.tolist()}
        if len(told) > 1:
            differs[group] = True
        else:
            again[group[1:]] = True
    for is_it, words in (
        (elsewhere, f"of another time zone, where {days.now} reports the same day"),
        (differs, "tell one day differently, and neither is believed; materialise daily_peaks of it again"),
        (again, "tell a day again with the same numbers, and count once"),
    ):
        faults += _say(is_it, words, keys=keys, series=series, days=days)
    return stays & ~differs & ~again & ~elsewhere


# -- what is kept beside the days of a series --


RECENT_DAYS = 91
MEANS_DAYS = 365
_OF_MEANS = frozenset({Resource.GPUS_OUT, Resource.GPUS_STRANDED, Resource.RACK_WATTS})


@dataclass(slots=True, kw_only=True)
class SeriesOfResource:
    """What `history` makes its value of."""

    keys: tuple[SeriesKey, ...]
    series: DailyPeaks
    sums: tuple[SeriesKey, ...] = ()
    members: tuple[tuple[int, ...], ...] = ()
    summed: Floats | None = None
    limits: dict[SeriesKey, float] = field(default_factory=dict)
    near_peak_hours: dict[SeriesKey, float] = field(default_factory=dict)
    idle_ratio: dict[SeriesKey, float] = field(default_factory=dict)
    means: dict[SeriesKey, tuple[float, ...]] = field(default_factory=dict)
    notes: dict[SeriesKey, list[str]] = field(default_factory=lambda: defaultdict(list))


def measure(
    found: SeriesOfResource,
    resource: Resource,
    keys: Sequence[SeriesKey],
    tables: Mapping[str, Floats],
    *,
    notes: dict[SeriesKey, list[str]],
) -> None:
    """Put into `found` what the rows' other columns tell of each series, sums too; `tables` are (day, series)."""
    for place, key in enumerate(keys):
        peak = tables["peak"][:, place]
        told = np.flatnonzero(~np.isnan(peak))
        limit = tables["limit"][:, place]
        limits = limit[told[-1:]] if resource is Resource.GPUS else limit[told]
        limits = limits[~np.isnan(limits)]
        if len(limits):
            found.limits[key] = float(limits[-1])
        recent = {name: table[-RECENT_DAYS:, place] for name, table in tables.items()}
        hours = recent["near_peak_hours"][~np.isnan(recent["near_peak_hours"])]
        if len(hours):
            found.near_peak_hours[key] = float(hours.mean())
        if resource is Resource.GPUS:
            ratio = _idle_ratio(recent)
            if ratio is not None:
                found.idle_ratio[key] = ratio
            _note_censored(notes[key], recent["censored_hours"])
        if resource in _OF_MEANS:
            means = tables["mean"][-MEANS_DAYS:, place]
            found.means[key] = tuple(means[~np.isnan(means)].tolist())


def _note_censored(said: list[str], hours: Floats) -> None:
    at_cap = hours[~np.isnan(hours) & (hours > 0)]
    if len(at_cap):
        said.append(
            f"censored: at its cap in {int(at_cap.sum())} hours on {len(at_cap)} of the last {RECENT_DAYS} days; "
            "more may have been requested"
        )


def _idle_ratio(recent: Mapping[str, Floats]) -> float | None:
    """Return the share of held GPUs on which nothing ran; None where nobody reported.

    Rows without what ran: what was requested less what waited, with all idle ones that may have been taken off.
    """
    idle = recent["idle_mean"]
    guessed = recent["mean"] - recent["waiting_mean"] + idle
    ran = np.where(np.isnan(recent["running_mean"]), guessed, recent["running_mean"])
    is_told = ~np.isnan(idle) & ~np.isnan(ran)
    held = float(np.maximum(ran[is_told], 0.0).sum())
    return min(1.0, float(idle[is_told].sum()) / held) if held > 0 else None
