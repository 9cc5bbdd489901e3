"""How a fault ends and how it comes back: the course of what is broken, stated with the fault itself.

Values only. What follows from them in time is `faults`', what the node's own tests see `node_checks`'.
"""

from dataclasses import dataclass
from enum import Enum


class Cure(Enum):
    """A repair, from the weakest to the strongest: each ends what a weaker one ends."""

    RESET = "reset"
    """Of the one GPU."""
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    REIMAGE = "reimage"
    REPLACEMENT = "replacement"
    """By hands: the part is another one afterwards."""

    def ends(self, needed: "Cure") -> bool:
        """Return whether this repair is at least as strong as the needed one."""
        return _STRENGTHS[self] >= _STRENGTHS[needed]


_STRENGTHS = {cure: strength for strength, cure in enumerate(Cure)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What it takes to end a fault for good, and what it does after a repair that was too weak.

    Without either time a weak repair changes nothing: the fault shows again as soon as the GPU or the node is back.
    """

    cure: Cure
    """The least repair that ends it."""
    returns_after_seconds: float | None = None
    """So long after a weak repair it shows again."""
    returns_after_load_seconds: float | None = None
    """So long after a job began on it, if the job is still there: well while drained, broken again under load."""
    found_by: tuple[str, ...] = ()
    """The tests of the node's own check that see it although nothing shows; empty: none does."""
    failing_check_count: int | None = None
    """How many checks fail before it is gone by itself; None: it is never gone by itself."""

    def __post_init__(self) -> None:
        for name in ("returns_after_seconds", "returns_after_load_seconds", "failing_check_count"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"course.{name} is {value}; it must be above 0, or absent")
        if self.returns_after_seconds is not None and self.returns_after_load_seconds is not None:
            raise ValueError("a course has two times of return; give the one after the repair or the one under load")
        if self.failing_check_count is not None and not self.found_by:
            raise ValueError("course.failing_check_count counts failures of tests; name them in found_by")
