"""Group `observe`: what is known of the cluster at this instant, validated and kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.observation import Observation
from ops_pipelines.core.plan import Snapshot
from ops_pipelines.remediate.snapshot import KeptSnapshot, Observed
from ops_pipelines.report.metadata import count, table
from ops_pipelines.review.shift import node_word

GROUP = "observe"
EVIDENCE_TAG = "ops_pipelines/evidence_after"
"""On a run: it tells of the evidence above this sequence number, decided on already or not."""
_TOLD_AT_MOST = 1_000


validated_observations = dg.AssetSpec(
    "validated_observations",
    group_name=GROUP,
    kinds={"slurm", "prometheus"},
    code_version="2",
    description="Everything a decision depends on: new evidence, present conditions, nodes, jobs, metrics; and the "
    "rejected. The ledger keeps it as a snapshot, from which a decision can be replayed exactly.",
)
"""Reported by the job `remediate`, as all that follows from it: a step of it by itself would decide on what is past."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a run saw: the snapshot that it decides on, and the evidence that it tells of."""

    kept: KeptSnapshot
    told: tuple[Observation, ...]


def shown_of_observed(observed: Observed, evidence: Sequence[Observation]) -> Mapping[str, dg.MetadataValue]:
    """Return what the page of `validated_observations` shows of a snapshot, and of what the run tells of."""
    snapshot = observed.snapshot
    readings = () if observed.gpu_telemetry is None else observed.gpu_telemetry.readings
    hottest = sorted(readings, key=lambda reading: reading.temperature_celsius or 0.0, reverse=True)[:10]
    return {
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
    }


def evidence_of_run(context: dg.OpExecutionContext, snapshot: Snapshot, cluster: Cluster) -> tuple[Observation, ...]:
    """Return what the run tells of: evidence that waits for its decision, and what the reflex has decided on since."""
    after = context.run.tags.get(EVIDENCE_TAG, "")
    if not after.isdecimal():
        return snapshot.observations
    first = max(int(after), snapshot.evidence_through - _TOLD_AT_MOST)
    found = cluster.ledger.evidence_after(first, limit=_TOLD_AT_MOST)
    return tuple(each.observation for each in found if each.seq <= snapshot.evidence_through)
