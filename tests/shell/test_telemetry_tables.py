"""What `telemetry query`, `tables` and `retain` print."""

import csv
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest

from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.lake.query import QueryRefused, QueryResult
from ops_pipelines.resources.lake.retention import RetentionSettings
from ops_pipelines.terminal.edge import AnswerFormat
from ops_pipelines.terminal.telemetry import answer_text, bytes_text, describe, preview_retain, run_query, run_retain
from tests.ports.lake_samples import HOUR, TABLE, many

AT = datetime(2026, 11, 21, 7, 0, 15, tzinfo=UTC)


def answer(*rows: tuple[object, ...], truncated: bool = False) -> QueryResult:
    return QueryResult(columns=("node", "watts"), types=("string", "double"), rows=rows, truncated=truncated)


def test_a_table_shows_null_as_nothing_and_numbers_to_the_right() -> None:
    text = answer_text(answer(("a", 1.5), ("gpu-10", None), (None, 700.0)), AnswerFormat.TABLE)

    assert text.splitlines() == ["node    watts", "a         1.5", "gpu-10", "          700", "3 row(s)"]


def test_a_cut_answer_says_so() -> None:
    assert answer_text(answer(("a", 1.0), truncated=True), AnswerFormat.TABLE).endswith(
        "1 row(s); there are more: see --limit"
    )
    assert json.loads(answer_text(answer(truncated=True), AnswerFormat.JSON))["truncated"] is True


def test_text_of_users_cannot_steer_the_terminal() -> None:
    text = answer_text(answer(("\x1b[31mred\u202e\n[bold]", 1.0)), AnswerFormat.TABLE)

    assert "\x1b" not in text
    assert "\\x1b[31mred\\u202e [bold]" in text


def test_csv_carries_every_text_whole() -> None:
    odd = 'a,"b"\nc é'

    text = answer_text(answer((odd, 0.1), (None, float("nan"))), AnswerFormat.CSV)

    assert list(csv.reader(StringIO(text))) == [["node", "watts"], [odd, "0.1"], ["", "nan"]]


def test_json_is_one_document_without_words_that_json_lacks() -> None:
    row = (
        AT,
        date(2026, 11, 21),
        float("inf"),
        b"\x00\xff",
        [1, None],
        {"a": AT},
        timedelta(minutes=1),
        Decimal("1.5"),
    )
    found = QueryResult(columns=tuple("abcdefgh"), types=("x",) * 8, rows=(row,), truncated=False)

    read = json.loads(answer_text(found, AnswerFormat.JSON))

    at = "2026-11-21T07:00:15Z"
    assert read["rows"] == [[at, "2026-11-21", None, "00ff", [1, None], {"a": at}, 60.0, 1.5]]
    assert "2026-11-21T07:00:15Z" in answer_text(found, AnswerFormat.CSV)
    assert "2026-11-21T07:00:15Z" in answer_text(found, AnswerFormat.TABLE, width=300)


def test_no_rows_are_a_header_and_a_count() -> None:
    assert answer_text(answer(), AnswerFormat.TABLE).splitlines() == ["node  watts", "0 row(s)"]
    assert answer_text(answer(), AnswerFormat.CSV) == "node,watts"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1024**4, "1.0 TiB")]
)
def test_sizes_are_told_in_powers_of_1024(size: int, text: str) -> None:
    assert bytes_text(size) == text


def test_a_query_goes_from_lake_to_text(tmp_path: Path) -> None:
    ParquetLake(tmp_path).add(TABLE, many("ab", (0, 15)))

    text = run_query(tmp_path, f"SELECT node, max(power_watts) AS watts FROM {TABLE} GROUP BY node ORDER BY node")

    assert text.splitlines() == ["node   watts", "a       0.15", "b     100.15", "2 row(s)"]
    with pytest.raises(QueryRefused):
        run_query(tmp_path, "DROP TABLE x")


def test_the_lake_is_described_table_by_table(tmp_path: Path) -> None:
    assert describe(tmp_path) == "the lake is empty"
    lake = ParquetLake(tmp_path)
    lake.add(TABLE, many("ab", (0, 15)))
    lake.write_cycle(TABLE, many("ab", (3600,)), at=HOUR + timedelta(hours=1))
    run_retain(tmp_path, now=HOUR + timedelta(days=2), settings=RetentionSettings())

    header, raw, five, hourly = describe(tmp_path).splitlines()

    assert header.split() == ["table", "rows", "hours", "open", "oldest", "newest", "size"]
    assert raw.split()[:8] == [TABLE, "6", "2", "1", "2026-11-21", "07:00:00", "2026-11-21", "08:00:00"]
    assert five.split()[:3] == [f"{TABLE}_5m", "4", "24"]
    assert hourly.split()[-2:][1] in ("KiB", "B")


def test_a_preview_and_the_deed_tell_the_same_files(tmp_path: Path) -> None:
    ParquetLake(tmp_path).add(TABLE, many("ab", (0, 15)))
    now, settings = HOUR + timedelta(days=9), RetentionSettings(raw_days=7)

    preview = preview_retain(tmp_path, now=now, settings=settings)
    done = run_retain(tmp_path, now=now, settings=settings)

    assert preview.replace("would be ", "") == done
    assert "2 aggregate(s) written" in done
    assert "kept" not in done
    assert f"  {TABLE}/date=2026-11-21/hour=07/hour.parquet" in done


def test_days_that_stay_because_an_hour_was_never_filled_are_told(tmp_path: Path) -> None:
    ParquetLake(tmp_path).write_cycle(TABLE, many("ab", (0, 15)), at=HOUR)
    now, settings = HOUR + timedelta(days=9), RetentionSettings(raw_days=7)

    preview = preview_retain(tmp_path, now=now, settings=settings)
    done = run_retain(tmp_path, now=now, settings=settings)

    told = f"1 day(s) kept: hours that were never filled; materialise them, e.g. {TABLE} 2026-11-21"
    assert preview.splitlines()[-1] == done.splitlines()[-1] == told
