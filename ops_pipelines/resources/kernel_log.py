"""Kernel log lines from files (rsyslog, dmesg) and from journald, with cursors that survive restarts and rotation; and
what the prefix of a line says: which host wrote it, and when.

Which file continues where is `log_files`; what a line means, and whether its host is believed, is
`observe.logs.signals`. Polled, never notified: the same files and the same cursor give the same batch.

Shapes of prefixes: rsyslog (ISO 8601, RFC 3164, RFC 5424, JSON by template), dmesg (seconds, date, decoded, ISO),
/dev/kmsg.
"""

import hashlib
import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.sources import LogBatch, LogLine, SourceNonsense, SourceUnavailable
from ops_pipelines.resources.config.cluster_config import NodeNameSource
from ops_pipelines.resources.log_files import FoundLine, TailedFile, dump_marks, load_marks, open_files, read_shares

# -- the prefix of a line --


_ISO = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?\s+"
)
_CLASSIC = re.compile(
    r"(?P<month>[^\W\d_]{3,12})\.?\s{1,2}(?P<day>\d{1,2})\s(?:(?P<year>\d{4})\s)?(?P<time>\d\d:\d\d:\d\d)"
    r"(?:\.(?P<fraction>\d{1,9}))?\s+"
)
_DMESG_DATE = re.compile(
    r"\[[A-Za-z]{3} (?P<month>[A-Za-z]{3})\s{1,2}(?P<day>\d{1,2}) (?P<time>\d\d:\d\d:\d\d) (?P<year>\d{4})\]\s*"
)
_BEFORE_TIME = re.compile(r"[\s\x00]*(?:<\d{1,3}>(?:1\s)?)?(?:[a-z]{1,8}\s*:[a-z]{1,8}\s*:\s*)?")
# A host is followed by a tag (`kernel:`, `sshd[42]:`, or RFC 5424's `kernel -`); a first word with a colon is the tag.
_HOST = re.compile(r"(?P<host>[^\s:\[\]](?:\S{0,253}[^\s:])?)\s+[^\s:]{1,128}(?::|\s+\S{1,48}\s+\S{1,32}\s+[-\[])")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# A line may be a little ahead of our clock; more than a day ahead means that it is of last year.
_MAX_AHEAD = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePrefix:
    """What a line says of itself. None: it does not say, or not in a shape that is known."""

    host: str | None
    written_at: datetime | None
    text: str
    """The line as evidence: as it is, or for JSON its message behind the tag of the program that wrote it."""


def parse_line_prefix(line: str, *, received_at: datetime, timezone: tzinfo) -> LinePrefix:
    """Return host and time of `line`; a time without zone is of `timezone`, one without year the latest that fits."""
    if line.startswith("{"):
        from_json = _parse_json(line, received_at=received_at, timezone=timezone)
        if from_json is not None:
            return from_json
    start = _match_end(_BEFORE_TIME, line, 0)
    for pattern, read in ((_ISO, _read_iso), (_CLASSIC, _read_classic), (_DMESG_DATE, _read_classic)):
        match = pattern.match(line, start)
        if match is not None:
            host = None if pattern is _DMESG_DATE else _HOST.match(line, match.end())
            return LinePrefix(
                host=None if host is None else host["host"],
                written_at=read(match, received_at=received_at, timezone=timezone),
                text=line,
            )
    return LinePrefix(host=None, written_at=None, text=line)


def _match_end(pattern: re.Pattern[str], line: str, start: int) -> int:
    match = pattern.match(line, start)
    return start if match is None else match.end()


def _parse_json(line: str, *, received_at: datetime, timezone: tzinfo) -> LinePrefix | None:
    """Return what a JSON line says (rsyslog's template or a forwarder's), or None if it is none."""
    try:
        record = json.loads(line, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None

    def first(*keys: str) -> str | None:
        return next((record[key] for key in keys if isinstance(record.get(key), str)), None)

    message = first("msg", "message", "MESSAGE")
    if message is None:
        return None
    stamp = first("ts", "timestamp", "@timestamp", "time")
    match = None if stamp is None else _ISO.match(f"{stamp} ")
    tag = (first("tag", "programname", "SYSLOG_IDENTIFIER") or "").removesuffix(":")
    return LinePrefix(
        host=first("host", "hostname", "_HOSTNAME"),
        written_at=None if match is None else _read_iso(match, received_at=received_at, timezone=timezone),
        # A tag with a space in it could pose as host and tag.
        text=f"{tag if len(tag.split()) == 1 else 'program'}: {message.lstrip()}",
    )


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the pairs as a dict; a key given twice is a message that broke out of its quotes."""
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key is given twice")
    return record


def _read_iso(match: re.Match[str], *, received_at: datetime, timezone: tzinfo) -> datetime | None:
    date, clock_time, fraction, zone = match.group("date", "time", "fraction", "zone")
    try:
        written_at = datetime.fromisoformat(f"{date}T{clock_time}.{(fraction or '0')[:6]:0<6}{zone or ''}")
        return _in_utc(written_at, timezone=timezone)
    except (ValueError, OverflowError):
        return None


def _read_classic(match: re.Match[str], *, received_at: datetime, timezone: tzinfo) -> datetime | None:
    month = match["month"][:3].lower()
    if month not in _MONTHS:
        return None
    # 29 February exists only every fourth year; eight years back always holds one.
    newest_year = (received_at + _MAX_AHEAD).year
    years = [int(match["year"])] if match["year"] else range(newest_year, newest_year - 9, -1)
    for year in years:
        try:
            text = f"{year:04d}-{_MONTHS.index(month) + 1:02d}-{int(match['day']):02d}T{match['time']}"
            written_at = _in_utc(datetime.fromisoformat(text) + _fraction(match), timezone=timezone)
        except (ValueError, OverflowError):
            continue
        if match["year"] or written_at - received_at <= _MAX_AHEAD:
            return written_at
    return None


def _fraction(match: re.Match[str]) -> timedelta:
    digits = match["fraction"] if "fraction" in match.re.groupindex else None
    return timedelta(microseconds=int(digits[:6].ljust(6, "0"))) if digits else timedelta(0)


def _in_utc(written_at: datetime, *, timezone: tzinfo) -> datetime:
    """Return the time in UTC. In the hour that is repeated when summer time ends, the first of the two is taken."""
    if written_at.tzinfo is UTC:
        return written_at
    return (written_at if written_at.tzinfo is not None else written_at.replace(tzinfo=timezone)).astimezone(UTC)


# -- files and journald --


MAX_LINE_BYTES = 8192
"""rsyslog's own limit (maxMessageSize). A longer line comes in parts of this size; nothing of it is dropped."""
_GLANCED_AT_MOST = 64
"""Files: with more of them a glance would cost as much as a reading."""
CONTINUED = "(continued) "
"""Is before the later parts of a line that was too long: what follows has no prefix and proves nothing."""


class FileTailLogs:
    """Follows log files by name or glob pattern.

    A file renamed by rotation is read to its end under its new name, if that is in the same directory; a file
    truncated in place is read from its beginning, after its copy beside it. Compressed files are passed over. A file
    that is rotated away before it was ever met is lost to a plain name: `kernel.log*` meets it, after an outage too.
    Every file gets its share of a batch, so that a flood from one node does not silence the others. Lines are in
    order within one file. Feed the files from the kernel facility only: who may log on a node can
    write any words to the other facilities.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        *,
        clock: Clock,
        node_name_source: NodeNameSource = NodeNameSource.LINE,
        timezone: tzinfo = UTC,
        source: str = "kernel_log",
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        if not patterns:
            raise ValueError("no log file is named; empty never means all")
        self._patterns = tuple(patterns)
        self._clock = clock
        self._node_name_source = node_name_source
        self._timezone = timezone
        self._source = source
        self._max_line_bytes = max_line_bytes
        self._glanced: Mapping[str, tuple[int, int]] = {}

    @property
    def source(self) -> str:
        return self._source

    def has_grown(self) -> bool:
        """See `core.sources.Growing`: a file of a pattern that nobody has met is met by the next reading."""
        return any(_glance_at(path) != was for path, was in self._glanced.items())

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        """Return the next lines of all files; see `core.sources.Logs`."""
        self._glanced = {}  # What cannot be read now is no news until it can be.
        marks, turn = load_marks(cursor) if cursor is not None else ((), 0)
        received_at = self._clock.now()
        notes: list[str] = []
        with open_files(self._patterns, marks, notes=notes, now_seconds=received_at.timestamp()) as files:
            first = turn % len(files)
            found, is_full = read_shares(
                [*files[first:], *files[:first]], max_lines=max_lines, max_line_bytes=self._max_line_bytes
            )
            lines: list[LogLine] = []
            for file in files:
                for each in found.get(file.identity, []):
                    if each.is_cut and not each.is_continuation:
                        notes.append(f"{file.mark.path}: a line of more than {self._max_line_bytes} bytes was cut")
                    lines.append(self._line_of(each, file, received_at=received_at))
            new_cursor = dump_marks([file.mark for file in files], turn=turn + 1 if is_full else turn)
            if len(files) <= _GLANCED_AT_MOST:
                sizes = [(file.mark.path, (file.mark.inode, file.size)) for file in files]
                # The name of one that was rotated away is another file's by now, which is among them too.
                self._glanced = {path: was for path, was in sizes if (_glance_at(path) or was)[0] == was[0]}
        return LogBatch(lines=tuple(lines), cursor=new_cursor, notes=tuple(notes))

    def _line_of(self, found: FoundLine, file: TailedFile, *, received_at: datetime) -> LogLine:
        mark = file.mark
        # The hash keeps two lines apart that stood at the same place of a file before and after a truncation.
        content_hash = hashlib.sha256(found.content).hexdigest()[:12]
        position = f"{mark.device:x}-{mark.inode:x}:{found.offset}:{content_hash}"
        text = found.content.decode("utf-8", errors="backslashreplace").removesuffix("\r")
        is_from_file_name = self._node_name_source is NodeNameSource.FILE_STEM
        node = Path(mark.path).name.split(".", 1)[0] if is_from_file_name else None
        if found.is_continuation:
            return LogLine(node=node, written_at=None, position=position, text=CONTINUED + text)
        prefix = parse_line_prefix(text, received_at=received_at, timezone=self._timezone)
        return LogLine(
            node=node if is_from_file_name else prefix.host,
            written_at=prefix.written_at,
            position=position,
            text=prefix.text,
        )


def _glance_at(path: str) -> tuple[int, int] | None:
    """Return inode and size of a file; None where there is none that can be seen."""
    try:
        found = os.stat(path)  # noqa: PTH116 twenty times a second
    except OSError:
        return None
    return found.st_ino, found.st_size


class JournaldLogs:
    """Follows the kernel's lines in the journal of this machine, or in a directory of gathered journals.

    Only entries that journald itself marks as the kernel's are read (`_TRANSPORT=kernel`), of every boot: no
    program on the node can write that field. The cursor is journald's own.
    """

    def __init__(
        self,
        *,
        directory: Path | None = None,
        timeout: timedelta = timedelta(seconds=10),
        source: str = "kernel_log",
        journalctl: Sequence[str] = ("journalctl",),
    ) -> None:
        self._directory = directory
        self._timeout_seconds = timeout.total_seconds()
        self._source = source
        self._journalctl = tuple(journalctl)

    @property
    def source(self) -> str:
        return self._source

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        """Return the entries after `cursor`; see `core.sources.Logs`."""
        if cursor is not None and not _JOURNAL_CURSOR.fullmatch(cursor) and cursor != _NOTHING_YET:
            raise SourceNonsense(f"{cursor[:200]!r} is no journal cursor; delete it to read from the beginning")
        if self._directory is not None and not any(self._directory.rglob("*.journal")):
            # journalctl itself says nothing of an empty directory, and silence would look like health.
            raise SourceUnavailable(f"{self._directory} holds no journal; check the path and systemd-journal-remote")
        entries = self._read_entries(None if cursor == _NOTHING_YET else cursor, max_count=max_lines)
        lines = tuple(_line_of_entry(entry) for entry in entries)
        return LogBatch(lines=lines, cursor=lines[-1].position if lines else cursor or _NOTHING_YET)

    def _command(self, cursor: str | None) -> list[str]:
        return [
            *self._journalctl,
            *("--output=json", "--output-fields=MESSAGE,_HOSTNAME", "--all", "--no-pager"),
            *([] if self._directory is None else [f"--directory={self._directory}"]),
            *([] if cursor is None else [f"--after-cursor={cursor}"]),
            "_TRANSPORT=kernel",
        ]

    def _read_entries(self, cursor: str | None, *, max_count: int) -> list[bytes]:
        """Return the next entries as journalctl prints them, one JSON object each.

        journalctl before 254 can give the newest N entries only; so the oldest N are taken from its output as it
        comes, and it is ended when they are there, or at the limit.
        """
        is_late = threading.Event()
        with tempfile.TemporaryFile() as complaints:
            try:
                process = subprocess.Popen(
                    self._command(cursor), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints
                )
            except OSError as exc:
                raise SourceUnavailable(f"{self._journalctl[0]} could not be started ({exc.strerror})") from exc
            alarm = threading.Timer(self._timeout_seconds, _end, args=(process, is_late))
            with process:
                assert process.stdout is not None, "it is a pipe"
                alarm.start()
                entries = list(islice(process.stdout, max_count))
                has_enough = len(entries) == max_count
                if has_enough:
                    process.kill()
            alarm.cancel()
            complaints.seek(0)
            complaint = complaints.read(10_000).decode(errors="replace").strip()
        if is_late.is_set():
            raise SourceUnavailable(f"journalctl did not answer within {self._timeout_seconds} s; check the disk")
        if not has_enough:
            _judge(process.returncode, complaint)
        return entries


def _end(process: subprocess.Popen[bytes], is_late: threading.Event) -> None:
    is_late.set()
    process.kill()


def _judge(returncode: int, complaint: str) -> None:
    """Raise if journalctl failed."""
    if "cursor" in complaint.lower():
        raise SourceNonsense(f"journalctl does not accept the cursor ({complaint[:300]}); delete it")
    if returncode != 0 or "No journal files were" in complaint:
        raise SourceUnavailable(f"journalctl ended with {returncode}: {complaint[:300] or 'no message'}")


_JOURNAL_CURSOR = re.compile(r"s=[0-9a-f]{32};[0-9a-zA-Z=;]{1,400}")
_NOTHING_YET = "nothing yet"
"""The cursor of a journal in which no entry was found so far."""


def _line_of_entry(entry: bytes) -> LogLine:
    try:
        fields = json.loads(entry)
        position = _text_of(fields.get("__CURSOR"))
        microseconds = int(_text_of(fields.get("__REALTIME_TIMESTAMP")) or "")
        written_at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except (ValueError, AttributeError, OverflowError, RecursionError) as exc:
        raise SourceNonsense(f"journalctl printed an entry that cannot be read: {entry[:200]!r}") from exc
    if position is None or not _JOURNAL_CURSOR.fullmatch(position):
        raise SourceNonsense(f"journalctl printed an entry without a cursor: {entry[:200]!r}")
    return LogLine(
        node=_text_of(fields.get("_HOSTNAME")),
        written_at=written_at,
        position=position,
        text=(_text_of(fields.get("MESSAGE")) or "")[:MAX_LINE_BYTES],
    )


def _text_of(value: object) -> str | None:
    """Return a journal field as text: a string, an array of bytes (not UTF-8), or the first of a repeated field's."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        if all(isinstance(byte, int) and 0 <= byte <= 255 for byte in value):
            return bytes(value).decode("utf-8", errors="backslashreplace")
        return _text_of(value[0])
    return None
