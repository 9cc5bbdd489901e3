"""The second opinion on one act, right before it is started: what must never be done, whatever a plan says.

Shares with the guardrails the nouns alone. They refuse; what is found here although they let it pass is a fault of
ours. Facts move between a plan's proof and its acts: this is where each act is proved again, on what was just read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, Action, ActionRecord, Verb
from ops_pipelines.core.identity import Digest, JobId, NodeName, digest_of, is_rollout
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobState, JobStatus, NodeStatus, has_moved_on
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.policy import Consent
from ops_pipelines.core.proof import PROVER_VERSION, ActProof
from ops_pipelines.remediate.plan_proof import CLASSES, caps_on, out_of_service, parts_of_cluster

_ENDS_WORK = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.REIMAGE, Verb.INSTALL, Verb.RELOAD_DRIVER, Verb.CHECK})
"""What is done to a node that is drained and empty. A power switch may also be the fence of a silent one."""
_SAME_ATTEMPT = frozenset({Verb.HOLD, Verb.MARK, Verb.UNMARK, Verb.EXCLUDE, Verb.RELEASE})


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What was just read, indexed once for all acts that are judged on it."""

    node_list: Sequence[NodeStatus]
    job_list: Sequence[JobStatus]
    taken_at: datetime
    rules: Rules
    rules_digest: Digest
    without_power: frozenset[NodeName] = frozenset()
    """Silent nodes whose power switch reads off."""

    @cached_property
    def nodes(self) -> Mapping[NodeName, NodeStatus]:
        return {node.node: node for node in self.node_list}

    @cached_property
    def jobs(self) -> Mapping[JobId, JobStatus]:
        return {job.job: job for job in self.job_list}

    @cached_property
    def busy(self) -> Mapping[NodeName, Sequence[JobStatus]]:
        """The jobs that may have processes on each node."""
        found: defaultdict[NodeName, list[JobStatus]] = defaultdict(list)
        for job in self.job_list:
            if job.state in MAY_HAVE_PROCESSES:
                for name in job.nodes:
                    found[name].append(job)
        return found

    @cached_property
    def not_working(self) -> frozenset[NodeName]:
        """The declared nodes that take no work, whatever was started since."""
        return out_of_service(self.node_list, (), self.rules, at=self.taken_at)

    @cached_property
    def parts(self) -> Mapping[NodeName, Sequence[tuple[tuple[str, str], frozenset[NodeName]]]]:
        """The parts of the cluster that each declared node belongs to, with all their members."""
        found: defaultdict[NodeName, list[tuple[tuple[str, str], frozenset[NodeName]]]] = defaultdict(list)
        for part, members in parts_of_cluster(self.node_list, self.rules).items():
            whole = frozenset(members)
            for name in whole:
                found[name].append((part, whole))
        return found


@dataclass(frozen=True, kw_only=True)
class Question:
    """One act, with what the ledger says by then."""

    action: Action
    sight: Sight
    records: Sequence[ActionRecord]
    is_by_hand: bool

    @cached_property
    def own(self) -> Sequence[ActionRecord]:
        """The records of the same cause."""
        return tuple(each for each in self.records if each.action.incident == self.action.incident)


def prove_act(
    action: Action, sight: Sight, *, records: Sequence[ActionRecord], is_by_hand: bool, now: datetime
) -> ActProof:
    """Return what the second opinion says of an act; `records` are the acts that the ledger shows in this moment.

    A check that raises, or says nothing that can be read, contradicts.
    """
    question = Question(action=action, sight=sight, records=records, is_by_hand=is_by_hand)
    return ActProof(
        act=action.key,
        version=PROVER_VERSION,
        made_at=now,
        seen=_digest_of(question),
        checks=tuple(ACT_CHECKS),
        contradictions=tuple(
            f"{name}: {found}" for name, check in ACT_CHECKS.items() for found in _contradictions(check, question)
        ),
    )


def _contradictions(check: Callable[[Question], Iterator[str]], question: Question) -> tuple[str, ...]:
    try:
        found = tuple(check(question))
    except Exception as problem:  # whatever it is, it is no proof
        return (f"the check itself failed: {problem!r}",)
    if not all(isinstance(each, str) for each in found):
        return (f"the check itself failed: it answered {found!r}",)
    return found


def _digest_of(question: Question) -> Digest:
    """Return a digest of the facts that the proof rests on: the node, the job, and who is out of service."""
    action, sight = question.action, question.sight
    node = None if action.node is None else sight.nodes.get(action.node)
    job = None if action.attempt is None else sight.jobs.get(action.attempt.job)
    return digest_of(
        sight.rules_digest,
        sight.taken_at.isoformat(),
        "" if node is None else f"{node.node} {node.state.value} {node.is_drained} {node.is_responding} {node.reason}",
        "" if job is None else f"{job.job} {job.state.value} {job.is_held} {job.started_at} {sorted(job.nodes)}",
        " ".join(sorted(sight.not_working)),
    )


def _unknown_target(question: Question) -> Iterator[str]:
    """A node is declared, known to the scheduler and not untouchable; a job is known."""
    action, sight = question.action, question.sight
    for name in (*([] if action.node is None else [action.node]), *action.spares):
        if name not in sight.rules.topology.places:
            yield f"{name} is not in cluster.yaml"
        if name not in sight.nodes:
            yield f"the scheduler does not know {name}"
        if name in sight.rules.policy.untouchable_nodes:
            yield f"{name} is untouchable"
    # What was kept free for a job is handed over whatever became of it.
    if action.attempt is not None and action.verb is not Verb.UNRESERVE and action.attempt.job not in sight.jobs:
        yield f"the scheduler does not know job {action.attempt.job}"


def _other_attempt(question: Question) -> Iterator[str]:
    """What is done to a job is done to the attempt that it was decided for."""
    action, job = question.action, _job_of(question)
    if job is not None and action.attempt is not None and action.verb in _SAME_ATTEMPT:
        if has_moved_on(job, action.attempt):
            yield f"job {job.job} runs another attempt by now"
        if action.verb in (Verb.HOLD, Verb.MARK) and not job.is_requeueable:
            yield f"job {job.job} must not be requeued"


def _lost_work(question: Question) -> Iterator[str]:
    """Nothing that ends work is done to a node that takes new work, or that has any."""
    action, sight = question.action, question.sight
    node = None if action.node is None else sight.nodes.get(action.node)
    if node is None or action.verb not in {*_ENDS_WORK, Verb.POWER_OFF}:
        return
    if not node.is_drained:
        yield f"{node.node} is not drained"
    for job in sight.busy.get(node.node, ()):
        # On a silent node a hold shows as a mark, or the job is completing without end: there the switch is the fence.
        is_fenced = action.verb is Verb.POWER_OFF and not node.is_responding
        if not (is_fenced and (job.is_held or job.state is JobState.COMPLETING)):
            yield f"job {job.job} may have processes on {node.node}"


def _two_writers(question: Question) -> Iterator[str]:
    """No job is released while processes of its attempt may still write: held, fenced, and each node heard or cut."""
    action, job = question.action, _job_of(question)
    if job is None or action.verb not in (Verb.RELEASE, Verb.UNMARK):
        return
    verb = Verb.HOLD if action.verb is Verb.RELEASE else Verb.MARK
    records = question.own if action.verb is Verb.RELEASE else question.records
    lifted = {
        each.action.part
        for each in question.own
        if each.action.verb is Verb.UNMARK and each.action.attempt == action.attempt and _is_done(each)
    }
    holds = [
        each
        for each in records
        if each.action.verb is verb
        and each.action.attempt == action.attempt
        and each.may_have_taken_effect
        and not (verb is Verb.MARK and each.action.incident == action.incident and each.action.part in lifted)
    ]
    if not any(each.attempt_nodes for each in holds):
        yield f"job {job.job} was not held by us"
        return
    if action.verb is Verb.RELEASE and not any(
        each.action.verb is Verb.FENCE and each.action.attempt == action.attempt and _is_done(each)
        for each in question.own
    ):
        yield f"the processes of job {job.job} are not witnessed gone"
    since = min(each.begun_at for each in holds)
    for name in sorted({name for each in holds for name in each.attempt_nodes}):
        node = question.sight.nodes.get(name)
        is_heard = node is not None and node.is_responding
        if not is_heard and name not in question.sight.without_power and not _was_cut(name, since, question.records):
            yield f"{name} is silent with its power on; job {job.job} may still write there"


def _was_cut(name: NodeName, since: datetime, records: Sequence[ActionRecord]) -> bool:
    return any(
        each.action.verb is Verb.POWER_OFF
        and each.action.node == name
        and each.took_effect
        and each.outcome is not None
        and each.outcome.finished_at >= since
        for each in records
    )


def _power_still_on(question: Question) -> Iterator[str]:
    """A node is called gone only once its power was witnessed off."""
    action = question.action
    if action.verb is Verb.DECLARE_DOWN and not any(
        each.action.verb is Verb.POWER_OFF and each.action.node == action.node and each.took_effect
        for each in question.own
    ):
        yield f"{action.node} is not witnessed powered off"


def _too_many_out(question: Question) -> Iterator[str]:
    """With one node more out of service every budget and cap on parts of the cluster holds."""
    action, sight = question.action, question.sight
    if action.verb is not Verb.DRAIN or action.node is None:
        return
    node = sight.nodes.get(action.node)
    if node is None or node.is_drained:
        return
    begun = out_of_service((), question.records, sight.rules, at=sight.taken_at)
    out = sight.not_working | begun | {action.node}
    for (kind, name), members in sight.parts.get(action.node, ()):
        gone, total = len(members & out), len(members)
        for is_passed, limit in caps_on(kind, gone, total, sight.rules.policy):
            if is_passed:
                yield f"{gone} of {total} nodes of {f'{kind} {name}'.strip()} would be out; {limit}"


def _in_freeze(question: Question) -> Iterator[str]:
    """In a freeze window nothing destructive is started that finishes nothing of what was started before it."""
    action, sight = question.action, question.sight
    now = sight.taken_at
    if action.verb not in DESTRUCTIVE_VERBS - {Verb.CHECK} or is_rollout(action.incident):
        return
    for window in sight.rules.policy.freeze_windows:
        is_let = action.verb is Verb.DRAIN and window.allows_drains
        if window.begins_at <= now < window.ends_at and not is_let and not _finishes_move(question):
            yield f"freeze window {window.name!r} holds"


def _finishes_move(question: Question) -> bool:
    """Return whether a job was held for this cause, or off this node, or power was cut: that comes to a good end."""
    return any(each.action.verb in (Verb.HOLD, Verb.POWER_OFF) for each in question.own) or any(
        each.action.verb is Verb.HOLD and question.action.node in each.attempt_nodes for each in question.records
    )


def _forbidden(question: Question) -> Iterator[str]:
    """The autopilot does nothing of a class that policy.yaml forbids. Power that was cut already is seen to its end."""
    verb, policy = question.action.verb, question.sight.rules.policy
    is_forbidden = verb in CLASSES and policy.consent_to(CLASSES[verb]) is Consent.FORBID
    was_cut = verb in (Verb.DECLARE_DOWN, Verb.POWER_ON) and any(
        each.action.verb is Verb.POWER_OFF and each.action.node == question.action.node for each in question.own
    )
    if is_forbidden and not was_cut and not question.is_by_hand and not is_rollout(question.action.incident):
        yield f"consents in policy.yaml forbid {CLASSES[verb].value}"


ACT_CHECKS: Mapping[str, Callable[[Question], Iterator[str]]] = {
    "target_is_known": _unknown_target,
    "attempt_is_the_same": _other_attempt,
    "no_work_is_lost": _lost_work,
    "never_two_writers": _two_writers,
    "power_is_off_first": _power_still_on,
    "caps_hold": _too_many_out,
    "freeze_windows_hold": _in_freeze,
    "consents_hold": _forbidden,
}
"""Each check of an act by its name: what must hold, and what finds the contradictions."""


def _job_of(question: Question) -> JobStatus | None:
    attempt = question.action.attempt
    return None if attempt is None else question.sight.jobs.get(attempt.job)


def _is_done(record: ActionRecord) -> bool:
    return record.outcome is not None and record.outcome.kind.value == "done"
