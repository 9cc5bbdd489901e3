"""A database for the ledgers of one story: SQLite in memory, and the ledger's own statements without what is around.

Statements, their SQL and how values are stored are the ledger's, compiled by SQLAlchemy. Left out are its engine,
which costs more than what it is asked, and the disk: what survives a kill or a power cut is not tested here. A word
of the engine that is missing here is an error, never another answer.
"""

import re
import sqlite3
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Executable, UpdateBase
from sqlalchemy.dialects.sqlite.pysqlite import dialect
from sqlalchemy.sql.compiler import SQLCompiler

from ops_pipelines.resources.ledger.tables import metadata

_Processor = Callable[[Any], Any] | None
_DIALECT = dialect()
_COMPILED: dict[Any, Any] = {}
"""SQLAlchemy's own memory of what statements compile to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """SQL with as many question marks as one set of values needs."""

    sql: str
    names: tuple[str, ...]
    """Of the values, in order."""
    processors: tuple[_Processor, ...]
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What the items of a list are named."""

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        for name, parts in self.parts.items():
            given = {**given, **dict(zip(parts, given[name], strict=True))}
        return [
            given[name] if process is None else process(given[name])
            for name, process in zip(self.names, self.processors, strict=True)
        ]


@cache
def _tables_named_in(sql: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", sql)) & metadata.tables.keys()


class _Statement:
    """One statement of the ledger, ready to be asked."""

    def __init__(self, statement: Any, keys: tuple[str, ...]) -> None:
        compiled, extracted, collected, _ = statement._compile_w_cache(
            _DIALECT, compiled_cache=_COMPILED, column_keys=list(keys), for_executemany=False
        )
        assert isinstance(compiled, SQLCompiler)
        self._compiled = compiled
        defaults = compiled.construct_params(
            extracted_parameters=extracted, escape_names=False, _check=False, _collected_params=collected
        )
        needed = {name for bound, name in compiled.bind_names.items() if bound.required}
        self._defaults = {name: value for name, value in defaults.items() if name not in needed}
        self._lists = sorted(compiled.bind_names[bound] for bound in compiled.post_compile_params)
        self._texts: dict[tuple[int, ...], _Text] = {}
        columns = compiled._result_columns
        self.column_names = tuple(each.keyname for each in columns)
        processors = tuple(each.type._cached_result_processor(_DIALECT, None) for each in columns)
        self.result_processors = processors if any(processors) else None
        self.first_processor = processors[0] if processors else None
        self.row_kind = _row_kind(self.column_names)
        self.writes = statement.table.name if isinstance(statement, UpdateBase) else None
        self.reads = _tables_named_in(compiled.string)
        """At least the tables that it reads: a column may be named as a table is."""

    def text_and_values(self, given: Mapping[str, Any]) -> tuple[str, list[Any]]:
        merged = {**self._defaults, **given} if self._defaults else given
        lengths = tuple([len(merged[name]) for name in self._lists])
        text = self._texts.get(lengths) or self._write_out(lengths, merged)
        return text.sql, text.values(merged)

    def _write_out(self, lengths: tuple[int, ...], values: Mapping[str, Any]) -> _Text:
        compiled = self._compiled
        processors = dict(compiled._bind_processors)
        if self._lists:
            state = compiled._process_parameters_for_postcompile(dict(values))
            sql, names, parts = state.statement, tuple(state.positiontup or ()), state.parameter_expansion
            processors |= state.processors
        else:
            sql, names, parts = compiled.string, tuple(compiled.positiontup or ()), {}
        text = _Text(sql=sql, names=names, processors=tuple(processors.get(each) for each in names), parts=parts)
        self._texts[lengths] = text
        return text


_READY: WeakKeyDictionary[Executable, dict[tuple[str, ...], _Statement]] = WeakKeyDictionary()
"""Most statements are built once, when the program begins, and asked in every story."""


def _ready(statement: Executable, keys: tuple[str, ...]) -> _Statement:
    by_keys = _READY.setdefault(statement, {})
    if keys not in by_keys:
        by_keys[keys] = _Statement(statement, keys)
    return by_keys[keys]


_ROW_KINDS: dict[tuple[str, ...], type[Any]] = {}


def _row_kind(names: tuple[str, ...]) -> type[Any]:
    if names not in _ROW_KINDS:
        _ROW_KINDS[names] = namedtuple("Row", names, rename=True)
    return _ROW_KINDS[names]


class QuickResult:
    """Every row that a statement found."""

    def __init__(self, statement: _Statement, rows: list[tuple[Any, ...]], count: int) -> None:
        self._statement = statement
        self._rows = rows
        self.rowcount = count

    def __iter__(self) -> Iterator[Any]:
        return iter(self.all())

    def all(self) -> list[Any]:
        statement = self._statement
        make, processors = statement.row_kind._make, statement.result_processors
        if processors is None:
            return [make(row) for row in self._rows]
        return [
            make([item if process is None else process(item) for item, process in zip(row, processors, strict=True)])
            for row in self._rows
        ]

    def first(self) -> Any:
        return next(iter(self), None)

    def one_or_none(self) -> Any:
        assert len(self._rows) <= 1, f"{len(self._rows)} rows instead of one"
        return self.first()

    def one(self) -> Any:
        assert len(self._rows) == 1, f"{len(self._rows)} rows instead of one"
        return self.first()

    def scalars(self) -> list[Any]:
        process = self._statement.first_processor
        return [row[0] if process is None else process(row[0]) for row in self._rows]

    def scalar(self) -> Any:
        return next(iter(self.scalars()), None)

    def scalar_one(self) -> Any:
        (value,) = self.scalars()
        return value

    def mappings(self) -> "QuickMappings":
        names = self._statement.column_names
        return QuickMappings(dict(zip(names, row, strict=True)) for row in self.all())


class QuickMappings(list[dict[str, Any]]):
    """Rows by the names of their columns."""

    def partitions(self, size: int) -> Iterator[list[dict[str, Any]]]:
        for start in range(0, len(self), size):
            yield self[start : start + size]


class QuickDatabase:
    """One database, and the connection to it that all ledgers of a story share, one at a time."""

    name = "in memory"
    dialect = _DIALECT

    def __init__(self, content: bytes) -> None:
        self.own = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=1000)
        self.own.deserialize(content)
        self.write_counts: Counter[str] = Counter()
        """How often each table was written to."""
        self.tables_read: set[str] = set()
        """At least what was read; anyone who wants to know what since when empties it."""
        self._turn = RLock()

    @contextmanager
    def read(self) -> Iterator["QuickDatabase"]:
        """Nobody else writes meanwhile: who reads sees one state."""
        with self._turn:
            yield self

    @contextmanager
    def write(self) -> Iterator["QuickDatabase"]:
        """Enter a transaction; it commits at the end, or not at all."""
        with self._turn:
            self.own.execute("BEGIN")
            try:
                yield self
            except BaseException:
                self.own.execute("ROLLBACK")
                raise
            self.own.execute("COMMIT")

    def execute(
        self, statement: Executable, values: Any = None, *, execution_options: Mapping[str, object] | None = None
    ) -> QuickResult:
        """Do what SQLAlchemy's connection does; rows are never streamed."""
        rows = values if isinstance(values, list | tuple) else [values or {}]
        asked = _ready(statement, tuple(sorted(rows[0])))
        found: list[tuple[Any, ...]] = []
        count = 0
        with self._turn:
            for row in rows:
                cursor = self.own.execute(*asked.text_and_values(row))
                found += cursor.fetchall()
                count += max(cursor.rowcount, 0)
        self.tables_read |= asked.reads
        if asked.writes is not None and count:
            self.write_counts[asked.writes] += 1
        return QuickResult(asked, found, count)

    def close(self) -> None:
        """What is in memory goes with anyone who holds it: other ledgers of the story may continue."""
