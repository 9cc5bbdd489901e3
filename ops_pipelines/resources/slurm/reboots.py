"""Reboots through Slurm: plain `scontrol reboot` of a node that is drained and idle, and of no other. Never a reason.

For sites whose nodes are rebooted by Slurm alone; past Slurm, over ssh, is as good. What each form does to a drain was
tried on 22.05.8 and stands in docs/SLURM.md. After the plain one nobody but us puts the node back: the drain lasts
through the boot, its reason still begins with our words, and its new date is that of the reboot, by whose record
`remediate.guardrails.facts.drain_owner` knows it. It is refused where Slurm would return the node by itself: not
drained,
or ReturnToService=2, with which a boot that outlasts ResumeTimeout ends in service.
"""

from pathlib import Path

from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines.core.observation import NodeState, NodeStatus
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.command_line import RunCommand, run_scheduler_command
from ops_pipelines.resources.slurm.answers import node_listing, read_config_answer, read_nodes_answer
from ops_pipelines.resources.slurm.client import Limit, SlurmClient, quoted_reason

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
