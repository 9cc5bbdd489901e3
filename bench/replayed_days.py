"""A recorded day through the whole diagnosis: detectors, log lines, scheduler states, then rules and correlation.

What the live loop learns at each of its ticks, in the same order; nothing here knows the truth.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from ops_pipelines.core.finding import Catalogue
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import (
    HAS_PROCESSES,
    SCHEDULER_SOURCE,
    JobState,
    JobStatus,
    NodeStatus,
    Observation,
    Signal,
)
from ops_pipelines.observe.detectors.detect import detect
from ops_pipelines.observe.detectors.stalls import SHORT_LIFE, EndedAttempt, detect_failures
from ops_pipelines.observe.logs.observations import observations_of
from ops_pipelines.observe.logs.signals import observe_log_lines
from ops_pipelines.observe.logs.tables import Writer, tabulate_lines
from ops_pipelines.observe.panels.panel import Detection
from ops_pipelines.review.retrace import Event, Retrace, Spell, turns
from ops_pipelines_lab.simulator.replay.day import Day

TICK = timedelta(seconds=5)
"""The daemon looks at sensors every 5 s."""
_KERNEL_SOURCE, _JOB_SOURCE = "kernel_log", "job_logs"
_FAILURES_WINDOW = timedelta(hours=24)
_REACHES_BACK = timedelta(minutes=30)
_CLOSING_EVERY = timedelta(minutes=1)
_MESSAGES_TAKE = timedelta(seconds=1)
"""A line is read a quarter of a second after it was written; one whole second is allowed."""


@dataclass(slots=True, kw_only=True)
class WatchedRetrace(Retrace):
    """A pass that also keeps when each incident first rested on each finding."""

    rested_at: dict[tuple[IncidentId, str, NodeName], datetime] = field(default_factory=dict)
    """By incident, `Finding.rule` and node."""

    def step(
        self,
        at: datetime,
        *,
        events: Iterable[Observation] = (),
        begun: Iterable[Observation] = (),
        ended: Iterable[Observation] = (),
        jobs: Collection[JobStatus] = (),
        nodes: Collection[NodeStatus] = (),
    ) -> tuple[Incident, ...]:
        changed = Retrace.step(self, at, events=events, begun=begun, ended=ended, jobs=jobs, nodes=nodes)
        for incident in changed:
            for finding in incident.findings:
                self.rested_at.setdefault((incident.incident, finding.rule, finding.node), at)
        return changed


def retrace_day(day: Day, catalogue: Catalogue) -> WatchedRetrace:
    """Return the incidents that the program would have had on that day."""
    drained = _drained(day)
    detections = detect(day.panel, topology=day.topology, release={})
    spells = [
        *(spell for each in detections for spell in _spells_of(each, day, drained)),
        *_silent_nodes(day, drained),
        *_failure_spells(day),
    ]
    events = list(_events(day))
    end = day.panel.time(len(day.panel.times) - 1)
    retrace = WatchedRetrace(catalogue=catalogue, topology=day.topology)
    learnt = {turn.at: turn for turn in turns(events, spells, tick=TICK, until=end)}
    returns: dict[datetime, list[NodeName]] = {}
    for repair in day.repairs:
        returns.setdefault(_up_to_tick(repair.returned_at), []).append(repair.node)
    start = day.panel.time(0)
    minutes = {start + number * _CLOSING_EVERY for number in range(int((end - start) / _CLOSING_EVERY) + 1)}
    jobs, nodes = _Timeline(day.jobs), _Timeline(day.nodes)
    for at in sorted({*learnt, *returns, *minutes}):
        for node in returns.get(at, ()):
            retrace.give_back(node, at)
        turn = learnt.get(at)
        if turn is not None:
            retrace.step(
                at, events=turn.events, begun=turn.begun, ended=turn.ended, jobs=jobs.at(at), nodes=nodes.at(at)
            )
        elif at in minutes and (retrace.is_due(at) or at.minute % 5 == 0):
            retrace.step(at, jobs=jobs.at(at), nodes=nodes.at(at))
    return retrace


Status = TypeVar("Status")


class _Timeline(Generic[Status]):
    """States by time, asked for moments in order."""

    def __init__(self, changes: Sequence[tuple[datetime, tuple[Status, ...]]]) -> None:
        self._changes = changes
        self._next = 0
        self._now: tuple[Status, ...] = ()

    def at(self, at: datetime) -> tuple[Status, ...]:
        while self._next < len(self._changes) and self._changes[self._next][0] <= at:
            self._now = self._changes[self._next][1]
            self._next += 1
        return self._now


def _up_to_tick(at: datetime) -> datetime:
    seconds = TICK.total_seconds()
    return datetime.fromtimestamp(-(-at.timestamp() // seconds) * seconds, tz=at.tzinfo)


def _drained(day: Day) -> dict[NodeName, list[tuple[datetime, datetime]]]:
    """Return when each node was somebody else's: what it shows then is their business."""
    spans: dict[NodeName, list[tuple[datetime, datetime]]] = {}
    since: dict[NodeName, datetime] = {}
    end = day.panel.time(len(day.panel.times) - 1)
    for at, nodes in day.nodes:
        for node in nodes:
            if node.is_drained:
                since.setdefault(node.node, at)
            elif node.node in since:
                spans.setdefault(node.node, []).append((since.pop(node.node), at))
    for name, at in since.items():
        spans.setdefault(name, []).append((at, end + TICK))
    return spans


def _spells_of(
    detection: Detection, day: Day, drained: dict[NodeName, list[tuple[datetime, datetime]]]
) -> Iterator[Spell]:
    """Yield when a detection counts: from its sample to the first that no longer shows it, drains of others apart."""
    step = timedelta(seconds=day.panel.step_seconds)
    known, gone = detection.first_seen_at, detection.last_seen_at + step
    observation = detection.observation()
    # Windows reach back: what a node did before it was taken out must not be held against it when it is back.
    spans = [
        (since, until + (_REACHES_BACK if detection.began_at < until else TICK))
        for since, until in drained.get(detection.node, [])
    ]
    for begin, end in _outside(known, gone, spans):
        yield Spell(observation=observation, known_at=begin, gone_at=end)


def _outside(
    begin: datetime, end: datetime, spans: Iterable[tuple[datetime, datetime]]
) -> Iterator[tuple[datetime, datetime]]:
    for since, until in spans:
        if until <= begin or since >= end:
            continue
        if since > begin:
            yield begin, since
        begin = until
    if begin < end:
        yield begin, end


def _silent_nodes(day: Day, drained: dict[NodeName, list[tuple[datetime, datetime]]]) -> Iterator[Spell]:
    since: dict[NodeName, datetime] = {}
    end = day.panel.time(len(day.panel.times) - 1)

    def spells(node: NodeName, until: datetime) -> Iterator[Spell]:
        began = since.pop(node)
        observation = Observation(
            signal=Signal.NODE_UNREACHABLE,
            node=node,
            observed_at=began,
            source=SCHEDULER_SOURCE,
            position=f"{Signal.NODE_UNREACHABLE.value}/{node}",
            text=f"{node} does not answer the scheduler",
        )
        for begin, finish in _outside(began, until, drained.get(node, [])):
            yield Spell(observation=observation, known_at=begin, gone_at=finish)

    for at, nodes in day.nodes:
        for node in nodes:
            if not node.is_responding:
                since.setdefault(node.node, at)
            elif node.node in since:
                yield from spells(node.node, at)
    for name in list(since):
        yield from spells(name, end + TICK)


def _events(day: Day) -> Iterator[Event]:
    """Yield what lines say: codes of the driver by the sensor's own reader, every other signature by the tables."""
    kernel = [line for line in day.lines if line.job is None]
    of_jobs = [line for line in day.lines if line.job is not None]
    received = day.panel.time(len(day.panel.times) - 1)
    coded, _ = observe_log_lines(kernel, source=_KERNEL_SOURCE, received_at=received, known_nodes=day.topology.places)
    told = list(coded)
    for lines, table, source, writer in (
        (kernel, "kernel_events", _KERNEL_SOURCE, Writer.KERNEL),
        (of_jobs, "job_logs", _JOB_SOURCE, Writer.JOB),
    ):
        if lines:
            rows = tabulate_lines(lines, source=source, at=received, writer=writer).tables.get(table)
            told += () if rows is None else observations_of(rows, table=table)
    arrivals = {line.position: arrived for line, arrived in zip(day.lines, day.arrivals, strict=True)}
    for observation in told:
        yield Event(observation=observation, known_at=arrivals[observation.position] + _MESSAGES_TAKE)


def _failure_spells(day: Day) -> Iterator[Spell]:
    """Yield verdicts over many attempts, judged again whenever a job has ended.

    What failed on a node before it was last booted is not held against it.
    """
    nodes = _Timeline(day.nodes)
    ended: dict[tuple[str, datetime | None], EndedAttempt] = {}
    known: dict[str, tuple[Observation, datetime]] = {}
    end = day.panel.time(len(day.panel.times) - 1)
    for at, jobs in day.jobs:
        is_new = False
        for job in jobs:
            key = (job.job, job.started_at)
            if job.ended_at is None or job.state in HAS_PROCESSES or job.state is JobState.PENDING or key in ended:
                continue
            ended[key] = EndedAttempt(
                job=job.job,
                name=job.name,
                user=job.user,
                nodes=job.nodes,
                started_at=job.started_at or job.ended_at,
                ended_at=job.ended_at,
                state=job.state,
            )
            is_new = True
        if not is_new:
            continue
        young = [each for each in ended.values() if at - each.ended_at <= _FAILURES_WINDOW]
        booted_at = {node.node: node.booted_at for node in nodes.at(at) if node.booted_at is not None}
        surviving_count = sum(
            job.ended_at is None and job.started_at is not None and at - job.started_at > SHORT_LIFE for job in jobs
        )
        found = detect_failures(young, at=at, surviving_count=surviving_count, booted_at=booted_at)
        present = {each.position: each.observation() for each in found}
        for position in [each for each in known if each not in present]:
            observation, since = known.pop(position)
            yield Spell(observation=observation, known_at=since, gone_at=at)
        for position, observation in present.items():
            known.setdefault(position, (observation, at))
    for observation, since in known.values():
        yield Spell(observation=observation, known_at=since, gone_at=end + TICK)
