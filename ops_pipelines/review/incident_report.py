"""The report on one incident: everything that the ledger holds of it in one frozen value, for who was asleep.

Reads the ledger and asks no system, so that it can be written when everything else is down. The parts are `story`'s;
how it reads is `incident_document`. Field names are the keys of its JSON.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.fault import Alternative
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.record import BundleError
from ops_pipelines.review.chain import Chain, RefusedAct, ReportedPlan, Yes, read_chain, tell_line, tell_plan
from ops_pipelines.review.cost import (
    Cost,
    Milestone,
    Victim,
    cost_of,
    drained_at,
    milestones_of,
    remediation_of,
    returned_at,
    victims_of,
)
from ops_pipelines.review.follow_ups import HISTORY, FollowUp, follow_ups_of, headline_of, standing_of
from ops_pipelines.review.timeline import StoryEvent, Wait, plan_waiting_for_yes, timeline_of, waits_of

_CHECKS_READ = 20
_RELATED_AT_MOST = 40
_SNAPSHOTS_READ = 3
"""Of a victim that the first decision did not know the next ones are asked: a snapshot of a large cluster is large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTry:
    """One repair that did not help."""

    repair: str
    ended_at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """Another incident that this one has to do with."""

    incident: str
    state: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEvidence:
    """One bundle of evidence."""

    reason: str
    saved_at: datetime
    place: str
    sha256: str
    is_in_ledger: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedLine:
    """One line of the ledger's chain."""

    seq: int
    written_at: datetime
    kind: str
    actor: str
    what: str
    entry_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentReport:
    """Everything about one incident. Times are UTC, costs GPU-hours."""

    cluster: str
    written_at: datetime
    incident: str
    state: str
    response: str
    headline: str
    """What happened, in one or two sentences."""
    standing: str
    """Status now, and what comes next."""
    what_broke: str
    sureness: float | None
    """0..1; None where nothing judged it."""
    at_fault: str
    family: str
    culprits: tuple[str, ...]
    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    affected_nodes: tuple[str, ...]
    began_at: datetime
    opened_at: datetime
    drained_at: datetime | None
    returned_at: datetime | None
    closed_at: datetime | None
    is_open: bool
    milestones: tuple[Milestone, ...]
    events: tuple[StoryEvent, ...]
    waits: tuple[Wait, ...]
    evidence_for: tuple[str, ...]
    evidence_against: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    settled_by: str
    plans: tuple[ReportedPlan, ...]
    approvals: tuple[Yes, ...]
    refusals: tuple[RefusedAct, ...]
    useless_repairs: tuple[ReportedTry, ...]
    victims: tuple[Victim, ...]
    cost: Cost
    follow_ups: tuple[FollowUp, ...]
    related: tuple[Related, ...]
    kept_evidence: tuple[KeptEvidence, ...]
    lines: tuple[ReportedLine, ...]
    not_known: tuple[str, ...]
    """What could not be read for this report, one sentence each."""


def report_on(incident: Incident, cluster: Cluster, *, history: Collection[Incident] | None = None) -> IncidentReport:
    """Return the report on an incident, open or final. Raises LedgerError; asks the ledger and the bundles alone.

    `history`: what `history_of` returns, for anyone who writes several at once; None: it is read.
    """
    now = cluster.clock.now()
    ledger = cluster.ledger
    not_known: list[str] = []
    chain = read_chain(incident, ledger)
    records = ledger.records(incident.incident)
    checks = tuple(_checks_of(incident, ledger, now=now))
    earlier = history_of([incident], ledger, now=now) if history is None else history
    approvals = ledger.read_state(now).approvals
    notes = () if cluster.outbox is None else cluster.outbox.notes_of(incident.incident)
    waiting_plan = plan_waiting_for_yes(incident, chain, records, approvals, cluster.rules.policy)
    jobs, lacking = _jobs_of(incident, chain, records, ledger)
    not_known += lacking
    bundles, lacking = _bundles_of(incident, cluster)
    not_known += lacking
    victims = victims_of(incident, records, jobs, now=now)
    savings = remediation_of([incident], ledger)
    cost = cost_of(
        incident,
        records,
        victims,
        chain.plans,
        savings,
        gpus_per_node=cluster.rules.topology.gpus_per_node,
        now=now,
    )
    milestones = milestones_of(incident, chain, records)
    hypothesis = incident.hypothesis
    return IncidentReport(
        cluster=cluster.name,
        written_at=now,
        incident=incident.incident,
        state=incident.state.value,
        response=incident.response.name.lower(),
        headline=headline_of(incident, records, milestones, victims, cost),
        standing=standing_of(incident, waiting_plan=waiting_plan, mode=cluster.rules.policy.mode),
        what_broke=incident.cause if hypothesis is None else hypothesis.statement,
        sureness=None if hypothesis is None else hypothesis.confidence,
        at_fault="" if hypothesis is None else hypothesis.at_fault.value,
        family="" if hypothesis is None else hypothesis.family.value,
        culprits=() if hypothesis is None else tuple(str(each) for each in hypothesis.culprits),
        nodes=tuple(sorted(incident.nodes)),
        gpus=tuple(sorted(incident.gpus)),
        affected_nodes=() if hypothesis is None else tuple(sorted(hypothesis.affected_nodes - incident.nodes)),
        began_at=incident.began_at,
        opened_at=incident.opened_at,
        drained_at=drained_at(records),
        returned_at=returned_at(incident, records),
        closed_at=incident.closed_at,
        is_open=incident.is_open,
        milestones=milestones,
        events=timeline_of(incident, chain, records, checks, notes),
        waits=waits_of(incident, chain, records, waiting_plan=waiting_plan, now=now),
        evidence_for=() if hypothesis is None else hypothesis.evidence_for,
        evidence_against=() if hypothesis is None else hypothesis.evidence_against,
        alternatives=() if hypothesis is None else hypothesis.alternatives,
        settled_by="" if hypothesis is None else hypothesis.settled_by,
        plans=tuple(tell_plan(each, records) for each in chain.plans),
        approvals=chain.approvals,
        refusals=chain.refusals,
        useless_repairs=tuple(
            ReportedTry(repair=each.response.name.lower().replace("_", " "), ended_at=each.ended_at, why=each.why)
            for each in incident.tries
        ),
        victims=victims,
        cost=cost,
        follow_ups=follow_ups_of(incident, chain, records, checks, earlier, waiting_plan=waiting_plan, notes=notes),
        related=tuple(_related(incident, earlier))[:_RELATED_AT_MOST],
        kept_evidence=bundles,
        lines=tuple(
            ReportedLine(
                seq=line.seq,
                written_at=line.written_at,
                kind=line.kind.value,
                actor=line.actor,
                what=tell_line(line),
                entry_hash=line.entry_hash,
            )
            for line in chain.lines
        ),
        not_known=tuple(not_known),
    )


def history_of(incidents: Collection[Incident], ledger: Ledger, *, now: datetime) -> tuple[Incident, ...]:
    """Return the incidents that reports on these compare with; of none, none. Reads a quarter of them all."""
    opened = [each.opened_at for each in incidents]
    return ledger.incidents_since(min(now, *opened) - HISTORY) if opened else ()


def _checks_of(incident: Incident, ledger: Ledger, *, now: datetime) -> Iterator[tuple[NodeCheck, bool]]:
    """Yield what tests found on the culprits while the incident lasted, oldest first."""
    end = incident.closed_at or now
    for node in sorted(incident.nodes) if len(incident.nodes) <= 3 else ():
        for check, is_well in reversed(ledger.checks(node, limit=_CHECKS_READ)):
            if incident.began_at <= check.finished_at <= end + timedelta(minutes=1):
                yield check, is_well


def _jobs_of(
    incident: Incident, chain: Chain, records: Collection[ActionRecord], ledger: Ledger
) -> tuple[Mapping[str, JobStatus], list[str]]:
    """Return the victims as the scheduler saw them when this was decided, and what could not be read of that."""
    wanted = {each.job for each in incident.victims} | {
        each.action.attempt.job for each in records if each.action.attempt is not None
    }
    found: dict[str, JobStatus] = {}
    if not wanted:
        return found, []
    for digest in chain.decisions[:_SNAPSHOTS_READ]:
        try:
            jobs = ledger.load_snapshot(digest).jobs
        except LedgerError:
            return found, ["who owns the jobs: what the decision rested on was written by another version, or is gone"]
        for job in jobs:
            if job.job in wanted:
                found.setdefault(job.job, job)
        if wanted <= found.keys():
            return found, []
    missing = ", ".join(sorted(wanted - found.keys())[:4])
    return found, [f"who owns job {missing}: no decision on this incident saw it"]


def _bundles_of(incident: Incident, cluster: Cluster) -> tuple[tuple[KeptEvidence, ...], list[str]]:
    if cluster.bundles is None:
        return (), []
    try:
        bundles = cluster.bundles.of(incident.incident)
    except BundleError as problem:
        return (), [f"what evidence was kept: {problem}"]
    return tuple(
        KeptEvidence(
            reason=each.reason,
            saved_at=each.saved_at,
            place=each.place,
            sha256=each.digest,
            is_in_ledger=each.digest == incident.bundle,
        )
        for each in bundles
    ), []


def _related(incident: Incident, others: Collection[Incident]) -> Iterator[Related]:
    """Yield the incidents that became part of this one, that it became part of, and those before on the same node."""
    for other in others:
        shared = sorted(incident.nodes & other.nodes)
        if other.incident == incident.incident:
            continue
        if _names(other.note, incident):
            yield Related(incident=other.incident, state=other.state.value, why=other.note)
        elif _names(incident.note, other):
            yield Related(incident=other.incident, state=other.state.value, why=f"this one is {incident.note}")
        elif shared:
            when = "before" if other.opened_at <= incident.opened_at else "after"
            why = f"on {shared[0]} {when} this one: {other.cause}"
            yield Related(incident=other.incident, state=other.state.value, why=why)


def _names(note: str, incident: Incident) -> bool:
    return incident.incident in note.replace(",", " ").replace(".", " ").replace(";", " ").split()
