"""Was advice followed: the same measure of the same subject before and after, and what that saved. Pure."""

from dataclasses import dataclass
from enum import Enum

from ops_pipelines.teams.settings import AdviceSettings


class Followed(Enum):
    """What became of advice."""

    FOLLOWED = "followed"
    NOT_FOLLOWED = "not_followed"
    NOT_RUN_AGAIN = "not_run_again"
    """Nothing like it ran in the weeks after: nobody knows what it would have done."""
    UNKNOWN = "unknown"
    """It ran, and what it is judged by was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one piece of advice, and the numbers behind it."""

    followed: Followed
    measure_after: float | None
    saved_gpu_hours: float
    """In the weeks after, against going on as before; never more than was held then. 0 unless it was followed."""


def judge_following(
    *,
    measure_before: float,
    measure_after: float | None,
    expected_gpu_hours: float,
    held_before_gpu_hours: float,
    held_after_gpu_hours: float,
    settings: AdviceSettings,
) -> Outcome:
    """Return what became of it. `held_*`: GPU-hours of the week before, and of the weeks after."""
    if held_after_gpu_hours <= 0:
        return Outcome(followed=Followed.NOT_RUN_AGAIN, measure_after=None, saved_gpu_hours=0.0)
    if measure_after is None:
        return Outcome(followed=Followed.UNKNOWN, measure_after=None, saved_gpu_hours=0.0)
    if measure_after > measure_before * settings.followed_ratio:
        return Outcome(followed=Followed.NOT_FOLLOWED, measure_after=measure_after, saved_gpu_hours=0.0)
    gone = 1.0 if measure_before <= 0 else 1 - measure_after / measure_before
    gained_ratio = 0.0 if held_before_gpu_hours <= 0 else min(1.0, expected_gpu_hours / held_before_gpu_hours)
    return Outcome(
        followed=Followed.FOLLOWED,
        measure_after=measure_after,
        saved_gpu_hours=min(held_after_gpu_hours, held_after_gpu_hours * gained_ratio * gone),
    )
