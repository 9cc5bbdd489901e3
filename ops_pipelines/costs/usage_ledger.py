"""One node's time cut into intervals in which nothing changes, and the usage ledger of all nodes as a table.

Jobs come first: what a job holds is the job's, on a drained node, too. Where more GPUs are claimed than are there, the
attempt that started later has them. What is left belongs to what took it from the scheduler, then it is idle. So each
installed GPU-second belongs to one, whatever is claimed.

What rows mean is `holds`'. No money here. May be asked for an hour, a day or a month: the lines of the parts are those
of the whole.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import TypeVar

import pyarrow as pa

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import BilledPart
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.costs.holds import Begins, Hold, ReadOwner, owner_by_account, read_holds
from ops_pipelines.costs.states import FATES, RANKS, NodeState, check_installed
from ops_pipelines.costs.usage import Fate, Owner, PartUsage, UsageLine, sum_usage
from ops_pipelines.lake.quantities import Refused
from ops_pipelines.teams.price import InstalledAsset, InstalledNode

_HOUR_SECONDS = 3_600
_Key = TypeVar("_Key")


_What = InstalledNode | Hold | NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What GPU-seconds of a node within an hour are added up by."""

    hour: int
    """Whole hours of UTC since 1970."""
    gpu_type: GpuType
    fate: Fate
    owner: Owner | None = None
    job: str = ""
    attempt: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An attempt that claims GPUs which it did not get."""

    job: str
    attempt: str
    hour: int
    is_installed: bool
    """Whether the node stood there; if so, another attempt has the GPUs."""


@dataclass(slots=True)
class NodeCut:
    """One node's seconds while they are added up."""

    shares: dict[Share, int] = field(default_factory=dict)
    unmet: dict[Claim, int] = field(default_factory=dict)
    """GPU-seconds that are in nobody's line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Seconds since 1970, half-open, with what holds in them."""

    since: int
    until: int
    what: _What


def cut_node(
    part: BilledPart, *, stays: Iterable[InstalledNode], states: Iterable[NodeState], holds: Iterable[Hold]
) -> NodeCut:
    """Return what became of one node's GPU-seconds in a part of a month; all is of this node."""
    told: tuple[_What, ...] = (*stays, *states, *holds)
    spans = [span for span in (_span(each, part) for each in told) if span.since < span.until]
    cut = NodeCut()
    for since, until, active in _stretches(spans):
        stay = next((each for each in active if isinstance(each, InstalledNode)), None)
        _give_out(cut, hour=since // _HOUR_SECONDS, seconds=until - since, stay=stay, active=active)
    return cut


def seconds_of(at: datetime) -> int:
    """Return whole seconds since 1970."""
    return int(at.timestamp() // 1)


def installed_seconds(stay: InstalledNode, part: BilledPart) -> int:
    """Return for how many seconds of the part the node stood there."""
    span = _span(stay, part)
    return max(0, span.until - span.since)


def _span(each: _What, part: BilledPart) -> _Span:
    first, last = seconds_of(part.since), seconds_of(part.until)
    until = last if each.until is None else seconds_of(each.until)
    return _Span(since=max(first, seconds_of(each.since)), until=min(last, until), what=each)


def _stretches(spans: Sequence[_Span]) -> Iterator[tuple[int, int, list[_What]]]:
    """Yield intervals in which the same holds, none longer than its hour of UTC."""
    begins: dict[int, list[_Span]] = {}
    edges: set[int] = set()
    for span in spans:
        begins.setdefault(span.since, []).append(span)
        edges |= {span.since, span.until}
        edges.update(range(span.since - span.since % _HOUR_SECONDS + _HOUR_SECONDS, span.until, _HOUR_SECONDS))
    active: list[_Span] = []
    ordered = sorted(edges)
    for since, until in pairwise(ordered):
        active = [span for span in active if span.until > since] + begins.get(since, [])
        if active:
            yield since, until, [span.what for span in active]


def _give_out(
    cut: NodeCut,
    *,
    hour: int,
    seconds: int,
    stay: InstalledNode | None,
    active: Sequence[_What],
) -> None:
    left = 0 if stay is None else stay.gpu_count
    gpu_type = GpuType("") if stay is None else stay.gpu_type
    for hold in _later_first(active):
        had = min(hold.gpu_count, left)
        left -= had
        share = _held(hold, hour=hour, gpu_type=gpu_type)
        _add(cut.shares, share, had * seconds)
        claim = Claim(job=hold.job, attempt=hold.attempt, hour=hour, is_installed=stay is not None)
        _add(cut.unmet, claim, (hold.gpu_count - had) * seconds)
    for state in _weightiest_first(active):
        taken = left if state.gpu_count is None else min(state.gpu_count, left)
        left -= taken
        cause = state.cause or state.condition.value
        _add(cut.shares, Share(hour=hour, gpu_type=gpu_type, fate=FATES[state.condition], cause=cause), taken * seconds)
    _add(cut.shares, Share(hour=hour, gpu_type=gpu_type, fate=Fate.IDLE), left * seconds)


def _held(hold: Hold, *, hour: int, gpu_type: GpuType) -> Share:
    is_test = hold.owner is None
    return Share(
        hour=hour,
        gpu_type=gpu_type,
        fate=Fate.OVERHEAD if is_test else Fate.ALLOCATED,
        owner=hold.owner,
        job=hold.job,
        attempt=hold.attempt,
        cause="test" if is_test else "",
    )


def _later_first(active: Iterable[_What]) -> list[Hold]:
    holds = [each for each in active if isinstance(each, Hold)]
    return sorted(holds, key=lambda each: (each.began_at, each.job, each.attempt), reverse=True)


def _weightiest_first(active: Iterable[_What]) -> list[NodeState]:
    """Return states in the order in which they count; one that is reported twice counts once."""
    states: dict[tuple[int, str], NodeState] = {}
    for each in active:
        if isinstance(each, NodeState):
            key = (RANKS[each.condition], each.cause)
            before = states.get(key)
            if before is None or _takes(each) > _takes(before):
                states[key] = each
    return [states[key] for key in sorted(states)]


def _takes(state: NodeState) -> float:
    return float("inf") if state.gpu_count is None else state.gpu_count


def _add(sums: dict[_Key, int], key: _Key, seconds: int) -> None:
    if seconds:
        sums[key] = sums.get(key, 0) + seconds


# -- the usage ledger as a table --


SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("node", pa.string(), nullable=False),
        pa.field("gpu_type", pa.string(), nullable=False),
        pa.field("fate", pa.string(), nullable=False),
        pa.field("team", pa.string()),
        pa.field("project", pa.string()),
        pa.field("job", pa.string(), nullable=False),
        pa.field("attempt", pa.string(), nullable=False),
        pa.field("cause", pa.string(), nullable=False),
        pa.field("gpu_seconds", pa.int64(), nullable=False),
        pa.field("used_gpu_seconds", pa.int64()),
    ]
)
"""`team` and `project` are null of what no team held; `used_gpu_seconds` where nobody measured."""


def usage_table(lines: Sequence[UsageLine]) -> pa.Table:
    """Return the lines as a table, in their order."""
    rows = [_row(line) for line in lines]
    columns = {name: pa.array([row[name] for row in rows], SCHEMA.field(name).type) for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA)


def _row(line: UsageLine) -> dict[str, object]:
    return {
        "time": line.since,
        "node": line.node,
        "gpu_type": line.gpu_type,
        "fate": line.fate.value,
        "team": None if line.owner is None else line.owner.team,
        "project": None if line.owner is None else line.owner.project,
        "job": line.job,
        "attempt": line.attempt,
        "cause": line.cause,
        "gpu_seconds": line.gpu_seconds,
        "used_gpu_seconds": line.used_gpu_seconds,
    }


# -- tables of the lake and the register of assets -> the usage ledger --


_HOUR = timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EFFICIENCY = ("node", "job", "time", "utilisation_ratio")
_Each = TypeVar("_Each", InstalledNode, NodeState, Hold)
UsedRatios = Mapping[tuple[str, str, int], Fraction]
"""(node, job, hour since 1970) -> the share of time in which a kernel was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLedger:
    """What became of all that stood in the cluster in a part of a month."""

    part: BilledPart
    lines: tuple[UsageLine, ...]
    installed: tuple[InstalledAsset, ...]
    refused: tuple[Refused, ...]
    """Rows that were not believed, and time that was claimed and not given, with the reason."""
    begins: Begins = field(default_factory=dict)
    """Attempts that were read, for anyone who reads the next part."""

    @property
    def installed_by_type(self) -> dict[GpuType, int]:
        """GPU-seconds."""
        found: dict[GpuType, int] = {}
        for each in self.installed:
            found[each.gpu_type] = found.get(each.gpu_type, 0) + each.gpu_seconds
        return found

    def summed(self) -> PartUsage:
        """Return the lines added up by who bears them; they are checked against what was installed."""
        return sum_usage(self.part, self.lines, installed=self.installed_by_type)


def read_usage(
    part: BilledPart,
    *,
    nodes: Sequence[InstalledNode],
    states: Iterable[NodeState],
    allocations: pa.Table,
    efficiency: pa.Table | None = None,
    owner_of: ReadOwner = owner_by_account,
    begun: Begins | None = None,
) -> UsageLedger:
    """Return the ledger of a part of a month. Rows and intervals may reach beyond it, and come in any order.

    `allocations`, `efficiency`: rows of job_allocations and gpu_efficiency. Without the second nothing is reported of
    what was used. `begun`: attempts that parts before this one have seen (`UsageLedger.begins`). Who reads a month day
    by day hands them on, else an attempt without an end would come to life again on the day after its requeue. Raises
    ValueError where a node is installed twice at one time.
    """
    check_installed(nodes)
    read = read_holds(allocations, part=part, owner_of=owner_of, begun=begun)
    stays_of = _by_node(nodes)
    states_of = _by_node(states)
    holds_of = _by_node(read.holds)
    used, wrong = ({}, []) if efficiency is None else _used_ratios(efficiency)
    lines: list[UsageLine] = []
    refused = list(read.refused)
    for node in sorted({*stays_of, *holds_of}):
        cut = cut_node(part, stays=stays_of.get(node, ()), states=states_of.get(node, ()), holds=holds_of.get(node, ()))
        lines += _lines(node, cut, part=part, used=used)
        refused += [_refused(node, claim, seconds) for claim, seconds in cut.unmet.items()]
    return UsageLedger(
        part=part,
        lines=tuple(lines),
        installed=_installed(part, nodes),
        refused=tuple(sorted((*refused, *wrong), key=lambda each: (each.record, each.reason))),
        begins=read.begins,
    )


def _by_node(things: Iterable[_Each]) -> dict[NodeName, list[_Each]]:
    found: dict[NodeName, list[_Each]] = {}
    for each in things:
        found.setdefault(each.node, []).append(each)
    return found


def _installed(part: BilledPart, nodes: Iterable[InstalledNode]) -> tuple[InstalledAsset, ...]:
    sums: dict[tuple[str, GpuType], tuple[int, int]] = {}
    for each in nodes:
        seconds = installed_seconds(each, part)
        node_seconds, gpu_seconds = sums.get((each.asset, each.gpu_type), (0, 0))
        sums[each.asset, each.gpu_type] = node_seconds + seconds, gpu_seconds + seconds * each.gpu_count
    return tuple(
        InstalledAsset(asset=asset, gpu_type=gpu_type, node_seconds=node_seconds, gpu_seconds=gpu_seconds)
        for (asset, gpu_type), (node_seconds, gpu_seconds) in sorted(sums.items())
        if node_seconds
    )


def _used_ratios(efficiency: pa.Table) -> tuple[UsedRatios, list[Refused]]:
    """Return what was measured. Utilisation alone says "not busy" and never "busy": what it leaves out is wasted."""
    found: dict[tuple[str, str, int], Fraction] = {}
    wrong: list[Refused] = []
    for row in efficiency.select(list(_EFFICIENCY)).to_pylist():
        ratio = row["utilisation_ratio"]
        if ratio is None:
            continue
        if math.isfinite(ratio) and 0 <= ratio <= 1:
            found[row["node"], row["job"], (row["time"] - _EPOCH) // _HOUR] = Fraction(ratio)
        else:
            wrong.append(_impossible(row["node"], row["job"], row["time"], ratio))
    return found, wrong


def _impossible(node: str, job: str, hour: datetime, ratio: float) -> Refused:
    return Refused(
        record=f"{job} {node} {hour:%Y-%m-%dT%H:%M:%S}",
        reason="utilisation_impossible",
        detail=f"utilisation is {ratio:g}; expected 0 to 1, and counted these hours as not measured",
        text="",
        into="usage_ledger",
        at=hour,
    )


def _lines(node: NodeName, cut: NodeCut, *, part: BilledPart, used: UsedRatios) -> list[UsageLine]:
    ordered = sorted(cut.shares, key=_names)
    return [
        UsageLine(
            since=max(part.since, _EPOCH + share.hour * _HOUR),
            node=node,
            gpu_type=share.gpu_type,
            fate=share.fate,
            gpu_seconds=cut.shares[share],
            owner=share.owner,
            job=share.job,
            attempt=share.attempt,
            cause=share.cause,
            used_gpu_seconds=_used(share, cut.shares[share], used.get((node, share.job, share.hour))),
        )
        for share in ordered
    ]


def _names(share: Share) -> tuple[int, str, str, str, str, str, str, str]:
    team, project = ("", "") if share.owner is None else (share.owner.team, share.owner.project)
    return share.hour, share.fate.value, team, project, share.job, share.attempt, share.cause, share.gpu_type


def _used(share: Share, gpu_seconds: int, ratio: Fraction | None) -> int | None:
    if ratio is None or share.fate is not Fate.ALLOCATED:
        return None
    return math.floor(gpu_seconds * ratio + Fraction(1, 2))


def _refused(node: NodeName, claim: Claim, seconds: int) -> Refused:
    hour = _EPOCH + claim.hour * _HOUR
    if claim.is_installed:
        reason, detail = "taken_by_later_attempt", "more GPUs are claimed than stand there; counted the later attempt"
    else:
        reason, detail = (
            "node_not_installed",
            "the register of assets has no such node at that time; nobody pays for it",
        )
    return Refused(
        record=f"{claim.job} {claim.attempt} {node} {hour:%Y-%m-%dT%H:%M:%S}",
        reason=reason,
        detail=f"{seconds} GPU-seconds: {detail}",
        text="",
        into="usage_ledger",
        at=hour,
    )
