"""Every layer of the simulated cluster is measured, in series that the catalogue knows, as load and faults have it."""

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from ops_pipelines.lake.quantities import Kind, read_quantities
from ops_pipelines.lake.schema import TELEMETRY_TABLES
from ops_pipelines_lab.simulator.exporter import SimulatedMetrics
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.load import SHAPES, Load, Meter
from ops_pipelines_lab.simulator.scenario import JobSpec
from ops_pipelines_lab.simulator.twin import Twin
from tests.simulator.fake_clock import BEGINNING
from tests.simulator.small_cluster import GPU1, GPU2, GPU3, GPU4, SERVICE, TRAINING, SmallCluster

Labels = frozenset[tuple[str, str]]
Series = tuple[str, Labels]
SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+) (\d+)")
KINDS = re.compile(r"^# TYPE (\S+) (\S+)$", re.M)
STALLED, WAITING = (
    JobSpec(
        name=load.value,
        user="research-train",
        account="research",
        workload=TRAINING.workload,
        step_seconds=0.5,
        load=load,
    )
    for load in (Load.INPUT_STALLED, Load.COMMUNICATION_BOUND)
)


def read_text(source: SimulatedMetrics, at: datetime) -> str:
    return "".join(page.body.decode() for page in source.read_range((), start=at, end=at, step_seconds=1))


def read_stretch(source: SimulatedMetrics, start: datetime, end: datetime) -> dict[datetime, dict[Series, float]]:
    """Return what the answers to range queries hold, by time."""
    found: dict[datetime, dict[Series, float]] = {}
    for page in source.read_range((), start=start, end=end, step_seconds=1):
        for result in json.loads(page.body)["data"]["result"]:
            labels = dict(result["metric"])
            series = (labels.pop("__name__"), frozenset(labels.items()))
            for seconds, value in result["values"]:
                assert series not in found.setdefault(datetime.fromtimestamp(seconds, UTC), {})
                found[datetime.fromtimestamp(seconds, UTC)][series] = float(value)
    return found


def samples_in(text: str) -> dict[Series, float]:
    found: dict[Series, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            series = (match[1], frozenset(re.findall(r'(\w+)="([^"]*)"', match[2] or "")))
            assert series not in found
            found[series] = float(match[3])
    return found


def read_now(cluster: SmallCluster) -> dict[Series, float]:
    return samples_in(read_text(SimulatedMetrics(cluster.twin), cluster.clock.now()))


def value(samples: dict[Series, float], name: str, **labels: str) -> float:
    """Return the sum of the series with this name and these labels."""
    found = [number for (each, having), number in samples.items() if each == name and set(labels.items()) <= having]
    assert found, f"no {name} with {labels}"
    return sum(found)


def of_node(samples: dict[Series, float], node: str) -> set[str]:
    """Return the names of what the node itself reported."""
    return {
        name
        for name, labels in samples
        if (name.startswith("DCGM_") and ("Hostname", node) in labels)
        or (("instance", node) in labels and not name.startswith(("up", "scrape_")))
    }


def test_every_layer_is_measured(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, SERVICE)
    cluster.clock.wait(60.0)
    tables = {series.name: quantity.table for quantity in read_quantities() for series in quantity.series}

    found = Counter(tables.get(name) for name, _ in read_now(cluster))

    assert set(TELEMETRY_TABLES) <= found.keys()


def test_the_catalogue_knows_every_series_but_the_buckets_of_histograms(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, SERVICE)
    cluster.clock.wait(60.0)
    known = {series.name for quantity in read_quantities() for series in quantity.series}

    unknown = {name for name, _ in read_now(cluster)} - known

    assert unknown == {"vllm:e2e_request_latency_seconds_bucket"}


def test_every_value_is_possible(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, SERVICE)
    cluster.clock.wait(60.0)
    quantities = {series.name: (quantity, series) for quantity in read_quantities() for series in quantity.series}

    for (name, _), number in read_now(cluster).items():
        if name in quantities:
            quantity, series = quantities[name]
            assert quantity.low <= number * series.factor <= quantity.high, name


def test_counters_never_fall_while_the_node_stays_up(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, SERVICE)
    source, counters = SimulatedMetrics(cluster.twin), counter_names()
    earlier: dict[Series, float] = {}
    for _ in range(12):
        cluster.clock.wait(7.0)
        now = samples_in(read_text(source, cluster.clock.now()))
        fallen = {
            series: (earlier[series], number)
            for series, number in now.items()
            if series[0] in counters and series in earlier and number < earlier[series]
        }
        assert fallen == {}
        earlier = now
        if len(cluster.twin.entries()) == 0:
            cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=0)
    grown = {series[0] for series, number in earlier.items() if series[0] in counters and number > 0}
    assert len(grown) > 20


def counter_names() -> set[str]:
    return {
        series.name for quantity in read_quantities() if quantity.kind is Kind.COUNTER for series in quantity.series
    }


def test_counters_of_a_rebooted_node_begin_anew(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.clock.wait(60.0)
    before = read_now(cluster)
    cluster.fleet.reboot(GPU1, reason="INC-7")
    cluster.clock.wait(10.0)
    after = read_now(cluster)

    for name in ("node_network_receive_bytes_total", "node_cpu_seconds_total", "node_disk_written_bytes_total"):
        assert value(after, name, instance=GPU1) < value(before, name, instance=GPU1)
        assert value(after, name, instance=GPU2) > value(before, name, instance=GPU2)
    assert value(after, "node_boot_time_seconds", instance=GPU1) > value(
        before, "node_boot_time_seconds", instance=GPU1
    )


def test_the_same_moment_asked_again_and_by_another_process_gives_the_same(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, SERVICE)
    cluster.clock.wait(30.0)
    at = cluster.clock.now()
    cluster.twin.inject(FaultKind.UNCORRECTABLE_ECC, GPU2, gpu=3)
    source = SimulatedMetrics(cluster.twin)
    first = read_text(source, at)
    cluster.clock.wait(45.0)
    read_text(source, cluster.clock.now())

    again = read_text(source, at)
    elsewhere = read_text(SimulatedMetrics(Twin.attach(cluster.directory, cluster.clock)), at)

    assert again == first
    assert elsewhere == first


def test_history_is_what_was_seen_live(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, SERVICE)
    live, seen = SimulatedMetrics(cluster.twin), {}
    for number in range(6):
        cluster.clock.wait(1.0)
        seen[cluster.clock.now()] = samples_in(read_text(live, cluster.clock.now()))
        if number == 2:
            cluster.clock.wait(0.5)
            cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU2)
            cluster.clock.wait(0.5)
            seen[cluster.clock.now()] = samples_in(read_text(live, cluster.clock.now()))

    history = read_stretch(SimulatedMetrics(cluster.twin), BEGINNING + timedelta(seconds=1), cluster.clock.now())

    assert history == seen


def test_a_live_reader_is_not_disturbed_by_one_of_history(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    cluster.clock.wait(100.0)
    source = SimulatedMetrics(cluster.twin)
    newest = read_text(source, cluster.clock.now())
    history = source.read_range((), start=BEGINNING, end=cluster.clock.now(), step_seconds=1)

    bodies = [next(history).body.decode() for _ in range(2)]

    assert read_text(source, cluster.clock.now()) == newest
    assert [*bodies, *(page.body.decode() for page in history)] == [
        page.body.decode() for page in source.read_range((), start=BEGINNING, end=cluster.clock.now(), step_seconds=1)
    ]


@pytest.mark.parametrize("fault", [FaultKind.NODE_UNREACHABLE, FaultKind.NETWORK_PARTITION])
def test_a_silent_node_says_nothing_and_its_target_is_down(tmp_path: Path, fault: FaultKind) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    cluster.clock.wait(10.0)
    heard = of_node(read_now(cluster), GPU2)
    cluster.twin.inject(fault, GPU2, seconds=60.0)
    cluster.clock.wait(1.0)

    samples = read_now(cluster)

    assert len(heard) > 80
    assert of_node(samples, GPU2) == set()
    assert of_node(samples, GPU1) >= heard - {"training_step_seconds"}
    assert (value(samples, "up", instance=GPU1), value(samples, "up", instance=GPU2)) == (1, 0)


def test_the_bmc_of_a_node_without_power_still_answers(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.clock.wait(10.0)
    before = read_now(cluster)
    cluster.fleet.power_off(GPU4)

    after = read_now(cluster)

    consumed = "redfish_chassis_power_average_consumed_watts"
    assert value(before, consumed, Hostname=GPU4) > 2_000
    assert value(after, consumed, Hostname=GPU4) == 0
    assert value(after, "rack_power_watts", rack="r1") < value(before, "rack_power_watts", rack="r1") - 2_000
    assert of_node(after, GPU4) == set()


def test_a_lost_gpu_leaves_no_series_and_its_port_stays(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.clock.wait(10.0)
    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=5)

    samples = read_now(cluster)

    active = [labels for name, labels in samples if name == "DCGM_FI_PROF_SM_ACTIVE" and ("Hostname", GPU1) in labels]
    assert len(active) == 7
    assert value(samples, "node_infiniband_state_id", instance=GPU1, device="mlx5_5") == 4


def test_power_of_the_site_is_more_than_that_of_its_machines(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    cluster.clock.wait(60.0)

    samples = read_now(cluster)

    machines = value(samples, "redfish_chassis_power_average_consumed_watts")
    it_watts, site_watts = (value(samples, f"facility_{part}power_watts") for part in ("it_", ""))
    assert machines < it_watts < site_watts
    assert value(samples, "facility_pue_ratio") == pytest.approx(site_watts / it_watts, abs=1e-5)
    assert 1.1 < site_watts / it_watts < 1.5


# -- what a load looks like --


def test_loads_can_be_told_apart_by_what_the_gpus_and_the_node_say(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, STALLED, WAITING)
    cluster.clock.wait(60.0)
    earlier = read_now(cluster)
    cluster.clock.wait(60.0)
    now = read_now(cluster)

    def ratio(name: str, node: str) -> float:
        return value(now, name, Hostname=node) / 8

    def rate(name: str, node: str) -> float:
        return (value(now, name, instance=node) - value(earlier, name, instance=node)) / 60

    tensor, busy = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
    assert ratio(tensor, GPU1) > 0.35
    assert ratio(busy, GPU1) > 90
    # Input-stalled: the GPU is idle, everybody waits for files.
    assert ratio(busy, GPU3) < 40
    assert rate("node_pressure_io_stalled_seconds_total", GPU3) > 0.5
    assert rate("node_pressure_io_stalled_seconds_total", GPU1) < 0.05
    assert rate("lustre_read_bytes_total", GPU3) > 4 * rate("lustre_read_bytes_total", GPU1)
    # Communication-bound: busy without tensor work, ports full and without credits.
    assert ratio(busy, GPU4) > 90
    assert ratio(tensor, GPU4) < 0.1
    port = "node_infiniband_port_data_transmitted_bytes_total"
    assert 8 * 35e9 < rate(port, GPU4) < 8 * 50e9
    wait = "node_infiniband_port_transmit_wait_total"
    assert rate(wait, GPU4) > 20 * rate(wait, GPU1)


def test_a_hung_job_spins_without_traffic_and_trains_on_no_token(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    cluster.clock.wait(60.0)
    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU2, gpu=0)
    cluster.clock.wait(10.0)
    earlier = read_now(cluster)
    cluster.clock.wait(30.0)
    now = read_now(cluster)

    assert value(now, "DCGM_FI_DEV_GPU_UTIL", Hostname=GPU1) == 800
    assert value(now, "DCGM_FI_PROF_SM_ACTIVE", Hostname=GPU1) > 7
    assert value(now, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Hostname=GPU1) == 0
    for still in ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "training_steps_total"):
        assert value(now, still) == value(earlier, still)
    assert value(now, "training_tokens_per_second") == 0


def test_latencies_of_a_service_are_ordered_and_its_buckets_grow(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, SERVICE)
    cluster.clock.wait(120.0)

    samples = read_now(cluster)

    quantiles = [
        value(samples, "nv_inference_request_summary_us", model="chat-api", quantile=each)
        for each in ("0.5", "0.95", "0.99")
    ]
    assert quantiles == sorted(quantiles)
    buckets = sorted(
        (float(dict(labels)["le"]), number)
        for (name, labels), number in samples.items()
        if name == "vllm:e2e_request_latency_seconds_bucket"
    )
    assert all(before[1] <= after[1] for before, after in pairwise(buckets))
    assert buckets[-1][1] == value(samples, "vllm:e2e_request_latency_seconds_count")
    ended = value(samples, "nv_inference_request_success") + value(samples, "nv_inference_request_failure")
    assert ended == buckets[-1][1]


def test_the_scheduler_is_counted_as_it_counts(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    cluster.clock.wait(1.0)
    cluster.scheduler.drain([GPU4], reason="INC-1 broken")

    samples = read_now(cluster)

    assert value(samples, "slurm_jobs_running") == 1
    assert value(samples, "slurm_gpus_alloc") == 16
    states = {word: value(samples, f"slurm_nodes_{word}") for word in ("alloc", "mix", "idle", "down", "drain")}
    assert states == {"alloc": 2, "mix": 0, "idle": 1, "down": 0, "drain": 1}
    assert value(samples, "slurm_scheduler_jobs_submitted") == 1


def test_each_family_is_declared_once_a_page_and_before_its_samples(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, SERVICE)
    cluster.clock.wait(5.0)
    at = cluster.clock.now()

    for page in SimulatedMetrics(cluster.twin).read_range((), start=at, end=at, step_seconds=1):
        declared: dict[str, str] = {}
        for line in page.body.decode().splitlines():
            if line.startswith("# TYPE"):
                _, _, family, kind = line.split(" ")
                assert family not in declared
                declared[family] = kind
            elif not line.startswith("#"):
                name = re.split(r"[{ ]", line, maxsplit=1)[0]
                assert {name, re.sub(r"_(bucket|sum|count)$", "", name)} & declared.keys()


def test_gpu_seconds_grow_by_the_time_that_passes_whatever_the_load_did() -> None:
    meter = Meter(phase=0.3, since=BEGINNING)
    for second, load in ((10, Load.TRAINING), (50, Load.HUNG), (70, Load.IDLE), (71, Load.TRAINING)):
        meter.switch(load, BEGINNING + timedelta(seconds=second))
    earlier = meter.seconds(BEGINNING + timedelta(seconds=71))
    for second in range(72, 200):
        now = meter.seconds(BEGINNING + timedelta(seconds=second))
        assert now[Load.TRAINING] > earlier[Load.TRAINING]
        assert now[Load.HUNG] == earlier[Load.HUNG]
        earlier = now

    assert sum(earlier.values()) == pytest.approx(199, rel=0.02)
    meter.restart(BEGINNING + timedelta(seconds=200))
    assert meter.seconds(BEGINNING + timedelta(seconds=200)) == {Load.IDLE: 0}


@pytest.mark.parametrize("load", list(Load))
def test_only_who_waits_in_a_collective_burns_the_same_every_second(load: Load) -> None:
    meter = Meter(phase=0.3, since=BEGINNING, load=load)
    times = [BEGINNING + timedelta(seconds=15 * count) for count in range(20)]
    totals = [meter.seconds(at)[load] for at in times]
    grown = {round(after - before, 6) for before, after in pairwise(totals)}

    readings = {(meter.watts(at), meter.wave(at)) for at in times}

    is_steady = load in {Load.HUNG, Load.STOPPED}
    assert (len(grown) == 1) is is_steady
    assert (len(readings) == 1) is is_steady


def test_every_load_has_a_shape_and_no_ratio_is_above_one() -> None:
    assert set(SHAPES) == set(Load)
    for shape in SHAPES.values():
        assert max(shape.busy_ratio, shape.sm_active_ratio, shape.sm_occupancy_ratio, shape.tensor_ratio) <= 1
        assert shape.host.fabric_bytes_per_second <= 45e9
