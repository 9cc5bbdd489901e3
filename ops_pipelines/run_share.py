"""What runs of the acting lane that run side by side leave to each other, and the lease that a run acts under.

Each run names the plans that it carries out. One that has named none yet has still to look (or has too many), and will
see for itself what is new. Who looks leaves to the others what they have named, and continues no plan whose footprint
meets one of theirs before that run is over: a plan must not fail for another's half-done work. Nobody waits in a
circle: a run waits only for those that had looked before it. Every budget is counted once more in the transaction that
starts an act: what slips through is the ledger's to stop.

The lease is the one that a run was given when it was requested, else the one that is held as it starts. A run that was
launched by hand is given none. It is marked with the lease that it then uses: by that alone a run that died with its
code server is known and given up (`sensors.runs`); else it would hold its lane for good.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

import dagster as dg

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import IncidentId, JobId, NodeName, PlanId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.run_lanes import ACTING_TAGS, VERIFYING_TAGS


class Budget(Enum):
    """What plans draw on together."""

    NODES_OUT = "nodes out of service"
    LOST_WORK = "GPU-hours lost by holds"


_DRAWN_BY: Mapping[Verb, Budget] = {Verb.DRAIN: Budget.NODES_OUT, Verb.HOLD: Budget.LOST_WORK}
"""An act that takes nodes or work away -> the budget; a repair is limited on its own node alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What the rest of one plan needs for itself."""

    incident: IncidentId
    nodes: frozenset[NodeName]
    jobs: frozenset[JobId]
    budgets: frozenset[Budget]

    def why_it_meets(self, other: "Footprint") -> str | None:
        """Return what two plans both need, in words; None where nothing keeps them from continuing side by side."""
        if self.incident == other.incident:
            return f"both are of {self.incident}"
        shared = [*sorted(self.nodes & other.nodes), *(f"job {each}" for each in sorted(self.jobs & other.jobs))]
        shared += sorted(each.value for each in self.budgets & other.budgets)
        return None if not shared else f"{', '.join(shared)} is also {other.incident}'s"


def footprint_of(
    plan: IncidentPlan, incident_nodes: Collection[NodeName], records: Collection[ActionRecord]
) -> Footprint:
    """Return what the rest of a plan needs; `records` are what was started, for whichever incident."""
    own = [each for each in records if each.action.incident == plan.incident]
    begun = {each.action.key for each in own}
    nodes = set(incident_nodes)
    for action in plan.actions:
        nodes.update(action.spares)
        nodes.update(() if action.node is None else (action.node,))
    for record in own:
        nodes |= record.attempt_nodes
    return Footprint(
        incident=plan.incident,
        nodes=frozenset(nodes),
        jobs=frozenset(each.attempt.job for each in plan.actions if each.attempt is not None),
        budgets=frozenset(
            _DRAWN_BY[each.verb]
            for each in plan.actions
            if each.verb in _DRAWN_BY and each.key not in begun and not each.has_ended
        ),
    )


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
        """Return why a plan does not continue yet: a run that looked before needs the same; None once that is over."""
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


LEASE_TAG = "ops_pipelines/lease"
"""Carried by runs that act: the lease under which they were asked for."""
REQUESTED_TAG = "ops_pipelines/requested_at"
"""When a sensor asked for a run: what lies between that and its first act is compared with what we reckon with."""


def requested_at_of(context: dg.OpExecutionContext) -> datetime | None:
    """Return when a sensor asked for this run; None for one that nobody waits for: a person launched it."""
    told = context.run.tags.get(REQUESTED_TAG)
    return None if told is None else datetime.fromisoformat(told)


def lease_of_run(context: dg.OpExecutionContext, cluster: Cluster) -> Lease:
    """Return the lease of this run, and mark it where nobody has; without any code server it takes one for itself."""
    run = context.run
    given = run.tags.get(LEASE_TAG)
    if given is None:
        given = cluster.ledger.current_lease(cluster.clock.now())
        if given is not None:
            context.instance.add_run_tags(run.run_id, {LEASE_TAG: given})
    return Lease(holder=f"run:{run.run_id}", given=given)
