"""Rows of `daily_peaks` -> series by resource, ready to be forecast; and a note for each thing that was done.

Put together here. Which rows count is `believed`'s to say, what becomes of days `read_series`'.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np

from ops_pipelines.domain.capacity.resources import Resource, SeriesKey
from ops_pipelines.frames.forecast.daily_peaks import DailyPeaks, Floats
from ops_pipelines.frames.peaks.believed import BelievedRows, believe_rows
from ops_pipelines.frames.peaks.read_series import Asked, read_series

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResourceHistory:
    """All series of one resource, day by day; days that are missing are filled or left out as notes say."""

    resource: Resource
    keys: tuple[SeriesKey, ...]
    """Of the columns of `series`, in their order; without sums."""
    series: DailyPeaks
    sums: tuple[SeriesKey, ...] = ()
    """Keys of all teams together, by type of GPU; for other resources nothing."""
    members: tuple[tuple[int, ...], ...] = ()
    """Of each sum: the places of its members among `keys`."""
    summed: Floats | None = None
    """(day, sum): daily maxima of the sums, as recorded; None where there are no sums."""
    limits: Mapping[SeriesKey, float]
    """What held last: a size, a rate, watts; who is not named has no known limit."""
    near_peak_hours: Mapping[SeriesKey, float]
    """Hours a day within 10 % of the day's peak: mean of the last 13 weeks."""
    idle_ratio: Mapping[SeriesKey, float]
    """Share of what ran on which nothing ran: mean of the last 13 weeks; GPUs alone."""
    means: Mapping[SeriesKey, tuple[float, ...]]
    """Means of the last 365 days or fewer, oldest first: what supply is drawn from (GPUS_OUT, GPUS_STRANDED), and what
    racks draw."""
    notes: Mapping[SeriesKey, tuple[str, ...]]
    """What was done to whose days, what of them is censored."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeakHistory:
    """Everything that is known of a cluster's daily peaks."""

    resources: tuple[ResourceHistory, ...]
    notes: tuple[str, ...]
    """Of all: days that are missing altogether, a changed time zone."""

    def of(self, resource: Resource) -> ResourceHistory | None:
        return next((each for each in self.resources if each.resource is resource), None)


def read_history(
    rows: "pa.Table",
    *,
    until: date,
    zone: ZoneInfo,
    holidays: Iterable[date] = (),
    renamed: Sequence[tuple[str, str]] = (),
) -> PeakHistory:
    """Return what rows of `daily_peaks` tell of the days before `until`; no resources where none is believed.

    `zone`: that of now. `holidays`: taken as the same weekday a week before, where that was higher. `renamed`: (old,
    new) names of teams. Raises ValueError where a name is an old one twice, or an old and a new one.
    """
    _check_renamed(renamed)
    believed = believe_rows(rows, until=until, zone=zone)
    asked = Asked(until=until, holidays=frozenset(holidays), renamed=tuple(renamed))
    refused: dict[SeriesKey, list[str]] = defaultdict(list)
    for fault in believed.faults:
        refused[fault.key].append(fault.words)
    names = {new: old for old, new in renamed}
    resources = []
    for resource in Resource:
        found = read_series(resource, believed, asked)
        if found is None:
            continue
        notes = {}
        for key in (*found.keys, *found.sums):
            own = [*refused.pop(key, ())]
            if key.name in names:
                own += refused.pop(SeriesKey(resource=key.resource, gpu_type=key.gpu_type, name=names[key.name]), ())
            own += found.notes.pop(key, ())
            if own:
                notes[key] = tuple(own)
        for key, words in found.notes.items():
            refused[key] += words
        resources.append(
            ResourceHistory(
                resource=resource,
                keys=found.keys,
                series=found.series,
                sums=found.sums,
                members=found.members,
                summed=found.summed,
                limits=found.limits,
                near_peak_hours=found.near_peak_hours,
                idle_ratio=found.idle_ratio,
                means=found.means,
                notes=notes,
            )
        )
    return PeakHistory(resources=tuple(resources), notes=tuple(_of_all(believed, refused, asked=asked, zone=zone)))


def _check_renamed(renamed: Sequence[tuple[str, str]]) -> None:
    old, new = [each for each, _ in renamed], [each for _, each in renamed]
    faults = [f"{each!r} is the old name of two teams; expected one" for each in _repeated(old)]
    faults += [f"{each!r} is the new name of two teams; expected one" for each in _repeated(new)]
    faults += [
        f"{each!r} is an old and a new name; expected the last name for each old one"
        for each in sorted({*old} & {*new})
    ]
    if faults:
        raise ValueError("; ".join(faults))


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _of_all(
    believed: BelievedRows, refused: Mapping[SeriesKey, Sequence[str]], *, asked: Asked, zone: ZoneInfo
) -> Iterator[str]:
    """Yield what is to be said of no series that is forecast: zones, days of which nobody knows anything, refusals."""
    for name, (first, last) in believed.other_zones.items():
        yield f"days from {first} to {last} were told in {name}, not in {zone.key}; they are joined by their local date"
    if len(believed.day):
        days = np.unique(believed.day)
        gaps = np.flatnonzero(np.diff(days) > 1)
        for one, other in zip(days[gaps].tolist(), days[gaps + 1].tolist(), strict=True):
            yield _missing(one + 1, other)
        if int(days[-1]) + 1 < asked.until.toordinal():
            yield _missing(int(days[-1]) + 1, asked.until.toordinal())
    told = {key.name for key in believed.keys if key.resource == Resource.GPUS.value}
    for old, _ in asked.renamed:
        if old not in told:
            yield f"{old!r} was renamed, but no row is of it"
    for key in sorted(refused):
        for words in refused[key]:
            yield f"{' '.join(each for each in (key.resource, key.gpu_type, key.name) if each)}: {words}"


def _missing(first: int, after: int) -> str:
    count = after - first
    days = "1 day" if count == 1 else f"{count} days"
    return f"{days} from {date.fromordinal(first)} on are missing altogether: materialise daily_peaks there"
