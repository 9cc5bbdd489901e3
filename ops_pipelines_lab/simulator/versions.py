"""What simulated nodes run, and what is wrong with a version: values of a scenario.

How versions get onto nodes is `installs`' business, what a bad one does there `release_effects`'.
"""

from dataclasses import dataclass
from enum import Enum

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentVersion:
    """One component in one version."""

    component: Component
    version: str

    def __post_init__(self) -> None:
        if not self.version:
            raise ValueError(f"{self.component.value} has no version; leave the component away where there is none")


USUAL_VERSIONS = tuple(
    ComponentVersion(component=component, version=version)
    for component, version in (
        # Assumption: what one HGX H100 server may run together. The examples of `releases/` start from these.
        (Component.CUDA, "13.0.1"),
        (Component.DCGM, "4.4.1"),
        (Component.NIC_DRIVER, "25.07-0.9.7"),
        (Component.NIC_FIRMWARE, "28.46.1006"),
        (Component.GPU_VBIOS, "96.00.99.00.01"),
        (Component.NVSWITCH, "96.10.6D.00.01"),
        (Component.BMC, "24.09.17"),
        (Component.BIOS, "1.05.03"),
        (Component.KERNEL, "6.8.0-60-generic"),
        (Component.OS_SECURITY, "2026.08.15"),
        (Component.CONTAINER_RUNTIME, "2.1.4"),
        (Component.SLURM, "25.05.4"),
    )
)
"""Beside the driver and its fabric manager, whose version is the scenario's `driver_version`."""
FIRMWARE = frozenset(
    {
        Component.NIC_FIRMWARE,
        Component.GPU_VBIOS,
        Component.NVSWITCH,
        Component.BMC,
        Component.BIOS,
        Component.EROT,
        Component.CPLD,
        Component.PSU,
    }
)
"""What lies in a chip: a reimage of the node leaves it as it is."""


class ReleaseTrouble(Enum):
    """What a version does to a node."""

    INSTALL_FAILS = "install_fails"
    """Its installation ends with an error; nothing was changed."""
    COMES_UP_OLD = "comes_up_old"
    """It lies there, and after the restart the old one runs."""
    NEVER_BOOTS = "never_boots"
    """No boot with it comes up."""
    LOSES_GPU = "loses_gpu"
    """Whenever it is loaded a GPU falls off the bus."""
    SLOWER = "slower"
    """Each training step on it takes longer."""
    XID_PRONE = "xid_prone"
    """Under load a GPU's own processor stops answering now and then: Xid 119, and the job is lost."""
    HANGS = "hangs"
    """Some time after work has started on it the node answers nobody any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFault:
    """One version of one component that does harm. What it is the cause of is gone with it."""

    component: Component
    version: str
    trouble: ReleaseTrouble
    nodes: tuple[NodeName, ...] | None = None
    """On these alone; None: on whichever node runs it."""
    node_ratio: float = 1.0
    """Of those nodes this share, drawn from the seed, always the same ones."""
    after_seconds: float = 60.0
    """Of HANGS: so long after the first job began; of XID_PRONE: the mean time from one to the next."""
    slowdown_ratio: float = 0.05
    """Of SLOWER: by how much a step takes longer."""
    found_by: tuple[str, ...] = ()
    """Of SLOWER: the tests of the node's own check whose numbers are lower by as much; empty: none sees it."""

    def __post_init__(self) -> None:
        if self.nodes is not None and not self.nodes:
            raise ValueError(f"release fault of {self.component.value}: nodes is empty; leave it away for all nodes")
        if not 0 < self.node_ratio <= 1:
            raise ValueError(f"release fault of {self.component.value}: node_ratio must lie above 0 and at most at 1")
        if self.after_seconds <= 0 or not 0 < self.slowdown_ratio < 1:
            raise ValueError(
                f"release fault of {self.component.value}: after_seconds must be above 0, slowdown_ratio in 0..1"
            )
