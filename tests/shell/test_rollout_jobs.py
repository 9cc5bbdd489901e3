"""Passes are requested once for what is due, by one process alone; jobs give the orders of people, in their name."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.acting_jobs import advance_rollouts, rollout_schedule, start_rollout, steer_rollout
from ops_pipelines.core.rollout import NodeStage, RolloutState
from ops_pipelines.definitions import defs as load_definitions
from ops_pipelines.remediate.judgement import TTL
from ops_pipelines.run_lanes import ROLLOUT_TAGS
from ops_pipelines.run_share import LEASE_TAG
from ops_pipelines.sensors.due_runs import rollout_sensor
from tests.scenarios.rollout_stage import FIRST, KERNEL, PERSON, RolloutStage
from tests.shell.launched import launch


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def stage(tmp_path: Path) -> RolloutStage:
    stage = RolloutStage(tmp_path, node_count=2)
    stage.files.releases["autumn"] = KERNEL
    return stage


def turn(stage: RolloutStage, instance: dg.DagsterInstance, *, cursor: str | None = None) -> dg.SensorResult:
    context = dg.build_sensor_context(
        instance=instance, cursor=cursor, resources={"cluster": stage.cluster}, sensor_name=rollout_sensor.name
    )
    result = rollout_sensor(context)
    assert isinstance(result, dg.SensorResult)
    return result


def requests(result: dg.SensorResult) -> list[dg.RunRequest]:
    return list(result.run_requests or [])


def reason(result: dg.SensorResult) -> str:
    assert result.skip_reason is not None
    return result.skip_reason.skip_message or ""


def run(stage: RolloutStage, job: dg.JobDefinition, op: str, **config: str) -> dg.ExecuteInProcessResult:
    with dg.DagsterInstance.ephemeral() as instance:
        return launch(
            job,
            instance,
            login=PERSON,
            resources={"cluster": stage.cluster},
            run_config={"ops": {op: {"config": config}}},
        )


def start(stage: RolloutStage, **config: str) -> bool:
    return run(stage, start_rollout, "start_one_rollout", **{"release": "autumn", **config}).success


def steer(stage: RolloutStage, order: str, **config: str) -> bool:
    given = {"rollout": "ROLL-0001", "order": order, "reason": "a visit", **config}
    return run(stage, steer_rollout, "steer_one_rollout", **given).success


# -- the sensor --


def test_without_a_rollout_no_pass_is_requested_and_a_beat_is_left(
    stage: RolloutStage, instance: dg.DagsterInstance
) -> None:
    result = turn(stage, instance)

    assert (requests(result), reason(result)) == ([], "no rollout is due")
    (beat,) = [each for each in stage.cluster.ledger.heartbeats() if each.name == "rollout_sensor"]
    assert beat.note == "no rollout is due"


def test_what_is_due_is_requested_once_with_its_lane_its_lease_and_why(
    stage: RolloutStage, instance: dg.DagsterInstance
) -> None:
    stage.start()

    first = turn(stage, instance)
    second = turn(stage, instance, cursor=first.cursor)

    (request,) = requests(first)
    assert request.job_name == "advance_rollouts"
    assert request.run_key == first.cursor
    assert ROLLOUT_TAGS.items() <= request.tags.items()
    assert request.tags[LEASE_TAG] == stage.cluster.ledger.current_lease(stage.clock.now())
    assert request.tags["reason"] == f"ROLL-0001: started by {PERSON}"
    assert (requests(second), reason(second), second.cursor) == ([], "no rollout is due", first.cursor)


def test_a_node_in_hand_is_asked_for_again_at_the_next_read(stage: RolloutStage, instance: dg.DagsterInstance) -> None:
    stage.start()
    stage.run_until_stage("gpu001", NodeStage.INSTALLING, NodeStage.ACTIVATING)
    stage.let_pass(TTL.total_seconds())  # The lease of anyone who made the passes so far runs out.

    first = turn(stage, instance)
    stage.let_pass(1)
    second = turn(stage, instance, cursor=first.cursor)

    assert len(requests(first)) == len(requests(second)) == 1
    assert first.cursor != second.cursor


@pytest.mark.parametrize(
    "status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]
)
def test_no_pass_is_requested_while_one_is_under_way_and_nothing_is_forgotten(
    stage: RolloutStage, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> None:
    stage.start()
    instance.add_run(dg.DagsterRun(job_name=advance_rollouts.name, status=status, tags=ROLLOUT_TAGS))

    result = turn(stage, instance, cursor="what was asked for before")

    assert requests(result) == []
    assert reason(result).endswith("; a pass is under way already")
    assert result.cursor == "what was asked for before"


def test_a_pass_that_somebody_launched_and_that_died_with_its_code_server_holds_no_lane(
    stage: RolloutStage, instance: dg.DagsterInstance
) -> None:
    stage.start()
    token = stage.cluster.ledger.take_lease(holder="a server that died", ttl=TTL, now=stage.clock.now())
    resources = {"cluster": stage.cluster}
    by_hand = advance_rollouts.execute_in_process(resources=resources, instance=instance)
    given = instance.get_run_by_id(by_hand.run_id).tags[LEASE_TAG]  # type: ignore[union-attr]  # it has just run
    died = dg.DagsterRun(status=dg.DagsterRunStatus.STARTED, tags={**ROLLOUT_TAGS, LEASE_TAG: given}, job_name="any")
    instance.add_run(died)
    stage.let_pass(TTL.total_seconds())

    result = turn(stage, instance)

    assert given == token
    assert len(requests(result)) == 1
    assert [each.status for each in instance.get_runs() if each.run_id == died.run_id] == [dg.DagsterRunStatus.FAILURE]


def test_a_pass_keeps_the_lease_that_it_was_given(stage: RolloutStage, instance: dg.DagsterInstance) -> None:
    stage.start()
    stage.cluster.ledger.take_lease(holder="a server", ttl=TTL, now=stage.clock.now())
    tags = {**ROLLOUT_TAGS, LEASE_TAG: "of yesterday"}

    result = advance_rollouts.execute_in_process(resources={"cluster": stage.cluster}, instance=instance, tags=tags)

    assert set(stage.stages().values()) == {"pending"}
    assert instance.get_run_by_id(result.run_id).tags[LEASE_TAG] == "of yesterday"  # type: ignore[union-attr]  # it ran


def test_whoever_launches_a_pass_by_hand_waits_in_the_lane_of_the_others() -> None:
    assert ROLLOUT_TAGS.items() <= advance_rollouts.tags.items()


def test_nobody_can_materialise_a_pass_and_no_job_that_makes_one_can_be_back_filled() -> None:
    graph = load_definitions().resolve_asset_graph()

    assert dg.AssetKey("rollout_pass") not in graph.executable_asset_keys
    assert advance_rollouts.partitions_def is None


def test_a_repair_under_way_holds_no_pass_up(stage: RolloutStage, instance: dg.DagsterInstance) -> None:
    stage.start()
    repair = dg.DagsterRun(job_name="remediate", status=dg.DagsterRunStatus.STARTED, tags={"lane": "act"})
    instance.add_run(repair)

    assert len(requests(turn(stage, instance))) == 1


def test_without_the_lease_no_pass_is_requested(stage: RolloutStage, instance: dg.DagsterInstance) -> None:
    stage.start()
    stage.cluster.ledger.take_lease(holder="another server", ttl=timedelta(hours=1), now=stage.clock.now())

    result = turn(stage, instance)

    assert requests(result) == []
    assert reason(result) == "another process holds the lease; it acts, this one watches"
    assert result.cursor is None


def test_the_sensor_itself_moves_nothing(stage: RolloutStage, instance: dg.DagsterInstance) -> None:
    stage.start()

    turn(stage, instance)

    assert set(stage.stages().values()) == {"pending"}
    assert stage.commands() == []


# -- the schedule --


def test_passes_are_scheduled_as_long_as_a_rollout_is_not_over(stage: RolloutStage) -> None:
    at = datetime(2026, 11, 21, 7, 35, tzinfo=UTC)
    context = dg.build_schedule_context(scheduled_execution_time=at, resources={"cluster": stage.cluster})

    before = rollout_schedule(context)
    stage.start()
    during = rollout_schedule(context)

    assert isinstance(before, dg.SkipReason)
    assert isinstance(during, dg.RunRequest)
    assert during.run_key == "2026-11-21T07:35"
    assert rollout_schedule.cron_schedule == "*/5 * * * *"


# -- the jobs of people --


def test_a_release_is_started_by_its_name_and_its_plan(stage: RolloutStage) -> None:
    assert not start(stage, plan="PLAN-other")
    assert stage.cluster.ledger.rollout_count() == 0

    assert start(stage)

    assert (stage.rollout().state, stage.rollout().created_by) == (RolloutState.RUNNING, PERSON)


def test_a_release_that_is_not_there_fails_the_run(stage: RolloutStage) -> None:
    assert not start(stage, release="spring")
    assert stage.cluster.ledger.rollout_count() == 0


def test_each_order_is_given_in_the_name_of_who_gave_it(stage: RolloutStage) -> None:
    stage.start()

    states = []
    for order in ("pause", "resume", "abort", "back"):
        assert steer(stage, order)
        states.append(stage.rollout().state.value)

    assert states == ["paused", "running", "ending", "going_back"]
    assert stage.rollout().reason == f"{PERSON}: a visit"


def test_an_order_that_is_refused_fails_the_run_and_changes_nothing(stage: RolloutStage) -> None:
    stage.start()
    before = stage.rollout()

    assert not steer(stage, "approve")
    assert not steer(stage, "resume")
    assert not steer(stage, "pause", rollout="ROLL-0009")
    assert stage.rollout() == before


def test_one_node_is_left_out_and_none_without_a_name(stage: RolloutStage) -> None:
    stage.start()

    assert not steer(stage, "skip")
    assert not steer(stage, "skip", node="$(reboot)")
    assert steer(stage, "skip", node="gpu002")

    assert stage.stages() == {"gpu001": "pending", "gpu002": "skipped"}


@pytest.mark.parametrize(
    "config",
    [{"rollout": "roll-1"}, {"rollout": "ROLL-0001; x"}, {"order": "explode"}, {"reason": ""}, {"actor": "a"}],
)
def test_an_order_that_makes_no_sense_is_not_even_begun(stage: RolloutStage, config: dict[str, str]) -> None:
    stage.start()

    with pytest.raises((dg.DagsterInvalidConfigError, ValueError)):
        steer_rollout.execute_in_process(
            resources={"cluster": stage.cluster},
            run_config={
                "ops": {
                    "steer_one_rollout": {
                        "config": {
                            "rollout": FIRST, "order": "pause", "reason": "why", **config,
                        }
                    }
                }
            },
        )  # fmt: skip
    assert stage.rollout().state is RolloutState.RUNNING
