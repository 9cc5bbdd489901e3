"""The rows of the page of quotas: what each team has, gets, uses and wants, as bars, marks, curves and words.

Measures and orders; the page around it is `pages.quotas`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.core.proposal import (
    GpuType,
    ProposalRecord,
    ProposalState,
    ProposedQuota,
    QuotaProposal,
    SupplyLine,
    TeamName,
)
from ops_pipelines.report.document import clipped
from ops_pipelines.report.numbers import gpus, part_of, signed

PROPOSALS_SHOWN = 14
"""So many days back the small curves and the list reach."""
HALF_WAY = frozenset(
    {ProposalState.APPLYING, ProposalState.HALF_APPLIED, ProposalState.UNDOING, ProposalState.HALF_UNDONE}
)
"""What is in of these, only the scheduler knows."""
_ROWS_OPEN = 30
"""More rows than these are folded: nobody reads two hundred at a glance."""
_BEYOND = 1.5
"""Wishes without end must not make every bar short: the scale ends at so many times the largest quota."""
_SPARK_WIDE, _SPARK_TALL = 84.0, 20.0
Used = Mapping[tuple[TeamName, GpuType], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    at: float
    """Percent of the scale."""
    is_beyond: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    team: str
    change: str
    mood: str
    after: str
    before: str
    in_force: str
    guarantee: str
    used: str
    wanted: str
    said: str
    """All numbers of the bar in words."""
    bar: float
    outline: float | None
    guarantee_at: float
    used_at: _Mark | None
    wanted_at: _Mark
    spark: str
    spark_said: str
    reason: str
    counterfactual: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One part of a bar, from left to right."""

    at: float
    wide: float
    shade: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    supply: SupplyLine | None
    supply_parts: tuple[_Part, ...]
    kept_back: float
    sum_after: int
    step_cap: float | None
    up: int
    down: int
    changed_count: int
    rows: Sequence[_Row]
    folded: Sequence[_Row]


def sections_of(record: ProposalRecord, *, records: Sequence[ProposalRecord], used: Used) -> list[Section]:
    """Return a section for each type of GPU; `records` are the newest proposals, newest first."""
    proposal = record.proposal
    supplies = {each.gpu_type: each for each in proposal.supplies}
    caps = dict(proposal.step_caps)
    lines: dict[GpuType, list[ProposedQuota]] = {kind: [] for kind in supplies}
    for line in proposal.lines:
        lines.setdefault(line.gpu_type, []).append(line)
    pasts = _pasts(records, until=proposal)
    return [
        _section(kind, lines[kind], supplies.get(kind), caps.get(kind), record=record, used=used, pasts=pasts)
        for kind in sorted(lines)
    ]


def _section(
    kind: GpuType,
    lines: Sequence[ProposedQuota],
    supply: SupplyLine | None,
    step_cap: float | None,
    *,
    record: ProposalRecord,
    used: Used,
    pasts: Mapping[tuple[TeamName, GpuType], Sequence[int]],
) -> Section:
    ordered = sorted(lines, key=lambda each: (-abs(each.after - each.before), -each.after, each.team))
    whole = _scale(lines, used)
    rows = [_row(each, record, whole=whole, used=used, past=pasts.get((each.team, kind), ())) for each in ordered]
    changes = [each.after - each.before for each in lines]
    return Section(
        title=kind or "All GPUs",
        supply=supply,
        supply_parts=() if supply is None else _supply_parts(supply),
        kept_back=0.0 if supply is None else _kept_back(supply),
        sum_after=sum(each.after for each in lines),
        step_cap=step_cap,
        up=round(sum(each for each in changes if each > 0)),
        down=round(-sum(each for each in changes if each < 0)),
        changed_count=sum(abs(each) > 0 for each in changes),
        rows=rows[:_ROWS_OPEN],
        folded=rows[_ROWS_OPEN:],
    )


def _row(line: ProposedQuota, record: ProposalRecord, *, whole: float, used: Used, past: Sequence[int]) -> _Row:
    change = line.after - line.before
    mean = used.get((line.team, line.gpu_type))
    holds, holds_words = _in_force(line, record.state)
    numbers = {
        "proposed": gpus(line.after), "in force": holds_words, "guarantee": gpus(line.guarantee),
        "used": "not known" if mean is None else gpus(mean), "wanted": gpus(line.wanted_mean),
    }  # fmt: skip
    return _Row(
        team=clipped(line.team, at_most=60),
        change=signed(change),
        mood="up" if change > 0 else "down" if change < 0 else "",
        after=numbers["proposed"],
        before=gpus(line.before),
        in_force=holds_words,
        guarantee=numbers["guarantee"],
        used=numbers["used"],
        wanted=numbers["wanted"],
        said=", ".join(f"{what} {number}" for what, number in numbers.items()),
        bar=part_of(line.after, whole),
        outline=None if holds is None else part_of(holds, whole),
        guarantee_at=part_of(line.guarantee, whole),
        used_at=None if mean is None else _mark(mean, whole),
        wanted_at=_mark(line.wanted_mean, whole),
        spark=_spark(past),
        spark_said="" if len(past) < 2 else f"from {past[0]} to {past[-1]} in {len(past)} proposals",
        reason=clipped(line.reason),
        counterfactual=clipped(line.counterfactual) if change else "",
    )


def _in_force(line: ProposedQuota, state: ProposalState) -> tuple[float | None, str]:
    """Return what the team is held to as far as the ledger knows, and in words."""
    if state is ProposalState.APPLIED:
        return line.after, gpus(line.after)
    if state in HALF_WAY:
        return None, "half-way"
    return line.limit, "no limit" if line.limit is None else gpus(line.limit)


def _scale(lines: Sequence[ProposedQuota], used: Used) -> float:
    """Return how many GPUs the width of the picture stands for."""
    quotas = max(
        (max(each.after, each.guarantee, each.limit or 0, used.get((each.team, each.gpu_type), 0.0)) for each in lines),
        default=0.0,
    )
    wanted = max((each.wanted_mean for each in lines if math.isfinite(each.wanted_mean)), default=0.0)
    return max(1.0, quotas, min(wanted, _BEYOND * quotas)) * 1.02


def _mark(value: float, whole: float) -> _Mark:
    return _Mark(at=min(99.5, part_of(value, whole)), is_beyond=value > whole)


def _kept_back(supply: SupplyLine) -> float:
    return max(0.0, supply.installed - supply.supply - supply.broken - supply.in_rollouts)


def _supply_parts(supply: SupplyLine) -> tuple[_Part, ...]:
    """Return the bar of what is installed: to give out, broken, in rollouts, kept back."""
    found: list[_Part] = []
    at = 0.0
    for size, shade in (
        (supply.supply, "give"),
        (supply.broken, "broken"),
        (supply.in_rollouts, "rollout"),
        (_kept_back(supply), "slack"),
    ):
        wide = min(part_of(size, supply.installed), 100.0 - at)
        if wide > 0:
            found.append(_Part(at=round(at, 2), wide=round(wide, 2), shade=shade))
        at += wide
    return tuple(found)


def by_day(records: Sequence[ProposalRecord]) -> list[ProposalRecord]:
    """Return of each day the newest proposal that counts, newest first."""
    found: dict[object, ProposalRecord] = {}
    for record in records:
        known = found.get(record.proposal.day)
        if known is None or (record.state is ProposalState.APPLIED and known.state is not ProposalState.APPLIED):
            found[record.proposal.day] = record
    return sorted(found.values(), key=lambda each: each.proposal.day, reverse=True)


def _pasts(
    records: Sequence[ProposalRecord], *, until: QuotaProposal
) -> Mapping[tuple[TeamName, GpuType], Sequence[int]]:
    """Return what was proposed to each team, a number a day, the oldest first; refused proposals are no past."""
    earlier = [
        each.proposal
        for each in by_day(records)
        if each.proposal.day < until.day and each.state is not ProposalState.REFUSED
    ]
    found: dict[tuple[TeamName, GpuType], list[int]] = {}
    for proposal in [*reversed(earlier[: PROPOSALS_SHOWN - 1]), until]:
        for line in proposal.lines:
            found.setdefault((line.team, line.gpu_type), []).append(line.after)
    return found


def _spark(past: Sequence[int]) -> str:
    """Return the points of a stepped curve from 0 to the largest; empty where there are not two."""
    if len(past) < 2:
        return ""
    top, wide = max(1, *past), _SPARK_WIDE / len(past)
    heights = [1 + (_SPARK_TALL - 2) * (1 - each / top) for each in past]
    points = [(x, y) for number, y in enumerate(heights) for x in (number * wide, (number + 1) * wide)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
