"""GPU metrics beyond those that are watched for health: what tells a busy GPU from a useful one.

Names, types and help texts are dcgm-exporter's. Which load looks how belongs to `load`.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache

from ops_pipelines_lab.simulator.exposition import Metric, Reading
from ops_pipelines_lab.simulator.hardware import Gpu, Node
from ops_pipelines_lab.simulator.load import SHAPES, Load
from ops_pipelines_lab.simulator.metrics import METRICS, labels_of, values_of
from ops_pipelines_lab.simulator.scenario import Scenario

ACTIVITY_METRICS = (
    Metric("DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", "Current power limit (in W).", 6),
    Metric("DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB)."),
    Metric("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gauge", "Current clock event reasons (bitmask)."),
    Metric("DCGM_FI_DEV_POWER_VIOLATION", "counter", "Throttling duration due to power constraints (in ns)."),
    Metric("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "Throttling duration due to thermal constraints (in ns)."),
    Metric("DCGM_FI_DEV_PCIE_LINK_GEN", "gauge", "Current PCIe link generation."),
    Metric("DCGM_FI_DEV_PCIE_LINK_WIDTH", "gauge", "Current PCIe link width."),
    Metric(
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink flow-control CRC errors."
    ),
    Metric("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink retries."),
    Metric("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink recovery errors."),
    Metric("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "Total number of NVLink bandwidth counters for all lanes."),
    Metric("DCGM_FI_PROF_SM_ACTIVE", "gauge", "The ratio of cycles an SM has at least 1 warp assigned.", 6),
    Metric("DCGM_FI_PROF_SM_OCCUPANCY", "gauge", "The ratio of number of warps resident on an SM.", 6),
    Metric(
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "gauge",
        "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes"
        " per second.",
    ),
    Metric(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "gauge",
        "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes"
        " per second.",
    ),
)
_IDLE_REASON, _POWER_CAP_REASON = 0x1, 0x4
_POWER_CAPPED_RATIO = 0.3
"""Assumption: share of time that a training at 640 of 700 W spends at the limit."""
_LIMIT_WATTS = 700.0
_RESERVED_MEBIBYTES = 480


def gpu_readings(scenario: Scenario, node: Node, *, at: datetime) -> Iterator[Reading]:
    """Yield every metric of every GPU that the driver lists; nothing if the node does not answer."""
    if not node.answers:
        return
    for gpu in node.gpus:
        if gpu.is_visible:
            labels = _label_text(tuple(labels_of(scenario, node, gpu).items()))
            for metric, value in zip(METRICS, values_of(gpu, at).values(), strict=True):
                yield metric, labels, value
            for metric, value in zip(ACTIVITY_METRICS, _activity(gpu, at), strict=True):
                yield metric, labels, value


def _activity(gpu: Gpu, at: datetime) -> tuple[float, ...]:
    """Return the values of ACTIVITY_METRICS, in their order."""
    meter = gpu.meter
    load, shape = meter.load, SHAPES[meter.load]
    seconds, swing = meter.seconds(at), 1 + 0.08 * meter.wave(at)
    reasons = _IDLE_REASON if load is Load.IDLE else _POWER_CAP_REASON if load is Load.TRAINING else 0
    return (
        _LIMIT_WATTS,
        _RESERVED_MEBIBYTES,
        reasons,
        1e9 * _POWER_CAPPED_RATIO * seconds.get(Load.TRAINING, 0.0),
        0,
        5 if load is not Load.IDLE else 1,  # an idle link saves power
        16,
        0,
        0,
        0,
        sum(SHAPES[each].nvlink_bytes_per_second * passed for each, passed in seconds.items()),
        min(1.0, shape.sm_active_ratio * swing),
        min(1.0, shape.sm_occupancy_ratio * swing),
        shape.pcie_out_bytes_per_second * swing,
        shape.pcie_in_bytes_per_second * swing,
    )


@lru_cache(maxsize=100_000)
def _label_text(labels: tuple[tuple[str, str], ...]) -> str:
    return ",".join(f'{name}="{text}"' for name, text in labels)
