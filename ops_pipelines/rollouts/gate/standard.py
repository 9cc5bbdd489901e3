"""By what the tests of the gate are judged: likelihood ratios that may be looked at after every observation.

Each returns ln(P(evidence | bad) / P(evidence | as ever)). Such a ratio is a martingale where nothing is wrong, so that
the chance that it ever reaches ln(1/a) is at most a (Ville): looking again costs nothing. Pure mathematics; what is
bad, and how sure is sure, is `counts`' and `levels`' to say.

The tests themselves are `counts`' and `levels`'; what their lines mean for a wave is `judge_wave`'s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from ops_pipelines.core.release import Claims
from ops_pipelines.rollouts.gate.evidence import EventKind, LevelKind, TestLine, VerdictKind

# -- likelihood ratios that may be looked at after every observation --


_STANDARD = NormalDist()
_KNOWN_WELL = 1e6
_NEGLIGIBLE = 1e-18


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What is known of a rate: as if `count` events (a share of one may do) had been seen in `exposure`."""

    count: float
    exposure: float

    def __post_init__(self) -> None:
        if self.count <= 0 or self.exposure <= 0:
            raise ValueError(f"a rate of {self.count:g} events in {self.exposure:g} is not known; both must be above 0")

    @property
    def mean(self) -> float:
        return self.count / self.exposure

    def times(self, factor: float) -> "Rate":
        """Return a rate that is `factor` times as high, and known as well."""
        return Rate(count=self.count, exposure=self.exposure / factor)


def known_rate(mean: float) -> Rate:
    """Return a rate that is known as if a million events had been seen."""
    return Rate(count=_KNOWN_WELL, exposure=_KNOWN_WELL / mean)


def failures_ratio(failed_count: int, try_count: int, *, usual: float, bad: float) -> float:
    """Return the ratio for tries that fail with the probability `bad` against `usual`."""
    good_count = try_count - failed_count
    return failed_count * math.log(bad / usual) + good_count * math.log((1 - bad) / (1 - usual))


def chance_that_failures_stop(try_count: int, *, truth: float, usual: float, bad: float, stop_at: float) -> float:
    """Return the chance that `failures_ratio` reaches `stop_at` within so many tries that fail with the chance `truth`.

    Exact, and below Ville's bound: failures are whole, and mostly overshoot.
    """
    chances, stopped = {0: 1.0}, 0.0
    for number in range(1, try_count + 1):
        after: dict[int, float] = {}
        for failed, chance in chances.items():
            after[failed] = after.get(failed, 0.0) + chance * (1 - truth)
            after[failed + 1] = after.get(failed + 1, 0.0) + chance * truth
        chances = {}
        for failed, chance in after.items():
            if failures_ratio(failed, number, usual=usual, bad=bad) >= stop_at:
                stopped += chance
            elif chance > _NEGLIGIBLE:
                chances[failed] = chance
    return stopped


def events_ratio(count: int, exposure: float, *, usual: Rate, bad: Rate) -> float:
    """Return the ratio for events that come at the rate `bad`, against `usual`.

    Each rate is itself only known from what was counted: the likelihoods are means over the gamma distribution that
    this count leaves. With much counted it is the ratio of two Poisson distributions. Where all of it was counted on
    others in the same time and `bad` is a multiple of it, it is that of the share of events that fell on the treated,
    whatever the rate was; it then grows with each event.
    """
    if exposure <= 0:
        return 0.0
    return _log_chance(count, exposure, bad) - _log_chance(count, exposure, usual)


def mean_ratio(ratios: Sequence[float]) -> float:
    """Return the ratio for "one of several, each as likely": as good a martingale as each of them."""
    highest = max(ratios)
    return highest + math.log(sum(math.exp(each - highest) for each in ratios) / len(ratios))


def chance_of_at_least(count: int, exposure: float, *, usual: Rate) -> float:
    """Return the chance of so many events in `exposure`, the rate known as well as `usual` says."""
    if count <= 0:
        return 1.0
    if exposure <= 0:
        return 0.0
    expected = usual.mean * exposure
    if count > expected:
        return _sum_from(count, exposure, usual, upwards=True)
    return max(0.0, 1.0 - _sum_from(count - 1, exposure, usual, upwards=False))


def count_that_stops(exposure: float, *, usual: Rate, false_stop: float) -> int:
    """Return the smallest count that comes with a chance of at most `false_stop` where nothing is wrong."""
    low, high = 0, max(8, 2 * math.ceil(usual.mean * exposure))
    while chance_of_at_least(high, exposure, usual=usual) > false_stop:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if chance_of_at_least(middle, exposure, usual=usual) > false_stop:
            low = middle
        else:
            high = middle
    return high


def shift_ratio(shift: float, variance: float, *, bad_shift: float) -> float:
    """Return the ratio for a mean that is shifted by `bad_shift` against one that is not; both in the same unit."""
    return (shift * bad_shift - bad_shift**2 / 2) / variance


def power_of_shift(variance: float, *, bad_shift: float, false_stop: float) -> float:
    """Return the chance that a shift is found by one look at a mean of this variance."""
    limit = _STANDARD.inv_cdf(1 - false_stop)
    return 1 - _STANDARD.cdf(limit - bad_shift / math.sqrt(variance))


def power_of_shift_ratio(variance: float, *, bad_shift: float, at_least: float) -> float:
    """Return the chance that `shift_ratio` is `at_least` so high when everything is shifted by `bad_shift`."""
    away = bad_shift / math.sqrt(variance)
    return _STANDARD.cdf(away / 2 - at_least / away)


def chance_of_shift(shift: float, variance: float) -> float:
    """Return the chance of a shift at least as large where there is none."""
    return 1 - _STANDARD.cdf(shift / math.sqrt(variance))


def _sum_from(count: int, exposure: float, usual: Rate, *, upwards: bool) -> float:
    """Return the chances of `count` and of all above or below it, until they no longer matter.

    From the far side of the mean, so that the terms fall from the first on and none of them is too small to write.
    """
    seen, share = usual.count, exposure / (usual.exposure + exposure)
    term = math.exp(_log_chance(count, exposure, usual))
    total, number = 0.0, count
    while term > _NEGLIGIBLE * total or total == 0.0:
        total += term
        if term == 0.0 or (number == 0 and not upwards):
            break
        if upwards:
            term *= share * (seen + number) / (number + 1)
            number += 1
        else:
            term *= number / (share * (seen + number - 1))
            number -= 1
    return min(1.0, total)


def _log_chance(count: int, exposure: float, rate: Rate) -> float:
    """Return the logarithm of the chance of just so many events: negative binomial."""
    seen = rate.count
    return (
        math.lgamma(seen + count)
        - math.lgamma(seen)
        - math.lgamma(count + 1)
        - seen * math.log1p(exposure / rate.exposure)
        + count * (math.log(exposure) - math.log(rate.exposure + exposure))
    )


# -- by what the tests of the gate are judged --


MISS = 0.003
"""The chance that a test clears a release early that is as bad as claimed."""
LEAST_POWER = 0.85
"""At the last look a test that would have found less often what is claimed has decided nothing."""
SUSPICIOUS_AT = math.log(5)
"""A wave that need not decide waits where the evidence speaks so loudly against it: four nodes with two runs each are
as loud when steps are 5 % slower, 19 times of 20."""
AGAINST_AT = math.log(200)
"""At the last look nothing passes against which the evidence speaks louder. What passes below it is carried on: the
next wave begins with it, and little more stops that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """By what the lines of one look are judged."""

    claims: Claims
    is_deciding: bool
    """Whether everything that is claimed must have been looked for; else nothing must speak against the wave."""
    is_held: bool = True
    """Whether a suspicion holds the wave."""
    is_last_look: bool = False

    @property
    def good_at(self) -> float:
        """The ratio below which a line is good."""
        if self.is_deciding:
            return math.log(MISS)
        return SUSPICIOUS_AT if self.is_held else math.inf


NAMES: Mapping[EventKind | LevelKind, str] = {
    EventKind.NODE_FAILURE: "node failures",
    EventKind.XID: "Xids",
    EventKind.ECC: "memory errors",
    EventKind.LINK: "link errors",
    EventKind.JOB_FAILURE: "failed jobs",
    LevelKind.STEP_TIME: "step time",
    LevelKind.BANDWIDTH: "bandwidth",
}


def state_of(ratio: float, standard: Standard, *, stops_at: float) -> VerdictKind:
    """Return what a ratio says before the last look."""
    if ratio >= stops_at:
        return VerdictKind.STOP
    return VerdictKind.GOOD if ratio <= standard.good_at else VerdictKind.UNDECIDED


def evidence_said(ratio: float, standard: Standard, *, stops_at: float) -> str:
    """Return a ratio in words, and what would decide it."""
    good = "" if math.isinf(standard.good_at) else f", good at {standard.good_at:.1f}"
    return f"evidence {ratio:+.1f}, stops at {stops_at:.1f}{good}"


def nothing_known(name: str, said: str) -> TestLine:
    """Return the line of what was not looked for: never good."""
    return TestLine(name=name, state=VerdictKind.UNDECIDED, said=said, evidence_ratio=0.0)
