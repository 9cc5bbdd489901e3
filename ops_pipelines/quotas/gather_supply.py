"""How many GPUs of each type quotas may add up to: what is installed, less what is broken, rolled out to, kept back.

Reads the register of nodes, the scheduler and the ledger; counts, decides nothing. A node is counted out once, by the
first of: a rollout has it, it is broken, a rollout takes it before the next morning.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time

from ops_pipelines.core.finding import REPAIRS
from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.notes import next_time
from ops_pipelines.core.observation import NodeState, NodeStatus
from ops_pipelines.core.proposal import GpuType, SupplyLine
from ops_pipelines.core.rollout import IN_HAND, NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.teams.desk import TeamsDesk
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
