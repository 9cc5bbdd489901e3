"""Takes a snapshot: everything that a decision depends on, at one instant, read fresh."""

from dataclasses import dataclass

from ops_pipelines.domain.decision import Snapshot
from ops_pipelines.domain.observation import Rejected
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.intake import take_in_conditions, take_in_logs
from ops_pipelines.frames.telemetry import GpuTelemetry

_EVIDENCE_AT_ONCE = 5_000
"""More than this at once is a storm; the mass-event rule needs far less, and the rest comes with the next decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A snapshot, and what was seen on the way that no decision depends on."""

    snapshot: Snapshot
    new_evidence_count: int
    rejected: tuple[Rejected, ...]
    failures: tuple[str, ...]
    gpu_telemetry: GpuTelemetry | None


def take_snapshot(cluster: Cluster) -> Observed:
    """Take in what is new, then return the state of everything.

    A scheduler that does not answer raises SourceError: nothing can be decided without it. A metrics source that
    does not answer is noted in the snapshot, where it forbids all but the mildest acts.
    """
    from_logs = take_in_logs(cluster)
    from_conditions = take_in_conditions(cluster)
    nodes = from_conditions.nodes if from_conditions.nodes is not None else cluster.scheduler.read_nodes()
    jobs = cluster.scheduler.read_jobs()
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    evidence = cluster.ledger.evidence_after(state.decided_through, limit=_EVIDENCE_AT_ONCE)
    gpu_telemetry = from_conditions.gpu_telemetry
    snapshot = Snapshot(
        taken_at=now,
        rules_digest=cluster.rules_digest,
        ledger_head=state.head_seq,
        evidence_through=max((each.seq for each in evidence), default=state.decided_through),
        observations=tuple(each.observation for each in evidence),
        conditions=cluster.ledger.conditions(),
        nodes=tuple(sorted(nodes, key=lambda node: node.node)),
        jobs=tuple(sorted(jobs, key=lambda job: job.job)),
        telemetry=() if gpu_telemetry is None else gpu_telemetry.statuses,
        is_telemetry_available=gpu_telemetry is not None,
        incidents=state.incidents,
        incident_count=state.incident_count,
        records=state.records,
        is_paused=state.pause is not None,
    )
    return Observed(
        snapshot=snapshot,
        new_evidence_count=from_logs.new_count + from_conditions.new_count,
        rejected=from_logs.rejected + from_conditions.rejected,
        failures=from_logs.failures + from_conditions.failures,
        gpu_telemetry=gpu_telemetry,
    )
