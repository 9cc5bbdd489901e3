"""What quotas of one type must be, whatever is chosen: guarantees, caps, lost nodes, whole units, organisations too.

For proofs alone: computed from the lines of a proposal and the terms, by other means than `rebalance`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.core.proposal import ProposedQuota, TeamName, Terms

ROUNDING = 1e-6
Amounts = Mapping[TeamName, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """What must be given and taken before anything is chosen."""

    due: Amounts
    """What each team would have if nothing were chosen and no organisation bound it."""
    together: float
    """What all have then, organisations brought to their guarantees and caps."""
    lacks: Amounts
    """What the teams of an organisation must be given, beyond `due`, for its guarantee."""
    beyond: Amounts
    """What must be taken from them, for its cap."""


class Agreed:
    """The lines of one type beside the terms that they must keep."""

    def __init__(self, lines: Sequence[ProposedQuota], terms: Mapping[TeamName, Terms]) -> None:
        self.lines = {line.team: line for line in lines}
        self.terms = terms
        self._above = {team: self._climb(team) for team in {*self.lines, *terms}}
        parents = {each.parent for each in terms.values() if each.parent is not None and each.parent in terms}
        self.organisations = sorted(parents, key=lambda team: (-len(self._above[team]), team))
        """Each after those below it."""
        self._children: dict[TeamName | None, list[TeamName]] = {None: []}
        self.below: dict[TeamName, list[ProposedQuota]] = {team: [] for team in self.organisations}
        """The lines of all teams below an organisation, at any depth."""
        for team, above in self._above.items():
            if team in self.lines or team in self.below:
                self._children.setdefault(above[0] if above else None, []).append(team)
        for line in lines:
            for team in self._above[line.team]:
                self.below[team].append(line)

    def above(self, team: TeamName) -> tuple[TeamName, ...]:
        """Return the organisations that a team belongs to, the innermost first."""
        return self._above[team]

    def unit(self, team: TeamName) -> float:
        return self.terms[team].unit if team in self.terms else 1.0

    def largest_unit(self, teams: Sequence[ProposedQuota]) -> float:
        return max((self.unit(line.team) for line in teams), default=1.0)

    def most(self, line: ProposedQuota) -> float:
        return min(line.most, self.terms[line.team].most) if line.team in self.terms else line.most

    def top(self, line: ProposedQuota) -> float:
        """Return the most that a team may have in whole units."""
        most, unit = self.most(line), self.unit(line.team)
        # What is no number is reported by the proof of amounts; the others continue.
        return math.floor(most / unit + ROUNDING) * unit if math.isfinite(most) else most

    def least(self, line: ProposedQuota) -> float:
        """Return the guarantee in whole units, as far as the cap allows it."""
        return min(self.in_units(line, line.guarantee), self.top(line))

    def in_units(self, line: ProposedQuota, amount: float) -> float:
        unit = self.unit(line.team)
        return math.ceil(amount / unit - ROUNDING) * unit if math.isfinite(amount) else amount

    def sums(self) -> Amounts:
        """Return what the teams of each organisation get together."""
        return {team: math.fsum(line.after for line in lines) for team, lines in self.below.items()}

    def rooms(self) -> Amounts:
        """Return how many GPUs the teams of each organisation may have together, by every cap below it and its own."""
        found: dict[TeamName, float] = {team: self.top(line) for team, line in self.lines.items()}
        for team in self.organisations:
            found[team] = min(self.terms[team].most, math.fsum(found[each] for each in self._children.get(team, ())))
        return found

    def needs(self, amounts: Amounts) -> Mapping[TeamName | None, float]:
        """Return what each organisation, and the cluster (None), needs for its teams to have these amounts.

        An organisation needs what it is guaranteed; more than its cap where its teams may not have as much.
        """
        rooms = self.rooms()
        found: dict[TeamName | None, float] = {team: amount for team, amount in amounts.items()}  # noqa: C416  # wider keys
        for team in self.organisations:
            own = math.fsum(min(found[each], rooms[each]) for each in self._children.get(team, ()))
            found[team] = max(own, min(self.terms[team].guarantee, rooms[team]))
        found[None] = math.fsum(min(found[each], rooms[each]) for each in self._children[None])
        return found

    def narrow(self, amounts: Amounts) -> frozenset[TeamName]:
        """Return the organisations that may not have as much as their teams need, whole units counted."""
        needs = self.needs(amounts)
        return frozenset(
            team
            for team in self.organisations
            if needs[team] + self.odd_units(team) > self.terms[team].most + ROUNDING and needs[team] > ROUNDING
        )

    def pressed(self, amounts: Amounts) -> frozenset[TeamName]:
        """Return the organisations that may not have as much, whole units counted, as one above them is guaranteed.

        What its other teams and organisations have no room for must be had by this one.
        """
        needs, rooms = dict(self.needs(amounts)), self.rooms()
        found: set[TeamName] = set()
        for parent in reversed(self.organisations):
            children = self._children.get(parent, ())
            room = math.fsum(rooms[each] for each in children)
            for team in children:
                pressed = needs[parent] - (room - rooms[team])
                if team in self.below and pressed > needs[team] + ROUNDING:
                    needs[team] = pressed
                    if pressed + self.odd_units(team) > self.terms[team].most + ROUNDING:
                        found.add(team)
        return frozenset(found)

    def odd_units(self, team: TeamName | None = None) -> float:
        """Return what whole units may cost the guarantees of organisations, below one or of all: no full unit each."""
        inside = [each for each in self.organisations if team is None or each == team or team in self._above[each]]
        return math.fsum(self.largest_unit(self.below[each]) - 1 for each in inside if self.terms[each].guarantee)

    def forced(self, given: Amounts | None = None) -> Forced:
        """Return what must be given and taken, lost nodes and what is free left out.

        `given`: what teams have before their organisations are looked at; None: their guarantees, and what they had.
        """
        due = given or {
            team: max(self.least(line), min(line.before, self.top(line))) for team, line in self.lines.items()
        }
        rooms, amounts = self.rooms(), dict(due)
        lacks: dict[TeamName, float] = {}
        beyond: dict[TeamName, float] = {}
        for team in self.organisations:
            own = math.fsum(amounts[each] for each in self._children.get(team, ()))
            lacks[team] = max(0.0, min(self.terms[team].guarantee, rooms[team]) - own)
            beyond[team] = max(0.0, own - self.terms[team].most)
            amounts[team] = own + lacks[team] - beyond[team]
        together = math.fsum(amounts[each] for each in self._children[None])
        return Forced(due=due, together=together, lacks=lacks, beyond=beyond)

    def shares_of_guarantees(self, supply: float) -> Amounts:
        """Return what each team has of what is guaranteed, to it and above it, where not all of it may fit.

        By priority, then in proportion, down the tree. What an organisation is guaranteed beyond its teams goes to
        these by weight.
        """
        own = self._guarantees()
        base = needs = self._real_needs(own)
        if base[None] <= supply + ROUNDING and not any(
            math.fsum(base[each] for each in self._children.get(team, ())) > self.terms[team].most + ROUNDING
            for team in self.organisations
        ):
            return own
        asked = dict(own)
        for team in self.organisations:
            below = [line.team for line in self.below[team]]
            for weights in ([self._weight(each) for each in below], [1.0] * len(below)):
                # Once again for each organisation within it that is full: what its teams cannot have others ask for.
                for _ in self.organisations:
                    had = self._had(asked)
                    missing = needs[team] - had[team]
                    if missing <= ROUNDING:
                        break
                    room = [
                        0.0 if self._is_full(each, had, within=team) else max(0.0, min(most, needs[team]) - asked[each])
                        for each, most in ((each, self.most(self.lines[each])) for each in below)
                    ]
                    more = _filled(room, weights, missing)
                    asked |= {each: asked[each] + share for each, share in zip(below, more, strict=True)}
        needs = self._real_needs(asked)
        found: dict[TeamName | None, float] = {None: supply}
        for parent in (None, *reversed(self.organisations)):
            self._share_out(self._children.get(parent, ()), found, base=base, needs=needs, supply=found[parent])
        return {team: found[team] for team in self.lines}

    def guaranteed_together(self) -> float:
        """Return what all guarantees need, units left out of account."""
        return self._real_needs(self._guarantees())[None]

    def _guarantees(self) -> dict[TeamName, float]:
        return {team: min(line.guarantee, self.most(line)) for team, line in self.lines.items()}

    def _share_out(
        self,
        siblings: Sequence[TeamName],
        found: dict[TeamName | None, float],
        *,
        base: Mapping[TeamName | None, float],
        needs: Mapping[TeamName | None, float],
        supply: float,
    ) -> None:
        """Give to each by priority: first what is guaranteed to it, then what it needs beyond, by weight."""
        found |= dict.fromkeys(siblings, 0.0)
        owed = {each: min(needs[each], base[each]) for each in siblings}
        weights = {
            each: max(owed[each], self.terms[each].guarantee if each in self.terms else 0.0) for each in siblings
        }
        left = supply
        for needed, weighed in ((owed, weights), (needs, {each: self._weight(each) for each in siblings})):
            ranks = {each: self.terms[each].priority if each in self.terms else 0 for each in siblings}
            for rank in sorted(set(ranks.values()), reverse=True):
                equals = [each for each in siblings if ranks[each] == rank]
                shares = _filled(
                    [max(0.0, needed[each] - found[each]) for each in equals], [weighed[each] for each in equals], left
                )
                for each, share in zip(equals, shares, strict=True):
                    found[each] += share
                left = max(0.0, left - math.fsum(shares))

    def _real_needs(self, asked: Amounts) -> Mapping[TeamName | None, float]:
        found: dict[TeamName | None, float] = {team: amount for team, amount in asked.items()}  # noqa: C416  # wider keys
        rooms: dict[TeamName, float] = {team: self.most(line) for team, line in self.lines.items()}
        for team in self.organisations:
            below = self._children.get(team, ())
            rooms[team] = min(self.terms[team].most, math.fsum(rooms[each] for each in below))
            found[team] = min(rooms[team], max(self.terms[team].guarantee, math.fsum(found[each] for each in below)))
        found[None] = math.fsum(found[each] for each in self._children[None])
        return found

    def _had(self, asked: Amounts) -> Amounts:
        """Return what the teams of each organisation may have together of what they ask for."""
        rooms: dict[TeamName, float] = {team: self.most(line) for team, line in self.lines.items()}
        found = dict(asked)
        for team in self.organisations:
            below = self._children.get(team, ())
            rooms[team] = min(self.terms[team].most, math.fsum(rooms[each] for each in below))
            found[team] = min(rooms[team], math.fsum(found[each] for each in below))
        return found

    def _is_full(self, team: TeamName, had: Amounts, *, within: TeamName) -> bool:
        """Return whether an organisation between these two has all it may have."""
        above = self._above[team]
        return any(had[each] >= self.terms[each].most - ROUNDING for each in above[: above.index(within)])

    def _weight(self, team: TeamName) -> float:
        return self.terms[team].weight if team in self.terms else 0.0

    def _climb(self, team: TeamName) -> tuple[TeamName, ...]:
        found: list[TeamName] = []
        at = self.terms[team].parent if team in self.terms else None
        while at is not None and at in self.terms and at not in found:
            found.append(at)
            at = self.terms[at].parent
        return tuple(found)


def _filled(needs: Sequence[float], weights: Sequence[float], supply: float) -> list[float]:
    """Return shares by weight, none above its need: who is full leaves the rest to the others."""
    if math.fsum(needs) <= supply:
        return list(needs)
    shares = [0.0] * len(needs)
    waiting = [place for place, need in enumerate(needs) if need > 0 and weights[place] > 0]
    left = supply
    while waiting:
        level = left / math.fsum(weights[place] for place in waiting)
        full = [place for place in waiting if needs[place] <= level * weights[place]]
        for place in full or waiting:
            shares[place] = needs[place] if full else level * weights[place]
        left = max(0.0, left - math.fsum(shares[place] for place in full))
        waiting = [place for place in waiting if place not in full] if full else []
    return shares
