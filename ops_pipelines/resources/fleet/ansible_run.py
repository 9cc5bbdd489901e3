"""The process that runs the playbooks of one order; its arguments are `DIRECTORY KEY`.

What is run, and where its files are, was decided by `ansible_installs`. A playbook has succeeded when ansible says so
and has done something on the node: one whose `hosts` do not match ends with 0 as well. Host keys are checked, which
ansible-runner leaves off; `ansible_host_key_checking` in group_vars is the site's say.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from ops_pipelines.core.node_tests import parse_check_key
from ops_pipelines.core.rollout import InstallState
from ops_pipelines.resources.fleet.ansible_installs import program_path
from ops_pipelines.resources.fleet.install_directory import InstallDirectory, StartedInstall

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
    except (
        Exception
    ) as crash:  # ansible's own faults, whatever they are: without a word the run would only be cut short
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
        return "was not begun: no time was left"

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
