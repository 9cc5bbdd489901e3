"""Where pages for people are kept: whole or not at all, by name, with the time that they show; bounded."""

from datetime import datetime
from typing import Protocol


class ShelfError(RuntimeError):
    """A page cannot be kept or read: disk full, no right. The message says what to do."""


class PageShelf(Protocol):
    """Keeps HTML pages by name: letters, digits, `.`, `_` and `-`."""

    def keep(self, name: str, html: str, *, shows: datetime) -> str:
        """Keep a page in place of the one of that name and return where a person finds it; `shows` is the time that it
        is of. Raises ShelfError; then what was there before is still there."""
        ...

    def shows(self, name: str) -> datetime | None:
        """Return of which time the page of that name is; None if there is none. Raises ShelfError."""
        ...

    def read(self, name: str) -> str | None:
        """Return the page of that name; None if there is none. Raises ShelfError."""
        ...

    def place(self, name: str) -> str:
        """Return where a person finds the page of that name, whether there is one or not."""
        ...

    def tidy(self, now: datetime) -> int:
        """Delete what is too old, and the oldest of what is too many; return how many. Raises ShelfError."""
        ...
