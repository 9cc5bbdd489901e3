"""Log lines that are JSON objects: journald's export, rsyslog's templates, containers, forwarders, structured loggers.

One line in, its message and what the keys around it say. Not here: what the message itself says (`prefix`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ops_pipelines.frames.logs.matching import Origin
from ops_pipelines.frames.logs.prefix import KERNEL_LEVELS, LEVELS, origin_of_tag, to_microseconds

_MESSAGE = ("MESSAGE", "msg", "message", "log", "text", "line", "lines", "body", "event", "short_message")
_TIME = ("ts", "timestamp", "@timestamp", "time", "asctime", "datetime", "t", "__REALTIME_TIMESTAMP", "eventTime")
_NODE = ("host", "hostname", "_HOSTNAME", "node", "nodename", "node_name", "HOSTNAME")
_LEVEL = ("level", "levelname", "severity", "lvl", "loglevel", "severity_text")
_TAG = ("tag", "programname", "SYSLOG_IDENTIFIER", "appname", "_COMM")
_JOB = ("job", "job_id", "jobid", "slurm_job_id", "SLURM_JOB_ID")
_RANK = ("rank", "global_rank", "RANK")
_NUMBERS = ("loss", "step", "global_step", "iteration", "tokens_per_second", "step_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one object tells. `texts` are its messages, mostly one."""

    texts: tuple[str, ...]
    microseconds: int | None = None
    node: str | None = None
    level: str | None = None
    origin: str | None = None
    job: str | None = None
    rank: int | None = None


class Unreadable(ValueError):
    """The line is no JSON log record; the message is the reason, a fixed code."""


def read_json_line(text: str) -> Told:
    """Return what a line that begins with `{` tells; raise Unreadable with `broken_json` and the like."""
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
    return Told(
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
