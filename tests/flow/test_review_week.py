"""Weeks of ISO 8601: edges, names, and the year that has 53."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.periods import WEEK, parse_week, week_of

TIMES = st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC))


@pytest.mark.parametrize(
    ("at", "name"),
    [
        (datetime(2026, 11, 15, 23, 59, 59, 999_999, tzinfo=UTC), "2026-W46"),
        (datetime(2026, 11, 16, tzinfo=UTC), "2026-W47"),
        (datetime(2026, 11, 22, 23, 59, 59, 999_999, tzinfo=UTC), "2026-W47"),
        (datetime(2026, 12, 31, 12, tzinfo=UTC), "2026-W53"),
        (datetime(2027, 1, 3, 23, tzinfo=UTC), "2026-W53"),
        (datetime(2027, 1, 4, tzinfo=UTC), "2027-W01"),
        # Berlin puts its clocks back in this night: the week is one of UTC all the same.
        (datetime(2026, 10, 26, 0, 30, tzinfo=timezone(timedelta(hours=1))), "2026-W43"),
    ],
)
def test_a_time_lies_in_the_week_of_its_monday(at: datetime, name: str) -> None:
    assert week_of(at).name == name


@given(TIMES)
def test_a_week_is_named_and_found_again(at: datetime) -> None:
    week = week_of(at)

    assert week.start <= at < week.end
    assert week.end - week.start == WEEK
    assert parse_week(week.name) == week
    assert week.before.end == week.start


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-47",
        "2026-W00",
        "2026-W54",
        "2025-W53",
        "0000-W01",
        "0001-W01",
        "1969-W52",
        "9999-W53",
        "2026-W47 ",
        "\u0662026-W47",
    ],
)
def test_what_is_no_week_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a week of ISO 8601"):
        parse_week(text)
