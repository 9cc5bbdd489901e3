"""Plans: started once, resumed where they stopped, handed to a person once, never in another's stead."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Fleet
from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.finding import Response
from ops_pipelines.core.incident import IncidentEvent, IncidentState, advance
from ops_pipelines.core.notes import Message
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.people import orders
from ops_pipelines.remediate.carry_out import carry_out, carry_out_drains, plans_to_carry_out
from ops_pipelines.remediate.gate import PlanReport
from ops_pipelines.remediate.perform import Stage
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import POLICY, MessagesInMemory, SmallAutopilot
from tests.simulator.small_cluster import SESSION, TRAINING


class FleetWithoutEffect:
    """A fleet that accepts some commands and does nothing."""

    def __init__(self, fleet: Fleet, *commands: str) -> None:
        self._fleet = fleet
        self._commands = commands

    def __getattr__(self, name: str) -> object:
        return (lambda *_, **__: None) if name in self._commands else getattr(self._fleet, name)


class SlowScheduler:
    """A scheduler that takes 4 s to list its nodes."""

    def __init__(self, autopilot: SmallAutopilot) -> None:
        self._autopilot = autopilot
        self._scheduler = autopilot.cluster.scheduler

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def read_nodes(self) -> object:
        self._autopilot.let_pass(4)
        return self._scheduler.read_nodes()


class DeadNotifier(MessagesInMemory):
    def send(self, message: Message) -> str:
        raise SourceUnavailable("no channel took the message")


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.observe_and_decide()
    return autopilot


@pytest.fixture
def hasty(tmp_path: Path) -> SmallAutopilot:
    """Return an idle broken node, and passes that wait for next to nothing."""
    durations = replace(POLICY.durations, run_patience=timedelta(seconds=1))
    autopilot = SmallAutopilot(tmp_path, node_count=3, gpus_per_node=2, policy=replace(POLICY, durations=durations))
    autopilot.let_pass(5)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=1)
    return autopilot


def carry(autopilot: SmallAutopilot, *plans: IncidentPlan, patience_seconds: float = 12) -> PlanReport:
    (report,) = carry_out(
        plans or autopilot._plans,
        autopilot.cluster,
        lease=autopilot.lease,
        patience=timedelta(seconds=patience_seconds),
    )
    return report


def test_plan_in_force_comes_before_a_fresh_one_of_the_same_incident(autopilot: SmallAutopilot) -> None:
    (fresh,) = autopilot._plans
    carry(autopilot, patience_seconds=0)
    (incident,) = autopilot.incidents()
    other = replace(fresh, reason="made from an older snapshot")

    (chosen,) = plans_to_carry_out((other,), (incident,), autopilot.cluster)

    assert chosen == fresh


def test_plan_that_another_has_taken_the_place_of_is_not_begun(autopilot: SmallAutopilot) -> None:
    (plan,) = autopilot._plans
    carry(autopilot, patience_seconds=0)
    acting = autopilot.incident()
    waiting = advance(acting, IncidentEvent.SUPERSEDED, at=autopilot.clock.now(), note="new evidence")
    escalated = advance(waiting, IncidentEvent.NEEDS_HUMAN, at=autopilot.clock.now(), note="a test")
    for each in (waiting, escalated):
        autopilot.cluster.ledger.change_incident(each, actor="test", now=autopilot.clock.now())
    before = autopilot.commands()

    report = carry(autopilot, plan)

    assert report.stage is Stage.WAITING
    assert autopilot.commands() == before


def test_pass_stops_waiting_after_its_patience_and_the_next_one_goes_on(autopilot: SmallAutopilot) -> None:
    first = carry(autopilot, patience_seconds=0)
    autopilot.let_pass(1)
    second = carry(autopilot)

    assert first.stage is Stage.UNDER_WAY
    assert second.stage is Stage.DONE
    assert len(autopilot.received(EntryKind.DRAIN)) == 1


def test_slow_scheduler_delays_a_plan_and_does_not_keep_it_from_its_end(autopilot: SmallAutopilot) -> None:
    autopilot.cluster = replace(autopilot.cluster, scheduler=cast("object", SlowScheduler(autopilot)))  # type: ignore[arg-type]  # a fake

    for _ in range(8):
        report = carry(autopilot)

    assert report.stage is Stage.DONE


def test_repair_without_a_witness_is_followed_by_the_next_rung(hasty: SmallAutopilot) -> None:
    hasty.cluster = replace(hasty.cluster, fleet=cast("Fleet", FleetWithoutEffect(hasty.cluster.fleet, "reboot")))

    hasty.run_until(IncidentState.RESOLVED, seconds=150)

    (tried,) = hasty.incident().tries
    assert tried.response is Response.REBOOT_NODE
    assert "reboot of gpu001 did not succeed: no witness within 60 s" in tried.why
    assert hasty.received(EntryKind.REBOOT) == ()
    assert len(hasty.received(EntryKind.POWER_OFF, EntryKind.POWER_ON)) == 2
    assert hasty.pages() == []


def test_node_that_no_repair_helps_is_handed_over_once_the_page_is_out(hasty: SmallAutopilot) -> None:
    fleet = cast("Fleet", FleetWithoutEffect(hasty.cluster.fleet, "reboot", "power_on"))
    hasty.cluster = replace(hasty.cluster, fleet=fleet, notifier=DeadNotifier())
    hasty.run_for(170)
    before = hasty.incident()
    hasty.cluster = replace(hasty.cluster, notifier=hasty.messages)

    hasty.run_until(IncidentState.IN_REPAIR, seconds=30)
    hasty.run_for(12)

    assert before.state is IncidentState.ACTING
    assert before.response is Response.RETURN_TO_VENDOR
    assert [each.response for each in hasty.incident().tries] == [Response.REBOOT_NODE, Response.POWER_CYCLE]
    (page,) = hasty.pages()
    assert "gpu001 needs hands" in page.body
    assert hasty.node("gpu001").is_drained


def test_step_that_fails_while_a_job_is_held_is_no_rung_but_a_persons(autopilot: SmallAutopilot) -> None:
    class NeverReleases:
        def __getattr__(self, name: str) -> object:
            return getattr(scheduler, name)

        def release(self, job: str) -> None:
            return None

    scheduler = autopilot.cluster.scheduler
    autopilot.cluster = replace(autopilot.cluster, scheduler=cast("object", NeverReleases()))  # type: ignore[arg-type]  # a fake

    autopilot.run_until(IncidentState.ESCALATED)

    (page,) = autopilot.pages()
    assert "release of job 1001 did not succeed" in page.body
    assert "Still held, to be released by you: job 1001" in page.body
    assert autopilot.incident().tries == ()


def test_paused_autopilot_does_not_begin_a_plan(autopilot: SmallAutopilot) -> None:
    orders.pause(autopilot.cluster, actor="day-shift", reason="a test")

    report = carry(autopilot)

    assert report.stage is Stage.WAITING
    assert autopilot.incident().state is IncidentState.OPEN


def test_job_that_never_ends_is_handed_to_a_person_after_its_limit(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, SESSION, node_count=3)
    durations = replace(autopilot.cluster.rules.policy.durations, job_end_limit=timedelta(seconds=30))
    autopilot.use_policy(replace(autopilot.cluster.rules.policy, durations=durations))
    autopilot.let_pass(15)
    (node,) = autopilot.job("notebook").nodes
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=7)

    autopilot.run_until(IncidentState.ESCALATED)
    autopilot.run_for(10)

    assert len(autopilot.pages()) == 1
    assert autopilot.commands() == [EntryKind.DRAIN]


def test_change_of_the_incident_by_somebody_else_ends_the_pass_without_an_act(autopilot: SmallAutopilot) -> None:
    ledger = autopilot.cluster.ledger

    class Overtaken:
        def __getattr__(self, name: str) -> object:
            return getattr(ledger, name)

        def change_incidents(self, incident: object, *, actor: str, now: datetime) -> None:
            raise LedgerConflict("the incident is escalated by now")

    autopilot.cluster = replace(autopilot.cluster, ledger=cast("object", Overtaken()))  # type: ignore[arg-type]  # a fake

    assert carry(autopilot).stage is Stage.WAITING
    assert autopilot.commands() == []


def test_steps_are_reported_in_the_order_of_the_plan(autopilot: SmallAutopilot) -> None:
    report = carry(autopilot)

    assert [step.action for step in report.steps] == list(report.plan.actions)
    assert report.plan.actions[-1].verb is Verb.REBOOT


@pytest.mark.parametrize("is_reflex", [True, False])
def test_plan_of_an_incident_that_is_over_drains_nothing(autopilot: SmallAutopilot, is_reflex: bool) -> None:
    ledger, now = autopilot.cluster.ledger, autopilot.clock.now()
    incident = autopilot.incident()
    plans = tuple(autopilot._plans)
    ledger.change_incident(advance(incident, IncidentEvent.CLEARED, at=now, note="a false alarm"), actor="ada", now=now)

    if is_reflex:
        carry_out_drains(plans, autopilot.cluster, lease=autopilot.lease)
    else:
        carry_out(plans, autopilot.cluster, lease=autopilot.lease, patience=timedelta(0))

    assert plans != ()
    assert autopilot.commands() == []


def test_job_that_has_ended_and_is_still_listed_calls_for_no_other_plan(tmp_path: Path) -> None:
    ended = replace(TRAINING, name="ended", node_count=1, gpus_per_node=1)
    staying = replace(SESSION, name="staying")
    durations = replace(POLICY.durations, run_patience=timedelta(seconds=1))
    autopilot = SmallAutopilot(
        tmp_path, ended, staying, node_count=3, gpus_per_node=2, policy=replace(POLICY, durations=durations)
    )
    autopilot.let_pass(15)
    (node,) = autopilot.job("staying").nodes
    autopilot.twin.command(EntryKind.CANCEL, job=autopilot.job("ended").job)
    autopilot.let_pass(3)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=0)

    autopilot.run_for(20)

    assert autopilot.job("ended").nodes == {node}
    assert (autopilot.incident().state, autopilot.incident().plan_count) == (IncidentState.ACTING, 1)
