"""The page of a day's placement for the web process: made at most once an hour, beside the answers to others."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta

from ops_pipelines.core.cluster import hour_of
from ops_pipelines.costs.gather_usage import NothingYet
from ops_pipelines.efficiency.placement.document import placement_document, stranded_gpu_hours
from ops_pipelines.efficiency.placement.report import PlacementReport, report_of_day
from ops_pipelines.pages.index import Tile
from ops_pipelines.report.document import Document
from ops_pipelines.report.html import page_of
from ops_pipelines.report.numbers import hours
from ops_pipelines.teams.desk import NoTeams, TeamsDesk
from ops_pipelines.terminal.pages_in_making import PagesInMaking
from ops_pipelines.terminal.teams_at_hand import NotThere

_REACH = timedelta(days=60)
_OFFERED = 8
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    day: date
    stranded: float
    free: float


class PlacementPages:
    """Pages of one cluster's placement, remembered for the hour in which they were made."""

    def __init__(self, *, patience_seconds: float = 10) -> None:
        self._making = PagesInMaking(patience_seconds=patience_seconds)
        self._seen: _Seen | None = None

    def page(self, asked: str | None, desk: TeamsDesk) -> str:
        """Return the page of a local day, as 2026-11-22; None: of yesterday.

        Raises NotThere, PageInMaking, LakeError, LedgerError, SourceError.
        """
        now = desk.clock.now()
        today = now.astimezone(desk.zone).date()
        day = today - _DAY if asked is None else _named(asked, today)
        return self._making.page(
            day.isoformat(),
            lambda: page_of(self._document(day, today, desk, now=now)),
            title="the placement of",
            hour=hour_of(now),
            now=now,
        )

    def tile(self, desk: TeamsDesk) -> Tile:
        """Return what the newest page that was made says: counting a day takes longer than the index may."""
        seen, yesterday = self._seen, desk.clock.now().astimezone(desk.zone).date() - _DAY
        if seen is None or seen.day < yesterday:
            return Tile(path="placement", title="Placement", value="-", about=f"{yesterday}: counted when it is opened")
        return Tile(
            path="placement",
            title="Placement",
            value=hours(seen.stranded),
            about=f"of {hours(seen.free)} free GPU-hours were out of reach on {seen.day}",
        )

    def _document(self, day: date, today: date, desk: TeamsDesk, *, now: datetime) -> Document:
        report, why_not = _report(day, desk)
        if report is not None and (self._seen is None or self._seen.day <= day):
            self._seen = _Seen(
                day=day, stranded=stranded_gpu_hours(report.day), free=report.day.stranded.free_gpu_hours
            )
        return placement_document(
            report,
            cluster=desk.cluster.name,
            day=day,
            why_not=why_not,
            days=[today - number * _DAY for number in range(_OFFERED)],
            now=now,
        )


def _report(day: date, desk: TeamsDesk) -> tuple[PlacementReport | None, str]:
    try:
        return report_of_day(day, desk), ""
    except (NothingYet, NoTeams) as problem:
        return None, str(problem)


def _named(asked: str, today: date) -> date:
    try:
        day = date.fromisoformat(asked)
    except ValueError as problem:
        raise NotThere(f"{asked[:40]} is no day; expected one as {today}") from problem
    if not today - _REACH <= day <= today:
        raise NotThere(
            f"there is no page of {day}; from {today - _REACH} to {today} there are, and "
            f"`ops-pipelines placement --day {day}` counts older ones"
        )
    return day
