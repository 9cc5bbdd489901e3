"""The production decision in simulated time: what it knows, what it decides, and the state that its acts leave behind.

Nothing here decides: `remediate.decide.decide` does, on a snapshot that holds only what evidence and schedulers would
have shown. Acts succeed; how long they take is drawn by who plays the run.

What the decision code sees of a simulated fault is the observation behind a verdict, and nothing else: a verdict names
the finding that it rested on, and here is the observation that `core.finding.find` makes that finding of. A rule that
no observation leads to is an error of the tables, found when they are read.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.finding import Catalogue
from ops_pipelines.core.identity import Digest, IncidentId, JobId, NodeName, PciAddress, Place, Topology
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.observation import (
    CONDITION_SOURCES,
    DETECTOR_SOURCE,
    NO_NODE,
    SCHEDULER_SOURCE,
    TELEMETRY_SOURCE,
    Checkpointing,
    JobState,
    JobStatus,
    NodeState,
    NodeStatus,
    Observation,
    RecoveryAction,
    Signal,
    Workload,
)
from ops_pipelines.core.plan import IncidentPlan, RestartCosts, Rules, Snapshot
from ops_pipelines.observe.rules import find
from ops_pipelines.remediate.decide import Decision, decide

JOB = JobId("1")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Second 0 of every run. Any date would do."""
_MEMORY = timedelta(hours=24)
_NODES_PER_RACK, _NODES_PER_LEAF = 4, 32
_NO_DIGEST = Digest("0" * 64)


def cluster_of(node_count: int, *, gpus_per_node: int) -> Topology:
    """Return a cluster of racks of 4 and leaf switches of 32 nodes."""
    return Topology(
        places={
            NodeName(f"node{number:05}"): Place(
                rack=f"r{number // _NODES_PER_RACK:04}",
                nvlink_domain=f"node{number:05}",
                leaf_switch=f"s{number // _NODES_PER_LEAF:03}",
            )
            for number in range(node_count)
        },
        gpus_per_node=gpus_per_node,
    )


@dataclass(slots=True, kw_only=True)
class Autopilot:
    """One cluster as the autopilot sees it, and what it remembers."""

    rules: Rules
    costs: RestartCosts
    checkpoint_every: timedelta
    nodes: dict[NodeName, NodeStatus]
    job_nodes: frozenset[NodeName]
    gpus_per_node: int
    job_started_at: datetime = EPOCH
    checkpointed_at: datetime | None = None
    incidents: dict[IncidentId, Incident] = field(default_factory=dict)
    seen: set[IncidentId] = field(default_factory=set)
    """Every incident that there ever was."""
    records: deque[ActionRecord] = field(default_factory=deque)
    conditions: dict[str, Observation] = field(default_factory=dict)
    evidence_count: int = 0

    def decide(self, observations: Sequence[Observation], *, now: datetime) -> Decision:
        """Take evidence in, decide, and keep what became of the incidents."""
        for each in observations:
            self.evidence_count += 1
            if each.source in CONDITION_SOURCES:
                self.conditions[each.position] = each
        while self.records and self.records[0].begun_at < now - _MEMORY:
            self.records.popleft()
        decision = decide(self._snapshot(observations, now=now), self.rules)
        for incident in decision.incidents:
            self.seen.add(incident.incident)
            self._keep(incident)
        return decision

    def begin(self, plan: IncidentPlan, *, now: datetime) -> None:
        """The incident of a plan is being acted on."""
        self._advance(plan.incident, IncidentEvent.PLAN_BEGUN, now=now)

    def note(self, action: Action, plan: IncidentPlan, *, begun_at: datetime, ended_at: datetime) -> None:
        """Keep one act that was done, with the state that it leaves behind."""
        self.records.append(
            ActionRecord(
                action=action,
                plan=plan.plan,
                begun_at=begun_at,
                outcome=Outcome(kind=OutcomeKind.DONE, witness="simulated", finished_at=ended_at),
                gpu_count=len(self.job_nodes) * self.gpus_per_node if action.verb is Verb.HOLD else 0,
                checkpointed_at=self.checkpointed_at if action.verb is Verb.HOLD else None,
            )
        )
        if action.verb is Verb.DRAIN and action.node is not None:
            self.nodes[action.node] = replace(
                self.nodes[action.node], is_drained=True, reason=action.text, reason_set_at=begun_at
            )

    def end(self, incident: IncidentId, event: IncidentEvent, *, now: datetime) -> None:
        """Let an incident take an event; one that is final is forgotten."""
        self._advance(incident, event, now=now)

    def set_responding(self, node: NodeName, *, is_responding: bool) -> None:
        """The scheduler gets an answer from a node, or none any more."""
        self.nodes[node] = replace(self.nodes[node], is_responding=is_responding)

    def leave(self, node: NodeName) -> None:
        """A node is no longer the job's."""
        self.job_nodes -= {node}
        self.nodes[node] = replace(self.nodes[node], state=NodeState.IDLE, gpu_in_use_count=0)

    def join(self, node: NodeName) -> None:
        """A spare becomes the job's."""
        self.job_nodes |= {node}
        self.nodes[node] = replace(self.nodes[node], state=NodeState.ALLOCATED, gpu_in_use_count=self.gpus_per_node)

    def drained(self) -> frozenset[NodeName]:
        """Return the job's nodes that get no new work: a job that starts again starts without them."""
        return frozenset(name for name in self.job_nodes if self.nodes[name].is_drained)

    def return_node(self, node: NodeName, *, now: datetime) -> None:
        """A node is as good as new: it is back in service, and nothing is seen to be wrong with it any more."""
        self.nodes[node] = replace(
            self.nodes[node],
            is_drained=False,
            is_responding=True,
            state=NodeState.IDLE,
            reason=None,
            reason_set_at=None,
        )
        self.forget(node, now=now)

    def forget(self, node: NodeName, *, now: datetime) -> None:
        """A person has seen to what was wrong with a node: its conditions and incidents are over."""
        self._settle(
            [name for name, each in self.conditions.items() if each.node == node],
            [each for each in self.incidents.values() if node in each.nodes],
            now=now,
        )

    def settle_job(self, *, now: datetime) -> None:
        """The job continues: what was seen of it as a whole is over, and so is every hang."""
        self._settle(
            [name for name, each in self.conditions.items() if each.node == NO_NODE or each.signal is Signal.JOB_HUNG],
            [each for each in self.incidents.values() if not each.nodes],
            now=now,
        )

    def _settle(self, positions: Iterable[str], incidents: Iterable[Incident], *, now: datetime) -> None:
        for position in positions:
            del self.conditions[position]
        for incident in incidents:
            closed = replace(incident, state=IncidentState.ESCALATED)
            self._keep(advance(closed, IncidentEvent.CLEARED, at=now, note="seen to"))

    def _advance(self, name: IncidentId, event: IncidentEvent, *, now: datetime) -> None:
        self._keep(advance(self.incidents[name], event, at=now, note=event.value))

    def _keep(self, incident: Incident) -> None:
        if incident.is_open:
            self.incidents[incident.incident] = incident
        else:
            self.incidents.pop(incident.incident, None)

    def job(self) -> JobStatus:
        """Return what the scheduler reports of the job; whether its processes live, it does not know."""
        return JobStatus(
            job=JOB,
            state=JobState.RUNNING,
            is_held=False,
            is_requeueable=True,
            name="training",
            user="owner",
            account="research",
            workload=Workload.TRAINING,
            nodes=self.job_nodes,
            gpu_count=len(self.job_nodes) * self.gpus_per_node,
            started_at=self.job_started_at,
            ended_at=None,
            restart_count=0,
            excluded_nodes=frozenset(),
            checkpointed_at=self.checkpointed_at,
            checkpointing=Checkpointing.YES,
            checkpoint_every=self.checkpoint_every,
        )

    def _snapshot(self, observations: Iterable[Observation], *, now: datetime) -> Snapshot:
        return Snapshot(
            taken_at=now,
            rules_digest=_NO_DIGEST,
            ledger_head=self.evidence_count,
            evidence_through=self.evidence_count,
            observations=tuple(observations),
            conditions=tuple(self.conditions.values()),
            nodes=tuple(self.nodes.values()),
            jobs=(self.job(),),
            telemetry=(),
            is_telemetry_available=True,
            incidents=tuple(self.incidents.values()),
            incident_count=len(self.seen),
            records=tuple(self.records),
            is_paused=False,
            costs=self.costs,
        )


def new_autopilot(
    rules: Rules, *, job_node_count: int, restart_seconds: float, queue_seconds: float, checkpoint_seconds: float
) -> Autopilot:
    """Return an autopilot over a healthy cluster whose first nodes one job holds; the rest are spares."""
    names = list(rules.topology.places)
    held = frozenset(names[:job_node_count])
    gpus = rules.topology.gpus_per_node
    return Autopilot(
        rules=rules,
        costs=RestartCosts(
            restart_seconds=restart_seconds, queue_seconds=queue_seconds, no_room_queue_seconds=queue_seconds * 5
        ),
        checkpoint_every=timedelta(seconds=checkpoint_seconds),
        nodes={
            name: NodeStatus(
                node=name,
                state=NodeState.ALLOCATED if name in held else NodeState.IDLE,
                is_drained=False,
                is_responding=True,
                reason=None,
                reason_set_at=None,
                booted_at=EPOCH - timedelta(days=1),
                gpu_count=gpus,
                gpu_in_use_count=gpus if name in held else 0,
            )
            for name in names
        },
        job_nodes=held,
        gpus_per_node=gpus,
    )


GPU = PciAddress("0000:1b:00")
"""The GPU of every simulated fault: which of a node's it is changes nothing."""
_LOG_SOURCE = "kernel_log"
_CODED: Mapping[str, Signal] = {"xid": Signal.XID, "sxid": Signal.SXID}
_SAMPLED: Mapping[Signal, int] = {
    Signal.RECOVERY_ACTION: RecoveryAction.REBOOT_NODE.value,
    Signal.ECC_UNCORRECTABLE: 1,
    Signal.GPU_MISSING: 1,
}
_OF_GPUS = frozenset(
    {
        Signal.RECOVERY_ACTION,
        Signal.ECC_UNCORRECTABLE,
        Signal.ROW_REMAP,
        Signal.ECC_RATE,
        Signal.NVLINK_ERRORS,
        Signal.PCIE_ERRORS,
        Signal.PCIE_DEGRADED,
        Signal.GPU_HOT,
        Signal.GPU_CAPPED,
        Signal.GPU_SLOW,
    }
)
_OF_JOBS = frozenset({Signal.JOB_CRASH_LOOP, Signal.LOSS_NOT_FINITE, Signal.LOSS_SPIKE})


def observe(
    rule: str, *, node: NodeName, job: JobId, at: datetime, number: int, code: int | None = None
) -> Observation:
    """Return the observation of which the finding `rule` is made; `number` makes it another than all before.

    `node` is NO_NODE where the program is blamed; `code` is the state of what has one. Raises ValueError for a rule
    that is neither a code, a signal nor a signature.
    """
    kind, _, coded = rule.partition("_")
    position = f"{rule}#{number}"
    if kind in _CODED and coded.isdecimal():
        return Observation(
            signal=_CODED[kind], node=node, observed_at=at, source=_LOG_SOURCE, position=position, code=int(coded),
            gpu=GPU if kind == "xid" else None, job=job,
        )  # fmt: skip
    try:
        signal = Signal(rule)
    except ValueError:
        return Observation(
            signal=Signal.LOG_SIGNATURE, node=node, observed_at=at, source=_LOG_SOURCE, position=position,
            signature=rule, job=job,
        )  # fmt: skip
    if signal is Signal.NODE_UNREACHABLE:
        return Observation(signal=signal, node=node, observed_at=at, source=SCHEDULER_SOURCE, position=position, code=1)
    source = TELEMETRY_SOURCE if signal in _SAMPLED else DETECTOR_SOURCE
    return Observation(
        signal=signal, node=NO_NODE if signal in _OF_JOBS else node, observed_at=at, source=source, position=position,
        code=_SAMPLED.get(signal, 1) if code is None else code, gpu=GPU if signal in _OF_GPUS else None,
        text=rule, job=job, value=1.0,
    )  # fmt: skip


def refuse_unknown(rules: frozenset[str], catalogue: Catalogue, *, at: datetime) -> None:
    """Raise ValueError for rules that no observation leads to: the tables and the catalogue have drifted apart."""
    lost = sorted(
        rule
        for rule in rules
        if find(observe(rule, node=NodeName("n"), job=JobId("1"), at=at, number=0), catalogue).rule != rule
    )
    if lost:
        raise ValueError(
            f"no observation leads to {', '.join(lost)}; expected the rules of today's catalogue. Measure again with "
            "`python -m bench.diagnosis --write`"
        )
