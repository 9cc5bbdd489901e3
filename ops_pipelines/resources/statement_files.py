"""Statements and plans as files, in one directory each beside the state, written beside and renamed.

Both implement `core.record`. Nothing is deleted: a site keeps its bills as long as its law says, and a
forecast is judged by what was kept of it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from ops_pipelines.core.record import StatementFilesError
from ops_pipelines.resources.whole_file import put_whole_bytes

CHARGEBACK_DIRECTORY = "chargeback"
CAPACITY_DIRECTORY = "capacity"


class _NamedFiles:
    """Keeps files of one kind under a directory, which is made when the first is kept."""

    _WORD: ClassVar[str]
    """What a file is called in messages."""
    _NAMES: ClassVar[re.Pattern[str]]
    _EXPECTED: ClassVar[str]

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def keep(self, name: str, content: bytes) -> str:
        """Keep a file; see `core.record`. For the owner alone: it says what things cost."""
        target = self._file(name)
        with _told(f"the {self._WORD} {name} cannot be kept in {self._root}"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            put_whole_bytes(target, content)
        return str(target)

    def read(self, name: str) -> bytes | None:
        with _told(f"the {self._WORD} {name} cannot be read in {self._root}"):
            try:
                return self._file(name).read_bytes()
            except FileNotFoundError:
                return None

    def _file(self, name: str) -> Path:
        if not self._NAMES.fullmatch(name):
            raise StatementFilesError(f"{name[:80]!r} names no {self._WORD}; expected {self._EXPECTED}")
        return self._root / name


class StatementDirectory(_NamedFiles):
    """Keeps statements of months."""

    _WORD = "statement"
    _NAMES = re.compile(r"[0-9]{4}-[0-9]{2}\.(csv|parquet)", re.ASCII)
    _EXPECTED = "a month and a kind, as 2026-11.csv or 2026-11.parquet"


class PlanDirectory(_NamedFiles):
    """Keeps reports of quarters, and the checks that are made of them by month."""

    _WORD = "capacity report"
    _NAMES = re.compile(r"[0-9]{4}Q[1-4](-check-[0-9]{4}-[0-9]{2})?\.(json|html)", re.ASCII)
    _EXPECTED = "a quarter and a kind, as 2026Q4.json or 2026Q4-check-2026-11.html"


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        told = f"{what}: {problem.strerror or problem}. Check its owner, mode and free space."
        raise StatementFilesError(told) from problem
