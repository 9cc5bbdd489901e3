"""Why something is refused, and what was proved before anything is started: by which checks, on what, until when.

Values only: the rules that make refusals are `guardrails`, `preconditions` and `budgets`.

The nouns alone: `plan_proof`, `act_proof` and `quotas.proof` make proofs, the ledger keeps them and begins
nothing without.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.identity import ActionKey, Digest, PlanId

# -- why something is not done, whether that may pass by itself --


class Patience(Enum):
    """Whether a refusal may pass by itself."""

    WAIT = "wait"
    """Ask again later: something has yet to happen."""
    NEVER = "never"
    """Not without a person or a change of policy."""


class Authority(Enum):
    """On whose word an action would be started."""

    AUTOPILOT = "autopilot"
    """On nobody's: only where the mode is auto."""
    APPROVED_PLAN = "approved_plan"
    """A person approved exactly this plan."""
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


# -- what was proved before anything is started --


PROVER_VERSION = 1
"""Grows when a check is added or means something else: what an older prover let pass is proved again."""
LASTS = timedelta(minutes=30)
"""# Assumption: by then enough has changed in a cluster that a plan which nobody has started is looked at again."""
_OF_ACT_LASTS = timedelta(seconds=30)
"""What was proved of one act holds for the transaction that begins it, and that may wait for its turn."""
_OF_QUOTAS_LASTS = timedelta(minutes=5)
"""From the look at the scheduler until the before-entry: what is read of many accounts may take a while."""
SECOND_OPINION = "second_opinion"
"""The guardrail by whose name an act is refused that every other let pass, and its proof contradicts: our fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPlan:
    """What one check found in one plan."""

    check: str
    contradictions: tuple[str, ...]
    """Empty: what the check is for holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The second opinion on one plan, as recorded before anything of it is started."""

    plan: PlanId
    content: Digest
    """sha256 of the plan that was proved, as the ledger writes it."""
    inputs: Digest
    """The snapshot that it was proved on."""
    rules: Digest
    """The policy, topology and catalogue that held."""
    version: int
    made_at: datetime
    checked: tuple[CheckedPlan, ...]

    @property
    def contradictions(self) -> tuple[str, ...]:
        """The evidence against the plan, of every check."""
        return tuple(each for checked in self.checked for each in checked.contradictions)

    @property
    def expires_at(self) -> datetime:
        """Until when a plan may be put in force on it."""
        return self.made_at + LASTS


def why_unproved(proof: Proof | None, *, content: Digest, checks: Collection[str]) -> str | None:
    """Return why nothing of a plan with this `content` may be started; None: each of `checks` let it pass, whole."""
    if proof is None:
        return "nobody has proved this plan; the next pass does"
    if proof.version != PROVER_VERSION or {each.check for each in proof.checked} != set(checks):
        return "its proof is of another version of this program; the next pass proves it again"
    if proof.content != content:
        return f"what was proved is another plan by the name of {proof.plan}"
    if proof.contradictions:
        return f"its proof contradicts it: {'; '.join(proof.contradictions)}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActProof:
    """The second opinion on one act, made right before it is started. `act_proof` makes it, the before-entry keeps
    it."""

    act: ActionKey
    version: int
    """Of the program's proofs (`PROVER_VERSION`)."""
    made_at: datetime
    seen: Digest
    """Of the facts that it rests on."""
    checks: tuple[str, ...]
    contradictions: tuple[str, ...]
    """Empty: each of the checks let it pass."""


def why_act_unproved(proof: ActProof | None, *, act: ActionKey, checks: Collection[str], now: datetime) -> str | None:
    """Return why one act may not be started, whatever was proved of its plan; None: each of `checks` let it pass."""
    if proof is None:
        return "nobody has proved this act"
    if proof.version != PROVER_VERSION or set(proof.checks) != set(checks):
        return "its proof is of another version of this program"
    if proof.act != act:
        return "what was proved is another act"
    if abs(now - proof.made_at) > _OF_ACT_LASTS:
        return "its proof has expired"
    return "; ".join(proof.contradictions) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaProof:
    """The second opinion on a proposal of quotas, made on what is true right before it is applied."""

    content: Digest
    """sha256 of the proposal that was proved, as the ledger writes it."""
    inputs: Digest
    """Of what it was held against: the agreements, and what there is to give out."""
    version: int
    made_at: datetime
    checks: tuple[str, ...]
    contradictions: tuple[str, ...]


def why_quota_unproved(
    proof: QuotaProof | None, *, content: Digest, checks: Collection[str], now: datetime
) -> str | None:
    """Return why a proposal with this `content` may not be applied; None: each of `checks` let it pass just now."""
    if proof is None:
        return "nobody has proved it"
    if proof.version != PROVER_VERSION or set(proof.checks) != set(checks):
        return "its proof is of another version of this program"
    if proof.content != content:
        return "what was proved is another proposal"
    if abs(now - proof.made_at) > _OF_QUOTAS_LASTS:
        return "its proof has expired"
    return "; ".join(proof.contradictions) or None
