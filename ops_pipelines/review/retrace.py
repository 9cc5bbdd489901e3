"""What was known when, read back from the lake, and the incidents that there would have been.

The same detectors and the same rules of lines as live, over the hours before a moment. What the lake does not hold is
stated (`gaps`), never guessed. How the scheduler saw a node at a time is not kept: `inventory` shows each hour as it
was when the hour was filled. Who did not answer it is found by the series that end.

The same rules and the same correlation as live, without ledger, plans or acts. Made for `diagnose`, for the evaluation
and for what-if questions; everything stays in memory.

Reads the lake alone. What was done about them, and by whom, is the ledger's to say.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.core.cluster import hour_of
from ops_pipelines.core.finding import Catalogue, Finding, Response
from ops_pipelines.core.identity import IncidentId, JobAttempt, NodeName, Topology
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.observation import JobStatus, NodeStatus, Observation
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.policy import MassEvent
from ops_pipelines.core.sources import Lake, Rows
from ops_pipelines.diagnose.correlate import correlate, is_clearing_due
from ops_pipelines.diagnose.incidents import World
from ops_pipelines.observe.rules import find
from ops_pipelines.observe.window import FAILURES_REACH

# -- decides over recorded time --


WAITING_LIMIT = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """One condition: known from `known_at` on, gone at `gone_at` (None: not yet)."""

    observation: Observation
    known_at: datetime
    gone_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One logged fact, known at `known_at`."""

    observation: Observation
    known_at: datetime


@dataclass(slots=True, kw_only=True)
class Retrace:
    """One pass over recorded time. `step` takes moments in order; `incidents` holds all that there ever were."""

    catalogue: Catalogue
    topology: Topology
    mass_event: MassEvent = field(default_factory=MassEvent)
    incidents: dict[IncidentId, Incident] = field(default_factory=dict)
    raised_at: dict[IncidentId, datetime] = field(default_factory=dict)
    """When each incident first had evidence enough to trouble somebody."""
    _conditions: dict[tuple[str, str], Observation] = field(default_factory=dict)
    _known: set[tuple[str, str]] = field(default_factory=set)
    _open: dict[IncidentId, Incident] = field(default_factory=dict)
    _told: set[JobAttempt] = field(default_factory=set)

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
        """Decide once; return what is new or changed. The same event twice is one, as in the ledger."""
        new: list[Finding] = []
        for observation in ended:
            self._conditions.pop((observation.source, observation.position), None)
        for observation in begun:
            if self._conditions.setdefault((observation.source, observation.position), observation) is observation:
                new.append(find(observation, self.catalogue))
        for observation in events:
            identity = (observation.source, observation.position)
            if identity not in self._known:
                self._known.add(identity)
                new.append(find(observation, self.catalogue))
        changed = correlate(
            new,
            tuple(self._open.values()),
            World(
                jobs=jobs,
                conditions=tuple(self._conditions.values()),
                topology=self.topology,
                mass_event=self.mass_event,
                waiting_limit=WAITING_LIMIT,
                returned=frozenset(),
                told=frozenset(self._told),
                incident_count=len(self.incidents),
                now=at,
                nodes=nodes,
            ),
        )
        self._keep(changed)
        return changed

    def is_due(self, at: datetime) -> bool:
        """Return whether time alone would change an incident."""
        conditions = tuple(self._conditions.values())
        return any(is_clearing_due(incident, conditions, now=at) for incident in self._open.values())

    def give_back(self, node: NodeName, at: datetime) -> None:
        """Close what is open on a node: a person has put it right and taken it back into service."""
        note = "a person took the node back into service"
        self._keep(
            [
                _closed(incident, at=at, note=note)
                for incident in self._open.values()
                if incident.nodes == frozenset({node})
            ]
        )

    def _keep(self, incidents: Iterable[Incident]) -> None:
        for incident in incidents:
            self.incidents[incident.incident] = incident
            if not incident.is_watched:
                self.raised_at.setdefault(incident.incident, incident.changed_at)
            if incident.is_open:
                self._open[incident.incident] = incident
            else:
                self._open.pop(incident.incident, None)
                if incident.response is Response.NOTIFY_OWNER:
                    self._told |= incident.victims


def _closed(incident: Incident, *, at: datetime, note: str) -> Incident:
    handed = replace(incident, state=IncidentState.ESCALATED)
    return advance(handed, IncidentEvent.CLEARED, at=at, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """All that becomes known at one moment."""

    at: datetime
    events: tuple[Observation, ...]
    begun: tuple[Observation, ...]
    ended: tuple[Observation, ...]


def turns(events: Iterable[Event], spells: Iterable[Spell], *, tick: timedelta, until: datetime) -> tuple[Turn, ...]:
    """Return what a loop that looks every `tick` learns at each look that brings something new, by time."""
    by_time: dict[datetime, tuple[list[Observation], list[Observation], list[Observation]]] = {}

    def bucket(at: datetime) -> tuple[list[Observation], list[Observation], list[Observation]]:
        seconds = tick.total_seconds()
        look = -(-at.timestamp() // seconds) * seconds
        return by_time.setdefault(datetime.fromtimestamp(look, tz=at.tzinfo), ([], [], []))

    for event in events:
        if event.known_at <= until:
            bucket(event.known_at)[0].append(event.observation)
    for spell in spells:
        if spell.known_at <= until:
            bucket(spell.known_at)[1].append(spell.observation)
        if spell.gone_at is not None and spell.gone_at <= until:
            bucket(spell.gone_at)[2].append(spell.observation)
    return tuple(
        Turn(at=at, events=tuple(found[0]), begun=tuple(found[1]), ended=tuple(found[2]))
        for at, found in sorted(by_time.items())
    )


class JobTimeline:
    """The jobs by time, asked for moments in order."""

    def __init__(self, changes: tuple[tuple[datetime, tuple[JobStatus, ...]], ...]) -> None:
        self._changes = changes
        self._next = 0
        self._now: tuple[JobStatus, ...] = ()

    def at(self, at: datetime) -> tuple[JobStatus, ...]:
        """Return the jobs as they stood at `at`, which is never before what was asked last."""
        while self._next < len(self._changes) and self._changes[self._next][0] <= at:
            self._now = self._changes[self._next][1]
            self._next += 1
        return self._now


# -- what was known when, read back from the lake --


if TYPE_CHECKING:
    from ops_pipelines.observe.panels.panel import Detection, Panel

Detect = Callable[["Panel"], "Sequence[Detection]"]
READ_AT_ONCE = timedelta(hours=2)
"""Bounds memory: a day of a large cluster is many times what fits."""
_JOB_END_LIMIT = timedelta(days=30)
"""Assumption: no attempt that matters holds nodes for longer. Accounting lists attempts by the hour in which they
ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedInterval:
    """All that the lake knows of [start, end], for `retrace.turns`."""

    start: datetime
    end: datetime
    events: tuple[Event, ...]
    """What lines stated, by time."""
    spells: tuple[Spell, ...]
    """What the detectors saw and for how long, by the time at which they were sure of it."""
    jobs: tuple[tuple[datetime, tuple[JobStatus, ...]], ...]
    """What the scheduler would have stated of all jobs that ran or had just ended, at each change."""
    gaps: tuple[str, ...]
    """What the lake does not hold of the interval, in words: what was not seen there is not known to be well."""
    is_blind: bool
    """It holds no sample of anything."""


def evidence_from_lake(
    lake: Lake,
    *,
    at: datetime,
    back: timedelta,
    topology: Topology,
    step_seconds: int | None = None,
    release: Mapping[str, str] | None = None,
    detect: Detect | None = None,
) -> RecordedInterval:
    """Return what was known in [at - back, at]. Raises LakeError; ValueError for an interval that is empty.

    Nothing later than `at` is used, but for accounting of attempts that were still running then: it says which nodes
    they held, and they are reported as running.

    `step_seconds` None: the grid that most GPU samples stand on. `detect` None: all detectors.
    """
    from ops_pipelines.observe.detectors.detect import detect as detect_all
    from ops_pipelines.observe.past_states import attempts_of, jobs_over_time

    if back <= timedelta(0):
        raise ValueError(f"the interval is {back} long; expected more than nothing")
    start, end = at.astimezone(UTC) - back, at.astimezone(UTC)
    step = step_seconds or _grid_step(lake, at=end)
    look = detect or (lambda panel: detect_all(panel, topology=topology, release=release or {}))
    attempts = attempts_of(*_attempt_rows(lake, start=start, end=end))
    known = [each for each in attempts if each.started_at is not None and each.started_at <= end]
    seen = _Seen(step=timedelta(seconds=step))
    gaps: list[str] = []
    is_blind = True
    begin = start
    while begin <= end:
        until = min(begin + READ_AT_ONCE, end + timedelta(microseconds=1))
        panel, absent, has_samples = _panel(lake, begin=begin, until=until, step=step, topology=topology, jobs=known)
        gaps += absent
        is_blind &= not has_samples
        seen.take(look(panel), begin=begin, until=until)
        begin = until
    spells = seen.spells(end)
    spells += _failures(known, start=start, end=end)
    return RecordedInterval(
        start=start,
        end=end,
        events=_events(lake, start=start, end=end, topology=topology),
        spells=tuple(sorted(spells, key=lambda each: (each.known_at, each.observation.position))),
        jobs=jobs_over_time(known, start=start, end=end),
        gaps=(*gaps, *_hours_without_jobs(lake, start=start, end=end)),
        is_blind=is_blind,
    )


def _grid_step(lake: Lake, *, at: datetime) -> int:
    """Return the distance of the samples in the hour before; 15 s where there are too few."""
    from ops_pipelines.observe.panels.grid import grid_step_of

    return grid_step_of(lake.read("gpu_telemetry", start=at - timedelta(hours=1), end=at, columns=("time",))) or 15


def _panel(
    lake: Lake, *, begin: datetime, until: datetime, step: int, topology: Topology, jobs: Sequence[JobStatus]
) -> "tuple[Panel, list[str], bool]":
    """Return the panel of [begin, until) with as much before it as detectors look back; which tables have no sample in
    [begin, until), in words; and whether any has."""
    from ops_pipelines.lake.schema import TELEMETRY_TABLES
    from ops_pipelines.observe.panels.grid import panel_rows
    from ops_pipelines.observe.panels.panel import LOOKBACK_SECONDS, PANEL_COLUMNS, columns_to_read
    from ops_pipelines.observe.panels.tables import panel_from_tables

    start = begin - timedelta(seconds=LOOKBACK_SECONDS + step)
    tables: dict[str, Rows] = {}
    absent: list[str] = []
    has_samples = False
    for table in PANEL_COLUMNS:
        first = hour_of(start) if table == "job_allocations" else start
        rows = lake.read(table, start=first, end=until, columns=columns_to_read(table))
        tables[table] = panel_rows(table, rows)
        if table not in TELEMETRY_TABLES:
            continue
        if lake.read(table, start=begin, end=until, columns=("time",)).num_rows:
            has_samples = True
        else:
            absent.append(f"{table}: no sample from {begin:%Y-%m-%d %H:%M} to {until:%H:%M}")
    panel = panel_from_tables(tables, start=start, end=until, step_seconds=step, topology=topology, jobs=jobs)
    return panel, absent, has_samples


def _hours_without_jobs(lake: Lake, *, start: datetime, end: datetime) -> list[str]:
    """Return the hours of which no allocation is kept: usually, their partitions were never filled."""
    found: list[str] = []
    hour = hour_of(start)
    while hour < end:
        if not lake.read("job_allocations", start=hour, end=hour + timedelta(hours=1), columns=("time",)).num_rows:
            found.append(f"job_allocations: no row of {hour:%Y-%m-%d %H:%M}: which jobs ran in that hour is not known")
        hour += timedelta(hours=1)
    return found


class _Seen:
    """What detectors saw, put together over intervals that were read one after the other."""

    def __init__(self, *, step: timedelta) -> None:
        self._step = step
        self._spells: list[Spell] = []
        self._last: dict[str, tuple[Observation, datetime, datetime]] = {}

    def take(self, detections: "Sequence[Detection]", *, begin: datetime, until: datetime) -> None:
        """Take in what was seen in [begin, until): what began earlier and continues was taken in before."""
        for each in sorted(detections, key=lambda each: each.first_seen_at):
            if each.last_seen_at < begin or each.first_seen_at >= until:
                continue
            known_at = max(begin, each.first_seen_at)
            before = self._last.get(each.position)
            if before is not None and known_at - before[2] <= self._step:
                self._last[each.position] = (before[0], before[1], max(before[2], each.last_seen_at))
                continue
            if before is not None:
                self._close(before)
            self._last[each.position] = (each.observation(), known_at, each.last_seen_at)

    def spells(self, end: datetime) -> list[Spell]:
        """Return all of them; one that held at the newest grid time is not gone."""
        for before in self._last.values():
            self._close(before, end=end)
        self._last = {}
        return self._spells

    def _close(self, held: tuple[Observation, datetime, datetime], *, end: datetime | None = None) -> None:
        observation, known_at, last_at = held
        gone_at = last_at + self._step
        is_there = end is not None and gone_at > end
        self._spells.append(Spell(observation=observation, known_at=known_at, gone_at=None if is_there else gone_at))


def _failures(attempts: Sequence[JobStatus], *, start: datetime, end: datetime) -> list[Spell]:
    """Return verdicts over many attempts, judged again whenever one has ended."""
    from ops_pipelines.observe.detectors.stalls import detect_failures
    from ops_pipelines.observe.past_states import ended_attempts

    over = ended_attempts(attempts)
    present: dict[str, tuple[Observation, datetime]] = {}
    found: list[Spell] = []
    times = sorted({each.ended_at for each in over if start <= each.ended_at <= end} | {start, end})
    for at in times:
        young = [each for each in over if at - FAILURES_REACH <= each.ended_at <= at]
        now = {each.position: each.observation() for each in detect_failures(young, at=at)}
        for position in [each for each in present if each not in now]:
            observation, since = present.pop(position)
            found.append(Spell(observation=observation, known_at=since, gone_at=at))
        for position, observation in now.items():
            present.setdefault(position, (observation, at))
    found += [Spell(observation=observation, known_at=since) for observation, since in present.values()]
    return found


def _events(lake: Lake, *, start: datetime, end: datetime, topology: Topology) -> tuple[Event, ...]:
    """Return what lines say: codes of the driver by the sensor's own reader, every other signature by the tables."""
    from ops_pipelines.observe.logs.observations import coded_observations, observations_of
    from ops_pipelines.observe.panels.grid import addresses_of

    until = end + timedelta(microseconds=1)
    columns = {
        "kernel_events": ("source", "position", "time", "node", "signature", "pci_address", "device", "text"),
        "job_logs": ("source", "position", "time", "node", "job", "signature", "text"),
    }
    seats = lake.read(
        "gpu_telemetry", start=max(start, end - timedelta(hours=1)), end=until, columns=("node", "pci_address")
    )
    gpus = addresses_of(seats)
    found: list[Observation] = []
    begin = start
    while begin < until:
        stop = min(begin + READ_AT_ONCE, until)
        for table, names in columns.items():
            rows = lake.read(table, start=begin, end=stop, columns=names)
            found += observations_of(rows, table=table, gpus=gpus)
            if table == "kernel_events":
                found += coded_observations(rows, received_at=end, known_nodes=tuple(topology.places))
        begin = stop
    found.sort(key=lambda each: (each.observed_at, each.source, each.position))
    return tuple(Event(observation=each, known_at=each.observed_at) for each in found)


def _attempt_rows(lake: Lake, *, start: datetime, end: datetime) -> tuple[Rows, Rows]:
    """Return the rows of accounting and allocations that may name an attempt of the interval."""
    from ops_pipelines.observe.past_states import ACCOUNTING_COLUMNS, ALLOCATION_COLUMNS

    accounting = lake.read(
        "job_accounting",
        start=hour_of(start - FAILURES_REACH),
        end=end + _JOB_END_LIMIT,
        columns=ACCOUNTING_COLUMNS,
    )
    allocations = lake.read(
        "job_allocations", start=hour_of(start), end=end + timedelta(hours=1), columns=ALLOCATION_COLUMNS
    )
    return accounting, allocations


# -- the incidents that recorded time shows --


LOOK_EVERY = timedelta(seconds=5)
"""As often as the daemon looks at its sensors."""
_CLOSE_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastIncidents:
    """What was wrong in [start, end], as far as was recorded."""

    start: datetime
    end: datetime
    incidents: tuple[Incident, ...]
    """Those that would have troubled somebody, by when they began; named PAST-1 and so on, as the ledger knows none."""
    gaps: tuple[str, ...]
    """What the lake does not hold, in words."""
    is_blind: bool
    """Nobody recorded a sample of anything: that no incident was found then says nothing."""


def find_past_incidents(
    lake: Lake,
    *,
    at: datetime,
    back: timedelta,
    rules: Rules,
    release: Mapping[str, str],
    step_seconds: int | None = None,
    detect: Detect | None = None,
) -> PastIncidents:
    """Return the incidents of [at - back, at]. Raises LakeError; ValueError for an interval that is empty.

    `step_seconds` and `detect` as in `from_lake.evidence_from_lake`.
    """
    known = evidence_from_lake(
        lake, at=at, back=back, topology=rules.topology, step_seconds=step_seconds, release=release, detect=detect
    )
    retrace = Retrace(catalogue=rules.catalogue, topology=rules.topology, mass_event=rules.policy.mass_event)
    _go_through(known, retrace)
    raised = [
        each
        for each in retrace.incidents.values()
        if each.state is not IncidentState.MERGED and each.incident in retrace.raised_at
    ]
    return PastIncidents(
        start=known.start,
        end=known.end,
        incidents=_named(sorted(raised, key=lambda each: (each.began_at, each.incident))),
        gaps=known.gaps,
        is_blind=known.is_blind,
    )


def _go_through(known: RecordedInterval, retrace: Retrace) -> None:
    learnt = {turn.at: turn for turn in turns(known.events, known.spells, tick=LOOK_EVERY, until=known.end)}
    count = int((known.end - known.start) / _CLOSE_EVERY)
    looks = {known.start + (number + 1) * _CLOSE_EVERY for number in range(count)}
    jobs = JobTimeline(known.jobs)
    for at in sorted({*learnt, *looks}):
        turn = learnt.get(at)
        if turn is not None:
            retrace.step(at, events=turn.events, begun=turn.begun, ended=turn.ended, jobs=jobs.at(at))
        else:
            retrace.step(at, jobs=jobs.at(at))


def _named(incidents: list[Incident]) -> tuple[Incident, ...]:
    return tuple(
        replace(incident, incident=IncidentId(f"PAST-{number}")) for number, incident in enumerate(incidents, start=1)
    )
