"""`ops-pipelines backup` and `restore`: the ledger, the configuration and by choice the lake, out of here and back.

Neither opens the cluster: a ledger of an older schema is backed up as it is, and one that is gone is not made anew.
"""

from pathlib import Path
from typing import Annotated

import typer

from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    AsJson,
    ClusterFile,
    at_the_edge,
    complain,
    end_with,
    who_calls,
)

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
    from ops_pipelines.report.json_form import to_json
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
    chain goes on with an entry that says from which backup it comes and what is lost. Where something is, the autopilot
    is paused: look at what is listed, then `resume-autopilot`. Configuration and lake are put back only where there is
    none. Exit code 4: refused, nothing was changed; 3 with a report: the ledger is back, and a file of these is not.

    \b
    JSON: backed_up_at, ledger, head_seq, is_as_it_was, lost_count (null: nobody knows), lost_from, lost_until,
    unknown_drains [text], open_incidents [text], is_paused, kept_aside [path], put_back [path], differing [path],
    problems [text].
    """
    from dataclasses import replace

    from ops_pipelines.clock import SystemClock
    from ops_pipelines.core.sources import SourceError
    from ops_pipelines.report.json_form import to_json
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
