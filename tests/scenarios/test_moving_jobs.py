"""Jobs on a broken node: each moved at the moment that costs least, as its kind of work allows, and followed."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import JobId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import Checkpointing, JobState, Workload
from ops_pipelines.core.plan import Moment
from ops_pipelines.core.policy import RecoveryLimits
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.remediate.due import due_moment
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.scenario import Bug, JobSpec, with_checkpoint_age
from tests.scenarios.ladder_stage import HASTY, SMALL_TRAINING, WATCHFUL, Stage, node_of
from tests.simulator.small_cluster import SESSION

FAULT_AT_SECONDS = 7200.0
HOURLY = replace(
    SMALL_TRAINING,
    gpus_per_node=1,
    checkpoint_interval_seconds=3600.0,
    checkpointing=Checkpointing.YES,
    time_limit_seconds=3 * 86_400.0,
)


def aged(name: str, minutes: float, spec: JobSpec = HOURLY) -> JobSpec:
    """Return a job whose newest checkpoint is so old when the fault comes."""
    return replace(with_checkpoint_age(spec, age_seconds=minutes * 60, after_seconds=FAULT_AT_SECONDS), name=name)


def begin(directory: Path, *jobs: JobSpec, **options: object) -> Stage:
    """Return a stage after two hours of work; one GPU of the node on which all jobs run has noted a bad row."""
    stage = Stage(directory, *jobs, **{"policy": HASTY} | options)
    stage.reach(stage.twin.began_at + timedelta(seconds=FAULT_AT_SECONDS))
    stage.remap_row(node_of(stage, jobs[0].name), 0)
    stage.run_once()
    return stage


def held_at(stage: Stage) -> dict[str, datetime]:
    """Return when each job was held first, by its name."""
    names = {job.job: job.name for job in stage.cluster.scheduler.read_jobs()}
    return {names[str(entry.job)]: entry.at for entry in reversed(stage.received(EntryKind.HOLD))}  # type: ignore[index]  # ids are strings


def due(stage: Stage) -> bool:
    return due_moment(stage.cluster, stage.cluster.ledger.read_state(stage.clock.now())) is not None


# -- the moment -------------------------------------------------------------------------------------------------------


def test_fresh_checkpoint_is_left_at_once_and_an_old_one_is_waited_beyond(tmp_path: Path) -> None:
    stage = begin(tmp_path, aged("fresh", 1), aged("old", 55))
    fault_at, saves_at = stage.clock.now(), stage.twin.began_at + timedelta(seconds=FAULT_AT_SECONDS + 300)
    stage.run_for(9)
    held_before = held_at(stage)
    moments = {timing.attempt.job: timing.moment for timing in stage.plan.timings}
    stage.reach(saves_at - timedelta(seconds=1))
    due_before = due(stage)
    stage.let_pass(1)
    due_after = due(stage)
    stage.run_until(IncidentState.RESOLVED)

    assert moments == {stage.job("fresh").job: Moment.NOW, stage.job("old").job: Moment.NEXT_CHECKPOINT}
    assert list(held_before) == ["fresh"]
    assert held_before["fresh"] - fault_at < timedelta(seconds=5)
    assert (due_before, due_after) == (False, True)
    assert timedelta(0) <= held_at(stage)["old"] - saves_at < timedelta(seconds=5)
    assert len(stage.received(EntryKind.HOLD)) == 2
    assert len(stage.received(EntryKind.RESET_GPU)) == 1
    assert ground_truth.read_lost_gpu_hours(stage.twin).unsaved < 0.02
    assert stage.pages() == []


def test_checkpoint_that_does_not_come_is_waited_for_until_the_deadline_and_no_longer(tmp_path: Path) -> None:
    late = replace(HOURLY, checkpoint_interval_seconds=20_000.0, declared_interval_seconds=3600.0)
    stage = begin(tmp_path, aged("late", 55, late))
    (timing,) = stage.plan.timings
    assert timing.until is not None

    stage.reach(timing.until - timedelta(seconds=2))
    stage.run_once()
    held_before = stage.received(EntryKind.HOLD)
    stage.reach(timing.until)
    is_due = due(stage)
    stage.run_until(IncidentState.RESOLVED)

    assert timing.moment is Moment.NEXT_CHECKPOINT
    assert held_before == ()
    assert is_due
    assert len(stage.received(EntryKind.HOLD)) == 1
    assert stage.job("late").checkpointed_at == stage.twin.began_at + timedelta(seconds=FAULT_AT_SECONDS - 3300)


def test_fault_that_turns_worse_ends_the_wait_for_a_checkpoint(tmp_path: Path) -> None:
    stage = begin(tmp_path, aged("old", 55))
    stage.run_for(3)
    held_before = stage.received(EntryKind.HOLD)

    stage.twin.inject(FaultKind.UNCORRECTABLE_ECC, node_of(stage, "old"), gpu=0)
    worse_at = stage.clock.now()
    stage.run_until(IncidentState.RESOLVED)

    assert held_before == ()
    assert held_at(stage)["old"] - worse_at < timedelta(seconds=8)
    assert len(stage.received(EntryKind.HOLD)) == 1
    assert stage.job("old").restart_count == 1


def test_node_that_falls_silent_while_its_job_waits_is_fenced_before_the_job_goes_on(tmp_path: Path) -> None:
    stage = begin(tmp_path, aged("old", 55))
    stage.run_for(3)
    node = node_of(stage, "old")

    stage.twin.inject(FaultKind.NODE_UNREACHABLE, node)
    stage.run_until(IncidentState.RESOLVED, seconds=400)

    assert ground_truth.read_split_brains(stage.twin) == ()
    kinds = [entry.kind for entry in stage.received(EntryKind.HOLD, EntryKind.POWER_OFF, EntryKind.RELEASE)]
    assert kinds == [EntryKind.HOLD, EntryKind.POWER_OFF, EntryKind.RELEASE]
    assert stage.job("old").restart_count == 1


def test_job_that_ends_while_it_is_waited_for_is_not_held(tmp_path: Path) -> None:
    stage = begin(tmp_path, aged("old", 55))
    stage.run_for(3)

    stage.twin.command(EntryKind.CANCEL, job=stage.job("old").job)
    stage.run_until(IncidentState.RESOLVED)

    assert stage.received(EntryKind.HOLD, EntryKind.RELEASE) == ()
    assert len(stage.received(EntryKind.RESET_GPU)) == 1
    assert stage.pages() == []


def test_job_that_a_person_holds_while_its_plan_waits_is_never_released_by_us(tmp_path: Path) -> None:
    stage = begin(tmp_path, aged("old", 55))
    stage.run_for(3)

    stage.cluster.scheduler.hold(stage.job("old").job)  # As a person does with `scontrol requeuehold`.
    stage.run_until(IncidentState.RESOLVED)

    assert stage.job("old").is_held
    assert len(stage.received(EntryKind.HOLD)) == 1
    assert stage.received(EntryKind.RELEASE, EntryKind.EXCLUDE) == ()
    assert len(stage.received(EntryKind.RESET_GPU)) == 1
    assert stage.pages() == []


def test_job_that_declares_no_checkpoints_is_told_and_left_until_its_end(tmp_path: Path) -> None:
    spec = replace(HOURLY, checkpoint_interval_seconds=None, checkpointing=Checkpointing.NO)
    stage = begin(tmp_path, replace(spec, name="all-or-nothing", work_seconds=FAULT_AT_SECONDS + 900))
    stage.run_for(6)
    while_it_runs = stage.commands()
    stage.let_pass(890)
    stage.run_until(IncidentState.RESOLVED)

    assert while_it_runs == [EntryKind.DRAIN]
    assert stage.received(EntryKind.HOLD) == ()
    assert stage.job("all-or-nothing").state is JobState.COMPLETED
    (told,) = stage.owners_told()
    assert "It is left running: it keeps no checkpoints" in told.body


def test_checkpoint_of_unknown_age_counts_as_the_whole_attempt_and_is_said_to_be_unknown(tmp_path: Path) -> None:
    spec = replace(HOURLY, checkpoint_interval_seconds=None, checkpointing=Checkpointing.UNKNOWN, name="silent-saver")
    stage = begin(tmp_path, spec)

    (timing,) = stage.plan.timings
    now = next(option for option in timing.options if option.moment is Moment.NOW)
    assert now.lost_gpu_hours > FAULT_AT_SECONDS / 3600
    assert Moment.NEXT_CHECKPOINT not in {option.moment for option in timing.options}
    assert "the age of its checkpoint is unknown" in stage.plan.effects[0]


# -- kinds of work ----------------------------------------------------------------------------------------------------


def test_job_that_takes_its_fault_with_it_is_moved_so_often_and_then_left(tmp_path: Path) -> None:
    """The fault is the program's: each node on which it runs loses a GPU."""
    culprit = replace(SMALL_TRAINING, bug=Bug.LOSES_GPU, bug_after_seconds=8.0)
    limits = replace(HASTY, recovery=RecoveryLimits(max_requeues_count=2))
    stage = Stage(tmp_path, culprit, node_count=5, policy=limits)

    stage.run_for(60)
    settled = stage.commands()
    stage.run_for(30)

    assert len(stage.received(EntryKind.HOLD)) == 2
    assert stage.job().restart_count == 2
    assert stage.job().state is JobState.RUNNING
    assert stage.commands() == settled
    told = [message.body for message in stage.owners_told()]
    assert len(told) == 3
    assert "It is left running: it was moved 2 time(s)" in told[-1]


@pytest.mark.parametrize("is_requeueable", [True, False], ids=["may be requeued", "may not"])
def test_session_is_moved_after_its_owner_had_time_to_save_and_never_without_leave(
    tmp_path: Path, is_requeueable: bool
) -> None:
    notice = timedelta(seconds=40)
    session = replace(SESSION, is_requeueable=is_requeueable)
    stage = Stage(tmp_path, session, policy=replace(HASTY, recovery=RecoveryLimits(interactive_notice=notice)))
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node_of(stage, "notebook"), gpu=1)  # Its own GPU is another.

    stage.run_for(36)
    held_before = stage.received(EntryKind.HOLD)
    (told,) = stage.owners_told()
    stage.run_for(45)

    assert held_before == ()
    (notified,) = stage.records_of(Verb.NOTIFY_OWNER)
    holds = stage.when(EntryKind.HOLD)
    if is_requeueable:
        assert "Please save: at " in told.body
        assert [timedelta(0) <= at - notified.begun_at - notice < timedelta(seconds=5) for at in holds] == [True]
    else:
        assert "It is left running: it may not be requeued" in told.body
        assert holds == []
        assert stage.received(EntryKind.REBOOT) == ()


def test_session_on_a_silent_node_is_not_given_time_that_nobody_can_use(tmp_path: Path) -> None:
    stage = Stage(tmp_path, replace(SESSION, is_requeueable=True), policy=HASTY)
    stage.twin.inject(FaultKind.NODE_UNREACHABLE, node_of(stage, "notebook"))

    stage.run_until(IncidentState.RESOLVED)

    assert stage.job("notebook").restart_count == 1
    assert ground_truth.read_split_brains(stage.twin) == ()


def service_with_two_broken_nodes(tmp_path: Path, *, replica_count: int, gpus_per_replica: int) -> Stage:
    """Return a service of which two must serve; GPU 3 of 4 is lost on the nodes of its first two replicas."""
    replica = replace(
        SMALL_TRAINING,
        workload=Workload.INFERENCE,
        gpus_per_node=gpus_per_replica,
        service="chat",
        min_serving_count=2,
        checkpoint_interval_seconds=None,
    )
    replicas = [replace(replica, name=f"chat-{number}") for number in range(1, replica_count + 1)]
    stage = Stage(tmp_path, *replicas, node_count=replica_count + 3, gpus_per_node=4, policy=HASTY)
    for name in ("chat-1", "chat-2"):
        stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node_of(stage, name), gpu=3)
    return stage


@pytest.mark.parametrize(
    ("replica_count", "gpus_per_replica"),
    [pytest.param(3, 4, id="the fault ends the replicas"), pytest.param(4, 3, id="they continue beside it")],
)
def test_service_never_falls_below_its_minimum_by_our_act(
    tmp_path: Path, replica_count: int, gpus_per_replica: int
) -> None:
    stage = service_with_two_broken_nodes(tmp_path, replica_count=replica_count, gpus_per_replica=gpus_per_replica)

    stage.run_until(IncidentState.RESOLVED)

    changes = ground_truth.read_serving(stage.twin)
    assert [change for change in changes if change.breaks_minimum_by_command] == []
    assert changes[-1].serving_count == replica_count
    restarts = [stage.job(f"chat-{number}").restart_count for number in range(1, replica_count + 1)]
    assert restarts == [1, 1, *[0] * (replica_count - 2)]


def test_replicas_of_which_nobody_knows_whether_they_live_are_left_until_others_serve(tmp_path: Path) -> None:
    """Each would count on the other, and the fault may have ended it: both wait, and a person is notified in time."""
    stage = service_with_two_broken_nodes(tmp_path, replica_count=3, gpus_per_replica=3)

    with pytest.raises(TimeoutError, match="acting"):
        stage.run_until(IncidentState.RESOLVED)

    assert stage.received(EntryKind.HOLD) == ()
    assert ground_truth.read_serving(stage.twin)[-1].serving_count == 3


# -- room -------------------------------------------------------------------------------------------------------------


def test_spare_node_is_kept_for_the_job_that_is_moved_and_handed_over(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SMALL_TRAINING, policy=HASTY)
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=1)

    stage.run_until(IncidentState.RESOLVED)

    (reserve,) = stage.received(EntryKind.RESERVE)
    assert set(reserve.nodes) == stage.job().nodes
    assert ground_truth.read_reservations(stage.twin) == ()
    order = [EntryKind.RESERVE, EntryKind.HOLD, EntryKind.UNRESERVE, EntryKind.RELEASE]
    assert [kind for kind in stage.commands() if kind in order] == order


def test_without_room_the_job_waits_in_the_queue_and_the_plan_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SMALL_TRAINING, replace(SMALL_TRAINING, name="neighbour"), node_count=2, policy=HASTY)
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=1)

    stage.run_until(IncidentState.RESOLVED)

    assert stage.received(EntryKind.RESERVE, EntryKind.UNRESERVE) == ()
    assert stage.job().state is JobState.PENDING  # It is kept off the only other node.
    assert not stage.job().is_held


class Killed(BaseException):
    """The process is gone."""


class DiesAtHold:
    """A scheduler to which the process that calls it never gets with its first hold."""

    def __init__(self, scheduler: object) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def hold(self, job: str) -> None:
        raise Killed


def test_room_that_nobody_lives_to_use_is_free_again_by_itself(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SMALL_TRAINING, policy=HASTY)
    whole = stage.cluster
    stage.cluster = replace(whole, scheduler=DiesAtHold(whole.scheduler))  # type: ignore[arg-type]  # a fake
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=1)
    with pytest.raises(Killed):
        stage.run_for(10)
    kept = ground_truth.read_reservations(stage.twin)
    stage.let_pass(90)
    left = ground_truth.read_reservations(stage.twin)
    stage.cluster = whole

    stage.run_until(IncidentState.RESOLVED)

    assert len(kept) == 1
    assert left == ()
    assert ground_truth.read_reservations(stage.twin) == ()
    assert stage.job().restart_count == 1


# -- whether it continues
# -----------------------------------------------------------------------------------------------


def test_job_that_was_moved_is_followed_until_its_next_checkpoint_proves_that_it_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SMALL_TRAINING, policy=WATCHFUL)
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=1)

    stage.run_until(IncidentState.RESOLVED)

    (recovery,) = stage.incident().recoveries
    assert recovery.checkpointed_at == stage.twin.began_at + timedelta(seconds=10)
    assert recovery.resumed_at == stage.job().started_at
    assert recovery.resumed_at is not None
    assert recovery.progressed_at == recovery.resumed_at + timedelta(seconds=10)
    assert recovery.ended_as == ""


def test_owner_of_a_job_that_does_not_go_on_is_told_once(tmp_path: Path) -> None:
    durations = replace(WATCHFUL.durations, probation=timedelta(seconds=60), progress_limit=timedelta(seconds=20))
    stuck = replace(SMALL_TRAINING, checkpoint_interval_seconds=3600.0)
    stage = Stage(tmp_path, stuck, policy=replace(WATCHFUL, durations=durations))
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=1)

    stage.run_until(IncidentState.RESOLVED)

    told = [message.body for message in stage.owners_told() if "Please look whether it makes progress" in message.body]
    assert len(told) == 1
    (recovery,) = stage.incident().recoveries
    assert recovery.progressed_at is None
    assert recovery.ended_as.startswith("no checkpoint was seen within")


class LosesTheSecondHold:
    """A scheduler that does not answer from the second hold on."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holds = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def hold(self, job: JobId) -> None:
        self._holds += 1
        if self._holds > 1:
            raise SourceUnavailable("no answer")
        self._scheduler.hold(job)


def test_once_a_job_of_a_silent_node_is_held_so_are_the_others_though_the_node_leaves_our_hands(tmp_path: Path) -> None:
    """The scheduler would give the node up and start them elsewhere, while the first copy may still write."""
    jobs = [replace(SMALL_TRAINING, name=name, gpus_per_node=2) for name in ("one", "two")]
    at_once = replace(HASTY, durations=replace(HASTY.durations, run_patience=timedelta(0)))
    stage = Stage(tmp_path, *jobs, node_count=4, gpus_per_node=4, policy=at_once)
    node = node_of(stage, "one")
    scheduler = stage.cluster.scheduler
    stage.cluster = replace(stage.cluster, scheduler=cast("Scheduler", LosesTheSecondHold(scheduler)))
    stage.twin.inject(FaultKind.NODE_UNREACHABLE, node)
    while not stage.records_of(Verb.HOLD):
        stage.run_once()
        stage.let_pass(1)

    stage.cluster = replace(stage.cluster, scheduler=scheduler)
    stage.use_policy(replace(HASTY, untouchable_nodes=frozenset({node})))
    stage.run_until(IncidentState.ESCALATED)
    scheduler.declare_down(node, reason="Not responding")
    stage.let_pass(60)

    assert all(stage.job(each.name).is_held for each in jobs)
    assert ground_truth.read_split_brains(stage.twin) == ()


def test_a_move_that_a_limit_of_the_plan_forbids_is_not_planned_again_and_again(tmp_path: Path) -> None:
    """The job is left running, and a person is notified once the wait has its length."""
    tight = replace(HASTY.durations, job_end_limit=timedelta(seconds=60))
    policy = replace(HASTY, blast_caps=replace(HASTY.blast_caps, max_gpu_hours_per_plan=0.0001), durations=tight)
    stage = Stage(tmp_path, replace(SMALL_TRAINING, gpus_per_node=2), node_count=4, gpus_per_node=4, policy=policy)
    stage.let_pass(30)
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node_of(stage, SMALL_TRAINING.name), gpu=3)

    stage.run_until(IncidentState.ESCALATED)

    assert len(stage.records_of(Verb.DRAIN)) == 1
    assert stage.received(EntryKind.HOLD) == ()
    assert len(stage.pages()) == 1
