"""Messages: what reaches a channel, what a receipt says, and that no secret is reported."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ops_pipelines.core.notes import Audience, Message, Notifier
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.resources.config.cluster_config import NotifierConfig, NotifierKind
from ops_pipelines.resources.notifier import AppriseNotifier, FileNotifier
from tests.ports.notifier_contract import NotifierContract, NotifierWorld

# apprise 2.2.0 imports the standard library's imghdr, which 3.11 and 3.12 warn of; it does without it on 3.13.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
MESSAGE = Message(
    audience=Audience.ON_CALL, recipient="on-call", thread="inc-7", title="gpu003 drained", body="Xid 79\nsecond line"
)
SECRET = "s3cr3t-path"


class StoppedClock:
    def now(self) -> datetime:
        return NOW

    def wait(self, seconds: float) -> None:
        return


class Webhook:
    """Keeps what is posted to it; answers 500 once instructed to fail."""

    def __init__(self) -> None:
        self.posted: list[dict[str, object]] = []
        self.status = 200
        self.address = ""


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    kept = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(kept.status)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    kept.address = f"127.0.0.1:{server.server_port}"
    yield kept
    server.shutdown()
    thread.join()
    server.server_close()


def file_notifier(directory: Path) -> FileNotifier:
    return FileNotifier(directory / "messages.jsonl", clock=StoppedClock())


def apprise_notifier(directory: Path, *urls: str) -> AppriseNotifier:
    (directory / "on-call.urls").write_text("\n".join(urls))
    config = NotifierConfig(kind=NotifierKind.APPRISE, on_call_urls_file=directory / "on-call.urls")
    return AppriseNotifier(config, fallback=file_notifier(directory))


def written(directory: Path) -> list[dict[str, object]]:
    path = directory / "messages.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_message_in_a_file_is_one_line_and_its_receipt_the_line_number(tmp_path: Path) -> None:
    notifier = file_notifier(tmp_path)

    receipts = [notifier.send(MESSAGE), notifier.send(MESSAGE)]

    assert receipts == ["messages.jsonl line 1", "messages.jsonl line 2"]
    assert written(tmp_path)[0] == {
        "sent_at": "2026-11-21T07:30:00+00:00",
        "audience": "on_call",
        "recipient": "on-call",
        "thread": "inc-7",
        "severity": "warning",
        "title": "gpu003 drained",
        "body": "Xid 79\nsecond line",
        "key": "",
        "links": [],
    }


def test_line_torn_by_a_crash_does_not_swallow_the_next_message(tmp_path: Path) -> None:
    (tmp_path / "messages.jsonl").write_text('{"sent_at": "2026')

    receipt = file_notifier(tmp_path).send(MESSAGE)

    assert receipt == "messages.jsonl line 2"
    assert json.loads((tmp_path / "messages.jsonl").read_text().splitlines()[1])["thread"] == "inc-7"


def test_messages_of_several_threads_keep_their_lines(tmp_path: Path) -> None:
    notifier = file_notifier(tmp_path)
    receipts: list[str] = []
    threads = [threading.Thread(target=lambda: receipts.append(notifier.send(MESSAGE))) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(receipts) == [f"messages.jsonl line {number}" for number in range(1, 9)]
    assert len(written(tmp_path)) == 8


def test_file_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"could not be written to .*absent"):
        file_notifier(tmp_path / "absent").send(MESSAGE)


def test_channel_gets_title_body_recipient_and_thread(tmp_path: Path, webhook: Webhook) -> None:
    receipt = apprise_notifier(tmp_path, "# the pager", "", f"json://{webhook.address}/{SECRET}").send(MESSAGE)

    (posted,) = webhook.posted
    assert posted["title"] == "gpu003 drained"
    assert posted["message"] == "Xid 79\nsecond line\n\nfor: on-call\nthread: inc-7"
    assert receipt == "taken by JSON"
    assert written(tmp_path) == []


def test_title_with_line_breaks_cannot_start_a_header(tmp_path: Path, webhook: Webhook) -> None:
    hostile = Message(
        audience=Audience.ON_CALL, recipient="bob\nBcc: all", thread="t", title="a\r\nBcc: all@example", body="b"
    )

    apprise_notifier(tmp_path, f"json://{webhook.address}").send(hostile)

    assert webhook.posted[0]["title"] == "a Bcc: all(at)example"
    assert "for: bob Bcc: all" in str(webhook.posted[0]["message"])


def test_audience_without_a_channel_is_kept_in_the_file_and_the_receipt_says_so(
    tmp_path: Path, webhook: Webhook
) -> None:
    notifier = apprise_notifier(tmp_path, f"json://{webhook.address}")
    to_owner = Message(audience=Audience.OWNER, recipient="day-shift", thread="t", title="a", body="b")

    receipt = notifier.send(to_owner)

    assert receipt == "no channel for owner: messages.jsonl line 1"
    assert webhook.posted == []
    assert written(tmp_path)[0]["recipient"] == "day-shift"


def test_file_of_channels_that_is_empty_is_no_channel(tmp_path: Path) -> None:
    assert apprise_notifier(tmp_path, "# none yet").send(MESSAGE).startswith("no channel for on_call")


def test_one_channel_that_takes_the_message_is_enough_and_the_other_is_named(tmp_path: Path, webhook: Webhook) -> None:
    notifier = apprise_notifier(
        tmp_path, f"json://{webhook.address}", f"form://127.0.0.1:9/{SECRET}", f"nonsense://{SECRET}"
    )

    receipt = notifier.send(MESSAGE)

    assert receipt == "taken by JSON; not by Form, a URL that Apprise does not know"


def test_message_that_no_channel_takes_is_unavailable_without_the_secret(tmp_path: Path, webhook: Webhook) -> None:
    webhook.status = 500

    with pytest.raises(SourceUnavailable, match=r"no channel of on_call took the message \(tried JSON\)") as caught:
        apprise_notifier(tmp_path, f"json://user:{SECRET}@{webhook.address}/{SECRET}").send(MESSAGE)

    assert SECRET not in str(caught.value)


def test_urls_that_apprise_does_not_know_are_unavailable_without_the_secret(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"none of the 1 channel\(s\) of on_call is a URL") as caught:
        apprise_notifier(tmp_path, f"nonsense://{SECRET}").send(MESSAGE)

    assert SECRET not in str(caught.value)


def test_channels_are_read_anew_for_each_message(tmp_path: Path, webhook: Webhook) -> None:
    notifier = apprise_notifier(tmp_path, "# none yet")
    notifier.send(MESSAGE)
    (tmp_path / "on-call.urls").write_text(f"json://{webhook.address}\n")

    assert notifier.send(MESSAGE) == "taken by JSON"


def test_channels_that_cannot_be_read_are_unavailable(tmp_path: Path) -> None:
    notifier = apprise_notifier(tmp_path)
    (tmp_path / "on-call.urls").unlink()

    with pytest.raises(SourceUnavailable, match="cannot be read from"):
        notifier.send(MESSAGE)


class FileWorld:
    """The file as a channel."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.notifier: Notifier = file_notifier(directory)

    def received(self) -> tuple[str, ...]:
        return tuple(f"{message['title']} {message['body']}" for message in written(self._directory))

    def break_channel(self) -> None:
        (self._directory / "messages.jsonl").mkdir()


class WebhookWorld:
    """A webhook behind Apprise."""

    def __init__(self, directory: Path, webhook: Webhook) -> None:
        self._webhook = webhook
        self.notifier: Notifier = apprise_notifier(directory, f"json://{webhook.address}")

    def received(self) -> tuple[str, ...]:
        return tuple(f"{message['title']} {message['message']}" for message in self._webhook.posted)

    def break_channel(self) -> None:
        self._webhook.status = 500


class TestFileNotifier(NotifierContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> NotifierWorld:
        return FileWorld(tmp_path)


class TestAppriseNotifier(NotifierContract):
    @pytest.fixture
    def world(self, tmp_path: Path, webhook: Webhook) -> NotifierWorld:
        return WebhookWorld(tmp_path, webhook)
