"""The fresh state that an act is judged on, and what follows from it: whose drain it is, who is out, what was started.

Facts only. Whether an act may be started on them is `guardrails`' business.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ops_pipelines.core.action import DRAIN_MARK, Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.finding import Hazard, Response
from ops_pipelines.core.identity import IncidentId, JobAttempt, JobId, NodeName, RolloutId, Topology, is_rollout
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import (
    MAY_HAVE_PROCESSES,
    JobState,
    JobStatus,
    NodeState,
    NodeStatus,
    Signal,
    has_moved_on,
)
from ops_pipelines.core.plan import RestartCosts
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.proof import Authority, Refusal
from ops_pipelines.remediate.timing import hazard_of

_DRAIN_SHOWS_WITHIN = timedelta(minutes=10)
"""A before-entry of a drain covers the time until the flag shows. Later the flag itself says whether the node is out,
so that an entry whose plan was superseded does not spend the budget for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """A known fault on one node that ends jobs: the scheduler may continue calling them running."""

    gpu_count: int | None
    """How many GPUs it took, and so how many jobs it may have ended at most; None: any number."""
    at: datetime | None
    """When it was last seen: what began later is not of it. None: it lasts."""
    is_silence: bool = False
    """Nothing is known of the node but that it did not answer: it may have been a cable, and the jobs may work on."""

    def may_have_hit(self, job: JobStatus) -> bool:
        """Return whether a job on the node had started when it was last seen."""
        return self.at is None or job.started_at is None or job.started_at <= self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The fresh state that an action is judged on."""

    nodes: Mapping[NodeName, NodeStatus]
    jobs: Mapping[JobId, JobStatus]
    records: tuple[ActionRecord, ...]
    """Actions without an outcome, of open incidents, and of the last day."""
    is_telemetry_available: bool
    is_paused: bool
    taken_at: datetime
    costs: RestartCosts = RestartCosts()
    """How long an interruption takes here, as far as it was measured."""
    hazards: tuple[Hazard, ...] = ()
    stricken: Mapping[NodeName, tuple[Blow, ...]] = field(default_factory=dict)
    """Nodes with known faults that end jobs: what is reported to run there may do nothing any more."""
    owned: Mapping[NodeName, RolloutId] = field(default_factory=dict)
    """Nodes that a rollout has in hand, or is about to take."""
    in_trouble: Mapping[NodeName, IncidentId] = field(default_factory=dict)
    """Nodes of open incidents that call for more than watching, each with the oldest of them."""
    without_power: frozenset[NodeName] = frozenset()
    """Silent nodes whose power switch reads off; asked only of nodes that marked jobs wait for."""
    in_begun_waves: frozenset[NodeName] = frozenset()
    """Nodes of waves that open rollouts have started: that such a node is last choice is most likely their doing."""
    _standing: "list[_Standing]" = field(default_factory=list, repr=False, compare=False)
    """At most one; handed on by `replace`, so that a storm's many judgements on the same nodes compute it once."""
    _tally: "list[_Tally]" = field(default_factory=list, init=False, repr=False, compare=False)
    """At most one; of these records alone."""

    @property
    def nodes_not_serving(self) -> frozenset[NodeName]:
        """The nodes that take no work by their own state."""
        return self._stand().not_serving

    def nodes_in(self, partition: str) -> frozenset[NodeName]:
        """Return the nodes of a partition, as the scheduler lists them."""
        return self._stand().by_partition.get(partition, frozenset())

    @property
    def unwitnessed_drains(self) -> Sequence[ActionRecord]:
        """The drains that were started and are not over."""
        return self._count().unwitnessed_drains

    def begun_by_repairs(self, verbs: Iterable[Verb], *, within: timedelta) -> Sequence[ActionRecord]:
        """Return what incidents, or people, began with these verbs within a time: rollouts answer no fault."""
        since, by_verb = self.taken_at - within, self._count().of_repairs
        return [record for verb in verbs for record in by_verb.get(verb, ()) if record.begun_at > since]

    def _count(self) -> "_Tally":
        if not self._tally:
            self._tally.append(_tally_of(self.records))
        return self._tally[0]

    def _stand(self) -> "_Standing":
        if not self._standing or self._standing[0].nodes is not self.nodes:
            self._standing[:] = [_standing_of(self.nodes)]
        return self._standing[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """What follows from the state of the nodes alone."""

    nodes: Mapping[NodeName, NodeStatus]
    not_serving: frozenset[NodeName]
    by_partition: Mapping[str, frozenset[NodeName]]


def _standing_of(nodes: Mapping[NodeName, NodeStatus]) -> _Standing:
    members: dict[str, set[NodeName]] = {}
    for name, node in nodes.items():
        for partition in node.partitions:
            members.setdefault(partition, set()).add(name)
    return _Standing(
        nodes=nodes,
        not_serving=frozenset(
            name
            for name, node in nodes.items()
            if node.is_drained or node.state is NodeState.DOWN or not node.is_responding
        ),
        by_partition={partition: frozenset(names) for partition, names in members.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tally:
    """The records as the rules ask for them: several rules of one judgement, of a thousand records in a storm."""

    unwitnessed_drains: Sequence[ActionRecord]
    of_repairs: Mapping[Verb, Sequence[ActionRecord]]


def _tally_of(records: Sequence[ActionRecord]) -> _Tally:
    of_repairs: defaultdict[Verb, list[ActionRecord]] = defaultdict(list)
    for record in records:
        if not is_rollout(record.action.incident):
            of_repairs[record.action.verb].append(record)
    return _Tally(
        unwitnessed_drains=[each for each in records if each.outcome is None and each.action.verb is Verb.DRAIN],
        of_repairs=of_repairs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One act, and everything that it is judged on."""

    action: Action
    facts: ClusterFacts
    policy: Policy
    topology: Topology
    authority: Authority
    origin: frozenset[NodeName] = frozenset()
    """The nodes for whose sake a job is moved, as far as the act itself does not name them."""

    @property
    def node(self) -> NodeStatus:
        """The node that the act is on; only for verbs that have one."""
        assert self.action.node is not None  # Action refuses a node verb without a node
        return self.facts.nodes[self.action.node]

    @property
    def job(self) -> JobStatus:
        """The job that the act is on; only for verbs that have one."""
        assert self.action.attempt is not None  # Action refuses a job verb without an attempt
        return self.facts.jobs[self.action.attempt.job]


Rule = Callable[[Case], Refusal | None]
"""Returns why an act must not be started, or None."""


def stricken_nodes(
    incidents: Iterable[Incident], records: Collection[ActionRecord], hazards: Sequence[Hazard]
) -> Mapping[NodeName, tuple[Blow, ...]]:
    """Return the nodes on which the faults of open incidents end jobs, as `ClusterFacts.stricken` holds them.

    On a node that was returned only what was seen since then counts.
    """
    found: dict[NodeName, tuple[Blow, ...]] = {}
    resumed = [record for record in records if record.action.verb is Verb.RESUME]
    for incident in incidents:
        since = returned_at(incident, resumed)
        own = [each for each in incident.findings if since is None or (each.last_at or each.found_at) > since]
        if not incident.is_open or not own or not hazard_of(own, hazards).has_ended_job:
            continue
        fatal = [each for each in own if hazard_of([each], hazards).has_ended_job] or own
        gpus = {each.gpu for each in fatal}
        blow = Blow(
            gpu_count=None if None in gpus else len(gpus),
            at=None if any(each.is_lasting for each in fatal) else max(each.last_at or each.found_at for each in fatal),
            is_silence=all(told.signal is Signal.NODE_UNREACHABLE for each in fatal for told in each.evidence),
        )
        for name in incident.nodes:
            found[name] = (*found.get(name, ()), blow)
    return found


def nodes_in_trouble(incidents: Iterable[Incident]) -> Mapping[NodeName, IncidentId]:
    """Return the nodes of open incidents as `ClusterFacts.in_trouble` holds them."""
    found: dict[NodeName, IncidentId] = {}
    for incident in incidents:
        if incident.is_open and incident.response is not Response.MONITOR:
            for name in incident.nodes:
                found.setdefault(name, incident.incident)
    return found


def returned_at(incident: Incident, records: Collection[ActionRecord]) -> datetime | None:
    """Return when the incident's node was last put back into service; None if it was not."""
    times = [
        record.begun_at
        for record in records
        if record.action.verb is Verb.RESUME
        and record.action.incident == incident.incident
        and (record.outcome is None or record.outcome.kind is OutcomeKind.DONE)
    ]
    return max(times, default=incident.returned_at)


def drain_reason(incident: IncidentId, why: str) -> str:
    """Return the reason written on a drained node: our token first, readable, one line, 200 characters at most."""
    words = " ".join(why.split())
    return f"{DRAIN_MARK} {incident}: {words}"[:200]


def is_drain_of(incident: IncidentId, node: NodeStatus, records: tuple[ActionRecord, ...]) -> bool:
    """Return whether this very incident holds the node's present drain: it alone may repair and return the node.

    A node that a person drained through us, or that another incident holds, is as foreign as anybody else's.
    """
    return drain_owner(node, records) == incident


_DATE_A_DRAIN = frozenset({Verb.DRAIN, Verb.DECLARE_DOWN, Verb.REBOOT})


def drain_owner(node: NodeStatus, records: tuple[ActionRecord, ...]) -> IncidentId | None:
    """Return the incident of ours that holds the node's present drain; None if the drain is foreign, or there is none.

    Ours means: its reason carries the token of an incident that drained it, and where the scheduler gave a time
    with our witness, that time is still the same. Everything else is foreign: never overwritten, never resumed.
    """
    if not node.is_drained or node.reason is None:
        return None
    for record in records:
        # Declaring a node down, or having Slurm reboot it, rewrites the reason and dates it again; the drain stays
        # ours.
        if record.action.verb not in _DATE_A_DRAIN or record.action.node != node.node:
            continue
        if not node.reason.startswith(f"{DRAIN_MARK} {record.action.incident}:"):
            continue
        outcome = record.outcome
        if outcome is None or (
            (outcome.witnessed_at is None or node.reason_set_at is None) and record.action.verb is not Verb.REBOOT
        ):
            return record.action.incident
        if outcome.witnessed_at is not None and outcome.witnessed_at == node.reason_set_at:
            return record.action.incident
    return None


def nodes_out_of_service(facts: ClusterFacts, topology: Topology) -> frozenset[NodeName]:
    """Return the declared nodes that take no work, no matter why, and those whose drain was just started."""
    out = set(facts.nodes_not_serving & topology.places.keys())
    for record in facts.unwitnessed_drains:
        if record.action.node is not None and facts.taken_at - record.begun_at <= _DRAIN_SHOWS_WITHIN:
            out.add(record.action.node)
    return frozenset(out)


def jobs_on(name: NodeName, facts: ClusterFacts) -> tuple[JobStatus, ...]:
    """Return the jobs that may have processes on a node, by their ids."""
    found = (job for job in facts.jobs.values() if name in job.nodes and job.state in MAY_HAVE_PROCESSES)
    return tuple(sorted(found, key=lambda job: job.job))


def held_and_not_released(incident: IncidentId, facts: ClusterFacts) -> tuple[ActionRecord, ...]:
    """Return the holds that an incident has started and not undone: jobs that it owes their release."""
    ours = [record for record in facts.records if record.action.incident == incident]
    released = {
        record.action.attempt
        for record in ours
        if record.action.verb is Verb.RELEASE and record.outcome is not None and record.outcome.kind is OutcomeKind.DONE
    }
    return tuple(
        record
        for record in ours
        if record.action.verb is Verb.HOLD
        and record.action.attempt not in released
        # What had lost its object, such as a job that ended by itself, was never held by us.
        and record.may_have_taken_effect
    )


def open_marks(records: Collection[ActionRecord]) -> tuple[ActionRecord, ...]:
    """Return the marks that were started and not taken off; whether their jobs are still held is not asked."""
    lifted = {
        mark_of(record)
        for record in records
        if record.action.verb is Verb.UNMARK and record.outcome is not None and record.outcome.kind is OutcomeKind.DONE
    }
    return tuple(
        record
        for record in records
        if record.action.verb is Verb.MARK and mark_of(record) not in lifted and record.may_have_taken_effect
    )


def mark_of(record: ActionRecord) -> tuple[IncidentId, JobAttempt | None, str]:
    """Return what a mark, and what takes it off, have in common."""
    return record.action.incident, record.action.attempt, record.action.part


def mark_on(attempt: JobAttempt | None, records: Collection[ActionRecord]) -> ActionRecord | None:
    """Return the newest mark of ours on an attempt that was not taken off; None if there is none."""
    return next((each for each in reversed(open_marks(records)) if each.action.attempt == attempt), None)


def being_moved(facts: ClusterFacts) -> frozenset[JobAttempt | None]:
    """Return the attempts that a plan holds, and so releases: a mark on one is not ours to take off any more."""
    incidents = {each.action.incident for each in facts.records if each.action.verb is Verb.HOLD}
    return frozenset(hold.action.attempt for each in incidents for hold in held_and_not_released(each, facts))


def power_cut_at(records: Collection[ActionRecord]) -> dict[NodeName, datetime]:
    """Return when the power of each node was last witnessed off, for whatever incident: it ends every process."""
    cut_at: dict[NodeName, datetime] = {}
    for record in records:
        node, outcome = record.action.node, record.outcome
        if record.action.verb is Verb.POWER_OFF and record.took_effect and node is not None and outcome is not None:
            cut_at[node] = max(outcome.finished_at, cut_at.get(node, outcome.finished_at))
    return cut_at


def still_waits(hold: ActionRecord, facts: ClusterFacts) -> bool:
    """Return whether a held job waits for its release; what was cancelled, or continued without us, does not."""
    attempt = hold.action.attempt
    job = None if attempt is None else facts.jobs.get(attempt.job)
    if attempt is None or job is None or has_moved_on(job, attempt):
        return False
    if job.state is JobState.PENDING:
        return job.is_held
    return job.state in MAY_HAVE_PROCESSES and not (job.state is JobState.COMPLETING and job.ended_at is not None)


def is_holding(incident: IncidentId, attempt: JobAttempt | None, facts: ClusterFacts) -> bool:
    """Return whether an incident has a hold of its own on an attempt: what others hold is theirs to release."""
    return any(record.action.attempt == attempt for record in held_and_not_released(incident, facts))


def is_cut_off(job: JobStatus, facts: ClusterFacts) -> bool:
    """Return whether a node of the job is silent: the job has ended as a whole, or will when the node is given up."""
    return any(name in facts.nodes and not facts.nodes[name].is_responding for name in job.nodes)


def has_died_with_its_node(case: Case) -> bool:
    """Return whether a hold is of what a silent node has ended: it ends nothing, it keeps a second copy from starting.

    Both are asked: that the plan knew the fault to have ended it, and that a node of it is still silent.
    """
    return case.action.has_ended and is_cut_off(case.job, case.facts)


def is_taken_by_its_fault(action: Action, job: JobStatus, facts: ClusterFacts) -> bool:
    """Return whether a hold takes nothing away because the fault has: the plan knew it so, and it shows even now.

    A node that answers again shows otherwise where silence was all that was known of it, unless it has booted since
    the attempt began: a suspended process may carry out minutes later what was true when it was planned.
    """
    if not action.has_ended or is_cut_off(job, facts):
        return action.has_ended
    booted = [facts.nodes[name].booted_at for name in job.nodes if name in facts.nodes]
    if job.started_at is not None and any(at is not None and at > job.started_at for at in booted):
        return True
    blows = (blow for name in job.nodes for blow in facts.stricken.get(name, ()))
    return any(not blow.is_silence and blow.may_have_hit(job) for blow in blows)


def is_done(
    facts: ClusterFacts,
    *,
    verb: Verb,
    incident: IncidentId,
    node: NodeName | None = None,
    attempt: JobAttempt | None = None,
) -> bool:
    """Return whether an incident's act was witnessed; on any node or attempt where none is named.

    What had lost its object was not done: a node that answered again has not lost its power.
    """
    return any(
        record.action.verb is verb
        and record.action.incident == incident
        and (node is None or record.action.node == node)
        and (attempt is None or record.action.attempt == attempt)
        and record.took_effect
        for record in facts.records
    )


def is_begun(facts: ClusterFacts, *, verb: Verb, incident: IncidentId, node: NodeName) -> bool:
    """Return whether an incident has a before-entry of this act on this node."""
    return any(
        record.action.verb is verb and record.action.incident == incident and record.action.node == node
        for record in facts.records
    )


def expected_loss(job: JobStatus, facts: ClusterFacts) -> float | None:
    """Return the GPU-hours that ending the job's attempt now throws away: recomputed work, and GPUs that stand idle.

    None where the age of its newest checkpoint is not known: that is no small loss, and no large one.
    """
    if job.checkpointed_at is None:
        return None
    # What an attempt has not done it cannot lose: one that just began from an old checkpoint has little to lose.
    began_at = job.checkpointed_at if job.started_at is None else max(job.checkpointed_at, job.started_at)
    recomputed_seconds = max(0.0, (facts.taken_at - began_at).total_seconds())
    idle_seconds = facts.costs.restart_seconds + facts.costs.queue_seconds
    return (recomputed_seconds + idle_seconds) * job.gpu_count / 3600
