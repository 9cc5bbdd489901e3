"""Many simulated rollouts of one scenario, ours and peers', and what they come to. Each seed is a world of its own.

What a rollout costs is the difference to the same seed without one. Runs are independent, so they are shared out to
processes; the order of the results never depends on who was faster.

The peers are other ways to roll out, with the stop rules that they are published with: the same world, the same seeds.
Each knows of a node only whether it came well; none rolls back (PEERS: of nine host-level systems one does). What a
project leaves to its user is set as its own example does, and in its favour where there is none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from ops_pipelines.core.policy import Policy
from ops_pipelines_lab.whatif.lifecycle.controller import OurRollout, RolloutResult
from ops_pipelines_lab.whatif.lifecycle.scenario import Scenario, Site
from ops_pipelines_lab.whatif.lifecycle.world import DAY, HORIZON_SECONDS, World

_BEGIN = -1
_QUARTER = 0.25
"""GPU Operator: maxUnavailable; NodeWright: the budget of its example."""
_EVICTED_AFTER_SECONDS = 300.0
"""GPU Operator: the drain's timeout; then the pods are gone."""
_LOCK_PERIOD_SECONDS = 3_600.0
"""Kured: every node looks for the lock this often."""
_GROWTH, _FAILED_BATCHES, _SAFE_RATIO = 2, 2, 0.5
"""NodeWright, deployment policy: the example of its exponential strategy. Its default stops at nothing."""


@dataclass(slots=True, kw_only=True)
class Course:
    """How far a peer is."""

    node_count: int
    pending_count: int
    out_count: int = 0
    failed_count: int = 0
    good_count: int = 0
    batch_size: int = 1
    batch_left_count: int = 1
    """Of the present batch: nodes that are not started yet."""
    batch_failed_count: int = 0
    failed_batch_count: int = 0
    """In a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a peer continues, and what it does to the job of a node that it takes."""

    places: Callable[[Course], int]
    """How many more nodes it begins now."""
    evicts_after_seconds: float | None
    """How long a job may continue; None: to its end."""
    has_stopped: Callable[[Course], str] | None = None
    """Why it goes no further; empty: it does. None: nothing stops it."""
    waits_for_lock: bool = False


def _next_batch(course: Course) -> int:
    """Return what is left of the batch; when all of it is in, the next is twice as large, or half."""
    if course.out_count == 0 and course.batch_left_count == 0:
        is_safe = course.good_count + course.failed_count >= _SAFE_RATIO * course.node_count
        if not course.batch_failed_count:
            course.batch_size, course.failed_batch_count = course.batch_size * _GROWTH, 0
        elif not is_safe:
            course.batch_size = max(1, course.batch_size // _GROWTH)
            course.failed_batch_count += 1
        course.batch_size = min(course.batch_size, max(1, int(_QUARTER * course.node_count)))
        course.batch_left_count, course.batch_failed_count = course.batch_size, 0
    return course.batch_left_count


def _quarter(course: Course) -> int:
    return int(_QUARTER * course.node_count) - course.out_count - course.failed_count


PEERS: Mapping[str, Rule] = {
    # Kured: who holds the lock reboots; a node that does not come back keeps it, for ever by default.
    "one_at_a_time": Rule(
        places=lambda course: 1 - course.out_count,
        has_stopped=lambda course: "the node that failed keeps the lock" if course.failed_count else "",
        evicts_after_seconds=0.0,
        waits_for_lock=True,
    ),
    # GPU Operator with maxParallelUpgrades: 0: a failed node stays unavailable and so takes a place.
    "flat_quarter": Rule(
        places=_quarter,
        has_stopped=lambda course: (
            "a quarter is unavailable" if course.failed_count >= int(_QUARTER * course.node_count) else ""
        ),
        evicts_after_seconds=_EVICTED_AFTER_SECONDS,
    ),
    # NodeWright, exponential strategy, with jobs that it waits for.
    "exponential_batches": Rule(
        places=_next_batch,
        has_stopped=lambda course: (
            f"{_FAILED_BATCHES} batches in a row failed" if course.failed_batch_count >= _FAILED_BATCHES else ""
        ),
        evicts_after_seconds=None,
    ),
    # Slurm: scontrol reboot ASAP of every node: each when its jobs are over, and nothing stops it.
    "all_at_once": Rule(
        places=lambda course: course.pending_count,
        evicts_after_seconds=None,
    ),
}


class PeerRollout:
    """A rollout by one rule, from now on, in whatever order the nodes come."""

    def __init__(self, world: World, rule: Rule) -> None:
        self._world, self._rule = world, rule
        count = len(world.nodes)
        self._pending = list(range(count))
        world.hands_random.shuffle(self._pending)
        self._waiting: set[int] = set()
        self._course = Course(node_count=count, pending_count=count)
        self._touched_count = 0
        self.outcome = RolloutResult(node_count=count, began_at=world.now)
        world.watcher = self
        self._begin()

    def node_free(self, number: int) -> None:
        """Update a node whose jobs are over."""
        if number in self._waiting and self._world.is_free(number):
            self._waiting.discard(number)
            self._touched_count += 1
            self._world.visit(number, self._world.site.visit_seconds)

    def node_failed(self, number: int) -> None:
        """Nobody looks."""

    def called(self, mark: int) -> None:
        """Begin, or end the job of a node whose time is over; marks are numbers of nodes."""
        if mark == _BEGIN:
            self._begin()
        elif mark in self._waiting:
            self._world.kill(mark)

    def visit_ended(self, number: int) -> None:
        """Bring a node back to work; one that is not well stays as it is."""
        world, course = self._world, self._course
        course.out_count -= 1
        world.set_version(number, is_new=True)
        if world.comes_well(number):
            course.good_count += 1
            world.undrain(number)
        else:
            course.failed_count += 1
            course.batch_failed_count += 1
        if self._rule.waits_for_lock and course.pending_count:
            world.call_at(
                world.now + world.hands_random.expovariate(course.pending_count / _LOCK_PERIOD_SECONDS), _BEGIN
            )
        else:
            self._begin()

    def _begin(self) -> None:
        course, world = self._course, self._world
        places = min(self._rule.places(course), course.pending_count)
        reason = self._rule.has_stopped(course) if self._rule.has_stopped is not None else ""
        if reason or (course.pending_count == course.out_count == 0):
            self._close(reason)
            return
        for _ in range(places):
            number = self._pending.pop()
            course.pending_count -= 1
            course.out_count += 1
            course.batch_left_count -= 1
            self._waiting.add(number)
            world.drain(number)
            if world.is_free(number):
                self.node_free(number)
            elif self._rule.evicts_after_seconds is not None:
                world.call_at(world.now + self._rule.evicts_after_seconds, number)

    def _close(self, reason: str) -> None:
        if reason:
            self.outcome.note_stop(reason, at=self._world.now, touched_count=self._touched_count)
        self.outcome.close(
            at=self._world.now,
            is_done=not reason,
            is_back=False,
            upgraded_count=self._course.good_count,
        )
        self._world.halt()


OURS = "ours"
FIRST_SEED = 1_000
MOST_PEER_SEEDS = 10
"""Peers are played on so many seeds: what they do hardly varies."""
_WARM_UP_SECONDS = DAY
"""Until the queue is as full of half-done gangs as it stays."""
_SETTLE_SECONDS = DAY / 4
"""What was put back into the queue is waited for."""
Progress = Callable[[int, int], None]
"""Called with the runs done, and the runs in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One rollout under one seed."""

    is_done: bool
    is_stopped: bool
    has_asked: bool
    is_back: bool
    touched_ratio: float
    """Of all nodes, when it stopped; 1.0 if it never did."""
    upgraded_count: int
    lost_gpu_hours: float | None
    """Against the same seed without a rollout; None for a bad release."""
    days: float
    decided_days: float | None
    """Until the canaries were decided."""
    deciding_days: float
    """How long all canaries together were looked at before that; 0.0: it was stopped before."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Many rollouts of one kind. Ratios are 0..1; None where there is nothing to say."""

    seed_count: int
    gpu_hours_per_upgraded_node: float | None
    gpu_hours_ci95: tuple[float, float] | None
    touched_ratio_when_stopped: float | None
    """95th percentile over seeds."""
    false_stop_ratio: float | None
    """Of good releases: found bad, not asked about."""
    rolled_back_ratio: float | None
    """Of those that stopped: every touched node runs its old version."""
    stopped_ratio: float
    """Found bad, or asked about."""
    asked_ratio: float
    days: float
    """Mean, from the first drain to the end."""
    decided_days: float | None
    """95th percentile, from the first drain to the decision on the canaries."""
    deciding_days: float
    """95th percentile, from when the last canary works again."""


def play_trial(site: Site, policy: Policy, scenario: Scenario, way: str, seed: int) -> Trial:
    """Return what came of one rollout, ours or a peer's."""
    gang_cap = policy.rollouts.gang_cap_node_count
    world = World(site, scenario, seed, gang_cap=gang_cap)
    world.play(_WARM_UP_SECONDS)
    rollout = OurRollout(world, policy) if way == OURS else PeerRollout(world, PEERS[way])
    world.play(HORIZON_SECONDS)
    found, lost = rollout.outcome, None
    ended_at = world.now
    if scenario.is_good:
        world.play(ended_at + _SETTLE_SECONDS)
        without = World(site, scenario, seed, gang_cap=gang_cap)
        without.play(world.now)
        lost = (world.losses.total - without.losses.total) / 3_600 * site.gpus_per_node
    return Trial(
        is_done=found.is_done,
        is_stopped=found.is_stopped,
        has_asked=found.has_asked,
        is_back=found.is_back,
        touched_ratio=found.touched_count / found.node_count if found.is_stopped else 1.0,
        upgraded_count=found.upgraded_count,
        lost_gpu_hours=lost,
        days=(ended_at - found.began_at) / DAY,
        decided_days=None if found.decided_at is None else (found.decided_at - found.began_at) / DAY,
        deciding_days=_deciding_days(found, ended_at),
        reason=found.reason,
    )


def _deciding_days(found: RolloutResult, ended_at: float) -> float:
    if found.watched_from is None:
        return 0.0
    return ((ended_at if found.decided_at is None else found.decided_at) - found.watched_from) / DAY


def play_trials(
    site: Site,
    policy: Policy,
    scenario: Scenario,
    *,
    ways: Mapping[str, int],
    workers: int,
    on_progress: Progress,
    first_seed: int = FIRST_SEED,
) -> Mapping[str, Sequence[Trial]]:
    """Return every rollout of each way, on as many seeds as asked for; seeds are the same for all."""
    total, done = sum(ways.values()), 0
    found: dict[str, list[Trial]] = {way: [] for way in ways}
    with ProcessPoolExecutor(max_workers=workers) as pool:
        waiting = {
            way: pool.map(
                partial(play_trial, site, policy, scenario, way), range(first_seed, first_seed + count), chunksize=1
            )
            for way, count in ways.items()
        }
        for way, trials in waiting.items():
            for trial in trials:
                found[way].append(trial)
                done += 1
                on_progress(done, total)
    return found


def ways_of(seed_count: int) -> Mapping[str, int]:
    """Return ours and every peer with the seeds that each is played on."""
    if seed_count < 1:
        raise ValueError(f"{seed_count} seeds were asked for; expected at least one")
    return {OURS: seed_count, **{name: min(seed_count, MOST_PEER_SEEDS) for name in PEERS}}


def summarise(scenario: Scenario, trials: Sequence[Trial]) -> Summary:
    """Return what many rollouts of one scenario come to."""
    stopped = [each for each in trials if each.is_stopped]
    decided = [each.decided_days for each in trials if each.decided_days is not None]
    cost = _cost(trials) if scenario.is_good else None
    return Summary(
        seed_count=len(trials),
        gpu_hours_per_upgraded_node=None if cost is None else cost[0],
        gpu_hours_ci95=None if cost is None else (cost[0] - cost[1], cost[0] + cost[1]),
        touched_ratio_when_stopped=None
        if scenario.is_good
        else percentile([each.touched_ratio for each in trials], 0.95),
        false_stop_ratio=sum(not each.has_asked for each in stopped) / len(trials) if scenario.is_good else None,
        rolled_back_ratio=sum(each.is_back for each in stopped) / len(stopped)
        if stopped and not scenario.is_good
        else None,
        stopped_ratio=len(stopped) / len(trials),
        asked_ratio=sum(each.has_asked for each in trials) / len(trials),
        days=sum(each.days for each in trials) / len(trials),
        decided_days=percentile(decided, 0.95) if decided else None,
        deciding_days=percentile([each.deciding_days for each in trials], 0.95),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _cost(trials: Sequence[Trial]) -> tuple[float, float] | None:
    """Return the mean cost of an upgraded node with half its 95 % interval, over rollouts that came to their end."""
    costs = [
        each.lost_gpu_hours / each.upgraded_count
        for each in trials
        if each.is_done and each.upgraded_count and each.lost_gpu_hours is not None
    ]
    if not costs:
        return None
    mean = sum(costs) / len(costs)
    if len(costs) == 1:
        return mean, 0.0
    spread = math.sqrt(sum((each - mean) ** 2 for each in costs) / (len(costs) - 1))
    return mean, 1.96 * spread / math.sqrt(len(costs))
