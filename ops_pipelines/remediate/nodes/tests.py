"""Has a repaired node tested while it stays drained; and where each node stands on the ladder.

Which tests fit the fault and how good is good enough are `core.node_tests`'; the tests themselves run on the node,
under the key of the action that asked for them, so that they are started once however often we ask.

Reads the ledger and, for probation, the scheduler. Which rung comes next is `remediate.ladder`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.finding import REPAIRS
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState, Try, asked_of_person
from ops_pipelines.core.machines import NOT_OFFERED
from ops_pipelines.core.node_tests import BY_HAND, CheckState, covers, is_settling, judge_check, suite_for, suite_named
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.plan import Order
from ops_pipelines.core.policy import ActionClass, Consent
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.acts.facts import Lease
from ops_pipelines.remediate.acts.perform import Stage, perform
from ops_pipelines.remediate.ladder import RUNGS, Rung, next_repair, position_of, rung_of
from ops_pipelines.remediate.repair_report import queued_at
from ops_pipelines.remediate.verification import TestsStanding

# -- has a repaired node tested while it stays drained --


_NODE_IS_BUSY = ("idle_node: ", "hidden_work: ")
"""Begin the refusals of a test while another one, or a job, still runs on the node."""
_BASELINE_COUNT = 20
"""So many earlier tests of the node are looked at."""


def check_of(incident: Incident, node: NodeName, cluster: Cluster) -> Action | None:
    """Return the act that has a repaired node tested; None where the catalogue knows no tests."""
    suites = cluster.rules.catalogue.suites
    if not suites:
        return None
    suite = suite_for({finding.family for finding in incident.findings if not finding.is_secondary}, suites)
    check = Action(
        verb=Verb.CHECK, incident=incident.incident, node=node, suite=suite.name, try_number=incident.plan_count
    )
    begun = [
        each.action
        for each in cluster.ledger.records(incident.incident)
        if each.action.verb is Verb.CHECK and each.action.node == node and each.action.try_number == check.try_number
    ]
    enough = {each.name for each in suites if covers(each, (suite,))}
    for each in reversed(begun):
        if each.suite in enough:
            return each
    # What was found since the tests began asks for more of them: another act, beside the one that was begun.
    return replace(check, part=suite.name) if begun else check


def see_to_tests(incident: Incident, node: NodeName, cluster: Cluster, *, lease: Lease) -> TestsStanding:
    """Start the tests or look how far they are, and return what they say.

    Where the site offers none the verdict rests on everything else, and says so. Where it does, and they could not be
    started, nothing is proven.
    """
    check = check_of(incident, node, cluster)
    is_forbidden = cluster.rules.policy.consent_to(ActionClass.CHECK) is Consent.FORBID
    if check is not None and is_forbidden and _record_of(check, cluster) is None:  # What was begun is read.
        return TestsStanding(proofs=("no tests on the node: policy.yaml says consents.check: forbid",))
    if check is None:
        return TestsStanding(proofs=("no tests on the node: the catalogue knows none",))
    progress = perform(Order(action=check, behind=incident.plan), cluster, lease=lease, judged_on=incident)
    if progress.stage is Stage.WAITING and not progress.reason.startswith(_NODE_IS_BUSY):
        return TestsStanding(waits_for=progress.reason)
    if progress.stage in (Stage.UNDER_WAY, Stage.WAITING):
        return TestsStanding(are_running=True)
    if progress.stage is Stage.FAILED:
        record = _record_of(check, cluster)
        if record is not None and record.outcome is not None and record.outcome.kind is OutcomeKind.UNKNOWN:
            return TestsStanding(unknowns=(f"its tests came to no end: {progress.reason}",))
        if progress.reason.startswith(NOT_OFFERED):
            return TestsStanding(proofs=(f"no tests on the node: {progress.reason}",))
        return TestsStanding(unknowns=(f"its tests could not be started: {progress.reason}",))
    return _judge(check, node, cluster)


def _judge(check: Action, node: NodeName, cluster: Cluster) -> TestsStanding:
    try:
        found = cluster.fleet.read_check(node, key=check.key)
    except SourceError as problem:
        return TestsStanding(unknowns=(f"what its tests found could not be read: {problem}",))
    if found is None:
        return TestsStanding(unknowns=("its tests were over, and are gone",))
    if found.suite not in (check.suite, BY_HAND):
        said = f"its tests are of the suite {found.suite[:80]!r}; asked for were those of {check.suite!r}"
        return TestsStanding(unknowns=(said,))
    # By what we asked for: a node does not choose by what it is judged. Of tests named one by one it knows no suite.
    suite = suite_named(check.suite, cluster.rules.catalogue.suites)
    past = cluster.ledger.checks(node, limit=_BASELINE_COUNT)
    verdict = judge_check(
        found,
        suite,
        cluster.rules.catalogue.gates,
        [each for each, was_well in past if was_well and each.key != check.key],
    )
    cluster.ledger.keep_check(found, is_well=verdict.state is CheckState.WELL)
    not_run = (f"not run: {', '.join(verdict.not_run)}",) if verdict.not_run else ()
    return TestsStanding(
        faults=verdict.faults,
        unknowns=verdict.unknowns,
        proofs=(*verdict.proofs, *verdict.unjudged, *not_run),
        is_settling=is_settling(found, suite),
    )


def _record_of(check: Action, cluster: Cluster) -> ActionRecord | None:
    return next((each for each in cluster.ledger.records(check.incident) if each.action.key == check.key), None)


# -- where each node stands on the ladder --


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one node stands because of one incident."""

    node: NodeName
    incident: Incident
    rung: Rung
    since: datetime
    """When that rung was first reached."""
    failed: frozenset[Rung]
    """The rungs that were tried and did not help."""
    next_rung: Rung | None
    """What comes next by itself; None: nothing, or a person decides."""
    waits_for: str
    """In words; empty: for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probation:
    """One node that is watched after its return."""

    node: NodeName
    incident: Incident
    since: datetime
    until: datetime
    jobs: tuple[JobId, ...] | None
    """What runs on it; None: the scheduler did not answer."""


def standings_of(cluster: Cluster, state: LedgerState) -> tuple[Standing, ...]:
    """Return every node of an open incident that stands above watching, the highest first, then by name."""
    now = cluster.clock.now()
    found = []
    for incident in state.incidents:
        records = [each for each in state.records if each.action.incident == incident.incident]
        for node in sorted(incident.nodes):
            of_node = [each for each in records if each.action.node in (None, node)]
            rung = position_of(incident, of_node)
            if rung is Rung.MONITOR:
                continue
            found.append(
                Standing(
                    node=node,
                    incident=incident,
                    rung=rung,
                    since=_reached_at(rung, incident, of_node),
                    failed=frozenset(rung_of(each.response) for each in incident.tries),
                    next_rung=_next_rung(incident, rung, state, cluster, now=now),
                    waits_for=_waits_for(incident, cluster),
                )
            )
    return tuple(sorted(found, key=lambda each: (-each.rung, each.node, each.incident.incident)))


def probations_of(cluster: Cluster, state: LedgerState) -> tuple[Probation, ...]:
    """Return every node on probation, the one that ends first first. The scheduler is asked once."""
    watched = [each for each in state.incidents if each.state is IncidentState.PROBATION]
    if not watched:
        return ()
    jobs_by_node = _jobs_by_node(cluster)
    found = [
        Probation(
            node=node,
            incident=incident,
            since=incident.returned_at or incident.changed_at,
            until=(incident.returned_at or incident.changed_at) + cluster.rules.policy.durations.probation,
            jobs=None if jobs_by_node is None else tuple(sorted(jobs_by_node.get(node, ()))),
        )
        for incident in watched
        for node in sorted(incident.nodes)
    ]
    return tuple(sorted(found, key=lambda each: (each.until, each.node)))


def _jobs_by_node(cluster: Cluster) -> dict[NodeName, list[JobId]] | None:
    try:
        jobs = cluster.scheduler.read_jobs()
    except SourceError:
        return None
    found: dict[NodeName, list[JobId]] = {}
    for job in jobs:
        for node in job.nodes if job.state is JobState.RUNNING else ():
            found.setdefault(node, []).append(job.job)
    return found


def _reached_at(rung: Rung, incident: Incident, records: Sequence[ActionRecord]) -> datetime:
    if rung is Rung.RETURN_TO_VENDOR:
        return queued_at(incident)
    verbs = RUNGS[rung].verbs or RUNGS[Rung.DRAIN].verbs  # An isolation begins with its drain.
    return min((each.begun_at for each in records if each.action.verb in verbs), default=incident.changed_at)


def _next_rung(incident: Incident, rung: Rung, state: LedgerState, cluster: Cluster, *, now: datetime) -> Rung | None:
    """Return the rung of the next repair; of one that is under way or being proven, the one after it."""
    if incident.state in (IncidentState.IN_REPAIR, IncidentState.ESCALATED) or len(incident.nodes) != 1:
        return None
    asked = incident
    if incident.state is not IncidentState.OPEN:
        present = next((each for each in REPAIRS if rung_of(each) is rung), incident.response)
        asked = replace(
            incident, tries=(*incident.tries, Try(response=present, ended_at=now, why="if it does not help"))
        )
    found = rung_of(next_repair(asked, state.records, limits=cluster.rules.policy.ladder, now=now))
    return found if found > rung else None


def _waits_for(incident: Incident, cluster: Cluster) -> str:
    durations = cluster.rules.policy.durations
    match incident.state:
        case IncidentState.OPEN:
            return "its plan to begin"
        case IncidentState.ACTING:
            return "the witnesses of the plan under way"
        case IncidentState.VERIFYING:
            return "the tests that prove it well"
        case IncidentState.PROBATION:
            until = (incident.returned_at or incident.changed_at) + durations.probation
            return f"the end of its probation, {until:%d %b %H:%M} UTC"
        case IncidentState.IN_REPAIR:
            return f"hands; then `ops-pipelines repair done {incident.incident}`"
        case IncidentState.ESCALATED:
            return f"a person: {asked_of_person(incident)}"
        case _:
            return ""
