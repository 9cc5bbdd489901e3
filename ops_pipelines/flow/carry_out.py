"""Carries plans out, several at a time, step by step, until each is done, waits for the world, or needs a person.

The order of steps is the plan's; this module never adds, skips or reorders one. Each step is `perform`'s.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.domain.action import MESSAGES, SOFT, Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.domain.guardrails.judge import ClusterFacts, judge
from ops_pipelines.domain.identity import IncidentId, JobId
from ops_pipelines.domain.incident import PAGED, Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.domain.meaning.finding import REPAIRS, Response
from ops_pipelines.domain.observation import MAY_HAVE_PROCESSES, Workload
from ops_pipelines.domain.repair.job_moves import hazard_for, is_leaving, time_jobs
from ops_pipelines.domain.repair.remediation import IncidentPlan
from ops_pipelines.domain.returning.verification import REPAIR_MARKS
from ops_pipelines.domain.steps.ladder import climb
from ops_pipelines.domain.steps.timing import Moment
from ops_pipelines.flow.bundle import BundleReport, note_with, save_before_acting
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.drains import DrainOrder, drain_together
from ops_pipelines.flow.lease import Lease
from ops_pipelines.flow.moments import CHEAP, why_it_waits
from ops_pipelines.flow.perform import Progress, Stage, authority_of, perform, read_facts, words_of
from ops_pipelines.flow.repairs import store_report
from ops_pipelines.flow.silence import plan_anew_where_silent
from ops_pipelines.ports.ledger import AUTOPILOT, LedgerConflict, LedgerState
from ops_pipelines.ports.source_error import SourceError

_POLL_SECONDS = 0.2
_WAITS_FOR_JOBS = ("idle_node: ", "held_first: ")
"""Begin the refusals of an act that waits for jobs on the node, as `perform.words_of` puts them."""
_REPAIR_VERBS = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.POWER_ON, Verb.REIMAGE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action of one plan and how far it came in this pass."""

    action: Action
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """How far one plan came in this pass."""

    plan: IncidentPlan
    steps: tuple[Step, ...]
    """Steps that were done, or on which it stopped."""
    stage: Stage
    reason: str


def carry_out(
    plans: Sequence[IncidentPlan], cluster: Cluster, *, lease: Lease, patience: timedelta
) -> tuple[PlanReport, ...]:
    """Begin or continue every plan and return how far each came.

    Plans advance side by side, so that one that waits for a witness does not delay the others. What has not shown
    its witness after `patience` is left under way: the next pass reads its witness. Patience is for waiting only: a
    pass goes on while anything moves, else a slow scheduler would have every pass end among the steps already done.
    """
    with suppress(SourceError, LedgerConflict):
        plan_anew_where_silent(cluster)
    runners = [_Runner(plan, cluster, lease) for plan in plans]
    give_up_at = cluster.clock.now() + patience
    while True:
        has_drained = _advance_drains(runners, cluster, lease=lease)
        moving = [runner for runner in runners if runner.advance()]
        if not any(runner.is_under_way for runner in runners) and not moving:
            break
        if not moving and not has_drained:
            if cluster.clock.now() >= give_up_at:
                break
            cluster.clock.wait(_POLL_SECONDS)
    return tuple(runner.report() for runner in runners)


def carry_out_drains(plans: Sequence[IncidentPlan], cluster: Cluster, *, lease: Lease) -> tuple[PlanReport, ...]:
    """Begin the plans that open with a drain, carry out the drain and nothing else; the rest is left to a run."""
    runners = [_Runner(plan, cluster, lease) for plan in plans if plan.actions[0].verb is Verb.DRAIN]
    _advance_drains(runners, cluster, lease=lease)
    return tuple(runner.report() for runner in runners)


def _advance_drains(runners: Sequence["_Runner"], cluster: Cluster, *, lease: Lease) -> bool:
    """Begin the plans that wait, and take together the drains that are next; return whether anything moved."""
    try:
        in_force = _put_in_force([runner for runner in runners if runner.is_under_way], cluster)
        drains = {runner: order for runner in in_force if (order := runner.next_drain()) is not None}
        progress = drain_together(list(drains.values()), cluster, lease=lease)
    except (SourceError, LedgerConflict):
        return False  # Each by itself is next: one that cannot go on does not hold up the others.
    for runner, order in drains.items():
        runner.take_drain(progress[order.action.key])
    return any(each.stage is Stage.DONE for each in progress.values())


def _put_in_force(runners: Sequence["_Runner"], cluster: Cluster) -> list["_Runner"]:
    """Begin, in one transaction, every plan whose incident waits and whose first act is allowed.

    Return the runners whose plan is in force then.
    """
    state = cluster.ledger.read_state(cluster.clock.now())
    present = {incident.incident: incident for incident in state.incidents}
    known = [(runner, present[runner.incident]) for runner in runners if runner.incident in present]
    waiting = [(runner, incident) for runner, incident in known if runner.is_yet_to_begin(incident)]
    begun: dict[_Runner, Incident] = {}
    if waiting:
        facts = read_facts({runner.first_act.verb for runner, _ in waiting}, cluster)
        for runner, incident in waiting:
            if runner.may_begin(facts, state):
                begun[runner] = runner.begin(incident)
                # What this plan will drain is spent for the next one: together they stay within the budget.
                intended = ActionRecord(action=runner.first_act, plan=begun[runner].plan, begun_at=facts.taken_at)
                facts = replace(facts, records=(*facts.records, intended))
        about_to_begin = [(incident, runner.plan) for runner, incident in begun.items()]
        evidence = save_before_acting(about_to_begin, cluster, nodes=facts.nodes, jobs=facts.jobs)
        begun = {runner: _with_evidence(incident, evidence) for runner, incident in begun.items()}
        cluster.ledger.change_incidents(begun.values(), actor=AUTOPILOT, now=cluster.clock.now())
    return [*begun, *(runner for runner, incident in known if runner.is_in_force(incident))]


def _with_evidence(incident: Incident, evidence: BundleReport) -> Incident:
    """Return the incident with what the ledger keeps of its bundle; a plan goes on without, and the note says so."""
    saved = evidence.saved.get(incident.incident)
    note = note_with(incident.note, evidence.problems.get(incident.incident))
    return replace(incident, bundle=None if saved is None else saved.digest, note=note)


def escalate(incident: Incident, cluster: Cluster, *, lease: Lease, why: str) -> bool:
    """Hand an incident to a person and return whether the page went out.

    The page comes first: where no channel takes it the incident stays as it is, and the next pass pages again.
    """
    held = sorted(_held_jobs(cluster.ledger.records(incident.incident)))
    left = f" Still held, to be released by you: job {', '.join(held)}." if held else ""
    page = Action(
        verb=Verb.PAGE_HUMAN,
        incident=incident.incident,
        text=f"{incident.incident} needs you: {why}. Nothing more is done by itself.{left}",
        try_number=incident.plan_count + 1,
    )
    if perform(page, cluster, plan=None, lease=lease).stage is not Stage.DONE:
        return False
    now = cluster.clock.now()
    given_up = advance(incident, IncidentEvent.NEEDS_HUMAN, at=now, note=why)
    cluster.ledger.change_incident(given_up, actor=AUTOPILOT, now=now)
    return True


def _held_jobs(records: Sequence[ActionRecord]) -> set[JobId]:
    """Return the jobs that we began to hold and have not been seen to release."""
    jobs: set[JobId] = set()
    for record in records:
        attempt = record.action.attempt
        if attempt is None:
            continue
        if record.action.verb is Verb.HOLD:
            jobs.add(attempt.job)
        elif (
            record.action.verb is Verb.RELEASE
            and record.outcome is not None
            and record.outcome.kind is OutcomeKind.DONE
        ):
            jobs.discard(attempt.job)
    return jobs


class _Runner:
    """One plan on its way."""

    def __init__(self, plan: IncidentPlan, cluster: Cluster, lease: Lease) -> None:
        self._plan = plan
        self._cluster = cluster
        self._lease = lease
        self._steps: list[Step] = []
        self._position = 0
        self._tried_position: int | None = None
        self._stage = Stage.UNDER_WAY
        self._reason = "begun"
        self._is_settled = False

    @property
    def is_under_way(self) -> bool:
        return not self._is_settled

    def report(self) -> PlanReport:
        return PlanReport(plan=self._plan, steps=tuple(self._steps), stage=self._stage, reason=self._reason)

    @property
    def plan(self) -> IncidentPlan:
        return self._plan

    @property
    def first_act(self) -> Action:
        """The first act on the cluster: it decides whether the plan may begin.

        Messages need nobody's yes, and a plan goes on without the room that it would keep free.
        """
        acts = [action for action in self._plan.actions if action.verb not in MESSAGES | SOFT]
        return acts[0] if acts else self._plan.actions[0]

    @property
    def incident(self) -> IncidentId:
        return self._plan.incident

    def is_yet_to_begin(self, incident: Incident) -> bool:
        """Return whether this plan is yet to be put in force; settle if it never will be."""
        if incident.state is not IncidentState.OPEN and not self.is_in_force(incident):
            self._settle(Stage.WAITING, f"the incident is {incident.state.value}; this plan is not in force")
        if incident.state is IncidentState.OPEN and not self._is_of_now(incident):
            self._settle(Stage.WAITING, "the incident calls for another plan by now")
        return incident.state is IncidentState.OPEN and not self._is_settled

    def _is_of_now(self, incident: Incident) -> bool:
        """Return whether the plan was made for the incident as it is: for this response, and as its next try."""
        is_next_try = self._plan.actions[0].try_number == incident.plan_count + 1
        return incident.response is (self._plan.calls_for or self._plan.response) and is_next_try

    def may_begin(self, facts: ClusterFacts, state: LedgerState) -> bool:
        """Return whether the guardrails allow the first act; settle with their reason if not."""
        rules = self._cluster.rules
        refusal = judge(
            self.first_act,
            facts,
            policy=rules.policy,
            topology=rules.topology,
            authority=authority_of(self._plan.plan, state, actor=AUTOPILOT),
        )
        if refusal is not None:
            self._settle(Stage.WAITING, words_of(refusal))
        return refusal is None

    def begin(self, incident: Incident) -> Incident:
        """Return the incident as it is with this plan in force."""
        begun = advance(incident, IncidentEvent.PLAN_BEGUN, at=self._cluster.clock.now(), note=self._plan.reason)
        # The plan may stand above what the findings call for: from now on the incident stands there, too.
        return replace(begun, plan=self._plan.plan, plan_count=incident.plan_count + 1, response=self._plan.response)

    def next_drain(self) -> DrainOrder | None:
        """Return the next step if it is a drain that was not tried yet; afterwards it is `advance`'s."""
        if self._is_settled or self._position == len(self._plan.actions) or self._position == self._tried_position:
            return None
        action = self._plan.actions[self._position]
        return DrainOrder(action=action, plan=self._plan.plan) if action.verb is Verb.DRAIN else None

    def take_drain(self, progress: Progress) -> None:
        """Take note of a drain that was carried out together with others."""
        self._tried_position = self._position
        if progress.stage is Stage.DONE:
            self._steps.append(Step(action=self._plan.actions[self._position], progress=progress))
            self._position += 1
        else:
            self._reason = progress.reason

    def advance(self) -> bool:
        """Go one step further; return whether anything moved."""
        if self._is_settled:
            return False
        try:
            incident = self._incident_in_force()
            if incident is None:
                return False
            if self._position == len(self._plan.actions):
                self._end(incident)
                return True
            return self._take_step(incident, self._plan.actions[self._position])
        except (SourceError, LedgerConflict) as problem:
            self._settle(Stage.WAITING, str(problem))
            return False

    def _incident_in_force(self) -> Incident | None:
        """Return the incident, being acted on; None if this plan may not begin or is not the one in force."""
        incident = self._cluster.ledger.incident(self._plan.incident)
        if incident is None:
            self._settle(Stage.FAILED, f"the ledger does not know {self._plan.incident}")
            return None
        if self.is_yet_to_begin(incident):
            _put_in_force([self], self._cluster)
            incident = self._cluster.ledger.incident(self._plan.incident)
        return incident if incident is not None and not self._is_settled and self.is_in_force(incident) else None

    def is_in_force(self, incident: Incident) -> bool:
        """Return whether the incident is being acted on by this very plan."""
        return incident.state is IncidentState.ACTING and incident.plan == self._plan.plan

    def _is_part_of_mass_event(self, incident: Incident) -> bool:
        """Return whether many nodes broke with this one, which was drained before that showed: nobody touches them."""
        window = self._cluster.rules.policy.mass_event.window
        present = self._cluster.ledger.read_state(self._cluster.clock.now()).incidents
        return any(each.is_mass_event and abs(each.opened_at - incident.opened_at) <= window for each in present)

    def _take_step(self, incident: Incident, action: Action) -> bool:
        is_beyond_drain = action.verb not in MESSAGES | {Verb.DRAIN}
        if is_beyond_drain and not self._has_gone_beyond_drain() and self._is_part_of_mass_event(incident):
            self._settle(Stage.WAITING, "many nodes broke at once with this one; a person was paged, nothing is done")
            return False
        if action.verb in SOFT and self._is_room_needless(action):
            self._position += 1
            return True
        not_yet = self._waits_for_its_moment(incident, action)
        if not_yet is not None:
            return self._wait(incident, action, not_yet)
        progress = perform(action, self._cluster, plan=self._plan.plan, lease=self._lease)
        if action.verb in SOFT and progress.stage in (Stage.WAITING, Stage.FAILED):
            # Room kept free is a kindness to the job; without it the job waits in the queue like any other.
            self._steps.append(Step(action=action, progress=progress))
            self._position += 1
            return True
        if progress.stage is Stage.UNDER_WAY and not self._may_be_told_later(action):
            self._reason = progress.reason
            return False
        if progress.stage is Stage.UNDER_WAY:
            self._position += 1  # The next pass begins at the first action again, and tells the owner then.
            return True
        self._steps.append(Step(action=action, progress=progress))
        if progress.stage is Stage.DONE:
            self._position += 1
            return True
        if progress.stage is Stage.FAILED:
            why = f"{action.verb.value} of {action.target} did not succeed: {progress.reason}"
            return self._climb(why) if self._may_climb(action) else self._give_up(incident, why)
        if progress.reason.startswith(_WAITS_FOR_JOBS) and self._calls_for_a_move(incident):
            return self._plan_anew(incident)
        return self._wait(incident, action, progress.reason)

    def _wait(self, incident: Incident, action: Action, reason: str) -> bool:
        """Leave the rest to the next pass; hand over what has waited beyond the limit, whatever it waits for."""
        limit = self._cluster.rules.policy.durations.job_end_limit
        if self._cluster.clock.now() - self._begun_at(incident) > limit:
            hours = limit.total_seconds() / 3600
            why = f"{action.verb.value} of {action.target} waited {hours:.1f} h: {reason}"
            return self._give_up(incident, why)
        self._settle(Stage.WAITING, reason)
        return False

    def _waits_for_its_moment(self, incident: Incident, action: Action) -> str | None:
        if action.verb not in (Verb.RESERVE, Verb.HOLD) or action.attempt is None or not self._plan.timings:
            return None
        return why_it_waits(self._plan, incident, action.attempt, read_facts(CHEAP, self._cluster))

    def _is_room_needless(self, action: Action) -> bool:
        """Return whether it is too late to keep room free, or none was kept: a pass begins at the first act again."""
        records = self._cluster.ledger.records(self._plan.incident)
        begun = {each.action.verb for each in records if each.action.attempt == action.attempt}
        mine = any(each.action.key == action.key for each in records)
        return not mine and (Verb.HOLD in begun if action.verb is Verb.RESERVE else Verb.RESERVE not in begun)

    def _calls_for_a_move(self, incident: Incident) -> bool:
        """Return whether a job that was to stay should be moved by now: the fault has turned worse, or others serve.

        What has ended keeps its nodes in the queue for some minutes, and what is held needs no other plan: a new plan
        would hold neither, and be superseded in its turn.
        """
        if self._plan.response not in REPAIRS or not self._plan.timings or len(incident.nodes) != 1:
            return False
        held = {action.attempt for action in self._plan.actions if action.verb is Verb.HOLD}
        (node,) = incident.nodes
        facts = read_facts(CHEAP, self._cluster)
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
        rules = self._cluster.rules
        timings = time_jobs(incident, jobs, facts, policy=rules.policy, topology=rules.topology)
        return any(each.moment is Moment.NOW for each in timings)

    def _plan_anew(self, incident: Incident) -> bool:
        now = self._cluster.clock.now()
        note = "the fault has turned worse, or other replicas serve by now: its jobs are moved after all"
        superseded = advance(incident, IncidentEvent.SUPERSEDED, at=now, note=note)
        self._cluster.ledger.change_incident(superseded, actor=AUTOPILOT, now=now)
        self._settle(Stage.WAITING, note)
        return True

    def _may_climb(self, action: Action) -> bool:
        """Return whether a failed act was a repair that was really tried, with no job of ours still held."""
        if action.verb not in _REPAIR_VERBS:
            return False
        records = self._cluster.ledger.records(self._plan.incident)
        tried = any(each.action.key == action.key and each.outcome is not None for each in records)
        return tried and not _held_jobs(records)

    def _climb(self, why: str) -> bool:
        """Put the incident a rung higher: its next plan is made by the next decision."""
        incident = self._cluster.ledger.incident(self._plan.incident)
        if incident is not None and self.is_in_force(incident):
            now = self._cluster.clock.now()
            higher = climb(incident, IncidentEvent.REPAIR_FAILED, why=why, at=now)
            self._cluster.ledger.change_incident(higher, actor=AUTOPILOT, now=now)
        self._settle(Stage.FAILED, why)
        return True

    def _has_gone_beyond_drain(self) -> bool:
        records = self._cluster.ledger.records(self._plan.incident)
        return any(each.plan == self._plan.plan and each.action.verb not in MESSAGES | {Verb.DRAIN} for each in records)

    def _begun_at(self, incident: Incident) -> datetime:
        """Return when this plan began: new evidence changes the incident, and must not put off its deadline."""
        records = self._cluster.ledger.records(incident.incident)
        begun = (record.begun_at for record in records if record.plan == self._plan.plan)
        return min(begun, default=incident.changed_at)

    def _may_be_told_later(self, action: Action) -> bool:
        """Return whether an action is a message to an owner that must not hold up the rescue of the job itself."""
        return action.verb is Verb.NOTIFY_OWNER and self._plan.response in REPAIRS

    def _give_up(self, incident: Incident, why: str) -> bool:
        is_told = escalate(incident, self._cluster, lease=self._lease, why=why)
        self._settle(Stage.FAILED if is_told else Stage.WAITING, why)
        return is_told

    def _end(self, incident: Incident) -> None:
        now = self._cluster.clock.now()
        repaired = REPAIR_MARKS & {action.verb for action in self._plan.actions}
        if self._plan.response is Response.RETURN_TO_VENDOR:
            event, note = IncidentEvent.QUEUED, "it waits for hands: `ops-pipelines repair list`"
        elif repaired:
            event, note = IncidentEvent.STEPS_DONE, "repaired; the node must prove itself before it is returned"
        elif self._plan.response in REPAIRS or any(action.verb is Verb.PAGE_HUMAN for action in self._plan.actions):
            event, note = IncidentEvent.NEEDS_HUMAN, f"{PAGED}: {self._plan.reason}"
        else:
            event, note = IncidentEvent.NOTHING_TO_VERIFY, "the owner was told; no node is at fault"
        after = advance(incident, event, at=now, note=note)
        if after.state is IncidentState.IN_REPAIR:
            # What the vendor is told is kept as it was on this day.
            after = replace(after, note=f"{note}; report {store_report(after, self._cluster)[:12]}")
        self._cluster.ledger.change_incident(after, actor=AUTOPILOT, now=now)
        self._settle(Stage.DONE, note)

    def _settle(self, stage: Stage, reason: str) -> None:
        self._stage, self._reason, self._is_settled = stage, reason, True


def plans_to_carry_out(
    fresh: Sequence[IncidentPlan], incidents: Sequence[Incident], cluster: Cluster
) -> tuple[IncidentPlan, ...]:
    """Return what is to be done now: the plans already in force, and those just made for incidents that wait.

    A plan that was made before under the same name is taken as it was then: it may keep other nodes free, and what one
    pass keeps free the next must hand over.
    """
    in_force: dict[IncidentId, IncidentPlan] = {}
    for incident in incidents:
        if incident.state is IncidentState.ACTING and incident.plan is not None:
            plan = cluster.ledger.plan(incident.plan)
            if plan is not None:
                in_force[incident.incident] = plan
    waiting = [plan for plan in fresh if plan.incident not in in_force]
    return (*in_force.values(), *(cluster.ledger.plan(plan.plan) or plan for plan in waiting))
