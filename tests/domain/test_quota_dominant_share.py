"""Several resources: dominant shares are raised together, and nothing that could be used stays unused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.quotas.allocation import Wish, share_out

A, B = TeamName("a"), TeamName("b")
NEAR = 1e-6


def test_the_example_of_the_paper_comes_out() -> None:
    """9 CPUs and 18 GB; tasks of <1 CPU, 4 GB> and <3 CPUs, 1 GB>: three and two of them (Ghodsi et al., section 4)."""
    wishes = [
        Wish(team=A, amounts={"cpu": 100.0, "gb": 400.0}),
        Wish(team=B, amounts={"cpu": 300.0, "gb": 100.0}),
    ]

    found = share_out(wishes, supplies={"cpu": 9.0, "gb": 18.0})

    assert {team: part * 100 for team, part in found.items()} == pytest.approx({A: 3, B: 2})


def test_one_resource_is_plain_max_min() -> None:
    wishes = [Wish(team=A, amounts={"gpu": 2.0}), Wish(team=B, amounts={"gpu": 20.0}, weight=2.0)]

    assert share_out(wishes, supplies={"gpu": 10.0}) == pytest.approx({A: 1.0, B: 0.4})


def test_who_needs_what_there_is_none_of_gets_nothing_and_holds_nobody_up() -> None:
    wishes = [Wish(team=A, amounts={"gpu": 2.0, "gb": 1.0}), Wish(team=B, amounts={"gpu": 4.0})]

    assert share_out(wishes, supplies={"gpu": 4.0, "gb": 0.0}) == {A: 0.0, B: 1.0}


def test_who_asks_for_nothing_has_all_of_it() -> None:
    assert share_out([Wish(team=A, amounts={"gpu": 0.0})], supplies={"gpu": 0.0}) == {A: 1.0}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Wish(team=A, amounts={"gpu": -1.0}), "a asks for -1.0 of gpu"),
        (lambda: Wish(team=A, amounts={"gpu": math.nan}), "a asks for nan of gpu"),
        (lambda: Wish(team=A, amounts={}, weight=0.0), "a has the weight 0.0"),
        (
            lambda: share_out([Wish(team=A, amounts={"tpu": 1.0})], supplies={"gpu": 1.0}),
            "for tpu; there are gpu",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused(make: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()  # type: ignore[operator]  # one of the functions above


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.sampled_from([0.5, 1.0, 3.0])),
        min_size=1,
        max_size=5,
    ),
    st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60)),
)
def test_shares_fit_and_who_wants_more_lacks_a_resource_that_is_used_up(
    asked: list[tuple[int, int, int, float]], there: tuple[int, int, int]
) -> None:
    names = ("gpu", "cpu", "gb")
    supplies = dict(zip(names, map(float, there), strict=True))
    wishes = [
        Wish(team=TeamName(f"t{n}"), amounts=dict(zip(names, map(float, each[:3]), strict=True)), weight=each[3])
        for n, each in enumerate(asked)
    ]

    parts = share_out(wishes, supplies=supplies)

    used = {name: math.fsum(parts[wish.team] * wish.amounts[name] for wish in wishes) for name in names}
    assert all(used[name] <= supplies[name] + NEAR for name in names)
    for wish in wishes:
        part = parts[wish.team]
        assert -NEAR <= part <= 1 + NEAR
        short = [name for name in names if wish.amounts[name] and used[name] >= supplies[name] - NEAR]
        assert part >= 1 - NEAR or short


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=5),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_nobody_would_rather_have_the_part_of_another(asked: list[tuple[int, int]], there: tuple[int, int]) -> None:
    names = ("gpu", "gb")
    supplies = dict(zip(names, map(float, there), strict=True))
    wishes = [
        Wish(team=TeamName(f"t{n}"), amounts=dict(zip(names, map(float, each), strict=True)))
        for n, each in enumerate(asked)
    ]

    parts = share_out(wishes, supplies=supplies)

    for mine in wishes:
        for other in wishes:
            of_others = min(parts[other.team] * other.amounts[name] / mine.amounts[name] for name in names)
            assert parts[mine.team] >= min(1.0, of_others) - NEAR
