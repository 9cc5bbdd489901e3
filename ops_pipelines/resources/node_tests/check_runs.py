"""A check that outlives whoever started it: one run for each key, in a directory of the node (`detached_runs`).

KEY.part holds the check after its last finished test, KEY.json the check once it is over. A run whose process is gone
without KEY.json was cut short: what it had finished stands, the rest was not run.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName, parse_node_name
from ops_pipelines.core.node_tests import (
    LOAD_TESTS,
    NodeCheck,
    TestResult,
    TestRun,
    parse_check_key,
    parse_suite_name,
    parse_test_name,
)
from ops_pipelines.resources.detached_runs import RunDirectory

CUT_SHORT = "the check was cut short"
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
        self._files = RunDirectory(directory, clock=clock, proc=proc)
        self._clock = clock

    def start(self, key: ActionKey, *, node: NodeName, suite: str, tests: Sequence[str], limit_seconds: float) -> bool:
        """Start a run in a session of its own and return at once; return False if the key has one already.

        Raises AnotherCheckRuns, and OSError if the directory cannot be used.
        """
        order = self._order(key, node=node, suite=suite, tests=tests, limit_seconds=limit_seconds)
        with self._files.starting():
            if self._files.is_known(order.key):
                return False
            self._refuse_another()
            self._files.launch(order.key, _told(order), module=_MODULE)
        return True

    @contextlib.contextmanager
    def alone(
        self, key: ActionKey, *, node: NodeName, suite: str, tests: Sequence[str], limit_seconds: float
    ) -> Iterator[None]:
        """Let no other check begin on this node while this process runs one within the block.

        Raises AnotherCheckRuns, also for a key that has a run already, and OSError if the directory cannot be used.
        """
        order = self._order(key, node=node, suite=suite, tests=tests, limit_seconds=limit_seconds)
        with self._files.starting():
            if self._files.lock(key).exists():
                raise AnotherCheckRuns(f"a check was started under {key} before; ask for its --result")
            self._refuse_another()
            self._files.write_lock(order.key, _told(order), pid=os.getpid())
        try:
            yield
        finally:
            self._files.lock(key).unlink(missing_ok=True)

    def take_over(self, key: ActionKey) -> Order:
        """Return what was to be run, and make this process the one that runs it."""
        order = self.order(key)
        self._files.write_lock(order.key, _told(order), pid=os.getpid())
        return order

    def read(self, key: ActionKey) -> NodeCheck | None:
        """Return what the run under `key` found; None while it runs.

        Raises KeyError if none was started under it, and ValueError if its files make no sense.
        """
        from ops_pipelines.resources.fleet.documents import check_from_json

        parse_check_key(key)
        try:
            self._files.trust()
            order = self.order(key)
        except FileNotFoundError as problem:
            raise KeyError(key) from problem
        is_alive = self._files.is_alive(self._files.lock(key))
        with contextlib.suppress(FileNotFoundError):  # looked for after the process, so that an end is not missed
            return check_from_json(self._files.result(key).read_text(encoding="utf-8"), node=order.node, key=key)
        if is_alive:
            return None
        return self._cut_short(order)

    def order(self, key: ActionKey) -> Order:
        """Return what was to be run; raise FileNotFoundError if nothing was, ValueError if the lock makes no sense."""
        text = self._files.lock(key).read_text(encoding="utf-8")
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
        self._write(self._files.part(check.key), check)

    def finish(self, check: NodeCheck) -> None:
        """Keep a check that is over."""
        self._write(self._files.result(check.key), check)
        self._files.part(check.key).unlink(missing_ok=True)

    def _cut_short(self, order: Order) -> NodeCheck:
        from ops_pipelines.resources.fleet.documents import check_from_json

        done: NodeCheck | None = None
        with contextlib.suppress(FileNotFoundError):
            text = self._files.part(order.key).read_text(encoding="utf-8")
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
        if rest and rest[0].test in LOAD_TESTS and order.boot_id not in ("", self._files.boot_id()):
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
            boot_id=self._files.boot_id(),
        )

    def _refuse_another(self) -> None:
        for key, _ in self._files.running():
            raise AnotherCheckRuns(f"the check {key} still runs on this node; wait for it")

    def _write(self, path: Path, check: NodeCheck) -> None:
        from ops_pipelines.resources.fleet.documents import check_to_json

        self._files.replace(path, check_to_json(check))


def _told(order: Order) -> dict[str, object]:
    return {
        "key": order.key,
        "node": order.node,
        "suite": order.suite,
        "tests": list(order.tests),
        "limit_seconds": order.limit_seconds,
        "started_at": order.started_at.isoformat(),
        "boot_id": order.boot_id,
    }


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
