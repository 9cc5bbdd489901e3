"""Finds guarantees that cannot be kept on a day: by the cluster, by an organisation; and who may borrow in vain. Pure.

What is guaranteed is counted as `allocation` keeps it: an organisation owes at least what it owes to its own. What else
can be wrong, and which days are looked at, is `quota_lint`'s.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date

from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.domain.quota.capacity import Capacity
from ops_pipelines.teams.contracts import Agreements, Remark, RemarkKind, from_the_top, joined, type_prefix

_ROUNDING = 1e-6
"""GPUs by which sums may differ by rounding alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """What is guaranteed on one day, of one type of GPU."""

    gpu_type: GpuType
    agreements: Agreements
    terms: Mapping[TeamName, Terms]
    floors: Mapping[TeamName, float]

    def below(self, parent: TeamName | None) -> Mapping[TeamName, float]:
        """Return what each of those is owed that belong to `parent`."""
        return {team: self.floors[team] for team in self.agreements.children.get(parent, ())}


def owed_on(day: date, agreements: Agreements, gpu_type: GpuType) -> Owed:
    """Return what is owed to each team on this day."""
    terms = {each.team: each for each in agreements.terms_on(day, gpu_type)}
    floors: dict[TeamName, float] = {}
    for team in reversed(from_the_top(agreements.children)):
        own = math.fsum(floors[each] for each in agreements.children.get(team, ()))
        floors[team] = min(terms[team].most, max(terms[team].guarantee, own))
    return Owed(gpu_type=gpu_type, agreements=agreements, terms=terms, floors=floors)


def beyond_installed(owed: Owed, capacity: Capacity) -> Iterator[Remark]:
    """Yield a remark if more is guaranteed than there is with every GPU healthy."""
    together = math.fsum(owed.below(None).values())
    if together > capacity.installed + _ROUNDING:
        yield Remark(
            kind=RemarkKind.BEYOND_INSTALLED,
            gpu_type=owed.gpu_type,
            text=f"{type_prefix(owed.gpu_type)}{together:g} GPUs are guaranteed ({_largest(owed.below(None))}) and "
            f"{capacity.installed:g} are installed; lower a guarantee, or end a contract",
        )


def beyond_healthy(owed: Owed, capacity: Capacity) -> Iterator[Remark]:
    """Yield a remark if more is guaranteed than is healthy, though not more than there is."""
    together = math.fsum(owed.below(None).values())
    if capacity.healthy + _ROUNDING < together <= capacity.installed + _ROUNDING:
        yield Remark(
            kind=RemarkKind.BEYOND_HEALTHY,
            gpu_type=owed.gpu_type,
            text=f"{type_prefix(owed.gpu_type)}{together:g} GPUs are guaranteed and {capacity.healthy:g} of "
            f"{capacity.installed:g} are healthy: guarantees are kept by priority, then in proportion; repair nodes, "
            "or guarantee less, so that a broken rack is nobody's loss",
        )


def beyond_parents(owed: Owed) -> Iterator[Remark]:
    """Yield the organisations whose teams are guaranteed more than it may ever have."""
    for team in sorted(owed.agreements.organisations):
        together, own = math.fsum(owed.below(team).values()), owed.terms[team]
        if together > own.most + _ROUNDING:
            limit = "its cap" if own.most == own.cap else "guarantee and borrow_limit together"
            yield Remark(
                kind=RemarkKind.BEYOND_PARENT,
                team=team,
                gpu_type=owed.gpu_type,
                text=f"{_of_the_teams(team, owed)}, and {team} never gets more than {own.most:g} ({limit}); lower a "
                f"guarantee, or raise what {team} may have",
            )


def beyond_agreed(owed: Owed, day: date) -> Iterator[Remark]:
    """Yield the organisations whose teams are guaranteed more than was agreed with it.

    Without a contract of its own it is no more than the sum of its teams, and there is nothing to say.
    """
    for team in sorted(owed.agreements.organisations):
        together, own = math.fsum(owed.below(team).values()), owed.terms[team]
        has_contract = owed.agreements.contract_on(day, team=team, gpu_type=owed.gpu_type) is not None
        if has_contract and own.guarantee + _ROUNDING < together <= own.most + _ROUNDING:
            yield Remark(
                kind=RemarkKind.BEYOND_AGREED,
                team=team,
                gpu_type=owed.gpu_type,
                text=f"{_of_the_teams(team, owed)}, and {team} {own.guarantee:g}: what its teams are guaranteed is "
                f"kept; agree on {together:g} with {team}, or lower theirs",
            )


def no_weights(owed: Owed) -> Iterator[Remark]:
    """Yield the organisations, or the cluster, in which all who may borrow have weight 0."""
    for parent, siblings in owed.agreements.children.items():
        borrowers = [each for each in siblings if owed.terms[each].most > owed.terms[each].guarantee]
        if borrowers and all(owed.terms[each].weight == 0 for each in borrowers):
            yield Remark(
                kind=RemarkKind.NO_WEIGHT,
                team=parent,
                gpu_type=owed.gpu_type,
                text=f"{type_prefix(owed.gpu_type)}every team of {parent or 'the cluster'} that may borrow has weight "
                f"0 ({joined(borrowers)}): what is left would lie idle while they queue; give one a weight, or all "
                "borrow_limit: 0",
            )


def _of_the_teams(team: TeamName, owed: Owed) -> str:
    below = owed.below(team)
    return (
        f"{type_prefix(owed.gpu_type)}the teams of {team} are guaranteed {math.fsum(below.values()):g} GPUs together "
        f"({_largest(below)})"
    )


def _largest(amounts: Mapping[TeamName, float]) -> str:
    ordered = sorted((each for each in amounts.items() if each[1]), key=lambda each: (-each[1], each[0]))
    return joined([f"{team} {amount:g}" for team, amount in ordered])
