"""A replay of what a cluster lived through: the same policy decides the same again, another one otherwise."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import EntryKind, LedgerError
from ops_pipelines.core.identity import Digest
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.plan import IncidentPlan, Snapshot
from ops_pipelines.core.policy import Mode, Policy
from ops_pipelines.core.record import Decided
from ops_pipelines.observe.intake import take_in_logs
from ops_pipelines.people.orders import approve
from ops_pipelines.remediate.carry_out import carry_out, plans_to_carry_out
from ops_pipelines.remediate.decide import Decision, decide
from ops_pipelines.remediate.gate import prove_and_record
from ops_pipelines.remediate.reflex import react
from ops_pipelines.remediate.snapshot import find_in, keep, record_findings, take_snapshot
from ops_pipelines.resources.documents import encode
from ops_pipelines.resources.ledger.state import LedgerChronicle, rules_document
from ops_pipelines.review.replay import replay
from ops_pipelines.review.replay_result import Difference, History, Replay
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.fake_clock import BEGINNING

TRAINING = JobSpec(name="pretrain", user="u", account="research", workload=Workload.TRAINING, node_count=4)
END = BEGINNING + timedelta(days=1)


class RecordingAutopilot(SmallAutopilot):
    """An autopilot whose rules and refusals are kept, as in production."""

    def keep_rules(self) -> None:
        digest = self.cluster.ledger.store(rules_document(self.cluster.rules))
        self.cluster = replace(self.cluster, rules_digest=digest)
        self.decided: list[tuple[Digest, Decision]] = getattr(self, "decided", [])

    def observe_and_decide(self) -> None:
        snapshot = take_snapshot(self.cluster).snapshot
        decision = decide(snapshot, self.cluster.rules)
        digest = self.cluster.ledger.store_snapshot(snapshot)
        prove_and_record(
            decision,
            snapshot,
            inputs=digest,
            cluster=self.cluster,
            expected_head=snapshot.ledger_head,
            incidents=decision.incidents,
        )
        self.decided.append((digest, decision))
        self._plans, self._refusals = decision.plans, decision.refusals


def history_of(cluster: Cluster) -> History:
    return History(
        cluster="small",
        chronicle=LedgerChronicle(cluster.ledger),
        lake=None,
        present=cluster.rules,
        release={},
        step_seconds=15,
    )


def live_through(directory: Path, *, policy: Policy = POLICY) -> RecordingAutopilot:
    """Return an autopilot after a minute in which the GPUs of two nodes broke and a third fell silent."""
    autopilot = RecordingAutopilot(directory, TRAINING, node_count=12, policy=policy)
    autopilot.keep_rules()
    autopilot.let_pass(5)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu002", gpu=3)
    autopilot.let_pass(2)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu009", gpu=1)
    autopilot.run_for(6)
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu011")
    autopilot.run_for(18)
    return autopilot


def again(autopilot: RecordingAutopilot, policy: Policy) -> Replay:
    return replay(history_of(autopilot.cluster), policy, proposed="new.yaml", since=BEGINNING, until=END)


@pytest.fixture(scope="module")
def yesterday(tmp_path_factory: pytest.TempPathFactory) -> RecordingAutopilot:
    return live_through(tmp_path_factory.mktemp("yesterday"))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> RecordingAutopilot:
    """A day on which the autopilot only observed."""
    return live_through(tmp_path_factory.mktemp("watched"), policy=replace(POLICY, mode=Mode.OBSERVE))


class ReadOnly:
    """A ledger that fails when anything but its reading side is touched."""

    _READING = frozenset({"entries", "load", "load_snapshot", "incident", "incidents_since", "records", "checks"})

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> object:
        if name not in self._READING:
            raise AssertionError(f"a replay touched {name}")
        return getattr(self._ledger, name)


def test_every_decision_comes_out_the_same_byte_for_byte_under_the_policy_that_ran(
    yesterday: RecordingAutopilot,
) -> None:
    chronicle = LedgerChronicle(yesterday.cluster.ledger)

    for digest, decided in yesterday.decided:
        snapshot = chronicle.snapshot(digest)
        rules = chronicle.rules(snapshot.rules_digest)
        assert rules is not None
        assert encode(decide(snapshot, rules)) == encode(decided)


def test_what_the_reflex_and_the_run_after_it_decided_comes_out_the_same(tmp_path: Path) -> None:
    autopilot = RecordingAutopilot(tmp_path, TRAINING, node_count=12)
    autopilot.keep_rules()
    cluster, ledger = autopilot.cluster, autopilot.cluster.ledger
    autopilot.let_pass(5)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu002", gpu=3)
    autopilot.let_pass(1)
    take_in_logs(cluster)
    react(cluster, lease=autopilot.lease)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu009", gpu=3)
    for _ in range(3):  # As the job does: first what is wrong, then what to do, each with a line of its own.
        autopilot.let_pass(2)
        kept = keep(take_snapshot(cluster).snapshot, cluster)
        kept = record_findings(find_in(kept, cluster), cluster).found.kept
        decision = decide(kept.snapshot, cluster.rules)
        prove_and_record(decision, kept.snapshot, inputs=kept.digest, cluster=cluster, expected_head=None, incidents=())
        present = ledger.read_state(autopilot.clock.now()).incidents
        plans = plans_to_carry_out(decision.plans, present, cluster)
        carry_out(plans, cluster, lease=autopilot.lease, patience=timedelta(seconds=6))

    found = again(autopilot, POLICY)

    lines = [each for each in ledger.entries(after=0, limit=500) if each.kind is EntryKind.DECISION]
    assert found.reproduction.decision_count == found.reproduction.same_count == len(lines) > 2
    assert found.stretches[0].decision_count < len(lines)
    assert {act.difference for act in found.acts} == {Difference.SAME}
    assert {node for act in found.acts for node in act.nodes} == {"gpu002", "gpu009"}


def test_the_same_policy_does_what_was_done_and_nothing_else(yesterday: RecordingAutopilot) -> None:
    found = again(yesterday, POLICY)

    again_made = found.reproduction
    assert again_made.decision_count == again_made.same_count > 3
    assert (again_made.different, again_made.unreadable_count, again_made.without_rules_count) == ((), 0, 0)
    assert {act.difference for act in found.acts} == {Difference.SAME}
    assert found.then == found.new
    assert (found.policy_differences, found.plan_difference_count, found.understanding_difference_count) == ((), 0, 0)
    assert not any(act.is_counterfactual for act in found.acts)
    planned = {act.key for plan in _plans(yesterday) for act in plan.actions}
    begun = [each for each in _records(yesterday) if each.action.key in planned]
    assert len([act for act in found.acts if act.done_at is not None]) == len(begun) > 8
    assert found.follow_up_count == len(_records(yesterday)) - len(begun)


def test_who_only_observes_understands_the_same_and_does_nothing(yesterday: RecordingAutopilot) -> None:
    found = again(yesterday, replace(POLICY, mode=Mode.OBSERVE))

    assert found.understanding_difference_count == 0
    assert found.new.node_act_count == 0
    assert {act.difference for act in found.acts} == {Difference.ONLY_THEN}
    assert all(act.why.startswith("mode: ") for act in found.acts)
    assert found.new.refusals["mode"] == len(yesterday.incidents())
    assert [(key.key, key.then, key.new) for key in found.policy_differences] == [("mode", "auto", "observe")]


def test_a_tighter_budget_takes_away_exactly_what_the_budget_refuses(yesterday: RecordingAutopilot) -> None:
    tight = replace(POLICY, drain_budget=replace(POLICY.drain_budget, max_out_count=1))

    found = again(yesterday, tight)

    refused = {
        name
        for digest, _ in yesterday.decided
        for name, refusal in decide(
            yesterday.cluster.ledger.load_snapshot(digest), replace(yesterday.cluster.rules, policy=tight)
        ).refusals
        if refusal.guardrail == "drain_budget"
    }
    gone = [act for act in found.acts if act.difference is Difference.ONLY_THEN]
    assert {act.incident for act in gone} == refused != set()
    assert all(act.why.startswith("drain_budget: ") for act in gone)
    assert any(act.difference is Difference.SAME for act in found.acts)
    assert found.understanding_difference_count == 0


def test_the_acts_that_nobody_dared_to_do_are_new_and_what_follows_on_the_node_is_counterfactual(
    watched: RecordingAutopilot,
) -> None:
    found = again(watched, POLICY)

    assert found.then.node_act_count == 0
    assert found.new.node_act_count > 2
    assert {act.difference for act in found.acts} == {Difference.ONLY_NEW}
    assert all(act.done_at is None for act in found.acts)
    for node in ("gpu002", "gpu009", "gpu011"):
        of_node = [act for act in found.acts if node in act.nodes]
        first = min(act.at for act in of_node)
        assert [act.is_counterfactual for act in of_node] == [act.at > first for act in of_node]


def test_plans_that_a_person_approved_are_begun_at_the_yes_on_both_sides(tmp_path: Path) -> None:
    approve_first = replace(POLICY, mode=Mode.APPROVE)
    autopilot = RecordingAutopilot(tmp_path, node_count=12, policy=approve_first)
    autopilot.keep_rules()
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu009", gpu=1)
    autopilot.run_for(6)
    (plan,) = _plans(autopilot)
    approve(plan.plan, autopilot.cluster, actor="a person", valid_for=timedelta(hours=1))
    asked_at = autopilot.clock.now()
    autopilot.run_for(6)

    same = again(autopilot, approve_first)
    by_itself = again(autopilot, POLICY)

    assert {act.difference for act in same.acts} == {Difference.SAME}
    assert {act.at for act in same.acts} == {asked_at}
    assert (same.new.approval_count, by_itself.then.approval_count, by_itself.new.approval_count) == (1, 1, 0)
    assert {act.difference for act in by_itself.acts} == {Difference.OTHER_MOMENT}
    assert all(act.new_at and act.then_at and act.new_at < act.then_at for act in by_itself.acts)
    assert all(act.why.startswith("approval: ") for act in by_itself.acts)


def test_a_replay_reads_and_nothing_else(yesterday: RecordingAutopilot) -> None:
    head = yesterday.cluster.ledger.verify_chain().head_hash
    ledger = cast("Ledger", ReadOnly(yesterday.cluster.ledger))
    history = replace(history_of(yesterday.cluster), chronicle=LedgerChronicle(ledger))

    replay(history, replace(POLICY, mode=Mode.APPROVE), proposed="new.yaml", since=BEGINNING, until=END)

    assert yesterday.cluster.ledger.verify_chain().head_hash == head


def test_snapshots_of_another_version_are_counted_and_the_rest_is_replayed(yesterday: RecordingAutopilot) -> None:
    class Forgetful(LedgerChronicle):
        def snapshot(self, digest: Digest) -> Snapshot:
            if digest == yesterday.decided[0][0]:
                raise LedgerError("a stored Snapshot does not fit this program")
            return super().snapshot(digest)

    history = replace(history_of(yesterday.cluster), chronicle=Forgetful(yesterday.cluster.ledger))

    found = replay(history, POLICY, proposed="new.yaml", since=BEGINNING, until=END)

    assert found.reproduction.unreadable_count == 1
    assert "does not fit this program" in found.reproduction.unreadable[0]
    assert found.reproduction.same_count == found.reproduction.decision_count - 1
    assert any("cannot be read by this version" in each for each in found.stretches[0].unknown)


def test_where_the_rules_of_then_were_not_kept_the_record_stands_for_them_and_it_is_said(
    yesterday: RecordingAutopilot,
) -> None:
    class WithoutRules(LedgerChronicle):
        def rules(self, digest: Digest) -> None:
            return None

    history = replace(history_of(yesterday.cluster), chronicle=WithoutRules(yesterday.cluster.ledger))

    same = replay(history, POLICY, proposed="new.yaml", since=BEGINNING, until=END)
    observe = replay(history, replace(POLICY, mode=Mode.OBSERVE), proposed="new.yaml", since=BEGINNING, until=END)

    assert same.reproduction.without_rules_count == same.reproduction.decision_count
    assert {act.difference for act in same.acts} == {Difference.SAME}
    assert {act.difference for act in observe.acts} == {Difference.ONLY_THEN}
    assert any("rules that were not kept" in each for each in same.stretches[0].unknown)


def test_a_stretch_without_a_decision_is_said_to_be_one(yesterday: RecordingAutopilot) -> None:
    found = replay(
        history_of(yesterday.cluster), POLICY, proposed="new.yaml", since=END, until=END + timedelta(hours=1)
    )

    assert (found.acts, found.stretches, found.reproduction.decision_count) == ((), (), 0)
    assert any("nothing was decided" in each for each in found.cautions)
    with pytest.raises(ValueError, match="is empty"):
        replay(history_of(yesterday.cluster), POLICY, proposed="new.yaml", since=END, until=END)


@given(
    mode=st.sampled_from(Mode),
    out=st.integers(0, 4),
    resets=st.integers(0, 2),
    confirm_seconds=st.integers(0, 30),
    silent_count=st.integers(2, 8),
)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_policy_both_sides_add_up(
    yesterday: RecordingAutopilot, mode: Mode, out: int, resets: int, confirm_seconds: int, silent_count: int
) -> None:
    policy = replace(
        POLICY,
        mode=mode,
        drain_budget=replace(POLICY.drain_budget, max_out_count=out),
        ladder=replace(POLICY.ladder, max_gpu_resets_count=resets),
        durations=replace(POLICY.durations, confirm_unreachable_after=timedelta(seconds=confirm_seconds)),
        mass_event=replace(POLICY.mass_event, min_node_count=silent_count),
    )

    found = again(yesterday, policy)

    assert found.reproduction.same_count == found.reproduction.decision_count
    assert found.then == again(yesterday, POLICY).then
    both = found.count(Difference.SAME) + found.count(Difference.OTHER_MOMENT)
    assert found.then.act_count == both + found.count(Difference.ONLY_THEN)
    assert found.new.act_count == both + found.count(Difference.ONLY_NEW)
    assert all(act.why for act in found.acts if act.difference is not Difference.SAME)
    if mode is Mode.OBSERVE or out == 0:
        assert all(act.verb is not Verb.DRAIN for act in found.acts if act.plan_new is not None)


def _plans(autopilot: RecordingAutopilot) -> list[IncidentPlan]:
    events = LedgerChronicle(autopilot.cluster.ledger).events(since=BEGINNING, until=END)
    return [plan for event in events if isinstance(event, Decided) for plan in event.plans]


def _records(autopilot: RecordingAutopilot) -> list[ActionRecord]:
    return [each for one in autopilot.incidents() for each in autopilot.cluster.ledger.records(one.incident)]
