"""Hours of one local day, by resource and series -> rows of `daily_peaks`. What is told by too few hours is no row.

Every source puts its hours here; so peak, mean and the hours near the peak are counted in one way for all of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from ops_pipelines.core.proposal import GpuType
from ops_pipelines.domain.capacity.resources import Resource, SeriesKey
from ops_pipelines.frames.forecast.treated_days import WHOLE_RATIO
from ops_pipelines.lake.rates import HOUR

NO_TYPE = GpuType("")
NEAR_PEAK_RATIO = 0.9
_UNITS = {
    Resource.GPUS: "1",
    Resource.GPUS_OUT: "1",
    Resource.GPUS_STRANDED: "1",
    Resource.STORAGE_BYTES: "B",
    Resource.NETWORK_RATIO: "ratio",
    Resource.RACK_WATTS: "W",
    Resource.COOLING_WATTS: "W",
}


@dataclass(slots=True, kw_only=True)
class _Series:
    hours: dict[int, float] = field(default_factory=dict)
    limit: float | None = None
    cells: dict[str, float | int | None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class DayBook:
    """One local day while its hours are put in. Hours are counted from `start`."""

    day: date
    start: datetime
    """The first hour of UTC that begins in the day."""
    end: datetime
    """The first that no longer does."""
    begins_at: datetime
    """Where its rows stand: the beginning of the local day, in UTC."""
    zone: str
    notes: list[str] = field(default_factory=list)
    _series: dict[SeriesKey, _Series] = field(default_factory=lambda: defaultdict(_Series))

    @property
    def hours(self) -> list[datetime]:
        return [self.start + number * HOUR for number in range((self.end - self.start) // HOUR)]

    def place_of(self, at: datetime) -> int | None:
        """Return the place of the hour that a time is in; None where it is not of the day."""
        place = (at - self.start) // timedelta(hours=1)
        return place if 0 <= place < (self.end - self.start) // HOUR else None

    def put(self, resource: Resource, values: Mapping[str, float], *, hour: int, gpu_type: GpuType = NO_TYPE) -> None:
        """Keep what series by these names were in an hour."""
        for name, value in values.items():
            self._series[SeriesKey(resource=resource.value, gpu_type=gpu_type, name=name)].hours[hour] = value

    def limit(self, resource: Resource, limits: Mapping[str, float], *, gpu_type: GpuType = NO_TYPE) -> None:
        """Keep what held series by these names; of several that are told in a day the last holds."""
        for name, limit in limits.items():
            self._series[SeriesKey(resource=resource.value, gpu_type=gpu_type, name=name)].limit = limit

    def add_cells(
        self, resource: Resource, name: str, cells: Mapping[str, float | int | None], *, gpu_type: GpuType
    ) -> None:
        """Keep what one resource alone has beside its hours."""
        self._series[SeriesKey(resource=resource.value, gpu_type=gpu_type, name=name)].cells.update(cells)

    def close(self) -> list[dict[str, object]]:
        """Return the day's rows in their order; notes say which series have too few hours, and what is silent."""
        least = WHOLE_RATIO * len(self.hours)
        rows: list[dict[str, object]] = []
        left_out: dict[str, list[SeriesKey]] = defaultdict(list)
        for key in sorted(self._series):
            series = self._series[key]
            if not series.hours:
                continue
            if len(series.hours) < least:
                left_out[key.resource].append(key)
                continue
            rows.append(self._row(key, series))
        for resource, keys in left_out.items():
            some = f"{len(keys)} series" if len(keys) > 1 else "1 series"
            self.notes.append(
                f"{resource}: {some} with less than three quarters of the day's {len(self.hours)} hours not told, "
                f"such as {_words(keys[0])}"
            )
        return rows

    def _row(self, key: SeriesKey, series: _Series) -> dict[str, object]:
        told = [series.hours[hour] for hour in sorted(series.hours)]
        peak = max(told)
        return {
            "resource": key.resource,
            "gpu_type": key.gpu_type,
            "name": key.name,
            "time": self.begins_at,
            "zone": self.zone,
            "peak": peak,
            # Rounding must not lift a mean above the peak.
            "mean": min(peak, sum(told) / len(told)),
            "limit": series.limit,
            "hour_count": len(told),
            "near_peak_hours": float(sum(each >= NEAR_PEAK_RATIO * peak for each in told)) if peak > 0 else 0.0,
            "unit": _UNITS[key.kind],
            **series.cells,
        }

    def told(self, resource: Resource) -> Iterable[SeriesKey]:
        """Return the series of a resource that have any hour."""
        return [key for key, series in self._series.items() if key.resource == resource.value and series.hours]


def _words(key: SeriesKey) -> str:
    return " ".join(each for each in (key.gpu_type, key.name) if each) or "the whole"
