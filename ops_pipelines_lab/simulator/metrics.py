"""The metrics of the simulated GPUs: those that are watched for health, one source for samples and for the exporter's
text, and those that distinguish a busy GPU from a useful one.

Names, labels, types and help texts are those of real dcgm-exporter scrapes (driver 580 and 590). How a load looks
belongs to `load`; what a fault does to a GPU to `hardware`.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache

from ops_pipelines.core.release import Component
from ops_pipelines.core.sources import Sample
from ops_pipelines_lab.simulator.hardware import Gpu, Node
from ops_pipelines_lab.simulator.load import SHAPES, Load
from ops_pipelines_lab.simulator.node_metrics import Metric, Reading
from ops_pipelines_lab.simulator.scenario import Scenario
from ops_pipelines_lab.simulator.world import World

METRICS = (
    Metric("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."),
    Metric("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."),
    Metric("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)."),
    Metric("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."),
    Metric("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", 6),
    Metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ)."),
    Metric("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries."),
    Metric("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %)."),
    Metric("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."),
    Metric("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered."),
    Metric("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."),
    Metric("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB)."),
    Metric("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Total number of single-bit volatile ECC errors."),
    Metric("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Total number of double-bit volatile ECC errors."),
    Metric("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors"),
    Metric("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors"),
    Metric("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed"),
    Metric("DCGM_FI_DEV_ROW_REMAP_PENDING", "gauge", "Whether remapping of rows is pending"),
    Metric("DCGM_FI_DEV_GPU_RECOVERY_ACTION", "gauge", "GPU recovery action."),
    Metric("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.", 6),
    Metric("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active.", 6),
    Metric(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "gauge",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        6,
    ),
)
_DECIMALS = {metric.name: metric.decimals for metric in METRICS}
_USABLE_MEBIBYTES = 81_079
"""81,559 MiB of an H100 80GB less what the driver reserves."""
_LIMITED_LOADS = frozenset({Load.TRAINING, Load.BATCH, Load.INFERENCE})


def samples_of(world: World, nodes: Iterable[Node], *, at: datetime) -> Iterator[Sample]:
    """Yield one sample per metric and visible GPU of those `nodes` that answer, at the world's own time `at`."""
    for node in nodes:
        for gpu in node.gpus if node.answers else ():
            if gpu.is_visible:
                labels = labels_of(world.scenario, node, gpu)
                for name, value in values_of(gpu, at).items():
                    yield Sample(metric=name, labels=labels, value=round(value, _DECIMALS[name]), sampled_at=at)


def values_of(gpu: Gpu, at: datetime) -> dict[str, float]:
    """Return the values of METRICS of one GPU, in their order."""
    meter = gpu.meter
    shape, wave, celsius = SHAPES[meter.load], meter.wave(at), meter.celsius(at)
    busy, tensor, dram = (
        min(1.0, ratio * (1 + 0.08 * wave)) for ratio in (shape.busy_ratio, shape.tensor_ratio, shape.dram_ratio)
    )
    return {
        # Under the power limit the clock moves in steps of 15 MHz; idle and unlimited clocks stand still.
        "DCGM_FI_DEV_SM_CLOCK": shape.sm_megahertz + (15 * round(3 * wave) if meter.load in _LIMITED_LOADS else 0),
        "DCGM_FI_DEV_MEM_CLOCK": 2619,
        "DCGM_FI_DEV_MEMORY_TEMP": celsius + 6,
        "DCGM_FI_DEV_GPU_TEMP": celsius,
        "DCGM_FI_DEV_POWER_USAGE": meter.watts(at),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1000 * meter.joules(at),
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0,
        "DCGM_FI_DEV_GPU_UTIL": 100 * busy,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 100 * dram,
        "DCGM_FI_DEV_XID_ERRORS": gpu.last_xid,
        "DCGM_FI_DEV_FB_FREE": _USABLE_MEBIBYTES - shape.memory_mebibytes,
        "DCGM_FI_DEV_FB_USED": shape.memory_mebibytes,
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": gpu.correctable_ecc_count,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": gpu.uncorrectable_ecc_count,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": gpu.remapped_row_count,
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 0,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
        "DCGM_FI_DEV_ROW_REMAP_PENDING": int(gpu.is_row_remap_pending),
        "DCGM_FI_DEV_GPU_RECOVERY_ACTION": gpu.recovery_action.value,
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": busy,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": tensor,
        "DCGM_FI_PROF_DRAM_ACTIVE": dram,
    }


def labels_of(scenario: Scenario, node: Node, gpu: Gpu) -> dict[str, str]:
    """Return the labels of one GPU's series, in dcgm-exporter's order."""
    return {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": f"0000{gpu.address}.0".upper(),
        "device": f"nvidia{gpu.index}",
        "modelName": scenario.gpu_model,
        "Hostname": node.name,
        "DCGM_FI_DRIVER_VERSION": node.versions.get(Component.DRIVER, ""),
    }


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
