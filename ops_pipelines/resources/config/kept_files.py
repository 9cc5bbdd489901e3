"""What a file of a site says by now, and where it cannot be read any more, what it said last; and where that is kept.

A copy of the last good one lies in the state directory, so that a slip in a new one stops no morning, in whichever
process it is met. What a file means is its reader's; `check-config` reads files without copies, and names faults.

Where the state directory is must be known also where cluster.yaml, which says it, is broken or gone: for orders that
must always work (`pause`) and for showing what is known. So every place counts that is known: what was named, what the
file says on the line of that key, broken or not, and what this user's last commands found.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ops_pipelines.resources.config.strict_yaml import MOST_BYTES, ConfigError, expand_home
from ops_pipelines.resources.whole_file import put_whole, put_whole_bytes

# -- what a file of a site says by now --


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


# -- where the state directory is, also where cluster.yaml, which says it, is broken or gone --


_LINE = re.compile(r"^state_directory[ \t]*:[ \t]*(\S.*?)[ \t]*(?:[ \t]#.*)?\r?$", re.MULTILINE)
_LONGEST_PATH = 4_096
_REMEMBERED = "ops_pipelines"
_MOST_REMEMBERED = 4
"""Who moves the state directory in cluster.yaml has a process that works in the one before until it is restarted."""


def state_directories(cluster_file: Path, *, named: Path | None = None) -> tuple[Path, ...]:
    """Return the state directories that are there, each once; empty where none is known."""
    places = [named, *_stated(cluster_file), *_remembered(cluster_file)]
    there = [place.resolve() for place in places if place is not None and _is_directory(place)]
    return tuple(dict.fromkeys(there))


def remember_state_directory(cluster_file: Path, state_directory: Path) -> None:
    """Note for this user where the state of a cluster lies. What cannot be noted is done without."""
    try:
        note = _note_of(cluster_file)
        known = _remembered(cluster_file)
        if known[:1] == (state_directory,):
            return
        note.parent.mkdir(parents=True, exist_ok=True)
        others = [place for place in known if place != state_directory and _is_directory(place)]
        put_whole(note, "".join(f"{place}\n" for place in [state_directory, *others][:_MOST_REMEMBERED]))
    except (OSError, RuntimeError):
        return


def _stated(cluster_file: Path) -> Iterator[Path]:
    text = (content_of(cluster_file) or b"").decode("utf-8", errors="replace")
    for found in _LINE.finditer(text):
        value = found[1]
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if not value or "\0" in value or len(value) > _LONGEST_PATH:
            continue
        try:
            yield cluster_file.resolve().parent / expand_home(value)
        except (ConfigError, OSError, RuntimeError):
            continue


def _remembered(cluster_file: Path) -> tuple[Path, ...]:
    """Return what is noted, the newest first."""
    try:
        said = (content_of(_note_of(cluster_file)) or b"").decode("utf-8").splitlines()
    except (RuntimeError, UnicodeDecodeError):
        return ()
    return tuple(Path(line) for line in said if line.startswith("/") and "\0" not in line)


def _note_of(cluster_file: Path) -> Path:
    """Return where this user keeps the note. Raises RuntimeError for a user without a home."""
    stated = os.environ.get("XDG_STATE_HOME", "")
    home = Path(stated) if stated.startswith("/") else Path.home() / ".local" / "state"
    name = hashlib.sha256(os.fsencode(cluster_file.absolute())).hexdigest()[:16]
    return home / _REMEMBERED / f"state_directory_{name}"


def _is_directory(place: Path) -> bool:
    try:
        return place.is_dir()
    except (OSError, ValueError):
        return False
