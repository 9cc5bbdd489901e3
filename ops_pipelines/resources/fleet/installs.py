"""What every way to install has in common: what it must do, the order in plain words, and who has what under a key.

How each carries an order out stands beside: `node_commands` (over ssh), `ansible_installs`, Redfish. Which of them a
change goes to is `composed_fleet`'s.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName, parse_node_name
from ops_pipelines.core.node_tests import parse_check_key
from ops_pipelines.core.release import Artifact, Change, Component, Means
from ops_pipelines.core.rollout import Direction, InstallOrder, InstallReport, InstallState
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.command_words import find_word_faults
from ops_pipelines.resources.fleet.install_documents import PlainChange, PlainOrder, order_to_word, parse_version
from ops_pipelines.resources.whole_file import put_whole

VALUES = frozenset({"{node}", "{version}", "{artifact}", "{key}"})
"""What the words of a change may be filled with."""
_UNSAFE = frozenset({"{version}", "{artifact}"})
"""Of the way back, the version is what a node once said of itself; a path is whatever a release says."""

_KEPT_FOR = timedelta(days=30)


class Installer(Protocol):
    """One way to install. Raises as `core.machines.Fleet` does, and returns within 4.5 s."""

    def start(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        """Start an installation and return at once; the same key starts nothing but the next part of one that waits."""
        ...

    def report(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        """Return how far the installation under `key` is; None if none was started under it. Begins nothing."""
        ...


class FirmwareInstaller(Installer, Protocol):
    """The node's BMC, which also tells what runs."""

    def active_versions(self, node: NodeName) -> Mapping[Component, str]:
        """Return the active versions of the firmware that the BMC tells; never a staged one."""
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
        raise SourceRefused(f"{what}: to which version is not told; it is not known which one the node had")
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
