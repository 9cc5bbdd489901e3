"""One recorded day: what the sources would have shown, and what was really so.

Values only. Which faults there are is `faults`; how a healthy cluster looks, and what only looks like a fault, is
`background`. The diagnosis under test sees everything here but `truths` and `pauses`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.fault import Component
from ops_pipelines.core.identity import JobId, NodeName, Topology
from ops_pipelines.core.observation import JobStatus, NodeStatus
from ops_pipelines.core.sources import LogLine
from ops_pipelines.observe.panels.panel import Panel


class FaultClass(Enum):
    """What can break. The first group shows itself at once; the others must be found."""

    GPU_OFF_BUS = "gpu_off_bus"
    GPU_VANISHED = "gpu_vanished"
    """Its series end, and nothing is logged."""
    MEMORY_UNCORRECTABLE = "memory_uncorrectable"
    MEMORY_CONTAINED = "memory_contained"
    GSP_TIMEOUT = "gsp_timeout"
    NVLINK_FAULT = "nvlink_fault"
    NVSWITCH_FAULT = "nvswitch_fault"
    """One switch of a baseboard; every rank of the job on it and elsewhere is killed and logs Xid 45."""
    HOST_MEMORY = "host_memory"
    NODE_DOWN = "node_down"
    LEAF_SWITCH = "leaf_switch"
    POWER_FEED = "power_feed"
    COOLING = "cooling"
    """A rack's: its nodes heat up together."""
    SHARED_STORAGE = "shared_storage"
    NIC_ERRORS = "nic_errors"
    LINK_FLAPS = "link_flaps"
    PCIE_DEGRADED = "pcie_degraded"
    FAN_FAILURE = "fan_failure"
    """One node's: its GPUs heat up and throttle while its neighbours' do not."""
    SLOW_GPU = "slow_gpu"
    """A straggler without any message."""
    DISK_FAILING = "disk_failing"
    HANG_ONE_RANK = "hang_one_rank"
    """One rank stops, all others wait for it."""
    HANG_OF_PROGRAM = "hang_of_program"
    """All ranks wait: no node is at fault."""
    APPLICATION_CRASHES = "application_crashes"
    """One job fails again and again on changing nodes."""
    NODE_FAILS_JOBS = "node_fails_jobs"
    """Different jobs fail on one node, with no message of the hardware."""
    LOSS_DIVERGES = "loss_diverges"


class PauseKind(Enum):
    """Why a job makes no steps and is well."""

    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    DATA_LOADING = "data_loading"
    WARM_UP = "warm_up"
    COMPILATION = "compilation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One injected fault."""

    fault: FaultClass
    onset: datetime
    end: datetime
    """When its cause was gone: repaired, or it ended by itself."""
    culprit: Component
    """A node or a part of one; a switch, rack, feed or store; or a job."""
    affected_nodes: frozenset[NodeName]
    """Nodes that showed it and are not at fault."""
    affected_jobs: frozenset[JobId]
    steps_began_at: datetime | None = None
    """When the attempt had completed its first step; for hangs only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One stretch in which a healthy job made no steps."""

    kind: PauseKind
    job: JobId
    began_at: datetime
    ended_at: datetime
    live_signals: frozenset[str]
    """What moved all the same: `storage`, `network`, `cpu`, `log`, `gpu`. Never empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A person took a node out, put it right and gave it back: open incidents of it end here."""

    node: NodeName
    drained_at: datetime
    returned_at: datetime


@dataclass(frozen=True, kw_only=True)
class Day:
    """Everything of one run."""

    seed: int
    topology: Topology
    panel: Panel
    lines: Sequence[LogLine]
    """Of kernels and jobs, by time of arrival; a line of a job names it. A node's clock may be wrong."""
    arrivals: Sequence[datetime]
    """When each line could be read."""
    truths: tuple[Truth, ...]
    pauses: tuple[Pause, ...]
    repairs: tuple[Repair, ...]
    jobs: Sequence[tuple[datetime, tuple[JobStatus, ...]]]
    """What the scheduler says of all jobs that run or ended within ten minutes, at each change, by time."""
    nodes: Sequence[tuple[datetime, tuple[NodeStatus, ...]]]
    """What the scheduler says of all nodes, at each change, by time."""
