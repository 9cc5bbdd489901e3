"""Whether each projection row says what its lines of the chain say: incidents, actions, plans, approvals, refusals; and
how rows are read and compared, which `audit` uses for rollouts and proposals too.

The pause and `decided_through` have no row: they are read from the chain itself. Hashes are `audit`'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    RowMapping,
    Table,
    Text,
    and_,
    case,
    exists,
    func,
    select,
    type_coerce,
)

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.entries import Approval, EntryKind
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.proof import Proof
from ops_pipelines.resources.documents import decode
from ops_pipelines.resources.ledger.chain import CHANGES, RefusedAction
from ops_pipelines.resources.ledger.state import action_row, incident_row, refusal_identity
from ops_pipelines.resources.ledger.tables import (
    actions,
    approvals,
    entries,
    incidents,
    plans,
    proofs,
    refusals,
    utc_text,
)

_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Where the ledger is not whole, and what is wrong there."""

    seq: int
    problem: str


def pages(connection: Connection, statement: Executable) -> Iterator[Sequence[RowMapping]]:
    """Yield the rows in pages, never all in memory."""
    streaming = connection.execute(statement, execution_options={"stream_results": True, "max_row_buffer": _PAGE_SIZE})
    yield from streaming.mappings().partitions(_PAGE_SIZE)


def projection_faults(connection: Connection) -> Iterator[Fault]:
    """Yield every row that differs from its lines, every row without a line and every line without its row."""
    yield from _incident_faults(connection)
    yield from _action_faults(connection)
    yield from _plan_faults(connection)
    yield from _proof_faults(connection)
    yield from _approval_faults(connection)
    yield from _refusal_faults(connection)


def _incident_faults(connection: Connection) -> Iterator[Fault]:
    statement = select(
        incidents.c.incident,
        incidents.c.number,
        incidents.c.is_open,
        type_coerce(incidents.c.opened_at, Text).label("opened_at"),
        type_coerce(incidents.c.changed_at, Text).label("changed_at"),
        incidents.c.first_seq,
        incidents.c.seq,
        incidents.c.last_change_seq,
        incidents.c.body,
    ).order_by(incidents.c.number)
    number = 0
    last_first_seq = 0
    for page in pages(connection, statement):
        lines = _lines_by_incident(connection, [row["incident"] for row in page])
        for row in page:
            number += 1
            line = lines.get(row["incident"])
            if line is None:
                yield invented("incident", row["incident"], row["seq"])
                continue
            columns = as_stored(incident_row(decode(Incident, line["body"])))
            wrong = differing(row, {**columns, **line, "number": number})
            if wrong or line["first_seq"] <= last_first_seq:
                yield differs("incident", row["incident"], line["seq"], wrong or ["number"])
            last_first_seq = line["first_seq"]
    yield from lost(connection, EntryKind.INCIDENT, incidents.c.incident == entries.c.incident)


def _lines_by_incident(connection: Connection, names: Sequence[str]) -> dict[str, RowMapping]:
    """Return, per incident that has an INCIDENT line, what its row must say of sequence numbers and body."""
    is_own = entries.c.kind == EntryKind.INCIDENT.value
    is_change = entries.c.kind.in_([kind.value for kind in CHANGES])
    spans = (
        select(
            entries.c.incident,
            func.min(case((is_own, entries.c.seq))).label("first_seq"),
            func.max(case((is_own, entries.c.seq))).label("seq"),
            func.max(case((is_change, entries.c.seq))).label("last_change_seq"),
        )
        .where(entries.c.incident.in_(names))
        .group_by(entries.c.incident)
        .subquery()
    )
    statement = select(spans, entries.c.body).join(entries, entries.c.seq == spans.c.seq)
    return {row["incident"]: row for row in connection.execute(statement).mappings()}


def _action_faults(connection: Connection) -> Iterator[Fault]:
    begun, sent, finished = entries.alias("begun"), entries.alias("sent"), entries.alias("finished")
    statement = (
        select(
            actions.c.key,
            actions.c.incident,
            actions.c.node,
            type_coerce(actions.c.begun_at, Text).label("begun_at"),
            actions.c.begun_seq,
            actions.c.sent_seq,
            actions.c.finished_seq,
            actions.c.body,
            begun.c.kind.label("begun_kind"),
            begun.c.body.label("begun_body"),
            sent.c.kind.label("sent_kind"),
            sent.c.body.label("sent_body"),
            finished.c.kind.label("finished_kind"),
            finished.c.body.label("finished_body"),
        )
        .select_from(
            actions.outerjoin(begun, begun.c.seq == actions.c.begun_seq)
            .outerjoin(sent, sent.c.seq == actions.c.sent_seq)
            .outerjoin(finished, finished.c.seq == actions.c.finished_seq)
        )
        .order_by(actions.c.begun_seq)
    )
    for page in pages(connection, statement):
        for row in page:
            fault = _judge_action(row)
            if fault is not None:
                yield fault
    yield from lost(connection, EntryKind.ACTION_BEGUN, actions.c.begun_seq == entries.c.seq)
    yield from lost(connection, EntryKind.ACTION_SENT, actions.c.sent_seq == entries.c.seq)
    yield from lost(connection, EntryKind.ACTION_FINISHED, actions.c.finished_seq == entries.c.seq)


def _judge_action(row: RowMapping) -> Fault | None:
    """Compare a row with its lines: it says what the last says, and each adds to the one before what it may add."""
    steps = [step for step in ("begun", "sent", "finished") if step == "begun" or row[f"{step}_seq"] is not None]
    for step in steps:
        if row[f"{step}_kind"] != f"action_{step}":
            return invented(f"action, {step},", row["key"], row[f"{step}_seq"])
    records = [decode(ActionRecord, row[f"{step}_body"]) for step in steps]
    last = steps[-1]
    wrong = differing(row, {**as_stored(action_row(records[-1])), "body": row[f"{last}_body"]})
    if not wrong and any(_as_begun(record) != records[0] for record in records):
        wrong = ["begun_seq"]
    return differs("action", row["key"], row[f"{last}_seq"], wrong) if wrong else None


def _as_begun(record: ActionRecord) -> ActionRecord:
    return replace(record, sent_at=None, outcome=None)


def _plan_faults(connection: Connection) -> Iterator[Fault]:
    for row in _with_lines(connection, plans, EntryKind.PLAN):
        if row["line_body"] is None:
            yield invented("plan", row["plan"], row["seq"])
        elif row["line_body"] != row["body"] or decode(IncidentPlan, row["line_body"]).plan != row["plan"]:
            yield differs("plan", row["plan"], row["seq"], ["body"])
    yield from lost(connection, EntryKind.PLAN, plans.c.seq == entries.c.seq)


def _proof_faults(connection: Connection) -> Iterator[Fault]:
    newest: dict[str, int] = {}
    statement = select(entries.c.seq, entries.c.body).where(entries.c.kind == EntryKind.PROOF.value)
    for page in pages(connection, statement.order_by(entries.c.seq)):
        newest.update((decode(Proof, row["body"]).plan, row["seq"]) for row in page)
    for row in _with_lines(connection, proofs, EntryKind.PROOF):
        seq = newest.pop(row["plan"], None)
        if row["line_body"] is None:
            yield invented("proof of", row["plan"], row["seq"])
        elif row["line_body"] != row["body"] or seq != row["seq"]:
            yield differs("proof of", row["plan"], row["seq"], ["body"])
    if newest:
        seq = min(newest.values())
        yield Fault(seq=seq, problem=f"what line {seq} ({EntryKind.PROOF.value}) recorded is missing from its table")


def _approval_faults(connection: Connection) -> Iterator[Fault]:
    for row in _with_lines(connection, approvals, EntryKind.APPROVAL):
        name = f"of line {row['seq']}"
        if row["line_body"] is None:
            yield invented("approval", name, row["seq"])
        elif row["line_body"] != row["body"]:
            yield differs("approval", name, row["seq"], ["body"])
        elif utc_text(decode(Approval, row["line_body"]).expires_at) != row["expires_at"]:
            yield differs("approval", name, row["seq"], ["expires_at"])
    yield from lost(connection, EntryKind.APPROVAL, approvals.c.seq == entries.c.seq)


def _refusal_faults(connection: Connection) -> Iterator[Fault]:
    for row in _with_lines(connection, refusals, EntryKind.ACTION_REFUSED):
        name = f"of line {row['seq']}"
        if row["line_body"] is None:
            yield invented("refusal", name, row["seq"])
        elif refusal_identity(decode(RefusedAction, row["line_body"])) != row["identity"]:
            yield differs("refusal", name, row["seq"], ["identity"])
    yield from lost(connection, EntryKind.ACTION_REFUSED, refusals.c.seq == entries.c.seq)


def _with_lines(connection: Connection, table: Table, kind: EntryKind) -> Iterator[RowMapping]:
    """Yield the table's rows, texts as stored, each with `line_body`: the body of its line, or None."""
    columns = [type_coerce(column, Text).label(column.name) for column in table.c if column.name != "seq"]
    its_line = and_(entries.c.seq == table.c.seq, entries.c.kind == kind.value)
    statement = (
        select(table.c.seq, *columns, entries.c.body.label("line_body"))
        .select_from(table.outerjoin(entries, its_line))
        .order_by(table.c.seq)
    )
    for page in pages(connection, statement):
        yield from page


def lost(connection: Connection, kind: EntryKind, its_row: ColumnElement[bool]) -> Iterator[Fault]:
    """Yield the first line of `kind` for which no row fulfils `its_row`."""
    has_row = exists().where(its_row).correlate(entries)
    statement = select(func.min(entries.c.seq)).where(entries.c.kind == kind.value, ~has_row)
    seq = connection.execute(statement).scalar()
    if seq is not None:
        yield Fault(seq=seq, problem=f"what line {seq} ({kind.value}) recorded is missing from its table")


def as_stored(columns: Mapping[str, str | int | datetime | None]) -> dict[str, str | int | None]:
    """Return columns as the database holds them."""
    return {name: utc_text(value) if isinstance(value, datetime) else value for name, value in columns.items()}


def differing(row: RowMapping, expected: Mapping[str, str | int | None]) -> list[str]:
    """Return the columns in which a row is not as expected."""
    return [name for name, value in expected.items() if row[name] != value]


def invented(what: str, name: str, seq: int) -> Fault:
    """Return the fault of a row that no line recorded."""
    return Fault(seq=seq, problem=f"{what} {name} is in its table, but line {seq} did not record it")


def differs(what: str, name: str, seq: int, columns: Sequence[str]) -> Fault:
    """Return the fault of a row that says something else than its line."""
    return Fault(seq=seq, problem=f"{what} {name} differs from line {seq} in {', '.join(columns)}")
