from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.capacity.chances import DayProfile
from ops_pipelines.capacity.model import RegretRow
from ops_pipelines.capacity.need import cents_per_gpu_hour, counts_around, regret_rows
from tests.domain.capacity_examples import AS_OF, H100, day, even, sku, weeks_of

ALL_HOURS = DayProfile(near_peak_hours=24.0)
HOURLY = sku(price=48 * 730 * 100, gpus_per_node=1)
"""100 cents for an hour of its one GPU."""
EVEN = weeks_of([even(1000, 2000, week=number) for number in range(3)], gpus=1000.0)


def rows_of(nodes: int, *ratios: float) -> tuple[RegretRow, ...]:
    return regret_rows(H100, EVEN, HOURLY, ALL_HOURS, nodes=nodes, since=AS_OF, ratios=ratios)


def test_an_hour_costs_its_share_of_price_and_support() -> None:
    assert cents_per_gpu_hour(HOURLY) == 100
    assert cents_per_gpu_hour(sku(price=0, support=7300, gpus_per_node=2)) == Fraction(5)


@pytest.mark.parametrize(("ratio", "best"), [(1.0, 450), (3.0, 750), (9.0, 900)])
def test_the_best_number_is_where_ratio_over_ratio_plus_one_of_the_peaks_are_served(ratio: float, best: int) -> None:
    # Beyond what is there peaks are evenly 0 to 1000: one half, 0.75 and 0.9 of them are served by 500, 750, 900.
    rows = rows_of(900, ratio)

    assert [each.nodes for each in rows if each.regret_by_ratio[0] == 0] == [best]
    assert min(rows, key=lambda each: abs(each.nodes - 1000 * ratio / (1 + ratio))).nodes == best


def test_idle_and_short_hours_are_as_computed_by_hand() -> None:
    # 500 more: one half of the time short by 250 in the mean, the other half 250 of them idle; three weeks.
    row = next(each for each in rows_of(500, 3.0) if each.nodes == 500)

    assert row.short_gpu_hours == pytest.approx(3 * 168 * 125, rel=1e-3)
    assert row.idle_gpu_hours == pytest.approx(3 * 168 * 125, rel=1e-3)
    assert row.cents_by_ratio[0] == pytest.approx(100 * (1 + 3) * 3 * 168 * 125, rel=1e-3)


def test_nothing_bought_is_nothing_idle() -> None:
    assert rows_of(500, 3.0)[0].idle_gpu_hours == 0


@pytest.mark.parametrize(
    ("nodes", "counts"),
    [
        (0, (0, 1, 2)),
        (1, (0, 1, 2)),
        (2, (0, 1, 2, 3, 4)),
        (12, (0, 2, 4, 6, 8, 10, 11, 12, 13, 14, 16, 18, 20, 22, 24)),
    ],
)
def test_rows_are_nothing_the_number_its_neighbours_and_up_to_twice_of_it(nodes: int, counts: tuple[int, ...]) -> None:
    assert counts_around(nodes) == counts


def test_only_weeks_in_which_an_order_serves_are_counted() -> None:
    late = regret_rows(H100, EVEN, HOURLY, ALL_HOURS, nodes=500, since=day(14), ratios=(3.0,))

    assert late[0].short_gpu_hours == pytest.approx(rows_of(500, 3.0)[0].short_gpu_hours / 3)
    assert regret_rows(H100, EVEN, HOURLY, ALL_HOURS, nodes=500, since=day(15), ratios=(3.0,)) == ()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2000), st.lists(st.floats(0.1, 50), min_size=1, max_size=4))
def test_more_nodes_are_never_less_idle_nor_more_short_and_somewhere_there_is_no_regret(
    nodes: int, ratios: list[float]
) -> None:
    rows = rows_of(nodes, *ratios)

    short = [each.short_gpu_hours for each in rows]
    idle = [each.idle_gpu_hours for each in rows]
    assert short == sorted(short, reverse=True)
    assert all(later >= before - 1e-6 for before, later in pairwise(idle))
    for place in range(len(ratios)):
        assert min(each.regret_by_ratio[place] for each in rows) == 0
