"""Messages on their way: mail and webhook on loopback servers, and what hostile text is in each service's own form."""

import email
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from email.message import Message as Mail
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from ops_pipelines.core.notes import Audience, Link, Message, Severity
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.resources.config.cluster_config import NotifierConfig, NotifierKind
from ops_pipelines.resources.notifier import (
    AppriseNotifier,
    FileNotifier,
    as_html,
    as_text,
    channels_for,
    disarm,
    is_address,
    one_line,
    read_channels,
)
from tests.simulator.fake_clock import FakeClock

# apprise 2.2.0 imports the standard library's imghdr, which 3.11 and 3.12 warn of; it does without it on 3.13.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

SECRET = "s3cr3t-path"
HOSTILE = (
    "<!channel> <@U1> @all @everyone @here <at>Ann</at> <users/all> [click](https://evil.example/x) "
    "<https://evil.example|ok> <script>alert(1)</script> www.evil.example \u202etxt.exe \x1b[31m `rm` *b* _i_"
)
CALL = Message(
    audience=Audience.ON_CALL,
    recipient="operator on call",
    thread="INC-0007",
    title="gpu003: may we reboot the node?",
    subject="INC-0007 since 2026-11-21 07:00 UTC",
    body="What: Xid 79",
    severity=Severity.WARNING,
    key="MSG-0123456789ab",
    links=(Link(label="report of INC-0007", url="https://ops.example.org/gpu/incidents/INC-0007"),),
)
OVER = replace(
    CALL, title="gpu003: over after 9 min", severity=Severity.INFO, closes=("INC-0007",), key="MSG-ba9876543210"
)


class Mailbox:
    """Keeps the mails that a real mail server took."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802  # its name
        content = envelope.content
        self.mails.append(email.message_from_bytes(content if isinstance(content, bytes) else b""))
        return "250 OK"


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    kept = Mailbox()
    with socket.create_server(("127.0.0.1", 0)) as free:  # aiosmtpd asks its own port, so it cannot be 0
        port = free.getsockname()[1]
    controller = Controller(kept, hostname="127.0.0.1", port=port)
    controller.start()
    yield kept, port
    controller.stop()


class Hook:
    """Keeps what is posted to it; refuses while it is down."""

    def __init__(self) -> None:
        self.posted: list[dict[str, object]] = []
        self.is_down = False
        self.address = ""


@pytest.fixture
def hook() -> Iterator[Hook]:
    kept = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not kept.is_down:
                kept.posted.append(posted)
            self.send_response(503 if kept.is_down else 200)
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


class Posted:
    """What would have gone over the wire to a service of the internet."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.status = 200

    def post(self, url: str, **given: object) -> requests.Response:
        data = given["data"]
        self.bodies.append(data.decode() if isinstance(data, bytes) else str(data))
        answer = requests.Response()
        answer.status_code = self.status
        answer._content = b"ok"
        return answer


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> Posted:
    kept = Posted()
    monkeypatch.setattr(requests, "post", kept.post)
    monkeypatch.setattr(requests, "request", lambda _, url, **given: kept.post(url, **given))
    return kept


def notifier(directory: Path, *lines: str, audience: Audience = Audience.ON_CALL) -> AppriseNotifier:
    path = directory / "channels.urls"
    path.write_text("\n".join(lines))
    config = NotifierConfig(kind=NotifierKind.APPRISE, **{f"{audience.value}_urls_file": path})
    fallback = FileNotifier(directory / "messages.jsonl", clock=FakeClock())
    return AppriseNotifier(config, fallback=fallback, cluster_name="demo")


def text_of(mail: Mail) -> str:
    part = next((each for each in mail.walk() if each.get_content_type() == "text/plain"), mail)
    content = part.get_payload(decode=True)
    assert isinstance(content, bytes)
    return content.decode()


def strings_in(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    each = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for inner in each for text in strings_in(inner)]


# -- mail --


def test_mails_of_one_incident_are_one_thread_and_say_what_is_new_above(
    tmp_path: Path, mailbox: tuple[Mailbox, int]
) -> None:
    kept, port = mailbox
    url = f"mailto://127.0.0.1:{port}?from=ops@example.org&to=oncall@example.org&mode=insecure"
    sender = notifier(tmp_path, url)

    receipts = [sender.send(CALL), sender.send(OVER), sender.send(replace(CALL, thread="INC-0008"))]

    first, second, other = kept.mails
    assert receipts == ["taken by E-Mail"] * 3
    assert first["Subject"] == second["Subject"] == "[demo] INC-0007 since 2026-11-21 07:00 UTC"
    assert first["References"] == second["References"] != other["References"]
    assert (first["X-Ops-Pipelines-Message"], second["X-Ops-Pipelines-Message"]) == (CALL.key, OVER.key)
    assert text_of(first).splitlines()[0] == "gpu003: may we reboot the node?"
    assert "https://ops.example.org/gpu/incidents/INC-0007" in text_of(first)
    assert f"message: {CALL.key}" in text_of(first)


@pytest.mark.parametrize("form", ["text", "html"])
def test_hostile_text_is_text_in_a_mail(tmp_path: Path, mailbox: tuple[Mailbox, int], form: str) -> None:
    kept, port = mailbox
    url = f"mailto://127.0.0.1:{port}?from=ops@example.org&to=oncall@example.org&mode=insecure&format={form}"

    notifier(tmp_path, url).send(
        replace(CALL, title=HOSTILE, subject="a\r\nBcc: everybody@example.org", body=HOSTILE, links=())
    )

    (mail,) = kept.mails
    whole = "".join(
        content.decode() for each in mail.walk() if isinstance(content := each.get_payload(decode=True), bytes)
    )
    assert mail["Bcc"] is None
    assert not any(sign in whole for sign in ("<script", "<at>", "<!channel", "https://evil", "<a ", "www.evil"))
    assert "alert(1)" in whole


# -- webhook --


def test_webhook_gets_thread_key_and_severity_as_fields(tmp_path: Path, hook: Hook) -> None:
    notifier(tmp_path, f"json://{hook.address}/{SECRET}").send(CALL)

    (body,) = hook.posted
    assert (body["thread"], body["key"], body["severity"], body["type"], body["cluster"]) == (
        "INC-0007",
        CALL.key,
        "warning",
        "warning",
        "demo",
    )
    assert body["title"] == "[demo] gpu003: may we reboot the node?"


@pytest.mark.parametrize(
    ("severity", "closes", "kind"),
    [
        (Severity.INFO, (), "info"),
        (Severity.NOTICE, (), "info"),
        (Severity.WARNING, (), "warning"),
        (Severity.CRITICAL, (), "failure"),
        (Severity.INFO, ("INC-0007",), "success"),
        (Severity.WARNING, ("INC-0007",), "warning"),
    ],
)
def test_severity_is_the_type_that_services_know(
    tmp_path: Path, hook: Hook, severity: Severity, closes: tuple[str, ...], kind: str
) -> None:
    notifier(tmp_path, f"json://{hook.address}").send(replace(CALL, severity=severity, closes=closes))

    assert hook.posted[0]["type"] == kind


def test_webhook_that_was_down_takes_the_same_message_later(tmp_path: Path, hook: Hook) -> None:
    sender = notifier(tmp_path, f"json://user:{SECRET}@{hook.address}/{SECRET}")
    hook.is_down = True
    with pytest.raises(SourceUnavailable, match="no channel of on_call took the message") as caught:
        sender.send(CALL)
    hook.is_down = False

    assert sender.send(CALL) == "taken by JSON"
    assert len(hook.posted) == 1
    assert SECRET not in str(caught.value)


def test_secrets_stand_in_no_log_line(tmp_path: Path, hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    hook.is_down = True
    with caplog.at_level("DEBUG", logger="ops_pipelines"), pytest.raises(SourceUnavailable):
        notifier(tmp_path, f"json://user:{SECRET}@{hook.address}/", f"nonsense://{SECRET}").send(CALL)

    assert SECRET not in "".join(record.getMessage() for record in caplog.records if "ops_pipelines" in record.name)


# -- who gets it --


def test_owner_gets_what_is_theirs_and_what_is_everybodys(tmp_path: Path, hook: Hook) -> None:
    lines = (f"alice json://{hook.address}/alice", f"bob json://{hook.address}/bob", f"json://{hook.address}/all")
    to_alice = replace(CALL, audience=Audience.OWNER, recipient="alice")

    receipt = notifier(tmp_path, *lines, audience=Audience.OWNER).send(to_alice)

    assert receipt == "taken by JSON, JSON"
    assert len(hook.posted) == 2


@pytest.mark.parametrize("recipient", ["mallory", "alice json://x", "", "*", "../alice", "ALICE"])
def test_name_that_is_not_in_the_file_reaches_nobody_elses_channel(tmp_path: Path, hook: Hook, recipient: str) -> None:
    sender = notifier(tmp_path, f"alice json://{hook.address}", audience=Audience.TEAM)

    receipt = sender.send(replace(CALL, audience=Audience.TEAM, recipient=recipient))

    assert receipt == "no channel for team: messages.jsonl line 1"
    assert hook.posted == []


def test_line_is_a_url_or_a_name_and_a_url(tmp_path: Path) -> None:
    path = tmp_path / "urls"
    path.write_text("# none\n\n  json://a/b c\nalice   json://x\nlonely\n")

    channels = read_channels(path, Audience.TEAM)

    assert [(each.name, each.url) for each in channels] == [
        ("", "json://a/b c"),
        ("alice", "json://x"),
        ("", "lonely"),
    ]
    assert "json" not in repr(channels)
    assert [each.name for each in channels_for(channels, Audience.ON_CALL, "anybody")] == ["", "alice", ""]


def test_link_of_one_person_goes_to_their_own_channel_and_into_no_shared_room(tmp_path: Path, hook: Hook) -> None:
    def links(person: str) -> tuple[Link, ...]:
        return (Link(label=f"for {person}", url=f"https://ops.example.org/approve/{person}-token"),)

    asked = replace(CALL, links=(), personal_links=links)
    notifier(tmp_path, f"anna json://{hook.address}/a", f"json://{hook.address}/room").send(asked)

    texts = sorted(str(body["message"]) for body in hook.posted)
    assert sum("anna-token" in text for text in texts) == 1
    assert "token" not in repr(asked)


# -- pagers --


def test_pager_rings_once_an_incident_and_is_told_when_it_is_over(tmp_path: Path, posted: Posted) -> None:
    posted.status = 202
    sender = notifier(tmp_path, "pagerduty://integration@apikey")

    sender.send(CALL)
    sender.send(replace(OVER, closes=("INC-0007", "INC-0008")))

    deeds = [(body["event_action"], body["dedup_key"]) for body in map(json.loads, posted.bodies)]
    assert deeds[0] == ("trigger", "ops-pipelines/demo/INC-0007")
    assert sorted(deeds[1:]) == [
        ("resolve", "ops-pipelines/demo/INC-0007"),
        ("resolve", "ops-pipelines/demo/INC-0008"),
    ]


def test_pager_never_rings_for_what_needs_nobody(tmp_path: Path, posted: Posted) -> None:
    receipt = notifier(tmp_path, "pagerduty://integration@apikey").send(replace(CALL, severity=Severity.NOTICE))

    assert receipt == "no channel for what needs nobody of on_call: messages.jsonl line 1"
    assert posted.bodies == []


# -- chats --

CHATS = {
    "slack": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#general",
    "slack blocks": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#general?blocks=yes",
    "teams": "workflows://host.example/WORKFLOW/SIGNATURE",
    "mattermost": "mmost://chat.example/3ccdd113474722377935511fc85d3dd4",
    "discord": "discord://1234567890/abcdefghijkl",
    "google chat": "gchat://workspace/key/token",
}


@pytest.mark.parametrize("url", [pytest.param(url, id=name) for name, url in CHATS.items()])
def test_hostile_text_mentions_nobody_and_links_nowhere_in_a_chat(tmp_path: Path, posted: Posted, url: str) -> None:
    posted.status = 202 if url.startswith("workflows") else 200

    notifier(tmp_path, url).send(replace(CALL, title=HOSTILE, body=HOSTILE))

    (body,) = posted.bodies
    shown = "\n".join(strings_in(json.loads(body)))
    for sign in ("<!", "<@", "<at", "<users", "@all", "@everyone", "@here", "https://evil", "](http"):
        assert sign not in shown.replace("](<https://ops.example.org", "").replace("](https://ops.example.org", "")
    assert "\u202e" not in shown
    assert "\x1b" not in shown
    assert "https://ops.example.org/gpu/incidents/INC-0007" in shown
    assert "github" not in shown


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a <!channel> b", "a \u2039!channel\u203a b"),
        ("ann@example.org \uff20all", "ann(at)example.org (at)all"),
        ("https://evil HTTPS://EVIL", "https[:]//evil HTTPS[:]//EVIL"),
        ("[x](y)", "[x] (y)"),
        ("a\u200b\u202eb\x00\x1bc\ud800", "abc"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        (
            "NVRM: Xid (PCI:0000:61:00): 79, pid='<unknown>'",
            "NVRM: Xid (PCI:0000:61:00): 79, pid='\u2039unknown\u203a'",
        ),
    ],
)
def test_disarmed_text_shows_what_stood_there(text: str, plain: str) -> None:
    assert disarm(text) == plain
    assert disarm(disarm(text)) == disarm(text)


def test_only_our_own_addresses_are_links() -> None:
    bad = Link(label="x", url="javascript:alert(1)")
    good = Link(label="<b>report", url="https://ops.example.org/a")

    assert as_text("body", (bad, good), ["f"]) == "body\n\n\u2039b\u203areport: https://ops.example.org/a\n\nf"
    assert "javascript" not in as_html("body", (bad,), [])
    assert not is_address("https://a\nb")
    assert not is_address('https://a"b')


@pytest.mark.parametrize(("length", "shown"), [(199, 199), (200, 200), (201, 200)])
def test_title_is_at_most_two_hundred_characters(length: int, shown: int) -> None:
    assert len(one_line("x" * length)) == shown
