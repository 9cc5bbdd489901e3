"""What the pages of lake tables show: the picture first, and the rows of many hours in few lines."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import dagster as dg

from ops_pipelines.assets.hours import describe_hours
from ops_pipelines.core.sources import Rows
from ops_pipelines.lake.schema import TABLES
from tests.frames.good_hours import HOUR, good_hour


def shown_of(name: str, hours: dict[datetime, Rows]) -> Mapping[str, dg.MetadataValue]:
    return describe_hours(name, hours, {hour: rows.num_rows for hour, rows in hours.items()})


EMPTY: Rows = TABLES["gpu_telemetry"].from_rows([])


def test_one_hour_shows_its_picture_and_its_rows() -> None:
    shown = shown_of("gpu_telemetry", {HOUR: good_hour("gpu_telemetry").rows})

    assert list(shown) == ["picture", "row_count"]
    assert str(shown["picture"].value).startswith("![")
    assert shown["row_count"].value == good_hour("gpu_telemetry").rows.num_rows


def test_hours_in_a_row_with_equally_many_rows_are_one_line() -> None:
    hours = {HOUR + number * timedelta(hours=1): EMPTY for number in (0, 1, 2, 5)}
    hours[HOUR + timedelta(hours=1)] = good_hour("gpu_telemetry").rows

    shown = shown_of("gpu_telemetry", hours)

    assert list(shown) == ["picture", "row_count", "hour_count", "rows_by_hour"]
    lines = shown["rows_by_hour"]
    assert isinstance(lines, dg.TableMetadataValue)
    assert [(line.data["from"], line.data["hours"], line.data["rows_an_hour"]) for line in lines.records] == [
        ("2026-01-01 03:00", 1, 0),
        ("2026-01-01 04:00", 1, good_hour("gpu_telemetry").rows.num_rows),
        ("2026-01-01 05:00", 1, 0),
        ("2026-01-01 08:00", 1, 0),
    ]
    assert shown["hour_count"].value == 4


def test_a_table_that_nobody_draws_shows_no_picture() -> None:
    shown = shown_of("job_steps", {HOUR: TABLES["job_steps"].from_rows([])})

    assert list(shown) == ["row_count"]
