"""The command line: all its commands in their order, and those that show the state of a cluster.

What is decided is in the subjects; the shape and print of answers, and the other commands, in `terminal`.
Everything beyond typer is imported inside functions, so that `--help` and completion answer at once. Longer than our
modules are, because each command carries its help text.
"""

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from ops_pipelines import lake_cli
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.laboratory import laboratory
from ops_pipelines.terminal import (
    first_day,
    log_commands,
    people_commands,
    repair_commands,
    review_commands,
    rollout_commands,
    team_commands,
)
from ops_pipelines.terminal import host_commands as backup_commands
from ops_pipelines.terminal import past_commands as diagnose
from ops_pipelines.terminal import past_commands as prove
from ops_pipelines.terminal.capacity_commands import capacity_app
from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    RECENT,
    AsJson,
    ClusterFile,
    ExitCode,
    StateDirectory,
    at_the_edge,
    complain,
    end_with,
    find_incident,
    open_named,
    print_answer,
)
from ops_pipelines.terminal.host_commands import guard_app
from ops_pipelines.terminal.node_commands import gates_app, node_check, node_install_app, node_versions
from ops_pipelines.terminal.quota_commands import quota_app
from ops_pipelines.terminal.rollout_commands import versions
from ops_pipelines.terminal.team_commands import cost_app, placement

_EPILOG = """\b
Exit codes:
  0  all is well
  1  unexpected: a fault of this program; the traceback is on standard error
  2  wrong usage or configuration
  3  a system, the ledger and the autopilot itself included, did not answer, or `status` and `incidents` found
     a broken configuration; what could be read was printed
  4  not found, refused, or declined; nothing was changed
  5  the ledger is damaged
"""

app = typer.Typer(
    help="Watch and steer the operations autopilot of a GPU cluster.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
audit_app = typer.Typer(help="Prove that the ledger is whole.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(audit_app, name="audit")
app.command()(first_day.init)
app.command()(first_day.doctor)
app.command()(backup_commands.backup)
app.command()(backup_commands.restore)
app.command()(lake_cli.ingest)
app.command()(diagnose.diagnose)
app.command()(prove.prove)
app.command()(review_commands.replay)
app.command()(review_commands.report)
app.command()(review_commands.review)
app.command()(team_commands.advice)
app.command()(node_check)
app.add_typer(node_install_app, name="node-install")
app.command()(node_versions)
app.add_typer(lake_cli.telemetry_app, name="telemetry")
app.add_typer(log_commands.logs_app, name="logs")
app.add_typer(gates_app, name="gates")
app.command()(repair_commands.ladder)
app.command()(repair_commands.probation)
app.add_typer(repair_commands.repair_app, name="repair")
app.add_typer(guard_app, name="guard")
app.add_typer(rollout_commands.rollout_app, name="rollout")
app.add_typer(quota_app, name="quota")
app.add_typer(capacity_app, name="capacity")
app.command()(placement)
app.add_typer(cost_app, name="cost")
app.command()(versions)


@at_the_edge
def simulate_elsewhere() -> None:
    """Needs the laboratory: pip install 'ops-pipelines[lab]'."""
    laboratory("whatif.simulate")


try:
    app.command()(laboratory("whatif.simulate").simulate)
    rollout_commands.rollout_app.command("simulate")(laboratory("whatif.lifecycle.simulate").rollout_simulate)
except PolicyError:
    for each in (app, rollout_commands.rollout_app):
        each.command("simulate", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(
            simulate_elsewhere
        )


def main() -> None:
    """Run the command line. Text that the terminal's encoding lacks is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()


@app.command()
@at_the_edge
def check_config(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    offline: Annotated[bool, typer.Option("--offline", help="Read the files only; ask no system.")] = False,
) -> None:
    """Check the configuration, and whether each system answers.

    Every fault of a file is shown at once: what was found, what was expected, what to do. `mode: auto` is refused where
    the scheduler gives a silent node up before its jobs could be held, and where `fleet` lacks what nodes need to come
    back.
    """
    from ops_pipelines.core.policy import Mode
    from ops_pipelines.core.sources import SourceError
    from ops_pipelines.remediate.timeliness import find_objections, read_lateness
    from ops_pipelines.report.terminal import console, print_fields, print_lines
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.resources.web_access import read_link_key
    from ops_pipelines.terminal.config_check import (
        ask_limits,
        call_the_roll,
        find_all_cautions,
        find_all_gaps,
        read_stated,
        summarise,
    )
    from ops_pipelines.wiring import read_rules

    config = read_cluster(cluster_file)
    rules = read_rules(config)
    stated = read_stated(config)
    agreements = stated.agreements
    if config.serve.link_key_file is not None:
        read_link_key(config.serve.link_key_file)
    out = console()
    print_lines(out, [f"{cluster_file} and {config.policy_path} can be used"])
    print_fields(out, summarise(config, rules))
    for caution in find_all_cautions(config, rules, stated):
        complain(f"warning: {caution}")
    unchecked = f"not checked: whether the scheduler leaves room for mode: {Mode.AUTO.value}"
    is_auto = rules.policy.mode is Mode.AUTO
    gaps = find_all_gaps(config, rules)
    if offline:
        for gap in gaps:
            complain(f"warning: {gap.reason}")  # The code server starts all the same: it watches, and asks first.
        if is_auto:
            complain(f"warning: {unchecked}; run this without --offline")
        return
    cluster = open_named(ctx, cluster_file)
    answers = call_the_roll(cluster, limits=ask_limits(config, agreements, clock=cluster.clock))
    print_fields(out, {answer.system: answer.said or "NO ANSWER" for answer in answers})
    problems = [f"{answer.system}: {answer.problem}" for answer in answers if answer.problem is not None]
    try:
        objections = find_objections(cluster.scheduler.read_limits(), rules.policy)
    except SourceError as problem:
        objections = ()
        if is_auto:
            problems.append(f"{unchecked}: {problem}")
        else:
            complain(f"warning: {unchecked}: {problem}")
    lateness = read_lateness(cluster.ledger, cluster.clock.now())
    if is_auto and lateness is not None:
        complain(f"warning: mode auto is approve since {lateness.since:%Y-%m-%d %H:%M:%S} UTC: {lateness.why}")
    objections = (*gaps, *objections)
    for objection in objections:
        complain(objection.reason if objection.is_refusal else f"warning: {objection.reason}")
    if any(objection.is_refusal for objection in objections):
        for named in problems:
            complain(named)
        raise typer.Exit(ExitCode.USAGE)
    end_with(problems)


@app.command()
@at_the_edge
def status(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    state: StateDirectory = None,
    json: AsJson = False,
    wait: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="After a start: tell its steps until the first look."),
    ] = None,
    code_server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where --wait looks for the code server.")
    ] = "127.0.0.1:4266",
) -> None:
    """Show how the cluster and the autopilot stand.

    The first word is the autopilot's health: blind (it does not run, or a source does not answer it; exit code 3),
    paused, observing, or acting. `--wait 120` after a start shows what it waits for, until the first look; if that does
    not come, exit code 3. With a configuration or a ledger that cannot be used, what is known is shown and the rest is
    null: exit code 3.

    \b
    JSON: cluster, taken_at, health {word, reasons [text], mode, heartbeats [name, at, age_seconds, holder, note,
    mode, is_lease_held, failing_sources], newest_evidence_at, newest_evidence_age_seconds,
    waiting_evidence_count, ledger_head}, mode, paused {actor, since, reason} or null, is_autopilot_alive,
    nodes_by_state, jobs_by_state and marked_jobs [job, nodes, since, incident], those held for a silent node (null if
    the scheduler did not answer), open_incidents_by_state, actions_by_outcome (24 h), waiting_evidence_count, problems
    [text], disk_bytes {ledger, snapshots (within it), lake, evidence, pages, dagster, logs, other}: what files take
    here.
    """
    from ops_pipelines.terminal.status import (
        CANNOT_OPEN,
        end_without,
        read_status,
        status_document,
        status_json,
        status_without,
    )
    from ops_pipelines.terminal.vital_signs import disk_use_of

    if wait is not None:
        _await_first_beat(ctx, cluster_file, state=state, code_server=code_server, limit_seconds=wait)
    trouble: Exception | None = None
    try:
        cluster = open_named(ctx, cluster_file, state=state)
        found = read_status(cluster, disk_bytes=disk_use_of(cluster_file.absolute(), state=state))
    except CANNOT_OPEN as problem:
        found, trouble = status_without(problem, cluster_file, state=state), problem
    print_answer(lambda: status_json(found), lambda: status_document(found), as_json=json)
    if trouble is not None:
        end_without(trouble)
    end_with(found.problems)
    if found.is_blind:
        raise typer.Exit(ExitCode.NO_ANSWER)


def _await_first_beat(
    ctx: typer.Context, cluster_file: Path, *, state: Path | None, code_server: str, limit_seconds: float
) -> None:
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.terminal.vital_signs import FirstBeat, NotBegun

    host, _, port = code_server.rpartition(":")
    if not host or not port.isdecimal():
        complain(f"--code-server is {code_server!r}; expected HOST:PORT, as in deploy/workspace.yaml")
        raise typer.Exit(ExitCode.USAGE)
    start = FirstBeat(
        lambda: open_named(ctx, cluster_file, state=state),
        code_server=(host, int(port)),
        clock=SystemClock(),
        say=complain,
    )
    try:
        start.wait(limit_seconds=limit_seconds)
    except NotBegun as problem:
        complain(str(problem))
        raise typer.Exit(ExitCode.NO_ANSWER) from problem


@app.command()
@at_the_edge
def serve(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    host: Annotated[str, typer.Option(help="Address to listen on. Anyone who reaches it may read: no password.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 9750,
) -> None:
    """Serve health, pages and the calendar over HTTP, and take alerts in, until SIGTERM.

    Everything is computed from the ledger, so that a dead autopilot shows as an old heartbeat. / lists the pages.
    /healthz says in JSON what `status` says first: 200, or 503 if blind. /metrics is for Prometheus: rules are in
    deploy/prometheus. POST /alerts is Alertmanager's webhook and asks for the secret that `serve.webhook` in
    cluster.yaml names; without one no alert is taken. /calendar.ics is for calendars.
    """
    from ops_pipelines import server
    from ops_pipelines.core.entries import LedgerError
    from ops_pipelines.resources import http_process
    from ops_pipelines.wiring import config_in_force

    config = config_in_force(cluster_file.absolute())
    try:
        open_named(ctx, cluster_file)
    except LedgerError as problem:
        complain(f"note: {problem}. It is tried again with each request; until then /healthz says blind")
    try:
        listening = http_process.listen(host, port)
    except http_process.CannotListen as problem:
        complain(str(problem))
        raise typer.Exit(ExitCode.USAGE) from problem
    shown = f"[{host}]" if ":" in host else host
    said = f"serving http://{shown}:{listening.getsockname()[1]}/metrics and /healthz"
    pages = server.build_app(
        lambda: open_named(ctx, cluster_file),
        settings=config.serve,
        sender=server.sender_of(config.alertmanager),
        cluster_file=cluster_file.absolute(),
    )
    http_process.serve(pages, listening, announce=lambda: typer.echo(said))


@app.command()
@at_the_edge
def code_server(
    module: Annotated[
        str, typer.Option("--module-name", help="The module that Dagster loads.")
    ] = "ops_pipelines.definitions",
    host: Annotated[str, typer.Option(help="Address to listen on; anyone who reaches it commands us.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 4266,
) -> None:
    """Serve sensors and runs to Dagster's daemon and webserver, until SIGTERM.

    It is `dagster api grpc`, but a run starts in milliseconds: it is forked from a process that has all imported.
    """
    from ops_pipelines.code_server import serve as serve_code

    serve_code(module, host=host, port=port)


@app.command()
@at_the_edge
def webserver(
    ctx: typer.Context,
    workspace: Annotated[Path, typer.Option("--workspace", "-w", help="Where Dagster finds the definitions.")] = (
        Path("workspace.yaml")
    ),
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="OPS_PIPELINES_WEB_TOKENS",
            help="Who may log in: lines `name:sha256-of-token`, mode 0600.",
        ),
    ] = None,
    proxy_login: Annotated[
        str | None,
        typer.Option(
            envvar="OPS_PIPELINES_WEB_PROXY_LOGIN",
            metavar="HEADER=ADDRESS[,ADDRESS]",
            help="The header in which the site's proxy names who is logged in, and the addresses of that proxy.",
        ),
    ] = None,
    name: Annotated[
        list[str], typer.Option(envvar="OPS_PIPELINES_WEB_NAMES", help="Host name by which people open it; repeatable.")
    ] = [],  # noqa: B006 - typer reads it only
    host: Annotated[str, typer.Option(help="Address to listen on. Anyone who reaches it may read.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 3000,
) -> None:
    """Serve Dagster's web interface behind a login, until SIGTERM.

    What changes something is taken by POST, from its own pages and with a login only; anyone who reaches the port may
    read. Without a token file and a proxy's login everything is read-only. docs/SAFETY.md says how both are set up.
    """
    import logging

    from ops_pipelines.gateway import Logins, TokenFile, read_proxy_login
    from ops_pipelines.gateway import serve as serve_behind_gateway
    from ops_pipelines.resources.files import keep_private

    keep_private()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logins = Logins(
        tokens=None if token_file is None else TokenFile(token_file),
        proxy=None if proxy_login is None else read_proxy_login(proxy_login),
    )
    serve_behind_gateway(
        workspace=workspace,
        host=host,
        port=port,
        names=name,
        logins=logins,
        announce=lambda said: typer.echo(f"serving {said}"),
    )


@app.command()
@at_the_edge
def incidents(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    state: StateDirectory = None,
    json: AsJson = False,
    every: Annotated[bool, typer.Option("--all", help="Closed ones of the last 30 days too.")] = False,
) -> None:
    """List open incidents and the plans that wait.

    With a configuration or a ledger that cannot be used: what is known, and exit code 3.

    \b
    JSON: cluster, taken_at, problems [text], incidents (null: not known) [incident, state, response, nodes, gpus,
    victims, what, note, opened_at, changed_at, closed_at, open_for_seconds, waits_for, overlaps [text], next_step, plan
    or null {plan, standing, response, reason, steps, effects, rejected_alternatives, approved_by, approved_until,
    left_to}, diagnosis {cause, culprits, places, at_fault, family, first_action, confidence, confidence_words,
    affected_nodes, evidence_for, evidence_against, alternatives [statement, confidence, why_less_likely], settled_by}].
    """
    from ops_pipelines.terminal.incidents import (
        incidents_document,
        incidents_json,
        incidents_without,
        read_incidents,
    )
    from ops_pipelines.terminal.status import CANNOT_OPEN, end_without

    trouble: Exception | None = None
    try:
        found = read_incidents(open_named(ctx, cluster_file, state=state), closed_within=RECENT if every else None)
    except CANNOT_OPEN as problem:
        found, trouble = incidents_without(problem, cluster_file), problem
    print_answer(lambda: incidents_json(found), lambda: incidents_document(found), as_json=json)
    if trouble is not None:
        end_without(trouble)
    end_with(found.problems)


@app.command()
@at_the_edge
def show(
    ctx: typer.Context,
    incident: Annotated[str, typer.Argument(help="Such as INC-0007; `incidents` lists them.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Show one incident from its evidence to its outcome.

    \b
    JSON: cluster, taken_at, problems, incident (as in `incidents`), findings [rule, node, response, found_at,
    explanation, source, evidence [source, position, observed_at, text]], actions [action, plan, begun_at,
    sent_at, finished_at, outcome, witness], entries [seq, written_at, kind, actor, what, entry_hash].
    """
    from ops_pipelines.terminal.incidents import read_story, story_document, story_json

    cluster = open_named(ctx, cluster_file)
    story = read_story(find_incident(incident, cluster), cluster)
    print_answer(lambda: story_json(story), lambda: story_document(story), as_json=json)
    end_with(story.problems)


@app.command()
@at_the_edge
def explain(
    ctx: typer.Context,
    incident: Annotated[str, typer.Argument(help="Such as INC-0007; `incidents` lists them.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Explain one incident on a page: what broke, why we believe so, what will be done.

    \b
    JSON: cluster, taken_at, problems, incident (as in `incidents`), began_at, victims [job, state, gpu_count, nodes],
    sightings [first_at, last_at, count, where, rule, says, line], actions (as in `show`), bundles [reason, saved_at,
    place, sha256, is_in_ledger, files, missing], related [incident, state, why].
    """
    from ops_pipelines.terminal.explain import explain_incident, explanation_document, explanation_json

    cluster = open_named(ctx, cluster_file)
    found = explain_incident(find_incident(incident, cluster), cluster)
    print_answer(lambda: explanation_json(found), lambda: explanation_document(found), as_json=json)
    end_with(found.problems)


# Here and not above: `--help` lists commands in the order in which they are added.
app.command()(people_commands.messages)
app.command()(people_commands.approve)
app.command()(people_commands.approval_link)
app.command()(people_commands.pause)
app.command()(people_commands.close)
app.command()(people_commands.resume_autopilot)


@audit_app.command()
@at_the_edge
def verify(
    ctx: typer.Context,
    expect_head: Annotated[
        str | None, typer.Option(help="A head hash that was noted down earlier: the chain must still contain it.")
    ] = None,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Recompute every hash of the ledger from its first line.

    What is derived from the lines is checked against them. Anyone who can write the whole database can write a whole
    chain, or an empty one: keep the head hash somewhere else, and give it with --expect-head.

    \b
    JSON: cluster, is_whole, entry_count, head_hash, first_broken_seq or null, problem.
    """
    from ops_pipelines.terminal.status import audit, audit_document, audit_json

    cluster = open_named(ctx, cluster_file)
    found, name = audit(cluster, expect_head=expect_head), cluster.name
    print_answer(lambda: audit_json(found, cluster=name), lambda: audit_document(found, cluster=name), as_json=json)
    if not found.is_whole:
        raise typer.Exit(ExitCode.DAMAGED)
