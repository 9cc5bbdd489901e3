"""Local days: where the clock is changed, where midnight is skipped, where hours do not begin with the day."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.periods import HOUR, day_begins, days_between, days_of, first_hour

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Asia/Shanghai",
    "Pacific/Apia",
    "Australia/Lord_Howe",
)


@pytest.mark.parametrize(
    ("zone", "day", "begins_at"),
    [
        ("UTC", date(2026, 3, 29), datetime(2026, 3, 29, tzinfo=UTC)),
        ("Europe/Berlin", date(2026, 3, 29), datetime(2026, 3, 28, 23, tzinfo=UTC)),
        ("Europe/Berlin", date(2026, 3, 30), datetime(2026, 3, 29, 22, tzinfo=UTC)),
        # The clock went from 23:59 to 01:00.
        ("America/Sao_Paulo", date(2018, 11, 4), datetime(2018, 11, 4, 3, tzinfo=UTC)),
        ("Asia/Kolkata", date(2026, 3, 29), datetime(2026, 3, 28, 18, 30, tzinfo=UTC)),
    ],
)
def test_a_day_begins_where_the_clock_says_so(zone: str, day: date, begins_at: datetime) -> None:
    assert day_begins(day, zone=ZoneInfo(zone)) == begins_at


def test_the_first_hour_of_a_day_is_the_first_that_begins_in_it() -> None:
    kolkata = ZoneInfo("Asia/Kolkata")

    assert first_hour(date(2026, 3, 29), zone=kolkata) == datetime(2026, 3, 28, 19, tzinfo=UTC)
    assert first_hour(date(2026, 3, 29), zone=ZoneInfo("UTC")) == datetime(2026, 3, 29, tzinfo=UTC)


@pytest.mark.parametrize(("day", "hours"), [(date(2026, 3, 28), 24), (date(2026, 3, 29), 23), (date(2026, 10, 25), 25)])
def test_a_day_on_which_the_clock_is_changed_has_23_or_25_hours(day: date, hours: int) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    start, end = (int(first_hour(each, zone=berlin).timestamp()) for each in (day, day + timedelta(days=1)))

    (found,) = days_of(range(start, end, 3600), zone=berlin)

    assert (found.day, found.hour_count, found.whole) == (day, hours, hours)


def test_no_hours_are_of_no_day() -> None:
    assert list(days_of(range(0), zone=ZoneInfo("UTC"))) == []


@given(
    zone=st.sampled_from(ZONES),
    since=st.datetimes(datetime(2010, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),
    hours=st.integers(1, 100),
)
def test_hours_stand_in_the_day_that_their_begin_has_on_the_clock(zone: str, since: datetime, hours: int) -> None:
    start = since.replace(minute=0, second=0, microsecond=0)
    place = ZoneInfo(zone)

    found = days_of(range(int(start.timestamp()), int((start + hours * HOUR).timestamp()), 3600), zone=place)

    told = [each.day for each in found for _ in range(each.hour_count)]
    assert told == [(start + number * HOUR).astimezone(place).date() for number in range(hours)]
    assert all(each.hour_count <= each.whole for each in found)


@given(
    zone=st.sampled_from(ZONES),
    since=st.datetimes(datetime(2010, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),
    minutes=st.integers(1, 10_000),
)
def test_days_of_a_stretch_follow_each_other_and_are_all_of_it(zone: str, since: datetime, minutes: int) -> None:
    until = since + timedelta(minutes=minutes)

    parts = list(days_between(since, until, zone=ZoneInfo(zone)))

    assert [begin for _, begin, _ in parts] == [since, *(end for _, _, end in parts[:-1])]
    assert parts[-1][2] == until
    assert [day for day, _, _ in parts] == sorted({day for day, _, _ in parts})
