"""How the jobs on a broken node are moved: when each, to which spare nodes, and the acts in their order.

When is `timing`'s arithmetic, fed here with what is known of the job; what the fault does to it is `job_fate`'s, and
whether an act may be begun is `guardrails`'.
A job is moved by reserve, hold, fence, exclude, unreserve, release, and in no other order.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.core.action import Action, OutcomeKind, Urgency, Verb
from ops_pipelines.core.finding import Hazard
from ops_pipelines.core.identity import JobAttempt, JobId, NodeName, PciAddress, Topology
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobState, JobStatus, NodeState
from ops_pipelines.core.plan import JobTiming, Moment
from ops_pipelines.core.policy import Policy
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, is_cut_off
from ops_pipelines.remediate.guardrails.job_limits import must_serve, serving_replicas
from ops_pipelines.remediate.job_fate import has_surely_ended, hazard_for
from ops_pipelines.remediate.timing import choose_moment

MOVED = frozenset({Moment.NOW, Moment.NEXT_CHECKPOINT, Moment.AFTER_NOTICE})
"""Moments at which a job is moved; at the others it stays, and the repair waits until it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One job that is moved."""

    attempt: JobAttempt
    moment: Moment
    is_held: bool
    """By an earlier plan: it is owed its release."""
    spares: tuple[NodeName, ...]
    has_ended: bool = False
    """Whether the fault has ended its work already."""
    service: str = ""


def is_leaving(job: JobStatus) -> bool:
    """Return whether a job ends or was requeued by somebody already: there is nothing to hold, only to wait for."""
    return job.state is JobState.COMPLETING and (job.attempt is None or job.ended_at is not None)


def time_jobs(
    incident: Incident,
    jobs: Sequence[JobStatus],
    facts: ClusterFacts,
    *,
    policy: Policy,
    topology: Topology,
) -> tuple[JobTiming, ...]:
    """Return for each job with an attempt that is not leaving when it is interrupted, in the order of `jobs`."""
    hazards = {job.job: hazard_for(incident, facts, job=job.job) for job in jobs}
    return tuple(
        _on_silent_node(
            choose_moment(
                job,
                hazard=hazards[job.job],
                costs=facts.costs,
                has_room=find_spare(job, facts, policy=policy, topology=topology) is not None,
                limits=policy.recovery,
                moved_count=count_moves(job, facts, policy=policy),
                # A replica that the fault has ended serves nobody: moving it takes nothing away.
                is_still_serving=has_surely_ended(job, incident, facts) or is_still_serving(job, facts, policy=policy),
                noticed_at=noticed_at(job, facts),
                now=facts.taken_at,
            ),
            job,
            hazards[job.job],
            facts,
        )
        for job in jobs
        if job.attempt is not None and not is_leaving(job) and job.state is not JobState.UNKNOWN
    )


def _on_silent_node(timing: JobTiming, job: JobStatus, hazard: Hazard, facts: ClusterFacts) -> JobTiming:
    """Return the timing without what a silent node makes vain: time to save, and sparing a job that died with it.

    The scheduler starts such a job again by itself, once it gives the node up: held, it starts after the fence.
    """
    if not is_cut_off(job, facts):
        return timing
    if timing.moment is Moment.AFTER_NOTICE:
        return replace(
            timing, moment=Moment.NOW, until=None, reason="its node is silent: nobody can save there any more"
        )
    if timing.moment is Moment.NEVER and job.is_requeueable and hazard.has_ended_job:
        reason = "it died with its node, which is silent: it is held until no process of it is left, and starts anew"
        return replace(timing, moment=Moment.NOW, until=None, reason=reason)
    return timing


def count_moves(job: JobStatus, facts: ClusterFacts, *, policy: Policy) -> int:
    """Return how many earlier attempts of a job we held within the requeue window."""
    since = facts.taken_at - policy.recovery.requeue_window
    held = {
        record.action.attempt
        for record in facts.records
        if record.action.verb is Verb.HOLD
        and record.action.attempt is not None
        and record.action.attempt.job == job.job
        and record.begun_at > since
    }
    return len(held - {job.attempt})


def noticed_at(job: JobStatus, facts: ClusterFacts) -> datetime | None:
    """Return when the owner of the present attempt was first told of trouble with it; None if not yet."""
    times = [
        record.outcome.finished_at
        for record in facts.records
        if record.action.verb is Verb.NOTIFY_OWNER
        and record.action.attempt == job.attempt
        and record.outcome is not None
        and record.outcome.kind is OutcomeKind.DONE
    ]
    return min(times, default=None)


def is_still_serving(job: JobStatus, facts: ClusterFacts, *, policy: Policy) -> bool:
    """Return whether a service keeps the replicas that it needs when this one is taken away; True of what is none."""
    if not job.service:
        return True
    serving = serving_replicas(job, facts)
    others = [each for each in serving if each.job != job.job]
    return len(others) == len(serving) or len(others) >= must_serve(job, facts, policy=policy)


def share_spares(
    jobs: Sequence[JobStatus],
    timings: Sequence[JobTiming],
    facts: ClusterFacts,
    *,
    policy: Policy,
    topology: Topology,
) -> Mapping[JobId, tuple[NodeName, ...]]:
    """Return for each job that is moved the node to be kept free for it, each node once; without room it has none.

    One node a job: its other nodes are free again when it has ended, and cannot be kept before.
    """
    moved = {timing.attempt for timing in timings if timing.moment in MOVED}
    spares: dict[JobId, tuple[NodeName, ...]] = {}
    for job in jobs:
        taken = frozenset(name for names in spares.values() for name in names)
        found = find_spare(job, facts, policy=policy, topology=topology, but=taken)
        if job.attempt in moved and found is not None:
            spares[job.job] = (found,)
    return spares


def find_spare(
    job: JobStatus,
    facts: ClusterFacts,
    *,
    policy: Policy,
    topology: Topology,
    but: frozenset[NodeName] = frozenset(),
) -> NodeName | None:
    """Return an idle node on which the job could go on, the nearest; None if there is none.

    A node on probation is no spare: a job that was just hit is not put there by us.
    """
    busy = {name for each in facts.jobs.values() if each.state in MAY_HAVE_PROCESSES for name in each.nodes}
    closed = policy.untouchable_nodes | job.excluded_nodes | job.nodes | _promised(facts) | but | busy
    gpus_per_node = job.gpu_count / max(1, len(job.nodes))
    leaves = {topology.places[name].leaf_switch for name in job.nodes if topology.knows(name)}
    free = [
        name
        for name, node in facts.nodes.items()
        if node.state is NodeState.IDLE
        and name not in closed
        and topology.knows(name)
        and node.is_responding
        and not node.is_drained
        and not node.is_last_choice
        and node.reserved_as is None
        and node.gpu_in_use_count == 0
        and node.gpu_count >= gpus_per_node
        and (not job.partition or not node.partitions or job.partition in node.partitions)
    ]
    return min(free, key=lambda name: (topology.places[name].leaf_switch not in leaves, name), default=None)


def _promised(facts: ClusterFacts) -> frozenset[NodeName]:
    """Return the nodes that a reservation under way is about to keep free for another job."""
    return frozenset(
        name
        for record in facts.records
        if record.action.verb is Verb.RESERVE and record.outcome is None
        for name in record.action.spares
    )


class ActionMaker:
    """Makes actions of one incident and one try."""

    def __init__(self, incident: Incident) -> None:
        self._incident = incident.incident
        self._try_number = incident.plan_count + 1

    def on_node(self, verb: Verb, node: NodeName, text: str = "") -> Action:
        return Action(verb=verb, incident=self._incident, node=node, text=text, try_number=self._try_number)

    def on_gpu(self, node: NodeName, gpu: PciAddress) -> Action:
        return Action(verb=Verb.RESET_GPU, incident=self._incident, node=node, gpu=gpu, try_number=self._try_number)

    def on_job(self, verb: Verb, attempt: JobAttempt, text: str = "") -> Action:
        return Action(verb=verb, incident=self._incident, attempt=attempt, text=text, try_number=self._try_number)

    def hold(self, move: "Move") -> Action:
        return replace(self.on_job(Verb.HOLD, move.attempt), has_ended=move.has_ended)

    def reserve(self, attempt: JobAttempt, spares: tuple[NodeName, ...]) -> Action:
        return Action(
            verb=Verb.RESERVE, incident=self._incident, attempt=attempt, spares=spares, try_number=self._try_number
        )

    def off_node(self, attempt: JobAttempt, node: NodeName) -> Action:
        return Action(
            verb=Verb.EXCLUDE, incident=self._incident, attempt=attempt, node=node, try_number=self._try_number
        )

    def page(self, text: str) -> Action:
        return Action(verb=Verb.PAGE_HUMAN, incident=self._incident, text=text, try_number=self._try_number)

    def tell(self, text: str) -> Action:
        """Return a page that wakes nobody."""
        return replace(self.page(text), urgency=Urgency.WHEN_READ)


def take_off(act: ActionMaker, moves: Collection[Move]) -> list[Action]:
    """Return the acts that end the attempts: spare nodes first, then the holds."""
    reserves = [act.reserve(move.attempt, move.spares) for move in moves if move.spares]
    return [*reserves, *(act.hold(move) for move in moves if not move.is_held)]


def let_go_on(act: ActionMaker, moves: Collection[Move], node: NodeName) -> list[Action]:
    """Return the acts that let held jobs go on elsewhere: fence, exclude, hand over the spare nodes, release."""
    return [
        *(act.on_job(Verb.FENCE, move.attempt) for move in moves),
        *(act.off_node(move.attempt, node) for move in moves),
        *(act.on_job(Verb.UNRESERVE, move.attempt) for move in moves if move.spares),
        *(act.on_job(Verb.RELEASE, move.attempt) for move in moves),
    ]
