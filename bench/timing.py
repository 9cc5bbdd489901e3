"""Does it pay to choose the moment of an interruption by its cost? Ours against fixed rules, on made-up histories.

Each history is thirty faults on running jobs (`bench.timing_histories`). The rules that forbid an interruption, and the
operator's limit on the wait for a checkpoint, hold for every policy, so that moments alone are compared; where no
checkpoint is to be seen, always-at-checkpoint waits for the job's end. Reported are the mean lost GPU-hours of a
history, and the paired difference to the best fixed rule with its 95 % bootstrap interval. Run it with `python -m
bench.timing`; it returns 1 where ours is more than 1 % worse than the best fixed rule of a load, or not better on the
mixed one.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.timing_histories import COSTS, LOADS, NOTICED_AT, Fault, Fit, draw_history
from ops_pipelines.core.finding import Hazard
from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import Checkpointing, JobState, JobStatus, Workload
from ops_pipelines.core.plan import JobTiming, Moment
from ops_pipelines.core.policy import RecoveryLimits
from ops_pipelines.remediate.timing import choose_moment, is_moment
from ops_pipelines.resources.catalogue_files import read_hazards

DOCS = Path(__file__).parent.parent / "docs" / "REMEDIATION.md"
FIRST_SEED = 2_000
"""Those that are reported. The model was worked out on seeds below 100."""
MOST_WORSE_RATIO = 0.01
LIMITS = RecoveryLimits()
OURS = "by cost"
_RESAMPLES = 2_000


def decide(fault: Fault) -> JobTiming:
    """Return what `choose_moment` says when the fault is noticed."""
    return choose_moment(
        fault.job,
        hazard=fault.hazard,
        costs=fault.costs,
        has_room=fault.has_room,
        limits=LIMITS,
        moved_count=0,
        is_still_serving=fault.is_still_serving,
        noticed_at=None,
        now=NOTICED_AT,
    )


def lost_by_cost(fault: Fault, timing: JobTiming) -> float:
    """Return what is lost if the hold begins when `is_moment` first says so."""
    held_in = _held_in(fault, timing)
    return fault.lost_gpu_hours(held_in, after_notice=timing.moment is Moment.AFTER_NOTICE)


def _held_in(fault: Fault, timing: JobTiming) -> float:
    looks = [0.0]
    if timing.moment is Moment.NEXT_CHECKPOINT and fault.are_saves_seen:
        looks += fault.saves_in[:50]
    if timing.until is not None:
        looks.append((timing.until - NOTICED_AT).total_seconds())
    for seconds in sorted(looks):
        now = NOTICED_AT + timedelta(seconds=seconds)
        saved = [at for at in fault.saves_in if at <= seconds] if fault.are_saves_seen else []
        seen_at = NOTICED_AT + timedelta(seconds=saved[-1]) if saved else fault.job.checkpointed_at
        job = replace(fault.job, checkpointed_at=seen_at)
        if is_moment(timing, job, noticed_at=NOTICED_AT, now=now):
            return seconds + fault.look
    return math.inf


def _is_forbidden(fault: Fault, timing: JobTiming) -> bool:
    serves_too_few = fault.job.workload is Workload.INFERENCE and not fault.is_still_serving
    return timing.moment is Moment.NEVER or serves_too_few


def lost_now(fault: Fault, timing: JobTiming) -> float:
    return fault.lost_gpu_hours(math.inf if _is_forbidden(fault, timing) else fault.look)


def lost_at_checkpoint(fault: Fault, timing: JobTiming) -> float:
    if not fault.are_saves_seen or _is_forbidden(fault, timing):
        return fault.lost_gpu_hours(math.inf)
    first = min(fault.saves_in, default=math.inf)
    return fault.lost_gpu_hours(min(first, LIMITS.checkpoint_wait.total_seconds()) + fault.look)


def lost_at_job_end(fault: Fault, timing: JobTiming) -> float:
    return fault.lost_gpu_hours(math.inf)


POLICIES: Mapping[str, Callable[[Fault, JobTiming], float]] = {
    OURS: lost_by_cost,
    "always now": lost_now,
    "always at checkpoint": lost_at_checkpoint,
    "always at job end": lost_at_job_end,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One load: mean lost GPU-hours a history by policy, and ours less the best fixed rule's."""

    load: str
    fit: Fit
    history_count: int
    means: Mapping[str, float]
    best_fixed: str
    difference: float
    low: float
    high: float

    @property
    def worse_ratio(self) -> float:
        """How much more ours loses than the best fixed rule, as a share; negative where it loses less."""
        return self.difference / self.means[self.best_fixed]

    @property
    def holds(self) -> bool:
        """Whether it is what is claimed."""
        return self.worse_ratio <= MOST_WORSE_RATIO and (self.load != "mixed" or self.high < 0)


def compare(load: str, fit: Fit, *, histories: int, first_seed: int = FIRST_SEED) -> Comparison:
    """Return how the policies fare on the same histories."""
    hazards = read_hazards()
    lost: dict[str, list[float]] = {name: [] for name in POLICIES}
    for seed in range(first_seed, first_seed + histories):
        decided = [(fault, decide(fault)) for fault in draw_history(load, fit, hazards, seed=seed)]
        for name, policy in POLICIES.items():
            lost[name].append(sum(policy(fault, timing) for fault, timing in decided))
    means = {name: sum(each) / histories for name, each in lost.items()}
    best_fixed = min((name for name in POLICIES if name != OURS), key=lambda name: means[name])
    differences = np.array(lost[OURS]) - np.array(lost[best_fixed])
    low, high = bootstrap_interval(differences)
    return Comparison(
        load=load,
        fit=fit,
        history_count=histories,
        means=means,
        best_fixed=best_fixed,
        difference=float(differences.mean()),
        low=low,
        high=high,
    )


def bootstrap_interval(differences: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean."""
    random = np.random.default_rng(1)
    count = len(differences)
    means = differences[random.integers(count, size=(_RESAMPLES, count))].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def moments_by_age(
    hazard: Hazard, *, every: timedelta = timedelta(hours=1), ends_in: timedelta = timedelta(hours=48)
) -> tuple[tuple[int, JobTiming], ...]:
    """Return what is chosen for a job whose checkpoint is 1, 2, ... 55 minutes old: eight GPUs, ten hours in."""
    return tuple((minutes, _at_age(hazard, minutes, every=every, ends_in=ends_in)) for minutes in range(1, 56))


def _at_age(hazard: Hazard, minutes: int, *, every: timedelta, ends_in: timedelta) -> JobTiming:
    job = JobStatus(
        job=JobId("1"),
        state=JobState.RUNNING,
        is_held=False,
        is_requeueable=True,
        name="train",
        user="user",
        account="account",
        workload=Workload.TRAINING,
        nodes=frozenset(),
        gpu_count=8,
        started_at=NOTICED_AT - timedelta(hours=10),
        ended_at=None,
        restart_count=0,
        excluded_nodes=frozenset(),
        checkpointed_at=NOTICED_AT - timedelta(minutes=minutes),
        checkpointing=Checkpointing.YES,
        checkpoint_every=every,
        ends_by=NOTICED_AT + ends_in,
    )
    return choose_moment(
        job,
        hazard=hazard,
        costs=COSTS,
        has_room=True,
        limits=LIMITS,
        moved_count=0,
        is_still_serving=True,
        noticed_at=None,
        now=NOTICED_AT,
    )


TIMING_HEADING = ("fault", "ends the job, per hour", "slows it by", "2 h left", "12 h left", "48 h left")


def timing_rows(hazards: Sequence[Hazard]) -> list[tuple[str, ...]]:
    """Return for each hazard the moment by the age of the checkpoint, for three lengths of what remains of the job."""
    alike: dict[tuple[float, float], list[Hazard]] = {}
    for hazard in hazards:
        alike.setdefault((-hazard.ends_job_per_hour, -hazard.slowdown_ratio), []).append(hazard)
    rows: list[tuple[str, ...]] = [TIMING_HEADING]
    for _, group in sorted(alike.items()):
        first = group[0]
        moments = [crossovers(moments_by_age(first, ends_in=timedelta(hours=hours))) for hours in (2, 12, 48)]
        rate = "at once" if first.has_ended_job else f"{first.ends_job_per_hour:g}"
        slowdown = f"{first.slowdown_ratio:.0%}"
        rows.append((", ".join(map(_fault_words, group)), rate, slowdown, *moments))
    return rows


def _fault_words(hazard: Hazard) -> str:
    family = hazard.family.value if hazard.family else "any"
    return f"{family} {hazard.first_action.value}" if hazard.first_action else family


def crossovers(chosen: Sequence[tuple[int, JobTiming]]) -> str:
    """Return the moments in words: `1-3 min now; 4-55 min next checkpoint`."""
    spans: list[tuple[int, int, Moment]] = []
    for minutes, timing in chosen:
        if spans and spans[-1][2] is timing.moment:
            spans[-1] = (spans[-1][0], minutes, timing.moment)
        else:
            spans.append((minutes, minutes, timing.moment))
    if len(spans) == 1:
        return spans[0][2].value.replace("_", " ")
    return "; ".join(f"{first}-{last} min {moment.value.replace('_', ' ')}" for first, last, moment in spans)


RESULT_HEADING = ("load", "hazards", *POLICIES, "against the best fixed rule (95 %)", "holds")


def result_rows(compared: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """Return the comparison as rows of text, GPU-hours a history."""
    rows: list[tuple[str, ...]] = [RESULT_HEADING]
    for each in compared:
        means = [f"{each.means[name]:,.0f}" for name in POLICIES]
        against = f"{each.best_fixed}: {each.difference:+,.0f} ({each.low:+,.0f} to {each.high:+,.0f})"
        told = f"{against}, {each.worse_ratio:+.1%}"
        rows.append((each.load, each.fit.value, *means, told, "yes" if each.holds else "NO"))
    return rows


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as a table in Markdown."""
    heading, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return [heading, "| " + " | ".join("---" for _ in rows[0]) + " |", *body]


def with_table(text: str, name: str, lines: Sequence[str]) -> str:
    """Return a document with what is between the markers of `name` replaced; raises ValueError without them."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the document has not exactly one {begin} and one {end}; put them where the table belongs")
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return "\n".join([head + begin, *lines, end + tail])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or put them into the docs; return 1 where the claim does not hold."""
    parser = argparse.ArgumentParser(description="Timing by cost against fixed rules.")
    parser.add_argument("--histories", type=int, default=400, help="histories a load, at least 200 for a claim")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--write-docs", action="store_true", help=f"put the tables into {DOCS.name} instead")
    options = parser.parse_args(arguments)
    compared = [
        compare(load, fit, histories=options.histories, first_seed=options.first_seed) for load in LOADS for fit in Fit
    ]
    tables = {
        "timing results": table_lines(result_rows(compared)),
        "timing table": table_lines(timing_rows(read_hazards())),
    }
    if options.write_docs:
        text = DOCS.read_text(encoding="utf-8")
        for name, lines in tables.items():
            text = with_table(text, name, lines)
        DOCS.write_text(text, encoding="utf-8")
    else:
        for name, lines in tables.items():
            sys.stdout.write("\n".join([f"## {name}", "", *lines, "", ""]))
    return 0 if all(each.holds for each in compared) else 1


if __name__ == "__main__":
    sys.exit(main())
