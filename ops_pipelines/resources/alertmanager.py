"""Silences over Alertmanager's API v2. Implements `core.notes.Silencer`; knows what a silence of ours looks like.

Ours are recognised by `createdBy`, which names this cluster's autopilot. Every silence that is sent has the
matcher of one node; a request without it cannot be composed here.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.notes import Silence, WantedSilence
from ops_pipelines.core.sources import SourceNonsense
from ops_pipelines.resources.config.cluster_config import AlertmanagerSettings
from ops_pipelines.resources.http_access import HttpAccess

if TYPE_CHECKING:
    from requests import Response

_MOST_BYTES = 32 * 1_048_576
"""Of one answer: 10,000 alerts have some 10 MiB."""
_SETTLED = timedelta(minutes=10)
"""So long after its start Alertmanager knows what fires: Prometheus sends again every minute or so."""
_PORT = r"(:[0-9]+)?"
_RUNNING = frozenset({"active", "pending"})


class AlertmanagerSilencer:
    """One Alertmanager, or a cluster of them behind one address."""

    def __init__(self, settings: AlertmanagerSettings, *, cluster: str, clock: Clock) -> None:
        """Raise ValueError if `settings` could not work: no URL, a secret in it, or two credentials."""
        self._access = HttpAccess(settings, url=f"{settings.url.rstrip('/')}/api/v2", system="Alertmanager")
        self._settings = settings
        self._url = self._access.url
        self._created_by = f"ops-pipelines/{cluster}"
        self._clock = clock

    def ours(self) -> tuple[Silence, ...]:
        found = self._ask("GET", "/silences")
        if not isinstance(found, list):
            raise SourceNonsense(f"{self._url}/silences answered no list; check that it is an Alertmanager")
        silences = []
        for each in found:
            if isinstance(each, dict) and each.get("createdBy") == self._created_by and _state(each) in _RUNNING:
                silences.append(self._read(each))
        return tuple(silences)

    def silence(self, wanted: WantedSilence, *, starts_at: datetime, ends_at: datetime) -> str:
        return self._post(wanted, starts_at=starts_at, ends_at=ends_at, silence_id=None)

    def renew(self, silence: Silence, wanted: WantedSilence, *, ends_at: datetime) -> str:
        # With its own start and matchers Alertmanager changes it in place; else it ends it and makes another.
        return self._post(wanted, starts_at=silence.starts_at, ends_at=ends_at, silence_id=silence.silence_id)

    def expire(self, silence: Silence) -> None:
        self._ask("DELETE", f"/silence/{quote(silence.silence_id, safe='')}", fine=(404,))

    def standing_alerts(self) -> frozenset[str] | None:
        status = self._ask("GET", "/status")
        started_at = _time(status.get("uptime")) if isinstance(status, dict) else None
        if started_at is None:
            raise SourceNonsense(
                f"{self._url}/status does not say since when it is up; check that it is an Alertmanager"
            )
        if self._clock.now() - started_at < _SETTLED:
            return None
        found = self._ask("GET", "/alerts?active=true&silenced=true&inhibited=true&unprocessed=true")
        if not isinstance(found, list):
            raise SourceNonsense(f"{self._url}/alerts answered no list; check that it is an Alertmanager")
        return frozenset(str(each["fingerprint"]) for each in found if isinstance(each, dict) and "fingerprint" in each)

    def _post(self, wanted: WantedSilence, *, starts_at: datetime, ends_at: datetime, silence_id: str | None) -> str:
        body: dict[str, object] = {
            "matchers": self._matchers(wanted.node),
            "startsAt": _text(starts_at),
            "endsAt": _text(ends_at),
            "createdBy": self._created_by,
            "comment": f"{wanted.incident} {wanted.node} is out of service for planned work; renewed while it lasts",
        }
        if silence_id is not None:
            body["id"] = silence_id
        answer = self._ask("POST", "/silences", body=body)
        found = answer.get("silenceID") if isinstance(answer, dict) else None
        if not isinstance(found, str) or not found:
            raise SourceNonsense(f"{self._url}/silences named no silence that it made; look at its silences")
        return found

    def _matchers(self, node: NodeName) -> list[dict[str, object]]:
        """Return what only the alerts of this node of this cluster match; a port behind the name is tolerated."""
        if not node:
            raise ValueError("a silence without a node would silence everything")
        value = re.escape(node) + _PORT
        named = {"name": self._settings.node_label, "value": value, "isRegex": True, "isEqual": True}
        others: list[dict[str, object]] = [
            {"name": name, "value": value, "isRegex": False, "isEqual": True}
            for name, value in sorted(self._settings.labels.items())
        ]
        return [named, *others]

    def _read(self, found: Mapping[str, object]) -> Silence:
        silence_id, starts_at, ends_at = found.get("id"), _time(found.get("startsAt")), _time(found.get("endsAt"))
        if not isinstance(silence_id, str) or starts_at is None or ends_at is None:
            raise SourceNonsense(f"{self._url}/silences showed a silence without id or times")
        return Silence(
            silence_id=silence_id,
            node=self._node_of(found.get("matchers")),
            comment=str(found.get("comment", "")),
            starts_at=starts_at,
            ends_at=ends_at,
        )

    def _node_of(self, matchers: object) -> NodeName | None:
        """Return the node for which we would write exactly these matchers; None if there is none."""
        if not isinstance(matchers, list) or not all(isinstance(each, dict) for each in matchers):
            return None
        value = next((each.get("value") for each in matchers if each.get("name") == self._settings.node_label), None)
        if not isinstance(value, str) or not value.endswith(_PORT):
            return None
        node = NodeName(value.removesuffix(_PORT).replace("\\", ""))
        if not node:
            return None
        ours = {(m["name"], m["value"], m["isRegex"], m["isEqual"]) for m in self._matchers(node)}
        found = {(m.get("name"), m.get("value"), m.get("isRegex"), m.get("isEqual", True)) for m in matchers}
        return node if found == ours else None

    def _ask(self, method: str, path: str, *, body: object = None, fine: tuple[int, ...] = ()) -> object:
        from requests import RequestException

        with self._access.open({"Content-Type": "application/json"}) as session:
            try:
                with session.request(
                    method,
                    self._url + path,
                    data=None if body is None else json.dumps(body).encode(),
                    timeout=self._access.timeout_seconds,
                    allow_redirects=False,
                    stream=True,
                ) as answer:
                    return None if answer.status_code in fine else self._decode(answer, path=path)
            except RequestException as problem:
                raise self._access.silence(problem) from None

    def _decode(self, answer: "Response", *, path: str) -> object:
        if answer.status_code != 200:
            raise self._access.refusal(answer.status_code, path=path, refused="the silence; check alertmanager.labels")
        read = bytearray()
        for chunk in answer.iter_content(65_536):
            read += chunk
            if len(read) > _MOST_BYTES:
                raise SourceNonsense(f"{self._url} answered more than {_MOST_BYTES // 1_048_576} MiB; expected less")
        try:
            return json.loads(bytes(read)) if read else None
        except (ValueError, RecursionError):
            raise SourceNonsense(f"{self._url} answered no JSON; check that it is an Alertmanager") from None


def _state(found: Mapping[str, object]) -> object:
    status = found.get("status")
    return status.get("state") if isinstance(status, dict) else None


def _time(found: object) -> datetime | None:
    if not isinstance(found, str):
        return None
    try:
        at = datetime.fromisoformat(found)
        return None if at.utcoffset() is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
