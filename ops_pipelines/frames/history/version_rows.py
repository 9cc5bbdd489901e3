"""Rows of `inventory` -> which version of what each node had when they were written.

For nodes that do not tell it themselves. Parts of one node that disagree are told together, in order.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Component
from ops_pipelines.domain.lifecycle.versions.drift import SeenVersion, Spot

_COLUMNS = ("node", "time", "kind", "model", "driver_version", "firmware_version", "vbios_version", "kernel_version")
_NETWORK = frozenset({"nic", "port"})
_WHERE: Mapping[str, tuple[tuple[str, Component], ...]] = {
    "node": (("driver_version", Component.DRIVER), ("kernel_version", Component.KERNEL)),
    "gpu": (("driver_version", Component.DRIVER), ("vbios_version", Component.GPU_VBIOS)),
    **dict.fromkeys(_NETWORK, (("firmware_version", Component.NIC_FIRMWARE),)),
    "bmc": (("firmware_version", Component.BMC),),
}
"""Kind of part -> which column tells the version of which component."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryVersions:
    """What one inventory says."""

    seen: Mapping[Spot, SeenVersion]
    models: Mapping[Spot, frozenset[str]]
    """Models of the parts whose firmware a component is, by node."""


def inventory_versions(rows: pa.Table) -> InventoryVersions:
    """Return the versions and part models of each node."""
    found: defaultdict[Spot, set[str]] = defaultdict(set)
    times: dict[Spot, datetime] = {}
    models: defaultdict[Spot, set[str]] = defaultdict(set)
    for row in rows.select([name for name in _COLUMNS if name in rows.column_names]).to_pylist():
        if not row["node"]:
            continue
        node = NodeName(row["node"])
        for column, component in _WHERE.get(row["kind"] or "", ()):
            version = row.get(column)
            if row["model"] and component in (Component.GPU_VBIOS, Component.NIC_FIRMWARE):
                models[node, component].add(row["model"])
            if version:
                at = row["time"].astimezone(UTC)
                found[node, component].add(version)
                times[node, component] = max(times.get((node, component), at), at)
    return InventoryVersions(
        seen={
            spot: SeenVersion(version=" / ".join(sorted(versions)), seen_at=times[spot], is_live=False)
            for spot, versions in found.items()
        },
        models={spot: frozenset(names) for spot, names in models.items()},
    )
