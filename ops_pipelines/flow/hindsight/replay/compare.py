"""Two sides side by side: acts that both begin, that one begins, at which moment, and what they add up to."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, Verb
from ops_pipelines.core.identity import ActionKey, IncidentId, PlanId
from ops_pipelines.flow.hindsight.replay.result import (
    ComparedAct,
    Difference,
    Lesson,
    SideCounts,
    Source,
    Verdict,
)
from ops_pipelines.flow.hindsight.replay.side import FirstTime, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was really begun."""

    at: datetime
    outcome: str


def compare(
    then: Side,
    new: Side,
    *,
    source: Source,
    done: Mapping[ActionKey, Done],
    cut_short: Collection[PlanId] = (),
) -> tuple[ComparedAct, ...]:
    """Return every act that a side begins, by time.

    `cut_short` are plans of which it is only known what was really begun: what is left of them is no difference.
    """
    rows = []
    for key in {**then.begun, **new.begun}:
        before, after = then.begun.get(key), new.begun.get(key)
        if before is None and after is not None and after.plan.plan in cut_short:
            continue
        rows.append(_row(before, after, source=source, done=done.get(key)))
    return tuple(sorted(rows, key=lambda row: (row.at, row.incident, row.plan_new or row.plan_then or "")))


def _row(before: FirstTime | None, after: FirstTime | None, *, source: Source, done: Done | None) -> ComparedAct:
    first = before or after
    assert first is not None, "a key is on one side at least"
    difference, why = _difference(before, after)
    return ComparedAct(
        at=min(each.at for each in (before, after) if each is not None),
        source=source,
        difference=difference,
        incident=first.incident.incident,
        verb=first.action.verb,
        target=first.action.target,
        nodes=first.incident.nodes,
        cause=first.incident.cause,
        plan_then=None if before is None else before.plan.plan,
        plan_new=None if after is None else after.plan.plan,
        then_at=None if before is None else before.at,
        new_at=None if after is None else after.at,
        done_at=None if done is None else done.at,
        outcome="" if done is None else done.outcome,
        why=why,
        team=first.team,
        lost_gpu_hours=(after or first).lost_gpu_hours,
        is_counterfactual=False,
    )


def _difference(before: FirstTime | None, after: FirstTime | None) -> tuple[Difference, str]:
    if before is None or after is None:
        only = before or after
        assert only is not None, "a key is on one side at least"
        return Difference.ONLY_NEW if before is None else Difference.ONLY_THEN, only.other_why
    if before.at != after.at:
        earlier, later = sorted((before, after), key=lambda each: each.at)
        return Difference.OTHER_MOMENT, earlier.other_why or f"not before {later.at:%H:%M:%S}"
    if before.moment is not after.moment:
        words = [each.moment.value.replace("_", " ") if each.moment else "untimed" for each in (before, after)]
        return Difference.OTHER_MOMENT, f"the job is interrupted {words[1]} instead of {words[0]}"
    return Difference.SAME, ""


def mark_counterfactual(rows: Iterable[ComparedAct]) -> tuple[ComparedAct, ...]:
    """Return the rows by time, with those marked that follow the first divergence of their node (or incident)."""
    diverged: dict[str, datetime] = {}
    marked = []
    for row in sorted(rows, key=lambda each: each.at):
        places = (*sorted(row.nodes),) or (row.incident,)
        is_after = any(diverged[place] < row.at for place in places if place in diverged)
        marked.append(replace(row, is_counterfactual=is_after))
        if row.difference is not Difference.SAME:
            for place in places:
                diverged.setdefault(place, row.at)
    return tuple(marked)


def count_side(sides: Sequence[Side], lessons: Iterable[Lesson]) -> SideCounts:
    """Return what one policy does in all stretches together."""
    begun = [each for side in sides for each in side.begun.values()]
    lost, unknown, plan_count = 0.0, 0, 0
    for side in sides:
        for plan, keys in side.plans():
            plan_count += 1
            held = {
                each.attempt.job
                for each in plan.actions
                if each.verb is Verb.HOLD and each.attempt is not None and each.key in keys
            }
            jobs = [] if plan.proof is None else [each for each in plan.proof.jobs if each.job in held]
            lost += sum(each.lost_gpu_hours or 0.0 for each in jobs)
            unknown += sum(each.lost_gpu_hours is None for each in jobs)
    refusals: dict[str, set[tuple[int, IncidentId]]] = {}
    for number, side in enumerate(sides):
        for guardrail, incidents in side.held.items():
            refusals.setdefault(guardrail, set()).update((number, each) for each in incidents)
    touched = frozenset(name for side in sides for name in side.touched())
    reached = frozenset(each.incident.incident for each in begun)
    verdicts = {each.incident: each.verdict for each in lessons}
    return SideCounts(
        act_count=len(begun),
        node_act_count=sum(each.action.verb in DESTRUCTIVE_VERBS for each in begun),
        plan_count=plan_count,
        lost_gpu_hours=lost,
        unknown_loss_count=unknown,
        page_count=sum(each.action.verb is Verb.PAGE_HUMAN for each in begun),
        owner_message_count=sum(each.action.verb is Verb.NOTIFY_OWNER for each in begun),
        approval_count=sum(len(side.approvals) for side in sides),
        refusals={name: len(found) for name, found in sorted(refusals.items())},
        false_count=sum(verdict is Verdict.FALSE_ALARM and name in touched for name, verdict in verdicts.items()),
        missed_count=sum(verdict is Verdict.REAL and name not in reached for name, verdict in verdicts.items()),
    )
