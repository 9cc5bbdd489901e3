"""A short day of a small cluster in a real store of metrics, and the real Dagster processes beside it.

Four nodes with eight GPUs each, scraped once a minute. What went wrong in those hours is named below, so that a test
can say beforehand what the lake must hold. Expects nothing, asserts nothing.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.observation import Workload
from ops_pipelines.wiring import TWIN_DIRECTORY
from ops_pipelines_lab.drills.dagster_api import DagsterApi
from ops_pipelines_lab.drills.stack import DagsterStack, free_ports
from ops_pipelines_lab.simulator.scenario import JobSpec, Scenario, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin
from tests.lab.metrics_servers import Row

HOUR_COUNT = 6
"""As many hours as the troubles below need: a longer day has more of the same. Midnight is in `test_lake_assets`."""
STEP_SECONDS = 60
STEPS = 3600 // STEP_SECONDS
NODES = ("gpu001", "gpu002", "gpu003", "gpu004")
GPU_COUNT = 8
PORTS = ("mlx5_0", "mlx5_1")
_LEAD_HOURS = 1
"""The store begins so long before the first hour, and continues after the present, as if scraped meanwhile."""
_AHEAD = timedelta(minutes=20)

SILENT_NODE, SILENT_FROM_HOUR, SILENT_FROM_MINUTE = "gpu003", 3, 20
"""For an hour nothing of this node was scraped: from the 20th minute of the fourth hour on."""
RESET_NODE, RESET_GPU, RESET_HOUR, RESET_MINUTE = "gpu002", 3, 2, 30
"""Here the driver was loaded again: the counters of this GPU begin at zero."""
HOT_NODE, HOT_GPU, HOT_HOUR, HOT_MINUTES = "gpu001", 6, 1, (11, 12, 13)
"""300 Celsius, three times."""
BLANK_NODE, BLANK_GPU, BLANK_HOUR, BLANK_MINUTES = "gpu004", 1, 1, (0, 1, 2, 3, 4)
"""DCGM's word for a tensor activity that it does not have, five times."""
NAN_NODE, NAN_GPU, NAN_HOUR, NAN_MINUTES = "gpu002", 0, 5, (40, 41)
"""A power that is no number, twice. VictoriaMetrics drops such samples, Prometheus keeps them."""
_BLANK = float(0x7FFFFFFFFFFFFFF0)
_RATES = {"gpu001": 0.9, "gpu002": 0.8, "gpu003": 0.55, "gpu004": 0.02}


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """Hours that are over."""

    hours: tuple[datetime, ...]

    @classmethod
    def before(cls, now: datetime, *, hour_count: int = HOUR_COUNT) -> "Day":
        """Return the hours before the one that runs. In a shorter day the trouble of hour n is that of n modulo it."""
        return cls(hours=tuple(hour_of(now) - back * HOUR for back in range(hour_count, 0, -1)))

    @property
    def partitions(self) -> list[str]:
        return [f"{hour:%Y-%m-%d-%H:%M}" for hour in self.hours]

    def is_silent(self, node: str, at: datetime) -> bool:
        """Return whether nothing of a node was scraped; in a shorter day everything was."""
        if node != SILENT_NODE or len(self.hours) < HOUR_COUNT:
            return False
        start = self.hours[SILENT_FROM_HOUR] + timedelta(minutes=SILENT_FROM_MINUTE)
        return start <= at < start + HOUR


def busy_ratio(node: str, gpu: int, at: datetime) -> float:
    """Return the utilisation of a GPU: the day's shape, and no two GPUs alike. In whole percent, as DCGM gives it."""
    day = (at.timestamp() % 86_400) / 86_400
    full = _RATES[node] * (0.8 + 0.2 * math.sin(2 * math.pi * day)) - 0.005 * gpu
    return round(max(0.0, full), 2)


def temperature_celsius(node: str, gpu: int, at: datetime) -> float:
    return round(32 + 45 * busy_ratio(node, gpu, at) + 0.5 * gpu)


def power_watts(node: str, gpu: int, at: datetime) -> float:
    return round(70 + 600 * busy_ratio(node, gpu, at), 3)


def _gauges(node: str, gpu: int) -> Mapping[str, Callable[[datetime], float]]:
    def of_busy(scale: float, base: float = 0.0, digits: int = 6) -> Callable[[datetime], float]:
        return lambda at: round(base + scale * busy_ratio(node, gpu, at), digits)

    return {
        "DCGM_FI_DEV_GPU_UTIL": of_busy(100, digits=0),
        "DCGM_FI_DEV_MEM_COPY_UTIL": of_busy(45, digits=0),
        "DCGM_FI_DEV_FB_USED": of_busy(60_000, 600, digits=0),
        "DCGM_FI_DEV_FB_FREE": of_busy(-60_000, 80_400, digits=0),
        "DCGM_FI_DEV_GPU_TEMP": lambda at: temperature_celsius(node, gpu, at),
        "DCGM_FI_DEV_MEMORY_TEMP": lambda at: temperature_celsius(node, gpu, at) + 6,
        "DCGM_FI_DEV_POWER_USAGE": lambda at: power_watts(node, gpu, at),
        "DCGM_FI_DEV_POWER_MGMT_LIMIT": _always(700.0),
        "DCGM_FI_DEV_SM_CLOCK": of_busy(1_635, 345, digits=0),
        "DCGM_FI_PROF_SM_ACTIVE": of_busy(0.9),
        "DCGM_FI_PROF_SM_OCCUPANCY": of_busy(0.5),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": of_busy(0.6),
        "DCGM_FI_PROF_DRAM_ACTIVE": of_busy(0.4),
        "DCGM_FI_PROF_PCIE_TX_BYTES": of_busy(4e9, digits=0),
        "DCGM_FI_PROF_PCIE_RX_BYTES": of_busy(6e9, digits=0),
        "DCGM_FI_DEV_XID_ERRORS": _always(0.0),
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": _always(0.0),
        "DCGM_FI_DEV_ROW_REMAP_PENDING": _always(0.0),
    }


_COUNTERS = {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 450_000.0, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0.001}
"""Series -> growth a second, in the source's units (mJ)."""


def rows_of(day: Day, *, lead_hours: int = _LEAD_HOURS) -> Iterator[Row]:
    """Yield every sample of the store, series by series."""
    begins = day.hours[0] - lead_hours * HOUR
    ends = day.hours[-1] + HOUR + timedelta(hours=1) + _AHEAD
    count = int((ends - begins) / timedelta(seconds=STEP_SECONDS))
    times = [begins + index * timedelta(seconds=STEP_SECONDS) for index in range(count)]
    for node in NODES:
        kept = [at for at in times if not day.is_silent(node, at)]
        for labels, value in _series_of(node, day, begins=begins):
            for at in kept:
                yield labels, value(at), at.timestamp()


def _series_of(node: str, day: Day, *, begins: datetime) -> Iterator[tuple[str, Callable[[datetime], float]]]:
    for gpu in range(GPU_COUNT):
        labels = (
            f'gpu="{gpu}",UUID="{uuid_of(node, gpu)}",pci_bus_id="00000000:{0x18 + 9 * gpu:02X}:00.0",'
            f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="{node}",'
            'DCGM_FI_DRIVER_VERSION="580.95.05"'
        )
        for name, value in _gauges(node, gpu).items():
            yield f"{name}{{{labels}}}", _spoilt(name, node, gpu, day, value)
        for name, growth in _COUNTERS.items():
            yield f"{name}{{{labels}}}", _counter(growth, begins=begins, reset_at=_reset_at(node, gpu, day))
    host = f'instance="{node}:9100",job="node"'
    steady: dict[str, Callable[[datetime], float]] = {
        f'node_cpu_seconds_total{{{host},cpu="0",mode="idle"}}': _counter(0.4, begins=begins, reset_at=None),
        f'node_cpu_seconds_total{{{host},cpu="0",mode="user"}}': _counter(0.5, begins=begins, reset_at=None),
        f'node_cpu_seconds_total{{{host},cpu="0",mode="system"}}': _counter(0.1, begins=begins, reset_at=None),
        f"node_load1{{{host}}}": lambda at: round(64 * busy_ratio(node, 0, at), 2),
        f"node_memory_MemAvailable_bytes{{{host}}}": lambda at: 1e12 - 4e11 * busy_ratio(node, 0, at),
        f"node_memory_MemTotal_bytes{{{host}}}": _always(2.0**41),
        f"node_boot_time_seconds{{{host}}}": _always(begins.timestamp() - 1e6),
        f"up{{{host}}}": _always(1.0),
    }
    yield from steady.items()
    for place, port in enumerate(PORTS):
        labels = f'{host},device="{port}",port="1"'
        growth = 2e9 * _RATES[node] * (1 + place)
        for name in (
            "node_infiniband_port_data_received_bytes_total",
            "node_infiniband_port_data_transmitted_bytes_total",
        ):
            yield f"{name}{{{labels}}}", _counter(growth, begins=begins, reset_at=None)
        yield f"node_infiniband_state_id{{{labels}}}", _always(4.0)


def uuid_of(node: str, gpu: int) -> str:
    return f"GPU-{NODES.index(node) + 1:08d}-0000-4000-8000-{gpu:012d}"


def _counter(growth: float, *, begins: datetime, reset_at: datetime | None) -> Callable[[datetime], float]:
    def value(at: datetime) -> float:
        since = begins - timedelta(days=10) if reset_at is None or at < reset_at else reset_at
        return float(int(growth * (at - since).total_seconds()))

    return value


def _always(number: float) -> Callable[[datetime], float]:
    return lambda _: number


def _reset_at(node: str, gpu: int, day: Day) -> datetime | None:
    if (node, gpu) != (RESET_NODE, RESET_GPU) or len(day.hours) < HOUR_COUNT:
        return None
    return day.hours[RESET_HOUR] + timedelta(minutes=RESET_MINUTE)


def _spoilt(
    name: str, node: str, gpu: int, day: Day, value: Callable[[datetime], float]
) -> Callable[[datetime], float]:
    for series, where, number, hour, minutes, wrong in (
        ("DCGM_FI_DEV_GPU_TEMP", HOT_NODE, HOT_GPU, HOT_HOUR, HOT_MINUTES, 300.0),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", BLANK_NODE, BLANK_GPU, BLANK_HOUR, BLANK_MINUTES, _BLANK),
        ("DCGM_FI_DEV_POWER_USAGE", NAN_NODE, NAN_GPU, NAN_HOUR, NAN_MINUTES, math.nan),
    ):
        if (name, node, gpu) == (series, where, number):
            spoilt = {day.hours[hour % len(day.hours)] + timedelta(minutes=minute) for minute in minutes}
            return lambda at: wrong if at in spoilt else value(at)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The processes, and where they keep what."""

    stack: DagsterStack
    api: DagsterApi
    lake: Path
    day: Day


_CLUSTER = """\
name: stage
state_directory: .
policy: policy.yaml
gpus_per_node: 8
racks:
  - {{name: r1, nodes: "gpu[001-004]", leaf_switch: leaf1}}
scheduler: {{kind: simulator}}
fleet: {{kind: simulator}}
logs: {{kind: simulator}}
ledger: {{}}
notifier: {{kind: file}}
telemetry: {{kind: prometheus, url: "{url}", step_seconds: {step}, look_back_seconds: 120}}
accounting: {{kind: simulator}}
job_logs: {{kind: files, paths: ["{logs}/slurm-%j.out"]}}
lake: {{step_seconds: {step}}}
"""


@contextmanager
def set_up(home: Path, *, metrics_url: str, day: Day, instance_file: Path) -> Iterator[Stage]:
    """Run code server, daemon and web server on a cluster whose metrics are at `metrics_url`.

    Only what the test starts runs: a schedule that fills the newest hour in between would be the last run of all.
    """
    cluster_file = write_cluster(home, metrics_url=metrics_url, day=day)
    stack = DagsterStack(home / "dagster", cluster_file=cluster_file, instance_file=instance_file, port=free_ports(1))
    try:
        stack.start(lambda _: None)
        api = DagsterApi(stack.url, token=stack.token)
        api.stop_automation()
        yield Stage(stack=stack, api=api, lake=home / "lake", day=day)
    finally:
        stack.stop()


def write_cluster(home: Path, *, metrics_url: str, day: Day) -> Path:
    """Write what a cluster is configured with, begin the simulated one behind it, and return its cluster.yaml."""
    logs = home / "job_logs"
    logs.mkdir(parents=True)
    lines = [
        f"{hour + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%S}Z step {60 * number + minute} loss 2.5"
        for number, hour in enumerate(day.hours)
        for minute in (5, 35)
    ]
    (logs / "slurm-1001.out").write_text("\n".join([*lines, ""]))
    cluster_file = home / "cluster.yaml"
    cluster_file.write_text(_CLUSTER.format(url=metrics_url, step=STEP_SECONDS, logs=logs))
    (home / "policy.yaml").write_text("mode: observe\n")
    past = SystemClock().now() - day.hours[0] + HOUR
    Twin.create(home / TWIN_DIRECTORY, _scenario(), seed=3, clock=SystemClock(), past=past)
    return cluster_file


def _scenario() -> Scenario:
    training = JobSpec(
        name="pretrain", user="research-train", account="research", workload=Workload.TRAINING, node_count=2
    )
    return Scenario(
        nodes=cluster_nodes(len(NODES)),
        initial_jobs=(
            training,
            JobSpec(
                name="evaluate",
                user="research-eval",
                account="research",
                workload=Workload.BATCH,
                work_seconds=HOUR_COUNT / 2 * 3600.0,
            ),
        ),
        benign_lines_per_node_hour=2.0,
    )
