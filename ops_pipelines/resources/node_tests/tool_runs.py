"""Runs a diagnostic tool to its end or to its limit, and tells these apart from a tool that is not there.

For what a node runs on itself; commands that reach out are `command_line`. What an answer means is for its caller.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.resources.bounded_output import TooMuchOutput, read_to_end

TERM_GRACE_SECONDS = 10.0
"""Between the polite signal and the other: dcgmi, if asked, stops what the host engine runs for it."""
_KILL_GRACE_SECONDS = 5.0
"""A process that hangs in the driver cannot be killed: it is left behind rather than waited for."""
_MOST_BYTES = 32 * 2**20
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
            stdout, stderr = read_to_end(process, timeout_seconds=max(limit_seconds, 0.0), limit_bytes=_MOST_BYTES)
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
