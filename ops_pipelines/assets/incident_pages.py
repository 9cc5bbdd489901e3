"""What people read of incidents in the UI: the table, a picture over time, a paragraph each, and the newest reports.

Reports are written as files beside the state, a few at a time, because a run that acts waits for nobody's reading;
`ops-pipelines report` and the web process write any of them at once. Shows; decides nothing. Texts of logs and jobs are
untrusted: no Markdown of theirs is left as such.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.fault import Family, Hypothesis
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.incident import Incident, IncidentState, asked_of_person
from ops_pipelines.core.record import PageShelf, SavedBundle, ShelfError
from ops_pipelines.remediate.bundle import began_at
from ops_pipelines.report.metadata import count, table
from ops_pipelines.report.numbers import counted, escape_markdown
from ops_pipelines.review.chain import gpu_hours_words
from ops_pipelines.review.incident_report import IncidentReport, history_of, report_on

EXPLAINED_AT_MOST = 5
"""Paragraphs on the page; the table has them all."""
_SHOWN_IN_PLACE = 890
"""As in `report.pictures.hours`: longer Markdown is behind a link."""
_SPECIAL = re.compile(r"([\\`*_\[\]<>!|#~])")
_LONGEST_SENTENCE = 160


def describe_incidents(
    incidents: Sequence[Incident], *, bundles: Mapping[IncidentId, SavedBundle], now: datetime
) -> Mapping[str, dg.MetadataValue]:
    """Return what the page shows: the picture first, then the newest open ones in words, then all as a table.

    Those that became part of another are left out: their evidence is the other's.
    """
    from ops_pipelines.report.pictures.incidents import Bar, large_timeline, timeline

    listed = [each for each in incidents if each.state is not IncidentState.MERGED]
    bars = [
        Bar(
            name=each.incident,
            what=culprit_of(each),
            family=_family_of(each),
            began_at=began_at(each),
            ended_at=each.closed_at,
            seen_at=tuple(finding.last_at or finding.found_at for finding in each.findings),
        )
        for each in listed
    ]
    is_open = [each for each in listed if each.is_open]
    shown: dict[str, dg.MetadataValue] = {"timeline": dg.MetadataValue.md(timeline(bars, now=now))}
    for each in sorted(is_open, key=began_at, reverse=True)[:EXPLAINED_AT_MOST]:
        words = paragraph(each, bundle=bundles.get(each.incident), now=now)
        shown[each.incident.replace("-", "_")] = dg.MetadataValue.md(words)
    shown["incidents"] = table(_row(each) for each in listed)
    if bars:
        shown["timeline_large"] = dg.MetadataValue.md(large_timeline(bars, now=now))
    return shown


def _row(incident: Incident) -> Mapping[str, object]:
    """Return few columns: the UI cuts off what is wider than its page."""
    hypothesis = incident.hypothesis
    return {
        "incident": incident.incident,
        "state": incident.state.value,
        "what_broke": cause_of(incident),
        "culprit": culprit_of(incident),
        "sure": "" if hypothesis is None else f"{hypothesis.confidence:.0%}",
        "victims": victims_of(incident),
        "next_step": next_step(incident),
    }


def count_by_rule(findings: Iterable[Finding]) -> Iterable[Mapping[str, object]]:
    """Yield one row a rule, the most frequent first: how often, where, what it calls for, and the newest in words.

    Few columns and short words: the UI cuts off what is wider than its page.
    """
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    for rule, alike in sorted(by_rule.items(), key=lambda item: (-sum(each.count for each in item[1]), item[0])):
        newest = max(alike, key=lambda each: each.last_at or each.found_at)
        yield {
            "rule": rule,
            "count": sum(each.count for each in alike),
            "nodes": len({each.node for each in alike if each.node}),
            "calls_for": max(each.response for each in alike).name.lower(),
            "newest": f"{newest.last_at or newest.found_at:%H:%M:%S} {newest.explanation.partition('; ')[0]}",
        }


def paragraph(incident: Incident, *, bundle: SavedBundle | None, now: datetime) -> str:
    """Return an incident as a person reads it within a minute, short enough for the UI to show in place."""
    for reason_count, other_count in ((4, 2), (3, 1), (2, 1), (1, 1), (1, 0), (0, 0)):
        text = _compose(incident, bundle=bundle, now=now, reason_count=reason_count, other_count=other_count)
        if len(text) <= _SHOWN_IN_PLACE:
            return text
    return text[: _SHOWN_IN_PLACE - 1] + "…"


def _compose(
    incident: Incident, *, bundle: SavedBundle | None, now: datetime, reason_count: int, other_count: int
) -> str:
    hypothesis = incident.hypothesis
    began = began_at(incident)
    sure = "" if hypothesis is None else f" ({hypothesis.confidence:.0%} sure)"
    reasons = _reasons(incident, hypothesis)
    lines = [
        f"**{_plain(cause_of(incident))}**{sure}",
        f"culprit: {_plain(culprit_of(incident))} · suffering: {_plain(victims_of(incident))} · "
        f"{incident.state.value} since {began.astimezone(UTC):%d %b %H:%M} UTC, "
        f"{max(0, int((now - began).total_seconds() // 60))} min",
    ]
    lines += [f"- because {_plain(_fresh(each, cause_of(incident)))}" for each in reasons[:reason_count]]
    if hypothesis is not None:
        lines += [f"- but {_plain(sentence)}" for sentence in hypothesis.evidence_against[:other_count]]
        lines += [
            f"- or {_plain(each.statement)} ({each.confidence:.0%}): {_plain(each.why_less_likely)}"
            for each in hypothesis.alternatives[:other_count]
        ]
        if hypothesis.settled_by and other_count:
            lines.append(f"- settled by {_plain(hypothesis.settled_by)}")
    lines.append(f"**Next**: {_plain(next_step(incident))}")
    if bundle is not None:
        lines.append(f"Evidence: {_plain(bundle.place)}")
    return "\n\n".join(_joined_lists(lines))


def _fresh(sentence: str, cause: str) -> str:
    """Return a sentence; where it is too long to be shown whole, without the cause that is above it."""
    return sentence if len(sentence) <= _LONGEST_SENTENCE else sentence.replace(f"{cause}; ", "")


def _joined_lists(lines: Sequence[str]) -> list[str]:
    """Return paragraphs, with the items of one list in one of them."""
    paragraphs: list[str] = []
    for line in lines:
        if line.startswith("- ") and paragraphs and paragraphs[-1].startswith("- "):
            paragraphs[-1] += f"\n{line}"
        else:
            paragraphs.append(line)
    return paragraphs


def _reasons(incident: Incident, hypothesis: Hypothesis | None) -> Sequence[str]:
    if hypothesis is not None and hypothesis.evidence_for:
        return hypothesis.evidence_for
    return tuple(dict.fromkeys(f"{each.found_at:%H:%M:%S} {each.explanation}" for each in incident.findings))


def cause_of(incident: Incident) -> str:
    """Return what broke in one sentence."""
    return incident.cause if incident.hypothesis is None else incident.hypothesis.statement


def culprit_of(incident: Incident) -> str:
    """Return the likeliest culprit, and how many more there are."""
    if incident.hypothesis is not None and incident.hypothesis.culprits:
        first = incident.hypothesis.culprits[0]
        names = [str(first)]
    else:
        names = sorted(incident.nodes) or [f"job {attempt.job}" for attempt in sorted(incident.victims)]
    if not names:
        return "unknown"
    return names[0] + (f" and {len(names) - 1} more" if names[1:] else "")


def victims_of(incident: Incident) -> str:
    """Return who suffers, in a few words."""
    jobs = [attempt.job for attempt in sorted(incident.victims)]
    nodes = () if incident.hypothesis is None else incident.hypothesis.affected_nodes
    parts = [f"job {', '.join(jobs)}" if len(jobs) <= 3 else f"{len(jobs)} jobs"] if jobs else []
    parts += [counted(len(nodes), "node")] if nodes else []
    return ", ".join(parts) or "nobody known"


def next_step(incident: Incident) -> str:
    """Return what happens next, as far as the incident itself shows; `remediation_plan` has the steps."""
    called_for = incident.response.name.lower().replace("_", " ")
    match incident.state:
        case IncidentState.OPEN:
            return f"{called_for}: see remediation plan for the steps, or for what they wait for"
        case IncidentState.ACTING:
            return f"{called_for}, under way"
        case IncidentState.VERIFYING:
            return "the node proves itself, then it is returned"
        case IncidentState.PROBATION:
            return "in service as last choice, and watched until its probation is over"
        case IncidentState.IN_REPAIR:
            return "waits for repair by hands: see repair queue"
        case IncidentState.ESCALATED:
            return f"yours: {asked_of_person(incident)}"
        case _:
            return f"none: {incident.note}"


def _family_of(incident: Incident) -> Family:
    if incident.hypothesis is not None:
        return incident.hypothesis.family
    return next((each.family for each in incident.findings), Family.UNKNOWN)


def _plain(text: str) -> str:
    """Return a text on one line, not too long, in which no character means anything to Markdown."""
    flat = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    shown = flat if len(flat) <= _LONGEST_SENTENCE else f"{flat[: _LONGEST_SENTENCE - 1]}…"
    return _SPECIAL.sub(r"\\\1", shown)


BACK = timedelta(days=7)
WRITTEN_AT_ONCE = 3
"""Assumption: a tenth of a second each, so that the next run that acts is not late. What all of them compare with is
read once: with 10,000 incidents in a quarter that is 0.6 s."""
_OPEN_ONES_EVERY = timedelta(minutes=1)
"""What an open incident's acts change is not the incident: its page is written again this often."""
_JITTER = timedelta(milliseconds=1)
"""A file's time is a float."""
_WORDS_AT_MOST = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """A page that was just written."""

    report: IncidentReport
    place: str


@dg.asset(group_name="report", deps=["verifications"], kinds={"html"}, code_version="1")
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
    from ops_pipelines.report.html import page_of
    from ops_pipelines.review.incident_document import incident_document

    stale = [each for each in incidents if _is_stale(each, shelf.shows(each.incident), now=now)]
    written = []
    history = history_of(stale[:WRITTEN_AT_ONCE], cluster.ledger, now=now)
    for incident in stale[:WRITTEN_AT_ONCE]:
        report = report_on(incident, cluster, history=history)
        place = shelf.keep(incident.incident, page_of(incident_document(report)), shows=now)
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
    shown["reports"] = table(_report_row(each, cluster.page_shelf) for each in incidents)
    return shown


def _in_short(report: IncidentReport) -> str:
    def words(text: str) -> str:
        return escape_markdown(text, at_most=_WORDS_AT_MOST)

    lines = [f"**{words(report.headline)}**", words(report.standing)]
    lines += [f"- {each.urgency.value}: {escape_markdown(each.what, at_most=120)}" for each in report.follow_ups[:1]]
    lost = gpu_hours_words(report.cost.lost)
    lines.append(f"{lost} GPU-hours lost by jobs, {gpu_hours_words(report.cost.out_of_service)} out of service")
    return "\n\n".join(lines)


def _report_row(incident: Incident, shelf: PageShelf | None) -> Mapping[str, object]:
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
