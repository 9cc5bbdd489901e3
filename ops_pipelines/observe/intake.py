"""Takes evidence in: follows logs, keeps new lines once, and conditions when they begin.

Anyone who reads the same log for another purpose has a place of its own. What lines mean is the caller's business.

A source that does not answer loses nothing: its cursor stays, and the failure is returned to be shown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from ops_pipelines.core.action import DRAIN_MARK, ActionRecord, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import NodeStatus, Observation, Rejected, Signal, as_history, is_history
from ops_pipelines.core.rollout import under_change
from ops_pipelines.core.sources import Growing, LogBatch, Logs, SourceError
from ops_pipelines.lake.telemetry import GpuTelemetry, observe_gpus
from ops_pipelines.observe.logs.signals import observe_log_lines

_GLANCE_EVERY_SECONDS = 0.05
"""How often a log is glanced at between two looks."""

# -- follows one log --


Told: TypeAlias = tuple[tuple[Observation, ...], tuple[Rejected, ...]]
"""What lines mean, and those that were not believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What came of one reading."""

    line_count: int
    new_count: int
    """Observations that were not evidence before."""
    rejected: tuple[Rejected, ...]
    is_full: bool
    """There may be more lines: as many came as were asked for."""


def follow(
    logs: Logs,
    cluster: Cluster,
    *,
    place: str,
    max_lines: int,
    now: datetime,
    observe: Callable[[LogBatch, str | None], Told],
) -> Followed:
    """Take in what is new in a log since the ledger's cursor named `place`, and move that.

    `observe` is given the batch and the cursor that it was read from; what it keeps elsewhere is kept before the cursor
    moves, so that after a crash a line comes twice, and none is lost. Raises what the log, `observe` and the ledger do.
    """
    before = cluster.ledger.cursor(place)
    batch = logs.read_new(before, max_lines=max_lines)
    is_full = len(batch.lines) == max_lines
    observations, rejected = observe(batch, before)
    observations, past = _without_history(observations, batch, cluster, source=place, before=before, is_full=is_full)
    if not batch.lines and batch.cursor == before:
        return Followed(line_count=0, new_count=0, rejected=(), is_full=False)
    rejected += past
    new_count = cluster.ledger.take_in(
        source=place, observations=observations, rejected=rejected, cursor=batch.cursor, now=now
    )
    return Followed(line_count=len(batch.lines), new_count=new_count, rejected=rejected, is_full=is_full)


def _without_history(
    observations: tuple[Observation, ...],
    batch: LogBatch,
    cluster: Cluster,
    *,
    source: str,
    before: str | None,
    is_full: bool,
) -> tuple[tuple[Observation, ...], tuple[Rejected, ...]]:
    """Return what happened since the ledger lives, and the rest as rejected (the ledger would not take it as evidence).

    A line that says no time may be as old as its file, until a source that was never read before, or whose cursor is
    gone, has been read to its end once.
    """
    reading = f"{source}/first reading"
    noted = cluster.ledger.cursor(reading) or ""
    if not batch.lines and batch.cursor == before and not noted:
        return observations, ()
    until = cluster.ledger.history_until()
    if until is None:
        return observations, ()
    is_first = before is None or (bool(noted) and noted == before)
    goes_on_at = batch.cursor if is_first and is_full else ""
    if is_first and goes_on_at != noted:  # Before the cursor moves: who dies in between reads a first time again.
        now = cluster.clock.now()
        cluster.ledger.take_in(source=reading, observations=(), rejected=(), cursor=goes_on_at, now=now)
    undated = {line.position for line in batch.lines if is_first and line.written_at is None}
    kept: list[Observation] = []
    past: list[Observation] = []
    for each in observations:
        (past if each.position in undated or is_history(each, until) else kept).append(each)
    return tuple(kept), tuple(map(as_history, past))


# -- takes evidence in --


_LINES_AT_ONCE = 4_000
"""Bounds memory when a log floods, and how long the first of a flood waits for the last: a tick decides in between.
The rest comes with the next call."""
_MISSING = frozenset({Signal.GPU_MISSING, Signal.TELEMETRY_STALE})
_RESTARTS = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.REIMAGE})
"""Of their acts the GPUs of a node go from the metrics for a while. Silence is not among what they explain: a node that
does not come back from a reboot is silent."""
_POURING_LINES = 400
"""More than these at one look are a storm: the lines of the next tenths of a second are worth as much as these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """What one pass took in."""

    new_count: int
    """Observations that were not evidence before."""
    rejected: tuple[Rejected, ...]
    answers: Mapping[str, str | None]
    """Each source that was asked: None if it answered, else what went wrong, in words."""
    gpu_telemetry: GpuTelemetry | None
    """None if the metrics source did not answer, or was not asked."""
    nodes: tuple[NodeStatus, ...] | None
    """None if the scheduler did not answer, or was not asked."""
    is_more_waiting: bool = False
    """A log had more to give than is taken in at once."""
    line_count: int = 0
    """Lines that logs gave."""

    @property
    def is_pouring(self) -> bool:
        """Return whether to look again without delay: a log has more to give, or will have when we look."""
        return self.is_more_waiting or self.line_count >= _POURING_LINES

    @property
    def failures(self) -> tuple[str, ...]:
        """Return what went wrong with the sources that did not answer."""
        return tuple(problem for problem in self.answers.values() if problem is not None)


def take_in_logs(cluster: Cluster) -> Intake:
    """Take in the new lines of every log source."""
    new_count = line_count = 0
    rejected: list[Rejected] = []
    answers: dict[str, str | None] = {}
    is_more_waiting = False
    for logs in cluster.logs:
        try:
            followed = _follow_one(logs, cluster)
        except SourceError as problem:
            answers[logs.source] = str(problem)
            continue
        answers[logs.source] = None
        new_count += followed.new_count
        rejected += followed.rejected
        line_count += followed.line_count
        is_more_waiting |= followed.is_full
    return Intake(
        new_count=new_count,
        rejected=tuple(rejected),
        answers=answers,
        gpu_telemetry=None,
        nodes=None,
        is_more_waiting=is_more_waiting,
        line_count=line_count,
    )


def wait_for_lines(cluster: Cluster, seconds: float, *, wait: Callable[[float], object]) -> bool:
    """Wait so long, or until a log has grown; return True as soon as `wait` does."""
    watched = [each for each in cluster.logs if isinstance(each, Growing)]
    glance_count = max(1, round(seconds / _GLANCE_EVERY_SECONDS)) if watched else 1
    for _ in range(glance_count):
        if wait(seconds / glance_count):
            return True
        if any(each.has_grown() for each in watched):
            return False
    return False


def take_in_conditions(cluster: Cluster) -> Intake:
    """Take in what the metrics and the scheduler show now: conditions that began, and those that ended."""
    now = cluster.clock.now()
    answers: dict[str, str | None] = {"scheduler": None, "telemetry": None}
    new_count = 0
    doing = our_doing(cluster, now=now)

    nodes: tuple[NodeStatus, ...] | None = None
    try:
        nodes = cluster.scheduler.read_nodes()
    except SourceError as problem:
        answers["scheduler"] = str(problem)
    else:
        unreachable = [
            _unreachable(node, now)
            for node in nodes
            if _is_ours_to_watch(node) and not node.is_responding and node.node not in doing.changing
        ]
        declared = [condition for condition in unreachable if cluster.rules.topology.knows(condition.node)]
        new_count += cluster.ledger.take_in_conditions(source="scheduler", present=declared, now=now)

    gpu_telemetry: GpuTelemetry | None = None
    try:
        samples = cluster.telemetry.read_samples(now)
    except SourceError as problem:
        answers["telemetry"] = str(problem)
    else:
        gpu_telemetry = observe_gpus(
            samples,
            at=now,
            topology=cluster.rules.topology,
            stale_after=cluster.rules.policy.durations.telemetry_stale_after,
        )
        newest = {each.node: each.newest_sample_at for each in gpu_telemetry.statuses}
        present = on_watched_nodes(gpu_telemetry.conditions, nodes, doing=doing, newest=newest)
        new_count += cluster.ledger.take_in_conditions(source="telemetry", present=present, now=now)
        _keep_rejected(cluster, gpu_telemetry.rejected, now)
    return Intake(
        new_count=new_count,
        rejected=() if gpu_telemetry is None else gpu_telemetry.rejected,
        answers=answers,
        gpu_telemetry=gpu_telemetry,
        nodes=nodes,
    )


def _follow_one(logs: Logs, cluster: Cluster) -> Followed:
    now, known = cluster.clock.now(), cluster.rules.topology.places

    def observe(batch: LogBatch, _: str | None) -> Told:
        return observe_log_lines(batch.lines, source=logs.source, received_at=now, known_nodes=known)

    return follow(logs, cluster, place=logs.source, max_lines=_LINES_AT_ONCE, now=now, observe=observe)


def _keep_rejected(cluster: Cluster, rejected: Sequence[Rejected], now: datetime) -> None:
    if rejected:
        cluster.ledger.take_in(source="telemetry", observations=(), rejected=rejected, cursor=None, now=now)


def _is_ours_to_watch(node: NodeStatus) -> bool:
    """A node that somebody else drained is theirs: it may be silent, open or in pieces on purpose."""
    return not node.is_drained or (node.reason or "").startswith(DRAIN_MARK)


@dataclass(frozen=True, slots=True, kw_only=True)
class OurDoing:
    """What is missing on which nodes because of us: nothing of that is evidence. What holds afterwards begins then."""

    changing: frozenset[NodeName]
    """A rollout changes their versions, and finds itself whether they come well."""
    restarts: Mapping[NodeName, datetime]
    """When the newest restart of their GPUs by us was over; now while one is under way."""

    def explains(self, condition: Observation, *, newest: datetime | None) -> bool:
        """Return whether a condition is our doing. `newest`: when the node was last sampled; None: never."""
        if condition.node in self.changing:
            return True
        restarted_at = self.restarts.get(condition.node)
        return restarted_at is not None and condition.signal in _MISSING and (newest is None or newest <= restarted_at)


def our_doing(cluster: Cluster, *, now: datetime) -> OurDoing:
    """Return what we do to nodes at this moment, or did so lately that samples may not show its end yet."""
    state = cluster.ledger.read_state(now)
    return OurDoing(
        changing=under_change(state.owned, state.records) if state.owned else frozenset(),
        restarts=restarts_of(state.records, now=now, late_by=cluster.rules.policy.durations.telemetry_stale_after),
    )


def restarts_of(records: Iterable[ActionRecord], *, now: datetime, late_by: timedelta) -> Mapping[NodeName, datetime]:
    """Return when GPUs of nodes were last restarted by us, `now` while they are; none that was over `late_by` ago."""
    restarts: dict[NodeName, datetime] = {}
    for record in records:
        node = record.action.node
        if node is None or record.action.verb not in _RESTARTS or not record.may_have_taken_effect:
            continue
        over_at = now if record.outcome is None else record.outcome.finished_at
        if now - over_at < late_by:
            restarts[node] = max(restarts.get(node, over_at), over_at)
    return restarts


def on_watched_nodes(
    conditions: Sequence[Observation],
    nodes: tuple[NodeStatus, ...] | None,
    *,
    doing: OurDoing,
    newest: Mapping[NodeName, datetime],
) -> tuple[Observation, ...]:
    """Return the conditions without those on nodes that somebody else drained, and those that are our own doing."""
    others = {node.node for node in nodes or () if not _is_ours_to_watch(node)}
    return tuple(
        each
        for each in conditions
        if each.node not in others and not doing.explains(each, newest=newest.get(each.node))
    )


def _unreachable(node: NodeStatus, now: datetime) -> Observation:
    name: NodeName = node.node
    return Observation(
        signal=Signal.NODE_UNREACHABLE,
        node=name,
        observed_at=now,
        source="scheduler",
        position=f"{Signal.NODE_UNREACHABLE.value}/{name}",
        text=f"{name} does not answer the scheduler",
    )
