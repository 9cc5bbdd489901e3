"""Where the time of one job goes: productive, or lost to a named cause. Conserved: the parts add up to the whole."""

from dataclasses import dataclass, field
from enum import Enum

from ops_pipelines_lab.whatif.checkpoints import CheckpointRegime


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
