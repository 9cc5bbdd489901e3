"""Runs Slurm's clients: a clean environment, one limit for all that belongs together, and what a refusal means.

Argument lists only. Which commands there are to send is `slurm`.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.command_line import CommandAnswer, RunCommand

COMMAND_LIMIT_SECONDS = 4.5
"""For all clients that one method runs together: a third of the lease (15 s), less some room."""
_STEERING_PREFIXES = ("SLURM_", "SLURMCTLD_", "SINFO_", "SQUEUE_", "SCONTROL_", "SACCT_", "SBATCH_")
"""Variables that change what clients ask and print: SLURM_TIME_FORMAT, SLURM_JWT, SLURM_CLUSTERS, SQUEUE_STATES..."""
_REFUSALS = (
    "Access/permission denied",
    "Duplicate reservation name",
    "Invalid job id",
    "Invalid node name",
    "Invalid node state",
    "Invalid user id",
    "Job has already finished",
    "Job is no longer pending execution",
    "Job is pending execution",
    "Job not heterogeneous job leader",
    "Job/step already completing or completed",
    "Requested nodes are busy",
    "Requested operation is presently disabled",
    "Requested reservation is in use",
    "Reservation already started",
    "Requested reservation is invalid",
    "Requested reservation overlaps with another reservation",
    "Start time cannot be after end time",
    "You must specify a reason",
)
"""What slurmctld says when it has read a command and not obeyed (seen, 22.05). All else leaves the effect unknown."""


class Limit:
    """What is left of the time that one method may take. Monotonic: the wall clock may be set meanwhile."""

    def __init__(self) -> None:
        self._ends_at = time.monotonic() + COMMAND_LIMIT_SECONDS

    def left(self) -> float:
        """Return the seconds left; raise SourceUnavailable if there are none."""
        seconds = self._ends_at - time.monotonic()
        if seconds <= 0:
            raise SourceUnavailable(
                f"Slurm took more than {COMMAND_LIMIT_SECONDS} s; whether all took effect is unknown"
            )
        return seconds


class SlurmClient:
    """Sends one command at a time; safe to share between threads."""

    def __init__(self, *, run: RunCommand, slurm_conf: Path | None) -> None:
        """Without `slurm_conf` SLURM_CONF stays as this process has it."""
        self._run = run
        self._environment = _clean_environment(os.environ, slurm_conf=slurm_conf)
        self._version: tuple[int, int] | None = None

    def send(self, *argv: str, limit: Limit) -> CommandAnswer:
        """Run one client; raise SourceRefused for a clear no, SourceUnavailable for whatever else is not a yes."""
        answer = self._run(argv, environment=self._environment, timeout_seconds=limit.left())
        if answer.returncode == 0:
            return answer
        said = " / ".join(answer.stderr.strip().splitlines())[:300] or answer.stdout.strip()[:300]
        what = f"{' '.join(argv[:3])} ended with {answer.returncode}: {said}"
        if any(refusal in said for refusal in _REFUSALS):
            raise SourceRefused(what)
        raise SourceUnavailable(f"{what}; whether it took effect is unknown. Check slurmctld and munge")

    def read_version(self, limit: Limit) -> tuple[int, int]:
        """Return the major and minor version of the clients, such as (22, 5); asked once."""
        if self._version is None:
            text = self.send("scontrol", "--version", limit=limit).stdout
            words = text.split()[-1:] or [""]
            major, _, rest = words[0].partition(".")
            minor = rest.partition(".")[0]
            if not (major.isdecimal() and minor.isdecimal()):
                raise SourceNonsense(
                    f"scontrol --version printed {text[:80]!r}; expected a line such as 'slurm 22.05.8'"
                )
            self._version = int(major), int(minor)
        return self._version


def quoted_reason(reason: str, *, verb: str) -> str:
    """Return the argument that gives the reason. scontrol strips one quote from either end, so it gets two to strip."""
    if not reason.strip():
        raise ValueError(f"the reason is {reason!r}; to {verb} a node, say why")
    return f'Reason="{reason}"'


def _clean_environment(inherited: Mapping[str, str], *, slurm_conf: Path | None) -> Mapping[str, str]:
    """Return the environment for clients: nothing that steers them but SLURM_CONF, UTC, and messages in English."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name == "SLURM_CONF" or not name.startswith(_STEERING_PREFIXES)
    }
    chosen = {} if slurm_conf is None else {"SLURM_CONF": str(slurm_conf)}
    return {**kept, **chosen, "TZ": "UTC", "LC_ALL": "C.UTF-8"}
