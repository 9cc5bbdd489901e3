"""Reads a policy.yaml for another cluster than the one that it was written for: what-if asks it of a simulated one.

Every rule of `policy_file` holds, but for what names things of the real cluster: nodes that must not be touched, and
windows of the real calendar. These are left out, and said.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.policy import Policy
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.resources.config.policy_file import read_policy
from ops_pipelines.resources.config.strict_yaml import YamlFile


def read_borrowed_policy(path: Path, *, topology: Topology) -> tuple[Policy, tuple[str, ...]]:
    """Return what policy.yaml allows on this cluster, and what of it was left out, one sentence each.

    Raises ConfigError as `read_policy` does.
    """
    named = _named_nodes(YamlFile(path).values.get("untouchable_nodes"))
    foreign = sorted({node for node in named if not topology.knows(node)})
    stand_ins = {node: Place(rack="elsewhere", nvlink_domain=node, leaf_switch="elsewhere") for node in foreign}
    policy = read_policy(path, topology=replace(topology, places={**topology.places, **stand_ins}))
    said = []
    if foreign:
        rest = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        said.append(f"untouchable_nodes: the simulated cluster has no {foreign[0]}{rest}; it goes on without")
    if policy.freeze_windows:
        said.append("freeze_windows: simulated time has no calendar; it goes on without them")
    if policy.maintenance_windows is not None or policy.maintenance_calendars:
        said.append("maintenance_windows: simulated time has no calendar; it goes on without them")
    untouchable = frozenset(node for node in policy.untouchable_nodes if topology.knows(node))
    kept = replace(
        policy,
        untouchable_nodes=untouchable,
        freeze_windows=(),
        maintenance_windows=None,
        maintenance_calendars=(),
    )
    return kept, tuple(said)


def _named_nodes(entries: object) -> Iterable[NodeName]:
    """Yield the nodes that a list names; what is no list of host lists is left for `read_policy` to refuse."""
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, str):
            try:
                yield from expand_host_list(entry)
            except ValueError:
                continue
