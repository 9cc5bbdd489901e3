"""The reliability review of one week: all of it as one value, gathered from the ledger and the lake.

Gathers; what numbers mean is `week_incidents`', `week_acts`' and `week_work`'s. A week that is not over is reviewed up
to now.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.cluster import HOUR, Cluster, Observatory, hour_of
from ops_pipelines.core.identity import ActionKey, IncidentId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.objectives import WINDOW, Budget, Objective, ObjectiveKind
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.overlap import Overlap
from ops_pipelines.core.periods import Week
from ops_pipelines.core.sources import Lake, SourceError
from ops_pipelines.diagnose.lemons import LemonScore
from ops_pipelines.review.cost import RecentRemediation, remediation_of
from ops_pipelines.review.week_acts import (
    ActLine,
    PeopleLine,
    WrongAct,
    acts_of,
    entries_between,
    people_of,
    wrong_acts,
)
from ops_pipelines.review.week_incidents import (
    ComponentLine,
    CoverageLine,
    PhaseLine,
    components_of,
    coverage_of,
    failures_in,
    overlaps_in,
    phases_of,
    repairs_in,
    score_fleet,
)
from ops_pipelines.review.week_work import JobHistory, judge_objectives, read_job_history

if TYPE_CHECKING:
    from ops_pipelines.diagnose.trouble_rows import Presence
    from ops_pipelines.review.job_runs import Break, Cause, LatencyMinute
    from ops_pipelines.review.week_acts import Work
    from ops_pipelines.review.week_incidents import MeanTime, Rate

LEMON_DAYS = 28
_CHECKS_PER_NODE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekNumbers:
    """What is counted of a week, so that it can be laid beside the one before."""

    week: Week
    until: datetime
    """The end of what is reviewed: the week's, or now."""
    presence: "Presence"
    breaks: "tuple[Break, ...]"
    """Interruptions that fell into the week, by their times; preempted ones too."""
    interruptions: "Rate"
    """Without preemptions, over node-hours."""
    work: "Work"
    failure_count: int
    """Incidents that a part is to blame for."""
    repairs: "MeanTime | None"
    """Of the repairs that ended in the week, of whatever part."""
    saved_gpu_hours: float
    uncounted_saving_count: int
    wrong: tuple[WrongAct, ...]
    acts: tuple[ActLine, ...]
    people: tuple[PeopleLine, ...]
    overlaps: tuple[Overlap, ...] = ()
    """Where two copies of a job ran at once, or may have."""
    hours: frozenset[datetime] = frozenset()
    """Hours of the week of which the accounting has anything."""

    @property
    def days(self) -> float:
        """Days of the week that are over."""
        return (self.until - self.week.start) / timedelta(days=1)

    @property
    def is_on_record(self) -> bool:
        """Whether the lake has anything of it: else no number of it is worth comparing with."""
        return bool(self.hours or self.presence.hour_count)

    @property
    def interruptions_per_day(self) -> float | None:
        """Over the days of which the accounting has anything; None with less than one: that is no rate a day."""
        days = len(self.hours) / 24
        return self.interruptions.event_count / days if days >= 1 else None

    @property
    def person_count(self) -> int:
        """How often a person acted or was paged."""
        return sum(each.count for each in self.people)

    def count_by_cause(self) -> "Mapping[Cause, int]":
        """Return how many interruptions each cause made; they add up to all of `breaks`."""
        from ops_pipelines.review.job_runs import Cause

        return {cause: sum(each.cause is cause for each in self.breaks) for cause in Cause}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeeklyReview:
    """One week, and the one before it."""

    cluster: str
    made_at: datetime
    numbers: WeekNumbers
    before: WeekNumbers
    components: tuple[ComponentLine, ...]
    phases: tuple[PhaseLine, ...]
    lemons: tuple[LemonScore, ...]
    judged_part_count: int
    budgets: tuple[Budget, ...]
    coverage: tuple[CoverageLine, ...]
    missing: tuple[str, ...]
    """What could not be reported, in words: none of it is in any number."""

    @property
    def week(self) -> Week:
        return self.numbers.week

    @property
    def is_over(self) -> bool:
        return self.numbers.until >= self.week.end


@dataclass(kw_only=True)
class _Known:
    """What was read once, for both weeks and all objectives."""

    jobs: tuple[JobStatus, ...]
    incidents: tuple[Incident, ...]
    records: Mapping[IncidentId, Sequence[ActionRecord]]
    verdicts: Mapping[ActionKey, bool]
    history: JobHistory
    savings: RecentRemediation
    missing: list[str] = field(default_factory=list)


def review_week(
    week: Week,
    cluster: Cluster,
    observatory: Observatory,
    *,
    on_step: Callable[[str], None] = lambda _: None,
) -> WeeklyReview:
    """Return the review of a week. Raises ValueError for one that has not started, LakeError and LedgerError.

    A scheduler that does not answer is reported and costs only what it alone knows. `on_step` receives what is read
    next.
    """
    now = cluster.clock.now()
    if week.start >= now:
        raise ValueError(f"{week.name} has not started; expected a week up to {now:%Y-%m-%d}")
    until = min(week.end, now)
    on_step("incidents and jobs")
    known = _read(week, until, cluster, observatory, now=now)
    lake, ledger = observatory.lake, cluster.ledger
    on_step("inventory of two weeks")
    numbers = _numbers(week, until, known, lake, ledger)
    before = _numbers(week.before, week.start, known, lake, ledger)
    on_step("latencies")
    minutes = _latencies(observatory.objectives, lake, until=until)
    on_step("lemons of four weeks")
    end = hour_of(until - timedelta(microseconds=1)) + HOUR
    scores = score_fleet(
        lake, ledger, known.jobs, cluster.rules.catalogue, since=end - timedelta(days=LEMON_DAYS), until=end
    )
    on_step("coverage")
    return WeeklyReview(
        cluster=cluster.name,
        made_at=now,
        numbers=numbers,
        before=before,
        components=components_of(
            known.incidents,
            since=week.start,
            until=until,
            node_hours=numbers.presence.node_hours,
            gpu_hours=numbers.presence.gpu_hours,
        ),
        phases=phases_of(known.incidents, known.records, since=week.start, until=until),
        lemons=scores.lemons,
        judged_part_count=scores.judged_count,
        budgets=judge_objectives(
            observatory.objectives,
            known.history.stints,
            known.history.breaks,
            known.history.waited,
            minutes,
            until=until,
        ),
        coverage=tuple(
            coverage_of(numbers.breaks, numbers.presence, numbers.hours, lake, since=week.start, until=until)
        ),
        missing=(*known.missing, *_missing(numbers, before, observatory.objectives)),
    )


def _read(week: Week, until: datetime, cluster: Cluster, observatory: Observatory, *, now: datetime) -> _Known:
    missing = []
    try:
        jobs = cluster.scheduler.read_jobs()
    except SourceError as problem:
        jobs = ()
        missing.append(f"what waits now, and what running jobs are: the scheduler did not answer ({problem})")
    ledger = cluster.ledger
    since = week.before.start
    # An incident that closed before the weeks began ended no attempt within them.
    incidents = tuple(each for each in ledger.incidents_since(since) if each.opened_at < until)
    records = {each.incident: ledger.records(each.incident) for each in incidents}
    work_since = min(since, until - WINDOW) if observatory.objectives else since
    history = read_job_history(
        observatory.lake,
        since=work_since,
        until=until,
        now=now,
        jobs=jobs,
        read_comment=observatory.read_comment,
        incidents=incidents,
        records=records,
        facts_since=since,
        edges=(week.start,),
    )
    return _Known(
        jobs=tuple(jobs),
        incidents=incidents,
        records=records,
        verdicts=_verdicts(records, ledger),
        history=history,
        savings=remediation_of(incidents, ledger),
        missing=missing,
    )


def _verdicts(records: Mapping[IncidentId, Sequence[ActionRecord]], ledger: Ledger) -> Mapping[ActionKey, bool]:
    """Return whether the tests that acts asked for found their nodes well."""
    nodes = {
        each.action.node
        for listed in records.values()
        for each in listed
        if each.action.verb is Verb.CHECK and each.action.node is not None
    }
    return {
        check.key: is_well for node in sorted(nodes) for check, is_well in ledger.checks(node, limit=_CHECKS_PER_NODE)
    }


def _numbers(week: Week, until: datetime, known: _Known, lake: Lake, ledger: Ledger) -> WeekNumbers:
    from ops_pipelines.diagnose.trouble_rows import COLUMNS, presence_of
    from ops_pipelines.review.job_runs import FAILURES
    from ops_pipelines.review.week_acts import sum_work
    from ops_pipelines.review.week_incidents import rate_of

    since = week.start
    hours = [since + number * HOUR for number in range(-(-(until - since) // HOUR))]
    presence = presence_of(
        ((hour, lake.read("inventory", start=hour, end=hour + HOUR, columns=COLUMNS)) for hour in hours),
        since=since,
        until=until,
    )
    breaks = tuple(
        sorted(
            (each for each in known.history.breaks if since <= each.ended_at < until),
            key=lambda each: (each.ended_at, each.stint.job),
        )
    )
    decided = [each for each in known.savings.savings if since <= each.decided_at < until]
    return WeekNumbers(
        week=week,
        until=until,
        presence=presence,
        breaks=breaks,
        interruptions=rate_of(sum(each.cause in FAILURES for each in breaks), exposure_hours=presence.node_hours),
        work=sum_work(known.history.stints, known.history.breaks, since=since, until=until),
        repairs=repairs_in(known.incidents, since=since, until=until),
        failure_count=len(failures_in(known.incidents, since=since, until=until)),
        saved_gpu_hours=sum((each.saved_gpu_hours for each in decided), 0.0),
        uncounted_saving_count=sum(since <= at < until for at in known.savings.uncounted_at),
        wrong=wrong_acts(
            known.incidents,
            known.records,
            known.verdicts,
            gpus_of_node=presence.gpus_of_node,
            since=since,
            until=until,
        ),
        acts=acts_of(known.records, since=since, until=until),
        people=people_of(entries_between(ledger, since=since, until=until), known.records, since=since, until=until),
        overlaps=overlaps_in(known.incidents, since=since, until=until),
        hours=frozenset(each for each in known.history.hours if since <= each < until),
    )


def _latencies(objectives: Sequence[Objective], lake: Lake, *, until: datetime) -> "tuple[LatencyMinute, ...]":
    from ops_pipelines.review.job_runs import COLUMNS, latency_minutes

    if not any(each.kind is ObjectiveKind.INFERENCE_P99 for each in objectives):
        return ()
    start = hour_of(until - WINDOW)
    hours = [start + number * HOUR for number in range(-(-(until - start) // HOUR))]
    return tuple(
        latency_minutes(
            lake.read("application_telemetry", start=hour, end=hour + HOUR, columns=COLUMNS) for hour in hours
        )
    )


def _missing(numbers: WeekNumbers, before: WeekNumbers, objectives: Sequence[Objective]) -> Iterator[str]:
    if not numbers.presence.hour_count:
        yield "rates: the lake has no inventory of the week, so nobody knows how many parts there were to fail"
    if not numbers.hours:
        yield "interruptions and effective training time: the lake has no accounting of the week"
    total = numbers.work.total
    if total.unknown_break_count:
        yield (
            f"the loss of {total.unknown_break_count} attempt(s): no checkpoint is known before their end, or nobody "
            "saw when work continued; a comment such as ckpt=PATH, or job logs, tell of both"
        )
    unexplained = sum(not each.incident and each.cause.value == "unknown" for each in numbers.breaks)
    if unexplained:
        yield f"the cause of {unexplained} interruption(s): no incident explains them"
    if numbers.uncounted_saving_count:
        yield f"savings on {numbers.uncounted_saving_count} job(s): their loss at another moment was not computed"
    if not before.is_on_record:
        yield f"change against {before.week.name}: the lake has nothing of it"
    if not objectives:
        yield "error budgets: cluster.yaml declares no objectives (section `objectives`, docs/REPORTS.md)"
