"""Is it well again: the verdict on a repaired node before it is returned, and at the end of its probation.

Proof of absence of faults is asked for, not absence of proof. Whether an act happened at all is `verbs`'; reading the
node's state, and returning it, belongs to `verify` and `probation`.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.action import MESSAGES, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import (
    CONDITION_SOURCES,
    NodeInspection,
    NodeStatus,
    Observation,
    RecoveryAction,
    Signal,
    TelemetryStatus,
    seen_by_ourselves,
)
from ops_pipelines.core.policy import Durations
from ops_pipelines.diagnose.incidents import is_shown_again

REPAIR_MARKS = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_ON, Verb.REIMAGE})
"""The acts with which a repair is done."""


class Recovery(Enum):
    """Whether a repaired node may return to service."""

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
    """What keeps them from being started, such as a pause: that is no fault of the node, and no deadline runs
    meanwhile. Empty where nothing does."""
    faults: tuple[str, ...] = ()
    unknowns: tuple[str, ...] = ()
    proofs: tuple[str, ...] = ()
    """What passed, and in so many words what was not run."""
    is_settling: bool = False
    """Whether a test passed that can show such a fault. Where nothing was repaired, nothing else shows it gone."""


def judge_probation(
    incident: Incident,
    *,
    status: NodeStatus | None,
    inspection: NodeInspection | None,
    conditions: tuple[Observation, ...],
    gpu_count: int,
    durations: Durations,
    now: datetime,
) -> Verdict:
    """Return whether a node on probation is like any other, has broken again, or is watched further.

    `gpu_count` is how many GPUs the node is declared to have. A condition must hold as long as on any node before it is
    believed. At the end the node's own check is asked for; `inspection` is None as long as nobody asked.
    """
    assert incident.returned_at is not None  # what is on probation was returned
    lasting = [
        observation
        for finding in incident.findings
        if finding.is_lasting
        and not finding.is_secondary
        and (finding.response in REPAIRS or is_shown_again(incident, finding))
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
        confirm = durations.confirm_after(is_silent=each.signal is Signal.NODE_UNREACHABLE)
        if now - each.observed_at >= confirm:
            return Verdict(recovery=Recovery.PERSISTS, facts=(f"seen again: {each.text or each.signal.value}",))
    ends_at = incident.returned_at + durations.probation
    if now < ends_at:
        left = f"on probation until {ends_at:%Y-%m-%d %H:%M:%S} UTC"
        return Verdict(recovery=Recovery.SOAKING, facts=(left,))
    faults: list[str] = []
    proofs: list[str] = []
    if inspection is not None:
        _judge_inspection(inspection, gpu_count, faults, proofs)
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
    gpu_count: int,
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
        _judge_inspection(inspection, gpu_count, faults, proofs)
    if telemetry is None or telemetry.newest_sample_at <= repair_finished_at:
        unknowns.append("no metrics since the repair")
    elif len(telemetry.gpus_seen) < gpu_count:
        unknowns.append(f"metrics of {len(telemetry.gpus_seen)} of {gpu_count} GPUs only")
    else:
        proofs.append(f"fresh metrics of all {gpu_count} GPUs at {telemetry.newest_sample_at:%H:%M:%S} UTC")
    if status is None:
        unknowns.append("the scheduler does not list the node")
    elif not status.is_responding:
        unknowns.append("the scheduler gets no answer from the node yet")
    else:
        proofs.append("the scheduler reaches the node")
    held = [condition for condition in seen_by_ourselves(conditions) if condition.node in incident.nodes]
    unknowns += [f"still seen: {condition.text or condition.signal.value}" for condition in held]
    faults += [
        f"after the repair: {finding.explanation}"
        for finding in incident.findings
        if finding.found_at > repair_finished_at and finding.response is not Response.MONITOR and _is_event(finding)
    ]

    if tests is not None:
        faults += tests.faults
        unknowns += tests.unknowns
        proofs += tests.proofs
        is_over = not (tests.are_running or tests.waits_for or tests.unknowns or tests.is_settling)
        if incident.response is Response.ISOLATE and is_over and not faults:
            said = "; ".join(tests.proofs) or "none was run"
            faults.append(f"no test that can show the fault has passed, and nothing was repaired: {said}")

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


def _judge_inspection(inspection: NodeInspection, gpu_count: int, faults: list[str], proofs: list[str]) -> None:
    if len(inspection.gpus) < gpu_count:
        faults.append(f"{len(inspection.gpus)} of {gpu_count} GPUs present")
    else:
        proofs.append(f"{len(inspection.gpus)} of {gpu_count} GPUs present, boot id {inspection.boot_id[:8]}")
    for gpu in inspection.gpus:
        if gpu.recovery_action is not RecoveryAction.NONE:
            faults.append(f"GPU {gpu.gpu}: the driver asks for {gpu.recovery_action.name.lower().replace('_', ' ')}")
        if gpu.uncorrectable_ecc_count > 0:
            faults.append(f"GPU {gpu.gpu}: {gpu.uncorrectable_ecc_count} uncorrectable ECC errors")
        if gpu.is_row_remap_pending:
            faults.append(f"GPU {gpu.gpu}: a row remap still waits for a reset")
    faults.extend(inspection.failures)
