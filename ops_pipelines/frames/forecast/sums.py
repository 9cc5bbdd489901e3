"""Sums of series: an organisation, a cluster. Their paths are the sums of their members' paths, so that they add up.

A peak of a sum is no sum of peaks: teams seldom peak on one day. It has a calibration of its own, among all series,
and is then held between the largest member's and the sum of all, where every peak of a sum lies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ops_pipelines.frames.forecast.daily_peaks import DailyPeaks, Flags, Floats, root, squared


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hierarchy:
    """Which series each sum has. No sum is a member of another: name its series again."""

    names: tuple[str, ...]
    is_member: Flags
    """(sum, series)."""


def hierarchy(series: Sequence[str], sums: Mapping[str, Sequence[str]]) -> Hierarchy:
    """Raises ValueError where a sum has no members, one that is no series, or the name of a series."""
    place = {name: number for number, name in enumerate(series)}
    is_member = np.zeros((len(sums), len(series)), dtype=bool)
    for number, (name, members) in enumerate(sums.items()):
        if not members:
            raise ValueError(f"the sum {name!r} has no members; expected one or more: empty never means all")
        unknown = [each for each in members if each not in place]
        if unknown or name in place:
            raise ValueError(
                f"the sum {name!r} " + (f"has {unknown[0]!r}, which is no series" if unknown else "is a series too")
            )
        is_member[number, [place[each] for each in members]] = True
    return Hierarchy(names=tuple(sums), is_member=is_member)


def with_sums(series: DailyPeaks, tree: Hierarchy, *, summed_gpus: Floats | None = None) -> DailyPeaks:
    """Return the series and after them the sums.

    `summed_gpus` are daily maxima of the sums, which are lower than sums of maxima; without them the latter are taken.
    """
    gpus = add_up(series.gpus, tree) if summed_gpus is None else summed_gpus
    caps = np.array([series.cap_gpus[members].sum() for members in tree.is_member])
    return DailyPeaks(
        names=(*series.names, *tree.names),
        first_day=series.first_day,
        gpus=np.concatenate([series.gpus, gpus], axis=1),
        cap_gpus=np.concatenate([series.cap_gpus, caps]),
    )


def add_up(gpus: Floats, tree: Hierarchy) -> Floats:
    """Return (..., sum) of (..., series); who is not there adds nothing, and nobody is NaN."""
    is_there = ~np.isnan(gpus)
    summed = np.where(is_there, gpus, 0.0) @ tree.is_member.T.astype(np.float64)
    return np.where(is_there @ tree.is_member.T, summed, np.nan)


def add_up_roots(roots: Floats, tree: Hierarchy) -> Floats:
    return root(add_up(squared(roots), tree))


def hold_between(members: Floats, sums: Floats, tree: Hierarchy) -> Floats:
    """Return the sums' peaks by (quantile, sum), none below its largest member's, none above all members' together."""
    known = np.where(np.isnan(members), 0.0, members)
    held = [
        np.clip(sums[:, number], known[:, own].max(axis=1), known[:, own].sum(axis=1))
        for number, own in enumerate(tree.is_member)
    ]
    return np.stack(held, axis=1) if held else sums
