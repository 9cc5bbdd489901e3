"""Pictures of capacity: well formed, reported in words, nothing beyond the sheet, nothing by colour alone."""

import math
import re
from datetime import date, timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ops_pipelines.report.pictures.capacity import Fan, FanWeek, Frame, ShortColumn, ThereWeek, fan_svg, shortage_svg

FIRST = date(2026, 10, 1)
EVIL = '"><script>alert(1)</script>\u202e & more'
NUMBERS = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


def day(week: int) -> date:
    return FIRST + timedelta(days=7 * week)


def fan(**changed: object) -> Fan:
    given_: dict[str, object] = {
        "title": "h100", "said": "peak 100", "unit": "GPUs",
        "past": [(day(-3), 90.0), (day(-2), 95.0), (day(-1), 99.0)],
        "weeks": [
            FanWeek(first_day=day(number), median=100.0, bands=((80.0, 120.0), (90.0, 110.0)), is_measured=number < 2)
            for number in range(4)
        ],
        "band_words": ("98 %", "50 %"),
        "there": [ThereWeek(first_day=day(number), low=90, middle=95, high=98, whole=100) for number in range(4)],
        "as_of": FIRST,
    }  # fmt: skip
    return Fan(**{**given_, **changed})  # type: ignore[arg-type]  # fields by name, as the test gives them


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def points_of(svg: str) -> list[tuple[float, float]]:
    found = []
    for each in parsed(svg).iter():
        numbers = [float(number) for number in NUMBERS.findall(each.get("points", ""))]
        found += list(zip(numbers[::2], numbers[1::2], strict=True))
    return found


def test_the_picture_is_told_in_words() -> None:
    root = parsed(fan_svg(fan()))

    assert [each.text for each in root[:2]] == ["h100", "peak 100"]
    assert root.get("role") == "img"


def test_each_form_is_named_in_the_legend() -> None:
    shown = fan_svg(fan(dots=[(day(0), 100.0, True), (day(1), 140.0, False)]))

    for words in (
        "past peak",
        "median",
        "98 %",
        "striped: width by rule",
        "usable, 5 to 95 %",
        "installed",
        "above the bound",
    ):
        assert words in shown


@pytest.mark.parametrize(("measured", "is_striped"), [(3, True), (4, False)])
def test_weeks_are_striped_only_where_the_width_follows_a_rule(measured: int, is_striped: bool) -> None:
    weeks = [
        FanWeek(first_day=day(number), median=1.0, bands=((0.0, 2.0),), is_measured=number < measured)
        for number in range(4)
    ]

    assert ("striped" in fan_svg(fan(weeks=weeks))) is is_striped


def test_a_short_week_is_marked_with_its_words_and_a_sign() -> None:
    shown = fan_svg(fan(marked=day(2), marked_words="short from then"))

    assert "short from then" in shown
    assert "h8l-4 6z" in shown
    assert "h8l-4 6z" not in fan_svg(fan())


def test_what_fell_outside_is_a_cross_and_no_dot() -> None:
    inside = parsed(fan_svg(Fan(title="", said="", unit="", dots=[(day(0), 1.0, True)])))
    outside = parsed(fan_svg(Fan(title="", said="", unit="", dots=[(day(0), 1.0, False)])))

    assert sum(each.tag.endswith("circle") for each in inside.iter()) == 2  # with the legend's
    assert not any(each.tag.endswith("circle") for each in outside.iter())


def test_a_week_that_nobody_counted_is_a_gap() -> None:
    whole = fan_svg(Fan(title="", said="", unit="", past=[(day(number), 1.0) for number in (0, 1, 2)]))
    torn = fan_svg(Fan(title="", said="", unit="", past=[(day(number), 1.0) for number in (0, 2)]))

    def lines(svg: str) -> int:
        return svg.count('stroke="#222222"') - 1  # the legend's

    assert (lines(whole), lines(torn)) == (1, 2)


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        fan_svg(Fan(title="", said="", unit=""))
    with pytest.raises(ValueError, match="no weeks"):
        shortage_svg([], limit=0.1, title="", said="")


def test_words_stay_text() -> None:
    for svg in (
        fan_svg(fan(title=EVIL, said=EVIL, unit=EVIL, marked=day(1), marked_words=EVIL)),
        shortage_svg([ShortColumn(first_day=FIRST, probability=0.5)], limit=0.1, title=EVIL, said=EVIL),
    ):
        parsed(svg)
        assert "<script" not in svg
        assert "\u202e" not in svg


@pytest.mark.parametrize("width", [336, 720])
@pytest.mark.parametrize("count", [1, 2, 53])
def test_all_that_is_drawn_lies_on_the_sheet(width: int, count: int) -> None:
    weeks = [
        FanWeek(first_day=day(number), median=10.0**number, bands=((0.0, 3 * 10.0**number),), is_measured=False)
        for number in range(count)
    ]
    svg = fan_svg(fan(weeks=weeks), width=width)

    assert all(0 <= x <= width for x, _ in points_of(svg))


@settings(derandomize=True, max_examples=60, deadline=None)
@example([0.0])
@example([7.5])
@given(st.lists(st.floats(min_value=0, max_value=1e16, allow_nan=False), min_size=1, max_size=30))
def test_every_value_has_its_room(values: list[float]) -> None:
    frame = Frame.around(days=(FIRST, day(1)), values=values, width=720, height=300, unit="")

    assert all(frame.top - 0.01 <= frame.y(each) <= frame.bottom + 0.01 for each in values)
    assert frame.low <= min(values) or math.isclose(frame.low, min(values))
    assert frame.high >= max(values) or math.isclose(frame.high, max(values))


@pytest.mark.parametrize(("least", "begins_at_0"), [(59.0, True), (61.0, False)])
def test_the_axis_begins_at_0_unless_all_lies_far_above_and_says_so(least: float, begins_at_0: bool) -> None:
    svg = fan_svg(Fan(title="", said="", unit="", past=[(day(0), least), (day(1), 100.0)]))

    assert ("begins at" not in svg) is begins_at_0


@pytest.mark.parametrize(("probability", "words"), [(0.1, "within the limit"), (0.1001, "above the limit")])
def test_a_week_at_the_limit_is_within_it(probability: float, words: str) -> None:
    svg = shortage_svg([ShortColumn(first_day=FIRST, probability=probability)], limit=0.1, title="", said="")

    assert words in svg
    assert svg.count("the limit</text>") == 1
    assert "limit 10 %" in svg


def test_columns_of_weeks_that_are_not_measured_are_narrow() -> None:
    svg = shortage_svg(
        [ShortColumn(first_day=day(each), probability=0.5, is_measured=each == 0) for each in range(2)],
        limit=0.1, title="", said="",
    )  # fmt: skip
    wide = [float(each.get("width", "0")) for each in parsed(svg) if each.tag.endswith("rect")]  # columns come first

    assert wide[0] > 1.5 * wide[1]
    assert "narrow: width by rule" in svg
