"""What a release contradicts: the catalogue's rules asked of the release as such, and of each kind of node it is for.

A contradiction without nodes refuses the release; one with nodes leaves these out. The rules stand in `version_rules`
and `firmware_rules`, what they know in tables (`compatibility_tables`). Pure.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import CompatibilityTables, Component, Release
from ops_pipelines.core.rollout import Contradiction
from ops_pipelines.domain.lifecycle.fleet import FleetNode
from ops_pipelines.domain.lifecycle.versions.comparing import VersionError
from ops_pipelines.domain.lifecycle.versions.firmware_rules import (
    judge_activation,
    judge_downgrade,
    judge_images,
    judge_order,
)
from ops_pipelines.domain.lifecycle.versions.version_rules import (
    Case,
    Found,
    judge_branch,
    judge_cuda,
    judge_exact,
    judge_floors,
    judge_slurm,
    judge_starts_from,
    judge_words,
    unreadable,
)

RULES: tuple[Callable[[Case], Iterator[Found]], ...] = (
    judge_words,
    judge_branch,
    judge_cuda,
    judge_exact,
    judge_floors,
    judge_starts_from,
    judge_slurm,
    judge_order,
    judge_activation,
    judge_downgrade,
    judge_images,
)
_Versions = tuple[tuple[str, str], ...]


def contradictions(
    release: Release,
    fleet: Sequence[FleetNode],
    tables: CompatibilityTables,
    *,
    today: date,
    controller_version: str | None = None,
) -> tuple[Contradiction, ...]:
    """Return everything that speaks against a release: of itself first, then of nodes, alike ones together.

    `controller_version`: which slurmctld runs; without it no release moves slurmd. Nodes that opted out, or run these
    versions already, are not judged.
    """

    def case(model: str, before: Mapping[Component, str] | None) -> Case:
        return Case(
            release=release,
            model=model,
            known=tables.models.get(model),
            before=before,
            tables=tables,
            today=today,
            controller_version=controller_version,
        )

    of_itself = dict.fromkeys(_of_models(release, fleet, tables))
    for model in sorted(release.models):
        of_itself.update(dict.fromkeys(_judge(case(model, None))))
    of_nodes: defaultdict[Found, list[NodeName]] = defaultdict(list)
    for (model, _), nodes in _alike(release, fleet).items():
        for found in dict.fromkeys(_judge(case(model, nodes[0].versions))):
            if found not in of_itself:
                of_nodes[found] += [each.node for each in nodes]
    return (
        *(_contradiction(found, ()) for found in of_itself),
        *(_contradiction(found, tuple(sorted(nodes))) for found, nodes in of_nodes.items()),
    )


def _judge(case: Case) -> Iterator[Found]:
    for rule in RULES:
        try:
            yield from rule(case)
        except VersionError as problem:
            yield unreadable(problem)


def _of_models(release: Release, fleet: Sequence[FleetNode], tables: CompatibilityTables) -> Iterator[Found]:
    """Yield the names of models and nodes that mean nothing: a slip would leave out, or touch, the wrong nodes."""
    asks_models = _components_of_models(tables) & {change.component for change in release.changes}
    for model in sorted(release.models):
        if not any(each.model == model for each in fleet):
            said = f"no node is a {model}; check the name against the racks of cluster.yaml"
            yield Found(rule="model", said=said, source="racks of cluster.yaml")
        if asks_models and model not in tables.models:
            what = ", ".join(sorted(each.value for each in asks_models))
            said = f"nobody knows what {model} needs beside {what}; known are {', '.join(sorted(tables.models))}"
            yield Found(rule="model", said=said, source="node_models.csv has no such row")
    for name in sorted(release.opted_out - {each.node for each in fleet}):
        yield Found(
            rule="opted_out",
            said=f"opted_out names {name}, which is no node that this release is for; check the name",
            source="racks of cluster.yaml",
        )


def _components_of_models(tables: CompatibilityTables) -> frozenset[Component]:
    """Return the components whose rules differ from model to model."""
    matched = {each for match in tables.exact_matches for each in (match.component, match.equals)}
    ordered = {each for order in tables.orders for stage in order.stages for each in stage}
    return frozenset(matched | ordered | {each.needs for each in tables.floors if each.models})


def _alike(release: Release, fleet: Sequence[FleetNode]) -> Mapping[tuple[str, _Versions], list[FleetNode]]:
    """Return the nodes that are judged, those of one model that run the same versions together, by name."""
    groups: defaultdict[tuple[str, _Versions], list[FleetNode]] = defaultdict(list)
    for node in sorted(fleet, key=lambda each: each.node):
        is_there = all(node.versions.get(change.component) == change.version for change in release.changes)
        if node.model in release.models and node.node not in release.opted_out and not is_there:
            versions = tuple(sorted((component.value, version) for component, version in node.versions.items()))
            groups[node.model, versions].append(node)
    return groups


def _contradiction(found: Found, nodes: tuple[NodeName, ...]) -> Contradiction:
    return Contradiction(rule=found.rule, said=found.said, source=found.source, component=found.component, nodes=nodes)
