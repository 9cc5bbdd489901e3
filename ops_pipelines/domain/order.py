"""What may be asked of the executor: a step of a plan that was proved, or an act that no plan has to hold.

Nothing else can be written down: an order for a step needs the plan with its proof.
"""

from dataclasses import dataclass

from ops_pipelines.domain.action import MESSAGES, Action, Verb
from ops_pipelines.domain.identity import Digest, PlanId, is_rollout
from ops_pipelines.domain.plan import IncidentPlan
from ops_pipelines.domain.proof import Proof, why_unproved

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
