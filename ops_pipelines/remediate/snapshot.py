"""Takes a snapshot, everything that a decision depends on; and nodes that fall silent while their plan waits.

What was ordered to restart falls silent, too; so only silence counts that nothing of ours explains. Many at once are no
fault of nodes: then nothing is done here.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, Evidence, LedgerConflict, LedgerState
from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.identity import Digest
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.observation import JobStatus, NodeStatus, Observation, Rejected, Signal
from ops_pipelines.core.plan import Snapshot
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.sources import JobFactsReading, SourceError
from ops_pipelines.lake.telemetry import GpuTelemetry
from ops_pipelines.observe.intake import take_in_conditions, take_in_logs
from ops_pipelines.observe.job_facts import merge_jobs, read_job_facts
from ops_pipelines.remediate.decide import correlate_all, find_all
from ops_pipelines.remediate.guardrails.consents import taken_nodes

# -- takes a snapshot, everything that a decision depends on at one instant --


EVIDENCE_AT_ONCE = 5_000
"""More than this at once is a storm; the mass-event rule needs far less, and the rest comes with the next decision."""
_DECIDE_TRY_COUNT = 10
"""A line that another writes between a snapshot and its decision costs one; runs beside it write several a second."""


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
    gpu_telemetry = from_conditions.gpu_telemetry
    learned = read_job_facts(cluster.job_facts)
    return Observed(
        snapshot=_compose(
            cluster, nodes, cluster.scheduler.read_jobs(), learned, gpu_telemetry=gpu_telemetry, evidence=None
        ),
        new_evidence_count=from_logs.new_count + from_conditions.new_count,
        rejected=from_logs.rejected + from_conditions.rejected,
        failures=from_logs.failures + from_conditions.failures + learned.problems,
        gpu_telemetry=gpu_telemetry,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """An answer of the scheduler that is on its way."""

    nodes: Future[tuple[NodeStatus, ...]]
    jobs: Future[tuple[JobStatus, ...]]


def begin_reading(cluster: Cluster) -> Reading:
    """Ask the scheduler for its nodes and jobs, both at once, and return without waiting for the answers."""
    beside = ThreadPoolExecutor(2, thread_name_prefix="scheduler")
    reading = Reading(
        nodes=beside.submit(lambda: cluster.scheduler.read_nodes()),
        jobs=beside.submit(lambda: cluster.scheduler.read_jobs()),
    )
    beside.shutdown(wait=False)
    return reading


def glance(cluster: Cluster, evidence: Sequence[Evidence], reading: Reading) -> Snapshot:
    """Return the state of everything but the metrics, which take the longest to answer, and take nothing in.

    To the decision they are silent: it may plan a drain on what the logs say, and nothing that needs eyes. `evidence`
    is the first of what was undecided when it was read; what somebody has decided on since is left out.
    Raises SourceError if the scheduler does not answer.
    """
    nodes, jobs = reading.nodes.result(), reading.jobs.result()
    return _compose(cluster, nodes, jobs, read_job_facts(cluster.job_facts), gpu_telemetry=None, evidence=evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSnapshot:
    """A snapshot, and the digest under which the ledger keeps it: a decision can be made from it again exactly."""

    snapshot: Snapshot
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What each new observation of a snapshot means."""

    kept: KeptSnapshot
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What findings made of the incidents, as the ledger has it."""

    found: Found
    changed: tuple[Incident, ...]


def keep(snapshot: Snapshot, cluster: Cluster) -> KeptSnapshot:
    """Have the ledger keep a snapshot."""
    return KeptSnapshot(snapshot=snapshot, digest=cluster.ledger.store_snapshot(snapshot))


def find_in(kept: KeptSnapshot, cluster: Cluster) -> Found:
    """Return what a snapshot's new observations mean under the rules in force."""
    return Found(kept=kept, findings=find_all(kept.snapshot, cluster.rules))


def record_findings(found: Found, cluster: Cluster) -> Recorded:
    """Write what was found into the ledger; return what changed, and on which snapshot it was done.

    Somebody else may have decided since it was taken (the reflex does so within a tick): then it is taken again.
    """
    for remaining in reversed(range(_DECIDE_TRY_COUNT)):
        snapshot = found.kept.snapshot
        changed = correlate_all(found.findings, snapshot, cluster.rules)
        if not changed and not snapshot.observations:
            break  # The reflex has decided it all: there is nothing to write that anybody could have come before.
        try:
            cluster.ledger.record_decision(
                inputs=found.kept.digest,
                decided_through=snapshot.evidence_through,
                expected_head=snapshot.ledger_head,
                incidents=changed,
                plans=(),
                now=snapshot.taken_at,
            )
        except LedgerConflict:
            if remaining == 0:
                raise
            found = find_in(keep(take_snapshot(cluster).snapshot, cluster), cluster)
        else:
            break
    return Recorded(found=found, changed=changed)


def _compose(
    cluster: Cluster,
    nodes: tuple[NodeStatus, ...],
    jobs: tuple[JobStatus, ...],
    learned: JobFactsReading,
    *,
    gpu_telemetry: GpuTelemetry | None,
    evidence: Sequence[Evidence] | None,
) -> Snapshot:
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    if evidence is None:
        evidence = cluster.ledger.evidence_after(state.decided_through, limit=EVIDENCE_AT_ONCE)
    else:
        evidence = [each for each in evidence if each.seq > state.decided_through]
    return Snapshot(
        taken_at=now,
        rules_digest=cluster.rules_digest,
        ledger_head=state.head_seq,
        evidence_through=max((each.seq for each in evidence), default=state.decided_through),
        observations=tuple(each.observation for each in evidence),
        conditions=cluster.ledger.conditions(),
        nodes=tuple(sorted(nodes, key=lambda node: node.node)),
        jobs=tuple(sorted(merge_jobs(jobs, learned, now=now), key=lambda job: job.job)),
        telemetry=() if gpu_telemetry is None else gpu_telemetry.statuses,
        is_telemetry_available=gpu_telemetry is not None and any(each.gpus_seen for each in gpu_telemetry.statuses),
        incidents=state.incidents,
        incident_count=state.incident_count,
        records=state.records,
        is_paused=state.pause is not None,
        costs=learned.costs,
        owned=state.owned,
    )


# -- a node that falls silent while its plan waits for a job --


_RESTARTS = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.POWER_ON, Verb.REIMAGE})


def is_shared_silence(conditions: tuple[Observation, ...], state: LedgerState, policy: Policy) -> bool:
    """Return whether so many nodes are silent that it is no fault of each: a switch, a feed, or our own eyes.

    A node that a rollout has is silent because it restarts.
    """
    silent = {each.node for each in conditions if each.signal is Signal.NODE_UNREACHABLE}
    silent -= taken_nodes(state.owned, state.records).keys()
    wide = {node for each in state.incidents if each.suspect is not None or each.is_mass_event for node in each.nodes}
    return len(silent) >= policy.mass_event.min_node_count or bool(silent & wide)


def plan_anew_where_silent(cluster: Cluster) -> int:
    """Supersede the plans of nodes that fell silent by themselves, and return how many: the next plan fences them."""
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    acting = [each for each in state.incidents if _may_be_silent(each, state)]
    if not acting:
        return 0
    conditions = cluster.ledger.conditions()
    policy = cluster.rules.policy
    since = {each.node: each.observed_at for each in conditions if each.signal is Signal.NODE_UNREACHABLE}
    silent = [each for each in acting if each.nodes & since.keys()]
    if not silent or is_shared_silence(conditions, state, policy):
        return 0
    try:
        answering = {each.node for each in cluster.scheduler.read_nodes() if each.is_responding}
    except SourceError:
        return 0
    count = 0
    for incident in silent:
        (node,) = incident.nodes
        if node in answering or now - since[node] < policy.durations.confirm_unreachable_after:
            continue
        note = f"{node} fell silent while its jobs were left running: it is fenced"
        superseded = advance(incident, IncidentEvent.SUPERSEDED, at=now, note=note)
        cluster.ledger.change_incident(replace(superseded, response=Response.POWER_CYCLE), actor=AUTOPILOT, now=now)
        count += 1
    return count


def _may_be_silent(incident: Incident, state: LedgerState) -> bool:
    """Return whether a plan waits that would not cut the power, and has ordered nobody to restart."""
    if incident.state is not IncidentState.ACTING or incident.response not in REPAIRS or len(incident.nodes) != 1:
        return False
    if incident.response >= Response.POWER_CYCLE:
        return False
    return not any(
        record.action.verb in _RESTARTS and record.action.incident == incident.incident and record.plan == incident.plan
        for record in state.records
    )
