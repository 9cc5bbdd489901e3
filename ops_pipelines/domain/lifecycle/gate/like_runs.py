"""Runs of jobs, compared like with like: each node against its own past, and untouched nodes against theirs. Pure.

Programs differ far more than versions do. So each run is told as a ratio to what the same program took on nodes that
were not touched; what no such run is known of is compared with nothing. All ranks of a run wait for the slowest, so
that its nodes say one thing together: a run counts for one of its nodes.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.rollout import RolloutNode, Wave
from ops_pipelines.domain.lifecycle.gate.compared_times import PAST, ComparedTimes, Times
from ops_pipelines.domain.lifecycle.gate.evidence import LevelKind, LevelSamples

MOST_NODES = 64
"""# Assumption: of so many updated nodes, and so many others, more runs say nothing new, and cost a pass its time."""
_ENOUGH_RUNS = 8
"""A node's own past of so many runs is known well: then other nodes get the next ones."""
_FEWEST_RUNS = 2
"""Of a program, and of a node's past, before anything is compared with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One attempt of one job, and how long its steps took."""

    program: tuple[str, ...]
    """What makes runs alike: who, what, on how many nodes."""
    job: str
    started_at: datetime
    nodes: frozenset[NodeName]
    value: float
    """Seconds of a step, over all nodes that told."""
    of_nodes: Mapping[NodeName, float] = field(default_factory=dict)
    """The same of single nodes, where they tell it themselves."""

    def of(self, node: NodeName) -> float:
        """Return what a node measured; what the whole job did where the node says nothing itself."""
        return self.of_nodes.get(node, self.value)


@dataclass(slots=True, kw_only=True)
class _Past:
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)


def compared_nodes(
    nodes: Iterable[RolloutNode], times: ComparedTimes, *, present: Wave, waves: Sequence[Wave]
) -> tuple[frozenset[NodeName], frozenset[NodeName]]:
    """Return the updated and the untouched nodes whose runs are compared: canaries and the present wave first.

    Untouched ones are taken evenly over their names; no choice depends on what was measured.
    """
    canary = {wave.number for wave in waves if wave.is_canary}
    treated = sorted(
        (each for each in nodes if each.node in times.treated),
        key=lambda each: (each.wave not in canary, each.wave != present.number, each.wave, each.node),
    )
    others = sorted(times.control.keys() - times.treated.keys())
    every = max(1, -(-len(others) // MOST_NODES))
    return frozenset(each.node for each in treated[:MOST_NODES]), frozenset(others[::every])


def compare_runs(
    runs: Iterable[MeasuredRun],
    times: ComparedTimes,
    *,
    treated: Collection[NodeName],
    controls: Collection[NodeName],
) -> tuple[tuple[LevelSamples, ...], tuple[LevelSamples, ...]]:
    """Return the samples of updated nodes, and those of untouched ones."""
    began_at = min((each.begins_at for each in times.treated.values()), default=None)
    ordered = sorted(runs, key=lambda each: (each.started_at, each.job))
    usual = _usual(each for each in ordered if not _nodes_in(each, times.treated))
    pasts: defaultdict[NodeName, _Past] = defaultdict(_Past)
    others: defaultdict[NodeName, _Past] = defaultdict(_Past)
    for run in ordered:
        if run.program not in usual or _nodes_in(run, times.treated):
            continue
        own = _nodes_in(run, times.own).intersection(treated)
        if own:
            _count_before(run, own, pasts, usual[run.program])
        elif began_at is not None and began_at - PAST <= run.started_at < began_at:
            _count_before(run, run.nodes.intersection(controls), others, usual[run.program])
    for run in ordered:
        if run.program not in usual:
            continue
        updated = _nodes_in(run, times.treated)
        if updated:
            _count_after(run, updated.intersection(treated), pasts, usual[run.program])
        else:
            _count_after(run, _nodes_in(run, times.control).intersection(controls), others, usual[run.program])
    return _samples(pasts), _samples(others)


def _nodes_in(run: MeasuredRun, times: Times) -> frozenset[NodeName]:
    """Return the nodes of a run whose time holds its beginning."""
    return frozenset(node for node in run.nodes if node in times and times[node].holds(run.started_at))


def _usual(untouched: Iterable[MeasuredRun]) -> Mapping[tuple[str, ...], float]:
    """Return what the steps of each program took on nodes that were not touched, where enough runs tell."""
    values: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for run in untouched:
        values[run.program].append(run.value)
    return {
        program: median(found) for program, found in values.items() if len(found) >= _FEWEST_RUNS and median(found) > 0
    }


def _count_before(
    run: MeasuredRun, nodes: Collection[NodeName], pasts: defaultdict[NodeName, _Past], usual: float
) -> None:
    """Count a run for one of its nodes: a few pasts that are known well say more than many of one run."""
    if not nodes:
        return

    def rank(node: NodeName) -> tuple[bool, int, NodeName]:
        count = len(pasts[node].before)
        return count >= _ENOUGH_RUNS, count if count >= _ENOUGH_RUNS else -count, node

    node = min(nodes, key=rank)
    pasts[node].before.append(run.of(node) / usual)


def _count_after(
    run: MeasuredRun, nodes: Collection[NodeName], pasts: defaultdict[NodeName, _Past], usual: float
) -> None:
    """Count a run for one of its nodes: of those whose past is known the one with the fewest runs since."""
    if not nodes:
        return
    node = min(nodes, key=lambda each: (len(pasts[each].before) < _FEWEST_RUNS, len(pasts[each].after), each))
    pasts[node].after.append(run.of(node) / usual)


def _samples(pasts: Mapping[NodeName, _Past]) -> tuple[LevelSamples, ...]:
    return tuple(
        LevelSamples(
            kind=LevelKind.STEP_TIME, node=node, before=tuple(pasts[node].before), after=tuple(pasts[node].after)
        )
        for node in sorted(pasts)
        if pasts[node].before or pasts[node].after
    )
