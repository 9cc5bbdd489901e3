"""Refuses a proposal of quotas that contradicts its own proof. A run in which one does fails.

The proofs are held against the proposal as the ledger keeps it, with agreements and earlier proposals read anew. What
is found wrong is never applied, whoever asks: its state says so.
"""

from collections.abc import Iterable
from datetime import date

import dagster as dg

from ops_pipelines.assets.quotas import gpu_quotas as gpu_quotas_asset
from ops_pipelines.quotas.proof import PROOFS
from ops_pipelines.teams.desk import TeamsDesk


@dg.multi_asset_check(
    specs=[
        dg.AssetCheckSpec(name=name, asset=gpu_quotas_asset, blocking=True, description=description)
        for name, (description, _) in PROOFS.items()
    ]
)
def quota_proofs(
    context: dg.AssetCheckExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]
) -> Iterable[dg.AssetCheckResult]:
    """Proves the day's proposal, whatever its state says, and refuses it for good if a proof contradicts it."""
    from ops_pipelines.quotas.daily_work import prove_day

    proved = prove_day(_day_of(context), teams_desk)
    for name in PROOFS:
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
