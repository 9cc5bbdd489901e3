"""Answers of metric sources -> rows of the lake: decoded, placed, gated. The one way in, live and from files.

A row is (node, device, time); cells are in the column's unit. Works per distinct label set and per column, never per
point in Python: a cycle of a large cluster has hundreds of thousands of series. What a label means is in
`node_names`, `gpu_labels` and `ways`, what is impossible in `series`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.core.sources import BodyKind, Page, Query, Sample, SourceNonsense
from ops_pipelines.lake.formats.reading import as_utf8
from ops_pipelines.lake.hours import merge
from ops_pipelines.lake.metrics.exposition import Exposition, decode_exposition
from ops_pipelines.lake.metrics.range_answer import decode_range_answer
from ops_pipelines.lake.metrics.series import MAX_AHEAD, Fate, Joined, RefusedPoints, SeriesBlock, explain, judge_times
from ops_pipelines.lake.metrics.ways import Ints, Way, way_of_query
from ops_pipelines.lake.metrics.wide_table import (
    GPU_TABLE,
    Layout,
    Sites,
    TableWork,
    choose,
    number_times,
    split_by_known_gpus,
)
from ops_pipelines.lake.node_names import NodeNames, mark_nodes
from ops_pipelines.lake.quantities import Parsed, Refused, WrongKind, readable
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.lake.telemetry import watched_metrics

# -- decoded series -> wide tables of the lake --


_EAGER_COUNT = 1_000
"""Up to so many refused points are written out at once, so that the block can be dropped."""


def tabulate(
    block: SeriesBlock,
    *,
    source: str,
    names: NodeNames,
    node: str | None = None,
    at: datetime | None = None,
    max_ahead: timedelta = MAX_AHEAD,
    query: Query | None = None,
) -> Parsed:
    """Return the tables that the block fills, and what was not believed. A record is a point.

    `node` is who was asked, for series that name no node. Points after `at` + `max_ahead` are refused; None: none are.
    `query` says what series mean that have no name, or one that the catalogue does not know. Points of unknown names,
    or whose labels fit no row of the catalogue, are ignored, as are Prometheus' markers of a series' end.

    Raises ValueError if `query` names a column that does not exist.
    """
    del source  # the caller keeps it beside the result; part of the signature of every reader of a source
    plan = _plan_of(block, names=names, node=node, query=query)
    layout, sites, chosen = replace(plan.layout, block=block), plan.sites, plan.chosen
    time_fates = judge_times(block.times, at=at, max_ahead=max_ahead)
    time_codes, distinct_times = number_times(block)
    fates = np.zeros(len(block.times), np.uint8)
    way_codes = np.zeros(len(block.times), np.uint16)
    ways = [way for way, _ in chosen]
    tables: dict[str, pa.Table] = {}
    for table, work in plan.works.items():
        rows = replace(work, layout=layout).fill(
            [(code, way, series) for code, (way, series) in enumerate(chosen) if way.table == table],
            time_codes=time_codes,
            distinct_times=distinct_times,
            time_fates=time_fates,
            fates=fates,
            way_codes=way_codes,
        )
        if rows is not None:
            tables[table] = rows
    refused = _refusals(layout, ways=ways, sites=sites, fates=fates, way_codes=way_codes, at=at)
    accepted = int(np.count_nonzero(fates == Fate.ACCEPTED))
    return Parsed(
        read=len(fates),
        accepted=accepted,
        ignored=len(fates) - accepted - len(refused),
        refused=refused,
        tables=tables,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Where the series of a block go: what names and labels say, without any point."""

    layout: Layout
    sites: Sites
    chosen: Sequence[tuple[Way, Ints]]
    works: Mapping[str, TableWork]
    """Table -> its units and identities, as far as they were met."""


def _plan_of(block: SeriesBlock, *, names: NodeNames, node: str | None, query: Query | None) -> _Plan:
    """Return the plan, made once for all blocks that are known to have the same series."""
    key = (names, node, query)
    plan = None if block.known is None else block.known.get(key)
    if isinstance(plan, _Plan):
        return plan
    layout = Layout.of(block)
    sites = Sites(label_sets=layout.label_sets, names=names, node=node)
    chosen = choose(layout, fallback=way_of_query(query))
    sites.learn(layout.sets[series] for way, series in chosen if way.table == GPU_TABLE)
    for series in layout.unplaced_gpu_series:
        sites.learn([layout.sets[series]])
    tables = dict.fromkeys(way.table for way, _ in chosen)
    works = {table: TableWork(table=table, layout=layout, sites=sites) for table in tables}
    plan = _Plan(layout=layout, sites=sites, chosen=chosen, works=works)
    if block.known is not None:
        block.known.clear()  # the cluster was declared again
        block.known[key] = plan
    return plan


def _refusals(
    layout: Layout,
    *,
    ways: Sequence[Way],
    sites: Sites,
    fates: NDArray[np.uint8],
    way_codes: NDArray[np.uint16],
    at: datetime | None,
) -> Sequence[Refused]:
    points = np.flatnonzero(fates > Fate.ACCEPTED)
    tables = list(dict.fromkeys(way.table for way in ways))
    table_of_way = np.array([tables.index(way.table) for way in ways], np.uint8)
    values = layout.block.values

    def tell(series: int, point: int) -> str:
        way, code, fate = ways[int(way_codes[point])], int(layout.sets[series]), Fate(int(fates[point]))
        if fate is Fate.NO_DEVICE:
            wanted = "UUID, PCI address or index of a GPU" if way.table == GPU_TABLE else f"labels {way.device.wanted}"
            return f"the labels do not say which part of the node it is; expected {wanted}"
        if fate in (Fate.TWO_NODES, Fate.BAD_PCI_ADDRESS):
            try:
                sites.place(code, table=way.table, device=way.device)
            except ValueError as exc:
                return str(exc)[:500]
        return explain(fate, way.gate, value=float(values[point]), at=at)

    if len(points) == 0:
        return ()
    refused = RefusedPoints(
        layout.block,
        points=points,
        fates=fates[points],
        tables=tables,
        table_codes=table_of_way[way_codes[points]],
        explain=tell,
    )
    return tuple(refused) if len(refused) <= _EAGER_COUNT else refused


# -- answers of metric sources -> rows of the lake --


REJECTED = "rejected_rows"
_NOTHING = SeriesBlock(
    names=(), labels=(), counts=np.zeros(0, np.int64), times=np.zeros(0, np.int64), values=np.zeros(0, np.float64)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRead:
    """One page, read."""

    parsed: Parsed
    block: SeriesBlock
    """Its series as the source gave them, for who judges samples and not rows."""


def read_page(page: Page, *, names: NodeNames) -> PageRead:
    """Return what one page says. Raises SourceNonsense if its body is not what the source promised."""
    refused: tuple[Refused, ...] = ()
    try:
        if page.kind is BodyKind.EXPOSITION:
            exposition = decode_exposition(page.body, default_time=page.end)
            block, refused = exposition.block, exposition.refused
            blocks: Sequence[SeriesBlock] = (block,)
        else:
            block = decode_range_answer(page.body)
            blocks = split_by_known_gpus(block)
    except ValueError as exc:
        if page.kind is BodyKind.RANGE_ANSWER or not isinstance(exc, WrongKind):
            raise SourceNonsense(f"{page.source} answered what cannot be read: {exc}") from exc
        # One odd exporter must not cost the cycle of all others.
        whole = Refused(
            record="page", reason="wrong_kind", detail=str(exc), text=readable(page.body[:200].decode(errors="replace"))
        )
        return PageRead(parsed=Parsed(read=1, accepted=0, ignored=0, refused=(whole,)), block=_NOTHING)
    placed = combine(
        tabulate(each, source=page.source, names=names, node=page.node, at=page.end, query=page.query)
        for each in blocks
    )
    parsed = replace(placed, read=placed.read + len(refused), refused=Joined(refused, placed.refused))
    return PageRead(parsed=parsed, block=block)


def read_block(page: Page) -> SeriesBlock:
    """Return the series of one page and nothing more: no rows are made. Of a page of another kind, none.

    Raises SourceNonsense if a range answer is none.
    """
    try:
        if page.kind is BodyKind.EXPOSITION:
            return decode_exposition(page.body, default_time=page.end).block
        return decode_range_answer(page.body)
    except WrongKind:
        # One odd exporter must not cost the samples of all others.
        return _NOTHING
    except ValueError as exc:
        raise SourceNonsense(f"{page.source} answered what cannot be read: {exc}") from exc


def told_times(block: SeriesBlock) -> set[datetime]:
    """Return the times of which the source stated anything."""
    return {datetime.fromtimestamp(time / 1000, UTC) for time in np.unique(block.times).tolist()}


def within_reach(rows: pa.Table, *, of: datetime) -> pa.Table:
    """Return rows of lines; one dated more than 31 days before `of`, or 5 minutes after it, takes `of` as its time."""
    time = rows.schema.field("time")
    low, high, met = (pa.scalar(at, time.type) for at in (of - timedelta(days=31), of + timedelta(minutes=5), of))
    is_near = pc.and_(pc.greater_equal(rows["time"], low), pc.less_equal(rows["time"], high))
    return rows.set_column(rows.schema.get_field_index("time"), time, pc.if_else(is_near, rows["time"], met))


def watched_samples(page: Page, block: SeriesBlock) -> tuple[Sample, ...]:
    """Return the newest sample of each series that conditions are judged on (`watched_metrics`)."""
    ends = block.counts.cumsum()
    found: list[Sample] = []
    for index, name in enumerate(block.names):
        if name not in watched_metrics() or block.counts[index] == 0:
            continue
        newest = int(ends[index]) - 1
        labels = block.labels[index] if page.node is None else {"node": page.node, **block.labels[index]}
        sampled_at = datetime.fromtimestamp(int(block.times[newest]) / 1000, UTC)
        found.append(Sample(metric=name, labels=labels, value=float(block.values[newest]), sampled_at=sampled_at))
    return tuple(found)


def combine(parts: Iterable[Parsed]) -> Parsed:
    """Return several as one: counts added, rows of a table merged cell by cell, the later part's cells on top.

    Rows that only one part has stay as they are.
    """
    listed = list(parts)
    tables: dict[str, list[pa.Table]] = {}
    for part in listed:
        for name, rows in part.tables.items():
            tables.setdefault(name, []).append(rows)
    return Parsed(
        read=sum(part.read for part in listed),
        accepted=sum(part.accepted for part in listed),
        ignored=sum(part.ignored for part in listed),
        refused=Joined(*(part.refused for part in listed)),
        tables={name: merge(name, rows) if len(rows) > 1 else rows[0] for name, rows in tables.items()},
    )


def settle_nodes(parsed: Parsed, names: NodeNames) -> Parsed:
    """Return the same with nodes named as cluster.yaml names them, and unknown ones marked."""
    return replace(parsed, tables={name: mark_nodes(rows, names) for name, rows in parsed.tables.items()})


def rejected_rows(refused: Sequence[Refused], *, source: str, at: datetime) -> pa.Table:
    """Return rejected records as rows of the lake's own table, so that none is lost; those without a time have `at`."""
    return TABLES[REJECTED].from_rows(
        {
            "source": source,
            "record": each.record,
            "time": each.at or at,
            "into": each.into,
            "reason": each.reason,
            "detail": each.detail,
            "text": each.text,
        }
        for each in refused
    )


def parse_metrics(
    body: bytes, *, source: str, at: datetime, node: str | None = None, names: NodeNames | None = None
) -> Parsed:
    """Return what the file says; `at` is the time of samples without one. Raises WrongKind if it is no such text.

    Where no label names the node, it is `node`; without that, the one that the file's node_uname_info names. With
    `names` a label that cluster.yaml knows wins over one that it does not; without, names stay as they are. Times are
    not compared with `at`: a file may be of any day.
    """
    return place(decode_exposition(as_utf8(body), default_time=at), source=source, node=node, names=names)


def place(exposition: Exposition, *, source: str, node: str | None, names: NodeNames | None) -> Parsed:
    """Return the tables that the decoded text fills, with its unreadable lines among the refused."""
    block = exposition.block
    placed = tabulate(block, source=source, names=names or NodeNames(None), node=node or _own_name(block))
    return Parsed(
        read=placed.read + len(exposition.refused),
        accepted=placed.accepted,
        ignored=placed.ignored,
        refused=Joined(exposition.refused, placed.refused) if placed.refused else exposition.refused,
        tables=placed.tables,
    )


def _own_name(block: SeriesBlock) -> str | None:
    """Return the name by which the node's kernel calls itself, if the file holds one node's."""
    named = {
        labels.get("nodename", "")
        for name, labels in zip(block.names, block.labels, strict=True)
        if name == "node_uname_info"
    }
    return named.pop() or None if len(named) == 1 else None


_PREFIX = "node_"


def parse_node_exporter(
    body: bytes, *, source: str, at: datetime, node: str | None = None, names: NodeNames | None = None
) -> Parsed:
    """Return what the scrape says. Raises WrongKind if it is no exposition text, or of another exporter.

    The scrape itself seldom names its node: give `node`, else the kernel's own name in node_uname_info counts.
    """
    exposition = decode_exposition(as_utf8(body), default_time=at)
    series = exposition.block.names
    if series and not any(name.startswith(_PREFIX) for name in series):
        first = series[0][:80]
        raise WrongKind(f"none of {len(series)} series is node_exporter's (the first is {first!r}); try `metrics`")
    return place(exposition, source=source, node=node, names=names)
