"""Asset check: who ran or waited in an hour is a team that the file of teams names. Warns, and names who is not."""

from typing import TYPE_CHECKING, cast

import dagster as dg

from ops_pipelines.checks.data_quality import hours_to_judge
from ops_pipelines.quotas.gather_demand import TABLE, declared_teams
from ops_pipelines.report.metadata import table
from ops_pipelines.teams.desk import TeamsDesk

if TYPE_CHECKING:
    import pyarrow as pa

_NAMED_AT_MOST = 3


@dg.asset_check(
    asset=TABLE,
    name="teams_are_declared",
    blocking=False,
    description="Every team that ran or waited stands in the file of teams. Warns: others get what all leave.",
)
def teams_are_declared(
    context: dg.AssetCheckExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]
) -> dg.AssetCheckResult:
    from ops_pipelines.quotas.daily import active_teams

    hours = hours_to_judge(context, dg.AssetKey(TABLE))
    active: set[str] = set()
    for hour in hours:
        active |= active_teams(cast("pa.Table", teams_desk.lake.read_hour(TABLE, hour)))
    if teams_desk.agreements is None:
        told = "cluster.yaml names no file of teams: nothing is agreed with anybody."
        return dg.AssetCheckResult(passed=True, severity=dg.AssetCheckSeverity.WARN, description=told)
    strangers = sorted(active - declared_teams(teams_desk.agreements))
    named = ", ".join(strangers[:_NAMED_AT_MOST])
    more = f" and {len(strangers) - _NAMED_AT_MOST} more" if len(strangers) > _NAMED_AT_MOST else ""
    declared = "the one team that was active" if len(active) == 1 else f"all {len(active)} teams that were active"
    return dg.AssetCheckResult(
        passed=not strangers,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"Not in the file of teams: {named}{more}." if strangers else f"In the file of teams: {declared}.",
        metadata={"not_declared": table({"team": team} for team in strangers)},
    )
