"""What the ledger's chain says of one incident: its lines, and from them changes, plans, approvals and refusals.

Reads the bodies as the JSON that they are: lines of older versions say less, and never make the reading fail.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ops_pipelines.core.entries import Entry, EntryKind
from ops_pipelines.core.identity import ActionKey, Digest, IncidentId, PlanId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.plan import IncidentPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A line that says how the incident stands from then on."""

    at: datetime
    actor: str
    state: str
    response: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePlan:
    """A plan, and when it was recorded."""

    made_at: datetime
    plan: IncidentPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Yes:
    """An approval, as it was recorded."""

    plan: str
    actor: str
    via: str
    """`terminal`, `link`, `ui`, `chat`; empty in ledgers of versions that did not record it."""
    given_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAct:
    """An act that a guardrail refused. The same act is recorded once for each reason."""

    at: datetime
    actor: str
    act: str
    guardrail: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Everything that the chain says of one incident, each in the order of its lines."""

    lines: tuple[Entry, ...]
    """Its own lines and the decisions that name it."""
    changes: tuple[Change, ...]
    plans: tuple[MadePlan, ...]
    approvals: tuple[Yes, ...]
    refusals: tuple[RefusedAct, ...]
    resent: tuple[tuple[datetime, ActionKey], ...]
    decisions: tuple[Digest, ...]
    """sha256 of the inputs of each decision that changed it: `Ledger.load_snapshot` has them."""


def read_chain(incident: Incident, ledger: Ledger) -> Chain:
    """Return what the chain says of an incident, reading no other lines. Raises LedgerError."""
    lines = tuple(_lines_of(incident, ledger))
    bodies = [(line, _body_of(line)) for line in lines]
    plans = (
        (line.written_at, ledger.plan(PlanId(_text(body, "plan"))))
        for line, body in bodies
        if line.kind is EntryKind.PLAN
    )
    return Chain(
        lines=lines,
        changes=tuple(_changes(bodies)),
        plans=tuple(MadePlan(made_at=at, plan=plan) for at, plan in plans if plan is not None),
        approvals=tuple(
            Yes(
                plan=_text(body, "plan"),
                actor=line.actor,
                via=_text(body, "via"),
                given_at=line.written_at,
                expires_at=_time(body, "expires_at"),
            )
            for line, body in bodies
            if line.kind is EntryKind.APPROVAL
        ),
        refusals=tuple(_refusal(line, body) for line, body in bodies if line.kind is EntryKind.ACTION_REFUSED),
        resent=tuple(
            (line.written_at, ActionKey(_text(body, "key")))
            for line, body in bodies
            if line.kind is EntryKind.ACTION_RESENT
        ),
        decisions=tuple(
            Digest(_text(body, "inputs"))
            for line, body in bodies
            if line.kind is EntryKind.DECISION and _text(body, "inputs")
        ),
    )


def tell_line(line: Entry) -> str:
    """Return what a line says in a few words; one of another version gives fewer words, no error."""
    body = _body_of(line)
    match line.kind:
        case EntryKind.INCIDENT:
            return f"{_text(body, 'state')}: {_text(body, 'note')}".removesuffix(": ")
        case EntryKind.PLAN:
            actions = body.get("actions")
            return f"{_text(body, 'plan')}, {len(actions) if isinstance(actions, list) else 0} step(s)"
        case EntryKind.APPROVAL:
            return f"{_text(body, 'plan')} until {_text(body, 'expires_at')}"
        case EntryKind.DECISION:
            return f"on the inputs {_text(body, 'inputs')[:16]}"
        case _:
            refusal, outcome = _part(body, "refusal"), _part(body, "outcome")
            words = (
                _act_of(_part(body, "action")),
                f"{_text(outcome, 'kind')}: {_text(outcome, 'witness')}" if outcome else "",
                f"{_text(refusal, 'guardrail')}: {_text(refusal, 'reason')}" if refusal else "",
            )
            return "; ".join(each for each in words if each)


def _changes(bodies: list[tuple[Entry, Mapping[str, object]]]) -> Iterator[Change]:
    """Yield the lines that change how the incident stands; those that only add evidence or progress are left out."""
    before: tuple[str, object, str] | None = None
    for line, body in bodies:
        if line.kind is not EntryKind.INCIDENT:
            continue
        shown = (_text(body, "state"), body.get("response"), _text(body, "note"))
        if shown != before:
            yield Change(
                at=line.written_at, actor=line.actor, state=shown[0], response=str(shown[1] or ""), note=shown[2]
            )
        before = shown


def _refusal(line: Entry, body: Mapping[str, object]) -> RefusedAct:
    refusal = _part(body, "refusal")
    return RefusedAct(
        at=line.written_at,
        actor=line.actor,
        act=_act_of(_part(body, "action")),
        guardrail=_text(refusal, "guardrail"),
        reason=_text(refusal, "reason"),
    )


def _act_of(action: Mapping[str, object]) -> str:
    job = _text(_part(action, "attempt"), "job")
    parts = (
        _text(action, "verb").replace("_", " "),
        f"job {job}" if job else "",
        _text(action, "node"),
        _text(action, "gpu"),
    )
    return " ".join(each for each in parts if each)


def _lines_of(incident: Incident, ledger: Ledger) -> Iterator[Entry]:
    for line in ledger.entries_about(incident.incident):
        if line.incident == incident.incident or _is_decision_on(line, incident.incident):
            yield line


def _is_decision_on(line: Entry, incident: IncidentId) -> bool:
    if line.kind is not EntryKind.DECISION:
        return False
    changed = _body_of(line).get("incidents")
    return isinstance(changed, list) and incident in changed


def _body_of(line: Entry) -> Mapping[str, object]:
    try:
        body = json.loads(line.body)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _part(body: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = body.get(name)
    return part if isinstance(part, dict) else {}


def _text(body: Mapping[str, object], name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""


def _time(body: Mapping[str, object], name: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(_text(body, name))
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
