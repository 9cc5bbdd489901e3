"""A rollout's process dies before each step that changes something; another continues from the disk to the same end.

A step is what `killed_at_every_step` takes for one: each write of the ledger and each command. Here every one is tried,
on a rollout of one node; of one with several nodes in several waves some.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ops_pipelines.core.identity import cause_of
from ops_pipelines.core.policy import DrainBudget
from ops_pipelines.core.rollout import FINAL, NodeStage, RolloutState
from ops_pipelines.rollouts import orders
from ops_pipelines.rollouts.cycle import advance_rollouts
from ops_pipelines.rollouts.orders import plan_release, start_release
from tests.scenarios.killed_at_every_step import AWAY_SECONDS, Act, Story, end_of, go_on, tell
from tests.scenarios.rollout_stage import FIRST, KERNEL, LIMITS, PERSON, ROLLOUT_POLICY, equip, quick_judge_of
from tests.scenarios.small_autopilot import SmallAutopilot


def _start(autopilot: SmallAutopilot) -> None:
    if autopilot.cluster.ledger.rollout_count() == 0:
        start_release(plan_release(KERNEL, autopilot.cluster), autopilot.cluster, actor=PERSON)


def _advance(until: Callable[[SmallAutopilot], bool]) -> Callable[[SmallAutopilot], None]:
    def advance(autopilot: SmallAutopilot) -> None:
        for _ in range(100):
            if until(autopilot):
                return
            advance_rollouts(autopilot.cluster, lease=autopilot.lease, judging=quick_judge_of)
            autopilot.let_pass(3)
        raise TimeoutError("the rollout comes to no end")

    return advance


def _state(autopilot: SmallAutopilot) -> RolloutState:
    rollout = autopilot.cluster.ledger.rollout(FIRST)
    assert rollout is not None
    return rollout.state


def _is_over(autopilot: SmallAutopilot) -> bool:
    return _state(autopilot) in FINAL


def _has_come_to(*stages: NodeStage) -> Callable[[SmallAutopilot], bool]:
    def has_come(autopilot: SmallAutopilot) -> bool:
        nodes = autopilot.cluster.ledger.rollout_nodes(FIRST)
        return _state(autopilot) is not RolloutState.RUNNING or any(each.stage in stages for each in nodes)

    return has_come


def _send_back(autopilot: SmallAutopilot) -> None:
    if _state(autopilot) is not RolloutState.GOING_BACK and not _is_over(autopilot):
        orders.send_back(FIRST, autopilot.cluster, actor=PERSON, reason="a bug report")


def _settle(autopilot: SmallAutopilot) -> None:
    """Two passes more: what is owed when it is over."""
    for _ in range(2):
        advance_rollouts(autopilot.cluster, lease=autopilot.lease, judging=quick_judge_of)
        autopilot.let_pass(3)


ONE_BY_ONE = replace(
    ROLLOUT_POLICY,
    drain_budget=DrainBudget(max_out_count=1, max_out_per_rack_count=1, min_in_service_ratio=0.0),
    rollouts=replace(LIMITS, max_out_count=1, canary_counts=(1, 1)),
)
"""So that commands have one order, whenever they come."""
START = Act(name="start", do=_start, is_by_person=True)
TO_THE_END = (Act(name="advance", do=_advance(_is_over)), Act(name="settle", do=_settle))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A story, and of which of its steps the deaths are tried."""

    acts: tuple[Act, ...]
    node_count: int
    every: int
    least_step_count: int


KILLS = {
    "good": Kill(acts=(START, *TO_THE_END), node_count=1, every=1, least_step_count=50),
    "sent back while it soaks": Kill(
        acts=(
            START,
            Act(name="there", do=_advance(_has_come_to(NodeStage.SOAKING))),
            Act(name="order", do=_send_back, is_by_person=True),
            *TO_THE_END,
        ),
        node_count=1,
        every=4,
        least_step_count=80,
    ),
    "several waves": Kill(acts=(START, *TO_THE_END), node_count=3, every=29, least_step_count=120),
}


@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS)
def test_rollout_ends_alike_wherever_its_process_dies(tmp_path: Path, kill: Kill) -> None:
    story = Story(
        acts=kill.acts,
        least_step_count=kill.least_step_count,
        jobs=(),
        node_count=kill.node_count,
        policy=ONE_BY_ONE,
        equip=equip,
    )

    unkilled, disks = tell(story, tmp_path)
    steps = [each for each in disks if each.is_of_step]

    assert len(steps) >= kill.least_step_count
    expected, differ = _end_of(unkilled), []
    for number, disk in enumerate(steps[kill.every // 2 :: kill.every]):
        found = _end_of(go_on(story, disk, away_seconds=AWAY_SECONDS[number % len(AWAY_SECONDS)]))
        differ += [
            f"{disk.name}: {name}: {found[name]} instead of {expected[name]}"
            for name in expected
            if found[name] != expected[name]
        ]
    assert differ == []


def _end_of(autopilot: SmallAutopilot) -> dict[str, object]:
    """Return what must not depend on a crash; of commands to several nodes the order on each.

    Of acts all but their keys: these hold when the rollout was opened, and who dies before that opens it later.
    """
    end = end_of(autopilot)
    told: Any = end["commands"]
    acts = {
        (
            each.action.verb,
            each.action.node,
            each.action.try_number,
            *each.action.part.split()[1:],
            None if each.outcome is None else each.outcome.kind,
        )
        for each in autopilot.cluster.ledger.records(cause_of(FIRST))
    }
    return {**end, "actions": acts, "commands": sorted(told, key=lambda each: each[1])}
