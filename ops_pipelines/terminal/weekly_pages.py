"""The weekly review for the web process: the page that was kept, else one that is made, at most once an hour each.

Making one reads weeks of the lake, so that whoever asks again gets the same page, one is made at a time, beside the
answers to others, and only of the present week and the last: older ones are kept by the schedule or asked for with
`ops-pipelines review`.
"""

from collections.abc import Callable
from datetime import timedelta

from ops_pipelines.core.cluster import Cluster, Observatory, hour_of
from ops_pipelines.core.periods import Week, parse_week, week_of
from ops_pipelines.core.record import ShelfError
from ops_pipelines.pages.weekly_review import write_weekly_review
from ops_pipelines.review.week.weekly_review import review_week
from ops_pipelines.terminal.pages_in_making import PagesInMaking

_JITTER = timedelta(milliseconds=1)
"""The time that a page shows may be kept as a float."""


class NoReview(LookupError):
    """There is no review of the week that was asked for. The message says what to do."""


class WeeklyPages:
    """Pages of one cluster, remembered for the hour in which they were made."""

    def __init__(self, *, patience_seconds: float = 10) -> None:
        """An asker waits up to `patience_seconds`: thousands of nodes take minutes, and proxies give up before."""
        self._making = PagesInMaking(patience_seconds=patience_seconds)

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
        return self._making.page(
            week.name,
            lambda: write_weekly_review(review_week(week, cluster, open_observatory())),
            title="the review of",
            hour=hour_of(now),
            now=now,
        )


def _kept(week: Week, cluster: Cluster) -> str | None:
    if cluster.page_shelf is None:
        return None
    try:
        shows = cluster.page_shelf.shows(week.page_name)
        is_whole = shows is not None and shows >= week.end - _JITTER
        return cluster.page_shelf.read(week.page_name) if is_whole else None
    except ShelfError:  # It can be made anew.
        return None
