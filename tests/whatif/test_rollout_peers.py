"""Peers roll out by the rules that they are published with: how many at once, what stops them; nobody rolls back."""

import pytest

from ops_pipelines_lab.whatif.lifecycle.controller import RolloutResult
from ops_pipelines_lab.whatif.lifecycle.scenario import read_scenarios
from ops_pipelines_lab.whatif.lifecycle.trials import PEERS, Course, PeerRollout
from ops_pipelines_lab.whatif.lifecycle.world import DAY
from tests.whatif.small_cluster import NODE_COUNT, world_of


def course(*, out: int = 0, failed: int = 0, good: int = 0) -> Course:
    return Course(
        node_count=100, pending_count=100 - out - failed - good, out_count=out, failed_count=failed, good_count=good
    )


def play(peer: str, scenario: str) -> RolloutResult:
    world = world_of(read_scenarios()[scenario])
    world.play(DAY / 4)
    rollout = PeerRollout(world, PEERS[peer])
    world.play(50 * DAY)
    return rollout.outcome


def why(peer: str, at: Course) -> str:
    rule = PEERS[peer].has_stopped
    return rule(at) if rule is not None else ""


@pytest.mark.parametrize(("out", "failed", "places"), [(0, 0, 25), (24, 0, 1), (25, 0, 0), (10, 15, 0), (10, 14, 1)])
def test_a_quarter_is_out_or_failed_and_no_more(out: int, failed: int, places: int) -> None:
    assert PEERS["flat_quarter"].places(course(out=out, failed=failed)) == places


@pytest.mark.parametrize(("failed", "is_stopped"), [(24, False), (25, True), (26, True)])
def test_a_quarter_of_failed_nodes_stops_the_flat_way(failed: int, is_stopped: bool) -> None:
    assert bool(why("flat_quarter", course(failed=failed))) is is_stopped


@pytest.mark.parametrize(("failed", "is_stopped"), [(0, False), (1, True)])
def test_a_node_that_fails_keeps_the_lock(failed: int, is_stopped: bool) -> None:
    assert bool(why("one_at_a_time", course(failed=failed))) is is_stopped
    assert PEERS["one_at_a_time"].places(course(out=1)) == 0


def test_batches_double_as_long_as_they_are_good_up_to_a_quarter() -> None:
    at, sizes = course(), []

    for _ in range(7):
        sizes.append(PEERS["exponential_batches"].places(at))
        at.good_count += sizes[-1]
        at.batch_left_count = 0

    assert sizes == [1, 2, 4, 8, 16, 25, 25]


def test_two_bad_batches_in_a_row_stop_the_exponential_way() -> None:
    at = course(good=7)
    at.batch_size, at.batch_left_count = 8, 0

    for failed_batches, size in ((1, 4), (2, 2)):
        at.batch_failed_count, at.batch_left_count = 1, 0
        assert PEERS["exponential_batches"].places(at) == size
        assert bool(why("exponential_batches", at)) is (failed_batches == 2)


@pytest.mark.parametrize(("good", "counts"), [(48, True), (49, False), (50, False)])
def test_past_half_of_the_nodes_bad_batches_no_longer_count(good: int, counts: bool) -> None:
    at = course(good=good, failed=1)
    at.batch_size, at.batch_left_count, at.batch_failed_count = 8, 0, 1

    PEERS["exponential_batches"].places(at)

    assert (at.failed_batch_count == 1) is counts


@pytest.mark.parametrize("peer", list(PEERS))
def test_every_peer_brings_a_good_release_to_every_node(peer: str) -> None:
    found = play(peer, "good")

    assert found.is_done
    assert found.upgraded_count == NODE_COUNT


@pytest.mark.parametrize(
    ("peer", "touched"),
    [("one_at_a_time", 1), ("flat_quarter", NODE_COUNT // 4), ("exponential_batches", 2), ("all_at_once", None)],
)
def test_who_looks_whether_nodes_come_well_stops_at_a_hard_failure_and_leaves_them_so(
    peer: str, touched: int | None
) -> None:
    found = play(peer, "hard-failure")

    assert found.is_stopped is (touched is not None)
    assert found.touched_count == (touched or 0)
    assert not found.is_back


@pytest.mark.parametrize("peer", list(PEERS))
def test_no_peer_notices_that_everything_became_slower(peer: str) -> None:
    found = play(peer, "slow")

    assert not found.is_stopped
    assert found.upgraded_count == NODE_COUNT
