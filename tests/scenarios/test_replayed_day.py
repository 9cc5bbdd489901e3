"""Small replayed days through the whole diagnosis, on the same way as `python -m bench.diagnosis`."""

import pytest

from bench.diagnosis import Score, claims_of, judge, rescaled_precision, upper_95
from bench.diagnosis_peers import PEERS
from bench.replayed_days import retrace_day
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines_lab.simulator.replay.day import Day, FaultClass
from ops_pipelines_lab.simulator.replay.make import make_day, make_quiet_day

SEED = 900
"""One of those that were looked at; what is claimed in the docs is measured on others."""


def judged(day: Day) -> Score:
    return judge(claims_of(retrace_day(day, read_catalogue())), day)


@pytest.fixture(scope="module")
def explicit_day() -> Day:
    classes = [FaultClass.GPU_OFF_BUS, FaultClass.MEMORY_UNCORRECTABLE, FaultClass.GSP_TIMEOUT, FaultClass.LEAF_SWITCH]
    return make_day(SEED, node_count=64, hours=6, fault_count=6, classes=classes)


def test_explicit_faults_are_found_and_nobody_else_is_blamed(explicit_day: Day) -> None:
    score = judged(explicit_day)

    assert score.injected.total() >= 3
    assert score.recall == 1.0, score.notes
    assert score.false_on_nodes == 0, score.notes
    assert score.culprits_named == 1.0, score.notes


def test_hangs_are_found_within_two_minutes() -> None:
    day = make_day(
        SEED, node_count=64, hours=6, fault_count=5, classes=[FaultClass.HANG_ONE_RANK, FaultClass.HANG_OF_PROGRAM]
    )

    score = judged(day)

    assert score.injected.total() >= 2
    assert score.recall == 1.0, score.notes
    assert all(delay <= 120 for delays in score.delays.values() for delay in delays)


def test_a_quiet_day_blames_nobody() -> None:
    score = judged(make_quiet_day(SEED, node_count=64, hours=6))

    assert score.claims == 0, score.notes


def test_the_same_day_gives_the_same_incidents(explicit_day: Day) -> None:
    first, again = (retrace_day(explicit_day, read_catalogue()) for _ in range(2))

    assert first.incidents == again.incidents


def test_every_peer_judges_the_same_day(explicit_day: Day) -> None:
    for peer in PEERS.values():
        score = judge(peer(explicit_day), explicit_day)
        assert score.injected == judged(explicit_day).injected


@pytest.mark.parametrize(("count", "bound"), [(0, 2.996), (1, 4.744), (5, 10.513)])
def test_the_upper_bound_is_the_exact_one(count: int, bound: float) -> None:
    assert upper_95(count, 1.0) == pytest.approx(bound, abs=0.001)


def test_precision_falls_with_the_rate_of_faults() -> None:
    score = Score(node_days=1000.0, false_on_nodes=1)
    score.injected["node_down"] = score.found["node_down"] = 100

    assert rescaled_precision(score) == pytest.approx(6.5 / 7.5)
