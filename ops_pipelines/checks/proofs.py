"""Asset checks of what was recorded: plans and proposals of quotas against their proofs, teams against their file.

A plan that the guardrails hold back is no failure (it is a refusal, and waits); its checks fail only on what no planner
of ours may ever write down. They hold nothing up: the ledger starts nothing of a plan that they contradict, a person is
paged about it, and one bad plan keeps no other node waiting.

Proposals are compared with agreements and earlier proposals read again. What is found wrong is never applied, no matter
who asks: its state says so, and the run fails.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, cast

import dagster as dg

from ops_pipelines.assets.loop import remediation_plan
from ops_pipelines.assets.quotas import gpu_quotas as gpu_quotas_asset
from ops_pipelines.checks.data_quality import hours_to_judge
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.quotas.gather_demand import TABLE, declared_teams
from ops_pipelines.quotas.proof import PROOFS as QUOTA_PROOFS
from ops_pipelines.remediate.carry_out import plans_to_carry_out
from ops_pipelines.remediate.plan_proof import PROOFS
from ops_pipelines.report.metadata import table
from ops_pipelines.teams.desk import TeamsDesk


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the recorded proofs of some plans say in one of the checks."""

    check: str
    passed: bool
    metadata: Mapping[str, int | str]


def judge_plans(plans: Sequence[IncidentPlan], cluster: Cluster) -> Iterator[Judged]:
    """Read the recorded proof of each plan, and yield what they say check by check."""
    proofs = {plan.plan: cluster.ledger.proof(plan.plan) for plan in plans}
    for name in PROOFS:
        problems = [
            f"{plan}: {problem}"
            for plan, proof in proofs.items()
            for checked in (proof.checked if proof is not None else ())
            if checked.check == name
            for problem in checked.contradictions
        ]
        problems += [f"{plan}: not proved" for plan, proof in proofs.items() if proof is None]
        yield Judged(
            check=name,
            passed=not problems,
            metadata={
                "plan_count": len(plans),
                "plans": ", ".join(plan.plan for plan in plans) or "none",
                "contradictions": "; ".join(problems) or "none",
            },
        )


@dg.multi_asset_check(
    specs=[
        dg.AssetCheckSpec(name=name, asset=remediation_plan.key, description=description)
        for name, (description, _) in PROOFS.items()
    ],
    can_subset=True,
)
def plan_safety(
    context: dg.AssetCheckExecutionContext, cluster: dg.ResourceParam[Cluster]
) -> Iterator[dg.AssetCheckResult]:
    """Reads the recorded proof of every plan in force; `remediate` reports those of each pass by itself."""
    present = cluster.ledger.read_state(cluster.clock.now()).incidents
    for judged in judge_plans(plans_to_carry_out((), present, cluster), cluster):
        key = dg.AssetCheckKey(remediation_plan.key, judged.check)
        if key in context.selected_asset_check_keys:
            yield dg.AssetCheckResult(
                check_name=key.name, asset_key=key.asset_key, passed=judged.passed, metadata=judged.metadata
            )


@dg.multi_asset_check(
    specs=[
        dg.AssetCheckSpec(name=name, asset=gpu_quotas_asset, blocking=True, description=description)
        for name, (description, _) in QUOTA_PROOFS.items()
    ]
)
def quota_proofs(
    context: dg.AssetCheckExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]
) -> Iterable[dg.AssetCheckResult]:
    """Proves the day's proposal, whatever its state says, and refuses it for good if a proof contradicts it."""
    from ops_pipelines.quotas.daily_work import prove_day

    proved = prove_day(_day_of(context), teams_desk)
    for name in QUOTA_PROOFS:
        problems = proved.contradictions.get(name, ())
        yield dg.AssetCheckResult(
            check_name=name,
            asset_key=gpu_quotas_asset.key,
            passed=not problems,
            metadata={
                "proposal": "none is kept for this day" if proved.record is None else proved.record.name,
                "contradictions": "; ".join(problems) or "none",
            },
        )


def _day_of(context: dg.AssetCheckExecutionContext) -> date:
    """Return the day of the run; started by hand without a partition, that of the newest proposal."""
    if context.has_partition_key:
        return date.fromisoformat(context.partition_key)
    event = context.instance.get_latest_materialization_event(gpu_quotas_asset.key)
    partition = None if event is None or event.asset_materialization is None else event.asset_materialization.partition
    if partition is None:
        raise dg.Failure("gpu_quotas was never materialised: there is no proposal to prove")
    return date.fromisoformat(partition)


if TYPE_CHECKING:
    import pyarrow as pa


_NAMED_AT_MOST = 3


@dg.asset_check(
    asset=TABLE,
    name="teams_are_declared",
    blocking=False,
    description="Every team that ran or waited is in the file of teams. Warns: others get what all leave.",
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
