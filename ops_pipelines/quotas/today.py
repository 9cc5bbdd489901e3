"""What one day's quotas are moved from: debt, turns, and the GPUs that quotas may add up to.

GPUs are counted from the register of nodes, the scheduler and the ledger. A node is counted out once, by the first of:
a rollout has it, it is broken, a rollout takes it before the next morning.

A quota turns when it rises after it fell, or the other way round; what is no more than the dead band is no change. In
`looked_at_days` it may turn twice; then it keeps its direction, or stays.

In each hour a team's fair share is what it would have got of all GPUs had they been shared out by guarantee and weight
(`allocation`). Debt makes two things easier for who lent: it gets more of what no team is expected to request, and of
two that request a GPU nearly as often it is the one who gets it. It takes nothing of a guarantee. How quotas are moved
is `rebalance`'s.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from itertools import pairwise

from ops_pipelines.core.finding import REPAIRS
from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.notes import next_time
from ops_pipelines.core.observation import NodeState, NodeStatus
from ops_pipelines.core.proposal import GpuType, QuotaProposal, SupplyLine, TeamName, Terms
from ops_pipelines.core.rollout import IN_HAND, NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.quotas.demand import DemandDay, QueueChance
from ops_pipelines.teams.desk import RebalanceSettings, TeamsDesk
from ops_pipelines.teams.price import InstalledNode

MORNING = time(5, 0)
"""Local time at which quotas are proposed, and from which a proposal holds until the next."""
_FEWEST_NODES = 4
"""Below it a rack is most of the cluster: nothing is kept back."""
_OUT = IN_HAND | {NodeStage.LOST, NodeStage.PULLED}
_GOES_ON = frozenset({RolloutState.RUNNING, RolloutState.SOAKING, RolloutState.AWAITING_YES})
"""States in which nodes of the planned waves are taken, or may be as soon as somebody approves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplies:
    """What may be given out, and which nodes may not."""

    lines: tuple[SupplyLine, ...]
    """By type."""
    out: Mapping[NodeName, str]
    """Why a node is counted out, in words."""

    def line(self, gpu_type: GpuType) -> SupplyLine | None:
        return next((each for each in self.lines if each.gpu_type == gpu_type), None)


def count_supply(desk: TeamsDesk, *, now: datetime) -> Supplies:
    """Return the supply of each installed type. Raises SourceError if the scheduler does not answer."""
    cluster = desk.cluster
    installed = [each for each in desk.installed if stands_at(each, now)]
    statuses = {each.node: each for each in cluster.scheduler.read_nodes()}
    state = cluster.ledger.read_state(now)
    morning = next_time(MORNING, desk.zone, now)
    in_hand, planned = _rollouts(state.rollouts, cluster.ledger, until=morning)
    in_hand = {**{node: f"{rollout} has it" for node, rollout in state.owned.items()}, **in_hand}
    broken = _broken(installed, statuses, state.incidents)
    return tally(
        installed,
        missing=_missing(installed, statuses),
        broken={node: why for node, why in broken.items() if node not in in_hand},
        in_rollouts={**planned, **in_hand},
        topology=cluster.rules.topology,
        slack_max_ratio=desk.policy.slack_max_ratio,
    )


def stands_at(node: InstalledNode, at: datetime) -> bool:
    """Return whether a node stood in the cluster then."""
    return node.since <= at and (node.until is None or at < node.until)


def tally(
    installed: Sequence[InstalledNode],
    *,
    missing: Mapping[NodeName, int],
    broken: Mapping[NodeName, str],
    in_rollouts: Mapping[NodeName, str],
    topology: Topology,
    slack_max_ratio: float,
) -> Supplies:
    """Return the supply by type. `missing`: GPUs that a node has lost; a node both broken and planned is broken."""
    by_type: defaultdict[GpuType, list[InstalledNode]] = defaultdict(list)
    for each in installed:
        by_type[each.gpu_type].append(each)
    lines = []
    for gpu_type, nodes in sorted(by_type.items()):
        there = sum(each.gpu_count for each in nodes)
        lost = sum(_lost(each, missing=missing, broken=broken, in_rollouts=in_rollouts) for each in nodes)
        taken = sum(each.gpu_count for each in nodes if each.node in in_rollouts and each.node not in broken)
        slack = _slack(nodes, topology=topology, most=slack_max_ratio * there)
        lines.append(
            SupplyLine(
                gpu_type=gpu_type,
                installed=there,
                broken=lost,
                in_rollouts=taken,
                slack=slack,
                supply=max(0, min(there - lost - taken, there - slack)),
            )
        )
    return Supplies(lines=tuple(lines), out={**in_rollouts, **broken})


def _lost(
    node: InstalledNode,
    *,
    missing: Mapping[NodeName, int],
    broken: Mapping[NodeName, str],
    in_rollouts: Mapping[NodeName, str],
) -> int:
    if node.node in broken:
        return node.gpu_count
    return 0 if node.node in in_rollouts else missing.get(node.node, 0)


def _slack(nodes: Sequence[InstalledNode], *, topology: Topology, most: float) -> int:
    """Return the GPUs of the largest rack, at most `most`, in whole nodes; none where there are few nodes."""
    if len(nodes) < _FEWEST_NODES:
        return 0
    racks: defaultdict[str, int] = defaultdict(int)
    for each in nodes:
        place = topology.places.get(each.node)
        racks["" if place is None else place.rack] += each.gpu_count
    of_node = max(each.gpu_count for each in nodes)
    if not of_node:
        return 0
    return math.floor(min(max(racks.values()), most) / of_node + 1e-9) * of_node


def _missing(installed: Iterable[InstalledNode], statuses: Mapping[NodeName, NodeStatus]) -> Mapping[NodeName, int]:
    return {
        each.node: each.gpu_count - statuses[each.node].gpu_count
        for each in installed
        if each.node in statuses and statuses[each.node].gpu_count < each.gpu_count
    }


def _broken(
    installed: Iterable[InstalledNode], statuses: Mapping[NodeName, NodeStatus], incidents: Iterable[Incident]
) -> Mapping[NodeName, str]:
    """Return the nodes that no job can count on: out of service, about to be taken out, or watched after a repair."""
    found: dict[NodeName, str] = {}
    for incident in incidents:
        if not incident.is_open or incident.response not in REPAIRS or incident.state is IncidentState.ESCALATED:
            continue  # What people have is out only where the scheduler says so.
        word = "on probation" if incident.state is IncidentState.PROBATION else "broken"
        found |= dict.fromkeys(incident.nodes, f"{word}: {incident.incident}")
    for each in installed:
        why = _why_out(statuses.get(each.node))
        if why and each.node not in found:
            found[each.node] = why
    return found


def _why_out(status: NodeStatus | None) -> str:
    if status is None:
        return "the scheduler does not know it"
    if status.state is NodeState.DOWN:
        return "down"
    if not status.is_responding:
        return "silent"
    return "drained" if status.is_drained else ""


def _rollouts(
    rollouts: Iterable[Rollout], ledger: Ledger, *, until: datetime
) -> tuple[Mapping[NodeName, str], Mapping[NodeName, str]]:
    """Return the nodes that rollouts have, and those that they take before `until`."""
    in_hand: dict[NodeName, str] = {}
    planned: dict[NodeName, str] = {}
    for rollout in rollouts:
        nodes = ledger.rollout_nodes(rollout.rollout)
        in_hand |= {each.node: f"{rollout.rollout} has it" for each in nodes if each.stage in _OUT}
        planned |= dict.fromkeys(_due(rollout, nodes, until), f"{rollout.rollout} takes it by {until:%H:%M} UTC")
    return in_hand, planned


def _due(rollout: Rollout, nodes: Sequence[RolloutNode], until: datetime) -> Collection[NodeName]:
    if rollout.state is RolloutState.GOING_BACK:
        return {each.node for each in nodes if each.stage in (NodeStage.SOAKING, NodeStage.UPDATED)}
    if rollout.state not in _GOES_ON:
        return set()
    due = {wave.number for wave in rollout.waves if wave.planned_from is not None and wave.planned_from < until}
    return {each.node for each in nodes if each.wave in due and each.stage is NodeStage.PENDING}


# -- how many GPUs of one type there are --


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """GPUs of one type."""

    installed: float
    healthy: float
    """Of these, in service: without nodes in repair and in tomorrow's rollouts."""

    def __post_init__(self) -> None:
        if not 0 <= self.healthy <= self.installed < math.inf:
            raise ValueError(
                f"{self.healthy:g} of {self.installed:g} GPUs are healthy; expected neither below 0, and no more "
                "healthy than installed"
            )


# -- who turned too often of late --


_MOST_TURNS = 2


def direction_of(before: float, after: float, *, unit: float, settings: RebalanceSettings) -> int:
    """Return 1 where a quota rises, -1 where it falls, 0 within the dead band: a unit, or the least gain's share."""
    band = max(unit, settings.least_gain_ratio * before) + 1e-9
    return (after - before > band) - (before - after > band)


def last_direction(directions: Sequence[int]) -> int:
    """Return the newest direction that is none of 0; 0 where there is none."""
    return next((each for each in reversed(directions) if each), 0)


def turn_count(directions: Sequence[int]) -> int:
    """Return how often it turned; days without a change are passed over."""
    return sum(one != two for one, two in pairwise([each for each in directions if each]))


def quotas_lately(
    day: date,
    earlier: Sequence[QuotaProposal],
    *,
    gpu_type: GpuType,
    now: Mapping[TeamName, float],
    settings: RebalanceSettings,
) -> tuple[Mapping[TeamName, float], ...]:
    """Return the quotas before the change of each of the last days, the newest last; `now` is what holds today.

    `earlier`: what was applied, at most one proposal a day. A day without one changed nothing: most days set nothing.
    """
    by_day = {each.day: each for each in earlier}
    held = dict(now)
    found: list[Mapping[TeamName, float]] = []
    for back in range(1, settings.looked_at_days + 1):
        applied = by_day.get(day - timedelta(days=back))
        lines = () if applied is None else applied.lines
        held |= {line.team: line.before for line in lines if line.gpu_type == gpu_type and line.team in held}
        found.append(dict(held))
    return tuple(reversed(found))


def held_direction(
    team: TeamName, quotas: Sequence[Mapping[TeamName, float]], *, unit: float, settings: RebalanceSettings
) -> int:
    """Return the one direction in which a team may still go; 0: it may go either way.

    `quotas` are those before each of the last days (`quotas_lately`), and last of all what holds now.
    """
    known = [each[team] for each in quotas if team in each]
    directions = [direction_of(before, after, unit=unit, settings=settings) for before, after in pairwise(known)][
        -settings.looked_at_days :
    ]
    return last_direction(directions) if turn_count(directions) >= _MOST_TURNS else 0


# -- what a team had beyond its fair share of late, or lent to others --


_LEAN_RATIO = 0.02
"""Chances that differ by no more than this share of themselves count as equal: of two such teams the one that lent gets
the GPU. # Assumption: less than the dead band, so that debt alone moves no quota."""
_LEAST = 1.0
"""GPUs: who is due less is measured by this much."""

Served = Mapping[TeamName, Sequence[float]]
"""What each team ran, in each hour of a day."""


def debts_against(fair: Sequence[DemandDay], *, served: Sequence[Served]) -> Mapping[TeamName, float]:
    """Return the debts where the fair shares of each day (`fair_demand`) are known already."""
    hours = sum(day.hour_count for day in fair)
    beyond: dict[TeamName, list[float]] = defaultdict(list)
    for day, ran in zip(fair, served, strict=True):
        for team, shares in day.hours.items():
            got = ran.get(team)
            beyond[team].append((math.fsum(got) if got is not None else 0.0) - math.fsum(shares))
    return {team: math.fsum(amounts) / hours for team, amounts in beyond.items()} if hours else {}


def standings_of(debts: Mapping[TeamName, float], teams: Sequence[Terms], *, supply: float) -> Mapping[TeamName, float]:
    """Return where each team is, from -1 (it lent as much as its share by weight) to 1 (it had as much beyond)."""
    weights = math.fsum(each.weight for each in teams)
    found: dict[TeamName, float] = {}
    for each in teams:
        share = supply * each.weight / weights if weights else 0.0
        found[each.team] = max(-1.0, min(1.0, debts.get(each.team, 0.0) / max(_LEAST, share)))
    return found


def weight_factor(standing: float) -> float:
    """Return by what a weight is multiplied where the rest is shared out: from 1.41, who lent, to 0.71.

    So no team comes before one that has twice its weight, or more.
    """
    return math.exp2(-standing / 2.0)


def chance_factor(standing: float) -> float:
    """Return by what chances are multiplied before they are compared: 1 for who lent, a little less for who had."""
    return 1.0 - _LEAN_RATIO * (1.0 + standing) / 2.0


# -- what quotas of one type of GPU are moved from on one day --


@dataclass(frozen=True, slots=True, kw_only=True)
class Today:
    """What quotas are moved from."""

    terms: Sequence[Terms]
    """Of all, organisations, too: a team with teams below it gets no quota itself, its terms bind their sum."""
    quotas: Mapping[TeamName, float]
    """In force now, of teams without teams of their own; who is not named has none."""
    chances: Mapping[TeamName, QueueChance]
    """What is remembered of demand, up to now."""
    too_large: Sequence[Mapping[TeamName, float]]
    """For each of the last days, the newest last, what demand up to then would have had quotas be (`wished_quotas`)."""
    ran_last: Mapping[TeamName, float] = field(default_factory=dict)
    """In the last full hour."""
    supply: float
    """Healthy capacity that quotas may add up to."""
    strangers: frozenset[TeamName] = frozenset()
    """Teams in demand with which nothing was agreed: they get what nobody else is expected to want, and no more."""
    debts: Mapping[TeamName, float] = field(default_factory=dict)
    """What each had beyond its fair share, on average of the window (`debts_against`); below 0: it lent."""
    gangs: Mapping[TeamName, int] = field(default_factory=dict)
    """GPUs of the largest job that a team runs, or waits with, regularly."""
    launches: Mapping[TeamName, str] = field(default_factory=dict)
    """Projects that begin or end, in words (`launches.launches_on`); the chances have them already."""
    lately: Sequence[Mapping[TeamName, float]] = ()
    """Quotas before the change of each of the last days, the newest last: who turned twice does not turn again."""
    frozen_because: str = ""
    """Why no quota moves; empty: they may. What was agreed is kept all the same."""
    returns_to_contract: str = ""
    """Why quotas roll back toward what was agreed, such as the freeze that ended; empty: they follow demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLine:
    """One team's quota before and after, with what decided it."""

    terms: Terms
    before: float
    after: float
    floor: float
    """What it keeps in any case: its guarantee, and what it ran in the last full hour."""
    is_agreed_too_large: bool
    """Whether enough of the last days found its quota too large."""
    wanted_before: float
    """The share of the time in which it is expected to want more than `before`."""
    wanted_after: float
    owed: float | None = None
    """What is kept of its guarantee where not all guarantees fit into the supply; None: all of it."""
    gang: int = 0
    """What its jobs take, where the quota was rounded up to it; 0: it was not."""
    agreed: float | None = None
    """Where quotas roll back toward what was agreed: that; None: they follow demand."""
    bound_by: TeamName | None = None
    """The organisation whose cap keeps it from more; None: there is none, or it is not at its cap."""
    is_held: bool = False
    """Whether it turned twice of late, and therefore does not turn again."""

    @property
    def team(self) -> TeamName:
        return self.terms.team


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalanced:
    """What came of one day for one type of GPU."""

    lines: tuple[QuotaLine, ...]
    """Of teams without teams of their own."""
    supply: float
    moved: float
    """GPUs, each counted once."""
    step_cap: float
    """How many might have moved."""
    frozen_because: str = ""
    returns_to_contract: str = ""

    @property
    def quotas(self) -> Mapping[TeamName, float]:
        return {line.team: line.after for line in self.lines}
