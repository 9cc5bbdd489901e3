"""The picture of one incident, and its axis: order is kept, quiet times are cut and reported, words stay text."""

import re
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.report.pictures.story import Mark, StoryAxis, StoryBar, StoryLane, StoryRow, Tint, story_picture

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
TIMES = st.lists(st.floats(min_value=0, max_value=1e7, allow_nan=False), min_size=1, max_size=30)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def axis(*seconds: float) -> StoryAxis:
    return StoryAxis([at(each) for each in seconds], left=100, width=1000)


# -- the axis ---------------------------------------------------------------------------------------------------------


@given(times=TIMES, asked=TIMES)
@settings(max_examples=80, deadline=None)
def test_what_came_later_never_stands_left_of_what_came_before(times: list[float], asked: list[float]) -> None:
    drawn = axis(*times)
    places = [drawn.across(at(each)) for each in sorted(asked)]

    assert places == sorted(places)
    assert all(100 <= place <= 1100.001 for place in places)


@given(times=TIMES)
@settings(max_examples=80, deadline=None)
def test_first_and_last_time_stand_at_the_edges(times: list[float]) -> None:
    drawn = axis(*times)

    assert drawn.across(at(min(times))) == 100
    assert drawn.across(at(max(times))) == pytest.approx(1100 if at(max(times)) > at(min(times)) else 100)


def test_even_times_are_drawn_evenly_and_nothing_is_cut() -> None:
    drawn = axis(0, 10, 20, 30, 40, 50, 60)

    assert drawn.cuts == ()
    assert [drawn.across(at(each)) for each in (0, 15, 30, 60)] == pytest.approx([100, 350, 600, 1100])


def test_day_of_probation_leaves_room_for_the_minute_before_it() -> None:
    minute = (0, 10, 20, 30, 40, 50, 60)
    drawn = axis(*minute, 86_460)

    (cut,) = drawn.cuts
    assert cut.lasted == timedelta(days=1)
    assert drawn.across(at(60)) > 100 + 0.7 * 1000
    assert drawn.across(at(20)) - drawn.across(at(10)) == pytest.approx(drawn.across(at(60)) - drawn.across(at(50)))


def test_axis_without_a_time_is_none() -> None:
    with pytest.raises(ValueError, match="an axis needs a time"):
        StoryAxis([], left=0, width=10)


# -- the picture ------------------------------------------------------------------------------------------------------


def drawn(*rows: StoryRow, title: str = "jobs") -> tuple[str, str]:
    picture = story_picture(
        [StoryLane(title=title, rows=rows), StoryLane(title="nothing", rows=(StoryRow(name=""),))],
        milestones={1: NOW, 2: at(60)},
        key={Tint.GREEN: "well", Tint.ORANGE: "has stopped"},
        begins_at=NOW,
        ends_at=at(60),
    )
    wide, narrow = (b64decode(each.partition(",")[2]).decode() for each in (picture.wide, picture.narrow))
    return wide, narrow


def words_of(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("}text")]


def test_both_pictures_say_the_same_and_leave_empty_lanes_out() -> None:
    row = StoryRow(
        name="job 42",
        bars=(
            StoryBar(begins_at=NOW, ends_at=at(40), tint=Tint.GREEN, word="runs"),
            StoryBar(begins_at=at(40), ends_at=at(60), tint=Tint.ORANGE, word="has stopped"),
        ),
        marks=(Mark(at=at(40), tint=Tint.INK),),
    )
    for svg in drawn(row):
        words = words_of(svg)
        assert {"job 42", "runs", "well", "has stopped"} <= set(words)
        assert "nothing" not in words
        assert {"1", "2"} <= set(words)


def test_word_without_room_is_left_out_and_its_bar_is_still_seen() -> None:
    row = StoryRow(name="", bars=(StoryBar(begins_at=NOW, ends_at=at(0.001), tint=Tint.GREEN, word="an instant"),))

    wide, _ = drawn(row)

    assert "an instant" not in words_of(wide)
    assert 'width="2.5"' in wide


def test_picture_is_no_wider_than_its_sheet_and_names_are_cut() -> None:
    rows = [StoryRow(name="j" * 300, marks=(Mark(at=at(each), tint=Tint.INK),)) for each in range(9)]

    for svg, width in zip(drawn(*rows), (1040, 360), strict=True):
        assert ElementTree.fromstring(svg).get("width") == str(width)
        assert max(map(len, words_of(svg))) <= 50


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a\x00b\x1b[2J", "\u202etxt", "]]>&amp;'\"", "\ud800"])
def test_hostile_names_stay_text(name: str) -> None:
    for svg in drawn(StoryRow(name=name, marks=(Mark(at=NOW, tint=Tint.INK),)), title=name):
        tags = {each.tag.rpartition("}")[2] for each in ElementTree.fromstring(svg).iter()}
        assert tags <= {"svg", "rect", "path", "text"}


def test_times_outside_the_picture_are_drawn_at_its_edge() -> None:
    row = StoryRow(name="", bars=(StoryBar(begins_at=at(-9e5), ends_at=at(9e5), tint=Tint.GREEN, word="on"),))

    wide, _ = drawn(row)

    assert 'x="150.0"' in wide
    assert 'width="878.0"' in wide


def test_the_number_of_the_last_milestone_is_not_cut_off_at_the_edge() -> None:
    begins_at = datetime(2026, 11, 21, 7, tzinfo=UTC)
    ends_at = begins_at + timedelta(minutes=1)
    lane = StoryLane(title="node", rows=(StoryRow(name="", marks=(Mark(at=begins_at, tint=Tint.GREY),)),))

    found = story_picture(
        [lane], milestones={1: begins_at, 10: ends_at, 11: ends_at}, key={}, begins_at=begins_at, ends_at=ends_at
    )

    for uri, width in ((found.wide, 1040), (found.narrow, 360)):
        svg = b64decode(uri.partition(",")[2]).decode()
        (label,) = re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="(\w+)"[^>]*>10-11</text>', svg)
        half = 5 * 6.6 / 2
        assert float(label[0]) + (half if label[1] == "middle" else 0) <= width
