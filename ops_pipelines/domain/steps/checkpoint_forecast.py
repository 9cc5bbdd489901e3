"""What a job has at stake and when its work is saved next, as far as that is known: the ground that `timing` stands on.

What was declared or seen is taken; what is not known is bounded from above, never guessed as fresh.
"""

import math
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.observation import Checkpointing, JobStatus, Workload

_USUAL_SECONDS = (300.0, 600.0, 1_200.0, 2_400.0, 5_400.0, 10_800.0)
"""Distances of checkpoints, taken as equally usual: from 5 minutes (Meta RSC, arXiv 2410.21680) over half an hour
(ByteRobust, arXiv 2509.16293) and an hour (Meta RSC) to 3 hours (BLOOM chronicle), about evenly on a log scale."""
_SEEN_COUNT, _DECLARED_COUNT = 4, 5
"""Of so many jobs that declare checkpoints, those of so many can be seen. Assumption."""
_COMES = 0.95
"""How likely a checkpoint comes that is due. Assumption: one in twenty is late or fails."""
LATE_RATIO = 0.25
"""A checkpoint is missed when it is late by this share of the interval: saves take longer under load. Assumption."""
_SHORTEST_REST_SECONDS = 600.0
_THIRDS = (1 / 6, 1 / 2, 5 / 6)
"""The middles of the thirds of what is spread evenly from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSave:
    """One way in which it may go on: the next checkpoint, and how far apart they are from then on."""

    probability: float
    in_seconds: float
    every_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointForecast:
    """A job's unsaved work and its next checkpoint."""

    unsaved_seconds: float
    """Work that an interruption now destroys; a bound from above unless `is_age_known`."""
    is_age_known: bool
    nexts: tuple[NextSave, ...]
    """Their probabilities sum to 1; empty where checkpoints were neither seen nor declared: none is waited for."""
    comes_probability: float
    """How likely one that is due is seen."""

    @property
    def next_in_seconds(self) -> float:
        """The expected wait for the next one; 0 if none is waited for."""
        return sum(each.probability * each.in_seconds for each in self.nexts)

    @property
    def every_seconds(self) -> float:
        """The expected distance between them; 0 if none is waited for."""
        return sum(each.probability * each.every_seconds for each in self.nexts)


def forecast_checkpoints(job: JobStatus, *, now: datetime) -> CheckpointForecast:
    """Return what is at stake and when it is saved next. A checkpoint of the future counts as one of this moment.

    The start of the attempt bounds the unsaved work: what came before it was saved, or is lost already. An interval
    that is unknown is one of those that others published: each by how likely it would show this age, which is
    1 / interval for those that are longer; none that is longer than what lay between the start and the checkpoint.
    """
    elapsed = elapsed_seconds(job, now=now)
    if job.workload is Workload.INFERENCE:
        return CheckpointForecast(unsaved_seconds=0.0, is_age_known=True, nexts=(), comes_probability=0.0)
    declared = max(0.0, job.checkpoint_every.total_seconds()) if job.checkpoint_every is not None else 0.0
    is_saving = job.checkpointing is Checkpointing.YES or job.checkpointed_at is not None or declared > 0
    if job.checkpointing is Checkpointing.NO or not is_saving:
        is_known = job.checkpointing is Checkpointing.NO
        return CheckpointForecast(unsaved_seconds=elapsed, is_age_known=is_known, nexts=(), comes_probability=0.0)
    if job.checkpointed_at is None:
        return _never_seen(elapsed, declared=declared)
    since_checkpoint = max(0.0, (now - job.checkpointed_at).total_seconds())
    unsaved = min(since_checkpoint, elapsed)
    before_seconds = elapsed - since_checkpoint if since_checkpoint < elapsed else math.inf
    if not declared:
        usual = [each for each in _USUAL_SECONDS if unsaved <= each <= before_seconds * (1 + LATE_RATIO)]
        if usual:
            return CheckpointForecast(
                unsaved_seconds=unsaved,
                is_age_known=True,
                nexts=_weighted([(every - unsaved, every) for every in usual]),
                comes_probability=_COMES,
            )
        declared = max(1.0, min(2 * unsaved, before_seconds))
    missed = math.floor(max(0.0, unsaved / declared - LATE_RATIO))
    # What is only a little late is still on its way; what has been missed is due again at the next full interval.
    is_late = declared <= unsaved < (1 + LATE_RATIO) * declared
    wait = LATE_RATIO * declared if is_late else declared - unsaved % declared
    return CheckpointForecast(
        unsaved_seconds=unsaved,
        is_age_known=True,
        nexts=(NextSave(probability=1.0, in_seconds=wait, every_seconds=declared),),
        comes_probability=_COMES if missed == 0 else 1 / (missed + 1),
    )


def elapsed_seconds(job: JobStatus, *, now: datetime) -> float:
    """Return how long the present attempt has run; 0 if it never ran."""
    return 0.0 if job.started_at is None else max(0.0, (now - job.started_at).total_seconds())


def remaining_seconds(job: JobStatus, *, now: datetime) -> tuple[float, ...]:
    """Return how long the job may go on by itself, each as likely: to its time limit, if it has one.

    Without one by Lindy's law: it has the chance a / (a + t) to go on for t more after a. Returned are the middles of
    that distribution's thirds: a fifth of, as much as, and five times what it has run.
    """
    if job.ends_by is not None:
        return (max(0.0, (job.ends_by - now).total_seconds()),)
    elapsed = max(_SHORTEST_REST_SECONDS, elapsed_seconds(job, now=now))
    return tuple(elapsed * quantile / (1 - quantile) for quantile in _THIRDS)


def _never_seen(elapsed: float, *, declared: float) -> CheckpointForecast:
    """Declared and not seen: the more of them should have been seen, the less is the next one to be relied upon.

    By the rule of succession: after n that were not seen, the next is with `_SEEN_COUNT` / (n + `_DECLARED_COUNT`).
    """
    if declared and elapsed < declared:
        nexts, unseen_count = _weighted([(declared - elapsed, declared)]), 0.0
    elif declared:
        nexts, unseen_count = _weighted([(declared * share, declared) for share in _THIRDS]), elapsed // declared
    else:
        nexts = _weighted([(every / 2, every) for every in _USUAL_SECONDS])
        unseen_count = elapsed // sum(each.probability * each.every_seconds for each in nexts)
    return CheckpointForecast(
        unsaved_seconds=elapsed,
        is_age_known=False,
        nexts=nexts,
        comes_probability=_SEEN_COUNT / (unseen_count + _DECLARED_COUNT),
    )


def _weighted(waits: list[tuple[float, float]]) -> tuple[NextSave, ...]:
    """Return ways to go on, (wait, interval), each as likely as its interval shows a given age."""
    total = sum(1 / every for _, every in waits)
    return tuple(NextSave(probability=1 / every / total, in_seconds=wait, every_seconds=every) for wait, every in waits)
