"""Where statements and plans are kept for whoever bills and buys: files by name, whole or not at all."""

from typing import Protocol


class StatementFilesError(RuntimeError):
    """A file cannot be kept or read: disk full, no right. The message says what to do."""


class StatementFiles(Protocol):
    """Keeps files by the name of their time and kind: `2026-11.csv` of a month, `2026Q4.json` of a quarter.

    Which names it takes, each place says; another one is refused.
    """

    def keep(self, name: str, content: bytes) -> str:
        """Keep a file in place of the one of that name and return where a person finds it.

        Raises StatementFilesError; then what was there before is still there.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """Return the file of that name; None if there is none. Raises StatementFilesError."""
        ...
