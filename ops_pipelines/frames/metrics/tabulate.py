"""Decoded series -> wide tables of the lake: each series placed by the catalogue, each point past the hard gates.

A row is (node, device, time); cells are in the column's unit. Works per distinct label set and per column, never per
point in Python: a cycle of a large cluster has hundreds of thousands of series. What a label means stands in
`node_names`, `gpu_labels` and `ways`, what is impossible in `gates`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ops_pipelines.core.sources import Query
from ops_pipelines.frames.metrics.cells import Ints
from ops_pipelines.frames.metrics.gates import MAX_AHEAD, Fate, explain, judge_times
from ops_pipelines.frames.metrics.layout import Layout, choose, number_times
from ops_pipelines.frames.metrics.refused_points import RefusedPoints
from ops_pipelines.frames.metrics.series import SeriesBlock
from ops_pipelines.frames.metrics.sites import GPU_TABLE, Sites
from ops_pipelines.frames.metrics.ways import Way, way_of_query
from ops_pipelines.frames.metrics.wide_table import TableWork
from ops_pipelines.frames.node_names import NodeNames
from ops_pipelines.frames.parsed import Parsed, Refused

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
        block.known.clear()  # the cluster was declared anew
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
