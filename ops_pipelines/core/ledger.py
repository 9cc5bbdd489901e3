"""The ledger: the one append-only, hash-chained record of incidents, plans, approvals, actions and witnesses.

Beside the chain it keeps ordinary tables that are not history: evidence and cursors, present conditions, the lease.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from ops_pipelines.core.action import ActionRecord, Outcome
from ops_pipelines.core.entries import (
    AlreadyBegun,
    Approval,
    Begun,
    ChainVerdict,
    Entry,
    Evidence,
    Guard,
    HeldLease,
    LedgerNews,
    LedgerState,
    Pause,
)
from ops_pipelines.core.health import Heartbeat
from ops_pipelines.core.identity import ActionKey, Digest, IncidentId, NodeName, PlanId, RolloutId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.observation import Observation, Rejected
from ops_pipelines.core.plan import IncidentPlan, Snapshot
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.proof import Proof, QuotaProof, Refusal
from ops_pipelines.core.proposal import ProposalEvent, ProposalId, ProposalRecord, QuotaProposal, SentChange
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import Rollout, RolloutNode, RolloutPlan

"""The actor of everything that no person launched."""


class Ledger(Protocol):
    """Reads and writes the record. Every method is one transaction; all raise LedgerError.

    Writers are serialised (`BEGIN IMMEDIATE` on SQLite, an advisory lock on PostgreSQL): two processes never
    both pass a guard on the same state.
    """

    # -- documents ------------------------------------------------------------------------------------------
    def store(self, document: str) -> Digest:
        """Keep a document under its sha256 and return that; storing it again changes nothing."""
        ...

    def load(self, digest: Digest) -> str:
        """Return the document; raise LedgerError if there is none or its content no longer fits the digest."""
        ...

    def store_snapshot(self, snapshot: Snapshot) -> Digest:
        """Keep the inputs of a decision and return their digest."""
        ...

    def load_snapshot(self, digest: Digest) -> Snapshot:
        """Return the inputs of a decision; raise LedgerError if they are missing or of another version."""
        ...

    def store_release(self, release: Release) -> Digest:
        """Keep a release and return its digest: what a rollout of it names, and `open_rollout` compares."""
        ...

    def release(self, digest: Digest) -> Release:
        """Return a release as it was when it was stored; raise LedgerError if there is none."""
        ...

    # -- evidence -------------------------------------------------------------------------------------------
    def cursor(self, source: str) -> str | None:
        """Return where reading of `source` stopped; None if it never began."""
        ...

    def take_in(
        self,
        *,
        source: str,
        observations: Collection[Observation],
        rejected: Collection[Rejected],
        cursor: str | None,
        now: datetime,
    ) -> int:
        """Insert what is new by (source, position), move the cursor, and return how many observations were new.

        Rows and cursor move in the same transaction. Rejected rows are kept with their reason. So are observations
        from before `history_until`: they are history, and no evidence.
        """
        ...

    def take_in_conditions(self, *, source: str, present: Collection[Observation], now: datetime) -> int:
        """Compare the conditions present now with those remembered for `source`; return how many began.

        A condition is known by its `position` without time. One that begins becomes evidence, at the position
        `{position}@{observed_at}`, and is remembered with its `observed_at` as the time it began; one that is gone is
        forgotten. `now` is when the reading began: one that began up to a minute before the remembered one came too
        late, and changes nothing (one that seems older still was made after the clock was set back).
        """
        ...

    def change_conditions(
        self, *, source: str, begun: Collection[Observation], ended: Collection[str], now: datetime
    ) -> int:
        """Remember what began and forget what ended of `source`, and leave the rest; return how many pieces were new.

        For a source that reports changes, where `take_in_conditions` is for one that shows everything at once. A
        condition is known by its `position`; what begins becomes evidence, once, at `{position}@{observed_at}`. What
        is in both has come and gone: it is evidence, unless it began before `history_until`, and not remembered.
        `ended` holds positions; unknown ones are ignored.
        """
        ...

    def conditions(self) -> tuple[Observation, ...]:
        """Return the conditions remembered as present, with `observed_at` the time each began."""
        ...

    def evidence_after(self, seq: int, *, limit: int) -> tuple[Evidence, ...]:
        """Return evidence with a sequence number above `seq`, in order."""
        ...

    def undecided(self, *, limit: int) -> tuple[int, tuple[Evidence, ...]]:
        """Return up to where evidence was decided on, and what came after it, in order: both of one moment."""
        ...

    def evidence_since(self, since: datetime, *, rules: Collection[str], limit: int) -> tuple[Evidence, ...]:
        """Return what happened at or after `since` by some rules (`history.rule_of`), by time; no rules: nothing.

        Of more than `limit` of one rule the newest: a storm of one does not hide another. Evidence that was taken in
        before the ledger kept its rule is left out.
        """
        ...

    def rejected(self, *, limit: int) -> tuple[Rejected, ...]:
        """Return the newest rejected rows, newest first."""
        ...

    # -- decisions ------------------------------------------------------------------------------------------
    def read_state(self, now: datetime) -> LedgerState:
        """Return what is true now."""
        ...

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
        """Write changed incidents and new plans with their proofs, and move `decided_through`; return the new head.

        `proofs` may be of plans that are known, too; one that says what the last one of its plan stated is not written
        again before half its time is over.

        `refusals` say why the other open incidents have no plan; None where the decision made no plans. They are part
        of its line, and other guardrails than last time are worth a line of their own: a replay then knows what waited
        for what.

        Raises LedgerConflict if the chain's head is no longer `expected_head` (None: whatever it is). A plan that is
        known is not written again. A decision that changes no
        incident, brings no plan and moves nothing writes no entry.
        """
        ...

    def change_incident(self, incident: Incident, *, actor: str, now: datetime) -> None:
        """Write one incident as it is now; raise LedgerConflict if its present state does not lead to the new one."""
        ...

    def change_incidents(self, incidents: Collection[Incident], *, actor: str, now: datetime) -> None:
        """Write several incidents as they are now, all or none; raise LedgerConflict as `change_incident` does.

        Also for one that would be acted on by a plan without a proof that has passed and holds yet.
        """
        ...

    def incident(self, incident: IncidentId) -> Incident | None:
        """Return one incident, open or final; None if there is none."""
        ...

    def incidents_since(self, since: datetime) -> tuple[Incident, ...]:
        """Return every incident that is open or changed at or after `since`, oldest first."""
        ...

    def plan(self, plan: PlanId) -> IncidentPlan | None:
        """Return one plan; None if there is none."""
        ...

    def content_of(self, decided: IncidentPlan | QuotaProposal) -> Digest:
        """Return the sha256 of a plan, or a proposal of quotas, as it is, or would be, stored."""
        ...

    def proof(self, plan: PlanId) -> Proof | None:
        """Return the newest proof of a plan; None if nobody has proved it."""
        ...

    # -- people ---------------------------------------------------------------------------------------------
    def approve(self, approval: Approval) -> None:
        """Record approval to the plan of an incident or a rollout.

        Raises LedgerError if the plan is not known, LinkUsed if its link gave approval before.
        """
        ...

    def pause(self, pause: Pause) -> None:
        """Stop new actions until `resume_autopilot`; pausing while paused changes nothing but is recorded.

        A pause that somebody left beside the ledger, which did not answer then, counts the same: it is found before
        each act, and recorded by the next lease or act.
        """
        ...

    def resume_autopilot(self, *, actor: str, now: datetime) -> None:
        """Allow new actions again: ends every pause, one that was left beside the ledger too."""
        ...

    # -- actions --------------------------------------------------------------------------------------------
    def begin(
        self, record: ActionRecord, *, guard: Guard, lease_token: str | None, actor: str, now: datetime
    ) -> Begun | AlreadyBegun | Refusal:
        """Write the before-entry of an action, if its key is new, the lease holds and `guard` lets it pass.

        Key, lease, pause, guard, the proof of the act and that of the plan behind it are judged in the same transaction
        that writes; the record returned carries the proof. `lease_token` None means that no lease is asked for (a
        person at the command line). A refusal is recorded once per (key, reason).
        """
        ...

    def begin_all(
        self, records: Sequence[ActionRecord], *, guard: Guard, lease_token: str | None, actor: str, now: datetime
    ) -> tuple[Begun | AlreadyBegun | Refusal, ...]:
        """Write several before-entries as `begin` does, in order and in one transaction, with an answer for each.

        Each is judged on a state in which those before it have started: together they keep every budget.
        """
        ...

    def begin_again(
        self, record: ActionRecord, *, after: int, guard: Guard, lease_token: str | None, actor: str, now: datetime
    ) -> Begun | AlreadyBegun | Refusal:
        """Write that an action without an outcome is sent once more, judged like a first time.

        `after` is how often it was sent again when its witness was read (`resent_at`). If somebody else sent it,
        marked it or finished it since, nothing is written and `AlreadyBegun` is returned: its witness is read again.
        """
        ...

    def resent_at(self, key: ActionKey) -> tuple[datetime, ...]:
        """Return when an action was sent again, oldest first."""
        ...

    def withhold(self, key: ActionKey, *, sending: int, actor: str, now: datetime) -> None:
        """Write that a command was provably not sent: after its before-entry the lease had gone, or too much time.

        `sending` counts the times that it was to be sent: 0 the first, then as `resent_at` counts. Anyone who has the
        lease is not asked: it is who lost it that knows.
        """
        ...

    def withheld(self, key: ActionKey) -> frozenset[int]:
        """Return which sendings of an action were withheld; if all of them were, it was never sent."""
        ...

    def mark_sent(self, key: ActionKey, *, actor: str, now: datetime) -> None:
        """Write that the asked system accepted the command; the first time stays."""
        ...

    def finish(self, key: ActionKey, outcome: Outcome, *, actor: str) -> None:
        """Write the outcome; the same kind of outcome again changes nothing, another kind raises LedgerConflict."""
        ...

    def finish_all(self, outcomes: Mapping[ActionKey, Outcome], *, actor: str) -> None:
        """Write several outcomes in one transaction, all or none, as `finish` does."""
        ...

    def records(self, incident: IncidentId) -> tuple[ActionRecord, ...]:
        """Return every action of one incident in the order started."""
        ...

    def records_on(self, cause: IncidentId, node: NodeName) -> tuple[ActionRecord, ...]:
        """Return every action of one incident or rollout on one node in the order started."""
        ...

    # -- rollouts -------------------------------------------------------------------------------------------
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
        """Write a new rollout with its nodes, and keep its plan and release.

        Raises LedgerConflict if its id exists, or if a node that it does not skip is in another rollout that is not
        final and has not skipped it: no node is in two plans. Raises LedgerError if the digest that the rollout names
        is not that of `release`.
        """
        ...

    def change_rollout(
        self, rollout: Rollout | None, nodes: Collection[RolloutNode], *, actor: str, now: datetime
    ) -> None:
        """Write a rollout and nodes as they are now, all or none, in one line; what is so already is not written.

        Raises LedgerConflict if a stored state does not lead to the new one by one event of its table, or if its writer
        was overtaken: wave, try or step would roll back, or the state was left and entered again meanwhile. Also if a
        node would be started in a rollout that is not running, or that another rollout has taken. A pending node may be
        postponed to a later wave. What waits for people continues by their word alone: the autopilot only sends it
        back. Raises LedgerError for a rollout or node that is not known.
        """
        ...

    def rollout(self, rollout: RolloutId) -> Rollout | None:
        """Return one rollout; None if there is none."""
        ...

    def rollouts(self, *, final_since: datetime | None) -> tuple[Rollout, ...]:
        """Return the rollouts that are not final, and those that became so at or after `final_since`; oldest first."""
        ...

    def rollout_count(self) -> int:
        """Return how many rollouts there ever were; the next one gets this number plus one."""
        ...

    def rollout_nodes(self, rollout: RolloutId) -> tuple[RolloutNode, ...]:
        """Return every node of a rollout, by name."""
        ...

    def rollout_plan(self, plan: PlanId) -> RolloutPlan | None:
        """Return the plan of a rollout; None if there is none. Of two with the same waves, the newer one's."""
        ...

    # -- quotas ---------------------------------------------------------------------------------------------
    def keep_proposal(self, record: ProposalRecord, *, now: datetime) -> ProposalRecord:
        """Write a new proposal, proposed or refused, and return it; one of the same name is returned as it is stored.

        Unless that one was superseded, or was undone and a person proposes it: then it is the newest, and waits again.

        What was proposed before, for whatever day, and is not started, is superseded in the same line of the chain.
        Raises LedgerError for one that is anywhere else, or that cannot be stored without loss.
        """
        ...

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
        """Write one event of a proposal and return it as it is from now on.

        `sent`: what will be set, reported when it is started; of one that is half in, what was reported first stays.
        `proof`: what was proved of it just now: without one that has passed nothing is applied.

        Raises LedgerError for one that is not known, LedgerConflict if its state does not take the event, if another
        is half-way (`applying`, `undoing`), or if it would be completed or undone after a newer one was applied.
        `lease_token` None: a person's word; else the lease must hold, and while the autopilot is paused nothing is
        started.
        """
        ...

    def proposal(self, proposal: ProposalId) -> ProposalRecord | None:
        """Return one proposal; None if there is none."""
        ...

    def proposals(self, *, limit: int) -> tuple[ProposalRecord, ...]:
        """Return the newest proposals, newest first."""
        ...

    # -- tests on nodes -------------------------------------------------------------------------------------
    def keep_check(self, check: NodeCheck, *, is_well: bool) -> Digest:
        """Keep what tests on a node found, with the verdict; keeping the same again changes nothing."""
        ...

    def checks(self, node: NodeName, *, limit: int) -> tuple[tuple[NodeCheck, bool], ...]:
        """Return the newest tests of one node, newest first, each with whether the node was found well.

        Newest is what was kept last: a node's own clock may say anything.
        """
        ...

    # -- lease ----------------------------------------------------------------------------------------------
    def take_lease(
        self, *, holder: str, ttl: timedelta, now: datetime, is_gone: Callable[[str], bool] = ...
    ) -> str | None:
        """Take or renew the right to act and return its token; None while another holder's lease runs.

        A lease whose holder `is_gone`, as the caller can prove of that name, does not run any more.
        """
        ...

    def held_lease(self, now: datetime) -> HeldLease | None:
        """Return the lease that runs now, with its holder and epoch; None if none does."""
        ...

    def current_lease(self, now: datetime) -> str | None:
        """Return the token of the lease that runs now; None if none does."""
        ...

    # -- heartbeat ------------------------------------------------------------------------------------------
    def beat(
        self, *, name: str, holder: str, note: str, mode: Mode, answers: Mapping[str, str | None], now: datetime
    ) -> None:
        """Remember the tick of `name` in place of the one before, with whether `holder` has the lease. No history.

        While another process has the lease this changes nothing: anyone who only watches must not cover up the silence
        of the one that acts.
        """
        ...

    def heartbeats(self) -> tuple[Heartbeat, ...]:
        """Return the last beat of every name that ever beat, by name."""
        ...

    # -- identity -------------------------------------------------------------------------------------------
    def identify(self, now: datetime) -> None:
        """Give a ledger that nobody has opened before its id and birth: what happened before is no evidence to it."""
        ...

    def history_until(self) -> datetime | None:
        """Return up to when what happened is history, and no evidence; None for a ledger that was never identified."""
        ...

    def why_refused(self) -> LedgerNews | None:
        """Return why nothing is started on this ledger: it is gone, older than seen, or another; None if it is not.

        As long as it is, nobody gets or holds the right to act, and no act is started by anybody; messages are sent.
        """
        ...

    def compare_seen(self, elsewhere: str | None) -> str | None:
        """Compare with what is kept elsewhere of how far this ledger was seen; return what is to be kept there now.

        None: nothing, or what is there. A mark that this ledger does not fulfil is kept beside it, and stops all acts.
        """
        ...

    def untold_news(self) -> tuple[LedgerNews, ...]:
        """Return what people are to be notified of the ledger itself, and were not notified of yet."""
        ...

    def mark_told(self, news: LedgerNews) -> None:
        """Remember that people were notified."""
        ...

    def begin_anew(self, *, actor: str, reason: str, now: datetime) -> None:
        """Continue with this ledger in place of the one that was seen: a person's order, and a line of the chain.

        What happened until now is history to it. Raises LedgerConflict if it is not refused.
        """
        ...

    # -- audit ----------------------------------------------------------------------------------------------
    def entries(self, *, after: int, limit: int) -> tuple[Entry, ...]:
        """Return lines of the chain with a sequence number above `after`, in order."""
        ...

    def entries_about(self, incident: IncidentId) -> tuple[Entry, ...]:
        """Return the lines about one incident and every decision that changed or planned for it, in order.

        The decision before a person's change of it may be among them: whom a decision names, its body says. Cost
        grows with these lines, not with the chain: an incident may have been open for months.
        """
        ...

    def verify_chain(self) -> ChainVerdict:
        """Recompute every hash from the first line and check the projections against the chain."""
        ...
