"""What every way to install has in common: what it must do, the order in plain words, who has what under a key, and the
files of an installation that outlives who started it.

How each carries an order out is beside: `command_fleet` (over ssh), `ansible`, `redfish_update`. Which of them a
change goes to is decided by `command_fleet.ComposedFleet`.

The files lie on a node, or where playbooks run: KEY.part holds the report of a run, KEY.json the last one. A run whose
process is gone without KEY.json has failed, whatever it did: half an installation is none.
"""

import contextlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName, parse_node_name
from ops_pipelines.core.node_tests import parse_check_key
from ops_pipelines.core.release import Artifact, Change, Component, Means
from ops_pipelines.core.rollout import Direction, InstallOrder, InstallReport, InstallState
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import RunDirectory, find_word_faults
from ops_pipelines.resources.files import put_whole
from ops_pipelines.resources.fleet.documents import (
    PlainChange,
    PlainOrder,
    order_to_word,
    parse_version,
    report_from_json,
    report_to_json,
)

# -- what every way to install has in common --


VALUES = frozenset({"{node}", "{version}", "{artifact}", "{key}"})
"""What the words of a change may be filled with."""
_UNSAFE = frozenset({"{version}", "{artifact}"})
"""Of the rollback, the version is what a node once reported of itself; a path is whatever a release says."""

_KEPT_FOR = timedelta(days=30)


class Installer(Protocol):
    """One way to install. Raises as `core.cluster.Fleet` does, and returns within 4.5 s."""

    def start(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        """Start an installation and return at once; the same key starts nothing but the next part of one that waits."""
        ...

    def report(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        """Return how far the installation under `key` is; None if none was started under it. Begins nothing."""
        ...


class FirmwareInstaller(Installer, Protocol):
    """The node's BMC, which also reports what runs."""

    def active_versions(self, node: NodeName) -> Mapping[Component, str]:
        """Return the active versions of the firmware that the BMC reports; never a staged one."""
        ...


def plain_order(node: NodeName, order: InstallOrder, *, key: ActionKey) -> PlainOrder:
    """Return an order in the words of its direction; raise SourceRefused where it cannot be carried out."""
    if not order.changes:
        raise SourceRefused("the order names no change; empty never means all")
    changes = tuple(_plain_change(change, order) for change in order.changes)
    return PlainOrder(node=parse_node_name(node), key=parse_check_key(key), direction=order.direction, changes=changes)


def _plain_change(change: Change, order: InstallOrder) -> PlainChange:
    what = change.component.value
    if change.component not in order.versions:
        raise SourceRefused(f"{what}: to which version is not stated; it is not known which one the node had")
    version = order.versions[change.component]
    try:
        parse_version(version)
    except ValueError as problem:
        raise SourceRefused(f"{what}: {problem}") from problem
    is_forward = order.direction is Direction.FORWARD
    words = change.install if is_forward else change.rollback
    if not words:
        raise SourceRefused(f"{what}: the release names no command for the way {order.direction.value}")
    artifact: Artifact | None = change.artifact if is_forward else change.rollback_artifacts.get(version)
    if artifact is None and any("{artifact}" in word for word in words):
        raise SourceRefused(f"{what}: no artifact of {version} is named; list it under rollback_artifacts")
    return PlainChange(component=change.component, version=version, words=words, artifact=artifact)


def refuse_words(order: PlainOrder) -> None:
    """Raise SourceRefused if a command of an order is no plain list of words, or would hand a value to a shell."""
    faults = [
        f"{change.component.value}: its command {fault}"
        for change in order.changes
        for fault in find_word_faults(change.words, needed=(), optional=VALUES, unsafe=_UNSAFE)
    ]
    if faults:
        raise SourceRefused("; ".join(faults))


def order_word(node: NodeName, order: InstallOrder, *, key: ActionKey) -> str:
    """Return an order as one word of a command, every word of its own looked at. Raises SourceRefused."""
    plain = plain_order(node, order, key=key)
    refuse_words(plain)
    try:
        return order_to_word(plain)
    except ValueError as problem:
        raise SourceRefused(f"the order does not fit: {problem}") from problem


def worst(reports: Collection[InstallReport]) -> InstallReport:
    """Return the report of an order that several carried out: it is over when all are, and failed when one is."""
    rank = (InstallState.FAILED, InstallState.RUNNING, InstallState.WAITING, InstallState.INSTALLED)
    return min(reports, key=lambda each: rank.index(each.state))


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallNote:
    """Who carries out what was started under one key."""

    means: tuple[Means, ...]
    """In the order in which they are asked."""
    over: frozenset[Means] = frozenset()
    """Those that have installed their part."""

    @property
    def present(self) -> Means:
        """Whose turn it is; the last one's when all are over."""
        return next((each for each in self.means if each not in self.over), self.means[-1])


class InstallNotes:
    """Which means carry out what was started under a key: written before anything is started."""

    def __init__(self, directory: Path, *, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock

    def write(self, node: NodeName, note: InstallNote, *, key: ActionKey) -> None:
        """Raises SourceUnavailable if it cannot be written: nothing is started then."""
        told = {
            "node": node,
            "means": [each.value for each in note.means],
            "over": sorted(each.value for each in note.over),
        }
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._forget_old()
            put_whole(self._file(key), json.dumps(told))
        except OSError as problem:
            raise SourceUnavailable(
                f"{self._directory} cannot be written ({problem}); nothing is started. Check its owner and mode"
            ) from problem

    def read(self, node: NodeName, *, key: ActionKey) -> InstallNote | None:
        """Return the note; None if none of that node is there (another machine may have started it)."""
        file = self._file(key)
        try:
            told = json.loads(file.read_text(encoding="utf-8"))
            if told["node"] != node or not told["means"]:
                return None
            return InstallNote(
                means=tuple(Means(each) for each in told["means"]), over=frozenset(Means(each) for each in told["over"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _forget_old(self) -> None:
        before = (self._clock.now() - _KEPT_FOR).timestamp()
        for file in self._directory.glob("*.json"):
            if file.lstat().st_mtime < before:
                file.unlink(missing_ok=True)

    def _file(self, key: ActionKey) -> Path:
        return self._directory / f"{parse_check_key(key)}.json"


# -- files that outlive the starter --


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
    """What is to be done, in the words of its executor."""


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
        """Return whether this order was started under the key; raise SourceRefused if another one was."""
        if not self.is_known(key):
            return False
        with contextlib.suppress(FileNotFoundError):
            if self.started(key).order != order:
                raise SourceRefused(
                    f"another order was started under {key}: a ledger that starts over gives the same keys once more. "
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
            said=f"cut short, {cause}; the last that it reported: {part.said}",
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
