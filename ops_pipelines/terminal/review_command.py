"""`ops-pipelines review`: the reliability of one week, in words, as JSON, or as a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.caller import DEFAULT_CLUSTER_FILE, AsJson, ClusterFile, open_named
from ops_pipelines.terminal.edge import ExitCode, at_the_edge, complain

if TYPE_CHECKING:
    from rich.console import Console

    from ops_pipelines.review.week.weekly_review import WeeklyReview


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

    Measured from the ledger and the lake; what neither holds is said and stands in no number. The present week is
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
    from ops_pipelines.pages.weekly_review import write_weekly_review
    from ops_pipelines.report.json_form import to_json
    from ops_pipelines.review.week.weekly_review import review_week
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
        try:
            html.write_text(write_weekly_review(found), encoding="utf-8")
        except OSError as problem:
            complain(f"{html} cannot be written: {problem.strerror}. Name a file in a directory that you may write to.")
            raise typer.Exit(ExitCode.USAGE) from problem
    if json:
        typer.echo(to_json(view_review(found)))
    else:
        print_review(Console(), found)


def print_review(out: "Console", found: "WeeklyReview") -> None:
    """Print the sentences, the components that failed, the promises, and what is missing."""
    from rich.table import Table

    from ops_pipelines.core.objectives import UNITS
    from ops_pipelines.core.overlap import tell
    from ops_pipelines.pages.review_numbers import PROMISES, shown_ratio, shown_team, time_between
    from ops_pipelines.pages.review_sentences import words_of
    from ops_pipelines.report.numbers import duration

    head, *sentences = words_of(found)
    out.print(_plain(head), style="bold")
    for number, sentence in enumerate(sentences, start=1):
        out.print(_plain(f"{number}. {sentence}"))
    failed = [each for each in found.components if each.failures.event_count or each.open_count]
    if failed:
        table = Table(title="failures", title_justify="left")
        for heading in ("component", "failures", "mean time between", "mean repair", "still out"):
            table.add_column(heading)
        for line in failed:
            table.add_row(
                line.component,
                str(line.failures.event_count),
                time_between(line.failures, unit=line.unit),
                "-" if line.repairs is None else duration(line.repairs.mean),
                str(line.open_count),
            )
        out.print(table)
    if found.budgets:
        table = Table(title="promises", title_justify="left")
        for heading in ("team", "work", "promise", "target", "measured", "budget left", "state"):
            table.add_column(heading)
        for budget in found.budgets:
            kind = budget.objective.kind
            table.add_row(
                _plain(shown_team(budget.objective.team)),
                budget.objective.workload.value,
                PROMISES[kind],
                shown_ratio(budget.objective.target_ratio, digits=2),
                "too little data" if budget.good_ratio is None else shown_ratio(budget.good_ratio, digits=2),
                "-" if budget.left_ratio is None else f"{budget.left_ratio:.0%} of the {UNITS[kind]}",
                budget.state.value,
            )
        out.print(table)
    for overlap in found.numbers.overlaps:
        out.print(_plain(f"! {tell(overlap, now=found.numbers.until)}"))
    if found.missing:
        out.print("Not in any number:")
        for each in found.missing:
            out.print(_plain(f"- {each}"))


def _plain(text: str) -> str:
    """Return a text without control characters, and nothing in it that Rich would take for markup."""
    from rich.markup import escape

    return escape("".join(each if each.isprintable() else "?" for each in text))
