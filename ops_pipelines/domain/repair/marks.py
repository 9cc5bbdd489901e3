"""Which running jobs are marked held because a node of theirs fell silent, and which marks have done their service.

At its silence limit the scheduler starts such a job elsewhere, while its processes may still write. The mark costs
nobody anything, so it is set at the first sight of a silence, before that is believed. Whether one may be set is
`guardrails`'; whoever moves the job afterwards takes the mark over (`remediation`).
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.action import MARKS, Action, ActionRecord, Verb
from ops_pipelines.core.identity import IncidentId, JobId, NodeName
from ops_pipelines.core.observation import JobState, JobStatus, has_moved_on
from ops_pipelines.domain.guardrails.facts import being_moved, mark_of, open_marks, power_cut_at
from ops_pipelines.domain.guardrails.judge import ClusterFacts

_TRIED_AGAIN_AFTER = timedelta(minutes=10)
"""What the scheduler has refused it will refuse again in a moment; a job that stays held is a night's work lost."""
_RUNS = frozenset({JobState.RUNNING, JobState.SUSPENDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What is to be done about marks now."""

    to_set: tuple[Action, ...]
    to_lift: tuple[Action, ...]
    in_sight: tuple[ActionRecord, ...]
    """What must be known of standing marks for as long as they stand, with the tries to take them off."""


def find_marks(
    facts: ClusterFacts, *, silent_since: Mapping[NodeName, datetime], causes: Mapping[NodeName, IncidentId]
) -> Marks:
    """Return the marks that are lacking, and those whose jobs every node has answered for.

    `silent_since` are the nodes that are seen silent, `causes` the incident of each. One silence marks an attempt once:
    who releases it meanwhile has decided.
    """
    known = {(each.action.attempt, each.action.part) for each in facts.records if each.action.verb is Verb.MARK}
    to_set = []
    for job in sorted(facts.jobs.values(), key=lambda job: job.job):
        silent = sorted(
            (silent_since[name], name)
            for name in job.nodes
            if name in silent_since and name in causes and _is_silent(name, facts)
        )
        if not silent or job.state not in _RUNS or job.is_held or not job.is_requeueable or job.attempt is None:
            continue
        since, name = silent[0]
        part = since.isoformat()
        if (job.attempt, part) not in known:
            to_set.append(Action(verb=Verb.MARK, incident=causes[name], attempt=job.attempt, part=part))
    standing = standing_marks(facts.records, facts.jobs)
    names = {mark_of(mark) for mark in standing}
    in_sight = tuple(each for each in facts.records if each.action.verb in MARKS and mark_of(each) in names)
    ended_at: defaultdict[Hashable, list[datetime]] = defaultdict(list)
    for each in in_sight:
        if each.action.verb is Verb.UNMARK and each.outcome is not None:
            ended_at[mark_of(each)].append(each.outcome.finished_at)
    moved = being_moved(facts)
    cut_at = power_cut_at(facts.records)
    to_lift = [
        lift
        for mark in standing
        if mark.action.attempt not in moved and not _lacks_an_answer(mark, facts, cut_at)
        if (lift := _next_lift(mark, ended_at[mark_of(mark)], now=facts.taken_at)) is not None
    ]
    return Marks(to_set=tuple(to_set), to_lift=tuple(to_lift), in_sight=in_sight)


def _next_lift(mark: ActionRecord, ended_at: Sequence[datetime], *, now: datetime) -> Action | None:
    """Return the act that takes a mark off; where one came to nothing, another one after a while."""
    if ended_at and now - max(ended_at) < _TRIED_AGAIN_AFTER:
        return None
    incident, attempt, part = mark_of(mark)
    return Action(verb=Verb.UNMARK, incident=incident, attempt=attempt, part=part, try_number=1 + len(ended_at))


def standing_marks(records: Collection[ActionRecord], jobs: Mapping[JobId, JobStatus]) -> tuple[ActionRecord, ...]:
    """Return the marks of ours whose jobs are still held by them, oldest first."""
    return tuple(mark for mark in open_marks(records) if _stands(mark, jobs))


def nodes_in_doubt(facts: ClusterFacts) -> frozenset[NodeName]:
    """Return the silent nodes of marked jobs that the scheduler has given up: only their power switch can tell."""
    return frozenset(
        name
        for mark in standing_marks(facts.records, facts.jobs)
        if mark.action.attempt is not None and facts.jobs[mark.action.attempt.job].state is JobState.PENDING
        for name in mark.attempt_nodes
        if _is_silent(name, facts)
    )


def _stands(mark: ActionRecord, jobs: Mapping[JobId, JobStatus]) -> bool:
    attempt = mark.action.attempt
    job = None if attempt is None else jobs.get(attempt.job)
    if attempt is None or job is None or has_moved_on(job, attempt) or job.ended_at is not None:
        return False
    return job.is_held and not job.is_held_by_user


def _lacks_an_answer(mark: ActionRecord, facts: ClusterFacts, cut_at: Mapping[NodeName, datetime]) -> bool:
    """Return whether a node of the attempt is silent, has power, and has not lost it since the mark was set."""
    return any(
        _is_silent(name, facts)
        and name not in facts.without_power
        and (name not in cut_at or cut_at[name] < mark.begun_at)
        for name in mark.attempt_nodes
    )


def _is_silent(name: NodeName, facts: ClusterFacts) -> bool:
    return name not in facts.nodes or not facts.nodes[name].is_responding
