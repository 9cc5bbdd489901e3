"""Whether bytes are a log at all, and log lines that are JSON objects: journald, rsyslog, containers.

One line in, its message and what the keys around it say. Not here: what the message itself says (`prefix`).

Each test looks at the beginning of the file and asks most of its lines, so that a job log that prints such a thing
(`nvidia-smi` at its start, a configuration as JSON) stays a log. What the lines say is `formats.log`.
"""

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ops_pipelines.lake.quantities import WrongKind
from ops_pipelines.observe.logs.matching import Origin
from ops_pipelines.observe.logs.prefix import KERNEL_LEVELS, LEVELS, origin_of_tag, to_microseconds

# -- log lines that are JSON objects --


_MESSAGE = ("MESSAGE", "msg", "message", "log", "text", "line", "lines", "body", "event", "short_message")
_TIME = ("ts", "timestamp", "@timestamp", "time", "asctime", "datetime", "t", "__REALTIME_TIMESTAMP", "eventTime")
_NODE = ("host", "hostname", "_HOSTNAME", "node", "nodename", "node_name", "HOSTNAME")
_LEVEL = ("level", "levelname", "severity", "lvl", "loglevel", "severity_text")
_TAG = ("tag", "programname", "SYSLOG_IDENTIFIER", "appname", "_COMM")
_JOB = ("job", "job_id", "jobid", "slurm_job_id", "SLURM_JOB_ID")
_RANK = ("rank", "global_rank", "RANK")
_NUMBERS = ("loss", "step", "global_step", "iteration", "tokens_per_second", "step_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLine:
    """What one object reports. `texts` are its messages, mostly one."""

    texts: tuple[str, ...]
    microseconds: int | None = None
    node: str | None = None
    level: str | None = None
    origin: str | None = None
    job: str | None = None
    rank: int | None = None


class Unreadable(ValueError):
    """The line is no JSON log record; the message is the reason, a fixed code."""


def read_json_line(text: str) -> JsonLine:
    """Return what a line that begins with `{` reports; raise Unreadable with `broken_json` and the like."""
    try:
        record = json.loads(text, object_pairs_hook=_without_duplicates)
    except Unreadable:
        raise
    except (ValueError, RecursionError):
        raise Unreadable("broken_json") from None
    if not isinstance(record, dict):
        raise Unreadable("json_without_message")
    texts = _texts(record)
    if not texts:
        if not any(isinstance(record.get(key), int | float) for key in _NUMBERS):
            raise Unreadable("json_without_message")
        texts = (text.strip(),)
    tag = _word(record, _TAG)
    transport = record.get("_TRANSPORT")
    origin = None
    if transport is not None or tag is not None:
        origin = Origin.KERNEL if transport == "kernel" else origin_of_tag((tag or "").rstrip(":"))
        if transport not in (None, "kernel") and tag == "kernel":
            origin = Origin.PROGRAM  # a program may call itself what it likes; journald knows better
    return JsonLine(
        texts=texts,
        microseconds=next((found for key in _TIME if (found := _time(record.get(key))) is not None), None),
        node=_word(record, _NODE),
        level=_level(record),
        origin=origin,
        job=_word(record, _JOB),
        rank=_rank(record),
    )


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the pairs as a dict; a key given twice is a message that broke out of its quotes."""
    record = dict(pairs)
    if len(record) != len(pairs):
        raise Unreadable("repeated_json_key")
    return record


def _texts(record: Mapping[str, object]) -> tuple[str, ...]:
    for key in _MESSAGE:
        value = record.get(key)
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and value:
            if all(isinstance(byte, int) and 0 <= byte <= 255 for byte in value):
                return (bytes(value).decode("utf-8", errors="backslashreplace"),)  # journald: not UTF-8
            if all(isinstance(line, str) for line in value):
                return tuple(value)
        if isinstance(value, dict) and key != "event":
            inner = value.get("message", value.get("msg"))
            if isinstance(inner, str):
                return (inner,)
    return ()


def _word(record: Mapping[str, object], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        value = record.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and value.strip() and len(value) <= 255 and value.isprintable():
            return value.strip()
        if isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"].isprintable():
            return str(value["name"])[:255] or None
    return None


def _level(record: Mapping[str, object]) -> str | None:
    for key in _LEVEL:
        value = record.get(key)
        if isinstance(value, str) and value.lower() in LEVELS:
            return LEVELS[value.lower()]
    priority = record.get("PRIORITY")
    if isinstance(priority, str | int) and str(priority) in "01234567" and str(priority):
        return KERNEL_LEVELS[int(priority)]
    return None


def _rank(record: Mapping[str, object]) -> int | None:
    for key in _RANK:
        value = record.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10_000_000:
            return value
    return None


def _time(value: object) -> int | None:
    """Return a time as microseconds: ISO text, or seconds, milli-, micro- or nanoseconds since 1970 by their size."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str) and not value.replace(".", "", 1).isdecimal():
        try:
            found = datetime.fromisoformat(value.strip().replace(",", "."))
            return to_microseconds(found if found.tzinfo is not None else found.replace(tzinfo=UTC))
        except (ValueError, OverflowError):
            return None
    if isinstance(value, str | int | float):
        try:
            seconds = float(value)
            for factor in (1e6, 1e3, 1.0, 1e-3):
                microseconds = seconds * factor
                if 9e14 <= microseconds < 5e15:  # 1998 to 2128
                    exact = int(value) if not isinstance(value, float) and "." not in str(value) else None
                    return exact if factor == 1.0 and exact is not None else int(microseconds)
        except (ValueError, OverflowError):
            return None
    return None


# -- whether bytes are a log at all --


_MAGIC = {
    b"\x1f\x8b": "gzip", b"PK\x03\x04": "a zip archive", b"\x7fELF": "a program", b"PAR1": "Parquet",
    b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"SQLite format 3": "SQLite",
    b"\x89PNG": "a PNG picture", b"%PDF": "PDF", b"LPKSHHRH": "a binary journal; give the output of journalctl -o json",
    b"ARROW1": "Arrow", b"\x89HDF": "HDF5", b"\x80\x02": "a pickle", b"\x80\x04": "a pickle",
}  # fmt: skip
_SAMPLE_LINES = 200
_XML = re.compile(r"\s{0,64}<(?:\?xml|!DOCTYPE|!--|([A-Za-z_][\w.-]{0,80})(?:\s[^<>]{0,400})?>)", re.IGNORECASE)
_OTHER = {
    "metrics (exposition text)": re.compile(
        r"# (?:HELP|TYPE|UNIT|EOF)\b|[a-zA-Z_:][a-zA-Z0-9_:]{0,200}(?:\{.{0,2000}\})? {1,4}"
        r"(?:[+-]?(?:\d[\d.]{0,30}(?:[eE][+-]?\d{1,3})?|Inf)|NaN)(?: -?\d{1,15})?$"
    ),
    "the output of lspci": re.compile(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] \S|\t"),
    "the output of nvidia-smi": re.compile(r"GPU \d{1,2}: |\s{1,16}(?:Link \d{1,2}[:,]|MIG \S{1,20} )"),
    "the output of nvidia-smi -q": re.compile(
        r"=+NVSMI LOG=+|\s{0,32}[A-Z][\w /()-]{1,60}\s{1,48}: |GPU [0-9A-F]{8}:|\s{4,32}[A-Z][\w /-]{1,60}$"
    ),
    "the output of perfquery": re.compile(r"# Port[\w ]{0,40} counters: Lid|[A-Za-z0-9]{4,40}:\.{2,60}\S"),
    "the output of ibnetdiscover": re.compile(
        r"(?:vendid|devid|sysimgguid|switchguid|caguid)=0x|\[\d{1,3}\]\(|(?:Switch|Ca)\t|\[\d|#"
    ),
    "the output of scontrol": re.compile(
        r"(?:NodeName|JobId|PartitionName|ReservationName)=\S|\s{2,6}[A-Z]\w{1,40}="
        r"|\w{1,40}=\S{0,400}(?: \w{1,40}=\S{0,400}){0,200}$"
    ),
    "the output of sinfo or squeue": re.compile(
        r"\s{0,20}(?:PARTITION +AVAIL|NODELIST +|JOBID +PARTITION|JobID +)|\s{0,20}\S{1,60}(?: +\S{1,60}){3,12} *$"
    ),
}  # fmt: skip
_FIRST = {
    "metrics (exposition text)": re.compile(
        r"# (?:HELP|TYPE) |[a-zA-Z_:][a-zA-Z0-9_:]{0,200}\{|[a-zA-Z][a-zA-Z0-9:]{0,60}_[a-zA-Z0-9_:]{1,140} [+-]?\d"
    ),
    "the output of nvidia-smi -q": re.compile(r"=+NVSMI LOG=+"),
    "the output of perfquery": re.compile(r"# Port[\w ]{0,40} counters: Lid"),
    "the output of ibnetdiscover": re.compile(r"#|vendid="),
    "the output of scontrol": re.compile(r"(?:NodeName|JobId|PartitionName|ReservationName)=\S"),
    "the output of sinfo or squeue": re.compile(r"\s{0,20}(?:PARTITION +AVAIL|NODELIST +|JOBID +PARTITION|JobID +)"),
}
_HEADER_FIELD = re.compile(r"[A-Za-z_#][\w %./()\[\]#-]{0,60}")


def decode_log(body: bytes) -> str:
    """Return the text of a log file; raise WrongKind if it is a kind of file that is known by its first bytes.

    UTF-8 unless a byte order mark or the zeros between letters say UTF-16. Bytes that do not decode stay, as `\\xNN`.
    """
    for magic, kind in _MAGIC.items():
        if body.startswith(magic):
            raise WrongKind(f"{kind}; expected a log in plain text")
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return body.decode("utf-16", errors="backslashreplace")
    head = body[:4096]
    for start, codec in ((1, "utf-16-le"), (0, "utf-16-be")):
        if len(head) >= 16 and head[start::2].count(0) > 0.4 * len(head) and head[1 - start :: 2].count(0) == 0:
            return body.decode(codec, errors="backslashreplace")
    return body.decode("utf-8", errors="backslashreplace").removeprefix("\ufeff")


def find_kind(head: bytes) -> str | None:
    """Return what the first bytes of a file say that it is, where four of them or more say so; None for text."""
    return next((kind for magic, kind in _MAGIC.items() if len(magic) >= 4 and head.startswith(magic)), None)


def refuse_other_kinds(lines: list[str], *, text: str) -> None:
    """Raise WrongKind if `lines` are a document, a table or the output of a tool, and no log."""
    sample = [line.rstrip("\r") for line in lines[: 4 * _SAMPLE_LINES] if line.strip()][:_SAMPLE_LINES]
    if not sample:
        return
    xml = _XML.match(text)
    if xml is not None and (xml[1] is None or f"</{xml[1]}" in text):
        raise WrongKind("XML or HTML; expected a log in plain text")
    _refuse_json_document(text, sample)
    for kind, pattern in _OTHER.items():
        first = _FIRST.get(kind, pattern)
        if first.match(sample[0]) is None:
            continue
        share = sum(pattern.match(line) is not None for line in sample) / len(sample)
        if share > 0.9 and (len(sample) > 1 or sample[0].startswith("# ") or "{" in sample[0]):
            raise WrongKind(f"{kind}; expected a log in plain text")
    for delimiter in ",|\t":
        if _is_table(sample, delimiter):
            raise WrongKind(f"a table with columns ({sample[0][:60]!r}); expected a log in plain text")


def _refuse_json_document(text: str, sample: list[str]) -> None:
    start = text.lstrip()
    if start[:1] not in ("{", "["):
        return
    if sample[0].strip() in ("{", "[", "[{"):
        raise WrongKind("a JSON document over several lines; expected a log in plain text, or one JSON object a line")
    try:
        _, end = json.JSONDecoder().raw_decode(start[:20_000_000])
    except (ValueError, RecursionError):
        return
    # `[ 130.456250] text` begins like a list.
    is_list = start[0] == "[" and "{" in start[:end] and not start[end:].strip()
    if is_list or (start[0] == "{" and "\n" in start[:end]):
        raise WrongKind("a JSON document; expected a log in plain text, or one JSON object a line")


def _is_table(sample: list[str], delimiter: str) -> bool:
    """Return whether the first line names columns, and nearly all others have as many fields."""
    if len(sample) < 2 or delimiter not in sample[0]:
        return False
    try:
        rows = list(csv.reader(sample, delimiter=delimiter))
    except csv.Error:
        return False
    header = rows[0]
    names = [name for name in header if name]
    if len(set(names)) != len(names) or not all(_HEADER_FIELD.fullmatch(name.strip()) for name in names):
        return False
    if len(names) < 2 or len(header) - len(names) > 1 or (len(names) == 2 and any(" " in name for name in names)):
        return False
    return sum(len(row) == len(header) for row in rows[1:]) >= 0.9 * (len(rows) - 1)


def is_binary(raw: bytes) -> bool:
    """Return whether a line that holds control characters is no text: garbage of a disk, or nothing but zeros."""
    held = raw.strip(b"\x00\r")
    if not held:
        return True
    controls = len(held) - len(held.translate(None, _CONTROLS))
    if not controls:
        return False
    undecodable = len(held) - len(held.decode("utf-8", errors="ignore").encode())
    return controls + undecodable > 0.3 * len(held)


_CONTROLS = bytes(set(range(32)) - set(b"\a\b\t\n\v\f\r\x1b")) + b"\x7f"
