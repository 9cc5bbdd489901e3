"""Refuses a plan that contradicts its own proof. Blocking: `action_log` does not run after a failure.

A plan that the guardrails hold back is no failure (it is a refusal, and waits); these checks fail only on what no
planner of ours may ever write down.
"""

from collections.abc import Iterable

import dagster as dg

from ops_pipelines.assets.act import remediation_plan as remediation_plan_asset
from ops_pipelines.domain.decision import decide
from ops_pipelines.domain.identity import Digest
from ops_pipelines.domain.plan_proof import PROOFS
from ops_pipelines.flow.cluster import Cluster


@dg.multi_asset_check(
    specs=[
        dg.AssetCheckSpec(name=name, asset=remediation_plan_asset, blocking=True, description=description)
        for name, (description, _) in PROOFS.items()
    ]
)
def plan_safety(remediation_plan: str, cluster: dg.ResourceParam[Cluster]) -> Iterable[dg.AssetCheckResult]:
    """Proves every plan against the snapshot that it was made from."""
    snapshot = cluster.ledger.load_snapshot(Digest(remediation_plan))
    plans = decide(snapshot, cluster.rules).plans
    for name, (_, find_contradictions) in PROOFS.items():
        problems = find_contradictions(plans, snapshot, cluster.rules)
        yield dg.AssetCheckResult(
            check_name=name,
            asset_key=remediation_plan_asset.key,
            passed=not problems,
            metadata={"plan_count": len(plans), "contradictions": "; ".join(problems) or "none"},
        )
