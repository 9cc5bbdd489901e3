"""Shows what the gate proved of the plans of this pass, new ones and those in force.

A plan that the guardrails hold back is no failure (it is a refusal, and waits); these checks fail only on what no
planner of ours may ever write down. They hold nothing up: the ledger begins nothing of a plan that they contradict, a
person is paged about it, and one bad plan keeps no other node waiting.
"""

from collections.abc import Iterable

import dagster as dg

from ops_pipelines.assets.act import remediation_plan as remediation_plan_asset
from ops_pipelines.domain.decision import decide
from ops_pipelines.domain.identity import Digest
from ops_pipelines.domain.plan_proof import PROOFS
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.plans.carry_out import plans_to_carry_out


@dg.multi_asset_check(
    specs=[
        dg.AssetCheckSpec(name=name, asset=remediation_plan_asset, description=description)
        for name, (description, _) in PROOFS.items()
    ]
)
def plan_safety(remediation_plan: str, cluster: dg.ResourceParam[Cluster]) -> Iterable[dg.AssetCheckResult]:
    """Reads the recorded proof of every plan that this pass carries out."""
    snapshot = cluster.ledger.load_snapshot(Digest(remediation_plan))
    present = cluster.ledger.read_state(cluster.clock.now()).incidents
    plans = plans_to_carry_out(decide(snapshot, cluster.rules).plans, present, cluster)
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
        yield dg.AssetCheckResult(
            check_name=name,
            asset_key=remediation_plan_asset.key,
            passed=not problems,
            metadata={
                "plan_count": len(plans),
                "plans": ", ".join(plan.plan for plan in plans) or "none",
                "contradictions": "; ".join(problems) or "none",
            },
        )
