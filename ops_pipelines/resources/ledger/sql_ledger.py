"""The ledger on SQLAlchemy Core: SQLite by default, PostgreSQL by URL, one code.

Here stand the transactions, one a method, as many as the port has: that is why it is one class of more than 500 lines.
What happens inside each transaction is in the modules beside it.

Open one `SqlLedger` a process; its threads may share it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from ops_pipelines.core.action import ActionRecord, Outcome
from ops_pipelines.core.entries import (
    AlreadyBegun,
    Approval,
    Begun,
    ChainVerdict,
    Entry,
    EntryKind,
    Evidence,
    Guard,
    HeldLease,
    LedgerConflict,
    LedgerError,
    LedgerNews,
    LedgerState,
    Pause,
)
from ops_pipelines.core.health import Heartbeat
from ops_pipelines.core.identity import ActionKey, Digest, IncidentId, NodeName, PlanId, RolloutId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.notes import Audience, KeptNote, Note, NoteState
from ops_pipelines.core.observation import Observation, Rejected
from ops_pipelines.core.plan import IncidentPlan, Snapshot
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.proof import ActProof, Proof, QuotaProof, Refusal
from ops_pipelines.core.proposal import ProposalEvent, ProposalId, ProposalRecord, QuotaProposal, SentChange
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import Rollout, RolloutNode, RolloutPlan
from ops_pipelines.resources.documents import decode, encode
from ops_pipelines.resources.ledger import actions as ledger_actions
from ops_pipelines.resources.ledger import audit as ledger_audit
from ops_pipelines.resources.ledger import decisions as ledger_decisions
from ops_pipelines.resources.ledger import decisions as ledger_proposals
from ops_pipelines.resources.ledger import evidence as ledger_evidence
from ops_pipelines.resources.ledger import outbox as ledger_outbox
from ops_pipelines.resources.ledger import rollouts as ledger_rollouts
from ops_pipelines.resources.ledger import state as ledger_state
from ops_pipelines.resources.ledger.chain import (
    ChainWriter,
    Found,
    LedgerOrder,
    Resumption,
    read_entries,
    read_entries_about,
    read_found,
    read_head,
)
from ops_pipelines.resources.ledger.database import LedgerDatabase
from ops_pipelines.resources.ledger.watch import SeenFile, Watch, refusal_of
from ops_pipelines.resources.state_files import PauseFile


class SqlLedger:
    """The ledger in a database named by URL: `sqlite:////var/lib/ops/ledger.db`, `postgresql+psycopg2://…`.

    Implements `core.ledger.Ledger` and `core.notes.Outbox`. A commit that returned survives kill -9 and, on honest
    disks, a power cut.
    """

    def __init__(self, url: str, *, pause_file: PauseFile | None = None, seen_file: SeenFile | None = None) -> None:
        """Open the ledger, creating or upgrading its tables; raise LedgerError if that cannot be.

        `pause_file` stops new actions as the chain does, and `seen_file` does where this is not the ledger that was
        seen before; None: no such file beside the ledger is looked at.
        """
        self._database = LedgerDatabase(url)
        self._pause_file = pause_file
        self._watch = Watch(self._database, seen_file)

    def close(self) -> None:
        """Give the connections back; the ledger is not used after this."""
        self._database.close()

    # -- documents ----------------------------------------------------------------------------------------------------

    def store(self, document: str) -> Digest:
        digest = ledger_evidence.digest_document(document)
        with self._database.read() as connection:
            if ledger_evidence.has_document(connection, digest):
                return digest
        with self._database.write() as connection:
            ledger_evidence.write_document(connection, digest, document)
        return digest

    def load(self, digest: Digest) -> str:
        with self._database.read() as connection:
            return ledger_evidence.read_document(connection, digest)

    def store_snapshot(self, snapshot: Snapshot) -> Digest:
        return self.store(encode(snapshot))

    def load_snapshot(self, digest: Digest) -> Snapshot:
        return decode(Snapshot, self.load(digest))

    def store_release(self, release: Release) -> Digest:
        return self.store(encode(release))

    def release(self, digest: Digest) -> Release:
        return decode(Release, self.load(digest))

    # -- evidence -----------------------------------------------------------------------------------------------------

    def cursor(self, source: str) -> str | None:
        with self._database.read() as connection:
            return ledger_evidence.read_cursor(connection, source)

    def take_in(
        self,
        *,
        source: str,
        observations: Collection[Observation],
        rejected: Collection[Rejected],
        cursor: str | None,
        now: datetime,
    ) -> int:
        """As the port says; a `cursor` of None leaves the cursor where it is."""
        with self._database.write() as connection:
            if observations:
                self._watch.refuse_evidence(connection)
            kept, past = ledger_evidence.without_history(connection, observations)
            new_count = ledger_evidence.write_evidence(connection, kept)
            ledger_evidence.write_rejected(connection, (*rejected, *past), now=now)
            if cursor is not None:
                ledger_evidence.move_cursor(connection, source, cursor, now=now)
        return new_count

    def take_in_conditions(self, *, source: str, present: Collection[Observation], now: datetime) -> int:
        with self._database.write() as connection:
            self._watch.refuse_evidence(connection)
            return ledger_evidence.write_conditions(connection, source, present, now=now)

    def change_conditions(
        self, *, source: str, begun: Collection[Observation], ended: Collection[str], now: datetime
    ) -> int:
        with self._database.write() as connection:
            self._watch.refuse_evidence(connection)
            return ledger_evidence.change_conditions(connection, source, begun=begun, ended=ended, now=now)

    def conditions(self) -> tuple[Observation, ...]:
        with self._database.read() as connection:
            return ledger_evidence.read_conditions(connection)

    def evidence_after(self, seq: int, *, limit: int) -> tuple[Evidence, ...]:
        with self._database.read() as connection:
            return ledger_evidence.read_evidence(connection, after=seq, limit=limit)

    def undecided(self, *, limit: int) -> tuple[int, tuple[Evidence, ...]]:
        with self._database.read() as connection:
            through = ledger_state.read_decided_through(connection)
            return through, ledger_evidence.read_evidence(connection, after=through, limit=limit)

    def evidence_since(self, since: datetime, *, rules: Collection[str], limit: int) -> tuple[Evidence, ...]:
        with self._database.read() as connection:
            return ledger_evidence.read_evidence_since(connection, since, rules=rules, limit=limit)

    def rejected(self, *, limit: int) -> tuple[Rejected, ...]:
        with self._database.read() as connection:
            return ledger_evidence.read_rejected(connection, limit=limit)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def read_state(self, now: datetime) -> LedgerState:
        with self._database.read() as connection:
            state = ledger_state.read_state(connection, now)
        return state if state.pause is not None else replace(state, pause=self._pause_beside())

    def record_decision(
        self,
        *,
        inputs: Digest,
        decided_through: int,
        expected_head: int | None,
        incidents: Collection[Incident],
        plans: Collection[IncidentPlan],
        now: datetime,
        refusals: Collection[tuple[IncidentId, Refusal]] | None = None,
        proofs: Collection[Proof] = (),
    ) -> int:
        with self._database.write() as connection:
            return ledger_decisions.write_decision(
                connection,
                inputs=inputs,
                decided_through=decided_through,
                expected_head=expected_head,
                incidents=incidents,
                plans=plans,
                now=now,
                refusals=refusals,
                proofs=proofs,
            )

    def change_incident(self, incident: Incident, *, actor: str, now: datetime) -> None:
        with self._database.write() as connection:
            ledger_decisions.write_changes(connection, [incident], actor=actor, now=now)

    def change_incidents(self, incidents: Collection[Incident], *, actor: str, now: datetime) -> None:
        with self._database.write() as connection:
            ledger_decisions.write_changes(connection, incidents, actor=actor, now=now)

    def incident(self, incident: IncidentId) -> Incident | None:
        with self._database.read() as connection:
            return ledger_state.read_incident(connection, incident)

    def incidents_since(self, since: datetime) -> tuple[Incident, ...]:
        with self._database.read() as connection:
            return ledger_state.read_incidents_since(connection, since)

    def plan(self, plan: PlanId) -> IncidentPlan | None:
        with self._database.read() as connection:
            return ledger_state.read_plan(connection, plan)

    def content_of(self, decided: IncidentPlan | QuotaProposal) -> Digest:
        if isinstance(decided, QuotaProposal):
            return ledger_proposals.content_of_proposal(decided)
        return ledger_actions.content_of(decided)

    def proof(self, plan: PlanId) -> Proof | None:
        with self._database.read() as connection:
            return ledger_state.read_proofs_of(connection, [plan]).get(plan)

    # -- people -------------------------------------------------------------------------------------------------------

    def approve(self, approval: Approval) -> None:
        with self._database.write() as connection:
            ledger_decisions.write_approval(connection, approval)

    def pause(self, pause: Pause) -> None:
        with self._database.write() as connection, ChainWriter(connection) as writer:
            writer.append(encode(pause), kind=EntryKind.PAUSE, actor=pause.actor, incident=None, now=pause.since)

    def resume_autopilot(self, *, actor: str, now: datetime) -> None:
        if self._pause_file is not None:
            try:  # First: who finds it afterwards would write it into the chain again.
                self._pause_file.remove()
            except OSError as problem:
                raise LedgerError(
                    f"STILL paused: {self._pause_file.path} cannot be taken away ({problem.strerror}); "
                    "do it as a user who may, then try again"
                ) from problem
        with self._database.write() as connection:
            body = encode(Resumption(actor=actor, at=now))
            with ChainWriter(connection) as writer:
                writer.append(body, kind=EntryKind.RESUME_AUTOPILOT, actor=actor, incident=None, now=now)

    def _pause_beside(self) -> Pause | None:
        return None if self._pause_file is None else self._pause_file.read()

    def _take_in_pause(self, connection: Connection, now: datetime) -> None:
        """Write a pause that is in the file alone into the chain: who wrote it could not reach us then."""
        pause = self._pause_beside()
        if pause is None or ledger_state.read_pause(connection) is not None:
            return
        with ChainWriter(connection) as writer:
            writer.append(encode(pause), kind=EntryKind.PAUSE, actor=pause.actor, incident=None, now=now)

    # -- actions ------------------------------------------------------------------------------------------------------

    def begin(
        self, record: ActionRecord, *, guard: Guard, lease_token: str | None, actor: str, now: datetime
    ) -> Begun | AlreadyBegun | Refusal:
        (answer,) = self.begin_all([record], guard=guard, lease_token=lease_token, actor=actor, now=now)
        return answer

    def begin_all(
        self, records: Sequence[ActionRecord], *, guard: Guard, lease_token: str | None, actor: str, now: datetime
    ) -> tuple[Begun | AlreadyBegun | Refusal, ...]:
        with self._database.write() as connection:
            self._take_in_pause(connection, now)
            watched = self._watched(connection, guard)
            return ledger_actions.begin_actions(
                connection, records, guard=watched, lease_token=lease_token, actor=actor, now=now
            )

    def begin_again(
        self, record: ActionRecord, *, after: int, guard: Guard, lease_token: str | None, actor: str, now: datetime
    ) -> Begun | AlreadyBegun | Refusal:
        with self._database.write() as connection:
            self._take_in_pause(connection, now)
            watched = self._watched(connection, guard)
            return ledger_actions.begin_action_again(
                connection, record, after=after, guard=watched, lease_token=lease_token, actor=actor, now=now
            )

    def _watched(self, connection: Connection, guard: Guard) -> Guard:
        """Return the guard behind that of the watch: nothing begins where this is not the ledger seen before."""
        refused = self._watch.refused_in(connection)

        def guard_too(record: ActionRecord, state: LedgerState) -> Refusal | ActProof | None:
            return refusal_of(record, refused) or guard(record, state)

        return guard_too

    def resent_at(self, key: ActionKey) -> tuple[datetime, ...]:
        with self._database.read() as connection:
            return ledger_actions.read_resent_at(connection, key)

    def withhold(self, key: ActionKey, *, sending: int, actor: str, now: datetime) -> None:
        with self._database.write() as connection:
            ledger_actions.withhold_action(connection, key, sending=sending, actor=actor, now=now)

    def withheld(self, key: ActionKey) -> frozenset[int]:
        with self._database.read() as connection:
            return ledger_actions.read_withheld(connection, key)

    def mark_sent(self, key: ActionKey, *, actor: str, now: datetime) -> None:
        with self._database.write() as connection:
            ledger_actions.mark_action_sent(connection, key, actor=actor, now=now)

    def finish(self, key: ActionKey, outcome: Outcome, *, actor: str) -> None:
        self.finish_all({key: outcome}, actor=actor)

    def finish_all(self, outcomes: Mapping[ActionKey, Outcome], *, actor: str) -> None:
        with self._database.write() as connection:
            ledger_actions.finish_actions(connection, outcomes, actor=actor)

    def records(self, incident: IncidentId) -> tuple[ActionRecord, ...]:
        with self._database.read() as connection:
            return ledger_state.read_records(connection, incident)

    def records_on(self, cause: IncidentId, node: NodeName) -> tuple[ActionRecord, ...]:
        with self._database.read() as connection:
            return ledger_state.read_records_on(connection, cause, node)

    # -- rollouts -----------------------------------------------------------------------------------------------------

    def open_rollout(
        self,
        rollout: Rollout,
        nodes: Collection[RolloutNode],
        *,
        plan: RolloutPlan,
        release: Release,
        actor: str,
        now: datetime,
    ) -> None:
        with self._database.write() as connection:
            ledger_rollouts.write_opening(connection, rollout, nodes, plan=plan, release=release, actor=actor, now=now)

    def change_rollout(
        self, rollout: Rollout | None, nodes: Collection[RolloutNode], *, actor: str, now: datetime
    ) -> None:
        with self._database.write() as connection:
            ledger_rollouts.write_change(connection, rollout, nodes, actor=actor, now=now)

    def rollout(self, rollout: RolloutId) -> Rollout | None:
        with self._database.read() as connection:
            return ledger_rollouts.read_rollout(connection, rollout)

    def rollouts(self, *, final_since: datetime | None) -> tuple[Rollout, ...]:
        with self._database.read() as connection:
            return ledger_rollouts.read_rollouts(connection, final_since=final_since)

    def rollout_count(self) -> int:
        with self._database.read() as connection:
            return ledger_rollouts.read_rollout_count(connection)

    def rollout_nodes(self, rollout: RolloutId) -> tuple[RolloutNode, ...]:
        with self._database.read() as connection:
            return ledger_rollouts.read_rollout_nodes(connection, rollout)

    def rollout_plan(self, plan: PlanId) -> RolloutPlan | None:
        with self._database.read() as connection:
            return ledger_rollouts.read_rollout_plan(connection, plan)

    # -- quotas -------------------------------------------------------------------------------------------------------

    def keep_proposal(self, record: ProposalRecord, *, now: datetime) -> ProposalRecord:
        with self._database.write() as connection:
            return ledger_proposals.write_proposal(connection, record, now=now)

    def change_proposal(
        self,
        proposal: ProposalId,
        event: ProposalEvent,
        *,
        actor: str,
        reason: str,
        lease_token: str | None,
        now: datetime,
        sent: Sequence[SentChange] = (),
        proof: QuotaProof | None = None,
    ) -> ProposalRecord:
        with self._database.write() as connection:
            self._take_in_pause(connection, now)
            refused = self._watch.refused_in(connection)
            if refused is not None:
                raise LedgerConflict(f"{proposal}: {refused.words}")
            return ledger_proposals.write_event(
                connection,
                proposal,
                event,
                actor=actor,
                reason=reason,
                lease_token=lease_token,
                now=now,
                sent=tuple(sent),
                proof=proof,
            )

    def proposal(self, proposal: ProposalId) -> ProposalRecord | None:
        with self._database.read() as connection:
            return ledger_proposals.read_proposal(connection, proposal)

    def proposals(self, *, limit: int) -> tuple[ProposalRecord, ...]:
        with self._database.read() as connection:
            return ledger_proposals.read_proposals(connection, limit=limit)

    # -- tests on nodes -----------------------------------------------------------------------------------------------

    def keep_check(self, check: NodeCheck, *, is_well: bool) -> Digest:
        with self._database.write() as connection:
            return ledger_evidence.write_check(connection, check, is_well=is_well)

    def checks(self, node: NodeName, *, limit: int) -> tuple[tuple[NodeCheck, bool], ...]:
        with self._database.read() as connection:
            return ledger_evidence.read_checks(connection, node, limit=limit)

    # -- lease --------------------------------------------------------------------------------------------------------

    def take_lease(
        self, *, holder: str, ttl: timedelta, now: datetime, is_gone: Callable[[str], bool] = lambda _holder: False
    ) -> str | None:
        with self._database.write() as connection:
            if self._watch.refused_in(connection) is not None:
                return None
            self._take_in_pause(connection, now)
            token = ledger_evidence.take_lease(connection, holder=holder, ttl=ttl, is_gone=is_gone, now=now)
        if token is not None:
            self._watch.note_seen(now)
        return token

    def held_lease(self, now: datetime) -> HeldLease | None:
        with self._database.read() as connection:
            # First: what others append between our reading of the ledger and of its mark would look like a loss.
            is_refused = self._watch.refused_in(connection) is not None
            return None if is_refused else ledger_evidence.read_held_lease(connection, now)

    def current_lease(self, now: datetime) -> str | None:
        with self._database.read() as connection:
            is_refused = self._watch.refused_in(connection) is not None
            return None if is_refused else ledger_evidence.read_lease(connection, now)

    # -- heartbeat ----------------------------------------------------------------------------------------------------

    def beat(
        self, *, name: str, holder: str, note: str, mode: Mode, answers: Mapping[str, str | None], now: datetime
    ) -> None:
        with self._database.write() as connection:
            ledger_outbox.write_heartbeat(
                connection, name=name, holder=holder, note=note, mode=mode, answers=answers, now=now
            )

    def heartbeats(self) -> tuple[Heartbeat, ...]:
        with self._database.read() as connection:
            return ledger_outbox.read_heartbeats(connection)

    # -- outbox -------------------------------------------------------------------------------------------------------

    def hand_in(self, notes: Collection[Note], *, source: str, after: str | None, cursor: str, now: datetime) -> int:
        with self._database.write() as connection:
            return ledger_outbox.write_notes(connection, notes, source=source, after=after, cursor=cursor, now=now)

    def notes_of(self, thread: str) -> tuple[KeptNote, ...]:
        with self._database.read() as connection:
            return ledger_outbox.read_notes_of(connection, thread)

    def waiting_notes(self, *, limit: int) -> tuple[KeptNote, ...]:
        with self._database.read() as connection:
            return ledger_outbox.read_waiting(connection, limit=limit)

    def sent_times(self, since: datetime) -> Mapping[tuple[Audience, str], tuple[datetime, ...]]:
        with self._database.read() as connection:
            return ledger_outbox.read_sent_times(connection, since)

    def claim_notes(self, batch: str, keys: Collection[str], *, until: datetime, now: datetime) -> bool:
        with self._database.write() as connection:
            return ledger_outbox.claim_batch(connection, batch, keys, until=until, now=now)

    def mark_delivered(self, batch: str, *, receipt: str, now: datetime) -> None:
        with self._database.write() as connection:
            ledger_outbox.write_sent(connection, batch, receipt=receipt, now=now)

    def mark_undelivered(self, batch: str, *, problem: str, again_at: datetime | None, now: datetime) -> None:
        with self._database.write() as connection:
            ledger_outbox.write_failed(connection, batch, problem=problem, again_at=again_at, now=now)

    def recent_notes(self, *, limit: int) -> tuple[KeptNote, ...]:
        with self._database.read() as connection:
            return ledger_outbox.read_recent(connection, limit=limit)

    def count_notes(self) -> Mapping[NoteState, int]:
        with self._database.read() as connection:
            return ledger_outbox.count_by_state(connection)

    def forget_sent(self, before: datetime) -> int:
        with self._database.write() as connection:
            return ledger_outbox.delete_sent(connection, before)

    # -- identity -----------------------------------------------------------------------------------------------------

    def identify(self, now: datetime) -> None:
        self._watch.identify(now)

    def history_until(self) -> datetime | None:
        return self._watch.history_until()

    def why_refused(self) -> LedgerNews | None:
        with self._database.read() as connection:
            return self._watch.refused_in(connection)

    def compare_seen(self, elsewhere: str | None) -> str | None:
        return self._watch.compare(elsewhere)

    def untold_news(self) -> tuple[LedgerNews, ...]:
        return self._watch.untold_news()

    def mark_told(self, news: LedgerNews) -> None:
        self._watch.mark_told(news)

    def begin_anew(self, *, actor: str, reason: str, now: datetime) -> None:
        self._watch.begin_anew(actor=actor, reason=reason, now=now)

    def record_restoration(self, order: LedgerOrder, *, pause: Pause | None) -> None:
        """Write that this ledger comes from a backup; with a `pause`, because it does not know what happened since."""
        self._watch.record_restoration(order, pause=pause)

    def found(self) -> Found:
        """Return which ledger this is, and how far it goes."""
        with self._database.read() as connection:
            return read_found(connection)

    # -- audit --------------------------------------------------------------------------------------------------------

    def entries(self, *, after: int, limit: int) -> tuple[Entry, ...]:
        with self._database.read() as connection:
            return read_entries(connection, after=after, limit=limit)

    def entries_about(self, incident: IncidentId) -> tuple[Entry, ...]:
        with self._database.read() as connection:
            return read_entries_about(connection, incident)

    def head_hash(self) -> str:
        """Return the hash of the last line, to be kept where the ledger's owner cannot write.

        The chain proves that nothing in it was changed. That lines were cut off its end, or that somebody wrote it
        again from some line on, shows only against a hash kept elsewhere.
        """
        with self._database.read() as connection:
            return read_head(connection)[1]

    def verify_chain(self) -> ChainVerdict:
        """As the port says, in bounded memory; lines cut off the end stay unseen, see `head_hash`."""
        with self._database.read() as connection:
            return ledger_audit.verify(connection)
