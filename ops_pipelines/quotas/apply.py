"""Applying a proposal of quotas and undoing it: judged on fresh state, recorded before, sent once, read back.

What is in the way is judged now, whatever was found when the proposal was made; each hindrance says what was found and
what to do. What two writers do at once is the ledger's business.

The key is the proposal's name: one that is applied is not sent again. Whatever happens after the before-entry is
reported by what the scheduler says is in force: all, some or nothing of it. What runs is never touched: limits decide
what starts. Somewhat above 500 lines: judging and sending read the same facts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.entries import AUTOPILOT, LedgerConflict
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobStatus
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.proof import QuotaProof
from ops_pipelines.core.proposal import (
    GpuType,
    ProposalEvent,
    ProposalId,
    ProposalRecord,
    ProposalState,
    QuotaProposal,
    SentChange,
    TeamName,
)
from ops_pipelines.core.scheduler import (
    ALL_TYPES,
    AccountQuota,
    Change,
    QuotaChange,
    QuotaProbe,
    Quotas,
    QuotasInForce,
    TypedLimits,
    find_obstacles,
    needs_enforcement,
    needs_types,
)
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines.quotas.changes import ApplyRefused, Witnessed, changes_of, standing_now, to_change, to_sent, witness
from ops_pipelines.quotas.morning import standstill
from ops_pipelines.quotas.proof import prove_proposal
from ops_pipelines.quotas.propose import proof_inputs
from ops_pipelines.quotas.today import count_supply
from ops_pipelines.remediate.judgement import is_current
from ops_pipelines.teams.desk import LimitsOn, TeamsDesk

LONGEST_AGE = timedelta(hours=36)
"""A proposal of another day may be applied until it is so old: nodes, jobs and demand have moved on since."""


def refuse_without_consent(policy: Policy, *, actor: str, lease_token: str | None) -> Iterator[str]:
    """Yield why this actor may not set quotas: a person shows no lease, the autopilot always does."""
    if policy.mode is Mode.OBSERVE:
        yield "mode is observe: quotas are proposed and never set; write `mode: approve` into policy.yaml"
        return
    if actor == AUTOPILOT and lease_token is None:
        yield "the autopilot shows no lease; let the run that holds it apply quotas"
    if lease_token is None:
        return
    consent = policy.consent_to(ActionClass.QUOTAS)
    if consent is not Consent.AUTO:
        yield (
            f"consents.quotas is {consent.value}: the autopilot does not set quotas by itself; a person does, with "
            "`ops-pipelines quota apply`"
        )


def find_hindrances(
    proposal: QuotaProposal,
    changes: Sequence[Change],
    desk: TeamsDesk,
    *,
    in_force: QuotasInForce,
    probe: QuotaProbe,
    proof: QuotaProof,
    now: datetime,
) -> tuple[str, ...]:
    """Return why a proposal must not be applied now; nothing if it may. `proof` is what `prove_now` says."""
    return (
        *_too_old(proposal, desk, now=now),
        *_standing_still(proposal, desk, now=now),
        *hindrances_of_scheduler(changes, in_force=in_force, probe=probe),
        *(f"{each}; propose again" for each in proof.contradictions),
    )


def prove_now(proposal: QuotaProposal, desk: TeamsDesk, *, now: datetime) -> QuotaProof:
    """Prove a proposal on today's agreements and the nodes that are healthy now. Raises SourceError without them."""
    supplies = {line.gpu_type: line.supply for line in count_supply(desk, now=now).lines}
    inputs = replace(proof_inputs(proposal, desk), supplies=supplies)
    return prove_proposal(proposal, inputs, content=desk.cluster.ledger.content_of(proposal), made_at=now)


def hindrances_of_scheduler(
    changes: Sequence[Change], *, in_force: QuotasInForce, probe: QuotaProbe
) -> tuple[str, ...]:
    """Return why the scheduler would not take the changes, or would hold nobody to them."""
    found = list(find_obstacles(changes, in_force.accounts))
    if needs_enforcement(changes) and not probe.is_enforced:
        found.append(f"limits would hold nobody: {probe.enforced_because}")
    typed = needs_types(changes)
    if typed and probe.typed_limits is not TypedLimits.HELD:
        names = ", ".join(sorted({change.gpu_type for change in typed}))
        found.append(
            f"a limit on {names} would not hold jobs that name no type: {probe.typed_because}. Limit all types "
            "together instead (`--total`, or `quotas: {limits: total}` in cluster.yaml)"
        )
    return tuple(found)


def warnings_of(probe: QuotaProbe) -> tuple[str, ...]:
    """Return what weakens limits or fair share here."""
    free = sorted(partition for partition, weight in probe.gpu_billing.items() if weight == 0)
    unbilled = (
        f"GPUs are free in {', '.join(free)}: fair share does not count them; set TRESBillingWeights=GRES/gpu=1 there"
    )
    return (*((unbilled,) if free else ()), *probe.warnings)


def part_settable(
    changes: Sequence[Change], desk: TeamsDesk, *, in_force: QuotasInForce
) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Return the changes that may be set, and of the others in words why they are left out.

    An account that nobody declared keeps what it has: a slip in teams.yaml must not stop a team's work. One that the
    scheduler lacks runs nothing, so that its limit is no matter.
    """
    declared = frozenset() if desk.agreements is None else frozenset(desk.agreements.parents)
    kept, left_out = [], []
    for change in changes:
        if change.account not in declared:
            left_out.append(f"{change.account} keeps what it has: teams.yaml does not name it; declare it there")
        elif change.account not in in_force.accounts:
            left_out.append(f"nothing is set for {change.account}: the scheduler has no such account; add it there")
        else:
            kept.append(change)
    return tuple(kept), tuple(dict.fromkeys(left_out))


# -- each of them --


def _too_old(proposal: QuotaProposal, desk: TeamsDesk, *, now: datetime) -> Iterator[str]:
    today = now.astimezone(desk.zone).date()
    age = now - proposal.made_at
    if proposal.day != today and age >= LONGEST_AGE:
        yield (
            f"{proposal.proposal} is of {proposal.day}, made {age.total_seconds() / 3600:.0f} hours ago; expected one "
            f"of today ({today}) or younger than {LONGEST_AGE.total_seconds() / 3600:.0f} hours: propose again"
        )


def _standing_still(proposal: QuotaProposal, desk: TeamsDesk, *, now: datetime) -> Iterator[str]:
    """Yield why quotas stand still by now; what was proposed knowing of a standstill moves only what it may."""
    rules = desk.cluster.rules
    incidents = desk.cluster.ledger.read_state(now).incidents
    why = standstill(incidents, topology=rules.topology, policy=desk.policy, now=now)
    if why and not proposal.frozen_because:
        yield f"quotas stand still by now: {why}; propose again"


def below_what_runs(changes: Sequence[Change], desk: TeamsDesk, *, in_force: QuotasInForce) -> tuple[str, ...]:
    """Return, as warnings, each limit that would be lowered below what runs under it now.

    No hindrance: the floor is what ran in the last full hour when it was proposed, and what runs is never touched.
    """
    lowered = [
        change
        for change in changes
        if isinstance(change, QuotaChange)
        and change.after is not None
        and (change.before is None or change.after < change.before)
    ]
    if not lowered:
        return ()
    running = running_by_account(desk.cluster.scheduler.read_jobs(), in_force.accounts, desk.gpu_type_of)
    found = []
    for change in lowered:
        own = running.get(change.account, {})
        now_runs = sum(own.values()) if change.gpu_type == ALL_TYPES else own.get(change.gpu_type, 0.0)
        if change.after is not None and now_runs > change.after:
            found.append(
                f"{change}: {now_runs:g} GPUs run there now; they run on, and nothing starts until they are fewer"
            )
    return tuple(found)


def running_by_account(
    jobs: Iterable[JobStatus], accounts: Mapping[TeamName, AccountQuota], types: Mapping[NodeName, GpuType]
) -> Mapping[TeamName, Mapping[GpuType, float]]:
    """Return the GPUs of jobs that have processes, by account and type; those above an account have its jobs, too."""
    found: defaultdict[TeamName, defaultdict[GpuType, float]] = defaultdict(lambda: defaultdict(float))
    for job in jobs:
        if job.state not in MAY_HAVE_PROCESSES or not job.nodes:
            continue
        for account in _upwards(TeamName(job.account), accounts):
            for node in job.nodes:
                found[account][types.get(node, GpuType(""))] += job.gpu_count / len(job.nodes)
    return found


def _upwards(account: TeamName, accounts: Mapping[TeamName, AccountQuota]) -> Iterator[TeamName]:
    """Yield an account and all above it, each once: what is read may go in circles."""
    seen: set[TeamName] = set()
    above: TeamName | None = account
    while above is not None and above not in seen:
        seen.add(above)
        yield above
        quota = accounts.get(above)
        above = None if quota is None else quota.parent


# -- sending one batch of quotas under the ledger's eyes --


READ_COUNT = 10
PAUSE_SECONDS = 2.0
"""After sending, so often and so far apart it is read what is in force: schedulers hear of limits within seconds."""

Pause = Callable[[float], None]
"""Lets seconds pass."""


class Deed(Enum):
    """Applying and undoing differ in their events alone."""

    APPLY = (
        ProposalEvent.BEGIN,
        ProposalEvent.READ_BACK,
        ProposalEvent.STOP_HALF_WAY,
        ProposalEvent.NOTHING_DONE,
    )
    UNDO = (
        ProposalEvent.UNDO,
        ProposalEvent.UNDO_READ_BACK,
        ProposalEvent.UNDO_STOPPED,
        ProposalEvent.UNDO_NOTHING_DONE,
    )

    def __init__(
        self, begin: ProposalEvent, done: ProposalEvent, stopped: ProposalEvent, nothing: ProposalEvent
    ) -> None:
        self.begin, self.done, self.stopped, self.nothing = begin, done, stopped, nothing


@dataclass(frozen=True, kw_only=True)
class Hand:
    """Somebody who sets quotas, with what is behind them."""

    desk: TeamsDesk
    actor: str
    lease_token: str | None
    warnings: tuple[str, ...]
    proof: QuotaProof | None = None
    """Of the proposal that is applied, as it was just made; None where nothing is started that needs one."""

    def carry_out(
        self, record: ProposalRecord, changes: tuple[Change, ...], deed: Deed, *, pause: Pause
    ) -> ProposalRecord:
        """Write the before-entry, send, read back, write down what came of it."""
        sent = tuple(map(to_sent, changes)) if deed is Deed.APPLY else ()
        words = "; ".join((f"sets {', '.join(map(str, changes)) or 'nothing: all is as proposed'}", *self.warnings))
        try:
            begun = self._event(record, deed.begin, words, sent=sent)
        except LedgerConflict as overtaken:
            raise ApplyRefused(str(overtaken)) from overtaken
        quotas = self.desk.limits()
        if not is_current(self.lease_token, self.desk.cluster.ledger, self.desk.clock.now()):
            # Anyone who has the lease by now settles what was started, by what is in force: nothing of it is.
            raise ApplyRefused(f"{record.name}: the lease went to another process before anything was sent")
        problem = _send(quotas, changes)
        # After a no nothing more happens; after silence what was sent may still take effect.
        most = 1 if isinstance(problem, SourceRefused) else READ_COUNT
        found = _read_back(quotas, changes, most=most, pause=pause)
        try:
            return self.write_down(begun, deed, found, trouble="" if problem is None else str(problem))
        except LedgerConflict:
            # Somebody took us for dead and settled it, or our lease ran out: the ledger says what is known.
            return _present(begun, self.desk)

    def write_down(
        self, record: ProposalRecord, deed: Deed, found: Witnessed | None, *, trouble: str
    ) -> ProposalRecord:
        """Write the after-entry: what is in, by the last reading."""
        told = (trouble,) if trouble else ()
        if found is None:
            words = (*told, "what is in force could not be read; apply or undo it again once the scheduler answers")
            return self._event(record, deed.stopped, "; ".join(words))
        if found.is_done:
            read = f"read back: {len(found.are_in)} set" if found.are_in else "read back: nothing was to be set"
            return self._event(record, deed.done, "; ".join((*told, read, *self.warnings)))
        event = deed.nothing if found.is_nothing_in else deed.stopped
        return self._event(record, event, "; ".join((*told, found.words)))

    def _event(
        self, record: ProposalRecord, event: ProposalEvent, reason: str, *, sent: tuple[SentChange, ...] = ()
    ) -> ProposalRecord:
        return self.desk.cluster.ledger.change_proposal(
            record.name,
            event,
            actor=self.actor,
            reason=reason,
            lease_token=self.lease_token,
            now=self.desk.clock.now(),
            sent=sent,
            proof=self.proof if event is ProposalEvent.BEGIN else None,
        )


def _send(quotas: Quotas, changes: tuple[Change, ...]) -> SourceError | None:
    """Send the changes; return what went wrong. Whatever it was, what is in is read afterwards."""
    try:
        quotas.apply(changes)
    except SourceError as problem:
        return problem
    return None


def _read_back(quotas: Quotas, changes: tuple[Change, ...], *, most: int, pause: Pause) -> Witnessed | None:
    """Return the last reading: once all is in and followed, or after so many tries; None if that could not be read."""
    found = _read(quotas, changes)
    for _ in range(most - 1):
        if found is not None and found.is_done:
            break
        pause(PAUSE_SECONDS)
        found = _read(quotas, changes)
    return found


def _read(quotas: Quotas, changes: tuple[Change, ...]) -> Witnessed | None:
    try:
        return witness(changes, quotas.read())
    except SourceError:
        return None  # The ledger then says that what is in force could not be read.


def _present(record: ProposalRecord, desk: TeamsDesk) -> ProposalRecord:
    return desk.cluster.ledger.proposal(record.name) or record


# -- applying a proposal of quotas and undoing it --


SETTLED_AFTER = timedelta(minutes=10)
"""Anyone who began longer ago than this is gone: no batch takes so long."""
_LOOKED_BACK = 60
"""Newest proposals among which one that is half-way is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What applying a proposal would do now. Nothing was changed."""

    record: ProposalRecord
    changes: tuple[Change, ...]
    """What would be set; nothing: all is as proposed."""
    standing: Mapping[Change, int | None]
    """What is there now; of accounts that the scheduler does not know, nothing."""
    hindrances: tuple[str, ...]
    """Why it would be refused; nothing: it would be applied."""
    warnings: tuple[str, ...]
    """What limits are worth less by, here."""


def preview(
    proposal: ProposalId, desk: TeamsDesk, *, actor: str | None = None, limits_on: LimitsOn | None = None
) -> Preview:
    """Return what `apply` would do now. Raises ApplyRefused for an unknown proposal, SourceError, NoTeams.

    With the person who asks, `actor`, also whether the policy lets people set anything; None: the caller says so.
    """
    record = _known(proposal, desk)
    quotas = desk.limits()
    in_force, probe = quotas.read(), quotas.probe()
    changes, left_out = _changes(record, desk, limits_on=limits_on or desk.limits_on, in_force=in_force)
    policy, now = desk.cluster.rules.policy, desk.clock.now()
    proof = prove_now(record.proposal, desk, now=now)
    hindrances = (
        *(() if actor is None else refuse_without_consent(policy, actor=actor, lease_token=None)),
        *find_hindrances(record.proposal, changes, desk, in_force=in_force, probe=probe, proof=proof, now=now),
    )
    is_open = record.state in (ProposalState.PROPOSED, ProposalState.HALF_APPLIED)
    return Preview(
        record=record,
        changes=changes,
        standing=standing_now(changes, in_force),
        hindrances=hindrances if is_open else (_why_closed(record), *hindrances),
        warnings=(*warnings_of(probe), *left_out, *below_what_runs(changes, desk, in_force=in_force)),
    )


def apply(
    proposal: ProposalId,
    desk: TeamsDesk,
    *,
    actor: str,
    lease_token: str | None,
    limits_on: LimitsOn | None = None,
    pause: Pause | None = None,
) -> ProposalRecord:
    """Set what a proposal says and return its record: applied, half applied, or proposed as before where nothing is in.

    `lease_token` None: a person's word. `limits_on` None: as cluster.yaml says. One that is half applied is completed:
    with the changes that it was started with. What somebody never ended is settled first. Raises ApplyRefused, and then
    nothing was set.
    """
    settle(desk, actor=actor, lease_token=lease_token)
    record = _known(proposal, desk)
    if record.state is ProposalState.APPLIED:
        return _as_it_was(record)
    if record.state not in (ProposalState.PROPOSED, ProposalState.HALF_APPLIED):
        raise ApplyRefused(_why_closed(record))
    now = desk.clock.now()
    _refuse(proposal, refuse_without_consent(desk.cluster.rules.policy, actor=actor, lease_token=lease_token))
    quotas = desk.limits()
    in_force, probe = quotas.read(), quotas.probe()
    changes, left_out = _changes(record, desk, limits_on=limits_on or desk.limits_on, in_force=in_force)
    proof = prove_now(record.proposal, desk, now=now)
    _refuse(
        proposal,
        find_hindrances(record.proposal, changes, desk, in_force=in_force, probe=probe, proof=proof, now=now),
    )
    warnings = (*warnings_of(probe), *left_out, *below_what_runs(changes, desk, in_force=in_force))
    hand = Hand(desk=desk, actor=actor, lease_token=lease_token, warnings=warnings, proof=proof)
    return hand.carry_out(record, changes, Deed.APPLY, pause=pause or desk.clock.wait)


def undo(
    proposal: ProposalId,
    desk: TeamsDesk,
    *,
    actor: str,
    lease_token: str | None,
    pause: Pause | None = None,
) -> ProposalRecord:
    """Set what stood there before a proposal was applied, and return its record; only the newest that is in.

    What somebody never ended is settled first. Raises ApplyRefused, and nothing was set.
    """
    settle(desk, actor=actor, lease_token=lease_token)
    record = _known(proposal, desk)
    if record.state is ProposalState.UNDONE:
        return _as_it_was(record)
    if record.state not in (ProposalState.APPLIED, ProposalState.HALF_APPLIED, ProposalState.HALF_UNDONE):
        raise ApplyRefused(f"{_why_closed(record)}; only what was applied can be undone")
    _refuse(proposal, refuse_without_consent(desk.cluster.rules.policy, actor=actor, lease_token=lease_token))
    quotas = desk.limits()
    changes = tuple(to_change(each).undone for each in record.sent)
    probe = quotas.probe()
    _refuse(proposal, hindrances_of_scheduler(changes, in_force=quotas.read(), probe=probe))
    hand = Hand(desk=desk, actor=actor, lease_token=lease_token, warnings=warnings_of(probe))
    return hand.carry_out(record, changes, Deed.UNDO, pause=pause or desk.clock.wait)


def settle(desk: TeamsDesk, *, actor: str, lease_token: str | None) -> tuple[ProposalRecord, ...]:
    """Judge what somebody began and never ended, by what is in force; return what was settled. Nothing is sent.

    Somebody who began less than `SETTLED_AFTER` ago may still be at it, and is left alone. Raises SourceError where
    what is in force cannot be read.
    """
    now = desk.clock.now()
    settled = []
    for record in desk.cluster.ledger.proposals(limit=_LOOKED_BACK):
        if record.state not in (ProposalState.APPLYING, ProposalState.UNDOING) or now - record.since < SETTLED_AFTER:
            continue
        deed = Deed.APPLY if record.state is ProposalState.APPLYING else Deed.UNDO
        sent = (to_change(each) for each in record.sent)
        changes = tuple(each if deed is Deed.APPLY else each.undone for each in sent)
        found = witness(changes, desk.limits().read())
        hand = Hand(desk=desk, actor=actor, lease_token=lease_token, warnings=())
        with suppress(LedgerConflict):  # Somebody else settled it meanwhile, or our lease ran out.
            settled.append(hand.write_down(record, deed, found, trouble=f"{record.actor} began it and never ended it"))
    return tuple(settled)


def _changes(
    record: ProposalRecord, desk: TeamsDesk, *, limits_on: LimitsOn, in_force: QuotasInForce
) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Return what is to be set, and what is left out in words: of one that is half in, what it was started with."""
    if record.state is ProposalState.HALF_APPLIED:
        return tuple(map(to_change, record.sent)), ()
    return part_settable(changes_of(record.proposal, limits_on=limits_on, in_force=in_force), desk, in_force=in_force)


def _known(proposal: ProposalId, desk: TeamsDesk) -> ProposalRecord:
    record = desk.cluster.ledger.proposal(proposal)
    if record is None:
        raise ApplyRefused(f"there is no proposal {proposal[:80]!r}; `ops-pipelines quota history` lists them")
    return record


def _as_it_was(record: ProposalRecord) -> ProposalRecord:
    since = _at(record.since)
    return replace(record, reason=f"nothing was changed: {record.state.value} by {record.actor} on {since} already")


def _why_closed(record: ProposalRecord) -> str:
    if record.state in (ProposalState.APPLYING, ProposalState.UNDOING):
        return (
            f"{record.name} is {record.state.value} by {record.actor} since {_at(record.since)}; wait for its end. If "
            f"that process is gone, apply or undo it after {_at(record.since + SETTLED_AFTER)}: it is settled first"
        )
    return (
        f"{record.name} is {record.state.value} since {_at(record.since)} by {record.actor} ({record.reason}); only "
        "what is proposed, or half applied, is applied: propose again"
    )


def _refuse(proposal: ProposalId, hindrances: Iterable[str]) -> None:
    found = tuple(hindrances)
    if found:
        raise ApplyRefused(f"{proposal} was not touched: {'; '.join(found)}")


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
