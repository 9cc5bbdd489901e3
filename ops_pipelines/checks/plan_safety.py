"""Shows what the gate proved of the plans of this pass, new ones and those in force.

A plan that the guardrails hold back is no failure (it is a refusal, and waits); these checks fail only on what no
planner of ours may ever write down. They hold nothing up: the ledger begins nothing of a plan that they contradict, a
person is paged about it, and one bad plan keeps no other node waiting.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from ops_pipelines.assets.act import remediation_plan
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.remediate.plan_proof import PROOFS
from ops_pipelines.remediate.plans.carry_out import plans_to_carry_out


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
