"""Silences over HTTP: what is sent, and what is reported answers that are none. The real one is tests/lab's."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.notes import Silence
from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable
from ops_pipelines.resources.alertmanager import AlertmanagerSilencer
from ops_pipelines.resources.config.cluster_config import AlertmanagerSettings
from tests.ports.silencer_contract import wanted
from tests.simulator.fake_clock import FakeClock

HOUR = timedelta(hours=1)
NOW = FakeClock().now()


@dataclass
class Desk:
    status: int = 200
    body: str = '{"silenceID": "s1"}'
    location: str | None = None
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, list[Desk]]]:
    present = [Desk()]

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            desk = present[0]
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            desk.asked.append((self.command, self.path, dict(self.headers), sent))
            self.send_response(desk.status)
            if desk.location is not None:
                self.send_header("Location", desk.location)
            self.end_headers()
            self.wfile.write(desk.body.encode())

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 the names that http.server calls

        def log_message(self, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", present
    server.shutdown()
    server.server_close()


@pytest.fixture
def desk(served: tuple[str, list[Desk]]) -> Desk:
    served[1][0] = Desk()
    return served[1][0]


@pytest.fixture
def url(served: tuple[str, list[Desk]]) -> str:
    return served[0]


def silencer(url: str, **settings: object) -> AlertmanagerSilencer:
    config = AlertmanagerSettings(url=url, **settings)  # type: ignore[arg-type]  # names of its own fields
    return AlertmanagerSilencer(config, cluster="lab", clock=FakeClock())


@pytest.mark.parametrize("node", ["gpu001", "gpu-01.rack.a", "a_b", "0"])
def test_silence_matches_its_node_with_any_port_and_no_other(desk: Desk, url: str, node: str) -> None:
    silencer(url, labels={"cluster": "lab"}).silence(wanted(node), starts_at=NOW, ends_at=NOW + HOUR)

    sent = json.loads(desk.asked[0][3])
    by_name = {each["name"]: each for each in sent["matchers"]}
    pattern = by_name["node"]["value"]
    assert (by_name["node"]["isRegex"], by_name["node"]["isEqual"]) == (True, True)
    assert by_name["cluster"] == {"name": "cluster", "value": "lab", "isRegex": False, "isEqual": True}
    assert sent["createdBy"] == "ops-pipelines/lab"
    assert [bool(re.fullmatch(pattern, name)) for name in (node, f"{node}:9100")] == [True, True]
    others = ("", f"{node}1", f"x{node}", node.replace(".", "x") + "z", f"{node}:", f"{node}:9100x", "gpu002")
    assert not any(re.fullmatch(pattern, name) for name in others)


def test_silence_of_no_node_is_never_sent(desk: Desk, url: str) -> None:
    nothing = object.__new__(type(wanted("gpu001")))
    object.__setattr__(nothing, "node", NodeName(""))
    object.__setattr__(nothing, "incident", "INC-0001")

    with pytest.raises(ValueError, match="would silence everything"):
        silencer(url).silence(nothing, starts_at=NOW, ends_at=NOW + HOUR)

    assert desk.asked == []


def test_silence_of_ours_with_changed_matchers_shows_no_node(desk: Desk, url: str) -> None:
    node = {"name": "node", "value": "gpu001(:[0-9]+)?", "isRegex": True, "isEqual": True}
    more = {"name": "alertname", "value": "X", "isRegex": False, "isEqual": True}
    shown = {
        "createdBy": "ops-pipelines/lab", "status": {"state": "active"}, "comment": "", "id": "s1",
        "startsAt": "2026-11-21T07:00:00.000Z", "endsAt": "2026-11-21T08:00:00.000Z",
    }  # fmt: skip
    matchers = [[node], [node, more], [node | {"isEqual": False}], [more], [], [node | {"value": ".*"}]]
    desk.body = json.dumps([shown | {"matchers": each} for each in matchers] + [shown | {"createdBy": "ada"}])

    assert [each.node for each in silencer(url).ours()] == ["gpu001", None, None, None, None, None]


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (401, "", SourceUnavailable, "refused the credentials"),
        (400, "bad matcher", SourceNonsense, "refused the silence"),
        (500, "secret in a trace", SourceUnavailable, "HTTP 500"),
        (302, "", SourceUnavailable, "HTTP 302"),
        (200, "<html>", SourceNonsense, "no JSON"),
        (200, "{}", SourceNonsense, "named no silence"),
        (200, "[" * 100_000, SourceNonsense, "no JSON"),
    ],
)
def test_answer_that_is_none_is_told_in_words(
    desk: Desk, url: str, status: int, body: str, error: type[Exception], words: str
) -> None:
    desk.status, desk.body, desk.location = status, body, f"{url}/elsewhere" if status == 302 else None

    with pytest.raises(error, match=words) as told:
        silencer(url).silence(wanted("gpu001"), starts_at=NOW, ends_at=NOW + HOUR)

    assert "secret" not in str(told.value)
    assert len(desk.asked) == 1


def test_server_that_is_not_there_is_told_in_words() -> None:
    with pytest.raises(SourceUnavailable, match="did not answer within 10 s"):
        silencer("http://127.0.0.1:1").ours()


def test_secret_goes_in_a_header_and_into_no_message(desk: Desk, url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2")
    desk.body = "[]"

    silencer(url, bearer_token_file=tmp_path / "token").ours()
    (tmp_path / "token").unlink()
    with pytest.raises(SourceUnavailable, match="cannot be read") as told:
        silencer(url, bearer_token_file=tmp_path / "token").ours()

    assert desk.asked[0][2]["Authorization"] == "Bearer hunter2"
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize("url", ["ftp://am.example", "http://", "http://user:secret@am.example", "am.example:9093"])
def test_address_that_cannot_work_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be http"):
        silencer(url)


def test_id_of_a_silence_never_leaves_its_place_in_the_address(desk: Desk, url: str) -> None:
    silencer(url).expire(
        Silence(silence_id="../../-/quit?x", node=None, comment="", starts_at=NOW, ends_at=NOW)
    )  # fmt: skip

    assert desk.asked[0][:2] == ("DELETE", "/api/v2/silence/..%2F..%2F-%2Fquit%3Fx")


@pytest.mark.parametrize(("minutes", "is_told"), [(9, False), (10, True), (11, True)])
def test_alertmanager_that_has_just_started_knows_nothing_yet(
    desk: Desk, url: str, minutes: int, is_told: bool
) -> None:
    desk.body = json.dumps({"uptime": (NOW - timedelta(minutes=minutes)).isoformat()})

    if is_told:
        with pytest.raises(SourceNonsense, match="no list"):  # it continues to ask for the alerts
            silencer(url).standing_alerts()
    else:
        assert silencer(url).standing_alerts() is None
