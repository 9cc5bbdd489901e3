"""Statements as files in one directory beside the state, written beside and renamed. Implements `StatementFiles`.

Nothing is deleted: a site keeps its bills as long as its law says.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ops_pipelines.ports.statement_files import StatementFilesError
from ops_pipelines.resources.whole_file import put_whole_bytes

CHARGEBACK_DIRECTORY = "chargeback"
_NAME = re.compile(r"[0-9]{4}-[0-9]{2}\.(csv|parquet)", re.ASCII)


class StatementDirectory:
    """Keeps statements under a directory, which is made when the first is kept."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def keep(self, name: str, content: bytes) -> str:
        """Keep a file; see `ports.statement_files`. For owner and group alone: it says what teams pay."""
        target = self._file(name)
        with _told(f"the statement {name} cannot be kept in {self._root}"):
            self._root.mkdir(mode=0o750, parents=True, exist_ok=True)
            put_whole_bytes(target, content)
        return str(target)

    def read(self, name: str) -> bytes | None:
        with _told(f"the statement {name} cannot be read in {self._root}"):
            try:
                return self._file(name).read_bytes()
            except FileNotFoundError:
                return None

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise StatementFilesError(
                f"{name[:80]!r} names no statement; expected a month and a kind, as 2026-11.csv or 2026-11.parquet"
            )
        return self._root / name


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        told = f"{what}: {problem.strerror or problem}. Check its owner, mode and free space."
        raise StatementFilesError(told) from problem
