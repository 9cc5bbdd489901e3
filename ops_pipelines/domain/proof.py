"""What was proved of a plan before it may act: by which checks, on what, with what result, and for how long it holds.

The nouns alone: `plan_proof` makes a proof, the ledger keeps it and begins nothing without one.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.domain.identity import Digest, PlanId

PROVER_VERSION = 1
"""Grows when a check is added or means something else: what an older prover let pass is proved anew."""
LASTS = timedelta(minutes=30)
"""# Assumption: by then enough has changed in a cluster that a plan which nobody has begun is looked at anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPlan:
    """What one check found in one plan."""

    check: str
    contradictions: tuple[str, ...]
    """Empty: what the check is for holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The second opinion on one plan, as recorded before anything of it is begun."""

    plan: PlanId
    content: Digest
    """sha256 of the plan that was proved, as the ledger writes it."""
    inputs: Digest
    """The snapshot that it was proved on."""
    version: int
    made_at: datetime
    checked: tuple[CheckedPlan, ...]

    @property
    def contradictions(self) -> tuple[str, ...]:
        """What speaks against the plan, of every check."""
        return tuple(each for checked in self.checked for each in checked.contradictions)

    @property
    def expires_at(self) -> datetime:
        """Until when a plan may be put in force on it."""
        return self.made_at + LASTS


def why_unproved(proof: Proof | None, *, content: Digest, checks: Collection[str]) -> str | None:
    """Return why nothing of a plan with this `content` may be begun; None: each of `checks` let it pass, whole."""
    if proof is None:
        return "nobody has proved this plan; the next pass does"
    if proof.version != PROVER_VERSION or {each.check for each in proof.checked} != set(checks):
        return "its proof is of another version of this program; the next pass proves it anew"
    if proof.content != content:
        return f"what was proved is another plan by the name of {proof.plan}"
    if proof.contradictions:
        return f"its proof contradicts it: {'; '.join(proof.contradictions)}"
    return None
