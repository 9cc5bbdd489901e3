"""Messages to people."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Audience(Enum):
    OWNER = "owner"
    """The user whose job it is."""
    ON_CALL = "on_call"
    """The operator who is paged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `thread` groups the messages of one incident."""

    audience: Audience
    recipient: str
    """The user name for OWNER, a role for ON_CALL. Untrusted: an adapter looks it up, never formats it into a URL."""
    thread: str
    title: str
    body: str


class Notifier(Protocol):
    """Sends messages."""

    def send(self, message: Message) -> str:
        """Deliver and return the receipt in words; raise SourceUnavailable if no channel took the message."""
        ...
