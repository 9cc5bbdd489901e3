"""Why something is not done, whether that may pass by itself, and on whose word something would be done.

Values only: the rules that make refusals are `guardrails`, `preconditions` and `budgets`.
"""

from dataclasses import dataclass
from enum import Enum


class Patience(Enum):
    """Whether a refusal may pass by itself."""

    WAIT = "wait"
    """Ask again later: something has yet to happen."""
    NEVER = "never"
    """Not without a person or a change of policy."""


class Authority(Enum):
    """On whose word an action would be begun."""

    AUTOPILOT = "autopilot"
    """On nobody's: only where the mode is auto."""
    APPROVED_PLAN = "approved_plan"
    """A person said yes to exactly this plan."""
    PERSON = "person"
    """A person launched it by hand: mode, pause and the storm brake (which doubts our eyes, not theirs) do not bind
    them; every other guardrail does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why something is not done, and by which rule."""

    guardrail: str
    reason: str
    patience: Patience


def wait(guardrail: str, reason: str) -> Refusal:
    """Return a refusal that may pass by itself."""
    return Refusal(guardrail=guardrail, reason=reason, patience=Patience.WAIT)


def never(guardrail: str, reason: str) -> Refusal:
    """Return a refusal that only a person or another policy lifts."""
    return Refusal(guardrail=guardrail, reason=reason, patience=Patience.NEVER)
