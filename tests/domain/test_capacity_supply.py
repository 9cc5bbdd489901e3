import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.capacity.chances import SHARE_POINTS, SupplyInputs, points_with_more, supply_weeks, usable_ratio
from ops_pipelines.core.identity import NodeName
from ops_pipelines.teams.projects import Arrival, Retirement
from tests.domain.capacity_examples import AS_OF, H100, day, usable


def inputs(
    *,
    installed: float = 100.0,
    arrivals: tuple[Arrival, ...] = (),
    retirements: tuple[Retirement, ...] = (),
    out: tuple[float, ...] = (0.0,) * 14,
    stranded: tuple[float, ...] = (0.0,) * 14,
    rollouts: tuple[float, ...] = (),
) -> SupplyInputs:
    return SupplyInputs(
        installed={H100: installed},
        arrivals=arrivals,
        retirements=retirements,
        out_ratios={H100: out},
        stranded_ratios={H100: stranded},
        rollout_gpus={H100: rollouts},
    )


def arrival(gpus: int, number: int, probability: float = 1.0) -> Arrival:
    return Arrival(sku="hgx", gpu_type=H100, gpus=gpus, on=day(number), probability=probability)


def retirement(gpus: int, number: int) -> Retirement:
    return Retirement(nodes=(NodeName("n1"),), gpu_type=H100, gpus=gpus, on=day(number))


def test_what_is_out_and_what_is_stranded_is_taken_off_what_is_installed() -> None:
    found, notes = supply_weeks(inputs(out=(0.1,) * 14, stranded=(0.05,) * 14), first_day=AS_OF, weeks=1)

    assert [each.gpus for each in found[0].points] == pytest.approx([85])
    assert [each.probability for each in found[0].points] == pytest.approx([1])
    assert found[0].installed == 100
    assert notes == ()


def test_days_are_drawn_with_both_shares_of_the_same_day() -> None:
    found, _ = supply_weeks(inputs(out=(0.0, 0.2) * 7, stranded=(0.1, 0.0) * 7), first_day=AS_OF, weeks=1)

    assert [each.gpus for each in found[0].points] == pytest.approx([80, 90])
    assert [each.probability for each in found[0].points] == pytest.approx([0.5, 0.5])


def test_a_year_of_days_is_drawn_as_few_points_that_are_never_too_many_gpus() -> None:
    out = tuple(number / 1000 for number in range(365))

    found, _ = supply_weeks(inputs(out=out), first_day=AS_OF, weeks=1)

    assert len(found[0].points) == SHARE_POINTS
    mean = 100 * (1 - sum(out) / len(out))
    assert mean - 36.5 / SHARE_POINTS <= found[0].mean_gpus <= mean
    assert found[0].points[0].gpus == pytest.approx(100 - 36.4)


@pytest.mark.parametrize(("days", "is_assumed"), [(0, True), (13, True), (14, False), (15, False)])
def test_fewer_than_fourteen_days_are_no_measurement_and_the_assumption_is_said(days: int, is_assumed: bool) -> None:
    found, notes = supply_weeks(inputs(out=(0.0,) * days), first_day=AS_OF, weeks=1)

    assert found[0].points[0].gpus == pytest.approx(95 if is_assumed else 100)
    assert bool(notes) is is_assumed
    assert not notes or "5 % of what is installed is assumed" in notes[0]


@pytest.mark.parametrize(("on", "counts_from_week"), [(0, 0), (1, 1), (7, 1), (8, 2)])
def test_an_arrival_counts_from_the_first_whole_week(on: int, counts_from_week: int) -> None:
    found, _ = supply_weeks(inputs(arrivals=(arrival(50, on),)), first_day=AS_OF, weeks=3)

    assert [each.mean_gpus for each in found] == [150.0 if week >= counts_from_week else 100.0 for week in range(3)]


@pytest.mark.parametrize(("on", "gone_from_week"), [(0, 0), (6, 0), (7, 1), (13, 1), (14, 2)])
def test_a_retirement_counts_from_the_week_in_which_it_falls(on: int, gone_from_week: int) -> None:
    found, _ = supply_weeks(inputs(retirements=(retirement(40, on),)), first_day=AS_OF, weeks=3)

    assert [each.mean_gpus for each in found] == [60.0 if week >= gone_from_week else 100.0 for week in range(3)]


def test_an_uncertain_arrival_is_a_mixture() -> None:
    found, _ = supply_weeks(inputs(arrivals=(arrival(50, 0, 0.25),)), first_day=AS_OF, weeks=1)

    assert [each.gpus for each in found[0].points] == [100, 150]
    assert [each.probability for each in found[0].points] == pytest.approx([0.75, 0.25])
    assert found[0].installed == pytest.approx(112.5)


def test_what_was_due_before_the_forecast_is_not_counted_twice_and_said() -> None:
    found, notes = supply_weeks(
        inputs(arrivals=(arrival(50, -1),), retirements=(retirement(10, -1),)), first_day=AS_OF, weeks=1
    )

    assert found[0].mean_gpus == 100
    assert "taken to be among those installed" in notes[0]
    assert "taken to be gone" in notes[1]


def test_rollouts_take_their_gpus_in_their_weeks_alone_and_that_is_said() -> None:
    found, notes = supply_weeks(inputs(rollouts=(0.0, 30.0)), first_day=AS_OF, weeks=3)

    assert [each.mean_gpus for each in found] == [100, 70, 100]
    assert "rollouts" in notes[0]


def test_no_more_retires_than_is_there() -> None:
    found, notes = supply_weeks(inputs(retirements=(retirement(140, 0),)), first_day=AS_OF, weeks=1)

    assert [each.gpus for each in found[0].points] == [0]
    assert "no less than 0" in notes[0]


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a share of 1\.2 out of service"):
        supply_weeks(inputs(out=(1.2,) * 14), first_day=AS_OF, weeks=1)


@pytest.mark.parametrize("installed", [-1.0, float("nan"), float("inf")])
def test_an_amount_that_cannot_be_installed_is_refused(installed: float) -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        supply_weeks(inputs(installed=installed), first_day=AS_OF, weeks=1)


def test_more_gpus_are_out_like_the_others() -> None:
    week = usable((90.0, 1.0), installed=100.0)

    assert usable_ratio(week) == pytest.approx(0.9)
    assert points_with_more(week, 10)[0].gpus == pytest.approx(99)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(0, 1), min_size=14, max_size=60),
    st.lists(st.floats(0, 1), min_size=14, max_size=60),
    st.lists(st.tuples(st.integers(1, 64), st.integers(0, 20), st.floats(0.05, 1)), max_size=8),
    st.floats(0, 50),
)
def test_supply_is_a_distribution_between_nothing_and_what_is_installed(
    out: list[float], stranded: list[float], coming: list[tuple[int, int, float]], rollout: float
) -> None:
    arrivals = tuple(arrival(gpus, on, probability) for gpus, on, probability in coming)
    known = inputs(arrivals=arrivals, out=tuple(out), stranded=tuple(stranded), rollouts=(rollout,))

    found, _ = supply_weeks(known, first_day=AS_OF, weeks=3)

    for week in found:
        amounts = [each.gpus for each in week.points]
        assert len(amounts) <= 64
        assert amounts == sorted(set(amounts))
        assert math.fsum(each.probability for each in week.points) == pytest.approx(1)
        assert amounts[0] >= 0
        assert amounts[-1] <= 100 + sum(each.gpus for each in arrivals) + 1e-9
        assert week.mean_gpus <= week.installed + 1e-6
