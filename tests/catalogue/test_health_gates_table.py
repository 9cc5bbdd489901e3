"""The shipped gates and suites: strictly read, free of complaints, and complete."""

import pytest

from ops_pipelines.core.fault import Family
from ops_pipelines.core.node_tests import TESTS, gate_for, suite_for
from ops_pipelines.resources.catalogue_files import (
    GATES_TABLE,
    parse_gates,
    read_catalogue,
    read_gates,
    read_suites,
    shipped_table,
)

HEADER = shipped_table(GATES_TABLE).splitlines()[0]
ROW = "nccl_loopback,busbw,GB/s,H200,8,431,,480,787.5,0.92,a source,2026-11-22"


def test_the_catalogue_carries_gates_and_suites() -> None:
    assert read_catalogue().gates == read_gates() != ()
    assert read_catalogue().suites == read_suites() != ()


def test_every_gate_names_its_source_and_the_day_it_was_checked() -> None:
    assert all("checked 2026-" in gate.source and GATES_TABLE in gate.source for gate in read_gates())


@pytest.mark.parametrize("family", Family)
def test_every_family_has_tests_and_nvml_is_among_them(family: Family) -> None:
    suite = suite_for((family,), read_suites())

    assert suite.tests[0] == "nvml"
    assert suite.required == {"nvml"}
    assert suite.tests[-1] == "host"


def test_every_test_is_in_a_suite() -> None:
    used = {test for suite in read_suites() for test in suite.tests}

    assert set(TESTS) == used


def test_the_suites_of_releases_are_chosen_for_no_fault() -> None:
    suites = read_suites()
    by_name = {suite.name: suite for suite in suites if suite.is_by_name}
    families = [(), *((one, other) for one in Family for other in Family), tuple(Family)]

    assert set(by_name) == {"release", "release_canary"}
    assert not {suite_for(each, suites).name for each in families} & set(by_name)
    assert set(by_name["release"].tests) < set(by_name["release_canary"].tests)


@pytest.mark.parametrize(
    ("model", "low"),
    [
        ("NVIDIA A100-SXM4-80GB", 228.0),
        ("NVIDIA H100 80GB HBM3", 460.0),
        ("NVIDIA H200", 431.0),
        ("NVIDIA B200", 760.0),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_models_get_the_floor_of_their_board(model: str, low: float | None) -> None:
    found = gate_for(read_gates(), test="nccl_loopback", measurement="busbw", models=(model,), gpu_count=8)

    assert found is not None
    assert found.low == low


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "its columns are none"),
        ("test,low\n", "its columns are test, low"),
        (f"{HEADER}\n", "it has no rows"),
        (f'{HEADER}\n{ROW}\n"{ROW}\n', "is a quote left open"),
        (f'"{HEADER}\n{ROW}\n', "is a quote left open"),
        (f"{HEADER}\n{ROW}{'x' * 140_000}\n", "field larger than"),
        (f"{HEADER}\n{ROW},more\n", "line 2: expected 12 fields"),
        (f"{HEADER}\n{ROW.rsplit(',', 1)[0]}\n", "line 2: expected 12 fields"),
        (f"{HEADER}\n{ROW.replace('nccl_loopback', 'magic')}\n", "line 2: 'magic' is no test"),
        (f"{HEADER}\n{ROW.replace('431', 'many')}\n", "line 2: low is 'many'"),
        (f"{HEADER}\n{ROW.replace(',8,', ',-8,')}\n", "line 2: gpu_count is '-8'"),
        (f"{HEADER}\n{ROW.replace('GB/s', ' ')}\n", "line 2: unit is empty"),
        (f"{HEADER}\n{ROW.replace('a source', '')}\n", "line 2: source is empty"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_its_row(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=f"^gates.csv.*{fault}"):
        parse_gates(text, table="gates.csv")


def test_a_row_is_read_as_it_stands() -> None:
    (gate,) = parse_gates(f"{HEADER}\n{ROW}\n", table="gates.csv")

    assert (gate.low, gate.high, gate.gpu_count, gate.gpu_model) == (431.0, None, 8, "H200")


def test_a_byte_order_mark_is_no_part_of_a_column() -> None:
    assert len(parse_gates(f"\ufeff{HEADER}\n{ROW}\n", table="gates.csv")) == 1
