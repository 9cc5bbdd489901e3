"""How far one plan came in this pass: kept while it is carried out, reported when the pass ends.

Only notes; what is done next is `carry_out`'s, whether the plan may begin `in_force`'s.
"""

from dataclasses import dataclass

from ops_pipelines.core.action import Action
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.flow.acts.perform import Progress, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action of one plan and how far it came in this pass."""

    action: Action
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """How far one plan came in this pass."""

    plan: IncidentPlan
    steps: tuple[Step, ...]
    """Steps that were done, or on which it stopped."""
    stage: Stage
    reason: str


class PlanProgress:
    """One plan and how far it is: under way until it is settled for this pass."""

    def __init__(self, plan: IncidentPlan) -> None:
        self.plan = plan
        self._steps: list[Step] = []
        self._stage = Stage.UNDER_WAY
        self._reason = "begun"
        self._is_settled = False

    @property
    def is_under_way(self) -> bool:
        return not self._is_settled

    def add_step(self, action: Action, progress: Progress) -> None:
        """Note a step that was done, or on which the plan stopped."""
        self._steps.append(Step(action=action, progress=progress))

    def wait_for(self, reason: str) -> None:
        """Note what the plan waits for within this pass."""
        self._reason = reason

    def settle(self, stage: Stage, reason: str) -> None:
        """Leave the rest to the next pass, or to nobody."""
        self._stage, self._reason, self._is_settled = stage, reason, True

    def report(self) -> PlanReport:
        return PlanReport(plan=self.plan, steps=tuple(self._steps), stage=self._stage, reason=self._reason)
