"""What was measured of ourselves: what each fault is taken for, how long that takes, how long our acts take; and
durations that vary, as distributions from which a seeded generator draws. Seconds.

Tables of `catalogue/`, each written by the program that measured: `python -m bench.diagnosis --write` over replayed
days of known truth, and `python -m bench.lab_latencies --write` from the ledger of the real lab. None is a target.

How long our own acts keep a job, from the incident to its hold and from its hold to its release, is
`catalogue/lab_latencies.csv`: the acts by their verb, and what lies between them, which is more. `first_act` is from
the incident to the first act's begin (the drain, within the sensor's tick), `run_start` from that drain to the next act
(a run has to be launched), `between_acts` from one act's end to the next one's begin. A verb that the lab never needed
takes no time of its own.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Protocol

from numpy.random import Generator

from ops_pipelines.core.action import Action, Verb


class Duration(Protocol):
    """How long something takes."""

    def draw(self, random: Generator) -> float:
        """Return one duration in seconds, 0 or more."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    seconds: float

    def draw(self, random: Generator) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Between:
    """Any time between two bounds, alike likely: of a poll that meets its event at random."""

    low_seconds: float
    high_seconds: float

    def draw(self, random: Generator) -> float:
        return float(random.uniform(self.low_seconds, self.high_seconds))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Of people: mostly near the median, at times many times as long."""

    median_seconds: float
    sigma: float

    def draw(self, random: Generator) -> float:
        return self.median_seconds * math.exp(self.sigma * float(random.standard_normal()))


@dataclass(frozen=True, slots=True)
class Exponential:
    """Of what may end at any moment."""

    mean_seconds: float

    def draw(self, random: Generator) -> float:
        return float(random.exponential(self.mean_seconds))


@dataclass(frozen=True, slots=True)
class Recorded:
    """One of the durations that were measured, each as likely as the next."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("a recorded distribution needs at least one duration")

    def draw(self, random: Generator) -> float:
        return self.seconds[int(random.integers(len(self.seconds)))]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Recorded":
        return cls(tuple(seconds))


FIRST_ACT, RUN_START, BETWEEN_ACTS = "first_act", "run_start", "between_acts"


def seconds_until_hold(actions: Sequence[Action], latencies: Mapping[str, Duration], random: Generator) -> float:
    """Return the seconds from a plan to its first hold: drained in the same tick, then in a run of its own."""
    before = [action.verb for action in actions[: _first(actions, Verb.HOLD)]]
    seconds = _draw(FIRST_ACT, latencies, random) + _draw(RUN_START, latencies, random)
    if before[:1] == [Verb.DRAIN]:
        seconds += _draw(Verb.DRAIN.value, latencies, random)
        before = before[1:]
    return seconds + sum(_one(verb, latencies, random) for verb in before)


def seconds_held(actions: Sequence[Action], latencies: Mapping[str, Duration], random: Generator) -> float:
    """Return the seconds from a plan's first hold to its last release: the job waits all that time."""
    releases = [place for place, action in enumerate(actions) if action.verb is Verb.RELEASE]
    held = actions[_first(actions, Verb.HOLD) : releases[-1] + 1] if releases else ()
    return sum(_one(action.verb, latencies, random) for action in held)


def _first(actions: Sequence[Action], verb: Verb) -> int:
    return next((place for place, action in enumerate(actions) if action.verb is verb), len(actions))


def _one(verb: Verb, latencies: Mapping[str, Duration], random: Generator) -> float:
    return _draw(verb.value, latencies, random) + _draw(BETWEEN_ACTS, latencies, random)


def _draw(act: str, latencies: Mapping[str, Duration], random: Generator) -> float:
    known = latencies.get(act)
    return 0.0 if known is None else known.draw(random)


CONFUSION_TABLE = "diagnosis_confusion.csv"
CASES_TABLE = "diagnosis_cases.csv"
DELAYS_TABLE = "diagnosis_delays.csv"
FALSE_ALARMS_TABLE = "diagnosis_false_alarms.csv"
LATENCIES_TABLE = "lab_latencies.csv"
NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """What the diagnosis stated of one fault."""

    rule: str
    """The finding that the incident rested on, as `Finding.rule`; `nothing` where nothing was raised."""
    kind: str
    """What it blamed: a kind of part, a job's program, or nobody in particular."""
    is_culprit_named: bool

    @classmethod
    def none(cls) -> "Classification":
        """Nothing was seen."""
        return cls(rule=NOTHING, kind="", is_culprit_named=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One piece of evidence of an incident."""

    rule: str
    """As `Finding.rule`."""
    code: int | None
    """Of what has a state besides its name: what the driver asks for, how many GPUs are gone."""
    after_seconds: float
    """From the incident's opening."""

    @classmethod
    def read(cls, token: str) -> "Sign":
        """Return what `rule[=code]@seconds` says; raise ValueError for anything else."""
        named, _, after = token.partition("@")
        rule, _, code = named.partition("=")
        return cls(rule=rule, code=int(code) if code else None, after_seconds=float(after))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One fault of a replayed day: when it was raised, and what that came to rest on."""

    seconds: float
    """From its onset to the incident."""
    signs: tuple[Sign, ...]


@dataclass(frozen=True, slots=True)
class _Quantiles:
    """A distribution known at equally spaced quantiles: any point between two neighbours is as likely."""

    seconds: tuple[float, ...]

    def draw(self, random: Generator) -> float:
        place = float(random.random()) * (len(self.seconds) - 1)
        below = min(int(place), len(self.seconds) - 2)
        return self.seconds[below] + (place - below) * (self.seconds[below + 1] - self.seconds[below])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The tables, ready to draw from."""

    verdicts: Mapping[str, tuple[tuple[Classification, float], ...]]
    """Per fault class: each verdict with the sum of shares up to it; the last is 1."""
    cases: Mapping[tuple[str, Classification], tuple[Case, ...]]
    """Per fault class and verdict: the faults of the replayed days that came to it."""
    delays: Mapping[str, Duration]
    """Per fault class: from its onset to the incident."""
    false_isolations: tuple[tuple[str, float], ...]
    """Findings that would take a healthy node out, each with its rate per node-day."""
    latencies: Mapping[str, Duration]
    """Per act (`Verb.value`) and per pause (`pace`): how long it took on the lab."""
    sources: tuple[str, ...]
    """Each table with the sha256 of its bytes, shortened."""
    coverage_ratio: float = 1.0
    """Share of what was seen that is seen: below 1 only where somebody asks how much depends on it."""

    @property
    def rules(self) -> frozenset[str]:
        """Every finding that a verdict rests on."""
        named = {verdict.rule for shares in self.verdicts.values() for verdict, _ in shares}
        seen = {sign.rule for cases in self.cases.values() for case in cases for sign in case.signs}
        return frozenset(named | seen | {rule for rule, _ in self.false_isolations}) - {NOTHING}

    def case_of(self, fault: str, verdict: Classification, random: Generator) -> Case:
        """Return how this came to this verdict this time; where no case is kept, its one rule after a usual delay."""
        known = self.cases.get((fault, verdict), ())
        if known:
            return known[int(random.integers(len(known)))]
        delay = self.delays[fault].draw(random) if fault in self.delays else 0.0
        return Case(seconds=delay, signs=(Sign(rule=verdict.rule, code=None, after_seconds=0.0),))

    def verdict_on(self, fault: str, random: Generator) -> Classification:
        """Return what the diagnosis makes of a fault of this class this time."""
        if self.coverage_ratio < 1.0 and float(random.random()) >= self.coverage_ratio:
            return Classification.none()
        at = float(random.random())
        for verdict, bound in self.verdicts[fault]:
            if at < bound:
                return verdict
        return self.verdicts[fault][-1][0]


def read_measured() -> Measured:
    """Return what was measured; raise ValueError where a table is missing something that the simulation draws from."""
    names = (CONFUSION_TABLE, CASES_TABLE, DELAYS_TABLE, FALSE_ALARMS_TABLE, LATENCIES_TABLE)
    rows = {name: _rows_of(name) for name in names}
    counted: dict[str, list[tuple[Classification, int]]] = {}
    for row in rows[CONFUSION_TABLE]:
        counted.setdefault(row["fault"], []).append((_verdict_of(row), int(row["count"])))
    cases: dict[tuple[str, Classification], list[Case]] = {}
    for row in rows[CASES_TABLE]:
        signs = tuple(map(Sign.read, row["evidence"].split()))
        if signs:
            case = Case(seconds=float(row["seconds"]), signs=signs)
            cases.setdefault((row["fault"], _verdict_of(row)), []).append(case)
    latencies: dict[str, list[float]] = {}
    for row in rows[LATENCIES_TABLE]:
        latencies.setdefault(row["act"], []).append(float(row["seconds"]))
    return Measured(
        verdicts={fault: _cumulated(found) for fault, found in counted.items()},
        cases={key: tuple(found) for key, found in cases.items()},
        delays={row["fault"]: _Quantiles(_percentiles(row)) for row in rows[DELAYS_TABLE]},
        false_isolations=tuple(
            (row["taken_for"].rpartition(":")[2], int(row["isolates_node_count"]) / float(row["node_days"]))
            for row in rows[FALSE_ALARMS_TABLE]
            if int(row["isolates_node_count"])
        ),
        latencies={act: Recorded.of(seconds) for act, seconds in latencies.items()},
        sources=tuple(source_of(name) for name in rows),
    )


def source_of(name: str) -> str:
    """Return a table of the catalogue with the sha256 of its bytes, shortened."""
    digest = sha256((files("ops_pipelines.catalogue") / name).read_bytes()).hexdigest()
    return f"catalogue/{name} sha256:{digest[:16]}"


def _verdict_of(row: Mapping[str, str]) -> Classification:
    kind, _, rule = row["taken_for"].rpartition(":")
    return Classification(rule=rule, kind=kind, is_culprit_named=row["culprit_named"] == "yes")


def _cumulated(found: Sequence[tuple[Classification, int]]) -> tuple[tuple[Classification, float], ...]:
    total = sum(count for _, count in found)
    shares: list[tuple[Classification, float]] = []
    so_far = 0
    for verdict, count in found:
        so_far += count
        shares.append((verdict, so_far / total))
    return tuple(shares)


def _percentiles(row: Mapping[str, str]) -> tuple[float, ...]:
    return tuple(float(value) for name, value in row.items() if name.startswith("p") and name.endswith("_seconds"))


def _rows_of(name: str) -> list[dict[str, str]]:
    text = (files("ops_pipelines.catalogue") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
