"""Pictures of rollouts as metadata of their assets: what is planned, nodes x time, and how far each wave is."""

from collections.abc import Mapping, Sequence

import dagster as dg

from ops_pipelines.core.identity import RolloutId
from ops_pipelines.core.rollout import Rollout, RolloutNode, RolloutPlan
from ops_pipelines.rollouts.orders import Planned

_MOST_SHOWN = 8


def picture_plans(plans: Sequence[Planned]) -> Mapping[str, dg.MetadataValue]:
    """Return two pictures for each plan that there is: one to be seen in place, one to be opened."""
    from ops_pipelines.report.pictures.rollouts import picture_of_plan

    shown: dict[str, dg.MetadataValue] = {}
    for each in plans[:_MOST_SHOWN]:
        if isinstance(each.plan, RolloutPlan):
            racks = {name: node.place.rack for name, node in each.fleet.nodes.items()}
            small, large = picture_of_plan(each.plan, each.calendar, racks=racks)
            shown[f"plan_of_{_key(each.release.name)}"] = dg.MetadataValue.md(small)
            shown[f"plan_of_{_key(each.release.name)}_large"] = dg.MetadataValue.md(large)
    return shown


def picture_progress(
    rollouts: Sequence[Rollout], nodes: Mapping[RolloutId, Sequence[RolloutNode]]
) -> Mapping[str, dg.MetadataValue]:
    """Return two pictures for each of the newest rollouts."""
    from ops_pipelines.report.pictures.rollouts import picture_of_progress

    shown: dict[str, dg.MetadataValue] = {}
    for each in list(reversed(rollouts))[:_MOST_SHOWN]:
        small, large = picture_of_progress(each, nodes[each.rollout])
        shown[_key(each.rollout)] = dg.MetadataValue.md(small)
        shown[f"{_key(each.rollout)}_large"] = dg.MetadataValue.md(large)
    return shown


def _key(name: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in name)
