"""The page of a week's advice for the web process: what the lake keeps of the week. Looks at nothing anew."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from ops_pipelines.core.periods import Week, parse_week, week_of
from ops_pipelines.efficiency.kept import TABLE
from ops_pipelines.pages.advice import AdviceMatter, AdviceRow, gain_gpu_hours, write_advice
from ops_pipelines.pages.amounts import hours
from ops_pipelines.pages.index import Tile
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.terminal.teams_at_hand import NotThere

_WEEKS = 10
_FIRST_YEAR = 2000


def advice_page(asked: str | None, desk: TeamsDesk) -> str:
    """Return the page of a week named as 2026-W47; None: the newest of which anything is kept.

    Raises NotThere, LakeError, LedgerError.
    """
    now = desk.clock.now()
    weeks = _last_weeks(now)
    kept = [each for each in weeks if _read(each, desk)]
    week = _named(asked) if asked is not None else next(iter(kept), weeks[0])
    return write_advice(
        AdviceMatter(
            cluster=desk.cluster.name,
            week=week.name,
            week_ends_at=week.end,
            rows=_read(week, desk),
            weeks=[each.name for each in kept],
            currency=None if desk.prices is None else desk.prices.currency,
            not_known=_not_known(desk),
            now=now,
        )
    )


def advice_tile(desk: TeamsDesk) -> Tile:
    """Return the newest week's advice in a number. Raises LakeError."""
    for week in _last_weeks(desk.clock.now())[:2]:
        said = [each for each in _read(week, desk) if each.is_said]
        if said:
            about = f"GPU-hours a week to gain: {len(said)} said in {week.name}"
            return Tile(path="advice", title="Advice", value=hours(gain_gpu_hours(said)), about=about)
    return Tile(path="advice", title="Advice", value="-", about="nothing is said of the last two weeks")


def _named(asked: str) -> Week:
    try:
        week = parse_week(asked)
    except ValueError as problem:
        raise NotThere(str(problem)) from problem
    if week.start.year < _FIRST_YEAR:
        raise NotThere(f"there is no advice of {week.name}; ask for a week since {_FIRST_YEAR}")
    return week


def _last_weeks(now: datetime) -> list[Week]:
    found = [week_of(now).before]
    while len(found) < _WEEKS:
        found.append(found[-1].before)
    return found


def _not_known(desk: TeamsDesk) -> Sequence[str]:
    """Return what no week can say here. What was missing in one week alone, the asset's page has."""
    missing = []
    if desk.read_listing is None:
        missing.append("old checkpoints and unused data: policy.yaml names no advice.storage_listing")
    if desk.prices is None:
        missing.append("what the hours cost: cluster.yaml has no prices")
    return missing


def _read(week: Week, desk: TeamsDesk) -> list[AdviceRow]:
    rows: list[Mapping[str, object]] = desk.lake.read_hour(TABLE, week.end).to_pylist()  # type: ignore[attr-defined]  # an Arrow table
    return [_row(each) for each in rows]


def _row(row: Mapping[str, object]) -> AdviceRow:
    cents, told_at = row["gain_cents"], row["told_at"]
    return AdviceRow(
        team=_text(row["team"]),
        kind=_text(row["kind"]),
        subject=_text(row["subject"]),
        withheld_because=None if row["withheld_because"] is None else _text(row["withheld_because"]),
        told_at=told_at if isinstance(told_at, datetime) else None,
        evidence=_text(row["evidence"]),
        counter_evidence=_text(row["counter_evidence"]),
        what_to_do=_text(row["what_to_do"]),
        confidence=_text(row["confidence"]),
        gain_low_gpu_hours=_number(row["gain_low_gpu_hours"]),
        gain_gpu_hours=_number(row["gain_gpu_hours"]),
        gain_cents=cents if isinstance(cents, int) else None,
        gain_bytes=_number(row["gain_bytes"]),
        followed=None if row["followed"] is None else _text(row["followed"]),
        saved_gpu_hours=_number(row["saved_gpu_hours"]),
    )


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
