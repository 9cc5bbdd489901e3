"""Every expectation that is generated passes on a good hour, and fails on one in which its thing is broken."""

import re
import subprocess
import sys
from collections import defaultdict

import pytest

from ops_pipelines.lake.expectations import Expectation, Kind, Measure, Severity, expectations_of
from ops_pipelines.lake.profile import profile_hour
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES
from tests.frames.good_hours import (
    ABOVE,
    BELOW,
    BETWEEN,
    CONTRADICTIONS,
    HOUR,
    NOT_FINITE,
    STEP_SECONDS,
    Hour,
    broken_hour,
    good_hour,
)
from tests.frames.plain_judge import failed_names

Way = tuple[tuple[Expectation, ...], str]
"""What is broken at once, and how: below what can be, above it, not finite."""


def ways_to_break(table: str) -> list[Way]:
    """Return each rule alone; what is of one measure or type in all columns of a table at once."""
    ways: dict[object, list[Expectation]] = defaultdict(list)
    for each in expectations_of(table):
        for how in _hows(each):
            alone = each.name if each.measure is Measure.BROKEN_SHARE else each.measure or (each.kind, each.type)
            ways[alone, how].append(each)
    return [(tuple(way), how) for (_, how), way in ways.items()]  # type: ignore[misc]  # keys are pairs


def _hows(each: Expectation) -> tuple[str, ...]:
    if each.type != BETWEEN:
        return ("",)
    bounds = ((BELOW, "below"), (ABOVE, "above"), (NOT_FINITE, "finite"))
    return tuple(how for how, word in bounds if word in each.meaning)


WAYS = [way for table in TABLES for way in ways_to_break(table)]


def failed_of(table: str, hour: Hour) -> set[str]:
    return failed_names(
        hour.rows, table=table, hour=HOUR, step_seconds=STEP_SECONDS, expected_devices=hour.expected_devices
    )


def companions(way: tuple[Expectation, ...]) -> set[str]:
    """Return what may fail beside: rules that read a column which holds what cannot be, and shares that move along."""
    table, measure = way[0].table, way[0].measure
    if measure is Measure.NEWEST_AGE:
        return {Measure.CYCLE_SHARE.value}
    if way[0].kind is Kind.NULL and table in TELEMETRY_TABLES:
        return {Measure.CELL_SHARE.value}
    if way[0].type == BETWEEN or measure is Measure.NOT_WHOLE:
        rules = [each for each in expectations_of(table) if each.broken_if]
        words = {word for rule in rules for word in re.findall(r"\w+", rule.broken_if)}
        return {rule.name for rule in rules} if words & {each.column for each in way} else set()
    return set()


@pytest.mark.parametrize("table", TABLES)
def test_a_good_hour_meets_every_expectation_and_leaves_no_measure_uncounted(table: str) -> None:
    hour = good_hour(table)
    profile = profile_hour(
        hour.rows, table=table, hour=HOUR, step_seconds=STEP_SECONDS, expected_devices=hour.expected_devices
    )

    values = profile.values()

    assert failed_of(table, hour) == set()
    measured = [each for each in expectations_of(table) if each.measure is not None]
    assert [each.name for each in measured if each.measure and values[each.column, each.measure] is None] == []


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way[0][0].table}-{way[0][0].name}-{way[1]}-{len(way[0])}")
def test_what_is_broken_fails_and_nothing_else_does(way: Way) -> None:
    broken, how = way

    failed = failed_of(broken[0].table, broken_hour(broken, how))

    assert {each.name for each in broken} <= failed
    assert failed - {each.name for each in broken} - companions(broken) == set()


def test_every_expectation_is_broken_somewhere() -> None:
    broken = {(each.table, each.name) for way, _ in WAYS for each in way}

    assert broken == {(table, each.name) for table in TABLES for each in expectations_of(table)}
    rules = {(table, each.name) for table in TABLES for each in expectations_of(table) if each.broken_if}
    assert rules == CONTRADICTIONS.keys()


@pytest.mark.parametrize("table", TABLES)
def test_names_are_unique_and_bounds_are_given(table: str) -> None:
    expectations = expectations_of(table)

    assert len({each.name for each in expectations}) == len(expectations)
    for each in expectations:
        assert (each.measure is None) == bool(each.type)
        assert (each.measure is Measure.BROKEN_SHARE) == bool(each.broken_if)
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


def test_rows_are_rejected_on_their_way_into_any_table() -> None:
    (into,) = (each for each in expectations_of("rejected_rows") if each.name == "into.form")

    assert into.kwargs["value_set"] == list(TABLES)


def test_an_unknown_table_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        expectations_of("no_such_table")


def test_loading_the_expectations_imports_nothing_heavy() -> None:
    heavy = ("pandas", "pyarrow", "numpy", "duckdb", "great_expectations")
    module = "ops_pipelines.lake.expectations"
    program = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
