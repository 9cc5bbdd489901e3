"""This process: under which name it holds the lease and beats, who of such a name is gone, and whose it is.

A name says where and when its process began, so that nobody is taken for dead but who provably is: on the same boot of
the same host, seen from the same set of process ids, no process has that id, or another one has it by now.
"""

import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_BEGAN_FIELD = 19
"""Of /proc/PID/stat behind the command's name: when the process began, in ticks since the boot."""


@cache
def _whereabouts(_pid: int) -> str:
    """Return the boot, and which set of process ids is seen here; empty where the system does not tell."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()[:8]
        ids = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return f"{boot}.{ids}"


FORKS_RUNS = "ops-run-forks"
"""The kernel's name of the process that runs are forked from, and of the runs: their command line is the code server's.
"""


def call_this_process(name: str) -> None:
    """Give this process, and what it forks from now on, a name that `ps` and `top` show."""
    with suppress(OSError):
        (_PROC / "self/comm").write_text(name)


def this_process() -> str:
    """Return the name of this process: host, process id, and what else distinguishes it from one of the same id."""
    pid = os.getpid()
    began = _began_at(pid)
    whereabouts = _whereabouts(pid)
    return f"{socket.gethostname()}:{pid}" + (f":{whereabouts}.{began}" if whereabouts and began else "")


def is_gone(holder: str) -> bool:
    """Return whether the process of that name provably runs no more; False where nobody can tell."""
    host, _, rest = holder.partition(":")
    pid, _, origin = rest.partition(":")
    whereabouts, _, began = origin.rpartition(".")
    if host != socket.gethostname() or not pid.isdigit() or not began or whereabouts != _whereabouts(os.getpid()):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # It is somebody's, so an id that is in use.
    now = _began_at(int(pid))
    return bool(now) and now != began


@cache
def is_replaced_by_its_caller() -> bool:
    """Return whether this process belongs to a code server that ends when its caller no longer wants it.

    Dagster's daemon starts such a one where its workspace names a module, and replaces it every few minutes; `dagster
    dev` starts one too. By `--heartbeat` on its command line it is ordered to end when nobody calls.
    """
    pid = os.getpid()
    while pid > 1:
        words = _command_of(pid)
        if "--heartbeat" in words and ("grpc" in words or "code-server" in words):
            return True
        pid = _parent_of(pid)
    return False


def _command_of(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _parent_of(pid: int) -> int:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def _began_at(pid: int) -> str:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    # The command's name is in brackets, and may hold anything, brackets too.
    fields = stat.rpartition(")")[2].split()
    return fields[_BEGAN_FIELD] if len(fields) > _BEGAN_FIELD else ""
