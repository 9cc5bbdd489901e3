"""The ledger's part of a replay: each decision made again on its own snapshot; both sides compared.

Lines are taken one after the other and snapshots are released at once, so that memory grows with what was done and not
with what was seen.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, Verb
from ops_pipelines.core.entries import AUTOPILOT, LedgerDamaged, LedgerError
from ops_pipelines.core.identity import ActionKey, Digest, IncidentId, PlanId
from ops_pipelines.core.plan import IncidentPlan, Rules, Snapshot
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.record import Approved, Began, Chronicle, Decided, Ended, Event, RefusedAct, Unreadable
from ops_pipelines.remediate.decide import Decision
from ops_pipelines.review.replay_result import (
    Assessment,
    ComparedAct,
    Difference,
    Lesson,
    Reproduction,
    SideCounts,
    Source,
)
from ops_pipelines.review.replay_side import Courses, FirstTime, Side, courses_of

# -- two sides side by side --


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was really started."""

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

    `cut_short` are plans of which it is only known what was really started: what is left of them is no difference.
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
    """Return what one policy does in all intervals together."""
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
        false_count=sum(verdict is Assessment.FALSE_ALARM and name in touched for name, verdict in verdicts.items()),
        missed_count=sum(verdict is Assessment.REAL and name not in reached for name, verdict in verdicts.items()),
    )


# -- the ledger's part of a replay --


_REMEMBERED = 16
"""Decisions whose second line (what to do, after what is wrong) may still come; it follows within a run."""
_TOLD_AT_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """A decision that was made again."""

    changed: tuple[IncidentId, ...]
    decision: Decision | None
    """None where its rules were not kept."""


@dataclass(slots=True, kw_only=True)
class RecordedReplay:
    """One pass over the ledger's lines of an interval."""

    chronicle: Chronicle
    policy: Policy
    """The proposed one."""
    present: Rules
    """Topology and catalogue of today: they are in where those of then were not kept."""
    then: Side = field(default_factory=Side)
    new: Side = field(default_factory=Side)
    decided_at: list[datetime] = field(default_factory=list)
    """When decisions were made, by time."""
    policies: dict[Digest, Policy] = field(default_factory=dict)
    """The policies that decided, as far as their rules were kept; the last one decided last."""
    digests: set[Digest] = field(default_factory=set)
    understanding_difference_count: int = 0
    plan_difference_count: int = 0
    by_hand_count: int = 0
    refused_when_due: dict[str, int] = field(default_factory=dict)
    _line_count: int = 0
    _same_count: int = 0
    _without_rules_count: int = 0
    _unreadable_count: int = 0
    _different: list[str] = field(default_factory=list)
    _unreadable: list[str] = field(default_factory=list)
    _again: "OrderedDict[Digest, _Again | None]" = field(default_factory=OrderedDict)
    _done: dict[ActionKey, Done] = field(default_factory=dict)
    _only_recorded: dict[PlanId, tuple[IncidentPlan, datetime]] = field(default_factory=dict)
    """Plans of decisions whose rules were not kept: what became of them is all that is known."""
    _cut_short: set[PlanId] = field(default_factory=set)
    _begun_by_autopilot: set[ActionKey] = field(default_factory=set)

    def take(self, event: Event) -> None:
        """Take the next line. Raises LedgerDamaged; what merely does not fit this version is counted."""
        match event:
            case Decided():
                self._take_decision(event)
            case Began():
                self._take_begun(event)
            case Ended():
                key = event.record.action.key
                if key in self._done and event.record.outcome is not None:
                    self._done[key] = replace(self._done[key], outcome=event.record.outcome.kind.value)
            case RefusedAct():
                guardrail = event.refusal.guardrail
                self.refused_when_due[guardrail] = self.refused_when_due.get(guardrail, 0) + 1
            case Approved():
                self.then.approve(event.plan, at=event.at)
                self.new.approve(event.plan, at=event.at)
            case Unreadable():
                self._count_unreadable(event.problem)

    def acts(self) -> tuple[ComparedAct, ...]:
        """Return every act that a side begins."""
        return compare(self.then, self.new, source=Source.LEDGER, done=self._done, cut_short=self._cut_short)

    @property
    def follow_up_count(self) -> int:
        """How many acts were started that no decision planned."""
        return sum(key not in self.then.begun for key in self._begun_by_autopilot)

    def reproduction(self) -> Reproduction:
        """Return how many decisions came out the same again."""
        return Reproduction(
            decision_count=self._line_count,
            same_count=self._same_count,
            different=tuple(self._different),
            without_rules_count=self._without_rules_count,
            unreadable_count=self._unreadable_count,
            unreadable=tuple(self._unreadable),
        )

    def last_policy(self) -> Policy | None:
        """Return the policy that decided last, as far as it was kept."""
        return next(reversed(self.policies.values()), None)

    def _take_decision(self, line: Decided) -> None:
        self._line_count += 1
        if line.inputs not in self._again:
            self.decided_at.append(line.at)
            self._again[line.inputs] = self._decide_again(line)
            if len(self._again) > _REMEMBERED:
                self._again.popitem(last=False)
        again = self._again[line.inputs]
        if again is None:
            return
        if again.decision is None:
            self._without_rules_count += 1
            self._only_recorded.update({plan.plan: (plan, line.at) for plan in line.plans})
            return
        problem = _how_it_differs(line, again.decision, again.changed)
        if problem is None:
            self._same_count += 1
        elif len(self._different) < _TOLD_AT_MOST:
            self._different.append(f"line {line.seq} at {line.at:%Y-%m-%d %H:%M:%S}: {problem}")

    def _decide_again(self, line: Decided) -> _Again | None:
        """Return the decision made again under the rules of then; None where its snapshot cannot be read."""
        try:
            snapshot = self.chronicle.snapshot(line.inputs)
        except LedgerDamaged:
            raise
        except LedgerError as problem:
            self._count_unreadable(f"the snapshot of line {line.seq}: {problem}")
            self._only_recorded.update({plan.plan: (plan, line.at) for plan in line.plans})
            return None
        self.digests.add(snapshot.rules_digest)
        rules = self.chronicle.rules(snapshot.rules_digest)
        new = courses_of(snapshot, replace(rules or self.present, policy=self.policy))
        if rules is None:
            self.new.take(new, None, at=line.at)
            return _Again(changed=(), decision=None)
        self.policies.pop(snapshot.rules_digest, None)
        self.policies[snapshot.rules_digest] = rules.policy
        then = courses_of(snapshot, rules)
        self.then.take(then, new, at=line.at)
        self.new.take(new, then, at=line.at)
        self._count_differences(then, new)
        return _Again(changed=_changed(then.decision, snapshot), decision=then.decision)

    def _count_differences(self, then: Courses, new: Courses) -> None:
        self.understanding_difference_count += then.decision.incidents != new.decision.incidents
        self.plan_difference_count += then.plan_marks() != new.plan_marks()

    def _take_begun(self, event: Began) -> None:
        record = event.record
        key = record.action.key
        self._done.setdefault(key, Done(at=event.at, outcome=""))
        if event.actor != AUTOPILOT or record.plan is None:
            self.by_hand_count += event.actor != AUTOPILOT
        if event.actor == AUTOPILOT:
            self._begun_by_autopilot.add(key)
        if record.plan is None:
            return
        self.then.use_yes(record.plan)
        self.new.use_yes(record.plan)
        held_by = self.then.go_on(record.plan, at=event.at)
        waits = self.new.waiting.get(record.plan)
        if held_by is not None and waits is not None and waits[1] == held_by:
            self.new.go_on(record.plan, at=event.at)
        recorded = self._only_recorded.get(record.plan)
        if recorded is not None and key not in self.then.begun:
            plan, made_at = recorded
            incident = self.chronicle.incident(plan.incident)
            if incident is not None and any(action.key == key for action in plan.actions):
                self._cut_short.add(plan.plan)
                self.then.incidents.add(plan.incident)
                why = "" if key in self.new.begun else "it is not started under the new policy"
                self.then.begun[key] = FirstTime(
                    at=made_at, action=record.action, plan=plan, incident=incident, other_why=why
                )

    def _count_unreadable(self, problem: str) -> None:
        self._unreadable_count += 1
        if len(self._unreadable) < _TOLD_AT_MOST:
            self._unreadable.append(problem)


def _changed(decision: Decision, snapshot: Snapshot) -> tuple[IncidentId, ...]:
    """Return the incidents that a decision changes, as the ledger would write them."""
    present: Mapping[IncidentId, object] = {each.incident: each for each in snapshot.incidents}
    return tuple(each.incident for each in decision.incidents if present.get(each.incident) != each)


def _how_it_differs(line: Decided, again: Decision, changed: tuple[IncidentId, ...]) -> str | None:
    """Return how a recorded decision differs from the one made again; None if it does not.

    A line of what is wrong holds every changed incident. A line of what to do holds none of them, and of the plans
    those that were new.
    """
    incidents = {each.incident: each for each in again.incidents}
    if line.incidents and tuple(each.incident for each in line.incidents) != changed:
        names = ", ".join(each.incident for each in line.incidents)
        return f"it changed {names}; made again, it changes {', '.join(changed) or 'none'}"
    for incident in line.incidents:
        if incidents[incident.incident] != incident:
            return f"{incident.incident} comes out otherwise"
    plans = {each.plan: each for each in again.plans}
    for plan in line.plans:
        if plan.plan not in plans:
            return f"{plan.plan} for {plan.incident} is not planned again"
        if plans[plan.plan] != plan:
            return f"{plan.plan} for {plan.incident} comes out in other words"
    if line.refusals is not None and line.refusals != again.refusals:
        return "other incidents are held back, or by other guardrails"
    return None
