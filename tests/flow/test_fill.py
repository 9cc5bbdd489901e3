"""What the sources give for an interval: whole hours, each record counted, nodes settled as live cycles do."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.cluster import HOUR, Observatory, hour_of
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import AccountingPage
from ops_pipelines.observe.hours import fill_accounting, fill_job_logs, fill_kernel_events, fill_metrics
from ops_pipelines.observe.live_cycle import run_cycle
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from tests.flow.fake_store import TABLES, FakeExporters, FakeLogs, FakeStore, NoScheduler, Point, observatory_on
from tests.ports.lake_samples import cells
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import BEGINNING, FakeClock

SACCT = "JobID|JobIDRaw|User|Account|Partition|State|Start|End|Submit|NNodes|NodeList|AllocTRES|JobName"


@dataclass(frozen=True, kw_only=True)
class FakeAccounting:
    """Pages of one hour, each with a row for an attempt and one that is broken."""

    source: str = "sacct"

    def read_attempts(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        hour = start
        while hour < end:
            began, ended = hour + timedelta(minutes=5), hour + timedelta(minutes=35)
            times = "|".join(f"{at:%Y-%m-%dT%H:%M:%S}" for at in (began, ended, began))
            row = f"{hour:%H}|{hour:%H}|u|a|p|COMPLETED|{times}|1|gpu001|gres/gpu=8|train"
            body = f"{SACCT}\n{row}\nbroken|row\n".encode()
            yield AccountingPage(body=body, source=self.source, start=hour, end=hour + HOUR)
            hour += HOUR

    read_overlapping = read_attempts


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    return FakeStore(clock=clock)


@pytest.fixture
def log() -> FakeLogs:
    return FakeLogs(source="kernel_log")


@pytest.fixture
def observatory(tmp_path: Path, clock: FakeClock, store: FakeStore, log: FakeLogs) -> Observatory:
    scheduler = cast("Scheduler", NoScheduler())
    return observatory_on(tmp_path / "lake", store, clock=clock, scheduler=scheduler, kernel_logs=(log,))


@pytest.mark.parametrize(
    ("seconds", "is_within"),
    [(-15, False), (-1, True), (0, True), (3585, True), (3600, False)],
    ids=["a step before", "seen at the first grid time", "on it", "on the last", "on the next hour's first"],
)
def test_an_hour_holds_its_own_grid_times(
    observatory: Observatory, store: FakeStore, seconds: int, is_within: bool
) -> None:
    at = BEGINNING + timedelta(seconds=seconds)
    store.add("node_load1", {"instance": "gpu001:9100"}, [Point(at=at, value=1.0, known_at=BEGINNING - HOUR)])
    ends = Point(at=at + timedelta(seconds=14), value=None, known_at=BEGINNING - HOUR)
    store.series[-1][1].append(ends)

    filled = fill_metrics(observatory, tables=TABLES, start=BEGINNING, end=BEGINNING + HOUR)

    assert ("node_telemetry" in filled.tables) is is_within


def test_sources_without_a_past_are_not_asked_for_it(observatory: Observatory) -> None:
    observatory = replace(observatory, metrics=(FakeExporters(texts={"gpu001": "node_load1 1\n"}),))

    filled = fill_metrics(observatory, tables=TABLES, start=BEGINNING, end=BEGINNING + HOUR)

    assert (filled.read_count, filled.tables, filled.retold) == (0, {}, frozenset())


def test_only_the_tables_that_were_asked_for_are_given(observatory: Observatory, store: FakeStore) -> None:
    points = [Point(at=BEGINNING, value=1.0, known_at=BEGINNING)]
    store.add("node_load1", {"instance": "gpu001:9100"}, points)
    store.add("DCGM_FI_DEV_GPU_TEMP", {"Hostname": "gpu001", "gpu": "0"}, points)

    filled = fill_metrics(observatory, tables=["gpu_telemetry"], start=BEGINNING, end=BEGINNING + HOUR)

    assert list(filled.tables) == ["gpu_telemetry"]
    assert (filled.read_count, filled.accepted_count, filled.ignored_count) == (2, 2, 0)


def test_what_is_rejected_has_the_time_of_its_sample(observatory: Observatory, store: FakeStore) -> None:
    times = [BEGINNING + timedelta(minutes=30), BEGINNING + timedelta(minutes=90)]
    points = [Point(at=at, value=-5000.0, known_at=at) for at in times]
    store.add("DCGM_FI_DEV_GPU_TEMP", {"Hostname": "gpu001", "gpu": "0"}, points)
    store.clock.wait(3 * 3600)

    filled = fill_metrics(observatory, tables=TABLES, start=BEGINNING, end=BEGINNING + 2 * HOUR)

    found = cells(filled.tables["rejected_rows"], "time")
    assert filled.reasons == {"out_of_range": len(found)}
    assert {hour_of(at) for (at,) in found if isinstance(at, datetime)} == {BEGINNING, BEGINNING + HOUR}


def test_kernel_events_filled_later_are_those_that_the_live_cycle_kept(
    tmp_path: Path, observatory: Observatory, log: FakeLogs
) -> None:
    autopilot = SmallAutopilot(tmp_path / "autopilot", node_count=1)
    lake = cast("ParquetLake", observatory.lake)
    for number, node in enumerate(("gpu001", "GPU002.site.example", "stranger", None)):
        log.write("NVRM: Xid (PCI:0000:18:00): 79", node=node, at=BEGINNING + timedelta(seconds=number))
    run_cycle(observatory, autopilot.cluster, at=BEGINNING)
    lake.close_hour("kernel_events", BEGINNING)
    live = lake.path_of_hour("kernel_events", BEGINNING).read_bytes()

    filled = fill_kernel_events(observatory, start=BEGINNING, end=BEGINNING + HOUR)
    other = ParquetLake(tmp_path / "other")
    other.close_hour("kernel_events", BEGINNING, filled=filled.tables["kernel_events"])

    assert other.path_of_hour("kernel_events", BEGINNING).read_bytes() == live
    marks = cells(filled.tables["kernel_events"], "node", "unknown_node")
    assert marks == [("gpu001", False), ("gpu002", False), ("stranger", True), (None, None)]


@pytest.mark.parametrize(
    ("seconds", "count"), [(-0.000001, 0), (0, 1), (3599.999999, 1), (3600, 0), (None, 0)],
    ids=["just before", "the first moment", "the last", "the next hour", "no time"],
)  # fmt: skip
def test_a_line_belongs_to_the_hour_in_which_it_was_written(
    observatory: Observatory, log: FakeLogs, seconds: float | None, count: int
) -> None:
    log.write("a line", at=None if seconds is None else BEGINNING + timedelta(seconds=seconds))

    assert fill_kernel_events(observatory, start=BEGINNING, end=BEGINNING + HOUR).read_count == count


def test_logs_longer_than_one_reading_are_read_to_their_end(observatory: Observatory) -> None:
    class ByTwos(FakeLogs):
        def read_new(self, cursor: str | None, *, max_lines: int) -> object:
            return super().read_new(cursor, max_lines=2)

    log = ByTwos(source="job_logs")
    for number in range(7):
        log.write(f"step {number}", at=BEGINNING)

    filled = fill_job_logs(replace(observatory, job_logs=(log,)), start=BEGINNING, end=BEGINNING + HOUR)

    assert filled.read_count == 7


def test_without_accounting_nothing_is_given_and_it_is_said(observatory: Observatory) -> None:
    filled = fill_accounting(observatory, start=BEGINNING, end=BEGINNING + HOUR)

    assert (filled.tables, filled.notes) == ({}, ("no accounting is configured",))


def test_broken_rows_of_each_page_of_accounting_are_kept(observatory: Observatory) -> None:
    observatory = replace(observatory, accounting=FakeAccounting())

    filled = fill_accounting(observatory, start=BEGINNING, end=BEGINNING + 3 * HOUR)

    rejected = cells(filled.tables["rejected_rows"], "record", "time")
    assert sum(filled.reasons.values()) == len(rejected) == 3
    assert filled.read_count == filled.accepted_count + filled.ignored_count + 3 == 6
    held = cells(filled.tables["job_allocations"], "node", "time", "held_seconds", "unknown_node")
    assert held == [("gpu001", BEGINNING + number * HOUR, 1800.0, False) for number in range(3)]
