"""What the start guard holds: which task, until when, and that it looks again whatever it waits for."""

import os
import subprocess
import threading
import time
from dataclasses import replace
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
    look_again,
    look_for_unseen,
    note,
    record_paths,
    status,
)
from tests.resources.fake_guard_slurm import FakeGuardSlurm, as_nobody, let_time_pass, restart


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGuardSlurm:
    fake = FakeGuardSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(fake.programs), prepend=":")
    return fake


@pytest.fixture
def settings(slurm: FakeGuardSlurm, tmp_path: Path) -> Settings:
    return slurm.settings_in(tmp_path)


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
    assert after_it_came == ("job 42 is released: every node of its attempts is clear",)
    assert not slurm.is_held("42")


@pytest.mark.parametrize(("asked_before_seconds", "is_forgotten"), [(3_500.0, False), (3_700.0, True)])
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


def test_a_hold_that_comes_once_the_job_runs_again_is_let_go_when_it_waits(
    slurm: FakeGuardSlurm, settings: Settings
) -> None:
    slurm.put_job("42", state="CONFIGURING")
    note(settings, "42", "start 1699999000.0 0 n1")
    slurm.let_holds_come_late()
    restart(settings, "42", 1.7e9)
    slurm.answer_as("n1", ages_seconds=())
    slurm.answer_as("n2", ages_seconds=())
    code = restart(settings, "42", 1.7e9 + 20)
    slurm.put_job("42", state="RUNNING")
    slurm.do_late_hold()
    let_time_pass(settings, "42", 7_200.0)
    while_it_runs = look_again(settings)
    slurm.put_job("42", is_held=True)

    let_go = look_again(settings)

    assert (code, while_it_runs) == (GO_AHEAD, ())
    assert let_go == ("job 42 is released: every node of its attempts is clear",)


def test_a_hold_that_was_seen_is_as_good_as_answered(slurm: FakeGuardSlurm, settings: Settings) -> None:
    slurm.put_job("42", state="CONFIGURING")
    note(settings, "42", "start 1699999000.0 0 n1")
    slurm.let_holds_come_late()
    restart(settings, "42", 1.7e9)
    slurm.put_job("42")
    slurm.do_late_hold()
    look_again(settings)
    slurm.put_job("42")  # By a person.

    did = look_again(settings)

    assert "released by somebody" in did[0]
    assert held_jobs(settings) == ()


def test_a_job_that_somebody_releases_is_forgotten_at_once(slurm: FakeGuardSlurm, settings: Settings) -> None:
    slurm.put_job("42", state="CONFIGURING")
    note(settings, "42", "start 1699999000.0 0 n1")
    restart(settings, "42", 1.7e9)
    slurm.put_job("42")

    did = look_again(settings)

    assert "released by somebody" in did[0]
    assert (held_jobs(settings), slurm.comment_of("42")) == ((), "")


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


def test_jobs_are_looked_at_side_by_side(slurm: FakeGuardSlurm, settings: Settings) -> None:
    patient = replace(settings, ask_seconds=20.0)
    everybody_was_asked = threading.Barrier(2, timeout=60.0)
    for job in ("1", "2"):
        slurm.put_job(job, state="CONFIGURING")
        note(settings, job, f"start 1699999000.0 0 n{job}")
        restart(settings, job, 1.7e9)
        slurm.put_job(job, is_held=True)
        slurm.answer_as(f"n{job}", ages_seconds=(), when=everybody_was_asked.wait)

    let_go = look_again(patient)

    assert len(let_go) == 2
    assert held_jobs(settings) == ()


def test_the_guard_is_well_while_it_looks(slurm: FakeGuardSlurm, settings: Settings) -> None:
    seen: list[object] = []
    slurm.put_job("42", state="CONFIGURING")
    note(settings, "42", "start 1699999000.0 0 n1")
    restart(settings, "42", 1.7e9)
    slurm.put_job("42", is_held=True)
    slurm.answer_as("n1", ages_seconds=(), when=lambda: seen.append(status(settings)["problems"]))

    look_again(settings)

    assert seen == [[]]


def test_who_asks_at_the_same_time_is_in_nobodys_way(slurm: FakeGuardSlurm, settings: Settings) -> None:
    look_again(settings)
    (settings.state / "probe").mkdir()  # Another's, which is just there.

    assert status(settings)["problems"] == []
    assert {path.name for path in settings.state.iterdir()} == {"looked", "probe"}


def test_who_asks_makes_no_state(slurm: FakeGuardSlurm, settings: Settings) -> None:
    told = status(settings)

    assert told["is_well"] is False
    assert not settings.state.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works as another user")
@pytest.mark.parametrize(("mode", "problem"), [(0o755, ""), (0o700, "status as its owner, SlurmUser")])
def test_another_user_reads_what_he_may_or_is_told_how(
    slurm: FakeGuardSlurm, settings: Settings, tmp_path: Path, mode: int, problem: str
) -> None:
    look_again(settings)
    settings.state.chmod(mode)

    with as_nobody(tmp_path):
        told = status(settings)

    assert told["is_well"] is (problem == "")
    assert problem in "; ".join(map(str, [told["problems"]]))
    assert "cannot be used" not in str(told["problems"])


# -- a slurmctld that does not ask --


def test_a_first_prolog_needs_a_restart_of_slurmctld_and_is_not_well_before(
    slurm: FakeGuardSlurm, settings: Settings
) -> None:
    now = time.time()
    installed = replace(settings, needs_boot_after=now)
    look_again(installed)

    told = {}
    for seconds in (-3600, -2, 0, 60):
        slurm.boot(now + seconds)
        told[seconds] = status(installed)["problems"]
    slurm.boot(now - 3600)
    note(installed, "7", f"start {now + 1} 0 n1")

    assert ["restart slurmctld" in str(told[seconds]) for seconds in (-3600, -2, 0, 60)] == [True, True, False, False]
    assert status(installed)["problems"] == []  # It was asked since: another prolog had been there.
    assert status(settings)["problems"] == []  # So it had at the install.


@pytest.mark.parametrize(
    ("age_seconds", "name", "is_told"),
    [
        (29, "7", False),  # It may be on its way into the record.
        (31, "7", True),
        (3_500, "7", True),
        (3_601, "7", False),  # So old a start says nothing of now.
        (60, "7+1", False),  # A component: its leader's record represents it.
        (60, "7_3", True),
    ],
)
def test_a_start_that_the_guard_was_not_asked_about_is_told(
    slurm: FakeGuardSlurm, settings: Settings, age_seconds: float, name: str, is_told: bool
) -> None:
    look_again(settings)
    slurm.put_running("7", started_at=time.time() - age_seconds, name=name)

    assert look_for_unseen(settings) == (("7",) if is_told else ())
    assert ("1 running job(s) started without the guard, such as 7" in str(status(settings)["problems"])) is is_told


def test_a_start_that_is_written_down_or_older_than_the_install_is_not_told(
    slurm: FakeGuardSlurm, settings: Settings
) -> None:
    look_again(settings)
    slurm.put_running("7", started_at=time.time() - 60)
    look_for_unseen(settings)

    note(settings, "7", f"start {time.time() - 60} 0 n1")
    half_an_hour_before = time.time() - 1_860  # Its node was powered up first.
    os.utime(record_paths(settings, "7")[0], (half_an_hour_before, half_an_hour_before))
    slurm.put_running("8", started_at=time.time() - 60)

    assert look_for_unseen(replace(settings, installed_at=time.time() - 50)) == ()
    assert look_for_unseen(settings) == ("8",)
