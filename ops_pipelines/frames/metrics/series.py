"""Decoded series, unbelieved: what every source of metrics becomes before `tabulate` looks at it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeriesBlock:
    """Points of many series: those of series i stand together, in the order of the source."""

    names: Sequence[str]
    labels: Sequence[Mapping[str, str]]
    """Per series, without its name. Equal label sets may be one object: do not change them."""
    counts: NDArray[np.int64]
    """Points of each series; their sum is the length of `times` and `values`."""
    times: NDArray[np.int64]
    """Milliseconds since 1970, UTC."""
    values: NDArray[np.float64]
    """As the source wrote them: NaN and infinities included."""
    lines: NDArray[np.int64] | None = None
    """The line of each point in its file, from 1; None where the source has no lines."""
    known: dict[object, object] | None = None
    """For who reads many blocks of these names and labels: what it made of them alone. None: there is this one."""

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.labels) == len(self.counts):
            raise ValueError("names, labels and counts differ in length")
        if not int(self.counts.sum()) == len(self.times) == len(self.values):
            raise ValueError("the counts do not add up to the points")
