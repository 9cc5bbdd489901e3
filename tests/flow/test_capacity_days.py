"""A local day summed from a lake on values: what each source gives, what is silent, and what is kept."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.capacity.model import Resource
from ops_pipelines.capacity.past import DaySummed, keep_day, sum_day
from ops_pipelines.core.cluster import HOUR
from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.teams.contracts import Agreements, Contract
from ops_pipelines.teams.desk import TeamsDesk
from tests.flow.cost_stage import H100, NODES, Stage, berlin

DAY = date(2026, 11, 3)
OTHERS = (Resource.NETWORK_RATIO, Resource.RACK_WATTS, Resource.COOLING_WATTS)
ALPHA = TeamName("alpha")
AGREED = Agreements(
    parents={ALPHA: None},
    contracts=(Contract(terms=Terms(team=ALPHA, guarantee=8.0, cap=16.0), valid_from=date(2026, 1, 1), gpu_type=H100),),
    timezone="Europe/Berlin",
)
TOPOLOGY = Topology(
    places={NodeName(name): Place(rack="r1", nvlink_domain=name, leaf_switch="leaf-1") for name in NODES},
    gpus_per_node=8,
)


def staged(*, days: int = 4) -> Stage:
    """A month in which alpha ran 12 of 24 GPUs, and one node was down in the mornings."""
    made = Stage(month=berlin(2026, 11), agreements=AGREED)
    made.ran("1", 0, None, gpus=12, nodes="gpu001,gpu002", through=24 * days)
    mornings = {24 * number + hour for number in range(days) for hour in range(6)}
    made.listed(range(24 * days))
    for row in made.tables["inventory"]:
        at = row["time"]
        assert isinstance(at, datetime)
        if row["node"] == "gpu003" and (at - made.at(0)) // HOUR in mornings:
            row["state"] = "DOWN"  # type: ignore[index]  # made above
    made.tables["gpu_demand"] = [
        {
            "team": "alpha", "gpu_type": "h100", "time": made.at(hour), "gpus_demand_avg": 14.0 + (hour % 24 == 9),
            "gpus_running_avg": 12.0, "gpus_pending_avg": 2.0, "gpus_pending_max": 3.0, "gpus_wasted_avg": 1.0,
        }
        for hour in range(24 * days)
    ]  # fmt: skip
    made.tables["storage_telemetry"] = [
        {"node": "gpu001", "device": "lustre:client/scratch-ffff1", "time": made.at(hour),
         "lustre_capacity_bytes": 100.0, "lustre_available_bytes": 40.0 - hour / 10}
        for hour in range(24 * days)
    ]  # fmt: skip
    made.tables["facility_telemetry"] = [
        {"node": "", "device": "rack:r1", "time": made.at(hour), "rack_power_watts": 1000.0 + hour % 24,
         "rack_power_limit_watts": 2000.0}
        for hour in range(24 * days)
    ]  # fmt: skip
    return made


def desk_of(made: Stage, *, now: float = 24 * 4) -> TeamsDesk:
    desk = made.desk(now=made.at(now), gpu_type_of={NodeName(name): H100 for name in NODES})
    return replace(desk, observatory=replace(desk.observatory, topology=TOPOLOGY))


def rows_of(summed: DaySummed) -> dict[tuple[object, object], Mapping[str, object]]:
    return {(row["resource"], row["name"]): row for row in summed.shown}


def test_a_day_tells_every_resource_whose_source_speaks() -> None:
    summed = sum_day(desk_of(staged()), day=DAY)

    found = rows_of(summed)
    assert set(found) == {
        ("gpus", "alpha"), ("gpus", ""),
        ("gpus_out", "broken"), ("gpus_out", "maintenance"), ("gpus_out", ""), ("gpus_stranded", ""),
        ("storage_bytes", "scratch"), ("rack_watts", "r1"), ("cooling_watts", ""),
    }  # fmt: skip
    assert summed.missing == (Resource.NETWORK_RATIO,)
    alpha = found["gpus", "alpha"]
    assert (alpha["peak"], alpha["limit"], alpha["hour_count"]) == (15.0, 16.0, 24)
    broken = found["gpus_out", "broken"]
    assert (broken["peak"], broken["mean"], broken["limit"]) == (8.0, 2.0, 24.0)
    # Twelve GPUs on two nodes leave two in pieces on each.
    assert (found["gpus_stranded", ""]["peak"], found["gpus_stranded", ""]["gpu_type"]) == (4.0, "h100")
    assert (found["storage_bytes", "scratch"]["limit"], found["rack_watts", "r1"]["limit"]) == (100.0, 2000.0)
    assert found["rack_watts", "r1"]["peak"] == 1023.0
    assert "network_ratio: no link reports its traffic and its rate" in summed.notes
    assert any("cooling_watts: no meter reports what the room draws; its racks are added up" in e for e in summed.notes)


def test_rows_stand_at_the_beginning_of_the_local_day() -> None:
    summed = sum_day(desk_of(staged()), day=DAY)

    assert summed.at == datetime(2026, 11, 2, 23, tzinfo=UTC)
    assert {row["time"] for row in summed.shown} == {summed.at}
    assert {row["zone"] for row in summed.shown} == {"Europe/Berlin"}


def test_silent_sources_give_no_rows_and_a_note_each() -> None:
    summed = sum_day(desk_of(Stage(month=berlin(2026, 11), agreements=AGREED)), day=DAY)

    assert summed.rows.num_rows == 0
    assert summed.missing == tuple(Resource)
    assert summed.notes == (
        "gpus: no hour of gpu_demand is known; materialise it there",
        "gpus_out, gpus_stranded: no hour of inventory is known; materialise it there",
        "storage_bytes: no shared file system reports its size and its room",
        "network_ratio: no link reports its traffic and its rate",
        "rack_watts: no rack reports its power, and of none all nodes do",
        "cooling_watts: nothing reports what the room draws",
    )


@pytest.mark.parametrize(("known", "told"), [(17, False), (18, True)])
def test_day_with_less_than_three_quarters_of_its_hours_is_not_told(known: int, told: bool) -> None:
    made = staged()
    made.tables["gpu_demand"] = [
        row for row in made.tables["gpu_demand"] if made.at(48) <= _time(row) < made.at(48 + known)
    ]

    summed = sum_day(desk_of(made), day=DAY)

    assert (("gpus", "alpha") in rows_of(summed)) == told
    assert any("not reported, such as h100" in each for each in summed.notes) == (not told)


def _time(row: Mapping[str, object]) -> datetime:
    at = row["time"]
    assert isinstance(at, datetime)
    return at


@pytest.mark.parametrize(("now", "is_over"), [(71.99, False), (72.0, True)])
def test_day_that_is_not_over_tells_nothing_and_changes_nothing(tmp_path: Path, now: float, is_over: bool) -> None:
    desk = desk_of(staged(), now=now)
    lake = ParquetLake(tmp_path)
    summed = sum_day(desk, day=DAY)
    kept = keep_day(replace(desk, observatory=replace(desk.observatory, lake=lake)), summed)

    assert summed.is_over == is_over
    assert bool(kept) == is_over
    assert bool(lake.read("daily_peaks", start=summed.at, end=summed.at + HOUR).num_rows) == is_over
    assert any("2026-11-03 is not over in Europe/Berlin" in each for each in summed.notes) == (not is_over)


def test_keeping_a_day_again_gives_the_same_bytes_and_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    desk = desk_of(staged())
    lake = ParquetLake(tmp_path)
    on_disk = replace(desk, observatory=replace(desk.observatory, lake=lake))
    summed = sum_day(desk, day=DAY)
    lake.add("daily_peaks", TABLES["daily_peaks"].from_rows([{**summed.shown[0], "name": "gone"}]))

    assert keep_day(on_disk, summed) == summed.rows.num_rows
    first = {path.name: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    keep_day(on_disk, sum_day(desk, day=DAY))

    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == first
    kept = lake.read("daily_peaks", start=summed.at, end=summed.at + HOUR)
    assert "gone" not in kept["name"].to_pylist()


def test_days_on_which_the_clock_is_changed_have_23_and_25_hours() -> None:
    desk = desk_of(Stage(month=berlin(2026, 11), agreements=AGREED))

    assert sum_day(desk, day=date(2026, 3, 29)).hour_count == 23
    assert sum_day(desk, day=date(2026, 10, 25)).hour_count == 25


def test_without_a_register_of_nodes_what_is_out_is_not_told() -> None:
    summed = sum_day(replace(desk_of(staged()), installed=()), day=DAY)

    assert Resource.GPUS_OUT in summed.missing
    assert "gpus_out: cluster.yaml names no nodes under `racks`; what is installed is not known" in summed.notes


def test_next_day_begins_where_this_one_ends() -> None:
    desk = desk_of(staged())

    assert sum_day(desk, day=DAY + timedelta(days=1)).at == sum_day(desk, day=DAY).at + timedelta(days=1)
