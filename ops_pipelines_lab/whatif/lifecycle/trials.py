"""Many simulated rollouts of one scenario, ours and peers', and what they come to. Each seed is a world of its own.

What a rollout costs is the difference to the same seed without one. Runs are independent, so they are shared out to
processes; the order of the results never depends on who was faster.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from ops_pipelines.core.policy import Policy
from ops_pipelines_lab.whatif.lifecycle.controller import OurRollout
from ops_pipelines_lab.whatif.lifecycle.outcome import Outcome
from ops_pipelines_lab.whatif.lifecycle.peers import PEERS, PeerRollout
from ops_pipelines_lab.whatif.lifecycle.scenario import Scenario, Site
from ops_pipelines_lab.whatif.lifecycle.world import DAY, HORIZON_SECONDS, World

OURS = "ours"
FIRST_SEED = 1_000
MOST_PEER_SEEDS = 10
"""Peers are played on so many seeds: what they do hardly varies."""
_WARM_UP_SECONDS = DAY
"""Until the queue is as full of half-done gangs as it stays."""
_SETTLE_SECONDS = DAY / 4
"""What was put back into the queue is waited for."""
Progress = Callable[[int, int], None]
"""Told of runs done, and of runs in all."""


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
    rolled_back_ratio: float | None
    """Of those that stopped: every touched node runs its old version."""
    stopped_ratio: float
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


def _deciding_days(found: Outcome, ended_at: float) -> float:
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
) -> Mapping[str, Sequence[Trial]]:
    """Return every rollout of each way, on as many seeds as asked for; seeds are the same for all."""
    total, done = sum(ways.values()), 0
    found: dict[str, list[Trial]] = {way: [] for way in ways}
    with ProcessPoolExecutor(max_workers=workers) as pool:
        waiting = {
            way: pool.map(
                partial(play_trial, site, policy, scenario, way), range(FIRST_SEED, FIRST_SEED + count), chunksize=1
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
        false_stop_ratio=len(stopped) / len(trials) if scenario.is_good else None,
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
