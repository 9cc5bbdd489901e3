"""An installation on the node itself: hashed before it is run, started once, and honest when it was cut short."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.clock import SystemClock
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import InstallReport, InstallState
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.fleet.command_fleet import CommandFleet
from ops_pipelines.resources.fleet.documents import PlainOrder, order_to_dict, order_to_word, report_to_json
from ops_pipelines.resources.fleet.installs import plain_order
from ops_pipelines.resources.node import installs as install_steps
from ops_pipelines.resources.node.installs import AnotherInstallRuns, GpusBusy, InstallRuns, StepResult, carry_out
from ops_pipelines_lab.drills.daemon_processes import wait_until
from tests.resources.install_orders import IMAGE, KEY, NODE, OTHER_KEY, OTHER_NODE, SHA256, change, image, order
from tests.resources.patience import run_patiently

PYTHON = (sys.executable, "-I", "-S", "-c")
CLI = [sys.executable, "-c", "from ops_pipelines.cli import main; main()"]


@pytest.fixture
def image_file(tmp_path: Path) -> Path:
    path = tmp_path / "driver-580.run"
    path.write_bytes(IMAGE)
    return path


def plain(*changes: object, key: str = KEY) -> PlainOrder:
    return plain_order(NODE, order(*changes), key=key)  # type: ignore[arg-type]  # changes, as `change` makes them


class Told:
    """What was kept while an order was carried out."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, float]] = []

    def __call__(self, said: str, share: float) -> None:
        self.kept.append((said, share))


def run(told: PlainOrder, tmp_path: Path, *, limit_seconds: float = 60.0, keep: Told | None = None) -> StepResult:
    place = tmp_path / "installs"
    place.mkdir(exist_ok=True)
    return carry_out(
        told,
        directory=place,
        log=place / "log",
        limit_seconds=limit_seconds,
        keep=keep or Told(),
        note_command=lambda _: None,
    )


# -- one order --


def test_commands_run_in_order_with_their_words_filled_in(tmp_path: Path) -> None:
    note = tmp_path / "note"
    words = (*PYTHON, f"import sys; open({str(note)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')")
    told = plain(
        change(*words, "{node}", "{version}", "{key}"), change(*words, "second", component=Component.FABRIC_MANAGER)
    )
    keep = Told()

    result = run(told, tmp_path, keep=keep)

    assert result == StepResult(
        state=InstallState.INSTALLED, said="driver 580.126.20, fabric_manager 580.126.20 lies on the node"
    )
    assert note.read_text() == f"gpu003 580.126.20 {KEY}\nsecond\n"
    assert keep.kept == [("installs driver 580.126.20", 0.0), ("installs fabric_manager 580.126.20", 0.5)]


def test_the_first_that_fails_ends_the_order_and_its_last_words_are_told(tmp_path: Path) -> None:
    fails = (*PYTHON, "import sys; print('no space left'); sys.exit(3)")
    told = plain(change(*fails), change("touch", str(tmp_path / "never"), component=Component.DCGM))

    result = run(told, tmp_path)

    assert result.state is InstallState.FAILED
    assert result.said.endswith("ended with 3: no space left")
    assert not (tmp_path / "never").exists()


def test_what_is_run_is_a_copy_of_what_was_hashed(tmp_path: Path, image_file: Path) -> None:
    note = tmp_path / "note"
    program = f"import sys; p = sys.argv[1]; open({str(note)!r}, 'w').write(p + ' ' + open(p).read())"
    told = plain(change(*PYTHON, program, "{artifact}", artifact=image(str(image_file))))

    result = run(told, tmp_path)

    path, _, text = note.read_text().partition(" ")
    assert (result.state, text.encode()) == (InstallState.INSTALLED, IMAGE)
    assert (Path(path).name, Path(path) == image_file) == ("driver-580.run", False)
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("location", "sha256", "said"),
    [
        pytest.param("{place}/driver-580.run", "0" * 64, "nothing was run", id="another content"),
        pytest.param("{place}/gone", SHA256, "could not be read", id="no such file"),
        pytest.param("{place}", SHA256, "could not be read", id="a directory"),
        pytest.param("driver-580.run", SHA256, "absolute path", id="a path from nowhere"),
        pytest.param("http://site/driver", SHA256, "absolute path", id="no https"),
        pytest.param("file:///etc/hostname", SHA256, "absolute path", id="another scheme"),
        pytest.param("https://127.0.0.1:1/driver", SHA256, "could not be fetched", id="nobody serves it"),
    ],
)
def test_nothing_is_run_of_an_artifact_that_is_not_the_releases(
    tmp_path: Path, image_file: Path, location: str, sha256: str, said: str
) -> None:
    artifact = image(location.format(place=tmp_path), sha256=sha256)
    told = plain(change("touch", str(tmp_path / "never"), artifact=artifact))

    result = run(told, tmp_path)

    assert (result.state, said in result.said) == (InstallState.FAILED, True), result.said
    assert not (tmp_path / "never").exists()
    assert image_file.exists()


def test_no_command_is_run_before_every_artifact_is_the_releases(tmp_path: Path, image_file: Path) -> None:
    told = plain(
        change("touch", str(tmp_path / "never"), artifact=image(str(image_file))),
        change("true", component=Component.DCGM, artifact=image(str(image_file), sha256="0" * 64)),
    )

    result = run(told, tmp_path)

    assert (result.state, "nothing was run" in result.said) == (InstallState.FAILED, True)
    assert not (tmp_path / "never").exists()


def test_a_pipe_that_nobody_writes_to_is_no_artifact(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    result = run(plain(change("true", artifact=image(str(tmp_path / "pipe")))), tmp_path)

    assert result.state is InstallState.FAILED
    assert "it is no plain file" in result.said


def test_a_command_that_prints_without_an_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_steps, "MOST_LOG_BYTES", 2**16)
    program = "import sys, time; sys.stdout.write('x' * 2**17); sys.stdout.flush(); time.sleep(60)"

    result = run(plain(change(*PYTHON, program)), tmp_path)

    assert "printed without an end" in result.said


def test_two_artifacts_of_one_name_do_not_meet(tmp_path: Path, image_file: Path) -> None:
    told = plain(
        change("test", "-f", "{artifact}", artifact=image(str(image_file))),
        change("test", "-f", "{artifact}", component=Component.DCGM, artifact=image(str(image_file))),
    )

    assert run(told, tmp_path).state is InstallState.INSTALLED


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '60']);"
        f"open({str(note)!r}, 'w').write(str(child.pid)); print('half way', flush=True); time.sleep(60)"
    )

    result = run(plain(change(*PYTHON, program)), tmp_path, limit_seconds=1.0)

    assert (result.state, "did not end in time" in result.said) == (InstallState.FAILED, True)
    wait_until("its end", lambda: _is_gone(int(note.read_text())), timeout_seconds=10.0, every_seconds=0.01)


def test_a_daemon_that_an_installer_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    program = "import subprocess; subprocess.Popen(['sleep', '5'], start_new_session=True)"

    result = run(plain(change(*PYTHON, program)), tmp_path, limit_seconds=4.0)

    assert result.state is InstallState.INSTALLED


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run(plain(change("no-such-program")), tmp_path)

    assert (result.state, result.said) == (
        InstallState.FAILED,
        "driver 580.126.20: no-such-program is not installed on the node",
    )


def test_no_shell_is_run_even_if_an_order_got_so_far(tmp_path: Path) -> None:
    told = plain(change())
    hostile = replace(told, changes=(replace(told.changes[0], words=("sh", "-c", "touch {version}")),))

    result = run(hostile, tmp_path)

    assert (result.state, "hands it to a shell" in result.said) == (InstallState.FAILED, True)


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except OSError:
        return True


# -- under a key --


@pytest.fixture
def runs(tmp_path: Path) -> InstallRuns:
    return InstallRuns(tmp_path / "installs", clock=SystemClock(), count_processes=lambda: 0)


def wait_for(read: Callable[[], InstallReport | None]) -> InstallReport:
    def is_over() -> bool:
        report = read()
        return report is not None and report.state is not InstallState.RUNNING

    wait_until("the installation", is_over, timeout_seconds=60.0, every_seconds=0.05)
    found = read()
    assert found is not None
    return found


def test_a_started_installation_ends_by_itself_and_starts_once(runs: InstallRuns, tmp_path: Path) -> None:
    note = tmp_path / "note"
    words = (*PYTHON, f"print('unpacked'); open({str(note)!r}, 'a').write('once ')")

    assert runs.start(plain(change(*words)), limit_seconds=60.0) is True
    assert runs.start(plain(change(*words)), limit_seconds=60.0) is False
    report = wait_for(lambda: runs.read(KEY))

    assert (report.state, report.node, report.key) == (InstallState.INSTALLED, NODE, KEY)
    assert runs.start(plain(change(*words)), limit_seconds=60.0) is False
    assert note.read_text() == "once "
    assert "unpacked" in (tmp_path / "installs" / f"{KEY}.log").read_text()
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "installs").iterdir()} == {0}


def test_of_a_key_that_was_never_started_nothing_is_known(runs: InstallRuns) -> None:
    assert runs.read(KEY) is None


def pretend(tmp_path: Path, *, pid: int, boot_id: str | None = None, **more: object) -> None:
    """Leave the lock of an installation by process `pid`."""
    place = tmp_path / "installs"
    place.mkdir(mode=0o750, exist_ok=True)
    stat = Path(f"/proc/{pid}/stat")
    told = {
        "node": NODE,
        "started_at": "2026-11-22T03:00:00+00:00",
        "limit_seconds": 60.0,
        "order": order_to_dict(plain(change())),
        **more,
        "pid": pid,
        "boot_id": boot_id or Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "process_began": stat.read_text().rpartition(")")[2].split()[19] if stat.exists() else "0",
    }
    (place / f"{KEY}.lock").write_text(json.dumps(told))


def test_while_one_installation_runs_no_other_begins(runs: InstallRuns, tmp_path: Path) -> None:
    pretend(tmp_path, pid=os.getpid())

    with pytest.raises(AnotherInstallRuns, match=KEY):
        runs.start(plain(change(), key=OTHER_KEY), limit_seconds=60.0)

    report = runs.read(KEY)
    assert report is not None
    assert (report.state, report.progress_ratio) == (InstallState.RUNNING, 0.0)


def test_how_far_it_is_shows_while_it_runs(runs: InstallRuns, tmp_path: Path) -> None:
    pretend(tmp_path, pid=os.getpid())
    part = InstallReport(key=KEY, node=NODE, state=InstallState.RUNNING, said="installs dcgm", progress_ratio=0.5)
    (tmp_path / "installs" / f"{KEY}.part").write_text(report_to_json(part))

    assert runs.read(KEY) == part


@pytest.mark.parametrize(
    ("pid", "boot_id", "why"),
    [
        pytest.param(2**22 + 1, None, "its process was ended", id="killed"),
        pytest.param(os.getpid(), "another", "the machine that it ran on booted", id="booted"),
    ],
)
def test_an_installation_that_was_cut_short_has_failed(
    runs: InstallRuns, tmp_path: Path, pid: int, boot_id: str | None, why: str
) -> None:
    pretend(tmp_path, pid=pid, boot_id=boot_id)

    report = runs.read(KEY)

    assert report is not None
    assert report.state is InstallState.FAILED
    assert report.said.startswith(f"cut short, {why}; the last that it reported: running since 2026-11-22 03:00 UTC")
    assert runs.start(plain(change()), limit_seconds=60.0) is False


def test_a_key_that_has_another_order_is_refused(runs: InstallRuns, tmp_path: Path) -> None:
    pretend(tmp_path, pid=2**22 + 1)

    with pytest.raises(SourceRefused, match="another order was started under"):
        runs.start(plain(change("touch", str(tmp_path / "never"))), limit_seconds=60.0)

    assert not (tmp_path / "never").exists()


def test_an_installation_is_not_over_before_its_command_is_although_it_was_killed(
    runs: InstallRuns, tmp_path: Path
) -> None:
    note = tmp_path / "go"
    program = f"import pathlib, time\nwhile not pathlib.Path({str(note)!r}).exists(): time.sleep(0.05)"
    runs.start(plain(change(*PYTHON, program)), limit_seconds=60.0)
    lock = tmp_path / "installs" / f"{KEY}.lock"
    wait_until("its command", lambda: "command" in json.loads(lock.read_text()), timeout_seconds=60.0)

    os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
    wait_until("its end", lambda: _is_gone(json.loads(lock.read_text())["pid"]), timeout_seconds=10.0)
    report = runs.read(KEY)
    with pytest.raises(AnotherInstallRuns):
        runs.start(plain(change(), key=OTHER_KEY), limit_seconds=60.0)
    note.write_text("")

    assert report is not None
    assert report.state is InstallState.RUNNING
    assert wait_for(lambda: runs.read(KEY)).said.startswith("cut short, its process was ended")


@pytest.mark.parametrize(("count", "is_started"), [(0, True), (1, False)])
def test_nothing_is_installed_while_a_process_computes(tmp_path: Path, count: int, is_started: bool) -> None:
    runs = InstallRuns(tmp_path / "installs", clock=SystemClock(), count_processes=lambda: count)

    if is_started:
        assert runs.start(plain(change()), limit_seconds=60.0)
        wait_for(lambda: runs.read(KEY))
    else:
        with pytest.raises(GpusBusy, match="1 processes compute"):
            runs.start(plain(change()), limit_seconds=60.0)
        assert runs.read(KEY) is None


def test_copies_of_an_installation_that_was_cut_short_are_removed(runs: InstallRuns, tmp_path: Path) -> None:
    pretend(tmp_path, pid=2**22 + 1)
    left = tmp_path / "installs" / f"{KEY}.files" / "driver"
    left.mkdir(parents=True)

    runs.start(plain(change(), key=OTHER_KEY), limit_seconds=60.0)

    assert not left.exists()
    wait_for(lambda: runs.read(OTHER_KEY))


def test_a_directory_that_others_may_write_to_is_not_believed(runs: InstallRuns, tmp_path: Path) -> None:
    pretend(tmp_path, pid=os.getpid())
    (tmp_path / "installs").chmod(0o777)

    with pytest.raises(PermissionError):
        runs.read(KEY)


@pytest.mark.parametrize("lock", ["[]", "{}", "7", '{"node": null}', '{"node": "gpu003", "started_at": "soon"}'])
def test_a_lock_that_makes_no_sense_is_said_to_make_none(runs: InstallRuns, tmp_path: Path, lock: str) -> None:
    pretend(tmp_path, pid=os.getpid())
    (tmp_path / "installs" / f"{KEY}.lock").write_text(lock)

    with pytest.raises(ValueError):
        runs.read(KEY)


# -- the commands, as a fleet calls them --


def fleet(tmp_path: Path) -> CommandFleet:
    state = ("--state", str(tmp_path / "installs"))
    start = [*CLI, "node-install", "start", "--node", "{node}", "--key", "{key}", "--order", "{order}", *state]
    return CommandFleet(
        {
            "start_install": start,
            "read_install": ["env", "NODE={node}", *CLI, "node-install", "result", "--key", "{key}", *state],
            "read_versions": [*CLI, "node-versions", "--node", "{node}"],
        },
        clock=SystemClock(),
        run=run_patiently,
    )


def test_a_fleet_installs_through_the_command_and_reads_what_came_of_it(tmp_path: Path, image_file: Path) -> None:
    reach = fleet(tmp_path)
    given = order(change("test", "-f", "{artifact}", artifact=image(str(image_file))))

    assert reach.read_install(NODE, key=KEY) is None
    reach.start_install(NODE, given, key=KEY)
    reach.start_install(NODE, given, key=KEY)
    report = wait_for(lambda: reach.read_install(NODE, key=KEY))

    assert (report.state, report.node, report.key) == (InstallState.INSTALLED, NODE, KEY)
    assert report.said == "driver 580.126.20 lies on the node"


def test_a_fleet_reads_the_versions_of_this_machine(tmp_path: Path) -> None:
    versions = fleet(tmp_path).read_versions(NODE)

    assert versions[Component.KERNEL] == os.uname().release


def test_while_another_installation_runs_a_fleet_is_told_to_come_again(tmp_path: Path) -> None:
    pretend(tmp_path, pid=os.getpid())

    with pytest.raises(SourceUnavailable, match="still runs on this node"):
        fleet(tmp_path).start_install(NODE, order(change()), key=OTHER_KEY)


@pytest.mark.parametrize(
    "words",
    [
        ["--node", OTHER_NODE, "--key", KEY, "--order", "{order}"],
        ["--node", NODE, "--key", OTHER_KEY, "--order", "{order}"],
        ["--node", NODE, "--key", KEY, "--order", "e30"],
    ],
)
def test_an_order_of_another_node_or_key_or_of_nothing_is_refused(tmp_path: Path, words: list[str]) -> None:
    word = order_to_word(plain(change()))
    filled = [each.replace("{order}", word) for each in words]

    answer = CliRunner().invoke(cli.app, ["node-install", "start", *filled, "--state", str(tmp_path / "i")])

    assert answer.exit_code == 77
    assert not (tmp_path / "i").exists()


def test_a_result_under_no_key_is_none_and_a_key_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    known = CliRunner().invoke(cli.app, ["node-install", "result", "--key", KEY, "--state", str(tmp_path / "i")])
    wrong = CliRunner().invoke(cli.app, ["node-install", "result", "--key", "../x", "--state", str(tmp_path / "i")])

    assert (known.exit_code, known.stdout) == (4, "none\n")
    assert wrong.exit_code == 2


def test_a_fleet_without_the_commands_says_where_to_name_them() -> None:
    bare = CommandFleet({}, clock=SystemClock())

    for ask in (
        lambda: bare.start_install(NODE, order(change()), key=KEY),
        lambda: bare.read_install(NODE, key=KEY),
        lambda: bare.read_versions(NODE),
        lambda: bare.reload_driver(NODE),
    ):
        with pytest.raises(SourceRefused, match=r"no command is configured for .*cluster\.yaml"):
            ask()


def test_the_node_side_is_light_enough_to_answer_in_time() -> None:
    program = (
        "import sys; import ops_pipelines.cli, ops_pipelines.resources.node.installs;"
        "import ops_pipelines.resources.node.installs;"
        "sys.exit(bool({'dagster', 'pyarrow', 'numpy', 'sqlalchemy', 'ansible_runner'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("page", ["docs/INSTALLATIONS.md", "cluster.yaml"])
def test_documented_commands_are_valid(page: str) -> None:
    acts = "start_install|read_install|read_versions|reload_driver"
    shown = re.findall(rf"^(?:#   )?({acts}): (\[.*\])$", Path(page).read_text(encoding="utf-8"), re.M)

    CommandFleet({act: yaml.safe_load(words) for act, words in shown}, clock=SystemClock())

    assert {"start_install", "read_install", "read_versions"} <= {act for act, _ in shown}


def test_documented_words_are_those_of_the_commands(tmp_path: Path) -> None:
    page = Path("docs/INSTALLATIONS.md").read_text(encoding="utf-8")
    filling = {"{node}": NODE, "{key}": KEY, "{order}": order_to_word(plain(change()))}
    state = ["--state", str(tmp_path / "installs")]

    for act, code in (("read_install", 4), ("start_install", 0)):
        (words,) = re.findall(rf"^{act}: (\[.*\])$", page, re.M)
        ours = [filling.get(word, word) for word in yaml.safe_load(words)][4:]
        assert CliRunner().invoke(cli.app, [*ours, *state]).exit_code == code

    runs = InstallRuns(tmp_path / "installs", clock=SystemClock(), count_processes=lambda: 0)
    assert wait_for(lambda: runs.read(KEY)).state is InstallState.INSTALLED
