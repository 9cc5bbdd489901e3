"""The ladder of a GPU that stays idle: a warning, a second one, then a note that names the command to end the job.

Off unless policy.yaml turns it on. The last step ends nothing: there is no act here that ends a job
(`core.action.Verb`), and a person who types the command is the consent. Services and sessions never get there.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.teams.settings import LadderSettings

_JOB = re.compile(r"[0-9]{1,12}(?:[_+][0-9]{1,9})?", re.ASCII)
"""The ids that Slurm writes; nothing else of a job is ever part of a command."""


class LadderStep(Enum):
    """What is said, in this order."""

    FIRST_WARNING = "first_warning"
    SECOND_WARNING = "second_warning"
    ASK_TO_RELEASE = "ask_to_release"
    """To the owner and the operators, with the command that would end the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleAttempt:
    """A running attempt all of whose GPUs do nothing."""

    job: str
    started_at: datetime
    idle_since: datetime
    gpu_count: int
    is_service: bool = False
    is_interactive: bool = False


def due_step(
    attempt: IdleAttempt, settings: LadderSettings, *, told: frozenset[LadderStep], now: datetime
) -> LadderStep | None:
    """Return the step that is due and was not taken; None for none. No step is passed over: each is said before the
    next, so that nobody is asked to end a job whose owner was not warned twice.
    """
    if not settings.is_on or attempt.is_service:
        return None
    idle = now - max(attempt.idle_since, attempt.started_at)
    steps: tuple[tuple[LadderStep, timedelta], ...] = (
        (LadderStep.FIRST_WARNING, settings.first_warning_after),
        (LadderStep.SECOND_WARNING, settings.second_warning_after),
        (LadderStep.ASK_TO_RELEASE, settings.release_after),
    )
    for step, after in steps:
        if step in told:
            continue
        if idle < after or (step is LadderStep.ASK_TO_RELEASE and attempt.is_interactive):
            return None
        return step
    return None


def ending_command(job: str) -> str | None:
    """Return the command that ends a job, for a person to type; None for an id that Slurm would not write."""
    return f"scancel {job}" if _JOB.fullmatch(job) else None
