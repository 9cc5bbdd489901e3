"""What is done each morning with quotas: a proposal is made and kept, then set as far as the policy consents.

Proposing is `proposing`'s, setting and reading back `applying`'s. Here is when which of them is called.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from enum import Enum

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerConflict
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.policy import ActionClass, Consent, Mode
from ops_pipelines.core.proposal import ProposalEvent, ProposalRecord, ProposalState
from ops_pipelines.quotas.apply import apply, preview, settle
from ops_pipelines.quotas.changes import ApplyRefused
from ops_pipelines.quotas.proof import PROOFS
from ops_pipelines.quotas.propose import Proposed, keep, proof_inputs, propose, store_lines, used_in
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.teams.desk import TeamsDesk

_LOOKED_BACK = 20
_OVER = frozenset({ProposalState.SUPERSEDED, ProposalState.UNDONE})
_OPEN = frozenset({ProposalState.PROPOSED, ProposalState.HALF_APPLIED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The proposal of one day, and how it is kept."""

    proposed: Proposed
    record: ProposalRecord | None
    """None: it is of a day that is over, and was only computed."""
    contradictions: tuple[str, ...]

    @property
    def state_word(self) -> str:
        return "of the past, not kept" if self.record is None else self.record.state.value.replace("_", " ")


class DailyResult(Enum):
    """What became of a day's proposal this time."""

    NOTHING_TO_DO = "nothing_to_do"
    SHOWN = "shown"
    """The policy lets nothing be set: what would be is reported."""
    WAITS = "waits"
    """For a person's yes."""
    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    """Tried, and refused or stopped half-way: the state says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was done, or would be."""

    outcome: DailyResult
    said: str
    record: ProposalRecord | None = None
    changes: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def make_proposal(day: date, desk: TeamsDesk, *, now: datetime, actor: str = AUTOPILOT) -> Made:
    """Propose for a local day; keep today's in the ledger, the lines in the lake. Raises as `propose`."""
    proposed = propose(day, desk, now=now)
    contradictions = proposed.contradictions
    record = None
    if day == now.astimezone(desk.zone).date():
        record = keep(proposed, desk, actor=actor, now=now)
    found = ProposalState.REFUSED if contradictions else ProposalState.PROPOSED
    state = found if record is None else record.state
    store_lines(desk, proposed.proposal, state=state, used=proposed.used)
    return Made(proposed=proposed, record=record, contradictions=contradictions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is left to do by ourselves with a day's proposal, by the ledger and the policy alone."""

    key: str
    """What is asked for once: the proposal, its state, and what lets it be set. Empty: nothing is left to do."""
    why: str


def turn_of(day: date, cluster: Cluster) -> Turn:
    """Return whether the day's newest proposal is to be carried out now. What is half in is a person's to complete."""
    record = newest_in(cluster.ledger, day)
    if record is None:
        return Turn(key="", why=f"there is no proposal for {day}")
    if record.state is not ProposalState.PROPOSED:
        return Turn(key="", why=f"{record.name} is {record.state.value.replace('_', ' ')}")
    if not is_ours(record, cluster.ledger):
        return Turn(key="", why=_left_to_people(record))
    policy = cluster.rules.policy
    is_paused = cluster.ledger.read_state(cluster.clock.now()).pause is not None
    lets = (policy.mode.value, policy.consent_to(ActionClass.QUOTAS).value, *(("paused",) if is_paused else ()))
    return Turn(key=" ".join((record.name, record.state.value, *lets)), why=f"{record.name} is {record.state.value}")


def is_ours(record: ProposalRecord, ledger: Ledger) -> bool:
    """Return whether the autopilot proposed it, and nobody else ever had a hand in it.

    By the ledger's lines, not by the record, which names who brought it into its state last: that is the autopilot also
    where it settled what a person began. The same lines proposed again are the same proposal: what a person proposed
    first stays a person's.
    """
    name = IncidentId(record.name)
    actors = {each.actor for each in ledger.entries_about(name) if each.incident == name}
    return actors == {AUTOPILOT}


def _left_to_people(record: ProposalRecord) -> str:
    return (
        f"{record.name} was proposed or touched by a person, and is not set by itself: "
        f"`ops-pipelines quota apply {record.name}`"
    )


def carry_out_proposal(day: date, desk: TeamsDesk, *, lease: Lease) -> Done:
    """Do with the day's newest proposal what the policy consents to. What an earlier run left is judged first.

    Raises SourceError if the scheduler does not say what is in force.
    """
    token = lease.token(desk.cluster.ledger, desk.clock.now())
    if desk.quotas is not None:
        settle(desk, actor=AUTOPILOT, lease_token=token)
    record = newest_of(day, desk)
    if record is None:
        return Done(outcome=DailyResult.NOTHING_TO_DO, said=f"there is no proposal for {day}")
    if record.state is ProposalState.APPLIED:
        return Done(outcome=DailyResult.APPLIED, said=f"{record.name} is applied: {record.reason}", record=record)
    if record.state not in _OPEN:
        word = record.state.value.replace("_", " ")
        return Done(outcome=DailyResult.NOTHING_TO_DO, said=f"{record.name} is {word}: {record.reason}", record=record)
    if not record.proposal.changes_anything:
        return Done(outcome=DailyResult.NOTHING_TO_DO, said=f"{record.name} would set nothing again", record=record)
    if desk.quotas is None:
        return Done(
            outcome=DailyResult.SHOWN, said="this scheduler keeps no limits: it is proposed, no more", record=record
        )
    policy = desk.cluster.rules.policy
    consent = policy.consent_to(ActionClass.QUOTAS)
    if policy.mode is Mode.OBSERVE or consent is Consent.FORBID:
        return _previewed(record, desk, outcome=DailyResult.SHOWN, said="the policy lets nothing be set; this would be")
    if consent is Consent.APPROVE:
        said = f"{record.name} waits for approval: `ops-pipelines quota apply {record.name}`"
        return _previewed(record, desk, outcome=DailyResult.WAITS, said=said)
    if not is_ours(record, desk.cluster.ledger):
        return _previewed(record, desk, outcome=DailyResult.WAITS, said=_left_to_people(record))
    return _applied(record, desk, token=token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """The proposal that is kept of a day, and what each proof finds."""

    record: ProposalRecord | None
    """None: none is kept, as of a day that is over; nothing is proved."""
    contradictions: Mapping[str, tuple[str, ...]]


def prove_day(day: date, desk: TeamsDesk) -> Proved:
    """Prove the newest proposal of a day as it is kept; one that is contradicted and still open is refused."""
    record = newest_of(day, desk)
    if record is None:
        return Proved(record=None, contradictions={})
    inputs = proof_inputs(record.proposal, desk)
    found = {name: find_contradictions(record.proposal, inputs) for name, (_, find_contradictions) in PROOFS.items()}
    problems = [f"{name}: {each}" for name, said in found.items() for each in said]
    if problems and record.state is ProposalState.PROPOSED:
        record = desk.cluster.ledger.change_proposal(
            record.name,
            ProposalEvent.REFUSE,
            actor=AUTOPILOT,
            reason="; ".join(problems),
            lease_token=None,
            now=desk.clock.now(),
        )
    return Proved(record=record, contradictions=found)


def newest_of(day: date, desk: TeamsDesk) -> ProposalRecord | None:
    """Return the newest proposal of a local day that was not overtaken by another; None if there is none."""
    return newest_in(desk.cluster.ledger, day)


def newest_in(ledger: Ledger, day: date) -> ProposalRecord | None:
    """Return what `newest_of` does, of a ledger."""
    records = ledger.proposals(limit=_LOOKED_BACK)
    return next((each for each in records if each.proposal.day == day and each.state not in _OVER), None)


def _previewed(record: ProposalRecord, desk: TeamsDesk, *, outcome: DailyResult, said: str) -> Done:
    try:
        found = preview(record.name, desk)
    except ApplyRefused as refused:
        return Done(outcome=outcome, said=said, record=record, obstacles=(str(refused),))
    return Done(
        outcome=outcome,
        said=said,
        record=record,
        changes=tuple(map(str, found.changes)),
        obstacles=found.hindrances,
        warnings=found.warnings,
    )


def _applied(record: ProposalRecord, desk: TeamsDesk, *, token: str | None) -> Done:
    """Apply as the autopilot. Without a lease nothing is: `None` would be a person's word."""
    if token is None:
        said = "another process holds the lease; nothing was set"
        return Done(outcome=DailyResult.NOT_APPLIED, said=said, record=record)
    shown = _previewed(record, desk, outcome=DailyResult.APPLIED, said="")
    try:
        after = apply(record.name, desk, actor=AUTOPILOT, lease_token=token)
    except (ApplyRefused, LedgerConflict) as refused:
        return replace(shown, outcome=DailyResult.NOT_APPLIED, said=str(refused))
    store_lines(desk, after.proposal, state=after.state, used=used_in(desk, day=after.proposal.day))
    is_in = after.state is ProposalState.APPLIED
    return replace(
        shown, outcome=DailyResult.APPLIED if is_in else DailyResult.NOT_APPLIED, said=after.reason, record=after
    )
