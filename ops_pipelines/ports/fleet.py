"""The machines themselves, past the scheduler: power, reboot, GPU reset, and a check that runs on the node."""

from typing import Protocol

from ops_pipelines.domain.identity import NodeName, PciAddress
from ops_pipelines.domain.observation import NodeInspection, PowerState


class Fleet(Protocol):
    """Acts on machines.

    Raises as `Scheduler` does. Commands return when accepted, not when finished: the witness is read with
    `inspect` or `power_state`. Asking twice for a reboot reboots twice: the caller holds the idempotency key.
    """

    def inspect(self, node: NodeName) -> NodeInspection:
        """Return what a check on the node itself finds now; raise SourceUnavailable if the node does not answer."""
        ...

    def reset_gpu(self, node: NodeName, gpu: PciAddress) -> None:
        """Reset one GPU. Refused while a process uses it, or if the node has no such GPU."""
        ...

    def reboot(self, node: NodeName, *, reason: str) -> None:
        """Restart a node that answers and runs no job. The drain survives the reboot."""
        ...

    def power_off(self, node: NodeName) -> None:
        """Cut the power, reachable or not. Afterwards no process of the node is left."""
        ...

    def power_on(self, node: NodeName) -> None:
        """Give power; a node that is on stays on."""
        ...

    def power_state(self, node: NodeName) -> PowerState:
        """Return whether the node has power, as its power switch (BMC) says; UNKNOWN if the switch cannot tell."""
        ...
