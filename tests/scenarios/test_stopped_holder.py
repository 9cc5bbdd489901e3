"""A holder of the lease that is stopped between its before-entry and its command, and continues when another has it."""

import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from ops_pipelines.core.action import Action, OutcomeKind, Verb
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.plan import Order
from ops_pipelines.remediate.guardrails.facts import drain_reason
from ops_pipelines.remediate.judgement import TTL, Lease
from ops_pipelines.remediate.perform import Stage, perform
from tests.forked import CONTEXT
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.scenarios.stopped_holder import HOLDER, act_and_be_stopped
from tests.simulator.small_cluster import GPU1, TRAINING

INCIDENT = IncidentId("INC-0001")
DRAIN = Action(verb=Verb.DRAIN, incident=INCIDENT, node=GPU1, text=drain_reason(INCIDENT, "a test"))


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    return autopilot


def stopped(autopilot: SmallAutopilot, action: Action, *, together: bool = False) -> BaseProcess:
    """Return a process that has started `action` and has stopped before its command."""
    at = autopilot.clock.now()
    process = CONTEXT.Process(
        target=act_and_be_stopped, args=(autopilot.directory, at, action), kwargs={"together": together}
    )
    process.start()
    while _state_of(process) != "T":
        assert process.is_alive(), "it was to stand still, and ended"
        time.sleep(0.01)
    return process


def _state_of(process: BaseProcess) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def let_go_on(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGCONT)
    process.join(timeout=120)
    assert process.exitcode == 0


def take_over(autopilot: SmallAutopilot) -> Lease:
    token = autopilot.cluster.ledger.take_lease(
        holder="the next", ttl=TTL, now=autopilot.clock.now(), is_gone=lambda name: name == HOLDER
    )
    assert token is not None
    return Lease(holder="the next", given=token)


def hold_of(autopilot: SmallAutopilot) -> Action:
    return Action(verb=Verb.HOLD, incident=INCIDENT, attempt=autopilot.job().attempt)


@pytest.mark.parametrize("kind", ["drain", "drains together", "hold"])
def test_holder_that_was_stopped_and_lost_the_lease_sends_nothing_when_it_goes_on(
    autopilot: SmallAutopilot, kind: str
) -> None:
    action = hold_of(autopilot) if kind == "hold" else DRAIN
    process = stopped(autopilot, action, together=kind == "drains together")
    take_over(autopilot)

    let_go_on(process)

    assert autopilot.commands() == []
    (record,) = autopilot.cluster.ledger.records(INCIDENT)
    assert (record.sent_at, record.outcome) == (None, None)
    assert autopilot.cluster.ledger.withheld(action.key) == {0}


def test_what_was_withheld_is_sent_once_by_the_next_holder(autopilot: SmallAutopilot) -> None:
    process = stopped(autopilot, DRAIN)
    lease = take_over(autopilot)
    let_go_on(process)

    while perform(Order(action=DRAIN), autopilot.cluster, lease=lease).stage is not Stage.DONE:
        autopilot.let_pass(0.2)

    assert len(autopilot.commands()) == 1
    (record,) = autopilot.cluster.ledger.records(INCIDENT)
    assert record.outcome is not None
    assert record.outcome.kind is OutcomeKind.DONE


def test_next_holder_that_has_sent_it_meanwhile_is_not_followed_by_the_one_that_was_stopped(
    autopilot: SmallAutopilot,
) -> None:
    process = stopped(autopilot, DRAIN)
    lease = take_over(autopilot)
    while perform(Order(action=DRAIN), autopilot.cluster, lease=lease).stage is not Stage.DONE:
        autopilot.let_pass(0.2)

    let_go_on(process)

    assert len(autopilot.commands()) == 1


def test_holder_that_was_stopped_and_kept_the_lease_goes_on(autopilot: SmallAutopilot) -> None:
    process = stopped(autopilot, DRAIN)

    let_go_on(process)

    assert len(autopilot.commands()) == 1
