"""A month of a small cluster accounted for second by second, beside the usage ledger: they must agree exactly.

The other accounting knows no stretches: each node has an entry for each second, and GPUs are taken from it one claim
after the other. The month has the night in which the clock is set back; jobs and failures reach beyond both its ends.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import whole_month
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.costs.gather_usage import find_attempt_faults
from ops_pipelines.costs.states import FATES, Condition, NodeState
from ops_pipelines.costs.usage import Fate, UsageLine, cost_month, days_of, join_usage
from ops_pipelines.costs.usage_ledger import read_usage
from ops_pipelines.lake.accounting import allocations_of
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.teams.price import InstalledNode

BERLIN = ZoneInfo("Europe/Berlin")
MONTH = cost_month(2026, 10, zone=BERLIN)
SECONDS = MONTH.seconds
GPUS = 8
HOUR = 3600
DAY = timedelta(days=1)
Key = tuple[str, int, str, str, str, str, str]
"""Node, hour of the month, fate, team, job, attempt, cause."""
Counts = NDArray[np.int16]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt as it was; in the books an end may be missing where the job was requeued."""

    job: str
    account: str
    nodes: tuple[str, ...]
    gpus_per_node: int
    since: int
    """Seconds since the begin of the month; may be before it."""
    until: int
    is_end_known: bool = True

    @property
    def name(self) -> str:
        return f"{at(self.since):%Y-%m-%dT%H:%M:%S}"

    @property
    def row(self) -> Mapping[str, object]:
        return {
            "job": self.job,
            "attempt": self.name,
            "time": at(self.since),
            "account": self.account or None,
            "started_at": at(self.since),
            "ended_at": at(self.until) if self.is_end_known else None,
            "gpu_count": self.gpus_per_node * len(self.nodes),
            "nodes": ",".join(self.nodes),
            "source": "sacct",
        }


def at(second: int) -> datetime:
    return MONTH.begins_at + timedelta(seconds=second)


class Cluster:
    """Twenty nodes of which two come and one goes in the month, with jobs, requeues and failures by chance."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        names = [f"gpu{number:03d}" for number in range(1, 21)]
        self.nodes = [self._node(number, name) for number, name in enumerate(names)]
        self.attempts = [each for number in range(160) for each in self._attempts(f"{number + 1}", names)]
        self.states = [self._state(self._chance.choice(names)) for _ in range(90)]

    def _node(self, number: int, name: str) -> InstalledNode:
        since = at(self._second(0, SECONDS // 2)) if number < 2 else MONTH.begins_at - 90 * DAY
        until = at(self._second(SECONDS // 2, SECONDS)) if number in (1, 2) else None
        kind = GpuType("h100" if number % 4 else "a100")
        return InstalledNode(node=NodeName(name), asset="hgx", gpu_type=kind, gpu_count=GPUS, since=since, until=until)

    def _second(self, low: int, high: int) -> int:
        """Return a second; each third is the begin of an hour, or a second beside it."""
        second = self._chance.randrange(low, high)
        return second if self._chance.random() < 2 / 3 else second // HOUR * HOUR + self._chance.choice((-1, 0, 1))

    def _attempts(self, job: str, names: Sequence[str]) -> Iterator[Attempt]:
        since = until = self._second(-3 * 24 * HOUR, SECONDS)
        account = self._chance.choice(("alpha", "beta", "gamma", ""))
        for number in range(self._chance.choice((1, 1, 1, 2, 3))):
            if number:
                since = until + self._chance.choice((0, 1, 600))
            until = since + self._chance.choice((1, 59, 3600, 40_000, 200_000)) + self._chance.randrange(5000)
            yield Attempt(
                job=job,
                account=account,
                nodes=tuple(sorted(self._chance.sample(names, self._chance.choice((1, 1, 2, 4))))),
                gpus_per_node=self._chance.choice((1, 2, 4, 8)),
                since=since,
                until=until,
            )

    def _state(self, name: str) -> NodeState:
        since = self._second(-24 * HOUR, SECONDS)
        lasts = self._chance.choice((1, 900, 7200, 100_000))
        condition = self._chance.choice(tuple(Condition))
        return NodeState(
            node=NodeName(name),
            condition=condition,
            since=at(since),
            until=None if self._chance.random() < 0.05 else at(since + lasts),
            cause=self._chance.choice(("", "INC-1", "INC-2")),
            gpu_count=self._chance.choice((None, None, 1, 3)),
        )


def by_the_second(cluster: Cluster) -> dict[Key, int]:
    """Return GPU-seconds by taking them from each second of each node, one claim after the other."""
    found: dict[Key, int] = {}
    for node in cluster.nodes:
        left = np.zeros(SECONDS, dtype=np.int16)
        left[_span(node.since, node.until)] = node.gpu_count
        own = [each for each in cluster.attempts if node.node in each.nodes]
        for each in sorted(own, key=lambda one: (one.since, one.job, one.name), reverse=True):
            fate, team = Fate.ALLOCATED.value, each.account or "unknown team"
            span = _span(at(each.since), at(each.until))
            _take(found, left, span, each.gpus_per_node, key=(node.node, fate, team, each.job, each.name, ""))
        for condition in Condition:
            told = [each for each in cluster.states if each.node == node.node and each.condition is condition]
            for cause in sorted({each.cause for each in told}):
                most = np.zeros(SECONDS, dtype=np.int16)
                for each in told:
                    if each.cause == cause:
                        part = most[_span(each.since, each.until)]
                        np.maximum(part, GPUS if each.gpu_count is None else each.gpu_count, out=part)
                key = (node.node, FATES[condition].value, "", "", "", cause or condition.value)
                _take(found, left, slice(0, SECONDS), most, key=key)
        _take(found, left, slice(0, SECONDS), GPUS, key=(node.node, Fate.IDLE.value, "", "", "", ""))
        assert not left.any()
    return found


def _span(since: datetime, until: datetime | None) -> slice:
    first = (since - MONTH.begins_at) // timedelta(seconds=1)
    last = SECONDS if until is None else (until - MONTH.begins_at) // timedelta(seconds=1)
    return slice(max(0, first), max(0, min(SECONDS, last)))


def _take(
    found: dict[Key, int], left: Counts, span: slice, count: int | Counts, *, key: tuple[str, str, str, str, str, str]
) -> None:
    if span.start >= span.stop:
        return
    taken = np.minimum(left[span], count)
    left[span] -= taken
    first = span.start // HOUR
    begins = [max(span.start, hour * HOUR) - span.start for hour in range(first, (span.stop - 1) // HOUR + 1)]
    node, fate, team, job, attempt, cause = key
    for number, gpu_seconds in enumerate(np.add.reduceat(taken, begins, dtype=np.int64).tolist()):
        if gpu_seconds:
            place = (node, first + number, fate, team, job, attempt, cause)
            found[place] = found.get(place, 0) + gpu_seconds


def by_lines(lines: Sequence[UsageLine]) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for line in lines:
        hour = (line.since - MONTH.begins_at) // timedelta(hours=1)
        team = "" if line.owner is None else line.owner.team
        key = (line.node, hour, line.fate.value, team, line.job, line.attempt, line.cause)
        found[key] = found.get(key, 0) + line.gpu_seconds
    return found


def rows_of(attempts: Sequence[Attempt], *, start: datetime, end: datetime) -> pa.Table:
    return allocations_of(TABLES["job_accounting"].from_rows([each.row for each in attempts]), start=start, end=end)


def test_every_second_of_a_month_is_where_the_ledger_says() -> None:
    cluster = Cluster(1)
    part = whole_month(MONTH)
    rows = rows_of(cluster.attempts, start=part.since - 4 * DAY, end=part.until + DAY)

    found = read_usage(part, nodes=cluster.nodes, states=cluster.states, allocations=rows)

    assert SECONDS == 745 * HOUR
    assert by_lines(found.lines) == by_the_second(cluster)
    assert not find_attempt_faults(found, rows).counted_twice
    assert find_attempt_faults(found, rows).lost == ()


def test_days_read_one_after_the_other_are_the_month() -> None:
    cluster = Cluster(3)
    part = whole_month(MONTH)
    lines: list[UsageLine] = []
    pieces = []
    begun = None
    for _, day in days_of(part, zone=BERLIN):
        rows = rows_of(cluster.attempts, start=day.since, end=day.until)
        read = read_usage(day, nodes=cluster.nodes, states=cluster.states, allocations=rows, begun=begun)
        begun = {**(begun or {}), **read.begins}
        lines += read.lines
        pieces.append(read.summed())

    expected = by_the_second(cluster)
    assert by_lines(lines) == expected
    assert sum(join_usage(part, pieces).installed.values()) == sum(expected.values())


def test_an_attempt_that_never_got_an_end_has_it_where_its_job_began_anew() -> None:
    first = Attempt(
        job="9", account="alpha", nodes=("gpu005",), gpus_per_node=8, since=-HOUR, until=7200, is_end_known=False
    )
    second = Attempt(job="9", account="alpha", nodes=("gpu006",), gpus_per_node=8, since=7200, until=9000)
    cluster = Cluster(4)
    cluster.attempts, cluster.states, cluster.nodes = [first, second], [], cluster.nodes[4:6]
    part = whole_month(MONTH)
    rows = rows_of(cluster.attempts, start=part.since - DAY, end=part.since + DAY)

    found = read_usage(part, nodes=cluster.nodes, states=cluster.states, allocations=rows)

    assert by_lines(found.lines) == by_the_second(cluster)
    assert {each.reason for each in found.refused} == {"attempt_was_requeued"}
