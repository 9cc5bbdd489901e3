"""Being late: measured, compared with the scheduler's limit, reported once, and `auto` is `approve` until it is
over."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.cluster import SiteMeans
from ops_pipelines.core.health import HealthWord, judge_health
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.plan import Order
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Risk
from ops_pipelines.core.scheduler import Scheduler, SchedulerLimits
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.observe.intake import _unreachable, take_in_conditions
from ops_pipelines.remediate.guardrails.facts import drain_reason
from ops_pipelines.remediate.judgement import TTL
from ops_pipelines.remediate.oversight import beat, page_if_late, read_vital_signs
from ops_pipelines.remediate.perform import Stage as Step
from ops_pipelines.remediate.perform import perform
from ops_pipelines.remediate.timeliness import (
    RUN_START,
    SENSOR_TICK,
    STEADY,
    Lateness,
    in_force,
    note_lease,
    note_look,
    note_passing_server,
    note_refusals,
    note_run_start,
    note_silences,
    read_lateness,
)
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.ports.proved_plans import order_of
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.fake_clock import BEGINNING
from tests.simulator.small_cluster import GPU1, TRAINING

LOOK, CONFIRM = 15.0, 30.0
AUTO = replace(
    POLICY,
    mode=Mode.AUTO,
    durations=replace(
        POLICY.durations,
        look_every=timedelta(seconds=LOOK),
        confirm_unreachable_after=timedelta(seconds=CONFIRM),
        retry_after=timedelta(seconds=CONFIRM),
    ),
)
SILENCE = 300.0
PING = SILENCE / 3
NOTICING_ROOM = SILENCE / 2 - PING
"""So late may a look be before a silence is noticed too late."""
RUN_ROOM = SILENCE - PING - SENSOR_TICK.total_seconds() - LOOK - CONFIRM
"""So late may a run start."""

LATE = Lateness(since=BEGINNING, last_at=BEGINNING, why="a test")


class WithLimits:
    """A scheduler that gives silent nodes up after five minutes, or does not say."""

    def __init__(
        self, scheduler: Scheduler, *, silence: float | None = SILENCE, is_silent: bool = False, unguarded: str = ""
    ) -> None:
        self._unguarded = unguarded
        self._scheduler = scheduler
        self._silence = silence
        self._is_silent = is_silent

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def read_limits(self) -> SchedulerLimits:
        if self._is_silent:
            raise SourceUnavailable("no answer")
        return SchedulerLimits(
            silence_limit=None if self._silence is None else timedelta(seconds=self._silence),
            ping_interval=timedelta(seconds=PING),
            answer_limit=timedelta(0),
            is_every_down_node_returned=False,
            is_requeue_the_default=True,
            unguarded=self._unguarded,
        )


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5, policy=AUTO)
    autopilot.let_pass(15)
    return on(autopilot, WithLimits(autopilot.cluster.scheduler))


def on(autopilot: SmallAutopilot, scheduler: WithLimits) -> SmallAutopilot:
    cluster = autopilot.cluster
    # Measured here are seconds: the clock of the loop itself would add its own.
    autopilot.cluster = replace(cluster, scheduler=cast("Scheduler", scheduler), clock=autopilot.clock)
    return autopilot


def look_after(autopilot: SmallAutopilot, seconds: float) -> None:
    autopilot.let_pass(seconds)
    note_look(autopilot.cluster)


def start_run_after(autopilot: SmallAutopilot, seconds: float) -> None:
    requested_at = autopilot.clock.now()
    autopilot.let_pass(seconds)
    note_run_start(autopilot.cluster, requested_at=requested_at)


def is_late(autopilot: SmallAutopilot) -> bool:
    return read_lateness(autopilot.cluster.ledger, autopilot.clock.now()) is not None


def test_auto_asks_first_where_the_scheduler_guards_no_restart(autopilot: SmallAutopilot) -> None:
    on(autopilot, WithLimits(autopilot.cluster.scheduler, unguarded="there is none"))

    note_refusals(autopilot.cluster)

    lateness = read_lateness(autopilot.cluster.ledger, autopilot.clock.now())
    assert lateness is not None
    assert "restarts are not guarded: there is none" in lateness.why
    assert in_force(autopilot.cluster.rules.policy, lateness).mode is Mode.APPROVE


def test_a_guard_that_came_back_counts_after_a_while(autopilot: SmallAutopilot) -> None:
    scheduler = autopilot.cluster.scheduler
    note_refusals(on(autopilot, WithLimits(scheduler, unguarded="there is none")).cluster)

    on(autopilot, WithLimits(scheduler))
    for _ in range(6):
        autopilot.let_pass(120)
        note_refusals(autopilot.cluster)

    assert not is_late(autopilot)


def test_auto_is_approve_while_the_site_lacks_what_brings_a_node_back(autopilot: SmallAutopilot) -> None:
    on(autopilot, WithLimits(autopilot.cluster.scheduler))
    autopilot.cluster = replace(autopilot.cluster, means=frozenset(SiteMeans) - {SiteMeans.CHECK})

    note_refusals(autopilot.cluster)

    lateness = read_lateness(autopilot.cluster.ledger, autopilot.clock.now())
    assert lateness is not None
    assert "cluster.yaml names no start_check and read_check under fleet" in lateness.why
    assert in_force(autopilot.cluster.rules.policy, lateness).mode is Mode.APPROVE


def test_a_risk_that_is_taken_by_name_is_not_asked_about(autopilot: SmallAutopilot) -> None:
    on(autopilot, WithLimits(autopilot.cluster.scheduler, unguarded="there is none"))
    policy = replace(autopilot.cluster.rules.policy, accepted_risks={Risk.NO_START_GUARD: "an operator"})
    autopilot.cluster = replace(autopilot.cluster, rules=replace(autopilot.cluster.rules, policy=policy))

    note_refusals(autopilot.cluster)

    assert not is_late(autopilot)


@pytest.mark.parametrize("beyond", [-1.0, 0.0, 1.0])
def test_look_is_too_late_when_a_silence_would_be_noticed_after_half_of_the_limit(
    autopilot: SmallAutopilot, beyond: float
) -> None:
    note_look(autopilot.cluster)

    look_after(autopilot, LOOK + NOTICING_ROOM + beyond)

    assert is_late(autopilot) is (beyond >= 0)


@pytest.mark.parametrize("beyond", [-1.0, 0.0, 1.0])
def test_run_starts_too_late_when_its_hold_would_come_after_the_limit(autopilot: SmallAutopilot, beyond: float) -> None:
    note_look(autopilot.cluster)
    for _ in range(20):
        look_after(autopilot, LOOK)

    requested_at = autopilot.clock.now() - timedelta(seconds=RUN_ROOM + beyond)
    note_run_start(autopilot.cluster, requested_at=requested_at)

    assert is_late(autopilot) is (beyond >= 0)


@pytest.mark.parametrize("beyond", [-1.0, 0.0, 1.0])
def test_lease_that_was_not_renewed_in_time_is_late_when_a_hold_would_come_after_the_limit(
    autopilot: SmallAutopilot, beyond: float
) -> None:
    ledger, room = autopilot.cluster.ledger, RUN_ROOM - RUN_START.total_seconds()
    note_lease(autopilot.cluster)
    ledger.take_lease(holder="us", ttl=TTL, now=autopilot.clock.now())
    autopilot.let_pass(TTL.total_seconds() + room + beyond)

    note_lease(autopilot.cluster)

    lateness = read_lateness(ledger, autopilot.clock.now())
    assert (lateness is not None) is (beyond >= 0)
    assert lateness is None or f"nobody held the right to act for {room + beyond:g} s" in lateness.why


def test_lease_that_is_renewed_in_time_is_never_late(autopilot: SmallAutopilot) -> None:
    for _ in range(50):
        note_lease(autopilot.cluster)
        autopilot.cluster.ledger.take_lease(holder="us", ttl=TTL, now=autopilot.clock.now())
        autopilot.let_pass(TTL.total_seconds())

    assert not is_late(autopilot)
    assert autopilot.cluster.ledger.cursor("pace of lease") is None


@pytest.mark.parametrize("beyond", [-1.0, 0.0, 1.0])
def test_silence_that_was_first_seen_too_late_counts_when_the_scheduler_gives_the_node_up(
    tmp_path: Path, beyond: float
) -> None:
    """It reports the time of that; so long before as its limit says the node answered for the last time."""
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5, policy=AUTO)
    autopilot.let_pass(15)
    on(autopilot, WithLimits(autopilot.cluster.scheduler))
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)
    autopilot.let_pass(SILENCE)
    given_up_at = autopilot.node(GPU1).reason_set_at
    assert given_up_at is not None
    noticed_after = timedelta(seconds=SILENCE / 2 + LOOK + beyond)
    first_seen_at = given_up_at - timedelta(seconds=SILENCE) + noticed_after
    seen = _unreachable(autopilot.node(GPU1), first_seen_at)
    autopilot.cluster.ledger.take_in_conditions(source="scheduler", present=[seen], now=first_seen_at)

    for _ in range(2):
        note_silences(autopilot.cluster, autopilot.cluster.scheduler.read_nodes())
        autopilot.let_pass(1)

    lateness = read_lateness(autopilot.cluster.ledger, autopilot.clock.now())
    assert (lateness is not None) is (beyond >= 0)
    assert lateness is None or f"first seen {noticed_after.total_seconds():g} s after" in lateness.why


def test_node_that_was_given_up_long_ago_is_not_measured_again(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5, policy=AUTO)
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)
    autopilot.let_pass(SILENCE + 60)
    take_in_conditions(autopilot.cluster)

    note_silences(autopilot.cluster, autopilot.cluster.scheduler.read_nodes())

    assert autopilot.cluster.ledger.cursor("pace of notice") is None


def test_run_that_acts_while_nobody_looks_finds_that_itself(autopilot: SmallAutopilot) -> None:
    """The daemon has stopped, and a run that it started before comes to its acts."""
    note_look(autopilot.cluster)

    start_run_after(autopilot, LOOK + NOTICING_ROOM + 1)

    assert is_late(autopilot)


@pytest.mark.parametrize(
    "scheduler",
    [
        pytest.param({"silence": None}, id="nobody is given up"),
        pytest.param({"silence": 130.0}, id="the limit is too short for any pace: check-config reported so"),
        pytest.param({"is_silent": True}, id="the limits cannot be read"),
    ],
)
def test_nobody_is_late_where_no_promise_is_known_to_be_broken(
    autopilot: SmallAutopilot, scheduler: dict[str, object]
) -> None:
    on(autopilot, WithLimits(autopilot.cluster.scheduler, **scheduler))  # type: ignore[arg-type]  # rows of one kind
    note_look(autopilot.cluster)

    look_after(autopilot, 600)

    assert not is_late(autopilot)


def test_who_was_late_is_late_until_he_was_on_time_for_a_while(autopilot: SmallAutopilot) -> None:
    note_look(autopilot.cluster)
    look_after(autopilot, 100)
    began_at = autopilot.clock.now()
    late_until = began_at
    while is_late(autopilot):
        late_until = autopilot.clock.now()
        look_after(autopilot, LOOK)

    assert timedelta(0) < began_at + STEADY - late_until <= timedelta(seconds=LOOK)


def test_late_again_within_the_while_is_the_same_lateness(autopilot: SmallAutopilot) -> None:
    note_look(autopilot.cluster)
    look_after(autopilot, 100)
    first = read_lateness(autopilot.cluster.ledger, autopilot.clock.now())
    look_after(autopilot, 120)

    second = read_lateness(autopilot.cluster.ledger, autopilot.clock.now())

    assert first is not None
    assert second is not None
    assert second.since == first.since
    assert second.last_at > first.last_at


def test_while_late_auto_is_approve_for_all_but_isolation() -> None:
    policy = in_force(AUTO, LATE)

    assert policy.mode is Mode.APPROVE
    assert {kind: policy.consent_to(kind) for kind in ActionClass} == {
        **dict.fromkeys(ActionClass, Consent.APPROVE),
        ActionClass.ISOLATE: Consent.AUTO,
    }


@pytest.mark.parametrize("mode", list(Mode))
def test_lateness_loosens_nothing(mode: Mode) -> None:
    policy = replace(AUTO, mode=mode, consents={ActionClass.POWER: Consent.FORBID})

    late = in_force(policy, LATE)

    assert late.consent_to(ActionClass.POWER) is Consent.FORBID
    assert mode is Mode.AUTO or late == policy


def test_while_late_a_job_is_held_on_a_yes_only_and_a_drain_goes_on(autopilot: SmallAutopilot) -> None:
    incident = IncidentId("INC-0001")
    note_look(autopilot.cluster)
    look_after(autopilot, 100)
    drain = Action(verb=Verb.DRAIN, incident=incident, node=GPU1, text=drain_reason(incident, "a test"))
    hold = Action(verb=Verb.HOLD, incident=incident, attempt=autopilot.job().attempt)

    drained = perform(Order(action=drain), autopilot.cluster, lease=autopilot.lease)
    step = order_of(hold, autopilot.cluster.ledger, at=autopilot.clock.now())
    held = perform(step, autopilot.cluster, lease=autopilot.lease)
    autopilot.let_pass(STEADY.total_seconds())
    on_time = perform(step, autopilot.cluster, lease=autopilot.lease)

    assert drained.stage is Step.UNDER_WAY
    assert held.stage is Step.WAITING
    assert held.reason.startswith("approval: we are late, so auto is approve for now")
    assert "we are late" not in on_time.reason


def test_one_page_says_how_late_why_and_what_to_do_and_ends_when_on_time(autopilot: SmallAutopilot) -> None:
    note_look(autopilot.cluster)
    look_after(autopilot, 100)
    for _ in range(3):
        page_if_late(autopilot.cluster, lease=autopilot.lease)
    open_then = autopilot.incident().state
    autopilot.let_pass(STEADY.total_seconds())
    page_if_late(autopilot.cluster, lease=autopilot.lease)

    (page,) = autopilot.pages()
    assert "nodes were looked at 85 s late (5 s on an idle host)" in page.body
    assert "mode auto is approve since 2026-" in page.body
    assert "until we have been on time for 10 min" in page.body
    assert "CPU" in page.body
    assert open_then is IncidentState.ESCALATED
    assert autopilot.incident().state is not IncidentState.ESCALATED
    assert "on time again" in autopilot.incident().note


def test_status_shows_the_mode_that_is_in_force_and_why(autopilot: SmallAutopilot) -> None:
    note_look(autopilot.cluster)
    look_after(autopilot, 100)
    beat(autopilot.cluster, name="fault_sensor", holder="test", note="", answers={})

    signs = read_vital_signs(autopilot.cluster)
    health = judge_health(signs)

    assert signs.working_mode is Mode.APPROVE
    assert health.word is HealthWord.OBSERVING
    assert any("mode auto is approve until we have been on time" in reason for reason in health.reasons)
    assert not any("restart the code server" in reason for reason in health.reasons)


def test_what_is_reckoned_with_is_never_late(autopilot: SmallAutopilot) -> None:
    note_look(autopilot.cluster)
    for _ in range(50):
        look_after(autopilot, LOOK + SENSOR_TICK.total_seconds())
        note_run_start(autopilot.cluster, requested_at=autopilot.clock.now() - RUN_START)

    assert not is_late(autopilot)


@pytest.mark.parametrize("is_simulated", [False, True])
def test_code_server_that_its_caller_replaces_does_not_act_by_itself_on_a_real_cluster(
    autopilot: SmallAutopilot, is_simulated: bool
) -> None:
    cluster = replace(autopilot.cluster, is_simulated=is_simulated)

    note_passing_server(cluster)

    lateness = read_lateness(cluster.ledger, autopilot.clock.now())
    assert (lateness is None) is is_simulated
    assert lateness is None or "deploy/workspace.yaml" in lateness.why
