"""Runs recorded history through another policy, stretch by stretch, and says what would have been otherwise.

Open-loop: each decision is made on the state that history really had. What was done then shows in it, so that whatever
follows the first divergence of a node is counterfactual and marked. Reads only: what it is given cannot write or act.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial

from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.policy import Policy
from ops_pipelines.flow.hindsight.replay.compare import compare, count_side, mark_counterfactual
from ops_pipelines.flow.hindsight.replay.history import History
from ops_pipelines.flow.hindsight.replay.lake_hours import LakeReplay, hours_without_decisions, replay_stretch
from ops_pipelines.flow.hindsight.replay.learned import learn
from ops_pipelines.flow.hindsight.replay.policy_keys import compare_policies
from ops_pipelines.flow.hindsight.replay.recorded import RecordedReplay
from ops_pipelines.flow.hindsight.replay.result import ComparedAct, Replay, Source, Stretch

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

    `on_progress` is told the source and the time that was reached. Raises LedgerError, LakeError; ValueError for a
    stretch that is empty.
    """
    if until <= since:
        raise ValueError(f"the stretch from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} is empty")
    recorded = RecordedReplay(chronicle=history.chronicle, policy=policy, present=history.present)
    first, last = None, None
    for event in history.chronicle.events(since=since, until=until):
        first, last = first or event.at, event.at
        recorded.take(event)
        on_progress(Source.LEDGER.value, event.at)
    known = history.chronicle.incidents_since(since)
    stretches: list[Stretch] = []
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
    # All of them are looked through for what came again; only those of the stretch are told of.
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


def _ledger_stretch(recorded: RecordedReplay, *, since: datetime, until: datetime) -> Stretch:
    found = recorded.reproduction()
    unknown = []
    if found.without_rules_count:
        unknown.append(
            f"{found.without_rules_count} of {found.decision_count} decisions were made under rules that were not "
            "kept: what they held back, and why, is not known; today's topology and catalogue stand in for theirs"
        )
    if found.unreadable_count:
        unknown.append(f"{found.unreadable_count} lines or snapshots cannot be read by this version and are left out")
    return Stretch(
        source=Source.LEDGER,
        since=since,
        until=until,
        decision_count=len(recorded.decided_at),
        then="decided again under the rules of then, and compared with the record",
        unknown=tuple(unknown),
    )


def _lake_stretch(part: LakeReplay) -> Stretch:
    return Stretch(
        source=Source.LAKE,
        since=part.since,
        until=part.until,
        decision_count=part.decision_count,
        then="today's policy.yaml on the same evidence: what was really done, if anything, is not in the ledger",
        unknown=part.unknown,
    )


def _cautions(recorded: RecordedReplay, stretches: list[Stretch], *, has_lessons: bool) -> list[str]:
    found = [OPEN_LOOP, LEARNED] if has_lessons else [OPEN_LOOP]
    if len(recorded.digests) > 1:
        found.append(
            f"{len(recorded.digests)} different rules decided in this time; the keys shown are of the last ones, each "
            "decision was compared with its own"
        )
    if not stretches:
        found.append("nothing was decided in this time, and no hour of the lake was read")
    return found
