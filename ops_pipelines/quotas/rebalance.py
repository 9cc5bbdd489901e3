"""Tomorrow's quotas from today's: which GPUs move, from whom to whom, and why.

A GPU moves from where it is least likely to be requested to where it is most likely, until no move gains enough or the
day's step is used up. What was agreed comes first, with teams and with their organisations: nobody is left below a
guarantee, above a cap, or below what ran in the last full hour; nobody gives before enough days agree. What is lost by
broken nodes is taken before anything moves. How each step is done is `moving`'s.
"""

import math
from collections.abc import Mapping, Sequence

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.quotas.demand import QueueChance
from ops_pipelines.quotas.moving import NOTHING, Quotas
from ops_pipelines.quotas.today import QuotaLine, Rebalanced, Today, held_direction
from ops_pipelines.teams.desk import RebalanceSettings

# -- tomorrow's quotas of one type of GPU from today's --


def rebalance(today: Today, *, settings: RebalanceSettings) -> Rebalanced:
    """Return the quotas that hold next.

    Guarantees that do not fit into the supply are cut by priority, then in proportion. While quotas are frozen, what
    was agreed is given, and nothing is taken but what is above a cap: their sum may exceed the supply.
    """
    quotas = Quotas(today)
    agreeing = {each.team: _is_too_large(each.team, today, settings) for each in quotas.leaves}
    held = _held(quotas, today, settings)
    step_cap = settings.step_cap_ratio * today.supply
    agreed: Sequence[float] | None = None
    gangs: Mapping[TeamName, int] = {}
    quotas.keep_what_is_agreed()
    if not today.frozen_because:
        quotas.take_what_is_lost()
        quotas.give_what_is_free()
        begun = list(quotas.now)
        if today.returns_to_contract:
            agreed = quotas.go_back(held=held, most=step_cap)
        else:
            givers = {team for team, is_agreed in agreeing.items() if is_agreed}
            quotas.exchange(givers=givers, held=held, most=step_cap, least_gain=settings.least_gain_ratio)
            if today.gangs:
                moved = math.fsum(max(0.0, now - then) for now, then in zip(quotas.now, begun, strict=True))
                gangs = quotas.round_up_to_gangs(today.gangs, givers=givers, held=held, most=step_cap - moved)
    return _result(quotas, today, agreeing=agreeing, held=held, agreed=agreed, gangs=gangs, step_cap=step_cap)


def wished_quotas(
    terms: Sequence[Terms],
    chances: Mapping[TeamName, QueueChance],
    *,
    supply: float,
    strangers: frozenset[TeamName] = frozenset(),
    debts: Mapping[TeamName, float] | None = None,
) -> Mapping[TeamName, float]:
    """Return the quotas under which the fewest GPUs are expected to be requested in vain, whatever holds today.

    Guarantees and caps are kept; what nobody is expected to want is shared out by weight.
    """
    quotas = Quotas(
        Today(
            terms=terms,
            quotas={},
            chances=chances,
            too_large=(),
            supply=supply,
            strangers=strangers,
            debts=debts or {},
        )
    )
    quotas.keep_what_is_agreed()
    quotas.give_what_is_free()
    return {each.team: quota for each, quota in zip(quotas.leaves, quotas.now, strict=True)}


def _is_too_large(team: TeamName, today: Today, settings: RebalanceSettings) -> bool:
    looked_at = today.too_large[-settings.looked_at_days :]
    found = sum(wished.get(team, 0.0) < today.quotas.get(team, 0.0) - NOTHING for wished in looked_at)
    return found >= min(settings.agreeing_days, max(1, len(looked_at)))


def _held(quotas: Quotas, today: Today, settings: RebalanceSettings) -> Mapping[TeamName, int]:
    """Return the teams that turned too often of late, and the one way in which they may still go."""
    if not today.lately:
        return {}
    known = [*today.lately[-settings.looked_at_days :], today.quotas]
    found = {each.team: held_direction(each.team, known, unit=each.unit, settings=settings) for each in quotas.leaves}
    return {team: direction for team, direction in found.items() if direction}


def _result(
    quotas: Quotas,
    today: Today,
    *,
    agreeing: Mapping[TeamName, bool],
    held: Mapping[TeamName, int],
    agreed: Sequence[float] | None,
    gangs: Mapping[TeamName, int],
    step_cap: float,
) -> Rebalanced:
    bounding = quotas.bounding()
    lines = tuple(
        QuotaLine(
            terms=each,
            before=quotas.before[place],
            after=quotas.now[place],
            floor=quotas.floors[place],
            is_agreed_too_large=agreeing[each.team],
            wanted_before=quotas.chances[place].at(quotas.before[place]),
            wanted_after=quotas.chances[place].at(quotas.now[place]),
            owed=quotas.owed[place] if quotas.owed[place] < each.guarantee - NOTHING else None,
            gang=gangs.get(each.team, 0),
            agreed=None if agreed is None else agreed[place],
            bound_by=bounding.get(each.team),
            is_held=each.team in held,
        )
        for place, each in enumerate(quotas.leaves)
    )
    changes = math.fsum(abs(line.after - line.before) for line in lines)
    return Rebalanced(
        lines=lines,
        supply=today.supply,
        moved=changes / 2,
        step_cap=step_cap,
        frozen_because=today.frozen_because,
        returns_to_contract=today.returns_to_contract,
    )


# -- why a quota changed or did not, in words and numbers for the team's lead --


_SAME = 0.05
"""GPUs: less than that is reported as no change."""
_HOURS = 24
_NAMED = 5
"""Teams that are named in a headline; of the others the number."""


def reason_of(line: QuotaLine, *, of: Rebalanced, project: str = "", is_stranger: bool = False) -> str:
    """Return why this line is what it is, in one sentence or two.

    `project`: what begins or ends, in words; `is_stranger`: nothing was agreed with the team.
    """
    said = _why(line, of)
    if line.gang:
        said = f"its jobs take {_gpus(line.gang)}, and with less none of them starts; {said}"
    if project:
        said = f"{project}; {said}"
    if is_stranger:
        said = f"no contract names {line.team}: it gets what nobody else is expected to want; {said}"
    return said


def counterfactual_of(line: QuotaLine, *, chance: QueueChance) -> str:
    """Return what the team is expected to miss in a day with its new quota, and what it would with the old one."""
    new, old = (_HOURS * chance.unserved(quota) for quota in (line.after, line.before))
    if abs(line.after - line.before) < _SAME:
        return f"expected to wait: {_gpu_hours(new)} a day"
    return f"expected to wait: {_gpu_hours(new)} a day; without the change {_gpu_hours(old)}"


def moves_in_words(changes: Mapping[TeamName, float], *, moved: float, supply: float, step_cap: float) -> str:
    """Return how many GPUs move, and who gets more and less of them."""
    return (
        f"{moved:.4g} of {_gpus(supply)} move (by choice at most {step_cap:.4g} a day): "
        f"{_named({team: change for team, change in changes.items() if change > 0}, 'more')}; "
        f"{_named({team: change for team, change in changes.items() if change < 0}, 'less')}"
    )


def _why(line: QuotaLine, of: Rebalanced) -> str:
    change = line.after - line.before
    if line.owed is not None and not of.frozen_because:
        return (
            f"not all guarantees fit into the {_gpus(of.supply)} that may be shared out; they are kept by priority, "
            f"then in proportion: {_gpus(line.after)} of its {_gpus(line.terms.guarantee)}"
        )
    if of.frozen_because and abs(change) < _SAME:
        return _why_frozen(of)
    if change < -_SAME and line.before > line.terms.most + _SAME and line.after >= line.terms.most - line.terms.unit:
        return f"cut to the most that was agreed, {_gpus(line.terms.most)}"
    if line.agreed is not None:
        return _why_back(line, of, goal=line.agreed)
    if abs(change) < _SAME:
        return _why_kept(line, of)
    if change > 0:
        return _why_more(line)
    return _why_less(line, of)


def _why_frozen(of: Rebalanced) -> str:
    kept = f"quotas stand still: {of.frozen_because}"
    together = sum(line.after for line in of.lines)
    if together > of.supply + _SAME:
        return (
            f"{kept}; together they are {_gpus(together)}, of {_gpus(of.supply)} to give out: jobs may wait for nodes"
        )
    return kept


def _why_back(line: QuotaLine, of: Rebalanced, *, goal: float) -> str:
    back = f"back toward what was agreed, {_gpus(goal)} by guarantee and weight, after {of.returns_to_contract}"
    if abs(line.after - goal) < max(line.terms.unit, 1.0):
        return back
    if line.is_held:
        return f"{back}; it went up and down by turns of late, and does not turn again yet"
    return f"{back}; {_gpus(of.step_cap)} may move in a day, of all teams together"


def _why_more(line: QuotaLine) -> str:
    before, after = _share(line.wanted_before), _share(line.wanted_after)
    if line.before < line.terms.guarantee - _SAME and line.after <= line.terms.guarantee + _SAME:
        return f"raised to its guarantee of {_gpus(line.terms.guarantee)}"
    if line.before < line.floor - _SAME and line.after <= line.floor + _SAME:
        return f"raised to {_gpus(line.after)}, its part of what its organisation is guaranteed"
    if not line.wanted_before:
        return f"{_gpus(line.after - line.before)} that no team is expected to want, shared out by weight"
    return f"it wants more than {_gpus(line.before)} in {before} of the time; more than {_gpus(line.after)} in {after}"


def _why_less(line: QuotaLine, of: Rebalanced) -> str:
    wants = f"it wants more than {_gpus(line.after)} in {_share(line.wanted_after)} of the time"
    if _total_before(of) > of.supply + _SAME:
        return f"{_too_many(of)}; {wants}, and what is least requested is taken first"
    kept = ""
    if line.after <= line.floor + _SAME:
        ran = line.floor > line.terms.guarantee + _SAME
        kept = f"; it keeps {'what ran in the last hour' if ran else 'its guarantee'}"
    return f"{wants}, and others queue more often{kept}"


def _why_kept(line: QuotaLine, of: Rebalanced) -> str:
    wants = f"it wants more than {_gpus(line.before)} in {_share(line.wanted_before)} of the time"
    if line.after >= line.terms.most - _SAME:
        return f"it has the most that was agreed, {_gpus(line.terms.most)}; {wants}"
    if line.bound_by is not None and line.wanted_before:
        return f"{line.bound_by} has the most that was agreed with it, all its teams together; {wants}"
    if line.after <= line.floor + _SAME and not line.wanted_before:
        ran = line.floor > line.terms.guarantee + _SAME
        return f"it keeps {'what ran in the last hour' if ran else 'its guarantee'}, {_gpus(line.floor)}; {wants}"
    if line.is_held:
        return f"{wants}; it went up and down by turns of late, and does not turn again yet"
    if not line.is_agreed_too_large and not line.wanted_before:
        return f"{wants}; too few days agree yet that it has too many"
    if _total_before(of) > of.supply + _SAME:
        return f"{_too_many(of)}; {wants}, and others give first"
    if of.moved >= of.step_cap - _SAME and line.wanted_before:
        return f"{wants}; the {_gpus(of.step_cap)} that may move in a day went where GPUs are requested more"
    return f"{wants}; no move gains enough"


def _named(changes: Mapping[TeamName, float], word: str) -> str:
    if not changes:
        return f"nobody gets {word}"
    ordered = sorted(changes.items(), key=lambda each: (-abs(each[1]), each[0]))
    others = f" and {len(ordered) - _NAMED} others" if len(ordered) > _NAMED else ""
    return f"{word} for " + ", ".join(f"{team} ({change:+.3g})" for team, change in ordered[:_NAMED]) + others


def _too_many(of: Rebalanced) -> str:
    """Say that quotas must shrink, whatever anybody wants: nodes are lost, or more is kept back."""
    return f"quotas were {_gpus(_total_before(of))} together, and {of.supply:.4g} are left to give out"


def _total_before(of: Rebalanced) -> float:
    return sum(line.before for line in of.lines)


def _gpus(amount: float) -> str:
    return f"{amount:.4g} GPU{'' if amount == 1 else 's'}"


def _gpu_hours(amount: float) -> str:
    return f"{amount:.3g} GPU-hours"


def _share(ratio: float) -> str:
    return "none" if not ratio else f"{max(1, round(100 * ratio))} %"
