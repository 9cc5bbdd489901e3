"""`ops-pipelines ladder`, `probation` and `repair`: where nodes stand, which are watched, and which wait for hands.

What they answer is `remediate.verify` and `remediate.by_hand`; its keys and documents are `nodes` beside this.
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
    print_answer,
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
    """Show every node that is above watching: its rung, what did not help, what comes next.

    \b
    JSON: cluster, taken_at, problems [text], nodes [node, incident, state, rung, rung_number, since, for_seconds,
    cause, tries [repair, ended_at, why], next_rung or null, waits_for]. With --explain: cluster, rungs [rung,
    number, acts, precondition, witness, compensation, limit_seconds or null, max_tries or null].
    """
    from ops_pipelines.core.identity import NodeName
    from ops_pipelines.terminal.nodes import (
        ladder_document,
        ladder_json,
        ladder_places,
        rungs_document,
        rungs_json,
    )
    from ops_pipelines.terminal.outlook import Outlook

    cluster = open_named(ctx, cluster_file)
    name, now = cluster.name, cluster.clock.now()
    if explain:
        durations, limits = cluster.rules.policy.durations, cluster.rules.policy.ladder
        print_answer(
            lambda: {"cluster": name, "rungs": rungs_json(durations, limits)},
            lambda: rungs_document(durations, limits, cluster=name),
            as_json=json,
        )
        return
    if node is not None and node not in cluster.rules.topology.places:
        complain(f"{node} is not declared in cluster.yaml; check its name there")
        raise typer.Exit(ExitCode.REFUSED)
    outlook = Outlook(cluster)
    places = ladder_places(cluster, outlook, node=None if node is None else NodeName(node))
    print_answer(
        lambda: ladder_json(places, cluster=name, now=now, problems=outlook.problems),
        lambda: ladder_document(places, cluster=name, now=now),
        as_json=json,
    )
    end_with(outlook.problems)


@at_the_edge
def probation(ctx: typer.Context, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE, json: AsJson = False) -> None:
    """List the nodes that were returned and are watched: until when, what would end it, what runs on them.

    \b
    JSON: cluster, taken_at, problems [text], nodes [node, incident, since, until, left_seconds, ends_with,
    jobs [text] or null if the scheduler did not answer].
    """
    from ops_pipelines.remediate.standings import probations_of
    from ops_pipelines.terminal.nodes import probations_document, probations_json

    cluster = open_named(ctx, cluster_file)
    name, now = cluster.name, cluster.clock.now()
    found = probations_of(cluster, cluster.ledger.read_state(now))
    is_silent = any(each.jobs is None for each in found)
    problems = ["the scheduler did not report what runs on them"] if is_silent else []
    print_answer(
        lambda: probations_json(found, cluster=name, now=now, problems=problems),
        lambda: probations_document(found, cluster=name, now=now),
        as_json=json,
    )
    end_with(problems)


@repair_app.command("list")
@at_the_edge
def list_queue(ctx: typer.Context, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE, json: AsJson = False) -> None:
    """List the nodes that wait for hands, the longest waiting first.

    \b
    JSON: cluster, taken_at, nodes [node, incident, since, age_seconds, cause, parts [text], asks [text]].
    """
    from ops_pipelines.remediate.by_hand import queue_of
    from ops_pipelines.terminal.nodes import queue_document, queue_json

    cluster = open_named(ctx, cluster_file)
    found, name, now = queue_of(cluster), cluster.name, cluster.clock.now()
    print_answer(
        lambda: queue_json(found, cluster=name, now=now), lambda: queue_document(found, cluster=name), as_json=json
    )


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
    outcome, witness], tests [finished_at, suite, test, result, `said`, values [name, value, unit, part, low, high,
    verdict, source]], versions [text], history [incident, began_at, state, cause, parts, note], evidence, not_known.
    """
    from ops_pipelines.remediate.by_hand import report_for
    from ops_pipelines.remediate.repair_report import as_markdown
    from ops_pipelines.report.document import to_json

    cluster = open_named(ctx, cluster_file)
    known = find_incident(incident, cluster)
    written = report_for(cluster, known.incident)
    typer.echo(to_json(written) if json else as_markdown(written), nl=json)


@repair_app.command()
@at_the_edge
def done(
    ctx: typer.Context,
    incident: Annotated[str, typer.Argument(help="The incident whose node is repaired.")],
    note: Annotated[str, typer.Option(help="What was done, such as: replaced GPU 3 by serial 1652823054567.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
) -> None:
    """Say in your name that a node is repaired. It stays drained until its tests have shown that it is well."""
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
