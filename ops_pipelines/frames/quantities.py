"""catalogue/metrics.csv as values: what is measured, in which unit, under which names the sources give it.

The grammar of a cell of `series`: entries parted by blanks, each `NAME`, `NAME{label=value}` or either with a factor
to the column's unit, as `DCGM_FI_DEV_FB_USED*1048576`.
"""

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.resources import files


class Kind(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    """Only grows, but for restarts."""
    STATE = "state"
    """A number that stands for a word."""


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
