"""`ops-pipelines replay`: recorded history through another policy, and how that differs from what was done.

Reads the ledger, and the lake where asked; asks no system and writes nothing but the page that was asked for.
"""

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.caller import DEFAULT_CLUSTER_FILE, AsJson, ClusterFile, open_named
from ops_pipelines.terminal.diagnose import NOW, NoSuchTime, parse_time
from ops_pipelines.terminal.edge import ExitCode, at_the_edge, complain

if TYPE_CHECKING:
    from rich.console import Console

    from ops_pipelines.review.replay.result import ComparedAct, Replay

_ROWS_AT_MOST = 60
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
    that is checked and told) and under the proposed policy. Open-loop: what follows the first difference on a node is
    marked counterfactual. A policy that production would refuse is refused here, too. Hours without decisions are
    left out unless --from-lake; what the lake cannot know is told. Progress is told on standard error.

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
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.resources.config.policy_file import find_cautions, read_policy
    from ops_pipelines.review.replay.replay import replay as run_again
    from ops_pipelines.terminal.json_form import to_json
    from ops_pipelines.terminal.replay_views import view_replay
    from ops_pipelines.terminal.tables import console
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
    _write_pages(found, html=html, publish_in=config.state_directory if publish else None, now=now)
    if json:
        typer.echo(to_json(view_replay(found)))
    else:
        _print(console(), found)


class _Progress:
    """Tells on standard error how far a long replay is, each tenth of the way."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self._begin = begin
        self._end = end
        self._told: dict[str, int] = {}

    def tell(self, source: str, at: datetime) -> None:
        tenth = int(10 * ((at - self._begin) / (self._end - self._begin)))
        if tenth > self._told.get(source, 0):
            self._told[source] = tenth
            typer.echo(f"{source}: {at:%Y-%m-%d %H:%M} UTC, {10 * tenth} %", err=True)


def _write_pages(found: "Replay", *, html: Path | None, publish_in: Path | None, now: datetime) -> None:
    if html is None and publish_in is None:
        return
    from ops_pipelines.pages.policy_comparison import write_policy_comparison
    from ops_pipelines.resources.page_files import ComparisonPages

    page = write_policy_comparison(found, now=now)
    try:
        if html is not None:
            html.write_text(page, encoding="utf-8")
            complain(f"the page is in {html}")
        if publish_in is not None:
            complain(f"the page is in {ComparisonPages(publish_in).keep(page)}; `serve` shows it at /policy-comparison")
    except OSError as problem:
        complain(f"the page could not be written: {problem}; give a path that this user may write")
        raise typer.Exit(ExitCode.USAGE) from problem


def _print(out: "Console", found: "Replay") -> None:
    """Print the counts in sentences first, then the keys, then the acts that differ."""
    from rich.table import Table
    from rich.text import Text

    from ops_pipelines.review.replay.replay import differing, proof_sentence, sentences_of
    from ops_pipelines.terminal.tables import moment, print_lines, printable

    out.print(Text(f"{found.proposed} from {moment(found.since)} to {moment(found.until)}", style="bold"))
    print_lines(out, [*sentences_of(found), proof_sentence(found)])
    print_lines(out, found.reproduction.different)
    keys = Table(title="Keys that differ", title_justify="left", box=None)
    for name in ("key", "then", "new"):
        keys.add_column(name, overflow="fold")
    for key in found.policy_differences:
        keys.add_row(*(Text(printable(cell)) for cell in (key.key, key.then, key.new)))
    if found.policy_differences:
        out.print(keys)
    acts = differing(found)
    rows = Table(title="Acts that differ", title_justify="left", box=None)
    for name in ("when", "difference", "incident", "act", "why"):
        rows.add_column(name, overflow="fold")
    for act in acts[:_ROWS_AT_MOST]:
        rows.add_row(*(Text(printable(cell)) for cell in _cells(act)))
    if acts:
        out.print(rows)
    if len(acts) > _ROWS_AT_MOST:
        print_lines(out, [f"and {len(acts) - _ROWS_AT_MOST} more: --json has them all"])
    for stretch in found.stretches:
        head = f"{stretch.source.value}: {stretch.decision_count} decisions, {moment(stretch.since)} to "
        print_lines(out, [f"{head}{moment(stretch.until)}; then: {stretch.then}"])
        print_lines(out, [f"  not known: {each}" for each in stretch.unknown])
    print_lines(out, [f"note: {each}" for each in found.cautions])


def _cells(act: "ComparedAct") -> tuple[str, ...]:
    from ops_pipelines.terminal.tables import moment

    mark = ", counterfactual" if act.is_counterfactual else ""
    return (
        moment(act.at),
        f"{act.difference.value.replace('_', ' ')}{mark}",
        act.incident,
        f"{act.verb.value} {act.target}",
        act.why,
    )
