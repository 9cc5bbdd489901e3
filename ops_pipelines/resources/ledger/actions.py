"""Starting and finishing actions: key, lease, pause, guard and proofs judged together, and the lines that record it.

Keeps what was proved of plans, and lets nothing start without a proof: asked in the very transaction that would start
it. Each function runs inside a writing transaction of its caller, so no two processes pass a guard on the same state.
Writing decisions and plans is `decisions`'; sending the command, and reading its witness, is
`remediate.perform`'s.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from ops_pipelines.core.action import MESSAGES, ActionRecord, Outcome
from ops_pipelines.core.entries import (
    AUTOPILOT,
    AlreadyBegun,
    Begun,
    EntryKind,
    Guard,
    LedgerConflict,
    LedgerError,
    LedgerState,
    Pause,
)
from ops_pipelines.core.identity import ActionKey, Digest, PlanId, digest_of, is_rollout
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.plan import IncidentPlan, why_no_step
from ops_pipelines.core.proof import (
    LASTS,
    SECOND_OPINION,
    ActProof,
    Patience,
    Proof,
    Refusal,
    wait,
    why_act_unproved,
    why_unproved,
)
from ops_pipelines.remediate.act_proof import ACT_CHECKS
from ops_pipelines.remediate.plan_proof import PROOFS
from ops_pipelines.resources.documents import decode, encode
from ops_pipelines.resources.ledger.chain import ChainWriter, RefusedAction, Resent
from ops_pipelines.resources.ledger.evidence import read_lease
from ops_pipelines.resources.ledger.state import (
    action_row,
    read_plans_of,
    read_proofs_of,
    read_records_of,
    read_state,
    refusal_identity,
)
from ops_pipelines.resources.ledger.tables import actions, entries, refusals
from ops_pipelines.resources.ledger.tables import proofs as proof_rows

# -- proofs of plans --


_NEW_PROOF = insert(proof_rows)
_OUTDATED = delete(proof_rows).where(proof_rows.c.plan == bindparam("its_plan"))


def content_of(plan: IncidentPlan) -> Digest:
    """Return the sha256 of a plan as it is written."""
    return digest_of(encode(plan))


def worth_writing(connection: Connection, proofs: Collection[Proof]) -> tuple[Proof, ...]:
    """Return the proofs that say something new, or are to take the place of one of which half the time is over."""
    known = read_proofs_of(connection, [each.plan for each in proofs])
    return tuple(each for each in proofs if _is_news(each, known.get(each.plan)))


def _is_news(proof: Proof, known: Proof | None) -> bool:
    if known is None:
        return True
    if proof.made_at < known.made_at:
        return False  # Who was slow does not unsay what was found since.
    if _said(proof) != _said(known):
        return True
    return proof.made_at - known.made_at > LASTS / 2


def _said(proof: Proof) -> tuple[object, ...]:
    return proof.content, proof.rules, proof.version, proof.checked


def write_proofs(writer: ChainWriter, proofs: Collection[Proof], *, now: datetime) -> None:
    """Append proofs of plans that are known, each in place of the one before."""
    plans = read_plans_of(writer.connection, [each.plan for each in proofs])
    for proof in proofs:
        if proof.plan not in plans:
            raise LedgerError(f"there is no plan {proof.plan} that could be proved; record the plan with its proof")
        body, incident = encode(proof), plans[proof.plan].incident
        seq = writer.append(body, kind=EntryKind.PROOF, actor=AUTOPILOT, incident=incident, now=now)
        writer.connection.execute(_OUTDATED, {"its_plan": proof.plan})
        writer.connection.execute(_NEW_PROOF, {"plan": proof.plan, "seq": seq, "body": body})


def refuse_unproved(connection: Connection, begun: Iterable[Incident], *, now: datetime) -> None:
    """Raise LedgerConflict if a plan would be put in force without a proof that has passed, and holds yet."""
    for incident in begun:
        if incident.state is not IncidentState.ACTING or incident.plan is None:
            continue
        why = _why_unproved(connection, incident.plan)
        if why is None and read_proofs_of(connection, [incident.plan])[incident.plan].expires_at <= now:
            why = "its proof has expired; the next pass proves it again"
        if why is not None:
            raise LedgerConflict(f"plan {incident.plan} cannot be put in force: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPlans:
    """The plans behind acts that are to be started together, with what was proved of them: read once."""

    plans: Mapping[PlanId, IncidentPlan]
    proofs: Mapping[PlanId, Proof]


def read_known_plans(connection: Connection, records: Iterable[ActionRecord]) -> KnownPlans:
    """Return the plans behind some acts, in this transaction."""
    names = {each.plan for each in records if each.plan is not None and not is_rollout(each.action.incident)}
    return KnownPlans(plans=read_plans_of(connection, names), proofs=read_proofs_of(connection, names))


def refusal_of_unproved(
    known: KnownPlans, record: ActionRecord, proof: ActProof | None, *, now: datetime
) -> Refusal | None:
    """Return why an act must not be started: its plan was not proved, does not hold it, or the act itself was not
    proved.

    People are notified whatever was proved. Of a rollout the acts alone are proved: its waves have an approval of their
    own.
    """
    action = record.action
    if action.verb in MESSAGES:
        return None
    why = None if is_rollout(action.incident) else _why_unplanned(known, record)
    if why is None and proof is not None and proof.contradictions:
        return wait(SECOND_OPINION, "; ".join(proof.contradictions))
    why = why or why_act_unproved(proof, act=action.key, checks=ACT_CHECKS, now=now)
    return None if why is None else wait("proof", why)


def _why_unplanned(known: KnownPlans, record: ActionRecord) -> str | None:
    """Return why the plan behind an act does not carry it. What follows a plan without being of it needs no proof of
    that plan: tests, the rollback and marks are proved by themselves."""
    plan = None if record.plan is None else known.plans.get(record.plan)
    if record.plan is not None and plan is None:
        return f"there is no plan {record.plan}"
    if plan is None or record.action not in plan.actions:
        return why_no_step(record.action, plan)
    return why_unproved(known.proofs.get(plan.plan), content=content_of(plan), checks=PROOFS)


def _why_unproved(connection: Connection, plan: PlanId) -> str | None:
    known = read_plans_of(connection, [plan]).get(plan)
    if known is None:
        return f"there is no plan {plan}"
    proof = read_proofs_of(connection, [plan]).get(plan)
    return why_unproved(proof, content=content_of(known), checks=PROOFS)


# -- starting and finishing --


_RESENT = (
    select(entries.c.body)
    .where(
        entries.c.kind == EntryKind.ACTION_RESENT.value,
        entries.c.incident == select(actions.c.incident).where(actions.c.key == bindparam("key")).scalar_subquery(),
    )
    .order_by(entries.c.seq)
)
_NEW_ACTIONS = insert(actions)
_CHANGED_ACTION = update(actions).where(actions.c.key == bindparam("its_key"))
_KNOWN_REFUSAL = select(refusals.c.seq).where(refusals.c.identity == bindparam("identity"))


def begin_actions(
    connection: Connection,
    records: Sequence[ActionRecord],
    *,
    guard: Guard,
    lease_token: str | None,
    actor: str,
    now: datetime,
) -> tuple[Begun | AlreadyBegun | Refusal, ...]:
    """Write the before-entries in order, or the refusals that are new; each sees those before it as started."""
    known = read_records_of(connection, [record.action.key for record in records])
    plans = read_known_plans(connection, records)
    answers: list[Begun | AlreadyBegun | Refusal] = []
    rows: list[dict[str, object]] = []
    state: LedgerState | None = None
    with ChainWriter(connection) as writer:
        for asked in records:
            record = asked
            before = known.get(record.action.key)
            if before is not None:
                answers.append(AlreadyBegun(record=before))
                continue
            if record.sent_at is not None or record.outcome is not None:
                raise LedgerError(
                    f"{_name(record)} is sent or over before it begins; begin it first, then mark and finish it"
                )
            if state is None:
                state = read_state(connection, now)
                lease_refusal = _judge_lease(connection, lease_token, now)
            refusal = lease_refusal or _judge_pause(state.pause, record, actor=actor)
            if refusal is None:
                record, refusal = _proved(plans, record, guard(record, state), now=now)
            if refusal is not None:
                _write_refusal(writer, RefusedAction(action=record.action, refusal=refusal), actor=actor, now=now)
                answers.append(refusal)
                continue
            body = encode(record)
            seq = writer.append(
                body, kind=EntryKind.ACTION_BEGUN, actor=actor, incident=record.action.incident, now=now
            )
            rows.append({**action_row(record), "begun_seq": seq, "sent_seq": None, "finished_seq": None, "body": body})
            known[record.action.key] = record
            state = replace(state, records=(*state.records, record), head_seq=seq)
            answers.append(Begun(record=record))
    if rows:
        connection.execute(_NEW_ACTIONS, rows)
    return tuple(answers)


def begin_action_again(
    connection: Connection,
    record: ActionRecord,
    *,
    after: int,
    guard: Guard,
    lease_token: str | None,
    actor: str,
    now: datetime,
) -> Begun | AlreadyBegun | Refusal:
    """Write that an unsent action is sent once more; a refusal writes nothing: it will be asked again."""
    key = record.action.key
    present = _begun(connection, [key])[key]
    if present != record or present.outcome is not None or len(read_resent_at(connection, key)) != after:
        return AlreadyBegun(record=present)
    state = read_state(connection, now)
    refusal = _judge_lease(connection, lease_token, now) or _judge_pause(state.pause, record, actor=actor)
    again = record
    if refusal is None:
        plans = read_known_plans(connection, [record])
        again, refusal = _proved(plans, record, guard(record, state), now=now)
    if refusal is not None:
        return refusal
    body = encode(Resent(key=key, at=now, proof=again.proof))
    with ChainWriter(connection) as writer:
        writer.append(body, kind=EntryKind.ACTION_RESENT, actor=actor, incident=record.action.incident, now=now)
    return Begun(record=record)


def _proved(
    plans: KnownPlans, record: ActionRecord, found: Refusal | ActProof | None, *, now: datetime
) -> tuple[ActionRecord, Refusal | None]:
    """Return the record with what was proved of it, and why it must not be started all the same."""
    if isinstance(found, Refusal):
        return record, found
    return replace(record, proof=found), refusal_of_unproved(plans, record, found, now=now)


def read_resent_at(connection: Connection, key: ActionKey) -> tuple[datetime, ...]:
    """Return when an action was sent again, oldest first."""
    bodies = connection.execute(_RESENT, {"key": key}).scalars()
    resent = [decode(Resent, body) for body in bodies]
    return tuple(each.at for each in resent if each.key == key)


def withhold_action(connection: Connection, key: ActionKey, *, sending: int, actor: str, now: datetime) -> None:
    """Write that a command was provably not sent; the same sending once."""
    record = _begun(connection, [key])[key]
    if record.outcome is not None:
        return
    with ChainWriter(connection) as writer:
        _write_refusal(writer, RefusedAction(action=record.action, refusal=_unsent(sending)), actor=actor, now=now)


def read_withheld(connection: Connection, key: ActionKey) -> frozenset[int]:
    """Return which sendings of an action were withheld."""
    record = _begun(connection, [key])[key]
    sendings = range(len(read_resent_at(connection, key)) + 1)
    identities = {
        refusal_identity(RefusedAction(action=record.action, refusal=_unsent(each))): each for each in sendings
    }
    found = connection.execute(select(refusals.c.identity).where(refusals.c.identity.in_(identities))).scalars()
    return frozenset(identities[identity] for identity in found)


def _unsent(sending: int) -> Refusal:
    """Return why a command was not sent although its before-entry is recorded; each sending has words of its own."""
    which = "" if sending == 0 else f" for the {sending + 1}. time"
    return Refusal(
        guardrail="lease",
        reason=f"the right to act, or what it was judged on, ran out before this was sent{which}: it was not sent",
        patience=Patience.WAIT,
    )


def mark_action_sent(connection: Connection, key: ActionKey, *, actor: str, now: datetime) -> None:
    """Write when the command was accepted; nothing if that is known, or the action over."""
    record = _begun(connection, [key])[key]
    if record.sent_at is not None or record.outcome is not None:
        return
    body = encode(replace(record, sent_at=now))
    with ChainWriter(connection) as writer:
        seq = writer.append(body, kind=EntryKind.ACTION_SENT, actor=actor, incident=record.action.incident, now=now)
    _update_actions(connection, [{"its_key": key, "sent_seq": seq, "body": body}])


def finish_actions(connection: Connection, outcomes: Mapping[ActionKey, Outcome], *, actor: str) -> None:
    """Write the outcomes of actions that were started; each line carries the whole record."""
    rows = []
    with ChainWriter(connection) as writer:
        for key, record in _begun(connection, outcomes.keys()).items():
            outcome = outcomes[key]
            if record.outcome is not None and record.outcome.kind is outcome.kind:
                continue
            if record.outcome is not None:
                raise LedgerConflict(
                    f"{_name(record)} is already {record.outcome.kind.value} ({record.outcome.witness}); "
                    f"it cannot become {outcome.kind.value}"
                )
            body = encode(replace(record, outcome=outcome))
            seq = writer.append(
                body,
                kind=EntryKind.ACTION_FINISHED,
                actor=actor,
                incident=record.action.incident,
                now=outcome.finished_at,
            )
            rows.append({"its_key": key, "finished_seq": seq, "body": body})
    _update_actions(connection, rows)


def _update_actions(connection: Connection, rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        connection.execute(_CHANGED_ACTION, rows)


def _judge_lease(connection: Connection, token: str | None, now: datetime) -> Refusal | None:
    if token is None or token == read_lease(connection, now):
        return None
    return Refusal(
        guardrail="lease",
        reason="the right to act has run out or went to another process; the next run takes the current one",
        patience=Patience.WAIT,
    )


def _judge_pause(pause: Pause | None, record: ActionRecord, *, actor: str) -> Refusal | None:
    if pause is None or record.action.verb in MESSAGES or actor != AUTOPILOT:
        return None  # People are notified, and a person may act, while the autopilot is paused.
    return Refusal(
        guardrail="pause",
        reason=f"{pause.actor} paused the autopilot ({pause.reason}); `ops-pipelines resume-autopilot` ends that",
        patience=Patience.WAIT,
    )


def _write_refusal(writer: ChainWriter, refused: RefusedAction, *, actor: str, now: datetime) -> None:
    identity = refusal_identity(refused)
    if writer.connection.execute(_KNOWN_REFUSAL, {"identity": identity}).first() is not None:
        return
    seq = writer.append(
        encode(refused), kind=EntryKind.ACTION_REFUSED, actor=actor, incident=refused.action.incident, now=now
    )
    writer.connection.execute(insert(refusals), {"identity": identity, "seq": seq})


def _begun(connection: Connection, keys: Collection[ActionKey]) -> dict[ActionKey, ActionRecord]:
    records = read_records_of(connection, keys)
    unknown = [key for key in keys if key not in records]
    if unknown:
        raise LedgerError(f"no action {unknown[0]} was started; what came of it needs its before-entry")
    return {key: records[key] for key in keys}


def _name(record: ActionRecord) -> str:
    return f"{record.action.verb.value} on {record.action.target}"
