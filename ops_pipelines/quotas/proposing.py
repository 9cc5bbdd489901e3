"""From rebalanced quotas to the lines of a proposal: whole GPUs, in units of nodes or gangs, each with its reason.

Rounded by the largest remainder, so that nothing is lost but what makes no unit. That a proposal holds what it should
is proved by `proof`, by other means.
"""

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ops_pipelines.core.proposal import GpuType, ProposedQuota, SupplyLine, TeamName
from ops_pipelines.quotas.demand import QueueChance
from ops_pipelines.quotas.organisations import owed_to, tree_of
from ops_pipelines.quotas.rebalance import counterfactual_of, moves_in_words, reason_of
from ops_pipelines.quotas.today import QuotaLine, Rebalanced, Today

_NEARLY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One team's quota before it is rounded."""

    team: TeamName
    before: float
    quota: float
    unit: float
    least: float
    """It is not rounded below this, as long as whole units suffice for all."""
    owed: float = 0.0
    """Of that, what is guaranteed: it gives way last."""
    most: float
    is_held: bool = False
    """Whether it turned too often of late: rounding does not take from it what it had, as long as others can give."""


Bound = tuple[frozenset[TeamName], float]
"""Teams that have no more than so many together."""


def rounded(
    goals: Sequence[Goal],
    *,
    supply: float,
    bounds: Sequence[Bound] = (),
    leasts: Sequence[Bound] = (),
    rises_max: float = math.inf,
    falls_max: float = math.inf,
) -> Mapping[TeamName, int]:
    """Return quotas in whole units, each within less than a unit of its goal where all of them fit.

    Who rises is rounded down first and who falls up, so that rounding moves nothing; what that leaves, or lacks, goes
    by the largest remainder. Steps that are smaller than a unit are taken whole from half of it on, while all rises
    together stay within `rises_max`, and all falls within `falls_max`: otherwise small ones would never come. More
    falls only where nothing else fits. `bounds`: the narrowest first. `leasts`: who has no less than so many together.
    """
    everybody = frozenset(goal.team for goal in goals)
    work = _Rounding(
        goals, bounds=[*bounds, (everybody, supply)], leasts=leasts, rises_max=rises_max, falls_max=falls_max
    )
    work.lower(range(len(bounds)))  # What caps take must not be counted upon by what is guaranteed.
    work.lift()
    work.lower(range(len(bounds) + 1))
    work.take_half_steps()
    work.spread()
    return {goal.team: round(amount) for goal, amount in zip(goals, work.now, strict=True)}


class _Rounding:
    """Quotas in whole units while they are fitted; lists have an entry a goal."""

    def __init__(
        self,
        goals: Sequence[Goal],
        *,
        bounds: Sequence[Bound],
        leasts: Sequence[Bound],
        rises_max: float,
        falls_max: float,
    ) -> None:
        self._goals = goals
        self._rises_max, self._falls_max = rises_max, falls_max
        self._tops = [
            math.inf if math.isinf(goal.most) else math.floor(goal.most / goal.unit + _NEARLY) * goal.unit
            for goal in goals
        ]
        self._leasts = [
            min(top, math.ceil(goal.least / goal.unit - _NEARLY) * goal.unit)
            for goal, top in zip(goals, self._tops, strict=True)
        ]
        self._owed = [
            min(least, math.ceil(goal.owed / goal.unit - _NEARLY) * goal.unit)
            for goal, least in zip(goals, self._leasts, strict=True)
        ]
        self._floors = [
            max(least, math.floor(goal.quota / goal.unit + _NEARLY) * goal.unit)
            for goal, least in zip(goals, self._leasts, strict=True)
        ]
        self._ceilings = [
            max(floor, min(top, math.ceil(goal.quota / goal.unit - _NEARLY) * goal.unit))
            for goal, floor, top in zip(goals, self._floors, self._tops, strict=True)
        ]
        self.now = [
            floor if goal.quota >= goal.before - _NEARLY else ceiling
            for goal, floor, ceiling in zip(goals, self._floors, self._ceilings, strict=True)
        ]
        self._falls = math.fsum(self._fall(place, amount) for place, amount in enumerate(self.now))
        self._rises = math.fsum(self._rise(place, amount) for place, amount in enumerate(self.now))
        self._bounds = [
            ([place for place, goal in enumerate(goals) if goal.team in teams], most) for teams, most in bounds
        ]
        self._sums = [math.fsum(self.now[place] for place in places) for places, _ in self._bounds]
        self._of: list[list[int]] = [[] for _ in goals]
        for number, (places, _) in enumerate(self._bounds):
            for place in places:
                self._of[place].append(number)
        self._kept = leasts
        """What teams keep together: even before what each of them, or another, ran."""

    def lift(self) -> None:
        """Bring teams to what they have at least together, from who lies lowest below his goal; that is not taken."""
        for teams, least in self._kept:
            places = [place for place, goal in enumerate(self._goals) if goal.team in teams]
            if math.fsum(self._goals[place].quota for place in places) > least + self._reserve(places):
                continue
            self._raise_to(least, places)
            self._keep(teams, least, places)

    def _raise_to(self, least: float, places: Sequence[int]) -> None:
        waiting = [(self._excess(place), self._goals[place].team, place) for place in places]
        heapq.heapify(waiting)
        while waiting and math.fsum(self.now[place] for place in places) < least - _NEARLY:
            _, _, place = heapq.heappop(waiting)
            unit = self._goals[place].unit
            within = all(
                self._sums[number] + unit <= self._bounds[number][1] + _NEARLY for number in self._of[place][:-1]
            )
            if within and self.now[place] + unit <= self._ceilings[place] + _NEARLY:
                self._change(place, unit)

    def _keep(self, teams: frozenset[TeamName], least: float, places: Sequence[int]) -> None:
        """Take up into what each keeps what they have at least together, and no more than must be.

        Who lies highest above his goal may still be lowered: first down to what each is to keep, so that what may be
        lowered only later does not use up what there is to spare.
        """
        spare = max(0.0, math.fsum(self.now[place] for place in places) - least)
        kept = {place: self.now[place] for place in places}
        order = sorted(places, key=lambda place: (-self._excess(place), self._goals[place].team))
        for lows in (self._leasts, self._owed):
            for place in order:
                unit = self._goals[place].unit
                spares = min(spare, self._spare_within(teams, self._goals[place].team, kept))
                lower = max(lows[place], kept[place] - math.floor(spares / unit + _NEARLY) * unit)
                if lower < kept[place]:
                    spare -= kept[place] - lower
                    kept[place] = lower
                lows[place] = max(lows[place], kept[place])
        for place in places:
            self._floors[place] = max(self._floors[place], self._leasts[place])

    def _spare_within(self, teams: frozenset[TeamName], team: TeamName, kept: Mapping[int, float]) -> float:
        """Return what smaller circles of `teams` that this team is in can spare: each keeps its own least."""
        return min(
            (
                max(0.0, math.fsum(amount for each, amount in kept.items() if self._goals[each].team in others) - least)
                for others, least in self._kept
                if team in others and others < teams
            ),
            default=math.inf,
        )

    def _reserve(self, places: Sequence[int]) -> float:
        """Return by how much these may lie above what they have at least, and rounding still come near it."""
        return math.fsum(self._goals[place].unit for place in places)

    def lower(self, numbers: Iterable[int]) -> None:
        """Bring these bounds down, from who lies highest above his goal; below the least only where all else fails."""
        for number in numbers:
            places, most = self._bounds[number]
            befores = [max(goal.before, least) for goal, least in zip(self._goals, self._leasts, strict=True)]
            stood = [
                before if goal.is_held and goal.quota >= goal.before - _NEARLY else least
                for goal, before, least in zip(self._goals, befores, self._leasts, strict=True)
            ]
            nothing = [0.0] * len(self.now)
            # Within the step; then rises are given up; then who is held falls; then beyond the step; then below what is
            # to be kept, by teams of an organisation together last.
            for lows, falls_max, is_kept in (
                (stood, self._falls_max, True),
                (befores, self._falls_max, True),
                (self._leasts, self._falls_max, True),
                (self._leasts, math.inf, True),
                (self._owed, math.inf, True),
                (self._owed, math.inf, False),
                (nothing, math.inf, False),
            ):
                waiting = [(-self._excess(place), self._goals[place].team, place) for place in places]
                heapq.heapify(waiting)
                while waiting and self._sums[number] > most + _NEARLY:
                    _, team, place = heapq.heappop(waiting)
                    unit = self._goals[place].unit
                    falls = self._falls + self._fall(place, self.now[place] - unit) - self._fall(place, self.now[place])
                    if is_kept and not self._spares(place):
                        continue
                    if self.now[place] - unit >= lows[place] - _NEARLY and falls <= falls_max + _NEARLY:
                        self._change(place, -unit)
                        heapq.heappush(waiting, (-self._excess(place), team, place))

    def take_half_steps(self) -> None:
        """Lower who falls by half a unit or more, for who rises by as much, both by a whole one."""
        givers = [
            place
            for place in self._by_remainder(1)
            if self.now[place] - self._goals[place].unit >= self._floors[place] - _NEARLY
        ]
        for place in self._by_remainder(-1):
            unit = self._goals[place].unit
            if unit <= 1:
                continue
            given: list[int] = []
            while givers and math.fsum(self._goals[each].unit for each in given) + self._room() < unit - _NEARLY:
                given.append(givers.pop(0))
            for each in given:
                self._change(each, -self._goals[each].unit)
            if self._fits(place) and self._falls <= self._falls_max + _NEARLY:
                self._change(place, unit)
            else:
                for each in given:
                    self._change(each, self._goals[each].unit)

    def spread(self) -> None:
        """Give what is left to the largest remainders, a unit each."""
        wanting = [place for place, goal in enumerate(self._goals) if goal.quota > self.now[place] + 1e-6]
        for place in sorted(wanting, key=lambda place: (self._excess(place), self._goals[place].team)):
            if self._fits(place) and self.now[place] + self._goals[place].unit <= self._ceilings[place] + _NEARLY:
                self._change(place, self._goals[place].unit)

    def _by_remainder(self, sign: int) -> list[int]:
        """Return who lies half a unit or more above (1) or below (-1) his goal, the largest remainder first."""
        found = [place for place in range(len(self.now)) if sign * self._excess(place) >= 0.5 - _NEARLY]
        return sorted(found, key=lambda place: (-sign * self._excess(place), self._goals[place].team))

    def _spares(self, place: int) -> bool:
        """Return whether a unit less leaves to all above this team what they have at least together."""
        team, unit = self._goals[place].team, self._goals[place].unit
        return all(
            math.fsum(amount for amount, goal in zip(self.now, self._goals, strict=True) if goal.team in teams) - unit
            >= least - _NEARLY
            for teams, least in self._kept
            if team in teams
        )

    def _excess(self, place: int) -> float:
        """Return by how many units a quota lies above its goal."""
        return (self.now[place] - self._goals[place].quota) / self._goals[place].unit

    def _room(self) -> float:
        return self._bounds[-1][1] - self._sums[-1]

    def _fits(self, place: int) -> bool:
        unit = self._goals[place].unit
        within = all(self._sums[number] + unit <= self._bounds[number][1] + _NEARLY for number in self._of[place])
        more = self._rise(place, self.now[place] + unit) - self._rise(place, self.now[place])
        is_small = self._rises + more <= self._rises_max + _NEARLY
        return within and is_small and self.now[place] + unit <= self._tops[place] + _NEARLY

    def _rise(self, place: int, amount: float) -> float:
        return max(0.0, amount - self._goals[place].before)

    def _fall(self, place: int, amount: float) -> float:
        return max(0.0, self._goals[place].before - amount)

    def _change(self, place: int, amount: float) -> None:
        self._falls += self._fall(place, self.now[place] + amount) - self._fall(place, self.now[place])
        self._rises += self._rise(place, self.now[place] + amount) - self._rise(place, self.now[place])
        self.now[place] += amount
        for number in self._of[place]:
            self._sums[number] += amount


_NEVER = QueueChance()
_NAMED = 5
"""Teams that a headline names; of the others the number."""


def propose_lines(
    rebalanced: Rebalanced,
    *,
    today: Today,
    gpu_type: GpuType,
    limits: Mapping[TeamName, int | None],
    wanted: Mapping[TeamName, float],
    fairshares: Mapping[TeamName, int | None] | None = None,
) -> tuple[ProposedQuota, ...]:
    """Return a line for each team without teams of its own, by name.

    `rebalanced` is what `rebalance(today, ...)` gave. `limits`: what the scheduler holds each team to; who is not named
    is held to nothing. `wanted`: what each requested on average on the last full day, queue included. `fairshares`:
    shares in force, which then follow the quotas; None: they are left as they are.
    """
    whole = _in_whole_units(rebalanced, today)
    of = _as_rounded(rebalanced, today, whole)
    return tuple(
        _line(each, of, today=today, gpu_type=gpu_type, limits=limits, wanted=wanted, fairshares=fairshares)
        for each in sorted(of.lines, key=lambda line: line.team)
    )


def headline_of_lines(
    lines: Sequence[ProposedQuota],
    *,
    supplies: Sequence[SupplyLine],
    step_caps: Sequence[tuple[GpuType, float]],
    frozen_because: str = "",
    strangers: Collection[TeamName] = (),
) -> str:
    """Return what is proposed for all types in one sentence or two; of `strangers` nothing is set."""
    caps = dict(step_caps)
    said = []
    for supply in sorted(supplies, key=lambda each: each.gpu_type):
        changes = {
            line.team: line.after - line.before
            for line in lines
            if line.gpu_type == supply.gpu_type and round(line.after - line.before)
        }
        if changes:
            moved = max(_sum(changes, 1), _sum(changes, -1))
            words = moves_in_words(changes, moved=moved, supply=supply.supply, step_cap=caps.get(supply.gpu_type, 0.0))
            said.append(f"{supply.gpu_type}: {words}" if supply.gpu_type else words)
    unlimited = sorted({line.team for line in lines if line.limit is None and line.team not in strangers})
    if unlimited and any(line.limit is not None for line in lines):  # Where nobody is limited, limits may be unknown.
        more = f" and {len(unlimited) - _NAMED} others" if len(unlimited) > _NAMED else ""
        said.append(f"limited for the first time: {', '.join(unlimited[:_NAMED])}{more}")
    still = f"quotas stand still: {frozen_because}" if frozen_because else ""
    if still:
        return f"{still}; what was agreed is kept: {'; '.join(said)}" if said else still
    return "; ".join(said) or "no quota changes"


def _sum(changes: Mapping[TeamName, float], sign: int) -> float:
    return math.fsum(max(0.0, sign * change) for change in changes.values())


def _in_whole_units(rebalanced: Rebalanced, today: Today) -> Mapping[TeamName, int]:
    """Return the quotas as they are set: whole multiples of each team's unit, within the supply and every cap."""
    stands = bool(rebalanced.frozen_because)
    leaves, root = tree_of(today.terms)
    _, is_cut = owed_to(leaves, root, terms=today.terms, supply=rebalanced.supply)
    goals = [
        Goal(
            team=line.team,
            before=line.before,
            quota=line.after,
            # What does not move is no matter of units: it stays as somebody set it.
            unit=1.0 if stands and line.after == line.before else line.terms.unit,
            least=min(line.after, line.floor),
            owed=_owed(line, is_cut=is_cut),
            most=line.terms.most,
            is_held=line.is_held,
        )
        for line in rebalanced.lines
    ]
    rises = math.fsum(max(0.0, line.after - line.before) for line in rebalanced.lines)
    falls = math.fsum(max(0.0, line.before - line.after) for line in rebalanced.lines)
    supply = rebalanced.supply
    if stands:  # They stand, even where they are more than what is healthy.
        supply = max(supply, math.fsum(goal.unit * math.ceil(goal.quota / goal.unit) for goal in goals))
    return rounded(
        goals,
        supply=supply,
        bounds=_bounds(today),
        leasts=() if is_cut else _leasts(rebalanced, today),
        rises_max=max(rises, rebalanced.step_cap),
        falls_max=max(falls, rebalanced.step_cap),
    )


def _owed(line: QuotaLine, *, is_cut: bool) -> float:
    """Return what rounding keeps of a quota even before what runs: a guarantee; where these are cut, whole units."""
    if is_cut:
        return math.floor(line.after / line.terms.unit + 1e-9) * line.terms.unit
    return min(line.after, line.terms.guarantee)


def _leasts(rebalanced: Rebalanced, today: Today) -> list[Bound]:
    """Return what the teams of each organisation have at least together: its guarantee, as far as it is given."""
    leaves, root = tree_of(today.terms)
    quotas = rebalanced.quotas
    found = []
    for group in root.inner_first():
        teams = frozenset(leaves[place].team for place in group.below)
        found.append((teams, min(group.guarantee, math.fsum(quotas[team] for team in teams))))
    return [bound for bound in found if bound[1] > 0]


def _bounds(today: Today) -> list[Bound]:
    leaves, root = tree_of(today.terms)
    return [
        (frozenset(leaves[place].team for place in group.below), group.most)
        for group in root.inner_first()
        if not math.isinf(group.most)
    ]


def _as_rounded(rebalanced: Rebalanced, today: Today, whole: Mapping[TeamName, int]) -> Rebalanced:
    """Return what came of the day as it is proposed: reasons speak of the quotas that are set."""
    lines = tuple(
        replace(
            line,
            after=float(whole[line.team]),
            wanted_after=today.chances.get(line.team, _NEVER).at(whole[line.team]),
            gang=line.gang if whole[line.team] >= line.gang else 0,
        )
        for line in rebalanced.lines
    )
    moved = math.fsum(abs(line.after - line.before) for line in lines) / 2
    return replace(rebalanced, lines=lines, moved=moved)


def _line(
    line: QuotaLine,
    of: Rebalanced,
    *,
    today: Today,
    gpu_type: GpuType,
    limits: Mapping[TeamName, int | None],
    wanted: Mapping[TeamName, float],
    fairshares: Mapping[TeamName, int | None] | None,
) -> ProposedQuota:
    team, after = line.team, round(line.after)
    share = None if fairshares is None else fairshares.get(team)
    return ProposedQuota(
        team=team,
        gpu_type=gpu_type,
        limit=limits.get(team),
        before=line.before,
        after=after,
        guarantee=line.terms.guarantee,
        most=line.terms.most,
        floor=line.floor,
        ran_last=today.ran_last.get(team, 0.0),
        wanted_mean=wanted.get(team, 0.0),
        debt=today.debts.get(team, 0.0),
        reason=reason_of(line, of=of, project=today.launches.get(team, ""), is_stranger=team in today.strangers),
        counterfactual=counterfactual_of(line, chance=today.chances.get(team, _NEVER)),
        fairshare_before=share,
        # Who has no share of his own shares with his siblings; a share of 0 would put a team behind all others.
        fairshare_after=None if share is None else max(1, after),
    )
