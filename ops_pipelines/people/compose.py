"""Composes what is to be reported of incidents, rollouts and quotas since the last look.

One note a day for the on-call, one line for a team of an applied proposal. What was sent is known by its key; sending
is `people.delivery`'s.

Looked at when the chain has grown, and each minute besides: a deadline passes and a team's turn comes nearer without a
line. Sending is `people.delivery`'s.

Composed from the state that holds now, not from each line: what came and went between two looks is reported to nobody.
Keys keep the same fact from being reported twice. Notes and cursor move in one transaction; sending is
`people.delivery`'s.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import Entry, EntryKind, LedgerConflict, LedgerState
from ops_pipelines.core.identity import IncidentId, JobId, PlanId, digest_of
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.notes import ON_CALL, Audience, Lane, Note, Outbox, Severity, body_of, quiet_end
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.proposal import ProposalRecord, ProposalState, ProposedQuota
from ops_pipelines.core.rollout import Rollout
from ops_pipelines.core.sources import SourceError
from ops_pipelines.people.jobs import JobSituation, tell_job_people
from ops_pipelines.people.on_call import Situation, tell_on_call
from ops_pipelines.remediate.due import awaited_act, waits_for_yes, will_wait_for_yes
from ops_pipelines.remediate.probation import with_moved
from ops_pipelines.rollouts.notices import RolloutSituation, tell_teams
from ops_pipelines.rollouts.operator_notices import tell_operators

# -- composes what is to be reported of quotas --


QUOTA_SOURCE = "messages on quotas"
_NEWS = timedelta(days=1)
"""What is older is no news: a ledger that was never reported from may be years old."""
_QUOTAS_SINCE = 10


def tell_of_quotas(cluster: Cluster) -> int:
    """Compose what is new and return how many notes were kept. Raises LedgerError."""
    outbox = cluster.outbox
    if outbox is None:
        return 0
    now = cluster.clock.now()
    after = cluster.ledger.cursor(QUOTA_SOURCE)
    records = cluster.ledger.proposals(limit=_QUOTAS_SINCE)
    fresh = [each for each in records if now - each.since < _NEWS]
    cursor = " ".join(f"{each.name} {each.state.value}" for each in fresh)
    if not fresh or cursor == after:
        return 0
    notes = [note for record in fresh for note in _notes_of_proposal(record, cluster, now=now)]
    with suppress(LedgerConflict):  # Somebody else reported in between: the next look finds what is left.
        return outbox.hand_in(notes, source=QUOTA_SOURCE, after=after, cursor=cursor, now=now)
    return 0


def _notes_of_proposal(record: ProposalRecord, cluster: Cluster, *, now: datetime) -> list[Note]:
    if record.state is ProposalState.APPLIED:
        return [
            _to_team(record, line, cluster, now=now)
            for line in record.proposal.lines
            if line.team and line.limit != line.after
        ]
    return [_question(record, cluster, now=now)] if _waits(record, cluster) else []


def _waits(record: ProposalRecord, cluster: Cluster) -> bool:
    policy = cluster.rules.policy
    is_open = record.state is ProposalState.PROPOSED and record.proposal.changes_anything
    return is_open and policy.mode is not Mode.OBSERVE and policy.consent_to(ActionClass.QUOTAS) is Consent.APPROVE


def _question(record: ProposalRecord, cluster: Cluster, *, now: datetime) -> Note:
    title = f"quotas for {record.proposal.day} wait for approval"
    return Note(
        # By the day: a second proposal of the same day asks nobody again.
        key=f"quotas-{record.proposal.day}/{Audience.ON_CALL.value}/asks",
        audience=Audience.ON_CALL,
        recipient=ON_CALL,
        thread=record.name,
        subject=f"quotas for {record.proposal.day}",
        title=title,
        body=body_of(
            [
                ("What", record.proposal.headline),
                ("Read it", f"`ops-pipelines quota diff {record.name}`"),
                ("What you must do", f"`ops-pipelines quota apply {record.name}`; without it quotas stay as they are"),
            ]
        ),
        line=title,
        lines_title="quotas of {count} days wait for approval",
        severity=Severity.NOTICE,
        likeness="quotas asks",
        made_at=now,
        lane=_lane(cluster, now),
        ready_at=_ready_at(cluster, now),
    )


def _to_team(record: ProposalRecord, line: ProposedQuota, cluster: Cluster, *, now: datetime) -> Note:
    kind = f" of {line.gpu_type}" if line.gpu_type else ""
    title = f"your quota is {line.after} GPUs{kind} now, and was {line.before:g}"
    return Note(
        key=f"{record.name}/team/{digest_of(line.team)[:12]}/{line.gpu_type}",
        audience=Audience.TEAM,
        recipient=line.team,
        thread=record.name,
        subject=f"quotas for {record.proposal.day}",
        title=title,
        body=body_of([("Why", line.reason), ("Without it", line.counterfactual), ("What runs", "continues")]),
        line=title,
        lines_title="{count} of your quotas changed",
        severity=Severity.INFO,
        likeness="quotas changed",
        made_at=now,
        lane=_lane(cluster, now),
        ready_at=_ready_at(cluster, now),
    )


def _lane(cluster: Cluster, now: datetime) -> Lane:
    return Lane.AT_ONCE if quiet_end(cluster.tell_rules, now) is None else Lane.DIGEST


def _ready_at(cluster: Cluster, now: datetime) -> datetime:
    """Return when it goes out: by night nobody is woken by a quota."""
    morning = quiet_end(cluster.tell_rules, now)
    return (now + cluster.tell_rules.group_window if morning is None else morning).astimezone(UTC)


# -- composes what is to be reported of each rollout that is under way --


SOURCE = "messages on rollouts"
_LOOKED_BACK = timedelta(hours=1)
"""A ledger that was never reported from may be years old: of its past only what is open, or ended just now, is news."""
_LATE = timedelta(minutes=10)
"""How much older than our last look a line may be that was written after it."""


def tell_of_rollouts(cluster: Cluster) -> int:
    """Compose what is new and return how many notes were kept. Raises LedgerError."""
    outbox = cluster.outbox
    if outbox is None:
        return 0
    now = cluster.clock.now()
    after = cluster.ledger.cursor(SOURCE)
    rollouts = cluster.ledger.rollouts(final_since=_looked_at(after, now) - _LATE)
    if not rollouts:
        return 0
    minute = now.astimezone(UTC).replace(second=0, microsecond=0)
    cursor = f"{cluster.ledger.read_state(now).head_seq} {minute.isoformat()}"
    if cursor == after:
        return 0
    notes = [note for rollout in rollouts for note in _notes_of(rollout, outbox, cluster, now=now)]
    with suppress(LedgerConflict):  # Somebody else reported in between: the next look finds what is left.
        return outbox.hand_in(notes, source=SOURCE, after=after, cursor=cursor, now=now)
    return 0


def _notes_of(rollout: Rollout, outbox: Outbox, cluster: Cluster, *, now: datetime) -> tuple[Note, ...]:
    situation = RolloutSituation(
        rollout=rollout,
        nodes=cluster.ledger.rollout_nodes(rollout.rollout),
        release=cluster.ledger.release(rollout.release_digest),
        plan=cluster.ledger.rollout_plan(rollout.plan),
        told=outbox.notes_of(rollout.rollout),
        limits=cluster.rules.policy.rollouts,
        rules=cluster.tell_rules,
        now=now,
    )
    return (*tell_operators(situation), *tell_teams(situation))


def _looked_at(cursor: str | None, now: datetime) -> datetime:
    """Return when the last look was."""
    if cursor is None:
        return now - _LOOKED_BACK
    return min(now, datetime.fromisoformat(cursor.partition(" ")[2]))


# -- reads the chain behind a cursor and composes what is to be reported about each incident that --


ON_CALL_SOURCE = "messages to the on-call"
JOBS_SOURCE = "messages to owners and teams"
_UNDER_RULES = ", under which rules"
"""Ends the name of the cursor that says under which rules the last look was made."""
_LINES_AT_ONCE = 1_000
_FIRST_LOOK_BACK = timedelta(hours=1)
"""A ledger that was never reported from may be years old: of its past only what is open, or ended just now, is news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What changed since the last look."""

    incidents: tuple[IncidentId, ...]
    proposed: dict[IncidentId, PlanId]
    """The newest plan that was written for an incident since then."""
    cursor: int


_Composer = Callable[[News, LedgerState, Outbox, Cluster], list[Note]]


def tell(cluster: Cluster) -> int:
    """Compose what is new for each audience and return how many notes were kept. Raises LedgerError.

    The on-call is notified also while the scheduler is silent; owners and teams are notified later, for only it knows
    them.
    """
    told = _tell(ON_CALL_SOURCE, _for_on_call, cluster) + _tell(JOBS_SOURCE, _for_job_people, cluster)
    return told + tell_of_rollouts(cluster) + tell_of_quotas(cluster)


def _tell(source: str, compose: _Composer, cluster: Cluster) -> int:
    outbox = cluster.outbox
    if outbox is None:
        return 0
    after = cluster.ledger.cursor(source)
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    under = cluster.ledger.cursor(f"{source}{_UNDER_RULES}")
    is_changed = under is not None and under != cluster.rules_digest
    if after is not None and int(after) >= state.head_seq and under is not None and not is_changed:
        return 0
    news = _news_after(after, state, cluster)
    if is_changed:
        news = _with_what_waits(news, state, cluster)
    with suppress(SourceError, LedgerConflict):  # The cursor stays: the next look reports.
        notes = compose(news, state, outbox, cluster)
        told_count = outbox.hand_in(notes, source=source, after=after, cursor=str(news.cursor), now=now)
        if under != cluster.rules_digest:  # Afterwards: what is reported twice is known by its key, and goes out once.
            _remember(f"{source}{_UNDER_RULES}", cluster.rules_digest, cluster)
        return told_count
    return 0


def _remember(source: str, cursor: str, cluster: Cluster) -> None:
    cluster.ledger.take_in(source=source, observations=(), rejected=(), cursor=cursor, now=cluster.clock.now())


def _with_what_waits(news: News, state: LedgerState, cluster: Cluster) -> News:
    """Return the news with every open incident and its newest plan: under other rules something else is asked of it."""
    proposed = dict(news.proposed)
    for incident in state.incidents:
        if incident.state is IncidentState.OPEN and incident.incident not in proposed:
            plans = [each for each in cluster.ledger.entries_about(incident.incident) if _is_plan_of(each, incident)]
            if plans:
                proposed[incident.incident] = _plan_in(plans[-1])
    names = (*news.incidents, *(each.incident for each in state.incidents))
    return replace(news, incidents=tuple(dict.fromkeys(names)), proposed=proposed)


def _is_plan_of(line: Entry, incident: Incident) -> bool:
    return line.kind is EntryKind.PLAN and line.incident == incident.incident


def _plan_in(line: Entry) -> PlanId:
    return PlanId(str(json.loads(line.body)["plan"]))


def _news_after(after: str | None, state: LedgerState, cluster: Cluster) -> News:
    """Return what changed after the cursor; at the very first look what is open or has just ended."""
    first = max(0, state.head_seq - _LINES_AT_ONCE) if after is None else int(after)
    lines = cluster.ledger.entries(after=first, limit=_LINES_AT_ONCE)
    proposed = {
        each.incident: _plan_in(each) for each in lines if each.kind is EntryKind.PLAN and each.incident is not None
    }
    if after is None:
        recent = cluster.ledger.incidents_since(cluster.clock.now() - _FIRST_LOOK_BACK)
        names = tuple(each.incident for each in recent)
        return News(incidents=names, proposed=proposed, cursor=state.head_seq)
    changed = tuple(dict.fromkeys(each.incident for each in lines if each.incident is not None))
    return News(incidents=changed, proposed=proposed, cursor=lines[-1].seq if lines else first)


def _for_on_call(news: News, state: LedgerState, outbox: Outbox, cluster: Cluster) -> list[Note]:
    notes: list[Note] = []
    for name in news.incidents:
        incident = cluster.ledger.incident(name)
        if incident is None:
            continue
        proposed = news.proposed.get(name)
        in_force = None if incident.plan is None else cluster.ledger.plan(incident.plan)
        plan = None if proposed is None else cluster.ledger.plan(proposed)
        situation = Situation(
            incident=incident,
            records=cluster.ledger.records(name),
            in_force=in_force,
            proposed=plan,
            will_ask=in_force is not None and will_wait_for_yes(in_force, state, cluster.rules.policy),
            asked=_plan_asked_for(incident, plan, in_force, state, cluster.rules.policy),
            told=outbox.notes_of(name),
            mode=cluster.rules.policy.mode,
            rules=cluster.tell_rules,
            topology=cluster.rules.topology,
            now=cluster.clock.now(),
        )
        notes += tell_on_call(situation)
    return notes


def _plan_asked_for(
    incident: Incident,
    proposed: IncidentPlan | None,
    in_force: IncidentPlan | None,
    state: LedgerState,
    policy: Policy,
) -> IncidentPlan | None:
    """Return the plan that waits for approval: one that has not started, or the one in force half-way."""
    if incident.state is IncidentState.OPEN:
        is_asked = proposed is not None and waits_for_yes(proposed, state, policy)
        return proposed if is_asked else None
    if in_force is not None and awaited_act(incident, in_force, state, policy) is not None:
        return in_force
    return None


def _for_job_people(news: News, state: LedgerState, outbox: Outbox, cluster: Cluster) -> list[Note]:
    jobs: dict[JobId, JobStatus] | None = None
    told_owners = [each for each in state.records if each.action.verb is Verb.NOTIFY_OWNER]
    notes: list[Note] = []
    for name in news.incidents:
        incident = cluster.ledger.incident(name)
        if incident is None:
            continue
        records = cluster.ledger.records(name)
        recoveries = with_moved(incident, records)
        if not recoveries and not incident.victims:
            continue
        if jobs is None:
            jobs = {job.job: job for job in cluster.scheduler.read_jobs()}
        situation = JobSituation(
            incident=incident,
            records=(*records, *(each for each in told_owners if each.action.incident != name)),
            recoveries=recoveries,
            jobs=jobs,
            told=outbox.notes_of(name),
            rules=cluster.tell_rules,
            now=cluster.clock.now(),
        )
        notes += tell_job_people(situation)
    return notes
