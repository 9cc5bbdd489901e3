"""What is counted along the way says the same as looking at every node again, on small clusters of any kind."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.efficiency.placement.fragmentation import find_broken_domains
from ops_pipelines.efficiency.placement.room import FreeRuns
from ops_pipelines.efficiency.placement.spread import find_straddles
from ops_pipelines.efficiency.placement.standing import Absence, Away, Machine, Stay, Waiting
from ops_pipelines.efficiency.placement.waits import Need, find_backfill_hints, find_holes
from tests.domain import placement_by_definition as definition
from tests.domain.placement_cluster import DAY, at, away, stay, waiting

NAMES = [f"n{number}" for number in range(8)]
START, END = at(0), at(12)
HOUR = 3600.0
PARTITIONS = ("batch", "debug")
Day = tuple[list[Machine], list[Stay], list[Absence]]


@st.composite
def _machines(draw: st.DrawFn) -> list[Machine]:
    """Return nodes in two or three racks and leaves, in NVLink domains of one or several, of one or two models."""
    domain_size = draw(st.sampled_from([1, 2, 4]))
    rack_size = draw(st.sampled_from([2, 3, 4]))
    return [
        Machine(
            node=NodeName(name),
            place=Place(
                rack=f"r{number // rack_size}",
                nvlink_domain=f"d{number // domain_size}",
                leaf_switch=f"l{number % 2}",
                model=draw(st.sampled_from(["hgx", "hgx", "nvl"])),
            ),
            gpu_count=draw(st.sampled_from([4, 4, 8, 0])),
            partitions=draw(st.sampled_from([None, None, frozenset(PARTITIONS), frozenset({"debug"}), frozenset()])),
        )
        for number, name in enumerate(draw(st.permutations(NAMES)))
    ]


@st.composite
def _days(draw: st.DrawFn) -> Day:
    """Return a day with starts, ends and absences at the same moments, jobs beyond a node, and nodes nobody knows."""
    stays = []
    for number in range(draw(st.integers(0, 10))):
        nodes = draw(st.lists(st.sampled_from([*NAMES, "stranger"]), min_size=1, max_size=5, unique=True))
        begin = draw(st.integers(-2, 11))
        end = draw(st.none() | st.integers(begin, 14))
        gpus = {name: draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0, 4.0, 8.0])) for name in nodes}
        job = str(draw(st.integers(0, number)))
        stays.append(stay(job, gpus, begin=begin, end=end, partition=draw(st.sampled_from(PARTITIONS))))
    unique = {each.key: each for each in stays}
    absences = []
    for number in range(draw(st.integers(0, 4))):
        since = draw(st.integers(-2, 11))
        until = draw(st.none() | st.integers(since + 1, 14))
        name = draw(st.sampled_from(NAMES))
        absences.append(away(name, draw(st.sampled_from(Away)), since=since, until=until, cause=f"c{number}"))
    return draw(_machines()), list(unique.values()), absences


@given(_days())
def test_who_straddles_is_found_as_by_definition(day: Day) -> None:
    machines, stays, absences = day

    found = find_straddles(machines, stays, absences=absences, start=START, end=END)

    shown = [(each.stay.job, each.level, each.parts, each.fewest, each.better) for each in found]
    assert shown == definition.straddles(machines, stays, absences, start=START, end=END)


@given(_days())
def test_broken_domains_are_found_as_by_definition(day: Day) -> None:
    machines, stays, absences = day

    found = find_broken_domains(machines, stays, absences=absences, start=START, end=END)

    shown = [(each.stay.job, each.domain, each.domain_gpu_count, each.elsewhere) for each in found]
    assert shown == definition.broken_domains(machines, stays, absences, start=START, end=END)


@given(_days(), st.integers(1, 8))
def test_room_and_its_least_are_found_as_by_definition(day: Day, gpus: int) -> None:
    machines, stays, absences = day

    rooms = FreeRuns(machines, stays, absences)

    for machine in machines:
        runs = [(run.since, run.until, run.ended_by) for run in rooms.of(machine.node, gpus=gpus)]
        assert runs == definition.free_runs(machine, stays, absences, gpus)
        least = min(definition.offered(machine, stays, absences, at(half / 2)) for half in range(3, 11))
        assert rooms.fewest(machine.node, since=at(1.5), until=at(5.5)) == least


@st.composite
def _waits(draw: st.DrawFn) -> Waiting:
    nodes = draw(st.integers(1, 4))
    since = draw(st.integers(-3, 10))
    until = draw(st.none() | st.integers(since, 12))
    return waiting(
        str(draw(st.integers(0, 10))),
        since=since,
        until=until,
        gpus=nodes * draw(st.sampled_from([0, 1, 2, 4, 8])),
        nodes=nodes,
        time_limit_seconds=draw(st.sampled_from([0.5, 1, 2, 5, 24])) * HOUR,
        partition=draw(st.sampled_from([*PARTITIONS, "nowhere"])),
    )


@given(_days(), _waits(), st.sampled_from([0.0, 0.25, 0.9, 1.0, 1.8, 4.0]))
def test_backfill_hints_are_found_as_by_definition(day: Day, waits: Waiting, need_hours: float) -> None:
    machines, stays, absences = day
    need = Need(seconds=need_hours * HOUR, run_count=20)

    found = find_backfill_hints(
        machines, stays, [waits], absences=absences, needs={("ada", "train"): need}, known_since=DAY, now=END
    )

    expected = definition.backfill_hint(machines, stays, absences, waits, need=need, known_since=DAY, now=END)
    assert [(each.could_have_started_at, each.hole_ends_at, each.ended_by) for each in found] == (
        [] if expected is None else [expected]
    )


@given(_days())
def test_holes_lie_before_reservations_and_were_free_throughout(day: Day) -> None:
    machines, stays, absences = day
    others = [each for each in absences if each.why is not Away.RESERVED or not START <= each.since < END]

    for hole in find_holes(machines, stays, absences=absences, start=START, end=END):
        (machine,) = (each for each in machines if each.node == hole.node)
        hours = range(int((hole.until - hole.since) / timedelta(hours=1)))
        free = [definition.offered(machine, stays, others, hole.since + timedelta(hours=hour)) for hour in hours]
        assert hole.free_gpus == min(free) > 0
        assert any(each.since == hole.until and each.why is Away.RESERVED for each in absences)
