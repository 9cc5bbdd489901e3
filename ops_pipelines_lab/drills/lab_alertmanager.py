"""Alertmanager as people see it, through its API: alerts, silences; and webhooks that it never sent.

For drills and their judge: nothing here goes through the adapter that is judged.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path

from ops_pipelines.core.identity import NodeName

_TIMEOUT_SECONDS = 5.0
_OPERATOR = "operator"
_OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
"""Loopback is never asked through a proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSilence:
    """A silence as Alertmanager shows it, whether it still silences or not."""

    silence_id: str
    created_by: str
    comment: str
    state: str
    """active, pending or expired."""
    starts_at: datetime
    ends_at: datetime
    matchers: tuple[str, ...]
    """`name=value`, `name=~value`, as people write them."""

    @property
    def is_running(self) -> bool:
        return self.state != "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAlert:
    """An alert that fires, as Alertmanager shows it."""

    state: str
    """active or suppressed."""
    silenced_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerView:
    """One Alertmanager. While it does not answer there is nothing to see of it, which is no error here."""

    url: str

    def alerts_of(self, node: NodeName) -> tuple[SeenAlert, ...]:
        found = self._ask("/alerts")
        return tuple(
            SeenAlert(state=each["status"]["state"], silenced_by=tuple(each["status"]["silencedBy"]))
            for each in (found if isinstance(found, list) else ())
            if each["labels"].get("node") == node
        )

    def silences(self) -> tuple[SeenSilence, ...]:
        """Return every silence that it remembers, expired ones too, in the order of their start."""
        found = self._ask("/silences")
        seen = [
            SeenSilence(
                silence_id=each["id"],
                created_by=each["createdBy"],
                comment=each["comment"],
                state=each["status"]["state"],
                starts_at=datetime.fromisoformat(each["startsAt"]),
                ends_at=datetime.fromisoformat(each["endsAt"]),
                matchers=tuple(_matcher(each) for each in each["matchers"]),
            )
            for each in (found if isinstance(found, list) else ())
        ]
        return tuple(sorted(seen, key=lambda each: (each.starts_at, each.silence_id)))

    def silence_as_operator(self, node: NodeName, *, now: datetime) -> str:
        """Silence the alerts of a node for a day as a person would; return the silence's id."""
        body = {
            "matchers": [{"name": "node", "value": node, "isRegex": False, "isEqual": True}],
            "startsAt": now.isoformat(),
            "endsAt": (now + timedelta(days=1)).isoformat(),
            "createdBy": _OPERATOR,
            "comment": "OPS-20 firmware of the rack",
        }
        answer = self._ask("/silences", body=body)
        return str(answer["silenceID"]) if isinstance(answer, dict) else ""

    def _ask(self, path: str, *, body: object = None) -> object:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - our own loopback URL
            f"{self.url}/api/v2{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with _OPEN(request, timeout=_TIMEOUT_SECONDS) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return None


def post_webhook(url: str, body: object, *, headers: Mapping[str, str]) -> int:
    """Hand a body to `ops-pipelines serve` as any program could; return its answer's status, 0 if there was none."""
    request = urllib.request.Request(  # noqa: S310 - our own loopback URL
        f"{url}/alerts", json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    )
    try:
        with _OPEN(request, timeout=_TIMEOUT_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except OSError:
        return 0


def answers(url: str) -> bool:
    """Return whether somebody answers there that all is well."""
    try:
        with _OPEN(url, timeout=_TIMEOUT_SECONDS) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


def alertmanager_settings(
    shipped: Mapping[str, object], *, serve_url: str, token_file: Path, people_url: str
) -> object:
    """Return the configuration that deploy/alertmanager ships, for these addresses, and with seconds for minutes."""
    settings = json.loads(json.dumps(shipped))
    soon = {"group_wait": "1s", "group_interval": "1s", "repeat_interval": "5s"}
    for route in settings["route"]["routes"]:
        route.update(soon)
    for receiver in settings["receivers"]:
        if receiver["name"] == "people":
            receiver["webhook_configs"] = [{"url": people_url, "send_resolved": True}]
        for webhook in receiver["webhook_configs"]:
            if "http_config" in webhook:
                webhook["url"] = f"{serve_url}/alerts"
                webhook["http_config"]["authorization"]["credentials_file"] = str(token_file)
    return settings


def _matcher(found: Mapping[str, object]) -> str:
    sign = {(True, True): "=~", (True, False): "!~", (False, True): "=", (False, False): "!="}
    return f"{found['name']}{sign[bool(found['isRegex']), bool(found.get('isEqual', True))]}{found['value']}"
