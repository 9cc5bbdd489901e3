"""What one incident cost, its times from start to return, and what the chosen moments saved.

A milestone's duration is the time since the one before it, so that the parts add up to the whole. Work that is lost
counts once, from the checkpoint to the end of the attempt: computing it again is the same loss. What nobody recorded is
not counted, and that is reported.

Savings are expected ones, as computed when each plan was made (`IncidentPlan.timings`): what NOW was expected to cost
less what the chosen moment was. Proof that a moved job continues is its incident's (`Incident.recoveries`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import JobAttempt, NodeName, PlanId, listed
from ops_pipelines.core.incident import Incident, IncidentState, Recovery
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import IncidentPlan, JobTiming, Moment
from ops_pipelines.review.chain import Chain, MadePlan

NO_TEAM = "unknown team"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """One job whose moment was chosen, and what that was expected to save."""

    attempt: JobAttempt
    team: str
    """The account of the job. Untrusted."""
    moment: Moment
    decided_at: datetime
    saved_gpu_hours: float
    """Below 0 where policy forbade a cheaper moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRemediation:
    """What was done in an interval of time, as the pages show it."""

    savings: tuple[Saving, ...]
    """In the order of their times."""
    uncounted_job_count: int
    """Jobs whose loss at either moment was not computed: they are in no sum."""
    recoveries: tuple[Recovery, ...]
    plans: tuple[tuple[Incident, IncidentPlan], ...]
    """Plans of which something was started, newest first."""
    uncounted_at: tuple[datetime, ...] = ()
    """When the moment of each job of `uncounted_job_count` was decided, in order."""


def recent_remediation(ledger: Ledger, *, now: datetime, back: timedelta) -> RecentRemediation:
    """Return what was decided and done about the incidents that changed in the time `back` before `now`."""
    return remediation_of(ledger.incidents_since(now - back), ledger)


def remediation_of(incidents: Iterable[Incident], ledger: Ledger) -> RecentRemediation:
    """Return what was decided and done about these incidents; about none, nothing."""
    savings: dict[JobAttempt, Saving] = {}
    uncounted: dict[JobAttempt, datetime] = {}
    recoveries: list[Recovery] = []
    plans: list[tuple[datetime, Incident, IncidentPlan]] = []
    for incident in incidents:
        recoveries += incident.recoveries
        if not incident.plan_count and incident.plan is None:
            continue
        records = ledger.records(incident.incident)
        for plan, begun_at in _plans_begun(records, ledger):
            plans.append((begun_at, incident, plan))
            of_plan = [each for each in records if each.plan == plan.plan]
            for timing in plan.timings:
                if not _is_carried_out(timing, of_plan):
                    continue
                saving = _saving_of(timing, plan)
                if saving is None:
                    uncounted[timing.attempt] = timing.decided_at
                else:  # A later plan that counts the same job takes the place of the earlier one.
                    savings[timing.attempt] = saving
    untold = sorted(at for attempt, at in uncounted.items() if attempt not in savings)
    plans.sort(key=lambda each: (each[0], each[2].plan), reverse=True)
    return RecentRemediation(
        savings=tuple(sorted(savings.values(), key=lambda each: (each.decided_at, each.attempt))),
        uncounted_job_count=len(untold),
        uncounted_at=tuple(untold),
        recoveries=tuple(sorted(recoveries, key=lambda each: each.held_at)),
        plans=tuple((incident, plan) for _, incident, plan in plans),
    )


def sum_by_day_and_team(savings: Sequence[Saving]) -> Mapping[str, Mapping[str, float]]:
    """Return GPU-hours by day (UTC, `2026-11-21`) and team."""
    sums: dict[str, dict[str, float]] = {}
    for each in savings:
        teams = sums.setdefault(f"{each.decided_at:%Y-%m-%d}", {})
        teams[each.team] = teams.get(each.team, 0.0) + each.saved_gpu_hours
    return sums


def _plans_begun(records: Sequence[ActionRecord], ledger: Ledger) -> Sequence[tuple[IncidentPlan, datetime]]:
    begun: dict[PlanId, datetime] = {}
    for record in sorted(records, key=lambda each: each.begun_at):
        if record.plan is not None:
            begun.setdefault(record.plan, record.begun_at)
    found = []
    for name, at in begun.items():
        plan = ledger.plan(name)
        if plan is not None:
            found.append((plan, at))
    return found


def _is_carried_out(timing: JobTiming, records: Sequence[ActionRecord]) -> bool:
    """Return whether the moment came to pass: the hold that it chose was witnessed, or none was ever to be."""
    if timing.moment in (Moment.JOB_END, Moment.NEVER):
        return any(each.outcome is not None and each.outcome.kind is OutcomeKind.DONE for each in records)
    return any(
        each.action.verb is Verb.HOLD
        and each.action.attempt == timing.attempt
        and each.outcome is not None
        and each.outcome.kind is OutcomeKind.DONE
        for each in records
    )


def _saving_of(timing: JobTiming, plan: IncidentPlan) -> Saving | None:
    costs = {option.moment: option.lost_gpu_hours for option in timing.options}
    if Moment.NOW not in costs or timing.moment not in costs:
        return None
    touched = () if plan.proof is None else plan.proof.jobs
    account = next((each.account for each in touched if each.job == timing.attempt.job), "")
    return Saving(
        attempt=timing.attempt,
        team=account or NO_TEAM,
        moment=timing.moment,
        decided_at=timing.decided_at,
        saved_gpu_hours=costs[Moment.NOW] - costs[timing.moment],
    )


# -- when an incident began, was noticed, decided, drained, moved, repaired and returned --


REPAIRS_OF_NODES = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_ON, Verb.REIMAGE})


class MilestoneKind(Enum):
    """What was reached."""

    BEGAN = "fault began"
    NOTICED = "noticed"
    DECIDED = "decided"
    APPROVED = "approved"
    DRAINED = "drained"
    MOVED = "last job moved"
    RUNNING = "jobs run again"
    PROGRESSED = "jobs beyond their checkpoints"
    REPAIRED = "repaired"
    HANDED_OVER = "handed over to people"
    RETURNED = "back in service"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """One point in the life of an incident."""

    number: int
    """As the picture and the table of a report call it, from 1."""
    kind: MilestoneKind
    at: datetime
    took_seconds: float
    """Since the milestone before it; 0 of the first."""
    since_began_seconds: float


def milestones_of(incident: Incident, chain: Chain, records: Collection[ActionRecord]) -> tuple[Milestone, ...]:
    """Return the milestones that were reached, by their times.

    Clocks of nodes may run ahead: what is reported to have started after it was noticed began, for us, when it was
    noticed.
    """
    began = min(incident.began_at, incident.opened_at)
    reached = [(MilestoneKind.BEGAN, began), (MilestoneKind.NOTICED, incident.opened_at)]
    reached += [(kind, max(at, began)) for kind, at in _later(incident, chain, records)]
    reached.sort(key=lambda each: (each[1], _ORDER[each[0]]))
    return tuple(
        Milestone(
            number=number,
            kind=kind,
            at=at,
            took_seconds=0.0 if number == 1 else (at - reached[number - 2][1]).total_seconds(),
            since_began_seconds=(at - began).total_seconds(),
        )
        for number, (kind, at) in enumerate(reached, start=1)
    )


_ORDER = {kind: place for place, kind in enumerate(MilestoneKind)}
"""Of milestones at one instant."""


def _later(
    incident: Incident, chain: Chain, records: Collection[ActionRecord]
) -> Iterator[tuple[MilestoneKind, datetime]]:
    if chain.plans:
        yield MilestoneKind.DECIDED, chain.plans[0].made_at
    if chain.approvals:
        yield MilestoneKind.APPROVED, chain.approvals[0].given_at
    drained = drained_at(records)
    if drained is not None:
        yield MilestoneKind.DRAINED, drained
    # Only when all have: one job that does not move is what a reader asks for.
    let_go = [each.begun_at for each in records if each.action.verb is Verb.RELEASE and each.took_effect]
    released = _when_all(let_go, count=len(incident.recoveries))
    if released is not None:
        yield MilestoneKind.MOVED, released
    running = _when_all([each.resumed_at for each in incident.recoveries], count=len(incident.recoveries))
    if running is not None:
        yield MilestoneKind.RUNNING, running
    progressed = _when_all([each.progressed_at for each in incident.recoveries], count=len(incident.recoveries))
    if progressed is not None:
        yield MilestoneKind.PROGRESSED, progressed
    repaired = done_at(records, REPAIRS_OF_NODES)
    if repaired:
        yield MilestoneKind.REPAIRED, repaired[-1]
    handed_over = [
        each.at
        for each in chain.changes
        if each.state in (IncidentState.ESCALATED.value, IncidentState.IN_REPAIR.value)
    ]
    if handed_over:
        yield MilestoneKind.HANDED_OVER, handed_over[0]
    returned = returned_at(incident, records)
    if returned is not None:
        yield MilestoneKind.RETURNED, returned
    if incident.closed_at is not None:
        yield MilestoneKind.CLOSED, incident.closed_at


def drained_at(records: Collection[ActionRecord]) -> datetime | None:
    """Return when the first drain was read back; None if no node was drained."""
    found = done_at(records, {Verb.DRAIN})
    return found[0] if found else None


def returned_at(incident: Incident, records: Collection[ActionRecord]) -> datetime | None:
    """Return since when the node is back in service; None if it is not, or was never taken."""
    if incident.returned_at is not None:
        return incident.returned_at
    drained, resumed = done_at(records, {Verb.DRAIN}), done_at(records, {Verb.RESUME})
    return resumed[-1] if resumed and (not drained or resumed[-1] >= drained[-1]) else None


def done_at(records: Collection[ActionRecord], verbs: Collection[Verb]) -> list[datetime]:
    """Return when acts of these verbs were witnessed, oldest first. What had lost its object did nothing."""
    return sorted(
        each.outcome.finished_at
        for each in records
        if each.action.verb in verbs and each.outcome is not None and each.took_effect
    )


def _when_all(times: Sequence[datetime | None], *, count: int) -> datetime | None:
    known = [at for at in times if at is not None]
    return max(known) if known and len(known) >= count else None


# -- what one incident cost, in GPU-hours, from what the ledger recorded --


_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """One job that suffered, with what it lost. Name, user and account are the user's text."""

    job: str
    name: str
    user: str
    account: str
    gpu_count: int | None
    fate: str
    """What became of it, in words."""
    held_at: datetime | None
    stopped_at: datetime | None
    """When its work ended: when the fault ended it, else when we held it; None where nobody moved it."""
    resumed_at: datetime | None
    progressed_at: datetime | None
    lost_by_fault_gpu_hours: float | None
    """Work since its checkpoint that the fault threw away. None: not known."""
    lost_by_us_gpu_hours: float | None
    """Work since its checkpoint that our hold threw away. None: not known."""
    waiting_gpu_hours: float | None
    """Between its end and its next start. None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Sums in GPU-hours, of what is known; `not_counted` says what is missing."""

    by_fault: float
    by_our_acts: float
    waiting: float
    out_of_service: float
    """What the node could not do between its drain and its return, less what jobs still did there before they left."""
    saved: float | None
    """By the chosen moments against interrupting every job at once, as expected then. None: no moment was chosen."""
    saved_against_nothing: float | None
    """By the chosen moments against leaving every job under the fault until its end, as expected then."""
    not_counted: tuple[str, ...]

    @property
    def lost(self) -> float:
        """What jobs lost. The capacity out of service is not in it: nobody says that a job would have used it."""
        return self.by_fault + self.by_our_acts + self.waiting


def victims_of(
    incident: Incident, records: Collection[ActionRecord], jobs: Mapping[str, JobStatus], *, now: datetime
) -> tuple[Victim, ...]:
    """Return every job that ran on the culprits or was moved, by its id; `jobs` is how the scheduler saw them."""
    recoveries = {each.attempt: each for each in incident.recoveries}
    holds = {each.action.attempt: each for each in _done(records, Verb.HOLD) if each.action.attempt is not None}
    attempts = sorted(incident.victims | recoveries.keys() | holds.keys())
    return tuple(
        _victim(attempt, incident, recoveries.get(attempt), holds.get(attempt), jobs.get(attempt.job), now=now)
        for attempt in attempts
    )


def cost_of(
    incident: Incident,
    records: Collection[ActionRecord],
    victims: Collection[Victim],
    plans: Collection[MadePlan],
    savings: RecentRemediation,
    *,
    gpus_per_node: int,
    now: datetime,
) -> Cost:
    """Return the sums over one incident."""
    saved = [each.saved_gpu_hours for each in savings.savings]
    out = _out_of_service(incident, records, gpus_per_node=gpus_per_node, now=now)
    against_nothing = list(_against_nothing(plans, {each.attempt for each in savings.savings}))
    return Cost(
        by_fault=sum(each.lost_by_fault_gpu_hours or 0.0 for each in victims),
        by_our_acts=sum(each.lost_by_us_gpu_hours or 0.0 for each in victims),
        waiting=sum(each.waiting_gpu_hours or 0.0 for each in victims),
        out_of_service=out,
        saved=sum(saved) if saved else None,
        saved_against_nothing=sum(against_nothing) if against_nothing else None,
        not_counted=tuple(_not_counted(incident, victims, savings, out_of_service=out)),
    )


def _victim(
    attempt: JobAttempt,
    incident: Incident,
    recovery: Recovery | None,
    hold: ActionRecord | None,
    job: JobStatus | None,
    *,
    now: datetime,
) -> Victim:
    gpu_count = (recovery.gpu_count if recovery is not None else 0) or (hold.gpu_count if hold is not None else 0)
    gpu_count = gpu_count or (job.gpu_count if job is not None else 0)
    end = incident.closed_at or now
    held_at = recovery.held_at if recovery is not None else (hold.begun_at if hold is not None else None)
    has_ended = hold is not None and hold.action.has_ended
    stopped_at = held_at
    if held_at is not None and has_ended:
        stopped_at = min(held_at, max(incident.began_at, attempt.started_at))
    by_fault, by_us, waiting = None, None, None
    if stopped_at is not None and gpu_count:
        saved_at = recovery.checkpointed_at if recovery is not None else None
        saved_at = saved_at if saved_at is not None or hold is None else hold.checkpointed_at
        work = None if saved_at is None else gpu_count * (max(timedelta(0), stopped_at - saved_at) / _HOUR)
        by_fault, by_us = (work, 0.0) if has_ended else (0.0, work)
        again = recovery.resumed_at if recovery is not None else None
        until = again if again is not None else (None if recovery is None or recovery.ended_as else end)
        waiting = None if until is None else gpu_count * (max(timedelta(0), until - stopped_at) / _HOUR)
    return Victim(
        job=attempt.job,
        name="" if job is None else job.name,
        user="" if job is None else job.user,
        account="" if job is None else job.account,
        gpu_count=gpu_count or None,
        fate=_fate(recovery, hold),
        held_at=held_at,
        stopped_at=stopped_at,
        resumed_at=None if recovery is None else recovery.resumed_at,
        progressed_at=None if recovery is None else recovery.progressed_at,
        lost_by_fault_gpu_hours=by_fault,
        lost_by_us_gpu_hours=by_us,
        waiting_gpu_hours=waiting,
    )


def _fate(recovery: Recovery | None, hold: ActionRecord | None) -> str:
    if recovery is None:
        return "left where it was" if hold is None else "held, and not yet followed"
    if recovery.progressed_at is not None:
        return "moved; a newer checkpoint shows that it continues"
    if recovery.ended_as:
        return f"moved; {recovery.ended_as}"
    if recovery.resumed_at is not None:
        return "moved; runs again, not yet seen beyond its checkpoint"
    return "moved; waits to start again"


def _out_of_service(
    incident: Incident, records: Collection[ActionRecord], *, gpus_per_node: int, now: datetime
) -> float:
    holds = [each for each in _done(records, Verb.HOLD) if each.attempt_nodes and not each.action.has_ended]
    out = 0.0
    for node, begin, end in spans_out(incident, records, now=now):
        used = 0.0
        for hold in holds:
            if node in hold.attempt_nodes and hold.action.attempt is not None:
                stayed = min(hold.begun_at, end) - max(hold.action.attempt.started_at, begin)
                used += hold.gpu_count / len(hold.attempt_nodes) * (max(timedelta(0), stayed) / _HOUR)
        out += max(0.0, gpus_per_node * ((end - begin) / _HOUR) - used)
    return out


def spans_out(
    incident: Incident, records: Collection[ActionRecord], *, now: datetime
) -> Iterator[tuple[NodeName, datetime, datetime]]:
    """Yield from when until when each node was drained for this incident.

    A node that relapses on probation is out twice, and was in service between. Where no return is on record, it is
    out until the incident says that it is back, else until the incident is closed, else until now.
    """
    ends = _done(records, Verb.RESUME)
    for node in sorted({each.action.node for each in _done(records, Verb.DRAIN) if each.action.node is not None}):
        drains = sorted(_at(each) for each in _done(records, Verb.DRAIN) if each.action.node == node)
        resumes = sorted(_at(each) for each in ends if each.action.node == node)
        free_from: datetime | None = None
        for drained in drains:
            if free_from is not None and drained < free_from:
                continue  # Drained once more while it was out.
            back = next((at for at in resumes if at >= drained), None) or _back_at(incident, drained) or now
            yield node, drained, max(drained, back)
            free_from = back


def _back_at(incident: Incident, drained: datetime) -> datetime | None:
    known = (incident.returned_at, incident.closed_at)
    return next((at for at in known if at is not None and at >= drained), None)


def _at(record: ActionRecord) -> datetime:
    assert record.outcome is not None, "asked of what is done only"
    return record.outcome.finished_at


def _against_nothing(plans: Collection[MadePlan], counted: Collection[JobAttempt]) -> Iterator[float]:
    """Yield what each counted job was expected to save against continuing under the fault, of its newest plan."""
    newest = {timing.attempt: timing for made in plans for timing in made.plan.timings if timing.attempt in counted}
    for timing in newest.values():
        costs = {option.moment: option.lost_gpu_hours for option in timing.options}
        if Moment.JOB_END in costs and timing.moment in costs:
            yield costs[Moment.JOB_END] - costs[timing.moment]


def _not_counted(
    incident: Incident, victims: Collection[Victim], savings: RecentRemediation, *, out_of_service: float
) -> Iterator[str]:
    moved = [each for each in victims if each.held_at is not None]
    unknown = [each.job for each in moved if None in (each.lost_by_fault_gpu_hours, each.lost_by_us_gpu_hours)]
    if unknown:
        yield f"the lost work of job {listed(sorted(unknown))}: the age of its checkpoint is not known"
    followed = [each.job for each in moved if each.waiting_gpu_hours is None]
    if followed:
        yield f"the waiting of job {listed(sorted(followed))}: nobody saw it start again"
    still = [each.job for each in moved if each.waiting_gpu_hours is not None and each.resumed_at is None]
    if still and incident.is_open:
        yield f"what job {listed(sorted(still))} will still wait"
    left = [each.job for each in victims if each.held_at is None]
    if left:
        yield f"what job {listed(sorted(left))} lost: it was not moved by us, so nobody measured it"
    if left and out_of_service > 0:
        yield f"what job {listed(sorted(left))} still did there after the drain: out of service is an upper bound"
    if savings.uncounted_job_count:
        yield f"the savings of {savings.uncounted_job_count} job(s) whose other moments were not computed"
    if moved:
        yield "the slowness of jobs under the fault, and the time from their start to their first step"


def _done(records: Collection[ActionRecord], verb: Verb) -> list[ActionRecord]:
    return [each for each in records if each.action.verb is verb and each.took_effect]
