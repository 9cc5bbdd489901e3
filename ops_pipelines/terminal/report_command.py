"""`ops-pipelines report`: one incident from its beginning to its end, for whoever was asleep.

What it says is `review.incident_report`'s; as HTML it is `pages.incident_report`'s, and here its print.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.caller import DEFAULT_CLUSTER_FILE, AsJson, ClusterFile, find_incident, open_named
from ops_pipelines.terminal.edge import ExitCode, at_the_edge, complain

if TYPE_CHECKING:
    from ops_pipelines.review.incident_report import IncidentReport


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
    from ops_pipelines.report.json_form import to_json
    from ops_pipelines.review.incident_report import report_on

    cluster = open_named(ctx, cluster_file)
    told = report_on(find_incident(incident, cluster), cluster)
    if html is not None:
        from ops_pipelines.pages.incident_report import write_incident_page

        _write(html, write_incident_page(told))
    if json:
        typer.echo(to_json(told))
    elif html is not None:
        typer.echo(f"{told.incident} is written to {html}")
    else:
        _print(told)


def _write(file: Path, page: str) -> None:
    try:
        file.write_text(page, encoding="utf-8", errors="replace")
    except OSError as problem:
        complain(f"{file} cannot be written: {problem.strerror or problem}. Choose another with --html")
        raise typer.Exit(ExitCode.USAGE) from problem


def _print(report: "IncidentReport") -> None:
    """Print the head of the report: what a person reads first. The rest is in the page and in the JSON."""
    from ops_pipelines.report.numbers import span_words
    from ops_pipelines.report.terminal import console, print_fields, print_lines
    from ops_pipelines.review.story.chain import gpu_hours_words

    out = console()
    print_lines(out, [f"{report.incident}  {report.state.replace('_', ' ')}", report.headline, report.standing, ""])
    print_lines(out, ["What is left to do"])
    for todo in report.follow_ups:
        print_lines(out, [f"  {todo.urgency.value}: {todo.what} ({todo.why})"])
        if todo.command:
            print_lines(out, [f"      {todo.command}"])
    if not report.follow_ups:
        print_lines(out, ["  nothing"])
    print_lines(out, ["", "What happened when (UTC)"])
    for each in report.milestones:
        took = "" if each.number == 1 else f", after {span_words(each.took_seconds)}"
        print_lines(out, [f"  {each.at:%d %b %H:%M:%S}  {each.kind.value}{took}"])
    for wait in report.waits:
        print_lines(out, [f"  waited: {wait.who} for {wait.waited_for}, {span_words(wait.seconds)}"])
    print_lines(out, ["", "Cost in GPU-hours"])
    cost = report.cost
    fields = {
        "  lost by the fault": gpu_hours_words(cost.by_fault),
        "  lost by our acts": gpu_hours_words(cost.by_our_acts),
        "  jobs stood still": gpu_hours_words(cost.waiting),
        "  out of service": gpu_hours_words(cost.out_of_service),
    }
    if cost.saved is not None:
        fields["  saved, expected"] = gpu_hours_words(cost.saved)
    print_fields(out, fields)
    for sentence in cost.not_counted:
        print_lines(out, [f"  not counted: {sentence}"])
    print_lines(out, ["", f"`ops-pipelines report {report.incident} --html FILE` writes the page with its evidence"])
