"""One action, step by step: what is sent, what is not, and what counts as its witness."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Fleet
from ops_pipelines.core.entries import AUTOPILOT, Begun
from ops_pipelines.core.identity import IncidentId, JobAttempt, JobId, NodeName, PlanId
from ops_pipelines.core.incident import IncidentEvent, advance
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.notes import Message
from ops_pipelines.core.observation import JobState, JobStatus, NodeInspection
from ops_pipelines.core.plan import Order
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.people import orders
from ops_pipelines.remediate.guardrails.facts import drain_reason
from ops_pipelines.remediate.judgement import TTL, Lease
from ops_pipelines.remediate.perform import Stage, perform
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.ports.ledger_samples import incident as open_incident
from tests.ports.proved_plans import allow, as_step, keep_proved, order_of, plan_named
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import GPU1, GPU2, TRAINING

INCIDENT = IncidentId("INC-0001")
DRAIN = Action(verb=Verb.DRAIN, incident=INCIDENT, node=GPU1, text=drain_reason(INCIDENT, "a test"))
PAGE = Action(verb=Verb.PAGE_HUMAN, incident=INCIDENT, text="please look")
LIMITS = POLICY.durations


class Deaf:
    """A port that takes the named command and does nothing, or raises `problem`."""

    def __init__(self, port: object, command: str, problem: Exception | None = None) -> None:
        self._port = port
        self._command = command
        self._problem = problem
        self.asked_count = 0

    def __getattr__(self, name: str) -> object:
        if name != self._command:
            return getattr(self._port, name)

        def take(*args: object, **options: object) -> None:
            self.asked_count += 1
            if self._problem is not None:
                raise self._problem

        return take


class NoInspection:
    """A fleet of which no node can be inspected."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def __getattr__(self, name: str) -> object:
        return getattr(self._fleet, name)

    def inspect(self, node: NodeName) -> NodeInspection:
        raise SourceUnavailable("ssh did not answer")


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    return autopilot


def step(autopilot: SmallAutopilot, action: Action, *, lease: Lease | None = None) -> Stage:
    order = order_of(action, autopilot.cluster.ledger, at=autopilot.clock.now())
    return perform(order, autopilot.cluster, lease=lease or autopilot.lease).stage


def record_of(autopilot: SmallAutopilot, action: Action) -> ActionRecord:
    return next(each for each in autopilot.cluster.ledger.records(INCIDENT) if each.action.key == action.key)


def begin_and_die(autopilot: SmallAutopilot, action: Action) -> None:
    """Write the before-entry and send nothing, as a process that is killed in between."""
    ledger = autopilot.cluster.ledger
    begun = ledger.begin(
        as_step(ActionRecord(action=action, plan=None, begun_at=autopilot.clock.now()), ledger),
        guard=allow,
        lease_token=None,
        actor=AUTOPILOT,
        now=autopilot.clock.now(),
    )
    assert isinstance(begun, Begun)


def make_deaf(autopilot: SmallAutopilot, command: str, problem: Exception | None = None) -> Deaf:
    """Make one command of scheduler or fleet have no effect."""
    cluster = autopilot.cluster
    if hasattr(cluster.scheduler, command):
        deaf = Deaf(cluster.scheduler, command, problem)
        autopilot.cluster = replace(cluster, scheduler=cast("Scheduler", deaf))
    else:
        deaf = Deaf(cluster.fleet, command, problem)
        autopilot.cluster = replace(cluster, fleet=cast("Fleet", deaf))
    return deaf


def drain_ours(autopilot: SmallAutopilot) -> None:
    while step(autopilot, DRAIN) is not Stage.DONE:
        autopilot.let_pass(0.2)


def empty_and_drain(autopilot: SmallAutopilot) -> None:
    autopilot.twin.command(EntryKind.CANCEL, job=autopilot.job().job)
    autopilot.let_pass(5)
    drain_ours(autopilot)


def test_action_is_sent_then_witnessed_then_over(autopilot: SmallAutopilot) -> None:
    stages = [step(autopilot, DRAIN) for _ in range(3)]

    assert stages == [Stage.UNDER_WAY, Stage.DONE, Stage.DONE]
    assert len(autopilot.received(EntryKind.DRAIN)) == 1
    outcome = record_of(autopilot, DRAIN).outcome
    assert outcome is not None
    assert outcome.kind is OutcomeKind.DONE
    assert outcome.witnessed_at == autopilot.node("gpu001").reason_set_at


def test_message_is_over_when_the_notifier_took_it(autopilot: SmallAutopilot) -> None:
    stages = [step(autopilot, PAGE) for _ in range(2)]

    assert stages == [Stage.DONE, Stage.DONE]
    assert len(autopilot.pages()) == 1


class RefusingNotifier:
    def send(self, message: Message) -> str:
        raise SourceRefused("no such recipient")


def test_page_that_is_refused_is_sent_again_once_the_notifier_is_mended(autopilot: SmallAutopilot) -> None:
    cluster = autopilot.cluster
    autopilot.cluster = replace(cluster, notifier=RefusingNotifier())
    refused = step(autopilot, PAGE)
    autopilot.let_pass(3600)
    autopilot.cluster = cluster

    assert refused is Stage.UNDER_WAY
    assert step(autopilot, PAGE) is Stage.DONE
    assert len(autopilot.pages()) == 1


def test_message_of_a_killed_process_goes_out_however_late(autopilot: SmallAutopilot) -> None:
    begin_and_die(autopilot, PAGE)
    autopilot.let_pass(3600)

    assert step(autopilot, PAGE) is Stage.DONE
    assert len(autopilot.pages()) == 1


def test_message_that_was_accepted_before_the_process_was_killed_does_not_go_out_again(
    autopilot: SmallAutopilot,
) -> None:
    begin_and_die(autopilot, PAGE)
    autopilot.cluster.ledger.mark_sent(PAGE.key, actor=AUTOPILOT, now=autopilot.clock.now())
    autopilot.let_pass(3600)

    assert step(autopilot, PAGE) is Stage.DONE
    assert autopilot.pages() == []


@pytest.mark.parametrize("away_seconds", [0.0, 9.0, 3600.0])
def test_command_that_was_never_sent_is_sent_once_however_late(autopilot: SmallAutopilot, away_seconds: float) -> None:
    begin_and_die(autopilot, DRAIN)
    autopilot.let_pass(away_seconds)

    drain_ours(autopilot)

    assert len(autopilot.received(EntryKind.DRAIN)) == 1


def test_unsent_drain_does_not_overwrite_the_drain_that_somebody_set_meanwhile(autopilot: SmallAutopilot) -> None:
    begin_and_die(autopilot, DRAIN)
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="rack 1 (day-shift)")

    assert step(autopilot, DRAIN) is Stage.FAILED
    assert autopilot.node("gpu001").reason == "rack 1 (day-shift)"


def test_unsent_return_does_not_lift_the_drain_that_somebody_set_meanwhile(autopilot: SmallAutopilot) -> None:
    drain_ours(autopilot)
    resume = Action(verb=Verb.RESUME, incident=INCIDENT, node=GPU1)
    begin_and_die(autopilot, resume)
    autopilot.let_pass(1)
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="rack 1 (day-shift)")

    assert step(autopilot, resume) is Stage.FAILED
    assert autopilot.node("gpu001").is_drained


def test_unsent_reboot_is_not_sent_to_a_node_that_works_again(autopilot: SmallAutopilot) -> None:
    empty_and_drain(autopilot)
    reboot = Action(verb=Verb.REBOOT, incident=INCIDENT, node=GPU1, text="a test")
    begin_and_die(autopilot, reboot)
    autopilot.twin.command(EntryKind.RESUME, nodes=("gpu001",))
    autopilot.let_pass(LIMITS.reboot_limit.total_seconds())

    assert step(autopilot, reboot) is Stage.FAILED
    assert [entry for entry in autopilot.twin.entries() if entry.kind is EntryKind.REBOOT] == []


def test_unsent_command_waits_while_the_autopilot_is_paused(autopilot: SmallAutopilot) -> None:
    begin_and_die(autopilot, DRAIN)
    orders.pause(autopilot.cluster, actor="day-shift", reason="moving racks")

    while_paused = step(autopilot, DRAIN)
    orders.resume_autopilot(autopilot.cluster, actor="day-shift")
    drain_ours(autopilot)

    assert while_paused is Stage.WAITING
    assert len(autopilot.received(EntryKind.DRAIN)) == 1


def test_unsent_command_is_not_sent_by_a_process_that_lost_the_lease(autopilot: SmallAutopilot) -> None:
    begin_and_die(autopilot, DRAIN)

    assert step(autopilot, DRAIN, lease=Lease(holder="old", given="an outdated token")) is Stage.WAITING
    assert autopilot.received(EntryKind.DRAIN) == ()


@pytest.mark.parametrize(
    ("share", "is_sent"),
    [
        pytest.param(0.24, False, id="just before a quarter of the limit"),
        pytest.param(0.26, True, id="just after"),
    ],
)
def test_slow_command_is_sent_again_only_after_the_grace(
    autopilot: SmallAutopilot, share: float, is_sent: bool
) -> None:
    empty_and_drain(autopilot)
    reboot = Action(verb=Verb.REBOOT, incident=INCIDENT, node=GPU1, text="a test")
    record = ActionRecord(
        action=reboot,
        plan=None,
        begun_at=autopilot.clock.now(),
        boot_id_before=autopilot.cluster.fleet.inspect(GPU1).boot_id,
    )
    autopilot.cluster.ledger.begin(
        as_step(record, autopilot.cluster.ledger),
        guard=allow,
        lease_token=None,
        actor=AUTOPILOT,
        now=autopilot.clock.now(),
    )
    autopilot.let_pass(LIMITS.reboot_limit.total_seconds() * share)

    step(autopilot, reboot)

    assert (autopilot.received(EntryKind.REBOOT) != ()) is is_sent


@pytest.mark.parametrize("share", [0.0, 0.5, 2.0])
def test_slow_command_that_was_accepted_is_never_sent_again(autopilot: SmallAutopilot, share: float) -> None:
    empty_and_drain(autopilot)
    deaf = make_deaf(autopilot, "reboot")
    reboot = Action(verb=Verb.REBOOT, incident=INCIDENT, node=GPU1, text="a test")
    step(autopilot, reboot)

    autopilot.let_pass(LIMITS.reboot_limit.total_seconds() * share)
    step(autopilot, reboot)

    assert deaf.asked_count == 1


@pytest.mark.parametrize(
    ("beyond_seconds", "stage"),
    [
        pytest.param(-0.1, Stage.UNDER_WAY, id="just before the limit"),
        pytest.param(0.0, Stage.UNDER_WAY, id="exactly at the limit"),
        pytest.param(0.1, Stage.FAILED, id="just after"),
    ],
)
def test_accepted_command_without_effect_fails_after_its_limit(
    autopilot: SmallAutopilot, beyond_seconds: float, stage: Stage
) -> None:
    make_deaf(autopilot, "drain")
    step(autopilot, DRAIN)
    autopilot.let_pass(LIMITS.command_limit.total_seconds() + beyond_seconds)

    assert step(autopilot, DRAIN) is stage


def test_what_cannot_be_witnessed_within_the_limit_is_unknown_and_not_failed(autopilot: SmallAutopilot) -> None:
    empty_and_drain(autopilot)
    autopilot.cluster = replace(autopilot.cluster, fleet=cast("Fleet", NoInspection(autopilot.cluster.fleet)))
    reboot = Action(verb=Verb.REBOOT, incident=INCIDENT, node=GPU1, text="a test")
    step(autopilot, reboot)
    autopilot.let_pass(LIMITS.reboot_limit.total_seconds() + 1)

    assert step(autopilot, reboot) is Stage.FAILED
    outcome = record_of(autopilot, reboot).outcome
    assert outcome is not None
    assert outcome.kind is OutcomeKind.UNKNOWN


def test_command_without_an_answer_is_not_repeated_when_its_effect_shows(autopilot: SmallAutopilot) -> None:
    make_deaf(autopilot, "drain", SourceUnavailable("timed out"))
    no_answer = step(autopilot, DRAIN)
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason=DRAIN.text)  # It did arrive.

    assert no_answer is Stage.UNDER_WAY
    assert step(autopilot, DRAIN) is Stage.DONE
    assert len(autopilot.received(EntryKind.DRAIN)) == 1


def test_command_that_never_gets_an_answer_is_given_up_after_its_limit(autopilot: SmallAutopilot) -> None:
    make_deaf(autopilot, "drain", SourceUnavailable("timed out"))
    stages = []
    for _ in range(8):
        stages.append(step(autopilot, DRAIN))
        autopilot.let_pass(2)

    assert stages[:5] == [Stage.UNDER_WAY] * 5
    assert stages[-1] is Stage.FAILED


def test_refused_command_has_failed_at_once(autopilot: SmallAutopilot) -> None:
    make_deaf(autopilot, "drain", SourceRefused("access denied"))

    assert step(autopilot, DRAIN) is Stage.FAILED


def test_guardrail_that_says_later_begins_nothing(autopilot: SmallAutopilot) -> None:
    reboot = Action(verb=Verb.REBOOT, incident=INCIDENT, node=GPU1, text="a test")
    drain_ours(autopilot)

    assert step(autopilot, reboot) is Stage.WAITING  # Its job still runs.
    assert [each.action.verb for each in autopilot.cluster.ledger.records(INCIDENT)] == [Verb.DRAIN]


def test_guardrail_that_says_never_fails_and_sends_nothing(autopilot: SmallAutopilot) -> None:
    unknown = replace(DRAIN, node=NodeName("gpu999"))

    assert step(autopilot, unknown) is Stage.FAILED
    assert autopilot.commands() == []


def test_second_drain_of_the_same_moment_is_judged_on_what_the_first_has_taken(autopilot: SmallAutopilot) -> None:
    budget = replace(POLICY.drain_budget, max_out_count=1)
    autopilot.use_policy(replace(POLICY, drain_budget=budget))
    begin_and_die(autopilot, DRAIN)  # Spent, although no drain shows yet.

    second = Action(verb=Verb.DRAIN, incident=IncidentId("INC-0002"), node=GPU2, text="ops_pipelines INC-0002: a test")

    assert step(autopilot, second) is Stage.WAITING
    assert autopilot.received(EntryKind.DRAIN) == ()


def test_lease_of_another_process_begins_nothing(autopilot: SmallAutopilot) -> None:
    autopilot.cluster.ledger.take_lease(holder="another", ttl=TTL, now=autopilot.clock.now())

    assert step(autopilot, DRAIN, lease=Lease(holder="test", given="an outdated token")) is Stage.WAITING
    assert autopilot.cluster.ledger.records(INCIDENT) == ()


class SlowToSend:
    """A ledger after whose before-entry time passes, while somebody renews the lease."""

    def __init__(self, autopilot: SmallAutopilot, seconds: float) -> None:
        self._ledger = autopilot.cluster.ledger
        self._autopilot = autopilot
        self._seconds = seconds

    def __getattr__(self, name: str) -> object:
        return getattr(self._ledger, name)

    def begin(self, *args: object, **options: object) -> object:
        answer = self._ledger.begin(*args, **options)  # type: ignore[arg-type]  # as it is called
        self._autopilot.let_pass(self._seconds)
        return answer


@pytest.mark.parametrize(("seconds", "is_sent"), [(29, True), (30, True), (31, False), (600, False)])
def test_command_is_not_sent_on_facts_that_grew_old_since_its_before_entry_although_the_lease_was_kept(
    autopilot: SmallAutopilot, seconds: float, is_sent: bool
) -> None:
    cluster = replace(autopilot.cluster, clock=autopilot.clock)
    token = cluster.ledger.take_lease(holder="test", ttl=timedelta(hours=1), now=autopilot.clock.now())
    autopilot.cluster = replace(cluster, ledger=cast("Ledger", SlowToSend(autopilot, seconds)))

    step(autopilot, DRAIN, lease=Lease(holder="test", given=token))

    assert (autopilot.received(EntryKind.DRAIN) != ()) is is_sent
    assert (record_of(autopilot, DRAIN).sent_at is not None) is is_sent
    assert cluster.ledger.withheld(DRAIN.key) == (frozenset() if is_sent else {0})


def test_reboot_that_was_withheld_is_sent_by_the_next_pass_without_waiting_for_a_trace_of_it(
    autopilot: SmallAutopilot,
) -> None:
    empty_and_drain(autopilot)
    reboot = Action(verb=Verb.REBOOT, incident=INCIDENT, node=GPU1, text="a test")
    begin_and_die(autopilot, reboot)
    autopilot.cluster.ledger.withhold(reboot.key, sending=0, actor=AUTOPILOT, now=autopilot.clock.now())

    step(autopilot, reboot)

    assert len(autopilot.received(EntryKind.REBOOT)) == 1


def test_hold_of_a_job_that_ends_in_the_same_moment_is_not_needed(autopilot: SmallAutopilot) -> None:
    job = autopilot.job()
    assert job.attempt is not None
    hold = Action(verb=Verb.HOLD, incident=INCIDENT, attempt=job.attempt)
    autopilot.twin.command(EntryKind.CANCEL, job=job.job)

    assert step(autopilot, hold) is Stage.DONE
    assert autopilot.job().state is JobState.COMPLETING


def test_action_for_a_job_that_is_gone_is_not_needed_and_leaves_no_entry(autopilot: SmallAutopilot) -> None:
    gone = Action(
        verb=Verb.HOLD, incident=INCIDENT, attempt=JobAttempt(job=JobId("999"), started_at=autopilot.clock.now())
    )

    assert step(autopilot, gone) is Stage.DONE
    assert autopilot.cluster.ledger.records(INCIDENT) == ()


def test_power_is_not_cut_from_a_node_that_answers(autopilot: SmallAutopilot) -> None:
    drain_ours(autopilot)
    power_off = Action(verb=Verb.POWER_OFF, incident=INCIDENT, node=GPU1)

    assert step(autopilot, power_off) is Stage.DONE  # It lost its object.
    assert autopilot.received(EntryKind.POWER_OFF) == ()


def test_unsent_power_cut_is_not_sent_once_the_node_answers_again(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.NETWORK_PARTITION, "gpu001", seconds=10)
    autopilot.let_pass(4)
    drain_ours(autopilot)
    power_off = Action(verb=Verb.POWER_OFF, incident=INCIDENT, node=GPU1)
    begin_and_die(autopilot, power_off)
    autopilot.let_pass(timedelta(seconds=20).total_seconds())

    assert step(autopilot, power_off) is Stage.FAILED
    assert autopilot.received(EntryKind.POWER_OFF) == ()


def test_act_for_an_incident_that_is_over_is_not_begun(autopilot: SmallAutopilot) -> None:
    ledger, now = autopilot.cluster.ledger, autopilot.clock.now()
    plan = plan_named("PLAN-1", INCIDENT, DRAIN)
    keep_proved(ledger, plan, at=now)
    found = open_incident(1, at=now)
    acting = replace(advance(found, IncidentEvent.PLAN_BEGUN, at=now, note=""), plan=plan.plan)
    for state in (found, acting, advance(acting, IncidentEvent.NOTHING_TO_VERIFY, at=now, note="")):
        ledger.change_incident(state, actor=AUTOPILOT, now=now)

    progress = perform(Order(action=DRAIN, behind=plan.plan), autopilot.cluster, lease=autopilot.lease)

    assert progress.stage is Stage.FAILED
    assert "INC-0001 is over" in progress.reason
    assert autopilot.commands() == []


@pytest.mark.parametrize("what", ["superseded", "another plan"])
def test_act_of_a_plan_that_is_not_in_force_any_more_is_not_begun(autopilot: SmallAutopilot, what: str) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.observe_and_decide()
    incident, now = autopilot.incident(), autopilot.clock.now()
    (plan,) = autopilot._plans
    acting = replace(advance(incident, IncidentEvent.PLAN_BEGUN, at=now, note=""), plan=plan.plan, plan_count=1)
    after = advance(acting, IncidentEvent.SUPERSEDED, at=now, note="")
    keep_proved(autopilot.cluster.ledger, plan_named("PLAN-2", incident.incident), at=now)
    if what == "another plan":
        after = replace(advance(after, IncidentEvent.PLAN_BEGUN, at=now, note=""), plan=PlanId("PLAN-2"))
    for state in (acting, after):
        autopilot.cluster.ledger.change_incident(state, actor=AUTOPILOT, now=now)

    progress = perform(Order(action=plan.actions[0], behind=plan.plan), autopilot.cluster, lease=autopilot.lease)

    assert progress.stage is Stage.WAITING
    assert "another plan has taken its place" in progress.reason
    assert autopilot.commands() == []


def test_act_on_a_verdict_that_new_evidence_has_overtaken_is_not_begun(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.observe_and_decide()
    as_read = replace(autopilot.incident(), note="as it was a moment ago")

    progress = perform(Order(action=DRAIN), autopilot.cluster, lease=autopilot.lease, judged_on=as_read)

    assert progress.stage is Stage.WAITING
    assert autopilot.commands() == []


class OneMarkedJob:
    """A scheduler whose jobs are held as on a silent Slurm node: marked, and running on."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def read_jobs(self) -> tuple[JobStatus, ...]:
        return tuple(
            replace(job, is_held=True) if job.state is JobState.RUNNING else job for job in self._scheduler.read_jobs()
        )


def test_job_that_was_only_marked_is_requeued_when_its_nodes_answer_again(autopilot: SmallAutopilot) -> None:
    attempt = autopilot.job().attempt
    assert attempt is not None
    fence = Action(verb=Verb.FENCE, incident=INCIDENT, attempt=attempt)
    cluster = autopilot.cluster
    hold = ActionRecord(
        action=replace(fence, verb=Verb.HOLD),
        plan=None,
        begun_at=cluster.clock.now(),
        attempt_nodes=autopilot.job().nodes,
    )
    begun = as_step(hold, cluster.ledger)
    cluster.ledger.begin(begun, guard=allow, lease_token=None, actor="test", now=cluster.clock.now())
    autopilot.cluster = replace(cluster, scheduler=cast("Scheduler", OneMarkedJob(cluster.scheduler)))

    step(autopilot, fence)

    assert autopilot.commands() == [EntryKind.HOLD]
