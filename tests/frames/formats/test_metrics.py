import gzip
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.lake.metrics import pages as metrics
from ops_pipelines.lake.metrics import pages as node_exporter
from ops_pipelines.lake.node_names import NodeNames
from ops_pipelines.lake.quantities import Parsed, WrongKind
from ops_pipelines.lake.schema import TABLES

PUBLIC = Path(__file__).parents[4] / "shared" / "data"
AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"


def public(pattern: str) -> Sequence[Path]:
    return sorted(PUBLIC.glob(pattern)) or [PUBLIC / pattern]


def read(path: Path) -> bytes:
    if not path.exists():
        pytest.skip(f"the public files are not there: {path}")
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def parse(text: str, *, node: str | None = None) -> Parsed:
    return metrics.parse_metrics(text.encode(), source="file", at=AT, node=node)


def only_row(parsed: Parsed, table: str) -> dict[str, object]:
    (row,) = parsed.tables[table].to_pylist()
    return {key: value for key, value in row.items() if value is not None}


@pytest.mark.parametrize("path", public("dcgm_scrapes/*.prom"), ids=lambda path: path.name)
def test_every_public_dcgm_scrape_fills_one_gpu(path: Path) -> None:
    parsed = metrics.parse_metrics(read(path), source=path.name, at=AT)

    assert parsed.read == parsed.accepted + len(parsed.refused) + parsed.ignored > 0
    assert parsed.ignored == 0
    assert set(parsed.reasons) <= {"blank_value", "duplicate_series"}
    assert only_row(parsed, "gpu_telemetry")["device"].startswith("GPU-")  # type: ignore[attr-defined]  # a text column


def test_a_dcgm_scrape_without_help_lines_gives_known_columns() -> None:
    parsed = metrics.parse_metrics(read(PUBLIC / "dcgm_scrapes" / "ericsson_ccd.prom"), source="file", at=AT)

    row = only_row(parsed, "gpu_telemetry")
    assert (row["node"], row["pci_address"], row["gpu_index"]) == ("cp-bm14r7", "0000:37:00", 0)
    assert (row["gpu_model"], row["driver_version"], row["time"]) == ("Tesla T4", "590.48.01", AT)
    assert (row["utilisation_ratio"], row["memory_used_bytes"]) == (0.91, 5120 * 1024 * 1024)
    assert (row["sm_clock_hertz"], row["graphics_active_ratio"]) == (660e6, 0.156205)


def test_the_pod_that_holds_the_gpu_is_kept() -> None:
    parsed = metrics.parse_metrics(read(PUBLIC / "dcgm_scrapes" / "linode_lke_rtx4000ada.prom"), source="file", at=AT)

    row = only_row(parsed, "gpu_telemetry")
    assert (row["pod"], row["namespace"], row["container"]) == ("cuda-75454ffb9f-8ljq7", "default", "cuda")


@pytest.mark.parametrize("path", public("nvidia_smi/nvidia_gpu_exporter/*.metrics.gz"), ids=lambda path: path.name)
def test_every_public_scrape_of_nvidia_gpu_exporter_fills_one_gpu(path: Path) -> None:
    parsed = metrics.parse_metrics(read(path), source=path.name, at=AT, node="gpu001")

    assert parsed.read == parsed.accepted + len(parsed.refused) + parsed.ignored
    assert parsed.reasons == {}
    row = only_row(parsed, "gpu_telemetry")
    assert row["node"] == "gpu001"
    assert {"gpu_model", "driver_version", "pci_address", "gpu_index", "temperature_celsius"} <= row.keys()


def test_nvidia_gpu_exporter_gives_the_values_that_it_wrote() -> None:
    name = "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01__load.metrics.gz"

    parsed = metrics.parse_metrics(read(PUBLIC / "nvidia_smi" / "nvidia_gpu_exporter" / name), source=name, at=AT)

    row = only_row(parsed, "gpu_telemetry")
    assert (row["gpu_model"], row["driver_version"]) == ("NVIDIA H100 80GB HBM3", "590.48.01")
    assert (row["power_watts"], row["memory_temperature_celsius"], row["utilisation_ratio"]) == (631.95, 54, 1)
    assert (row["sm_clock_hertz"], row["memory_used_bytes"]) == (1.98e9, 20780679168)


def test_a_public_scrape_of_node_exporter_gives_known_columns() -> None:
    body = read(PUBLIC / "node_exporter" / "e2e-output.txt")

    parsed = node_exporter.parse_node_exporter(body, source="file", at=AT, node="gpu001")

    assert parsed.read == parsed.accepted + len(parsed.refused) + parsed.ignored
    rows = {row["device"]: row for row in parsed.tables["node_telemetry"].to_pylist()}
    assert {row["node"] for row in rows.values()} == {"gpu001"}
    assert rows[""]["boot_time_seconds"] == 1.418183276e9
    written = [line.split() for line in body.decode().splitlines() if line.startswith("node_cpu_seconds_total{")]
    idle = sum(float(value) for name, value in written if 'mode="idle"' in name)
    assert rows[""]["cpu_idle_seconds"] == pytest.approx(idle)
    assert {"fabric_telemetry", "storage_telemetry"} <= parsed.tables.keys()


def test_the_kernels_own_name_is_the_node_where_nobody_says_another() -> None:
    text = 'node_uname_info{nodename="gpu007",release="6.1"} 1\nnode_load1 0.5\n'

    assert only_row(parse(text), "node_telemetry")["node"] == "gpu007"
    assert only_row(parse(text, node="gpu001"), "node_telemetry")["node"] == "gpu001"


def test_with_cluster_yaml_a_known_label_wins_over_the_name_of_a_pod() -> None:
    text = f'DCGM_FI_DEV_GPU_TEMP{{UUID="{UUID}",Hostname="dcgm-exporter-x7k2p",instance="gpu001:9400"}} 41\n'

    known = metrics.parse_metrics(text.encode(), source="file", at=AT, names=NodeNames(["gpu001"]))

    assert only_row(known, "gpu_telemetry")["node"] == "gpu001"
    assert only_row(parse(text), "gpu_telemetry")["node"] == "dcgm-exporter-x7k2p"


def test_a_sample_that_no_label_places_belongs_to_no_node() -> None:
    assert only_row(parse("node_load1 0.5\n"), "node_telemetry")["node"] == ""


def test_every_way_to_be_refused_names_its_line() -> None:
    text = "\n".join(
        [
            "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).",
            f'DCGM_FI_DEV_GPU_TEMP{{UUID="{UUID}"}} 41',
            f'DCGM_FI_DEV_POWER_USAGE{{UUID="{UUID}"}} NaN',
            f'DCGM_FI_DEV_MEMORY_TEMP{{UUID="{UUID}"}} 9223372036854775794',
            f'DCGM_FI_DEV_GPU_UTIL{{UUID="{UUID}"}} 1e3',
            f'DCGM_FI_DEV_XID_ERRORS{{UUID="{UUID}"}} 7.9e1',
            "DCGM_FI_DEV_SM_CLOCK 139",
            f'DCGM_FI_DEV_SM_CLOCK{{UUID="{UUID}" 139',
            "process_start_time_seconds 1.7e9",
            "",
        ]
    )

    parsed = parse(text)

    assert (parsed.read, parsed.accepted, parsed.ignored) == (8, 2, 1)
    lines = {refused.record: refused.reason for refused in parsed.refused}
    assert lines.pop("line 8") in {"bad_labels", "malformed_sample"}
    assert lines == {
        "line 3": "not_finite",
        "line 4": "blank_value",
        "line 5": "out_of_range",
        "line 7": "no_device",
    }


def test_a_file_of_another_kind_is_told_apart() -> None:
    with pytest.raises(WrongKind):
        parse('<?xml version="1.0" ?>\n<nvidia_smi_log>\n</nvidia_smi_log>\n')
    with pytest.raises(WrongKind, match="metrics"):
        node_exporter.parse_node_exporter(f'DCGM_FI_DEV_GPU_TEMP{{UUID="{UUID}"}} 41\n'.encode(), source="file", at=AT)


def test_an_empty_file_has_no_records() -> None:
    assert parse("").read == node_exporter.parse_node_exporter(b"", source="file", at=AT).read == 0


_LINE = st.one_of(
    st.sampled_from(
        [
            f'DCGM_FI_DEV_GPU_TEMP{{UUID="{UUID}"}} 41',
            f'DCGM_FI_DEV_GPU_UTIL{{UUID="{UUID}",Hostname="a"}} 1e2 1795238644583',
            'node_cpu_seconds_total{cpu="0",mode="idle"} 5',
            "# TYPE node_load1 gauge",
            "node_load1 NaN",
        ]
    ).map(str.encode),
    st.binary(max_size=40),
)


@settings(deadline=None)
@given(st.lists(_LINE, max_size=12).map(b"\n".join))
def test_no_bytes_break_it_and_the_counts_close(body: bytes) -> None:
    try:
        parsed = metrics.parse_metrics(body, source="file", at=AT)
    except WrongKind:
        return

    assert parsed.read == parsed.accepted + len(parsed.refused) + parsed.ignored
    for name, table in parsed.tables.items():
        assert table.schema == TABLES[name].arrow()
        table.validate(full=True)


@pytest.mark.parametrize("codec", ["utf-16", "utf-8-sig"])
def test_a_page_that_a_windows_shell_redirected_is_read(codec: str) -> None:
    body = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",Hostname="n1"} 44\r\n'.encode(codec)

    parsed = metrics.parse_metrics(body, source="scrape", at=datetime(2026, 1, 1, tzinfo=UTC))

    assert only_row(parsed, "gpu_telemetry")["temperature_celsius"] == 44.0


def test_a_redirected_page_of_node_exporter_is_read() -> None:
    parsed = node_exporter.parse_node_exporter(
        "node_load1 1.5\n".encode("utf-16"), source="s", at=datetime(2026, 1, 1, tzinfo=UTC)
    )

    assert only_row(parsed, "node_telemetry")["load_1m"] == 1.5


@pytest.mark.parametrize(
    ("sample", "column", "expected"),
    [
        ('dcgm_gpu_utilization{gpu="0",uuid="GPU-1"} 12', "utilisation_ratio", 0.12),
        ('dcgm_total_energy_consumption{gpu="0",uuid="GPU-1"} 5000', "energy_joules", 5.0),
        ('habanalabs_power_mW{UUID="01P0-HL"} 90500', "power_watts", 90.5),
        ('xpum_temperature_celsius{uuid="u",location="mem"} 51', "memory_temperature_celsius", 51.0),
        ('amd_gpu_package_power{gpu_id="0",serial_number="6"} 300', "power_watts", 300.0),
    ],
)
def test_other_vendors_and_the_first_dcgm_exporter_fill_the_same_columns(
    sample: str, column: str, expected: float
) -> None:
    assert only_row(parse(f"{sample}\n"), "gpu_telemetry")[column] == expected
