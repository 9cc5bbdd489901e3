"""What the ledger's chain records of one incident, and a plan as a report shows it.

Reads the bodies as the JSON that they are: lines of older versions hold less, and never make the reading fail.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ops_pipelines.core.action import MESSAGES, Action, ActionRecord
from ops_pipelines.core.entries import Entry, EntryKind
from ops_pipelines.core.identity import ActionKey, Digest, IncidentId, PlanId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.remediate.verbs import explain_action
from ops_pipelines.report.numbers import counted

# -- spans, GPU-hours and lists of names as a report says them --


_SHOWN = 4


def gpu_hours_words(hours: float) -> str:
    """Return GPU-hours with as many digits as a person compares: `1,204`, `37.5`, `0.03`, `0`."""
    size = abs(hours)
    if size >= 100:
        return f"{hours:,.0f}"
    if size >= 1:
        return f"{hours:.1f}"
    return f"{hours:.2f}" if size >= 0.005 else ("under 0.01" if hours > 0 else "0")


# -- what the ledger's chain says of one incident --


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A line that says how the incident is from then on."""

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
            return f"{_text(body, 'plan')}, {counted(len(actions) if isinstance(actions, list) else 0, 'step')}"
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
    """Yield the lines that change how the incident is; those that only add evidence or progress are left out."""
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


# -- a plan as a report says it --


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedOption:
    """One moment at which a job could have been interrupted, and what that was expected to cost."""

    moment: str
    lost_gpu_hours: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTiming:
    """When one job was to be interrupted, and why then."""

    job: str
    moment: str
    reason: str
    options: tuple[ReportedOption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRemaining:
    """What a plan leaves in service of one part of the cluster."""

    what: str
    stays_count: int
    total_count: int
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedPlan:
    """One plan: what it would do, what it touches, and what was thought better of."""

    plan: str
    made_at: datetime
    response: str
    called_for: str
    is_begun: bool
    steps: tuple[str, ...]
    effects: tuple[str, ...]
    rejected_alternatives: tuple[str, ...]
    timings: tuple[ReportedTiming, ...]
    teams: tuple[str, ...]
    touched_jobs: tuple[str, ...]
    lost_gpu_hours: float | None
    """Expected, by our acts; None where the plan touches nothing."""
    remaining: tuple[ReportedRemaining, ...]
    violations: tuple[str, ...]


def tell_plan(made: MadePlan, records: Collection[ActionRecord]) -> ReportedPlan:
    """Return a plan in words; `records` say whether it was started."""
    plan, proof = made.plan, made.plan.proof
    return ReportedPlan(
        plan=plan.plan,
        made_at=made.made_at,
        response=_words(plan.response.name),
        called_for=_words((plan.calls_for or plan.response).name),
        is_begun=any(each.plan == plan.plan for each in records),
        steps=tuple(_step(each) for each in plan.actions),
        effects=plan.effects,
        rejected_alternatives=plan.rejected_alternatives,
        timings=tuple(
            ReportedTiming(
                job=timing.attempt.job,
                moment=_words(timing.moment.name),
                reason=timing.reason,
                options=tuple(
                    ReportedOption(moment=_words(each.moment.name), lost_gpu_hours=each.lost_gpu_hours, why=each.why)
                    for each in timing.options
                ),
            )
            for timing in plan.timings
        ),
        teams=() if proof is None else proof.teams,
        touched_jobs=() if proof is None else tuple(_touched(plan)),
        lost_gpu_hours=None if proof is None else proof.lost_gpu_hours,
        remaining=()
        if proof is None
        else tuple(
            ReportedRemaining(
                what=f"{each.kind} {each.name}".replace("_", " ").strip(),
                stays_count=each.total_count - each.out_after_count,
                total_count=each.total_count,
                limit=each.limit,
            )
            for each in proof.remaining
            if each.total_count > 1  # Of what has one part only, that part is the one.
        ),
        violations=() if proof is None else proof.violations,
    )


def _step(action: Action) -> str:
    words = explain_action(action)
    return f"{words}: {action.text}" if action.verb in MESSAGES else words


def _touched(plan: IncidentPlan) -> Iterator[str]:
    for each in () if plan.proof is None else plan.proof.jobs:
        lost = "loss not known" if each.lost_gpu_hours is None else f"{each.lost_gpu_hours:.2f} GPU-hours expected lost"
        fate = f"interrupted, {lost}" if each.is_interrupted else "continues"
        yield f"job {each.job} of {each.account or 'no account'}, {each.gpu_count} GPUs: {fate}"


def _words(name: str) -> str:
    return name.lower().replace("_", " ")
