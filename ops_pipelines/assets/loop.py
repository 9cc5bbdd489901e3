"""Groups `observe`, `understand`, `act` and `verify`: the assets of the loop, and what their pages show of one pass.

Reported by the jobs `remediate` and `verify_nodes` alone: a step of them by itself would decide on what is past, and
what acts on nodes and jobs is launched by no click.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import dagster as dg

from ops_pipelines.assets.incident_pages import count_by_rule, describe_incidents
from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.finding import REPAIRS, Catalogue, Finding
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import Observation
from ops_pipelines.core.plan import IncidentPlan, Snapshot
from ops_pipelines.core.policy import Mode
from ops_pipelines.observe.rules import find
from ops_pipelines.remediate.bundle import BundleReport
from ops_pipelines.remediate.decide import Decision
from ops_pipelines.remediate.gate import PlanReport
from ops_pipelines.remediate.probation import VerificationReport
from ops_pipelines.remediate.snapshot import Found, KeptSnapshot, Observed
from ops_pipelines.remediate.verbs import explain_action
from ops_pipelines.remediate.verification import Recovery
from ops_pipelines.report.metadata import count, table
from ops_pipelines.review.shift import node_word

OBSERVE = "observe"
EVIDENCE_TAG = "ops_pipelines/evidence_after"
"""On a run: it reports the evidence above this sequence number, decided on already or not."""
_TOLD_AT_MOST = 1_000
validated_observations = dg.AssetSpec(
    "validated_observations",
    group_name=OBSERVE,
    kinds={"slurm", "prometheus"},
    code_version="2",
    description="Everything a decision depends on: new evidence, present conditions, nodes, jobs, metrics; and the "
    "rejected. The ledger keeps it as a snapshot, from which a decision can be replayed exactly.",
)
"""Reported by the job `remediate`, as all that follows from it: a step of it by itself would decide on what is past."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a run saw: the snapshot that it decides on, and the evidence that it reports."""

    kept: KeptSnapshot
    told: tuple[Observation, ...]


def shown_of_observed(observed: Observed, evidence: Sequence[Observation]) -> Mapping[str, dg.MetadataValue]:
    """Return what the page of `validated_observations` shows of a snapshot, and of what the run reports."""
    snapshot = observed.snapshot
    readings = () if observed.gpu_telemetry is None else observed.gpu_telemetry.readings
    hottest = sorted(readings, key=lambda reading: reading.temperature_celsius or 0.0, reverse=True)[:10]
    return {
        "new_observation_count": count(evidence),
        "present_condition_count": count(snapshot.conditions),
        "rejected_count": count(observed.rejected),
        "node_count": count(snapshot.nodes),
        "job_count": count(snapshot.jobs),
        "gpu_with_metrics_count": count(readings),
        "failed_source_count": count(observed.failures),
        "new_evidence": table(
            {
                "at": f"{each.observed_at:%H:%M:%S}",
                "node": each.node,
                "signal": each.signal.value,
                "code": each.code,
                "gpu": each.gpu,
                "evidence": each.text,
            }
            for each in evidence
        ),
        "rejected": table(
            {"source": each.source, "reason": each.reason, "text": each.text} for each in observed.rejected
        ),
        "nodes_by_state": table(
            {"state": word, "nodes": sum(node_word(node) == word for node in snapshot.nodes)}
            for word in sorted({node_word(node) for node in snapshot.nodes})
        ),
        "hottest_gpus": table(
            {
                "node": reading.node,
                "gpu": reading.gpu,
                "temperature_celsius": reading.temperature_celsius,
                "power_watts": reading.power_watts,
                "utilisation_ratio": reading.utilisation_ratio,
            }
            for reading in hottest
        ),
    }


def evidence_of_run(context: dg.OpExecutionContext, snapshot: Snapshot, cluster: Cluster) -> tuple[Observation, ...]:
    """Return what the run reports: evidence that waits for its decision, and what the reflex has decided on since."""
    after = context.run.tags.get(EVIDENCE_TAG, "")
    if not after.isdecimal():
        return snapshot.observations
    first = max(int(after), snapshot.evidence_through - _TOLD_AT_MOST)
    found = cluster.ledger.evidence_after(first, limit=_TOLD_AT_MOST)
    return tuple(each.observation for each in found if each.seq <= snapshot.evidence_through)


UNDERSTAND = "understand"
health_findings = dg.AssetSpec(
    "health_findings",
    group_name=UNDERSTAND,
    deps=[validated_observations],
    code_version="2",
    description="One verdict for each new observation: by which rule, from which source, and what it calls for.",
)
incidents = dg.AssetSpec(
    "incidents",
    group_name=UNDERSTAND,
    deps=[health_findings],
    code_version="2",
    description="One incident a cause, culprit apart from victims; opened, joined, merged or closed in the ledger.",
)


def findings_told(seen: Seen, found: Found, catalogue: Catalogue) -> list[Finding]:
    """Return what the evidence that a run reports means: as found now, and again where it was decided on before."""
    known = dict(zip(seen.kept.snapshot.observations, found.findings, strict=True))
    return [known[each] if each in known else find(each, catalogue) for each in seen.told]


def shown_of_findings(findings: Sequence[Finding], snapshot: Snapshot) -> dict[str, dg.MetadataValue]:
    """Return what the page of `health_findings` shows of what was found."""
    return {
        "finding_count": count(findings),
        "repair_finding_count": count([each for each in findings if each.response in REPAIRS]),
        "findings_by_rule": table(count_by_rule(findings)),
        # Most runs bring nothing new: then this says what the page of incidents rests on.
        "open_incidents_rest_on": table(
            count_by_rule(finding for each in snapshot.incidents if each.is_open for finding in each.findings)
        ),
        "findings": table(
            {
                "at": f"{each.found_at:%H:%M:%S}",
                "node": each.node,
                "calls_for": each.response.name.lower(),
                "rule": each.rule,
                "explanation": each.explanation,
                "source": each.source,
            }
            for each in findings
        ),
    }


def shown_of_incidents(
    present: Sequence[Incident], changed: Sequence[Incident], saved: BundleReport, *, now: datetime
) -> dict[str, dg.MetadataValue]:
    """Return what the page of `incidents` shows of those present, and of what this pass changed."""
    return {
        "changed_count": count(changed),
        "open_count": count([each for each in present if each.is_open]),
        "kept_bundle_count": count(saved.saved),
        **describe_incidents(present, bundles=saved.newest, now=now),
    }


ACT = "act"
remediation_plan = dg.AssetSpec(
    "remediation_plan",
    group_name=ACT,
    deps=[incidents],
    code_version="2",
    description="For each open incident its ordered actions with their cost, new or in force, or why not now.",
)
action_log = dg.AssetSpec(
    "action_log",
    group_name=ACT,
    deps=[remediation_plan],
    code_version="2",
    description="Every action of this pass with its witness: judged again on fresh state, in the ledger before and "
    "after. Done by the job `remediate` alone.",
)
"""What was done. It acts on nodes and jobs, so that nobody can materialise it: the job reports it."""


def shown_of_plans(plans: Sequence[IncidentPlan], decision: Decision, *, mode: Mode) -> dict[str, dg.MetadataValue]:
    """Return what the page of `remediation_plan` shows of what is to be done, and of what waits."""
    return {
        "plan_count": count(plans),
        "planned_action_count": dg.MetadataValue.int(sum(len(plan.actions) for plan in plans)),
        "refusal_count": count(decision.refusals),
        "mode": dg.MetadataValue.text(mode.value),
        "plans": table(
            {
                "plan": plan.plan,
                "incident": plan.incident,
                "actions": " → ".join(explain_action(action) for action in plan.actions),
                "effects": "; ".join(plan.effects),
                "rejected_alternatives": "; ".join(plan.rejected_alternatives),
            }
            for plan in plans
        ),
        "refusals": table(
            {"incident": name, "guardrail": refusal.guardrail, "reason": refusal.reason}
            for name, refusal in decision.refusals
        ),
    }


def shown_of_acts(reports: Sequence[PlanReport], latest: Iterable[ActionRecord]) -> dict[str, dg.MetadataValue]:
    """Return what the page of `action_log` shows of this pass, and of the acts of late."""
    steps = [(report, step) for report in reports for step in report.steps]
    return {
        "plan_count": count(reports),
        "step_count": count(steps),
        "plans": table(
            {
                "incident": report.plan.incident,
                "plan": report.plan.plan,
                "stage": report.stage.value,
                "why": report.reason,
            }
            for report in reports
        ),
        "actions": table(
            {
                "incident": report.plan.incident,
                "action": explain_action(step.action),
                "stage": step.progress.stage.value,
                "witness": step.progress.reason,
                "key": step.action.key[:12],
            }
            for report, step in steps
        ),
        "latest_actions": table(
            {
                "begun_at": f"{record.begun_at:%H:%M:%S}",
                "incident": record.action.incident,
                "action": explain_action(record.action),
                "outcome": record.outcome.kind.value if record.outcome is not None else "under way",
                "witness": record.outcome.witness if record.outcome is not None else "",
            }
            for record in sorted(latest, key=lambda each: each.begun_at, reverse=True)
        ),
    }


VERIFY = "verify"
verifications = dg.AssetSpec(
    "verifications",
    group_name=VERIFY,
    deps=[action_log],
    code_version="2",
    description="The verdict on each repaired node, every fact it rests on, and whether the node was returned. Done by "
    "the jobs `remediate` and `verify_nodes` alone.",
)
"""What was done. It returns nodes, so that nobody can materialise it: the jobs report it."""


def shown_of_verdicts(reports: Sequence[VerificationReport]) -> dict[str, dg.MetadataValue]:
    """Return what the page of `verifications` shows of one pass."""
    return {
        "verified_node_count": count(reports),
        "returned_node_count": count([report for report in reports if report.verdict.recovery is Recovery.RECOVERED]),
        "verdicts": table(
            {
                "incident": report.incident.incident,
                "node": report.node,
                "verdict": report.verdict.recovery.value,
                "facts": "; ".join(report.verdict.facts),
                "returned": report.returned.reason if report.returned is not None else "",
            }
            for report in reports
        ),
    }
