"""Evidence for advice beside the hours: idle GPUs now, listings of files, how often long jobs save.

Columns: `path`, `team`, `bytes`, `last_read_at`, `last_written_at` (ISO 8601 with a zone, or seconds since 1970). Empty
times are not known. One row a file. Nothing of a path is ever opened or run.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.advice import Saves, one_line
from ops_pipelines.efficiency.advice_on_running import FileGroup
from ops_pipelines.efficiency.work_rows import LongRun
from ops_pipelines.lake.quantities import Refused, WrongKind
from ops_pipelines.observe.logs.matching import CheckpointLine, LineKind, is_progress
from ops_pipelines.review.job_runs import JobLines
from ops_pipelines.teams.desk import AdviceSettings

# -- the newest hours of `gpu_efficiency` -> which running jobs have done nothing on any GPU --


_HOUR = timedelta(hours=1)


def idle_since(rows: pa.Table, *, jobs: frozenset[str], until: datetime) -> Mapping[str, tuple[datetime, float]]:
    """Return since which hour each of these jobs did nothing up to `until`, and on how many GPUs.

    Only hours in which every node of the job was seen idle as a whole count; an hour without a row ends the interval.
    """
    by_hour: dict[str, dict[datetime, list[tuple[bool, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows.to_pylist():
        if row["job"] in jobs:
            is_idle = row["verdict"] == "idle" and row["rule"] != "half_idle"
            hour = row["time"].replace(minute=0, second=0, microsecond=0)
            by_hour[row["job"]][hour].append((is_idle, row["gpu_count"] or 0.0))
    found: dict[str, tuple[datetime, float]] = {}
    for job, hours in by_hour.items():
        begin = until
        while (seen := hours.get(begin - _HOUR)) and all(is_idle for is_idle, _ in seen):
            begin -= _HOUR
        if begin < until:
            found[job] = begin, sum(gpus for _, gpus in hours[until - _HOUR])
    return found


# -- lines of one long job -> how often it saves, how long that takes --


_SAME_SAVE = timedelta(seconds=30)
"""Lines of several ranks that tell of one save come this close. Assumption."""
_SAVE_AT_MOST = timedelta(hours=1)
"""A save that takes longer has lost its beginning or its end."""
_BESIDE = frozenset({LineKind.SCHEDULED, LineKind.STAGED})
_ENDS = (LineKind.SAVED, LineKind.SAVING, LineKind.STAGED)
"""Which lines mark a save: the surest kind that the job reports."""


def read_saves(lines: JobLines, run: LongRun) -> Saves:
    """Return what the lines of this job tell."""
    told = lines.told.get(run.job, ())
    own = [rows.filter(pc.equal(rows["job"], run.job)) for rows in lines.rows.values()]
    own = [rows for rows in own if rows.num_rows]
    marks = _marks(told)
    return Saves(
        has_lines=bool(own),
        is_training=any(_has_steps(rows) for rows in own),
        save_count=len(marks),
        intervals_hours=tuple((later - earlier) / timedelta(hours=1) for earlier, later in pairwise(marks)),
        save_seconds=_save_seconds(told),
        is_asynchronous=any(each.kind in _BESIDE for each in told),
        node_count=run.node_count,
        longest_hours=run.held_hours,
    )


def _has_steps(rows: pa.Table) -> bool:
    return bool(pc.any(pc.fill_null(is_progress(rows), False)).as_py())


def _marks(told: tuple[CheckpointLine, ...]) -> list[datetime]:
    """Return when each save was reported, once."""
    for kind in _ENDS:
        marks: list[datetime] = []
        for each in told:
            if each.kind is kind and (not marks or each.at - marks[-1] > _SAME_SAVE):
                marks.append(each.at)
        if marks:
            return marks
    return []


def _save_seconds(told: tuple[CheckpointLine, ...]) -> tuple[float, ...]:
    """Return how long saves took of which the first line and the first word of completion are reported."""
    found: list[float] = []
    begun: datetime | None = None
    for each in told:
        if each.kind in {LineKind.SAVING, LineKind.SCHEDULED, LineKind.STAGED}:
            begun = begun or each.at
        elif each.kind is LineKind.SAVED and begun is not None:
            if timedelta(0) < each.at - begun <= _SAVE_AT_MOST:
                found.append((each.at - begun).total_seconds())
            begun = None
    return tuple(found)


# -- a listing of files from outside (CSV or Parquet) -> groups of files that belong together --


COLUMNS = ("path", "team", "bytes", "last_read_at", "last_written_at")
MAX_BYTES = 2**60
_PARQUET = b"PAR1"
_CHECKPOINT = re.compile(
    r"^(?P<run>.*?)/?(?:[^/]*(?:checkpoint|ckpt)[^/]*|global_step_?\d+|iter_\d+|mp_rank_\d+[^/]*)(?:/|$)",
    re.IGNORECASE | re.ASCII,
)
_TEXT_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """One file that was believed."""

    path: str
    team: TeamName
    size_bytes: int
    read_at: datetime | None
    written_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a listing says."""

    files: tuple[ListedFile, ...]
    refused: tuple[Refused, ...]

    @property
    def read(self) -> int:
        return len(self.files) + len(self.refused)


def read_listing(body: bytes, *, name: str, now: datetime) -> Listing:
    """Return the files of a listing. Raises WrongKind if it is neither CSV with these columns nor such a Parquet."""
    files: list[ListedFile] = []
    refused: list[Refused] = []
    known: set[str] = set()
    for number, row in enumerate(_rows(body, name=name), start=2):
        fault = _fault(row, known=known, now=now)
        if fault is not None:
            refused.append(
                Refused(
                    record=f"line {number}",
                    reason=fault[0],
                    detail=fault[1],
                    text=one_line(str(row.get("path") or ""), at_most=_TEXT_LENGTH),
                )
            )
            continue
        path = str(row["path"])
        known.add(path)
        files.append(
            ListedFile(
                path=path,
                team=TeamName(one_line(str(row["team"]))),
                size_bytes=int(str(row["bytes"])),
                read_at=_time(row["last_read_at"]),
                written_at=_time(row["last_written_at"]),
            )
        )
    return Listing(files=tuple(files), refused=tuple(refused))


def group_files(files: Iterable[ListedFile], settings: AdviceSettings, *, now: datetime) -> tuple[FileGroup, ...]:
    """Return the files by team and run (checkpoints) or directory (data), and what of each is old."""
    groups: dict[tuple[TeamName, str, bool], list[ListedFile]] = {}
    for each in files:
        match = _CHECKPOINT.match(each.path)
        home = each.path.rpartition("/")[0] or "/" if match is None else match["run"] or "/"
        groups.setdefault((each.team, home, match is not None), []).append(each)
    return tuple(_group(*key, listed, settings, now=now) for key, listed in sorted(groups.items()))


def _group(
    team: TeamName,
    home: str,
    is_checkpoints: bool,
    files: list[ListedFile],
    settings: AdviceSettings,
    *,
    now: datetime,
) -> FileGroup:
    limit = now - (settings.stale_after if is_checkpoints else settings.unused_after)
    written = [each.written_at for each in files if each.written_at is not None]
    newest = _save_of(max(files, key=lambda each: (each.written_at or limit, each.path))) if is_checkpoints else None
    old = [
        each
        for each in files
        if each.read_at is not None
        and each.read_at < limit
        and (each.written_at is None or each.written_at < limit)
        # The newest save of a run is what it would resume from, however old.
        and (newest is None or (_save_of(each) != newest and bool(written)))
    ]
    used = [at for each in files for at in (each.read_at, each.written_at) if at is not None]
    return FileGroup(
        team=team,
        path=one_line(home),
        is_checkpoints=is_checkpoints,
        size_bytes=sum(each.size_bytes for each in files),
        count=len(files),
        old_size_bytes=sum(each.size_bytes for each in old),
        old_count=len(old),
        last_used_at=max(used, default=None),
        unknown_count=sum(each.read_at is None for each in files),
    )


def _save_of(file: ListedFile) -> str:
    """Return which save of its run a file is part of: its path up to the name that says checkpoint."""
    match = _CHECKPOINT.match(file.path)
    return file.path if match is None else match[0]


def _fault(row: Mapping[str, object], *, known: set[str], now: datetime) -> tuple[str, str] | None:
    path, team, size = row.get("path"), row.get("team"), str(row.get("bytes") or "")
    if not path:
        return "path_missing", "no path; expected one in each row"
    if not team:
        return "team_missing", "no team; expected the account whose file it is"
    if path in known:
        return "path_twice", "the path is there before; expected each once"
    if not re.fullmatch(r"[0-9]{1,19}", size, re.ASCII) or int(size) > MAX_BYTES:
        return "size_not_believed", f"bytes is {one_line(size, at_most=40)!r}; expected a whole number up to 2^60"
    for column in ("last_read_at", "last_written_at"):
        given = row.get(column)
        if given in (None, ""):
            continue
        at = _time(given)
        if at is None:
            return (
                "time_not_readable",
                f"{column} is {one_line(str(given), at_most=40)!r}; expected ISO 8601 with a zone",
            )
        if at > now:
            return "time_ahead", f"{column} is {at:%Y-%m-%d %H:%M}, later than now; expected the past"
    return None


def _time(given: object) -> datetime | None:
    try:
        if isinstance(given, datetime):
            return None if given.utcoffset() is None else given.astimezone(UTC)
        text = str(given or "").strip()
        if re.fullmatch(r"[0-9]{1,11}(\.[0-9]{1,9})?", text, re.ASCII):
            return datetime.fromtimestamp(float(text), UTC)
        found = datetime.fromisoformat(text)
        return None if found.utcoffset() is None else found.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _rows(body: bytes, *, name: str) -> Iterator[Mapping[str, object]]:
    rows = _parquet_rows(body, name=name) if body.startswith(_PARQUET) else _csv_rows(body, name=name)
    yield from rows


def _csv_rows(body: bytes, *, name: str) -> Iterator[Mapping[str, object]]:
    reader = csv.DictReader(io.StringIO(body.decode("utf-8", "replace"), newline=""))
    try:
        _check_columns(reader.fieldnames or (), name=name)
        yield from reader
    except csv.Error as problem:
        raise WrongKind(f"{name} is no CSV that can be read: {problem}") from problem


def _parquet_rows(body: bytes, *, name: str) -> Iterator[Mapping[str, object]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(body))
        _check_columns(file.schema_arrow.names, name=name)
        for batch in file.iter_batches(columns=list(COLUMNS)):
            yield from batch.to_pylist()
    except pa.ArrowException as problem:
        raise WrongKind(f"{name} begins as Parquet and cannot be read: {problem}") from problem


def _check_columns(found: Iterable[str], *, name: str) -> None:
    missing = [each for each in COLUMNS if each not in set(found)]
    if missing:
        raise WrongKind(f"{name} lacks the column {', '.join(missing)}; expected {', '.join(COLUMNS)}")
