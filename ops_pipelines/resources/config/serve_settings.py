"""What `ops-pipelines serve` needs beside the cluster: its own address for people, its secrets, the alerts it takes.

Values only: reading them is `files`, serving is `server`. Secrets stay in their files and are read when needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Who may hand alerts in, and how much. Without a secret of either kind every alert is refused."""

    bearer_token_file: Path | None = None
    hmac_key_file: Path | None = None
    """Of `X-Signature-256: sha256=<hex of HMAC-SHA256 over the body>`."""
    max_body_bytes: int = 1_048_576
    max_requests_per_minute_count: int = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerSettings:
    """The Alertmanager in which alerts of planned work are silenced."""

    url: str
    """http(s)://host[:port][/path], without /api/v2."""
    node_label: str = "node"
    """The label of its alerts that names the node; a port behind the name is tolerated."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Label values that its alerts of this cluster carry; empty where it knows this cluster only."""
    bearer_token_file: Path | None = None
    basic_auth_user: str | None = None
    basic_auth_password_file: Path | None = None
    ca_file: Path | None = None
    timeout: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What the web process of one cluster needs."""

    base_url: str | None = None
    """How people reach it, `https://ops.example.org/gpu`; None: no message carries a link."""
    link_key_file: Path | None = None
    """Signs approval links; None: approvals come from the command line and the UI only."""
    link_life: timedelta = timedelta(hours=4)
    webhook: WebhookSettings = WebhookSettings()
