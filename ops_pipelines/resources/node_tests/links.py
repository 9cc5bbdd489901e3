"""The ways out of a GPU and out of the node: nccl-tests over NVLink, perftest between the node's own NICs."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ops_pipelines.core.node_tests import GPU_COUNT, Measurement, TestRun
from ops_pipelines.resources.node_tests.results import (
    Bench,
    absent,
    failed,
    is_not_startable,
    last_words,
    not_run,
    passed,
    unanswered,
)

_NCCL, _NIC = "nccl_loopback", "nic_pairwise"
_PAYLOAD = "8G"
"""# Assumption: large enough that the links decide; H100 reach 479.7 GB/s with it (Voltage Park)."""
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*([0-9]+(?:\.[0-9]+)?)", re.MULTILINE)
_BOUNDS = re.compile(r"^# Out of bounds values\s*:\s*([0-9]+)", re.MULTILINE)
_BEGUN = "# nThread"
"""nccl-tests prints its settings before it touches a GPU."""


def nccl_loopback(bench: Bench, limit_seconds: float) -> TestRun:
    """Sum 8 GB over all GPUs of the node, and check the sums."""
    count = bench.nvml.gpu_count
    if count < 2:
        judge = absent if count == 1 else not_run
        return judge(_NCCL, f"NVML tells of {count} GPU(s); an all-reduce needs two")
    argv = ("all_reduce_perf", "-b", _PAYLOAD, "-e", _PAYLOAD, "-g", str(count))
    answer = bench.run(argv, limit_seconds=limit_seconds)
    without = unanswered(_NCCL, argv[0], answer, limit_seconds=limit_seconds)
    if without is not None:
        return without
    used = Measurement(name=GPU_COUNT, value=float(count), unit="count")
    bounds = _BOUNDS.search(answer.stdout)
    if bounds is not None and int(bounds[1]) > 0:
        return failed(_NCCL, f"{bounds[1]} sums are wrong: out of bounds", (used,))
    if answer.returncode != 0:
        if is_not_startable(answer) or _BEGUN not in answer.stdout:
            return not_run(_NCCL, f"{argv[0]} ended with {answer.returncode} before it began: {last_words(answer)}")
        return failed(_NCCL, f"{argv[0]} ended with {answer.returncode}: {last_words(answer)}", (used,))
    average = _AVERAGE.search(answer.stdout)
    if average is None or bounds is None:
        return not_run(_NCCL, f"{argv[0]} told no bus bandwidth, or did not check its sums: {last_words(answer)}")
    busbw = Measurement(name="busbw", value=float(average[1]), unit="GB/s")
    return passed(_NCCL, f"{count} GPUs, {_PAYLOAD}: {average[1]} GB/s, every sum right", (busbw, used))


class PortState(Enum):
    """Whether a port can carry anything."""

    ACTIVE = "active"
    NOT_ACTIVE = "not_active"
    """Without a cable, a link or a subnet manager; or it does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One RDMA device, by its first port."""

    device: str
    gbit_per_second: float
    """What the link was trained to; 0: it does not tell."""
    state: PortState = PortState.ACTIVE
    kind: str = ""
    """Type of the adapter, as the driver names it (`MT4129`); empty: not told, and then taken for one kind."""


_SLOWEST_GBIT = 100.0
"""# Assumption: NICs of less carry management and storage, not the traffic of jobs."""
_FIRST_PORT = 18515
_WRITE = ("--report_gbits", "-F", "-s", "1048576", "-n", "20000", "-q", "4")
"""20 GB in pieces of 1 MiB: half a second at 400 Gb/s."""
_ROW = re.compile(r"^\s*[0-9]+\s+[0-9]+\s+[0-9.]+\s+([0-9]+(?:\.[0-9]+)?)\s", re.MULTILINE)
"""#bytes #iterations BW peak BW average ..."""
_DATA_FAULT = re.compile(r"Completion with error|syndrom|Failed status", re.IGNORECASE)


def nic_pairwise(bench: Bench, limit_seconds: float) -> TestRun:
    """Write from one of the node's NICs to the next of the same rate, through their switch.

    Judged is the share of the port's rate, so that one floor fits all NICs; a port that was trained to less than its
    neighbours of the same kind has failed. A port that is not active is named, never passed over. How many were tested
    is told, so that one which is gone shows against the node's past.
    """
    nics = tuple(read_nics(bench.sys))
    fast = tuple(nic for nic in nics if nic.state is PortState.ACTIVE and nic.gbit_per_second >= _SLOWEST_GBIT)
    count = Measurement(name="nic_count", value=float(len(fast)), unit="count")
    slowed = [
        f"{nic.device} is at {nic.gbit_per_second:g} Gb/s, its neighbours at {best:g}"
        for nic in nics
        if nic.state is PortState.ACTIVE and nic.gbit_per_second < (best := _best_of_kind(nic.kind, fast))
    ]
    if slowed:
        return failed(_NIC, "; ".join(slowed), (count,))
    dead = [nic.device for nic in nics if nic.state is PortState.NOT_ACTIVE]
    if dead:
        return not_run(_NIC, f"not active: {', '.join(dead)}; mend them, or switch off ports without a use", (count,))
    pairs = tuple(pair_up(fast))
    if not pairs:
        said = f"two RDMA ports of one rate of {_SLOWEST_GBIT:.0f} Gb/s and more are wanted in /sys/class/infiniband"
        return absent(_NIC, f"{said}, and {len(fast)} are active", (count,))
    return _measure(bench, pairs, fast, count, limit_seconds=limit_seconds)


def _best_of_kind(kind: str, fast: Sequence[Nic]) -> float:
    return max((nic.gbit_per_second for nic in fast if nic.kind == kind), default=0.0)


def _measure(
    bench: Bench, pairs: Sequence[tuple[Nic, Nic]], fast: Sequence[Nic], count: Measurement, *, limit_seconds: float
) -> TestRun:
    ratios: list[float] = []
    told: list[str] = []
    for number, (first, second) in enumerate(pairs):
        port = ("-p", str(_FIRST_PORT + number))
        answer = bench.run_pair(
            ("ib_write_bw", "-d", first.device, *port, *_WRITE),
            ("ib_write_bw", "-d", second.device, *port, *_WRITE, "127.0.0.1"),
            limit_seconds=limit_seconds / len(pairs),
        )
        without = unanswered(_NIC, "ib_write_bw", answer, limit_seconds=limit_seconds / len(pairs))
        if without is not None:
            return without
        between = f"{first.device} and {second.device}"
        if answer.returncode != 0:
            said = f"between {between}: {last_words(answer)}"
            return failed(_NIC, said) if _DATA_FAULT.search(answer.stdout + answer.stderr) else not_run(_NIC, said)
        row = _ROW.search(answer.stdout)
        if row is None:
            return not_run(_NIC, f"ib_write_bw told no bandwidth between {between}: {last_words(answer)}")
        ratios.append(float(row[1]) / first.gbit_per_second)
        told.append(f"{between} {row[1]} of {first.gbit_per_second:.0f} Gb/s")
    measured = {nic.device for pair in pairs for nic in pair}
    told += [
        f"{nic.device} has no other of its rate, and was not measured" for nic in fast if nic.device not in measured
    ]
    return passed(_NIC, "; ".join(told), (Measurement(name="rate_ratio", value=min(ratios), unit="ratio"), count))


def read_nics(sys: Path) -> Iterator[Nic]:
    """Yield the RDMA devices by name, as their first port is; leave out virtual functions and ports switched off."""
    for device in sorted((sys / "class/infiniband").glob("*")):
        if (device / "device/physfn").exists():
            continue
        port = device / "ports/1"
        rate = re.match(r"([0-9]+(?:\.[0-9]+)?) Gb/sec", _read(port / "rate"))
        is_active = "ACTIVE" in _read(port / "state") and rate is not None
        if not is_active and "Disabled" in _read(port / "phys_state"):
            continue
        yield Nic(
            device=device.name,
            gbit_per_second=float(rate[1]) if rate is not None else 0.0,
            state=PortState.ACTIVE if is_active else PortState.NOT_ACTIVE,
            kind=_read(device / "hca_type").strip(),
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def pair_up(nics: Sequence[Nic]) -> Iterator[tuple[Nic, Nic]]:
    """Yield pairs of equal rate; one that is left over is paired with the first of its rate, and never with itself."""
    for rate in sorted({nic.gbit_per_second for nic in nics}):
        alike = [nic for nic in nics if nic.gbit_per_second == rate]
        for at in range(0, len(alike) if len(alike) > 1 else 0, 2):
            yield alike[at], alike[at + 1] if at + 1 < len(alike) else alike[0]
