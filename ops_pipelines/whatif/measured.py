"""What was measured of ourselves: what each fault is taken for, how long that takes, how long our acts take.

Three tables of `catalogue/`, each written by the program that measured: `python -m bench.diagnosis --write` over
replayed days of known truth, and `python -m bench.latency --write` on the real lab. Nothing here is a target.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from numpy.random import Generator

from ops_pipelines.whatif.draws import Duration, Recorded

CONFUSION_TABLE = "diagnosis_confusion.csv"
DELAYS_TABLE = "diagnosis_delays.csv"
FALSE_ALARMS_TABLE = "diagnosis_false_alarms.csv"
LATENCIES_TABLE = "lab_latencies.csv"
NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the diagnosis said of one fault."""

    rule: str
    """The finding that the incident rested on, as `Finding.rule`; `nothing` where nothing was raised."""
    kind: str
    """What it blamed: a kind of part, a job's program, or nobody in particular."""
    is_culprit_named: bool


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
    """The three tables, ready to draw from."""

    verdicts: Mapping[str, tuple[tuple[Verdict, float], ...]]
    """Per fault class: each verdict with the sum of shares up to it; the last is 1."""
    delays: Mapping[str, Duration]
    """Per fault class: from its onset to the incident."""
    false_isolations: tuple[tuple[str, float], ...]
    """Findings that would take a healthy node out, each with its rate per node-day."""
    latencies: Mapping[str, Duration]
    """Per act (`Verb.value`, and `notice`): how long it took on the lab."""
    sources: tuple[str, ...]
    """Each table with the sha256 of its bytes, shortened."""
    coverage_ratio: float = 1.0
    """Share of what was seen that is seen: below 1 only where somebody asks how much depends on it."""

    @property
    def rules(self) -> frozenset[str]:
        """Every finding that a verdict rests on."""
        named = {verdict.rule for shares in self.verdicts.values() for verdict, _ in shares}
        return frozenset(named | {rule for rule, _ in self.false_isolations}) - {NOTHING}

    def verdict_on(self, fault: str, random: Generator) -> Verdict:
        """Return what the diagnosis makes of a fault of this class this time."""
        if self.coverage_ratio < 1.0 and float(random.random()) >= self.coverage_ratio:
            return Verdict(rule=NOTHING, kind="", is_culprit_named=False)
        at = float(random.random())
        for verdict, bound in self.verdicts[fault]:
            if at < bound:
                return verdict
        return self.verdicts[fault][-1][0]


def read_measured() -> Measured:
    """Return what was measured; raise ValueError where a table is missing something that the simulation draws from."""
    rows = {name: _rows_of(name) for name in (CONFUSION_TABLE, DELAYS_TABLE, FALSE_ALARMS_TABLE, LATENCIES_TABLE)}
    counted: dict[str, list[tuple[Verdict, int]]] = {}
    for row in rows[CONFUSION_TABLE]:
        kind, _, rule = row["taken_for"].rpartition(":")
        verdict = Verdict(rule=rule, kind=kind, is_culprit_named=row["culprit_named"] == "yes")
        counted.setdefault(row["fault"], []).append((verdict, int(row["count"])))
    latencies: dict[str, list[float]] = {}
    for row in rows[LATENCIES_TABLE]:
        latencies.setdefault(row["act"], []).append(float(row["seconds"]))
    return Measured(
        verdicts={fault: _cumulated(found) for fault, found in counted.items()},
        delays={row["fault"]: _Quantiles(_percentiles(row)) for row in rows[DELAYS_TABLE]},
        false_isolations=tuple(
            (row["taken_for"].rpartition(":")[2], int(row["isolates_node_count"]) / float(row["node_days"]))
            for row in rows[FALSE_ALARMS_TABLE]
            if int(row["isolates_node_count"])
        ),
        latencies={act: Recorded.of(seconds) for act, seconds in latencies.items()},
        sources=tuple(f"catalogue/{name} sha256:{_digest_of(name)}" for name in rows),
    )


def _cumulated(found: Sequence[tuple[Verdict, int]]) -> tuple[tuple[Verdict, float], ...]:
    total = sum(count for _, count in found)
    shares: list[tuple[Verdict, float]] = []
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


def _digest_of(name: str) -> str:
    return sha256((files("ops_pipelines.catalogue") / name).read_bytes()).hexdigest()[:16]
