"""Isolation from the first sign to the end: drained, the job moved, tested; then back over probation, or to hands.

What detectors see is handed in as they hand it in: the twin has no switch whose port could go down.
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from ops_pipelines.core.action import Verb
from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import ActionKey, JobId, NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.node_tests import LOAD_TESTS, NodeCheck, TestResult, TestRun
from ops_pipelines.core.notes import Severity
from ops_pipelines.core.observation import DETECTOR_SOURCE, JobState, Observation, Signal
from ops_pipelines.core.policy import MassEvent
from ops_pipelines_lab.simulator.adapters import SimulatedFleet
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.ladder_stage import SMALL_TRAINING, WATCHFUL, Stage, node_of, tried

QUICK_TO_SPREAD = replace(WATCHFUL, mass_event=MassEvent(min_node_count=6, window=timedelta(seconds=10)))
"""Ten seconds after its first sign a link is nobody else's: what the wait itself does, the domain's tests say."""
NODE = NodeName("gpu001")


class FleetWithoutTools(SimulatedFleet):
    """Nodes on which nothing is installed that puts a part under load."""

    def read_check(self, node: NodeName, *, key: ActionKey) -> NodeCheck | None:
        found = super().read_check(node, key=key)
        return None if found is None else replace(found, tests=tuple(map(_without_tool, found.tests)))


def _without_tool(run: TestRun) -> TestRun:
    if run.test not in LOAD_TESTS:
        return run
    return TestRun(test=run.test, result=TestResult.NOT_RUN, said="not installed", is_absent=True)


def shown(stage: Stage, *conditions: Observation) -> None:
    """Let the detectors show these conditions and no others."""
    stage.cluster.ledger.take_in_conditions(source=DETECTOR_SOURCE, present=conditions, now=stage.clock.now())


def link_down(stage: Stage, node: NodeName = NODE) -> Observation:
    return Observation(
        signal=Signal.LINK_DOWN,
        node=node,
        observed_at=stage.clock.now(),
        source=DETECTOR_SOURCE,
        position=f"link/{node}/{stage.clock.now().isoformat()}",
        component=Component(kind=ComponentKind.LINK, name="mlx5_0", node=node),
        text=f"port mlx5_0 of {node} is down",
    )


def hung(stage: Stage, node: NodeName, job: JobId) -> Observation:
    return Observation(
        signal=Signal.JOB_HUNG,
        node=node,
        observed_at=stage.clock.now(),
        source=DETECTOR_SOURCE,
        position=f"hang/{job}/{node}",
        job=job,
        text=f"job {job} makes no progress; {node} differs from all its other nodes",
    )


def test_a_bad_link_is_isolated_tested_and_returned_over_probation(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node_count=2, policy=QUICK_TO_SPREAD)
    shown(stage, link_down(stage))

    stage.run_for(20)
    isolated = stage.incident()
    shown(stage)
    stage.run_until(IncidentState.PROBATION)
    stage.run_until(IncidentState.RESOLVED)

    assert (isolated.state, isolated.response) == (IncidentState.VERIFYING, Response.ISOLATE)
    assert stage.commands() == [
        EntryKind.DRAIN,
        EntryKind.START_CHECK,
        EntryKind.PUT_LAST,
        EntryKind.RESUME,
        EntryKind.PUT_BACK,
    ]
    (check,) = stage.records_of(Verb.CHECK)
    assert check.action.suite == "fabric"
    (page,) = stage.pages()
    assert page.severity is Severity.WARNING
    assert "gpu001 is isolated: port mlx5_0 of gpu001 is down" in page.body
    assert "look at the fabric" in page.body
    assert stage.cluster.ledger.verify_chain().first_broken_seq is None


def test_a_link_that_is_down_again_on_probation_is_left_to_hands(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node_count=2, policy=QUICK_TO_SPREAD)
    shown(stage, link_down(stage))
    stage.run_for(20)
    shown(stage)
    stage.run_until(IncidentState.PROBATION)

    shown(stage, link_down(stage))
    stage.run_until(IncidentState.IN_REPAIR, seconds=60)

    assert tried(stage.incident()) == [Response.ISOLATE]
    assert len(stage.received(EntryKind.RESUME)) == 1
    assert stage.node(NODE).is_drained


def test_a_link_that_stays_down_is_never_proven_well(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node_count=2, policy=QUICK_TO_SPREAD)
    shown(stage, link_down(stage))

    stage.run_until(IncidentState.IN_REPAIR, seconds=400)

    assert "still seen: port mlx5_0 of gpu001 is down" in stage.incident().tries[0].why
    assert stage.received(EntryKind.RESUME) == ()


def test_a_hung_job_is_moved_off_the_node_that_differs_and_the_node_that_fails_its_tests_waits_for_hands(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, SMALL_TRAINING, policy=QUICK_TO_SPREAD)
    node, before = node_of(stage, "pretrain"), stage.job()
    stage.twin.inject(FaultKind.HIDDEN_DEFECT, node, gpu=1)
    shown(stage, hung(stage, node, before.job))

    stage.run_for(15)
    shown(stage)
    stage.run_until(IncidentState.IN_REPAIR)

    after = stage.job()
    assert (after.state, after.restart_count) == (JobState.RUNNING, before.restart_count + 1)
    assert node not in after.nodes
    (hold,) = stage.records_of(Verb.HOLD)
    assert hold.action.has_ended  # It stood still: the hold takes nothing from it.
    assert tried(stage.incident()) == [Response.ISOLATE]
    assert "dcgm_memtest failed" in stage.incident().tries[0].why
    assert stage.received(EntryKind.RESET_GPU, EntryKind.REBOOT, EntryKind.RESUME) == ()
    assert [page.severity for page in stage.pages()] == [Severity.WARNING, Severity.CRITICAL]
    assert "needs hands" in stage.pages()[-1].body


def test_a_node_whose_tests_cannot_show_the_fault_is_not_returned(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node_count=2, policy=QUICK_TO_SPREAD)
    stage.cluster = replace(stage.cluster, fleet=FleetWithoutTools(stage.twin))
    shown(stage, link_down(stage))

    stage.run_for(15)
    shown(stage)
    stage.run_until(IncidentState.IN_REPAIR)

    assert "no test that can show the fault has passed" in stage.incident().tries[0].why
    assert stage.received(EntryKind.RESUME) == ()


def test_two_nodes_of_one_switch_within_the_window_wait_for_the_third_and_nothing_is_touched(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node_count=4, policy=QUICK_TO_SPREAD)
    first, second, third = (link_down(stage, NodeName(f"gpu00{each}")) for each in (1, 2, 3))

    shown(stage, first, second)
    stage.run_for(6)
    shown(stage, first, second, third)
    stage.run_for(30)

    assert stage.commands() == []
    wide = [each for each in stage.incidents() if each.suspect is not None]
    assert [each.response for each in wide] == [Response.PAGE_MASS_EVENT]
