"""Windows and freezes as absolute stretches: half-open, freezes win, and why nothing is started is reported with
names."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.periods import Interval, WorkCalendar, less, merged
from tests.domain.builders import NOW, after, ago
from tests.domain.lifecycle_fleet import calendars, stretches

thoroughly = settings(max_examples=80, deadline=None)


def stretch(since: float, until: float, name: str = "night") -> Interval:
    return Interval(begins_at=after(since), ends_at=after(until), name=name)


NIGHT = stretch(0, 100)
FREEZE = stretch(40, 60, "deadline")


@pytest.mark.parametrize(("seconds", "is_open"), [(-1, False), (0, True), (99, True), (100, False)])
def test_a_window_holds_its_first_instant_and_not_its_last(seconds: float, is_open: bool) -> None:
    assert WorkCalendar(windows=(NIGHT,)).is_open(after(seconds)) is is_open


@pytest.mark.parametrize(("seconds", "is_open"), [(39, True), (40, False), (59, False), (60, True)])
@pytest.mark.parametrize("windows", [None, (NIGHT,)], ids=["any time", "window"])
def test_a_freeze_closes_whatever_is_open(windows: tuple[Interval, ...] | None, seconds: float, is_open: bool) -> None:
    assert WorkCalendar(windows=windows, freezes=(FREEZE,)).is_open(after(seconds)) is is_open


@pytest.mark.parametrize(
    ("windows", "at", "closes_at"),
    [
        (None, 0, 40),
        (None, 40, None),
        (None, 60, None),
        ((NIGHT,), 0, 40),
        ((NIGHT,), 60, 100),
        ((NIGHT,), 100, None),
        ((NIGHT, stretch(100, 150)), 60, 150),
    ],
    ids=["freeze to come", "frozen", "nothing to come", "cut", "behind the cut", "closed", "windows that touch"],
)
def test_it_closes_where_the_next_freeze_begins_or_the_window_ends(
    windows: tuple[Interval, ...] | None, at: float, closes_at: float | None
) -> None:
    calendar = WorkCalendar(windows=windows, freezes=(FREEZE,))

    assert calendar.closes_at(after(at)) == (None if closes_at is None else after(closes_at))


@pytest.mark.parametrize(
    ("windows", "at", "opens_at"),
    [(None, 45, 60), ((NIGHT,), -50, 0), ((NIGHT,), 45, 60), ((NIGHT,), 100, None), ((), 0, None)],
    ids=["after the freeze", "next window", "rest of the window", "none to come", "none declared to be"],
)
def test_it_opens_when_the_freeze_is_over_or_the_next_window_comes(
    windows: tuple[Interval, ...] | None, at: float, opens_at: float | None
) -> None:
    calendar = WorkCalendar(windows=windows, freezes=(FREEZE,))

    assert calendar.opens_at(after(at)) == (None if opens_at is None else after(opens_at))


def test_why_it_is_closed_names_every_freeze_that_holds_and_when_the_last_is_over() -> None:
    calendar = WorkCalendar(windows=None, freezes=(FREEZE, stretch(50, 3600, "visit"), stretch(9000, 9900, "later")))

    assert calendar.why_closed(after(55)) == "freeze 'deadline', 'visit' holds until 2026-11-21 08:30 UTC"
    assert calendar.why_closed(after(39)) is None


def test_why_it_is_closed_names_the_next_window() -> None:
    calendar = WorkCalendar(windows=(stretch(7200, 9000, "thursdays"), NIGHT))

    assert calendar.why_closed(after(100)) == (
        "outside the maintenance windows; the next, 'thursdays', opens at 2026-11-21 09:30 UTC"
    )
    assert replace(calendar, known_until=after(86_400)).why_closed(after(9000)) == (
        "no maintenance window is known to come until 2026-11-22; declare one in policy.yaml"
    )


@pytest.mark.parametrize(
    ("begins_at", "ends_at"),
    [(NOW, NOW), (NOW, ago(1)), (NOW.replace(tzinfo=None), after(1)), (NOW, after(1).replace(tzinfo=None))],
)
def test_a_stretch_without_length_or_zone_is_refused(begins_at, ends_at) -> None:
    with pytest.raises(ValueError, match="'x'"):
        Interval(begins_at=begins_at, ends_at=ends_at, name="x")


@thoroughly
@given(calendars(), st.integers(min_value=-60, max_value=24 * 24))
def test_work_is_open_exactly_inside_a_window_and_outside_every_freeze(calendar: WorkCalendar, hour: int) -> None:
    at = NOW + timedelta(hours=hour)
    in_window = calendar.windows is None or any(each.holds(at) for each in calendar.windows)
    is_frozen = any(each.holds(at) for each in calendar.freezes)

    is_open = calendar.is_open(at)

    assert is_open is (in_window and not is_frozen)
    assert (calendar.why_closed(at) is None) is is_open


@thoroughly
@given(calendars(), st.integers(min_value=-60, max_value=24 * 24))
def test_what_opens_is_open_until_it_closes_and_closed_before(calendar: WorkCalendar, hour: int) -> None:
    at = NOW + timedelta(hours=hour)
    opens_at = calendar.opens_at(at)
    if opens_at is None:
        assert not any(calendar.is_open(at + timedelta(hours=each)) for each in range(24 * 30))
        return
    closes_at = calendar.closes_at(opens_at)

    assert calendar.is_open(opens_at)
    assert not any(
        calendar.is_open(at + timedelta(hours=each)) for each in range((opens_at - at) // timedelta(hours=1))
    )
    if closes_at is not None:
        assert not calendar.is_open(closes_at)
        assert calendar.is_open(closes_at - timedelta(seconds=1))


@thoroughly
@given(calendars(), st.integers(min_value=-60, max_value=400), st.integers(min_value=1, max_value=200))
def test_open_intervals_are_in_order_apart_within_what_was_asked_and_open(
    calendar: WorkCalendar, hour: int, length: int
) -> None:
    since, until = NOW + timedelta(hours=hour), NOW + timedelta(hours=hour + length)

    found = calendar.open_intervals(since, until)

    assert calendar.open_intervals(until, since) == ()
    assert all(one.ends_at < other.begins_at for one, other in pairwise(found))
    for each in range(length):
        at = since + timedelta(hours=each)
        assert calendar.is_open(at) is any(stretch.holds(at) for stretch in found)


@thoroughly
@given(st.lists(stretches(), max_size=10), st.lists(stretches(), max_size=10))
def test_nothing_that_was_taken_away_is_left_and_nothing_else_is_missing(
    given_: list[Interval], taken: list[Interval]
) -> None:
    left = list(less(merged(given_), merged(taken)))

    for hour in range(-60, 24 * 24):
        at = NOW + timedelta(hours=hour)
        expected = any(each.holds(at) for each in given_) and not any(each.holds(at) for each in taken)
        assert any(each.holds(at) for each in left) is expected
