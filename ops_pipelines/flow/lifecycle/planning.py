"""Plans a release on the fleet as it is now: what the planner is given, gathered."""

from collections.abc import Sequence
from dataclasses import dataclass

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.record import RolloutFiles
from ops_pipelines.core.release import Component, Release
from ops_pipelines.core.rollout import Contradiction, RolloutPlan
from ops_pipelines.domain.lifecycle.planning.planner import plan_rollout
from ops_pipelines.domain.lifecycle.planning.visit_times import visit_times
from ops_pipelines.domain.lifecycle.versions.compatibility import contradictions
from ops_pipelines.flow.lifecycle.fleet_view import FleetView, read_versions, view_fleet
from ops_pipelines.flow.people.work_calendar import calendar_of


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
