"""The ledger read back as values, for a replay: decisions with what they changed, acts, refusals, approvals, rules.

Holds a ledger and hands out its reading side alone: nothing that got a chronicle can write or act.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.entries import Approval, Entry, EntryKind, LedgerDamaged, LedgerError
from ops_pipelines.core.identity import Digest, IncidentId, NodeName
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.plan import IncidentPlan, Rules, Snapshot
from ops_pipelines.core.record import Approved, Began, Decided, Ended, Event, RefusedAct, Unreadable
from ops_pipelines.resources.documents import decode, encode
from ops_pipelines.resources.ledger.chain import Decision, RefusedAction

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
        """Return a line below the first one of the stretch; the chain is in the order of its times."""
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
