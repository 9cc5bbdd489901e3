import math
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.capacity.chances import EXACT_POINTS, KEPT_POINTS, make_fewer, sum_of_chances
from ops_pipelines.capacity.forecasting import change_in_week, mix_projects, mix_week
from ops_pipelines.capacity.model import LEVELS, SeriesKey, SeriesOutlook, WeekPeak
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.teams.projects import PlannedProject
from tests.domain.capacity_examples import AS_OF, H100, certain, day, even

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


def project(
    gpus: float = 10.0,
    *,
    name: str = "p",
    starts: date = AS_OF,
    ends: date | None = None,
    ramp_days: int = 0,
    probability: float = 1.0,
    gpu_type: GpuType = H100,
) -> PlannedProject:
    return PlannedProject(
        name=name, team=TeamName("vision"), gpu_type=gpu_type, gpus=gpus, starts_on=starts, ends_on=ends,
        ramp_days=ramp_days, probability=probability,
    )  # fmt: skip


def outlook(*weeks: WeekPeak, gpu_type: GpuType = H100, name: str = "") -> SeriesOutlook:
    return SeriesOutlook(
        key=SeriesKey(resource="gpus", gpu_type=gpu_type, name=name), treatment="ordinary", weeks=weeks
    )


@st.composite
def peaks(draw: st.DrawFn) -> WeekPeak:
    steps = draw(st.lists(st.integers(0, 20), min_size=len(LEVELS), max_size=len(LEVELS)))
    return WeekPeak(
        first_day=AS_OF, quantiles=tuple(float(sum(steps[: n + 1])) for n in range(len(LEVELS))), is_vouched=True
    )


@st.composite
def few_projects(draw: st.DrawFn) -> list[PlannedProject]:
    made = draw(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 20)), max_size=5))
    return [
        project(float(gpus), name=f"p{place}", probability=chance / 20) for place, (gpus, chance) in enumerate(made)
    ]


def test_a_certain_project_moves_every_quantile_by_its_size() -> None:
    base = even(100, 200)

    mixed = mix_week(base, [project(25)], as_of=AS_OF)

    assert mixed.quantiles == pytest.approx([each + 25 for each in base.quantiles])


def test_without_projects_the_peak_stays_as_it_is() -> None:
    assert mix_week(even(1, 2), [], as_of=AS_OF) == even(1, 2)


@pytest.mark.parametrize(("level", "peak"), [(0.6, 50.0), (0.65, 50.0), (0.7, 50.0), (0.75, 80.0), (0.99, 80.0)])
def test_a_project_of_three_in_ten_shows_above_the_level_of_seven_in_ten(level: float, peak: float) -> None:
    mixed = mix_week(certain(50), [project(30, probability=0.3)], as_of=AS_OF)

    assert mixed.quantiles[LEVELS.index(level)] == pytest.approx(peak, abs=1e-6)


def test_the_mixture_of_an_even_peak_and_one_project_is_as_computed_by_hand() -> None:
    # 0..100 evenly and half the time 100 more: evenly from 0 to 200, and the lumps of 1 % at the ends of each half.
    mixed = mix_week(even(0, 100), [project(100, probability=0.5)], as_of=AS_OF)

    assert mixed.at(0.25) == pytest.approx(50)
    assert mixed.at(0.75) == pytest.approx(150)
    assert mixed.at(0.95) == pytest.approx(190)


def test_two_projects_are_independent() -> None:
    # Both with 0.25, one with 0.5, none with 0.25.
    both = [project(10, name="a", probability=0.5), project(10, name="b", probability=0.5)]

    mixed = mix_week(certain(0), both, as_of=AS_OF)

    assert [mixed.at(level) for level in (0.2, 0.5, 0.8)] == pytest.approx([0, 10, 20])


@pytest.mark.parametrize(("starts", "added"), [(-1, 0.0), (0, 10.0), (6, 10.0), (7, 0.0)])
def test_only_what_begins_from_the_first_unknown_day_on_is_added(starts: int, added: float) -> None:
    assert change_in_week(project(10, starts=day(starts)), AS_OF, as_of=AS_OF) == added


def test_of_a_project_on_its_ramp_the_past_has_its_part_and_only_the_rest_is_added() -> None:
    # Ten days: the past's last day is its fifth, 50 of 100.
    begun = project(100, starts=day(-5), ramp_days=9, ends=day(14))

    assert change_in_week(begun, day(0), as_of=AS_OF) == pytest.approx(50)
    assert change_in_week(begun, day(7), as_of=AS_OF) == pytest.approx(50)
    assert change_in_week(begun, day(14), as_of=AS_OF) == pytest.approx(-50)


def test_what_a_project_had_is_taken_off_after_its_end_and_never_below_nothing() -> None:
    begun = project(80, starts=day(-30), ends=day(7))
    base = even(50, 100, week=1)

    mixed = mix_week(base, [begun], as_of=AS_OF)

    assert mixed.quantiles == pytest.approx([max(0.0, each - 80) for each in base.quantiles])


def test_notes_say_what_the_past_has_of_a_project_and_which_is_over() -> None:
    _, notes = mix_projects(
        [outlook(certain(5))],
        [project(8, name="old", starts=day(-40), ends=day(0)), project(8, name="on", starts=day(-1))],
        as_of=AS_OF,
    )

    assert any("project old" in each and "before the forecast" in each for each in notes)
    assert any("project on" in each and "8 of its 8 GPUs" in each for each in notes)


def test_a_project_without_a_type_is_for_the_only_type_and_that_is_said() -> None:
    mixed, notes = mix_projects([outlook(certain(5))], [project(3, gpu_type=GpuType(""))], as_of=AS_OF)

    assert mixed[0].weeks[0].at(0.5) == 8
    assert "names no type" in notes[0]


def test_a_type_that_only_projects_want_begins_at_nothing_and_is_not_vouched_for() -> None:
    mixed, notes = mix_projects([outlook(certain(5))], [project(3, gpu_type=GpuType("b200"))], as_of=AS_OF)

    assert [each.key.gpu_type for each in mixed] == ["b200", "h100"]
    assert mixed[0].weeks[0].at(0.5) == 3
    assert not mixed[0].weeks[0].is_vouched
    assert "nothing of the past is known of b200" in notes[0]


def test_projects_without_any_past_are_named_and_not_counted() -> None:
    mixed, notes = mix_projects([], [project()], as_of=AS_OF)

    assert mixed == ()
    assert "not counted" in notes[0]


def test_teams_and_further_resources_get_no_projects() -> None:
    mixed, _ = mix_projects([outlook(certain(5), name="vision")], [], as_of=AS_OF)

    assert mixed == ()


@SETTINGS
@given(peaks(), few_projects())
def test_projects_never_lower_a_peak_and_quantiles_never_fall(base: WeekPeak, projects: list[PlannedProject]) -> None:
    mixed = mix_week(base, projects, as_of=AS_OF).quantiles

    assert all(each >= past for each, past in zip(mixed, base.quantiles, strict=True))
    assert list(mixed) == sorted(mixed)
    assert mixed[-1] <= base.quantiles[-1] + sum(each.gpus for each in projects) + 1e-6


@SETTINGS
@given(peaks(), few_projects())
def test_the_order_of_projects_changes_nothing(base: WeekPeak, projects: list[PlannedProject]) -> None:
    turned = projects[::-1]

    assert mix_week(base, turned, as_of=AS_OF) == mix_week(base, projects, as_of=AS_OF)


@SETTINGS
@given(peaks(), few_projects(), st.integers(1, 30))
def test_more_gpus_or_more_chance_never_lower_a_peak(base: WeekPeak, projects: list[PlannedProject], more: int) -> None:
    before = mix_week(base, [*projects, project(8, name="x", probability=0.4)], as_of=AS_OF).quantiles
    larger = mix_week(base, [*projects, project(8 + more, name="x", probability=0.4)], as_of=AS_OF).quantiles
    likelier = mix_week(base, [*projects, project(8, name="x", probability=0.4 + more / 50)], as_of=AS_OF).quantiles

    assert all(each >= past - 1e-6 for each, past in zip(larger, before, strict=True))
    assert all(each >= past - 1e-6 for each, past in zip(likelier, before, strict=True))


def test_sums_of_few_chances_are_exact() -> None:
    assert sum_of_chances([(10, 0.5), (4, 0.25), (1, 1.0)]) == (
        (1, 0.375), (5, 0.125), (11, 0.375), (15, 0.125),
    )  # fmt: skip
    assert sum_of_chances([]) == ((0.0, 1.0),)


def test_what_is_taken_off_is_in_the_sum_with_its_sign() -> None:
    assert sum_of_chances([(-10, 0.25)]) == ((-10, 0.25), (0.0, 0.75))


@pytest.mark.parametrize("count", [10, 200])
@pytest.mark.parametrize("sign", [1, -1])
def test_many_chances_are_kept_on_few_points_that_never_make_the_sum_small(count: int, sign: int) -> None:
    chances = [(sign * (1 + 7.3 * number % 31), 0.05 + 0.9 * (number % 17) / 17) for number in range(count)]
    mean = sum(amount * chance for amount, chance in chances)
    reach = sum(abs(amount) for amount, _ in chances)

    points = sum_of_chances(chances)

    assert len(points) <= KEPT_POINTS
    assert math.fsum(weight for _, weight in points) == pytest.approx(1)
    found = math.fsum(amount * weight for amount, weight in points)
    assert mean - 1e-6 <= found <= mean + reach / (KEPT_POINTS - 2)
    assert min(amount for amount, _ in points) >= min(0, sign * reach) - 1e-6
    assert max(amount for amount, _ in points) <= max(0, sign * reach) + reach / EXACT_POINTS * count


@pytest.mark.parametrize("count", [12, 60, 200])
def test_what_many_chances_are_above_a_line_is_never_made_smaller_and_hardly_larger(count: int) -> None:
    chances = [(1 + 7 * number % 31, 0.05 + 0.9 * (number % 17) / 17) for number in range(count)]
    exact = [1.0]
    for amount, chance in chances:
        shifted = [0.0] * amount + [weight * chance for weight in exact]
        exact = [each + weight * (1 - chance) for each, weight in zip(shifted, [*exact, *[0.0] * amount], strict=True)]
    cell = (len(exact) - 1) / (KEPT_POINTS - 2)

    points = sum_of_chances(chances)

    for line in range(0, len(exact), 7):
        before = math.fsum((amount - line) * weight for amount, weight in enumerate(exact) if amount > line)
        after = math.fsum((amount - line) * weight for amount, weight in points if amount > line)
        assert before - 1e-9 <= after <= before + cell


@SETTINGS
@given(
    st.lists(st.tuples(st.integers(-500, 500), st.integers(1, 50)), min_size=1, max_size=300),
    st.integers(4, 64),
    st.integers(-500, 500),
)
def test_fewer_points_are_as_many_as_asked_and_never_below_the_others(
    made: list[tuple[int, int]], most: int, line: int
) -> None:
    total = sum(weight for _, weight in made)
    points = sorted({float(amount): weight / total for amount, weight in made}.items())

    fewer = make_fewer(points, most=most)

    assert len(fewer) <= most
    assert fewer[-1][0] == points[-1][0]
    assert [amount for amount, _ in fewer] == sorted({amount for amount, _ in fewer})
    before = sum(weight for amount, weight in points if amount > line)
    assert sum(weight for amount, weight in fewer if amount > line) >= before - 1e-12


def test_a_project_keeps_the_week_and_what_is_vouched() -> None:
    base = replace(even(0, 1, week=3), is_vouched=False)

    mixed = mix_week(base, [project()], as_of=AS_OF)

    assert (mixed.first_day, mixed.is_vouched) == (day(21), False)
