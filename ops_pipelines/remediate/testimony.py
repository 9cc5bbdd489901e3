"""Did it happen: what the world's state says of one action, and how actions and their outcomes are told.

Recovery is by witness: nothing counts as done because it was sent. Reading the state belongs to
`remediate.acts.commands`;
whether a repaired node is well again is `verification`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from ops_pipelines.core.action import DRAIN_MARK, Action, ActionRecord, Testimony, Verb, Witness, reservation_of
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
from ops_pipelines.core.rollout import InstallReport, InstallState

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
    """Whoever installs answers, and was never told of the installation."""
    versions: Mapping[Component, str] | None = None
    """What runs on the node."""
    wanted_versions: Mapping[Component, str] = field(default_factory=dict)
    """What a restart of the driver is to bring."""


def testify(record: ActionRecord, scene: Scene) -> Testimony:
    """Return what the scene says of an action that was begun: done, provably not done, or unknown.

    Messages cannot be witnessed afterwards: without a receipt in the ledger they are unknown.
    """
    return _TESTIMONIES.get(record.action.verb, _cannot_tell)(record, scene)


def _of_drain(record: ActionRecord, scene: Scene) -> Testimony:
    node = scene.node
    if node is None:
        return _unknown("the node's state could not be read")
    ours = (node.reason or "").startswith(f"{DRAIN_MARK} {record.action.incident}:")
    if node.is_drained and ours:
        return _done(f"drain flag read back with our reason: {node.reason}")
    if node.is_drained:
        return _not_done(f"drained by someone else: {node.reason}")
    return _not_done("the drain flag is not set")


def _of_hold(record: ActionRecord, scene: Scene) -> Testimony:
    job = scene.job
    if job is None:
        return _unknown("the job's state could not be read")
    if _has_begun_again(record, job):
        return _unknown("the job is on another attempt")
    if job.is_held:
        return _done(f"held, {job.state.value}")
    if job.state is JobState.COMPLETING:
        return _unknown("its processes are ending; the hold shows when they are gone")
    return _not_done(f"not held, {job.state.value}")


def _of_fence(record: ActionRecord, scene: Scene) -> Testimony:
    job = scene.job
    if job is None:
        return _unknown("the job's state could not be read")
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


def _of_declare_down(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.node is None:
        return _unknown("the node's state could not be read")
    return _done("reads down") if scene.node.state is NodeState.DOWN else _not_done(f"reads {scene.node.state.value}")


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


def _of_put_last(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.node is None:
        return _unknown("the node's state could not be read")
    return _done("last choice") if scene.node.is_last_choice else _not_done("chosen like any other")


def _of_put_back(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.node is None:
        return _unknown("the node's state could not be read")
    return _not_done("still last choice") if scene.node.is_last_choice else _done("chosen like any other")


def _of_check(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.is_check_over is None:
        return _unknown("the node does not answer")
    return _done("the tests are over") if scene.is_check_over else _unknown("the tests run")


def _of_install(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.is_install_unknown:
        return _not_done("no installation was begun under our key")
    if scene.install is None:
        return _unknown("whoever installs does not answer")
    said = f": {scene.install.said}" if scene.install.said else ""
    if scene.install.state is InstallState.FAILED:
        return Testimony(witness=Witness.FAILED, seen=f"the installation failed{said}")
    if scene.install.state is InstallState.INSTALLED:
        return _done(f"installed{said}")
    if scene.install.state is InstallState.WAITING:
        return Testimony(witness=Witness.PARTLY_DONE, seen=f"a part is installed{said}")
    return _unknown(f"the installation runs{said}")


def _of_reload(record: ActionRecord, scene: Scene) -> Testimony:
    """A driver that was loaded anew shows in what runs: no boot tells of it."""
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


def _of_exclude(record: ActionRecord, scene: Scene) -> Testimony:
    job = scene.job
    if job is None:
        return _unknown("the job's state could not be read")
    if record.action.node in job.excluded_nodes:
        return _done(f"kept off {', '.join(sorted(job.excluded_nodes))}")
    return _not_done("the exclusion is not set")


def _of_release(record: ActionRecord, scene: Scene) -> Testimony:
    job = scene.job
    if job is None:
        return _unknown("the job's state could not be read")
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


def _of_resume(record: ActionRecord, scene: Scene) -> Testimony:
    if scene.node is None:
        return _unknown("the node's state could not be read")
    if scene.node.is_drained:
        return _not_done(f"still drained: {scene.node.reason}")
    if scene.node.state is NodeState.DOWN:
        return _not_done("still down")
    return _done("the drain flag is gone")


def _cannot_tell(record: ActionRecord, scene: Scene) -> Testimony:
    return _unknown("a message leaves no trace that could be read back")


_TESTIMONIES = {
    Verb.DRAIN: _of_drain,
    Verb.HOLD: _of_hold,
    Verb.MARK: _of_hold,
    Verb.UNMARK: _of_release,
    Verb.FENCE: _of_fence,
    Verb.POWER_OFF: _of_power_off,
    Verb.DECLARE_DOWN: _of_declare_down,
    Verb.EXCLUDE: _of_exclude,
    Verb.RELEASE: _of_release,
    Verb.RESET_GPU: _of_reset,
    Verb.RESERVE: _of_reserve,
    Verb.UNRESERVE: _of_unreserve,
    Verb.PUT_LAST: _of_put_last,
    Verb.PUT_BACK: _of_put_back,
    Verb.CHECK: _of_check,
    Verb.INSTALL: _of_install,
    Verb.RELOAD_DRIVER: _of_reload,
    Verb.REIMAGE: _of_boot,
    Verb.REBOOT: _of_boot,
    Verb.POWER_ON: _of_boot,
    Verb.RESUME: _of_resume,
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
