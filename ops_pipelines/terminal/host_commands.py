"""Commands for one host: `ops-pipelines backup` and `restore`, and `guard`, slurmctld's start guard.

None of them opens the cluster. A ledger of an older schema is backed up as it is, and one that is gone is not made
again. What the guard does is `resources.slurm.guard.start_guard`'s; it works without cluster.yaml, without the ledger
and without us, and so do its commands.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    AsJson,
    ClusterFile,
    ExitCode,
    at_the_edge,
    complain,
    end_with,
    who_calls,
)

if TYPE_CHECKING:
    from ops_pipelines.resources.slurm.guard.start_guard import Settings

WithLake = Annotated[bool, typer.Option("--lake", help="The lake too: it may be large.")]


@at_the_edge
def backup(
    directory: Annotated[Path, typer.Argument(help="A directory that is not there yet; nobody else may read it.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    lake: WithLake = False,
    json: AsJson = False,
) -> None:
    """Back up the ledger and the configuration while the autopilot runs.

    The ledger is copied as it is in one moment, on SQLite and on PostgreSQL, with the cursors of all sources. Secrets
    are not copied, and each that is left out is named. Not copied either: evidence bundles, reports and statements.

    \b
    JSON: the manifest: format, made_at, program_version, cluster, schema_version, ledger, head_seq, head_hash, head_at,
    has_lake, left_out [text], files [path, sha256, byte_count, was_at].
    """
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.report.document import to_json
    from ops_pipelines.report.terminal import console, print_lines
    from ops_pipelines.resources.backup import make_backup
    from ops_pipelines.wiring import config_in_force

    config = config_in_force(cluster_file.absolute())
    manifest = make_backup(
        directory.absolute(), config, cluster_file=cluster_file.absolute(), with_lake=lake, now=SystemClock().now()
    )
    if json:
        typer.echo(to_json(manifest))
        return
    byte_count = sum(each.byte_count for each in manifest.files)
    said = [
        f"{manifest.cluster} is backed up to {directory}: {len(manifest.files)} file(s), {byte_count} bytes",
        f"ledger {(manifest.ledger or 'without an id')[:12]}, schema {manifest.schema_version}: "
        f"{manifest.head_seq} entries, head {manifest.head_hash}",
    ]
    print_lines(console(), said)
    for each in manifest.left_out:
        complain(f"not in it: {each}")


@at_the_edge
def restore(
    directory: Annotated[Path, typer.Argument(help="What `backup` wrote.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="In place of a ledger that lives, too; it is kept aside.")
    ] = False,
    as_it_was: Annotated[
        bool,
        typer.Option("--as-it-was", help="For an older program: no upgrade, no entry; the next ledger met is taken."),
    ] = False,
    lake: WithLake = False,
    json: AsJson = False,
) -> None:
    """Put a backup back. Stop the autopilot before.

    Everything is verified before anything is touched; the ledger is put in place in one step, and verified again. The
    chain continues with an entry that says from which backup it comes and what is lost. Where something is, the
    autopilot is paused: look at what is listed, then `resume-autopilot`. Configuration and lake are put back only where
    there is none. Exit code 4: refused, nothing was changed; 3 with a report: the ledger is back, and a file of these
    is not.

    \b
    JSON: backed_up_at, ledger, head_seq, is_as_it_was, lost_count (null: nobody knows), lost_from, lost_until,
    unknown_drains [text], open_incidents [text], is_paused, kept_aside [path], put_back [path], differing [path],
    problems [text].
    """
    from dataclasses import replace

    from ops_pipelines.clock import SystemClock
    from ops_pipelines.core.sources import SourceError
    from ops_pipelines.report.document import to_json
    from ops_pipelines.report.terminal import console, print_lines
    from ops_pipelines.resources.backup import CONFIGURATION, LAKE, BackupError, put_where_missing, verify_backup
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.resources.files import keep_private
    from ops_pipelines.resources.restoring import restore_ledger
    from ops_pipelines.wiring import read_nodes_now

    keep_private()
    clock = SystemClock()
    manifest = verify_backup(directory)
    if lake and not manifest.has_lake:
        raise BackupError(f"{directory} holds no lake; it was made without --lake")
    cluster_file = cluster_file.absolute()
    stated = cluster_file if cluster_file.exists() else directory / CONFIGURATION / cluster_file.name
    config = read_cluster(cluster_file, read_from=stated)
    problems = []
    try:
        nodes = read_nodes_now(config, clock)
    except SourceError as problem:
        nodes = None
        problems.append(f"the scheduler was not asked for drains that the ledger does not know: {problem}")
    done = restore_ledger(
        directory,
        config,
        actor=who_calls(),
        nodes=nodes,
        overwrite=overwrite,
        as_it_was=as_it_was,
        now=clock.now(),
    )
    parts = [(CONFIGURATION, cluster_file.parent), *([(LAKE, Path(config.lake.url))] if lake else [])]
    files = [put_where_missing(directory, manifest, part, into=into) for part, into in parts]
    missing = [problem for each in files for problem in each.problems]
    done = replace(
        done,
        put_back=tuple(str(path) for each in files for path in each.put),
        differing=tuple(str(path) for each in files for path in each.differing),
        problems=(*problems, *missing),
    )
    if json:
        typer.echo(to_json(done))
    else:
        many = "an unknown number of entries" if done.lost_count is None else f"{done.lost_count} entries"
        since = "" if done.lost_from is None else f" after {done.lost_from:%Y-%m-%d %H:%M:%S} UTC"
        until = f", seen until {done.lost_until}" if done.lost_until else ""
        said = [f"the ledger is back from {done.backed_up_at:%Y-%m-%d %H:%M:%S} UTC, with {done.head_seq} entries"]
        said += [f"lost: {many}{since}{until}"] if done.lost_count != 0 else ["nothing that it had is lost"]
        said += [f"a drain of ours that it does not know: {each}" for each in done.unknown_drains]
        said += [f"open: {each}" for each in done.open_incidents]
        said += [f"what was there before: {each}" for each in done.kept_aside]
        said += [f"put back: {each}" for each in done.put_back]
        if done.is_paused:
            said.append("the autopilot is paused: look at nodes and incidents, then `ops-pipelines resume-autopilot`")
        if done.is_as_it_was:
            said.append("no line was written; start the program that the backup is for, and none before")
        print_lines(console(), said)
    for each in done.differing:
        complain(f"not put back, another is there: {each}")
    for problem_said in problems:
        complain(problem_said)
    end_with(missing)


guard_app = typer.Typer(
    help="The start guard: slurmctld lets no restart go ahead before its last nodes are clear.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_DIRECTORY = Path("/etc/slurm/start_guard")
Directory = Annotated[Path, typer.Option("--directory", help="Where the guard lies.")]


@guard_app.command()
@at_the_edge
def install(
    slurm_conf: Annotated[Path, typer.Option(help="The slurm.conf of slurmctld.")] = Path("/etc/slurm/slurm.conf"),
    directory: Directory = _DIRECTORY,
    state: Annotated[
        Path, typer.Option(help="Where starts are written down, on a disk; SlurmUser writes there.")
    ] = Path("/var/lib/ops_pipelines_start_guard"),
    fallback: Annotated[
        Path, typer.Option(help="Where starts are written down while that disk takes nothing, in memory.")
    ] = Path("/run/ops_pipelines_start_guard"),
    user: Annotated[str, typer.Option(help="SlurmUser of slurm.conf.")] = "slurm",
    port: Annotated[int, typer.Option(min=1, max=65535, help="On which node_witness.py listens on each node.")] = 4271,
    addresses: Annotated[
        Path | None, typer.Option(help="Lines `node host port`, where nodes are not reached by their names.")
    ] = None,
    power_state: Annotated[
        str, typer.Option(help="Command that prints `off` for {node} without power, split at blanks; no shell.")
    ] = "",
    munge_socket: Annotated[str | None, typer.Option(help="Where munged listens, if not where munge looks.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Install the guard on this host, as root: its files, its state, and PrologSlurmctld in slurm.conf.

    A PrologSlurmctld of the site continues, behind the guard. slurm.conf as it was is kept beside it. On the nodes
    node_witness.py is to listen; docs/START_GUARD.md has the units.
    """
    import os
    import pwd

    from ops_pipelines.resources.slurm.guard import installation
    from ops_pipelines.resources.slurm.guard.start_guard import Settings, make_passes

    if addresses is not None and not addresses.is_file():
        _refuse(f"{addresses} is no file; expected lines `node host port`")
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        _refuse(f"there is no user {user}; give SlurmUser of {slurm_conf} with --user")
    try:
        before = installation.prolog_of(slurm_conf.read_text())
    except (OSError, UnicodeDecodeError) as problem:
        _refuse(f"{slurm_conf} cannot be read ({problem}); give the slurm.conf of slurmctld with --slurm-conf")
    wrapper = directory / installation.WRAPPER
    guard = installation.Installation(
        directory=directory,
        settings=Settings(
            state=state,
            fallback=fallback,
            slurm_conf=str(slurm_conf.absolute()),
            port=port,
            addresses=None if addresses is None else addresses.absolute(),
            power_state=tuple(power_state.split()),
            munge_socket=munge_socket,
            needs_boot_after=_needs_boot_after(directory, before=before, wrapper=str(wrapper)),
        ),
        python=installation.own_python(),
        next_prolog=installation.next_prolog_of(directory) if before == str(wrapper) else before,
        programs=installation.slurm_programs(),
    )
    behind = f", then {guard.next_prolog}" if guard.next_prolog else ""
    if dry_run:
        typer.echo(f"would write the guard to {directory} and its state to {state}, owned by {user}")
        typer.echo(f"would let {slurm_conf} say PrologSlurmctld={wrapper}{behind}; now: {before or 'none'}")
        typer.echo(f"would ask Slurm by {guard.scontrol}")
        return
    try:
        guard.write()
        for place in (state, guard.settings.fallback):
            installation.make_way_to(place)
            place.mkdir(mode=0o750, exist_ok=True)
            os.chown(place, account.pw_uid, account.pw_gid)
        make_passes(guard.settings)
    except OSError as problem:
        _refuse(f"the guard cannot be written ({problem}); run this as root on the host of slurmctld")
    if hindrance := guard.hindrance_of(account):
        # A PrologSlurmctld that cannot run fails every start of the cluster.
        _refuse(f"{hindrance}; open it to {user} and install again. {slurm_conf} was not changed")
    kept = installation.change_slurm_conf(slurm_conf, str(wrapper))
    typer.echo(f"the guard lies in {directory}; slurmctld runs {wrapper}{behind}; it asks Slurm by {guard.scontrol}")
    if kept is not None:
        typer.echo(f"{slurm_conf} was changed; as it was, it is {kept}")
    typer.echo("now: systemctl restart slurmctld, which runs no first PrologSlurmctld before (its jobs continue);")
    typer.echo("the unit ops-pipelines-start-guard.service here, and on each node")
    typer.echo("ops-pipelines-node-witness.socket (deploy/systemd); then: ops-pipelines guard status")


@guard_app.command()
@at_the_edge
def uninstall(
    slurm_conf: Annotated[Path, typer.Option(help="The slurm.conf of slurmctld.")] = Path("/etc/slurm/slurm.conf"),
    directory: Directory = _DIRECTORY,
) -> None:
    """Take the guard out of slurm.conf; the site's own PrologSlurmctld, if there was one, is back. Files stay."""
    from ops_pipelines.resources.slurm.guard import installation

    wrapper = str(directory / installation.WRAPPER)
    try:
        before = installation.prolog_of(slurm_conf.read_text())
    except (OSError, UnicodeDecodeError) as problem:
        _refuse(f"{slurm_conf} cannot be read ({problem})")
    if before != wrapper:
        _refuse(f"{slurm_conf} says PrologSlurmctld={before or '(none)'}, which is not {wrapper}; nothing was changed")
    installation.change_slurm_conf(slurm_conf, installation.next_prolog_of(directory))
    typer.echo("taken out; now: scontrol reconfigure. mode: auto is refused from now on")


@guard_app.command()
@at_the_edge
def status(directory: Directory = _DIRECTORY, json: AsJson = False) -> None:
    """Say whether the guard works, and which jobs it holds; exit code 3 if it does not work.

    \b
    JSON: is_well, problems [text], held [job], looked_at (seconds since 1970) or null, write_seconds or null.
    """
    import json as json_form

    from ops_pipelines.resources.slurm.guard.start_guard import status as read_status

    told = read_status(_settings(directory))
    if json:
        typer.echo(json_form.dumps(told))
    else:
        held = ", ".join(str(job) for job in told["held"]) if isinstance(told["held"], list) else ""
        typer.echo(f"{'well' if told['is_well'] else 'NOT WELL'}; held: {held or 'no job'}")
        for problem in told["problems"] if isinstance(told["problems"], list) else []:
            complain(str(problem))
    if not told["is_well"]:
        raise typer.Exit(ExitCode.NO_ANSWER)


@guard_app.command("pass")
@at_the_edge
def let_pass(
    job: Annotated[str, typer.Argument(help="The job's own id, as the hold's reason names it.")],
    reason: Annotated[str, typer.Option(help="Why two copies can do no harm. Kept in the job's record.")],
    directory: Directory = _DIRECTORY,
) -> None:
    """Let one job start once, whatever its nodes say: your word is its witness."""
    from ops_pipelines.resources.slurm.guard import start_guard

    if not re.fullmatch(r"[0-9]{1,12}", job):
        _refuse(f"{job!r} is no job id; expected a number such as 4711")
    if not reason.strip():
        _refuse("the reason is empty; say why two copies can do no harm")
    try:
        start_guard.let_pass(_settings(directory), job, who=who_calls(), reason=reason)
    except OSError as problem:
        _refuse(f"your word cannot be written down ({problem}); run this as root or as SlurmUser")
    typer.echo(f"job {job} may start once; the guard looks at it within seconds")


def _needs_boot_after(directory: Path, *, before: str, wrapper: str) -> float:
    """Return since when slurmctld must have been restarted; an install over an older guard changes nothing of that."""
    import time

    from ops_pipelines.resources.slurm.guard import installation, start_guard

    if before != wrapper:
        return 0.0 if before else time.time()
    try:
        return start_guard.read_settings(directory / installation.SETTINGS).needs_boot_after
    except start_guard.GuardError:  # Of a guard whose settings are broken nothing is known.
        return time.time()


def _settings(directory: Path) -> "Settings":
    from ops_pipelines.resources.slurm.guard import installation, start_guard

    try:
        return start_guard.read_settings(directory / installation.SETTINGS)
    except start_guard.GuardError as problem:
        complain(str(problem))
        raise typer.Exit(ExitCode.USAGE) from problem


def _refuse(what: str) -> NoReturn:
    complain(what)
    raise typer.Exit(ExitCode.USAGE)
