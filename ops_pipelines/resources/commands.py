"""Runs programs, each as an argument list within limits of time and bytes, and never by a shell: commands that reach
out (Slurm's clients, a site's own), tools that a node runs on itself, and runs that outlive their starter.

Here too: the words of a command that an operator wrote, their placeholders, how these are filled and what is wrong with
them. What an answer means, and which placeholder an act must have, is for the caller. A program that prints without an
end must not take the memory of who asked it, and a tool that did not end is distinguished from one that is not there.

A run that outlives its starter has its files in one directory, a set for each key:

    KEY.lock    who runs it: process, boot, and what was ordered; made whole and once, so a key starts one run
    KEY.part    how far it is
    KEY.json    what came of it, once it is over; appears by rename
    KEY.log     what it printed; KEY/ what else it left

What is run, and what a run that was cut short means, is for the owner of the directory.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path, PurePath
from typing import Protocol

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.identity import ActionKey
from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable

# -- what a child prints, within limits --


_AT_ONCE_BYTES = 65_536


class TooMuchOutput(RuntimeError):
    """A program printed more than it may; what it had printed is dropped."""


def read_to_end(process: subprocess.Popen[bytes], *, timeout_seconds: float, limit_bytes: int) -> tuple[bytes, bytes]:
    """Return what a process with two pipes printed until it ended.

    Raises TooMuchOutput beyond `limit_bytes` of both together, and subprocess.TimeoutExpired if it has not ended in
    time. In both cases it still runs.
    """
    assert process.stdout is not None, "both are pipes"
    assert process.stderr is not None, "both are pipes"
    until = time.monotonic() + timeout_seconds
    texts = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for pipe in texts:
            selector.register(pipe, selectors.EVENT_READ, data=pipe)
        while selector.get_map():
            for key, _ in selector.select(_left(process, until, timeout_seconds)):
                # Past the buffer: a read of a pipe that has something returns at once, whatever a slow writer does.
                piece = os.read(key.fd, _AT_ONCE_BYTES)
                if not piece:
                    selector.unregister(key.fileobj)
                texts[key.data] += piece
            if sum(map(len, texts.values())) > limit_bytes:
                raise TooMuchOutput(f"more than {limit_bytes} bytes")
    process.wait(timeout=_left(process, until, timeout_seconds))
    return bytes(texts[process.stdout]), bytes(texts[process.stderr])


def _left(process: subprocess.Popen[bytes], until: float, timeout_seconds: float) -> float:
    """Return the seconds that are left; raise subprocess.TimeoutExpired if there are none."""
    left = until - time.monotonic()
    if left <= 0.0:
        raise subprocess.TimeoutExpired(process.args, timeout_seconds)
    return left


# -- words that an operator wrote --


_PLACEHOLDER = re.compile(r"\{[a-z]+\}")
"""Other braces stand for themselves: a Redfish body is JSON."""
_SHELLS = frozenset({
    "sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "busybox", "su", "runuser",
    "ssh", "slogin", "autossh", "sshpass", "rsh", "rexec", "rlogin", "mosh", "plink", "dbclient",
    "pdsh", "dsh", "pssh", "parallel-ssh", "parallel", "clush", "xdsh", "psh", "ansible", "salt", "salt-ssh",
})  # fmt: skip
"""Programs that hand their words to a shell, here or there. Names and addresses are safe in one, a reason is not."""


def placeholders_in(words: Sequence[str]) -> frozenset[str]:
    """Return what the words are to be filled with, braces included."""
    return frozenset(placeholder for word in words for placeholder in _PLACEHOLDER.findall(word))


def fill(word: str, filling: Mapping[str, str]) -> str:
    """Fill in one pass: what is filled in is never looked at again, so a reason may say `{gpu}`."""
    return _PLACEHOLDER.sub(lambda match: filling[match[0]], word)


def shells_in(words: Sequence[str]) -> list[str]:
    """Return the words that would hand the others to a shell.

    Every word is looked at: `sudo`, `timeout 5` and `env` run what follows them, and so do a site's own wrappers. A
    word of `env -S` holds several.
    """
    return [part for word in words for part in word.split() if PurePath(part).name.lower() in _SHELLS]


def find_word_faults(
    words: Sequence[str], *, needed: Collection[str], optional: Collection[str] = (), unsafe: Collection[str] = ()
) -> list[str]:
    """Return what is wrong with a command; of `unsafe` values none may reach a shell."""
    if isinstance(words, str) or not words:
        return [f"is {words!r}; expected a list of words, the program first"]
    used = placeholders_in(words)
    faults = [f"has {word}, which is filled with nothing" for word in sorted(used - {*needed, *optional})]
    faults += [f"must name {word} among its words" for word in sorted(set(needed) - used)]
    if _PLACEHOLDER.search(words[0]):
        faults.append(f"starts with {words[0]!r}; the program must be fixed")
    told = sorted(used & set(unsafe))
    if told:
        faults += [f"hands {', '.join(told)} to {word}, which hands it to a shell; leave it out"
                   for word in shells_in(words)]  # fmt: skip
    return faults


# -- one command that reaches out --


MOST_BYTES = 8 * 2**20
"""Of an answer: thousands of times what a node prints of itself."""
MOST_BYTES_OF_A_SCHEDULER = 512 * 2**20
"""Its answers grow with nodes and jobs: a kilobyte or a few for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    """How a command ended and what it printed. Bytes that are no UTF-8 became U+FFFD: users name jobs as they like."""

    returncode: int
    stdout: str
    stderr: str


class RunCommand(Protocol):
    """Runs a command; tests bring their own."""

    def __call__(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        """Return the answer of `argv`, run with exactly `environment`; raise SourceUnavailable if there is none."""
        ...


def run_command(
    argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float, limit_bytes: int = MOST_BYTES
) -> CommandAnswer:
    """Return the answer of `argv`, run with exactly `environment` and no input.

    Raises SourceUnavailable if it cannot be started or has not ended within the limit, SourceNonsense if it prints more
    than `limit_bytes`. It is then killed with everything that it started; what it asked for may still happen.
    """
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as exc:
        raise SourceUnavailable(f"{argv[0]} could not be started ({exc.strerror}); check that it is installed") from exc
    with process:
        try:
            stdout, stderr = read_to_end(process, timeout_seconds=timeout_seconds, limit_bytes=limit_bytes)
        except TooMuchOutput as exc:
            os.killpg(process.pid, signal.SIGKILL)
            raise SourceNonsense(
                f"{' '.join(argv[:2])} printed {exc} and was killed; nothing was taken from it. Run it by hand"
            ) from exc
        except subprocess.TimeoutExpired as exc:
            os.killpg(process.pid, signal.SIGKILL)
            raise SourceUnavailable(
                f"{' '.join(argv[:2])} did not answer within {timeout_seconds:.1f} s; whether it took effect is unknown"
            ) from exc
    return CommandAnswer(
        returncode=process.returncode,
        stdout=stdout.decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
    )


def run_scheduler_command(
    argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float
) -> CommandAnswer:
    """Do as `run_command` for a client of the scheduler, whose answers are as long as its cluster is large."""
    return run_command(
        argv, environment=environment, timeout_seconds=timeout_seconds, limit_bytes=MOST_BYTES_OF_A_SCHEDULER
    )


# -- tools that a node runs on itself --


TERM_GRACE_SECONDS = 10.0
"""Between the polite signal and the other: dcgmi, if asked, stops what the host engine runs for it."""
_KILL_GRACE_SECONDS = 5.0
"""A process that hangs in the driver cannot be killed: it is left behind rather than waited for."""
_MOST_BYTES_OF_A_TOOL = 32 * 2**20
"""Above the longest kernel log (16 MiB)."""
_PASSED_ON = ("PATH", "HOME", "LD_LIBRARY_PATH")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ToolEnd(Enum):
    """How a run came to its end."""

    ENDED = "ended"
    ABSENT = "absent"
    DID_NOT_END = "did_not_end"
    """It was killed at its limit, with its process group."""
    SAID_TOO_MUCH = "said_too_much"
    """It printed without an end, and was killed likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """How a tool ended and what it printed; empty texts and no code unless it ENDED."""

    end: ToolEnd
    returncode: int = 0
    """Negative: killed by that signal."""
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


class RunTool(Protocol):
    """Runs a tool; tests bring their own."""

    def __call__(self, argv: Sequence[str], *, limit_seconds: float) -> ToolAnswer:
        """Return how `argv` ended, at the latest after `limit_seconds` and some grace."""
        ...


class RunPair(Protocol):
    """Runs a server and, once it listens, its client; tests bring their own."""

    def __call__(self, server: Sequence[str], client: Sequence[str], *, limit_seconds: float) -> ToolAnswer:
        """Return how the client ended; the server does not outlive it."""
        ...


def tool_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the fixed environment of tools: plain texts, and of the caller's own only where programs are."""
    passed = {name: given[name] for name in _PASSED_ON if name in given}
    # An entry that is not absolute would be a program of the directory that somebody happens to be in.
    given_path = ":".join(each for each in passed.get("PATH", "").split(":") if each.startswith("/"))
    path = f"{given_path}:{_SYSTEM_PATH}" if given_path else _SYSTEM_PATH
    return {**passed, "PATH": path, "LC_ALL": "C"}


def run_tool(argv: Sequence[str], *, limit_seconds: float, clock: Clock | None = None) -> ToolAnswer:
    """Return how `argv` ended: no input, no shell, a process group of its own that is killed at the limit."""
    clock = clock if clock is not None else SystemClock()
    begun = clock.now()
    with _started(argv) as process:
        if process is None:
            return ToolAnswer(end=ToolEnd.ABSENT)
        try:
            stdout, stderr = read_to_end(
                process, timeout_seconds=max(limit_seconds, 0.0), limit_bytes=_MOST_BYTES_OF_A_TOOL
            )
        except TooMuchOutput:
            return ToolAnswer(end=ToolEnd.SAID_TOO_MUCH, seconds=(clock.now() - begun).total_seconds())
        except subprocess.TimeoutExpired:
            return ToolAnswer(end=ToolEnd.DID_NOT_END, seconds=(clock.now() - begun).total_seconds())
    return ToolAnswer(
        end=ToolEnd.ENDED,
        returncode=process.returncode,
        stdout=stdout.decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
        seconds=(clock.now() - begun).total_seconds(),
    )


_CLIENT_TRIES = 5
_BETWEEN_TRIES_SECONDS = 0.5
"""perftest's server says nothing once it listens; a client that finds nobody tries again."""
_NOBODY_LISTENS = ("Couldn't connect", "Connection refused")


def run_pair(
    server: Sequence[str], client: Sequence[str], *, limit_seconds: float, clock: Clock | None = None
) -> ToolAnswer:
    """Return how `client` ended against `server`, both started here."""
    clock = clock if clock is not None else SystemClock()
    with _started(server) as process:
        if process is None:
            return ToolAnswer(end=ToolEnd.ABSENT)
        answer = ToolAnswer(end=ToolEnd.ABSENT)
        for _ in range(_CLIENT_TRIES):
            answer = run_tool(client, limit_seconds=limit_seconds, clock=clock)
            said = answer.stdout + answer.stderr
            if answer.returncode == 0 or not any(words in said for words in _NOBODY_LISTENS):
                break
            clock.wait(_BETWEEN_TRIES_SECONDS)
        return answer


@contextlib.contextmanager
def _started(argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes] | None]:
    """Start a program, and let nothing of its process group outlive the block; None if it is not there."""
    environment = tool_environment(os.environ)
    program = shutil.which(argv[0], path=environment["PATH"])
    if program is None:
        yield None
        return
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
    except OSError:
        yield None
        return
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group: what a tool left behind as well."""
    for number, grace in ((signal.SIGTERM, TERM_GRACE_SECONDS), (signal.SIGKILL, _KILL_GRACE_SECONDS)):
        if process.poll() is None or number is signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


_KEPT_FOR = timedelta(days=30)
_SUFFIXES = frozenset({".json", ".lock", ".part", ".log"})
_KEY = re.compile(r"[0-9a-f]{32}")


class RunDirectory:
    """The files of one kind of run on this machine."""

    def __init__(self, path: Path, *, clock: Clock, proc: Path = Path("/proc")) -> None:
        self.path = path
        self._clock = clock
        self._proc = proc

    def lock(self, key: ActionKey) -> Path:
        return self.path / f"{key}.lock"

    def part(self, key: ActionKey) -> Path:
        return self.path / f"{key}.part"

    def result(self, key: ActionKey) -> Path:
        return self.path / f"{key}.json"

    def log(self, key: ActionKey) -> Path:
        return self.path / f"{key}.log"

    def is_known(self, key: ActionKey) -> bool:
        return self.lock(key).exists() or self.result(key).exists()

    def trust(self) -> None:
        """Raise PermissionError if anybody but this user could have put files there; they are believed, and run."""
        told = self.path.lstat()
        if not stat.S_ISDIR(told.st_mode) or told.st_uid != os.geteuid() or told.st_mode & 0o022:
            raise PermissionError(
                f"{self.path} is owned by user {told.st_uid} with mode {told.st_mode & 0o7777:04o}; expected a "
                f"directory of user {os.geteuid()} that nobody else may write to"
            )

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Let one process at a time start a run; what is older than anybody asks for is removed first."""
        self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.trust()
        handle = os.open(self.path / "starting", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def running(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Yield each run that lives and has no result yet, as its key and what its lock says; forget old ones."""
        self._forget_old()
        for path in sorted(self.path.glob("*.lock")):
            if self.is_alive(path) and not path.with_suffix(".json").exists():
                with contextlib.suppress(OSError, ValueError):
                    told = json.loads(path.read_text(encoding="utf-8"))
                    yield path.stem, told if isinstance(told, dict) else {}

    def launch(self, key: ActionKey, told: Mapping[str, object], *, module: str) -> None:
        """Run `python -m module DIRECTORY KEY` in a session of its own, under a lock that says `told`."""
        self.write_lock(key, told, pid=os.getpid())
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(self.path), key],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self.write_lock(key, told, pid=process.pid)
        process.returncode = 0  # it is not ours to wait for: it outlives this process

    def write_lock(self, key: ActionKey, told: Mapping[str, object], *, pid: int) -> None:
        """State that process `pid` runs what was ordered; `boot_id` is this boot's unless `told` names one."""
        holder = {"boot_id": self.boot_id(), **told, "pid": pid, "process_began": self._process_began(pid)}
        self.replace(self.lock(key), json.dumps(holder))

    def note_command(self, key: ActionKey, *, pid: int) -> None:
        """Say that a run has started a command: as long as that lives the run is not over, even if it was killed."""
        told = json.loads(self.lock(key).read_text(encoding="utf-8"))
        self.replace(self.lock(key), json.dumps({**told, "command": [pid, self._process_began(pid)]}))

    def is_alive(self, lock: Path) -> bool:
        """Return whether the process that a lock names still runs, or its command: this boot, none of its number."""
        try:
            told = json.loads(lock.read_text(encoding="utf-8"))
            named = [(told["pid"], told["process_began"]), *([told["command"]] if "command" in told else [])]
            is_any_there = any(began and began == self._process_began(int(pid)) for pid, began in named)
            return is_any_there and told["boot_id"] == self.boot_id()
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def boot_id(self) -> str:
        return (self._proc / "sys/kernel/random/boot_id").read_text().strip()

    def replace(self, path: Path, text: str) -> None:
        """Write a file that is seen whole or not at all, whatever stops this process."""
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def _process_began(self, pid: int) -> str:
        """Return when a process began, in ticks since the boot; empty if it is gone, or dead and not waited for."""
        try:
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in {"Z", "X"} else fields[19]

    def _forget_old(self) -> None:
        before = (self._clock.now() - _KEPT_FOR).timestamp()
        for path in self.path.iterdir():
            try:
                told = path.lstat()
            except FileNotFoundError:
                continue  # a draft that has become what it was written for
            if told.st_mtime >= before:
                continue
            if stat.S_ISDIR(told.st_mode) and _KEY.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix in _SUFFIXES:
                path.unlink(missing_ok=True)
