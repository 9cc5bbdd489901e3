"""What runs of the acting lane that go on side by side leave to each other: each names the plans that it carries out.

A run that has named none yet has still to look (or has too many), and will see for itself what is new. Who looks leaves
to the others what they have named, and carries on no plan that meets one of theirs before that run is over. Nobody
waits in a circle: a run waits only for those that had looked before it. What slips through is the ledger's to stop, as
everywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import IncidentId, PlanId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.remediate.isolation import Footprint, footprint_of
from ops_pipelines.run_lanes import ACTING_TAGS, VERIFYING_TAGS

PLANS_TAG = "ops_pipelines/plans"
"""On a run that has looked: the plans that it carries out."""
_NO_PLAN = "none"
_NAMED_AT_MOST = 100
"""PostgreSQL indexes tags, and refuses one of more than 2,700 bytes. A run with more plans names none: it is at all."""
_LOOK_EVERY = timedelta(seconds=1)
_AT_PAGES_TAG = "ops_pipelines/at_pages"
"""On a run that has done what it does, and makes its pages."""
_PAGE_MAY_BE = timedelta(seconds=30)
"""Of this age while runs are under way."""
UNDER_WAY = (
    *(dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED),
    *(dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A run under way."""

    run: str
    plans: tuple[PlanId, ...] | None
    """What it carries out; None: it has yet to look."""


def shares_under_way(instance: dg.DagsterInstance, *, tags: Mapping[str, str] = ACTING_TAGS) -> tuple[Share, ...]:
    """Return the runs of a lane that are queued, starting or running."""
    runs = instance.get_runs(dg.RunsFilter(statuses=list(UNDER_WAY), tags=dict(tags)))
    return tuple(Share(run=run.run_id, plans=_plans_of(run)) for run in runs)


def footprints_of(shares: Sequence[Share], cluster: Cluster) -> Mapping[str, tuple[Footprint, ...]]:
    """Return by run what the rest of its plans needs."""
    return {share.run: tuple(_footprints(share.plans or (), cluster)) for share in shares}


class Turns:
    """The plans of one run, beside those of the runs that had looked before it."""

    def __init__(self, context: dg.OpExecutionContext, cluster: Cluster) -> None:
        self._context, self._cluster = context, cluster
        shares = shares_under_way(context.instance)
        self._mine = next((each.plans or () for each in shares if each.run == context.run_id), None)
        self._theirs = footprints_of([each for each in shares if each.run != context.run_id], cluster)
        self._is_alone = not self._theirs and not shares_under_way(context.instance, tags=VERIFYING_TAGS)
        self._looked_at: datetime = cluster.clock.now()
        self._over: set[str] = set()

    def without_theirs(self, plans: Sequence[IncidentPlan]) -> tuple[IncidentPlan, ...]:
        """Return the plans that no other run carries out."""
        return tuple(plan for plan in plans if not self.is_theirs(plan.incident))

    def is_theirs(self, incident: IncidentId) -> bool:
        """Return whether another run carries out the plan of an incident."""
        return any(each.incident == incident for theirs in self._theirs.values() for each in theirs)

    def verifies(self, incident: Incident) -> bool:
        """Return whether this run looks at a repaired node: those of its own plans, and of others where it is alone."""
        return self._mine is None or self._is_alone or incident.plan in self._mine

    def take(self, plans: Sequence[IncidentPlan]) -> tuple[IncidentPlan, ...]:
        """Return the plans that no other run carries out, and name them as those of this run."""
        mine = self.without_theirs(plans)
        if len(mine) <= _NAMED_AT_MOST:
            named = ",".join(plan.plan for plan in mine) or _NO_PLAN
            self._context.instance.add_run_tags(self._context.run_id, {PLANS_TAG: named})
        return mine

    def why_it_waits(self, plan: IncidentPlan) -> str | None:
        """Return why a plan does not go on yet: a run that had looked before needs the same; None once it is over."""
        if not self._theirs.keys() - self._over:
            return None
        now = self._cluster.clock.now()
        if now - self._looked_at >= _LOOK_EVERY:
            self._looked_at = now
            self._over = self._theirs.keys() - {each.run for each in shares_under_way(self._context.instance)}
        mine = _footprint(plan, self._cluster)
        found = (
            mine.why_it_meets(each) for run, theirs in self._theirs.items() if run not in self._over for each in theirs
        )
        why = next(filter(None, found), None)
        return None if why is None else f"another run is at it: {why}"


def is_left_to_another(instance: dg.DagsterInstance, run: str, asset: str, *, now: datetime) -> bool:
    """Return whether `run` leaves a page of the whole fleet to one that has yet to come to its pages.

    Who comes to its pages says so before it looks at the others: of two that end together at least one makes them. None
    is left where the page is old: runs that follow each other without a gap would never make it.
    """
    instance.add_run_tags(run, {_AT_PAGES_TAG: "yes"})
    lanes = (ACTING_TAGS, VERIFYING_TAGS)
    others = [
        each for tags in lanes for each in instance.get_runs(dg.RunsFilter(statuses=list(UNDER_WAY), tags=dict(tags)))
    ]
    if all(each.run_id == run or _AT_PAGES_TAG in each.tags for each in others):
        return False
    newest = instance.get_latest_materialization_event(dg.AssetKey(asset))
    return newest is not None and now.timestamp() - newest.timestamp < _PAGE_MAY_BE.total_seconds()


def _plans_of(run: dg.DagsterRun) -> tuple[PlanId, ...] | None:
    named = run.tags.get(PLANS_TAG)
    if named is None:
        return None
    return () if named == _NO_PLAN else tuple(map(PlanId, named.split(",")))


def _footprints(plans: Sequence[PlanId], cluster: Cluster) -> list[Footprint]:
    found = [plan for each in plans if (plan := cluster.ledger.plan(each)) is not None]
    return [_footprint(plan, cluster) for plan in found]


def _footprint(plan: IncidentPlan, cluster: Cluster) -> Footprint:
    incident = cluster.ledger.incident(plan.incident)
    return footprint_of(plan, () if incident is None else incident.nodes, cluster.ledger.records(plan.incident))
