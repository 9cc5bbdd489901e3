"""The live cycle's sensor: who holds the lease tends the child, and what the child says is the sensor's beat."""

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.runs import SqlRunStorage

from ops_pipelines.core.sources import LiveNews
from ops_pipelines.sensors.runs import end_left_behind
from ops_pipelines.sensors.upkeep import live_cycle_sensor
from tests.scenarios.small_autopilot import SmallAutopilot


@dataclass
class FakeChild:
    """A child that says the same for ever."""

    news: LiveNews = field(default_factory=lambda: LiveNews(is_running=True, note="07:00:00: 12 samples"))
    tended_count: int = 0

    def tend(self) -> LiveNews:
        self.tended_count += 1
        return self.news


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    return SmallAutopilot(tmp_path / "cluster", node_count=1)


def turn(autopilot: SmallAutopilot, child: FakeChild, instance: dg.DagsterInstance | None = None) -> str:
    with nullcontext(instance) if instance is not None else dg.DagsterInstance.ephemeral() as used:
        context = dg.build_sensor_context(
            instance=used,
            resources={"cluster": autopilot.cluster, "live_cycle": child},
            sensor_name=live_cycle_sensor.name,
        )
        said = live_cycle_sensor(context)
    assert isinstance(said, dg.SkipReason)
    return said.skip_message or ""


def test_each_turn_tends_the_child_and_tells_what_it_said(autopilot: SmallAutopilot) -> None:
    child = FakeChild()

    said = [turn(autopilot, child) for _ in range(2)]

    assert child.tended_count == 2
    assert said == ["07:00:00: 12 samples"] * 2
    (beat,) = [each for each in autopilot.cluster.ledger.heartbeats() if each.name == "live_cycle_sensor"]
    assert beat.note == "07:00:00: 12 samples"


def test_without_the_lease_no_child_is_started(autopilot: SmallAutopilot) -> None:
    child = FakeChild()
    now = autopilot.clock.now()
    autopilot.cluster.ledger.take_lease(holder="another code server", ttl=timedelta(hours=1), now=now)

    said = turn(autopilot, child)

    assert child.tended_count == 0
    assert "another process holds the lease" in said


def test_a_child_that_cannot_run_is_told_and_fails_no_turn(autopilot: SmallAutopilot) -> None:
    child = FakeChild(LiveNews(is_running=False, note="the live cycle cannot be started: no memory"))

    assert turn(autopilot, child) == "the live cycle cannot be started: no memory"


@pytest.mark.parametrize(("later_seconds", "left_count"), [(-60.0, 0), (60.0, 2)])
def test_runs_of_a_code_server_before_are_ended_and_those_of_this_one_are_not(
    later_seconds: float, left_count: int
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        for name in ("fill_hour", "keep_lake"):
            instance.add_run(dg.DagsterRun(job_name=name, status=dg.DagsterRunStatus.STARTED))
        instance.add_run(dg.DagsterRun(job_name="fill_hour", status=dg.DagsterRunStatus.STARTING))

        assert end_left_behind(instance, before=time.time() + later_seconds) == left_count

        assert instance.get_runs_count(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE])) == left_count
        assert instance.get_runs_count(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTING])) == 1


def test_what_was_left_behind_is_ended_at_the_first_turn_with_the_lease_and_not_asked_for_again(
    autopilot: SmallAutopilot, tmp_path: Path
) -> None:
    statuses = []
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        storage = instance.run_storage
        assert isinstance(storage, SqlRunStorage)
        for name in ("fill_hour", "keep_lake"):
            run = dg.DagsterRun(job_name=name, status=dg.DagsterRunStatus.STARTED)
            storage.add_historical_run(run, datetime.now(UTC) - timedelta(hours=1))
            turn(autopilot, FakeChild(), instance)
            seen = instance.get_run_by_id(run.run_id)
            assert seen is not None
            statuses.append(seen.status)

    assert statuses == [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED]
