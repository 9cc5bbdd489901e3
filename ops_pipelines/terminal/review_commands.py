"""`ops-pipelines report`, `review`, `replay`: an incident, a week, another policy over recorded history."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    AsJson,
    ClusterFile,
    ExitCode,
    at_the_edge,
    complain,
    find_incident,
    open_named,
)
from ops_pipelines.terminal.past_commands import NOW, NoSuchTime, parse_time

# -- `ops-pipelines report` --


@at_the_edge
def report(
    ctx: typer.Context,
    incident: Annotated[str, typer.Argument(help="Such as INC-0007; `incidents --all` lists them.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the page to this file: one file, nothing to fetch.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Report one incident: what happened when, why, what it cost, what is left to do.

    Reads the ledger alone, so that it works when everything else is down. Costs are GPU-hours.

    \b
    JSON: cluster, written_at, incident, state, response, headline, standing, what_broke, sureness or null,
    at_fault, family, culprits, nodes, gpus, affected_nodes, began_at, opened_at, drained_at, returned_at,
    closed_at, is_open, milestones [number, kind, at, took_seconds, since_began_seconds], events [at, until,
    lane, kind, what, who, detail, verb], waits [who, waited_for, began_at, ended_at, seconds], evidence_for,
    evidence_against, alternatives [statement, confidence, why_less_likely], settled_by, plans [plan, made_at,
    response, called_for, is_begun, steps, effects, rejected_alternatives, timings [job, moment, reason, options
    [moment, lost_gpu_hours, why]], teams, touched_jobs, lost_gpu_hours, remaining [what, stays_count,
    total_count, limit], violations], approvals [plan, actor, via, given_at, expires_at], refusals [at, actor,
    act, guardrail, reason], useless_repairs [repair, ended_at, why], victims [job, name, user, account,
    gpu_count, fate, held_at, stopped_at, resumed_at, progressed_at, lost_by_fault_gpu_hours, lost_by_us_gpu_hours,
    waiting_gpu_hours], cost {by_fault, by_our_acts, waiting, out_of_service, saved, saved_against_nothing,
    not_counted}, follow_ups [urgency, what, why, command], related [incident, state, why], kept_evidence
    [reason, saved_at, place, sha256, is_in_ledger], lines [seq, written_at, kind, actor, what, entry_hash],
    not_known.
    """
    from ops_pipelines.report.document import to_json
    from ops_pipelines.review.incident_document import incident_document
    from ops_pipelines.review.incident_report import report_on

    cluster = open_named(ctx, cluster_file)
    found = report_on(find_incident(incident, cluster), cluster)
    if html is not None:
        from ops_pipelines.report.html import page_of

        _write(html, page_of(incident_document(found)))
    if json:
        typer.echo(to_json(found))
    elif html is not None:
        typer.echo(f"{found.incident} is written to {html}")
    else:
        from ops_pipelines.report.terminal import console, print_document, print_lines

        print_document(console(), incident_document(found))
        more = f"`ops-pipelines report {found.incident} --html FILE` writes the page, with every event and its picture"
        print_lines(console(), ["", more])


def _write(file: Path, page: str) -> None:
    try:
        file.write_text(page, encoding="utf-8", errors="replace")
    except OSError as problem:
        complain(f"{file} cannot be written: {problem.strerror or problem}. Choose another with --html")
        raise typer.Exit(ExitCode.USAGE) from problem


# -- `ops-pipelines review` --


@at_the_edge
def review(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    week: Annotated[
        str | None, typer.Option("--week", help="A week of ISO 8601, as 2026-W47; the present one unless given.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the whole page to this file.")] = None,
    json: AsJson = False,
) -> None:
    """Review the reliability of a week: failures, repairs, effective training time, promises, what we did.

    Measured from the ledger and the lake; what neither holds is stated and is in no number. The present week is
    reviewed up to now. Reads four weeks of the lake: seconds on a small cluster, minutes on a large one.

    \b
    JSON: cluster, week, since, until, is_over, sentences, numbers and before {interruptions, interruptions_by_cause,
    interruptions_per_day, interruptions_per_1000_node_days, work {wanted_gpu_hours, ..., effective_ratio}, failures,
    mean_repair_seconds, saved_gpu_hours, wrong_acts, overlaps, human_interventions}, work_by_team, objectives [team,
    workload, kind, target_ratio, state, good_ratio, budget_left_ratio, burn_rate, exhausted_in_seconds], components [
    component, failures, exposure_hours, mtbf_hours, mttr_seconds, ..._low, ..._high], phases, lemons, acts, wrong_acts,
    overlaps [job, user, began_at, ended_at, certainty, checkpoint], people, coverage, missing [text]. Ratios are 0..1;
    null: not known.
    """
    from rich.console import Console

    from ops_pipelines.core.periods import parse_week, week_of
    from ops_pipelines.report.document import to_json
    from ops_pipelines.report.terminal import console, print_document
    from ops_pipelines.review.week_document import week_document
    from ops_pipelines.review.weekly_review import review_week
    from ops_pipelines.terminal.review_views import view_review
    from ops_pipelines.wiring import open_observatory

    cluster = open_named(ctx, cluster_file)
    try:
        asked = week_of(cluster.clock.now()) if week is None else parse_week(week)
        with Console(stderr=True).status("reading") as status:
            found = review_week(
                asked,
                cluster,
                open_observatory(cluster_file.absolute()),
                on_step=lambda step: status.update(f"reading {step}"),
            )
    except ValueError as problem:
        complain(f"--week: {problem}")
        raise typer.Exit(ExitCode.USAGE) from problem
    if html is not None:
        from ops_pipelines.report.html import page_of

        _write(html, page_of(week_document(found)))
    if json:
        typer.echo(to_json(view_review(found)))
    else:
        print_document(console(), week_document(found))


# -- `ops-pipelines replay` --


if TYPE_CHECKING:
    from ops_pipelines.report.document import Document

_DEFAULT_BACK = timedelta(hours=24)


@at_the_edge
def replay(
    ctx: typer.Context,
    policy: Annotated[Path, typer.Option("--policy", help="The policy.yaml that is proposed.")],
    from_lake: Annotated[
        bool, typer.Option("--from-lake", help="Understand hours without decisions again, from what the lake holds.")
    ] = False,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="ISO 8601, UTC where it names no zone; a day before the end.")
    ] = None,
    until: Annotated[str, typer.Option(metavar="TIME", help="The end; `now` unless given.")] = NOW,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the comparison as a page, too.")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Keep the page where `serve` shows it.")] = False,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Run recorded history through another policy: what it would have done, beside what was done.

    Each recorded decision is made again on its own snapshot, under the rules of then (which must give the same again;
    that is checked and reported) and under the proposed policy. Open-loop: what follows the first difference on a node
    is marked counterfactual. A policy that production would refuse is refused here, too. Hours without decisions are
    left out unless --from-lake; what the lake cannot know is reported. Progress is reported on standard error.

    \b
    JSON: cluster, policy, since, until, summary {same, only_then, only_new, other_moment, counterfactual, then and new
    {act_count, node_act_count, plan_count, lost_gpu_hours, unknown_loss_count, page_count, owner_message_count,
    approval_count, refusals {guardrail: incidents}, false_count, missed_count}, understanding_differences,
    plan_differences, refused_when_due {guardrail: acts}, follow_ups_not_replayed, by_hand}, sentences [text],
    policy_differences [key, then, new], stretches [source (ledger, lake), since, until, decision_count, then, unknown
    [text]], reproduction {decision_count, same_count, different [text], without_rules_count, unreadable_count,
    unreadable [text]}, acts [at, source, difference (same, only_then, only_new, other_moment), incident, verb, target,
    nodes, cause, plan_then, plan_new, then_at, new_at, done_at, outcome, why, team, lost_gpu_hours, is_counterfactual],
    lessons [incident, verdict (real, false_alarm, unknown), how], cautions [text]. GPU-hours are expected ones.
    """
    from ops_pipelines.report.document import to_json
    from ops_pipelines.report.terminal import console, print_document
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.resources.config.policy_file import find_cautions, read_policy
    from ops_pipelines.review.replay import replay as run_again
    from ops_pipelines.review.replay_document import replay_document
    from ops_pipelines.terminal.review_views import view_replay
    from ops_pipelines.wiring import history_of, open_lake, policy_here

    config = read_cluster(cluster_file.absolute())
    proposed = policy_here(config, read_policy(policy, topology=config.topology))
    for caution in find_cautions(proposed, config.topology):
        complain(f"warning: {caution}")
    cluster = open_named(ctx, cluster_file)
    now = cluster.clock.now()
    try:
        end = parse_time(until, now=now)
        begin = end - _DEFAULT_BACK if since is None else parse_time(since, now=now)
        if begin >= end:
            raise NoSuchTime(f"--since {begin:%Y-%m-%d %H:%M} is not before --until {end:%Y-%m-%d %H:%M}")
    except NoSuchTime as problem:
        complain(str(problem))
        raise typer.Exit(ExitCode.USAGE) from problem
    lake = open_lake(config, clock=cluster.clock) if from_lake else None
    found = run_again(
        history_of(cluster, config, lake=lake),
        proposed,
        proposed=policy.name,
        since=begin,
        until=end,
        on_progress=_Progress(begin, end).tell,
    )
    document = replay_document(found, now=now)
    _write_pages(document, html=html, publish_in=config.state_directory if publish else None)
    if json:
        typer.echo(to_json(view_replay(found)))
    else:
        print_document(console(), document)


class _Progress:
    """Reports on standard error how far a long replay is, each tenth of the way."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self._begin = begin
        self._end = end
        self._told: dict[str, int] = {}

    def tell(self, source: str, at: datetime) -> None:
        tenth = int(10 * ((at - self._begin) / (self._end - self._begin)))
        if tenth > self._told.get(source, 0):
            self._told[source] = tenth
            typer.echo(f"{source}: {at:%Y-%m-%d %H:%M} UTC, {10 * tenth} %", err=True)


def _write_pages(document: "Document", *, html: Path | None, publish_in: Path | None) -> None:
    if html is None and publish_in is None:
        return
    from ops_pipelines.report.html import page_of
    from ops_pipelines.resources.page_files import ComparisonPages

    page = page_of(document)
    try:
        if html is not None:
            html.write_text(page, encoding="utf-8")
            complain(f"the page is in {html}")
        if publish_in is not None:
            complain(f"the page is in {ComparisonPages(publish_in).keep(page)}; `serve` shows it at /policy-comparison")
    except OSError as problem:
        complain(f"the page could not be written: {problem}; give a path that this user may write")
        raise typer.Exit(ExitCode.USAGE) from problem
