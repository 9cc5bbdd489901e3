"""Quotas in whole nodes: nothing is lost, nobody falls below what is agreed."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.quotas.proposing import Goal, rounded

A, B, C = TeamName("a"), TeamName("b"), TeamName("c")


def goal(team: TeamName, before: float, quota: float, **more: float) -> Goal:
    values = {"unit": 1.0, "least": 0.0, "most": math.inf, **more}
    return Goal(team=team, before=before, quota=quota, **values)


@pytest.mark.parametrize(
    ("goals", "supply", "expected"),
    [
        # Rounding itself moves nothing.
        ((goal(A, 20, 20.6), goal(B, 20, 19.4)), 40, {A: 20, B: 20}),
        ((goal(A, 10, 10.6), goal(B, 10, 10.4), goal(C, 20, 19.0)), 40, {A: 11, B: 10, C: 19}),
        # Steps of half a unit and more are taken whole.
        ((goal(A, 16, 20.0, unit=8), goal(B, 24, 20.0, unit=8)), 40, {A: 24, B: 16}),
        ((goal(A, 16, 19.9, unit=8), goal(B, 24, 20.1, unit=8)), 40, {A: 16, B: 24}),
        # Lost GPUs are taken from who lies highest above his goal; below the least only if nothing else is left.
        ((goal(A, 16, 12.0, unit=8), goal(B, 16, 11.0, unit=8)), 24, {A: 16, B: 8}),
        ((goal(A, 16, 12.0, unit=8, least=12.0), goal(B, 16, 12.0, unit=8, least=12.0)), 24, {A: 8, B: 16}),
        # A cap is never rounded beyond.
        ((goal(A, 8, 12.0, unit=8, most=12.0),), 40, {A: 8}),
    ],
)
def test_goals_are_rounded_within_the_supply(
    goals: tuple[Goal, ...], supply: float, expected: Mapping[TeamName, int]
) -> None:
    assert rounded(goals, supply=supply) == expected


@pytest.mark.parametrize(
    ("group", "others", "least", "supply", "expected"),
    [
        # What B holds beyond what it is to keep goes before what C ran, though A lies higher above its goal.
        (
            (goal(A, 40, 25.0, unit=8, least=17, owed=16, most=32), goal(B, 16, 14.0, unit=8, least=6, most=16)),
            (goal(C, 11, 11.0, least=11, owed=2),),
            28,
            50,
            {A: 24, B: 8, C: 11},
        ),
        # As long as the two have together what they are guaranteed.
        (
            (goal(A, 40, 25.0, unit=8, least=17, owed=16, most=32), goal(B, 16, 14.0, unit=8, least=6, most=16)),
            (goal(C, 11, 11.0, least=11, owed=2),),
            33,
            50,
            {A: 24, B: 16, C: 10},
        ),
    ],
)
def test_what_a_group_has_to_spare_is_taken_where_nobody_needs_it(
    group: tuple[Goal, ...], others: tuple[Goal, ...], least: float, supply: float, expected: Mapping[TeamName, int]
) -> None:
    leasts = [(frozenset(each.team for each in group), least)]

    assert rounded((*group, *others), supply=supply, leasts=leasts, rises_max=5.0, falls_max=17.0) == expected


@pytest.mark.parametrize(
    ("is_held", "rises_from", "expected"),
    [
        # A is rounded up to a whole unit: 6 GPUs more than there are.
        (False, 34, {A: 24, B: 23, C: 43}),
        (True, 34, {A: 24, B: 26, C: 40}),
        # What C gives up of its rise comes first; then both give.
        (True, 41, {A: 24, B: 26, C: 40}),
    ],
)
def test_rounding_takes_from_who_turned_too_often_only_after_the_others(
    is_held: bool, rises_from: int, expected: Mapping[TeamName, int]
) -> None:
    goals = (
        goal(A, 24, 18.0, unit=8, least=18.0),
        replace(goal(B, 26, 26.0), is_held=is_held),
        goal(C, rises_from, 46.0),
    )

    assert rounded(goals, supply=90, rises_max=12.0, falls_max=12.0) == expected


@pytest.mark.parametrize(("floor", "expected"), [(8, 8), (9, 8), (10, 8)])
def test_who_turned_too_often_gives_all_the_same_before_what_others_ran_is_cut(floor: int, expected: int) -> None:
    goals = (
        goal(A, 8, 8.5, unit=8, least=8.5),
        replace(goal(B, 10, 10.0), is_held=True),
        goal(C, 10, 10.0, least=floor),
    )

    found = rounded(goals, supply=34 - (10 - floor), falls_max=12.0)

    assert found == {A: 16, B: expected, C: floor}


@pytest.mark.parametrize(("guaranteed", "inner_has"), [(13, 13), (14, 14), (15, 15)])
def test_units_of_an_organisation_take_nothing_that_one_within_it_is_guaranteed(
    guaranteed: int, inner_has: int
) -> None:
    # B has 17, and may spare what is beyond its own guarantee, when A rises by a whole unit.
    goals = (goal(A, 8, 11.0, unit=8, least=8), goal(B, 11, 17.0, least=5), goal(C, 4, 7.0, least=4))
    leasts = [(frozenset({B}), float(guaranteed)), (frozenset({A, B, C}), 35.0)]

    found = rounded(goals, supply=36, leasts=leasts, rises_max=20.0)

    assert found[B] >= inner_has
    assert sum(found.values()) <= 36


@pytest.mark.parametrize(("guaranteed", "expected"), [(25, 8), (26, 12), (29, 12)])
def test_what_the_cap_of_an_organisation_takes_its_others_get_up_to_what_is_guaranteed(
    guaranteed: int, expected: int
) -> None:
    # A falls to 12, the last whole unit within the cap of 14: of what the outer one is guaranteed, C has the rest.
    goals = (goal(A, 16, 14.0, unit=4, least=4), goal(B, 12, 5.0, least=5), goal(C, 4, 10.0, unit=4, least=4))
    leasts = [(frozenset({A}), 10.0), (frozenset({A, B, C}), float(guaranteed))]

    found = rounded(goals, supply=40, bounds=[(frozenset({A}), 14.0)], leasts=leasts, rises_max=6.0, falls_max=9.0)

    assert found == {A: 12, B: 5, C: expected}


@given(
    st.lists(
        st.tuples(st.integers(0, 10), st.integers(0, 400), st.sampled_from([1.0, 4.0, 8.0])), min_size=1, max_size=5
    )
)
def test_rounded_quotas_are_whole_units_within_the_supply_and_near_their_goals(
    teams: list[tuple[int, int, float]],
) -> None:
    goals = [
        goal(TeamName(str(n)), unit * before, tenths / 10, unit=unit) for n, (before, tenths, unit) in enumerate(teams)
    ]
    supply = math.fsum(each.quota for each in goals)

    found = rounded(goals, supply=supply)

    assert sum(found.values()) <= supply + 1e-6
    for each in goals:
        assert found[each.team] % each.unit == 0
        assert found[each.team] < each.quota + each.unit
