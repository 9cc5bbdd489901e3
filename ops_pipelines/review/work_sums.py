"""Attempts and interruptions -> how much of the time that jobs wanted to run was work that lasted.

Effective training time after Meta (arXiv 2410.21680, section II-D): of the time that a job ran or waited after an
interruption, the share that was productive; not productive is work since the last checkpoint that an interruption
threw away, and each restart until work goes on. Unlike Meta's, it leaves out the wait for a job's first start, which
the queue-wait objectives tell of. All of it weighs by GPUs. What is not known stands apart, never in either side.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ops_pipelines.review.job_runs import Break, Cause, Stint

ASSUMED_RESTART = timedelta(minutes=10)
"""A restart that nobody saw may have taken so long. # Assumption: the upper end of what large jobs need to load."""
_NOTHING = timedelta(0)
_TELLING = 0.01
"""Up to this share that is not known one number may stand for both bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSum:
    """GPU-hours that were wanted in a stretch, and what became of them. The parts add up to `wanted`."""

    productive: float = 0.0
    lost: float = 0.0
    """Work that an interruption threw away."""
    restart: float = 0.0
    queue: float = 0.0
    """Waits after interruptions."""
    unknown: float = 0.0
    """Ran, and may have been lost: no checkpoint is known, or the restart was not seen."""
    job_count: int = 0
    break_count: int = 0
    unknown_break_count: int = 0
    """Interruptions of which the loss or the restart is not known."""

    @property
    def wanted(self) -> float:
        return self.productive + self.lost + self.restart + self.queue + self.unknown

    @property
    def low_ratio(self) -> float | None:
        """Effective time if all that is not known was lost; None where nothing was wanted."""
        return self.productive / self.wanted if self.wanted > 0 else None

    @property
    def high_ratio(self) -> float | None:
        """Effective time if none of it was."""
        return (self.productive + self.unknown) / self.wanted if self.wanted > 0 else None

    @property
    def effective_ratio(self) -> float | None:
        """Effective time, what is not known counted as lost; None where so much is not known that it tells nothing."""
        is_known = self.wanted > 0 and self.unknown <= _TELLING * self.wanted
        return self.low_ratio if is_known else None

    def plus(self, other: "WorkSum") -> "WorkSum":
        """Return both together."""
        names = self.__dataclass_fields__
        return WorkSum(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a stretch: by team, and what each cause took."""

    by_team: Mapping[str, WorkSum] = field(default_factory=dict)
    by_cause: Mapping[Cause, float] = field(default_factory=dict)
    """GPU-hours lost, restarting or waiting; they add up to these parts of all teams."""

    @property
    def total(self) -> WorkSum:
        sums = WorkSum()
        for each in self.by_team.values():
            sums = sums.plus(each)
        return sums


def sum_work(stints: Iterable[Stint], breaks: Iterable[Break], *, since: datetime, until: datetime) -> Work:
    """Return what became of the time that `stints` wanted in [since, until), with everything cut at its edges.

    Attempts without GPUs weigh nothing and are left out.
    """
    ended = {(each.stint.job, each.stint.started_at): each for each in breaks}
    resumed = {(each.stint.job, each.resumed_at): each for each in ended.values() if each.resumed_at is not None}
    by_job: dict[tuple[str, str], WorkSum] = {}
    by_cause = dict.fromkeys(Cause, 0.0)

    def add(stint: Stint, part: WorkSum) -> None:
        key = (stint.team, stint.job)
        by_job[key] = by_job.get(key, WorkSum()).plus(part)

    free_from: dict[str, datetime] = {}
    for stint in sorted(stints, key=lambda each: (each.job, each.started_at)):
        if stint.gpu_count <= 0:
            continue
        # Attempts of one job that overlap cannot all be right: the same time counts once.
        begin = max(stint.started_at, free_from.get(stint.job, stint.started_at))
        end = stint.ended_at or max(begin, min(until, stint.seen_until or begin))
        free_from[stint.job] = max(end, begin)
        own = ended.get((stint.job, stint.started_at))
        before = resumed.get((stint.job, stint.started_at))
        cut = _cut_stint(begin, end, own, before, since=since, until=until)
        weight = stint.gpu_count / 3600
        add(stint, _weighed(cut, weight, own=own, before=before, since=since, until=until))
        if own is not None:
            by_cause[own.cause] += cut.lost.total_seconds() * weight
            queue = _queue(own, since=since, until=until).total_seconds() * weight
            by_cause[own.cause] += queue
            add(stint, WorkSum(queue=queue))
        if before is not None:
            by_cause[before.cause] += cut.restart.total_seconds() * weight
    by_team: dict[str, WorkSum] = {}
    for (team, _), part in by_job.items():
        if part.wanted <= 0:
            continue
        by_team[team] = by_team.get(team, WorkSum()).plus(part).plus(WorkSum(job_count=1))
    return Work(by_team=dict(sorted(by_team.items())), by_cause=by_cause)


@dataclass(frozen=True, slots=True)
class _Cut:
    running: timedelta
    lost: timedelta
    restart: timedelta
    unknown: timedelta


def _cut_stint(
    begin: datetime, end: datetime, own: Break | None, before: Break | None, *, since: datetime, until: datetime
) -> _Cut:
    """Return how the time of one attempt divides: thrown away at its end, restarting at its beginning, not known."""
    lost_from = end
    unsure_until = begin
    if own is not None and own.saved_nothing:
        lost_from = begin
    elif own is not None and own.checkpointed_at is not None:
        lost_from = min(max(own.checkpointed_at, begin), end)
    elif own is not None:
        unsure_until = end
    restart_until = begin
    if before is not None and before.restart is not None:
        restart_until = min(begin + before.restart, lost_from)
    elif before is not None:
        unsure_until = max(unsure_until, min(begin + ASSUMED_RESTART, lost_from))
    return _Cut(
        running=_overlap(begin, end, since, until),
        lost=_overlap(lost_from, end, since, until),
        restart=_overlap(begin, restart_until, since, until),
        unknown=_overlap(restart_until, min(unsure_until, lost_from), since, until),
    )


def _weighed(
    cut: _Cut, weight: float, *, own: Break | None, before: Break | None, since: datetime, until: datetime
) -> WorkSum:
    spare = cut.running - cut.lost - cut.restart - cut.unknown
    ends_here = own is not None and since <= own.ended_at < until
    is_unsure = (own is not None and not own.is_loss_known) or (before is not None and before.restart is None)
    return WorkSum(
        productive=spare.total_seconds() * weight,
        lost=cut.lost.total_seconds() * weight,
        restart=cut.restart.total_seconds() * weight,
        unknown=cut.unknown.total_seconds() * weight,
        break_count=int(ends_here),
        unknown_break_count=int(is_unsure and cut.unknown > _NOTHING),
    )


def _queue(each: Break, *, since: datetime, until: datetime) -> timedelta:
    if each.resumed_at is not None:
        return _overlap(each.waits_from or each.ended_at, each.resumed_at, since, until)
    return _overlap(each.ended_at, until, since, until) if each.waits_on else _NOTHING


def queue_of(each: Break, *, since: datetime, until: datetime) -> timedelta:
    """Return how much of [since, until) a job waited after an interruption; nothing where no one knows that it did."""
    return _queue(each, since=since, until=until)


def _overlap(begin: datetime, end: datetime, since: datetime, until: datetime) -> timedelta:
    return max(_NOTHING, min(end, until) - max(begin, since))
