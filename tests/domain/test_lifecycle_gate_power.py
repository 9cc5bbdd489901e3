"""What the gate says that it can find: by formula, and where the figures of the plan and of the documents come from."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.rollouts.gate.evidence import (
    SUSPICIOUS_AT,
    VerdictKind,
    chance_of_at_least,
    count_that_stops,
    known_rate,
)
from ops_pipelines.rollouts.gate.judge_wave import judge_wave
from ops_pipelines.rollouts.gate.measures import EVENTS_FALSE_STOP, EVENTS_LAST_LOOK, bad_per_node_day
from tests.domain.gate_power import false_stop_bound, node_days_needed, power_of_events, power_of_slowdown
from tests.domain.lifecycle_evidence import CLAIMS, FIRST, LIMITS, USUAL, evidence, failures, steps


def course(times: float, *, node_count: int = 30, kind_count: int = 1):
    return power_of_events(
        times * USUAL,
        usual_per_node_day=USUAL,
        node_count=node_count,
        claims=CLAIMS,
        soak=FIRST.soak,
        soak_limit=LIMITS.soak_limit,
        kind_count=kind_count,
    )


@pytest.mark.parametrize("model_count", [1, 2])
def test_all_tests_together_stop_a_good_release_at_most_once_in_five_hundred(model_count):
    assert false_stop_bound(model_count=model_count) <= 1 / 500


def test_each_further_model_adds_to_it():
    bounds = [false_stop_bound(model_count=count) for count in (1, 2, 3)]

    assert bounds == sorted(bounds)


def test_ten_times_as_many_failures_on_thirty_nodes_are_found_within_a_week():
    found = course(10)

    assert found.stopped >= 0.975
    assert found.asked == 0
    assert found.mean_days < 4.5


def test_with_five_kinds_of_events_each_is_still_found_92_times_of_100():
    found = course(10, kind_count=5)

    assert found.stopped >= 0.92
    assert found.passed <= 0.04


@pytest.mark.parametrize("kind_count", [1, 5])
def test_as_many_failures_as_ever_are_neither_stopped_nor_asked_about(kind_count):
    found = course(1, kind_count=kind_count)

    assert found.stopped <= EVENTS_FALSE_STOP + EVENTS_LAST_LOOK
    assert found.asked <= 1e-4
    assert found.passed >= 1 - 1e-3


def test_the_chances_of_a_course_sum_up_to_one():
    for times in (0.5, 1, 3, 10, 40):
        found = course(times)
        assert found.stopped + found.passed + found.asked == pytest.approx(1.0, abs=1e-9)


def test_the_more_often_things_fail_the_likelier_they_are_stopped():
    stopped = [course(times).stopped for times in (0.5, 1, 2, 5, 10, 20)]

    assert stopped == sorted(stopped)


def test_too_few_nodes_end_in_a_question():
    found = course(1, node_count=5)

    assert found.asked > 0.99


def test_thirty_nodes_in_a_week_are_more_node_days_than_the_last_look_needs():
    needed = {power: node_days_needed(usual_per_node_day=USUAL, claims=CLAIMS, power=power) for power in (0.85, 0.95)}

    assert 120 < needed[0.85] < needed[0.95] < 210


@pytest.mark.parametrize("usual", [0.001, USUAL, 0.02, 0.3])
def test_from_the_node_days_needed_on_the_last_look_finds_enough(usual):
    needed = node_days_needed(usual_per_node_day=usual, claims=CLAIMS, power=0.9)

    assert all(_last_look(usual, factor * needed) >= 0.9 - 1e-6 for factor in (1.0, 1.01, 1.3, 2.0, 10.0))
    assert _last_look(usual, 0.99 * needed) < 0.9


def _last_look(usual: float, node_days: float) -> float:
    """Return the chance that one look at this exposure finds what is claimed."""
    bad = bad_per_node_day(usual, before=usual, claims=CLAIMS)
    count = count_that_stops(node_days, usual=known_rate(usual), false_stop=EVENTS_LAST_LOOK)
    return chance_of_at_least(count, node_days, usual=known_rate(bad))


def test_four_canaries_with_two_runs_each_find_five_percent_19_times_of_20_by_formula():
    found = power_of_slowdown(node_count=4, before_count=8, after_count=2, run_spread_ratio=0.03, claims=CLAIMS)

    assert found >= 0.95


@pytest.mark.parametrize(
    "fewer", [{"node_count": 3}, {"after_count": 1}, {"before_count": 3}, {"run_spread_ratio": 0.04}]
)
def test_with_less_than_that_they_do_not(fewer):
    enough = {"node_count": 4, "before_count": 8, "after_count": 2, "run_spread_ratio": 0.03}

    assert power_of_slowdown(**(enough | fewer), claims=CLAIMS) < 0.95


def test_four_canaries_with_two_runs_each_find_five_percent_19_times_of_20_in_fact():
    rng = random.Random(2026)
    first = replace(FIRST, limits=replace(LIMITS, soak=timedelta(hours=4)))

    def held_share(slowdown: float, course_count: int) -> float:
        held = 0
        for _ in range(course_count):
            levels = steps(slowdown, node_count=4, before_count=8, after_count=2, rng=rng)
            verdict = judge_wave(evidence(8, levels=levels, counts=[failures(0, 1.3)], node_count=4), first)
            held += verdict.kind is not VerdictKind.GOOD
        return held / course_count

    assert held_share(0.05, 2_000) >= 0.95
    assert held_share(0.0, 2_000) <= 0.01


def test_being_held_is_evidence_of_five_to_one():
    assert pytest.approx(1.609, abs=1e-3) == SUSPICIOUS_AT
