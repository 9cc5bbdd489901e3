"""The acts of one repair in their order, what is left of them where some are forbidden, and the drains after a storm.

Unreachable is not dead: there the fence is the power switch, and only a node without power is declared down. Which
repair it is, `ladder` says; when each job is moved, `timing`; whose approval each act needs, `guardrails.consents`.
What a repair costs whom, and what else was considered, is written here in words.

Nothing is started that could not be brought to its end: a job is held only where everything up to its release is
allowed. For a mass event nothing stronger than a drain is done; which nodes broke by themselves, `diagnose` says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from ops_pipelines.core.action import JOB_VERBS, Action, ActionRecord, Verb
from ops_pipelines.core.fault import FIRST_STEPS
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import JobAttempt, JobId, NodeName, PlanId, Topology
from ops_pipelines.core.incident import Incident, driving
from ops_pipelines.core.observation import Checkpointing, JobStatus, NodeStatus
from ops_pipelines.core.plan import BlastRadius, JobTiming, Moment
from ops_pipelines.core.policy import ActionClass, Consent, Policy
from ops_pipelines.core.proof import Authority, Refusal
from ops_pipelines.diagnose.correlate import is_hard
from ops_pipelines.diagnose.hypothesis import gpus_to_reset
from ops_pipelines.remediate.guardrails.blast_radius import judge_proof, prove
from ops_pipelines.remediate.guardrails.consents import CLASS_OF, needs_yes
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, drain_reason
from ops_pipelines.remediate.guardrails.judge import judge
from ops_pipelines.remediate.job_moves import MOVED, ActionMaker, Move, is_leaving, is_silent, let_go_on, take_off


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One broken node as a repair finds it."""

    incident: Incident
    """Its response is the repair that was chosen."""
    node: NodeStatus
    jobs: tuple[JobStatus, ...]
    timings: tuple[JobTiming, ...]
    held: tuple[JobAttempt, ...]
    """Held by an earlier plan of this incident, and owed their release."""
    spares: Mapping[JobId, tuple[NodeName, ...]]
    ended: frozenset[JobAttempt]
    """What the fault has ended already."""
    is_foreign: bool
    """Whether somebody else drained the node: its jobs are moved, the node is left alone."""
    lacks: str = ""
    """Why repairs are left out here, whatever would be called for; empty where none is."""

    @property
    def is_fenced_by_power(self) -> bool:
        """Whether the node is silent, so that its power switch is the only fence.

        After a try its power is cut by the repair anyway; with jobs on a silent node that comes before they are fenced.
        Where hands are next and no job is on it, there is nothing to fence.
        """
        if not is_silent(self.incident, {self.node.node: self.node}):
            return False
        if self.incident.response is Response.RETURN_TO_VENDOR and not (self.jobs or self.held):
            return False
        return not self.incident.tries or (self.incident.response >= Response.POWER_CYCLE and bool(self.jobs))

    def timing_of(self, job: JobStatus) -> JobTiming | None:
        return next((each for each in self.timings if each.attempt == job.attempt), None)

    @property
    def moves(self) -> tuple[Move, ...]:
        """The jobs that are moved, those that are already held first."""
        services = {job.job: job.service for job in self.jobs}
        owed = [Move(attempt=attempt, moment=Moment.NOW, is_held=True, spares=()) for attempt in self.held]
        fresh = [
            Move(
                attempt=timing.attempt,
                moment=timing.moment,
                is_held=False,
                spares=self.spares.get(timing.attempt.job, ()),
                has_ended=timing.attempt in self.ended,
                service=services.get(timing.attempt.job, ""),
            )
            for timing in self.timings
            if timing.moment in MOVED and timing.attempt not in self.held
        ]
        return (*owed, *fresh)

    @property
    def left(self) -> tuple[JobStatus, ...]:
        """The jobs that stay until they end by themselves."""
        moved = {move.attempt for move in self.moves}
        return tuple(job for job in self.jobs if job.attempt not in moved and not is_leaving(job))


def repair_actions(situation: Situation) -> tuple[Action, ...]:
    """Return drain; the moves whose moment is now; each later one; then the repair itself.

    The jobs of a silent node are held before anything else, while the drain may have to wait for budget: at its silence
    limit the scheduler itself would start them elsewhere.
    """
    incident, node = situation.incident, situation.node.node
    act = ActionMaker(incident)
    reason = drain_reason(incident.incident, incident.cause)
    drains = [] if situation.is_foreign else [act.on_node(Verb.DRAIN, node, reason)]
    notices = [
        act.on_job(Verb.NOTIFY_OWNER, job.attempt, notice_of(situation, job))
        for job in situation.jobs
        if job.attempt is not None and not is_leaving(job)
    ]
    # On a silent node there is nothing to wait for: its power goes, and everything on it is held before.
    now = [move for move in situation.moves if move.moment is Moment.NOW or situation.is_fenced_by_power]
    together = now if situation.is_fenced_by_power else _one_a_service(now)
    waiting = [move for move in situation.moves if move not in now]
    later = [*(move for move in now if move not in together), *_in_time_order(waiting, situation)]
    now = together
    if situation.is_fenced_by_power and (situation.is_foreign or situation.left):
        # Without a fence of our own nothing may be held, released or cut off.
        left = situation.left
        timing = situation.timing_of(left[0]) if left else None
        reason = "" if timing is None else f" ({timing.reason})"
        stays = f"running job {left[0].job}, which must not be moved{reason}" if left else ""
        why = "drained by someone else" if situation.is_foreign else stays
        jobs = ", ".join(attempt.job for attempt in situation.held)
        stay = f"; job(s) {jobs} stay held" if situation.held else ""
        return (*drains, *notices, act.page(f"{node} is silent and {why}: it is left to you{stay}"))
    off = take_off(act, now)
    is_silent_now = situation.is_fenced_by_power and not situation.node.is_responding
    actions = [*_holds(off), *drains, *notices, *_reserves(off)] if is_silent_now else [*drains, *notices, *off]
    if situation.is_fenced_by_power:
        actions += [act.on_node(Verb.POWER_OFF, node), act.on_node(Verb.DECLARE_DOWN, node, reason)]
    actions += let_go_on(act, now, node)
    if incident.response is Response.ISOLATE and not situation.is_foreign:
        # Reported once what is urgent is done, and before what may take hours: other jobs' checkpoints, and their ends.
        actions.append(act.tell(_isolated(situation)))
    for move in later:
        actions += [*take_off(act, [move]), *let_go_on(act, [move], node)]
    if situation.is_foreign:
        # Without the reason that they gave: what others wrote goes into no message; `incidents` shows it.
        page = f"{node} is drained by someone else: its jobs were moved, the node is left to you"
        return (*actions, act.page(page))
    return (*actions, *_repair(situation, act, reason))


def _repair(situation: Situation, act: ActionMaker, reason: str) -> Sequence[Action]:
    incident, node = situation.incident, situation.node.node
    match incident.response:
        case Response.RETURN_TO_VENDOR:
            return [act.page(_handed_over(situation))]
        case Response.REIMAGE if situation.is_fenced_by_power:
            return [act.on_node(Verb.POWER_ON, node), act.on_node(Verb.REIMAGE, node, reason)]
        case Response.REIMAGE:
            return [act.on_node(Verb.REIMAGE, node, reason)]
        case _ if situation.is_fenced_by_power:
            # The fence has cut its power: giving it back covers a reset and a reboot, which it could not take.
            return [act.on_node(Verb.POWER_ON, node)]
        case Response.ISOLATE:
            return []  # No part is touched: its tests say what follows.
        case Response.POWER_CYCLE:
            return [act.on_node(Verb.POWER_OFF, node), act.on_node(Verb.POWER_ON, node)]
    gpus = sorted(gpus_to_reset(incident.findings))
    if incident.response is Response.RESET_GPU and gpus and not _asks_for_more_than_gpus(incident):
        return [act.on_gpu(node, gpu) for gpu in gpus]
    return [act.on_node(Verb.REBOOT, node, reason)]


def _isolated(situation: Situation) -> str:
    incident, node = situation.incident, situation.node.node
    belief = incident.hypothesis
    look = "look at it" if belief is None else FIRST_STEPS[belief.first_action]
    sureness = "" if belief is None else f" (sure to {belief.confidence:.2f})"
    moved = ", ".join(str(move.attempt.job) for move in situation.moves)
    left = ", ".join(str(job.job) for job in situation.left)
    jobs = (f"; it is moved off: job {moved}" if moved else "") + (f"; it ends there: job {left}" if left else "")
    return (
        f"{node} is isolated: {incident.cause}{sureness}{jobs}. No part of it was touched. Its tests follow: proven "
        f"well it returns by itself, otherwise it goes to the repair queue. What is called for: {look}."
    )


def _handed_over(situation: Situation) -> str:
    incident, node = situation.incident, situation.node.node
    tried = "; ".join(f"{each.response.name.lower().replace('_', ' ')}: {each.why}" for each in incident.tries)
    lacks = f" Not started: {situation.lacks}." if situation.lacks else ""
    return (
        f"{node} needs hands: {incident.cause}. Tried: {tried or 'nothing that is still allowed'}.{lacks} It stays "
        f"drained, in the repair queue; `ops-pipelines repair report {incident.incident}` is for the vendor, "
        f"`ops-pipelines repair done {incident.incident}` when it is repaired."
    )


def _asks_for_more_than_gpus(incident: Incident) -> bool:
    """Return whether something without a GPU of its own, such as an NVSwitch, calls for a reset: a reboot covers it."""
    return any(
        each.response is Response.RESET_GPU and each.gpu is None and not each.is_secondary for each in incident.findings
    )


def _one_a_service(moves: Sequence[Move]) -> list[Move]:
    """Return the moves that may be under way at once: of a service's replicas the first only, so that it serves."""
    first = {move.service: move for move in reversed(moves) if move.service}
    return [move for move in moves if not move.service or first[move.service] is move]


def _in_time_order(moves: Sequence[Move], situation: Situation) -> list[Move]:
    until = {timing.attempt: timing.until for timing in situation.timings}
    return sorted(moves, key=lambda move: (until.get(move.attempt) is None, until.get(move.attempt), move.attempt))


def _holds(actions: Sequence[Action]) -> list[Action]:
    return [action for action in actions if action.verb is Verb.HOLD]


def _reserves(actions: Sequence[Action]) -> list[Action]:
    return [action for action in actions if action.verb is Verb.RESERVE]


def notice_of(situation: Situation, job: JobStatus) -> str:
    """Return what the owner of a job is notified of: what is wrong, what happens to the job and when, what to do."""
    timing = situation.timing_of(job)
    where = f"Your job {job.job} runs on {situation.node.node}: {situation.incident.cause}. "
    match None if timing is None else timing.moment:
        case Moment.NOW if job.checkpointing is Checkpointing.NO:
            return where + "It starts again elsewhere; there is nothing for you to do."
        case Moment.NOW:
            return where + "It continues elsewhere from its last checkpoint; there is nothing for you to do."
        case Moment.NEXT_CHECKPOINT if timing is not None and timing.until is not None:
            return where + (
                "It continues elsewhere after its next checkpoint, at "
                f"{timing.until:%Y-%m-%d %H:%M} UTC at the latest; there is nothing for you to do."
            )
        case Moment.AFTER_NOTICE if timing is not None and timing.until is not None:
            return where + f"Please save: at {timing.until:%H:%M} UTC it is moved."
        case Moment.JOB_END:
            done = "tested" if situation.incident.response is Response.ISOLATE else "repaired"
            return where + f"It is left running, and the node is {done} when it ends; there is nothing for you to do."
    why = "it may not be moved" if timing is None else timing.reason
    return where + f"It is left running: {why}. Please save and end it."


def effects_of(situation: Situation, facts: ClusterFacts) -> tuple[str, ...]:
    """Return what the repair costs whom, one sentence a job; losses in GPU-hours, as if it were moved now."""
    effects = [f"job {attempt.job}, held by an earlier plan, is released" for attempt in situation.held]
    for job in situation.jobs:
        timing = situation.timing_of(job)
        if is_leaving(job) or timing is None:
            effects.append(f"job {job.job} is ending already; the repair waits until it is gone")
        elif timing.moment not in MOVED:
            effects.append(
                f"job {job.job} ({job.gpu_count} GPUs) is not touched; the repair waits until it ends: {timing.reason}"
            )
        elif job.checkpointed_at is None:
            effects.append(
                f"job {job.job} ({job.gpu_count} GPUs) is requeued; the age of its checkpoint is unknown"
                f"{_later(timing)}"
            )
        else:
            lost_seconds = max(0.0, (facts.taken_at - job.checkpointed_at).total_seconds())
            lost = lost_seconds * job.gpu_count / 3600
            effects.append(
                f"job {job.job} ({job.gpu_count} GPUs) is set back {lost_seconds:.0f} s to its last checkpoint: "
                f"{lost:.2f} GPU-hours{_later(timing)}"
            )
    return tuple(effects) or ("no job runs on it",)


def alternatives_to(situation: Situation, *, called_for: Response) -> tuple[str, ...]:
    """Return what else could be done, and why it is not: other repairs, other moments, and acts that may never be.

    `called_for` is what the findings ask for; the repair in `situation` may stand above it on the ladder.
    """
    incident = situation.incident
    rejected = [f"{_words(each.response)}: tried, {each.why}" for each in incident.tries]
    if called_for is Response.PAGE:
        rejected.append("page alone: until somebody came, its jobs would stay on a part that is believed to be bad")
    elif incident.response is not called_for and not incident.tries:
        rejected.append(f"{_words(called_for)}: tried on this node as often as policy.yaml allows")
    driver = [finding for finding in incident.findings if finding.is_driver_verdict]
    tables = {finding.response for finding in incident.findings if not finding.is_driver_verdict} & REPAIRS
    for other in sorted(tables - {incident.response} - {each.response for each in incident.tries}):
        by = "the driver itself asks for it" if driver else "a stronger finding asks for it"
        rejected.append(f"{_words(other)}: {_words(incident.response)} instead, because {by}")
    for timing in situation.timings:
        rejected += [
            f"job {timing.attempt.job}, {_words_of_moment(option.moment)}: "
            f"{option.lost_gpu_hours:.2f} GPU-hours expected; {option.why}"
            for option in timing.options
            if option.moment is not timing.moment
        ]
    if situation.is_fenced_by_power:
        rejected.append(
            "declaring the node down first: that starts a second copy of its jobs while the first still writes"
        )
    if situation.is_foreign:
        rejected.append("repairing the node: its drain is somebody else's")
    return tuple(rejected)


def _later(timing: JobTiming) -> str:
    """Return why a job is not moved at once, and until when at the latest."""
    if timing.moment is Moment.NOW:
        return ""
    until = "" if timing.until is None else f", at {timing.until:%H:%M} UTC at the latest"
    return f" if moved now; it is moved {_words_of_moment(timing.moment)}{until}: {timing.reason}"


def _words_of_moment(moment: Moment) -> str:
    return moment.value.replace("_", " ")


def _words(response: Response) -> str:
    return response.name.lower().replace("_", " ")


_GIVES_BACK = frozenset({Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE, Verb.UNRESERVE})


def within_consents(situation: Situation, policy: Policy) -> Situation:
    """Return the repair with every job left running that may not be moved, or could not be released on a silent node.

    What an earlier plan holds is still owed its release.
    """
    forbidden = next((kind for kind in _needed_to_move(situation) if _is_forbidden(kind, policy)), None)
    if forbidden is None:
        return situation
    reason = policy.says_of(forbidden)
    staying = (
        replace(each, moment=Moment.JOB_END, until=None, reason=reason) if each.moment in MOVED else each
        for each in situation.timings
    )
    return replace(situation, timings=tuple(staying), spares={})


def drain_first(actions: Sequence[Action], policy: Policy) -> tuple[Action, ...]:
    """Return the acts with the drain before the holds, where it needs nobody's approval and a hold does.

    Otherwise the jobs of a silent node are held first, because a drain may have to wait for budget; approval takes
    longer.
    """
    drains = tuple(each for each in actions if each.verb is Verb.DRAIN)
    waits = any(each.verb is Verb.HOLD and needs_yes(each, policy, among=actions) for each in actions)
    if not waits or any(needs_yes(each, policy) for each in drains):
        return tuple(actions)
    return (*drains, *(each for each in actions if each.verb is not Verb.DRAIN))


def up_to_forbidden(actions: Sequence[Action], situation: Situation, policy: Policy) -> tuple[Action, ...]:
    """Return the acts before the first forbidden one, and a page that names it in place of the rest.

    Only where they take the node out of service: a broken node that continues taking work is not better for having had
    a job moved off it. What an earlier plan holds on a silent node stays held, and the page says so.
    """
    number = next((index for index, each in enumerate(actions) if is_forbidden(each, policy)), None)
    if number is None:
        return tuple(actions)
    before = list(actions[:number])
    let_go = {each.attempt for each in before if each.verb is Verb.RELEASE}
    kept = [
        each for each in before if each.verb not in JOB_VERBS or each.attempt in let_go or _is_of_staying(each, before)
    ]
    if not any(each.verb is Verb.DRAIN for each in kept) and not situation.is_foreign:
        kept = []
    forbidden = actions[number]
    owed = [attempt.job for attempt in situation.held if attempt not in let_go]
    still_held = f" Still held by an earlier plan, to be released by you: job {', '.join(owed)}." if owed else ""
    done = "It is drained; " if any(each.verb is Verb.DRAIN for each in kept) else ""
    asked = f"{forbidden.verb.value.replace('_', ' ')} of {forbidden.target}"
    text = (
        f"{situation.node.node}: {situation.incident.cause}. {done}{policy.says_of(CLASS_OF[forbidden.verb])}, "
        f"so {asked} is left to you.{still_held}"
    )
    return (*kept, ActionMaker(situation.incident).page(text))


def is_forbidden(action: Action, policy: Policy) -> bool:
    """Return whether a plan must not hold this act: what gives back is never forbidden, nor are messages."""
    kind = None if action.verb in _GIVES_BACK else CLASS_OF.get(action.verb)
    return kind is not None and _is_forbidden(kind, policy)


def _is_of_staying(action: Action, before: Sequence[Action]) -> bool:
    """Return whether an act on a job is a word to the owner of one that is not moved: that stays true."""
    return action.verb is Verb.NOTIFY_OWNER and not any(
        each.verb is Verb.HOLD and each.attempt == action.attempt for each in before
    )


def _needed_to_move(situation: Situation) -> tuple[ActionClass, ...]:
    return (ActionClass.MOVE_JOBS, ActionClass.POWER) if situation.is_fenced_by_power else (ActionClass.MOVE_JOBS,)


def _is_forbidden(kind: ActionClass, policy: Policy) -> bool:
    return policy.consent_to(kind) is Consent.FORBID


_NAMED_COUNT = 8
_BURST = timedelta(seconds=10)
"""What a driver says of one fault comes within that."""
_INTENDED = PlanId("intended")


@dataclass(frozen=True, slots=True, kw_only=True)
class StormDrains:
    """Drains that may be started now, one page, and what that touches."""

    actions: tuple[Action, ...]
    effects: tuple[str, ...]
    proof: BlastRadius | None


def drain_struck(incident: Incident, facts: ClusterFacts, *, policy: Policy, topology: Topology) -> StormDrains:
    """Return the answer to the struck nodes of a mass event, by the time of what struck each last.

    Only what needs nobody's approval is drained: the person paged learns which nodes stay in service, and why.
    """
    act = ActionMaker(incident)
    drains: list[Action] = []
    left: dict[NodeName, str] = {}
    said = {node: _fault_of(incident, node) for node in incident.renewed}
    now_facts = facts
    for node in sorted(incident.renewed, key=lambda name: (said[name][0], name)):
        status = facts.nodes.get(node)
        if status is not None and status.is_drained:
            continue
        drain = act.on_node(Verb.DRAIN, node, drain_reason(incident.incident, said[node][1]))
        refusal = _why_not(drain, drains, now_facts, facts, policy=policy, topology=topology)
        if refusal is not None:
            left[node] = f"{refusal.guardrail}: {refusal.reason}"
            continue
        drains.append(drain)
        intended = ActionRecord(action=drain, plan=_INTENDED, begun_at=facts.taken_at)
        now_facts = replace(now_facts, records=(*now_facts.records, intended))
    page = act.page(_storm_text(incident, drains, left, {node: why for node, (_, why) in said.items()}))
    effects = tuple(f"{drain.node} takes no new jobs; what runs there continues" for drain in drains[:_NAMED_COUNT])
    return StormDrains(
        # The first drain is the reflex's. The page waits for no other: one that must wait is not to keep it back.
        actions=(*drains[:1], page, *drains[1:]),
        effects=effects or ("nothing is touched",),
        proof=prove(tuple(drains), (), facts, policy=policy, topology=topology) if drains else None,
    )


def _why_not(
    drain: Action,
    before: list[Action],
    facts_then: ClusterFacts,
    facts: ClusterFacts,
    *,
    policy: Policy,
    topology: Topology,
) -> Refusal | None:
    refusal = judge(drain, facts_then, policy=policy, topology=topology, authority=Authority.AUTOPILOT)
    return refusal or judge_proof(prove((*before, drain), (), facts, policy=policy, topology=topology))


def _fault_of(incident: Incident, node: NodeName) -> tuple[float, str]:
    """Return when the newest hard fault of a node was seen, for sorting, and what it was: the fault before the wish."""
    hard = [each for each in incident.findings if each.node == node and is_hard(each)]
    if not hard:
        return 0.0, "a hard fault"
    newest_at = max(each.last_at or each.found_at for each in hard)
    burst = [each for each in hard if newest_at - (each.last_at or each.found_at) <= _BURST]
    return newest_at.timestamp(), driving(burst).explanation.partition("; ")[0]


def _storm_text(incident: Incident, drains: list[Action], left: dict[NodeName, str], said: dict[NodeName, str]) -> str:
    drained = [drain.node for drain in drains if drain.node is not None]
    kinds = sorted({said[node] for node in incident.renewed})
    more = f" and {len(kinds) - _NAMED_COUNT} more kinds" if len(kinds) > _NAMED_COUNT else ""
    sentences = [
        f"{incident.incident}, a mass event that you have: {len(incident.renewed)} of its nodes broke again "
        f"({_listed(sorted(incident.renewed))}): {', '.join(kinds[:_NAMED_COUNT])}{more}",
        f"drained within the budget: {_listed(drained)}" if drained else "no node was drained",
    ]
    if left:
        why = sorted(set(left.values()))[0]
        sentences.append(
            f"left in service, where jobs may start on them: {_listed(sorted(left))} ({why}); drain them by hand, or "
            "make room"
        )
    return ". ".join(sentences) + ". Nothing stronger is done by itself."


def _listed(nodes: list[NodeName]) -> str:
    more = f" and {len(nodes) - _NAMED_COUNT} more" if len(nodes) > _NAMED_COUNT else ""
    return ", ".join(nodes[:_NAMED_COUNT]) + more
