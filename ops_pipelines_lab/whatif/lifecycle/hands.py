"""The hands of our simulated rollout: nodes drained, visited, tested and returned, each stage by production's table.

They do what they are told and take the time that it takes; who begins, who turns round and when is `controller`'s.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.rollout import IN_HAND, Direction, NodeEvent, NodeStage, RolloutNode
from ops_pipelines.rollouts.course import next_stage
from ops_pipelines.rollouts.engine import signature_of
from ops_pipelines.rollouts.fleet import Beginning
from ops_pipelines_lab.whatif.lifecycle.gate_record import GateRecord, name_of, number_of, time_of
from ops_pipelines_lab.whatif.lifecycle.nodes import MODELS
from ops_pipelines_lab.whatif.lifecycle.world import World

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
        """Bring on who is drained: into a visit when free, back untouched when it takes too long or all goes back."""
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
