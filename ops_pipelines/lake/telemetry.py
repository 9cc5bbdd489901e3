"""Raw GPU samples -> readings, the standing of each node, conditions, and what was not believed.

Pure: one set of samples at one instant in, values out. Remembering when a condition began is the intake's business,
what it means is `observe.rules`; asking a metrics store is `resources.prometheus`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache

from ops_pipelines.core.identity import GpuUuid, NodeName, PciAddress, Topology, parse_pci_address
from ops_pipelines.core.observation import Observation, Rejected, Signal, TelemetryStatus
from ops_pipelines.core.sources import Sample
from ops_pipelines.lake.node_names import NODE_LABELS, NodeNames, names_of
from ops_pipelines.lake.quantities import read_quantities

SOURCE = "telemetry"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """The newest believed values of one GPU. None: the exporter does not give it, or gave nothing believable."""

    node: NodeName
    gpu: PciAddress
    gpu_uuid: GpuUuid | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    utilisation_ratio: float | None = None
    """Share of time in which any kernel was resident; a spinning collective reads 1.0. Not a measure of health."""
    memory_used_bytes: float | None = None
    xid: int | None = None
    """The last Xid that the exporter saw, or None. It never resets and hides repeats: the kernel log is the truth."""
    uncorrectable_ecc_count: int | None = None
    recovery_action: int | None = None
    is_row_remap_pending: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTelemetry:
    """What one set of samples says. Readings are sorted by (node, gpu), statuses by node."""

    readings: tuple[GpuReading, ...]
    statuses: tuple[TelemetryStatus, ...]
    """One for each node with at least one sample; a node with old samples only has an empty `gpus_seen`."""
    conditions: tuple[Observation, ...]
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One watched metric: the reading's field, the factor to its unit, and the bounds of the raw value."""

    field: str
    low: float
    high: float
    factor: float
    is_whole: bool


MAX_AHEAD = timedelta(seconds=60)
"""Clocks of exporters may be this far ahead of ours."""
_FIELDS = {
    "temperature_celsius": "temperature_celsius",
    "power_watts": "power_watts",
    "utilisation_ratio": "utilisation_ratio",
    "memory_used_bytes": "memory_used_bytes",
    "xid": "xid",
    "ecc_uncorrectable_volatile_count": "uncorrectable_ecc_count",
    "recovery_action": "recovery_action",
    "row_remap_pending": "is_row_remap_pending",
}
"""Column of gpu_telemetry -> the reading's field that it is judged under."""
_EXPORTER = "DCGM_"
"""Begins the names that are judged here; what other exporters give goes into the lake alone."""


@cache
def watched_metrics() -> Mapping[str, Metric]:
    """Return the watched metrics by their old and new names, as catalogue/metrics.csv has them."""
    return {
        each.name: Metric(
            field=_FIELDS[quantity.column],
            # The catalogue's bounds are of the column's unit; a value is judged as it came.
            low=quantity.low / each.factor,
            high=quantity.high / each.factor,
            factor=each.factor,
            is_whole=quantity.is_whole,
        )
        for quantity in read_quantities()
        if quantity.table == "gpu_telemetry" and quantity.column in _FIELDS
        for each in quantity.series
        if each.name.startswith(_EXPORTER)
    }


# DCGM's blank values start here in each type: 0x7ffffff0, 2**47, 0x7ffffffffffffff0 (DCGM dcgm_structs.h). No watched
# value is ever as large, so one bound covers all three, and their rounding to a float.
_BLANK_FROM = float(0x7FFFFFF0)


def observe_gpus(
    samples: Sequence[Sample],
    *,
    at: datetime,
    topology: Topology,
    stale_after: timedelta,
    expected_gpus: Mapping[NodeName, frozenset[PciAddress]] | None = None,
    max_ahead: timedelta = MAX_AHEAD,
    source: str = SOURCE,
) -> GpuTelemetry:
    """Return what `samples` say of every declared node at `at`. Metrics that are not watched are passed over.

    A sample exactly `stale_after` old is still fresh; an older one is rejected, as is one more than `max_ahead` in
    the future. `expected_gpus` is a remembered inventory: with it a missing GPU can be named, without it only counted.
    A GPU counts as seen if any fresh series names it, whatever the value: a blank value is no proof of absence.
    Of several samples of one metric and GPU (MIG, several pods) the newest counts, of equally new ones the largest.
    The order of `samples` does not matter.
    """
    names = names_of(tuple(topology.places))
    sorting = _Sorting(at=at, names=names, stale_after=stale_after, max_ahead=max_ahead, source=source)
    metrics = watched_metrics()
    watched = [sample for sample in samples if sample.metric in metrics]
    sorting.learn_positions(watched)
    for sample in watched:
        sorting.place(sample)
    readings = tuple(_read_gpu(node, gpu, sorting) for node, gpu in sorted(sorting.seen))
    gpus_by_node: dict[NodeName, set[PciAddress]] = {}
    for node, gpu in sorting.seen:
        gpus_by_node.setdefault(node, set()).add(gpu)
    statuses = tuple(
        TelemetryStatus(node=node, newest_sample_at=newest, gpus_seen=frozenset(gpus_by_node.get(node, ())))
        for node, newest in sorted(sorting.newest.items())
    )
    conditions = [
        *(found for reading in readings for found in _find_gpu_conditions(reading, at=at, source=source)),
        *_find_node_conditions(
            gpus_by_node, at=at, topology=topology, expected_gpus=expected_gpus or {}, source=source
        ),
    ]
    return GpuTelemetry(
        readings=readings,
        statuses=statuses,
        conditions=tuple(sorted(conditions, key=lambda condition: condition.position)),
        rejected=tuple(sorted(sorting.rejected, key=lambda refused: (refused.position, refused.text))),
    )


@dataclass(slots=True, kw_only=True)
class _Sorting:
    """The samples of one call, sorted into what is believed and what is not."""

    at: datetime
    names: NodeNames
    stale_after: timedelta
    max_ahead: timedelta
    source: str
    positions: dict[tuple[NodeName, str, str], PciAddress | None] = field(default_factory=dict)
    """(node, label, value) -> PCI address, learnt from series that carry both; None where two disagree."""
    uuids: dict[tuple[NodeName, PciAddress], GpuUuid] = field(default_factory=dict)
    seen: set[tuple[NodeName, PciAddress]] = field(default_factory=set)
    newest: dict[NodeName, datetime] = field(default_factory=dict)
    values: dict[tuple[NodeName, PciAddress, str], tuple[datetime, float]] = field(default_factory=dict)
    nodes: dict[int, NodeName] = field(default_factory=dict)
    """Identity of a label set -> its node: the samples of one GPU often share their labels."""
    gpus: dict[int, PciAddress] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)

    def learn_positions(self, samples: Iterable[Sample]) -> None:
        """Learn which UUID and index stand for which PCI address: not every series carries the address."""
        for labels in {id(sample.labels): sample.labels for sample in samples}.values():
            try:
                node = _known_node(labels, self.names)
                gpu = parse_pci_address(labels["pci_bus_id"])
            except (ValueError, KeyError):
                continue
            for label in ("UUID", "gpu"):
                if value := labels.get(label):
                    key = (node, label, value)
                    self.positions[key] = gpu if self.positions.get(key, gpu) == gpu else None

    def place(self, sample: Sample) -> None:
        """Take one sample in, or reject it."""
        try:
            labels, place = sample.labels, id(sample.labels)
            node = self.nodes.get(place) or self.nodes.setdefault(place, _known_node(labels, self.names))
            self._check_time(node, sample)
            gpu = self.gpus.get(place)
            if gpu is None:
                gpu = self.gpus[place] = self._find_gpu(node, labels)
                self.seen.add((node, gpu))
                if uuid := labels.get("UUID"):
                    self.uuids[node, gpu] = max(GpuUuid(uuid), self.uuids.get((node, gpu), GpuUuid("")))
            self._keep(node, gpu, sample)
        except ValueError as exc:
            where = "/".join(sample.labels.get(label, "?") for label in ("Hostname", "instance", "pci_bus_id", "gpu"))
            text = f"{sample.metric} {sample.value!r} at {sample.sampled_at.isoformat()} of {where}"
            self.rejected.append(
                Rejected(
                    source=self.source, position=f"{sample.metric}/{where}"[:500], reason=str(exc), text=text[:1000]
                )
            )

    def _check_time(self, node: NodeName, sample: Sample) -> None:
        if sample.sampled_at.utcoffset() is None:
            raise ValueError("the sample's time names no zone; the source must convert it")
        age = self.at - sample.sampled_at
        if age < -self.max_ahead:
            raise ValueError(f"the sample is {-age.total_seconds():.0f} s in the future; check the clocks")
        self.newest[node] = max(sample.sampled_at, self.newest.get(node, sample.sampled_at))
        if age > self.stale_after:
            limit_seconds = self.stale_after.total_seconds()
            raise ValueError(f"the sample is {age.total_seconds():.0f} s old; the limit is {limit_seconds:.0f} s")

    def _find_gpu(self, node: NodeName, labels: Mapping[str, str]) -> PciAddress:
        if "pci_bus_id" in labels:
            return parse_pci_address(labels["pci_bus_id"])
        for label in ("UUID", "gpu"):
            gpu = self.positions.get((node, label, labels.get(label, "")))
            if gpu is not None:
                return gpu
        raise ValueError("no label says which GPU it is; expected pci_bus_id, as dcgm-exporter 3.2 and later give it")

    def _keep(self, node: NodeName, gpu: PciAddress, sample: Sample) -> None:
        metric = watched_metrics()[sample.metric]
        value = float(sample.value)
        if not math.isfinite(value):
            raise ValueError(f"{value} is no measurement")
        if value >= _BLANK_FROM:
            raise ValueError("a blank value of DCGM: the GPU does not give this metric")
        if not metric.low <= value <= metric.high:
            raise ValueError(f"{value:g} is impossible; it must lie in {metric.low:g}..{metric.high:g}")
        if metric.is_whole and not value.is_integer():
            raise ValueError(f"{value:g} is impossible; it must be a whole number")
        key = (node, gpu, metric.field)
        kept = (sample.sampled_at, value * metric.factor)
        self.values[key] = max(self.values.get(key, kept), kept)


def is_any_fresh(samples: Sequence[Sample], *, at: datetime, stale_after: timedelta) -> bool:
    """Return whether the source still sees anything now: a store continues answering long after its scraper died."""
    return any(-MAX_AHEAD <= at - sample.sampled_at <= stale_after for sample in samples)


def _known_node(labels: Mapping[str, str], names: NodeNames) -> NodeName:
    """Return the node of cluster.yaml that the labels name; raise ValueError if they name none, or two."""
    try:
        node, is_unknown = names.find(labels)
    except ValueError as problem:
        raise ValueError(f"{str(problem).partition(';')[0]}; check the relabelling of the scrape") from problem
    if is_unknown is None:
        raise ValueError("no label says which node it is; expected one of Hostname, hostname, node, instance")
    if is_unknown:
        shown = ", ".join(f"{label}={labels[label]!r}" for label in NODE_LABELS if labels.get(label))
        raise ValueError(f"{shown[:300]}: no node of the cluster; add it to cluster.yaml if it is one")
    return NodeName(node)


def _read_gpu(node: NodeName, gpu: PciAddress, sorting: _Sorting) -> GpuReading:
    def number(name: str) -> float | None:
        kept = sorting.values.get((node, gpu, name))
        return None if kept is None else kept[1]

    def whole(name: str) -> int | None:
        value = number(name)
        return None if value is None else int(value)

    pending = number("is_row_remap_pending")
    return GpuReading(
        node=node,
        gpu=gpu,
        gpu_uuid=sorting.uuids.get((node, gpu)),
        temperature_celsius=number("temperature_celsius"),
        power_watts=number("power_watts"),
        utilisation_ratio=number("utilisation_ratio"),
        memory_used_bytes=number("memory_used_bytes"),
        xid=whole("xid") or None,  # 0 means that none was seen
        uncorrectable_ecc_count=whole("uncorrectable_ecc_count"),
        recovery_action=whole("recovery_action"),
        is_row_remap_pending=None if pending is None else pending > 0,
    )


def _find_gpu_conditions(reading: GpuReading, *, at: datetime, source: str) -> list[Observation]:
    found: list[Observation] = []
    if reading.recovery_action:
        # The number is part of the position: "reset me" that becomes "reboot the node" is another condition.
        found.append(
            Observation(
                signal=Signal.RECOVERY_ACTION,
                node=reading.node,
                observed_at=at,
                source=source,
                position=f"{Signal.RECOVERY_ACTION.value}/{reading.node}/{reading.gpu}/{reading.recovery_action}",
                code=reading.recovery_action,
                gpu=reading.gpu,
                gpu_uuid=reading.gpu_uuid,
                text=f"DCGM field 1523 of GPU {reading.gpu} on {reading.node} is {reading.recovery_action}",
            )
        )
    if reading.uncorrectable_ecc_count:
        count = reading.uncorrectable_ecc_count
        found.append(
            Observation(
                signal=Signal.ECC_UNCORRECTABLE,
                node=reading.node,
                observed_at=at,
                source=source,
                position=f"{Signal.ECC_UNCORRECTABLE.value}/{reading.node}/{reading.gpu}",
                code=count,
                gpu=reading.gpu,
                gpu_uuid=reading.gpu_uuid,
                text=f"{count} uncorrectable ECC error(s) counted on GPU {reading.gpu} of {reading.node}",
            )
        )
    return found


def _find_node_conditions(
    gpus_by_node: Mapping[NodeName, set[PciAddress]],
    *,
    at: datetime,
    topology: Topology,
    expected_gpus: Mapping[NodeName, frozenset[PciAddress]],
    source: str,
) -> list[Observation]:
    found: list[Observation] = []
    for node in topology.places:
        seen = gpus_by_node.get(node, set())
        if not seen:
            text = f"no fresh GPU metrics from {node}"
            found.append(_condition(Signal.TELEMETRY_STALE, node, at=at, source=source, text=text))
            continue
        missing_count = topology.gpus_per_node - len(seen)
        if missing_count <= 0:
            continue
        text = f"{node} reports {len(seen)} of {topology.gpus_per_node} GPUs"
        missing = expected_gpus.get(node, frozenset()) - seen
        # An inventory that does not account for every missing GPU is out of date: a part was replaced. Name none.
        named: list[PciAddress | None] = [*sorted(missing)] if len(missing) == missing_count else [None]
        found += [
            _condition(Signal.GPU_MISSING, node, at=at, source=source, text=text, gpu=gpu, code=missing_count)
            for gpu in named
        ]
    return found


def _condition(
    signal: Signal,
    node: NodeName,
    *,
    at: datetime,
    source: str,
    text: str,
    gpu: PciAddress | None = None,
    code: int | None = None,
) -> Observation:
    position = f"{signal.value}/{node}" if gpu is None else f"{signal.value}/{node}/{gpu}"
    return Observation(
        signal=signal, node=node, observed_at=at, source=source, position=position, code=code, gpu=gpu, text=text
    )
