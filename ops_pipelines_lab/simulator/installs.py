"""Versions on simulated nodes: installations under way, what waits for a restart, and what a restart brings.

Which restart happens when is `world`'s business, whether an installation can be started `commands`', what a bad version
does `faults`'.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.identity import ActionKey
from ops_pipelines.core.release import Activation, Component, Means
from ops_pipelines.core.rollout import InstallReport, InstallState
from ops_pipelines_lab.simulator.faults import ReleaseEffects
from ops_pipelines_lab.simulator.hardware import Node
from ops_pipelines_lab.simulator.journal import InstallCommand
from ops_pipelines_lab.simulator.scenario import Scenario
from ops_pipelines_lab.simulator.versions import FIRMWARE


@dataclass(slots=True, kw_only=True, eq=False)
class _Installation:
    command: InstallCommand
    started_at: datetime
    image_number: int
    state: InstallState = InstallState.RUNNING
    said: str = ""
    changed_at: datetime | None = None


class NodeInstalls:
    """All installations that were ever started, by node and key: what became of them lies where they were started."""

    def __init__(
        self,
        scenario: Scenario,
        effects: ReleaseEffects,
        *,
        later: Callable[[datetime, Callable[[datetime], None]], None],
    ) -> None:
        self._scenario = scenario
        self._effects = effects
        self._later = later
        self._installations: dict[tuple[str, str], _Installation] = {}

    def is_known(self, node: Node, key: str) -> bool:
        """Return whether an installation was started under the key, and its result not lost with the node's disk."""
        return self._find(node, key) is not None

    def is_busy(self, node: Node) -> bool:
        """Return whether an installation runs."""
        return any(each.state is InstallState.RUNNING for each in self._on(node))

    def start(self, node: Node, command: InstallCommand, at: datetime) -> None:
        """Begin an installation; under a key that is known nothing begins."""
        if self.is_known(node, command.key):
            return
        begun = _Installation(command=command, started_at=at, image_number=node.image_number)
        self._installations[node.name, command.key] = begun

        def finish(then: datetime) -> None:
            if begun.state is InstallState.RUNNING:
                self._finish(node, begun, then)

        self._later(at + timedelta(seconds=self._scenario.durations.install_seconds), finish)

    def cut_short(self, node: Node, at: datetime) -> None:
        """End what runs on a node that goes down; its BMC continues."""
        for each in self._on(node):
            if each.state is InstallState.RUNNING and not is_by_bmc(each.command):
                _end(each, InstallState.FAILED, "cut short: the node went down", at)

    def activate(self, node: Node, by: Activation) -> None:
        """Let what waits for a restart of this kind, or for a lesser one, run from now on."""
        for component, (version, needed) in list(node.staged.items()):
            if needed.rank <= by.rank:
                del node.staged[component]
                if not self._effects.comes_up_old(node, component, version):
                    node.versions[component] = version

    def begin_anew(self, node: Node, versions: dict[Component, str]) -> None:
        """Let a node have what the site's image brings: its firmware stays, and what waits for a restart in a chip."""
        node.versions = {
            **versions,
            **{component: version for component, version in node.versions.items() if component in FIRMWARE},
        }
        node.staged = {component: staged for component, staged in node.staged.items() if component in FIRMWARE}

    def is_of_bmc(self, node: Node, key: ActionKey) -> bool:
        """Return whether the node's BMC keeps what became of the installation under the key."""
        found = self._find(node, key)
        return found is not None and is_by_bmc(found.command)

    def read(self, node: Node, key: ActionKey, *, now: datetime) -> InstallReport | None:
        """Return how far the installation under the key is; None if none was started under it."""
        found = self._find(node, key)
        if found is None:
            return None
        passed = (now - found.started_at) / timedelta(seconds=self._scenario.durations.install_seconds)
        is_running = found.state is InstallState.RUNNING
        return InstallReport(
            key=key,
            node=node.name,
            state=found.state,
            said=found.said,
            progress_ratio=min(passed, 1.0) if is_running else None,
            changed_at=found.changed_at or found.started_at,
        )

    def _finish(self, node: Node, installation: _Installation, at: datetime) -> None:
        parts = installation.command.parts
        failing = next((each for each in parts if self._effects.fails_to_install(node, each)), None)
        if failing is not None:
            what = f"{failing.component.value} {failing.version}"
            _end(installation, InstallState.FAILED, f"{what}: dependency problem, nothing was changed", at)
            return
        for part in parts:
            node.staged[part.component] = (part.version, part.activation)
        said = ", ".join(f"{each.component.value} {each.version}" for each in parts)
        _end(installation, InstallState.INSTALLED, said, at)
        self.activate(node, Activation.LIVE)

    def _find(self, node: Node, key: str) -> _Installation | None:
        found = self._installations.get((node.name, key))
        if found is None or is_by_bmc(found.command) or found.image_number == node.image_number:
            return found
        return None

    def _on(self, node: Node) -> tuple[_Installation, ...]:
        return tuple(each for (name, _), each in self._installations.items() if name == node.name)


def is_by_bmc(command: InstallCommand) -> bool:
    """Return whether the node's BMC installs alone: then the node itself need not answer."""
    return all(part.means is Means.REDFISH for part in command.parts)


def _end(installation: _Installation, state: InstallState, said: str, at: datetime) -> None:
    installation.state, installation.said, installation.changed_at = state, said, at
