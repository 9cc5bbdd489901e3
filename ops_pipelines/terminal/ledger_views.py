"""What the ledger holds, as values in the shape of their JSON: the story of one incident, and the audit's verdict.

Field names are the JSON keys. Finding the lines is `outlook`'s, printing `tables`'.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.entries import ChainVerdict, Entry, EntryKind
from ops_pipelines.core.incident import Incident
from ops_pipelines.remediate.testimony import explain_action
from ops_pipelines.terminal.incident_views import IncidentView


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
