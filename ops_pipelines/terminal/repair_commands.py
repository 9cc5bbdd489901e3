"""`ops-pipelines ladder`, `probation` and `repair`: where nodes stand, which are watched, and which wait for hands.

What they say is `remediate.nodes.tests` and `remediate.by_hand`; the shape of it `ladder_views`, its print
`ladder_tables`.
"""

from typing import Annotated

import typer

from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    AsJson,
    ClusterFile,
    ExitCode,
    at_the_edge,
    complain,
    end_with,
    find_incident,
    open_named,
    who_calls,
)

repair_app = typer.Typer(
    help="The repair queue: nodes that no repair of ours helped.", no_args_is_help=True, rich_markup_mode=None
)
_LONGEST_NOTE = 1000


@at_the_edge
def ladder(
    ctx: typer.Context,
    node: Annotated[str | None, typer.Option("--node", help="This node alone.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the rungs themselves, with their limits here.")
    ] = False,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Show every node that stands above watching: its rung, what did not help, what comes next.

    \b
    JSON: cluster, taken_at, problems [text], nodes [node, incident, state, rung, rung_number, since, for_seconds,
    cause, tries [repair, ended_at, why], next_rung or null, waits_for]. With --explain: cluster, rungs [rung,
    number, acts, precondition, witness, compensation, limit_seconds or null, max_tries or null].
    """
    from ops_pipelines.remediate.nodes.tests import standings_of
    from ops_pipelines.report.json_form import to_json
    from ops_pipelines.report.terminal import console
    from ops_pipelines.terminal.ladder import (
        LadderView,
        RungsView,
        print_ladder,
        print_rungs,
        view_rungs,
        view_standing,
    )
    from ops_pipelines.terminal.outlook import Outlook

    cluster = open_named(ctx, cluster_file)
    if explain:
        policy = cluster.rules.policy
        rungs = RungsView(cluster=cluster.name, rungs=view_rungs(policy.durations, policy.ladder))
        if json:
            typer.echo(to_json(rungs))
        else:
            print_rungs(console(), rungs)
        return
    if node is not None and node not in cluster.rules.topology.places:
        complain(f"{node} is not declared in cluster.yaml; check its name there")
        raise typer.Exit(ExitCode.REFUSED)
    outlook = Outlook(cluster)
    now = cluster.clock.now()
    standings = standings_of(cluster, outlook.state)
    view = LadderView(
        cluster=cluster.name,
        taken_at=now,
        nodes=tuple(view_standing(each, outlook, now=now) for each in standings if node in (None, each.node)),
        problems=outlook.problems,
    )
    if json:
        typer.echo(to_json(view))
    else:
        print_ladder(console(), view)
    end_with(view.problems)


@at_the_edge
def probation(ctx: typer.Context, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE, json: AsJson = False) -> None:
    """List the nodes that were returned and are watched: until when, what would end it, what runs on them.

    \b
    JSON: cluster, taken_at, problems [text], nodes [node, incident, since, until, left_seconds, ends_with,
    jobs [text] or null if the scheduler did not answer].
    """
    from ops_pipelines.remediate.nodes.tests import probations_of
    from ops_pipelines.report.json_form import to_json
    from ops_pipelines.report.terminal import console
    from ops_pipelines.terminal.ladder import ProbationsView, print_probations, view_probation

    cluster = open_named(ctx, cluster_file)
    now = cluster.clock.now()
    found = probations_of(cluster, cluster.ledger.read_state(now))
    is_silent = any(each.jobs is None for each in found)
    view = ProbationsView(
        cluster=cluster.name,
        taken_at=now,
        nodes=tuple(view_probation(each, now=now) for each in found),
        problems=("the scheduler did not say what runs on them",) if is_silent else (),
    )
    if json:
        typer.echo(to_json(view))
    else:
        print_probations(console(), view)
    end_with(view.problems)


@repair_app.command("list")
@at_the_edge
def list_queue(ctx: typer.Context, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE, json: AsJson = False) -> None:
    """List the nodes that wait for hands, the longest waiting first.

    \b
    JSON: cluster, taken_at, nodes [node, incident, since, age_seconds, cause, parts [text], asks [text]].
    """
    from ops_pipelines.remediate.by_hand import queue_of
    from ops_pipelines.report.json_form import to_json
    from ops_pipelines.report.terminal import console
    from ops_pipelines.terminal.ladder import QueueView, print_queue, view_waiting

    cluster = open_named(ctx, cluster_file)
    view = QueueView(
        cluster=cluster.name,
        taken_at=cluster.clock.now(),
        nodes=tuple(view_waiting(each) for each in queue_of(cluster)),
    )
    if json:
        typer.echo(to_json(view))
    else:
        print_queue(console(), view)


@repair_app.command()
@at_the_edge
def report(
    ctx: typer.Context,
    incident: Annotated[str, typer.Argument(help="Such as INC-0007; `repair list` lists what waits.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Write the report for the vendor, as Markdown on standard output.

    The node is asked once how it sees itself. Words of logs and tests are escaped: none of them is markup.

    \b
    JSON: incident, node, chassis_serial, written_at, began_at, what_broke, sureness or null, asks [text], parts
    [part, pci_address, serial, model, firmware, reasons, earlier_incident_count], signs [first_at, last_at, count,
    part, rule, says, lines], left_out_sign_count, useless_repairs [repair, ended_at, why], repairs [begun_at, act,
    outcome, witness], tests [finished_at, suite, test, result, said, values [name, value, unit, part, low, high,
    verdict, source]], versions [text], history [incident, began_at, state, cause, parts, note], evidence, not_known.
    """
    from ops_pipelines.remediate.by_hand import report_for
    from ops_pipelines.remediate.repair_report import as_markdown
    from ops_pipelines.report.json_form import to_json

    cluster = open_named(ctx, cluster_file)
    known = find_incident(incident, cluster)
    written = report_for(cluster, known.incident)
    typer.echo(to_json(written) if json else as_markdown(written), nl=json)


@repair_app.command()
@at_the_edge
def done(
    ctx: typer.Context,
    incident: Annotated[str, typer.Argument(help="The incident whose node is mended.")],
    note: Annotated[str, typer.Option(help="What was done, such as: replaced GPU 3 by serial 1652823054567.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
) -> None:
    """Say in your name that a node is mended. It stays drained until its tests have shown that it is well."""
    from ops_pipelines.remediate.by_hand import mark_repaired
    from ops_pipelines.report.terminal import console, print_lines

    if not note.strip():
        raise typer.BadParameter("it is empty; name the part and the serial of the new one", param_hint="--note")
    if len(note) > _LONGEST_NOTE:
        raise typer.BadParameter(
            f"it has {len(note)} characters; at most {_LONGEST_NOTE} are kept", param_hint="--note"
        )
    cluster = open_named(ctx, cluster_file)
    known = find_incident(incident, cluster)
    mended = mark_repaired(cluster, known.incident, actor=who_calls(), note=note, now=cluster.clock.now())
    said = f"{mended.incident} is {mended.state.value}: {mended.note}"
    print_lines(console(), [said, "the node stays drained until its tests have passed; then it is on probation"])
