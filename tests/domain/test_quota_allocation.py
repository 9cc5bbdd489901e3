"""The allocation against linear programs, and the laws that make it fair."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.quotas.allocation import Granted, allocate, pour

NEAR = 1e-6
GPUS = st.integers(min_value=0, max_value=64).map(float)
WEIGHTS = st.sampled_from([0.5, 1.0, 2.0, 3.0])


def team(name: str, guarantee: float, **more: object) -> Terms:
    return Terms(team=TeamName(name), guarantee=guarantee, **more)  # type: ignore[arg-type]  # the fields of Terms


def totals(terms: Sequence[Terms], asked: Mapping[str, float], supply: float) -> dict[str, float]:
    granted = allocate(terms, asked={TeamName(name): amount for name, amount in asked.items()}, supply=supply)
    return {str(name): each.total for name, each in granted.items()}


# --- water filling against the linear program ---------------------------------------------------------------------


def lexicographic_optimum(needs: Sequence[float], weights: Sequence[float], supply: float) -> list[float]:
    """The max-min fair shares by linear programs: raise the least share by weight, fix who cannot have more, repeat."""
    count = len(needs)
    fixed: dict[int, float] = {}
    while len(fixed) < count:
        free = [each for each in range(count) if each not in fixed]
        level = _raised(needs, weights, supply, fixed, free)
        stuck = [each for each in free if not _can_have_more(each, needs, weights, supply, fixed, free, level)]
        assert stuck
        for each in stuck:
            fixed[each] = min(needs[each], level * weights[each])
    return [fixed[each] for each in range(count)]


def _raised(
    needs: Sequence[float], weights: Sequence[float], supply: float, fixed: Mapping[int, float], free: Sequence[int]
) -> float:
    """The highest level that all the free ones reach together (who needs less counts as there)."""
    count = len(needs)
    bounds = [(fixed[each], fixed[each]) if each in fixed else (0.0, needs[each]) for each in range(count)]
    rows = [[1.0] * count + [0.0]]
    limits = [supply]
    for each in free:
        row = [0.0] * (count + 1)
        row[each], row[count] = -1.0, weights[each]
        rows.append(row)
        limits.append(0.0)
    solved = linprog([0.0] * count + [-1.0], A_ub=rows, b_ub=limits, bounds=[*bounds, (0.0, None)], method="highs")
    assert solved.status == 0
    return float(solved.x[count])


def _can_have_more(
    one: int,
    needs: Sequence[float],
    weights: Sequence[float],
    supply: float,
    fixed: Mapping[int, float],
    free: Sequence[int],
    level: float,
) -> bool:
    count = len(needs)
    bounds = [
        (fixed[each], fixed[each]) if each in fixed else (min(level * weights[each], needs[each]), needs[each])
        for each in range(count)
    ]
    goal = np.zeros(count)
    goal[one] = -1.0
    solved = linprog(goal, A_ub=[[1.0] * count], b_ub=[supply + 1e-9], bounds=bounds, method="highs")
    assert solved.status == 0
    return bool(solved.x[one] > level * weights[one] + NEAR)


@settings(max_examples=40)  # each solves up to a dozen linear programs
@given(
    st.lists(st.tuples(st.integers(1, 40).map(float), WEIGHTS), min_size=1, max_size=6),
    st.integers(min_value=1, max_value=120).map(float),
)
def test_pouring_equals_the_linear_program_in_max_min_order(wants: list[tuple[float, float]], supply: float) -> None:
    needs, weights = [need for need, _ in wants], [weight for _, weight in wants]

    poured = pour(needs, weights=weights, supply=supply)

    assert poured.shares == pytest.approx(lexicographic_optimum(needs, weights, supply), abs=NEAR)


# --- guarantees, lending, priorities ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({"a": 10, "b": 10}, {"a": 10, "b": 10}),
        ({"a": 50, "b": 50}, {"a": 30, "b": 30}),
        ({"a": 50, "b": 5}, {"a": 50, "b": 5}),
        ({"a": 90, "b": 5}, {"a": 55, "b": 5}),
        ({"a": 0, "b": 0}, {"a": 0, "b": 0}),
    ],
)
def test_what_one_does_not_use_of_its_guarantee_is_lent_until_it_asks(
    asked: dict[str, float], got: dict[str, float]
) -> None:
    assert totals([team("a", 30), team("b", 30)], asked, 60) == pytest.approx(got)


@pytest.mark.parametrize(
    ("terms", "got"),
    [
        ({"lend_limit": 10.0}, 40.0),
        ({"lend_limit": 0.0}, 30.0),
        ({"reserved": 25.0}, 35.0),
        ({"reserved": 30.0}, 30.0),
        ({"reserved": 25.0, "lend_limit": 3.0}, 33.0),
    ],
)
def test_nobody_gets_of_a_guarantee_what_is_reserved_or_beyond_the_lend_limit(
    terms: dict[str, float], got: float
) -> None:
    found = allocate([team("idle", 30, **terms), team("busy", 30)], asked={TeamName("busy"): 90}, supply=60)

    assert found[TeamName("busy")].total == pytest.approx(got)
    assert found[TeamName("idle")].kept_idle == pytest.approx(60 - got)


@pytest.mark.parametrize(("limit", "got"), [(0.0, 20.0), (5.0, 25.0), (40.0, 60.0), (math.inf, 60.0)])
def test_borrowing_ends_at_its_limit(limit: float, got: float) -> None:
    assert totals([team("a", 20, borrow_limit=limit)], {"a": 100}, 60)["a"] == pytest.approx(got)


def test_a_cap_holds_whatever_is_free() -> None:
    assert totals([team("a", 20, cap=25)], {"a": 100}, 60) == {"a": 25}


def test_what_is_left_goes_by_weight() -> None:
    assert totals([team("a", 0, weight=1), team("b", 0, weight=3)], {"a": 99, "b": 99}, 40) == {"a": 10, "b": 30}


def test_who_has_the_higher_priority_borrows_first() -> None:
    found = totals([team("a", 10, priority=1), team("b", 10)], {"a": 35, "b": 35}, 50)

    assert found == {"a": 35, "b": 15}


@pytest.mark.parametrize(("supply", "got"), [(60, {"a": 40, "b": 20}), (45, {"a": 30, "b": 15}), (0, {"a": 0, "b": 0})])
def test_guarantees_that_cannot_be_kept_are_kept_in_proportion(supply: float, got: dict[str, float]) -> None:
    assert totals([team("a", 40), team("b", 20)], {"a": 99, "b": 99}, supply) == pytest.approx(got)


def test_guarantees_that_cannot_be_kept_are_kept_by_priority_first() -> None:
    assert totals([team("a", 40), team("b", 20, priority=1)], {"a": 99, "b": 99}, 45) == {"a": 25, "b": 20}


def test_idle_guarantees_give_way_when_even_used_ones_hardly_fit() -> None:
    found = totals([team("idle", 30, reserved=30), team("busy", 30)], {"busy": 30}, 40)

    assert found["busy"] == 30


# --- organisations ------------------------------------------------------------------------------------------------

TREE = (
    team("science", 40, weight=2),
    team("physics", 25, parent=TeamName("science")),
    team("biology", 15, parent=TeamName("science")),
    team("product", 20, weight=1),
)


def test_idle_gpus_stay_within_an_organisation_first_where_it_needs_its_guarantee() -> None:
    found = totals(TREE, {"physics": 99, "biology": 0, "product": 99}, 60)

    assert found == {"science": 40, "physics": 40, "biology": 0, "product": 20}


def test_an_organisation_lends_what_all_of_its_teams_leave() -> None:
    found = totals(TREE, {"physics": 5, "biology": 5, "product": 99}, 60)

    assert found == {"science": 10, "physics": 5, "biology": 5, "product": 50}


def test_what_an_organisation_borrows_is_shared_out_among_its_own() -> None:
    found = totals(TREE, {"physics": 99, "biology": 99, "product": 0}, 60)

    assert found == {"science": 60, "physics": 35, "biology": 25, "product": 0}


def test_an_organisations_guarantee_covers_what_it_promised_its_own() -> None:
    promised = (team("org", 10), team("a", 30, parent=TeamName("org")), team("b", 20))

    assert totals(promised, {"a": 30, "b": 99}, 50) == {"org": 30, "a": 30, "b": 20}


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "asked", "said"),
    [
        ([team("a", 1), team("a", 2)], {}, "two terms for a"),
        ([team("a", 1, parent=TeamName("b"))], {}, "belongs to b, which has no terms"),
        ([team("a", 1, parent=TeamName("b")), team("b", 1, parent=TeamName("a"))], {}, "belongs to itself"),
        ([team("a", 1)], {"b": 1}, "b asks for 1 GPUs and has no terms"),
        ([team("a", 1)], {"a": -1}, "a asks for -1 GPUs"),
        ([team("a", 1)], {"a": math.nan}, "a asks for nan GPUs"),
        (TREE, {"science": 1}, "science has teams of its own"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_by_name(
    terms: Sequence[Terms], asked: dict[str, float], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        totals(terms, asked, 10)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"guarantee": -1.0}, "guarantee is -1"),
        ({"guarantee": math.nan}, "guarantee is nan"),
        ({"guarantee": math.inf}, "must be numbers"),
        ({"guarantee": 4.0, "reserved": 5.0}, "expected none larger"),
        ({"guarantee": 4.0, "cap": 3.0}, "expected none larger"),
        ({"guarantee": 4.0, "weight": -0.5}, "weight is -0.5"),
        ({"guarantee": 4.0, "weight": 0.0009}, "weight is 0.0009; expected 0, or at least 0.001"),
    ],
)
def test_terms_that_contradict_themselves_are_refused(numbers: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Terms(team=TeamName("a"), **numbers)


# --- laws ---------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Terms], dict[str, float], float]:
    terms = []
    for number in range(draw(st.integers(1, 6))):
        guarantee = draw(GPUS)
        terms.append(
            team(
                f"t{number}",
                guarantee,
                weight=draw(WEIGHTS),
                borrow_limit=draw(st.sampled_from([math.inf, 0.0, 8.0])),
                lend_limit=draw(st.sampled_from([math.inf, 0.0, 8.0])),
                reserved=draw(st.sampled_from([0.0, guarantee / 2])),
                priority=draw(st.sampled_from([0, 0, 1])),
            )
        )
    asked = {each.team: draw(GPUS) for each in terms}
    return terms, {str(name): amount for name, amount in asked.items()}, draw(st.integers(0, 200).map(float))


@given(cases())
def test_nobody_gets_more_than_he_asks_for_or_may_have_and_all_fits(
    case: tuple[list[Terms], dict[str, float], float],
) -> None:
    terms, asked, supply = case

    found = allocate(terms, asked={TeamName(name): amount for name, amount in asked.items()}, supply=supply)

    for each in terms:
        granted: Granted = found[each.team]
        assert -NEAR <= granted.total <= min(asked[each.team], each.most) + NEAR
        assert granted.kept_idle >= -NEAR
        assert granted.lent >= -NEAR
    assert math.fsum(each.total + each.kept_idle for each in found.values()) <= supply + NEAR
    if math.fsum(each.guarantee for each in terms) <= supply:
        assert all(found[each.team].owed >= min(each.guarantee, asked[each.team], each.most) - NEAR for each in terms)


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_teams_does_not_matter(case: tuple[list[Terms], dict[str, float], float], random: object) -> None:
    terms, asked, supply = case
    shuffled = list(terms)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # a Random, which hypothesis types as object

    assert totals(shuffled, asked, supply) == pytest.approx(totals(terms, asked, supply), abs=NEAR)


@given(cases(), st.sampled_from([0.25, 3.0, 8.0]))
def test_twice_of_everything_gives_twice_of_everything(
    case: tuple[list[Terms], dict[str, float], float], factor: float
) -> None:
    terms, asked, supply = case
    scaled = [
        team(
            each.team,
            each.guarantee * factor,
            weight=each.weight,
            borrow_limit=each.borrow_limit * factor,
            lend_limit=each.lend_limit * factor,
            reserved=each.reserved * factor,
            priority=each.priority,
        )
        for each in terms
    ]

    once = totals(terms, asked, supply)
    more = totals(scaled, {name: amount * factor for name, amount in asked.items()}, supply * factor)

    assert more == pytest.approx({name: amount * factor for name, amount in once.items()}, abs=NEAR * factor)


@given(cases(), st.integers(1, 32).map(float))
def test_a_larger_guarantee_never_gives_less(case: tuple[list[Terms], dict[str, float], float], more: float) -> None:
    terms, asked, supply = case
    first = terms[0]
    raised = team(
        first.team,
        first.guarantee + more,
        weight=first.weight,
        borrow_limit=first.borrow_limit,
        priority=first.priority,
    )

    assert totals([raised, *terms[1:]], asked, supply)["t0"] >= totals(terms, asked, supply)["t0"] - NEAR


@given(cases(), st.integers(1, 64).map(float))
def test_overstating_demand_gives_no_more_than_what_is_asked_for_truly_could(
    case: tuple[list[Terms], dict[str, float], float], lie: float
) -> None:
    terms, asked, supply = case
    truth = totals(terms, asked, supply)["t0"]
    found = totals(terms, {**asked, "t0": asked["t0"] + lie}, supply)["t0"]

    # Who gets less than he asks for gets no more by asking for more; who got all gets at most the rest of the lie.
    assert found >= truth - NEAR
    if truth < min(asked["t0"], terms[0].most) - NEAR:
        assert found <= truth + NEAR
    else:
        assert found <= truth + lie + NEAR


@given(
    st.lists(st.tuples(GPUS, GPUS, WEIGHTS), min_size=2, max_size=5),
    st.integers(0, 200).map(float),
    st.integers(0, 8).map(lambda eighths: eighths / 8),
    st.integers(0, 8).map(lambda eighths: eighths / 8),
)
def test_splitting_a_team_gives_it_no_more(
    teams: list[tuple[float, float, float]], supply: float, of_demand: float, of_terms: float
) -> None:
    terms = [team(f"t{number}", guarantee, weight=weight) for number, (guarantee, _, weight) in enumerate(teams)]
    asked = {f"t{number}": wanted for number, (_, wanted, _) in enumerate(teams)}
    (guarantee, wanted, weight), rest = teams[0], terms[1:]
    halves = [
        team("x", guarantee * of_terms, weight=weight * of_terms),
        team("y", guarantee * (1 - of_terms), weight=weight * (1 - of_terms)),
    ]
    split = {**asked, "x": wanted * of_demand, "y": wanted * (1 - of_demand)}
    del split["t0"]

    found = totals([*halves, *rest], split, supply)

    assert found["x"] + found["y"] <= totals(terms, asked, supply)["t0"] + NEAR
