"""What of each table is worth drawing first, as data. How it is drawn stands in `pictures`."""

from collections.abc import Mapping
from dataclasses import dataclass

from ops_pipelines.frames.pictures.heat_grid import Fold, Values, busy_share, gauge, rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What is worth drawing first of a table."""

    title: str
    values: Values
    needs: str
    """The column without which there is nothing to draw."""
    unit: str
    fold: Fold = Fold.MAX
    by: str = "node"
    entity: str = "node"


DRAWINGS: Mapping[str, tuple[Drawing, ...]] = {
    "gpu_telemetry": (
        Drawing(
            title="GPU temperature, hottest of the node",
            values=gauge("temperature_celsius"),
            needs="temperature_celsius",
            unit="°C",
        ),
        Drawing(
            title="GPU utilisation, mean of the node",
            values=gauge("utilisation_ratio"),
            needs="utilisation_ratio",
            unit="%",
            fold=Fold.MEAN,
        ),
        Drawing(title="GPU power, highest of the node", values=gauge("power_watts"), needs="power_watts", unit="W"),
    ),
    "node_telemetry": (
        Drawing(
            title="CPU time that was not idle",
            values=busy_share(
                idle="cpu_idle_seconds", others=("cpu_user_seconds", "cpu_system_seconds", "cpu_iowait_seconds")
            ),
            needs="cpu_idle_seconds",
            unit="%",
            fold=Fold.MEAN,
        ),
        Drawing(title="Load average", values=gauge("load_1m"), needs="load_1m", unit=""),
        Drawing(
            title="Memory that new work can have",
            values=gauge("memory_available_bytes"),
            needs="memory_available_bytes",
            unit="B",
            fold=Fold.MEAN,
        ),
    ),
    "fabric_telemetry": (
        Drawing(
            title="Data received, busiest port of the node",
            values=rate("receive_bytes"),
            needs="receive_bytes",
            unit="B/s",
        ),
        Drawing(title="Link state, 4 is active", values=gauge("link_state"), needs="link_state", unit=""),
    ),
    "storage_telemetry": (
        Drawing(
            title="Time busy, busiest device of the node", values=rate("busy_seconds"), needs="busy_seconds", unit="%"
        ),
        Drawing(title="Data read, busiest device", values=rate("read_bytes"), needs="read_bytes", unit="B/s"),
        Drawing(
            title="Device temperature, hottest of the node",
            values=gauge("temperature_celsius"),
            needs="temperature_celsius",
            unit="°C",
        ),
    ),
    "facility_telemetry": (
        Drawing(
            title="Power", values=gauge("power_watts"), needs="power_watts", unit="W", by="device", entity="device"
        ),
        Drawing(
            title="Temperature",
            values=gauge("temperature_celsius"),
            needs="temperature_celsius",
            unit="°C",
            by="device",
            entity="sensor",
        ),
    ),
    "application_telemetry": (
        Drawing(
            title="Duration of a training step",
            values=gauge("step_seconds"),
            needs="step_seconds",
            unit="s",
            by="device",
            entity="job",
        ),
        Drawing(
            title="Latency, 95th percentile",
            values=gauge("latency_p95_seconds"),
            needs="latency_p95_seconds",
            unit="s",
            by="device",
            entity="service",
        ),
        Drawing(
            title="Requests that wait",
            values=gauge("queue_depth_count"),
            needs="queue_depth_count",
            unit="",
            by="device",
            entity="service",
        ),
    ),
    "platform_telemetry": (
        Drawing(title="Jobs that wait", values=gauge("jobs_pending_count"), needs="jobs_pending_count", unit=""),
        Drawing(
            title="Scrapes that worked",
            values=gauge("target_up"),
            needs="target_up",
            unit="%",
            fold=Fold.MEAN,
            by="device",
            entity="target",
        ),
    ),
    "gpu_efficiency": (
        Drawing(
            title="SM activity of the jobs of a node",
            values=gauge("sm_active_ratio"),
            needs="sm_active_ratio",
            unit="%",
            fold=Fold.MEAN,
        ),
        Drawing(
            title="Utilisation of the jobs of a node",
            values=gauge("utilisation_ratio"),
            needs="utilisation_ratio",
            unit="%",
            fold=Fold.MEAN,
        ),
    ),
    "monitoring_coverage": (
        Drawing(
            title="Samples that are there, of those expected",
            values=gauge("coverage_ratio"),
            needs="coverage_ratio",
            unit="%",
            fold=Fold.MEAN,
        ),
    ),
    "gpu_demand": (
        Drawing(
            title="GPUs wanted by each team", values=gauge("gpus_demand_avg"), needs="gpus_demand_avg", unit="",
            by="team", entity="team",
        ),
    ),
    "kernel_events": (
        Drawing(title="Lines", values=gauge("ones"), needs="ones", unit="", fold=Fold.COUNT),
    ),
    "job_logs": (
        Drawing(title="Lines", values=gauge("ones"), needs="ones", unit="", fold=Fold.COUNT, by="job", entity="job"),
    ),
    "job_accounting": (
        Drawing(
            title="Attempts that ended", values=gauge("ones"), needs="ones", unit="", fold=Fold.COUNT, by="state",
            entity="state",
        ),
    ),
}  # fmt: skip
"""By table, in the order of worth; the first of which there is any value is drawn."""
