"""Which version of what every declared node runs, and what it should run: read from the nodes, now.

A node that does not answer is told from the newest inventory of the lake, and marked. Reads, changes nothing.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.lake import Lake, LakeError, Rows
from ops_pipelines.core.release import Component
from ops_pipelines.domain.lifecycle.versions.drift import (
    Fit,
    SeenVersion,
    Spot,
    VersionLine,
    Wanted,
    given_by_rollouts,
    judge_versions,
)
from ops_pipelines.flow.lifecycle.fleet_view import read_versions

_LOOK_BACK = timedelta(hours=24)
_REMEMBERED = timedelta(days=400)
"""# Assumption: what was rolled out longer ago has been rolled out anew since, or is declared."""
_DRIVER_KEY = "driver"
"""Under which `release` of cluster.yaml has the driver; firmware stands there under the model of the part."""
_CLUSTER_FILE = "release in cluster.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsSeen:
    """Every component of every declared node, at one time."""

    taken_at: datetime
    lines: tuple[VersionLine, ...]
    """By node, and by component in the order of `Component`."""
    silent: tuple[NodeName, ...]
    """Nodes that did not answer."""
    problems: tuple[str, ...]

    @property
    def drifts(self) -> tuple[VersionLine, ...]:
        return tuple(each for each in self.lines if each.fit is Fit.DRIFTS)

    def counts(self) -> Mapping[tuple[Component, str, str], int]:
        """Return how many nodes of each model run each version, the most first; unknown ones are left out."""
        found = Counter((each.component, each.model, each.seen.version) for each in self.lines if each.seen is not None)
        return dict(found.most_common())


def look_at_versions(cluster: Cluster, *, lake: Lake | None, release: Mapping[str, str]) -> VersionsSeen:
    """Return what runs and what should. `release`: as cluster.yaml declares it. Raises LedgerError.

    Asks every node, many at once; `lake` None: nothing is known of those that do not answer.
    """
    now = cluster.clock.now()
    places = cluster.rules.topology.places
    live = read_versions(tuple(places), cluster)
    problems: tuple[str, ...] = ()
    inventory: Rows | None = None
    try:
        inventory = None if lake is None else _newest_inventory(lake, now=now)
    except LakeError as problem:
        problems = (f"the inventory cannot be read: {problem}",)
    seen: dict[Spot, SeenVersion] = {}
    part_models: Mapping[Spot, frozenset[str]] = {}
    if inventory is not None:
        from ops_pipelines.frames.history.version_rows import inventory_versions

        told = inventory_versions(inventory)
        part_models = told.models
        seen |= {spot: each for spot, each in told.seen.items() if spot[0] in places and spot[0] not in live}
    for node, versions in live.items():
        for component, version in versions.items():
            seen[node, component] = SeenVersion(version=version, seen_at=now, is_live=True)
    ledger = cluster.ledger
    rollouts = [
        (each, ledger.release(each.release_digest), ledger.rollout_nodes(each.rollout))
        for each in ledger.rollouts(final_since=now - _REMEMBERED)
    ]
    return VersionsSeen(
        taken_at=now,
        lines=judge_versions(
            seen,
            models={node: place.model for node, place in places.items()},
            given=given_by_rollouts(rollouts),
            declared=_declared(tuple(places), release, part_models),
        ),
        silent=tuple(sorted(places.keys() - live.keys())),
        problems=problems,
    )


def _newest_inventory(lake: Lake, *, now: datetime) -> Rows | None:
    """Return the rows of the newest hour of the last day that has any."""
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    for _ in range(_LOOK_BACK // timedelta(hours=1)):
        rows = lake.read_hour("inventory", hour)
        if rows.num_rows:
            return rows
        hour -= timedelta(hours=1)
    return None


def _declared(
    nodes: tuple[NodeName, ...], release: Mapping[str, str], part_models: Mapping[Spot, frozenset[str]]
) -> Mapping[Spot, Wanted]:
    """Return what cluster.yaml says: the driver of all, firmware of those whose parts are of one declared model."""
    found: dict[Spot, Wanted] = {}
    if _DRIVER_KEY in release:
        wanted = Wanted(version=release[_DRIVER_KEY], said_by=_CLUSTER_FILE)
        found = {(node, Component.DRIVER): wanted for node in nodes}
    for spot, models in part_models.items():
        versions = {release[model] for model in models if model in release}
        if len(versions) == 1 and models <= release.keys():
            found[spot] = Wanted(version=versions.pop(), said_by=_CLUSTER_FILE)
    return found
