"""The machine around the GPUs: versions that must match, modules, disks, mounts, time; memory errors, units, Xids.

Each part is a fault, a proof, or could not be looked at. A test of several parts fails if one is a fault, and passes
only if every part was looked at or is not there to be looked at: what nobody looked at is never well.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ops_pipelines.core.node_tests import Measurement, TestRun
from ops_pipelines.resources.commands import ToolEnd
from ops_pipelines.resources.node.tool_tests import Bench, absent, failed, not_run, passed

_MIN_FREE_RATIO = 0.05
"""# Assumption: below a twentieth, logs and scratch files of the next job fill the rest."""
_LOOKED_AT = ("/", "/tmp", "/var")  # noqa: S108 -- looked at, nothing is written there
_LOCAL_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs"})
"""File systems that the kernel turns read-only when their disk fails; an image is read-only by nature."""
_NEEDED_UNITS = frozenset(
    {"slurmd.service", "munge.service", "nvidia-persistenced.service", "nvidia-fabricmanager.service",
     "nvidia-dcgm.service", "openibd.service", "systemd-timesyncd.service", "chronyd.service", "chrony.service"}
)  # fmt: skip
"""Units without which a node does not do its work; of others that failed the check reports, and does not judge."""
_XID = re.compile(r"^\[\s*([0-9]+\.[0-9]+)\].*?NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): ([0-9]+)")
_TIMED = re.compile(r"^\[\s*[0-9]+\.[0-9]+\]")
_KERNEL_MODULE = re.compile(r"Kernel Module.*?\s([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s")
_MANAGER_VERSION = re.compile(r"([0-9]+\.[0-9]+(?:\.[0-9]+)?)")


class Look(Enum):
    """What came of looking at one part."""

    WELL = "well"
    FAULT = "fault"
    NOT_LOOKED_AT = "not_looked_at"
    NO_TOOL = "no_tool"
    """What would tell of it is not on this node."""
    NOT_THERE = "not_there"
    """The node has no such part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the machine, and what was found."""

    look: Look
    said: str
    measurements: tuple[Measurement, ...] = ()


LookAt = Callable[[Bench, float], Part]


def software(bench: Bench, limit_seconds: float) -> TestRun:
    """Look at versions, kernel modules, disks, mounts and time."""
    return _together("software", _SOFTWARE_PARTS, bench, limit_seconds)


def host(bench: Bench, limit_seconds: float) -> TestRun:
    """Look at host memory, units and the kernel log; run last, as Xids during the tests before it are faults."""
    return _together("host", _HOST_PARTS, bench, limit_seconds)


def _together(test: str, parts: Mapping[str, LookAt], bench: Bench, limit_seconds: float) -> TestRun:
    seen = {name: look_at(bench, limit_seconds) for name, look_at in parts.items()}
    numbers = tuple(number for part in seen.values() for number in part.measurements)
    said = {
        look: "; ".join(f"{name}: {part.said}" for name, part in seen.items() if part.look is look) for look in Look
    }
    if said[Look.FAULT]:
        return failed(test, said[Look.FAULT], numbers)
    unseen = "; ".join(filter(None, (said[Look.NOT_LOOKED_AT], said[Look.NO_TOOL])))
    if unseen:
        well = f" (well: {said[Look.WELL]})" if said[Look.WELL] else ""
        judge = not_run if said[Look.NOT_LOOKED_AT] else absent
        return judge(test, f"not looked at: {unseen}{well}", numbers)
    return passed(test, said[Look.WELL], numbers)


def _driver(bench: Bench, limit_seconds: float) -> Part:
    try:
        text = (bench.proc / "driver/nvidia/version").read_text()
    except OSError:
        return Part(look=Look.NOT_LOOKED_AT, said="the NVIDIA driver is not loaded")
    module = _KERNEL_MODULE.search(text)
    library = bench.nvml.library_version
    if module is None or not library:
        return Part(look=Look.NOT_LOOKED_AT, said="kernel module and NVML library do not both tell their version")
    if module[1] != library:
        return Part(
            look=Look.FAULT, said=f"the kernel module is {module[1]}, the library {library}: reboot or reinstall"
        )
    return Part(look=Look.WELL, said=module[1])


def _fabric_manager(bench: Bench, limit_seconds: float) -> Part:
    if not any((bench.proc / "driver/nvidia-nvswitch/devices").glob("*")):
        return Part(look=Look.NOT_THERE, said="no NVSwitch")
    answer = bench.run(("nv-fabricmanager", "--version"), limit_seconds=limit_seconds)
    version = _MANAGER_VERSION.search(answer.stdout)
    if answer.end is ToolEnd.ABSENT:
        return Part(look=Look.FAULT, said="the node has NVSwitches and no fabric manager")
    if answer.end is not ToolEnd.ENDED or version is None or not bench.nvml.library_version:
        return Part(look=Look.NOT_LOOKED_AT, said="its version, or NVML's, is not reported")
    if version[1] != bench.nvml.library_version:
        return Part(
            look=Look.FAULT, said=f"it is {version[1]}, the driver {bench.nvml.library_version}; they must be equal"
        )
    return Part(look=Look.WELL, said=version[1])


def _persistence(bench: Bench, limit_seconds: float) -> Part:
    modes = bench.nvml.is_persistent
    if not modes:
        return Part(look=Look.NOT_LOOKED_AT, said="NVML does not tell the persistence mode")
    if not all(modes):
        return Part(look=Look.FAULT, said=f"persistence mode is off on {modes.count(False)} of {len(modes)} GPUs")
    return Part(look=Look.WELL, said="on")


def _modules(bench: Bench, limit_seconds: float) -> Part:
    try:
        loaded = {line.split(maxsplit=1)[0] for line in (bench.proc / "modules").read_text().splitlines() if line}
    except OSError:
        return Part(look=Look.NOT_LOOKED_AT, said="/proc/modules cannot be read")
    missing = sorted({"nvidia", "nvidia_uvm"} - loaded)
    if "nvidia" in missing:
        return Part(look=Look.NOT_LOOKED_AT, said="the NVIDIA driver is not loaded")
    if missing:
        return Part(look=Look.FAULT, said=f"{', '.join(missing)} is not loaded: CUDA cannot start")
    has_nics = any((bench.sys / "class/infiniband").glob("*"))
    peer = "" if not has_nics else ", with nvidia_peermem" if "nvidia_peermem" in loaded else ", without nvidia_peermem"
    return Part(look=Look.WELL, said=f"nvidia, nvidia_uvm{peer}")


def _space(bench: Bench, limit_seconds: float) -> Part:
    root = bench.proc.parent
    ratios = {}
    for name in _LOOKED_AT:
        try:
            room = os.statvfs(root / name.lstrip("/"))
        except OSError:
            continue
        if room.f_blocks:
            ratios[name] = room.f_bavail / room.f_blocks
    if not ratios:
        return Part(look=Look.NOT_LOOKED_AT, said="no file system reports its space")
    numbers = (Measurement(name="free_ratio", value=min(ratios.values()), unit="ratio"),)
    full = [f"{name} has {ratio:.0%} left" for name, ratio in ratios.items() if ratio < _MIN_FREE_RATIO]
    if full:
        return Part(look=Look.FAULT, said=", ".join(full), measurements=numbers)
    return Part(look=Look.WELL, said=f"{min(ratios.values()):.0%} left", measurements=numbers)


def _mounts(bench: Bench, limit_seconds: float) -> Part:
    try:
        rows = [line.split() for line in (bench.proc / "self/mounts").read_text().splitlines()]
    except OSError:
        return Part(look=Look.NOT_LOOKED_AT, said="/proc/self/mounts cannot be read")
    local = [row for row in rows if len(row) > 3 and row[2] in _LOCAL_FILE_SYSTEMS and row[0].startswith("/dev/")]
    writable = {row[0] for row in local if "ro" not in row[3].split(",")}
    turned = sorted({row[1] for row in local if "ro" in row[3].split(",") and row[0] not in writable})
    if turned:
        return Part(look=Look.FAULT, said=f"{', '.join(turned)} can only be read")
    return Part(look=Look.WELL, said="none is read-only")


def _time(bench: Bench, limit_seconds: float) -> Part:
    answer = bench.run(("timedatectl", "show", "-p", "NTPSynchronized", "--value"), limit_seconds=limit_seconds)
    word = answer.stdout.strip()
    if answer.end is ToolEnd.ABSENT:
        return Part(look=Look.NO_TOOL, said="timedatectl is not installed")
    if answer.end is not ToolEnd.ENDED or answer.returncode != 0 or word not in {"yes", "no"}:
        return Part(look=Look.NOT_LOOKED_AT, said="timedatectl does not tell whether the clock is synchronised")
    if word == "no":
        return Part(look=Look.FAULT, said="the clock is not synchronised")
    return Part(look=Look.WELL, said="synchronised")


def _memory(bench: Bench, limit_seconds: float) -> Part:
    counts: dict[str, int] = {"ue_count": 0, "ce_count": 0}
    controllers = sorted((bench.sys / "devices/system/edac/mc").glob("mc[0-9]*"))
    if not controllers:
        return Part(look=Look.NO_TOOL, said="the kernel counts no memory errors (no EDAC driver)")
    try:
        for controller in controllers:
            for name in counts:
                counts[name] += int((controller / name).read_text())
    except (OSError, ValueError) as problem:
        return Part(look=Look.NOT_LOOKED_AT, said=f"the counts of memory errors cannot be read ({problem})")
    numbers = (Measurement(name="host_memory_corrected", value=float(counts["ce_count"]), unit="count"),)
    if counts["ue_count"]:
        said = f"{counts['ue_count']} uncorrectable errors of host memory since the boot"
        return Part(look=Look.FAULT, said=said, measurements=numbers)
    return Part(look=Look.WELL, said=f"{counts['ce_count']} corrected errors", measurements=numbers)


def _units(bench: Bench, limit_seconds: float) -> Part:
    answer = bench.run(
        ("systemctl", "list-units", "--state=failed", "--plain", "--no-legend"), limit_seconds=limit_seconds
    )
    if answer.end is ToolEnd.ABSENT:
        return Part(look=Look.NO_TOOL, said="systemctl is not installed")
    if answer.end is not ToolEnd.ENDED or answer.returncode != 0:
        return Part(look=Look.NOT_LOOKED_AT, said="systemctl does not answer")
    units = {line.split(maxsplit=1)[0] for line in answer.stdout.splitlines() if line.strip()}
    broken = sorted(units & _NEEDED_UNITS)
    if broken:
        return Part(look=Look.FAULT, said=f"{', '.join(broken)} failed")
    return Part(look=Look.WELL, said=f"failed and not needed: {', '.join(sorted(units))}" if units else "none failed")


def _kernel_log(bench: Bench, limit_seconds: float) -> Part:
    answer = bench.run(("dmesg", "--kernel"), limit_seconds=limit_seconds)
    if answer.end is ToolEnd.ABSENT:
        return Part(look=Look.NO_TOOL, said="dmesg is not installed")
    if answer.end is not ToolEnd.ENDED or answer.returncode != 0:
        return Part(look=Look.NOT_LOOKED_AT, said="the kernel log cannot be read; node-check wants to be root")
    if not any(_TIMED.match(line) for line in answer.stdout.splitlines()):
        said = "the kernel log has no times: whether an Xid came during the tests cannot be seen (printk.time is off)"
        return Part(look=Look.NOT_LOOKED_AT, said=said)
    found = [match for line in answer.stdout.splitlines() if (match := _XID.match(line))]
    new = [f"Xid {match[3]} of {match[2]}" for match in found if float(match[1]) >= bench.uptime_seconds]
    if new:
        return Part(look=Look.FAULT, said=f"during the tests came {', '.join(dict.fromkeys(new))}")
    before = sorted({int(match[3]) for match in found})
    earlier = f"; before the tests, since the boot: Xid {', '.join(map(str, before))}" if before else ""
    return Part(look=Look.WELL, said=f"no Xid during the tests{earlier}")


_SOFTWARE_PARTS: Mapping[str, LookAt] = {
    "driver": _driver,
    "fabric manager": _fabric_manager,
    "persistence": _persistence,
    "modules": _modules,
    "space": _space,
    "mounts": _mounts,
    "time": _time,
}
_HOST_PARTS: Mapping[str, LookAt] = {"memory": _memory, "units": _units, "kernel log": _kernel_log}


def read_uptime(proc: Path) -> float:
    """Return the seconds since the boot, as the kernel log counts them; infinity if they cannot be read."""
    try:
        return float((proc / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return float("inf")
