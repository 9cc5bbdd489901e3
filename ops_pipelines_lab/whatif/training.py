"""The one long job of a simulated run: whether it works or waits, for what, which checkpoint it would continue from,
where its time goes, and what came of one run and of many.

Time passes here; what happens at an instant is `play`'s. A job that waits goes through its waits one after the other:
some have a length, some end only when something happens (a spare returns, a person has found the part). Time is
productive or lost to a named cause, and conserved: the parts add up to the whole.

How a training saves its work: how often, what that costs, and what is lost when it dies. Sources: Daly, "A higher order
estimate of the optimum checkpoint interval" (2006); ByteCheckpoint (arXiv 2407.20143) Table 8 for the stall and the
time until a checkpoint is durable; ByteRobust (arXiv 2509.16293) for one every step.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

BLOCK_SECONDS = 0.59
"""The training waits so long at each checkpoint (ByteCheckpoint, 405B on 8,960 GPUs)."""
SAVE_SECONDS = 51.06
"""Until it is durable; work continues meanwhile (the same source)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRegime:
    """Checkpoints every `interval_seconds` of work, or after every step where `step_seconds` is given."""

    interval_seconds: float
    block_seconds: float = BLOCK_SECONDS
    save_seconds: float = SAVE_SECONDS
    step_seconds: float = 0.0
    """Above 0: one in memory after each step of this length, for `step_overhead_ratio` of the time."""
    step_overhead_ratio: float = 0.0

    @property
    def overhead_ratio(self) -> float:
        """The share of running time that checkpoints take, 0..1."""
        if self.step_seconds > 0:
            return self.step_overhead_ratio
        return self.block_seconds / (self.interval_seconds + self.block_seconds)

    def unsaved_seconds(self, run_seconds: float) -> float:
        """Return the running time whose work is lost if the job dies after `run_seconds` since it (re)started."""
        if self.step_seconds > 0:
            return min(run_seconds, self.step_seconds)
        return run_seconds - self.saved_seconds(run_seconds)

    def saved_seconds(self, run_seconds: float) -> float:
        """Return the running time after which the newest durable checkpoint was taken; 0: none yet."""
        if self.step_seconds > 0:
            return max(0.0, run_seconds - self.step_seconds)
        period = self.interval_seconds + self.block_seconds
        return math.floor(max(0.0, run_seconds - self.save_seconds) / period) * period


def best_regime(mtbf_seconds: float) -> CheckpointRegime:
    """Return asynchronous checkpoints at Daly's optimum for a mean time between failures, never closer than durable."""
    return CheckpointRegime(interval_seconds=max(best_interval(BLOCK_SECONDS, mtbf_seconds), SAVE_SECONDS))


def best_interval(block_seconds: float, mtbf_seconds: float) -> float:
    """Return Daly's optimum interval of work between checkpoints, in seconds; the MTBF itself where it is tiny."""
    if block_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    ratio = block_seconds / (2 * mtbf_seconds)
    first_order = math.sqrt(2 * block_seconds * mtbf_seconds)
    return first_order * (1 + math.sqrt(ratio) / 3 + ratio / 9) - block_seconds


class Cause(Enum):
    """Why time was not productive."""

    DETECT = "detect"
    """From the fault to its being known."""
    LOCALISE = "localise"
    """Finding the part, taking the node out, moving the job."""
    HUMAN = "human"
    """A person was waited for."""
    SCHEDULE = "schedule"
    """Until the job had its nodes again."""
    START = "start"
    """Process start, load of the checkpoint, warm-up."""
    LOST_WORK = "lost_work"
    """Work since the newest durable checkpoint, or corrupted."""
    SLOW = "slow"
    """Work that a slow part made slower."""
    CHECKPOINT = "checkpoint"
    SPARE_WAIT = "spare_wait"
    """No spare node was left."""


@dataclass(slots=True, kw_only=True)
class WorkClock:
    """Time of one job from 0 to `horizon_seconds`. All times in seconds; nothing passes beyond the horizon."""

    horizon_seconds: float
    regime: CheckpointRegime
    now: float = 0.0
    productive: float = 0.0
    run_seconds: float = 0.0
    """Running time since the job (re)started: what checkpoints are counted by."""
    lost: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))

    def is_over(self) -> bool:
        return self.now >= self.horizon_seconds

    def run(self, seconds: float, *, slowdown_ratio: float = 0.0) -> float:
        """Let the job work for so long, or until the horizon; return how long it was."""
        seconds = max(0.0, min(seconds, self.horizon_seconds - self.now))
        overhead = seconds * self.regime.overhead_ratio
        slowed = (seconds - overhead) * slowdown_ratio
        self.now += seconds
        self.run_seconds += seconds
        self.productive += seconds - overhead - slowed
        self.lost[Cause.CHECKPOINT] += overhead
        self.lost[Cause.SLOW] += slowed
        return seconds

    def stand(self, cause: Cause, seconds: float) -> None:
        """Let time pass in which the job does nothing."""
        seconds = max(0.0, min(seconds, self.horizon_seconds - self.now))
        self.now += seconds
        self.lost[cause] += seconds

    def lose(self, run_seconds: float) -> None:
        """Take back the work of the last `run_seconds` of running."""
        self.throw_away(run_seconds * (1 - self.regime.overhead_ratio))

    def throw_away(self, work_seconds: float) -> None:
        """Take back so much productive time; never more than there is."""
        taken = max(0.0, min(work_seconds, self.productive))
        self.productive -= taken
        self.lost[Cause.LOST_WORK] += taken

    def die(self) -> None:
        """The job ends here: what was not saved is lost, and the next run begins from the checkpoint."""
        self.lose(self.regime.unsaved_seconds(self.run_seconds))
        self.run_seconds = 0.0

    def ratio(self) -> float:
        """Return the effective training time, 0..1."""
        return self.productive / self.horizon_seconds


_NEARLY_OVER = 1e-9


@dataclass(slots=True)
class Wait:
    """One thing that the job waits for; without an end of its own `seconds` is infinite."""

    cause: Cause
    seconds: float


@dataclass(slots=True, kw_only=True)
class Training:
    """A job that works until something stops it. Seconds since the begin of the run."""

    clock: WorkClock
    waits: deque[Wait] = field(default_factory=deque)
    interruption_count: int = 0
    """How often it was stopped while it worked."""
    stop_count: int = 0
    """How often it was stopped, or stopped again while it stood: what was to follow an earlier stop is void."""
    _saved_at: float = 0.0
    _corrupt_since: float | None = None

    def is_running(self) -> bool:
        return not self.waits

    @property
    def until_change(self) -> float:
        """How long until a wait ends by itself; infinite while it works or waits for something to happen."""
        return self.waits[0].seconds if self.waits else math.inf

    @property
    def saved_at(self) -> float:
        """When its newest durable checkpoint was taken."""
        if self.is_running():
            saved = self.clock.regime.saved_seconds(self.clock.run_seconds)
            if saved > 0:
                return self.clock.now - (self.clock.run_seconds - saved)
        return self._saved_at

    def pass_time(self, seconds: float, *, slowdown_ratio: float) -> bool:
        """Let time pass, at most `until_change`; return whether the job has just gone on."""
        if self.is_running():
            self.clock.run(seconds, slowdown_ratio=slowdown_ratio)
            return False
        wait = self.waits[0]
        self.clock.stand(wait.cause, seconds)
        wait.seconds -= seconds
        if wait.seconds > _NEARLY_OVER:
            return False
        self.waits.popleft()
        if self.is_running():
            self.clock.run_seconds = 0.0
        return self.is_running()

    def crash(self, waits: Iterable[Wait]) -> None:
        """It dies, if it worked: what was not saved is lost. Then it goes through `waits`, whatever it waited for."""
        if self.is_running():
            self._saved_at = self.saved_at
            self.clock.die()
            self.interruption_count += 1
        self._stand(waits)

    def stop_saved(self, waits: Iterable[Wait]) -> None:
        """It is stopped as planned, on a checkpoint made for that: no work is lost."""
        if self.is_running():
            self._saved_at = self.clock.now
            self.clock.run_seconds = 0.0
            self.interruption_count += 1
        self._stand(waits)

    def lift(self, cause: Cause) -> bool:
        """What it waits for without an end has come; return whether the job has just gone on."""
        if self.is_running():
            return False
        self.waits = deque(wait for wait in self.waits if wait.cause is not cause or not math.isinf(wait.seconds))
        if self.is_running():
            self.clock.run_seconds = 0.0
        return self.is_running()

    def begin_to_corrupt(self) -> None:
        """From here on it computes garbage: not even what was not yet saved will be of use."""
        if self._corrupt_since is None:
            unsaved = self.clock.regime.unsaved_seconds(self.clock.run_seconds)
            self._corrupt_since = self.clock.productive - unsaved * (1 - self.clock.regime.overhead_ratio)

    def roll_back(self) -> None:
        """What was computed since it was corrupted is thrown away, checkpoints included."""
        if self._corrupt_since is not None:
            self.clock.throw_away(self.clock.productive - self._corrupt_since)
            self.clock.run_seconds = 0.0
            self._corrupt_since = None

    def _stand(self, waits: Iterable[Wait]) -> None:
        self.stop_count += 1
        self.waits = deque(wait for wait in waits if wait.seconds > _NEARLY_OVER)


_Z95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run of one policy under one seed."""

    ettr: float
    """Effective training time, 0..1."""
    days: float
    interruption_count: int
    human_count: int
    """How often a person had to find or mend something."""
    wrong_drain_count: int
    """Healthy nodes taken out."""
    lost_seconds: tuple[tuple[Cause, float], ...]
    held_back: tuple[tuple[str, int], ...] = ()
    """Which limit of the policy kept the job where it was, and for how many incidents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Many runs of one policy."""

    seed_count: int
    ettr_mean: float
    ettr_ci95: tuple[float, float]
    interruptions_per_day: float
    minutes_lost_per_interruption: float
    lost_minutes_by_cause: dict[str, float]
    """Minutes of one run, on average."""
    wrong_drains: float
    human_interventions: float
    held_back: dict[str, float]
    """Incidents of one run, on average, by the limit of the policy that kept the job where it was."""


def result_of(
    clock: WorkClock,
    *,
    interruptions: int,
    humans: int,
    wrong_drains: int,
    held_back: Mapping[str, int] = MappingProxyType({}),
) -> RunResult:
    """Return the result of a run that is over."""
    return RunResult(
        ettr=clock.ratio(),
        days=clock.horizon_seconds / 86_400,
        interruption_count=interruptions,
        human_count=humans,
        wrong_drain_count=wrong_drains,
        lost_seconds=tuple(clock.lost.items()),
        held_back=tuple(sorted(held_back.items())),
    )


def summarise(results: Sequence[RunResult]) -> Summary:
    """Return means over runs, and the normal 95 % interval of the mean of the effective training time.

    With one run the interval is that value alone: nothing is known of its spread. Raises ValueError for no run.
    """
    if not results:
        raise ValueError("no run was simulated; expected at least one seed")
    count = len(results)
    mean = sum(each.ettr for each in results) / count
    spread = math.sqrt(sum((each.ettr - mean) ** 2 for each in results) / (count - 1)) if count > 1 else 0.0
    half = _Z95 * spread / math.sqrt(count)
    lost_minutes = sum((1 - each.ettr) * each.days * 1440 for each in results)
    interruptions = sum(each.interruption_count for each in results)
    by_cause: dict[str, float] = {}
    for each in results:
        for cause, seconds in each.lost_seconds:
            by_cause[cause.value] = by_cause.get(cause.value, 0.0) + seconds / 60 / count
    held_back: dict[str, float] = {}
    for each in results:
        for name, times in each.held_back:
            held_back[name] = held_back.get(name, 0.0) + times / count
    return Summary(
        seed_count=count,
        ettr_mean=mean,
        ettr_ci95=(mean - half, mean + half),
        interruptions_per_day=interruptions / sum(each.days for each in results),
        minutes_lost_per_interruption=lost_minutes / max(1, interruptions),
        lost_minutes_by_cause=by_cause,
        wrong_drains=sum(each.wrong_drain_count for each in results) / count,
        human_interventions=sum(each.human_count for each in results) / count,
        held_back=held_back,
    )
