"""A site's suites are read as they stand; what cannot be read says so, and nothing raises."""

import json
from pathlib import Path

import pytest

from ops_pipelines.lake.expectations import expectations_of, expected_at_site, find_suite_faults
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.catalogue_files import read_suite_files

COOL = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "temperature_celsius", "max_value": 90}}


def write(directory: Path, *expectations: object, table: str = "gpu_telemetry") -> None:
    directory.mkdir(exist_ok=True)
    text = json.dumps({"name": table, "expectations": list(expectations)})
    (directory / f"{table}.json").write_text(text, encoding="utf-8")


def fault_of(directory: Path) -> str:
    (fault,) = find_suite_faults(read_suite_files(directory))
    return fault


def test_no_directory_is_no_suite(tmp_path: Path) -> None:
    assert read_suite_files(tmp_path / "expectations") == ()


@pytest.mark.parametrize("table", TABLES)
def test_a_suite_adds_to_its_table_and_to_no_other(table: str, tmp_path: Path) -> None:
    write(tmp_path, COOL)

    expected, troubles = expected_at_site(read_suite_files(tmp_path), table=table)

    added = ["temperature_celsius.values_to_be_between"] if table == "gpu_telemetry" else []
    assert troubles == ()
    assert [each.name for each in expected] == [*(each.name for each in expectations_of(table)), *added]


def test_the_example_of_the_docs_can_be_used(tmp_path: Path) -> None:
    text = Path("docs/TELEMETRY.md").read_text(encoding="utf-8")
    (tmp_path / "gpu_telemetry.json").write_text(text.split("```json\n")[1].split("```")[0], encoding="utf-8")

    expected, troubles = expected_at_site(read_suite_files(tmp_path), table="gpu_telemetry")

    assert troubles == ()
    assert [each.name for each in expected if each.source] == [
        "temperature_celsius.values_to_be_between",
        "idle_draws_little",
    ]


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ("hot", "expectations[0]:"),
        ({}, "expectations[0].type"),
        ({**COOL, "type": "be_cool"}, "expectations[0].type"),
        ({**COOL, "severity": "fatal"}, "expectations[0].severity"),
        ({**COOL, "severity": []}, "expectations[0].severity"),
        ({**COOL, "sevrity": "warning"}, "expectations[0].sevrity"),
        ({**COOL, "kwargs": []}, "expectations[0].kwargs"),
        ({**COOL, "kwargs": {"column": "heat"}}, "expectations[0].kwargs.column"),
        ({**COOL, "kwargs": {"column_list": ["node", "heat"]}}, "expectations[0].kwargs.column_list[1]"),
        ({**COOL, "meta": {"nam": "x"}}, "expectations[0].meta.nam"),
        ({**COOL, "meta": {"name": ""}}, "expectations[0].meta.name"),
        ({**COOL, "meta": {"kind": "odd"}}, "expectations[0].meta.kind"),
        ({**COOL, "meta": {"name": "time.null_count"}}, "time.null_count"),
        ({**COOL, "meta": {"name": "hot", "broken_if": "true"}}, "meta.broken_if"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named_by_file_and_key(entry: object, key: str, tmp_path: Path) -> None:
    write(tmp_path, entry)

    fault = fault_of(tmp_path)

    assert fault.startswith(str(tmp_path / "gpu_telemetry.json"))
    assert key in fault


@pytest.mark.parametrize(
    ("max_value", "extra", "said"),
    [
        (1, {}, "max_value"),
        (True, {}, "max_value"),
        (None, {}, "max_value"),
        (0, {"per": "heat"}, "meta.per"),
        (0, {"name": "power_watts"}, "power_watts"),
    ],
)
def test_a_rule_is_a_share_under_a_name_of_its_own(
    max_value: object, extra: dict[str, str], said: str, tmp_path: Path
) -> None:
    meta = {"name": "hot", "broken_if": "power_watts > 700", **extra}
    kwargs = {"column": meta["name"], "max_value": max_value}
    write(tmp_path, {"type": "expect_column_max_to_be_between", "kwargs": kwargs, "meta": meta})

    assert said in fault_of(tmp_path)


def test_two_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path, COOL, COOL)

    assert "expectations[1]" in fault_of(tmp_path)


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"expectations": 3}', b" " * 1_000_001]
)
def test_a_file_that_is_no_suite_is_refused_by_its_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "gpu_telemetry.json").write_bytes(content)

    assert fault_of(tmp_path).startswith(str(tmp_path / "gpu_telemetry.json"))


def test_a_file_that_is_named_after_no_table_is_a_fault_too(tmp_path: Path) -> None:
    write(tmp_path, COOL, table="gpu_telemetri")

    assert "gpu_telemetri" in fault_of(tmp_path)
