"""The beat of a tick, and the vital signs that the ledger gives for it."""

from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.entries import Pause
from ops_pipelines.core.finding import Response
from ops_pipelines.core.health import SILENT_AFTER, judge_health
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.policy import Mode
from ops_pipelines.remediate.oversight import beat, read_vital_signs
from tests.ports.ledger_samples import begin, decide, drain, incident, observation, outcome, take_in
from tests.scenarios.small_autopilot import SmallAutopilot


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    return SmallAutopilot(tmp_path, node_count=2)


def tick(autopilot: SmallAutopilot, *, holder: str = "host-a:1", **answers: str | None) -> None:
    beat(autopilot.cluster, name="fault_sensor", holder=holder, note="nothing new", answers=answers)


def test_beat_carries_time_mode_and_what_was_seen(autopilot: SmallAutopilot) -> None:
    autopilot.let_pass(5)

    tick(autopilot, kernel_log=None, scheduler="it timed out")

    (kept,) = autopilot.cluster.ledger.heartbeats()
    assert (kept.at, kept.mode, kept.note) == (autopilot.clock.now(), Mode.AUTO, "nothing new")
    assert kept.failing_sources == ("scheduler",)


def test_source_that_was_not_asked_keeps_its_last_answer(autopilot: SmallAutopilot) -> None:
    tick(autopilot, kernel_log=None, telemetry="it timed out")

    tick(autopilot, kernel_log="the file is gone")
    not_asked = autopilot.cluster.ledger.heartbeats()[0].answers
    tick(autopilot, telemetry=None)

    assert not_asked == {"kernel_log": "the file is gone", "telemetry": "it timed out"}
    assert autopilot.cluster.ledger.heartbeats()[0].failing_sources == ("kernel_log",)


def test_new_process_inherits_no_answers(autopilot: SmallAutopilot) -> None:
    tick(autopilot, journal="a source of the old configuration")

    tick(autopilot, holder="host-a:2", kernel_log=None)

    assert autopilot.cluster.ledger.heartbeats()[0].answers == {"kernel_log": None}


def test_fresh_ledger_has_no_signs_of_life(autopilot: SmallAutopilot) -> None:
    signs = read_vital_signs(autopilot.cluster)

    assert (signs.heartbeats, signs.is_lease_held, signs.pause, signs.newest_evidence_at) == ((), False, None, None)
    assert (signs.head_seq, signs.undecided_evidence_count, signs.unfinished_action_count) == (0, 0, 0)
    assert signs.oldest_unfinished_begun_at is None


def test_vital_signs_are_what_the_ledger_holds(autopilot: SmallAutopilot) -> None:
    ledger, now = autopilot.cluster.ledger, autopilot.clock.now()
    minute = timedelta(minutes=1)
    take_in(ledger, *(observation(str(number), at=now - number * minute) for number in (5, 9, 3)))
    page_only = incident(2, state=IncidentState.ESCALATED, at=now)
    decide(ledger, incident(1, at=now), page_only, incident(3, at=now), through=1, at=now)
    begin(ledger, drain(1), at=now - 3 * minute)
    begin(ledger, drain(2), at=now - 2 * minute)
    begin(ledger, drain(3), at=now - minute)
    ledger.finish(drain(1).key, outcome(), actor="autopilot")
    ledger.pause(Pause(actor="ada", since=now, reason="power work"))
    ledger.take_lease(holder="host-a:1", ttl=minute, now=now)

    signs = read_vital_signs(autopilot.cluster)

    assert signs.newest_evidence_at == now - 3 * minute
    assert signs.undecided_evidence_count == 2
    assert signs.open_incidents == {
        (IncidentState.OPEN, Response.REBOOT_NODE): 2,
        (IncidentState.ESCALATED, Response.REBOOT_NODE): 1,
    }
    assert (signs.unfinished_action_count, signs.oldest_unfinished_begun_at) == (2, now - 2 * minute)
    assert signs.pause == "by ada since 2026-11-21 07:00:00 UTC: power work"
    assert signs.is_lease_held
    assert signs.head_seq == len(ledger.entries(after=0, limit=100))


def test_a_second_daemon_is_seen_beside_the_one_that_acts_and_aged_out(autopilot: SmallAutopilot) -> None:
    ledger, now = autopilot.cluster.ledger, autopilot.clock.now()
    ledger.take_lease(holder="host-a:1", ttl=timedelta(hours=1), now=now)
    tick(autopilot)
    tick(autopilot, holder="host-b:2")
    together = read_vital_signs(autopilot.cluster)

    autopilot.let_pass(SILENT_AFTER.total_seconds())
    tick(autopilot)

    assert [each.holder for each in together.bystanders] == ["host-b:2"]
    assert "host-b:2; stop the second code server" in judge_health(together).reasons[0]
    assert read_vital_signs(autopilot.cluster).bystanders == ()


def test_who_waited_for_the_lease_and_has_it_now_is_no_second_daemon(autopilot: SmallAutopilot) -> None:
    ledger, now = autopilot.cluster.ledger, autopilot.clock.now()
    ledger.take_lease(holder="host-a:1", ttl=timedelta(seconds=15), now=now)
    tick(autopilot, holder="host-b:2")

    autopilot.let_pass(15)
    ledger.take_lease(holder="host-b:2", ttl=timedelta(seconds=15), now=autopilot.clock.now())
    tick(autopilot, holder="host-b:2")

    assert read_vital_signs(autopilot.cluster).bystanders == ()
