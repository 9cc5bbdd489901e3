"""Links with which one named person may approve one plan once, until a time: made, read, and held against the ledger.

A link is a token, sealed by the port `LinkSeal`. It holds no right by itself: the plan must still wait, unchanged, and
the ledger refuses a second yes with the same link. Showing the plan and taking the yes are the web process's business.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import ApprovalWay
from ops_pipelines.core.identity import Digest, PlanId, digest_of
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.remediate.by_hand import ByHandRefused

LONGEST_PERSON = 100
"""Characters of a person's name; as for whoever launches a job by hand."""
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
    """The link opens nothing any more, or never did. The message tells a stranger nothing of the cluster."""


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

    `via` says where the link is put: a message to the person alone, or a chat that others read too.
    Valid for `serve.link_life_seconds`, or for less. The same plan, person and second give the same link. Raises
    ByHandRefused if the ledger has no such plan, ValueError on a name by which nobody could be told apart, PolicyError
    if the key cannot be used: a message then goes out without a link.
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
