"""The loop itself as two jobs, what each step computes handed to the next, and the schedule of the hand-over.

What acts is an op, so that no click on an asset and no back-fill can do it; what was seen and done is reported as the
assets that people read. Values pass from step to step in memory and are of our own types: no form can make one up, and
a step that needs one and is started by itself finds none.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta

import dagster as dg

from ops_pipelines.assets.act import shown_of_acts, shown_of_plans
from ops_pipelines.assets.incident_reports import shown_of_reports
from ops_pipelines.assets.observe import Seen, evidence_of_run, shown_of_observed
from ops_pipelines.assets.remediation_page import shown_of_remediation
from ops_pipelines.assets.report import shown_of_shift
from ops_pipelines.assets.run_lease import lease_of_run, requested_at_of
from ops_pipelines.assets.understand import findings_told, shown_of_findings, shown_of_incidents
from ops_pipelines.assets.verify import shown_of_verdicts
from ops_pipelines.checks.plan_safety import judge_plans
from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.remediate.bundle import save_as_it_is, tidy
from ops_pipelines.remediate.decide import Decision, plan_all
from ops_pipelines.remediate.nodes.verify import verify_repaired
from ops_pipelines.remediate.plans.carry_out import carry_out, plans_to_carry_out
from ops_pipelines.remediate.plans.gate import prove_and_record, unproved_in_force
from ops_pipelines.remediate.snapshot import Found, Recorded, find_in, keep, record_findings, take_snapshot
from ops_pipelines.remediate.testimony import explain_action
from ops_pipelines.remediate.timeliness import note_run_start
from ops_pipelines.run_lanes import ACTING_TAGS, NO_RETRIES, VERIFYING_TAGS, JobKind
from ops_pipelines.run_share import Turns, is_left_to_another

HANDED_ON = "handed_on"
"""The resource that keeps what one step hands to the next, for the length of a run."""
_WAIT_FOR_SOAK = timedelta(seconds=5)
"""A run that only verifies waits for a soak that ends within this; all others are left to the next, as its sensor finds
them due. A run that acts waits for none: the next fault needs its place in the lane."""


@dg.op(out=dg.Out(Seen, io_manager_key=HANDED_ON))
def validated_observations(
    context: dg.OpExecutionContext, cluster: dg.ResourceParam[Cluster]
) -> Iterator[dg.AssetMaterialization | dg.Output[Seen]]:
    """Take in what is new, and keep the state of everything as it is now."""
    observed = take_snapshot(cluster)
    for failure in observed.failures:
        context.log.warning("source did not answer: %s", failure)
    told = evidence_of_run(context, observed.snapshot, cluster)
    kept = keep(observed.snapshot, cluster)
    yield dg.AssetMaterialization("validated_observations", metadata=shown_of_observed(observed, told))
    yield dg.Output(Seen(kept=kept, told=told))


@dg.op(out=dg.Out(Found, io_manager_key=HANDED_ON))
def health_findings(
    seen: Seen, cluster: dg.ResourceParam[Cluster]
) -> Iterator[dg.AssetMaterialization | dg.Output[Found]]:
    """Find what each new observation means."""
    found = find_in(seen.kept, cluster)
    shown = shown_of_findings(findings_told(seen, found, cluster.rules.catalogue), seen.kept.snapshot)
    yield dg.AssetMaterialization("health_findings", metadata=shown)
    yield dg.Output(found)


@dg.op(out=dg.Out(Recorded, io_manager_key=HANDED_ON))
def correlation(
    context: dg.OpExecutionContext, found: Found, cluster: dg.ResourceParam[Cluster]
) -> Iterator[dg.Output[Recorded]]:
    """Write into the ledger which incidents the findings open, join or close."""
    recorded = record_findings(found, cluster)
    for incident in recorded.changed:
        context.log.info("incident=%s state=%s note=%s", incident.incident, incident.state.value, incident.note)
    yield dg.Output(recorded)


@dg.op(ins={"after": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def incidents(
    context: dg.OpExecutionContext, recorded: Recorded, cluster: dg.ResourceParam[Cluster]
) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
    """Keep the evidence of the incidents as they were found, with its pictures: no act waits for these."""
    snapshot = recorded.found.kept.snapshot
    turns = Turns(context, cluster)
    present = tuple({each.incident: each for each in (*snapshot.incidents, *recorded.changed)}.values())
    theirs = {each.incident for each in present if turns.is_theirs(each.incident)}
    saved = save_as_it_is(present, cluster, nodes=snapshot.nodes, jobs=snapshot.jobs, but=theirs)
    for name, problem in saved.problems.items():
        context.log.warning("the evidence of %s was not kept: %s", name, problem)
    left_behind = tidy(cluster)
    if left_behind is not None:
        context.log.warning("old evidence was not removed: %s", left_behind)
    by_now = tuple(cluster.ledger.incident(each.incident) or each for each in present)
    shown = shown_of_incidents(by_now, recorded.changed, saved, now=cluster.clock.now())
    yield dg.AssetMaterialization("incidents", metadata=shown)
    yield dg.Output(None)


@dg.op(out=dg.Out(Decision, io_manager_key=HANDED_ON))
def remediation_plan(
    recorded: Recorded, cluster: dg.ResourceParam[Cluster]
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation | dg.Output[Decision]]:
    """Decide what is to be done about each incident; have it proved, and recorded with its proof."""
    kept = recorded.found.kept
    plans, refusals = plan_all(recorded.changed, kept.snapshot, cluster.rules)
    decision = Decision(findings=recorded.found.findings, incidents=recorded.changed, plans=plans, refusals=refusals)
    prove_and_record(
        decision,
        kept.snapshot,
        inputs=kept.digest,
        cluster=cluster,
        expected_head=None,
        incidents=(),
        also=unproved_in_force(kept.snapshot.incidents, cluster),
    )
    present = cluster.ledger.read_state(cluster.clock.now()).incidents
    to_do = plans_to_carry_out(decision.plans, present, cluster)
    shown = shown_of_plans(to_do, decision, mode=cluster.rules.policy.mode)
    yield dg.AssetMaterialization("remediation_plan", metadata=shown)
    for judged in judge_plans(to_do, cluster):
        yield dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey("remediation_plan"),
            check_name=judged.check,
            passed=judged.passed,
            metadata=judged.metadata,
        )
    yield dg.Output(decision)


@dg.op(out=dg.Out(dg.Nothing))
def action_log(
    context: dg.OpExecutionContext, decision: Decision, cluster: dg.ResourceParam[Cluster]
) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
    """Carry out what is in force and what was decided: each act judged again on fresh state, then witnessed."""
    requested_at = requested_at_of(context)
    if requested_at is not None:
        note_run_start(cluster, requested_at=requested_at)
    present = cluster.ledger.read_state(cluster.clock.now()).incidents
    turns = Turns(context, cluster)
    reports = carry_out(
        turns.take(plans_to_carry_out(decision.plans, present, cluster)),
        cluster,
        lease=lease_of_run(context, cluster),
        patience=cluster.rules.policy.durations.run_patience,
        why_it_waits=turns.why_it_waits,
    )
    for report in reports:
        for step in report.steps:
            context.log.info(
                "incident=%s action=%s %s %s",
                report.plan.incident,
                explain_action(step.action),
                step.progress.stage.value,
                step.progress.reason,
            )
    latest = cluster.ledger.read_state(cluster.clock.now()).records
    yield dg.AssetMaterialization("action_log", metadata=shown_of_acts(reports, latest))
    yield dg.Output(None)


@dg.op(ins={"after": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def verifications(
    context: dg.OpExecutionContext, cluster: dg.ResourceParam[Cluster]
) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
    """Verify repaired nodes on fresh state, and return those that are proven well."""
    lease = lease_of_run(context, cluster)
    # A node that is back from its reboot is still being acted on: its plan takes note of that first, without waiting.
    present = cluster.ledger.read_state(cluster.clock.now()).incidents
    turns = Turns(context, cluster)
    plans = turns.without_theirs(plans_to_carry_out((), present, cluster))
    carry_out(plans, cluster, lease=lease, patience=timedelta(0), why_it_waits=turns.why_it_waits)
    is_acting = context.job_name == remediate.name
    patience = timedelta(0) if is_acting else min(_WAIT_FOR_SOAK, cluster.rules.policy.durations.run_patience)
    reports = verify_repaired(cluster, lease=lease, patience=patience, is_ours=turns.verifies)
    for report in reports:
        context.log.info("node=%s verdict=%s", report.node, report.verdict.recovery.value)
    yield dg.AssetMaterialization("verifications", metadata=shown_of_verdicts(reports))
    yield dg.Output(None)


def _showing(asset: str, show: Callable[[Cluster], Mapping[str, dg.MetadataValue]]) -> dg.OpDefinition:
    """Return an op that reports an asset which only looks, and which a person may therefore materialise, too."""

    @dg.op(
        name=f"show_{asset}",  # Another name than the asset's own step has: Dagster wants them unlike.
        description=f"Report `{asset}`.",
        ins={"after": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
    )
    def report(
        context: dg.OpExecutionContext, cluster: dg.ResourceParam[Cluster]
    ) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
        if is_left_to_another(context.instance, context.run_id, asset, now=SystemClock().now()):
            context.log.info("left to a run beside this one, which has yet to make its pages")
        else:
            yield dg.AssetMaterialization(asset, metadata=show(cluster))
        yield dg.Output(None)

    return report


_SHOWN_AFTERWARDS = (
    _showing("remediation_page", shown_of_remediation),
    _showing("incident_reports", shown_of_reports),
    _showing("shift_report", shown_of_shift),
)


@dg.job(tags={**JobKind.ACT.tags, **ACTING_TAGS, **NO_RETRIES}, executor_def=dg.in_process_executor)
def remediate() -> None:
    """The loop: observes, understands, plans, acts, verifies, reports, for every open incident that no other run has.

    When: by itself, as `remediation_sensor` finds evidence or something due.

    Changes: nodes and jobs, as far as the mode, approvals and guardrails allow.
    """
    recorded = correlation(health_findings(validated_observations()))
    kept = incidents(recorded, after=verifications(after=action_log(remediation_plan(recorded))))
    for show in _SHOWN_AFTERWARDS:
        show(after=kept)


@dg.job(tags={**JobKind.ACT.tags, **VERIFYING_TAGS, **NO_RETRIES}, executor_def=dg.in_process_executor)
def verify_nodes() -> None:
    """Verifies repaired nodes on fresh state, and returns those that are proven well.

    When: by itself, as `drained_node_sensor` finds a node due.

    Changes: repaired nodes: they take jobs again.
    """
    verified = verifications()
    for show in _SHOWN_AFTERWARDS:
        show(after=verified)


report_shift = dg.define_asset_job(
    "report_shift",
    selection=dg.AssetSelection.assets("shift_report"),
    executor_def=dg.in_process_executor,
    tags=JobKind.INSPECT.tags,
    description="Writes the shift report.\n\n"
    "When: at the end of each 8-hour shift by itself; by hand for a hand-over at another time.\n\n"
    "Changes: nothing but the report.",
)
shift_report_schedule = dg.ScheduleDefinition(
    name="shift_report_schedule",
    job=report_shift,
    cron_schedule=["0 6 * * *", "0 14 * * *", "0 22 * * *"],
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="At the end of each 8-hour shift.",
)

REMEDIATION_JOBS = (remediate, verify_nodes, report_shift)
