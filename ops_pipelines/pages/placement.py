"""The page of one day's placement: who waited, what stood apart, what could not be had, in pieces. Values in, HTML out.

Advice to whoever runs the scheduler: the page changes nothing. Job names are left out; numbers of jobs suffice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from ops_pipelines.efficiency.placement.day import PlacementDay
from ops_pipelines.efficiency.placement.report import PlacementReport
from ops_pipelines.efficiency.placement.straddling import Straddle
from ops_pipelines.efficiency.placement.waits import QueueTimes, SizeClass
from ops_pipelines.pages.amounts import gpus, hours, part_of, span
from ops_pipelines.pages.placement_tables import ROWS, tables_of
from ops_pipelines.pages.render import render
from ops_pipelines.pages.rollouts import clipped

_STEPS = (0.05, 0.15, 0.3, 0.5)
"""From here on a colour darker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementMatter:
    """What the page is made from."""

    cluster: str
    day: date
    report: PlacementReport | None
    """None: there is none; `why_not` says why."""
    why_not: str
    days: Sequence[date]
    """Days to choose, newest first."""
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queue:
    who: str
    jobs: int
    waiting: int
    median: str
    p90: str
    p90_wide: float
    long_ratio: float
    mostly_for: str
    is_few: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    at: float
    wide: float
    step: int
    said: str


def write_placement(matter: PlacementMatter) -> str:
    """Return the page."""
    report = matter.report
    values: dict[str, object] = {
        "cluster": matter.cluster,
        "day": matter.day,
        "days": matter.days,
        "why_not": matter.why_not,
        "report": report,
        "now": matter.now,
    }
    return render("placement.html", values | ({} if report is None else _reported(report)))


def stranded_gpu_hours(day: PlacementDay) -> float:
    """Return how many free GPU-hours nobody could have had."""
    return float(sum(each.gpu_hours for each in day.stranded.stranded))


def _reported(report: PlacementReport) -> dict[str, object]:
    day = report.day
    every = [each for each in day.queue_times if each.team is None]
    job_count = sum(each.job_count for each in every)
    pieces = [each.index_ratio for each in day.hours]
    return {
        "sentences": [clipped(each) for each in report.sentences],
        "since": day.start,
        "until": day.end,
        "node_count": day.node_count,
        "gpu_count": day.gpu_count,
        "long_ratio": sum(each.long_ratio * each.job_count for each in every) / job_count if job_count else None,
        "job_count": job_count,
        "started_count": day.started_count,
        "stranded": hours(stranded_gpu_hours(day)),
        "free": hours(day.stranded.free_gpu_hours),
        "pieces_ratio": sum(pieces) / len(pieces) if pieces else None,
        # A job may stand in several racks and in several leaves: it is one job.
        "straddle_count": len({_start(each) for each in day.straddles}),
        "avoidable_count": len({_start(each) for each in day.straddles if each.is_avoidable}),
        "queues": _queues(every, whole=_most(every)),
        "team_queues": [
            (size.value, _queues(of_size, whole=_most(of_size)))
            for size in SizeClass
            if (of_size := [each for each in day.queue_times if each.size is size and each.team is not None])
        ],
        "cells": _cells(day),
        "begins": None if not day.hours else day.hours[0].hour,
        "tables": tables_of(day),
        "findings": None if day.policy is None else day.policy.findings[: 2 * ROWS],
        "unknown_rules": () if day.policy is None else day.policy.unknown[:ROWS],
        "notes": [clipped(each) for each in report.notes],
        "refused": _by_reason(report),
    }


def _most(queues: Iterable[QueueTimes]) -> float:
    return max((each.p90_seconds for each in queues), default=0.0)


def _queues(queues: Iterable[QueueTimes], *, whole: float) -> list[_Queue]:
    return [
        _Queue(
            who=each.size.value if each.team is None else clipped(each.team or "team not known", at_most=60),
            jobs=each.job_count,
            waiting=each.waiting_count,
            median=span(each.median_seconds),
            p90=span(each.p90_seconds),
            p90_wide=part_of(each.p90_seconds, whole),
            long_ratio=each.long_ratio,
            mostly_for=clipped(each.mostly_for, at_most=60),
            is_few=each.is_few,
        )
        for each in queues
    ]


def _cells(day: PlacementDay) -> list[_Cell]:
    """Return the strip of hours, darker where more whole nodes were in pieces."""
    count = len(day.hours)
    return [
        _Cell(
            at=round(100 * number / count, 3),
            wide=round(100 / count, 3),
            step=sum(each.index_ratio >= step for step in _STEPS),
            said=f"{each.hour:%H:%M} UTC: {each.index_ratio:.0%} in pieces, {gpus(each.free_gpus)} GPUs free",
        )
        for number, each in enumerate(day.hours)
    ]


def _start(each: Straddle) -> tuple[str, datetime]:
    return each.stay.job, each.stay.began_at


def _by_reason(report: PlacementReport) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for each in report.refused:
        found[each.reason] = found.get(each.reason, 0) + 1
    return found
