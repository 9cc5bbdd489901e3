"""Answers, plans of retention and the lake itself, described at the command line."""

import csv
import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops_pipelines.report.terminal import printable
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.lake.query import QueryResult, TableDescription, describe_lake, query
from ops_pipelines.resources.lake.retention import Retained, RetentionSettings, preview_retention, retain
from ops_pipelines.terminal.edge import AnswerFormat

# -- what `ops-pipelines telemetry` prints --


_NUMBERS = ("int", "uint", "float", "double", "decimal")
_SHOWN_PATH_COUNT = 20
_BYTE_STEPS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def answer_text(answer: QueryResult, form: AnswerFormat, *, width: int = 120) -> str:
    """Return an answer as a table of `width` characters, as CSV with a header, or as one JSON document.

    Null is an empty cell, or JSON's null. In JSON, NaN and infinities are null: it has no word for them.
    """
    if form is AnswerFormat.CSV:
        return _csv(answer)
    if form is AnswerFormat.JSON:
        rows = [[_plain(cell) for cell in row] for row in answer.rows]
        return json.dumps({"columns": answer.columns, "rows": rows, "truncated": answer.truncated}, allow_nan=False)
    lines = [_rendered(_answer_table(answer), width=width)]
    lines.append(f"{len(answer.rows)} row(s){'; there are more: see --limit' if answer.truncated else ''}")
    return "\n".join(line for line in lines if line)


def description_text(tables: Sequence[TableDescription], *, width: int = 120) -> str:
    """Return what the lake holds, a row a table; tables without a file are left out."""
    if not tables:
        return "the lake is empty"
    grid = _table()
    for name in ("table", "rows", "hours", "open", "oldest", "newest", "size"):
        grid.add_column(name, justify="right" if name in ("rows", "hours", "open", "size") else "left", no_wrap=True)
    for each in tables:
        grid.add_row(
            Text(printable(each.name)),
            f"{'~' if each.is_row_count_estimated else ''}{each.row_count}",
            str(each.hour_count),
            str(each.open_hour_count),
            _moment(each.oldest),
            _moment(each.newest),
            bytes_text(each.size_bytes),
        )
    return _rendered(grid, width=width)


def retained_text(retained: Retained, *, is_preview: bool) -> str:
    """Return what retention did, or would do: aggregates written, files deleted."""
    would = "would be " if is_preview else ""
    lines = [
        f"{len(retained.aggregated)} aggregate(s) {would}written",
        *_shown(retained.aggregated),
        f"{len(retained.deleted)} file(s), {bytes_text(retained.deleted_bytes)}, {would}deleted",
        *_shown(retained.deleted),
    ]
    if retained.kept_open:
        count, first = len(retained.kept_open), printable(retained.kept_open[0])
        lines.append(f"{count} day(s) kept: hours that were never filled; materialise them, e.g. {first}")
    if retained.late_row_count:
        lines.append(f"{retained.late_row_count} late row(s): their samples had gone; aggregates take what they lack")
    return "\n".join(lines)


def bytes_text(size: float) -> str:
    """Return `812 B`, `1.4 MiB`, ..."""
    step = 0
    while size >= 1024 and step < len(_BYTE_STEPS) - 1:
        size, step = size / 1024, step + 1
    return f"{size:.0f} B" if step == 0 else f"{size:.1f} {_BYTE_STEPS[step]}"


def _shown(paths: Sequence[str]) -> Iterable[str]:
    yield from (f"  {printable(path)}" for path in paths[:_SHOWN_PATH_COUNT])
    if len(paths) > _SHOWN_PATH_COUNT:
        yield f"  and {len(paths) - _SHOWN_PATH_COUNT} more"


def _csv(answer: QueryResult) -> str:
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(answer.columns)
    for row in answer.rows:
        writer.writerow(["" if cell is None else _cell_text(cell) for cell in row])
    return out.getvalue().removesuffix("\n")


def _answer_table(answer: QueryResult) -> Table:
    grid = _table()
    for name, kind in zip(answer.columns, answer.types, strict=True):
        grid.add_column(
            Text(printable(name)), justify="right" if kind.startswith(_NUMBERS) else "left", overflow="fold"
        )
    for row in answer.rows:
        grid.add_row(*(Text(printable(_short(cell)), overflow="fold") for cell in row))
    return grid


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _rendered(grid: Table, *, width: int) -> str:
    out = StringIO()
    Console(file=out, width=width, markup=False, emoji=False, highlight=False, color_system=None).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _short(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.0f}" if cell.is_integer() and abs(cell) < 1e15 else f"{cell:.6g}"
    return _cell_text(cell)


def _cell_text(cell: object) -> str:
    plain = _plain(cell) if isinstance(cell, datetime | date | timedelta | bytes | list | dict) else cell
    return json.dumps(plain, allow_nan=False) if isinstance(plain, list | dict) else str(plain)


def _plain(cell: object) -> object:
    """Return a value as JSON can say it."""
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if isinstance(cell, datetime):
        return _iso(cell)
    if isinstance(cell, bytes):
        return cell.hex()
    if isinstance(cell, timedelta):
        return cell.total_seconds()
    if isinstance(cell, Decimal):
        return int(cell) if cell == cell.to_integral_value() else float(cell)
    if isinstance(cell, dict):
        return {str(name): _plain(value) for name, value in cell.items()}
    if isinstance(cell, list | tuple):
        return [_plain(value) for value in cell]
    return cell if cell is None or isinstance(cell, str | int) else str(cell)


def _iso(at: datetime) -> str:
    return at.isoformat() if at.tzinfo is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


# -- the deeds behind `ops-pipelines telemetry query`, `tables` and `retain` --


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
