"""Which version each node should run, who says so, and whether it does. Pure.

The newest rollout that updated a node says it first, then what cluster.yaml declares, then nearly all others of its
model. What nobody says is no drift; what a node does not tell is not known to fit.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Component, Release
from ops_pipelines.core.rollout import Direction, NodeStage, Rollout, RolloutNode
from ops_pipelines.domain.lifecycle.versions.comparing import VersionError, compare_versions

LEAST_PEERS = 4
"""# Assumption: of fewer nodes nobody knows what is usual."""
FEW_RATIO = 0.1
"""# Assumption: who stands apart is one alone, or a tenth of its model at most; more are a rollout."""
Spot = tuple[NodeName, Component]


class Fit(Enum):
    FITS = "fits"
    DRIFTS = "drifts"
    UNKNOWN = "unknown"
    """It should run a known version, and does not tell which it runs."""
    FREE = "free"
    """Nobody says what it should run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVersion:
    """One version as it was seen."""

    version: str
    seen_at: datetime
    is_live: bool
    """The node told it just now; else the newest inventory has it, for the node did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    version: str
    said_by: str
    """In words: a rollout, cluster.yaml, or nearly all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLine:
    """One component of one node."""

    node: NodeName
    model: str
    component: Component
    seen: SeenVersion | None
    """None: neither the node nor an inventory tells."""
    wanted: Wanted | None
    fit: Fit


def given_by_rollouts(rollouts: Iterable[tuple[Rollout, Release, Sequence[RolloutNode]]]) -> Mapping[Spot, Wanted]:
    """Return what rollouts gave to nodes, oldest first: the newest one holds. Who went back was given its old ones.

    A node in hand, or one that was left broken, was given nothing yet.
    """
    given: dict[Spot, Wanted] = {}
    for rollout, release, nodes in rollouts:
        for each in nodes:
            is_updated = each.direction is Direction.FORWARD and each.stage in (NodeStage.SOAKING, NodeStage.UPDATED)
            if is_updated:
                said = f"{rollout.rollout} ({release.name})"
                for change in release.changes:
                    given[each.node, change.component] = Wanted(version=change.version, said_by=said)
            elif each.stage is NodeStage.BACK:
                said = f"{rollout.rollout} (went back)"
                for component, version in each.versions_before.items():
                    given[each.node, component] = Wanted(version=version, said_by=said)
    return given


def judge_versions(
    seen: Mapping[Spot, SeenVersion],
    *,
    models: Mapping[NodeName, str],
    given: Mapping[Spot, Wanted],
    declared: Mapping[Spot, Wanted],
) -> tuple[VersionLine, ...]:
    """Return a line for each node of `models` and each component that is seen or wanted anywhere, by node."""
    components = sorted({component for _, component in (*seen, *given)}, key=list(Component).index)
    usual = _usual(seen, models)
    lines = []
    for node in sorted(models):
        for component in components:
            spot = (node, component)
            wanted = given.get(spot) or declared.get(spot) or usual.get((models[node], component))
            found = seen.get(spot)
            lines.append(
                VersionLine(
                    node=node,
                    model=models[node],
                    component=component,
                    seen=found,
                    wanted=wanted,
                    fit=_fit(component, found, wanted),
                )
            )
    return tuple(lines)


def _fit(component: Component, seen: SeenVersion | None, wanted: Wanted | None) -> Fit:
    if wanted is None:
        return Fit.FREE
    if seen is None:
        return Fit.UNKNOWN
    return Fit.FITS if is_same(component, seen.version, wanted.version) else Fit.DRIFTS


def is_same(component: Component, one: str, other: str) -> bool:
    """Return whether two words name the same version; words that cannot be compared are the same if they are equal."""
    try:
        return compare_versions(component, one, other) == 0
    except VersionError:
        return one == other


def _usual(seen: Mapping[Spot, SeenVersion], models: Mapping[NodeName, str]) -> Mapping[tuple[str, Component], Wanted]:
    counts: defaultdict[tuple[str, Component], Counter[str]] = defaultdict(Counter)
    for (node, component), each in seen.items():
        if node in models:
            counts[models[node], component][each.version] += 1
    usual = {}
    for key, count in counts.items():
        (version, most), total = count.most_common(1)[0], count.total()
        if total >= LEAST_PEERS and total - most <= max(1, FEW_RATIO * total):
            usual[key] = Wanted(version=version, said_by=f"{most} of {total} of its model")
    return usual
