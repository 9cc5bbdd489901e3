"""Whatever acts dies at every step that it persists; a new process on the same disk comes to the same end.

One row a producer of actions. How it is killed, and which disks are tried, is `killed_at_every_step`.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.cluster import Fleet
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import DETECTOR_SOURCE, NodeInspection, Observation, Signal
from ops_pipelines.core.policy import MassEvent, Mode
from ops_pipelines.core.sources import SourceRefused
from ops_pipelines.observe.intake import take_in_logs
from ops_pipelines.people import orders
from ops_pipelines.remediate.by_hand import ByHandRefused, drain_by_hand, return_by_hand
from ops_pipelines.remediate.reflex import react
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.killed_at_every_step import FINAL, QUICK, Act, Story, choose, differences, tell
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.small_cluster import GPU1, SESSION

NOTEBOOK = replace(SESSION, work_seconds=48.0)
NOTEBOOK_NODE = "gpu003"
"""Where the scheduler puts a job of one GPU: it uses GPU 0, and continues whatever becomes of GPU 1."""
SLOW_MASS = replace(QUICK, mass_event=MassEvent(min_node_count=2, window=timedelta(seconds=60)))
HASTY = replace(QUICK, durations=replace(QUICK.durations, run_patience=timedelta(seconds=1)))
"""For stories with a long wait: most of it between the passes, not in them."""
WATCHED = replace(
    HASTY,
    durations=replace(HASTY.durations, reset_limit=timedelta(seconds=6), probation=timedelta(seconds=6)),
)
UNTOUCHABLE = replace(QUICK, untouchable_nodes=frozenset({GPU1}))
PARTITION_SECONDS = 120.0

# -- what happens -----------------------------------------------------------------------------------------------------


def breaks(fault: FaultKind, *nodes: str, gpu: int | None = None, seconds: float | None = None) -> Act:
    """A fault of nature: nobody's step, so nobody dies in it."""
    names = nodes or ("gpu001",)
    return Act(name="nature", do=lambda autopilot: autopilot.twin.inject(fault, *names, gpu=gpu, seconds=seconds))


def loop_until(state: IncidentState) -> Act:
    """The autopilot's own passes, until every incident is in `state` or over, and one more."""

    def do(autopilot: SmallAutopilot) -> None:
        until = autopilot.clock.now() + timedelta(seconds=200)
        while not autopilot.incidents() or any(each.state not in (state, *FINAL) for each in autopilot.incidents()):
            if autopilot.clock.now() > until:
                raise TimeoutError(", ".join(f"{each.incident} {each.state.value}" for each in autopilot.incidents()))
            autopilot.run_for(1)
        autopilot.run_once()

    return Act(name="the loop", do=do)


def loop_until_sent(kind: EntryKind) -> Act:
    """Passes that wait for nothing, until the cluster got a command of this kind."""

    def do(autopilot: SmallAutopilot) -> None:
        policy = autopilot.cluster.rules.policy
        autopilot.use_policy(replace(policy, durations=replace(policy.durations, run_patience=timedelta(0))))
        for _ in range(60):
            if kind in autopilot.commands():
                break
            autopilot.run_once()
            autopilot.let_pass(0.5)
        autopilot.use_policy(policy)

    return Act(name="the loop", do=do)


def loop_for(seconds: float) -> Act:
    return Act(name="the loop", do=lambda autopilot: autopilot.run_for(seconds))


def approve_plan(autopilot: SmallAutopilot) -> None:
    autopilot.observe_and_decide()
    (plan,) = autopilot._plans
    orders.approve(plan.plan, autopilot.cluster, actor="day-shift", valid_for=timedelta(hours=1))


def pause(autopilot: SmallAutopilot) -> None:
    orders.pause(autopilot.cluster, actor="day-shift", reason="moving racks")


def end_pause(autopilot: SmallAutopilot) -> None:
    orders.resume_autopilot(autopilot.cluster, actor="day-shift")


def react_at_once(autopilot: SmallAutopilot) -> None:
    """A tick of the sensor: what is new is taken in, decided on, and drained, before any run begins."""
    take_in_logs(autopilot.cluster)
    react(autopilot.cluster, lease=autopilot.lease)


def drain_node(autopilot: SmallAutopilot) -> None:
    """Drain gpu001; who asks again for what was done already is reported whose drain it is."""
    try:
        drain_by_hand(GPU1, autopilot.cluster, lease=autopilot.lease, actor="day-shift", why="replace a fan")
    except ByHandRefused as answer:
        assert "already drained by INC-0001, which is escalated (drained by hand by day-shift" in str(answer)  # noqa: PT017


def return_node(autopilot: SmallAutopilot) -> None:
    try:
        return_by_hand(GPU1, autopilot.cluster, lease=autopilot.lease, actor="day-shift", why="fan replaced")
    except ByHandRefused as answer:
        assert "there is nothing to return" in str(answer)  # noqa: PT017


def drained_by_someone_else(autopilot: SmallAutopilot) -> None:
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="rack 1: new switch (day-shift)")


LOSES_GPU = breaks(FaultKind.GPU_FELL_OFF_BUS, gpu=1)
FOREIGN_DRAIN = Act(name="nature", do=drained_by_someone_else)
HEALS = loop_until(IncidentState.RESOLVED)
IS_HANDED_OVER = loop_until(IncidentState.ESCALATED)
IS_IN_REPAIR = loop_until(IncidentState.IN_REPAIR)


def by_person(do: Callable[[SmallAutopilot], None]) -> Act:
    return Act(name=do.__name__, do=do, is_by_person=True)


def break_until_reboot(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=1, course=Course(cure=Cure.REBOOT))


def show_hang(autopilot: SmallAutopilot) -> None:
    """Let the detectors see that the job has stopped because of gpu001; asked again, they see the same."""
    job = autopilot.job()
    hung = Observation(
        signal=Signal.JOB_HUNG,
        node=GPU1,
        observed_at=autopilot.clock.now(),
        source=DETECTOR_SOURCE,
        position="the hang",
        job=job.job,
        text=f"job {job.job} makes no progress; gpu001 differs from all its other nodes",
    )
    autopilot.cluster.ledger.take_in_conditions(source=DETECTOR_SOURCE, present=(hung,), now=autopilot.clock.now())


def show_nothing(autopilot: SmallAutopilot) -> None:
    autopilot.cluster.ledger.take_in_conditions(source=DETECTOR_SOURCE, present=(), now=autopilot.clock.now())


# -- machines that do not do as they are notified
# -------------------------------------------------------------------------


class RefusesRestarts:
    """A fleet that refuses every reboot, and every cut of the power."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def __getattr__(self, name: str) -> object:
        return getattr(self._fleet, name)

    def reboot(self, node: NodeName, *, reason: str) -> None:
        raise SourceRefused(f"reboot: not allowed on {node}")

    def power_off(self, node: NodeName) -> None:
        raise SourceRefused(f"power_off: not allowed on {node}")


class BreaksAgain:
    """A fleet whose nodes lose a GPU again as soon as they are up after a reboot."""

    def __init__(self, autopilot: SmallAutopilot) -> None:
        self._fleet = autopilot.cluster.fleet
        self._autopilot = autopilot

    def __getattr__(self, name: str) -> object:
        return getattr(self._fleet, name)

    def inspect(self, node: NodeName) -> NodeInspection:
        found = self._fleet.inspect(node)
        if found.booted_at > self._autopilot.received(EntryKind.FAULT)[-1].at:
            self._autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=1)
        return found


def refuse_restarts(autopilot: SmallAutopilot) -> None:
    autopilot.cluster = replace(autopilot.cluster, fleet=cast("Fleet", RefusesRestarts(autopilot.cluster.fleet)))


def break_again(autopilot: SmallAutopilot) -> None:
    autopilot.cluster = replace(autopilot.cluster, fleet=cast("Fleet", BreaksAgain(autopilot)))


# -- the stories ------------------------------------------------------------------------------------------------------

STORIES = {
    "a lost GPU: reboot, verification, return": Story(acts=(LOSES_GPU, HEALS), least_step_count=65),
    "the reflex: a drain within the tick, then the rest": Story(
        acts=(LOSES_GPU, Act(name="the reflex", do=react_at_once), HEALS), least_step_count=70
    ),
    "a silent node: power cycle": Story(acts=(breaks(FaultKind.NODE_UNREACHABLE), HEALS), least_step_count=80),
    "a memory error: a reset that does not help, a reboot that does, a probation": Story(
        acts=(Act(name="nature", do=break_until_reboot), HEALS), policy=WATCHED, least_step_count=95
    ),
    "a program's own fault: its owner is notified": Story(
        acts=(breaks(FaultKind.APPLICATION_XID31, gpu=0), HEALS), least_step_count=10
    ),
    "a page instead of a plan": Story(acts=(LOSES_GPU, IS_HANDED_OVER), policy=UNTOUCHABLE, least_step_count=11),
    "no repair can be started: the node is queued for hands": Story(
        acts=(LOSES_GPU, IS_IN_REPAIR), equip=refuse_restarts, least_step_count=60
    ),
    "no repair helps: the node is queued for hands": Story(
        acts=(LOSES_GPU, IS_IN_REPAIR), equip=break_again, jobs=(), least_step_count=60
    ),
    "many nodes at once: one page, then quiet": Story(
        acts=(
            breaks(FaultKind.NETWORK_PARTITION, "gpu001", "gpu002", seconds=PARTITION_SECONDS),
            IS_HANDED_OVER,
            Act(name="nature", do=lambda autopilot: autopilot.let_pass(PARTITION_SECONDS)),
            HEALS,
        ),
        policy=SLOW_MASS,
        least_step_count=14,
    ),
    "somebody else's drain: jobs are moved, a person is paged": Story(
        acts=(FOREIGN_DRAIN, LOSES_GPU, IS_HANDED_OVER), least_step_count=32
    ),
    "a job that must not be requeued: its end is waited for": Story(
        acts=(breaks(FaultKind.GPU_FELL_OFF_BUS, NOTEBOOK_NODE, gpu=1), HEALS),
        jobs=(NOTEBOOK,),
        policy=HASTY,
        least_step_count=60,
    ),
    "a stronger fault while acting: the plan is superseded": Story(
        # The job on the other GPU keeps the reset waiting.
        acts=(
            breaks(FaultKind.UNCORRECTABLE_ECC, NOTEBOOK_NODE, gpu=1),
            loop_until_sent(EntryKind.DRAIN),
            breaks(FaultKind.GPU_FELL_OFF_BUS, NOTEBOOK_NODE, gpu=1),
            HEALS,
        ),
        jobs=(NOTEBOOK,),
        policy=HASTY,
        least_step_count=70,
    ),
    "a hang with a culprit: isolated, its job moved, tested, returned": Story(
        acts=(
            Act(name="nature", do=show_hang),
            loop_until_sent(EntryKind.RELEASE),
            Act(name="nature", do=show_nothing),
            HEALS,
        ),
        least_step_count=60,
    ),
    "an approval, then the plan": Story(
        acts=(LOSES_GPU, by_person(approve_plan), HEALS),
        policy=replace(QUICK, mode=Mode.APPROVE),
        least_step_count=68,
    ),
    "a pause in the middle of the plan, and its end": Story(
        acts=(
            LOSES_GPU,
            loop_until_sent(EntryKind.HOLD),
            by_person(pause),
            loop_for(3),
            by_person(end_pause),
            HEALS,
        ),
        least_step_count=75,
    ),
    "a drain and a return by hand": Story(
        acts=(by_person(drain_node), loop_for(3), by_person(return_node), loop_for(3)), jobs=(), least_step_count=15
    ),
}


@pytest.mark.parametrize("story", [pytest.param(story, id=name) for name, story in STORIES.items()])
def test_a_kill_before_any_step_changes_nothing_of_the_end(tmp_path: Path, story: Story) -> None:
    unkilled, disks = tell(story, tmp_path)

    found = differences(story, choose(disks), unkilled)

    assert found == []
    assert len([disk for disk in disks if disk.is_of_step]) >= story.least_step_count
