"""A repaired node is returned when it is proven well, and not a moment earlier."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Cluster, Fleet
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import NodeInspection
from ops_pipelines.remediate import verify as flow_verify
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.probation import VerificationReport
from ops_pipelines.remediate.verification import Recovery, TestsStanding, repaired_at
from ops_pipelines.remediate.verify import verify_repaired
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot

SOAK = timedelta(seconds=30)


@pytest.fixture
def repaired(tmp_path: Path) -> SmallAutopilot:
    """Return a cluster with one idle node that was rebooted and has yet to prove itself."""
    policy = replace(POLICY, durations=replace(POLICY.durations, soak=SOAK))
    autopilot = SmallAutopilot(tmp_path, node_count=4, policy=policy)
    autopilot.let_pass(5)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.run_until(IncidentState.VERIFYING)
    return autopilot


def verify(autopilot: SmallAutopilot) -> VerificationReport:
    (report,) = verify_repaired(autopilot.cluster, lease=autopilot.lease, patience=timedelta(0))
    return report


def test_nothing_waits_on_a_healthy_cluster(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=2)

    assert verify_repaired(autopilot.cluster, lease=autopilot.lease, patience=timedelta(seconds=5)) == ()


def test_node_soaks_first_and_is_returned_then(repaired: SmallAutopilot) -> None:
    soaking = verify(repaired)
    before = repaired.received(EntryKind.RESUME)
    repaired.let_pass(SOAK.total_seconds())
    verify_repaired(repaired.cluster, lease=repaired.lease, patience=timedelta(seconds=5))

    assert soaking.verdict.recovery is Recovery.SOAKING
    assert before == ()
    assert repaired.incident().state is IncidentState.RESOLVED
    assert len(repaired.received(EntryKind.RESUME)) == 1


class SlowAfterLook:
    """A fleet whose node shows how it is, and then its caller has stopped for a while."""

    def __init__(self, fleet: Fleet, stand_still: Callable[[], None]) -> None:
        self._fleet, self._stand_still = fleet, stand_still

    def __getattr__(self, name: str) -> object:
        return getattr(self._fleet, name)

    def inspect(self, node: NodeName) -> NodeInspection:
        seen = self._fleet.inspect(node)
        self._stand_still()
        return seen


@pytest.mark.parametrize(("seconds", "is_returned"), [(20, True), (31, False)])
def test_node_is_not_returned_on_a_look_of_long_ago(repaired: SmallAutopilot, seconds: int, is_returned: bool) -> None:
    repaired.let_pass(SOAK.total_seconds())
    cluster = repaired.cluster

    def stand_still() -> None:
        repaired.let_pass(seconds)
        repaired.lease.token(cluster.ledger, cluster.clock.now())  # Its code server keeps the lease for it.

    slow = replace(cluster, fleet=cast("Fleet", SlowAfterLook(cluster.fleet, stand_still)))
    verify_repaired(slow, lease=repaired.lease, patience=timedelta(0))

    assert bool(repaired.received(EntryKind.RESUME)) == is_returned
    verify_repaired(cluster, lease=repaired.lease, patience=timedelta(seconds=5))
    assert repaired.incident().state is IncidentState.RESOLVED


def test_fault_that_the_nodes_own_check_sees_is_a_try_that_did_not_help(repaired: SmallAutopilot) -> None:
    repaired.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=5)

    report = verify(repaired)
    again = verify_repaired(repaired.cluster, lease=repaired.lease, patience=timedelta(0))

    assert report.verdict.recovery is Recovery.PERSISTS
    assert again == ()
    assert repaired.incident().state is IncidentState.OPEN
    (tried,) = repaired.incident().tries
    assert (tried.response, tried.why.startswith("gpu001 is not well: ")) == (Response.REBOOT_NODE, True)
    assert repaired.pages() == []
    assert repaired.node("gpu001").is_drained


def test_node_that_falls_silent_again_is_unknown_and_not_returned(repaired: SmallAutopilot) -> None:
    repaired.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")
    repaired.let_pass(SOAK.total_seconds())

    report = verify(repaired)

    assert report.verdict.recovery is Recovery.UNKNOWN
    assert repaired.received(EntryKind.RESUME) == ()


@pytest.mark.parametrize(
    ("beyond_seconds", "state"),
    [
        pytest.param(-2, IncidentState.VERIFYING, id="just before the limit"),
        pytest.param(2, IncidentState.ESCALATED, id="just after"),
    ],
)
def test_node_that_cannot_be_proven_well_is_handed_over_after_the_limit(
    repaired: SmallAutopilot, beyond_seconds: float, state: IncidentState
) -> None:
    records = repaired.cluster.ledger.records(repaired.incident().incident)
    repaired_since = repaired_at(records)
    assert repaired_since is not None
    checks = [each for each in records if each.action.verb is Verb.CHECK]
    tested = [each.outcome.finished_at if each.outcome is not None else each.begun_at for each in checks]
    repaired.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")
    limit_at = max([repaired_since, *tested]) + SOAK + POLICY.durations.reboot_limit
    repaired.let_pass((limit_at - repaired.clock.now()).total_seconds() + beyond_seconds)

    verify(repaired)

    assert repaired.incident().state is state


def test_an_incident_that_cannot_be_judged_holds_up_no_other_and_its_error_is_told(
    repaired: SmallAutopilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    repaired.let_pass(5)
    repaired.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu002", gpu=1)
    repaired.run_once()
    real = flow_verify.see_to_tests

    def breaks(incident: Incident, node: NodeName, cluster: Cluster, *, lease: Lease) -> TestsStanding:
        if node == "gpu001":
            raise OverflowError("Infinity seconds")
        return real(incident, node, cluster, lease=lease)

    monkeypatch.setattr(flow_verify, "see_to_tests", breaks)
    repaired.let_pass(2 * SOAK.total_seconds())

    with pytest.raises(OverflowError, match="Infinity seconds") as told:
        verify(repaired)
    with pytest.raises(OverflowError):
        verify(repaired)

    by_node = {node: each.state for each in repaired.incidents() for node in each.nodes}
    assert by_node["gpu001"] is IncidentState.VERIFYING
    assert by_node["gpu002"] is not IncidentState.VERIFYING
    assert "INC-0001 could not be judged" in told.value.__notes__[0]


def test_foreign_drain_is_not_lifted_although_the_node_is_well(repaired: SmallAutopilot) -> None:
    repaired.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="rack 1 (day-shift)")
    repaired.let_pass(SOAK.total_seconds())

    verify(repaired)

    assert repaired.node("gpu001").reason == "rack 1 (day-shift)"
    assert repaired.incident().state is IncidentState.ESCALATED
    assert len(repaired.pages()) == 1


def test_a_node_returned_while_another_still_soaks_is_in_the_report(repaired: SmallAutopilot) -> None:
    repaired.let_pass(5)
    repaired.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu002", gpu=1)
    repaired.run_once()
    both = {each.state for each in repaired.incidents()}
    repaired.let_pass(SOAK.total_seconds() - 15)

    reports = verify_repaired(repaired.cluster, lease=repaired.lease, patience=timedelta(seconds=8))

    assert both == {IncidentState.VERIFYING}
    assert {(report.node, report.verdict.recovery) for report in reports} == {
        ("gpu001", Recovery.RECOVERED),
        ("gpu002", Recovery.SOAKING),
    }
