"""Jobs that act: the loop itself, setting quotas, rollouts; what each step computes is handed to the next.

What acts is an op, so that no click on an asset and no back-fill can do it; what was seen and done is reported as the
assets that people read. Values pass from step to step in memory and are of our own types: no form can make one up, and
a step that needs one and is started by itself finds none. Beside them what leads to it: proposals, plans, steering.
Longer than most: one job is one table of steps.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Literal
from zoneinfo import ZoneInfo

import dagster as dg
from pydantic import Field

from ops_pipelines.assets.hours import DAYS, names_no_teams, zone_of_days
from ops_pipelines.assets.incident_pages import shown_of_reports
from ops_pipelines.assets.loop import (
    Seen,
    evidence_of_run,
    findings_told,
    shown_of_acts,
    shown_of_findings,
    shown_of_incidents,
    shown_of_observed,
    shown_of_plans,
    shown_of_verdicts,
)
from ops_pipelines.assets.quotas import PROPOSING_JOB, shown_of_done
from ops_pipelines.assets.reports import shown_of_remediation, shown_of_shift
from ops_pipelines.assets.rollouts import shown_of_pass, shown_of_progress
from ops_pipelines.checks.proofs import judge_plans
from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import RolloutId, parse_node_name
from ops_pipelines.remediate.bundle import save_as_it_is, tidy
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.remediate.carry_out import carry_out, plans_to_carry_out
from ops_pipelines.remediate.decide import Decision, plan_all
from ops_pipelines.remediate.gate import prove_and_record, unproved_in_force
from ops_pipelines.remediate.snapshot import Found, Recorded, find_in, keep, record_findings, take_snapshot
from ops_pipelines.remediate.timeliness import note_run_start
from ops_pipelines.remediate.verbs import explain_action
from ops_pipelines.remediate.verify import verify_repaired
from ops_pipelines.run_lanes import ACTING_TAGS, NO_RETRIES, ROLLOUT_TAGS, VERIFYING_TAGS, JobKind, launched_by
from ops_pipelines.run_share import LEASE_TAG, Turns, is_left_to_another, lease_of_run, requested_at_of
from ops_pipelines.teams.desk import TeamsDesk

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
ASKED_TAG = "ops_pipelines/quotas"
"""Carried by runs that the schedule asked for: for which proposal, in which state, under which consent and epoch."""
_NO_TEAMS = "cluster.yaml names no file of teams, so that no quota is proposed (docs/QUOTAS.md)"
rebalance_quotas = dg.define_asset_job(
    PROPOSING_JOB,
    selection=dg.AssetSelection.assets("gpu_quotas"),
    tags={**JobKind.INSPECT.tags, **NO_RETRIES},
    executor_def=dg.in_process_executor,
    description="Proposes what quotas should be from this morning on, and proves it.\n\n"
    "When: each morning by itself; by hand for a new proposal.\n\n"
    "Changes: a proposal in the ledger; no limit is set.",
)


def quota_schedule_in(zone: str) -> dg.ScheduleDefinition:
    """Return when quotas are proposed, by the days of a zone."""

    @dg.schedule(
        job=rebalance_quotas,
        cron_schedule="0 5 * * *",
        execution_timezone=zone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def quota_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        """Each morning at 05:00 in the cluster's zone: the local day that begins; nothing where nobody named teams."""
        if names_no_teams():
            return dg.SkipReason(_NO_TEAMS)
        key = context.scheduled_execution_time.strftime(DAYS.fmt)
        return dg.RunRequest(run_key=f"quotas of {key}", partition_key=key)

    return quota_schedule


@dg.op(name="applied_quotas", out=dg.Out(dg.Nothing))
def carry_out_quotas(
    context: dg.OpExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]
) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
    """Do with today's proposal what the policy consents to, and report it as `applied_quotas`."""
    from ops_pipelines.quotas.daily_work import carry_out_proposal

    day = teams_desk.clock.now().astimezone(teams_desk.zone).date()
    done = carry_out_proposal(day, teams_desk, lease=lease_of_run(context, teams_desk.cluster))
    context.log.info("quotas %s: %s", done.outcome.value, done.said)
    yield dg.AssetMaterialization("applied_quotas", partition=day.isoformat(), metadata=shown_of_done(done))
    yield dg.Output(None)


@dg.job(tags={**JobKind.ACT.tags, **NO_RETRIES}, executor_def=dg.in_process_executor)
def set_quotas() -> None:
    """Does with today's proposal what the policy consents to: shows it, waits for approval, or sets its limits
    and reads them back. It has no partitions, so that no back-fill can act.

    When: within five minutes of a proposal or an approval, by itself.

    Changes: the limits of teams in the scheduler; running jobs continue.
    """
    carry_out_quotas()


@dg.schedule(job=set_quotas, cron_schedule="*/5 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def set_quotas_schedule(
    context: dg.ScheduleEvaluationContext, cluster: dg.ResourceParam[Cluster]
) -> dg.RunRequest | dg.SkipReason:
    """Every five minutes, if the autopilot proposed something today that no run was asked to carry out as it is.

    What a run was asked for is known by its tag: Dagster compares a schedule's run keys within one tick alone.
    """
    from ops_pipelines.quotas.daily_work import turn_of

    if names_no_teams():
        return dg.SkipReason(_NO_TEAMS)
    now = cluster.clock.now()
    turn = turn_of(now.astimezone(ZoneInfo(zone_of_days())).date(), cluster)
    if not turn.key:
        return dg.SkipReason(turn.why)
    held = cluster.ledger.held_lease(now)
    # Under the epoch: a run that died with its code server is asked for again by the next one.
    key = f"{turn.key}@{0 if held is None else held.epoch}"
    if context.instance.get_runs_count(dg.RunsFilter(job_name=set_quotas.name, tags={ASKED_TAG: key})):
        return dg.SkipReason(f"{turn.why}, and a run was asked to carry it out already")
    lease = {} if held is None else {LEASE_TAG: held.token}
    return dg.RunRequest(run_key=key, tags={ASKED_TAG: key, "reason": turn.why, **lease})


QUOTA_JOBS = (rebalance_quotas, set_quotas)


@dg.op(name="rollout_pass", out=dg.Out(dg.Nothing))
def pass_over_rollouts(
    context: dg.OpExecutionContext, cluster: dg.ResourceParam[Cluster]
) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
    """Bring each node of each rollout as far as it goes now, and report it as `rollout_pass`."""
    from ops_pipelines.rollouts.cycle import advance_rollouts as advance

    report = advance(cluster, lease=lease_of_run(context, cluster))
    for each in report.passes:
        context.log.info("rollout=%s state=%s %s", each.rollout.rollout, each.rollout.state.value, each.rollout.reason)
        for problem in each.problems:
            context.log.warning("rollout=%s %s", each.rollout.rollout, problem)
    for problem in report.problems:
        context.log.warning("%s", problem)
    yield dg.AssetMaterialization("rollout_pass", metadata=shown_of_pass(report))
    yield dg.Output(None)


@dg.op(ins={"after": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def show_rollouts(cluster: dg.ResourceParam[Cluster]) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
    """Report where each rollout is as `rollout_progress`."""
    yield dg.AssetMaterialization("rollout_progress", metadata=shown_of_progress(cluster))
    yield dg.Output(None)


@dg.job(tags={**JobKind.ACT.tags, **ROLLOUT_TAGS}, executor_def=dg.in_process_executor)
def advance_rollouts() -> None:
    """One pass over the rollouts: nodes that can continue do, the gate judges, who is due begins.

    When: by itself, every five minutes while a rollout is under way, and when something of it is due.

    Changes: versions of nodes of a rollout that a person started, within its budgets; back again where the gate
    says so.
    """
    show_rollouts(after=pass_over_rollouts())


plan_rollout = dg.define_asset_job(
    "plan_rollout",
    selection=dg.AssetSelection.assets("rollout_plan"),
    executor_def=dg.in_process_executor,
    tags=JobKind.INSPECT.tags,
    description="Shows what a release would do if it began now: waves, times, teams, as tables and as a picture.\n\n"
    "When: by hand, before `start_rollout`.\n\n"
    "Changes: nothing.",
)
look_at_versions = dg.define_asset_job(
    "look_at_versions",
    selection=dg.AssetSelection.assets("fleet_versions"),
    executor_def=dg.in_process_executor,
    tags=JobKind.INSPECT.tags,
    description="Shows which version of what every node runs, and where that is not what it should be.\n\n"
    "When: each hour by itself; by hand after work on nodes.\n\n"
    "Changes: nothing.",
)
version_schedule = dg.ScheduleDefinition(
    name="version_schedule",
    job=look_at_versions,
    cron_schedule="12 * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every hour, when its inventory has come.",
)


@dg.schedule(job=advance_rollouts, cron_schedule="*/5 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def rollout_schedule(
    context: dg.ScheduleEvaluationContext, cluster: dg.ResourceParam[Cluster]
) -> dg.RunRequest | dg.SkipReason:
    """Every five minutes, as long as a rollout is not over, or owes something to the cluster."""
    from ops_pipelines.rollouts.rollout_pass import owing

    if not cluster.ledger.rollouts(final_since=None) and not owing(cluster):
        return dg.SkipReason("no rollout is under way")
    token = cluster.ledger.current_lease(cluster.clock.now())
    return dg.RunRequest(
        run_key=f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}",
        # By its lease a run that died with its code server is known (`sensors.runs`).
        tags={"reason": "every 5 minutes", **({} if token is None else {LEASE_TAG: token})},
    )


class StartRolloutConfig(dg.Config):
    release: str = Field(min_length=1, max_length=64, description="A file of the releases directory, without .yaml.")
    plan: str = Field(default="", max_length=64, description="Start only if the plan is still this one; empty: any.")


class SteerRolloutConfig(dg.Config):
    rollout: str = Field(pattern=r"^ROLL-[0-9]{4,}$", description="Such as ROLL-0001.")
    order: Literal["approve", "pause", "resume", "abort", "back", "skip"] = Field(description="What it shall do.")
    reason: str = Field(min_length=1, max_length=500, description="Why, for who reads it later.")
    node: str = Field(default="", max_length=253, description="Of skip: the node to leave out.")


@dg.op
def start_one_rollout(
    context: dg.OpExecutionContext, config: StartRolloutConfig, cluster: dg.ResourceParam[Cluster]
) -> None:
    """Open a rollout; the autopilot carries it out from then on."""
    from ops_pipelines.rollouts.orders import files_of, plan_release, start_release

    actor = launched_by(context, cluster, instead="ops-pipelines rollout start")
    planned = plan_release(files_of(cluster).release(config.release), cluster)
    found = getattr(planned.plan, "plan", None)
    if config.plan and found != config.plan:
        raise ByHandRefused(f"the plan is {found or 'none'} by now, not {config.plan}; plan it again")
    opened = start_release(planned, cluster, actor=actor)
    context.log.info("rollout=%s state=%s %s", opened.rollout, opened.state.value, opened.reason)


@dg.op
def steer_one_rollout(
    context: dg.OpExecutionContext, config: SteerRolloutConfig, cluster: dg.ResourceParam[Cluster]
) -> None:
    """Pass one rollout the order of a person."""
    from ops_pipelines.rollouts import orders

    name, reason = RolloutId(config.rollout), config.reason
    actor = launched_by(context, cluster, instead="ops-pipelines rollout")
    match config.order:
        case "approve":
            orders.say_yes(name, cluster, actor=actor)
        case "pause":
            orders.pause(name, cluster, actor=actor, reason=reason)
        case "resume":
            orders.go_on(name, cluster, actor=actor, reason=reason)
        case "abort":
            orders.abort(name, cluster, actor=actor, reason=reason)
        case "back":
            orders.send_back(name, cluster, actor=actor, reason=reason)
        case "skip":
            orders.skip(name, parse_node_name(config.node), cluster, actor=actor, reason=reason)
    context.log.info("rollout=%s order=%s by=%s", name, config.order, actor)


@dg.job(tags=JobKind.ASK.tags, executor_def=dg.in_process_executor)
def start_rollout() -> None:
    """Opens a rollout of one release; the autopilot carries it out from then on.

    When: by hand, after `plan_rollout`.

    Changes: the rollouts under way; nodes follow in waves, as the mode allows.
    """
    start_one_rollout()


@dg.job(tags=JobKind.ASK.tags, executor_def=dg.in_process_executor)
def steer_rollout() -> None:
    """Approves, pauses, resumes, aborts or rolls back a rollout, or leaves one node out.

    When: by hand, while it is under way.

    Changes: that rollout; what a node has started is finished or rolled back.
    """
    steer_one_rollout()


ROLLOUT_JOBS = (advance_rollouts, plan_rollout, look_at_versions, start_rollout, steer_rollout)
ROLLOUT_SCHEDULES = (rollout_schedule, version_schedule)
