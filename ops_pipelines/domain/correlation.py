"""Findings -> incidents: one incident a cause, culprit apart from victims.

Joins new findings to what is open, opens what is new, merges what turns out to be one mass event, and closes what
cleared by itself. Pure and independent of the order in which findings come.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.domain.finding import REPAIRS, Finding, Response
from ops_pipelines.domain.identity import IncidentId, JobAttempt, NodeName, PciAddress
from ops_pipelines.domain.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.domain.observation import CONDITION_SOURCES, HAS_PROCESSES, JobState, JobStatus, Observation
from ops_pipelines.domain.policy import MassEvent
from ops_pipelines.domain.topology import Topology

_JUST_ENDED = timedelta(minutes=10)
"""A job that died of its own fault is gone from the node when its log line is read.
Source: Meta RSC attributes a cause seen in the last 10 minutes of a job (arXiv 2410.21680)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What findings are correlated against."""

    jobs: Collection[JobStatus]
    conditions: Collection[Observation]
    """Conditions that hold now."""
    topology: Topology
    mass_event: MassEvent
    waiting_limit: timedelta
    """How long an owner may not be told before the incident is given up: no node is at fault."""
    returned: frozenset[IncidentId]
    """Escalated incidents whose node a person has taken back into service."""
    told: frozenset[JobAttempt]
    """Attempts whose owner was told lately: once is enough, however often the program errs."""
    incident_count: int
    now: datetime


def correlate(findings: Collection[Finding], incidents: Collection[Incident], world: World) -> tuple[Incident, ...]:
    """Return every incident that is new or changed. The same findings in another order give the same incidents.

    Repairs are placed first, so that an application error on a node that just lost a GPU counts as its victim and
    not as somebody's bug.
    """
    board = _Board(incidents, world)
    board.close_what_was_returned()
    for finding in sorted(findings, key=_placing_order):
        board.place(finding)
    board.merge_mass_event()
    board.close_what_cleared()
    board.close_what_nobody_was_told()
    return board.changed()


def response_of(findings: Iterable[Finding]) -> Response:
    """Return the response that a set of findings calls for: the strongest over its GPUs.

    For one GPU the driver's newest own verdict outranks every table (NVML recovery action, Xid 154); what belongs
    to no GPU stands for itself. That the driver asks for nothing is no verdict on what happened: it says so just as
    well before a fault, and it takes no fault back.
    """
    return max((_response_of_gpu(group) for group in _by_gpu(findings).values()), default=Response.MONITOR)


def gpus_to_reset(findings: Iterable[Finding]) -> frozenset[PciAddress]:
    """Return the GPUs whose own findings call for a reset: a GPU that was only mentioned is left alone."""
    return frozenset(
        gpu
        for gpu, group in _by_gpu(findings).items()
        if gpu is not None and _response_of_gpu(group) is Response.RESET_GPU
    )


def _by_gpu(findings: Iterable[Finding]) -> Mapping[PciAddress | None, list[Finding]]:
    by_gpu: dict[PciAddress | None, list[Finding]] = {}
    for finding in findings:
        by_gpu.setdefault(finding.gpu, []).append(finding)
    return by_gpu


def has_cleared(incident: Incident, conditions: Collection[Observation]) -> bool:
    """Return whether an incident rests on lasting conditions alone, none of which holds any more.

    Never of a repair that we have begun: a person or the verification ends it, not silence.
    """
    if incident.plan_count > 0 and not incident.is_mass_event and incident.response in REPAIRS:
        return False
    present = {(condition.signal, condition.node) for condition in conditions}
    return bool(incident.findings) and all(
        finding.is_lasting
        and all((observation.signal, observation.node) not in present for observation in finding.evidence)
        for finding in incident.findings
    )


def _response_of_gpu(findings: list[Finding]) -> Response:
    verdicts = [
        finding
        for finding in findings
        if finding.is_driver_verdict and finding.gpu is not None and finding.response is not Response.MONITOR
    ]
    if verdicts:
        # Of two verdicts of one instant (log and metric) the stronger counts.
        return max(verdicts, key=lambda finding: (finding.found_at, finding.response)).response
    return max(finding.response for finding in findings)


def _placing_order(finding: Finding) -> tuple[bool, datetime, bool, str, str, tuple[tuple[str, str], ...]]:
    return (
        finding.response not in REPAIRS,
        finding.found_at,
        finding.is_driver_verdict,
        finding.node,
        finding.rule,
        tuple((observation.source, observation.position) for observation in finding.evidence),
    )


class _Board:
    """The incidents while findings are being placed; keeps what changed."""

    def __init__(self, incidents: Collection[Incident], world: World) -> None:
        self._incidents: dict[IncidentId, Incident] = {
            incident.incident: incident for incident in sorted(incidents, key=lambda each: each.incident)
        }
        self._before: Mapping[IncidentId, Incident] = dict(self._incidents)
        self._world = world
        self._count = world.incident_count
        self._present = {(condition.signal, condition.node) for condition in world.conditions}

    def changed(self) -> tuple[Incident, ...]:
        return tuple(incident for key, incident in self._incidents.items() if self._before.get(key) != incident)

    def place(self, finding: Finding) -> None:
        home = self._home_of(finding)
        if home is not None:
            self._join(home, finding)
        elif self._is_over(finding):
            return  # A condition that came and went before anybody decided: evidence, but no problem to own.
        elif finding.response is Response.NOTIFY_OWNER:
            self._place_application_error(finding)
        elif finding.response is not Response.MONITOR:
            self._open(finding, nodes=frozenset({finding.node}), victims=self._attempts_on(finding.node))

    def _is_over(self, finding: Finding) -> bool:
        """Return whether a finding rests on conditions alone, none of which holds any more."""
        return all(
            observation.source in CONDITION_SOURCES and (observation.signal, observation.node) not in self._present
            for observation in finding.evidence
        )

    def merge_mass_event(self) -> None:
        """Turn many young, untouched node incidents into one that only pages."""
        world = self._world
        young = [
            incident
            for incident in self._incidents.values()
            if incident.state in (IncidentState.OPEN, IncidentState.ACTING)
            and any(world.topology.knows(node) for node in incident.nodes)
            and incident.response in (*REPAIRS, Response.PAGE)
            and incident.findings
            and world.now - min(finding.found_at for finding in incident.findings) <= world.mass_event.window
        ]
        nodes = frozenset(node for incident in young for node in incident.nodes)
        if len(nodes) < world.mass_event.min_node_count:
            return
        untouched = [incident for incident in young if not _is_touched(incident)]
        if not untouched:
            return
        place = world.topology.shared_place(nodes)
        suspicion = f"all stand at {place}" if place else "they share neither rack nor leaf switch"
        seconds = world.mass_event.window.total_seconds()
        mass = self._add(
            Incident(
                incident=self._next_name(),
                state=IncidentState.OPEN,
                response=Response.PAGE_MASS_EVENT,
                nodes=frozenset(node for incident in untouched for node in incident.nodes),
                gpus=frozenset(),
                victims=frozenset(victim for incident in untouched for victim in incident.victims),
                findings=tuple(finding for incident in untouched for finding in incident.findings),
                opened_at=world.now,
                changed_at=world.now,
                note=f"{len(nodes)} nodes look broken within {seconds:.0f} s; {suspicion}",
            )
        )
        for incident in untouched:
            self._incidents[incident.incident] = advance(
                incident, IncidentEvent.JOINED_OTHER, at=world.now, note=f"part of {mass.incident}"
            )

    def close_what_was_returned(self) -> None:
        """Close what a person has ended by returning the node, before new faults there are placed."""
        for key in sorted(self._world.returned & self._incidents.keys()):
            incident = self._incidents[key]
            if incident.state is IncidentState.ESCALATED:
                note = "a person took the node back into service"
                self._incidents[key] = advance(incident, IncidentEvent.CLEARED, at=self._world.now, note=note)

    def close_what_cleared(self) -> None:
        """Close incidents that rest on lasting conditions alone once none of these holds any more."""
        for key, incident in self._incidents.items():
            if incident.state not in (IncidentState.OPEN, IncidentState.ESCALATED) or not incident.findings:
                continue
            if has_cleared(incident, self._world.conditions):
                note = "cleared by itself: the condition no longer holds"
                self._incidents[key] = advance(incident, IncidentEvent.CLEARED, at=self._world.now, note=note)

    def close_what_nobody_was_told(self) -> None:
        """Close application errors whose owner could not be told in time: the job is gone, or we only observe."""
        for key, incident in self._incidents.items():
            is_waiting = incident.state is IncidentState.OPEN and incident.response is Response.NOTIFY_OWNER
            if is_waiting and self._world.now - incident.opened_at > self._world.waiting_limit:
                note = "its owner was not told in time; no node is at fault"
                self._incidents[key] = advance(incident, IncidentEvent.CLEARED, at=self._world.now, note=note)

    def _home_of(self, finding: Finding) -> Incident | None:
        """Return the open incident that a finding belongs to, None if it starts its own."""
        on_node = [
            incident for incident in self._incidents.values() if incident.is_open and finding.node in incident.nodes
        ]
        repairs = [incident for incident in on_node if incident.response in REPAIRS or incident.is_mass_event]
        if repairs:
            return repairs[0]
        if finding.response in REPAIRS:
            mass = [incident for incident in self._incidents.values() if self._is_still_spreading(incident)]
            if mass:
                return mass[0]  # The cause is likely the same: nothing new is acted on while it spreads.
            waiting = [incident for incident in on_node if incident.state is IncidentState.OPEN]
            return waiting[0] if waiting else None
        if finding.response is Response.NOTIFY_OWNER:
            return None
        same_rule = [incident for incident in on_node if any(each.rule == finding.rule for each in incident.findings)]
        return same_rule[0] if same_rule else None

    def _is_still_spreading(self, incident: Incident) -> bool:
        """Return whether an open mass event got a finding within the window; later faults stand for themselves."""
        if not incident.is_open or not incident.is_mass_event:
            return False
        last_found_at = max(finding.found_at for finding in incident.findings)
        return self._world.now - last_found_at <= self._world.mass_event.window

    def _join(self, incident: Incident, finding: Finding) -> None:
        if any(each.evidence == finding.evidence for each in incident.findings):
            return
        findings = (*incident.findings, finding)
        joined = replace(
            incident,
            nodes=incident.nodes | {finding.node},
            gpus=incident.gpus | ({finding.gpu} if finding.gpu is not None else frozenset()),
            victims=incident.victims | self._attempts_on(finding.node)
            if incident.state is IncidentState.OPEN
            else incident.victims,
            findings=findings,
            changed_at=self._world.now,
        )
        if not incident.is_mass_event:
            joined = self._with_response(joined, finding, before=incident.findings)
        self._incidents[incident.incident] = joined

    def _with_response(self, incident: Incident, finding: Finding, *, before: tuple[Finding, ...]) -> Incident:
        """Let a joined finding change the response; once we act, a node that vanishes is our own doing.

        The plan in force is superseded by what it does not cover: a stronger event, or one on another GPU.
        """
        if not _is_touched(incident):
            return replace(incident, response=response_of(incident.findings))
        if finding.is_lasting:
            return incident
        response = response_of(each for each in incident.findings if not each.is_lasting)
        is_another_gpu = incident.response is Response.RESET_GPU and bool(
            gpus_to_reset(incident.findings) - gpus_to_reset(before)
        )
        if response <= incident.response and not is_another_gpu:
            return incident
        if incident.state in (IncidentState.ACTING, IncidentState.VERIFYING):
            incident = advance(
                incident,
                IncidentEvent.SUPERSEDED,
                at=self._world.now,
                note=f"new evidence asks for more: {finding.explanation}",
            )
        return replace(incident, response=max(response, incident.response))

    def _place_application_error(self, finding: Finding) -> None:
        victims = self._attempts_on(finding.node)
        if not victims:
            return  # Nobody to tell: it stays evidence.
        for attempt in sorted(victims - self._world.told):
            same = [
                incident
                for incident in self._incidents.values()
                if incident.response is Response.NOTIFY_OWNER and attempt in incident.victims
            ]
            if same:
                self._join_application_error(same[0], finding)
            else:
                self._open(finding, nodes=frozenset(), victims=frozenset({attempt}))

    def _join_application_error(self, incident: Incident, finding: Finding) -> None:
        if any(each.evidence == finding.evidence for each in incident.findings):
            return
        self._incidents[incident.incident] = replace(
            incident, findings=(*incident.findings, finding), changed_at=self._world.now
        )

    def _attempts_on(self, node: NodeName) -> frozenset[JobAttempt]:
        """Return the attempts on a node now, and those that ended there moments ago without success."""
        attempts = set()
        for job in self._world.jobs:
            if node not in job.nodes or job.attempt is None:
                continue
            is_fresh = job.ended_at is not None and self._world.now - job.ended_at <= _JUST_ENDED
            died = job.state not in HAS_PROCESSES and job.state not in (JobState.PENDING, JobState.COMPLETED)
            if job.state in HAS_PROCESSES or (died and is_fresh):
                attempts.add(job.attempt)
        return frozenset(attempts)

    def _open(self, finding: Finding, *, nodes: frozenset[NodeName], victims: frozenset[JobAttempt]) -> None:
        self._add(
            Incident(
                incident=self._next_name(),
                state=IncidentState.OPEN,
                response=response_of([finding]),
                nodes=nodes,
                gpus=frozenset() if finding.gpu is None else frozenset({finding.gpu}),
                victims=victims,
                findings=(finding,),
                opened_at=self._world.now,
                changed_at=self._world.now,
                note=finding.explanation,
            )
        )

    def _next_name(self) -> IncidentId:
        self._count += 1
        return IncidentId(f"INC-{self._count:04d}")

    def _add(self, incident: Incident) -> Incident:
        self._incidents[incident.incident] = incident
        return incident


def _is_touched(incident: Incident) -> bool:
    """Return whether we have begun to act on an incident: a superseded one waits again, with its node drained."""
    return incident.state is not IncidentState.OPEN or incident.plan_count > 0
