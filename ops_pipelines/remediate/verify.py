"""Has repaired nodes tested while they stay drained, verifies them on fresh state and returns those that are well.

The verdict is `verification`'s; tests and return are actions like any other, with guardrails, ledger and witness. Which
tests fit a fault and how good is good enough is `core.node_tests`'; the tests themselves run on the node, under the key
of the action that asked for them, so that they are started once however often we ask.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import NOT_OFFERED, Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerConflict
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance, climb
from ops_pipelines.core.node_tests import BY_HAND, CheckState, covers, is_settling, judge_check, suite_for, suite_named
from ops_pipelines.core.observation import NodeStatus, seen_by_ourselves
from ops_pipelines.core.plan import Order
from ops_pipelines.core.policy import ActionClass, Consent
from ops_pipelines.core.sources import SourceError
from ops_pipelines.observe.intake import Intake, take_in_conditions
from ops_pipelines.remediate.gate import escalate
from ops_pipelines.remediate.guardrails.consents import taken_nodes
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.oversight import remind_of_waiting, settle_left_behind
from ops_pipelines.remediate.perform import Progress, Stage, perform
from ops_pipelines.remediate.probation import VerificationReport, follow_jobs, put_back_what_was_left, see_to_probation
from ops_pipelines.remediate.verbs import inspect_node
from ops_pipelines.remediate.verification import (
    Recovery,
    TestsStanding,
    Verdict,
    judge_recovery,
    repair_finished_at,
)

_POLL_SECONDS = 0.5


def verify_repaired(
    cluster: Cluster, *, lease: Lease, patience: timedelta, is_ours: Callable[[Incident], bool] = lambda _: True
) -> tuple[VerificationReport, ...]:
    """Judge every node that waits to be returned or is on probation, return the recovered, climb with the others.

    `is_ours` leaves nodes to those who look at them at the same time: each look takes commands on the node. Waits up to
    `patience` for soaking nodes and late metrics; what is still open then stays for the next pass. Being the last of
    every pass, it also sees to what nobody else waits for. An incident that cannot be judged holds up no other: its
    error is raised once all were seen.
    """
    settle_left_behind(cluster)
    with suppress(SourceError, LedgerConflict):
        remind_of_waiting(cluster, lease=lease)
    with suppress(SourceError, LedgerConflict):
        follow_jobs(cluster, lease=lease)
    with suppress(SourceError, LedgerConflict):
        put_back_what_was_left(cluster, lease=lease)
    give_up_at = cluster.clock.now() + patience
    latest: dict[IncidentId, VerificationReport] = {}
    broken: dict[IncidentId, Exception] = {}
    while True:
        now = cluster.clock.now()
        state = cluster.ledger.read_state(now)
        # What a rollout has in hand is nobody else's to judge or to return.
        taken = taken_nodes(state.owned, state.records)
        present = tuple(each for each in state.incidents if not each.nodes & taken.keys() and is_ours(each))
        nodes = _nodes_on_probation(present, cluster)
        waiting = [
            incident
            for incident in present
            if incident.incident not in broken
            and (incident.state is IncidentState.VERIFYING or _is_due_on_probation(incident, nodes, cluster, now))
        ]
        if not waiting:
            break
        seen = take_in_conditions(cluster)
        reports = []
        for incident in waiting:
            try:
                reports.append(_look_at(incident, seen, cluster, lease=lease))
            except LedgerConflict:
                continue  # New evidence came in meanwhile: it is judged again in the next pass.
            except Exception as problem:  # Whatever one node makes us do, the others are seen to.
                broken[incident.incident] = problem
        # A node that was returned while another still soaks is part of what this pass did.
        latest.update({report.incident.incident: report for report in reports})
        is_over = all(_is_settled(report) for report in reports)
        if is_over or cluster.clock.now() >= give_up_at:
            break
        cluster.clock.wait(_POLL_SECONDS)
    _tell(broken)
    return tuple(latest.values())


def _tell(broken: Mapping[IncidentId, Exception]) -> None:
    """Raise what went wrong, if anything did: the run fails and says of which incidents, and the others are done."""
    if not broken:
        return
    first = next(iter(broken.values()))
    for incident, problem in broken.items():
        first.add_note(f"{incident} could not be judged: {type(problem).__name__}: {problem}")
    raise first


def _look_at(incident: Incident, seen: Intake, cluster: Cluster, *, lease: Lease) -> VerificationReport:
    if incident.state is IncidentState.VERIFYING:
        return _verify(incident, seen, cluster, lease=lease)
    return see_to_probation(incident, seen, cluster, lease=lease)


def _nodes_on_probation(incidents: Sequence[Incident], cluster: Cluster) -> Mapping[NodeName, NodeStatus]:
    """Return how the scheduler sees the nodes on probation; nothing where there are none, or it does not answer."""
    names = {node for each in incidents if each.state is IncidentState.PROBATION for node in each.nodes}
    try:
        return {each.node: each for each in cluster.scheduler.read_nodes() if each.node in names} if names else {}
    except SourceError:
        return {}


def _is_due_on_probation(
    incident: Incident, nodes: Mapping[NodeName, NodeStatus], cluster: Cluster, now: datetime
) -> bool:
    """Return whether there is anything to see to on probation: it is over, trouble shows, or its mark was forgotten."""
    if incident.state is not IncidentState.PROBATION or incident.returned_at is None:
        return False
    is_over = now >= incident.returned_at + cluster.rules.policy.durations.probation
    is_seen = any(each.node in incident.nodes for each in seen_by_ourselves(cluster.ledger.conditions()))
    return is_over or is_seen or any(not nodes[each].is_last_choice for each in incident.nodes if each in nodes)


def _is_settled(report: VerificationReport) -> bool:
    if report.returned is not None:
        return report.returned.stage is not Stage.UNDER_WAY
    is_watched_on = report.incident.state is IncidentState.PROBATION
    return report.verdict.recovery is Recovery.PERSISTS or is_watched_on


def _verify(incident: Incident, seen: Intake, cluster: Cluster, *, lease: Lease) -> VerificationReport:
    (node,) = incident.nodes
    now = cluster.clock.now()
    records = cluster.ledger.records(incident.incident)
    finished_at = repair_finished_at(incident, records)
    inspection = inspect_node(node, cluster)
    tests = None if inspection is None else see_to_tests(incident, node, cluster, lease=lease)
    verdict = judge_recovery(
        incident,
        repair_finished_at=finished_at,
        status=next((each for each in seen.nodes or () if each.node == node), None),
        inspection=inspection,
        telemetry=next((each for each in seen.gpu_telemetry.statuses if each.node == node), None)
        if seen.gpu_telemetry is not None
        else None,
        conditions=cluster.ledger.conditions(),
        gpu_count=cluster.rules.topology.gpus_per_node,
        durations=cluster.rules.policy.durations,
        now=now,
        tests=tests,
    )
    returned: Progress | None = None
    if verdict.recovery is Recovery.RECOVERED:
        returned = _return(incident, node, cluster, verdict, lease=lease, looked_at=now)
    elif verdict.recovery is Recovery.PERSISTS:
        _climb_fresh(incident, cluster, why=f"{node} is not well: {'; '.join(verdict.facts)}")
    elif _is_late(incident, finished_at, cluster, now, tests=tests):
        why = f"{node} could not be proven well: {'; '.join(verdict.facts)}"
        if incident.response is Response.ISOLATE:
            _climb_fresh(incident, cluster, why=why)  # Nothing was repaired: hands are next, with a report.
        else:
            _escalate_fresh(incident, cluster, lease=lease, why=why)
    return VerificationReport(incident=incident, node=node, verdict=verdict, returned=returned)


def _return(
    incident: Incident, node: NodeName, cluster: Cluster, verdict: Verdict, *, lease: Lease, looked_at: datetime
) -> Progress:
    is_on_probation = cluster.rules.policy.durations.probation > timedelta(0)
    if is_on_probation:
        last = Action(verb=Verb.PUT_LAST, incident=incident.incident, node=node, try_number=incident.plan_count)
        put_last = _until_settled(last, incident, cluster, lease=lease, looked_at=looked_at)
        if put_last.stage in (Stage.WAITING, Stage.UNDER_WAY):
            return put_last
    resume = Action(verb=Verb.RESUME, incident=incident.incident, node=node, try_number=incident.plan_count)
    progress = _until_settled(resume, incident, cluster, lease=lease, looked_at=looked_at)
    now = cluster.clock.now()
    if progress.stage is Stage.DONE and is_on_probation:
        # Where it could not be made last choice it is watched all the same, and the ledger says why.
        note = f"on probation: {'; '.join(verdict.facts)}"
        returned = replace(advance(incident, IncidentEvent.RETURNED, at=now, note=note), returned_at=now)
        cluster.ledger.change_incident(returned, actor=AUTOPILOT, now=now)
    elif progress.stage is Stage.DONE:
        healed = advance(incident, IncidentEvent.RECOVERED, at=now, note=f"healed: {'; '.join(verdict.facts)}")
        cluster.ledger.change_incident(healed, actor=AUTOPILOT, now=now)
    elif progress.stage is Stage.FAILED:
        escalate(incident, cluster, lease=lease, why=f"{node} is well but could not be returned: {progress.reason}")
    return progress


def _until_settled(
    action: Action, incident: Incident, cluster: Cluster, *, lease: Lease, looked_at: datetime
) -> Progress:
    """Do it while the verdict lasts; a node that was looked at too long ago is looked at again in the next pass."""

    def step() -> Progress:
        return perform(
            Order(action=action, behind=incident.plan), cluster, lease=lease, judged_on=incident, looked_at=looked_at
        )

    give_up_at = cluster.clock.now() + cluster.rules.policy.durations.command_limit
    progress = step()
    while progress.stage is Stage.UNDER_WAY and cluster.clock.now() < give_up_at:
        cluster.clock.wait(_POLL_SECONDS)
        progress = step()
    return progress


def _climb_fresh(incident: Incident, cluster: Cluster, *, why: str) -> None:
    """Put the incident a rung higher, unless new evidence has changed it since: then it is judged again."""
    current = cluster.ledger.incident(incident.incident)
    if current is not None and current.state is IncidentState.VERIFYING:
        now = cluster.clock.now()
        higher = climb(current, IncidentEvent.NOT_WELL, why=why, at=now)
        cluster.ledger.change_incident(higher, actor=AUTOPILOT, now=now)


def _escalate_fresh(incident: Incident, cluster: Cluster, *, lease: Lease, why: str) -> None:
    current = cluster.ledger.incident(incident.incident)
    if current is not None and current.state is IncidentState.VERIFYING:
        escalate(current, cluster, lease=lease, why=why)


def _is_late(
    incident: Incident, finished_at: datetime, cluster: Cluster, now: datetime, *, tests: TestsStanding | None
) -> bool:
    """Return whether a proof is overdue; what waits for a pause or approval is reported as waiting, and is not late.

    The time counts from the tests where they were started, or came to an end, later than the repair.
    """
    if tests is not None and tests.waits_for:
        return False
    durations = cluster.rules.policy.durations
    tested_at = [
        record.begun_at if record.outcome is None else record.outcome.finished_at
        for record in cluster.ledger.records(incident.incident)
        if record.action.verb is Verb.CHECK and record.action.try_number == incident.plan_count
    ]
    running = durations.check_limit if tests is not None and tests.are_running else timedelta(0)
    return now - max([finished_at, *tested_at]) > durations.soak + durations.reboot_limit + running


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
    # What was found since the tests began asks for more of them: another act, beside the one that was started.
    return replace(check, part=suite.name) if begun else check


def see_to_tests(incident: Incident, node: NodeName, cluster: Cluster, *, lease: Lease) -> TestsStanding:
    """Start the tests or look how far they are, and return what they say.

    Where the site offers none the verdict rests on everything else, and says so. Where it does, and they could not be
    started, nothing is proven.
    """
    check = check_of(incident, node, cluster)
    is_forbidden = cluster.rules.policy.consent_to(ActionClass.CHECK) is Consent.FORBID
    if check is not None and is_forbidden and _record_of(check, cluster) is None:  # What was started is read.
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
