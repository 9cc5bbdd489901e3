"""Rows of the lake become a panel as its docstring says: keyed by place, gaps as gaps, and nothing reported that nobody
reported."""

import ast
import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ops_pipelines.observe.detectors
from ops_pipelines.core.identity import JobId, NodeName, Place, Topology
from ops_pipelines.core.observation import NO_NODE, JobState, JobStatus, Workload
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.panels.grid import panel_rows
from ops_pipelines.observe.panels.jobs import REMEMBERED_SECONDS
from ops_pipelines.observe.panels.panel import (
    DISK_COLUMNS,
    FROM_DEVICES,
    GPU_COLUMNS,
    NODE_COLUMNS,
    PANEL_COLUMNS,
    PORT_COLUMNS,
    RACK_COLUMNS,
    Layer,
    Panel,
)
from ops_pipelines.observe.panels.tables import panel_from_tables

START = datetime(2026, 11, 21, 7, tzinfo=UTC)
Row = Mapping[str, object]
NAN = math.nan


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def topology(*nodes: str, gpus_per_node: int = 2) -> Topology:
    return Topology(
        places={
            NodeName(node): Place(rack=f"r{number // 2}", nvlink_domain=node, leaf_switch="s1")
            for number, node in enumerate(nodes)
        },
        gpus_per_node=gpus_per_node,
    )


def row(node: str, device: str, seconds: float, **cells: object) -> Row:
    return {"node": node, "device": device, "time": at(seconds), **cells}


def panel_of(
    tables: Mapping[str, Sequence[Row]],
    *,
    count: int = 4,
    step_seconds: int = 15,
    nodes: Topology | None = None,
    jobs: Sequence[JobStatus] = (),
    lines_until: datetime | None = None,
) -> Panel:
    return panel_from_tables(
        {name: TABLES[name].from_rows(rows) for name, rows in tables.items()},
        start=START,
        end=at(count * step_seconds),
        step_seconds=step_seconds,
        topology=nodes,
        jobs=jobs,
        lines_until=lines_until,
    )


def column(layer: Layer, name: str, device: str = "", *, node: str | None = None) -> list[float | None]:
    """Return one part's samples, None for a gap."""
    (place,) = [
        number
        for number, part in enumerate(layer.parts)
        if part.device == device and (node is None or part.node == node)
    ]
    return [None if math.isnan(value) else float(value) for value in layer.value(name)[:, place]]


def holders(panel: Panel, node: str) -> list[str | None]:
    (place,) = [number for number, part in enumerate(panel.nodes.parts) if part.node == node]
    return [None if job < 0 else panel.job(job) for job in panel.held_by[:, place].tolist()]


def gpu(node: str, bus: int, seconds: float, **cells: object) -> Row:
    address = f"0000:{bus:02x}:00"
    labels = {"pci_address": address, "gpu_uuid": f"GPU-{node}-{bus}"}
    return row(node, f"GPU-{node}-{bus}", seconds, **{**labels, **cells})


def job_status(job: str, *nodes: str, started: float, ended: float | None = None, gpus: int = 2) -> JobStatus:
    return JobStatus(
        job=JobId(job),
        state=JobState.RUNNING if ended is None else JobState.COMPLETED,
        is_held=False,
        is_requeueable=True,
        name="train",
        user="ada",
        account="ml",
        workload=Workload.TRAINING,
        nodes=frozenset(map(NodeName, nodes)),
        gpu_count=gpus * len(nodes),
        started_at=at(started),
        ended_at=None if ended is None else at(ended),
        restart_count=0,
        excluded_nodes=frozenset(),
        checkpointed_at=None,
    )


# -- the grid --


@pytest.mark.parametrize(
    ("seconds", "cells"),
    [
        pytest.param(-0.000001, [1.0, None, None], id="just before the first grid time: known at it"),
        pytest.param(0, [1.0, None, None], id="at it"),
        pytest.param(0.000001, [None, 1.0, None], id="just after it"),
        pytest.param(15, [None, 1.0, None], id="the second"),
        pytest.param(30, [None, None, 1.0], id="the last"),
        pytest.param(30.000001, [None, None, None], id="after the last"),
        pytest.param(-15, [None, None, None], id="of the grid time before the first"),
    ],
)
def test_a_row_belongs_to_the_grid_time_at_which_it_is_known(seconds: float, cells: list[float | None]) -> None:
    rows = [gpu("n1", 1, 15, power_watts=None), gpu("n1", 1, seconds, power_watts=1.0)]

    panel = panel_of({"gpu_telemetry": rows}, count=3)

    assert column(panel.gpus, "power_watts", "0000:01:00") == cells


def test_a_gap_stays_a_gap_and_a_counter_over_it_has_no_rate() -> None:
    rows = [gpu("n1", 1, 15 * number, energy_joules=100.0 * number) for number in (0, 1, 3)]

    panel = panel_of({"gpu_telemetry": rows})

    assert column(panel.gpus, "energy_joules", "0000:01:00") == [0.0, 100.0, None, 300.0]
    assert np.isnan(panel.gpus.rate("energy_joules")[[0, 2, 3], 0]).all()
    assert panel.gpus.rate("energy_joules")[1, 0] == pytest.approx(100 / 15)


def test_counters_keep_every_digit() -> None:
    rows = [gpu("n1", 1, 15 * number, nvlink_bandwidth_bytes=2.0**52 + number) for number in range(3)]

    panel = panel_of({"gpu_telemetry": rows}, count=3)

    assert panel.gpus.rate("nvlink_bandwidth_bytes")[1:, 0].tolist() == pytest.approx([1 / 15, 1 / 15])


@pytest.mark.parametrize(("step_seconds", "cells"), [(15, [1.0, 2.0, 3.0, 4.0]), (30, [1.0, 3.0, 4.0, None])])
def test_a_wider_step_takes_the_newest_sample_of_each(step_seconds: int, cells: list[float | None]) -> None:
    rows = [gpu("n1", 1, 15 * number, power_watts=number + 1.0) for number in range(4)]

    panel = panel_of({"gpu_telemetry": rows[::-1]}, step_seconds=step_seconds)

    assert column(panel.gpus, "power_watts", "0000:01:00") == cells


def test_a_step_below_a_second_is_refused() -> None:
    with pytest.raises(ValueError, match="the step is 0 s; expected 1 or more"):
        panel_of({}, step_seconds=0)


def test_absent_tables_give_empty_layers_of_the_right_length_and_all_declared_nodes() -> None:
    panel = panel_of({}, nodes=topology("n2", "n1"))

    assert [part.node for part in panel.nodes.parts] == ["n2", "n1"]
    for layer in (panel.gpus, panel.nodes, panel.ports, panel.disks, panel.racks, panel.jobs):
        assert layer.value("power_watts").shape == (4, len(layer.parts))
    assert holders(panel, "n1") == [None] * 4
    assert not panel.nodes.present.any()


def test_an_empty_stretch_is_an_empty_panel() -> None:
    panel = panel_of({"gpu_telemetry": [gpu("n1", 1, 0, power_watts=1.0, job="7")]}, count=0)

    assert panel.held_by.shape == (0, 0)
    assert panel.gpus.value("power_watts").shape[0] == 0


# -- GPUs --


def test_a_gpu_is_one_column_however_its_exporters_name_it_and_has_its_newest_labels() -> None:
    rows = [
        gpu("n1", 1, 0, power_watts=1.0, driver_version="550.1", gpu_model="H100"),
        row("n1", "0000:01:00", 15, pci_address="0000:01:00", power_watts=2.0),
        row("n1", "GPU-new", 30, pci_address="0000:01:00", gpu_uuid="GPU-new", power_watts=3.0, driver_version="570.2"),
    ]

    panel = panel_of({"gpu_telemetry": rows})

    (part,) = panel.gpus.parts
    assert (part.device, part.uuid, part.driver, part.model) == ("0000:01:00", "GPU-new", "570.2", "H100")
    assert column(panel.gpus, "power_watts", "0000:01:00") == [1.0, 2.0, 3.0, None]


def test_a_gpu_of_which_only_some_rows_say_the_address_is_keyed_by_it() -> None:
    rows = [
        row("n1", "GPU-a", 0, gpu_uuid="GPU-a", power_watts=1.0),
        row("n1", "GPU-a", 15, gpu_uuid="GPU-a", pci_address="0000:01:00", power_watts=2.0),
        row("n1", "GPU-b", 15, gpu_uuid="GPU-b", power_watts=3.0),
    ]

    panel = panel_of({"gpu_telemetry": rows})

    assert [part.device for part in panel.gpus.parts] == ["0000:01:00", "GPU-b"]
    assert column(panel.gpus, "power_watts", "0000:01:00") == [1.0, 2.0, None, None]


def test_slices_of_a_gpu_are_left_out_and_the_whole_one_stays() -> None:
    rows = [
        gpu("n1", 1, 0, power_watts=300.0),
        row("n1", "GPU-a/mig3", 0, pci_address="0000:01:00", mig_instance="3", sm_active_ratio=0.5),
    ]

    panel = panel_of({"gpu_telemetry": rows})

    assert [part.device for part in panel.gpus.parts] == ["0000:01:00"]
    assert "sm_active_ratio" not in panel.gpus


def test_of_two_rows_of_one_time_each_cell_is_taken_whatever_their_order() -> None:
    rows = [
        gpu("n1", 1, 0, power_watts=1.0, temperature_celsius=40.0),
        row("n1", "0000:01:00", 0, pci_address="0000:01:00", power_watts=2.0),
    ]

    for listed in (rows, rows[::-1]):
        panel = panel_of({"gpu_telemetry": listed}, count=1)

        assert column(panel.gpus, "power_watts", "0000:01:00") == [1.0]
        assert column(panel.gpus, "temperature_celsius", "0000:01:00") == [40.0]


def test_nodes_that_cluster_yaml_lacks_follow_the_declared_ones() -> None:
    rows = [gpu("stranger", 1, 0, power_watts=1.0), gpu("n1", 1, 0, power_watts=2.0)]

    panel = panel_of({"gpu_telemetry": rows}, nodes=topology("n2", "n1"))

    assert [part.node for part in panel.nodes.parts] == ["n2", "n1", "stranger"]
    assert [part.node for part in panel.gpus.parts] == ["n1", "stranger"]


# -- devices of a node --


def lustre(node: str, seconds: float, read: float | None, *, mount: str = "a") -> Row:
    return row(node, f"lustre:client/{mount}", seconds, lustre_read_bytes=read)


def test_shared_bytes_are_the_sum_over_mounts_of_the_client_and_of_both_kinds() -> None:
    rows = [
        each
        for number in range(3)
        for each in (
            lustre("n1", 15 * number, 100.0 * number),
            row("n1", "nfs:/home", 15 * number, nfs_read_bytes=1000.0 + 7 * number),
            row("n1", "lustre:ost/x", 15 * number, lustre_read_bytes=1e9 * number),
            row("", "nfs:/home", 15 * number, nfs_read_bytes=5e9 * number),
        )
    ]

    panel = panel_of({"storage_telemetry": rows}, count=3)

    assert column(panel.nodes, "shared_read_bytes") == [1000.0, 1107.0, 1214.0]
    assert panel.disks.parts == ()


def test_a_mount_that_is_missing_for_a_sample_leaves_no_sum_and_its_growth_is_not_lost() -> None:
    a = [lustre("n1", 15 * number, 100.0 * number) for number in range(4)]
    b = [lustre("n1", 15 * number, 10.0 * number, mount="b") for number in (0, 1, 3)]

    panel = panel_of({"storage_telemetry": [*a, *b]})

    assert column(panel.nodes, "shared_read_bytes") == [0.0, 110.0, None, 330.0]


def test_a_mount_that_appears_adds_only_what_it_counts_from_then_on() -> None:
    a = [lustre("n1", 15 * number, 100.0 * number) for number in range(4)]
    b = [lustre("n1", 15 * number, 9e9 + 10.0 * number, mount="b") for number in (2, 3)]

    panel = panel_of({"storage_telemetry": [*a, *b]})

    assert column(panel.nodes, "shared_read_bytes") == [0.0, 100.0, 200.0, 310.0]


def test_a_mount_that_is_gone_for_good_is_no_longer_waited_for() -> None:
    count = REMEMBERED_SECONDS // 15 + 3
    a = [lustre("n1", 15 * number, 100.0 * number) for number in range(count)]
    b = [lustre("n1", 0, 5.0, mount="b"), lustre("n1", 15 * (count - 1), 8e9, mount="b")]

    panel = panel_of({"storage_telemetry": [*a, *b]}, count=count)

    found = column(panel.nodes, "shared_read_bytes")
    assert found[0] == 5.0
    assert found[1 : REMEMBERED_SECONDS // 15] == [None] * (REMEMBERED_SECONDS // 15 - 1)
    # What it counted while it was away did not happen in one step.
    assert found[-3:] == [5.0 + 100.0 * number for number in range(count - 3, count)]


def test_where_one_counter_restarts_the_sum_has_no_rate() -> None:
    a = [lustre("n1", 15 * number, 1000.0 * number) for number in range(4)]
    b = [lustre("n1", 15 * number, value, mount="b") for number, value in enumerate((500.0, 600.0, 10.0, 20.0))]

    panel = panel_of({"storage_telemetry": [*a, *b]})

    rates = panel.nodes.rate("shared_read_bytes")[:, 0]
    assert np.isnan(rates[[0, 2]]).all()
    assert rates[[1, 3]].tolist() == pytest.approx([1100 / 15, 1010 / 15])


def test_fabric_bytes_are_both_ways_of_all_ports_and_switches_are_no_ports() -> None:
    rows = [
        each
        for number in range(2)
        for each in (
            row("n1", "mlx5_0/1", 15 * number, receive_bytes=10.0 * number, transmit_bytes=1.0 * number),
            row("n1", "mlx5_1/1", 15 * number, receive_bytes=100.0 * number, transmit_bytes=1000.0 * number),
            row("", "switch:0x1/3", 15 * number, switch_symbol_error_count=1.0),
        )
    ]

    panel = panel_of({"fabric_telemetry": rows}, count=2)

    assert column(panel.nodes, "fabric_bytes") == [0.0, 1111.0]
    assert [part.device for part in panel.ports.parts] == ["mlx5_0/1", "mlx5_1/1"]
    assert column(panel.ports, "receive_bytes", "mlx5_1/1") == [0.0, 100.0]


def test_older_drivers_names_of_traffic_count_where_the_others_say_nothing() -> None:
    rows = [
        row("n1", "mlx5_0/1", 15 * number, legacy_receive_bytes=10.0 * number, legacy_transmit_bytes=1.0 * number)
        for number in range(2)
    ]

    panel = panel_of({"fabric_telemetry": rows}, count=2)

    assert column(panel.nodes, "fabric_bytes") == [0.0, 11.0]


def test_the_fullest_file_system_that_can_be_written_counts() -> None:
    rows = [
        row("n1", "fs:/", 0, filesystem_size_bytes=100.0, filesystem_available_bytes=50.0, filesystem_read_only=0.0),
        row("n1", "fs:/raid", 0, filesystem_size_bytes=100.0, filesystem_available_bytes=2.0),
        row("n1", "fs:/snap", 0, filesystem_size_bytes=9.0, filesystem_available_bytes=0.0, filesystem_read_only=1.0),
        row("n1", "fs:/odd", 0, filesystem_size_bytes=0.0, filesystem_available_bytes=0.0),
        row("n2", "fs:/", 0, filesystem_size_bytes=100.0, filesystem_available_bytes=70.0),
    ]

    panel = panel_of({"node_telemetry": rows}, count=1)

    assert column(panel.nodes, "filesystem_available_ratio", node="n1") == [pytest.approx(0.02)]
    assert column(panel.nodes, "filesystem_available_ratio", node="n2") == [pytest.approx(0.7)]


def test_node_columns_busy_time_errors_of_controllers_and_the_worst_state_of_a_supply() -> None:
    tables = {
        "node_telemetry": [
            row("n1", "", 0, cpu_user_seconds=10.0, cpu_system_seconds=2.0, load_1m=3.5),
            row("n1", "mc0", 0, edac_correctable_count=4.0),
            row("n1", "mc1", 0, edac_correctable_count=3.0),
        ],
        "facility_telemetry": [
            row("n1", "1/PSU1", 0, supply_health_state=1.0),
            row("n1", "1/PSU2", 0, supply_health_state=3.0),
            row("n1", "1", 0, healthy=1.0),
            row("n1", "2", 0, healthy=0.0),
        ],
        "platform_telemetry": [
            row("n1", "node/n1:9100", 0, target_up=1.0),
            row("n1", "dcgm/n1:9400", 0, target_up=0.0),
        ],
    }

    panel = panel_of(tables, count=1)

    found = {name: column(panel.nodes, name)[0] for name in panel.nodes.values}
    assert found["cpu_busy_seconds"] == 12.0
    assert found["load_1m"] == 3.5
    assert found["edac_correctable_count"] == 7.0
    assert (found["supply_health_state"], found["healthy"], found["target_up"]) == (3.0, 0.0, 0.0)


def test_busy_time_of_which_one_half_is_not_known_is_not_known() -> None:
    rows = [row("n1", "", 0, cpu_user_seconds=10.0, cpu_system_seconds=2.0), row("n1", "", 15, cpu_user_seconds=20.0)]

    panel = panel_of({"node_telemetry": rows}, count=2)

    assert column(panel.nodes, "cpu_busy_seconds") == [12.0, None]


# -- racks --


def test_racks_have_their_own_sensors_else_the_median_of_their_nodes_inlets() -> None:
    rows = [
        row("", "rack:r0", 0, inlet_temperature_celsius=24.0, rack_power_watts=5e4),
        *(
            row(node, "1/Inlet Temp", 0, temperature_celsius=celsius)
            for node, celsius in (("n1", 30.0), ("n3", 21.0), ("n4", 23.0), ("stranger", 80.0))
        ),
        row("n3", "1/Exhaust Temp", 0, temperature_celsius=55.0),
    ]

    panel = panel_of({"facility_telemetry": rows}, count=2, nodes=topology("n1", "n2", "n3", "n4"))

    assert [(part.node, part.device) for part in panel.racks.parts] == [(NO_NODE, "r0"), (NO_NODE, "r1")]
    assert column(panel.racks, "inlet_temperature_celsius", "r0") == [24.0, None]
    assert column(panel.racks, "inlet_temperature_celsius", "r1") == [22.0, None]
    assert column(panel.racks, "rack_power_watts", "r1") == [None, None]
    assert column(panel.nodes, "inlet_temperature_celsius", node="n3") == [21.0, None]


# -- jobs --


_positions = itertools.count()


def line(job: str | None, seconds: float, **cells: object) -> Row:
    return {"source": "s", "position": str(next(_positions)), "time": at(seconds), "job": job, **cells}


def test_what_a_job_exports_is_its_own_column_wherever_its_first_rank_is() -> None:
    rows = [
        row("n1", "job:7", 0, step_count=3.0, loss=2.5, step_seconds=1.5),
        row("n2", "job:7", 15, step_count=4.0, loss=2.25),
        row("n2", "llama", 15, queue_depth_count=4.0),
    ]

    panel = panel_of({"application_telemetry": rows}, count=2)

    assert [part.device for part in panel.jobs.parts] == ["7"]
    assert column(panel.jobs, "step_count", "7") == [3.0, 4.0]
    assert column(panel.jobs, "loss", "7") == [2.5, 2.25]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_infinite_and_one_that_is_missing_is_a_gap(loss: float) -> None:
    rows = [row("", "job:7", 0, loss=loss), row("", "job:7", 15, step_count=4.0)]

    panel = panel_of({"application_telemetry": rows}, count=2)

    assert panel.jobs.value("loss")[:, 0].tolist()[0] == math.inf
    assert math.isnan(panel.jobs.value("loss")[1, 0])


def test_a_loss_that_the_gates_refused_because_it_is_no_number_is_infinite() -> None:
    refused = {"source": "prometheus", "time": at(15), "into": "application_telemetry", "reason": "not_finite"}
    rows = [
        {**refused, "record": "1", "text": 'training_loss{instance="n1:9",job_id="7",user="ada"} nan 1'},
        {**refused, "record": "2", "text": 'training_step_seconds{job_id="8"} nan 1'},
        {**refused, "record": "3", "text": 'training_loss{job_id="9"} 1e99 1', "reason": "out_of_range"},
    ]

    panel = panel_of({"rejected_rows": rows}, count=3)

    assert [part.device for part in panel.jobs.parts] == ["7"]
    assert column(panel.jobs, "loss", "7") == [None, math.inf, None]


def test_lines_of_a_job_are_counted_from_the_first_and_say_steps_and_loss() -> None:
    rows = [
        line("7", 14, step=3, loss=2.5, step_seconds=1.5),
        line("7", 16),
        line("7", 29, step=4, loss=2.25),
        line("8", 0, signature="train_nan_loss"),
        line(None, 0),
    ]

    panel = panel_of({"job_logs": rows}, count=5)

    assert column(panel.jobs, "line_count", "7") == [None, 1.0, 3.0, 3.0, 3.0]
    assert column(panel.jobs, "step_count", "7") == [None, 3.0, 4.0, 4.0, 4.0]
    assert column(panel.jobs, "loss", "7") == [None, 2.5, 2.25, 2.25, 2.25]
    assert column(panel.jobs, "step_seconds", "7") == [None, 1.5, None, None, None]
    assert column(panel.jobs, "loss", "8") == [math.inf, None, None, None, None]


def test_a_job_that_exports_its_steps_is_not_counted_by_its_lines() -> None:
    tables = {
        "application_telemetry": [row("", "job:7", 0, step_count=12.0)],
        "job_logs": [line("7", 15, step=100_012, loss=1.0), line("8", 15, step=5)],
    }

    panel = panel_of(tables, count=2)

    assert column(panel.jobs, "step_count", "7") == [12.0, None]
    assert column(panel.jobs, "step_count", "8") == [None, 5.0]
    assert column(panel.jobs, "loss", "7") == [None, 1.0]


@pytest.mark.parametrize(
    ("until", "counts"),
    [(14.999999, [1.0, None, None]), (15, [1.0, 1.0, None]), (29.9, [1.0, 1.0, None]), (None, [1.0, 1.0, 1.0])],
)
def test_after_the_logs_were_last_read_there_is_no_silence(until: float | None, counts: list[float | None]) -> None:
    lines_until = None if until is None else at(until)

    panel = panel_of({"job_logs": [line("7", 0, step=1)]}, count=3, lines_until=lines_until)

    assert column(panel.jobs, "line_count", "7") == counts
    assert column(panel.jobs, "step_count", "7") == counts


# -- who holds what --


def test_the_label_of_the_exporter_says_who_holds_a_node() -> None:
    rows = [gpu("n1", bus, 15 * number, power_watts=1.0, job="7") for bus in (1, 2) for number in range(3)]

    panel = panel_of({"gpu_telemetry": rows})

    assert holders(panel, "n1") == ["7", "7", "7", "7"]  # silence ends no job


@pytest.mark.parametrize(
    ("labels", "holder"),
    [
        pytest.param(("7", "7"), "7", id="one job"),
        pytest.param(("7", "8"), None, id="two jobs"),
        pytest.param(("7", None), None, id="a job on a part of the node"),
        pytest.param(("7,8", "7,8"), None, id="a list of jobs"),
        pytest.param((None, None), None, id="nobody"),
    ],
)
def test_only_who_holds_all_gpus_holds_the_node(labels: tuple[str | None, ...], holder: str | None) -> None:
    rows = [gpu("n1", bus, 0, power_watts=1.0, job=job) for bus, job in enumerate(labels)]

    panel = panel_of({"gpu_telemetry": rows}, count=1)

    assert holders(panel, "n1") == [holder]


@pytest.mark.parametrize("label", ["--all", "x\n\x1b[31m", "../7", "a" * 254, "7;reboot", ""])
def test_a_label_that_is_no_job_id_is_no_job_and_leaves_the_word_to_the_scheduler(label: str) -> None:
    tables: Mapping[str, Sequence[Row]] = {
        "gpu_telemetry": [gpu("n1", bus, 0, power_watts=1.0, job=label) for bus in (1, 2)],
        "application_telemetry": [row("", f"job:{each}", 0, step_count=3.0) for each in (label, "9")],
        "job_logs": [
            {"source": "s", "position": str(number), "time": at(0), "job": each, "step": 5, "loss": math.nan}
            for number, each in enumerate((label, "8"))
        ],
        "job_allocations": [
            {"job": label, "attempt": "a", "node": "n2", "time": at(0), "gpu_count": 2.0, "started_at": at(0)}
        ],
        "rejected_rows": [
            {
                "source": "e", "record": "1", "time": at(0), "reason": "not_finite", "into": "application_telemetry",
                "text": f'training_loss{{job_id="{label}"}} NaN',
            }
        ],
    }  # fmt: skip

    panel = panel_of(tables, count=1, nodes=topology("n1", "n2"), jobs=[job_status("7", "n1", started=-60)])

    assert {part.device for part in panel.jobs.parts} == {"7", "8", "9"}
    assert column(panel.jobs, "step_count", "9") == [3.0]
    assert column(panel.jobs, "step_count", "8") == [5.0]
    assert (holders(panel, "n1"), holders(panel, "n2")) == (["7"], [None])


def test_without_labels_the_scheduler_says_who_holds_a_node_from_its_start_to_before_its_end() -> None:
    jobs = [job_status("7", "n1", started=-500, ended=30), job_status("8", "n1", "n2", started=30.5)]

    panel = panel_of({}, count=5, nodes=topology("n1", "n2"), jobs=jobs)

    assert holders(panel, "n1") == ["7", "7", None, "8", "8"]
    assert holders(panel, "n2") == [None, None, None, "8", "8"]


def test_jobs_that_share_a_node_hold_it_none_and_a_job_without_gpus_holds_nothing() -> None:
    jobs = [
        job_status("7", "n1", started=0, gpus=1),
        job_status("8", "n2", started=0, gpus=2),
        job_status("9", "n2", started=15, gpus=0),
        job_status("10", "n3", started=0),
        job_status("11", "n3", started=15),
    ]

    panel = panel_of({}, count=2, nodes=topology("n1", "n2", "n3"), jobs=jobs)

    assert [holders(panel, node) for node in ("n1", "n2", "n3")] == [[None, None], ["8", "8"], ["10", None]]


def allocation(job: str, node: str, *, hour: float = 0, started: float | None, ended: float | None) -> Row:
    return {
        "job": job, "attempt": "a", "node": node, "time": at(hour), "gpu_count": 2.0,
        "started_at": None if started is None else at(started), "ended_at": None if ended is None else at(ended),
    }  # fmt: skip


def test_allocations_count_within_their_hour_and_yield_to_the_scheduler_and_the_exporter() -> None:
    tables = {
        "job_allocations": [
            allocation("7", "n1", hour=0, started=-900, ended=None),
            allocation("7", "n1", hour=3600, started=-900, ended=None),
            allocation("5", "n2", hour=0, started=None, ended=3585),
            allocation("6", "n3", hour=0, started=None, ended=None),
        ],
        "gpu_telemetry": [gpu("n3", 1, 3585, power_watts=1.0, job="60")],
    }
    nodes = topology("n1", "n2", "n3")

    panel = panel_of(tables, count=242, nodes=nodes, jobs=[job_status("8", "n2", started=3600)])

    assert set(holders(panel, "n1")) == {"7"}
    assert holders(panel, "n2")[-4:] == ["5", None, "8", "8"]
    assert holders(panel, "n3")[-5:] == ["6", "6", "60", "60", "60"]


# -- the whole --


COUNTS = st.lists(st.one_of(st.none(), st.integers(0, 50)), min_size=6, max_size=6)


@settings(max_examples=40, deadline=None)
@given(grown=st.lists(COUNTS, min_size=1, max_size=3))
def test_the_sum_grows_by_what_its_devices_grow_wherever_all_of_them_are_known(grown: list[list[int | None]]) -> None:
    totals = [np.cumsum([step or 0 for step in steps]) for steps in grown]
    rows = [
        lustre("n1", 15 * number, float(total[number]), mount=f"m{mount}")
        for mount, (steps, total) in enumerate(zip(grown, totals, strict=True))
        for number, step in enumerate(steps)
        if step is not None
    ]
    seen = [[step is not None for step in steps] for steps in grown]

    panel = panel_of({"storage_telemetry": rows}, count=6)

    for number in range(6):
        expected = [mount for mount, flags in enumerate(seen) if any(flags[: number + 1])]
        known = bool(expected) and all(seen[mount][number] for mount in expected)
        cells = column(panel.nodes, "shared_read_bytes") if panel.nodes.parts else [None] * 6
        assert (cells[number] is not None) == known
    for name, matrix in panel.nodes.values.items():
        first, second = matrix[:-1], matrix[1:]
        assert not (second < first).any(), name


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_order_of_the_rows_does_not_matter(data: st.DataObject) -> None:
    rows = [
        gpu(node, bus, 15 * number, power_watts=float(number), job="7" if bus else "8", gpu_model=f"m{number}")
        for node in ("n1", "n2")
        for bus in (1, 2)
        for number in range(3)
    ]
    logs = [line("7", seconds, step=seconds) for seconds in range(0, 60, 7)]

    shuffled = panel_of(
        {"gpu_telemetry": data.draw(st.permutations(rows)), "job_logs": data.draw(st.permutations(logs))}
    )

    assert_same(shuffled, panel_of({"gpu_telemetry": rows, "job_logs": logs}))


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(1, 5))
def test_what_came_later_does_not_change_what_was_seen_before(cut: int) -> None:
    tables = {
        "gpu_telemetry": [gpu("n1", 1, 15 * number, power_watts=float(number), job="7") for number in range(6)],
        "storage_telemetry": [
            lustre("n1", 15 * number, 100.0 * number, mount=mount)
            for mount, first in (("a", 0), ("b", 2))
            for number in range(first, 6)
        ],
        "job_logs": [line("7", seconds, step=seconds) for seconds in range(20, 90, 7)],
    }
    nodes = topology("n1")

    short, whole = (panel_of(tables, count=count, nodes=nodes) for count in (cut, 6))

    assert short.held_by.tolist() == whole.held_by[:cut].tolist()
    for name in ("gpus", "nodes", "jobs"):
        early, late = getattr(short, name), getattr(whole, name)
        for quantity, matrix in early.values.items():
            np.testing.assert_array_equal(matrix, late.value(quantity)[:cut, : matrix.shape[1]], err_msg=quantity)


def assert_same(one: Panel, other: Panel) -> None:
    np.testing.assert_array_equal(one.times, other.times)
    np.testing.assert_array_equal(one.held_by, other.held_by)
    for name in ("gpus", "nodes", "ports", "disks", "racks", "jobs"):
        first, second = getattr(one, name), getattr(other, name)
        assert first.parts == second.parts, name
        assert first.values.keys() == second.values.keys(), name
        for quantity, matrix in first.values.items():
            np.testing.assert_array_equal(matrix, second.values[quantity], err_msg=quantity)


def test_the_few_columns_that_are_kept_give_the_same_panel() -> None:
    tables: dict[str, Sequence[Row]] = {
        "gpu_telemetry": [gpu("n1", 1, 0, power_watts=1.0, job="7", encoder_ratio=0.5)],
        "node_telemetry": [row("n1", "", 0, load_1m=1.0), row("n1", "net:eth0", 0, network_up=1.0)],
        "fabric_telemetry": [row("n1", "mlx5_0/1", 0, receive_bytes=1.0, cnp_sent_count=4.0)],
        "storage_telemetry": [row("n1", "nvme0n1", 0, read_bytes=1.0), lustre("n1", 0, 1.0)],
        "facility_telemetry": [row("", "rack:r0", 0, rack_power_watts=1.0), row("", "hall", 0, pue_ratio=1.2)],
        "application_telemetry": [row("", "job:7", 0, step_count=1.0), row("", "llama", 0, queue_depth_count=1.0)],
        "platform_telemetry": [row("n1", "node/n1:9100", 0, target_up=1.0)],
        "job_logs": [line("7", 0, step=1), line(None, 0)],
        "job_allocations": [allocation("7", "n1", started=None, ended=None)],
    }
    full = {name: TABLES[name].from_rows(rows) for name, rows in tables.items()}
    kept = {name: panel_rows(name, rows) for name, rows in full.items()}

    panels = [
        panel_from_tables(each, start=START, end=at(60), step_seconds=15, topology=topology("n1"))
        for each in (full, kept)
    ]

    assert_same(*panels)
    assert kept["node_telemetry"].num_rows == 1
    assert kept["gpu_telemetry"].column_names == [
        "node",
        "device",
        "time",
        "gpu_uuid",
        "pci_address",
        "job",
        "power_watts",
    ]


def test_every_column_is_one_of_its_table() -> None:
    for table, columns in PANEL_COLUMNS.items():
        assert not set(columns) - TABLES[table].by_name.keys(), table
        assert len(set(columns)) == len(columns), table


def test_columns_of_the_layer_of_nodes_come_from_one_place() -> None:
    derived = [each.column for each in FROM_DEVICES]
    own = ["cpu_busy_seconds", "filesystem_available_ratio", "inlet_temperature_celsius"]

    assert len({*NODE_COLUMNS, *derived, *own}) == len(NODE_COLUMNS) + len(derived) + len(own)


def test_whatever_a_detector_names_is_kept_for_it() -> None:
    kept = {*GPU_COLUMNS, *NODE_COLUMNS, *PORT_COLUMNS, *DISK_COLUMNS, *RACK_COLUMNS, *PANEL_COLUMNS["job_logs"]}
    kept |= {each.column for each in FROM_DEVICES}
    kept |= {"cpu_busy_seconds", "filesystem_available_ratio", "inlet_temperature_celsius", "step_count", "loss"}
    measured = {name for table in TABLES.values() for name, each in table.by_name.items() if each.quantity is not None}
    named = {
        node.value
        for file in Path(ops_pipelines.observe.detectors.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert named & measured <= kept


def test_rows_that_are_dictionaries_and_rows_that_are_plain_are_read_alike() -> None:
    rows = TABLES["gpu_telemetry"].from_rows([gpu("n1", 1, 0, power_watts=1.0, job="7")])
    parts = [panel_rows("gpu_telemetry", each) for each in (rows, rows.slice(0, 0))]
    encoded = pa.concat_tables(parts, promote_options="default")

    panel = panel_from_tables({"gpu_telemetry": encoded}, start=START, end=at(15), step_seconds=15, topology=None)

    assert holders(panel, "n1") == ["7"]
