"""The ways from a series name into columns, as the catalogue lists them: conditions, gates, devices."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ops_pipelines.core.sources import Query
from ops_pipelines.frames.metrics.gates import Gate
from ops_pipelines.frames.metrics.gpu_labels import shown
from ops_pipelines.frames.quantities import Quantity, SeriesName, read_quantities

_PART = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """How labels name the part of a node: `fs:{mountpoint}`. `{a|b}` takes `a`, else `b`."""

    parts: tuple[str | tuple[str, ...], ...]
    """Texts as they are, and the labels of each place, best first."""
    is_optional: bool = False
    """Whether a label set with none of the labels means the whole: an aggregate that a query computed."""

    @property
    def wanted(self) -> str:
        """The labels that it needs, for people."""
        return ", ".join("|".join(part) for part in self.parts if not isinstance(part, str))

    def name(self, labels: Mapping[str, str]) -> str | None:
        """Return the device, or None if the labels do not name it."""
        named = [part if isinstance(part, str) else _first(labels, part) for part in self.parts]
        if self.is_optional and all(
            value is None for value, part in zip(named, self.parts, strict=True) if not isinstance(part, str)
        ):
            return ""
        return None if None in named else "".join(part for part in named if part is not None)


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((shown(value) for name in names if (value := labels.get(name))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of a series into one column."""

    table: str
    column: str
    rank: int
    """Among the names that mean the column: where cells are added up, only the first name that is there counts."""
    gate: Gate
    conditions: tuple[tuple[str, str], ...]
    """Labels that the series must have."""
    device: Device


@cache
def ways_by_name() -> Mapping[str, tuple[Way, ...]]:
    """Return the ways of every series name that the catalogue knows, NVML's calls included."""
    found: dict[str, list[Way]] = {}
    for quantity in read_quantities():
        listed = [*quantity.series, *([quantity.nvml] if quantity.nvml else [])]
        ranks = {name: rank for rank, name in enumerate(dict.fromkeys(each.name for each in listed))}
        for each in listed:
            found.setdefault(each.name, []).append(_way(quantity, each, rank=ranks[each.name]))
    return {name: tuple(ways) for name, ways in found.items()}


def way_of_query(query: Query | None) -> Way | None:
    """Return where series go that have no name of their own; None if the query does not say.

    Raises ValueError on a column that the catalogue does not have.
    """
    if query is None or query.table is None or query.column is None:
        return None
    for quantity in read_quantities():
        if (quantity.table, quantity.column) == (query.table, query.column):
            return _way(quantity, SeriesName(name=""), rank=0)
    raise ValueError(f"the catalogue has no column {query.column} in {query.table}; expected one of metrics.csv")


def _way(quantity: Quantity, series: SeriesName, *, rank: int) -> Way:
    is_query = not series.name
    may_be_blank = series.name.upper().startswith("DCGM_") or (is_query and quantity.table == "gpu_telemetry")
    return Way(
        table=quantity.table,
        column=quantity.column,
        rank=rank,
        gate=Gate(quantity=quantity, factor=series.factor, may_be_blank=may_be_blank, is_computed=is_query),
        conditions=tuple(sorted(series.labels.items())),
        device=_device(quantity.device, is_optional=is_query),
    )


@cache
def _device(template: str, *, is_optional: bool) -> Device:
    pieces = _PART.split(template)
    parts = [tuple(piece.split("|")) if number % 2 else piece for number, piece in enumerate(pieces)]
    return Device(parts=tuple(part for part in parts if part), is_optional=is_optional)
