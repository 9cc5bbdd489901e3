"""Rows of accounting -> how long each job waited for its start. A requeued job waits again from the end before.

Who gave up while it waited is counted, not judged: how long it would have waited nobody knows.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.domain.placement.standing import Waiting
from ops_pipelines.frames.placement.recorded_times import Row, number_of, refuse, rows_of, text_of, time_of
from ops_pipelines.frames.placement.stays import ACCOUNTING_COLUMNS
from ops_pipelines.lake.quantities import Parsed, Refused

_SLACK = timedelta(minutes=1)
"""Clocks of a cluster differ by less."""
_FOR_ROOM = ("none", "priority", "resources", "reqnodenotavail", "nodes_required", "nodedown", "badconstraints")
"""Reasons of who waits for GPUs; without a reason it is believed too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsRead:
    """Waits that ended within the window, or last at its end."""

    waits: tuple[Waiting, ...]
    """By their begin."""
    refused: tuple[Refused, ...]
    notes: tuple[str, ...]


def read_waits(accounting: pa.Table, *, start: datetime, end: datetime) -> WaitsRead:
    """Return who started in [start, end), and who waits at `end` still, of jobs that ask for GPUs."""
    by_job: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows_of(accounting, ACCOUNTING_COLUMNS):
        gpus = number_of(row["gpu_count"])
        if gpus is not None and gpus > 0:
            by_job[text_of(row["job"])].append(row)
    waits: list[Waiting] = []
    refused: list[Refused] = []
    gave_up = untold = 0
    for rows in by_job.values():
        over: datetime | None = None
        for row in _each_once(rows):
            begin, started_at = _since(row, over), _started(row)
            ended_at = time_of(row["ended_at"])
            if started_at is None:
                if ended_at is not None:
                    gave_up += start <= ended_at < end
                elif begin is not None and begin < end:
                    waits.append(_waiting(row, since=begin, until=None))
                continue
            over = ended_at
            if not start <= started_at < end:
                # Who starts later waits at the end of the window.
                if started_at >= end and begin is not None and begin < end:
                    waits.append(_waiting(row, since=begin, until=None))
                continue
            if begin is None:
                untold += 1
            elif begin - started_at > _SLACK:
                refused.append(refuse(row, "starts_before_submit", "expected the start after the submission"))
            else:
                waits.append(_waiting(row, since=min(begin, started_at), until=started_at))
    notes = []
    if untold:
        notes.append(f"of {untold} jobs nobody told since when they waited")
    if gave_up:
        notes.append(f"{gave_up} jobs were cancelled while they waited: they are in no number here")
    return WaitsRead(
        waits=tuple(sorted(waits, key=lambda each: (each.since, each.job))), refused=tuple(refused), notes=tuple(notes)
    )


def with_told(accounting: pa.Table, told: Iterable[Parsed]) -> pa.Table:
    """Return the rows of the lake with those of jobs that wait now, as the scheduler says."""
    tables = [each.tables["job_accounting"] for each in told if "job_accounting" in each.tables]
    return pa.concat_tables(
        [accounting, *(each.select(accounting.column_names).cast(accounting.schema) for each in tables)]
    )


def _each_once(rows: list[Row]) -> list[Row]:
    """Return the attempts by their start, each as it was told last, and the wait that lasts, if none has started."""
    started: dict[datetime, Row] = {}
    newest: Row | None = None
    for row in rows:
        began_at = _started(row)
        if began_at is None:
            newest = row if newest is None or _asked_at(row) >= _asked_at(newest) else newest
        elif began_at not in started or time_of(row["ended_at"]) is not None:
            started[began_at] = row
    found = [started[key] for key in sorted(started)]
    if newest is not None:
        # A listing of who waits is older than the start that followed it.
        asked_at = _asked_at(newest)
        ends = [time_of(row["ended_at"]) for row in found]
        waits_again = found and ends[-1] is not None and asked_at >= ends[-1]
        if not found or waits_again:
            found.append(newest)
    return found


def _started(row: Row) -> datetime | None:
    return None if text_of(row["state"]) == "PENDING" else time_of(row["started_at"])


_NEVER = datetime.min.replace(tzinfo=UTC)


def _asked_at(row: Row) -> datetime:
    return time_of(row["time"]) or time_of(row["submitted_at"]) or _NEVER


def _since(row: Row, over: datetime | None) -> datetime | None:
    """Return since when it waits: submitted, eligible, and the attempt before over, whichever is last."""
    submitted, eligible = time_of(row["submitted_at"]), time_of(row["eligible_at"])
    known = [at for at in (submitted, eligible, over) if at is not None]
    return max(known) if submitted is not None or eligible is not None else None


def _waiting(row: Row, *, since: datetime, until: datetime | None) -> Waiting:
    reason = text_of(row["reason"])
    gpus = number_of(row["gpu_count"]) or 0.0
    return Waiting(
        job=text_of(row["job"]),
        name=text_of(row["name"]),
        user=text_of(row["user"]),
        team=TeamName(text_of(row["account"])),
        partition=text_of(row["partition"]),
        gpu_count=gpus,
        node_count=max(1, int(number_of(row["node_count"]) or 1)),
        since=since,
        until=until,
        reason="" if reason.lower() in ("none", "(null)") else reason,
        is_for_room=not reason or reason.lower().replace(" ", "_").startswith(_FOR_ROOM),
        time_limit_seconds=number_of(row["time_limit_seconds"]),
    )
