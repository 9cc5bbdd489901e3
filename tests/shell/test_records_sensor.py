"""What Dagster keeps of idle turns and of runs long over is forgotten; nothing else is."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import ManagedGrpcPythonEnvCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorType, TickData, TickStatus
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.sensors.upkeep import FLEETING_RUNS_KEPT, IDLE_TURNS_KEPT, RUNS_KEPT, records_sensor
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import FakeClock

A_MINUTE = timedelta(minutes=1)
DISK = (Path(__file__).parents[2] / "docs" / "DISK.md").read_text()


class ClockAhead(FakeClock):
    """Has stopped so much later than the wall clock, by which Dagster dates what it keeps."""

    def __init__(self, ahead: timedelta) -> None:
        self._now = datetime.now(UTC) + ahead


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        yield instance


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return SmallAutopilot(tmp_path / "cluster").cluster


def turn(cluster: Cluster, instance: dg.DagsterInstance, *, later: timedelta) -> str:
    at = replace(cluster, clock=ClockAhead(later))
    context = dg.build_sensor_context(instance=instance, resources={"cluster": at}, sensor_name=records_sensor.name)
    said = records_sensor(context)
    assert isinstance(said, dg.SkipReason)
    return said.skip_message or ""


def job_named(name: str, *, fails: bool = False) -> dg.JobDefinition:
    @dg.op
    def work() -> None:
        if fails:
            raise RuntimeError("broken on purpose")

    @dg.job(name=name)
    def some_job() -> None:
        work()

    return some_job


def run(name: str, instance: dg.DagsterInstance, *, fails: bool = False) -> str:
    return job_named(name, fails=fails).execute_in_process(instance=instance, raise_on_error=False).run_id


def tick(instance: dg.DagsterInstance, status: TickStatus) -> InstigatorState:
    target = LoadableTargetOrigin(executable_path=sys.executable, module_name="m", attribute="a")
    repository = RemoteRepositoryOrigin(ManagedGrpcPythonEnvCodeLocationOrigin(target), "r")
    origin = repository.get_instigator_origin("fault_sensor")
    state = InstigatorState(origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING)
    known = {each.selector_id for each in instance.all_instigator_state()}
    if state.selector_id not in known:
        instance.add_instigator_state(state)
    instance.create_tick(
        TickData(
            state.instigator_origin_id,
            "fault_sensor",
            InstigatorType.SENSOR,
            status,
            datetime.now(UTC).timestamp(),
            run_ids=[],
            selector_id=state.selector_id,
        )
    )
    return state


@pytest.mark.parametrize(("beyond", "left"), [(-A_MINUTE, 2), (A_MINUTE, 1)])
def test_turns_that_found_nothing_are_forgotten_and_others_stay(
    instance: dg.DagsterInstance, cluster: Cluster, beyond: timedelta, left: int
) -> None:
    tick(instance, TickStatus.SKIPPED)
    state = tick(instance, TickStatus.SUCCESS)

    turn(cluster, instance, later=IDLE_TURNS_KEPT + beyond)

    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id)
    assert [each.status for each in ticks] == [TickStatus.SUCCESS, TickStatus.SKIPPED][:left]


@pytest.mark.parametrize(
    ("name", "fails", "kept"),
    [
        ("verify_nodes", False, FLEETING_RUNS_KEPT),
        ("verify_nodes", True, RUNS_KEPT),
        ("fill_hour", False, RUNS_KEPT),
    ],
)
def test_run_is_forgotten_with_its_files_once_it_is_over_for_long(
    instance: dg.DagsterInstance, cluster: Cluster, tmp_path: Path, name: str, fails: bool, kept: timedelta
) -> None:
    run_id = run(name, instance, fails=fails)
    assert list((tmp_path / "dagster").rglob(f"{run_id}*"))

    turn(cluster, instance, later=kept - A_MINUTE)
    assert instance.get_run_by_id(run_id) is not None
    said = turn(cluster, instance, later=kept + A_MINUTE)

    assert said.startswith("forgot 1 run(s)")
    assert instance.get_run_by_id(run_id) is None
    assert list((tmp_path / "dagster").rglob(f"{run_id}*")) == []


def test_run_that_is_under_way_is_never_forgotten(instance: dg.DagsterInstance, cluster: Cluster) -> None:
    run("verify_nodes", instance)
    under_way = instance.create_run_for_job(job_named("verify_nodes"), status=dg.DagsterRunStatus.STARTED)

    said = turn(cluster, instance, later=10 * RUNS_KEPT)

    assert said.startswith("forgot 1 run(s)")
    assert instance.get_run_by_id(under_way.run_id) is not None


def test_the_page_says_how_long_each_is_kept() -> None:
    hours = IDLE_TURNS_KEPT / timedelta(hours=1)

    assert f"ticks that found nothing {hours:.0f} hours" in DISK
    assert f"if they succeeded, {FLEETING_RUNS_KEPT.days} days; all others {RUNS_KEPT.days} days" in DISK
