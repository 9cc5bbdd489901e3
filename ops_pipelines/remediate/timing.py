"""When to interrupt a job: now, at its next checkpoint, when it ends, or never; by least expected loss.

What was declared or seen is taken; what is not known is bounded from above, never guessed as fresh.

Pure arithmetic over what was measured: the age of the checkpoint, how long a restart and the queue take, and the hazard
of the fault. Unknown stays unknown: a checkpoint of unknown age is never counted as fresh. Integrals are
`core.finding`'s, what is known of checkpoints `checkpoint_forecast`'s.

Longer than other modules: the values, the rules and the arithmetic of one decision are read together.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, Family, FirstAction
from ops_pipelines.core.finding import (
    ISOLATED_FOR,
    REPAIRS,
    UNKNOWN_HAZARD,
    Finding,
    Hazard,
    Response,
    seconds_until_strike,
    strike_probability,
    work_struck,
    work_struck_between_checkpoints,
)
from ops_pipelines.core.identity import JobAttempt
from ops_pipelines.core.observation import Checkpointing, JobStatus, Signal, Workload
from ops_pipelines.core.plan import JobTiming, Moment, Option, RestartCosts
from ops_pipelines.core.policy import RecoveryLimits

# -- what a job has at stake and when its work is saved next --


_USUAL_SECONDS = (300.0, 600.0, 1_200.0, 2_400.0, 5_400.0, 10_800.0)
"""Distances of checkpoints, taken as equally usual: from 5 minutes (Meta RSC, arXiv 2410.21680) over half an hour
(ByteRobust, arXiv 2509.16293) and an hour (Meta RSC) to 3 hours (BLOOM chronicle), about evenly on a log scale."""
_SEEN_COUNT, _DECLARED_COUNT = 4, 5
"""Of so many jobs that declare checkpoints, those of so many can be seen. Assumption."""
_COMES = 0.95
"""How likely a checkpoint comes that is due. Assumption: one in twenty is late or fails."""
LATE_RATIO = 0.25
"""A checkpoint is missed when it is late by this share of the interval: saves take longer under load. Assumption."""
_SHORTEST_REST_SECONDS = 600.0
_THIRDS = (1 / 6, 1 / 2, 5 / 6)
"""The middles of the thirds of what is spread evenly from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSave:
    """One way in which it may continue: the next checkpoint, and how far apart they are from then on."""

    probability: float
    in_seconds: float
    every_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointForecast:
    """A job's unsaved work and its next checkpoint."""

    unsaved_seconds: float
    """Work that an interruption now destroys; a bound from above unless `is_age_known`."""
    is_age_known: bool
    nexts: tuple[NextSave, ...]
    """Their probabilities sum to 1; empty where checkpoints were neither seen nor declared: none is waited for."""
    comes_probability: float
    """How likely one that is due is seen."""

    @property
    def next_in_seconds(self) -> float:
        """The expected wait for the next one; 0 if none is waited for."""
        return sum(each.probability * each.in_seconds for each in self.nexts)

    @property
    def every_seconds(self) -> float:
        """The expected distance between them; 0 if none is waited for."""
        return sum(each.probability * each.every_seconds for each in self.nexts)


def forecast_checkpoints(job: JobStatus, *, now: datetime) -> CheckpointForecast:
    """Return what is at stake and when it is saved next. A checkpoint of the future counts as one of this moment.

    The start of the attempt bounds the unsaved work: what came before it was saved, or is lost already. An interval
    that is unknown is one of those that others published: each by how likely it would show this age, which is
    1 / interval for those that are longer; none that is longer than what lay between the start and the checkpoint.
    """
    elapsed = elapsed_seconds(job, now=now)
    if job.workload is Workload.INFERENCE:
        return CheckpointForecast(unsaved_seconds=0.0, is_age_known=True, nexts=(), comes_probability=0.0)
    declared = max(0.0, job.checkpoint_every.total_seconds()) if job.checkpoint_every is not None else 0.0
    is_saving = job.checkpointing is Checkpointing.YES or job.checkpointed_at is not None or declared > 0
    if job.checkpointing is Checkpointing.NO or not is_saving:
        is_known = job.checkpointing is Checkpointing.NO
        return CheckpointForecast(unsaved_seconds=elapsed, is_age_known=is_known, nexts=(), comes_probability=0.0)
    if job.checkpointed_at is None:
        return _never_seen(elapsed, declared=declared)
    since_checkpoint = max(0.0, (now - job.checkpointed_at).total_seconds())
    unsaved = min(since_checkpoint, elapsed)
    before_seconds = elapsed - since_checkpoint if since_checkpoint < elapsed else math.inf
    if not declared:
        usual = [each for each in _USUAL_SECONDS if unsaved <= each <= before_seconds * (1 + LATE_RATIO)]
        if usual:
            return CheckpointForecast(
                unsaved_seconds=unsaved,
                is_age_known=True,
                nexts=_weighted([(every - unsaved, every) for every in usual]),
                comes_probability=_COMES,
            )
        declared = max(1.0, min(2 * unsaved, before_seconds))
    missed = math.floor(max(0.0, unsaved / declared - LATE_RATIO))
    # What is only a little late is still on its way; what has been missed is due again at the next full interval.
    is_late = declared <= unsaved < (1 + LATE_RATIO) * declared
    wait = LATE_RATIO * declared if is_late else declared - unsaved % declared
    return CheckpointForecast(
        unsaved_seconds=unsaved,
        is_age_known=True,
        nexts=(NextSave(probability=1.0, in_seconds=wait, every_seconds=declared),),
        comes_probability=_COMES if missed == 0 else 1 / (missed + 1),
    )


def elapsed_seconds(job: JobStatus, *, now: datetime) -> float:
    """Return how long the present attempt has run; 0 if it never ran."""
    return 0.0 if job.started_at is None else max(0.0, (now - job.started_at).total_seconds())


def remaining_seconds(job: JobStatus, *, now: datetime) -> tuple[float, ...]:
    """Return how long the job may continue by itself, each as likely: to its time limit, if it has one.

    Without one by Lindy's law: it has the chance a / (a + t) to continue for t more after a. Returned are the middles
    of that distribution's thirds: a fifth of, as much as, and five times what it has run.
    """
    if job.ends_by is not None:
        return (max(0.0, (job.ends_by - now).total_seconds()),)
    elapsed = max(_SHORTEST_REST_SECONDS, elapsed_seconds(job, now=now))
    return tuple(elapsed * quantile / (1 - quantile) for quantile in _THIRDS)


def _never_seen(elapsed: float, *, declared: float) -> CheckpointForecast:
    """Declared and not seen: the more of them should have been seen, the less is the next one to be relied upon.

    By the rule of succession: after n that were not seen, the next is with `_SEEN_COUNT` / (n + `_DECLARED_COUNT`).
    """
    if declared and elapsed < declared:
        nexts, unseen_count = _weighted([(declared - elapsed, declared)]), 0.0
    elif declared:
        nexts, unseen_count = _weighted([(declared * share, declared) for share in _THIRDS]), elapsed // declared
    else:
        nexts = _weighted([(every / 2, every) for every in _USUAL_SECONDS])
        unseen_count = elapsed // sum(each.probability * each.every_seconds for each in nexts)
    return CheckpointForecast(
        unsaved_seconds=elapsed,
        is_age_known=False,
        nexts=nexts,
        comes_probability=_SEEN_COUNT / (unseen_count + _DECLARED_COUNT),
    )


def _weighted(waits: list[tuple[float, float]]) -> tuple[NextSave, ...]:
    """Return ways to continue, (wait, interval), each as likely as its interval shows a given age."""
    total = sum(1 / every for _, every in waits)
    return tuple(NextSave(probability=1 / every / total, in_seconds=wait, every_seconds=every) for wait, every in waits)


# -- when to interrupt a job --


_TAKEN_OUT_FOR = DESTRUCTIVE_ACTIONS | ISOLATED_FOR


def hazard_of(findings: Collection[Finding], hazards: Sequence[Hazard]) -> Hazard:
    """Return the worst that an incident's own findings predict; damage of something else predicts nothing.

    Findings count that call for a repair, or for a step that takes the node out of service. Of one GPU the driver's
    newest verdict outranks what tables say of whatever was found before it, as it does for the response. That something
    came often convicts the part and says nothing of the job that runs now: it counts as a fault of which nothing is
    known, and so does an incident without such findings.
    """
    own = [
        each
        for each in findings
        if not each.is_secondary and (each.response in REPAIRS or each.first_action in _TAKEN_OUT_FOR)
    ]
    foretold = [_row_for(each, hazards) for each in own if not _is_outranked(each, own)]
    return max(foretold or [_row(None, None, hazards)], key=_severity)


def choose_moment(
    job: JobStatus,
    *,
    hazard: Hazard,
    costs: RestartCosts,
    has_room: bool,
    limits: RecoveryLimits,
    moved_count: int,
    is_still_serving: bool,
    noticed_at: datetime | None,
    now: datetime,
) -> JobTiming:
    """Return when to interrupt a job that runs under a fault: the moment of least expected lost GPU-hours.

    Per GPU, in seconds, with u the unsaved work, M = restart + queue what a move takes, D how long a job that the fault
    has ended is idle before that is noticed, s the slowdown, and S a strike at a constant rate:

    - NOW:              u + M
    - NEXT_CHECKPOINT:  over the waits w that are likely: M + s * E[min(S, w)] + P(S < w) * D + E[unsaved at S; S < w];
                        where none is seen by `until`, w ends there, and the work unsaved by then is lost as well
    - JOB_END:          s * E[min(S, T)] + P(S < T) * (D + M) + E[unsaved at S; S < T], T what remains of the job

    T is the time until the time limit; without one it is estimated from how long the job has run (Lindy's law). An age
    that is unknown counts as the whole attempt. Under a hazard that is infinite nothing is waited for.

    Rules come before arithmetic: a job that may not be requeued, keeps no checkpoints or was moved
    `limits.max_requeues_count` times is never interrupted; an interactive session is, after a notice; a replica only
    while its service keeps the replicas that it needs. Neither of these two saves by checkpoints, so having none
    forbids nothing. Never raises.
    """
    forecast = forecast_checkpoints(job, now=now)
    case = _Case(
        job=job,
        forecast=forecast,
        rate=math.inf if hazard.has_ended_job else _positive(hazard.ends_job_per_hour) / 3600,
        slowdown=min(1.0, _positive(hazard.slowdown_ratio)),
        move_seconds=_positive(costs.restart_seconds)
        + _positive(costs.queue_seconds if has_room else costs.no_room_queue_seconds),
        wait_limit_seconds=limits.checkpoint_wait.total_seconds(),
        now=now,
    )
    forbidden = _why_never(job, limits=limits, moved_count=moved_count)
    if forbidden:
        return case.timing(Moment.NEVER, (), reason=forbidden)
    if job.workload is Workload.INTERACTIVE:
        until = (noticed_at or now) + limits.interactive_notice
        reason = f"an interactive session: its owner has until {until:%Y-%m-%d %H:%M:%S} UTC to save"
        return case.timing(Moment.AFTER_NOTICE, (case.after_notice(),), reason=reason, until=until)
    if job.workload is Workload.INFERENCE and not is_still_serving:
        reason = f"minimum serves no more if this replica{_of(job.service)} is moved: it stays until others serve"
        return case.timing(Moment.JOB_END, (), reason=reason)
    return case.decide()


def is_moment(timing: JobTiming, job: JobStatus | None, *, noticed_at: datetime | None, now: datetime) -> bool:
    """Return whether the hold of a job may begin now. `job` is None where the scheduler does not know it any more.

    False of JOB_END and NEVER, whatever happened: there is no hold. An attempt that is over is waited for no longer.
    NEXT_CHECKPOINT asks for a checkpoint newer than the one that was known, complete and not of the future; where none
    was known, one that is newer than the decision. A notice counts from when it was given: without one nobody had time
    to save.
    """
    if timing.moment in (Moment.JOB_END, Moment.NEVER):
        return False
    if timing.moment is Moment.NOW or job is None or job.attempt != timing.attempt:
        return True
    if timing.moment is Moment.AFTER_NOTICE:
        if noticed_at is None or timing.until is None:
            return False
        return now >= timing.until + max(timedelta(0), noticed_at - timing.decided_at)
    if timing.until is None or now >= timing.until:
        return True
    known_at = timing.checkpointed_at if timing.checkpointed_at is not None else timing.decided_at
    return job.checkpointed_at is not None and known_at < job.checkpointed_at <= now


_DETECTION_SECONDS = 90.0
"""From the end of a job by the fault to its restart being started. One failure in eight shows as a hang (ByteRobust,
arXiv 2509.16293), which NCCL ends after ten minutes; the others show at our next look. Derived: 0.125 * 600 +
0.875 * 15."""
_SHORTEST_SLACK_SECONDS = 60.0
"""How much longer than expected a checkpoint is waited for at least. Assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One job under one fault; times in seconds, the rate in strikes a second."""

    job: JobStatus
    forecast: CheckpointForecast
    rate: float
    slowdown: float
    move_seconds: float
    wait_limit_seconds: float
    now: datetime

    def decide(self) -> JobTiming:
        """Return the cheapest of the moments that are open; of equals the least invasive."""
        move = _words(self.move_seconds)
        unsaved = self.forecast.unsaved_seconds
        bound = "" if self.forecast.is_age_known else "at most "
        lost = f"{bound}{_words(unsaved)} of work lost, then {move} to run again"
        if math.isinf(self.rate):
            only = (self._option(Moment.NOW, unsaved + self.move_seconds, lost),)
            return self.timing(Moment.NOW, only, reason="it is dead or hangs already: nothing is waited for")
        found: list[tuple[float, Moment, str]] = []
        # A service has no end: to wait for it would keep its node out for ever.
        if self.job.workload is not Workload.INFERENCE or self.job.ends_by is not None:
            found.append((self._job_end(), Moment.JOB_END, "continues under the fault to its end"))
        waited = self._next_checkpoint()
        until = None
        if waited is not None:
            expected = _words(self.forecast.next_in_seconds)
            found.append((waited[0], Moment.NEXT_CHECKPOINT, f"due in {expected}, then {move} to run again"))
            until = self.now + timedelta(seconds=waited[1])
        found.append((unsaved + self.move_seconds, Moment.NOW, lost))
        found.sort(key=lambda each: each[0])
        options = tuple(self._option(moment, cost, why) for cost, moment, why in found)
        best = options[0].moment
        return self.timing(
            best, options, reason=_compare(options), until=until if best is Moment.NEXT_CHECKPOINT else None
        )

    def after_notice(self) -> Option:
        return self._option(Moment.AFTER_NOTICE, self.move_seconds, "a move, once its owner could save")

    def timing(
        self, moment: Moment, options: tuple[Option, ...], *, reason: str, until: datetime | None = None
    ) -> JobTiming:
        return JobTiming(
            attempt=self.job.attempt or JobAttempt(job=self.job.job, started_at=self.now),
            moment=moment,
            options=options,
            decided_at=self.now,
            checkpointed_at=self.job.checkpointed_at,
            until=until,
            reason=reason,
        )

    def _option(self, moment: Moment, seconds: float, why: str) -> Option:
        return Option(moment=moment, lost_gpu_hours=seconds * max(0, self.job.gpu_count) / 3600, why=why)

    def _job_end(self) -> float:
        rests = remaining_seconds(self.job, now=self.now)
        return sum(map(self._until, rests)) / len(rests)

    def _until(self, rest: float) -> float:
        """Return the cost of continuing to the end of the job, which comes after `rest`."""
        unsaved = self.forecast.unsaved_seconds
        if self.job.workload is Workload.INFERENCE:
            struck = 0.0
        elif self.forecast.nexts:
            struck = work_struck_between_checkpoints(
                self.rate,
                unsaved_seconds=unsaved,
                next_in_seconds=self.forecast.next_in_seconds,
                every_seconds=self.forecast.every_seconds,
                seconds=rest,
            )
        else:
            struck = work_struck(self.rate, unsaved_seconds=unsaved, seconds=rest)
        noticed = strike_probability(self.rate, rest) * (_DETECTION_SECONDS + self.move_seconds)
        return struck + noticed + self._slowed(rest)

    def _next_checkpoint(self) -> tuple[float, float] | None:
        """Return what waiting for it costs and how long one waits at most; None if none comes within the limit.

        Tried is to wait for each checkpoint that may come, for the one after it, and to the limit.
        """
        limit = self.wait_limit_seconds
        if all(each.in_seconds > limit for each in self.forecast.nexts):
            return None
        comes = self.forecast.comes_probability
        chances = [
            chance
            for each in self.forecast.nexts
            for chance in (
                (each.in_seconds, each.every_seconds, each.probability * comes),
                (each.in_seconds + each.every_seconds, each.every_seconds, each.probability * (1 - comes) * comes),
            )
        ]
        chances.sort()
        best, cost, missed = (math.inf, limit), 0.0, 1.0
        for wait, every, probability in chances:
            if wait > limit:
                break
            cost += probability * self._waited(wait)
            missed -= probability
            patience = min(limit, wait + max(_SHORTEST_SLACK_SECONDS, LATE_RATIO * every))
            best = min(best, (cost + missed * self._in_vain(patience), patience))
        return min(best, (cost + missed * self._in_vain(limit), limit))

    def _in_vain(self, patience: float) -> float:
        """Return the cost of waiting so long, of seeing no checkpoint, and of moving then."""
        unsaved = self.forecast.unsaved_seconds + patience
        return self._waited(patience) + math.exp(-self.rate * patience) * unsaved

    def _waited(self, seconds: float) -> float:
        """Return the cost of continuing for so long and then moving, if nothing is unsaved at that moment."""
        struck = work_struck(self.rate, unsaved_seconds=self.forecast.unsaved_seconds, seconds=seconds)
        noticed = strike_probability(self.rate, seconds) * _DETECTION_SECONDS
        return self.move_seconds + struck + noticed + self._slowed(seconds)

    def _slowed(self, seconds: float) -> float:
        return self.slowdown * seconds_until_strike(self.rate, seconds)


def _why_never(job: JobStatus, *, limits: RecoveryLimits, moved_count: int) -> str:
    """Return why a job may not be interrupted at all; empty if it may."""
    if not job.is_requeueable:
        return "it may not be requeued"
    if moved_count >= limits.max_requeues_count:
        hours = limits.requeue_window.total_seconds() / 3600
        return f"it was moved {moved_count} time(s) within {hours:g} h; the limit is {limits.max_requeues_count}"
    saves_by_itself = job.workload not in (Workload.INTERACTIVE, Workload.INFERENCE)
    if saves_by_itself and job.checkpointing is Checkpointing.NO:
        return "it keeps no checkpoints: who ends it ends all its work"
    return ""


def _is_outranked(finding: Finding, findings: Collection[Finding]) -> bool:
    """Whether the driver reported something newer of the same GPU; at one moment its word counts, then the worse."""
    if finding.gpu is None:
        return False
    key = _rank(finding)
    return any(each.is_driver_verdict and each.gpu == finding.gpu and _rank(each) > key for each in findings)


def _rank(finding: Finding) -> tuple[datetime, bool, Response]:
    return finding.last_at or finding.found_at, finding.is_driver_verdict, finding.response


def _row_for(finding: Finding, hazards: Sequence[Hazard]) -> Hazard:
    if any(each.signal is Signal.REPEATED for each in finding.evidence):
        return _row(None, None, hazards)
    return _row(finding.family, finding.first_action, hazards)


def _row(family: Family | None, action: FirstAction | None, hazards: Sequence[Hazard]) -> Hazard:
    """Return the row that names most of the two; of equals the worse."""
    fitting = [row for row in hazards if row.family in (None, family) and row.first_action in (None, action)]
    return max(fitting, key=_closeness, default=UNKNOWN_HAZARD)


def _closeness(row: Hazard) -> tuple[int, float, float]:
    return (row.family is not None) + (row.first_action is not None), *_severity(row)


def _severity(hazard: Hazard) -> tuple[float, float]:
    return hazard.ends_job_per_hour, hazard.slowdown_ratio


def _compare(options: Sequence[Option]) -> str:
    best, *others = options
    said = [f"{_MOMENTS[best.moment]} is expected to cost {best.lost_gpu_hours:.2f} GPU-hours: {best.why}"]
    said += [f"{_MOMENTS[each.moment]} {each.lost_gpu_hours:.2f}" for each in others]
    return "; ".join(said)


_MOMENTS = {
    Moment.NOW: "now",
    Moment.NEXT_CHECKPOINT: "at its next checkpoint",
    Moment.JOB_END: "when it ends",
}


def _of(service: str) -> str:
    return f" of {service}" if service else ""


def _words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3600:.1f} h"


def _positive(number: float) -> float:
    return number if number > 0 else 0.0
