"""What the kernel of a node writes when something happens: the text of real driver lines.

Sources: Xid 79, 48, 63, 31, 119 and 154 as pasted by users into public issues and quoted in documentation (issues of
NVIDIA/gpu-operator and shine-cluster, NVSentinel docs, gpud test data). When a line is written is `hardware`'s
business.
"""

from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.identity import NodeName, PciAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """One line of a node's kernel log."""

    node: NodeName
    written_at: datetime
    booted_at: datetime
    message: str

    @property
    def text(self) -> str:
        """Return the line as a log server stores it: RFC 3339 time, node, and the kernel's own seconds since boot."""
        uptime_seconds = (self.written_at - self.booted_at).total_seconds()
        written_at = self.written_at.isoformat(timespec="microseconds")
        return f"{written_at} {self.node} kernel: [{uptime_seconds:12.6f}] {self.message}"


BENIGN = (
    "perf: interrupt took too long (2504 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
    "nfs: server storage-1 OK",
    "mlx5_core 0000:0b:00.0 ens108np0: Link up",
    "nvme nvme0: 96/0/0 default/read/poll queues",
    "EXT4-fs (nvme0n1p2): re-mounted. Quota mode: none.",
    "TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending cookies.",
)
"""What healthy nodes write all day: none of it asks for anything."""


def links(port_count: int, *, is_up: bool) -> tuple[str, ...]:
    """Return what the driver of the network cards says when all ports of a node change."""
    state = "Link up" if is_up else "Link down"
    return tuple(f"mlx5_core 0000:{0x0B + 0x10 * port:02x}:00.0 ibp{port}s0: {state}" for port in range(port_count))


def off_bus(gpu: PciAddress) -> str:
    return f"NVRM: Xid (PCI:{gpu}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def reboot_required(gpu: PciAddress) -> str:
    return f"NVRM: Xid (PCI:{gpu}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"


def reset_required(gpu: PciAddress) -> str:
    return f"NVRM: Xid (PCI:{gpu}): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"


def drain_and_reset(gpu: PciAddress) -> str:
    return f"NVRM: Xid (PCI:{gpu}): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"


def double_bit_error(gpu: PciAddress, address: int) -> str:
    return (
        f"NVRM: Xid (PCI:{gpu}): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been "
        f"detected on GPU in the framebuffer at physAddr {address:#x} partition {address % 20}, "
        f"subpartition {address % 4}."
    )


def row_remap(gpu: PciAddress, address: int) -> str:
    return (
        f"NVRM: Xid (PCI:{gpu}): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row ({address:#018x}) "
        "marked for remapping, reset gpu to activate."
    )


def mmu_fault(gpu: PciAddress, *, pid: int, name: str) -> str:
    high, low = 0x7F00 + pid % 256, (pid * 4096) % (1 << 32)
    return (
        f"NVRM: Xid (PCI:{gpu}): 31, pid={pid}, name={name}, Ch 00000007, intr 00000000. MMU Fault: ENGINE GRAPHICS "
        f"GPCCLIENT_T1_6 faulted @ 0x{high:x}_{low:08x}. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
    )


def gsp_timeout(gpu: PciAddress, *, index: int, pid: int, name: str) -> str:
    return (
        f"NVRM: Xid (PCI:{gpu}): 119, pid={pid}, name={name}, Timeout after 6s of waiting for RPC response from "
        f"GPU{index} GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x4)."
    )


def driver_loading(driver_version: str) -> str:
    return f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {driver_version}  Release Build"


def boot(gpus: tuple[PciAddress, ...], driver_version: str) -> tuple[str, ...]:
    """Return a few of the lines that a healthy boot writes; none of them is a complaint."""
    found = tuple(f"nvidia {gpu}.0: enabling device (0140 -> 0142)" for gpu in gpus)
    return (
        "Linux version 6.8.0-60-generic (buildd@lcy02-amd64-054) (x86_64-linux-gnu-gcc-13) #63-Ubuntu SMP",
        *found,
        driver_loading(driver_version),
        "mlx5_core 0000:0b:00.0: Port module event: module 0, Cable plugged",
    )
