"""The whole database of a ledger, copied out of a running program and put in place of another, all or nothing.

A copy is one SQLite file of the same schema version, also of a ledger on PostgreSQL: so the same code reads and checks
each, and one may be put where the other was. Nothing is upgraded here: what an older program wrote, it can still read.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError

from ops_pipelines.core.entries import LedgerDamaged, LedgerError
from ops_pipelines.resources.files import hand_over
from ops_pipelines.resources.ledger.chain import Found, read_found_of_any_version, read_hash_at
from ops_pipelines.resources.ledger.database import (
    KNOWN_VERSIONS,
    lock_writers,
    migrate,
    postgres_engine,
    schema_version,
    shown,
    shows_damage,
    sqlite_file,
)
from ops_pipelines.resources.ledger.tables import entries, metadata

_PAGE_SIZE = 1_000
_BUSY_SECONDS = 10.0
_FOR_US = 0o600
_VERSION_TABLE = "alembic_version"
_NO_DATABASE = "not a database"
_NO_VERSION = f"{_VERSION_TABLE}, which holds its schema version, is gone or empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a copy holds."""

    file: Path
    schema_version: str
    found: Found
    head_at: datetime | None
    """When its last line was written; None: it has none."""

    def hash_at(self, seq: int) -> str | None:
        """Return the hash of one of its lines."""
        with _reading(self.file) as connection:
            return read_hash_at(connection, seq)

    def lease(self) -> tuple[str, str] | None:
        """Return who held the right to act, and until when, as it is kept; None: nobody ever did."""
        with _reading(self.file) as connection:
            row = connection.execute(text("SELECT holder, expires_at FROM leases")).first()
            return None if row is None else (str(row[0]), str(row[1]))


def copy_out(url: str, file: Path) -> Copied | None:
    """Copy a ledger as it is in one moment, while others write on; None if there is none yet.

    Raises LedgerDamaged for what is no ledger any more, LedgerError where the database or the disk fails.
    """
    source = sqlite_file(url)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FOR_US))
    is_there = _copy_from_server(url, file) if source is None else source.exists() and _copy_file(source, file)
    if not is_there:
        file.unlink()
        return None
    return read_copy(file)


def read_copy(file: Path) -> Copied:
    """Return what a copy holds, after SQLite has found it whole. Raises LedgerDamaged, or LedgerError for a schema that
    is not known."""
    with _reading(file) as connection:
        said = connection.execute(text("PRAGMA quick_check")).scalar()
        if said != "ok":
            raise LedgerDamaged(f"{file} is damaged: {said}")
        version = schema_version(connection)
        if version is None:
            raise LedgerDamaged(f"{file} cannot be read as a ledger: {_NO_VERSION}")
        if version not in KNOWN_VERSIONS:
            raise LedgerError(
                f"{file} has schema version {version}; this program knows {KNOWN_VERSIONS[0]} to "
                f"{KNOWN_VERSIONS[-1]}: use the program that wrote it"
            )
        head_at = connection.execute(select(entries.c.written_at).order_by(entries.c.seq.desc()).limit(1)).scalar()
        found = read_found_of_any_version(connection)
    return Copied(file=file, schema_version=version, found=found, head_at=head_at)


def put_in(file: Path, url: str) -> None:
    """Put a copy in place of whatever ledger is there, in one transaction: a kill leaves the one or the other, whole.

    Raises LedgerError; then nothing changed.
    """
    target = sqlite_file(url)
    if target is None:
        _put_into_server(file, url)
        return
    if not target.exists():
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, _FOR_US))
        hand_over(target)
    try:
        # By SQLite itself, through the journal of what is there: a file that is renamed would leave the WAL behind.
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(target, timeout=_BUSY_SECONDS)) as into:
            source.backup(into)
    except sqlite3.Error as problem:
        raise LedgerError(f"ledger {shown(url)}: the copy cannot be put there: {problem}") from problem


def set_aside(url: str, suffix: str) -> tuple[Path, ...]:
    """Rename the files of a ledger on SQLite that is damaged: who tries to save what is in it needs them all."""
    file = sqlite_file(url)
    if file is None:
        return ()
    moved = []
    for name in (f"{file.name}-wal", f"{file.name}-shm", file.name):
        there = file.with_name(name)
        if there.exists():
            moved.append(there.rename(there.with_name(f"{name}{suffix}")))
    return tuple(moved)


@contextmanager
def _reading(file: Path) -> Iterator[Connection]:
    engine = create_engine(f"sqlite:///{file}")
    try:
        with engine.connect() as connection:
            yield connection
    except SQLAlchemyError as problem:
        raise _error(f"{file} cannot be read as a ledger", problem.__cause__ or problem) from problem
    finally:
        engine.dispose()


def _error(said: str, problem: BaseException) -> LedgerError:
    """Return what a database's error means: only one that reports damage lets a ledger be given up for another."""
    words = " ".join(str(problem).split())
    return (LedgerDamaged if shows_damage(words) or _NO_DATABASE in words else LedgerError)(f"{said}: {words}")


def _copy_file(source: Path, file: Path) -> bool:
    """Copy by SQLite's own means: what is in the WAL alone is in it. False if it holds nothing."""
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS)) as one,
            closing(sqlite3.connect(file)) as other,
        ):
            one.backup(other)
            other.execute("PRAGMA journal_mode = DELETE")  # One file, without a WAL beside it.
            return bool(other.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    except sqlite3.Error as problem:
        file.unlink()
        raise _error(f"{source} cannot be copied", problem) from problem


def _copy_from_server(url: str, file: Path) -> bool:
    engine = postgres_engine(url).execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    try:
        with engine.connect() as server:
            version = schema_version(server)
            if version is None and inspect(server).has_table(entries.name):
                raise LedgerDamaged(f"ledger {shown(url)} cannot be read: {_NO_VERSION}")
            if version is None:
                return False
            if version not in KNOWN_VERSIONS:
                raise LedgerError(f"ledger {shown(url)} has schema version {version}, which this program does not know")
            with closing(_empty_copy(file, version)) as copy, copy:
                for table, columns in _layout(copy):
                    names = ", ".join(f'"{each}"' for each in columns)
                    rows = server.execution_options(yield_per=_PAGE_SIZE).execute(
                        text(f'SELECT {names} FROM "{table}"')  # noqa: S608  # names are those of our own migrations
                    )
                    places = ", ".join("?" * len(columns))
                    for page in rows.partitions():
                        values = [tuple(map(_as_kept, row)) for row in page]
                        copy.executemany(f'INSERT INTO "{table}" ({names}) VALUES ({places})', values)  # noqa: S608
            return True
    except SQLAlchemyError as problem:
        file.unlink(missing_ok=True)
        raise _error(f"ledger {shown(url)} cannot be copied", problem.__cause__ or problem) from problem
    finally:
        engine.dispose()


def _put_into_server(file: Path, url: str) -> None:
    engine: Engine = postgres_engine(url)
    version = read_copy(file).schema_version
    try:
        with engine.begin() as server, closing(sqlite3.connect(file)) as copy:
            lock_writers(server)
            for table in (*reversed(metadata.sorted_tables), _VERSION_TABLE):
                server.execute(text(f'DROP TABLE IF EXISTS "{table}"'))
            migrate(server, version)
            for table, columns in _layout(copy):
                names = ", ".join(f'"{each}"' for each in columns)
                into = text(
                    f'INSERT INTO "{table}" ({names}) VALUES ({", ".join(f":{each}" for each in columns)})'  # noqa: S608
                )
                rows = copy.execute(f'SELECT {names} FROM "{table}"')  # noqa: S608
                for page in _pages(rows):
                    server.execute(into, [dict(zip(columns, row, strict=True)) for row in page])
    except SQLAlchemyError as problem:
        raise LedgerError(
            f"ledger {shown(url)}: the copy cannot be put there: {problem.__cause__ or problem}"
        ) from problem
    finally:
        engine.dispose()


def _empty_copy(file: Path, version: str) -> sqlite3.Connection:
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        migrate(connection, version)
    engine.dispose()
    return sqlite3.connect(file)


def _layout(copy: sqlite3.Connection) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the tables that a copy has, with their columns."""
    tables = copy.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()
    return tuple(
        (name, tuple(row[1] for row in copy.execute(f'PRAGMA table_info("{name}")')))
        for (name,) in tables
        if name != _VERSION_TABLE
    )


def _pages(rows: sqlite3.Cursor) -> Iterator[Iterable[tuple[object, ...]]]:
    while page := rows.fetchmany(_PAGE_SIZE):
        yield page


def _as_kept(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview) else value
