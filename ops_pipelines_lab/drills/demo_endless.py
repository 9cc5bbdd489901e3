"""What happens in the endless demo: one seeded fault after the other, and a technician for what waits for hands."""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.drills.demo_ladder import mend_by_hand
from ops_pipelines_lab.drills.demo_parts import LEAF_SECONDS, nodes_of_leaf
from ops_pipelines_lab.simulator.commands import ImpossibleFaultError
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.ground_truth import read_nodes, read_progress
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.twin import Twin

_MAY_NEED_HANDS = frozenset({FaultKind.GPU_FELL_OFF_BUS, FaultKind.UNCORRECTABLE_ECC})
_NEEDS_HANDS = 0.15
"""How often such a fault ends with a new GPU only."""
_HANDS_AFTER = timedelta(seconds=30)


def mend_what_waits(cluster: Cluster, twin: Twin, *, state: Path, call: Callable[[Sequence[str]], str]) -> None:
    """Let a technician see to the repair queue, half a minute after a node was put there."""
    now = cluster.clock.now()
    for incident in cluster.ledger.read_state(now).incidents:
        if incident.state is IncidentState.IN_REPAIR and now - incident.changed_at > _HANDS_AFTER:
            mend_by_hand(incident, twin=twin, state=state, call=call)


def break_something(twin: Twin, chance: random.Random) -> None:
    """Put one seeded fault into the hardware, where it can happen."""
    with suppress(ImpossibleFaultError):  # What broke before may be in its way, or a node may go down in this moment.
        _break(twin, chance)


def _break(twin: Twin, chance: random.Random) -> None:
    kinds = [
        FaultKind.GPU_FELL_OFF_BUS,
        FaultKind.NODE_UNREACHABLE,
        FaultKind.APPLICATION_XID31,
        FaultKind.UNCORRECTABLE_ECC,
        FaultKind.LEAF_SWITCH_DOWN,
        FaultKind.RANK_STOPS,
        FaultKind.ROW_REMAP_WAITS,
    ]
    fault = chance.choices(kinds, weights=[3, 2, 3, 3, 1, 1, 2])[0]
    healthy = {node.node for node in read_nodes(twin) if node.is_healthy}
    if fault is FaultKind.LEAF_SWITCH_DOWN:
        if healthy.issuperset(nodes_of_leaf(twin)):
            twin.inject(fault, *nodes_of_leaf(twin), seconds=LEAF_SECONDS)
        return
    if fault is FaultKind.RANK_STOPS and any(job.is_hung for job in read_progress(twin)):
        return  # One hang at a time shows it.
    training = [
        job
        for job in read_progress(twin)
        if job.state is JobState.RUNNING and not job.is_hung and job.user.endswith("-train")
    ]
    targets = sorted({node for job in training for node in job.nodes} & healthy)
    if not targets:
        return
    gpu = None if fault is FaultKind.NODE_UNREACHABLE else chance.randrange(8)
    course = Course(cure=Cure.REPLACEMENT) if fault in _MAY_NEED_HANDS and chance.random() < _NEEDS_HANDS else None
    twin.inject(fault, chance.choice(targets), gpu=gpu, course=course)
