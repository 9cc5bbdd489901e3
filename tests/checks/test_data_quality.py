"""Great Expectations judges as plain Python does, and its verdicts reach Dagster: errors block, warnings do not."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta

import dagster as dg
import pytest

from ops_pipelines.checks import suites
from ops_pipelines.checks.data_quality import (
    EXPECTED_DATA,
    HARD_GATES,
    PARTITION_FORMAT,
    Expected,
    build_quality_checks,
    expected_by_inventory,
    judge_hours,
)
from ops_pipelines.checks.quality_page import HourResult, Result, Status, render_page, share_text
from ops_pipelines.core.sources import Lake, Rows, SuiteFile
from ops_pipelines.lake.expectations import Expectation, Kind, Measure, Severity, expectations_of, expected_at_site
from ops_pipelines.lake.profile import Profile
from ops_pipelines.lake.schema import TABLES
from tests.frames.good_hours import ABOVE, BETWEEN, HOUR, NOT_FINITE, STEP_SECONDS, Hour, broken_hour, good_hour
from tests.frames.plain_judge import failed_names

EXPECTED = Expected(step_seconds=STEP_SECONDS, device_count=2)


@dataclass(frozen=True, kw_only=True)
class Filled:
    """What the checks need of an observatory."""

    lake: Lake
    step_seconds: int = STEP_SECONDS
    read_suites: Callable[[], Sequence[SuiteFile]] = tuple


class MemoryLake:
    """A lake of single hours; what is not there is an hour without rows."""

    def __init__(self, hours: Mapping[tuple[str, datetime], Rows]) -> None:
        self._hours = dict(hours)

    def read_hour(self, table: str, hour: datetime) -> Rows:
        empty: Rows = TABLES[table].from_rows([])
        return self._hours.get((table, hour), empty)

    def write_cycle(self, table: str, rows: Rows, *, at: datetime, part: str = "") -> None:
        raise NotImplementedError

    def close_hour(self, table: str, hour: datetime, *, filled: Rows | None = None) -> Rows:
        raise NotImplementedError

    def add(self, table: str, rows: Rows) -> Mapping[datetime, int]:
        raise NotImplementedError


def judge_hour(lake: Lake, *, table: str, hour: datetime, expected: Expected) -> HourResult:
    return judge_hours(lake, table=table, hours={hour: expected})[0]


def judge(table: str, hour: Hour) -> HourResult:
    expected = Expected(step_seconds=STEP_SECONDS, device_count=hour.expected_devices)
    return judge_hour(MemoryLake({(table, HOUR): hour.rows}), table=table, hour=HOUR, expected=expected)


def failed_by_suites(table: str, hour: Hour) -> set[str]:
    return {each.expectation.name for each in judge(table, hour).verdicts if each.outcome is Status.FAILED}


def failed_by_plain_python(table: str, hour: Hour) -> set[str]:
    return failed_names(
        hour.rows, table=table, hour=HOUR, step_seconds=STEP_SECONDS, expected_devices=hour.expected_devices
    )


def by_measure(table: str) -> Iterable[tuple[Expectation, ...]]:
    """Return the expectations of a table by what breaks them."""
    ways: dict[object, list[Expectation]] = {}
    for each in expectations_of(table):
        alone = each.name if each.measure is Measure.BROKEN_SHARE else each.measure or (each.kind, each.type)
        ways.setdefault(alone, []).append(each)
    return [tuple(way) for way in ways.values()]


SMALL_TABLES, AGEING_TABLE = ("inventory", "rejected_rows"), "application_telemetry"
"""They hold every kind of expectation, and are quickly judged."""


@pytest.mark.parametrize("table", TABLES)
def test_a_good_hour_passes_every_suite(table: str) -> None:
    verdicts = judge(table, good_hour(table)).verdicts

    assert [each.expectation for each in verdicts] == list(expectations_of(table))
    assert {each.outcome for each in verdicts} == {Status.PASSED}


@pytest.mark.parametrize("table", TABLES)
def test_every_expectation_of_the_suites_fails_where_plain_python_says_so(table: str) -> None:
    seen = set()
    for way in by_measure(table) if table in SMALL_TABLES else _some_ways(table):
        hour = broken_hour(way)

        failed = failed_by_suites(table, hour)

        assert failed == failed_by_plain_python(table, hour)
        seen |= failed
    if table in SMALL_TABLES:
        assert seen == {each.name for each in expectations_of(table)}
    assert seen


def _some_ways(table: str) -> Iterator[tuple[Expectation, ...]]:
    """Yield what bounds values from below (where nothing does, the types), and for one table the age of its rows."""
    below = tuple(each for each in expectations_of(table) if each.type == BETWEEN and "below" in each.meaning)
    yield below or tuple(each for each in expectations_of(table) if each.measure is Measure.TYPE_DIFFERS)
    if table == AGEING_TABLE:
        yield tuple(each for each in expectations_of(table) if each.kind is Kind.FRESHNESS)


@pytest.mark.parametrize("how", [ABOVE, NOT_FINITE])
def test_what_is_above_what_can_be_or_no_number_fails_with_the_row_that_says_it(how: str) -> None:
    (ratio,) = (each for each in expectations_of("storage_telemetry") if each.name == "wear_ratio.possible")

    (failed,) = judge("storage_telemetry", broken_hour([ratio], how)).failed(Severity.ERROR)

    assert (failed.expectation, failed.observed, failed.observed_text) == (ratio, 1.0, "1 of 24 rows")
    (example,) = failed.examples
    assert re.fullmatch(r"node1/dev1 @ 03:55:00: (nan|[\d.]+)", example)


@pytest.mark.parametrize("make", [good_hour, lambda table: broken_hour(next(iter(_some_ways(table))))])
def test_an_hour_of_many_cells_gets_the_verdicts_of_one_of_few(
    make: Callable[[str], Hour], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many, each column is a frame of its own; of few, all are one."""
    hour = make("storage_telemetry")
    few = judge("storage_telemetry", hour)

    monkeypatch.setattr(suites, "_FEW_CELLS", 0)

    assert judge("storage_telemetry", hour) == few


def test_every_text_is_judged_and_none_is_left_to_chance() -> None:
    given = [
        {"source": "k", "position": f"{number:06}", "time": HOUR, "text": "\x01" if number == 7_777 else "well"}
        for number in range(20_000)
    ]

    (failed,) = judge("kernel_events", Hour(rows=TABLES["kernel_events"].from_rows(given))).failed(Severity.ERROR)

    assert (failed.expectation.name, failed.observed_text) == ("text.form", "1 of 2 distinct values")
    assert failed.examples[0].startswith("k/007777 @ 03:00:00")


def test_the_small_tables_hold_every_kind() -> None:
    kinds = {each.kind for table in SMALL_TABLES for each in expectations_of(table)}

    assert kinds | {Kind.MONOTONE, Kind.SITE, Kind.FRESHNESS} == set(Kind)
    assert Kind.FRESHNESS in {each.kind for each in expectations_of(AGEING_TABLE)}


def test_a_falling_counter_is_told_with_its_column() -> None:
    (fall,) = (each for each in expectations_of("storage_telemetry") if each.name == "read_bytes.falls")

    assert failed_by_suites("storage_telemetry", broken_hour((fall,))) == {"read_bytes.falls"}


def test_a_counter_of_a_node_that_booted_may_fall() -> None:
    (fall,) = (each for each in expectations_of("storage_telemetry") if each.name == "read_bytes.falls")
    boots = TABLES["node_telemetry"].from_rows(
        {"node": "node1", "device": "", "time": HOUR + timedelta(minutes=minute), "boot_time_seconds": boot}
        for minute, boot in ((0, 1_000.0), (5, 9_000.0))
    )
    rows = broken_hour((fall,)).rows
    calm = MemoryLake({("storage_telemetry", HOUR): rows})
    booted = MemoryLake({("storage_telemetry", HOUR): rows, ("node_telemetry", HOUR): boots})

    verdicts = [
        judge_hour(lake, table="storage_telemetry", hour=HOUR, expected=EXPECTED).failed(Severity.WARNING)
        for lake in (calm, booted)
    ]

    assert [[each.expectation.name for each in failed] for failed in verdicts] == [["read_bytes.falls"], []]


def test_what_there_is_nothing_of_is_not_judged_and_does_not_fail() -> None:
    empty = TABLES["gpu_telemetry"].from_rows([])

    verdicts = judge("gpu_telemetry", Hour(rows=empty, expected_devices=0)).verdicts

    assert {each.outcome for each in verdicts} == {Status.PASSED, Status.NOT_JUDGED}


def test_an_empty_hour_where_devices_are_expected_is_a_warning_and_no_error() -> None:
    verdict = judge_hour(MemoryLake({}), table="gpu_telemetry", hour=HOUR, expected=EXPECTED)

    assert {each.expectation.name for each in verdict.failed(Severity.WARNING)} == {
        "device_share",
        "cycle_share",
        "newest_age",
    }
    assert verdict.failed(Severity.ERROR) == ()


def test_hours_judged_together_get_the_verdicts_that_each_gets_alone() -> None:
    for table in ("application_telemetry", "kernel_events"):
        bad = [_later(broken_hour(way).rows, table, hours=at) for at, way in enumerate(by_measure(table)[:2], start=1)]
        rows = [good_hour(table).rows, *bad, _no_rows(table)]
        hours = {HOUR + timedelta(hours=at): EXPECTED for at in range(len(rows))}
        lake = MemoryLake({(table, hour): each for hour, each in zip(hours, rows, strict=True)})

        together = judge_hours(lake, table=table, hours=hours)

        assert list(together) == [judge_hour(lake, table=table, hour=hour, expected=EXPECTED) for hour in hours]


def _no_rows(table: str) -> Rows:
    rows: Rows = TABLES[table].from_rows([])
    return rows


@pytest.mark.parametrize(("count", "sizes"), [(23, [23]), (24, [24]), (25, [24, 1])])
def test_many_hours_are_judged_a_day_at_a_time(count: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def judge(profiles: Sequence[Profile], _: object) -> Sequence[tuple[Result, ...]]:
        seen.append(len(profiles))
        return [()] * len(profiles)

    monkeypatch.setattr("ops_pipelines.checks.data_quality.judge_profiles", judge)
    hours = {HOUR + timedelta(hours=number): EXPECTED for number in range(count)}

    judged = judge_hours(MemoryLake({}), table="job_steps", hours=hours)

    assert seen == sizes
    assert [each.hour for each in judged] == list(hours)


@pytest.mark.parametrize(("step_seconds", "is_complete"), [(150, False), (300, True)])
def test_the_lakes_own_grid_is_expected(step_seconds: int, is_complete: bool) -> None:
    lake = broken("off_grid")
    expected = expected_by_inventory(Filled(lake=lake, step_seconds=step_seconds), "facility_telemetry", HOUR)

    failed = judge_hour(lake, table="facility_telemetry", hour=HOUR, expected=expected).failed(Severity.WARNING)

    assert ("cycle_share" not in {each.expectation.name for each in failed}) is is_complete


@pytest.mark.parametrize(
    ("table", "before", "failed"),
    [
        ("facility_telemetry", False, set()),
        ("facility_telemetry", True, {"cycle_share", "newest_age"}),
        ("gpu_telemetry", False, {"cycle_share", "newest_age"}),
    ],
)
def test_what_nobody_measures_is_owed_by_nobody_but_what_stopped_is_missed(
    table: str, before: bool, failed: set[str]
) -> None:
    lake = MemoryLake({(table, HOUR): good_hour(table).rows} if before else {})
    expected = Expected(step_seconds=STEP_SECONDS)

    verdict = judge_hour(lake, table=table, hour=NEXT, expected=expected)

    assert {each.expectation.name for each in verdict.failed(Severity.WARNING)} == failed


# Dagster


HOURS = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00", timezone="UTC")
KEY = f"{HOUR:{PARTITION_FORMAT}}"
NEXT = HOUR + timedelta(hours=1)


@dg.asset(partitions_def=HOURS)
def facility_telemetry() -> None:
    """Represents the asset that fills the hour."""


@dg.asset(partitions_def=HOURS, deps=[facility_telemetry])
def reader() -> None:
    """Builds upon it."""


def run(
    lake: Lake,
    *,
    pages: dict[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    partition_key: str | None = None,
    instance: dg.DagsterInstance | None = None,
    selection: Iterable[str] | None = None,
    suites: Sequence[SuiteFile] = (),
) -> dg.ExecuteInProcessResult:
    def write_page(_: Lake, table: str, hour: datetime, html: str) -> str:
        name = f"{table}/{hour:%Y-%m-%dT%H}.html"
        if pages is not None:
            pages[name] = html
        return name

    checks = build_quality_checks(
        assets={"facility_telemetry": ["facility_telemetry"]},
        expect=lambda *_: EXPECTED,
        write_page=None if pages is None else write_page,
    )
    with dg.DagsterInstance.ephemeral() if instance is None else nullcontext(instance) as at:
        return dg.materialize(
            [facility_telemetry, reader, *checks],
            resources={"observatory": Filled(lake=lake, read_suites=lambda: suites)},
            instance=at,
            partition_key=partition_key,
            tags=tags,
            raise_on_error=False,
            selection=None if selection is None else dg.AssetSelection.checks_for_assets(*selection),
        )


def cells(shown: dg.MetadataValue) -> list[Mapping[str, object]]:
    assert isinstance(shown, dg.TableMetadataValue)
    return [record.data for record in shown.records]


def results_of(result: dg.ExecuteInProcessResult) -> dict[str, tuple[bool, str]]:
    return {each.check_name: (each.passed, each.severity.value) for each in result.get_asset_check_evaluations()}


def built(result: dg.ExecuteInProcessResult) -> set[tuple[str, str | None]]:
    return {(event.asset_key.to_user_string(), event.partition) for event in result.get_asset_materialization_events()}


def broken(name: str, *hours: datetime) -> MemoryLake:
    """Return a lake in which one expectation is broken in the given hours; times of later hours are moved along."""
    (expectation,) = (each for each in expectations_of("facility_telemetry") if each.name == name)
    rows = {HOUR: good_hour("facility_telemetry").rows, NEXT: _later(good_hour("facility_telemetry").rows)}
    for hour in hours:
        bad = broken_hour((expectation,)).rows
        rows[hour] = bad if hour == HOUR else _later(bad)
    return MemoryLake({("facility_telemetry", hour): table for hour, table in rows.items()})


def _later(rows: Rows, table: str = "facility_telemetry", *, hours: int = 1) -> Rows:
    moved: Rows = TABLES[table].from_rows(
        {name: value for name, value in row.items() if name in TABLES[table].by_name}
        | {"time": row["time"] + timedelta(hours=hours)}
        for row in rows.to_pylist()  # type: ignore[attr-defined]  # an Arrow table
    )
    return moved


def test_a_good_hour_lets_what_is_downstream_run() -> None:
    result = run(broken("off_grid"), partition_key=KEY)

    assert result.success
    assert results_of(result) == {HARD_GATES: (True, "ERROR"), EXPECTED_DATA: (True, "WARN")}
    assert ("reader", KEY) in built(result)


def test_an_error_blocks_what_is_downstream() -> None:
    result = run(broken("duplicates", HOUR), partition_key=KEY)

    assert not result.success
    assert results_of(result) == {HARD_GATES: (False, "ERROR"), EXPECTED_DATA: (True, "WARN")}
    assert built(result) == {("facility_telemetry", KEY)}


def test_a_warning_blocks_nothing() -> None:
    result = run(broken("pue_fits_power", HOUR), partition_key=KEY)

    assert result.success
    assert results_of(result) == {HARD_GATES: (True, "ERROR"), EXPECTED_DATA: (False, "WARN")}
    assert ("reader", KEY) in built(result)


def test_a_run_over_many_hours_judges_each_and_writes_a_page_for_each() -> None:
    pages: dict[str, str] = {}
    tags = {
        "dagster/asset_partition_range_start": KEY,
        "dagster/asset_partition_range_end": f"{NEXT:{PARTITION_FORMAT}}",
    }

    result = run(broken("pue_fits_power", NEXT), tags=tags, pages=pages)

    warned = next(each for each in result.get_asset_check_evaluations() if each.check_name == EXPECTED_DATA)
    assert result.success
    (hour,) = cells(warned.metadata["hours_that_failed"])
    assert hour == {
        "hour": f"{NEXT:{PARTITION_FORMAT}}",
        "failed": 1,
        "rows": 24,
        "page": "facility_telemetry/2026-01-01T04.html",
    }
    assert warned.metadata["row_count"].value == 48
    (failed,) = cells(warned.metadata["failed"])
    assert (failed["expectation"], failed["hours"], failed["first_in"]) == ("pue_fits_power", 1, "2026-01-01 04:00")
    assert warned.metadata["page"].value == hour["page"]
    assert warned.description is not None
    assert warned.description.endswith("expectations failed in 1 of 2 hours: pue_fits_power.")
    assert sorted(pages) == ["facility_telemetry/2026-01-01T03.html", "facility_telemetry/2026-01-01T04.html"]
    assert "As expected" in pages["facility_telemetry/2026-01-01T03.html"]
    assert "Usable, with gaps" in pages["facility_telemetry/2026-01-01T04.html"]


def test_started_by_hand_without_a_partition_the_hour_that_was_filled_last_is_judged() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        first = run(broken("duplicates"), instance=instance, selection=["facility_telemetry"])
        instance.report_runless_asset_event(
            dg.AssetMaterialization(asset_key="facility_telemetry", partition=f"{NEXT:{PARTITION_FORMAT}}")
        )
        second = run(broken("pue_fits_power", NEXT), instance=instance, selection=["facility_telemetry"])

    assert results_of(first) == {HARD_GATES: (False, "WARN"), EXPECTED_DATA: (False, "WARN")}
    assert results_of(second) == {HARD_GATES: (True, "ERROR"), EXPECTED_DATA: (False, "WARN")}


def test_only_hard_gates_block() -> None:
    (checks,) = build_quality_checks(assets={"gpu_telemetry": ["gpu_telemetry"]})

    assert {spec.name: spec.blocking for spec in checks.check_specs} == {HARD_GATES: True, EXPECTED_DATA: False}


def test_an_asset_may_keep_several_tables_and_none_that_the_lake_does_not_have() -> None:
    build_quality_checks(assets={"job_accounting": ["job_accounting", "job_steps"]})

    with pytest.raises(ValueError, match="no table job_stepz"):
        build_quality_checks(assets={"job_accounting": ["job_accounting", "job_stepz"]})


# What a site expects


def suite(*expectations: Mapping[str, object], table: str = "facility_telemetry") -> SuiteFile:
    return SuiteFile(
        path=f"expectations/{table}.json",
        table=table,
        text=json.dumps({"name": table, "expectations": list(expectations)}),
    )


COLD: Mapping[str, object] = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "it_power_watts", "max_value": 99.0},
    "severity": "critical",
    "description": "the hall has a feed of 99 W",
}
"""What no good hour of the tests is."""


@pytest.mark.parametrize(("severity", "blocks"), [("critical", True), ("warning", False)])
def test_an_expectation_of_the_site_blocks_the_partition_if_it_is_critical(severity: str, blocks: bool) -> None:
    result = run(broken("off_grid"), partition_key=KEY, suites=[suite({**COLD, "severity": severity})])

    assert result.success is not blocks
    assert results_of(result) == {HARD_GATES: (not blocks, "ERROR"), EXPECTED_DATA: (blocks, "WARN")}
    assert (("reader", KEY) in built(result)) is not blocks
    gate = next(each for each in result.get_asset_check_evaluations() if not each.passed)
    (failed,) = cells(gate.metadata["failed"])
    assert failed["expectation"] == "it_power_watts.values_to_be_between"
    assert failed["meaning"] == "the hall has a feed of 99 W"
    assert failed["observed"] == "24 of 24 rows"


@pytest.mark.parametrize(
    "expectation",
    [
        {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "it_power_watts", "max_value": 99}},
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "node"}},
        {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 25}},
        {
            "type": "expect_column_pair_values_a_to_be_greater_than_b",
            "kwargs": {"column_A": "it_power_watts", "column_B": "site_power_watts"},
        },
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {
                "column": "it_power_watts",
                "max_value": 99,
                "row_condition": {
                    "type": "comparison",
                    "column": {"name": "node"},
                    "operator": "==",
                    "parameter": "node0",
                },
            },
        },
        {
            "type": "expect_column_max_to_be_between",
            "kwargs": {"column": "little_is_lost", "max_value": 0.1},
            "meta": {"name": "little_is_lost", "broken_if": "site_power_watts > 1.2 * it_power_watts"},
        },
        {
            "type": "expect_column_max_to_be_between",
            "kwargs": {"column": "one_pue", "max_value": 0},
            "meta": {"name": "one_pue", "broken_if": "max(pue_ratio) >= 1.25", "per": "node"},
        },
    ],
    ids=lambda each: str(each["type"]),
)
def test_a_site_expects_of_columns_pairs_tables_and_rules_what_great_expectations_can_judge(
    expectation: Mapping[str, object],
) -> None:
    expected, troubles = expected_at_site([suite(expectation)], table="facility_telemetry")

    (verdict,) = judge_hours(
        broken("off_grid"), table="facility_telemetry", hours={HOUR: EXPECTED}, expectations=expected
    )

    (failed,) = verdict.failed(Severity.ERROR)
    assert troubles == ()
    assert failed.expectation.source == "expectations/facility_telemetry.json"
    assert failed.trouble == ""


def test_a_site_replaces_one_of_ours_by_its_name() -> None:
    looser = {
        "type": "expect_column_max_to_be_between",
        "kwargs": {"column": "pue_fits_power", "max_value": 0.5},
        "severity": "warning",
        "meta": {"name": "pue_fits_power", "broken_if": "pue_ratio > 1.4"},
    }

    before = run(broken("pue_fits_power", HOUR), partition_key=KEY)
    after = run(broken("pue_fits_power", HOUR), partition_key=KEY, suites=[suite(looser)])

    assert (results_of(before)[EXPECTED_DATA][0], results_of(after)[EXPECTED_DATA][0]) == (False, True)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (suite({"type": "expect_column_values_to_be_betwixt", "kwargs": {"column": "node"}}), "betwixt"),
        (suite({**COLD, "kwargs": {"column": "node", "max_valeu": 1}}), "max_valeu"),
        (suite({**COLD, "kwargs": {"column": "nodule"}}), "expectations[0].kwargs.column"),
        (
            suite(
                {
                    "type": "expect_column_max_to_be_between",
                    "kwargs": {"column": "mine", "max_value": 0},
                    "meta": {"name": "mine", "broken_if": "no_such_column > 1"},
                }
            ),
            "meta.broken_if",
        ),
        (SuiteFile(path="expectations/facility_telemetry.json", table="facility_telemetry", text="{"), "no JSON"),
    ],
)
def test_a_suite_that_cannot_be_used_blocks_and_says_file_key_and_remedy(file: SuiteFile, said: str) -> None:
    result = run(broken("off_grid"), partition_key=KEY, suites=[file])

    assert not result.success
    gate = next(each for each in result.get_asset_check_evaluations() if not each.passed)
    (failed,) = cells(gate.metadata["failed"])
    observed = str(failed["observed"])
    assert gate.check_name == HARD_GATES
    assert observed.startswith("expectations/facility_telemetry.json")
    assert said in observed
    assert "correct" in observed or ";" in observed


def test_a_file_that_is_named_after_no_table_warns_and_blocks_nothing() -> None:
    result = run(broken("off_grid"), partition_key=KEY, suites=[suite(COLD, table="facility_telemetri")])

    assert results_of(result) == {HARD_GATES: (True, "ERROR"), EXPECTED_DATA: (False, "WARN")}


@pytest.mark.parametrize("sql", ["(SELECT count(*) > 0 FROM read_text('/etc/hostname'))", "1); COPY given TO 'x'; --"])
def test_a_rule_of_a_site_reads_the_rows_and_nothing_else(sql: str) -> None:
    rule = {
        "type": "expect_column_max_to_be_between",
        "kwargs": {"column": "reads_files", "max_value": 0},
        "meta": {"name": "reads_files", "broken_if": sql},
    }
    expected, _ = expected_at_site([suite(rule)], table="facility_telemetry")

    (verdict,) = judge_hours(
        broken("off_grid"), table="facility_telemetry", hours={HOUR: EXPECTED}, expectations=expected
    )

    (failed,) = verdict.failed(Severity.ERROR)
    assert "meta.broken_if" in failed.trouble


# The page


def judged(name: str) -> HourResult:
    return judge_hour(broken(name, HOUR), table="facility_telemetry", hour=HOUR, expected=EXPECTED)


def test_the_page_says_the_verdict_first_and_what_failed_next() -> None:
    page = render_page(judged("duplicates"))

    assert page.index("Not to be built upon") < page.index("What failed") < page.index("Column by column")
    assert page.index("<code>duplicates</code>") < page.index("By kind")
    assert all(f"<code>{name}</code>" in page for name in TABLES["facility_telemetry"].by_name)


def test_the_page_needs_nothing_from_outside() -> None:
    page = render_page(judged("pue_fits_power"))

    assert not re.search(r"<(a|link|script|img|iframe)\b|https?:|@import|url\(", page)


def test_texts_from_data_cannot_become_markup() -> None:
    hostile = "<script>alert(1)</script>\x1b[31m"
    rows = good_hour("rejected_rows").rows.to_pylist()
    rows[0]["reason"] = hostile
    lake = MemoryLake({("rejected_rows", HOUR): TABLES["rejected_rows"].from_rows(rows)})

    page = render_page(judge_hour(lake, table="rejected_rows", hour=HOUR, expected=EXPECTED))

    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (1e-9, "below 0.01 %"),
        (0.0001, "0.01 %"),
        (0.9999, "99.99 %"),
        (0.99999, "above 99.99 %"),
        (1.0, "100 %"),
    ],
)
def test_a_share_is_never_rounded_to_all_or_none(share: float, text: str) -> None:
    assert share_text(share) == text


# What it costs and what it does not do


def test_loading_the_checks_imports_nothing_heavy() -> None:
    heavy = ("pandas", "pyarrow", "numpy", "duckdb", "great_expectations")
    program = (
        "import sys\n"
        "from ops_pipelines.checks.data_quality import build_quality_checks\n"
        "build_quality_checks(assets={'gpu_telemetry': ['gpu_telemetry']})\n"
        f"print([each for each in {heavy!r} if each in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_judging_looks_nothing_up_and_is_silent(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)

    judged("duplicates")

    assert capfd.readouterr() == ("", "")
    assert os.environ["GX_ANALYTICS_ENABLED"] == "false"
