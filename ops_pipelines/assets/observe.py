"""Group `observe`: what is known of the cluster at this instant, validated and kept."""

import dagster as dg

from ops_pipelines.assets.tables import count, table
from ops_pipelines.domain.observation import Observation
from ops_pipelines.domain.report import node_word
from ops_pipelines.domain.snapshot import Snapshot
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.evidence.observe import take_snapshot

GROUP = "observe"
EVIDENCE_TAG = "ops_pipelines/evidence_after"
"""On a run: it tells of the evidence above this sequence number, decided on already or not."""
_TOLD_AT_MOST = 1_000


@dg.asset(group_name=GROUP, kinds={"slurm", "prometheus"}, code_version="1")
def validated_observations(context: dg.AssetExecutionContext, cluster: dg.ResourceParam[Cluster]) -> dg.Output[str]:
    """Everything a decision depends on: new evidence, present conditions, nodes, jobs, metrics; and the rejected.

    The value is the digest under which the ledger keeps the snapshot: a decision can be replayed from it exactly.
    """
    observed = take_snapshot(cluster)
    snapshot = observed.snapshot
    evidence = evidence_of_run(context, snapshot, cluster)
    for failure in observed.failures:
        context.log.warning("source did not answer: %s", failure)
    readings = () if observed.gpu_telemetry is None else observed.gpu_telemetry.readings
    hottest = sorted(readings, key=lambda reading: reading.temperature_celsius or 0.0, reverse=True)[:10]
    return dg.Output(
        cluster.ledger.store_snapshot(snapshot),
        metadata={
            "new_observation_count": count(evidence),
            "present_condition_count": count(snapshot.conditions),
            "rejected_count": count(observed.rejected),
            "node_count": count(snapshot.nodes),
            "job_count": count(snapshot.jobs),
            "gpu_with_metrics_count": count(readings),
            "failed_source_count": count(observed.failures),
            "new_evidence": table(
                {
                    "at": f"{each.observed_at:%H:%M:%S}",
                    "node": each.node,
                    "signal": each.signal.value,
                    "code": each.code,
                    "gpu": each.gpu,
                    "evidence": each.text,
                }
                for each in evidence
            ),
            "rejected": table(
                {"source": each.source, "reason": each.reason, "text": each.text} for each in observed.rejected
            ),
            "nodes_by_state": table(
                {"state": word, "nodes": sum(node_word(node) == word for node in snapshot.nodes)}
                for word in sorted({node_word(node) for node in snapshot.nodes})
            ),
            "hottest_gpus": table(
                {
                    "node": reading.node,
                    "gpu": reading.gpu,
                    "temperature_celsius": reading.temperature_celsius,
                    "power_watts": reading.power_watts,
                    "utilisation_ratio": reading.utilisation_ratio,
                }
                for reading in hottest
            ),
        },
    )


def evidence_of_run(context: dg.AssetExecutionContext, snapshot: Snapshot, cluster: Cluster) -> tuple[Observation, ...]:
    """Return what the run tells of: evidence that waits for its decision, and what the reflex has decided on since."""
    after = context.run.tags.get(EVIDENCE_TAG, "")
    if not after.isdecimal():
        return snapshot.observations
    first = max(int(after), snapshot.evidence_through - _TOLD_AT_MOST)
    found = cluster.ledger.evidence_after(first, limit=_TOLD_AT_MOST)
    return tuple(each.observation for each in found if each.seq <= snapshot.evidence_through)
