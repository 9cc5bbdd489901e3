"""What every served page shares: the first page, its tiles, one desk of teams, slow pages; weeks and the calendar."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING

from icalendar import Calendar, Event

from ops_pipelines.core.cluster import Cluster, Observatory, hour_of
from ops_pipelines.core.health import Health
from ops_pipelines.core.identity import listed as listed_first
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.periods import Week, parse_week, week_of
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.record import ShelfError
from ops_pipelines.core.rollout import OF_PEOPLE, Rollout
from ops_pipelines.lake.quantities import readable
from ops_pipelines.people.planned_work import PlannedKind, PlannedTime
from ops_pipelines.report import document as doc
from ops_pipelines.report.html import page_of
from ops_pipelines.report.numbers import duration
from ops_pipelines.review.week_document import week_document
from ops_pipelines.review.weekly_review import review_week
from ops_pipelines.teams.desk import TeamsDesk

# -- pages that take long --


class PageInMaking(Exception):
    """The page is being made, and takes longer than anybody waits for an answer. The message says since when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """One page on its way."""

    name: str
    hour: datetime
    since: datetime
    page: Future[str]


class PagesInMaking:
    """Pages of one kind."""

    def __init__(self, *, patience_seconds: float) -> None:
        """An asker waits up to `patience_seconds`: thousands of nodes take minutes, and proxies give up before."""
        self._patience_seconds = patience_seconds
        self._lock = Lock()
        self._making: dict[str, _Making] = {}
        """By name; the newest of each."""

    def page(self, name: str, write: Callable[[], str], *, title: str, hour: datetime, now: datetime) -> str:
        """Return the page of that name as it was made in this hour, now or before.

        `title` is how people call such pages: `the review of`. Raises PageInMaking, and what `write` raises.
        """
        making = self._make(name, write, hour=hour, now=now)
        wait([making.page], timeout=self._patience_seconds)
        if making.name != name or not making.page.done():
            raise PageInMaking(
                f"{title} {making.name} is being made since {making.since:%H:%M:%S} UTC, from weeks of the lake; "
                "ask again in half a minute"
            )
        return making.page.result()

    def _make(self, name: str, write: Callable[[], str], *, hour: datetime, now: datetime) -> _Making:
        """Return the page of this hour, made or started now; while another one is being made, that one."""
        with self._lock:
            known = self._making.get(name)
            if known is not None and ((known.hour == hour and not _failed(known)) or not known.page.done()):
                return known
            other = next((each for each in self._making.values() if not each.page.done()), None)
            if other is not None:
                return other
            self._making = {key: each for key, each in self._making.items() if each.hour == hour}
            begun = _Making(name=name, hour=hour, since=now, page=Future())
            self._making[name] = begun
            # Ends with the process: anyone who stops it does not wait for a page.
            Thread(target=_fulfil, args=(begun.page, write), name=f"page {name}", daemon=True).start()
            return begun


def _fulfil(page: Future[str], write: Callable[[], str]) -> None:
    try:
        page.set_result(write())
    except BaseException as problem:
        page.set_exception(problem)


def _failed(making: _Making) -> bool:
    return making.page.done() and making.page.exception() is not None


# -- the desk of teams for the web process --


if TYPE_CHECKING:
    from ops_pipelines.resources.config.cluster_config import ClusterConfig
    from ops_pipelines.resources.config.in_force import Stamp


class NotThere(LookupError):
    """What was asked for is not there. The message says what is; it is shown, escaped."""


class TeamsAtHand:
    """Returns the desk of one cluster. cluster.yaml is read once, as by every process; what it names on change."""

    def __init__(self, open_cluster: Callable[[], Cluster], cluster_file: Path | None) -> None:
        """`cluster_file` None: only the ledger is served."""
        self._open_cluster = open_cluster
        self._cluster_file = cluster_file
        self._lock = Lock()
        self._desk: TeamsDesk | None = None
        self._config: ClusterConfig | None = None
        self._stamps: tuple[Stamp, ...] = ()

    def desk(self) -> TeamsDesk | None:
        """Return the desk; None where only the ledger is served. Raises LedgerError; PolicyError on a wrong file."""
        from ops_pipelines.resources.config.in_force import stated_stamps
        from ops_pipelines.wiring import assemble_observatory, assemble_teams_desk, config_in_force

        if self._cluster_file is None:
            return None
        cluster = self._open_cluster()
        with self._lock:
            stamps = () if self._config is None else stated_stamps(self._config)
            if self._desk is None or self._desk.cluster is not cluster or stamps != self._stamps:
                try:
                    config = config_in_force(self._cluster_file)
                    self._config, self._stamps = config, stated_stamps(config)
                    observatory = assemble_observatory(config, cluster.clock)
                    self._desk = assemble_teams_desk(config, cluster=cluster, observatory=observatory)
                except PolicyError as problem:  # Its words hold paths of ours.
                    raise PolicyError(
                        "what cluster.yaml and teams.yaml say of teams cannot be read; `ops-pipelines check-config` "
                        "says why"
                    ) from problem
            return self._desk

    def whole_desk(self) -> TeamsDesk:
        """Return the desk; raise NotThere where only the ledger is served."""
        desk = self.desk()
        if desk is None:
            raise NotThere("the lake is not at hand here, and this page reads it")
        return desk


# -- the first page --


_SHOWN_COUNT = 100
"""More open incidents than this are no list that a person reads."""
_CLOSED_COUNT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One page that the index names."""

    path: str
    """Relative to the index."""
    title: str
    about: str


def index_document(
    *,
    cluster: str,
    health: Health,
    incidents: Sequence[Incident],
    lately: Sequence[Incident] = (),
    rollouts: Sequence[Rollout] = (),
    numbers: Sequence[doc.Number] = (),
    listed: Sequence[Listed],
    has_reports: bool,
    now: datetime,
) -> doc.Document:
    """Return the first page: of the open incidents the newest, with links where `has_reports` says so.

    `lately` are the incidents of the last hours, open or not: those that ended are shown, merged ones left out.
    `rollouts` are those that are not over, `numbers` the headline numbers of pages.
    """
    newest = sorted(incidents, key=lambda incident: incident.incident, reverse=True)
    ended = [each for each in lately if each.closed_at is not None and each.state is not IncidentState.MERGED]
    ended.sort(key=lambda incident: (incident.closed_at or incident.changed_at, incident.incident), reverse=True)
    word = health.word.value
    mood = {"blind": doc.Mood.BAD, "paused": doc.Mood.WARN}.get(word, doc.Mood.GOOD)
    return doc.Document(
        title=cluster,
        state=doc.toned(word, mood),
        cluster="ops-pipelines",
        about="how the autopilot is, what is open, what ended lately",
        home="",
        now=now,
        command="ops-pipelines incidents --all",
        blocks=doc.sections(
            doc.Items(items=health.reasons),
            doc.Heading(text="Open incidents"),
            _open_table(newest, now, has_reports=has_reports),
            (doc.Heading(text="Ended lately"), _ended_table(ended, has_reports=has_reports)) if ended else None,
            (doc.Heading(text="Rollouts under way"), _rollout_table(rollouts)) if rollouts else None,
            (doc.Heading(text="Teams"), doc.Numbers(numbers=numbers)) if numbers else None,
            doc.Heading(text="Pages"),
            doc.Items(items=[(doc.link(each.title, each.path), f": {each.about}") for each in listed]),
        ),
    )


def _open_table(incidents: Sequence[Incident], now: datetime, *, has_reports: bool) -> doc.Table:
    return doc.Table(
        columns=doc.columns_of("Incident:name|State:name|Nodes|What is wrong:words|Open for"),
        rows=[
            (
                _named(each, has_reports=has_reports), each.state.value.replace("_", " "), _places(each),
                doc.clipped(each.cause), duration(now - each.opened_at),
            )
            for each in incidents
        ],
        at_most=_SHOWN_COUNT,
        more=(doc.code("ops-pipelines incidents"), " lists the older ones, too."),
    )  # fmt: skip


def _ended_table(incidents: Sequence[Incident], *, has_reports: bool) -> doc.Table:
    return doc.Table(
        columns=doc.columns_of("Incident:name|Nodes|What was wrong:words|Lasted|Ended:moment"),
        rows=[
            (
                _named(each, has_reports=has_reports), _places(each), doc.clipped(each.cause),
                None if each.closed_at is None else duration(each.closed_at - each.opened_at), each.closed_at,
            )
            for each in incidents[:_CLOSED_COUNT]
        ],
    )  # fmt: skip


def _rollout_table(rollouts: Sequence[Rollout]) -> doc.Table:
    return doc.Table(
        columns=doc.columns_of("Rollout:name|Release|State:name|Wave:name|Why:words"),
        rows=[
            (
                doc.link(each.rollout, f"rollouts/{each.rollout}"), each.release,
                doc.toned(each.state.value.replace("_", " "), doc.Mood.WARN if each.state in OF_PEOPLE else None),
                f"{each.wave} of {len(each.waves)}", doc.clipped(each.reason),
            )
            for each in rollouts
        ],
        at_most=_SHOWN_COUNT,
    )  # fmt: skip


def _named(incident: Incident, *, has_reports: bool) -> doc.Span:
    return doc.link(incident.incident, f"incidents/{incident.incident}" if has_reports else "")


def _places(incident: Incident) -> str:
    return listed_first(sorted(incident.nodes), at_most=8) or "-"


# -- the calendar that people subscribe to --


MEDIA_TYPE = "text/calendar; charset=utf-8"
_ASKED_AGAIN_AFTER = timedelta(minutes=15)
_MOST_TITLE_LENGTH = 200


def write_calendar(times: Iterable[PlannedTime], *, cluster: str, now: datetime) -> bytes:
    """Return the feed of one cluster."""
    calendar = Calendar()
    calendar.add("prodid", "-//ops-pipelines//planned work//EN")
    calendar.add("version", "2.0")
    calendar.add("method", "PUBLISH")
    calendar.add("x-wr-calname", f"{readable(cluster)}: planned work")
    calendar.add("refresh-interval", _ASKED_AGAIN_AFTER, parameters={"VALUE": "DURATION"})
    for each in times:
        calendar.add_component(_event(each, cluster=cluster, now=now))
    return bytes(calendar.to_ical())


def _event(planned: PlannedTime, *, cluster: str, now: datetime) -> Event:
    event = Event()
    event.add("uid", f"{planned.kind.value}-{planned.name}@{readable(cluster)}.ops-pipelines")
    event.add("dtstamp", now.astimezone(UTC).replace(microsecond=0))
    begins_at, ends_at = planned.begins_at.astimezone(UTC), planned.ends_at.astimezone(UTC)
    if planned.kind is PlannedKind.REPAIR:
        # It lasts until somebody comes: whole days, up to today.
        event.add("dtstart", begins_at.date())
        event.add("dtend", ends_at.date() + timedelta(days=1))
    else:
        event.add("dtstart", begins_at.replace(microsecond=0))
        event.add("dtend", ends_at.replace(microsecond=0))
    event.add("summary", readable(planned.title)[:_MOST_TITLE_LENGTH])
    event.add("description", readable(planned.about))
    event.add("categories", [planned.kind.value])
    event.add("transp", "TRANSPARENT")
    return event


# -- the weekly review for the web process --


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
            lambda: page_of(week_document(review_week(week, cluster, open_observatory()))),
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
    except ShelfError:  # It can be made again.
        return None
