"""The tables of the page of placement: rows of words, the first of each, and how many are left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.efficiency.placement.day import PlacementDay
from ops_pipelines.efficiency.placement.straddling import Straddle
from ops_pipelines.pages.amounts import gpus, hours, span
from ops_pipelines.pages.rollouts import clipped

ROWS = 15
"""Of each table; the asset's page and the command have the others."""
_NAMES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of words: what stands in it, and how many rows were left out."""

    title: str
    about: str
    heads: tuple[tuple[str, bool], ...]
    """Each with whether it is a number."""
    rows: Sequence[tuple[str, ...]]
    left_count: int
    empty: str


def tables_of(day: PlacementDay) -> tuple[Table, ...]:
    """Return the tables in the order of the page."""
    return _stranded(day), _straddling(day), _fits(day), _hints(day), _backfill(day), _holes(day)


def _stranded(day: PlacementDay) -> Table:
    return _table(
        "Free, and out of reach",
        "GPUs that nobody held and nobody could have had",
        "Node|Why|What the source says|GPU-hours#|at the end#",
        [
            (each.node or "all", each.why.value, each.cause, hours(each.gpu_hours), gpus(each.at_the_end))
            for each in day.stranded.stranded
        ],
        empty="Every free GPU could have been had.",
    )


def _straddling(day: PlacementDay) -> Table:
    # What could have been better comes first.
    ordered = sorted(day.straddles, key=lambda each: (not each.is_avoidable, each.cost.value != "high"))
    return _table(
        "Jobs that stood apart",
        "what could have stood better comes first",
        "Job|Team|Nodes#|In several|Parts|Had room|Cost",
        [_straddle(each) for each in ordered],
        empty="No job of several nodes stood apart.",
    )


def _straddle(each: Straddle) -> tuple[str, ...]:
    return (
        each.stay.job,
        each.stay.team,
        str(len(each.stay.gpus)),
        each.level.value,
        f"{len(each.parts)}, could be {each.fewest}" if each.is_avoidable else str(len(each.parts)),
        _named(each.better) or "nothing better",
        f"{each.cost.value}: {each.because}",
    )


def _fits(day: PlacementDay) -> Table:
    return _table(
        "What could start at the end of the day",
        "jobs of one size, and how many the number of free GPUs alone would allow",
        "GPUs a node#|Nodes#|Within|Could start#|By number#",
        [
            (
                str(each.gpus_per_node),
                str(each.node_count),
                each.within.value,
                str(each.could_start),
                str(each.by_count),
            )
            for each in day.fits
            if each.by_count > each.could_start
        ],
        empty="As many of each size as the free GPUs allow.",
    )


def _hints(day: PlacementDay) -> Table:
    return _table(
        "Nodes that become whole next",
        "when the jobs that keep them in pieces end; nothing is moved",
        "Node|Free#|Held#|By jobs|Likely whole|At the latest",
        [
            (
                each.node,
                gpus(each.free_gpus),
                gpus(each.held_gpus),
                _named(each.jobs),
                _moment(each.likely_by),
                _moment(each.whole_by),
            )
            for each in day.node_hints
        ],
        empty="No node is in pieces.",
    )


def _backfill(day: PlacementDay) -> Table:
    return _table(
        "Time limits that kept jobs waiting",
        "with what such jobs needed before, they would have started earlier",
        "Job|Team|Asked#|Enough#|Past runs#|Earlier by#|Before",
        [
            (
                each.waiting.job,
                each.waiting.team,
                span(each.limit_seconds),
                span(each.proposed_seconds),
                str(each.run_count),
                span(each.earlier_seconds),
                each.ended_by,
            )
            for each in day.backfill
        ],
        empty="None.",
    )


def _holes(day: PlacementDay) -> Table:
    return _table(
        "Free right before a reservation",
        "nobody's time limit fitted",
        "Node|From|To|GPU-hours#|Before",
        [
            (each.node, _moment(each.since), _moment(each.until), hours(each.gpu_hours), each.cause)
            for each in day.holes
        ],
        empty="None.",
    )


def _table(title: str, about: str, heads: str, rows: Sequence[tuple[str, ...]], *, empty: str) -> Table:
    """Return a table; of `heads`, apart by bars, those with a `#` stand over numbers."""
    return Table(
        title=title,
        about=about,
        heads=tuple((each.rstrip("#"), each.endswith("#")) for each in heads.split("|")),
        rows=[tuple(clipped(cell, at_most=120) for cell in row) for row in rows[:ROWS]],
        left_count=max(0, len(rows) - ROWS),
        empty=empty,
    )


def _named(names: Sequence[str]) -> str:
    left = len(names) - _NAMES
    return ", ".join(clipped(each, at_most=30) for each in names[:_NAMES]) + (f" and {left} more" if left > 0 else "")


def _moment(at: datetime | None) -> str:
    return "not known" if at is None else f"{at:%m-%d %H:%M} UTC"
