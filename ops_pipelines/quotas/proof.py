"""Proves a proposal of quotas against what it was made from, by other means than those that made it.

Whatever is found here is a fault of ours, or demand too old to act upon: such a proposal is refused, never applied.

What must be done, whatever it moves, is kept apart from what is done by choice: raising to a guarantee, cutting to a
cap, taking what is lost where quotas are more than the supply, and giving what no quota holds. Only the rest has to
stay within the day's step.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ops_pipelines.core.identity import Digest, digest_of
from ops_pipelines.core.proof import PROVER_VERSION, QuotaProof
from ops_pipelines.core.proposal import GpuType, ProposedQuota, QuotaProposal, SupplyLine, TeamName, Terms
from ops_pipelines.quotas.forced_moves import ROUNDING, Agreed
from ops_pipelines.quotas.today import direction_of, held_direction, quotas_lately
from ops_pipelines.teams.desk import QuotaPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofInputs:
    """What a proposal is held against."""

    terms: Mapping[GpuType, Sequence[Terms]]
    """What was agreed on its day, of all declared teams and organisations; strangers need no terms."""
    policy: QuotaPolicy
    earlier: Sequence[QuotaProposal] = ()
    """Those of the days before that were in force, the newest last; none of an earlier try of the same day."""
    supplies: Mapping[GpuType, float] = field(default_factory=dict)
    """What there is now, where it is counted again before applying; a type not named: as the proposal says."""

    def supply_of(self, line: SupplyLine) -> float:
        return min(line.supply, self.supplies.get(line.gpu_type, math.inf))

    def terms_of(self, gpu_type: GpuType) -> Mapping[TeamName, Terms]:
        return {each.team: each for each in self.terms.get(gpu_type, ())}


Proof = Callable[[QuotaProposal, ProofInputs], tuple[str, ...]]
"""Returns each contradiction in words."""


def prove_proposal(proposal: QuotaProposal, inputs: ProofInputs, *, content: Digest, made_at: datetime) -> QuotaProof:
    """Return what every proof finds, each contradiction with the name of its proof; `content` is the proposal's digest.

    A proof that raises, or says nothing that can be read, contradicts.
    """
    supplies = {line.gpu_type: inputs.supply_of(line) for line in proposal.supplies}
    terms = [str(each) for kind in sorted(inputs.terms) for each in inputs.terms[kind]]
    return QuotaProof(
        content=content,
        inputs=digest_of(*(f"{kind} {supplies[kind]}" for kind in sorted(supplies)), *terms),
        version=PROVER_VERSION,
        made_at=made_at,
        checks=tuple(PROOFS),
        contradictions=contradictions_in(proposal, inputs),
    )


def contradictions_in(proposal: QuotaProposal, inputs: ProofInputs) -> tuple[str, ...]:
    """Return what every proof finds, each with the name of its proof."""
    return tuple(
        f"{name}: {found}" for name, (_, find) in PROOFS.items() for found in _contradictions(find, proposal, inputs)
    )


def _contradictions(find: Proof, proposal: QuotaProposal, inputs: ProofInputs) -> tuple[str, ...]:
    try:
        found = find(proposal, inputs)
    except Exception as problem:  # whatever it is, it is no proof
        return (f"the check itself failed: {problem!r}",)
    if not isinstance(found, tuple) or not all(isinstance(each, str) for each in found):
        return (f"the check itself failed: it answered {found!r}",)
    return found


def find_sums_beyond_supply(proposal: QuotaProposal, inputs: ProofInputs) -> tuple[str, ...]:
    """Return each type of which more is given out than there is; while quotas are frozen, what is raised beyond it.

    A freeze leaves quotas as they are, though nodes are lost: then nobody but who is owed may get more.
    """
    problems = []
    for supply in proposal.supplies:
        lines, most = _of(proposal, supply.gpu_type), inputs.supply_of(supply)
        together = sum(line.after for line in lines)
        if together <= most + ROUNDING:
            continue
        if not proposal.frozen_because:
            problems.append(
                f"{_type(supply.gpu_type)}quotas add up to {together:g} GPUs, and {most:g} may be given out; "
                "propose again"
            )
            continue
        agreed = Agreed(lines, inputs.terms_of(supply.gpu_type))
        lacks, shares = agreed.forced().lacks, agreed.shares_of_guarantees(supply.supply)
        problems += [
            f"{_name(line)} rises to {line.after:g} though quotas already are more than the {most:g} GPUs there are"
            for line in lines
            if line.after
            > max(_up(line.before), agreed.least(line), agreed.in_units(line, shares[line.team])) + ROUNDING
            if not any(lacks[team] > ROUNDING for team in agreed.above(line.team))
        ]
    known = {supply.gpu_type for supply in proposal.supplies}
    problems += [
        f"{_name(line)} is of a type of GPU with no supply" for line in proposal.lines if line.gpu_type not in known
    ]
    return tuple(problems)


def find_broken_floors(proposal: QuotaProposal, inputs: ProofInputs) -> tuple[str, ...]:
    """Return each team below its guarantee, or cut below what it ran in the last full hour.

    Where the guarantees do not fit, each is within less than a unit of what is left of it. What ran is kept as long as
    the floors of all fit.
    """
    problems: list[str] = []
    for supply in proposal.supplies:
        agreed = Agreed(_of(proposal, supply.gpu_type), inputs.terms_of(supply.gpu_type))
        lines = agreed.lines.values()
        owed = {line.team: agreed.least(line) for line in lines}
        ran = {line.team: min(line.ran_last, line.before, agreed.top(line)) for line in lines}
        must = {
            line.team: max(owed[line.team], min(agreed.top(line), agreed.in_units(line, ran[line.team])))
            for line in lines
        }
        shares = agreed.shares_of_guarantees(supply.supply)
        is_cut = agreed.guaranteed_together() > supply.supply + ROUNDING
        # A team without a weight may not take what its organisation is guaranteed: others have that.
        spare = max(0.0, supply.supply - math.fsum(shares.values()))
        most = supply.supply + ROUNDING - agreed.odd_units()
        fits_owed, fits_all = agreed.needs(owed)[None] <= most, agreed.needs(must)[None] <= most
        narrow_owed, narrow_all = agreed.narrow(owed), agreed.narrow(must) | agreed.pressed(must)
        for line in lines:
            least, share, unit = owed[line.team], shares[line.team], agreed.unit(line.team)
            above = agreed.above(line.team)
            if fits_owed and line.after < least - ROUNDING and not narrow_owed.intersection(above):
                problems.append(f"{_name(line)} gets {line.after:g}, and is guaranteed {least:g}")
            elif line.after <= share - unit - ROUNDING:
                problems.append(f"{_name(line)} gets {line.after:g}, and {share:.4g} is left of its guarantee")
            elif is_cut and line.after >= share + spare + unit + ROUNDING and not proposal.frozen_because:
                problems.append(
                    f"{_name(line)} gets {line.after:g}, more than the {share:.4g} that are left of its guarantee, and "
                    "others lack of theirs"
                )
            elif fits_all and line.after < _down(ran[line.team]) - ROUNDING and not narrow_all.intersection(above):
                problems.append(
                    f"{_name(line)} falls to {line.after:g}, and ran {ran[line.team]:g} in the last full hour"
                )
    return tuple(problems)


def find_passed_caps(proposal: QuotaProposal, inputs: ProofInputs) -> tuple[str, ...]:
    """Return each team and organisation with more than was agreed at most, and quotas that are no whole units."""
    problems = []
    for supply in proposal.supplies:
        agreed = Agreed(_of(proposal, supply.gpu_type), inputs.terms_of(supply.gpu_type))
        for line in agreed.lines.values():
            most, unit = agreed.most(line), agreed.unit(line.team)
            if line.after > most + ROUNDING:
                problems.append(f"{_name(line)} gets {line.after:g}, and {most:g} at most was agreed")
            if line.after % unit and not proposal.frozen_because:
                problems.append(f"{_name(line)} gets {line.after:g}, which is no whole multiple of {unit:g}")
        problems += [
            f"{_type(supply.gpu_type)}the teams of {team} get {together:g} together, and "
            f"{agreed.terms[team].most:g} at most was agreed with {team}"
            for team, together in agreed.sums().items()
            if together > agreed.terms[team].most + ROUNDING
        ]
    return tuple(problems)


def find_broken_organisations(proposal: QuotaProposal, inputs: ProofInputs) -> tuple[str, ...]:
    """Return each organisation whose teams get less together than it is guaranteed, though they may have as much.

    Less than a unit may lack where that is more than a GPU. Where guarantees do not fit, `find_broken_floors` says what
    is left to each team.
    """
    problems = []
    for supply in proposal.supplies:
        agreed = Agreed(_of(proposal, supply.gpu_type), inputs.terms_of(supply.gpu_type))
        owed = {line.team: agreed.least(line) for line in agreed.lines.values()}
        if agreed.needs(owed)[None] + agreed.odd_units() > supply.supply + ROUNDING:
            continue
        narrow, rooms = agreed.narrow(owed), agreed.rooms()
        for team, together in agreed.sums().items():
            inside = (each for each in agreed.organisations if team in agreed.above(each))
            if narrow.intersection((team, *agreed.above(team), *inside)):
                continue
            missing = _down(min(agreed.terms[team].guarantee, rooms[team])) - together
            if missing >= agreed.largest_unit(agreed.below[team]) - ROUNDING:
                problems.append(
                    f"{_type(supply.gpu_type)}the teams of {team} get {together:g} together, and {team} is guaranteed "
                    f"{agreed.terms[team].guarantee:g}"
                )
    return tuple(problems)


def find_passed_steps(proposal: QuotaProposal, inputs: ProofInputs) -> tuple[str, ...]:
    """Return each type of which more moves by choice than may in a day, of all teams together."""
    problems = []
    caps = dict(proposal.step_caps)
    for supply in proposal.supplies:
        if supply.gpu_type not in caps:
            problems.append(f"{_type(supply.gpu_type)}no step is named; expected how many GPUs may move")
            continue
        most = min(caps[supply.gpu_type], inputs.policy.rebalance.step_cap_ratio * supply.supply)
        agreed = Agreed(_of(proposal, supply.gpu_type), inputs.terms_of(supply.gpu_type))
        if agreed.guaranteed_together() > supply.supply + ROUNDING:
            continue  # Nothing is left to choose: `find_broken_floors` says what each has, to less than a unit.
        moved = _moved_by_choice(agreed, supply=supply.supply)
        if moved > most + ROUNDING:
            problems.append(f"{_type(supply.gpu_type)}{moved:.4g} GPUs move by choice, and {most:.4g} may in a day")
    return tuple(problems)


def find_flip_flops(proposal: QuotaProposal, inputs: ProofInputs) -> tuple[str, ...]:
    """Return each quota that turns for the third time within `looked_at_days`, by more than the dead band.

    Turning is going up after going down, or down after up; a change of no more than a unit, or than the least gain's
    share of the quota, is none. What must be done is done all the same: what is owed, above a cap, lost or free.
    """
    settings = inputs.policy.rebalance
    problems = []
    for line in proposal.lines:
        terms = inputs.terms_of(line.gpu_type).get(line.team)
        unit = terms.unit if terms is not None else 1.0
        now = {line.team: line.before}
        past = quotas_lately(proposal.day, inputs.earlier, gpu_type=line.gpu_type, now=now, settings=settings)
        held = held_direction(line.team, [*past, now], unit=unit, settings=settings)
        goes = direction_of(line.before, line.after, unit=unit, settings=settings)
        if held and goes == -held and not _must(line, proposal, inputs.terms_of(line.gpu_type)):
            problems.append(
                f"{_name(line)} goes from {line.before:g} to {line.after:g}, and turned twice in "
                f"the last {settings.looked_at_days} days; it must not turn again yet"
            )
    return tuple(problems)


def find_moves_in_freeze(proposal: QuotaProposal, inputs: ProofInputs) -> tuple[str, ...]:
    """Return each quota that moves while quotas are frozen, other than to what is owed, or to a cap."""
    if not proposal.frozen_because:
        return ()
    problems = []
    for gpu_type in sorted({line.gpu_type for line in proposal.lines}):
        agreed = Agreed(_of(proposal, gpu_type), inputs.terms_of(gpu_type))
        forced, supply = (
            agreed.forced(),
            next((each.supply for each in proposal.supplies if each.gpu_type == gpu_type), 0.0),
        )
        # What an organisation is guaranteed is given to its teams, where not all guarantees fit as well.
        shares = agreed.shares_of_guarantees(supply)
        given = {
            team: max(forced.due[team], agreed.in_units(line, shares[team])) for team, line in agreed.lines.items()
        }
        # What is given may fill an organisation beyond its cap: then others of its teams give it back.
        beyond = agreed.forced(given).beyond
        for line in agreed.lines.values():
            above = agreed.above(line.team)
            is_given = line.after <= given[line.team] or any(forced.lacks[team] > ROUNDING for team in above)
            is_taken = line.after >= forced.due[line.team] - 1 or any(beyond[team] > ROUNDING for team in above)
            is_forced = is_given if line.after > line.before else is_taken
            if abs(line.after - line.before) >= 1 + ROUNDING and not is_forced:
                problems.append(f"{_name(line)} goes from {line.before:g} to {line.after:g} though quotas stand still")
        for team, below in agreed.below.items():
            inside = {team, *(each for each in agreed.organisations if team in agreed.above(each))}
            about = {*inside, *agreed.above(team)}
            odd = agreed.largest_unit(below) * len(inside) + len(below)
            rises = math.fsum(max(0.0, line.after - max(line.before, given[line.team])) for line in below)
            falls = math.fsum(max(0.0, min(line.before, forced.due[line.team]) - line.after) for line in below)
            for words, moved, most in (
                ("given", rises, math.fsum(forced.lacks[each] for each in about)),
                ("taken", falls, math.fsum(beyond[each] for each in about)),
            ):
                if moved >= most + odd + ROUNDING:
                    problems.append(
                        f"{_type(gpu_type)}the teams of {team} are {words} {moved:g} GPUs though quotas stand still, "
                        f"and {most:g} must be"
                    )
    return tuple(problems)


def find_stale_inputs(proposal: QuotaProposal, inputs: ProofInputs) -> tuple[str, ...]:
    """Return what is old, missing or no number: demand, hours, declared teams, amounts."""
    problems = []
    policy = inputs.policy
    if proposal.demand_until is None:
        problems.append("no demand was seen; materialise gpu_demand, and propose again")
    elif proposal.demand_until > proposal.made_at:
        problems.append(f"demand until {proposal.demand_until:%Y-%m-%d %H:%M} UTC is later than the proposal")
    elif proposal.made_at - proposal.demand_until > policy.demand_max_age:
        age = proposal.made_at - proposal.demand_until
        problems.append(
            f"demand is known until {proposal.demand_until:%Y-%m-%d %H:%M} UTC, {age} before the proposal was made; "
            f"expected no more than {policy.demand_max_age}: materialise gpu_demand, and propose again"
        )
    if not proposal.known_hour_ratio >= policy.known_hour_min_ratio:
        problems.append(
            f"{proposal.known_hour_ratio:.0%} of the hours are known; expected {policy.known_hour_min_ratio:.0%}: "
            "materialise the missing hours of gpu_demand"
        )
    problems += _missing_lines(proposal, inputs)
    for line in proposal.lines:
        amounts = (line.before, line.after, line.guarantee, line.floor, line.ran_last, line.wanted_mean)
        if not all(0 <= amount < math.inf for amount in amounts) or not math.isfinite(line.debt) or not line.most >= 0:
            problems.append(f"{_name(line)} has an amount that is no number of GPUs")
    for supply in proposal.supplies:
        if not 0 <= supply.supply < math.inf:
            problems.append(f"{_type(supply.gpu_type)}the supply is {supply.supply}; expected 0 or more GPUs")
    return tuple(problems)


PROOFS: Mapping[str, tuple[str, Proof]] = {
    "sum_within_supply": (
        "Quotas add up to no more than what is healthy and not kept back; in a freeze none rises beyond its guarantee.",
        find_sums_beyond_supply,
    ),
    "floors_kept": (
        "Nobody is below a guarantee, nor cut below what ran in the last hour, as long as all of that fits.",
        find_broken_floors,
    ),
    "caps_kept": ("No team and no organisation has more than was agreed; quotas are whole units.", find_passed_caps),
    "organisations_kept": (
        "The teams of an organisation have what it is guaranteed, together.",
        find_broken_organisations,
    ),
    "no_flip_flop": ("No quota turns for the third time within a few days.", find_flip_flops),
    "step_within_cap": (
        "All teams together move no more by choice than may move in a day.",
        find_passed_steps,
    ),
    "freeze_kept": ("While quotas stand still, only what was agreed is given.", find_moves_in_freeze),
    "inputs_fresh": (
        "Demand is fresh and known; every declared team has a line, and every amount is a number.",
        find_stale_inputs,
    ),
}
"""Each proof by the name of its check: what must hold, and what finds the contradictions."""


def _moved_by_choice(agreed: Agreed, *, supply: float) -> float:
    """Return how many GPUs are given, or taken if these are more, that need not have been."""
    kept, shares = agreed.forced().due, agreed.shares_of_guarantees(supply)
    # Where an organisation may not have all that is guaranteed below it, each has its share of that: no choice either.
    forced = agreed.forced(
        {
            team: max(kept[team], min(agreed.top(line), agreed.in_units(line, shares[team])))
            for team, line in agreed.lines.items()
        }
    )
    free, lost = max(0.0, supply - forced.together), max(0.0, forced.together - supply)
    ups, downs, odds = [], [], []
    for team, line in agreed.lines.items():
        due, unit = forced.due[team], agreed.unit(team)
        up, down = max(0.0, line.after - max(due, line.before)), max(0.0, kept[team] - line.after)
        ups.append(up)
        downs.append(down)
        # What stood before beyond whole units is no move, whichever way it is rounded.
        odds.append(min(up, -max(due, line.before) % unit) + min(down, due % unit))
    sums = agreed.sums()
    bound = [
        below
        for team, below in agreed.below.items()
        if forced.lacks[team] > ROUNDING
        or forced.beyond[team] > ROUNDING
        or sums[team] < agreed.terms[team].guarantee + agreed.largest_unit(below)
    ]
    lacking = math.fsum(
        agreed.largest_unit(agreed.below[team]) - 1 for team, lack in forced.lacks.items() if lack > ROUNDING
    )
    # What is lost is taken in whole units, and so is what the units of an organisation need beyond its guarantee.
    if forced.together + lacking > supply + ROUNDING:
        bound.append(list(agreed.lines.values()))
    # Anyone who must be brought to an amount is so in whole units: once for each amount, less than the largest unit.
    odd = math.fsum(odds) + math.fsum(agreed.largest_unit(below) - 1 for below in bound)
    given = math.fsum(ups) - free - math.fsum(forced.lacks.values()) - odd
    taken = math.fsum(downs) - lost - math.fsum(forced.beyond.values()) - odd
    return max(given, taken)


def _must(line: ProposedQuota, proposal: QuotaProposal, terms: Mapping[TeamName, Terms]) -> bool:
    """Return whether this change has to be, whatever was before."""
    agreed = Agreed(_of(proposal, line.gpu_type), terms)
    supply = next((each.supply for each in proposal.supplies if each.gpu_type == line.gpu_type), 0.0)
    if agreed.guaranteed_together() > supply + ROUNDING:
        return True  # Then nothing is left to choose.
    forced, above = agreed.forced(), agreed.above(line.team)
    if line.after > line.before:
        # Where guarantees do not fit below an organisation, each has its share of what is guaranteed above it as well.
        share = agreed.in_units(line, agreed.shares_of_guarantees(supply)[line.team])
        is_owed = line.after <= max(agreed.least(line), share) or any(forced.lacks[team] > ROUNDING for team in above)
        return is_owed or forced.together < supply - ROUNDING
    is_beyond = line.before > agreed.top(line) or any(forced.beyond[team] > ROUNDING for team in above)
    return is_beyond or forced.together > supply + ROUNDING


def _missing_lines(proposal: QuotaProposal, inputs: ProofInputs) -> Iterator[str]:
    """Yield each declared team without a line, or with two, and each organisation with one."""
    for supply in proposal.supplies:
        terms = inputs.terms_of(supply.gpu_type)
        organisations = {each.parent for each in terms.values()}
        named = [line.team for line in _of(proposal, supply.gpu_type)]
        for team in sorted(terms):
            expected = 0 if team in organisations else 1
            if named.count(team) != expected:
                yield (
                    f"{_type(supply.gpu_type)}{team} has {named.count(team)} lines; expected "
                    f"{'none: its teams have them' if not expected else 'one'}"
                )


def _of(proposal: QuotaProposal, gpu_type: GpuType) -> tuple[ProposedQuota, ...]:
    return tuple(line for line in proposal.lines if line.gpu_type == gpu_type)


def _up(amount: float) -> float:
    return float(math.ceil(amount - ROUNDING)) if math.isfinite(amount) else amount


def _down(amount: float) -> float:
    return float(math.floor(amount + ROUNDING)) if math.isfinite(amount) else amount


def _name(line: ProposedQuota) -> str:
    return f"{line.team} {line.gpu_type}" if line.gpu_type else line.team


def _type(gpu_type: GpuType) -> str:
    return f"{gpu_type}: " if gpu_type else ""
