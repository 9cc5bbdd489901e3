"""`ops-pipelines advice`: what teams could do better, as a table or as JSON. Tells nobody, keeps nothing."""

from collections.abc import Collection
from typing import Annotated

import typer

from ops_pipelines.terminal.caller import DEFAULT_CLUSTER_FILE, AsJson, ClusterFile, refuse_empty_team
from ops_pipelines.terminal.edge import ExitCode, at_the_edge, complain

_NAMED = 200


@at_the_edge
def advice(
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    team: Annotated[str | None, typer.Option("--team", help="One team alone; all unless given.")] = None,
    week: Annotated[
        str | None, typer.Option("--week", help="A week of ISO 8601, as 2026-W47; the last whole one unless given.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show what teams could do better in a week: evidence, what speaks against it, the gain, what to change.

    Looks and tells nobody: the weekly message is sent by the asset efficiency_advice. Reads the week from the lake:
    seconds on a small cluster, minutes on a large one.

    \b
    JSON: cluster, week, currency (null without prices), advice [team, kind, subject, evidence [text],
    counter_evidence [text], gain_low_gpu_hours, gain_gpu_hours, gain_bytes, gain_cents (null: not known), what_to_do,
    confidence, measure, held_gpu_hours], withheld [team, kind, subject, why], not_known [text]. Gains are of one week.
    """
    from rich.console import Console

    from ops_pipelines.core.periods import parse_week, week_of
    from ops_pipelines.efficiency.report import advice_document, advice_json, of_team, report_rows
    from ops_pipelines.efficiency.week import find_advice, sentences
    from ops_pipelines.report.json_form import to_json
    from ops_pipelines.report.terminal import console, print_document
    from ops_pipelines.wiring import open_teams_desk

    refuse_empty_team(team)
    desk = open_teams_desk(cluster_file.absolute())
    try:
        asked = week_of(desk.clock.now()).before if week is None else parse_week(week)
        with Console(stderr=True).status("reading") as status:
            report = find_advice(asked, desk, on_step=lambda step: status.update(f"reading {step}"))
    except ValueError as problem:
        complain(f"--week: {problem}")
        raise typer.Exit(ExitCode.USAGE) from problem
    shown = report if team is None else of_team(report, team)
    if team is not None and not shown.found_count and desk.agreements is not None:
        _refuse_unknown(team, desk.agreements.parents)
    cluster = desk.cluster.name
    if json:
        typer.echo(to_json(advice_json(shown, cluster=cluster)))
        return
    document = advice_document(
        report_rows(shown),
        cluster=cluster,
        week=shown.week,
        currency=shown.currency,
        sentences=sentences(shown, ()),
        now=desk.clock.now(),
    )
    print_document(console(), document)


def _refuse_unknown(team: str, declared: Collection[str]) -> None:
    """End the call for a team that is not in the file of teams: nothing seen of it would read as all being well."""
    from difflib import get_close_matches

    if team in declared:
        return
    near = get_close_matches(team[:_NAMED], declared, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(sorted(declared)[:10])}"
    complain(f"nothing was seen of a team {team[:_NAMED]}, and none is declared; {hint}")
    raise typer.Exit(ExitCode.REFUSED)
