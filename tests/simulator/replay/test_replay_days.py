"""Recorded days keep their contract: shape, order, counters, and the same seed for the same day."""

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from ops_pipelines.core.fault import ComponentKind
from ops_pipelines.observe.panels.panel import Layer
from ops_pipelines_lab.simulator.replay.day import Day, FaultClass
from ops_pipelines_lab.simulator.replay.make import make_day, make_quiet_day

APART = timedelta(hours=1)


@cache
def busy_day() -> Day:
    return make_day(11, node_count=64, hours=12, fault_count=24)


@cache
def quiet_day() -> Day:
    return make_quiet_day(12, node_count=64, hours=24)


def layers(day: Day) -> dict[str, Layer]:
    panel = day.panel
    return {name: getattr(panel, name) for name in ("gpus", "nodes", "ports", "disks", "racks", "jobs")}


def test_the_same_seed_gives_the_same_day() -> None:
    first, second = (make_day(5, node_count=16, hours=2, fault_count=4) for _ in range(2))

    assert first.lines == second.lines
    assert first.truths == second.truths
    assert first.pauses == second.pauses
    assert first.jobs == second.jobs
    assert first.nodes == second.nodes
    for name, layer in layers(first).items():
        for column, values in layer.values.items():
            assert np.array_equal(values, layers(second)[name].values[column], equal_nan=True), (name, column)


def test_another_seed_gives_another_day() -> None:
    first, second = (make_day(seed, node_count=16, hours=1, fault_count=2) for seed in (5, 6))

    assert first.lines != second.lines


@pytest.mark.parametrize(("node_count", "hours"), [(1, 1.0), (8, 1.0), (9, 0.5), (40, 1.0)])
def test_small_days_work(node_count: int, hours: float) -> None:
    day = make_day(3, node_count=node_count, hours=hours, fault_count=3)

    assert len(day.panel.times) == hours * 240
    assert len(day.panel.gpus.parts) == 8 * node_count
    assert len(day.truths) <= 3


@pytest.mark.parametrize(("node_count", "hours", "step_seconds"), [(0, 1, 15), (1, 0, 15), (1, 1, 0)])
def test_a_day_of_nothing_is_refused(node_count: int, hours: float, step_seconds: int) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        make_day(1, node_count=node_count, hours=hours, step_seconds=step_seconds)


def test_faults_without_a_number_are_in_proportion_to_the_size() -> None:
    assert len(make_day(4, node_count=32, hours=6, fault_count=None).truths) <= 2


def test_a_quiet_day_has_no_truths_and_much_that_only_looks_like_one() -> None:
    day = quiet_day()

    assert day.truths == ()
    assert len(day.pauses) > 50
    assert any("Xid" in line.text for line in day.lines)
    assert np.isnan(day.panel.gpus.values["utilisation_ratio"]).any()
    assert day.repairs


def test_there_are_never_more_faults_than_asked_for() -> None:
    assert 9 <= len(busy_day().truths) <= 24


def test_only_the_classes_asked_for_occur() -> None:
    chosen = (FaultClass.NODE_DOWN, FaultClass.SLOW_GPU)

    day = make_day(8, node_count=32, hours=6, fault_count=6, classes=chosen)

    assert {truth.fault for truth in day.truths} == set(chosen)


@pytest.mark.parametrize("make", [busy_day, quiet_day])
def test_counters_fall_only_where_they_begin_anew(make: Callable[[], Day]) -> None:
    day = make()
    for name, layer in layers(day).items():
        for column, values in layer.values.items():
            if not column.endswith(("_count", "_bytes", "_seconds")) or column in {
                "memory_used_bytes", "memory_available_bytes", "memory_total_bytes", "processes_blocked_count",
                "clock_offset_seconds", "step_seconds", "boot_time_seconds",
            }:  # fmt: skip
                continue
            falls = np.argwhere(values[1:] < values[:-1])
            for row, part in falls:
                before, after = values[row, part], values[row + 1, part]
                assert after <= 0.5 * before, (name, column, row, part, before, after)


def test_no_share_leaves_its_range() -> None:
    for layer in layers(busy_day()).values():
        for column, values in layer.values.items():
            if column.endswith("_ratio"):
                assert np.nanmin(values) >= 0, column
                assert np.nanmax(values) <= 1, column


def test_temperatures_and_power_are_those_of_real_boards() -> None:
    gpus = quiet_day().panel.gpus.values

    assert np.nanmin(gpus["temperature_celsius"]) > 18
    assert np.nanmax(gpus["temperature_celsius"]) < 84
    assert np.nanmax(gpus["power_watts"]) <= 700


def test_lines_come_by_time_with_positions_of_their_own() -> None:
    lines = busy_day().lines

    assert len({line.position for line in lines}) == len(lines)
    assert [line.position for line in lines] == sorted(line.position for line in lines)
    # Clocks are off by at most tens of seconds.
    stamps = [line.written_at for line in lines if line.written_at is not None]
    assert all(later - earlier > timedelta(seconds=-90) for earlier, later in pairwise(stamps))


def test_the_scheduler_and_the_panel_agree_on_who_holds_a_node() -> None:
    day = busy_day()
    panel = day.panel
    for row in range(0, len(panel.times), 97):
        now = panel.time(row)
        seen = [statuses for at, statuses in day.jobs if at <= now][-1]
        running = {
            node: status.job
            for status in seen
            if status.ended_at is None and status.gpu_count == 8 * len(status.nodes)
            for node in status.nodes
        }
        held = {
            part.node: panel.job(int(panel.held_by[row, column]))
            for column, part in enumerate(panel.nodes.parts)
            if panel.held_by[row, column] >= 0
        }
        assert running == held


def test_pictures_of_nodes_are_complete_and_by_time() -> None:
    day = busy_day()

    times = [at for at, _ in day.nodes]
    assert times == sorted(times)
    assert {len(statuses) for _, statuses in day.nodes} == {64}


def test_faults_on_one_culprit_or_job_are_an_hour_apart() -> None:
    truths = busy_day().truths
    for index, first in enumerate(truths):
        for second in truths[index + 1 :]:
            if first.culprit.node is not None and first.culprit.node == second.culprit.node:
                assert second.onset >= first.end + APART
            if first.affected_jobs & second.affected_jobs:
                assert second.onset >= first.onset + APART


def test_what_was_repaired_begins_anew() -> None:
    day = busy_day()
    panel = day.panel
    columns = {part.node: column for column, part in enumerate(panel.nodes.parts)}
    boots = panel.nodes.values["boot_time_seconds"]
    assert day.repairs
    for repair in day.repairs:
        column = columns[repair.node]
        before, after = panel.row_of(repair.drained_at), panel.row_of(repair.returned_at)
        seen = boots[: before + 1, column]
        known = seen[~np.isnan(seen)]
        later = boots[after:, column]
        later = later[~np.isnan(later)]
        if len(known) and len(later):
            assert later[0] > known[-1]


def test_a_culprit_is_a_part_that_exists() -> None:
    day = busy_day()
    panel = day.panel
    known: dict[ComponentKind, set[tuple[str | None, str]]] = {
        ComponentKind.GPU: {(part.node, part.device) for part in panel.gpus.parts},
        ComponentKind.LINK: {(part.node, part.device) for part in panel.ports.parts},
        ComponentKind.DISK: {(part.node, part.device) for part in panel.disks.parts},
        ComponentKind.NODE: {(part.node, part.node) for part in panel.nodes.parts},
        ComponentKind.JOB: {(None, part.device) for part in panel.jobs.parts},
        ComponentKind.RACK: {(None, part.device) for part in panel.racks.parts},
        ComponentKind.LEAF_SWITCH: {(None, place.leaf_switch) for place in day.topology.places.values()},
        ComponentKind.POWER_FEED: {(None, place.power_feed) for place in day.topology.places.values()},
        ComponentKind.STORAGE: {(None, "shared")},
    }
    for truth in day.truths:
        assert (truth.culprit.node, truth.culprit.name) in known[truth.culprit.kind]
        assert truth.onset < truth.end


def test_nothing_of_a_silent_node_arrives() -> None:
    day = make_day(9, node_count=32, hours=6, fault_count=4, classes=[FaultClass.NODE_DOWN])
    columns = {part.node: column for column, part in enumerate(day.panel.nodes.parts)}
    up = day.panel.nodes.values["target_up"]
    assert day.truths
    for truth in day.truths:
        assert truth.culprit.node is not None
        down = up[:, columns[truth.culprit.node]] == 0
        began = day.panel.row_of(truth.onset) + 1
        ended = began + int(np.argmin(down[began:])) if not down[began:].all() else len(down) - 1
        silence = day.panel.time(began), day.panel.time(ended - 1)
        for line in day.lines:
            if line.node == truth.culprit.node and line.written_at is not None:
                assert not silence[0] + timedelta(seconds=60) < line.written_at < silence[1] - timedelta(seconds=60)
