"""What is known of GPUs that will be usable: the register, what is stated to come and to go, measured days, rollouts.

Gathers for `capacity.supply`, which says how they are drawn together.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta

from ops_pipelines.capacity.model import Resource
from ops_pipelines.capacity.past import Past
from ops_pipelines.capacity.supply import SupplyInputs
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.rollout import NodeStage, RolloutState
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import InstalledNode
from ops_pipelines.teams.projects import Arrival, Retirement

_COMES = frozenset({RolloutState.RUNNING, RolloutState.SOAKING, RolloutState.AWAITING_YES})
"""States of rollouts whose planned waves are still to come."""
_WEEK = timedelta(days=7)


def gather_supply(desk: TeamsDesk, past: Past, *, weeks: int) -> tuple[SupplyInputs, tuple[str, ...]]:
    """Return what supply follows from, and notes on what is not known. Raises LedgerError."""
    from ops_pipelines.lake.local_days import day_begins

    as_of = past.as_of
    begins_at = day_begins(as_of, zone=desk.zone)
    stated = () if desk.capacity is None else desk.capacity.retirements
    gone = {node for each in stated if each.on < as_of for node in each.nodes}
    there = [each for each in desk.installed if _stands(each, begins_at) and each.node not in gone]
    notes = [] if desk.installed else ["cluster.yaml names no nodes under `racks`: what is installed is not known"]
    arrivals, retirements = _coming(desk, begins_at), _going(desk, there)
    if desk.capacity is not None:
        notes += _perhaps_twice(arrivals, desk.capacity.arrivals)
        arrivals += desk.capacity.arrivals
        retirements += _not_in_register(desk.capacity.retirements, retirements, notes)
    return (
        SupplyInputs(
            installed=_by_type(there),
            arrivals=tuple(arrivals),
            retirements=tuple(retirements),
            out_ratios=_ratios(Resource.GPUS_OUT, past, desk),
            stranded_ratios=_ratios(Resource.GPUS_STRANDED, past, desk),
            rollout_gpus=_rollouts(desk, begins_at=begins_at, weeks=weeks),
        ),
        tuple(notes),
    )


def _stands(node: InstalledNode, at: datetime) -> bool:
    return node.since <= at and (node.until is None or at < node.until)


def _by_type(nodes: Iterable[InstalledNode]) -> dict[GpuType, float]:
    found: defaultdict[GpuType, float] = defaultdict(float)
    for each in nodes:
        found[each.gpu_type] += each.gpu_count
    return dict(sorted(found.items()))


def _coming(desk: TeamsDesk, begins_at: datetime) -> list[Arrival]:
    """Return what the register has from a later day on."""
    found: defaultdict[tuple[date, str, GpuType], int] = defaultdict(int)
    for each in desk.installed:
        if each.since > begins_at:
            found[each.since.astimezone(desk.zone).date(), each.asset, each.gpu_type] += each.gpu_count
    return [
        Arrival(sku=asset, gpu_type=gpu_type, gpus=gpus, on=on) for (on, asset, gpu_type), gpus in sorted(found.items())
    ]


def _perhaps_twice(registered: Sequence[Arrival], stated: Sequence[Arrival]) -> list[str]:
    """Return a note for each type that comes by both files in one month: who counts a rack twice orders too little."""
    months = {(each.gpu_type, each.on.year, each.on.month): each.on for each in registered}
    return [
        f"{each.gpus} GPUs of {each.sku} arrive on {each.on} in capacity.yaml, and racks of cluster.yaml with the same "
        f"type on {on}: both are counted; if they are the same, take them out of capacity.yaml"
        for each in stated
        if (on := months.get((each.gpu_type, each.on.year, each.on.month))) is not None
    ]


def _going(desk: TeamsDesk, there: Iterable[InstalledNode]) -> list[Retirement]:
    """Return what the register has until a later day."""
    found: defaultdict[tuple[date, GpuType], list[InstalledNode]] = defaultdict(list)
    for each in there:
        if each.until is not None:
            found[each.until.astimezone(desk.zone).date(), each.gpu_type].append(each)
    return [
        Retirement(
            nodes=tuple(sorted(each.node for each in nodes)),
            gpu_type=gpu_type,
            gpus=sum(each.gpu_count for each in nodes),
            on=on,
        )
        for (on, gpu_type), nodes in sorted(found.items())
    ]


def _not_in_register(
    stated: Sequence[Retirement], known: Sequence[Retirement], notes: list[str]
) -> Sequence[Retirement]:
    """Return what capacity.yaml retires and the register does not: a node goes once."""
    twice: set[NodeName] = {node for each in known for node in each.nodes}
    found = []
    for each in stated:
        both = twice & set(each.nodes)
        if both:
            notes.append(
                f"{', '.join(sorted(both))} retire in capacity.yaml on {each.on} and have an end in cluster.yaml, too: "
                "the end of cluster.yaml counts"
            )
        left = tuple(node for node in each.nodes if node not in both)
        if left:
            gpus = each.gpus * len(left) // len(each.nodes)
            found.append(Retirement(nodes=left, gpu_type=each.gpu_type, gpus=gpus, on=each.on))
    return found


def _ratios(resource: Resource, past: Past, desk: TeamsDesk) -> Mapping[GpuType, Sequence[float]]:
    """Return daily means over what was installed on that day, oldest first; by type."""
    from ops_pipelines.lake.local_days import day_begins

    history = past.history.of(resource)
    found: dict[GpuType, tuple[float, ...]] = {}
    for key, means in () if history is None else history.means.items():
        if key.name:
            continue  # The parts of what is out: their sum has no name.
        ratios = []
        for number, mean in enumerate(means):
            # The means are those of the last days that are known; a day that is missing shifts them a little.
            day = past.as_of - timedelta(days=len(means) - number)
            at = day_begins(day, zone=desk.zone)
            held = sum(each.gpu_count for each in desk.installed if each.gpu_type == key.gpu_type and _stands(each, at))
            if held:
                ratios.append(min(1.0, mean / held))
        found[key.gpu_type] = tuple(ratios)
    return found


def _rollouts(desk: TeamsDesk, *, begins_at: datetime, weeks: int) -> Mapping[GpuType, Sequence[float]]:
    """Return the GPUs that planned waves take at once, by week: no more nodes than rollouts may have out."""
    cluster = desk.cluster
    gpus_of = {each.node: each for each in desk.installed}
    most = cluster.rules.policy.rollouts.max_out_count
    wanted: defaultdict[int, set[NodeName]] = defaultdict(set)
    for rollout in cluster.ledger.rollouts(final_since=None):
        if rollout.state not in _COMES:
            continue
        pending = {
            each.node: each.wave
            for each in cluster.ledger.rollout_nodes(rollout.rollout)
            if each.stage is NodeStage.PENDING
        }
        for wave in rollout.waves:
            if wave.planned_from is None:
                continue
            # One that should have been taken already still comes: in the first week.
            first = max(0, (wave.planned_from - begins_at) // _WEEK)
            last = max(first, ((wave.planned_until or wave.planned_from) - begins_at) // _WEEK)
            for week in range(first, min(last, weeks - 1) + 1):
                wanted[week] |= {node for node in wave.nodes if pending.get(node) == wave.number}
    found: dict[GpuType, list[float]] = {}
    for week, nodes in wanted.items():
        # Which of them are out at once is not known: the largest are taken to be.
        largest = sorted(
            (gpus_of[each] for each in nodes if each in gpus_of), key=lambda each: (-each.gpu_count, each.node)
        )
        for each in largest[:most]:
            found.setdefault(each.gpu_type, [0.0] * weeks)[week] += each.gpu_count
    return found
