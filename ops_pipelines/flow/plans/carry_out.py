"""Carries plans out, several at a time, step by step, until each is done, waits for the world, or needs a person.

One plan by itself is `plan_runner`'s; here they advance side by side, and drain together.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from ops_pipelines.domain.action import Verb
from ops_pipelines.domain.identity import IncidentId
from ops_pipelines.domain.incident import Incident, IncidentState
from ops_pipelines.domain.plan import IncidentPlan
from ops_pipelines.flow.acts.perform import Stage
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.evidence.silence import plan_anew_where_silent
from ops_pipelines.flow.lease import Lease
from ops_pipelines.flow.plans.at_once import carry_out_together
from ops_pipelines.flow.plans.gate import tell_of_contradictions
from ops_pipelines.flow.plans.in_force import put_in_force
from ops_pipelines.flow.plans.plan_progress import PlanReport
from ops_pipelines.flow.plans.plan_runner import PlanRunner
from ops_pipelines.ports.ledger import LedgerConflict
from ops_pipelines.ports.source_error import SourceError

_POLL_SECONDS = 0.2


def carry_out(
    plans: Sequence[IncidentPlan], cluster: Cluster, *, lease: Lease, patience: timedelta
) -> tuple[PlanReport, ...]:
    """Begin or continue every plan and return how far each came.

    Plans advance side by side, so that one that waits for a witness does not delay the others. What has not shown
    its witness after `patience` is left under way: the next pass reads its witness. Patience is for waiting only: a
    pass goes on while anything moves, else a slow scheduler would have every pass end among the steps already done.
    """
    with suppress(SourceError, LedgerConflict):
        plan_anew_where_silent(cluster)
    runners = [PlanRunner(plan, cluster, lease) for plan in plans]
    give_up_at = cluster.clock.now() + patience
    while True:
        has_drained = _advance_drains(runners, cluster, lease=lease)
        moving = [runner for runner in runners if runner.advance()]
        if not any(runner.progress.is_under_way for runner in runners) and not moving:
            break
        if not moving and not has_drained:
            if cluster.clock.now() >= give_up_at:
                break
            cluster.clock.wait(_POLL_SECONDS)
    tell_of_contradictions(plans, cluster, lease=lease)
    return tuple(runner.progress.report() for runner in runners)


def carry_out_drains(plans: Sequence[IncidentPlan], cluster: Cluster, *, lease: Lease) -> tuple[PlanReport, ...]:
    """Begin the plans that open with a drain, carry out the drain and nothing else; the rest is left to a run."""
    runners = [PlanRunner(plan, cluster, lease) for plan in plans if plan.actions[0].verb is Verb.DRAIN]
    if _advance_drains(runners, cluster, lease=lease) is None:
        # Something changed meanwhile: by now it shows which one may not begin, and the others need not wait for it.
        _advance_drains(runners, cluster, lease=lease)
    tell_of_contradictions(plans, cluster, lease=lease)
    return tuple(runner.progress.report() for runner in runners)


def _advance_drains(runners: Sequence[PlanRunner], cluster: Cluster, *, lease: Lease) -> bool | None:
    """Begin the plans that wait, and take together the drains that are next; return whether anything moved.

    None: what was read had changed by then, and nothing was begun.
    """
    by_progress = {runner.progress: runner for runner in runners if runner.progress.is_under_way}
    try:
        found, fresh = put_in_force(list(by_progress), cluster)
        in_force = [by_progress[each] for each in found]
        drains = {runner: order for runner in in_force if (order := runner.next_drain()) is not None}
        progress = carry_out_together(list(drains.values()), cluster, lease=lease, fresh=fresh)
    except SourceError:
        return False  # Each by itself is next: one that cannot go on does not hold up the others.
    except LedgerConflict:
        return None
    for runner, order in drains.items():
        runner.take_drain(progress[order.action.key])
    return any(each.stage is Stage.DONE for each in progress.values())


def plans_to_carry_out(
    fresh: Sequence[IncidentPlan], incidents: Sequence[Incident], cluster: Cluster
) -> tuple[IncidentPlan, ...]:
    """Return what is to be done now: the plans already in force, and those just made for incidents that wait.

    A plan that was made before under the same name is taken as it was then: it may keep other nodes free, and what one
    pass keeps free the next must hand over.
    """
    in_force: dict[IncidentId, IncidentPlan] = {}
    for incident in incidents:
        if incident.state is IncidentState.ACTING and incident.plan is not None:
            plan = cluster.ledger.plan(incident.plan)
            if plan is not None:
                in_force[incident.incident] = plan
    waiting = [plan for plan in fresh if plan.incident not in in_force]
    return (*in_force.values(), *(cluster.ledger.plan(plan.plan) or plan for plan in waiting))
