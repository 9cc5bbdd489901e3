"""Likelihood ratios and tails: against numbers known otherwise, and by what must hold of any of them."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.rollouts.gate.evidence import (
    Rate,
    chance_of_at_least,
    chance_of_shift,
    chance_that_failures_stop,
    count_that_stops,
    events_ratio,
    failures_ratio,
    known_rate,
    mean_ratio,
    power_of_shift,
    power_of_shift_ratio,
    shift_ratio,
)

USUAL = known_rate(0.0065)


@pytest.mark.parametrize(
    ("count", "mean", "chance"),
    [
        (0, 1.365, 1.0),
        (1, 1.365, 1 - math.exp(-1.365)),
        (2, 1.365, 1 - math.exp(-1.365) * 2.365),
        (3, 1.365, 1 - math.exp(-1.365) * (1 + 1.365 + 1.365**2 / 2)),
        (1, 0.0, 0.0),
        (0, 0.0, 1.0),
    ],
)
def test_the_tail_of_a_well_known_rate_is_poissons(count, mean, chance):
    assert chance_of_at_least(count, mean, usual=known_rate(1.0)) == pytest.approx(chance, abs=1e-5)


def test_the_tail_of_a_badly_known_rate_is_the_share_of_events_that_would_fall_on_the_treated():
    # As many node-days treated as not, one event there: of what comes before the next one there, each falls on either
    # side with a half.
    usual = Rate(count=1.0, exposure=100.0)

    assert [chance_of_at_least(count, 100.0, usual=usual) for count in (1, 2, 3)] == pytest.approx([0.5, 0.25, 0.125])


@pytest.mark.parametrize("mean", [800.0, 5_000.0])
def test_tails_of_large_counts_neither_vanish_nor_fill_up(mean):
    tail = chance_of_at_least(round(mean + 3.09 * math.sqrt(mean)), mean, usual=known_rate(1.0))

    assert tail == pytest.approx(1e-3, rel=0.35)
    assert chance_of_at_least(round(mean), mean, usual=known_rate(1.0)) == pytest.approx(0.5, abs=0.02)


@given(st.integers(1, 60), st.floats(0.1, 400), st.floats(0.5, 200), st.floats(10, 10_000))
def test_a_tail_falls_with_the_count_and_lies_between_no_and_sure(count, exposure, seen, known):
    usual = Rate(count=seen, exposure=known)

    here, next_one = (chance_of_at_least(each, exposure, usual=usual) for each in (count, count + 1))

    assert 0 <= next_one <= here <= 1


@pytest.mark.parametrize("false_stop", [1e-2, 1e-3, 2e-4])
@pytest.mark.parametrize("node_days", [1.0, 210.0, 40_000.0])
def test_the_count_that_stops_is_the_smallest_that_is_rare_enough(node_days, false_stop):
    count = count_that_stops(node_days, usual=USUAL, false_stop=false_stop)

    assert chance_of_at_least(count, node_days, usual=USUAL) <= false_stop
    assert chance_of_at_least(count - 1, node_days, usual=USUAL) > false_stop


def test_thirty_nodes_in_a_week_are_stopped_by_seven_failures_at_one_in_a_thousand():
    assert count_that_stops(210.0, usual=USUAL, false_stop=1e-3) == 7
    assert chance_of_at_least(7, 210.0, usual=USUAL.times(10)) == pytest.approx(0.983, abs=0.002)


def test_events_of_a_well_known_rate_have_poissons_ratio():
    ratio = events_ratio(3, 41.0, usual=USUAL, bad=USUAL.times(10))

    assert ratio == pytest.approx(3 * math.log(10) - 9 * 0.0065 * 41, abs=1e-3)


def test_events_without_exposure_say_nothing():
    assert events_ratio(0, 0.0, usual=USUAL, bad=USUAL.times(10)) == 0.0


@given(st.integers(0, 40), st.floats(0.01, 1_000), st.floats(0.5, 100), st.floats(1, 1e5), st.floats(2, 1_000))
def test_one_more_event_never_speaks_for_the_release(count, exposure, seen, known, times):
    usual = Rate(count=seen, exposure=known)

    fewer, more = (events_ratio(each, exposure, usual=usual, bad=usual.times(times)) for each in (count, count + 1))

    assert more >= fewer - 1e-9


@given(st.floats(1.01, 50), st.floats(0.01, 0.99))
def test_a_ratio_that_compares_with_the_others_is_fair_whatever_the_rate_is(times, share):
    # The next event falls on the treated with their share of the node-days: the mean ratio after it is as before.
    control = Rate(count=1e-12, exposure=1 - share)

    treated = math.exp(events_ratio(1, share, usual=control, bad=control.times(times)))
    one = Rate(count=1.0, exposure=1 - share)
    elsewhere = math.exp(events_ratio(0, share, usual=one, bad=one.times(times)))

    assert share * treated + (1 - share) * elsewhere == pytest.approx(1.0)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=5))
def test_a_mean_of_ratios_lies_between_them_and_never_below_a_share_of_the_loudest(ratios):
    mean = mean_ratio(ratios)

    assert min(ratios) - 1e-9 <= mean <= max(ratios) + 1e-9
    assert mean >= max(ratios) - math.log(len(ratios)) - 1e-9


def test_failures_are_weighed_by_both_chances():
    assert failures_ratio(2, 2, usual=0.01, bad=0.5) == pytest.approx(math.log(2_500))
    assert failures_ratio(0, 1, usual=0.01, bad=0.5) == pytest.approx(math.log(0.5 / 0.99))


def test_the_chance_that_failures_stop_is_exact():
    # Two of the first two, and nothing later: 1,000 tries would be needed for a third that is loud enough.
    only_two = math.log(2_400)
    of_two = chance_that_failures_stop(2, truth=0.01, usual=0.01, bad=0.5, stop_at=only_two)

    assert of_two == pytest.approx(1e-4)


@pytest.mark.parametrize("stop_at", [math.log(100), math.log(1_000), math.log(20_000)])
def test_failures_stop_less_often_than_villes_bound(stop_at):
    assert chance_that_failures_stop(400, truth=0.01, usual=0.01, bad=0.5, stop_at=stop_at) <= math.exp(-stop_at)


def test_a_shift_that_is_looked_at_after_every_run_stops_less_often_than_villes_bound():
    rng = random.Random(5)
    crossed, course_count, bound = 0, 3_000, 1 / 20
    for _ in range(course_count):
        before = sum(rng.gauss(0, 0.03) for _ in range(10)) / 10
        total = 0.0
        for count in range(1, 41):
            total += rng.gauss(0, 0.03)
            variance = 0.03**2 * (1 / 10 + 1 / count)
            if shift_ratio(total / count - before, variance, bad_shift=0.05) >= math.log(1 / bound):
                crossed += 1
                break

    assert crossed / course_count <= bound


def test_powers_of_a_shift_agree_with_each_other():
    variance = 1.4e-4
    line = 0.031  # of the shift itself
    at_least = shift_ratio(line, variance, bad_shift=0.05)

    by_ratio = power_of_shift_ratio(variance, bad_shift=0.05, at_least=at_least)
    by_tail = power_of_shift(variance, bad_shift=0.05, false_stop=chance_of_shift(line, variance))

    assert by_ratio == pytest.approx(by_tail)


@pytest.mark.parametrize(("count", "exposure"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_a_rate_of_nothing_is_refused(count, exposure):
    with pytest.raises(ValueError, match="not known"):
        Rate(count=count, exposure=exposure)
