"""SQL over the lake: what it sees, which files it opens, and what it may not do."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from ops_pipelines.core.sources import LakeError
from ops_pipelines.lake import hours
from ops_pipelines.lake.hours import AGGREGATES
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake import query as querying
from ops_pipelines.resources.lake.files import day_file, write_table_atomically
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.lake.query import QueryRefused, query, scan, view_names
from tests.ports.lake_samples import HOUR, TABLE, gpu, many, table

NEXT_HOUR = HOUR + timedelta(hours=1)


@pytest.fixture(params=["path", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> ParquetLake:
    return ParquetLake(tmp_path / "lake" if request.param == "path" else f"memory://{uuid4().hex}/deep")


def ask(lake: ParquetLake, sql: str) -> list[tuple[object, ...]]:
    return list(query(lake.root, sql).rows)


# -- what is seen --


def test_closed_and_open_hours_are_one_view_with_date_and_hour(lake: ParquetLake) -> None:
    lake.close_hour(TABLE, HOUR, filled=many("ab", (0, 15)))
    lake.write_cycle(TABLE, table(gpu("a", 3600, power_watts=1.0)), at=NEXT_HOUR)

    found = ask(lake, f"SELECT date, hour, count(*), max(power_watts) FROM {TABLE} GROUP BY ALL ORDER BY ALL")

    assert found == [(date(2026, 11, 21), 7, 4, 100.15), (date(2026, 11, 21), 8, 1, 1.0)]


def test_cycles_of_an_open_hour_that_share_rows_are_merged(lake: ParquetLake) -> None:
    lake.write_cycle(TABLE, table(gpu("a", 0, power_watts=1.0)), at=HOUR, part="prometheus")
    lake.write_cycle(TABLE, table(gpu("a", 0, gpu_model="H100")), at=HOUR, part="nvml")

    assert ask(lake, f"SELECT node, power_watts, gpu_model, hour FROM {TABLE}") == [("a", 1.0, "H100", 7)]


def test_cycles_beside_a_closed_hour_and_temporaries_are_not_counted(tmp_path: Path) -> None:
    lake = ParquetLake(tmp_path)
    lake.write_cycle(TABLE, table(gpu("a", 0)), at=HOUR)
    lake.close_hour(TABLE, HOUR)
    (Path(lake.path_of_hour(TABLE, HOUR).path).parent / ".tmp-1-ab-hour.parquet").write_bytes(b"half")

    assert ask(lake, f"SELECT count(*) FROM {TABLE}") == [(1,)]


def test_an_empty_table_has_its_columns_and_no_rows(tmp_path: Path) -> None:
    lake = ParquetLake(tmp_path / "lake")
    for name in (*TABLES, *AGGREGATES, "gpu_latest", "node_latest"):
        answer = query(lake.root, f"SELECT * FROM {name}")
        assert answer.rows == ()
        assert {"node", "source", "job", "account", "team", "resource"} & set(answer.columns), name
    assert query(lake.root, f"SELECT * FROM {TABLE}").columns == (*TABLES[TABLE].arrow().names, "date", "hour")


def test_columns_that_an_old_file_lacks_are_null(lake: ParquetLake) -> None:
    lake.close_hour(TABLE, HOUR, filled=table(gpu("a", 0, power_watts=1.0)))
    old = lake.read(TABLE, start=HOUR, end=NEXT_HOUR, columns=["node", "device", "time"])
    write_table_atomically(lake.path_of_hour(TABLE, HOUR), old)
    lake.close_hour(TABLE, NEXT_HOUR, filled=table(gpu("b", 3600, power_watts=2.0, gpu_model="H100")))

    found = ask(lake, f"SELECT node, power_watts, gpu_model FROM {TABLE} ORDER BY node")

    assert found == [("a", None, None), ("b", 2.0, "H100")]


def test_aggregates_are_tables_of_their_own(lake: ParquetLake) -> None:
    rows = AGGREGATES["gpu_telemetry_1h"]
    schema = hours.layout_of(rows.name).schema
    values = {"node": "a", "device": "GPU-0", "time": HOUR, "sample_count": 240, "power_watts_max": 700.0}
    write_table_atomically(day_file(lake.root, rows.name, HOUR.date()), pa.Table.from_pylist([values], schema=schema))

    found = ask(lake, "SELECT node, time, date, sample_count, power_watts_max FROM gpu_telemetry_1h")

    assert found == [("a", HOUR, date(2026, 11, 21), 240, 700.0)]


def test_the_latest_row_of_each_gpu(lake: ParquetLake) -> None:
    lake.close_hour(TABLE, HOUR, filled=table(gpu("a", 3585, power_watts=1.0), gpu("gone", 0), gpu("late", 3500)))
    lake.write_cycle(TABLE, table(gpu("a", 3600, power_watts=2.0)), at=NEXT_HOUR)

    assert ask(lake, "SELECT node, power_watts FROM gpu_latest ORDER BY node") == [("a", 2.0), ("late", None)]


def test_what_columns_mean_can_be_asked(lake: ParquetLake) -> None:
    sql = "SELECT unit FROM lake_columns WHERE table_name = 'gpu_telemetry' AND column_name = 'power_watts'"

    assert ask(lake, sql) == [("W",)]


def test_times_are_utc_and_intervals_are_spans(lake: ParquetLake) -> None:
    lake.close_hour(TABLE, HOUR, filled=many("a", (0, 15)))

    answer = query(lake.root, f"SELECT min(time), max(time) - min(time), interval 2 months FROM {TABLE}")

    ((first, span, months),) = answer.rows
    assert (first, span, months) == (HOUR, timedelta(seconds=15), "2 months 0:00:00")
    assert isinstance(first, datetime)
    assert first.utcoffset() == timedelta()


# -- which files are opened --


@pytest.mark.parametrize(
    "condition",
    [
        "time >= TIMESTAMPTZ '2026-11-21 09:00:00+00'",
        "time >= '2026-11-21 09:00:00'",
        "time BETWEEN '2026-11-21 09:10:00+00' AND '2026-11-21 09:20:00+00'",
        "time >= TIMESTAMPTZ '2026-11-21 10:00:00+00' - INTERVAL 1 HOUR",
        "date = '2026-11-21' AND hour = 9",
        "date >= '2026-11-21' AND hour > 8",
        "time > now() + INTERVAL 1 HOUR",
    ],
)
def test_a_condition_on_time_or_date_opens_the_files_of_its_hours_only(tmp_path: Path, condition: str) -> None:
    lake = ParquetLake(tmp_path)
    for number in range(2):
        hour = HOUR + timedelta(hours=number)
        lake.close_hour(TABLE, hour, filled=table(gpu("a", 3600.0 * number)))
        lake.path_of_hour(TABLE, hour).write_bytes(b"whoever opens this sees damage")
    lake.close_hour(TABLE, HOUR + timedelta(hours=2), filled=table(gpu("a", 7800)))

    found = ask(lake, f"SELECT node, time FROM {TABLE} WHERE {condition}")

    assert found == ([] if "now()" in condition else [("a", HOUR + timedelta(seconds=7800))])
    with pytest.raises(LakeError, match=r"hour=07/hour\.parquet"):
        ask(lake, f"SELECT node FROM {TABLE}")


def test_tables_that_are_not_named_are_not_listed(tmp_path: Path) -> None:
    lake = ParquetLake(tmp_path)
    lake.add(TABLE, table(gpu("a", 0)))
    (tmp_path / "node_telemetry").write_text("a file where a directory must be")

    assert ask(lake, f"SELECT count(*) FROM {TABLE}") == [(1,)]
    with pytest.raises(LakeError):
        ask(lake, "SELECT count(*) FROM Node_Telemetry")


# -- what is refused --


@pytest.mark.parametrize(
    "sql",
    [
        "DROP VIEW gpu_telemetry",
        "CREATE TABLE x (i INTEGER)",
        "INSERT INTO gpu_telemetry VALUES (1)",
        "DELETE FROM gpu_telemetry",
        "COPY (SELECT 1) TO '{there}'",
        "EXPORT DATABASE '{there}'",
        "ATTACH '{there}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '64GB'",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "CHECKPOINT",
        "BEGIN",
        "USE memory",
    ],
)
def test_only_reading_statements_are_run(tmp_path: Path, sql: str) -> None:
    there = tmp_path / "there"

    with pytest.raises(QueryRefused, match="the lake is read only; expected a SELECT"):
        query(tmp_path, sql.format(there=there))

    assert not there.exists()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{here}')",
        "SELECT * FROM read_text('{here}')",
        "SELECT * FROM read_blob('{here}')",
        "SELECT * FROM read_parquet('{here}')",
        "SELECT * FROM glob('{folder}/*')",
        "SELECT * FROM '{here}'",
        "SELECT * FROM parquet_metadata('{here}')",
        "SELECT * FROM query('COPY (SELECT 1) TO ''{folder}/there''')",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/there'",
        "SELECT * FROM duckdb_extensions()",
        "SELECT getenv('HOME')",
        "SELECT * FROM http_get('http://127.0.0.1/')",
        "SELECT * FROM TABLES",
        "SELECT * FROM query",
    ],
)
def test_no_query_reaches_files_settings_or_variables_of_the_program(tmp_path: Path, sql: str) -> None:
    here = tmp_path / "secret.csv"
    here.write_text("a,b\n1,secret\n")

    with pytest.raises(QueryRefused) as refused:
        query(tmp_path, sql.format(here=here, folder=tmp_path))

    assert "1,secret" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


@pytest.mark.parametrize(("sql", "found"), [("", 0), ("  -- nothing", 0), ("SELECT 1; SELECT 2", 2), ("SELECT 1;;", 1)])
def test_one_statement_is_run(tmp_path: Path, sql: str, found: int) -> None:
    if found == 1:
        assert query(tmp_path, sql).rows == ((1,),)
        return
    with pytest.raises(QueryRefused, match=f"found {found} statements, expected one"):
        query(tmp_path, sql)


def test_a_wrong_word_is_told_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(QueryRefused, match='near "SELEC"'):
        query(tmp_path, "SELEC 1")
    with pytest.raises(QueryRefused, match=r"gpus does not exist(.|\n)*there are gpu_telemetry, .*gpu_telemetry_1h"):
        query(tmp_path, "SELECT * FROM gpus")
    with pytest.raises(QueryRefused, match=r'"watts" not found(.|\n)*gpu_telemetry has node, .*power_watts'):
        query(tmp_path, "SELECT watts FROM gpu_telemetry")
    with pytest.raises(QueryRefused, match="Could not convert string 'x'"):
        query(tmp_path, "SELECT CAST('x' AS INTEGER)")


def test_a_query_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    endless = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 8"

    with pytest.raises(QueryRefused, match=r"longer than 0\.05 s"):
        query(tmp_path, endless, timeout_seconds=0.05)


def test_a_query_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QueryRefused, match="needs more memory"):
        query(tmp_path, "SELECT list(range) FROM range(100000000)", memory_bytes=64 * 1024**2)

    assert list(tmp_path.iterdir()) == []


# -- how much is returned --


@pytest.mark.parametrize(("limit", "rows", "truncated"), [(3, 3, True), (4, 4, False), (5, 4, False), (None, 4, False)])
def test_an_answer_says_whether_there_is_more(tmp_path: Path, limit: int | None, rows: int, truncated: bool) -> None:
    answer = query(tmp_path, "SELECT range AS n, 'x' AS t FROM range(4)", limit=limit)

    assert (len(answer.rows), answer.truncated) == (rows, truncated)
    assert (answer.columns, answer.types) == (("n", "t"), ("int64", "string"))


def test_what_can_be_named_can_be_shown(tmp_path: Path) -> None:
    shown = {row[0] for row in query(tmp_path, "SHOW TABLES").rows}

    assert shown == set(view_names())
    described = query(tmp_path, "DESCRIBE gpu_latest").rows
    assert ("node", "VARCHAR") in {row[:2] for row in described}


def test_the_hours_are_in_utc_whatever_the_machine_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    lake = ParquetLake(tmp_path)
    lake.add(TABLE, table(gpu("a", 0)))

    assert ask(lake, f"SELECT hour, extract('hour' FROM time) FROM {TABLE}") == [(7, 7)]
    assert HOUR.tzinfo is UTC


def test_cycles_that_are_folded_between_listing_and_reading_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = ParquetLake(tmp_path / "lake")
    for number in range(4):
        at = HOUR + timedelta(seconds=15 * number)
        lake.write_cycle(TABLE, table(gpu("a", 15.0 * number)), at=at)
    listed = []

    def list_then_fold(lake: ParquetLake, name: str) -> object:
        found = scan(lake, name)
        if not listed:
            listed.append(name)
            lake.fold(HOUR + timedelta(minutes=50))
        return found

    monkeypatch.setattr(querying, "scan", list_then_fold)

    assert query(tmp_path / "lake", f"SELECT count(*) FROM {TABLE}").rows == ((4,),)
    assert listed == [TABLE]
