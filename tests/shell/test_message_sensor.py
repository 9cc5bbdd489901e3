"""The message sensor and `ops-pipelines messages`: what was reported, what waits, and no secret anywhere."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.core.notes import Message
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.sensors.upkeep import message_sensor
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.scenarios.small_autopilot import POLICY
from tests.scenarios.telling_stage import TellingAutopilot


class ClosedChannel:
    """Takes nothing."""

    def send(self, message: Message) -> str:
        raise SourceUnavailable("no channel of on_call took the message (tried JSON)")


@pytest.fixture
def autopilot(tmp_path: Path) -> TellingAutopilot:
    autopilot = TellingAutopilot(tmp_path, node_count=2, policy=replace(POLICY, mode=Mode.OBSERVE))
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    for _ in range(3):
        autopilot.observe_and_decide()
        autopilot.let_pass(3)
    return autopilot


def turn(autopilot: TellingAutopilot) -> str:
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(
            instance=instance, resources={"cluster": autopilot.cluster}, sensor_name=message_sensor.name
        )
        said = message_sensor(context)
    assert isinstance(said, dg.SkipReason)
    return said.skip_message or ""


def ask(autopilot: TellingAutopilot, *words: str) -> str:
    result = CliRunner().invoke(cli.app, ["messages", *words], obj=lambda _: autopilot.cluster)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_each_turn_tells_what_is_new_and_leaves_a_beat(autopilot: TellingAutopilot) -> None:
    first = turn(autopilot)
    autopilot.let_pass(30)
    second = turn(autopilot)

    assert first.startswith("1 note(s) composed, 0 message(s) sent")
    assert second.startswith("0 note(s) composed, 1 message(s) sent")
    assert [message.title for message in autopilot.messages.messages] == [
        "gpu001: would reboot the node, only observing"
    ]
    (beat,) = [each for each in autopilot.cluster.ledger.heartbeats() if each.name == "message_sensor"]
    assert beat.note == second


def test_without_the_lease_nobody_is_told(autopilot: TellingAutopilot) -> None:
    now = autopilot.clock.now()
    autopilot.cluster.ledger.take_lease(holder="another code server", ttl=timedelta(hours=1), now=now)

    assert "another process holds the lease" in turn(autopilot)
    assert autopilot.messages.messages == []


def test_outbox_is_listed_with_what_waits_first_and_why(autopilot: TellingAutopilot) -> None:
    turn(autopilot)
    before = json.loads(ask(autopilot, "--json"))
    autopilot.cluster = replace(autopilot.cluster, notifier=ClosedChannel())
    autopilot.let_pass(30)
    turn(autopilot)

    answer = json.loads(ask(autopilot, "--json"))

    (note,) = answer["notes"]
    assert (before["waiting_count"], before["notes"][0]["attempt_count"]) == (1, 0)
    assert (note["state"], note["attempt_count"], note["incident"]) == ("waiting", 1, "INC-0001")
    assert note["problem"] == "no channel of on_call took the message (tried JSON)"
    assert "no channel of on_call took the message" in ask(autopilot)
    assert "1 waiting, 0 sent, 0 undeliverable" in ask(autopilot)
