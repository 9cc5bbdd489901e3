"""How installations by playbooks are reached: the values of `fleet.ansible`, and what is not yet as it should be.

Running a playbook is `resources.fleet.ansible`; here nothing is opened or read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

DEFAULT_ANSIBLE_LIMIT = timedelta(minutes=55)
"""A little less than `rollouts.install_limit_seconds`: a playbook is over when the node is given up."""
_TOGETHER = (("start_install", "read_install"), ("start_check", "read_check"))
PAIRS = (*_TOGETHER, *((second, first) for first, second in _TOGETHER))
"""Commands that are of no use without the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsibleSettings:
    """Where the site's playbooks are."""

    playbooks: Path
    """A directory: releases name files in it; its `ansible.cfg`, `group_vars` and `host_vars` hold."""
    limit: timedelta = DEFAULT_ANSIBLE_LIMIT
    """What one installation may take."""


def find_install_gaps(
    commands: Mapping[str, tuple[str, ...]], ansible: AnsibleSettings | None, *, missing: str
) -> tuple[str, ...]:
    """Return what works but would fail a rollout, in words for the operator; `missing` is what ansible lacks."""
    gaps = []
    installs = [
        f"fleet.{key}" for key, is_there in (("start_install", "start_install" in commands), ("ansible", ansible))
        if is_there
    ]  # fmt: skip
    if installs and "read_versions" not in commands:
        gaps.append(
            f"{' and '.join(installs)} installs, but fleet.read_versions is not set: what runs afterwards is not seen, "
            "and every node of a rollout fails"
        )
    if ansible is not None and missing:
        gaps.append(f"fleet.ansible: {missing}")
    return tuple(gaps)
