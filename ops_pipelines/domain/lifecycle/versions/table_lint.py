"""Refuses tables of versions that contradict themselves: a slip in a number would let a release pass, or none.

One that was really published: a project gave CUDA 13.0 the driver 575.51.03, which is that of 12.9. What the tables
mean is `compatibility_tables`'.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cmp_to_key
from itertools import pairwise

from ops_pipelines.core.release import CompatibilityTables, Component, CudaDriver, Reversibility
from ops_pipelines.domain.lifecycle.versions.comparing import (
    VersionError,
    compare_versions,
    first_number,
    is_older,
    slurm_major,
)


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
    yield from (f"CUDA {name} stands there twice" for name in _twice(each.cuda for each in tables.cuda_drivers))
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
            yield f"{rule.component.value} goes back simply; such a row says nothing, leave it out"


def _twice(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
