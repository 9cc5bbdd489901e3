"""The shipped tables of versions: strictly read, each row with source and day, free of contradictions."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.release import (
    CompatibilityTables,
    Component,
    CudaDriver,
    DowngradeRule,
    ExactMatch,
    FirmwareOrder,
    FloorKind,
    Reversibility,
    SlurmUpgrade,
    Trait,
    VersionFloor,
)
from ops_pipelines.resources.catalogue_files import shipped_table
from ops_pipelines.resources.release_files import TABLES, read_tables
from ops_pipelines.rollouts.compatibility import lint_tables

SHIPPED = read_tables()
MODEL = "hgx-h100"


@pytest.mark.parametrize("name", TABLES)
def test_every_row_names_its_source_and_the_day_it_was_checked(name: str) -> None:
    rows = list(csv.DictReader(shipped_table(name).splitlines()))

    assert rows
    assert all(row["source"].strip() for row in rows)
    assert all(re.fullmatch(r"2026-\d\d-\d\d", row["checked_on"]) for row in rows)


def test_a_source_names_its_table_and_its_day() -> None:
    assert SHIPPED.exact_matches[0].source.endswith("(catalogue/exact_matches.csv, checked 2026-11-21)")


def test_the_shipped_tables_do_not_contradict_themselves() -> None:
    assert lint_tables(SHIPPED) == ()


def cuda(version: str, driver: str, *, is_family: bool = False) -> CudaDriver:
    return CudaDriver(cuda=version, driver=driver, is_family=is_family, source="a page")


def with_cuda(*more: CudaDriver) -> CompatibilityTables:
    replaced = {(each.cuda, each.is_family) for each in more}
    kept = [each for each in SHIPPED.cuda_drivers if (each.cuda, each.is_family) not in replaced]
    return replace(SHIPPED, cuda_drivers=(*kept, *more))


def order(
    *stages: set[Component], models: frozenset[str] = frozenset({MODEL}), is_chosen: bool = False
) -> FirmwareOrder:
    return FirmwareOrder(
        models=models, stages=tuple(frozenset(each) for each in stages), is_chosen=is_chosen, source="a page"
    )


def floor(models: frozenset[str] = frozenset(), lowest: str = "580.65.06", since: str = "") -> VersionFloor:
    return VersionFloor(
        kind=FloorKind.NEEDS,
        component=Component.CUDA,
        from_version=since,
        models=models,
        needs=Component.DRIVER,
        floor=lowest,
        source="a page",
    )


def branches_with(number: int, cuda_major: int) -> CompatibilityTables:
    row = replace(SHIPPED.branches[number], max_cuda_major=cuda_major)
    return replace(SHIPPED, branches={**SHIPPED.branches, number: row})


@pytest.mark.parametrize(
    ("tables", "fault"),
    [
        # One public project published this row; the driver is that of 12.9.
        (with_cuda(cuda("13.0.0", "575.51.03")), "CUDA 13.0.0 was shipped with 575.51.03, which is below 580.65.06"),
        (
            with_cuda(cuda("12.8.0", "575.51.04")),
            "CUDA 12.8.1 goes with 570.124.06, older than 575.51.04 of CUDA 12.8.0",
        ),
        (with_cuda(cuda("12", "580.65.07", is_family=True)), "CUDA 13 goes with 580.65.06, older than 580.65.07"),
        (with_cuda(cuda("14.0.0", "595.45.05")), "CUDA 14.0.0 is of family 14, which has no least driver"),
        (with_cuda(cuda("13.9.0", "699.10.01")), "branch R699 is not in the table of branches"),
        (with_cuda(cuda("13.9", "unknown")), "driver is 'unknown'"),
        (with_cuda(cuda("13.2.0", "595.45.04"), cuda("13.2.0", "595.45.04")), "CUDA 13.2.0 is there twice"),
        (branches_with(580, 12), "R580 runs CUDA 12 at most, and by the least drivers it is 13"),
        (branches_with(535, 13), "R535 runs CUDA 13 at most, and by the least drivers it is 12"),
        (
            replace(SHIPPED, orders=(*SHIPPED.orders, order({Component.BMC}, {Component.BIOS, Component.BMC}))),
            "the order for hgx-h100 names bmc twice",
        ),
        (
            replace(SHIPPED, orders=(*SHIPPED.orders, order({Component.BMC}, is_chosen=True))),
            "more than one order is chosen for hgx-h100",
        ),
        (
            replace(SHIPPED, orders=(*SHIPPED.orders, order({Component.BMC}, models=frozenset(), is_chosen=True))),
            "more than one order is chosen for all others",
        ),
        (
            replace(SHIPPED, orders=(*SHIPPED.orders, order({Component.BMC}, models=frozenset({"hgx"})))),
            "names hgx, which is no model",
        ),
        (replace(SHIPPED, floors=(floor(frozenset({"hgx"})),)), "names hgx, which is no model"),
        (replace(SHIPPED, floors=(floor(lowest="R580"),)), "driver is 'R580'"),
        (replace(SHIPPED, floors=(floor(since="new"),)), "cuda is 'new'"),
        (
            replace(SHIPPED, slurm={"25.11": SlurmUpgrade(major="25.11", from_majors=frozenset({"26.05"}), source="")}),
            "slurm 25.11 upgrades from 26.05, which is not older",
        ),
        (
            replace(SHIPPED, slurm={"25.11": SlurmUpgrade(major="25.11", from_majors=frozenset(), source="")}),
            "slurm 25.11 upgrades from nothing",
        ),
        (
            replace(SHIPPED, slurm={"25.11": SlurmUpgrade(major="25.11", from_majors=frozenset({"24.5"}), source="")}),
            "expected year and month",
        ),
        (
            replace(
                SHIPPED, slurm={"25.11": SlurmUpgrade(major="25.11", from_majors=frozenset({"24.05.1"}), source="")}
            ),
            "is written as year and month",
        ),
        (
            replace(
                SHIPPED,
                exact_matches=(
                    ExactMatch(component=Component.IMEX, equals=Component.IMEX, where=Trait.IMEX, source=""),
                ),
            ),
            "imex must equal itself",
        ),
        (
            replace(
                SHIPPED,
                downgrades={
                    Component.BMC: DowngradeRule(
                        component=Component.BMC,
                        reversibility=Reversibility.YES,
                        is_of_majors=False,
                        said="",
                        source="",
                    )
                },
            ),
            "bmc rolls back simply",
        ),
    ],
)
def test_tables_that_contradict_themselves_are_told(tables: CompatibilityTables, fault: str) -> None:
    assert any(fault in each for each in lint_tables(tables)), lint_tables(tables)


@pytest.mark.parametrize(
    ("name", "found", "given", "fault"),
    [
        ("node_models.csv", "hgx-a100,nvswitch", "hgx-a100,switches", "traits is 'switches'; expected one of nvswitch"),
        ("node_models.csv", "hgx-a100,nvswitch", "dgx-a100,nvswitch", "dgx-a100 is there twice"),
        ("node_models.csv", "hgx-a100,nvswitch", ",nvswitch", "name is empty"),
        ("driver_cuda.csv", "11,450.80.02,family", "11,450.80.02,line", "kind is 'line'; expected family or toolkit"),
        ("driver_cuda.csv", "11,450.80.02", "eleven,450.80.02", "cuda is 'eleven'"),
        ("driver_branches.csv", "450,long", "R450,long", "branch is 'R450'; expected a whole number"),
        ("driver_branches.csv", "2023-07-31", "July 2023", "ends_on is 'July 2023'; expected a day"),
        (
            "exact_matches.csv",
            "fabric_manager,driver",
            "fabric,driver",
            "component is 'fabric'; expected one of driver",
        ),
        ("firmware_order.csv", "bmc > bios+cpld", "bmc > bios+bios", "names a component twice in one stage"),
        ("firmware_order.csv", ",yes,", ",maybe,", "is_chosen is 'maybe'"),
        ("activations.csv", "kernel,reboot", "kernel,restart", "activation is 'restart'; expected one of live"),
        ("version_floors.csv", "needs,dcgm", "wants,dcgm", "kind is 'wants'"),
        ("slurm_upgrades.csv", "22.05,21.08|20.11", "22.05,21.08|2011", "slurm is '2011'"),
        ("downgrades.csv", "bmc,all", "bmc,majors", "only Slurm's major releases are known"),
        ("downgrades.csv", "2026-11-21", "", "checked_on is ''"),
    ],
)
def test_a_row_of_the_site_that_cannot_be_read_is_refused_by_its_table(
    tmp_path: Path, name: str, found: str, given: str, fault: str
) -> None:
    text = shipped_table(name)
    assert found in text
    (tmp_path / name).write_text(text.replace(found, given, 1))

    with pytest.raises(PolicyError, match=re.escape(fault)) as raised:
        read_tables(tmp_path)

    assert name.removesuffix(".csv") in str(raised.value) or "contradict themselves" in str(raised.value)


def test_a_table_of_the_site_takes_the_place_of_ours(tmp_path: Path) -> None:
    text = shipped_table("driver_branches.csv")
    (tmp_path / "driver_branches.csv").write_text(
        text + "620,new feature,2027-05-31,13,a page of the site,2026-11-30\n"
    )

    tables = read_tables(tmp_path)

    assert set(tables.branches) - set(SHIPPED.branches) == {620}
    assert str(tmp_path) in tables.branches[620].source
    assert tables.orders == SHIPPED.orders


def test_a_table_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node_models.csv").write_bytes(b"\xff\xfe")

    with pytest.raises(PolicyError, match="cannot be read"):
        read_tables(tmp_path)


def test_a_directory_without_tables_leaves_ours(tmp_path: Path) -> None:
    assert read_tables(tmp_path / "none") == read_tables(None) == SHIPPED
