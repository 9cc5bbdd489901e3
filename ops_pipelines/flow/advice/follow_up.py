"""Was advice followed: the same subject's measure in the two weeks after, beside the week that it was given for."""

from ops_pipelines.core.periods import WEEK, Week
from ops_pipelines.domain.advice.advice import OF_STORAGE, AdviceKind
from ops_pipelines.domain.advice.following import Followed, Outcome, judge_following
from ops_pipelines.domain.advice.judging import measure
from ops_pipelines.flow.advice.evidence import Evidence, OnStep, read_evidence, silent
from ops_pipelines.flow.advice.kept import Told, keep_outcomes, told_in
from ops_pipelines.flow.advice.report import FollowedUp
from ops_pipelines.teams.desk import TeamsDesk

AFTER_WEEKS = 2


def week_to_follow(week: Week) -> Week:
    """Return the week whose advice can be followed up when this one is over."""
    return Week(start=week.start - AFTER_WEEKS * WEEK)


def follow_up(given: Week, desk: TeamsDesk, *, on_step: OnStep = silent) -> tuple[FollowedUp, ...]:
    """Return and keep what became of what teams were told at the end of `given`. Raises LakeError.

    Raises ValueError while the two weeks after it are not over.
    """
    until = given.end + AFTER_WEEKS * WEEK
    if desk.clock.now() < until:
        raise ValueError(f"the advice of {given.name} is followed up from {until:%Y-%m-%d} on; ask again then")
    told = told_in(given, desk)
    if not told:
        return ()
    evidence = read_evidence(desk, since=given.end, until=until, on_step=on_step)
    found = tuple(
        FollowedUp(
            team=each.team,
            kind=each.kind,
            subject=each.subject,
            measure_before=each.measure,
            outcome=_of_storage(each, evidence, desk) if each.kind in OF_STORAGE else _of_jobs(each, evidence, desk),
        )
        for each in told
    )
    keep_outcomes(given, found, desk)
    return found


def _of_jobs(told: Told, evidence: Evidence, desk: TeamsDesk) -> Outcome:
    work = next((each for each in evidence.works if (each.team, each.subject) == (told.team, told.subject)), None)
    held = 0.0 if work is None else work.held_gpu_hours
    return judge_following(
        measure_before=told.measure,
        measure_after=None if work is None else measure(told.kind, work, desk.advice, failures=evidence.failures),
        expected_gpu_hours=told.expected_gpu_hours,
        held_before_gpu_hours=told.held_gpu_hours,
        held_after_gpu_hours=held,
        settings=desk.advice,
    )


def _of_storage(told: Told, evidence: Evidence, desk: TeamsDesk) -> Outcome:
    """Return what became of files: a directory that the listing no longer has is gone."""
    if evidence.groups is None:
        return Outcome(followed=Followed.UNKNOWN, measure_after=None, saved_gpu_hours=0.0)
    is_checkpoints = told.kind is AdviceKind.STALE_CHECKPOINTS
    left = sum(
        each.old_size_bytes
        for each in evidence.groups
        if (each.team, each.path, each.is_checkpoints) == (told.team, told.subject, is_checkpoints)
    )
    is_followed = left <= told.measure * desk.advice.followed_ratio
    return Outcome(
        followed=Followed.FOLLOWED if is_followed else Followed.NOT_FOLLOWED,
        measure_after=float(left),
        saved_gpu_hours=0.0,
    )
