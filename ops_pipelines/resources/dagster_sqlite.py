"""Dagster's SQLite files, over connections that are kept: named by dagster.yaml under `storage`.

Dagster's own class makes an engine and a connection for each statement, some twenty a tick of a sensor, and with each
engine it compiles its SQL again: 39 ms of CPU a tick, and 9 over kept connections (measured). Files, tables and
statements are Dagster's; who returns to its class finds everything as it was.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dagster._core.storage.runs.sqlite.sqlite_run_storage import SqliteRunStorage
from dagster._core.storage.schedules.sqlite.sqlite_schedule_storage import SqliteScheduleStorage
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage, SqliteStorageConfig
from dagster._serdes import ConfigurableClassData
from sqlalchemy import Connection, Engine, create_engine


class _OverOneEngine:
    """Makes its connections of one engine, where Dagster's class beside it makes an engine for each."""

    def __init__(self, conn_string: str, inst_data: ConfigurableClassData | None = None) -> None:
        """Describe it; a connection is made when the first is needed."""
        self._engine = _engine(conn_string)
        super().__init__(conn_string, inst_data)  # type: ignore[call-arg]  # Dagster's class comes next

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield connection

    def dispose(self) -> None:
        super().dispose()  # type: ignore[misc]  # as above
        self._engine.dispose()


class KeptRunStorage(_OverOneEngine, SqliteRunStorage):
    """Runs, heartbeats of daemons and cursors."""


class KeptScheduleStorage(_OverOneEngine, SqliteScheduleStorage):
    """Ticks and states of sensors and schedules."""


class KeptSqliteStorage(DagsterSqliteStorage):
    """The storage of an instance; the events of each run stay Dagster's own business."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        """Open the files below `base_dir`, made and migrated by Dagster."""
        super().__init__(base_dir, inst_data)
        self._run_storage = KeptRunStorage(self._run_storage._conn_string)
        self._schedule_storage = KeptScheduleStorage(self._schedule_storage._conn_string)

    @classmethod
    def from_config_value(  # type: ignore[override]  # Dagster's own narrows it, too
        cls, inst_data: ConfigurableClassData, config_value: SqliteStorageConfig
    ) -> "KeptSqliteStorage":
        return cls.from_local(config_value["base_dir"], inst_data)


def _engine(url: str) -> Engine:
    # As many connections as there are threads that need one now; those of the usual few are kept.
    return create_engine(url, pool_size=4, max_overflow=-1)
