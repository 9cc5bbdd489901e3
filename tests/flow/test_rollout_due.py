"""When a pass over the rollouts is due: once for what changed, again and again while something is under way."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

import pytest

from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.identity import Digest, RolloutId
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Claims, Release
from ops_pipelines.core.rollout import IN_HAND, OF_PEOPLE, NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.remediate.due import Due
from ops_pipelines.rollouts.cycle import due_rollout
from tests.ports.ledger_samples import NOW
from tests.ports.rollout_samples import RELEASE, node, rollout

MINUTE = timedelta(minutes=1)
START = NOW.replace(minute=0, second=0, microsecond=0)
LIMITS = RolloutLimits(soak=32 * MINUTE, good_read_every=MINUTE / 2)
Known = tuple[Rollout, Sequence[RolloutNode]]


class KeptRollouts:
    """Of a ledger what shows how far rollouts are."""

    def __init__(self, *known: Known) -> None:
        self._nodes = {each.rollout: tuple(nodes) for each, nodes in known}

    def rollout_nodes(self, rollout: RolloutId) -> tuple[RolloutNode, ...]:
        return self._nodes[rollout]

    def release(self, digest: Digest) -> Release:
        return replace(RELEASE, claims=Claims(slowest_failure=MINUTE))


def due(*known: Known, now: datetime = START) -> Due | None:
    state = LedgerState(
        head_seq=0,
        decided_through=0,
        evidence_head=0,
        incidents=(),
        incident_count=0,
        last_change_seq={},
        records=(),
        approvals=(),
        pause=None,
        rollouts=tuple(each for each, _ in known),
    )
    return due_rollout(state, cast("Ledger", KeptRollouts(*known)), limits=LIMITS, now=now)


def key(*known: Known, now: datetime = START) -> str | None:
    found = due(*known, now=now)
    return None if found is None else found.run_key


def of(state: RolloutState, *stages: NodeStage, number: int = 1) -> Known:
    """Return a rollout with nodes in these stages, that has soaked since the start if it soaks."""
    nodes = [
        replace(node(number, f"gpu{place}", stage=stage), returned_at=START if stage is NodeStage.SOAKING else None)
        for place, stage in enumerate(stages)
    ]
    return replace(rollout(number, state=state), since=START), nodes


def test_without_a_rollout_nothing_is_due() -> None:
    assert due() is None


@pytest.mark.parametrize("state", [each for each in RolloutState if each in OF_PEOPLE])
def test_what_waits_for_people_is_not_due(state: RolloutState) -> None:
    assert due(of(state, NodeStage.PENDING, NodeStage.SOAKING, NodeStage.PULLED)) is None


@pytest.mark.parametrize("state", [RolloutState.RUNNING, RolloutState.PAUSED, RolloutState.ENDING])
@pytest.mark.parametrize("stage", sorted(IN_HAND, key=lambda each: each.value))
def test_who_is_in_hand_is_looked_at_at_each_read_in_every_state(state: RolloutState, stage: NodeStage) -> None:
    known = of(state, stage, NodeStage.PENDING)
    seconds = (0, 29.9, 30, 59.9, 60)

    keys = [key(known, now=START + timedelta(seconds=each)) for each in seconds]

    assert keys[0] == keys[1] != keys[2] == keys[3] != keys[4]
    found = due(known)
    assert found is not None
    assert found.reason == "ROLL-0001 has 1 node(s) in hand"


@pytest.mark.parametrize("state", [RolloutState.RUNNING, RolloutState.GOING_BACK, RolloutState.ENDING])
def test_what_waits_for_a_window_or_a_budget_is_due_once_for_each_change(state: RolloutState) -> None:
    present, nodes = of(state, NodeStage.PENDING)
    changed = replace(present, since=START + MINUTE)

    assert key((present, nodes)) == key((present, nodes), now=START + 600 * MINUTE)
    assert key((present, nodes)) != key((changed, nodes))


def test_a_soak_is_looked_at_sixteen_times_and_then_as_often() -> None:
    known = of(RolloutState.SOAKING, NodeStage.SOAKING)

    during = {key(known, now=START + timedelta(seconds=10 * each)) for each in range(192)}

    assert len(during) == 16
    assert key(known, now=START + 40 * MINUTE) == key(known, now=START + 41 * MINUTE)
    assert key(known, now=START + 40 * MINUTE) != key(known, now=START + 42 * MINUTE)


@pytest.mark.parametrize(("seconds", "said"), [(-1, "soaks"), (0, "has soaked"), (1, "has soaked")])
def test_the_end_of_a_soak_is_due_at_once(seconds: int, said: str) -> None:
    found = due(of(RolloutState.SOAKING, NodeStage.SOAKING), now=START + LIMITS.soak + timedelta(seconds=seconds))

    assert found is not None
    assert found.reason == f"wave 1 of ROLL-0001 {said}"


@pytest.mark.parametrize("state", [RolloutState.RUNNING, RolloutState.SOAKING])
def test_a_rollout_that_waits_hides_none_that_is_under_way(state: RolloutState) -> None:
    waiting = of(RolloutState.RUNNING, NodeStage.PENDING)
    other = of(state, NodeStage.INSTALLING, number=2)

    first, second = (key(waiting, other, now=START + each * MINUTE / 2) for each in (0, 1))

    assert first != second
    assert first == key(waiting, other)


def test_the_reasons_of_all_that_is_due_are_told() -> None:
    found = due(
        of(RolloutState.RUNNING, NodeStage.PENDING),
        of(RolloutState.PAUSED, NodeStage.PENDING, number=2),
        of(RolloutState.ENDING, NodeStage.TESTING, number=3),
    )

    assert found is not None
    assert found.reason == "ROLL-0001: started by ada; ROLL-0003 has 1 node(s) in hand"
    assert found.evidence_after is None
