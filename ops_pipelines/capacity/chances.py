"""How much of a type of GPU will be usable, and how likely a week is short of it.

Usable = (installed + arrived - retired) x (1 - share out - share stranded) - rollouts. Both shares are of what was
installed, drawn together from the days that were measured. An arrival counts from the first whole week in which it is
in service, a retirement from the week in which it falls: rounded to the safe side.

Up to `EXACT_POINTS` different sums are exact. Beyond, amounts are laid on a lattice of as many steps: each is split
between its two neighbours so that its mean stays, which can only widen the sum. At most `KEPT_POINTS` are returned; of
those that share a cell all weight moves to the highest. Neither makes demand too small; the mean rises by less than
one cell, a sixtieth of the range.

A peak is its quantiles at `LEVELS`: evenly spread between two of them, at both ends a lump of what lies beyond.
GPU-hours follow a profile of the week: hours near a peak count as at the peak, the others with `rest_ratio`, or not at
all where it is not known: then hours short are too low where a shortage is deep.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise

from ops_pipelines.capacity.model import LEVELS, ShortWeek, SupplyPoint, SupplyWeek, WeekPeak
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.projects import Arrival, Retirement

# -- sums of independent yes-or-no amounts as points --


EXACT_POINTS = 512
KEPT_POINTS = 64
_LOWER_TAIL = 1e-4
_UPPER_TAIL = 1e-6

Point = tuple[float, float]
"""An amount and its probability."""


def sum_of_chances(chances: Iterable[Point]) -> tuple[Point, ...]:
    """Return the sum of amounts, each with its probability or else 0, as rising points; the order does not matter.

    Amounts below 0 are allowed: what is taken off.
    """
    known = sorted((amount, chance) for amount, chance in chances if amount != 0 and chance > 0)
    certain = math.fsum(amount for amount, chance in known if chance >= 1)
    open_ones = [(amount, chance) for amount, chance in known if chance < 1]
    exact = _exact(open_ones)
    points = sorted(exact.items()) if exact is not None else _on_a_lattice(open_ones)
    return tuple((amount + certain, weight) for amount, weight in make_fewer(points))


def make_fewer(points: Sequence[Point], *, most: int = KEPT_POINTS) -> tuple[Point, ...]:
    """Return at most so many (4 or more) of the rising points; weight only moves up, and never beyond the highest.

    The tails are one cell each, so that what hardly ever happens makes no cell in between wide.
    """
    if most < 4:
        raise ValueError(f"{most} points were asked for; expected 4 or more")
    if len(points) <= most:
        return tuple(points)
    bottom = _first_beyond(points, _LOWER_TAIL)
    top = len(points) - 1 - _first_beyond(points[::-1], _UPPER_TAIL)
    low, high = points[bottom][0], points[max(top, bottom)][0]
    inner = most - 2
    step = (high - low) / inner
    # Edges are reported once, so that a point never falls on both sides of one by rounding.
    edges = [low, *(low + step * number for number in range(1, inner)), high]
    cells: dict[int, list[Point]] = {}
    for amount, weight in points:
        cells.setdefault(bisect_left(edges, amount), []).append((amount, weight))
    return tuple((cell[-1][0], math.fsum(weight for _, weight in cell)) for cell in cells.values())


def _first_beyond(points: Sequence[Point], tail: float) -> int:
    gone = 0.0
    for place, (_, weight) in enumerate(points):
        gone += weight
        if gone > tail:
            return place
    return len(points) - 1


def _exact(chances: Sequence[Point]) -> dict[float, float] | None:
    """Return each possible sum and its probability; None where they are too many."""
    sums = {0.0: 1.0}
    for amount, chance in chances:
        more: dict[float, float] = {total: weight * (1 - chance) for total, weight in sums.items()}
        for total, weight in sums.items():
            more[total + amount] = more.get(total + amount, 0.0) + weight * chance
        if len(more) > EXACT_POINTS:
            return None
        sums = more
    return sums


def _on_a_lattice(chances: Sequence[Point]) -> list[Point]:
    # What is taken off counts from the other end: all of it is gone, and with 1 - chance it is there after all.
    lowest = math.fsum(amount for amount, _ in chances if amount < 0)
    risen = sorted((abs(amount), chance if amount > 0 else 1 - chance) for amount, chance in chances)
    step = math.fsum(amount for amount, _ in risen) / EXACT_POINTS
    weights = [1.0]
    for amount, chance in risen:
        whole = int(amount / step)
        part = min(1.0, max(0.0, amount / step - whole))
        stays, lower, upper = 1 - chance, chance * (1 - part), chance * part
        pad = [0.0] * (whole + 1)
        weights = [
            stays * here + lower * below + upper * further
            for here, below, further in zip(weights + pad, pad[1:] + weights + [0.0], pad + weights, strict=True)
        ]
        while len(weights) > 1 and weights[-1] == 0:
            weights.pop()
    return [(lowest + step * number, weight) for number, weight in enumerate(weights) if weight > 0]


# -- what of a week's peak lies above a line --


class Tail:
    """One week's peak, made ready for being asked many times."""

    __slots__ = ("_beyond", "_knots")

    def __init__(self, peak: WeekPeak) -> None:
        knots = peak.quantiles
        if len(knots) != len(LEVELS) or not all(-math.inf < low <= high < math.inf for low, high in pairwise(knots)):
            raise ValueError(
                f"the peak of the week of {peak.first_day} has {len(knots)} quantiles, or some that fall or "
                f"are no numbers; expected {len(LEVELS)} that never fall"
            )
        self._knots = knots
        beyond = [0.0] * len(knots)
        for place in range(len(knots) - 2, -1, -1):
            width = knots[place + 1] - knots[place]
            chance = 1 - (LEVELS[place] + LEVELS[place + 1]) / 2
            beyond[place] = beyond[place + 1] + width * chance
        self._beyond = beyond

    def share_at_most(self, line: float) -> float:
        """Return the probability that the peak is not above the line."""
        place = bisect_right(self._knots, line)
        if place == 0:
            return 0.0
        if place == len(self._knots):
            return 1.0
        return self._between(place, line)

    def share_of_sum_at_most(self, added: Sequence[tuple[float, float]]) -> Callable[[float], float]:
        """Return `share_at_most` of the peak and an independent amount, given as amounts and their probabilities."""
        knots = self._knots
        # Within each interval the share is a straight line: reported once, because it is asked for very often.
        starts = [(0.0, knots[0], 0.0)]
        for (low, high), (below, above) in zip(pairwise(knots), pairwise(LEVELS), strict=True):
            starts.append((below, low, (above - below) / (high - low) if high > low else 0.0))
        starts.append((1.0, knots[-1], 0.0))

        def share(line: float) -> float:
            total = 0.0
            for amount, weight in added:
                rest = line - amount
                level, knot, rise = starts[bisect_right(knots, rest)]
                total += weight * (level + (rest - knot) * rise)
            return total

        return share

    @property
    def mean(self) -> float:
        """The mean peak."""
        return self._knots[0] + self._beyond[0]

    def chance_above(self, line: float) -> float:
        return 1 - self.share_at_most(line)

    def mean_above(self, line: float) -> float:
        """Return by how much the peak is above the line in the mean, 0 where it is not."""
        knots = self._knots
        place = bisect_right(knots, line)
        if place == len(knots):
            return 0.0
        if place == 0:
            return knots[0] - line + self._beyond[0]
        # From the line to the next knot the probability of being above falls in a straight line.
        chance = 1 - (self._between(place, line) + LEVELS[place]) / 2
        return self._beyond[place] + (knots[place] - line) * chance

    def _between(self, place: int, line: float) -> float:
        low, high = self._knots[place - 1], self._knots[place]
        return LEVELS[place - 1] + (LEVELS[place] - LEVELS[place - 1]) * ((line - low) / (high - low))


def chance_short(tail: Tail, points: Sequence[SupplyPoint], *, demand_ratio: float = 1.0) -> float:
    """Return the probability that so much of the peak exceeds what is usable; both are taken as independent."""
    if demand_ratio <= 0:
        return 0.0
    found = sum(each.probability * tail.chance_above(each.gpus / demand_ratio) for each in points)
    return min(1.0, max(0.0, found))


def mean_short(tail: Tail, points: Sequence[SupplyPoint], *, demand_ratio: float = 1.0) -> float:
    """Return by how much so much of the peak exceeds what is usable, in the mean."""
    if demand_ratio <= 0:
        return 0.0
    return demand_ratio * sum(each.probability * tail.mean_above(each.gpus / demand_ratio) for each in points)


# -- how likely and by how much the peak of a week exceeds what is usable --


_DAYS = 7
_HOURS = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DayProfile:
    """How demand runs within a week, over its peak."""

    near_peak_hours: float
    """Of a day: hours within 10 % of the day's peak."""
    day_ratios: tuple[float, ...] = (1.0,) * _DAYS
    """Each day's peak over the week's; the highest is 1."""
    rest_ratio: float | None = None
    """Demand of the day's other hours over its peak; None: not known, they are counted neither short nor idle."""

    def __post_init__(self) -> None:
        if not 0 < self.near_peak_hours <= _HOURS:
            raise ValueError(f"{self.near_peak_hours:g} hours near the peak of a day; expected more than 0, at most 24")
        if len(self.day_ratios) != _DAYS or max(self.day_ratios) != 1 or min(self.day_ratios) < 0:
            raise ValueError(f"ratios of days are {self.day_ratios}; expected seven of 0 to 1, the highest 1")
        if self.rest_ratio is not None and not 0 <= self.rest_ratio <= 1:
            raise ValueError(f"other hours want {self.rest_ratio:g} of the peak; expected 0 to 1, or nothing")

    @property
    def parts(self) -> tuple[tuple[float, float], ...]:
        """Return hours of the week and their demand over the week's peak; equal ones together, rising."""
        hours: dict[float, float] = {}
        for ratio in self.day_ratios:
            hours[ratio] = hours.get(ratio, 0.0) + self.near_peak_hours
            if self.rest_ratio is not None and self.near_peak_hours < _HOURS:
                rest = ratio * self.rest_ratio
                hours[rest] = hours.get(rest, 0.0) + _HOURS - self.near_peak_hours
        return tuple((hours[ratio], ratio) for ratio in sorted(hours))

    @property
    def counted_hours(self) -> float:
        """Return how many hours of a week are counted at all."""
        return math.fsum(hours for hours, _ in self.parts)


def short_hours(tail: Tail, points: Sequence[SupplyPoint], profile: DayProfile, *, demand_ratio: float = 1.0) -> float:
    """Return the GPU-hours of one week that are requested and not there, in the mean."""
    return math.fsum(
        hours * mean_short(tail, points, demand_ratio=ratio * demand_ratio) for hours, ratio in profile.parts
    )


def judge_week(peak: WeekPeak, supply: SupplyWeek, profile: DayProfile) -> ShortWeek:
    """Return how short the week is. Raises ValueError if the two are not of the same week."""
    if peak.first_day != supply.first_day:
        raise ValueError(
            f"demand of the week of {peak.first_day} and supply of the week of {supply.first_day}; expected one week"
        )
    tail = Tail(peak)
    return ShortWeek(
        gpu_type=supply.gpu_type,
        first_day=peak.first_day,
        shortage_probability=chance_short(tail, supply.points),
        expected_short_gpus=mean_short(tail, supply.points),
        expected_short_gpu_hours=short_hours(tail, supply.points, profile),
    )


def first_short(is_short: Sequence[bool], *, least_short_weeks: int) -> int | None:
    """Return the first short week of which, with the three after it, so many are short; None: there is none.

    Near the end of the horizon fewer weeks are known: then all that are known must be, at most so many.
    """
    for place, short in enumerate(is_short):
        ahead = is_short[place : place + 4]
        if short and sum(ahead) >= min(least_short_weeks, len(ahead)):
            return place
    return None


ENOUGH_DAYS = 14
SHARE_POINTS = 21
ASSUMED_OUT_RATIO = 0.05
"""Of what is installed, out of service, where nobody measured it."""
ASSUMED_STRANDED_RATIO = 0.02
_ARRIVAL_POINTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyInputs:
    """What is known of a cluster's GPUs, by type. A type that neither is installed nor arrives has no supply."""

    installed: Mapping[GpuType, float]
    """On the first day."""
    arrivals: Sequence[Arrival] = ()
    retirements: Sequence[Retirement] = ()
    out_ratios: Mapping[GpuType, Sequence[float]]
    """Of each day, oldest first: GPUs that were out of service, over what was installed."""
    stranded_ratios: Mapping[GpuType, Sequence[float]]
    """Of each day, oldest first: free GPUs that no job could have, over what was installed."""
    rollout_gpus: Mapping[GpuType, Sequence[float]]
    """Taken out by planned rollouts, by week from the first; weeks that are not named have none."""


def supply_weeks(
    inputs: SupplyInputs, *, first_day: date, weeks: int
) -> tuple[tuple[SupplyWeek, ...], tuple[str, ...]]:
    """Return what will be usable, by type and then by week, and notes on what is assumed."""
    for gpu_type, gpus in sorted(inputs.installed.items()):
        if not 0 <= gpus < math.inf:
            raise ValueError(f"{gpu_type}: {gpus:g} GPUs are installed; expected 0 or more")
    notes: list[str] = []
    found: list[SupplyWeek] = []
    coming: dict[GpuType, list[Arrival]] = {}
    going: dict[GpuType, list[Retirement]] = {}
    for arrival in sorted(inputs.arrivals, key=lambda each: (each.on, each.gpu_type, each.sku, each.gpus)):
        if arrival.on < first_day:
            notes.append(
                f"{arrival.gpus} GPUs of {arrival.sku} were due on {arrival.on}, before the forecast: taken to be "
                "among those installed; if they are late, state the new day"
            )
        else:
            coming.setdefault(arrival.gpu_type, []).append(arrival)
    for retirement in sorted(inputs.retirements, key=lambda each: (each.on, each.gpu_type, each.nodes)):
        if retirement.on < first_day:
            notes.append(
                f"{', '.join(retirement.nodes)} were to retire on {retirement.on}, before the forecast: taken to be "
                "gone from those installed; if they still serve, state the new day"
            )
        else:
            going.setdefault(retirement.gpu_type, []).append(retirement)
    for gpu_type in sorted({*inputs.installed, *coming}):
        now = inputs.installed.get(gpu_type, 0.0)
        shares = _shares(gpu_type, inputs, notes)
        rollouts = inputs.rollout_gpus.get(gpu_type, ())
        if any(each > 0 for each in rollouts):
            notes.append(
                f"{gpu_type}: planned rollouts come on top of maintenance as measured, which has past ones in it"
            )
        gone = sum(each.gpus for each in going.get(gpu_type, ()))
        if gone > now + sum(each.gpus for each in coming.get(gpu_type, ())):
            notes.append(f"{gpu_type}: {gone} GPUs retire and {now:g} are installed; no less than 0 is counted")
        for number in range(weeks):
            day = first_day + timedelta(days=7 * number)
            taken = rollouts[number] if number < len(rollouts) else 0.0
            found.append(_week(gpu_type, day, now, coming, going, shares=shares, rollout_gpus=taken))
    for gpu_type in sorted(going.keys() - {*inputs.installed, *coming}):
        notes.append(f"nodes of {gpu_type} retire, and none of that type are installed: they change nothing")
    return tuple(found), tuple(notes)


def usable_ratio(week: SupplyWeek) -> float:
    """Return which share of what is installed is usable in the mean; where nothing is installed, what is assumed."""
    if week.installed <= 0:
        return 1 - ASSUMED_OUT_RATIO - ASSUMED_STRANDED_RATIO
    return min(1.0, max(0.0, week.mean_gpus / week.installed))


def points_with_more(week: SupplyWeek, gpus: float) -> tuple[SupplyPoint, ...]:
    """Return what is usable with so many more GPUs, of which the same share is out as of the others in the mean."""
    more = gpus * usable_ratio(week)
    return tuple(SupplyPoint(gpus=each.gpus + more, probability=each.probability) for each in week.points)


def _week(
    gpu_type: GpuType,
    day: date,
    now: float,
    coming: Mapping[GpuType, Sequence[Arrival]],
    going: Mapping[GpuType, Sequence[Retirement]],
    *,
    shares: Sequence[float],
    rollout_gpus: float,
) -> SupplyWeek:
    arrived = [each for each in coming.get(gpu_type, ()) if each.on <= day]
    last_day = day + timedelta(days=6)
    gone = sum(each.gpus for each in going.get(gpu_type, ()) if each.on <= last_day)
    # Reported as what is missing of all arrivals, so that the rounding of many of them leaves less and never more.
    all_come = now + sum(each.gpus for each in arrived)
    missing = make_fewer(
        sum_of_chances((each.gpus, 1 - each.probability) for each in arrived if each.probability < 1),
        most=_ARRIVAL_POINTS,
    )
    totals = [(max(0.0, all_come - lost - gone), chance) for lost, chance in missing]
    unusable: dict[float, float] = {}
    for total, chance in totals:
        for share in shares:
            left = min(total, max(0.0, total * share - rollout_gpus))
            unusable[-left] = unusable.get(-left, 0.0) + chance / len(shares)
    points = make_fewer(sorted(unusable.items()), most=KEPT_POINTS)
    whole = math.fsum(chance for _, chance in points)
    return SupplyWeek(
        gpu_type=gpu_type,
        first_day=day,
        installed=math.fsum(total * chance for total, chance in totals),
        points=tuple(
            SupplyPoint(gpus=max(0.0, -lost), probability=chance / whole) for lost, chance in reversed(points)
        ),
    )


def _shares(gpu_type: GpuType, inputs: SupplyInputs, notes: list[str]) -> tuple[float, ...]:
    """Return which shares are usable, each as likely as the others, rising."""
    out = _measured(gpu_type, "out of service", inputs.out_ratios, ASSUMED_OUT_RATIO, notes)
    stranded = _measured(gpu_type, "stranded", inputs.stranded_ratios, ASSUMED_STRANDED_RATIO, notes)
    days = max(len(out), len(stranded))
    # The newest days belong together; where one was measured for less long, its days are used again from the newest.
    pairs = [(out[-1 - number % len(out)], stranded[-1 - number % len(stranded)]) for number in range(days)]
    ranked = sorted(max(0.0, 1 - one - other) for one, other in pairs)
    if len(ranked) <= SHARE_POINTS:
        return tuple(ranked)
    edges = [len(ranked) * number // SHARE_POINTS for number in range(SHARE_POINTS + 1)]
    # The lowest of each group: what is usable is never reported too large.
    return tuple(ranked[edge] for edge in edges[:-1])


def _measured(
    gpu_type: GpuType, what: str, ratios: Mapping[GpuType, Sequence[float]], assumed: float, notes: list[str]
) -> Sequence[float]:
    known = ratios.get(gpu_type, ())
    wrong = [each for each in known if not 0 <= each <= 1]
    if wrong:
        raise ValueError(f"{gpu_type}: a share of {wrong[0]:g} {what}; expected 0 to 1, of what was installed that day")
    if len(known) >= ENOUGH_DAYS:
        return known
    notes.append(
        f"{gpu_type}: {len(known)} days are known of what is {what}, {ENOUGH_DAYS} are needed; "
        f"{100 * assumed:g} % of what is installed is assumed"
    )
    return (assumed,)
