"""What an approval link shows, and what the form behind it does: the yes of one named person, over HTTP.

Whoever merely opens the address approves nothing: link previews, prefetching mail clients and scanners open every link
that they see. Routes and headers are `server`'s, the page `pages.approval`, the record `people.orders`'s.
"""

from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.sources import SourceError
from ops_pipelines.pages.approval import CONFIRMATION, ApprovalMatter, write_question, write_thanks
from ops_pipelines.people.orders import LinkClaim, LinkRefused, approve_by_link, plan_of, read_link
from ops_pipelines.terminal.approval import plan_to_approve, what_stands_in_the_way
from ops_pipelines.terminal.outlook import Outlook

LONGEST_FORM_BYTES = 4096
_FORM = "application/x-www-form-urlencoded"


class FormRefused(RuntimeError):
    """What was sent is not our form with its confirmation. Nothing was approved."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(f"{message} Nothing was approved.")
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class SentForm:
    """A POST as it came in."""

    content_type: str
    fetch_site: str | None
    """Sec-Fetch-Site: from where the browser says that the form was sent; None from older ones, and without TLS."""
    origin: str | None
    """Origin; `null` from browsers that were told to send no referrer, as our pages tell them."""
    host: str
    """The host that was asked for, as the request says."""
    body: bytes


def show_plan(token: str, cluster: Cluster) -> str:
    """Return the page that asks the link's person; changes nothing.

    Raises LinkRefused, ByHandRefused if the plan no longer waits, SourceError if nobody can tell, LedgerError,
    PolicyError if the key cannot be used.
    """
    claim = read_link(token, cluster)
    plan = plan_of(claim, cluster)
    outlook = Outlook(cluster)
    _refuse_used(claim, outlook)
    plan_to_approve(claim.plan, cluster, outlook)
    incident = cluster.ledger.incident(plan.incident)
    assert incident is not None, "a plan that waits has an incident"
    try:
        jobs = {job.job: job for job in cluster.scheduler.read_jobs()}
    except SourceError:
        jobs = {}
    return write_question(
        ApprovalMatter(
            cluster=cluster.name,
            plan=plan,
            incident=incident,
            claim=claim,
            policy=cluster.rules.policy,
            records=cluster.ledger.records(plan.incident),
            jobs=jobs,
            notices=tuple(what_stands_in_the_way(plan, cluster, outlook)),
            now=cluster.clock.now(),
        )
    )


def take_yes(token: str, form: SentForm, cluster: Cluster) -> str:
    """Record the yes of the link's person and return the page that says so. Raises as `show_plan`, and FormRefused."""
    claim = read_link(token, cluster)
    _refuse_foreign(form, cluster)
    _refuse_unconfirmed(form, claim)
    plan_of(claim, cluster)
    outlook = Outlook(cluster)
    _refuse_used(claim, outlook)
    plan_to_approve(claim.plan, cluster, outlook)
    plan, approval = approve_by_link(claim, cluster)
    return write_thanks(plan, approval, cluster=cluster.name)


def _refuse_used(claim: LinkClaim, outlook: Outlook) -> None:
    """Raise LinkRefused for a link that gave its yes, in plain words; the ledger itself refuses it for sure."""
    given = (*outlook.state.approvals, *outlook.state.past_approvals)
    used = next((each for each in given if each.link == claim.link), None)
    if used is not None:
        raise LinkRefused(
            f"this link gave its one yes already: {used.plan} was approved by {used.actor} at "
            f"{used.given_at:%Y-%m-%d %H:%M} UTC"
        )


def _refuse_foreign(form: SentForm, cluster: Cluster) -> None:
    """Raise FormRefused for what another site's page sent. The token is the capability; this is the second lock."""
    if form.fetch_site is not None and form.fetch_site != "same-origin":
        raise FormRefused(HTTPStatus.FORBIDDEN, "this was sent by a page that is not ours.")
    if form.origin is None or form.origin == "null":
        return
    links = cluster.approval_links
    ours = {form.host.lower(), "" if links is None else urlsplit(links.base_url).netloc.lower()}
    if urlsplit(form.origin).netloc.lower() not in ours - {""}:
        raise FormRefused(HTTPStatus.FORBIDDEN, "this was sent by a page that is not ours.")


def _refuse_unconfirmed(form: SentForm, claim: LinkClaim) -> None:
    if form.content_type.partition(";")[0].strip().lower() != _FORM:
        raise FormRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected the form of the page.")
    try:
        fields = parse_qs(form.body.decode("ascii"), strict_parsing=True, max_num_fields=8)
    except (UnicodeDecodeError, ValueError):
        fields = {}
    if fields.get(CONFIRMATION) != [claim.plan]:
        raise FormRefused(HTTPStatus.BAD_REQUEST, "the box was not ticked: go back, read the plan, and tick it.")
