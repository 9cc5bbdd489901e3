"""Releases on a small twin: nodes of one model, what lies in the directory of releases, a gate for tests of seconds.

Everything is the program's own but the gate's patience: a wave that nothing is evidence against is good after its soak,
where the true gate would want days of it. What the true gate finds, its verdict to stop or to ask, is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, cast

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.identity import NodeName, RolloutId, cause_of
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.policy import Policy, PolicyError, RolloutLimits
from ops_pipelines.core.record import CalendarText
from ops_pipelines.core.release import Change, Claims, CompatibilityTables, Component, Release, ReleaseName
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    OF_PEOPLE,
    Direction,
    NodeStage,
    Rollout,
    RolloutNode,
    RolloutState,
)
from ops_pipelines.core.sources import SourceError, SourceUnavailable
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.release_files import read_tables
from ops_pipelines.resources.state_files import PauseFile
from ops_pipelines.rollouts import orders
from ops_pipelines.rollouts.cycle import CycleReport, advance_rollouts
from ops_pipelines.rollouts.gate.evidence import GateVerdict, VerdictKind
from ops_pipelines.rollouts.gate_sources import judge_of
from ops_pipelines.rollouts.orders import plan_release, start_release
from ops_pipelines.rollouts.rollout_pass import Judge
from ops_pipelines_lab.simulator.versions import ReleaseFault, ReleaseTrouble
from tests.safety.quick_database import QuickDatabase
from tests.safety.quick_ledger import Memory, QuickLedger, StoryLedger, empty_ledger
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot

MODEL = "hgx"
FIRST = RolloutId("ROLL-0001")
NEW_KERNEL = "6.8.0-61-generic"
PERSON = "day-shift"
LIMITS = RolloutLimits(
    max_out_count=2,
    canary_counts=(1, 2),
    bounds=(),
    soak=timedelta(seconds=6),
    soak_limit=timedelta(seconds=120),
    good_read_count=2,
    good_read_every=timedelta(seconds=1),
    install_limit=timedelta(seconds=60),
    verify_limit=timedelta(seconds=20),
    job_end_limit=timedelta(seconds=60),
    max_pulled_count=1,
)
ROLLOUT_POLICY = replace(POLICY, rollouts=LIMITS)


def change(component: Component, version: str, **options: Any) -> Change:
    """Return a change that a command installs, and takes back."""
    words = ("install", component.value, "{version}")
    return Change(component=component, version=version, install=words, **{"rollback": words, **options})


def release_of(*changes: Change, name: str = "autumn", **options: Any) -> Release:
    """Return a release for the one model there is."""
    return Release(
        name=ReleaseName(name),
        about="a test",
        models=frozenset({MODEL}),
        changes=changes,
        claims=Claims(slowest_failure=timedelta(seconds=1)),
        **options,
    )


KERNEL = release_of(change(Component.KERNEL, NEW_KERNEL))


def bad_kernel(trouble: ReleaseTrouble, **options: Any) -> ReleaseFault:
    """Return what is wrong with the kernel of the release."""
    return ReleaseFault(component=Component.KERNEL, version=NEW_KERNEL, trouble=trouble, **options)


@dataclass(slots=True)
class FilesInMemory:
    """A directory of releases, and the calendars beside it."""

    releases: dict[str, Release] = field(default_factory=dict)
    texts: tuple[CalendarText, ...] = ()
    is_there: bool = True

    def release_names(self) -> tuple[str, ...]:
        return tuple(sorted(self.releases))

    def release(self, name: str) -> Release:
        try:
            return self.releases[name]
        except KeyError:
            raise PolicyError(f"there is no release {name}") from None

    def check_artifacts(self, release: Release) -> None:
        """Every artifact is as its release says."""

    def tables(self) -> CompatibilityTables:
        return _tables()

    def calendars(self) -> tuple[CalendarText, ...]:
        if not self.is_there:
            raise SourceUnavailable("calendar holidays.ics: no such file")
        return self.texts


@cache
def _tables() -> CompatibilityTables:
    return read_tables(Path("no additions of a site"))


def quick_judge_of(rollout: Rollout, cluster: Cluster) -> Judge:
    """Return the true gate with little patience."""
    judge = judge_of(rollout, cluster)

    def hurry(present: Rollout, nodes: Sequence[RolloutNode]) -> GateVerdict | None:
        verdict = judge(present, nodes)
        if verdict is None or verdict.kind is not VerdictKind.UNDECIDED or present.state is not RolloutState.SOAKING:
            return verdict
        of_wave = [each for each in nodes if each.wave == present.wave and each.stage is NodeStage.SOAKING]
        soak = cluster.rules.policy.rollouts.soak
        now = cluster.clock.now()
        is_over = all(each.returned_at is not None and now - each.returned_at >= soak for each in of_wave)
        good = replace(verdict, kind=VerdictKind.GOOD, reason="nothing is evidence against it")
        return good if is_over else verdict

    return hurry


def equip(autopilot: SmallAutopilot, files: FilesInMemory | None = None) -> None:
    """Give a process nodes of one model and a directory of releases."""
    rules = autopilot.cluster.rules
    places = {name: replace(place, model=MODEL) for name, place in rules.topology.places.items()}
    rules = replace(rules, topology=replace(rules.topology, places=places))
    autopilot.cluster = replace(autopilot.cluster, rules=rules, rollout_files=files or FilesInMemory())


class RememberingLedger(QuickLedger):
    """The ledger itself, asked each question once until somebody writes: a pass asks the same things over and over."""

    def read_state(self, now: datetime) -> LedgerState:
        state: LedgerState = self._memory.ask("read_state", now, lambda: self.plain.read_state(now))
        return state


class RolloutStage(SmallAutopilot):
    """A small autopilot that also rolls releases out. All its processes share what they remember of the ledger."""

    verify_patience = timedelta(seconds=1)

    def __init__(self, directory: Path, *jobs: Any, policy: Policy = ROLLOUT_POLICY, **options: Any) -> None:
        self.files = FilesInMemory()
        self.reports: list[CycleReport] = []
        self._database = QuickDatabase(empty_ledger())
        self._memory = Memory(self._database)
        super().__init__(directory, *jobs, **{"node_count": 6, "gpus_per_node": 2, "policy": policy, **options})
        self.let_pass(3)

    def _open_ledger(self) -> SqlLedger:
        return StoryLedger(self._database, pause_file=PauseFile(self.directory))

    def _begin_on(self, directory: Path, twin: Any, policy: Policy) -> None:
        super()._begin_on(directory, twin, policy)
        ledger = RememberingLedger(cast("SqlLedger", self.cluster.ledger), self._memory)
        self.cluster = replace(self.cluster, ledger=cast("Ledger", ledger))
        equip(self, self.files)

    # -- people --

    def start(self, release: Release = KERNEL) -> RolloutId:
        """Roll a release out; a rollout that waits for an approval waits for it."""
        return start_release(plan_release(release, self.cluster), self.cluster, actor=PERSON).rollout

    def go_on(self) -> None:
        orders.go_on(FIRST, self.cluster, actor=PERSON, reason="seen to")

    # -- what happens --

    def advance(self) -> None:
        """Do one pass over the rollouts, as the job does; a source that does not answer fails it, and nothing else."""
        try:
            self.reports.append(advance_rollouts(self.cluster, lease=self.lease, judging=quick_judge_of))
        except SourceError as problem:
            self.failures.append(str(problem))

    def step(self, seconds: float = 3.0) -> None:
        """Let a pass over the incidents and one over the rollouts happen, and time go by."""
        try:
            self.run_once()
        except SourceError as problem:
            self.failures.append(str(problem))
        self.advance()
        self.let_pass(seconds)

    def run_while(self, goes_on: Callable[[], bool], *, seconds: float = 600) -> None:
        """Continue as long as something holds; raise TimeoutError, with how far everything came, if it does not end."""
        until = self.clock.now() + timedelta(seconds=seconds)
        while goes_on():
            if self.clock.now() > until:
                raise TimeoutError(self.words())
            self.step()

    def run_to(self, *states: RolloutState, rollout: RolloutId = FIRST, seconds: float = 600) -> None:
        """Continue until a rollout is in one of these states; without any: until it is over."""
        wanted = frozenset(states) or FINAL
        self.run_while(lambda: self.rollout(rollout).state not in wanted, seconds=seconds)

    def run_until_stage(self, node: str, *stages: NodeStage, seconds: float = 300) -> None:
        self.run_while(lambda: self.stage_of(node) not in stages, seconds=seconds)

    # -- what is so --

    def rollout(self, rollout: RolloutId = FIRST) -> Rollout:
        found = self.cluster.ledger.rollout(rollout)
        assert found is not None
        return found

    def nodes(self, rollout: RolloutId = FIRST) -> dict[NodeName, RolloutNode]:
        return {each.node: each for each in self.cluster.ledger.rollout_nodes(rollout)}

    def stage_of(self, node: str) -> NodeStage:
        return self.nodes()[NodeName(node)].stage

    def stages(self, rollout: RolloutId = FIRST) -> dict[str, str]:
        return {name: each.stage.value for name, each in self.nodes(rollout).items()}

    def versions(self, component: Component = Component.KERNEL) -> dict[NodeName, str]:
        """Return what each node really runs."""
        with self.twin.present() as world:
            return {name: world.node(name).versions[component] for name in self.cluster.rules.topology.places}

    def drained(self) -> set[str]:
        return {each.node for each in self.cluster.scheduler.read_nodes() if each.is_drained}

    def touched_count(self, rollout: RolloutId = FIRST) -> int:
        records = self.cluster.ledger.records(cause_of(rollout))
        return len({each.action.node for each in records if each.action.part.endswith("forward")})

    def waiting_for_incidents(self) -> set[NodeName]:
        """Return the nodes that roll back when people have seen to them: hands, or somebody who was paged, have
        them."""
        peoples = {IncidentState.IN_REPAIR, IncidentState.ESCALATED}
        broken = {node for each in self.incidents() if each.state in peoples for node in each.nodes}
        present = self.cluster.ledger.read_state(self.clock.now()).rollouts
        return {
            each.node
            for rollout in present
            for each in self.nodes(rollout.rollout).values()
            if each.stage is NodeStage.DRAINING and each.direction is Direction.BACK and each.node in broken
        }

    def is_at_rest(self) -> bool:
        """Return whether each rollout is over or people's, or waits on its rollback for nodes that people have."""
        waiting = self.waiting_for_incidents()
        for rollout in self.cluster.ledger.read_state(self.clock.now()).rollouts:
            nodes = [each for name, each in self.nodes(rollout.rollout).items() if name not in waiting]
            if any(each.stage in IN_HAND for each in nodes):
                return False
            goes_back = rollout.state is RolloutState.GOING_BACK and not any(
                each.stage in (NodeStage.SOAKING, NodeStage.UPDATED, NodeStage.PULLED) for each in nodes
            )
            if rollout.state not in OF_PEOPLE and not (goes_back and waiting):
                return False
        return True

    def words(self) -> str:
        """Return how far everything came, for who reads of a test that failed."""
        now: datetime = self.clock.now()
        lines = [f"at {now:%H:%M:%S}"]
        for each in self.cluster.ledger.rollouts(final_since=self.twin.began_at):
            lines.append(f"{each.rollout} {each.state.value} wave {each.wave}: {each.reason}")
            lines += [
                f"  {node.node} {node.stage.value} {node.direction.value}: {node.reason} {node.failure}"
                for node in self.nodes(each.rollout).values()
            ]
        lines += [f"{each.incident} {each.state.value}: {each.cause} {each.note}" for each in self.incidents()]
        return "\n".join(lines)
