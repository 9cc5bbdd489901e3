"""The webhook over HTTP: who may hand alerts in, what is refused before it is read, and what becomes of the rest."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from ops_pipelines import server
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.observe.alerts import fired
from ops_pipelines.resources.config.cluster_config import AlertmanagerSettings, ServeSettings, WebhookSettings
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.server import build_app, sender_of
from tests.shell.desk import Desk

TOKEN, KEY = "hunter2-token", "hunter2-key"
RECORDED = (Path("tests/data/alertmanager") / "firing-two-nodes.json").read_bytes()
JSON = {"content-type": "application/json"}
BEARER = JSON | {"authorization": f"Bearer {TOKEN}"}
LIMIT = 4_096


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: str


@dataclass
class Sending:
    """One request: its chunks as they come, and how many of them were asked for."""

    chunks: list[bytes] = field(default_factory=list)
    taken_count: int = 0
    is_endless: bool = False
    is_cut_off: bool = False

    async def receive(self) -> MutableMapping[str, Any]:
        if self.taken_count >= len(self.chunks):
            if self.is_endless:
                await asyncio.sleep(60)
            return {"type": "http.disconnect"}
        self.taken_count += 1
        is_last = self.taken_count == len(self.chunks) and not (self.is_endless or self.is_cut_off)
        return {"type": "http.request", "body": self.chunks[self.taken_count - 1], "more_body": not is_last}


async def ask(
    app: Starlette, sending: Sending, headers: dict[str, str], *, method: str = "POST", path: str = "/alerts"
) -> Answer:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
    }  # fmt: skip
    await app(scope, sending.receive, send)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, b"".join(each.get("body", b"") for each in sent[1:]).decode())


def post(app: Starlette, body: bytes, headers: dict[str, str] | None = None) -> Answer:
    given = BEARER if headers is None else headers
    return asyncio.run(ask(app, Sending([body]), given | {"content-length": str(len(body))}))


def sign(body: bytes, key: str = KEY) -> dict[str, str]:
    return JSON | {"x-signature-256": "sha256=" + hmac.new(key.encode(), body, hashlib.sha256).hexdigest()}


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> WebhookSettings:
    directory = tmp_path_factory.mktemp("secrets")
    (directory / "token").write_text(f"{TOKEN}\n")
    (directory / "key").write_text(KEY)
    return WebhookSettings(
        bearer_token_file=directory / "token", hmac_key_file=directory / "key", max_body_bytes=LIMIT
    )  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.fixture
def cluster(desk: Desk, tmp_path: Path) -> Cluster:
    return replace(desk.cluster, ledger=SqlLedger(f"sqlite:///{tmp_path / 'ledger.sqlite'}"))


def app_for(cluster: Cluster, webhook: WebhookSettings) -> Starlette:
    return build_app(lambda: cluster, settings=ServeSettings(webhook=webhook))


@pytest.fixture
def app(cluster: Cluster, secrets: WebhookSettings) -> Starlette:
    return app_for(cluster, secrets)


def rejected_count(cluster: Cluster) -> int:
    return len(cluster.ledger.rejected(limit=100))


# -- taken --


def test_recorded_delivery_is_evidence_once(app: Starlette, cluster: Cluster) -> None:
    first, second = post(app, RECORDED), post(app, RECORDED)

    assert (first.status, json.loads(first.body)["new_count"], json.loads(second.body)["new_count"]) == (200, 2, 0)
    assert sorted(each.node for each in fired(cluster)) == ["gpu003", "gpu004"]
    assert len(cluster.ledger.evidence_after(0, limit=10)) == 2


def test_signed_body_is_taken(app: Starlette) -> None:
    assert post(app, RECORDED, sign(RECORDED)).status == 200


def test_alerts_of_unknown_machines_and_other_clusters_are_kept_with_their_reason(
    cluster: Cluster, secrets: WebhookSettings
) -> None:
    of_one = AlertmanagerSettings(url="http://am.example", labels={"cluster": "lab"})
    app = build_app(lambda: cluster, settings=ServeSettings(webhook=secrets), sender=sender_of(of_one))

    answer = post(app, RECORDED)

    assert (answer.status, json.loads(answer.body)["rejected_count"]) == (200, 2)
    assert "another cluster" in cluster.ledger.rejected(limit=1)[0].reason


# -- refused --


@pytest.mark.parametrize(
    "headers",
    [
        JSON,
        JSON | {"authorization": "Bearer "},
        JSON | {"authorization": f"Bearer {TOKEN[:-1]}"},
        JSON | {"authorization": f"Bearer {TOKEN}s"},
        JSON | {"authorization": "Bearer \xff\xfe"},
        JSON | {"authorization": f"Basic {TOKEN}"},
        JSON | {"x-signature-256": "sha256="},
        JSON | {"x-signature-256": "md5=" + "0" * 32},
        sign(RECORDED, "another key"),
        sign(RECORDED + b" "),
        # A wrong token is not made good by a signature.
        sign(RECORDED) | {"authorization": "Bearer wrong"},
    ],
)
def test_forged_delivery_is_refused_and_leaves_no_trace(
    app: Starlette, cluster: Cluster, headers: dict[str, str]
) -> None:
    answer = post(app, RECORDED, headers)

    assert answer.status == 403
    assert "expected Authorization: Bearer" in answer.body
    assert TOKEN not in answer.body
    assert KEY not in answer.body
    assert (fired(cluster), rejected_count(cluster)) == ((), 0)


def test_without_a_secret_nobody_may_hand_alerts_in(cluster: Cluster) -> None:
    answer = post(app_for(cluster, WebhookSettings()), RECORDED)

    assert (answer.status, answer.body.startswith("no secret is set for alerts, so none is taken")) == (403, True)


def test_rotated_secret_counts_at_once_and_a_missing_one_is_no_open_door(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "rotated"
    file.write_text("old")
    app = app_for(cluster, WebhookSettings(bearer_token_file=file))
    file.write_text(TOKEN)
    taken = post(app, RECORDED)
    file.write_text("")
    empty = post(app, RECORDED, JSON | {"authorization": "Bearer "})
    file.unlink()
    missing = post(app, RECORDED)

    assert (taken.status, empty.status, missing.status) == (200, 503, 503)
    assert "cannot be read" in missing.body


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"{}", "version"), (b"[" * 4_000, "levels"), (b"\xff", "UTF-8"), (b'{"a": 1, "a": 2}', "twice"), (b"", "JSON")],
)
def test_body_that_is_no_webhook_is_refused_in_words_and_kept(
    app: Starlette, cluster: Cluster, body: bytes, words: str
) -> None:
    answer = post(app, body)

    assert (answer.status, words in answer.body, rejected_count(cluster)) == (400, True, 1)


@pytest.mark.parametrize(("more", "status"), [(-1, 200), (0, 200), (1, 413)])
def test_size_is_limited(app: Starlette, more: int, status: int) -> None:
    body = RECORDED + b" " * (LIMIT - len(RECORDED) + more)

    assert post(app, body).status == status


@pytest.mark.parametrize("declared", ["999999999999999999999", "-1", "1e3", "\xb2"])
def test_declared_size_that_is_too_large_or_none_is_refused_unread(app: Starlette, declared: str) -> None:
    sending = Sending([RECORDED])

    answer = asyncio.run(ask(app, sending, BEARER | {"content-length": declared}))

    assert (answer.status, sending.taken_count) == (413, 0)


def test_body_without_a_declared_size_is_read_no_further_than_the_limit(app: Starlette, cluster: Cluster) -> None:
    sending = Sending([b"x" * 1_000] * 1_000)

    answer = asyncio.run(ask(app, sending, BEARER | {"transfer-encoding": "chunked"}))

    assert (answer.status, sending.taken_count) == (413, LIMIT // 1_000 + 1)
    assert answer.headers["connection"] == "close"
    assert rejected_count(cluster) == 0


def test_slow_body_is_given_up(app: Starlette, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_BODY_SECONDS", 0.02)

    answer = asyncio.run(ask(app, Sending([RECORDED[:9]], is_endless=True), BEARER))

    assert answer.status == 408


def test_slow_bodies_take_few_places_and_health_is_told_meanwhile(
    app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_BODY_SECONDS", 0.3)

    async def crowd() -> tuple[list[Answer], Answer]:
        slow = [asyncio.create_task(ask(app, Sending([b"{"], is_endless=True), BEARER)) for _ in range(6)]
        await asyncio.sleep(0)
        health = await ask(app, Sending([b""]), {}, method="GET", path="/healthz")
        return [await each for each in slow], health

    answers, health = asyncio.run(crowd())

    assert sorted(each.status for each in answers) == [408, 408, 408, 408, 503, 503]
    assert json.loads(health.body)["word"] == "blind"
    assert post(app, RECORDED).status == 200, "the places are free again"


def test_sender_that_goes_away_in_the_middle_leaves_nothing(app: Starlette, cluster: Cluster) -> None:
    assert asyncio.run(ask(app, Sending([RECORDED[:50]], is_cut_off=True), BEARER)).status == 400
    assert fired(cluster) == ()


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
    ],
)
def test_kind_of_body_is_asked_for(app: Starlette, media_type: str, status: int) -> None:
    assert post(app, RECORDED, BEARER | {"content-type": media_type}).status == status


def test_flood_is_slowed_down(cluster: Cluster, secrets: WebhookSettings) -> None:
    app = app_for(cluster, replace(secrets, max_requests_per_minute_count=5))

    answers = [post(app, b"{}") for _ in range(12)]

    assert [each.status for each in answers[:5]] == [400] * 5
    assert answers[-1].status == 429
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 12


def test_forged_flood_keeps_nobody_else_out(cluster: Cluster, secrets: WebhookSettings) -> None:
    app = app_for(cluster, replace(secrets, max_requests_per_minute_count=2))
    for _ in range(20):
        post(app, b"{}", sign(b"{}", "forged"))

    assert post(app, RECORDED).status == 200


def test_alert_that_cannot_be_written_is_sent_again_by_alertmanager(secrets: WebhookSettings) -> None:
    def open_cluster() -> Cluster:
        from ops_pipelines.core.entries import LedgerError

        raise LedgerError("the server does not answer")

    answer = post(build_app(open_cluster, settings=ServeSettings(webhook=secrets)), RECORDED)

    assert (answer.status, answer.body) == (503, "the server does not answer\n")


@pytest.mark.parametrize("path", ["/alerts", "/", "/metrics", "/healthz", "/calendar.ics", "/nothing"])
def test_every_answer_has_the_headers_that_keep_browsers_from_mischief(app: Starlette, path: str) -> None:
    answer = asyncio.run(ask(app, Sending([b""]), {}, method="GET", path=path))

    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
