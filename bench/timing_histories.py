"""Made-up histories of faults on running jobs: what is seen of each, and what truly comes of it.

All times of the truth are seconds after the fault is noticed. Every policy meets the same history (common random
numbers). In a history that fits, faults strike as catalogue/fault_hazards.csv says; in one that does not, rates are
off by a log-normal factor (sigma 1, so 1.6 times too low on average), strikes are not memoryless (Weibull, shape 0.7),
one in ten that is called dead is not and one in twenty that is not called dead is, and restarts take other times than
measured. What a job has at stake, when it truly ends, and late or missing checkpoints are never reported in either.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum

import numpy as np

from ops_pipelines.core.finding import Hazard
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import Checkpointing, JobState, JobStatus, Workload
from ops_pipelines.core.plan import RestartCosts

NOTICED_AT = datetime(2026, 11, 21, tzinfo=UTC)
FAULTS_PER_HISTORY = 30
_HOUR, _MINUTE = 3600.0, 60.0
_LOOK_SECONDS = 15.0
_LONGEST = 14 * 24 * _HOUR
"""No job continues for longer: Meta RSC ends jobs after 7 days."""


class Fit(Enum):
    """Whether faults do what the table says."""

    FITS = "as the table says"
    IS_OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault on one job: what is seen, and then the truth."""

    job: JobStatus
    hazard: Hazard
    costs: RestartCosts
    has_room: bool
    is_still_serving: bool

    strikes_in: float
    """When it ends the job if it continues; 0: the job is dead already."""
    slowdown_ratio: float
    unsaved: float
    saves_in: tuple[float, ...]
    """When its work is saved, seen or not."""
    are_saves_seen: bool
    ends_in: float
    """When the job would end by itself, unharmed."""
    move: float
    """Restart and queue."""
    detection: float
    look: float
    """From a moment to our next look."""
    does_owner_save: bool

    def lost_gpu_hours(self, held_in: float, *, after_notice: bool = False) -> float:
        """Return what is lost if the job is interrupted `held_in` seconds after the fault; infinite: never."""
        over = min(held_in, self.strikes_in, self.ends_in)
        seconds = self.slowdown_ratio * over
        if over < self.ends_in or self.strikes_in == 0.0:
            seconds += self.move
            if self.strikes_in < held_in:
                seconds += self.detection + self._unsaved_at(over)
            elif not (after_notice and self.does_owner_save):
                seconds += self._unsaved_at(over)
        return seconds * self.job.gpu_count / _HOUR

    def _unsaved_at(self, seconds: float) -> float:
        if self.job.workload is Workload.INFERENCE:
            return 0.0
        saved = [at for at in self.saves_in if at <= seconds]
        return seconds - saved[-1] if saved else self.unsaved + seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What sort of job is hit."""

    workload: Workload
    gpu_counts: Sequence[int]
    every: float
    """Distance of its checkpoints in seconds; 0: it truly keeps none."""
    are_saves_seen: bool
    checkpointing: Checkpointing = Checkpointing.YES
    usual_hours: float = 8.0
    limit_hours: float = 48.0


Draw = Callable[[np.random.Generator], _Work]
_SMALL, _LARGE = (8, 8, 16, 16, 32, 64, 128, 256, 512), (1024, 2048, 4096, 8192, 16384)
COSTS = RestartCosts(measured_count=20)
LARGE_COSTS = RestartCosts(restart_seconds=900.0, queue_seconds=120.0, measured_count=20)
"""Source: Meta RSC, a start of the largest jobs takes 5 to 20 minutes (arXiv 2410.21680)."""


def _training(random: np.random.Generator) -> _Work:
    return _Work(
        workload=Workload.TRAINING,
        gpu_counts=_SMALL,
        every=_between(random.lognormal(math.log(45), 0.8), 5, 240) * _MINUTE,
        are_saves_seen=True,
    )


def _large(random: np.random.Generator) -> _Work:
    every = _between(random.lognormal(math.log(25), 0.5), 5, 90) * _MINUTE
    return replace(_training(random), gpu_counts=_LARGE, every=every, usual_hours=20.0, limit_hours=14 * 24.0)


def _unseen(random: np.random.Generator) -> _Work:
    work = replace(_training(random), are_saves_seen=False, checkpointing=Checkpointing.UNKNOWN)
    workload = (Workload.TRAINING, Workload.BATCH, Workload.UNKNOWN)[int(random.integers(3))]
    return replace(work, workload=workload, every=work.every if random.random() < 0.5 else 0.0)


def _batch(random: np.random.Generator) -> _Work:
    says = Checkpointing.NO if random.random() < 0.3 else Checkpointing.UNKNOWN
    return _Work(
        workload=Workload.BATCH,
        gpu_counts=(1, 4, 8, 8, 16, 32),
        every=0.0,
        are_saves_seen=False,
        checkpointing=says,
        usual_hours=3.0,
        limit_hours=24.0,
    )


def _replica(random: np.random.Generator) -> _Work:
    return replace(
        _batch(random), workload=Workload.INFERENCE, gpu_counts=(4, 8, 16), usual_hours=72.0, limit_hours=0.0
    )


def _session(random: np.random.Generator) -> _Work:
    return replace(_batch(random), workload=Workload.INTERACTIVE, gpu_counts=(1, 1, 2, 8), limit_hours=12.0)


def _mixed(random: np.random.Generator) -> _Work:
    kinds: Sequence[Draw] = (_training, _unseen, _batch, _replica, _session)
    return kinds[int(random.choice(5, p=(0.4, 0.15, 0.2, 0.1, 0.15)))](random)


LOADS: Mapping[str, Draw] = {
    "training with checkpoints": _training,
    "mixed": _mixed,
    "large synchronous training": _large,
    "checkpoints unknown": _unseen,
}


def draw_history(load: str, fit: Fit, hazards: Sequence[Hazard], *, seed: int) -> tuple[Fault, ...]:
    """Return the faults of one history; the same seed gives the same jobs, whether the table fits or not."""
    random = np.random.default_rng([seed, *load.encode()])
    return tuple(
        _draw_fault(LOADS[load](random), number, fit, hazards, random=random) for number in range(FAULTS_PER_HISTORY)
    )


def _draw_fault(work: _Work, number: int, fit: Fit, hazards: Sequence[Hazard], *, random: np.random.Generator) -> Fault:
    hazard = _draw_hazard(hazards, random=random)
    costs = LARGE_COSTS if work.gpu_counts is _LARGE else COSTS
    has_room = bool(random.random() < 0.8)
    elapsed = _between(random.lognormal(math.log(work.usual_hours), 1.0), 0.1, 400) * _HOUR
    unsaved = elapsed % work.every if work.every else elapsed
    if work.workload is Workload.INTERACTIVE:
        unsaved = min(elapsed, random.exponential(_HOUR))
    has_limit, rest = bool(random.random() < 0.75) and work.limit_hours > 0, random.exponential(1.0)
    limit_in = max(work.limit_hours * _HOUR - elapsed, rest * work.limit_hours / 2 * _HOUR) if has_limit else math.inf
    # Half of the jobs with a limit run into it, as chained trainings do; the others end somewhere before.
    share = max(0.02, min(1.0, 2 * float(random.random())))
    endless = elapsed * (1 / max(0.02, float(random.random())) - 1)
    ends_in = min(_LONGEST, limit_in * share if has_limit else endless)
    strikes_in, slowdown = _draw_strike(hazard, fit, random=random)
    off_costs, luck = float(random.lognormal(0, 0.3)), float(random.lognormal(-0.08, 0.4))
    usual = costs.restart_seconds + (costs.queue_seconds if has_room else costs.no_room_queue_seconds)
    saves_in = _draw_saves(work.every, unsaved, until=ends_in, random=random)
    return Fault(
        job=_draw_job(work, number, elapsed=elapsed, unsaved=unsaved, limit_in=limit_in, random=random),
        hazard=hazard,
        costs=costs,
        has_room=has_room,
        is_still_serving=bool(random.random() < 0.8),
        strikes_in=strikes_in,
        slowdown_ratio=slowdown,
        unsaved=unsaved,
        saves_in=saves_in,
        are_saves_seen=work.are_saves_seen,
        ends_in=ends_in,
        move=usual * luck * (off_costs if fit is Fit.IS_OFF else 1.0),
        detection=600.0 if random.random() < 0.125 else _LOOK_SECONDS * float(random.random()),
        look=_LOOK_SECONDS * float(random.random()),
        does_owner_save=bool(random.random() < 0.8),
    )


def _draw_job(
    work: _Work, number: int, *, elapsed: float, unsaved: float, limit_in: float, random: np.random.Generator
) -> JobStatus:
    is_interval_seen = work.are_saves_seen and bool(random.random() < 0.8)
    # What an earlier attempt saved is seen of half of the jobs that have not come to their first checkpoint.
    earlier = timedelta(seconds=work.every * float(random.random())) if random.random() < 0.5 else None
    since = timedelta(seconds=unsaved) if elapsed > work.every else earlier and timedelta(seconds=elapsed) + earlier
    is_seen = work.are_saves_seen and work.every > 0
    return JobStatus(
        job=JobId(str(number)),
        state=JobState.RUNNING,
        is_held=False,
        is_requeueable=True,
        name="job",
        user="user",
        account="account",
        workload=work.workload,
        nodes=frozenset({NodeName("gpu001")}),
        gpu_count=int(work.gpu_counts[int(random.integers(len(work.gpu_counts)))]),
        started_at=NOTICED_AT - timedelta(seconds=elapsed),
        ended_at=None,
        restart_count=0,
        excluded_nodes=frozenset(),
        checkpointed_at=NOTICED_AT - since if is_seen and since is not None else None,
        checkpointing=work.checkpointing,
        checkpoint_every=timedelta(seconds=work.every) if is_interval_seen else None,
        ends_by=None if math.isinf(limit_in) else NOTICED_AT + timedelta(seconds=limit_in),
        service="service" if work.workload is Workload.INFERENCE else "",
    )


def _draw_hazard(hazards: Sequence[Hazard], *, random: np.random.Generator) -> Hazard:
    """Return a row of the table: one fault in four has ended the job already."""
    is_dead = bool(random.random() < 0.25)
    rows = [row for row in hazards if row.has_ended_job is is_dead]
    return rows[int(random.integers(len(rows)))]


def _draw_strike(hazard: Hazard, fit: Fit, *, random: np.random.Generator) -> tuple[float, float]:
    """Return when the fault ends the job, and how much it slows it until then."""
    quantile, off_rate, off_slowdown = random.random(), random.lognormal(0, 1.0), random.lognormal(0, 0.5)
    mistaken = random.random()
    rate, is_dead = hazard.ends_job_per_hour, hazard.has_ended_job
    unit = -math.log1p(-quantile)
    if fit is Fit.FITS:
        return (0.0 if is_dead else unit / rate * _HOUR), hazard.slowdown_ratio
    if mistaken < (0.1 if is_dead else 0.05):
        is_dead, rate = not is_dead, 2.0
    shape = 0.7
    strikes_in = unit ** (1 / shape) / math.gamma(1 + 1 / shape) / (rate * float(off_rate)) * _HOUR
    return (0.0 if is_dead else strikes_in), min(0.9, hazard.slowdown_ratio * float(off_slowdown))


def _draw_saves(every: float, unsaved: float, *, until: float, random: np.random.Generator) -> tuple[float, ...]:
    """Return when work is saved: each interval a tenth longer or shorter, one save in twenty fails."""
    if not every:
        return ()
    steps = every * random.uniform(0.9, 1.1, math.ceil(until / every / 0.9) + 2)
    at = max(1.0, every - unsaved) - steps[0] + np.cumsum(steps)
    is_well = random.random(len(steps)) >= 0.05
    return tuple(at[is_well & (at < until)].tolist())


def _between(number: float, low: float, high: float) -> float:
    return min(high, max(low, float(number)))
