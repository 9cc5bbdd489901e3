"""A week computed by hand comes out as computed; its parts add up; nothing counts in two weeks."""

from datetime import timedelta

import pytest

from ops_pipelines.core.action import Verb
from ops_pipelines.core.objectives import BudgetState, Objective, ObjectiveKind, WorkloadClass
from ops_pipelines.core.periods import parse_week, week_of
from ops_pipelines.review.job_runs import Cause
from ops_pipelines.review.week_acts import WrongKind
from ops_pipelines.review.weekly_review import WeeklyReview, review_week
from tests.flow.review_stage import MINUTE, WEEK, LakeOfRows, LedgerOfValues, at, hand_computed, stage

PROMISES = (
    Objective(team="alpha", workload=WorkloadClass.ANY, kind=ObjectiveKind.UPTIME, target_ratio=0.99),
    Objective(
        team="beta",
        workload=WorkloadClass.ANY,
        kind=ObjectiveKind.QUEUE_WAIT,
        target_ratio=0.5,
        limit=timedelta(minutes=10),
    ),
)


@pytest.fixture(scope="module")
def review() -> WeeklyReview:
    lake, ledger = hand_computed()
    return review_week(WEEK, *stage(lake, ledger, now=at(23, 6, 30), objectives=PROMISES))


def test_the_work_of_each_team_is_as_computed_by_hand(review: WeeklyReview) -> None:
    alpha, beta = (review.numbers.work.by_team[team] for team in ("alpha", "beta"))

    assert (alpha.wanted, alpha.lost, alpha.restart, alpha.queue, alpha.unknown) == pytest.approx((1344, 8, 0.8, 4, 0))
    assert alpha.effective_ratio == pytest.approx(1331.2 / 1344)
    assert (beta.wanted, beta.lost, beta.queue) == pytest.approx((33 + 4, 1, 1))
    assert beta.unknown == pytest.approx(4 * 10 / 60 + 4)
    assert beta.effective_ratio is None
    assert (beta.job_count, beta.break_count, beta.unknown_break_count) == (2, 2, 2)


def test_each_interruption_has_its_cause_and_what_it_took(review: WeeklyReview) -> None:
    counts = review.numbers.count_by_cause()
    taken = review.numbers.work.by_cause

    assert [(each.stint.job, each.cause, each.incident) for each in review.numbers.breaks] == [
        ("1", Cause.HARDWARE, "INC-0001"),
        ("2", Cause.OURS, "INC-0002"),
        ("3", Cause.UNKNOWN, ""),
    ]
    assert sum(counts.values()) == 3
    assert (taken[Cause.HARDWARE], taken[Cause.OURS], taken[Cause.UNKNOWN]) == pytest.approx((12.8, 2, 0))
    total = review.numbers.work.total
    assert sum(taken.values()) == pytest.approx(total.lost + total.restart + total.queue)


def test_rates_rest_on_the_hours_on_record(review: WeeklyReview) -> None:
    numbers = review.numbers

    assert (numbers.presence.node_hours, numbers.presence.gpu_hours) == (2 * 168, 16 * 168)
    assert numbers.interruptions.event_count == 3
    assert numbers.interruptions.mean_hours_between == 112
    # 143 hours with an allocation, and 17 00:00, in which job 1 ended.
    assert len(numbers.hours) == 144
    assert numbers.interruptions_per_day == pytest.approx(3 / 6)


def test_failures_and_repairs_count_once_in_the_week_of_their_edge(review: WeeklyReview) -> None:
    (gpu,) = [each for each in review.components if each.component == "GPU"]

    assert gpu.failures.event_count == review.numbers.failure_count == 3
    assert gpu.failures.mean_hours_between == 16 * 168 / 3
    assert gpu.repairs is not None
    assert (gpu.repairs.count, gpu.repairs.mean) == (3, timedelta(hours=4, minutes=50) / 3)
    assert (gpu.open_count, gpu.oldest_open) == (1, 10 * MINUTE)
    assert review.before.failure_count == 1
    assert review.before.repairs is None


def test_a_component_without_failures_has_a_bound_and_no_infinity(review: WeeklyReview) -> None:
    (disks,) = [each for each in review.components if each.component == "local disks"]

    assert disks.failures.mean_hours_between is None
    assert disks.failures.mean_hours_at_least == pytest.approx(2 * 168 / 2.9957, rel=1e-4)
    assert disks.failures.mean_hours_at_most is None


def test_a_node_that_tests_found_well_was_taken_out_for_nothing(review: WeeklyReview) -> None:
    (wrong,) = review.numbers.wrong

    assert (wrong.incident, wrong.node, wrong.kind) == ("INC-0002", "gpu002", WrongKind.FOUND_WELL)
    assert wrong.out_of_service_gpu_hours == pytest.approx(8 * 48 / 60)
    assert (wrong.moved_job_count, wrong.lost_gpu_hours, wrong.unknown_loss_count) == (1, 1.0, 0)


def test_acts_and_people_are_those_of_the_week(review: WeeklyReview) -> None:
    acts = {each.verb: each for each in review.numbers.acts}

    assert sum(each.count for each in review.numbers.acts) == 8
    assert (acts[Verb.DRAIN].count, acts[Verb.DRAIN].done) == (2, 2)
    assert [(each.what, each.count, each.who) for each in review.numbers.people] == [
        ("approved a plan", 1, ("ann",)),
        ("was paged", 1, ()),
    ]
    assert review.before.person_count == 1


def test_phases_name_the_slowest(review: WeeklyReview) -> None:
    phases = {each.phase: each for each in review.phases}

    assert phases["repairing"].median == 20 * MINUTE
    out = phases["out of order (incident to service)"]
    assert (out.count, out.longest, out.incident) == (2, timedelta(hours=2), "INC-0001")


def test_promises_of_a_young_record_say_too_little_unless_they_are_broken(review: WeeklyReview) -> None:
    uptime, wait = review.budgets

    # Of alpha's 171.5 h (from the 15th, 12:00) 0.5 h were taken by hardware.
    assert uptime.good_ratio == pytest.approx((36 + 143.5) / (36 + 144))
    assert uptime.state is BudgetState.KEPT
    assert wait.state is BudgetState.TOO_LITTLE_DATA
    assert wait.good_ratio is None


def test_an_empty_lake_and_ledger_say_what_is_missing() -> None:
    review = review_week(WEEK, *stage(LakeOfRows(), LedgerOfValues(), now=at(20, 9)))

    assert review.numbers.interruptions_per_day is None
    assert review.numbers.work.total.effective_ratio is None
    assert not review.is_over
    assert review.numbers.days == pytest.approx(4.375)
    assert [each.split(":")[0] for each in review.missing] == [
        "rates",
        "interruptions and effective training time",
        "change against 2026-W46",
        "error budgets",
    ]


def test_a_week_that_has_not_begun_is_refused() -> None:
    with pytest.raises(ValueError, match="2026-W48 has not started"):
        review_week(parse_week("2026-W48"), *stage(LakeOfRows(), LedgerOfValues(), now=at(22, 23, 59)))


def test_two_weeks_together_count_what_each_counts() -> None:
    lake, ledger = hand_computed()
    cluster, observatory = stage(lake, ledger, now=at(23, 6, 30))

    later = review_week(week_of(at(23, 6)), cluster, observatory)

    # What it says of the week before is what that week stated of itself.
    own = review_week(WEEK, cluster, observatory).numbers
    assert later.before.failure_count == own.failure_count
    assert later.before.acts == own.acts
    assert later.before.wrong == own.wrong
    assert later.before.work.total.wanted == pytest.approx(own.work.total.wanted)
    assert later.numbers.failure_count == 0
    assert [each.what for each in later.numbers.people] == ["paused the autopilot"]
