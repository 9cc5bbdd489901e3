"""Work of jobs that are alike, as rules about advice see it: nothing is wrong with it until a test says so."""

from dataclasses import replace
from datetime import UTC, datetime

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.advice import (
    Advice,
    AdviceKind,
    Attempt,
    Confidence,
    Finding,
    Gain,
    JobWork,
    NodeFailures,
    UseHours,
    Withheld,
)

SINCE = datetime(2026, 11, 16, tzinfo=UTC)
UNTIL = datetime(2026, 11, 23, tzinfo=UTC)
FAILURES = NodeFailures(failure_count=4, node_hours=4_000.0)
"""One in 1,000 node-hours."""
GIB = 2**30


def work(**changes: object) -> JobWork:
    """Return 400 GPU-hours, all measured."""
    made = JobWork(
        team=TeamName("vision"),
        subject="ada/train_#",
        since=SINCE,
        until=UNTIL,
        held_gpu_hours=400.0,
        seen_gpu_hours=400.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # names and types are those of JobWork


def used(verdict: str, gpu_hours: float, **ratios: float) -> dict[str, UseHours]:
    return {verdict: UseHours(gpu_hours=gpu_hours, **ratios)}


def attempt(**changes: object) -> Attempt:
    """Return an attempt of 2 hours of at most 10, on 8 GPUs, that waited for an hour."""
    made = Attempt(elapsed_hours=2.0, limit_hours=10.0, state="COMPLETED", gpu_count=8, waited_hours=1.0)
    return replace(made, **changes)  # type: ignore[arg-type]  # as above


def advice(**changes: object) -> Advice:
    made = Advice(
        kind=AdviceKind.INPUT_STALL,
        team=TeamName("vision"),
        subject="ada/train_#",
        since=SINCE,
        until=UNTIL,
        evidence=("it was seen",),
        counter_evidence=(),
        gain=Gain(low_gpu_hours=10.0, expected_gpu_hours=20.0),
        what_to_do="more workers",
        confidence=Confidence.MEDIUM,
        measure=0.5,
        held_gpu_hours=400.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # as above


def outcome(finding: Finding | None) -> str:
    """Return `nothing`, `said`, or why it is withheld."""
    if finding is None:
        return "nothing"
    return finding.why if isinstance(finding, Withheld) else "said"
