"""Installs by the site's playbooks, through ansible-runner: one node as the whole inventory, one process for each key.

A change names its playbook and variables: `install: [driver.yml, "driver_version={version}"]`. The playbook is a file
of the directory that cluster.yaml names; `hosts: all` means the node. Every playbook also gets `ops_component`,
`ops_version`, `ops_direction`, `ops_key`, and of an artifact `ops_artifact` and `ops_artifact_sha256`: comparing the
hash is the playbook's.

The playbooks of one order run in a process of their own, this module with the arguments `DIRECTORY KEY`; its files lie
in the state directory. ansible-runner is imported by that process alone; whether it is there is asked when something is
to be installed. A playbook has succeeded when ansible says so and has done something on the node: one whose `hosts` do
not match ends with 0 as well. Host keys are checked, which ansible-runner leaves off; a site may set
`ansible_host_key_checking` in group_vars.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.node_tests import parse_check_key
from ops_pipelines.core.rollout import InstallOrder, InstallReport, InstallState
from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import fill, placeholders_in, tool_environment
from ops_pipelines.resources.config.cluster_config import AnsibleSettings
from ops_pipelines.resources.fleet.documents import PlainChange, PlainOrder
from ops_pipelines.resources.fleet.installs import VALUES, InstallDirectory, StartedInstall, plain_order

# -- the installer --


_MODULE = "ops_pipelines.resources.fleet.ansible"
_PLAYBOOK = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*\.ya?ml")
_VARIABLE = re.compile(r"([a-z_][a-z0-9_]{0,63})=(.*)", re.DOTALL)
_TEMPLATES = ("{{", "{%", "{#")
"""What Jinja would take for an expression: a variable that holds one is run on our machine."""
_OURS = "ops_"


class AnsibleInstalls:
    """The playbooks of a site. Raises as `core.cluster.Fleet` does."""

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


# -- the process that runs the playbooks --


_KEPT = ("HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "SSH_AUTH_SOCK", "KRB5CCNAME")
"""Of our environment: ansible-runner writes what it is given into a file, secrets included."""
_FAILED_EVENTS = frozenset({"runner_on_failed", "runner_on_unreachable"})
_LONGEST_SAID = 300


class _Run(Protocol):
    """What ansible-runner returns, as far as it is read."""

    status: str
    stats: Mapping[str, Mapping[str, int]] | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the order that was started under a key."""
    from ops_pipelines.clock import SystemClock

    directory, key = sys.argv[1:] if arguments is None else arguments
    files = InstallDirectory(Path(directory), clock=SystemClock())
    started = files.take_over(parse_check_key(key), pid=os.getpid())
    environment = plain_environment(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        problem = run_plays(started, files)
    # Ansible's own faults, whatever they are: without a word the run would only be cut short.
    except Exception as crash:
        problem = f"ansible-runner broke: {type(crash).__name__}: {crash}"[:_LONGEST_SAID]
    plays = cast("Sequence[Mapping[str, object]]", started.order["plays"])
    names = ", ".join(str(play["playbook"]) for play in plays)
    state = InstallState.FAILED if problem else InstallState.INSTALLED
    files.finish(started, state, problem or f"{names} ended well on {started.node}")
    return 0


def plain_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return what playbooks get of our environment: no secrets, and ansible's own settings."""
    kept = {name: value for name, value in given.items() if name in _KEPT or name.startswith("ANSIBLE_")}
    # Ansible refuses to begin where the locale is not UTF-8, and a service has often none.
    return {"ANSIBLE_HOST_KEY_CHECKING": "True", "LC_ALL": "C.UTF-8", **kept, "PATH": program_path()}


def run_plays(started: StartedInstall, files: InstallDirectory) -> str:
    """Run the playbooks in their order; return why the first that failed did, empty if none did."""
    ends_at = time.monotonic() + started.limit_seconds
    plays = cast("Sequence[Mapping[str, object]]", started.order["plays"])
    for number, play in enumerate(plays):
        left = ends_at - time.monotonic()
        problem = _run_play(play, number, started, files, share=number / len(plays), limit_seconds=left)
        if problem:
            return f"{play['playbook']} {problem}"
    return ""


def _run_play(
    play: Mapping[str, object],
    number: int,
    started: StartedInstall,
    files: InstallDirectory,
    *,
    share: float,
    limit_seconds: float,
) -> str:
    import ansible_runner  # type: ignore[import-untyped]  # it ships no types

    said: list[str] = []
    place = files.path / started.key
    place.mkdir(mode=0o700, exist_ok=True)
    files.keep(started, f"{play['playbook']} begins", progress_ratio=share)
    if limit_seconds < 1.0:
        return "was not started: no time was left"

    def keep_task(task: str) -> None:
        files.keep(started, f"{play['playbook']}: {task}"[:_LONGEST_SAID], progress_ratio=share)

    run: _Run = ansible_runner.run(
        private_data_dir=str(place),
        project_dir=str(started.order["playbooks"]),
        playbook=play["playbook"],
        inventory={"all": {"hosts": {started.node: {}}}},
        extravars=play["variables"],
        ident=str(number),
        timeout=int(limit_seconds),
        quiet=True,
        event_handler=_listen(keep_task, said),
    )
    return _problem_of(run, started.node, said)


def _listen(keep_task: Callable[[str], None], said: list[str]) -> Callable[[Mapping[str, object]], bool]:
    def hear(event: Mapping[str, object]) -> bool:
        data = event.get("event_data")
        told = data if isinstance(data, dict) else {}
        if event.get("event") == "playbook_on_task_start":
            keep_task(str(told.get("task", "")))
        if event.get("event") in _FAILED_EVENTS and not told.get("ignore_errors"):
            result = told.get("res")
            words = result.get("msg") if isinstance(result, dict) else ""
            said.append(f"{told.get('task', 'a task')}: {words or 'it failed'}")
        return True

    return hear


def _problem_of(run: _Run, node: str, said: Sequence[str]) -> str:
    """Return why a run is no success; empty if it is one."""
    why = f": {said[-1]}" if said else ""
    stats = run.stats or {}
    if run.status == "timeout":
        return "did not end in time and was ended"
    if run.status != "successful" or node in stats.get("failures", {}) or node in stats.get("dark", {}):
        return f"ended as {run.status}{why}"[:_LONGEST_SAID]
    if node not in stats.get("processed", {}):
        return "did nothing: its hosts do not match the node; expected `hosts: all`"
    return ""


if __name__ == "__main__":
    raise SystemExit(main())
