"""catalogue/metrics.csv: what the grammar cannot say. Names are held against recorded scrapes where these are there."""

import csv
import math
import os
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ops_pipelines.lake.quantities import Kind, Quantity, SeriesName, read_quantities
from ops_pipelines.lake.schema import TELEMETRY_TABLES

SHARED = Path(__file__).parents[2].parent / "shared"
DCGM_FIELDS = SHARED / "facts" / "dcgm_fields.csv"
SCRAPES = SHARED / "data" / "dcgm_scrapes"
NODE_EXPORTER = SHARED / "data" / "node_exporter" / "e2e-output.txt"

UNITS_BY_SUFFIX = {
    "_seconds": {"s"},
    "_celsius": {"Cel"},
    "_watts": {"W"},
    "_bytes": {"B"},
    "_joules": {"J"},
    "_hertz": {"Hz"},
    "_volts": {"V"},
    "_count": {"1"},
    "_ratio": {"ratio", "1"},
    "_bytes_per_second": {"B/s"},
    "_bits_per_second": {"bit/s"},
    "_revolutions_per_minute": {"1/min"},
    "tokens_per_second": {"1/s"},
}
FED_BY_FILES = {"fabric_telemetry", "facility_telemetry", "storage_telemetry", "gpu_telemetry"}
"""perfquery, Redfish, smartctl and nvidia-smi give columns that no exporter has a series for."""
COUNTER_SUFFIXES = ("_count", "_seconds", "_bytes", "_joules")
NOT_IN_THE_CATALOGUE = {
    "DCGM_EXP_P2P_STATUS": "one series a pair of GPUs: no cell of a table with one row a GPU",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": "one field a link: the total is in the catalogue",
    "DCGM_FI_DEV_NVLINK_GET_STATE": "one value a link: `nvidia-smi nvlink` gives them",
    "DCGM_FI_DRIVER_VERSION": "a label",
}


def those_that_break(rule: Callable[[Quantity], bool]) -> list[str]:
    """Return the columns for which `rule` does not hold."""
    return [f"{each.table}.{each.column}" for each in read_quantities() if not rule(each)]


def series_names() -> dict[str, list[Quantity]]:
    found = defaultdict(list)
    for quantity in read_quantities():
        for series in quantity.series:
            found[series.name].append(quantity)
    return found


def suffix_of(column: str) -> str | None:
    """Return the longest suffix that says a unit."""
    return max((suffix for suffix in UNITS_BY_SUFFIX if column.endswith(suffix)), key=len, default=None)


def test_every_layer_has_quantities() -> None:
    counts = Counter(quantity.table for quantity in read_quantities())

    assert counts.keys() == set(TELEMETRY_TABLES)
    assert min(counts.values()) >= 20


def test_no_column_stands_twice() -> None:
    columns = Counter((quantity.table, quantity.column) for quantity in read_quantities())

    assert [column for column, count in columns.items() if count > 1] == []


def test_a_series_with_the_same_labels_means_one_column_only() -> None:
    meant: dict[tuple[str, tuple[tuple[str, str], ...]], set[str]] = defaultdict(set)
    for quantity in read_quantities():
        for series in [*quantity.series, *([quantity.nvml] if quantity.nvml else [])]:
            meant[series.name, tuple(sorted(series.labels.items()))].add(f"{quantity.table}.{quantity.column}")

    assert {name: columns for name, columns in meant.items() if len(columns) > 1} == {}


def test_a_series_is_asked_for_with_labels_everywhere_or_nowhere() -> None:
    labelled: dict[str, set[bool]] = defaultdict(set)
    for quantity in read_quantities():
        for series in quantity.series:
            labelled[series.name].add(bool(series.labels))

    assert [name for name, sorts in labelled.items() if len(sorts) > 1] == []


def test_a_quantity_says_what_it_means_and_can_be() -> None:
    assert those_that_break(lambda each: bool(each.meaning) and each.low < each.high) == []


def test_a_quantity_has_a_source_or_is_read_by_a_file_format() -> None:
    def has_source(quantity: Quantity) -> bool:
        return bool(quantity.series or quantity.promql or quantity.nvml) or quantity.table in FED_BY_FILES

    assert those_that_break(has_source) == []


def test_what_is_well_is_possible_and_says_who_says_so() -> None:
    def is_sound(quantity: Quantity) -> bool:
        bounds = [bound for bound in (quantity.healthy_low, quantity.healthy_high) if bound is not None]
        is_possible = all(quantity.low <= bound <= quantity.high for bound in bounds) and bounds == sorted(bounds)
        return is_possible and bool(bounds) is bool(quantity.range_source)

    assert those_that_break(is_sound) == []


def test_the_name_of_a_column_says_its_unit() -> None:
    def is_named(quantity: Quantity) -> bool:
        suffix = suffix_of(quantity.column)
        # Only a state or a bare number names no unit.
        return quantity.unit in ({"1"} if suffix is None else UNITS_BY_SUFFIX[suffix])

    assert those_that_break(is_named) == []
    assert those_that_break(lambda each: each.unit != "ratio" or each.column.endswith("_ratio")) == []


def test_a_counter_is_named_for_what_it_counts_and_starts_at_nothing() -> None:
    def is_named(quantity: Quantity) -> bool:
        return quantity.kind is not Kind.COUNTER or (
            quantity.column.endswith(COUNTER_SUFFIXES)
            and not quantity.column.endswith("_per_second")
            and quantity.low == 0
        )

    assert those_that_break(is_named) == []


def test_a_state_is_a_whole_number() -> None:
    def is_whole(quantity: Quantity) -> bool:
        return quantity.kind is not Kind.STATE or quantity.is_whole or quantity.column == "boot_time_seconds"

    assert those_that_break(is_whole) == []


def test_factors_can_be_undone() -> None:
    def can_be_undone(quantity: Quantity) -> bool:
        return all(series.factor > 0 and math.isfinite(series.factor) for series in quantity.series)

    assert those_that_break(can_be_undone) == []


def test_every_query_is_promql(tmp_path: Path) -> None:
    queries = {f"{each.table}:{each.column}": each.promql for each in read_quantities() if each.promql}
    for query in queries.values():
        assert all(query.count(opening) == query.count(closing) for opening, closing in ("()", "[]", "{}"))
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1":
            pytest.fail("promtool is required here; install it (Debian: prometheus)")
        pytest.skip("promtool is not installed")
    rules = [{"record": record, "expr": query} for record, query in queries.items()]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "catalogue", "rules": rules}]}), encoding="utf-8")

    checked = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, timeout=60)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(queries)} rules found" in checked.stdout


@pytest.mark.parametrize("quantile", ["p50", "p95", "p99"])
def test_latencies_of_three_inference_servers_are_asked_for(quantile: str) -> None:
    (quantity,) = [each for each in read_quantities() if each.column == f"latency_{quantile}_seconds"]

    assert "vllm:e2e_request_latency_seconds_bucket" in quantity.promql
    assert "tgi_request_duration_bucket" in quantity.promql
    assert (
        SeriesName(
            name="nv_inference_request_summary_us",
            factor=1e-6,
            labels={"quantile": {"p50": "0.5", "p95": "0.95", "p99": "0.99"}[quantile]},
        )
        in quantity.series
    )


# -- against what exporters really wrote --


def dcgm_fields() -> list[dict[str, str]]:
    if not DCGM_FIELDS.is_file():
        pytest.skip(f"no list of fields in {DCGM_FIELDS}")
    with DCGM_FIELDS.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if re.fullmatch(r"DCGM_\w+", row["metric"])]


def test_every_dcgm_field_is_known_by_its_old_and_its_new_name() -> None:
    known = series_names()
    fields = [row for row in dcgm_fields() if "label" not in row["enabled"]]

    missing = {
        name
        for row in fields
        for name in (row["metric"], row["new_name_in_DCGM_HEAD"])
        if name and name not in known and row["metric"] not in NOT_IN_THE_CATALOGUE
    }
    assert missing == set()
    assert len(fields) > 60


def test_old_and_new_name_of_a_dcgm_field_are_one_quantity() -> None:
    known = series_names()

    for row in dcgm_fields():
        old, new = row["metric"], row["new_name_in_DCGM_HEAD"]
        if new in known and old in known:
            assert known[old] == known[new], row["metric"]


def test_every_series_of_the_dcgm_scrapes_is_known() -> None:
    files = sorted(SCRAPES.glob("*.prom"))
    if not files:
        pytest.skip(f"no recorded scrapes in {SCRAPES}")
    known = series_names()

    found = {name for file in files for name in re.findall(r"^(\w+)\{", file.read_text(encoding="utf-8"), re.M)}

    assert found - known.keys() == set()
    assert len(found) >= 25


def test_names_of_node_exporter_are_those_that_it_writes() -> None:
    if not NODE_EXPORTER.is_file():
        pytest.skip(f"no recorded scrape in {NODE_EXPORTER}")
    written = set(re.findall(r"^# TYPE (\w+)", NODE_EXPORTER.read_text(encoding="utf-8"), re.M))
    # Ports and ethtool statistics differ by driver, and the recording lacks clock and file systems.
    elsewhere = ("node_infiniband_", "node_ethtool_", "node_timex_", "node_filesystem_")

    named = {name for name in series_names() if name.startswith("node_") and not name.startswith(elsewhere)}

    assert named - written == {"node_memory_MemAvailable_bytes"}
