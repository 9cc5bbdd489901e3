"""Messages to people."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class Audience(Enum):
    OWNER = "owner"
    """The user whose job it is."""
    TEAM = "team"
    """The team whose jobs suffer."""
    ON_CALL = "on_call"
    """The operator who is paged."""


class Severity(Enum):
    """How much a message may disturb, by what the recipient loses or must do; never by how loud a log line was."""

    INFO = "info"
    """It is over, or nothing is lost: read it when you like."""
    NOTICE = "notice"
    """Something of yours was moved or will be; nothing to do."""
    WARNING = "warning"
    """Something is lost, or somebody is asked for an answer today."""
    CRITICAL = "critical"
    """Somebody must act now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An address of our own pages. Nothing else of a message is ever made clickable."""

    label: str
    url: str = field(repr=False)
    """http(s), without spaces. It may carry a right (an approval), so it is in no repr."""


PersonalLinks = Callable[[str], tuple[Link, ...]]
"""Given the name of a person with a channel of their own, returns the links that are for nobody else."""


def no_links(person: str) -> tuple[Link, ...]:
    """Return the links of a message that gives nobody a right of their own."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `thread` groups the messages of one incident.

    Title, subject and body are untrusted: they quote logs, jobs and users. An adapter shows them as text, in which
    nobody is mentioned and nothing is a link, a heading or a command.
    """

    audience: Audience
    recipient: str
    """The user name for OWNER, the account for TEAM, a role for ON_CALL. Untrusted: an adapter looks it up, never
    formats it into a URL."""
    thread: str
    title: str
    body: str
    severity: Severity = Severity.WARNING
    key: str = ""
    """Names the message: the same key is the same message, however often it is handed in. Empty: nobody asks."""
    subject: str = ""
    """The same for every message of a thread: what mail programs sort by. Empty: the title."""
    links: tuple[Link, ...] = ()
    personal_links: PersonalLinks = field(default=no_links, compare=False, repr=False)
    """Asked only for persons who have a channel to themselves: what stands in a shared room is everybody's."""
    closes: tuple[str, ...] = ()
    """The threads that end with this message: a pager that rang for one of them is told that it is over."""


class Notifier(Protocol):
    """Sends messages."""

    def send(self, message: Message) -> str:
        """Deliver and return the receipt in words; raise SourceUnavailable if no channel took the message."""
        ...
