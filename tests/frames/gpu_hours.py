"""Hours of GPUs for tests of what is read out of them: steady numbers on a grid, with what differs named."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ops_pipelines.lake.schema import TABLES

HOUR = datetime(2026, 11, 21, 12, tzinfo=UTC)
STEP = timedelta(seconds=60)
GIB = 2.0**30
Reading = float | str | None | Callable[[int], float | None]
"""A steady value, or one for each step."""

TUNED: Mapping[str, Reading] = {
    "utilisation_ratio": 0.99,
    "sm_active_ratio": 0.88,
    "sm_occupancy_ratio": 0.3,
    "tensor_active_ratio": 0.45,
    "dram_active_ratio": 0.35,
    "memory_used_bytes": 70 * GIB,
    "memory_free_bytes": 9 * GIB,
    "power_watts": 640.0,
    "power_limit_watts": 700.0,
    "sm_clock_hertz": 1.74e9,
    "temperature_celsius": 62.0,
    "gpu_model": "NVIDIA H100 80GB HBM3",
}
"""A training as it should be."""
RESTING: Mapping[str, Reading] = {
    **TUNED,
    "utilisation_ratio": 0.0,
    "sm_active_ratio": 0.0,
    "sm_occupancy_ratio": 0.0,
    "tensor_active_ratio": 0.0,
    "dram_active_ratio": 0.0,
    "memory_used_bytes": 0.1 * GIB,
    "memory_free_bytes": 79 * GIB,
    "power_watts": 70.0,
    "sm_clock_hertz": 345e6,
    "temperature_celsius": 31.0,
}
"""A GPU that nobody uses."""
SPINNING: Mapping[str, Reading] = {
    **TUNED,
    "utilisation_ratio": 1.0,
    "tensor_active_ratio": 0.0,
    "dram_active_ratio": 0.01,
    "power_watts": 245.0,
}
"""A collective that never ends."""


def samples(
    node: str, device: str, readings: Mapping[str, Reading], *, steps: Iterable[int] = range(60), hour: datetime = HOUR
) -> list[dict[str, object]]:
    """Return rows of one device, one each step."""
    return [
        {"node": node, "device": device, "time": hour + step * STEP}
        | {name: value(step) if callable(value) else value for name, value in readings.items()}
        for step in steps
    ]


def gpu_rows(*parts: list[dict[str, object]]) -> pa.Table:
    return TABLES["gpu_telemetry"].from_rows(row for part in parts for row in part)


def node_of(node: str, readings: Mapping[str, Reading], *, count: int = 8) -> list[dict[str, object]]:
    """Return the rows of a node's GPUs, all alike: `GPU-<node>-0`, ..."""
    return [row for index in range(count) for row in samples(node, f"GPU-{node}-{index}", readings)]


def held(job: str, *nodes: str, **known: object) -> list[dict[str, object]]:
    """Return allocations of one job; all of the hour unless `known` says otherwise."""
    return [
        {"job": job, "attempt": "a", "node": node, "time": HOUR, "user": "ada", "account": "physics"}
        | {"started_at": HOUR - timedelta(hours=3), "gpu_count": 8.0}
        | known
        for node in nodes
    ]


def allocation_rows(*parts: list[dict[str, object]]) -> pa.Table:
    return TABLES["job_allocations"].from_rows(row for part in parts for row in part)


def no_rows(table: str) -> pa.Table:
    return TABLES[table].arrow().empty_table()
