"""What stands beside the days of a series: limits, hours near the peak, idle ones, means, what is censored."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ops_pipelines.domain.capacity.resources import Resource, SeriesKey
from ops_pipelines.frames.forecast.daily_peaks import DailyPeaks, Floats

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
            "more may have been wanted"
        )


def _idle_ratio(recent: Mapping[str, Floats]) -> float | None:
    """Return the share of held GPUs on which nothing ran; None where nobody told.

    Rows without what ran: what was wanted less what waited, with all idle ones that may have been taken off.
    """
    idle = recent["idle_mean"]
    guessed = recent["mean"] - recent["waiting_mean"] + idle
    ran = np.where(np.isnan(recent["running_mean"]), guessed, recent["running_mean"])
    is_told = ~np.isnan(idle) & ~np.isnan(ran)
    held = float(np.maximum(ran[is_told], 0.0).sum())
    return min(1.0, float(idle[is_told].sum()) / held) if held > 0 else None
