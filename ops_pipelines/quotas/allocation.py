"""Who gets how much of one type of GPU: guarantees first, then what is left, by weighted max-min fairness.

Nobody gets more than he needs, and nobody's share can grow without that of one who has less, by weight, becoming
smaller. The level is found between the breakpoints `need / weight` in their order, never by trying.

Dominant resource fairness (Ghodsi et al., NSDI 2011): a team's share is that of the resource of which it holds the
largest part. The smallest shares, by weight, are raised together until a team has all that it asks for, or a resource
that it needs is used up.

Among equals (the teams of one organisation, the organisations of the cluster):

1. each gets of its guarantee what it asks for; if that is more than there is, by priority, then in proportion; 2. of
what a guarantee leaves unused, others get no more than its lend limit, and never what is reserved; 3. all that is left
is poured by priority, then by weight, up to what each asks for and may have.

What an organisation gets is shared out among its own in the same way. The result is the weighted max-min fair one.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add, sub

from ops_pipelines.core.proposal import TeamName, Terms

# -- weighted max-min fairness --


@dataclass(frozen=True, slots=True, kw_only=True)
class Poured:
    """What each need got, in the order asked."""

    shares: tuple[float, ...]
    level: float
    """GPUs by unit of weight: who needs more got `level * weight`. Infinite where the supply suffices for all."""


def pour(needs: Sequence[float], *, weights: Sequence[float], supply: float) -> Poured:
    """Return the shares: `min(need, level * weight)`, which add up to `min(supply, all needs)`.

    A need may be infinite. Who has weight 0 gets nothing unless the supply suffices for all. Raises ValueError on
    numbers below 0, NaN, and lists of two lengths.
    """
    _check(needs, weights=weights, supply=supply)
    if math.fsum(needs) <= supply:
        return Poured(shares=tuple(needs), level=math.inf)
    level = _level(needs, weights=weights, supply=supply)
    return Poured(
        shares=tuple(_share(need, weight=weight, level=level) for need, weight in zip(needs, weights, strict=True)),
        level=level,
    )


def _level(needs: Sequence[float], *, weights: Sequence[float], supply: float) -> float:
    """Return where the water is: all who are full below it, all others at it."""
    thirsty = sorted(
        (need / weight, need, weight) for need, weight in zip(needs, weights, strict=True) if weight > 0 and need > 0
    )
    # Summed from the end, so that the weights left over never come from a difference of larger ones.
    tails = list(accumulate(weight for _, _, weight in reversed(thirsty)))[::-1]
    left = supply
    for (breakpoint_, need, _), weight_left in zip(thirsty, tails, strict=True):
        if breakpoint_ * weight_left >= left:
            return left / weight_left
        left -= need
    return math.inf


def _share(need: float, *, weight: float, level: float) -> float:
    return min(need, level * weight) if weight > 0 else 0.0


def _check(needs: Sequence[float], *, weights: Sequence[float], supply: float) -> None:
    if len(needs) != len(weights):
        raise ValueError(f"{len(needs)} needs and {len(weights)} weights; expected one weight for each need")
    for name, numbers in (("need", needs), ("weight", weights), ("supply", (supply,))):
        for number in numbers:
            if not number >= 0:
                raise ValueError(f"a {name} is {number}; expected 0 or more")
    if any(math.isinf(weight) for weight in weights) or math.isinf(supply):
        raise ValueError("a weight or the supply is infinite; expected a number")


# -- several resources at once --


_NOTHING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one team asks for, of each resource; it gets the same part of everything."""

    team: TeamName
    amounts: Mapping[str, float]
    weight: float = 1.0

    def __post_init__(self) -> None:
        for resource, amount in self.amounts.items():
            if not 0 <= amount < math.inf:
                raise ValueError(f"{self.team} asks for {amount} of {resource}; expected a number, 0 or more")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"{self.team} has the weight {self.weight}; expected more than 0")


def share_out(wishes: Sequence[Wish], *, supplies: Mapping[str, float]) -> Mapping[TeamName, float]:
    """Return which part of its wish each team gets, 0..1. Raises ValueError on a resource that nobody supplies."""
    for wish in wishes:
        unknown = sorted(set(wish.amounts) - set(supplies))
        if unknown:
            raise ValueError(f"{wish.team} asks for {', '.join(unknown)}; there are {', '.join(sorted(supplies))}")
    left = dict(supplies)
    parts = {wish.team: 0.0 for wish in wishes}
    paces = {wish.team: _pace(wish, supplies) for wish in wishes}
    rising = [wish for wish in wishes if paces[wish.team] > 0]
    for wish in wishes:
        if not any(wish.amounts.values()):
            parts[wish.team] = 1.0  # It asks for nothing, and has it.
    while rising:
        step = min(_until_full(rising, parts, paces), _until_used_up(rising, left, paces))
        for wish in rising:
            parts[wish.team] = min(1.0, parts[wish.team] + step * paces[wish.team])
            for resource, amount in wish.amounts.items():
                left[resource] -= step * paces[wish.team] * amount
        used_up = {resource for resource, amount in left.items() if amount <= _NOTHING * max(1.0, supplies[resource])}
        rising = [
            wish
            for wish in rising
            if parts[wish.team] < 1.0 - _NOTHING
            and not any(amount > 0 and resource in used_up for resource, amount in wish.amounts.items())
        ]
    return parts


def _pace(wish: Wish, supplies: Mapping[str, float]) -> float:
    """Return which part of its wish a team gets while the level of dominant shares, by weight, rises by 1."""
    if any(amount > 0 and not supplies[resource] for resource, amount in wish.amounts.items()):
        return 0.0
    dominant = max((amount / supplies[resource] for resource, amount in wish.amounts.items() if amount), default=0.0)
    return wish.weight / dominant if dominant else 0.0


def _until_full(rising: Sequence[Wish], parts: Mapping[TeamName, float], paces: Mapping[TeamName, float]) -> float:
    return min((1.0 - parts[wish.team]) / paces[wish.team] for wish in rising)


def _until_used_up(rising: Sequence[Wish], left: Mapping[str, float], paces: Mapping[TeamName, float]) -> float:
    drains = {
        resource: math.fsum(paces[wish.team] * wish.amounts.get(resource, 0.0) for wish in rising) for resource in left
    }
    return min((left[resource] / drain for resource, drain in drains.items() if drain > 0), default=math.inf)


# -- who gets how much of one type of GPU --


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What one team gets, in GPUs."""

    terms: Terms
    asked: float
    owed: float
    """Out of its guarantee."""
    borrowed: float
    kept_idle: float
    """Of its guarantee, unused and yet not lent: reserved, or beyond its lend limit."""

    @property
    def team(self) -> TeamName:
        return self.terms.team

    @property
    def total(self) -> float:
        return self.owed + self.borrowed

    @property
    def lent(self) -> float:
        """What others may have of its guarantee."""
        return self.terms.guarantee - self.owed - self.kept_idle


def allocate(terms: Sequence[Terms], *, asked: Mapping[TeamName, float], supply: float) -> Mapping[TeamName, Granted]:
    """Return what each team gets of `supply`, organisations and their teams both.

    `asked`: what each team without teams of its own wants; who is not named wants nothing. Raises ValueError on a team
    that has no terms or two, on a circle of parents, and on numbers below 0 or NaN.
    """
    return Sharing(terms).grant(asked, supply=supply)


class Sharing:
    """Terms that many supplies are shared out by, one after the other: hours of a day. What they say is read once."""

    def __init__(self, terms: Sequence[Terms]) -> None:
        """Raise ValueError on two terms for a team, a parent without terms, and a circle of parents."""
        self._tree = _tree(terms)
        self._names = tuple(self._tree.by_name)
        self._mosts = [each.most for each in terms]
        self._guarantees = [each.guarantee for each in terms]
        self._weights = [each.weight for each in terms]
        self._ranks = [each.priority for each in terms]
        self._is_plain = len(self._tree.children) == 1 and all(
            each.lend_limit >= each.guarantee and not each.reserved for each in terms
        )
        """Whether there are no organisations, and whatever a guarantee leaves unused is lent."""

    def grant(self, asked: Mapping[TeamName, float], *, supply: float) -> Mapping[TeamName, Granted]:
        """Return what each team gets, as `allocate`."""
        tree = self._tree
        _check_asked(asked, tree)
        wants = _wants(asked, tree)
        granted: dict[TeamName, Granted] = {}
        waiting: list[tuple[TeamName | None, float]] = [(None, supply)]
        while waiting:
            parent, share = waiting.pop()
            for each in _among(tree.children[parent], wants=wants, supply=share):
                granted[each.team] = each
                if each.team in tree.children:
                    waiting.append((each.team, each.total + each.kept_idle))
        return {name: granted[name] for name in tree.by_name}

    def totals(self, asked: Mapping[TeamName, float], *, supply: float) -> Mapping[TeamName, float]:
        """Return how many GPUs each team gets, and no more of it than that."""
        if not self._is_plain:
            return {name: each.total for name, each in self.grant(asked, supply=supply).items()}
        _check_asked(asked, self._tree)
        wants = list(map(min, [asked.get(name, 0.0) for name in self._names], self._mosts))
        if math.fsum(wants) <= supply:
            return dict(zip(self._names, wants, strict=True))
        owed = _by_priority(
            list(map(min, wants, self._guarantees)),
            weights=self._guarantees,
            ranks=self._ranks,
            supply=supply,
        )
        borrowed = _by_priority(
            list(map(sub, wants, owed)),
            weights=self._weights,
            ranks=self._ranks,
            supply=max(0.0, supply - math.fsum(owed)),
        )
        return dict(zip(self._names, map(add, owed, borrowed), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    by_name: Mapping[TeamName, Terms]
    children: Mapping[TeamName | None, Sequence[Terms]]
    inner_first: Sequence[Terms]
    """All, each after those below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Want:
    asked: float
    """What it may have of what it wants; of an organisation with what its own keep idle."""
    owed: float
    """Of that, what is guaranteed: of an organisation at least what it owes to its own."""
    unlent: float
    """What it keeps of its guarantee though it does not need it."""


def _tree(terms: Sequence[Terms]) -> _Tree:
    by_name = {each.team: each for each in terms}
    if len(by_name) != len(terms):
        twice = sorted(name for name in by_name if sum(each.team == name for each in terms) > 1)
        raise ValueError(f"two terms for {', '.join(twice)}; expected one for each team")
    children: dict[TeamName | None, list[Terms]] = defaultdict(list)
    for each in terms:
        if each.parent is not None and each.parent not in by_name:
            raise ValueError(f"{each.team} belongs to {each.parent}, which has no terms")
        children[each.parent].append(each)
    _check_rooted(by_name)
    tree: Mapping[TeamName | None, Sequence[Terms]] = {None: (), **children}
    ordered = list(tree[None])
    for each in ordered:
        ordered.extend(tree.get(each.team, ()))
    return _Tree(by_name=by_name, children=tree, inner_first=tuple(reversed(ordered)))


def _check_rooted(by_name: Mapping[TeamName, Terms]) -> None:
    for name in by_name:
        seen: set[TeamName] = set()
        at: TeamName | None = name
        while at is not None:
            if at in seen:
                raise ValueError(f"{name} belongs to itself by way of {', '.join(sorted(seen))}")
            seen.add(at)
            at = by_name[at].parent


def _check_asked(asked: Mapping[TeamName, float], tree: _Tree) -> None:
    for name, amount in asked.items():
        if name not in tree.by_name:
            raise ValueError(f"{name} asks for {amount:g} GPUs and has no terms; add it to the teams of cluster.yaml")
        if not amount >= 0:
            raise ValueError(f"{name} asks for {amount} GPUs; expected 0 or more")
        if name in tree.children:
            raise ValueError(f"{name} has teams of its own; expected what these ask for")


def _wants(asked: Mapping[TeamName, float], tree: _Tree) -> Mapping[TeamName, _Want]:
    """Return the wants of all, of the innermost first: an organisation wants what its teams may have."""
    wants: dict[TeamName, _Want] = {}
    for terms in tree.inner_first:
        name, below = terms.team, tree.children.get(terms.team)
        if below is None:
            amount = min(asked.get(name, 0.0), terms.most)
            owed = min(amount, terms.guarantee)
        else:
            own = [wants[each.team] for each in below]
            amount = min(math.fsum([each.asked + each.unlent for each in own]), terms.most)
            owed = min(amount, max(terms.guarantee, math.fsum([each.owed + each.unlent for each in own])))
        wants[name] = _Want(asked=amount, owed=owed, unlent=_unlent(terms, owed=owed))
    return wants


def _among(siblings: Sequence[Terms], *, wants: Mapping[TeamName, _Want], supply: float) -> list[Granted]:
    """Return what each of these gets of what they have together."""
    mine = [wants[each.team] for each in siblings]
    ranks = [each.priority for each in siblings]
    owed = _by_priority(
        [each.owed for each in mine],
        weights=[max(each.guarantee, want.owed) for each, want in zip(siblings, mine, strict=True)],
        ranks=ranks,
        supply=supply,
    )
    left = max(0.0, supply - math.fsum(owed))
    # What is used goes before what is kept for nobody: of less than there should be, idle guarantees lose first.
    unlent = [_unlent(each, owed=share) for each, share in zip(siblings, owed, strict=True)]
    kept = pour(unlent, weights=unlent, supply=left).shares
    borrowed = _by_priority(
        [max(0.0, want.asked - share) for want, share in zip(mine, owed, strict=True)],
        weights=[each.weight for each in siblings],
        ranks=ranks,
        supply=max(0.0, left - math.fsum(kept)),
    )
    return [
        Granted(terms=each, asked=want.asked, owed=share, borrowed=more, kept_idle=idle)
        for each, want, share, more, idle in zip(siblings, mine, owed, borrowed, kept, strict=True)
    ]


def _unlent(terms: Terms, *, owed: float) -> float:
    """Return what stays idle of a guarantee though others could use it."""
    unused = max(0.0, terms.guarantee - owed)
    lendable = max(0.0, terms.guarantee - max(owed, terms.reserved))
    return unused - min(terms.lend_limit, lendable)


def _by_priority(
    needs: Sequence[float], *, weights: Sequence[float], ranks: Sequence[int], supply: float
) -> list[float]:
    """Return the shares of a supply that is poured for the highest rank first, what it leaves for the next."""
    if len(set(ranks)) <= 1:
        return list(pour(needs, weights=weights, supply=supply).shares)
    shares = [0.0] * len(needs)
    left = supply
    for rank in sorted(set(ranks), reverse=True):
        places = [place for place, each in enumerate(ranks) if each == rank]
        poured = pour([needs[place] for place in places], weights=[weights[place] for place in places], supply=left)
        for place, share in zip(places, poured.shares, strict=True):
            shares[place] = share
        left = max(0.0, left - math.fsum(poured.shares))
    return shares
