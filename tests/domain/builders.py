"""Small values of the domain with sensible defaults: a test names only what it is about.

Everything hangs on one instant, `NOW`; times are given in seconds from it. No test data of a port belongs here.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.fault import AtFault, Family, FirstAction
from ops_pipelines.core.finding import Catalogue, CodeRule, Finding
from ops_pipelines.core.identity import (
    Digest,
    GpuUuid,
    IncidentId,
    JobAttempt,
    JobId,
    NodeName,
    PciAddress,
    Place,
    PlanId,
    Topology,
)
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import (
    GpuInspection,
    JobState,
    JobStatus,
    NodeInspection,
    NodeState,
    NodeStatus,
    Observation,
    RecoveryAction,
    Signal,
    TelemetryStatus,
    Workload,
)
from ops_pipelines.core.plan import Rules, Snapshot
from ops_pipelines.core.policy import Mode, Policy
from ops_pipelines.diagnose.hypothesis import response_of
from ops_pipelines.diagnose.incidents import World
from ops_pipelines.observe.rules import find
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, drain_reason

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
NODE = NodeName("gpu001")
OTHER_NODE = NodeName("gpu002")
GPU = PciAddress("0000:1b:00")
OTHER_GPU = PciAddress("0000:43:00")
INCIDENT = IncidentId("INC-0001")
NODES_PER_RACK = 4
GPUS_PER_NODE = 8

CATALOGUE = Catalogue(
    xids={
        code: CodeRule(
            code=code,
            mnemonic=f"MNEMONIC_{code}",
            meaning="as the catalogue says",
            at_fault=AtFault.APPLICATION if first is FirstAction.FIX_APP else AtFault.GPU,
            family=Family.APPLICATION if first is FirstAction.FIX_APP else Family.GPU,
            first_action=first,
            source="test",
        )
        for code, first in {
            13: FirstAction.FIX_APP,
            31: FirstAction.FIX_APP,
            43: FirstAction.MONITOR,
            48: FirstAction.RESET_GPU,
            54: FirstAction.DRAIN_INSPECT,
            79: FirstAction.REBOOT_NODE,
            95: FirstAction.RESET_GPU,
        }.items()
    }
)


def after(seconds: float) -> datetime:
    """Return the instant `seconds` after NOW."""
    return NOW + timedelta(seconds=seconds)


def ago(seconds: float) -> datetime:
    """Return the instant `seconds` before NOW."""
    return NOW - timedelta(seconds=seconds)


def node_names(count: int) -> tuple[NodeName, ...]:
    return tuple(NodeName(f"gpu{number:03d}") for number in range(1, count + 1))


def topology(node_count: int = 40) -> Topology:
    """Return `node_count` nodes gpu001..., four to a rack, two racks to a leaf switch."""
    return Topology(
        places={
            name: Place(
                rack=f"r{index // NODES_PER_RACK:02d}",
                nvlink_domain=name,
                leaf_switch=f"s{index // (2 * NODES_PER_RACK)}",
            )
            for index, name in enumerate(node_names(node_count))
        },
        gpus_per_node=GPUS_PER_NODE,
    )


def policy(mode: Mode = Mode.AUTO, **changes: Any) -> Policy:
    return replace(Policy(mode=mode), **changes)


def rules(policy_: Policy | None = None, *, node_count: int = 40) -> Rules:
    return Rules(policy=policy_ or policy(), topology=topology(node_count), catalogue=CATALOGUE)


def node(name: str = NODE, **changes: Any) -> NodeStatus:
    """Return an idle node in service."""
    return replace(
        NodeStatus(
            node=NodeName(name),
            state=NodeState.IDLE,
            is_drained=False,
            is_responding=True,
            reason=None,
            reason_set_at=None,
            booted_at=ago(86_400),
            gpu_count=GPUS_PER_NODE,
            gpu_in_use_count=0,
        ),
        **changes,
    )


def our_node(name: str = NODE, *, incident: str = INCIDENT, **changes: Any) -> NodeStatus:
    """Return a node that carries the drain of one of our incidents, set at NOW."""
    reason = drain_reason(IncidentId(incident), "Xid 79")
    return node(name, **{"is_drained": True, "reason": reason, "reason_set_at": NOW, **changes})


def foreign_node(name: str = NODE, **changes: Any) -> NodeStatus:
    """Return a node that somebody else drained."""
    return node(
        name, **{"is_drained": True, "reason": "night-shift: new cables", "reason_set_at": ago(3600), **changes}
    )


def job(name: str = "42", *, nodes: Iterable[str] = (NODE,), **changes: Any) -> JobStatus:
    """Return a running, requeueable job of 8 GPUs that began an hour ago and saved its state a minute ago."""
    return replace(
        JobStatus(
            job=JobId(name),
            state=JobState.RUNNING,
            is_held=False,
            is_requeueable=True,
            name="train",
            user="ada",
            account="research",
            workload=Workload.TRAINING,
            nodes=frozenset(NodeName(each) for each in nodes),
            gpu_count=8,
            started_at=ago(3600),
            ended_at=None,
            restart_count=0,
            excluded_nodes=frozenset(),
            checkpointed_at=ago(60),
        ),
        **changes,
    )


def held_job(name: str = "42", **changes: Any) -> JobStatus:
    """Return a job that was requeued and is held: as Slurm shows it, its start is gone."""
    return job(name, **{"nodes": (), "state": JobState.PENDING, "is_held": True, "started_at": None, **changes})


def attempt(name: str = "42", *, started_at: datetime | None = None) -> JobAttempt:
    """Return the attempt of `job(name)`."""
    return JobAttempt(job=JobId(name), started_at=started_at or ago(3600))


def observation(
    signal: Signal = Signal.XID,
    *,
    node: str = NODE,
    seconds_ago: float = 0.0,
    code: int | None = None,
    gpu: PciAddress | None = None,
    position: str | None = None,
    source: str = "kernel_log",
) -> Observation:
    return Observation(
        signal=signal,
        node=NodeName(node),
        observed_at=ago(seconds_ago),
        source=source,
        position=position or f"{signal.value}/{node}/{gpu}/{code}@{seconds_ago}",
        code=code,
        gpu=gpu,
        text=f"{signal.value} {code} on {node}",
    )


def xid(
    code: int = 79, *, node: str = NODE, seconds_ago: float = 0.0, gpu: PciAddress = GPU, position: str | None = None
) -> Finding:
    """Return the finding of a logged Xid."""
    return find(observation(code=code, node=node, seconds_ago=seconds_ago, gpu=gpu, position=position), CATALOGUE)


def verdict(code: int, *, node: str = NODE, seconds_ago: float = 0.0, gpu: PciAddress = GPU) -> Finding:
    """Return the finding of the driver's own recovery action."""
    return find(observation(Signal.RECOVERY_ACTION, code=code, node=node, seconds_ago=seconds_ago, gpu=gpu), CATALOGUE)


def unreachable(*, node: str = NODE, seconds_ago: float = 0.0) -> Finding:
    return find(observation(Signal.NODE_UNREACHABLE, node=node, seconds_ago=seconds_ago, source="scheduler"), CATALOGUE)


def gpu_missing(*, node: str = NODE, seconds_ago: float = 0.0) -> Finding:
    return find(
        observation(Signal.GPU_MISSING, node=node, seconds_ago=seconds_ago, code=1, source="telemetry"), CATALOGUE
    )


def telemetry_stale(*, node: str = NODE, seconds_ago: float = 0.0) -> Finding:
    return find(observation(Signal.TELEMETRY_STALE, node=node, seconds_ago=seconds_ago, source="telemetry"), CATALOGUE)


def incident(*findings: Finding, name: str = INCIDENT, **changes: Any) -> Incident:
    """Return an open incident on the nodes of its findings; without findings it is Xid 79 on gpu001."""
    rests_on = findings or (xid(79),)
    return replace(
        Incident(
            incident=IncidentId(name),
            state=IncidentState.OPEN,
            response=response_of(rests_on),
            nodes=frozenset(finding.node for finding in rests_on),
            gpus=frozenset(finding.gpu for finding in rests_on if finding.gpu is not None),
            victims=frozenset(),
            findings=rests_on,
            opened_at=min(finding.found_at for finding in rests_on),
            changed_at=max(finding.found_at for finding in rests_on),
            note=rests_on[0].explanation,
        ),
        **changes,
    )


def conditions_of(*findings: Finding) -> tuple[Observation, ...]:
    """Return the lasting conditions among the evidence, as present now."""
    return tuple(each for finding in findings if finding.is_lasting for each in finding.evidence)


def world(
    *,
    jobs: Collection[JobStatus] = (),
    conditions: Collection[Observation] = (),
    incident_count: int = 0,
    now: datetime = NOW,
    policy_: Policy | None = None,
    node_count: int = 40,
    returned: frozenset[IncidentId] = frozenset(),
    told: frozenset[JobAttempt] = frozenset(),
) -> World:
    return World(
        returned=returned,
        told=told,
        jobs=jobs,
        conditions=conditions,
        topology=topology(node_count),
        mass_event=(policy_ or policy()).mass_event,
        waiting_limit=(policy_ or policy()).durations.waiting_limit,
        incident_count=incident_count,
        now=now,
    )


def action(
    verb: Verb,
    *,
    on: str | None = None,
    of: JobAttempt | None = None,
    gpu: PciAddress | None = None,
    incident: str = INCIDENT,
    text: str = "",
    try_number: int = 1,
) -> Action:
    return Action(
        verb=verb,
        incident=IncidentId(incident),
        node=None if on is None else NodeName(on),
        attempt=of,
        gpu=gpu,
        text=text,
        suite="quick" if verb is Verb.CHECK else "",
        spares=(OTHER_NODE,) if verb is Verb.RESERVE else (),
        part="0 forward" if verb in (Verb.INSTALL, Verb.RELOAD_DRIVER) else "",
        try_number=try_number,
    )


def begun(what: Action, *, seconds_ago: float = 0.0, **changes: Any) -> ActionRecord:
    """Return the before-entry of an action."""
    return replace(ActionRecord(action=what, plan=PlanId("PLAN-1"), begun_at=ago(seconds_ago)), **changes)


def ended(
    what: Action,
    kind: OutcomeKind = OutcomeKind.DONE,
    *,
    seconds_ago: float = 0.0,
    witnessed_at: datetime | None = None,
    **changes: Any,
) -> ActionRecord:
    """Return an action with its outcome."""
    outcome = Outcome(kind=kind, witness="seen", finished_at=ago(seconds_ago), witnessed_at=witnessed_at)
    return begun(what, seconds_ago=seconds_ago, outcome=outcome, **changes)


def our_drain(on: str = NODE, *, incident: str = INCIDENT, seconds_ago: float = 0.0) -> ActionRecord:
    """Return the witnessed drain that fits `our_node(on)`."""
    return ended(action(Verb.DRAIN, on=on, incident=incident), seconds_ago=seconds_ago, witnessed_at=NOW)


def facts(
    *,
    nodes: Iterable[NodeStatus] | None = None,
    jobs: Iterable[JobStatus] = (),
    records: Iterable[ActionRecord] = (),
    node_count: int = 40,
    **changes: Any,
) -> ClusterFacts:
    """Return fresh facts: the given nodes, and all others of the topology idle and in service."""
    every = {name: node(name) for name in node_names(node_count)} | {each.node: each for each in nodes or ()}
    return replace(
        ClusterFacts(
            nodes=every,
            jobs={each.job: each for each in jobs},
            records=tuple(records),
            is_telemetry_available=True,
            is_paused=False,
            taken_at=NOW,
        ),
        **changes,
    )


def snapshot(
    *observations: Observation,
    nodes: Iterable[NodeStatus] = (),
    jobs: Iterable[JobStatus] = (),
    node_count: int = 40,
    **changes: Any,
) -> Snapshot:
    """Return a snapshot: the given nodes, all others idle; what was observed is not yet decided on."""
    every: Mapping[NodeName, NodeStatus] = {name: node(name) for name in node_names(node_count)} | {
        each.node: each for each in nodes
    }
    defaults = Snapshot(
        taken_at=NOW,
        rules_digest=Digest("0" * 64),
        ledger_head=0,
        evidence_through=len(observations),
        observations=observations,
        conditions=(),
        nodes=tuple(every[name] for name in sorted(every)),
        jobs=tuple(jobs),
        telemetry=(),
        is_telemetry_available=True,
        incidents=(),
        incident_count=0,
        records=(),
        is_paused=False,
    )
    return replace(defaults, **changes)


def gpu_inspection(gpu: PciAddress = GPU, **changes: Any) -> GpuInspection:
    return replace(
        GpuInspection(
            gpu=gpu,
            gpu_uuid=GpuUuid(f"GPU-{gpu}"),
            recovery_action=RecoveryAction.NONE,
            uncorrectable_ecc_count=0,
            is_row_remap_pending=False,
        ),
        **changes,
    )


def gpu_addresses(count: int = GPUS_PER_NODE) -> tuple[PciAddress, ...]:
    return tuple(PciAddress(f"0000:{0x1B + index:02x}:00") for index in range(count))


def inspection(node: str = NODE, **changes: Any) -> NodeInspection:
    """Return the clean bill of a node with all its GPUs."""
    return replace(
        NodeInspection(
            node=NodeName(node),
            inspected_at=NOW,
            boot_id="boot-after",
            booted_at=ago(400),
            gpus=tuple(gpu_inspection(gpu) for gpu in gpu_addresses()),
            failures=(),
        ),
        **changes,
    )


def telemetry(node: str = NODE, *, seconds_ago: float = 0.0, gpu_count: int = GPUS_PER_NODE) -> TelemetryStatus:
    return TelemetryStatus(
        node=NodeName(node), newest_sample_at=ago(seconds_ago), gpus_seen=frozenset(gpu_addresses(gpu_count))
    )
