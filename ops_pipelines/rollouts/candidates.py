"""Which nodes a rollout takes, in which order, and how many more rollouts may take out now.

The same caps as `guardrails.budgets` judges each drain by, asked before: a node that would be refused takes no place of
another. `planner` plays them forward, `course` picks by them which nodes start.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.policy import Policy, RolloutLimits
from ops_pipelines.core.release import Release, Reversibility
from ops_pipelines.core.rollout import Contradiction, SkippedNode, Wave
from ops_pipelines.remediate.guardrails.budgets import out_limit
from ops_pipelines.rollouts.fleet import FleetNode

LEAST_PER_MODEL = 2
"""Of each model so many nodes stand among the canaries, where it has them and there is room for them: one alone may
fail for its own reasons."""
_LEAST_GROWTH = 0.5
"""# Assumption: a wave that adds less than half as many nodes as there are already is not worth its soak."""
_Group = tuple[FleetNode, ...]
"""Nodes that move together: one, or those of an NVLink domain."""


def draw_waves(nodes: Iterable[FleetNode], *, limits: RolloutLimits, now: datetime) -> tuple[Wave, ...]:
    """Return every node in exactly one wave; NVLink domains of several nodes stay whole.

    The first wave has one node (or one domain), each later canary wave what `canary_counts` says, and the ones after
    it grow. The same nodes give the same waves, in whatever order they come.
    """
    groups = _groups(nodes, now=now)
    canaries, left = _canary_waves(groups, limits.canary_counts)
    edges = [int(each.node_share * sum(map(len, groups)) + 1e-9) for each in limits.bounds]
    waves = [*canaries, *_growing(_spread(left), sum(map(len, canaries)), limits.growth_ratio, edges=edges)]
    return tuple(
        Wave(
            number=number,
            nodes=tuple(each.node for each in wave),
            is_canary=number <= len(canaries),
            is_deciding=number == len(canaries),
        )
        for number, wave in enumerate(waves, start=1)
    )


def _groups(nodes: Iterable[FleetNode], *, now: datetime) -> list[_Group]:
    """Return the nodes in groups that move together, those that are free soonest first."""
    by_domain: dict[str, list[FleetNode]] = defaultdict(list)
    for each in nodes:
        by_domain[each.place.nvlink_domain].append(each)
    groups = [tuple(sorted(group, key=lambda each: each.node)) for group in by_domain.values()]
    return sorted(groups, key=lambda group: (max(_free_rank(each, now=now) for each in group), group[0].node))


def _free_rank(node: FleetNode, *, now: datetime) -> tuple[int, float]:
    if node.is_idle:
        return (0, 0.0)
    return (2, 0.0) if node.free_at is None else (1, max(0.0, (node.free_at - now).total_seconds()))


def _canary_waves(groups: Sequence[_Group], counts: Sequence[int]) -> tuple[list[list[FleetNode]], list[_Group]]:
    """Return the canary waves, and the groups that are left for later.

    A wave may hold more than its count where a single group does, and the last one where a model would else have no
    canary at all.
    """
    seen = _Seen(groups)
    left = list(groups)
    waves: list[list[FleetNode]] = []
    for count in counts:
        wave: list[FleetNode] = []
        while left and len(wave) < count:
            # Beside others only what fits; alone the smallest there is: it may be all that a bad release ever breaks.
            most = count - len(wave) if wave else max(count, min(map(len, left)))
            fitting = [place for place, group in enumerate(left) if len(group) <= most]
            if not fitting:
                break
            wave += seen.take(left.pop(min(fitting, key=lambda place: (*seen.rank(left[place]), place))))
        if wave:
            waves.append(wave)
    while waves and (lacking := [each for each in left if not seen.of_model[each[0].model]]):
        group = min(lacking, key=lambda each: (len(each), seen.rank(each)))
        left.remove(group)
        waves[-1] += seen.take(group)
    return waves, left


class _Seen:
    """Where the canaries stand that were chosen so far."""

    def __init__(self, groups: Iterable[_Group]) -> None:
        nodes = [each for group in groups for each in group]
        self._models = Counter(each.model for each in nodes)
        self._partitions = Counter(name for each in nodes for name in each.partitions)
        self.of_model: Counter[str] = Counter()
        self._of_rack: Counter[str] = Counter()
        self._of_switch: Counter[str] = Counter()
        self._of_partition: Counter[str] = Counter()

    def take(self, group: _Group) -> _Group:
        self.of_model.update(each.model for each in group)
        self._of_rack.update(each.place.rack for each in group)
        self._of_switch.update(each.place.leaf_switch for each in group)
        self._of_partition.update(name for each in group for name in each.partitions)
        return group

    def rank(self, group: _Group) -> tuple[int, float, bool, int, int]:
        """Rank a group, the best first.

        Models with too few canaries come before those with the smallest share of their nodes among them; then anyone
        who leaves each partition a node that is no canary; then new racks, then new switches.
        """
        node = group[0]
        have = self.of_model[node.model]
        is_short = have < min(LEAST_PER_MODEL, self._models[node.model])
        share = float(have) if is_short else have / self._models[node.model]
        takes_last = any(
            self._partitions[name] > 1 and self._of_partition[name] + len(group) >= self._partitions[name]
            for name in node.partitions
        )
        return (
            0 if is_short else 1,
            share,
            takes_last,
            self._of_rack[node.place.rack],
            self._of_switch[node.place.leaf_switch],
        )


def _spread(groups: Iterable[_Group]) -> list[_Group]:
    """Return groups in an order of which every part holds about the same share of each rack and model."""
    alike: dict[tuple[str, str], list[_Group]] = defaultdict(list)
    for group in groups:
        alike[group[0].model, group[0].place.rack].append(group)
    placed = [
        ((number + 0.5) / len(of_rack), number, rack, group)
        for (_, rack), of_rack in alike.items()
        for number, group in enumerate(of_rack)
    ]
    return [group for *_, group in sorted(placed, key=lambda each: (*each[:3], each[3][0].node))]


def _growing(
    groups: Sequence[_Group], done_count: int, ratio: float, *, edges: Sequence[int]
) -> Iterator[list[FleetNode]]:
    """Yield waves of which each is at most `ratio` times as large as everything before it, and has one group.

    A wave also ends at each of `edges`, counted from the first node on, unless it would then be a small one: it adds
    little to what is known, and costs a soak.
    """
    wave: list[FleetNode] = []
    for group in groups:
        after = done_count + len(wave) + len(group)
        is_worth_it = len(wave) >= _LEAST_GROWTH * done_count
        is_at_edge = is_worth_it and any(after - len(group) <= edge < after for edge in edges)
        if wave and (is_at_edge or after - done_count > max(1, int(ratio * done_count))):
            done_count += len(wave)
            yield wave
            wave = []
        wave += group
    if wave:
        yield wave


# -- who is part of a rollout --


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
        return f"nobody knows which {', '.join(unknown)} it runs, so that there would be no rollback"
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


# -- how many more nodes rollouts may take out now, in all and of each part of the cluster --


_Part = tuple[str, str]
_ALL: _Part = ("the cluster", "")


class Places:
    """What is left of the budgets. A count that goes along: `take` a node and `give_back` it."""

    def __init__(
        self,
        fleet: Collection[FleetNode],
        *,
        policy: Policy,
        in_hand: Collection[NodeName] = (),
        waiting: Collection[NodeName] = (),
        left_out: Collection[NodeName] = (),
    ) -> None:
        """Count who is out. `fleet`: every declared node; `in_hand`: further nodes that a rollout has started with.

        `waiting`: in hand, and yet none of the rollouts' share, for an incident has them out. `left_out`: failed, and
        still out for their update: each keeps its place until it works again, for its own rollback, too.
        """
        self._left_out = {each.node for each in fleet if each.node in left_out and not each.is_in_service}
        owned = ({each.node for each in fleet if each.is_in_hand} | set(in_hand)) - set(waiting) | self._left_out
        sizes = Counter(part for node in fleet for part in _parts(node))
        self._policy = policy
        self._shared_domains = frozenset(name for (kind, name), size in sizes.items() if kind == _DOMAIN and size > 1)
        self._left = {part: _most_out(part, size, policy) for part, size in sizes.items()}
        self._left[_ALL] = min(policy.drain_budget.max_out_count, _by_ratio(len(fleet), policy))
        self._ours_left = policy.rollouts.max_out_count - len(owned)
        out = [node for node in fleet if not node.is_in_service or node.node in owned]
        self._out_before = frozenset(node.node for node in out)
        for node in out:
            self._count(node, -1)

    @property
    def left_count(self) -> int:
        """How many more may be taken, wherever they are."""
        return max(0, min(self._ours_left, self._left[_ALL]))

    def has_room(self, node: FleetNode) -> bool:
        """Return whether a node may be taken too; one that is out already needs a place of the rollouts alone."""
        if node.node in self._out_before:
            return self._ours_left > 0 or node.node in self._left_out
        return self.left_count > 0 and all(self._left.get(part, 0) > 0 for part in self._capped(node))

    def why_full(self, node: FleetNode) -> str:
        """Return what has no room for a node, in words; empty where it has."""
        if self.has_room(node):
            return ""
        if self.left_count < 1:
            return "the budget of nodes that may be out"
        return next((" ".join(part) for part in self._capped(node) if self._left.get(part, 0) < 1), "")

    def take(self, node: FleetNode) -> None:
        """Count a node as ours and out."""
        self._ours_left -= node.node not in self._left_out
        if node.node not in self._out_before:
            self._count(node, -1)

    def give_back(self, node: FleetNode) -> None:
        """Count a node that was taken as before."""
        self._ours_left += node.node not in self._left_out
        if node.node not in self._out_before:
            self._count(node, 1)

    def _count(self, node: FleetNode, step: int) -> None:
        """Count a node out (-1) or in (1), in all and in each part."""
        self._left[_ALL] += step
        for part in self._capped(node):
            self._left[part] = self._left.get(part, 0) + step

    def _capped(self, node: FleetNode) -> Iterator[_Part]:
        """Yield the parts that a node counts in and that have a cap."""
        caps = self._policy.blast_caps
        for part in _parts(node):
            kind, name = part
            if kind == _LEAF and caps.max_out_per_leaf_count is None:
                continue
            if kind == _DOMAIN and (caps.max_out_per_nvlink_domain_count is None or name not in self._shared_domains):
                continue
            yield part


def pick(ready: Iterable[FleetNode], places: Places) -> tuple[NodeName, ...]:
    """Return whom of `ready` to begin, first come first served; takes their places."""
    chosen: list[NodeName] = []
    for node in ready:
        if places.has_room(node):
            places.take(node)
            chosen.append(node.node)
    return tuple(chosen)


_RACK, _LEAF, _DOMAIN, _PARTITION = "rack", "leaf switch", "NVLink domain", "partition"


def _parts(node: FleetNode) -> Iterator[_Part]:
    yield (_RACK, node.place.rack)
    yield (_LEAF, node.place.leaf_switch)
    yield (_DOMAIN, node.place.nvlink_domain)
    for partition in sorted(node.partitions):
        yield (_PARTITION, partition)


def _most_out(part: _Part, size: int, policy: Policy) -> int:
    caps = policy.blast_caps
    match part[0]:
        case "rack":
            return policy.drain_budget.max_out_per_rack_count
        case "leaf switch":
            return size if caps.max_out_per_leaf_count is None else caps.max_out_per_leaf_count
        case "NVLink domain":
            return size if caps.max_out_per_nvlink_domain_count is None else caps.max_out_per_nvlink_domain_count
        case _:
            most = out_limit(size, caps.max_out_per_partition_ratio)
            return most if size == 1 else min(most, size - 1)  # Never all of a partition, whatever the share is.


def _by_ratio(node_count: int, policy: Policy) -> int:
    """Return how many of all may be out so that enough are in service."""
    least = policy.drain_budget.min_in_service_ratio
    most = int(node_count - least * node_count + 1e-9)
    return most - 1 if node_count and (node_count - most) / node_count < least else most
