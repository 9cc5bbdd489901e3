"""`ingest` and `telemetry` on the command line: JSON alone on standard output, exit codes, what is stated of
mistakes."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.terminal.edge import ExitCode
from tests.ports.lake_samples import HOUR, TABLE, cells, many
from tests.shell.desk import CLUSTER_YAML

AT = "2026-11-21T07:30:00"
METRICS = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{Hostname="gpu001",UUID="GPU-a",gpu="0"} 40
DCGM_FI_DEV_GPU_TEMP{Hostname="stranger",UUID="GPU-b",gpu="0"} 41
DCGM_FI_DEV_GPU_TEMP{Hostname="gpu001",UUID="GPU-c",gpu="1"} -5000

a_name_that_nobody_knows 1
this is no sample
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a directory without a cluster.yaml."""
    monkeypatch.delenv("OPS_PIPELINES_CLUSTER", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), input=stdin)


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    file = tmp_path / "scrape.prom"
    file.write_text(METRICS)
    return file


@pytest.fixture
def cluster_file(tmp_path: Path) -> Path:
    directory = tmp_path / "site"
    directory.mkdir()
    (directory / "policy.yaml").write_text("mode: observe\n")
    file = directory / "cluster.yaml"
    file.write_text(CLUSTER_YAML)
    return file


def test_counts_close_and_stand_alone_on_standard_output(metrics: Path) -> None:
    result = run("ingest", "metrics", str(metrics), "--lake", "lake", "--at", AT)

    told = json.loads(result.stdout)
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    assert list(told) == ["read", "accepted", "rejected", "ignored", "tables"]
    assert told["read"] == told["accepted"] + sum(told["rejected"].values()) + told["ignored"] == 5
    assert (told["accepted"], told["ignored"], told["tables"]) == (2, 1, {"gpu_telemetry": 2})
    assert told["rejected"]["out_of_range"] == 1


def test_without_a_cluster_yaml_no_node_is_unknown(metrics: Path, tmp_path: Path) -> None:
    run("ingest", "metrics", str(metrics), "--lake", "lake", "--at", AT)

    rows = ParquetLake(tmp_path / "lake").read_hour(TABLE, HOUR)
    assert cells(rows, "node", "unknown_node") == [("gpu001", None), ("stranger", None)]


def test_with_a_cluster_yaml_a_strange_node_is_kept_and_marked(metrics: Path, cluster_file: Path) -> None:
    result = run("ingest", "metrics", str(metrics), "--cluster", str(cluster_file), "--lake", "lake", "--at", AT)

    rows = ParquetLake(Path("lake").absolute()).read_hour(TABLE, HOUR)
    assert json.loads(result.stdout)["accepted"] == 2
    assert cells(rows, "node", "unknown_node") == [("gpu001", False), ("stranger", True)]


def test_the_lake_of_cluster_yaml_is_used_where_none_is_named(metrics: Path, cluster_file: Path) -> None:
    result = run("ingest", "metrics", str(metrics), "--cluster", str(cluster_file), "--at", AT)

    assert result.exit_code == 0
    assert [path.relative_to(cluster_file.parent).parts[-5] for path in cluster_file.parent.rglob("hour.parquet")] == [
        "lake"
    ] * 2


def test_rejected_records_stand_in_the_lake_with_reason_and_place(metrics: Path, tmp_path: Path) -> None:
    result = run("ingest", "metrics", str(metrics), "--lake", "lake", "--at", AT)

    rows = ParquetLake(tmp_path / "lake").read_hour("rejected_rows", HOUR)
    kept = cells(rows, "record", "reason")
    assert len(kept) == sum(json.loads(result.stdout)["rejected"].values()) == 2
    assert ("line 5", "out_of_range") in kept
    assert all(str(source).startswith("scrape.prom@") for (source,) in cells(rows, "source"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('DCGM_FI_DEV_GPU_TEMP{Hostname="n",UUID="GPU-a",gpu="0"} -5000\n', ExitCode.USAGE),
        ("DCGM_FI_DEV_GPU_TEMP 12 13 14\na_name_that_nobody_knows 1\n", ExitCode.USAGE),
        ('DCGM_FI_DEV_GPU_TEMP 12 13 14\nDCGM_FI_DEV_GPU_TEMP{Hostname="n",UUID="GPU-a",gpu="0"} 40\n', ExitCode.OK),
        ("a_name_that_nobody_knows 1\n", ExitCode.OK),
    ],
)
def test_a_file_of_which_all_is_rejected_is_an_error_and_its_rows_are_kept(
    metrics: Path, tmp_path: Path, text: str, code: ExitCode
) -> None:
    metrics.write_text(text)

    result = run("ingest", "metrics", str(metrics), "--lake", "lake", "--at", AT)

    assert result.exit_code == code
    told = json.loads(result.stdout)
    kept = ParquetLake(tmp_path / "lake").read_hour("rejected_rows", HOUR)
    assert kept.num_rows == sum(told["rejected"].values())
    assert ("nothing was taken in" in result.stderr) is (code is ExitCode.USAGE)


def test_the_same_file_taken_in_twice_changes_nothing(metrics: Path, tmp_path: Path) -> None:
    first = run("ingest", "metrics", str(metrics), "--lake", "lake", "--at", AT)
    before = {path: path.read_bytes() for path in (tmp_path / "lake").rglob("*.parquet")}
    metrics.with_suffix(".gz").write_bytes(gzip.compress(metrics.read_bytes()))

    second = run("ingest", "metrics", str(metrics), "--lake", "lake", "--at", AT)

    assert first.stdout == second.stdout
    assert {path: path.read_bytes() for path in (tmp_path / "lake").rglob("*.parquet")} == before


def test_a_gzipped_file_and_standard_input_count_the_same(metrics: Path) -> None:
    packed = metrics.with_suffix(".gz")
    packed.write_bytes(gzip.compress(metrics.read_bytes()))

    plain = run("ingest", "metrics", str(metrics), "--lake", "a", "--at", AT)
    gzipped = run("ingest", "metrics", str(packed), "--lake", "b", "--at", AT)
    piped = run("ingest", "metrics", "-", "--lake", "c", "--at", AT, stdin=metrics.read_bytes())

    assert plain.stdout == gzipped.stdout == piped.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("ingest", "redfish", "scrape.prom", "--lake", "lake"), "scrape.prom", id="another kind"),
        pytest.param(("ingest", "metrics", "missing.prom", "--lake", "lake"), "missing.prom", id="no such file"),
        pytest.param(("ingest", "metrics", "scrape.prom"), "give --lake DIR", id="no lake"),
        pytest.param(("ingest", "horoscope", "scrape.prom", "--lake", "lake"), "horoscope", id="no such kind"),
        pytest.param(("telemetry", "query", "SELECT 1"), "give --lake DIR", id="no lake to ask"),
        pytest.param(("telemetry", "query", "SELEKT 1", "--lake", "lake"), "SELEKT", id="no SQL"),
        pytest.param(("telemetry", "query", "DROP TABLE x", "--lake", "lake"), "", id="not a question"),
        pytest.param(
            ("telemetry", "query", "SELECT no_such FROM gpu_telemetry", "--lake", "lake"), "no_such", id="no column"
        ),
    ],
)
def test_a_mistake_is_told_on_standard_error_and_by_the_exit_code(
    metrics: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    ParquetLake(tmp_path / "lake").add(TABLE, many("ab", (0, 15)))
    before = sorted((tmp_path / "lake").rglob("*"))

    result = run(*arguments)

    assert result.exit_code == ExitCode.USAGE
    assert result.stdout == ""
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted((tmp_path / "lake").rglob("*")) == before


def test_a_lake_that_cannot_be_written_is_told(metrics: Path, tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file where the lake should be")

    result = run("ingest", "metrics", str(metrics), "--lake", "lake", "--at", AT)

    assert result.exit_code not in (0, ExitCode.USAGE)
    assert result.stdout == ""
    assert "a file is where a directory must be" in result.stderr


def test_a_question_is_answered_as_one_json_document(tmp_path: Path) -> None:
    ParquetLake(tmp_path / "lake").add(TABLE, many("ab", (0, 15)))

    result = run(
        "telemetry", "query", f"SELECT node, count(*) AS n FROM {TABLE} GROUP BY node ORDER BY node", "--lake", "lake",
        "--format", "json",
    )  # fmt: skip

    assert result.exit_code == 0
    assert json.loads(result.stdout)["rows"] == [["a", 2], ["b", 2]]


def test_date_and_hour_are_of_the_kinds_that_the_help_names(tmp_path: Path) -> None:
    ParquetLake(tmp_path / "lake").add(TABLE, many("ab", (0, 15)))
    text = f"SELECT DISTINCT typeof(date), typeof(hour), hour + 1 FROM {TABLE} WHERE date = '{HOUR:%Y-%m-%d}'"

    result = run("telemetry", "query", text, "--lake", "lake", "--format", "json")
    told = run("telemetry", "query", "--help").stdout

    assert json.loads(result.stdout)["rows"] == [["DATE", "BIGINT", HOUR.hour + 1]]
    assert "`date` (a date, as '2026-11-21') and `hour` (a whole number, as 7)" in " ".join(told.split())


def test_the_tables_of_the_lake_are_listed(tmp_path: Path) -> None:
    ParquetLake(tmp_path / "lake").add(TABLE, many("ab", (0, 15)))

    result = run("telemetry", "tables", "--lake", "lake")

    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[:3] == [TABLE, "4", "1"]


def test_a_dry_run_of_retention_tells_and_deletes_nothing(tmp_path: Path) -> None:
    long_ago = datetime(2020, 1, 1, 7, tzinfo=UTC)
    lake = ParquetLake(tmp_path / "lake")
    rows = many("ab", (0, 15))
    at = rows.schema.get_field_index("time")
    old = rows.set_column(at, "time", _moved(rows.column("time"), long_ago))
    lake.add(TABLE, old)
    before = {path: path.read_bytes() for path in (tmp_path / "lake").rglob("*.parquet")}

    preview = run("telemetry", "retain", "--lake", "lake", "--raw-days", "7", "--dry-run")
    untouched = {path: path.read_bytes() for path in (tmp_path / "lake").rglob("*.parquet")}
    done = run("telemetry", "retain", "--lake", "lake", "--raw-days", "7")

    assert preview.exit_code == done.exit_code == 0
    assert "would be" in preview.stdout
    assert untouched == before
    assert lake.read_hour(TABLE, long_ago).num_rows == 0


def _moved(times: object, hour: datetime) -> object:
    import pyarrow as pa

    assert isinstance(times, pa.ChunkedArray)
    return pa.chunked_array([[hour + (at - HOUR) for at in times.to_pylist()]], times.type)
