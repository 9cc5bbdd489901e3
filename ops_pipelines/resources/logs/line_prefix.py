"""The prefix of a log line -> which host wrote it, and when. Unbelieved: `observe.logs.signals` validates the host.

Shapes: rsyslog (ISO 8601, RFC 3164, RFC 5424, JSON by template), dmesg (seconds, date, decoded, ISO), /dev/kmsg.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

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
    """The line as evidence: as it stands, or for JSON its message behind the tag of the program that wrote it."""


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
