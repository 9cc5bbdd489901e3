"""Group `act`: what to do, as data that can be read and refused; then doing it, witnessed and written down."""

from collections.abc import Iterable, Sequence

import dagster as dg

from ops_pipelines.assets.understand import incidents
from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import Mode
from ops_pipelines.remediate.decide import Decision
from ops_pipelines.remediate.plans.gate import PlanReport
from ops_pipelines.remediate.testimony import explain_action
from ops_pipelines.report.metadata import count, table

GROUP = "act"

remediation_plan = dg.AssetSpec(
    "remediation_plan",
    group_name=GROUP,
    deps=[incidents],
    code_version="2",
    description="For each open incident its ordered actions with their cost, new or in force, or why not now.",
)
action_log = dg.AssetSpec(
    "action_log",
    group_name=GROUP,
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
