"""Waves: every node once, canaries spread, NVLink domains whole, growth bounded, and the same from the same nodes."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.policy import EvidenceBound, RolloutLimits
from ops_pipelines.core.rollout import Wave
from ops_pipelines.rollouts.candidates import LEAST_PER_MODEL, draw_waves
from ops_pipelines.rollouts.fleet import FleetNode
from tests.domain.builders import NOW, after
from tests.domain.lifecycle_fleet import HOUR, fleet_node, fleet_of, fleets, policies

thoroughly = settings(max_examples=80, deadline=None)
LIMITS = RolloutLimits()


def waves_of(nodes: Sequence[FleetNode], limits: RolloutLimits = LIMITS) -> tuple[Wave, ...]:
    return draw_waves(nodes, limits=limits, now=NOW)


def sizes(waves: Sequence[Wave]) -> list[int]:
    return [len(wave.nodes) for wave in waves]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [1]),
        (2, [1, 1]),
        (5, [1, 4]),
        (6, [1, 4, 1]),
        (30, [1, 4, 25]),
        (31, [1, 4, 25, 1]),
        (150, [1, 4, 25, 15, 105]),
        (300, [1, 4, 25, 60, 210]),
        (1_000, [1, 4, 25, 70, 200, 700]),
        (1_060, [1, 4, 25, 76, 212, 742]),
        (4_000, [1, 4, 25, 90, 280, 800, 2_800]),
    ],
)
def test_canaries_are_few_and_later_waves_grow(count: int, expected: list[int]) -> None:
    waves = waves_of(fleet_of(count))

    assert sizes(waves) == expected
    assert [wave.is_canary for wave in waves] == [number < 3 for number in range(len(expected))]
    assert [wave.is_deciding for wave in waves] == [
        number == min(2, len(expected) - 1) for number in range(len(expected))
    ]


def test_the_first_canary_is_idle_and_the_next_stand_in_other_racks() -> None:
    busy = [fleet_node(number, free_at=after(HOUR * (1 + number))) for number in range(19)]
    nodes = [*busy, fleet_node(19)]
    racks = {each.node: each.place.rack for each in nodes}

    waves = waves_of(nodes)

    assert waves[0].nodes == ("gpu019",)
    assert sorted(racks[name] for wave in waves[:2] for name in wave.nodes) == ["r00", "r01", "r02", "r03", "r04"]


def test_every_model_stands_twice_among_the_canaries_however_rare_it_is() -> None:
    nodes = [fleet_node(number, model="small" if number in (17, 90) else "big") for number in range(200)]

    waves = waves_of(nodes, RolloutLimits(canary_counts=(1, 4)))

    canaries = {name for wave in waves if wave.is_canary for name in wave.nodes}
    assert {"gpu017", "gpu090"} <= canaries
    assert len(canaries) == 5


def test_a_model_of_large_domains_only_is_still_seen_by_the_canaries() -> None:
    racks = [fleet_node(number, model="small", nvlink_domain=f"d{number // 18}") for number in range(36)]
    nodes = [*racks, *(fleet_node(number) for number in range(36, 100))]

    waves = waves_of(nodes, RolloutLimits(canary_counts=(1, 4)))

    assert sizes(waves)[0] == 1
    assert len(waves[1].nodes) == 4 + 18
    assert waves[1].is_deciding


def test_a_fleet_of_domains_begins_with_one_domain() -> None:
    nodes = [fleet_node(number, nvlink_domain=f"d{number // 18}") for number in range(72)]

    assert sizes(waves_of(nodes)) == [18, 18, 18, 18]


def test_canaries_leave_a_small_partition_a_node_that_is_none() -> None:
    nodes = [
        fleet_node(number, partitions=frozenset({"debug"} if number in (0, 5) else {"batch"})) for number in range(40)
    ]

    canaries = {name for wave in waves_of(nodes) if wave.is_canary for name in wave.nodes}

    assert len({"gpu000", "gpu005"} & canaries) == 1


def test_each_later_wave_has_about_the_same_share_of_every_rack() -> None:
    nodes = [fleet_node(number, rack=f"r{number // 8:03d}") for number in range(800)]

    for wave in waves_of(nodes)[3:]:
        of_rack = Counter(nodes[int(name[3:])].place.rack for name in wave.nodes)
        assert len(of_rack) >= min(90, len(wave.nodes))
        assert max(of_rack.values()) - min(of_rack.values()) <= 2


@thoroughly
@given(fleets(), policies(), st.randoms(use_true_random=False))
def test_every_node_stands_in_one_wave_whatever_order_they_come_in(nodes, policy, random) -> None:
    shuffled = random.sample(nodes, k=len(nodes))

    waves = waves_of(nodes, policy.rollouts)

    assert sorted(name for wave in waves for name in wave.nodes) == sorted(each.node for each in nodes)
    assert waves_of(shuffled, policy.rollouts) == waves
    assert [wave.number for wave in waves] == list(range(1, len(waves) + 1))
    assert [wave.is_deciding for wave in waves].count(True) == 1
    assert all(one.is_canary or not other.is_canary for one, other in pairwise(waves))


@thoroughly
@given(fleets(), policies())
def test_no_domain_is_parted_and_every_model_is_among_the_canaries(nodes, policy) -> None:
    waves = waves_of(nodes, policy.rollouts)

    wave_of = {name: wave.number for wave in waves for name in wave.nodes}
    domains: dict[str, set[int]] = {}
    for each in nodes:
        domains.setdefault(each.place.nvlink_domain, set()).add(wave_of[each.node])
    assert all(len(numbers) == 1 for numbers in domains.values())
    canaries = {name for wave in waves if wave.is_canary for name in wave.nodes}
    have = Counter(each.model for each in nodes)
    shown = Counter(each.model for each in nodes if each.node in canaries)
    has_room = sum(policy.rollouts.canary_counts) >= LEAST_PER_MODEL * len(have) and len(domains) == len(nodes)
    least = LEAST_PER_MODEL if has_room else 1
    assert all(shown[model] >= min(least, count) for model, count in have.items())


def test_a_single_canary_is_not_joined_by_a_second_of_its_model_but_by_one_of_another() -> None:
    alike = fleet_of(8)
    mixed = [*alike[:7], fleet_node(7, model="small")]
    limits = RolloutLimits(canary_counts=(1,))

    assert sizes(waves_of(alike, limits))[:2] == [1, 1]
    assert waves_of(mixed, limits)[0].nodes == ("gpu000", "gpu007")


def test_without_bounds_later_waves_only_grow() -> None:
    assert sizes(waves_of(fleet_of(150), RolloutLimits(bounds=()))) == [1, 4, 25, 90, 30]


def test_no_wave_is_ended_for_a_bound_while_it_is_small() -> None:
    one_more = RolloutLimits(bounds=(EvidenceBound(node_share=0.31, event_rate_ratio=5, slowdown_ratio=0.03),))

    assert sizes(waves_of(fleet_of(100), one_more)) == [1, 4, 25, 70]


@thoroughly
@given(fleets(), policies())
def test_no_later_wave_outgrows_what_came_before_unless_one_domain_does(nodes, policy) -> None:
    domain_of = {each.node: each.place.nvlink_domain for each in nodes}
    done = 0
    for wave in waves_of(nodes, policy.rollouts):
        if not wave.is_canary and len({domain_of[name] for name in wave.nodes}) > 1:
            assert len(wave.nodes) <= max(1, policy.rollouts.growth_ratio * done)
        done += len(wave.nodes)
