"""Group `quotas`: demand of teams by the hour and the local day; what quotas are proposed, and what becomes of that.

A proposal is of a local day of the cluster's zone. Today's is written into the ledger; one of the past is only shown:
what it would have been from what was known on its morning. Nothing here sets anything: that is `acting_jobs`'.
"""

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING

import dagster as dg

from ops_pipelines.assets.hours import (
    DAYS,
    IN_ONE_RUN,
    LOCAL_DAYS,
    OF_HOURS,
    POOL,
    by_partition,
    covered,
    hour_of_key,
    keep_rejected,
    newest_day,
)
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.sources import Computed
from ops_pipelines.observe.hours import Filled
from ops_pipelines.quotas.gather_demand import FilledDemand, demand_of_day, fill_demand
from ops_pipelines.report.metadata import count, metadata_of, table
from ops_pipelines.run_lanes import WITHOUT_LOGIN, login_behind
from ops_pipelines.teams.desk import TeamsDesk

GROUP = "quotas"


@dg.asset(
    group_name=GROUP,
    kinds={"slurm", "parquet"},
    deps=["job_accounting", "job_allocations", "gpu_efficiency", "inventory"],
    code_version="1",
    **OF_HOURS,
)
def gpu_demand(
    context: dg.AssetExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]
) -> dg.Output[Mapping[str, Computed]]:
    """GPUs that each team ran, waited for and requested, by type; what counts is reported, and what does not."""
    start, end = covered(context)
    filled = fill_demand(teams_desk, start=start, end=end)
    keep_rejected(
        _rejections(filled), teams_desk.observatory, hours=[hour_of_key(key) for key in context.partition_keys]
    )
    for note in filled.notes:
        context.log.info("demand: %s", note)
    rows = by_partition(context, filled.rows)
    # What an hour requested is reported again each time, and as a whole.
    told = {key: Computed(rows=rows.get(key)) for key in context.partition_keys}
    return dg.Output(
        told,
        metadata={
            "not_in_teams_file": table({"team": team} for team in filled.strangers),
            "notes": table({"what": note} for note in filled.notes),
            "refused_by_reason": table({"reason": reason, "rows": rows} for reason, rows in filled.reasons.items()),
        },
    )


@dg.asset(
    group_name=GROUP,
    deps=["gpu_demand"],
    partitions_def=DAYS,
    code_version="1",
    **IN_ONE_RUN,
)
def gpu_demand_daily(context: dg.AssetExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]) -> dg.Output[None]:
    """A local day of each team and type of GPU: GPU-hours that ran, waited, were requested and did nothing."""
    from ops_pipelines.report.pictures.bars import demand_bars

    day = newest_day(context)
    found = demand_of_day(teams_desk, day=day)
    return dg.Output(
        None,
        metadata={
            "day": dg.MetadataValue.text(f"{day}, {found.hour_count} hours, {teams_desk.zone.key}"),
            "demand": dg.MetadataValue.md(demand_bars(found.sums, day=day)),
            "teams": table(found.sums),
            "missing_hour_count": count(found.missing),
            "missing_hours": table({"hour": f"{hour:%Y-%m-%d %H:%M} UTC"} for hour in found.missing),
            "refused": table(found.refused),
        },
    )


def _rejections(filled: FilledDemand) -> Filled:
    tables = {} if filled.rejected is None else {"rejected_rows": filled.rejected}
    return Filled(tables=tables, read_count=0, accepted_count=0, ignored_count=0, reasons=filled.reasons, notes=())


if TYPE_CHECKING:
    from ops_pipelines.quotas.daily_work import Done, Made


PROPOSING_JOB = "rebalance_quotas"
"""What this job proposes the autopilot may set; what anybody proposes by other runs, a person alone."""
_BACKFILL_TAG = "dagster/backfill"


@dg.asset(group_name=GROUP, deps=["gpu_demand"], partitions_def=LOCAL_DAYS, pool=POOL, code_version="1")
def gpu_quotas(context: dg.AssetExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]) -> dg.Output[None]:
    """What each team's quota should be from this morning on, why, and what it would be without the change."""
    from ops_pipelines.quotas.daily_work import make_proposal

    made = make_proposal(day_of(context), teams_desk, now=teams_desk.clock.now(), actor=proposed_by(context))
    proposal = made.proposed.proposal
    context.log.info("proposal=%s state=%s %s", proposal.proposal, made.state_word, proposal.headline)
    if made.record is not None and made.record.actor != AUTOPILOT:
        context.log.warning("proposal=%s is left to people: %s did that", proposal.proposal, made.record.actor)
    for problem in made.contradictions:
        context.log.error("proposal=%s %s", proposal.proposal, problem)
    for note in proposal.notes:
        context.log.info("note: %s", note)
    return dg.Output(None, metadata=_shown(made, teams_desk))


applied_quotas = dg.AssetSpec(
    "applied_quotas",
    group_name=GROUP,
    deps=[gpu_quotas],
    partitions_def=LOCAL_DAYS,
    code_version="2",
    description="What became of the day's proposal, by the policy's consent: shown, pending approval, or set and read "
    "back. Done by the job `set_quotas` alone.",
)
"""What was done. It sets limits in the scheduler, so that nobody can materialise it: the job reports it."""


def shown_of_done(done: "Done") -> Mapping[str, dg.MetadataValue]:
    """Return what the page of `applied_quotas` shows of one run of the job."""
    return {
        "outcome": dg.MetadataValue.text(done.outcome.value.replace("_", " ")),
        "said": dg.MetadataValue.text(done.said),
        "would_be_set": table({"change": each} for each in done.changes),
        "hindered_by": table({"what": each} for each in done.obstacles),
        "warnings": table({"warning": each} for each in done.warnings),
        "proposal": dg.MetadataValue.text("" if done.record is None else done.record.name),
        "state": dg.MetadataValue.text("" if done.record is None else done.record.state.value.replace("_", " ")),
    }


def proposed_by(context: dg.AssetExecutionContext) -> str:
    """Return in whose name this run proposes: the autopilot's in its own job, else of who clicked or fills back."""
    if context.run.job_name == PROPOSING_JOB and _BACKFILL_TAG not in context.run.tags:
        return AUTOPILOT
    name = login_behind(context)
    return WITHOUT_LOGIN if name is None or name == AUTOPILOT else name


def day_of(context: dg.AssetExecutionContext) -> date:
    """Return the local day that a run is for."""
    return date.fromisoformat(context.partition_key)


def _shown(made: "Made", desk: TeamsDesk) -> dict[str, dg.MetadataValue]:
    from ops_pipelines.quotas.changes import list_changes
    from ops_pipelines.quotas.report import matter_of, quota_document
    from ops_pipelines.report.pictures.bars import INLINE_AT_MOST, draw_quotas

    proposal, used = made.proposed.proposal, made.proposed.used
    small, large = draw_quotas(proposal.lines, used=used)
    matter = matter_of(made.record, (), desk.cluster, desk, used=used, computed=proposal)
    return {
        **metadata_of(quota_document(matter)),
        "proposal": dg.MetadataValue.text(f"{proposal.proposal}, {made.state_word}"),
        "changes": dg.MetadataValue.md(list_changes(proposal.lines, most_chars=INLINE_AT_MOST)),
        "quotas": dg.MetadataValue.md(small),
        "quotas_large": dg.MetadataValue.md(large),
        # Of its own: beside ten columns of numbers a sentence is squeezed to a word a line.
        "why": table(
            {
                "quota": f"{each.team}{f' {each.gpu_type}' if each.gpu_type else ''} {each.before:g} → {each.after}",
                "why": each.reason,
                "without the change": each.counterfactual,
            }
            for each in proposal.lines
        ),
    }
