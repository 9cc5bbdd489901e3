"""Gangs apart, whole domains broken, pieces, and GPUs out of reach: small clusters with answers known by hand."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.placement.fragmentation import (
    Fit,
    Within,
    find_broken_domains,
    find_fits,
    find_node_hints,
    index_by_hour,
    index_of,
)
from ops_pipelines.efficiency.placement.spread import (
    NO_NODE,
    CostClass,
    Level,
    StrandRules,
    Traffic,
    Why,
    find_straddles,
    find_stranded,
)
from ops_pipelines.efficiency.placement.standing import Absence, Away, Occupancy, Stay, needed, stands_at, whole
from tests.domain.placement_cluster import DAY, END, at, away, machine, nvl_racks, stay, two_racks

MACHINES = two_racks()
NAMES = [each.node for each in MACHINES]


# -- who holds what --


@pytest.mark.parametrize(("gpus", "all_of_it", "holds"), [(2.9999999, 3, 3), (3.0, 3, 3), (3.4, 3, 4), (0.0, 0, 1)])
def test_shares_of_gpus_are_whole_up_to_what_division_leaves(gpus: float, all_of_it: int, holds: int) -> None:
    assert (whole(gpus), needed(gpus)) == (all_of_it, holds)


def test_what_ends_at_a_moment_is_free_for_who_starts_at_it() -> None:
    first, second = stay("1", {"a1": 8}, begin=1, end=2), stay("2", {"a1": 8}, begin=2, end=3)
    occupancy = Occupancy(MACHINES)

    frees = [
        (change.started.job, occupancy.free(NodeName("a1")))
        for change in occupancy.play([second, first])
        if change.started
    ]

    assert frees == [("1", 8), ("2", 8)]


def test_a_job_that_ends_as_it_begins_holds_nothing() -> None:
    assert stands_at(END, MACHINES, stays=[stay("1", {"a1": 8}, begin=1, end=1)]).free(NodeName("a1")) == 8


def test_nodes_that_take_no_jobs_offer_nothing_and_come_back() -> None:
    absences = [away("a1", Away.DRAINED, since=1, until=2)]

    offered = [
        stands_at(at(hour), MACHINES, stays=[], absences=absences).offered(NodeName("a1")) for hour in (1, 1.5, 2.5)
    ]

    assert offered == [8, 0, 8]


# -- straddling --


def test_a_gang_over_two_racks_need_not_have_been_while_one_rack_was_free() -> None:
    small = stay("1", {"a1": 8}, begin=0, end=20)
    gang = stay("2", dict.fromkeys(("a2", "a3", "b1", "b2"), 8.0), begin=1, end=5)

    found = find_straddles(MACHINES, [small, gang], start=DAY, end=END)

    assert [(each.stay.job, each.level, each.parts, each.fewest, each.better) for each in found] == [
        ("2", Level.LEAF_SWITCH, ("leaf-a", "leaf-b"), 1, ("leaf-b",)),
        ("2", Level.RACK, ("a", "b"), 1, ("b",)),
    ]
    assert found[0].is_avoidable


def test_a_gang_that_found_no_whole_rack_could_not_have_stood_better() -> None:
    small = [stay("1", {"a1": 1}, begin=0), stay("2", {"b1": 1}, begin=0)]
    gang = stay("3", dict.fromkeys(("a2", "a3", "b2", "b3"), 8.0), begin=1)

    found = find_straddles(MACHINES, [*small, gang], start=DAY, end=END)

    assert [(each.is_avoidable, each.better) for each in found] == [(False, ()), (False, ())]


@pytest.mark.parametrize(("since", "is_avoidable"), [(0.5, False), (1.0, False), (1.5, True)])
def test_a_rack_that_was_drained_at_the_start_is_no_better_place(since: float, is_avoidable: bool) -> None:
    gang = stay("1", dict.fromkeys(("a1", "b1"), 8.0), begin=1)
    drained = [away(name, Away.DRAINED, since=since, until=9) for name in NAMES if name not in ("a1", "b1")]

    found = find_straddles(MACHINES, [gang], absences=drained, start=DAY, end=END)

    assert {each.is_avoidable for each in found} == {is_avoidable}


def test_only_starts_within_the_window_count() -> None:
    gang = stay("1", dict.fromkeys(("a1", "b1"), 8.0), begin=1)

    assert not find_straddles(MACHINES, [gang], start=at(1.1), end=END)
    assert not find_straddles(MACHINES, [gang], start=DAY, end=at(1))
    assert find_straddles(MACHINES, [gang], start=at(1), end=at(1.1))


def test_nodes_of_another_partition_are_no_better_place() -> None:
    machines = [machine(f"a{n}", rack="a", partitions=frozenset({"other"})) for n in (1, 2)]
    machines += [machine("b1", rack="b", partitions=frozenset({"batch"})), machine("c1", rack="c")]
    gang = stay("1", {"b1": 8, "c1": 8}, begin=1)

    assert not any(each.is_avoidable for each in find_straddles(machines, [gang], start=DAY, end=END))


@pytest.mark.parametrize(
    ("rate", "is_bound", "cost"),
    [
        (0.9e9, False, CostClass.LOW),
        (1e9, False, CostClass.MEDIUM),
        (9.9e9, False, CostClass.MEDIUM),
        (10e9, False, CostClass.HIGH),
        (0.1e9, True, CostClass.HIGH),
    ],
)
def test_what_a_job_sends_says_how_much_it_matters(rate: float, is_bound: bool, cost: CostClass) -> None:
    gang = stay("1", {"a1": 8, "b1": 8}, begin=1)
    traffic = {"1": Traffic(bytes_per_second=rate, is_bound=is_bound)}

    assert {each.cost for each in find_straddles(MACHINES, [gang], start=DAY, end=END, traffic=traffic)} == {cost}


def test_where_nobody_measured_the_size_of_the_gang_says_it() -> None:
    gang = stay("1", dict.fromkeys(("a1", "a2", "b1", "b2"), 8.0), begin=1)

    found = find_straddles(MACHINES, [gang], start=DAY, end=END)

    assert {(each.cost, each.because) for each in found} == {(CostClass.MEDIUM, "4 nodes; its traffic is not known")}


def test_where_nvlink_ends_at_the_chassis_nobody_is_told_to_stay_within_it() -> None:
    found = find_straddles(MACHINES, [stay("1", {"a1": 8, "a2": 8}, begin=1)], start=DAY, end=END)

    assert not found


# -- whole domains --


def test_a_small_job_breaks_a_whole_rack_of_nvlink_although_a_broken_one_has_room() -> None:
    first = stay("1", {"a1": 4}, begin=0)
    second = stay("2", {"b1": 2}, begin=1)

    found = find_broken_domains(nvl_racks(), [first, second], start=DAY, end=END)

    assert [(each.stay.job, each.domain, each.domain_gpu_count, each.elsewhere) for each in found] == [
        ("2", "nvl-b", 16, (NodeName("a2"),))
    ]


def test_who_fills_a_domain_breaks_none() -> None:
    jobs = [stay("1", {"a1": 4}, begin=0), stay("2", {f"b{n}": 4.0 for n in range(1, 5)}, begin=1)]

    assert not find_broken_domains(nvl_racks(), jobs, start=DAY, end=END)


def test_a_gang_is_not_sent_to_pieces_of_several_domains() -> None:
    machines = [*nvl_racks(), *(machine(f"c{n}", rack="c", domain="nvl-c", gpu_count=4) for n in range(1, 5))]
    used = [stay(f"1{rack}", {f"{rack}{n}": 4.0 for n in (1, 2, 3)}, begin=0) for rack in "ab"]
    gang = stay("2", {"c1": 4, "c2": 4}, begin=1)

    assert not find_broken_domains(machines, [*used, gang], start=DAY, end=END)


# -- pieces --


def test_how_many_of_each_size_could_start_against_what_the_count_allows() -> None:
    jobs = [stay(str(number), {name: 4.0}, begin=0) for number, name in enumerate(("a1", "a2", "b1"))]
    fits = find_fits(stands_at(END, MACHINES, stays=jobs), gpus_per_node=8)

    found = {(each.gpus_per_node, each.node_count, each.within): (each.could_start, each.by_count) for each in fits}

    assert found[1, 1, Within.ANYWHERE] == (52, 52)
    assert found[4, 1, Within.ANYWHERE] == (13, 13)
    assert found[8, 1, Within.ANYWHERE] == (5, 6)
    assert found[8, 2, Within.ANYWHERE] == (2, 3)
    assert found[8, 2, Within.RACK] == (2, 3)
    assert found[8, 4, Within.ANYWHERE] == (1, 1)
    assert found[8, 4, Within.RACK] == (0, 1)
    assert found[8, 8, Within.ANYWHERE] == (0, 0)


@pytest.mark.parametrize(
    ("free", "nodes", "index"), [(0, 0, 0.0), (7, 0, 0.0), (8, 0, 1.0), (8, 1, 0.0), (16, 1, 0.5), (64, 8, 0.0)]
)
def test_the_index_is_the_share_of_whole_nodes_that_pieces_cost(free: int, nodes: int, index: float) -> None:
    assert index_of(free_gpus=free, whole_nodes=nodes, gpus_per_node=8) == index


def test_the_index_of_an_hour_is_weighted_by_time() -> None:
    machines = [machine("a1", rack="a"), machine("a2", rack="a")]
    halves = [stay("1", {"a1": 4}, begin=0.5, end=2), stay("2", {"a2": 4}, begin=0.5, end=2)]

    hours = index_by_hour(machines, halves, start=DAY, end=at(2.5), gpus_per_node=8)

    assert [(each.index_ratio, each.free_gpus) for each in hours] == [(0.5, 12.0), (1.0, 8.0), (0.0, 16.0)]


def test_the_node_that_becomes_whole_first_is_told_first() -> None:
    hour = timedelta(hours=1).total_seconds()
    jobs = [
        stay("1", {"a1": 4}, begin=20, time_limit_seconds=30 * hour),
        stay("2", {"a2": 2}, begin=20, time_limit_seconds=5 * hour),
        stay("3", {"a3": 2}, begin=20),
        stay("4", {"a4": 8}, begin=20, time_limit_seconds=5 * hour),
    ]

    hints = find_node_hints(
        stands_at(END, MACHINES, stays=jobs), now=END, needed_seconds={("ada", "train-1"): 4.5 * hour}
    )

    assert [(each.node, each.whole_by, each.likely_by) for each in hints] == [
        ("a1", at(50), at(24.5)),
        ("a2", at(25), None),
        ("a3", None, None),
    ]


# -- out of reach --


def test_each_reason_strands_its_gpu_hours() -> None:
    machines = [
        machine("drained", rack="a"),
        machine("reserved", rack="a"),
        machine("lost", rack="a", partitions=frozenset()),
        machine("cpus", rack="a", cpu_count=64, memory_bytes=1e12),
        machine("memory", rack="a", cpu_count=64, memory_bytes=1e12),
        machine("down", rack="a"),
        machine("fine", rack="a"),
    ]
    jobs = [
        stay("1", {"cpus": 1}, begin=-1, end=12, cpus_per_node=62),
        stay("2", {"memory": 1}, begin=-1, cpus_per_node=1, memory_bytes_per_node=1e12 - 2.5 * 2**30),
    ]
    absences = [
        away("drained", Away.DRAINED, since=-5, until=None, cause="fan"),
        away("reserved", Away.RESERVED, since=12, until=18, cause="maintenance"),
        away("down", Away.DOWN, since=0, until=None),
    ]

    found = find_stranded(machines, jobs, absences=absences, start=DAY, end=END)

    assert [(each.node, each.why, each.gpu_hours, each.at_the_end, each.cause) for each in found.stranded] == [
        ("drained", Why.DRAINED, 8 * 24, 8, "fan"),
        ("lost", Why.NO_PARTITION, 8 * 24, 8, ""),
        ("memory", Why.NO_MEMORY, 5 * 24, 5, ""),
        ("cpus", Why.NO_CPUS, 5 * 12, 0, ""),
        ("reserved", Why.RESERVED, 8 * 6, 0, "maintenance"),
    ]
    assert found.free_gpu_hours == 8 * 24 * 4 + 7 * 24 + 7 * 12 + 8 * 12


@pytest.mark.parametrize(("limit", "stranded"), [(15, 1), (16, 0), (17, 0), (8, 8)])
def test_what_no_team_may_ask_for_is_stranded_by_limits(limit: int, stranded: int) -> None:
    machines = [machine("a1", rack="a"), machine("a2", rack="a")]
    jobs = [stay("1", {"a1": 4}, begin=-1)]

    found = find_stranded(
        machines, jobs, start=DAY, end=at(1), rules=StrandRules(most_by_team={TeamName("vision"): limit})
    )

    assert [(each.node, each.gpu_hours, each.at_the_end) for each in found.stranded] == (
        [(NO_NODE, stranded, stranded)] if stranded else []
    )


# -- laws --


@st.composite
def _days(draw: st.DrawFn) -> tuple[list[Stay], list[Absence]]:
    stays = []
    for number in range(draw(st.integers(0, 8))):
        nodes = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
        begin = draw(st.integers(-4, 23))
        end = draw(st.none() | st.integers(begin, 30))
        stays.append(stay(str(number), dict.fromkeys(nodes, float(draw(st.integers(0, 8)))), begin=begin, end=end))
    absences = []
    for _ in range(draw(st.integers(0, 3))):
        since = draw(st.integers(-4, 23))
        until = draw(st.none() | st.integers(since, 30))
        why = draw(st.sampled_from(Away))
        absences.append(away(draw(st.sampled_from(NAMES)), why, since=since, until=until))
    return stays, absences


@given(_days())
def test_laws_of_placement_hold_on_any_day(day: tuple[list[Stay], list[Absence]]) -> None:
    stays, absences = day
    rules = StrandRules(most_by_team={TeamName("vision"): 20})

    stranded = find_stranded(MACHINES, stays, absences=absences, start=DAY, end=END, rules=rules)
    straddles = find_straddles(MACHINES, stays, absences=absences, start=DAY, end=END)
    hours = index_by_hour(MACHINES, stays, absences=absences, start=DAY, end=END, gpus_per_node=8)
    fits = find_fits(stands_at(END, MACHINES, stays=stays, absences=absences), gpus_per_node=8)

    assert sum(each.gpu_hours for each in stranded.stranded) <= stranded.free_gpu_hours + 1e-6
    assert all(each.gpu_hours >= 0 and each.at_the_end >= 0 for each in stranded.stranded)
    for each in straddles:
        # A job within one rack never straddles, and its own nodes are always a place for it.
        assert len({name[0] for name in each.stay.gpus}) > 1
        assert 1 <= each.fewest <= len(each.parts)
        assert len(each.better) == (each.fewest if each.is_avoidable else 0)
    assert len(hours) == 24
    assert all(0 <= each.index_ratio <= 1 and 0 <= each.free_gpus <= 64 for each in hours)
    assert all(0 <= each.could_start <= each.by_count for each in fits)


@given(st.sets(st.sampled_from(NAMES)))
def test_nothing_is_in_pieces_while_jobs_hold_whole_nodes(taken: set[NodeName]) -> None:
    jobs = [stay(name, {name: 8.0}, begin=-1) for name in taken]

    hours = index_by_hour(MACHINES, jobs, start=DAY, end=END, gpus_per_node=8)
    fits = find_fits(stands_at(END, MACHINES, stays=jobs), gpus_per_node=8)

    assert {each.index_ratio for each in hours} == {0.0}
    assert all(_is_kept(each) for each in fits if each.within is Within.ANYWHERE)


def _is_kept(fit: Fit) -> bool:
    return fit.could_start == fit.by_count
