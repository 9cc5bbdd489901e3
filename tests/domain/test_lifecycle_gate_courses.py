"""The gate over whole waves: thirty nodes a week long, looked at twice a day, good and bad ones, from a seed."""

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

from ops_pipelines.rollouts.gate.evidence import (
    EventCounts,
    EventKind,
    GateEvidence,
    LevelKind,
    LevelSamples,
    VerdictKind,
)
from ops_pipelines.rollouts.gate.judge_wave import Looking, judge_wave
from ops_pipelines.rollouts.gate.measures import control_shift
from tests.domain.lifecycle_evidence import BEGAN, DECIDING, LATER, USUAL, names, tries

GOOD, STOP, ASK, UNDECIDED = VerdictKind.GOOD, VerdictKind.STOP, VerdictKind.ASK, VerdictKind.UNDECIDED
STEP = timedelta(hours=12)
NODE_COUNT, CONTROL_COUNT = 30, 970
UPDATED = tries(0, NODE_COUNT)
NAMES = names(NODE_COUNT)
MEASURED = 10
"""Nodes of which steps are timed: enough for the test, and a third of the runs to draw."""


@dataclass(slots=True)
class Week:
    """One wave at work. `times` multiplies failures of updated nodes, `storm` everybody's on the third day."""

    rng: random.Random
    times: float = 1.0
    slowdown: float = 0.0
    storm: float = 1.0
    slow_day: float = 0.0
    treated: int = 0
    control: int = 0
    past: int = 0
    hours: float = 0.0
    runs: list[list[float]] = field(default_factory=lambda: [[] for _ in range(MEASURED)])
    before: list[tuple[float, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.past = self._poisson(USUAL * 14_000)
        self.before = [self._runs(1.0, 10) for _ in range(MEASURED)]

    def live(self) -> GateEvidence:
        """Let half a day pass, and return what is seen."""
        days = STEP / timedelta(days=1)
        weather = self.storm if 48 <= self.hours < 72 else 1.0
        self.hours += STEP / timedelta(hours=1)
        self.treated += self._poisson(USUAL * weather * self.times * NODE_COUNT * days)
        self.control += self._poisson(USUAL * weather * CONTROL_COUNT * days)
        for runs in self.runs:
            runs += self._runs((1 + self.slowdown) * (1 + self.slow_day), 2)
        return self.evidence()

    def evidence(self) -> GateEvidence:
        worked = timedelta(hours=self.hours)
        days = self.hours / 24
        untouched = tuple(
            self._sample(place, self._runs(1.0, 10), self._runs(1 + self.slow_day, 10)) for place in range(5)
        )
        return GateEvidence(
            at=BEGAN + worked,
            tries=UPDATED,
            counts=(
                EventCounts(
                    kind=EventKind.NODE_FAILURE,
                    treated_count=self.treated,
                    treated_node_days=NODE_COUNT * days,
                    control_count=self.control,
                    control_node_days=CONTROL_COUNT * days,
                    own_count=0,
                    own_node_days=0.0,
                    past_count=self.past,
                    past_node_days=14_000.0,
                ),
            ),
            levels=tuple(self._sample(place, self.before[place], tuple(runs)) for place, runs in enumerate(self.runs)),
            shifts=(control_shift(LevelKind.STEP_TIME, untouched),),
            soaks=dict.fromkeys(NAMES, worked),
            soak_began_at=BEGAN,
        )

    def _sample(self, place: int, before: tuple[float, ...], after: tuple[float, ...]) -> LevelSamples:
        return LevelSamples(kind=LevelKind.STEP_TIME, node=NAMES[place], before=before, after=after)

    def _runs(self, mean: float, count: int) -> tuple[float, ...]:
        return tuple([self.rng.normalvariate(mean, 0.03 * mean) for _ in range(count)])

    def _poisson(self, mean: float) -> int:
        if mean > 30:
            return max(0, round(self.rng.normalvariate(mean, math.sqrt(mean))))
        count, left = 0, self.rng.expovariate(1.0)
        while left < mean:
            count += 1
            left += self.rng.expovariate(1.0)
        return count


def decide(week: Week, looking: Looking = DECIDING) -> VerdictKind:
    """Return what the gate comes to, looking twice a day."""
    while True:
        verdict = judge_wave(week.live(), looking)
        if verdict.kind is not UNDECIDED:
            return verdict.kind


def decide_many(count: int, seed: int, **how: float) -> Counter[VerdictKind]:
    rng = random.Random(seed)
    return Counter(decide(Week(rng=rng, **how)) for _ in range(count))


def test_good_releases_are_neither_stopped_nor_asked_about():
    found = decide_many(2_000, seed=1)

    assert found[STOP] <= 2  # once in a thousand
    assert found[ASK] <= 2
    assert found[GOOD] >= 1_996


def test_ten_times_as_many_failures_are_stopped():
    found = decide_many(300, seed=2, times=10.0)

    assert found[STOP] >= 0.92 * 300
    assert found[ASK] == 0


def test_five_percent_slower_steps_are_stopped():
    found = decide_many(150, seed=3, slowdown=0.05)

    assert found[STOP] == 150


def test_what_strikes_everybody_does_not_stop():
    storms = decide_many(150, seed=4, storm=20.0)
    slow_days = decide_many(100, seed=5, slow_day=0.15)

    assert storms[STOP] == 0
    assert slow_days[STOP] == 0


def test_what_the_canaries_let_pass_is_stopped_by_the_next_wave():
    rng, passed = random.Random(6), 0
    while passed < 5:
        week = Week(rng=rng, times=10.0)
        if decide(week) is not GOOD:
            continue
        passed += 1
        verdict = UNDECIDED
        while verdict is not STOP:
            assert week.hours < 40 * 24, "ten times as many failures are never found"
            verdict = judge_wave(week.live(), LATER).kind
