"""What the start guard makes of a restart: whom it asks, and whom it believes."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ops_pipelines.resources.slurm.guard.start_guard import (
    GO_AHEAD,
    REFUSED,
    Settings,
    judge,
    let_pass,
    note,
)
from tests.resources.fake_guard_slurm import FakeGuardSlurm, as_nobody, restart

RAN_ON_N1 = "42|2026-03-01T10:00:00|2026-03-01T11:00:00|NODE_FAIL|n1"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGuardSlurm:
    fake = FakeGuardSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(fake.programs), prepend=":")
    return fake


@pytest.fixture
def settings(slurm: FakeGuardSlurm, tmp_path: Path) -> Settings:
    return slurm.settings_in(tmp_path)


@pytest.mark.parametrize("is_accounted", [True, False])
def test_a_refused_start_is_no_record_of_where_the_job_ran_before(
    slurm: FakeGuardSlurm, settings: Settings, is_accounted: bool
) -> None:
    slurm.put_job("42", state="CONFIGURING")
    if is_accounted:
        slurm.account(RAN_ON_N1)

    first = restart(settings, "42", 1.7e9)
    slurm.account(RAN_ON_N1)
    second_look = judge(settings, "42", 1.7e9 + 10)
    second = restart(settings, "42", 1.7e9 + 20)

    assert (first, second) == (REFUSED, REFUSED)
    assert [why.split()[0] for why in second_look.in_the_way] == ["n1"]


@pytest.mark.parametrize("later", [(), ("start 1699999500.0 0 n2", "refused 1699999500.0 no verdict")])
def test_nor_is_a_restart_whose_judge_died_whatever_slurm_counts_after_it(
    slurm: FakeGuardSlurm, settings: Settings, later: tuple[str, ...]
) -> None:
    slurm.account(RAN_ON_N1)
    slurm.answer_as("n2", ages_seconds=())
    for line in ("start 1699999000.0 1 n2", *later):
        note(settings, "42", line)

    assert [why.split()[0] for why in judge(settings, "42", 1.7e9).in_the_way] == ["n1"]


def test_after_a_refusal_accountings_nodes_once_clear_let_it_go(slurm: FakeGuardSlurm, settings: Settings) -> None:
    slurm.put_job("42", state="CONFIGURING")
    slurm.account(RAN_ON_N1)

    refused = restart(settings, "42", 1.7e9)
    slurm.answer_as("n1", ages_seconds=())
    cleared = restart(settings, "42", 1.7e9 + 20)

    assert (refused, cleared) == (REFUSED, GO_AHEAD)


def test_what_was_cleared_needs_no_accounting(settings: Settings) -> None:
    note(settings, "42", "cleared 1699999990.0")

    assert judge(settings, "42", 1.7e9).is_clear


@pytest.mark.parametrize(
    ("ages_seconds", "is_clear"),
    [(None, True), ((), True), ((30.0,), True), ((90.0,), False)],  # asked a minute after the start
)
def test_accounting_speaks_for_a_silent_node_and_never_against_what_a_node_sees(
    slurm: FakeGuardSlurm, settings: Settings, ages_seconds: tuple[float, ...] | None, is_clear: bool
) -> None:
    began_at = datetime(2026, 3, 1, 10, tzinfo=UTC).timestamp()
    note(settings, "42", f"start {began_at} 0 n1")
    slurm.account("42|2026-03-01T10:00:00|2026-03-01T11:00:00|REQUEUED|n1")
    slurm.show_nodes("NodeName=n1 State=IDLE SlurmdStartTime=2026-03-01T09:00:00")
    if ages_seconds is not None:
        slurm.answer_as("n1", ages_seconds=ages_seconds)

    verdict = judge(settings, "42", time.time() - 60.0)

    assert verdict.is_clear is is_clear
    assert all("still runs 1 process" in why for why in verdict.in_the_way)


def test_a_pass_lets_one_start_go_even_where_its_file_cannot_be_taken_off(
    slurm: FakeGuardSlurm, settings: Settings
) -> None:
    slurm.put_job("42", state="CONFIGURING")
    note(settings, "42", "start 1699999000.0 0 n1")
    let_pass(settings, "42", who="operator", reason="apart")
    passed = settings.state / "passes" / "42"
    said = passed.read_text()

    first = restart(settings, "42", 1.7e9)
    was_taken_off = not passed.exists()
    passed.write_text(said)  # As if root's directory had kept it.
    second = restart(settings, "42", 1.7e9 + 20)
    let_pass(settings, "42", who="operator", reason="apart")
    third = restart(settings, "42", 1.7e9 + 40)

    assert (first, second, third) == (GO_AHEAD, REFUSED, GO_AHEAD)
    assert was_taken_off


@needs_root
def test_a_pass_that_root_gives_belongs_to_the_owner_of_the_state(settings: Settings) -> None:
    settings.state.mkdir()
    os.chown(settings.state, 65534, 65534)
    before = os.umask(0o077)
    try:
        let_pass(settings, "42", who="root", reason="apart")
    finally:
        os.umask(before)

    passes = settings.state / "passes"
    assert [path.stat().st_uid for path in (passes, passes / "42")] == [65534, 65534]
    assert [path.name for path in passes.iterdir()] == ["42"]


@needs_root
@pytest.mark.parametrize("is_clear", [True, False])
def test_passes_that_cannot_be_read_let_nothing_start_and_are_told(
    slurm: FakeGuardSlurm, settings: Settings, is_clear: bool, tmp_path: Path
) -> None:
    note(settings, "42", "start 1699999000.0 0 n1")
    if is_clear:
        slurm.answer_as("n1", ages_seconds=())
    let_pass(settings, "42", who="root", reason="apart")
    (settings.state / "passes").chmod(0o700)

    with as_nobody(tmp_path):
        verdict = judge(settings, "42", 1.7e9)

    assert verdict.is_clear is is_clear
    assert is_clear or "whether a pass is there cannot be read" in verdict.words("42")
