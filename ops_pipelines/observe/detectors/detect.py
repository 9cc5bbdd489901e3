"""A panel -> everything that the detectors see in it, and which conditions it is silent about.

What one of them looks for is its own module's; what it means is `observe.condition_rules`. They are imported when they
are asked: the live cycle's module is loaded by who never looks at a panel.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import numpy as np

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.identity import JobId, NodeName, Topology
from ops_pipelines.core.observation import NO_NODE, NodeStatus, Observation
from ops_pipelines.observe.detectors.gpu import detect_driver, detect_gpu_memory, detect_nvlink, detect_pcie
from ops_pipelines.observe.detectors.hang import detect_hangs
from ops_pipelines.observe.detectors.heat import detect_heat, detect_power
from ops_pipelines.observe.detectors.links import detect_links, detect_presence
from ops_pipelines.observe.detectors.node import (
    detect_clocks,
    detect_disks,
    detect_host,
    detect_storage_stalls,
    detect_versions,
)
from ops_pipelines.observe.detectors.stalls import detect_idle_gpus, detect_losses, detect_stalled_jobs
from ops_pipelines.observe.detectors.stragglers import detect_stragglers
from ops_pipelines.observe.panels.panel import Detection, Detector, Layer, Panel

# -- all detectors of hardware, node, links and facility --


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


# -- everything that is looked for in jobs, in one call --


def job_detectors() -> tuple[Detector, ...]:
    """Return all of them."""
    return (
        detect_hangs,
        detect_stragglers,
        detect_stalled_jobs,
        detect_storage_stalls,
        detect_idle_gpus,
        detect_losses,
    )


def detect_jobs(panel: Panel, *, topology: Topology) -> list[Detection]:
    """Return what is seen of jobs, by time. Nothing of it depends on `topology` yet: peers are the ranks of a job."""
    found = [detection for detect in job_detectors() for detection in detect(panel)]
    return sorted(found, key=lambda each: (each.first_seen_at, each.position))


# -- a panel -> everything that the detectors see in it --


_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}")
LEFTOVER_LIMIT = timedelta(minutes=30)
"""So long after a boot a node is not blamed for what began before it. Assumption: most of what detectors look back on
(LOOKBACK_SECONDS) has left their windows by then, and what a repair did not cure has shown itself again."""
_OTHERS_WORD = frozenset({"target_up"})
"""What somebody else says of a node: whether it answers a scrape."""


def detect(panel: Panel, *, topology: Topology, release: Mapping[str, str]) -> tuple[Detection, ...]:
    """Return what all detectors see, by the time at which it was certain. `release`: the versions that are declared."""

    return _in_order(
        (*detect_hardware(panel, topology=topology, release=release), *detect_jobs(panel, topology=topology))
    )


def live_detectors(*, topology: Topology, release: Mapping[str, str]) -> tuple[Detector, ...]:
    """Return the detectors that need windows of samples: single readings are judged by `lake.telemetry`, and
    sooner."""

    return (*window_detectors(topology=topology, release=release), *job_detectors())


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What detectors stated of a panel."""

    found: tuple[Detection, ...]
    """By the time at which it was certain."""
    problems: tuple[str, ...]
    """Each detector that failed, in words: of what it looks for nothing is known."""


def look_live(panel: Panel, detectors: Iterable[Detector]) -> Look:
    """Ask each detector in turn; one that fails blinds none of the others. Raises nothing."""
    found: list[Detection] = []
    problems: list[str] = []
    for detector in detectors:
        try:
            found += map(name_gpu, detector(panel))
        except Exception as problem:  # whatever is wrong with it
            problems.append(f"{_name_of(detector)} failed: {type(problem).__name__}: {problem}")
    return Look(found=_in_order(found), problems=tuple(problems))


def _name_of(detector: Detector) -> str:
    asked = detector.func if isinstance(detector, partial) else detector
    return getattr(asked, "__name__", type(asked).__name__)


def _in_order(found: Iterable[Detection]) -> tuple[Detection, ...]:
    named = (name_gpu(each) for each in found)
    return tuple(sorted(named, key=lambda each: (each.first_seen_at, each.position, each.began_at)))


def name_gpu(detection: Detection) -> Detection:
    """Return the detection without a GPU that has no PCI address: it stays a component, and is no target of a reset.

    A panel names a GPU as its exporter does where no series reports the address.
    """
    if detection.gpu is None or _ADDRESS.fullmatch(detection.gpu):
        return detection
    part = Component(kind=ComponentKind.GPU, name=detection.gpu, node=detection.node)
    return replace(detection, gpu=None, component=detection.component or part)


def without_leftovers(
    detections: Iterable[Detection], nodes: Iterable[NodeStatus], *, at: datetime
) -> tuple[Detection, ...]:
    """Return the detections without those on a node that has booted since they began: windows reach back further.

    What still holds LEFTOVER_LIMIT after the boot is reported, as of the boot. A boot that lies as far ahead is a wrong
    clock and hides nothing.
    """
    booted_at = {node.node: node.booted_at for node in nodes if node.booted_at is not None}
    found = []
    for each in detections:
        boot = booted_at.get(each.node)
        if boot is None or each.began_at >= boot or boot - at >= LEFTOVER_LIMIT:
            found.append(each)
        elif at - boot >= LEFTOVER_LIMIT:
            found.append(replace(each, began_at=boot, first_seen_at=max(boot, each.first_seen_at)))
    return tuple(found)


def out_of_sight(panel: Panel, conditions: Collection[Observation]) -> tuple[Observation, ...]:
    """Return the conditions on whose part the newest grid time of the panel shows nothing: they did not end.

    A node that is silent hides all that was known of it; a part that is silent hides itself, for as long as the panel
    reaches back. Once it has been away for longer while its node reports, it is no longer built in. A job is out of
    sight while it holds nodes and all of them are silent.
    """
    sight = _Sight(panel)
    return tuple(each for each in conditions if sight.hides(each))


class _Sight:
    """What the newest grid time of a panel shows."""

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        self._seen = {
            ComponentKind.GPU: _parts(panel.gpus),
            ComponentKind.LINK: _parts(panel.ports),
            ComponentKind.DISK: _parts(panel.disks),
            ComponentKind.RACK: _parts(panel.racks),
            ComponentKind.NODE: _parts(panel.nodes),
        }
        self._nodes = {kind: _by_node(parts) for kind, parts in self._seen.items()}
        held = panel.held_by[-1].tolist() if len(panel.held_by) else []
        self._held: dict[JobId, list[NodeName]] = {}
        for place, job in enumerate(held):
            if job >= 0:
                self._held.setdefault(panel.job(job), []).append(panel.nodes.parts[place].node)

    def hides(self, condition: Observation) -> bool:
        part = condition.component
        if condition.gpu is not None:
            return self._hides_part(ComponentKind.GPU, condition.node, condition.gpu)
        if part is not None and part.kind in (ComponentKind.GPU, ComponentKind.LINK, ComponentKind.DISK):
            return self._hides_part(part.kind, condition.node, part.name)
        if condition.node != NO_NODE:
            return self._hides_node(condition.node)
        if part is not None and part.kind is ComponentKind.RACK:
            return self._seen[ComponentKind.RACK].get((NO_NODE, part.name)) is not True
        nodes = self._held.get(condition.job, []) if condition.job is not None else []
        return bool(nodes) and all(self._hides_node(node) for node in nodes)

    def _hides_part(self, kind: ComponentKind, node: NodeName, device: str) -> bool:
        is_seen = self._seen[kind].get((node, device))
        if is_seen is None:  # not within the panel's reach: its node then says whether it is still built in
            return not self._nodes[kind].get(node, False)
        return not is_seen

    def _hides_node(self, node: NodeName) -> bool:
        """Return whether anything of the node that reported is silent now: which of it decided is not known here."""
        told = [self._nodes[kind].get(node) for kind in (ComponentKind.NODE, ComponentKind.GPU)]
        return not any(told) or any(each is False for each in told)


def _parts(layer: Layer) -> dict[tuple[NodeName, str], bool]:
    """Return each part that was ever seen in the layer, and whether it is at the newest grid time."""
    if not layer.time_count:
        return {}
    seen = np.zeros((layer.time_count, len(layer.parts)), dtype=bool)
    for name, matrix in layer.values.items():
        if name not in _OTHERS_WORD:
            seen |= ~np.isnan(matrix)
    ever = np.flatnonzero(np.any(seen, axis=0)).tolist()
    return {(layer.parts[place].node, layer.parts[place].device): bool(seen[-1, place]) for place in ever}


def _by_node(parts: Mapping[tuple[NodeName, str], bool]) -> dict[NodeName, bool]:
    found: dict[NodeName, bool] = {}
    for (node, _), is_now in parts.items():
        found[node] = found.get(node, False) or is_now
    return found
