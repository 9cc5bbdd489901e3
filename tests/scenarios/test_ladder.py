"""The ladder to its end: each rung that does not help is followed by the next, and a returned node must stay well.

The ledger reports every step; nobody is woken before hands are needed, and then once.
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.action import OutcomeKind, Verb
from ops_pipelines.core.finding import Response
from ops_pipelines.core.incident import IncidentEvent, IncidentState, advance
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.policy import FreezeWindow, Mode
from ops_pipelines.people import orders
from ops_pipelines.remediate import by_hand as repairs
from ops_pipelines.remediate.by_hand import return_by_hand
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.ladder_stage import HASTY, SMALL_TRAINING, WATCHFUL, Stage, tried
from tests.simulator.fake_clock import BEGINNING

NODE = "gpu001"


def broken(directory: Path, fault: FaultKind, cure: Cure | None = None, *, node_count: int = 2) -> Stage:
    """Return a stage whose first node is idle and broken until it is cured."""
    stage = Stage(directory, node_count=node_count)
    course = None if cure is None else Course(cure=cure)
    stage.twin.inject(fault, NODE, gpu=None if fault is FaultKind.NODE_UNREACHABLE else 1, course=course)
    return stage


def on_probation(directory: Path) -> Stage:
    """Return a stage whose first node was rebooted and is on probation."""
    stage = broken(directory, FaultKind.GPU_FELL_OFF_BUS)
    stage.run_until(IncidentState.PROBATION)
    return stage


# -- rung by rung -----------------------------------------------------------------------------------------------------


def test_reset_that_does_not_help_is_followed_by_a_reboot_then_tests_then_probation(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SMALL_TRAINING)
    stage.twin.inject(FaultKind.UNCORRECTABLE_ECC, NODE, gpu=1, course=Course(cure=Cure.REBOOT))

    stage.run_until(IncidentState.PROBATION)
    returned = stage.node(NODE)
    stage.run_until(IncidentState.RESOLVED)

    assert tried(stage.incident()) == [Response.RESET_GPU]
    assert "no witness within 30 s: the driver still asks for reset_gpu" in stage.incident().tries[0].why
    assert stage.commands() == [
        EntryKind.DRAIN,
        EntryKind.RESERVE,
        EntryKind.HOLD,
        EntryKind.EXCLUDE,
        EntryKind.UNRESERVE,
        EntryKind.RELEASE,
        EntryKind.RESET_GPU,
        EntryKind.DRAIN,
        EntryKind.REBOOT,
        EntryKind.START_CHECK,
        EntryKind.PUT_LAST,
        EntryKind.RESUME,
        EntryKind.PUT_BACK,
    ]
    (reset,) = stage.records_of(Verb.RESET_GPU)
    assert reset.outcome is not None
    assert reset.outcome.kind is OutcomeKind.FAILED
    assert (returned.is_drained, returned.is_last_choice) == (False, True)
    assert not stage.node(NODE).is_last_choice
    assert stage.job().restart_count == 1
    assert stage.pages() == []
    assert all(node.is_well for node in ground_truth.read_nodes(stage.twin))
    assert stage.cluster.ledger.verify_chain().first_broken_seq is None


def test_reboot_that_never_returns_is_followed_by_a_power_cycle(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node_count=2)
    stage.twin.inject(FaultKind.BOOT_HANGS, NODE)
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, NODE, gpu=1)

    stage.run_until(IncidentState.RESOLVED, seconds=200)

    assert tried(stage.incident()) == [Response.REBOOT_NODE]
    repairs_sent = (EntryKind.REBOOT, EntryKind.POWER_OFF, EntryKind.POWER_ON)
    assert [kind for kind in stage.commands() if kind in repairs_sent] == list(repairs_sent)
    assert stage.pages() == []
    assert ground_truth.read_nodes(stage.twin)[0].is_well


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.APPROVE])
def test_node_that_no_repair_helps_waits_for_hands_and_must_prove_itself_after_them(tmp_path: Path, mode: Mode) -> None:
    stage = broken(tmp_path, FaultKind.GPU_FELL_OFF_BUS, Cure.REPLACEMENT)
    stage.run_until(IncidentState.IN_REPAIR)
    queued = stage.incident()
    assert queued.plan is not None
    stage.run_for(6)
    stage.let_pass(3 * 86_400)
    stage.use_policy(replace(WATCHFUL, mode=mode))
    stage.twin.repair_by_hand(NODE)
    stage.let_pass(20)
    before = stage.commands()

    mended = repairs.mark_repaired(
        stage.cluster, queued.incident, actor="day-shift", note="GPU 1 replaced", now=stage.clock.now()
    )
    if mode is Mode.APPROVE:  # What began under `auto` is nobody's yes to the tests and the return.
        stage.run_for(6)
        assert stage.commands() == before
        orders.approve(queued.plan, stage.cluster, actor="day-shift", valid_for=timedelta(hours=1))
    stage.run_until(IncidentState.PROBATION, seconds=40)
    stage.run_until(IncidentState.RESOLVED, seconds=60)

    assert tried(queued) == [Response.REBOOT_NODE, Response.POWER_CYCLE]
    assert mended.state is IncidentState.VERIFYING
    (page,) = stage.pages()
    assert "gpu001 needs hands" in page.body
    after = [EntryKind.START_CHECK, EntryKind.PUT_LAST, EntryKind.RESUME, EntryKind.PUT_BACK]
    assert stage.commands()[len(before) :] == after
    assert [step.value for step in (Verb.RESET_GPU, Verb.REIMAGE) if stage.records_of(step)] == []


def test_node_that_is_called_mended_and_is_not_goes_back_to_the_queue_with_another_page(tmp_path: Path) -> None:
    stage = broken(tmp_path, FaultKind.GPU_FELL_OFF_BUS, Cure.REPLACEMENT)
    stage.run_until(IncidentState.IN_REPAIR)
    name = stage.incident().incident

    repairs.mark_repaired(stage.cluster, name, actor="day-shift", note="wiggled the card", now=stage.clock.now())
    stage.run_until(IncidentState.IN_REPAIR, seconds=60)

    assert stage.received(EntryKind.RESUME) == ()
    assert len(stage.pages()) == 2
    assert stage.node(NODE).is_drained


def test_repaired_node_that_fails_its_tests_again_and_again_ends_in_the_repair_queue(tmp_path: Path) -> None:
    """Nothing shows but in the tests: without them the node would be returned after the first reset."""
    stage = Stage(tmp_path, node_count=2)
    stage.twin.inject(FaultKind.HIDDEN_DEFECT, NODE, gpu=1)
    stage.twin.inject(FaultKind.UNCORRECTABLE_ECC, NODE, gpu=1)

    stage.run_until(IncidentState.IN_REPAIR)

    assert tried(stage.incident()) == [Response.RESET_GPU, Response.REBOOT_NODE, Response.POWER_CYCLE]
    assert ["dcgm_memtest failed" in each.why for each in stage.incident().tries] == [True] * 3
    assert len(stage.received(EntryKind.START_CHECK)) == 3
    assert stage.received(EntryKind.RESUME) == ()
    assert len(stage.pages()) == 1
    kept = stage.cluster.ledger.checks(stage.node(NODE).node, limit=5)
    assert [is_well for _, is_well in kept] == [False] * 3


def test_job_whose_processes_cannot_be_killed_is_handed_over_and_stays_held(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SMALL_TRAINING, policy=HASTY)
    stage.twin.inject(FaultKind.UNKILLABLE_PROCESS, NODE, gpu=0)
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, NODE, gpu=1)

    stage.run_until(IncidentState.ESCALATED)
    stage.run_for(9)

    (page,) = stage.pages()
    assert "fence of job 1001 did not succeed" in page.body
    assert "Still held, to be released by you: job 1001" in page.body
    assert stage.received(EntryKind.RELEASE, EntryKind.REBOOT) == ()
    assert ground_truth.read_split_brains(stage.twin) == ()
    stage.let_pass(120)
    assert ground_truth.read_reservations(stage.twin) == ()


# -- probation --------------------------------------------------------------------------------------------------------


def test_fault_on_probation_is_a_relapse_and_the_next_rung(tmp_path: Path) -> None:
    stage = on_probation(tmp_path)
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, NODE, gpu=0)

    stage.run_until(IncidentState.RESOLVED)

    assert tried(stage.incident()) == [Response.REBOOT_NODE]
    assert "GPU" in stage.incident().tries[0].why
    assert len(stage.received(EntryKind.REBOOT)) == 1
    assert len(stage.received(EntryKind.POWER_OFF)) == 1
    assert len(stage.received(EntryKind.RESUME)) == 2
    assert stage.pages() == []


def test_node_on_probation_that_falls_silent_under_a_job_is_fenced_and_power_cycled(tmp_path: Path) -> None:
    stage = on_probation(tmp_path)
    stage.twin.submit(replace(SMALL_TRAINING, node_count=2))
    stage.let_pass(12)
    stage.twin.inject(FaultKind.NODE_UNREACHABLE, NODE)

    stage.run_until(IncidentState.RESOLVED)

    (relapse,) = stage.incident().tries
    assert relapse.why == "seen again: gpu001 does not answer the scheduler"
    of_fence = (EntryKind.HOLD, EntryKind.POWER_OFF, EntryKind.DECLARE_DOWN, EntryKind.RELEASE, EntryKind.POWER_ON)
    assert [kind for kind in stage.commands() if kind in of_fence] == list(of_fence)
    assert ground_truth.read_split_brains(stage.twin) == ()
    assert stage.pages() == []


def test_silence_on_probation_that_ends_before_it_is_believed_is_no_relapse(tmp_path: Path) -> None:
    stage = on_probation(tmp_path)
    stage.twin.inject(FaultKind.NETWORK_PARTITION, NODE, seconds=3)

    stage.run_until(IncidentState.RESOLVED)

    assert stage.incident().tries == ()
    assert len(stage.received(EntryKind.RESUME)) == 1


def test_error_of_a_program_on_a_node_on_probation_is_its_owners_business(tmp_path: Path) -> None:
    stage = on_probation(tmp_path)
    stage.twin.submit(replace(SMALL_TRAINING, node_count=2))
    stage.let_pass(3)
    stage.twin.inject(FaultKind.APPLICATION_XID31, NODE, gpu=0)

    stage.run_until(IncidentState.RESOLVED)

    repaired, of_program = stage.incidents()
    assert repaired.tries == ()
    assert of_program.nodes == frozenset()
    (told,) = stage.owners_told()
    assert "erred by itself" in told.body
    assert len(stage.received(EntryKind.DRAIN)) == 1


def test_job_is_put_on_a_node_on_probation_only_where_no_other_fits(tmp_path: Path) -> None:
    stage = on_probation(tmp_path)
    stage.twin.submit(replace(SMALL_TRAINING, name="first"))
    stage.twin.submit(replace(SMALL_TRAINING, name="second"))

    assert (stage.job("first").nodes, stage.job("second").nodes) == ({"gpu002"}, {NODE})


# -- what may not be started
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allows_drains", [True, False])
def test_in_a_freeze_window_nothing_destructive_begins_and_at_its_end_all_goes_on(
    tmp_path: Path, allows_drains: bool
) -> None:
    ends_at = BEGINNING + timedelta(seconds=60)
    window = FreezeWindow(name="deadline", begins_at=BEGINNING, ends_at=ends_at, allows_drains=allows_drains)
    stage = Stage(tmp_path, SMALL_TRAINING, policy=replace(HASTY, freeze_windows=(window,)))
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, NODE, gpu=1)

    stage.run_for(36)
    inside = stage.commands()
    stage.run_until(IncidentState.RESOLVED)

    assert inside == ([EntryKind.DRAIN] if allows_drains else [])
    destructive = (EntryKind.RESERVE, EntryKind.HOLD, EntryKind.REBOOT, EntryKind.START_CHECK)
    assert min(entry.at for entry in stage.received(*destructive)) >= ends_at
    assert stage.job().state is JobState.RUNNING
    assert stage.pages() == []


def test_pause_while_the_tests_run_keeps_the_node_and_its_end_returns_it(tmp_path: Path) -> None:
    stage = broken(tmp_path, FaultKind.GPU_FELL_OFF_BUS)
    stage.run_until(IncidentState.VERIFYING)
    orders.pause(stage.cluster, actor="day-shift", reason="moving racks")
    stage.run_for(30)
    while_paused = stage.received(EntryKind.RESUME)
    orders.resume_autopilot(stage.cluster, actor="day-shift")

    stage.run_until(IncidentState.RESOLVED)

    assert while_paused == ()
    assert len(stage.received(EntryKind.START_CHECK)) == 1


def test_freeze_window_that_begins_while_a_node_reboots_lets_it_be_tested_and_returned(tmp_path: Path) -> None:
    stage = broken(tmp_path, FaultKind.GPU_FELL_OFF_BUS)
    while not stage.received(EntryKind.REBOOT):
        stage.run_for(1)
    now = stage.clock.now()
    window = FreezeWindow(name="deadline", begins_at=now, ends_at=now + timedelta(days=3), allows_drains=False)
    stage.use_policy(replace(WATCHFUL, freeze_windows=(window,)))

    stage.run_until(IncidentState.RESOLVED)

    assert len(stage.received(EntryKind.START_CHECK)) == 1
    assert stage.pages() == []


def test_pause_that_outlasts_every_limit_before_the_tests_makes_no_node_a_persons(tmp_path: Path) -> None:
    stage = broken(tmp_path, FaultKind.GPU_FELL_OFF_BUS)
    while not stage.received(EntryKind.REBOOT):
        stage.run_for(1)
    orders.pause(stage.cluster, actor="day-shift", reason="moving racks")
    stage.run_for(30)
    stage.let_pass(2 * 86_400)
    stage.run_for(9)
    while_paused = stage.incident().state
    tests_while_paused = stage.received(EntryKind.START_CHECK)
    orders.resume_autopilot(stage.cluster, actor="day-shift")

    stage.run_until(IncidentState.RESOLVED)

    assert (while_paused, tests_while_paused) == (IncidentState.VERIFYING, ())
    assert stage.incident().tries == ()


@pytest.mark.parametrize("is_by_us", [True, False], ids=["by our command", "by the scheduler's own"])
def test_node_that_a_person_returns_after_a_relapse_is_chosen_like_any_other(tmp_path: Path, is_by_us: bool) -> None:
    stage = on_probation(tmp_path)
    watched = stage.incident()
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, NODE, gpu=0)
    stage.run_until(IncidentState.ACTING)
    given_up = advance(stage.incident(), IncidentEvent.NEEDS_HUMAN, at=stage.clock.now(), note="a test")
    stage.cluster.ledger.change_incident(given_up, actor="day-shift", now=stage.clock.now())
    stage.twin.repair_by_hand(NODE)
    stage.let_pass(20)
    name = stage.node(NODE).node
    before = (stage.node(NODE).is_drained, stage.node(NODE).is_last_choice)

    if is_by_us:
        return_by_hand(name, stage.cluster, lease=stage.lease, actor="day-shift", why="a new GPU")
    else:
        stage.twin.command(EntryKind.RESUME, nodes=(NODE,))
        stage.run_for(6)

    assert watched.returned_at is not None
    assert before == (True, True)
    assert (stage.node(NODE).is_drained, stage.node(NODE).is_last_choice) == (False, False)
    assert stage.incident().state is IncidentState.RESOLVED


def test_mark_stays_on_a_node_that_waits_for_hands_although_its_drain_was_lifted(tmp_path: Path) -> None:
    """Its fault still shows, so that nobody has put it back: a scheduler that crashed forgets a drain, too."""
    stage = on_probation(tmp_path)
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, NODE, gpu=0, course=Course(cure=Cure.REPLACEMENT))
    stage.run_until(IncidentState.IN_REPAIR, seconds=120)

    stage.twin.command(EntryKind.RESUME, nodes=(NODE,))
    stage.run_for(20)

    assert stage.incident().state is IncidentState.IN_REPAIR
    assert (stage.node(NODE).is_drained, stage.node(NODE).is_last_choice) == (False, True)
