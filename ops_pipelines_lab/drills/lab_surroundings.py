"""What is around the lab's cluster: the site, Alertmanager, and `ops-pipelines serve` with its secrets.

Which processes, their addresses, and what cluster.yaml and prometheus.yml say of them. Without Alertmanager's program
the rest is there, and no alert is sent or silenced; where servers are required that is an error.
"""

import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from ops_pipelines_lab.drills.daemon_processes import Daemons
from ops_pipelines_lab.drills.lab_alertmanager import alertmanager_settings, answers
from ops_pipelines_lab.drills.lab_site import ALARM_SERIES, SiteFiles
from ops_pipelines_lab.drills.stack import LOOPBACK, StackError, free_ports, project_file

ALARM = "NodeDiskIOSaturation"
"""The alert of the site's own exporter. Weak: a name that the catalogue knows, and that calls for nothing by itself."""
CLUSTER_NAME = "lab"
_PROGRAM = "prometheus-alertmanager"
_TOKEN_FILE, _LINK_KEY_FILE, _CHANNELS_FILE = "alerts.token", "link.key", "channels.urls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where what is around the cluster is found."""

    serve_url: str
    alertmanager_url: str | None
    """None where Alertmanager is not installed."""
    token_file: Path
    site: SiteFiles


class Surroundings:
    """The processes around the cluster, below one state directory."""

    def __init__(self, state: Path, *, daemons: Daemons) -> None:
        self._state = state
        self._daemons = daemons
        self._site_port = first = free_ports(3)
        self._alertmanager_port, self._serve_port = first + 1, first + 2
        self._program = shutil.which(_PROGRAM)

    @property
    def addresses(self) -> Addresses:
        alertmanager_url = None if self._program is None else f"http://{LOOPBACK}:{self._alertmanager_port}"
        return Addresses(
            serve_url=f"http://{LOOPBACK}:{self._serve_port}",
            alertmanager_url=alertmanager_url,
            token_file=self._state / _TOKEN_FILE,
            site=SiteFiles(directory=self._state / "site"),
        )

    def refuse_if_required(self) -> None:
        """Raise StackError if Alertmanager is missing where servers are required."""
        if self._program is None and os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1":
            raise StackError(
                f"the program {_PROGRAM} is missing, and OPS_PIPELINES_REQUIRE_SERVERS=1; "
                f"run: apt-get install --no-install-recommends {_PROGRAM}"
            )

    # -- what configurations say of them --

    def cluster_sections(self) -> dict[str, object]:
        """Return the sections of cluster.yaml: messages at once to the site's chat, serve, and Alertmanager."""
        sections: dict[str, object] = {
            "notifier": {
                "kind": "apprise",
                **{f"{who}_urls_file": _CHANNELS_FILE for who in ("owner", "team", "on_call")},
                "group_seconds": 1,
                "burst_count": 100,
                "quiet_hours": "none",
            },
            "serve": {
                "base_url": self.addresses.serve_url,
                "link_key_file": _LINK_KEY_FILE,
                "webhook": {"bearer_token_file": _TOKEN_FILE},
            },
        }
        if self.addresses.alertmanager_url is not None:
            sections["alertmanager"] = {
                "url": self.addresses.alertmanager_url,
                "node_label": "node",
                "labels": {"cluster": CLUSTER_NAME},
            }
        return sections

    def prometheus_sections(self) -> dict[str, object]:
        """Return what prometheus.yml has beside its targets: rules, and who is notified when one of them fires."""
        if self.addresses.alertmanager_url is None:
            return {}
        target = f"{LOOPBACK}:{self._alertmanager_port}"
        return {
            "rule_files": [str(project_file("deploy/prometheus/ops_pipelines.rules.yml")), str(self._rules_file)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [target]}]}]},
        }

    def scrape_jobs(self) -> list[dict[str, object]]:
        """Return the jobs of prometheus.yml for the site's exporter and for our own health."""
        if self.addresses.alertmanager_url is None:
            return []
        return [
            {"job_name": "site", "static_configs": [{"targets": [f"{LOOPBACK}:{self._site_port}"]}]},
            {
                "job_name": "ops_pipelines",
                "scrape_interval": "15s",
                "scrape_timeout": "10s",
                "static_configs": [{"targets": [f"{LOOPBACK}:{self._serve_port}"]}],
            },
        ]

    def write_files(self) -> None:
        """Write secrets and rules; before anything starts."""
        _write_secret(self._state / _TOKEN_FILE, secrets.token_urlsafe(32))
        _write_secret(self._state / _LINK_KEY_FILE, secrets.token_hex(32))
        _write_secret(self._state / _CHANNELS_FILE, f"json://{LOOPBACK}:{self._site_port}/messages\n")
        self._rules_file.write_text(yaml.safe_dump(_RULES))
        self.addresses.site.make()

    # -- the processes --

    def start_monitoring(self, environment: Mapping[str, str]) -> None:
        """Start the site and Alertmanager; do not wait."""
        directory = str(self.addresses.site.directory)
        words = ["-m", "ops_pipelines_lab.drills.lab_site", "--directory", directory, "--port", str(self._site_port)]
        self._daemons.start("site", [sys.executable, *words], env=environment)
        if self._program is None:
            return
        shipped = yaml.safe_load(project_file("deploy/alertmanager/ops_pipelines.yml").read_text())
        configuration = self._state / "alertmanager.yml"
        settings = alertmanager_settings(
            shipped,
            serve_url=self.addresses.serve_url,
            token_file=self.addresses.token_file,
            people_url=f"http://{LOOPBACK}:{self._site_port}/people",
        )
        configuration.write_text(yaml.safe_dump(settings))
        self._daemons.start(
            "alertmanager",
            [
                self._program,
                f"--config.file={configuration}",
                f"--storage.path={self._state / 'alertmanager'}",
                f"--web.listen-address={LOOPBACK}:{self._alertmanager_port}",
                "--cluster.listen-address=",  # else it listens on every address of the machine
            ],
            env=environment,
        )

    def start_serve(self, cluster_file: Path, environment: Mapping[str, str]) -> None:
        """Start `ops-pipelines serve`; do not wait."""
        program = str(Path(sys.executable).with_name("ops-pipelines"))
        words = ["serve", "--cluster", str(cluster_file), "--port", str(self._serve_port)]
        self._daemons.start("serve", [program, *words], env=environment)

    def await_answers(self) -> None:
        """Return once each of them answers; raise DaemonError with the log of the one that does not."""
        asked = {"site": f"http://{LOOPBACK}:{self._site_port}/metrics", "serve": f"{self.addresses.serve_url}/metrics"}
        if self.addresses.alertmanager_url is not None:
            asked["alertmanager"] = f"{self.addresses.alertmanager_url}/-/ready"
        for name, url in asked.items():
            self._daemons.wait_for(name, partial(answers, url))

    @property
    def _rules_file(self) -> Path:
        return self._state / "prometheus" / "site.rules.yml"


_RULES = {
    "groups": [
        {
            "name": "site",
            "interval": "1s",
            "rules": [
                {
                    "alert": ALARM,
                    "expr": f"{ALARM_SERIES} == 1",
                    "annotations": {
                        "summary": "the disk of {{ $labels.node }} is saturated; <b>rm -rf /</b> $(reboot)"
                    },
                }
            ],
        }
    ]
}
"""The site's own rule. Its words would do harm in a shell or in markup."""


def _write_secret(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
