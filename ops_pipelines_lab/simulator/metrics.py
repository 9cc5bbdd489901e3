"""The metrics of the pretended GPUs that are watched: one source for samples and for the exporter's text.

Names, labels, types and help texts are those of real dcgm-exporter scrapes (driver 580 and 590). How a load looks
belongs to `load`; what a fault does to a GPU to `hardware`; the other metrics of a GPU to `gpu_activity`.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime

from ops_pipelines.core.release import Component
from ops_pipelines.core.sources import Sample
from ops_pipelines_lab.simulator.exposition import Metric
from ops_pipelines_lab.simulator.hardware import Gpu, Node
from ops_pipelines_lab.simulator.load import SHAPES, Load
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
