"""Quotas move to where GPUs are required, slowly, and never below what was agreed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.quotas.demand import (
    DemandDay,
    Launches,
    QueueChance,
    fair_demand,
    launches_on,
    queue_chance,
    remember,
)
from ops_pipelines.quotas.rebalance import rebalance, wished_quotas
from ops_pipelines.quotas.replay import replay
from ops_pipelines.quotas.today import Rebalanced, Today, debts_against
from ops_pipelines.teams.desk import RebalanceSettings
from ops_pipelines.teams.projects import Project

A, B, C = TeamName("a"), TeamName("b"), TeamName("c")
SETTINGS = RebalanceSettings(spread_ratio=0.0)
NEAR = 1e-6
DAY = date(2026, 3, 2)


def always(gpus: float) -> QueueChance:
    return queue_chance([gpus], weights=[1.0])


def today(
    wanted: Mapping[TeamName, QueueChance],
    *,
    quotas: Mapping[TeamName, float],
    guarantees: Mapping[TeamName, float] | None = None,
    ran: Mapping[TeamName, float] | None = None,
    supply: float = 100.0,
    agreeing: int = 3,
    **terms: float,
) -> Today:
    owed = guarantees or dict.fromkeys(quotas, 10.0)
    agreed = tuple(Terms(team=team, guarantee=owed[team], **terms) for team in quotas)
    return Today(
        terms=agreed,
        quotas=quotas,
        chances=wanted,
        too_large=[wished_quotas(agreed, wanted, supply=supply)] * agreeing,
        ran_last=ran or {},
        supply=supply,
    )


def after(found: Rebalanced) -> dict[str, float]:
    return {str(team): round(quota, 6) for team, quota in found.quotas.items()}


# --- one day ------------------------------------------------------------------------------------------------------


def test_gpus_go_from_where_nobody_wants_them_to_where_they_queue() -> None:
    found = rebalance(today({A: always(20), B: always(55)}, quotas={A: 50, B: 50}), settings=SETTINGS)

    assert after(found) == {"a": 45, "b": 55}
    assert found.moved == pytest.approx(5)


@pytest.mark.parametrize(("cap", "moved"), [(0.1, 10), (0.2, 20), (0.3, 30), (0.5, 30)])
def test_no_more_moves_in_a_day_than_the_step_allows(cap: float, moved: float) -> None:
    settings = replace(SETTINGS, step_cap_ratio=cap)

    found = rebalance(today({A: always(20), B: always(90)}, quotas={A: 50, B: 50}), settings=settings)

    assert found.moved == pytest.approx(moved)
    assert found.quotas[A] == pytest.approx(50 - moved)


def test_nobody_is_left_below_his_guarantee() -> None:
    wanted = {A: always(0), B: always(99)}
    given_ = today(wanted, quotas={A: 45, B: 55}, guarantees={A: 40, B: 10})

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 40, "b": 60}


def test_nobody_is_left_below_what_ran_in_the_last_hour() -> None:
    given_ = today({A: always(0), B: always(99)}, quotas={A: 50, B: 50}, ran={A: 47})

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 47, "b": 53}


def test_what_ran_beyond_a_quota_is_no_claim_to_more() -> None:
    given_ = today({A: always(60), B: always(60)}, quotas={A: 50, B: 50}, ran={A: 60})

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 50, "b": 50}


def test_a_cap_is_never_passed() -> None:
    found = rebalance(today({A: always(0), B: always(99)}, quotas={A: 50, B: 50}, cap=52), settings=SETTINGS)

    assert after(found) == {"a": 48, "b": 52}


@pytest.mark.parametrize(("agreeing", "moved"), [(0, 0), (1, 10), (2, 10), (3, 10)])
def test_who_has_no_history_gives_nothing(agreeing: int, moved: float) -> None:
    given_ = today({A: always(0), B: always(99)}, quotas={A: 50, B: 50}, agreeing=agreeing)

    assert rebalance(given_, settings=SETTINGS).moved == pytest.approx(moved)


@pytest.mark.parametrize(
    ("days", "moved"),
    [
        ([10, 10, 10], 10),
        ([60, 10, 10], 10),
        ([10, 60, 10], 10),
        ([60, 60, 10], 0),
        ([10, 10, 60], 10),
        ([10, 60, 60], 0),
    ],
)
def test_a_quota_shrinks_only_when_two_of_three_days_agree(days: list[float], moved: float) -> None:
    given_ = today({A: always(0), B: always(99)}, quotas={A: 50, B: 50})
    given_ = replace(given_, too_large=[{A: wish, B: 99.0} for wish in days])

    assert rebalance(given_, settings=SETTINGS).moved == pytest.approx(moved)


@pytest.mark.parametrize(("least", "moved"), [(0.24, 10), (0.25, 0), (0.26, 0)])
def test_a_gpu_moves_only_where_it_is_wanted_clearly_more(least: float, moved: float) -> None:
    seldom = queue_chance([0.0, 60.0], weights=[0.75, 0.25])

    found = rebalance(
        today({A: always(0), B: seldom}, quotas={A: 50, B: 50}), settings=replace(SETTINGS, least_gain_ratio=least)
    )

    assert found.moved == pytest.approx(moved)


def test_who_is_owed_more_gets_it_at_once() -> None:
    given_ = today({A: always(90), B: always(5)}, quotas={A: 90, B: 10}, guarantees={A: 10, B: 40})

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 60, "b": 40}


def test_what_broke_is_taken_where_it_is_least_wanted_beyond_any_step() -> None:
    given_ = today({A: always(20), B: always(50)}, quotas={A: 50, B: 50}, supply=70)

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 20, "b": 50}


def test_what_runs_is_taken_before_a_guarantee_when_nothing_else_is_left() -> None:
    given_ = today({A: always(50), B: always(50)}, quotas={A: 50, B: 50}, ran={A: 50, B: 50}, supply=40)

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 20, "b": 20}


def test_what_is_new_goes_to_who_wants_it_and_then_to_all() -> None:
    given_ = today({A: always(60), B: always(20)}, quotas={A: 50, B: 50}, supply=130)

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 70, "b": 60}


@pytest.mark.parametrize(
    ("supply", "expected"), [(80.0, (40, 40)), (79.0, (39.5, 39.5)), (40.0, (20, 20)), (0.0, (0, 0))]
)
def test_guarantees_beyond_what_is_healthy_are_cut_in_proportion(supply: float, expected: tuple[float, float]) -> None:
    given_ = replace(today({}, quotas={A: 50, B: 50}, guarantees={A: 40, B: 40}), supply=supply)

    found = rebalance(given_, settings=SETTINGS)

    assert after(found) == {"a": expected[0], "b": expected[1]}
    assert [line.owed is not None for line in found.lines] == [supply < 80] * 2


def test_guarantees_of_a_higher_priority_are_kept_first() -> None:
    terms = (Terms(team=A, guarantee=40), Terms(team=B, guarantee=40, priority=1))
    given_ = replace(today({}, quotas={A: 50, B: 50}), terms=terms, supply=60.0)

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 20, "b": 40}


def test_one_lost_gpu_costs_one_gpu() -> None:
    given_ = today({A: always(20), B: always(50)}, quotas={A: 50, B: 50}, supply=99)

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 49, "b": 50}


def test_who_is_above_his_cap_is_brought_back_to_it() -> None:
    given_ = today({A: always(90), B: always(5)}, quotas={A: 70, B: 30}, cap=60)

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 60, "b": 40}


# --- organisations ------------------------------------------------------------------------------------------------

ORG = TeamName("org")


def in_organisation(
    wanted: Mapping[TeamName, QueueChance], *, quotas: Mapping[TeamName, float], supply: float = 100.0, **org: float
) -> Today:
    """A and B belong to an organisation, C to the cluster."""
    terms = (
        Terms(team=ORG, **{"guarantee": 20.0, **org}),
        Terms(team=A, guarantee=10, parent=ORG),
        Terms(team=B, guarantee=10, parent=ORG),
        Terms(team=C, guarantee=10),
    )
    return Today(terms=terms, quotas=quotas, chances=wanted, too_large=[dict.fromkeys(quotas, 0.0)] * 3, supply=supply)


@pytest.mark.parametrize(("cap", "gets"), [(59.0, 59), (60.0, 60), (61.0, 61), (90.0, 70)])
def test_no_exchange_brings_an_organisation_above_its_cap(cap: float, gets: float) -> None:
    wanted = {A: always(60), B: always(40), C: always(0)}

    found = rebalance(in_organisation(wanted, quotas={A: 30, B: 30, C: 40}, cap=cap), settings=SETTINGS)

    assert found.quotas[A] + found.quotas[B] == pytest.approx(gets)


def test_teams_of_an_organisation_at_its_cap_still_exchange_among_themselves() -> None:
    wanted = {A: always(60), B: always(10), C: always(0)}

    found = rebalance(in_organisation(wanted, quotas={A: 30, B: 30, C: 40}, cap=60), settings=SETTINGS)

    assert after(found) == {"a": 40, "b": 20, "c": 40}
    assert found.lines[0].bound_by == ORG


@pytest.mark.parametrize(("guarantee", "gives"), [(50.0, 10), (55.0, 5), (60.0, 0), (61.0, -1)])
def test_nobody_takes_what_an_organisation_is_guaranteed(guarantee: float, gives: float) -> None:
    wanted = {A: always(10), B: always(10), C: always(90)}

    found = rebalance(in_organisation(wanted, quotas={A: 30, B: 30, C: 40}, guarantee=guarantee), settings=SETTINGS)

    assert found.quotas[A] + found.quotas[B] == pytest.approx(60 - gives)


def test_lost_nodes_cost_others_before_the_guarantee_of_an_organisation() -> None:
    wanted = {A: always(0), B: always(0), C: always(40)}

    found = rebalance(in_organisation(wanted, quotas={A: 30, B: 30, C: 40}, guarantee=50, supply=70), settings=SETTINGS)

    assert after(found) == {"a": 25, "b": 25, "c": 20}


def test_what_is_free_goes_to_organisations_by_their_weight_and_not_by_their_heads() -> None:
    found = rebalance(in_organisation({}, quotas={A: 10, B: 10, C: 10}), settings=SETTINGS)

    assert after(found) == {"a": 27.5, "b": 27.5, "c": 45}


@pytest.mark.parametrize(("cap", "inner", "other"), [(6.0, 6, 20), (7.0, 7, 19), (12.0, 12, 14)])
def test_what_an_inner_organisation_may_not_have_the_others_get_of_what_is_guaranteed_above(
    cap: float, inner: float, other: float
) -> None:
    # All that is guaranteed fits: 26 to the outer organisation, 3 to C; of these A alone could ask for 12.
    terms = (
        Terms(team=ORG, guarantee=26),
        Terms(team=TeamName("inner"), guarantee=3, cap=cap, parent=ORG),
        Terms(team=A, guarantee=12, cap=20, parent=TeamName("inner")),
        Terms(team=B, guarantee=1, parent=ORG),
        Terms(team=C, guarantee=3),
    )

    found = rebalance(
        Today(terms=terms, quotas={A: 24, B: 4, C: 0}, chances={C: always(29)}, too_large=(), supply=29),
        settings=SETTINGS,
    )

    assert after(found) == {"a": inner, "b": other, "c": 3}


def test_an_organisation_itself_has_no_line() -> None:
    found = rebalance(in_organisation({}, quotas={A: 30, B: 30, C: 40}), settings=SETTINGS)

    assert [line.team for line in found.lines] == [A, B, C]


def test_a_parent_without_terms_is_refused() -> None:
    given_ = replace(today({}, quotas={A: 50}), terms=(Terms(team=A, guarantee=1, parent=ORG),))

    with pytest.raises(ValueError, match="a belongs to org, which is not declared"):
        rebalance(given_, settings=SETTINGS)


# --- standing still and rolling back --------------------------------------------------------------------------------


def test_in_a_freeze_nobody_moves_though_nodes_are_lost_but_guarantees_are_given() -> None:
    given_ = today({A: always(0), B: always(90)}, quotas={A: 50, B: 5}, supply=52)

    found = rebalance(replace(given_, frozen_because="the scheduler is down"), settings=SETTINGS)

    assert after(found) == {"a": 50, "b": 10}


def test_after_a_freeze_quotas_go_back_step_by_step_to_guarantee_and_weight() -> None:
    given_ = replace(today({A: always(0), B: always(90)}, quotas={A: 80, B: 20}), returns_to_contract="a freeze")
    days_: list[dict[str, float]] = []
    for _ in range(4):
        found = rebalance(given_, settings=SETTINGS)
        given_ = replace(given_, quotas=found.quotas, too_large=())
        days_.append(after(found))

    assert days_ == [{"a": 70, "b": 30}, {"a": 60, "b": 40}, {"a": 50, "b": 50}, {"a": 50, "b": 50}]


def test_going_back_keeps_what_runs() -> None:
    given_ = replace(today({}, quotas={A: 60, B: 40}, ran={A: 57}), returns_to_contract="a freeze")

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 57, "b": 43}


# --- debts, gangs, projects, strangers, turns ---------------------------------------------------------------------


def test_of_what_nobody_wants_who_lent_gets_more_but_never_twice_as_much() -> None:
    given_ = today({}, quotas={A: 10, B: 10}, supply=50)

    found = rebalance(replace(given_, debts={A: -99.0, B: 99.0}), settings=SETTINGS)

    assert after(found) == {"a": 30, "b": 20}


def test_of_two_that_want_a_gpu_as_often_the_one_with_less_debt_gets_it() -> None:
    given_ = today({A: always(60), B: always(60), C: always(10)}, quotas={A: 30, B: 30, C: 40})

    found = rebalance(replace(given_, debts={A: 20.0}), settings=SETTINGS)

    assert after(found) == {"a": 30, "b": 40, "c": 30}


def test_debt_alone_moves_no_gpu() -> None:
    given_ = today({A: always(60), B: always(60)}, quotas={A: 50, B: 50})

    found = rebalance(replace(given_, debts={A: 50.0, B: -50.0}), settings=SETTINGS)

    assert found.moved == 0


def test_debt_is_what_was_had_beyond_the_fair_share() -> None:
    terms = [Terms(team=A, guarantee=10), Terms(team=B, guarantee=10)]
    served = [{A: [70.0, 70.0], B: [30.0, 30.0]}]

    fair = fair_demand(whole_day(0, {A: [90.0, 90.0], B: [90.0, 30.0]}), terms=terms, supply=100)

    found = debts_against([fair], served=served)

    assert found == {A: 10.0, B: -10.0}
    assert debts_against([], served=[]) == {}


@pytest.mark.parametrize(("quota", "gets"), [(50, 50), (51, 51), (51.3, 64), (60, 64), (63.9, 64), (64, 64)])
def test_a_quota_that_ends_just_below_a_gang_is_rounded_up_to_it(quota: float, gets: float) -> None:
    wants = queue_chance([20.0, 64.0], weights=[0.99, 0.01])
    given_ = today({A: wants, B: always(0)}, quotas={A: quota, B: 150 - quota}, supply=150)

    found = rebalance(replace(given_, gangs={A: 64}), settings=SETTINGS)

    assert found.quotas[A] == pytest.approx(gets)
    assert found.lines[0].gang == (64 if gets > quota else 0)


def test_a_gang_is_not_rounded_up_to_at_the_cost_of_what_others_want() -> None:
    wants = queue_chance([20.0, 64.0], weights=[0.99, 0.01])
    given_ = today({A: wants, B: always(99)}, quotas={A: 60, B: 90}, supply=150)

    assert rebalance(replace(given_, gangs={A: 64}), settings=SETTINGS).lines[0].gang == 0


def test_a_launch_is_wanted_in_every_hour_and_what_ended_in_none() -> None:
    launches = Launches(expected={A: 16.0}, ended={B: 8.0})

    chances = remember([whole_day(0, {A: [4.0], B: [5.0]})], teams=[A, B], settings=SETTINGS, launches=launches)

    assert chances[A].amounts == (20.0,)
    assert chances[B].amounts == (0.0,)


@pytest.mark.parametrize(
    ("day", "expected", "ended"),
    [(date(2026, 3, 1), {}, {}), (DAY, {A: 8.0}, {}), (date(2026, 3, 3), {}, {}), (date(2026, 3, 9), {}, {A: 8.0})],
)
def test_a_project_is_news_on_the_day_that_it_begins_and_on_the_day_after_it(
    day: date, expected: Mapping[TeamName, float], ended: Mapping[TeamName, float]
) -> None:
    gpt = Project(name="gpt", team=A, gpus=16, begins_on=DAY, ends_on=date(2026, 3, 9), probability=0.5)

    found = launches_on(day, [gpt], gpu_type=GpuType(""))

    assert (found.expected, found.ended) == (expected, ended)
    assert launches_on(day, [gpt], gpu_type=GpuType("h200")) == Launches()


def test_a_stranger_gets_what_nobody_else_is_expected_to_want_and_takes_nothing() -> None:
    terms = (Terms(team=A, guarantee=10), Terms(team=B, guarantee=0, weight=0, priority=-1))
    given_ = replace(today({A: always(30), B: always(90)}, quotas={A: 20, B: 0}), terms=terms, strangers=frozenset({B}))

    assert after(rebalance(given_, settings=SETTINGS)) == {"a": 30, "b": 70}
    assert after(rebalance(replace(given_, quotas={A: 99, B: 1}), settings=SETTINGS)) == {"a": 99, "b": 1}


@pytest.mark.parametrize(
    ("lately", "moved"), [([40, 50, 40], 0), ([50, 40], 10), ([30, 40], 10), ([49, 50, 49], 10), ([], 10)]
)
def test_who_turned_twice_does_not_turn_again(lately: list[float], moved: float) -> None:
    given_ = today({A: always(0), B: always(99)}, quotas={A: 50, B: 50})

    found = rebalance(replace(given_, lately=[{A: quota} for quota in lately]), settings=SETTINGS)

    assert found.moved == pytest.approx(moved)


# --- laws ---------------------------------------------------------------------------------------------------------

AMOUNTS = st.integers(0, 80).map(float)
CHANCES = st.lists(AMOUNTS, min_size=1, max_size=6).map(lambda found: queue_chance(found, weights=[1.0] * len(found)))


@st.composite
def days(draw: st.DrawFn) -> Today:
    count = draw(st.integers(1, 5))
    teams = [TeamName(f"t{number}") for number in range(count)]
    guarantees = {team: float(draw(st.integers(0, 10))) for team in teams}
    quotas = {team: guarantees[team] + draw(st.integers(0, 30)) for team in teams}
    supply = max(math.fsum(guarantees.values()), math.fsum(quotas.values()) + draw(st.integers(-20, 20)))
    chances = {team: draw(CHANCES) for team in teams}
    ran = {team: draw(AMOUNTS) for team in teams}
    made = today(chances, quotas=quotas, guarantees=guarantees, ran=ran, supply=supply)
    return replace(made, too_large=[{team: draw(AMOUNTS) for team in teams} for _ in range(3)])


@given(days())
def test_quotas_fit_and_keep_what_was_agreed(given_: Today) -> None:
    found = rebalance(given_, settings=SETTINGS)

    assert math.fsum(found.quotas.values()) <= given_.supply + NEAR
    for line in found.lines:
        assert line.terms.guarantee - NEAR <= line.after
        if math.fsum(given_.quotas.values()) <= given_.supply and line.after < line.before - NEAR:
            assert line.after >= line.floor - NEAR
            assert line.is_agreed_too_large


@given(days())
def test_moving_never_makes_it_likelier_that_somebody_queues(given_: Today) -> None:
    found = rebalance(given_, settings=SETTINGS)

    if math.fsum(given_.quotas.values()) <= given_.supply:
        before = math.fsum(given_.chances[line.team].unserved(line.before) for line in found.lines)
        assert math.fsum(given_.chances[line.team].unserved(line.after) for line in found.lines) <= before + NEAR


@given(days(), st.randoms(use_true_random=False))
def test_the_order_of_teams_does_not_matter(given_: Today, random: object) -> None:
    terms = list(given_.terms)
    random.shuffle(terms)  # type: ignore[attr-defined]  # a Random, which hypothesis types as object

    found = rebalance(replace(given_, terms=terms), settings=SETTINGS)

    assert dict(found.quotas) == pytest.approx(dict(rebalance(given_, settings=SETTINGS).quotas), abs=NEAR)


# --- what is remembered ------------------------------------------------------------------------------------------


def whole_day(number: int, hours: Mapping[TeamName, Sequence[float]]) -> DemandDay:
    return DemandDay(day=DAY + timedelta(days=number), hours=hours, ran_last={})


def test_a_queue_of_a_thousand_counts_with_its_fair_share() -> None:
    terms = [Terms(team=A, guarantee=10), Terms(team=B, guarantee=10)]

    fair = fair_demand(whole_day(0, {A: [1_000.0, 1_000.0], B: [60.0, 5.0]}), terms=terms, supply=100)

    assert fair.hours == {A: [50.0, 95.0], B: [50.0, 5.0]}


def test_hours_weigh_less_the_older_they_are() -> None:
    days_ = [whole_day(0, {A: [0.0] * 24}), whole_day(1, {A: [0.0] * 15 + [9.0] * 9})]

    chance = remember(days_, teams=[A], settings=SETTINGS)[A]

    assert chance.at(8.9) == pytest.approx(0.5, abs=0.02)
    assert chance.at(9.0) == 0


def test_what_is_older_than_the_window_is_forgotten() -> None:
    days_ = [whole_day(0, {A: [99.0]}), *(whole_day(number, {A: [1.0]}) for number in range(1, 15))]

    assert remember(days_, teams=[A], settings=SETTINGS)[A].at(1.0) == 0
    assert remember(days_[:-1], teams=[A], settings=SETTINGS)[A].at(1.0) > 0


# --- the replay ---------------------------------------------------------------------------------------------------


def test_the_replay_of_two_teams_that_change_places_is_as_computed_by_hand() -> None:
    terms = [Terms(team=A, guarantee=10), Terms(team=B, guarantee=10)]
    days_ = [whole_day(number, {A: [0.0, 0.0], B: [40.0, 40.0]}) for number in range(3)]
    settings = RebalanceSettings(spread_ratio=0.0, step_cap_ratio=0.25)

    found = replay(days_, terms=terms, capacity={A: 20.0, B: 20.0}, settings=settings)

    static, ours, best, pooled = (found.policies[name] for name in ("static", "rebalanced", "daily_optimum", "pooled"))
    assert static.unserved_gpu_hours == 120
    assert ours.unserved_gpu_hours == 40 + 20 + 20
    assert best.unserved_gpu_hours == 60
    assert pooled.unserved_gpu_hours == 0
    assert found.gain_ratio == pytest.approx(40 / 60)
    assert ours.churn_ratio_per_day == pytest.approx((10 / 40 + 0) / 2)
    assert ours.churn_ratio_max == pytest.approx(0.25)
    assert ours.reversals == 0
    assert static.worst_team is not None
    assert (static.worst_team.team, static.worst_team.unserved_ratio) == (B, 0.5)
    assert ours.guarantee_violation_gpu_hours == 0


def test_a_guarantee_that_is_not_served_is_counted() -> None:
    terms = [Terms(team=A, guarantee=10), Terms(team=B, guarantee=10)]

    found = replay(
        [whole_day(0, {A: [15.0], B: [0.0]})], terms=terms, capacity={A: 4.0, B: 16.0}, settings=RebalanceSettings()
    )

    assert found.policies["static"].guarantee_violation_gpu_hours == 6
    assert found.policies["daily_optimum"].guarantee_violation_gpu_hours == 0


def test_where_nothing_queues_nothing_can_be_gained() -> None:
    terms = [Terms(team=A, guarantee=10)]

    found = replay([whole_day(0, {A: [5.0]})], terms=terms, capacity={A: 20.0}, settings=RebalanceSettings())

    assert found.gain_ratio is None
    assert found.policies["static"].jain == 1


def test_a_replay_of_no_day_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no day to replay"):
        replay([], terms=[], capacity={}, settings=RebalanceSettings())


@given(
    st.lists(st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), min_size=1, max_size=4), min_size=2, max_size=6),
    st.integers(0, 80).map(float),
)
def test_quotas_of_a_day_do_not_know_what_comes(hours: list[list[tuple[float, ...]]], later: float) -> None:
    terms = [Terms(team=team, guarantee=10) for team in (A, B, C)]
    capacity = dict.fromkeys((A, B, C), 20.0)
    told = [whole_day(n, dict(zip((A, B, C), zip(*each, strict=True), strict=True))) for n, each in enumerate(hours)]
    other = [*told[:-1], whole_day(len(told), {A: [later], B: [0.0], C: [later]})]

    one = replay(told, terms=terms, capacity=capacity, settings=SETTINGS).policies["rebalanced"]
    two = replay(other, terms=terms, capacity=capacity, settings=SETTINGS).policies["rebalanced"]

    assert one.churn_ratio_per_day == two.churn_ratio_per_day
    assert one.guarantee_violation_gpu_hours == two.guarantee_violation_gpu_hours == 0
    assert one.churn_ratio_max <= SETTINGS.step_cap_ratio + NEAR


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"half_life_hours": 0.0}, "half_life_hours is 0"),
        ({"half_life_hours": math.nan}, "half_life_hours is nan"),
        ({"step_cap_ratio": 0.0}, "step_cap_ratio is 0"),
        ({"step_cap_ratio": 1.01}, "step_cap_ratio is 1.01"),
        ({"least_gain_ratio": 1.0}, "least_gain_ratio is 1"),
        ({"spread_ratio": -0.1}, "spread_ratio is -0.1"),
        ({"agreeing_days": 0}, "agreeing_days 0"),
        ({"agreeing_days": 4}, "agreeing_days 4"),
        ({"looked_at_days": 15}, "looked_at_days 15"),
    ],
)
def test_settings_that_mean_nothing_are_refused(numbers: Mapping[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RebalanceSettings(**numbers)  # type: ignore[arg-type]  # of days, whole numbers are drawn


def test_a_quota_that_lies_on_an_amount_but_for_its_last_bits_still_moves() -> None:
    often = queue_chance([20.0, 50.0], weights=[1.0, 1.0])

    found = rebalance(today({A: often, B: always(99)}, quotas={A: 50 + 1e-11, B: 50 - 1e-11}), settings=SETTINGS)

    assert found.quotas[A] == pytest.approx(40)
