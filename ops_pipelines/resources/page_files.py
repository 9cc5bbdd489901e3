"""Pages as files in one directory beside the state, written beside and renamed. Implements `PageShelf`.

The time that a page shows is the time of its file, so that a shelf needs no list that could disagree with it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ops_pipelines.core.record import ShelfError
from ops_pipelines.resources.whole_file import delete_drafts, put_whole

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
        with _told(f"the page {name} cannot be kept in {self._root}"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            put_whole(target, html, written_at=shows)
        return str(target)

    def shows(self, name: str) -> datetime | None:
        with _told(f"the page {name} cannot be read in {self._root}"):
            try:
                return datetime.fromtimestamp(self._file(name).stat().st_mtime, UTC)
            except FileNotFoundError:
                return None

    def read(self, name: str) -> str | None:
        with _told(f"the page {name} cannot be read in {self._root}"):
            try:
                return self._file(name).read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                return None

    def place(self, name: str) -> str:
        return str(self._file(name))

    def tidy(self, now: datetime) -> int:
        with _told(f"old pages cannot be deleted in {self._root}"):
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


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise ShelfError(f"{what}: {problem.strerror or problem}. Check its owner, mode and free space.") from problem
