"""The metrics of the twin: the names, labels and types of real exporters, and values that could be measured."""

import math
import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.load import Load, Meter
from ops_pipelines_lab.simulator.metrics import ACTIVITY_METRICS, METRICS, gpu_readings, values_of
from ops_pipelines_lab.simulator.node_metrics import write
from tests.simulator.fake_clock import BEGINNING
from tests.simulator.small_cluster import GPU1, GPU4, TRAINING, SmallCluster

SCRAPES = Path(__file__).parents[2].parent / "shared" / "data" / "dcgm_scrapes"
ALL_METRICS = (*METRICS, *ACTIVITY_METRICS)
SAMPLE_LINE = re.compile(r'(?P<name>[A-Z_a-z0-9]+)\{(?P<labels>(?:[A-Za-z_]+="[^"]*",?)*)\} (?P<value>\S+)')


@pytest.fixture
def real_scrapes() -> str:
    if not SCRAPES.is_dir():
        pytest.skip(f"no recorded dcgm-exporter scrapes in {SCRAPES}")
    return "\n".join(path.read_text() for path in sorted(SCRAPES.glob("*.prom")))


def test_text_has_the_types_and_help_of_real_scrapes(tmp_path: Path, real_scrapes: str) -> None:
    text = rendered(SmallCluster(tmp_path))

    for keyword in ("TYPE", "HELP"):
        real = dict(re.findall(rf"^# {keyword} (DCGM_\S+) (.+)$", real_scrapes, re.M))
        ours = dict(re.findall(rf"^# {keyword} (DCGM_\S+) (.+)$", text, re.M))
        shared = real.keys() & ours.keys()
        assert len(shared) >= 15
        assert {name: ours[name] for name in shared} == {name: real[name] for name in shared}


def test_labels_have_the_names_and_order_of_real_scrapes(tmp_path: Path, real_scrapes: str) -> None:
    ours = label_names(rendered(SmallCluster(tmp_path)))

    # Exporters without a Kubernetes mapping add no more labels than these.
    assert len(ours) == 1
    assert ours <= label_names(real_scrapes)


def test_every_line_parses_and_names_repeat_in_one_block(tmp_path: Path) -> None:
    text = rendered(SmallCluster(tmp_path))

    samples = [line for line in text.splitlines() if not line.startswith("#")]
    names = [match["name"] for match in map(SAMPLE_LINE.fullmatch, samples) if match]
    blocks = [name for number, name in enumerate(names) if number == 0 or names[number - 1] != name]
    assert len(names) == len(samples) == len(ALL_METRICS) * 4 * 8
    assert len(set(blocks)) == len(blocks) == len(ALL_METRICS)


def test_prometheus_parser_reads_what_the_port_says(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    cluster = SmallCluster(tmp_path)

    families = list(parser.text_string_to_metric_families(rendered(cluster)))

    parsed = {(s.name, s.labels["UUID"]): s.value for family in families for s in family.samples}
    samples = cluster.telemetry.read_samples(cluster.clock.now())
    assert {key: parsed[key] for s in samples if (key := (_parsed_name(s.metric), s.labels["UUID"]))} == {
        (_parsed_name(s.metric), s.labels["UUID"]): s.value for s in samples
    }


def test_trained_gpu_is_hot_and_idle_one_is_not(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    cluster.clock.wait(120.0)

    busy, idle = (
        {name: cluster.metric(f"DCGM_FI_{name}", node) for name in ("DEV_POWER_USAGE", "DEV_GPU_TEMP", "DEV_GPU_UTIL")}
        for node in (GPU1, GPU4)
    )

    assert all(560 < watts <= 700 for watts in busy["DEV_POWER_USAGE"].values())
    assert all(50 < celsius < 85 for celsius in busy["DEV_GPU_TEMP"].values())
    assert all(90 <= percent <= 100 for percent in busy["DEV_GPU_UTIL"].values())
    assert all(60 < watts < 80 for watts in idle["DEV_POWER_USAGE"].values())
    assert all(25 < celsius < 40 for celsius in idle["DEV_GPU_TEMP"].values())
    assert set(idle["DEV_GPU_UTIL"].values()) == {0}


def test_power_is_smooth_and_energy_is_its_integral(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    readings = []
    for _ in range(120):
        cluster.clock.wait(1.0)
        watts = next(iter(cluster.metric("DCGM_FI_DEV_POWER_USAGE", GPU1).values()))
        joules = next(iter(cluster.metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", GPU1).values())) / 1000
        readings.append((watts, joules))

    steps = [after[0] - before[0] for before, after in pairwise(readings)]
    used = readings[-1][1] - readings[0][1]
    mean = sum(watts for watts, _ in readings) / len(readings)
    assert max(map(abs, steps)) < 10
    assert math.isclose(used, mean * 119, rel_tol=0.01)


def test_energy_follows_the_waves_of_power() -> None:
    meter = Meter(phase=0.3, since=BEGINNING)
    meter.switch(Load.INFERENCE, BEGINNING)

    for second in range(60):
        middle = BEGINNING + timedelta(seconds=second + 0.5)
        used = meter.joules(middle + timedelta(seconds=0.5)) - meter.joules(middle - timedelta(seconds=0.5))
        assert used == pytest.approx(meter.watts(middle), abs=0.2)


def test_energy_never_falls_over_a_change_of_load_and_restarts_at_a_boot(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    energies = []
    for _ in range(3):
        cluster.clock.wait(20.0)
        energies.append(cluster.metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", GPU1)["00000000:1B:00.0"])
        cluster.scheduler.requeue(cluster.jobs[0])
    cluster.scheduler.hold(cluster.jobs[0])
    cluster.clock.wait(2.0)
    cluster.fleet.reboot(GPU1, reason="INC-7")
    cluster.clock.wait(5.0)

    assert energies == sorted(energies)
    assert cluster.metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", GPU1)["00000000:1B:00.0"] < energies[0]


def test_samples_carry_the_grid_time_at_or_before_the_asked_one(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.clock.wait(10.7)

    (sampled_at,) = {sample.sampled_at for sample in cluster.telemetry.read_samples(cluster.clock.now())}

    assert (cluster.clock.now() - sampled_at).total_seconds() == pytest.approx(0.7)


def test_future_has_no_samples_but_those_of_now(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.clock.wait(10.7)

    future = cluster.telemetry.read_samples(cluster.clock.now() + timedelta(hours=1))

    assert future == cluster.telemetry.read_samples(cluster.clock.now())


def test_past_samples_show_the_past_and_not_what_happened_since(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.clock.wait(10.0)
    before = cluster.clock.now()
    cluster.clock.wait(10.0)
    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=0)

    then = [s for s in cluster.telemetry.read_samples(before) if s.labels["Hostname"] == GPU1]
    now = [s for s in cluster.telemetry.read_samples(cluster.clock.now()) if s.labels["Hostname"] == GPU1]

    assert len(then) == 8 * len(METRICS)
    assert len(now) == 7 * len(METRICS)


def test_values_stand_in_the_order_of_the_metrics(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)

    with cluster.twin.present() as world:
        names = tuple(values_of(world.node(GPU1).gpus[0], world.now))

    assert names == tuple(metric.name for metric in METRICS)


def rendered(cluster: SmallCluster) -> str:
    with cluster.twin.present() as world:
        nodes = world.hardware.nodes.values()
        return write(each for node in nodes for each in gpu_readings(world.scenario, node, at=world.now)).decode()


def _parsed_name(metric: str) -> str:
    """Return the sample's name as the parser gives it: a counter gets `_total`."""
    kinds = {each.name: each.kind for each in ALL_METRICS}
    return metric if kinds[metric] == "gauge" or metric.endswith("_total") else f"{metric}_total"


def label_names(text: str) -> set[tuple[str, ...]]:
    return set(_label_names(text))


def _label_names(text: str) -> Iterator[tuple[str, ...]]:
    for line in text.splitlines():
        match = SAMPLE_LINE.fullmatch(line)
        if match is not None and match["name"].startswith("DCGM_"):
            yield tuple(re.findall(r'([A-Za-z_]+)="', match["labels"]))
