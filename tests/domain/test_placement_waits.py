"""Who waited how long, and who would have started earlier with a shorter time limit: answers known by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.placement.day import PlacementDay, describe
from ops_pipelines.efficiency.placement.spread import find_straddles
from ops_pipelines.efficiency.placement.standing import Away, Stay, Waiting
from ops_pipelines.efficiency.placement.waits import (
    ENOUGH_RUNS,
    Need,
    SizeClass,
    find_backfill_hints,
    find_holes,
    find_queue_times,
    find_reversals,
    longest_queue,
    needs_of,
    quantile,
    size_of,
)
from tests.domain.placement_cluster import DAY, END, at, away, machine, stay, two_racks, waiting

HOUR = 3600.0
ONE_NODE = [machine("a1", rack="a")]
NEEDS = {("ada", "train"): Need(seconds=HOUR, run_count=20)}


def hints_for(each: Waiting, *stays: Stay) -> list[tuple[float, str]]:
    found = find_backfill_hints(ONE_NODE, stays, [each], needs=NEEDS, known_since=DAY, now=END)
    return [(hint.earlier_seconds / HOUR, hint.ended_by) for hint in found]


# -- backfill --


def test_a_job_would_have_fitted_the_hole_with_the_time_that_it_needs() -> None:
    waits = waiting("9", since=1, until=8, time_limit_seconds=4 * HOUR)

    found = hints_for(waits, stay("1", {"a1": 8}, begin=-1, end=2), stay("2", {"a1": 8}, begin=5, end=8))

    assert found == [(6.0, "a job")]


@pytest.mark.parametrize(("next_at", "is_told"), [(3.0, False), (3.09, False), (3.11, True), (5.9, True), (6.0, False)])
def test_the_hole_is_long_enough_for_the_need_and_too_short_for_the_limit(next_at: float, is_told: bool) -> None:
    waits = waiting("9", since=1, until=8, time_limit_seconds=4 * HOUR)

    found = hints_for(waits, stay("1", {"a1": 8}, begin=-1, end=2), stay("2", {"a1": 8}, begin=next_at, end=8))

    assert bool(found) is is_told


def test_the_job_itself_is_not_in_its_own_way() -> None:
    waits = waiting("9", since=1, until=2.5, time_limit_seconds=4 * HOUR)
    own = stay("9", {"a1": 8}, begin=2.5, end=3.5)

    found = hints_for(waits, stay("1", {"a1": 8}, begin=-1, end=2), own, stay("2", {"a1": 8}, begin=4, end=8))

    assert found == [(0.5, "a job")]


def test_who_waits_for_a_limit_or_has_no_past_gets_no_hint() -> None:
    holders = [stay("1", {"a1": 8}, begin=-1, end=2), stay("2", {"a1": 8}, begin=5, end=8)]

    assert not hints_for(waiting("9", since=1, until=8, time_limit_seconds=4 * HOUR, is_for_room=False), *holders)
    assert not hints_for(waiting("9", since=1, until=8, time_limit_seconds=4 * HOUR, user="bob"), *holders)
    assert not hints_for(waiting("9", since=1, until=8), *holders)
    assert not hints_for(waiting("9", since=1, until=8, time_limit_seconds=1.1 * HOUR), *holders)


def test_a_gang_needs_all_of_its_nodes_at_once() -> None:
    machines = [machine("a1", rack="a"), machine("a2", rack="a")]
    apart = [
        *(stay("1", {"a1": 8}, begin=-1, end=1), stay("2", {"a1": 8}, begin=3, end=9)),
        *(stay("3", {"a2": 8}, begin=-1, end=2.5), stay("4", {"a2": 8}, begin=5, end=9)),
    ]
    gang = waiting("9", since=0, until=9, gpus=16, nodes=2, time_limit_seconds=4 * HOUR)

    assert not find_backfill_hints(machines, apart, [gang], needs=NEEDS, known_since=DAY, now=END)
    together = [*apart[:2], stay("3", {"a2": 8}, begin=-1, end=1.5), apart[3]]
    (hint,) = find_backfill_hints(machines, together, [gang], needs=NEEDS, known_since=DAY, now=END)
    assert (hint.could_have_started_at, hint.hole_ends_at) == (at(1.5), at(3))


def test_what_is_proposed_is_what_95_of_100_runs_needed() -> None:
    runs = [float(number) for number in range(1, 101)]

    found = needs_of(
        {("ada", "train"): runs, ("bob", "try"): runs[: ENOUGH_RUNS - 1], ("eve", "x"): runs[:ENOUGH_RUNS]}
    )

    assert {alike: need.seconds for alike, need in found.items()} == {("ada", "train"): 95.0, ("eve", "x"): 10.0}


def test_what_stood_free_right_before_a_reservation_is_told() -> None:
    jobs = [stay("1", {"a1": 2}, begin=-1), stay("2", {"a1": 6}, begin=-1, end=9)]
    absences = [away("a1", Away.RESERVED, since=12, until=14, cause="maintenance")]

    (hole,) = find_holes(ONE_NODE, jobs, absences=absences, start=DAY, end=END)

    assert (hole.since, hole.until, hole.free_gpus, hole.gpu_hours, hole.cause) == (
        at(9),
        at(12),
        6,
        18.0,
        "maintenance",
    )


# -- waiting --


@pytest.mark.parametrize(
    ("gpus", "nodes", "size"),
    [
        (1, 1, SizeClass.ONE_GPU),
        (2, 1, SizeClass.PART),
        (7, 1, SizeClass.PART),
        (8, 1, SizeClass.ONE_NODE),
        (9, 1, SizeClass.FEW_NODES),
        (16, 2, SizeClass.FEW_NODES),
        (32, 4, SizeClass.FEW_NODES),
        (40, 5, SizeClass.SOME_NODES),
        (128, 16, SizeClass.SOME_NODES),
        (136, 17, SizeClass.MANY_NODES),
    ],
)
def test_jobs_are_compared_with_those_of_their_size(gpus: float, nodes: int, size: SizeClass) -> None:
    assert size_of(waiting("1", since=0, until=1, gpus=gpus, nodes=nodes), gpus_per_node=8) is size


def test_waits_are_told_by_size_and_team_with_what_they_waited_for() -> None:
    waits = [waiting(str(n), since=0, until=n / 4, reason="Priority" if n > 4 else "Resources") for n in range(1, 11)]
    waits.append(waiting("99", since=20, until=None, team=TeamName("nlp")))

    found = find_queue_times(waits, gpus_per_node=8, now=END)

    assert [(each.team, each.job_count, each.waiting_count, each.is_few) for each in found] == [
        (None, 11, 1, False),
        ("nlp", 1, 1, True),
        ("vision", 10, 0, False),
    ]
    vision = found[2]
    assert (vision.median_seconds, vision.p90_seconds) == (1.25 * HOUR, 2.25 * HOUR)
    assert (vision.long_ratio, vision.mostly_for) == (0.6, "Priority")


def test_a_wait_of_exactly_an_hour_is_not_longer_than_an_hour() -> None:
    waits = [waiting(str(n), since=0, until=until) for n, until in enumerate((0.99, 1.0, 1.01, 1.01))]

    assert find_queue_times(waits, gpus_per_node=8, now=END)[0].long_ratio == 0.5


def test_a_team_of_small_jobs_does_not_pass_for_the_one_that_waits_less() -> None:
    def of(team: str, *, gpus: int, hours: float, count: int) -> list[Waiting]:
        return [waiting(f"{team}{gpus}{n}", since=0, until=hours, gpus=gpus, team=TeamName(team)) for n in range(count)]

    # vision asks for many whole nodes, and waits less for each size.
    waits = [
        *of("vision", gpus=1, hours=0.5, count=10),
        *of("vision", gpus=8, hours=8, count=90),
        *of("nlp", gpus=1, hours=1, count=90),
        *of("nlp", gpus=8, hours=10, count=10),
    ]

    (found,) = find_reversals(waits, gpus_per_node=8, now=END)

    assert (found.seems_better, found.is_better) == ("nlp", "vision")
    assert found.sizes == (SizeClass.ONE_GPU, SizeClass.ONE_NODE)
    assert not find_reversals(waits[:9] + waits[10:], gpus_per_node=8, now=END)


def test_the_longest_queue_is_who_waited_at_once() -> None:
    waits = [waiting("1", since=-5, until=2), waiting("2", since=2, until=4), waiting("3", since=3, until=None)]

    assert longest_queue(waits, start=DAY, end=END) == 2
    assert longest_queue([], start=DAY, end=END) == 0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_one_of_the_values_and_grows_with_its_share(values: list[float], ratio: float) -> None:
    found = quantile(values, ratio)

    assert found in values
    assert quantile(values, min(1.0, ratio + 0.1)) >= found


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6), st.integers(1, 8)), max_size=6), st.integers(0, 12),
    st.integers(1, 8),
)  # fmt: skip
def test_nobody_is_told_of_a_start_that_would_have_been_in_the_way(
    holders: list[tuple[int, int, int]], since: int, gpus: int
) -> None:
    stays = [stay(str(n), {"a1": float(g)}, begin=b, end=b + length) for n, (b, length, g) in enumerate(holders)]
    waits = waiting("w", since=since, until=20, gpus=gpus, time_limit_seconds=6 * HOUR)

    for hint in find_backfill_hints(ONE_NODE, stays, [waits], needs=NEEDS, known_since=DAY, now=END):
        begin, end = hint.could_have_started_at, hint.could_have_started_at.timestamp() + hint.proposed_seconds
        held = [each for each in stays if each.ended_at and each.ended_at > begin and each.began_at.timestamp() < end]
        edges = [begin, *(each.began_at for each in held if each.began_at > begin)]
        for edge in edges:
            used = sum(each.gpu_count for each in held if each.ended_at and each.began_at <= edge < each.ended_at)
            assert used + gpus <= 8
        assert begin >= waits.since


# -- sentences --


def test_the_day_is_said_in_sentences() -> None:
    gangs = [
        stay("1", dict.fromkeys(("a2", "b1"), 8.0), begin=1, end=2),
        stay("2", dict.fromkeys(("a2", "b1"), 8.0), begin=3, end=4),
    ]
    day = PlacementDay(
        start=DAY,
        end=END,
        node_count=8,
        gpu_count=64,
        started_count=2,
        straddles=find_straddles(two_racks(), gangs, start=DAY, end=END),
        queue_times=find_queue_times([waiting("1", since=0, until=3)], gpus_per_node=8, now=END),
    )

    assert describe(day) == (
        "2 jobs of 2 nodes stood in several leaf switches and racks; 2 of them need not have.",
        "1 of 1 job waited longer than 1 h; of 1 node one in ten waited 3.0 h or longer (too few jobs to say more).",
        "How the scheduler is set up is not known.",
    )
