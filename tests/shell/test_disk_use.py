"""`status` says what is used on disk, by part, and needs neither Dagster nor a lake for that."""

import json
from pathlib import Path

import pytest

from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.terminal.disk_use import disk_use_of, read_disk_use
from tests.shell.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def put(place: Path, size: int) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"x" * size)


def test_each_file_counts_for_its_part(desk: Desk, tmp_path: Path) -> None:
    state, home = tmp_path / "state", tmp_path / "state" / "dagster"
    put(state / "lake" / "gpu_telemetry" / "hour.parquet", 100_000)
    put(state / "evidence" / "INC-0001" / "a.json", 50_000)
    put(state / "reports" / "INC-0001.html", 20_000)
    put(home / "history" / "runs.db", 200_000)
    put(home / "log" / "daemon.out", 10_000)

    used = read_disk_use(read_cluster(desk.cluster_file), dagster_home=str(home))

    assert list(used) == ["dagster", "evidence", "lake", "ledger", "logs", "other", "pages", "snapshots"]
    assert 200_000 <= used["dagster"] < 250_000
    assert 100_000 <= used["lake"] < 150_000
    assert 50_000 <= used["evidence"] < 80_000
    assert 20_000 <= used["pages"] < 40_000
    assert 0 < used["snapshots"] < used["ledger"]


def test_lake_outside_of_the_state_directory_counts_and_one_in_an_object_store_does_not(
    desk: Desk, tmp_path: Path
) -> None:
    put(tmp_path / "elsewhere" / "hour.parquet", 100_000)
    text = desk.cluster_file.read_text()

    desk.cluster_file.write_text(f"{text}lake: {{url: {tmp_path / 'elsewhere'}}}\n")
    assert read_disk_use(read_cluster(desk.cluster_file), dagster_home=None)["lake"] >= 100_000

    desk.cluster_file.write_text(f"{text}lake: {{url: 's3://bucket/lake'}}\n")
    assert "lake" not in read_disk_use(read_cluster(desk.cluster_file), dagster_home=None)


def test_nothing_is_said_where_no_configuration_says_where_it_lies(tmp_path: Path) -> None:
    assert disk_use_of(tmp_path / "cluster.yaml", state=None) == {}


def test_status_shows_it(desk: Desk) -> None:
    assert "ledger 0." in desk.run("status", columns=200).stdout
    assert json.loads(desk.run("status", "--json").stdout)["disk_bytes"]["ledger"] > 0
