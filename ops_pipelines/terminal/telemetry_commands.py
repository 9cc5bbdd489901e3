"""The deeds behind `ops-pipelines telemetry query`, `tables` and `retain`: a lake in, text out. Options are `cli`'s."""

from datetime import datetime
from pathlib import Path

from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.lake.query import describe_lake, query
from ops_pipelines.resources.lake.retention import RetentionSettings, preview_retention, retain
from ops_pipelines.terminal.answer_format import AnswerFormat
from ops_pipelines.terminal.telemetry_tables import answer_text, description_text, retained_text


def run_query(
    root: str | Path,
    sql: str,
    *,
    form: AnswerFormat = AnswerFormat.TABLE,
    limit: int | None = 1000,
    timeout_seconds: float = 120.0,
    width: int = 120,
) -> str:
    """Return the answer to one reading statement. Raises QueryRefused (a ValueError) and LakeError."""
    return answer_text(query(root, sql, limit=limit, timeout_seconds=timeout_seconds), form, width=width)


def describe(root: str | Path, *, width: int = 120) -> str:
    """Return what the lake holds: rows, hours, oldest, newest, size of every table. Raises LakeError."""
    return description_text(describe_lake(ParquetLake(root)), width=width)


def preview_retain(root: str | Path, *, now: datetime, settings: RetentionSettings) -> str:
    """Return what `run_retain` would do now. Raises LakeError."""
    return retained_text(preview_retention(ParquetLake(root), now=now, settings=settings), is_preview=True)


def run_retain(root: str | Path, *, now: datetime, settings: RetentionSettings) -> str:
    """Aggregate and delete as the settings say, and return what was done. Raises LakeError."""
    lake = ParquetLake(root)
    done = retain(lake, now=now, settings=settings)
    lake.clean(now)
    return retained_text(done, is_preview=False)
