"""Which nodes of a release come when: canaries spread over models, racks and switches, then growing waves. Pure.

Order only. When each is foreseen is `foresight`'s; who in fact begins first within its wave is `course`'s.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.rollout import Wave
from ops_pipelines.rollouts.fleet import FleetNode

LEAST_PER_MODEL = 2
"""Of each model so many nodes stand among the canaries, where it has them and there is room for them: one alone may
fail for its own reasons."""
_Group = tuple[FleetNode, ...]
"""Nodes that move together: one, or those of an NVLink domain."""


def draw_waves(nodes: Iterable[FleetNode], *, limits: RolloutLimits, now: datetime) -> tuple[Wave, ...]:
    """Return every node in exactly one wave; NVLink domains of several nodes stay whole.

    The first wave has one node (or one domain), each later canary wave what `canary_counts` says, and the ones after
    it grow. The same nodes give the same waves, in whatever order they come.
    """
    groups = _groups(nodes, now=now)
    canaries, left = _canary_waves(groups, limits.canary_counts)
    waves = [*canaries, *_growing(_spread(left), sum(map(len, canaries)), limits.growth_ratio)]
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

        Models with too few canaries come before those with the smallest share of their nodes among them; then whoever
        leaves each partition a node that is no canary; then new racks, then new switches.
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


def _growing(groups: Sequence[_Group], done_count: int, ratio: float) -> Iterator[list[FleetNode]]:
    """Yield waves of which each is at most `ratio` times as large as everything before it, and has one group."""
    wave: list[FleetNode] = []
    for group in groups:
        if wave and len(wave) + len(group) > max(1, int(ratio * done_count)):
            done_count += len(wave)
            yield wave
            wave = []
        wave += group
    if wave:
        yield wave
