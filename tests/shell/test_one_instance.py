"""Ticks share one Dagster instance, on a real instance directory and as Dagster's code server evaluates them."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.instance.ref import InstanceRef
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._grpc.impl import get_external_sensor_execution

from ops_pipelines.sensors import runs

met: list[dg.DagsterInstance] = []


@dg.sensor(minimum_interval_seconds=1, job_name="nothing")
def watching(context: dg.SensorEvaluationContext, port: dg.ResourceParam[str]) -> dg.SkipReason:
    met.append(context.instance)
    return dg.SkipReason(f"{port}: {context.instance.get_runs_count()} run(s)")


@dg.job
def nothing() -> None:
    """Is never started."""


DEFS = dg.Definitions(jobs=[nothing], sensors=[watching], resources={"port": "a port"})


@pytest.fixture(autouse=True)
def none_kept() -> Iterator[None]:
    """Forget what other tests left, and leave nothing to them."""
    kept = list(runs._kept)
    runs._kept.clear()
    met.clear()
    yield
    runs._kept[:] = kept


def tick(ref: InstanceRef) -> str:
    """Evaluate one tick as the code server does; return what it reported."""
    origin = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name=__name__))
    answer = get_external_sensor_execution(
        DEFS.get_repository_def(), origin, ref, "watching", None, None, None, None, None
    )
    assert isinstance(answer, SensorExecutionData)
    return answer.skip_message or ""


def test_ticks_of_a_process_share_an_instance_and_each_sees_what_is_new(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        ref = instance.get_ref()

        first = tick(ref)
        instance.add_run(dg.DagsterRun(job_name="nothing"))
        second = tick(ref)

    assert (first, second) == ("a port: 0 run(s)", "a port: 1 run(s)")
    assert met[0] is met[-1]
    assert met[0] is not instance


def test_another_instance_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with dg.DagsterInstance.local_temp(str(tmp_path / name)) as instance:
            tick(instance.get_ref())

    assert met[0] is not met[-1]
    assert met[-1].root_directory == str(tmp_path / "b")


def test_instance_that_a_test_hands_in_is_the_one_that_the_tick_has() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        watching(dg.build_sensor_context(instance=instance, resources={"port": "a port"}))

    assert met == [
        instance,
    ]


def test_tick_without_any_instance_is_told_so() -> None:
    context = dg.build_sensor_context(resources={"port": "a port"})

    with pytest.raises(dg.DagsterInvariantViolationError, match="no instance reference"):
        _ = context.instance
