"""The window of the live cycle: bounded, the same after a restart, and silent where nothing was seen."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.identity import JobId, NodeName, PciAddress
from ops_pipelines.core.observation import (
    NO_NODE,
    JobState,
    JobStatus,
    NodeState,
    NodeStatus,
    Observation,
    Signal,
    Workload,
)
from ops_pipelines.core.sources import LakeError, Rows
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.panels.grid import joined_rows, panel_rows
from ops_pipelines.observe.panels.panel import LOOKBACK_SECONDS, Detection, Detector, Panel
from ops_pipelines.observe.panels.tables import RollingPanel, panel_from_tables
from ops_pipelines.observe.window import (
    ENDED_AT_MOST,
    FAILURES_REACH,
    LONGEST_GAP,
    MARGIN,
    RESUMED,
    LiveWindow,
    Sight,
    tell_detections,
)
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from tests.flow.fake_store import topology_of
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import BEGINNING as AT

STEP = timedelta(seconds=15)
LOOKBACK = LOOKBACK_SECONDS
TOPOLOGY = topology_of("gpu001", "gpu002", "gpu003")
PCI = PciAddress("0000:18:00")
N1, N2 = NodeName("gpu001"), NodeName("gpu002")


def grid(number: int) -> datetime:
    return AT + number * STEP


def gpu_rows(at: datetime, *nodes: str, pci: str = PCI, job: str | None = None) -> pa.Table:
    return TABLES["gpu_telemetry"].from_rows(
        {
            "node": node, "device": f"GPU-{node}-{pci}", "time": at, "pci_address": pci, "job": job,
            "power_watts": 400.0 + at.second, "energy_joules": at.timestamp(),
        }
        for node in nodes
    )  # fmt: skip


def node_rows(at: datetime, *nodes: str) -> pa.Table:
    return TABLES["node_telemetry"].from_rows(
        {"node": node, "device": "", "time": at, "cpu_user_seconds": at.timestamp(), "cpu_system_seconds": 1.0}
        for node in nodes
    )


def line_rows(*times: datetime, job: str = "7", source: str = "job_logs") -> pa.Table:
    return TABLES["job_logs"].from_rows(
        {"source": source, "position": f"{at.isoformat()}-{number}", "time": at, "job": job, "step": number}
        for number, at in enumerate(times)
    )


def window_of() -> LiveWindow:
    return LiveWindow(topology=TOPOLOGY, step=STEP)


def job(
    name: str, *nodes: str, started: datetime, ended: datetime | None = None, state: JobState = JobState.RUNNING
) -> JobStatus:
    return JobStatus(
        job=JobId(name), state=state, is_held=False, is_requeueable=True, name="train", user="ada", account="ml",
        workload=Workload.TRAINING, nodes=frozenset(map(NodeName, nodes)), gpu_count=8 * len(nodes),
        started_at=started, ended_at=ended, restart_count=0, excluded_nodes=frozenset(), checkpointed_at=None,
    )  # fmt: skip


def holders(panel: Panel, node: str) -> list[str | None]:
    (place,) = [number for number, part in enumerate(panel.nodes.parts) if part.node == node]
    return [None if held < 0 else panel.job(held) for held in panel.held_by[:, place].tolist()]


def assert_same(one: Panel, other: Panel) -> None:
    np.testing.assert_array_equal(one.times, other.times)
    assert [part.node for part in one.nodes.parts] == [part.node for part in other.nodes.parts]
    names = [[None if held < 0 else each.job(held) for held in each.held_by.ravel().tolist()] for each in (one, other)]
    assert names[0] == names[1]
    for name in ("gpus", "nodes", "ports", "disks", "racks", "jobs"):
        first, second = getattr(one, name), getattr(other, name)
        assert first.parts == second.parts, name
        for quantity in first.values.keys() | second.values.keys():
            np.testing.assert_array_equal(first.value(quantity), second.value(quantity), err_msg=quantity)


# -- what it holds --


def test_the_panel_reaches_from_the_cycle_as_far_back_as_detectors_look() -> None:
    window = window_of()
    window.add("gpu_telemetry", gpu_rows(AT, "gpu001"), at=AT)

    panel = window.panel(AT)

    assert panel.time(-1) == AT
    assert panel.time(0) == AT - timedelta(seconds=LOOKBACK_SECONDS)
    assert panel.gpus.value("power_watts")[-1, 0] == 400.0
    assert [part.node for part in panel.nodes.parts] == ["gpu001", "gpu002", "gpu003"]


def test_it_forgets_what_no_detector_looks_at() -> None:
    window = window_of()
    count = (LOOKBACK_SECONDS + 2 * int(MARGIN.total_seconds())) // 15 + 50
    sizes = []
    for number in range(count):
        window.add("gpu_telemetry", gpu_rows(grid(number), "gpu001"), at=grid(number))
        sizes.append(window.cycle_count)

    assert max(sizes) == sizes[-1] == LOOKBACK_SECONDS // 15 + 1  # as many as a panel has times
    assert not np.isnan(window.panel(grid(count - 1)).gpus.value("power_watts")).any()


def test_cycles_that_name_the_same_devices_share_their_matrices() -> None:
    window = window_of()
    for number in range(3):
        window.add("gpu_telemetry", gpu_rows(grid(number), "gpu001", "gpu002"), at=grid(number))
    first = window.panel(grid(2)).gpus.value("energy_joules")
    window.add("gpu_telemetry", gpu_rows(grid(3), "gpu001", "gpu002"), at=grid(3))

    second = window.panel(grid(3)).gpus.value("energy_joules")

    assert np.shares_memory(first, second)
    np.testing.assert_array_equal(first[1:], second[:-1])


def test_tables_that_no_panel_is_made_of_and_empty_rows_are_passed_over() -> None:
    window = window_of()
    window.add(
        "kernel_events", TABLES["kernel_events"].from_rows([{"source": "k", "position": "1", "time": AT}]), at=AT
    )
    window.add("gpu_telemetry", gpu_rows(AT), at=AT)

    assert window.cycle_count == 0


def test_a_missed_cycle_is_a_gap() -> None:
    window = window_of()
    for number in (0, 2):
        window.add("gpu_telemetry", gpu_rows(grid(number), "gpu001"), at=grid(number))

    energy = window.panel(grid(2)).gpus.value("energy_joules")[-3:, 0]

    assert np.isnan(energy).tolist() == [False, True, False]


def test_it_remembers_the_gpus_of_a_node_when_they_are_gone() -> None:
    window = window_of()
    window.add("gpu_telemetry", gpu_rows(AT, "gpu001", "gpu002"), at=AT)
    window.add("gpu_telemetry", gpu_rows(grid(1), "gpu001", pci="0000:2a:00"), at=grid(1))

    assert window.gpus == {"gpu001": {PCI, "0000:2a:00"}, "gpu002": {PCI}}


# -- jobs and their logs --


def test_an_attempt_lasts_until_the_scheduler_names_it_no_longer() -> None:
    window = window_of()
    first = job("7", "gpu001", started=AT - timedelta(hours=3))
    window.note_jobs([first], at=AT)
    window.note_jobs([first], at=grid(1))
    window.note_jobs([], at=grid(3))
    window.note_jobs([job("8", "gpu001", started=grid(4), state=JobState.COMPLETED, ended=grid(5))], at=grid(6))

    panel = window.panel(grid(6))

    assert holders(panel, "gpu001")[-7:] == ["7", "7", "7", None, "8", None, None]
    assert set(holders(panel, "gpu001")[:-7]) == {"7"}


def test_a_job_that_began_anew_elsewhere_has_left_its_nodes() -> None:
    window = window_of()
    window.note_jobs([job("7", "gpu001", started=AT)], at=grid(1))
    window.note_jobs([job("7", "gpu002", started=grid(2))], at=grid(3))

    panel = window.panel(grid(3))

    assert holders(panel, "gpu001")[-4:] == ["7", "7", None, None]
    assert holders(panel, "gpu002")[-4:] == [None, None, "7", "7"]


def test_a_pending_job_holds_nothing_and_ended_attempts_are_forgotten() -> None:
    window = window_of()
    window.note_jobs(
        [job("7", "gpu001", started=grid(9), state=JobState.PENDING), job("8", "gpu002", started=AT)], at=AT
    )
    much_later = AT + timedelta(seconds=LOOKBACK_SECONDS) + MARGIN + 2 * STEP
    window.note_jobs([], at=grid(1))
    window.note_jobs([], at=much_later)

    assert set(holders(window.panel(grid(1)), "gpu001")) == {None}
    assert window.attempt_count == 0


@pytest.mark.parametrize(
    ("are_read", "counts"),
    [
        pytest.param((True, True, True), [1.0, 1.0, 1.0], id="silence"),
        pytest.param((True, True, False), [1.0, 1.0, None], id="not read at the newest cycle"),
        pytest.param((True, False, False), [1.0, None, None], id="not read since the first"),
        pytest.param((False, False, False), [None, None, None], id="never read"),
        pytest.param((True, False, True), [1.0, 1.0, 1.0], id="read again: nothing was missed"),
    ],
)
def test_lines_that_could_not_be_read_are_no_silence(are_read: Sequence[bool], counts: list[float | None]) -> None:
    window = window_of()
    window.add("job_logs", line_rows(AT - STEP), at=AT)
    window.add("job_logs", line_rows(AT), at=AT)
    for number, is_read in enumerate(are_read):
        window.note_lines(are_read=is_read, at=grid(number))

    lines = window.panel(grid(2)).jobs.value("line_count")[-3:, 0]

    assert [None if np.isnan(count) else float(count) - 1 for count in lines] == counts


# -- after a restart --


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_process_that_was_started_anew_sees_what_the_old_one_saw(data: st.DataObject) -> None:
    lake = ParquetLake(f"memory://{uuid4().hex}")
    old, fresh = window_of(), window_of()
    # Some cycles before and some after the hour's border, and some beyond the reach of the panel.
    cycles = sorted(data.draw(st.sets(st.integers(-250, -1), min_size=1, max_size=12)))
    for number in cycles:
        nodes = data.draw(st.lists(st.sampled_from(["gpu001", "gpu002", "stranger"]), unique=True, min_size=1))
        lag = timedelta(seconds=data.draw(st.integers(0, 40)))
        tables = {
            "gpu_telemetry": gpu_rows(grid(number), *nodes, job=data.draw(st.sampled_from(["7", "8", None]))),
            "node_telemetry": node_rows(grid(number), *nodes),
            "job_logs": line_rows(grid(number) - lag, grid(number) + timedelta(minutes=3)),
        }
        for table, rows in tables.items():
            lake.add(table, rows)
            old.add(table, rows, at=grid(number))

    fresh.prime(lake, before=AT)
    for window in (old, fresh):
        window.add("gpu_telemetry", gpu_rows(AT, "gpu001"), at=AT)
        window.note_lines(are_read=True, at=AT)

    assert_same(fresh.panel(AT), old.panel(AT))
    assert_same(fresh.panel(grid(30)), old.panel(grid(30)))


ROWS = 10
"""Times of a short panel: much comes and goes in few cycles."""


def few_rows(draw: Random, table: str, at: datetime) -> pa.Table:
    """Return rows of a cycle: names that move, values that are missing, and times that are odd now and then."""
    is_odd = draw.random() < 0.1
    found = []
    for node in draw.sample(["gpu001", "gpu002", "stranger"], draw.randint(0, 3)):
        for device in draw.sample(DEVICES[table], draw.randint(1, 2)):
            lag = draw.choice([0, 0, 0, -4, -15, -30, -31, 7, 15]) if is_odd else 0
            row: dict[str, object] = {"node": node, "device": device, "time": at + timedelta(seconds=lag)}
            if table == "gpu_telemetry":
                row["pci_address"] = draw.choice([f"0000:{ord(device[-1]):x}:00"] * 9 + [PCI, None])
                row["job"] = draw.choice(["7", "8", "7,8", None])
                row["gpu_model"] = draw.choice(["H100", None])
            row |= {name: draw.choice([0.1, 1.0, 2.0, 3.0, None]) for name in draw.sample(QUANTITIES[table], 2)}
            found.append(row)
    return TABLES[table].from_rows(found)


DEVICES = {
    "gpu_telemetry": ["GPU-a", "GPU-b", "GPU-c"],
    "fabric_telemetry": ["mlx5_0:1", "mlx5_1:1", "switch:s1/3"],
    "facility_telemetry": ["", "rack:r1", "inlet 1", "fan 2"],
    "node_telemetry": ["", "fs:/", "edac:0"],
}
QUANTITIES = {
    "gpu_telemetry": ["power_watts", "energy_joules", "ecc_correctable_volatile_count"],
    "fabric_telemetry": ["link_state", "receive_bytes", "transmit_bytes", "legacy_receive_bytes"],
    "facility_telemetry": ["temperature_celsius", "bmc_temperature_celsius", "inlet_temperature_celsius", "healthy"],
    "node_telemetry": [
        "cpu_user_seconds", "cpu_system_seconds", "filesystem_size_bytes", "filesystem_available_bytes",
        "edac_correctable_count",
    ],
}  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_a_panel_that_moved_on_is_the_one_that_is_made_anew(seed: int) -> None:
    """Cell for cell: over cycles that are missing or late, parts that come, go and are exchanged, and a restart."""
    draw, number = Random(seed), 0
    moving = RollingPanel(topology=TOPOLOGY, step_seconds=15, row_count=ROWS)
    kept: dict[str, list[pa.Table]] = {}
    for _ in range(40):
        number += draw.choice([1] * 12 + [2, 5, 14])
        begin, end = grid(number - ROWS + 1), grid(number) + timedelta(microseconds=1)
        if draw.random() < 0.05:  # the process was started again, and reads the lake
            moving = RollingPanel(topology=TOPOLOGY, step_seconds=15, row_count=ROWS)
            for table, parts in kept.items():
                moving.add(table, joined_rows(parts), at=grid(number))
        for table in draw.sample(sorted(DEVICES), draw.randint(0, 4)):
            is_late = draw.random() < 0.1
            rows = panel_rows(table, few_rows(draw, table, grid(number - draw.choice([1, 3]) * is_late)))
            if rows.num_rows:
                kept.setdefault(table, []).append(rows)
                moving.add(table, rows, at=grid(number))
        jobs = [job("9", "gpu002", started=grid(max(0, number - 4)))]

        moved = moving.panel({}, start=begin, end=end, jobs=jobs, lines_until=None)

        if draw.random() < 0.6:  # what a cycle left wrong is wrong in those that follow
            continue
        tables = {table: joined_rows(parts) for table, parts in kept.items()}
        anew = panel_from_tables(tables, start=begin, end=end, step_seconds=15, topology=TOPOLOGY, jobs=jobs)
        assert_same(moved, anew)
        np.testing.assert_array_equal(moved.held_by, anew.held_by)


def steady_rows(number: int, *, errors: Mapping[str, float | None], leave_out: Collection[str] = ()) -> pa.Table:
    """Return a cycle in which all but the energy stays as it is; `errors` None: the counter is missing."""
    shared: dict[str, object] = {"node": "gpu001", "time": grid(number), "energy_joules": number + 0.1}
    labels: dict[str, object] = {"gpu_model": "H100", "job": "7"}
    return TABLES["gpu_telemetry"].from_rows(
        [
            shared | labels | {"device": gpu, "ecc_correctable_volatile_count": count}
            for gpu, count in errors.items()
            if gpu not in leave_out
        ]
    )


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"errors": {"GPU-a": 3.0, "GPU-b": 0.0}}, id="a value changes"),
        pytest.param({"errors": {"GPU-a": 2.0, "GPU-b": None}}, id="a value is missing"),
        pytest.param({"errors": {"GPU-a": None, "GPU-b": None}}, id="the column is missing"),
        pytest.param({"errors": {"GPU-a": 2.0, "GPU-b": 0.0}, "leave_out": {"GPU-b"}}, id="a row is missing"),
        pytest.param({"errors": {"GPU-a": 2.0, "GPU-b": 0.0, "GPU-c": 1.0}}, id="a part is new"),
        pytest.param({"errors": {"GPU-a": 2.0, "GPU-b": 1e9 + 1}}, id="a value needs more digits"),
    ],
)
def test_what_never_changes_is_kept_once_and_shows_the_same_cells(odd: dict[str, Any]) -> None:
    moving = RollingPanel(topology=TOPOLOGY, step_seconds=15, row_count=ROWS)
    kept: list[pa.Table] = []
    steady_count = 0
    for number in range(4 * ROWS):
        cycle = odd if number == 2 * ROWS else {"errors": {"GPU-a": 2.0, "GPU-b": 0.0}}
        rows = panel_rows("gpu_telemetry", steady_rows(number, **cycle))
        kept.append(rows)
        moving.add("gpu_telemetry", rows, at=grid(number))
        begin, end = grid(number - ROWS + 1), grid(number) + timedelta(microseconds=1)

        moved = moving.panel({}, start=begin, end=end, jobs=[], lines_until=None)

        tables = {"gpu_telemetry": joined_rows(kept)}
        assert_same(moved, panel_from_tables(tables, start=begin, end=end, step_seconds=15, topology=TOPOLOGY))
        steady_count += moved.gpus.value("ecc_correctable_volatile_count").strides[0] == 0
    assert ROWS < steady_count < 3 * ROWS, "before the odd cycle and after it has passed, one row of values is kept"


def test_allocations_of_the_hours_are_read_with_the_rest(tmp_path: Path) -> None:
    lake = ParquetLake(tmp_path)
    lake.add(
        "job_allocations",
        TABLES["job_allocations"].from_rows(
            [
                {
                    "job": "7", "attempt": "a", "node": "gpu001", "time": AT - timedelta(hours=1), "gpu_count": 8.0,
                    "started_at": AT - timedelta(hours=5), "ended_at": AT - timedelta(minutes=20),
                }
            ]
        ),
    )  # fmt: skip
    window = window_of()

    window.prime(lake, before=AT)

    assert holders(window.panel(AT), "gpu001")[:80] == ["7"] * 80
    assert set(holders(window.panel(AT), "gpu001")[80:]) == {None}


# -- what is reported --


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    return SmallAutopilot(tmp_path, node_count=3)


def seen(
    node: str = "gpu001",
    *,
    at: datetime,
    signal: Signal = Signal.GPU_HOT,
    gpu: str | None = PCI,
    component: Component | None = None,
    job_id: str | None = None,
) -> Detection:
    return Detection(
        signal=signal, node=NodeName(node), began_at=AT, first_seen_at=AT, last_seen_at=at, text="it is so",
        gpu=None if gpu is None else PciAddress(gpu), component=component,
        job=None if job_id is None else JobId(job_id),
    )  # fmt: skip


class Cycles:
    """A window and a ledger, cycle by cycle; gpu003 is always seen, from as far back as detectors look."""

    def __init__(self, autopilot: SmallAutopilot, *, first: int = -LOOKBACK // 15) -> None:
        self.autopilot = autopilot
        self.window = window_of()
        self.nodes: tuple[NodeStatus, ...] | None = None
        self.problems: tuple[str, ...] = ()
        self._next = first

    def run(self, number: int, *found: Detection, sight: Sight = Sight.ALL, **rows: pa.Table) -> int:
        return self.look(number, lambda _: found, sight=sight, **rows)

    def look(self, number: int, *detectors: Detector, sight: Sight = Sight.ALL, **rows: pa.Table) -> int:
        at = grid(number)
        while self._next < number:
            self.window.add("node_telemetry", node_rows(grid(self._next), "gpu003"), at=grid(self._next))
            self._next += 16
        for table, each in rows.items():
            self.window.add(table, each, at=at)
        told = tell_detections(
            self.window, self.autopilot.cluster, at=at, sight=sight, nodes=self.nodes, detect=detectors
        )
        self.problems = told.problems
        return told.new_count

    @property
    def conditions(self) -> list[Observation]:
        return list(self.autopilot.cluster.ledger.conditions())


def test_a_condition_begins_once_and_ends_when_it_is_seen_to_be_gone(autopilot: SmallAutopilot) -> None:
    cycles = Cycles(autopilot)
    counts = [
        cycles.run(number, seen(at=grid(number)), gpu_telemetry=gpu_rows(grid(number), "gpu001")) for number in range(3)
    ]
    (during,) = cycles.conditions
    counts.append(cycles.run(3, seen(at=grid(2)), gpu_telemetry=gpu_rows(grid(3), "gpu001")))

    assert counts == [1, 0, 0, 0]
    assert (during.signal, during.gpu, during.observed_at, during.source) == (Signal.GPU_HOT, PCI, AT, "detectors")
    assert cycles.conditions == []


def test_a_blind_cycle_ends_nothing_and_begins_nothing(autopilot: SmallAutopilot) -> None:
    cycles = Cycles(autopilot)
    cycles.run(0, seen(at=AT), gpu_telemetry=gpu_rows(AT, "gpu001"))

    count = cycles.run(1, seen("gpu002", at=grid(1)), sight=Sight.NOTHING)

    assert count == 0
    assert [each.node for each in cycles.conditions] == ["gpu001"]


def test_half_an_answer_ends_nothing_and_may_begin_something(autopilot: SmallAutopilot) -> None:
    cycles = Cycles(autopilot)
    cycles.run(0, seen(at=AT), gpu_telemetry=gpu_rows(AT, "gpu001"))

    rows = gpu_rows(grid(1), "gpu001", "gpu002")
    count = cycles.run(1, seen("gpu002", at=grid(1)), sight=Sight.PART, gpu_telemetry=rows)

    assert count == 1
    assert sorted(each.node for each in cycles.conditions) == ["gpu001", "gpu002"]


def test_the_condition_of_a_silent_node_stays_until_it_speaks(autopilot: SmallAutopilot) -> None:
    cycles = Cycles(autopilot)
    cycles.run(0, seen(at=AT), gpu_telemetry=gpu_rows(AT, "gpu001", "gpu002"))
    far = LOOKBACK_SECONDS // 15 + 5

    kept = []
    for number in (1, 2, far):
        cycles.run(number, gpu_telemetry=gpu_rows(grid(number), "gpu002"))
        kept.append([each.node for each in cycles.conditions])
    cycles.run(far + 1, gpu_telemetry=gpu_rows(grid(far + 1), "gpu001", "gpu002"))

    assert kept == [["gpu001"]] * 3
    assert cycles.conditions == []


def test_the_condition_of_a_silent_part_stays_while_the_part_may_still_be_built_in(autopilot: SmallAutopilot) -> None:
    cycles = Cycles(autopilot)
    both = pa.concat_tables([gpu_rows(AT, "gpu001"), gpu_rows(AT, "gpu001", pci="0000:2a:00")])
    cycles.run(0, seen(at=AT), gpu_telemetry=both)
    kept = []
    last = LOOKBACK_SECONDS // 15
    for number in (1, last, last + 1):
        cycles.run(number, gpu_telemetry=gpu_rows(grid(number), "gpu001", pci="0000:2a:00"))
        kept.append(len(cycles.conditions))

    assert kept == [1, 1, 0]


@pytest.mark.parametrize(
    ("table", "device", "column", "kind"),
    [
        ("fabric_telemetry", "mlx5_0/1", "receive_bytes", ComponentKind.LINK),
        ("storage_telemetry", "nvme0n1", "read_bytes", ComponentKind.DISK),
    ],
)
def test_a_port_or_disk_that_was_not_read_is_not_well(
    autopilot: SmallAutopilot, table: str, device: str, column: str, kind: ComponentKind
) -> None:
    cycles = Cycles(autopilot)
    part = Component(kind=kind, name=device, node=N1)

    def rows(number: int, *devices: str) -> Mapping[str, pa.Table]:
        listed = [{"node": "gpu001", "device": each, "time": grid(number), column: 1.0} for each in devices]
        return {table: TABLES[table].from_rows(listed), "node_telemetry": node_rows(grid(number), "gpu001")}

    cycles.run(0, seen(at=AT, gpu=None, component=part), **rows(0, device, "other"))
    cycles.run(1, **rows(1, "other"))
    unread = len(cycles.conditions)
    cycles.run(2, **rows(2, device, "other"))

    assert (unread, len(cycles.conditions)) == (1, 0)


def test_a_condition_of_a_node_stays_while_one_of_its_exporters_is_silent(autopilot: SmallAutopilot) -> None:
    cycles = Cycles(autopilot)
    up = TABLES["platform_telemetry"].from_rows(
        {"node": "gpu001", "device": "dcgm/gpu001:9400", "time": grid(number), "target_up": 0.0} for number in (0, 1)
    )
    tables = {"gpu_telemetry": gpu_rows(AT, "gpu001"), "node_telemetry": node_rows(AT, "gpu001")}
    cycles.run(0, seen(at=AT, gpu=None), **tables)
    cycles.run(1, node_telemetry=node_rows(grid(1), "gpu001"), platform_telemetry=up)
    half = len(cycles.conditions)
    cycles.run(2, node_telemetry=node_rows(grid(2), "gpu001"), gpu_telemetry=gpu_rows(grid(2), "gpu001"))

    assert (half, len(cycles.conditions)) == (1, 0)


def test_the_condition_of_a_job_ends_with_the_job_and_not_with_its_metrics(autopilot: SmallAutopilot) -> None:
    cycles = Cycles(autopilot)
    running = job("7", "gpu001", started=AT - STEP)
    hung = Component(kind=ComponentKind.JOB, name="7")
    other = gpu_rows(grid(1), "gpu002")
    cycles.window.note_jobs([running], at=AT)
    detection = seen(NO_NODE, at=AT, gpu=None, signal=Signal.JOB_HUNG, component=hung, job_id="7")
    cycles.run(0, detection, gpu_telemetry=gpu_rows(AT, "gpu001"))
    cycles.run(1, gpu_telemetry=other)
    silent = len(cycles.conditions)
    cycles.window.note_jobs([], at=grid(2))
    cycles.run(2, gpu_telemetry=gpu_rows(grid(2), "gpu002"))

    assert (silent, len(cycles.conditions)) == (1, 0)


def test_the_condition_of_a_rack_stays_while_its_sensor_is_silent(autopilot: SmallAutopilot) -> None:
    cycles = Cycles(autopilot)
    rack = Component(kind=ComponentKind.RACK, name="r01")

    def air(number: int) -> pa.Table:
        row = {"node": "", "device": "rack:r01", "time": grid(number), "inlet_temperature_celsius": 40.0}
        return TABLES["facility_telemetry"].from_rows([row])

    detection = seen(NO_NODE, at=AT, gpu=None, signal=Signal.INLET_HOT, component=rack)
    cycles.run(0, detection, facility_telemetry=air(0))
    cycles.run(1, gpu_telemetry=gpu_rows(grid(1), "gpu001"))
    silent = len(cycles.conditions)
    cycles.run(2, facility_telemetry=air(2))

    assert (silent, len(cycles.conditions)) == (1, 0)


def test_nodes_that_somebody_else_drained_and_undeclared_nodes_are_not_told(
    autopilot: SmallAutopilot,
) -> None:
    cycles = Cycles(autopilot)
    status = NodeStatus(
        node=N1, state=NodeState.IDLE, is_drained=True, is_responding=True, reason="rack 1 (day-shift)",
        reason_set_at=AT, booted_at=AT, gpu_count=8, gpu_in_use_count=0,
    )  # fmt: skip
    cycles.run(0, seen(at=AT), gpu_telemetry=gpu_rows(AT, "gpu001"))
    cycles.nodes = (status, replace(status, node=N2, is_drained=False, reason=None))

    count = cycles.run(1, *(seen(node, at=grid(1)) for node in ("gpu001", "gpu002", "stranger")))

    assert count == 1
    assert [each.node for each in cycles.conditions] == ["gpu002"]


def test_a_job_that_fails_again_and_again_is_told_also_after_a_restart(
    tmp_path: Path, autopilot: SmallAutopilot
) -> None:
    failed = [
        job(
            "7", f"gpu00{number + 1}", started=AT + number * STEP, ended=AT + number * STEP + timedelta(seconds=10),
            state=JobState.FAILED,
        )
        for number in range(3)
    ]  # fmt: skip
    lake = ParquetLake(tmp_path / "lake")
    lake.add(
        "job_accounting",
        TABLES["job_accounting"].from_rows(
            {
                "job": "7", "attempt": str(each.started_at), "time": each.ended_at, "name": each.name,
                "user": each.user, "state": "FAILED", "started_at": each.started_at, "ended_at": each.ended_at,
                "nodes": next(iter(each.nodes)), "gpu_count": 8,
            }
            for each in failed[:2]
        ),
    )  # fmt: skip
    cycles = Cycles(autopilot)
    cycles.window.prime(lake, before=grid(4))

    counts = [cycles.run(4, gpu_telemetry=gpu_rows(grid(4), "gpu001"))]
    cycles.window.note_jobs(failed, at=grid(5))
    counts.append(cycles.run(5, gpu_telemetry=gpu_rows(grid(5), "gpu001")))

    assert counts == [0, 1]
    assert [(each.signal, each.job) for each in cycles.conditions] == [(Signal.JOB_CRASH_LOOP, "7")]


def booted(node: NodeName, at: datetime) -> NodeStatus:
    return NodeStatus(
        node=node, state=NodeState.IDLE, is_drained=False, is_responding=True, reason=None, reason_set_at=None,
        booted_at=at, gpu_count=8, gpu_in_use_count=0,
    )  # fmt: skip


def test_a_node_that_was_restarted_is_not_blamed_for_what_it_did_before(autopilot: SmallAutopilot) -> None:
    cycles = Cycles(autopilot)
    cycles.run(0, seen(at=AT), gpu_telemetry=gpu_rows(AT, "gpu001"))
    cycles.nodes = (booted(N1, grid(1)),)
    cycles.run(2, seen(at=grid(2)), gpu_telemetry=gpu_rows(grid(2), "gpu001"))
    during = len(cycles.conditions)
    cycles.nodes = None  # the scheduler is silent: what it stated of boots is

    cycles.run(120, seen(at=grid(120)), gpu_telemetry=gpu_rows(grid(120), "gpu001"))
    just_before = len(cycles.conditions)
    cycles.run(121, seen(at=grid(121)), gpu_telemetry=gpu_rows(grid(121), "gpu001"))

    assert (during, just_before) == (0, 0)
    assert [(each.node, each.observed_at) for each in cycles.conditions] == [("gpu001", grid(1))]
    assert [each.observation.observed_at for each in autopilot.cluster.ledger.evidence_after(0, limit=9)] == [
        AT,
        grid(1),
    ]


def failing_on(node: str, *, count: int) -> list[JobStatus]:
    return [
        replace(
            job(f"{number}", node, started=grid(number), ended=grid(number + 1), state=JobState.FAILED),
            name=f"p{number}",
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("booted_at", "blamed"),
    [
        pytest.param(AT - STEP, ["gpu001"], id="before"),
        pytest.param(grid(2), [], id="in between"),
        pytest.param(grid(9), [], id="after"),
    ],
)
def test_different_jobs_that_fail_on_one_node_blame_it_unless_it_has_booted_since(
    autopilot: SmallAutopilot, booted_at: datetime, blamed: list[str]
) -> None:
    cycles = Cycles(autopilot)
    cycles.nodes = (booted(N1, booted_at),)
    usual = [
        job(f"w{number}", "gpu002", started=AT, ended=grid(number), state=JobState.COMPLETED) for number in range(1, 40)
    ]
    cycles.window.note_jobs([*failing_on("gpu001", count=4), *usual], at=grid(60))

    cycles.run(60, gpu_telemetry=gpu_rows(grid(60), "gpu001"))

    assert [each.node for each in cycles.conditions if each.signal is Signal.NODE_FAILS_JOBS] == blamed


@pytest.mark.parametrize("count", [ENDED_AT_MOST - 1, ENDED_AT_MOST, ENDED_AT_MOST + 1])
def test_of_attempts_that_ended_the_newest_are_remembered(count: int) -> None:
    window = window_of()
    ended = [
        job(f"{number}", "gpu001", started=AT, ended=AT + timedelta(seconds=number + 1), state=JobState.COMPLETED)
        for number in range(count)
    ]

    window.note_jobs(ended, at=AT + timedelta(hours=6))

    names = {each.job for each in window.ended}
    assert len(names) == min(count, ENDED_AT_MOST)
    assert (f"{count - 1}" in names, "0" in names) == (True, count <= ENDED_AT_MOST)


def test_who_ended_a_day_ago_is_forgotten() -> None:
    window = window_of()
    window.note_jobs([job("7", "gpu001", started=AT, ended=AT + STEP, state=JobState.FAILED)], at=AT + STEP)
    counts = []
    for at in (AT + FAILURES_REACH, AT + FAILURES_REACH + STEP):
        window.note_jobs([], at=at)
        counts.append(len(window.ended))

    assert counts == [1, 0]


@pytest.mark.parametrize(
    ("signal", "is_told"),
    [(Signal.JOB_HUNG, False), (Signal.JOB_STALLED, False), (Signal.GPUS_IDLE, False), (Signal.LOSS_SPIKE, True)],
)
def test_a_suspended_job_stands_still_because_somebody_wants_it_to(
    autopilot: SmallAutopilot, signal: Signal, is_told: bool
) -> None:
    cycles = Cycles(autopilot)
    cycles.window.note_jobs(
        [job("7", "gpu001", started=AT, state=JobState.SUSPENDED), job("8", "gpu002", started=AT)], at=AT
    )

    cycles.run(
        0,
        *(seen(NO_NODE, at=AT, gpu=None, signal=signal, job_id=name) for name in ("7", "8")),
        gpu_telemetry=gpu_rows(AT, "gpu001"),
    )

    assert [each.job for each in cycles.conditions] == (["7", "8"] if is_told else ["8"])


def test_a_job_that_goes_on_has_some_minutes_to_show_that_it_moves() -> None:
    window = window_of()
    window.note_jobs([job("7", "gpu001", started=AT, state=JobState.SUSPENDED)], at=AT)
    suspended = []
    for at in (AT + RESUMED - STEP, AT + RESUMED):
        window.note_jobs([job("7", "gpu001", started=AT)], at=at)
        suspended.append(set(window.suspended))

    assert suspended == [{"7"}, set()]


def broken(panel: Panel) -> Iterator[Detection]:
    yield seen("gpu003", at=panel.time(-1))
    raise ZeroDivisionError("no peers")


def test_a_detector_that_raises_ends_nothing_and_blinds_no_other(autopilot: SmallAutopilot) -> None:
    cycles = Cycles(autopilot)
    cycles.run(0, seen(at=AT), gpu_telemetry=gpu_rows(AT, "gpu001"))

    rows = gpu_rows(grid(1), "gpu001", "gpu002")
    count = cycles.look(1, broken, lambda _: [seen("gpu002", at=grid(1))], gpu_telemetry=rows)
    said, during = cycles.problems, {each.node for each in cycles.conditions}
    cycles.run(2, gpu_telemetry=gpu_rows(grid(2), "gpu001", "gpu002", "gpu003"))

    assert count == 2  # what the broken one had reported before it failed is worth telling
    assert said == ("broken failed: ZeroDivisionError: no peers",)
    assert during == {"gpu001", "gpu002", "gpu003"}
    assert (cycles.conditions, cycles.problems) == ([], ())


@pytest.mark.parametrize(
    ("seconds", "is_kept"),
    [(0, True), (LOOKBACK - 15, True), (LOOKBACK, False), (LOOKBACK + 15, False)],
)
def test_after_a_restart_without_memory_a_condition_ends_only_when_the_window_is_whole(
    autopilot: SmallAutopilot, seconds: int, is_kept: bool
) -> None:
    before = Cycles(autopilot)
    before.run(0, seen(at=AT), gpu_telemetry=gpu_rows(AT, "gpu001"))
    after = Cycles(autopilot, first=1)
    number = 1 + seconds // 15

    began = after.run(number, seen("gpu002", at=grid(number)), gpu_telemetry=gpu_rows(grid(number), "gpu001", "gpu002"))

    assert began == 1
    assert sorted(each.node for each in after.conditions) == (["gpu001"] if is_kept else []) + ["gpu002"]


def test_after_a_restart_what_the_new_window_saw_begin_it_may_see_end(autopilot: SmallAutopilot) -> None:
    """Or nobody would return a repaired node for forty minutes after each restart."""
    before = Cycles(autopilot)
    before.run(0, seen(at=AT), gpu_telemetry=gpu_rows(AT, "gpu001"))
    after = Cycles(autopilot, first=1)
    rows = [gpu_rows(grid(number), "gpu001", "gpu002") for number in range(4)]

    after.run(2, seen("gpu002", at=grid(2)), gpu_telemetry=rows[2])
    after.run(3, gpu_telemetry=rows[3])

    assert [each.node for each in after.conditions] == ["gpu001"]


@pytest.mark.parametrize(
    ("gap", "is_whole"),
    [(LONGEST_GAP, True), (LONGEST_GAP + STEP, True), (LONGEST_GAP + 2 * STEP, False)],
)
def test_a_window_with_a_long_gap_begins_anew_after_it(gap: timedelta, is_whole: bool) -> None:
    window = window_of()
    for number in range(-200, 1, 10):
        window.add("gpu_telemetry", gpu_rows(grid(number), "gpu001"), at=grid(number))
    at = AT + gap
    window.add("job_logs", line_rows(AT + gap / 2), at=AT + gap / 2)  # lines are no metrics
    before = window.is_whole(AT)
    window.add("gpu_telemetry", gpu_rows(at, "gpu001"), at=at)

    assert before
    assert window.is_whole(at) is is_whole
    assert window.is_whole(at + timedelta(seconds=LOOKBACK - 1)) is is_whole
    assert window.is_whole(at + timedelta(seconds=LOOKBACK))


def test_a_window_that_never_saw_anything_is_not_whole() -> None:
    assert not window_of().is_whole(AT)


class DamagedLake(ParquetLake):
    """A lake in which files of some tables cannot be read."""

    def __init__(self, root: Path, *, tables: frozenset[str]) -> None:
        super().__init__(root)
        self._damaged = tables

    def read(self, table: str, **options: object) -> Rows:
        if table in self._damaged:
            raise LakeError(f"cannot read {table}: not a Parquet file")
        found: Rows = super().read(table, **options)  # type: ignore[arg-type]  # the same keywords
        return found


@pytest.mark.parametrize("damaged", [(), ("storage_telemetry",), ("job_accounting",), ("gpu_telemetry", "job_logs")])
def test_a_table_that_cannot_be_read_costs_that_table_and_the_right_to_end_a_condition(
    tmp_path: Path, damaged: tuple[str, ...]
) -> None:
    lake = DamagedLake(tmp_path, tables=frozenset(damaged))
    for number in range(-170, 0, 10):
        lake.add("gpu_telemetry", gpu_rows(grid(number), "gpu001"))
        lake.add("node_telemetry", node_rows(grid(number), "gpu001"))
    window = window_of()

    problems = window.prime(lake, before=AT)
    window.add("gpu_telemetry", gpu_rows(AT, "gpu001"), at=AT)

    panel = window.panel(AT)
    assert sorted(problems) == [f"cannot read {table}: not a Parquet file" for table in sorted(damaged)]
    assert not np.isnan(panel.nodes.value("cpu_busy_seconds")[-11, 0])
    assert bool(np.isnan(panel.gpus.value("power_watts")[-11, 0])) is ("gpu_telemetry" in damaged)
    assert window.is_whole(AT) is (not damaged)
    assert window.is_whole(AT + timedelta(seconds=LOOKBACK))
