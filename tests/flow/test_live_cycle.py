"""A live cycle keeps what each source gave, once, and reports at once what it means; a failure costs its own part."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.cluster import Observatory
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import GpuUuid, JobId, NodeName, PciAddress
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import JobState, JobStatus, Observation, Signal, Workload
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import LakeError, LogLine, Rows, SourceUnavailable
from ops_pipelines.lake.metrics.pages import within_reach
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.intake import take_in_conditions
from ops_pipelines.observe.live_cycle import CycleReport, begin_window, next_grid_time, run_cycle
from ops_pipelines.observe.panels.panel import LOOKBACK_SECONDS, Detection, Panel
from ops_pipelines.observe.window import LiveWindow
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines_lab.simulator.exporter import SimulatedMetrics
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.flow.fake_store import FakeExporters, FakeLogs, FakeStore, NoScheduler, Point, observatory_on
from tests.ports.lake_samples import cells
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import BEGINNING as AT

STEP = timedelta(seconds=15)
TEMPERATURE = ("DCGM_FI_DEV_GPU_TEMP", {"Hostname": "gpu001", "UUID": "GPU-a", "gpu": "0"})


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    return SmallAutopilot(tmp_path, node_count=3)


@pytest.fixture
def store(autopilot: SmallAutopilot) -> FakeStore:
    store = FakeStore(clock=autopilot.clock)
    store.add(*TEMPERATURE, [Point(at=AT + number * STEP, value=40.0 + number, known_at=AT) for number in range(40)])
    return store


@pytest.fixture
def kernel_log() -> FakeLogs:
    return FakeLogs(source="kernel_log")


@pytest.fixture
def observatory(tmp_path: Path, autopilot: SmallAutopilot, store: FakeStore, kernel_log: FakeLogs) -> Observatory:
    scheduler = autopilot.cluster.scheduler
    return observatory_on(
        tmp_path / "lake", store, clock=autopilot.clock, scheduler=scheduler, kernel_logs=(kernel_log,)
    )


def rows(observatory: Observatory, table: str, *columns: str) -> list[tuple[object, ...]]:
    return cells(observatory.lake.read_hour(table, AT), *columns)


def conditions(autopilot: SmallAutopilot) -> set[tuple[Signal, str, str]]:
    return {(each.signal, each.node, each.source) for each in autopilot.cluster.ledger.conditions()}


class FullDisk(ParquetLake):
    """A lake that has no room for cycles of some tables."""

    def __init__(self, root: Path, *, tables: frozenset[str]) -> None:
        super().__init__(root)
        self._full = tables

    def write_cycle(self, table: str, rows: Rows, *, at: datetime, part: str = "") -> None:
        if table in self._full:
            raise LakeError(f"cannot write {table}: the disk is full")
        super().write_cycle(table, rows, at=at, part=part)


class ForgetfulLedger:
    """A ledger whose process dies before the cursor of the lake is kept, so many times."""

    def __init__(self, ledger: Ledger, *, deaths: int) -> None:
        self._ledger = ledger
        self._left = deaths

    def __getattr__(self, name: str) -> object:
        return getattr(self._ledger, name)

    def take_in(self, *, source: str, cursor: str | None, **rest: object) -> int:
        if source == "lake/kernel_log" and self._left:
            self._left -= 1
            raise LedgerError("the process died before the cursor was kept")
        return self._ledger.take_in(source=source, cursor=cursor, **rest)


# -- when --


@pytest.mark.parametrize(
    ("seconds", "newest"),
    [
        pytest.param(4.999999, -15, id="just before the grid time has settled"),
        pytest.param(5.0, 0, id="when it has"),
        pytest.param(5.000001, 0, id="just after"),
        pytest.param(19.999999, 0, id="just before the next"),
        pytest.param(20.0, 15, id="the next"),
    ],
)
def test_a_grid_time_is_read_when_scrapes_have_arrived(
    autopilot: SmallAutopilot, observatory: Observatory, seconds: float, newest: int
) -> None:
    autopilot.let_pass(seconds)

    assert next_grid_time(observatory, after=None) == AT + timedelta(seconds=newest)


def test_a_grid_time_that_was_done_is_never_done_again(autopilot: SmallAutopilot, observatory: Observatory) -> None:
    autopilot.let_pass(6)

    assert next_grid_time(observatory, after=AT) == AT + STEP


def test_cycles_that_were_missed_are_not_made_up_for(autopilot: SmallAutopilot, observatory: Observatory) -> None:
    autopilot.let_pass(10 * 15 + 5)

    assert next_grid_time(observatory, after=AT) == AT + 10 * STEP


def test_a_clock_that_was_set_back_does_not_bring_a_grid_time_again(
    autopilot: SmallAutopilot, observatory: Observatory
) -> None:
    autopilot.clock.set_back(3600)

    assert next_grid_time(observatory, after=AT) == AT + STEP


def test_the_same_cycle_run_twice_is_kept_once(autopilot: SmallAutopilot, observatory: Observatory) -> None:
    autopilot.let_pass(5)
    reports = [run_cycle(observatory, autopilot.cluster, at=AT) for _ in range(2)]

    assert [report.row_count for report in reports] == [1, 1]
    assert rows(observatory, "gpu_telemetry", "node", "device", "temperature_celsius") == [("gpu001", "GPU-a", 40.0)]
    assert str(reports[0]) == "07:00:00: 1 samples, 0 rejected, 1 rows, 0 log lines"


# -- what fails --


def test_without_metrics_the_kernel_log_is_kept(
    autopilot: SmallAutopilot, observatory: Observatory, store: FakeStore, kernel_log: FakeLogs
) -> None:
    store.failure = SourceUnavailable("prometheus did not answer")
    kernel_log.write("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.", at=AT)

    report = run_cycle(observatory, autopilot.cluster, at=AT)

    assert report.problems == ("prometheus: prometheus did not answer",)
    assert (report.line_count, report.row_count) == (1, 0)
    assert rows(observatory, "kernel_events", "node", "code", "unknown_node") == [("gpu001", 79, False)]
    assert autopilot.cluster.ledger.cursor("lake/kernel_log") == "1"


def test_what_a_store_answered_before_it_failed_is_kept(
    autopilot: SmallAutopilot, observatory: Observatory, store: FakeStore
) -> None:
    store.failure, store.pages_before_failure = SourceUnavailable("connection reset"), 1

    report = run_cycle(observatory, autopilot.cluster, at=AT)

    assert (report.row_count, report.problems) == (1, ("prometheus: connection reset",))


def test_without_one_log_the_others_and_the_metrics_are_kept(
    autopilot: SmallAutopilot, observatory: Observatory, kernel_log: FakeLogs
) -> None:
    kernel_log.failure = SourceUnavailable("no such journal")
    job_log = FakeLogs(source="job_logs")
    job_log.write("step 12 loss 2.5", node=None)
    observatory = replace(observatory, job_logs=(job_log,))

    report = run_cycle(observatory, autopilot.cluster, at=AT)

    assert (report.row_count, report.line_count) == (1, 1)
    assert report.problems == ("kernel_log: no such journal",)
    assert autopilot.cluster.ledger.cursor("lake/kernel_log") is None
    assert rows(observatory, "job_logs", "text", "time") == [("step 12 loss 2.5", AT)]


@pytest.mark.parametrize("written_at", [AT - timedelta(seconds=2), None], ids=["a line with a time", "one without"])
def test_a_line_is_one_row_though_the_process_died_before_its_cursor_was_kept(
    autopilot: SmallAutopilot, observatory: Observatory, kernel_log: FakeLogs, written_at: datetime | None
) -> None:
    ledger = cast("Ledger", ForgetfulLedger(autopilot.cluster.ledger, deaths=2))
    cluster = replace(autopilot.cluster, ledger=ledger)
    kernel_log.write("EXT4-fs error (device nvme0n1)", at=written_at)

    reports: list[CycleReport] = []
    for number in range(4):
        reports.append(run_cycle(observatory, cluster, at=AT + number * STEP))
        kernel_log.write(f"line after cycle {number}", at=written_at)

    assert [len(report.problems) for report in reports] == [1, 1, 0, 0]
    hours = (AT - timedelta(hours=1), AT)
    found = [cell for hour in hours for cell in cells(observatory.lake.read_hour("kernel_events", hour), "position")]
    assert sorted(found) == [("line-0",), ("line-1",), ("line-2",), ("line-3",)]


def test_a_line_that_came_late_is_in_the_hour_in_which_it_was_written(
    autopilot: SmallAutopilot, observatory: Observatory, kernel_log: FakeLogs
) -> None:
    kernel_log.write("late", at=AT - timedelta(minutes=30))
    observatory.lake.close_hour("kernel_events", AT - timedelta(hours=1))

    run_cycle(observatory, autopilot.cluster, at=AT)

    assert cells(observatory.lake.read_hour("kernel_events", AT - timedelta(hours=1)), "text") == [("late",)]
    assert observatory.lake.read_hour("kernel_events", AT).num_rows == 0


def test_a_full_disk_is_told_and_loses_no_more_than_it_must(
    tmp_path: Path, autopilot: SmallAutopilot, observatory: Observatory, store: FakeStore, kernel_log: FakeLogs
) -> None:
    store.add("node_load1", {"instance": "gpu002:9100"}, [Point(at=AT, value=1.0, known_at=AT)])
    store.add("DCGM_FI_DEV_XID_ERRORS", {"Hostname": "gpu001", "gpu": "0"}, [Point(at=AT, value=79.0, known_at=AT)])
    kernel_log.write("a line", at=AT)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=0)
    full = replace(observatory, lake=FullDisk(tmp_path / "lake", tables=frozenset({"gpu_telemetry", "kernel_events"})))
    autopilot.let_pass(5)

    report = run_cycle(full, autopilot.cluster, at=AT)
    after = run_cycle(observatory, autopilot.cluster, at=AT + STEP)

    assert sorted(report.problems) == [
        "cannot write gpu_telemetry: the disk is full",
        "kernel_log: cannot write kernel_events: the disk is full",
    ]
    assert rows(observatory, "node_telemetry", "node", "unknown_node")[0] == ("gpu002", False)
    assert report.new_evidence_count > 0
    assert not after.problems
    assert rows(observatory, "kernel_events", "text") == [("a line",)]


def test_an_empty_answer_keeps_nothing_and_is_no_problem(
    autopilot: SmallAutopilot, observatory: Observatory, store: FakeStore
) -> None:
    store.series = []

    report = run_cycle(observatory, autopilot.cluster, at=AT)

    assert (report.read_count, report.row_count, report.new_evidence_count, report.problems) == (0, 0, 0, ())


def test_a_warning_of_the_store_is_told(autopilot: SmallAutopilot, observatory: Observatory, store: FakeStore) -> None:
    store.notes = ("store 2 did not answer",)

    report = run_cycle(observatory, autopilot.cluster, at=AT)

    assert set(report.problems) == {"prometheus: store 2 did not answer"}
    assert report.row_count == 1


# -- what is not believed --


def test_rejected_samples_are_kept_with_their_exporter(autopilot: SmallAutopilot, observatory: Observatory) -> None:
    impossible = 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} -5000\n'
    exporters = FakeExporters(texts={"gpu001": impossible, "gpu002": impossible, "gpu003": "<html>\n"})
    observatory = replace(observatory, metrics=(exporters,))

    report = run_cycle(observatory, autopilot.cluster, at=AT)

    kept = rows(observatory, "rejected_rows", "source", "reason", "time")
    assert report.rejected_count == len(kept) == 3
    assert kept[:2] == [("exporter gpu001:9400", "out_of_range", AT), ("exporter gpu002:9400", "out_of_range", AT)]


def test_a_node_that_cluster_yaml_lacks_is_kept_and_marked(
    autopilot: SmallAutopilot, observatory: Observatory, store: FakeStore, kernel_log: FakeLogs
) -> None:
    store.add("node_load1", {"instance": "stranger:9100"}, [Point(at=AT, value=1.0, known_at=AT)])
    kernel_log.write("a line", node="stranger", at=AT)
    kernel_log.write("a line", node="GPU002.site.example", at=AT)

    run_cycle(observatory, autopilot.cluster, at=AT)

    assert rows(observatory, "node_telemetry", "node", "unknown_node") == [("stranger", True)]
    assert rows(observatory, "kernel_events", "node", "unknown_node") == [("stranger", True), ("gpu002", False)]


# -- what it means --


FAULTS: Mapping[str, tuple[FaultKind, ...]] = {
    "nothing": (),
    "a GPU off the bus": (FaultKind.GPU_FELL_OFF_BUS,),
    "memory errors": (FaultKind.UNCORRECTABLE_ECC,),
    "both": (FaultKind.GPU_FELL_OFF_BUS, FaultKind.UNCORRECTABLE_ECC),
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_the_cycle_tells_the_conditions_that_the_sensor_would_tell(
    tmp_path: Path, faults: tuple[FaultKind, ...]
) -> None:
    found: list[set[tuple[Signal, str, str]]] = []
    for name in ("sensor", "cycle"):
        autopilot = SmallAutopilot(tmp_path / name, node_count=3)
        for number, kind in enumerate(faults):
            autopilot.twin.inject(kind, f"gpu00{number + 1}", gpu=2)
        autopilot.let_pass(30)
        if name == "sensor":
            take_in_conditions(autopilot.cluster)
        else:
            source = SimulatedMetrics(autopilot.twin)
            observatory = observatory_on(
                tmp_path / "lake", source, clock=autopilot.clock, scheduler=autopilot.cluster.scheduler
            )
            run_cycle(observatory, autopilot.cluster, at=AT + timedelta(seconds=30))
        found.append(conditions(autopilot))

    assert found[0] == found[1]
    assert bool(found[0]) == bool(faults)


def test_a_condition_that_lasts_is_told_once(autopilot: SmallAutopilot, observatory: Observatory) -> None:
    observatory = replace(observatory, metrics=(SimulatedMetrics(autopilot.twin),))
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=2)
    counts = []
    for number in range(1, 4):
        autopilot.let_pass(15)
        counts.append(run_cycle(observatory, autopilot.cluster, at=AT + number * STEP).new_evidence_count)

    assert counts[0] > 0
    assert counts[1:] == [0, 0]


def test_a_node_that_somebody_else_drained_is_not_told(autopilot: SmallAutopilot, observatory: Observatory) -> None:
    observatory = replace(observatory, metrics=(SimulatedMetrics(autopilot.twin),))
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="rack 1 (day-shift)")
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=2)
    autopilot.let_pass(15)

    assert run_cycle(observatory, autopilot.cluster, at=AT + STEP).new_evidence_count == 0
    assert conditions(autopilot) == set()


def test_while_the_scheduler_is_silent_rows_are_kept_and_the_metrics_are_told(
    autopilot: SmallAutopilot, observatory: Observatory
) -> None:
    observatory = replace(observatory, metrics=(SimulatedMetrics(autopilot.twin),))
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=2)
    autopilot.let_pass(15)
    cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", NoScheduler()))

    report = run_cycle(observatory, cluster, at=AT + STEP)

    assert report.problems == ("slurmctld did not answer",)
    assert report.row_count > 0
    assert {signal for signal, *_ in conditions(autopilot)} == {Signal.GPU_MISSING}


@pytest.mark.parametrize(
    ("days", "is_kept"), [(-31.001, False), (-31, True), (-1, True), (0.003, True), (0.004, False), (9_000, False)]
)
def test_a_line_that_states_a_time_out_of_reach_counts_as_written_when_met(days: float, is_kept: bool) -> None:
    stated = AT + timedelta(days=days)
    rows = TABLES["job_logs"].from_rows([{"source": "s", "position": "1", "time": stated}])

    (time,) = within_reach(rows, of=AT)["time"].to_pylist()

    assert time == (stated if is_kept else AT)


# -- what lines mean --


def evidence(autopilot: SmallAutopilot) -> list[tuple[Signal, str, str, str | None, float | None]]:
    rows = autopilot.cluster.ledger.evidence_after(0, limit=100)
    found = [each.observation for each in rows]
    return [(each.signal, each.source, each.position, each.signature, each.value) for each in found]


def test_a_line_whose_signature_means_something_is_evidence_once(
    autopilot: SmallAutopilot, observatory: Observatory, kernel_log: FakeLogs
) -> None:
    job_log = FakeLogs(source="job_logs")
    observatory = replace(observatory, job_logs=(job_log,))
    kernel_log.write("EXT4-fs error (device nvme0n1): ext4_find_entry:1455: inode #2: comm sh: reading", at=AT)
    kernel_log.write("kernel: NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.", at=AT)
    job_log.write("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB", at=AT)
    job_log.write("[Rank 0] step 12 loss 2.5", at=AT)

    reports = [run_cycle(observatory, autopilot.cluster, at=AT + number * STEP) for number in range(2)]

    found = evidence(autopilot)
    assert [(signal, source, position) for signal, source, position, _, _ in found] == [
        (Signal.LOG_SIGNATURE, "kernel_log", "line-0"),
        (Signal.LOG_SIGNATURE, "job_logs", "line-0"),
    ]
    assert [report.new_evidence_count for report in reports] == [2, 0]


def test_a_line_is_one_piece_of_evidence_though_the_process_died_before_its_cursor_was_kept(
    autopilot: SmallAutopilot, observatory: Observatory, kernel_log: FakeLogs
) -> None:
    dying = replace(autopilot.cluster, ledger=cast("Ledger", ForgetfulLedger(autopilot.cluster.ledger, deaths=1)))
    kernel_log.write("EXT4-fs error (device nvme0n1): ext4_find_entry:1455: inode #2: comm sh: reading", at=AT)

    reports = [run_cycle(observatory, dying, at=AT + number * STEP) for number in range(2)]

    assert [report.new_evidence_count for report in reports] == [0, 1]
    assert len(evidence(autopilot)) == 1


def test_a_flood_of_one_line_is_bounded_in_evidence_and_whole_in_the_lake(
    autopilot: SmallAutopilot, observatory: Observatory, kernel_log: FakeLogs
) -> None:
    for number in range(300):
        text = "EXT4-fs error (device nvme0n1): ext4_find_entry:1455: inode #2: comm sh: reading"
        kernel_log.write(text, at=AT + timedelta(milliseconds=number))

    run_cycle(observatory, autopilot.cluster, at=AT + STEP)

    assert [value for *_, value in evidence(autopilot)] == [1.0, 1.0, 1.0, 1.0, 300.0]
    assert len(rows(observatory, "kernel_events", "position")) == 300


# -- what the detectors see --


class Detectors:
    """A detector that sees one thing while a GPU is warmer than a limit, and keeps the panels that it was shown."""

    def __init__(self, *, limit_celsius: float = 40.5) -> None:
        self.limit_celsius = limit_celsius
        self.panels: list[Panel] = []
        self.fault: Exception | None = None

    def __call__(self, panel: Panel) -> tuple[Detection, ...]:
        self.panels.append(panel)
        if self.fault is not None:
            raise self.fault
        hot = panel.gpus.value("temperature_celsius")[-1] > self.limit_celsius
        at = panel.time(-1)
        return tuple(
            Detection(
                signal=Signal.GPU_HOT, node=part.node, began_at=at, first_seen_at=at, last_seen_at=at, text="warm",
                gpu=PciAddress("0000:18:00"),
            )
            for part, is_hot in zip(panel.gpus.parts, hot.tolist(), strict=True)
            if is_hot
        )  # fmt: skip


@pytest.fixture
def window(observatory: Observatory) -> LiveWindow:
    found, trouble = begin_window(observatory, before=AT)
    assert trouble is None
    return seen_all_along(found)


def seen_all_along(window: LiveWindow) -> LiveWindow:
    """Return the window with metrics from as far back as detectors look: what is not reported is gone."""
    for ago in range(LOOKBACK_SECONDS, 0, -240):
        at = AT - timedelta(seconds=ago)
        row = {"node": "gpu002", "device": "", "time": at, "cpu_user_seconds": at.timestamp()}
        window.add("node_telemetry", TABLES["node_telemetry"].from_rows([row]), at=at)
    return window


def hot(autopilot: SmallAutopilot) -> list[str]:
    return [each.node for each in autopilot.cluster.ledger.conditions() if each.signal is Signal.GPU_HOT]


def test_what_the_detectors_see_is_evidence_from_the_cycle_on_in_which_they_see_it(
    autopilot: SmallAutopilot, observatory: Observatory, window: LiveWindow
) -> None:
    detectors = Detectors()
    counts = []
    for number in range(3):
        autopilot.let_pass(15)
        report = run_cycle(observatory, autopilot.cluster, at=AT + number * STEP, window=window, detect=(detectors,))
        counts.append(report.new_evidence_count)

    assert counts == [0, 1, 0]
    assert hot(autopilot) == ["gpu001"]
    temperatures = detectors.panels[-1].gpus.value("temperature_celsius")[-3:, 0]
    assert temperatures.tolist() == [40.0, 41.0, 42.0]
    (part,) = detectors.panels[-1].gpus.parts
    assert (part.node, part.uuid, part.device) == ("gpu001", GpuUuid("GPU-a"), "GPU-a")


@pytest.mark.parametrize("failure", [SourceUnavailable("prometheus did not answer"), None], ids=["failed", "empty"])
def test_a_blind_cycle_is_said_to_be_blind_and_ends_no_condition(
    autopilot: SmallAutopilot,
    observatory: Observatory,
    store: FakeStore,
    window: LiveWindow,
    failure: SourceUnavailable | None,
) -> None:
    detectors = Detectors(limit_celsius=0)
    run_cycle(observatory, autopilot.cluster, at=AT, window=window, detect=(detectors,))
    series, store.failure = store.series, failure
    if failure is None:
        store.series = []

    blind = run_cycle(observatory, autopilot.cluster, at=AT + STEP, window=window, detect=(detectors,))
    during = hot(autopilot)
    store.failure, store.series, detectors.limit_celsius = None, series, 1000.0
    after = run_cycle(observatory, autopilot.cluster, at=AT + 2 * STEP, window=window, detect=(detectors,))

    assert blind.problems[-1] == "no metrics came: the detectors saw nothing, and what they had found stays"
    assert during == ["gpu001"]
    assert (hot(autopilot), after.problems) == ([], ())


def test_half_an_answer_may_begin_a_condition_and_ends_none(
    autopilot: SmallAutopilot, observatory: Observatory, store: FakeStore, window: LiveWindow
) -> None:
    detectors = Detectors(limit_celsius=0)
    run_cycle(observatory, autopilot.cluster, at=AT, window=window, detect=(detectors,))
    store.failure, store.pages_before_failure, detectors.limit_celsius = SourceUnavailable("reset"), 1, 1000.0

    half = run_cycle(observatory, autopilot.cluster, at=AT + STEP, window=window, detect=(detectors,))

    assert half.problems == ("prometheus: reset",)
    assert hot(autopilot) == ["gpu001"]


def test_a_detector_that_raises_costs_nothing_but_its_verdict(
    autopilot: SmallAutopilot, observatory: Observatory, kernel_log: FakeLogs, window: LiveWindow
) -> None:
    detectors = Detectors(limit_celsius=0)
    run_cycle(observatory, autopilot.cluster, at=AT, window=window, detect=(detectors,))
    detectors.fault = ZeroDivisionError("no peers")
    kernel_log.write("a line", at=AT)

    report = run_cycle(observatory, autopilot.cluster, at=AT + STEP, window=window, detect=(detectors,))

    assert report.problems == ("Detectors failed: ZeroDivisionError: no peers; what had been found stays",)
    assert (report.row_count, report.line_count) == (1, 1)
    assert hot(autopilot) == ["gpu001"]


def test_a_full_disk_does_not_blind_the_detectors(
    tmp_path: Path, autopilot: SmallAutopilot, observatory: Observatory, window: LiveWindow
) -> None:
    full = replace(observatory, lake=FullDisk(tmp_path / "lake", tables=frozenset({"gpu_telemetry"})))

    run_cycle(full, autopilot.cluster, at=AT, window=window, detect=(Detectors(limit_celsius=0),))

    assert hot(autopilot) == ["gpu001"]


def test_a_window_that_was_primed_sees_the_cycles_of_the_process_before(
    autopilot: SmallAutopilot, observatory: Observatory, window: LiveWindow
) -> None:
    for number in range(3):
        run_cycle(observatory, autopilot.cluster, at=AT + number * STEP, window=window, detect=(Detectors(),))
    fresh, trouble = begin_window(observatory, before=AT + 3 * STEP)

    panels = [each.panel(AT + 2 * STEP) for each in (window, fresh)]

    assert trouble is None
    assert panels[0].gpus.parts == panels[1].gpus.parts
    assert panels[1].gpus.value("temperature_celsius")[-3:, 0].tolist() == [40.0, 41.0, 42.0]


def test_a_lake_that_cannot_be_read_is_told_and_the_window_begins_empty(
    tmp_path: Path, observatory: Observatory
) -> None:
    class Damaged(ParquetLake):
        def read(self, *args: object, **options: object) -> object:
            raise LakeError("cannot read gpu_telemetry: not a Parquet file")

    window, trouble = begin_window(replace(observatory, lake=Damaged(tmp_path / "lake")), before=AT)

    assert (
        trouble
        == "the detectors begin without part of the cycles before: cannot read gpu_telemetry: not a Parquet file"
    )
    assert window.cycle_count == 0


RUNNING = JobStatus(
    job=JobId("7"), state=JobState.RUNNING, is_held=False, is_requeueable=True, name="train", user="ada",
    account="ml", workload=Workload.TRAINING, nodes=frozenset({NodeName("gpu001")}), gpu_count=8,
    started_at=AT - timedelta(hours=1), ended_at=None, restart_count=0, excluded_nodes=frozenset(),
    checkpointed_at=None,
)  # fmt: skip


class JobsOnly:
    """A scheduler that names jobs while it answers."""

    def __init__(self, *jobs: JobStatus) -> None:
        self.jobs = jobs
        self.is_silent = False

    def read_nodes(self) -> tuple[()]:
        return ()

    def read_jobs(self) -> tuple[JobStatus, ...]:
        if self.is_silent:
            raise SourceUnavailable("slurmctld did not answer")
        return self.jobs


def test_who_holds_a_node_is_what_the_scheduler_said_last(
    autopilot: SmallAutopilot, observatory: Observatory, window: LiveWindow
) -> None:
    scheduler = JobsOnly(RUNNING)
    cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", scheduler))
    detectors = Detectors()
    run_cycle(observatory, cluster, at=AT, window=window, detect=(detectors,))
    scheduler.is_silent = True

    report = run_cycle(observatory, cluster, at=AT + STEP, window=window, detect=(detectors,))

    panel = detectors.panels[-1]
    assert report.problems == ("slurmctld did not answer",)
    assert [panel.job(held) for held in panel.held_by[-2:, 0].tolist()] == ["7", "7"]


def test_the_declared_release_reaches_the_detectors(autopilot: SmallAutopilot, observatory: Observatory) -> None:
    drifts = []
    for release in ({"driver": "580"}, {"driver": "570"}, {}):
        declared = replace(observatory, release=release)
        window, _ = begin_window(declared, before=AT)
        seen_all_along(window).add("gpu_telemetry", driver_rows("570"), at=AT)
        run_cycle(declared, autopilot.cluster, at=AT, window=window)
        conditions = autopilot.cluster.ledger.conditions()
        drifts.append([each.node for each in conditions if each.signal is Signal.VERSION_DRIFT])

    assert drifts == [["gpu001"], [], []]


def test_what_repeats_on_one_gpu_is_told_by_the_cycle(
    autopilot: SmallAutopilot, observatory: Observatory, window: LiveWindow
) -> None:
    row = {"node": "gpu001", "device": "GPU-a", "kind": "gpu", "uuid": "GPU-a", "pci_address": "0000:18:00"}
    observatory.lake.add("inventory", TABLES["inventory"].from_rows([{**row, "time": AT - timedelta(hours=6)}]))
    again = [
        Observation(
            signal=Signal.XID, node=NodeName("gpu001"), observed_at=AT - ago, source="log", position=str(ago), code=48,
            gpu=PciAddress("0000:18:00"),
        )
        for ago in (timedelta(hours=2), timedelta(minutes=1))
    ]  # fmt: skip
    autopilot.cluster.ledger.take_in(source="log", observations=again, rejected=(), cursor=None, now=AT)

    reports = [
        run_cycle(observatory, autopilot.cluster, at=AT + number * STEP, window=window, detect=(Detectors(),))
        for number in range(5)
    ]

    told = [each.observation for each in autopilot.cluster.ledger.evidence_after(0, limit=99)]
    assert [each.signature for each in told if each.signal is Signal.REPEATED] == ["xid_48"]
    assert [report.problems for report in reports] == [()] * 5
    assert reports[0].new_evidence_count == 1


def test_a_history_that_cannot_be_read_costs_nothing_but_the_count(
    autopilot: SmallAutopilot, observatory: Observatory, window: LiveWindow
) -> None:
    class NoHistory:
        def __getattr__(self, name: str) -> object:
            return getattr(autopilot.cluster.ledger, name)

        def evidence_since(self, *args: object, **options: object) -> object:
            raise LedgerError("the ledger is busy")

    cluster = replace(autopilot.cluster, ledger=cast("Ledger", NoHistory()))

    report = run_cycle(observatory, cluster, at=AT, window=window, detect=(Detectors(),))

    assert report.problems == ("repetitions were not counted: LedgerError: the ledger is busy",)
    assert report.row_count == 1


def driver_rows(version: str) -> Rows:
    return TABLES["gpu_telemetry"].from_rows(
        {
            "node": "gpu001", "device": f"GPU-a-{number}", "time": AT + number * STEP - 39 * STEP,
            "driver_version": version, "temperature_celsius": 40.0,
        }
        for number in range(40)
    )  # fmt: skip


def test_lines_of_jobs_that_could_not_be_read_are_no_silence(
    autopilot: SmallAutopilot, observatory: Observatory, window: LiveWindow
) -> None:
    job_log = FakeLogs(source="job_logs")
    job_log.lines.append(LogLine(node=None, written_at=AT, position="1", text="step 1 loss 2.5", job="7"))
    observatory = replace(observatory, job_logs=(job_log,))
    detectors = Detectors()
    run_cycle(observatory, autopilot.cluster, at=AT, window=window, detect=(detectors,))
    job_log.failure = SourceUnavailable("no such mount")

    run_cycle(observatory, autopilot.cluster, at=AT + STEP, window=window, detect=(detectors,))

    counts = [panel.jobs.value("line_count")[-1, 0].item() for panel in detectors.panels]
    assert counts[0] == 1.0
    assert counts[1] != counts[1]  # not known
