"""Draws documents as metadata of Dagster's assets: measures that it plots, tables, lists in Markdown.

Only blocks with a key are kept: metadata stays in the event log for ever, the page has the rest. Cells hold no
Markdown: names of jobs and paths are users' words. Loads dagster: for the shell alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from math import isfinite

import dagster as dg

from ops_pipelines.report.document import Block, Card, Cell, Document, Fold, Items, Kind, RowRole, Table, plain
from ops_pipelines.report.numbers import escape_markdown, shown

_ROWS_AT_MOST = 50
"""Metadata is kept for ever in the event log; the full data is in the ledger."""
_CELL_AT_MOST = 300


def metadata_of(document: Document) -> Mapping[str, dg.MetadataValue]:
    """Return what the asset's page shows of a document: its measures, and each block that has a key, in order."""
    found: dict[str, dg.MetadataValue] = {name: _measure(value) for name, value in (document.measures or {}).items()}
    found.update(_keyed(document.blocks))
    found.update(_carded(document.blocks))
    return found


def _keyed(blocks: Iterable[Block]) -> Iterator[tuple[str, dg.MetadataValue]]:
    for block in blocks:
        match block:
            case Fold():
                yield from _keyed(block.blocks)
            case Table(key=key) if key:
                yield key, _table(block)
            case Items(key=key) if key:
                yield key, dg.MetadataValue.md("\n".join(f"- {escape_markdown(plain(each))}" for each in block.items))
            case _:
                pass


def _carded(blocks: Iterable[Block]) -> Mapping[str, dg.MetadataValue]:
    cards: dict[str, list[Mapping[str, object]]] = {}
    for card in _cards(blocks):
        rows = {"subject": card.title, **card.rows}
        words = {name.lower(): _data(value, Kind.WORDS) for name, value in rows.items()}
        data = {name: _data(value, Kind.WORDS) for name, value in card.data.items()}
        cards.setdefault(card.key, []).append({**data, **words})
    return {key: table(rows) for key, rows in cards.items()}


def _cards(blocks: Iterable[Block]) -> Iterator[Card]:
    for block in blocks:
        if isinstance(block, Card) and block.key:
            yield block
        elif isinstance(block, Fold):
            yield from _cards(block.blocks)


def _measure(value: float | str) -> dg.MetadataValue:
    if isinstance(value, str):
        return dg.MetadataValue.text(value)
    return dg.MetadataValue.int(value) if isinstance(value, int) else dg.MetadataValue.float(value)


def _table(drawn: Table) -> dg.MetadataValue:
    places = [(place, column) for place, column in enumerate(drawn.columns) if column.kind is not Kind.DRAWN]
    # A sum among its parts would be counted twice by anyone who adds them up.
    rows = [row.cells for row in drawn.every_row if row.role not in (RowRole.SUM, RowRole.WHOLE)]
    return table({column.name: _data(row[place], column.kind) for place, column in places} for row in rows)


def _data(cell: Cell, kind: Kind) -> object:
    if cell is None or cell == "":
        return None
    if isinstance(cell, int | float) and isfinite(cell):
        return cell / 100 if kind is Kind.CENTS else cell
    return escape_markdown(shown(cell, kind), at_most=_CELL_AT_MOST)


def count(things: Sized) -> dg.IntMetadataValue:
    """Return how many there are, as a number that the UI plots over time."""
    return dg.MetadataValue.int(len(things))


def table(rows: Iterable[Mapping[str, object]]) -> dg.MetadataValue:
    """Return rows as a table, the first 50 of them; no rows give a sentence, since an empty table says nothing."""
    listed: Sequence[Mapping[str, object]] = list(rows)
    if not listed:
        return dg.MetadataValue.text("none")
    records = [dg.TableRecord({name: _cell(value) for name, value in row.items()}) for row in listed[:_ROWS_AT_MOST]]
    columns = [dg.TableColumn(name=name, type=_column_type([row[name] for row in listed])) for name in listed[0]]
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
