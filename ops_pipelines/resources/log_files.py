"""The logs port on the output files of jobs: `slurm-%j.out`, `logs/%j/%t.log`; and how far any log file was read, and
which file on disk continues it: over rotation, truncation and restarts.

A log file is known by device, inode and the hash of its first bytes; its name is only where to look. A job's file says
by its name whose lines it holds, and by its owner who says so: anyone who may write into one directory may name files
after jobs of others. Files of the kernel log are read by `kernel_log`; what a line means is `lake`.
"""

import glob
import hashlib
import json
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import JobId, parse_job_id
from ops_pipelines.core.sources import LogBatch, LogLine, SourceNonsense, SourceUnavailable
from ops_pipelines.observe.logs.prefix import PrefixReader

HEAD_BYTES = 1024
"""Hashed to recognise a file: inodes are used again soon after a file is deleted."""
_CHUNK_BYTES = 256 * 1024
_COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".lz4")
_FORGET_AFTER_SECONDS = 3600.0
"""Assumption: a daemon closes a renamed file within an hour of its last line (logrotate signals it at once)."""


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
        """Return whether this file holds what `mark` says was read, so that reading may continue there."""
        return self.size >= mark.offset and self._head_digest(mark.offset) == mark.head_digest

    def take_over(self, mark: FileMark, *, path: str) -> None:
        """Continue where `mark` is."""
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
                notes.append(f"{file.mark.path} was truncated or written again; it is read from its beginning")
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
    """Let each file continue from the mark of its inode; return the marks that no file took."""
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
        return None  # nothing was read of it, so nothing distinguishes it from another file
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


MAX_LINE_BYTES = 64 * 1024
"""Progress bars are one long line; a longer one comes in parts of this size, and nothing of it is dropped."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = {
    "j": (r"(?P<job>\d{1,10}(?:[_+]\d{1,10})?)", "*"),
    "A": (r"(?P<array>\d{1,10})", "*"),
    "a": (r"(?P<index>\d{1,10})", "*"),
    "N": (r"(?P<node>[A-Za-z0-9][A-Za-z0-9._-]{0,252})", "*"),
    "t": (r"\d{1,7}", "*"),
    "n": (r"\d{1,7}", "*"),
    "s": (r"[A-Za-z0-9_.+-]{1,40}", "*"),
    "x": (r"[^/]{1,200}", "*"),
    "u": (r"[^/]{1,64}", "*"),
}
"""What Slurm writes for `%j` and the like (sbatch, "filename pattern") -> how to read it back, how to find it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLogPattern:
    """Where the output of jobs is, and how the path names the job. Make one with `parse_pattern`."""

    glob: str
    path: re.Pattern[str]


def parse_pattern(text: str) -> JobLogPattern:
    """Return `text` as a pattern: an absolute path with Slurm's fields and `*`; it must hold `%j`, or `%A` and `%a`.

    Raises ValueError with what is wrong.
    """
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is no absolute path")
    found_glob: list[str] = []
    found_path: list[str] = []
    names: list[str] = []
    for literal, field, star in re.findall(r"([^%*?]+)|%(?:\d{1,2})?([A-Za-z%])|(\*+|\?)", text):
        if star:
            found_glob.append("?" if star == "?" else "*")
            found_path.append("[^/]" if star == "?" else "[^/]*")
        elif literal or field == "%":
            found_glob.append(glob.escape(literal or "%"))
            found_path.append(re.escape(literal or "%"))
        elif field not in _FIELDS:
            raise ValueError(f"{text!r}: %{field} is not known; expected one of %{' %'.join(_FIELDS)}")
        else:
            pattern, wildcard = _FIELDS[field]
            # A field that is given twice is read from its first place.
            found_path.append(pattern if field not in names else re.sub(r"\?P<\w+>", "?:", pattern))
            found_glob.append(wildcard)
            names.append(field)
    if "j" not in names and not {"A", "a"} <= set(names):
        raise ValueError(f"{text!r} does not say where the job id is; put %j, or %A and %a, into it")
    return JobLogPattern(glob="".join(found_glob), path=re.compile("".join(found_path)))


class JobLogFiles:
    """Follows the output files of jobs.

    A file whose name fits no pattern fully is read too, without a job: the line is not lost. Every file gets its share
    of a batch, so that one talkative job does not silence the others. Lines are in order within one file.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        *,
        clock: Clock,
        source: str = "job_logs",
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        """Raise ValueError if there is no pattern, or one does not say where the job id is."""
        if not patterns:
            raise ValueError("no job log is named; empty never means all")
        self._patterns = tuple(parse_pattern(pattern) for pattern in patterns)
        self._clock = clock
        self._source = source
        self._max_line_bytes = max_line_bytes
        self._users: dict[int, str] = {}

    @property
    def source(self) -> str:
        return self._source

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        """Return the next lines of all files; see `core.sources.Logs`."""
        marks, turn = load_marks(cursor) if cursor is not None else ((), 0)
        received_at = self._clock.now()
        notes: list[str] = []
        lines: list[LogLine] = []
        globs = [pattern.glob for pattern in self._patterns]
        if not match_files(globs):
            # No job has written yet, or all output was cleared away: that is how things stand, and no failure.
            return LogBatch(lines=(), cursor=dump_marks(marks, turn=turn))
        with open_files(globs, marks, notes=notes, now_seconds=received_at.timestamp()) as files:
            first = turn % len(files)
            found, is_full = read_shares(
                [*files[first:], *files[:first]], max_lines=max_lines, max_line_bytes=self._max_line_bytes
            )
            for file in files:
                job, node = self._job_and_node(file.mark.path)
                reader = PrefixReader(at=received_at)
                owner = None if job is None else self._owner_of(file.descriptor, job)
                lines += [
                    self._line_of(each, file, job=job, node=node, owner=owner, reader=reader)
                    for each in found.get(file.identity, [])
                ]
            new_cursor = dump_marks([file.mark for file in files], turn=turn + 1 if is_full else turn)
        return LogBatch(lines=tuple(lines), cursor=new_cursor, notes=tuple(notes))

    def _job_and_node(self, path: str) -> tuple[JobId | None, str | None]:
        for pattern in self._patterns:
            match = pattern.path.fullmatch(path)
            if match is None:
                continue
            groups = match.groupdict()
            name = groups.get("job") or f"{groups['array']}_{groups['index']}"
            return parse_job_id(name), groups.get("node")
        return None, None

    def _owner_of(self, descriptor: int, job: JobId) -> str:
        """Return the name of the user who owns an open file; empty if he has none, or its real path names another job.

        A link of one user to the output of another's other job would pass that off as the word of this one.
        """
        try:
            path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            uid = os.fstat(descriptor).st_uid
        except OSError:
            return ""
        if not _numbers_in(job) <= _numbers_in(path):
            return ""
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                return ""
        return self._users[uid]

    def _line_of(
        self,
        found: FoundLine,
        file: TailedFile,
        *,
        job: JobId | None,
        node: str | None,
        owner: str | None,
        reader: PrefixReader,
    ) -> LogLine:
        mark = file.mark
        # The hash keeps two lines apart that stood at the same place of a file before and after a truncation.
        content_hash = hashlib.sha256(found.content).hexdigest()[:12]
        text = found.content.decode("utf-8", errors="backslashreplace").removesuffix("\r")
        said = reader.read(text)
        return LogLine(
            node=node or said.node,
            written_at=None if said.microseconds is None else _EPOCH + timedelta(microseconds=said.microseconds),
            position=f"{mark.device:x}-{mark.inode:x}:{found.offset:012d}:{content_hash}",
            text=text,
            job=job,
            written_by=owner,
        )


def _numbers_in(text: str) -> set[int]:
    return {int(digits) for digits in re.findall(r"[0-9]{1,19}", text)}
