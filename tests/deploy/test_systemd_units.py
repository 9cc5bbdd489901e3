"""The units of deploy/systemd: they name what exists, agree with one another, and their commands start, guard and stop.

They are checked by `systemd-analyze verify` and their commands are run as plain processes; systemd runs them in
deploy/systemd/try-on-bare-debian.sh.
"""

import configparser
import hashlib
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from ops_pipelines.code_server import LOCATION
from ops_pipelines.core.policy import Durations
from ops_pipelines_lab.drills.daemon_processes import parent_of, wait_until

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
BIN = Path(sys.executable).parent
INSTALLED = "/opt/ops_pipelines"
TOKEN = "a token of the tests, and long enough"
SERVICES = ("code", "daemon", "webserver", "serve")
START_SECONDS = 120.0
"""Far above what a start takes (20 s on a loaded machine with two cores); never asserted on."""


class Unit:
    """One unit file, by section and key; a key may stand there more than once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (UNITS / name).read_text()
        self._lines = [line for line in self.text.splitlines() if line and not line.startswith("#")]

    def values(self, key: str) -> list[str]:
        return [value for name, _, value in (line.partition("=") for line in self._lines) if name == key]

    def value(self, key: str) -> str:
        (only,) = self.values(key)
        return only

    def words(self, key: str) -> set[str]:
        return {word for value in self.values(key) for word in value.split()}

    def argv(self, key: str, which: int = 0) -> list[str]:
        """A command of the unit, with the paths of this checkout in the place of the installed ones."""
        return shlex.split(here(self.values(key)[which]))


def service(name: str) -> Unit:
    return Unit(f"ops-pipelines-{name}.service")


def here(text: str) -> str:
    return text.replace(f"{INSTALLED}/.venv/bin", str(BIN)).replace(INSTALLED, str(ROOT))


def port_of(argv: list[str]) -> int:
    (port,) = [int(argv[index + 1]) for index, word in enumerate(argv) if word in ("--port", "-p")]
    return port


def commands() -> list[tuple[str, str, list[str]]]:
    """Return what runs before and after a service; what it is itself is started below, with its options."""
    found = []
    for name in SERVICES:
        unit = service(name)
        for key in ("ExecStartPre", "ExecStartPost"):
            found += [(name, key, unit.argv(key, which)) for which in range(len(unit.values(key)))]
    return found


# -- the files --


def test_systemd_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1":
            pytest.fail("systemd-analyze is missing; Debian: apt-get install systemd")
        pytest.skip("systemd-analyze is not installed")
    units = [path for path in UNITS.iterdir() if path.suffix in (".service", ".socket", ".target", ".slice")]
    for path in units:
        (tmp_path / path.name).write_text(here(path.read_text()))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / path.name) for path in units)],
        capture_output=True,
        text=True,
    )

    assert len(units) == 9
    assert (done.returncode, [line for line in done.stderr.splitlines() if "pipelines" in line]) == (0, [])


@pytest.mark.parametrize(
    ("name", "argv"), [pytest.param(name, argv, id=f"{name} {key}") for name, key, argv in commands()]
)
def test_every_command_around_a_start_exists_and_knows_its_options(name: str, argv: list[str]) -> None:
    program, *words = argv
    if words[0] == "-I":
        assert Path(words[1]).is_file()
        return
    verbs = words[: next(i for i, word in enumerate(words) if word.startswith("-"))]

    done = subprocess.run([program, *verbs, "--help"], capture_output=True, text=True, env=clean_environment())

    assert done.returncode == 0, done.stderr
    for option in (word for word in words if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", done.stdout), f"{program} knows no {option}"


def test_code_server_ends_only_when_it_is_told() -> None:
    assert "--heartbeat" not in service("code").value("ExecStart")


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_shares_slice_environment_user_and_limits(name: str) -> None:
    unit = service(name)

    assert unit.value("Slice") == "ops_pipelines.slice"
    assert unit.value("EnvironmentFile") == "/etc/ops_pipelines/environment"
    assert unit.value("User") == "ops_pipelines"
    assert unit.value("Restart") == "always"
    assert unit.value("StartLimitIntervalSec") == "0"
    assert unit.value("ProtectSystem") == "strict"
    assert unit.value("NoNewPrivileges") == "yes"
    assert "ops-pipelines.target" in unit.words("PartOf")
    assert unit.name in Unit("ops-pipelines.target").words("Wants")


def test_slice_lies_at_the_top_where_its_weight_counts_against_everything_else() -> None:
    unit = Unit("ops_pipelines.slice")

    # A dash in the name of a slice means a parent: `a-b.slice` lies in `a.slice`.
    assert "-" not in unit.name
    assert int(unit.value("CPUWeight")) > 100


@pytest.mark.parametrize("name", ["daemon", "webserver"])
def test_code_server_starts_before_its_callers_and_stops_after_them(name: str) -> None:
    unit = service(name)

    assert "ops-pipelines-code.service" in unit.words("After") & unit.words("Wants") & unit.words("PartOf")


def test_health_is_served_whether_or_not_the_others_live() -> None:
    unit = service("serve")

    for key in ("After", "Wants", "Requires", "BindsTo", "PartOf"):
        assert not any(other in word for word in unit.words(key) for other in ("-code", "-daemon", "-webserver"))


@pytest.mark.parametrize("name", ["code", "webserver", "serve"])
def test_port_that_is_listened_on_is_the_one_that_is_guarded(name: str) -> None:
    unit = service(name)
    guards = [unit.argv("ExecStartPre", which) for which in range(len(unit.values("ExecStartPre")))]

    assert [guard[-2:] for guard in guards if "refuse-taken" in guard] == [
        ["refuse-taken", str(port_of(unit.argv("ExecStart")))]
    ]
    for awaited in unit.values("ExecStartPost"):
        assert awaited.split()[-2:] == ["await", str(port_of(unit.argv("ExecStart")))]


def test_workspace_names_the_code_server_of_the_unit() -> None:
    argv = service("code").argv("ExecStart")
    (entry,) = yaml.safe_load((ROOT / "deploy" / "workspace.yaml").read_text())["load_from"]
    (development,) = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"]

    assert entry["grpc_server"] == {
        "host": argv[argv.index("--host") + 1],
        "port": port_of(argv),
        "location_name": LOCATION,
    }
    # Under another name Dagster would take the sensors for new ones, and forget which are switched off.
    assert entry["grpc_server"]["location_name"] == development["python_module"]["location_name"]
    for name in ("daemon", "webserver"):
        assert f"-w {INSTALLED}/deploy/workspace.yaml" in service(name).value("ExecStart")


def test_environment_example_holds_all_that_is_asked_for_and_points_where_the_units_may_write() -> None:
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # how configparser is instructed to keep the case
    parser.read_string("[all]\n" + (UNITS / "environment.example").read_text())
    given = parser["all"]
    asked = set(re.findall(r"env: (\w+)", (ROOT / "deploy" / "dagster.postgres.yaml").read_text()))

    assert asked | {"DAGSTER_HOME", "OPS_PIPELINES_CLUSTER"} == set(given)
    assert given["DAGSTER_HOME"] in {f"/var/lib/{name}" for name in service("code").words("StateDirectory")}
    assert all(service(name).value("ReadWritePaths") == "/var/lib/ops_pipelines" for name in SERVICES)


def test_runs_get_longer_to_end_than_a_run_waits_for_witnesses() -> None:
    unit = service("code")

    assert unit.value("KillMode") == "mixed"
    assert unit.value("KillSignal") == "SIGTERM"
    assert unit.value("SendSIGKILL") == "yes"
    assert timedelta(seconds=int(unit.value("TimeoutStopSec"))) > 4 * Durations().run_patience


def test_run_that_is_killed_for_memory_leaves_the_code_server_alive() -> None:
    assert service("code").value("OOMPolicy") == "continue"


# -- the port guard --


def guard(*words: str, main_process: int | None = None) -> subprocess.CompletedProcess[str]:
    chosen = {} if main_process is None else {"MAINPID": str(main_process)}
    return subprocess.run(
        [sys.executable, "-I", UNITS / "port.py", *words], capture_output=True, text=True, env=clean_environment(chosen)
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared as code servers do", "exclusive"])
def test_taken_port_is_refused_with_the_way_to_find_who_has_it(address: str, is_shared: bool) -> None:
    with socket.socket() as other:
        if is_shared:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((address, 0))
        other.listen()
        port = other.getsockname()[1]

        done = guard("refuse-taken", str(port))

    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 cannot be had (Address already in use)" in done.stderr
    assert f"ss -ltnp sport = :{port}" in done.stderr


def test_free_port_is_given_and_left_free() -> None:
    port = free_port()

    assert [guard("refuse-taken", str(port)).returncode for _ in range(2)] == [0, 0]


def test_listener_is_awaited() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert guard("await", str(listener.getsockname()[1])).returncode == 0


def test_waiting_ends_when_the_main_process_has_ended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    done = guard("await", str(free_port()), main_process=ended.pid)

    assert done.returncode == 1
    assert f"the main process {ended.pid} ended before it listened" in done.stderr


def test_waiting_ends_at_the_limit() -> None:
    program = runpy.run_path(str(UNITS / "port.py"))
    program["main"].__globals__["LIMIT_SECONDS"] = 0.0

    assert program["main"](["await", str(free_port())]).startswith("nothing listens on port")


@pytest.mark.parametrize(
    "words",
    [(), ("refuse-taken",), ("open", "4266"), ("await", "0"), ("await", "65536"), ("await", "x"), ("await", "-1")],
)
def test_words_that_mean_nothing_are_refused(words: tuple[str, ...]) -> None:
    done = guard(*words)

    assert done.returncode == 1
    assert "expected refuse-taken or await" in done.stderr


# -- the commands, started and stopped for real --


def test_commands_start_in_their_order_answer_and_let_a_run_finish_when_stopped(tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("code", "webserver", "serve")}
    environment = installation(tmp_path, code_port=ports["code"])
    with processes(tmp_path, environment) as start:
        code = start(with_port(service("code").argv("ExecStart"), ports["code"]), "code")
        awaited = subprocess.run(
            with_port(service("code").argv("ExecStartPost"), ports["code"]),
            env={**environment, "MAINPID": str(code.pid)},
            capture_output=True,
            text=True,
        )
        assert awaited.returncode == 0, awaited.stderr + (tmp_path / "code.log").read_text()
        workspace = {f"{ROOT}/deploy/workspace.yaml": str(tmp_path / "workspace.yaml")}
        for name in ("daemon", "webserver", "serve"):
            argv = [workspace.get(word, word) for word in service(name).argv("ExecStart")]
            start(argv if name == "daemon" else with_port(argv, ports[name]), name)

        second = subprocess.run(
            with_port(service("code").argv("ExecStartPre", 1), ports["code"]), env=environment, capture_output=True
        )
        wait_until(
            "the web page", lambda: page(ports["webserver"], "server_info") == 200, timeout_seconds=START_SECONDS
        )
        wait_until("health", lambda: page(ports["serve"], "healthz") in (200, 503), timeout_seconds=START_SECONDS)
        run, workers = halted_run(code.pid, ports["webserver"])
        # KillMode=mixed: to the code server alone. The run would take it for an order to end when it continues.
        code.send_signal(signal.SIGTERM)
        signal_all(workers, signal.SIGCONT)

        code.wait(timeout=float(service("code").value("TimeoutStopSec")))
        ended = state_of(ports["webserver"], run)
        after = subprocess.run(
            with_port(service("code").argv("ExecStartPre", 1), ports["code"]), env=environment, capture_output=True
        )

    assert second.returncode == 1
    assert ended == "SUCCESS"
    assert after.returncode == 0


def installation(directory: Path, *, code_port: int) -> dict[str, str]:
    """Lay out what an operator installs, with SQLite and the simulated cluster, and return the units' environment."""
    home = directory / "dagster"
    home.mkdir()
    shutil.copyfile(ROOT / "deploy" / "dagster.yaml", home / "dagster.yaml")
    for name in ("policy.yaml", "teams.yaml", "capacity.yaml", "projects.yaml"):
        shutil.copyfile(ROOT / name, directory / name)
    cluster = directory / "cluster.yaml"
    cluster.write_text(
        re.sub(r"^state_directory: .*$", "state_directory: state", (ROOT / "cluster.yaml").read_text(), flags=re.M)
    )
    tokens = directory / "web.tokens"
    tokens.write_text(f"operator:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    tokens.chmod(0o600)
    text = (ROOT / "deploy" / "workspace.yaml").read_text()
    (directory / "workspace.yaml").write_text(text.replace("4266", str(code_port)))
    return clean_environment(
        {
            "DAGSTER_HOME": str(home),
            "OPS_PIPELINES_CLUSTER": str(cluster),
            "OPS_PIPELINES_WEB_TOKENS": str(tokens),
            "PYTHONUNBUFFERED": "1",
        }
    )


@contextmanager
def processes(directory: Path, environment: dict[str, str]) -> Iterator["Start"]:
    """Start commands; at the end tell them to end, in the reverse order, and kill what is left at the limit."""
    start = Start(directory, environment)
    try:
        yield start
    finally:
        for process, group in reversed(start.started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            try:
                os.killpg(group, signal.SIGKILL)  # what systemd does to the rest of the control group
            except ProcessLookupError:
                continue


class Start:
    """Starts a command as systemd does: in a group of its own, without ignored signals, its output in a file."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory = directory
        self._environment = environment
        self.started: list[tuple[subprocess.Popen[bytes], int]] = []

    def __call__(self, argv: list[str], name: str) -> subprocess.Popen[bytes]:
        # Dagster lets SIGTERM do what SIGINT does, and a shell that starts us in the background ignores SIGINT.
        argv = ["env", "--default-signal=INT", *argv]
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                argv, env=self._environment, cwd=self._directory, stdout=log, stderr=log, start_new_session=True
            )
        self.started.append((process, process.pid))
        return process


def halted_run(code_server: int, web_port: int) -> tuple[str, list[int]]:
    """Launch runs until one is caught under way; return it, with its processes stopped, and them."""
    for _ in range(5):
        run = launch(web_port, "report_shift")
        wait_until(
            "the run to be under way",
            lambda run=run: state_of(web_port, run) not in ("QUEUED", "NOT_STARTED", "STARTING"),  # type: ignore[misc]
            timeout_seconds=START_SECONDS,
            every_seconds=0.01,
        )
        workers = run_workers(code_server)
        signal_all(workers, signal.SIGSTOP)
        if workers and state_of(web_port, run) == "STARTED":
            return run, workers
        signal_all(workers, signal.SIGCONT)
    pytest.fail("five runs in a row ended before they could be halted")


def run_workers(code_server: int) -> list[int]:
    """Return the processes of runs: forked by a child of the code server, which does nothing else."""
    families: dict[int, list[int]] = {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        families.setdefault(parent_of(pid) or 0, []).append(pid)
    return [worker for child in families.get(code_server, ()) for worker in families.get(child, ())]


def signal_all(pids: list[int], sig: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, sig)


def with_port(argv: list[str], port: int) -> list[str]:
    """The command with the port of its unit replaced."""
    known = {"4266", "3000", "9750"}
    assert len(known & set(argv)) == 1
    return [str(port) if word in known else word for word in argv]


def clean_environment(chosen: dict[str, str] | None = None) -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ}
    return {**kept, "PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin", **(chosen or {})}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def page(port: int, path: str) -> int | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return None


def graphql(port: int, query: str, **variables: object) -> dict[str, object]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql",
        data=json.dumps({"query": query, "variables": variables}).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        data = json.loads(answer.read())["data"]
    assert isinstance(data, dict)
    return data


def launch(port: int, job: str) -> str:
    params = {
        "selector": {
            "jobName": job, "repositoryName": "__repository__", "repositoryLocationName": "ops_pipelines"
        },
        "runConfigData": {},
    }  # fmt: skip
    answer = graphql(
        port,
        """mutation ($params: ExecutionParams!) { launchRun(executionParams: $params) {
             __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }""",
        params=params,
    )["launchRun"]
    assert isinstance(answer, dict)
    assert answer["__typename"] == "LaunchRunSuccess", answer
    return str(answer["run"]["runId"])


def state_of(port: int, run: str) -> str:
    answer = graphql(port, "query ($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }", run=run)
    state = answer["runOrError"]
    assert isinstance(state, dict)
    return str(state["status"])
