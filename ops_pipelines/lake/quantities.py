"""What is measured, in which unit, under which names; and what became of the records of one answer.

The counts close: read = accepted + rejected + ignored. What a record is, each format says for itself; how the text of
one is shown is the same for all.

The grammar of a cell of `series`: entries parted by blanks, each `NAME`, `NAME{label=value}` or either with a factor to
the column's unit, as `DCGM_FI_DEV_FB_USED*1048576`.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Protocol, runtime_checkable

# -- what became of the records of one file or answer --


if TYPE_CHECKING:
    import pyarrow as pa

MAX_TEXT_LENGTH = 1000
"""Characters of a line that are kept as evidence. The longest Xid line seen (NVLink 5 register words) has about 250."""


class WrongKind(ValueError):
    """The bytes are of another kind than was stated. The message: what was found, what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One record that was not believed."""

    record: str
    """Where it is: `line 12`, a series, a JSON pointer. Unique within the source."""
    reason: str
    """A fixed snake_case code; never holds data."""
    detail: str
    """What was found, what was expected."""
    text: str
    """The record, made readable (`readable`)."""
    into: str | None = None
    """The table that it would have gone to, where that is known."""
    at: datetime | None = None
    """When it was measured, where it says so and can be believed."""


@runtime_checkable
class CountsReasons(Protocol):
    """Refused records that can be counted without being written out one by one."""

    def count_reasons(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What one file or answer says."""

    read: int
    accepted: int
    ignored: int
    refused: Sequence[Refused] = ()
    tables: Mapping[str, "pa.Table"] = field(default_factory=dict)
    """Table of `schema.TABLES` -> its rows, in its Arrow schema. Tables without rows are left out."""

    def __post_init__(self) -> None:
        if self.read != self.accepted + len(self.refused) + self.ignored:
            found = f"{self.accepted} accepted + {len(self.refused)} rejected + {self.ignored} ignored"
            raise ValueError(f"{self.read} read, but {found}")

    @property
    def reasons(self) -> dict[str, int]:
        """Reason -> how many records were rejected for it, in alphabetical order."""
        if isinstance(self.refused, CountsReasons):
            return dict(sorted(self.refused.count_reasons().items()))
        return dict(sorted(Counter(each.reason for each in self.refused).items()))


def readable(text: str) -> str:
    """Return `text` on one line, without control characters (they could steer a terminal), at most 1000 characters."""
    kept = text[:MAX_TEXT_LENGTH].strip("\x00\r\n")
    is_clean = kept.isprintable()
    shown = kept if is_clean else "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in kept)
    return shown if len(text) <= MAX_TEXT_LENGTH else f"{shown}[cut at {MAX_TEXT_LENGTH} of {len(text)} characters]"


# -- catalogue/metrics.csv as values --


class Kind(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    """Only grows, but for restarts."""
    STATE = "state"
    """A number that is for a word."""


class Merge(Enum):
    """What becomes of several series that mean one cell: per-core counters, pods that share a GPU."""

    MAX = "max"
    MIN = "min"
    SUM = "sum"
    MEAN = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesName:
    """One name under which a source gives the quantity."""

    name: str
    factor: float = 1.0
    """From the source's unit to the column's."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The series counts only if it has these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One row of the catalogue."""

    table: str
    column: str
    unit: str
    """UCUM-like: s, B, W, Cel, 1, Hz, J, B/s; `ratio` is 0..1."""
    kind: Kind
    is_whole: bool
    merge: Merge
    device: str
    """How labels name the part of the node, as `{device}/{port}`; empty: it belongs to the node itself.

    `{a|b}` takes label a, else b.
    """
    series: tuple[SeriesName, ...]
    promql: str
    """A query for what no single series gives; empty if `series` is enough."""
    nvml: SeriesName | None
    low: float
    high: float
    """What can be: a value outside is an error of the source, and rejected. Inclusive."""
    healthy_low: float | None
    healthy_high: float | None
    """What is well; None: no such bound."""
    range_source: str
    meaning: str


@cache
def read_quantities() -> tuple[Quantity, ...]:
    """Return the catalogue's rows in their order. Raises ValueError with the line of a row that cannot be right."""
    text = files("ops_pipelines.catalogue").joinpath("metrics.csv").read_text(encoding="utf-8")
    found: list[Quantity] = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            found.append(_quantity(row))
        except (KeyError, ValueError, TypeError) as exc:
            raise ValueError(f"catalogue/metrics.csv, line {number}: {exc}") from exc
    return tuple(found)


_ENTRY = re.compile(
    r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{(?P<labels>[^{}]*)\})?(?:\*(?P<factor>[0-9.eE+-]+))?", re.ASCII
)


def _series(entry: str) -> SeriesName:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError(f"{entry!r} is no series; expected NAME, NAME{{label=value}}, or one of them with *FACTOR")
    labels = dict(part.split("=", 1) for part in (match["labels"] or "").split(",") if part)
    return SeriesName(name=match["name"], factor=float(match["factor"] or 1), labels=labels)


def _quantity(row: Mapping[str, str]) -> Quantity:
    low, high = float(row["low"] or -math.inf), float(row["high"] or math.inf)
    healthy_low, healthy_high = (float(row[name]) if row[name] else None for name in ("healthy_low", "healthy_high"))
    return Quantity(
        table=row["table"],
        column=row["column"],
        unit=row["unit"],
        kind=Kind(row["kind"]),
        is_whole=row["type"] == "whole",
        merge=Merge(row["merge"] or "max"),
        device=row["device"],
        series=tuple(_series(entry) for entry in row["series"].split()),
        promql=row["promql"],
        nvml=_series(row["nvml"]) if row["nvml"] else None,
        low=low,
        high=high,
        healthy_low=healthy_low,
        healthy_high=healthy_high,
        range_source=row["range_source"],
        meaning=row["meaning"],
    )
