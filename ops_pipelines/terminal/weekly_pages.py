"""The weekly review for the web process: the page that was kept, else one that is made, at most once an hour each.

Making one reads weeks of the lake, so that whoever asks again gets the same page, one is made at a time, beside the
answers to others, and only of the present week and the last: older ones are kept by the schedule or asked for with
`ops-pipelines review`.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock, Thread

from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.hindsight.review.week import Week, parse_week, week_of
from ops_pipelines.flow.hindsight.review.weekly_review import review_week
from ops_pipelines.flow.observatory import Observatory, hour_of
from ops_pipelines.pages.weekly_review import write_weekly_review
from ops_pipelines.ports.page_shelf import ShelfError

_JITTER = timedelta(milliseconds=1)
"""The time that a page shows may be kept as a float."""


class NoReview(LookupError):
    """There is no review of the week that was asked for. The message says what to do."""


class PageInMaking(Exception):
    """The page is being made, and takes longer than anybody waits for an answer. The message says since when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """One page on its way."""

    week: str
    hour: datetime
    since: datetime
    page: Future[str]


class WeeklyPages:
    """Pages of one cluster, remembered for the hour in which they were made."""

    def __init__(self, *, patience_seconds: float = 10) -> None:
        """An asker waits up to `patience_seconds`: thousands of nodes take minutes, and proxies give up before."""
        self._patience_seconds = patience_seconds
        self._lock = Lock()
        self._making: dict[str, _Making] = {}
        """By week; the newest of each."""

    def page(self, asked: str | None, cluster: Cluster, open_observatory: Callable[[], Observatory]) -> str:
        """Return the page of a week named as 2026-W47; None: the last one that is over, else the present one.

        Raises NoReview, PageInMaking, LakeError, LedgerError, SourceError.
        """
        now = cluster.clock.now()
        present = week_of(now)
        try:
            week = present.before if asked is None else parse_week(asked)
        except ValueError as problem:
            raise NoReview(str(problem)) from problem
        kept = _kept(week, cluster)
        if kept is not None:
            return kept
        if asked is None:
            week = present
        if week not in (present, present.before):
            raise NoReview(
                f"no review of {week.name} is kept; `ops-pipelines review --week {week.name} --html FILE` writes one"
            )
        making = self._make(week, now, lambda: write_weekly_review(review_week(week, cluster, open_observatory())))
        wait([making.page], timeout=self._patience_seconds)
        if making.week != week.name or not making.page.done():
            raise PageInMaking(
                f"the review of {making.week} is being made since {making.since:%H:%M:%S} UTC, from weeks of the lake; "
                "ask again in half a minute"
            )
        return making.page.result()

    def _make(self, week: Week, now: datetime, write: Callable[[], str]) -> _Making:
        """Return the page of this hour, made or begun now; while that of another week is being made, that one."""
        with self._lock:
            hour = hour_of(now)
            known = self._making.get(week.name)
            if known is not None and ((known.hour == hour and not _failed(known)) or not known.page.done()):
                return known
            other = next((each for each in self._making.values() if not each.page.done()), None)
            if other is not None:
                return other
            self._making = {name: each for name, each in self._making.items() if each.hour == hour}
            begun = _Making(week=week.name, hour=hour, since=now, page=Future())
            self._making[week.name] = begun
            # Ends with the process: whoever stops it does not wait for a page.
            Thread(target=_fulfil, args=(begun.page, write), name=f"review {week.name}", daemon=True).start()
            return begun


def _fulfil(page: Future[str], write: Callable[[], str]) -> None:
    try:
        page.set_result(write())
    except BaseException as problem:
        page.set_exception(problem)


def _failed(making: _Making) -> bool:
    return making.page.done() and making.page.exception() is not None


def _kept(week: Week, cluster: Cluster) -> str | None:
    if cluster.page_shelf is None:
        return None
    try:
        shows = cluster.page_shelf.shows(week.page_name)
        is_whole = shows is not None and shows >= week.end - _JITTER
        return cluster.page_shelf.read(week.page_name) if is_whole else None
    except ShelfError:  # It can be made anew.
        return None
