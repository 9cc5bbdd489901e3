"""Quotas in whole nodes: nothing is lost, nobody falls below what is agreed."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.domain.quota.terms import TeamName
from ops_pipelines.domain.quota.whole_units import in_whole_units

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
