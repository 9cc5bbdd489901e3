"""What the start guard makes of a restart: whom it asks, whom it believes, and whose hold it takes off again."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ops_pipelines.resources.slurm.guard.installation import ENVIRONMENT, Installation
from ops_pipelines.resources.slurm.guard.start_guard import (
    GO_AHEAD,
    MARK,
    REFUSED,
    Settings,
    held_jobs,
    judge,
    judge_start,
    let_pass,
    look_again,
    note,
)
from tests.resources.fake_guard_slurm import FakeGuardSlurm

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


@contextmanager
def as_nobody() -> Iterator[None]:
    """Work as a user without rights, as SlurmUser is."""
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def restart(settings: Settings, job: str, at: float, *, nodes: str = "n2") -> int:
    """Start a job again, as the wrapper does."""
    note(settings, job, f"start {at} 1 {nodes}")
    return judge_start(settings, job, at)


def let_time_pass(settings: Settings, job: str, seconds: float) -> None:
    """Let the guard have held a job so long ago."""
    held_at = time.time() - seconds
    os.utime(settings.state / "held" / job, (held_at, held_at))


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
    for place in (tmp_path, *tmp_path.parents[:2]):
        place.chmod(0o755)

    with as_nobody():
        verdict = judge(settings, "42", 1.7e9)

    assert verdict.is_clear is is_clear
    assert is_clear or "whether a pass is there cannot be read" in verdict.words("42")


def test_a_hold_that_slurmctld_does_late_is_still_the_guards(slurm: FakeGuardSlurm, settings: Settings) -> None:
    slurm.put_job("42", state="CONFIGURING")
    note(settings, "42", "start 1699999000.0 0 n1")
    slurm.let_holds_come_late()

    refused = restart(settings, "42", 1.7e9)
    slurm.put_job("42")
    before_it_came = look_again(settings)
    slurm.do_late_hold()
    slurm.answer_as("n1", ages_seconds=())
    after_it_came = look_again(settings)

    assert (refused, before_it_came) == (REFUSED, ())
    assert after_it_came == ("job 42 is let go: every node of its attempts is clear",)
    assert not slurm.is_held("42")


@pytest.mark.parametrize(("asked_before_seconds", "is_forgotten"), [(50.0, False), (70.0, True)])
def test_a_hold_that_never_came_is_forgotten(
    slurm: FakeGuardSlurm, settings: Settings, asked_before_seconds: float, is_forgotten: bool
) -> None:
    slurm.put_job("42", state="CONFIGURING")
    note(settings, "42", "start 1699999000.0 0 n1")
    slurm.let_holds_come_late()
    restart(settings, "42", 1.7e9)
    slurm.put_job("42")
    let_time_pass(settings, "42", asked_before_seconds)

    look_again(settings)

    assert (held_jobs(settings) == ()) is is_forgotten


@pytest.fixture
def array(slurm: FakeGuardSlurm) -> FakeGuardSlurm:
    """Array 30: its last task, 9, has the array's own id and comes back; a person holds task 1, task 2 runs."""
    slurm.put_job("30", name="30_9", state="CONFIGURING")
    slurm.put_job("31", name="30_1", is_held=True)
    slurm.put_job("32", name="30_2", state="RUNNING")
    return slurm


def test_a_task_with_its_arrays_id_is_held_and_let_go_alone(array: FakeGuardSlurm, settings: Settings) -> None:
    note(settings, "30", "start 1699999000.0 0 n1")

    restart(settings, "30", 1.7e9)
    array.put_job("30", name="30_9", is_held=True)
    while_held = [array.is_held(job) for job in ("30", "31", "32")]
    comments = [array.comment_of(job).startswith(MARK) for job in ("30", "31", "32")]
    array.answer_as("n1", ages_seconds=())
    look_again(settings)
    let_go = [array.is_held(job) for job in ("30", "31", "32")]

    assert while_held == [True, True, False]
    assert comments == [True, False, False]
    assert let_go == [False, True, False]


def test_accounting_of_other_tasks_is_not_the_tasks_own(array: FakeGuardSlurm, settings: Settings) -> None:
    array.account(
        "31|2026-03-01T10:00:00|2026-03-01T11:00:00|NODE_FAIL|n3",
        "30|2026-03-01T10:00:00|2026-03-01T11:00:00|NODE_FAIL|n1",
    )

    assert [why.split()[0] for why in judge(settings, "30", 1.8e9).in_the_way] == ["n1"]


def test_without_a_verdict_the_wrapper_holds_the_task_alone(array: FakeGuardSlurm, tmp_path: Path) -> None:
    guard = Installation(
        directory=tmp_path / "guard", settings=array.settings_in(tmp_path), python=Path("/nonexistent/python")
    )
    guard.write()
    with (guard.directory / ENVIRONMENT).open("a") as file:
        file.write(f'PATH="{array.programs}:$PATH"\n')
    words = {"JOB_ID": "30", "JOB_RESTART_COUNT": "1", "ARRAY_JOB_ID": "30", "ARRAY_TASK_ID": "9"}

    done = subprocess.run(
        [str(guard.wrapper)], env={f"SLURM_{name}": word for name, word in words.items()}, check=False, timeout=30
    )

    assert done.returncode == 1
    assert [array.is_held(job) for job in ("30", "31", "32")] == [True, True, False]


def test_a_job_that_somebody_released_is_no_longer_the_guards_once_it_starts(
    slurm: FakeGuardSlurm, settings: Settings
) -> None:
    slurm.put_job("42", state="CONFIGURING")
    note(settings, "42", "start 1699999000.0 0 n1")
    restart(settings, "42", 1.7e9)

    slurm.answer_as("n1", ages_seconds=())
    released = restart(settings, "42", 1.7e9 + 20)
    words_then = slurm.comment_of("42")
    slurm.put_job("42", is_held=True)  # Hours later, by a person or the autopilot.
    look_again(settings)

    assert (released, words_then) == (GO_AHEAD, "")
    assert slurm.is_held("42")


@pytest.mark.parametrize(("held_before_seconds", "is_forgotten"), [(50.0, False), (70.0, True)])
def test_a_job_that_runs_is_forgotten_and_no_longer_commented_on(
    slurm: FakeGuardSlurm, settings: Settings, held_before_seconds: float, is_forgotten: bool
) -> None:
    slurm.put_job("42", state="CONFIGURING")
    note(settings, "42", "start 1699999000.0 0 n1")
    restart(settings, "42", 1.7e9)
    slurm.put_job("42", state="RUNNING")
    let_time_pass(settings, "42", held_before_seconds)

    look_again(settings)

    assert (held_jobs(settings) == ()) is is_forgotten
    assert (slurm.comment_of("42") == "") is is_forgotten


@pytest.mark.parametrize("state", ["CONFIGURING", "COMPLETING"])
def test_a_job_on_its_way_back_from_the_prolog_is_kept(slurm: FakeGuardSlurm, settings: Settings, state: str) -> None:
    slurm.put_job("42", state="CONFIGURING")
    note(settings, "42", "start 1699999000.0 0 n1")
    restart(settings, "42", 1.7e9)
    slurm.put_job("42", state=state)
    let_time_pass(settings, "42", 3600.0)

    look_again(settings)

    assert held_jobs(settings) == ("42",)


def test_what_somebody_else_wrote_of_a_job_stays(slurm: FakeGuardSlurm, settings: Settings) -> None:
    slurm.put_job("42", state="CONFIGURING")
    note(settings, "42", "start 1699999000.0 0 n1")
    restart(settings, "42", 1.7e9)
    slurm.comment("42", "OPS-12 mine")
    slurm.answer_as("n1", ages_seconds=())

    restart(settings, "42", 1.7e9 + 20)

    assert slurm.comment_of("42") == "OPS-12 mine"
