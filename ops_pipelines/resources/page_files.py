"""Pages as files in one directory beside the state, written beside and renamed. Implements `PageShelf`.

The time that a page shows is the time of its file, so that a shelf needs no list that could disagree with it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex

from ops_pipelines.ports.page_shelf import ShelfError

REPORT_DIRECTORY = "reports"
KEPT_FOR = timedelta(days=90)
"""Assumption: who reviews an incident does so within a quarter; the ledger writes the page anew at any time."""
MAX_PAGE_COUNT = 500
"""At 100 kB a page, 50 MB."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_SUFFIX = ".html"


class PageFiles:
    """Keeps pages under a directory, which is made when the first is kept."""

    def __init__(self, root: Path, *, kept_for: timedelta = KEPT_FOR, max_page_count: int = MAX_PAGE_COUNT) -> None:
        self._root = root.absolute()
        self._kept_for = kept_for
        self._max_page_count = max_page_count

    def keep(self, name: str, html: str, *, shows: datetime) -> str:
        """Keep a page; see `ports.page_shelf`. Readable for its owner and group: it names users and their jobs."""
        target = self._file(name)
        beside = target.with_name(f".{target.name}.{token_hex(4)}")
        with _told(f"the page {name} cannot be kept in {self._root}"):
            self._root.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
                with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
                    file.write(html)
                os.utime(beside, (shows.timestamp(), shows.timestamp()))
                beside.replace(target)
            finally:
                with suppress(FileNotFoundError):
                    beside.unlink()
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
                return self._file(name).read_text(encoding="utf-8")
            except FileNotFoundError:
                return None

    def place(self, name: str) -> str:
        return str(self._file(name))

    def tidy(self, now: datetime) -> int:
        with _told(f"old pages cannot be deleted in {self._root}"):
            if not self._root.is_dir():
                return 0
            pages = sorted(
                (file.stat().st_mtime, file) for file in self._root.glob(f"*{_SUFFIX}") if not file.is_symlink()
            )
            oldest = (now - self._kept_for).timestamp()
            surplus = len(pages) - self._max_page_count
            gone = [file for place, (at, file) in enumerate(pages) if at < oldest or place < surplus]
            for file in gone:
                file.unlink(missing_ok=True)
            return len(gone)

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
