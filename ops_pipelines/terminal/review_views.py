"""What `review` and `replay` answer, as values for JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.objectives import Budget
from ops_pipelines.review.replay import proof_sentence, sentences_of
from ops_pipelines.review.replay_result import ComparedAct, Difference, KeyDifference, Lesson, Replay, ReplayedInterval
from ops_pipelines.review.week_acts import WorkSum
from ops_pipelines.review.week_incidents import ComponentLine
from ops_pipelines.review.week_words import five_sentences, per_thousand_node_days
from ops_pipelines.review.weekly_review import WeeklyReview, WeekNumbers

# -- the weekly review as values for JSON --


Row = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewView:
    """One week."""

    cluster: str
    week: str
    since: datetime
    until: datetime
    is_over: bool
    sentences: tuple[str, ...]
    numbers: Row
    before: Row
    work_by_team: Mapping[str, Row]
    objectives: Sequence[Row]
    components: Sequence[Row]
    phases: Sequence[Row]
    lemons: Sequence[Row]
    acts: Sequence[Row]
    wrong_acts: Sequence[Row]
    overlaps: Sequence[Row]
    people: Sequence[Row]
    coverage: Sequence[Row]
    missing: tuple[str, ...]


def view_review(review: WeeklyReview) -> ReviewView:
    """Return the review as `ops-pipelines review --json` prints it."""
    numbers = review.numbers
    return ReviewView(
        cluster=review.cluster,
        week=review.week.name,
        since=review.week.start,
        until=numbers.until,
        is_over=review.is_over,
        sentences=five_sentences(review),
        numbers=_numbers(numbers),
        before=_numbers(review.before),
        work_by_team={team: _work(each) for team, each in numbers.work.by_team.items()},
        objectives=[_budget(each) for each in review.budgets],
        components=[_component(each) for each in review.components],
        phases=[
            {
                "phase": each.phase,
                "count": each.count,
                "median_seconds": _seconds(each.median),
                "longest_seconds": _seconds(each.longest),
                "incident": each.incident,
            }
            for each in review.phases
        ],
        lemons=[{"part": str(each.part), "node": each.node, "reasons": each.reasons} for each in review.lemons],
        acts=[
            {
                "verb": each.verb,
                "begun": each.count,
                "done": each.done,
                "not_needed": each.not_needed,
                "failed": each.failed,
                "unknown": each.unknown,
                "unfinished": each.unfinished,
            }
            for each in numbers.acts
        ],
        wrong_acts=[
            {
                "incident": each.incident,
                "node": each.node,
                "why": each.kind,
                "at": each.at,
                "out_of_service_gpu_hours": each.out_of_service_gpu_hours,
                "moved_job_count": each.moved_job_count,
                "lost_gpu_hours": each.lost_gpu_hours,
                "unknown_loss_count": each.unknown_loss_count,
            }
            for each in numbers.wrong
        ],
        overlaps=[
            {
                "job": each.later.job,
                "user": each.user,
                "began_at": each.later.started_at,
                "ended_at": each.ended_at,
                "certainty": each.certainty,
                "checkpoint": each.checkpoint,
            }
            for each in numbers.overlaps
        ],
        people=[{"what": each.what, "count": each.count, "who": each.who} for each in numbers.people],
        coverage=[
            {"what": each.what, "known": each.known, "expected": each.expected, "unit": each.unit, "ratio": each.ratio}
            for each in review.coverage
        ],
        missing=review.missing,
    )


def _numbers(numbers: WeekNumbers) -> Row:
    rate = numbers.interruptions
    return {
        "week": numbers.week.name,
        "is_on_record": numbers.is_on_record,
        "hours_on_record": len(numbers.hours),
        "node_hours": numbers.presence.node_hours,
        "gpu_hours": numbers.presence.gpu_hours,
        "interruptions": rate.event_count,
        "interruptions_by_cause": {cause.value: count for cause, count in numbers.count_by_cause().items()},
        "interruptions_per_day": numbers.interruptions_per_day,
        "interruptions_per_1000_node_days": per_thousand_node_days(rate),
        "work": _work(numbers.work.total),
        "gpu_hours_taken_by_cause": {cause.value: hours for cause, hours in numbers.work.by_cause.items()},
        "failures": numbers.failure_count,
        "mean_repair_seconds": None if numbers.repairs is None else _seconds(numbers.repairs.mean),
        "saved_gpu_hours": numbers.saved_gpu_hours,
        "wrong_acts": len(numbers.wrong),
        "overlaps": len(numbers.overlaps),
        "human_interventions": numbers.person_count,
    }


def _work(work: WorkSum) -> Row:
    return {
        "wanted_gpu_hours": work.wanted,
        "productive_gpu_hours": work.productive,
        "lost_gpu_hours": work.lost,
        "restart_gpu_hours": work.restart,
        "queue_gpu_hours": work.queue,
        "unknown_gpu_hours": work.unknown,
        "effective_ratio": work.effective_ratio,
        "effective_ratio_low": work.low_ratio,
        "effective_ratio_high": work.high_ratio,
        "jobs": work.job_count,
        "interruptions": work.break_count,
    }


def _budget(budget: Budget) -> Row:
    objective = budget.objective
    return {
        "team": objective.team,
        "workload": objective.workload,
        "kind": objective.kind,
        "target_ratio": objective.target_ratio,
        "limit_seconds": None if objective.limit is None else _seconds(objective.limit),
        "state": budget.state,
        "why": budget.why,
        "good_ratio": budget.good_ratio,
        "budget_left_ratio": budget.left_ratio,
        "burn_rate": budget.burn_rate,
        "exhausted_in_seconds": None if budget.exhausted_in is None else _seconds(budget.exhausted_in),
        "judged": budget.over_window.total,
        "days": budget.over_window.days,
    }


def _component(line: ComponentLine) -> Row:
    rate = line.failures
    return {
        "component": line.component,
        "unit": line.unit,
        "failures": rate.event_count,
        "exposure_hours": rate.exposure_hours,
        "mtbf_hours": rate.mean_hours_between,
        "mtbf_hours_low": rate.mean_hours_at_least,
        "mtbf_hours_high": rate.mean_hours_at_most,
        "mttr_seconds": None if line.repairs is None else _seconds(line.repairs.mean),
        "mttr_seconds_low": None if line.repairs is None else _seconds(line.repairs.low),
        "mttr_seconds_high": None if line.repairs is None else _seconds(line.repairs.high),
        "repairs": 0 if line.repairs is None else line.repairs.count,
        "open": line.open_count,
    }


def _seconds(span: timedelta) -> float:
    return span.total_seconds()


# -- the answer of `replay --json` --


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayView:
    """Field names are the keys of the JSON document."""

    cluster: str
    policy: str
    since: datetime
    until: datetime
    summary: Mapping[str, object]
    sentences: tuple[str, ...]
    policy_differences: tuple[KeyDifference, ...]
    stretches: tuple[ReplayedInterval, ...]
    reproduction: Mapping[str, object]
    acts: tuple[Mapping[str, object], ...]
    lessons: tuple[Lesson, ...]
    cautions: tuple[str, ...]


def view_replay(found: Replay) -> ReplayView:
    """Return what is shown of a replay."""
    return ReplayView(
        cluster=found.cluster,
        policy=found.proposed,
        since=found.since,
        until=found.until,
        summary={
            **{each.value: found.count(each) for each in Difference},
            "counterfactual": sum(act.is_counterfactual for act in found.acts),
            "then": asdict(found.then),
            "new": asdict(found.new),
            "understanding_differences": found.understanding_difference_count,
            "plan_differences": found.plan_difference_count,
            "refused_when_due": dict(found.refused_when_due),
            "follow_ups_not_replayed": found.follow_up_count,
            "by_hand": found.by_hand_count,
        },
        sentences=(*sentences_of(found), proof_sentence(found)),
        policy_differences=found.policy_differences,
        stretches=found.stretches,
        reproduction=asdict(found.reproduction),
        acts=tuple(_view_act(act) for act in found.acts),
        lessons=found.lessons,
        cautions=found.cautions,
    )


def _view_act(act: ComparedAct) -> Mapping[str, object]:
    return {**asdict(act), "nodes": sorted(act.nodes)}
