"""The pages that tell the program's own health: what they say, when they say no, and the process that serves them."""

import asyncio
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, MutableMapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.people import orders
from ops_pipelines.remediate.oversight import beat
from ops_pipelines.resources.http_process import CannotListen, listen
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.server import build_app
from tests.ports.ledger_samples import begin, decide, drain, incident, observation, take_in
from tests.resources.ledger_audit_contract import change
from tests.shell.desk import HOSTILE, Desk

AUTO = "mode: auto\ndrain_budget: {min_in_service_ratio: 0.5}\n"


@dataclass(frozen=True)
class Answer:
    status: int
    media_type: str
    body: str

    def value(self, metric: str, **labels: str) -> float:
        """Return the one sample of this name and these labels."""
        (found,) = (
            sample.value
            for family in text_string_to_metric_families(self.body)
            for sample in family.samples
            if (sample.name, sample.labels) == (f"ops_pipelines_{metric}", labels)
        )
        return found

    def names(self) -> set[str]:
        return {family.name for family in text_string_to_metric_families(self.body)}


def get(app: Starlette, path: str, *, method: str = "GET", query: str = "") -> Answer:
    """Ask the application without a network."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": query.encode(), "headers": [],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    headers = dict(sent[0]["headers"])
    body = b"".join(message.get("body", b"") for message in sent[1:]).decode()
    return Answer(status=sent[0]["status"], media_type=headers[b"content-type"].decode(), body=body)


def tick(desk: Desk, note: str = "nothing new", **answers: str | None) -> None:
    desk.cluster.ledger.take_lease(holder="host-a:1", ttl=timedelta(minutes=2), now=desk.cluster.clock.now())
    beat(desk.cluster, name="fault_sensor", holder="host-a:1", note=note, answers=answers or {"kernel_log": None})


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, policy=AUTO)


@pytest.fixture
def app(desk: Desk) -> Starlette:
    return build_app(lambda: desk.cluster)


def test_health_of_a_cluster_that_nobody_watches_is_unavailable_and_says_why(app: Starlette) -> None:
    answer = get(app, "/healthz")

    told = json.loads(answer.body)
    assert (answer.status, answer.media_type, told["word"]) == (503, "application/json", "blind")
    assert told["reasons"][0].startswith("no heartbeat of fault_sensor, ever")


def test_health_of_a_living_autopilot_is_fine_and_shows_the_age_of_what_it_saw(desk: Desk, app: Starlette) -> None:
    take_in(desk.cluster.ledger, observation("1", at=desk.clock.now()))
    desk.clock.wait(50)
    tick(desk, HOSTILE)
    desk.clock.wait(4)

    answer = get(app, "/healthz")

    told = json.loads(answer.body)
    assert (answer.status, told["word"], told["mode"]) == (200, "acting", "auto")
    assert (told["heartbeats"][0]["age_seconds"], told["heartbeats"][0]["note"]) == (4.0, HOSTILE)
    assert (told["newest_evidence_age_seconds"], told["waiting_evidence_count"], told["ledger_head"]) == (54.0, 1, 0)
    assert answer.body.isascii()


@pytest.mark.parametrize(("seconds", "status"), [(59, 200), (60, 503), (61, 503)])
def test_health_ends_after_60_seconds_of_silence(desk: Desk, app: Starlette, seconds: int, status: int) -> None:
    tick(desk)
    desk.clock.wait(seconds)

    assert get(app, "/healthz").status == status


def test_paused_autopilot_is_well(desk: Desk, app: Starlette) -> None:
    tick(desk)
    orders.pause(desk.cluster, actor="ada", reason="power work")

    answer = get(app, "/healthz")

    assert (answer.status, json.loads(answer.body)["word"]) == (200, "paused")


def test_metrics_are_what_the_ledger_holds(desk: Desk, app: Starlette) -> None:
    desk.clock.wait(600)
    ledger, now = desk.cluster.ledger, desk.clock.now()
    take_in(ledger, *(observation(str(number), at=now - timedelta(minutes=number)) for number in (7, 5)))
    decide(ledger, incident(1, at=now), incident(2, state=IncidentState.ESCALATED, at=now), through=1, at=now)
    begin(ledger, drain(1), at=now - timedelta(minutes=3))
    begin(ledger, drain(2), at=now - timedelta(minutes=2))
    orders.pause(desk.cluster, actor="ada", reason="power work")
    ledger.take_lease(holder="host-a:1", ttl=timedelta(seconds=15), now=now)
    tick(desk, kernel_log=None, scheduler="it timed out")

    answer = get(app, "/metrics")

    assert answer.status == 200
    assert answer.media_type.startswith("text/plain; version=0.0.4")
    assert answer.value("ledger_up") == 1
    assert answer.value("heartbeat_timestamp_seconds", name="fault_sensor") == now.timestamp()
    assert answer.value("newest_evidence_timestamp_seconds") == now.timestamp() - 300
    assert answer.value("undecided_evidence") == 1
    assert answer.value("open_incidents", state="open", response="reboot_node") == 1
    assert answer.value("open_incidents", state="escalated", response="reboot_node") == 1
    assert answer.value("actions_without_outcome") == 2
    assert answer.value("oldest_action_without_outcome_seconds") == 180
    assert answer.value("ledger_head") == len(ledger.entries(after=0, limit=100))
    assert (answer.value("paused"), answer.value("lease_held")) == (1, 1)
    assert [answer.value("mode", mode=mode) for mode in ("observe", "approve", "auto")] == [0, 0, 1]
    assert [answer.value("source_failing", source=source) for source in ("kernel_log", "scheduler")] == [0, 1]


def test_a_second_daemon_is_told_with_what_to_do_and_counted(desk: Desk, app: Starlette) -> None:
    tick(desk)
    beat(desk.cluster, name="fault_sensor", holder="host-b:2", note="watches", answers={})

    health, metrics = get(app, "/healthz"), get(app, "/metrics")

    assert (health.status, json.loads(health.body)["word"]) == (200, "acting")
    assert "host-b:2; stop the second code server or dagster-daemon" in json.loads(health.body)["reasons"][0]
    assert metrics.value("bystanders") == 1


def test_metrics_of_a_fresh_ledger_show_no_heartbeat_and_no_evidence(app: Starlette) -> None:
    answer = get(app, "/metrics")

    assert (answer.value("ledger_up"), answer.value("ledger_head"), answer.value("lease_held")) == (1, 0, 0)
    assert answer.value("oldest_action_without_outcome_seconds") == 0
    assert "newest_evidence_timestamp_seconds" not in answer.body
    assert "heartbeat_timestamp_seconds{" not in answer.body


def test_ledger_that_cannot_be_opened_is_told_without_its_password_until_it_can_be(desk: Desk) -> None:
    urls = ["postgresql+psycopg2://ops:hunter2@127.0.0.1:1/ops"]

    def open_cluster() -> Cluster:
        return replace(desk.cluster, ledger=SqlLedger(urls[0])) if urls else desk.cluster

    tick(desk)
    app = build_app(open_cluster)
    health, metrics = get(app, "/healthz"), get(app, "/metrics")
    urls.clear()

    told = json.loads(health.body)
    assert (health.status, told["word"], told["heartbeats"], told["ledger_head"]) == (503, "blind", [], None)
    assert "the server does not answer" in told["reasons"][0]
    assert "hunter2" not in health.body + metrics.body
    assert (metrics.status, metrics.names(), metrics.value("ledger_up")) == (200, {"ops_pipelines_ledger_up"}, 0)
    assert get(app, "/healthz").status == 200
    assert get(app, "/metrics").value("ledger_up") == 1


def test_ledger_that_breaks_while_it_is_served_shows_no_old_number_as_a_new_one(desk: Desk, app: Starlette) -> None:
    tick(desk)
    before = get(app, "/metrics")
    change(f"sqlite:///{desk.ledger_file}", "DROP TABLE heartbeats")

    health, metrics = get(app, "/healthz"), get(app, "/metrics")

    assert before.value("ledger_up") == 1
    assert (health.status, json.loads(health.body)["word"]) == (503, "blind")
    assert (metrics.names(), metrics.value("ledger_up")) == ({"ops_pipelines_ledger_up"}, 0)


def test_scrape_writes_nothing(desk: Desk, app: Starlette) -> None:
    tick(desk)
    with closing(sqlite3.connect(desk.ledger_file)) as watcher:

        def version() -> int:
            (found,) = watcher.execute("PRAGMA data_version").fetchone()
            return int(found)

        before = version()
        get(app, "/metrics")
        get(app, "/healthz")
        after = version()
        tick(desk, "a write")

        assert before == after
        assert version() != before, "this version would have shown a write"


def test_scrape_reads_no_history(desk: Desk, app: Starlette) -> None:
    ledger, now = desk.cluster.ledger, desk.clock.now()
    take_in(ledger, *(observation(str(number), at=now) for number in range(100)))
    decide(ledger, incident(1, state=IncidentState.RESOLVED, at=now), incident(2, at=now), through=99, at=now)
    url = f"sqlite:///{desk.ledger_file}"
    change(url, "UPDATE evidence SET body = 'rubbish' WHERE seq < 100")
    change(url, "UPDATE incidents SET body = 'rubbish' WHERE is_open = 0")
    change(url, "UPDATE entries SET body = 'rubbish' WHERE kind <> 'decision'")

    answer = get(app, "/metrics")

    assert (answer.value("ledger_up"), answer.value("undecided_evidence")) == (1, 1)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/healthz", 405),
        ("DELETE", "/metrics", 405),
        ("POST", "/", 405),
        ("GET", "/alerts", 405),
        ("GET", "/metrics/x", 404),
    ],
)
def test_nothing_else_is_served(app: Starlette, method: str, path: str, status: int) -> None:
    assert get(app, path, method=method).status == status


# -- listening --


@pytest.fixture
def taken_port() -> Iterator[int]:
    with closing(listen("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def test_port_in_use_is_refused_in_words(taken_port: int, desk: Desk) -> None:
    answer = desk.run("serve", "--port", str(taken_port))

    assert answer.exit_code == cli.ExitCode.USAGE
    assert f"cannot listen on 127.0.0.1 port {taken_port}: Address already in use" in answer.stderr
    assert answer.stdout == ""


def test_address_that_is_none_of_ours_is_refused_in_words() -> None:
    with pytest.raises(CannotListen, match=r"cannot listen on 192\.0\.2\.1 port 0: .*--host"):
        listen("192.0.2.1", 0)


def test_loopback_of_ipv6_can_be_listened_on() -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        listening = listen("::1", 0)
    except CannotListen:
        pytest.skip("this machine has no IPv6 loopback")

    with closing(listening):
        assert listening.getsockname()[0] == "::1"


def test_wrong_configuration_is_no_reason_to_serve(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.cluster_file.write_text("name: 7\n", encoding="utf-8")

    answer = CliRunner().invoke(cli.app, ["serve", "--cluster", str(desk.cluster_file), "--port", "0"])

    assert answer.exit_code == cli.ExitCode.USAGE


# -- the process --


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[str]
    url: str

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()


@pytest.fixture
def served(desk: Desk) -> Iterator[Served]:
    command = [sys.executable, "-c", "from ops_pipelines.cli import main; main()", "serve"]
    arguments = ["--cluster", str(desk.cluster_file), "--port", "0"]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    try:
        yield Served(process=process, url=first.removeprefix("serving ").partition("/metrics")[0])
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_serves_until_it_is_told_to_end_and_ends_well(served: Served, number: signal.Signals) -> None:
    health, metrics = served.get("/healthz"), served.get("/metrics")

    served.process.send_signal(number)
    out, err = served.process.communicate(timeout=60)

    assert health[0] == 503
    assert json.loads(health[1])["word"] == "blind"
    assert metrics[0] == 200
    assert "\nops_pipelines_ledger_up 1.0\n" in metrics[1]
    assert served.process.returncode == 0
    assert (out, err) == ("", ""), "a scrape every few seconds is no news"


def test_process_that_is_told_to_end_before_it_was_ever_asked_ends_well(served: Served) -> None:
    served.process.send_signal(signal.SIGTERM)
    served.process.communicate(timeout=60)

    assert served.process.returncode == 0
