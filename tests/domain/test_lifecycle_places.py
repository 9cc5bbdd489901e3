"""Places: what is left of each budget, asked before; nobody is picked whose drain the guardrails would refuse."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings

from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import NodeName, RolloutId, Topology, cause_of
from ops_pipelines.core.policy import BlastCaps, DrainBudget, Policy, RolloutLimits
from ops_pipelines.core.proof import Authority, Refusal
from ops_pipelines.remediate.guardrails.budgets import keeps_drain_budget, keeps_part_caps, keeps_rollout_share
from ops_pipelines.remediate.guardrails.facts import Case, ClusterFacts
from ops_pipelines.rollouts.candidates import Places, pick
from ops_pipelines.rollouts.fleet import FleetNode
from tests.domain.builders import action, facts, node
from tests.domain.lifecycle_fleet import WIDE, fleet_node, fleet_of, fleets, policies

ROLLOUT = RolloutId("ROLL-0001")
RULES = (keeps_drain_budget, keeps_rollout_share, keeps_part_caps)


def picked(nodes: Sequence[FleetNode], policy: Policy, *, in_hand: Sequence[str] = ()) -> tuple[str, ...]:
    ready = [each for each in nodes if each.is_in_service and not each.is_in_hand and each.node not in in_hand]
    return pick(ready, Places(nodes, policy=policy, in_hand=[NodeName(name) for name in in_hand]))


def budget(**changes: float) -> Policy:
    values = {"max_out_count": 99, "max_out_per_rack_count": 99, "min_in_service_ratio": 0.0, **changes}
    return Policy(
        rollouts=RolloutLimits(max_out_count=99),
        drain_budget=DrainBudget(**values),  # type: ignore[arg-type]  # Counts stay whole: no test hands in others.
        blast_caps=BlastCaps(max_out_per_partition_ratio=1.0),
    )


@pytest.mark.parametrize(("most", "count"), [(0, 0), (1, 1), (2, 2)])
def test_rollouts_take_their_own_share_and_no_more(most: int, count: int) -> None:
    policy = Policy(rollouts=RolloutLimits(max_out_count=most), drain_budget=WIDE.drain_budget)

    assert len(picked(fleet_of(8), policy)) == count


@pytest.mark.parametrize(("broken", "count"), [(0, 3), (2, 1), (3, 0), (4, 0)])
def test_broken_nodes_use_the_budget_up(broken: int, count: int) -> None:
    nodes = [fleet_node(number, is_in_service=number >= broken) for number in range(12)]

    assert len(picked(nodes, budget(max_out_count=3))) == count


@pytest.mark.parametrize(("ratio", "count"), [(0.0, 10), (0.79, 2), (0.8, 2), (0.81, 1), (1.0, 0)])
def test_enough_nodes_stay_in_service(ratio: float, count: int) -> None:
    assert len(picked(fleet_of(10), budget(min_in_service_ratio=ratio))) == count


def test_a_full_rack_is_passed_over_for_the_next() -> None:
    nodes = [fleet_node(number, is_in_service=number != 3) for number in range(12)]

    assert picked(nodes, budget(max_out_per_rack_count=1)) == ("gpu004", "gpu008")
    assert Places(nodes, policy=budget(max_out_per_rack_count=1)).why_full(nodes[0]) == "rack r00"


def test_nodes_in_hand_count_before_the_scheduler_shows_them_out_and_once() -> None:
    nodes = [fleet_node(number, is_in_hand=number == 0, is_in_service=number != 1) for number in range(12)]
    policy = Policy(rollouts=RolloutLimits(max_out_count=3), drain_budget=WIDE.drain_budget)

    assert len(picked(nodes, policy)) == 2
    assert len(picked(nodes, policy, in_hand=["gpu000", "gpu001"])) == 1
    assert Places(nodes, policy=policy, waiting=[NodeName("gpu000")]).left_count == 3


@pytest.mark.parametrize(("is_back_at_work", "count"), [(False, 1), (True, 2)])
def test_node_that_failed_keeps_its_place_until_it_works_again(is_back_at_work: bool, count: int) -> None:
    nodes = [fleet_node(number, is_in_service=number != 0 or is_back_at_work) for number in range(12)]
    policy = Policy(rollouts=RolloutLimits(max_out_count=2), drain_budget=WIDE.drain_budget)

    assert Places(nodes, policy=policy, left_out=[NodeName("gpu000")]).left_count == count


def test_node_that_failed_goes_back_on_its_own_place_and_on_no_other() -> None:
    nodes = [fleet_node(number, is_in_service=number != 0) for number in range(12)]
    policy = Policy(rollouts=RolloutLimits(max_out_count=1), drain_budget=WIDE.drain_budget)
    places = Places(nodes, policy=policy, left_out=[NodeName("gpu000")])

    assert pick([*nodes[1:], nodes[0]], places) == ("gpu000",)
    places.give_back(nodes[0])
    assert not places.has_room(nodes[1])


@pytest.mark.parametrize(("size", "ratio", "count"), [(1, 0.1, 1), (2, 1.0, 1), (4, 0.5, 2), (4, 1.0, 3), (5, 0.1, 1)])
def test_never_all_nodes_of_a_partition_are_out_at_once(size: int, ratio: float, count: int) -> None:
    nodes = fleet_of(size, partitions=frozenset({"debug"}))
    policy = Policy(
        rollouts=WIDE.rollouts,
        drain_budget=WIDE.drain_budget,
        blast_caps=BlastCaps(max_out_per_partition_ratio=ratio),
    )

    assert len(picked(nodes, policy)) == count


@pytest.mark.parametrize(("cap", "count"), [(None, 6), (0, 0), (1, 2), (2, 4)])
def test_a_domain_of_several_nodes_has_a_cap_of_its_own(cap: int | None, count: int) -> None:
    nodes = [fleet_node(number, nvlink_domain=f"d{number // 3}") for number in range(6)]
    alone = fleet_of(6)
    policy = Policy(
        rollouts=WIDE.rollouts,
        drain_budget=WIDE.drain_budget,
        blast_caps=BlastCaps(max_out_per_nvlink_domain_count=cap, max_out_per_partition_ratio=1.0),
    )

    assert len(picked(nodes, policy)) == count
    assert len(picked(alone, policy)) == 6


@pytest.mark.parametrize(("cap", "count"), [(None, 16), (1, 2), (3, 6)])
def test_a_leaf_switch_has_a_cap_of_its_own(cap: int | None, count: int) -> None:
    policy = Policy(
        rollouts=WIDE.rollouts, drain_budget=WIDE.drain_budget, blast_caps=BlastCaps(max_out_per_leaf_count=cap)
    )

    assert len(picked(fleet_of(16), policy)) == count


def test_a_place_that_is_given_back_is_free_again() -> None:
    nodes = fleet_of(4)
    places = Places(nodes, policy=budget(max_out_per_rack_count=1))
    places.take(nodes[0])
    assert not places.has_room(nodes[1])

    places.give_back(nodes[0])

    assert places.has_room(nodes[1])
    assert places.why_full(nodes[1]) == ""


def test_a_node_that_is_out_already_needs_a_place_of_the_rollouts_alone() -> None:
    nodes = [fleet_node(number, is_in_service=number > 1) for number in range(8)]
    policy = Policy(
        rollouts=RolloutLimits(max_out_count=1), drain_budget=DrainBudget(max_out_count=2, min_in_service_ratio=0.0)
    )
    places = Places(nodes, policy=policy)
    assert not places.has_room(nodes[2])

    assert pick(nodes[:2], places) == ("gpu000",)

    places.give_back(nodes[0])
    assert pick(nodes[1:2], places) == ("gpu001",)


def facts_of(nodes: Sequence[FleetNode], *, drained: Sequence[str]) -> ClusterFacts:
    """Return what the guardrails see of a fleet when these were drained as well."""
    status = [
        node(
            each.node,
            partitions=each.partitions,
            is_drained=not each.is_in_service or each.is_in_hand or each.node in drained,
        )
        for each in nodes
    ]
    owned = {each.node: ROLLOUT for each in nodes if each.is_in_hand or each.node in drained}
    return facts(nodes=status, node_count=0, owned=owned)


def refusal_of(name: str, nodes: Sequence[FleetNode], policy: Policy, *, drained: Sequence[str]) -> Refusal | None:
    case = Case(
        action=action(Verb.DRAIN, on=name, incident=cause_of(ROLLOUT)),
        facts=facts_of(nodes, drained=drained),
        policy=policy,
        topology=Topology(places={each.node: each.place for each in nodes}, gpus_per_node=8),
        authority=Authority.AUTOPILOT,
    )
    return next((refusal for rule in RULES if (refusal := rule(case)) is not None), None)


@settings(max_examples=200, deadline=None)
@given(fleets(), policies())
def test_no_guardrail_refuses_the_drain_of_a_node_that_was_picked(nodes, policy) -> None:
    chosen = picked(nodes, policy)

    for place, name in enumerate(chosen):
        assert refusal_of(name, nodes, policy, drained=chosen[:place]) is None


@settings(max_examples=100, deadline=None)
@given(fleets(), policies())
def test_whoever_is_passed_over_would_be_refused_or_is_the_last_of_a_partition(nodes, policy) -> None:
    chosen = picked(nodes, policy)

    for each in nodes:
        if each.is_in_service and not each.is_in_hand and each.node not in chosen:
            gone = {*chosen, each.node, *(other.node for other in nodes if not other.is_in_service or other.is_in_hand)}
            is_last = any(
                all(p not in other.partitions or other.node in gone for other in nodes) for p in each.partitions
            )
            assert is_last or refusal_of(each.node, nodes, policy, drained=chosen) is not None
