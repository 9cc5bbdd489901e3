"""The definitions on a cluster of a test: what a test does not use is bound to nothing, and fails loudly if touched."""

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.definitions import build_defs


def definitions_on(cluster: Cluster, **resources: object) -> dg.Definitions:
    """Return the definitions with `cluster`, and other resources as given."""
    unused = {
        name: dg.ResourceDefinition.hardcoded_resource(None)
        for name in ("observatory", "lake", "lake_keeper", "live_cycle", "policy_desk", "teams_desk")
    }
    given = {name: dg.ResourceDefinition.hardcoded_resource(value) for name, value in resources.items()}
    return build_defs(
        {
            **unused,
            "lake_io_manager": dg.mem_io_manager,
            "cluster": dg.ResourceDefinition.hardcoded_resource(cluster),
            **given,
        }
    )
