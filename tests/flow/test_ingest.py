"""Files from outside come into the lake once, with their nodes settled, and what is not believed beside them."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ops_pipelines.lake.quantities import WrongKind
from ops_pipelines.observe.imports import Document, FileKind, ingest
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from tests.ports.lake_samples import cells

AT = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
HOUR = AT.replace(minute=0)
LINES = b"gpu001 kernel: NVRM: Xid (PCI:0000:18:00): 79\n\nstranger kernel: EXT4-fs error\n"


@pytest.fixture
def lake(tmp_path: Path) -> ParquetLake:
    return ParquetLake(tmp_path)


def document(body: bytes | None, files: dict[str, bytes] | None = None) -> Document:
    return Document(source="file@0123", at=AT, body=body, files=files)


@pytest.mark.parametrize(
    ("known", "marks"),
    [
        pytest.param(("gpu001",), {("gpu001", False), ("stranger", True)}, id="with a cluster"),
        pytest.param(None, {("gpu001", None), ("stranger", None)}, id="without"),
    ],
)
def test_nodes_are_marked_where_a_cluster_is_known(
    lake: ParquetLake, known: tuple[str, ...] | None, marks: set[tuple[str, bool | None]]
) -> None:
    body = b"".join(f'node_load1{{instance="{node}:9100"}} 1\n'.encode() for node in ("gpu001", "stranger"))

    ingest(document(body), kind=FileKind.NODE_EXPORTER, lake=lake, known_nodes=known, node=None)

    assert set(cells(lake.read_hour("node_telemetry", HOUR), "node", "unknown_node")) == marks


def test_counts_are_of_records_and_tables_of_rows(lake: ParquetLake) -> None:
    parsed = ingest(document(LINES), kind=FileKind.LOG, lake=lake, known_nodes=None, node="gpu009")

    assert (parsed.read, parsed.accepted, parsed.ignored, len(parsed.refused)) == (3, 2, 1, 0)
    assert sum(rows.num_rows for rows in parsed.tables.values()) == 2


def test_a_file_of_another_kind_writes_nothing(lake: ParquetLake, tmp_path: Path) -> None:
    with pytest.raises(WrongKind):
        ingest(document(b"\x7fELF\x02\x01\x01"), kind=FileKind.REDFISH, lake=lake, known_nodes=None, node=None)

    assert list(tmp_path.iterdir()) == []


def test_a_directory_where_one_file_is_expected_is_of_another_kind(lake: ParquetLake) -> None:
    with pytest.raises(WrongKind, match="expected one file"):
        ingest(document(None, {"a": b""}), kind=FileKind.SACCT, lake=lake, known_nodes=None, node=None)


def test_a_file_goes_into_an_open_hour_beside_its_cycles(lake: ParquetLake) -> None:
    body = b'node_load1{instance="gpu001:9100"} 1\n'
    ingest(document(body), kind=FileKind.METRICS, lake=lake, known_nodes=None, node=None)
    live = lake.read_hour("node_telemetry", HOUR)
    other = ParquetLake(lake.root.parent / "other")
    other.write_cycle("node_telemetry", live, at=HOUR)

    late = document(b'node_load1{instance="gpu002:9100"} 2\n')
    ingest(late, kind=FileKind.METRICS, lake=other, known_nodes=None, node=None)

    assert other.open_hours("node_telemetry") == [HOUR]
    assert cells(other.read_hour("node_telemetry", HOUR), "node") == [("gpu001",), ("gpu002",)]
