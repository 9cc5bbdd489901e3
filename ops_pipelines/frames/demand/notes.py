"""What of the demand does not count, could not be told, or was put right, in words for whoever reads it.

Numbers come from the modules that found them; here they are counted, ordered and said.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.frames.demand.attempts import Attempts
from ops_pipelines.frames.demand.gpu_types import UNTOLD, GpuTypes
from ops_pipelines.frames.demand.groups import Weighed
from ops_pipelines.frames.demand.recorded_rows import Floats
from ops_pipelines.frames.demand.unended import WithRunning
from ops_pipelines.frames.demand.waits import COUNTS, Waits

_MOST_NAMES = 5


def about_waits(waits: Waits, why_not: Sequence[str], *, gpu_hours: Floats) -> list[str]:
    """Return what does not count, by why, with the GPU-hours of each within the stretch."""
    sums: defaultdict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for why, amount in zip(why_not, gpu_hours.tolist(), strict=True):
        if why != COUNTS and amount > 0:
            sums[why] += amount
            counts[why] += 1
    found = [
        f"not counted: {sums[why]:.1f} GPU-hours of {_many(counts[why], 'wait')} ({why})"
        for why in sorted(sums, key=lambda each: (-sums[each], each))
    ]
    for reason, count in waits.unknown_reasons.items():
        found.append(
            f"{_many(count, 'wait')} counted, though nobody knows the reason {reason!r}: add it to wait_reasons"
        )
    if waits.stale:
        found.append(f"{_many(waits.stale, 'row')} of waiting jobs passed over: later rows say that the jobs ran")
    return found


def about_attempts(attempts: Attempts, running: WithRunning) -> list[str]:
    """Return what was put right of single attempts."""
    found = []
    if attempts.refused:
        reasons = Counter(each.reason for each in attempts.refused)
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        found.append(f"{_many(len(attempts.refused), 'row')} of {attempts.read} refused: {listed}")
    if attempts.overlapping:
        found.append(f"two attempts at once, the earlier ended where the later starts: {_some(attempts.overlapping)}")
    if attempts.contradicting:
        found.append(f"one attempt told in two ways, the later end counted: {_some(attempts.contradicting)}")
    if attempts.unclear_arrays:
        found.append(f"arrays whose waiting tasks are not all listed: {_some(attempts.unclear_arrays)}")
    if running.unseen:
        ended = _many(running.unseen, "attempt")
        found.append(f"{ended} without an end taken as ended after the last hour with allocations")
    if running.alone:
        found.append(f"{_many(running.alone, 'attempt')} known from allocations alone: their waits are not told")
    return found


def about_types(weighed: Weighed, types: GpuTypes, *, running: Floats, waiting: Floats) -> list[str]:
    """Return what is of no type though the cluster has several; the numbers are GPU-hours a row."""
    if types.only is not None and not types.by_node:
        return []
    untold = [kind == UNTOLD for _, kind in weighed.groups]
    found = []
    for what, group, amounts, where in (
        ("ran", weighed.running.group, running, "nodes"),
        ("waited", weighed.waiting.group, waiting, "partition"),
    ):
        amount = sum(each for number, each in zip(group.tolist(), amounts.tolist(), strict=True) if untold[number])
        if amount > 0:
            found.append(f"{amount:.1f} GPU-hours {what} of no known type: no type is told for their {where}")
    return found


def about_waste(beyond: Iterable[tuple[TeamName, GpuType, float]], *, nobody: float) -> list[str]:
    """Return what verdicts say and cannot be: idle GPUs of nobody, and more than ran."""
    found = [f"{nobody:.1f} idle GPU-hours of rows without an account are in no team"] if nobody > 0 else []
    for team, kind, amount in beyond:
        named = f"{team} ({kind})" if kind else team
        found.append(f"{named}: verdicts say {amount:.1f} idle GPU-hours more than it ran; bounded by what ran")
    return found


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
