"""Rows of telemetry within an hour -> what shared file systems hold, and their sizes.

Lustre tells its object targets, which are added up by file system, or else each client tells the whole. Other shared
file systems (NFS, CephFS, ...) are seen by nodes only, as mounts; which of those are shared nobody says. One counts as
shared where many nodes see the same size and the same room, and a disk of each node does not.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

LUSTRE_COLUMNS = ("node", "device", "time", "lustre_capacity_bytes", "lustre_available_bytes")
MOUNT_COLUMNS = ("node", "device", "time", "filesystem_size_bytes", "filesystem_available_bytes")
_TARGETS, _CLIENTS, _MOUNTS = "lustre:ost/", "lustre:client/", "fs:"
_OWN_MOUNTS = ("/boot", "/dev", "/proc", "/run", "/snap", "/sys", "/tmp", "/usr", "/var")  # noqa: S108  # Names.
"""What every system has on its own disk."""
_LEAST_BYTES = float(1 << 40)
"""Assumption: what a cluster shares holds a TiB or more."""
_LEAST_NODES = 3
_NODE_RATIO = 0.5
_ALIKE_RATIO = 0.005
"""Nodes are asked one after another, and the room changes in between."""
_LEAST_USED_RATIO = 0.01
"""Empty disks of many nodes look alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """One file system."""

    used_bytes: float
    size_bytes: float


def read_lustre(storage: pa.Table) -> Mapping[str, Filled]:
    """Return Lustre file systems by name: the sum of their object targets, else what clients see."""
    rows = _newest(storage, LUSTRE_COLUMNS, prefix="lustre:")
    targets: dict[str, Filled] = {}
    clients: dict[str, Filled] = {}
    for _, device, size, available in rows:
        for found, prefix in ((targets, _TARGETS), (clients, _CLIENTS)):
            if device.startswith(prefix):
                name = device.removeprefix(prefix)
                found[name] = _larger(found.get(name), Filled(used_bytes=size - available, size_bytes=size))
    sums: dict[str, Filled] = {}
    for name in sorted(targets):
        each, before = targets[name], sums.get(_system(name), Filled(used_bytes=0.0, size_bytes=0.0))
        sums[_system(name)] = Filled(
            used_bytes=before.used_bytes + each.used_bytes, size_bytes=before.size_bytes + each.size_bytes
        )
    if sums:
        return sums
    seen: dict[str, Filled] = {}
    for name in sorted(clients):
        seen[_system(name)] = _larger(seen.get(_system(name)), clients[name])
    return seen


def read_mounts(mounts: pa.Table, *, known: Iterable[Filled] = ()) -> Mapping[str, Filled]:
    """Return file systems that many nodes share, by mount; one of a size that is `known` already is the same again."""
    by_mount: dict[str, list[tuple[float, float]]] = defaultdict(list)
    nodes = set()
    for node, device, size, available in _newest(mounts, MOUNT_COLUMNS, prefix=_MOUNTS):
        nodes.add(node)
        by_mount[device.removeprefix(_MOUNTS)].append((size, available))
    sizes = [each.size_bytes for each in known]
    found = {}
    for mount in sorted(by_mount):
        told = by_mount[mount]
        size, room = max(size for size, _ in told), max(room for _, room in told)
        is_own = mount == "/" or any(mount == each or mount.startswith(f"{each}/") for each in _OWN_MOUNTS)
        is_seen = len(told) >= max(_LEAST_NODES, _NODE_RATIO * len(nodes))
        is_alike = (
            size - min(size for size, _ in told) <= _ALIKE_RATIO * size
            and room - min(room for _, room in told) <= _ALIKE_RATIO * size
        )
        is_filled = size >= _LEAST_BYTES and size - room >= _LEAST_USED_RATIO * size
        is_known = any(abs(size - other) <= _ALIKE_RATIO * size for other in sizes)
        if not is_own and is_seen and is_alike and is_filled and not is_known:
            found[mount] = Filled(used_bytes=size - room, size_bytes=size)
    return found


def _newest(rows: pa.Table, columns: tuple[str, ...], *, prefix: str) -> list[tuple[str, str, float, float]]:
    """Return (node, device, size, room) of the newest row of each that tells both and could be true."""
    size, available = columns[-2:]
    is_told = pc.and_(
        pc.starts_with(rows["device"], prefix),
        pc.and_(pc.greater(rows[size], 0), pc.greater_equal(rows[available], 0)),
    )
    kept = rows.filter(pc.fill_null(is_told, False)).select(list(columns)).sort_by([("time", "ascending")])
    newest = {}
    for node, device, whole, room in zip(
        *(kept[name].to_pylist() for name in ("node", "device", size, available)), strict=True
    ):
        if room <= whole:
            newest[node, device] = (node, device, float(whole), float(room))
    return [newest[key] for key in sorted(newest)]


def _larger(one: Filled | None, other: Filled) -> Filled:
    if one is None:
        return other
    return max(one, other, key=lambda each: (each.size_bytes, each.used_bytes))


def _system(target: str) -> str:
    """Return the name of the file system: `scratch` of `scratch-OST0003` and of `scratch-ffff9a3c`."""
    return target.rpartition("-")[0] or target
