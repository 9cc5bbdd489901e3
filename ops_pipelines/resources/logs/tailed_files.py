"""How far each log file was read, and which file on disk goes on where: over rotation, truncation and restarts.

A file is known by device, inode and the hash of its first bytes; its name is only where to look. What the lines say
is `kernel_log`'s and `job_log_files`', which turn them into a batch.
"""

import glob
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable

HEAD_BYTES = 1024
"""Hashed to recognise a file: inodes are used again soon after a file is deleted."""
_CHUNK_BYTES = 256 * 1024
_COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".lz4")
_FORGET_AFTER_SECONDS = 3600.0
"""Assumption: a daemon lets go of a renamed file within an hour of its last line (logrotate signals it at once)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """How far one file was read."""

    path: str
    """The name under which the paths in the configuration matched it; a renamed file keeps it."""
    device: int
    inode: int
    offset: int
    head_digest: str
    """Hash of its first `min(offset, HEAD_BYTES)` bytes."""
    is_inside_line: bool
    """True after the first part of a line that was too long for one."""
    was_at_end: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLine:
    """One line, or one part of a line that was too long."""

    offset: int
    content: bytes
    is_continuation: bool
    is_cut: bool


class TailedFile:
    """One open log file and how far it was read."""

    def __init__(self, *, path: str, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self.descriptor = descriptor
        self.size = status.st_size
        self.modified_at_seconds = status.st_mtime
        self.mark = FileMark(
            path=path, device=status.st_dev, inode=status.st_ino, offset=0, head_digest=_digest(b""),
            is_inside_line=False, was_at_end=False,
        )  # fmt: skip
        self.is_marked = False

    @property
    def identity(self) -> tuple[int, int]:
        return self.mark.device, self.mark.inode

    def goes_on_from(self, mark: FileMark) -> bool:
        """Return whether this file holds what `mark` says was read, so that reading may go on there."""
        return self.size >= mark.offset and self._head_digest(mark.offset) == mark.head_digest

    def take_over(self, mark: FileMark, *, path: str) -> None:
        """Go on where `mark` stands."""
        device, inode = self.identity
        self.mark = replace(mark, path=path, device=device, inode=inode)
        self.is_marked = True

    def read_lines(self, *, max_count: int, max_line_bytes: int) -> list[FoundLine]:
        """Return the next complete lines and move the mark behind them; a line too long for one comes in parts."""
        found: list[FoundLine] = []
        base = self.mark.offset
        is_inside = self.mark.is_inside_line
        buffer, start = b"", 0
        while len(found) < max_count:
            end = buffer.find(b"\n", start, start + max_line_bytes + 1)
            is_cut = end < 0 and len(buffer) - start > max_line_bytes
            if end < 0 and not is_cut:
                chunk = os.pread(self.descriptor, _CHUNK_BYTES, base + len(buffer))
                if not chunk:
                    break
                buffer, base, start = buffer[start:] + chunk, base + start, 0
                continue
            stop = start + max_line_bytes if is_cut else end
            found.append(
                FoundLine(offset=base + start, content=buffer[start:stop], is_continuation=is_inside, is_cut=is_cut)
            )
            start = stop if is_cut else stop + 1
            is_inside = is_cut
        offset = base + start
        self.mark = replace(
            self.mark,
            offset=offset,
            head_digest=self._head_digest(offset),
            is_inside_line=is_inside,
            was_at_end=offset == os.fstat(self.descriptor).st_size,
        )
        return found

    def _head_digest(self, offset: int) -> str:
        return _digest(os.pread(self.descriptor, min(offset, HEAD_BYTES), 0))


def read_shares(
    files: Sequence[TailedFile], *, max_lines: int, max_line_bytes: int
) -> tuple[dict[tuple[int, int], list[FoundLine]], bool]:
    """Read round after round, each file its share of what is left; return the lines, and whether some were left."""
    found: dict[tuple[int, int], list[FoundLine]] = {}
    left = max_lines
    active = list(files)
    while active and left > 0:
        share = max(1, left // len(active))
        still_active: list[TailedFile] = []
        for file in active:
            count = min(share, left)
            lines = file.read_lines(max_count=count, max_line_bytes=max_line_bytes)
            found.setdefault(file.identity, []).extend(lines)
            left -= len(lines)
            if len(lines) == count:
                still_active.append(file)
        active = still_active
    return found, bool(active)


def dump_marks(marks: Sequence[FileMark], *, turn: int) -> str:
    """Return the cursor: JSON of the marks and of whose turn it is to be read first."""
    return json.dumps({"version": 1, "turn": turn, "files": [asdict(mark) for mark in marks]}, separators=(",", ":"))


def load_marks(cursor: str) -> tuple[tuple[FileMark, ...], int]:
    """Return what `dump_marks` wrote; raise SourceNonsense on anything else."""
    try:
        document = json.loads(cursor)
        if document["version"] != 1 or not isinstance(document["turn"], int):
            raise ValueError("an unknown version")
        marks = tuple(FileMark(**entry) for entry in document["files"])
        for mark in marks:
            for field in fields(FileMark):
                if type(getattr(mark, field.name)) is not field.type:
                    raise ValueError(f"{field.name} is no {field.type}")
            if mark.offset < 0:
                raise ValueError("an offset below 0")
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise SourceNonsense(
            f"the cursor of the log files cannot be read ({exc}); delete it to read the files from their beginning"
        ) from exc
    return marks, document["turn"]


@contextmanager
def open_files(
    patterns: Sequence[str], marks: Sequence[FileMark], *, notes: list[str], now_seconds: float
) -> Iterator[list[TailedFile]]:
    """Open what the patterns match, and what was renamed away and is not read to its end; closed on leaving.

    Renamed files come first, then the others by path. What went wrong without losing the rest is added to `notes`.
    Raises SourceUnavailable if no file can be opened.
    """
    with ExitStack() as stack:
        files = [file for path in match_files(patterns) if (file := _open(path, stack, notes)) is not None]
        lost = _resume_by_inode(files, marks)
        renamed = _resume_elsewhere(files, lost, stack=stack, notes=notes, now_seconds=now_seconds)
        for file in files:
            if not file.is_marked and any(file.identity == (mark.device, mark.inode) for mark in lost):
                notes.append(f"{file.mark.path} was truncated or written anew; it is read from its beginning")
        if not files and not renamed:
            raise SourceUnavailable(
                f"no readable log file matches {', '.join(patterns)}; check the paths and that logs are written"
                + "".join(f"; {note}" for note in notes)
            )
        yield [*renamed, *files]


def match_files(patterns: Sequence[str]) -> list[str]:
    """Return the files that the patterns match now, by path; compressed ones are old and were read."""
    paths = {path for pattern in patterns for path in glob.glob(pattern)}  # noqa: PTH207 -- patterns are absolute
    return sorted(path for path in paths if not path.endswith(_COMPRESSED))


def _open(path: str, stack: ExitStack, notes: list[str]) -> TailedFile | None:
    try:
        # Without O_NONBLOCK the opening of a named pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None  # rotated away between the listing and now; the next reading finds it
    except OSError as exc:
        notes.append(f"{path} cannot be read ({exc.strerror})")
        return None
    stack.callback(os.close, descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    return TailedFile(path=path, descriptor=descriptor)


def _resume_by_inode(files: Sequence[TailedFile], marks: Sequence[FileMark]) -> list[FileMark]:
    """Let each file go on from the mark of its inode; return the marks that no file took."""
    lost: list[FileMark] = []
    by_identity = {file.identity: file for file in files}
    for mark in marks:
        file = by_identity.get((mark.device, mark.inode))
        if file is not None and not file.is_marked and file.goes_on_from(mark):
            file.take_over(mark, path=file.mark.path)
        else:
            lost.append(mark)
    return lost


def _resume_elsewhere(
    files: Sequence[TailedFile],
    lost: Sequence[FileMark],
    *,
    stack: ExitStack,
    notes: list[str],
    now_seconds: float,
) -> list[TailedFile]:
    """Find the files that lost marks belong to: renamed (same inode), or copied before a truncation (same head)."""
    renamed: list[TailedFile] = []
    directories: dict[str, dict[tuple[int, int], str]] = {}
    for mark in lost:
        directory = str(Path(mark.path).parent)
        if directory not in directories:
            directories[directory] = _list_by_identity(directory)
        file = _find_renamed(mark, directories[directory], stack) or _find_copy(
            mark, files, directories[directory], stack
        )
        if file is None:
            if not mark.was_at_end:
                notes.append(f"{mark.path}: a part that was not read yet is gone (deleted, or rotated too fast)")
            continue
        is_matched = any(file is each for each in files)
        file.take_over(mark, path=file.mark.path if is_matched else mark.path)
        is_finished = file.mark.offset == file.size and now_seconds - file.modified_at_seconds > _FORGET_AFTER_SECONDS
        if not is_matched and not is_finished:
            renamed.append(file)
    return renamed


def _list_by_identity(directory: str) -> dict[tuple[int, int], str]:
    paths: dict[tuple[int, int], str] = {}
    for path in match_files([f"{glob.escape(directory)}/*"]):
        try:
            status = os.stat(path)  # noqa: PTH116 -- a string from the listing
        except OSError:
            continue
        paths[status.st_dev, status.st_ino] = path
    return paths


def _find_renamed(mark: FileMark, paths: Mapping[tuple[int, int], str], stack: ExitStack) -> TailedFile | None:
    path = paths.get((mark.device, mark.inode))
    file = None if path is None else _open(path, stack, [])
    return file if file is not None and file.goes_on_from(mark) else None


def _find_copy(
    mark: FileMark, files: Sequence[TailedFile], paths: Mapping[tuple[int, int], str], stack: ExitStack
) -> TailedFile | None:
    """Return the file that begins like the marked one, in its directory, with its stem, and not read by anyone yet."""
    if mark.offset == 0:
        return None  # nothing was read of it, so nothing tells it from another file
    stem = Path(mark.path).name.split(".", 1)[0]
    by_path = {file.mark.path: file for file in files}
    for identity, path in paths.items():
        if not Path(path).name.startswith(stem) or identity == (mark.device, mark.inode):
            continue
        file = by_path.get(path) or _open(path, stack, [])
        if file is not None and not file.is_marked and file.goes_on_from(mark):
            return file
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
