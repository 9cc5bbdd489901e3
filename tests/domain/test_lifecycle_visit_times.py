"""How long nodes are expected to be out: by assumption at first, as measured once a few came back."""

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Activation, Component
from ops_pipelines.rollouts.planner import MeasuredVisits, VisitTimes, visit_times
from tests.domain.lifecycle_fleet import change, release

LIMITS = RolloutLimits(good_read_count=3, good_read_every=timedelta(seconds=30), soak_limit=timedelta(days=5))
DRIVER = release(change(activation=Activation.DRIVER_RELOAD))
TEN, TWENTY, HOUR = timedelta(minutes=10), timedelta(minutes=20), timedelta(hours=1)


def times(*, canaries: tuple[timedelta, ...] = (), others: tuple[timedelta, ...] = ()) -> VisitTimes:
    return visit_times(DRIVER, limits=LIMITS, measured=MeasuredVisits(canaries=canaries, others=others))


def test_without_a_visit_so_far_assumptions_hold() -> None:
    found = visit_times(DRIVER, limits=LIMITS)

    assert found.visit == timedelta(minutes=5 + 1 + 4, seconds=90)
    assert found.canary_extra == timedelta(minutes=70)
    assert found.deciding_soak == timedelta(days=5)


@pytest.mark.parametrize(("weaker", "stronger"), list(pairwise(Activation)))
def test_a_stronger_restart_takes_longer(weaker: Activation, stronger: Activation) -> None:
    short, long = (visit_times(release(change(activation=each)), limits=LIMITS) for each in (weaker, stronger))

    assert short.visit < long.visit


def test_each_step_takes_its_own_time_and_a_bundle_is_one() -> None:
    parts = {"activation": Activation.LIVE}
    apart = release(change(Component.DCGM, **parts), change(Component.CUDA, **parts))
    together = release(change(Component.DCGM, bundle="a", **parts), change(Component.CUDA, bundle="a", **parts))

    difference = visit_times(apart, limits=LIMITS).visit - visit_times(together, limits=LIMITS).visit

    assert difference == timedelta(minutes=5, seconds=90)


@pytest.mark.parametrize(("count", "is_believed"), [(2, False), (3, True), (4, True)])
def test_three_visits_say_more_than_the_assumptions(count: int, is_believed: bool) -> None:
    assert (times(others=(HOUR,) * count).visit == HOUR) is is_believed
    assert (times(canaries=(3 * HOUR,) * count).canary_extra == 3 * HOUR - times().visit) is is_believed


def test_the_middle_of_what_was_measured_is_taken() -> None:
    assert times(others=(TEN, TWENTY, 50 * HOUR)).visit == TWENTY


def test_canaries_that_were_faster_than_the_others_add_nothing() -> None:
    found = times(canaries=(TEN,) * 3, others=(HOUR,) * 3)

    assert (found.visit, found.canary_extra) == (HOUR, timedelta(0))


spans = st.lists(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=2)), max_size=6)


@settings(max_examples=50, deadline=None)
@given(spans, spans)
def test_a_visit_takes_some_time_and_a_canary_no_less_whatever_was_measured(canaries, others) -> None:
    found = visit_times(DRIVER, limits=LIMITS, measured=MeasuredVisits(canaries=canaries, others=others))

    assert found.visit > timedelta(0)
    assert found.canary_extra >= timedelta(0)
