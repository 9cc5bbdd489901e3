"""Rows of the inventory -> which GPU stood where, from when until when: what was seen of each part."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.fault import ComponentKind
from ops_pipelines.core.identity import GpuUuid, NodeName, PciAddress
from ops_pipelines.lake.inventory import batch_of
from ops_pipelines.observe.repeated import PartKey, Seating


@dataclass(frozen=True, slots=True)
class Sighting:
    """A part in its place, as one row of an inventory has it."""

    part: PartKey
    node: NodeName
    pci: PciAddress | None
    uuid: GpuUuid | None
    labels: tuple[str, ...]


def read_seatings(inventories: Mapping[datetime, pa.Table], *, nodes: Collection[NodeName]) -> tuple[Seating, ...]:
    """Return which GPU stood where on some nodes; the cost is that of these nodes, however large the cluster."""
    chosen = pa.array(sorted(nodes), pa.string())
    # Chosen inside: an inventory without any rows says nothing, one without rows of these nodes that they were gone.
    spells = spells_of(inventories, keep=lambda rows: rows.filter(pc.is_in(rows.column("node"), value_set=chosen)))
    return seatings_of(spells)


Spell = tuple[Sighting, datetime, datetime | None]
"""From when until when a part was seen in one place; None: it still is."""


def spells_of(inventories: Mapping[datetime, pa.Table], *, keep: Callable[[pa.Table], pa.Table]) -> list[Spell]:
    """Return from when until when each part was seen where, by inventories and their times."""
    seen = {at: set(_sightings(keep(rows))) for at, rows in inventories.items() if rows.num_rows}
    return [spell for sighting in sorted(set().union(*seen.values()), key=str) for spell in _spells(sighting, seen)]


def seatings_of(spells: Iterable[Spell]) -> tuple[Seating, ...]:
    """Return which GPU stood where."""
    return tuple(
        Seating(
            node=each.node,
            pci=each.pci,
            since=since,
            until=until,
            uuid=each.uuid,
            serial=each.part.name if each.part.name != each.uuid else None,
        )
        for each, since, until in spells
        if each.pci is not None
    )


def _spells(sighting: Sighting, seen: Mapping[datetime, set[Sighting]]) -> Iterator[Spell]:
    since: datetime | None = None
    for at in sorted(seen):
        if sighting in seen[at]:
            since = since or at
        elif since is not None:
            yield sighting, since, at
            since = None
    if since is not None:
        yield sighting, since, None


def _sightings(rows: pa.Table) -> Iterator[Sighting]:
    names = ("node", "kind", "serial", "uuid", "pci_address", "model", "driver_version", "rack")
    known = [name for name in names if name in rows.column_names]
    listed = [dict.fromkeys(names) | row for row in rows.select(known).to_pylist()]
    gpus = [row for row in listed if row["kind"] == "gpu"]
    serials = [row["serial"] for row in gpus]
    racks = {row["node"]: row["rack"] for row in listed if row["rack"]}
    drivers = {row["node"]: row["driver_version"] for row in gpus if row["driver_version"]}
    for row in gpus:
        # A serial that two GPUs bear is their board's.
        own = row["serial"] if row["serial"] and serials.count(row["serial"]) == 1 else row["uuid"]
        if own:
            labels = (batch_of(row["serial"] or ""), row["model"], racks.get(row["node"]), row["driver_version"])
            yield Sighting(
                part=PartKey(kind=ComponentKind.GPU.value, name=own),
                node=NodeName(row["node"]),
                pci=None if row["pci_address"] is None else PciAddress(row["pci_address"]),
                uuid=None if row["uuid"] is None else GpuUuid(row["uuid"]),
                labels=tuple(each or "" for each in labels),
            )
    for node in sorted({row["node"] for row in listed if row["node"]}):
        yield Sighting(
            part=PartKey(kind=ComponentKind.NODE.value, name=node),
            node=NodeName(node),
            pci=None,
            uuid=None,
            labels=("", "", racks.get(node) or "", drivers.get(node) or ""),
        )
