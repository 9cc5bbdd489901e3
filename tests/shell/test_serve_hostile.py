"""What strangers try on the web process: other hosts, two lengths, broken names, crowds, and pages that take long."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.applications import Starlette

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.server import build_app
from ops_pipelines.terminal.served_pages import PageInMaking, WeeklyPages
from tests.shell.desk import Desk
from tests.shell.test_serve_alerts import Answer, Sending, ask

FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Desk(tmp_path_factory.mktemp("desk")).cluster


@pytest.fixture
def app(cluster: Cluster) -> Starlette:
    return build_app(lambda: cluster)


def get(app: Starlette, path: str, **headers: str) -> Answer:
    return asyncio.run(ask(app, Sending([b""]), headers, method="GET", path=path))


@pytest.mark.parametrize("path", ["/weekly/", "/incidents/INC-0001/", "/approve/x/"])
def test_slash_too_much_leads_to_no_host_that_the_request_names(app: Starlette, path: str) -> None:
    answer = get(app, path, host="evil.example")

    assert (answer.status, "location" in answer.headers) == (404, False)


@pytest.mark.parametrize(
    "name", ["\x00", "..", "../../state/ledger.sqlite", "INC-0001\n", "<script>", "\u202e1000-CNI", "x" * 5_000]
)
def test_name_that_is_none_shows_nothing_and_is_text(app: Starlette, name: str) -> None:
    answer = get(app, f"/incidents/{name}")

    assert (answer.status, "<script>" in answer.body, "\x00" in answer.body) == (404, False, False)


def test_body_with_two_lengths_is_read_by_nobody(app: Starlette) -> None:
    sending = Sending([b"x"])

    answer = asyncio.run(ask(app, sending, {"content-length": "1", "transfer-encoding": "chunked"}))

    assert (answer.status, answer.headers["connection"], sending.taken_count) == (400, "close", 0)


def test_what_nobody_foresaw_tells_a_stranger_nothing_and_has_the_headers_too() -> None:
    def open_cluster() -> Cluster:
        raise RuntimeError("hunter2")

    sent: list[dict[str, object]] = []

    async def go() -> None:
        async def send(message: object) -> None:
            assert isinstance(message, dict)
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], "root_path": ""}
        with pytest.raises(RuntimeError, match="hunter2"):  # for the log
            await build_app(open_cluster)(scope, Sending([b""]).receive, send)  # type: ignore[arg-type]

    asyncio.run(go())

    assert sent[0]["status"] == 500
    assert b"content-security-policy" in dict(sent[0]["headers"])  # type: ignore[call-overload]
    assert b"hunter2" not in b"".join(each.get("body", b"") for each in sent)  # type: ignore[misc]


def test_configuration_that_went_bad_is_told_in_words() -> None:
    def open_cluster() -> Cluster:
        raise PolicyError("policy.yaml: mode: expected observe, approve or auto")

    app = build_app(open_cluster)

    for path in ("/", "/healthz", "/calendar.ics", "/incidents/INC-0001"):
        answer = get(app, path)
        assert (answer.status, "policy.yaml" in answer.body) == (503, True)
    assert "ops_pipelines_ledger_up 0.0" in get(app, "/metrics").body


def test_slow_forms_of_approvals_take_their_own_places_and_are_given_up(
    app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops_pipelines.server._BODY_SECONDS", 0.1)

    async def crowd() -> tuple[list[Answer], Answer]:
        slow = [
            asyncio.create_task(ask(app, Sending([b"c"], is_endless=True), FORM, path="/approve/x")) for _ in range(10)
        ]
        await asyncio.sleep(0)
        metrics = await ask(app, Sending([b""]), {}, method="GET", path="/metrics")
        return [await each for each in slow], metrics

    answers, metrics = asyncio.run(crowd())

    assert sorted(each.status for each in answers) == [408] * 8 + [503] * 2
    assert metrics.status == 200


def test_form_that_is_cut_off_or_too_long_approves_nothing_and_is_no_error_of_ours(app: Starlette) -> None:
    for sending, status in ((Sending([b"c"], is_cut_off=True), 400), (Sending([b"x" * 5_000]), 413)):
        answer = asyncio.run(ask(app, sending, FORM, path="/approve/x"))
        assert (answer.status, answer.headers["connection"]) == (status, "close")


class SlowLake:
    """A lake that is opened when the test says so."""

    def __init__(self) -> None:
        self.may_open = threading.Event()
        self.opened_count = 0

    def open(self) -> object:
        self.opened_count += 1
        assert self.may_open.wait(30)
        raise LookupError("no lake after all")


@pytest.fixture
def lake() -> Iterator[SlowLake]:
    lake = SlowLake()
    yield lake
    lake.may_open.set()


def test_review_that_takes_long_is_made_once_while_askers_are_told_to_come_again(
    cluster: Cluster, tmp_path: Path, lake: SlowLake
) -> None:
    cluster = replace(cluster, ledger=SqlLedger(f"sqlite:///{tmp_path / 'ledger.sqlite'}"), page_shelf=None)
    pages = WeeklyPages(patience_seconds=0.01)

    for asked in (None, "2026-W47", "2026-W46"):
        with pytest.raises(PageInMaking, match="the review of 2026-W47 is being made since"):
            pages.page(asked, cluster, lake.open)  # type: ignore[arg-type]  # never returns one
    assert lake.opened_count == 1

    lake.may_open.set()
    with pytest.raises(LookupError):
        WeeklyPages(patience_seconds=10).page(None, cluster, lake.open)  # type: ignore[arg-type]
