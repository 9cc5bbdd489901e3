"""Metrics of every layer over a stretch of time, as the bytes that a source answered: `frames` decodes and judges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol


class BodyKind(Enum):
    RANGE_ANSWER = "range_answer"
    """JSON of Prometheus' /api/v1/query_range, a matrix."""
    EXPOSITION = "exposition"
    """The Prometheus text format, as exporters write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is asked of a store. `column` names the quantity where the answer has no series name of its own."""

    promql: str
    table: str | None = None
    column: str | None = None
    """None: the answer's series carry their own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One answer, whole: bounded in size, and never half of one series at one time."""

    kind: BodyKind
    body: bytes
    source: str
    """A name for people and rejected rows: `prometheus`, `exporter gpu001:9400`."""
    start: datetime
    end: datetime
    """The grid times that it covers, both inclusive."""
    query: Query | None = None
    node: str | None = None
    """The node that was asked, where the body itself may not say so (direct scrape, NVML)."""
    notes: tuple[str, ...] = ()
    """Warnings of the source: the answer may lack series."""


class MetricSource(Protocol):
    """Reads metrics on a grid of whole steps."""

    @property
    def source(self) -> str:
        """Return a stable name: `prometheus`, `exporters`, `nvml`, `simulator`."""
        ...

    @property
    def has_history(self) -> bool:
        """Return whether the past can be asked for; exporters know only now."""
        ...

    def read_range(
        self, queries: Sequence[Query], *, start: datetime, end: datetime, step_seconds: int
    ) -> Iterator[Page]:
        """Yield the answers for the grid times from `start` to `end`, both inclusive and whole multiples of the step.

        A source without history answers for one grid time only (`start == end`) and passes queries over. Each page is
        dropped by the caller before the next is asked for, so memory holds one. Raises SourceUnavailable after its
        retries, or SourceNonsense; what was yielded before is whole.
        """
        ...
