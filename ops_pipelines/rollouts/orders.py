"""What people order: a plan, a start, a pause, a rollback; planned on the fleet as it is now.

Each order is one event of the table, in the ledger, under the name of who gave it. What follows from it is done by
the next pass.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.identity import NodeName, RolloutId
from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import ActionClass, Consent, Mode, PolicyError
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.record import RolloutFiles
from ops_pipelines.core.release import Component, Release
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    Contradiction,
    NodeEvent,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutPlan,
    RolloutState,
)
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.rollouts.compatibility import contradictions
from ops_pipelines.rollouts.course import ROLLOUT_TABLE, Turn
from ops_pipelines.rollouts.cycle import calendar_of
from ops_pipelines.rollouts.engine import Step
from ops_pipelines.rollouts.fleet import FleetView, read_versions, view_fleet
from ops_pipelines.rollouts.node_pass import after_step
from ops_pipelines.rollouts.planner import plan_rollout, visit_times
from ops_pipelines.rollouts.rollout_pass import PEOPLE, after_turn

# -- plans a release on the fleet as it is now --


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan or why there is none, with what it was made of."""

    release: Release
    plan: RolloutPlan | Refusal
    fleet: FleetView
    calendar: WorkCalendar
    contradictions: tuple[Contradiction, ...]
    rejected: tuple[Rejected, ...]
    """Entries of calendars that nobody could read."""


def plan_release(release: Release, cluster: Cluster) -> Planned:
    """Return what a rollout of `release` would be if it began now. Changes nothing. Raises SourceError, PolicyError."""
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    places = cluster.rules.topology.places
    concerned = [name for name, place in places.items() if place.model in release.models]
    fleet = view_fleet(cluster, state, versions=read_versions(concerned, cluster))
    calendar, rejected = calendar_of(cluster, now=now)
    against = contradictions(
        release,
        [each for each in fleet.nodes.values() if each.model in release.models],
        files_of(cluster).tables(),
        today=now.date(),
        controller_version=_controller_version(release, cluster),
    )
    policy = cluster.rules.policy
    plan = plan_rollout(
        release,
        tuple(fleet.nodes.values()),
        policy=policy,
        calendar=calendar,
        times=visit_times(release, limits=policy.rollouts),
        contradictions=against,
        now=now,
    )
    return Planned(
        release=release,
        plan=plan,
        fleet=fleet,
        calendar=calendar,
        contradictions=tuple(against),
        rejected=tuple(rejected),
    )


def plan_releases(cluster: Cluster, names: Sequence[str]) -> tuple[tuple[Planned, ...], tuple[str, ...]]:
    """Return the plans of these releases, or of all that lie there, and which cannot be read. Raises SourceError."""
    files = files_of(cluster)
    plans: list[Planned] = []
    problems: list[str] = []
    for name in names or files.release_names():
        try:
            plans.append(plan_release(files.release(name), cluster))
        except PolicyError as problem:
            problems.append(str(problem))
    return tuple(plans), tuple(problems)


def _controller_version(release: Release, cluster: Cluster) -> str | None:
    """Return which slurmctld runs, where that matters: no node may be ahead of it. None: nobody says."""
    if release.version_of(Component.SLURM) is None:
        return None
    return cluster.scheduler.read_limits().version or None


def files_of(cluster: Cluster) -> RolloutFiles:
    """Return where releases lie; raise PolicyError if this cluster has no such place."""
    if cluster.rollout_files is None:
        raise PolicyError("cluster.yaml names no directory of releases; say releases: releases there")
    return cluster.rollout_files


# -- plans a rollout on the fleet as it is now --


def start_release(planned: Planned, cluster: Cluster, *, actor: str) -> Rollout:
    """Open the rollout that was planned; raise ByHandRefused where there is no plan, with why."""
    if isinstance(planned.plan, Refusal):
        raise ByHandRefused(f"{planned.release.name} is not rolled out. {planned.plan.reason}")
    files_of(cluster).check_artifacts(planned.release)
    return open_rollout(planned.release, planned.plan, cluster, actor=actor)


def open_rollout(release: Release, plan: RolloutPlan, cluster: Cluster, *, actor: str) -> Rollout:
    """Write a rollout into the ledger: it begins by itself where the policy lets it, else it waits for approval.

    Raises ByHandRefused where nothing may be installed at all, and LedgerConflict if one of its nodes is in another
    rollout.
    """
    policy = cluster.rules.policy
    if policy.mode is Mode.OBSERVE:
        raise ByHandRefused(
            "policy.yaml says mode: observe, so nothing is rolled out; `rollout plan` shows what would be"
        )
    consent = policy.consent_to(ActionClass.UPDATE)
    if consent is Consent.FORBID:
        raise ByHandRefused("policy.yaml says consents.update: forbid, so nothing is rolled out")
    if not plan.waves:
        raise ByHandRefused(f"{release.name} would touch no node; `rollout plan {release.name}` says why")
    now = cluster.clock.now()
    needs_yes = release.is_one_way or consent is Consent.APPROVE
    rollout = Rollout(
        rollout=_next_id(cluster),
        release=release.name,
        release_digest=cluster.ledger.store_release(release),
        plan=plan.plan,
        state=RolloutState.AWAITING_YES if needs_yes else RolloutState.RUNNING,
        waves=plan.waves,
        since=now,
        deadline=now + policy.rollouts.answer_limit if needs_yes else None,
        owner=PEOPLE if needs_yes else AUTOPILOT,
        reason=_why_asked(release) if needs_yes else f"started by {actor}",
        created_by=actor,
        created_at=now,
        finishes_at=plan.finishes_at,
        yes_through=0 if needs_yes else len(plan.waves),
    )
    nodes = _nodes_of(rollout, plan)
    cluster.ledger.open_rollout(rollout, nodes, plan=plan, release=release, actor=actor, now=now)
    return rollout


def _next_id(cluster: Cluster) -> RolloutId:
    # Two at once take the same number: the second finds it taken (LedgerConflict), and asks again.
    return RolloutId(f"ROLL-{cluster.ledger.rollout_count() + 1:04d}")


def _nodes_of(rollout: Rollout, plan: RolloutPlan) -> Collection[RolloutNode]:
    waiting = [
        RolloutNode(rollout=rollout.rollout, node=node, wave=wave.number, since=rollout.created_at)
        for wave in plan.waves
        for node in wave.nodes
    ]
    skipped = [
        RolloutNode(
            rollout=rollout.rollout,
            node=each.node,
            wave=None,
            stage=NodeStage.SKIPPED,
            since=rollout.created_at,
            reason=each.reason,
        )
        for each in plan.skipped
    ]
    return (*waiting, *skipped)


def _why_asked(release: Release) -> str:
    if release.is_one_way:
        return f"{release.name} installs what cannot roll back: each wave needs approval"
    return "policy.yaml asks for approval before anything is installed"


# -- what people say to a rollout --


_GOES_ON = {
    RolloutState.RUNNING: RolloutEvent.RESUME_UPDATING,
    RolloutState.SOAKING: RolloutEvent.RESUME_SOAKING,
    RolloutState.GOING_BACK: RolloutEvent.RESUME_GOING_BACK,
}


def say_yes(rollout: RolloutId, cluster: Cluster, *, actor: str) -> Rollout:
    """Let a rollout begin, or its next wave where that cannot be taken back."""
    known = _known(rollout, cluster)
    release = cluster.ledger.release(known.release_digest)
    return _order(
        known,
        RolloutEvent.YES,
        cluster,
        actor=actor,
        reason=f"{actor} approved" + (f" to wave {known.wave}" if release.is_one_way else ""),
        yes_through=known.wave if release.is_one_way else len(known.waves),
    )


def pause(rollout: RolloutId, cluster: Cluster, *, actor: str, reason: str) -> Rollout:
    """Begin no other node until `go_on`; nodes in hand are finished."""
    return _order(_known(rollout, cluster), RolloutEvent.PAUSE, cluster, actor=actor, reason=f"{actor}: {reason}")


def go_on(rollout: RolloutId, cluster: Cluster, *, actor: str, reason: str) -> Rollout:
    """Let a rollout continue that is paused, or that asks: a person answers for what the gate could not decide."""
    known = _known(rollout, cluster)
    event = None if known.paused_from is None else _GOES_ON.get(known.paused_from)
    if event is None:
        raise ByHandRefused(f"{rollout} is {known.state.value}; only a rollout that is paused or asks can be resumed")
    if known.state is RolloutState.ASKING:
        failed = [each for each in cluster.ledger.rollout_nodes(rollout) if each.failure]
        known = replace(known, resumed_at=cluster.clock.now(), excused_count=len(failed))
    return _order(known, event, cluster, actor=actor, reason=f"{actor}: {reason}")


def abort(rollout: RolloutId, cluster: Cluster, *, actor: str, reason: str) -> Rollout:
    """End a rollout: nodes in hand are finished, the others keep what they have."""
    return _order(_known(rollout, cluster), RolloutEvent.ABORT, cluster, actor=actor, reason=f"{actor}: {reason}")


def send_back(rollout: RolloutId, cluster: Cluster, *, actor: str, reason: str) -> Rollout:
    """Give every touched node its old version."""
    known = _known(rollout, cluster)
    if cluster.ledger.release(known.release_digest).is_one_way:
        raise ByHandRefused(f"{rollout} installs what cannot roll back; abort it, and repair its nodes by hand")
    return _order(known, RolloutEvent.GO_BACK, cluster, actor=actor, reason=f"{actor}: {reason}")


def skip(rollout: RolloutId, node: NodeName, cluster: Cluster, *, actor: str, reason: str) -> RolloutNode:
    """Leave one node out that was not touched yet; the others continue."""
    known = _known(rollout, cluster)
    found = next((each for each in cluster.ledger.rollout_nodes(rollout) if each.node == node), None)
    if found is None:
        raise ByHandRefused(
            f"{node} is not part of {rollout}; `ops-pipelines rollout status {rollout} --json` lists its nodes"
        )
    if found.stage is not NodeStage.PENDING:
        hint = "it is finished first" if found.stage in IN_HAND else "send the rollout back to undo it"
        raise ByHandRefused(f"{node} is {found.stage.value} in {rollout}; only a pending node can be left out ({hint})")
    now = cluster.clock.now()
    release: Release = cluster.ledger.release(known.release_digest)
    left_out = after_step(
        found, Step(event=NodeEvent.SKIP, reason=f"left out by {actor}: {reason}"), release, cluster, now=now
    )
    cluster.ledger.change_rollout(None, [left_out], actor=actor, now=now)
    return left_out


def _known(rollout: RolloutId, cluster: Cluster) -> Rollout:
    known = cluster.ledger.rollout(rollout)
    if known is None:
        raise ByHandRefused(f"there is no rollout {rollout}; `ops-pipelines rollout history` lists them")
    if known.state in FINAL:
        raise ByHandRefused(f"{rollout} is over: {known.state.value} since {known.since:%Y-%m-%d %H:%M} UTC")
    return known


def _order(
    known: Rollout, event: RolloutEvent, cluster: Cluster, *, actor: str, reason: str, yes_through: int | None = None
) -> Rollout:
    if (known.state, event) not in ROLLOUT_TABLE:
        asked = event.value.replace("_", " ")
        raise ByHandRefused(f"{known.rollout} is {known.state.value}: {known.reason}. It cannot take: {asked}")
    now = cluster.clock.now()
    after = after_turn(known, Turn(event=event, reason=reason), cluster, now=now, actor=actor)
    if yes_through is not None:
        after = replace(after, yes_by=actor, yes_through=yes_through)
    cluster.ledger.change_rollout(after, (), actor=actor, now=now)
    return after
