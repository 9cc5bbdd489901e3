"""The logs port on the output files of jobs: `slurm-%j.out`, `logs/%j/%t.log`. A file's name says whose lines it holds,
and its owner who says so: whoever may write into one directory may name files after jobs of others.

How far each file was read, over rotation, truncation and restarts, is `tailed_files`; what a line means is `lake`.
"""

import glob
import hashlib
import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import JobId, parse_job_id
from ops_pipelines.core.sources import LogBatch, LogLine
from ops_pipelines.observe.logs.prefix import PrefixReader
from ops_pipelines.resources.logs.tailed_files import (
    FoundLine,
    TailedFile,
    dump_marks,
    load_marks,
    match_files,
    open_files,
    read_shares,
)

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
    """Where the output of jobs stands, and how the path names the job. Make one with `parse_pattern`."""

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
            # A field that stands twice is read from its first place.
            found_path.append(pattern if field not in names else re.sub(r"\?P<\w+>", "?:", pattern))
            found_glob.append(wildcard)
            names.append(field)
    if "j" not in names and not {"A", "a"} <= set(names):
        raise ValueError(f"{text!r} does not say where the job id stands; put %j, or %A and %a, into it")
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
        """Raise ValueError if there is no pattern, or one does not say where the job id stands."""
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
