"""What the start guard makes of a restart: whom it asks, whom it believes, and whose hold it takes off again."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ops_pipelines.resources.slurm.guard.start_guard import (
    GO_AHEAD,
    REFUSED,
    Settings,
    judge,
    judge_start,
    note,
)
from tests.resources.fake_guard_slurm import FakeGuardSlurm

RAN_ON_N1 = "42|2026-03-01T10:00:00|2026-03-01T11:00:00|NODE_FAIL|n1"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGuardSlurm:
    fake = FakeGuardSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(fake.programs), prepend=":")
    return fake


@pytest.fixture
def settings(slurm: FakeGuardSlurm, tmp_path: Path) -> Settings:
    return slurm.settings_in(tmp_path)


def restart(settings: Settings, job: str, at: float, *, nodes: str = "n2") -> int:
    """Start a job again, as the wrapper does."""
    note(settings, job, f"start {at} 1 {nodes}")
    return judge_start(settings, job, at)


@pytest.mark.parametrize("is_accounted", [True, False])
def test_a_refused_start_is_no_record_of_where_the_job_ran_before(
    slurm: FakeGuardSlurm, settings: Settings, is_accounted: bool
) -> None:
    slurm.put_job("42", state="CONFIGURING")
    if is_accounted:
        slurm.account(RAN_ON_N1)

    first = restart(settings, "42", 2e9)
    slurm.account(RAN_ON_N1)
    second_look = judge(settings, "42", 2e9 + 10)
    second = restart(settings, "42", 2e9 + 20)

    assert (first, second) == (REFUSED, REFUSED)
    assert [why.split()[0] for why in second_look.in_the_way] == ["n1"]


@pytest.mark.parametrize("later", [(), ("start 1999999500.0 0 n2", "refused 1999999500.0 no verdict")])
def test_nor_is_a_restart_whose_judge_died_whatever_slurm_counts_after_it(
    slurm: FakeGuardSlurm, settings: Settings, later: tuple[str, ...]
) -> None:
    slurm.account(RAN_ON_N1)
    slurm.answer_as("n2", ages_seconds=())
    for line in ("start 1999999000.0 1 n2", *later):
        note(settings, "42", line)

    assert [why.split()[0] for why in judge(settings, "42", 2e9).in_the_way] == ["n1"]


def test_after_a_refusal_accountings_nodes_once_clear_let_it_go(slurm: FakeGuardSlurm, settings: Settings) -> None:
    slurm.put_job("42", state="CONFIGURING")
    slurm.account(RAN_ON_N1)

    refused = restart(settings, "42", 2e9)
    slurm.answer_as("n1", ages_seconds=())
    cleared = restart(settings, "42", 2e9 + 20)

    assert (refused, cleared) == (REFUSED, GO_AHEAD)


def test_what_was_cleared_needs_no_accounting(settings: Settings) -> None:
    note(settings, "42", "cleared 1999999990.0")

    assert judge(settings, "42", 2e9).is_clear


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
