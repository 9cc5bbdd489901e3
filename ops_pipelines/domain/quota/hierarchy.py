"""Who belongs to whom: which parents there are, who stands below them, and what makes a tree impossible. Pure.

Names only. What was agreed with each is `contracts`, what it gets `allocation`.
"""

from collections import defaultdict
from collections.abc import Mapping

from ops_pipelines.core.proposal import TeamName

Parents = Mapping[TeamName, TeamName | None]
"""Every declared team, and what it belongs to; None: to the cluster itself."""
Children = Mapping[TeamName | None, tuple[TeamName, ...]]
"""Who has teams of its own, and these in the order of their names; under None, the teams of the cluster itself."""


def children_of(parents: Parents) -> Children:
    """Return who stands below whom."""
    children: dict[TeamName | None, list[TeamName]] = defaultdict(list)
    for team in sorted(parents):
        children[parents[team]].append(team)
    return {parent: tuple(below) for parent, below in children.items()}


def from_the_top(children: Children) -> tuple[TeamName, ...]:
    """Return all that belong to the cluster in the end, each after its parent; who stands in a circle does not."""
    ordered = list(children.get(None, ()))
    for team in ordered:
        ordered.extend(children.get(team, ()))
    return tuple(ordered)


def parent_faults(parents: Parents) -> Mapping[TeamName, str]:
    """Return what is wrong with the parent of a team, and what to do; a circle is told once, of its first by name."""
    faults = {
        team: f"{team} belongs to {parent}, which is not declared; declare it as a team, or leave the parent out"
        for team, parent in parents.items()
        if parent is not None and parent not in parents
    }
    for circle in _circles(parents):
        first, *others = circle
        way = f" by way of {', '.join(others)}" if others else ""
        faults[first] = f"{first} belongs to itself{way}; leave the parent of one of them out"
    return faults


def _circles(parents: Parents) -> list[list[TeamName]]:
    """Return each circle, from its first by name on, upwards."""
    circles: list[list[TeamName]] = []
    settled: set[TeamName] = set()
    for team in sorted(parents):
        path: dict[TeamName, int] = {}
        at: TeamName | None = team
        while at is not None and at in parents and at not in settled and at not in path:
            path[at] = len(path)
            at = parents[at]
        if at is not None and at in path:
            ring = list(path)[path[at] :]
            first = ring.index(min(ring))
            circles.append(ring[first:] + ring[:first])
        settled.update(path)
    return circles
