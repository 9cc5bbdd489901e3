"""What the parts of the ledger's contract share: sample incidents, actions and plans, short hands, a full history."""

from datetime import UTC, datetime, timedelta

from ops_pipelines.core.action import MESSAGES, Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.entries import AlreadyBegun, Approval, Begun, EntryKind, Guard, LedgerState, Pause
from ops_pipelines.core.finding import Finding, Response
from ops_pipelines.core.identity import Digest, IncidentId, JobAttempt, JobId, NodeName, PciAddress, PlanId
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import Observation, Signal
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.proof import Patience, Refusal
from tests.ports.proved_plans import allow, keep_proved, passed_act

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOSTILE = '\'); DROP TABLE entries; -- \x00 \ud800 größer ✓ {"a": $(reboot)}\n%s :seq'
"""What a statement, a format, a log line and a careless source could each stumble over."""
INPUTS = Digest("0" * 64)
NO_LIMIT = 1000


def observation(position: str, *, source: str = "loki", node: str = "gpu003", at: datetime = NOW) -> Observation:
    return Observation(
        signal=Signal.XID,
        node=NodeName(node),
        observed_at=at,
        source=source,
        position=position,
        code=79,
        gpu=PciAddress("0000:1b:00"),
        text="NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
    )


def incident(number: int, *, state: IncidentState = IncidentState.OPEN, at: datetime = NOW) -> Incident:
    seen = observation(f"line-{number}", at=at)
    finding = Finding(
        rule="xid_79",
        response=Response.REBOOT_NODE,
        node=seen.node,
        gpu=seen.gpu,
        found_at=at,
        is_lasting=False,
        is_driver_verdict=False,
        evidence=(seen,),
        explanation="Xid 79: the GPU has fallen off the bus",
        source="catalogue",
    )
    return Incident(
        incident=IncidentId(f"INC-{number:04d}"),
        state=state,
        response=Response.REBOOT_NODE,
        nodes=frozenset({seen.node}),
        gpus=frozenset({PciAddress("0000:1b:00")}),
        victims=frozenset({JobAttempt(job=JobId("42"), started_at=at - timedelta(hours=3))}),
        findings=(finding,),
        opened_at=at,
        changed_at=at,
    )


def drain(number: int, *, node: str = "gpu003", try_number: int = 1) -> Action:
    name = IncidentId(f"INC-{number:04d}")
    return Action(verb=Verb.DRAIN, incident=name, node=NodeName(node), text="why", try_number=try_number)


def page(number: int) -> Action:
    return Action(verb=Verb.PAGE_HUMAN, incident=IncidentId(f"INC-{number:04d}"), text="look at gpu003")


def plan(number: int, *actions: Action) -> IncidentPlan:
    return IncidentPlan(
        plan=PlanId(f"PLAN-{number}"),
        incident=IncidentId(f"INC-{number:04d}"),
        response=Response.REBOOT_NODE,
        actions=actions,
        reason="Xid 79",
        effects=("job 42 continues until it ends",),
        rejected_alternatives=(),
    )


def record(action: Action, *, at: datetime = NOW) -> ActionRecord:
    booted_at = at - timedelta(days=9)
    proof = None if action.verb in MESSAGES else passed_act(action, at=at)
    return ActionRecord(
        action=action, plan=None, begun_at=at, boot_id_before="b-1", booted_before=booted_at, proof=proof
    )


def outcome(kind: OutcomeKind = OutcomeKind.DONE, *, at: datetime = NOW) -> Outcome:
    return Outcome(kind=kind, witness="the flag was read back", finished_at=at, witnessed_at=at)


def refuse(reason: str) -> Refusal:
    return Refusal(guardrail="drain_budget", reason=reason, patience=Patience.WAIT)


def refusing(reason: str) -> Guard:
    def guard(record: ActionRecord, state: LedgerState) -> Refusal | None:
        return refuse(reason)

    return guard


def decide(
    ledger: Ledger, *incidents: Incident, plans: tuple[IncidentPlan, ...] = (), through: int = 0, at: datetime = NOW
) -> int:
    head = ledger.read_state(at).head_seq
    return ledger.record_decision(
        inputs=INPUTS, decided_through=through, expected_head=head, incidents=incidents, plans=plans, now=at
    )


def begin(ledger: Ledger, action: Action, *, at: datetime = NOW) -> Begun | AlreadyBegun | Refusal:
    return ledger.begin(record(action, at=at), guard=allow, lease_token=None, actor="autopilot", now=at)


def take_in(ledger: Ledger, *observations: Observation, cursor: str | None = None) -> int:
    return ledger.take_in(source="loki", observations=observations, rejected=(), cursor=cursor, now=NOW)


def kinds(ledger: Ledger) -> list[EntryKind]:
    return [entry.kind for entry in ledger.entries(after=0, limit=NO_LIMIT)]


def fill(ledger: Ledger) -> None:
    """Let everything happen that the chain can record, to two incidents."""
    decide(ledger, incident(1), incident(2), plans=(plan(1, drain(1)), plan(2, drain(2))), through=1)
    ledger.approve(Approval(plan=PlanId("PLAN-1"), actor="ada", given_at=NOW, expires_at=NOW + SECOND))
    begin(ledger, drain(1))
    ledger.mark_sent(drain(1).key, actor="autopilot", now=NOW)
    ledger.finish(drain(1).key, outcome(), actor="autopilot")
    begin(ledger, drain(1, try_number=2))
    ledger.finish(drain(1, try_number=2).key, outcome(OutcomeKind.FAILED), actor="autopilot")
    begin(ledger, drain(2))
    ledger.begin_again(record(drain(2)), after=0, guard=allow, lease_token=None, actor="autopilot", now=NOW)
    ledger.mark_sent(drain(2).key, actor="autopilot", now=NOW)
    ledger.begin(record(page(2)), guard=refusing("too many"), lease_token=None, actor="autopilot", now=NOW)
    keep_proved(ledger, plan(1, drain(1)), at=NOW)
    ledger.pause(Pause(actor="ada", since=NOW, reason="maintenance"))
    ledger.resume_autopilot(actor="ada", now=NOW)
    acting = advance(incident(1), IncidentEvent.PLAN_BEGUN, at=NOW, note="begun")
    ledger.change_incident(acting, actor="autopilot", now=NOW)
    done = advance(acting, IncidentEvent.NOTHING_TO_VERIFY, at=NOW, note="done")
    ledger.change_incident(done, actor="autopilot", now=NOW)
