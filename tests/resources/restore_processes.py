"""A cluster with a used ledger, and the process that dies while it restores it."""

import os
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from ops_pipelines.resources import restoring
from ops_pipelines.resources.backup import make_backup
from ops_pipelines.resources.config.cluster_config import ClusterConfig
from ops_pipelines.resources.ledger import copying
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.ledger.watch import SeenFile
from ops_pipelines.resources.restoring import Restored, restore_ledger
from tests.ports.ledger_samples import NOW, SECOND, decide, incident

LATER = NOW + timedelta(hours=3)


@dataclass(frozen=True, kw_only=True)
class Site:
    """A cluster with a used ledger."""

    directory: Path
    cluster_file: Path
    config: ClusterConfig

    @property
    def url(self) -> str:
        return self.config.ledger.url

    def open(self) -> SqlLedger:
        ledger = SqlLedger(self.url, seen_file=SeenFile(self.config.state_directory))
        ledger.identify(NOW)
        return ledger

    def use(self, *numbers: int, until: timedelta = timedelta(0)) -> None:
        """Let the autopilot work, and stop it."""
        ledger = self.open()
        for number in numbers:
            decide(ledger, incident(number))
        ledger.take_lease(holder="host:1", ttl=SECOND, now=NOW + until)
        ledger.close()

    def back_up(self, name: str = "backup", *, with_lake: bool = False) -> Path:
        make_backup(
            self.directory / name, self.config, cluster_file=self.cluster_file, with_lake=with_lake, now=NOW + SECOND
        )
        return self.directory / name

    def restore(self, backup: Path, **options: Any) -> Restored:
        return restore_ledger(
            backup,
            self.config,
            **{"actor": "ada", "nodes": (), "overwrite": False, "as_it_was": False, "now": LATER, **options},
        )


def restore_and_die(site: Site, backup: Path, at_step: int) -> None:
    """Restore, and be killed before the line of that number of the code that restores."""
    traced = {restoring.__file__, copying.__file__}
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        if frame.f_code.co_filename not in traced:
            return None
        if event == "line":
            steps += 1
            if steps == at_step:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    site.restore(backup, overwrite=True)
    sys.settrace(None)
    sys.exit(0)
