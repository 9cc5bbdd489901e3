"""A check that outlives whoever started it: its files in a directory of the node, one set for each key.

    KEY.lock    who runs it: process, boot, suite and tests; made whole and once, so a key starts one run
    KEY.part    the check after its last finished test
    KEY.json    the check, once it is over; appears by rename

A run whose process is gone without KEY.json was cut short: what it had finished stands, the rest was not run.
"""

import contextlib
import fcntl
import json
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.domain.identity import ActionKey, NodeName, parse_node_name
from ops_pipelines.domain.node_health.node_check import (
    LOAD_TESTS,
    NodeCheck,
    TestResult,
    TestRun,
    parse_check_key,
    parse_suite_name,
    parse_test_name,
)

CUT_SHORT = "the check was cut short"
_KEPT_FOR = timedelta(days=30)
_MODULE = "ops_pipelines.resources.node_tests.check_runs"


class AnotherCheckRuns(RuntimeError):
    """Another check runs on this node: two at once would measure each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be run, as the lock says it."""

    key: ActionKey
    node: NodeName
    suite: str
    tests: tuple[str, ...]
    limit_seconds: float
    started_at: datetime
    boot_id: str = ""
    """The boot in which it began; empty: not told."""


class CheckRuns:
    """The runs of this node."""

    def __init__(self, directory: Path, *, clock: Clock, proc: Path = Path("/proc")) -> None:
        self._directory = directory
        self._clock = clock
        self._proc = proc

    def start(self, key: ActionKey, *, node: NodeName, suite: str, tests: Sequence[str], limit_seconds: float) -> bool:
        """Start a run in a session of its own and return at once; return False if the key has one already.

        Raises AnotherCheckRuns, and OSError if the directory cannot be used.
        """
        order = self._order(key, node=node, suite=suite, tests=tests, limit_seconds=limit_seconds)
        with self._starting():
            if self._lock(key).exists() or self._result(key).exists():
                return False
            self._refuse_another()
            self._write_lock(order, pid=os.getpid())
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(self._directory), key],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
            self._write_lock(order, pid=process.pid)
            process.returncode = 0  # it is not ours to wait for: it outlives this process
        return True

    @contextlib.contextmanager
    def alone(
        self, key: ActionKey, *, node: NodeName, suite: str, tests: Sequence[str], limit_seconds: float
    ) -> Iterator[None]:
        """Let no other check begin on this node while this process runs one within the block.

        Raises AnotherCheckRuns, also for a key that has a run already, and OSError if the directory cannot be used.
        """
        order = self._order(key, node=node, suite=suite, tests=tests, limit_seconds=limit_seconds)
        with self._starting():
            if self._lock(key).exists():
                raise AnotherCheckRuns(f"a check was started under {key} before; ask for its --result")
            self._refuse_another()
            self._write_lock(order, pid=os.getpid())
        try:
            yield
        finally:
            self._lock(key).unlink(missing_ok=True)

    def take_over(self, key: ActionKey) -> Order:
        """Return what was to be run, and make this process the one that runs it."""
        order = self.order(key)
        self._write_lock(order, pid=os.getpid())
        return order

    def read(self, key: ActionKey) -> NodeCheck | None:
        """Return what the run under `key` found; None while it runs.

        Raises KeyError if none was started under it, and ValueError if its files make no sense.
        """
        from ops_pipelines.resources.fleet.node_documents import check_from_json

        parse_check_key(key)
        try:
            self._trust_directory()
            order = self.order(key)
        except FileNotFoundError as problem:
            raise KeyError(key) from problem
        is_alive = self._is_alive(self._lock(key))
        with contextlib.suppress(FileNotFoundError):  # looked for after the process, so that an end is not missed
            return check_from_json(self._result(key).read_text(encoding="utf-8"), node=order.node, key=key)
        if is_alive:
            return None
        return self._cut_short(order)

    def order(self, key: ActionKey) -> Order:
        """Return what was to be run; raise FileNotFoundError if nothing was, ValueError if the lock makes no sense."""
        text = self._lock(key).read_text(encoding="utf-8")
        try:
            told = json.loads(text)
            return Order(
                key=parse_check_key(told["key"]),
                node=parse_node_name(told["node"]),
                suite=told["suite"] and parse_suite_name(told["suite"]),
                tests=tuple(parse_test_name(test) for test in told["tests"]),
                limit_seconds=float(told["limit_seconds"]),
                started_at=datetime.fromisoformat(told["started_at"]),
                boot_id=str(told["boot_id"]),
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise ValueError(f"{key}.lock is not what a check writes ({problem!r}); remove it") from problem

    def keep(self, check: NodeCheck) -> None:
        """Keep a check that is not over."""
        self._write(self._part(check.key), check)

    def finish(self, check: NodeCheck) -> None:
        """Keep a check that is over."""
        self._write(self._result(check.key), check)
        self._part(check.key).unlink(missing_ok=True)

    def _cut_short(self, order: Order) -> NodeCheck:
        from ops_pipelines.resources.fleet.node_documents import check_from_json

        done: NodeCheck | None = None
        with contextlib.suppress(FileNotFoundError):
            text = self._part(order.key).read_text(encoding="utf-8")
            done = check_from_json(text, node=order.node, key=order.key)
        if done is None:
            done = NodeCheck(
                key=order.key,
                node=order.node,
                suite=order.suite,
                started_at=order.started_at,
                finished_at=order.started_at,
                tests=(),
            )
        known = {run.test for run in done.tests}
        rest = [
            TestRun(test=test, result=TestResult.NOT_RUN, said=CUT_SHORT) for test in order.tests if test not in known
        ]
        if rest and rest[0].test in LOAD_TESTS and order.boot_id not in ("", self._boot_id()):
            # The one that ran: whoever wanted a reboot meanwhile knows better, and nobody else brings a node down.
            said = f"the node went down and booted while {rest[0].test} ran"
            rest[0] = replace(rest[0], result=TestResult.FAILED, said=said)
        return replace(done, tests=(*done.tests, *rest))

    def _order(
        self, key: ActionKey, *, node: NodeName, suite: str, tests: Sequence[str], limit_seconds: float
    ) -> Order:
        return Order(
            key=parse_check_key(key),
            node=node,
            suite=suite,
            tests=tuple(tests),
            limit_seconds=limit_seconds,
            started_at=self._clock.now(),
            boot_id=self._boot_id(),
        )

    def _refuse_another(self) -> None:
        self._forget_old()
        for lock in sorted(self._directory.glob("*.lock")):
            if self._is_alive(lock) and not lock.with_suffix(".json").exists():
                raise AnotherCheckRuns(f"the check {lock.stem} still runs on this node; wait for it")

    def _trust_directory(self) -> None:
        """Raise PermissionError if anybody but this user could have put files there; they are believed, and run."""
        told = self._directory.lstat()
        if not stat.S_ISDIR(told.st_mode) or told.st_uid != os.geteuid() or told.st_mode & 0o022:
            raise PermissionError(
                f"{self._directory} is owned by user {told.st_uid} with mode {told.st_mode & 0o7777:04o}; expected a "
                f"directory of user {os.geteuid()} that nobody else may write to"
            )

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        """Let one process at a time start a check."""
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._trust_directory()
        handle = os.open(self._directory / "starting", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write_lock(self, order: Order, *, pid: int) -> None:
        told = {
            "key": order.key,
            "node": order.node,
            "suite": order.suite,
            "tests": list(order.tests),
            "limit_seconds": order.limit_seconds,
            "started_at": order.started_at.isoformat(),
            "pid": pid,
            "boot_id": order.boot_id,
            "process_began": self._process_began(pid),
        }
        self._replace(self._lock(order.key), json.dumps(told))

    def _is_alive(self, lock: Path) -> bool:
        """Return whether the process that a lock names still runs: this boot, this process, not one of its number."""
        try:
            told = json.loads(lock.read_text(encoding="utf-8"))
            began = self._process_began(int(told["pid"]))
            return bool(began) and (told["boot_id"], told["process_began"]) == (self._boot_id(), began)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _boot_id(self) -> str:
        return (self._proc / "sys/kernel/random/boot_id").read_text().strip()

    def _process_began(self, pid: int) -> str:
        """Return when a process began, in ticks since the boot; empty if it is gone, or dead and not waited for."""
        try:
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in {"Z", "X"} else fields[19]

    def _forget_old(self) -> None:
        """Remove what is older than anybody asks for."""
        before = (self._clock.now() - _KEPT_FOR).timestamp()
        for path in self._directory.iterdir():
            if path.suffix in {".json", ".lock", ".part"} and path.lstat().st_mtime < before:
                path.unlink(missing_ok=True)

    def _write(self, path: Path, check: NodeCheck) -> None:
        from ops_pipelines.resources.fleet.node_documents import check_to_json

        self._replace(path, check_to_json(check))

    def _replace(self, path: Path, text: str) -> None:
        """Write a file that is seen whole or not at all, whatever stops this process."""
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def _lock(self, key: ActionKey) -> Path:
        return self._directory / f"{key}.lock"

    def _part(self, key: ActionKey) -> Path:
        return self._directory / f"{key}.part"

    def _result(self, key: ActionKey) -> Path:
        return self._directory / f"{key}.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check that was started under a key: `DIRECTORY KEY`."""
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.resources.node_tests.node_check import run_check

    directory, key = sys.argv[1:] if arguments is None else arguments
    clock = SystemClock()
    runs = CheckRuns(Path(directory), clock=clock)
    order = runs.take_over(parse_check_key(key))
    check = run_check(
        order.node,
        order.tests,
        key=order.key,
        suite=order.suite,
        clock=clock,
        limit_seconds=order.limit_seconds,
        keep=runs.keep,
    )
    runs.finish(check)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
