"""What every scheduler adapter must do: one suite, run on the simulator and on real servers.

A subclass provides the `world` fixture and nothing else. What only one scheduler does (its messages, its quirks)
is in that adapter's own tests.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pytest

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import (
    HAS_PROCESSES,
    Checkpointing,
    JobState,
    JobStatus,
    NodeState,
    NodeStatus,
    Workload,
)
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable

UNKNOWN_JOB = JobId("99999999")
UNKNOWN_NODE = NodeName("no-such-node")
REASON = "INC-7 Xid 79 on GPU 0000:1b:00 | a=b, \"fell off\"; $(reboot) 'x' [sic]"
"""What a shell, a field list and a `[user@time]` suffix could each take for their own."""


LONG_ENOUGH = timedelta(hours=1)
RESERVATION = "INC-7_job-12"
BOOKING = "ROLL-0001_wave-2"


class SchedulerWorld(Protocol):
    """A cluster to test on. Each test finds it clean: no job that is not ended, every node idle, in service,
    without a reservation and chosen like any other.
    """

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        """Every node; at least four, alike, in one partition, each with at least one GPU."""
        ...

    @property
    def partition(self) -> str:
        """The partition of every node, to which every job is submitted."""
        ...

    def now(self) -> datetime:
        """Return the time of the cluster, in which limits and reservations are meant."""
        ...

    def submit(
        self, *, name: str, node_count: int, workload: Workload, time_limit: timedelta = LONG_ENOUGH, comment: str = ""
    ) -> JobId:
        """Submit a requeueable job that takes all GPUs of `node_count` nodes and runs longer than any test.

        `name` is passed on as it is, whatever it contains; `workload` is declared the way users do it there, and so is
        the rest of `comment`, words such as `service=chat min_serving=3`. `time_limit` is in whole minutes.
        """
        ...

    def wait_until(self, predicate: Callable[[], bool], timeout_seconds: float) -> None:
        """Let time pass (real or simulated) until `predicate` holds; raise TimeoutError after `timeout_seconds`."""
        ...


SOON_SECONDS = 60.0
"""Far above what a real Slurm needs for a start, a requeue or a kill (measured: 13 s at most); never asserted on."""


class SchedulerContract:
    """Subclass as `class TestX(SchedulerContract)` and define the fixture `world`."""

    @pytest.fixture
    def world(self) -> SchedulerWorld:
        raise NotImplementedError("a subclass of SchedulerContract provides the fixture `world`")

    # -- reading --

    def test_every_node_is_read_once_idle_in_service_and_with_its_gpus(self, world: SchedulerWorld) -> None:
        nodes = world.scheduler.read_nodes()

        assert sorted(node.node for node in nodes) == sorted(world.node_names)
        assert {node.state for node in nodes} == {NodeState.IDLE}
        assert all(node.is_responding and not node.is_drained for node in nodes)
        assert {node.reason for node in nodes} == {None}
        assert min(node.gpu_count for node in nodes) >= 1
        assert {node.gpu_in_use_count for node in nodes} == {0}
        assert {node.partitions for node in nodes} == {frozenset({world.partition})}
        assert {(node.is_last_choice, node.reserved_as) for node in nodes} == {(False, None)}

    def test_running_job_is_read_with_its_nodes_gpus_and_start(self, world: SchedulerWorld) -> None:
        job = world.submit(name="pretrain", node_count=2, workload=Workload.TRAINING)

        status = _await_running(world, job)

        used = {name: node for name, node in _nodes(world).items() if name in status.nodes}
        assert len(status.nodes) == len(used) == 2
        assert status.gpu_count == sum(node.gpu_count for node in used.values())
        assert all(node.gpu_in_use_count == node.gpu_count for node in used.values())
        assert {node.state for node in used.values()} <= {NodeState.MIXED, NodeState.ALLOCATED}
        assert (status.name, status.workload) == ("pretrain", Workload.TRAINING)
        assert (status.is_held, status.is_requeueable, status.restart_count) == (False, True, 0)
        assert status.started_at is not None
        assert status.started_at.tzinfo is UTC
        assert status.ended_at is None
        assert status.excluded_nodes == frozenset()
        assert status.partition == world.partition

    def test_pending_job_has_no_nodes_and_no_attempt(self, world: SchedulerWorld) -> None:
        _await_running(world, world.submit(name="all", node_count=len(world.node_names), workload=Workload.TRAINING))

        job = world.submit(name="waits", node_count=1, workload=Workload.BATCH)

        status = _job(world, job)
        assert (status.state, status.is_held, status.nodes) == (JobState.PENDING, False, frozenset())
        assert status.attempt is None
        assert status.ends_by is None
        assert status.partition == world.partition
        assert status.workload is Workload.BATCH

    def test_running_job_ends_by_its_start_plus_its_time_limit(self, world: SchedulerWorld) -> None:
        limit = timedelta(minutes=42)
        job = world.submit(name="limited", node_count=1, workload=Workload.TRAINING, time_limit=limit)

        status = _await_running(world, job)

        assert status.started_at is not None
        assert status.ends_by == status.started_at + limit

    def test_held_job_has_no_end_any_more(self, world: SchedulerWorld) -> None:
        job = world.submit(name="held", node_count=1, workload=Workload.TRAINING)
        _await_running(world, job)

        world.scheduler.hold(job)

        assert _await_stopped(world, job).ends_by is None

    def test_replica_declares_its_service_and_how_many_must_serve(self, world: SchedulerWorld) -> None:
        words = "service=chat min_serving=3 ckpt=none ckpt_every=1800"
        job = world.submit(name="replica", node_count=1, workload=Workload.INFERENCE, comment=words)

        status = _await_running(world, job)

        assert (status.service, status.min_serving_count) == ("chat", 3)
        assert (status.checkpointing, status.checkpoint_every) == (Checkpointing.NO, timedelta(minutes=30))
        assert status.workload is Workload.INFERENCE

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param("$(reboot)", id="command substitution"),
            pytest.param("'; DROP TABLE jobs; --", id="SQL"),
            pytest.param("a|b JobState=FAILED NodeList=gpu009", id="separators and another field"),
            pytest.param("größer als ✓", id="not ASCII"),
        ],
    )
    def test_hostile_job_name_is_text_and_hides_no_field(self, world: SchedulerWorld, name: str) -> None:
        job = world.submit(name=name, node_count=1, workload=Workload.TRAINING)

        status = _await_running(world, job)

        assert status.name == name
        assert len(status.nodes) == 1
        assert status.nodes <= set(world.node_names)

    def test_limits_are_read_as_durations_above_zero_or_as_absent(self, world: SchedulerWorld) -> None:
        limits = world.scheduler.read_limits()

        assert limits.silence_limit is None or limits.silence_limit > timedelta(0)
        assert limits.ping_interval is None or limits.ping_interval > timedelta(0)
        assert limits.answer_limit >= timedelta(0)
        if limits.silence_limit is not None:
            assert limits.ping_interval is not None
            assert limits.ping_interval < limits.silence_limit

    # -- drain and resume --

    def test_drain_is_read_back_with_its_reason_and_running_jobs_go_on(self, world: SchedulerWorld) -> None:
        job = world.submit(name="continues", node_count=2, workload=Workload.TRAINING)
        before = _await_running(world, job)

        world.scheduler.drain(before.nodes, reason=REASON)

        drained = [node for name, node in _nodes(world).items() if name in before.nodes]
        assert all(node.is_drained and node.is_responding and node.reason == REASON for node in drained)
        assert all(node.reason_set_at is not None and node.reason_set_at.tzinfo is UTC for node in drained)
        assert _job(world, job) == before

    def test_drain_touches_only_the_given_nodes(self, world: SchedulerWorld) -> None:
        first, second, *others = world.node_names

        world.scheduler.drain([first, second], reason=REASON)

        assert {name for name, node in _nodes(world).items() if node.is_drained} == {first, second}
        assert {_nodes(world)[name].reason for name in others} == {None}

    def test_no_job_starts_on_a_drained_node(self, world: SchedulerWorld) -> None:
        drained = world.node_names[:-1]
        world.scheduler.drain(drained, reason=REASON)

        status = _await_running(world, world.submit(name="elsewhere", node_count=1, workload=Workload.TRAINING))

        assert status.nodes == {world.node_names[-1]}

    def test_draining_twice_changes_nothing(self, world: SchedulerWorld) -> None:
        node = world.node_names[0]
        world.scheduler.drain([node], reason=REASON)
        before = _nodes(world)[node]

        world.scheduler.drain([node], reason=REASON)

        after = _nodes(world)[node]
        assert (after.is_drained, after.reason, after.state) == (before.is_drained, before.reason, before.state)

    def test_empty_batch_drains_nothing_and_raises(self, world: SchedulerWorld) -> None:
        with pytest.raises(ValueError):
            world.scheduler.drain([], reason=REASON)

        assert not any(node.is_drained for node in world.scheduler.read_nodes())

    @pytest.mark.parametrize("reason", [pytest.param("", id="empty"), pytest.param("  ", id="blank")])
    def test_drain_without_a_reason_raises(self, world: SchedulerWorld, reason: str) -> None:
        with pytest.raises(ValueError):
            world.scheduler.drain([world.node_names[0]], reason=reason)

        assert not any(node.is_drained for node in world.scheduler.read_nodes())

    def test_draining_an_unknown_node_is_refused(self, world: SchedulerWorld) -> None:
        with pytest.raises(SourceRefused):
            world.scheduler.drain([UNKNOWN_NODE], reason=REASON)

    def test_resumed_node_is_back_in_service_without_a_reason(self, world: SchedulerWorld) -> None:
        node = world.node_names[0]
        world.scheduler.drain([node], reason=REASON)

        world.scheduler.resume(node)

        world.wait_until(lambda: _nodes(world)[node].state is NodeState.IDLE, SOON_SECONDS)
        status = _nodes(world)[node]
        assert (status.is_drained, status.reason, status.reason_set_at) == (False, None, None)

    def test_resuming_a_node_in_service_changes_nothing(self, world: SchedulerWorld) -> None:
        job = world.submit(name="undisturbed", node_count=1, workload=Workload.TRAINING)
        before = _await_running(world, job)
        (node,) = before.nodes

        world.scheduler.resume(node)

        assert not _nodes(world)[node].is_drained
        assert _job(world, job) == before

    def test_resuming_an_unknown_node_is_refused(self, world: SchedulerWorld) -> None:
        with pytest.raises(SourceRefused):
            world.scheduler.resume(UNKNOWN_NODE)

    # -- hold, exclude, release, requeue --

    def test_held_running_job_loses_its_processes_and_does_not_start_again(self, world: SchedulerWorld) -> None:
        job = world.submit(name="held", node_count=2, workload=Workload.TRAINING)
        attempt = _await_running(world, job).attempt

        world.scheduler.hold(job)

        status = _await_stopped(world, job)
        assert (status.state, status.is_held, status.nodes) == (JobState.PENDING, True, frozenset())
        assert attempt is not None

    def test_held_job_stays_held_while_others_start(self, world: SchedulerWorld) -> None:
        job = world.submit(name="held", node_count=1, workload=Workload.TRAINING)
        _await_running(world, job)
        world.scheduler.hold(job)
        _await_stopped(world, job)

        _await_running(world, world.submit(name="later", node_count=1, workload=Workload.TRAINING))

        status = _job(world, job)
        assert (status.state, status.is_held) == (JobState.PENDING, True)

    def test_pending_job_can_be_held(self, world: SchedulerWorld) -> None:
        _await_running(world, world.submit(name="all", node_count=len(world.node_names), workload=Workload.TRAINING))
        job = world.submit(name="waits", node_count=1, workload=Workload.TRAINING)

        world.scheduler.hold(job)

        status = _job(world, job)
        assert (status.state, status.is_held, status.attempt) == (JobState.PENDING, True, None)

    def test_holding_twice_changes_nothing(self, world: SchedulerWorld) -> None:
        job = world.submit(name="held", node_count=1, workload=Workload.TRAINING)
        _await_running(world, job)
        world.scheduler.hold(job)
        before = _await_stopped(world, job)

        world.scheduler.hold(job)

        after = _job(world, job)
        assert (after.state, after.is_held, after.restart_count) == (before.state, True, before.restart_count)

    def test_released_job_runs_again_as_a_later_attempt(self, world: SchedulerWorld) -> None:
        job = world.submit(name="again", node_count=1, workload=Workload.TRAINING)
        first = _await_running(world, job)
        world.scheduler.hold(job)
        _await_stopped(world, job)

        world.scheduler.release(job)

        second = _await_running(world, job)
        assert first.started_at is not None
        assert second.started_at is not None
        assert second.started_at > first.started_at
        assert second.restart_count > first.restart_count
        assert not second.is_held

    def test_releasing_a_job_that_is_not_held_changes_nothing(self, world: SchedulerWorld) -> None:
        job = world.submit(name="free", node_count=1, workload=Workload.TRAINING)
        before = _await_running(world, job)

        world.scheduler.release(job)

        assert _job(world, job) == before

    # -- marks --

    def test_marked_jobs_run_on_held_and_as_before_when_the_mark_is_off(self, world: SchedulerWorld) -> None:
        before = [
            _await_running(world, world.submit(name=f"marked-{number}", node_count=1, workload=Workload.TRAINING))
            for number in range(2)
        ]
        attempts = [job.attempt for job in before if job.attempt is not None]

        world.scheduler.mark(attempts)
        world.scheduler.mark(attempts)
        marked = [_job(world, job.job) for job in before]
        world.scheduler.unmark({job.job: job.priority for job in before})

        assert [(job.state, job.is_held, job.attempt, job.nodes) for job in marked] == [
            (JobState.RUNNING, True, job.attempt, job.nodes) for job in before
        ]
        assert [_job(world, job.job) for job in before] == before

    def test_mark_on_another_attempt_is_refused_and_the_rest_of_the_batch_is_marked(
        self, world: SchedulerWorld
    ) -> None:
        first, other = (
            _await_running(world, world.submit(name=name, node_count=1, workload=Workload.TRAINING))
            for name in ("first", "other")
        )
        assert first.attempt is not None
        assert other.attempt is not None
        earlier = replace(first.attempt, started_at=first.attempt.started_at - timedelta(minutes=1))

        with pytest.raises(SourceRefused):
            world.scheduler.mark([earlier])
        with pytest.raises(SourceUnavailable):
            world.scheduler.mark([earlier, other.attempt])

        assert not _job(world, first.job).is_held
        assert _job(world, other.job).is_held

    def test_what_is_not_marked_or_not_known_is_let_be(self, world: SchedulerWorld) -> None:
        before = _await_running(world, world.submit(name="free", node_count=1, workload=Workload.TRAINING))

        world.scheduler.unmark({before.job: before.priority, UNKNOWN_JOB: 1})

        assert _job(world, before.job) == before

    def test_empty_marks_never_mean_all(self, world: SchedulerWorld) -> None:
        with pytest.raises(ValueError):
            world.scheduler.mark([])
        with pytest.raises(ValueError):
            world.scheduler.unmark({})

    def test_exclusions_add_up_and_keep_the_released_job_off(self, world: SchedulerWorld) -> None:
        job = world.submit(name="kept off", node_count=2, workload=Workload.TRAINING)
        bad = sorted(_await_running(world, job).nodes)
        world.scheduler.hold(job)
        _await_stopped(world, job)

        world.scheduler.exclude(job, [bad[0]])
        world.scheduler.exclude(job, [bad[1]])
        excluded = _job(world, job)
        world.scheduler.release(job)

        assert excluded.excluded_nodes == set(bad)
        assert excluded.is_held
        assert not _await_running(world, job).nodes & set(bad)

    def test_excluding_twice_changes_nothing(self, world: SchedulerWorld) -> None:
        job = world.submit(name="kept off", node_count=1, workload=Workload.TRAINING)
        (bad,) = _await_running(world, job).nodes
        world.scheduler.hold(job)
        _await_stopped(world, job)
        world.scheduler.exclude(job, [bad])
        before = _job(world, job)

        world.scheduler.exclude(job, [bad])

        assert _job(world, job) == before

    def test_excluding_from_a_running_job_is_refused_and_changes_nothing(self, world: SchedulerWorld) -> None:
        job = world.submit(name="runs", node_count=1, workload=Workload.TRAINING)
        before = _await_running(world, job)

        with pytest.raises(SourceRefused):
            world.scheduler.exclude(job, [world.node_names[-1]])

        assert _job(world, job) == before

    def test_readmitted_job_is_kept_off_the_other_nodes_alone(self, world: SchedulerWorld) -> None:
        job = world.submit(name="kept off", node_count=2, workload=Workload.TRAINING)
        bad = sorted(_await_running(world, job).nodes)
        world.scheduler.hold(job)
        _await_stopped(world, job)
        world.scheduler.exclude(job, bad)

        world.scheduler.readmit(job, [bad[0]])
        one_left = _job(world, job).excluded_nodes
        world.scheduler.readmit(job, bad)

        assert one_left == {bad[1]}
        assert _job(world, job).excluded_nodes == frozenset()

    def test_readmitting_a_running_job_is_refused_and_changes_nothing(self, world: SchedulerWorld) -> None:
        job = world.submit(name="runs", node_count=1, workload=Workload.TRAINING)
        before = _await_running(world, job)

        with pytest.raises(SourceRefused):
            world.scheduler.readmit(job, [world.node_names[-1]])

        assert _job(world, job) == before

    def test_empty_readmission_raises(self, world: SchedulerWorld) -> None:
        job = world.submit(name="runs", node_count=1, workload=Workload.TRAINING)

        with pytest.raises(ValueError):
            world.scheduler.readmit(job, [])

    def test_empty_exclusion_raises(self, world: SchedulerWorld) -> None:
        job = world.submit(name="runs", node_count=1, workload=Workload.TRAINING)

        with pytest.raises(ValueError):
            world.scheduler.exclude(job, [])

    def test_requeued_job_starts_again_without_a_release(self, world: SchedulerWorld) -> None:
        job = world.submit(name="requeued", node_count=1, workload=Workload.TRAINING)
        first = _await_running(world, job)

        world.scheduler.requeue(job)

        world.wait_until(lambda: _job(world, job).restart_count > first.restart_count, SOON_SECONDS)
        second = _await_running(world, job)
        assert first.started_at is not None
        assert second.started_at is not None
        assert second.started_at > first.started_at

    @pytest.mark.parametrize(
        "command",
        [
            pytest.param(lambda scheduler: scheduler.hold(UNKNOWN_JOB), id="hold"),
            pytest.param(lambda scheduler: scheduler.requeue(UNKNOWN_JOB), id="requeue"),
            pytest.param(lambda scheduler: scheduler.release(UNKNOWN_JOB), id="release"),
            pytest.param(lambda scheduler: scheduler.exclude(UNKNOWN_JOB, [UNKNOWN_NODE]), id="exclude"),
            pytest.param(lambda scheduler: scheduler.readmit(UNKNOWN_JOB, [UNKNOWN_NODE]), id="readmit"),
        ],
    )
    def test_unknown_job_is_refused(self, world: SchedulerWorld, command: Callable[[Scheduler], None]) -> None:
        with pytest.raises(SourceRefused):
            command(world.scheduler)

    # -- reservations --

    def test_reserved_nodes_are_read_back_and_stay_free_of_work(self, world: SchedulerWorld) -> None:
        first, second, *others = world.node_names
        world.scheduler.reserve([first, second], name=RESERVATION, until=_later(world))

        job = _await_running(world, world.submit(name="others", node_count=len(others), workload=Workload.TRAINING))
        waiting = world.submit(name="waits", node_count=1, workload=Workload.TRAINING)

        assert job.nodes == set(others)
        assert _reserved(world) == {first: RESERVATION, second: RESERVATION}
        assert _job(world, waiting).state is JobState.PENDING

    def test_busy_node_is_not_reserved_nor_any_other_of_the_batch(self, world: SchedulerWorld) -> None:
        before = _await_running(world, world.submit(name="busy", node_count=1, workload=Workload.TRAINING))
        (busy,) = before.nodes
        idle = next(node for node in world.node_names if node != busy)

        with pytest.raises(SourceRefused):
            world.scheduler.reserve([busy, idle], name=RESERVATION, until=_later(world))

        assert _reserved(world) == {}
        assert _job(world, before.job) == before

    @pytest.mark.parametrize(
        "take_out",
        [
            pytest.param(lambda scheduler, node: scheduler.drain([node], reason=REASON), id="drained"),
            pytest.param(lambda scheduler, node: scheduler.declare_down(node, reason=REASON), id="down"),
        ],
    )
    def test_node_out_of_service_is_not_reserved(
        self, world: SchedulerWorld, take_out: Callable[[Scheduler, NodeName], None]
    ) -> None:
        first, second, *_ = world.node_names
        take_out(world.scheduler, first)

        with pytest.raises(SourceRefused):
            world.scheduler.reserve([first, second], name=RESERVATION, until=_later(world))

        assert _reserved(world) == {}

    def test_node_of_another_reservation_is_not_reserved(self, world: SchedulerWorld) -> None:
        first, second, *_ = world.node_names
        world.scheduler.reserve([first], name=RESERVATION, until=_later(world))

        with pytest.raises(SourceRefused):
            world.scheduler.reserve([first, second], name="INC-8_job-13", until=_later(world))

        assert _reserved(world) == {first: RESERVATION}

    def test_unknown_node_is_not_reserved_nor_any_other_of_the_batch(self, world: SchedulerWorld) -> None:
        with pytest.raises(SourceRefused):
            world.scheduler.reserve([world.node_names[0], UNKNOWN_NODE], name=RESERVATION, until=_later(world))

        assert _reserved(world) == {}

    def test_empty_batch_reserves_nothing_and_raises(self, world: SchedulerWorld) -> None:
        with pytest.raises(ValueError):
            world.scheduler.reserve([], name=RESERVATION, until=_later(world))

        assert _reserved(world) == {}

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param("", id="empty"),
            pytest.param("a" * 61, id="longer than 60"),
            pytest.param("a b", id="space"),
            pytest.param("a,b", id="comma"),
            pytest.param("a;reboot", id="command"),
            pytest.param("a\nb", id="newline"),
            pytest.param("é", id="not ASCII"),
        ],
    )
    def test_word_that_is_no_name_reserves_nothing_and_raises(self, world: SchedulerWorld, name: str) -> None:
        with pytest.raises(ValueError):
            world.scheduler.reserve([world.node_names[0]], name=name, until=_later(world))
        with pytest.raises(ValueError):
            world.scheduler.unreserve(name)

        assert _reserved(world) == {}

    def test_reservation_that_would_be_over_already_raises(self, world: SchedulerWorld) -> None:
        with pytest.raises(ValueError):
            world.scheduler.reserve([world.node_names[0]], name=RESERVATION, until=world.now())

        assert _reserved(world) == {}

    def test_reserving_again_under_the_same_name_replaces_the_nodes(self, world: SchedulerWorld) -> None:
        first, second, third, *_ = world.node_names
        world.scheduler.reserve([first, second], name=RESERVATION, until=_later(world))

        world.scheduler.reserve([second, third], name=RESERVATION, until=_later(world))

        assert _reserved(world) == {second: RESERVATION, third: RESERVATION}

    def test_reserving_the_same_twice_changes_nothing(self, world: SchedulerWorld) -> None:
        until = _later(world)
        world.scheduler.reserve([world.node_names[0]], name=RESERVATION, until=until)

        world.scheduler.reserve([world.node_names[0]], name=RESERVATION, until=until)

        assert _reserved(world) == {world.node_names[0]: RESERVATION}

    def test_replacement_by_a_busy_node_is_refused_and_keeps_what_was_reserved(self, world: SchedulerWorld) -> None:
        (busy,) = _await_running(world, world.submit(name="busy", node_count=1, workload=Workload.TRAINING)).nodes
        idle = next(node for node in world.node_names if node != busy)
        world.scheduler.reserve([idle], name=RESERVATION, until=_later(world))

        with pytest.raises(SourceRefused):
            world.scheduler.reserve([busy], name=RESERVATION, until=_later(world))

        assert _reserved(world) == {idle: RESERVATION}

    def test_reservation_ends_by_itself_and_its_nodes_take_work(self, world: SchedulerWorld) -> None:
        soon = world.now() + timedelta(seconds=5)
        world.scheduler.reserve(world.node_names, name=RESERVATION, until=soon)

        job = _await_running(world, world.submit(name="after it", node_count=1, workload=Workload.TRAINING))

        assert job.started_at is not None
        assert job.started_at >= soon.replace(microsecond=0)
        assert _reserved(world) == {}

    def test_released_job_gets_the_nodes_that_were_reserved_for_it(self, world: SchedulerWorld) -> None:
        job = world.submit(name="moved", node_count=1, workload=Workload.TRAINING)
        (bad,) = _await_running(world, job).nodes
        kept, *others = (node for node in world.node_names if node != bad)
        world.scheduler.reserve([kept], name=RESERVATION, until=_later(world))
        world.scheduler.drain([bad], reason=REASON)
        _await_running(world, world.submit(name="rest", node_count=len(others), workload=Workload.TRAINING))
        world.scheduler.hold(job)
        _await_stopped(world, job)

        world.scheduler.unreserve(RESERVATION)
        world.scheduler.release(job)

        assert _await_running(world, job).nodes == {kept}

    def test_giving_back_twice_changes_nothing(self, world: SchedulerWorld) -> None:
        world.scheduler.reserve([world.node_names[0]], name=RESERVATION, until=_later(world))

        world.scheduler.unreserve(RESERVATION)
        world.scheduler.unreserve(RESERVATION)

        assert _reserved(world) == {}

    # -- bookings --

    def test_job_that_would_run_into_a_booking_waits_and_a_shorter_one_starts(self, world: SchedulerWorld) -> None:
        begins_at = world.now() + timedelta(minutes=5)
        world.scheduler.book(world.node_names, name=BOOKING, begins_at=begins_at, ends_at=_later(world))

        waits = world.submit(name="long", node_count=1, workload=Workload.TRAINING, time_limit=timedelta(minutes=9))
        starts = world.submit(name="short", node_count=1, workload=Workload.TRAINING, time_limit=timedelta(minutes=3))

        _await_running(world, starts)
        assert _job(world, waits).state is JobState.PENDING
        assert _reserved(world) == {}

    def test_job_that_runs_is_let_be_by_a_booking_in_force(self, world: SchedulerWorld) -> None:
        before = _await_running(world, world.submit(name="runs", node_count=1, workload=Workload.TRAINING))
        (busy,) = before.nodes

        world.scheduler.book([busy], name=BOOKING, begins_at=world.now(), ends_at=_later(world))

        world.wait_until(lambda: _reserved(world) == {busy: BOOKING}, SOON_SECONDS)
        assert _job(world, before.job) == before

    def test_node_that_is_drained_or_kept_free_can_be_booked(self, world: SchedulerWorld) -> None:
        drained, kept, *_ = world.node_names
        world.scheduler.drain([drained], reason=REASON)
        world.scheduler.reserve([kept], name=RESERVATION, until=_later(world))
        ends_at = _later(world)

        world.scheduler.book(
            [drained, kept], name=BOOKING, begins_at=world.now() + timedelta(minutes=5), ends_at=ends_at
        )

        assert _reserved(world) == {kept: RESERVATION}

    def test_booking_that_is_given_back_keeps_no_job_waiting(self, world: SchedulerWorld) -> None:
        begins_at = world.now() + timedelta(minutes=5)
        world.scheduler.book(world.node_names, name=BOOKING, begins_at=begins_at, ends_at=_later(world))
        job = world.submit(name="long", node_count=1, workload=Workload.TRAINING, time_limit=timedelta(minutes=9))

        world.scheduler.unreserve(BOOKING)

        _await_running(world, job)

    def test_booking_again_under_its_name_replaces_nodes_and_times(self, world: SchedulerWorld) -> None:
        first, second, *_ = world.node_names
        ends_at = _later(world)
        world.scheduler.book([first], name=BOOKING, begins_at=world.now() + timedelta(minutes=5), ends_at=ends_at)

        world.scheduler.book([second], name=BOOKING, begins_at=world.now(), ends_at=ends_at)

        world.wait_until(lambda: _reserved(world) == {second: BOOKING}, SOON_SECONDS)

    def test_booking_in_force_can_be_changed_and_put_off(self, world: SchedulerWorld) -> None:
        first, second, *_ = world.node_names
        world.scheduler.book([first], name=BOOKING, begins_at=world.now(), ends_at=_later(world))
        world.wait_until(lambda: _reserved(world) == {first: BOOKING}, SOON_SECONDS)

        world.scheduler.book([second], name=BOOKING, begins_at=world.now(), ends_at=_later(world))
        changed = _reserved(world)
        begins_at = world.now() + timedelta(minutes=5)
        world.scheduler.book([second], name=BOOKING, begins_at=begins_at, ends_at=_later(world))

        assert changed == {second: BOOKING}
        assert _reserved(world) == {}

    def test_booking_the_same_twice_changes_nothing(self, world: SchedulerWorld) -> None:
        begins_at, ends_at = world.now(), _later(world)
        for _ in range(2):
            world.scheduler.book([world.node_names[0]], name=BOOKING, begins_at=begins_at, ends_at=ends_at)

        world.wait_until(lambda: _reserved(world) == {world.node_names[0]: BOOKING}, SOON_SECONDS)

    def test_booking_that_makes_no_sense_raises(self, world: SchedulerWorld) -> None:
        now, later = world.now(), _later(world)
        for nodes, name, begins_at, ends_at in (
            ([], BOOKING, now, later),
            ([world.node_names[0]], "a b", now, later),
            ([world.node_names[0]], BOOKING, later, later),
            ([world.node_names[0]], BOOKING, now - timedelta(hours=1), now),
        ):
            with pytest.raises(ValueError):
                world.scheduler.book(nodes, name=name, begins_at=begins_at, ends_at=ends_at)

        assert _reserved(world) == {}

    def test_unknown_node_is_not_booked_nor_any_other_of_the_batch(self, world: SchedulerWorld) -> None:
        nodes = [world.node_names[0], UNKNOWN_NODE]

        with pytest.raises(SourceRefused):
            world.scheduler.book(nodes, name=BOOKING, begins_at=world.now(), ends_at=_later(world))

        assert _reserved(world) == {}

    # -- last choice --

    def test_node_put_last_is_read_back_and_no_other_is(self, world: SchedulerWorld) -> None:
        node, *_ = world.node_names

        world.scheduler.put_last(node)

        assert {status.node for status in world.scheduler.read_nodes() if status.is_last_choice} == {node}
        assert not _nodes(world)[node].is_drained

    def test_node_put_last_twice_is_back_after_once(self, world: SchedulerWorld) -> None:
        node, *_ = world.node_names
        world.scheduler.put_last(node)
        world.scheduler.put_last(node)

        world.scheduler.put_back(node)

        assert not any(status.is_last_choice for status in world.scheduler.read_nodes())

    def test_putting_back_a_node_that_is_not_last_changes_nothing(self, world: SchedulerWorld) -> None:
        before = _nodes(world)

        world.scheduler.put_back(world.node_names[0])

        assert _nodes(world) == before

    def test_drained_node_can_be_put_last_and_stays_drained(self, world: SchedulerWorld) -> None:
        node, *_ = world.node_names
        world.scheduler.drain([node], reason=REASON)

        world.scheduler.put_last(node)

        status = _nodes(world)[node]
        assert (status.is_drained, status.reason, status.is_last_choice) == (True, REASON, True)

    def test_node_put_last_stays_last_when_it_is_resumed(self, world: SchedulerWorld) -> None:
        node, *_ = world.node_names
        world.scheduler.drain([node], reason=REASON)
        world.scheduler.put_last(node)

        world.scheduler.resume(node)

        world.wait_until(lambda: _nodes(world)[node].state is NodeState.IDLE, SOON_SECONDS)
        assert _nodes(world)[node].is_last_choice

    def test_node_put_last_is_chosen_only_where_no_other_fits(self, world: SchedulerWorld) -> None:
        last, *others = world.node_names
        world.scheduler.put_last(last)

        first = _await_running(world, world.submit(name="1", node_count=len(others), workload=Workload.TRAINING))
        second = _await_running(world, world.submit(name="2", node_count=1, workload=Workload.TRAINING))

        assert first.nodes == set(others)
        assert second.nodes == {last}

    @pytest.mark.parametrize(
        "command",
        [
            pytest.param(lambda scheduler: scheduler.put_last(UNKNOWN_NODE), id="put last"),
            pytest.param(lambda scheduler: scheduler.put_back(UNKNOWN_NODE), id="put back"),
        ],
    )
    def test_unknown_node_is_neither_last_nor_back(
        self, world: SchedulerWorld, command: Callable[[Scheduler], None]
    ) -> None:
        with pytest.raises(SourceRefused):
            command(world.scheduler)

    # -- down --

    def test_node_declared_down_is_read_back_and_can_be_resumed(self, world: SchedulerWorld) -> None:
        node = world.node_names[0]

        world.scheduler.declare_down(node, reason=REASON)

        status = _nodes(world)[node]
        assert (status.state, status.reason) == (NodeState.DOWN, REASON)
        world.scheduler.resume(node)
        world.wait_until(lambda: _nodes(world)[node].state is NodeState.IDLE, SOON_SECONDS)
        assert not _nodes(world)[node].is_drained

    def test_declaring_down_without_a_reason_raises(self, world: SchedulerWorld) -> None:
        with pytest.raises(ValueError):
            world.scheduler.declare_down(world.node_names[0], reason="")

        assert _nodes(world)[world.node_names[0]].state is NodeState.IDLE


def _later(world: SchedulerWorld) -> datetime:
    return world.now() + timedelta(minutes=10)


def _reserved(world: SchedulerWorld) -> dict[NodeName, str]:
    return {node.node: node.reserved_as for node in world.scheduler.read_nodes() if node.reserved_as is not None}


def _nodes(world: SchedulerWorld) -> dict[NodeName, NodeStatus]:
    return {node.node: node for node in world.scheduler.read_nodes()}


def _job(world: SchedulerWorld, job: JobId) -> JobStatus:
    return next(status for status in world.scheduler.read_jobs() if status.job == job)


def _await_running(world: SchedulerWorld, job: JobId) -> JobStatus:
    world.wait_until(lambda: _job(world, job).state is JobState.RUNNING, SOON_SECONDS)
    return _job(world, job)


def _await_stopped(world: SchedulerWorld, job: JobId) -> JobStatus:
    world.wait_until(lambda: _job(world, job).state not in HAS_PROCESSES, SOON_SECONDS)
    return _job(world, job)
