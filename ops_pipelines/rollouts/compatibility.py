"""What a release contradicts, and tables of versions that contradict themselves. Pure.

A contradiction without nodes refuses the release; one with nodes leaves these out. The rules are `version_rules`', what
they know is in tables (`core.release`). A table that contradicts itself was really published: a project gave CUDA 13.0
the driver 575.51.03, which is that of 12.9.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cmp_to_key
from itertools import pairwise

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import CompatibilityTables, Component, CudaDriver, Release, Reversibility
from ops_pipelines.core.rollout import Contradiction
from ops_pipelines.rollouts.fleet import FleetNode
from ops_pipelines.rollouts.version_rules import (
    Case,
    Found,
    judge_activation,
    judge_branch,
    judge_cuda,
    judge_downgrade,
    judge_exact,
    judge_floors,
    judge_images,
    judge_order,
    judge_slurm,
    judge_starts_from,
    judge_words,
    unreadable,
)
from ops_pipelines.rollouts.versions import VersionError, compare_versions, first_number, is_older, slurm_major

# -- what a release contradicts --


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
    """Return everything that is evidence against a release: of itself first, then of nodes, alike ones together.

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


# -- refuses tables of versions that contradict themselves --


def lint_tables(tables: CompatibilityTables) -> tuple[str, ...]:
    """Return what is wrong with the tables, one sentence each; empty: nothing. Raises nothing."""
    try:
        return (
            *_of_cuda(tables),
            *_of_branches(tables),
            *_of_orders(tables),
            *_of_floors(tables),
            *_of_slurm(tables),
            *_of_the_rest(tables),
        )
    except VersionError as problem:
        return (str(problem),)


def _of_cuda(tables: CompatibilityTables) -> Iterator[str]:
    families = [each for each in tables.cuda_drivers if each.is_family]
    toolkits = [each for each in tables.cuda_drivers if not each.is_family]
    yield from (f"CUDA {name} is there twice" for name in _twice(each.cuda for each in tables.cuda_drivers))
    for rows in (families, toolkits):
        yield from _backwards(rows)
    least = {each.cuda: each.driver for each in families}
    for each in toolkits:
        family = str(first_number(Component.CUDA, each.cuda))
        if family not in least:
            yield f"CUDA {each.cuda} is of family {family}, which has no least driver"
        elif is_older(Component.DRIVER, each.driver, least[family]):
            yield f"CUDA {each.cuda} was shipped with {each.driver}, which is below {least[family]} of its family"


def _backwards(rows: Iterable[CudaDriver]) -> Iterator[str]:
    """Yield the rows whose driver is older than that of an older CUDA."""
    in_order = sorted(rows, key=cmp_to_key(_order_of_cuda))
    for older, newer in pairwise(in_order):
        if compare_versions(Component.DRIVER, older.driver, newer.driver) > 0:
            yield f"CUDA {newer.cuda} goes with {newer.driver}, older than {older.driver} of CUDA {older.cuda}"


def _order_of_cuda(one: CudaDriver, other: CudaDriver) -> int:
    return compare_versions(Component.CUDA, one.cuda, other.cuda)


def _of_branches(tables: CompatibilityTables) -> Iterator[str]:
    families = [
        (first_number(Component.DRIVER, each.driver), first_number(Component.CUDA, each.cuda))
        for each in tables.cuda_drivers
        if each.is_family
    ]
    for each in tables.cuda_drivers:
        branch = first_number(Component.DRIVER, each.driver)
        if branch not in tables.branches:
            yield f"CUDA {each.cuda} goes with {each.driver}, and branch R{branch} is not in the table of branches"
    for row in tables.branches.values():
        runs = max((cuda for least, cuda in families if least <= row.branch), default=None)
        if runs != row.max_cuda_major:
            yield f"R{row.branch} runs CUDA {row.max_cuda_major} at most, and by the least drivers it is {runs}"


def _of_orders(tables: CompatibilityTables) -> Iterator[str]:
    for order in tables.orders:
        what = f"the order for {', '.join(sorted(order.models)) or 'all others'}"
        twice = _twice(component.value for stage in order.stages for component in stage)
        yield from (f"{what} names {component} twice" for component in twice)
        yield from (f"{what} names {model}, which is no model" for model in sorted(order.models - set(tables.models)))
    chosen = [model for order in tables.orders if order.is_chosen for model in order.models or {"all others"}]
    yield from (f"more than one order is chosen for {model}" for model in _twice(chosen))


def _of_floors(tables: CompatibilityTables) -> Iterator[str]:
    for floor in tables.floors:
        what = f"the floor of {floor.needs.value} for {floor.component.value}"
        compare_versions(floor.needs, floor.floor, floor.floor)
        if floor.from_version:
            compare_versions(floor.component, floor.from_version, floor.from_version)
        yield from (f"{what} names {model}, which is no model" for model in sorted(floor.models - set(tables.models)))


def _of_slurm(tables: CompatibilityTables) -> Iterator[str]:
    for row in tables.slurm.values():
        if not row.from_majors:
            yield f"slurm {row.major} upgrades from nothing; empty never means all"
        for each in sorted(row.from_majors):
            if slurm_major(each) != each or slurm_major(row.major) != row.major:
                yield f"slurm {row.major} upgrades from {each}; a major release is written as year and month: 24.05"
            elif not is_older(Component.SLURM, each, row.major):
                yield f"slurm {row.major} upgrades from {each}, which is not older"


def _of_the_rest(tables: CompatibilityTables) -> Iterator[str]:
    for match in tables.exact_matches:
        if match.component is match.equals:
            yield f"{match.component.value} must equal itself, which says nothing"
    for rule in tables.downgrades.values():
        if rule.reversibility is Reversibility.YES:
            yield f"{rule.component.value} rolls back simply; such a row says nothing, leave it out"


def _twice(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
