"""What has happened too often on one part, reported as evidence: once for each burst.

Looks back over the evidence of the ledger as far as the catalogue's repeat rules do. How often is too often is
`observe.repeated`; what a repetition calls for is `observe.rules`. Made for the live cycle,
which knows the inventories and who held which node; a part that they do not name is blamed for nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import HOUR, Cluster, hour_of
from ops_pipelines.core.finding import Catalogue, RepeatRule
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import HISTORY_SOURCE, Observation
from ops_pipelines.core.sources import Lake
from ops_pipelines.observe.repeated import Lineage, Repetition, occurrences_of, repeat_rules, repeated, rule_of
from ops_pipelines.observe.rules import find

EVERY = timedelta(minutes=1)
"""How often evidence is counted: a repetition is a matter of hours."""
AT_MOST = 500
"""Observations of one rule that are counted, the newest: a storm is one burst after another, and no history."""
_DIED_BEFORE = timedelta(minutes=2)
"""The driver's line may come after the end of the job that it killed. Assumption: by so much at most."""
_INVENTORY_EVERY = timedelta(hours=6)
"""Who stood where is read so often of the last day, and once a day before: parts are seldom moved."""
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One attempt of a job on its nodes."""

    job: JobId
    nodes: frozenset[NodeName]
    started_at: datetime
    ended_at: datetime | None
    """None: it continues."""
    user: str = ""


@dataclass(slots=True, kw_only=True)
class RepetitionWatch:
    """What a process remembers between two counts, so that an hour without news costs next to nothing."""

    counted_at: datetime | None = None
    _lineage: Lineage = field(default_factory=Lineage)
    _read_hours: tuple[datetime, ...] = ()
    """The hours whose inventories it was read from."""
    _read_nodes: frozenset[NodeName] = frozenset()
    """The nodes whose GPUs it knows."""

    def is_due(self, at: datetime) -> bool:
        """Return whether it is time to count again."""
        return self.counted_at is None or not timedelta(0) <= at - self.counted_at < EVERY

    def lineage(self, lake: Lake, *, nodes: frozenset[NodeName], at: datetime, back: timedelta) -> Lineage:
        """Return which GPU stood where on some nodes before `at`; each is read once an hour. Raises LakeError."""
        from ops_pipelines.observe.seatings import read_seatings

        hours = _inventory_hours(hour_of(at), back=back)
        if self._read_hours != hours:
            self._read_hours, self._read_nodes, self._lineage = hours, frozenset(), Lineage()
        missing = nodes - self._read_nodes
        if missing:
            inventories = {hour: lake.read_hour("inventory", hour) for hour in hours}
            seatings = read_seatings(inventories, nodes=missing)
            self._lineage = Lineage(seatings=(*self._lineage.seatings, *seatings))
            self._read_nodes |= missing
        return self._lineage


def tell_repetitions(
    watch: RepetitionWatch, lake: Lake, cluster: Cluster, *, holds: Iterable[Hold], at: datetime
) -> int:
    """Take into evidence what has repeated too often by `at`; return how much of it is new. Nothing before it is due.

    `holds`: who held which node lately. Raises LakeError and LedgerError.
    """
    if not watch.is_due(at):
        return 0
    watch.counted_at = at
    catalogue = cluster.rules.catalogue
    observations = _recent(cluster, at=at)
    if not observations:
        return 0
    oldest = min(each.observed_at for each in observations)
    nodes = frozenset(each.node for each in observations)
    lineage = watch.lineage(lake, nodes=nodes, at=at, back=at - oldest)
    told = count_repetitions(observations, catalogue, lineage=lineage, holds=holds, at=at)
    evidence = [each.observation() for each in told]
    if not evidence:
        return 0
    return cluster.ledger.take_in(source=HISTORY_SOURCE, observations=evidence, rejected=(), cursor=None, now=at)


def count_repetitions(
    observations: Iterable[Observation],
    catalogue: Catalogue,
    *,
    lineage: Lineage,
    holds: Iterable[Hold],
    at: datetime,
) -> tuple[Repetition, ...]:
    """Return what has repeated too often by `at`. Neither order nor duplicates of observations change anything."""
    holders = _Holders(holds)
    named = (
        each if each.job is not None else replace(each, job=holders.job_on(each.node, each.observed_at))
        for each in observations
    )
    return repeated(occurrences_of((find(each, catalogue) for each in named), lineage), catalogue, at=at)


def _recent(cluster: Cluster, *, at: datetime) -> list[Observation]:
    """Return the evidence of each rule within its own time, of rules that were met often enough to matter."""
    rules = {name: rule.repeat for name, rule in repeat_rules(cluster.rules.catalogue).items()}
    found: list[Observation] = []
    for within, names in _by_length(rules).items():
        listed = cluster.ledger.evidence_since(at - within, rules=names, limit=AT_MOST)
        counts: dict[str, int] = {}
        for each in listed:
            name = rule_of(each.observation) or ""
            counts[name] = counts.get(name, 0) + 1
        enough = {name for name, count in counts.items() if count >= rules[name].count}
        found += [each.observation for each in listed if rule_of(each.observation) in enough]
    return found


def _by_length(rules: Mapping[str, RepeatRule]) -> Mapping[timedelta, list[str]]:
    found: dict[timedelta, list[str]] = {}
    for name, rule in rules.items():
        found.setdefault(rule.within, []).append(name)
    return found


def _inventory_hours(newest: datetime, *, back: timedelta) -> tuple[datetime, ...]:
    """Return the hours whose inventories are read: few, and dense where an installation may have just started."""
    hours = {newest - number * HOUR for number in range(_INVENTORY_EVERY // HOUR)}
    hours |= {newest - number * _INVENTORY_EVERY for number in range(_DAY // _INVENTORY_EVERY + 1)}
    return tuple(sorted(hours | {newest - number * _DAY for number in range(max(0, back // _DAY) + 2)}))


class _Holders:
    """Which job held a node when."""

    def __init__(self, holds: Iterable[Hold]) -> None:
        self._by_node: dict[NodeName, list[Hold]] = {}
        for each in holds:
            for node in each.nodes:
                self._by_node.setdefault(node, []).append(each)

    def job_on(self, node: NodeName, at: datetime) -> JobId | None:
        """Return the job that held a node, or had just left it; None if nobody did, or several that share it."""
        begun = [each for each in self._by_node.get(node, ()) if each.started_at <= at]
        for spare in (timedelta(0), _DIED_BEFORE):
            jobs = {each.job for each in begun if each.ended_at is None or at <= each.ended_at + spare}
            if jobs:
                return jobs.pop() if len(jobs) == 1 else None
        return None
