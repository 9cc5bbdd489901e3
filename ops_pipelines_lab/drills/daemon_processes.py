"""Daemons of a throw-away server: started detached, remembered by pid and kernel start time, stopped by nothing else.

Knows `/proc` and signals; what the daemons are is their cluster's business (`slurm_cluster`). Linux only.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_DETACH = 'setsid "$@" </dev/null >>"$LOG" 2>&1 & echo $!'
"""The shell ends at once, so a daemon is nobody's child: it outlives us and leaves us no zombie."""

_START_SECONDS = 300.0
"""Far above what a start takes: a busy host loads a program for minutes, and one that ended is noticed at once."""


class DaemonError(RuntimeError):
    """A daemon did not start or did not become ready. The message names its log."""


def wait_until(what: str, is_so: Callable[[], bool], *, timeout_seconds: float, every_seconds: float = 0.05) -> None:
    """Return as soon as `is_so()` holds; raise TimeoutError naming `what` if it does not within the limit."""
    deadline = time.monotonic() + timeout_seconds
    while not is_so():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout_seconds:g} s for {what}, in vain")
        time.sleep(every_seconds)


class Daemons:
    """The daemons of one directory: `run/NAME.proc` holds pid and start time, `log/NAME.out` what they print."""

    def __init__(self, *, run: Path, log: Path) -> None:
        self._run = run
        self._log = log

    def start(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], umask: int = -1) -> None:
        """Start `argv` detached, with exactly `env`; do nothing if the daemon runs already. A umask of -1 is ours."""
        if self.pid_of(name) is not None:
            return
        log = self._log / f"{name}.out"
        done = subprocess.run(
            ["sh", "-c", _DETACH, "sh", *argv],
            env={**env, "LOG": str(log)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            umask=umask,
        )
        pid = int(done.stdout)
        born = born_at(pid)
        if born is None:
            raise DaemonError(f"{name} ended at once; read {log}")
        (self._run / f"{name}.proc").write_text(f"{pid} {born}\n")

    def names(self) -> tuple[str, ...]:
        """Return every daemon ever started here and not yet stopped by us, running or not."""
        return tuple(sorted(path.name.removesuffix(".proc") for path in self._run.glob("*.proc")))

    def pid_of(self, name: str) -> int | None:
        """Return the pid of a daemon that runs; None if it never started, ended, or its pid is somebody else's now."""
        try:
            pid, born = map(int, (self._run / f"{name}.proc").read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return pid if born_at(pid) == born else None

    def wait_for(self, name: str, is_ready: Callable[[], bool]) -> None:
        """Return once a daemon is ready; raise DaemonError with the end of its log if it ended, or takes too long."""

        def is_ready_or_gone() -> bool:
            return self.pid_of(name) is None or is_ready()

        try:
            wait_until(f"{name} to answer", is_ready_or_gone, timeout_seconds=_START_SECONDS)
        except TimeoutError as problem:
            raise DaemonError(f"{problem}. {self.last_words(name)}") from None
        if self.pid_of(name) is None:
            raise DaemonError(f"{name} ended while starting. {self.last_words(name)}")

    def last_words(self, name: str) -> str:
        """Return a sentence with the last lines that a daemon printed."""
        log = self._log / f"{name}.out"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return f"Its log {log} ends with:\n" + "\n".join(lines[-8:])

    def stop(self, names: Collection[str], *, grace_seconds: float = 20.0) -> None:
        """Ask the daemons to end, and kill those that have not after `grace_seconds`."""
        self._signal(names, signal.SIGTERM)
        try:
            wait_until("daemons to end", lambda: self._are_gone(names), timeout_seconds=grace_seconds)
        except TimeoutError:
            self.kill(names)
        self._forget(names)

    def kill(self, names: Collection[str]) -> None:
        """Kill the daemons, without letting them clean up."""
        self._signal(names, signal.SIGKILL)
        wait_until("killed daemons to be gone", lambda: self._are_gone(names), timeout_seconds=10.0)
        self._forget(names)

    def _signal(self, names: Collection[str], sig: signal.Signals) -> None:
        for name in names:
            pid = self.pid_of(name)
            if pid is not None:
                os.kill(pid, sig)

    def _are_gone(self, names: Collection[str]) -> bool:
        return all(self.pid_of(name) is None for name in names)

    def _forget(self, names: Collection[str]) -> None:
        for name in names:
            (self._run / f"{name}.proc").unlink(missing_ok=True)


def born_at(pid: int) -> int | None:
    """Return the kernel start time of a live process (clock ticks since boot); None if it is gone or a zombie."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def name_of_process(pid: int) -> str:
    """Return the kernel's name of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def parent_of(pid: int) -> int | None:
    """Return the process that a process is a child of; None if it is gone."""
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def find_processes(is_wanted: Callable[[Mapping[str, str]], bool]) -> dict[int, int]:
    """Return pid -> start time of each live process whose environment matches, and of all their descendants.

    Never this process or its ancestors: a reboot program would otherwise kill itself.
    """
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    parents = {pid: int(stat[1]) for pid in pids if (stat := _stat(pid)) is not None}
    spared = set()
    pid = os.getpid()
    while pid > 1 and pid not in spared:
        spared.add(pid)
        pid = parents.get(pid, 0)
    found = {pid for pid in parents if pid not in spared and is_wanted(_environment(pid))}
    todo = list(found)
    while todo:
        parent = todo.pop()
        children = {pid for pid, its in parents.items() if its == parent} - found - spared
        found |= children
        todo.extend(children)
    return {pid: born for pid in found if (born := born_at(pid)) is not None}


def find_holders(path: Path, *, name: str) -> dict[int, int]:
    """Return pid -> start time of each live process of this name that holds a file open."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or name_of_process(int(entry.name)) != name:
            continue
        with suppress(OSError):  # ended meanwhile
            is_holder = any(each.readlink() == path for each in (entry / "fd").iterdir())
            born = born_at(int(entry.name))
            if is_holder and born is not None:
                found[int(entry.name)] = born
    return found


def kill_processes(processes: Mapping[int, int]) -> None:
    """Kill each process that is still the one found (same start time), and return when all are gone.

    All are stopped before the first is killed: like a cut of the power, it leaves none the time to report the others.
    """
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid, born in processes.items():
            if born_at(pid) == born:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
    wait_until(
        "killed processes to be gone",
        lambda: all(born_at(pid) != born for pid, born in processes.items()),
        timeout_seconds=10.0,
    )


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _environment(pid: int) -> dict[str, str]:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return {}
    return {key: value for key, _, value in (os.fsdecode(word).partition("=") for word in words)}
