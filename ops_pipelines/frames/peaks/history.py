"""Rows of `daily_peaks` -> series by resource, ready to be forecast; and a note for each thing that was done."""

from collections.abc import Mapping
from dataclasses import dataclass

from ops_pipelines.domain.capacity.resources import Resource, SeriesKey
from ops_pipelines.frames.forecast.daily_peaks import DailyPeaks, Floats


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
    """Means of the last 365 days or fewer, oldest first: what supply is drawn from (GPUS_OUT, GPUS_STRANDED)."""
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
