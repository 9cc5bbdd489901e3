"""The gate: what each kind of evidence makes of a wave, at its boundaries and beside them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.core.rollout import Wave
from ops_pipelines.rollouts.gate.evidence import ControlShift, EventKind, LevelKind, VerdictKind
from ops_pipelines.rollouts.gate.judge_wave import MARGIN, foreseen_sight, judge_wave, soak_of, sought_in
from ops_pipelines.rollouts.gate.measures import control_shift, usual_rate
from tests.domain.lifecycle_evidence import (
    BEGAN,
    CLAIMS,
    DECIDING,
    FIRST,
    LATER,
    LIMITS,
    USUAL,
    cause,
    evidence,
    failures,
    names,
    steps,
    tries,
)

GOOD, STOP, ASK, UNDECIDED = VerdictKind.GOOD, VerdictKind.STOP, VerdictKind.ASK, VerdictKind.UNDECIDED
WEEK = 7 * 24.0


def kind_of(looking=DECIDING, **evidence_in):
    return judge_wave(evidence(**evidence_in), looking).kind


# -- updates --


@pytest.mark.parametrize(
    ("failed_count", "count", "kind"),
    [(1, 1, GOOD), (2, 2, STOP), (2, 3, GOOD), (3, 8, STOP), (3, 9, GOOD), (4, 15, STOP), (4, 16, GOOD)],
)
def test_two_failures_of_the_first_two_stop_and_one_never_does(failed_count, count, kind):
    assert kind_of(FIRST, tried=tries(failed_count, count), hours=9) is kind


def test_a_model_on_which_every_update_fails_stops_among_many_good_ones():
    good = tries(0, 20, model="h100")
    bad = tuple(replace(each, model="h200") for each in tries(2, 2))

    assert kind_of(tried=(*good, *bad)) is STOP
    assert kind_of(LATER, tried=(*good, bad[0])) is GOOD


@pytest.mark.parametrize(("alike", "kind"), [(3, STOP), (2, GOOD)])
def test_what_fails_alike_on_several_nodes_stops(alike, kind):
    tried = tries(alike, 20, signature="verifying: driver runs nothing")

    assert kind_of(LATER, tried=tried) is kind


def test_as_many_failures_of_different_kinds_do_not_stop():
    tried = tuple(replace(each, signature=f"testing: {place}") for place, each in enumerate(tries(3, 20)))

    assert kind_of(LATER, tried=tried) is GOOD


def test_a_lone_failure_of_the_only_canary_lets_the_next_wave_tell_at_once():
    verdict = judge_wave(evidence(0.1, tried=tries(1, 1), counts=[failures(0, 0.0)], levels=(), soaks={}), FIRST)

    assert verdict.kind is GOOD
    assert "next wave" in verdict.reason


def test_a_deciding_wave_of_which_nobody_works_is_never_good():
    verdict = judge_wave(evidence(WEEK, soaks={}), DECIDING)

    assert verdict.kind is ASK
    assert "no node of the wave works" in verdict.reason


# -- common causes --


@pytest.mark.parametrize(
    ("node_count", "node_days", "kind"), [(1, 0.5, GOOD), (2, 10.0, STOP), (2, 100.0, GOOD), (3, 40.0, STOP)]
)
def test_one_cause_on_several_updated_nodes_stops_by_itself(node_count, node_days, kind):
    assert kind_of(LATER, causes=[cause(node_count, node_days)]) is kind


def test_a_cause_that_the_others_have_as_often_does_not_stop():
    assert kind_of(LATER, causes=[cause(3, 40.0, control_count=400)]) is GOOD


# -- events --


@pytest.mark.parametrize(("count", "kind"), [(6, GOOD), (7, STOP), (8, STOP)])
def test_at_the_limit_seven_failures_on_thirty_nodes_in_a_week_stop(count, kind):
    assert kind_of(hours=WEEK, counts=[failures(count, 210.0)]) is kind


@pytest.mark.parametrize(("hours", "kind"), [(WEEK - 1, UNDECIDED), (WEEK, GOOD), (WEEK + 1, GOOD)])
def test_before_the_limit_as_many_leave_it_open(hours, kind):
    assert kind_of(hours=hours, counts=[failures(5, 210.0)]) is kind


@pytest.mark.parametrize(("node_days", "kind"), [(98.0, UNDECIDED), (100.0, GOOD)])
def test_no_failure_at_all_is_good_when_ten_times_as_many_would_have_shown(node_days, kind):
    assert kind_of(hours=72, counts=[failures(0, node_days)]) is kind


@pytest.mark.parametrize("hours", [9.0, WEEK, 3 * WEEK])
def test_nodes_without_exposure_are_never_good_and_at_the_limit_people_are_asked(hours):
    kind = kind_of(hours=hours, counts=[failures(0, 0.5)])

    assert kind is (UNDECIDED if hours < WEEK else ASK)


def test_failures_are_counted_before_the_wave_is_updated_too():
    updating = replace(DECIDING, is_updated=False)

    assert kind_of(updating, hours=1, counts=[failures(6, 1.0)]) is STOP
    assert kind_of(updating, hours=9, counts=[failures(0, 400.0)]) is UNDECIDED


def test_what_strikes_everybody_alike_does_not_stop():
    # A bad day of the fabric: a hundred times the usual rate, on the untouched as on the updated.
    bad_day = failures(20, 30.0, control_count=640, control_node_days=970.0, past_count=91, past_node_days=14_000.0)

    assert kind_of(hours=24, counts=[bad_day]) is UNDECIDED
    assert kind_of(hours=24, counts=[failures(20, 30.0, control_count=7, control_node_days=970.0)]) is STOP


def test_a_control_that_was_lucky_is_helped_by_the_past():
    lucky = failures(5, 210.0, control_count=25, control_node_days=6_790.0)
    known = replace(lucky, past_count=91, past_node_days=14_000.0)

    assert usual_rate(lucky).mean < usual_rate(known).mean < USUAL
    assert kind_of(hours=WEEK, counts=[known]) is GOOD


def test_the_past_yields_to_many_who_say_otherwise_now():
    now_ten_times = failures(
        0, 1.0, control_count=630, control_node_days=9_700.0, past_count=91, past_node_days=14_000.0
    )

    assert usual_rate(now_ten_times).mean == pytest.approx(10 * USUAL, rel=0.3)


@pytest.mark.parametrize(("own_count", "times"), [(2, 1.0), (8, 1.0), (9, 10 / 3.73), (20, 21 / 3.73)])
def test_nodes_that_were_worse_before_are_expected_to_be_so_again(own_count, times):
    like_others = usual_rate(failures(0, 1.0))
    own = usual_rate(failures(0, 1.0, own_count=own_count, own_node_days=420.0))

    assert own.mean / like_others.mean == pytest.approx(times, rel=0.02)


def test_what_hardly_ever_happens_is_looked_for_at_what_can_be_seen():
    rare = failures(0, 100.0, kind=EventKind.ECC, control_count=0)

    assert kind_of(hours=96, counts=[rare]) is GOOD
    assert kind_of(hours=96, counts=[replace(rare, treated_count=4)]) is STOP


def test_a_wave_of_which_nothing_is_counted_or_measured_is_not_good():
    assert kind_of(hours=WEEK, counts=[]) is ASK
    assert kind_of(hours=WEEK, levels=[]) is ASK
    assert kind_of(FIRST, counts=[], levels=[]) is GOOD


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="negative"):
        failures(-1, 1.0)


# -- levels --


@pytest.mark.parametrize("kind", list(LevelKind))
@pytest.mark.parametrize(("worse", "verdict"), [(0.0, GOOD), (0.05, STOP), (0.2, STOP), (-0.05, GOOD)])
def test_a_slow_down_of_what_is_claimed_stops_and_a_gain_does_not(kind, worse, verdict):
    change = worse if kind is LevelKind.STEP_TIME else -worse

    assert kind_of(counts=[failures(0, 100.0)], levels=steps(change, kind=kind)) is verdict


def test_a_slow_day_of_everybody_does_not_stop():
    slow_day = control_shift(LevelKind.STEP_TIME, steps(0.2, node_count=50))

    assert slow_day.shift_ratio == pytest.approx(0.2)
    assert kind_of(counts=[failures(0, 100.0)], levels=steps(0.2), shifts=[slow_day]) is GOOD
    assert kind_of(counts=[failures(0, 100.0)], levels=steps(0.26), shifts=[slow_day]) is STOP


def test_nobody_untouched_is_no_shift():
    assert control_shift(LevelKind.STEP_TIME, ()) == ControlShift(
        kind=LevelKind.STEP_TIME, shift_ratio=0.0, node_count=0
    )


def test_few_untouched_nodes_are_believed_less_than_many():
    shifts = [ControlShift(kind=LevelKind.STEP_TIME, shift_ratio=0.0, node_count=count) for count in (1, 100)]
    few, many = (judge_wave(evidence(levels=steps(0.0), shifts=[each]), DECIDING).tests[-1] for each in shifts)

    assert many.state is GOOD
    assert few.state is UNDECIDED


def test_a_single_broken_node_does_not_speak_for_the_others():
    broken = replace(steps(0.0, node_count=1)[0], after=(9.0,) * 10)

    assert kind_of(counts=[failures(0, 100.0)], levels=(broken, *steps(0.0)[1:])) is GOOD


def test_a_single_outlier_of_the_past_does_not_blind_the_test():
    odd = steps(0.05)[0]
    odd = replace(odd, before=(*odd.before[:-1], 20.0))

    assert kind_of(counts=[failures(0, 100.0)], levels=(odd, *steps(0.05)[1:])) is STOP


def test_a_release_that_slows_one_model_only_stops():
    tried = tuple(replace(each, model="h200" if place < 6 else "h100") for place, each in enumerate(tries(0, 30)))
    levels = (*steps(0.05)[:6], *steps(0.0)[6:])

    verdict = judge_wave(evidence(tried=tried, levels=levels), DECIDING)

    assert verdict.kind is STOP
    assert verdict.reason.startswith("step time of h200")


@pytest.mark.parametrize(
    ("before", "after"), [((), (2.0, 2.0)), ((2.0,), (2.0, 2.0)), ((2.0, 2.1), ()), ((0.0, 0.0), (1.0,))]
)
def test_a_node_without_a_past_or_a_present_says_nothing(before, after):
    alone = replace(steps(0.0, node_count=1)[0], before=before, after=after)

    verdict = judge_wave(evidence(counts=[failures(0, 100.0)], levels=[alone]), DECIDING)

    assert alone.moved is None
    assert verdict.kind is UNDECIDED


def test_the_first_canaries_are_held_on_a_suspicion_and_then_the_next_ones_are_asked():
    # One node with ten runs of its past can never be sure of five percent.
    slow = steps(0.05, node_count=1, after_count=8)
    held = [
        kind_of(FIRST, hours=hours, levels=slow, counts=[failures(0, hours / 24)], node_count=1)
        for hours in (8.0, 15.9, 16.0)
    ]

    assert held == [UNDECIDED, UNDECIDED, GOOD]


def test_a_later_wave_is_held_as_long_as_something_speaks_against_it():
    suspicious = failures(5, 90.0)

    assert kind_of(LATER, hours=60, counts=[suspicious]) is UNDECIDED
    assert kind_of(LATER, hours=60, counts=[replace(suspicious, treated_count=2)]) is GOOD


# -- time --


@pytest.mark.parametrize(("hours", "kind"), [(7.9, UNDECIDED), (8.0, GOOD), (8.1, GOOD)])
def test_a_wave_is_not_good_before_its_soak_is_over(hours, kind):
    assert kind_of(FIRST, hours=hours) is kind


@pytest.mark.parametrize(("hours", "kind"), [(24.9, UNDECIDED), (25.0, GOOD), (25.1, GOOD)])
def test_a_soak_lasts_an_hour_longer_than_the_slowest_failure_that_is_claimed(hours, kind):
    slow = replace(FIRST, claims=replace(CLAIMS, slowest_failure=timedelta(hours=24)))

    assert slow.soak == timedelta(hours=24) + MARGIN
    assert kind_of(slow, hours=hours) is kind


@pytest.mark.parametrize(("claimed", "margin"), [(0.001, 0.001), (0.999, 0.999), (1.0, 1.0), (1.001, 1.0)])
def test_the_margin_is_never_more_than_the_slowest_failure_that_is_claimed(claimed, margin):
    claims, limits = replace(CLAIMS, slowest_failure=timedelta(hours=claimed)), replace(FIRST.limits, soak=timedelta(0))

    assert soak_of(claims, limits) == timedelta(hours=claimed) + timedelta(hours=margin)


@pytest.mark.parametrize(("hours", "kind"), [(10.0, UNDECIDED), (WEEK - 0.1, UNDECIDED), (WEEK, ASK)])
def test_a_canary_that_stood_idle_holds_its_wave_until_people_are_asked(hours, kind):
    soaks = dict.fromkeys(names(30), timedelta(hours=hours)) | {names(30)[4]: timedelta(0)}

    verdict = judge_wave(evidence(hours, counts=[failures(0, 200.0)], soaks=soaks), DECIDING)

    assert verdict.kind is kind
    assert "gpu004 (0.0 h)" in verdict.reason


def test_a_later_wave_does_not_wait_for_every_single_node():
    soaks = dict.fromkeys(names(30), timedelta(hours=9)) | {names(30)[4]: timedelta(0)}

    assert kind_of(LATER, soaks=soaks) is GOOD


@pytest.mark.parametrize(("more_hours", "kind"), [(WEEK - 0.1, UNDECIDED), (WEEK, ASK)])
def test_the_time_of_a_wave_that_was_resumed_before_its_limit_counts_anew(more_hours, kind):
    asked_at = WEEK - 0.1
    resumed = replace(DECIDING, resumed_at=BEGAN + timedelta(hours=asked_at))

    verdict = judge_wave(evidence(asked_at + more_hours, counts=[failures(0, 0.5)]), resumed)

    assert verdict.kind is kind
    assert verdict.decides_by in (None, BEGAN + timedelta(hours=asked_at + WEEK))


@pytest.mark.parametrize(("asked_at", "kind"), [(WEEK - 0.1, UNDECIDED), (WEEK, GOOD), (WEEK + 3, GOOD)])
def test_a_person_answers_for_what_was_not_decided_in_time(asked_at, kind):
    resumed = replace(DECIDING, resumed_at=BEGAN + timedelta(hours=asked_at))

    verdict = judge_wave(evidence(WEEK + 4, counts=[failures(0, 0.5)]), resumed)

    assert verdict.kind is kind
    assert verdict.reason.startswith("a person let it continue: ") is (kind is GOOD)
    # What each test saw they read when they were asked: it is beside the verdict, and is not reported again.
    assert any(each.said in verdict.reason for each in verdict.tests) is (kind is not GOOD)


def test_a_person_answers_for_no_wave_that_came_after_their_word():
    resumed = replace(DECIDING, resumed_at=BEGAN - timedelta(hours=1))

    assert judge_wave(evidence(WEEK, counts=[failures(0, 0.5)]), resumed).kind is ASK


def test_a_person_answers_for_no_wave_that_is_still_being_updated():
    resumed = replace(DECIDING, resumed_at=BEGAN + timedelta(hours=WEEK), is_updated=False)

    assert judge_wave(evidence(WEEK + 1, counts=[failures(0, 0.5)]), resumed).kind is not GOOD


def test_a_resumed_wave_is_stopped_and_found_good_as_any_other():
    resumed = replace(DECIDING, resumed_at=BEGAN + timedelta(hours=WEEK))

    assert kind_of(resumed, hours=WEEK + 1, counts=[failures(12, 210.0)]) is STOP
    assert kind_of(resumed, hours=WEEK + 1, counts=[failures(0, 210.0)]) is GOOD


def test_who_has_not_begun_to_soak_has_no_limit():
    waiting = replace(evidence(9.0), soak_began_at=None)

    verdict = judge_wave(waiting, DECIDING)

    assert (verdict.kind, verdict.decides_by) == (UNDECIDED, None)


def test_every_line_says_what_was_seen_and_what_would_decide():
    line = judge_wave(evidence(32.8, counts=[failures(3, 41.0)]), DECIDING).tests[1]

    assert line.said == (
        "3 in 41.0 node-days; untouched nodes would have had 0.27, bad is 2.7 (10x); "
        "evidence +3.9, stops at 9.9, good at -5.8"
    )


# -- what must have been looked for before more nodes are touched --

SIZES = (1, 4, 25, 70, 200, 700)


def waves(*sizes, canary_count=3):
    return tuple(
        Wave(
            number=number,
            nodes=names(size),
            is_canary=number <= canary_count,
            is_deciding=number == canary_count,
        )
        for number, size in enumerate(sizes, start=1)
    )


def sought(number, *sizes, limits=LIMITS, claims=CLAIMS):
    drawn = waves(*sizes)
    found = sought_in(drawn[number - 1], drawn, claims=claims, limits=limits)
    return found and (found.event_rate_ratio, found.slowdown_ratio)


@pytest.mark.parametrize(
    ("number", "expected"), [(1, None), (2, None), (3, (10, 0.05)), (4, (5, 0.03)), (5, (3, 0.03)), (6, None)]
)
def test_the_more_nodes_come_next_the_less_may_be_unseen(number, expected):
    assert sought(number, *SIZES) == expected


@pytest.mark.parametrize(
    ("next_count", "expected"), [(70, (10, 0.05)), (71, (5, 0.03)), (270, (5, 0.03)), (271, (3, 0.03))]
)
def test_a_bound_counts_as_soon_as_one_node_more_than_its_share_is_touched(next_count, expected):
    assert sought(3, 1, 4, 25, next_count, 970 - next_count) == expected


def test_what_a_release_claims_itself_is_never_loosened():
    strict = replace(CLAIMS, event_rate_ratio=2, slowdown_ratio=0.01)

    assert sought(4, *SIZES, claims=strict) == (2, 0.01)


def test_without_bounds_only_the_deciding_wave_must_decide():
    assert [sought(number, *SIZES, limits=replace(LIMITS, bounds=())) for number in range(1, 7)] == [
        None, None, (10, 0.05), None, None, None,
    ]  # fmt: skip


FIVE_TIMES = replace(LATER, sought=replace(CLAIMS, event_rate_ratio=5, slowdown_ratio=0.03))
THREE_TIMES = replace(LATER, sought=replace(CLAIMS, event_rate_ratio=3, slowdown_ratio=0.03))


@pytest.mark.parametrize(
    ("looking", "count", "node_days", "kind"),
    [
        (FIVE_TIMES, 4, 700.0, GOOD),
        (FIVE_TIMES, 1, 150.0, UNDECIDED),
        (FIVE_TIMES, 23, 700.0, STOP),
        (THREE_TIMES, 4, 700.0, UNDECIDED),
        (THREE_TIMES, 14, 2_100.0, GOOD),
        (THREE_TIMES, 41, 2_100.0, STOP),
        (LATER, 4, 700.0, GOOD),
    ],
)
def test_a_later_wave_is_good_when_its_bound_was_looked_for(looking, count, node_days, kind):
    assert kind_of(looking, hours=3 * 24, counts=[failures(count, node_days)]) is kind


def test_three_percent_slower_is_stopped_before_a_tenth_of_the_nodes_and_five_percent_alone_let_it_pass():
    slower = steps(0.03, node_count=60, after_count=4)

    assert kind_of(replace(LATER, limits=replace(LIMITS, bounds=())), levels=steps(0.02, node_count=60)) is GOOD
    assert kind_of(FIVE_TIMES, levels=slower, counts=[failures(4, 700.0)], hours=72) is STOP


def test_what_the_evidence_cannot_carry_is_asked_with_what_it_does():
    verdict = judge_wave(evidence(WEEK, counts=[failures(1, 150.0)], node_count=30), FIVE_TIMES)

    assert verdict.kind is ASK
    assert "so far 11x is found nine times of ten" in verdict.reason
    assert "raise rollouts.soak_limit_seconds" in verdict.reason


def test_nothing_was_seen_of_nodes_that_did_not_work():
    verdict = judge_wave(evidence(WEEK, counts=[failures(0, 0.0)], node_count=30), FIVE_TIMES)

    assert verdict.kind is ASK
    assert "so far nothing is found" in verdict.reason


def test_the_last_looks_of_several_waves_stop_together_no_more_than_one_would():
    alone = replace(LATER, limits=replace(LIMITS, bounds=()), sought=THREE_TIMES.sought)

    assert kind_of(alone, hours=WEEK, counts=[failures(8, 300.0)]) is STOP
    assert kind_of(THREE_TIMES, hours=WEEK, counts=[failures(8, 300.0)]) is ASK
    assert kind_of(THREE_TIMES, hours=WEEK, counts=[failures(9, 300.0)]) is STOP


def test_a_week_that_is_bad_for_everybody_is_compared_with_itself():
    times = 6
    bad_week = failures(
        6 * times, 1_000.0, control_count=55 * times, control_node_days=9_700.0, past_count=91, past_node_days=14_000.0
    )

    assert usual_rate(bad_week).mean == pytest.approx(times * 0.0057, rel=0.1)
    assert kind_of(THREE_TIMES, hours=72, counts=[bad_week]) is not STOP


def test_the_plan_says_what_the_gate_will_see_and_where_it_will_ask():
    large = list(foreseen_sight(waves(*SIZES), claims=CLAIMS, limits=LIMITS))
    small = list(foreseen_sight(waves(1, 4, 25, 34), claims=CLAIMS, limits=LIMITS))

    assert [said.split(" looks for ")[0] for said in large] == ["wave 3", "wave 4", "wave 5"]
    assert not any("will probably ask" in said for said in large)
    assert large[1].startswith("wave 4 looks for failures 5 times as often, and for steps 3.0% slower; nine times of")
    assert "100 nodes in 7.0 d find 4.7 times (at 6.5 failures per 1,000 node-days) and 1.4%" in large[1]
    (only,) = small
    assert "30 nodes in 7.0 d find 8.6 times" in only
    assert only.endswith("it will probably ask; more canaries or a longer soak_limit would see more")
