"""An installation that outlives whoever started it: one run for each key, in a directory of the node.

Its files are `fleet.installs`', and KEY.log holds what the commands printed. Nothing is started while another
installation runs here, or while a process computes on the GPUs.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey
from ops_pipelines.core.node_tests import parse_check_key
from ops_pipelines.core.rollout import InstallReport
from ops_pipelines.resources.fleet.documents import PlainOrder, order_from_json, order_to_dict
from ops_pipelines.resources.fleet.installs import InstallDirectory

_MODULE = "ops_pipelines.resources.node_lifecycle.install_runs"


class AnotherInstallRuns(RuntimeError):
    """Another installation runs on this node: two at once would undo each other."""


class GpusBusy(RuntimeError):
    """A process computes on the GPUs: what is installed would pull the driver from under it."""


class InstallRuns:
    """The installations of this node."""

    def __init__(
        self, directory: Path, *, clock: Clock, count_processes: Callable[[], int], proc: Path = Path("/proc")
    ) -> None:
        """`count_processes`: how many processes compute on the GPUs; 0 where that cannot be told."""
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
    from ops_pipelines.resources.node_lifecycle.install_steps import carry_out

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
