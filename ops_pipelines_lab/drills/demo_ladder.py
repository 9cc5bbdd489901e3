"""The parts of the demo that climb: when a job is moved, a repair that does not help, a node that needs hands.

What is broken is put into the simulated hardware, and hands are a technician's: both are outside of the program. A
repair report is asked for, and the word that a node is repaired is given, on the command line, as a person does it.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from ops_pipelines.core.action import OutcomeKind, Verb
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.notes import Audience
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.plan import JobTiming, Moment
from ops_pipelines_lab.drills.demo_evidence import (
    Evidence,
    Injected,
    Part,
    expect,
    incident_words,
    job_of,
)
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.ground_truth import JobProgress, read_losses, read_nodes, read_progress
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.scenario import PARTITION, SWEEP_GAP_SECONDS, SWEEP_INTERVAL_SECONDS
from ops_pipelines_lab.simulator.twin import Twin

_FRESH_SECONDS = 5.0
"""A checkpoint of this age at most is worth more than the wait for the next one: the program must see that."""
_LEAST_WAIT_SECONDS = 6.0
"""Time for the plan to be made before the other checkpoint is there."""
_ABOUT_TO_SAVE = timedelta(seconds=SWEEP_INTERVAL_SECONDS - SWEEP_GAP_SECONDS)
_BROKEN_GPU = 5


# -- when a job is moved --


def _find_pair(twin: Twin) -> tuple[JobProgress, JobProgress] | None:
    """Return a trial of the sweep that has just saved, and the one that saves next; None while no pair is so."""
    now = twin.now()
    trials = {
        job.name: (job, now - job.checkpointed_at)
        for job in read_progress(twin)
        if job.name.startswith("sweep-") and job.state is JobState.RUNNING and job.checkpointed_at is not None
    }
    for fresh, age in trials.values():
        number = int(fresh.name.removeprefix("sweep-"))
        following = trials.get(f"sweep-{number + 1}")
        if age > timedelta(seconds=_FRESH_SECONDS) or following is None or following[1] < _ABOUT_TO_SAVE:
            continue
        if timedelta(seconds=SWEEP_INTERVAL_SECONDS) - following[1] >= timedelta(seconds=_LEAST_WAIT_SECONDS):
            return fresh, following[0]
    return None


def _inject_pair(twin: Twin) -> Injected:
    pair = _find_pair(twin)
    if pair is None:
        raise RuntimeError("no trial of the sweep has just saved; ask `is_ready` first")
    fresh, stale = (
        Injected(
            part="h",
            at=twin.inject(FaultKind.ROW_REMAP_WAITS, job.nodes[0], gpu=_BROKEN_GPU).at,
            nodes=job.nodes,
            job=job,
        )
        for job in pair
    )
    return Injected(part="h", at=fresh.at, nodes=fresh.nodes, job=fresh.job, others=(stale,))


def _timing_of(evidence: Evidence) -> JobTiming | None:
    """Return when the job was to be moved by the first plan of its incident."""
    plans = [
        plan
        for record in evidence.records()
        if record.plan is not None and (plan := evidence.cluster.ledger.plan(record.plan)) is not None
    ]
    timings = [timing for plan in plans[:1] for timing in plan.timings if timing.attempt.job == job_of(evidence)]
    return timings[0] if timings else None


def _held_at(evidence: Evidence) -> datetime | None:
    return next((entry.at for entry in evidence.commands(EntryKind.HOLD)), None)


def _lost_gpu_hours(evidence: Evidence) -> float:
    return sum(loss.unsaved_gpu_hours for loss in read_losses(evidence.twin) if loss.attempt.job == job_of(evidence))


def _differences_of_pair(evidence: Evidence) -> tuple[str, ...]:
    (other,) = evidence.injected.others
    return (*_moved_at(evidence, Moment.NOW), *_moved_at(evidence.of(other), Moment.NEXT_CHECKPOINT))


def _moved_at(evidence: Evidence, moment: Moment) -> tuple[str, ...]:
    """Return what is missing: the job moved at this moment, hardly any work lost, the node reset once and back."""
    before, job, node, incidents = evidence.injected.job, evidence.job_now(), evidence.node(), evidence.own_incidents
    assert before is not None
    assert before.checkpointed_at is not None  # chosen by its checkpoint
    timing, held_at = _timing_of(evidence), _held_at(evidence)
    saves_at = before.checkpointed_at + timedelta(seconds=SWEEP_INTERVAL_SECONDS)
    is_in_time = held_at is not None and (held_at < saves_at) is (moment is Moment.NOW)
    at_stake = SWEEP_INTERVAL_SECONDS * before.gpu_count / 3600
    lost = _lost_gpu_hours(evidence)
    return expect(
        (
            len(incidents) == 1 and incidents[0].state is IncidentState.RESOLVED,
            f"one healed incident of {node.node} expected: {incident_words(incidents)}",
        ),
        (
            timing is not None and timing.moment is moment,
            f"job {before.job} was to be moved {moment.value}: {'no timing' if timing is None else timing.reason}",
        ),
        (is_in_time, f"job {before.job}, which saves at {saves_at:%H:%M:%S}, was held at {held_at}"),
        (lost < at_stake / 5, f"job {before.job} lost {lost:.2f} of {at_stake:.2f} GPU-hours of work"),
        (job is not None and job.state is JobState.RUNNING, f"job {before.job} does not run again"),
        (job is not None and job.restart_count == before.restart_count + 1, f"job {before.job} was not restarted once"),
        (job is not None and node.node not in job.nodes, f"job {before.job} is on {node.node} again"),
        (not evidence.has_two_writers(), f"job {before.job} had two writers"),
        (len(evidence.commands(EntryKind.RESET_GPU)) == 1, f"{node.node}: one GPU reset expected"),
        (not evidence.commands(EntryKind.REBOOT, EntryKind.POWER_OFF), f"{node.node} was restarted"),
        (node.is_well and evidence.is_in_service(), f"{node.node} is not back in service"),
    )


def _tell_pair(evidence: Evidence) -> tuple[str, ...]:
    return tuple(_tell_move(each) for each in (evidence, *map(evidence.of, evidence.injected.others)))


def _tell_move(evidence: Evidence) -> str:
    before, timing, held_at = evidence.injected.job, _timing_of(evidence), _held_at(evidence)
    if before is None or timing is None or held_at is None or timing.checkpointed_at is None:
        return f"job {job_of(evidence)}: no moment was chosen"
    age_seconds = (timing.decided_at - timing.checkpointed_at).total_seconds()
    costs = ", ".join(
        f"{option.moment.value.replace('_', ' ')} {option.lost_gpu_hours:.2f}" for option in timing.options
    )
    waited_seconds = (held_at - timing.decided_at).total_seconds()
    return (
        f"{before.name} (job {before.job}), checkpoint {age_seconds:.0f} s old: expected GPU-hours {costs}; "
        f"moved {timing.moment.value.replace('_', ' ')}, {waited_seconds:.0f} s after the decision; work lost: "
        f"{_lost_gpu_hours(evidence):.2f} GPU-hours"
    )


# -- a repair that does not help --


def _free_node(twin: Twin, *, position: int) -> NodeName:
    """Return an idle node without a fault, counted from the end: jobs are placed from the beginning.

    Of the partition of the jobs that break: the others are updated meanwhile.
    """
    with twin.present() as world:
        busy = {name for job in world.controller.jobs.values() for name in job.allocation}
    named = [each.name for each in twin.scenario.nodes if PARTITION in each.partitions and each.name not in busy]
    healthy = {truth.node for truth in read_nodes(twin) if truth.is_well and truth.reserved_as is None}
    free = sorted(set(named) & healthy)
    if len(free) < position:
        raise RuntimeError(f"{len(free)} nodes are free; the demo's scenario leaves {position} or more")
    return free[-position]


def _inject_stubborn(twin: Twin) -> Injected:
    node = _free_node(twin, position=1)
    course = Course(cure=Cure.REBOOT)
    entry = twin.inject(FaultKind.UNCORRECTABLE_ECC, node, gpu=_BROKEN_GPU, course=course)
    return Injected(part="i", at=entry.at, nodes=(node,), job=None)


def _reset_did_not_help(evidence: Evidence) -> tuple[str, ...]:
    incidents, node, done = evidence.own_incidents, evidence.node(), evidence.done_verbs()
    tries = [each.response for incident in incidents for each in incident.tries]
    resets = [record for record in evidence.records() if record.action.verb is Verb.RESET_GPU]
    is_reset_useless = any(each.outcome is not None and each.outcome.kind is not OutcomeKind.DONE for each in resets)
    return expect(
        (
            len(incidents) == 1 and incidents[0].state is IncidentState.RESOLVED,
            f"one healed incident of {node.node} expected: {incident_words(incidents)}",
        ),
        (tries == [Response.RESET_GPU], f"tried in vain: {', '.join(each.name for each in tries) or 'nothing'}"),
        (is_reset_useless or not resets, "the ledger says that the reset helped"),
        (len(evidence.commands(EntryKind.RESET_GPU)) == 1, f"{node.node}: one GPU reset expected"),
        (len(evidence.commands(EntryKind.REBOOT)) == 1, f"{node.node}: one reboot expected"),
        (not evidence.commands(EntryKind.POWER_OFF), f"the power of {node.node} was cut"),
        (
            done[-4:] == (Verb.CHECK, Verb.PUT_LAST, Verb.RESUME, Verb.PUT_BACK),
            f"the ledger ends with {', '.join(verb.value for verb in done[-4:]) or 'nothing'}",
        ),
        (node.is_well, f"{node.node} is not well: {', '.join((*node.faults, *node.defects))}"),
        (evidence.is_in_service(), f"{node.node} is not in service like any other"),
    )


def _tell_reset(evidence: Evidence) -> tuple[str, ...]:
    return tuple(
        f"{evidence.node().node}: {_words_of(each.response)} did not help ({each.why}); the next rung did, and "
        "probation ended well"
        for incident in evidence.own_incidents
        for each in incident.tries
    )


# -- a node that needs hands --


def _inject_relapsing(twin: Twin) -> Injected:
    node = _free_node(twin, position=2)
    with twin.present() as world:
        machine = world.hardware.nodes[node]
        serial = world.hardware.serial_of(machine, machine.gpus[_BROKEN_GPU])
    entry = twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=_BROKEN_GPU)
    return Injected(part="j", at=entry.at, nodes=(node,), job=None, serial=serial)


def _relapse_and_mend(evidence: Evidence) -> None:
    """Let the same GPU break again on probation, for good; once the node waits for hands, be the technician."""
    incident = next(iter(evidence.own_incidents), None)
    if incident is None:
        return
    node = evidence.node()
    if incident.state is IncidentState.PROBATION and len(evidence.faults()) == 1 and node.is_healthy:
        for_good = Course(cure=Cure.REPLACEMENT)
        evidence.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node.node, gpu=_BROKEN_GPU, course=for_good)
    elif incident.state is IncidentState.IN_REPAIR:
        mend_by_hand(incident, twin=evidence.twin, state=evidence.state, call=evidence.call)


def mend_by_hand(incident: Incident, *, twin: Twin, state: Path, call: Callable[[Sequence[str]], str]) -> None:
    """Do the next thing that a technician does for a node in the repair queue: read the report, replace, say so."""
    (name,) = incident.nodes
    node = next(each for each in read_nodes(twin) if each.node == name)
    if node.defects or not node.is_healthy:
        if node.is_up or not node.is_powered:
            _report_of(incident, state).write_text(call(("repair", "report", incident.incident)))
            twin.repair_by_hand(name)
        return
    call(("repair", "done", incident.incident, "--note", "replaced the GPU that the report names"))


def _report_of(incident: Incident, state: Path) -> Path:
    return state / f"repair-{incident.incident}.md"


def _came_back_mended(evidence: Evidence) -> tuple[str, ...]:
    incidents, node, done = evidence.own_incidents, evidence.node(), evidence.done_verbs()
    report = "".join(path.read_text() for each in incidents if (path := _report_of(each, evidence.state)).exists())
    hands = [entry for entry in evidence.twin.entries() if entry.kind is EntryKind.REPAIR_BY_HAND]
    of_node = [entry for entry in hands if entry.nodes == evidence.injected.nodes]
    paged = evidence.message_count(Audience.ON_CALL, incidents)
    return expect(
        (len(evidence.faults()) == 2, f"{node.node} was not on probation yet: {incident_words(incidents)}"),
        (
            len(incidents) == 1 and incidents[0].state is IncidentState.RESOLVED,
            f"one healed incident of {node.node} expected: {incident_words(incidents)}",
        ),
        (len(evidence.commands(EntryKind.REBOOT)) == 1, f"{node.node}: one reboot expected"),
        (len(evidence.commands(EntryKind.POWER_OFF)) == 1, f"{node.node}: one power cycle expected"),
        (len(of_node) == 1, f"{len(of_node)} repairs of {node.node} by hand, not 1"),
        (paged == 1, f"{paged} pages, not 1"),
        (
            evidence.injected.serial in report,
            f"the report does not name the GPU with serial {evidence.injected.serial}",
        ),
        (
            all(word in report.lower() for word in ("reboot", "power cycle")),
            "the report does not name what was tried",
        ),
        (done.count(Verb.RESUME) == 2, f"{node.node} was returned {done.count(Verb.RESUME)} time(s), not 2"),
        (done.count(Verb.PUT_BACK) == 1, f"{done.count(Verb.PUT_BACK)} probations of {node.node} ended well, not 1"),
        (node.is_well, f"{node.node} is not well: {', '.join((*node.faults, *node.defects))}"),
        (evidence.is_in_service(), f"{node.node} is not in service like any other"),
    )


def _tell_hands(evidence: Evidence) -> tuple[str, ...]:
    return tuple(
        f"{evidence.node().node}: a reboot helped until probation, a power cycle did not; report for the vendor: "
        f"{_report_of(each, evidence.state)}"
        for each in evidence.own_incidents
    )


def _words_of(response: Response) -> str:
    return response.name.lower().replace("_", " ")


TIMING = Part(
    letter="h",
    title="a row of GPU memory waits for its reset under two jobs: one has just saved, the other is about to",
    inject=_inject_pair,
    differences=_differences_of_pair,
    limit_seconds=300.0,
    is_ready=lambda twin: _find_pair(twin) is not None,
    tell=_tell_pair,
)
STUBBORN = Part(
    letter="i",
    title="a GPU reset does not help, a reboot does: back on probation, then like any other",
    inject=_inject_stubborn,
    differences=_reset_did_not_help,
    limit_seconds=300.0,
    tell=_tell_reset,
)
HANDS = Part(
    letter="j",
    title="a GPU falls off the bus again on probation: repair queue, report, a technician, and back",
    inject=_inject_relapsing,
    differences=_came_back_mended,
    limit_seconds=300.0,
    proceed=_relapse_and_mend,
    tell=_tell_hands,
)
