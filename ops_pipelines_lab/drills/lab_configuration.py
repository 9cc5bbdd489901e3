"""What the lab's configuration says, pure, from addresses and directories: cluster.yaml and prometheus.yml, versions
(which nodes have a model, the two releases, the commands of a node), and teams (contracts, prices, a past of demand).

The past is simulated: the lab lives for minutes, and quotas look back for days. Limits, jobs and accounting are real.
What the files say of Alertmanager, messages and `serve` is `lab_surroundings`'s; writing and starting are `lab`'s; what
a node does with its commands is `lab_node`'s.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path

import yaml

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.core.sources import Lake
from ops_pipelines.resources.config.cluster_config import RebootBy
from ops_pipelines_lab.drills import ask_hardware
from ops_pipelines_lab.drills.lab_hardware import socket_of
from ops_pipelines_lab.drills.lab_node import BAD_KERNEL, GOOD_KERNEL, NODES_DIRECTORY
from ops_pipelines_lab.drills.lab_surroundings import CLUSTER_NAME, Surroundings
from ops_pipelines_lab.drills.recorded_past import pretend_past
from ops_pipelines_lab.drills.stack import LOOPBACK
from ops_pipelines_lab.simulator.past_demand import PastPlan, TeamHabit
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


TEAMS_FILE = "teams.yaml"
PLAIN_MODEL = "hgx-h100-plain"
"""Of racks whose versions stay: what has a price has a model."""
PLATFORM, PRODUCT, RESEARCH = TeamName("platform"), TeamName("product"), TeamName("research")
CAP = 16
"""What platform agreed to never exceed."""
GUARANTEE = 24
"""What product is owed."""
_OLD_PLATFORM, _OLD_PRODUCT = 48, 8
_UNIT = 8
_GIVEN_OUT_RATIO = 0.95
"""The rest is what quotas leave free by default."""
TEAMS: Mapping[str, object] = {
    "timezone": "UTC",
    "teams": [
        {"team": team, "contracts": [{"from": date(2025, 1, 1), "unit": _UNIT, **terms}]}
        for team, terms in {
            RESEARCH: {"guarantee": 32, "weight": 2},
            PRODUCT: {"guarantee": GUARANTEE, "priority": 1},
            PLATFORM: {"guarantee": 8, "cap": CAP},
        }.items()
    ],
}
PRICES: Mapping[str, object] = {
    "currency": "EUR",
    "assets": [
        {"asset": model, "priced_by": "node", "capex": "300000.00", "amortized_months": 48}
        for model in (MODEL, PLAIN_MODEL)
    ],
    "per_kwh": "0.12",
    "pue": "1.58",
    "unmeasured_watts_per_gpu": "1275",
}
"""Assumption: the example of the shipped cluster.yaml."""
_PAST = PastPlan(
    habits=(
        TeamHabit(team=PLATFORM, quota=_OLD_PLATFORM, base=11, by_day=2),
        TeamHabit(team=PRODUCT, quota=_OLD_PRODUCT, base=20, by_day=2),
        TeamHabit(team=RESEARCH, quota=64, base=40, by_day=6),
    ),
    noise_ratio=0.02,
)
_WEEKS = 1


def old_limits(gpu_count: int) -> Mapping[str, int]:
    """Return limits as somebody set them before there were contracts: platform has too much, product too little."""
    given_out = int(gpu_count * _GIVEN_OUT_RATIO) // _UNIT * _UNIT
    return {PLATFORM: _OLD_PLATFORM, PRODUCT: _OLD_PRODUCT, RESEARCH: given_out - _OLD_PLATFORM - _OLD_PRODUCT}


def pretend_labs_past(lake: Lake, *, now: datetime) -> int:
    """Write the week before `now` into the lake; return how many hours were written."""
    return pretend_past(lake, now=now, weeks=_WEEKS, plan=_PAST)


_PLAIN_ACTS = ("inspect", "reboot", "power_off", "power_on", "power_state")


def prometheus_settings(
    scenario: Scenario, around: Surroundings, *, exporter_port: int, own_port: int
) -> Mapping[str, object]:
    """Return prometheus.yml: every node each second, the facility, itself, and what is around."""
    nodes = [
        {
            "targets": [f"{LOOPBACK}:{exporter_port}"],
            "labels": {"__metrics_path__": f"/metrics/{node.name}", "instance": node.name},
        }
        for node in scenario.nodes
    ]
    facility = {"targets": [f"{LOOPBACK}:{exporter_port}"], "labels": {"__metrics_path__": "/facility"}}
    return {
        "global": {
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "external_labels": {"cluster": CLUSTER_NAME},  # on what leaves Prometheus: alerts
        },
        **around.prometheus_sections(),
        "scrape_configs": [
            {"job_name": "nodes", "static_configs": nodes},
            {
                "job_name": "facility",
                "static_configs": [facility],
                "metric_relabel_configs": [{"action": "labeldrop", "regex": "instance"}],
            },
            {"job_name": "prometheus", "static_configs": [{"targets": [f"{LOOPBACK}:{own_port}"]}]},
            *around.scrape_jobs(),
        ],
    }


def cluster_settings(
    state: Path,
    scenario: Scenario,
    around: Surroundings,
    *,
    slurm_conf: Path,
    prometheus_url: str,
    logs: Sequence[Path],
    checkpoints: Path,
    ledger_url_file: str,
    reboot_by: RebootBy = RebootBy.COMMAND,
) -> Mapping[str, object]:
    """Return cluster.yaml: the real Slurm and Prometheus, and machines that are commands on the twin.

    Two racks have the model whose versions move, and programs of their own for them.
    """
    racks: dict[str, list[str]] = {}
    for node in scenario.nodes:
        racks.setdefault(node.rack, []).append(node.name)
    versioned = set(versioned_nodes(scenario))
    acts = [verb for verb in _PLAIN_ACTS if verb != "reboot" or reboot_by is RebootBy.COMMAND]
    hardware = [sys.executable, "-I", "-S", ask_hardware.__file__, str(socket_of(state))]
    return {
        "name": CLUSTER_NAME,
        "state_directory": ".",
        "policy": "policy.yaml",
        "gpus_per_node": scenario.gpus_per_node,
        "racks": [
            {
                "name": rack,
                "nodes": ",".join(nodes),
                "model": MODEL if versioned.issuperset(nodes) else PLAIN_MODEL,
            }
            for rack, nodes in racks.items()
        ],
        "scheduler": {"kind": "slurm", "slurm_conf": str(slurm_conf), "checkpoint_roots": [str(checkpoints)]},
        "telemetry": {"kind": "prometheus", "url": prometheus_url, "step_seconds": 1, "look_back_seconds": 5},
        "logs": {"kind": "files", "paths": [str(path) for path in logs]},
        "fleet": {
            "kind": "commands",
            "reboot_by": reboot_by.value,
            **{verb: [*hardware, verb, str(state), "{node}"] for verb in acts},
            "reset_gpu": [*hardware, "reset_gpu", str(state), "{node}", "{gpu}"],
            "start_check": [*hardware, "start_check", str(state), "{node}", "{key}", "{suite}", "{tests}"],
            "read_check": [*hardware, "read_check", str(state), "{node}", "{key}"],
            **version_commands(state),
        },
        "releases": RELEASES_DIRECTORY,
        "lake": {"step_seconds": 5},
        "job_logs": {"kind": "files", "paths": [str(checkpoints / "%j.out")]},
        "ledger": {"url_file": ledger_url_file},
        "teams": TEAMS_FILE,
        "quotas": {"limits": "total"},
        "prices": PRICES,
        **around.cluster_sections(),
    }
