"""Group `quotas`, once a day: what quotas are proposed, and what becomes of the proposal.

A partition is a local day of the cluster's zone. Today's is written into the ledger; one of the past is only shown:
what it would have been from what was known on its morning. Nothing here sets anything: that is `quota_jobs`'.
"""

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING

import dagster as dg

from ops_pipelines.assets.hours import POOL
from ops_pipelines.assets.partitions import LOCAL_DAYS
from ops_pipelines.assets.tables import count, table
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.proposal import GpuType, ProposedQuota, QuotaProposal, TeamName
from ops_pipelines.launched_by import WITHOUT_LOGIN, login_behind
from ops_pipelines.teams.desk import TeamsDesk

if TYPE_CHECKING:
    from ops_pipelines.quotas.daily_work import Done

GROUP = "quotas"
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
    return dg.Output(None, metadata=_shown(proposal, state=made.state_word, used=made.proposed.used))


applied_quotas = dg.AssetSpec(
    "applied_quotas",
    group_name=GROUP,
    deps=[gpu_quotas],
    partitions_def=LOCAL_DAYS,
    code_version="2",
    description="What became of the day's proposal, by the policy's consent: shown, waiting for a yes, or set and read "
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


def _shown(
    proposal: QuotaProposal, *, state: str, used: Mapping[tuple[TeamName, GpuType], float]
) -> dict[str, dg.MetadataValue]:
    from ops_pipelines.quotas.changes import list_changes
    from ops_pipelines.report.pictures.bars import draw_quotas
    from ops_pipelines.report.pictures.hours import INLINE_AT_MOST

    small, large = draw_quotas(proposal.lines, used=used)
    return {
        "headline": dg.MetadataValue.text(proposal.headline),
        "changes": dg.MetadataValue.md(list_changes(proposal.lines, most_chars=INLINE_AT_MOST)),
        "proposal": dg.MetadataValue.text(f"{proposal.proposal}, {state}"),
        "quotas": dg.MetadataValue.md(small),
        "quotas_large": dg.MetadataValue.md(large),
        "changed_count": count([each for each in proposal.lines if each.changes_anything]),
        "lines": table(_line(each, used=used.get((each.team, each.gpu_type))) for each in proposal.lines),
        # Of its own: beside eight columns of numbers a sentence is squeezed to a word a line.
        "why": table(_why(each) for each in proposal.lines),
        "supply": table(
            {
                "type": each.gpu_type or "all",
                "installed": each.installed,
                "broken": each.broken,
                "in rollouts": each.in_rollouts,
                "kept back": each.slack,
                "to give out": each.supply,
            }
            for each in proposal.supplies
        ),
        "notes": table({"note": each} for each in proposal.notes),
        "stands_still": dg.MetadataValue.text(proposal.frozen_because or "no"),
    }


def _line(line: ProposedQuota, *, used: float | None) -> dict[str, object]:
    return {
        "team": line.team,
        "type": line.gpu_type or "all",
        "before": line.before,
        "after": line.after,
        "guarantee": line.guarantee,
        "used": "not known" if used is None else f"{used:.1f}",
        "wanted": line.wanted_mean,
        "debt": line.debt,
    }


def _why(line: ProposedQuota) -> dict[str, object]:
    kind = f" {line.gpu_type}" if line.gpu_type else ""
    return {
        "quota": f"{line.team}{kind} {line.before:g} → {line.after}",
        "why": line.reason,
        "without the change": line.counterfactual,
    }
