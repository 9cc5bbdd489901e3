"""Installs by playbooks of the site, through ansible-runner: one node as the whole inventory, one run for each key.

A change names its playbook and variables: `install: [driver.yml, "driver_version={version}"]`. The playbook is a file
of the directory that cluster.yaml names; `hosts: all` means the node. Every playbook also gets `ops_component`,
`ops_version`, `ops_direction`, `ops_key`, and of an artifact `ops_artifact` and `ops_artifact_sha256`: comparing the
hash is the playbook's. The run is a process of its own (`ansible_run`); its files lie in the state directory.

ansible-runner is imported by that process alone; whether it is there is asked when something is to be installed.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.rollout import InstallOrder, InstallReport
from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.command_words import fill, placeholders_in
from ops_pipelines.resources.config.cluster_config import AnsibleSettings
from ops_pipelines.resources.fleet.install_directory import InstallDirectory
from ops_pipelines.resources.fleet.install_documents import PlainChange, PlainOrder
from ops_pipelines.resources.fleet.installs import VALUES, plain_order
from ops_pipelines.resources.node_tests.tool_runs import tool_environment

_MODULE = "ops_pipelines.resources.fleet.ansible_run"
_PLAYBOOK = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*\.ya?ml")
_VARIABLE = re.compile(r"([a-z_][a-z0-9_]{0,63})=(.*)", re.DOTALL)
_TEMPLATES = ("{{", "{%", "{#")
"""What Jinja would take for an expression: a variable that holds one is run on our machine."""
_OURS = "ops_"


class AnsibleInstalls:
    """The playbooks of a site. Raises as `core.machines.Fleet` does."""

    def __init__(self, settings: AnsibleSettings, directory: Path, *, clock: Clock) -> None:
        self._settings = settings
        self._files = InstallDirectory(directory, clock=clock)

    def start(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        """Start the playbooks of an order, one after another in one process, and return at once."""
        plain = plain_order(node, order, key=key)
        plays = [self._play_of(change, plain) for change in plain.changes]
        missing = find_missing()
        if missing:
            raise SourceRefused(missing)
        told = {"playbooks": str(self._settings.playbooks), "plays": plays}
        try:
            with self._files.starting():
                if self._files.is_begun(plain.key, told):
                    return
                for other, running in self._files.running():
                    if running.get("node") == node:
                        raise SourceUnavailable(f"the installation {other} still runs on {node}; wait for it")
                self._files.begin(
                    plain.key,
                    node=plain.node,
                    order=told,
                    limit_seconds=self._settings.limit.total_seconds(),
                    module=_MODULE,
                )
        except (OSError, ValueError) as problem:
            raise SourceUnavailable(
                f"{self._files.path} cannot be used: {problem}. Check its owner and mode"
            ) from problem

    def report(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        try:
            report = self._files.report(key)
        except (ValueError, OSError) as problem:
            raise SourceNonsense(f"the files of {key} in {self._files.path} make no sense: {problem}") from problem
        if report is not None and report.node != node:
            raise SourceNonsense(f"{key} is an installation of {report.node}, not of {node}")
        return report

    def _play_of(self, change: PlainChange, order: PlainOrder) -> dict[str, object]:
        what, (playbook, *words) = change.component.value, change.words
        place = self._settings.playbooks
        if not _PLAYBOOK.fullmatch(playbook):
            raise SourceRefused(f"{what}: {playbook[:80]!r} is no playbook; expected a file such as driver.yml")
        if not (place / playbook).is_file() or not (place / playbook).resolve().is_relative_to(place.resolve()):
            raise SourceRefused(f"{what}: there is no playbook {playbook} in {place} (fleet.ansible.playbooks)")
        return {"playbook": playbook, "variables": _variables_of(change, words, order)}


def find_missing() -> str:
    """Return what must be installed before a playbook can be run; empty if nothing must."""
    lacking = [name for name, is_there in (
        ("ansible-runner", find_spec("ansible_runner") is not None),
        ("ansible-core", shutil.which("ansible-playbook", path=program_path()) is not None),
    ) if not is_there]  # fmt: skip
    if not lacking:
        return ""
    return f"{' and '.join(lacking)} is not installed here; run: pip install 'ops-pipelines[ansible]'"


def program_path() -> str:
    """Return where programs are looked for: beside our own Python first, then where the system has them."""
    return f"{Path(sys.executable).parent}:{tool_environment(os.environ)['PATH']}"


def _variables_of(change: PlainChange, words: list[str], order: PlainOrder) -> Mapping[str, str]:
    what = change.component.value
    location = "" if change.artifact is None else change.artifact.location
    filling = {"{node}": order.node, "{version}": change.version, "{key}": order.key, "{artifact}": location}
    variables: dict[str, str] = {}
    for word in words:
        match = _VARIABLE.fullmatch(word)
        unknown = placeholders_in([word]) - VALUES
        if match is None or match[1].startswith(_OURS) or match[1] in variables or unknown:
            raise SourceRefused(
                f"{what}: {word[:80]!r} is no variable; expected name=value once, no name that begins with {_OURS}, "
                f"and of placeholders {', '.join(sorted(VALUES))}"
            )
        variables[match[1]] = fill(match[2], filling)
    variables |= {
        "ops_component": what,
        "ops_version": change.version,
        "ops_direction": order.direction.value,
        "ops_key": order.key,
        "ops_artifact": location,
        "ops_artifact_sha256": "" if change.artifact is None else change.artifact.sha256,
    }
    for name, value in variables.items():
        if any(mark in value for mark in _TEMPLATES):
            raise SourceRefused(f"{what}: the variable {name} holds a template; playbooks would run it")
    return variables
