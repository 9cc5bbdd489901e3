"""What kernels, drivers, NCCL, Slurm and programs write: the wording of real lines, with the names of this day put in;
and how lines are written: prefixes as sites have them, wrong clocks, lines lost, late or doubled.

Wording as pasted by users into public issues (NVIDIA/nccl 1409, 1919, 1920, 2013; open-gpu-kernel-modules 502, 626,
1150; gpud and NVSentinel test data; imbue-ai/cluster-health; linux-nvme/nvme-cli 151), the driver's Xid and NVSwitch
tables, slurmstepd and Lustre clients. Numbers are drawn. When and why a line is written is for the caller. A node keeps
one dialect all day.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from numpy.random import Generator

from ops_pipelines.core.sources import LogLine
from ops_pipelines_lab.simulator.replay.day import Fleet
from ops_pipelines_lab.simulator.replay.jobs import Attempt

_PROCESSES = ("python", "python3", "pt_main_thread", "train.py", "ray::WorkerDict", "megatron")


def process(rng: Generator) -> str:
    return _PROCESSES[int(rng.integers(len(_PROCESSES)))]


def xid(rng: Generator, pci: str, code: int, rest: str, *, names_process: bool, program: str = "") -> str:
    """Return a driver line; old and new drivers write the process or that it is unknown."""
    who = f"pid={rng.integers(2000, 4_000_000)}, name={program or process(rng)}" if names_process else ""
    who = who or "pid='<unknown>', name=<unknown>"
    return f"NVRM: Xid (PCI:{pci}): {code}, {who}, {rest}"


def killed_channel(rng: Generator, pci: str, program: str) -> str:
    """Return Xid 45: what a driver logs of every channel of a process that is torn down."""
    tail = " caused by previous Xid 74" if rng.random() < 0.03 else ""
    return xid(rng, pci, 45, f"Ch {rng.integers(1, 32):08x}{tail}", names_process=True, program=program)


def user_channel_reset(rng: Generator, pci: str, program: str) -> str:
    return xid(rng, pci, 43, f"Ch {rng.integers(1, 32):08x}", names_process=True, program=program)


def mmu_fault(rng: Generator, pci: str) -> str:
    where = f"0x7f{rng.integers(256):02x}_{rng.integers(2**32):08x}"
    client = f"GPCCLIENT_T1_{rng.integers(16)}"
    kind = "FAULT_PDE" if rng.random() < 0.7 else "FAULT_PTE"
    rest = (
        f"Ch {rng.integers(1, 32):08x}, intr 00000000. MMU Fault: ENGINE GRAPHICS {client} faulted @ {where}. "
        f"Fault is of type {kind} ACCESS_TYPE_VIRT_{'READ' if rng.random() < 0.6 else 'WRITE'}"
    )
    return xid(rng, pci, 31, rest, names_process=True)


def graphics_exception(rng: Generator, pci: str) -> str:
    rest = f"Graphics SM Warp Exception on (GPC {rng.integers(8)}, TPC {rng.integers(9)}, SM {rng.integers(2)}): "
    return xid(rng, pci, 13, rest + "Out Of Range Address", names_process=True)


def off_bus(rng: Generator, pci: str) -> str:
    if rng.random() < 0.25:
        return f"NVRM: Xid (PCI:{pci}): 79, GPU has fallen off the bus."
    return xid(rng, pci, 79, "GPU has fallen off the bus.", names_process=False)


def double_bit(rng: Generator, pci: str) -> str:
    rest = "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at "
    if rng.random() < 0.6:
        rest += f"physAddr {rng.integers(2**35):#x} "
    return xid(
        rng, pci, 48, rest + f"partition {rng.integers(20)}, subpartition {rng.integers(4)}.", names_process=False
    )


def row_remap(rng: Generator, pci: str) -> str:
    rest = f"Row Remapper: New row ({rng.integers(2**35):#018x}) marked for remapping, reset gpu to activate."
    return xid(rng, pci, 63, rest, names_process=False)


def row_remap_failed(rng: Generator, pci: str) -> str:
    return xid(rng, pci, 64, "Row Remapper: Failed to remap a row.", names_process=False)


def contained(rng: Generator, pci: str) -> str:
    if rng.random() < 0.5:
        return xid(rng, pci, 94, f"Ch {rng.integers(1, 32):08x}", names_process=True)
    unit = ("SM (0x1)", "FBHUB (0x3)", "CE User Channel (0x9)", "LTC (0x5)")[int(rng.integers(4))]
    return xid(rng, pci, 94, f"Contained: {unit}. RST: No, D-RST: No", names_process=bool(rng.random() < 0.4))


def uncontained(rng: Generator, pci: str) -> str:
    return xid(rng, pci, 95, "Uncontained: LTC (0x5). RST: Yes, D-RST: No", names_process=False)


def gsp_timeout(rng: Generator, pci: str, *, gpu: int) -> str:
    function = ("76 (GSP_RM_CONTROL)", "10 (FREE)", "103 (GSP_RM_ALLOC)")[int(rng.integers(3))]
    words = f"(0x{rng.integers(2**31):x} 0x{rng.integers(4096):x})"
    if rng.random() < 0.5:
        rest = f"Timeout after {rng.choice([6, 45])}s of waiting for RPC response from GPU{gpu} GSP! "
    else:
        rest = f"Timeout waiting for RPC from GSP{gpu}! "
    return xid(rng, pci, 119, f"{rest}Expected function {function} {words}.", names_process=True)


def gsp_error(rng: Generator, pci: str) -> str:
    return xid(
        rng, pci, 120, f"GSP task exception: 0x{rng.integers(1, 16)} (cause:0x5) @ pc:0x1a5c2a4", names_process=False
    )


def nvlink_fatal(rng: Generator, pci: str, link: int) -> str:
    style = rng.random()
    if style < 0.4:
        return xid(rng, pci, 74, f"NVLink: fatal error detected on link {link}", names_process=False)
    words = ", ".join(f"0x{int(rng.choice([0, 0, 0, 0x10000, 0x400, 0x8])):x}" for _ in range(7))
    return xid(rng, pci, 74, f"NVLink: fatal error detected on link {link}({words})", names_process=False)


def recovery(pci: str, action: int) -> str:
    words = {1: "GPU Reset Required", 2: "Node Reboot Required", 3: "Drain P2P", 4: "Drain and Reset"}[action]
    return f"NVRM: Xid (PCI:{pci}): 154, GPU recovery action changed from 0x0 (None) to {action:#x} ({words})"


def switch_error(switch: int, code: int, link: int) -> str:
    what = {
        20034: "LTSSM Fault Up",
        19084: "AN1 Heartbeat Timeout Error",
        14017: "TS ATO timeout",
        24007: "sourcetrack timeout error",
        12028: "egress non-posted PRIV error (First)",
        22013: "Minion Link DLREQ interrupt",
        20009: "RX Short Error Rate",
    }[code]
    severity = "Non-fatal" if code in (22013, 12028, 20009) else "Fatal"
    return f"nvidia-nvswitch{switch}: SXid (PCI:0000:{5 + switch:02x}:00.0): {code}, {severity}, Link {link} {what}"


def watchdog_timeout(rng: Generator, rank: int, at: datetime, work: int, seconds: float) -> str:
    operation = ("ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "BROADCAST")[int(rng.integers(4))]
    count = int(rng.integers(1, 5)) * 116_529_792
    return (
        f"[rank{rank}]:[E{at.month}{at:%d %H:%M:%S}.{rng.integers(10**9):09d} ProcessGroupNCCL.cpp:607] [Rank {rank}] "
        f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work}, OpType={operation}, NumelIn={count}, "
        f"NumelOut={count}, Timeout(ms)={seconds * 1000:.0f}) ran for {seconds * 1000 + rng.integers(5, 90):.0f} "
        "milliseconds before timing out."
    )


def watchdog_exception(rng: Generator, rank: int, at: datetime, work: int) -> str:
    return (
        f"[rank{rank}]:[E{at.month}{at:%d %H:%M:%S}.{rng.integers(10**9):09d} ProcessGroupNCCL.cpp:1664] [PG 0 Rank "
        f"{rank}] Exception (either an error or timeout) detected by watchdog at work: {work}, last enqueued NCCL "
        f"work: {work + 2}, last completed NCCL work: {work - 1}."
    )


def connection_reset(rng: Generator, node: str, gpu: int, at: datetime, peer: int) -> str:
    address = f"10.44.{peer // 256}.{peer % 256}"
    if rng.random() < 0.5:
        return (
            f"[{at:%Y-%m-%d %H:%M:%S}] {node} [{gpu}] misc/socket.cc:46 NCCL WARN socketProgressOpt: Call to recv from "
            f"{address}<{rng.integers(30000, 60000)}> failed : Connection reset by peer"
        )
    pid = int(rng.integers(9000, 99000))
    return (
        f"{node}:{pid}:{pid + 87} [{gpu}] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to "
        f"{address}<{rng.integers(30000, 60000)}> failed : Connection refused"
    )


def completion_error(rng: Generator, node: str, gpu: int, peer: int, status: int) -> str:
    pid = int(rng.integers(9000, 99000))
    return (
        f"{node}:{pid}:{pid + 87} [{gpu}] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
        f"10.44.{peer // 256}.{peer % 256}<{rng.integers(30000, 60000)}> with status={status} opcode=129 len=65536 "
        f"vendor err {129 if status == 12 else 244} (Recv)"
    )


def port_error(rng: Generator, node: str, gpu: int, port: int) -> str:
    pid = int(rng.integers(9000, 99000))
    if rng.random() < 0.5:
        return f"{node}:{pid}:{pid + 61} [{gpu}] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error"
    return (
        f"{node}:{pid}:{pid + 61} [{gpu}] transport/net_ib.cc:253 NCCL WARN NET/IB : mlx5_{port}:1 Got non-fatal async "
        "event: port error(10)"
    )


def step_cancelled(job: str, node: str, at: datetime, why: str) -> str:
    """Return slurmstepd's last line; `why` is empty or such as ` DUE TO TIME LIMIT`."""
    return f"slurmstepd: error: *** STEP {job}.0 ON {node} CANCELLED AT {at:%Y-%m-%dT%H:%M:%S}{why} ***"


def task_exit(node: str, rank: int, code: int) -> str:
    return f"srun: error: {node}: task {rank}: Exited with exit code {code}"


def task_killed(node: str, rank: int, how: str) -> str:
    return f"srun: error: {node}: task {rank}: {how}"


_PROGRAM_ERRORS = (
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/shards/{n:05d}.tar'",
    "TypeError: forward() got an unexpected keyword argument 'attn_bias'",
    "KeyError: 'input_ids'",
    "ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, {n}])",
    "AssertionError: global batch size {n} is not divisible by micro batch size",
    "ImportError: cannot import name 'flash_attn_func' from 'flash_attn'",
    "RuntimeError: The size of tensor a ({n}) must match the size of tensor b (4096) at non-singleton dimension 2",
    "ZeroDivisionError: division by zero",
)


def program_error(rng: Generator, which: int) -> tuple[str, str]:
    """Return the first and the last line of a traceback; the same `which` gives the same error."""
    return (
        "Traceback (most recent call last):",
        _PROGRAM_ERRORS[which % len(_PROGRAM_ERRORS)].format(n=int(rng.integers(2, 9999))),
    )


def out_of_memory(rng: Generator, gpu: int) -> str:
    return (
        f"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate {rng.uniform(0.2, 9):.2f} GiB. GPU {gpu} "
        f"has a total capacity of 79.11 GiB of which {rng.integers(5, 900)}.00 MiB is free."
    )


_BENIGN = (
    "perf: interrupt took too long ({a} > {b}), lowering kernel.perf_event_max_sample_rate to {c}",
    "nfs: server storage-1 OK",
    "mlx5_core 0000:{bus}:00.0 ens{bus}np0: Link up",
    "EXT4-fs (nvme0n1p2): re-mounted. Quota mode: none.",
    "TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending cookies.",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024",
    "nvidia-peermem: module verification failed: signature and/or required key missing - tainting kernel",
    "mlx5_core 0000:{bus}:00.0: Port module event: module 0, Cable plugged",
    "Lustre: lfs01-OST00{bus}-osc-ffff: Connection restored to 10.20.0.{d}@o2ib (at 10.20.0.{d}@o2ib)",
    "systemd-journald[{a}]: /var/log/journal/system.journal: Journal header limits reached or header out-of-date, "
    "rotating.",
    "nvidia-nvswitch{e}: SXid (PCI:0000:0{f}:00.0): 22013, Non-fatal, Link {d} Minion Link DLREQ interrupt",
    'audit: type=1400 audit({c}.{a}:{d}): apparmor="STATUS" operation="profile_replace"',
    "docker0: port {e}(veth{c:x}) entered blocking state",
)


def benign(rng: Generator) -> str:
    """Return one of the lines that healthy nodes write all day: none of it asks for anything."""
    line = _BENIGN[int(rng.integers(len(_BENIGN)))]
    return line.format(
        a=int(rng.integers(2500, 9000)), b=int(rng.integers(2000, 2500)), c=int(rng.integers(20000, 90000)),
        bus=("18", "2a", "3a", "5d", "9a")[int(rng.integers(5))], d=int(rng.integers(1, 60)),
        e=int(rng.integers(4)), f=int(rng.integers(5, 9)),
    )  # fmt: skip


def corrected_memory(rng: Generator, count: int = 1, dimm: int = 0) -> str:
    socket = dimm // 8
    return (
        f"EDAC MC{dimm % 4}: {count} CE memory read error on CPU_SrcID#{socket}_MC#{dimm % 4}_Chan#{dimm % 2}_DIMM#0 "
        f"(channel:{dimm % 2} slot:0 page:{rng.integers(2**24):#x} offset:{rng.integers(64) * 64:#x} grain:32 "
        f"syndrome:0x0 -  err_code:0x0101:0x0090 SystemAddress:{rng.integers(2**40):#x})"
    )


def uncorrected_memory(rng: Generator, dimm: int) -> tuple[str, ...]:
    page = int(rng.integers(2**24))
    return (
        f"mce: [Hardware Error]: Machine check events logged, bank {rng.integers(7, 20)}",
        f"EDAC MC{dimm % 4}: 1 UE memory read error on CPU_SrcID#{dimm // 8}_MC#{dimm % 4}_Chan#{dimm % 2}_DIMM#0 "
        f"(channel:{dimm % 2} slot:0 page:{page:#x} offset:0x0 grain:32 syndrome:0x0 -  err_code:0x00a0:0x0090)",
        f"Memory failure: {page:#x}: Sending SIGBUS to {process(rng)}:{rng.integers(2000, 900000)} due to hardware "
        "memory corruption",
    )


def corrected_pcie(rng: Generator, pci: str) -> str:
    if rng.random() < 0.5:
        return f"pcieport 0000:{pci[5:7]}:01.0: AER: Corrected error received: {pci}.0"
    return f"nvidia {pci}.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"


def uncorrected_pcie(pci: str) -> str:
    return f"pcieport {pci[:5]}{pci[5:7]}:01.0: AER: Uncorrected (Fatal) error received: {pci}.0"


_NIC_BUSES = (0x18, 0x2A, 0x3A, 0x4D, 0x5D, 0x9A, 0xBA, 0xDA)


def nic_address(port: int) -> str:
    """Return the PCI address of the NIC of a port, with its function."""
    return f"0000:{_NIC_BUSES[port]:02x}:00.0"


def link_change(rng: Generator, port: int, *, is_up: bool) -> str:
    """Return what mlx5 says of a port; drivers differ in words and in whether they name the interface."""
    style = rng.random()
    if style < 0.4:
        return f"mlx5_core {nic_address(port)}: Port: 1 Link {'ACTIVE' if is_up else 'DOWN'}"
    interface = f"ib{port}" if style < 0.7 else f"ens{100 + port}np0"
    return f"mlx5_core {nic_address(port)} {interface}: Link {'up' if is_up else 'down'}"


def cpu_throttled(rng: Generator) -> str:
    return (
        f"CPU{rng.integers(112)}: Package temperature above threshold, cpu clock throttled (total events = "
        f"{rng.integers(1, 40)})"
    )


_DIALECTS = ("rfc3339", "syslog", "dated_dmesg", "rfc5424", "plain")
_DIALECT_SHARES = (0.6, 0.2, 0.07, 0.08, 0.05)


@dataclass(kw_only=True)
class Scribe:
    """All lines of one day."""

    rng: Generator
    fleet: Fleet
    began_at: datetime
    seconds: float
    written: list[tuple[float, str | None, datetime, str, str | None]] = field(default_factory=list)
    """(when it arrived, node, when it says it was written, text, job)."""
    dialects: list[str] = field(init=False)
    boots: list[float] = field(init=False)
    silent: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    """Node -> intervals in which nothing of it arrives."""

    def __post_init__(self) -> None:
        drawn = self.rng.choice(len(_DIALECTS), size=self.fleet.node_count, p=_DIALECT_SHARES)
        self.dialects = [_DIALECTS[index] for index in drawn]
        self.boots = [-float(before) for before in self.fleet.booted_before_seconds]

    def at(self, seconds: float) -> datetime:
        return self.began_at + timedelta(seconds=seconds)

    def kernel(self, node: int, at: float, message: str, *, tag: str = "kernel") -> None:
        """Write one line of a node's kernel (or of a daemon that writes to its log)."""
        if not self._arrives(node, at):
            return
        name = self.fleet.names[node]
        said = self.at(at + float(self.fleet.skew_seconds[node]))
        up = max(at - self.boots[node], 0.0)
        clock = f"[{up:12.6f}] " if tag == "kernel" else ""
        dialect = self.dialects[node]
        if dialect == "syslog":
            text = f"{said:%b} {said.day:2d} {said:%H:%M:%S} {name} {tag}: {clock}{message}"
        elif dialect == "dated_dmesg" and tag == "kernel":
            text = f"[{said:%a %b} {said.day:2d} {said:%H:%M:%S %Y}] {message}"
        elif dialect == "rfc5424" and tag == "kernel":
            text = f"<4>1 {said.isoformat(timespec='microseconds')} {name} kernel - - - {clock}{message}"
        elif dialect == "plain" and tag == "kernel":
            text = f"{clock}{message}"
        else:
            text = f"{said.isoformat(timespec='microseconds')} {name} {tag}: {clock}{message}"
        self.written.append((at, name, said, text, None))

    def kernel_event(self, node: int, at: float, message: str, *, lost: float = 0.0) -> bool:
        """Write a line that matters as the field has it: sometimes lost, sometimes late, sometimes doubled.

        Return whether it was written at least once. Lines of one event are up to seconds apart from what the sensors
        show; one in fifteen comes with a delay of up to 40 s, one in eight is repeated within a minute.
        """
        if self.rng.random() < lost:
            return False
        delay = float(self.rng.uniform(5, 40)) if self.rng.random() < 0.07 else float(self.rng.exponential(0.6))
        self.kernel(node, at + delay, message)
        if self.rng.random() < 0.12:
            for _ in range(int(self.rng.integers(1, 4))):
                self.kernel(node, at + delay + float(self.rng.uniform(0.01, 50)), message)
        return True

    def job(self, attempt: Attempt, at: float, text: str, *, rank: int = 0) -> None:
        """Write one line of a job, from the node of `rank`."""
        node = attempt.nodes[min(rank // 8, len(attempt.nodes) - 1)]
        if not self._arrives(node, at):
            return
        said = self.at(at + float(self.fleet.skew_seconds[node]))
        self.written.append((at, self.fleet.names[node], said, text, attempt.job))

    def lines(self) -> tuple[tuple[LogLine, ...], tuple[datetime, ...]]:
        """Return everything that arrived within the day, by time of arrival, and when each line arrived."""
        # What was written ahead of time and falls into a silence never arrived.
        dark: dict[str, list[tuple[float, float]]] = {
            self.fleet.names[node]: stretches for node, stretches in self.silent.items()
        }
        ordered = sorted(
            (
                each
                for each in self.written
                if not any(began <= each[0] < ended for began, ended in dark.get(each[1] or "", ()))
            ),
            key=lambda each: each[0],
        )
        within = [each for each in ordered if 0 <= each[0] < self.seconds]
        return tuple(
            LogLine(node=node, written_at=said, position=f"{position:08d}", text=text, job=job)
            for position, (_, node, said, text, job) in enumerate(within)
        ), tuple(self.at(each[0]) for each in within)

    def _arrives(self, node: int, at: float) -> bool:
        return not any(began <= at < ended for began, ended in self.silent.get(node, ()))
