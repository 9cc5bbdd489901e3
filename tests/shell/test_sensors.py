"""The sensors: a drain in the tick that notices, one request for what is due, a reason for every skip."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import dagster as dg
import pytest

from ops_pipelines.assets.loop import EVIDENCE_TAG
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import NodeStatus
from ops_pipelines.core.scheduler import Scheduler, SchedulerLimits
from ops_pipelines.core.sources import LogBatch, Sample, SourceUnavailable
from ops_pipelines.definitions import defs as load_definitions
from ops_pipelines.remediate.judgement import TTL
from ops_pipelines.remediate.oversight import read_vital_signs
from ops_pipelines.run_share import LEASE_TAG
from ops_pipelines.sensors.due_runs import drained_node_sensor, remediation_sensor
from ops_pipelines.sensors.fault import BETWEEN_TICKS, fault_sensor
from ops_pipelines.sensors.runs import POLL_FOR, hold_epoch, one_at_a_time
from ops_pipelines.sensors.this_process import this_process
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.shell.definitions_on import definitions_on
from tests.shell.job_origin import origin_of


class CountedTelemetry:
    """A metrics source that counts how often it is asked."""

    def __init__(self, autopilot: SmallAutopilot, *, takes_seconds: float = 0.0) -> None:
        self._autopilot, self._takes_seconds = autopilot, takes_seconds
        self._telemetry = autopilot.cluster.telemetry
        self.asked_count = 0

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        self.asked_count += 1
        self._autopilot.clock.wait(self._takes_seconds)
        return self._telemetry.read_samples(at)


class Silent:
    """Every source at once, and none of them answers."""

    source = "kernel_log"

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        raise SourceUnavailable("the log server did not answer")

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        raise SourceUnavailable("prometheus did not answer")

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        raise SourceUnavailable("slurmctld did not answer")

    def read_limits(self) -> SchedulerLimits:
        raise SourceUnavailable("slurmctld did not answer")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:  # of one process: a tenth of the time
        yield instance


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, node_count=3, has_start_guard=True)
    autopilot.cluster = replace(autopilot.cluster, clock=autopilot.clock)  # a turn's own length is measured below
    autopilot.let_pass(5)
    return autopilot


def turn(
    sensor: dg.SensorDefinition,
    autopilot: SmallAutopilot,
    instance: dg.DagsterInstance,
    *,
    cursor: str | None = None,
    ticked_before: bool = False,
) -> dg.SensorResult:
    context = dg.SensorEvaluationContext(
        instance_ref=None,
        instance=instance,
        cursor=cursor,
        resources={"cluster": dg.ResourceDefinition.hardcoded_resource(autopilot.cluster)},
        sensor_name=sensor.name,
        last_tick_completion_time=time.time() if ticked_before else None,
    )
    result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    return result


def looking_on() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == BETWEEN_TICKS]


def await_looks_between_ticks() -> None:
    """Wait until nobody looks on: where no tick follows, for three seconds."""
    for each in looking_on():
        each.join(30)


def requests(result: dg.SensorResult) -> list[dg.RunRequest]:
    return list(result.run_requests or [])


def reason(result: dg.SensorResult) -> str:
    assert result.skip_reason is not None
    return result.skip_reason.skip_message or ""


def begin_run(
    instance: dg.DagsterInstance,
    status: dg.DagsterRunStatus,
    *,
    lease_token: str | None = None,
    job_name: str = "remediate",
) -> None:
    tags = dict(load_definitions().resolve_job_def(job_name).tags)
    if lease_token is not None:
        tags[LEASE_TAG] = lease_token
    instance.add_run(dg.DagsterRun(job_name=job_name, status=status, tags=tags, remote_job_origin=origin_of(job_name)))


def break_node(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)


def notice(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> dg.SensorResult:
    """Let the fault sensor take in what there is."""
    return turn(fault_sensor, autopilot, instance)


def test_new_evidence_requests_one_run_that_carries_lane_lease_and_what_it_tells_of(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    break_node(autopilot)
    notice(autopilot, instance)

    result = turn(remediation_sensor, autopilot, instance)

    (request,) = requests(result)
    assert request.job_name == "remediate"
    assert request.run_key is not None
    assert request.run_key.startswith("observe:0-5:")  # Xid 48, 63, 154; two conditions in the metrics
    assert request.tags["lane"] == "act"
    assert request.tags[LEASE_TAG] == autopilot.cluster.ledger.current_lease(autopilot.clock.now())
    assert request.tags[EVIDENCE_TAG] == "0"
    assert "5 new observations" in request.tags["reason"]
    assert result.cursor == f"5 {request.run_key}"


def test_broken_node_is_drained_in_the_tick_that_notices_it_and_nothing_stronger_is_done(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    break_node(autopilot)

    result = notice(autopilot, instance)

    assert autopilot.commands() == [EntryKind.DRAIN]
    assert autopilot.node("gpu001").is_drained
    assert autopilot.incident().state is IncidentState.ACTING
    assert "drained gpu001" in reason(result)
    assert autopilot.messages.messages == []


def test_fault_between_two_ticks_waits_for_neither(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> None:
    turn(fault_sensor, autopilot, instance, ticked_before=True)

    break_node(autopilot)

    await_looks_between_ticks()
    assert autopilot.node("gpu001").is_drained
    assert "drained gpu001" in reason(turn(fault_sensor, autopilot, instance))
    assert autopilot.commands() == [EntryKind.DRAIN]


def test_nobody_looks_on_once_the_next_tick_is_there(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> None:
    turn(fault_sensor, autopilot, instance, ticked_before=True)
    turn(fault_sensor, autopilot, instance)

    assert looking_on() == []


def test_nobody_looks_on_without_the_lease(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> None:
    turn(fault_sensor, autopilot, instance, ticked_before=True)
    autopilot.let_pass(TTL.total_seconds())
    autopilot.cluster.ledger.take_lease(holder="another", ttl=TTL, now=autopilot.clock.now())

    break_node(autopilot)

    await_looks_between_ticks()
    assert not autopilot.node("gpu001").is_drained


def test_who_asks_for_one_tick_gets_one(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> None:
    turn(fault_sensor, autopilot, instance)

    assert looking_on() == []


def test_look_between_ticks_that_fails_is_told_by_the_next_tick(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(*_args: object, **_named: object) -> None:
        failed.set()
        raise LedgerError("the disk is full")

    turn(fault_sensor, autopilot, instance, ticked_before=True)
    with monkeypatch.context() as patch:
        patch.setattr("ops_pipelines.sensors.fault.take_in_logs", fail)
        assert failed.wait(20)
        await_looks_between_ticks()

    assert "a look between ticks failed: the disk is full" in reason(turn(fault_sensor, autopilot, instance))


def test_run_goes_on_where_the_reflex_stopped_and_tells_of_what_it_saw(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    break_node(autopilot)
    notice(autopilot, instance)
    (request,) = requests(turn(remediation_sensor, autopilot, instance))
    definitions = definitions_on(autopilot.cluster)

    result = definitions.resolve_job_def("remediate").execute_in_process(instance=instance, tags=request.tags)

    assert result.success
    assert autopilot.commands().count(EntryKind.DRAIN) == 1
    assert EntryKind.RESET_GPU in autopilot.commands()
    (seen,) = result.asset_materializations_for_node("validated_observations")
    assert seen.metadata["new_observation_count"].value == 5
    (found,) = result.asset_materializations_for_node("health_findings")
    assert found.metadata["finding_count"].value == 5


def test_tick_leaves_a_heartbeat_that_names_what_it_did_and_who_answered(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    break_node(autopilot)

    notice(autopilot, instance)

    (beat,) = autopilot.cluster.ledger.heartbeats()
    assert beat.name == "fault_sensor"
    assert "drained gpu001" in beat.note
    assert beat.failing_sources == ()
    assert set(beat.answers) == {"kernel_log", "scheduler", "telemetry"}


@pytest.mark.parametrize("sensor", [remediation_sensor, drained_node_sensor])
def test_every_sensor_leaves_its_own_heartbeat(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance, sensor: dg.SensorDefinition
) -> None:
    autopilot.cluster.ledger.take_lease(holder=this_process(), ttl=TTL, now=autopilot.clock.now())

    result = turn(sensor, autopilot, instance)

    (beat,) = autopilot.cluster.ledger.heartbeats()
    assert (beat.name, beat.note) == (sensor.name, reason(result))


def test_evidence_that_a_run_was_requested_for_is_not_asked_for_again(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    break_node(autopilot)
    notice(autopilot, instance)
    first = turn(remediation_sensor, autopilot, instance)

    second = turn(remediation_sensor, autopilot, instance, cursor=first.cursor)

    assert len(requests(first)) == 1
    assert requests(second) == []


@pytest.mark.parametrize(
    ("sensor", "words"), [(fault_sensor, "nothing new"), (remediation_sensor, "nothing new and nothing due")]
)
def test_nothing_new_is_a_skip_with_its_reason_after_one_window(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance, sensor: dg.SensorDefinition, words: str
) -> None:
    began_at = autopilot.clock.now()

    result = turn(sensor, autopilot, instance)

    assert requests(result) == []
    assert reason(result) == words
    assert timedelta(seconds=3.5) <= autopilot.clock.now() - began_at <= POLL_FOR


@pytest.mark.parametrize(
    "status",
    [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED],
)
def test_run_under_way_is_not_doubled_and_what_is_new_stays_due(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> None:
    begin_run(instance, status)
    break_node(autopilot)
    notice(autopilot, instance)

    result = turn(remediation_sensor, autopilot, instance)

    assert requests(result) == []
    assert "a run is under way already" in reason(result)
    assert result.cursor is None


def test_run_that_died_with_its_code_server_is_closed_and_the_next_one_requested(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    """Dagster never hears of such a death: the code server that watched the run is dead as well."""
    dead = autopilot.cluster.ledger.take_lease(holder="killed", ttl=TTL, now=autopilot.clock.now())
    assert dead is not None
    begin_run(instance, dg.DagsterRunStatus.STARTED, lease_token=dead)
    autopilot.let_pass(TTL.total_seconds())
    break_node(autopilot)
    notice(autopilot, instance)

    result = turn(remediation_sensor, autopilot, instance)

    assert len(requests(result)) == 1
    assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.FAILURE]


@pytest.mark.parametrize(
    ("status", "ends_as"),
    [
        (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.CANCELED),
        (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.CANCELED),
        (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.FAILURE),
    ],
)
def test_run_that_was_asked_for_under_a_lost_lease_holds_no_lane_before_it_has_begun(
    autopilot: SmallAutopilot,
    instance: dg.DagsterInstance,
    status: dg.DagsterRunStatus,
    ends_as: dg.DagsterRunStatus,
) -> None:
    """Whatever it tried would be refused, and who needs the lane would wait for that."""
    lost = autopilot.cluster.ledger.take_lease(holder="replaced", ttl=TTL, now=autopilot.clock.now())
    begin_run(instance, status, lease_token=lost)
    autopilot.let_pass(TTL.total_seconds())
    break_node(autopilot)
    notice(autopilot, instance)

    result = turn(remediation_sensor, autopilot, instance)

    assert len(requests(result)) == 1
    assert [run.status for run in instance.get_runs()] == [ends_as]


def test_verification_under_way_holds_up_no_run_that_fences_and_moves(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    begin_run(instance, dg.DagsterRunStatus.STARTED, job_name="verify_nodes")
    break_node(autopilot)
    notice(autopilot, instance)

    (request,) = requests(turn(remediation_sensor, autopilot, instance))

    assert request.tags["lane"] != load_definitions().resolve_job_def("verify_nodes").tags["lane"]


def test_plan_that_a_lost_lease_left_half_way_is_gone_on_with_by_the_first_tick_of_the_next_holder(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_node(autopilot)
    notice(autopilot, instance)
    first = turn(remediation_sensor, autopilot, instance)  # The drain is done; the run that continues dies.
    assert autopilot.incident().state is IncidentState.ACTING
    waited = turn(remediation_sensor, autopilot, instance, cursor=first.cursor)

    monkeypatch.setattr("ops_pipelines.sensors.runs.this_process", lambda: "the next code server")
    monkeypatch.setattr("ops_pipelines.sensors.runs.is_gone", lambda _holder: True)
    began_at = autopilot.clock.now()
    taken_over = turn(remediation_sensor, autopilot, instance, cursor=first.cursor)
    once_more = turn(remediation_sensor, autopilot, instance, cursor=taken_over.cursor)

    assert requests(waited) == []
    (request,) = requests(taken_over)
    assert request.tags["reason"] == "the lease is new here: INC-0001 may be half-way"
    assert autopilot.clock.now() - began_at < timedelta(seconds=5)
    assert requests(once_more) == []


def test_what_was_asked_for_under_a_lost_lease_has_another_key_under_the_next(
    repaired: SmallAutopilot, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster starts a key once: the same key again would be passed over without a word."""
    repaired.let_pass(60)
    (first,) = requests(turn(drained_node_sensor, repaired, instance))
    monkeypatch.setattr("ops_pipelines.sensors.runs.this_process", lambda: "the next code server")
    monkeypatch.setattr("ops_pipelines.sensors.runs.is_gone", lambda _holder: True)

    (second,) = requests(turn(drained_node_sensor, repaired, instance))

    assert first.run_key != second.run_key
    assert first.tags["reason"] == second.tags["reason"]


def test_run_under_the_lease_of_this_process_is_let_be(autopilot: SmallAutopilot, instance: dg.DagsterInstance) -> None:
    break_node(autopilot)
    notice(autopilot, instance)
    ours = autopilot.cluster.ledger.current_lease(autopilot.clock.now())
    assert ours is not None
    begin_run(instance, dg.DagsterRunStatus.STARTED, lease_token=ours)

    result = turn(remediation_sensor, autopilot, instance)

    assert requests(result) == []
    assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.STARTED]


def test_run_is_not_closed_by_a_process_without_the_lease(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    break_node(autopilot)
    autopilot.observe_and_decide()
    theirs = autopilot.cluster.ledger.take_lease(holder="another", ttl=TTL, now=autopilot.clock.now())
    assert theirs is not None
    begin_run(instance, dg.DagsterRunStatus.STARTED, lease_token=theirs)

    turn(remediation_sensor, autopilot, instance, cursor="3")

    assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.STARTED]


@pytest.mark.parametrize(
    "status", [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
)
def test_run_that_is_over_is_no_obstacle(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> None:
    begin_run(instance, status)
    break_node(autopilot)
    notice(autopilot, instance)

    assert len(requests(turn(remediation_sensor, autopilot, instance))) == 1


def test_sensors_without_the_lease_take_nothing_in_do_nothing_and_request_nothing(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    break_node(autopilot)
    autopilot.observe_and_decide()
    autopilot.cluster.ledger.take_lease(holder="another", ttl=TTL, now=autopilot.clock.now())
    head = autopilot.cluster.ledger.read_state(autopilot.clock.now()).head_seq

    noticed = turn(fault_sensor, autopilot, instance, cursor="2026-11-21T07:00:00+00:00")
    requested = turn(remediation_sensor, autopilot, instance, cursor="3")

    for result in (noticed, requested):
        assert requests(result) == []
        assert "another process holds the lease" in reason(result)
    assert noticed.cursor == "2026-11-21T07:00:00+00:00"
    assert requested.cursor == "3"
    signs = read_vital_signs(autopilot.cluster)
    assert [each.holder for each in signs.bystanders] == [this_process()]
    assert signs.heartbeats == ()
    assert autopilot.commands() == []
    assert autopilot.cluster.ledger.read_state(autopilot.clock.now()).head_seq == head


@pytest.mark.parametrize(("after_seconds", "is_renewed"), [(0.0, False), (0.9, False), (1.0, True), (1.1, True)])
def test_lease_is_renewed_once_a_second_however_often_it_is_asked_for(
    autopilot: SmallAutopilot, after_seconds: float, is_renewed: bool
) -> None:
    cluster, clock = autopilot.cluster, autopilot.clock
    first = hold_epoch(cluster)
    clock.wait(after_seconds)

    again = hold_epoch(cluster)

    assert first is not None
    assert again is not None
    assert again.token == first.token
    assert again.expires_at - first.expires_at == timedelta(seconds=after_seconds if is_renewed else 0.0)


def test_lease_of_another_process_or_none_is_not_taken_for_ours(autopilot: SmallAutopilot) -> None:
    cluster, clock = autopilot.cluster, autopilot.clock
    cluster.ledger.take_lease(holder="another", ttl=TTL, now=clock.now())

    refused = hold_epoch(cluster)
    clock.wait(TTL.total_seconds())
    taken = hold_epoch(cluster)

    assert refused is None
    assert taken is not None
    assert taken.holder == this_process()


def test_metrics_are_read_only_every_look_every_over_all_turns(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    telemetry = CountedTelemetry(autopilot)
    autopilot.cluster = replace(autopilot.cluster, telemetry=telemetry)
    began_at, cursor = autopilot.clock.now(), None
    while autopilot.clock.now() - began_at < 4 * POLICY.durations.look_every - timedelta(seconds=5):
        cursor = turn(fault_sensor, autopilot, instance, cursor=cursor).cursor
        autopilot.let_pass(0.8)

    assert telemetry.asked_count == 4


def test_tick_whose_every_look_lasts_until_the_next_is_due_ends_all_the_same(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    class EnoughError(Exception):
        pass

    class Slow(CountedTelemetry):
        def read_samples(self, at: datetime) -> tuple[Sample, ...]:
            if self.asked_count == 3:
                raise EnoughError
            return super().read_samples(at)

    telemetry = Slow(autopilot, takes_seconds=POLICY.durations.look_every.total_seconds())
    autopilot.cluster = replace(autopilot.cluster, telemetry=telemetry)

    cursor = turn(fault_sensor, autopilot, instance).cursor
    turn(fault_sensor, autopilot, instance, cursor=cursor)

    assert telemetry.asked_count == 2


def test_tick_is_left_out_while_the_one_before_still_works(instance: dg.DagsterInstance) -> None:
    """The daemon gives a tick up after a minute, and its thread works on: ticks side by side are later still."""
    has_begun, may_end = threading.Event(), threading.Event()

    @one_at_a_time
    def look(number: int) -> int:
        if number == 1:
            has_begun.set()
            assert may_end.wait(60)
        return number

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(look, 1)
        assert has_begun.wait(60)
        second = look(2)
        may_end.set()

        assert isinstance(second, dg.SkipReason)
        assert "still works" in (second.skip_message or "")
        assert first.result() == 1
    assert look(3) == 3


def test_tick_that_failed_keeps_no_later_one_out() -> None:
    @one_at_a_time
    def fail() -> None:
        raise ValueError("a source of nonsense")

    for _ in range(2):
        with pytest.raises(ValueError, match="nonsense"):
            fail()


def test_every_sensor_has_one_tick_at_a_time() -> None:
    sensors = [each for each in load_definitions().sensors or () if isinstance(each, dg.SensorDefinition)]

    assert len(sensors) == 8
    assert all(hasattr(each._raw_fn, "__wrapped__") for each in sensors)


def test_silent_sources_do_not_break_the_turn_and_lose_nothing(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    working = autopilot.cluster
    silent = Silent()
    autopilot.cluster = replace(working, scheduler=cast("Scheduler", silent), telemetry=silent, logs=(silent,))
    break_node(autopilot)
    notice(autopilot, instance)
    in_the_dark = turn(remediation_sensor, autopilot, instance)
    beat = next(each for each in working.ledger.heartbeats() if each.name == "fault_sensor")
    autopilot.cluster = working

    notice(autopilot, instance)
    after = turn(remediation_sensor, autopilot, instance, cursor=in_the_dark.cursor)

    assert requests(in_the_dark) == []
    assert beat.failing_sources == ("kernel_log", "scheduler", "telemetry")
    assert len(requests(after)) == 1
    assert autopilot.node("gpu001").is_drained


def test_evidence_that_the_reflex_could_not_decide_on_is_requested_all_the_same(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    working = autopilot.cluster
    break_node(autopilot)
    autopilot.cluster = replace(working, scheduler=cast("Scheduler", Silent()))

    result = notice(autopilot, instance)
    autopilot.cluster = working

    assert reason(result) == "nothing new"
    assert autopilot.incidents() == ()
    assert len(requests(turn(remediation_sensor, autopilot, instance))) == 1


def test_request_that_dagster_would_drop_as_known_does_not_end_the_window(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")
    autopilot.let_pass(3)
    autopilot.run_once()
    autopilot.let_pass(POLICY.durations.retry_after.total_seconds())
    first = turn(remediation_sensor, autopilot, instance)
    asked_again = turn(remediation_sensor, autopilot, instance, cursor=first.cursor)
    began_at = autopilot.clock.now()

    third = turn(remediation_sensor, autopilot, instance, cursor=asked_again.cursor)

    assert len(requests(first)) == 1
    assert requests(third) == []
    assert autopilot.clock.now() - began_at > timedelta(seconds=3)


class Beatless:
    """A ledger in which no heartbeat can be written."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> object:
        return getattr(self._ledger, name)

    def beat(self, **values: object) -> None:
        raise LedgerError("the heartbeats cannot be read")


def test_heartbeat_that_cannot_be_written_does_not_cost_the_run(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    break_node(autopilot)
    autopilot.cluster = replace(autopilot.cluster, ledger=cast("Ledger", Beatless(autopilot.cluster.ledger)))

    notice(autopilot, instance)

    assert autopilot.node("gpu001").is_drained
    assert len(requests(turn(remediation_sensor, autopilot, instance))) == 1


def test_incident_that_waits_is_due_again_after_a_while(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")
    autopilot.let_pass(3)
    autopilot.run_once()  # It waits to be confirmed.
    at_once = turn(remediation_sensor, autopilot, instance)
    autopilot.let_pass(POLICY.durations.retry_after.total_seconds())

    (request,) = requests(turn(remediation_sensor, autopilot, instance, cursor=at_once.cursor))

    assert request.run_key is not None
    assert request.run_key.startswith("remediate:INC-0001:")


def test_no_drained_node_of_ours_means_nothing_to_verify(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu002",), reason="rack 1 (day-shift)")

    assert "no drained node of ours" in reason(turn(drained_node_sensor, autopilot, instance))


@pytest.fixture
def repaired(autopilot: SmallAutopilot) -> SmallAutopilot:
    autopilot.use_policy(replace(POLICY, durations=replace(POLICY.durations, soak=timedelta(seconds=60))))
    break_node(autopilot)
    autopilot.run_until(IncidentState.VERIFYING)
    return autopilot


def test_repaired_node_is_due_for_its_proof_when_it_has_soaked(
    repaired: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    soaking = turn(drained_node_sensor, repaired, instance)
    repaired.let_pass(60)

    (request,) = requests(turn(drained_node_sensor, repaired, instance))

    assert "still in repair, soaking or on probation" in reason(soaking)
    assert request.job_name == "verify_nodes"
    assert request.run_key is not None
    assert request.run_key.startswith("verify:INC-0001:")
    assert request.tags["lane"] == "verify"
    assert request.tags[LEASE_TAG] == repaired.cluster.ledger.current_lease(repaired.clock.now())


def test_proof_is_not_requested_while_a_run_is_under_way(
    repaired: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    repaired.let_pass(60)
    begin_run(instance, dg.DagsterRunStatus.STARTED, job_name="verify_nodes")

    assert "under way" in reason(turn(drained_node_sensor, repaired, instance))


def test_proof_is_not_requested_by_a_process_without_the_lease(
    repaired: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    repaired.let_pass(60)
    repaired.cluster.ledger.take_lease(holder="another", ttl=TTL, now=repaired.clock.now())

    assert "holds the lease" in reason(turn(drained_node_sensor, repaired, instance))


def test_silent_scheduler_is_a_reason_and_no_error(repaired: SmallAutopilot, instance: dg.DagsterInstance) -> None:
    repaired.cluster = replace(repaired.cluster, scheduler=cast("Scheduler", Silent()))
    repaired.let_pass(60)

    assert "the scheduler did not answer" in reason(turn(drained_node_sensor, repaired, instance))


def test_node_that_is_back_from_its_reboot_is_proven_and_returned_by_the_run_that_is_requested_for_it(
    autopilot: SmallAutopilot, instance: dg.DagsterInstance
) -> None:
    impatient = replace(POLICY.durations, run_patience=timedelta(0), soak=timedelta(seconds=3))
    autopilot.use_policy(replace(POLICY, durations=impatient))
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    for _ in range(5):
        autopilot.run_once()
        autopilot.let_pass(0.5)
    state_before = autopilot.incident().state
    autopilot.let_pass(TTL.total_seconds())
    autopilot.use_policy(replace(POLICY, durations=replace(impatient, run_patience=timedelta(seconds=12))))

    (request,) = requests(turn(drained_node_sensor, autopilot, instance))
    definitions = definitions_on(autopilot.cluster)
    job = definitions.resolve_job_def(str(request.job_name))
    result = job.execute_in_process(instance=instance, tags=request.tags)

    assert state_before is IncidentState.ACTING
    assert request.tags["reason"] == "gpu001 is back from its restart"
    assert result.success
    assert autopilot.incident().state is IncidentState.RESOLVED
