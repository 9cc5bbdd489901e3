"""The quotas of one type of GPU while they are moved: each step keeps what was agreed with teams and organisations.

`rebalance` says which steps a day takes, and in what order. Pure but for the one list that it works on.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.quotas.allocation import pour
from ops_pipelines.quotas.demand import Falling, QueueChance, Rising, even_out, level_out
from ops_pipelines.quotas.organisations import Group, Limits, owed_to, tree_of
from ops_pipelines.quotas.today import Today, chance_factor, standings_of, weight_factor

NOTHING = 1e-9
_NEVER = QueueChance()
_PRICE_HALVINGS = 20
"""Prices differ by at least a millionth of the time."""
_NEAR_GANG_RATIO = 0.2
"""# Assumption: a quota that lacks more than this of a gang was not meant for it."""


class Quotas:
    """Quotas while they are moved; lists have an entry a team that gets one, in the order of the terms."""

    def __init__(self, today: Today) -> None:
        terms = tuple(_in_whole_units(each) for each in today.terms)
        self.leaves, self.root = tree_of(terms)
        self.supply = today.supply
        self._strangers = [place for place, each in enumerate(self.leaves) if each.team in today.strangers]
        self.chances = [today.chances.get(each.team, _NEVER) for each in self.leaves]
        """As they are."""
        standings = standings_of(today.debts, self.leaves, supply=today.supply) if today.debts else {}
        self._leaned = [
            chance.leaned(chance_factor(standings[each.team])) if standings else chance
            for chance, each in zip(self.chances, self.leaves, strict=True)
        ]
        """As they are compared: who lent comes first where all are as likely."""
        self._weights = [each.weight * weight_factor(standings.get(each.team, 0.0)) for each in self.leaves]
        self.before = [today.quotas.get(each.team, 0.0) for each in self.leaves]
        self.owed, self.is_cut = owed_to(self.leaves, self.root, terms=terms, supply=today.supply)
        self._most = [max(low, min(each.most, today.supply)) for low, each in zip(self.owed, self.leaves, strict=True)]
        self.floors = [
            max(owed, min(today.ran_last.get(each.team, 0.0), quota, each.most))
            for owed, quota, each in zip(self.owed, self.before, self.leaves, strict=True)
        ]
        """What is not taken for another's sake: what is owed, and what ran, as far as the quota allowed it."""
        self._lows, self._highs = self._bounds()
        self.now = list(self.before)

    # -- what was agreed -------------------------------------------------------------------------------------------

    def keep_what_is_agreed(self) -> None:
        """Bring every quota, and every organisation, to what is owed at least and to its cap at most."""
        self.now = [
            max(owed, min(quota, each.most)) for owed, quota, each in zip(self.owed, self.now, self.leaves, strict=True)
        ]
        for group in self.root.inner_first():
            if self._sum(group) > self._highs[group.name] + NOTHING:
                self._cut(group, total=self._highs[group.name])
            elif self._sum(group) < self._lows[group.name] - NOTHING:
                self._fill(group, total=self._lows[group.name])

    def take_what_is_lost(self) -> None:
        """Bring the quotas down to the supply: what is least requested first, what runs and is not guaranteed last."""
        self._cut(self.root, total=self.supply)

    def give_what_is_free(self) -> None:
        """Give what no quota holds to where it is most likely requested, and the rest by weight; to strangers last."""
        self._fill(self.root, total=self.supply)

    # -- what is requested --------------------------------------------------------------------------------------------

    def exchange(
        self, *, givers: Collection[TeamName], held: Mapping[TeamName, int], most: float, least_gain: float
    ) -> None:
        """Move GPUs from givers to who is likelier to want them, while each gains enough, `most` at the most.

        Who is held goes no way but its own: 1 is up.
        """
        lows = [
            min(floor, quota) if each.team in givers and held.get(each.team, 0) <= 0 else quota
            for floor, quota, each in zip(self.floors, self.now, self.leaves, strict=True)
        ]
        highs = [
            max(quota, limit) if held.get(each.team, 0) >= 0 else quota
            for quota, limit, each in zip(self.now, self._most, self.leaves, strict=True)
        ]
        for place in self._strangers:
            highs[place] = self.now[place]
        found = self._exchanged(lows, highs, most=most, least_gain=least_gain)
        if self.root.inner and not self._keeps_bounds(found):
            found = self._exchanged_within(lows, highs, most=most, least_gain=least_gain)
        self.now = found

    def go_back(self, *, held: Mapping[TeamName, int], most: float) -> list[float]:
        """Move toward guarantees and the rest by weight, `most` GPUs at the most; return where that leads."""
        lows = [
            quota if held.get(each.team, 0) > 0 else min(floor, quota)
            for floor, quota, each in zip(self.floors, self.now, self.leaves, strict=True)
        ]
        highs = [
            max(low, quota if held.get(each.team, 0) < 0 else limit)
            for low, quota, limit, each in zip(lows, self.now, self._most, self.leaves, strict=True)
        ]
        agreed = list(self.now)
        self._by_contract(self.root, lows, highs, least=0.0, total=math.fsum(self.now), into=agreed)
        rises = math.fsum(max(0.0, goal - quota) for goal, quota in zip(agreed, self.now, strict=True))
        falls = math.fsum(max(0.0, quota - goal) for goal, quota in zip(agreed, self.now, strict=True))
        way = max(rises, falls)
        share = min(1.0, most / way) if way > NOTHING else 0.0
        # One share for all: between two states that keep the bounds every state does.
        self.now = [quota + share * (goal - quota) for goal, quota in zip(agreed, self.now, strict=True)]
        return agreed

    def round_up_to_gangs(
        self,
        gangs: Mapping[TeamName, int],
        *,
        givers: Collection[TeamName],
        held: Mapping[TeamName, int],
        most: float,
    ) -> Mapping[TeamName, int]:
        """Round quotas up that end just below what a team's jobs take, from who wants it less; return whose."""
        found: dict[TeamName, int] = {}
        for place, each in enumerate(self.leaves):
            gang, quota = gangs.get(each.team, 0), self.now[place]
            missing = gang - quota
            is_near = NOTHING < missing <= max(each.unit, _NEAR_GANG_RATIO * gang)
            wanted_ratio = self._leaned[place].at(quota)
            if not is_near or gang > self._most[place] or held.get(each.team, 0) < 0 or not wanted_ratio:
                continue
            free = min(missing, max(0.0, self.supply - math.fsum(self.now)))
            taken = self._from_others(missing - free, place, gangs, givers, held, below=wanted_ratio)
            if taken is None or missing - free > most + NOTHING:
                continue
            tried = [quota - taken.get(other, 0.0) for other, quota in enumerate(self.now)]
            tried[place] = float(gang)
            if self._keeps_bounds(tried):
                self.now, most = tried, most - (missing - free)
                found[each.team] = gang
        return found

    def bounding(self) -> Mapping[TeamName, TeamName]:
        """Return the teams below an organisation that is at its cap, and the innermost such organisation."""
        found: dict[TeamName, TeamName] = {}
        for group in self.root.inner_first():
            if self._sum(group) >= self._highs[group.name] - 1e-6:
                for place in group.below:
                    found.setdefault(self.leaves[place].team, group.name)
        return found

    # -- parts -----------------------------------------------------------------------------------------------------

    def _bounds(self) -> tuple[dict[TeamName, float], dict[TeamName, float]]:
        """Return between what the sum of each organisation stays: its guarantee, and its cap or borrow limit."""
        lows: dict[TeamName, float] = {}
        highs: dict[TeamName, float] = {}
        for group in self.root.inner_first():
            own = math.fsum([*(self.owed[place] for place in group.own), *(lows[each.name] for each in group.inner)])
            room = [*(self.leaves[place].most for place in group.own), *(highs[each.name] for each in group.inner)]
            most = min(group.most, math.fsum(room))
            highs[group.name] = max(own, most)
            lows[group.name] = own if self.is_cut else min(most, max(group.guarantee, own))
        return lows, highs

    def _limits(self, quotas: Sequence[float] | None = None) -> Limits:
        """Return the bounds of the organisations, none narrower than what holds."""
        sums = {group.name: self._sum(group, quotas) for group in self.root.inner_first()}
        return Limits(
            lows={name: min(low, sums[name]) for name, low in self._lows.items()},
            highs={name: max(high, sums[name]) for name, high in self._highs.items()},
        )

    def _keeps_bounds(self, quotas: Sequence[float]) -> bool:
        limits = self._limits()
        return all(
            limits.lows[group.name] - NOTHING <= self._sum(group, quotas) <= limits.highs[group.name] + NOTHING
            for group in self.root.inner_first()
        )

    def _sum(self, group: Group, quotas: Sequence[float] | None = None) -> float:
        amounts = self.now if quotas is None else quotas
        return math.fsum(amounts[place] for place in group.below)

    def _cut(self, group: Group, *, total: float) -> None:
        """Bring a group down to `total`; what runs only where nothing else is left."""
        for floors in (self.floors, self.owed):
            if self._sum(group) > total + NOTHING:
                self._cut_to(group, [min(low, now) for low, now in zip(floors, self.now, strict=True)], total=total)

    def _cut_to(self, group: Group, lows: Sequence[float], *, total: float) -> None:
        now, chances = self.now, self._leaned

        def at(level: float, places: Sequence[int]) -> list[float]:
            if level < 0:
                return [now[place] for place in places]
            return [max(lows[place], min(now[place], chances[place].quota_for(level))) for place in places]

        self._put(level_out(group, at, total=total, limits=self._limits(), lowest=-1.0))

    def _fill(self, group: Group, *, total: float) -> None:
        """Bring a group up to `total`, as far as its teams may have that many."""
        if self._sum(group) >= total - NOTHING:
            return
        highs = [max(most, now) for most, now in zip(self._most, self.now, strict=True)]
        declared = list(highs)
        for place in self._strangers:
            declared[place] = self.now[place]
        for limit in (declared, highs) if self._strangers else (highs,):
            found = even_out(self._leaned, lows=self.now, highs=limit, total=total, within=group, limits=self._limits())
            self.now = found
        self._pour(group, highs, self._limits(), amount=total - self._sum(group), weights=self._weights)
        if group.terms is not None:  # An organisation has what it is guaranteed, though its teams have no weight.
            everybody = [1.0] * len(self.now)
            self._pour(group, highs, self._limits(), amount=total - self._sum(group), weights=everybody)

    def _pour(
        self, group: Group, highs: Sequence[float], limits: Limits, *, amount: float, weights: Sequence[float]
    ) -> None:
        """Give what nobody is expected to want by weight, as organisations share out among their own."""
        if amount <= NOTHING:
            return
        rooms = [
            *(highs[place] - self.now[place] for place in group.own),
            *(self._room(each, highs, limits) for each in group.inner),
        ]
        of_parts = [
            *(weights[place] for place in group.own),
            *(each.terms.weight if each.terms is not None else 1.0 for each in group.inner),
        ]
        shares = pour(rooms, weights=of_parts, supply=amount).shares
        for place, share in zip(group.own, shares, strict=False):
            self.now[place] += share
        for each, share in zip(group.inner, shares[len(group.own) :], strict=True):
            self._pour(each, highs, limits, amount=share, weights=weights)

    def _room(self, group: Group, highs: Sequence[float], limits: Limits) -> float:
        """Return how many more GPUs a group could hold."""
        own = (highs[place] - self.now[place] for place in group.own)
        below = math.fsum([*own, *(self._room(each, highs, limits) for each in group.inner)])
        return max(0.0, min(below, limits.highs[group.name] - self._sum(group)))

    def _exchanged(
        self, lows: Sequence[float], highs: Sequence[float], *, most: float, least_gain: float
    ) -> list[float]:
        """Return the quotas after the exchange, organisations left out of account."""
        source, target = Falling(self._leaned, self.now, lows), Rising(self._leaned, self.now, highs)
        moved = 0.0
        while moved < most - NOTHING and source.left and target.left:
            if target.wanted_ratio - source.wanted_ratio <= least_gain:
                break
            amount = min(source.left, target.left, most - moved)
            source.move(amount)
            target.move(amount)
            moved += amount
        given, taken = target.changes(), source.changes()
        return [quota + given.get(place, 0.0) - taken.get(place, 0.0) for place, quota in enumerate(self.now)]

    def _exchanged_within(
        self, lows: Sequence[float], highs: Sequence[float], *, most: float, least_gain: float
    ) -> list[float]:
        """Return the quotas after the exchange within the bounds of organisations.

        Each GPU that moves pays a price, the least gain; a higher one where otherwise more than `most` would move.
        """
        few, many = list(self.now), self._at_price(least_gain + NOTHING, lows, highs)
        if self._moved(many) <= most + NOTHING:
            return many
        low, high = least_gain, 1.0
        for _ in range(_PRICE_HALVINGS):
            price = (low + high) / 2
            found = self._at_price(price, lows, highs)
            if self._moved(found) > most:
                low, many = price, found
            else:
                high, few = price, found
        less, more = self._moved(few), self._moved(many)
        share = (most - less) / (more - less) if more > less else 0.0
        return [one + share * (other - one) for one, other in zip(few, many, strict=True)]

    def _at_price(self, price: float, lows: Sequence[float], highs: Sequence[float]) -> list[float]:
        now, chances = self.now, self._leaned

        def quota(level: float, place: int) -> float:
            up = chances[place].quota_for(min(1.0, max(0.0, level + price)))
            if up > now[place]:
                return max(now[place], min(up, highs[place]))
            down = chances[place].quota_for(level) if level >= 0 else math.inf
            return min(now[place], max(down, lows[place]))

        found = level_out(
            self.root,
            lambda level, places: [quota(level, place) for place in places],
            total=math.fsum(now),
            limits=self._limits(),
            lowest=-1.0,
        )
        return [found[place] for place in range(len(now))]

    def _moved(self, quotas: Sequence[float]) -> float:
        return math.fsum(max(0.0, after - before) for after, before in zip(quotas, self.now, strict=True))

    def _by_contract(
        self,
        group: Group,
        lows: Sequence[float],
        highs: Sequence[float],
        *,
        least: float,
        total: float,
        into: list[float],
    ) -> None:
        """Write what was agreed into `into`: guarantees, the rest by weight, within what each keeps and may have.

        Teams without a weight take nothing of the rest, unless their organisation has less than `least` otherwise.
        """
        limits = self._limits()
        parts = [
            *((self.owed[place], self.leaves[place].weight, lows[place], highs[place]) for place in group.own),
            *(
                (
                    self._lows[each.name],
                    each.terms.weight if each.terms is not None else 1.0,
                    max(limits.lows[each.name], _sum_of(lows, each.below)),
                    min(limits.highs[each.name], _sum_of(highs, each.below)),
                )
                for each in group.inner
            ),
        ]

        def at(level: float, places: Sequence[int]) -> list[float]:
            poured = self.supply * (1.0 - level) / level
            return [
                max(low, min(high, base + poured * weight)) for base, weight, low, high in (parts[i] for i in places)
            ]

        everybody = tuple(range(len(parts)))
        flat = Group(terms=None, own=everybody, inner=(), below=everybody)
        found = level_out(flat, at, total=total, lowest=2.0**-40)
        missing = least - math.fsum(found.values())
        if missing > NOTHING:
            rooms = [max(0.0, high - found[number]) for number, (_, _, _, high) in enumerate(parts)]
            for number, share in enumerate(pour(rooms, weights=rooms, supply=missing).shares):
                found[number] += share
        for number, place in enumerate(group.own):
            into[place] = found[number]
        for number, each in enumerate(group.inner, start=len(group.own)):
            least = found[number] if group.terms is not None else limits.lows[each.name]
            self._by_contract(each, lows, highs, least=least, total=found[number], into=into)

    def _from_others(
        self,
        amount: float,
        place: int,
        gangs: Mapping[TeamName, int],
        givers: Collection[TeamName],
        held: Mapping[TeamName, int],
        *,
        below: float,
    ) -> Mapping[int, float] | None:
        """Return who gives so many GPUs that are requested less than `below` of the time; None where there are less."""
        if amount <= NOTHING:
            return {}
        lows = []
        for other, (each, quota) in enumerate(zip(self.leaves, self.now, strict=True)):
            gives = other != place and each.team in givers and held.get(each.team, 0) <= 0
            own = gangs.get(each.team, 0)
            lows.append(max(self.floors[other], own if own <= quota + NOTHING else 0.0) if gives else math.inf)
        source = Falling(self._leaned, self.now, lows)
        left = amount
        while left > NOTHING and source.left and source.wanted_ratio < below:
            step = min(left, source.left)
            source.move(step)
            left -= step
        return source.changes() if left <= NOTHING else None

    def _put(self, quotas: Mapping[int, float]) -> None:
        for place, quota in quotas.items():
            self.now[place] = quota


def _in_whole_units(terms: Terms) -> Terms:
    """Return the terms with what can be borrowed in whole units: more could not be set."""
    if math.isinf(terms.borrow_limit) or terms.unit <= 1:
        return terms
    return replace(terms, borrow_limit=terms.borrow_limit // terms.unit * terms.unit)


def _sum_of(amounts: Sequence[float], places: Iterable[int]) -> float:
    return math.fsum(amounts[place] for place in places)
