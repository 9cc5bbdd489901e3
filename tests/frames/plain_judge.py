"""A judge in plain Python: what Great Expectations must agree with."""

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime

import pyarrow as pa

from ops_pipelines.lake.expectations import Expectation, expectations_of
from ops_pipelines.lake.profile import conform_rows, profile_hour

Row = Mapping[str, object]


def failed_names(
    rows: pa.Table, *, table: str, hour: datetime, step_seconds: int, expected_devices: int | None
) -> set[str]:
    """Return the shipped expectations that an hour fails."""
    profile = profile_hour(rows, table=table, hour=hour, step_seconds=step_seconds, expected_devices=expected_devices)
    values, given = profile.values(), conform_rows(rows, table).to_pylist()
    return {
        each.name
        for each in expectations_of(table)
        if not (
            _are_as_expected(each, given)
            if each.measure is None
            else _is_within(each, values[each.column, each.measure])
        )
    }


_WHERE: Mapping[str, Callable[[Row], bool]] = {
    "None": lambda _: True,
    "{'type': 'nullity', 'column': {'name': 'mig_instance'}, 'is_null': True}": lambda row: row["mig_instance"] is None,
    "{'type': 'comparison', 'column': {'name': 'device'}, 'operator': '==', 'parameter': ''}": lambda row: (
        row["device"] == ""
    ),
}


def _are_as_expected(each: Expectation, rows: list[dict[str, object]]) -> bool:
    chosen = [row[each.column] for row in rows if _WHERE[str(each.kwargs.get("row_condition"))](row)]
    if each.type == "expect_column_values_to_not_be_null":
        mostly = each.kwargs.get("mostly", 1.0)
        assert isinstance(mostly, float)
        return sum(value is not None for value in chosen) >= mostly * len(chosen)
    return all(_is_as_expected(each, value) for value in chosen if value is not None)


def _is_as_expected(each: Expectation, value: object) -> bool:
    kwargs = each.kwargs
    if each.type == "expect_column_values_to_be_between":
        assert isinstance(value, int | float)
        least, most = kwargs.get("min_value", -math.inf), kwargs.get("max_value", math.inf)
        return bool(least <= value <= most)  # type: ignore[operator]  # numbers
    if each.type == "expect_column_values_to_match_regex":
        return re.search(str(kwargs["regex"]), str(value)) is not None
    if each.type == "expect_column_value_lengths_to_be_between":
        return len(str(value)) >= 1
    assert each.type == "expect_column_values_to_be_in_set"
    return value in kwargs["value_set"]  # type: ignore[operator]  # a list


def _is_within(each: Expectation, value: float | None) -> bool:
    if value is None:
        return True
    return not (
        (each.at_least is not None and value < each.at_least) or (each.at_most is not None and value > each.at_most)
    )
