"""What a file of a site says by now, and where it cannot be read any more, what it said last.

A copy of the last good one lies in the state directory, so that a slip in a new one stops no morning, in whichever
process it is met. What a file means is its reader's; `check-config` reads files without copies, and names faults.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ops_pipelines.resources.config.strict_yaml import MOST_BYTES, ConfigError
from ops_pipelines.resources.whole_file import put_whole_bytes

_HOLDS = "cannot be used as it stands, and what it said before holds; `ops-pipelines check-config` names the fault"
Content = TypeVar("Content")
Stamp = tuple[int, ...] | None
"""What tells one content of a file from the next; None without a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Generic[Content]):
    """What a file says, and what is the matter with it."""

    content: Content
    trouble: str = ""
    """Why an earlier file counts; empty: the present one does."""


def read_kept(
    path: Path,
    *,
    kept: Path,
    read: Callable[[Path], Content],
    read_again: Callable[[Path], Content] | None = None,
) -> Told[Content]:
    """Return what `path` says, or what `kept` holds of it from before. Raises ConfigError where neither can be used.

    `read_again` reads the copy where that is to be less strict: other files, which it was checked with, have changed.
    """
    before = content_of(path)
    try:
        content = read(path)
    except ConfigError:
        if content_of(kept) is None:
            raise
        return Told(content=(read_again or read)(kept), trouble=f"{path.name} {_HOLDS}")
    return Told(content=content, trouble=keep_copy(path, before, kept=kept))


def keep_copy(path: Path, before: bytes | None, *, kept: Path) -> str:
    """Keep what stood in `path` before it was read and found to be right; return why that cannot be, "" if it can."""
    # Changed while it was read: the next reading keeps it.
    if before is None or before != content_of(path) or before == content_of(kept):
        return ""
    try:
        put_whole_bytes(kept, before)
    except OSError as problem:
        why = problem.strerror or type(problem).__name__
        return f"no copy of {path.name} could be kept ({why}): make the state directory writable"
    return ""


def stamp_of(path: Path | None) -> Stamp:
    """Return what tells one content of a file from the next; None without a file."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    # The other two tell a file that was put in place with an older time than the one before it.
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns


def stamps_of(paths: Iterable[Path | None]) -> tuple[Stamp, ...]:
    """Return the stamp of each, in their order."""
    return tuple(stamp_of(path) for path in paths)


def content_of(path: Path) -> bytes | None:
    """Return what stands in a file; None where it cannot be read, is no file, or is longer than any configuration."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            read = file.read(MOST_BYTES + 1)
    except OSError:
        return None
    return read if len(read) <= MOST_BYTES else None
