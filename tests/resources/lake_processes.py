"""Processes that change a lake, and one that is killed at a chosen step of it. Started by `test_lake_crashes`."""

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pyarrow.parquet as pq

from ops_pipelines.core.sources import LakeError
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.lake.retention import RetentionSettings, retain
from tests.ports.lake_samples import HOUR, TABLE, gpu, many, table

NOW = datetime(2026, 12, 24, tzinfo=UTC)
SETTINGS = RetentionSettings(raw_days=7, five_minute_days=90)
STEPS: tuple[tuple[ModuleType | type, str], ...] = (
    *((os, name) for name in ("open", "mkdir", "fsync", "replace", "unlink", "rmdir")),
    (pq.ParquetWriter, "write_table"),
    (pq.ParquetWriter, "close"),
)
"""Where a process may be killed: before each call of these."""
T = TypeVar("T")


def nothing(lake: ParquetLake) -> None:
    """An hour that is not there."""


def open_hour(lake: ParquetLake) -> None:
    """An hour with cycles, and with rows that were added."""
    lake.write_cycle(TABLE, many("ab", [0]), at=HOUR)
    lake.write_cycle(TABLE, many("ab", [15]), at=HOUR + timedelta(seconds=15))
    lake.add(TABLE, table(gpu("c", 30, power_watts=1.0)))


def closed_hour(lake: ParquetLake) -> None:
    """An hour that is closed; its cycles are still there."""
    open_hour(lake)
    lake.close_hour(TABLE, HOUR)


def two_hours(lake: ParquetLake) -> None:
    """Two hours of an old day."""
    closed_hour(lake)
    lake.close_hour(TABLE, HOUR + timedelta(hours=1), filled=many("ab", [3600, 3615]))


def write_cycle(lake: ParquetLake) -> None:
    lake.write_cycle(TABLE, many("xy", [45]), at=HOUR + timedelta(seconds=45))


def add(lake: ParquetLake) -> None:
    lake.add(TABLE, many("xy", [45]))


def close_hour(lake: ParquetLake) -> None:
    lake.close_hour(TABLE, HOUR, filled=many("az", [0, 60]))


def clean(lake: ParquetLake) -> None:
    lake.clean(NOW + timedelta(days=36500))


def retain_days(lake: ParquetLake) -> None:
    retain(lake, now=NOW, settings=SETTINGS)


def work_until_killed(deed: Callable[[ParquetLake], None], root: Path, step: int) -> None:
    """Do the deed and be killed at its `step`th step; exit with 0 if it has fewer."""
    left = step

    def come_nearer() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(call: Callable[..., T]) -> Callable[..., T]:
        def run(*args: object, **kwargs: object) -> T:
            come_nearer()
            return call(*args, **kwargs)

        return run

    for holder, name in STEPS:
        setattr(holder, name, counted(getattr(holder, name)))
    deed(ParquetLake(root))
    os._exit(0)


def add_many(root: Path, writer: int, count: int) -> None:
    """Add rows of one writer, one at a time, by every way there is."""
    lake = ParquetLake(root)
    for number in range(count):
        rows = table(gpu(f"writer-{writer}", number, power_watts=float(number)))
        if number % 2:
            lake.add(TABLE, rows)
        else:
            lake.write_cycle(TABLE, rows, at=HOUR + timedelta(seconds=number), part=str(writer))


def close_many(root: Path, writer: int, count: int) -> None:
    """Close the hour again and again, each time with more rows."""
    lake = ParquetLake(root)
    for number in range(count):
        lake.close_hour(TABLE, HOUR, filled=table(gpu(f"closer-{writer}", number)))


def write_within_limit(root: Path, limit_bytes: int) -> None:
    """Exit with 0 if a file above the limit is reported as what it is."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    try:
        ParquetLake(root).add(TABLE, many("ab", range(0, 3600, 15)))
    except LakeError as problem:
        os._exit(0 if "larger than the process may write" in str(problem) else 2)
    os._exit(1)
