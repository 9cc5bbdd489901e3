"""An act that nobody follows any more gets its outcome from its witness; nothing is sent for it."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.entries import Begun
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.notes import Audience, Message
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.remediate.by_hand import drain_by_hand
from ops_pipelines.remediate.oversight import settle_left_behind
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.ports.proved_plans import allow
from tests.scenarios.small_autopilot import POLICY, MessagesInMemory, SmallAutopilot
from tests.simulator.small_cluster import GPU1, SESSION, TRAINING

LIMIT_SECONDS = POLICY.durations.command_limit.total_seconds()


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, node_count=3)
    autopilot.let_pass(5)
    return autopilot


def drained_by_hand(autopilot: SmallAutopilot) -> Incident:
    return drain_by_hand(GPU1, autopilot.cluster, lease=autopilot.lease, actor="day-shift", why="replace a fan")


def begin_return(autopilot: SmallAutopilot, incident: Incident, *, plan: PlanId | None = None) -> Action:
    """Write the before-entry of a return whose command dies there."""
    action = Action(verb=Verb.RESUME, incident=incident.incident, node=GPU1)
    begun = autopilot.cluster.ledger.begin(
        ActionRecord(action=action, plan=plan, begun_at=autopilot.clock.now()),
        guard=allow,
        lease_token=None,
        actor="day-shift",
        now=autopilot.clock.now(),
    )
    assert isinstance(begun, Begun)
    return action


def outcome_of(autopilot: SmallAutopilot, action: Action) -> OutcomeKind | None:
    records = autopilot.cluster.ledger.records(action.incident)
    (record,) = [each for each in records if each.action.key == action.key]
    return record.outcome.kind if record.outcome is not None else None


def test_return_that_was_sent_and_whose_command_died_is_witnessed(autopilot: SmallAutopilot) -> None:
    action = begin_return(autopilot, drained_by_hand(autopilot))
    autopilot.twin.command(EntryKind.RESUME, nodes=(GPU1,))

    settle_left_behind(autopilot.cluster)

    assert outcome_of(autopilot, action) is OutcomeKind.DONE


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [(2 * LIMIT_SECONDS - 1, None), (2 * LIMIT_SECONDS, None), (2 * LIMIT_SECONDS + 1, OutcomeKind.UNKNOWN)],
)
def test_act_without_a_witness_ends_as_unknown_after_twice_its_limit_and_is_not_sent(
    autopilot: SmallAutopilot, seconds: float, kind: OutcomeKind | None
) -> None:
    action = begin_return(autopilot, drained_by_hand(autopilot))
    autopilot.let_pass(seconds)

    settle_left_behind(autopilot.cluster)

    assert outcome_of(autopilot, action) is kind
    assert autopilot.received(EntryKind.RESUME) == ()


def test_act_of_the_plan_in_force_is_left_to_its_plan(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(POLICY, durations=replace(POLICY.durations, run_patience=timedelta(0))))
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=1)
    autopilot.run_once()  # The reboot is under way when the pass ends.
    autopilot.let_pass(1)

    settled_count = settle_left_behind(autopilot.cluster)

    assert any(record.outcome is None for record in autopilot.cluster.ledger.records(autopilot.incident().incident))
    assert settled_count == 0


class OwnersCannotBeTold(MessagesInMemory):
    def send(self, message: Message) -> str:
        if message.audience is Audience.OWNER:
            raise SourceUnavailable("no channel took the message")
        return super().send(message)


def test_owner_who_cannot_be_told_to_save_is_told_to_a_person_and_handed_over_in_the_end(tmp_path: Path) -> None:
    durations = replace(
        POLICY.durations,
        run_patience=timedelta(seconds=1),
        waiting_limit=timedelta(seconds=60),
        job_end_limit=timedelta(seconds=120),
    )
    limits = replace(POLICY.recovery, interactive_notice=timedelta(seconds=30))
    autopilot = SmallAutopilot(
        tmp_path,
        replace(SESSION, is_requeueable=True),
        node_count=3,
        policy=replace(POLICY, durations=durations, recovery=limits),
    )
    autopilot.let_pass(15)
    autopilot.messages = OwnersCannotBeTold()
    autopilot.cluster = replace(autopilot.cluster, notifier=autopilot.messages)
    (node,) = autopilot.job("notebook").nodes
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=5)

    autopilot.run_for(50)
    before = autopilot.pages()
    autopilot.run_for(30)
    reminded = autopilot.pages()
    autopilot.run_for(60)

    assert before == []
    (reminder,) = reminded
    assert "the owner of job 1001 was not notified to save" in reminder.body
    assert autopilot.incident().state is IncidentState.ESCALATED
    assert autopilot.received(EntryKind.HOLD) == ()


def test_replica_that_keeps_a_broken_node_busy_is_told_to_a_person_before_it_is_handed_over(tmp_path: Path) -> None:
    """It ends by no limit of its own, and the repair would wait in silence until `job_end_limit`."""
    durations = replace(POLICY.durations, run_patience=timedelta(seconds=1), waiting_limit=timedelta(seconds=60))
    replica = replace(TRAINING, workload=Workload.INFERENCE, node_count=1, gpus_per_node=1, service="chat")
    replica = replace(replica, min_serving_count=1, checkpoint_interval_seconds=None)
    autopilot = SmallAutopilot(
        tmp_path, replica, node_count=3, gpus_per_node=2, policy=replace(POLICY, durations=durations)
    )
    autopilot.let_pass(15)
    (node,) = autopilot.job("pretrain").nodes
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=1)

    autopilot.run_for(50)
    before = autopilot.pages()
    autopilot.run_for(30)

    (reminder,) = autopilot.pages()
    assert before == []
    assert "of service chat is left running: minimum serves no more" in reminder.body
    assert autopilot.incident().state is IncidentState.ACTING
    assert autopilot.received(EntryKind.HOLD) == ()
