"""Messages to people."""

from dataclasses import dataclass
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
class Message:
    """One message. `thread` groups the messages of one incident."""

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


class Notifier(Protocol):
    """Sends messages."""

    def send(self, message: Message) -> str:
        """Deliver and return the receipt in words; raise SourceUnavailable if no channel took the message."""
        ...
