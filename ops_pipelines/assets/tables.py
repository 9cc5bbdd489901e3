"""How assets show values in the Dagster UI: counts and tables. Shows; computes nothing."""

from collections.abc import Iterable, Mapping, Sized

import dagster as dg

_ROWS_AT_MOST = 50
"""Metadata is kept for ever in the event log; the full data is in the ledger."""


def count(things: Sized) -> dg.IntMetadataValue:
    """Return how many there are, as a number that the UI plots over time."""
    return dg.MetadataValue.int(len(things))


def table(rows: Iterable[Mapping[str, object]]) -> dg.MetadataValue:
    """Return rows as a table, the first 50 of them; no rows give a sentence, since an empty table says nothing."""
    shown = list(rows)
    if not shown:
        return dg.MetadataValue.text("none")
    records = [dg.TableRecord({name: _cell(value) for name, value in row.items()}) for row in shown[:_ROWS_AT_MOST]]
    columns = [dg.TableColumn(name=name, type=_column_type([row[name] for row in shown])) for name in shown[0]]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema(columns=columns))


def _cell(value: object) -> str | int | float | bool | None:
    if value is None:
        return ""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 3)
    return str(value)


def _column_type(values: list[object]) -> str:
    if all(isinstance(value, int) for value in values):
        return "int"
    if all(isinstance(value, int | float) for value in values):
        return "float"
    return "string"
