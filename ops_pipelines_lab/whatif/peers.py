"""The peers: how other ways to run a cluster meet the same faults, as published. Parameters, no decisions.

A peer is a table of numbers: how fast it notices what, how often it finds and removes the part by itself, how long the
job needs to stand again. Each number has its source; what is assumed is stated. Start-up and checkpoint regime are the
same for all, so that what differs is operations.

Sources: Slurm's own defaults (KillWait, SlurmdTimeout, MaxBatchRequeue); ByteRobust (arXiv 2509.16293: 60 s to a log
alert, 30 min NCCL timeout, 768 s to schedule again on 16,384 GPUs, standby 10.87 times and rescheduling 2.03 times
faster); Minder (arXiv 2411.01791: diagnosis by hand above 30 min); NVSentinel's scale tests (15 s poll, 0.37 s cordon,
60 s drain); Llama 3 (arXiv 2407.21783: above 90 %, three manual interventions; the rest of that row is fitted to it).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
from numpy.random import Generator

from ops_pipelines_lab.whatif.fault_mix import Group, Scenario, Silent, Strike, strikes
from ops_pipelines_lab.whatif.measured import Between, Duration, Exponential, Fixed, LogNormal
from ops_pipelines_lab.whatif.training import Cause, RunResult, WorkClock, best_regime, result_of

HOUR = 3600.0
START = Fixed(160.0)
"""Load of the checkpoint 129.5 s (ByteCheckpoint) and 30 s of initialisation (MegaScale)."""
REQUEUE = Fixed(768.0)
STANDBY = Fixed(768.0 / 10.87)
RESCHEDULE = Fixed(768.0 / 10.87 * 5.36)
ACKNOWLEDGE = LogNormal(600.0, 0.8)
"""Assumption: ten minutes until the person on call looks."""
FIND_BY_HAND = LogNormal(1200.0, 0.7)
FIND_HANG_BY_HAND = LogNormal(4200.0, 0.7)
FIXED_BY_HAND_RATIO = 0.95
"""Assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticing:
    """How long each kind of failure goes unnoticed."""

    crash: Duration
    node_down: Duration
    hang: Duration
    corruption: Duration
    slowness: Duration

    def of(self, strike: Strike) -> Duration:
        match strike.kind.silent:
            case Silent.CORRUPTS:
                return self.corruption
            case Silent.SLOWS:
                return self.slowness
        if strike.is_hang:
            return self.hang
        return self.node_down if strike.kind.ends_node else self.crash


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How often the part is found and removed by itself at the first attempt, 0..1."""

    gpu: float = 0.0
    network: float = 0.0
    host: float = 0.0
    software: float = 0.0
    hang: float = 0.0
    corruption: float = 0.0
    slowness: float = 0.0

    def of(self, strike: Strike) -> float:
        match strike.kind.silent:
            case Silent.CORRUPTS:
                return self.corruption
            case Silent.SLOWS:
                return self.slowness
        if strike.is_hang:
            return self.hang
        by_group = {Group.GPU: self.gpu, Group.NETWORK: self.network, Group.HOST: self.host}
        return by_group.get(strike.kind.group, self.software)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way to run a cluster."""

    name: str
    noticing: Noticing
    finding: Finding = field(default_factory=Finding)
    localise: Duration = Fixed(0.0)
    drain: Duration = Fixed(0.0)
    schedule: Duration = REQUEUE
    schedule_beyond_standby: Duration = RESCHEDULE
    schedule_planned: Duration = REQUEUE
    planned_merged_ratio: float = 0.0
    """The share of planned stops that waits for an unplanned one."""
    attempts_before_human: int = 3
    """0: a person is called each time."""
    wrong_drains_per_day: float = 0.0


def _noticing(
    crash: Duration, node_down: Duration, hang: float | Duration, corruption: float, slowness: float | Duration
) -> Noticing:
    return Noticing(
        crash=crash,
        node_down=node_down,
        hang=Fixed(hang) if isinstance(hang, float) else hang,
        corruption=Fixed(corruption),
        slowness=Fixed(slowness) if isinstance(slowness, float) else slowness,
    )


MANUAL_OPS = Peer(
    name="manual_ops",
    noticing=_noticing(Fixed(60.0), Fixed(60.0), 1800.0, 8 * HOUR, 4 * HOUR),
    attempts_before_human=0,
)
SLURM_REQUEUE = Peer(
    name="slurm_requeue",
    noticing=_noticing(Fixed(30.0), Fixed(300.0), 600.0, 8 * HOUR, 4 * HOUR),
    finding=Finding(host=1.0),
    attempts_before_human=5,
)
NVSENTINEL_LIKE = Peer(
    name="nvsentinel_like",
    noticing=_noticing(Between(0.4, 15.4), Fixed(60.0), 600.0, 8 * HOUR, 4 * HOUR),
    finding=Finding(gpu=0.90, network=0.50, host=0.95),
    drain=Fixed(60.0),
)
LLAMA3_REF = Peer(
    name="llama3_ref",
    noticing=_noticing(Fixed(60.0), Fixed(60.0), 600.0, HOUR, HOUR),
    finding=Finding(gpu=0.99, network=0.99, host=1.0, software=0.99, hang=0.98, corruption=0.9, slowness=0.9),
    localise=Between(60.0, 120.0),
    schedule=RESCHEDULE,
    schedule_planned=RESCHEDULE,
    attempts_before_human=1,
)
BYTEROBUST_LIKE = Peer(
    name="byterobust_like",
    noticing=_noticing(Between(5.0, 35.0), Fixed(2.0), 650.0, 4289.0, Between(60.0, 120.0)),
    finding=Finding(gpu=0.98, network=0.97, host=1.0, software=0.95, hang=0.95, corruption=0.9, slowness=0.95),
    localise=Fixed(93.0),
    schedule=STANDBY,
    schedule_planned=Fixed(65.0),
    planned_merged_ratio=0.5,
)
ORACLE = Peer(
    name="oracle",
    noticing=_noticing(Fixed(0.0), Fixed(0.0), 0.0, 0.0, 0.0),
    finding=Finding(gpu=1.0, network=1.0, host=1.0, software=1.0, hang=1.0, corruption=1.0, slowness=1.0),
    schedule=Fixed(768.0 / 10.87 / 1.0519),
    schedule_planned=STANDBY,
    planned_merged_ratio=1.0,
)
"""Knows and finds at once: the upper bound with this start-up time."""
PEERS: Mapping[str, Peer] = {
    peer.name: peer for peer in (MANUAL_OPS, SLURM_REQUEUE, NVSENTINEL_LIKE, LLAMA3_REF, BYTEROBUST_LIKE, ORACLE)
}


def play(peer: Peer, scenario: Scenario, seed: int) -> RunResult:
    """Return one run of a peer under the faults of a seed. Equal arguments give equal results."""
    return _PeerRun(peer, scenario, seed).play()


class _PeerRun:
    """One run: the job works until it is struck, then the peer's numbers say how long it waits and why."""

    def __init__(self, peer: Peer, scenario: Scenario, seed: int) -> None:
        self._peer = peer
        self._scenario = scenario
        self._random: Generator = np.random.default_rng([seed, 2, crc32(peer.name.encode())])
        self._clock = WorkClock(horizon_seconds=scenario.days * 86_400, regime=best_regime(scenario.mtbf_seconds))
        self._strikes: Iterator[Strike] = strikes(scenario, seed)
        self._repaired_at: list[float] = []
        self._interruptions = 0
        self._humans = 0
        self._wrong_drains = 0

    def play(self) -> RunResult:
        clock, rate = self._clock, self._peer.wrong_drains_per_day
        strike = next(self._strikes)
        until_strike = strike.gap_seconds
        until_wrong = self._draw(Exponential(86_400 / rate)) if rate else math.inf
        while not clock.is_over():
            step = min(until_strike, until_wrong)
            clock.run(step)
            until_strike -= step
            until_wrong -= step
            if clock.is_over():
                break
            if until_wrong < until_strike:
                until_wrong = self._draw(Exponential(86_400 / rate))
                self._drain_a_healthy_node()
                continue
            self._meet(strike)
            strike = next(self._strikes)
            until_strike = strike.gap_seconds
        return result_of(clock, interruptions=self._interruptions, humans=self._humans, wrong_drains=self._wrong_drains)

    def _draw(self, duration: Duration) -> float:
        return duration.draw(self._random)

    def _drain_a_healthy_node(self) -> None:
        self._interruptions += 1
        self._wrong_drains += 1
        self._clock.die()
        self._start_again(self._peer.schedule, is_evicting=True)

    def _meet(self, strike: Strike) -> None:
        if strike.kind.group is Group.PLANNED:
            self._stop_as_planned()
            return
        self._interruptions += 1
        self._notice(strike)
        persists = strike.persists or strike.kind.silent is Silent.SLOWS
        is_wide = strike.kind.group is Group.NETWORK and self._random.random() < self._scenario.wide_network_ratio
        schedule = self._peer.schedule_beyond_standby if is_wide else self._peer.schedule
        attempt = 0
        while not self._clock.is_over():
            attempt += 1
            is_mended = self._find(strike, attempt)
            self._start_again(schedule, is_evicting=is_mended and strike.kind.group is not Group.SOFTWARE)
            if is_mended or not persists:
                return
            self._be_struck_again(strike)

    def _stop_as_planned(self) -> None:
        if self._random.random() < self._peer.planned_merged_ratio:
            return
        self._interruptions += 1
        if self._peer.attempts_before_human == 0:
            self._clock.stand(Cause.HUMAN, self._draw(ACKNOWLEDGE))
        self._clock.stand(Cause.SCHEDULE, self._draw(self._peer.schedule_planned))
        self._clock.stand(Cause.START, self._draw(START))
        self._clock.run_seconds = 0.0

    def _notice(self, strike: Strike) -> None:
        seconds = self._draw(self._peer.noticing.of(strike))
        match strike.kind.silent:
            case Silent.CORRUPTS:
                unsaved = self._clock.regime.unsaved_seconds(self._clock.run_seconds)
                self._clock.lose(unsaved + self._clock.run(seconds))
                self._clock.run_seconds = 0.0
            case Silent.SLOWS:
                self._clock.run(seconds, slowdown_ratio=self._scenario.slow_ratio)
            case None:
                self._clock.die()
                self._clock.stand(Cause.DETECT, seconds)

    def _find(self, strike: Strike, attempt: int) -> bool:
        """Return whether the part was found and removed: by itself, or by a person once that has failed too often."""
        limit = self._peer.attempts_before_human
        if attempt <= limit:
            self._clock.stand(Cause.LOCALISE, self._draw(self._peer.localise))
            return bool(self._random.random() < self._peer.finding.of(strike))
        self._humans += attempt == limit + 1
        is_hard = strike.is_hang or strike.kind.silent is Silent.CORRUPTS
        by_hand = FIND_HANG_BY_HAND if is_hard else FIND_BY_HAND
        self._clock.stand(Cause.HUMAN, self._draw(ACKNOWLEDGE) + self._draw(by_hand))
        return bool(self._random.random() < FIXED_BY_HAND_RATIO)

    def _start_again(self, schedule: Duration, *, is_evicting: bool) -> None:
        if is_evicting:
            self._take_a_spare()
        self._clock.stand(Cause.LOCALISE, self._draw(self._peer.drain))
        self._clock.stand(Cause.SCHEDULE, self._draw(schedule))
        self._clock.stand(Cause.START, self._draw(START))
        self._clock.run_seconds = 0.0

    def _take_a_spare(self) -> None:
        self._repaired_at = [at for at in self._repaired_at if at > self._clock.now]
        if len(self._repaired_at) >= self._scenario.spare_count:
            self._clock.stand(Cause.SPARE_WAIT, min(self._repaired_at) - self._clock.now)
        self._repaired_at.append(self._clock.now + self._draw(Exponential(self._scenario.repair_hours * HOUR)))

    def _be_struck_again(self, strike: Strike) -> None:
        """What was not removed strikes once more, sooner than it struck first."""
        if strike.kind.silent is Silent.SLOWS:
            seconds = self._draw(self._peer.noticing.slowness)
            self._clock.run(seconds, slowdown_ratio=self._scenario.slow_ratio)
            return
        self._clock.run(self._draw(Exponential(self._scenario.repeat_seconds)))
        self._interruptions += 1
        self._clock.die()
        noticing = self._peer.noticing
        again = noticing.hang if strike.is_hang else noticing.node_down if strike.kind.ends_node else noticing.crash
        self._clock.stand(Cause.DETECT, self._draw(again))
