"""The parts of the demo that update: a good release goes over a rack, a bad one is stopped on its first nodes.

Two racks stand beside the cluster that breaks, each with nodes of a model of its own: no job of the others comes there,
and no fault but what a release brings. What a version does to a node is known to the simulated hardware alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import NodeName, cause_of
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import FINAL, NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.report.document import clipped
from ops_pipelines_lab.drills.demo_evidence import Evidence, Injected, Part, expect
from ops_pipelines_lab.drills.demo_setup import (
    BAD,
    BAD_RACK,
    BAD_VERSION,
    GOOD,
    GOOD_RACK,
    GOOD_VERSION,
    MOST_OUT,
    NewRack,
)
from ops_pipelines_lab.simulator.ground_truth import read_nodes, read_progress
from ops_pipelines_lab.simulator.journal import EntryKind
from ops_pipelines_lab.simulator.scenario import Arrivals, JobSpec, Scenario, SimulatedNode
from ops_pipelines_lab.simulator.twin import Twin
from ops_pipelines_lab.simulator.versions import ReleaseFault, ReleaseTrouble

_LIMIT_SECONDS = 900.0
"""As slow as a machine may be that does much else: 432 s were seen, half of that where it does nothing else."""
_LONGEST_REASON = 200
_NO_ACT = frozenset({Verb.PAGE_HUMAN, Verb.NOTIFY_OWNER})
_MOVES = (EntryKind.HOLD, EntryKind.REQUEUE, EntryKind.RELEASE)
_JOB_SECONDS = (8.0, 16.0)
_JOB_GAP_SECONDS = 1.7
"""Of the jobs on the rack of the good release: as many as its nodes can take, so that each that soaks works."""


def with_racks(scenario: Scenario) -> Scenario:
    """Return the demo's cluster with the racks that are updated, the work on them, and what the bad version does."""
    evaluation = JobSpec(
        name="checkpoint-eval",
        user="platform-eval",
        account="platform",
        workload=Workload.BATCH,
        partition=GOOD_RACK.partition,
        is_requeueable=False,
        time_limit_seconds=60.0,
    )
    return replace(
        scenario,
        nodes=(*scenario.nodes, *_nodes(GOOD_RACK), *_nodes(BAD_RACK)),
        arrivals=(
            *scenario.arrivals,
            Arrivals(
                job=evaluation,
                mean_gap_seconds=_JOB_GAP_SECONDS,
                min_work_seconds=_JOB_SECONDS[0],
                max_work_seconds=_JOB_SECONDS[1],
            ),
        ),
        release_faults=(
            ReleaseFault(component=Component.KERNEL, version=BAD_VERSION, trouble=ReleaseTrouble.LOSES_GPU),
        ),
    )


def _nodes(rack: NewRack) -> Iterator[SimulatedNode]:
    for name in rack.nodes:
        yield SimulatedNode(name=name, rack=rack.name, leaf_switch=rack.leaf_switch, partitions=(rack.partition,))


def _begin(twin: Twin, *, letter: str, rack: NewRack) -> Injected:
    """Change nothing yet: `_lead` starts the rollout as a person does."""
    return Injected(part=letter, at=twin.now(), nodes=rack.nodes, job=None)


def _lead(evidence: Evidence, *, release: str) -> None:
    """Do what is left to people: start the rollout, and answer for what a gate cannot decide within seconds."""
    rollout = _rollout(evidence, release)
    if rollout is None:
        _say(evidence, "rollout", "start", release)
    elif rollout.state is RolloutState.ASKING:
        _say(
            evidence, "rollout", "resume", rollout.rollout, "--reason", "the demo has seconds where the gate wants days"
        )


def _say(evidence: Evidence, *words: str) -> None:
    try:
        evidence.call(words)
    except RuntimeError:
        return  # It moved on since it was looked at, or cannot be started yet; the next look shows it.


def _rollout(evidence: Evidence, release: str) -> Rollout | None:
    rollouts = evidence.cluster.ledger.rollouts(final_since=evidence.injected.at)
    return next((each for each in rollouts if each.release == release), None)


# -- what must have come of them --


def _went_over_all(evidence: Evidence) -> tuple[str, ...]:
    """Return what is missing: each node of the rack works with the new version, and no job was ended for it."""
    rollout = _rollout(evidence, GOOD)
    if rollout is None:
        return (f"the rollout of {GOOD} was not started yet",)
    nodes = evidence.cluster.ledger.rollout_nodes(rollout.rollout)
    versions = _versions(evidence.twin, GOOD_RACK.nodes)
    lagging = [name for name, each in versions.items() if each[Component.DRIVER] != GOOD_VERSION]
    unlike = [name for name, each in versions.items() if each[Component.DRIVER] != each[Component.FABRIC_MANAGER]]
    restarted = [
        job.job for job in read_progress(evidence.twin) if set(job.nodes) & set(GOOD_RACK.nodes) and job.restart_count
    ]
    out = most_at_once(evidence.cluster.ledger.records(cause_of(rollout.rollout)))
    return expect(
        (rollout.state is RolloutState.DONE, _words_of(rollout)),
        (
            {each.node for each in nodes if each.stage is NodeStage.UPDATED} == set(GOOD_RACK.nodes),
            "not every node of the rack is updated",
        ),
        (not lagging, f"{', '.join(lagging)} do not run the new driver"),
        (not unlike, f"driver and fabric manager differ on {', '.join(unlike)}"),
        (out <= MOST_OUT, f"{out} nodes were out at once, not {MOST_OUT} at most"),
        (not evidence.commands(*_MOVES), "jobs were moved"),
        (not restarted, f"jobs were started again: {', '.join(restarted)}"),
        *_well(evidence, GOOD_RACK),
    )


def _stopped_by_itself(evidence: Evidence) -> tuple[str, ...]:
    """Return what is missing: stopped on its canaries, each back on its old version, and nobody else was touched."""
    rollout = _rollout(evidence, BAD)
    if rollout is None:
        return (f"the rollout of {BAD} was not started yet",)
    nodes = evidence.cluster.ledger.rollout_nodes(rollout.rollout)
    running = [
        name for name, each in _versions(evidence.twin, BAD_RACK.nodes).items() if each[Component.KERNEL] == BAD_VERSION
    ]
    touched = _touched(nodes)
    failed = [each.node for each in nodes if each.failure]
    return expect(
        (rollout.state is RolloutState.WENT_BACK, _words_of(rollout)),
        (rollout.owner not in (rollout.created_by,), "a person sent it back"),
        (len(failed) >= 2, f"{len(failed)} nodes failed; two alike stop it"),
        (len(touched) < len(BAD_RACK.nodes), "every node of the rack was touched"),
        (all(each.stage is NodeStage.BACK for each in touched), "not every touched node is back"),
        (not running, f"{', '.join(running)} still run the bad version"),
        *_well(evidence, BAD_RACK),
    )


def _well(evidence: Evidence, rack: NewRack) -> Iterator[tuple[bool, str]]:
    """Yield that every node of a rack works, that nobody but the rollout acted there, and that nobody was woken."""
    truths = [each for each in read_nodes(evidence.twin) if each.node in rack.nodes]
    ill = [each.node for each in truths if not each.is_well]
    out = [
        each.node
        for each in evidence.cluster.scheduler.read_nodes()
        if each.node in rack.nodes and (each.is_drained or not each.is_responding or each.is_last_choice)
    ]
    acted = [each.incident for each in _incidents(evidence) if _acts_of(evidence, each)]
    yield not ill, f"{', '.join(ill)} are not well"
    yield not out, f"{', '.join(out)} are not in service like any other"
    yield not acted, f"incidents acted on nodes of the rollout: {', '.join(acted)}"


def _incidents(evidence: Evidence) -> list[Incident]:
    return [each for each in evidence.incidents if each.state is not IncidentState.MERGED]


def _acts_of(evidence: Evidence, incident: Incident) -> list[ActionRecord]:
    records = evidence.cluster.ledger.records(incident.incident)
    return [each for each in records if each.action.verb not in _NO_ACT]


def _versions(twin: Twin, nodes: Sequence[NodeName]) -> Mapping[NodeName, Mapping[Component, str]]:
    """Return what really runs on nodes."""
    with twin.present() as world:
        return {name: dict(world.hardware.nodes[name].versions) for name in nodes}


def _touched(nodes: Sequence[RolloutNode]) -> list[RolloutNode]:
    """Return the nodes on which something was done: one that was in hand when the rollout stopped may be left out."""
    untouched = (NodeStage.PENDING, NodeStage.SKIPPED)
    return [each for each in nodes if each.versions_before and each.stage not in untouched]


def most_at_once(records: Sequence[ActionRecord]) -> int:
    """Return how many nodes were out for a rollout at one time, from the drain to the return."""
    moments: list[tuple[datetime, int]] = []
    for each in records:
        is_done = each.outcome is not None and each.outcome.kind is OutcomeKind.DONE
        if each.action.verb is Verb.DRAIN and is_done:
            moments.append((each.begun_at, 1))
        elif each.action.verb is Verb.RESUME and is_done and each.outcome is not None:
            moments.append((each.outcome.finished_at, -1))
    out, most = 0, 0
    for _, change in sorted(moments):
        out += change
        most = max(most, out)
    return most


def _words_of(rollout: Rollout) -> str:
    said = clipped(rollout.reason, at_most=_LONGEST_REASON)
    return f"{rollout.rollout} ({rollout.release}) is {rollout.state.value.replace('_', ' ')}: {said}"


# -- what they showed --


def _tell(evidence: Evidence, *, release: str) -> tuple[str, ...]:
    rollout = _rollout(evidence, release)
    if rollout is None:
        return ()
    ledger = evidence.cluster.ledger
    nodes, records = ledger.rollout_nodes(rollout.rollout), ledger.records(cause_of(rollout.rollout))
    took = f"{(rollout.since - rollout.created_at).total_seconds():.0f} s" if rollout.state in FINAL else "no end"
    touched = _touched(nodes)
    lines = [
        f"{rollout.rollout} {release}: {rollout.state.value.replace('_', ' ')} after {took}; {len(touched)} of "
        f"{len(nodes)} nodes touched, in {rollout.wave} of {len(rollout.waves)} waves, {most_at_once(records)} out at "
        "once at most"
    ]
    if rollout.resumed_at is not None:
        lines.append("the gate could not decide on so little, and reported so; a person answered for it")
    if rollout.stopped_because and release == BAD:
        lines.append(f"it stopped by itself: {rollout.stopped_because}")
    return tuple(lines)


def rollout_commands(cluster_file: str) -> tuple[str, ...]:
    """Return how a person of the endless demo rolls these releases out."""
    return tuple(f"ops-pipelines rollout start {name} --cluster {cluster_file}" for name in (GOOD, BAD))


GOOD_PART = Part(
    letter="l",
    title=f"a release goes over {len(GOOD_RACK.nodes)} nodes in waves, around the jobs that run there",
    inject=partial(_begin, letter="l", rack=GOOD_RACK),
    differences=_went_over_all,
    limit_seconds=_LIMIT_SECONDS,
    proceed=partial(_lead, release=GOOD),
    tell=partial(_tell, release=GOOD),
)
BAD_PART = Part(
    letter="m",
    title="a release that loses GPUs stops by itself on its second node, and rolls back",
    inject=partial(_begin, letter="m", rack=BAD_RACK),
    differences=_stopped_by_itself,
    limit_seconds=_LIMIT_SECONDS,
    proceed=partial(_lead, release=BAD),
    tell=partial(_tell, release=BAD),
)
