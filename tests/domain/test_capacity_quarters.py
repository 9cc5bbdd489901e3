"""Quarters by name: which day lies in which, where each begins, and the ones beside it."""

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.capacity.model import first_day_of, quarter_before, quarter_of

DAYS = st.dates(min_value=date(2, 1, 1), max_value=date(9998, 12, 31))


@pytest.mark.parametrize(
    ("day", "quarter"),
    [
        (date(2026, 1, 1), "2026Q1"),
        (date(2026, 3, 31), "2026Q1"),
        (date(2026, 4, 1), "2026Q2"),
        (date(2026, 6, 30), "2026Q2"),
        (date(2026, 7, 1), "2026Q3"),
        (date(2026, 9, 30), "2026Q3"),
        (date(2026, 10, 1), "2026Q4"),
        (date(2026, 12, 31), "2026Q4"),
        (date(2028, 2, 29), "2028Q1"),
    ],
)
def test_a_day_lies_in_the_quarter_of_its_month(day: date, quarter: str) -> None:
    assert quarter_of(day) == quarter


@given(DAYS)
def test_a_quarter_begins_on_its_first_day_and_no_day_earlier(day: date) -> None:
    first = first_day_of(quarter_of(day))

    assert first <= day
    assert quarter_of(first) == quarter_of(day)
    assert quarter_of(first - timedelta(days=1)) == quarter_before(quarter_of(day))


@pytest.mark.parametrize(
    "name", ["", "2026", "2026Q0", "2026Q5", "2026q4", "26Q4", "2026Q4 ", "0000Q1", "\uff12026Q4", "../Q4"]
)
def test_what_names_no_quarter_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="names no quarter"):
        first_day_of(name)


def test_the_ends_of_the_calendar_have_no_neighbour() -> None:
    assert first_day_of("0001Q1") == date.min
    with pytest.raises(ValueError, match="no quarter before"):
        quarter_before("0001Q1")
