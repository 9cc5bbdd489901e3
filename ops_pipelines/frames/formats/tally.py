"""The tally of what became of each record of one file: rows by table, refusals, and counts that close.

Here: adding up. Not here: reading (`reading`), and why a record is refused (each format says).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ops_pipelines.frames.formats.reading import Cell, Unbelievable
from ops_pipelines.frames.parsed import Parsed, Refused, readable
from ops_pipelines.frames.schema import TABLES


@dataclass(slots=True, kw_only=True)
class Tally:
    """What has become of the records so far. Rows are unique by the key of their table and time."""

    source: str
    accepted: int = 0
    ignored: int = 0
    refused: list[Refused] = field(default_factory=list)
    _rows: dict[str, dict[tuple[Cell, ...], dict[str, Cell]]] = field(default_factory=dict)
    _records: set[str] = field(default_factory=set)

    def refuse(self, record: str, why: Unbelievable, *, text: str, into: str) -> None:
        """Count one record as refused; a place named before gets a number, so that each is unique."""
        name, again = record, 2
        while name in self._records:
            name, again = f"{record} ({again})", again + 1
        self._records.add(name)
        self.refused.append(Refused(record=name, reason=why.reason, detail=why.detail, text=readable(text), into=into))

    def has(self, table: str, row: Mapping[str, Cell]) -> bool:
        """Say whether a row with the same key and time is there."""
        return self._key(table, row) in self._rows.get(table, {})

    def put(self, table: str, row: Mapping[str, Cell]) -> bool:
        """Add a row, or to the row of the same key and time the cells that it lacks; say whether anything was new."""
        known = self._rows.setdefault(table, {}).setdefault(self._key(table, row), {})
        new = {name: cell for name, cell in row.items() if cell is not None and name not in known}
        known.update(new)
        return bool(new)

    def parsed(self) -> Parsed:
        """Return the counts and the tables."""
        return Parsed(
            read=self.accepted + self.ignored + len(self.refused),
            accepted=self.accepted,
            ignored=self.ignored,
            refused=tuple(self.refused),
            tables={name: TABLES[name].from_rows(rows.values()) for name, rows in self._rows.items() if rows},
        )

    @staticmethod
    def _key(table: str, row: Mapping[str, Cell]) -> tuple[Cell, ...]:
        return tuple(row[name] for name in TABLES[table].sort_order)
