"""The ledger read as values: what is true now, from the projections, with how each projection row follows from a line
of the chain; and, for a replay, what happened: decisions with what they changed, acts, refusals, approvals, rules.

The writers and the audit both take rows from `incident_row` and its siblings, so what is checked is what is written. A
`Chronicle` holds a ledger and hands out its reading side alone: nothing that got one can write or act.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache

from sqlalchemy import Column, Connection, Select, bindparam, func, insert, or_, select, tuple_, union, update

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.entries import (
    KEPT_ACTS,
    Approval,
    Entry,
    EntryKind,
    LedgerDamaged,
    LedgerError,
    LedgerState,
    Pause,
)
from ops_pipelines.core.identity import ActionKey, Digest, IncidentId, NodeName, PlanId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.plan import IncidentPlan, Rules, Snapshot
from ops_pipelines.core.proof import Proof
from ops_pipelines.core.record import Approved, Began, Decided, Ended, Event, RefusedAct, Unreadable
from ops_pipelines.core.rollout import IN_HAND, LEFT
from ops_pipelines.resources.documents import decode, encode
from ops_pipelines.resources.ledger.chain import ChainWriter, Decision, RefusedAction
from ops_pipelines.resources.ledger.rollouts import read_open_rollouts, read_owned
from ops_pipelines.resources.ledger.tables import (
    actions,
    approvals,
    cursors,
    entries,
    evidence,
    identity_of,
    incidents,
    plans,
    proofs,
    rollout_nodes,
    rollouts,
)

RECORDS_WINDOW = timedelta(hours=24)
"""How far back `read_state` shows finished actions of closed incidents; the port's contract names it."""
_LOOKUP_SIZE = 500
_CACHE_SIZE = 8192
"""Values are frozen, so equal texts may share one. Covers open incidents and a day's actions of a large cluster."""


_RESUMED_SEQ = (
    select(func.max(entries.c.seq)).where(entries.c.kind == EntryKind.RESUME_AUTOPILOT.value).scalar_subquery()
)
_PAUSE = (
    select(entries.c.body)
    .where(entries.c.kind == EntryKind.PAUSE.value, entries.c.seq > func.coalesce(_RESUMED_SEQ, 0))
    .order_by(entries.c.seq)
    .limit(1)
)
_DECISION = (
    select(entries.c.body).where(entries.c.kind == EntryKind.DECISION.value).order_by(entries.c.seq.desc()).limit(1)
)
# One question for what is one value each: `read_state` is asked a dozen times in a pass.
_SINGLE_VALUES = select(
    select(func.max(entries.c.seq)).scalar_subquery().label("head_seq"),
    _DECISION.scalar_subquery().label("decision"),
    select(func.max(evidence.c.seq)).scalar_subquery().label("evidence_head"),
    select(func.max(incidents.c.number)).scalar_subquery().label("incident_count"),
    _PAUSE.scalar_subquery().label("pause"),
    select(cursors.c.position).where(cursors.c.source == KEPT_ACTS).scalar_subquery().label("kept"),
    select(func.max(rollouts.c.number)).where(rollouts.c.is_open == 1).scalar_subquery().label("open_rollout"),
)
_IS_OPEN = incidents.c.is_open == 1
_OPEN_INCIDENTS = (
    select(incidents.c.incident, incidents.c.last_change_seq, incidents.c.body)
    .where(_IS_OPEN)
    .order_by(incidents.c.opened_at, incidents.c.number)
)
# Not of every node of an open rollout: a thousand nodes have ten thousand actions, and almost all of them are over.
_NODES_OUT = (
    select(rollout_nodes.c.rollout, rollout_nodes.c.node)
    .select_from(rollouts.join(rollout_nodes, rollout_nodes.c.rollout == rollouts.c.rollout))
    .where(
        rollouts.c.is_open == 1,
        rollout_nodes.c.stage.in_(sorted(stage.value for stage in IN_HAND | LEFT)),
    )
)
_BEGUN = select(actions.c.begun_seq)
_SHOWN = (
    _BEGUN.where(actions.c.finished_seq.is_(None)),
    _BEGUN.where(actions.c.begun_at > bindparam("since")),
    _BEGUN.where(actions.c.incident.in_(select(incidents.c.incident).where(_IS_OPEN))),
)
# Unions, because with OR and an ORDER BY SQLite scans every action there ever was. The second only where it is needed.
_RECORDS = select(actions.c.body).where(actions.c.begun_seq.in_(union(*_SHOWN))).order_by(actions.c.begun_seq)
_RECORDS_WITH_ROLLOUTS = (
    select(actions.c.body)
    .where(
        actions.c.begun_seq.in_(
            union(*_SHOWN, _BEGUN.where(tuple_(actions.c.incident, actions.c.node).in_(_NODES_OUT)))
        )
    )
    .order_by(actions.c.begun_seq)
)
_APPROVALS = select(approvals.c.body).where(approvals.c.expires_at > bindparam("since")).order_by(approvals.c.seq)
_INCIDENT = select(incidents.c.body).where(incidents.c.incident == bindparam("incident"))
_NEW_INCIDENTS = insert(incidents)
_CHANGED_INCIDENT = update(incidents).where(incidents.c.incident == bindparam("its_name"))
_INCIDENT_COUNT = select(func.max(incidents.c.number))
_RECORDS_OF = select(actions.c.body).where(actions.c.incident == bindparam("incident")).order_by(actions.c.begun_seq)
_RECORDS_ON = _RECORDS_OF.where(actions.c.node == bindparam("node"))


def _bodies_by(identity: Column[str], body: Column[str]) -> Select[str, str]:
    return select(identity, body).where(identity.in_(bindparam("wanted", expanding=True)))


_INCIDENTS_BY_NAME = _bodies_by(incidents.c.incident, incidents.c.body)
_PLANS_BY_NAME = _bodies_by(plans.c.plan, plans.c.body)
_PROOFS_BY_NAME = _bodies_by(proofs.c.plan, proofs.c.body)
_RECORDS_BY_KEY = _bodies_by(actions.c.key, actions.c.body)


def read_state(connection: Connection, now: datetime) -> LedgerState:
    """Return what is true now. Cost grows with what is open and with the last 24 hours, not with history.

    Acts that `KEPT_ACTS` names are shown, too.
    """
    single = connection.execute(_SINGLE_VALUES).one()
    open_rows = connection.execute(_OPEN_INCIDENTS).all()
    has_rollout = single.open_rollout is not None
    shown = _RECORDS_WITH_ROLLOUTS if has_rollout else _RECORDS
    record_bodies = connection.execute(shown, {"since": now - RECORDS_WINDOW}).scalars()
    records = {record.action.key: record for record in map(_to_record, record_bodies)}
    kept = [ActionKey(key) for key in (single.kept or "").split() if key not in records]
    older = sorted(read_records_of(connection, kept).values(), key=lambda each: each.begun_at) if kept else ()
    approval_bodies = connection.execute(_APPROVALS, {"since": now - RECORDS_WINDOW}).scalars()
    given = [_to_approval(body) for body in approval_bodies]
    return LedgerState(
        head_seq=single.head_seq or 0,
        decided_through=_to_decided_through(single.decision),
        evidence_head=single.evidence_head or 0,
        incidents=tuple(_to_incident(row.body) for row in open_rows),
        incident_count=single.incident_count or 0,
        last_change_seq={IncidentId(row.incident): row.last_change_seq for row in open_rows},
        records=(*older, *records.values()),
        approvals=tuple(each for each in given if each.expires_at > now),
        pause=_to_pause(single.pause),
        past_approvals=tuple(each for each in given if each.expires_at <= now),
        rollouts=read_open_rollouts(connection) if has_rollout else (),
        owned=read_owned(connection) if has_rollout else {},
    )


def read_pause(connection: Connection) -> Pause | None:
    """Return the pause that lasts; None if none does."""
    return _to_pause(connection.execute(_PAUSE).scalar())


def read_decided_through(connection: Connection) -> int:
    """Return up to where evidence was decided on: what the last DECISION line says, 0 before the first."""
    return _to_decided_through(connection.execute(_DECISION).scalar())


def read_incident(connection: Connection, incident: IncidentId) -> Incident | None:
    """Return one incident as it is now."""
    body = connection.execute(_INCIDENT, {"incident": incident}).scalar()
    return None if body is None else _to_incident(body)


def read_incidents_of(connection: Connection, names: Collection[IncidentId]) -> dict[IncidentId, Incident]:
    """Return the incidents of these names that there are."""
    found = _bodies_of(connection, _INCIDENTS_BY_NAME, names)
    return {IncidentId(name): _to_incident(body) for name, body in found.items()}


def read_incidents_since(connection: Connection, since: datetime) -> tuple[Incident, ...]:
    """Return what is open or changed at or after `since`, oldest first."""
    bodies = connection.execute(
        select(incidents.c.body)
        .where(or_(incidents.c.is_open == 1, incidents.c.changed_at >= since))
        .order_by(incidents.c.opened_at, incidents.c.number)
    ).scalars()
    return tuple(_to_incident(body) for body in bodies)


def read_plan(connection: Connection, plan: PlanId) -> IncidentPlan | None:
    """Return one plan."""
    return read_plans_of(connection, [plan]).get(plan)


def read_plans_of(connection: Connection, names: Collection[PlanId]) -> dict[PlanId, IncidentPlan]:
    """Return the plans of these names that there are."""
    found = _bodies_of(connection, _PLANS_BY_NAME, names)
    return {PlanId(name): decode(IncidentPlan, body) for name, body in found.items()}


def read_proofs_of(connection: Connection, names: Collection[PlanId]) -> dict[PlanId, Proof]:
    """Return the newest proofs of these plans that there are."""
    found = _bodies_of(connection, _PROOFS_BY_NAME, names)
    return {PlanId(name): _to_proof(body) for name, body in found.items()}


def read_records_of(connection: Connection, keys: Collection[ActionKey]) -> dict[ActionKey, ActionRecord]:
    """Return the actions of these keys that there are."""
    found = _bodies_of(connection, _RECORDS_BY_KEY, keys)
    return {ActionKey(key): _to_record(body) for key, body in found.items()}


def _bodies_of(connection: Connection, statement: Select[str, str], wanted: Collection[str]) -> dict[str, str]:
    """Return the bodies of the rows of these identities, asked for in bites that every database swallows."""
    names = list(wanted)
    found: dict[str, str] = {}
    for start in range(0, len(names), _LOOKUP_SIZE):
        rows = connection.execute(statement, {"wanted": names[start : start + _LOOKUP_SIZE]})
        found.update((row[0], row[1]) for row in rows)
    return found


def read_records(connection: Connection, incident: IncidentId) -> tuple[ActionRecord, ...]:
    """Return the actions of one incident in the order started."""
    bodies = connection.execute(_RECORDS_OF, {"incident": incident}).scalars()
    return tuple(_to_record(body) for body in bodies)


def read_records_on(connection: Connection, cause: IncidentId, node: NodeName) -> tuple[ActionRecord, ...]:
    """Return the actions of one cause on one node in the order started."""
    bodies = connection.execute(_RECORDS_ON, {"incident": cause, "node": node}).scalars()
    return tuple(_to_record(body) for body in bodies)


def write_incidents(
    writer: ChainWriter, changed: Collection[Incident], *, known: Collection[IncidentId], actor: str, now: datetime
) -> None:
    """Append the incidents as they are now and bring their rows up to that; those not `known` are new."""
    connection = writer.connection
    new, old = [], []
    number = connection.execute(_INCIDENT_COUNT).scalar() or 0
    for incident in changed:
        body = encode(incident)
        seq = writer.append(body, kind=EntryKind.INCIDENT, actor=actor, incident=incident.incident, now=now)
        row = {**incident_row(incident), "seq": seq, "last_change_seq": seq, "body": body}
        if incident.incident in known:
            old.append({"its_name": row.pop("incident"), **row})
        else:
            number += 1
            new.append({**row, "number": number, "first_seq": seq})
    if new:
        connection.execute(_NEW_INCIDENTS, new)
    if old:
        connection.execute(_CHANGED_INCIDENT, old)


def incident_row(incident: Incident) -> dict[str, str | int | datetime]:
    """Return the columns that follow from the incident itself."""
    return {
        "incident": incident.incident,
        "is_open": int(incident.is_open),
        "opened_at": incident.opened_at,
        "changed_at": incident.changed_at,
    }


def action_row(record: ActionRecord) -> dict[str, str | datetime | None]:
    """Return the columns that follow from the record itself."""
    action = record.action
    return {"key": action.key, "incident": action.incident, "node": action.node, "begun_at": record.begun_at}


def refusal_identity(refused: RefusedAction) -> str:
    """Return what makes a refusal the same one again."""
    return identity_of(refused.action.key, refused.refusal.guardrail, refused.refusal.reason)


def _to_decided_through(body: str | None) -> int:
    return 0 if body is None else decode(Decision, body).decided_through


def _to_pause(body: str | None) -> Pause | None:
    return None if body is None else decode(Pause, body)


@lru_cache(maxsize=_CACHE_SIZE)
def _to_incident(body: str) -> Incident:
    return decode(Incident, body)


@lru_cache(maxsize=_CACHE_SIZE)
def _to_proof(body: str) -> Proof:
    return decode(Proof, body)


@lru_cache(maxsize=_CACHE_SIZE)
def _to_record(body: str) -> ActionRecord:
    return decode(ActionRecord, body)


@lru_cache(maxsize=_CACHE_SIZE)
def _to_approval(body: str) -> Approval:
    return decode(Approval, body)


_LINES_AT_ONCE = 500


def rules_document(rules: Rules) -> str:
    """Return rules as the document that is stored under their digest.

    `identity.digest_of` puts the length before what it hashes: so does this, and then the digest of rules is the name
    of their document, too.
    """
    body = encode(rules)
    return f"{len(body.encode())}:{body}"


def read_rules_document(document: str) -> Rules:
    """Return the rules of `rules_document`; raise LedgerError where they do not fit this program."""
    _, _, body = document.partition(":")
    return decode(Rules, body)


class LedgerChronicle:
    """A `core.record.Chronicle` of one ledger."""

    def __init__(self, ledger: Ledger, *, present: Mapping[Digest, Rules] | None = None) -> None:
        """`present` are rules that are known whether or not they were stored: those of today's files."""
        self._ledger = ledger
        self._rules: dict[Digest, Rules | None] = dict(present or {})

    def events(self, *, since: datetime, until: datetime) -> Iterator[Event]:
        """As the port says."""
        waiting: _Unfolding | None = None
        for entry in self._lines(since=since, until=until):
            if waiting is not None and waiting.take(entry):
                if waiting.is_whole:
                    yield waiting.decided()
                    waiting = None
                continue
            if waiting is not None:
                yield waiting.decided()
                waiting = None
            try:
                read = _read(entry)
            except (LedgerError, ValueError, KeyError) as problem:
                yield Unreadable(at=entry.written_at, problem=f"line {entry.seq}: {problem}")
                continue
            if isinstance(read, _Unfolding) and not read.is_whole:
                waiting = read
            elif isinstance(read, _Unfolding):
                yield read.decided()
            elif read is not None:
                yield read
        if waiting is not None:
            yield waiting.decided()

    def snapshot(self, digest: Digest) -> Snapshot:
        """As the port says."""
        return self._ledger.load_snapshot(digest)

    def rules(self, digest: Digest) -> Rules | None:
        """As the port says."""
        if digest not in self._rules:
            try:
                self._rules[digest] = read_rules_document(self._ledger.load(digest))
            except LedgerDamaged:
                raise
            except LedgerError:
                self._rules[digest] = None
        return self._rules[digest]

    def incident(self, incident: IncidentId) -> Incident | None:
        """As the port says."""
        return self._ledger.incident(incident)

    def incidents_since(self, since: datetime) -> tuple[Incident, ...]:
        """As the port says."""
        return self._ledger.incidents_since(since)

    def records(self, incident: IncidentId) -> tuple[ActionRecord, ...]:
        """As the port says."""
        return self._ledger.records(incident)

    def checks(self, node: NodeName, *, limit: int) -> tuple[tuple[NodeCheck, bool], ...]:
        """As the port says."""
        return self._ledger.checks(node, limit=limit)

    def _lines(self, *, since: datetime, until: datetime) -> Iterator[Entry]:
        after = self._seq_before(since)
        while page := self._ledger.entries(after=after, limit=_LINES_AT_ONCE):
            for entry in page:
                if entry.written_at >= until:
                    return
                if entry.written_at >= since:
                    yield entry
            after = page[-1].seq

    def _seq_before(self, since: datetime) -> int:
        """Return a line below the first one of the interval; the chain is in the order of its times."""
        low, high = 0, 1
        while (page := self._ledger.entries(after=high, limit=1)) and page[0].written_at < since:
            low, high = high, high * 2
        while low < high:
            middle = (low + high) // 2
            line = self._ledger.entries(after=middle, limit=1)
            if not line or line[0].written_at >= since:
                high = middle
            else:
                low = middle + 1
        return max(0, low - 1)


class _Unfolding:
    """A line of a decision, and the lines that follow it and are part of it."""

    def __init__(self, entry: Entry, decision: Decision) -> None:
        self._entry = entry
        self._decision = decision
        self._incidents: list[Incident] = []
        self._plans: list[IncidentPlan] = []

    @property
    def is_whole(self) -> bool:
        return len(self._incidents) == len(self._decision.incidents) and len(self._plans) == len(self._decision.plans)

    def take(self, entry: Entry) -> bool:
        """Take the next line; return whether it is part of the decision."""
        try:
            if entry.kind is EntryKind.INCIDENT and len(self._incidents) < len(self._decision.incidents):
                self._incidents.append(decode(Incident, entry.body))
                return True
            if entry.kind is EntryKind.PLAN and len(self._plans) < len(self._decision.plans):
                self._plans.append(decode(IncidentPlan, entry.body))
                return True
        except LedgerError:
            return False
        return False

    def decided(self) -> Decided:
        return Decided(
            seq=self._entry.seq,
            at=self._entry.written_at,
            inputs=self._decision.inputs,
            incidents=tuple(self._incidents),
            plans=tuple(self._plans),
            refusals=self._decision.refusals,
        )


def _read(entry: Entry) -> Event | _Unfolding | None:
    """Return what a line says; None where a replay does not ask for its kind."""
    match entry.kind:
        case EntryKind.DECISION:
            return _Unfolding(entry, decode(Decision, entry.body))
        case EntryKind.ACTION_BEGUN:
            return Began(at=entry.written_at, actor=entry.actor, record=decode(ActionRecord, entry.body))
        case EntryKind.ACTION_FINISHED:
            return Ended(at=entry.written_at, record=decode(ActionRecord, entry.body))
        case EntryKind.ACTION_REFUSED:
            refused = decode(RefusedAction, entry.body)
            return RefusedAct(at=entry.written_at, action=refused.action, refusal=refused.refusal)
        case EntryKind.APPROVAL:
            approval = decode(Approval, entry.body)
            return Approved(at=approval.given_at, plan=approval.plan, expires_at=approval.expires_at)
        case _:
            return None
