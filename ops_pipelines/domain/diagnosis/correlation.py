"""Findings -> incidents: one incident a cause, culprit apart from victims.

Joins new findings to what is open, opens what is new, gathers what one switch, rack or store explains, takes damage
into what caused it, merges what turns out to be one mass event, and closes what cleared by itself. Pure and
independent of the order in which findings come. What an incident means in words is `diagnosis`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.domain.diagnosis.diagnose import RAISED_AT, confidence_of, diagnose
from ops_pipelines.domain.diagnosis.shared_cause import (
    GATHERED_FAMILIES,
    MIN_EXPLAINED,
    SharedPlace,
    explains,
    find_shared_place,
    wide_suspect,
)
from ops_pipelines.domain.fault import Component, Family
from ops_pipelines.domain.identity import IncidentId, JobAttempt, JobId, NodeName, PciAddress
from ops_pipelines.domain.incident import (
    Incident,
    IncidentEvent,
    IncidentState,
    advance,
    fold,
    joined_by,
)
from ops_pipelines.domain.meaning.finding import REPAIRS, Finding, Response
from ops_pipelines.domain.observation import (
    CONDITION_SOURCES,
    DETECTOR_SOURCE,
    HAS_PROCESSES,
    HISTORY_SOURCE,
    NO_NODE,
    JobState,
    JobStatus,
    NodeStatus,
    Observation,
    Signal,
)
from ops_pipelines.domain.policy import MassEvent
from ops_pipelines.domain.steps.ladder import climb, is_relapse
from ops_pipelines.domain.topology import Topology

_JUST_ENDED = timedelta(minutes=10)
"""A job that died of its own fault is gone from the node when its log line is read.
Source: Meta RSC attributes a cause seen in the last 10 minutes of a job (arXiv 2410.21680)."""
_SAME_TROUBLE = timedelta(minutes=30)
"""Evidence on one node this close together is one incident: two faults at once are rare (Meta RSC: 3 to 5 %)."""
_SPREADS = timedelta(minutes=10)
"""How long after its newest evidence a wide fault still takes in what its nodes show anew."""
_SLOW_TO_SPREAD = {Family.HEAT: timedelta(minutes=15)}
"""Heat rises over minutes; links and power go within one sample."""
_DAMAGE_BEFORE = timedelta(minutes=5)
"""Damage may be noticed before its cause: a job's error is logged at once, a link is sampled."""
_DAMAGE_AFTER = timedelta(minutes=30)
"""Source: NCCL's default timeout is 10 minutes (PyTorch; 30 in older releases)."""
_QUIET = timedelta(minutes=10)
"""What detectors saw must stay away for so long before its incident closes: what flaps is one incident."""
_SAID_ONLY = timedelta(hours=1)
"""Log lines that blame a shared part end with nothing: when none came for so long, it is over."""
_QUIET_OF_VERDICTS = timedelta(hours=6)
"""So, and longer, what is judged over hours of attempts: one more success tips it for a while."""
WATCHED = timedelta(minutes=30)
"""Evidence too weak to act on is forgotten after this long."""
_SETTLES = timedelta(minutes=30)
"""How much longer than the others' recovery a node may take before it counts as broken by itself. Assumption: a boot
with a file system check takes a quarter of an hour."""
_STAYS = 0.25
"""When no more than this share of a wide fault's nodes is still broken, those few have faults of their own."""
_DAMAGE_FAMILIES = frozenset({Family.STALL, Family.COLLECTIVE})
_APART_FAMILIES = frozenset({Family.SOFTWARE, Family.DISK})
"""Trouble that lasts for weeks beside everything else: it joins only its own kind."""
_JOB_SIGNALS = frozenset(
    {Signal.JOB_CRASH_LOOP, Signal.GPUS_IDLE, Signal.LOSS_NOT_FINITE, Signal.LOSS_SPIKE, Signal.NODE_FAILS_JOBS}
)
"""Verdicts over many attempts, or on the program's own numbers: no fault of a node explains them away."""

Standing = tuple[Signal, NodeName, Component | None, JobId | None]


def standing_of(observation: Observation) -> Standing:
    """Return what makes two observations the same condition, whenever each began."""
    return observation.signal, observation.node, observation.component, observation.job


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
    nodes: Collection[NodeStatus] = ()
    """How the scheduler sees the nodes; without them nobody is known to have restarted one."""


def correlate(findings: Collection[Finding], incidents: Collection[Incident], world: World) -> tuple[Incident, ...]:
    """Return every incident that is new or changed. The same findings in another order give the same incidents.

    Repairs are placed first, so that an application error on a node that just lost a GPU counts as its victim and
    not as somebody's bug.
    """
    board = _Board(incidents, world)
    board.close_what_was_returned()
    for finding in sorted(fold(findings), key=_placing_order):
        board.place(finding)
    board.gather_shared_causes()
    board.merge_mass_event()
    board.absorb_damage()
    board.split_what_stays()
    board.close_what_cleared()
    board.close_what_was_restarted()
    board.close_what_nobody_was_told()
    board.close_what_was_only_watched()
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
    told = list(findings)
    # Damage calls for nothing where something of its own is there.
    for finding in [each for each in told if not each.is_secondary] or told:
        by_gpu.setdefault(finding.gpu, []).append(finding)
    return by_gpu


def _has_cleared(incident: Incident, present: set[Standing]) -> bool:
    """Return whether an incident rests on lasting conditions alone, none of which holds any more.

    Never of a repair that we have begun: a person or the verification ends it, not silence.
    """
    if incident.plan_count > 0 and not incident.is_mass_event and incident.response in REPAIRS:
        return False
    lasting = [finding for finding in incident.findings if not finding.is_secondary or finding.is_lasting]
    if incident.suspect is not None and any(finding.is_lasting for finding in lasting):
        # What a switch or a feed did to its nodes is over when they are well again, whatever they logged meanwhile.
        lasting = [finding for finding in lasting if finding.is_lasting]
    return bool(lasting) and all(
        finding.is_lasting and all(standing_of(observation) not in present for observation in finding.evidence)
        for finding in lasting
    )


def is_clearing_due(incident: Incident, conditions: Collection[Observation], *, now: datetime) -> bool:
    """Return whether a decision would change an incident because its conditions are gone, or back.

    Mirrors `close_what_cleared`, `split_what_stays` and `close_what_was_only_watched`: what is due and changes nothing
    would be due for ever.
    """
    present = {standing_of(condition) for condition in conditions}
    is_gone, is_mostly_over = _has_cleared(incident, present), _is_mostly_over(incident, present)
    if _is_forgotten(incident, present, now=now):
        return True
    if incident.quiet_since is not None:
        if is_gone:
            return now - incident.quiet_since >= quiet_of(incident)
        return not is_mostly_over or now - incident.quiet_since >= _SETTLES
    return is_gone or is_mostly_over


def _is_mostly_over(incident: Incident, present: set[Standing]) -> bool:
    """Return whether a wide fault is over for all but a few of its nodes."""
    if incident.suspect is None or not incident.is_mass_event:
        return False
    if any(finding.response in REPAIRS and not finding.is_lasting for finding in incident.findings):
        return False
    return 0 < len(_still_broken(incident, present)) <= max(1, _STAYS * len(incident.nodes))


def _still_broken(incident: Incident, present: set[Standing]) -> Mapping[NodeName, Finding]:
    """Return the nodes of a wide fault that still show it, each with its newest finding."""
    return {
        finding.node: finding
        for finding in sorted(incident.findings, key=_placing_order, reverse=True)
        if finding.node in incident.nodes
        and any(standing_of(observation) in present for observation in finding.evidence)
    }


def _is_forgotten(incident: Incident, present: set[Standing], *, now: datetime) -> bool:
    """Return whether what was never more than said was not said again for long: too weak, or of a shared part."""
    if incident.state not in (IncidentState.OPEN, IncidentState.ESCALATED):
        return False
    is_said_only = incident.suspect is not None and not any(finding.is_lasting for finding in incident.findings)
    is_weak = incident.state is IncidentState.OPEN and incident.is_watched
    if not (is_weak or is_said_only):
        return False
    holds = any(
        standing_of(observation) in present for finding in incident.findings for observation in finding.evidence
    )
    return not holds and now - max(incident.last_seen_at, incident.opened_at) > (WATCHED if is_weak else _SAID_ONLY)


def quiet_of(incident: Incident) -> timedelta:
    """Return how long what an incident rests on must stay away before it closes; verdicts over many hours waver."""
    signals = {observation.signal for finding in incident.findings for observation in finding.evidence}
    return _QUIET_OF_VERDICTS if signals & _JOB_SIGNALS else _QUIET


def _may_flap(incident: Incident) -> bool:
    return any(
        observation.source == DETECTOR_SOURCE for finding in incident.findings for observation in finding.evidence
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
        self._present = {standing_of(condition) for condition in world.conditions}
        self._jobs = {job.job: job for job in world.jobs}
        self._attempts: dict[NodeName, frozenset[JobAttempt]] = {}

    def changed(self) -> tuple[Incident, ...]:
        """Return every incident that is new or changed, each with what is believed of it now."""
        return tuple(
            replace(incident, hypothesis=diagnose(incident, topology=self._world.topology))
            for key, incident in self._incidents.items()
            if self._before.get(key) != incident
        )

    def place(self, finding: Finding) -> None:
        home = self._home_of(finding)
        if home is not None:
            self._join(home, finding)
        elif self._is_over(finding):
            return  # A condition that came and went before anybody decided: evidence, but no problem to own.
        elif finding.response is Response.NOTIFY_OWNER or finding.is_secondary:
            self._place_application_error(finding)
        elif finding.response is not Response.MONITOR:
            suspect = wide_suspect(finding)
            nodes = frozenset() if suspect is not None or finding.node == NO_NODE else frozenset({finding.node})
            self._open(finding, nodes=nodes, victims=self._victims_of(finding), suspect=suspect)

    def _is_over(self, finding: Finding) -> bool:
        """Return whether a finding rests on conditions alone, none of which holds any more."""
        return all(
            observation.source in CONDITION_SOURCES and standing_of(observation) not in self._present
            for observation in finding.evidence
        )

    def gather_shared_causes(self) -> None:
        """Turn young, untouched incidents of nodes that one switch, rack or feed explains into one of that part."""
        for family in GATHERED_FAMILIES:
            young = self._young_of(family)
            wide = [each for each in self._incidents.values() if self._is_spreading_wide(each, family)]
            nodes = [node for each in (*young, *wide) for node in each.nodes]
            shared = find_shared_place(family, nodes, self._world.topology)
            if shared is None or any(each.suspect == shared.suspect for each in wide):
                continue
            parts = [
                each for each in young if each.nodes <= shared.nodes and self._is_all_explained(each, shared, family)
            ]
            inner = [each for each in wide if len(each.nodes & shared.nodes) >= MIN_EXPLAINED * len(each.nodes)]
            if inner:
                self._widen(inner, parts, shared)
                continue
            findings = fold(finding for each in parts for finding in each.findings)
            found = self._add(
                Incident(
                    incident=self._next_name(),
                    state=IncidentState.OPEN,
                    response=Response.PAGE_MASS_EVENT,
                    nodes=shared.nodes,
                    gpus=frozenset(),
                    victims=frozenset(victim for each in parts for victim in each.victims),
                    findings=findings,
                    opened_at=self._world.now,
                    changed_at=self._world.now,
                    suspect=shared.suspect,
                    note=f"{len(shared.nodes)} of {shared.node_count} nodes of {shared.suspect} show the same trouble",
                )
            )
            for each in parts:
                self._merge(each, into=found)

    def _is_all_explained(self, incident: Incident, shared: SharedPlace, family: Family) -> bool:
        """Return whether a shared part explains all that an incident rests on: what it does not stays its own."""
        return all(
            explains(shared.suspect, family, finding, self._world.topology)
            for finding in incident.findings
            if not finding.is_secondary and finding.response is not Response.MONITOR
        )

    def _is_spreading_wide(self, incident: Incident, family: Family) -> bool:
        """Return whether much trouble of a family was blamed on a shared part, or on nobody yet, a moment ago."""
        return (
            incident.is_mass_event
            and (incident.state is IncidentState.OPEN or (incident.suspect is not None and incident.is_open))
            and any(finding.family is family and not finding.is_secondary for finding in incident.findings)
            and self._world.now - incident.last_seen_at <= _SLOW_TO_SPREAD.get(family, self._world.mass_event.window)
        )

    def _widen(self, inner: list[Incident], parts: list[Incident], shared: SharedPlace) -> None:
        """Blame the wider part in the incident that first blamed a narrower one: two dark racks are their feed."""
        first, *others = sorted(inner, key=lambda each: (each.state is IncidentState.OPEN, each.incident))
        joined = [*parts, *(each for each in others if each.state is IncidentState.OPEN)]
        self._incidents[first.incident] = replace(
            first,
            suspect=shared.suspect,
            nodes=first.nodes | shared.nodes,
            victims=first.victims | {victim for each in joined for victim in each.victims},
            findings=fold((*first.findings, *(finding for each in joined for finding in each.findings))),
            changed_at=self._world.now,
            note=f"{len(shared.nodes)} of {shared.node_count} nodes of {shared.suspect} show the same trouble",
        )
        for each in joined:
            self._merge(each, into=first)

    def _young_of(self, family: Family) -> list[Incident]:
        found = [
            incident
            for incident in self._incidents.values()
            if not _is_touched(incident)
            and incident.suspect is None
            and not incident.is_mass_event
            and len(incident.nodes) == 1
            and self._onset_of(incident, family) is not None
        ]
        onsets = {incident.incident: self._onset_of(incident, family) or incident.opened_at for incident in found}
        newest = max(onsets.values(), default=self._world.now)
        window = _SLOW_TO_SPREAD.get(family, self._world.mass_event.window)
        return [incident for incident in found if newest - onsets[incident.incident] <= window]

    def _onset_of(self, incident: Incident, family: Family) -> datetime | None:
        """Return when the newest trouble of a family began on an incident's node; None if it has none."""
        return max(
            (
                finding.found_at
                for finding in incident.findings
                if finding.family is family and not finding.is_secondary and _shows(finding, family)
            ),
            default=None,
        )

    def _is_young_wide(self, incident: Incident) -> bool:
        """Return whether a part that nodes share was blamed moments ago: more of them may tell another story."""
        return (
            incident.suspect is not None
            and incident.is_mass_event
            and incident.state is IncidentState.OPEN
            and self._world.now - incident.began_at <= self._world.mass_event.window
        )

    def absorb_damage(self) -> None:
        """Take incidents that are only damage into the one that explains them: a hung job, ranks that lost a peer.

        So, too, a node that showed first what turns out to be the trouble of its rack.
        """
        for incident in list(self._incidents.values()):
            wide = self._wide_cause_of(incident)
            if wide is not None:
                self._incidents[wide.incident] = replace(
                    wide,
                    nodes=wide.nodes | incident.nodes if wide.is_mass_event else wide.nodes,
                    victims=wide.victims | incident.victims,
                    findings=fold((*wide.findings, *incident.findings)),
                    changed_at=self._world.now,
                )
                self._merge(incident, into=wide)
                continue
            if incident.state is not IncidentState.OPEN or incident.plan_count > 0 or not _is_damage(incident):
                continue
            cause = self._cause_of(incident.findings[0], but=incident)
            if cause is None:
                continue
            for finding in incident.findings:
                self._join(self._incidents[cause.incident], replace(finding, is_secondary=True))
            self._merge(incident, into=cause)

    def _wide_cause_of(self, incident: Incident) -> Incident | None:
        """Return the open incident of a wide part that explains all that a young incident of one node rests on."""
        if incident.state is not IncidentState.OPEN or _is_touched(incident) or incident.suspect is not None:
            return None
        own = [finding for finding in incident.findings if not finding.is_secondary]
        if len(incident.nodes) != 1 or not own:
            return None
        wide = [
            each
            for each in self._incidents.values()
            if each.suspect is not None
            and abs(each.began_at - incident.began_at) <= _SPREADS
            and all(self._is_explained_by(each, finding) for finding in own)
        ]
        return wide[0] if wide else None

    def _merge(self, incident: Incident, *, into: Incident) -> None:
        self._incidents[incident.incident] = advance(
            incident, IncidentEvent.JOINED_OTHER, at=self._world.now, note=f"part of {into.incident}"
        )

    def split_what_stays(self) -> None:
        """Give the few nodes that stay broken incidents of their own once the wide fault is over for all others."""
        for incident in list(self._incidents.values()):
            if (
                incident.suspect is None
                or not incident.is_mass_event
                or incident.state not in (IncidentState.OPEN, IncidentState.ESCALATED)
                or not _is_mostly_over(incident, self._present)
            ):
                continue
            stays = _still_broken(incident, self._present)
            if incident.quiet_since is None:
                self._incidents[incident.incident] = replace(incident, quiet_since=self._world.now)
                continue
            if self._world.now - incident.quiet_since < _SETTLES:
                continue
            note = f"over for all but {', '.join(sorted(stays))}"
            self._incidents[incident.incident] = advance(incident, IncidentEvent.CLEARED, at=self._world.now, note=note)
            for node in sorted(stays):
                self._open(stays[node], nodes=frozenset({node}), victims=self._attempts_on(node))

    def merge_mass_event(self) -> None:
        """Turn many young, untouched node incidents into one that only pages."""
        world = self._world
        young = [
            incident
            for incident in self._incidents.values()
            if incident.state in (IncidentState.OPEN, IncidentState.ACTING)
            and incident.suspect is None
            and any(world.topology.knows(node) for node in incident.nodes)
            and incident.response in (*REPAIRS, Response.PAGE)
            and incident.findings
            and world.now - min(finding.found_at for finding in incident.findings) <= world.mass_event.window
        ]
        apart = frozenset(node for incident in young for node in incident.nodes)
        wide = [incident for incident in self._incidents.values() if self._is_young_wide(incident)]
        nodes = apart | {node for incident in wide for node in incident.nodes}
        is_another_story = len(apart) > (1 - MIN_EXPLAINED) * len(nodes)
        if len(nodes if is_another_story else apart) < world.mass_event.min_node_count:
            return
        merged = (*young, *wide) if is_another_story else young
        untouched = [incident for incident in merged if not _is_touched(incident)]
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
                findings=fold(finding for incident in untouched for finding in incident.findings),
                opened_at=world.now,
                changed_at=world.now,
                note=f"{len(nodes)} nodes look broken within {seconds:.0f} s; {suspicion}",
            )
        )
        for incident in untouched:
            self._merge(incident, into=mass)

    def close_what_was_returned(self) -> None:
        """Close what a person has ended by returning the node, before new faults there are placed."""
        for key in sorted(self._world.returned & self._incidents.keys()):
            incident = self._incidents[key]
            if incident.state in (IncidentState.ESCALATED, IncidentState.IN_REPAIR):
                note = "a person took the node back into service"
                self._incidents[key] = advance(incident, IncidentEvent.CLEARED, at=self._world.now, note=note)

    def close_what_cleared(self) -> None:
        """Close incidents that rest on lasting conditions alone once none of these holds any more.

        What detectors saw must stay away for a while first: a condition that comes and goes is one incident.
        """
        for key, incident in self._incidents.items():
            if incident.state not in (IncidentState.OPEN, IncidentState.ESCALATED) or not incident.findings:
                continue
            is_gone = _has_cleared(incident, self._present)
            if is_gone and _may_flap(incident) and not self._is_quiet(incident):
                if incident.quiet_since is None:
                    self._incidents[key] = replace(incident, quiet_since=self._world.now)
            elif is_gone:
                note = "cleared by itself: the condition no longer holds"
                self._incidents[key] = advance(incident, IncidentEvent.CLEARED, at=self._world.now, note=note)
            elif incident.quiet_since is not None and not _is_mostly_over(incident, self._present):
                self._incidents[key] = replace(incident, quiet_since=None)

    def close_what_was_restarted(self) -> None:
        """Close what we only watched being put right: the node was restarted after the last evidence, and is well."""
        by_name = {node.node: node for node in self._world.nodes}
        for key, incident in self._incidents.items():
            if incident.state is not IncidentState.OPEN or incident.plan_count > 0 or len(incident.nodes) != 1:
                continue
            if incident.response not in REPAIRS or _is_repetition(incident.findings):
                continue  # A restart is not what these call for.
            (name,) = incident.nodes
            node = by_name.get(name)
            if node is None or node.booted_at is None or node.is_drained or not node.is_responding:
                continue
            is_over = node.booted_at > incident.last_seen_at and self._world.now - node.booted_at >= _QUIET
            if is_over and not any(
                standing_of(observation) in self._present
                for finding in incident.findings
                for observation in finding.evidence
            ):
                note = "the node was restarted since, and nothing was seen after it"
                self._incidents[key] = advance(incident, IncidentEvent.CLEARED, at=self._world.now, note=note)

    def _is_quiet(self, incident: Incident) -> bool:
        return incident.quiet_since is not None and self._world.now - incident.quiet_since >= quiet_of(incident)

    def close_what_was_only_watched(self) -> None:
        """Close what was too weak to trouble anybody, and was not seen again."""
        for key, incident in self._incidents.items():
            if _is_forgotten(incident, self._present, now=self._world.now):
                note = "too weak to act on, and not seen again" if incident.is_watched else "not said again for an hour"
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
        repairs = [
            incident
            for incident in on_node
            if (incident.response in REPAIRS or (incident.is_mass_event and incident.suspect is None))
            # A node on probation works: what a program there does wrong is a story of its own.
            and (incident.state is not IncidentState.PROBATION or _speaks_of_node(finding))
        ]
        wide = [incident for incident in self._incidents.values() if self._is_explained_by(incident, finding)]
        if wide and all(each.state is IncidentState.PROBATION for each in repairs):
            return wide[0]  # What a whole switch does to it says nothing against a node on probation.
        if repairs and finding.family not in _APART_FAMILIES and not _is_repetition([finding]):
            return repairs[0]
        if wide:
            return wide[0]
        # What lasts on a node on probation, and is no repair, is a story of its own: else nobody would hear of it.
        on_node = [incident for incident in on_node if incident.state is not IncidentState.PROBATION]
        if finding.is_secondary or (finding.family in _DAMAGE_FAMILIES and finding.node == NO_NODE):
            return self._cause_of(finding, but=None) or self._same_job(finding)
        if finding.response in REPAIRS:
            mass = [incident for incident in self._incidents.values() if self._is_still_spreading(incident)]
            if mass:
                return mass[0]  # The cause is likely the same: nothing new is acted on while it spreads.
            waiting = [
                incident
                for incident in on_node
                if incident.state is IncidentState.OPEN and incident.suspect is None and _may_be_one(incident, finding)
            ]
            return waiting[0] if waiting else None
        if finding.response is Response.NOTIFY_OWNER:
            return self._cause_of(finding, but=None)
        own = [incident for incident in on_node if incident.suspect is None]
        same_rule = [incident for incident in own if any(each.rule == finding.rule for each in incident.findings)]
        if same_rule:
            return same_rule[0]
        close = [
            incident
            for incident in own
            if incident.state is IncidentState.OPEN  # A person who was paged once must hear of other trouble, too.
            and _may_be_one(incident, finding)
            and (
                abs(finding.found_at - incident.last_seen_at) <= _SAME_TROUBLE
                or any(each.family is finding.family and not each.is_secondary for each in incident.findings)
            )
        ]
        return close[0] if close else None

    def _is_explained_by(self, incident: Incident, finding: Finding) -> bool:
        """Return whether an open incident of a wide part explains a finding: it names the part, or stands there."""
        suspect = incident.suspect
        if suspect is None or not incident.is_open:
            return False
        is_over = finding.found_at - incident.last_seen_at > _SPREADS and not self._is_still_seen(incident)
        if wide_suspect(finding) == suspect and (not is_over or incident.is_watched):
            return True
        if incident.is_watched:
            return False  # What is not believed itself explains nothing.
        if is_over or incident.began_at - finding.found_at > _SPREADS:
            return False
        families = {each.family for each in incident.findings if not each.is_secondary}
        return any(explains(suspect, family, finding, self._world.topology) for family in families)

    def _is_still_seen(self, incident: Incident) -> bool:
        return any(
            standing_of(observation) in self._present
            for finding in incident.findings
            if finding.is_lasting
            for observation in finding.evidence
        )

    def _cause_of(self, finding: Finding, *, but: Incident | None) -> Incident | None:
        """Return the open incident of a part whose failure explains what a job on its nodes says, None if none does.

        The cause lies on a node of the job, a little after the damage at the latest.
        """
        if finding.evidence and finding.evidence[0].signal in _JOB_SIGNALS:
            return None
        jobs = self._jobs_of(finding)
        nodes = {node for job in jobs for node in job.nodes} | ({finding.node} - {NO_NODE})
        attempts = {job.attempt for job in jobs if job.attempt is not None}
        is_application = finding.family is Family.APPLICATION and not finding.is_secondary
        causes = [
            incident
            for incident in self._incidents.values()
            if incident.is_open
            and (but is None or incident.incident != but.incident)
            and incident.response > Response.NOTIFY_OWNER
            and not _is_damage(incident)
            and -_DAMAGE_BEFORE <= finding.found_at - incident.began_at <= _DAMAGE_AFTER
            # A program's own error is damage only where the broken part is its own.
            and (
                (bool(attempts & incident.victims) and finding.found_at >= incident.began_at)
                if is_application
                else bool(nodes & incident.seen_on) or bool(attempts & incident.victims)
            )
        ]
        return min(
            causes, key=lambda each: (each.suspect is None, -each.response, each.began_at, each.incident), default=None
        )

    def _same_job(self, finding: Finding) -> Incident | None:
        """Return the open incident of a job that a finding is about, too."""
        if finding.response is Response.MONITOR or finding.job is None:
            return None
        same = [
            incident
            for incident in self._incidents.values()
            if incident.is_open
            and not incident.nodes
            and incident.suspect is None
            and finding.found_at - incident.last_seen_at <= _DAMAGE_AFTER
            and any(each.job == finding.job for each in incident.findings)
        ]
        return same[0] if same else None

    def _jobs_of(self, finding: Finding) -> list[JobStatus]:
        if finding.job is not None:
            job = self._jobs.get(finding.job)
            return [] if job is None else [job]
        on_node = {attempt.job for attempt in self._attempts_on(finding.node)}
        return [self._jobs[job] for job in sorted(on_node)]

    def _is_still_spreading(self, incident: Incident) -> bool:
        """Return whether an open mass event got a finding within the window; later faults stand for themselves."""
        if not incident.is_open or not incident.is_mass_event or incident.suspect is not None:
            return False
        last_found_at = max(finding.found_at for finding in incident.findings)
        return self._world.now - last_found_at <= self._world.mass_event.window

    def _join(self, incident: Incident, finding: Finding) -> None:
        if _is_silence_after_acting(incident, finding):
            finding = replace(finding, is_secondary=True)
        findings = joined_by(incident, finding)
        if findings is incident.findings:
            return
        if finding.is_secondary or (
            incident.nodes and finding.node not in incident.nodes and not incident.is_mass_event
        ):
            # Damage elsewhere makes nobody a culprit: only its victims are added.
            self._incidents[incident.incident] = replace(
                incident,
                victims=incident.victims | self._victims_of(finding)
                if incident.state is IncidentState.OPEN
                else incident.victims,
                findings=findings,
                changed_at=self._world.now,
            )
            return
        is_owner_of_nodes = bool(incident.nodes) and finding.node != NO_NODE
        joined = replace(
            incident,
            nodes=incident.nodes | {finding.node} if is_owner_of_nodes else incident.nodes,
            gpus=incident.gpus | ({finding.gpu} if finding.gpu is not None and is_owner_of_nodes else frozenset()),
            victims=incident.victims | self._victims_of(finding)
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
            return replace(incident, response=_raised(incident.findings))
        if is_relapse(incident, finding):
            return climb(incident, IncidentEvent.RELAPSED, why=finding.explanation, at=self._world.now)
        if finding.is_lasting or incident.state in (IncidentState.PROBATION, IncidentState.IN_REPAIR):
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
        if finding.response is Response.MONITOR:
            return
        victims = self._victims_of(finding)
        if not victims:
            # Without an attempt there is nobody to tell: it stays evidence, unless it names the job over many attempts.
            if finding.job is not None and finding.evidence[0].signal in _JOB_SIGNALS:
                self._join_or_open_job(finding, victims)
            return
        for attempt in sorted(victims - self._world.told):
            self._join_or_open_job(finding, frozenset({attempt}))

    def _join_or_open_job(self, finding: Finding, victims: frozenset[JobAttempt]) -> None:
        same = [
            incident
            for incident in self._incidents.values()
            if incident.is_open
            and not incident.nodes
            and incident.suspect is None
            and (
                bool(victims & incident.victims)
                or (not victims and any(each.job == finding.job for each in incident.findings))
            )
        ]
        if not same:
            self._open(finding, nodes=frozenset(), victims=victims)
            return
        findings = joined_by(same[0], finding)
        if findings is not same[0].findings:
            self._incidents[same[0].incident] = replace(
                same[0],
                findings=findings,
                response=max(same[0].response, _raised(findings)),
                changed_at=self._world.now,
            )

    def _victims_of(self, finding: Finding) -> frozenset[JobAttempt]:
        """Return the attempts that a finding hits: of the job that it names, else all on its node."""
        if finding.job is not None:
            job = self._jobs.get(finding.job)
            return (
                frozenset() if job is None or not self._is_hit(job) or job.attempt is None else frozenset({job.attempt})
            )
        return frozenset() if finding.node == NO_NODE else self._attempts_on(finding.node)

    def _is_hit(self, job: JobStatus) -> bool:
        """Return whether a job runs, or died moments ago."""
        is_fresh = job.ended_at is not None and self._world.now - job.ended_at <= _JUST_ENDED
        died = job.state not in HAS_PROCESSES and job.state not in (JobState.PENDING, JobState.COMPLETED)
        return job.state in HAS_PROCESSES or (died and is_fresh)

    def _attempts_on(self, node: NodeName) -> frozenset[JobAttempt]:
        """Return the attempts on a node now, and those that ended there moments ago without success."""
        if not self._attempts:
            by_node: dict[NodeName, set[JobAttempt]] = {}
            for job in self._world.jobs:
                if job.attempt is not None and self._is_hit(job):
                    for each in job.nodes:
                        by_node.setdefault(each, set()).add(job.attempt)
            self._attempts = {each: frozenset(attempts) for each, attempts in by_node.items()} or {NO_NODE: frozenset()}
        return self._attempts.get(node, frozenset())

    def _open(
        self,
        finding: Finding,
        *,
        nodes: frozenset[NodeName],
        victims: frozenset[JobAttempt],
        suspect: Component | None = None,
    ) -> None:
        self._add(
            Incident(
                incident=self._next_name(),
                state=IncidentState.OPEN,
                response=_raised([finding]),
                nodes=nodes,
                gpus=frozenset() if finding.gpu is None or not nodes else frozenset({finding.gpu}),
                victims=victims,
                findings=(finding,),
                opened_at=self._world.now,
                changed_at=self._world.now,
                suspect=suspect,
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


def _is_silence_after_acting(incident: Incident, finding: Finding) -> bool:
    """Return whether a node fell silent once we had begun with another fault of it: a reboot, and no second cause.

    One on probation is not being restarted by anybody: its silence is a fault.
    """
    return (
        finding.family is Family.SILENCE
        and _is_touched(incident)
        and incident.state is not IncidentState.PROBATION
        and not incident.is_mass_event
        and all(each.family is not Family.SILENCE or each.is_secondary for each in incident.findings)
    )


def _speaks_of_node(finding: Finding) -> bool:
    """Return whether a finding is about the node and its parts, and not about what runs there."""
    is_event = finding.response is Response.PAGE and (not finding.is_lasting or finding.family is Family.SILENCE)
    return not finding.is_secondary and (finding.response in REPAIRS or is_event)


def _is_damage(incident: Incident) -> bool:
    """Return whether an incident is only what something else may have done: no part of a node is named."""
    return (
        not incident.nodes
        and incident.suspect is None
        and bool(incident.findings)
        and all(finding.family in _DAMAGE_FAMILIES or finding.is_secondary for finding in incident.findings)
    )


def _is_repetition(findings: Collection[Finding]) -> bool:
    """Return whether any finding is a verdict of history: no repair of today ends it."""
    return any(observation.source == HISTORY_SOURCE for finding in findings for observation in finding.evidence)


def _shows(finding: Finding, family: Family) -> bool:
    """Return whether a finding shows trouble of a family: metrics that stop may be the exporter's, and show no rack."""
    return finding.response in REPAIRS if family is Family.SILENCE else finding.response is not Response.MONITOR


def _may_be_one(incident: Incident, finding: Finding) -> bool:
    """Return whether trouble of these kinds on one node can be one: what lasts for weeks joins its own kind only."""
    families = {each.family for each in incident.findings}
    if finding.family in _APART_FAMILIES or families <= _APART_FAMILIES:
        return finding.family in families
    return True


def _raised(findings: Collection[Finding]) -> Response:
    """Return the response that findings call for, MONITOR while they are too weak together to trouble anybody."""
    own = [finding for finding in findings if not finding.is_secondary]
    is_of_shared = bool(own) and all(wide_suspect(finding) is not None and not finding.is_lasting for finding in own)
    if is_of_shared and len({finding.node for finding in own}) < 2:
        return Response.MONITOR  # One node's own words are no verdict on what all share.
    return response_of(findings) if confidence_of(tuple(findings)) >= RAISED_AT else Response.MONITOR
