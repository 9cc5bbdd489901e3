"""Each class of fault is where the truth says: in the panel or in the lines, on the part that is named."""

from collections.abc import Callable
from datetime import timedelta
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from ops_pipelines.core.fault import ComponentKind
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.simulator.replay.day import Day, FaultClass, Truth
from ops_pipelines_lab.simulator.replay.make import make_day

SEEDS = (31,)
Evidence = Callable[[Day, Truth], bool]


@cache
def days_of(fault: FaultClass) -> tuple[Day, ...]:
    hours = 8 if fault in (FaultClass.NODE_FAILS_JOBS, FaultClass.APPLICATION_CRASHES) else 5
    return tuple(make_day(seed, node_count=40, hours=hours, fault_count=3, classes=[fault]) for seed in SEEDS)


def rows(day: Day, truth: Truth, *, after: float = 0.0) -> slice:
    first = day.panel.row_of(truth.onset + timedelta(seconds=after)) + 1
    return slice(first, max(first + 1, day.panel.row_of(truth.end) + 1))


def column(parts: tuple, node: str | None, device: str) -> int:  # type: ignore[type-arg]  # of Part
    return next(
        index for index, part in enumerate(parts) if part.device == device and (node is None or part.node == node)
    )


def gpu_values(day: Day, truth: Truth, name: str) -> NDArray[np.floating]:
    gpu = column(day.panel.gpus.parts, truth.culprit.node, truth.culprit.name)
    return day.panel.gpus.values[name][rows(day, truth), gpu]


def lines_of(day: Day, truth: Truth, *words: str) -> list[str]:
    end = min(truth.end, truth.onset + timedelta(minutes=15)) + timedelta(seconds=60)
    begin = truth.onset - timedelta(seconds=60)
    return [
        line.text
        for line in day.lines
        if line.node == truth.culprit.node
        and line.written_at is not None
        and begin <= line.written_at <= end
        and all(word in line.text for word in words)
    ]


def xid(code: int) -> Evidence:
    return lambda day, truth: bool(lines_of(day, truth, f"(PCI:{truth.culprit.name}): {code},"))


def either(*evidence: Evidence) -> Evidence:
    return lambda day, truth: any(each(day, truth) for each in evidence)


def series_end(day: Day, truth: Truth) -> bool:
    gone = np.isnan(gpu_values(day, truth, "temperature_celsius"))
    return bool(gone[2:12].all() and not lines_of(day, truth, f"(PCI:{truth.culprit.name}): 79"))


def port_counts(day: Day, truth: Truth) -> bool:
    port = column(day.panel.ports.parts, truth.culprit.node, truth.culprit.name)
    grown = np.nansum(day.panel.ports.rate("symbol_error_count")[rows(day, truth), port]) * 15
    return bool(grown > 30)


def port_flaps(day: Day, truth: Truth) -> bool:
    port = column(day.panel.ports.parts, truth.culprit.node, truth.culprit.name)
    grown = np.nansum(day.panel.ports.rate("link_downed_count")[rows(day, truth), port]) * 15
    return bool(grown >= 1.9)


def switch_down(day: Day, truth: Truth) -> bool:
    panel = day.panel
    own = [
        place.leaf_switch == truth.culprit.name
        for place in (day.topology.places[part.node] for part in panel.ports.parts)
    ]
    down = panel.ports.values["link_state"][panel.row_of(truth.onset) + 3] == 1
    seen = ~np.isnan(panel.ports.values["link_state"][panel.row_of(truth.onset) + 3])
    return bool(down[np.array(own) & seen].all() and not down[~np.array(own)].any())


def feed_dark(day: Day, truth: Truth) -> bool:
    panel = day.panel
    own = np.array([day.topology.places[part.node].power_feed == truth.culprit.name for part in panel.nodes.parts])
    up = panel.nodes.values["target_up"][panel.row_of(truth.onset) + 3]
    return bool((up[own] == 0).all() and up[~own].mean() > 0.9)


def rack_warms(day: Day, truth: Truth) -> bool:
    racks = day.panel.racks
    inlet = racks.values["inlet_temperature_celsius"]
    own = column(racks.parts, None, truth.culprit.name)
    others = np.delete(inlet, own, axis=1)
    began, late = day.panel.row_of(truth.onset), day.panel.row_of(truth.end) - 1
    late = min(late, len(inlet) - 1)
    return bool(inlet[late, own] - inlet[began, own] > 6 and np.median(others[late] - others[began]) < 3)


def storage_stalls(day: Day, truth: Truth) -> bool:
    nodes = day.panel.nodes
    window = rows(day, truth, after=100)
    read = nodes.rate("shared_read_bytes")[window]
    stalled = nodes.rate("pressure_io_stalled_seconds")[window]
    return bool(np.nanmax(read) == 0 and (np.nanmean(stalled, axis=0) > 0.3).sum() >= 3)


def node_silent(day: Day, truth: Truth) -> bool:
    panel = day.panel
    node = column(panel.nodes.parts, truth.culprit.node, "")
    row = panel.row_of(truth.onset)
    lost = any(
        status.node == truth.culprit.node and not status.is_responding
        for at, statuses in day.nodes
        if truth.onset <= at <= truth.onset + timedelta(seconds=120)
        for status in statuses
    )
    return bool((panel.nodes.values["target_up"][row + 1 : row + 20, node] == 0).all() and lost)


def host_memory(day: Day, truth: Truth) -> bool:
    return len(lines_of(day, truth, "EDAC")) >= 1


def fan_stops(day: Day, truth: Truth) -> bool:
    panel = day.panel
    gpus = np.array([part.node == truth.culprit.node for part in panel.gpus.parts])
    began = panel.row_of(truth.onset)
    temperatures = panel.gpus.values["temperature_celsius"]
    before = np.nanmean(temperatures[max(0, began - 20) : began + 1, gpus])
    return bool(np.nanmax(temperatures[began : began + 120, gpus]) - before > 8)


def pcie_narrow(day: Day, truth: Truth) -> bool:
    width, generation = gpu_values(day, truth, "pcie_link_width"), gpu_values(day, truth, "pcie_link_generation")
    return bool((width[:60] < 16).any() or (generation[:60] < 5).any())


def disk_fails(day: Day, truth: Truth) -> bool:
    disk = column(day.panel.disks.parts, truth.culprit.node, truth.culprit.name)
    window = rows(day, truth)
    media = np.nansum(day.panel.disks.rate("media_error_count")[window, disk])
    warned = np.nansum(day.panel.disks.values["critical_warning"][window, disk])
    return bool(media or warned or lines_of(day, truth, "nvme"))


def peers_wait(day: Day, truth: Truth) -> bool:
    """The steps of its job, or where it counts none the tensor cores of its node, go slower than before."""
    panel = day.panel
    began = panel.row_of(truth.onset)
    node = [part.node == truth.culprit.node for part in panel.gpus.parts]
    tensor = panel.gpus.values["tensor_active_ratio"][:, node]
    active = tensor[:, 0] > 0.05
    before = tensor[max(0, began - 100) : began][active[max(0, began - 100) : began]]
    after = tensor[began + 2 : began + 90][active[began + 2 : began + 90]]
    if len(before) < 5 or len(after) < 5:
        return True  # its job only begins, or pauses: nothing to compare with
    return bool(np.nanmedian(after) < 0.97 * np.nanmedian(before))


def hangs(day: Day, truth: Truth) -> bool:
    """No step, no traffic, no tensor core, no storage, no line: nothing of the job lives."""
    panel = day.panel
    job = next(iter(truth.affected_jobs))
    where = column(panel.jobs.parts, None, job)
    window = slice(panel.row_of(truth.onset) + 2, min(panel.row_of(truth.end), len(panel.times) - 1))
    nodes = np.flatnonzero(panel.held_by[window.start] == where)
    gpus = (8 * nodes[:, None] + np.arange(8)).ravel()
    return bool(
        len(nodes)
        and truth.steps_began_at is not None
        and truth.steps_began_at < truth.onset
        and not (panel.jobs.rate("step_count")[window, where] > 0).any()
        and not (panel.jobs.rate("line_count")[window, where] > 0).any()
        and np.nanmax(panel.gpus.values["tensor_active_ratio"][window, gpus]) < 0.001
        and np.nanmax(panel.nodes.rate("fabric_bytes")[window, nodes]) < 1e5
        and np.nanmax(panel.nodes.rate("shared_read_bytes")[window, nodes]) < 1e5
        and np.nanmax(panel.nodes.rate("cpu_busy_seconds")[window, nodes]) < 9.8
    )


def one_rank_idles(day: Day, truth: Truth) -> bool:
    panel = day.panel
    row = panel.row_of(truth.onset) + 5
    job = next(iter(truth.affected_jobs))
    nodes = np.flatnonzero(panel.held_by[row] == column(panel.jobs.parts, None, job))
    used = panel.gpus.values["utilisation_ratio"][row]
    idle = {int(gpu) for node in nodes for gpu in range(8 * node, 8 * node + 8) if used[gpu] < 0.05}
    if truth.culprit.kind is ComponentKind.GPU:
        return idle == {column(panel.gpus.parts, truth.culprit.node, truth.culprit.name)}
    return {panel.gpus.parts[gpu].node for gpu in idle} == {truth.culprit.node} and len(idle) == 8


def failures(day: Day, truth: Truth) -> list[frozenset[str]]:
    """Return the nodes of each failed attempt of the truth's jobs."""
    found = {}
    for _, statuses in day.jobs:
        for status in statuses:
            if status.job in truth.affected_jobs and status.state is JobState.FAILED:
                found[status.job, status.started_at] = frozenset(status.nodes)
    return list(found.values())


def crash_loop(day: Day, truth: Truth) -> bool:
    failed = failures(day, truth)
    names = {
        (status.name, status.user)
        for _, statuses in day.jobs
        for status in statuses
        if status.job in truth.affected_jobs
    }
    return 3 <= len(failed) <= 6 and len(names) == 1 and len(frozenset.union(*failed)) > len(failed[0])


def node_fails(day: Day, truth: Truth) -> bool:
    failed = failures(day, truth)
    return len(failed) >= 4 and all(truth.culprit.node in nodes for nodes in failed) and len(truth.affected_jobs) >= 4


def loss_astray(day: Day, truth: Truth) -> bool:
    job = next(iter(truth.affected_jobs))
    told = [line for line in day.lines if line.job == job and "nan" in line.text]
    where = column(day.panel.jobs.parts, None, job)
    loss = day.panel.jobs.values["loss"][:, where]
    began = day.panel.row_of(truth.onset)
    return bool(told or np.nanmax(loss[began : began + 60]) > 1.5 * np.nanmedian(loss[max(0, began - 20) : began]))


def both(*evidence: Evidence) -> Evidence:
    return lambda day, truth: all(each(day, truth) for each in evidence)


EVIDENCE: dict[FaultClass, Evidence] = {
    FaultClass.GPU_OFF_BUS: xid(79),
    FaultClass.GPU_VANISHED: series_end,
    FaultClass.MEMORY_UNCORRECTABLE: either(xid(48), xid(95)),
    FaultClass.MEMORY_CONTAINED: xid(94),
    FaultClass.GSP_TIMEOUT: xid(119),
    FaultClass.NVLINK_FAULT: xid(74),
    FaultClass.NVSWITCH_FAULT: lambda day, truth: bool(lines_of(day, truth, "SXid", "Fatal")),
    FaultClass.HOST_MEMORY: host_memory,
    FaultClass.NODE_DOWN: node_silent,
    FaultClass.LEAF_SWITCH: switch_down,
    FaultClass.POWER_FEED: feed_dark,
    FaultClass.COOLING: rack_warms,
    FaultClass.SHARED_STORAGE: storage_stalls,
    FaultClass.NIC_ERRORS: port_counts,
    FaultClass.LINK_FLAPS: port_flaps,
    FaultClass.PCIE_DEGRADED: pcie_narrow,
    FaultClass.FAN_FAILURE: fan_stops,
    FaultClass.SLOW_GPU: peers_wait,
    FaultClass.DISK_FAILING: disk_fails,
    FaultClass.HANG_ONE_RANK: both(hangs, one_rank_idles),
    FaultClass.HANG_OF_PROGRAM: hangs,
    FaultClass.APPLICATION_CRASHES: crash_loop,
    FaultClass.NODE_FAILS_JOBS: node_fails,
    FaultClass.LOSS_DIVERGES: loss_astray,
}


@pytest.mark.parametrize("fault", FaultClass)
def test_a_fault_is_visible_where_the_truth_says(fault: FaultClass) -> None:
    count = 0
    for day in days_of(fault):
        for truth in day.truths:
            assert truth.fault is fault
            assert EVIDENCE[fault](day, truth), truth
            count += 1
    assert count


@pytest.mark.parametrize("fault", [FaultClass.HANG_ONE_RANK, FaultClass.HANG_OF_PROGRAM])
def test_no_pause_is_promised_within_a_hang(fault: FaultClass) -> None:
    for day in days_of(fault):
        for truth in day.truths:
            for pause in day.pauses:
                if pause.job in truth.affected_jobs:
                    assert pause.ended_at <= truth.onset or pause.began_at >= truth.end
