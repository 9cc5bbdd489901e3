"""Who waited for whom: plans for a yes, acts for a guardrail, jobs for a moment or for room, nodes for hands."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.action import SOFT, ActionRecord, Verb
from ops_pipelines.core.entries import Approval
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.plan import JobTiming, Moment
from ops_pipelines.core.policy import Mode, Policy
from ops_pipelines.flow.hindsight.story.chain import Chain, MadePlan, RefusedAct
from ops_pipelines.remediate.guardrails.consents import needs_yes
from ops_pipelines.remediate.testimony import explain_action

_SHORTEST_SECONDS = 1.0
"""Below that nobody waited."""
_SOFT_WORDS = tuple(sorted(each.value.replace("_", " ") for each in SOFT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One stretch of time in which something could not go on."""

    who: str
    waited_for: str
    began_at: datetime
    ended_at: datetime | None
    """None: it still waits, or nobody saw the end."""
    seconds: float
    """Until now where it lasts."""


def waits_of(
    incident: Incident, chain: Chain, records: Collection[ActionRecord], *, waiting_plan: str | None, now: datetime
) -> tuple[Wait, ...]:
    """Return every wait that the record shows, by when it began; waits of less than a second are none."""
    end = incident.closed_at or now
    found = [
        *_for_yes(chain, waiting_plan=waiting_plan, end=end),
        *_for_guardrails(incident, chain, records, end=end),
        *_for_moments(chain, records, end=end),
        *_for_room(incident, end=end),
        *_for_hands(chain, end=end),
    ]
    kept = (each for each in found if each.seconds >= _SHORTEST_SECONDS)
    return tuple(sorted(kept, key=lambda each: (each.began_at, each.who)))


def plan_waiting_for_yes(
    incident: Incident,
    chain: Chain,
    records: Collection[ActionRecord],
    approvals: Collection[Approval],
    policy: Policy,
) -> str | None:
    """Return the plan that waits for a person now; None if none does. `approvals` are those that hold now.

    One in force may wait half-way: for the yes to its reboot, after its drain.
    """
    if policy.mode is Mode.OBSERVE or incident.state not in (IncidentState.OPEN, IncidentState.ACTING):
        return None
    made = _plan_of(incident, chain)
    if made is None or any(each.plan == made.plan.plan for each in approvals):
        return None
    begun = {each.action.key for each in records}
    owed = (each for each in made.plan.actions if each.key not in begun)
    return str(made.plan.plan) if any(needs_yes(each, policy) for each in owed) else None


def _plan_of(incident: Incident, chain: Chain) -> MadePlan | None:
    if incident.plan is not None:
        return next((each for each in chain.plans if each.plan.plan == incident.plan), None)
    return chain.plans[-1] if chain.plans else None


def _for_yes(chain: Chain, *, waiting_plan: str | None, end: datetime) -> Iterator[Wait]:
    said: set[str] = set()
    for made in chain.plans:
        yes = next((each for each in chain.approvals if each.plan == made.plan.plan), None)
        if yes is not None and yes.plan not in said:
            said.add(yes.plan)
            yield _wait(str(made.plan.plan), f"the yes of {yes.actor}", made.made_at, yes.given_at, end=end)
        elif made.plan.plan == waiting_plan:
            yield _wait(str(made.plan.plan), "somebody's yes", made.made_at, None, end=end)


def _for_guardrails(
    incident: Incident, chain: Chain, records: Collection[ActionRecord], *, end: datetime
) -> Iterator[Wait]:
    first: dict[str, RefusedAct] = {}
    for each in chain.refusals:
        # The wait for a yes is told already, and without what is only a kindness a plan goes on.
        if each.guardrail != "approval" and not each.act.startswith(_SOFT_WORDS):
            first.setdefault(each.act, each)
    begun = {explain_action(each.action): each.begun_at for each in reversed(list(records))}
    for act, refused in first.items():
        at = next((at for words, at in begun.items() if words == act and at >= refused.at), None)
        if at is None and not incident.is_open:
            continue  # It was never done: a refusal, and no wait.
        yield _wait(act, f"{refused.guardrail.replace('_', ' ')}: {refused.reason}", refused.at, at, end=end)


def _for_moments(chain: Chain, records: Collection[ActionRecord], *, end: datetime) -> Iterator[Wait]:
    timings: dict[object, JobTiming] = {}
    for made in chain.plans:
        for timing in made.plan.timings:
            timings.setdefault(timing.attempt, timing)
    held = {each.action.attempt: each.begun_at for each in records if each.action.verb is Verb.HOLD}
    for timing in timings.values():
        if timing.moment not in _MOMENTS or not records:
            continue
        begins = min((each.begun_at for each in records), default=timing.decided_at)
        yield _wait(
            f"moving job {timing.attempt.job}", _MOMENTS[timing.moment], begins, held.get(timing.attempt), end=end
        )


_MOMENTS = {
    Moment.NEXT_CHECKPOINT: "its next checkpoint",
    Moment.AFTER_NOTICE: "the end of its owner's notice",
    Moment.JOB_END: "the job's own end",
}


def _for_room(incident: Incident, *, end: datetime) -> Iterator[Wait]:
    for each in incident.recoveries:
        if each.ended_as and each.resumed_at is None:
            continue
        yield _wait(f"job {each.attempt.job}", "its next start", each.held_at, each.resumed_at, end=end)


def _for_hands(chain: Chain, *, end: datetime) -> Iterator[Wait]:
    since: datetime | None = None
    for each in chain.changes:
        if each.state in (IncidentState.IN_REPAIR.value, IncidentState.ESCALATED.value):
            since = since or each.at
        elif since is not None:
            yield _wait("the node", "a person's hands", since, each.at, end=end)
            since = None
    if since is not None:
        yield _wait("the node", "a person's hands", since, None, end=end)


def _wait(who: str, waited_for: str, began: datetime, ended: datetime | None, *, end: datetime) -> Wait:
    until = ended if ended is not None else end
    return Wait(
        who=who,
        waited_for=waited_for,
        began_at=began,
        ended_at=ended,
        seconds=max(0.0, (until - began).total_seconds()),
    )
