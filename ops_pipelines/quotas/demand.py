"""What teams requested and will, what is remembered of it, and how likely a team queues at a quota.

What counts as demand is decided where it is read (`quotas.wanted`). Here it is one number a team and hour.

A project that continued yesterday is in the remembered hours already, and is no news.

Clipping keeps a queue of a thousand GPUs from pulling quota: in an hour a team counts with no more than it would have
got of all GPUs had they been shared out fairly (`allocation`), however much it asked for.

A curve that falls from 1 to 0 in steps; between two steps each further GPU is worth the same: the share of the time in
which it would be used. Moving GPUs from where that is small to where it is large is all that rebalancing does.

That is where the fewest GPUs are expected to be requested in vain: could any move gain, the chances would differ. Where
an organisation is at a bound of its own, the chances are equal within it.
"""

import heapq
import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from itertools import accumulate

from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.quotas.allocation import Sharing
from ops_pipelines.quotas.organisations import NO_LIMITS, Group, Limits
from ops_pipelines.teams.desk import RebalanceSettings
from ops_pipelines.teams.projects import Project

# -- what teams requested, hour by hour --


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandDay:
    """One local day of one type of GPU: mean GPUs requested, for each team and each of its hours in their order."""

    day: date
    hours: Mapping[TeamName, Sequence[float]]
    """As many for each team: 24, or 23 and 25 where the clock is changed."""
    ran_last: Mapping[TeamName, float]
    """What each team ran in the last full hour; who is not named ran nothing."""

    def __post_init__(self) -> None:
        lengths = {len(each) for each in self.hours.values()}
        if len(lengths) > 1:
            raise ValueError(f"{self.day}: teams with {sorted(lengths)} hours; expected as many for each")
        for team, hours in self.hours.items():
            for hour, amount in enumerate(hours):
                if not amount >= 0:
                    raise ValueError(f"{self.day} hour {hour}: {team} requested {amount} GPUs; expected 0 or more")

    @property
    def hour_count(self) -> int:
        return len(next(iter(self.hours.values()), ()))


# -- projects that begin or end on a day --


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What changes on one day, for one type of GPU."""

    expected: Mapping[TeamName, float] = field(default_factory=dict)
    """GPUs of what continues today and did not yesterday, each times how likely it comes about."""
    ended: Mapping[TeamName, float] = field(default_factory=dict)
    """GPUs of what continued yesterday and does not today, counted in the same way."""
    words: Mapping[TeamName, str] = field(default_factory=dict)
    """The projects behind both, for the reason of a quota."""


def launches_on(day: date, projects: Sequence[Project], *, gpu_type: GpuType) -> Launches:
    """Return what begins and what ends on this local day."""
    yesterday = day - timedelta(days=1)
    expected: dict[TeamName, float] = defaultdict(float)
    ended: dict[TeamName, float] = defaultdict(float)
    words: dict[TeamName, list[str]] = defaultdict(list)
    for each in sorted(projects, key=lambda project: (project.team, project.name)):
        if each.gpu_type != gpu_type or each.is_on(day) == each.is_on(yesterday):
            continue
        if each.is_on(day):
            expected[each.team] += each.expected_gpus(day)
            likely = "" if each.probability == 1 else f", {each.probability:.0%} likely"
            words[each.team].append(f"project {each.name} begins ({each.gpus:g} GPUs{likely})")
        else:
            ended[each.team] += each.expected_gpus(yesterday)
            words[each.team].append(f"project {each.name} ended ({each.gpus:g} GPUs)")
    return Launches(
        expected=dict(expected), ended=dict(ended), words={team: "; ".join(said) for team, said in words.items()}
    )


# -- how likely a team queues at a quota --


_NOTHING = 1e-9
"""An interval of no more is none: a quota that lies on an amount but for its last bits."""


DemandInterval = tuple[float, float]
"""The share of the time in which each of some GPUs is requested, and how many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChance:
    """What is remembered of one team."""

    amounts: tuple[float, ...] = ()
    """GPUs that were requested, rising, none twice."""
    less: tuple[float, ...] = ()
    """For each amount: the share of the time in which less was requested; rises from 0."""
    lean: float = 1.0
    """Its chances are times this where they are compared; more than 0, at most 1."""

    def at(self, quota: float) -> float:
        """Return the share of the time in which more than `quota` was requested."""
        return self._wanted(bisect_right(self.amounts, quota))

    def quota_for(self, ratio: float) -> float:
        """Return the smallest quota at which more is requested in no more than `ratio` of the time."""
        place = bisect_left(self.less, 1.0 - ratio / self.lean)
        return self.amounts[place - 1] if place else 0.0

    def rising(self, quota: float, *, most: float) -> Iterator[DemandInterval]:
        """Yield the intervals from `quota` up to `most`, the likeliest requested first; the last is never requested."""
        at = quota
        for place in range(bisect_right(self.amounts, quota), len(self.amounts) + 1):
            if at >= most:
                return
            ends = min(self.amounts[place], most) if place < len(self.amounts) else most
            if ends - at > _NOTHING:
                yield self._wanted(place), ends - at
            at = ends

    def falling(self, quota: float, *, least: float) -> Iterator[DemandInterval]:
        """Yield the intervals from `quota` down to `least`, the least requested first."""
        at = quota
        for place in range(bisect_left(self.amounts, quota), -1, -1):
            if at <= least:
                return
            begins = max(self.amounts[place - 1] if place else 0.0, least)
            if at - begins > _NOTHING:
                yield self._wanted(place), at - begins
            at = begins

    def unserved(self, quota: float) -> float:
        """Return the GPUs that were requested beyond `quota`, on average."""
        missing, at = 0.0, quota
        for place in range(bisect_right(self.amounts, quota), len(self.amounts)):
            missing += (self.amounts[place] - at) * self._wanted(place)
            at = self.amounts[place]
        return missing

    def leaned(self, factor: float) -> "QueueChance":
        """Return the curve with each chance times `factor`, which is more than 0 and at most 1."""
        return replace(self, lean=self.lean * factor)

    def _wanted(self, place: int) -> float:
        return (1.0 - self.less[place]) * self.lean if place < len(self.less) else 0.0


def queue_chance(amounts: Sequence[float], *, weights: Sequence[float]) -> QueueChance:
    """Return the curve of amounts with a weight each; none remembered is never requested."""
    if len(amounts) != len(weights):
        raise ValueError(f"{len(amounts)} amounts and {len(weights)} weights; expected one weight for each amount")
    # A year of days sorts each team's hours each morning: places by a list of floats is what sorts fastest.
    order = sorted(range(len(amounts)), key=amounts.__getitem__)
    ordered = [amounts[place] for place in order]
    sums = [0.0, *accumulate([weights[place] for place in order])]
    together = sums.pop()
    if len(set(ordered)) < len(ordered):
        firsts = [place for place, amount in enumerate(ordered) if not place or amount > ordered[place - 1]]
        ordered, sums = [ordered[place] for place in firsts], [sums[place] for place in firsts]
    return QueueChance(amounts=tuple(ordered), less=tuple([each / together for each in sums] if ordered else ()))


# -- what is remembered of demand --


_NEGLIGIBLE = 1e-4
"""An hour that weighs less than this is left out: it could move no GPU."""


def fair_demand(day: DemandDay, *, terms: Sequence[Terms], supply: float) -> DemandDay:
    """Return the day with each team's hours clipped to its fair share of `supply` in that hour."""
    sharing = Sharing(terms)
    teams = [each.team for each in terms if each.team in day.hours]
    hours = zip(*(day.hours[team] for team in teams), strict=True)
    shares = [sharing.totals(dict(zip(teams, asked, strict=True)), supply=supply) for asked in hours]
    fair = {team: [share[team] for share in shares] for team in teams}
    return DemandDay(day=day.day, hours=fair, ran_last=day.ran_last)


def remember(
    days: Sequence[DemandDay],
    *,
    teams: Sequence[TeamName],
    settings: RebalanceSettings,
    launches: Launches | None = None,
) -> Mapping[TeamName, QueueChance]:
    """Return for each team how likely it wants more than a number of GPUs; of `days` the newest is the last.

    `launches`: what a team's projects will want beyond the past is added to every hour, what they requested and end is
    taken off.
    """
    newest_first = list(reversed(days[-settings.window_days :]))
    weights = _weights(sum(day.hour_count for day in newest_first), settings.half_life_hours)
    amounts = {team: _newest_first(newest_first, team, most=len(weights)) for team in teams}
    launches = launches or Launches()
    for team in launches.expected.keys() | launches.ended.keys():
        ended, expected = launches.ended.get(team, 0.0), launches.expected.get(team, 0.0)
        if team in amounts:
            amounts[team] = [max(0.0, amount - ended) + expected for amount in amounts[team]]
    return {team: _spread(amounts[team], weights, ratio=settings.spread_ratio) for team in teams}


def _weights(hour_count: int, half_life_hours: float) -> list[float]:
    """Return what each hour weighs, the newest first; negligible ones are left out."""
    found = []
    for age in range(hour_count):
        weight = 0.5 ** (age / half_life_hours)
        if weight < _NEGLIGIBLE:
            break
        found.append(weight)
    return found


def _newest_first(days: Sequence[DemandDay], team: TeamName, *, most: int) -> list[float]:
    """Return what a team requested in each hour, the newest first; nothing on days of which it has none."""
    found: list[float] = []
    for day in days:
        if len(found) >= most:
            break
        found += reversed(day.hours[team]) if team in day.hours else [0.0] * day.hour_count
    return found[:most]


def _spread(amounts: Sequence[float], weights: Sequence[float], *, ratio: float) -> QueueChance:
    if not ratio:
        return queue_chance(amounts, weights=weights)
    # Sorted once: three runs that rise are merged, which is quicker than sorting thrice as many.
    order = sorted(range(len(amounts)), key=amounts.__getitem__)
    rising, beside = [amounts[place] for place in order], [weights[place] for place in order]
    spread = [amount * factor for factor in (1.0 - ratio, 1.0, 1.0 + ratio) for amount in rising]
    return queue_chance(spread, weights=beside * 3)


# -- GPUs that could be given or taken next, in order of how often they are requested --


_Next = tuple[float, int, float]
"""How early an interval comes, whose it is, and how long it is."""


class _InOrder(ABC):
    """One group after the other: the GPUs of several teams that are requested in the same share of the time."""

    def __init__(self, chances: Sequence[QueueChance], quotas: Sequence[float], limits: Sequence[float]) -> None:
        """Begin at `quotas`, never beyond `limits`; all have an entry a team."""
        teams = enumerate(zip(chances, quotas, limits, strict=True))
        # Each team's intervals come in their order; merged, they are looked at no further than GPUs move.
        self._waiting = heapq.merge(*(self._stretches(place, *each) for place, each in teams))
        self._first = next(self._waiting, None)
        """Of the group after this one."""
        self._moved: defaultdict[int, float] = defaultdict(float)
        """Of the groups before this one, by the team's place."""
        self._group: defaultdict[int, float] = defaultdict(float)
        """The lengths of this one's intervals."""
        self.wanted_ratio = 0.0
        self.left = 0.0
        """GPUs that are left of the group; 0 when nothing can be moved any more."""
        self._next_group()

    def move(self, amount: float) -> None:
        """Move so many of the group's GPUs, of each team in proportion: nobody goes first for his name."""
        self.left -= amount
        if self.left <= _NOTHING:
            self.left = 0.0
            self._next_group()

    def changes(self) -> dict[int, float]:
        """Return what was moved so far, by the team's place."""
        whole = math.fsum(self._group.values())
        share = (whole - self.left) / whole if whole else 0.0
        return {
            place: self._moved.get(place, 0.0) + share * self._group.get(place, 0.0)
            for place in self._moved.keys() | self._group.keys()
        }

    def _next_group(self) -> None:
        for place, length in self._group.items():
            self._moved[place] += length
        self._group.clear()
        following = self._first
        if following is None:
            return
        order = following[0]
        while following is not None and following[0] == order:
            self._group[following[1]] += following[2]
            following = next(self._waiting, None)
        self._first = following
        self.wanted_ratio = abs(order)
        self.left = math.fsum(self._group.values())

    @abstractmethod
    def _stretches(self, place: int, chance: QueueChance, quota: float, limit: float) -> Iterator[_Next]:
        """Yield a team's intervals, the earliest first."""


class Rising(_InOrder):
    """What could be given, the likeliest requested first."""

    def _stretches(self, place: int, chance: QueueChance, quota: float, limit: float) -> Iterator[_Next]:
        return ((-ratio, place, length) for ratio, length in chance.rising(quota, most=limit))


class Falling(_InOrder):
    """What could be taken, the least requested first."""

    def _stretches(self, place: int, chance: QueueChance, quota: float, limit: float) -> Iterator[_Next]:
        return ((ratio, place, length) for ratio, length in chance.falling(quota, least=limit))


# -- quotas at which all teams are equally likely to queue, within what each must and may have --


_HALVINGS = 53
"""As many as a share of the time has binary digits: what lies between two levels then is one level."""

AtLevel = Callable[[float, Sequence[int]], list[float]]
"""What the teams at these places have at a level; none has more the higher the level is."""


def even_out(
    chances: Sequence[QueueChance],
    *,
    lows: Sequence[float],
    highs: Sequence[float],
    total: float,
    within: Group | None = None,
    limits: Limits = NO_LIMITS,
) -> list[float]:
    """Return quotas between `lows` and `highs` that add up to `total`, or to what is requested if that is less.

    Where several teams want a GPU equally often, each gets of it in proportion. `lows` that add up to more than `total`
    are returned as they are. `within`: the organisations whose sums stay within `limits`; who is not below it keeps
    his low.
    """

    def at(level: float, places: Sequence[int]) -> list[float]:
        return [max(lows[place], min(highs[place], chances[place].quota_for(level))) for place in places]

    everybody = tuple(range(len(chances)))
    group = within or Group(terms=None, own=everybody, inner=(), below=everybody)
    found = level_out(group, at, total=total, limits=limits)
    return [found.get(place, low) for place, low in enumerate(lows)]


def level_out(
    group: Group, at: AtLevel, *, total: float, limits: Limits = NO_LIMITS, lowest: float = 0.0
) -> dict[int, float]:
    """Return what each team of a group has when all stand at one level, and have `total` together.

    Teams that lie between two levels get of it in proportion. If all have less than `total` at the lowest level, that
    is what they have. A limit of an organisation below is met by a level of its own.
    """
    own_count = len(group.own)

    def parts(level: float, wanted: Sequence[int]) -> list[float]:
        """Return what the parts have at a level: the teams first, then the organisations."""
        own = at(level, [group.own[number] for number in wanted if number < own_count])
        inner = (group.inner[number - own_count] for number in wanted if number >= own_count)
        return [*own, *(_bounded(each, at, level, limits) for each in inner)]

    everyone = range(own_count + len(group.inner))
    more = parts(lowest, everyone)
    found = more
    if math.fsum(more) > total:
        found = _between(parts, more, parts(1.0, everyone), total=total, lowest=lowest)
    quotas = dict(zip(group.own, found[:own_count], strict=True))
    for inner, share in zip(group.inner, found[own_count:], strict=True):
        quotas.update(level_out(inner, at, total=share, limits=limits, lowest=lowest))
    return quotas


def _between(parts: AtLevel, more: list[float], fewer: list[float], *, total: float, lowest: float) -> list[float]:
    """Return what the parts have where they have `total` together; `more` is at the lowest level, `fewer` at 1."""
    low, high = lowest, 1.0
    moving = [number for number, (many, few) in enumerate(zip(more, fewer, strict=True)) if many != few]
    settled = math.fsum(few for many, few in zip(more, fewer, strict=True) if many == few)
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        found = parts(level, moving)
        if settled + math.fsum(found) > total:
            low = level
            for number, amount in zip(moving, found, strict=True):
                more[number] = amount
        else:
            high = level
            for number, amount in zip(moving, found, strict=True):
                fewer[number] = amount
        # Between two levels at which a team has the same, it has the same.
        still = [number for number in moving if more[number] != fewer[number]]
        if len(still) < len(moving):
            settled = math.fsum([settled, *(fewer[number] for number in moving if more[number] == fewer[number])])
            moving = still
        if not moving:
            break
    missing, between = total - math.fsum(fewer), math.fsum(more) - math.fsum(fewer)
    share = min(1.0, max(0.0, missing / between)) if between > 0 else 0.0
    return [few + share * (many - few) for few, many in zip(fewer, more, strict=True)]


def _bounded(group: Group, at: AtLevel, level: float, limits: Limits) -> float:
    own = at(level, group.own)
    inner = (_bounded(each, at, level, limits) for each in group.inner)
    return limits.bound(group, math.fsum([*own, *inner]))
