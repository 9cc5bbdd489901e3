"""The page of a week's advice for the web process: what the lake keeps of the week. Looks at nothing anew."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from ops_pipelines.core.periods import Week, parse_week, week_of
from ops_pipelines.efficiency.kept import TABLE
from ops_pipelines.efficiency.report import AdviceRow, advice_document, advice_row, gain_gpu_hours
from ops_pipelines.pages.index import Tile
from ops_pipelines.report.html import page_of
from ops_pipelines.report.numbers import hours
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
    return page_of(
        advice_document(
            _read(week, desk),
            cluster=desk.cluster.name,
            week=week,
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
    return [advice_row(each) for each in rows]
