"""What was proved before anything is begun: by which checks, on what, with what result, and for how long it holds.

The nouns alone: `plan_proof` and `act_proof` make proofs, the ledger keeps them and begins nothing without. What may be
asked of the executor is an `Order`: a step of a plan that was proved, or an act that no plan has to hold.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.domain.action import MESSAGES, Action, ActProof, Verb
from ops_pipelines.domain.identity import ActionKey, Digest, PlanId, is_rollout
from ops_pipelines.domain.plan import IncidentPlan

PROVER_VERSION = 1
"""Grows when a check is added or means something else: what an older prover let pass is proved anew."""
LASTS = timedelta(minutes=30)
"""# Assumption: by then enough has changed in a cluster that a plan which nobody has begun is looked at anew."""
_OF_ACT_LASTS = timedelta(seconds=30)
"""What was proved of one act holds for the transaction that begins it, and that may wait for its turn."""
SECOND_OPINION = "second_opinion"
"""The guardrail by whose name an act is refused that every other let pass, and its proof contradicts: our fault."""
STEPS = frozenset(
    {
        Verb.HOLD,
        Verb.FENCE,
        Verb.RESERVE,
        Verb.UNRESERVE,
        Verb.EXCLUDE,
        Verb.RELEASE,
        Verb.RESET_GPU,
        Verb.REBOOT,
        Verb.POWER_OFF,
        Verb.DECLARE_DOWN,
        Verb.POWER_ON,
        Verb.REIMAGE,
    }
)
"""What only a plan may ask for, or a rollout. A drain, a mark, tests and the way back may also stand by themselves."""


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


def why_act_unproved(proof: ActProof | None, *, act: ActionKey, checks: Collection[str], now: datetime) -> str | None:
    """Return why one act may not be begun, whatever was proved of its plan; None: each of `checks` let it pass."""
    if proof is None:
        return "nobody has proved this act"
    if proof.version != PROVER_VERSION or set(proof.checks) != set(checks):
        return "its proof is of another version of this program"
    if proof.act != act:
        return "what was proved is another act"
    if abs(now - proof.made_at) > _OF_ACT_LASTS:
        return "its proof has expired"
    return "; ".join(proof.contradictions) or None


class Unproved(ValueError):
    """Something was to be ordered that nobody has proved. A fault of ours, wherever it is raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedPlan:
    """A plan with the proof that let it pass: no other can be ordered a step of."""

    plan: IncidentPlan
    content: Digest
    """sha256 of the plan, as the ledger writes it."""
    proof: Proof

    def __post_init__(self) -> None:
        checks = [each.check for each in self.proof.checked]
        why = why_unproved(self.proof, content=self.content, checks=checks)
        if why is None and self.proof.plan != self.plan.plan:
            why = f"its proof is of {self.proof.plan}"
        if why is not None or not checks:
            raise Unproved(f"{self.plan.plan}: {why or 'no check was made of it'}")

    def step(self, action: Action) -> "Order":
        """Return the order for one act of this plan. Raises Unproved for any other."""
        return Order(action=action, behind=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One act that may be asked of the executor."""

    action: Action
    behind: ProvedPlan | PlanId | None = None
    """The plan that it is a step of, or on whose word it follows without being one; None: it stands by itself."""

    def __post_init__(self) -> None:
        if isinstance(self.behind, ProvedPlan):
            if self.action not in self.behind.plan.actions:
                raise Unproved(f"{self.action.verb.value} of {self.action.target} is no act of {self.plan}")
        elif self.action.verb in STEPS and not is_rollout(self.action.incident):
            raise Unproved(f"{self.action.verb.value} of {self.action.target} is a step of no plan that was proved")

    @property
    def plan(self) -> PlanId | None:
        """The name of the plan behind it."""
        return self.behind.plan.plan if isinstance(self.behind, ProvedPlan) else self.behind


def why_no_step(action: Action, plan: IncidentPlan | None) -> str | None:
    """Return why an act may not be begun under the name of a recorded plan, or without one (None); None: it may."""
    if action.verb in MESSAGES or (plan is not None and action in plan.actions):
        return None
    if action.verb not in STEPS:
        return None
    return f"{action.verb.value} of {action.target} is no act of {'any plan' if plan is None else plan.plan}"
