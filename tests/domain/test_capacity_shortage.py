import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.capacity.chances import (
    DayProfile,
    Tail,
    chance_short,
    first_short,
    judge_week,
    mean_short,
    short_hours,
)
from ops_pipelines.capacity.model import LEVELS, SupplyPoint, WeekPeak
from tests.domain.capacity_examples import AS_OF, certain, day, even, usable

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
ALL_HOURS = DayProfile(near_peak_hours=24.0)


@st.composite
def tails(draw: st.DrawFn) -> tuple[WeekPeak, WeekPeak]:
    """A peak, and one that is nowhere smaller."""
    steps = draw(st.lists(st.integers(0, 20), min_size=len(LEVELS), max_size=len(LEVELS)))
    more = sorted(draw(st.lists(st.integers(0, 50), min_size=len(LEVELS), max_size=len(LEVELS))))
    low = tuple(float(sum(steps[: n + 1])) for n in range(len(LEVELS)))
    high = tuple(each + extra for each, extra in zip(low, more, strict=True))
    return tuple(WeekPeak(first_day=AS_OF, quantiles=each, is_vouched=True) for each in (low, high))  # type: ignore[return-value]  # two of them


def points(*amounts: float) -> tuple[SupplyPoint, ...]:
    return tuple(SupplyPoint(gpus=each, probability=1 / len(amounts)) for each in amounts)


@pytest.mark.parametrize(("supply", "chance", "mean"), [(99.9, 1.0, 0.1), (100.0, 0.0, 0.0), (100.1, 0.0, 0.0)])
def test_a_certain_peak_is_short_only_where_it_is_above_what_is_usable(
    supply: float, chance: float, mean: float
) -> None:
    tail = Tail(certain(100))

    assert chance_short(tail, points(supply)) == chance
    assert mean_short(tail, points(supply)) == pytest.approx(mean)


def test_an_even_peak_is_short_as_computed_by_hand() -> None:
    # 0..100: above 50 with one half, by 25 in the mean of that half. The last percent is at 99 and not above.
    tail = Tail(even(0, 100))

    assert tail.chance_above(50) == pytest.approx(0.5)
    assert tail.chance_above(90) == pytest.approx(0.1)
    assert tail.mean_above(50) == pytest.approx(0.5 * 25, abs=0.01)
    assert tail.mean == pytest.approx(50)
    assert tail.mean_above(-10) == pytest.approx(60)


def test_supply_that_may_be_low_is_weighed_by_its_probability() -> None:
    tail = Tail(certain(100))
    supply = (SupplyPoint(gpus=80, probability=0.3), SupplyPoint(gpus=120, probability=0.7))

    assert chance_short(tail, supply) == pytest.approx(0.3)
    assert mean_short(tail, supply) == pytest.approx(6)


def test_hours_follow_the_profile_of_the_week() -> None:
    # 10 short on the peak's day; 90 % of the peak is what is usable; days at half of it are not short.
    profile = DayProfile(near_peak_hours=6, day_ratios=(1.0, 0.95, 0.9, 0.5, 0.5, 0.5, 0.5))

    assert short_hours(Tail(certain(100)), points(90.0), profile) == pytest.approx(6 * (10 + 5))


def test_other_hours_count_where_their_demand_is_known() -> None:
    profile = DayProfile(near_peak_hours=6, rest_ratio=0.5)

    assert short_hours(Tail(certain(100)), points(40.0), profile) == pytest.approx(7 * (6 * 60 + 18 * 10))
    assert profile.counted_hours == 168
    assert DayProfile(near_peak_hours=6).counted_hours == 42


def test_a_week_is_judged_with_all_three_figures() -> None:
    found = judge_week(certain(100), usable((90.0, 0.5), (110.0, 0.5)), ALL_HOURS)

    assert found.shortage_probability == pytest.approx(0.5)
    assert found.expected_short_gpus == pytest.approx(5)
    assert found.expected_short_gpu_hours == pytest.approx(5 * 168)


def test_demand_and_supply_of_two_weeks_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one week"):
        judge_week(certain(100, week=1), usable((90.0, 1.0)), ALL_HOURS)


@pytest.mark.parametrize("start", [(2.0, 1.0), (float("nan"), 1.0), (1.0, float("nan")), (1.0, float("inf"))])
def test_quantiles_that_fall_or_are_no_numbers_are_refused(start: tuple[float, float]) -> None:
    fallen = WeekPeak(first_day=day(0), quantiles=(*start, *(3.0,) * (len(LEVELS) - 2)), is_vouched=True)

    with pytest.raises(ValueError, match="never fall"):
        Tail(fallen)


@pytest.mark.parametrize(
    "wrong",
    [{"near_peak_hours": 0.0}, {"near_peak_hours": 24.1}, {"near_peak_hours": 4.0, "day_ratios": (0.9,) * 7},
     {"near_peak_hours": 4.0, "rest_ratio": 1.1}],
)  # fmt: skip
def test_a_profile_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        DayProfile(**wrong)  # type: ignore[arg-type]  # rows of a table


@pytest.mark.parametrize(
    ("weeks", "least", "first"),
    [
        ("", 2, None), ("....", 2, None), ("x...", 2, None), ("x..x", 2, 0), ("x...x.x", 2, 4), (".xx.", 2, 1),
        ("x...", 1, 0), ("xxx.", 4, None), ("xxxx", 4, 0), ("...x", 2, 3), ("..x.", 2, None),
    ],
)  # fmt: skip
def test_one_bad_week_is_no_order_unless_it_is_the_last_that_is_known(
    weeks: str, least: int, first: int | None
) -> None:
    assert first_short([each == "x" for each in weeks], least_short_weeks=least) == first


@SETTINGS
@given(tails(), st.floats(0, 500), st.floats(0, 100))
def test_more_supply_never_makes_a_shortage_larger_nor_more_demand_smaller(
    peaks: tuple[WeekPeak, WeekPeak], line: float, more: float
) -> None:
    low, high = (Tail(each) for each in peaks)

    for judge in (chance_short, mean_short):
        assert judge(low, points(line + more)) <= judge(low, points(line)) + 1e-9
        assert judge(low, points(line)) <= judge(high, points(line)) + 1e-9
    assert 0 <= chance_short(low, points(line)) <= 1
    assert mean_short(low, points(line)) >= max(0.0, low.mean - line) - 1e-9


@SETTINGS
@given(tails(), st.floats(0, 400), st.floats(0.05, 1))
def test_the_mean_above_a_line_is_the_sum_of_the_chances_above_all_higher_lines(
    peaks: tuple[WeekPeak, WeekPeak], line: float, width: float
) -> None:
    tail = Tail(peaks[0])

    steps = [line + width * number for number in range(2)]
    fallen = tail.mean_above(steps[0]) - tail.mean_above(steps[1])

    assert width * tail.chance_above(steps[1]) - 1e-9 <= fallen <= width * tail.chance_above(steps[0]) + 1e-9
