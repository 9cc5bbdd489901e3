"""Decides over recorded time: what was known when goes in, the incidents that there would have been come out.

The same rules and the same correlation as live, without ledger, plans or acts. Made for `diagnose`, for the evaluation
and for what-if questions; everything stays in memory.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ops_pipelines.core.finding import Catalogue, Finding, Response
from ops_pipelines.core.identity import IncidentId, JobAttempt, NodeName, Topology
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.observation import JobStatus, NodeStatus, Observation
from ops_pipelines.core.policy import MassEvent
from ops_pipelines.diagnose.closing import is_clearing_due
from ops_pipelines.diagnose.correlate import correlate
from ops_pipelines.diagnose.incidents import World
from ops_pipelines.observe.rules import find

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
