"""Group `lifecycle`: which version of what every node runs, and where that is not what it should be."""

import dagster as dg

from ops_pipelines.assets.rollouts import GROUP
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.report.metadata import count, table


@dg.asset(group_name=GROUP, code_version="1")
def fleet_versions(
    context: dg.AssetExecutionContext,
    cluster: dg.ResourceParam[Cluster],
    observatory: dg.ResourceParam[Observatory],
) -> dg.Output[None]:
    """Versions of drivers, firmware and software by node, and drift against what was rolled out or declared."""
    from ops_pipelines.rollouts.fleet import look_at_versions
    from ops_pipelines.rollouts.pictures import picture_of_versions

    seen = look_at_versions(cluster, lake=observatory.lake, release=observatory.release)
    for problem in seen.problems:
        context.log.warning("%s", problem)
    small, large = picture_of_versions(seen.lines)
    return dg.Output(
        None,
        metadata={
            "picture": dg.MetadataValue.md(small),
            "picture_large": dg.MetadataValue.md(large),
            "drift_count": count(seen.drifts),
            "silent_count": count(seen.silent),
            "drift": table(
                {
                    "node": each.node,
                    "component": each.component.value,
                    "runs": "" if each.seen is None else each.seen.version,
                    "should_run": "" if each.wanted is None else each.wanted.version,
                    "says": "" if each.wanted is None else each.wanted.said_by,
                    "seen": "" if each.seen is None else f"{each.seen.seen_at:%Y-%m-%d %H:%M} UTC",
                    "told_by": "" if each.seen is None else "the node" if each.seen.is_live else "the inventory",
                }
                for each in seen.drifts
            ),
            "versions": table(
                {"component": component.value, "model": model, "version": version, "nodes": number}
                for (component, model, version), number in seen.counts().items()
            ),
            "silent": table({"node": each} for each in seen.silent),
            "problems": table({"problem": each} for each in seen.problems),
        },
    )
