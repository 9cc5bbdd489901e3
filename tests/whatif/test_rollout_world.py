"""The simulated cluster under a rollout: what is lost adds up, and a rollout changes neither jobs nor what breaks."""

from dataclasses import replace

import pytest

from ops_pipelines_lab.whatif.lifecycle.scenario import Scenario
from ops_pipelines_lab.whatif.lifecycle.world import DAY, World
from tests.whatif.small_cluster import NODE_COUNT, small_site, world_of

HOUR = 3_600.0


class Watch:
    """Notes what a world reports."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.watcher = self
        self.free: list[int] = []
        self.ended: list[tuple[float, int]] = []
        self.failed: list[tuple[float, int]] = []

    def node_free(self, number: int) -> None:
        """A drained node has no job."""
        self.free.append(number)

    def visit_ended(self, number: int) -> None:
        """A visit is over."""
        self.ended.append((self._world.now, number))

    def node_failed(self, number: int) -> None:
        """Something broke."""
        self.failed.append((self._world.now, number))

    def called(self, mark: int) -> None:
        """Nothing was asked for."""


def running(world: World) -> list[int]:
    return [each.number for each in world.nodes if each.job is not None]


def quiet(scenario: Scenario | None = None) -> World:
    """Return a world in which nothing breaks by itself."""
    return world_of(scenario or Scenario(name="quiet"), site=replace(small_site(), failures_per_node_day=1e-9))


def test_the_same_seed_is_the_same_world() -> None:
    one, same, other = world_of(), world_of(), world_of(seed=2)

    for each in (one, same, other):
        each.play(2 * DAY)

    assert one.losses == same.losses
    assert one.losses != other.losses


def test_whoever_only_looks_changes_nothing() -> None:
    watched, alone = world_of(), world_of()
    Watch(watched)
    for number in range(0, NODE_COUNT, 7):
        watched.past_runs(number)

    watched.play(2 * DAY)
    alone.play(2 * DAY)

    assert watched.losses == alone.losses


def test_every_second_of_a_node_without_a_job_is_lost() -> None:
    world = world_of()
    world.play(DAY / 2)
    before, summed = world.losses.not_running, 0.0

    for minute in range(1, 12 * 60 + 1):
        summed += (NODE_COUNT - len(running(world))) * 60.0
        world.play(DAY / 2 + minute * 60.0)

    assert summed > 0
    assert world.losses.not_running - before == pytest.approx(summed, rel=0.05)


def test_jobs_go_on_on_a_drained_node_and_no_other_starts() -> None:
    world = quiet()
    watch = Watch(world)
    world.play(HOUR)
    number = running(world)[0]
    job = world.nodes[number].job

    world.drain(number)

    assert world.nodes[number].job is job
    world.play(60 * HOUR)
    assert number in watch.free
    assert world.nodes[number].job is None
    assert world.is_free(number)


def test_a_visit_takes_its_time_and_can_be_broken_off() -> None:
    world = quiet()
    watch = Watch(world)
    for number in (0, 1):
        world.drain(number)
        world.kill(number)
        world.visit(number, 1_200.0)

    world.play(600.0)
    world.end_visit(1)
    world.play(HOUR)

    assert watch.ended == [(1_200.0, 0)]


def test_a_killed_job_loses_what_is_newer_than_its_checkpoint() -> None:
    world = quiet()
    world.play(100.0)
    number = running(world)[0]
    job = world.nodes[number].job
    assert job is not None
    ran = world.now - job.began_at

    world.kill(number)

    every = world.site.checkpoint_every_seconds
    assert world.losses.recomputed == pytest.approx((ran % every) * job.size)
    assert job.attempt == 1


def test_an_updated_node_hangs_when_its_release_does_and_again_after_its_repair() -> None:
    world = quiet(Scenario(name="hang", hangs_after_seconds=6 * HOUR))
    watch = Watch(world)
    world.play(HOUR)

    world.set_version(3, is_new=True)
    world.play(15 * HOUR)

    assert watch.failed == [(7 * HOUR, 3), (14 * HOUR, 3)]


def test_what_was_foreseen_for_the_new_version_does_not_happen_with_the_old() -> None:
    world = quiet(Scenario(name="hang", hangs_after_seconds=6 * HOUR, extra_failures_per_node_day=20.0))
    watch = Watch(world)

    world.set_version(3, is_new=True)
    world.set_version(3, is_new=False)
    world.play(DAY)

    assert watch.failed == []


@pytest.mark.parametrize(
    ("scenario", "slower"), [(Scenario(name="x"), 0.0), (Scenario(name="x", slowdown_ratio=0.05), 0.05)]
)
def test_runs_of_updated_nodes_are_slower_where_the_release_makes_them_so(scenario: Scenario, slower: float) -> None:
    world = quiet(scenario)
    for number in range(NODE_COUNT):
        world.set_version(number, is_new=True)

    world.play(4 * DAY)

    ratios = [run / node.factor - 1 for node in world.nodes for run in node.runs]
    assert len(ratios) > 1_000
    assert sum(ratios) / len(ratios) == pytest.approx(slower, abs=0.004)


def test_time_under_jobs_is_counted_from_the_update_on() -> None:
    world = quiet()
    world.play(HOUR)
    world.drain(5)
    world.kill(5)
    world.set_version(5, is_new=True)

    world.play(2 * HOUR)
    assert world.worked_seconds(5) == 0.0
    world.undrain(5)
    world.play(12 * HOUR)
    worked = world.worked_seconds(5)
    assert 8 * HOUR < worked <= 10 * HOUR
    world.drain(5)
    world.kill(5)
    world.play(14 * HOUR)
    assert world.worked_seconds(5) == pytest.approx(worked)
