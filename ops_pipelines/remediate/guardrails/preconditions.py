"""What must hold before each verb: one function a verb, for what is right about this one target at this moment.

How many may be touched, and how often, is `budgets`; who may act at all, and when, is `guardrails`.
"""

from collections.abc import Mapping
from datetime import datetime

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb, reservation_of, witness_limit
from ops_pipelines.core.identity import NodeName, is_rollout
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, Checkpointing, JobState, NodeState, has_moved_on
from ops_pipelines.core.proof import Refusal, never, wait
from ops_pipelines.remediate.guardrails.facts import (
    Case,
    Rule,
    being_moved,
    drain_owner,
    has_died_with_its_node,
    held_and_not_released,
    is_begun,
    is_done,
    is_drain_of,
    jobs_on,
    mark_on,
    power_cut_at,
)


def _judge_drain(case: Case) -> Refusal | None:
    node = case.node
    if node.is_drained and not is_drain_of(case.action.incident, node, case.facts.records):
        return never("foreign_drain", f"{node.node} is already drained by someone else ({node.reason}); left alone")
    return None


def _judge_ours(case: Case) -> Refusal | None:
    node = case.node
    if not node.is_drained:
        return never("our_drain", f"{node.node} is not drained; somebody returned it, so it is left alone")
    if drain_owner(node, case.facts.records) != case.action.incident:
        return never("our_drain", f"{node.node} is drained by someone else ({node.reason}); left alone")
    return None


def _judge_put_last(case: Case) -> Refusal | None:
    """Judge as any act on a node of ours; once it is back, what the scheduler forgot may be set again."""
    action = case.action
    is_said_again = is_rollout(action.incident) or is_done(
        case.facts, verb=Verb.PUT_LAST, incident=action.incident, node=action.node
    )
    if not case.node.is_drained and is_said_again:
        return None
    return _judge_ours(case)


def _judge_idle(case: Case) -> Refusal | None:
    """Judge what would end whatever still runs on the node; tests on it would also fight with a job for its GPUs."""
    name = case.node.node
    busy = jobs_on(name, case.facts)
    if busy:
        names = ", ".join(job.job for job in busy)
        return wait("idle_node", f"{name} still runs job(s) {names}; it waits until they are gone")
    return _judge_unheard(case) or _judge_hidden_work(case)


_END_WORK = frozenset({Verb.REBOOT, Verb.POWER_OFF, Verb.REIMAGE, Verb.INSTALL, Verb.RELOAD_DRIVER})


def _judge_unheard(case: Case) -> Refusal | None:
    """Refuse where a node fell silent before anything was started on it: its jobs, given up, may still run there."""
    node, incident = case.node, case.action.incident
    if node.is_responding or any(
        is_begun(case.facts, verb=verb, incident=incident, node=node.node) for verb in _END_WORK
    ):
        return None
    return wait("silent_node", f"{node.node} does not answer; what ran there when it fell silent may still run")


def _judge_hidden_work(case: Case) -> Refusal | None:
    """Refuse where GPUs are in use by no job that we can see: the scheduler may hide other people's jobs from us."""
    node = case.node
    if node.gpu_in_use_count > 0 and not jobs_on(node.node, case.facts):
        return wait(
            "hidden_work",
            f"{node.gpu_in_use_count} GPUs of {node.node} are in use by no job that the scheduler shows us",
        )
    return None


def _judge_idle_repair(case: Case) -> Refusal | None:
    return _judge_ours(case) or _judge_idle(case)


def _judge_reimage(case: Case) -> Refusal | None:
    """Installing again loses the node's own state: never before a restart of either kind was tried for this."""
    refusal = _judge_idle_repair(case)
    if refusal is not None:
        return refusal
    name, incident = case.node.node, case.action.incident
    if not any(is_begun(case.facts, verb=verb, incident=incident, node=name) for verb in (Verb.REBOOT, Verb.POWER_OFF)):
        return never("rung_order", f"{name} was neither rebooted nor power-cycled for {incident}; that comes first")
    return None


def _judge_power_off(case: Case) -> Refusal | None:
    """Judge the fence of a silent node, the next rung for an idle one that a reboot did not help, or an update."""
    foreign = _judge_ours(case)
    if foreign is not None:
        return foreign
    name = case.node.node
    if is_rollout(case.action.incident):
        return _judge_idle(case)  # What it installed takes effect by that; no reboot comes before.
    if case.node.is_responding:
        return _judge_rebooted(case) or _judge_idle(case)
    # On a silent node a hold shows as a mark on the running job (Slurm), or as completing without end.
    unheld = MAY_HAVE_PROCESSES - {JobState.COMPLETING}
    running = [job.job for job in jobs_on(name, case.facts) if job.state in unheld and not job.is_held]
    if running:
        return wait("held_first", f"job(s) {', '.join(running)} on {name} are not held yet; hold comes before fence")
    return _judge_hidden_work(case)


def _judge_rebooted(case: Case) -> Refusal | None:
    name = case.node.node
    reboots = [
        record
        for record in case.facts.records
        if record.action.verb is Verb.REBOOT
        and record.action.node == name
        and record.action.incident == case.action.incident
    ]
    if not reboots:
        return never(
            "answers_again",
            f"{name} answers; power is cut only from a node that is silent, or that a reboot did not help",
        )
    if not any(_is_over(record, case) for record in reboots):
        return wait("answers_again", f"{name} answers, and its reboot is still under way")
    return None


def _is_over(record: ActionRecord, case: Case) -> bool:
    """Return whether an act has an outcome of any kind, or should have had one by now."""
    limit = witness_limit(record.action.verb, case.policy)
    return record.outcome is not None or case.facts.taken_at - (record.sent_at or record.begun_at) > limit


def _judge_declare_down(case: Case) -> Refusal | None:
    foreign = _judge_ours(case)
    if foreign is not None:
        return foreign
    if not is_done(case.facts, verb=Verb.POWER_OFF, incident=case.action.incident, node=case.action.node):
        return never("off_first", f"{case.action.node} is not witnessed powered off; down is no fence")
    return None


def _judge_hold(case: Case) -> Refusal | None:
    job = case.job
    if not job.is_requeueable:
        return never("requeueable", f"job {job.job} must not be requeued; its owner is notified instead")
    if job.checkpointing is Checkpointing.NO and not has_died_with_its_node(case):
        return never(
            "requeueable", f"job {job.job} keeps no checkpoint, so all its work would be lost; its owner is notified"
        )
    return _judge_attempt(case)


def _judge_mark(case: Case) -> Refusal | None:
    """Judge the mark of a job that a silent node may have ended: nothing that answers, and nothing of others."""
    job = case.job
    if not job.is_requeueable:
        return never("requeueable", f"job {job.job} must not be requeued, so the scheduler starts it nowhere else")
    silent = [name for name in sorted(job.nodes) if _is_silent_and_ours(name, case)]
    if not silent:
        return never("silent_node", f"no node of job {job.job} is silent and ours to see to")
    return _judge_attempt(case)


def _is_silent_and_ours(name: NodeName, case: Case) -> bool:
    node = case.facts.nodes.get(name)
    if node is None or node.is_responding or name in case.policy.untouchable_nodes or not case.topology.knows(name):
        return False
    return not node.is_drained or drain_owner(node, case.facts.records) is not None


def _judge_unmark(case: Case) -> Refusal | None:
    """Judge letting a marked job go: every node of its attempt answers, has no power, or had lost it since."""
    moved_on = _judge_attempt(case)
    if moved_on is not None:
        return moved_on
    attempt, job = case.action.attempt, case.job
    mark = mark_on(attempt, case.facts.records)
    if mark is None:
        return never("our_mark", f"job {job.job} has no mark of ours")
    if attempt in being_moved(case.facts):
        return never("our_mark", f"job {job.job} is moved by a plan, which releases it")
    if job.state is JobState.COMPLETING:
        return wait("silent_node", f"processes of job {job.job} are still ending")
    cut_at = power_cut_at(case.facts.records)
    for name in sorted(mark.attempt_nodes | job.nodes):
        node = case.facts.nodes.get(name)
        is_clear = (node is not None and node.is_responding) or name in case.facts.without_power
        if not is_clear and not (name in cut_at and cut_at[name] >= mark.begun_at):
            return wait("silent_node", f"{name} is silent; processes of job {job.job} may still write there")
    return None


def _judge_release(case: Case) -> Refusal | None:
    moved_on = _judge_attempt(case)
    if moved_on is not None:
        return moved_on
    action, facts, job = case.action, case.facts, case.job
    ours = [
        record for record in held_and_not_released(action.incident, facts) if record.action.attempt == action.attempt
    ]
    if not any(record.attempt_nodes for record in ours):
        # A hold of what waited already, or somebody else's: nobody knows where its processes were, or may still be.
        return never("fenced_first", f"{action.incident} did not hold job {job.job} while it ran; who did releases it")
    if not is_done(facts, verb=Verb.FENCE, incident=action.incident, attempt=action.attempt):
        return wait("fenced_first", f"the processes of job {job.job} are not witnessed gone; release comes after fence")
    held_at = min(record.begun_at for record in ours)
    cut_at = power_cut_at(facts.records)
    for name in sorted(_nodes_of_attempt(case)):
        node = facts.nodes.get(name)
        if (node is not None and node.is_responding) or (name in cut_at and cut_at[name] >= held_at):
            continue
        if _is_fenced_by_another(name, case, since=held_at):
            return wait("silent_node", f"{name} is silent; job {job.job} stays held until its power is witnessed off")
        # The scheduler calls the job pending as soon as it gives a silent node up: that is no fence.
        return never(
            "silent_node",
            f"{name} fell silent with its power on; processes of job {job.job} may still write there, so the "
            "job stays held",
        )
    return None


def _is_fenced_by_another(name: NodeName, case: Case, *, since: datetime) -> bool:
    """Return whether another incident of ours has drained a silent node to cut its power, and has not failed to."""
    node = case.facts.nodes.get(name)
    other = None if node is None else drain_owner(node, case.facts.records)
    if other is None or other == case.action.incident:
        return False
    return not any(
        record.action.verb is Verb.POWER_OFF
        and record.action.incident == other
        and record.action.node == name
        and record.outcome is not None
        and record.outcome.kind is not OutcomeKind.DONE
        and record.outcome.finished_at >= since
        for record in case.facts.records
    )


def _nodes_of_attempt(case: Case) -> frozenset[NodeName]:
    """Return every node on which the attempt is known to have run, from its hold and its exclusions."""
    nodes: set[NodeName] = set()
    for record in case.facts.records:
        known = record.action
        if known.incident == case.action.incident and known.attempt == case.action.attempt:
            nodes |= record.attempt_nodes
            nodes |= {known.node} if known.verb is Verb.EXCLUDE and known.node is not None else set()
    return frozenset(nodes)


def _judge_attempt(case: Case) -> Refusal | None:
    attempt, job = case.action.attempt, case.job
    if attempt is not None and has_moved_on(job, attempt):
        return never("same_attempt", f"job {job.job} is on another attempt by now; this one is over")
    return None


def _judge_reserve(case: Case) -> Refusal | None:
    """Judge each spare node: in service, answering, idle, and kept for nobody yet."""
    for name in case.action.spares:
        why = _why_no_spare(name, case)
        if why:
            return wait("free_spares", f"{name} cannot be kept free for job {case.job.job}: {why}")
    return None


def _why_no_spare(name: NodeName, case: Case) -> str:
    node, busy = case.facts.nodes[name], jobs_on(name, case.facts)
    if node.is_drained:
        return "it is drained"
    if node.state is NodeState.DOWN or not node.is_responding:
        return "it does not answer"
    if busy:
        return f"it runs job {busy[0].job}"
    if node.gpu_in_use_count > 0:
        return "its GPUs are in use"
    is_kept = node.reserved_as in (None, reservation_of(case.action))  # Ours, where the same act is sent again.
    return "" if is_kept else f"it is reserved as {node.reserved_as}"


PRECONDITIONS: Mapping[Verb, Rule] = {
    Verb.DRAIN: _judge_drain,
    Verb.RESET_GPU: _judge_idle_repair,
    Verb.REBOOT: _judge_idle_repair,
    Verb.REIMAGE: _judge_reimage,
    Verb.INSTALL: _judge_idle_repair,
    Verb.RELOAD_DRIVER: _judge_idle_repair,
    Verb.CHECK: _judge_idle_repair,
    Verb.POWER_OFF: _judge_power_off,
    Verb.DECLARE_DOWN: _judge_declare_down,
    Verb.POWER_ON: _judge_ours,
    Verb.PUT_LAST: _judge_put_last,
    Verb.RESUME: _judge_ours,
    Verb.RESERVE: _judge_reserve,
    Verb.HOLD: _judge_hold,
    Verb.MARK: _judge_mark,
    Verb.UNMARK: _judge_unmark,
    Verb.RELEASE: _judge_release,
}
"""By verb. What is not here needs no more than a known target: fencing is waiting, and putting back harms nobody."""
