"""A plan as a report tells it: what it would do, when each job was to be moved and why then, what stays in service."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.action import MESSAGES, Action, ActionRecord
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.flow.hindsight.story.chain import MadePlan
from ops_pipelines.remediate.testimony import explain_action


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldOption:
    """One moment at which a job could have been interrupted, and what that was expected to cost."""

    moment: str
    lost_gpu_hours: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldTiming:
    """When one job was to be interrupted, and why then."""

    job: str
    moment: str
    reason: str
    options: tuple[ToldOption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldRemaining:
    """What a plan leaves in service of one part of the cluster."""

    what: str
    stays_count: int
    total_count: int
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPlan:
    """One plan: what it would do, what it touches, and what was thought better of."""

    plan: str
    made_at: datetime
    response: str
    called_for: str
    is_begun: bool
    steps: tuple[str, ...]
    effects: tuple[str, ...]
    rejected_alternatives: tuple[str, ...]
    timings: tuple[ToldTiming, ...]
    teams: tuple[str, ...]
    touched_jobs: tuple[str, ...]
    lost_gpu_hours: float | None
    """Expected, by our acts; None where the plan touches nothing."""
    remaining: tuple[ToldRemaining, ...]
    violations: tuple[str, ...]


def tell_plan(made: MadePlan, records: Collection[ActionRecord]) -> ToldPlan:
    """Return a plan in words; `records` say whether it was begun."""
    plan, proof = made.plan, made.plan.proof
    return ToldPlan(
        plan=plan.plan,
        made_at=made.made_at,
        response=_words(plan.response.name),
        called_for=_words((plan.calls_for or plan.response).name),
        is_begun=any(each.plan == plan.plan for each in records),
        steps=tuple(_step(each) for each in plan.actions),
        effects=plan.effects,
        rejected_alternatives=plan.rejected_alternatives,
        timings=tuple(
            ToldTiming(
                job=timing.attempt.job,
                moment=_words(timing.moment.name),
                reason=timing.reason,
                options=tuple(
                    ToldOption(moment=_words(each.moment.name), lost_gpu_hours=each.lost_gpu_hours, why=each.why)
                    for each in timing.options
                ),
            )
            for timing in plan.timings
        ),
        teams=() if proof is None else proof.teams,
        touched_jobs=() if proof is None else tuple(_touched(plan)),
        lost_gpu_hours=None if proof is None else proof.lost_gpu_hours,
        remaining=()
        if proof is None
        else tuple(
            ToldRemaining(
                what=f"{each.kind} {each.name}".replace("_", " ").strip(),
                stays_count=each.total_count - each.out_after_count,
                total_count=each.total_count,
                limit=each.limit,
            )
            for each in proof.remaining
            if each.total_count > 1  # Of what has one part only, that part is the one.
        ),
        violations=() if proof is None else proof.violations,
    )


def _step(action: Action) -> str:
    words = explain_action(action)
    return f"{words}: {action.text}" if action.verb in MESSAGES else words


def _touched(plan: IncidentPlan) -> Iterator[str]:
    for each in () if plan.proof is None else plan.proof.jobs:
        lost = "loss not known" if each.lost_gpu_hours is None else f"{each.lost_gpu_hours:.2f} GPU-hours expected lost"
        fate = f"interrupted, {lost}" if each.is_interrupted else "goes on"
        yield f"job {each.job} of {each.account or 'no account'}, {each.gpu_count} GPUs: {fate}"


def _words(name: str) -> str:
    return name.lower().replace("_", " ")
