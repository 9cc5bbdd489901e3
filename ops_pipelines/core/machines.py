"""The machines past the scheduler: power, reboot, GPU reset, tests, installation."""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Protocol

from ops_pipelines.core.identity import ActionKey, NodeName, PciAddress
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.observation import NodeInspection, PowerState
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import InstallOrder, InstallReport

# -- what a policy's plans need of the machines and the site does not offer --


class SiteMeans(Enum):
    """What is done to a machine past the scheduler; the value is what cluster.yaml names under `fleet`."""

    INSPECT = "inspect"
    CHECK = "start_check and read_check"
    POWER = "power_off, power_on and power_state, or redfish"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot, or reboot_by: slurm"
    REIMAGE = "reimage"


# -- the machines themselves, past the scheduler --


NOT_OFFERED = "no command is configured for"
"""How a refusal begins that says that the site offers no such act; every other refusal is a node's or a command's."""


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

    def reimage(self, node: NodeName, *, reason: str) -> None:
        """Have a drained, idle node installed anew by the site's own means; refused where none is configured."""
        ...

    def start_check(self, node: NodeName, *, suite: str, tests: Collection[str], key: ActionKey) -> None:
        """Start tests on the node and return at once; the result lies on the node under `key`.

        Asking again under the same key starts nothing new. Refused with `NOT_OFFERED` where no such command is
        configured, and unavailable while another check runs on the node: asked again, it begins after that.
        """
        ...

    def read_check(self, node: NodeName, *, key: ActionKey) -> NodeCheck | None:
        """Return what the tests under `key` found; None while they run, or if none were started under it.

        Raises SourceUnavailable if the node does not answer.
        """
        ...

    def read_versions(self, node: NodeName) -> Mapping[Component, str]:
        """Return the versions that *run* on the node now, of the components that it can tell.

        Of firmware the active one, never a staged one. What it cannot tell is missing, never empty. Raises
        SourceUnavailable if neither the node nor its BMC answers.
        """
        ...

    def start_install(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        """Start one step of a release and return at once; what became of it lies under `key`.

        Asking again under the same key starts nothing that was started before: it begins the next part of what
        `read_install` calls waiting. Refused with `NOT_OFFERED` where no means is configured for a change, where a
        hash does not fit, and while a process uses the GPUs; unavailable while another installation runs there.
        """
        ...

    def read_install(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        """Return how far the installation under `key` is; None if none was started under it. Begins nothing.

        Raises SourceUnavailable if whoever installs does not answer.
        """
        ...

    def reload_driver(self, node: NodeName) -> None:
        """Load the installed GPU driver anew. Refused while a process uses a GPU."""
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
