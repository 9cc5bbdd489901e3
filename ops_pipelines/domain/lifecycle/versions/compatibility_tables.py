"""What is known of versions that run together, as values: one class a table of the catalogue, each row with its source.

What follows from them for a release is `compatibility`'s. Reading the tables is `resources.catalogue_releases`'.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum

from ops_pipelines.domain.lifecycle.release import Activation, Component, Reversibility


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
    """Never YES: what simply goes back has no row."""
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
