"""Group `lifecycle`: what a release would do, one pass over the rollouts, each node, and versions of the fleet."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.core.identity import RolloutId
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.rollout import FINAL, NodeStage, Rollout, RolloutNode, RolloutPlan
from ops_pipelines.report.metadata import count, table
from ops_pipelines.rollouts.engine import words_of
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


if TYPE_CHECKING:
    from ops_pipelines.rollouts.cycle import CycleReport


GROUP = "lifecycle"
_LONGEST_CELL = 160
_QUIET = frozenset({NodeStage.PENDING, NodeStage.UPDATED, NodeStage.SKIPPED})


class RolloutPlanConfig(dg.Config):
    """Which release to plan."""

    release: str = Field(
        default="", max_length=64, description="A file of the releases directory, without .yaml; empty: each of them."
    )


@dg.asset(group_name=GROUP, code_version="1")
def rollout_plan(config: RolloutPlanConfig, cluster: dg.ResourceParam[Cluster]) -> dg.Output[None]:
    """What rolling a release out would do if it began now: waves, windows, cost, teams touched. Changes nothing."""
    from ops_pipelines.rollouts.orders import plan_releases

    plans, problems = plan_releases(cluster, (config.release,) if config.release else ())
    made = [(each.release.name, each.plan) for each in plans if isinstance(each.plan, RolloutPlan)]
    return dg.Output(
        None,
        metadata={
            **picture_plans(plans),
            "plans": table(
                {
                    "release": name,
                    "plan": plan.plan,
                    "nodes": sum(len(wave.nodes) for wave in plan.waves),
                    "waves": len(plan.waves),
                    "ends": "" if plan.finishes_at is None else f"{plan.finishes_at:%Y-%m-%d %H:%M} UTC",
                    "GPU-hours": f"{plan.lost_gpu_hours:.1f}",
                    "cannot be rolled back": ", ".join(change.component.value for change in plan.one_way),
                }
                for name, plan in made
            ),
            "refused": table(
                {"release": each.release.name, "rule": each.plan.guardrail, "why": each.plan.reason}
                for each in plans
                if isinstance(each.plan, Refusal)
            ),
            "teams": table(
                {
                    "release": name,
                    "team": team.team,
                    "nodes": ", ".join(team.nodes),
                    "first": f"{team.first_at:%Y-%m-%d %H:%M} UTC",
                    "last": f"{team.last_at:%Y-%m-%d %H:%M} UTC",
                }
                for name, plan in made
                for team in plan.teams
            ),
            "not_touched": table(
                {"release": name, "node": each.node, "why": each.reason} for name, plan in made for each in plan.skipped
            ),
            "problems": table({"problem": each} for each in problems),
        },
    )


rollout_pass = dg.AssetSpec(
    "rollout_pass",
    group_name=GROUP,
    code_version="2",
    description="One pass over the rollouts that are not over: each node as far as it goes now, each act judged and "
    "witnessed. Done by the job `advance_rollouts` alone.",
)
"""What was done. It acts on nodes, so that nobody can materialise it: the job reports it."""


def shown_of_pass(report: "CycleReport") -> Mapping[str, dg.MetadataValue]:
    """Return what the page of `rollout_pass` shows of one pass."""
    from ops_pipelines.rollouts.cycle import nodes_by_stage

    return {
        "rollout_count": count(report.passes),
        "rollouts": table(
            {
                "rollout": each.rollout.rollout,
                "state": each.rollout.state.value,
                "wave": f"{each.rollout.wave} of {len(each.rollout.waves)}",
                "nodes": ", ".join(f"{number} {stage}" for stage, number in nodes_by_stage(each).items()),
                "why": _short(each.rollout.reason),
            }
            for each in report.passes
        ),
        "gate": table(
            {"rollout": each.rollout.rollout, "test": test.name, "verdict": test.state.value, "saw": test.said}
            for each in report.passes
            if each.verdict is not None
            for test in each.verdict.tests
        ),
        "problems": table(
            {"problem": problem} for problem in (*report.problems, *(p for e in report.passes for p in e.problems))
        ),
    }


@dg.asset(group_name=GROUP, deps=[rollout_pass], code_version="1")
def rollout_progress(cluster: dg.ResourceParam[Cluster]) -> dg.Output[None]:
    """Where each rollout is and each of its nodes, with a picture: under way, and over since a week."""
    return dg.Output(None, metadata=shown_of_progress(cluster))


def shown_of_progress(cluster: Cluster) -> Mapping[str, dg.MetadataValue]:
    """Return what the page of `rollout_progress` shows now."""
    from datetime import timedelta

    now = cluster.clock.now()
    rollouts = cluster.ledger.rollouts(final_since=now - timedelta(days=7))
    nodes = {each.rollout: cluster.ledger.rollout_nodes(each.rollout) for each in rollouts}
    return {
        **picture_progress(rollouts, nodes),
        "rollouts": table(
            {
                "rollout": each.rollout,
                "release": each.release,
                "state": each.state.value,
                "owner": "" if each.state in FINAL else each.owner,
                "wave": f"{each.wave} of {len(each.waves)}",
                "since": f"{each.since:%Y-%m-%d %H:%M:%S}",
                "stopped because": _short(each.stopped_because),
                "why": _short(each.reason),
            }
            for each in reversed(rollouts)
        ),
        "nodes": table(
            _row(node) for each in reversed(rollouts) for node in nodes[each.rollout] if node.stage not in _QUIET
        ),
    }


def _row(node: RolloutNode) -> dict[str, str]:
    return {
        "rollout": node.rollout,
        "node": node.node,
        "wave": "" if node.wave is None else str(node.wave),
        "stage": node.stage.value,
        "direction": node.direction.value,
        "since": f"{node.since:%H:%M:%S}",
        "deadline": "" if node.deadline is None else f"{node.deadline:%H:%M:%S}",
        "why": _short(words_of(node.failure) or node.reason),
    }


def _short(text: str) -> str:
    """Return the beginning of what a gate or a node stated: a cell of the UI grows downwards with it."""
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


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
