"""What the lab's configuration says of versions: which nodes have a model, the two releases, the commands of a node.

What a node does with it is `lab_node`'s.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from ops_pipelines.core.identity import NodeName
from ops_pipelines_lab.drills.lab_node import BAD_KERNEL, GOOD_KERNEL, NODES_DIRECTORY
from ops_pipelines_lab.simulator.scenario import Scenario

MODEL = "hgx-h100"
RELEASES_DIRECTORY = "releases"
GOOD_RELEASE, BAD_RELEASE = "kernel-good", "kernel-bad"
_SLOWEST_FAILURE_HOURS = 0.001
"""Four seconds: a drill cannot wait for what shows later, and the release does not claim that it would be found."""


def versioned_nodes(scenario: Scenario) -> tuple[NodeName, ...]:
    """Return the nodes whose versions move: the last two racks, whole."""
    with_model = sorted({node.rack for node in scenario.nodes})[-2:]
    return tuple(node.name for node in scenario.nodes if node.rack in with_model)


def version_commands(state: Path) -> Mapping[str, list[str]]:
    """Return the commands of `fleet` in cluster.yaml: those that a site runs over ssh, here in a directory a node."""
    program = str(Path(sys.executable).with_name("ops-pipelines"))
    installs = f"{state / NODES_DIRECTORY}/{{node}}/installs"
    start = ["--node", "{node}", "--key", "{key}", "--order", "{order}", "--limit", "50"]
    return {
        "start_install": [program, "node-install", "start", *start, "--state", installs],
        "read_install": [program, "node-install", "result", "--key", "{key}", "--state", installs],
        "read_versions": [sys.executable, "-m", "ops_pipelines_lab.drills.lab_node", "versions", str(state), "{node}"],
    }


def write_releases(state: Path) -> None:
    """Write a release that comes up, and one that does not."""
    directory = state / RELEASES_DIRECTORY
    directory.mkdir(exist_ok=True)
    for name, version in ((GOOD_RELEASE, GOOD_KERNEL), (BAD_RELEASE, BAD_KERNEL)):
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(release_of(state, name=name, version=version)))


def release_of(state: Path, *, name: str, version: str) -> Mapping[str, object]:
    words = [sys.executable, "-m", "ops_pipelines_lab.drills.lab_node", "install", str(state), "{node}", "{version}"]
    kernel = {
        "component": "kernel",
        "version": version,
        "install": words,
        "rollback": words,
        "activation": "reboot",
        "reversible": True,
    }
    return {
        "name": name,
        "about": f"Kernel {version}.",
        "models": [MODEL],
        "changes": [kernel],
        "claims": {"slowest_failure_hours": _SLOWEST_FAILURE_HOURS},
    }
