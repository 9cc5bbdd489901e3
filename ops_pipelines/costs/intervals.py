"""What the seconds of a node are cut by, beside its jobs: GPUs that are installed, and states that took them. Values.

Who makes them knows why a node is out: its incident or rollout, else what the scheduler says. Half-open, UTC; fractions
of a second are cut off at both ends, so that what touches goes on touching.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import pairwise

from ops_pipelines.core.identity import NodeName
from ops_pipelines.costs.usage import Fate
from ops_pipelines.teams.price import InstalledNode


class Condition(Enum):
    """Why GPUs that no job holds do not wait for one. Of several that hold, the first here counts."""

    INCIDENT = "incident"
    ROLLOUT = "rollout"
    RESERVATION = "reservation"
    """One of ours, for maintenance."""
    TEST = "test"
    PROBATION = "probation"
    DOWN = "down"
    """The scheduler says so, and nothing above explains it."""
    DRAINED = "drained"
    """As `DOWN`."""


FATES = {
    Condition.INCIDENT: Fate.BROKEN,
    Condition.ROLLOUT: Fate.MAINTENANCE,
    Condition.RESERVATION: Fate.MAINTENANCE,
    Condition.TEST: Fate.OVERHEAD,
    Condition.PROBATION: Fate.OVERHEAD,
    Condition.DOWN: Fate.BROKEN,
    Condition.DRAINED: Fate.BROKEN,
}


RANKS = {condition: rank for rank, condition in enumerate(Condition)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """Something took GPUs of a node from the scheduler."""

    node: NodeName
    condition: Condition
    since: datetime
    until: datetime | None
    """None: it lasts."""
    cause: str = ""
    """Incident, rollout or reservation by name."""
    gpu_count: int | None = None
    """How many of its GPUs; None: all."""


def check_installed(nodes: Iterable[InstalledNode]) -> None:
    """Raise ValueError, naming every fault, where a node stands twice at one time: its hours would be paid twice."""
    by_node: dict[NodeName, list[InstalledNode]] = {}
    for each in nodes:
        by_node.setdefault(each.node, []).append(each)
    wrong = [fault for node in sorted(by_node) for fault in _overlaps(by_node[node])]
    if wrong:
        raise ValueError(f"installed twice: {'; '.join(wrong)}; expected each node once at any time")


def _overlaps(stays: Sequence[InstalledNode]) -> list[str]:
    ordered = sorted(stays, key=lambda each: each.since)
    return [
        f"{after.node} from {after.since:%Y-%m-%d %H:%M}, while it stands since {before.since:%Y-%m-%d %H:%M}"
        for before, after in pairwise(ordered)
        if before.until is None or after.since < before.until
    ]
