"""What the lab's cluster.yaml and prometheus.yml say: pure, from addresses and directories.

What they say of Alertmanager, messages and `serve` is `lab_surroundings`'s; writing and starting are `lab`'s.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops_pipelines.resources.config.cluster_config import RebootBy
from ops_pipelines_lab.drills import ask_hardware
from ops_pipelines_lab.drills.lab_hardware import socket_of
from ops_pipelines_lab.drills.lab_surroundings import CLUSTER_NAME, Surroundings
from ops_pipelines_lab.drills.lab_teams import PLAIN_MODEL, PRICES, TEAMS_FILE
from ops_pipelines_lab.drills.lab_versions import MODEL, RELEASES_DIRECTORY, version_commands, versioned_nodes
from ops_pipelines_lab.drills.stack import LOOPBACK
from ops_pipelines_lab.simulator.scenario import Scenario

_PLAIN_ACTS = ("inspect", "reboot", "power_off", "power_on", "power_state")


def prometheus_settings(
    scenario: Scenario, around: Surroundings, *, exporter_port: int, own_port: int
) -> Mapping[str, object]:
    """Return prometheus.yml: every node each second, the facility, itself, and what stands around."""
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
