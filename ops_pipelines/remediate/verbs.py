"""Each verb: the command that is sent for it, what is read afterwards, and what that reading says of the act.

Recovery is by witness: nothing counts as done because it was sent. The release that an act of a rollout installs is the
one that the rollout was opened with, whatever the file says by now. Whether a command may be sent, and what follows
from its witness, is `perform`'s; whether a repaired node is well again, `verification`'s.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ops_pipelines.core.action import (
    DRAIN_MARK,
    Action,
    ActionRecord,
    Testimony,
    Verb,
    Witness,
    reservation_of,
)
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName, RolloutId
from ops_pipelines.core.node_tests import suite_named
from ops_pipelines.core.observation import (
    HAS_PROCESSES,
    JobState,
    JobStatus,
    NodeInspection,
    NodeState,
    NodeStatus,
    PowerState,
    RecoveryAction,
    has_moved_on,
)
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import (
    InstallOrder,
    InstallReport,
    InstallState,
    RolloutNode,
    UnorderableError,
    order_for,
    step_of,
)
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, mark_on

BOOT_TIME_JITTER = timedelta(seconds=3)
"""A boot time moves without a boot: slurmd computes it from its uptime, and it was seen to jump by a second (22.05)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What was read to judge an action. None means that it could not be read: unknown, never "no"."""

    node: NodeStatus | None = None
    job: JobStatus | None = None
    inspection: NodeInspection | None = None
    power: PowerState | None = None
    nodes: tuple[NodeStatus, ...] | None = None
    """All nodes, for what concerns several."""
    is_check_over: bool | None = None
    install: InstallReport | None = None
    is_install_unknown: bool = False
    """Who installs answers, and never heard of the installation."""
    versions: Mapping[Component, str] | None = None
    """What runs on the node."""
    wanted_versions: Mapping[Component, str] = field(default_factory=dict)
    """What a restart of the driver is to bring."""


def testify(record: ActionRecord, scene: Scene) -> Testimony:
    """Return what the scene says of an action that was started: done, provably not done, or unknown.

    Messages cannot be witnessed afterwards: without a receipt in the ledger they are unknown.
    """
    verb = record.action.verb
    if verb in _OF_NODES:
        return (
            _unknown("the node's state could not be read")
            if scene.node is None
            else _OF_NODES[verb](record, scene.node)
        )
    if verb in _OF_JOBS:
        return _unknown("the job's state could not be read") if scene.job is None else _OF_JOBS[verb](record, scene.job)
    if verb in _OF_SCENES:
        return _OF_SCENES[verb](record, scene)
    return _unknown("a message leaves no trace that could be read back")


def _of_drain(record: ActionRecord, node: NodeStatus) -> Testimony:
    ours = (node.reason or "").startswith(f"{DRAIN_MARK} {record.action.incident}:")
    if node.is_drained and ours:
        return _done(f"drain flag read back with our reason: {node.reason}")
    if node.is_drained:
        return _not_done(f"drained by someone else: {node.reason}")
    return _not_done("the drain flag is not set")


def _of_hold(record: ActionRecord, job: JobStatus) -> Testimony:
    if _has_begun_again(record, job):
        return _unknown("the job is on another attempt")
    if job.is_held:
        return _done(f"held, {job.state.value}")
    if job.state is JobState.COMPLETING:
        return _unknown("its processes are ending; the hold shows when they are gone")
    return _not_done(f"not held, {job.state.value}")


def _of_fence(record: ActionRecord, job: JobStatus) -> Testimony:
    if _has_begun_again(record, job):
        return _unknown("the job is on another attempt, which says nothing of this one")
    if job.state is JobState.UNKNOWN:
        return _unknown("the job is in a state that is not known here; its processes may still run")
    if job.state in HAS_PROCESSES:
        return _not_done(f"still {job.state.value}")
    if job.state is JobState.PENDING:
        return _done("pending: no step of the attempt is left")
    return _done(f"ended: {job.state.value}")


def _of_power_off(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.power is None or scene.power is PowerState.UNKNOWN:
        return _unknown("the power switch does not tell")
    if scene.power is PowerState.OFF:
        return _done("the power switch reads off")
    return _not_done("the power switch reads on")


def _of_declare_down(record: ActionRecord, node: NodeStatus) -> Testimony:
    return _done("reads down") if node.state is NodeState.DOWN else _not_done(f"reads {node.state.value}")


def _of_reserve(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.nodes is None:
        return _unknown("the nodes could not be read")
    name = reservation_of(record.action)
    kept = sorted(node.node for node in scene.nodes if node.reserved_as == name)
    if set(record.action.spares) <= set(kept):
        return _done(f"kept free as {name}: {', '.join(kept)}")
    return _not_done("the nodes are not reserved")


def _of_unreserve(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.nodes is None:
        return _unknown("the nodes could not be read")
    name = reservation_of(record.action)
    if any(node.reserved_as == name for node in scene.nodes):
        return _not_done(f"{name} is still there")
    return _done(f"{name} is gone")


def _of_put_last(record: ActionRecord, node: NodeStatus) -> Testimony:
    return _done("last choice") if node.is_last_choice else _not_done("chosen like any other")


def _of_put_back(record: ActionRecord, node: NodeStatus) -> Testimony:
    return _not_done("still last choice") if node.is_last_choice else _done("chosen like any other")


def _of_check(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.is_check_over is None:
        return _unknown("the node does not answer")
    return _done("the tests are over") if scene.is_check_over else _unknown("the tests run")


def _of_install(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.is_install_unknown:
        return _not_done("no installation was started under our key")
    if scene.install is None:
        return _unknown("who installs does not answer")
    said = f": {scene.install.said}" if scene.install.said else ""
    if scene.install.state is InstallState.FAILED:
        return Testimony(witness=Witness.FAILED, seen=f"the installation failed{said}")
    if scene.install.state is InstallState.INSTALLED:
        return _done(f"installed{said}")
    if scene.install.state is InstallState.WAITING:
        return Testimony(witness=Witness.PARTLY_DONE, seen=f"a part is installed{said}")
    return _unknown(f"the installation runs{said}")


def _of_reload(record: ActionRecord, scene: Scene) -> Testimony:
    """A driver that was loaded again shows in what runs: no boot reports it."""
    if scene.versions is None or not scene.wanted_versions:
        return _unknown("the node does not tell what it runs")
    missing = [each.value for each in scene.wanted_versions if each not in scene.versions]
    if missing:
        return _unknown(f"nothing answers for {', '.join(missing)} yet")
    old = [
        f"{each.value} runs {scene.versions[each]}, not {version}"
        for each, version in scene.wanted_versions.items()
        if scene.versions[each] != version
    ]
    if old:
        return _not_done(", ".join(old))
    return _done(", ".join(f"{each.value} runs {version}" for each, version in scene.wanted_versions.items()))


def _of_exclude(record: ActionRecord, job: JobStatus) -> Testimony:
    if record.action.node in job.excluded_nodes:
        return _done(f"kept off {', '.join(sorted(job.excluded_nodes))}")
    return _not_done("the exclusion is not set")


def _of_release(record: ActionRecord, job: JobStatus) -> Testimony:
    if job.is_held:
        return _not_done("still held")
    if _has_begun_again(record, job) and job.started_at is not None:
        return _done(f"runs again since {job.started_at:%H:%M:%S} UTC")
    return _done(f"no longer held, {job.state.value}")


def _has_begun_again(record: ActionRecord, job: JobStatus) -> bool:
    return record.action.attempt is not None and has_moved_on(job, record.action.attempt)


def _of_reset(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.inspection is None:
        return _unknown("the node could not be inspected")
    for gpu in scene.inspection.gpus:
        if gpu.gpu != record.action.gpu:
            continue
        if gpu.recovery_action is not RecoveryAction.NONE:
            return _not_done(f"the driver still asks for {gpu.recovery_action.name.lower()}")
        if gpu.uncorrectable_ecc_count > 0:
            return _not_done(f"{gpu.uncorrectable_ecc_count} uncorrectable ECC errors are still counted")
        return _done(f"GPU {gpu.gpu_uuid} present, asks for nothing, error counts 0")
    return _not_done(f"GPU {record.action.gpu} is not present")


def _of_boot(record: ActionRecord, scene: Scene) -> Testimony:
    """A new boot shows in the boot id, or, without an inspection, in a boot time later than before."""
    inspection = scene.inspection
    if inspection is None:
        return _unknown("the node does not answer yet")
    if record.boot_id_before is not None:
        if inspection.boot_id != record.boot_id_before:
            return _done(f"boot id changed, booted at {inspection.booted_at:%H:%M:%S} UTC")
        return _not_done("the boot id is the old one")
    since = record.begun_at if record.booted_before is None else record.booted_before + BOOT_TIME_JITTER
    if inspection.booted_at > since:
        return _done(f"booted at {inspection.booted_at:%H:%M:%S} UTC")
    return _not_done("the boot time is the old one")


def _of_resume(record: ActionRecord, node: NodeStatus) -> Testimony:
    if node.is_drained:
        return _not_done(f"still drained: {node.reason}")
    if node.state is NodeState.DOWN:
        return _not_done("still down")
    return _done("the drain flag is gone")


_OF_NODES: Mapping[Verb, Callable[[ActionRecord, NodeStatus], Testimony]] = {
    Verb.DRAIN: _of_drain,
    Verb.DECLARE_DOWN: _of_declare_down,
    Verb.PUT_LAST: _of_put_last,
    Verb.PUT_BACK: _of_put_back,
    Verb.RESUME: _of_resume,
}
_OF_JOBS: Mapping[Verb, Callable[[ActionRecord, JobStatus], Testimony]] = {
    Verb.HOLD: _of_hold,
    Verb.MARK: _of_hold,
    Verb.UNMARK: _of_release,
    Verb.FENCE: _of_fence,
    Verb.EXCLUDE: _of_exclude,
    Verb.RELEASE: _of_release,
}
_OF_SCENES: Mapping[Verb, Callable[[ActionRecord, Scene], Testimony]] = {
    Verb.POWER_OFF: _of_power_off,
    Verb.RESET_GPU: _of_reset,
    Verb.RESERVE: _of_reserve,
    Verb.UNRESERVE: _of_unreserve,
    Verb.CHECK: _of_check,
    Verb.INSTALL: _of_install,
    Verb.RELOAD_DRIVER: _of_reload,
    Verb.REIMAGE: _of_boot,
    Verb.REBOOT: _of_boot,
    Verb.POWER_ON: _of_boot,
}


def _done(seen: str) -> Testimony:
    return Testimony(witness=Witness.DONE, seen=seen)


def _not_done(seen: str) -> Testimony:
    return Testimony(witness=Witness.NOT_DONE, seen=seen)


def _unknown(seen: str) -> Testimony:
    return Testimony(witness=Witness.UNKNOWN, seen=seen)


def explain_action(action: Action) -> str:
    """Return the action as a person reads it: `drain gpu003`, `hold job 42`."""
    return f"{action.verb.value.replace('_', ' ')} {action.target}"


def count_outcomes(records: tuple[ActionRecord, ...]) -> Mapping[str, int]:
    """Return how many actions ended how; `open` counts those without an outcome."""
    counts: dict[str, int] = {}
    for record in records:
        name = record.outcome.kind.value if record.outcome is not None else "open"
        counts[name] = counts.get(name, 0) + 1
    return counts


def order_of(action: Action, cluster: Cluster) -> InstallOrder:
    """Return the order of the step that an act is about; raise SourceRefused where there is none, and why."""
    if action.node is None:
        raise SourceRefused(f"{action.verb.value} names no node; nothing was sent")
    rollout = cluster.ledger.rollout(RolloutId(action.incident))
    node = None if rollout is None else _node_of(rollout.rollout, action.node, cluster)
    if rollout is None or node is None:
        raise SourceRefused(f"{action.incident} is no rollout with {action.node}; nothing is installed outside one")
    try:
        step, direction = step_of(action.part)
        return order_for(cluster.ledger.release(rollout.release_digest), node, step=step, direction=direction)
    except UnorderableError as problem:
        raise SourceRefused(str(problem)) from problem


def _node_of(rollout: RolloutId, name: NodeName, cluster: Cluster) -> RolloutNode | None:
    return next((each for each in cluster.ledger.rollout_nodes(rollout) if each.node == name), None)


def look(action: Action, cluster: Cluster) -> Scene:
    """Read what bears witness of an action; what cannot be read stays None."""
    try:
        if action.verb in _OF_JOBS and action.attempt is not None:
            wanted = action.attempt.job
            return Scene(job=next((job for job in cluster.scheduler.read_jobs() if job.job == wanted), None))
        if action.verb in (Verb.RESERVE, Verb.UNRESERVE):
            return Scene(nodes=cluster.scheduler.read_nodes())
        if action.verb is Verb.CHECK and action.node is not None:
            return Scene(is_check_over=cluster.fleet.read_check(action.node, key=action.key) is not None)
        if action.verb is Verb.INSTALL and action.node is not None:
            report = cluster.fleet.read_install(action.node, key=action.key)
            return Scene(install=report, is_install_unknown=report is None)
        if action.verb is Verb.RELOAD_DRIVER and action.node is not None:
            versions = cluster.fleet.read_versions(action.node)
            return Scene(versions=versions, wanted_versions=order_of(action, cluster).versions)
        if action.verb in _OF_NODES:
            return Scene(node=next((node for node in cluster.scheduler.read_nodes() if node.node == action.node), None))
        if action.verb is Verb.POWER_OFF and action.node is not None:
            return Scene(power=cluster.fleet.power_state(action.node))
    except SourceError:
        return Scene()
    return Scene(inspection=None if action.node is None else inspect_node(action.node, cluster))


def inspect_node(node: NodeName, cluster: Cluster) -> NodeInspection | None:
    """Ask a node how it sees itself; None if it does not answer."""
    try:
        return cluster.fleet.inspect(node)
    except SourceError:
        return None


def send_command(action: Action, cluster: Cluster, facts: ClusterFacts) -> None:
    """Send the command of an action on the cluster.

    Raises SourceRefused if the system says no, SourceError if it does not answer: then it may have happened.
    """
    scheduler, fleet = cluster.scheduler, cluster.fleet
    if action.attempt is not None:
        job = action.attempt.job
        match action.verb:
            case Verb.FENCE:
                # Hold ends the steps; the fence is waiting until they are seen gone. On a node that was silent the hold
                # only marked the job: if all its nodes answer again, it is requeued now.
                marked = facts.jobs.get(job)
                is_marked = marked is not None and marked.state is JobState.RUNNING and marked.is_held
                if marked is not None and is_marked and _do_all_answer(marked, facts):
                    scheduler.hold(job)
            case Verb.HOLD:
                scheduler.hold(job)
            case Verb.MARK | Verb.UNMARK:
                send_marks([action], cluster, facts)
            case Verb.RELEASE:
                # What was marked first had a priority, which a release alone would not bring back.
                mark = mark_on(action.attempt, facts.records)
                scheduler.release(job) if mark is None else scheduler.unmark({job: mark.priority})
            case Verb.EXCLUDE if action.node is not None:
                scheduler.exclude(job, [action.node])
            case Verb.RESERVE:
                until = cluster.clock.now() + _room_for(cluster)
                scheduler.reserve(action.spares, name=reservation_of(action), until=until)
            case Verb.UNRESERVE:
                scheduler.unreserve(reservation_of(action))
    elif action.node is not None:
        match action.verb:
            case Verb.DRAIN:
                scheduler.drain([action.node], reason=action.text)
            case Verb.DECLARE_DOWN:
                scheduler.declare_down(action.node, reason=action.text)
            case Verb.RESUME:
                scheduler.resume(action.node)
            case Verb.PUT_LAST:
                scheduler.put_last(action.node)
            case Verb.PUT_BACK:
                scheduler.put_back(action.node)
            case Verb.REIMAGE:
                fleet.reimage(action.node, reason=action.text)
            case Verb.CHECK:
                suite = suite_named(action.suite, cluster.rules.catalogue.suites)
                fleet.start_check(action.node, suite=action.suite, tests=suite.tests, key=action.key)
            case Verb.INSTALL:
                fleet.start_install(action.node, order_of(action, cluster), key=action.key)
            case Verb.RELOAD_DRIVER:
                fleet.reload_driver(action.node)
            case Verb.REBOOT:
                fleet.reboot(action.node, reason=action.text)
            case Verb.POWER_OFF:
                fleet.power_off(action.node)
            case Verb.POWER_ON:
                fleet.power_on(action.node)
            case Verb.RESET_GPU if action.gpu is not None:
                fleet.reset_gpu(action.node, action.gpu)


def send_marks(actions: Sequence[Action], cluster: Cluster, facts: ClusterFacts) -> None:
    """Send marks, or what takes them off, with one command for all; raises as `send_command` does."""
    attempts = [action.attempt for action in actions if action.attempt is not None]
    if actions[0].verb is Verb.MARK:
        cluster.scheduler.mark(attempts)
        return
    marks = {attempt.job: mark_on(attempt, facts.records) for attempt in attempts}
    cluster.scheduler.unmark({job: None if mark is None else mark.priority for job, mark in marks.items()})


def _room_for(cluster: Cluster) -> timedelta:
    """Return how long spare nodes are kept free at most: what holding and fencing may take."""
    durations = cluster.rules.policy.durations
    return durations.fence_limit + 4 * durations.command_limit + durations.run_patience


def _do_all_answer(job: JobStatus, facts: ClusterFacts) -> bool:
    return all(name in facts.nodes and facts.nodes[name].is_responding for name in job.nodes)
