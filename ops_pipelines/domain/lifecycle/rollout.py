"""One rollout and one node in it: what they are, every state that they can be in, and every event that they take.

Values only. Which event leads where is `transitions`'; what comes next is `course`'s and `engine`'s; which nodes come
when is `planner`'s; whether a wave was good is `gate`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from ops_pipelines.domain.identity import Digest, JobId, NodeName, PlanId, RolloutId
from ops_pipelines.domain.lifecycle.release import Component, ReleaseName


class RolloutState(Enum):
    """Where a rollout is. Beside each stands who owns it: us, or people."""

    AWAITING_YES = "awaiting_yes"
    """People. Planned; the policy, or a component that cannot go back, wants a yes first."""
    RUNNING = "running"
    """Us. Nodes of the present wave are being updated, as windows and budgets allow."""
    SOAKING = "soaking"
    """Us. The wave is updated and works; the gate has not decided yet."""
    PAUSED = "paused"
    """People. Nodes in hand are finished; no other is begun."""
    ASKING = "asking"
    """People. The gate could not decide in time, or too many nodes were pulled out: go on, or go back?"""
    GOING_BACK = "going_back"
    """Us. The gate or a person stopped it; every touched node gets its old version."""
    ENDING = "ending"
    """Us. A person ended it; nodes in hand are finished, no other is begun."""
    ABORTED = "aborted"
    """Final. A person ended it; nodes in hand were finished, the others keep what they have."""
    DONE = "done"
    """Final. Every node that could be updated is, and its wave was good."""
    WENT_BACK = "went_back"
    """Final. Every touched node runs its old version, verified."""
    STUCK = "stuck"
    """People. Going back failed on some node: it is drained, and somebody was called."""


FINAL = frozenset({RolloutState.ABORTED, RolloutState.DONE, RolloutState.WENT_BACK})
OF_PEOPLE = frozenset({RolloutState.AWAITING_YES, RolloutState.PAUSED, RolloutState.ASKING, RolloutState.STUCK})


class RolloutEvent(Enum):
    YES = "yes"
    WAVE_UPDATED = "wave_updated"
    WAVE_GOOD = "wave_good"
    """The gate let the wave pass; there is another."""
    LAST_WAVE_GOOD = "last_wave_good"
    GATE_STOPPED = "gate_stopped"
    GATE_UNDECIDED = "gate_undecided"
    PAUSE = "pause"
    RESUME_UPDATING = "resume_updating"
    RESUME_SOAKING = "resume_soaking"
    RESUME_GOING_BACK = "resume_going_back"
    ABORT = "abort"
    GO_BACK = "go_back"
    """A person sends it back."""
    AT_REST = "at_rest"
    """No node is in hand any more."""
    ALL_BACK = "all_back"
    BACK_FAILED = "back_failed"
    ONE_WAY_NEXT = "one_way_next"
    """The next wave holds what cannot go back: it needs a yes of its own."""


class Direction(Enum):
    FORWARD = "forward"
    BACK = "back"


class NodeStage(Enum):
    """Where one node of a rollout is, on its way forward or back."""

    PENDING = "pending"
    """Untouched; its wave has not come, or no budget was left."""
    DRAINING = "draining"
    """Takes no new work; its jobs go on to their end, or to the checkpoint at which they are moved."""
    INSTALLING = "installing"
    ACTIVATING = "activating"
    """Driver reload, reboot or power cycle."""
    VERIFYING = "verifying"
    """The running version is read, three good reads in a row."""
    TESTING = "testing"
    """The health gates: tests on the node, against floors and its own past."""
    RETURNING = "returning"
    SOAKING = "soaking"
    """Works again, at a reduced blast radius; the gate watches."""
    UPDATED = "updated"
    """Its wave was good."""
    BACK = "back"
    """Runs its old version again, verified, and works."""
    SKIPPED = "skipped"
    """Untouched for a reason of its own: opted out, there already, somebody else's, broken."""
    PULLED = "pulled"
    """Failed alone: drained, and ours. It goes back in the next pass; what cannot go back waits for people."""
    LOST = "lost"
    """Could not be brought back: drained, a person was called."""


AT_REST = frozenset({NodeStage.PENDING, NodeStage.UPDATED, NodeStage.BACK, NodeStage.SKIPPED, NodeStage.PULLED})
IN_HAND = frozenset(
    {
        NodeStage.DRAINING,
        NodeStage.INSTALLING,
        NodeStage.ACTIVATING,
        NodeStage.VERIFYING,
        NodeStage.TESTING,
        NodeStage.RETURNING,
    }
)
"""Stages in which the node is out, and this rollout owns it: nobody else may act on it."""
LEFT = frozenset({NodeStage.LOST, NodeStage.PULLED})
"""Drained, and no act of the rollout comes any more on this way."""


class NodeEvent(Enum):
    BEGIN = "begin"
    """The drain is begun."""
    FREE = "free"
    """Drained, and no job is left on it."""
    INSTALLED = "installed"
    ACTIVATED = "activated"
    VERIFIED = "verified"
    NEXT_STEP = "next_step"
    """Verified, and the release has another step to install."""
    PASSED = "passed"
    RETURNED = "returned"
    WAVE_GOOD = "wave_good"
    GO_BACK = "go_back"
    """The way back begins, wherever the node is."""
    IS_BACK = "is_back"
    SKIP = "skip"
    NOT_NOW = "not_now"
    """Its jobs outlast the window or the limit, or it broke under them: returned as it was, to be tried later."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Nodes that are updated together and judged together."""

    number: int
    """From 1."""
    nodes: tuple[NodeName, ...]
    """In the order in which they were planned; the engine takes whoever is free first."""
    is_canary: bool
    """Tested longer; nobody else is touched before the last of these has been decided."""
    is_deciding: bool = False
    """The last canary wave: it is good only when everything that the release claims to find was looked for."""
    planned_from: datetime | None = None
    planned_until: datetime | None = None
    """As predicted when it was planned, soak included; None: no time could be foreseen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutNode:
    """One node in one rollout, as the ledger keeps it: enough to go on from after a crash."""

    rollout: RolloutId
    node: NodeName
    wave: int | None
    """None: left out when it was planned, so that no wave has it."""
    stage: NodeStage = NodeStage.PENDING
    direction: Direction = Direction.FORWARD
    step: int = 0
    """Which of the release's steps is being installed."""
    since: datetime
    """When the stage began."""
    deadline: datetime | None = None
    """When the stage has failed; None where it may last (pending, soaking, at rest)."""
    reason: str = ""
    """Why it is where it is, in words that a person reads."""
    try_number: int = 1
    """Of the acts of this pass; a node that is tried anew, or goes back, has a higher one."""
    versions_before: Mapping[Component, str] = field(default_factory=dict)
    """What ran before it was touched: where the way back leads."""
    good_reads: int = 0
    read_at: datetime | None = None
    """When the version was last read."""
    returned_at: datetime | None = None
    """When it went back to work with the new version: its soak counts from here."""
    failure: str = ""
    """The signature of its own failure, by which alike ones are known; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """Maintenance that the scheduler was told of: no job starts on these nodes that would run into it."""

    name: str
    nodes: tuple[NodeName, ...]
    begins_at: datetime
    ends_at: datetime
    is_accepted: bool = False
    """Whether the scheduler has said yes; until then it is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One release on its way through its nodes, as the ledger keeps it."""

    rollout: RolloutId
    release: ReleaseName
    release_digest: Digest
    """Under which the ledger keeps the release: what was begun is finished with it, whatever the file says by then."""
    plan: PlanId
    """What a yes covers: a digest of release, nodes and waves."""
    state: RolloutState
    waves: tuple[Wave, ...]
    wave: int = 1
    """The present one."""
    since: datetime
    deadline: datetime | None = None
    """When somebody is told that it stays in this state too long."""
    owner: str
    """Who must move it on: `autopilot`, the person who stopped it, or `people` where anybody may answer."""
    reason: str
    created_by: str
    created_at: datetime
    paused_from: RolloutState | None = None
    """Where it goes on after a pause."""
    stopped_because: str = ""
    """Why it went back or asks; kept to its end."""
    finishes_at: datetime | None = None
    """As predicted when it was planned."""
    yes_by: str = ""
    """Who said yes last; empty: nobody, and by the policy nobody needs to."""
    kept_off: Mapping[JobId, tuple[NodeName, ...]] = field(default_factory=dict)
    """Waiting jobs that are too wide for nodes that soak, and the nodes that we keep each off until they have."""
    booking: Booking | None = None
    """Nodes of the present wave that come next, and are kept free of long jobs until then."""
    resumed_at: datetime | None = None
    """When a person let it go on although it asked: the gate's time counts from here."""
    excused_count: int = 0
    """How many nodes had failed by then; they count no more against `max_pulled_count`."""
    yes_through: int = 0
    """The last wave that the yes covers. What cannot go back is asked for wave by wave."""


def is_canary(node: RolloutNode, rollout: Rollout) -> bool:
    """Return whether a node is of a canary wave."""
    return node.wave is not None and rollout.waves[node.wave - 1].is_canary
