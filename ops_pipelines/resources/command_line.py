"""Runs one command as an argument list, within a limit. Never a shell; what an answer means is for its caller."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ops_pipelines.ports.source_error import SourceUnavailable


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


def run_command(argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
    """Return the answer of `argv`, run with exactly `environment` and no input.

    Raises SourceUnavailable if it cannot be started or has not ended within the limit. It is then killed with
    everything that it started; what it asked for may still happen.
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
            stdout, stderr = process.communicate(timeout=timeout_seconds)
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
