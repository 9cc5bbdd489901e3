"""Fleet-wide defects: does one batch, rack, driver version or the fleet itself fail more often than it should?

Time in service and failures in, alarms out. A group is compared with the rest of the fleet, and the fleet with its own
past, each over its own time in service, by the exact conditional test: of all failures, how many would fall into the
group if it failed like the rest (binomial), with Benjamini and Hochberg's rule over all groups that are looked at. A
part counts once a window, so that one lemon is no epidemic. Who is a lemon is `diagnose.lemons`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.diagnose.lemons import benjamini_hochberg

FLEET = "fleet"
"""The kind of group that is everybody, compared with its own past."""
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRules:
    """When a difference is worth a page. All but the rate of false discoveries are marked assumptions."""

    window: timedelta = timedelta(days=90)
    """# Assumption: long enough for a fleet of thousands to show a doubled rate."""
    baseline: timedelta = timedelta(days=365)
    """# Assumption: the past that the fleet is compared with; it ends where the window begins."""
    min_baseline: timedelta = timedelta(days=90)
    """A shorter past is no past."""
    false_discovery_rate: float = 0.01
    min_count: int = 5
    """# Assumption: fewer failed parts are a coincidence that somebody will see by hand."""
    min_ratio: float = 1.5
    """# Assumption: the lower bound of the ratio must reach it; a real but small difference changes no plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Stretches of parts in service, one entry each; seconds since 1970, half-open."""

    part: NDArray[np.int64]
    """Number of the part: the same part has the same number wherever it is."""
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    """Infinite while it continues."""
    labels: Mapping[str, NDArray[np.object_]]
    """Kind of group (batch, rack, driver, ...) -> the group of each interval; empty where nobody knows."""
    groups: Mapping[str, tuple[NDArray[np.str_], NDArray[np.int64]]] = field(init=False, repr=False)
    """Kind -> its groups in order, and the number of each interval's group."""

    def __post_init__(self) -> None:
        lengths = {len(self.part), len(self.begin), len(self.end), *(len(each) for each in self.labels.values())}
        if len(lengths) != 1:
            raise ValueError(f"columns of {sorted(lengths)} entries; expected one entry for each interval")
        if FLEET in self.labels:
            raise ValueError(f"a kind of group is called {FLEET}; that word is for everybody")
        numbered = {kind: np.unique(names.astype(np.str_), return_inverse=True) for kind, names in self.labels.items()}
        object.__setattr__(self, "groups", numbered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failures in any order, one entry each."""

    at: NDArray[np.float64]
    """Seconds since 1970."""
    stretch: NDArray[np.int64]
    """The interval of service that it ended or interrupted: its place in `Service`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRate:
    """One group against its comparison in one window."""

    kind: str
    group: str
    failed_count: int
    """Parts that failed, each once."""
    expected: float
    """How many would have, at the rate of the others (or of the past)."""
    days: float
    """Days in service of all its parts together."""
    rate_per_1000_days: float
    other_rate_per_1000_days: float
    ratio: float
    """Rate over the others' rate; infinite where the others had none."""
    ratio_low: float
    ratio_high: float
    """95 % (Clopper and Pearson)."""
    p_value: float
    """One-sided: so many or more."""
    q_value: float
    is_alarm: bool

    @property
    def explanation(self) -> str:
        """Return it as a sentence."""
        whom = "its own past" if self.kind == FLEET else "the rest of the fleet"
        who = "the fleet" if self.kind == FLEET else f"{self.kind} {self.group}"
        return (
            f"{who} fails {self.ratio:.1f} times as often as {whom} ({self.ratio_low:.1f} to {self.ratio_high:.1f}): "
            f"{self.failed_count} part(s), {self.expected:.1f} expected (p {self.p_value:.1g}, q {self.q_value:.1g})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DefectAlarm:
    """A group when its alarm first went off."""

    at: datetime
    first: GroupRate
    """As it looked then."""
    look_count: int
    """Looks until then, this one included."""


def compare_groups(
    service: Service, failures: Failures, *, at: datetime, rules: AlarmRules | None = None
) -> tuple[GroupRate, ...]:
    """Return every group as it looks at `at`, alarms first, then by p-value. What is later is not known.

    Groups with fewer than `min_count` failed parts are not reported, and those that were never in service, or have
    nothing to be compared with, not tested.
    """
    rules = rules or AlarmRules()
    end = at.timestamp()
    begin = end - rules.window.total_seconds()
    exposure = _days(service, begin, end)
    failed = _failed_once(service, failures, begin, end)
    candidates = [_against_the_past(service, failures, begin=begin, exposure=exposure, failed=failed, rules=rules)]
    for kind, (names, numbers) in service.groups.items():
        candidates += _against_the_rest(kind, names, numbers, exposure, failed)
    there = [each for each in candidates if each is not None]
    # Those that failed too seldom still count as looked at: to choose by what was found would flatter the rest.
    q_values = benjamini_hochberg([each.p_value if each.failed >= rules.min_count else 1.0 for each in there])
    rates = [
        each.rate(q_value, rules)
        for each, q_value in zip(there, q_values, strict=True)
        if each.failed >= rules.min_count
    ]
    return tuple(sorted(rates, key=lambda each: (not each.is_alarm, each.p_value, each.kind, each.group)))


def watch(
    service: Service, failures: Failures, *, looks: Iterable[datetime], rules: AlarmRules | None = None
) -> tuple[DefectAlarm, ...]:
    """Return when each group's alarm first went off, had somebody looked at these times, in their order."""
    first: dict[tuple[str, str], DefectAlarm] = {}
    for number, at in enumerate(sorted(looks), start=1):
        for rate in compare_groups(service, failures, at=at, rules=rules):
            if rate.is_alarm and (rate.kind, rate.group) not in first:
                first[rate.kind, rate.group] = DefectAlarm(at=at, first=rate, look_count=number)
    return tuple(first.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    kind: str
    group: str
    failed: int
    days: float
    other_failed: int
    other_days: float
    p_value: float

    def rate(self, q_value: float, rules: AlarmRules) -> GroupRate:
        share = self.days / (self.days + self.other_days)
        low, high = clopper_pearson(self.failed, self.failed + self.other_failed)
        odds = self.other_days / self.days
        ratio_low, ratio_high = low / (1 - low) * odds, (high / (1 - high) * odds if high < 1 else math.inf)
        other_rate = self.other_failed / self.other_days
        own_rate = self.failed / self.days
        return GroupRate(
            kind=self.kind,
            group=self.group,
            failed_count=self.failed,
            expected=other_rate * self.days if self.kind == FLEET else (self.failed + self.other_failed) * share,
            days=self.days,
            rate_per_1000_days=own_rate * 1000,
            other_rate_per_1000_days=other_rate * 1000,
            ratio=own_rate / other_rate if other_rate > 0 else math.inf,
            ratio_low=ratio_low,
            ratio_high=ratio_high,
            p_value=self.p_value,
            q_value=q_value,
            is_alarm=q_value <= rules.false_discovery_rate and ratio_low >= rules.min_ratio,
        )


def _candidate(
    kind: str, group: str, *, failed: int, days: float, other_failed: int, other_days: float
) -> _Candidate | None:
    if days <= 0 or other_days <= 0:
        return None
    return _Candidate(
        kind=kind,
        group=group,
        failed=failed,
        days=days,
        other_failed=other_failed,
        other_days=other_days,
        p_value=binomial_tail(failed, failed + other_failed, days / (days + other_days)),
    )


def _against_the_rest(
    kind: str,
    names: NDArray[np.str_],
    codes: NDArray[np.int64],
    exposure: NDArray[np.float64],
    failed: NDArray[np.int64],
) -> list[_Candidate | None]:
    days = np.bincount(codes, weights=exposure, minlength=len(names))
    counts = np.bincount(codes[failed], minlength=len(names))
    # Parts of which nobody knows the group are no comparison either.
    known = names != ""
    all_days, all_counts = float(days[known].sum()), int(counts[known].sum())
    return [
        _candidate(
            kind,
            str(names[place]),
            failed=int(counts[place]),
            days=float(days[place]),
            other_failed=all_counts - int(counts[place]),
            other_days=all_days - float(days[place]),
        )
        for place in np.flatnonzero(known)
    ]


def _against_the_past(
    service: Service,
    failures: Failures,
    *,
    begin: float,
    exposure: NDArray[np.float64],
    failed: NDArray[np.int64],
    rules: AlarmRules,
) -> _Candidate | None:
    if not len(service.begin):
        return None
    past = max(begin - rules.baseline.total_seconds(), float(service.begin.min()))
    if begin - past < rules.min_baseline.total_seconds():
        return None
    # The past is cut into windows of the same length: a part counts once in each, as it does now.
    length = rules.window.total_seconds()
    edges = np.arange(begin, past, -length)
    before = [_failed_once(service, failures, max(past, edge - length), float(edge)) for edge in edges]
    return _candidate(
        FLEET,
        FLEET,
        failed=len(failed),
        days=float(exposure.sum()),
        other_failed=sum(len(each) for each in before),
        other_days=float(_days(service, past, begin).sum()),
    )


def _days(service: Service, begin: float, end: float) -> NDArray[np.float64]:
    """Return how many days of [begin, end) each interval was in service."""
    seconds: NDArray[np.float64] = np.minimum(service.end, end) - np.maximum(service.begin, begin)
    return np.maximum(0.0, seconds) / _DAY_SECONDS


def _failed_once(service: Service, failures: Failures, begin: float, end: float) -> NDArray[np.int64]:
    """Return the interval of the first failure of each part that failed in [begin, end)."""
    place = np.flatnonzero((failures.at >= begin) & (failures.at < end))
    stretch = failures.stretch[place]
    order = np.lexsort((stretch, failures.at[place], service.part[stretch]))
    stretch = stretch[order]
    parts = service.part[stretch]
    is_first = np.ones(len(parts), dtype=bool)
    is_first[1:] = parts[1:] != parts[:-1]
    return stretch[is_first]


# -- the exact test -------------------------------------------------------------------------------------------------


def binomial_tail(count: int, total: int, share: float) -> float:
    """Return the probability that `count` or more of `total` fall into a group that has this share."""
    from scipy.special import betainc

    if count <= 0:
        return 1.0
    return float(betainc(count, total - count + 1, min(1.0, max(0.0, share)))) if count <= total else 0.0


def clopper_pearson(count: int, total: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a share of which `count` of `total` were seen. Raises ValueError without any."""
    from scipy.special import betaincinv

    if not 0 <= count <= total or total == 0:
        raise ValueError(f"{count} of {total}; expected a part of one or more")
    side = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, side))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 1 - side))
    return low, high
