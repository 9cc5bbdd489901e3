"""The fold: the same world for every process, whatever was read before, and whatever happened to the journal."""

import json
import multiprocessing
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import ActionKey, JobId, NodeName, PciAddress
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines_lab.simulator.adapters import SimulatedLogs, SimulatedScheduler, SimulatedTelemetry
from ops_pipelines_lab.simulator.commands import ImpossibleFaultError
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.faults import HAVE_COURSES
from ops_pipelines_lab.simulator.hardware import PCI_BUSES
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, Arrivals, Bug, Scenario, cluster_nodes, demo_scenario
from ops_pipelines_lab.simulator.twin import ImpossibleStateError, Twin, TwinError, check_consistency
from tests.simulator.fake_clock import FakeClock
from tests.simulator.small_cluster import GPU1, GPU2, SESSION, TRAINING, SmallCluster

NODES = [node.name for node in cluster_nodes(6)]
CRASHING = replace(SESSION, bug=Bug.CRASHES, requeues_itself=True, service="chat", min_serving_count=1)
BUSY = Scenario(
    nodes=cluster_nodes(6),
    durations=replace(SHORT_DURATIONS, slurmd_timeout_seconds=15.0),
    initial_jobs=(TRAINING, replace(TRAINING, node_count=3), replace(SESSION, work_seconds=40.0), CRASHING),
    arrivals=(Arrivals(job=SESSION, mean_gap_seconds=4.0, min_work_seconds=2.0, max_work_seconds=30.0),),
)

COURSES = (
    Course(cure=Cure.REBOOT),
    Course(cure=Cure.REPLACEMENT, returns_after_seconds=4.0, found_by=("nvml",)),
    Course(cure=Cure.POWER_CYCLE, returns_after_load_seconds=3.0, found_by=("nvml",), failing_check_count=2),
)

steps = st.one_of(
    st.tuples(st.just("wait"), st.floats(0.0, 12.0)),
    st.tuples(st.just("read"), st.sampled_from(["nodes", "jobs", "samples", "past", "logs"])),
    st.tuples(st.sampled_from(list(FaultKind)), st.sampled_from(NODES), st.integers(0, 7)),
    st.tuples(
        st.sampled_from(["drain", "resume", "declare_down", "reboot", "power_off", "power_on", "reset_gpu"]),
        st.sampled_from(NODES),
        st.integers(0, 7),
    ),
    st.tuples(
        st.just("course"),
        st.sampled_from(sorted(HAVE_COURSES, key=str)),
        st.sampled_from(NODES),
        st.sampled_from(COURSES),
    ),
    st.tuples(
        st.sampled_from(["reserve", "unreserve", "put_last", "put_back", "check", "reimage", "repair_by_hand"]),
        st.sampled_from(NODES),
        st.integers(0, 7),
    ),
    st.tuples(
        st.sampled_from(["hold", "requeue", "release", "exclude", "cancel"]),
        st.integers(1001, 1008),
        st.sampled_from(NODES),
    ),
)


def play(cluster: SmallCluster, step: tuple[object, ...]) -> None:
    """Carry out one drawn step; what the cluster refuses is part of the play."""
    try:
        match step:
            case ("wait", float(seconds)):
                cluster.clock.wait(seconds)
            case ("read", what):
                read(cluster, str(what))
            case (FaultKind() as fault, str(node), int(gpu)):
                needs_gpu = fault not in (FaultKind.NODE_UNREACHABLE, FaultKind.NETWORK_PARTITION)
                cluster.twin.inject(fault, node, gpu=gpu if needs_gpu else None, seconds=gpu + 0.5)
            case ("course", FaultKind() as fault, str(node), Course() as course):
                cluster.twin.inject(fault, node, gpu=None if fault is FaultKind.NODE_UNREACHABLE else 3, course=course)
            case ("reserve", str(node), int(gpu)):
                until = cluster.clock.now() + timedelta(seconds=gpu + 0.5)
                cluster.scheduler.reserve([NodeName(node)], name=f"INC-{gpu % 2}", until=until)
            case ("unreserve", str(), int(gpu)):
                cluster.scheduler.unreserve(f"INC-{gpu % 2}")
            case ("check", str(node), int(gpu)):
                key = ActionKey(f"key-{gpu}")
                cluster.fleet.start_check(NodeName(node), suite="all", tests=("nvml", "nccl_loopback"), key=key)
            case (str(command), str(node), int(gpu)):
                address = f"0000:{PCI_BUSES[gpu]}:00"
                kind = EntryKind(command)
                cluster.twin.command(kind, nodes=(node,), gpu=address, reason=f"INC-{gpu}")
            case (str(command), int(job), str(node)):
                cluster.twin.command(EntryKind(command), job=str(job), nodes=(node,))
    except (SourceError, ImpossibleFaultError):
        pass


def read(cluster: SmallCluster, what: str) -> object:
    now = cluster.clock.now()
    match what:
        case "nodes":
            return cluster.scheduler.read_nodes()
        case "jobs":
            return cluster.scheduler.read_jobs()
        case "samples":
            return cluster.telemetry.read_samples(now)
        case "past":
            return cluster.telemetry.read_samples(now - (now - cluster.twin.began_at) / 2)
        case _:
            return cluster.logs.read_new(None, max_lines=5)


def busy_cluster(directory: Path) -> SmallCluster:
    cluster = SmallCluster(directory / "unused")
    cluster.use(Twin.create(directory / "twin", BUSY, seed=11, clock=cluster.clock))
    cluster.directory = directory / "twin"
    return cluster


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(played=st.lists(steps, max_size=25))
def test_late_joiner_folds_the_same_world_that_others_followed_step_by_step(
    tmp_path: Path, played: list[tuple[object, ...]]
) -> None:
    cluster = busy_cluster(tmp_path / str(len(list(tmp_path.iterdir()))))
    for step in played:
        play(cluster, step)
        with cluster.twin.present() as world:
            check_consistency(world)
    followed = cluster.snapshot()

    cluster.use(Twin.attach(cluster.directory, cluster.clock))

    assert cluster.snapshot() == followed


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    played=st.lists(steps, max_size=20), reads=st.lists(st.sampled_from(["nodes", "jobs", "samples", "past", "logs"]))
)
def test_reads_change_nothing_in_whatever_order(
    tmp_path: Path, played: list[tuple[object, ...]], reads: list[str]
) -> None:
    cluster = busy_cluster(tmp_path / str(len(list(tmp_path.iterdir()))))
    for step in played:
        play(cluster, step)
    before = cluster.snapshot()

    for what in reads:
        read(cluster, what)

    assert cluster.snapshot() == before


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(played=st.lists(steps, max_size=20), data=st.data())
def test_two_attached_views_agree_when_commands_come_through_both(
    tmp_path: Path, played: list[tuple[object, ...]], data: st.DataObject
) -> None:
    cluster = busy_cluster(tmp_path / str(len(list(tmp_path.iterdir()))))
    views = (cluster.twin, Twin.attach(cluster.directory, cluster.clock))
    for step in played:
        cluster.use(data.draw(st.sampled_from(views)))
        play(cluster, step)

    cluster.use(views[0])
    first = cluster.snapshot()
    cluster.use(views[1])

    assert cluster.snapshot() == first


def test_same_seed_gives_the_same_cluster_and_another_seed_another(tmp_path: Path) -> None:
    clock = FakeClock()
    twins = [Twin.create(tmp_path / str(number), BUSY, seed=seed, clock=clock) for number, seed in enumerate([1, 1, 2])]
    clock.wait(100.0)

    jobs = [SimulatedScheduler(twin).read_jobs() for twin in twins]

    assert jobs[0] == jobs[1] != jobs[2]


def test_two_processes_write_one_journal_without_losing_or_mixing_entries(tmp_path: Path) -> None:
    Twin.create(tmp_path, Scenario(nodes=cluster_nodes(4)), seed=7, clock=SystemClock())
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=drain_and_resume, args=(tmp_path, name, 40)) for name in ("gpu001", "gpu002")]

    for process in processes:
        process.start()
    for process in processes:
        process.join(60.0)

    entries = Twin.attach(tmp_path, SystemClock()).entries()
    assert [process.exitcode for process in processes] == [0, 0]
    assert Counter(entry.nodes for entry in entries) == {("gpu001",): 80, ("gpu002",): 80}
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)


def drain_and_resume(directory: Path, name: str, count: int) -> None:
    scheduler = SimulatedScheduler(Twin.attach(directory, SystemClock()))
    for number in range(count):
        scheduler.drain([NodeName(name)], reason=f"round {number}")
        scheduler.resume(NodeName(name))


def test_threads_share_one_twin(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    failures: list[BaseException] = []

    def work(node: NodeName) -> None:
        try:
            for number in range(20):
                cluster.scheduler.drain([node], reason=f"round {number}")
                cluster.telemetry.read_samples(cluster.clock.now())
                cluster.scheduler.read_jobs()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(node,)) for node in (GPU1, GPU2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(cluster.twin.entries()) == 40


# -- what happens to journals --


@pytest.mark.parametrize(
    "torn",
    [
        pytest.param(b'{"at":"2026-11-21T07:00:00+00:00","kind":"dra', id="half a line"),
        pytest.param(
            b'{"at":"2026-11-21T07:00:00+00:00","kind":"resume","nodes":["gpu001"]}', id="only the end missing"
        ),
        pytest.param("ü".encode()[:1], id="half a character"),
        pytest.param(b'{"reason":"' + b"x" * 1000, id="longer than the line that follows"),
    ],
)
def test_line_torn_by_a_killed_writer_never_took_effect_and_is_healed(tmp_path: Path, torn: bytes) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.scheduler.drain([GPU1], reason="INC-7")
    journal = tmp_path / "journal.jsonl"
    with journal.open("ab") as file:
        file.write(torn)

    cluster.use(Twin.attach(tmp_path, cluster.clock))
    drained = cluster.node(GPU1).is_drained
    cluster.scheduler.drain([GPU2], reason="INC-8")

    assert drained
    assert torn not in journal.read_bytes()
    assert journal.read_bytes().endswith(b"\n")
    assert [entry.nodes for entry in Twin.attach(tmp_path, cluster.clock).entries()] == [(GPU1,), (GPU2,)]


def test_entry_older_than_what_was_folded_makes_the_fold_begin_anew(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    ahead = cluster.twin
    cluster.clock.wait(60.0)
    ahead_of_it = SimulatedScheduler(ahead).read_nodes()
    # The clock is set back; a process that had not read so far writes with the new, earlier time.
    cluster.clock.set_back(50.0)
    behind = Twin.attach(tmp_path, cluster.clock)
    SimulatedScheduler(behind).drain([GPU1], reason="INC-7")

    cluster.clock.wait(50.0)

    assert not any(node.is_drained for node in ahead_of_it)
    assert SimulatedScheduler(ahead).read_nodes() == SimulatedScheduler(behind).read_nodes()
    assert next(node for node in SimulatedScheduler(ahead).read_nodes() if node.node == GPU1).is_drained


def test_time_stands_still_while_the_clock_is_set_back(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    cluster.clock.wait(30.0)
    cluster.scheduler.drain([GPU1], reason="INC-7")
    before = cluster.twin.now()

    cluster.clock.set_back(20.0)
    cluster.scheduler.resume(GPU1)

    assert cluster.twin.now() == before
    first, second = cluster.twin.entries()
    assert first.at == second.at == before


def test_every_command_is_one_entry_so_that_twice_can_be_counted(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)

    cluster.fleet.power_off(GPU1)
    cluster.fleet.power_off(GPU1)

    assert [entry.kind for entry in cluster.twin.entries()] == [EntryKind.POWER_OFF] * 2


def test_command_that_did_not_reach_its_node_is_not_journalled(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)

    with pytest.raises(SourceError):
        cluster.fleet.reset_gpu(GPU1, PciAddress("0000:1b:00"))

    assert [entry.kind for entry in cluster.twin.entries()] == [EntryKind.FAULT]


def test_refused_batch_drains_none_of_its_nodes(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)

    with pytest.raises(SourceRefused, match="gpu099"):
        cluster.scheduler.drain([GPU1, NodeName("gpu099")], reason="INC-7")

    assert not cluster.node(GPU1).is_drained


# -- beginnings --


def test_directory_takes_one_twin_only(tmp_path: Path) -> None:
    SmallCluster(tmp_path)

    with pytest.raises(TwinError, match="holds a twin already"):
        SmallCluster(tmp_path)


def test_of_many_that_join_at_once_one_begins_the_twin_and_all_attach_to_it(tmp_path: Path) -> None:
    ready = threading.Barrier(8)

    def join(seed: int) -> int:
        ready.wait(30)
        Twin.join(tmp_path / "twin", demo_scenario(), seed, FakeClock())
        return int(json.loads((tmp_path / "twin" / "twin.json").read_text())["seed"])

    with ThreadPoolExecutor(8) as pool:
        seeds = list(pool.map(join, range(8)))

    assert len(set(seeds)) == 1
    assert sorted(each.name for each in (tmp_path / "twin").iterdir()) == ["journal.jsonl", "twin.json"]


def test_directory_that_is_seen_before_its_content_is_joined_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "twin").mkdir()

    Twin.join(tmp_path / "twin", demo_scenario(), 1, FakeClock())

    Twin.attach(tmp_path / "twin", FakeClock())


def test_attaching_to_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(TwinError, match="holds no twin"):
        Twin.attach(tmp_path, FakeClock())


def test_impossible_state_is_found(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    with cluster.twin.present() as world:
        world.hardware.nodes[GPU1].is_up = False
        world.controller.jobs[JobId("1001")].allocation[GPU1] = (0, 0)

        with pytest.raises(ImpossibleStateError, match=r"allocated 2 times.*has processes and is not up"):
            check_consistency(world)


def test_hour_of_demo_is_folded_in_well_under_a_second(tmp_path: Path) -> None:
    clock = FakeClock()
    twin = Twin.create(tmp_path, demo_scenario(), seed=7, clock=clock)
    scheduler = SimulatedScheduler(twin)
    for number in range(300):
        clock.wait(12.0)
        node = NodeName(f"gpu{number % 64 + 1:03d}")
        scheduler.drain([node], reason=f"round {number}")
        scheduler.resume(node)

    began = time.perf_counter()
    late = Twin.attach(tmp_path, clock)
    nodes = SimulatedScheduler(late).read_nodes()
    seconds = time.perf_counter() - began

    assert nodes == scheduler.read_nodes()
    # 0.5 s on the machine where this was written; far more means that the fold has become quadratic.
    assert seconds < 5.0


def test_logs_and_samples_of_a_late_joiner_are_those_of_the_first(tmp_path: Path) -> None:
    cluster = busy_cluster(tmp_path)
    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=1)
    cluster.clock.wait(20.0)
    late = Twin.attach(cluster.directory, cluster.clock)

    at = cluster.clock.now()
    assert SimulatedTelemetry(late).read_samples(at) == cluster.telemetry.read_samples(at)
    assert SimulatedLogs(late).read_new(None, max_lines=9) == cluster.logs.read_new(None, max_lines=9)
