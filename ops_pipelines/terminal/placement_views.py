"""What `ops-pipelines placement` says: the shape of its JSON. Its print is `placement_tables`.

Field names are JSON keys: renaming one breaks the scripts of operators.
"""

from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.efficiency.placement.fragmentation import Fit, HourIndex
from ops_pipelines.efficiency.placement.report import PlacementReport
from ops_pipelines.efficiency.placement.scheduler_policy import PolicyFinding
from ops_pipelines.efficiency.placement.waits import Hole, QueueTimes, Reversal


@dataclass(frozen=True, slots=True, kw_only=True)
class StraddleView:
    job: str
    team: str
    node_count: int
    level: str
    parts: tuple[str, ...]
    fewest: int
    better: tuple[str, ...]
    is_avoidable: bool
    cost: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenView:
    job: str
    team: str
    gpu_count: float
    domain: str
    domain_gpu_count: int
    elsewhere: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HintView:
    node: str
    free_gpus: int
    held_gpus: float
    jobs: tuple[str, ...]
    likely_by: datetime | None
    whole_by: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedView:
    node: str
    """Empty: of all nodes together."""
    why: str
    cause: str
    gpu_hours: float
    gpus_at_the_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillView:
    job: str
    team: str
    limit_seconds: float
    proposed_seconds: float
    run_count: int
    could_have_started_at: datetime
    earlier_seconds: float
    hole_ends_at: datetime | None
    """None: nothing that is known ended it."""
    ended_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedView:
    record: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementView:
    cluster: str
    start: datetime
    end: datetime
    node_count: int
    gpu_count: int
    started_count: int
    sentences: tuple[str, ...]
    straddles: tuple[StraddleView, ...]
    broken_domains: tuple[BrokenView, ...]
    fits: tuple[Fit, ...]
    hours: tuple[HourIndex, ...]
    node_hints: tuple[HintView, ...]
    free_gpu_hours: float
    stranded: tuple[StrandedView, ...]
    backfill: tuple[BackfillView, ...]
    holes: tuple[Hole, ...]
    queue_times: tuple[QueueTimes, ...]
    reversals: tuple[Reversal, ...]
    findings: tuple[PolicyFinding, ...] | None
    """None: nobody tells how the scheduler is set up."""
    notes: tuple[str, ...]
    refused: tuple[RefusedView, ...]


def view_placement(report: PlacementReport, *, cluster: str) -> PlacementView:
    """Return the report as it is shown."""
    day = report.day
    return PlacementView(
        cluster=cluster,
        start=day.start,
        end=day.end,
        node_count=day.node_count,
        gpu_count=day.gpu_count,
        started_count=day.started_count,
        sentences=report.sentences,
        straddles=tuple(
            StraddleView(
                job=each.stay.job,
                team=each.stay.team,
                node_count=len(each.stay.gpus),
                level=each.level.value,
                parts=each.parts,
                fewest=each.fewest,
                better=each.better,
                is_avoidable=each.is_avoidable,
                cost=each.cost.value,
                because=each.because,
            )
            for each in day.straddles
        ),
        broken_domains=tuple(
            BrokenView(
                job=each.stay.job,
                team=each.stay.team,
                gpu_count=each.stay.gpu_count,
                domain=each.domain,
                domain_gpu_count=each.domain_gpu_count,
                elsewhere=each.elsewhere,
            )
            for each in day.broken
        ),
        fits=day.fits,
        hours=day.hours,
        node_hints=tuple(
            HintView(
                node=each.node,
                free_gpus=each.free_gpus,
                held_gpus=each.held_gpus,
                jobs=each.jobs,
                likely_by=each.likely_by,
                whole_by=each.whole_by,
            )
            for each in day.node_hints
        ),
        free_gpu_hours=day.stranded.free_gpu_hours,
        stranded=tuple(
            StrandedView(
                node=each.node,
                why=each.why.value,
                cause=each.cause,
                gpu_hours=each.gpu_hours,
                gpus_at_the_end=each.at_the_end,
            )
            for each in day.stranded.stranded
        ),
        backfill=tuple(
            BackfillView(
                job=each.waiting.job,
                team=each.waiting.team,
                limit_seconds=each.limit_seconds,
                proposed_seconds=each.proposed_seconds,
                run_count=each.run_count,
                could_have_started_at=each.could_have_started_at,
                earlier_seconds=each.earlier_seconds,
                hole_ends_at=each.hole_ends_at if each.ended_by else None,
                ended_by=each.ended_by,
            )
            for each in day.backfill
        ),
        holes=day.holes,
        queue_times=day.queue_times,
        reversals=day.reversals,
        findings=None if day.policy is None else day.policy.findings,
        notes=report.notes,
        refused=tuple(
            RefusedView(record=each.record, reason=each.reason, detail=each.detail) for each in report.refused
        ),
    )
