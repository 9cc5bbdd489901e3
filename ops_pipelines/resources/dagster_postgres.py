"""Dagster's PostgreSQL tables, over connections that are kept: named by dagster.postgres.yaml under `storage`.

Dagster's own classes open a connection for each statement, and look at each opening whether their tables are there; the
code server opens a storage for each tick. A busy lab's PostgreSQL spent 21 s of CPU a minute on being connected to
(measured). Here the storages of a process share one engine, and its tables are looked at once. Tables and statements
are Dagster's; who returns to its class finds everything as it was.
"""

import os
from functools import lru_cache

from dagster._core.storage.config import PostgresStorageConfig
from dagster._serdes import ConfigurableClassData
from dagster_postgres.storage import DagsterPostgresStorage
from dagster_postgres.utils import create_pg_engine, get_token_provider_from_config, pg_url_from_config
from sqlalchemy import Engine

_KEPT_COUNT = 4
"""Connections of the usual few threads of a process; what a rush needs beyond is opened, and closed after it."""


class KeptPostgresStorage(DagsterPostgresStorage):
    """The storage of an instance."""

    @classmethod
    def from_config_value(  # type: ignore[override]  # Dagster's own narrows it, too
        cls, inst_data: ConfigurableClassData | None, config_value: PostgresStorageConfig
    ) -> "KeptPostgresStorage":
        """Open the storage, and make its tables where this process has not yet seen that they are there."""
        url = pg_url_from_config(config_value)
        token_provider = get_token_provider_from_config(config_value)
        may_make_tables = bool(config_value.get("should_autocreate_tables", True))
        storage = cls(
            postgres_url=url,
            should_autocreate_tables=may_make_tables and url not in _WITH_TABLES,
            inst_data=inst_data,
            token_provider=token_provider,
        )
        _WITH_TABLES.add(url)
        # A token lasts minutes and a pool longer: there each engine keeps its own way to connect.
        if token_provider is None:
            for part in (storage._run_storage, storage._event_log_storage, storage._schedule_storage):
                part._engine = _engine(url, os.getpid())
        return storage


_WITH_TABLES: set[str] = set()


@lru_cache(maxsize=8)
def _engine(url: str, process: int) -> Engine:
    """Return the engine of this process: a forked one must not talk over its parent's connections."""
    return create_pg_engine(
        url,
        isolation_level="AUTOCOMMIT",
        pool_size=_KEPT_COUNT,
        max_overflow=-1,
        pool_pre_ping=True,  # After a restart of the server the first statement finds a new connection.
        pool_recycle=3600,
    )
