"""Jobs of quotas and their schedules: one proposes each morning and sets nothing, the other carries out by consent."""

from collections.abc import Iterator
from zoneinfo import ZoneInfo

import dagster as dg

from ops_pipelines.assets.cluster_zone import names_no_teams, zone_of_days
from ops_pipelines.assets.partitions import DAYS
from ops_pipelines.assets.quotas import PROPOSING_JOB, shown_of_done
from ops_pipelines.assets.run_lease import LEASE_TAG, lease_of_run
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.run_lanes import NO_RETRIES, JobKind
from ops_pipelines.teams.desk import TeamsDesk

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

    Changes: the limits of teams in the scheduler; running jobs go on.
    """
    carry_out_quotas()


@dg.schedule(job=set_quotas, cron_schedule="*/5 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def set_quotas_schedule(
    context: dg.ScheduleEvaluationContext, cluster: dg.ResourceParam[Cluster]
) -> dg.RunRequest | dg.SkipReason:
    """Every five minutes, if the autopilot proposed something today that no run was asked to carry out as it stands.

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
    # Under the epoch: a run that died with its code server is asked for anew by the next one.
    key = f"{turn.key}@{0 if held is None else held.epoch}"
    if context.instance.get_runs_count(dg.RunsFilter(job_name=set_quotas.name, tags={ASKED_TAG: key})):
        return dg.SkipReason(f"{turn.why}, and a run was asked to carry it out already")
    lease = {} if held is None else {LEASE_TAG: held.token}
    return dg.RunRequest(run_key=key, tags={ASKED_TAG: key, "reason": turn.why, **lease})


QUOTA_JOBS = (rebalance_quotas, set_quotas)
