"""Verifies repaired nodes on fresh state and returns those that are proven well.

The verdict is `domain.verification`'s; the return is an action like any other, with guardrails, ledger and witness.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.domain.action import Action, Verb
from ops_pipelines.domain.identity import IncidentId, NodeName
from ops_pipelines.domain.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.domain.observation import NodeInspection
from ops_pipelines.domain.verification import NodeBaseline, Recovery, Verdict, judge_recovery, repaired_at
from ops_pipelines.flow.carry_out import escalate
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.intake import Intake, take_in_conditions
from ops_pipelines.flow.lease import Lease
from ops_pipelines.flow.overdue import remind_of_waiting, settle_left_behind
from ops_pipelines.flow.perform import Progress, Stage, perform
from ops_pipelines.ports.ledger import AUTOPILOT, LedgerConflict
from ops_pipelines.ports.source_error import SourceError

_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationReport:
    """What was found of one repaired node in this pass."""

    incident: Incident
    node: NodeName
    verdict: Verdict
    returned: Progress | None
    """How far its return came; None unless it was proven well."""


def verify_repaired(cluster: Cluster, *, lease: Lease, patience: timedelta) -> tuple[VerificationReport, ...]:
    """Judge every node that waits to be returned, return the recovered, hand the hopeless to a person.

    Waits up to `patience` for soaking nodes and late metrics; what is still open then stays for the next pass. Being
    the last of every pass, it also sees to what nobody else waits for.
    """
    settle_left_behind(cluster)
    with suppress(SourceError, LedgerConflict):
        remind_of_waiting(cluster, lease=lease)
    give_up_at = cluster.clock.now() + patience
    latest: dict[IncidentId, VerificationReport] = {}
    while True:
        now = cluster.clock.now()
        waiting = [
            incident
            for incident in cluster.ledger.read_state(now).incidents
            if incident.state is IncidentState.VERIFYING
        ]
        if not waiting:
            return tuple(latest.values())
        seen = take_in_conditions(cluster)
        reports = []
        for incident in waiting:
            with suppress(LedgerConflict):  # New evidence came in meanwhile: it is judged anew in the next pass.
                reports.append(_verify(incident, seen, cluster, lease=lease))
        # A node that was returned while another still soaks is part of what this pass did.
        latest.update({report.incident.incident: report for report in reports})
        is_over = all(_is_settled(report) for report in reports)
        if is_over or cluster.clock.now() >= give_up_at:
            return tuple(latest.values())
        cluster.clock.wait(_POLL_SECONDS)


def _is_settled(report: VerificationReport) -> bool:
    if report.returned is not None:
        return report.returned.stage is not Stage.UNDER_WAY
    return report.verdict.recovery is Recovery.PERSISTS


def _verify(incident: Incident, seen: Intake, cluster: Cluster, *, lease: Lease) -> VerificationReport:
    (node,) = incident.nodes
    now = cluster.clock.now()
    records = cluster.ledger.records(incident.incident)
    finished = [record.outcome.finished_at for record in records if record.outcome is not None]
    repair_finished_at = repaired_at(records) or max(finished, default=incident.changed_at)
    verdict = judge_recovery(
        incident,
        repair_finished_at=repair_finished_at,
        status=next((each for each in seen.nodes or () if each.node == node), None),
        inspection=_inspect(node, cluster),
        telemetry=next((each for each in seen.gpu_telemetry.statuses if each.node == node), None)
        if seen.gpu_telemetry is not None
        else None,
        conditions=cluster.ledger.conditions(),
        baseline=NodeBaseline(gpu_count=cluster.rules.topology.gpus_per_node),
        durations=cluster.rules.policy.durations,
        now=now,
    )
    returned: Progress | None = None
    if verdict.recovery is Recovery.RECOVERED:
        returned = _return(incident, node, cluster, verdict, lease=lease)
    elif verdict.recovery is Recovery.PERSISTS:
        _escalate_fresh(incident, cluster, lease=lease, why=f"{node} is not well: {'; '.join(verdict.facts)}")
    elif _is_late(repair_finished_at, cluster, now):
        _escalate_fresh(
            incident, cluster, lease=lease, why=f"{node} could not be proven well: {'; '.join(verdict.facts)}"
        )
    return VerificationReport(incident=incident, node=node, verdict=verdict, returned=returned)


def _return(incident: Incident, node: NodeName, cluster: Cluster, verdict: Verdict, *, lease: Lease) -> Progress:
    resume = Action(verb=Verb.RESUME, incident=incident.incident, node=node, try_number=incident.plan_count)
    give_up_at = cluster.clock.now() + cluster.rules.policy.durations.command_limit
    progress = perform(resume, cluster, plan=incident.plan, lease=lease, judged_on=incident)
    while progress.stage is Stage.UNDER_WAY and cluster.clock.now() < give_up_at:
        cluster.clock.wait(_POLL_SECONDS)
        progress = perform(resume, cluster, plan=incident.plan, lease=lease, judged_on=incident)
    now = cluster.clock.now()
    if progress.stage is Stage.DONE:
        healed = advance(incident, IncidentEvent.RECOVERED, at=now, note=f"healed: {'; '.join(verdict.facts)}")
        cluster.ledger.change_incident(healed, actor=AUTOPILOT, now=now)
    elif progress.stage is Stage.FAILED:
        escalate(incident, cluster, lease=lease, why=f"{node} is well but could not be returned: {progress.reason}")
    return progress


def _escalate_fresh(incident: Incident, cluster: Cluster, *, lease: Lease, why: str) -> None:
    current = cluster.ledger.incident(incident.incident)
    if current is not None and current.state is IncidentState.VERIFYING:
        escalate(current, cluster, lease=lease, why=why)


def _is_late(repair_finished_at: datetime, cluster: Cluster, now: datetime) -> bool:
    durations = cluster.rules.policy.durations
    return now - repair_finished_at > durations.soak + durations.reboot_limit


def _inspect(node: NodeName, cluster: Cluster) -> NodeInspection | None:
    try:
        return cluster.fleet.inspect(node)
    except SourceError:
        return None
