"""Jobs, and the schedules that start them: the lake, what looks back, and what a person launches by hand.

Hours are asked for by a schedule, and not by automation conditions: a condition asks for an asset once, when its
partition is first missing, and not again after a source was silent; and it would take the running hour, which is
materialised before it is over, for one that is there. What is missed by the day, week and month is seen by freshness
policies (`definitions`) and materialised by hand.
"""

from collections.abc import Iterator
from datetime import UTC, timedelta
from zoneinfo import ZoneInfo

import dagster as dg
from pydantic import Field

from ops_pipelines.acting_jobs import (
    QUOTA_JOBS,
    REMEDIATION_JOBS,
    ROLLOUT_JOBS,
    ROLLOUT_SCHEDULES,
    quota_schedule_in,
    set_quotas_schedule,
    shift_report_schedule,
)
from ops_pipelines.assets.history import GROUP as HISTORY
from ops_pipelines.assets.hours import (
    DAYS,
    HOURS,
    MONTHS,
    POOL,
    QUARTERS,
    WEEKS,
    first_hour,
    hour_of_key,
    names_no_teams,
)
from ops_pipelines.assets.teams import ADVICE, COSTS
from ops_pipelines.capacity.model import QUARTER_MONTHS, first_day_of, quarter_of
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import ApprovalWay
from ops_pipelines.core.identity import PlanId, parse_node_name
from ops_pipelines.core.periods import week_of
from ops_pipelines.core.sources import LakeKeeper
from ops_pipelines.people import orders
from ops_pipelines.remediate.by_hand import drain_by_hand, return_by_hand
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.run_lanes import NO_RETRIES, JobKind, RunLane, launched_by, tags_of
from ops_pipelines.teams.desk import TeamsDesk

_HOURS_ASKED_AGAIN = 6
"""How long an hour whose source was silent is asked for again; after that, a person materialises it."""
_SHOWS_AN_HOUR_FILLED = ("gpu_telemetry", "job_accounting", "kernel_events", "job_logs", "gpu_demand")
"""The first asset of each source, and demand: it asks the scheduler by itself, and quotas wait for it."""
fill_hour = dg.define_asset_job(
    "fill_hour",
    selection=dg.AssetSelection.groups("telemetry", "jobs", "telemetry_meaning")
    | dg.AssetSelection.assets("gpu_demand"),
    executor_def=dg.in_process_executor,
    tags=JobKind.MAINTAIN.tags,
    description="Fills hours of the lake: metrics, accounting, logs, inventory, efficiency, coverage, demand.\n\n"
    "When: each hour by itself; by hand for hours whose source was silent for longer than six hours.\n\n"
    "Changes: files of the lake; nothing in the cluster.",
)


@dg.schedule(job=fill_hour, cron_schedule="2 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def hour_schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest]:
    """Two minutes after each hour, when late scrapes and lines have come: the hour that is over, and missed ones."""
    running = context.scheduled_execution_time.astimezone(UTC).replace(minute=0)
    for back in range(1, _HOURS_ASKED_AGAIN + 1):
        key = (running - timedelta(hours=back)).strftime(HOURS.fmt)
        if back == 1 or not _is_filled(context.instance, key):
            # What is missed already waits behind what somebody asks for now: they share one pool.
            tags = {} if back == 1 else {"dagster/priority": "-1"}
            yield dg.RunRequest(run_key=f"{key} at {running:%H}", partition_key=key, tags=tags)


def _is_filled(instance: dg.DagsterInstance, key: str) -> bool:
    """Return whether each source was asked for the hour after its end, and demand counted; before it is not whole."""
    over = (hour_of_key(key) + timedelta(hours=1)).timestamp()
    newest = (
        instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=dg.AssetKey(name), asset_partitions=[key]), limit=1
        ).records
        for name in _SHOWS_AN_HOUR_FILLED
    )
    return all(records and records[0].timestamp >= over for records in newest)


weigh_history = dg.define_asset_job(
    "weigh_history",
    selection=dg.AssetSelection.groups(HISTORY) - dg.AssetSelection.assets("weekly_review"),
    executor_def=dg.in_process_executor,
    tags=JobKind.INSPECT.tags,
    description="Weighs weeks and months: lemons, wear, and whether a batch, a place or the fleet fails too often.\n\n"
    "When: each night by itself; by hand for a day in the past.\n\n"
    "Changes: nothing but its own pages.",
)


@dg.schedule(job=weigh_history, cron_schedule="20 1 * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def history_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """Each night, when the last hour of the day has long been filled: the weeks up to its end."""
    day = context.scheduled_execution_time.astimezone(UTC) - timedelta(days=1)
    key = day.strftime(DAYS.fmt)
    return dg.RunRequest(run_key=key, partition_key=key)


sum_demand = dg.define_asset_job(
    "sum_demand",
    selection=dg.AssetSelection.assets("gpu_demand_daily", "daily_peaks"),
    executor_def=dg.in_process_executor,
    tags=JobKind.MAINTAIN.tags,
    description="Sums what each team ran, waited for and requested on a local day, and its peaks.\n\n"
    "When: each night by itself; by hand for a day whose hours were filled again.\n\n"
    "Changes: tables of the lake; nothing in the cluster.",
)


@dg.schedule(job=sum_demand, cron_schedule="25 1,13 * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def demand_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """Each night, and again when the day is over west of Greenwich, too: the day before."""
    at = context.scheduled_execution_time.astimezone(UTC)
    key = (at - timedelta(days=1)).strftime(DAYS.fmt)
    return dg.RunRequest(run_key=f"{key} at {at:%H}", partition_key=key)


charge_teams = dg.define_asset_job(
    "charge_teams",
    selection=dg.AssetSelection.groups(COSTS),
    executor_def=dg.in_process_executor,
    tags=JobKind.INSPECT.tags,
    description="Accounts for each installed GPU-hour of a month: what became of it, what it costs whom; budgets.\n\n"
    "When: each morning by itself; by hand for a month in the past, or after a change of prices.\n\n"
    "Changes: statements beside the state; a budget that is spent is reported to its owner. No job is stopped.",
)
_MONTH_BEFORE_DAYS = 3
"""On so many days of a month the one before is charged again: accounting of its last jobs comes late."""


def charge_schedule_in(zone: str) -> dg.ScheduleDefinition:
    """Return when costs are charged, by the days of a zone."""

    @dg.schedule(
        job=charge_teams,
        cron_schedule="40 5 * * *",
        execution_timezone=zone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def charge_schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest]:
        """Each morning in the cluster's zone: the running month, and on the first days the one that is over, too."""
        at = context.scheduled_execution_time.astimezone(ZoneInfo(zone))
        before = (at.replace(day=1) - timedelta(days=1)).strftime(MONTHS.fmt)
        if at.day <= _MONTH_BEFORE_DAYS and before >= first_hour()[: len(before)]:
            yield dg.RunRequest(run_key=f"{before} on {at:%Y-%m-%d}", partition_key=before)
        key = at.strftime(MONTHS.fmt)
        yield dg.RunRequest(run_key=f"{key} on {at:%Y-%m-%d}", partition_key=key)

    return charge_schedule


compare_policies = dg.define_asset_job(
    "compare_policies",
    selection=dg.AssetSelection.assets("policy_comparison"),
    executor_def=dg.in_process_executor,
    tags=JobKind.INSPECT.tags,
    description="Runs recorded history through a proposed policy, beside what was done.\n\n"
    "When: by hand, before policy.yaml is changed.\n\n"
    "Changes: a page beside the state; nothing in the cluster.",
)
review_week = dg.define_asset_job(
    "review_week",
    selection=dg.AssetSelection.assets("weekly_review"),
    executor_def=dg.in_process_executor,
    tags=JobKind.INSPECT.tags,
    description="Reviews a week: failures and repairs, effective training time, promises and budgets, what we did.\n\n"
    "When: each Monday by itself; by hand for a week in the past.\n\n"
    "Changes: a page beside the state; nothing in the cluster.",
)


@dg.schedule(job=review_week, cron_schedule="30 6 * * 1", default_status=dg.DefaultScheduleStatus.RUNNING)
def weekly_review_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """Each Monday morning (UTC), when the last day has long been filled: the week that is over."""
    week = week_of(context.scheduled_execution_time).before
    key = week.start.strftime(WEEKS.fmt)
    return dg.RunRequest(run_key=key, partition_key=key)


advise_teams = dg.define_asset_job(
    "advise_teams",
    selection=dg.AssetSelection.groups(ADVICE) - dg.AssetSelection.assets("placement_report"),
    executor_def=dg.in_process_executor,
    tags=JobKind.INSPECT.tags,
    description="Finds what teams could use better, notifies each of them once, and sees whether they did it.\n\n"
    "When: each Monday by itself; by hand for another week.\n\n"
    "Changes: messages to teams; nothing in the cluster.",
)


@dg.schedule(job=advise_teams, cron_schedule="0 7 * * 1", default_status=dg.DefaultScheduleStatus.RUNNING)
def advice_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """Each Monday morning (UTC), after the weekly review: the week that is over."""
    week = week_of(context.scheduled_execution_time).before
    key = week.start.strftime(WEEKS.fmt)
    return dg.RunRequest(run_key=key, partition_key=key)


report_placement = dg.define_asset_job(
    "report_placement",
    selection=dg.AssetSelection.assets("placement_report"),
    executor_def=dg.in_process_executor,
    tags=JobKind.INSPECT.tags,
    description="Reports a day: where jobs stood, what was in pieces or out of reach, who waited.\n\n"
    "When: each morning by itself; by hand for a day in the past.\n\n"
    "Changes: nothing but its own table.",
)


def placement_schedule_in(zone: str) -> dg.ScheduleDefinition:
    """Return when placement is reported, by the days of a zone."""

    @dg.schedule(
        job=report_placement,
        cron_schedule="20 5 * * *",
        execution_timezone=zone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def placement_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        """Each morning at 05:20 in the cluster's zone: the local day that is over."""
        at = context.scheduled_execution_time.astimezone(ZoneInfo(zone))
        key = f"{at.date() - timedelta(days=1):%Y-%m-%d}"
        return dg.RunRequest(run_key=f"placement of {key}", partition_key=key)

    return placement_schedule


plan_capacity = dg.define_asset_job(
    "plan_capacity",
    selection=dg.AssetSelection.assets("capacity_forecast", "capacity_plan"),
    executor_def=dg.in_process_executor,
    tags=JobKind.INSPECT.tags,
    description="Forecasts the peaks of a quarter against what will be usable, and says what to order by when.\n\n"
    "When: on the first of each month by itself; by hand for a quarter that has none yet.\n\n"
    "Changes: the report that is kept; nothing is ordered, and nothing in the cluster changes.",
)


def capacity_schedule_in(zone: str) -> dg.ScheduleDefinition:
    """Return when capacity is planned and checked, by the days of a zone."""

    @dg.schedule(
        job=plan_capacity,
        cron_schedule="0 6 1 * *",
        execution_timezone=zone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def capacity_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        """At 06:00 in the cluster's zone: a quarter on its first day; on the first of its other months its check."""
        if names_no_teams():
            return dg.SkipReason("cluster.yaml names no file of teams, so that no demand is counted (docs/CAPACITY.md)")
        at = context.scheduled_execution_time.astimezone(ZoneInfo(zone))
        quarter = quarter_of(at.date())
        key = first_day_of(quarter).strftime(QUARTERS.fmt)
        if at.month in QUARTER_MONTHS:
            return dg.RunRequest(run_key=f"capacity of {quarter}", partition_key=key)
        as_of = f"{at.date():%Y-%m-%d}"
        return dg.RunRequest(
            run_key=f"check of {quarter} on {as_of}",
            partition_key=key,
            run_config={"ops": {"capacity_forecast": {"config": {"as_of": as_of}}}},
        )

    return capacity_schedule


class PauseConfig(dg.Config):
    reason: str = Field(min_length=1, max_length=500, description="Why new actions must stop.")


class ApproveConfig(dg.Config):
    plan: str = Field(pattern=r"^PLAN-[0-9a-f]{12}$", description="The plan as listed, for example PLAN-0123456789ab.")
    valid_minutes: int = Field(default=60, ge=1, le=24 * 60, description="How long the approval holds.")


class NodeConfig(dg.Config):
    node: str = Field(min_length=1, max_length=253, description="One node, as named in cluster.yaml.")
    reason: str = Field(min_length=1, max_length=160, description="Why; written on the node and in the ledger.")


@dg.op
def pause_new_actions(context: dg.OpExecutionContext, config: PauseConfig, cluster: dg.ResourceParam[Cluster]) -> None:
    """Stop new actions; what is started is finished. Survives restarts."""
    order = orders.pause(
        cluster, actor=launched_by(context, cluster, instead="ops-pipelines pause"), reason=config.reason
    )
    context.log.warning("autopilot paused by=%s reason=%s", order.actor, order.reason)


@dg.op
def allow_new_actions(context: dg.OpExecutionContext, cluster: dg.ResourceParam[Cluster]) -> None:
    """Allow new actions again."""
    actor = launched_by(context, cluster, instead="ops-pipelines resume-autopilot")
    orders.resume_autopilot(cluster, actor=actor)
    context.log.info("autopilot resumed by=%s", actor)


@dg.op
def approve_one_plan(context: dg.OpExecutionContext, config: ApproveConfig, cluster: dg.ResourceParam[Cluster]) -> None:
    """Approve exactly one plan."""
    plan, approval = orders.approve(
        PlanId(config.plan),
        cluster,
        actor=launched_by(context, cluster, instead="ops-pipelines approve"),
        valid_for=timedelta(minutes=config.valid_minutes),
        via=ApprovalWay.UI,
    )
    context.log.info("plan=%s incident=%s approved until=%s", plan.plan, plan.incident, approval.expires_at)


@dg.op
def drain_one_node(context: dg.OpExecutionContext, config: NodeConfig, cluster: dg.ResourceParam[Cluster]) -> None:
    """Drain one node on a person's word; an incident owns the drain until the node is returned."""
    incident = drain_by_hand(
        parse_node_name(config.node),
        cluster,
        lease=Lease(holder=f"run:{context.run_id}", given=None),
        actor=launched_by(context, cluster, instead="scontrol update nodename=NODE state=drain, which is left alone"),
        why=config.reason,
    )
    context.log.info("node=%s drained incident=%s", config.node, incident.incident)


@dg.op
def return_one_node(context: dg.OpExecutionContext, config: NodeConfig, cluster: dg.ResourceParam[Cluster]) -> None:
    """Return one of our drained nodes to service and close the incident that owned it."""
    for incident in return_by_hand(
        parse_node_name(config.node),
        cluster,
        lease=Lease(holder=f"run:{context.run_id}", given=None),
        actor=launched_by(
            context, cluster, instead="ops-pipelines close, and scontrol update nodename=NODE state=resume"
        ),
        why=config.reason,
    ):
        context.log.info("node=%s returned incident=%s", config.node, incident.incident)


@dg.op(pool=POOL)
def keep_lake_small(context: dg.OpExecutionContext, lake_keeper: dg.ResourceParam[LakeKeeper]) -> None:
    """Write 5-minute and hourly aggregates of old days, and delete what the settings no longer keep."""
    kept = lake_keeper.keep()
    context.log.info(
        "aggregates written=%d files deleted=%d bytes=%d", len(kept.aggregated), len(kept.deleted), kept.deleted_bytes
    )
    for day in kept.kept_open:
        context.log.warning("not deleted, for hours of it were never filled; materialise them: %s", day)
    if kept.late_row_count:
        context.log.warning("rows that came after their day was counted and deleted: %d", kept.late_row_count)


@dg.job(tags=JobKind.MAINTAIN.tags, executor_def=dg.in_process_executor)
def keep_lake() -> None:
    """Aggregates old days of telemetry to 5 minutes and an hour; deletes what `lake` in cluster.yaml does not keep.

    When: each morning by itself; by hand when the disk runs full.

    Changes: files of the lake; what is deleted is gone.
    """
    keep_lake_small()


keep_lake_schedule = dg.ScheduleDefinition(
    name="keep_lake_schedule",
    job=keep_lake,
    cron_schedule="17 7 * * *",  # UTC: a day has settled six hours after its end
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Each morning: the day before is aggregated, and old days make room.",
)


@dg.op
def warn_of_idle_gpus(context: dg.OpExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]) -> None:
    """Notify owners of jobs whose GPUs do nothing, as far up the ladder as policy.yaml has it."""
    from ops_pipelines.efficiency.advice_on_holding import walk_ladder

    context.log.info("notes on idle GPUs: %d", walk_ladder(teams_desk))


@dg.job(tags=JobKind.INSPECT.tags, executor_def=dg.in_process_executor)
def warn_of_idle() -> None:
    """Warns owners of jobs whose GPUs do nothing, by the hours that are filled.

    When: each hour, once `idle_schedule` is started and policy.yaml turns the ladder on.

    Changes: messages to owners, as far up the ladder as policy.yaml has it.
    """
    warn_of_idle_gpus()


idle_schedule = dg.ScheduleDefinition(
    name="idle_schedule",
    job=warn_of_idle,
    cron_schedule="12 * * * *",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Each hour, once the one before is filled. Start it where policy.yaml turns advice.idle_ladder on.",
)


@dg.job(tags=JobKind.ASK.tags, executor_def=dg.in_process_executor)
def pause_autopilot() -> None:
    """The kill switch: stops new actions within one sensor turn; what is started is finished.

    When: by hand, whenever the autopilot must stop.

    Changes: the autopilot, in every mode and over restarts, until `resume_autopilot`.
    """
    pause_new_actions()


@dg.job(tags=JobKind.ASK.tags, executor_def=dg.in_process_executor)
def resume_autopilot() -> None:
    """Allows new actions again.

    When: by hand, when the reason of the pause is gone, or to accept a ledger that was set back.

    Changes: the autopilot: it acts again as its mode allows.
    """
    allow_new_actions()


@dg.job(tags=JobKind.ASK.tags, executor_def=dg.in_process_executor)
def approve_plan() -> None:
    """Approves exactly one plan.

    When: by hand, for a plan that is pending approval.

    Changes: the approval of that plan, for the minutes that the form says; the autopilot then carries it out.
    """
    approve_one_plan()


@dg.job(executor_def=dg.in_process_executor, tags={**JobKind.ACT.tags, **tags_of(RunLane.PERSON), **NO_RETRIES})
def drain_node() -> None:
    """Drains one node within the guardrails; an incident owns the drain until the node is returned.

    When: by hand, instead of `scontrol`, so that the autopilot knows whose drain it is.

    Changes: the node: no new job starts there, running jobs continue.
    """
    drain_one_node()


@dg.job(executor_def=dg.in_process_executor, tags={**JobKind.ACT.tags, **tags_of(RunLane.PERSON), **NO_RETRIES})
def return_node() -> None:
    """Returns one of our drained nodes to service, and closes the incident that owned it.

    When: by hand, when a person has repaired the node.

    Changes: the node: jobs start there again.
    """
    return_one_node()


JOBS = (
    *REMEDIATION_JOBS,
    fill_hour,
    weigh_history,
    review_week,
    advise_teams,
    warn_of_idle,
    sum_demand,
    charge_teams,
    report_placement,
    plan_capacity,
    compare_policies,
    keep_lake,
    pause_autopilot,
    resume_autopilot,
    approve_plan,
    drain_node,
    return_node,
    *QUOTA_JOBS,
    *ROLLOUT_JOBS,
)


def schedules_in(zone: str) -> tuple[dg.ScheduleDefinition, ...]:
    """Return every schedule; those of local days go by `zone`."""
    return (
        *(shift_report_schedule, hour_schedule, history_schedule, weekly_review_schedule, keep_lake_schedule),
        *(demand_schedule, advice_schedule, idle_schedule),
        *(charge_schedule_in(zone), placement_schedule_in(zone), capacity_schedule_in(zone)),
        *(quota_schedule_in(zone), set_quotas_schedule),
        *ROLLOUT_SCHEDULES,
    )
