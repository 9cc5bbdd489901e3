"""Verifies repaired nodes on fresh state and returns those that are proven well.

The verdict is `remediate.verification`'s; the return is an action like any other, with guardrails, ledger and
witness.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerConflict
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance, climb
from ops_pipelines.core.observation import NodeStatus, seen_by_ourselves
from ops_pipelines.core.plan import Order
from ops_pipelines.core.sources import SourceError
from ops_pipelines.observe.intake import Intake, take_in_conditions
from ops_pipelines.remediate.acts.commands import inspect_node
from ops_pipelines.remediate.acts.facts import Lease
from ops_pipelines.remediate.acts.perform import Progress, Stage, perform
from ops_pipelines.remediate.guardrails.consents import taken_nodes
from ops_pipelines.remediate.nodes.probation import follow_jobs, put_back_what_was_left, see_to_probation
from ops_pipelines.remediate.nodes.tests import see_to_tests
from ops_pipelines.remediate.plans.overdue import remind_of_waiting, settle_left_behind
from ops_pipelines.remediate.plans.plan_end import escalate
from ops_pipelines.remediate.verification import (
    NodeBaseline,
    Recovery,
    TestsStanding,
    Verdict,
    judge_recovery,
    repair_finished_at,
)

_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationReport:
    """What was found of one repaired node in this pass."""

    incident: Incident
    node: NodeName
    verdict: Verdict
    returned: Progress | None
    """How far its return came, or the end of its probation; None unless it was proven well."""


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
                continue  # New evidence came in meanwhile: it is judged anew in the next pass.
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
    report = see_to_probation(incident, seen, cluster, lease=lease)
    return VerificationReport(
        incident=report.incident, node=report.node, verdict=report.verdict, returned=report.put_back
    )


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
        baseline=NodeBaseline(gpu_count=cluster.rules.topology.gpus_per_node),
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
    """Put the incident a rung higher, unless new evidence has changed it since: then it is judged anew."""
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
    """Return whether a proof is overdue; what waits for a pause or a yes is told as waiting, and is not late.

    The time counts from the tests where they were begun, or came to an end, later than the repair.
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
