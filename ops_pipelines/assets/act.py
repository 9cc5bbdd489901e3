"""Group `act`: what to do, as data that can be read and refused; then doing it, witnessed and written down."""

import dagster as dg

from ops_pipelines.assets.run_lease import lease_of_run, requested_at_of
from ops_pipelines.assets.tables import count, table
from ops_pipelines.domain.decision import decide
from ops_pipelines.domain.identity import Digest
from ops_pipelines.domain.returning.testimony import explain_action
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.plans.carry_out import carry_out, plans_to_carry_out
from ops_pipelines.flow.plans.gate import prove_and_record, unproved_in_force
from ops_pipelines.flow.timeliness import note_run_start

GROUP = "act"


@dg.asset(group_name=GROUP, code_version="1")
def remediation_plan(incidents: str, cluster: dg.ResourceParam[Cluster]) -> dg.Output[str]:
    """For each open incident its ordered actions with their cost, new or in force, or why not now."""
    snapshot = cluster.ledger.load_snapshot(Digest(incidents))
    decision = decide(snapshot, cluster.rules)
    prove_and_record(
        decision,
        snapshot,
        inputs=Digest(incidents),
        cluster=cluster,
        expected_head=None,
        incidents=(),
        also=unproved_in_force(snapshot.incidents, cluster),
    )
    present = cluster.ledger.read_state(cluster.clock.now()).incidents
    plans = plans_to_carry_out(decision.plans, present, cluster)
    return dg.Output(
        incidents,
        metadata={
            "plan_count": count(plans),
            "planned_action_count": sum(len(plan.actions) for plan in plans),
            "refusal_count": count(decision.refusals),
            "mode": cluster.rules.policy.mode.value,
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
        },
    )


@dg.asset(group_name=GROUP, code_version="1")
def action_log(
    context: dg.AssetExecutionContext, remediation_plan: str, cluster: dg.ResourceParam[Cluster]
) -> dg.Output[None]:
    """Every action of this pass with its witness: judged again on fresh state, in the ledger before and after."""
    requested_at = requested_at_of(context)
    if requested_at is not None:
        note_run_start(cluster, requested_at=requested_at)
    snapshot = cluster.ledger.load_snapshot(Digest(remediation_plan))
    decision = decide(snapshot, cluster.rules)
    present = cluster.ledger.read_state(cluster.clock.now()).incidents
    reports = carry_out(
        plans_to_carry_out(decision.plans, present, cluster),
        cluster,
        lease=lease_of_run(context, cluster),
        patience=cluster.rules.policy.durations.run_patience,
    )
    steps = [(report, step) for report in reports for step in report.steps]
    for report, step in steps:
        context.log.info(
            "incident=%s action=%s %s %s",
            report.plan.incident,
            explain_action(step.action),
            step.progress.stage.value,
            step.progress.reason,
        )
    return dg.Output(
        None,
        metadata={
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
                for record in sorted(
                    cluster.ledger.read_state(cluster.clock.now()).records, key=lambda each: each.begun_at, reverse=True
                )
            ),
        },
    )
