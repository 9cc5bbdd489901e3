"""What a rollout sees of the simulated world: updates that came well or not, what broke, how fast runs are.

Counted as it happens, handed to production's gate as its evidence. Nothing of the scenario is known here, and no cause
is told of what broke: real diagnosis says more.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import fmean

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.rollout import NodeStage, RolloutNode
from ops_pipelines.rollouts.gate.evidence import (
    ControlShift,
    EventCounts,
    EventKind,
    GateEvidence,
    LevelKind,
    LevelSamples,
    UpdateTry,
)
from ops_pipelines_lab.whatif.lifecycle.world import DAY, World

EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
_CONTROL_EVERY = 10
"""# Assumption: every tenth of the untouched nodes is compared with its own past."""
_CONTROL_RUNS = 10
_FEWEST_CONTROLS = 10
"""With fewer untouched nodes left, their last shift stands: a handful says nothing of the cluster."""
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
    """As the gate was told last."""


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
