"""Answers of metric sources -> rows of the lake: decoded, placed, gated. The one way in, live and for history."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.sources import BodyKind, Page, Sample, SourceNonsense
from ops_pipelines.frames.hours import merge
from ops_pipelines.frames.metrics.exposition import decode_exposition
from ops_pipelines.frames.metrics.known_gpus import split_by_known_gpus
from ops_pipelines.frames.metrics.range_answer import decode_range_answer
from ops_pipelines.frames.metrics.refused_points import Joined
from ops_pipelines.frames.metrics.series import SeriesBlock
from ops_pipelines.frames.metrics.tabulate import tabulate
from ops_pipelines.frames.node_names import NodeNames, mark_nodes
from ops_pipelines.frames.parsed import Parsed, Refused, WrongKind, readable
from ops_pipelines.frames.schema import TABLES
from ops_pipelines.frames.telemetry import watched_metrics

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
    """Return the times of which the source said anything."""
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
