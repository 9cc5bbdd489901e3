"""The Dagster processes of a drill: one code server, the daemon, the webserver; started, watched and stopped together,
by the lines of the documents at this drill's places.

Read are docs/INSTALL.md, docs/START_GUARD.md and the units of deploy/systemd. A line that is no longer there, or no
longer names what a drill must put elsewhere, stops the drill: the documents and what was tried are then two things.
What a drill simulates or breaks is not here. Everything is on loopback and below one state directory.
"""

import argparse
import fcntl
import hashlib
import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ops_pipelines.sensors.this_process import FORKS_RUNS
from ops_pipelines_lab.drills.daemon_processes import (
    DaemonError,
    Daemons,
    find_processes,
    kill_processes,
    name_of_process,
    parent_of,
)

PROJECT = Path(__file__).resolve().parents[2]
INSTALL, START_GUARD = PROJECT / "docs" / "INSTALL.md", PROJECT / "docs" / "START_GUARD.md"
UNITS = PROJECT / "deploy" / "systemd"
_FENCE = "```"


class DocumentedStepError(RuntimeError):
    """A document does not say what a drill must do. The message names the document and what was looked for."""


def step(document: Path, *first_words: str) -> tuple[str, ...]:
    """Return the one command of the document's fenced blocks that begins so. Raises DocumentedStepError."""
    found = {words for words in _commands(_read(document)) if words[: len(first_words)] == first_words}
    if len(found) != 1:
        raise DocumentedStepError(f"{document} has {len(found)} commands `{shlex.join(first_words)} ...`; expected one")
    return found.pop()


def unit_command(name: str) -> tuple[str, ...]:
    """Return the words of a unit's ExecStart. Raises DocumentedStepError."""
    lines = _read(UNITS / name).splitlines()
    found = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
    if len(found) != 1:
        raise DocumentedStepError(f"the unit {name} has {len(found)} lines ExecStart; expected one")
    return tuple(shlex.split(found[0]))


def at(words: Sequence[str], places: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command with each place put where the drill has it. Raises DocumentedStepError if it names one not.

    A path is replaced wherever it is in a word, anything else as a whole word.
    """
    changed = tuple(words)
    for documented, own in places.items():
        is_path = documented.startswith("/")
        if not any(documented in word if is_path else documented == word for word in changed):
            raise DocumentedStepError(f"`{shlex.join(words)}` does not name {documented}, which is to be {own}")
        changed = tuple(
            word.replace(documented, own) if is_path else own if word == documented else word for word in changed
        )
    return changed


def own_program(name: str) -> str:
    """Return where a program of our own environment lies."""
    return str(Path(sys.executable).with_name(name))


def _commands(text: str) -> set[tuple[str, ...]]:
    """Return the commands of all fenced blocks; a line of several, joined by `&&`, counts as each of them."""
    found: set[tuple[str, ...]] = set()
    for block in text.split(f"\n{_FENCE}")[1::2]:
        for line in block.splitlines():
            for part in line.split("&&"):
                try:
                    words = tuple(shlex.split(part, comments=True))
                except ValueError:  # No shell command: an example of output, say.
                    continue
                if words:
                    found.add(words)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as problem:
        raise DocumentedStepError(f"{path} cannot be read ({problem}); run this from a checkout") from problem


LOOPBACK = "127.0.0.1"
CODE_SERVER, DAEMON, WEBSERVER = "code-server", "dagster-daemon", "dagster-webserver"
DEFINITIONS = "ops_pipelines.definitions"
"""The module that Dagster loads, unless somebody compares it with another."""
DATABASE_PREFIX = "OPS_PIPELINES_DAGSTER_DB_"
"""Begins the names of the environment variables with which dagster.postgres.yaml finds its database."""
_WORKSPACE, _TOKENS, _CODE_PORT = "deploy/workspace.yaml", "/etc/ops/tokens", "4266"
"""As docs/INSTALL.md names them."""
_DRILL_MARK = ".drill"
"""Is in the state directory of every drill."""
_SERVER_PORTS = (16_800, 32_000)
"""Linux gives clients the ports from 32768 up."""
_ROOM_FOR_PAGES = 10
"""Two drills side by side need more than neighbouring ports: the pages of one stand beside its Dagster UI."""


class StackError(DaemonError):
    """A process did not start. The message says which, why, and what to do."""


class DagsterStack:
    """One code server, one daemon and one webserver on a state directory.

    The code server is shared by daemon and webserver, so that there is one holder of the lease.
    """

    def __init__(
        self,
        home: Path,
        *,
        cluster_file: Path,
        instance_file: Path,
        port: int,
        definitions: str = DEFINITIONS,
        has_own_code_server: bool = True,
    ) -> None:
        """Describe it. Without `has_own_code_server` daemon and webserver each run one, which the daemon replaces."""
        self._home = home
        self._cluster_file = cluster_file
        self._instance_file = instance_file
        self._port = port
        self._definitions = definitions
        self._has_own_code_server = has_own_code_server
        self._code_port: int | None = None
        self._run, self._log = home / "run", home / "log"
        self._daemons = Daemons(run=self._run, log=self._log)
        self.token = secrets.token_urlsafe(32)
        """Logs in at the web page, for as long as this stack lives."""

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def login_words(self) -> str:
        """How who started the drill may act in the web interface; nobody else on this machine knows the token."""
        return f"to act there: {self.url}/login, token {self.token}"

    @property
    def _token_file(self) -> Path:
        return self._home / "web.tokens"

    def _write_token_file(self) -> None:
        self._token_file.unlink(missing_ok=True)
        with os.fdopen(os.open(self._token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"drill:{hashlib.sha256(self.token.encode()).hexdigest()}\n")

    def refuse_taken_port(self) -> None:
        """Raise StackError if another program listens where the web page shall be."""
        if is_port_taken(self._port):
            raise StackError(
                f"port {self._port} on {LOOPBACK} is in use by another program, so the Dagster UI cannot start there. "
                f"Stop that program, or choose another port: make demo PORT={self._port + _ROOM_FOR_PAGES}"
            )

    def start(self, progress: Callable[[str], None]) -> None:
        """Start the three processes and return when the web page answers; raise DaemonError if one does not come up."""
        self.refuse_taken_port()
        for folder in (self._home, self._run, self._log):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._instance_file, self._home / "dagster.yaml")
        code_port = free_port()
        self._code_port = code_port
        workspace = self._home / "workspace.yaml"
        if self._has_own_code_server:
            documented = (PROJECT / _WORKSPACE).read_text()
            workspace.write_text(documented.replace(f"port: {_CODE_PORT}", f"port: {code_port}"))
        else:
            where = f"python_module: {{module_name: {self._definitions}, location_name: ops_pipelines}}"
            workspace.write_text(f"load_from:\n  - {where}\n")
        if self._has_own_code_server:
            progress("code server")
            self.start_code_server()
        progress("daemon and web page")
        self._start(DAEMON, at(step(INSTALL, "dagster-daemon"), {_WORKSPACE: str(workspace)}))
        self._write_token_file()
        self._start(
            WEBSERVER,
            (
                *at(
                    step(INSTALL, "ops-pipelines", "webserver"),
                    {_WORKSPACE: str(workspace), _TOKENS: str(self._token_file)},
                ),
                *("--host", LOOPBACK, "--port", str(self._port)),
            ),
        )
        self._daemons.wait_for(WEBSERVER, self._answers)

    def start_code_server(self) -> None:
        """Start the code server, again where it was killed, and return when it listens where the others look for it."""
        code_port = self._code_port
        if code_port is None:
            raise StackError("the code server has no port before the stack is started; call start first")
        words = at(step(INSTALL, "ops-pipelines", "code-server"), {_CODE_PORT: str(code_port)})
        if self._definitions != DEFINITIONS:  # What we are compared with is served as Dagster ships.
            words = ("dagster", "api", "grpc", *at(words[2:], {DEFINITIONS: self._definitions}))
        self._start(CODE_SERVER, words)
        self._daemons.wait_for(CODE_SERVER, lambda: is_port_taken(code_port))

    def start_beside(self, name: str, argv: Sequence[str], *, port: int) -> None:
        """Start one more program of this environment, which ends with the stack, and return when it listens there."""
        self._start(name, argv)
        self._daemons.wait_for(name, lambda: is_port_taken(port))

    def stop(self) -> None:
        """Stop what this stack started, run workers included. Stopping twice, or a stack of an earlier run, is fine."""
        if not self._run.exists():
            return
        # A grace of seconds: the code server needs 20 s to end by itself, the state is crash-safe, and a user waits.
        beside = set(self._daemons.names()) - {DAEMON, WEBSERVER, CODE_SERVER}
        self._daemons.stop([DAEMON, WEBSERVER, CODE_SERVER, *sorted(beside)], grace_seconds=3.0)
        kill_processes(find_processes(lambda environment: environment.get("DAGSTER_HOME") == str(self._home)))

    def refuse_dead(self) -> None:
        """Raise StackError if a process that was started is gone."""
        for name in self._daemons.names():
            if self._daemons.pid_of(name) is None:
                raise StackError(f"{name} ended by itself. {self._daemons.last_words(name)}")

    def kill(self, name: str) -> None:
        """Kill one process without letting it clean up: what a drill does to see it heal."""
        self._daemons.kill([name])

    def suspend(self, name: str) -> None:
        """Stop one process where it is, as a machine that is suspended; it knows nothing of it."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a suspended process continue."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self._daemons.pid_of(name)
        if pid is None:
            raise StackError(f"{name} does not run. {self._daemons.last_words(name)}")
        os.kill(pid, number)

    def kill_run_workers(self) -> int:
        """Kill the processes that carry out runs, in the middle of whatever they do; return how many there were."""
        ours = find_processes(lambda environment: environment.get("DAGSTER_HOME") == str(self._home))
        workers = {pid: born for pid, born in ours.items() if _is_run_worker(pid)}
        kill_processes(workers)
        return len(workers)

    def _start(self, name: str, argv: Sequence[str]) -> None:
        _, umask = step(INSTALL, "umask")
        self._daemons.start(name, [own_program(argv[0]), *argv[1:]], env=self.environment(), umask=int(umask, base=8))

    def environment(self) -> dict[str, str]:
        """Return the whole environment of this stack's programs: what docs/INSTALL.md exports, and where things are."""
        places = {"/var/lib/dagster": str(self._home), "/etc/ops/cluster.yaml": str(self._cluster_file)}
        exported = at(step(INSTALL, "export", "DAGSTER_HOME=/var/lib/dagster"), places)[1:]
        names = ("HOME", "LANG", "TZ", "TMPDIR", "SLURM_CONF")
        kept = {key: text for key, text in os.environ.items() if key in names or key.startswith(DATABASE_PREFIX)}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        return {**kept, "PATH": path, **dict(each.split("=", 1) for each in exported), "PYTHONUNBUFFERED": "1"}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/server_info", timeout=2) as answer:  # noqa: S310 - our own loopback URL
                return bool(answer.status == 200)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False


def _is_run_worker(pid: int) -> bool:
    """Runs are forked by a process that is a child of the code server itself, and has the same name as they."""
    parent = parent_of(pid)
    return parent is not None and name_of_process(pid) == name_of_process(parent) == FORKS_RUNS


def port_number(text: str) -> int:
    """Return a port given on the command line; raise ArgumentTypeError unless it is one that can be listened on."""
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; expected a number from 1 to 65535, such as 3000")
    return int(text)


def is_port_taken(port: int) -> bool:
    """Return whether something listens on this loopback port.

    Asked before a start: two code servers can bind one port (SO_REUSEPORT), and the orphan answers half the calls.
    """
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0


def free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def port_beside(port: int) -> int:
    """Return the port after this one if nobody listens there, else another free one."""
    following = port + 1
    return following if following <= 65_535 and _can_bind(following) else free_ports(1)


def free_ports(count: int) -> int:
    """Return the first of `count` loopback ports in a row that nobody listens on; raise StackError if there are none.

    Below the ports that the kernel gives to clients, so that none takes one while its server is restarted. Two drills
    that choose at the same moment begin to look at different places.
    """
    firsts = list(range(*_SERVER_PORTS, count))
    random.shuffle(firsts)
    for first in firsts:
        if first + count <= _SERVER_PORTS[1] and all(_can_bind(port) for port in range(first, first + count)):
            return first
    raise StackError(f"there are no {count} free ports in a row on {LOOPBACK}; stop what listens there")


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that just ended leaves its port waiting
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


@contextmanager
def sole_owner(state: Path) -> Iterator[None]:
    """Hold a state directory, made if need be; raise StackError if another drill holds it, or if it is not a drill's.

    A drill empties its directory: one that holds other things than an earlier drill's is left alone.
    """
    mark = state / _DRILL_MARK
    try:
        state.mkdir(parents=True, exist_ok=True)
        if not mark.exists() and any(state.iterdir()):
            raise StackError(f"{state} holds files that no drill made; name an empty or new directory for its state")
        mark.touch()
        file = (state / "lock").open("w")
    except OSError as problem:
        raise StackError(
            f"{state} cannot be used for the drill's state ({problem}); name another with --state"
        ) from None
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(f"another drill runs on {state}; stop it with Ctrl-C in its terminal first") from None
        yield


def project_file(name: str) -> Path:
    """Return a file of the project, whose directory is the working directory; raise StackError if it is not there."""
    path = Path.cwd() / name
    if not path.exists():
        raise StackError(f"{path} is missing; run this from the project's own directory, with `make`")
    return path
