"""What each label set of a block means: its node, its device, who holds it. Each label set is read once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.frames.metrics.gpu_labels import GpuJoin, GpuLabels, label, read_gpu_labels, read_holder
from ops_pipelines.frames.metrics.ways import Device
from ops_pipelines.frames.node_names import HOST_LABELS, NodeNames

GPU_TABLE = "gpu_telemetry"
_SERVICE_TABLES = frozenset({"application_telemetry", "platform_telemetry"})
"""What they measure belongs to no node: where the exporter listens says nothing, unless it is a known node."""


@dataclass(slots=True, kw_only=True)
class Sites:
    """Which node, device and holder each label set means. Each label set is read once."""

    label_sets: Sequence[Mapping[str, str]]
    names: NodeNames
    node: str | None
    join: GpuJoin = field(default_factory=GpuJoin)
    nodes: dict[int, tuple[str, bool | None]] = field(default_factory=dict)
    gpus: dict[int, GpuLabels] = field(default_factory=dict)

    def learn(self, sets: Iterable[NDArray[np.int32]]) -> None:
        """Learn from these label sets which names belong to one GPU."""
        for codes in sets:
            for code in np.unique(codes).tolist():
                if code in self.gpus:
                    continue
                try:
                    self.join.learn(self.find_node(code)[0], self.find_gpu(code))
                except ValueError:
                    continue  # its points are refused when they are placed

    def find_node(self, code: int) -> tuple[str, bool | None]:
        """Raises ValueError if the labels name two nodes."""
        found = self.nodes.get(code)
        if found is None:
            found = self.nodes[code] = self.names.find(self.label_sets[code], node=self.node)
        return found

    def find_gpu(self, code: int) -> GpuLabels:
        """Raises BadGpuLabel."""
        found = self.gpus.get(code)
        if found is None:
            found = self.gpus[code] = read_gpu_labels(self.label_sets[code])
        return found

    def place(self, code: int, *, table: str, device: Device) -> tuple[str, str | None, bool | None]:
        """Return node, device (None: not named) and unknown_node of a label set. Raises ValueError, BadGpuLabel."""
        node, is_unknown = self.find_node(code)
        labels = self.label_sets[code]
        if table == GPU_TABLE:
            return node, self.join.name_device(node, self.find_gpu(code)), is_unknown
        if table in _SERVICE_TABLES and is_unknown is not False and not any(labels.get(each) for each in HOST_LABELS):
            node, is_unknown = self.names.settle(self.node) if self.node else ("", None)
        return node, device.name(labels), is_unknown

    def identify(self, code: int, *, table: str, node: str) -> dict[str, object]:
        """Return the values of the table's label columns."""
        labels = self.label_sets[code]
        if table == GPU_TABLE:
            gpu = self.find_gpu(code)
            uuid, address = self.join.complete(node, gpu)
            return {
                "gpu_uuid": uuid,
                "pci_address": address,
                "gpu_index": gpu.gpu_index,
                "mig_instance": gpu.mig_instance,
                **dict(gpu.texts),
            }
        if table == "application_telemetry":
            job = label(labels, ("hpc_job", "slurm_job_id", "job_id", "exported_job", "job"))
            return {"job": job, **read_holder(labels)}
        return {"link_layer": label(labels, ("link_layer",))}
