"""A pause that somebody left as a file, because the ledger or the configuration could not be used: nothing is
started."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.entries import EntryKind as LineKind
from ops_pipelines.core.entries import Pause
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.observe.intake import take_in_conditions, take_in_logs
from ops_pipelines.people import orders
from ops_pipelines.remediate.reflex import react
from ops_pipelines.resources.state_files import PauseFile
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import SmallAutopilot


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, node_count=3)
    autopilot.let_pass(5)
    return autopilot


def leave_pause(autopilot: SmallAutopilot, content: bytes | None = None) -> PauseFile:
    file = PauseFile(autopilot.directory)
    if content is None:
        file.put(Pause(actor="night-shift", since=autopilot.clock.now(), reason="smoke in row 3"))
    else:
        file.path.write_bytes(content)
    return file


def pauses_in_chain(autopilot: SmallAutopilot) -> list[str]:
    lines = autopilot.cluster.ledger.entries(after=0, limit=1_000)
    return [line.actor for line in lines if line.kind is LineKind.PAUSE]


def test_reflex_drains_nothing_while_the_file_is_there(autopilot: SmallAutopilot) -> None:
    leave_pause(autopilot)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)
    autopilot.let_pass(1)
    take_in_logs(autopilot.cluster)
    take_in_conditions(autopilot.cluster)

    react(autopilot.cluster, lease=autopilot.lease)

    assert autopilot.commands() == []
    assert autopilot.incident().state is IncidentState.OPEN


def test_run_begins_nothing_and_a_person_may_still_be_paged(autopilot: SmallAutopilot) -> None:
    leave_pause(autopilot, b"")
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)

    autopilot.run_for(30)

    assert autopilot.commands() == []
    state = autopilot.cluster.ledger.read_state(autopilot.clock.now())
    assert state.pause is not None
    assert "does not say why" in state.pause.reason


def test_file_is_written_into_the_chain_once_and_resuming_lifts_both(autopilot: SmallAutopilot) -> None:
    file = leave_pause(autopilot)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)
    for _ in range(3):  # as the sensors do with every look
        autopilot.lease.token(autopilot.cluster.ledger, autopilot.clock.now())
        autopilot.run_once()
        autopilot.let_pass(20)

    held = autopilot.commands()
    orders.resume_autopilot(autopilot.cluster, actor="day-shift")
    autopilot.run_for(12)

    assert (held, pauses_in_chain(autopilot)) == ([], ["night-shift"])
    assert not file.path.exists()
    assert autopilot.cluster.ledger.read_state(autopilot.clock.now()).pause is None
    assert EntryKind.DRAIN in autopilot.commands()
    assert autopilot.cluster.ledger.verify_chain().problem == ""


def test_file_that_somebody_deleted_by_hand_leaves_the_pause_of_the_chain(autopilot: SmallAutopilot) -> None:
    file = leave_pause(autopilot)
    autopilot.lease.token(autopilot.cluster.ledger, autopilot.clock.now())
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)

    file.path.unlink()
    autopilot.run_for(12)

    assert autopilot.commands() == []


def test_what_was_begun_is_finished_and_nothing_further_is_begun(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=2)
    while EntryKind.DRAIN not in autopilot.commands():
        autopilot.run_once()
        autopilot.let_pass(1)
    begun = autopilot.commands()

    leave_pause(autopilot, b"")
    autopilot.run_for(60)

    assert autopilot.commands() == begun
    records = autopilot.cluster.ledger.read_state(autopilot.clock.now()).records
    assert all(each.outcome is not None for each in records)


@settings(max_examples=10)
@given(content=st.binary(max_size=60))
def test_no_bytes_in_the_file_enable_an_act(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    autopilot = SmallAutopilot(tmp_path_factory.mktemp("site"), node_count=2)
    autopilot.let_pass(5)
    leave_pause(autopilot, content)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)

    autopilot.run_for(6)

    assert autopilot.commands() == []
