"""The lease that a run acts under: the one it was given when it was requested, else the one that is held as it begins.

A run that was launched by hand is given none. It is marked with the lease that it then uses: by that alone a run that
died with its code server is known and given up (`sensors.runs`); else it would hold its lane for good.
"""

from datetime import datetime

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.remediate.acts.facts import Lease

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
