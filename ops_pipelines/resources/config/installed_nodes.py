"""The register of nodes, from the racks of cluster.yaml: what stands where, from which day on, bought with which GPUs.

Who asks for prices and types of GPU asks here. What became of their hours is `costs`'s.
"""

from collections import Counter
from datetime import UTC, datetime, tzinfo

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.lake.formats.calendar import instant_of
from ops_pipelines.resources.config.cluster_config import Bought, ClusterConfig
from ops_pipelines.teams.price import InstalledNode

ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
"""Since when a node stands whose rack does not say: before every hour that can be billed."""
_UNSAID = Bought()


def installed_nodes(config: ClusterConfig, *, zone: tzinfo) -> tuple[InstalledNode, ...]:
    """Return every node of the racks, by name; days begin in the zone of the teams."""
    topology = config.topology
    return tuple(
        InstalledNode(
            node=node,
            asset=topology.places[node].model,
            gpu_type=_of(config, node).gpu_type,
            gpu_count=topology.gpus_per_node,
            since=_begin(_of(config, node), zone=zone),
            until=None,
        )
        for node in sorted(topology.places)
    )


def gpu_types(config: ClusterConfig) -> dict[NodeName, GpuType]:
    """Return the type of the GPUs of each node whose rack says one."""
    return {node: each.gpu_type for node, each in config.bought.items() if each.gpu_type}


def installed_gpus(config: ClusterConfig, *, now: datetime, zone: tzinfo) -> dict[GpuType, int]:
    """Return how many GPUs of each type stand there now; a type of which none has come yet counts 0."""
    found: Counter[GpuType] = Counter()
    for each in installed_nodes(config, zone=zone):
        found[each.gpu_type] += each.gpu_count if each.since <= now else 0
    return dict(found)


def _of(config: ClusterConfig, node: NodeName) -> Bought:
    return config.bought.get(node, _UNSAID)


def _begin(bought: Bought, *, zone: tzinfo) -> datetime:
    day = bought.installed_since
    if day is None:
        return ALWAYS
    return instant_of(datetime(day.year, day.month, day.day, tzinfo=zone), zone)
