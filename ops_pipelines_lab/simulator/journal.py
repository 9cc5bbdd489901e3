"""What the simulated cluster received, in order: one JSON line per entry, shared by all processes.

Appending holds an exclusive file lock and never writes a time before the last one; reading holds a shared lock,
so no older entry can appear behind a reader's back. What an entry does to the cluster is `world`'s business.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from ops_pipelines.core.release import Activation, Component, Means
from ops_pipelines_lab.simulator.course import Course
from ops_pipelines_lab.simulator.plain import from_plain, to_plain
from ops_pipelines_lab.simulator.scenario import JobSpec


class EntryKind(Enum):
    """What arrived: a fault of nature, a user's job, or a command of the operator."""

    FAULT = "fault"
    SUBMIT = "submit"
    CANCEL = "cancel"
    DRAIN = "drain"
    RESUME = "resume"
    HOLD = "hold"
    MARK = "mark"
    REQUEUE = "requeue"
    EXCLUDE = "exclude"
    READMIT = "readmit"
    RELEASE = "release"
    DECLARE_DOWN = "declare_down"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    POWER_OFF = "power_off"
    POWER_ON = "power_on"
    REIMAGE = "reimage"
    START_CHECK = "start_check"
    RESERVE = "reserve"
    UNRESERVE = "unreserve"
    PUT_LAST = "put_last"
    PUT_BACK = "put_back"
    START_INSTALL = "start_install"
    RELOAD_DRIVER = "reload_driver"
    BOOK = "book"
    SET_QUOTAS = "set_quotas"
    REPAIR_BY_HAND = "repair_by_hand"
    """A person opens the machine and replaces what is broken; it boots afterwards."""


NOT_COMMANDS = frozenset({EntryKind.FAULT, EntryKind.SUBMIT, EntryKind.CANCEL, EntryKind.REPAIR_BY_HAND})
"""What nature, users and technicians do; all else is a command of the operator."""


class FaultKind(Enum):
    """What can go wrong by itself. What cures it is for faults without a `Course`."""

    GPU_FELL_OFF_BUS = "gpu_fell_off_bus"
    """Xid 79 and 154 (node reboot required); the GPU vanishes. Cured by a reboot or a power cycle."""
    NODE_UNREACHABLE = "node_unreachable"
    """The node stops answering; its processes continue. Cured by a power cycle."""
    APPLICATION_XID31 = "application_xid31"
    """A program reads where it must not: Xid 31, and its job fails. Nothing is wrong with the node."""
    UNCORRECTABLE_ECC = "uncorrectable_ecc"
    """Xid 48, 63 and 154 (GPU reset required). Cured by a GPU reset, or a reboot."""
    RANK_STOPS = "rank_stops"
    """The process of a job on one node stops, and says nothing; all its other ranks wait for it, for ever."""
    LEAF_SWITCH_DOWN = "leaf_switch_down"
    """The fabric ports of all nodes of one switch go down for a while; jobs that span nodes hang. The nodes answer."""
    NETWORK_PARTITION = "network_partition"
    """Many nodes cannot be reached for a while; their work continues. Ends by itself."""
    BOOT_HANGS = "boot_hangs"
    """Nothing shows until the node boots: then it does not come up. Cured by a power cycle, which is a new try."""
    HIDDEN_DEFECT = "hidden_defect"
    """NVML, metrics and log are fine; a test of the node's own check is not. Cured by replacement."""
    UNKILLABLE_PROCESS = "unkillable_process"
    """A job's process on one node cannot be killed (it waits in the kernel): what ends the job leaves it completing."""
    ROW_REMAP_WAITS = "row_remap_waits"
    """Xid 63 and 154 (drain and reset): a bad row of memory is out of use; the GPU works on. Cured by a GPU reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOrder:
    """Tests that a node is ordered to run on itself."""

    key: str
    suite: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPart:
    """One component that is to get one version."""

    component: Component
    version: str
    activation: Activation
    means: Means


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallCommand:
    """What is to be installed on a node, all of it or nothing."""

    key: str
    parts: tuple[InstallPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaOrder:
    """One limit or share of an account that is to be; None: no limit, or no share of its own."""

    account: str
    value: int | None
    is_fairshare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the journal. A field that its kind does not use has its default."""

    at: datetime
    kind: EntryKind
    nodes: tuple[str, ...] = ()
    job: str | None = None
    gpu: str | None = None
    """PCI address in its normal form (`0000:1b:00`)."""
    fault: FaultKind | None = None
    seconds: float | None = None
    """How long a network partition or the fault of a switch lasts."""
    reason: str = ""
    spec: JobSpec | None = None
    course: Course | None = None
    """Of a fault: what ends it and how it comes back; None: as its kind says."""
    check: CheckOrder | None = None
    reservation: str = ""
    """Its name."""
    until: datetime | None = None
    """When a reservation or a booking runs out."""
    begins_at: datetime | None = None
    """Of a booking."""
    install: InstallCommand | None = None
    quotas: tuple[QuotaOrder, ...] = ()
    refusal: str | None = None
    """Why the command was refused; None if it was accepted. A refused entry changed nothing."""


class Journal:
    """The file. One instance per process is enough; threads of one process need their own lock around it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.with_suffix(".lock")
        self._offset = 0
        """Bytes of complete lines that this instance has returned already."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep writers out while the block runs."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep everybody else out while the block runs."""
        with self._locked(fcntl.LOCK_EX):
            yield

    def read_new(self) -> tuple[Entry, ...]:
        """Return the entries that this instance has not returned yet. Needs `reading` or `writing`.

        A last line without its end was torn by a killed writer: it never took effect and is passed over.
        """
        if self._path.stat().st_size == self._offset:
            return ()  # Most looks find nothing new: to ask how long a file is costs less than to open it.
        with self._path.open("rb") as file:
            file.seek(self._offset)
            complete, end, _torn = file.read().rpartition(b"\n")
        self._offset += len(complete) + len(end)
        return tuple(from_plain(Entry, json.loads(line)) for line in complete.splitlines())

    def append(self, entry: Entry) -> None:
        """Add one entry behind all others; it counts as read. Needs `writing`, with everything read.

        A torn last line is cut off first, so that the new line starts at a line start.
        """
        line = json.dumps(to_plain(entry), separators=(",", ":")).encode() + b"\n"
        with self._path.open("r+b") as file:
            file.truncate(self._offset)
            file.seek(self._offset)
            file.write(line)
        self._offset += len(line)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        # The lock is taken on a file of its own: locks end with their descriptor, and the journal is opened often.
        with self._lock_path.open("ab", buffering=0) as lock:
            fcntl.flock(lock, how)
            yield
