"""What people read, as files beside the state, written beside and renamed: pages of incidents and others, statements
and capacity plans, and the newest comparison of policies with the proposed policy that it read.

Implements the shelves of `core.record`. The time that a page shows is the time of its file, so that a shelf needs no
list that could disagree with it. Old pages are deleted. Statements and plans never are: a site keeps its bills as long
as its law says, and a forecast is judged by what was kept of it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

from ops_pipelines.core.identity import Topology
from ops_pipelines.core.policy import Policy, PolicyError
from ops_pipelines.core.record import ShelfError, StatementFilesError
from ops_pipelines.resources.config.policy_file import read_policy
from ops_pipelines.resources.whole_file import delete_drafts, put_whole, put_whole_bytes


@contextmanager
def _raising(error: type[ShelfError] | type[StatementFilesError], what: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise error(f"{what}: {problem.strerror or problem}. Check its owner, mode and free space.") from problem


# -- pages --


REPORT_DIRECTORY = "reports"
KEPT_FOR = timedelta(days=90)
"""Assumption: who reviews an incident does so within a quarter; the ledger writes the page anew at any time."""
MAX_PAGE_COUNT = 500
"""At 100 kB a page, 50 MB."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_SUFFIX = ".html"
_DRAFT_LIFE = timedelta(hours=1)
"""A page is written within seconds: an older draft is of a process that was killed."""


class PageFiles:
    """Keeps pages under a directory, which is made when the first is kept."""

    def __init__(self, root: Path, *, kept_for: timedelta = KEPT_FOR, max_page_count: int = MAX_PAGE_COUNT) -> None:
        self._root = root.absolute()
        self._kept_for = kept_for
        self._max_page_count = max_page_count

    def keep(self, name: str, html: str, *, shows: datetime) -> str:
        """Keep a page; see `core.record`. Readable for its owner alone: it names users and their jobs."""
        target = self._file(name)
        with _raising(ShelfError, f"the page {name} cannot be kept in {self._root}"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            put_whole(target, html, written_at=shows)
        return str(target)

    def shows(self, name: str) -> datetime | None:
        with _raising(ShelfError, f"the page {name} cannot be read in {self._root}"):
            try:
                return datetime.fromtimestamp(self._file(name).stat().st_mtime, UTC)
            except FileNotFoundError:
                return None

    def read(self, name: str) -> str | None:
        with _raising(ShelfError, f"the page {name} cannot be read in {self._root}"):
            try:
                return self._file(name).read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                return None

    def place(self, name: str) -> str:
        return str(self._file(name))

    def tidy(self, now: datetime) -> int:
        with _raising(ShelfError, f"old pages cannot be deleted in {self._root}"):
            if not self._root.is_dir():
                return 0
            delete_drafts(self._root, before=now - _DRAFT_LIFE)
            pages = sorted(self._written())
            oldest = (now - self._kept_for).timestamp()
            surplus = len(pages) - self._max_page_count
            gone = [file for place, (at, file) in enumerate(pages) if at < oldest or place < surplus]
            for file in gone:
                file.unlink(missing_ok=True)
            return len(gone)

    def _written(self) -> Iterator[tuple[float, Path]]:
        """Yield each page with its time; another process may tidy at the same time."""
        for file in self._root.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                if not file.is_symlink():
                    yield file.stat().st_mtime, file

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ShelfError(
                f"{name[:80]!r} names no page; expected 1 to 100 of letters, digits, '.', '_' and '-', the first a "
                "letter or digit"
            )
        return self._root / f"{name}{_SUFFIX}"


# -- statements and capacity plans --


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
        with _raising(StatementFilesError, f"the {self._WORD} {name} cannot be kept in {self._root}"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            put_whole_bytes(target, content)
        return str(target)

    def read(self, name: str) -> bytes | None:
        with _raising(StatementFilesError, f"the {self._WORD} {name} cannot be read in {self._root}"):
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


# -- comparisons of policies --


PAGE_NAME = "policy_comparison.html"


class ComparisonPages:
    """The newest page of one cluster's state directory; it appears whole or not at all."""

    def __init__(self, state_directory: Path) -> None:
        self._page = state_directory / PAGE_NAME

    def keep(self, html: str) -> str:
        """Put a page in place of the one before, and return where it is. Raises OSError."""
        self._page.parent.mkdir(parents=True, exist_ok=True)
        put_whole(self._page, html)
        return str(self._page)

    def newest(self) -> str | None:
        """Return the newest page, None if none was written yet. Raises OSError."""
        try:
            return self._page.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None


def read_proposed_policy(name: str, *, beside: Path, topology: Topology) -> Policy:
    """Return the policy of the file `name` in the directory of the present policy.

    Whoever may launch a job names it: no other directory is read. Raises PolicyError, also for a policy that would be
    refused in production.
    """
    directory = beside.parent.resolve()
    path = (directory / name).resolve()
    if path.parent != directory or path.suffix not in (".yaml", ".yml"):
        raise PolicyError(
            f"{name!r} is not the name of a policy beside {beside.name}; expected a .yaml file of that directory, "
            "without a path"
        )
    return read_policy(path, topology=topology)
