"""A release: versions of components, how a node gets them, the order given to a node, and what may run with what.

Values that refuse nonsense. Whether versions fit one another and the fleet is `compatibility`'s, reading
`releases/*.yaml` is `resources.config.release_file`'s, sending the commands belongs to the port `Fleet`.

What follows from them for a release is `compatibility`'s. Reading the tables is `resources.release_files`'.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import Enum
from typing import NewType

from ops_pipelines.core.policy import PolicyError

# -- a release --


ReleaseName = NewType("ReleaseName", str)
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~_-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Component(Enum):
    """What has a version of its own on a node; the value is its key in releases and in `fleet_versions`."""

    DRIVER = "driver"
    FABRIC_MANAGER = "fabric_manager"
    IMEX = "imex"
    CUDA = "cuda"
    DCGM = "dcgm"
    NIC_DRIVER = "nic_driver"
    """DOCA-OFED, MLNX_OFED."""
    NIC_FIRMWARE = "nic_firmware"
    GPU_VBIOS = "gpu_vbios"
    NVSWITCH = "nvswitch"
    BMC = "bmc"
    BIOS = "bios"
    EROT = "erot"
    CPLD = "cpld"
    PSU = "psu"
    KERNEL = "kernel"
    OS_SECURITY = "os_security"
    CONTAINER_RUNTIME = "container_runtime"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


class Activation(Enum):
    """What makes an installed version the running one; each does what those before it do."""

    LIVE = "live"
    DRIVER_RELOAD = "driver_reload"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    AC_CYCLE = "ac_cycle"
    """The node without power at all: a switched outlet, or hands."""

    @property
    def rank(self) -> int:
        return list(Activation).index(self)


class Reversibility(Enum):
    YES = "yes"
    WITH_CONDITIONS = "with_conditions"
    """Back is possible as `Change.conditions` says; the plan shows them."""
    NO = "no"
    """Alone in its wave, and needs a person's yes, whatever the policy says."""


class Means(Enum):
    """Who carries an installation out; the site says in cluster.yaml how each is reached."""

    COMMAND = "command"
    """A fixed argument list, on the node over ssh."""
    ANSIBLE = "ansible"
    """A playbook of the site."""
    REDFISH = "redfish"
    """UpdateService of the node's BMC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file that is installed. Its content is known by its sha256, wherever it comes from."""

    name: str
    sha256: str
    location: str
    """A path as the node sees it, or an https URL."""

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.sha256):
            raise PolicyError(f"artifact {self.name!r}: sha256 is {self.sha256[:80]!r}; expected 64 digits 0-9a-f")
        if not self.location:
            raise PolicyError(f"artifact {self.name!r} has no location")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One component that moves to one version."""

    component: Component
    version: str
    means: Means = Means.COMMAND
    install: tuple[str, ...] = ()
    """Words of a command, filled in: `{node}`, `{version}`, `{artifact}` (its location), `{key}`; of a playbook: its
    name and variables. Empty where Redfish installs."""
    rollback: tuple[str, ...] = ()
    """The same for the rollback; `{version}` is then the version that the node had."""
    targets: tuple[str, ...] = ()
    """Of Redfish: ids of the firmware inventory, such as `HGX_0`. Empty: the BMC chooses by the image."""
    artifact: Artifact | None = None
    rollback_artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    """By version: what is installed on the rollback, where the means needs a file."""
    activation: Activation = Activation.REBOOT
    reversibility: Reversibility = Reversibility.YES
    conditions: str = ""
    starts_from: str = ""
    """The lowest version that may be updated in one go; empty: any."""
    bundle: str = ""
    """Changes of one bundle are installed together and activated once, or not at all; empty: alone."""

    def __post_init__(self) -> None:
        what = self.component.value
        for key, version in (("version", self.version), ("starts_from", self.starts_from or "0")):
            if not _VERSION.fullmatch(version):
                raise PolicyError(f"{what}: {key} is {version[:80]!r}; expected letters, digits and . + : ~ _ -")
        if self.means is Means.REDFISH and self.artifact is None:
            raise PolicyError(f"{what}: Redfish installs an image; name it under artifact")
        if self.means is not Means.REDFISH and not self.install:
            raise PolicyError(f"{what}: install is empty; empty never means whatever is newest")
        if self.reversibility is not Reversibility.NO and self.means is not Means.REDFISH and not self.rollback:
            raise PolicyError(f"{what}: rollback is empty; name it, or say reversible: no")
        if self.reversibility is Reversibility.WITH_CONDITIONS and not self.conditions:
            raise PolicyError(f"{what}: reversible: with_conditions needs the conditions in words")
        if self.reversibility is Reversibility.NO and self.bundle:
            raise PolicyError(
                f"{what}: what cannot be rolled back is alone in its wave; take it out of bundle {self.bundle}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What the gate promises to find, and so how long it must look."""

    event_rate_ratio: float = 10.0
    """Failures, Xids and errors this many times as often as before."""
    slowdown_ratio: float = 0.05
    """Steps this share slower, or a bandwidth this share lower."""
    slowest_failure: timedelta = timedelta(hours=6)
    """A failure that begins this long after the node returned to work is still found on the first nodes."""

    def __post_init__(self) -> None:
        if self.event_rate_ratio < 2:
            raise PolicyError(f"claims.event_rate_ratio is {self.event_rate_ratio:g}; it must be 2 or more")
        if not 0.005 <= self.slowdown_ratio <= 0.5:
            raise PolicyError(f"claims.slowdown_ratio is {self.slowdown_ratio:g}; it must lie in 0.005..0.5")
        if not timedelta(0) < self.slowest_failure <= timedelta(days=7):
            raise PolicyError("claims.slowest_failure_hours must lie above 0 and at most at 168")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What a group of nodes is to run. The order of the changes is the order in which they are installed."""

    name: ReleaseName
    about: str
    models: frozenset[str]
    """Names of node models as cluster.yaml declares them; nobody else is touched. Never empty."""
    changes: tuple[Change, ...]
    gate_suite: str = "release"
    """Tests of every updated node, before it returns (catalogue/verification_suites.csv)."""
    canary_suite: str = "release_canary"
    """Tests of the first nodes in its place: longer."""
    claims: Claims = field(default_factory=Claims)
    opted_out: frozenset[str] = frozenset()
    """Nodes that keep what they have; the others continue."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise PolicyError(f"the name of a release is {self.name[:80]!r}; expected a-z, 0-9 and . _ -")
        if not self.models:
            raise PolicyError(f"{self.name}: models is empty; empty never means all")
        if not self.changes:
            raise PolicyError(f"{self.name}: changes is empty; there is nothing to roll out")
        seen: set[Component] = set()
        for change in self.changes:
            if change.component in seen:
                raise PolicyError(f"{self.name} lists {change.component.value} twice; a component has one version")
            seen.add(change.component)

    @property
    def is_one_way(self) -> bool:
        """Whether any part of it cannot be rolled back."""
        return any(change.reversibility is Reversibility.NO for change in self.changes)

    @property
    def steps(self) -> tuple[tuple[Change, ...], ...]:
        """The changes in groups, each installed together and activated once: bundles, and what is alone."""
        groups: dict[str | int, list[Change]] = {}
        for number, change in enumerate(self.changes):
            groups.setdefault(change.bundle or number, []).append(change)
        return tuple(tuple(group) for group in groups.values())

    def version_of(self, component: Component) -> str | None:
        return next((each.version for each in self.changes if each.component is component), None)


def activation_of(step: tuple[Change, ...]) -> Activation:
    """Return what activates a step: the strongest that any of its changes needs."""
    return max((change.activation for change in step), key=lambda each: each.rank)


# -- what is known of versions that run together --


class Trait(Enum):
    """What a node model has that decides which software must match."""

    NVSWITCH = "nvswitch"
    """Switches between the GPUs that the node itself starts: nothing runs there without its fabric manager."""
    IMEX = "imex"
    """GPUs of several nodes in one NVLink domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeModel:
    """A kind of machine, under the name that cluster.yaml and releases use."""

    name: str
    traits: frozenset[Trait]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDriver:
    """A driver that a CUDA version goes with."""

    cuda: str
    driver: str
    is_family: bool
    """True: `cuda` is a family, and no older driver runs it. False: a toolkit, and `driver` was shipped in it."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverBranch:
    branch: int
    kind: str
    ends_on: date | None
    """The last day with updates; None: it is over, the day is not established."""
    max_cuda_major: int
    """The newest family that runs without a forward compatibility package."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMatch:
    """`component` must have the very version of `equals`, to the last digit."""

    component: Component
    equals: Component
    where: Trait
    """A model with this trait cannot do without it."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirmwareOrder:
    """In which order one source installs firmware."""

    models: frozenset[str]
    """Empty: whatever has no order of its own."""
    stages: tuple[frozenset[Component], ...]
    """Within a stage in any order."""
    is_chosen: bool
    """Whether it is the one that releases are held to; the others are known and named."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastActivation:
    component: Component
    activation: Activation
    source: str


class FloorKind(Enum):
    NEEDS = "needs"
    """Beside `component`, `needs` must be at `floor` or newer."""
    STARTS_FROM = "starts_from"
    """`component` gets there in one go from `floor` or newer only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFloor:
    kind: FloorKind
    component: Component
    from_version: str
    """Of versions of `component` from this one on; empty: of all."""
    models: frozenset[str]
    """Empty: on every model."""
    needs: Component
    floor: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmUpgrade:
    """A major release of Slurm, and the ones before it that it upgrades from and talks to."""

    major: str
    from_majors: frozenset[str]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DowngradeRule:
    """Whether a component can go down to an older version."""

    component: Component
    reversibility: Reversibility
    """Never YES: what simply rolls back has no row."""
    is_of_majors: bool
    """Whether it speaks only of going from one major release to another."""
    said: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibilityTables:
    """Everything that is known of versions that run together."""

    models: Mapping[str, NodeModel]
    cuda_drivers: tuple[CudaDriver, ...]
    branches: Mapping[int, DriverBranch]
    exact_matches: tuple[ExactMatch, ...]
    orders: tuple[FirmwareOrder, ...]
    activations: Mapping[Component, LeastActivation]
    floors: tuple[VersionFloor, ...]
    slurm: Mapping[str, SlurmUpgrade]
    downgrades: Mapping[Component, DowngradeRule]
