"""Runs that outlive whoever started them: their files in one directory, a set for each key, and whether they live.

    KEY.lock    who runs it: process, boot, and what was ordered; made whole and once, so a key starts one run
    KEY.part    how far it is
    KEY.json    what came of it, once it is over; appears by rename
    KEY.log     what it printed; KEY/ what else it left

What is run, and what a run that was cut short means, is for whoever owns the directory.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey

_KEPT_FOR = timedelta(days=30)
_SUFFIXES = frozenset({".json", ".lock", ".part", ".log"})
_KEY = re.compile(r"[0-9a-f]{32}")


class RunDirectory:
    """The files of one kind of run on this machine."""

    def __init__(self, path: Path, *, clock: Clock, proc: Path = Path("/proc")) -> None:
        self.path = path
        self._clock = clock
        self._proc = proc

    def lock(self, key: ActionKey) -> Path:
        return self.path / f"{key}.lock"

    def part(self, key: ActionKey) -> Path:
        return self.path / f"{key}.part"

    def result(self, key: ActionKey) -> Path:
        return self.path / f"{key}.json"

    def log(self, key: ActionKey) -> Path:
        return self.path / f"{key}.log"

    def is_known(self, key: ActionKey) -> bool:
        return self.lock(key).exists() or self.result(key).exists()

    def trust(self) -> None:
        """Raise PermissionError if anybody but this user could have put files there; they are believed, and run."""
        told = self.path.lstat()
        if not stat.S_ISDIR(told.st_mode) or told.st_uid != os.geteuid() or told.st_mode & 0o022:
            raise PermissionError(
                f"{self.path} is owned by user {told.st_uid} with mode {told.st_mode & 0o7777:04o}; expected a "
                f"directory of user {os.geteuid()} that nobody else may write to"
            )

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Let one process at a time start a run; what is older than anybody asks for is removed first."""
        self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.trust()
        handle = os.open(self.path / "starting", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def running(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Yield each run that lives and has no result yet, as its key and what its lock says; forget old ones."""
        self._forget_old()
        for path in sorted(self.path.glob("*.lock")):
            if self.is_alive(path) and not path.with_suffix(".json").exists():
                with contextlib.suppress(OSError, ValueError):
                    told = json.loads(path.read_text(encoding="utf-8"))
                    yield path.stem, told if isinstance(told, dict) else {}

    def launch(self, key: ActionKey, told: Mapping[str, object], *, module: str) -> None:
        """Run `python -m module DIRECTORY KEY` in a session of its own, under a lock that says `told`."""
        self.write_lock(key, told, pid=os.getpid())
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(self.path), key],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self.write_lock(key, told, pid=process.pid)
        process.returncode = 0  # it is not ours to wait for: it outlives this process

    def write_lock(self, key: ActionKey, told: Mapping[str, object], *, pid: int) -> None:
        """Say that process `pid` runs what is told; `boot_id` is this boot's unless `told` names one."""
        holder = {"boot_id": self.boot_id(), **told, "pid": pid, "process_began": self._process_began(pid)}
        self.replace(self.lock(key), json.dumps(holder))

    def note_command(self, key: ActionKey, *, pid: int) -> None:
        """Say that a run has begun a command: as long as that lives the run is not over, even if it was killed."""
        told = json.loads(self.lock(key).read_text(encoding="utf-8"))
        self.replace(self.lock(key), json.dumps({**told, "command": [pid, self._process_began(pid)]}))

    def is_alive(self, lock: Path) -> bool:
        """Return whether the process that a lock names still runs, or its command: this boot, none of its number."""
        try:
            told = json.loads(lock.read_text(encoding="utf-8"))
            named = [(told["pid"], told["process_began"]), *([told["command"]] if "command" in told else [])]
            is_any_there = any(began and began == self._process_began(int(pid)) for pid, began in named)
            return is_any_there and told["boot_id"] == self.boot_id()
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def boot_id(self) -> str:
        return (self._proc / "sys/kernel/random/boot_id").read_text().strip()

    def replace(self, path: Path, text: str) -> None:
        """Write a file that is seen whole or not at all, whatever stops this process."""
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def _process_began(self, pid: int) -> str:
        """Return when a process began, in ticks since the boot; empty if it is gone, or dead and not waited for."""
        try:
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in {"Z", "X"} else fields[19]

    def _forget_old(self) -> None:
        before = (self._clock.now() - _KEPT_FOR).timestamp()
        for path in self.path.iterdir():
            try:
                told = path.lstat()
            except FileNotFoundError:
                continue  # a draft that has become what it was written for
            if told.st_mtime >= before:
                continue
            if stat.S_ISDIR(told.st_mode) and _KEY.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix in _SUFFIXES:
                path.unlink(missing_ok=True)
