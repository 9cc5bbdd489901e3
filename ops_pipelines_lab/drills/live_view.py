"""The demo's terminal: nodes by state, open incidents, rollouts, the latest actions, jobs moved. Shows only."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.rollout import OF_PEOPLE, NodeStage, Rollout, RolloutState
from ops_pipelines.remediate.verbs import explain_action
from ops_pipelines.review.shift import node_word
from ops_pipelines_lab.simulator.ground_truth import read_lost_gpu_hours
from ops_pipelines_lab.simulator.twin import Twin

_INCIDENT_ROWS, _ACTION_ROWS, _ROLLOUT_ROWS = 8, 10, 4
_STATE_STYLE = {
    IncidentState.OPEN: "yellow",
    IncidentState.ACTING: "bold magenta",
    IncidentState.VERIFYING: "cyan",
    IncidentState.PROBATION: "blue",
    IncidentState.IN_REPAIR: "red",
    IncidentState.ESCALATED: "bold red",
    IncidentState.RESOLVED: "green",
    IncidentState.MERGED: "dim",
}
_ROLLOUT_STYLE = {RolloutState.DONE: "green", RolloutState.GOING_BACK: "bold magenta", RolloutState.WENT_BACK: "yellow"}
_NODE_STYLE = {
    "allocated": "green",
    "mixed": "green",
    "idle": "blue",
    "drained": "yellow",
    "down": "red",
    "unreachable": "bold red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLine:
    """The state of one part of the drill."""

    letter: str
    title: str
    state: str
    """`waits`, `running`, `as expected`, or what differs."""


def draw(
    cluster: Cluster, twin: Twin, *, urls: Sequence[str], since: datetime, parts: Sequence[PartLine]
) -> RenderableType:
    """Return the picture of this instant."""
    incidents = cluster.ledger.incidents_since(since)
    records = [record for incident in incidents for record in cluster.ledger.records(incident.incident)]
    rows: list[RenderableType] = [_nodes(cluster), _numbers(cluster, twin, records, incidents)]
    if parts:
        rows.append(_parts(parts))
    rollouts = cluster.ledger.rollouts(final_since=since)
    if rollouts:
        rows.append(_rollouts(cluster, rollouts))
    rows += [_incidents(incidents, cluster.clock.now()), _actions(records)]
    return Panel(
        Group(*rows),
        title=f"[bold]{cluster.name}[/]  {'  '.join(urls)}",
        subtitle="Ctrl-C stops everything",
        border_style="blue",
    )


def _nodes(cluster: Cluster) -> RenderableType:
    words = Counter(node_word(node) for node in cluster.scheduler.read_nodes())
    line = Text("nodes  ", style="bold")
    for word, number in sorted(words.items()):
        style = _NODE_STYLE.get(word, "white")
        line.append("█" * number, style=style)
        line.append(f" {number} {word}  ", style=style)
    return line


def _numbers(
    cluster: Cluster, twin: Twin, records: Sequence[ActionRecord], incidents: Sequence[Incident]
) -> RenderableType:
    jobs = Counter(job.state for job in cluster.scheduler.read_jobs())
    moved = sum(record.action.verb is Verb.RELEASE and record.outcome is not None for record in records)
    lost = read_lost_gpu_hours(twin)
    open_count = sum(incident.is_open for incident in incidents)
    states = Counter(incident.state for incident in incidents)
    return Text.assemble(
        ("jobs   ", "bold"),
        f"{jobs[JobState.RUNNING]} running, {jobs[JobState.PENDING]} pending, {moved} requeued    ",
        ("incidents  ", "bold"),
        f"{open_count} open, {len(incidents) - open_count} closed    ",
        ("nodes  ", "bold"),
        f"{states[IncidentState.PROBATION]} on probation, {states[IncidentState.IN_REPAIR]} wait for hands    ",
        ("GPU-hours lost  ", "bold"),
        f"{lost.total:.2f} ({lost.unsaved:.2f} unsaved, {lost.hung:.2f} hung)",
    )


def _parts(parts: Sequence[PartLine]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for part in parts:
        style = {"as expected": "green", "running": "yellow", "waits": "dim"}.get(part.state, "bold red")
        table.add_row(f"({part.letter})", Text(part.title), Text(part.state, style=style))
    return Panel(table, title="drill", title_align="left", border_style="dim")


def _rollouts(cluster: Cluster, rollouts: Sequence[Rollout]) -> RenderableType:
    table = Table(title="rollouts", title_justify="left", expand=True, box=None, header_style="dim")
    for name, ratio in (("rollout", None), ("state", None), ("wave", None), ("nodes", None), ("what", 1)):
        table.add_column(name, ratio=ratio, no_wrap=True, overflow="ellipsis")
    for each in rollouts[-_ROLLOUT_ROWS:]:
        stages = Counter(node.stage for node in cluster.ledger.rollout_nodes(each.rollout))
        style = _ROLLOUT_STYLE.get(each.state, "red" if each.state in OF_PEOPLE else "cyan")
        table.add_row(
            each.rollout,
            Text(each.state.value.replace("_", " "), style=style),
            f"{each.wave} of {len(each.waves)}",
            ", ".join(f"{stages[stage]} {stage.value}" for stage in NodeStage if stages[stage]),
            Text(f"{each.release}: {each.reason}"),
        )
    return table


def _incidents(incidents: Sequence[Incident], now: datetime) -> RenderableType:
    table = Table(title="incidents", title_justify="left", expand=True, box=None, header_style="dim")
    for name, ratio in (("incident", None), ("state", None), ("where", None), ("for", None), ("what", 1)):
        table.add_column(name, ratio=ratio, no_wrap=True, overflow="ellipsis")
    shown = [incident for incident in incidents if incident.state is not IncidentState.MERGED]
    merged_count = len(incidents) - len(shown)
    for incident in reversed(shown[-_INCIDENT_ROWS:]):
        where = ", ".join(sorted(incident.nodes)[:2]) + (
            f" +{len(incident.nodes) - 2}" if len(incident.nodes) > 2 else ""
        )
        jobs = ", ".join(f"job {victim.job}" for victim in sorted(incident.victims)[:1])
        seconds = ((incident.closed_at or now) - incident.opened_at).total_seconds()
        table.add_row(
            incident.incident,
            Text(incident.state.value, style=_STATE_STYLE[incident.state]),
            Text(where or jobs),
            f"{seconds:.0f} s",
            Text(incident.cause),
        )
    if merged_count:
        table.add_row("", Text(f"{merged_count} merged", style="dim"), "", "", "")
    return table


def _actions(records: Sequence[ActionRecord]) -> RenderableType:
    table = Table(title="actions", title_justify="left", expand=True, box=None, header_style="dim")
    for name, ratio in (("at", None), ("incident", None), ("action", None), ("witness", 1)):
        table.add_column(name, ratio=ratio, no_wrap=True, overflow="ellipsis")
    for record in sorted(records, key=lambda each: each.begun_at)[-_ACTION_ROWS:]:
        outcome = record.outcome
        table.add_row(
            f"{record.begun_at:%H:%M:%S}",
            record.action.incident,
            Text(explain_action(record.action)),
            Text("…" if outcome is None else f"{outcome.kind.value}: {outcome.witness}"),
        )
    return table
