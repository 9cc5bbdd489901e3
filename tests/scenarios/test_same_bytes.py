"""An hour that a store of metrics feeds has the same bytes, however it came into the lake."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from upath import UPath

from ops_pipelines.core.cluster import HOUR, Cluster, Observatory, hour_of
from ops_pipelines.core.sources import WholeHour
from ops_pipelines.lake.hours import split_by_hour
from ops_pipelines.observe.hours import fill_metrics
from ops_pipelines.observe.live_cycle import run_cycle, settling_time
from ops_pipelines.resources.lake.io_manager import store_hour
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from tests.flow.fake_store import TABLES, FakeExporters, FakeStore, Point, observatory_on
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import BEGINNING, FakeClock

STEP = timedelta(minutes=20)
GRID = [BEGINNING + number * STEP for number in range(6)]
HOURS = [BEGINNING, BEGINNING + HOUR]
LONG_AFTER = BEGINNING + timedelta(hours=4)

NAMES: Sequence[tuple[str, dict[str, str]]] = (
    ("DCGM_FI_DEV_GPU_TEMP", {"Hostname": "gpu001", "UUID": "GPU-a", "gpu": "0"}),
    ("DCGM_FI_DEV_GPU_TEMP", {"Hostname": "gpu001", "UUID": "GPU-b", "gpu": "0"}),
    ("DCGM_FI_DEV_POWER_USAGE", {"Hostname": "gpu001", "gpu": "0"}),
    ("DCGM_FI_DEV_POWER_USAGE", {"Hostname": "gpu001", "pci_bus_id": "00000000:18:00.0"}),
    ("DCGM_FI_DEV_SM_CLOCK", {"Hostname": "gpu001", "pci_bus_id": "00000000:18:00.0", "gpu": "0", "pod": "p1"}),
    ("DCGM_FI_DEV_SM_CLOCK", {"Hostname": "gpu001", "UUID": "GPU-a", "gpu": "0", "pod": "p2"}),
    ("node_load1", {"instance": "gpu002:9100"}),
    ("node_load1", {"instance": "strange:9100"}),
)
"""Series whose labels name GPUs in every way, and of a node that nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What a scrape near a grid time gave."""

    series: int
    grid: int
    before_seconds: int
    value: float | None
    delay_seconds: float


SAMPLES = st.builds(
    Sampled,
    series=st.integers(0, len(NAMES) - 1),
    grid=st.integers(0, len(GRID) - 1),
    before_seconds=st.sampled_from([0, 1, 20, 29, 30]),
    value=st.sampled_from([40.0, 41.5, -5000.0, 1e30, float("nan"), None]),
    delay_seconds=st.sampled_from([0.0, 3.0, 400.0, 3000.0, 9000.0]),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A store with a past, and a cluster to tell evidence to."""

    store: FakeStore
    clock: FakeClock
    cluster: Cluster
    directory: str

    def observatory(self, name: str) -> Observatory:
        return observatory_on(
            f"{self.directory}/{name}",
            self.store,
            clock=self.clock,
            scheduler=self.cluster.scheduler,
            step_seconds=1200,
        )

    def go_to(self, at: datetime) -> None:
        self.clock.wait((at - self.clock.now()).total_seconds())


_numbers = count()


@contextmanager
def lake_in_memory() -> Iterator[str]:
    """Yield where an example may keep lakes: in an object store that is forgotten, for hundreds are made."""
    directory = f"memory://same-bytes-{next(_numbers)}"
    yield directory
    place = UPath(directory)
    place.fs.rm(place.path, recursive=True)


@pytest.fixture(scope="module")
def autopilot(tmp_path_factory: pytest.TempPathFactory) -> SmallAutopilot:
    """Return who is reported evidence: one for all examples, which are about the lake."""
    return SmallAutopilot(tmp_path_factory.mktemp("autopilot"), node_count=1)


def world_of(directory: str, samples: Iterable[Sampled], autopilot: SmallAutopilot) -> World:
    """Return a store with a series that never fails beside the sampled ones."""
    clock = FakeClock()
    store = FakeStore(clock=clock)
    store.add("up", {"job": "node", "instance": "gpu001:9100"}, [Point(at=at, value=1.0, known_at=at) for at in GRID])
    by_series: dict[int, dict[datetime, Point]] = {}
    for each in samples:
        at = GRID[each.grid] - timedelta(seconds=each.before_seconds)
        known_at = at + timedelta(seconds=each.delay_seconds)
        by_series.setdefault(each.series, {})[at] = Point(at=at, value=each.value, known_at=known_at)
    for number, points in by_series.items():
        name, labels = NAMES[number]
        store.add(name, labels, list(points.values()))
    cluster = replace(autopilot.cluster, clock=clock)
    return World(store=store, clock=clock, cluster=cluster, directory=directory)


def watch(world: World, observatory: Observatory, grid: Iterable[datetime]) -> None:
    """Run live cycles, each when its turn has come."""
    for at in sorted(grid):
        world.go_to(at + settling_time(STEP))
        assert not run_cycle(observatory, world.cluster, at=at).problems


def close(observatory: Observatory, start: datetime, end: datetime, tables: Sequence[str] = TABLES) -> None:
    """Do what a run over the hours in [start, end) does."""
    filled = fill_metrics(observatory, tables=tables, start=start, end=end)
    assert isinstance(observatory.lake, ParquetLake)
    for name in tables:
        rows = filled.tables.get(name)
        parted = {} if rows is None else split_by_hour(rows)
        hour = start
        while hour < end:
            retold = frozenset(at for at in filled.retold if hour_of(at) == hour)
            told = WholeHour(rows=parted.get(hour), retold=retold)
            store_hour(observatory.lake, name, hour, told=told, now=observatory.clock.now())
            hour += HOUR


def hours_on_disk(observatory: Observatory) -> dict[str, bytes]:
    """Return the closed hours of the asked tables; no cycle may be what readers see."""
    assert isinstance(observatory.lake, ParquetLake)
    paths = {(name, hour): observatory.lake.path_of_hour(name, hour) for name in TABLES for hour in HOURS}
    return {f"{name} {hour}": path.read_bytes() for (name, hour), path in paths.items()}


def filled_at_once(world: World) -> dict[str, bytes]:
    reference = world.observatory("reference")
    for hour in HOURS:
        close(reference, hour, hour + HOUR)
    return hours_on_disk(reference)


SWAPPED = [
    *(Sampled(series=0, grid=grid, before_seconds=0, value=40.0, delay_seconds=0) for grid in range(2)),
    *(Sampled(series=1, grid=grid, before_seconds=0, value=40.0, delay_seconds=0) for grid in range(2, 3)),
    *(Sampled(series=2, grid=grid, before_seconds=0, value=40.0, delay_seconds=0) for grid in range(3)),
]
"""The GPU of index 0 is replaced within the hour, and one exporter names it by its index only."""
ENDED_LATE = [
    Sampled(series=6, grid=1, before_seconds=20, value=40.0, delay_seconds=0),
    Sampled(series=6, grid=1, before_seconds=1, value=None, delay_seconds=400),
]
"""A series that the live cycle still saw, and that had ended: the mark came later."""


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    samples=st.lists(SAMPLES, max_size=30),
    watched=st.sets(st.sampled_from(GRID)),
    order=st.permutations(HOURS),
    is_in_one_run=st.booleans(),
    times_per_page=st.sampled_from([1, 2, 100]),
)
@example(samples=SWAPPED, watched=set(GRID), order=HOURS, is_in_one_run=False, times_per_page=100)
@example(samples=SWAPPED, watched=set(GRID[:2]), order=HOURS, is_in_one_run=True, times_per_page=2)
@example(samples=ENDED_LATE, watched=set(GRID), order=HOURS, is_in_one_run=False, times_per_page=100)
def test_an_hour_has_the_same_bytes_however_it_was_filled(
    autopilot: SmallAutopilot,
    samples: list[Sampled],
    watched: set[datetime],
    order: list[datetime],
    is_in_one_run: bool,
    times_per_page: int,
) -> None:
    with lake_in_memory() as directory:
        world = world_of(directory, samples, autopilot)
        found = world.observatory("found")

        watch(world, found, watched)
        world.go_to(LONG_AFTER)
        world.store.times_per_page = times_per_page
        if is_in_one_run:
            close(found, HOURS[0], HOURS[-1] + HOUR)
        else:
            for hour in order:
                close(found, hour, hour + HOUR)

        world.store.times_per_page = 100
        assert hours_on_disk(found) == filled_at_once(world)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(samples=st.lists(SAMPLES, max_size=30), looked_at=st.sampled_from(GRID[:3]))
@example(samples=ENDED_LATE, looked_at=GRID[1])
def test_an_hour_that_was_looked_at_while_it_ran_and_closed_twice_has_the_same_bytes(
    autopilot: SmallAutopilot, samples: list[Sampled], looked_at: datetime
) -> None:
    with lake_in_memory() as directory:
        world = world_of(directory, samples, autopilot)
        found = world.observatory("found")

        watch(world, found, [at for at in GRID if at <= looked_at])
        close(found, HOURS[0], HOURS[0] + HOUR)
        assert isinstance(found.lake, ParquetLake)
        assert not found.lake.path_of_hour("platform_telemetry", HOURS[0]).exists()
        watch(world, found, [at for at in GRID if at > looked_at])
        world.go_to(LONG_AFTER)
        for hour in (*HOURS, *reversed(HOURS)):
            close(found, hour, hour + HOUR)

        assert hours_on_disk(found) == filled_at_once(world)


def test_tables_filled_one_by_one_are_those_filled_together(tmp_path: Path, autopilot: SmallAutopilot) -> None:
    samples = [
        Sampled(series=number, grid=grid, before_seconds=1, value=40.0, delay_seconds=0)
        for number in range(len(NAMES))
        for grid in range(len(GRID))
    ]
    world = world_of(str(tmp_path), samples, autopilot)
    world.go_to(LONG_AFTER)
    found = world.observatory("found")

    for table in reversed(TABLES):
        for hour in HOURS:
            close(found, hour, hour + HOUR, [table])

    assert hours_on_disk(found) == filled_at_once(world)


def test_what_a_store_lost_stays_as_the_live_cycle_saw_it(tmp_path: Path, autopilot: SmallAutopilot) -> None:
    samples = [Sampled(series=6, grid=grid, before_seconds=1, value=40.0, delay_seconds=0) for grid in range(3)]
    world = world_of(str(tmp_path), samples, autopilot)
    found = world.observatory("found")
    watch(world, found, GRID[:3])
    world.go_to(LONG_AFTER)

    world.store.series = []
    close(found, HOURS[0], HOURS[0] + HOUR)

    assert found.lake.read_hour("node_telemetry", HOURS[0]).num_rows == 3


def test_a_store_that_warns_takes_nothing_back(tmp_path: Path, autopilot: SmallAutopilot) -> None:
    samples = [
        Sampled(series=number, grid=grid, before_seconds=1, value=40.0, delay_seconds=0)
        for number in (6, 7)
        for grid in range(3)
    ]
    world = world_of(str(tmp_path), samples, autopilot)
    found = world.observatory("found")
    watch(world, found, GRID[:3])
    world.go_to(LONG_AFTER)

    world.store.notes = ("store 2 did not answer",)
    world.store.series = [each for each in world.store.series if each[0].labels["instance"] != "strange:9100"]
    close(found, HOURS[0], HOURS[0] + HOUR)

    assert found.lake.read_hour("node_telemetry", HOURS[0]).num_rows == 6


def test_what_exporters_said_beside_a_store_is_not_taken_back_by_it(tmp_path: Path, autopilot: SmallAutopilot) -> None:
    world = world_of(str(tmp_path), [], autopilot)
    exporters = FakeExporters(texts={"gpu003": "node_load1 3\n"})
    found = replace(world.observatory("found"), metrics=(world.store, exporters))
    watch(world, found, GRID[:3])
    world.go_to(LONG_AFTER)

    close(found, HOURS[0], HOURS[0] + HOUR)

    assert found.lake.read_hour("node_telemetry", HOURS[0]).num_rows == 3
