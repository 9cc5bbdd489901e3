"""Runs one command as an argument list, within a limit. Never a shell; what an answer means is for its caller."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable
from ops_pipelines.resources.bounded_output import TooMuchOutput, read_to_end

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
