"""Error budgets: what is left, how fast it burns, and that too little data never looks like a kept promise."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.objectives import (
    ANY_TEAM,
    LEAST_DAYS,
    WINDOW,
    BudgetState,
    Objective,
    ObjectiveKind,
    Tally,
    WorkloadClass,
    judge_budget,
)
from ops_pipelines.core.observation import Workload

AMOUNTS = st.floats(min_value=0, max_value=1e6, allow_nan=False)
TARGETS = st.floats(min_value=0.01, max_value=0.9999)


def uptime(target: float = 0.99, **changes: object) -> Objective:
    return Objective(
        **{  # type: ignore[arg-type]  # a test's own defaults
            "team": "alpha",
            "workload": WorkloadClass.TRAINING,
            "kind": ObjectiveKind.UPTIME,
            "target_ratio": target,
            **changes,
        }
    )


def tally(good: float, bad: float, days: float = 28.0) -> Tally:
    return Tally(good=good, bad=bad, days=days)


@pytest.mark.parametrize("target", [0.0, 1.0, -0.1, 1.1, float("nan"), float("inf")])
def test_a_target_that_cannot_be_broken_or_kept_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="expected a share above 0 and below 1"):
        uptime(target)


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        (ObjectiveKind.UPTIME, timedelta(minutes=1)),
        (ObjectiveKind.QUEUE_WAIT, None),
        (ObjectiveKind.INFERENCE_P99, None),
        (ObjectiveKind.QUEUE_WAIT, timedelta(0)),
    ],
)
def test_a_limit_stands_where_its_kind_has_one(kind: ObjectiveKind, limit: timedelta | None) -> None:
    with pytest.raises(ValueError, match="limit"):
        uptime(kind=kind, limit=limit)


def test_an_empty_team_is_nobody_and_never_all() -> None:
    with pytest.raises(ValueError, match="names no team"):
        uptime(team="")
    assert uptime(team=ANY_TEAM, workload=WorkloadClass.ANY).is_for("whoever", Workload.UNKNOWN)
    assert not uptime().is_for("alpha", Workload.UNKNOWN)
    assert not uptime().is_for("beta", Workload.TRAINING)


@pytest.mark.parametrize(
    ("bad", "spent", "state"),
    [
        (0.0, 0.0, BudgetState.KEPT),
        (9.99, 0.999, BudgetState.KEPT),
        (10.0, 1.0, BudgetState.EXHAUSTED),
        (10.01, 1.001, BudgetState.EXHAUSTED),
    ],
)
def test_the_budget_is_the_share_that_may_be_bad(bad: float, spent: float, state: BudgetState) -> None:
    budget = judge_budget(uptime(0.99), tally(1000 - bad, bad), tally(0, 0))

    assert budget.spent_ratio == pytest.approx(spent)
    assert budget.state is state


@pytest.mark.parametrize(
    ("week_bad", "exhausted_in"),
    [
        pytest.param(1.0, None, id="a rate of 1 lasts for ever"),
        pytest.param(2.0, WINDOW / 4, id="half the budget at twice the rate"),
        pytest.param(4.0, WINDOW / 8, id="at four times"),
        pytest.param(0.0, None, id="nothing burns"),
    ],
)
def test_what_is_left_lasts_as_long_as_the_last_week_says(week_bad: float, exhausted_in: timedelta | None) -> None:
    budget = judge_budget(uptime(0.99), tally(995, 5), tally(100 - week_bad, week_bad))

    assert budget.burn_rate == pytest.approx(week_bad)
    if exhausted_in is None:
        assert budget.exhausted_in is None
        assert budget.state is BudgetState.KEPT
    else:
        assert budget.exhausted_in is not None
        assert budget.exhausted_in.total_seconds() == pytest.approx(exhausted_in.total_seconds())
        assert budget.state is BudgetState.AT_RISK


@pytest.mark.parametrize(
    ("over", "is_known"),
    [
        pytest.param(tally(0, 0, 0), False, id="nothing"),
        pytest.param(tally(500, 0, LEAST_DAYS - 1), False, id="too few days"),
        pytest.param(tally(500, 0, LEAST_DAYS), True, id="enough"),
        pytest.param(tally(99.9, 0), False, id="less than one miss would be expected"),
        pytest.param(tally(100.1, 0), True, id="one miss would be expected"),
        pytest.param(tally(50, 1), True, id="a miss counts however little there was"),
    ],
)
def test_too_little_data_is_said_and_is_no_hundred_percent(over: Tally, is_known: bool) -> None:
    budget = judge_budget(uptime(0.99), over, over)

    assert (budget.good_ratio is not None) is is_known
    assert (budget.state is BudgetState.TOO_LITTLE_DATA) is not is_known
    assert bool(budget.why) is not is_known
    assert (budget.left_ratio is None) is not is_known


@given(good=AMOUNTS, bad=AMOUNTS, more=AMOUNTS, target=TARGETS)
def test_more_that_is_bad_never_leaves_more_budget(good: float, bad: float, more: float, target: float) -> None:
    less, worse = (judge_budget(uptime(target), each, each) for each in (tally(good, bad), tally(good, bad + more)))

    if less.left_ratio is not None and worse.left_ratio is not None:
        assert worse.left_ratio <= less.left_ratio + 1e-9


@given(good=AMOUNTS, bad=AMOUNTS, target=TARGETS, harder=TARGETS)
def test_a_higher_promise_never_has_more_budget(good: float, bad: float, target: float, harder: float) -> None:
    low, high = sorted((target, harder))
    easy, hard = (judge_budget(uptime(each), tally(good, bad), tally(good, bad)) for each in (low, high))

    if easy.left_ratio is not None and hard.left_ratio is not None:
        assert hard.left_ratio <= easy.left_ratio + 1e-9


@given(good=AMOUNTS, bad=AMOUNTS, week_good=AMOUNTS, week_bad=AMOUNTS, target=TARGETS)
def test_state_ratio_and_exhaustion_agree(
    good: float, bad: float, week_good: float, week_bad: float, target: float
) -> None:
    budget = judge_budget(uptime(target), tally(good, bad), tally(week_good, week_bad))

    assert (budget.state is BudgetState.EXHAUSTED) is (budget.exhausted_in == timedelta(0))
    if budget.good_ratio is not None:
        assert budget.spent_ratio is not None
        assert 0.0 <= budget.good_ratio <= 1.0
        assert (budget.spent_ratio >= 1.0) is (budget.state is BudgetState.EXHAUSTED)
    if budget.state is BudgetState.AT_RISK:
        assert budget.exhausted_in is not None
        assert timedelta(0) < budget.exhausted_in <= WINDOW
