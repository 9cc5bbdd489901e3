"""Group `report`: the hand-over to the next shift, and the page of remediation.

The page shows where nodes are on the ladder, who waits for hands, what is watched, what was saved, what plans touch:
pictures first, then few words, then tables. Shows; decides nothing. Words of jobs, logs and people are untrusted: no
Markdown of theirs is left as such.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import dagster as dg

from ops_pipelines.assets.loop import verifications
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.incident import Incident, Recovery
from ops_pipelines.core.plan import BlastRadius, IncidentPlan, TouchedJob
from ops_pipelines.remediate.by_hand import WaitingRepair, queue_of
from ops_pipelines.remediate.standings import Probation, Standing, probations_of, standings_of
from ops_pipelines.report.metadata import count, table
from ops_pipelines.report.numbers import escape_markdown
from ops_pipelines.review.cost import RecentRemediation, recent_remediation, sum_by_day_and_team
from ops_pipelines.review.shift import IncidentLine, ShiftReport, write_shift_report

GROUP = "report"
SHIFT = timedelta(hours=8)
_LINES_AT_MOST = 6
_SHOWN_IN_PLACE = 890
"""Markdown up to this long is shown in place by the Dagster UI; longer text (1,044 characters) became a link."""
_WIDTH = 44


@dg.asset(group_name=GROUP, deps=[verifications], kinds={"markdown"}, code_version="1")
def shift_report(cluster: dg.ResourceParam[Cluster]) -> dg.Output[None]:
    """The last 8 hours as a good hand-over has them: what needs you, what is under way, what healed, the numbers."""
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
        text = _shift_text(report, cluster_name, line_count=line_count)
        if len(text) <= _SHOWN_IN_PLACE:
            return text
    return _shift_text(report, cluster_name, line_count=0)


def _shift_text(report: ShiftReport, cluster_name: str, *, line_count: int) -> str:
    healed_in = report.mean_time_to_heal
    parts = [
        f"**{cluster_name}**, {report.since:%d %b %H:%M} to {report.until:%d %b %H:%M} UTC",
        f"nodes: {_numbers(report.nodes_by_state)}",
        f"jobs: {_numbers(report.jobs_by_state)}",
        _section("Needs you", report.needs_human, "nothing", line_count=line_count),
        _section("Under way", report.under_way, "nothing", line_count=line_count),
        _section("Healed", report.healed, "nothing broke", line_count=line_count),
        f"owners notified: {len(report.told_owner)}, cleared: {report.cleared_count}, merged: {report.merged_count}",
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


BACK = timedelta(days=7)
"""Assumption: a page that every run makes again reads a week; longer sums are the ledger's."""
PLANS_SHOWN = 3
_JOBS_NAMED = 4
_WORDS_AT_MOST = 160


@dg.asset(group_name=GROUP, deps=[verifications], code_version="1")
def remediation_page(cluster: dg.ResourceParam[Cluster]) -> dg.Output[None]:
    """Where each node is, the repair queue, probation, GPU-hours saved, and the newest plans with their proof."""
    return dg.Output(None, metadata=shown_of_remediation(cluster))


def shown_of_remediation(cluster: Cluster) -> Mapping[str, dg.MetadataValue]:
    """Return what the page of `remediation_page` shows now."""
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    return describe_remediation(
        standings_of(cluster, state),
        queue_of(cluster),
        probations_of(cluster, state),
        recent_remediation(cluster.ledger, now=now, back=BACK),
        now=now,
    )


def describe_remediation(
    standings: Sequence[Standing],
    waiting: Sequence[WaitingRepair],
    probations: Sequence[Probation],
    recent: RecentRemediation,
    *,
    now: datetime,
) -> Mapping[str, dg.MetadataValue]:
    """Return what the page shows: pictures that open in place, the newest plans, tables, pictures for the dialog."""
    from ops_pipelines.remediate import pictures

    sums = sum_by_day_and_team(recent.savings)
    drawn = {
        "ladder": pictures.ladder_picture(standings),
        "repair_queue": pictures.queue_picture({each.report.node: each.since for each in waiting}, now=now),
        "probation": pictures.probation_picture(probations, now=now),
        "time_saved": pictures.saved_picture(sums, uncounted_job_count=recent.uncounted_job_count),
    }
    shown: dict[str, dg.MetadataValue] = {name: dg.MetadataValue.md(picture.small) for name, picture in drawn.items()}
    # What touches something first: a page alone needs no proof.
    newest = sorted(recent.plans, key=lambda each: each[1].proof is None)[:PLANS_SHOWN]
    for number, (incident, plan) in enumerate(newest, start=1):
        if plan.proof is not None:
            drawn[f"plan_{number}_leaves"] = proof = pictures.proof_picture(plan.proof)
            shown[f"plan_{number}_leaves"] = dg.MetadataValue.md(proof.small)
        shown[f"plan_{number}"] = dg.MetadataValue.md(plan_paragraph(incident, plan))
    shown |= {
        "node_count_on_ladder": count(standings),
        "node_count_in_repair": count(waiting),
        "node_count_on_probation": count(probations),
        "saved_gpu_hours": dg.MetadataValue.float(
            round(sum((each.saved_gpu_hours for each in recent.savings), 0.0), 3)
        ),
        "nodes_on_ladder": table(_standing_row(each) for each in standings),
        "nodes_in_repair": table(_waiting_row(each) for each in waiting),
        "nodes_on_probation": table(_probation_row(each) for each in probations),
        "jobs_moved": table(_recovery_row(each) for each in reversed(recent.recoveries)),
        "saved_by_day": table(
            {"day": day, "team": team, "gpu_hours": round(hours, 2)}
            for day in sorted(sums, reverse=True)
            for team, hours in sorted(sums[day].items())
        ),
    }
    shown |= {f"{name}_large": dg.MetadataValue.md(picture.large) for name, picture in drawn.items() if picture.rows}
    return shown


def plan_paragraph(incident: Incident, plan: IncidentPlan) -> str:
    """Return a plan with its proof as a person reads it, short enough for the UI to show in place."""
    for remaining_count, at_most in ((6, _WORDS_AT_MOST), (4, 120), (2, 80), (0, 60)):
        text = _plan_text(incident, plan, remaining_count=remaining_count, at_most=at_most)
        if len(text) <= _SHOWN_IN_PLACE:
            return text
    return f"{escape_markdown(plan.plan, at_most=40)}: its proof is in the tables of the ledger"


def _plan_text(incident: Incident, plan: IncidentPlan, *, remaining_count: int, at_most: int) -> str:
    def words(text: str) -> str:
        return escape_markdown(text, at_most=at_most)

    head = f"**{words(plan.plan)}** for {words(incident.incident)}, {plan.response.name.lower().replace('_', ' ')}"
    lines = [f"{head}: {words(plan.reason)}"]
    if plan.proof is None:
        return "\n\n".join([*lines, "It touches no node and no job."])
    proof = plan.proof
    lines.append(f"**Touches** {words(_touched(proof))}")
    kept = [
        f"- {words(f'{each.kind} {each.name}'.replace('_', ' ').strip())}: "
        f"{each.total_count - each.out_after_count:,} of {each.total_count:,} stay"
        f"{f', {words(each.limit)}' if each.limit else ''}"
        for each in proof.remaining[:remaining_count]
    ]
    lines += ["**Remains**\n" + "\n".join(kept)] if kept else []
    broken = [f"- {words(each)}" for each in proof.violations[: max(1, remaining_count // 2)]]
    lines.append("**Breaks**\n" + "\n".join(broken) if broken else "It breaks no limit.")
    return "\n\n".join(lines)


def _touched(proof: BlastRadius) -> str:
    interrupted = [each for each in proof.jobs if each.is_interrupted]
    if not proof.jobs:
        return "no job"
    named = ", ".join(_job(each) for each in proof.jobs[:_JOBS_NAMED])
    more = f" and {len(proof.jobs) - _JOBS_NAMED} more" if len(proof.jobs) > _JOBS_NAMED else ""
    unknown = f", of {proof.unknown_loss_count} not known" if proof.unknown_loss_count else ""
    teams = ", ".join(proof.teams) or "no team"
    return (
        f"{len(proof.jobs)} jobs ({named}{more}) of {teams}; {len(interrupted)} interrupted, "
        f"{proof.lost_gpu_hours:,.1f} GPU-hours lost{unknown}"
    )


def _job(job: TouchedJob) -> str:
    return f"{job.job}, {job.gpu_count} GPUs" + ("" if job.is_interrupted else ", continues")


def _standing_row(standing: Standing) -> Mapping[str, object]:
    """Return few columns: the UI cuts off what is wider than its page."""
    tried = "; ".join(f"{each.response.name.lower()}: {each.why}" for each in standing.incident.tries)
    return {
        "node": standing.node,
        "rung": standing.rung.name.lower(),
        "since": f"{standing.since:%d %b %H:%M}",
        "incident": standing.incident.incident,
        "did_not_help": tried,
        "next": "" if standing.next_rung is None else standing.next_rung.name.lower(),
        "waits_for": standing.waits_for,
    }


def _waiting_row(waiting: WaitingRepair) -> Mapping[str, object]:
    return {
        "node": waiting.report.node,
        "incident": waiting.incident.incident,
        "days": round(waiting.age / timedelta(days=1), 1),
        "what_is_asked_for": "; ".join(waiting.report.asks),
    }


def _probation_row(probation: Probation) -> Mapping[str, object]:
    jobs = probation.jobs
    return {
        "node": probation.node,
        "incident": probation.incident.incident,
        "since": f"{probation.since:%d %b %H:%M}",
        "until": f"{probation.until:%d %b %H:%M}",
        "jobs": "not known" if jobs is None else ", ".join(jobs) or "none",
    }


def _recovery_row(recovery: Recovery) -> Mapping[str, object]:
    """Return one moved job with the proof that it continues, or what is known instead."""
    if recovery.progressed_at is not None:
        proof = f"a newer checkpoint at {recovery.progressed_at:%d %b %H:%M}"
    elif recovery.ended_as:
        proof = f"none: {recovery.ended_as}"
    else:
        proof = "none yet" if recovery.resumed_at is not None else "not started again yet"
    checkpoint = recovery.checkpointed_at
    return {
        "job": recovery.attempt.job,
        "gpus": recovery.gpu_count,
        "held": f"{recovery.held_at:%d %b %H:%M}",
        "checkpoint": "not known" if checkpoint is None else f"{checkpoint:%d %b %H:%M}",
        "resumed": "" if recovery.resumed_at is None else f"{recovery.resumed_at:%d %b %H:%M}",
        "proof_of_progress": proof,
    }
