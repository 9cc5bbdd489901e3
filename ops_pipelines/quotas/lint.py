"""Finds agreements that a cluster cannot keep on a day, and what nobody declared.

What is guaranteed is counted as `allocation` keeps it: an organisation owes at least what it owes to its own. What else
can be wrong, and which days are looked at, is `quota_lint`'s.

What is false today is an error, what turns false on a later day a warning that names the day: there is time to buy, to
sign or to correct. What is false on every day (circles, overlaps) is refused where it is made, in `contracts`. Sums of
guarantees are `guarantee_lint`'s.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date

from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.quotas.today import Capacity
from ops_pipelines.teams.contracts import (
    Agreements,
    Contract,
    Remark,
    RemarkKind,
    Remarks,
    from_the_top,
    joined,
    type_prefix,
)
from ops_pipelines.teams.projects import Project

# -- finds guarantees that cannot be kept on a day --


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


# -- finds what a cluster cannot keep of what was agreed --


_AHEAD_DAYS = 90
"""# Assumption: GPUs are bought and contracts signed a quarter ahead; who is notified earlier postpones it."""
_ENDS_SOON_DAYS = 30
"""# Assumption: a month is enough to renew a contract."""
_SHOWN = 80
"""Characters shown of a name that the scheduler gave."""


def lint_quotas(agreements: Agreements, *, day: date, capacity: Mapping[GpuType, Capacity]) -> Remarks:
    """Return what is wrong with the agreements on this local day, and what will be within a quarter.

    `capacity` has every type of GPU that the cluster has.
    """
    foreign = [each for each in agreements.contracts if each.gpu_type not in capacity]
    errors = list(_false_on(day, agreements, capacity=capacity, foreign=foreign))
    said = {(each.kind, each.team, each.gpu_type) for each in errors}
    warnings: list[Remark] = []
    for later in _days_of_change(agreements, day=day):
        for each in _false_on(later, agreements, capacity=capacity, foreign=foreign):
            if (each.kind, each.team, each.gpu_type) not in said:
                said.add((each.kind, each.team, each.gpu_type))
                warnings.append(replace(each, text=f"from {later} on: {each.text}"))
    errors += _projects_without_gpus(agreements, day=day, capacity=capacity)
    for gpu_type in sorted(capacity):
        owed = owed_on(day, agreements, gpu_type)
        warnings += [*beyond_healthy(owed, capacity[gpu_type]), *beyond_agreed(owed, day)]
    warnings += _ends_soon(agreements, day=day)
    warnings += _projects_of_organisations(agreements, day=day)
    warnings += _projects_beyond_terms(agreements, day=day)
    return Remarks(errors=tuple(errors), warnings=tuple(warnings))


def _days_of_change(agreements: Agreements, *, day: date) -> list[date]:
    changes = {each.valid_from for each in agreements.contracts}
    changes |= {each.valid_until for each in agreements.contracts if each.valid_until is not None}
    return sorted(each for each in changes if 0 < (each - day).days <= _AHEAD_DAYS)


def _false_on(
    day: date, agreements: Agreements, *, capacity: Mapping[GpuType, Capacity], foreign: Collection[Contract]
) -> Iterator[Remark]:
    for each in foreign:
        if each.holds_on(day):
            yield Remark(
                kind=RemarkKind.UNKNOWN_GPU_TYPE,
                team=each.team,
                gpu_type=each.gpu_type,
                text=f"{each.words} is for {_named(each.gpu_type)}; the cluster has {_types(capacity)}; correct "
                "gpu_type, or end the contract",
            )
    for gpu_type in sorted(capacity):
        owed = owed_on(day, agreements, gpu_type)
        yield from beyond_installed(owed, capacity[gpu_type])
        yield from beyond_parents(owed)
        yield from no_weights(owed)


def _ends_soon(agreements: Agreements, *, day: date) -> Iterator[Remark]:
    for each in agreements.contracts:
        ends = each.valid_until
        if ends is None or not each.holds_on(day) or not each.terms.guarantee or (ends - day).days > _ENDS_SOON_DAYS:
            continue
        if agreements.contract_on(ends, team=each.team, gpu_type=each.gpu_type) is None:
            yield Remark(
                kind=RemarkKind.ENDS_SOON,
                team=each.team,
                gpu_type=each.gpu_type,
                text=f"{each.words} ends and none follows: from then on nothing is guaranteed to {each.team}; add the "
                "next contract, or leave it so",
            )


def _projects_to_come(agreements: Agreements, *, day: date) -> Iterator[Project]:
    return (each for each in agreements.projects if each.ends_on is None or day < each.ends_on)


def _projects_without_gpus(
    agreements: Agreements, *, day: date, capacity: Mapping[GpuType, Capacity]
) -> Iterator[Remark]:
    """Yield the projects for a type that is neither there nor, by any contract, to come."""
    known = capacity.keys() | {each.gpu_type for each in agreements.contracts}
    for each in _projects_to_come(agreements, day=day):
        if each.gpu_type not in known:
            yield Remark(
                kind=RemarkKind.PROJECT_WITHOUT_GPUS,
                team=each.team,
                gpu_type=each.gpu_type,
                text=f"{each.words} wants {_named(each.gpu_type)}; the cluster has {_types(capacity)}; correct "
                "gpu_type, or leave the project out",
            )


def _projects_beyond_terms(agreements: Agreements, *, day: date) -> Iterator[Remark]:
    for each in _projects_to_come(agreements, day=day):
        if each.team not in agreements.askers:
            continue  # reported already, and its terms are no team's
        held = agreements.contract_on(max(day, each.begins_on), team=each.team, gpu_type=each.gpu_type)
        most = (Terms(team=each.team, guarantee=0.0) if held is None else held.terms).most
        if each.gpus > most:
            yield Remark(
                kind=RemarkKind.PROJECT_BEYOND_TERMS,
                team=each.team,
                gpu_type=each.gpu_type,
                text=f"{each.words} wants {each.gpus:g} GPUs and {each.team} never gets more than {most:g}; raise its "
                "cap or borrow_limit, or plan for fewer",
            )


def _projects_of_organisations(agreements: Agreements, *, day: date) -> Iterator[Remark]:
    """Yield the projects that nobody asks for: an organisation wants what its teams want."""
    for each in _projects_to_come(agreements, day=day):
        if each.team not in agreements.askers:
            yield Remark(
                kind=RemarkKind.PROJECT_OF_ORGANISATION,
                team=each.team,
                gpu_type=each.gpu_type,
                text=f"{each.words} is of an organisation, whose teams are {joined(agreements.children[each.team])}: "
                "what it wants is left out; write it down for one of these",
            )


def find_missing_accounts(agreements: Agreements, *, known: Collection[TeamName]) -> tuple[TeamName, ...]:
    """Return the declared teams, and organisations, that the scheduler has no account for: no limit holds them."""
    return tuple(sorted(agreements.parents.keys() - set(known)))


def _named(gpu_type: GpuType) -> str:
    return f"GPUs of type {gpu_type}" if gpu_type else "GPUs without a type"


def _types(capacity: Mapping[GpuType, Capacity]) -> str:
    names = [_named(each) if not each else str(each) for each in sorted(capacity)]
    return f"{joined(names)}" if names else "no GPUs"
