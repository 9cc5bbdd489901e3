"""Chances, stretches and shares, each beside its simple definition; and what debt and gangs may move at most."""

import math
from collections.abc import Sequence
from datetime import date
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.quotas.allocation import Sharing, allocate
from ops_pipelines.quotas.demand import DemandDay, queue_chance, remember
from ops_pipelines.quotas.today import chance_factor, standings_of, weight_factor
from ops_pipelines.teams.desk import RebalanceSettings

NEAR = 1e-9
AMOUNTS = st.integers(0, 12).map(float)
WEIGHED = st.lists(st.tuples(AMOUNTS, st.floats(0.01, 1.0)), min_size=1, max_size=12)
A = TeamName("a")


def wanted_beyond(weighed: Sequence[tuple[float, float]], quota: float) -> float:
    return math.fsum(weight for amount, weight in weighed if amount > quota) / math.fsum(w for _, w in weighed)


@given(WEIGHED, AMOUNTS, st.sampled_from([0.98, 1.0]))
def test_a_chance_is_the_share_of_the_time_in_which_more_was_wanted(
    weighed: list[tuple[float, float]], quota: float, lean: float
) -> None:
    chance = queue_chance([a for a, _ in weighed], weights=[w for _, w in weighed]).leaned(lean)

    assert chance.at(quota) == pytest.approx(lean * wanted_beyond(weighed, quota), abs=NEAR)


@given(WEIGHED, AMOUNTS, st.integers(0, 20).map(float))
def test_stretches_up_and_down_are_the_same_gpus(weighed: list[tuple[float, float]], low: float, length: float) -> None:
    chance = queue_chance([a for a, _ in weighed], weights=[w for _, w in weighed])

    up = list(chance.rising(low, most=low + length))
    down = list(chance.falling(low + length, least=low))

    assert math.fsum(size for _, size in up) == pytest.approx(length, abs=NEAR)
    assert down == [pytest.approx(each, abs=NEAR) for each in reversed(up)]
    wanted = math.fsum(ratio * size for ratio, size in up)
    assert wanted == pytest.approx(chance.unserved(low) - chance.unserved(low + length), abs=NEAR)


@given(st.lists(st.lists(AMOUNTS, min_size=24, max_size=24), min_size=1, max_size=3), AMOUNTS)
def test_what_is_remembered_is_each_hour_by_its_age(days: list[list[float]], quota: float) -> None:
    settings = RebalanceSettings(spread_ratio=0.15)
    hours = [amount for day in days for amount in day]
    weighed = [(a * f, 0.5 ** (age / 9.0)) for age, a in enumerate(reversed(hours)) for f in (0.85, 1.0, 1.15)]

    known = [DemandDay(day=date(2026, 3, n + 1), hours={A: day}, ran_last={}) for n, day in enumerate(days)]
    found = remember(known, teams=[A], settings=settings)[A]

    assert found.at(quota + 0.001) == pytest.approx(wanted_beyond(weighed, quota + 0.001), abs=1e-3)


@given(st.integers(0, 100_000), st.integers(0, 150).map(float))
def test_totals_of_an_hour_are_those_of_the_allocation(seed: int, supply: float) -> None:
    random = Random(seed)
    terms = [
        Terms(team=TeamName(f"t{n}"), guarantee=g, weight=random.choice([0, 1, 2]), priority=random.randint(0, 1),
              cap=random.choice([math.inf, g + 4]), lend_limit=random.choice([math.inf, math.inf, 2.0]))
        for n in range(random.randint(1, 5))
        for g in (float(random.randint(0, 20)),)
    ]  # fmt: skip
    asked = {each.team: float(random.randint(0, 60)) for each in terms}

    totals = Sharing(terms).totals(asked, supply=supply)

    expected = {team: each.total for team, each in allocate(terms, asked=asked, supply=supply).items()}
    assert totals == pytest.approx(expected, abs=NEAR)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(-1e6, 1e6)), st.floats(0, 500))
def test_debt_never_puts_a_team_before_one_of_twice_its_weight(debts: dict[str, float], supply: float) -> None:
    teams = [Terms(team=TeamName(name), guarantee=0, weight=weight) for name, weight in (("a", 1.0), ("b", 2.0))]

    found = standings_of({TeamName(name): debt for name, debt in debts.items()}, teams, supply=supply)

    assert all(-1 <= standing <= 1 for standing in found.values())
    assert all(0.98 - NEAR <= chance_factor(standing) <= 1 for standing in found.values())
    one, two = (each.weight * weight_factor(found[each.team]) for each in teams)
    assert one <= two + NEAR


def test_a_queue_chance_needs_a_weight_for_each_amount() -> None:
    with pytest.raises(ValueError, match="2 amounts and 1 weights"):
        queue_chance([1.0, 2.0], weights=[1.0])
