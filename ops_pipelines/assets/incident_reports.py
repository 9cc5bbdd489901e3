"""The newest incident reports: written as files beside the state, and shown in short with where each is.

A few at a time, because a run that acts waits for nobody's reading; `ops-pipelines report` and the web process write
any of them at once. Words of logs and jobs are untrusted: no Markdown of theirs is left as such.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import dagster as dg

from ops_pipelines.assets.incident_pages import culprit_of, next_step
from ops_pipelines.assets.report import GROUP
from ops_pipelines.assets.verify import verifications
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.record import PageShelf, ShelfError
from ops_pipelines.report.markdown import escape_markdown
from ops_pipelines.report.metadata import count, table
from ops_pipelines.review.chain import gpu_hours_words
from ops_pipelines.review.incident_report import IncidentReport, history_of, report_on

BACK = timedelta(days=7)
WRITTEN_AT_ONCE = 3
"""Assumption: a tenth of a second each, so that the next run that acts is not late. What all of them compare with is
read once: with 10,000 incidents in a quarter that is 0.6 s."""
_OPEN_ONES_EVERY = timedelta(minutes=1)
"""What an open incident's acts change is not the incident: its page is written anew this often."""
_JITTER = timedelta(milliseconds=1)
"""A file's time is a float."""
_WORDS_AT_MOST = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """A page that was just written."""

    report: IncidentReport
    place: str


@dg.asset(group_name=GROUP, deps=[verifications], kinds={"html"}, code_version="1")
def incident_reports(cluster: dg.ResourceParam[Cluster]) -> dg.Output[None]:
    """What happened in each incident of the week, why, what it cost, and what is left to do: a page for each."""
    return dg.Output(None, metadata=shown_of_reports(cluster))


def shown_of_reports(cluster: Cluster) -> Mapping[str, dg.MetadataValue]:
    """Write the pages that are due; return what the page of `incident_reports` shows now."""
    now = cluster.clock.now()
    incidents = reported(cluster.ledger.incidents_since(now - BACK))
    written: list[WrittenReport] = []
    if cluster.page_shelf is not None:
        try:
            written = write_stale_pages(incidents, cluster, cluster.page_shelf, now=now)
        except ShelfError as problem:  # A full disk must not end the run that acts.
            dg.get_dagster_logger().warning("incident reports not kept: %s", problem)
    return describe_reports(incidents, written, cluster)


def reported(incidents: Iterable[Incident]) -> tuple[Incident, ...]:
    """Return the incidents that have a page, the newest change first: what is only watched has none."""
    return tuple(
        sorted(
            (each for each in incidents if not each.is_watched),
            key=lambda each: (each.changed_at, each.incident),
            reverse=True,
        )
    )


def write_stale_pages(
    incidents: Sequence[Incident], cluster: Cluster, shelf: PageShelf, *, now: datetime
) -> list[WrittenReport]:
    """Write the pages that the ledger has overtaken, the newest first and a few at once; delete what is too old."""
    from ops_pipelines.pages.incident_report import write_incident_page

    stale = [each for each in incidents if _is_stale(each, shelf.shows(each.incident), now=now)]
    written = []
    history = history_of(stale[:WRITTEN_AT_ONCE], cluster.ledger, now=now)
    for incident in stale[:WRITTEN_AT_ONCE]:
        report = report_on(incident, cluster, history=history)
        place = shelf.keep(incident.incident, write_incident_page(report), shows=now)
        written.append(WrittenReport(report=report, place=place))
    shelf.tidy(now)
    return written


def _is_stale(incident: Incident, shows: datetime | None, *, now: datetime) -> bool:
    if shows is None or incident.changed_at - shows > _JITTER:
        return True
    return incident.is_open and now - shows >= _OPEN_ONES_EVERY


def describe_reports(
    incidents: Sequence[Incident], written: Sequence[WrittenReport], cluster: Cluster
) -> Mapping[str, dg.MetadataValue]:
    """Return what the page shows: the newest in words, then all as a table with where each page is."""
    shown: dict[str, dg.MetadataValue] = {
        each.report.incident.replace("-", "_"): dg.MetadataValue.md(_in_short(each.report)) for each in written
    }
    if written:
        shown["newest_page"] = dg.MetadataValue.path(written[0].place)
    if cluster.pages_url is not None and incidents:
        shown["newest_in_browser"] = dg.MetadataValue.url(f"{cluster.pages_url}/incidents/{incidents[0].incident}")
    shown["incident_count"] = count(incidents)
    shown["reports"] = table(_row(each, cluster.page_shelf) for each in incidents)
    return shown


def _in_short(report: IncidentReport) -> str:
    def words(text: str) -> str:
        return escape_markdown(text, at_most=_WORDS_AT_MOST)

    lines = [f"**{words(report.headline)}**", words(report.standing)]
    lines += [f"- {each.urgency.value}: {escape_markdown(each.what, at_most=120)}" for each in report.follow_ups[:1]]
    lost = gpu_hours_words(report.cost.lost)
    lines.append(f"{lost} GPU-hours lost by jobs, {gpu_hours_words(report.cost.out_of_service)} out of service")
    return "\n\n".join(lines)


def _row(incident: Incident, shelf: PageShelf | None) -> Mapping[str, object]:
    """Return few columns: the UI cuts off what is wider than its page."""
    is_merged = incident.state is IncidentState.MERGED
    return {
        "incident": incident.incident,
        "state": incident.state.value,
        "culprit": culprit_of(incident),
        "changed": f"{incident.changed_at:%d %b %H:%M:%S}",
        "next": incident.note if is_merged else next_step(incident),
        "page": "" if shelf is None else shelf.place(incident.incident),
    }
