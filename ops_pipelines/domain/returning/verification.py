"""Did it happen, and is it well again: what the world's state says of one action, and of one repaired node.

Recovery is by witness: nothing counts as done because it was sent. Reading the state belongs to `flow`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.domain.action import (
    MESSAGES,
    Action,
    ActionRecord,
    OutcomeKind,
    Testimony,
    Verb,
    Witness,
    reservation_of,
)
from ops_pipelines.domain.guardrails.judge import DRAIN_MARK
from ops_pipelines.domain.incident import Incident
from ops_pipelines.domain.meaning.finding import REPAIRS, Finding
from ops_pipelines.domain.observation import (
    CONDITION_SOURCES,
    HAS_PROCESSES,
    JobState,
    JobStatus,
    NodeInspection,
    NodeState,
    NodeStatus,
    Observation,
    PowerState,
    RecoveryAction,
    Signal,
    TelemetryStatus,
    has_moved_on,
)
from ops_pipelines.domain.policy import Durations

REPAIR_MARKS = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_ON, Verb.REIMAGE})
"""The acts with which a repair is done."""
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


class Recovery(Enum):
    """Whether a repaired node may go back into service."""

    RECOVERED = "recovered"
    PERSISTS = "persists"
    """The fault, or another one, is still there: a human decides."""
    UNKNOWN = "unknown"
    """Something could not be read. Never health: it is asked again until the time limit."""
    SOAKING = "soaking"
    """All well so far; the quiet time is not over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a node and every fact that it rests on."""

    recovery: Recovery
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBaseline:
    """What the node must have to be whole again: as declared, and as it was seen while healthy."""

    gpu_count: int


def repaired_at(records: tuple[ActionRecord, ...]) -> datetime | None:
    """Return when the last repair of an incident was witnessed, None if none was."""
    times = [
        record.outcome.finished_at
        for record in records
        if record.action.verb in REPAIR_MARKS and record.outcome is not None and record.outcome.kind is OutcomeKind.DONE
    ]
    return max(times, default=None)


def repair_finished_at(incident: Incident, records: tuple[ActionRecord, ...]) -> datetime:
    """Return since when a node must prove itself: the last repair, by us or by hands, of which anything is known.

    `records` are the incident's own. Where no repair was needed in the end it is the last act before the proof.
    """
    times = [each for each in (repaired_at(records), incident.mended_at) if each is not None]
    if times:
        return max(times)
    finished = [
        record.outcome.finished_at
        for record in records
        if record.outcome is not None and record.action.verb not in _PROOFS
    ]
    return max(finished, default=incident.changed_at)


_PROOFS = MESSAGES | {Verb.CHECK, Verb.PUT_LAST, Verb.RESUME}


@dataclass(frozen=True, slots=True, kw_only=True)
class TestsStanding:
    """How far the tests on the node are, and what they say so far."""

    __test__ = False

    are_running: bool = False
    waits_for: str = ""
    """What keeps them from being begun, such as a pause: that is no fault of the node, and no deadline runs meanwhile.
    Empty where nothing does."""
    faults: tuple[str, ...] = ()
    unknowns: tuple[str, ...] = ()
    proofs: tuple[str, ...] = ()
    """What passed, and in so many words what was not run."""


def judge_probation(
    incident: Incident,
    *,
    status: NodeStatus | None,
    inspection: NodeInspection | None,
    conditions: tuple[Observation, ...],
    baseline: NodeBaseline,
    durations: Durations,
    now: datetime,
) -> Verdict:
    """Return whether a node on probation goes on being like any other, has broken again, or is watched on.

    A condition must hold as long as on any node before it is believed. At the end the node's own check is asked for;
    `inspection` is None as long as nobody asked.
    """
    assert incident.returned_at is not None  # what is on probation was returned
    lasting = [
        observation
        for finding in incident.findings
        if finding.is_lasting and finding.response in REPAIRS and not finding.is_secondary
        for observation in finding.evidence
        if observation.observed_at > incident.returned_at
    ]
    held = [
        each
        for each in conditions
        if each.node in incident.nodes
        and each.observed_at > incident.returned_at
        and any((each.signal, each.gpu) == (known.signal, known.gpu) for known in lasting)
    ]
    for each in held:
        is_silent = each.signal is Signal.NODE_UNREACHABLE
        confirm = durations.confirm_unreachable_after if is_silent else durations.confirm_gpu_missing_after
        if now - each.observed_at >= confirm:
            return Verdict(recovery=Recovery.PERSISTS, facts=(f"seen again: {each.text or each.signal.value}",))
    ends_at = incident.returned_at + durations.probation
    if now < ends_at:
        left = f"on probation until {ends_at:%Y-%m-%d %H:%M:%S} UTC"
        return Verdict(recovery=Recovery.SOAKING, facts=(left,))
    faults: list[str] = []
    proofs: list[str] = []
    if inspection is not None:
        _judge_inspection(inspection, baseline, faults, proofs)
    if faults:
        return Verdict(recovery=Recovery.PERSISTS, facts=tuple(faults))
    if inspection is None or status is None or not status.is_responding or held:
        return Verdict(
            recovery=Recovery.UNKNOWN, facts=("the node could not be looked at when its probation was over",)
        )
    minutes = durations.probation.total_seconds() / 60
    length = f"{minutes / 60:g} h" if minutes >= 60 else f"{minutes:.1f} min"
    return Verdict(recovery=Recovery.RECOVERED, facts=(*proofs, f"well through {length} of probation"))


def judge_recovery(
    incident: Incident,
    *,
    repair_finished_at: datetime,
    status: NodeStatus | None,
    inspection: NodeInspection | None,
    telemetry: TelemetryStatus | None,
    conditions: tuple[Observation, ...],
    baseline: NodeBaseline,
    durations: Durations,
    now: datetime,
    tests: TestsStanding | None = None,
) -> Verdict:
    """Return whether a repaired node is proven well: by its own check and tests, fresh metrics, and quiet since then.

    Proof of absence of faults is asked for, not absence of proof: whatever could not be read makes the verdict
    unknown, and a fault seen anywhere outweighs everything else.
    """
    faults: list[str] = []
    unknowns: list[str] = []
    proofs: list[str] = []

    if inspection is None:
        unknowns.append("the node's own check could not be run")
    else:
        _judge_inspection(inspection, baseline, faults, proofs)
    if telemetry is None or telemetry.newest_sample_at <= repair_finished_at:
        unknowns.append("no metrics since the repair")
    elif len(telemetry.gpus_seen) < baseline.gpu_count:
        unknowns.append(f"metrics of {len(telemetry.gpus_seen)} of {baseline.gpu_count} GPUs only")
    else:
        proofs.append(f"fresh metrics of all {baseline.gpu_count} GPUs at {telemetry.newest_sample_at:%H:%M:%S} UTC")
    if status is None:
        unknowns.append("the scheduler does not list the node")
    elif not status.is_responding:
        unknowns.append("the scheduler gets no answer from the node yet")
    else:
        proofs.append("the scheduler reaches the node")
    held = [condition for condition in conditions if condition.node in incident.nodes]
    unknowns += [f"still seen: {condition.text or condition.signal.value}" for condition in held]
    faults += [
        f"after the repair: {finding.explanation}"
        for finding in incident.findings
        if finding.found_at > repair_finished_at and finding.response > 0 and _is_event(finding)
    ]

    if tests is not None:
        faults += tests.faults
        unknowns += tests.unknowns
        proofs += tests.proofs

    if faults:
        return Verdict(recovery=Recovery.PERSISTS, facts=tuple(faults))
    if unknowns:
        return Verdict(recovery=Recovery.UNKNOWN, facts=tuple(unknowns))
    quiet = now - repair_finished_at
    if tests is not None and tests.waits_for:
        return Verdict(recovery=Recovery.SOAKING, facts=(*proofs, f"its tests wait: {tests.waits_for}"))
    if tests is not None and tests.are_running:
        return Verdict(recovery=Recovery.SOAKING, facts=(*proofs, "the tests on the node still run"))
    if quiet < durations.soak:
        waited = f"quiet for {quiet.total_seconds():.0f} of {durations.soak.total_seconds():.0f} s"
        return Verdict(recovery=Recovery.SOAKING, facts=(*proofs, waited))
    return Verdict(
        recovery=Recovery.RECOVERED, facts=(*proofs, f"quiet for {quiet.total_seconds():.0f} s since the repair")
    )


def _is_event(finding: Finding) -> bool:
    """Return whether a finding rests on something that happened, such as a log line.

    A condition is judged by whether it still holds: exporters may show an old count for a scrape or two.
    """
    return all(observation.source not in CONDITION_SOURCES for observation in finding.evidence)


def _judge_inspection(inspection: NodeInspection, baseline: NodeBaseline, faults: list[str], proofs: list[str]) -> None:
    if len(inspection.gpus) < baseline.gpu_count:
        faults.append(f"{len(inspection.gpus)} of {baseline.gpu_count} GPUs present")
    else:
        proofs.append(f"{len(inspection.gpus)} of {baseline.gpu_count} GPUs present, boot id {inspection.boot_id[:8]}")
    for gpu in inspection.gpus:
        if gpu.recovery_action is not RecoveryAction.NONE:
            faults.append(f"GPU {gpu.gpu}: the driver asks for {gpu.recovery_action.name.lower().replace('_', ' ')}")
        if gpu.uncorrectable_ecc_count > 0:
            faults.append(f"GPU {gpu.gpu}: {gpu.uncorrectable_ecc_count} uncorrectable ECC errors")
        if gpu.is_row_remap_pending:
            faults.append(f"GPU {gpu.gpu}: a row remap still waits for a reset")
    faults.extend(inspection.failures)


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
