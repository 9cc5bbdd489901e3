"""Assets meet the lake hour by hour: what is over is closed, what runs on is laid beside its cycles."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.assets.hours import HOURS, LAKE_IO, ONE_RUN, hour_of_key
from ops_pipelines.core.sources import LakeError, Rows, WholeHour
from ops_pipelines.resources.lake.io_manager import LakeIOManager, hour_of_partition, store_hour
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from tests.ports.lake_samples import HOUR as SAMPLES
from tests.ports.lake_samples import TABLE, gpu, table, watts
from tests.simulator.fake_clock import BEGINNING, FakeClock

FIRST = datetime(2026, 1, 2, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
KEYS = ("2026-01-02-05:00", "2026-01-02-06:00", "2026-01-02-07:00")


@dg.asset(name=TABLE, io_manager_key=LAKE_IO, partitions_def=HOURS, backfill_policy=ONE_RUN)
def telemetry(context: dg.AssetExecutionContext) -> Mapping[str, Rows]:
    """A row in every hour of the run but the middle one."""
    return {key: row_of(hour_of_key(key)) for key in context.partition_keys if key != KEYS[1]}


@dg.asset(partitions_def=HOURS, backfill_policy=ONE_RUN)
def reader(context: dg.AssetExecutionContext, gpu_telemetry: object) -> dg.MaterializeResult[None]:
    """Tell how many rows each hour has."""
    return dg.MaterializeResult(metadata={key: rows.num_rows for key, rows in gpu_telemetry.items()})


def row_of(hour: datetime, power_watts: float = 1.0) -> Rows:
    return table(gpu("a", (hour - SAMPLES).total_seconds(), power_watts=power_watts))


def run(lake: ParquetLake, *keys: str, now: datetime) -> dg.ExecuteInProcessResult:
    clock = FakeClock()
    clock.set_back((BEGINNING - now).total_seconds())
    io_manager = LakeIOManager(lake, clock=clock, describe=lambda _, hours, __: {"hour_count": len(hours)})
    range_tags = {
        "dagster/asset_partition_range_start": keys[0],
        "dagster/asset_partition_range_end": keys[-1],
    }
    return dg.materialize(
        [telemetry, reader],
        resources={LAKE_IO: io_manager, "io_manager": dg.mem_io_manager},
        partition_key=keys[0] if len(keys) == 1 else None,
        tags=None if len(keys) == 1 else range_tags,
    )


@pytest.mark.parametrize("place", ["local", "object store"])
def test_many_hours_are_stored_and_handed_on_hour_by_hour(tmp_path: Path, place: str) -> None:
    lake = ParquetLake(tmp_path / "lake" if place == "local" else f"memory://io-manager-{tmp_path.name}")

    result = run(lake, *KEYS, now=FIRST + 3 * HOUR)

    (told,) = result.asset_materializations_for_node("reader")[:1]
    assert {key: told.metadata[key].value for key in KEYS} == {KEYS[0]: 1, KEYS[1]: 0, KEYS[2]: 1}
    assert [lake.path_of_hour(TABLE, FIRST + number * HOUR).exists() for number in range(3)] == [True] * 3


def test_one_hour_is_handed_on_by_its_key_too(tmp_path: Path) -> None:
    result = run(ParquetLake(tmp_path), KEYS[0], now=FIRST + HOUR)

    (told,) = result.asset_materializations_for_node("reader")
    assert told.metadata[KEYS[0]].value == 1


@pytest.mark.parametrize(
    ("seconds", "is_closed"), [(3599.999999, False), (3600, True), (3600.000001, True)],
    ids=["just before it is over", "when it is", "just after"],
)  # fmt: skip
def test_an_hour_is_closed_when_it_is_over(tmp_path: Path, seconds: float, is_closed: bool) -> None:
    lake = ParquetLake(tmp_path)

    rows = store_hour(lake, TABLE, FIRST, told=WholeHour(rows=row_of(FIRST)), now=FIRST + timedelta(seconds=seconds))

    assert rows.num_rows == 1
    assert lake.path_of_hour(TABLE, FIRST).exists() is is_closed
    assert lake.open_hours(TABLE) == ([] if is_closed else [FIRST])


def test_what_a_source_tells_anew_takes_the_place_of_what_live_cycles_kept_of_it(tmp_path: Path) -> None:
    lake, first, second, third = ParquetLake(tmp_path), SAMPLES, *(SAMPLES + timedelta(minutes=n) for n in (1, 2))
    for at in (first, second, third):
        rows = table(*(gpu(node, (at - first).total_seconds(), power_watts=1.0) for node in "ab"))
        lake.write_cycle(TABLE, rows, at=at)
        lake.write_cycle(TABLE, table(gpu("exporter", (at - first).total_seconds())), at=at, part="exporters")
    lake.write_cycle(
        TABLE, table(gpu("b", 0, power_watts=3.0), gpu("b", 120, power_watts=3.0)), at=first, part="so_far"
    )
    lake.add(TABLE, table(gpu("from outside", 0)))

    told = WholeHour(rows=table(gpu("a", 0, power_watts=2.0)), retold=frozenset({first, second}))
    store_hour(lake, TABLE, SAMPLES, told=told, now=SAMPLES + HOUR)

    assert watts(lake.read_hour(TABLE, SAMPLES)) == [
        ("a", 0.0, 2.0),
        ("a", 120.0, 1.0),
        ("b", 120.0, 1.0),
        *(("exporter", seconds, None) for seconds in (0.0, 60.0, 120.0)),
        ("from outside", 0.0, None),
    ]


def test_an_hour_that_is_closed_keeps_what_it_has(tmp_path: Path) -> None:
    lake = ParquetLake(tmp_path)
    lake.close_hour(TABLE, SAMPLES, filled=table(gpu("a", 0, power_watts=1.0), gpu("b", 0, power_watts=1.0)))

    told = WholeHour(rows=table(gpu("a", 0, power_watts=2.0)), retold=frozenset({SAMPLES}))
    store_hour(lake, TABLE, SAMPLES, told=told, now=SAMPLES + HOUR)

    assert watts(lake.read_hour(TABLE, SAMPLES)) == [("a", 0.0, 2.0), ("b", 0.0, 1.0)]


def test_a_lake_that_cannot_be_written_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")

    with pytest.raises(LakeError, match="a file is where a directory must be"):
        run(ParquetLake(tmp_path / "lake"), KEYS[0], now=FIRST + HOUR)


def test_a_partition_is_its_hour_in_utc() -> None:
    assert hour_of_partition("2026-03-29-02:00") == datetime(2026, 3, 29, 2, tzinfo=UTC)
