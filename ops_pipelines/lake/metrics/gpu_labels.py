"""Which GPU the labels of a series mean: UUID, PCI address, index, MIG slice, and who holds it; in every dialect.

One device name for one GPU: its UUID, else its PCI address, else `gpu<index>`; a MIG slice is `<gpu>/mig<id>`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ops_pipelines.core.identity import parse_pci_address
from ops_pipelines.lake.quantities import readable

MAX_LABEL_LENGTH = 200

_UUID = ("UUID", "uuid", "gpu_uuid", "GPU_UUID", "gpuUuid")
_PCI = ("pci_bus_id", "pci_address", "pciBusId", "PCI_BUS_ID", "gpu_pci_bus_id", "bus_id", "pci_bdf")
_INDEX = ("gpu", "gpu_index", "gpu_id", "index", "GPU")
_MIG = ("GPU_I_ID", "gpu_i_id", "gpu_instance_id", "mig_instance")
NAMING_LABELS = frozenset({*_UUID, *_PCI, *_INDEX})
"""Labels that name a GPU in one way or another."""
_TEXTS: Mapping[str, tuple[str, ...]] = {
    "gpu_serial": ("gpu_serial", "serial", "serial_number", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_SERIAL_NUMBER"),
    "gpu_model": ("modelName", "model_name", "gpu_model", "card_model", "DCGM_FI_DEV_NAME", "product_name", "name"),
    "mig_profile": ("GPU_I_PROFILE", "gpu_i_profile", "mig_profile", "gpu_instance_profile"),
    # Renamed by dcgm-exporter 4.9.
    "driver_version": ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION", "driver_version"),
    # Never `job`: that is the scrape job, which Prometheus adds to every target.
    "job": ("hpc_job", "slurm_job_id", "slurm_jobid", "job_id", "jobid", "SLURM_JOB_ID"),
}
_HOLDERS = ("namespace", "pod", "container")

# "unused", in the words of several exporters
_ABSENT = frozenset({"", "N/A", "[N/A]", "[Not Supported]", "none", "None", "null"})
_BARE_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_OLD_MIG_UUID = re.compile(r"MIG-(?P<gpu>GPU-[0-9a-fA-F-]{8,40})/(?P<instance>\d{1,3})(?:/\d{1,3})?")
_NUMBER = re.compile(r"(?:gpu|nvidia|card)?(\d{1,4})", re.IGNORECASE)
_EXPORTER = re.compile(r"dcgm-exporter|gpu-exporter|metrics-exporter", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GpuLabels:
    """What one label set says. None: it does not say."""

    gpu_uuid: str | None
    pci_address: str | None
    gpu_index: int | None
    mig_instance: str | None
    texts: tuple[tuple[str, str], ...]
    """Column -> value of the other label columns that are there, in column order."""


def label(labels: Mapping[str, str], names: Iterable[str]) -> str | None:
    """Return the first of the labels that says something, made readable and short."""
    for name in names:
        value = labels.get(name)
        if value is not None and value not in _ABSENT:
            return shown(value)
    return None


def shown(value: str) -> str:
    """Return a label's value made readable and short."""
    return (value if value.isascii() and value.isprintable() else readable(value))[:MAX_LABEL_LENGTH]


def read_gpu_labels(labels: Mapping[str, str]) -> GpuLabels:
    """Return what the labels say. Raises BadGpuLabel on a PCI address that is none."""
    uuid, instance = _read_uuid(label(labels, _UUID)), label(labels, _MIG)
    if uuid is not None and (old := _OLD_MIG_UUID.fullmatch(uuid)):
        uuid, instance = old["gpu"], instance or old["instance"]
    elif uuid is not None and uuid.startswith("MIG-"):
        # The UUID of a slice, not of its GPU: which GPU that is, only other labels tell.
        uuid, instance = None, instance or uuid
    texts = {column: value for column, names in _TEXTS.items() if (value := label(labels, names)) is not None}
    texts |= read_holder(labels)
    return GpuLabels(uuid, _read_pci(labels), _read_index(labels), instance, tuple(sorted(texts.items())))


def read_holder(labels: Mapping[str, str]) -> dict[str, str]:
    """Return namespace, pod and container of the workload.

    Prometheus that found the exporter through Kubernetes keeps `pod` for the exporter's own and calls the exporter's
    label `exported_pod`; the exporter's own pod holds no GPU.
    """
    prefix = "exported_" if any(labels.get(f"exported_{name}") for name in _HOLDERS) else ""
    held = {name: value for name in _HOLDERS if (value := label(labels, (prefix + name,))) is not None}
    if not prefix and any(_EXPORTER.search(held.get(name, "")) for name in ("pod", "container")):
        return {}
    return held


class BadGpuLabel(ValueError):
    """A label that cannot be right. `reason` is the code."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _read_uuid(text: str | None) -> str | None:
    """Return the UUID as NVML writes it: nvidia_gpu_exporter drops `GPU-`."""
    return f"GPU-{text.lower()}" if text is not None and _BARE_UUID.fullmatch(text) else text


def _read_pci(labels: Mapping[str, str]) -> str | None:
    text = label(labels, _PCI)
    if text is None:
        return None
    try:
        return parse_pci_address(text)
    except ValueError as exc:
        raise BadGpuLabel("bad_pci_address", str(exc)) from None


def _read_index(labels: Mapping[str, str]) -> int | None:
    text = label(labels, _INDEX)
    if text is None:
        return None
    # Some sites write a name of their own here; the UUID or the address then says which GPU it is.
    match = _NUMBER.fullmatch(text)
    return None if match is None else int(match[1])


@dataclass(slots=True)
class GpuJoin:
    """Learns within one block which UUID an index or a PCI address of a node stands for: not every series has all.

    What two series contradict is not joined: an index that two GPUs had belongs to neither.
    """

    uuids: dict[tuple[str, str | int], str | None] = field(default_factory=dict)
    """(node, PCI address or index) -> UUID; None where two disagree."""
    addresses: dict[tuple[str, int], str | None] = field(default_factory=dict)

    def learn(self, node: str, gpu: GpuLabels) -> None:
        """Take in what one label set says of the names of its GPU."""
        if gpu.gpu_uuid is not None:
            for place in (gpu.pci_address, gpu.gpu_index):
                if place is not None:
                    key = (node, place)
                    self.uuids[key] = gpu.gpu_uuid if self.uuids.get(key, gpu.gpu_uuid) == gpu.gpu_uuid else None
        if gpu.pci_address is not None and gpu.gpu_index is not None:
            seat = (node, gpu.gpu_index)
            self.addresses[seat] = (
                gpu.pci_address if self.addresses.get(seat, gpu.pci_address) == gpu.pci_address else None
            )

    def complete(self, node: str, gpu: GpuLabels) -> tuple[str | None, str | None]:
        """Return the GPU's UUID and PCI address, as far as they are known."""
        uuid, address = gpu.gpu_uuid, gpu.pci_address
        if address is None and gpu.gpu_index is not None and uuid is None:
            address = self.addresses.get((node, gpu.gpu_index))
        if uuid is None and address is not None:
            uuid = self.uuids.get((node, address))
        if uuid is None and gpu.pci_address is None and gpu.gpu_index is not None:
            uuid = self.uuids.get((node, gpu.gpu_index))
        return uuid, address

    def name_device(self, node: str, gpu: GpuLabels) -> str | None:
        """Return the device's name, or None if nothing says which GPU it is."""
        uuid, address = self.complete(node, gpu)
        parent = uuid or address or (None if gpu.gpu_index is None else f"gpu{gpu.gpu_index}")
        if gpu.mig_instance is None:
            return parent
        if gpu.mig_instance.startswith("MIG-"):
            return gpu.mig_instance if parent is None else f"{parent}/{gpu.mig_instance}"
        return None if parent is None else f"{parent}/mig{gpu.mig_instance}"
