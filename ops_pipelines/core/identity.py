"""Names of things (nodes, GPUs, jobs, incidents, plans, action keys), and where each node is.

Distinct types, so that mixing two is a type error. What a thing *is* is in the module of that thing.

Only nodes listed here are ever acted on. Reading cluster.yaml belongs to `resources.config.cluster_file`.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NewType

# -- names of things --


NodeName = NewType("NodeName", str)
GpuUuid = NewType("GpuUuid", str)
PciAddress = NewType("PciAddress", str)
"""A GPU's place on its node, `domain:bus:device` in lower case (`0000:1b:00`): what kernel log and metrics share."""
JobId = NewType("JobId", str)
IncidentId = NewType("IncidentId", str)
PlanId = NewType("PlanId", str)
RolloutId = NewType("RolloutId", str)
"""`ROLL-0001`. As the cause of acts it is where incidents stand: see `cause_of`."""
ActionKey = NewType("ActionKey", str)
"""Idempotency key: one digest of cause, verb, target, attempt and try number."""
Digest = NewType("Digest", str)
"""sha256 of a stored document, in hex."""

_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_JOB_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_./-]{0,252}")
_PCI = re.compile(
    r"(?:PCI:)?(?P<domain>[0-9a-fA-F]{4,8}):(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})(?:\.[0-7])?"
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class JobAttempt:
    """One run of a job. Neither the job id nor a restart count alone is unique: Slurm reuses both after a crash."""

    job: JobId
    started_at: datetime


def parse_node_name(text: str) -> NodeName:
    """Return `text` as a node name; raise ValueError unless it is a DNS-like name (it may reach a command line)."""
    if not _NODE_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a node name; expected letters, digits, '.', '_' and '-' only")
    return NodeName(text)


def parse_job_id(text: str) -> JobId:
    """Return `text` as a job id (`123`, `123_4`, `namespace/name`); raise ValueError on all else, `..` too."""
    if not _JOB_ID.fullmatch(text):
        raise ValueError(f"{text!r} is not a job id; expected letters, digits, '_', '.', '/' and '-' only")
    return JobId(text)


@lru_cache(maxsize=4_096)  # a reading names each of a node's few addresses dozens of times
def parse_pci_address(text: str) -> PciAddress:
    """Return the normal form of `PCI:0000:1b:00`, `00000000:1B:00.0` or `0000:1b:00`; raise ValueError otherwise.

    Sources differ in case, in the width of the domain (4 or 8 digits) and in the function suffix.
    """
    match = _PCI.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a PCI address; expected domain:bus:device such as 0000:1b:00")
    domain = int(match["domain"], 16)
    return PciAddress(f"{domain:04x}:{match['bus'].lower()}:{match['device'].lower()}")


def digest_of(*parts: str) -> Digest:
    """Return the sha256 over the parts, each length-prefixed so that no two different lists collide."""
    hasher = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        hasher.update(f"{len(encoded)}:".encode())
        hasher.update(encoded)
    return Digest(hasher.hexdigest())


def cause_of(rollout: RolloutId) -> IncidentId:
    """Return a rollout as the cause of acts: keys, drains and records know incidents and rollouts by one name."""
    return IncidentId(rollout)


def is_rollout(cause: IncidentId) -> bool:
    """Return whether the cause of an act is a rollout and no incident."""
    return cause.startswith("ROLL-")


def listed(names: Sequence[str], *, at_most: int = 4) -> str:
    """Return the first of many names in their order, and how many more there are: `gpu001, gpu002 and 7 more`."""
    more = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {more} more" if more > 0 else "")


# -- where each node is --


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one node is. `nvlink_domain` equals the node's own name where NVLink ends at the chassis (HGX)."""

    rack: str
    nvlink_domain: str
    leaf_switch: str
    power_feed: str = ""
    """What supplies it with power, and its rack with it; empty where cluster.yaml does not say."""
    model: str = ""
    """What kind of machine it is, as releases name it; empty where cluster.yaml does not say: no release is for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The nodes that exist, as declared. A node missing here is observed, reported and never touched."""

    places: Mapping[NodeName, Place]
    gpus_per_node: int

    def __post_init__(self) -> None:
        if self.gpus_per_node < 1:
            raise ValueError(f"gpus_per_node is {self.gpus_per_node}; it must be 1 or more")

    def knows(self, node: NodeName) -> bool:
        return node in self.places

    def shared_place(self, nodes: frozenset[NodeName]) -> str | None:
        """Return `rack r07` or `leaf switch s3` if every given node is there, None if they share neither."""
        known = [self.places[node] for node in nodes if node in self.places]
        if not known or len(known) != len(nodes):
            return None
        if len({place.rack for place in known}) == 1:
            return f"rack {known[0].rack}"
        if len({place.leaf_switch for place in known}) == 1:
            return f"leaf switch {known[0].leaf_switch}"
        return None
