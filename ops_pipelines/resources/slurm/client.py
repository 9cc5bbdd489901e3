"""Runs Slurm's clients: a clean environment, one limit for all that belongs together, and what a refusal means; and the
one port that needs no more than that, reboots through Slurm.

Argument lists only. Which commands are sent to the scheduler, and what its answers mean, is `scheduler` and `answers`.

Reboots are plain `scontrol reboot` of a node that is drained and idle, and of no other; never with a reason. For sites
whose nodes are rebooted by Slurm alone; over ssh, past Slurm, is as good. What each form does to a drain was tried on
22.05.8 and stands in docs/SLURM.md. After the plain one nobody but us returns the node to service: the drain lasts
through the boot, its reason still begins with our words, and its new date is that of the reboot, by whose record
`remediate.guardrails` recognises it. A reboot is refused where Slurm would return the node by itself: not drained,
or ReturnToService=2, with which a boot that outlasts ResumeTimeout ends in service.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines.core.observation import NodeState, NodeStatus
from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import CommandAnswer, RunCommand, run_scheduler_command
from ops_pipelines.resources.slurm.answers import node_listing, read_config_answer, read_nodes_answer

# -- one client, one limit --


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


# -- reboots --


_ISSUED = " : reboot issued"
_AT_WORK = frozenset({NodeState.ALLOCATED, NodeState.MIXED, NodeState.UNKNOWN})


class SlurmReboots:
    """Restarts nodes as the port `Fleet` says, through slurmctld and its RebootProgram. Safe to share."""

    def __init__(self, *, slurm_conf: Path | None = None, run: RunCommand = run_scheduler_command) -> None:
        """Without `slurm_conf` SLURM_CONF stays as this process has it."""
        self._client = SlurmClient(run=run, slurm_conf=slurm_conf)

    def reboot(self, node: NodeName) -> None:
        """Restart a drained node that answers and runs no job; asked again before it went down it boots once."""
        name = parse_node_name(node)
        limit = Limit()
        status = self._status(name, limit=limit)
        self._refuse_unless_safe(status)
        config = ("scontrol", "show", "config")
        settings = read_config_answer(self._client.send(*config, limit=limit).stdout, source=" ".join(config))
        if settings.is_every_down_node_returned:
            raise SourceRefused(
                "ReturnToService=2: Slurm would return a node whose boot outlasts ResumeTimeout by itself; set it to 0 "
                "or 1, or have nodes rebooted over ssh (fleet.reboot)"
            )
        if status.reason is not None and status.reason.endswith(_ISSUED):
            # At a second reboot Slurm would write "reboot issued" in the place of the whole reason (seen, 22.05).
            quoted = quoted_reason(status.reason.removesuffix(_ISSUED), verb="reboot")
            self._client.send("scontrol", "update", f"NodeName={name}", "State=DRAIN", quoted, limit=limit)
        self._client.send("scontrol", "reboot", name, limit=limit)

    def _status(self, name: NodeName, *, limit: Limit) -> NodeStatus:
        argv = node_listing(self._client.read_version(limit))
        answer = read_nodes_answer(self._client.send(*argv, limit=limit).stdout, source=" ".join(argv))
        status = next((each for each in answer.nodes if each.node == name), None)
        if status is None:
            raise SourceRefused(f"Slurm knows no node {name}; nothing was rebooted. Check cluster.yaml")
        return status

    def _refuse_unless_safe(self, status: NodeStatus) -> None:
        if not status.is_drained:
            raise SourceRefused(f"{status.node} is not drained: after its boot Slurm would return it by itself")
        if status.state in _AT_WORK or status.gpu_in_use_count > 0:
            raise SourceRefused(f"{status.node} is {status.state.value}; Slurm would reboot it at the end of its job")
        if not status.is_responding:
            raise SourceUnavailable(f"{status.node} does not answer; slurmd there must be told to reboot")
