"""Plans: begun once, resumed where they stopped, handed to a person once, never in another's stead."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.domain.action import Verb
from ops_pipelines.domain.incident import IncidentEvent, IncidentState, advance
from ops_pipelines.domain.remediation import IncidentPlan
from ops_pipelines.flow import people
from ops_pipelines.flow.carry_out import PlanReport, carry_out, carry_out_drains, plans_to_carry_out
from ops_pipelines.flow.perform import Stage
from ops_pipelines.ports.fleet import Fleet
from ops_pipelines.ports.ledger import LedgerConflict
from ops_pipelines.ports.notifier import Message
from ops_pipelines.ports.source_error import SourceUnavailable
from ops_pipelines.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import MessagesInMemory, SmallAutopilot
from tests.simulator.small_cluster import SESSION, TRAINING


class FleetWithoutEffect:
    """A fleet that accepts a reboot and does not reboot."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def __getattr__(self, name: str) -> object:
        return getattr(self._fleet, name)

    def reboot(self, node: str, *, reason: str) -> None:
        return None


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

    for _ in range(6):
        report = carry(autopilot)

    assert report.stage is Stage.DONE


def test_step_without_a_witness_hands_the_incident_to_a_person_once(autopilot: SmallAutopilot) -> None:
    fleet = cast("Fleet", FleetWithoutEffect(autopilot.cluster.fleet))
    autopilot.cluster = replace(autopilot.cluster, fleet=fleet)

    autopilot.run_for(150)

    assert autopilot.incident().state is IncidentState.ESCALATED
    assert "reboot of gpu001 did not succeed" in autopilot.incident().note
    assert len(autopilot.pages()) == 1
    assert autopilot.node("gpu001").is_drained


def test_incident_stays_ours_until_the_page_is_out(autopilot: SmallAutopilot) -> None:
    fleet = cast("Fleet", FleetWithoutEffect(autopilot.cluster.fleet))
    autopilot.cluster = replace(autopilot.cluster, fleet=fleet)
    while autopilot.received(EntryKind.RELEASE) == ():
        carry(autopilot)
    autopilot.cluster = replace(autopilot.cluster, notifier=DeadNotifier())
    autopilot.run_for(150)
    state_before = autopilot.incident().state
    autopilot.cluster = replace(autopilot.cluster, notifier=autopilot.messages)

    autopilot.run_for(10)

    assert state_before is IncidentState.ACTING
    assert autopilot.incident().state is IncidentState.ESCALATED
    assert len(autopilot.pages()) == 1


def test_paused_autopilot_does_not_begin_a_plan(autopilot: SmallAutopilot) -> None:
    people.pause(autopilot.cluster, actor="day-shift", reason="a test")

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
