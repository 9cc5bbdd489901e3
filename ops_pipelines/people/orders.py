"""What people order: stop, continue, approve exactly this plan; by command or by a link that works once.

A link is a token, sealed by the port `LinkSeal`. It holds no right by itself: the plan must still wait, unchanged, and
the ledger refuses a second approval with the same link. Showing the plan and taking the approval are the web process's
business.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import Approval, ApprovalWay, LinkUsed, Pause
from ops_pipelines.core.identity import Digest, IncidentId, PlanId, digest_of
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.remediate.due import awaited_act

# -- links with which one named person may approve one plan once, until a time --


LONGEST_PERSON = 100
"""Characters of a person's name; as for who launches a job by hand."""
_LONGEST_TOKEN = 2048
"""Ours have some 400 characters; what is longer is not even read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkClaim:
    """What a link says that we made: who may approve what, until when."""

    plan: PlanId
    plan_digest: Digest
    """Of the whole plan: one of the same name with another word in it is another plan."""
    person: str
    expires_at: datetime
    via: ApprovalWay
    link: Digest
    """sha256 of the token: names the link in the ledger, and opens nothing."""


class LinkRefused(ByHandRefused):
    """The link opens nothing any more, or never did. The message shows a stranger nothing of the cluster."""


class ForgedLink(LinkRefused):
    """We did not make it: changed, cut short, of another cluster, or made with another key."""


def link_for(
    plan: PlanId,
    cluster: Cluster,
    *,
    person: str,
    valid_for: timedelta | None = None,
    via: ApprovalWay = ApprovalWay.LINK,
) -> str | None:
    """Return the address at which `person` may approve `plan` once; None where this cluster makes no links.

    `via` says where the link is put: a message to the person alone, or a chat that others read too. Valid for
    `serve.link_life_seconds`, or for less. The same plan, person and second give the same link. Raises ByHandRefused if
    the ledger has no such plan, ValueError on a name by which nobody could be distinguished, PolicyError if the key
    cannot be used: a message then goes out without a link.
    """
    links = cluster.approval_links
    if links is None:
        return None
    recorded = cluster.ledger.plan(plan)
    if recorded is None:
        raise ByHandRefused(f"there is no plan {plan}; `ops-pipelines incidents` lists what waits for approval")
    name = " ".join(person.split())
    if not name or len(name) > LONGEST_PERSON or not name.isprintable():
        raise ValueError(f"{person[:120]!r} names nobody: expected 1 to {LONGEST_PERSON} printable characters")
    life = links.life if valid_for is None else min(valid_for, links.life)
    until = (cluster.clock.now() + life).replace(microsecond=0).astimezone(UTC)
    says = {
        "cluster": cluster.name,
        "plan": plan,
        "digest": links.seal.digest(recorded),
        "person": name,
        "until": until.isoformat(),
        "via": via.value,
    }
    return f"{links.base_url.rstrip('/')}/approve/{links.seal.seal(says)}"


def read_link(token: str, cluster: Cluster) -> LinkClaim:
    """Return what a link says; raise LinkRefused if we did not make it, if it is another cluster's, or expired."""
    links = cluster.approval_links
    says = None if links is None or len(token) > _LONGEST_TOKEN else links.seal.open(token)
    if says is None or says.get("cluster") != cluster.name:
        raise ForgedLink("this link is not one of ours: it was cut short, changed, or made with another key")
    try:
        claim = LinkClaim(
            plan=PlanId(says["plan"]),
            plan_digest=Digest(says["digest"]),
            person=says["person"],
            expires_at=datetime.fromisoformat(says["until"]),
            via=ApprovalWay(says["via"]),
            link=digest_of(token),
        )
    except (KeyError, ValueError) as problem:
        raise LinkRefused("this link was made by another version; ask for a new one") from problem
    if cluster.clock.now() >= claim.expires_at:
        raise LinkRefused(f"this link expired at {claim.expires_at:%Y-%m-%d %H:%M} UTC; ask for a new one")
    return claim


def plan_of(claim: LinkClaim, cluster: Cluster) -> IncidentPlan:
    """Return the plan that the link was made for; raise LinkRefused where the ledger's differs from it by a word."""
    plan = cluster.ledger.plan(claim.plan)
    links = cluster.approval_links
    if plan is None or links is None or links.seal.digest(plan) != claim.plan_digest:
        raise LinkRefused(f"the ledger has no {claim.plan} as this link was made for; ask for a new link")
    return plan


# -- what people say to the autopilot --


def pause(cluster: Cluster, *, actor: str, reason: str) -> Pause:
    """Stop new actions from now on, over restarts, until `resume_autopilot`. What is started is finished."""
    order = Pause(actor=actor, since=cluster.clock.now(), reason=reason)
    cluster.ledger.pause(order)
    return order


def resume_autopilot(cluster: Cluster, *, actor: str) -> None:
    """Allow new actions again; while not paused this changes nothing but is recorded."""
    cluster.ledger.resume_autopilot(actor=actor, now=cluster.clock.now())


def begin_anew(cluster: Cluster, *, actor: str, reason: str) -> None:
    """Continue with the ledger that is there in place of the one that was seen; LedgerConflict if it is that one."""
    cluster.ledger.begin_anew(actor=actor, reason=reason, now=cluster.clock.now())


def approve(
    plan: PlanId, cluster: Cluster, *, actor: str, valid_for: timedelta, via: ApprovalWay = ApprovalWay.TERMINAL
) -> tuple[IncidentPlan, Approval]:
    """Approve exactly this plan until it expires; refuse a plan that is unknown or no longer waits for approval.

    A plan that changes gets another name, so an approval never carries over.
    """
    known = waiting_plan(plan, cluster)
    now = cluster.clock.now()
    approval = Approval(plan=plan, actor=actor, given_at=now, expires_at=now + valid_for, via=via)
    cluster.ledger.approve(approval)
    return known, approval


def approve_by_link(claim: LinkClaim, cluster: Cluster) -> tuple[IncidentPlan, Approval]:
    """Approve with a link, in the name of the person whom it was made for and for as long as it holds.

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
    """Return a plan that is pending approval, at its start or half-way; raise ByHandRefused where it is not."""
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
