"""sdiag, as text and as JSON -> one row of `platform_telemetry`: how the scheduler itself does. Record: one report."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from ops_pipelines.frames.formats import slurm_json as read
from ops_pipelines.frames.formats.reading import Cell, Unbelievable, in_bounds, written_time

_TITLE = re.compile(r"^sdiag output at (?P<when>.+?)\s*(?:\((?P<epoch>\d{1,12})\))?\s*$", re.MULTILINE)
_LINE = re.compile(r"^\s*(?P<name>[A-Z][^:\n]{2,60}?)\s*:\s+(?P<number>\d{1,18})\s*$")
_MICRO = 1e-6
_TEXT: Mapping[tuple[str, str], tuple[str, float]] = {
    ("", "Server thread count"): ("scheduler_threads_count", 1),
    ("", "DBD Agent queue size"): ("accounting_queue_count", 1),
    ("", "Jobs submitted"): ("jobs_submitted_count", 1),
    ("", "Jobs started"): ("jobs_started_count", 1),
    ("", "Jobs completed"): ("jobs_completed_count", 1),
    ("", "Jobs failed"): ("jobs_failed_since_count", 1),
    ("", "Jobs pending"): ("jobs_pending_count", 1),
    ("", "Jobs running"): ("jobs_running_count", 1),
    ("Main schedule", "Last cycle"): ("scheduler_cycle_seconds", _MICRO),
    ("Main schedule", "Mean cycle"): ("scheduler_mean_cycle_seconds", _MICRO),
    ("Main schedule", "Last queue length"): ("scheduler_queue_count", 1),
    ("Backfilling", "Last cycle"): ("backfill_cycle_seconds", _MICRO),
    ("Backfilling", "Mean cycle"): ("backfill_mean_cycle_seconds", _MICRO),
}
"""Section and name of a line -> column, factor to its unit."""
_JSON: Mapping[str, tuple[str, float]] = {
    "server_thread_count": ("scheduler_threads_count", 1),
    "dbd_agent_queue_size": ("accounting_queue_count", 1),
    "jobs_submitted": ("jobs_submitted_count", 1),
    "jobs_started": ("jobs_started_count", 1),
    "jobs_completed": ("jobs_completed_count", 1),
    "jobs_failed": ("jobs_failed_since_count", 1),
    "jobs_pending": ("jobs_pending_count", 1),
    "jobs_running": ("jobs_running_count", 1),
    "schedule_cycle_last": ("scheduler_cycle_seconds", _MICRO),
    "schedule_cycle_mean": ("scheduler_mean_cycle_seconds", _MICRO),
    "schedule_queue_length": ("scheduler_queue_count", 1),
    "bf_cycle_last": ("backfill_cycle_seconds", _MICRO),
    "bf_cycle_mean": ("backfill_mean_cycle_seconds", _MICRO),
}


def is_report(text: str) -> bool:
    """Return whether a text is a report of sdiag."""
    return _TITLE.search(text[:2000]) is not None


def read_report(text: str, *, at: datetime) -> dict[str, Cell]:
    """Return the figures of a report. Raises Unbelievable if it holds none, or one that cannot be."""
    title = _TITLE.search(text)
    when = at
    if title is not None and title["epoch"]:
        when = _from_epoch(int(title["epoch"]))
    elif title is not None:
        when = written_time(title["when"]) or at
    found: dict[str, float | None] = {}
    section = ""
    for line in text.splitlines():
        if line[:1].isalpha() and any(
            line.startswith(head) for head in ("Main ", "Backfill", "Latency", "Remote", "Pending")
        ):
            # "Main schedule statistics" and "Main scheduler exit" are two sections, so are the two of backfill.
            section = next(
                (name for name in ("Main schedule ", "Backfilling") if line.startswith(name)), "other"
            ).strip()
            continue
        one = _LINE.match(line)
        name = (section, one["name"]) if one else ("", "")
        if one and name in _TEXT:
            column, factor = _TEXT[name]
            found.setdefault(column, float(one["number"]) * factor)
    return _row(found, when=when)


def read_json_report(row: read.Row, *, at: datetime) -> dict[str, Cell]:
    """Return the figures of a report in JSON. Raises Unbelievable."""
    found: dict[str, float | None] = {}
    for name, (column, factor) in _JSON.items():
        number = read.number(row, name)
        if number is not None:
            found[column] = number * factor
    when = read.number(row, "req_time")
    return _row(found, when=at if not when else _from_epoch(int(when)))


def _from_epoch(seconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError) as exc:
        raise Unbelievable("bad_time", f"found {seconds}, expected seconds since 1970") from exc


def _row(found: Mapping[str, float | None], *, when: datetime) -> dict[str, Cell]:
    if not found:
        raise Unbelievable("no_figures", "the report holds none of the figures of sdiag")
    return {"node": "", "device": "", "time": when, **in_bounds("platform_telemetry", found)}
