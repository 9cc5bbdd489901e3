"""The tree in which quotas are moved: teams that get quotas, and the organisations that bind their sums. Pure.

An organisation asks for nothing itself. Its guarantee, borrow limit and cap hold for all that stand below it together.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.quotas.allocation import allocate, pour
from ops_pipelines.teams.contracts import Children, children_of, parent_faults

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """An organisation, or the cluster itself, with all that is below it."""

    terms: Terms | None
    """None: the cluster itself."""
    own: tuple[int, ...]
    """The places of the teams right below it, in the order of the leaves."""
    inner: tuple["Group", ...]
    below: tuple[int, ...]
    """The places of all teams below it, at any depth."""

    @property
    def name(self) -> TeamName:
        """The name; empty for the cluster itself."""
        return TeamName("") if self.terms is None else self.terms.team

    @property
    def most(self) -> float:
        return math.inf if self.terms is None else self.terms.most

    @property
    def guarantee(self) -> float:
        return 0.0 if self.terms is None else self.terms.guarantee

    def inner_first(self) -> Iterator["Group"]:
        """Yield all organisations below it, each after those below itself."""
        for each in self.inner:
            yield from each.inner_first()
            yield each


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Between what the sum of each organisation must stay; who is not named is not bound."""

    lows: Mapping[TeamName, float] = field(default_factory=dict)
    highs: Mapping[TeamName, float] = field(default_factory=dict)

    def bound(self, group: Group, amount: float) -> float:
        return min(self.highs.get(group.name, math.inf), max(self.lows.get(group.name, 0.0), amount))


NO_LIMITS = Limits()


def tree_of(terms: Sequence[Terms]) -> tuple[tuple[Terms, ...], Group]:
    """Return the teams that get quotas, in the order of their terms, and the tree above them.

    Raises ValueError on a parent that has no terms, on a circle, and on two terms for one team.
    """
    parents = {each.team: each.parent for each in terms}
    if len(parents) != len(terms):
        twice = sorted({each.team for each in terms if sum(other.team == each.team for other in terms) > 1})
        raise ValueError(f"two terms for {', '.join(twice)}; expected one for each team")
    faults = parent_faults(parents)
    if faults:
        raise ValueError("; ".join(faults.values()))
    children = children_of(parents)
    leaves = tuple(each for each in terms if each.team not in children)
    places = {each.team: place for place, each in enumerate(leaves)}
    return leaves, _group(None, {each.team: each for each in terms}, children, places)


def owed_to(leaves: Sequence[Terms], root: Group, *, terms: Sequence[Terms], supply: float) -> tuple[list[float], bool]:
    """Return what each team is owed of its guarantee, and whether any of it is cut.

    All of it, as long as all guarantees fit, into the supply and into the caps of organisations. Otherwise by priority,
    then in proportion, as `allocation` shares out.
    """
    owed = [min(each.guarantee, each.most) for each in leaves]
    fits = True
    needed: dict[TeamName, float] = {}
    mosts: dict[TeamName, float] = {}
    for group in root.inner_first():
        rooms = [*(leaves[place].most for place in group.own), *(mosts[each.name] for each in group.inner)]
        mosts[group.name] = most = min(group.most, math.fsum(rooms))
        own = math.fsum([*(owed[place] for place in group.own), *(needed[each.name] for each in group.inner)])
        needed[group.name] = min(most, max(group.guarantee, own))
        fits = fits and own <= _near(most)
    together = math.fsum([*(owed[place] for place in root.own), *(needed[each.name] for each in root.inner)])
    if fits and together <= _near(supply):
        return owed, False
    asked = {each.team: amount for each, amount in zip(leaves, owed, strict=True)}
    for group in root.inner_first():
        _ask_for_the_rest(group, leaves, asked=asked, needed=needed[group.name], mosts=mosts)
    granted = allocate(terms, asked=asked, supply=supply)
    return [min(each.most, granted[each.team].total) for each in leaves], True


def _ask_for_the_rest(
    group: Group,
    leaves: Sequence[Terms],
    *,
    asked: dict[TeamName, float],
    needed: float,
    mosts: Mapping[TeamName, float],
) -> None:
    """Let the teams of an organisation ask for what it is guaranteed beyond their own guarantees, by weight.

    What those with a weight may not have, those without ask for. What teams of an organisation within it ask for beyond
    its cap they do not get: others ask for that.
    """
    mine = [leaves[place] for place in group.below]
    for weights in ([each.weight for each in mine], [1.0] * len(mine)):
        missing = needed - _had(group, leaves, asked=asked, mosts=mosts)
        while missing > _ROUNDING:
            full = {
                place
                for inner in group.inner_first()
                if _had(inner, leaves, asked=asked, mosts=mosts) >= mosts[inner.name] - _ROUNDING
                for place in inner.below
            }
            rooms = [
                0.0 if place in full else max(0.0, min(each.most, needed) - asked[each.team])
                for place, each in zip(group.below, mine, strict=True)
            ]
            shares = pour(rooms, weights=weights, supply=missing).shares
            if math.fsum(shares) <= _ROUNDING:
                break
            for each, share in zip(mine, shares, strict=True):
                asked[each.team] += share
            missing = needed - _had(group, leaves, asked=asked, mosts=mosts)


def _had(
    group: Group, leaves: Sequence[Terms], *, asked: Mapping[TeamName, float], mosts: Mapping[TeamName, float]
) -> float:
    """Return what the teams of a group may have together of what they ask for."""
    own = [asked[leaves[place].team] for place in group.own]
    inner = [_had(each, leaves, asked=asked, mosts=mosts) for each in group.inner]
    return min(mosts.get(group.name, math.inf), math.fsum([*own, *inner]))


def _group(
    team: TeamName | None, terms: Mapping[TeamName, Terms], children: Children, places: Mapping[TeamName, int]
) -> Group:
    below = children.get(team, ())
    inner = tuple(_group(each, terms, children, places) for each in below if each in children)
    own = tuple(sorted(places[each] for each in below if each not in children))
    return Group(
        terms=None if team is None else terms[team],
        own=own,
        inner=inner,
        below=(*own, *(place for each in inner for place in each.below)),
    )


def _near(amount: float) -> float:
    return amount * (1 + _ROUNDING) + _ROUNDING
