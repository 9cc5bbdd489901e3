"""One node on its way, there or back: what is known of it, what its acts are made of, and what can come next. Values.

Which move it is, is `engine`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ops_pipelines.core.action import Action, Outcome, OutcomeKind, Verb
from ops_pipelines.core.identity import ActionKey, cause_of
from ops_pipelines.core.node_tests import CheckVerdict
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Activation, Change, Component, Release
from ops_pipelines.core.rollout import Direction, NodeEvent, RolloutNode

RESTARTS: Mapping[Activation, tuple[Verb, ...]] = {
    Activation.LIVE: (),
    Activation.DRIVER_RELOAD: (Verb.RELOAD_DRIVER,),
    Activation.REBOOT: (Verb.REBOOT,),
    Activation.POWER_CYCLE: (Verb.POWER_OFF, Verb.POWER_ON),
    Activation.AC_CYCLE: (Verb.PAGE_HUMAN,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What is known of one node in hand at this moment."""

    now: datetime
    jobs: tuple[JobStatus, ...]
    """What may have processes on it."""
    outcomes: Mapping[ActionKey, Outcome | None]
    """Of the acts of its rollout on it, begun so far; None: under way."""
    versions: Mapping[Component, str] | None = None
    """What runs, read just now; None: not asked, or no answer."""
    trouble: str = ""
    """The open incident about the node, where there is one that is not only watched."""
    closed: str = ""
    """Why no work is begun now: no window is open, or a freeze holds."""
    check: CheckVerdict | None = None
    """What the tests of this pass found; None: no result yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Perform this act, and come again with its outcome."""

    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Go on to the next stage."""

    event: NodeEvent
    reason: str
    failure: str = ""
    """Of FAILED: the signature by which alike failures are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do yet. What was read is kept."""

    reason: str
    good_reads: int | None = None
    """Of a verification: how many good reads in a row there are now; None: nothing was read."""


Move = Act | Step | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One node on one pass, with everything that its acts are made of."""

    node: RolloutNode
    release: Release
    opened_at: datetime
    """When its rollout was opened. Nodes keep results by the keys of acts, longer than a ledger may live: those of an
    earlier rollout of the same number are not taken for this one's."""
    facts: NodeFacts
    limits: RolloutLimits
    is_canary: bool
    is_called_back: bool = False
    """Nothing new is installed any more: who was only drained is put back."""
    is_of_last_wave: bool = False
    """Who cannot be updated in it is left out; in an earlier one it is tried again in the last."""
    steps: tuple[tuple[Change, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        steps = self.release.steps
        object.__setattr__(self, "steps", steps if self.node.direction is Direction.FORWARD else steps[::-1])

    @property
    def step(self) -> tuple[Change, ...]:
        return self.steps[self.node.step]

    def act(self, verb: Verb, *, text: str = "", suite: str = "") -> Action:
        node = self.node
        return Action(
            verb=verb,
            incident=cause_of(node.rollout),
            node=node.node,
            text=text,
            suite=suite,
            part=self._part(verb),
            try_number=node.try_number,
        )

    def _part(self, verb: Verb) -> str:
        """Return what an act is apart from its verb and node: of which rollout, which step, there or back."""
        opened = f"{self.opened_at:%Y%m%dT%H%M%S}"
        if verb is Verb.INSTALL or any(verb in verbs for verbs in RESTARTS.values()):
            return f"{opened} {self.node.step} {self.node.direction.value}"
        # What the scheduler shows of the others is compared with our ledger, and found by no key.
        return opened if verb is Verb.CHECK else ""

    def outcome(self, action: Action) -> Outcome | None:
        return self.facts.outcomes.get(action.key)

    def is_done(self, action: Action) -> bool:
        outcome = self.outcome(action)
        return outcome is not None and outcome.kind is OutcomeKind.DONE
