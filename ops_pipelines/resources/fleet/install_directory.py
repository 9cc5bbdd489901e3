"""The files of installations that outlive whoever started them, and what they say: on a node, or where playbooks run.

KEY.part holds the report of a run, KEY.json the last one. A run whose process is gone without KEY.json has failed,
whatever it did: half an installation is none.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.identity import ActionKey, NodeName, parse_node_name
from ops_pipelines.core.node_tests import parse_check_key
from ops_pipelines.core.rollout import InstallReport, InstallState
from ops_pipelines.core.sources import SourceRefused
from ops_pipelines.resources.detached_runs import RunDirectory
from ops_pipelines.resources.fleet.install_documents import report_from_json, report_to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedInstall:
    """What was started under a key, as its lock says."""

    key: ActionKey
    node: NodeName
    started_at: datetime
    boot_id: str
    """The boot in which it began."""
    limit_seconds: float
    order: Mapping[str, object]
    """What is to be done, in the words of whoever does it."""


class InstallDirectory(RunDirectory):
    """Installations under keys, each with its report."""

    def begin(
        self, key: ActionKey, *, node: NodeName, order: Mapping[str, object], limit_seconds: float, module: str
    ) -> None:
        """Run `python -m module DIRECTORY KEY` in a session of its own. For use within `starting`."""
        told = {
            "node": node,
            "started_at": self._clock.now().isoformat(),
            "boot_id": self.boot_id(),
            "limit_seconds": limit_seconds,
            "order": order,
        }
        self.launch(key, told, module=module)

    def is_begun(self, key: ActionKey, order: Mapping[str, object]) -> bool:
        """Return whether this order was begun under the key; raise SourceRefused if another one was."""
        if not self.is_known(key):
            return False
        with contextlib.suppress(FileNotFoundError):
            if self.started(key).order != order:
                raise SourceRefused(
                    f"another order was begun under {key}: a ledger that is begun anew gives the same keys once more. "
                    f"Remove {self.path / key}.*"
                )
        return True

    def take_over(self, key: ActionKey, *, pid: int) -> StartedInstall:
        """Return what was started, and make process `pid` the one that carries it out."""
        started = self.started(key)
        told = json.loads(self.lock(key).read_text(encoding="utf-8"))
        self.write_lock(key, told, pid=pid)
        return started

    def started(self, key: ActionKey) -> StartedInstall:
        """Raise FileNotFoundError if nothing was started under the key, ValueError if its lock makes no sense."""
        text = self.lock(parse_check_key(key)).read_text(encoding="utf-8")
        try:
            told = json.loads(text)
            return StartedInstall(
                key=key,
                node=parse_node_name(told["node"]),
                started_at=datetime.fromisoformat(told["started_at"]),
                boot_id=str(told["boot_id"]),
                limit_seconds=float(told["limit_seconds"]),
                order=dict(told["order"]),
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise ValueError(f"{key}.lock is not what an installation writes ({problem!r}); remove it") from problem

    def report(self, key: ActionKey) -> InstallReport | None:
        """Return how far the installation under `key` is; None if none was started under it.

        Raises ValueError if its files make no sense, OSError if they cannot be read or others may have written them.
        """
        parse_check_key(key)
        try:
            self.trust()
            started = self.started(key)
        except FileNotFoundError:
            return None
        is_alive = self.is_alive(self.lock(key))
        with contextlib.suppress(FileNotFoundError):  # looked for after the process, so that an end is not missed
            return report_from_json(self.result(key).read_text(encoding="utf-8"), node=started.node, key=key)
        part = InstallReport(
            key=key,
            node=started.node,
            state=InstallState.RUNNING,
            said=f"running since {started.started_at:%Y-%m-%d %H:%M} UTC",
            progress_ratio=0.0,
            changed_at=started.started_at,
        )
        with contextlib.suppress(FileNotFoundError):
            part = report_from_json(self.part(key).read_text(encoding="utf-8"), node=started.node, key=key)
        if is_alive:
            return part
        is_same_boot = started.boot_id == self.boot_id()
        cause = "its process was ended" if is_same_boot else "the machine that it ran on booted"
        return InstallReport(
            key=key,
            node=started.node,
            state=InstallState.FAILED,
            said=f"cut short, {cause}; the last that it said: {part.said}",
            changed_at=part.changed_at,
        )

    def keep(self, started: StartedInstall, said: str, *, progress_ratio: float) -> None:
        """Keep how far an installation is."""
        report = self._report(started, InstallState.RUNNING, said, progress_ratio=progress_ratio)
        self.replace(self.part(started.key), report_to_json(report))

    def finish(self, started: StartedInstall, state: InstallState, said: str) -> None:
        """Keep what came of an installation."""
        self.replace(self.result(started.key), report_to_json(self._report(started, state, said, progress_ratio=None)))
        self.part(started.key).unlink(missing_ok=True)

    def _report(
        self, started: StartedInstall, state: InstallState, said: str, *, progress_ratio: float | None
    ) -> InstallReport:
        return InstallReport(
            key=started.key,
            node=started.node,
            state=state,
            said=said,
            progress_ratio=progress_ratio,
            changed_at=self._clock.now(),
        )
