"""Whether the moment has come to interrupt a job whose plan waits, and which act waits for an approval.

A plan that has not started waits with its first act; one that continues by itself up to a point, such as a drain that
needs nobody and a reboot that does, waits half-way.

The moment itself was chosen by `remediate.timing` when the plan was made. Asked by the executor before each hold, and
by the sensor, so that a run starts within seconds of the checkpoint.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

from ops_pipelines.core.action import MESSAGES, SOFT, Action, ActionRecord, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerState
from ops_pipelines.core.finding import REPAIRS
from ops_pipelines.core.identity import JobAttempt
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, Workload
from ops_pipelines.core.plan import IncidentPlan, JobTiming, Moment
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.proof import Authority, Refusal
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.due import Due, due_together
from ops_pipelines.remediate.gate import first_act
from ops_pipelines.remediate.guardrails.consents import needs_yes
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
from ops_pipelines.remediate.job_moves import hazard_for, is_leaving, noticed_at, time_jobs
from ops_pipelines.remediate.judgement import CHEAP, authority_of, read_facts
from ops_pipelines.remediate.planning import plan_remediation
from ops_pipelines.remediate.timing import is_moment

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
