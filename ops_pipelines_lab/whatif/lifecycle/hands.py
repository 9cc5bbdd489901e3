"""The hands and the eyes of our simulated rollout: nodes drained, visited, tested and returned, each stage by
production's table; the nodes as production sees a fleet; and what the gate is shown.

The hands do what they are ordered and take the time that it takes; who begins, who rolls back and when is
`controller`'s. The fleet is made when asked for, and again when something changed. The gate's evidence is counted as it
happens: updates that came well or not, what broke, how fast runs are. Nothing of the scenario is known here, and no
cause is given for what broke: real diagnosis says more.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from statistics import fmean

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import IN_HAND, Direction, NodeEvent, NodeStage, RolloutNode
from ops_pipelines.rollouts.course import next_stage
from ops_pipelines.rollouts.engine import signature_of
from ops_pipelines.rollouts.fleet import Beginning, FleetNode
from ops_pipelines.rollouts.gate.evidence import (
    ControlShift,
    EventCounts,
    EventKind,
    GateEvidence,
    LevelKind,
    LevelSamples,
    UpdateTry,
)
from ops_pipelines_lab.whatif.lifecycle.work import MODELS
from ops_pipelines_lab.whatif.lifecycle.world import DAY, World

EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
_CONTROL_EVERY = 10
"""# Assumption: every tenth of the untouched nodes is compared with its own past."""
_CONTROL_RUNS = 10
_FEWEST_CONTROLS = 10
"""With fewer untouched nodes left, their last shift is kept: a handful says nothing of the cluster."""
_AT_WORK = (NodeStage.SOAKING, NodeStage.UPDATED)


def time_of(seconds: float) -> datetime:
    """Return a time of the world as production reads it."""
    return EPOCH + timedelta(seconds=seconds)


def name_of(number: int) -> NodeName:
    return NodeName(f"n{number:05d}")


def number_of(name: NodeName) -> int:
    return int(name[1:])


@dataclass(slots=True, kw_only=True)
class _Past:
    """What is known of a node that was touched, from before that."""

    before: tuple[float, ...]
    failure_count: int
    seconds: float
    sample: LevelSamples | None = None
    """As the gate was shown last."""


class GateRecord:
    """What was seen so far, of one rollout that begins now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._began_at = self._counted_at = world.now
        self._tries: dict[NodeName, UpdateTry] = {}
        self._treated: list[NodeName] = []
        self._control_count = 0
        self._control_seconds = 0.0
        self._untouched_count = len(world.nodes)
        self._failure_counts = [world.past_failure_count() for _ in world.nodes]
        """Of each node, before it was touched."""
        self._past_count = sum(self._failure_counts)
        self._failed_at: dict[int, float] = {}
        self._pasts: dict[NodeName, _Past] = {}
        self._controls = {number: world.past_runs(number) for number in range(0, len(world.nodes), _CONTROL_EVERY)}
        for number in self._controls:
            world.nodes[number].is_measured = True
        self._shift = ControlShift(kind=LevelKind.STEP_TIME, shift_ratio=0.0, node_count=0)

    @property
    def has_tried(self) -> bool:
        return bool(self._tries)

    def note_begin(self, number: int) -> None:
        """A node is about to be changed: its past ends here."""
        self._count_untouched(-1)
        self._controls.pop(number, None)
        world = self._world
        self._pasts[name_of(number)] = _Past(
            before=world.past_runs(number),
            failure_count=self._failure_counts[number],
            seconds=world.site.past_days * DAY + world.now - self._began_at,
        )

    def note_not_now(self) -> None:
        """A node that was only drained works on as it was."""
        self._count_untouched(+1)

    def note_try(self, number: int, *, model: str, failure: str) -> None:
        """The update of a node came to its end; `failure` is empty if it came well."""
        name = name_of(number)
        self._tries[name] = UpdateTry(node=name, model=model, is_good=not failure, signature=failure)

    def note_failure(self, number: int, stage: NodeStage) -> bool:
        """Something broke on a node; return whether it speaks of the new version. Again within a day is no other."""
        is_again = self._world.now - self._failed_at.get(number, -DAY) < DAY
        self._failed_at[number] = self._world.now
        if is_again:
            return False
        if stage in _AT_WORK:
            self._treated.append(name_of(number))
            return True
        if stage is NodeStage.PENDING:
            self._control_count += 1
            self._failure_counts[number] += 1
        return False

    def evidence(self, nodes: Collection[RolloutNode], *, wave: int, soak_began_at: float | None) -> GateEvidence:
        """Return everything that the gate judges on, now."""
        world = self._world
        self._count_untouched(0)
        treated = [each for each in nodes if each.stage in _AT_WORK]
        soaks: dict[NodeName, timedelta] = {}
        levels: list[LevelSamples] = []
        worked = own_seconds = 0.0
        own_count = 0
        for each in treated:
            past, number = self._pasts[each.node], number_of(each.node)
            seconds = world.worked_seconds(number)
            worked, own_seconds, own_count = (
                worked + seconds,
                own_seconds + past.seconds,
                own_count + past.failure_count,
            )
            runs = world.nodes[number].runs
            if past.sample is None or len(past.sample.after) != len(runs):
                past.sample = LevelSamples(
                    kind=LevelKind.STEP_TIME, node=each.node, before=past.before, after=tuple(runs)
                )
            levels.append(past.sample)
            if each.wave == wave:
                soaks[each.node] = timedelta(seconds=seconds)
        counts = EventCounts(
            kind=EventKind.NODE_FAILURE,
            treated_count=len(self._treated),
            treated_node_days=worked / DAY,
            control_count=self._control_count,
            control_node_days=self._control_seconds / DAY,
            own_count=own_count,
            own_node_days=own_seconds / DAY,
            treated_nodes=frozenset(self._treated),
            past_count=self._past_count,
            past_node_days=world.site.past_days * len(world.nodes),
        )
        return GateEvidence(
            at=time_of(world.now),
            tries=tuple(self._tries.values()),
            counts=(counts,),
            levels=tuple(levels),
            shifts=(self._control_shift(),),
            soaks=soaks,
            soak_began_at=None if soak_began_at is None else time_of(soak_began_at),
        )

    def _control_shift(self) -> ControlShift:
        moved = [
            fmean(runs[-_CONTROL_RUNS:]) / fmean(before) - 1
            for number, before in self._controls.items()
            if (runs := self._world.nodes[number].runs)
        ]
        if len(moved) >= _FEWEST_CONTROLS:
            self._shift = ControlShift(kind=LevelKind.STEP_TIME, shift_ratio=fmean(moved), node_count=len(moved))
        return self._shift

    def _count_untouched(self, change: int) -> None:
        now = self._world.now
        self._control_seconds += self._untouched_count * (now - self._counted_at)
        self._counted_at = now
        self._untouched_count += change


_Seen = tuple[float | None, bool, bool]
_PARTITIONS = tuple(frozenset({each}) for each in MODELS)
_VERSIONS = {Component.DRIVER: "1"}


class FleetSeen(Mapping[NodeName, FleetNode]):
    """Every node as it is now, by its name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[NodeName, tuple[_Seen, FleetNode]] = {}
        racks = world.site.racks_per_leaf
        self._places = [
            Place(rack=f"r{each.rack}", nvlink_domain=name_of(each.number), leaf_switch=f"s{each.rack // racks}")
            for each in world.nodes
        ]

    def __getitem__(self, name: NodeName) -> FleetNode:
        node = self._world.nodes[number_of(name)]
        seen = (None if node.job is None else node.job.ends_by, node.is_out, node.is_drained)
        known = self._known.get(name)
        if known is None or known[0] != seen:
            known = (seen, self._look_at(node.number, name, seen))
            self._known[name] = known
        return known[1]

    def __iter__(self) -> Iterator[NodeName]:
        return (name_of(each.number) for each in self._world.nodes)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name[:1] == "n" and 0 <= int(name[1:]) < len(self._places)

    def _look_at(self, number: int, name: NodeName, seen: _Seen) -> FleetNode:
        ends_by, is_out, is_drained = seen
        model = self._world.nodes[number].model
        return FleetNode(
            node=name,
            model=MODELS[model],
            place=self._places[number],
            gpu_count=self._world.site.gpus_per_node,
            versions=_VERSIONS,
            is_in_service=not (is_out or is_drained),
            free_at=None if ends_by is None else time_of(ends_by),
            is_idle=ends_by is None,
            partitions=_PARTITIONS[model],
            is_in_hand=is_drained,
        )


_DIRECTIONS = {NodeEvent.BEGIN: Direction.FORWARD, NodeEvent.GO_BACK: Direction.BACK}
_TOUCHED_IN_HAND = IN_HAND - {NodeStage.DRAINING}


class Hands:
    """Every node of one rollout, and what is done to it."""

    def __init__(
        self,
        world: World,
        record: GateRecord,
        nodes: dict[NodeName, RolloutNode],
        *,
        is_canary: Callable[[RolloutNode], bool],
        job_end_limit: timedelta,
    ) -> None:
        self._world, self._record, self._nodes = world, record, nodes
        self._is_canary, self._job_end_limit = is_canary, job_end_limit
        self._touched: set[NodeName] = set()

    @property
    def nodes(self) -> tuple[RolloutNode, ...]:
        return tuple(self._nodes.values())

    @property
    def touched_count(self) -> int:
        """How many ran the new version at any time, or are being changed."""
        in_hand = {each.node for each in self._nodes.values() if each.stage in _TOUCHED_IN_HAND}
        return len(self._touched | in_hand)

    @property
    def is_all_back(self) -> bool:
        """Whether no touched node runs the new version."""
        return not any(self._world.nodes[number_of(name)].is_updated for name in self._touched)

    def stage_of(self, number: int) -> NodeStage:
        return self._nodes[name_of(number)].stage

    def keep(self, node: RolloutNode) -> None:
        """Keep a node as production says that it is from now on."""
        self._nodes[node.node] = node

    def start(self, start: Beginning) -> None:
        """Drain a node for its way there or back; one that is in a visit is taken out of it."""
        node, number = self._nodes[start.node], number_of(start.node)
        if start.event is NodeEvent.BEGIN:
            self._record.note_begin(number)
        elif node.stage in IN_HAND:
            self._world.end_visit(number)
            self._touched.add(start.node)
        self._step(node, start.event)
        self.keep(replace(self._nodes[start.node], direction=_DIRECTIONS[start.event]))
        self._world.drain(number)

    def go_on(self, *, is_called_back: bool) -> None:
        """Bring on who is drained: into a visit when free, back untouched when it takes too long or all rolls back."""
        world = self._world
        for node in [each for each in self._nodes.values() if each.stage is NodeStage.DRAINING]:
            number, is_forward = number_of(node.node), node.direction is Direction.FORWARD
            is_late = time_of(world.now) - node.since >= self._job_end_limit
            if is_forward and (is_called_back or is_late):
                self._step(node, NodeEvent.NOT_NOW)
                self._record.note_not_now()
                world.undrain(number)
            elif world.is_free(number):
                self._step(node, NodeEvent.FREE)
                longer = world.site.canary_extra_seconds if is_forward and self._is_canary(node) else 0.0
                world.visit(number, world.site.visit_seconds + longer)

    def end_visit(self, number: int) -> bool:
        """Bring a node back to work, or keep one that is not well; return whether it is well."""
        name, world = name_of(number), self._world
        node = self._nodes[name]
        is_new = node.direction is Direction.FORWARD
        world.set_version(number, is_new=is_new)
        failure = ""
        if is_new:
            self._touched.add(name)
            if not world.comes_well(number):
                failure = signature_of(NodeStage.TESTING, "does not come well", node=name)
            self._record.note_try(number, model=MODELS[world.nodes[number].model], failure=failure)
        if failure:
            self._step(replace(node, stage=NodeStage.TESTING, failure=failure), NodeEvent.FAILED)
            return False
        self._step(replace(node, stage=NodeStage.RETURNING), NodeEvent.RETURNED if is_new else NodeEvent.IS_BACK)
        world.set_cap(number, is_capped=is_new and self._is_canary(node))
        world.undrain(number)
        return True

    def wave_good(self, wave: int) -> None:
        """Let everything run again on the nodes of a wave."""
        for node in list(self._nodes.values()):
            if node.wave == wave and node.stage is NodeStage.SOAKING:
                self._step(node, NodeEvent.WAVE_GOOD)
                self._world.set_cap(number_of(node.node), is_capped=False)

    def _step(self, node: RolloutNode, event: NodeEvent) -> None:
        stage = next_stage(node.stage, event, direction=node.direction)
        self.keep(replace(node, stage=stage, since=time_of(self._world.now)))
