"""What people hear of a fault, from its first sign to its end: the whole list each time, for quiet is the point."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import time, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.identity import Digest, PlanId, digest_of
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import Audience, Message, NoteState, TellRules
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import ActionClass, BlastCaps, Consent, DrainBudget, MassEvent, Mode
from ops_pipelines.core.record import ApprovalLinks
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.people import orders
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.scenarios.small_autopilot import POLICY
from tests.scenarios.telling_stage import TellingAutopilot
from tests.simulator.small_cluster import TRAINING

HASTY = replace(POLICY, durations=replace(POLICY.durations, run_patience=timedelta(seconds=1)))
"""A pass waits for nothing: the repair is seen under way."""
WIDE = replace(
    POLICY,
    mass_event=MassEvent(min_node_count=50),
    drain_budget=DrainBudget(
        max_out_count=40, max_out_per_rack_count=40, max_new_per_hour_count=40, min_in_service_ratio=0.0
    ),
    blast_caps=BlastCaps(max_out_per_partition_ratio=1.0),
)


def lose_gpu(autopilot: TellingAutopilot, node: str = "gpu001") -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=3)


def test_one_healed_fault_is_two_messages_to_each_and_a_line_for_the_team(tmp_path: Path) -> None:
    autopilot = TellingAutopilot(tmp_path, TRAINING, policy=HASTY)
    autopilot.verify_patience = timedelta(0)
    lose_gpu(autopilot)

    autopilot.run_until(IncidentState.RESOLVED)
    autopilot.let_pass(30)
    autopilot.tell()
    autopilot.wait_for_digest()

    assert autopilot.told() == [
        ("owner", "notice", "INC-0001: your job 1001"),
        ("on_call", "notice", "gpu001: we reboot the node"),
        ("owner", "notice", "your job 1001 runs again"),
        ("on_call", "info", "gpu001: over after 24 s"),
        ("team", "info", "digest: 2 facts of 1 incident, 0.1 GPU-hours lost"),
    ]
    assert {message.thread for message in autopilot.messages.messages} == {"INC-0001"}
    assert len({message.subject for message in autopilot.messages.messages}) == 1
    closing = autopilot.to(Audience.OWNER)[-1]
    assert [line.partition(":")[0] for line in closing.body.splitlines()] == [
        "What happened",
        "What we did",
        "What you lose",
        "What you must do",
    ]
    assert "GPU-hours" in closing.body
    assert closing.links == ()


def test_error_of_a_program_is_one_message_to_its_owner_and_none_to_the_on_call(tmp_path: Path) -> None:
    autopilot = TellingAutopilot(tmp_path, TRAINING)
    autopilot.twin.inject(FaultKind.APPLICATION_XID31, "gpu001", gpu=0)

    autopilot.run_for(20)
    autopilot.wait_for_digest()

    assert autopilot.told() == [
        ("owner", "warning", "INC-0001: your job 1001"),
        ("team", "info", "digest: 1 fact of 1 incident"),
    ]


def test_who_only_observes_tells_the_on_call_what_would_be_done_and_no_owner(tmp_path: Path) -> None:
    autopilot = TellingAutopilot(tmp_path, TRAINING, policy=replace(POLICY, mode=Mode.OBSERVE))
    lose_gpu(autopilot)

    autopilot.run_for(40)
    autopilot.wait_for_digest()

    assert autopilot.told() == [("on_call", "notice", "gpu001: would reboot the node, only observing")]
    assert [link.url for link in autopilot.messages.messages[0].links] == [
        "https://ops.example.org/gpu/incidents/INC-0001"
    ]


def test_plan_that_waits_half_way_is_asked_for_once_and_says_what_is_done(tmp_path: Path) -> None:
    policy = replace(POLICY, consents={ActionClass.REBOOT: Consent.APPROVE})
    autopilot = TellingAutopilot(tmp_path, TRAINING, policy=policy)
    lose_gpu(autopilot)
    autopilot.run_for(60)

    assert [each for each in autopilot.told() if each[0] == "on_call"] == [
        ("on_call", "warning", "gpu001: may we reboot the node?")
    ]
    (asked,) = autopilot.to(Audience.ON_CALL)
    assert "So far: what needed nobody's approval is done; the rest waits" in asked.body


def test_plan_that_waits_is_asked_for_once_and_its_end_told(tmp_path: Path) -> None:
    autopilot = TellingAutopilot(tmp_path, TRAINING, policy=replace(POLICY, mode=Mode.APPROVE))
    lose_gpu(autopilot)
    autopilot.run_for(30)
    asked = autopilot.told()
    (note,) = autopilot.cluster.outbox.notes_of("INC-0001")  # type: ignore[union-attr]  # the stage has one

    orders.approve(PlanId(str(note.note.asks_for)), autopilot.cluster, actor="anna", valid_for=timedelta(hours=1))
    autopilot.run_until(IncidentState.RESOLVED)
    autopilot.let_pass(30)
    autopilot.tell()

    assert asked == [("on_call", "warning", "gpu001: may we reboot the node?")]
    (closing,) = autopilot.to(Audience.ON_CALL)[1:]
    assert (closing.title.partition(" after")[0], closing.closes) == ("gpu001: over", ("INC-0001",))


class PlainSeal:
    """Seals nothing: shows what would be sealed."""

    def seal(self, says: Mapping[str, str]) -> str:
        return f"{says['plan']}-{says['person']}"

    def open(self, token: str) -> Mapping[str, str] | None:
        return None

    def digest(self, plan: IncidentPlan) -> Digest:
        return digest_of(plan.plan)


def test_link_to_approve_is_made_for_a_person_when_it_is_sent_and_stands_in_no_outbox(tmp_path: Path) -> None:
    autopilot = TellingAutopilot(tmp_path, node_count=2, policy=replace(POLICY, mode=Mode.APPROVE))
    links = ApprovalLinks(seal=PlainSeal(), base_url="https://ops.example.org/gpu", life=timedelta(hours=1))
    autopilot.cluster = replace(autopilot.cluster, approval_links=links)
    lose_gpu(autopilot)

    autopilot.run_for(10)
    autopilot.let_pass(20)
    autopilot.tell()

    (message,) = autopilot.messages.messages
    (kept,) = autopilot.cluster.outbox.notes_of("INC-0001")  # type: ignore[union-attr]
    (link,) = message.personal_links("anna")
    assert link.url == f"https://ops.example.org/gpu/approve/{kept.note.asks_for}-anna"
    assert message.personal_links("\x00") == ()
    assert "/approve/" not in repr((message, kept))


def test_question_that_was_answered_before_it_went_out_is_put_to_nobody(tmp_path: Path) -> None:
    slow = TellRules(quiet_from=None, group_window=timedelta(minutes=10))
    autopilot = TellingAutopilot(tmp_path, policy=replace(POLICY, mode=Mode.APPROVE), rules=slow)
    lose_gpu(autopilot)
    autopilot.run_for(10)
    (kept,) = autopilot.cluster.outbox.waiting_notes(limit=9)  # type: ignore[union-attr]

    orders.approve(PlanId(str(kept.note.asks_for)), autopilot.cluster, actor="anna", valid_for=timedelta(hours=1))
    autopilot.let_pass(700)
    autopilot.tell()

    assert autopilot.messages.messages == []
    assert autopilot.cluster.outbox.count_notes()[NoteState.WAITING] == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("mode", "title"),
    [
        pytest.param(Mode.OBSERVE, "20 incidents: what we would do, only observing", id="observe"),
        pytest.param(Mode.APPROVE, "20 plans wait for your yes", id="approve"),
    ],
)
def test_storm_of_twenty_alike_incidents_is_one_message_that_names_each(tmp_path: Path, mode: Mode, title: str) -> None:
    autopilot = TellingAutopilot(tmp_path, node_count=20, gpus_per_node=4, policy=replace(WIDE, mode=mode))
    for number in range(1, 21):
        lose_gpu(autopilot, f"gpu{number:03d}")

    autopilot.run_for(12)
    autopilot.let_pass(20)
    autopilot.tell()

    (message,) = autopilot.messages.messages
    assert (message.title, len(message.body.splitlines())) == (title, 20)
    assert len(autopilot.incidents()) == 20
    assert autopilot.cluster.outbox.count_notes()[NoteState.SENT] == 20  # type: ignore[union-attr]


def test_what_needs_nobody_waits_for_the_morning(tmp_path: Path) -> None:
    night = TellRules(quiet_from=time(0, 0), quiet_until=time(9, 0), digest_at=time(9, 0))
    autopilot = TellingAutopilot(tmp_path, policy=replace(POLICY, mode=Mode.OBSERVE), rules=night)
    lose_gpu(autopilot)

    autopilot.run_for(20)
    autopilot.let_pass(60)
    autopilot.tell()
    by_night = autopilot.told()
    autopilot.wait_for_digest()

    assert by_night == []
    assert autopilot.told() == [("on_call", "notice", "digest: 1 fact of 1 incident")]
    assert autopilot.clock.now().hour >= 7


class FailingNotifier:
    """Takes nothing while it is down."""

    def __init__(self) -> None:
        self.is_down = True
        self.messages: list[Message] = []

    def send(self, message: Message) -> str:
        if self.is_down:
            raise SourceUnavailable("no channel of on_call took the message (tried Email)")
        self.messages.append(message)
        return "taken by Email"


def _observing(tmp_path: Path, notifier: FailingNotifier) -> TellingAutopilot:
    autopilot = TellingAutopilot(tmp_path, policy=replace(POLICY, mode=Mode.OBSERVE))
    autopilot.cluster = replace(autopilot.cluster, notifier=notifier)
    lose_gpu(autopilot)
    autopilot.run_for(30)
    return autopilot


def test_message_that_no_channel_takes_is_tried_again_at_growing_distances(tmp_path: Path) -> None:
    notifier = FailingNotifier()
    autopilot = _observing(tmp_path, notifier)
    tries = [_attempts(autopilot)]
    for seconds in (29, 1, 60, 119, 1):
        autopilot.let_pass(seconds)
        autopilot.deliver()
        tries.append(_attempts(autopilot))
    notifier.is_down = False
    autopilot.let_pass(240)
    autopilot.deliver()

    assert sorted(set(tries)) == list(range(1, max(tries) + 1))
    assert [message.thread for message in notifier.messages] == ["INC-0001"]
    assert autopilot.cluster.outbox.count_notes()[NoteState.SENT] == 1  # type: ignore[union-attr]


def test_message_that_no_channel_takes_within_a_day_is_kept_as_undeliverable(tmp_path: Path) -> None:
    autopilot = _observing(tmp_path, FailingNotifier())
    for _ in range(26):
        autopilot.let_pass(3600)
        autopilot.deliver()

    (kept,) = autopilot.cluster.outbox.recent_notes(limit=9)  # type: ignore[union-attr]
    assert (kept.state, kept.problem) == (
        NoteState.UNDELIVERABLE,
        "no channel of on_call took the message (tried Email)",
    )


def test_death_between_delivery_and_mark_repeats_the_message_once_word_for_word(tmp_path: Path) -> None:
    class DiesAfterSending(FailingNotifier):
        def send(self, message: Message) -> str:
            super().send(message)
            if len(self.messages) == 1:
                raise KeyboardInterrupt
            return "taken by Email"

    notifier = DiesAfterSending()
    notifier.is_down = False
    autopilot = TellingAutopilot(tmp_path, policy=replace(POLICY, mode=Mode.OBSERVE))
    autopilot.cluster = replace(autopilot.cluster, notifier=notifier)
    lose_gpu(autopilot)

    with pytest.raises(KeyboardInterrupt):
        autopilot.run_for(60)
    for _ in range(10):
        autopilot.let_pass(60)
        autopilot.deliver()

    first, second = notifier.messages
    assert first == second


def test_old_ledger_is_not_told_anew_when_telling_begins(tmp_path: Path) -> None:
    autopilot = TellingAutopilot(tmp_path, policy=POLICY)
    outbox = autopilot.cluster.outbox
    autopilot.cluster = replace(autopilot.cluster, outbox=None)
    lose_gpu(autopilot)
    autopilot.run_until(IncidentState.RESOLVED)
    autopilot.let_pass(3 * 3600)

    autopilot.cluster = replace(autopilot.cluster, outbox=outbox)
    autopilot.tell()

    assert _titles(autopilot.messages.messages) == []
    assert outbox is not None
    assert outbox.waiting_notes(limit=9) == ()


def _attempts(autopilot: TellingAutopilot) -> int:
    (kept,) = autopilot.cluster.outbox.waiting_notes(limit=9)  # type: ignore[union-attr]
    return kept.attempt_count


def _titles(messages: Sequence[Message]) -> list[str]:
    return [message.title for message in messages]
