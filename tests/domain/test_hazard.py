"""What waiting under a fault costs: the closed forms say what adding up in small steps says."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.finding import (
    seconds_until_strike,
    strike_probability,
    work_struck,
    work_struck_between_checkpoints,
)

HOUR = 3600.0
RATES = (0.0, 1e-12, 1e-9, 0.02 / HOUR, 0.5 / HOUR, 10 / HOUR)
SPANS = (0.0, 1.0, 600.0, 5 * HOUR)
ANY_RATE = st.floats(0, 1e-2)
ANY_SPAN = st.floats(0, 1e7)


def summed(rate: float, seconds: float, unsaved_at: Callable[[float], float], *, steps: int = 4_000) -> float:
    """Return the expected unsaved work at a strike, by the middle of each of many short steps."""
    width = seconds / steps
    middles = ((step + 0.5) * width for step in range(steps))
    return sum(rate * math.exp(-rate * at) * unsaved_at(at) * width for at in middles)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("seconds", SPANS)
def test_work_struck_is_what_adding_up_gives(rate: float, seconds: float) -> None:
    found = work_struck(rate, unsaved_seconds=900.0, seconds=seconds)

    assert found == pytest.approx(summed(rate, seconds, lambda at: 900.0 + at), rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("seconds", [*SPANS, 599.0, 601.0, 600.0 + 2 * 1_800.0])
def test_checkpoints_begin_the_work_at_stake_anew(rate: float, seconds: float) -> None:
    def unsaved_at(at: float) -> float:
        return 900.0 + at if at < 600 else (at - 600) % 1_800

    found = work_struck_between_checkpoints(
        rate, unsaved_seconds=900.0, next_in_seconds=600.0, every_seconds=1_800.0, seconds=seconds
    )

    assert found == pytest.approx(summed(rate, seconds, unsaved_at), rel=1e-2, abs=1e-9)


@pytest.mark.parametrize(("rate", "seconds", "expected"), [(0.0, 50.0, 50.0), (1.0, 0.0, 0.0), (0.5, 1e9, 2.0)])
def test_time_under_the_fault_ends_with_its_strike(rate: float, seconds: float, expected: float) -> None:
    assert seconds_until_strike(rate, seconds) == pytest.approx(expected)


@given(rate=ANY_RATE, seconds=ANY_SPAN, unsaved=ANY_SPAN)
def test_no_more_is_struck_than_there_is(rate: float, seconds: float, unsaved: float) -> None:
    struck = work_struck(rate, unsaved_seconds=unsaved, seconds=seconds)

    assert 0 <= struck <= (unsaved + seconds) * strike_probability(rate, seconds) * (1 + 1e-6) + 1e-6


@given(rate=ANY_RATE, seconds=ANY_SPAN, unsaved=ANY_SPAN, first=ANY_SPAN, every=st.floats(0, 1e6))
def test_saving_never_costs_work(rate: float, seconds: float, unsaved: float, first: float, every: float) -> None:
    saved = work_struck_between_checkpoints(
        rate, unsaved_seconds=unsaved, next_in_seconds=first, every_seconds=every, seconds=seconds
    )

    assert 0 <= saved <= work_struck(rate, unsaved_seconds=unsaved, seconds=seconds) * (1 + 1e-6) + 1e-6
