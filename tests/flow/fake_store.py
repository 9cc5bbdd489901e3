"""A store of metrics for tests: points that arrive late, series that end, and an observatory on it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.cluster import Observatory
from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import (
    BodyKind,
    LogBatch,
    LogLine,
    Logs,
    MetricSource,
    Page,
    Query,
    SourceError,
    SourceUnavailable,
)
from ops_pipelines.resources.lake.parquet_lake import ParquetLake

LOOK_BACK = timedelta(seconds=30)
GPU, NODE, PLATFORM = (
    Query(promql="gpu", table="gpu_telemetry"),
    Query(promql="node", table="node_telemetry"),
    Query(promql="platform", table="platform_telemetry"),
)
QUERIES = (GPU, NODE, PLATFORM)
TABLES = ("gpu_telemetry", "node_telemetry", "platform_telemetry")
_FAMILIES = {"DCGM": "gpu", "nvid": "gpu", "node": "node"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A series as Prometheus names it."""

    name: str
    labels: Mapping[str, str]

    @property
    def family(self) -> str:
        return _FAMILIES.get(self.name[:4], "platform")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One sample; value None is the mark of a series that ended. It can be asked for from `known_at` on."""

    at: datetime
    value: float | None
    known_at: datetime


@dataclass(kw_only=True)
class FakeStore:
    """Answers the queries of `resources.prometheus` as Prometheus would, newest value within the look-back."""

    clock: Clock
    series: list[tuple[Series, list[Point]]] = field(default_factory=list)
    times_per_page: int = 100
    notes: tuple[str, ...] = ()
    failure: SourceError | None = None
    pages_before_failure: int = 0
    source: str = "prometheus"
    has_history: bool = True

    def add(self, name: str, labels: Mapping[str, str], points: Sequence[Point]) -> None:
        self.series.append((Series(name=name, labels=labels), list(points)))

    def read_range(
        self, queries: Sequence[Query], *, start: datetime, end: datetime, step_seconds: int
    ) -> Iterator[Page]:
        step = timedelta(seconds=step_seconds)
        yielded = 0
        for query in queries:
            first = start
            while first <= end:
                if self.failure is not None and yielded >= self.pages_before_failure:
                    raise self.failure
                last = min(end, first + (self.times_per_page - 1) * step)
                yield self._page(query, start=first, end=last, step=step)
                yielded += 1
                first = last + step

    def _page(self, query: Query, *, start: datetime, end: datetime, step: timedelta) -> Page:
        times = [start + number * step for number in range((end - start) // step + 1)]
        result = []
        for series, points in self.series:
            if series.family != query.promql:
                continue
            known = [point for point in points if point.known_at <= self.clock.now()]
            values = [[at.timestamp(), repr(value)] for at in times if (value := _newest(known, at)) is not None]
            if values:
                result.append({"metric": {"__name__": series.name, **series.labels}, "values": values})
        body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()
        return Page(
            kind=BodyKind.RANGE_ANSWER, body=body, source=self.source, start=start, end=end, query=query,
            notes=self.notes,
        )  # fmt: skip


def _newest(points: Sequence[Point], at: datetime) -> float | None:
    within = [point for point in points if at - LOOK_BACK < point.at <= at]
    return max(within, key=lambda point: point.at).value if within else None


@dataclass(kw_only=True)
class FakeExporters:
    """A source that knows only now: one page of text for each node."""

    texts: Mapping[str, str]
    source: str = "exporters"
    has_history: bool = False
    failure: SourceError | None = None

    def read_range(
        self, queries: Sequence[Query], *, start: datetime, end: datetime, step_seconds: int
    ) -> Iterator[Page]:
        if self.failure is not None:
            raise self.failure
        for node, text in self.texts.items():
            yield Page(
                kind=BodyKind.EXPOSITION, body=text.encode(), source=f"exporter {node}:9400", start=start, end=end,
                node=node,
            )  # fmt: skip


@dataclass(kw_only=True)
class FakeLogs:
    """Lines that stand in a list; the cursor is how many were read."""

    source: str
    lines: list[LogLine] = field(default_factory=list)
    failure: SourceError | None = None

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        if self.failure is not None:
            raise self.failure
        begin = int(cursor or 0)
        new = tuple(self.lines[begin : begin + max_lines])
        return LogBatch(lines=new, cursor=str(begin + len(new)))

    def write(self, text: str, *, node: str | None = "gpu001", at: datetime | None = None) -> None:
        self.lines.append(LogLine(node=node, written_at=at, position=f"line-{len(self.lines)}", text=text))


def topology_of(*nodes: str) -> Topology:
    return Topology(
        places={NodeName(node): Place(rack="r01", nvlink_domain=node, leaf_switch="s1") for node in nodes},
        gpus_per_node=8,
    )


class NoScheduler:
    """A scheduler that does not answer."""

    def read_nodes(self) -> tuple[()]:
        raise SourceUnavailable("slurmctld did not answer")


def observatory_on(
    directory: Path | str,
    *metrics: MetricSource,
    clock: Clock,
    scheduler: Scheduler,
    step_seconds: int = 15,
    kernel_logs: Sequence[Logs] = (),
    job_logs: Sequence[Logs] = (),
    topology: Topology | None = None,
) -> Observatory:
    """Return an observatory on a lake in `directory`."""
    return Observatory(
        name="small",
        metrics=metrics,
        queries=QUERIES,
        accounting=None,
        kernel_logs=kernel_logs,
        job_logs=job_logs,
        scheduler=scheduler,
        lake=ParquetLake(directory),
        topology=topology or topology_of("gpu001", "gpu002", "gpu003"),
        clock=clock,
        step=timedelta(seconds=step_seconds),
    )


def at_utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
