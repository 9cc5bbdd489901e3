"""A check under a key: started once, read while it runs, kept when it is over, and honest when it was cut short."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import ActionKey
from ops_pipelines.core.node_tests import NodeCheck, TestResult
from ops_pipelines.resources.commands import ToolEnd, run_pair, run_tool, tool_environment
from ops_pipelines.resources.fleet.documents import check_from_json, check_to_json
from ops_pipelines.resources.node.checks import (
    CUT_SHORT,
    AnotherCheckRuns,
    CheckExit,
    CheckRuns,
    Workshop,
    exit_code_of,
    run_check,
)
from ops_pipelines_lab.drills.daemon_processes import wait_until
from tests.resources.node_bench import NODE, NOW, StoppedClock, Tools, nvml_reading, says

KEY, OTHER = ActionKey("0123456789abcdef" * 2), ActionKey("f" * 32)
TESTS = ("nvml", "nvidia_smi", "host")


@pytest.fixture
def runs(tmp_path: Path) -> CheckRuns:
    return CheckRuns(tmp_path / "checks", clock=SystemClock())


def start(runs: CheckRuns, key: ActionKey = KEY) -> bool:
    return runs.start(key, node=NODE, suite="system", tests=TESTS, limit_seconds=60.0)


def wait_for(read: Callable[[], NodeCheck | None]) -> NodeCheck:
    wait_until("the check", lambda: read() is not None, timeout_seconds=60.0, every_seconds=0.05)
    found = read()
    assert found is not None
    return found


def pretend(runs: CheckRuns, tmp_path: Path, *, pid: int, boot_id: str | None = None, began: str | None = None) -> None:
    """Leave the lock of a run by process `pid`."""
    (tmp_path / "checks").mkdir(exist_ok=True)
    stat = Path(f"/proc/{pid}/stat")
    told = {
        "key": KEY,
        "node": NODE,
        "suite": "system",
        "tests": list(TESTS),
        "limit_seconds": 60.0,
        "started_at": NOW.isoformat(),
        "pid": pid,
        "boot_id": boot_id or Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "process_began": began or (stat.read_text().rpartition(")")[2].split()[19] if stat.exists() else "0"),
    }
    (tmp_path / "checks" / f"{KEY}.lock").write_text(json.dumps(told))


def test_a_started_check_ends_by_itself_and_starts_once(runs: CheckRuns, tmp_path: Path) -> None:
    assert start(runs) is True
    assert start(runs) is False

    found = wait_for(lambda: runs.read(KEY))

    assert (found.key, found.node, found.suite) == (KEY, NODE, "system")
    assert [run.test for run in found.tests] == list(TESTS)
    assert start(runs) is False
    assert runs.read(KEY) == found
    assert sorted(path.name for path in (tmp_path / "checks").iterdir()) == [
        f"{KEY}.json",
        f"{KEY}.lock",
        "starting",
    ]


def test_nothing_is_known_of_a_key_that_was_not_started(runs: CheckRuns) -> None:
    with pytest.raises(KeyError):
        runs.read(KEY)


@pytest.mark.parametrize(
    "key", ["", "0" * 31, "0" * 33, "G" * 32, "../../../../../../../../etc/passwd", "0" * 31 + "\n"]
)
def test_a_key_that_is_none_names_no_file(runs: CheckRuns, key: str) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        runs.read(ActionKey(key))
    with pytest.raises(ValueError, match="is not a key"):
        start(runs, ActionKey(key))


def test_a_check_whose_process_lives_is_running_and_lets_no_other_begin(runs: CheckRuns, tmp_path: Path) -> None:
    pretend(runs, tmp_path, pid=os.getpid())

    assert runs.read(KEY) is None
    with pytest.raises(AnotherCheckRuns, match=KEY):
        start(runs, OTHER)


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param({"pid": 2**22 + 1}, id="no such process"),
        pytest.param({"pid": os.getpid(), "boot_id": "another"}, id="before the last boot"),
        pytest.param({"pid": os.getpid(), "began": "1"}, id="its number was given again"),
    ],
)
def test_a_check_whose_process_is_gone_was_cut_short(
    runs: CheckRuns, tmp_path: Path, gone: dict[str, str | int]
) -> None:
    pretend(runs, tmp_path, **gone)  # type: ignore[arg-type]  # the rows are of one shape

    found = runs.read(KEY)

    assert found is not None
    assert {(run.result, run.said) for run in found.tests} == {(TestResult.NOT_RUN, CUT_SHORT)}
    assert (found.started_at, [run.test for run in found.tests]) == (NOW, list(TESTS))
    assert start(runs) is False


def test_what_was_finished_before_it_was_cut_short_stands(runs: CheckRuns, tmp_path: Path) -> None:
    pretend(runs, tmp_path, pid=2**22 + 1)
    run = nvml_reading().run
    runs.keep(
        NodeCheck(key=KEY, node=NODE, suite="system", started_at=NOW, finished_at=NOW, tests=(run,), gpu_models=("H",))
    )

    found = runs.read(KEY)

    assert found is not None
    assert [(each.test, each.result) for each in found.tests] == [
        ("nvml", TestResult.PASSED),
        ("nvidia_smi", TestResult.NOT_RUN),
        ("host", TestResult.NOT_RUN),
    ]
    assert found.gpu_models == ("H",)


def test_files_that_nobody_asks_for_any_more_are_forgotten(runs: CheckRuns, tmp_path: Path) -> None:
    directory = tmp_path / "checks"
    directory.mkdir()
    now = SystemClock().now()
    for name, days in (("old", 31), ("young", 29)):
        (directory / f"{name}.json").write_text("{}")
        at = (now - timedelta(days=days)).timestamp()
        os.utime(directory / f"{name}.json", (at, at))

    start(runs)

    wait_for(lambda: runs.read(KEY))
    assert not (directory / "old.json").exists()
    assert (directory / "young.json").exists()


# -- the check itself --


def nvml_says(result: str = "well") -> str:
    reading = nvml_reading(2)
    assert reading.inspection is not None
    from ops_pipelines.resources.nvml import to_json

    return json.dumps(
        {
            "inspection": json.loads(to_json(reading.inspection)),
            "driver_version": "570.172.08",
            "library_version": "12.570.172.08",
            "gpus": [],
        }
        if result == "well"
        else {"trouble": result, "is_absent": False}
    )


def workshop(tools: Tools, tmp_path: Path) -> Workshop:
    return Workshop(run=tools, run_pair=tools.pair, proc=tmp_path / "proc", sys=tmp_path / "sys")


def test_tests_run_in_order_and_each_is_kept(tmp_path: Path) -> None:
    tools = Tools({sys.executable: says(nvml_says())})
    kept: list[int] = []

    found = run_check(
        NODE, TESTS, key=KEY, suite="system", clock=StoppedClock(), workshop=workshop(tools, tmp_path),
        keep=lambda check: kept.append(len(check.tests)),
    )  # fmt: skip

    assert [run.test for run in found.tests] == list(TESTS)
    assert kept == [1, 2, 3]
    assert found.gpu_models == ("NVIDIA H200",)
    assert check_from_json(check_to_json(found), node=NODE, key=KEY) == found


def test_a_gpu_that_the_tests_broke_fails_the_check(tmp_path: Path) -> None:
    class Breaks(Tools):
        def __call__(self, argv, *, limit_seconds):  # type: ignore[no-untyped-def]
            if argv[0] == "all_reduce_perf":
                self.answers[sys.executable] = says(nvml_says("NVML cannot be started"))
            return super().__call__(argv, limit_seconds=limit_seconds)

    found = run_check(
        NODE, ("nvml", "nccl_loopback"), key=KEY, suite="nvlink", clock=StoppedClock(),
        workshop=workshop(Breaks({sys.executable: says(nvml_says())}), tmp_path),
    )  # fmt: skip

    assert (found.tests[0].result, found.tests[0].said) == (
        TestResult.FAILED,
        "after the tests: NVML cannot be started",
    )
    assert found.inspection is None


def test_without_time_nothing_is_run(tmp_path: Path) -> None:
    tools = Tools({sys.executable: says(nvml_says()), "nvidia-smi": says()})

    found = run_check(
        NODE, TESTS, key=KEY, suite="system", clock=StoppedClock(), limit_seconds=0.0,
        workshop=workshop(tools, tmp_path),
    )  # fmt: skip

    assert [run.said for run in found.tests[1:]] == ["no time was left for it"] * 2
    assert [argv[0] for argv in tools.ran] == [sys.executable]


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ((TestResult.PASSED, TestResult.PASSED), CheckExit.PASSED),
        ((TestResult.PASSED, TestResult.NOT_RUN), CheckExit.NOT_PROVEN),
        ((TestResult.NOT_RUN, TestResult.PASSED), CheckExit.NOT_PROVEN),
        ((TestResult.NOT_RUN, TestResult.FAILED), CheckExit.FAILED),
        ((TestResult.FAILED, TestResult.PASSED), CheckExit.FAILED),
    ],
)
def test_the_exit_code_says_what_is_proven(results: tuple[TestResult, TestResult], code: CheckExit) -> None:
    run = nvml_reading().run
    runs = (replace(run, result=results[0]), replace(run, test="host", result=results[1]))
    check = NodeCheck(key=KEY, node=NODE, suite="s", started_at=NOW, finished_at=NOW, tests=runs)

    assert exit_code_of(check, {"nvml"}) is code
    assert exit_code_of(replace(check, tests=()), {"nvml"}) is CheckExit.NOT_PROVEN


def test_a_tool_that_is_not_there_takes_nothing_from_what_passed() -> None:
    run = nvml_reading().run
    runs = (run, replace(run, test="host", result=TestResult.NOT_RUN, is_absent=True))
    check = NodeCheck(key=KEY, node=NODE, suite="s", started_at=NOW, finished_at=NOW, tests=runs)

    assert exit_code_of(check, {"nvml"}) is CheckExit.PASSED


def test_beside_a_job_nothing_is_put_under_load(tmp_path: Path) -> None:
    told = json.loads(nvml_says())
    told["gpus"] = [{"pci_address": "0000:10:00", "compute_process_count": 2}]
    tools = Tools({sys.executable: says(json.dumps(told)), "all_reduce_perf": says()})

    found = run_check(
        NODE, ("nvml", "nccl_loopback"), key=KEY, suite="nvlink", clock=StoppedClock(),
        workshop=workshop(tools, tmp_path),
    )  # fmt: skip

    assert (found.tests[1].result, found.tests[1].is_absent) == (TestResult.NOT_RUN, False)
    assert "2 processes compute" in found.tests[1].said
    assert "all_reduce_perf" not in {argv[0] for argv in tools.ran}


# -- the directory --


def test_a_directory_that_others_may_write_to_is_not_believed(runs: CheckRuns, tmp_path: Path) -> None:
    pretend(runs, tmp_path, pid=os.getpid())
    (tmp_path / "checks").chmod(0o777)

    with pytest.raises(PermissionError, match="that nobody else may write to"):
        runs.read(KEY)
    with pytest.raises(PermissionError):
        start(runs, OTHER)


def test_files_are_for_their_owner_alone_and_no_link_is_followed(runs: CheckRuns, tmp_path: Path) -> None:
    directory = tmp_path / "checks"
    directory.mkdir(mode=0o750)
    (directory / "starting").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError):
        start(runs)
    (directory / "starting").unlink()
    with runs.alone(KEY, node=NODE, suite="s", tests=TESTS, limit_seconds=1.0):
        modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}

    assert not (tmp_path / "elsewhere").exists()
    assert modes == {"starting": 0o600, f"{KEY}.lock": 0o600}


@pytest.mark.parametrize("lock", ["[]", "{}", "7", '{"key": null}'])
def test_a_lock_that_makes_no_sense_is_said_to_make_none(runs: CheckRuns, tmp_path: Path, lock: str) -> None:
    pretend(runs, tmp_path, pid=os.getpid())
    (tmp_path / "checks" / f"{KEY}.lock").write_text(lock)

    with pytest.raises(ValueError):
        runs.read(KEY)


def test_whoever_runs_the_check_is_who_the_lock_names(runs: CheckRuns, tmp_path: Path) -> None:
    pretend(runs, tmp_path, pid=2**22 + 1)

    runs.take_over(KEY)

    assert runs.read(KEY) is None


def test_a_check_in_the_foreground_lets_no_other_begin(runs: CheckRuns) -> None:
    with runs.alone(KEY, node=NODE, suite="s", tests=TESTS, limit_seconds=1.0), pytest.raises(AnotherCheckRuns):
        start(runs, OTHER)

    with pytest.raises(KeyError):
        runs.read(KEY)


@pytest.mark.parametrize(
    ("boot_id", "result"), [("another", TestResult.FAILED), (None, TestResult.NOT_RUN)], ids=["booted", "same boot"]
)
def test_a_node_that_went_down_under_load_has_failed(
    runs: CheckRuns, tmp_path: Path, boot_id: str | None, result: TestResult
) -> None:
    pretend(runs, tmp_path, pid=2**22 + 1, boot_id=boot_id)
    lock = tmp_path / "checks" / f"{KEY}.lock"
    lock.write_text(lock.read_text().replace("nvidia_smi", "dcgm_diag_r2"))
    runs.keep(
        NodeCheck(key=KEY, node=NODE, suite="s", started_at=NOW, finished_at=NOW, tests=(nvml_reading().run,))
    )  # fmt: skip

    found = runs.read(KEY)

    assert found is not None
    assert [(each.test, each.result, each.is_absent) for each in found.tests] == [
        ("nvml", TestResult.PASSED, False),
        ("dcgm_diag_r2", result, False),
        ("host", TestResult.NOT_RUN, False),
    ]


# -- tools --


def test_a_tool_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '60']);"
        "open(sys.argv[1], 'w').write(str(child.pid)); print('started', flush=True); time.sleep(60)"
    )

    answer = run_tool((sys.executable, "-c", program, str(note)), limit_seconds=0.5)

    assert answer.end is ToolEnd.DID_NOT_END
    pid = int(note.read_text())
    state = Path(f"/proc/{pid}/stat")
    # It is nobody's child any more: killed it is, and gone as soon as the kernel comes to it.
    wait_until("its end", lambda: _is_gone(state), timeout_seconds=10.0, every_seconds=0.01)


def _is_gone(state: Path) -> bool:
    try:
        return state.read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except OSError:
        return True


def test_tools_run_without_a_shell_in_a_plain_environment() -> None:
    program = "import os, sys; print(sys.argv[1], os.environ['LC_ALL'], 'SECRET' in os.environ)"

    answer = run_tool((sys.executable, "-c", program, "$(id); é"), limit_seconds=30)

    assert (answer.end, answer.returncode) == (ToolEnd.ENDED, 0)
    assert answer.stdout.split(" ", 2)[0] == "$(id);"
    assert answer.stdout.endswith("C False\n")
    assert tool_environment({"SECRET": "x", "PATH": "/opt/bin", "HOME": "/root"}).keys() == {"PATH", "HOME", "LC_ALL"}


def test_a_tool_is_not_taken_from_where_somebody_happens_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("print('theirs')")
    monkeypatch.chdir(tmp_path)

    answer = run_tool((sys.executable, "-c", "import json, os; print(os.getcwd())"), limit_seconds=30)

    assert answer.stdout == "/\n"
    assert tool_environment({"PATH": ".:bin:/opt/bin:"})["PATH"].startswith("/opt/bin:/usr")


def test_a_tool_that_prints_without_an_end_is_killed() -> None:
    program = "import sys\nwhile True: sys.stdout.write('x' * 1048576)"

    assert run_tool((sys.executable, "-c", program), limit_seconds=30).end is ToolEnd.SAID_TOO_MUCH


@pytest.mark.parametrize("program", ["no-such-program", "/etc/hostname"])
def test_a_tool_that_is_not_there_is_absent(program: str) -> None:
    assert run_tool((program,), limit_seconds=1).end is ToolEnd.ABSENT


@pytest.mark.skipif(shutil.which("sleep") is None, reason="no sleep on this machine")
def test_a_server_does_not_outlive_its_client() -> None:
    class Hurried:
        def now(self):  # type: ignore[no-untyped-def]
            return NOW

        def wait(self, seconds: float) -> None:
            return

    answer = run_pair(("sleep", "61.75"), (sys.executable, "-c", "print('98 Gb/s')"), limit_seconds=30, clock=Hurried())

    assert answer.stdout == "98 Gb/s\n"
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=False).stdout
    assert "sleep 61.75" not in listed
