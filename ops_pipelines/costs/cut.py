"""One node's time cut into stretches in which nothing changes, and its GPUs in each given to whoever had them.

Jobs come first: what a job holds is the job's, on a drained node, too. Where more GPUs are claimed than stand there,
the attempt that began later has them. What is left goes to what took it from the scheduler, then it is idle. So each
installed GPU-second falls to one, whatever is claimed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import TypeVar

from ops_pipelines.core.periods import BilledPart
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.costs.holds import Hold
from ops_pipelines.costs.intervals import FATES, RANKS, NodeState
from ops_pipelines.costs.usage import Fate, Owner
from ops_pipelines.teams.price import InstalledNode

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
    """Yield stretches in which the same holds, none longer than its hour of UTC."""
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
    """Return states in the order in which they count; one that is told twice counts once."""
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
