"""What people say to the autopilot: stop, go on, yes to exactly this plan. Writes it to the ledger."""

from datetime import timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import Approval, ApprovalWay, LinkUsed, Pause
from ops_pipelines.core.identity import IncidentId, PlanId
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.flow.people.approval_links import LinkClaim, LinkRefused, plan_of
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.remediate.plans.moments import awaited_act


def pause(cluster: Cluster, *, actor: str, reason: str) -> Pause:
    """Stop new actions from now on, over restarts, until `resume_autopilot`. What is begun is finished."""
    order = Pause(actor=actor, since=cluster.clock.now(), reason=reason)
    cluster.ledger.pause(order)
    return order


def resume_autopilot(cluster: Cluster, *, actor: str) -> None:
    """Allow new actions again; while not paused this changes nothing but is recorded."""
    cluster.ledger.resume_autopilot(actor=actor, now=cluster.clock.now())


def begin_anew(cluster: Cluster, *, actor: str, reason: str) -> None:
    """Go on with the ledger that is there in place of the one that was seen; LedgerConflict if it is that one."""
    cluster.ledger.begin_anew(actor=actor, reason=reason, now=cluster.clock.now())


def approve(
    plan: PlanId, cluster: Cluster, *, actor: str, valid_for: timedelta, via: ApprovalWay = ApprovalWay.TERMINAL
) -> tuple[IncidentPlan, Approval]:
    """Say yes to exactly this plan until it expires; refuse a plan that is unknown or no longer waits for a yes.

    A plan that changes gets another name, so an approval never carries over.
    """
    known = waiting_plan(plan, cluster)
    now = cluster.clock.now()
    approval = Approval(plan=plan, actor=actor, given_at=now, expires_at=now + valid_for, via=via)
    cluster.ledger.approve(approval)
    return known, approval


def approve_by_link(claim: LinkClaim, cluster: Cluster) -> tuple[IncidentPlan, Approval]:
    """Say yes with a link, in the name of the person whom it was made for and for as long as it holds.

    Raises LinkRefused if the plan is not word for word the one that the link was made for, or if the link was used;
    ByHandRefused if the plan no longer waits.
    """
    plan_of(claim, cluster)
    known = waiting_plan(claim.plan, cluster)
    now = cluster.clock.now()
    if now >= claim.expires_at:
        raise LinkRefused(f"this link expired at {claim.expires_at:%Y-%m-%d %H:%M} UTC; ask for a new one")
    approval = Approval(
        plan=claim.plan,
        actor=claim.person,
        given_at=now,
        expires_at=claim.expires_at,
        via=claim.via,
        link=claim.link,
    )
    try:
        cluster.ledger.approve(approval)
    except LinkUsed as problem:
        raise LinkRefused(str(problem)) from problem
    return known, approval


def waiting_plan(plan: PlanId, cluster: Cluster) -> IncidentPlan:
    """Return a plan that waits for a yes: to be begun, or half-way; raise ByHandRefused with the reason otherwise."""
    known = cluster.ledger.plan(plan)
    if known is None:
        raise ByHandRefused(f"there is no plan {plan}; `ops-pipelines incidents` lists what waits for approval")
    incident = cluster.ledger.incident(known.incident)
    if incident is not None and incident.state is IncidentState.OPEN:
        return known
    state = cluster.ledger.read_state(cluster.clock.now())
    if incident is None or awaited_act(incident, known, state, cluster.rules.policy) is None:
        said = "unknown" if incident is None else incident.state.value
        raise ByHandRefused(f"{known.incident} is {said}; {plan} no longer waits for approval")
    return known


def close(incident: IncidentId, cluster: Cluster, *, actor: str, reason: str) -> Incident:
    """End an incident that a person has dealt with; refuse one that the autopilot still works on.

    Closing touches no node: a drain of ours stays until the node is returned.
    """
    known = cluster.ledger.incident(incident)
    if known is None:
        raise ByHandRefused(f"there is no incident {incident}")
    if known.state is not IncidentState.ESCALATED:
        raise ByHandRefused(
            f"{incident} is {known.state.value}; only an escalated incident is a person's to close. "
            "`ops-pipelines pause` stops the autopilot first"
        )
    now = cluster.clock.now()
    closed = advance(known, IncidentEvent.CLEARED, at=now, note=f"closed by {actor}: {reason}")
    cluster.ledger.change_incident(closed, actor=actor, now=now)
    return closed
