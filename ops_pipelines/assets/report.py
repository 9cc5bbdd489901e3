"""Group `report`: the hand-over to the next shift."""

from collections.abc import Mapping
from datetime import timedelta

import dagster as dg

from ops_pipelines.assets.verify import verifications
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.report.metadata import count, table
from ops_pipelines.review.shift import IncidentLine, ShiftReport, write_shift_report

GROUP = "report"
SHIFT = timedelta(hours=8)
_LINES_AT_MOST = 6
_SHOWN_IN_PLACE = 890
"""Markdown up to this long is shown in place by the Dagster UI; longer text (1,044 characters) became a link."""
_WIDTH = 44


@dg.asset(group_name=GROUP, deps=[verifications], kinds={"markdown"}, code_version="1")
def shift_report(cluster: dg.ResourceParam[Cluster]) -> dg.Output[None]:
    """The last 8 hours as a good hand-over tells them: what needs you, what is under way, what healed, the numbers."""
    return dg.Output(None, metadata=shown_of_shift(cluster))


def shown_of_shift(cluster: Cluster) -> Mapping[str, dg.MetadataValue]:
    """Return what the page of `shift_report` shows now."""
    now = cluster.clock.now()
    incidents = cluster.ledger.incidents_since(now - SHIFT)
    report = write_shift_report(
        incidents,
        {incident.incident: cluster.ledger.records(incident.incident) for incident in incidents},
        cluster.scheduler.read_nodes(),
        cluster.scheduler.read_jobs(),
        since=now - SHIFT,
        until=now,
    )
    return {
        "hand_over": dg.MetadataValue.md(as_markdown(report, cluster.name)),
        "needs_human_count": count(report.needs_human),
        "under_way_count": count(report.under_way),
        "healed_count": count(report.healed),
        "failed_action_count": dg.MetadataValue.int(report.failed_action_count),
        "incidents": table(
            {
                "incident": line.incident,
                "state": line.state.value,
                "where": line.where,
                "what": line.what,
                "did": line.did,
                "jobs_moved": line.jobs_moved_count,
                "open_for_seconds": round(line.open_for.total_seconds()),
            }
            for group in (report.needs_human, report.under_way, report.healed, report.told_owner)
            for line in group
        ),
    }


def as_markdown(report: ShiftReport, cluster_name: str) -> str:
    """Return the report as Markdown, with as many lines a section as the UI shows in place; the table has them all."""
    longest = max(len(report.needs_human), len(report.under_way), len(report.healed), 1)
    for line_count in range(min(longest, _LINES_AT_MOST), 0, -1):
        text = _compose(report, cluster_name, line_count=line_count)
        if len(text) <= _SHOWN_IN_PLACE:
            return text
    return _compose(report, cluster_name, line_count=0)


def _compose(report: ShiftReport, cluster_name: str, *, line_count: int) -> str:
    healed_in = report.mean_time_to_heal
    parts = [
        f"**{cluster_name}**, {report.since:%d %b %H:%M} to {report.until:%d %b %H:%M} UTC",
        f"nodes: {_numbers(report.nodes_by_state)}",
        f"jobs: {_numbers(report.jobs_by_state)}",
        _section("Needs you", report.needs_human, "nothing", line_count=line_count),
        _section("Under way", report.under_way, "nothing", line_count=line_count),
        _section("Healed", report.healed, "nothing broke", line_count=line_count),
        f"owners told: {len(report.told_owner)}, cleared: {report.cleared_count}, merged: {report.merged_count}",
        f"failed actions: {report.failed_action_count}"
        + (f", mean time to heal: {healed_in.total_seconds():.0f} s" if healed_in is not None else ""),
    ]
    return "\n\n".join(parts)


def _section(title: str, lines: tuple[IncidentLine, ...], empty: str, *, line_count: int) -> str:
    if not lines:
        return f"**{title}**: {empty}."
    shown = [
        f"- {line.incident}, {_cut(line.where)}, {line.open_for.total_seconds():.0f} s\n\n  {_cut(line.what)}"
        for line in lines[:line_count]
    ]
    more = [f"- and {len(lines) - line_count} more"] if len(lines) > line_count else []
    return "\n".join([f"**{title}** ({len(lines)})", *shown, *more])


def _cut(text: str) -> str:
    """Return the text in at most 44 characters: the column of the UI is no wider, and does not wrap."""
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts.items()) or "none"
