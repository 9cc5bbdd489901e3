"""Tomorrow's quotas of one type of GPU from today's: which GPUs move, from whom to whom. Pure.

A GPU moves from where it is least likely to be wanted to where it is most likely, until no move gains enough or the
day's step is used up. What was agreed comes first, with teams and with their organisations: nobody is left below a
guarantee, above a cap, or below what ran in the last full hour; nobody gives before enough days agree. What is lost by
broken nodes is taken before anything moves. How each step is done is `moving`'s.
"""

import math
from collections.abc import Mapping, Sequence

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.domain.quota.moving import NOTHING, Quotas
from ops_pipelines.domain.quota.queue_chance import QueueChance
from ops_pipelines.domain.quota.today import QuotaLine, Rebalanced, Today
from ops_pipelines.domain.quota.turns import held_direction
from ops_pipelines.teams.settings import RebalanceSettings


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
    """Return the quotas under which the fewest GPUs are expected to be wanted in vain, whatever holds today.

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
