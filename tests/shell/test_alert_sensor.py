"""The turn that forgets alerts and keeps silences: only with the lease, and never a run."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.sensors.upkeep import alert_sensor
from tests.flow.fake_silencer import FakeSilencer
from tests.ports.silencer_contract import wanted
from tests.shell.desk import Desk


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Desk(tmp_path).cluster


def turn(cluster: Cluster) -> str:
    with dg.build_sensor_context(sensor_name=alert_sensor.name, resources={"cluster": cluster}) as context:
        said = alert_sensor(context)
    assert isinstance(said, dg.SkipReason)
    return said.skip_message or ""


def test_turn_keeps_silences_and_leaves_a_beat(cluster: Cluster) -> None:
    silencer = FakeSilencer()
    now = cluster.clock.now()
    silencer.silence(wanted("gpu001"), starts_at=now, ends_at=now + timedelta(hours=1))

    assert turn(cluster) == "no Alertmanager is notified of planned work"
    assert turn(replace(cluster, silencer=silencer)) == "ended 1 silence(s)"
    assert [each.name for each in cluster.ledger.heartbeats()] == ["alert_sensor"]


def test_whoever_lacks_the_lease_touches_no_silence(cluster: Cluster) -> None:
    silencer = FakeSilencer()
    now = cluster.clock.now()
    silencer.silence(wanted("gpu001"), starts_at=now, ends_at=now + timedelta(hours=1))
    cluster.ledger.take_lease(holder="another:1", ttl=timedelta(seconds=15), now=now)

    assert "another process holds the lease" in turn(replace(cluster, silencer=silencer))
    assert len(silencer.running) == 1
