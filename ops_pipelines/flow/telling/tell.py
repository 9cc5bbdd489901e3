"""Reads the chain behind a cursor and composes what is to be told about each incident that changed since.

Composed from the state that holds now, not from each line: what came and went between two looks is told to nobody. Keys
keep the same fact from being told twice. Notes and cursor move in one transaction; sending is `telling.delivery`'s.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import Entry, EntryKind, LedgerConflict, LedgerState
from ops_pipelines.core.identity import IncidentId, JobId, PlanId
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.notes import Note, Outbox
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.sources import SourceError
from ops_pipelines.flow.telling.jobs import JobSituation, tell_job_people
from ops_pipelines.flow.telling.on_call import Situation, tell_on_call
from ops_pipelines.flow.telling.quotas import tell_of_quotas
from ops_pipelines.flow.telling.rollouts import tell_of_rollouts
from ops_pipelines.remediate.nodes.probation import with_moved
from ops_pipelines.remediate.plans.moments import awaited_act, waits_for_yes, will_wait_for_yes

ON_CALL_SOURCE = "messages to the on-call"
JOBS_SOURCE = "messages to owners and teams"
_UNDER_RULES = ", under which rules"
"""Ends the name of the cursor that says under which rules the last look was made."""
_LINES_AT_ONCE = 1_000
_FIRST_LOOK_BACK = timedelta(hours=1)
"""A ledger that was never told from may be years old: of its past only what is open, or ended just now, is news."""


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

    The on-call is told also while the scheduler is silent; owners and teams are told later, for only it knows them.
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
    with suppress(SourceError, LedgerConflict):  # The cursor stays: the next look tells.
        notes = compose(news, state, outbox, cluster)
        told_count = outbox.hand_in(notes, source=source, after=after, cursor=str(news.cursor), now=now)
        if under != cluster.rules_digest:  # Afterwards: what is told twice is known by its key, and goes out once.
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
    """Return the plan that waits for somebody's yes: one that has not begun, or the one in force half-way."""
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
