"""How a training saves its work: how often, what that costs, and what is lost when it dies.

Sources: Daly, "A higher order estimate of the optimum checkpoint interval" (2006); ByteCheckpoint (arXiv 2407.20143)
Table 8 for the stall and the time until a checkpoint is durable; ByteRobust (arXiv 2509.16293) for one every step.
"""

import math
from dataclasses import dataclass

BLOCK_SECONDS = 0.59
"""The training stands for so long at each checkpoint (ByteCheckpoint, 405B on 8,960 GPUs)."""
SAVE_SECONDS = 51.06
"""Until it is durable; work goes on meanwhile (the same source)."""


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
