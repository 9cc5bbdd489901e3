"""From rebalanced quotas to the lines of a proposal: whole GPUs, in units, each with its reason. Pure.

Who gathers what the lines are made from is `quotas.propose`; that a proposal holds what it should is proved by
`proposal_proof`, by other means.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ops_pipelines.core.proposal import GpuType, ProposedQuota, SupplyLine, TeamName
from ops_pipelines.quotas.demand import QueueChance
from ops_pipelines.quotas.organisations import owed_to, tree_of
from ops_pipelines.quotas.rebalance import counterfactual_of, moves_in_words, reason_of
from ops_pipelines.quotas.today import QuotaLine, Rebalanced, Today
from ops_pipelines.quotas.whole_units import Bound, Goal, rounded

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
    is held to nothing. `wanted`: what each wanted on average on the last full day, queue included. `fairshares`: shares
    in force, which then follow the quotas; None: they are left as they are.
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
            # What stands still is no matter of units: it stays as somebody set it.
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
