"""Reads what Slurm's clients print: nodes as JSON, in the shapes of 22.05 to 25.11; settings as text. Pure.

JSON, because text cannot be trusted: `scontrol show job -o` prints the job's name unquoted, so a name with a newline
forges whole records of other jobs (seen with 22.05). What to ask for, and how, is `slurm`;
jobs are `jobs`, reservations `reservations`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines.core.observation import NodeState, NodeStatus, Rejected
from ops_pipelines.core.scheduler import SchedulerLimits
from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable
from ops_pipelines.resources.slurm.guard.installation import PROLOG, WRAPPER
from ops_pipelines.resources.slurm.values import Row, count_gpus, names_of, number_of, text_of, time_of

LAST_CHOICE_WEIGHT = 1_000_000
"""Added to the weight of a node that is chosen last. Assumption: no site gives its nodes weights as high; a node that
has one reads as a last choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAnswer:
    """What was said of nodes, and the rows that could not be believed."""

    nodes: tuple[NodeStatus, ...]
    weights: Mapping[NodeName, int]
    """Slurm fills the nodes of the least weight first. A node whose weight is not told is absent."""
    rejected: tuple[Rejected, ...]


def read_nodes_answer(text: str, *, source: str) -> NodesAnswer:
    """Return the nodes of `sinfo --json` (22.05) or `scontrol show nodes --json` (23.02 and later).

    Raises SourceUnavailable if the answer reports errors (22.05 prints no nodes and rc 0 when slurmctld is gone),
    SourceNonsense if it is not such an answer.
    """
    nodes: list[NodeStatus] = []
    weights: dict[NodeName, int] = {}

    def take(row: Row) -> None:
        weight = number_of(row, "weight")
        status = _read_node(row, weight=weight)
        nodes.append(status)
        if weight is not None:
            weights[status.node] = weight

    rejected = read_rows(text, key="nodes", source=source, take=take)
    return NodesAnswer(nodes=tuple(nodes), weights=weights, rejected=rejected)


def read_config_answer(text: str, *, source: str) -> SchedulerLimits:
    """Return the limits of `scontrol show config`: lines such as `SlurmdTimeout           = 300 sec`.

    Raises SourceNonsense if one of them is missing or is no number: no default is guessed.
    """
    settings: dict[str, str] = {}
    for line in text.splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting:
            # Sections of plugins follow: the first of a name is Slurm's own.
            settings.setdefault(name.strip(), value.strip())

    def number(name: str) -> int:
        found = re.fullmatch(r"([0-9]+)(?: sec)?", settings.get(name, ""))
        if found is None:
            shown = settings.get(name, "nothing")[:80]
            raise SourceNonsense(f"{source} printed {shown!r} for {name}; expected a number. Run it by hand")
        return int(found[1])

    silence_limit = timedelta(seconds=number("SlurmdTimeout"))
    prolog = settings.get(PROLOG, "")
    return SchedulerLimits(
        # At 0 slurmctld neither gives a node up nor pings one that has answered before.
        silence_limit=silence_limit or None,
        ping_interval=silence_limit / 3 or None,
        answer_limit=timedelta(seconds=number("MessageTimeout")),
        is_every_down_node_returned=number("ReturnToService") == 2,
        is_requeue_the_default=number("JobRequeue") != 0,
        unguarded=_why_unguarded(prolog),
        version=settings.get("SLURM_VERSION", ""),
    )


def prolog_in(text: str) -> str:
    """Return the PrologSlurmctld of `scontrol show config`; empty if it is not shown."""
    lines = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == PROLOG), "")


def _why_unguarded(prolog: str) -> str:
    """Return why a PrologSlurmctld is not our guard, empty if it is: whether that works is for others to ask."""
    if Path(prolog).name == WRAPPER:
        return ""
    return f"{PROLOG} is {prolog[:120] or 'not shown'}, not the start guard"


def node_listing(version: tuple[int, int]) -> tuple[str, ...]:
    """Return the command that lists every node as `read_nodes_answer` reads it."""
    # From 23.02 `sinfo --json` groups nodes into rows; before, scontrol has no --json.
    if version < _FIRST_VERSION_WITH_SCONTROL_JSON:
        return ("sinfo", "--all", "--json")
    return ("scontrol", "--all", "show", "nodes", "--json")


# -- answers and rows --


def read_rows(text: str, *, key: str, source: str, take: Callable[[Row], None]) -> tuple[Rejected, ...]:
    """Hand each row of the list `key` to `take`; return those on which it raised ValueError. Raises as above."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise SourceNonsense(f"{source} printed no JSON ({exc}): {text[:120]!r}; run it by hand") from exc
    if not isinstance(answer, dict):
        raise SourceNonsense(f"{source} printed {type(answer).__name__}; expected an object with {key!r}")
    if answer.get("errors"):
        raise SourceUnavailable(f"{source} reports {json.dumps(answer['errors'])[:300]}; check slurmctld and munge")
    rows = answer.get(key)
    if not isinstance(rows, list):
        raise SourceNonsense(f"{source} printed no list {key!r}; expected one in 22.05 to 25.11. Run it by hand")
    rejected: list[Rejected] = []
    for position, row in enumerate(rows):
        try:
            if not isinstance(row, dict):
                raise ValueError(f"it is {type(row).__name__}; expected an object")
            take(row)
        except ValueError as exc:
            raw = json.dumps(row, default=str)[:500]
            rejected.append(Rejected(source=source, position=f"{key}[{position}]", reason=str(exc), text=raw))
    return tuple(rejected)


def _read_node(row: Row, *, weight: int | None) -> NodeStatus:
    names = names_of(row, "state") | names_of(row, "state_flags", is_required=False)
    return NodeStatus(
        node=parse_node_name(text_of(row, "name")),
        state=next((state for name, state in _NODE_STATES.items() if name in names), NodeState.UNKNOWN),
        # FAIL is DRAIN by another name: no new work until it is taken back.
        is_drained=not names.isdisjoint({"DRAIN", "FAIL"}),
        is_responding=names.isdisjoint({"NOT_RESPONDING", "NO_RESPOND"}),
        reason=text_of(row, "reason", is_required=False) or None,
        reason_set_at=time_of(row, "reason_changed_at"),
        booted_at=time_of(row, "boot_time"),
        gpu_count=count_gpus(text_of(row, "gres", is_required=False)),
        gpu_in_use_count=_gpus_in_use(row),
        partitions=_partitions(row),
        is_last_choice=weight is not None and weight >= LAST_CHOICE_WEIGHT,
    )


def _partitions(row: Row) -> frozenset[str]:
    value = row.get("partitions")
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"partitions is {value!r}; expected a list of names")
    return frozenset(value)


def _gpus_in_use(row: Row) -> int:
    """Return how many GPUs are in use by jobs.

    22.05 goes on counting those of a silent node that it gave up by itself (seen: 16 of 8). No job is without a CPU,
    so where none is allocated no GPU is.
    """
    return 0 if row.get("alloc_cpus") == 0 else count_gpus(text_of(row, "gres_used", is_required=False))


_FIRST_VERSION_WITH_SCONTROL_JSON = (23, 2)
_NODE_STATES = {
    "DOWN": NodeState.DOWN,
    "ALLOCATED": NodeState.ALLOCATED,
    "MIXED": NodeState.MIXED,
    "IDLE": NodeState.IDLE,
}
