"""Runs recorded history through another policy: what would have changed, for whom.

Open-loop: each decision is made on the state that history really had. What was done then shows in it, so that whatever
follows the first divergence of a node is counterfactual and marked. Reads only: what it is given cannot write or act.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import partial

from ops_pipelines.clock import Clock
from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.policy import Policy
from ops_pipelines.report.numbers import counted
from ops_pipelines.review.replay_lake import LakeReplay, hours_without_decisions, replay_stretch
from ops_pipelines.review.replay_recorded import RecordedReplay, compare, count_side, mark_counterfactual
from ops_pipelines.review.replay_result import (
    ComparedAct,
    Difference,
    History,
    KeyDifference,
    Replay,
    ReplayedInterval,
    Source,
    learn,
)

# -- which keys two policies set differently, named as in policy.yaml --


ABSENT = "not set"


def compare_policies(then: Policy, new: Policy) -> tuple[KeyDifference, ...]:
    """Return each key with different values, by name; a key that only one of them has is `not set` in the other."""
    before, after = dict(_flat(then)), dict(_flat(new))
    return tuple(
        KeyDifference(key=key, then=before.get(key, ABSENT), new=after.get(key, ABSENT))
        for key in sorted(before.keys() | after.keys())
        if before.get(key, ABSENT) != after.get(key, ABSENT)
    )


def _flat(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    if is_dataclass(value):
        for field in fields(value):
            yield from _flat(getattr(value, field.name), f"{key}.{field.name}" if key else field.name)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{key}.{_word(name)}")
    elif isinstance(value, timedelta):
        yield f"{key}_seconds", f"{value.total_seconds():g}"
    elif isinstance(value, (tuple, list)) and any(is_dataclass(each) for each in value):
        for number, each in enumerate(value):
            yield from _flat(each, f"{key}[{number}]")
    elif isinstance(value, Collection) and not isinstance(value, str):
        yield key, ", ".join(sorted(map(_word, value))) or "none"
    else:
        yield key, _word(value)


def _word(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "no limit"
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- what changes, for whom, in a few sentences --


_TEAMS_NAMED = 3


def sentences_of(found: Replay) -> tuple[str, ...]:
    """Return five sentences: the acts, the jobs of which teams, the operators, the guardrails, what was learned."""
    return (
        _on_acts(found),
        _on_jobs(found),
        _on_operators(found),
        _on_guardrails(found),
        _on_lessons(found),
    )


def proof_sentence(found: Replay) -> str:
    """Return how far the record itself could be reproduced: what the comparison rests on."""
    again = found.reproduction
    if not again.decision_count:
        return "The ledger holds no decision of this time; nothing could be reproduced."
    left = again.decision_count - again.same_count
    if not left:
        return f"All {again.decision_count} recorded decisions came out the same again under the rules of then."
    reasons = []
    if again.without_rules_count:
        reasons.append(f"{again.without_rules_count} whose rules were not kept")
    if again.unreadable_count:
        reasons.append(f"{again.unreadable_count} unreadable lines or snapshots")
    reason = f" ({', '.join(reasons)})" if reasons else ""
    return (
        f"{again.same_count} of {again.decision_count} recorded decisions came out the same again under the rules of "
        f"then; {left} did not, or could not be tried{reason}."
    )


def _on_acts(found: Replay) -> str:
    total = len(found.acts)
    if not total:
        return "Neither policy would have done anything in this time."
    same = found.count(Difference.SAME)
    if same == total:
        return f"Nothing changes: both policies do the same {counted(total, 'act')}."
    counterfactual = sum(act.is_counterfactual for act in found.acts)
    followed = (
        f"{counterfactual} {'follows' if counterfactual == 1 else 'follow'} an earlier difference on the same node"
    )
    mark = f"; {followed}, where history would have gone otherwise (counterfactual)" if counterfactual else ""
    return (
        f"Of {counted(total, 'act')}, {same} stay the same, {found.count(Difference.ONLY_THEN)} would no longer be "
        f"done, {found.count(Difference.ONLY_NEW)} would be new, and {found.count(Difference.OTHER_MOMENT)} would come "
        f"at another moment{mark}."
    )


def _on_jobs(found: Replay) -> str:
    then, new = _interruptions(found, "plan_then"), _interruptions(found, "plan_new")
    unknown = (
        f" (without jobs whose loss nobody knows: {found.then.unknown_loss_count} → {found.new.unknown_loss_count})"
        if found.then.unknown_loss_count or found.new.unknown_loss_count
        else ""
    )
    teams = sorted(
        {team for team in then | new if then[team] != new[team]}, key=lambda team: (-abs(new[team] - then[team]), team)
    )
    named = ", ".join(f"{team or 'unknown team'} {then[team]} → {new[team]}" for team in teams[:_TEAMS_NAMED])
    more = f" and {len(teams) - _TEAMS_NAMED} more" if len(teams) > _TEAMS_NAMED else ""
    who = f"by team: {named}{more}" if teams else "no team sees a difference"
    return (
        f"Jobs interrupted: {then.total()} → {new.total()}; {who}; GPU-hours expected to be lost by our own acts: "
        f"{found.then.lost_gpu_hours:.2f} → {found.new.lost_gpu_hours:.2f}{unknown}."
    )


def _interruptions(found: Replay, side: str) -> Counter[str]:
    return Counter(act.team for act in found.acts if act.verb is Verb.HOLD and getattr(act, side) is not None)


def _on_operators(found: Replay) -> str:
    then, new = found.then, found.new
    return (
        f"For operators: pages {then.page_count} → {new.page_count}, plans that ask for approval "
        f"{then.approval_count} → {new.approval_count}, "
        f"messages to job owners {then.owner_message_count} → {new.owner_message_count}."
    )


def _on_guardrails(found: Replay) -> str:
    names = sorted({*found.then.refusals, *found.new.refusals})
    changed = [
        f"{name} {found.then.refusals.get(name, 0)} → {found.new.refusals.get(name, 0)}"
        for name in names
        if found.then.refusals.get(name, 0) != found.new.refusals.get(name, 0)
    ]
    if not changed:
        return "Each guardrail holds back as many incidents under the new policy as it did."
    return f"Incidents held back at least once, by guardrail: {', '.join(changed)}."


def _on_lessons(found: Replay) -> str:
    judged = [lesson for lesson in found.lessons if lesson.verdict.value != "unknown"]
    if not judged:
        return (
            f"Of {counted(len(found.lessons), 'incident')} nothing was learned later that would tell real ones from "
            "false alarms."
        )
    return (
        f"Of {counted(len(found.lessons), 'incident')}, {len(judged)} {'was' if len(judged) == 1 else 'were'} found "
        f"real or false later: false alarms acted on {found.then.false_count} → {found.new.false_count}, real ones on "
        f"which nothing was started {found.then.missed_count} → {found.new.missed_count}."
    )


def differing(found: Replay) -> Sequence[ComparedAct]:
    """Return the acts that are not the same on both sides, by time."""
    return tuple(act for act in found.acts if act.difference is not Difference.SAME)


# -- where a proposed policy is laid beside the present one --


@dataclass(frozen=True, kw_only=True)
class PolicyDesk:
    """What a comparison launched from the UI needs. It can read history and keep a page, and nothing else."""

    history: History
    read_proposed: Callable[[str], Policy]
    """Returns the policy of a file beside the present one; raises PolicyError for one that would be refused."""
    keep_page: Callable[[str], str]
    """Keeps the newest page, and returns where."""
    clock: Clock


# -- runs recorded history through another policy, interval by interval --


OPEN_LOOP = (
    "open-loop: every decision was made on the state that history really had; what follows the first divergence of a "
    "node is marked counterfactual, and budgets that a divergent act would have spent elsewhere are not carried over"
)


LEARNED = (
    "what was learned later comes mostly from tests and repairs that were really done: an incident that nobody acted "
    "on then was hardly looked at, so that false alarms and misses are counted as far as they are known, not all"
)


def _tell_nobody(source: str, at: datetime) -> None:
    """Take note of progress where nobody asked for it."""


def replay(
    history: History,
    policy: Policy,
    *,
    proposed: str,
    since: datetime,
    until: datetime,
    on_progress: Callable[[str, datetime], None] = _tell_nobody,
) -> Replay:
    """Return what would have been decided in [since, until) under `policy`.

    `on_progress` receives the source and the time that was reached. Raises LedgerError, LakeError; ValueError for a
    interval that is empty.
    """
    if until <= since:
        raise ValueError(f"the interval from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} is empty")
    recorded = RecordedReplay(chronicle=history.chronicle, policy=policy, present=history.present)
    first, last = None, None
    for event in history.chronicle.events(since=since, until=until):
        first, last = first or event.at, event.at
        recorded.take(event)
        on_progress(Source.LEDGER.value, event.at)
    known = history.chronicle.incidents_since(since)
    stretches: list[ReplayedInterval] = []
    from_lake: list[LakeReplay] = []
    if first is not None and last is not None:
        stretches.append(_ledger_stretch(recorded, since=first, until=last))
    if history.lake is not None:
        for begin, end in hours_without_decisions(recorded.decided_at, since=since, until=until):
            number = sum(len(each.then.incidents | each.new.incidents) for each in from_lake)
            found = replay_stretch(
                history.lake,
                begin,
                end,
                history=history,
                policy=policy,
                known=known,
                first_number=number,
                on_progress=partial(on_progress, Source.LAKE.value),
            )
            from_lake.append(found)
            stretches.append(_lake_stretch(found))
    acts = list(recorded.acts())
    for part in from_lake:
        acts += (_renamed(each) for each in compare(part.then, part.new, source=Source.LAKE, done={}))
    seen = recorded.then.incidents | recorded.new.incidents
    # All of them are looked through for what came again; only those of the interval are reported of.
    lessons = tuple(each for each in learn(known, history.chronicle) if each.incident in seen)
    then_policy = recorded.last_policy() or history.present.policy
    return Replay(
        cluster=history.cluster,
        proposed=proposed,
        since=since,
        until=until,
        stretches=tuple(sorted(stretches, key=lambda each: each.since)),
        policy_differences=compare_policies(then_policy, policy),
        policies_then_count=max(len(recorded.digests), 1),
        reproduction=recorded.reproduction(),
        acts=mark_counterfactual(acts),
        then=count_side([recorded.then, *(each.then for each in from_lake)], lessons),
        new=count_side([recorded.new, *(each.new for each in from_lake)], lessons),
        understanding_difference_count=recorded.understanding_difference_count
        + sum(each.understanding_difference_count for each in from_lake),
        plan_difference_count=recorded.plan_difference_count + sum(each.plan_difference_count for each in from_lake),
        refused_when_due=dict(sorted(recorded.refused_when_due.items())),
        follow_up_count=recorded.follow_up_count,
        by_hand_count=recorded.by_hand_count,
        lessons=lessons,
        cautions=tuple(_cautions(recorded, stretches, has_lessons=bool(lessons))),
    )


def _renamed(act: ComparedAct) -> ComparedAct:
    """Return an act of an incident that the ledger does not know, under a name that no incident of the ledger has."""
    return replace(act, incident=IncidentId(act.incident.replace("INC-", "PAST-")))


def _ledger_stretch(recorded: RecordedReplay, *, since: datetime, until: datetime) -> ReplayedInterval:
    found = recorded.reproduction()
    unknown = []
    if found.without_rules_count:
        unknown.append(
            f"{found.without_rules_count} of {found.decision_count} decisions were made under rules that were not "
            "kept: what they held back, and why, is not known; today's topology and catalogue stand in for theirs"
        )
    if found.unreadable_count:
        unknown.append(f"{found.unreadable_count} lines or snapshots cannot be read by this version and are left out")
    return ReplayedInterval(
        source=Source.LEDGER,
        since=since,
        until=until,
        decision_count=len(recorded.decided_at),
        then="decided again under the rules of then, and compared with the record",
        unknown=tuple(unknown),
    )


def _lake_stretch(part: LakeReplay) -> ReplayedInterval:
    return ReplayedInterval(
        source=Source.LAKE,
        since=part.since,
        until=part.until,
        decision_count=part.decision_count,
        then="today's policy.yaml on the same evidence: what was really done, if anything, is not in the ledger",
        unknown=part.unknown,
    )


def _cautions(recorded: RecordedReplay, stretches: list[ReplayedInterval], *, has_lessons: bool) -> list[str]:
    found = [OPEN_LOOP, LEARNED] if has_lessons else [OPEN_LOOP]
    if len(recorded.digests) > 1:
        found.append(
            f"{len(recorded.digests)} different rules decided in this time; the keys shown are of the last ones, each "
            "decision was compared with its own"
        )
    if not stretches:
        found.append("nothing was decided in this time, and no hour of the lake was read")
    return found
