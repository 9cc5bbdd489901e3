"""What is due: whether a run is worth starting now, and the key under which it is started once; whether the moment has
come to interrupt a job whose plan waits, and which act waits for an approval.

Pure, so that sensors hold no judgement of their own. A run that ended without an outcome is started again, at growing
distances, under a raised launch number.

A plan that has not started waits with its first act; one that continues by itself up to a point, such as a drain that
needs nobody and a reboot that does, waits half-way. The moment was chosen by `remediate.timing` when the plan was made;
the executor asks before each hold, the sensor so that a run starts within seconds of the checkpoint.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import MESSAGES, SOFT, Action, ActionRecord, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerState
from ops_pipelines.core.finding import REPAIRS
from ops_pipelines.core.identity import JobAttempt, NodeName, digest_of
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, NodeStatus, Observation, Workload, seen_by_ourselves
from ops_pipelines.core.plan import IncidentPlan, JobTiming, Moment
from ops_pipelines.core.policy import ActionClass, Consent, Durations, Mode, Policy
from ops_pipelines.core.proof import Authority, Refusal
from ops_pipelines.core.sources import SourceError
from ops_pipelines.diagnose.correlate import WATCHED, is_clearing_due, is_renewal_due
from ops_pipelines.remediate.gate import first_act
from ops_pipelines.remediate.guardrails.consents import needs_yes, taken_nodes
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
from ops_pipelines.remediate.job_moves import hazard_for, is_leaving, noticed_at, time_jobs
from ops_pipelines.remediate.judgement import CHEAP, authority_of, read_facts
from ops_pipelines.remediate.planning import plan_remediation
from ops_pipelines.remediate.timing import is_moment
from ops_pipelines.remediate.verbs import BOOT_TIME_JITTER
from ops_pipelines.remediate.verification import repair_finished_at

_RETRY_AT_MOST = timedelta(minutes=5)
_SETTLES = timedelta(seconds=5)
"""So long after its repair a node's tests begin: the scheduler reaches it then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A run worth starting: its key, and why."""

    run_key: str
    reason: str
    evidence_after: int | None = None
    """The run reports evidence above this; None if it is not about evidence."""


def due_remediation(
    state: LedgerState,
    conditions: Collection[Observation],
    *,
    recorded_through: int,
    retry_after: timedelta,
    now: datetime,
    rules_changed_at: datetime | None = None,
) -> Due | None:
    """Return the remediation run that is due, None if there is nothing to do.

    Evidence above `recorded_through` (for which no run was requested yet) is due at once, whether or not the reflex
    has decided on it, and so is the closing of an incident whose conditions are gone; a run that failed to see to it
    is repeated after `retry_after`. An incident that waits (for confirmation, budget, an approval, a
    witness) is looked at again after `retry_after`, then after twice that, and so on up to every 5 minutes; any
    change of it starts the count again. What was left waiting under other rules than now hold, since
    `rules_changed_at`, is looked at at once, and then as if it had just come. One run covers every incident, so one key
    is enough.
    """
    turn = int(now.timestamp() / retry_after.total_seconds())
    seen_through = min(recorded_through, state.decided_through)
    if state.evidence_head > seen_through:
        return Due(
            run_key=f"observe:{seen_through}-{state.evidence_head}:{turn}",
            reason=f"{state.evidence_head - seen_through} new observations",
            evidence_after=seen_through,
        )
    for incident in state.incidents:
        key = f"{incident.incident}:{state.last_change_seq.get(incident.incident, 0)}:{turn}"
        is_unanswered = incident.state in (IncidentState.OPEN, IncidentState.ESCALATED)
        if is_unanswered and is_clearing_due(incident, conditions, now=now):
            return Due(run_key=f"clear:{key}", reason=f"the conditions of {incident.incident} are gone")
        if is_renewal_due(incident, now=now):
            return Due(run_key=f"renew:{key}", reason=f"nodes of {incident.incident} broke again")
    candidates = []
    for incident in state.incidents:
        if incident.state not in (IncidentState.OPEN, IncidentState.ACTING) or _is_only_watched(incident, now=now):
            continue
        touched_at = last_touched_at(incident, state)
        since = touched_at if rules_changed_at is None else max(touched_at, rules_changed_at)
        launch_number = _launch_number(now - since, retry_after)
        if launch_number > 0 or since > touched_at:
            seq = state.last_change_seq.get(incident.incident, 0)
            # A key is remembered for good, and those of the count before may have been used up.
            under = f":{since:%Y%m%d%H%M%S}" if since > touched_at else ""
            candidates.append((seq, incident.incident, launch_number, under))
    if not candidates:
        return None
    seq, name, launch_number, under = max(candidates)
    why = "is asked again under changed rules" if under else "waits for its next step"
    return Due(run_key=f"remediate:{name}:{seq}:{launch_number}{under}", reason=f"{name} {why}")


def due_takeover(state: LedgerState, *, epoch: int, now: datetime) -> Due | None:
    """Return the run with which a new holder of the lease continues what its predecessor left; None if nothing is.

    Due at once, however short a time ago a pass was made: that pass may have ended in its middle.
    """
    left = [
        incident.incident
        for incident in state.incidents
        if incident.state in (IncidentState.OPEN, IncidentState.ACTING) and not _is_only_watched(incident, now=now)
    ]
    if not left:
        return None
    more = "" if len(left) == 1 else f" and {len(left) - 1} more"
    return Due(run_key=f"takeover:{epoch}", reason=f"the lease is new here: {left[0]}{more} may be half-way")


def under_epoch(due: Due, epoch: int) -> Due:
    """Return what is due under a key of this epoch: a key is started once, and may have been for who is gone."""
    return replace(due, run_key=f"{due.run_key}@{epoch}")


def epoch_of_key(run_key: str) -> int | None:
    """Return the epoch of a key; None if it has none."""
    epoch = run_key.rpartition("@")[2]
    return int(epoch) if epoch.isdecimal() and "@" in run_key else None


def _is_only_watched(incident: Incident, *, now: datetime) -> bool:
    """Return whether there is nothing to do about an incident but to wait for more, or to forget it in time."""
    return incident.is_watched and now - incident.last_seen_at <= WATCHED


def due_verification(
    state: LedgerState,
    nodes: Sequence[NodeStatus],
    conditions: Collection[Observation] = (),
    *,
    durations: Durations,
    retry_after: timedelta,
    now: datetime,
) -> Due | None:
    """Return the verification run that is due: a drained node of ours is back from its repair and has been quiet.

    A node that was ordered to restart is noticed by a boot time later than before. A node on probation is due when that
    is over, or when something that would end it badly has lasted; a job that was moved, at growing distances, until it
    is seen to continue.
    """
    look = _Look(
        state=state,
        nodes={node.node: node for node in nodes},
        conditions=conditions,
        durations=durations,
        retry_after=retry_after,
        now=now,
    )
    taken = taken_nodes(state.owned, state.records)
    found = [look.due_of(incident) for incident in state.incidents if not incident.nodes & taken.keys()]
    return due_together([due for due in found if due is not None], also="so is")


def due_together(found: Sequence[Due], *, also: str) -> Due | None:
    """Return the one run that sees to all of them; None if nothing is due.

    A key that stays the same for minutes must not hide what becomes due meanwhile.
    """
    if len(found) < 2:
        return found[0] if found else None
    keys = digest_of(*sorted(due.run_key for due in found))[:12]
    return Due(run_key=f"{found[0].run_key}+{keys}", reason=f"{found[0].reason}; {also} {len(found) - 1} more")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What is known when it is asked which node is to be looked at."""

    state: LedgerState
    nodes: Mapping[NodeName, NodeStatus]
    conditions: Collection[Observation]
    durations: Durations
    retry_after: timedelta
    now: datetime

    def due_of(self, incident: Incident) -> Due | None:
        names = ", ".join(sorted(incident.nodes))
        match incident.state:
            case IncidentState.VERIFYING:
                return self._due_to_verify(incident, names)
            case IncidentState.PROBATION:
                return self._due_on_probation(incident, names)
            case IncidentState.IN_REPAIR | IncidentState.ESCALATED:
                return self._due_to_follow(incident, since=incident.changed_at)
            case IncidentState.ACTING if _is_back(incident, self.state, self.nodes):
                since = self.now - last_touched_at(incident, self.state)
                return self._due("verify", incident, since, f"{names} is back from its restart")
        return None

    def _due(self, kind: str, incident: Incident, elapsed: timedelta, reason: str) -> Due:
        seq = self.state.last_change_seq.get(incident.incident, 0)
        number = _launch_number(elapsed, self.retry_after)
        return Due(run_key=f"{kind}:{incident.incident}:{seq}:{number}", reason=reason)

    def _due_to_verify(self, incident: Incident, names: str) -> Due | None:
        records = tuple(record for record in self.state.records if record.action.incident == incident.incident)
        quiet_for = self.now - repair_finished_at(incident, records)
        soaked_for = quiet_for - self.durations.soak
        if soaked_for >= timedelta(0):
            return self._due("verify", incident, soaked_for, f"{names} is repaired and has been quiet long enough")
        is_tested = any(
            each.action.verb is Verb.CHECK and each.action.try_number == incident.plan_count for each in records
        )
        if is_tested or quiet_for < _SETTLES:
            return None
        return self._due("test", incident, quiet_for - _SETTLES, f"{names} is repaired: its tests begin")

    def _due_on_probation(self, incident: Incident, names: str) -> Due | None:
        assert incident.returned_at is not None  # what is on probation was returned
        watched_for = self.now - incident.returned_at
        if watched_for >= self.durations.probation:
            over_for = watched_for - self.durations.probation
            return self._due("probation", incident, over_for, f"the probation of {names} is over")
        confirm = max(self.durations.confirm_unreachable_after, self.durations.confirm_gpu_missing_after)
        lasting = [
            self.now - each.observed_at - confirm
            for each in seen_by_ourselves(self.conditions)
            if each.node in incident.nodes and each.observed_at > incident.returned_at
        ]
        if lasting and max(lasting) >= timedelta(0):
            return self._due("relapse", incident, max(lasting), f"{names} shows trouble on probation")
        is_forgotten = any(each in self.nodes and not self.nodes[each].is_last_choice for each in incident.nodes)
        if is_forgotten and _launch_number(watched_for, self.retry_after) > 0:
            return self._due("mark", incident, watched_for, f"{names} is no last choice any more")
        return self._due_to_follow(incident, since=incident.returned_at)

    def _due_to_follow(self, incident: Incident, *, since: datetime) -> Due | None:
        is_open = any(each.progressed_at is None and not each.ended_as for each in incident.recoveries)
        if not is_open or _launch_number(self.now - since, self.retry_after) == 0:
            return None
        reason = f"a job that {incident.incident} moved is not yet seen to continue"
        return self._due("follow", incident, self.now - since, reason)


def last_touched_at(incident: Incident, state: LedgerState) -> datetime:
    """Return when an incident, or one of its actions, last changed."""
    times = [incident.changed_at]
    for record in state.records:
        if record.action.incident == incident.incident:
            times += [record.begun_at]
            times += [record.outcome.finished_at] if record.outcome is not None else []
    return max(times)


def _is_back(incident: Incident, state: LedgerState, nodes: Mapping[NodeName, NodeStatus]) -> bool:
    for record in state.records:
        if record.action.incident != incident.incident or record.outcome is not None:
            continue
        if record.action.verb not in (Verb.REBOOT, Verb.POWER_ON) or record.action.node is None:
            continue
        node = nodes.get(record.action.node)
        if node is None or not node.is_responding or node.booted_at is None:
            continue
        # Boot times come in whole seconds: compare with what was read before, or with the second of the command.
        before = record.booted_before
        since = record.begun_at.replace(microsecond=0) if before is None else before + BOOT_TIME_JITTER
        if node.booted_at > since:
            return True
    return False


def _launch_number(elapsed: timedelta, retry_after: timedelta) -> int:
    """Return 0 before the first retry is due, then 1, 2, 3... at 1, 2, 4... times `retry_after`, 5 min apart."""
    turns = elapsed / retry_after
    if turns < 1:
        return 0
    doublings = int(math.log2(turns))
    longest = max(1, int(math.log2(max(1.0, _RETRY_AT_MOST / retry_after))))
    if doublings <= longest:
        return doublings + 1
    beyond = elapsed - retry_after * 2**longest
    return longest + 1 + int(beyond / _RETRY_AT_MOST)


_ONLY_LETS_GO = frozenset({Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE, Verb.DECLARE_DOWN, Verb.POWER_ON})
"""Verbs that finish what was started, and need no approval of their own once it was."""


def waits_for_yes(plan: IncidentPlan, state: LedgerState, policy: Policy) -> bool:
    """Return whether a plan that has not started waits with its first act for approval that nobody has given."""
    return needs_yes(first_act(plan), policy, among=plan.actions) and _is_unanswered(plan, state, policy)


def will_wait_for_yes(plan: IncidentPlan, state: LedgerState, policy: Policy) -> bool:
    """Return whether any act of a plan is started only on approval that nobody has given, now or further on."""
    needed = any(needs_yes(each, policy, among=plan.actions) for each in plan.actions)
    return needed and _is_unanswered(plan, state, policy)


def _is_unanswered(plan: IncidentPlan, state: LedgerState, policy: Policy) -> bool:
    if policy.mode is Mode.OBSERVE:
        return False
    return authority_of(plan.plan, state, policy, actor=AUTOPILOT) is Authority.AUTOPILOT


def awaited_act(incident: Incident, plan: IncidentPlan, state: LedgerState, policy: Policy) -> Action | None:
    """Return the next act of the plan in force, if it is started only on approval that nobody has given; None
    otherwise.

    `plan` is the one that the incident names. Other guardrails may hold the same act back as well.
    """
    if incident.plan != plan.plan or not _is_unanswered(plan, state, policy):
        return None
    left = _acts_left(incident, plan, state, policy)
    return next((each for each in left if needs_yes(each, policy, among=plan.actions)), None)


def acts_of_return(incident: Incident, records: Sequence[ActionRecord], policy: Policy) -> tuple[Action, ...]:
    """Return what is still to be started before a repaired node is back: its tests, its mark, its return.

    Which tests is not known here: `suite` says any. Without probation nothing is marked; where tests are forbidden
    none is waited for.
    """
    if incident.state is not IncidentState.VERIFYING or len(incident.nodes) != 1:
        return ()
    (node,) = incident.nodes
    number = incident.plan_count
    begun = {each.action.verb for each in records if _is_of_try(each.action, incident)}
    check = Action(verb=Verb.CHECK, incident=incident.incident, node=node, suite="any", try_number=number)
    acts = [check, *(replace(check, verb=verb, suite="") for verb in (Verb.PUT_LAST, Verb.RESUME))]
    needless = {Verb.PUT_LAST} if policy.durations.probation <= timedelta(0) else set()
    if policy.consent_to(ActionClass.CHECK) is Consent.FORBID:
        needless.add(Verb.CHECK)
    return tuple(each for each in acts if each.verb not in begun | needless)


def _is_of_try(action: Action, incident: Incident) -> bool:
    return action.incident == incident.incident and action.try_number == incident.plan_count


def _acts_left(incident: Incident, plan: IncidentPlan, state: LedgerState, policy: Policy) -> Sequence[Action]:
    """Return the next act of the plan, as far as the ledger shows; of a repaired node the acts of its return."""
    if incident.state is not IncidentState.ACTING:
        return acts_of_return(incident, state.records, policy)
    begun = {each.action.key for each in state.records}
    acts = [each for each in plan.actions if each.verb not in MESSAGES | SOFT | _ONLY_LETS_GO]
    # What was passed over had lost its object: a plan continues in its order.
    passed = max((number for number, each in enumerate(acts, start=1) if each.key in begun), default=0)
    return acts[passed : passed + 1]


_WAITED_FOR = frozenset({Moment.NEXT_CHECKPOINT, Moment.AFTER_NOTICE})
_LEFT_RUNNING = frozenset({Moment.JOB_END, Moment.NEVER})


def why_it_waits(plan: IncidentPlan, incident: Incident, attempt: JobAttempt, facts: ClusterFacts) -> str | None:
    """Return what a job is left running for before it is held; None if its moment has come, or it waits for none.

    A fault that turns worse meanwhile ends the waiting, but for who was given time to save. A checkpoint counts if
    it was completed after the plan began.
    """
    timing = next((each for each in plan.timings if each.attempt == attempt), None)
    if timing is None or timing.moment not in _WAITED_FOR or is_begun(plan, attempt, facts.records):
        return None
    is_dead = hazard_for(incident, facts).has_ended_job
    if is_dead and timing.moment is Moment.NEXT_CHECKPOINT:
        return None
    job = facts.jobs.get(attempt.job)
    if job is not None and (job.state not in MAY_HAVE_PROCESSES or is_leaving(job)):
        return None  # It ends by itself: there is nothing to hold any more.
    told_at = None if job is None else noticed_at(job, facts)
    if is_moment(_anchored(timing, plan, incident, facts), job, noticed_at=told_at, now=facts.taken_at):
        return None
    until = "" if timing.until is None else f", until {timing.until:%H:%M:%S} UTC at the latest"
    what = "its next checkpoint" if timing.moment is Moment.NEXT_CHECKPOINT else "its owner to save"
    return f"moment: job {attempt.job} waits for {what}{until}"


def why_untold(plan: IncidentPlan, attempt: JobAttempt, facts: ClusterFacts) -> str | None:
    """Return that an owner's time to save is over and was never given: no channel took the notice. None if it was.

    The hold continues waiting, for nobody could save; that nobody was notified has no end of its own, and is
    somebody's.
    """
    timing = next((each for each in plan.timings if each.attempt == attempt), None)
    if timing is None or timing.moment is not Moment.AFTER_NOTICE or timing.until is None:
        return None
    job = facts.jobs.get(attempt.job)
    if facts.taken_at < timing.until or job is None or noticed_at(job, facts) is not None:
        return None
    return f"moment: the owner of job {attempt.job} was not notified to save, for no channel has taken the notice"


def is_begun(plan: IncidentPlan, attempt: JobAttempt, records: Collection[ActionRecord]) -> bool:
    """Return whether the attempt's move was started: what has started is not postponed again."""
    return any(
        record.plan == plan.plan
        and record.action.attempt == attempt
        and record.action.verb in (Verb.RESERVE, Verb.HOLD)
        for record in records
    )


def _anchored(timing: JobTiming, plan: IncidentPlan, incident: Incident, facts: ClusterFacts) -> JobTiming:
    begun = (record.begun_at for record in facts.records if record.plan == plan.plan)
    begun_at = min(begun, default=incident.changed_at)
    known = timing.checkpointed_at
    return replace(timing, checkpointed_at=begun_at if known is None else max(begun_at, known))


def calls_for_a_move(plan: IncidentPlan, incident: Incident, cluster: Cluster) -> bool:
    """Return whether a job that was to stay should be moved by now: the fault has turned worse, or others serve.

    What has ended keeps its nodes in the queue for some minutes, and what is held needs no other plan: a new plan
    would hold neither, and be superseded in its turn. Raises SourceError if the scheduler does not list its jobs.
    """
    if plan.response not in REPAIRS or not plan.timings or len(incident.nodes) != 1:
        return False
    held = {action.attempt for action in plan.actions if action.verb is Verb.HOLD}
    (node,) = incident.nodes
    facts = read_facts(CHEAP, cluster)
    is_deadly = hazard_for(incident, facts).has_ended_job
    jobs = [
        each
        for each in facts.jobs.values()
        if node in each.nodes
        and each.attempt not in held
        and each.state in MAY_HAVE_PROCESSES
        and not each.is_held
        and not is_leaving(each)
        # A replica stays only until others serve: it does not end by itself.
        and (is_deadly or each.workload is Workload.INFERENCE)
    ]
    rules = cluster.rules
    timings = time_jobs(incident, jobs, facts, policy=rules.policy, topology=rules.topology)
    due = {each.attempt for each in timings if each.moment is Moment.NOW}
    if not due:
        return False
    # What a limit of a whole plan forbids is left running by every new plan, too.
    planned = plan_remediation(incident, facts, policy=rules.policy, topology=rules.topology)
    if isinstance(planned, Refusal):
        return False
    return any(action.verb is Verb.HOLD and action.attempt in due for action in planned.actions)


def waiting_moment(incident: Incident, cluster: Cluster) -> str | None:
    """Return what the plan in force waits for: the moment of a job that it moves, or the end of one that it leaves.

    None if it waits for neither, or if that cannot be read.
    """
    plan = None if incident.plan is None else cluster.ledger.plan(incident.plan)
    if plan is None or not plan.timings:
        return None
    try:
        facts = read_facts(CHEAP, cluster)
    except SourceError:
        return None
    waits = [why_it_waits(plan, incident, each.attempt, facts) for each in plan.timings]
    stays = [_why_it_stays(each, facts) for each in plan.timings]
    return next((each for each in (*waits, *stays) if each is not None), None)


def _why_it_stays(timing: JobTiming, facts: ClusterFacts) -> str | None:
    job = facts.jobs.get(timing.attempt.job)
    if timing.moment not in _LEFT_RUNNING or job is None or job.attempt != timing.attempt:
        return None
    if job.state not in MAY_HAVE_PROCESSES:
        return None
    return f"idle_node: job {job.job} is left running, and the repair waits until it ends: {timing.reason}"


def due_moment(cluster: Cluster, state: LedgerState) -> Due | None:
    """Return the run that is due because the moment of a waiting job has come, None while all wait, or none does."""
    waiting = [
        (incident, plan)
        for incident in state.incidents
        if incident.state is IncidentState.ACTING
        and incident.plan is not None
        and (plan := cluster.ledger.plan(incident.plan)) is not None
        and any(each.moment in _WAITED_FOR and not is_begun(plan, each.attempt, state.records) for each in plan.timings)
    ]
    if not waiting:
        return None
    try:
        facts = read_facts(CHEAP, cluster)
    except SourceError:
        return None
    found = [_due_of(timing, plan, incident, facts) for incident, plan in waiting for timing in plan.timings]
    return due_together([due for due in found if due is not None], also="so has that of")


def _due_of(timing: JobTiming, plan: IncidentPlan, incident: Incident, facts: ClusterFacts) -> Due | None:
    if timing.moment not in _WAITED_FOR or is_begun(plan, timing.attempt, facts.records):
        return None
    if why_it_waits(plan, incident, timing.attempt, facts) is not None:
        return None
    job = facts.jobs.get(timing.attempt.job)
    saved = "" if job is None or job.checkpointed_at is None else job.checkpointed_at.isoformat()
    return Due(
        run_key=f"moment:{plan.plan}:{timing.attempt.job}:{saved}",
        reason=f"the moment of job {timing.attempt.job} has come",
    )
