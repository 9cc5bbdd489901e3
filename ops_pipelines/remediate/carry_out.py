"""Carries plans out, several at a time, step by step, until each is done, waits, or is handed over.

What the scheduler does at once (drains, marks on jobs, marks taken off) is carried out many at a time: a storm takes a
handful of transactions and as few commands as it has reasons. Before-entry, command, witness and after-entry are those
of `perform`, judged one by one; what does not end there (no answer, no flag yet, started earlier) is left to `perform`,
which reads its witness and may send it again: a drain twice is a drain.

A repair is kept back from a busy node by its guardrail; an isolation repairs nothing, and its proof begins with tests
that need the node to themselves.

Plans advance side by side, and drain together. Of one plan: what is next, whether its moment has come, and what a step
that fails leads to. The order of steps is the plan's; nothing here adds, skips or reorders one, but the room kept free
where it is too late for it. Longer than most: a plan and its neighbours share every pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta

from ops_pipelines.core.action import MESSAGES, SOFT, Action, ActionRecord, Outcome, OutcomeKind, Urgency, Verb, Witness
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, Begun, LedgerConflict, LedgerState
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import ActionKey, IncidentId, JobId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobStatus, NodeStatus
from ops_pipelines.core.plan import IncidentPlan, Order
from ops_pipelines.core.proof import ActProof, Patience, Refusal
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines.remediate.due import calls_for_a_move, why_it_waits
from ops_pipelines.remediate.gate import (
    PlanProgress,
    PlanReport,
    as_proved,
    climb_after,
    end_plan,
    escalate,
    held_jobs,
    is_in_force,
    is_yet_to_begin,
    plan_anew,
    put_in_force,
    tell_of_contradictions,
)
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, jobs_on
from ops_pipelines.remediate.judgement import (
    CHEAP,
    NO_LEASE,
    ActJudge,
    FreshFacts,
    Lease,
    Verdicts,
    read_facts,
    words_of,
)
from ops_pipelines.remediate.perform import NOT_SENT_AGAIN, Progress, Stage, new_record, perform, tell_of_faults
from ops_pipelines.remediate.snapshot import plan_anew_where_silent
from ops_pipelines.remediate.verbs import Scene, send_marks, testify

AT_ONCE_COUNT = 1_000
"""So many are judged on one reading of the cluster: some seconds' worth, within the lease of 15 s."""
COMMANDS_AT_ONCE_COUNT = 100
"""So many commands are sent under one lease.

Assumption: a busy slurmctld takes ten a second from our senders together, and judging again takes the rest of it."""
_SENDER_COUNT = 4
_ENOUGH_FOR_THREADS = 8


def carry_out_together(
    orders: Sequence[Order], cluster: Cluster, *, lease: Lease, fresh: FreshFacts | None = None
) -> Mapping[ActionKey, Progress]:
    """Begin the acts, send them, read back once what came of them, and return how far each came.

    `fresh` is what the caller has read of the cluster, and done nothing to since: the first acts are judged on it while
    it serves, all others on a reading of their own. Raises SourceError if the scheduler does not list its nodes and
    jobs; then nothing was started.
    """
    progress: dict[ActionKey, Progress] = {}
    for number, batch in enumerate(_batches(orders)):
        if number:
            lease.renew(cluster.ledger, cluster.clock.now())
        token = lease.token(cluster.ledger, cluster.clock.now())
        if token is None:
            progress |= {each.action.key: Progress(stage=Stage.WAITING, reason=words_of(NO_LEASE)) for each in batch}
            continue
        verbs = {order.action.verb for order in batch}
        if fresh is not None and fresh.still_serve(verbs, now=cluster.clock.now()):
            facts = fresh.facts
        else:
            facts = read_facts(verbs, cluster)
        fresh = None  # What this batch does to the cluster shows in no reading before it.
        begun, others, verdicts, refused = _begin(batch, facts, cluster, token=token)
        not_taken: dict[ActionKey, str] = {}
        withheld: dict[ActionKey, Refusal] = {}
        _send(begun, facts, cluster, verdicts, not_taken=not_taken, withheld=withheld)
        sent = [record for record in begun if record.action.key not in withheld]
        late = {key: Progress(stage=Stage.WAITING, reason=words_of(why)) for key, why in withheld.items()}
        progress |= others | late | read_back(sent, cluster, refused=not_taken)
        tell_of_faults(refused, cluster, lease=lease)  # Nobody waits for a page.
    return progress


def _batches(orders: Sequence[Order]) -> Iterator[Sequence[Order]]:
    """Yield the acts in their order, so many at a time as are judged and sent within one lease."""
    batch: list[Order] = []
    commands: set[tuple[Verb, str]] = set()
    for order in orders:
        command = (order.action.verb, order.action.text)
        is_full = len(batch) == AT_ONCE_COUNT or len(commands | {command}) > COMMANDS_AT_ONCE_COUNT
        if batch and is_full:
            yield batch
            batch, commands = [], set()
        batch.append(order)
        commands.add(command)
    if batch:
        yield batch


def _begin(
    orders: Sequence[Order], facts: ClusterFacts, cluster: Cluster, *, token: str
) -> tuple[list[ActionRecord], dict[ActionKey, Progress], Verdicts, dict[Action, Refusal]]:
    """Write the before-entries; return those that may be sent, what is to be reported of the others, the verdicts, and
    why some were refused."""
    judge = ActJudge(facts, cluster)

    def guard(record: ActionRecord, state: LedgerState) -> Refusal | ActProof | None:
        return judge.judge(record.action, record.plan, state)

    records = [new_record(order.action, cluster, facts, plan=order.plan) for order in orders]
    now = cluster.clock.now()
    verdicts = Verdicts(guard, facts, cluster, token=token, given_at=now)
    answers = cluster.ledger.begin_all(records, guard=guard, lease_token=token, actor=AUTOPILOT, now=now)
    begun: list[ActionRecord] = []
    others: dict[ActionKey, Progress] = {}
    refused: dict[Action, Refusal] = {}
    for record, answer in zip(records, answers, strict=True):
        if isinstance(answer, Begun):
            begun.append(answer.record)
        elif isinstance(answer, Refusal):
            refused[record.action] = answer
            stage = Stage.WAITING if answer.patience is Patience.WAIT else Stage.FAILED
            others[record.action.key] = Progress(stage=stage, reason=words_of(answer))
        else:
            others[record.action.key] = Progress(stage=Stage.UNDER_WAY, reason="started before; its witness is next")
    return begun, others, verdicts, refused


def _send(
    begun: Sequence[ActionRecord],
    facts: ClusterFacts,
    cluster: Cluster,
    verdicts: Verdicts,
    *,
    not_taken: dict[ActionKey, str],
    withheld: dict[ActionKey, Refusal],
) -> None:
    """Send one command a verb and reason.

    `not_taken` gets what the scheduler refused, with its words; `withheld` what was not sent, because its verdict was
    taken back between the before-entry and the command.
    """
    alike: dict[tuple[Verb, str], list[ActionRecord]] = {}
    for record in begun:
        alike.setdefault((record.action.verb, record.action.text), []).append(record)

    def send(group: Sequence[ActionRecord]) -> None:
        late = verdicts.taken_back(group, sending=0)
        for key in late:
            cluster.ledger.withhold(key, sending=0, actor=AUTOPILOT, now=cluster.clock.now())
        withheld.update(late)
        actions = [record.action for record in group if record.action.key not in late]
        try:
            if not actions:
                pass
            elif actions[0].verb is Verb.DRAIN:
                nodes = [action.node for action in actions if action.node is not None]
                cluster.scheduler.drain(nodes, reason=actions[0].text)
            else:
                send_marks(actions, cluster, facts)
        except SourceRefused as problem:
            if len(actions) == 1:
                not_taken[actions[0].key] = str(problem)
            else:  # One bad node must not cost the others their drain.
                for record in group:
                    if record.action.key not in late:
                        send([record])
        except SourceError:
            pass  # No answer is not a no.

    if len(alike) < _ENOUGH_FOR_THREADS:
        for group in alike.values():
            send(group)
    else:
        with ThreadPoolExecutor(_SENDER_COUNT) as senders:
            list(senders.map(send, alike.values()))


def read_back(
    begun: Sequence[ActionRecord], cluster: Cluster, *, refused: Mapping[ActionKey, str]
) -> dict[ActionKey, Progress]:
    """Read acts back in one answer, and write down what came of each; what does not show yet stays open.

    `refused` are those that the scheduler did not take, with its words.
    """
    nodes: dict[NodeName, NodeStatus] = {}
    jobs: dict[JobId, JobStatus] = {}
    with suppress(SourceError):
        if any(record.action.node is not None for record in begun):
            nodes = {node.node: node for node in cluster.scheduler.read_nodes()}
        if any(record.action.attempt is not None for record in begun):
            jobs = {job.job: job for job in cluster.scheduler.read_jobs()}
    outcomes: dict[ActionKey, Outcome] = {}
    progress: dict[ActionKey, Progress] = {}
    now = cluster.clock.now()
    for record in begun:
        action, key = record.action, record.action.key
        node = None if action.node is None else nodes.get(action.node)
        job = None if action.attempt is None else jobs.get(action.attempt.job)
        testimony = testify(record, Scene(node=node, job=job))
        if testimony.witness is Witness.DONE:
            set_at = None if node is None else node.reason_set_at
            outcomes[key] = Outcome(kind=OutcomeKind.DONE, witness=testimony.seen, finished_at=now, witnessed_at=set_at)
            progress[key] = Progress(stage=Stage.DONE, reason=testimony.seen)
        elif key in refused:
            outcomes[key] = Outcome(kind=OutcomeKind.FAILED, witness=refused[key], finished_at=now)
            progress[key] = Progress(stage=Stage.FAILED, reason=refused[key])
        else:
            progress[key] = Progress(stage=Stage.UNDER_WAY, reason=testimony.seen)
    if outcomes:
        cluster.ledger.finish_all(outcomes, actor=AUTOPILOT)
    return progress


def why_isolation_waits(plan: IncidentPlan, incident: Incident, cluster: Cluster) -> str | None:
    """Return why an isolation is not over although every act was tried; None of any other plan, and if it is.

    A node that somebody else drained is left to them. Raises SourceError if the scheduler does not answer.
    """
    if plan.response is not Response.ISOLATE or all(action.verb is not Verb.DRAIN for action in plan.actions):
        return None
    facts = read_facts(CHEAP, cluster)
    busy = [job.job for node in sorted(incident.nodes) for job in jobs_on(node, facts)]
    if busy:
        return f"idle_node: job(s) {', '.join(busy)} still run there; its tests begin when they are gone"
    told = {record.action.key for record in facts.records if record.outcome is not None}
    if any(action.verb is Verb.PAGE_HUMAN and action.key not in told for action in plan.actions):
        return "no channel has taken the message to the operator on call yet"
    return None


_POLL_SECONDS = 0.2
_WAITS_FOR_JOBS = ("idle_node: ", "held_first: ")
"""Begin the refusals of an act that waits for jobs on the node, as `judgement.words_of` puts them."""
_FORBIDDEN_MEANWHILE = f"{NOT_SENT_AGAIN}consent: "
"""Nothing was tried: a higher rung would go round the operator's word."""
_REPAIR_VERBS = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.POWER_ON, Verb.REIMAGE})
WhyItWaits = Callable[[IncidentPlan], str | None]
"""Why a plan must not continue yet, whatever its own next step is; None: nothing keeps it."""


class PlanRunner:
    """One plan on its way."""

    def __init__(
        self, plan: IncidentPlan, cluster: Cluster, lease: Lease, why_it_waits: WhyItWaits = lambda _: None
    ) -> None:
        self.progress = PlanProgress(plan)
        self._why_it_waits = why_it_waits
        self._plan = plan
        self._cluster = cluster
        self._lease = lease
        self._position = 0
        self._tried_position: int | None = None

    def next_drain(self) -> Order | None:
        """Return the next step if it is a drain that was not tried yet; afterwards it is `advance`'s."""
        if (
            not self.progress.is_under_way
            or self._position == len(self._plan.actions)
            or self._position == self._tried_position
        ):
            return None
        action = self._plan.actions[self._position]
        if action.verb is not Verb.DRAIN:
            return None
        proved = as_proved(self._plan, self._cluster)
        return None if isinstance(proved, Refusal) else proved.step(action)

    def take_drain(self, progress: Progress) -> None:
        """Take note of a drain that was carried out together with others."""
        self._tried_position = self._position
        if progress.stage is Stage.DONE:
            self.progress.add_step(self._plan.actions[self._position], progress)
            self._position += 1
        else:
            self.progress.wait_for(progress.reason)

    def advance(self) -> bool:
        """Go one step further; return whether anything moved."""
        if not self.progress.is_under_way:
            return False
        try:
            turn = self._why_it_waits(self._plan)
            if turn is not None:
                self.progress.wait_for(turn)
                return False
            incident = self._incident_in_force()
            if incident is None:
                return False
            if self._position == len(self._plan.actions):
                unfinished = why_isolation_waits(self._plan, incident, self._cluster)
                if unfinished is not None:
                    return self._wait_on(incident, self._plan.actions[-1], unfinished)
                self.progress.settle(Stage.DONE, end_plan(self._plan, incident, self._cluster))
                return True
            return self._take_step(incident, self._plan.actions[self._position])
        except (SourceError, LedgerConflict) as problem:
            self.progress.settle(Stage.WAITING, str(problem))
            return False

    def _incident_in_force(self) -> Incident | None:
        """Return the incident, being acted on; None if this plan may not begin or is not the one in force."""
        incident = self._cluster.ledger.incident(self._plan.incident)
        if incident is None:
            self.progress.settle(Stage.FAILED, f"the ledger does not know {self._plan.incident}")
            return None
        if is_yet_to_begin(self.progress, incident):
            put_in_force([self.progress], self._cluster)
            incident = self._cluster.ledger.incident(self._plan.incident)
        is_begun = incident is not None and self.progress.is_under_way and is_in_force(self._plan, incident)
        return incident if is_begun else None

    def _is_part_of_mass_event(self, incident: Incident) -> bool:
        """Return whether many nodes broke with this one, which was drained before that showed: nobody touches them."""
        window = self._cluster.rules.policy.mass_event.window
        present = self._cluster.ledger.read_state(self._cluster.clock.now()).incidents
        return any(each.is_mass_event and abs(each.opened_at - incident.opened_at) <= window for each in present)

    def _take_step(self, incident: Incident, action: Action) -> bool:
        is_beyond_drain = action.verb not in MESSAGES | {Verb.DRAIN}
        if is_beyond_drain and not self._has_gone_beyond_drain() and self._is_part_of_mass_event(incident):
            self.progress.settle(
                Stage.WAITING, "many nodes broke at once with this one; a person was paged, nothing is done"
            )
            return False
        if action.verb in SOFT and self._is_room_needless(action):
            self._position += 1
            return True
        not_yet = self._waits_for_its_moment(incident, action)
        if not_yet is not None:
            return self._wait(incident, action, not_yet)
        proved = as_proved(self._plan, self._cluster)
        if isinstance(proved, Refusal):
            return self._wait(incident, action, words_of(proved))
        progress = perform(proved.step(action), self._cluster, lease=self._lease)
        if action.verb in SOFT and progress.stage in (Stage.WAITING, Stage.FAILED):
            # Room kept free is a kindness to the job; without it the job waits in the queue like any other.
            self.progress.add_step(action, progress)
            self._position += 1
            return True
        if progress.stage is Stage.UNDER_WAY and not self._may_be_told_later(action):
            self.progress.wait_for(progress.reason)
            return False
        if progress.stage is Stage.UNDER_WAY:
            self._position += 1  # The next pass begins at the first action again, and notifies the owner then.
            return True
        self.progress.add_step(action, progress)
        if progress.stage is Stage.DONE:
            self._position += 1
            return True
        if progress.stage is Stage.FAILED:
            why = f"{action.verb.value} of {action.target} did not succeed: {progress.reason}"
            if progress.reason.startswith(_FORBIDDEN_MEANWHILE) or not self._may_climb(action):
                return self._give_up(incident, why)
            climb_after(self._plan, self._cluster, why=why)
            self.progress.settle(Stage.FAILED, why)
            return True
        return self._wait_on(incident, action, progress.reason)

    def _wait_on(self, incident: Incident, action: Action, reason: str) -> bool:
        """Wait for what keeps an act from being done; plan again if a job that it waits for should be moved by now."""
        if reason.startswith(_WAITS_FOR_JOBS) and calls_for_a_move(self._plan, incident, self._cluster):
            self.progress.settle(Stage.WAITING, plan_anew(incident, self._cluster))
            return True
        return self._wait(incident, action, reason)

    def _wait(self, incident: Incident, action: Action, reason: str) -> bool:
        """Leave the rest to the next pass; hand over what has waited beyond the limit, whatever it waits for."""
        limit = self._cluster.rules.policy.durations.job_end_limit
        if self._cluster.clock.now() - self._begun_at(incident) > limit:
            hours = limit.total_seconds() / 3600
            why = f"{action.verb.value} of {action.target} waited {hours:.1f} h: {reason}"
            return self._give_up(incident, why)
        self.progress.settle(Stage.WAITING, reason)
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

    def _may_climb(self, action: Action) -> bool:
        """Return whether a failed act was a repair that was really tried, with no job of ours still held."""
        if action.verb not in _REPAIR_VERBS:
            return False
        records = self._cluster.ledger.records(self._plan.incident)
        tried = any(each.action.key == action.key and each.outcome is not None for each in records)
        return tried and not held_jobs(records)

    def _has_gone_beyond_drain(self) -> bool:
        records = self._cluster.ledger.records(self._plan.incident)
        return any(each.plan == self._plan.plan and each.action.verb not in MESSAGES | {Verb.DRAIN} for each in records)

    def _begun_at(self, incident: Incident) -> datetime:
        """Return when this plan began: new evidence changes the incident, and must not postpone its deadline."""
        records = self._cluster.ledger.records(incident.incident)
        begun = (record.begun_at for record in records if record.plan == self._plan.plan)
        return min(begun, default=incident.changed_at)

    def _may_be_told_later(self, action: Action) -> bool:
        """Return whether an action is a message that must not hold up the rescue of the jobs themselves."""
        is_quiet = action.verb is Verb.PAGE_HUMAN and action.urgency is Urgency.WHEN_READ
        return (action.verb is Verb.NOTIFY_OWNER and self._plan.response in REPAIRS) or is_quiet

    def _give_up(self, incident: Incident, why: str) -> bool:
        is_told = escalate(incident, self._cluster, lease=self._lease, why=why)
        self.progress.settle(Stage.FAILED if is_told else Stage.WAITING, why)
        return is_told


def carry_out(
    plans: Sequence[IncidentPlan],
    cluster: Cluster,
    *,
    lease: Lease,
    patience: timedelta,
    why_it_waits: WhyItWaits = lambda _: None,
) -> tuple[PlanReport, ...]:
    """Begin or continue every plan and return how far each came.

    `why_it_waits` keeps a plan back while another run needs the same; its drain waits for nobody, for a broken node is
    taken out at once, within budgets that the ledger counts.

    Plans advance side by side, so that one that waits for a witness does not delay the others. What has not shown
    its witness after `patience` is left under way: the next pass reads its witness. Patience is for waiting only: a
    pass continues while anything moves, else a slow scheduler would have every pass end among the steps already done.
    """
    with suppress(SourceError, LedgerConflict):
        plan_anew_where_silent(cluster)
    runners = [PlanRunner(plan, cluster, lease, why_it_waits) for plan in plans]
    give_up_at = cluster.clock.now() + patience
    while True:
        has_drained = _advance_drains(runners, cluster, lease=lease)
        moving = [runner for runner in runners if runner.advance()]
        if not any(runner.progress.is_under_way for runner in runners) and not moving:
            break
        if not moving and not has_drained:
            if cluster.clock.now() >= give_up_at:
                break
            cluster.clock.wait(_POLL_SECONDS)
    tell_of_contradictions(plans, cluster, lease=lease)
    return tuple(runner.progress.report() for runner in runners)


def carry_out_drains(plans: Sequence[IncidentPlan], cluster: Cluster, *, lease: Lease) -> tuple[PlanReport, ...]:
    """Begin the plans that open with a drain, carry out the drain and nothing else; the rest is left to a run."""
    runners = [PlanRunner(plan, cluster, lease) for plan in plans if plan.actions[0].verb is Verb.DRAIN]
    if _advance_drains(runners, cluster, lease=lease) is None:
        # Something changed meanwhile: by now it shows which one may not begin, and the others need not wait for it.
        _advance_drains(runners, cluster, lease=lease)
    tell_of_contradictions(plans, cluster, lease=lease)
    return tuple(runner.progress.report() for runner in runners)


def _advance_drains(runners: Sequence[PlanRunner], cluster: Cluster, *, lease: Lease) -> bool | None:
    """Begin the plans that wait, and take together the drains that are next; return whether anything moved.

    None: what was read had changed by then, and nothing was started.
    """
    by_progress = {runner.progress: runner for runner in runners if runner.progress.is_under_way}
    try:
        found, fresh = put_in_force(list(by_progress), cluster)
        in_force = [by_progress[each] for each in found]
        drains = {runner: order for runner in in_force if (order := runner.next_drain()) is not None}
        progress = carry_out_together(list(drains.values()), cluster, lease=lease, fresh=fresh)
    except SourceError:
        return False  # Each by itself is next: one that cannot continue does not hold up the others.
    except LedgerConflict:
        return None
    for runner, order in drains.items():
        runner.take_drain(progress[order.action.key])
    return any(each.stage is Stage.DONE for each in progress.values())


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
