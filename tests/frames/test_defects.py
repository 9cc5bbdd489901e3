"""The fleet-wide alarm: it finds the bad batch, names it with numbers, and keeps still where there is none."""

import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.diagnose.defects import (
    FLEET,
    AlarmRules,
    Failures,
    GroupRate,
    Service,
    binomial_tail,
    clopper_pearson,
    compare_groups,
    watch,
)
from ops_pipelines.lake.inventory import batch_of

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DAY = timedelta(days=1)
SIZE = 400


def service(*, days: float = 300, batches: int = 4, size: int = SIZE) -> Service:
    """Return parts in service since so many days, of batches b0, b1, ... in turn, in ten racks."""
    return Service(
        part=np.arange(size),
        begin=np.full(size, (NOW - days * DAY).timestamp()),
        end=np.full(size, np.inf),
        labels={
            "batch": np.array([f"b{place % batches}" for place in range(size)], dtype=object),
            "rack": np.array([f"r{place // (size // 10)}" for place in range(size)], dtype=object),
        },
    )


def failures(*listed: tuple[float, int]) -> Failures:
    """Return failures as (days ago, part)."""
    return Failures(
        at=np.array([(NOW - days * DAY).timestamp() for days, _ in listed]),
        stretch=np.array([part for _, part in listed], dtype=np.int64),
    )


def by_group(rates: tuple[GroupRate, ...]) -> dict[str, GroupRate]:
    return {each.group: each for each in rates}


SPREAD = [(float(3 * place + 1), 37 * place % SIZE) for place in range(20)]
"""Twenty failures of the last 60 days, all over the fleet."""
OF_ONE_BATCH = [(float(place + 1), 4 * place) for place in range(20)]
"""The same number, all of batch b0, in racks r0 and r1."""


def test_a_bad_batch_is_named_with_its_numbers() -> None:
    rates = compare_groups(service(), failures(*OF_ONE_BATCH, *SPREAD), at=NOW)

    batch = by_group(rates)["b0"]
    assert batch.is_alarm
    assert (batch.kind, batch.failed_count) == ("batch", 23)
    assert batch.days == pytest.approx(100 * 90)
    assert batch.ratio == pytest.approx((23 / 9000) / (15 / 27000), rel=0.05)
    assert batch.ratio_low < batch.ratio < batch.ratio_high
    assert "batch b0 fails" in batch.explanation


def test_failures_all_over_the_fleet_are_no_groups_fault() -> None:
    rates = compare_groups(service(), failures(*SPREAD), at=NOW)

    assert not any(each.is_alarm for each in rates if each.kind != FLEET)


def test_a_fleet_that_fails_more_than_it_did_is_an_alarm_of_its_own() -> None:
    before = [(float(100 + 10 * place), 11 * place) for place in range(18)]

    (fleet,) = (each for each in compare_groups(service(), failures(*SPREAD, *before), at=NOW) if each.kind == FLEET)
    lately = compare_groups(service(), failures(*OF_ONE_BATCH, *SPREAD, *before[:2]), at=NOW)

    assert not fleet.is_alarm
    assert by_group(lately)[FLEET].is_alarm
    assert "its own past" in by_group(lately)[FLEET].explanation


@pytest.mark.parametrize(("days", "has_past"), [(179, False), (180, True), (181, True)])
def test_a_fleet_without_a_past_is_compared_with_nothing(days: float, has_past: bool) -> None:
    rates = compare_groups(service(days=days), failures(*OF_ONE_BATCH, *SPREAD), at=NOW)

    assert (FLEET in by_group(rates)) is has_past


@pytest.mark.parametrize(("count", "is_told"), [(4, False), (5, True), (6, True)])
def test_a_handful_is_left_to_people(count: int, is_told: bool) -> None:
    rates = compare_groups(service(), failures(*OF_ONE_BATCH[:count]), at=NOW)

    assert ("b0" in by_group(rates)) is is_told


def test_one_lemon_is_no_epidemic() -> None:
    rates = compare_groups(service(), failures(*((float(day), 0) for day in range(1, 60))), at=NOW)

    assert rates == ()


def test_a_small_difference_is_told_without_an_alarm() -> None:
    """Thousands of failures make 20 % significant; nobody orders a batch back for that."""
    many = service(size=40_000)
    random = np.random.default_rng(3)
    hit = np.flatnonzero(random.random(40_000) < np.where(np.arange(40_000) % 4 == 0, 0.24, 0.20))

    batch = by_group(compare_groups(many, failures(*((5.0, int(part)) for part in hit)), at=NOW))["b0"]

    assert batch.q_value < 1e-6
    assert not batch.is_alarm


def test_a_group_is_judged_by_its_time_in_service() -> None:
    """A rack that is ten times as long in service may fail ten times as often."""
    stretches = service()
    is_new = np.arange(SIZE) % 4 != 0
    young = Service(
        part=stretches.part,
        begin=np.where(is_new, (NOW - 9 * DAY).timestamp(), stretches.begin),
        end=stretches.end,
        labels=stretches.labels,
    )
    seen = failures(*((float(4 * place + 1), 4 * place) for place in range(20)), (1.0, 1), (2.0, 6), (3.0, 11))

    assert not by_group(compare_groups(young, seen, at=NOW))["b0"].is_alarm
    assert by_group(compare_groups(stretches, seen, at=NOW))["b0"].is_alarm


def test_parts_of_unknown_batch_are_no_comparison() -> None:
    stretches = service()
    unknown = Service(
        part=stretches.part,
        begin=stretches.begin,
        end=stretches.end,
        labels={"batch": np.where(np.arange(SIZE) % 4 == 0, "b0", "").astype(object)},
    )

    assert [each.kind for each in compare_groups(unknown, failures(*OF_ONE_BATCH), at=NOW)] in ([FLEET], [])


def test_a_part_that_moved_fails_where_it_stands() -> None:
    """One part, two stretches: the failure belongs to the second rack."""
    moved = Service(
        part=np.repeat(np.arange(50), 2),
        begin=np.tile([(NOW - 300 * DAY).timestamp(), (NOW - 80 * DAY).timestamp()], 50),
        end=np.tile([(NOW - 80 * DAY).timestamp(), np.inf], 50),
        labels={"rack": np.array(["r0", "r1"] * 50, dtype=object)},
    )

    rates = by_group(compare_groups(moved, failures(*((float(day), 2 * day + 1) for day in range(1, 31))), at=NOW))

    assert rates["r1"].failed_count == 30
    assert rates["r1"].days == pytest.approx(50 * 80)
    assert rates["r1"].ratio == math.inf


def test_the_alarm_goes_off_when_enough_was_seen_and_knows_nothing_of_later() -> None:
    looks = [NOW - day * DAY for day in range(0, 60, 5)]
    seen = failures(*OF_ONE_BATCH, *SPREAD)

    found = {alarm.first.group: alarm for alarm in watch(service(), seen, looks=looks)}

    at = found["b0"].at
    assert NOW - 20 * DAY < at < NOW
    assert by_group(compare_groups(service(), seen, at=at))["b0"].is_alarm
    assert not by_group(compare_groups(service(), seen, at=at - 5 * DAY))["b0"].is_alarm
    known = failures(*(each for each in (*OF_ONE_BATCH, *SPREAD) if NOW - each[0] * DAY < at))
    assert compare_groups(service(), known, at=at) == compare_groups(service(), seen, at=at)


def test_a_healthy_fleet_hardly_ever_alarms() -> None:
    random = np.random.default_rng(5)
    alarmed = 0

    for _ in range(40):
        dealt = [(float(random.uniform(0, 300)), int(random.integers(SIZE))) for _ in range(150)]
        alarmed += any(each.is_alarm for each in compare_groups(service(), failures(*dealt), at=NOW))

    assert alarmed <= 2


def test_nothing_in_service_is_nothing_to_say() -> None:
    none = Service(part=np.array([], np.int64), begin=np.array([]), end=np.array([]), labels={})

    assert compare_groups(none, failures(), at=NOW) == ()
    assert compare_groups(service(), failures(), at=NOW) == ()
    assert watch(service(), failures(), looks=[]) == ()


def test_columns_that_do_not_fit_are_refused() -> None:
    one = np.array([0.0])
    with pytest.raises(ValueError, match="one entry for each interval"):
        Service(part=np.array([0, 1]), begin=one, end=one, labels={})
    with pytest.raises(ValueError, match="everybody"):
        Service(part=np.array([0]), begin=one, end=one, labels={FLEET: np.array(["a"], dtype=object)})


@pytest.mark.parametrize(
    ("serial", "batch"),
    [
        ("0323712057131", "2012-W37"),
        ("0333313000001", "2013-W33"),
        ("0320012000001", ""),
        ("0325412000001", ""),
        ("1650123", ""),
        ("", ""),
        ("03237120571\uff131", ""),
    ],
)
def test_the_batch_is_week_and_year_of_the_serial(serial: str, batch: str) -> None:
    assert batch_of(serial) == batch


# -- the exact test -----------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=50))
def test_the_binomial_tail_is_what_the_sum_says(count: int, more: int, share: Fraction) -> None:
    total = count + more

    exact = sum(
        (math.comb(total, each) * share**each * (1 - share) ** (total - each) for each in range(count, total + 1)),
        Fraction(0),
    )

    assert binomial_tail(count, total, float(share)) == pytest.approx(float(exact), rel=1e-9)


def test_the_binomial_tail_at_its_ends() -> None:
    assert binomial_tail(0, 10, 0.0) == 1.0
    assert binomial_tail(1, 10, 0.0) == 0.0
    assert binomial_tail(10, 10, 1.0) == 1.0
    assert binomial_tail(11, 10, 0.5) == 0.0
    assert binomial_tail(900, 1000, 0.1) < 1e-300 or binomial_tail(900, 1000, 0.1) == 0.0


@pytest.mark.parametrize(
    ("count", "total", "expected"), [(0, 10, (0.0, 0.3085)), (5, 10, (0.1871, 0.8129)), (10, 10, (0.6915, 1.0))]
)
def test_clopper_and_pearson_as_tabled(count: int, total: int, expected: tuple[float, float]) -> None:
    assert clopper_pearson(count, total) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match="part of one or more"):
        clopper_pearson(0, 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 299), st.integers(0, SIZE - 1)), max_size=60), st.randoms(use_true_random=False))
def test_order_and_duplicates_change_nothing(listed: list[tuple[float, int]], random: Random) -> None:
    told = [*listed, *listed[::3]]
    random.shuffle(told)

    again = compare_groups(service(), failures(*told), at=NOW)

    assert again == compare_groups(service(), failures(*listed), at=NOW)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 89), st.integers(0, SIZE - 1)), min_size=10, max_size=60))
def test_no_alarm_without_enough_parts_and_a_raised_bound(listed: list[tuple[float, int]]) -> None:
    rules = AlarmRules()

    for rate in compare_groups(service(), failures(*listed), at=NOW, rules=rules):
        assert rate.failed_count >= rules.min_count
        assert 0 <= rate.p_value <= rate.q_value <= 1
        assert rate.ratio_low <= rate.ratio <= rate.ratio_high
        if rate.is_alarm:
            assert rate.q_value <= rules.false_discovery_rate
            assert rate.ratio_low >= rules.min_ratio
