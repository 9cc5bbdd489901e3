"""Messages to people: through Apprise (chat, mail, pagers), or as JSON lines in a file.

What is reported, to whom and when is decided elsewhere. Channel URLs hold secrets: they are read from files at each
message (they are rotated) and stand in no receipt, error or log line. What the services make of a thread, a key and an
end is `threads`'; how text is made harmless, and whose channel is which, `channels`'.
"""

import fcntl
import json
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ops_pipelines.clock import Clock
from ops_pipelines.core.notes import Audience, Link, Message, Notifier
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.resources.channels import as_html, as_text, channels_for, one_line, read_channels
from ops_pipelines.resources.config.cluster_config import NotifierConfig

if TYPE_CHECKING:
    from apprise import NotifyBase

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
