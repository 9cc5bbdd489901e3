"""Drains taken together: judged one by one, sent by reason, read back once; what does not end is left to `perform`."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.identity import IncidentId, NodeName, PlanId
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import Order
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.remediate import carry_out as at_once
from ops_pipelines.remediate.carry_out import carry_out_together
from ops_pipelines.remediate.guardrails.facts import drain_reason
from ops_pipelines.remediate.judgement import TTL, FreshFacts, Lease, read_facts
from ops_pipelines.remediate.perform import Progress, Stage, perform
from ops_pipelines_lab.simulator.journal import EntryKind
from tests.ports.proved_plans import allow, keep_proved, plan_named
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot

PLAN = PlanId("PLAN-000000000001")


class Reluctant:
    """A scheduler that answers some drains with a problem, and counts what it is asked."""

    def __init__(self, scheduler: Scheduler, problem: Exception, *, of: str = "", takes_effect: bool = False) -> None:
        self._scheduler = scheduler
        self._problem = problem
        self._of = of
        self._takes_effect = takes_effect
        self.batches: list[frozenset[NodeName]] = []
        self.reading_count = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def read_jobs(self) -> tuple[JobStatus, ...]:
        self.reading_count += 1
        return self._scheduler.read_jobs()

    def drain(self, nodes: Collection[NodeName], *, reason: str) -> None:
        self.batches.append(frozenset(nodes))
        if self._of in nodes:
            if self._takes_effect:
                self._scheduler.drain(nodes, reason=reason)
            raise self._problem
        self._scheduler.drain(nodes, reason=reason)


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, node_count=12)
    autopilot.let_pass(5)
    keep_proved(autopilot.cluster.ledger, plan_named(PLAN, "INC-0001"), at=autopilot.clock.now())
    return autopilot


def order(number: int, *, incident: int | None = None, text: str | None = None) -> Order:
    name = IncidentId(f"INC-{incident if incident is not None else number:04d}")
    why = text if text is not None else drain_reason(name, "a test")
    action = Action(verb=Verb.DRAIN, incident=name, node=NodeName(f"gpu{number:03d}"), text=why)
    return Order(action=action, behind=PLAN)


def drain(autopilot: SmallAutopilot, *orders: Order, lease: Lease | None = None) -> list[Progress]:
    progress = carry_out_together(orders, autopilot.cluster, lease=lease or autopilot.lease)
    return [progress[each.action.key] for each in orders]


def record_of(autopilot: SmallAutopilot, which: Order) -> ActionRecord:
    return autopilot.cluster.ledger.records(which.action.incident)[0]


def make_reluctant(autopilot: SmallAutopilot, problem: Exception, *, of: str, takes_effect: bool = False) -> Reluctant:
    reluctant = Reluctant(autopilot.cluster.scheduler, problem, of=of, takes_effect=takes_effect)
    autopilot.cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", reluctant))
    return reluctant


def test_drains_end_witnessed_with_the_time_that_the_scheduler_gives(autopilot: SmallAutopilot) -> None:
    orders = [order(1), order(2)]

    stages = [each.stage for each in drain(autopilot, *orders)]

    assert stages == [Stage.DONE, Stage.DONE]
    for each in orders:
        record = record_of(autopilot, each)
        assert record.outcome is not None
        assert record.outcome.kind is OutcomeKind.DONE
        assert record.outcome.witnessed_at == autopilot.node(str(each.action.node)).reason_set_at


def test_no_order_asks_nobody(autopilot: SmallAutopilot) -> None:
    assert carry_out_together([], autopilot.cluster, lease=autopilot.lease) == {}
    assert autopilot.commands() == []


def test_equal_reasons_are_one_command_and_the_ledger_has_an_entry_for_each_node(autopilot: SmallAutopilot) -> None:
    reluctant = make_reluctant(autopilot, SourceUnavailable("never"), of="none")
    shared = drain_reason(IncidentId("INC-0001"), "the leaf switch is gone")

    drain(autopilot, order(1, incident=1, text=shared), order(2, incident=1, text=shared), order(3))

    assert reluctant.batches == [{NodeName("gpu001"), NodeName("gpu002")}, {NodeName("gpu003")}]
    assert len(autopilot.cluster.ledger.records(IncidentId("INC-0001"))) == 2


@pytest.mark.parametrize("count", [7, 8, 9], ids=["one after the other", "by threads", "by threads, one more"])
def test_many_reasons_are_all_sent(tmp_path: Path, count: int) -> None:
    budget = replace(POLICY.drain_budget, max_out_count=12, max_out_per_rack_count=12, min_in_service_ratio=0.0)
    caps = replace(POLICY.blast_caps, max_out_per_partition_ratio=1.0)
    no_storm = replace(POLICY.mass_event, min_node_count=12)
    policy = replace(POLICY, drain_budget=budget, blast_caps=caps, mass_event=no_storm)
    autopilot = SmallAutopilot(tmp_path, node_count=12, gpus_per_node=1, policy=policy)
    keep_proved(autopilot.cluster.ledger, plan_named(PLAN, "INC-0001"), at=autopilot.clock.now())
    autopilot.let_pass(5)

    stages = [each.stage for each in drain(autopilot, *(order(number) for number in range(1, count + 1)))]

    assert stages == [Stage.DONE] * count
    assert sum(node.is_drained for node in autopilot.cluster.scheduler.read_nodes()) == count


def test_together_they_stay_within_the_budget(autopilot: SmallAutopilot) -> None:
    limit = POLICY.drain_budget.max_out_count

    stages = [each.stage for each in drain(autopilot, *(order(number) for number in range(1, limit + 3)))]

    assert stages == [Stage.DONE] * limit + [Stage.WAITING] * 2
    assert sum(node.is_drained for node in autopilot.cluster.scheduler.read_nodes()) == limit


def test_refused_node_has_failed_and_costs_the_others_nothing(autopilot: SmallAutopilot) -> None:
    make_reluctant(autopilot, SourceRefused("Invalid node name specified"), of="gpu002")
    shared = drain_reason(IncidentId("INC-0001"), "a test")

    progress = drain(autopilot, *(order(number, incident=1, text=shared) for number in (1, 2, 3)))

    assert [each.stage for each in progress] == [Stage.DONE, Stage.FAILED, Stage.DONE]
    assert "Invalid node name" in progress[1].reason


@pytest.mark.parametrize(("takes_effect", "stage"), [(True, Stage.DONE), (False, Stage.UNDER_WAY)])
def test_command_without_an_answer_is_judged_by_its_witness(
    autopilot: SmallAutopilot, takes_effect: bool, stage: Stage
) -> None:
    make_reluctant(autopilot, SourceUnavailable("no answer"), of="gpu001", takes_effect=takes_effect)

    (progress,) = drain(autopilot, order(1))

    assert progress.stage is stage


def test_what_was_begun_before_is_neither_sent_nor_ended_here(autopilot: SmallAutopilot) -> None:
    autopilot.cluster.ledger.begin(
        ActionRecord(action=order(1).action, plan=PLAN, begun_at=autopilot.clock.now()),
        guard=allow,
        lease_token=None,
        actor=AUTOPILOT,
        now=autopilot.clock.now(),
    )

    (progress,) = drain(autopilot, order(1))

    assert progress.stage is Stage.UNDER_WAY
    assert autopilot.commands() == []
    assert perform(order(1), autopilot.cluster, lease=autopilot.lease).stage is Stage.UNDER_WAY
    assert autopilot.commands() == [EntryKind.DRAIN]


def test_process_that_lost_the_lease_drains_nothing(autopilot: SmallAutopilot) -> None:
    autopilot.cluster.ledger.take_lease(holder="another", ttl=POLICY.durations.soak, now=autopilot.clock.now())

    (progress,) = drain(autopilot, order(1), lease=Lease(holder="old", given="an outdated token"))

    assert progress.stage is Stage.WAITING
    assert autopilot.commands() == []


def test_silent_scheduler_begins_nothing(autopilot: SmallAutopilot) -> None:
    class Silent:
        def read_nodes(self) -> object:
            raise SourceUnavailable("slurmctld did not answer")

    autopilot.cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", Silent()))
    before = autopilot.cluster.ledger.read_state(autopilot.clock.now())

    with pytest.raises(SourceUnavailable):
        drain(autopilot, order(1))

    assert autopilot.cluster.ledger.read_state(autopilot.clock.now()) == before


def read(autopilot: SmallAutopilot, *verbs: Verb) -> FreshFacts:
    return FreshFacts(facts=read_facts(verbs, autopilot.cluster), verbs=frozenset(verbs))


@pytest.mark.parametrize(("seconds", "reading_count"), [(1.9, 0), (2.0, 0), (2.1, 1)])
def test_what_was_just_read_serves_for_two_seconds(
    autopilot: SmallAutopilot, seconds: float, reading_count: int
) -> None:
    fresh = read(autopilot, Verb.DRAIN)
    reluctant = make_reluctant(autopilot, SourceUnavailable("never"), of="none")
    autopilot.let_pass(seconds)

    progress = carry_out_together([order(1)], autopilot.cluster, lease=autopilot.lease, fresh=fresh)

    assert [each.stage for each in progress.values()] == [Stage.DONE]
    assert reluctant.reading_count == reading_count


def test_what_was_read_for_other_acts_does_not_serve(autopilot: SmallAutopilot) -> None:
    fresh = read(autopilot, Verb.PAGE_HUMAN)  # For a page nobody asks the scheduler.

    progress = carry_out_together([order(1)], autopilot.cluster, lease=autopilot.lease, fresh=fresh)

    assert [each.stage for each in progress.values()] == [Stage.DONE]


def test_foreign_drain_since_then_is_seen_when_what_was_read_serves_no_more(autopilot: SmallAutopilot) -> None:
    fresh = read(autopilot, Verb.DRAIN)
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="rack 1 (day-shift)")
    autopilot.let_pass(2.1)

    progress = carry_out_together([order(1)], autopilot.cluster, lease=autopilot.lease, fresh=fresh)

    assert [each.stage for each in progress.values()] != [Stage.DONE]
    assert autopilot.node("gpu001").reason == "rack 1 (day-shift)"


def test_drains_of_others_since_it_was_read_count_against_the_budget(autopilot: SmallAutopilot) -> None:
    fresh = read(autopilot, Verb.DRAIN)
    limit = POLICY.drain_budget.max_out_count
    drain(autopilot, *(order(number) for number in range(2, limit + 2)))

    progress = carry_out_together([order(1)], autopilot.cluster, lease=autopilot.lease, fresh=fresh)

    assert [each.stage for each in progress.values()] == [Stage.WAITING]
    assert sum(node.is_drained for node in autopilot.cluster.scheduler.read_nodes()) == limit


def test_only_the_first_acts_are_judged_on_what_was_just_read(
    autopilot: SmallAutopilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_once, "AT_ONCE_COUNT", 1)
    fresh = read(autopilot, Verb.DRAIN)
    reluctant = make_reluctant(autopilot, SourceUnavailable("never"), of="none")

    progress = carry_out_together([order(1), order(2), order(3)], autopilot.cluster, lease=autopilot.lease, fresh=fresh)

    assert [each.stage for each in progress.values()] == [Stage.DONE] * 3
    assert reluctant.reading_count == 2


class Slow(Reluctant):
    """A scheduler whose commands take most of a lease."""

    def __init__(self, scheduler: Scheduler, autopilot: SmallAutopilot, *, seconds: float) -> None:
        super().__init__(scheduler, SourceUnavailable("never"), of="none")
        self._autopilot = autopilot
        self._seconds = seconds

    def drain(self, nodes: Collection[NodeName], *, reason: str) -> None:
        super().drain(nodes, reason=reason)
        self._autopilot.clock.wait(self._seconds)


@pytest.mark.parametrize(
    ("command_count", "holder", "stages"),
    [
        pytest.param(1, "us", [Stage.DONE] * 3, id="renewed between commands"),
        pytest.param(
            3, "us", [Stage.DONE, Stage.DONE, Stage.WAITING], id="all under one lease: it ends before the third"
        ),
        pytest.param(1, "others", [Stage.WAITING] * 3, id="another's lease is not extended"),
    ],
)
def test_a_storm_of_many_reasons_takes_longer_than_one_lease(
    autopilot: SmallAutopilot, monkeypatch: pytest.MonkeyPatch, command_count: int, holder: str, stages: list[Stage]
) -> None:
    monkeypatch.setattr(at_once, "COMMANDS_AT_ONCE_COUNT", command_count)
    slow = Slow(autopilot.cluster.scheduler, autopilot, seconds=TTL.total_seconds() * 0.6)
    autopilot.cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", slow))
    autopilot.clock.wait(2 * TTL.total_seconds())
    now = autopilot.clock.now()
    token = autopilot.cluster.ledger.take_lease(holder="us", ttl=TTL, now=now)
    if holder != "us":
        autopilot.clock.wait(2 * TTL.total_seconds())
        assert autopilot.cluster.ledger.take_lease(holder=holder, ttl=TTL, now=autopilot.clock.now())

    progress = drain(autopilot, order(1), order(2), order(3), lease=Lease(holder="us", given=token))

    assert [each.stage for each in progress] == stages
