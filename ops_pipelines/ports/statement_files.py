"""Where statements are kept for whoever bills: files by month, whole or not at all."""

from typing import Protocol


class StatementFilesError(RuntimeError):
    """A statement cannot be kept or read: disk full, no right. The message says what to do."""


class StatementFiles(Protocol):
    """Keeps statements by the name of their month and kind of file: `2026-11.csv`, `2026-11.parquet`."""

    def keep(self, name: str, content: bytes) -> str:
        """Keep a file in place of the one of that name and return where a person finds it.

        Raises StatementFilesError; then what was there before is still there.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """Return the file of that name; None if there is none. Raises StatementFilesError."""
        ...
