"""What the readers of placement share: cells of rows as they may be, and refusals with their record."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import pyarrow as pa

from ops_pipelines.lake.quantities import Refused

Row = Mapping[str, object]


def rows_of(table: pa.Table, columns: Sequence[str]) -> list[Row]:
    """Return rows with these columns; one that the table lacks is None in every row."""
    there = [name for name in columns if name in table.column_names]
    lacking = dict.fromkeys((name for name in columns if name not in there), None)
    found: list[Row] = [{**lacking, **row} for row in table.select(there).to_pylist()]
    return found


def text_of(cell: object) -> str:
    """Return a text; '' for none."""
    return cell if isinstance(cell, str) else ""


def number_of(cell: object) -> float | None:
    """Return a number; None for none, and for what is no number (NaN)."""
    if isinstance(cell, bool) or not isinstance(cell, int | float) or cell != cell:
        return None
    return float(cell)


def time_of(cell: object) -> datetime | None:
    return cell if isinstance(cell, datetime) else None


def refuse(row: Row, reason: str, detail: str) -> Refused:
    """Return a row as it was refused. `detail`: what was found, what was expected."""
    shown = {name: cell for name, cell in row.items() if cell is not None}
    text = " ".join(f"{name}={_shown(cell)}" for name, cell in shown.items())
    record = ", ".join(_shown(shown[name]) for name in ("job", "attempt", "started_at", "node") if name in shown)
    return Refused(record=record, reason=reason, detail=detail, text=text[:1000], into="placement_report")


def _shown(cell: object) -> str:
    return f"{cell:%Y-%m-%dT%H:%M:%SZ}" if isinstance(cell, datetime) else str(cell)
