"""The incidents while findings are being placed: opened, replaced, merged, cleared, and in the end which changed.

The one thing that changes during a correlation; the passes over it are the modules that take it. It decides nothing:
which incident a finding joins, what is merged and what is over is theirs to say.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from ops_pipelines.core.fault import Component
from ops_pipelines.core.finding import Finding, Response
from ops_pipelines.core.identity import IncidentId, JobAttempt, NodeName
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.domain.diagnosis.diagnose import diagnose
from ops_pipelines.domain.diagnosis.response import raised_response
from ops_pipelines.domain.diagnosis.standing import Standing, standing_of
from ops_pipelines.domain.diagnosis.world import Roster, World


class Board:
    """The incidents by name, oldest first, and the world that they are judged in."""

    def __init__(self, incidents: Collection[Incident], world: World) -> None:
        self._before: Mapping[IncidentId, Incident] = {
            incident.incident: incident for incident in sorted(incidents, key=lambda each: each.incident)
        }
        self._count = world.incident_count
        self.incidents: dict[IncidentId, Incident] = dict(self._before)
        self.world = world
        self.present: set[Standing] = {standing_of(condition) for condition in world.conditions}
        """The conditions that hold now."""
        self.roster = Roster(world.jobs, now=world.now)

    def changed(self) -> tuple[Incident, ...]:
        """Return every incident that is new or changed, each with what is believed of it now."""
        return tuple(
            replace(incident, hypothesis=diagnose(incident, topology=self.world.topology))
            for key, incident in self.incidents.items()
            if self._before.get(key) != incident
        )

    def put(self, incident: Incident) -> None:
        """Let an incident take the place of what it was."""
        self.incidents[incident.incident] = incident

    def open(
        self,
        finding: Finding,
        *,
        nodes: frozenset[NodeName],
        victims: frozenset[JobAttempt],
        suspect: Component | None = None,
    ) -> None:
        """Open an incident of one finding; it names the finding's GPU where it blames a node."""
        self.put(
            Incident(
                incident=self._next_name(),
                state=IncidentState.OPEN,
                response=raised_response([finding]),
                nodes=nodes,
                gpus=frozenset() if finding.gpu is None or not nodes else frozenset({finding.gpu}),
                victims=victims,
                findings=(finding,),
                opened_at=self.world.now,
                changed_at=self.world.now,
                suspect=suspect,
                note=finding.explanation,
            )
        )

    def open_wide(
        self,
        findings: tuple[Finding, ...],
        *,
        nodes: frozenset[NodeName],
        victims: frozenset[JobAttempt],
        note: str,
        suspect: Component | None = None,
    ) -> Incident:
        """Open an incident of many nodes, which pages and touches nothing; return it."""
        incident = Incident(
            incident=self._next_name(),
            state=IncidentState.OPEN,
            response=Response.PAGE_MASS_EVENT,
            nodes=nodes,
            gpus=frozenset(),
            victims=victims,
            findings=findings,
            opened_at=self.world.now,
            changed_at=self.world.now,
            suspect=suspect,
            note=note,
        )
        self.put(incident)
        return incident

    def merge(self, incident: Incident, *, into: Incident) -> None:
        """Close an open incident as part of another."""
        self.put(advance(incident, IncidentEvent.JOINED_OTHER, at=self.world.now, note=f"part of {into.incident}"))

    def clear(self, incident: Incident, *, note: str) -> None:
        """Close an incident that is over, and say why."""
        self.put(advance(incident, IncidentEvent.CLEARED, at=self.world.now, note=note))

    def _next_name(self) -> IncidentId:
        self._count += 1
        return IncidentId(f"INC-{self._count:04d}")


def is_touched(incident: Incident) -> bool:
    """Return whether we have begun to act on an incident: a superseded one waits again, with its node drained."""
    return incident.state is not IncidentState.OPEN or incident.plan_count > 0
