"""The page of a week's advice, by team: what was seen, what speaks against it, the gain, what to do, was it done.

Shows what the lake keeps of the week. Subjects and paths are users' words.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.efficiency.advice import shown_bytes
from ops_pipelines.pages.amounts import hours
from ops_pipelines.pages.render import render
from ops_pipelines.pages.rollouts import clipped

_TEAMS_OPEN = 30
_FOLLOWED = {
    "followed": ("followed", "good"),
    "not_followed": ("not followed", "warn"),
    "not_run_again": ("did not run again", "soft"),
    "unknown": ("was not measured", "soft"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRow:
    """One row of the lake's table `efficiency_advice`."""

    team: str
    kind: str
    subject: str
    withheld_because: str | None
    told_at: datetime | None
    evidence: str
    counter_evidence: str
    what_to_do: str
    confidence: str
    gain_low_gpu_hours: float | None
    gain_gpu_hours: float | None
    gain_cents: int | None
    gain_bytes: float | None
    followed: str | None
    saved_gpu_hours: float | None

    @property
    def is_said(self) -> bool:
        return self.withheld_because is None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceMatter:
    """What the page is made from."""

    cluster: str
    week: str
    """As 2026-W47."""
    week_ends_at: datetime
    rows: Sequence[AdviceRow]
    weeks: Sequence[str]
    """Weeks of which something is kept, newest first."""
    currency: str | None
    not_known: Sequence[str]
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    subject: str
    kind: str
    evidence: str
    counter_evidence: str
    gain: str
    what_to_do: str
    confidence: str
    told_at: datetime | None
    followed: str
    mood: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Team:
    name: str
    gain: str
    items: Sequence[_Item]


def write_advice(matter: AdviceMatter) -> str:
    """Return the page."""
    said = [each for each in matter.rows if each.is_said]
    told = [each for each in said if each.told_at is not None]
    judged = [each for each in told if each.followed is not None]
    teams = _teams(said, currency=matter.currency)
    why = Counter(clipped(each.withheld_because or "", at_most=160) for each in matter.rows if not each.is_said)
    return render(
        "advice.html",
        {
            "cluster": matter.cluster,
            "week": matter.week,
            "is_over": matter.week_ends_at <= matter.now,
            "weeks": matter.weeks,
            "has_rows": bool(matter.rows),
            "said_count": len(said),
            "told_count": len({each.team for each in told}),
            "withheld_count": len(matter.rows) - len(said),
            "gain": hours(gain_gpu_hours(said)),
            "gain_bytes": _bytes(sum(each.gain_bytes or 0 for each in said)),
            "money": _money(said, currency=matter.currency),
            "followed_count": sum(each.followed == "followed" for each in judged),
            "judged_count": len(judged),
            "saved": hours(sum(each.saved_gpu_hours or 0 for each in judged)),
            "teams": teams[:_TEAMS_OPEN],
            "folded": teams[_TEAMS_OPEN:],
            "withheld": why.most_common(12),
            "withheld_left_count": max(0, len(why) - 12),
            "not_known": [clipped(each) for each in matter.not_known],
            "now": matter.now,
        },
    )


def gain_gpu_hours(rows: Sequence[AdviceRow]) -> float:
    """Return what following all that is said would gain in a week."""
    return sum((each.gain_gpu_hours or 0.0 for each in rows if each.is_said), 0.0)


def _teams(said: Sequence[AdviceRow], *, currency: str | None) -> list[_Team]:
    names = {each.team for each in said}
    by_team = {name: [each for each in said if each.team == name] for name in names}
    ordered = sorted(names, key=lambda name: (-gain_gpu_hours(by_team[name]), name))
    return [
        _Team(
            name=clipped(name or "team not known", at_most=60),
            gain=_team_gain(by_team[name]),
            items=[
                _item(each, currency=currency)
                for each in sorted(by_team[name], key=lambda row: (-(row.gain_gpu_hours or 0), row.subject))
            ],
        )
        for name in ordered
    ]


def _team_gain(rows: Sequence[AdviceRow]) -> str:
    """Return what a team would gain in a week; empty where all that it would gain is storage."""
    gain = gain_gpu_hours(rows)
    return f"{hours(gain)} GPU-hours a week" if gain else ""


def _item(row: AdviceRow, *, currency: str | None) -> _Item:
    followed, mood = ("", "") if row.followed is None else _FOLLOWED.get(row.followed, (clipped(row.followed), "soft"))
    if row.followed == "followed" and row.saved_gpu_hours:
        followed = f"followed; it saved {hours(row.saved_gpu_hours)} GPU-hours in two weeks"
    return _Item(
        subject=clipped(row.subject, at_most=160),
        kind=clipped(row.kind, at_most=60).replace("_", " "),
        evidence=clipped(row.evidence, at_most=600),
        counter_evidence=clipped(row.counter_evidence, at_most=600),
        gain=_gain(row, currency=currency),
        what_to_do=clipped(row.what_to_do, at_most=600),
        confidence=clipped(row.confidence, at_most=20),
        told_at=row.told_at,
        followed=followed,
        mood=mood,
    )


def _gain(row: AdviceRow, *, currency: str | None) -> str:
    if row.gain_bytes:
        words = f"{shown_bytes(row.gain_bytes)} of storage, once"
    else:
        words = f"{hours(row.gain_low_gpu_hours)} to {hours(row.gain_gpu_hours)} GPU-hours a week"
    if row.gain_cents is None or currency is None:
        return words
    return f"{words}, about {row.gain_cents / 100:,.0f} {currency}"


def _bytes(size: float) -> str | None:
    return shown_bytes(size) if size else None


def _money(said: Sequence[AdviceRow], *, currency: str | None) -> str | None:
    priced = [each.gain_cents for each in said if each.gain_cents is not None]
    return f"{sum(priced) / 100:,.0f} {currency}" if priced and currency is not None else None
