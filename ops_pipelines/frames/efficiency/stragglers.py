"""GPUs that differ from the others of their job: robust deviations from peers, and which of them hold a job up.

Peers are the GPUs of the same job and model on all its nodes. In synchronised work all wait for the slowest, so a
straggler may look busier than its peers (they wait without spinning) or less busy (they spin and it has no work).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.frames.efficiency.rules import Floats, Rule

_MAD_TO_SIGMA = 1.4826
_LEAST_SPREAD = 0.01
"""Peers never agree better than this: one hundredth of the median clock, or of an activity from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """One GPU that a rule calls a straggler."""

    place: int
    """Its row in what was given."""
    rule: Rule
    strength: float
    """Size of the robust z that the rule compared; the largest is the worst."""


def deviations(values: Floats, *, groups: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
    """Return for each value its difference from the median of its group, the robust z of that, and the median.

    z = difference / max(1.4826 x MAD, 0.01). NaN is left out of medians and stays NaN.
    """
    difference, z, middle = (np.full(len(values), np.nan) for _ in range(3))
    for rows in _rows_by_group(groups):
        given = rows[~np.isnan(values[rows])]
        if len(given):
            median = float(np.median(values[given]))
            spread = float(np.median(np.abs(values[given] - median))) * _MAD_TO_SIGMA
            difference[given] = values[given] - median
            z[given] = difference[given] / max(spread, _LEAST_SPREAD)
            middle[given] = median
    return difference, z, middle


def peer_features(
    *, clock_hertz: Floats, activity: Floats, tensor: Floats, traffic: Floats, groups: NDArray[np.int64]
) -> dict[str, Floats]:
    """Return the features of STRAGGLER_FEATURES, one value a GPU; arrays are equally long, NaN is unknown.

    Clocks are compared as a share of the median, so that z has one scale for all models.
    """
    median_clock = deviations(clock_hertz, groups=groups)[2]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(median_clock > 0, clock_hertz / median_clock, np.nan)
    clock_deviation, clock_z, _ = deviations(share, groups=groups)
    activity_deviation, activity_z, peer_activity = deviations(activity, groups=groups)
    sizes = np.bincount(groups, minlength=1) if len(groups) else np.zeros(1, np.int64)
    return {
        "clock_deviation_ratio": clock_deviation,
        "clock_robust_z": clock_z,
        "activity_deviation_ratio": activity_deviation,
        "activity_robust_z": activity_z,
        "peer_activity_ratio": peer_activity,
        "peer_tensor_ratio": _spread_median(tensor, groups=groups),
        "traffic_bytes_per_second": _spread_median(traffic, groups=groups),
        "peer_count": (sizes[groups] - 1).astype(np.float64),
        "other_outlier_ratio": np.zeros(len(groups)),
    }


def find_stragglers(
    rules: Sequence[Rule], features: Mapping[str, Floats], *, groups: NDArray[np.int64]
) -> tuple[Straggler, ...]:
    """Return the stragglers by the first rule that holds for each, in the order of their rows.

    `other_outlier_ratio` is found here: the share of a group's GPUs for which the rest of a rule holds, and 0 where
    that is one GPU alone. Where many are alike it is the way in which the work is split, and no fault of one GPU.
    """
    found: dict[int, Straggler] = {}
    sizes = np.bincount(groups, minlength=1) if len(groups) else np.ones(1, np.int64)
    for rule in rules:
        alike = rule.holds(features)
        counts = np.bincount(groups[alike], minlength=len(sizes))
        share = np.where(counts > 1, counts / np.maximum(sizes, 1), 0.0)
        holds = alike & rule.holds({**features, "other_outlier_ratio": share[groups]})
        z = np.abs(features[_z_of(rule)])
        for place in np.flatnonzero(holds).tolist():
            found.setdefault(place, Straggler(place=place, rule=rule, strength=float(z[place])))
    return tuple(found[place] for place in sorted(found))


def _z_of(rule: Rule) -> str:
    return next(
        (condition.feature for condition in rule.conditions if condition.feature.endswith("_robust_z")),
        "clock_robust_z",
    )


def _spread_median(values: Floats, *, groups: NDArray[np.int64]) -> Floats:
    """Return the median of each GPU's group, also for a GPU that gives no value itself."""
    found = np.full(len(values), np.nan)
    for rows in _rows_by_group(groups):
        given = values[rows][~np.isnan(values[rows])]
        if len(given):
            found[rows] = np.median(given)
    return found


def _rows_by_group(groups: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    order = np.argsort(groups, kind="stable")
    return [rows for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(rows)]
