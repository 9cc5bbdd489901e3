"""Rows of the lake and incidents of the ledger -> who was in service where, and what happened to each.

An hour that the inventory does not have adds nothing: what nobody saw can neither fail nor run in the books.

Feeds `observe.repeated`, `diagnose.lemons` and `diagnose.defects`, which judge. Who was where is read from inventories,
one a day or more: a part is taken to be in service from the first that shows it until the first that does not.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.fault import AtFault, ComponentKind
from ops_pipelines.core.finding import Catalogue
from ops_pipelines.core.identity import IncidentId, NodeName, PciAddress
from ops_pipelines.core.incident import Incident
from ops_pipelines.diagnose.defects import Failures, Service
from ops_pipelines.diagnose.lemons import LemonSignal, Stay, Trouble
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.observe.past_states import Spell, seatings_of, spells_of
from ops_pipelines.observe.repeated import BURST, Lineage, PartKey

# -- hours of the inventory -> how many nodes and GPUs there were to fail --


COLUMNS = ("node", "kind")
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Who was there in an interval of time."""

    node_hours: float = 0.0
    gpu_hours: float = 0.0
    hour_count: int = 0
    """Hours that the inventory has."""
    gpus_of_node: Mapping[str, int] = field(default_factory=dict)
    """By the newest hour that shows the node."""

    @property
    def node_days(self) -> float:
        return self.node_hours / 24


def presence_of(hours: Iterable[tuple[datetime, pa.Table]], *, since: datetime, until: datetime) -> Presence:
    """Return the exposure within [since, until) of hours of the inventory, oldest first; edges count in part."""
    node_hours = gpu_hours = 0.0
    hour_count = 0
    gpus_of_node: dict[str, int] = {}
    for hour, rows in hours:
        weight = (min(until, hour + _HOUR) - max(since, hour)) / _HOUR
        if not rows.num_rows or weight <= 0:
            continue
        named = rows.filter(pc.is_valid(rows["node"]))
        nodes = {str(name): 0 for name in pc.unique(named["node"]).to_pylist() if name}
        of_gpus = named.filter(pc.equal(named["kind"].cast(pa.string()), "gpu"))
        for each in of_gpus["node"].value_counts().to_pylist():
            if each["values"]:
                nodes[each["values"]] = each["counts"]
        hour_count += 1
        node_hours += weight * len(nodes)
        gpu_hours += weight * sum(nodes.values())
        gpus_of_node |= nodes
    return Presence(node_hours=node_hours, gpu_hours=gpu_hours, hour_count=hour_count, gpus_of_node=gpus_of_node)


def sums_of_coverage(rows: pa.Table) -> tuple[float, float]:
    """Return how many samples were there and should have been, by rows of `monitoring_coverage`."""
    seen, expected = (float(pc.sum(rows[name]).as_py() or 0) for name in ("seen_count", "expected_count"))
    return seen, expected


# -- rows of the lake and incidents of the ledger -> who was in service where --


BEFORE_END, AFTER_END = timedelta(minutes=10), timedelta(minutes=5)
"""A node is what ended a job if it was in trouble so close to the job's end. Source: Meta RSC, arXiv 2410.21680."""
_XID_LINE = re.compile(r"\bXid\b")
_NOT_THE_PART = frozenset({AtFault.APPLICATION, AtFault.USER, AtFault.NOTHING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """Who was in service where, from a row of inventories."""

    stays: tuple[Stay, ...]
    """Nodes and GPUs."""
    lineage: Lineage
    service: Service
    """The same stays as columns, each cut where a label changed; `labels` as the inventory has them."""
    rows: tuple[PartKey, ...]
    """The part of each entry of `service`."""


_LABELS = ("batch", "model", "rack", "driver")


def read_attendance(
    inventories: Mapping[datetime, pa.Table], *, keep: Callable[[pa.Table], pa.Table] = lambda rows: rows
) -> Attendance:
    """Return who was in service, by inventories and their times. Those without rows are no proof of absence.

    `keep`: chooses rows of an inventory that are looked at.
    """
    spells = spells_of(inventories, keep=keep)
    stays: dict[tuple[PartKey, NodeName], list[Stay]] = {}
    for sighting, since, until in sorted(spells, key=lambda each: each[1]):
        listed = stays.setdefault((sighting.part, sighting.node), [])
        if listed and listed[-1].until == since:
            since = listed.pop().since
        listed.append(Stay(part=sighting.part, node=sighting.node, since=since, until=until))
    return Attendance(
        stays=tuple(stay for listed in stays.values() for stay in listed),
        lineage=Lineage(seatings=seatings_of(spells)),
        service=_service(spells),
        rows=tuple(each.part for each, _, _ in spells),
    )


def _service(spells: Sequence[Spell]) -> Service:
    numbers = {part: number for number, part in enumerate(sorted({each.part for each, _, _ in spells}))}
    return Service(
        part=np.array([numbers[each.part] for each, _, _ in spells], dtype=np.int64),
        begin=np.array([since.timestamp() for _, since, _ in spells], dtype=np.float64),
        end=np.array([np.inf if until is None else until.timestamp() for _, _, until in spells], dtype=np.float64),
        labels={
            kind: np.array([each.labels[place] for each, _, _ in spells], dtype=object)
            for place, kind in enumerate(_LABELS)
        },
    )


def of_kind(attendance: Attendance, kind: ComponentKind) -> tuple[Service, Mapping[PartKey, list[int]]]:
    """Return the service of parts of one kind, and for each part its places there, oldest first."""
    chosen = [place for place, part in enumerate(attendance.rows) if part.kind == kind.value]
    service = attendance.service
    index = np.array(chosen, dtype=np.int64)
    begin = service.begin[index]
    places: dict[PartKey, list[int]] = {}
    for place in np.argsort(begin, kind="stable"):
        places.setdefault(attendance.rows[chosen[place]], []).append(int(place))
    taken = Service(
        part=service.part[index],
        begin=begin,
        end=service.end[index],
        labels={name: labels[index] for name, labels in service.labels.items()},
    )
    return taken, places


def failures_of(
    troubles: Iterable[Trouble], service: Service, places: Mapping[PartKey, Sequence[int]], *, kind: ComponentKind
) -> Failures:
    """Return troubles as failures of the parts of one kind; those of parts that were never in service are left out."""
    at: list[float] = []
    stretch: list[int] = []
    for trouble in troubles:
        node = PartKey(kind=ComponentKind.NODE.value, name=trouble.node)
        part = trouble.gpu if kind is ComponentKind.GPU else node
        listed = () if part is None else places.get(part, ())
        begun = [place for place in listed if service.begin[place] <= trouble.at.timestamp()]
        if begun:
            at.append(trouble.at.timestamp())
            stretch.append(begun[-1])
    return Failures(at=np.array(at, dtype=np.float64), stretch=np.array(stretch, dtype=np.int64))


def xid_troubles(events: pa.Table, lineage: Lineage, catalogue: Catalogue) -> tuple[Trouble, ...]:
    """Return the Xids in kernel lines that are no program's fault, each burst of one code on one GPU once."""
    if not events.num_rows:
        return ()
    is_xid = pc.and_(pc.is_valid(events.column("code")), pc.is_valid(events.column("node")))
    found: list[tuple[datetime, str, str, int]] = []
    for row in events.filter(is_xid).select(["time", "node", "pci_address", "code", "text"]).to_pylist():
        rule = catalogue.xids.get(row["code"])
        is_parts_fault = rule is not None and rule.at_fault not in _NOT_THE_PART and not rule.is_secondary
        if is_parts_fault and _XID_LINE.search(row["text"] or ""):
            found.append((row["time"], row["node"], row["pci_address"] or "", row["code"]))
    troubles: list[Trouble] = []
    newest: dict[tuple[str, str, int], datetime] = {}
    for at, node, pci, code in sorted(found):
        key = (node, pci, code)
        if key not in newest or at - newest[key] > BURST:
            gpu = lineage.gpu(node=NodeName(node), pci=PciAddress(pci) if pci else None, uuid=None, at=at)
            troubles.append(Trouble(signal=LemonSignal.XIDS, node=NodeName(node), at=at, gpu=gpu))
        newest[key] = at
    return tuple(troubles)


def incident_troubles(
    incidents: Iterable[Incident], records: Mapping[IncidentId, Sequence[ActionRecord]], lineage: Lineage
) -> tuple[Trouble, ...]:
    """Return incidents as tickets against their culprits, and their drains as times out of service.

    One that a mass event swallowed, and a mass event itself, is nobody's own trouble.
    """
    found: list[Trouble] = []
    for incident in incidents:
        if incident.is_mass_event:
            continue
        for node in sorted(incident.nodes):
            gpus = {lineage.gpu(node=node, pci=pci, uuid=None, at=incident.opened_at) for pci in incident.gpus}
            gpu = next(iter(gpus)) if len(gpus) == 1 and len(incident.nodes) == 1 else None
            found.append(Trouble(signal=LemonSignal.TICKETS, node=node, at=incident.opened_at, gpu=gpu))
            found += [
                Trouble(signal=LemonSignal.OUT_OF_SERVICE, node=node, at=record.begun_at, gpu=gpu)
                for record in records.get(incident.incident, ())
                if record.action.verb is Verb.DRAIN and record.action.node == node
            ]
    return tuple(found)


def failed_job_troubles(accounting: pa.Table, known: Iterable[Trouble]) -> tuple[Trouble, ...]:
    """Return for each attempt that ended in NODE_FAIL the nodes that were in trouble of their own when it ended.

    The scheduler does not say which of a job's nodes failed: without such a trouble nobody is blamed.
    """
    if not accounting.num_rows:
        return ()
    times: dict[str, list[datetime]] = {}
    for trouble in known:
        times.setdefault(trouble.node, []).append(trouble.at)
    for listed in times.values():
        listed.sort()
    ended = accounting.filter(pc.equal(accounting.column("state"), "NODE_FAIL"))
    found: list[Trouble] = []
    for row in ended.select(["nodes", "node_count", "ended_at"]).to_pylist():
        at = row["ended_at"]
        if at is None or not row["nodes"]:
            continue
        signal = LemonSignal.MULTI_NODE_FAILURES if (row["node_count"] or 1) > 1 else LemonSignal.SINGLE_NODE_FAILURES
        for node in _expand(row["nodes"]):
            listed = times.get(node, [])
            place = bisect_left(listed, at - BEFORE_END)
            if place < len(listed) and listed[place] <= at + AFTER_END:
                found.append(Trouble(signal=signal, node=node, at=at))
                if signal is LemonSignal.SINGLE_NODE_FAILURES:
                    found.append(Trouble(signal=LemonSignal.FAILURE_RATE, node=node, at=at))
    return tuple(found)


def _expand(nodes: str) -> tuple[NodeName, ...]:
    """Return the nodes of a host list; none of a text that is none: it came from a source, and blames nobody."""
    try:
        return expand_host_list(nodes)
    except ValueError:
        return ()


def count_single_node_jobs(accounting: pa.Table) -> Mapping[NodeName, int]:
    """Return how many attempts of one node ended on each node."""
    if not accounting.num_rows:
        return {}
    is_single = pc.and_(pc.equal(accounting.column("node_count"), 1), pc.is_valid(accounting.column("ended_at")))
    names = accounting.filter(pc.fill_null(is_single, fill_value=False)).column("nodes").value_counts()
    return {NodeName(each["values"]): each["counts"] for each in names.to_pylist() if each["values"]}
