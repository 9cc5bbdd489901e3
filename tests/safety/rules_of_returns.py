"""What must never be done about the moment of a hold, spare nodes, nodes under proof, on probation or in repair.

Rules like those of `rules`; most of them rest on the ledger and on what the sender was reported, because the program
can know no more: a test that passes although a defect is there is no fault of its reader.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from ops_pipelines.core.action import MESSAGES, OutcomeKind, Verb
from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.node_tests import TestResult
from ops_pipelines.core.observation import JobState, NodeInspection, RecoveryAction, has_moved_on
from ops_pipelines.core.plan import IncidentPlan, JobTiming, Moment
from ops_pipelines.core.policy import ActionClass, Consent
from tests.safety.rules_of_rollouts import is_of_rollout, why_unproven
from tests.safety.scene import Rule, Scene

_REPAIRS = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.POWER_ON, Verb.REIMAGE})
_TOUCH_NO_NODE = MESSAGES | {Verb.MARK, Verb.UNMARK}
_LOOK_LASTS = timedelta(seconds=60)
"""True time; a look at the node that is older says nothing of now."""


def _moment(scene: Scene) -> str | None:
    """Judge a hold by the moment that its plan gives, and by what the scheduler has stated of the job since."""
    attempt, timing = scene.attempt, _timing(scene)
    if scene.command.verb is not Verb.HOLD or timing is None or attempt is None:
        return None
    job, at = scene.told_job, scene.command.said_at
    if job is not None and has_moved_on(job, attempt):
        return None  # Nothing is waited for any more; that it is held all the same is `same_attempt`'s.
    match timing.moment:
        case Moment.JOB_END | Moment.NEVER:
            return f"its plan leaves it running: {timing.moment.value}"
        case Moment.AFTER_NOTICE:
            told_at = [
                each.outcome.finished_at
                for each in scene.state.records
                if each.action.verb is Verb.NOTIFY_OWNER
                and each.action.attempt == attempt
                and each.outcome is not None
                and each.outcome.kind is OutcomeKind.DONE
            ]
            notice = scene.orders.policy.recovery.interactive_notice
            if not told_at:
                return "its owner was not notified, and it is interactive"
            return None if at - min(told_at) >= notice else f"its owner was notified {at - min(told_at)} ago"
        case Moment.NEXT_CHECKPOINT:
            is_over = timing.until is not None and at >= timing.until
            saved_at = None if job is None else job.checkpointed_at
            is_saved = saved_at is not None and (timing.checkpointed_at is None or saved_at > timing.checkpointed_at)
            is_worse = _is_worse(scene)
            return None if is_over or is_saved or is_worse else f"no checkpoint since that of {timing.checkpointed_at}"
    return None


def _timing(scene: Scene) -> JobTiming | None:
    timings = () if scene.plan is None else scene.plan.timings
    return next((each for each in timings if each.attempt == scene.attempt), None)


def _is_worse(scene: Scene) -> bool:
    """Return whether the job is dead, or there is reason to believe so: another fault than when its plan was made."""
    incident, plan = scene.incident, scene.plan
    if incident is None or plan is None or scene.told_job is None:
        return False
    job = scene.told_job.job
    is_hung = job in scene.progress and scene.progress[job].is_hung
    # A condition is dated by when it began, which may be before a plan that was made without it: it is reported late.
    is_said_to_hang = any(each.rule == "job_hung" and each.job == job for each in incident.findings)
    known = {_fault_of(each) for each in incident.findings if each.found_at <= _decided_at(plan)}
    is_other = any(_fault_of(each) not in known for each in incident.findings)
    return is_hung or is_said_to_hang or bool(incident.tries) or is_other


def _fault_of(finding: Finding) -> tuple[str, NodeName | None, Response]:
    """Return what notifies one fault from another: the same one is often reported twice, by a log and by the
    metrics."""
    return finding.rule, finding.node, finding.response


def _decided_at(plan: IncidentPlan) -> datetime:
    return min(each.decided_at for each in plan.timings)


def _serving_truth(scene: Scene) -> str | None:
    """Judge a hold by the replicas that really serve, where the ledger knows of the trouble of those that do not."""
    job = scene.told_job
    if scene.command.verb is not Verb.HOLD or job is None or not job.service or not scene.told.is_honest:
        return None
    own = scene.progress.get(job.job)
    if own is None or own.is_hung or own.has_ended_for_good:
        return None  # It serves nobody, and a hold takes nothing from what ends anyway.
    fellows = [each for each in scene.told.jobs.values() if (each.service, each.account) == (job.service, job.account)]
    running = [each for each in fellows if each.state is JobState.RUNNING]
    must = min(max((each.min_serving_count for each in running), default=0), len(running))
    serving = [
        each.job
        for each in fellows
        if each.job != job.job
        and each.state is JobState.RUNNING
        and not each.is_held
        and each.job in scene.progress
        and not scene.progress[each.job].is_hung
    ]
    hung = [
        each
        for each in fellows
        if each.job in scene.progress and scene.progress[each.job].is_hung and _is_known_broken(each.nodes, scene)
    ]
    if len(serving) >= must or len(serving) + len(hung) < must:
        return None
    return f"{len(serving)} other replicas really serve, {must} must"


def _is_known_broken(nodes: frozenset[NodeName], scene: Scene) -> bool:
    known = [each for each in scene.state.incidents if each.nodes & nodes and each.response in REPAIRS]
    return any(scene.command.said_at - each.opened_at > timedelta(seconds=10) for each in known)


def _reservation_end(scene: Scene) -> str | None:
    """Judge a reservation by its end: it must run out soon after holding and fencing should be over."""
    if scene.command.verb is not Verb.RESERVE:
        return None
    durations = scene.orders.policy.durations
    longest = durations.fence_limit + 4 * durations.command_limit + durations.run_patience
    if scene.command.until is None:
        return "it has no end"
    lasts = scene.command.until - scene.command.said_at
    return f"it keeps nodes free for {lasts}, and its use is over after {longest}" if lasts > longest else None


def _proven(scene: Scene) -> str | None:
    """Judge a return by the tests and the look at the node that came after its last repair."""
    incident, record = scene.incident, scene.record
    if scene.command.verb is not Verb.RESUME or scene.is_by_hand or record is None:
        return None
    if is_of_rollout(record):
        return why_unproven(scene)
    if incident is None or incident.state is not IncidentState.VERIFYING:
        return f"it is not under proof: {'no incident' if incident is None else incident.state.value}"
    ours = [each for each in scene.state.records if each.action.incident == incident.incident]
    repaired = max((position for position, each in enumerate(ours) if each.action.verb in _REPAIRS), default=-1)
    checks = [
        each
        for each in ours[repaired + 1 :]
        if each.action.verb is Verb.CHECK and each.action.try_number == incident.plan_count
    ]
    if not checks and scene.orders.policy.consents.get(ActionClass.CHECK) is Consent.FORBID:
        # The operator wants no tests: everything else must be well, and something must have been repaired.
        # What hands have repaired was repaired, too: no act of ours is on record, but somebody's word is.
        is_repaired = repaired >= 0 or scene.orders.called_mended[incident.incident] > 0
        return _why_not_whole(scene) if is_repaired else "nothing was repaired, and nothing was tested"
    if not checks:
        return "no test was started since its repair"
    outcome = checks[-1].outcome
    if outcome is None or outcome.kind is OutcomeKind.UNKNOWN:
        return "its tests came to no end"
    found = scene.told.checks.get(checks[-1].action.key)
    if outcome.kind is OutcomeKind.DONE and found is None:
        return "what its tests found was never read"
    if found is not None and any(each.result is TestResult.FAILED for each in found.tests):
        return f"its newest tests failed: {', '.join(e.test for e in found.tests if e.result is TestResult.FAILED)}"
    if incident.response is Response.ISOLATE and not any(each.action.verb in _REPAIRS for each in ours):
        # Nothing was repaired: only a test that can show a fault says that there is none.
        passed = {each.test for each in (() if found is None else found.tests) if each.result is TestResult.PASSED}
        if not passed - {"nvml", "nvidia_smi"}:
            return "nothing was repaired, and no test has passed that could show the fault"
    return _why_not_whole(scene)


def _why_not_whole(scene: Scene) -> str | None:
    looked = None if scene.command.node is None else scene.told.inspections.get(scene.command.node)
    if looked is None or scene.command.at - looked[1] > _LOOK_LASTS:
        return "nobody has looked at the node lately"
    inspection: NodeInspection | None = looked[0]
    if inspection is None:
        return "it did not answer when it was looked at"
    if len(inspection.gpus) < scene.orders.topology.gpus_per_node:
        return f"it showed {len(inspection.gpus)} GPUs"
    bad = [
        each.gpu
        for each in inspection.gpus
        if each.uncorrectable_ecc_count or each.recovery_action is not RecoveryAction.NONE or each.is_row_remap_pending
    ]
    return f"GPU {bad[0]} was not well when it was looked at" if bad else None


def _mended(scene: Scene) -> str | None:
    """Judge what is done to a node that waits for hands: nobody has called it repaired."""
    cause = None if scene.record is None else scene.record.action.incident
    if scene.is_by_hand or scene.command.verb in _TOUCH_NO_NODE or cause not in scene.orders.waiting_for_hands:
        return None
    return f"{cause} waits for hands, and nobody called it repaired"


def _probation_cap(scene: Scene) -> str | None:
    """Judge a return by the nodes on probation: as the scheduler marks them, and as the ledger knows them."""
    if scene.command.verb is not Verb.RESUME or is_of_rollout(scene.record):
        return None
    nodes = scene.told.nodes
    newest = {command.node: record for command, record in scene.accepted if command.verb is Verb.PUT_LAST}
    # What soaks after an update was not broken.
    watched = {name for name, node in nodes.items() if node.is_last_choice and not is_of_rollout(newest.get(name))}
    watched |= {name for each in scene.state.incidents if each.state is IncidentState.PROBATION for name in each.nodes}
    in_service = {
        name
        for name in watched
        if name in nodes and name != scene.command.node and not nodes[name].is_drained
        if scene.orders.topology.knows(name)
    }
    cap = scene.orders.policy.blast_caps.max_on_probation_count
    return f"{len(in_service)} others are on probation, {cap} allowed" if len(in_service) >= cap else None


RULES_OF_RETURNS: Mapping[str, Rule] = {
    "moment": _moment,
    "serving_truth": _serving_truth,
    "reservation_end": _reservation_end,
    "proven": _proven,
    "mended": _mended,
    "probation_cap": _probation_cap,
}
"""Of these `probation_cap` is a guardrail; what keeps the others, planner or proof, is made to err by `slips`."""
