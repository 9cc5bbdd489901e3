"""The parts of the demo: what is broken, and the end that each must reach, judged on ground truth; and what happens in
the endless demo: one seeded fault after the other, and a technician for what waits for hands.

A fault is put into the simulated cluster only. What the end is judged on is `demo_evidence`; the parts that climb the
ladder are `demo_ladder`'s.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import Audience
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.drills.demo_evidence import Evidence, Injected, Part, expect, incident_words
from ops_pipelines_lab.drills.demo_ladder import HANDS, STUBBORN, TIMING, mend_by_hand
from ops_pipelines_lab.drills.demo_quotas import QUOTAS, consent_part
from ops_pipelines_lab.drills.demo_rollout import BAD_PART, GOOD_PART
from ops_pipelines_lab.simulator.commands import ImpossibleFaultError
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.ground_truth import JobProgress, read_nodes, read_progress
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.twin import Twin

_PARTITION_SECONDS = 22.0
_PARTITIONED_COUNT = 40
_LEAF = "leaf4"
LEAF_SECONDS = 60.0


def _training_job(twin: Twin, *, node_count: int) -> JobProgress:
    """Return a running training job on so many nodes that has checkpointed; the first submitted of them."""
    for job in read_progress(twin):
        if job.state is JobState.RUNNING and len(job.nodes) == node_count and job.checkpointed_at is not None:
            return job
    raise RuntimeError(f"no training job runs on {node_count} nodes; the demo's scenario has one")


def _inject_at(part: str, twin: Twin, fault: FaultKind, *, node_count: int, position: int, gpu: int | None) -> Injected:
    job = _training_job(twin, node_count=node_count)
    node = job.nodes[position]
    entry = twin.inject(fault, node, gpu=gpu)
    return Injected(part=part, at=entry.at, nodes=(node,), job=job)


def _healed(
    evidence: Evidence, *, repair: EntryKind, verbs: Sequence[Verb], never: Sequence[EntryKind]
) -> tuple[str, ...]:
    """Return what is missing: node repaired once and back, same job further on elsewhere, never two writers."""
    before = evidence.injected.job
    assert before is not None  # every healing part hits a job
    node, job, incidents = evidence.node(), evidence.job_now(), evidence.own_incidents
    done = [verb for verb in evidence.done_verbs() if verb in verbs]
    return expect(
        (len(incidents) == 1, f"one incident expected, {len(incidents)} found"),
        (
            all(incident.state is IncidentState.RESOLVED for incident in incidents),
            incident_words(incidents),
        ),
        (node.is_healthy, f"{node.node} is not healthy: {', '.join(node.faults)}"),
        (evidence.is_in_service(), f"{node.node} is not back in service"),
        (len(evidence.commands(repair)) == 1, f"{len(evidence.commands(repair))} x {repair.value} received, not 1"),
        (
            not evidence.commands(*never),
            f"unexpected: {', '.join(entry.kind.value for entry in evidence.commands(*never))}",
        ),
        (done == list(verbs), f"the ledger holds {', '.join(verb.value for verb in done) or 'nothing'}"),
        (job is not None and job.state is JobState.RUNNING, f"job {before.job} does not run again"),
        (job is not None and job.restart_count == before.restart_count + 1, f"job {before.job} was not restarted once"),
        (job is not None and node.node not in job.nodes, f"job {before.job} is on {node.node} again"),
        (
            job is not None and job.checkpointed_step_count > before.checkpointed_step_count,
            f"job {before.job} has not passed its checkpoint of step {before.checkpointed_step_count} yet",
        ),
        (not evidence.has_two_writers(), f"job {before.job} had two writers"),
    )


_MOVE_JOB = (Verb.DRAIN, Verb.HOLD, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE)
_RETURN = (Verb.CHECK, Verb.PUT_LAST, Verb.RESUME, Verb.PUT_BACK)


def _gpu_off_bus(evidence: Evidence) -> tuple[str, ...]:
    return _healed(
        evidence,
        repair=EntryKind.REBOOT,
        verbs=(*_MOVE_JOB, Verb.REBOOT, *_RETURN),
        never=(EntryKind.RESET_GPU, EntryKind.POWER_OFF),
    )


def _silent_node(evidence: Evidence) -> tuple[str, ...]:
    return _healed(
        evidence,
        repair=EntryKind.POWER_OFF,
        verbs=(
            Verb.HOLD,
            Verb.DRAIN,
            Verb.POWER_OFF,
            Verb.DECLARE_DOWN,
            Verb.FENCE,
            Verb.EXCLUDE,
            Verb.RELEASE,
            Verb.POWER_ON,
            *_RETURN,
        ),
        never=(EntryKind.RESET_GPU, EntryKind.REBOOT),
    )


def _memory_error(evidence: Evidence) -> tuple[str, ...]:
    return _healed(
        evidence,
        repair=EntryKind.RESET_GPU,
        verbs=(*_MOVE_JOB, Verb.RESET_GPU, *_RETURN),
        never=(EntryKind.REBOOT, EntryKind.POWER_OFF),
    )


def _application_error(evidence: Evidence) -> tuple[str, ...]:
    incidents, commands = evidence.own_incidents, evidence.commands()
    told = evidence.message_count(Audience.OWNER, incidents)
    return expect(
        (len(incidents) == 1, f"one incident expected, {len(incidents)} found"),
        (all(each.state is IncidentState.RESOLVED for each in incidents), "the incident is not closed"),
        (not commands, f"the cluster was touched: {', '.join(entry.kind.value for entry in commands)}"),
        (told == 1, f"{told} messages to the owner"),
        (evidence.is_in_service(), f"{evidence.injected.nodes[0]} was taken out of service"),
    )


def _many_at_once(evidence: Evidence) -> tuple[str, ...]:
    incidents, commands = evidence.incidents, evidence.commands()
    mass = [incident for incident in incidents if incident.is_mass_event]
    down = [each.node for each in evidence.cluster.scheduler.read_nodes() if not each.is_responding]
    paged = evidence.message_count(Audience.ON_CALL, incidents)
    return expect(
        (not commands, f"the cluster was touched: {', '.join(entry.kind.value for entry in commands)}"),
        (len(mass) == 1, f"one mass event expected, {len(mass)} found"),
        # One says so; where jobs of many silent nodes were marked held, a second lists them.
        (paged in (1, 2), f"{paged} pages to a human, not 1 or 2"),
        (not down, f"{len(down)} nodes are still cut off"),
        (all(not incident.is_open for incident in incidents), "the incident is not closed after the network came back"),
    )


def _hung_job(evidence: Evidence) -> tuple[str, ...]:
    """Return what is missing: the node blamed and isolated, its job moved, tests and no repair, one quiet page."""
    (node,) = evidence.injected.nodes
    job = evidence.injected.job
    incidents = evidence.own_incidents
    paged = evidence.message_count(Audience.ON_CALL, incidents)
    blamed = {part.node for each in incidents if each.hypothesis for part in each.hypothesis.culprits}
    return expect(
        (len(incidents) == 1, f"one incident expected, {len(incidents)} found"),
        (blamed == {node}, f"{', '.join(sorted(map(str, blamed))) or 'nobody'} is blamed, not {node}"),
        (
            job is not None and all(any(each.job == job.job for each in one.victims) for one in incidents),
            "the job that hangs is not named as its victim",
        ),
        (paged == 1, f"{paged} pages, not 1"),
    ) + _healed(
        evidence,
        repair=EntryKind.START_CHECK,
        verbs=(*_MOVE_JOB, *_RETURN),
        never=(EntryKind.RESET_GPU, EntryKind.REBOOT, EntryKind.POWER_OFF),
    )


def nodes_of_leaf(twin: Twin) -> tuple[NodeName, ...]:
    """Return the nodes below the switch that goes down."""
    return tuple(node.name for node in twin.scenario.nodes if node.leaf_switch == _LEAF)


def _inject_leaf(twin: Twin) -> Injected:
    nodes = nodes_of_leaf(twin)
    entry = twin.inject(FaultKind.LEAF_SWITCH_DOWN, *nodes, seconds=LEAF_SECONDS)
    return Injected(part="g", at=entry.at, nodes=nodes, job=None)


def _leaf_switch(evidence: Evidence) -> tuple[str, ...]:
    incidents = [each for each in evidence.incidents if each.state is not IncidentState.MERGED]
    blamed = {part.name for each in incidents if each.hypothesis for part in each.hypothesis.culprits}
    paged = evidence.message_count(Audience.ON_CALL, incidents)
    commands = evidence.commands()
    return expect(
        (len(incidents) == 1, f"one incident expected, {len(incidents)} found"),
        (blamed == {_LEAF}, f"{', '.join(sorted(blamed)) or 'nobody'} is blamed, not {_LEAF}"),
        (
            all(set(evidence.injected.nodes) <= each.seen_on for each in incidents),
            "not every node of the switch is among its victims",
        ),
        (not commands, f"the cluster was touched: {', '.join(entry.kind.value for entry in commands)}"),
        (paged == 1, f"{paged} pages, not 1"),
    )


def _inject_many(twin: Twin) -> Injected:
    nodes = tuple(sorted(node.node for node in read_nodes(twin)))[:_PARTITIONED_COUNT]
    entry = twin.inject(FaultKind.NETWORK_PARTITION, *nodes, seconds=_PARTITION_SECONDS)
    return Injected(part="f", at=entry.at, nodes=nodes, job=None)


_CONSENT = consent_part(reboot_count=3)  # of (a), (i) and (j)

PARTS: tuple[Part, ...] = (
    Part(
        letter="a",
        title="a GPU falls off the bus under a 16-GPU training job (Xid 79)",
        inject=lambda twin: _inject_at("a", twin, FaultKind.GPU_FELL_OFF_BUS, node_count=2, position=0, gpu=3),
        differences=_gpu_off_bus,
        limit_seconds=300.0,
    ),
    Part(
        letter="b",
        title="a node stops answering",
        inject=lambda twin: _inject_at("b", twin, FaultKind.NODE_UNREACHABLE, node_count=8, position=5, gpu=None),
        differences=_silent_node,
        limit_seconds=300.0,
    ),
    Part(
        letter="c",
        title="an application error (Xid 31)",
        inject=lambda twin: _inject_at("c", twin, FaultKind.APPLICATION_XID31, node_count=4, position=1, gpu=0),
        differences=_application_error,
        limit_seconds=60.0,
    ),
    Part(
        letter="d",
        title="an uncorrectable ECC error that asks for a GPU reset (Xid 48, 154)",
        inject=lambda twin: _inject_at("d", twin, FaultKind.UNCORRECTABLE_ECC, node_count=6, position=2, gpu=6),
        differences=_memory_error,
        limit_seconds=300.0,
    ),
    Part(
        letter="e",
        title="a rank of a 128-GPU training stops and the job hangs, without a word in any log",
        inject=lambda twin: _inject_at("e", twin, FaultKind.RANK_STOPS, node_count=16, position=9, gpu=0),
        differences=_hung_job,
        limit_seconds=300.0,
    ),
    Part(
        letter="f",
        title=f"{_PARTITIONED_COUNT} nodes look broken at once",
        inject=_inject_many,
        differences=_many_at_once,
        limit_seconds=60.0,
    ),
    Part(
        letter="g",
        title="a leaf switch goes down: one incident, not 16 nodes",
        inject=_inject_leaf,
        differences=_leaf_switch,
        limit_seconds=150.0,
    ),
    TIMING,
    STUBBORN,
    HANDS,
    _CONSENT,
    GOOD_PART,
    BAD_PART,
    QUOTAS,
)
SIDE_BY_SIDE: tuple[Part, ...] = (GOOD_PART, BAD_PART, *PARTS[:4], STUBBORN, HANDS, _CONSENT, TIMING, PARTS[4])
"""They hit different nodes, and begin as soon as their moment has come, in this order."""
ALONE = (QUOTAS, *PARTS[5:7])
"""Quotas are shared out of nodes that are all well; the others hit too many nodes for anything else to happen."""


_MAY_NEED_HANDS = frozenset({FaultKind.GPU_FELL_OFF_BUS, FaultKind.UNCORRECTABLE_ECC})
_NEEDS_HANDS = 0.15
"""How often such a fault ends with a new GPU only."""
_HANDS_AFTER = timedelta(seconds=30)


def mend_what_waits(cluster: Cluster, twin: Twin, *, state: Path, call: Callable[[Sequence[str]], str]) -> None:
    """Let a technician see to the repair queue, half a minute after a node was put there."""
    now = cluster.clock.now()
    for incident in cluster.ledger.read_state(now).incidents:
        if incident.state is IncidentState.IN_REPAIR and now - incident.changed_at > _HANDS_AFTER:
            mend_by_hand(incident, twin=twin, state=state, call=call)


def break_something(twin: Twin, chance: random.Random) -> None:
    """Put one seeded fault into the hardware, where it can happen."""
    with suppress(ImpossibleFaultError):  # What broke before may be in its way, or a node may go down in this moment.
        _break(twin, chance)


def _break(twin: Twin, chance: random.Random) -> None:
    kinds = [
        FaultKind.GPU_FELL_OFF_BUS,
        FaultKind.NODE_UNREACHABLE,
        FaultKind.APPLICATION_XID31,
        FaultKind.UNCORRECTABLE_ECC,
        FaultKind.LEAF_SWITCH_DOWN,
        FaultKind.RANK_STOPS,
        FaultKind.ROW_REMAP_WAITS,
    ]
    fault = chance.choices(kinds, weights=[3, 2, 3, 3, 1, 1, 2])[0]
    healthy = {node.node for node in read_nodes(twin) if node.is_healthy}
    if fault is FaultKind.LEAF_SWITCH_DOWN:
        if healthy.issuperset(nodes_of_leaf(twin)):
            twin.inject(fault, *nodes_of_leaf(twin), seconds=LEAF_SECONDS)
        return
    if fault is FaultKind.RANK_STOPS and any(job.is_hung for job in read_progress(twin)):
        return  # One hang at a time shows it.
    training = [
        job
        for job in read_progress(twin)
        if job.state is JobState.RUNNING and not job.is_hung and job.user.endswith("-train")
    ]
    targets = sorted({node for job in training for node in job.nodes} & healthy)
    if not targets:
        return
    gpu = None if fault is FaultKind.NODE_UNREACHABLE else chance.randrange(8)
    course = Course(cure=Cure.REPLACEMENT) if fault in _MAY_NEED_HANDS and chance.random() < _NEEDS_HANDS else None
    twin.inject(fault, chance.choice(targets), gpu=gpu, course=course)
