"""How incidents, plans, the status and the ledger are printed, and the shape of the ledger's lines."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.entries import ChainVerdict, Entry, EntryKind
from ops_pipelines.core.identity import listed
from ops_pipelines.core.incident import PAGED, Incident, IncidentState
from ops_pipelines.remediate.testimony import explain_action
from ops_pipelines.report.numbers import moment
from ops_pipelines.report.terminal import print_fields, printable, text_of
from ops_pipelines.terminal.views import (
    HeartbeatView,
    IncidentsView,
    IncidentView,
    MarkedJobView,
    PlanStanding,
    PlanView,
    StatusView,
)

# -- what the ledger holds --


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceView:
    source: str
    position: str
    observed_at: datetime
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    rule: str
    node: str
    response: str
    found_at: datetime
    explanation: str
    source: str
    evidence: tuple[EvidenceView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """One action begun. Its `outcome` is `done`, `failed`, `unknown`, or null while its witness is awaited."""

    action: str
    plan: str | None
    begun_at: datetime
    sent_at: datetime | None
    finished_at: datetime | None
    outcome: str | None
    witness: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryView:
    seq: int
    written_at: datetime
    kind: str
    actor: str
    what: str
    entry_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryView:
    """The answer of `show`: one incident from its findings to its last ledger entry."""

    cluster: str
    taken_at: datetime
    incident: IncidentView
    findings: tuple[FindingView, ...]
    actions: tuple[ActionView, ...]
    entries: tuple[EntryView, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """The answer of `audit verify`. `first_broken_seq` is null and `problem` empty where the chain is whole."""

    cluster: str
    is_whole: bool
    entry_count: int
    head_hash: str
    first_broken_seq: int | None
    problem: str


def view_findings(incident: Incident) -> tuple[FindingView, ...]:
    """Return the findings of an incident, oldest first, each with its evidence."""
    return tuple(
        FindingView(
            rule=finding.rule,
            node=finding.node,
            response=finding.response.name.lower(),
            found_at=finding.found_at,
            explanation=finding.explanation,
            source=finding.source,
            evidence=tuple(
                EvidenceView(source=each.source, position=each.position, observed_at=each.observed_at, text=each.text)
                for each in finding.evidence
            ),
        )
        for finding in sorted(incident.findings, key=lambda finding: finding.found_at)
    )


def view_action(record: ActionRecord) -> ActionView:
    """Return an action as it is shown."""
    outcome = record.outcome
    return ActionView(
        action=explain_action(record.action),
        plan=record.plan,
        begun_at=record.begun_at,
        sent_at=record.sent_at,
        finished_at=None if outcome is None else outcome.finished_at,
        outcome=None if outcome is None else outcome.kind.value,
        witness=None if outcome is None else outcome.witness,
    )


def view_entry(entry: Entry) -> EntryView:
    """Return a line of the chain with what it says in a few words, empty where this program has none for it."""
    return EntryView(
        seq=entry.seq,
        written_at=entry.written_at,
        kind=entry.kind.value,
        actor=entry.actor,
        what=_gist(entry),
        entry_hash=entry.entry_hash,
    )


def _gist(entry: Entry) -> str:
    """Return what the body says, by the names of its fields; a body of another version gives fewer words, no error."""
    try:
        body = json.loads(entry.body)
    except ValueError:
        return "its body is no JSON: run `ops-pipelines audit verify`"
    if not isinstance(body, dict):
        return ""
    if entry.kind is EntryKind.INCIDENT:
        return f"{body.get('state', '')}: {body.get('note', '')}"
    if entry.kind is EntryKind.PLAN:
        return f"{body.get('plan', '')}: {len(body.get('actions', ()))} step(s)"
    if entry.kind is EntryKind.APPROVAL:
        return f"{body.get('plan', '')} until {body.get('expires_at', '')} via {body.get('via', 'terminal')}"
    if entry.kind is EntryKind.ROLLOUT:
        return _rollout_gist(body)
    if entry.kind is EntryKind.QUOTAS:
        return _quotas_gist(body)
    if entry.kind is EntryKind.LEDGER:
        return f"{'restored' if body.get('restored') else 'begun anew'}: {body.get('reason', '')}"
    words = []
    action, outcome, refusal = body.get("action"), body.get("outcome"), body.get("refusal")
    if isinstance(action, dict):
        attempt = action.get("attempt")
        job = f"job {attempt.get('job')}" if isinstance(attempt, dict) else ""
        parts = (str(action.get("verb", "")).replace("_", " "), job, action.get("node"), action.get("gpu"))
        words.append(" ".join(str(part) for part in parts if part))
    if isinstance(outcome, dict):
        words.append(f"{outcome.get('kind', '')}: {outcome.get('witness', '')}")
    if isinstance(refusal, dict):
        words.append(str(refusal.get("reason", "")))
    return ", ".join(words)


def _rollout_gist(body: Mapping[str, object]) -> str:
    """Return where a rollout is, or its node where only one changed; else how many nodes changed."""
    rollout, nodes = body.get("rollout"), body.get("nodes")
    changed = [each for each in nodes if isinstance(each, dict)] if isinstance(nodes, list) else []
    if isinstance(rollout, dict):
        return f"{rollout.get('rollout', '')} {rollout.get('state', '')}: {rollout.get('reason', '')}"
    if len(changed) == 1:
        (node,) = changed
        return f"{node.get('rollout', '')} {node.get('node', '')} {node.get('stage', '')}: {node.get('reason', '')}"
    return f"{changed[0].get('rollout', '')}: {len(changed)} nodes" if changed else ""


def _quotas_gist(body: Mapping[str, object]) -> str:
    """Return where a proposal stands, and whose place it took."""
    standing, superseded = body.get("standing"), body.get("superseded")
    words = str(body.get("proposal", ""))
    if isinstance(standing, dict):
        words += f" {standing.get('state', '')}: {standing.get('reason', '')}"
    if isinstance(superseded, list) and superseded:
        words += f" (in place of {', '.join(map(str, superseded))})"
    return words


def view_audit(verdict: ChainVerdict, *, cluster: str) -> AuditView:
    return AuditView(
        cluster=cluster,
        is_whole=verdict.first_broken_seq is None and not verdict.problem,
        entry_count=verdict.entry_count,
        head_hash=verdict.head_hash,
        first_broken_seq=verdict.first_broken_seq,
        problem=verdict.problem,
    )


# -- what the command line prints for people --


_STYLES = {
    "open": "yellow",
    "acting": "cyan",
    "verifying": "cyan",
    "escalated": "bold red",
    "resolved": "green",
    "failed": "bold red",
    "unknown": "bold red",
    "done": "green",
    "blind": "bold red",
    "paused": "bold red",
}
"""Colour repeats what the word says; it never stands alone."""
_SHOWN_NAME_COUNT = 4


def style_of(word: str) -> str:
    """Return the colour of a state or an outcome; bold where it has none."""
    return _STYLES.get(word, "bold")


def print_status(out: Console, view: StatusView) -> None:
    """Print the state of the cluster: first, in one word, how the autopilot stands, and what to see to."""
    first, *further = view.health.reasons
    line = Text(printable(f"{view.health.word}: {first}"), style=_STYLES.get(view.health.word, ""), overflow="fold")
    out.print(line)
    for reason in further:
        out.print(_indented(2, reason))
    waiting = view.waiting_evidence_count
    newest_at = view.health.newest_evidence_at
    newest = "" if newest_at is None else f"; the newest is {duration_text(view.taken_at - newest_at)} old"
    if waiting is None:  # Without a ledger there is nothing more to tell.
        print_fields(out, {"cluster": view.cluster})
        return
    print_fields(
        out,
        {
            "cluster": view.cluster,
            "mode": view.mode or "",
            "autopilot": "alive" if view.is_autopilot_alive else "not running: no process holds the lease",
            "nodes": _counts(view.nodes_by_state),
            "jobs": _counts(view.jobs_by_state),
            "held for silent nodes": ", ".join(
                f"{each.job} ({', '.join(each.nodes)})" for each in view.marked_jobs or ()
            ),
            "incidents": _counts(view.open_incidents_by_state),
            "actions, 24 h": _counts(view.actions_by_outcome),
            "evidence": (f"{waiting} new, not decided on yet" if waiting else "all decided on") + newest,
            "ledger": f"{view.health.ledger_head} entries",
            "disk": ", ".join(f"{part} {_megabytes(size)}" for part, size in view.disk_bytes.items()),
            **{beat.name: f"{_age(beat)}: {beat.note}" for beat in view.health.heartbeats},
        },
    )


def _marked(jobs: Sequence[MarkedJobView]) -> str:
    return ", ".join(f"job {each.job} ({', '.join(each.nodes)})" for each in jobs)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _age(beat: HeartbeatView) -> str:
    return f"{duration_text(timedelta(seconds=beat.age_seconds))} ago"


def print_incidents(out: Console, view: IncidentsView) -> None:
    """Print one row an incident; long texts are folded, names and ids are whole."""
    if view.incidents is None:
        out.print(Text("which incidents are open is not known; why is on standard error"))
        return
    if not view.incidents:
        out.print(Text("no incidents"))
        return
    table = _table()
    table.add_column("incident", no_wrap=True, min_width=8, overflow="fold")
    table.add_column("state", no_wrap=True, min_width=9)
    table.add_column("age", no_wrap=True, min_width=4)
    table.add_column("culprits", overflow="fold", max_width=24)
    table.add_column("what, and what is done", overflow="fold")
    merged = [each for each in view.incidents if each.state == IncidentState.MERGED.value]
    for incident in view.incidents:
        if incident in merged:
            continue
        table.add_row(
            text_of(incident.incident),
            Text(incident.state, style=_STYLES.get(incident.state, "")),
            duration_text(timedelta(seconds=incident.open_for_seconds)),
            text_of(culprits(incident)),
            Text("\n").join(text_of(line) for line in _situation(incident)),
        )
    out.print(table)
    if merged:
        out.print(Text(f"{len(merged)} more became part of one of these; `ops-pipelines explain` names them"))
    if any(each.plan is not None and each.plan.standing is PlanStanding.WAITS_FOR_APPROVAL for each in view.incidents):
        out.print(Text("\n`ops-pipelines approve PLAN-...` shows a plan and asks for your yes", style="dim"))


def print_plan(out: Console, plan: PlanView) -> None:
    """Print every step, every effect and what was rejected."""
    out.print(Text(printable(f"Plan {plan.plan}: {_standing(plan)}"), style="bold"))
    rows = [("why", plan.reason)]
    rows += [(str(number), step) for number, step in enumerate(plan.steps, start=1)]
    rows += [("effect", effect) for effect in plan.effects]
    rows += [("rejected", alternative) for alternative in plan.rejected_alternatives]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim", justify="right")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, text_of(value))
    out.print(Padding(grid, (0, 0, 0, 2)))


def print_story(out: Console, view: StoryView) -> None:
    """Print one incident from its findings to its last ledger entry."""
    incident = view.incident
    out.print(Text(f"{printable(incident.incident)}  {incident.state}", style=_STYLES.get(incident.state, "bold")))
    print_fields(
        out,
        {
            "calls for": incident.response.replace("_", " "),
            "what broke": incident.diagnosis.cause,
            "sure": _sureness(incident),
            "culprits": ", ".join(incident.diagnosis.culprits or incident.nodes) or "no node",
            "affected": ", ".join(incident.diagnosis.affected_nodes),
            "GPUs": ", ".join(incident.gpus),
            "victims": ", ".join(f"job {job}" for job in incident.victims),
            "opened": moment(incident.opened_at),
            "closed": "" if incident.closed_at is None else moment(incident.closed_at),
            "open for": duration_text(timedelta(seconds=incident.open_for_seconds)),
            "note": incident.note,
            "waits for": incident.waits_for or "",
            "two copies": "; ".join(incident.overlaps),
        },
    )
    out.print(Text("\nFindings", style="bold"))
    for finding in view.findings:
        out.print(_indented(2, f"{moment(finding.found_at)}  {finding.node}  {finding.rule}: {finding.explanation}"))
        out.print(_indented(4, f"calls for {finding.response.replace('_', ' ')}; rule: {finding.source}"))
        for each in finding.evidence:
            out.print(_indented(4, f"evidence {each.source} {each.position}: {each.text}"))
    if incident.plan is not None:
        out.print()
        print_plan(out, incident.plan)
    if view.actions:
        out.print(Text("\nActions", style="bold"))
        out.print(_action_table(view.actions))
    out.print(Text("\nLedger", style="bold"))
    out.print(_entry_table(view.entries))


def print_audit(out: Console, view: AuditView) -> None:
    """Print the verdict and, where the chain is broken, where."""
    if view.is_whole and view.entry_count == 0:
        out.print(Text("the ledger is empty: no line was ever written, or it was replaced", style="yellow"))
    elif view.is_whole:
        out.print(Text("the ledger is whole", style="green"))
    else:
        where = "" if view.first_broken_seq is None else f" at entry {view.first_broken_seq}"
        out.print(Text(printable(f"the ledger is DAMAGED{where}: {view.problem}"), style="bold red"))
    print_fields(out, {"cluster": view.cluster, "entries": str(view.entry_count), "head hash": view.head_hash})


def duration_text(duration: timedelta) -> str:
    """Return `45 s`, `12 min`, `3 h 10 min` or `2 d 4 h`, rounded down."""
    seconds = max(0, int(duration.total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600} h"


def culprits(incident: IncidentView) -> str:
    """Return the culprits by name, the rest by number; an incident without one names its jobs."""
    names = incident.diagnosis.places or incident.nodes or tuple(f"job {job}" for job in incident.victims)
    return listed(names, at_most=_SHOWN_NAME_COUNT) or "none"


def _situation(incident: IncidentView) -> Iterable[str]:
    sureness = "" if incident.diagnosis.confidence is None else f" ({incident.diagnosis.confidence:.0%} sure)"
    yield f"{incident.diagnosis.cause}{sureness}"
    if incident.note.startswith(PAGED):
        yield incident.next_step
    elif incident.note not in (incident.what, incident.diagnosis.cause):
        yield f"note: {incident.note}"
    if incident.waits_for is not None and incident.waits_for != "approval":  # Its plan says that in the next line.
        yield f"waits for {incident.waits_for}"
    if incident.plan is not None and incident.state != IncidentState.RESOLVED.value:
        left_to = incident.plan.left_to
        does = f"left to whoever drained it ({left_to})" if left_to else incident.response.replace("_", " ")
        yield f"{does}, {incident.plan.plan}: {_standing(incident.plan)}"


def _sureness(incident: IncidentView) -> str:
    confidence = incident.diagnosis.confidence
    return "" if confidence is None else f"{incident.diagnosis.confidence_words} ({confidence:.0%})"


def _standing(plan: PlanView) -> str:
    if plan.standing is PlanStanding.APPROVED and plan.approved_until is not None:
        return f"approved by {plan.approved_by} until {moment(plan.approved_until)}"
    words = plan.standing.value.replace("_", " ")
    return f"{words} (the mode is observe)" if plan.standing is PlanStanding.WOULD_BE_DONE else words


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _action_table(actions: Iterable[ActionView]) -> Table:
    table = _table()
    table.add_column("begun (UTC)", no_wrap=True, min_width=19)
    table.add_column("sent", no_wrap=True)
    table.add_column("ended", no_wrap=True)
    table.add_column("action", overflow="fold")
    table.add_column("outcome and witness", overflow="fold")
    for each in actions:
        outcome = each.outcome or "under way"
        table.add_row(
            moment(each.begun_at).removesuffix(" UTC"),
            _later(each.begun_at, each.sent_at),
            _later(each.begun_at, each.finished_at),
            text_of(each.action),
            Text(outcome, style=_STYLES.get(outcome, "")) + text_of(f": {each.witness}" if each.witness else ""),
        )
    return table


def _entry_table(entries: Iterable[EntryView]) -> Table:
    table = _table()
    table.add_column("seq", no_wrap=True, justify="right")
    table.add_column("written (UTC)", no_wrap=True, min_width=19)
    table.add_column("who", overflow="fold")
    table.add_column("what", overflow="fold")
    for each in entries:
        what = f"{each.kind.replace('_', ' ')}: {each.what}" if each.what else each.kind.replace("_", " ")
        table.add_row(str(each.seq), moment(each.written_at).removesuffix(" UTC"), text_of(each.actor), text_of(what))
    return table


def _later(begun_at: datetime, at: datetime | None) -> str:
    return "" if at is None else f"+{(at - begun_at).total_seconds():.1f} s"


def _counts(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return "not known: see the message on standard error"
    return ", ".join(f"{count} {word.replace('_', ' ')}" for word, count in counts.items()) or "none"


def _indented(by: int, text: str) -> Padding:
    return Padding(text_of(text), (0, 0, 0, by))
