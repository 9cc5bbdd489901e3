"""The `Fleet` port of a site: its commands, and beside them whoever else installs. Sends each change to its means.

Changes of one step with the same means are one order, in their order. Where a step has several means, each gets its own
order under the same key, one after another, as the release names them first: no BMC restarts anything while a command
installs. The next one begins when the step is asked for again; every one is known to be offered before the first does.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Protocol, TypeVar

from ops_pipelines.core.identity import ActionKey, NodeName, PciAddress
from ops_pipelines.core.machines import NOT_OFFERED
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.observation import NodeInspection, PowerState
from ops_pipelines.core.release import Component, Means
from ops_pipelines.core.rollout import InstallOrder, InstallReport, InstallState
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines.resources.fleet.installs import FirmwareInstaller, Installer, InstallNote, InstallNotes, worst
from ops_pipelines.resources.fleet.node_commands import CommandFleet

Answer = TypeVar("Answer")
_KEYS: Mapping[Means, str] = {
    Means.COMMAND: "fleet.start_install and fleet.read_install",
    Means.ANSIBLE: "fleet.ansible",
    Means.REDFISH: "fleet.redfish",
}
"""What cluster.yaml must say before a means is there."""


class Reboots(Protocol):
    """Restarts nodes in the place of a command. Raises as `core.machines.Fleet` does."""

    def reboot(self, node: NodeName) -> None:
        """Restart a node that answers and runs no job. The drain survives the reboot."""
        ...


class ComposedFleet:
    """Acts on machines by commands; installs by commands, playbooks and BMCs, as far as each is configured."""

    def __init__(
        self,
        commands: CommandFleet,
        *,
        notes: InstallNotes,
        ansible: Installer | None = None,
        firmware: FirmwareInstaller | None = None,
        reboots: Reboots | None = None,
    ) -> None:
        """`reboots`: who restarts nodes; None: the site's command."""
        self._commands = commands
        self._notes = notes
        self._firmware = firmware
        self._reboots = reboots
        by_command = _ByCommand(commands) if commands.offers("start_install") else None
        found = {Means.COMMAND: by_command, Means.ANSIBLE: ansible, Means.REDFISH: firmware}
        self._installers: Mapping[Means, Installer] = {
            means: installer for means, installer in found.items() if installer is not None
        }

    # -- installations --

    def start_install(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        orders = self._by_means(order)
        note = self._notes.read(node, key=key)
        if note is None or set(note.means) != orders.keys():
            note = InstallNote(means=tuple(orders))
            self._notes.write(node, note, key=key)
        self._installers[note.present].start(node, orders[note.present], key=key)

    def read_install(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        note = self._notes.read(node, key=key)
        if note is None:
            return self._report_of_any(node, key=key)
        means = note.present
        if means not in self._installers:
            raise _not_offered(means)
        report = self._installers[means].report(node, key=key)
        if report is None and note.over:
            said = f"by {means.value} nothing is started yet"
            return InstallReport(key=key, node=node, state=InstallState.WAITING, said=said)
        if report is None or report.state is not InstallState.INSTALLED or means is note.means[-1]:
            return report
        note = replace(note, over=note.over | {means})
        self._notes.write(node, note, key=key)
        return _waiting(report, f"by {note.present.value} it goes on")

    def _by_means(self, order: InstallOrder) -> Mapping[Means, InstallOrder]:
        """Return what each means is to install; raise SourceRefused where one is not offered."""
        orders = {
            means: replace(order, changes=tuple(change for change in order.changes if change.means is means))
            for means in dict.fromkeys(change.means for change in order.changes)
        }
        if not orders:
            raise SourceRefused("the order names no change; empty never means all")
        for means in orders:
            if means not in self._installers:
                raise _not_offered(means)
        return orders

    def _report_of_any(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        """Return what anybody tells of a key of which we have no note: whether that is all of it, nobody knows."""
        asked = [_beside(partial(each.report, node, key=key)) for each in self._installers.values()]
        reports: list[InstallReport] = []
        problems: list[SourceError] = []
        for future in asked:
            try:
                told = future.result()
            except SourceError as problem:
                problems.append(problem)
            else:
                reports += [] if told is None else [told]
        report = worst(reports) if reports else None
        if problems and (report is None or report.state is not InstallState.FAILED):
            raise problems[0]
        if report is None or report.state is not InstallState.INSTALLED or len(self._installers) == 1:
            return report
        return _waiting(report, "whether that is all of it is seen when it is asked for again")

    def read_versions(self, node: NodeName) -> Mapping[Component, str]:
        """Return what the node tells, and of firmware that it cannot tell what its BMC does.

        Where both tell, the node is believed: it runs it, a BMC may show what is only staged.
        """
        askers: list[Callable[[], Mapping[Component, str]]] = []
        if self._commands.offers("read_versions"):
            askers.append(lambda: self._commands.read_versions(node))
        firmware = self._firmware
        if firmware is not None:
            askers.append(lambda: firmware.active_versions(node))
        if not askers:
            raise SourceRefused(f"{NOT_OFFERED} read_versions; name one under fleet in cluster.yaml")
        told: dict[Component, str] = {}
        problems: list[SourceError] = []
        for future in [_beside(ask) for ask in askers]:
            try:
                told = {**future.result(), **told}
            except SourceError as problem:
                problems.append(problem)
        if len(problems) == len(askers):
            raise problems[0]
        return told

    def reload_driver(self, node: NodeName) -> None:
        self._commands.reload_driver(node)

    # -- as the commands have it --

    def inspect(self, node: NodeName) -> NodeInspection:
        return self._commands.inspect(node)

    def reset_gpu(self, node: NodeName, gpu: PciAddress) -> None:
        self._commands.reset_gpu(node, gpu)

    def reboot(self, node: NodeName, *, reason: str) -> None:
        if self._reboots is not None:
            self._reboots.reboot(node)
            return
        self._commands.reboot(node, reason=reason)

    def reimage(self, node: NodeName, *, reason: str) -> None:
        self._commands.reimage(node, reason=reason)

    def start_check(self, node: NodeName, *, suite: str, tests: Collection[str], key: ActionKey) -> None:
        self._commands.start_check(node, suite=suite, tests=tests, key=key)

    def read_check(self, node: NodeName, *, key: ActionKey) -> NodeCheck | None:
        return self._commands.read_check(node, key=key)

    def power_off(self, node: NodeName) -> None:
        self._commands.power_off(node)

    def power_on(self, node: NodeName) -> None:
        self._commands.power_on(node)

    def power_state(self, node: NodeName) -> PowerState:
        return self._commands.power_state(node)


class _ByCommand:
    """Commands as one way to install among others."""

    def __init__(self, commands: CommandFleet) -> None:
        self._commands = commands

    def start(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        self._commands.start_install(node, order, key=key)

    def report(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        return self._commands.read_install(node, key=key)


def _beside(ask: Callable[[], Answer]) -> Future[Answer]:
    """Ask in a thread of its own: each answers within the port's limit, and so do all together."""
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as problem:
            answer.set_exception(problem)

    Thread(target=run, daemon=True).start()
    return answer


def _not_offered(means: Means) -> SourceRefused:
    return SourceRefused(f"{NOT_OFFERED} installing by {means.value}; set {_KEYS[means]} in cluster.yaml")


def _waiting(report: InstallReport, what_is_next: str) -> InstallReport:
    said = f"{report.said}; {what_is_next}"
    return replace(report, state=InstallState.WAITING, said=said, progress_ratio=None)
