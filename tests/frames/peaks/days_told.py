"""Rows of daily_peaks for tests: one a day, whole, of one zone."""

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa

from ops_pipelines.capacity.peak_history import PeakHistory, read_history
from ops_pipelines.core.periods import day_begins
from ops_pipelines.lake.schema import TABLES

FIRST = date(2026, 1, 5)
"""A Monday."""
Row = Mapping[str, object]


def day(number: int) -> date:
    return FIRST + timedelta(days=number)


def told(
    name: str,
    peaks: Mapping[int, float],
    *,
    resource: str = "gpus",
    gpu_type: str = "",
    zone: str = "UTC",
    **cells: object,
) -> list[Row]:
    """Days by their number; the mean is half of the peak."""
    return [
        {
            "resource": resource,
            "gpu_type": gpu_type,
            "name": name,
            "time": day_begins(day(number), zone=ZoneInfo(zone)),
            "zone": zone,
            "peak": peak,
            "mean": peak / 2,
            "hour_count": 24,
            "near_peak_hours": 3.0,
            "unit": "1",
            **cells,
        }
        for number, peak in peaks.items()
    ]


def every(days: Iterable[int], peak: float = 16.0) -> dict[int, float]:
    return dict.fromkeys(days, peak)


def table_of(rows: Iterable[Row]) -> pa.Table:
    return TABLES["daily_peaks"].from_rows(rows)


def history(
    rows: Iterable[Row],
    *,
    days: int,
    zone: str = "UTC",
    holidays: Iterable[date] = (),
) -> PeakHistory:
    return read_history(table_of(rows), until=day(days), zone=ZoneInfo(zone), holidays=holidays)
