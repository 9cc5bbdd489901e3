"""The start guard's own logic, without a Slurm: what is written down, what is believed, how it gets into slurm.conf."""

import json
import os
import pwd
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.resources.commands import CommandAnswer, run_command
from ops_pipelines.resources.slurm.guard.installation import (
    ENVIRONMENT,
    GuardStatus,
    Installation,
    change_slurm_conf,
    next_prolog_of,
    own_python,
    prolog_of,
    with_prolog,
)
from ops_pipelines.resources.slurm.guard.node_witness import Witness
from ops_pipelines.resources.slurm.guard.start_guard import (
    GuardError,
    Settings,
    expand,
    fields_of,
    has_record,
    held_jobs,
    judge,
    let_pass,
    note,
    open_starts,
    read_settings,
    record_paths,
)


def settings_in(directory: Path) -> Settings:
    return Settings(
        state=directory / "state", fallback=directory / "fallback", slurm_conf=str(directory / "slurm.conf"), port=1
    )


def guard_in(directory: Path, *, next_prolog: str = "", python: Path | None = None) -> Installation:
    guard = Installation(
        directory=directory / "guard",
        settings=settings_in(directory),
        python=python or own_python(),
        next_prolog=next_prolog,
    )
    guard.write()
    # There is no Slurm here. Where its programs are installed all the same, they look for slurmctld for seconds.
    scontrol = directory / "bin" / "scontrol"
    scontrol.parent.mkdir(exist_ok=True)
    scontrol.write_text("#!/bin/sh\necho 'scontrol: error: no slurmctld' >&2\nexit 1\n")
    scontrol.chmod(0o755)
    with (guard.directory / ENVIRONMENT).open("a") as file:
        file.write(f'PATH="{scontrol.parent}:$PATH"\n')
    return guard


def start(guard: Installation, job: str, *, restarts: int = 0, nodes: str = "gpu001") -> int:
    """Call the wrapper as slurmctld does."""
    environment = {"SLURM_JOB_ID": job, "SLURM_JOB_RESTART_COUNT": str(restarts), "SLURM_JOB_NODELIST": nodes}
    done = subprocess.run([str(guard.wrapper)], env=environment, capture_output=True, check=False, timeout=30)
    return done.returncode


@pytest.mark.parametrize(
    ("written", "nodes"),
    [
        ("gpu001", ("gpu001",)),
        ("gpu[001-003]", ("gpu001", "gpu002", "gpu003")),
        ("gpu[1,3-4],cpu7", ("gpu1", "gpu3", "gpu4", "cpu7")),
        ("r[1-2]n[08-09]", ("r1n08", "r1n09", "r2n08", "r2n09")),
    ],
)
def test_lists_of_nodes_are_read_as_slurm_writes_them(written: str, nodes: tuple[str, ...]) -> None:
    assert expand(written) == nodes


@pytest.mark.parametrize("written", ["", "unknown node", "gpu[3-1]", "gpu[a-b]", "$(reboot)", "gpu[0-999999999]"])
def test_what_is_no_list_of_nodes_is_refused(written: str) -> None:
    with pytest.raises(GuardError):
        expand(written)


@given(st.text(max_size=40))
def test_any_text_is_a_list_of_names_or_refused(written: str) -> None:
    try:
        names = expand(written)
    except GuardError:
        return
    assert names
    assert all(name[0].isalnum() and not set(name) & set(" $;|&\n/") for name in names)


def test_a_first_start_goes_ahead_and_is_written_down(tmp_path: Path) -> None:
    guard = guard_in(tmp_path)

    code = start(guard, "4711", nodes="gpu[001-002]")

    assert code == 0
    (begun,) = open_starts(guard.settings, "4711", before=float("inf"))
    assert begun.nodes == "gpu[001-002]"


@pytest.mark.parametrize("job", ["", "12; reboot", "../../etc", "-1"])
def test_what_is_no_job_id_is_neither_judged_nor_written(tmp_path: Path, job: str) -> None:
    guard = guard_in(tmp_path)

    assert start(guard, job) == 0
    assert not guard.settings.state.exists()


def test_a_restart_without_a_judge_is_refused_and_kept_for_the_next_look(tmp_path: Path) -> None:
    guard = guard_in(tmp_path, python=Path("/nonexistent/python"))

    assert start(guard, "7") == 0
    assert start(guard, "7") == 1
    assert held_jobs(guard.settings) == ("7",)


def test_a_restart_that_only_slurm_counts_is_a_restart(tmp_path: Path) -> None:
    guard = guard_in(tmp_path, python=Path("/nonexistent/python"))

    assert start(guard, "8", restarts=1) == 1


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (("start 10.5 0 gpu001", "refused 20.0 no verdict", "cleared 30.0"), 0),
        (("start 10.5 0 gpu001", "start 20.25 1 gpu002", "cleared 20.25"), 1),  # The judge's: that start went ahead.
        (("start 10.5 0 gpu001", "start 20.25 1 gpu002", "cleared 20.2"), 1),  # Torn.
        (("start 10.5 0 gpu001", "cleared 30.0", "start 40.0 1 gpu002"), 1),
        (("start 10.5 0 gpu001", "cleared 30.0", "refused 40.0 no verdict"), 1),
        (("start 10.5 0 gpu001", "cleared"), 1),
        (("start 10.5 0 gpu001",), 1),
        (("start 30.0 0 gpu001", "start 20.0 1 gpu002", "cleared 25.0"), 1),  # A clock that was set back.
    ],
)
def test_what_was_cleared_and_has_not_started_since_needs_no_interpreter(
    tmp_path: Path, lines: tuple[str, ...], code: int
) -> None:
    guard = guard_in(tmp_path, python=Path("/nonexistent/python"))
    for line in lines:
        note(guard.settings, "12", line)

    assert start(guard, "12", restarts=1) == code
    assert (
        record_paths(guard.settings, "12")[0].read_text().count("start ") == sum("start" in each for each in lines) + 1
    )


def test_what_was_cleared_here_and_started_elsewhere_is_judged(tmp_path: Path) -> None:
    guard = guard_in(tmp_path, python=Path("/nonexistent/python"))
    note(guard.settings, "12", "cleared 30.0")
    _, elsewhere = record_paths(guard.settings, "12")
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text("start 40.0 1 gpu002\n")

    assert start(guard, "12", restarts=1) == 1


def test_a_restart_that_cannot_be_written_down_does_not_start(tmp_path: Path) -> None:
    guard = guard_in(tmp_path)
    note(guard.settings, "12", "cleared 30.0")
    sync = tmp_path / "bin" / "sync"  # First on the guard's PATH: no disk takes what is written.
    sync.write_text("#!/bin/sh\nexit 1\n")
    sync.chmod(0o755)

    assert start(guard, "12", restarts=1) == 1
    assert start(guard, "14") == 0
    assert held_jobs(guard.settings) == ("12",)


def test_a_state_that_cannot_be_written_sends_records_elsewhere(tmp_path: Path) -> None:
    guard = guard_in(tmp_path, python=Path("/nonexistent/python"))
    guard.settings.state.write_text("in the way")

    assert start(guard, "9") == 0
    assert record_paths(guard.settings, "9")[1].exists()
    assert start(guard, "9") == 1


def test_where_nothing_can_be_written_first_starts_go_ahead_and_restarts_come_back_unheld(tmp_path: Path) -> None:
    guard = guard_in(tmp_path)
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n')
    guard.settings.state.write_text("in the way")
    guard.settings.fallback.write_text("in the way")

    assert (start(guard, "10"), start(guard, "10", restarts=1)) == (0, 1)
    assert not (tmp_path / "asked").exists()  # Who would let it go again?


@pytest.mark.parametrize("torn", [None, "", "STATE=/s\nPYTHON='/usr/b", "STATE=/s\n"])
def test_with_its_environment_missing_or_torn_first_starts_go_ahead_and_restarts_do_not(
    tmp_path: Path, torn: str | None
) -> None:
    guard = guard_in(tmp_path)
    if torn is None:
        (guard.directory / ENVIRONMENT).unlink()
    else:
        (guard.directory / ENVIRONMENT).write_text(torn)

    found = GuardStatus((), run=run_command).problem_of(str(guard.wrapper))

    assert (start(guard, "13"), start(guard, "13", restarts=1)) == (0, 1)
    assert "guard install" in found


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o177])
def test_slurm_user_can_run_the_guard_whatever_roots_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        guard = guard_in(tmp_path / "made" / "anew")
    finally:
        os.umask(before)

    modes = {path.name: path.stat().st_mode & 0o777 for path in guard.directory.iterdir()}

    assert modes.pop("start_guard.sh") == 0o755
    assert set(modes.values()) == {0o644}
    assert [path.stat().st_mode & 0o777 for path in (guard.directory, guard.directory.parent)] == [0o755, 0o755]


@pytest.mark.parametrize(
    ("made_unusable", "mode"),
    [(".", 0o700), ("start_guard.sh", 0o744), ("start_guard.py", 0o600), ("start_guard.env", 0o640)],
)
def test_what_slurm_user_cannot_run_is_named(made_unusable: str, mode: int) -> None:
    nobody = pwd.getpwnam("nobody")
    # The directories of pytest are for their owner alone.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        Path(directory).chmod(0o755)
        guard = guard_in(Path(directory), python=Path("/bin/sh"))
        usable = guard.hindrance_of(nobody)
        (guard.directory / made_unusable).chmod(mode)

        found = guard.hindrance_of(nobody)

        assert usable == ""
        assert f"nobody cannot use {guard.directory}" in found
        assert f"{mode:04o}" in found
        assert guard.hindrance_of(pwd.getpwuid(0)) == ""


@pytest.mark.parametrize("code", [0, 3])
def test_the_sites_own_prolog_runs_behind_the_guard_and_has_the_last_word(tmp_path: Path, code: int) -> None:
    prolog = tmp_path / "site prolog"
    prolog.write_text(f'#!/bin/sh\necho "$SLURM_JOB_ID" >"{tmp_path}/ran"\nexit {code}\n')
    prolog.chmod(0o755)
    guard = guard_in(tmp_path, next_prolog=str(prolog))

    assert start(guard, "11") == code
    assert (tmp_path / "ran").read_text() == "11\n"
    assert next_prolog_of(guard.directory) == str(prolog)


def test_refused_and_cleared_starts_are_no_attempts(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    for line in ("start 10.0 0 gpu001", "start 20.5 1 gpu002", "refused 20.5 no verdict", "start 30.0 2 gpu003"):
        note(settings, "5", line)

    before_clearing = open_starts(settings, "5", before=40.0)
    note(settings, "5", "cleared 30.0")
    after_clearing = open_starts(settings, "5", before=40.0)

    assert [each.nodes for each in before_clearing] == ["gpu001", "gpu003"]
    assert [each.nodes for each in after_clearing] == ["gpu003"]
    assert open_starts(settings, "5", before=30.0) == ()
    assert not has_record(settings, "5", before=10.0)


@given(st.binary(max_size=200))
def test_a_damaged_record_hides_no_start_behind_it(tmp_path_factory: pytest.TempPathFactory, damage: bytes) -> None:
    settings = settings_in(tmp_path_factory.mktemp("guard"))
    note(settings, "5", "start 10.0 0 gpu001")
    path = record_paths(settings, "5")[0]
    path.write_bytes(damage.replace(b"cleared", b"").replace(b"refused", b"") + b"\n" + path.read_bytes())

    assert "gpu001" in [each.nodes for each in open_starts(settings, "5", before=20.0)]


@pytest.mark.parametrize(("nodes", "is_clear"), [("(null)", True), ("unknown", False), ("gpu0 01", False)])
def test_a_start_whose_nodes_slurm_took_back_before_it_asked_ran_nowhere(
    tmp_path: Path, nodes: str, is_clear: bool
) -> None:
    settings = settings_in(tmp_path)
    note(settings, "12", "cleared 90.0")
    note(settings, "12", f"start 100.0 1 {nodes}")

    assert judge(settings, "12", 200.0).is_clear is is_clear


def test_a_pass_is_kept_with_who_and_why(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)

    let_pass(settings, "5", who="operator", reason="checkpoints\napart")

    assert (settings.state / "passes" / "5").read_text().endswith(" operator: checkpoints apart\n")


def test_fields_of_a_node_are_its_first_ones() -> None:
    told = fields_of("NodeName=gpu001 State=IDLE Reason=x State=DOWN NodeName=other")

    assert (told["NodeName"], told["State"]) == ("gpu001", "IDLE")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": 1}', "null"])
def test_settings_that_cannot_be_used_name_the_way_out(tmp_path: Path, text: str) -> None:
    path = tmp_path / "start_guard.json"
    path.write_text(text)

    with pytest.raises(GuardError, match="guard install"):
        read_settings(path)


@pytest.mark.parametrize(
    ("before", "prolog"),
    [
        ("ClusterName=a\n", ""),
        ("ClusterName=a\nPrologSlurmctld=/site/prolog\n", "/site/prolog"),
        ("prologslurmctld = /site/prolog # old\n#PrologSlurmctld=/no\n", "/site/prolog"),
        ("Prolog=/node\nPrologSlurmctld=/one\nPrologSlurmctld=/two\n", "/two"),
    ],
)
def test_slurm_conf_names_the_guard_once_and_keeps_the_rest(before: str, prolog: str) -> None:
    after = with_prolog(before, "/guard")

    assert prolog_of(before) == prolog
    assert prolog_of(after) == "/guard"
    assert after.lower().count("\nprologslurmctld=") + after.lower().startswith("prologslurmctld=") == 1
    assert [line for line in before.splitlines() if line.startswith(("ClusterName", "Prolog=", "#"))] == [
        line for line in after.splitlines() if line.startswith(("ClusterName", "Prolog=", "#"))
    ]


def test_slurm_conf_as_it_was_is_kept_and_a_second_change_does_nothing(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("ClusterName=a\n")
    path.chmod(0o640)

    kept = change_slurm_conf(path, "/guard")

    assert kept is not None
    assert kept.read_text() == "ClusterName=a\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert change_slurm_conf(path, "/guard") is None


def answering(code: int, text: str) -> GuardStatus:
    def run(argv: object, *, environment: object, timeout_seconds: float) -> CommandAnswer:
        return CommandAnswer(returncode=code, stdout=text, stderr="")

    return GuardStatus(("ask",), run=run)


@pytest.mark.parametrize(
    ("code", "text", "problem"),
    [
        (0, json.dumps({"is_well": True, "problems": []}), ""),
        (3, json.dumps({"is_well": False, "problems": ["the disk is full"]}), "the disk is full"),
        (3, json.dumps({"is_well": False, "problems": []}), "the guard says that it is not well"),
        (0, "", "printed no status"),
        (0, "[]", "printed no status"),
        (127, "", "ended with 127"),
    ],
)
def test_only_a_guard_that_says_so_is_well(code: int, text: str, problem: str) -> None:
    found = answering(code, text).problem_of("/guard/start_guard.sh")

    assert (found == "") == (problem == "")
    assert problem in found


def test_a_guard_that_does_not_answer_is_not_well() -> None:
    def run(argv: object, *, environment: object, timeout_seconds: float) -> CommandAnswer:
        raise SourceUnavailable("nobody there")

    assert "nobody there" in GuardStatus(("ask",), run=run).problem_of("/guard/start_guard.sh")
    assert "scheduler.guard_status" in GuardStatus((), run=run_command).problem_of("/nonexistent/start_guard.sh")


def test_a_guard_on_this_host_is_asked_itself(tmp_path: Path) -> None:
    guard = guard_in(tmp_path)

    found = GuardStatus((), run=run_command).problem_of(str(guard.wrapper))

    assert "scontrol" in found or "munge" in found  # There is no Slurm here: it says what it lacks.
    assert os.access(guard.wrapper, os.X_OK)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the environment of every process")
@pytest.mark.parametrize(
    ("only_with", "count"),
    [
        ((), 1),
        ((("MARK|SLURMD_NODENAME", "gpu001"),), 1),
        ((("MARK|SLURMD_NODENAME", "gpu002"),), 0),
        ((("MARK|SLURMD_NODENAME", "gpu001"), ("SLURM_CONF", "/a/slurm.conf")), 1),
        ((("MARK|SLURMD_NODENAME", "gpu001"), ("SLURM_CONF", "/b/slurm.conf")), 0),
    ],
)
def test_a_drills_witness_counts_its_own_nodes_and_clusters_processes_alone(
    only_with: tuple[tuple[str, str], ...], count: int
) -> None:
    job = str(900_000_000_000 + os.getpid())
    environment = {"SLURM_JOB_ID": job, "SLURMD_NODENAME": "gpu001", "SLURM_CONF": "/a/slurm.conf"}
    witness = Witness("gpu001", asker_uids=[0], munge_socket=None, only_with=only_with)

    with subprocess.Popen(["/bin/cat"], env=environment, stdin=subprocess.PIPE) as process:
        ages = list(witness._ages(job))
        process.kill()

    assert len(ages) == count
