"""Brings nodes of a rollout as far as they go now, and lets others start.

Nothing here is read again in mid-pass, but for the places of nodes that came back to work: who looks again is the next
pass.

A stage is written after its act has its outcome, and every act is known by its key: anyone who comes after a crash
reads the witness and continues. Which act is next is `rollouts.engine`'s.

Who may start is `rollouts.fleet`', who finds room `planning.places`'. Here nodes are asked what they run, for that is
where the rollback leads, and the beginning is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.core.action import Action, ActionRecord, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.identity import ActionKey, NodeName, cause_of
from ops_pipelines.core.node_tests import CheckState, CheckVerdict, judge_check, suite_named
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobStatus
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.plan import Order
from ops_pipelines.core.release import Component, Release, Reversibility
from ops_pipelines.core.rollout import (
    IN_HAND,
    LEFT,
    Direction,
    NodeEvent,
    NodeStage,
    Rollout,
    RolloutNode,
    RolloutState,
    is_canary,
)
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.perform import Progress, Stage, perform
from ops_pipelines.rollouts.candidates import Places, pick
from ops_pipelines.rollouts.course import next_direction, next_stage
from ops_pipelines.rollouts.engine import Act, NodeFacts, Step, Wait, Way, deadline_of, is_read_due, next_move
from ops_pipelines.rollouts.fleet import (
    Beginning,
    FleetNode,
    in_hand,
    pulled_out,
    put_off,
    read_versions,
    ready,
    turning_round,
)

# -- what one pass over a rollout goes with --


_AT_WORK = frozenset({NodeStage.SOAKING, NodeStage.BACK, NodeStage.PENDING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One rollout as a pass found it, with what its nodes' ways are made of."""

    rollout: Rollout
    release: Release
    cluster: Cluster
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a pass is given of the world beside the ledger."""

    fleet: Mapping[NodeName, FleetNode]
    calendar: WorkCalendar
    jobs: Sequence[JobStatus]
    visit_seconds: float
    """How long a node is expected to be out."""
    may_act: bool = True
    """Whether nodes are started, and anything is sent to the scheduler beside acts."""


def jobs_on(node: NodeName, around: Surroundings) -> tuple[JobStatus, ...]:
    """Return the jobs that may have processes on a node."""
    return tuple(each for each in around.jobs if node in each.nodes and each.state in MAY_HAVE_PROCESSES)


def trouble_of(node: NodeName, around: Surroundings) -> str:
    """Return the open incident about a node; empty: none, or nobody declares the node any more."""
    return around.fleet[node].trouble if node in around.fleet else ""


def with_returned(around: Surroundings, nodes: Mapping[NodeName, RolloutNode]) -> Surroundings:
    """Return the surroundings with the nodes that came back to work in this pass: their places are free again."""
    back = {
        name: replace(known, is_in_service=True, is_in_hand=False)
        for name, known in around.fleet.items()
        if known.is_in_hand and name in nodes and nodes[name].stage in _AT_WORK
    }
    return replace(around, fleet={**around.fleet, **back}) if back else around


# -- brings one node of a rollout as far as it goes now --


_BASELINE_COUNT = 20
_MOST_MOVES = 32
"""Of one node in one pass: far more than a node has, so that a table that leads in a circle cannot hang a run."""


def advance_node(
    node: RolloutNode, errand: Errand, *, jobs: tuple[JobStatus, ...], trouble: str = "", closed: str = ""
) -> tuple[RolloutNode, bool]:
    """Bring a node on, and return it as it is then, with whether anything moved. Raises SourceError, LedgerError.

    `jobs` are those that may have processes on it, `trouble` the incident about it, as read when the pass began;
    `closed` says why no work is started now, where none is.
    """
    has_moved = False
    for _ in range(_MOST_MOVES):
        if node.stage not in IN_HAND:
            break
        way = _way(node, errand, jobs=jobs, trouble=trouble, closed=closed)
        move = next_move(way)
        if isinstance(move, Wait):
            return _keep_reads(node, move, way, errand), has_moved
        if isinstance(move, Step):
            node = take_step(node, move, errand)
            has_moved = True
            continue
        progress = perform(Order(action=move.action, behind=errand.rollout.plan), errand.cluster, lease=errand.lease)
        if progress.stage is Stage.DONE:
            has_moved = True
            if not _has_outcome(move.action, errand):
                # It had lost its object before it was started: nothing is on record, and nothing is to be done.
                return _note(node, progress.reason, errand), has_moved
            continue
        if progress.stage is Stage.FAILED and not _has_outcome(move.action, errand):
            if _is_held_by_others(node, move, errand):
                return _note(node, progress.reason, errand), has_moved
            node = take_step(node, _refused(node, move, progress), errand)
            has_moved = True
            continue
        if progress.stage is not Stage.FAILED:
            return _note(node, progress.reason, errand), has_moved
    return node, has_moved


def take_step(node: RolloutNode, step: Step, errand: Errand) -> RolloutNode:
    """Write that a node takes an event, and return it as it is then."""
    now = errand.cluster.clock.now()
    after = after_step(node, step, errand.release, errand.cluster, now=now)
    errand.cluster.ledger.change_rollout(None, [after], actor=AUTOPILOT, now=now)
    return after


def after_step(node: RolloutNode, step: Step, release: Release, cluster: Cluster, *, now: datetime) -> RolloutNode:
    """Return a node as it is after an event."""
    stage = next_stage(node.stage, step.event, direction=node.direction)
    number = node.step + 1 if step.event is NodeEvent.NEXT_STEP else node.step
    groups = release.steps if node.direction is Direction.FORWARD else release.steps[::-1]
    policy = cluster.rules.policy
    return replace(
        node,
        stage=stage,
        direction=next_direction(step.event, node.direction),
        step=number,
        since=now,
        deadline=deadline_of(
            stage, groups[min(number, len(groups) - 1)], limits=policy.rollouts, durations=policy.durations, now=now
        ),
        reason=step.reason,
        failure=step.failure or node.failure,
        good_reads=0,
        read_at=None,
        returned_at=now if step.event in (NodeEvent.RETURNED, NodeEvent.IS_BACK) else node.returned_at,
    )


def _way(node: RolloutNode, errand: Errand, *, jobs: tuple[JobStatus, ...], trouble: str, closed: str) -> Way:
    cluster, now = errand.cluster, errand.cluster.clock.now()
    limits = cluster.rules.policy.rollouts
    records = _records(node, errand)
    versions: Mapping[Component, str] | None = None
    if is_read_due(node, limits=limits, now=now):
        try:
            versions = cluster.fleet.read_versions(node.node)
        except SourceError:
            versions = None  # A node that has just been restarted answers late; its deadline decides.
    facts = NodeFacts(
        now=now,
        jobs=jobs,
        outcomes={key: record.outcome for key, record in records.items()},
        versions=versions,
        trouble=trouble,
        closed=closed,
        check=_check_verdict(node, records, errand) if node.stage is NodeStage.TESTING else None,
    )
    return Way(
        node=node,
        release=errand.release,
        opened_at=errand.rollout.created_at,
        facts=facts,
        limits=limits,
        is_canary=is_canary(node, errand.rollout),
        is_called_back=errand.rollout.state is RolloutState.GOING_BACK,
        is_of_last_wave=node.wave == len(errand.rollout.waves),
    )


def _records(node: RolloutNode, errand: Errand) -> Mapping[ActionKey, ActionRecord]:
    records = errand.cluster.ledger.records_on(cause_of(errand.rollout.rollout), node.node)
    return {each.action.key: each for each in records if each.action.try_number == node.try_number}


def _check_verdict(node: RolloutNode, records: Mapping[ActionKey, ActionRecord], errand: Errand) -> CheckVerdict | None:
    """Return what the tests of this pass say; a result that cannot be read says nothing yet."""
    record = next((each for each in records.values() if each.action.verb is Verb.CHECK), None)
    if record is None or record.outcome is None:
        return None
    cluster = errand.cluster
    try:
        found = cluster.fleet.read_check(node.node, key=record.action.key)
    except SourceError:
        return None
    if found is None:
        return None
    suite = suite_named(record.action.suite, cluster.rules.catalogue.suites)
    past = cluster.ledger.checks(node.node, limit=_BASELINE_COUNT)
    verdict = judge_check(
        found,
        suite,
        cluster.rules.catalogue.gates,
        [each for each, was_well in past if was_well and each.key != record.action.key],
    )
    cluster.ledger.keep_check(found, is_well=verdict.state is CheckState.WELL)
    return verdict


def _keep_reads(node: RolloutNode, move: Wait, way: Way, errand: Errand) -> RolloutNode:
    if move.good_reads is None:
        return _note(node, move.reason, errand)
    now = errand.cluster.clock.now()
    after = replace(node, good_reads=move.good_reads, read_at=way.facts.now, reason=move.reason)
    errand.cluster.ledger.change_rollout(None, [after], actor=AUTOPILOT, now=now)
    return after


def _note(node: RolloutNode, reason: str, errand: Errand) -> RolloutNode:
    """Write why a node waits, where that is new."""
    if reason == node.reason:
        return node
    after = replace(node, reason=reason)
    errand.cluster.ledger.change_rollout(None, [after], actor=AUTOPILOT, now=errand.cluster.clock.now())
    return after


def _is_held_by_others(node: RolloutNode, move: Act, errand: Errand) -> bool:
    """Return whether a node that we only drained shows the drain of somebody else by now.

    It is put back when they return it, or when that was not so: until then it is nobody's but ours, and its deadline
    calls people.
    """
    if move.action.verb is not Verb.RESUME or node.stage is not NodeStage.DRAINING:
        return False
    return any(each.node == node.node and each.is_drained for each in errand.cluster.scheduler.read_nodes())


def _refused(node: RolloutNode, move: Act, progress: Progress) -> Step:
    """Return what becomes of a node of which an act may never be started: untouched, it is passed over."""
    is_untouched = node.stage is NodeStage.DRAINING and node.direction is Direction.FORWARD
    if is_untouched:
        return Step(event=NodeEvent.SKIP, reason=progress.reason)
    return Step(event=NodeEvent.FAILED, reason=progress.reason, failure=f"{node.stage.value}: refused")


def _has_outcome(action: Action, errand: Errand) -> bool:
    assert action.node is not None, "a rollout acts on nodes"
    records = errand.cluster.ledger.records_on(action.incident, action.node)
    return any(each.action.key == action.key and each.outcome is not None for each in records)


# -- lets nodes of a rollout start on their way, there or back --


def begin_nodes(errand: Errand, nodes: dict[NodeName, RolloutNode], around: Surroundings) -> bool:
    """Let nodes start on their way, there or back; return whether any did.

    Who was pulled out rolls back in every state: that only brings to an end what was started.
    """
    if not around.may_act:
        return False
    cluster, rollout = errand.cluster, errand.rollout
    now = cluster.clock.now()
    everybody = tuple(nodes.values())
    first, fleet, versions = _who_begins(errand, everybody, around, now=now)
    starting = (*turning_round(rollout, everybody), *pulled_out(everybody, release=errand.release), *first)
    changed = [_begun(nodes[each.node], each, errand, versions.get(each.node, {}), now=now) for each in starting]
    if not first:
        changed += put_off(
            rollout,
            everybody,
            fleet=fleet,
            calendar=around.calendar,
            limits=cluster.rules.policy.rollouts,
            visit_seconds=around.visit_seconds,
            now=now,
            why_full=_places(everybody, fleet, errand).why_full,
        )
    if not changed:
        return False
    cluster.ledger.change_rollout(None, changed, actor=AUTOPILOT, now=now)
    nodes |= {each.node: each for each in changed}
    return any(each.stage in IN_HAND for each in changed)


def _who_begins(
    errand: Errand, nodes: Sequence[RolloutNode], around: Surroundings, *, now: datetime
) -> tuple[tuple[Beginning, ...], Mapping[NodeName, FleetNode], Mapping[NodeName, Mapping[Component, str]]]:
    """Return who begins, with the fleet and what runs on them. A node that does not report has no rollback."""
    fleet = dict(around.fleet)
    versions: dict[NodeName, Mapping[Component, str]] = {}
    needed = {change.component for change in errand.release.changes if change.reversibility is not Reversibility.NO}
    while True:
        waiting = ready(
            errand.rollout,
            nodes,
            fleet=fleet,
            calendar=around.calendar,
            visit_seconds=around.visit_seconds,
            now=now,
        )
        first = _with_room(waiting, nodes, fleet, errand)
        asked = [each.node for each in first if each.event is NodeEvent.BEGIN and each.node not in versions]
        if not asked:
            return first, fleet, versions
        answers = read_versions(asked, errand.cluster)
        for name in asked:
            versions[name] = answers.get(name, {})
            missing = ", ".join(sorted(each.value for each in needed - versions[name].keys()))
            if missing:
                why_not = f"it does not tell which {missing} it runs, so that there is no rollback"
                fleet[name] = replace(fleet[name], why_not=why_not)


def _with_room(
    waiting: Sequence[Beginning],
    nodes: Sequence[RolloutNode],
    fleet: Mapping[NodeName, FleetNode],
    errand: Errand,
) -> tuple[Beginning, ...]:
    """Return who of those that are ready finds room in every budget: who would be refused takes no place of another.

    A node that nobody declares any more has no place to find: while it rolls back it is lost in words, not waited for.
    """
    if not waiting:
        return ()
    places = _places(nodes, fleet, errand)
    chosen = frozenset(pick((fleet[each.node] for each in waiting if each.node in fleet), places))
    return tuple(each for each in waiting if each.node in chosen or each.node not in fleet)


def _places(nodes: Sequence[RolloutNode], fleet: Mapping[NodeName, FleetNode], errand: Errand) -> Places:
    begun = {each.node for each in nodes if each.stage in IN_HAND}
    left_out = {each.node for each in nodes if each.stage in LEFT}
    return Places(
        fleet.values(),
        policy=errand.cluster.rules.policy,
        in_hand=begun,
        waiting=begun - in_hand(nodes, fleet),
        left_out=left_out,
    )


def _begun(
    node: RolloutNode, start: Beginning, errand: Errand, versions: Mapping[Component, str], *, now: datetime
) -> RolloutNode:
    """Return a node at the beginning of a pass of its own: its acts are new ones, its way starts at the first step.

    `versions` are what runs there now: what a rollback restores.
    """
    is_back = start.event is NodeEvent.GO_BACK
    components = {change.component for change in errand.release.changes}
    before = {each: version for each, version in versions.items() if each in components}
    after = after_step(
        replace(node, direction=Direction.BACK if is_back else Direction.FORWARD),
        Step(event=start.event, reason=start.reason),
        errand.release,
        errand.cluster,
        now=now,
    )
    return replace(
        after,
        step=0,
        try_number=node.try_number + 1,
        versions_before=node.versions_before or before,
    )
