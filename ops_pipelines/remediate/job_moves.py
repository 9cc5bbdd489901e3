"""What a fault means for the jobs on its node, which are marked held, and how those that are moved are moved.

How soon a fault ends a job is the catalogue's, when a move costs least `timing`'s arithmetic, whether an act may be
started the guardrails'. A job is moved by reserve, hold, fence, exclude, unreserve, release, and in no other order.

At its silence limit the scheduler starts the jobs of a silent node elsewhere, while their processes may still write. A
mark costs nobody anything, so it is set at the first sight of a silence, before that is believed; the plan that moves
the job afterwards takes the mark over.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import MARKS, Action, ActionRecord, OutcomeKind, Urgency, Verb
from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import AT_ONCE, Finding, Hazard, Response
from ops_pipelines.core.identity import IncidentId, JobAttempt, JobId, NodeName, PciAddress, Topology
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import (
    CONDITION_SOURCES,
    DETECTOR_SOURCE,
    HISTORY_SOURCE,
    MAY_HAVE_PROCESSES,
    TELEMETRY_SOURCE,
    JobState,
    JobStatus,
    NodeState,
    NodeStatus,
    has_moved_on,
)
from ops_pipelines.core.plan import JobTiming, Moment
from ops_pipelines.core.policy import Policy
from ops_pipelines.remediate.guardrails.budgets import must_serve, serving_replicas
from ops_pipelines.remediate.guardrails.facts import (
    ClusterFacts,
    being_moved,
    is_cut_off,
    mark_of,
    open_marks,
    power_cut_at,
    returned_at,
)
from ops_pipelines.remediate.timing import choose_moment, hazard_of

_DEAD = Hazard(
    family=None,
    first_action=None,
    ends_job_per_hour=AT_ONCE,
    slowdown_ratio=0.0,
    source="a node that is silent gives no job a future",
)
_SOURCES_OF_METRICS = frozenset({TELEMETRY_SOURCE, DETECTOR_SOURCE})
_SOURCES_OF_NO_LOG = CONDITION_SOURCES | {HISTORY_SOURCE}


def is_silent(incident: Incident, nodes: Mapping[NodeName, NodeStatus]) -> bool:
    """Return whether an incident is about a node that does not answer.

    Before anything was tried, what calls for a power cycle is a silent node. Otherwise the scheduler is asked, too: a
    rung up the ladder says POWER_CYCLE of nodes that answer, and one that fell silent may stand above that rung.
    """
    if incident.response is Response.POWER_CYCLE and not incident.tries:
        return True
    is_cause = any(each.response is Response.POWER_CYCLE and not each.is_secondary for each in incident.findings)
    is_cycled = bool(incident.tries) and incident.response >= Response.POWER_CYCLE
    if not is_cause and not is_cycled:
        return False
    return any(name in nodes and not nodes[name].is_responding for name in incident.nodes)


def hazard_for(incident: Incident, facts: ClusterFacts, *, job: JobId | None = None) -> Hazard:
    """Return what the incident's fault does to a job that continues; without rates nothing is waited for.

    That one job hangs says nothing of another on the same node; `job` None: of whichever it is worst for.

    On a node that was returned only what was seen since then counts: what was repaired did nothing to the jobs that
    began there afterwards.
    """
    if not facts.hazards or is_silent(incident, facts.nodes):
        return _DEAD
    counting = _findings_that_count(incident, facts)
    return hazard_of([each for each in counting if not _is_of_another(each, job)], facts.hazards)


def _is_of_another(finding: Finding, job: JobId | None) -> bool:
    return finding.family is Family.STALL and job is not None and finding.job not in (None, job)


def _findings_that_count(incident: Incident, facts: ClusterFacts) -> tuple[Finding, ...]:
    since = returned_at(incident, facts.records)
    return tuple(each for each in incident.findings if _is_since(each, since))


def _is_since(finding: Finding, since: datetime | None) -> bool:
    return since is None or (finding.last_at or finding.found_at) > since


def has_surely_ended(job: JobStatus, incident: Incident, facts: ClusterFacts) -> bool:
    """Return whether a fault has ended a job's work: a silent node has, and a lost part if the job has all GPUs there.

    Which GPUs a job has is not known: one that has some of a node's may be on the others. A replica may be the last
    that serves: a line that somebody forged, or a series that an exporter lost, is no proof that it is dead.
    """
    if not hazard_for(incident, facts, job=job.job).has_ended_job:
        return False
    if is_cut_off(job, facts):
        return True
    seen = [each for each in _findings_that_count(incident, facts) if _may_have_hit(each, job)]
    if facts.hazards and not hazard_of(seen, facts.hazards).has_ended_job:
        return False
    if job.service and not _is_seen_by_two(seen, facts.hazards):
        return False
    known = [facts.nodes[name] for name in job.nodes if name in facts.nodes]
    return job.gpu_count >= sum(node.gpu_count for node in known)


def _may_have_hit(finding: Finding, job: JobStatus) -> bool:
    """Return whether a finding may be about the present attempt of a job.

    A part that is gone is gone for who starts there. What was logged before the attempt began has done nothing to
    it, and a hang that began before is another's, though the job has the same number.
    """
    if _is_of_another(finding, job.job):
        return False
    if job.started_at is None or (finding.is_lasting and finding.family is not Family.STALL):
        return True
    return (finding.last_at or finding.found_at) >= job.started_at


def _is_seen_by_two(findings: Sequence[Finding], hazards: Sequence[Hazard]) -> bool:
    """Return whether both the metrics and a log show a fault that ends jobs, each by itself."""
    by_metrics = [each for each in findings if _SOURCES_OF_METRICS & _sources_of(each)]
    by_log = [each for each in findings if _sources_of(each) - _SOURCES_OF_NO_LOG]
    return all(hazard_of(seen, hazards).has_ended_job for seen in (by_metrics, by_log))


def _sources_of(finding: Finding) -> frozenset[str]:
    return frozenset(each.source for each in finding.evidence)


_TRIED_AGAIN_AFTER = timedelta(minutes=10)
"""What the scheduler has refused it will refuse again in a moment; a job that stays held is a night's work lost."""
_RUNS = frozenset({JobState.RUNNING, JobState.SUSPENDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What is to be done about marks now."""

    to_set: tuple[Action, ...]
    to_lift: tuple[Action, ...]
    in_sight: tuple[ActionRecord, ...]
    """What must be known of standing marks for as long as they stand, with the tries to take them off."""


def find_marks(
    facts: ClusterFacts, *, silent_since: Mapping[NodeName, datetime], causes: Mapping[NodeName, IncidentId]
) -> Marks:
    """Return the marks that are lacking, and those whose jobs every node has answered for.

    `silent_since` are the nodes that are seen silent, `causes` the incident of each. One silence marks an attempt once:
    who releases it meanwhile has decided.
    """
    known = {(each.action.attempt, each.action.part) for each in facts.records if each.action.verb is Verb.MARK}
    to_set = []
    for job in sorted(facts.jobs.values(), key=lambda job: job.job):
        silent = sorted(
            (silent_since[name], name)
            for name in job.nodes
            if name in silent_since and name in causes and _is_silent(name, facts)
        )
        if not silent or job.state not in _RUNS or job.is_held or not job.is_requeueable or job.attempt is None:
            continue
        since, name = silent[0]
        part = since.isoformat()
        if (job.attempt, part) not in known:
            to_set.append(Action(verb=Verb.MARK, incident=causes[name], attempt=job.attempt, part=part))
    standing = standing_marks(facts.records, facts.jobs)
    names = {mark_of(mark) for mark in standing}
    in_sight = tuple(each for each in facts.records if each.action.verb in MARKS and mark_of(each) in names)
    ended_at: defaultdict[Hashable, list[datetime]] = defaultdict(list)
    for each in in_sight:
        if each.action.verb is Verb.UNMARK and each.outcome is not None:
            ended_at[mark_of(each)].append(each.outcome.finished_at)
    moved = being_moved(facts)
    cut_at = power_cut_at(facts.records)
    to_lift = [
        lift
        for mark in standing
        if mark.action.attempt not in moved and not _lacks_an_answer(mark, facts, cut_at)
        if (lift := _next_lift(mark, ended_at[mark_of(mark)], now=facts.taken_at)) is not None
    ]
    return Marks(to_set=tuple(to_set), to_lift=tuple(to_lift), in_sight=in_sight)


def _next_lift(mark: ActionRecord, ended_at: Sequence[datetime], *, now: datetime) -> Action | None:
    """Return the act that takes a mark off; where one came to nothing, another one after a while."""
    if ended_at and now - max(ended_at) < _TRIED_AGAIN_AFTER:
        return None
    incident, attempt, part = mark_of(mark)
    return Action(verb=Verb.UNMARK, incident=incident, attempt=attempt, part=part, try_number=1 + len(ended_at))


def standing_marks(records: Collection[ActionRecord], jobs: Mapping[JobId, JobStatus]) -> tuple[ActionRecord, ...]:
    """Return the marks of ours whose jobs are still held by them, oldest first."""
    return tuple(mark for mark in open_marks(records) if _stands(mark, jobs))


def nodes_in_doubt(facts: ClusterFacts) -> frozenset[NodeName]:
    """Return the silent nodes of marked jobs that the scheduler has given up: only their power switch can tell."""
    return frozenset(
        name
        for mark in standing_marks(facts.records, facts.jobs)
        if mark.action.attempt is not None and facts.jobs[mark.action.attempt.job].state is JobState.PENDING
        for name in mark.attempt_nodes
        if _is_silent(name, facts)
    )


def _stands(mark: ActionRecord, jobs: Mapping[JobId, JobStatus]) -> bool:
    attempt = mark.action.attempt
    job = None if attempt is None else jobs.get(attempt.job)
    if attempt is None or job is None or has_moved_on(job, attempt) or job.ended_at is not None:
        return False
    return job.is_held and not job.is_held_by_user


def _lacks_an_answer(mark: ActionRecord, facts: ClusterFacts, cut_at: Mapping[NodeName, datetime]) -> bool:
    """Return whether a node of the attempt is silent, has power, and has not lost it since the mark was set."""
    return any(
        _is_silent(name, facts)
        and name not in facts.without_power
        and (name not in cut_at or cut_at[name] < mark.begun_at)
        for name in mark.attempt_nodes
    )


def _is_silent(name: NodeName, facts: ClusterFacts) -> bool:
    return name not in facts.nodes or not facts.nodes[name].is_responding


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
        reason = "it died with its node, which is silent: it is held until no process of it is left, and starts again"
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
    """Return when the owner of the present attempt was first notified of trouble with it; None if not yet."""
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
    """Return an idle node on which the job could continue, the nearest; None if there is none.

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
    """Return the acts that let held jobs continue elsewhere: fence, exclude, hand over the spare nodes, release."""
    return [
        *(act.on_job(Verb.FENCE, move.attempt) for move in moves),
        *(act.off_node(move.attempt, node) for move in moves),
        *(act.on_job(Verb.UNRESERVE, move.attempt) for move in moves if move.spares),
        *(act.on_job(Verb.RELEASE, move.attempt) for move in moves),
    ]
