"""Jobs of rollouts and the schedule that advances them: plan, start, steer, and one pass after the other."""

from collections.abc import Iterator
from typing import Literal

import dagster as dg
from pydantic import Field

from ops_pipelines.assets.rollouts import shown_of_pass, shown_of_progress
from ops_pipelines.assets.run_lease import LEASE_TAG, lease_of_run
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import RolloutId, parse_node_name
from ops_pipelines.launched_by import launched_by
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.run_lanes import ROLLOUT_TAGS, JobKind


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
    """One pass over the rollouts: nodes that can go on do, the gate judges, who is due begins.

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
    reason: str = Field(min_length=1, max_length=500, description="Why, for whoever reads it later.")
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
    """Tell one rollout what people want of it."""
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

    Changes: that rollout; what a node has begun is finished or rolled back.
    """
    steer_one_rollout()


ROLLOUT_JOBS = (advance_rollouts, plan_rollout, look_at_versions, start_rollout, steer_rollout)
ROLLOUT_SCHEDULES = (rollout_schedule, version_schedule)
