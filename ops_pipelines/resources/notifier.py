"""Messages to people: through Apprise (chat, mail, pagers), or as JSON lines in a file; whose channel is which,
untrusted text made plain, and no secret of a channel in any log.

What is reported, to whom and when is decided elsewhere; what a kind of service makes of a thread, a key and an end is
`threads`'. Apprise is imported when something is sent, not before.

Files of channels: a line is `URL`, a channel of everybody of that audience, or `NAME URL`, that of one user, team or
person on call. Read at each message: they are rotated. URLs hold secrets and appear in no receipt, error or log line.

Text: nobody is mentioned, nothing is a link, nothing is markup. Services differ in what they make of `@all`,
`<!channel>`, `<at>`, `[text](url)` and a bare address. What none of them takes for a command is sent to all of them,
changed visibly so that a reader sees what was there.

Logs, whatever level somebody sets: Apprise writes a URL that it cannot load into an error as it is, the address that it
posts to at DEBUG, and what the other side answered at WARNING; urllib3 writes the path of each request at DEBUG. For
chats that path is the secret. What is left states which kind of service failed and how.
"""

import fcntl
import html
import json
import logging
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ops_pipelines.clock import Clock
from ops_pipelines.core.notes import Audience, Link, Message, Notifier
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.lake.quantities import readable
from ops_pipelines.resources.config.cluster_config import NotifierConfig

if TYPE_CHECKING:
    from apprise import NotifyBase

# -- files of channels --


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One line of a file."""

    name: str
    """Whose it is; empty: everybody's."""
    url: str = field(repr=False)


def read_channels(path: Path, audience: Audience) -> tuple[Channel, ...]:
    """Return every channel of an audience; raise SourceUnavailable if the file cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise SourceUnavailable(
            f"the channels of {audience.value} cannot be read from {path} ({type(exc).__name__}); check the file"
        ) from None
    stripped = (line.strip() for line in lines)
    return tuple(_channel(line) for line in stripped if line and not line.startswith("#"))


def channels_for(channels: tuple[Channel, ...], audience: Audience, recipient: str) -> tuple[Channel, ...]:
    """Return the channels that a message goes to: those of everybody, and those of its recipient.

    Who is named among the on-call is on call: their recipient is a role, and all of them get it.
    """
    is_role = audience is Audience.ON_CALL
    return tuple(each for each in channels if not each.name or is_role or each.name == recipient)


def _channel(line: str) -> Channel:
    first, _, rest = line.partition(" ")
    if "://" in first or not rest.strip():
        return Channel(name="", url=line)
    return Channel(name=first, url=rest.strip())


# -- untrusted text made plain --


_DISARMED = str.maketrans(
    dict.fromkeys("<\uff1c\ufe64", "\u2039")
    | dict.fromkeys(">\uff1e\ufe65", "\u203a")
    | dict.fromkeys("@\uff20\ufe6b", "(at)")
)
"""Angle brackets become single guillemets: Slack's and Teams' commands, and HTML, need the real ones. So do their wide
and small forms, which a service that normalises text would make real again."""
_KEPT_CONTROLS = frozenset("\n\t")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, direction marks, zero-width characters, surrogates, private use: what a reader cannot see."""
_SPLIT = (("://", "[:]//"), ("](", "] ("))
_WWW = re.compile(r"\b(www)\.", re.IGNORECASE)
_DOMAIN = re.compile(r"\b([a-z0-9-]{1,63})\.([a-z]{2,24})/", re.IGNORECASE)
"""A host and a path: some services make a link of that without `http`."""
_LONGEST_LINE = 200
_ENDS_A_LINK = frozenset(" <>\"'`\\|")


def disarm(text: str) -> str:
    """Return `text` such that no service sees a mention, a link, markup or an invisible character in it."""
    seen = "".join(
        each for each in text if each in _KEPT_CONTROLS or unicodedata.category(each) not in _HIDDEN_CATEGORIES
    )
    plain = seen.translate(_DISARMED)
    for sign, instead in _SPLIT:
        plain = plain.replace(sign, instead)
    return _DOMAIN.sub(r"\1[.]\2/", _WWW.sub(r"\1[.]", plain))


def one_line(text: str) -> str:
    """Return `text` disarmed on one line of at most 200 characters: a line break in a subject would begin a header."""
    return disarm(" ".join(text.split()))[:_LONGEST_LINE]


def is_address(url: str) -> bool:
    """Return whether an address of ours may be shown: http(s), ASCII, nothing in it that ends a link or a line."""
    return (
        url.startswith(("https://", "http://")) and url.isascii() and url.isprintable() and _ENDS_A_LINK.isdisjoint(url)
    )


def as_text(body: str, links: Sequence[Link], footer: Iterable[str]) -> str:
    """Return the whole body as plain text; only `links` are clickable."""
    shown = [f"{one_line(link.label)}: {link.url}" for link in links if is_address(link.url)]
    return "\n\n".join(part for part in (disarm(body), "\n".join(shown), "\n".join(footer)) if part)


def as_html(body: str, links: Sequence[Link], footer: Iterable[str]) -> str:
    """Return the same as HTML, for services that know no plain text and make their own markup of it."""
    shown = [
        f'<a href="{html.escape(link.url)}">{html.escape(one_line(link.label))}</a>'
        for link in links
        if is_address(link.url)
    ]
    lines = [html.escape(line) for line in disarm(body).splitlines()]
    return "<br/>".join([*lines, *shown, *(html.escape(line) for line in footer)])


# -- no secret in a log --


_TOLD = ("Failed to send ", "A Connection error occurred ")
"""How the lines of Apprise 2.2 begin that say why a service did not take a message; they name no address."""


def hide_secrets() -> None:
    """Filter both logs of this process; again changes nothing."""
    logging.getLogger("apprise").addFilter(_shown)
    logging.getLogger("urllib3.connectionpool").addFilter(_is_trouble)


def _shown(record: logging.LogRecord) -> bool:
    """Return whether a line of Apprise's may be shown, of which the first line is kept: the next is a stranger's."""
    said = record.getMessage()
    if record.levelno < logging.WARNING or not said.startswith(_TOLD):
        return False
    record.msg, record.args = readable(said.splitlines()[0]), None
    return True


def _is_trouble(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


log = logging.getLogger(__name__)

MAX_BODY_LENGTH = 8000
"""Characters. Chat services refuse longer messages; Apprise splits those that a service takes in parts."""
_CHANNELS_AT_ONCE = 8
_SEND_LIMIT_SECONDS = 15
"""# Assumption: a channel that has not answered by then will not; the message is tried again or another takes it."""


class FileNotifier:
    """Appends each message to a file as one line of JSON; the demo's notifier, and the fallback of the other."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def send(self, message: Message) -> str:
        """Append and return `messages.jsonl line 7`, once the line is on the disk."""
        line = json.dumps(
            {
                "sent_at": self._clock.now().isoformat(),
                "audience": message.audience.value,
                "recipient": message.recipient,
                "thread": message.thread,
                "severity": message.severity.value,
                "title": message.title,
                "body": message.body,
                "key": message.key,
                "links": [link.url for link in message.links],
            }
        )
        try:
            # For the owner alone: it names users and their jobs.
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "a+b") as stream:
                # Two processes may write; the lock also makes the line number true.
                fcntl.flock(stream, fcntl.LOCK_EX)
                stream.seek(0)
                before = stream.read()
                is_torn = bool(before) and not before.endswith(b"\n")  # a crash in the middle of an earlier line
                stream.write((b"\n" if is_torn else b"") + line.encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as exc:
            raise SourceUnavailable(
                f"the message could not be written to {self._path} ({exc.strerror}); check the disk and permissions"
            ) from exc
        return f"{self._path.name} line {len(before.splitlines()) + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parcel:
    """One message for one channel."""

    service: "NotifyBase" = field(repr=False)
    name: str
    """Of the service: no secret."""
    links: tuple[Link, ...]


class AppriseNotifier:
    """Sends through the channels of the message's audience; without a channel the message goes to `fallback`.

    A message counts as delivered if one channel took it; the receipt names those that did not.
    """

    def __init__(self, config: NotifierConfig, *, fallback: Notifier, cluster_name: str = "") -> None:
        self._url_files: Mapping[Audience, Path | None] = {
            Audience.OWNER: config.owner_urls_file,
            Audience.TEAM: config.team_urls_file,
            Audience.ON_CALL: config.on_call_urls_file,
        }
        self._fallback = fallback
        self._cluster_name = cluster_name

    def send(self, message: Message) -> str:
        """Deliver and return the receipt; raise SourceUnavailable if no channel took the message."""
        audience, path = message.audience, self._url_files[message.audience]
        known = () if path is None else read_channels(path, audience)
        channels = channels_for(known, audience, message.recipient)
        if not channels:
            return self._keep(message, f"no channel for {audience.value}")
        # Apprise takes a while to import, and nothing else in the package needs it.
        from ops_pipelines.resources.threads import is_wanted, open_services

        parcels = []
        refused_count = 0
        for channel in channels:
            services = open_services(channel.url, message, cluster_name=self._cluster_name)
            refused_count += not services
            links = (*message.links, *(message.personal_links(channel.name) if channel.name else ()))
            parcels += [
                _Parcel(service=each, name=str(each.service_name), links=links)
                for each in services
                if is_wanted(each, message)
            ]
        if refused_count == len(channels):
            raise SourceUnavailable(
                f"none of the {len(channels)} channel(s) of {audience.value} is a URL that Apprise knows; check {path}"
            )
        if not parcels:
            return self._keep(message, f"no channel for what needs nobody of {audience.value}")
        with ThreadPoolExecutor(_CHANNELS_AT_ONCE) as pool:
            took = list(pool.map(lambda parcel: self._hand_over(parcel, message), parcels))
        taken = [parcel.name for parcel, is_taken in zip(parcels, took, strict=True) if is_taken]
        failed = [parcel.name for parcel, is_taken in zip(parcels, took, strict=True) if not is_taken]
        failed += ["a URL that Apprise does not know"] * refused_count
        if not taken:
            raise SourceUnavailable(
                f"no channel of {audience.value} took the message (tried {', '.join(failed)}); "
                f"check the network and the URLs in {path}"
            )
        receipt = f"taken by {', '.join(taken)}"
        return f"{receipt}; not by {', '.join(failed)}" if failed else receipt

    def _keep(self, message: Message, why: str) -> str:
        log.warning("audience=%s: %s; the message is kept in the file only", message.audience.value, why)
        return f"{why}: {self._fallback.send(message)}"

    def _hand_over(self, parcel: _Parcel, message: Message) -> bool:
        """Return whether the service took the message. The name of the cluster is the operator's own."""
        from apprise import Apprise, NotifyFormat

        from ops_pipelines.resources.threads import body_for, notify_type, title_for

        knows_text = parcel.service.resolve_format(NotifyFormat.TEXT) is not NotifyFormat.MARKDOWN
        whole = body_for(parcel.service, message)
        body = whole if len(whole) <= MAX_BODY_LENGTH else f"{whole[:MAX_BODY_LENGTH]} [cut]"
        sender = Apprise()
        sender.add(parcel.service)
        result = sender.notify(
            title=title_for(parcel.service, message, cluster_name=self._cluster_name),
            body=(as_text if knows_text else as_html)(body, parcel.links, _footer(message)),
            body_format=NotifyFormat.TEXT if knows_text else NotifyFormat.HTML,
            notify_type=notify_type(message),
            interpret_escapes=False,
            timeout=_SEND_LIMIT_SECONDS,
        )
        return bool(result)


def _footer(message: Message) -> list[str]:
    """Return whom it is for, its thread and its key. The recipient is a user's own text: it stays inside the body."""
    lines = [f"for: {one_line(message.recipient)}", f"thread: {one_line(message.thread)}"]
    return [*lines, f"message: {one_line(message.key)}"] if message.key else lines
