"""The ledger's database: opening it by URL, its transactions, its schema version, and errors in an operator's words.

SQLite and PostgreSQL differ here and nowhere else. What is read and written belongs to the other ledger modules.
"""

import sqlite3
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from io import StringIO
from itertools import islice
from pathlib import Path
from threading import RLock

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Engine,
    Insert,
    Select,
    Table,
    Text,
    any_,
    bindparam,
    create_engine,
    event,
    insert,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from ops_pipelines.core.entries import LedgerDamaged, LedgerError

KNOWN_VERSIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010")
"""Schema versions that this program can open, oldest first; the last is the one it writes."""

_BUSY_TIMEOUT_SECONDS = 10
"""How long a writer waits for another. Writers hold the lock for milliseconds; this long means one hangs."""
_WAL_TRY_COUNT = 100
_WAL_PAUSE_SECONDS = 0.05
_WRITER_LOCK = 0x6F70735F6C656467
"""PostgreSQL's advisory lock of all writers; any number that no other program of that database uses ("ops_ledg")."""
_SERVER_SETTINGS = {
    "statement_timeout": "60s",
    # Else the host of a writer that lost its power would hold the writers' lock for hours.
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
"""What PostgreSQL is configured with for each connection: nothing waits for ever for a host that vanished."""
_CLIENT_SETTINGS: Mapping[str, str | int] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "options": " ".join(f"-c {name}={limit}" for name, limit in _SERVER_SETTINGS.items()),
}
"""The same at our end; what the URL says wins. PgBouncer must be configured to let `options` pass."""
_COPIED_FROM_COUNT = 100
_COPY_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_LOOKUP_SIZE = 500
"""SQLite takes some thousand parameters at most."""
_SECRETS_IN_QUERY = ("password", "sslpassword")
_SIGNS_OF_DAMAGE = ("malformed", "no such table", 'relation "', "invalid page")
_REMEDIES = (
    ("is locked", "another process holds the write lock too long; find it with `fuser` and see whether it hangs"),
    ("lock timeout", "another process holds the write lock too long; look for it in pg_stat_activity"),
    ("disk is full", "the disk is full; make room there, nothing was written"),
    ("no space left", "the disk is full; make room there, nothing was written"),
    ("disk i/o error", "the disk does not read or write; check the device and the system log"),
    ("not a database", "the file is no SQLite database; check the path, or move the file away"),
    ("malformed", "the file is damaged; restore it from a backup"),
    ("no such table", "a table of the ledger is gone; restore it from a backup"),
    ('relation "', "a table of the ledger is gone; restore it from a backup"),
    ("invalid page", "the database is damaged; restore it from a backup"),
    ("unable to open", "the file cannot be opened; check that its directory exists and that this user may write there"),
    ("readonly", "this user may not write the file; check its owner and mode, and those of its directory"),
    ("authentication failed", "the server refuses user or password; check the URL"),
    ('fatal: database "', "the server has no such database; create it, or change the URL"),
    ("could not connect", "the server does not answer; check the URL and that PostgreSQL runs"),
    ("connection to server", "the server does not answer; check the URL and that PostgreSQL runs"),
    ("closed the connection", "the server went away; whether the last line was written shows when it is back"),
    ("terminating connection", "the server went away; whether the last line was written shows when it is back"),
    ("statement timeout", "the server did not do it in time; look for what holds it up in pg_stat_activity"),
)


class LedgerDatabase:
    """One ledger's database. Threads may share it; a forked child must open its own."""

    def __init__(self, url: str) -> None:
        """Open the database and bring its schema up to this program's; raise LedgerError if that cannot be."""
        parsed = _parse(url)
        self.name = parsed.render_as_string(hide_password=True)
        self._is_sqlite = parsed.get_backend_name() == "sqlite"
        self._file = sqlite_file(url)
        self._inode: tuple[int, int] | None = None
        self._turn = RLock()
        engine = _sqlite_engine(parsed) if self._is_sqlite else _postgres_engine(parsed)
        self._engine = engine
        isolation = {} if self._is_sqlite else {"isolation_level": "REPEATABLE READ"}
        self._reader = engine.execution_options(ledger_begin="BEGIN", **isolation)
        self._writer = engine.execution_options(ledger_begin="BEGIN IMMEDIATE")
        weakref.finalize(self, engine.dispose)  # so that who forgets `close` leaves no connection open
        self._open()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Enter a transaction that sees one state of the database throughout."""
        self._open_anew_if_replaced()
        with self._reading() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Enter a transaction that no other writer runs beside; it commits at the end, or not at all."""
        self._open_anew_if_replaced()
        with self._writing() as connection:
            yield connection

    def close(self) -> None:
        """Give the connections back; the last one to leave an SQLite file folds the WAL into it."""
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._wording_errors(), self._reader.begin() as connection:
            if self._is_sqlite:
                _begin_as_asked(connection)
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._wording_errors(), self._writer.begin() as connection:
            if self._is_sqlite:
                _begin_as_asked(connection)
            else:
                lock_writers(connection)
            yield connection

    @contextmanager
    def _wording_errors(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as exc:
            found = " ".join(str(getattr(exc, "orig", None) or exc).split())
            remedy = next(
                (words for sign, words in _REMEDIES if sign in found.lower()),
                "the ledger cannot be used; look at the database's own log",
            )
            error = LedgerDamaged if shows_damage(found) else LedgerError
            raise error(f"ledger {self.name}: {remedy} ({found})") from exc

    def _open(self) -> None:
        with self._reading() as connection:
            found = schema_version(connection)
        if found != KNOWN_VERSIONS[-1]:
            with self._writing() as connection:  # who comes second finds the version written, and does nothing
                self._upgrade(connection, found=schema_version(connection))
        self._inode = self._inode_now()

    def _open_anew_if_replaced(self) -> None:
        """Leave a file that was deleted or replaced: a process that wrote on in it would be alone with what it knows.

        What is at its path is opened instead, made new if there is nothing; whether that may be acted on is
        `SqlLedger`'s to say.
        """
        if self._file is None or self._inode_now() == self._inode:
            return
        with self._turn:
            if self._inode_now() != self._inode:
                self._engine.dispose()
                self._open()

    def _inode_now(self) -> tuple[int, int] | None:
        try:
            found = None if self._file is None else self._file.stat()
        except OSError:
            return None
        return None if found is None else (found.st_dev, found.st_ino)

    def _upgrade(self, connection: Connection, *, found: str | None) -> None:
        if found == KNOWN_VERSIONS[-1]:
            return
        if found is not None and found not in KNOWN_VERSIONS:
            raise LedgerError(
                f"ledger {self.name} has schema version {found}; this program knows {KNOWN_VERSIONS[0]} to "
                f"{KNOWN_VERSIONS[-1]}. A newer ops_pipelines wrote it: run that one, or open another ledger"
            )
        migrate(connection, KNOWN_VERSIONS[-1])


def migrate(connection: Connection, version: str) -> None:
    """Bring the schema up to a version, in the transaction of `connection`."""
    # alembic costs a third of a second to import, and is needed once in a ledger's life.
    from ops_pipelines.resources.ledger.migrations import upgrade

    upgrade(connection, found=schema_version(connection), version=version)


def lock_writers(connection: Connection) -> None:
    """Keep every other writer of a ledger on PostgreSQL out until the transaction ends."""
    connection.execute(text(f"SET LOCAL lock_timeout = '{_BUSY_TIMEOUT_SECONDS}s'"))
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _WRITER_LOCK})


def insert_many(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Insert rows that all name the same columns; many at once go to PostgreSQL by COPY, in a third of the time."""
    dialect = connection.dialect
    if dialect.name != "postgresql" or len(rows) < _COPIED_FROM_COUNT:
        connection.execute(_insert_into(table), rows)
        return
    names = tuple(rows[0])
    writers = {name: table.c[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names}
    lines = StringIO()
    for row in rows:
        values = ((row[name] if (write := writers[name]) is None else write(row[name])) for name in names)
        lines.write(
            "\t".join("\\N" if value is None else str(value).translate(_COPY_ESCAPES) for value in values) + "\n"
        )
    lines.seek(0)
    statement = f"COPY {table.name} ({', '.join(names)}) FROM STDIN"
    try:
        connection.connection.cursor().copy_expert(statement, lines)
    except dialect.loaded_dbapi.Error as exc:
        raise OperationalError(statement, None, exc) from exc


def known_among(connection: Connection, column: ColumnElement[str], wanted: Iterable[str]) -> set[str]:
    """Return which of `wanted` stand in a column."""
    if connection.dialect.name == "postgresql":
        return set(connection.execute(_equal_to_any(column), {"wanted": list(wanted)}).scalars())
    known: set[str] = set()
    names = iter(wanted)
    while batch := list(islice(names, _LOOKUP_SIZE)):
        known.update(connection.execute(_among(column), {"wanted": batch}).scalars())
    return known


# To build a statement costs as much as to ask it.
@cache
def _insert_into(table: Table) -> Insert:
    return insert(table)


@cache
def _among(column: ColumnElement[str]) -> Select[str]:
    return select(column).where(column.in_(bindparam("wanted", expanding=True)))


@cache
def _equal_to_any(column: ColumnElement[str]) -> Select[str]:
    return select(column).where(column == any_(bindparam("wanted", type_=ARRAY(Text))))


def shown(url: str) -> str:
    """Return the address of a ledger without its password. Raises LedgerError."""
    return _parse(url).render_as_string(hide_password=True)


def has_secret_in_query(url: str) -> bool:
    """Return whether a URL gives a password where `shown` does not hide it; no for what is no URL."""
    try:
        return any(key.lower() in _SECRETS_IN_QUERY for key in make_url(url).query)
    except (ArgumentError, ValueError):
        return False


def postgres_engine(url: str) -> Engine:
    """Return an engine for a ledger on PostgreSQL. Raises LedgerError."""
    return _postgres_engine(_parse(url))


def sqlite_file(url: str) -> Path | None:
    """Return the file of a ledger on SQLite; None for one in memory or on a server. Raises LedgerError."""
    parsed = _parse(url)
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:")
    return Path(str(parsed.database)) if is_file else None


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError) as exc:
        raise LedgerError(
            "the ledger's URL cannot be read; write sqlite:////path/ledger.db or postgresql+psycopg2://user@host/database"
        ) from exc
    if parsed.drivername == "postgresql":
        # SQLAlchemy 2.1 would take psycopg 3, which is not installed.
        return parsed.set(drivername="postgresql+psycopg2")
    if backend not in ("sqlite", "postgresql"):
        raise LedgerError(f"the ledger's URL names {backend}; only sqlite and postgresql are supported")
    return parsed


def _sqlite_engine(url: URL) -> Engine:
    if url.database in (None, "", ":memory:"):
        # One connection for all, so that the memory is one: for tests of a single thread.
        engine = create_engine(url, poolclass=StaticPool)
    else:
        path = Path(str(url.database))
        if not path.parent.is_dir():
            raise LedgerError(f"ledger {url}: the directory {path.parent} does not exist; create it, or change the URL")
        if path.is_dir():
            raise LedgerError(f"ledger {url}: the path is a directory; name a file in it")
        engine = create_engine(url)
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _postgres_engine(url: URL) -> Engine:
    """Return an engine whose connections give up on a server that vanished, and are made again once it is back."""
    settings = {name: setting for name, setting in _CLIENT_SETTINGS.items() if name not in url.query}
    # Updates of many rows go out in pages; psycopg2's own way is one round trip a row.
    return create_engine(url, pool_pre_ping=True, connect_args=settings, executemany_mode="values_plus_batch")


def _prepare_sqlite(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    """Set what SQLite forgets when a connection closes, and WAL, which it keeps."""
    assert isinstance(connection, sqlite3.Connection)
    connection.isolation_level = None  # transactions begin when we say, see `_begin_as_asked`
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_SECONDS * 1000}")
    connection.execute("PRAGMA synchronous = FULL")  # in WAL, NORMAL may lose the last commits when power fails
    _switch_to_wal(connection)


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch the journal mode; try again where another process opens the fresh file too.

    The switch needs the file alone and does not wait for the busy timeout: SQLite fears a deadlock there.
    """
    for remaining in reversed(range(_WAL_TRY_COUNT)):
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or remaining == 0:
                raise
            time.sleep(_WAL_PAUSE_SECONDS)
            continue
        if mode not in ("wal", "memory"):
            raise sqlite3.OperationalError(
                f"journal mode is {mode}, not wal; this file system lacks shared memory: use a local disk"
            )
        return


def _begin_as_asked(connection: Connection) -> None:
    """Begin as the engine says. A writer that begins as a reader fails when two do so at once, whatever the timeout.

    SQLite's own connection is used: as a statement of SQLAlchemy it would cost as much as what is read then, and a
    listener of the engine would be asked for at every statement.
    """
    own = connection.connection.driver_connection
    assert isinstance(own, sqlite3.Connection)
    own.execute(str(connection.get_execution_options()["ledger_begin"]))


def shows_damage(words: str) -> bool:
    """Return whether a database says that what it holds is gone or overwritten; else it may be out of reach only."""
    return any(sign in words.lower() for sign in _SIGNS_OF_DAMAGE)


def schema_version(connection: Connection) -> str | None:
    """Return the version written in the database; None for one that is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
