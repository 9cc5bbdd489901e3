"""The versions that run on the node that this process is on, and installations there.

Versions: of every component that the node can report, what runs, never what is installed: of a daemon a version counts
only while a process of that very file runs; a file replaced beneath its process proves nothing. All are asked at once,
each within its limit; who is late, absent or makes no sense is left out. Of firmware the BMC may report more
(`fleet.redfish_inventory`).

Installations: each artifact of an order fetched and checked, then its command run, in a process that outlives its
starter. What is run is what was hashed: an artifact is copied into a directory of our own while it is read, and the
command gets the copy. One command after another, each an argument list; the first that fails ends the order. Never a
shell. One run for each key, this module with the arguments `DIRECTORY KEY`. Its files are `fleet.installs`', and
KEY.log holds what the commands printed. Nothing is started while another installation runs here, or while a process
computes on the GPUs.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from threading import Thread
from typing import IO
from urllib.error import URLError
from urllib.request import urlopen

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.node_tests import parse_check_key
from ops_pipelines.core.release import Artifact, Component
from ops_pipelines.core.rollout import InstallReport, InstallState
from ops_pipelines.core.sources import SourceRefused
from ops_pipelines.resources.commands import TERM_GRACE_SECONDS, RunTool, ToolEnd, fill, run_tool, tool_environment
from ops_pipelines.resources.fleet.documents import (
    PlainChange,
    PlainOrder,
    order_from_json,
    order_to_dict,
    parse_version,
)
from ops_pipelines.resources.fleet.installs import InstallDirectory, refuse_words
from ops_pipelines.resources.node.nvml import read_nvml
from ops_pipelines.resources.node.tool_tests import NvmlReading

DEFAULT_LIMIT_SECONDS = 3.0
"""The fleet waits for 4.5 s, the way to the node included."""
_TOLD = re.compile(r"(?<![0-9.])[0-9]+(?:\.[0-9]+)+(?:[-+~][A-Za-z0-9.+~-]+)?")
_DAEMONS: Mapping[Component, tuple[tuple[str, ...], ...]] = {
    Component.FABRIC_MANAGER: (("nv-fabricmanager", "--version"),),
    Component.IMEX: (("nvidia-imex", "--version"),),
    Component.DCGM: (("nv-hostengine", "--version"),),
    Component.SLURM: (("slurmd", "-V"),),
    Component.KUBERNETES: (("kubelet", "--version"),),
    Component.CONTAINER_RUNTIME: (("containerd", "--version"), ("crio", "--version"), ("dockerd", "--version")),
}
"""Daemon -> what reports its version, best first; of containers, the one that the node runs."""
_DAEMONLESS = (("enroot", "version"),)
"""Container runtimes that run nothing of their own: what is installed is what the next job gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a node reports of itself; the defaults are this machine."""

    run: RunTool = run_tool
    proc: Path = field(default_factory=lambda: Path("/proc"))
    sys: Path = field(default_factory=lambda: Path("/sys"))
    root: Path = field(default_factory=lambda: Path("/"))
    search_path: str = field(default_factory=lambda: tool_environment(os.environ)["PATH"])
    kernel: str = field(default_factory=platform.release)


def read_versions(
    node: NodeName, machine: Machine | None = None, *, limit_seconds: float = DEFAULT_LIMIT_SECONDS
) -> Mapping[Component, str]:
    """Return what runs, within `limit_seconds`; what cannot be known by then is missing."""
    machine = machine if machine is not None else Machine()
    until = time.monotonic() + limit_seconds
    asked = [_ask(reader, node, machine, limit_seconds=limit_seconds * 0.8) for reader in _READERS]
    told: dict[Component, str] = {}
    for answer in asked:
        try:
            told |= answer.result(timeout=max(0.0, until - time.monotonic()))
        except (TimeoutError, OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return {component: version for component, version in told.items() if _is_version(version)}


Reader = Callable[[NodeName, Machine, float], Mapping[Component, str]]


def _ask(reader: Reader, node: NodeName, machine: Machine, *, limit_seconds: float) -> Future[Mapping[Component, str]]:
    """Ask in a thread that is left behind where it is late: a call into a sick driver may hang for good."""
    answer: Future[Mapping[Component, str]] = Future()

    def read() -> None:
        try:
            answer.set_result(reader(node, machine, limit_seconds))
        except BaseException as problem:
            answer.set_exception(problem)

    Thread(target=read, daemon=True).start()
    return answer


def _read_gpus(node: NodeName, machine: Machine, limit_seconds: float) -> Mapping[Component, str]:
    reading: NvmlReading = read_nvml(node, machine.run, limit_seconds=limit_seconds)
    told = {Component.DRIVER: reading.driver_version, Component.GPU_VBIOS: "+".join(reading.vbios_versions)}
    return {component: version for component, version in told.items() if version}


def _read_files(node: NodeName, machine: Machine, limit_seconds: float) -> Mapping[Component, str]:
    """Return what the kernel reports of itself, of its modules and of the board."""
    told = {
        Component.KERNEL: machine.kernel,
        Component.NIC_DRIVER: _text(machine.sys / "module/mlx5_core/version"),
        Component.BIOS: _text(machine.sys / "class/dmi/id/bios_version"),
        Component.NIC_FIRMWARE: _nic_firmware(machine.sys),
    }
    return {component: version for component, version in told.items() if version}


def _read_cuda(node: NodeName, machine: Machine, limit_seconds: float) -> Mapping[Component, str]:
    told = json.loads((machine.root / "usr/local/cuda/version.json").read_text(encoding="utf-8"))
    return {Component.CUDA: str(told["cuda"]["version"])}


def _read_daemon(component: Component) -> Reader:
    def read(node: NodeName, machine: Machine, limit_seconds: float) -> Mapping[Component, str]:
        for name, *words in _DAEMONS[component]:
            program = shutil.which(name, path=machine.search_path)
            if program is not None and _is_running(program, machine.proc):
                version = _version_told(machine, (program, *words), limit_seconds)
                if version:
                    return {component: version}
        for name, *words in _DAEMONLESS if component is Component.CONTAINER_RUNTIME else ():
            version = _version_told(machine, (name, *words), limit_seconds)
            if version:
                return {component: version}
        return {}

    return read


def _version_told(machine: Machine, argv: tuple[str, ...], limit_seconds: float) -> str:
    answer = machine.run(argv, limit_seconds=limit_seconds)
    if answer.end is not ToolEnd.ENDED or answer.returncode != 0:
        return ""
    found = _TOLD.search(answer.stdout) or _TOLD.search(answer.stderr)
    return found[0] if found is not None else ""


def _is_running(program: str, proc: Path) -> bool:
    """Return whether a process of this file runs, and none of a file that it replaced. Others' need root."""
    path = Path(program).resolve()
    is_found = False
    for process in proc.glob("[0-9]*"):
        link = process / "exe"
        try:
            target = str(link.readlink())
            if target == f"{path} (deleted)":
                return False
            is_found = is_found or (target == str(path) and link.samefile(path))
        except OSError:
            continue
    return is_found


def _nic_firmware(sys: Path) -> str:
    """Return the firmware of the network cards of which the node has most: others (storage) have another by design."""
    found: dict[str, list[str]] = {}
    for card in sorted((sys / "class/infiniband").glob("*")):
        version = _text(card / "fw_ver")
        if version:
            found.setdefault(_text(card / "board_id"), []).append(version)
    if not found:
        return ""
    board = max(sorted(found), key=lambda each: len(found[each]))
    return "+".join(sorted(Counter(found[board])))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _is_version(text: str) -> bool:
    try:
        parse_version(text)
    except ValueError:
        return False
    return True


_READERS: tuple[Reader, ...] = (_read_gpus, _read_files, _read_cuda, *map(_read_daemon, _DAEMONS))


# -- the steps of one order --


MOST_LOG_BYTES = 64 * 2**20
"""# Assumption: an installer that prints more is in a circle."""
_MOST_ARTIFACT_BYTES = 32 * 2**30
"""# Assumption: no image or driver of a node is larger."""
_PIECE_BYTES = 2**20
_LOOK_EVERY_SECONDS = 0.5
_CONNECT_SECONDS = 30.0
_TAIL_BYTES = 4096
_NAME = re.compile(r"[^A-Za-z0-9._+-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What came of an order, and in which words."""

    state: InstallState
    said: str


class StepFailed(RuntimeError):
    """One part of an order did not succeed; the message says which and why."""


def carry_out(
    order: PlainOrder,
    *,
    directory: Path,
    log: Path,
    limit_seconds: float,
    keep: Callable[[str, float], None],
    note_command: Callable[[int], None],
) -> StepResult:
    """Carry out an order within `limit_seconds`; `keep` is given what is being done, and the share that is done.

    No command is run before every artifact is there and is what the release says. `note_command` is given the
    process of each command: it survives where this one is killed.
    """
    ends_at = time.monotonic() + limit_seconds
    place = directory / f"{order.key}.files"
    try:
        refuse_words(order)
        copies = {
            change.component: _stage(change.artifact, place / change.component.value, ends_at=ends_at)
            for change in order.changes
            if change.artifact is not None
        }
        with _log_file(log) as output:
            for number, change in enumerate(order.changes):
                what = f"{change.component.value} {change.version}"
                keep(f"installs {what}", number / len(order.changes))
                process, said_from = _begun(change, order, copy=copies.get(change.component), output=output)
                note_command(process.pid)
                problem = _wait(process, output, ends_at=ends_at)
                if problem or process.returncode != 0:
                    end = f"{problem} and was ended" if problem else f"ended with {process.returncode}"
                    raise StepFailed(f"{what}: {change.words[0]} {end}: {_last_words(output, said_from)}")
    except (StepFailed, SourceRefused) as problem:
        return StepResult(state=InstallState.FAILED, said=str(problem))
    except OSError as problem:
        return StepResult(state=InstallState.FAILED, said=f"{problem.filename or 'a file'}: {problem.strerror}")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    said = ", ".join(f"{change.component.value} {change.version}" for change in order.changes)
    return StepResult(state=InstallState.INSTALLED, said=f"{said} lies on the node")


def _begun(
    change: PlainChange, order: PlainOrder, *, copy: Path | None, output: IO[bytes]
) -> tuple[subprocess.Popen[bytes], int]:
    """Begin the command of a change; return it, and where in the output its own words begin."""
    filling = {
        "{node}": order.node,
        "{version}": change.version,
        "{key}": order.key,
        "{artifact}": "" if copy is None else str(copy),
    }
    argv = [fill(word, filling) for word in change.words]
    environment = tool_environment(os.environ)
    program = shutil.which(argv[0], path=environment["PATH"])
    if program is None:
        raise StepFailed(f"{change.component.value} {change.version}: {argv[0]} is not installed on the node")
    output.write(f"--- {' '.join(argv)}\n".encode())
    said_from = os.fstat(output.fileno()).st_size
    # Into a file, not a pipe: a daemon that the installer starts keeps what it inherits open for good.
    process = subprocess.Popen(
        [program, *argv[1:]],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd="/",
    )
    return process, said_from


def _wait(process: subprocess.Popen[bytes], output: IO[bytes], *, ends_at: float) -> str:
    """Wait for the end of a command; return why it was ended, empty if it ended by itself."""
    while True:
        left = ends_at - time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, min(left, _LOOK_EVERY_SECONDS)))
            return ""
        too_much = os.fstat(output.fileno()).st_size > MOST_LOG_BYTES
        if left <= 0.0 or too_much:
            _end(process)
            return "printed without an end" if too_much else "did not end in time"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command with what it started, politely first: a package manager may leave a lock behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=TERM_GRACE_SECONDS)


def _stage(artifact: Artifact, place: Path, *, ends_at: float) -> Path:
    """Copy an artifact into our own directory, hashing what is written; raise StepFailed where the hash differs."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = place / (_NAME.sub("_", artifact.location.rsplit("/", 1)[-1].split("?", 1)[0])[-120:].lstrip(".") or "file")
    digest, size = hashlib.sha256(), 0
    try:
        with _opened(artifact.location) as source, copy.open("xb") as target:
            while piece := source.read1(_PIECE_BYTES):  # what is there: who sends a byte a minute is not waited for
                digest.update(piece)
                size += len(piece)
                target.write(piece)
                if size > _MOST_ARTIFACT_BYTES or time.monotonic() > ends_at:
                    raise StepFailed(f"{artifact.name} could not be fetched in time, or is too large: {size} bytes")
    except (URLError, ValueError) as problem:
        raise StepFailed(f"{artifact.name} could not be fetched from {artifact.location[:200]}: {problem}") from problem
    except OSError as problem:
        raise StepFailed(f"{artifact.name} could not be read at {artifact.location[:200]}: {problem}") from problem
    if digest.hexdigest() != artifact.sha256:
        raise StepFailed(
            f"{artifact.name} at {artifact.location[:200]} has the sha256 {digest.hexdigest()}, the release says "
            f"{artifact.sha256}; nothing was run"
        )
    return copy


@contextmanager
def _opened(location: str) -> Iterator[BufferedIOBase]:
    if location.startswith("https://"):
        with urlopen(location, timeout=_CONNECT_SECONDS) as answer:  # noqa: S310 -- https, and believed by its hash
            yield answer
    elif location.startswith("/"):
        # Not waited for either: a pipe that nobody writes to.
        with os.fdopen(os.open(location, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError("it is no plain file")
            yield file
    else:
        raise ValueError("a location is an absolute path on the node, or an https URL")


@contextmanager
def _log_file(log: Path) -> Iterator[IO[bytes]]:
    flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(log, flags, 0o600), "r+b", buffering=0) as file:
        yield file


def _last_words(output: IO[bytes], said_from: int) -> str:
    """Return the end of what a command printed, on one line."""
    size = os.fstat(output.fileno()).st_size
    start = max(said_from, size - _TAIL_BYTES)
    text = os.pread(output.fileno(), max(0, size - start), start).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-300:] or "it printed nothing"


# -- one run for each key --


_MODULE = "ops_pipelines.resources.node.installs"


class AnotherInstallRuns(RuntimeError):
    """Another installation runs on this node: two at once would undo each other."""


class GpusBusy(RuntimeError):
    """A process computes on the GPUs: what is installed would pull the driver from under it."""


class InstallRuns:
    """The installations of this node."""

    def __init__(
        self, directory: Path, *, clock: Clock, count_processes: Callable[[], int], proc: Path = Path("/proc")
    ) -> None:
        """`count_processes`: how many processes compute on the GPUs; 0 where that cannot be known."""
        self._files = InstallDirectory(directory, clock=clock, proc=proc)
        self._count_processes = count_processes

    def start(self, order: PlainOrder, *, limit_seconds: float) -> bool:
        """Start an installation in a session of its own and return at once; return False if the key has one already.

        Raises SourceRefused if the key has another order, AnotherInstallRuns, GpusBusy, and OSError if the directory
        cannot be used.
        """
        key = parse_check_key(order.key)
        with self._files.starting():
            if self._files.is_begun(key, order_to_dict(order)):
                return False
            for other, _ in self._files.running():
                raise AnotherInstallRuns(f"the installation {other} still runs on this node; wait for it")
            count = self._count_processes()
            if count:
                raise GpusBusy(f"{count} processes compute on the GPUs; drain the node and wait for their end")
            for left in self._files.path.glob("*.files"):
                shutil.rmtree(left, ignore_errors=True)  # copies of an installation that was cut short
            self._files.begin(
                key, node=order.node, order=order_to_dict(order), limit_seconds=limit_seconds, module=_MODULE
            )
        return True

    def read(self, key: ActionKey) -> InstallReport | None:
        """Return how far the installation under `key` is. Returns and raises as `InstallDirectory.report`."""
        return self._files.report(key)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the installation that was started under a key: `DIRECTORY KEY`."""
    from ops_pipelines.clock import SystemClock

    directory, key = sys.argv[1:] if arguments is None else arguments
    files = InstallDirectory(Path(directory), clock=SystemClock())
    started = files.take_over(parse_check_key(key), pid=os.getpid())
    result = carry_out(
        order_from_json(json.dumps(started.order)),
        directory=files.path,
        log=files.log(started.key),
        limit_seconds=started.limit_seconds,
        keep=lambda said, ratio: files.keep(started, said, progress_ratio=ratio),
        note_command=lambda pid: files.note_command(started.key, pid=pid),
    )
    files.finish(started, result.state, result.said)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
