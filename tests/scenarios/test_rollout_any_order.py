"""Whatever people, faults, passes and restarts come in whatever order: who has a node, and what is out, stays right."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.identity import NodeName, RolloutId, cause_of, is_rollout
from ops_pipelines.core.policy import DrainBudget
from ops_pipelines.core.release import Activation, Component
from ops_pipelines.core.rollout import NodeStage
from ops_pipelines.people.orders import pause, resume_autopilot
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.rollouts import orders
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.versions import ReleaseTrouble
from tests.scenarios.rollout_stage import (
    KERNEL,
    LIMITS,
    NEW_KERNEL,
    PERSON,
    ROLLOUT_POLICY,
    RolloutStage,
    bad_kernel,
    change,
    release_of,
)

NODES = tuple(NodeName(f"gpu00{number}") for number in range(1, 5))
POLICY = replace(
    ROLLOUT_POLICY,
    drain_budget=DrainBudget(max_out_count=3, max_out_per_rack_count=4, min_in_service_ratio=0.0),
    rollouts=replace(LIMITS, soak=timedelta(seconds=3), canary_counts=(1,)),
)
OTHER = release_of(change(Component.DCGM, "4.4.2", activation=Activation.LIVE), name="dcgm")


def _say(order: Callable[..., object]) -> Callable[[RolloutStage, int], None]:
    def say(stage: RolloutStage, number: int) -> None:
        rollouts = stage.cluster.ledger.rollouts(final_since=stage.twin.began_at)
        if rollouts:
            order(rollouts[number % len(rollouts)].rollout, stage.cluster, actor=PERSON, reason="as they please")

    return say


def _yes(rollout: RolloutId, cluster: object, *, actor: str, reason: str) -> object:
    return orders.say_yes(rollout, cluster, actor=actor)  # type: ignore[arg-type]  # a cluster it is


def _break(stage: RolloutStage, number: int) -> None:
    kind = (FaultKind.GPU_FELL_OFF_BUS, FaultKind.NODE_UNREACHABLE)[number % 2]
    with suppress(Exception):  # What is broken already cannot break.
        stage.twin.inject(kind, NODES[number % 4], gpu=0 if kind is FaultKind.GPU_FELL_OFF_BUS else None)


def _restart(stage: RolloutStage, _number: int) -> None:
    stage.restart()


def _step(stage: RolloutStage, number: int) -> None:
    for _ in range(1 + number % 4):
        stage.step()
        assert_each_node_has_one_owner(stage)


MOVES: Mapping[str, Callable[[RolloutStage, int], None]] = {
    "step": _step,
    "other release": lambda stage, _: (stage.start(OTHER), None)[1],
    "same release": lambda stage, _: (stage.start(), None)[1],
    "break": _break,
    "restart": _restart,
    "pause": _say(orders.pause),
    "continue": _say(orders.go_on),
    "abort": _say(orders.abort),
    "back": _say(orders.send_back),
    "yes": _say(_yes),
    "stop the autopilot": lambda stage, _: pause(stage.cluster, actor=PERSON, reason="wait"),
    "start the autopilot": lambda stage, _: resume_autopilot(stage.cluster, actor=PERSON),
}


def assert_each_node_has_one_owner(stage: RolloutStage) -> None:
    """Assert what must hold after every pass."""
    ledger = stage.cluster.ledger
    state = ledger.read_state(stage.clock.now())
    planned = [
        each.node
        for rollout in state.rollouts
        for each in ledger.rollout_nodes(rollout.rollout)
        if each.stage is not NodeStage.SKIPPED
    ]
    assert len(planned) == len(set(planned)), f"a node is in two rollouts: {planned}"
    drained = [each for each in stage.cluster.scheduler.read_nodes() if each.is_drained]
    assert len(drained) <= POLICY.drain_budget.max_out_count
    own = [each.node for each in drained if "ROLL-" in (each.reason or "")]
    at_rest = {NodeStage.PENDING, NodeStage.SKIPPED, NodeStage.UPDATED, NodeStage.BACK, NodeStage.SOAKING}
    for rollout in ledger.rollouts(final_since=stage.twin.began_at):
        for each in ledger.rollout_nodes(rollout.rollout):
            is_ours = any(rollout.rollout in (d.reason or "") for d in drained if d.node == each.node)
            assert not (is_ours and each.stage in at_rest), f"{each.node} is drained, and nobody has it: {each}"
    assert len(own) <= POLICY.drain_budget.max_out_count
    _assert_nobody_acts_on_anothers(stage)


def _assert_nobody_acts_on_anothers(stage: RolloutStage) -> None:
    """Assert that between a rollout's drain of a node and its return no incident began anything on it."""
    records = [
        each
        for cause in (
            *(each.incident for each in stage.incidents()),
            *(cause_of(each.rollout) for each in stage.cluster.ledger.rollouts(final_since=stage.twin.began_at)),
        )
        for each in stage.cluster.ledger.records(cause)
    ]
    for node in NODES:
        owner = None
        for each in sorted((each for each in records if each.action.node == node), key=_begun):
            cause = each.action.incident
            if owner is not None and cause != owner and is_rollout(owner) is not is_rollout(cause):
                raise AssertionError(f"{each.action.verb.value} of {cause} on {node}, which {owner} has")
            if each.action.verb is Verb.DRAIN and not _has_failed(each):
                owner = cause
            elif each.action.verb is Verb.RESUME and not _has_failed(each):
                owner = None


def _begun(record: ActionRecord) -> object:
    return record.begun_at, record.action.verb is Verb.DRAIN


def _has_failed(record: ActionRecord) -> bool:
    return record.outcome is not None and record.outcome.kind.value == "failed"


@settings(
    max_examples=6,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
@given(
    trouble=st.sampled_from([None, None, ReleaseTrouble.INSTALL_FAILS, ReleaseTrouble.LOSES_GPU]),
    moves=st.lists(
        st.tuples(st.sampled_from(["step", "step", "step", *MOVES]), st.integers(0, 20)), min_size=4, max_size=16
    ),
)
def test_whatever_happens_a_node_has_one_owner_and_every_rollout_ends_or_waits_for_people(
    trouble: ReleaseTrouble | None, moves: list[tuple[str, int]]
) -> None:
    faults = () if trouble is None else (bad_kernel(trouble),)
    with tempfile.TemporaryDirectory() as directory:
        stage = RolloutStage(Path(directory), node_count=4, policy=POLICY, release_faults=faults)
        stage.start(KERNEL)
        for name, number in moves:
            with suppress(ByHandRefused, LedgerConflict):
                MOVES[name](stage, number)
        resume_autopilot(stage.cluster, actor=PERSON)
        for number in range(70):
            if stage.is_at_rest():
                break
            # Now and then more than an hour: what is not repaired by then is postponed to the last wave, or left out.
            stage.step(3700.0 if number % 12 == 11 else 3.0)
            assert_each_node_has_one_owner(stage)

        assert stage.is_at_rest(), stage.words()
        assert stage.cluster.ledger.verify_chain().first_broken_seq is None
        assert all(each in (NEW_KERNEL, "6.8.0-60-generic") for each in stage.versions().values())
