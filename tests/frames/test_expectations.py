"""Every expectation that is generated passes on a good hour, and fails on one in which its thing is broken."""

import re
import subprocess
import sys
from collections import defaultdict

import pytest

from ops_pipelines.lake.quality.expectations import Expectation, Kind, Measure, expectations_of
from ops_pipelines.lake.quality.profile import Profile, profile_hour
from ops_pipelines.lake.quality.rules import CROSS_RULES, Severity, rules_of
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES
from tests.frames.good_hours import CONTRADICTIONS, HOUR, STEP_SECONDS, Hour, broken_hour, good_hour
from tests.frames.plain_judge import failed_names

SINGLE = (Measure.BROKEN_SHARE,)
"""Broken one by one; the other measures in all columns of a table at once."""


def ways_to_break(table: str) -> list[tuple[Expectation, ...]]:
    ways: dict[object, list[Expectation]] = defaultdict(list)
    for each in expectations_of(table):
        ways[each.name if each.measure in SINGLE else each.measure].append(each)
    return [tuple(way) for way in ways.values()]


WAYS = [way for table in TABLES for way in ways_to_break(table)]


def profile_of(table: str, hour: Hour) -> Profile:
    return profile_hour(
        hour.rows, table=table, hour=HOUR, step_seconds=STEP_SECONDS, expected_devices=hour.expected_devices
    )


def companions(way: tuple[Expectation, ...]) -> set[str]:
    """Return what may fail beside: rules that read a column which holds what cannot be, and shares that move along."""
    table, measure = way[0].table, way[0].measure
    if measure is Measure.NEWEST_AGE:
        return {Measure.CYCLE_SHARE.value}
    if measure is Measure.NULL_COUNT and table in TELEMETRY_TABLES:
        return {Measure.CELL_SHARE.value}
    if measure in (Measure.BELOW_POSSIBLE, Measure.ABOVE_POSSIBLE, Measure.NOT_FINITE, Measure.NOT_WHOLE):
        words = {word for rule in rules_of(table) for word in re.findall(r"\w+", rule.broken_if)}
        return {rule.name for rule in rules_of(table)} if words & {each.column for each in way} else set()
    return set()


@pytest.mark.parametrize("table", TABLES)
def test_a_good_hour_meets_every_expectation_and_leaves_none_unjudged(table: str) -> None:
    profile = profile_of(table, good_hour(table))

    values = profile.values()

    assert failed_names(profile) == set()
    assert [
        name for name, value in ((each.name, _value(values, each)) for each in expectations_of(table)) if value
    ] == []


def _value(values: dict[tuple[str, Measure], float | None], each: Expectation) -> bool:
    return each.measure is not None and values[each.column, each.measure] is None


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way[0].table}-{way[0].name}-{len(way)}")
def test_what_is_broken_fails_and_nothing_else_does(way: tuple[Expectation, ...]) -> None:
    failed = failed_names(profile_of(way[0].table, broken_hour(way)))

    assert {each.name for each in way} <= failed
    assert failed - {each.name for each in way} - companions(way) == set()


def test_every_expectation_is_broken_somewhere() -> None:
    assert sum(len(way) for way in WAYS) == sum(len(expectations_of(table)) for table in TABLES)
    assert {(rule.table, rule.name) for rule in CROSS_RULES} == CONTRADICTIONS.keys()


@pytest.mark.parametrize("table", TABLES)
def test_names_are_unique_and_bounds_are_given(table: str) -> None:
    expectations = expectations_of(table)

    assert len({each.name for each in expectations}) == len(expectations)
    for each in expectations:
        assert (each.measure is None) == bool(each.pattern)
        assert each.measure is None or each.at_least is not None or each.at_most is not None
        assert each.meaning


@pytest.mark.parametrize("table", TABLES)
def test_every_column_has_its_type_and_every_counter_is_monotone_but_iowait(table: str) -> None:
    expectations = expectations_of(table)

    typed = {each.column for each in expectations if each.measure is Measure.TYPE_DIFFERS}
    monotone = {each.column for each in expectations if each.kind is Kind.MONOTONE}

    assert typed == TABLES[table].by_name.keys()
    assert monotone == set(TABLES[table].counters) - {"cpu_iowait_seconds"}


def test_what_sources_owe_us_never_blocks() -> None:
    kinds = (Kind.COMPLETENESS, Kind.FRESHNESS, Kind.MONOTONE, Kind.REFERENCE)

    severities = {each.severity for table in TABLES for each in expectations_of(table) if each.kind in kinds}

    assert severities == {Severity.WARNING}


def test_an_unknown_table_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        expectations_of("no_such_table")


def test_loading_the_expectations_imports_nothing_heavy() -> None:
    heavy = ("pandas", "pyarrow", "numpy", "duckdb", "great_expectations")
    module = "ops_pipelines.lake.quality.expectations"
    program = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
