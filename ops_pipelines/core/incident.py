"""One problem that we own until it is resolved: its cause, its culprit, its victims, and its life cycle.

Everything that changes an incident's state is in `TRANSITIONS`; a missing key is the error. How findings
become incidents is in `correlate`; what to do about one belongs to `remediation`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from ops_pipelines.core.fault import FIRST_STEPS, Component, Family, Hypothesis
from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.identity import Digest, IncidentId, JobAttempt, NodeName, PciAddress, PlanId
from ops_pipelines.core.observation import CONDITION_SOURCES, NO_NODE, Observation
from ops_pipelines.core.overlap import Overlap

_KEPT_APART = 3


class IllegalTransitionError(RuntimeError):
    """Our own fault: an incident was asked to do what its state does not allow. Nothing was changed."""


class IncidentState(Enum):
    """Where an incident is in its life."""

    OPEN = "open"
    """Stable. Found; waits for confirmation, for budget or for an approval."""
    ACTING = "acting"
    """Transitional, aims at VERIFYING. The plan's steps are being carried out; survives a crash by witness."""
    VERIFYING = "verifying"
    """Transitional, aims at RESOLVED. Steps done; the node must prove itself before it is returned."""
    PROBATION = "probation"
    """Transitional, aims at RESOLVED. Back in service as last choice, and watched; a relapse climbs the ladder."""
    IN_REPAIR = "in_repair"
    """Stable. Drained, with a report for the vendor: it waits for hands (`ops-pipelines repair done`)."""
    ESCALATED = "escalated"
    """Failed for us: a human has it. We touch nothing of it any more."""
    RESOLVED = "resolved"
    """Stable, final. Healed and witnessed, or it cleared by itself."""
    MERGED = "merged"
    """Stable, final. It was part of another incident, named in the note."""


class IncidentEvent(Enum):
    """What can happen to an incident."""

    PLAN_BEGUN = "plan_begun"
    SUPERSEDED = "superseded"
    STEPS_DONE = "steps_done"
    NOTHING_TO_VERIFY = "nothing_to_verify"
    RECOVERED = "recovered"
    NEEDS_HUMAN = "needs_human"
    CLEARED = "cleared"
    JOINED_OTHER = "joined_other"
    REPAIR_FAILED = "repair_failed"
    """A repair was refused, or its witness did not show: the next rung is planned."""
    NOT_WELL = "not_well"
    """The repaired node did not pass: the next rung is planned."""
    RETURNED = "returned"
    RELAPSED = "relapsed"
    """A fault on a node that was on probation: the next rung is planned."""
    QUEUED = "queued"
    """The ladder is at its end: the node is handed over for repair by hands."""
    STRUCK_ANEW = "struck_anew"
    """A mass event that a person has: new hard faults came on its nodes, which are drained and reported."""
    REPAIRED = "repaired"
    """A person says that the repair is done: the node must prove itself."""


OPEN_STATES = frozenset(IncidentState) - {IncidentState.RESOLVED, IncidentState.MERGED}
"""States in which new evidence of the same cause joins the incident instead of opening another."""

TRANSITIONS: Mapping[tuple[IncidentState, IncidentEvent], IncidentState] = {
    (IncidentState.OPEN, IncidentEvent.PLAN_BEGUN): IncidentState.ACTING,
    (IncidentState.OPEN, IncidentEvent.CLEARED): IncidentState.RESOLVED,
    (IncidentState.OPEN, IncidentEvent.JOINED_OTHER): IncidentState.MERGED,
    (IncidentState.OPEN, IncidentEvent.NEEDS_HUMAN): IncidentState.ESCALATED,
    (IncidentState.ACTING, IncidentEvent.STEPS_DONE): IncidentState.VERIFYING,
    (IncidentState.ACTING, IncidentEvent.NOTHING_TO_VERIFY): IncidentState.RESOLVED,
    (IncidentState.ACTING, IncidentEvent.SUPERSEDED): IncidentState.OPEN,
    (IncidentState.ACTING, IncidentEvent.NEEDS_HUMAN): IncidentState.ESCALATED,
    (IncidentState.VERIFYING, IncidentEvent.RECOVERED): IncidentState.RESOLVED,
    (IncidentState.VERIFYING, IncidentEvent.SUPERSEDED): IncidentState.OPEN,
    (IncidentState.VERIFYING, IncidentEvent.NEEDS_HUMAN): IncidentState.ESCALATED,
    (IncidentState.ACTING, IncidentEvent.REPAIR_FAILED): IncidentState.OPEN,
    (IncidentState.ACTING, IncidentEvent.QUEUED): IncidentState.IN_REPAIR,
    (IncidentState.VERIFYING, IncidentEvent.NOT_WELL): IncidentState.OPEN,
    (IncidentState.VERIFYING, IncidentEvent.RETURNED): IncidentState.PROBATION,
    (IncidentState.PROBATION, IncidentEvent.RECOVERED): IncidentState.RESOLVED,
    (IncidentState.PROBATION, IncidentEvent.RELAPSED): IncidentState.OPEN,
    (IncidentState.PROBATION, IncidentEvent.NEEDS_HUMAN): IncidentState.ESCALATED,
    (IncidentState.IN_REPAIR, IncidentEvent.REPAIRED): IncidentState.VERIFYING,
    (IncidentState.IN_REPAIR, IncidentEvent.CLEARED): IncidentState.RESOLVED,
    (IncidentState.ESCALATED, IncidentEvent.CLEARED): IncidentState.RESOLVED,
    (IncidentState.ESCALATED, IncidentEvent.RECOVERED): IncidentState.RESOLVED,
    (IncidentState.ESCALATED, IncidentEvent.STRUCK_ANEW): IncidentState.OPEN,
}


_PLANS_ANEW = frozenset(
    {
        IncidentEvent.SUPERSEDED,
        IncidentEvent.REPAIR_FAILED,
        IncidentEvent.NOT_WELL,
        IncidentEvent.RELAPSED,
        IncidentEvent.STRUCK_ANEW,
    }
)


def next_state(state: IncidentState, event: IncidentEvent) -> IncidentState:
    """Return the state after `event`; raise IllegalTransitionError where the table has no entry."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(f"an incident that is {state.value} cannot take {event.value}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One repair that did not help."""

    response: Response
    ended_at: datetime
    why: str
    """Refused, no witness, not well afterwards, or a relapse on probation; in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One job that was moved, and whether it has been seen to continue."""

    attempt: JobAttempt
    """The attempt that was ended."""
    gpu_count: int
    held_at: datetime
    checkpointed_at: datetime | None
    """Its newest checkpoint when it was held; None: unknown, which is not never."""
    resumed_at: datetime | None = None
    """Start of the attempt that followed."""
    progressed_at: datetime | None = None
    """When a checkpoint newer than the resumption was first seen: proof that it continues."""
    ended_as: str = ""
    """What the job came to before it was seen to continue, or why nobody waits any more; empty while we wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One problem with one cause."""

    incident: IncidentId
    state: IncidentState
    response: Response
    """The repair that the findings call for; it only grows stronger, unless the driver itself says otherwise."""
    nodes: frozenset[NodeName]
    """The culprits: one node as a rule, many in a mass event, none where only a job is at fault."""
    gpus: frozenset[PciAddress]
    victims: frozenset[JobAttempt]
    """Attempts that ran on the culprits when it began."""
    findings: tuple[Finding, ...]
    opened_at: datetime
    changed_at: datetime
    closed_at: datetime | None = None
    plan: PlanId | None = None
    """The plan being carried out; None before one has started or after it was superseded."""
    plan_count: int = 0
    """How many plans have started: the try number of the next one is one more."""
    note: str = ""
    """Why it is where it is, for people."""
    suspect: Component | None = None
    """What broke that nodes share: a switch, a rack, a power feed, a store. None where a node or a job is at fault."""
    quiet_since: datetime | None = None
    """Since when none of its conditions holds; None while one does. What flaps is one incident."""
    hypothesis: Hypothesis | None = None
    """What broke and why we believe so; None in ledgers of versions that had no word for it."""
    tries: tuple[Try, ...] = ()
    """The repairs that did not help, in order: the next plan is above them on the ladder."""
    returned_at: datetime | None = None
    """When its probation began; None before, and where there is none."""
    mended_at: datetime | None = None
    """When a person stated that the node was repaired by hands: it must prove itself from then on. None: nobody has."""
    recoveries: tuple[Recovery, ...] = ()
    """What became of each job that we moved, until it is seen to continue beyond its checkpoint."""
    bundle: Digest | None = None
    """sha256 of the evidence bundle saved before the newest plan began; None where none was saved."""

    struck: frozenset[NodeName] = frozenset()
    """Of a mass event: nodes on which a hard fault of their own came after the storm, and no plan has answered yet."""
    renewed: frozenset[NodeName] = frozenset()
    """The struck nodes that its newest plan answers."""
    renewed_at: datetime | None = None
    """When a mass event was last opened again for them; None: never."""
    overlaps: tuple[Overlap, ...] = ()
    """Jobs of which two copies ran, or may have run, at once."""

    @property
    def is_mass_event(self) -> bool:
        return self.response is Response.PAGE_MASS_EVENT

    @property
    def cause(self) -> str:
        """What is wrong, in one sentence of the finding that drives what is done about it."""
        if not self.findings:
            return self.note
        if self.suspect is not None and self.hypothesis is not None:
            return self.hypothesis.statement
        told = driving(self.findings).explanation
        return f"{len(self.nodes)} nodes look broken at once, such as: {told}" if self.is_mass_event else told

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    @property
    def is_watched(self) -> bool:
        """Whether its evidence is too weak to trouble anybody yet."""
        return self.response is Response.MONITOR

    @property
    def seen_on(self) -> frozenset[NodeName]:
        """The nodes that it shows itself on, culprits or victims."""
        return self.nodes | {finding.node for finding in self.findings if finding.node != NO_NODE}

    @property
    def began_at(self) -> datetime:
        """When the first of its evidence was seen."""
        return min((finding.found_at for finding in self.findings), default=self.opened_at)

    @property
    def last_seen_at(self) -> datetime:
        """When the newest of its evidence was seen."""
        return max((finding.last_at or finding.found_at for finding in self.findings), default=self.opened_at)


PAGED = "a person was paged"
"""Begins the note of an incident that was handed over before anything was tried."""


def handed_to_people(*, number: int, note: str, now: datetime) -> Incident:
    """Return an incident that is about no node and calls for a page alone: only a person can end its cause."""
    return Incident(
        incident=IncidentId(f"INC-{number:04d}"),
        state=IncidentState.ESCALATED,
        response=Response.PAGE,
        nodes=frozenset(),
        gpus=frozenset(),
        victims=frozenset(),
        findings=(),
        opened_at=now,
        changed_at=now,
        note=note,
    )


def asked_of_person(incident: Incident) -> str:
    """Return what a person is asked for who was handed an incident: the first step, or what became of our own."""
    if incident.hypothesis is None or not incident.note.startswith(PAGED):
        return incident.note
    return f"{FIRST_STEPS[incident.hypothesis.first_action]} ({PAGED})"


def covers(newer: Incident, older: Incident) -> bool:
    """Return whether `newer` rests on all the evidence that `older` rests on, alike findings counted as one or not."""
    if newer.findings[: len(older.findings)] == older.findings:
        return True
    counts = _counts(newer)
    return all(counts.get(key, 0) >= count for key, count in _counts(older).items())


def _counts(incident: Incident) -> dict[tuple[object, ...], int]:
    counts: dict[tuple[object, ...], int] = {}
    for finding in incident.findings:
        counts[likeness(finding)] = counts.get(likeness(finding), 0) + finding.count
    return counts


def leading(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that says most about the cause: no damage, the strongest call, the surest, the first."""
    return min(
        findings,
        key=lambda finding: (
            *_damage(finding),
            -finding.response.rank,
            -finding.confidence,
            finding.found_at,
            finding.rule,
            finding.node,
        ),
        default=None,
    )


def driving(findings: Sequence[Finding]) -> Finding:
    """Return the finding in whose words an incident is reported, of at least one: none that calls for less than is
    done.

    Of those that call for as much as the leading one a logged event says it better than a condition; behind a wish of
    the driver is the fault that it answers, where one calls for a repair, too.
    """
    first = leading(findings)
    if first is None:
        raise ValueError("no findings: nothing drives an incident without any")
    calling = [
        each
        for each in findings
        if _damage(each) == _damage(first)
        and (each.response is first.response or (first.is_driver_verdict and each.response in REPAIRS))
    ]
    return min(calling, key=_telling_order)


def _damage(finding: Finding) -> tuple[bool, bool]:
    return finding.is_secondary, finding.family in (Family.STALL, Family.COLLECTIVE)


def _telling_order(finding: Finding) -> tuple[bool, bool, bool, datetime]:
    is_condition = any(observation.source in CONDITION_SOURCES for observation in finding.evidence)
    return (
        finding.is_lasting and finding.response is Response.PAGE,
        is_condition,
        finding.is_driver_verdict,
        finding.found_at,
    )


def advance(incident: Incident, event: IncidentEvent, *, at: datetime, note: str) -> Incident:
    """Return the incident after `event`; raise IllegalTransitionError if its state does not allow that."""
    state = next_state(incident.state, event)
    is_closing = state in (IncidentState.RESOLVED, IncidentState.MERGED)
    return replace(
        incident,
        state=state,
        changed_at=at,
        closed_at=at if is_closing else incident.closed_at,
        plan=None if event in _PLANS_ANEW else incident.plan,
        note=note,
    )


# -- findings that say the same --


def likeness(finding: Finding) -> tuple[object, ...]:
    """Return what findings of one incident have in common that say the same; damage is alike on every node."""
    if finding.is_secondary:
        return (finding.rule, finding.response)
    return (finding.rule, finding.response, finding.node, finding.gpu, finding.component, finding.job)


def fold(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with at most three of each kind apart, the earliest, and all later ones of it as one.

    A storm of thousands of lines is one finding with a count; what it keeps as evidence is its newest observation.
    The order of `findings` does not matter, and the same evidence counts once.
    """
    alike: dict[tuple[object, ...], dict[tuple[Observation, ...], Finding]] = {}
    for finding in findings:
        alike.setdefault(likeness(finding), {}).setdefault(finding.evidence, finding)
    return tuple(each for group in alike.values() for each in _fold_alike(list(group.values())))


def _fold_alike(group: list[Finding]) -> list[Finding]:
    single = sorted((finding for finding in group if finding.count == 1), key=_time_order)
    apart, rest = single[:_KEPT_APART], single[_KEPT_APART:] + [each for each in group if each.count > 1]
    if len(rest) < 2:
        return [*apart, *rest]
    newest = max(rest, key=lambda finding: (finding.last_at or finding.found_at, _time_order(finding)))
    return [
        *apart,
        replace(
            newest,
            found_at=min(finding.found_at for finding in rest),
            last_at=newest.last_at or newest.found_at,
            count=sum(finding.count for finding in rest),
        ),
    ]


def _time_order(finding: Finding) -> tuple[datetime, tuple[tuple[str, str], ...]]:
    return finding.found_at, tuple((observation.source, observation.position) for observation in finding.evidence)


def joined_by(incident: Incident, finding: Finding) -> tuple[Finding, ...]:
    """Return the findings of an incident with one more; the same tuple where it holds that evidence already."""
    kind = likeness(finding)
    alike = [each for each in incident.findings if likeness(each) == kind]
    if any(each.evidence == finding.evidence for each in alike):
        return incident.findings
    if len(alike) <= _KEPT_APART:
        return (*incident.findings, finding)
    others = tuple(each for each in incident.findings if likeness(each) != kind)
    return (*others, *_fold_alike([*alike, finding]))


def climb(incident: Incident, event: IncidentEvent, *, why: str, at: datetime) -> Incident:
    """Return the incident waiting for its next plan, with its present repair among those that did not help.

    `event` says how that showed: REPAIR_FAILED, NOT_WELL or RELAPSED.
    """
    tried = Try(response=incident.response, ended_at=at, why=why)
    open_again = advance(incident, event, at=at, note=f"{_NOT_HELPED[event]}: {why}")
    return replace(open_again, tries=(*incident.tries, tried), returned_at=None, quiet_since=None)


_NOT_HELPED = {
    IncidentEvent.REPAIR_FAILED: "the repair failed",
    IncidentEvent.NOT_WELL: "not well after the repair",
    IncidentEvent.RELAPSED: "it broke again on probation",
}
