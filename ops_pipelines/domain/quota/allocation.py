"""Who gets how much of one type of GPU: guarantees first, then what is left, lent from those who do not need it. Pure.

Among equals (the teams of one organisation, the organisations of the cluster):

1. each gets of its guarantee what it asks for; if that is more than there is, by priority, then in proportion;
2. of what a guarantee leaves unused, others get no more than its lend limit, and never what is reserved;
3. all that is left is poured by priority, then by weight, up to what each asks for and may have.

What an organisation gets is shared out among its own in the same way. The result is the weighted max-min fair one.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add, sub

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.domain.quota.water_filling import pour


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
