"""All detectors of hardware, node, links and facility, as one. What they look for stands in their own modules."""

from collections.abc import Mapping
from functools import partial

from ops_pipelines.core.identity import Topology
from ops_pipelines.frames.detectors.clocks import detect_clocks
from ops_pipelines.frames.detectors.disks import detect_disks
from ops_pipelines.frames.detectors.driver import detect_driver
from ops_pipelines.frames.detectors.gpu_memory import detect_gpu_memory
from ops_pipelines.frames.detectors.heat import detect_heat
from ops_pipelines.frames.detectors.host import detect_host
from ops_pipelines.frames.detectors.links import detect_links
from ops_pipelines.frames.detectors.nvlink import detect_nvlink
from ops_pipelines.frames.detectors.pcie import detect_pcie
from ops_pipelines.frames.detectors.power import detect_power
from ops_pipelines.frames.detectors.presence import detect_presence
from ops_pipelines.frames.detectors.versions import detect_versions
from ops_pipelines.frames.panels.detection import Detection, Detector
from ops_pipelines.frames.panels.panel import Panel


def window_detectors(*, topology: Topology, release: Mapping[str, str]) -> tuple[Detector, ...]:
    """Return the detectors that need windows of samples. `release`: see `versions.detect_versions`."""
    return (
        detect_gpu_memory,
        detect_nvlink,
        detect_pcie,
        partial(detect_heat, topology=topology),
        partial(detect_power, topology=topology),
        detect_links,
        detect_disks,
        detect_host,
        detect_clocks,
        partial(detect_versions, release=release),
    )


def reading_detectors(*, topology: Topology) -> tuple[Detector, ...]:
    """Return the detectors of what `lake.telemetry` already sees in the live path."""
    return (partial(detect_presence, topology=topology), detect_driver)


def hardware_detectors(*, topology: Topology, release: Mapping[str, str]) -> tuple[Detector, ...]:
    """Return all of them."""
    return (*reading_detectors(topology=topology), *window_detectors(topology=topology, release=release))


def detect_hardware(panel: Panel, *, topology: Topology, release: Mapping[str, str]) -> list[Detection]:
    """Return what all detectors say of the panel, by the time at which it was first certain."""
    found = [
        detection for detect in hardware_detectors(topology=topology, release=release) for detection in detect(panel)
    ]
    return sorted(found, key=lambda detection: (detection.first_seen_at, detection.position))
