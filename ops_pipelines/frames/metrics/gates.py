"""The hard gates of samples: what cannot be is refused, with a fixed reason. Over whole columns, not single points.

What can be but is not well is no gate's business: that is the expectations' and `domain.meaning.observation_rules`'s.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.frames.quantities import Quantity

MAX_AHEAD = timedelta(seconds=60)
"""Clocks of sources may be this far ahead of ours."""
OLDEST_MS = 946_684_800_000
"""2000-01-01. Older stamps are seconds taken for milliseconds, or a clock that was never set."""
NEWEST_MS = 253_402_300_799_999
"""The end of the year 9999: what a timestamp can hold."""

_STALE_BITS = np.int64(0x7FF0000000000002)
"""The NaN by which Prometheus says that a series ended. It is no measurement, and no error either."""


class Fate(IntEnum):
    """What became of one point. From TWO_NODES on it is refused; `reason` is then the code."""

    IGNORED = 0
    ACCEPTED = 1
    TWO_NODES = 2
    NO_DEVICE = 3
    BAD_PCI_ADDRESS = 4
    BAD_TIME = 5
    IN_FUTURE = 6
    NOT_FINITE = 7
    BLANK_VALUE = 8
    OUT_OF_RANGE = 9
    NOT_WHOLE = 10
    CONFLICTING_DUPLICATE = 11

    @property
    def reason(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What one series name must pass on its way into a column."""

    quantity: Quantity
    factor: float
    """From the source's unit to the column's."""
    may_be_blank: bool
    """The source is DCGM, which writes certain numbers for `not available`."""
    is_computed: bool = False
    """The value is a query's, where NaN says that there was nothing to compute from: it is ignored."""

    def convert(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values in the column's unit. A factor such as 0.01 divides: 255 percent are 2.55, not a bit more."""
        if self.factor == 1:
            return raw
        divisor = round(1 / self.factor) if self.factor else 0
        with np.errstate(over="ignore", invalid="ignore"):
            if self.factor < 1 and divisor and abs(divisor * self.factor - 1) < 1e-12:
                return np.divide(raw, divisor)
            return np.multiply(raw, self.factor)

    def judge(
        self, raw: NDArray[np.float64], converted: NDArray[np.float64], fates: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        """Return the fates after the gates of values; the first gate that refuses a point names the reason.

        `fates` is what was decided of each point before: points that are not ACCEPTED keep their fate.
        """
        with np.errstate(invalid="ignore"):
            is_fine = (converted >= self.quantity.low) & (converted <= self.quantity.high) & np.isfinite(converted)
            is_whole = np.floor(converted) == converted if self.quantity.is_whole else None
            blank = is_blank(raw) if self.may_be_blank else None
        verdict = np.where(is_fine, np.uint8(Fate.ACCEPTED), np.uint8(Fate.OUT_OF_RANGE))
        if is_whole is not None:
            verdict[is_fine & ~is_whole] = Fate.NOT_WHOLE
        if blank is not None:
            verdict[blank] = Fate.BLANK_VALUE
        if not is_fine.all():
            verdict[~np.isfinite(raw)] = Fate.NOT_FINITE
            if self.is_computed:
                verdict[np.isnan(raw)] = Fate.IGNORED
            verdict[raw.view(np.int64) == _STALE_BITS] = Fate.IGNORED
        return np.where(fates == Fate.ACCEPTED, verdict, fates)


def is_blank(raw: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which values are DCGM's blanks: `not available`, `not found`, `not supported`, `not permitted`.

    They start at 0x7ffffff0 (32-bit), 2**47 (float) and 0x7ffffffffffffff0 (64-bit, which rounds to 2**63); 16 numbers
    are kept for each (DCGM dcgm_structs.h).
    """
    in_32_bits = (raw >= 0x7FFFFFF0) & (raw <= 0x7FFFFFFF)
    as_float = (raw >= 2.0**47) & (raw < 2.0**47 + 16)
    # VictoriaMetrics keeps about 15 digits: 2**63 comes back as 9223372036854774784.
    in_64_bits = np.abs(raw - 2.0**63) <= 4096
    found: NDArray[np.bool_] = in_32_bits | as_float | in_64_bits
    return found


def judge_times(times: NDArray[np.int64], *, at: datetime | None, max_ahead: timedelta) -> NDArray[np.uint8]:
    """Return the fate of each point by its time alone: ACCEPTED, BAD_TIME or IN_FUTURE. `at` None: no future."""
    fates = np.full(len(times), Fate.ACCEPTED, np.uint8)
    if len(times) == 0:
        return fates
    if at is not None:
        limit = int((at + max_ahead).timestamp() * 1000)
        fates[times > limit] = Fate.IN_FUTURE
    if times.min() < OLDEST_MS or times.max() > NEWEST_MS:
        fates[(times < OLDEST_MS) | (times > NEWEST_MS)] = Fate.BAD_TIME
    return fates


def explain(fate: Fate, gate: Gate, *, value: float, at: datetime | None) -> str:
    """Return what was found and what was expected, for a point that the gates of values or times refused."""
    quantity = gate.quantity
    shown = f"{value:g}" if gate.factor == 1 else f"{value:g} x {gate.factor:g} {quantity.unit}"
    match fate:
        case Fate.NOT_FINITE:
            return f"{value} is no measurement; expected a number"
        case Fate.BLANK_VALUE:
            return f"{value:g} is DCGM's word for a value that it does not have"
        case Fate.OUT_OF_RANGE:
            return f"{shown} is impossible; expected {quantity.low:g}..{quantity.high:g} {quantity.unit}"
        case Fate.NOT_WHOLE:
            return f"{shown} is impossible; expected a whole number"
        case Fate.IN_FUTURE:
            return f"the sample is from the future; it was {at.isoformat() if at else 'earlier'}: check the clocks"
        case Fate.BAD_TIME:
            return "the time lies before the year 2000 or after 9999; expected milliseconds since 1970"
        case Fate.CONFLICTING_DUPLICATE:
            return f"{value:g} is the second value of one series at one time; the first was kept"
        case _:
            return fate.reason.replace("_", " ")
