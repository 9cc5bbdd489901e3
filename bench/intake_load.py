"""The load of `bench.intake`: kernel log lines of a cluster in which much breaks at once, written at a steady rate.

One cause, then what every rank of the job says of it, many times over; other causes in between, and lines of no
interest. Each line carries its number as the kernel's seconds since boot, so that it can be found again as evidence.
"""

import os
import random
import re
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

NODE_COUNT, GPUS_PER_NODE = 256, 8
NODES = tuple(f"gpu{number:03d}" for number in range(NODE_COUNT))
_JOB_SIZES = (*(32,) * 4, *(8,) * 8, *(1,) * 64)
JOBS = tuple(
    NODES[sum(_JOB_SIZES[:number]) : sum(_JOB_SIZES[:number]) + size] for number, size in enumerate(_JOB_SIZES)
)
"""The nodes of each job; every node runs one."""
_STEADY_CULPRITS = 6
"""Causes of the steady part lie on this many nodes: below what counts as one mass event."""
_ORDINARY_SHARE = 0.2
_STEP_SECONDS = 0.01
_NUMBER = re.compile(r"kernel: \[\s*(\d+)\.000000\]")
_ORDINARY = (
    "perf: interrupt took too long (2504 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
    "nfs: server storage-1 OK",
    "NVRM: GPU at PCI:0000:1b:00: GPU-b30686fb-50e5-b296-a563-b7746cd0b24a",
    "nvidia-nvswitch2: SXid (PCI:0000:06:00.0): 20034, Data {0x00000001, 0x00000000, 0x00000000, 0x00000000}",
    "TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending cookies.",
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """An interval of the load."""

    name: str
    per_second: int
    seconds: float

    @property
    def count(self) -> int:
        return round(self.per_second * self.seconds)


def number_of(text: str) -> int:
    """Return the number of the event that a line of evidence reports."""
    found = _NUMBER.search(text)
    if found is None:
        raise ValueError(f"no line of this load: {text[:80]!r}")
    return int(found[1])


def write_load(directory: Path, parts: Sequence[Part], *, per_node: bool, seed: int, out: Path) -> None:
    """Append the lines of `parts` to files in `directory`; write to `out` the monotonic time each event was written.

    To be run in a process of its own. Events are numbered from 0 over all parts; a line of no interest has no number.
    """
    dice = random.Random(seed)
    files = {node: os.open(_path(directory, node, per_node=per_node), os.O_WRONLY | os.O_APPEND) for node in NODES}
    times = array("d")
    behind_seconds = 0.0
    for part in parts:
        storms = _storms(dice, NODES if part.per_second > 1_000 else dice.sample(NODES, _STEADY_CULPRITS))
        begun, written = time.monotonic(), 0
        while written < part.count:
            due = min(part.count, int((time.monotonic() - begun) * part.per_second) + 1)
            behind_seconds = max(behind_seconds, (due - written) / part.per_second)
            pending: dict[str, list[str]] = {}
            stamp = datetime.now(UTC).isoformat(timespec="microseconds")
            first = len(times)
            for number in range(first, first + due - written):
                node, message = next(storms)
                pending.setdefault(node, []).append(f"{stamp} {node} kernel: [{number:7d}.000000] {message}\n")
                if dice.random() < _ORDINARY_SHARE:
                    node = dice.choice(NODES)
                    pending.setdefault(node, []).append(f"{stamp} {node} kernel: [  1.5] {dice.choice(_ORDINARY)}\n")
            for node, lines in pending.items():
                os.write(files[node], "".join(lines).encode())
            times.extend([time.monotonic()] * (due - written))
            written = due
            time.sleep(_STEP_SECONDS)
    out.with_suffix(".new").write_bytes(times.tobytes())
    out.with_suffix(".new").rename(out)


def make_files(directory: Path, *, per_node: bool) -> str:
    """Make the empty log files, and return the pattern that matches them."""
    for node in NODES:
        Path(_path(directory, node, per_node=per_node)).touch()
    return str(directory / "*.log")


def read_times(path: Path) -> "array[float]":
    """Return what `write_load` wrote."""
    times = array("d")
    times.frombytes(path.read_bytes())
    return times


def _path(directory: Path, node: str, *, per_node: bool) -> str:
    return str(directory / (f"{node}.log" if per_node else "kernel.log"))


def _storms(dice: random.Random, culprits: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (node, message) for ever: a cause on one of `culprits`, then the damage on every rank of its job."""
    job_of = {node: job for job in JOBS for node in job}
    while True:
        culprit = dice.choice(list(culprits))
        gpu = _address(dice.randrange(GPUS_PER_NODE))
        pid = dice.randrange(1_000, 4_000_000)
        for message in _cause(dice, gpu, pid):
            yield culprit, message
        ranks = [(node, number) for node in job_of[culprit] for number in range(GPUS_PER_NODE)]
        for _ in range(2):
            dice.shuffle(ranks)
            for node, number in ranks:
                channel = dice.randrange(64)
                yield (
                    node,
                    f"NVRM: Xid (PCI:{_address(number)}): 45, pid={pid + number}, name=python3, Ch {channel:08x}",
                )


def _cause(dice: random.Random, gpu: str, pid: int) -> Sequence[str]:
    address = dice.randrange(1 << 32)
    switch, link = dice.randrange(4), dice.randrange(64)
    return dice.choices(
        (
            (
                f"NVRM: Xid (PCI:{gpu}): 31, pid={pid}, name=python3, Ch 00000007, intr 00000000. MMU Fault: ENGINE "
                f"GRAPHICS GPCCLIENT_T1_6 faulted @ 0x7f_{address:08x}. Fault is of type FAULT_PDE",
            ),
            (
                f"nvidia-nvswitch{switch}: SXid (PCI:0000:0{switch + 4}:00.0): 20034, Fatal, Link {link:02d} LTSSM",
                f"NVRM: Xid (PCI:{gpu}): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 1",
            ),
            (f"nvidia-nvswitch{switch}: SXid (PCI:0000:0{switch + 4}:00.0): 22013, Non-fatal, Link {link:02d} DLREQ",),
            (
                f"NVRM: Xid (PCI:{gpu}): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) "
                f"has been detected on GPU in the framebuffer at physAddr {address:#x} partition 1, subpartition 2.",
                f"NVRM: Xid (PCI:{gpu}): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row ({address:#018x}) "
                "marked for remapping, reset gpu to activate.",
                f"NVRM: Xid (PCI:{gpu}): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            ),
            (
                f"NVRM: Xid (PCI:{gpu}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                f"NVRM: Xid (PCI:{gpu}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Reboot Required)",
            ),
        ),
        weights=(4, 2, 2, 1, 1),
    )[0]


def _address(number: int) -> str:
    return f"0000:{0x1B + 0x10 * number:02x}:00"
