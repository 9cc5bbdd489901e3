"""One rollout and the nodes in it: states, events, waves as planned, and the installation ordered on one node.

Values only. Which event leads where is `rollouts.course`'; what comes next is `course`'s and `engine`'s; which nodes
come when is `planner`'s; whether a wave was good is `gate`'s.

Values only. Making one is `planner`'s; it is stored with the rollout, shown as `report.pictures.rollouts`, and approved
by its id.

What it does on the machine is the site's; when it is ordered is `engine`'s.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import (
    ActionKey,
    Digest,
    IncidentId,
    JobId,
    NodeName,
    PlanId,
    RolloutId,
    cause_of,
    is_rollout,
)
from ops_pipelines.core.release import Change, Component, Release, ReleaseName, Reversibility

# -- one rollout and one node in it --


class RolloutState(Enum):
    """Where a rollout is. Beside each is who owns it: us, or people."""

    AWAITING_YES = "awaiting_yes"
    """People. Planned; the policy, or a component that cannot be rolled back, wants approval first."""
    RUNNING = "running"
    """Us. Nodes of the present wave are being updated, as windows and budgets allow."""
    SOAKING = "soaking"
    """Us. The wave is updated and works; the gate has not decided yet."""
    PAUSED = "paused"
    """People. Nodes in hand are finished; no other is started."""
    ASKING = "asking"
    """People. The gate could not decide in time, or too many nodes were pulled out: continue, or roll back?"""
    GOING_BACK = "going_back"
    """Us. The gate or a person stopped it; every touched node gets its old version."""
    ENDING = "ending"
    """Us. A person ended it; nodes in hand are finished, no other is started."""
    ABORTED = "aborted"
    """Final. A person ended it; nodes in hand were finished, the others keep what they have."""
    DONE = "done"
    """Final. Every node that could be updated is, and its wave was good."""
    WENT_BACK = "went_back"
    """Final. Every touched node runs its old version, verified."""
    STUCK = "stuck"
    """People. Rolling back failed on some node: it is drained, and somebody was called."""


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
    """The next wave holds what cannot be rolled back: it needs an approval of its own."""


class Direction(Enum):
    FORWARD = "forward"
    BACK = "back"


class NodeStage(Enum):
    """Where one node of a rollout is, on its way forward or back."""

    PENDING = "pending"
    """Untouched; its wave has not come, or no budget was left."""
    DRAINING = "draining"
    """Takes no new work; its jobs continue to their end, or to the checkpoint at which they are moved."""
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
    """Failed alone: drained, and ours. It rolls back in the next pass; what cannot be rolled back waits for people."""
    LOST = "lost"
    """Could not be restored: drained, a person was called."""


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
    """The drain is started."""
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
    """The rollback begins, wherever the node is."""
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
    """In the order in which they were planned; the engine takes anyone who is free first."""
    is_canary: bool
    """Tested longer; nobody else is touched before the last of these has been decided."""
    is_deciding: bool = False
    """The last canary wave: it is good only when everything that the release claims to find was looked for."""
    planned_from: datetime | None = None
    planned_until: datetime | None = None
    """As predicted when it was planned, soak included; None: no time could be expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutNode:
    """One node in one rollout, as the ledger keeps it: enough to continue from after a crash."""

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
    """Of the acts of this pass; a node that is tried again, or rolls back, has a higher one."""
    versions_before: Mapping[Component, str] = field(default_factory=dict)
    """What ran before it was touched: where the rollback leads."""
    good_reads: int = 0
    read_at: datetime | None = None
    """When the version was last read."""
    returned_at: datetime | None = None
    """When it returned to work with the new version: its soak counts from here."""
    failure: str = ""
    """The signature of its own failure, by which alike ones are known; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """Maintenance that the scheduler was notified of: no job starts on these nodes that would run into it."""

    name: str
    nodes: tuple[NodeName, ...]
    begins_at: datetime
    ends_at: datetime
    is_accepted: bool = False
    """Whether the scheduler has approved; until then it is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One release on its way through its nodes, as the ledger keeps it."""

    rollout: RolloutId
    release: ReleaseName
    release_digest: Digest
    """Under which the ledger keeps the release: what was started is finished with it, whatever the file says by
    then."""
    plan: PlanId
    """What approval covers: a digest of release, nodes and waves."""
    state: RolloutState
    waves: tuple[Wave, ...]
    wave: int = 1
    """The present one."""
    since: datetime
    deadline: datetime | None = None
    """When somebody is notified that it stays in this state too long."""
    owner: str
    """Who must move it on: `autopilot`, the person who stopped it, or `people` where anybody may answer."""
    reason: str
    created_by: str
    created_at: datetime
    paused_from: RolloutState | None = None
    """Where it continues after a pause."""
    stopped_because: str = ""
    """Why it rolled back or asks; kept to its end."""
    finishes_at: datetime | None = None
    """As predicted when it was planned."""
    yes_by: str = ""
    """Who approved last; empty: nobody, and by the policy nobody needs to."""
    kept_off: Mapping[JobId, tuple[NodeName, ...]] = field(default_factory=dict)
    """Waiting jobs that are too wide for nodes that soak, and the nodes that we keep each off until they have."""
    booking: Booking | None = None
    """Nodes of the present wave that come next, and are kept free of long jobs until then."""
    resumed_at: datetime | None = None
    """When a person let it continue although it asked: the gate's time counts from here."""
    excused_count: int = 0
    """How many nodes had failed by then; they count no more against `max_pulled_count`."""
    yes_through: int = 0
    """The last wave that the approval covers. What cannot be rolled back is asked for wave by wave."""


def is_canary(node: RolloutNode, rollout: Rollout) -> bool:
    """Return whether a node is of a canary wave."""
    return node.wave is not None and rollout.waves[node.wave - 1].is_canary


# -- what the planner returns --


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVisit:
    """When one node is expected to be out."""

    node: NodeName
    wave: int
    drained_at: datetime
    begins_at: datetime
    """When it is expected to be free of jobs, and is installed."""
    ends_at: datetime
    """When it is expected to work again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamTouched:
    """When one team is touched, and by how much."""

    team: str
    nodes: tuple[NodeName, ...]
    gpu_count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedNode:
    node: NodeName
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A rule that a release breaks: as such, which refuses it, or on some nodes, which are left out."""

    rule: str
    said: str
    """What was found, what the rule expects, what to do."""
    source: str
    component: Component | None = None
    nodes: tuple[NodeName, ...] = ()
    """The nodes concerned; empty: the release itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """Everything that would be done, and what it is expected to cost."""

    plan: PlanId
    release: ReleaseName
    made_at: datetime
    waves: tuple[Wave, ...]
    visits: tuple[PlannedVisit, ...]
    skipped: tuple[SkippedNode, ...]
    starts_at: datetime
    finishes_at: datetime | None
    """None: the windows that are known do not suffice."""
    lost_gpu_hours: float
    """GPUs that do no work: from the last job's end to the return, and canary tests."""
    teams: tuple[TeamTouched, ...]
    one_way: tuple[Change, ...] = ()
    """What cannot be rolled back: each alone in its wave, each needs approval."""
    left_out: tuple[NodeName, ...] = ()
    """Planned, and yet not expected to be updated: their jobs outlast the limit each time that they are tried."""
    sight: tuple[str, ...] = ()
    """What the gate will be able to find before each wave that it must decide on, and what not, in words."""
    warnings: tuple[str, ...] = ()


# -- one node on its way, there or back --


def wanted_versions(node: RolloutNode, release: Release) -> Mapping[Component, str]:
    """Return what each component of a release is to run on a node that goes its way: there, or back."""
    if node.direction is Direction.FORWARD:
        return {change.component: change.version for change in release.changes}
    return {
        change.component: node.versions_before[change.component]
        for change in release.changes
        if change.component in node.versions_before and change.reversibility is not Reversibility.NO
    }


# -- one installation on one node --


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOrder:
    """One step of a release on one node: all of it or nothing."""

    changes: tuple[Change, ...]
    """Of one step, in their order; backwards on the rollback."""
    direction: Direction
    versions: Mapping[Component, str]
    """What each component is to run afterwards: the release's version, or the one that the node had."""


class InstallState(Enum):
    RUNNING = "running"
    WAITING = "waiting"
    """A part of it is done; what is left begins when it is asked for again under the same key."""
    INSTALLED = "installed"
    """What was ordered lies on the node (or is staged in its BMC); it need not run yet."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallReport:
    """How far an installation is. What a BMC says of its own progress is shown, and never believed."""

    key: ActionKey
    node: NodeName
    state: InstallState
    said: str
    """What the command or the BMC stated last. Untrusted: never reaches a shell or markup."""
    progress_ratio: float | None = None
    changed_at: datetime | None = None


class UnorderableError(ValueError):
    """A step of a release cannot be ordered for a node. The message says what is missing."""


def order_for(release: Release, node: RolloutNode, *, step: int, direction: Direction) -> InstallOrder:
    """Return the order of one step of a release for a node, there or back; `step` counts along that way.

    Raises UnorderableError where the release has no such step, where a part of it cannot be rolled back, and where it
    is not known what the node ran before: half a step is no step.
    """
    is_forward = direction is Direction.FORWARD
    groups = release.steps if is_forward else release.steps[::-1]
    if not 0 <= step < len(groups):
        raise UnorderableError(f"{release.name} has {len(groups)} steps; there is no step {step}")
    changes = groups[step] if is_forward else groups[step][::-1]
    wanted = wanted_versions(replace(node, direction=direction), release)
    unknown = [change.component.value for change in changes if change.component not in wanted]
    if unknown:
        raise UnorderableError(
            f"{', '.join(unknown)} of {node.node} cannot be rolled back, or nobody knows what ran before"
        )
    versions = {change.component: wanted[change.component] for change in changes}
    return InstallOrder(changes=changes, direction=direction, versions=versions)


def step_of(part: str) -> tuple[int, Direction]:
    """Return which step of a release an act is about, and which way: the last two words of what `way` writes."""
    try:
        number, direction = part.split()[-2:]
        return int(number), Direction(direction)
    except ValueError:
        raise UnorderableError(f"{part!r} names no step; expected a number and forward or back") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTime:
    """When the versions of a node were being changed, on one pass of one rollout; both ends belong to it."""

    begun_at: datetime
    ended_at: datetime | None
    """None: it continues."""

    def holds(self, at: datetime) -> bool:
        return self.begun_at <= at and (self.ended_at is None or at <= self.ended_at)


def times_of_change(
    owned: Mapping[NodeName, RolloutId], records: Collection[ActionRecord]
) -> Mapping[NodeName, tuple[ChangeTime, ...]]:
    """Return when each node was being changed: from its first installation until it was returned, or given up.

    What is seen of a node meanwhile is what the change does to it, and the rollout's own to judge. While a node is only
    drained for an update its jobs still run, and a fault there is one like any other.
    """
    by_node: dict[tuple[NodeName, IncidentId], list[ActionRecord]] = {}
    for record in records:
        action = record.action
        if action.node is not None and is_rollout(action.incident):
            by_node.setdefault((action.node, action.incident), []).append(record)
    found: dict[NodeName, tuple[ChangeTime, ...]] = {}
    for (name, cause), own in by_node.items():
        times = _changes_in(sorted(own, key=lambda each: each.begun_at), goes_on=is_owned_by(cause, name, owned))
        found[name] = (*found.get(name, ()), *times)
    return found


def _changes_in(records: Iterable[ActionRecord], *, goes_on: bool) -> Iterator[ChangeTime]:
    """Yield the intervals between a first installation and the return that followed, of one rollout on one node."""
    begun_at, last_at = None, None
    for record in records:
        if begun_at is None and record.action.verb is not Verb.INSTALL:
            continue
        begun_at = begun_at or record.begun_at
        last_at = record.begun_at if record.outcome is None else record.outcome.finished_at
        if is_return(record):
            yield ChangeTime(begun_at=begun_at, ended_at=last_at)
            begun_at = None
    if begun_at is not None:
        yield ChangeTime(begun_at=begun_at, ended_at=None if goes_on else last_at)


def under_change(owned: Mapping[NodeName, RolloutId], records: Collection[ActionRecord]) -> frozenset[NodeName]:
    """Return the nodes whose versions are being changed at this moment."""
    times = times_of_change(owned, records)
    return frozenset(name for name, own in times.items() if any(each.ended_at is None for each in own))


def is_owned_by(cause: IncidentId, name: NodeName, owned: Mapping[NodeName, RolloutId]) -> bool:
    """Return whether a node is in the hand of the rollout that is the cause of an act."""
    rollout = owned.get(name)
    return rollout is not None and cause_of(rollout) == cause


def is_return(record: ActionRecord) -> bool:
    """Return whether a record is of a node's return to service that was witnessed."""
    outcome = record.outcome
    return record.action.verb is Verb.RESUME and outcome is not None and outcome.kind is OutcomeKind.DONE
