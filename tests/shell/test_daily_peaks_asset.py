"""The asset daily_peaks in Dagster: what it keeps, what it shows, and several days in one run."""

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import dagster as dg

from ops_pipelines.assets.capacity import daily_peaks
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.teams.desk import TeamsDesk
from tests.flow.test_capacity_days import DAY, desk_of, staged


def on_disk(directory: Path) -> tuple[TeamsDesk, ParquetLake]:
    """The stage's rows in a lake that can be written."""
    made = staged()
    lake = ParquetLake(directory)
    for name, rows in made.tables.items():
        lake.add(name, TABLES[name].from_rows(rows))
    desk = desk_of(made)
    return replace(desk, observatory=replace(desk.observatory, lake=lake)), lake


def materialize(desk: TeamsDesk, first: date, last: date) -> dict[str, object]:
    result = dg.materialize(
        [daily_peaks],
        resources={"teams_desk": dg.ResourceDefinition.hardcoded_resource(desk)},
        tags={
            "dagster/asset_partition_range_start": first.isoformat(),
            "dagster/asset_partition_range_end": last.isoformat(),
        }
        if first != last
        else None,
        partition_key=first.isoformat() if first == last else None,
    )
    assert result.success
    materialization = result.asset_materializations_for_node("daily_peaks")[-1]
    return {name: value.value for name, value in materialization.metadata.items()}


def test_a_day_is_kept_and_shown(tmp_path: Path) -> None:
    desk, lake = on_disk(tmp_path)

    shown = materialize(desk, DAY, DAY)

    assert shown["day"] == "2026-11-03, 24 hours from 2026-11-02 23:00 UTC on, Europe/Berlin"
    assert shown["row_count"] == 9
    names = [record.data["name"] for record in shown["peaks"].records]  # type: ignore[attr-defined]  # a table
    assert "scratch" in names
    assert [record.data for record in shown["missing"].records] == [{"resource": "network_ratio"}]  # type: ignore[attr-defined]
    start = desk.clock.now() - timedelta(days=9)
    assert lake.read("daily_peaks", start=start, end=desk.clock.now()).num_rows == 9


def test_the_same_day_again_gives_the_same_bytes(tmp_path: Path) -> None:
    desk, _ = on_disk(tmp_path)
    materialize(desk, DAY, DAY)
    first = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet") if "daily_peaks" in str(path)}

    materialize(desk, DAY, DAY)

    assert first
    assert {path: path.read_bytes() for path in first} == first


def test_a_stretch_of_days_is_one_run_and_each_day_has_its_rows(tmp_path: Path) -> None:
    desk, lake = on_disk(tmp_path)

    materialize(desk, DAY - timedelta(days=1), DAY)

    rows = lake.read("daily_peaks", start=desk.clock.now() - timedelta(days=9), end=desk.clock.now())
    assert len(set(rows["time"].to_pylist())) == 2
    assert rows.num_rows == 18
