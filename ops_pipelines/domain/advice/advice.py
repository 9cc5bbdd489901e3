"""One piece of advice: what was seen, what speaks against it, what it would gain, what to do. Values only.

Advice never acts. What is seen and yet not said is kept with its reason (`Withheld`), so that silence can be explained.
"""

import hashlib
import math
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import TeamName

_TEXT_LENGTH = 160
_ROUNDING = 1e-6


class AdviceKind(Enum):
    """What could be done better."""

    IDLE_ALLOCATION = "idle_allocation"
    INPUT_STALL = "input_stall"
    COMMUNICATION_BOUND = "communication_bound"
    SMALL_BATCH = "small_batch"
    WRONG_GPU_TYPE = "wrong_gpu_type"
    OVER_ASKED_MEMORY = "over_asked_memory"
    WALL_TIME_FAR_ABOVE_NEED = "wall_time_far_above_need"
    STRAGGLER = "straggler"
    NO_CHECKPOINTS = "no_checkpoints"
    WRONG_CHECKPOINT_INTERVAL = "wrong_checkpoint_interval"
    STALE_CHECKPOINTS = "stale_checkpoints"
    UNUSED_DATASETS = "unused_datasets"


OF_STORAGE = frozenset({AdviceKind.STALE_CHECKPOINTS, AdviceKind.UNUSED_DATASETS})
"""They gain bytes; all others gain GPU-hours."""


class Confidence(Enum):
    """How sure it is that the gain is there."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What following it would gain in a week."""

    low_gpu_hours: float = 0.0
    """Of this much the evidence leaves little doubt."""
    expected_gpu_hours: float = 0.0
    size_bytes: int = 0
    """Storage that it frees, once; 0 for all that is not storage."""

    def __post_init__(self) -> None:
        if not 0 <= self.low_gpu_hours <= self.expected_gpu_hours < math.inf or self.size_bytes < 0:
            raise ValueError(
                f"a gain of {self.low_gpu_hours:g} to {self.expected_gpu_hours:g} GPU-hours and {self.size_bytes} "
                "bytes; expected 0 or more, and the low one not above the expected one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One piece of advice to one team about one subject."""

    kind: AdviceKind
    team: TeamName
    subject: str
    """`user/name` of jobs that are alike, or a path. Already on one line and short; untrusted all the same."""
    since: datetime
    until: datetime
    """What was looked at: [since, until)."""
    evidence: tuple[str, ...]
    counter_evidence: tuple[str, ...]
    """What speaks against it and did not suffice to say nothing."""
    gain: Gain
    gain_cents: Cents | None = None
    """Of the expected gain; None: no prices are stated."""
    what_to_do: str
    confidence: Confidence
    measure: float
    """What it is judged by later: smaller is better, and 0 is as good as it gets."""
    held_gpu_hours: float
    """What the subject held in that time: no gain is larger."""

    def __post_init__(self) -> None:
        if not self.evidence:
            raise ValueError(f"{self.kind.value} for {self.subject} has no evidence; expected a sentence at least")
        if self.gain.expected_gpu_hours > self.held_gpu_hours + _ROUNDING:
            raise ValueError(
                f"{self.kind.value} for {self.subject} gains {self.gain.expected_gpu_hours:g} of "
                f"{self.held_gpu_hours:g} GPU-hours that it held; expected no more than that"
            )

    @property
    def key(self) -> tuple[TeamName, AdviceKind, str]:
        return self.team, self.kind, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """Something that was seen, and why nothing is said of it."""

    kind: AdviceKind
    team: TeamName
    subject: str
    why: str


Finding = Advice | Withheld


def withhold(advice: Advice, why: str) -> Withheld:
    """Return that nothing is said, and why."""
    return Withheld(kind=advice.kind, team=advice.team, subject=advice.subject, why=why)


def one_line(text: str, *, at_most: int = _TEXT_LENGTH) -> str:
    """Return a text of a user on one line, without control characters, short; long ones stay distinct by a digest."""
    flat = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    if len(flat) <= at_most:
        return flat
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{flat[: at_most - 14]}… {digest}"


def subject_of_jobs(user: str, name: str) -> str:
    """Return what jobs that differ in a number at the end alone are called together: `ada/train_#`."""
    flat = " ".join("".join(each if each.isprintable() else " " for each in name).split())
    stem = flat.rstrip("0123456789")
    if stem != flat and stem[-1:] in {"-", "_", ".", " ", "["}:
        flat = f"{stem}#"
    return f"{one_line(user, at_most=40)}/{one_line(flat or 'without a name', at_most=100)}"
