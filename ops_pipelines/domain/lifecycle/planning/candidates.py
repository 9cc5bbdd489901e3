"""Who is part of a rollout, and who is not and why. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Release, Reversibility
from ops_pipelines.core.rollout import Contradiction, SkippedNode
from ops_pipelines.domain.lifecycle.fleet import FleetNode

_IS_THERE = "runs these versions already"
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Who is part of a rollout, and who is not and why."""

    nodes: tuple[FleetNode, ...]
    skipped: tuple[SkippedNode, ...]


def choose_candidates(
    release: Release, fleet: Sequence[FleetNode], contradictions: Sequence[Contradiction]
) -> Candidates:
    """Return the nodes that a release is for, and why the others of its models are left out. Others are not named.

    An NVLink domain of several nodes runs one version: if one of them keeps what it has, the others do too.
    """
    against: defaultdict[NodeName, list[Contradiction]] = defaultdict(list)
    for contradiction in contradictions:
        for name in contradiction.nodes:
            against[name].append(contradiction)
    why = {each.node: _why_skipped(each, release, against.get(each.node, ())) for each in fleet}
    held = _held_domains(fleet, why)
    chosen: list[FleetNode] = []
    skipped: list[SkippedNode] = []
    for each in sorted(fleet, key=lambda node: node.node):
        if each.model not in release.models:
            continue
        reason = why[each.node] or held.get(each.place.nvlink_domain)
        if reason is None:
            chosen.append(each)
        else:
            skipped.append(SkippedNode(node=each.node, reason=reason))
    return Candidates(nodes=tuple(chosen), skipped=tuple(skipped))


def _why_skipped(node: FleetNode, release: Release, against: Sequence[Contradiction]) -> str | None:
    if node.model not in release.models:
        return f"it is a {node.model}" if node.model else "cluster.yaml names no model of it"
    if node.node in release.opted_out:
        return "opted out"
    if all(node.versions.get(change.component) == change.version for change in release.changes):
        return _IS_THERE
    if against:
        return "; ".join(dict.fromkeys(f"{each.rule}: {each.said}" for each in against))
    unknown = [
        change.component.value
        for change in release.changes
        if change.component not in node.versions and change.reversibility is not Reversibility.NO
    ]
    if unknown:
        return f"nobody knows which {', '.join(unknown)} it runs, so that there would be no way back"
    if node.why_not:
        return node.why_not
    if node.is_in_hand:
        return "another rollout has it in hand"
    return None if node.is_in_service else "out of service"


def _held_domains(fleet: Sequence[FleetNode], why: Mapping[NodeName, str | None]) -> Mapping[str, str]:
    """Return the NVLink domains that keep what they have, and for whose sake."""
    domains: defaultdict[str, list[FleetNode]] = defaultdict(list)
    for each in fleet:
        domains[each.place.nvlink_domain].append(each)
    found: dict[str, str] = {}
    for name, nodes in domains.items():
        kept = sorted(each.node for each in nodes if why[each.node] not in (None, _IS_THERE))
        if len(nodes) > 1 and kept:
            more = f" and {len(kept) - _MOST_NAMES} more" if len(kept) > _MOST_NAMES else ""
            names = ", ".join(kept[:_MOST_NAMES])
            found[name] = f"NVLink domain {name} runs one version, and {names}{more} cannot come along: {why[kept[0]]}"
    return found
