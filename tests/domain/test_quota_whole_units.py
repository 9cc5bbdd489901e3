"""Quotas in whole nodes: nothing is lost, nobody falls below what is agreed."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.domain.quota.terms import TeamName
from ops_pipelines.domain.quota.whole_units import Goal, in_whole_units, rounded

A, B, C = TeamName("a"), TeamName("b"), TeamName("c")


@pytest.mark.parametrize(
    ("quotas", "least", "supply", "expected"),
    [
        ({A: 20.0, B: 20.0}, {}, 40, {A: 24, B: 16}),
        ({A: 19.0, B: 21.0}, {}, 40, {A: 16, B: 24}),
        ({A: 16.0, B: 24.0}, {}, 40, {A: 16, B: 24}),
        ({A: 19.0, B: 21.0}, {A: 17.0}, 40, {A: 24, B: 16}),
        ({A: 19.0, B: 21.0}, {A: 16.0}, 40, {A: 16, B: 24}),
        ({A: 12.0, B: 12.0, C: 12.0}, {}, 36, {A: 16, B: 8, C: 8}),
        ({A: 9.0, B: 9.0, C: 30.0}, {A: 9.0, B: 9.0}, 48, {A: 16, B: 16, C: 16}),
        ({A: 0.0}, {}, 40, {A: 0}),
    ],
)
def test_the_largest_remainders_get_what_rounding_leaves(
    quotas: Mapping[TeamName, float], least: Mapping[TeamName, float], supply: float, expected: Mapping[TeamName, float]
) -> None:
    assert in_whole_units(quotas, unit=8, least=least, supply=supply) == expected


@pytest.mark.parametrize(("supply", "fits"), [(15.9, False), (16.0, True)])
def test_guarantees_that_do_not_fit_in_whole_nodes_are_refused(supply: float, fits: bool) -> None:
    quotas = {A: 7.0, B: 7.0}

    if fits:
        assert in_whole_units(quotas, unit=8, least=quotas, supply=supply) == {A: 8, B: 8}
    else:
        with pytest.raises(ValueError, match="need 16, 8 more than there are"):
            in_whole_units(quotas, unit=8, least=quotas, supply=supply)


def test_a_unit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="the unit is 0 GPUs"):
        in_whole_units({A: 1.0}, unit=0, least={}, supply=1)


@given(
    st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 400).map(lambda tenths: tenths / 10), min_size=1),
    st.sampled_from([1.0, 4.0, 8.0]),
)
def test_what_is_rounded_fits_and_moves_nobody_by_a_whole_unit(quotas: dict[TeamName, float], unit: float) -> None:
    supply = math.fsum(quotas.values())

    found = in_whole_units(quotas, unit=unit, least={}, supply=supply)

    assert math.fsum(found.values()) <= supply + 1e-6
    assert math.fsum(found.values()) > supply - unit - 1e-6
    for team, quota in quotas.items():
        assert abs(found[team] - quota) < unit + 1e-6
        assert found[team] % unit == 0


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
