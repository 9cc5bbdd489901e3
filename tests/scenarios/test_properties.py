"""Whatever breaks, in whatever order: never two writers, never beyond the budget, never an act without a cause."""

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.action import DRAIN_MARK
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.commands import ImpossibleFaultError
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import SESSION, TRAINING

MAX_OUT_COUNT = 2
BUDGETED = replace(POLICY, drain_budget=replace(POLICY.drain_budget, max_out_count=MAX_OUT_COUNT))
SMALL_TRAINING = replace(TRAINING, gpus_per_node=2)

Fault = tuple[FaultKind, int, int, float]
"""Kind, node, GPU, and the seconds until the next one."""
FAULTS = st.lists(
    st.tuples(st.sampled_from(FaultKind), st.integers(1, 5), st.integers(0, 1), st.sampled_from([0.0, 1.0, 4.0, 9.0])),
    min_size=1,
    max_size=5,
)


def break_something(autopilot: SmallAutopilot, fault: Fault) -> None:
    kind, node, gpu, _ = fault
    needs_gpu = kind not in (FaultKind.NODE_UNREACHABLE, FaultKind.NETWORK_PARTITION)
    seconds = 12.0 if kind is FaultKind.NETWORK_PARTITION else None
    with suppress(ImpossibleFaultError):
        autopilot.twin.inject(kind, f"gpu00{node}", gpu=gpu if needs_gpu else None, seconds=seconds)


def assert_safe(autopilot: SmallAutopilot) -> None:
    drained = [
        node.node
        for node in autopilot.cluster.scheduler.read_nodes()
        if node.is_drained and (node.reason or "").startswith(DRAIN_MARK)
    ]
    assert len(drained) <= MAX_OUT_COUNT, drained
    assert ground_truth.read_split_brains(autopilot.twin) == ()


def run_through(autopilot: SmallAutopilot, faults: Sequence[Fault]) -> None:
    for fault in faults:
        break_something(autopilot, fault)
        autopilot.run_once()
        assert_safe(autopilot)
        autopilot.let_pass(fault[3])
    for _ in range(8):
        autopilot.run_once()
        assert_safe(autopilot)
        autopilot.let_pass(5)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(FAULTS)
def test_no_sequence_of_faults_leads_to_two_writers_or_beyond_the_budget(faults: list[Fault]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        session = replace(SESSION, work_seconds=40.0)
        autopilot = SmallAutopilot(
            Path(directory), SMALL_TRAINING, session, node_count=5, gpus_per_node=2, policy=BUDGETED
        )
        autopilot.let_pass(12)

        run_through(autopilot, faults)
        settled = autopilot.commands(), len(autopilot.messages.messages)
        for _ in range(3):
            autopilot.run_once()

        assert (autopilot.commands(), len(autopilot.messages.messages)) == settled
        assert autopilot.cluster.ledger.verify_chain().first_broken_seq is None
