"""Messages to people: through Apprise (chat, mail, pagers), or as JSON lines in a file.

What is told, to whom and when is decided elsewhere. Channel URLs hold secrets: they are read from files at each
message (they are rotated) and stand in no receipt, error or log line.
"""

import fcntl
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.ports.notifier import Audience, Message, Notifier
from ops_pipelines.ports.source_error import SourceUnavailable
from ops_pipelines.resources.config.cluster_config import NotifierConfig

log = logging.getLogger(__name__)

MAX_BODY_LENGTH = 8000
"""Characters. Chat services refuse longer messages; Apprise splits those that a service takes in parts."""


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
                "title": message.title,
                "body": message.body,
            }
        )
        try:
            with self._path.open("a+b") as stream:
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


class AppriseNotifier:
    """Sends through the channels of the message's audience; without a channel the message goes to `fallback`.

    A message counts as delivered if one channel took it; the receipt names those that did not.
    """

    def __init__(self, config: NotifierConfig, *, fallback: Notifier) -> None:
        self._url_files: Mapping[Audience, Path | None] = {
            Audience.OWNER: config.owner_urls_file,
            Audience.ON_CALL: config.on_call_urls_file,
        }
        self._fallback = fallback

    def send(self, message: Message) -> str:
        """Deliver and return the receipt; raise SourceUnavailable if no channel took the message."""
        urls = self._read_urls(message.audience)
        if not urls:
            log.warning("audience=%s has no channel; the message is kept in the file only", message.audience.value)
            return f"no channel for {message.audience.value}: {self._fallback.send(message)}"
        # Apprise takes a second to import, and nothing else in the package needs it.
        from apprise import Apprise, NotifyFormat

        sender = Apprise()
        refused_count = sum(not sender.add(url) for url in urls)
        if len(sender) == 0:
            raise SourceUnavailable(
                f"none of the {len(urls)} channel(s) of {message.audience.value} is a URL that Apprise knows; "
                f"check {self._url_files[message.audience]}"
            )
        result = sender.notify(
            title=_one_line(message.title),
            body=_body(message),
            body_format=NotifyFormat.TEXT,
            interpret_escapes=False,
        )
        # A result object, not a bool; each of its results belongs to one service, whose name is no secret.
        taken = [str(each.name) for each in result.results if bool(each)]
        failed = [str(each.name) for each in result.results if not bool(each)]
        failed += ["a URL that Apprise does not know"] * refused_count
        if not taken:
            raise SourceUnavailable(
                f"no channel of {message.audience.value} took the message (tried {', '.join(failed)}); "
                f"check the network and the URLs in {self._url_files[message.audience]}"
            )
        receipt = f"taken by {', '.join(taken)}"
        return f"{receipt}; not by {', '.join(failed)}" if failed else receipt

    def _read_urls(self, audience: Audience) -> list[str]:
        path = self._url_files[audience]
        if path is None:
            return []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as exc:
            raise SourceUnavailable(
                f"the channels of {audience.value} cannot be read from {path} ({type(exc).__name__}); check the file"
            ) from None
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _body(message: Message) -> str:
    """Return the body with recipient and thread. The recipient is a user's own text: it stays inside the body."""
    footer = f"for: {_one_line(message.recipient)}\nthread: {_one_line(message.thread)}"
    body = message.body if len(message.body) <= MAX_BODY_LENGTH else f"{message.body[:MAX_BODY_LENGTH]} [cut]"
    return f"{body}\n\n{footer}"


def _one_line(text: str) -> str:
    """Return `text` on one line of at most 200 characters: a line break in a mail's subject would start a header."""
    return " ".join(text.split())[:200]
