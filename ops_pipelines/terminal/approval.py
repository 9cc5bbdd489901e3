"""A plan is shown and approval is taken, by command and by the link of a message."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from ops_pipelines.core.action import MESSAGES, Action, ActionRecord
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import Approval
from ops_pipelines.core.identity import JobId, PlanId
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import IncidentPlan, TouchedJob
from ops_pipelines.core.policy import Mode, Policy
from ops_pipelines.core.proof import Patience, Refusal
from ops_pipelines.core.sources import SourceError, SourceUnavailable
from ops_pipelines.people.orders import LinkClaim, LinkRefused, approve_by_link, plan_of, read_link, waiting_plan
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.remediate.guardrails.consents import CLASS_OF, needs_yes
from ops_pipelines.remediate.verbs import explain_action
from ops_pipelines.report.html import render
from ops_pipelines.terminal.outlook import Outlook

# -- whether approval to a plan can still have an effect --


def plan_to_approve(plan: PlanId, cluster: Cluster, outlook: Outlook) -> IncidentPlan:
    """Return the plan if approval to it can still have an effect; raise ByHandRefused with the reason otherwise.

    Raises SourceUnavailable where the scheduler does not answer: then nobody knows whether the plan still holds.
    """
    known = cluster.ledger.plan(plan)
    if known is None:
        raise ByHandRefused(f"there is no plan {plan}; `ops-pipelines incidents` lists what waits for approval")
    if cluster.rules.policy.mode is Mode.OBSERVE:
        raise ByHandRefused("policy.yaml says mode: observe, so no plan is started; set mode: approve first")
    waiting_plan(plan, cluster)
    incident = cluster.ledger.incident(known.incident)
    if incident is not None and incident.state is not IncidentState.OPEN:
        return known  # In force, and waits half-way: what is done next is this plan's, whatever a new one would be.
    present = outlook.present(known.incident)
    if present is None:
        told = "; ".join(outlook.problems)
        raise SourceUnavailable(f"whether {plan} still holds cannot be judged: {told}. Nothing was approved.")
    if isinstance(present, Refusal):
        if present.patience is Patience.NEVER:
            raise ByHandRefused(f"{plan} cannot be started: {present.reason}")
    elif present.plan != plan:
        raise ByHandRefused(
            f"{plan} is outdated: the cluster has changed, and {present.plan} would be done now; "
            f"`ops-pipelines show {known.incident}` shows it"
        )
    return known


def what_stands_in_the_way(plan: IncidentPlan, cluster: Cluster, outlook: Outlook) -> Iterator[str]:
    """Yield why an approved plan would not begin at once, in words."""
    present = outlook.present(plan.incident)
    if isinstance(present, Refusal):
        yield f"it cannot begin yet: {present.reason}"
    awaited = outlook.awaited(plan.incident)
    if awaited is not None:
        yield f"it is half-way: {explain_action(awaited)} waits for this yes"
    if outlook.state.pause is not None:
        yield "the autopilot is paused; nothing begins before `ops-pipelines resume-autopilot`"
    policy = cluster.rules.policy
    if not any(needs_yes(action, policy) for action in plan.actions):
        yield f"policy.yaml says mode: {policy.mode.value}, so it begins without an approval"
    if cluster.ledger.current_lease(cluster.clock.now()) is None:
        yield "no autopilot is running; nothing begins before it is started"


# -- the page on which one named person approves to one plan --


CONFIRMATION = "confirm"
"""The field of the form that approves; its value is the plan's name. Without it nothing is approved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalMatter:
    """What a person is asked, and what they need to know to answer."""

    cluster: str
    plan: IncidentPlan
    incident: Incident
    claim: LinkClaim
    policy: Policy
    records: Sequence[ActionRecord]
    """The incident's acts so far."""
    jobs: Mapping[JobId, JobStatus]
    """As the scheduler shows them now; empty where it did not answer."""
    notices: Sequence[str]
    """What else is in the way of the plan, in words."""
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    what: str
    says: str
    kind: str
    standing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    job: str
    owner: str
    team: str
    gpu_count: int
    fate: str
    loss: str


def write_question(matter: ApprovalMatter) -> str:
    """Return the page with the form."""
    plan = matter.plan
    proof = plan.proof
    return render(
        "approval.html",
        {
            "cluster": matter.cluster,
            "plan": plan,
            "incident": matter.incident,
            "person": matter.claim.person,
            "expires_at": matter.claim.expires_at,
            "left": matter.claim.expires_at - matter.now,
            "steps": [_step(action, matter) for action in plan.actions],
            "jobs": [] if proof is None else [_job(each, matter) for each in proof.jobs],
            "proof": proof,
            "nodes": sorted(matter.incident.nodes),
            "notices": matter.notices,
            "confirmation": CONFIRMATION,
            "now": matter.now,
        },
    )


def write_thanks(plan: IncidentPlan, approval: Approval, *, cluster: str) -> str:
    """Return the page that says what was recorded."""
    return render("approved.html", {"cluster": cluster, "plan": plan, "approval": approval})


def _step(action: Action, matter: ApprovalMatter) -> _Step:
    record = next((each for each in matter.records if each.action.key == action.key), None)
    if record is not None:
        standing = "under way" if record.outcome is None else record.outcome.kind.value
    elif needs_yes(action, matter.policy, among=matter.plan.actions):
        standing = "needs your yes"
    else:
        standing = "continues by itself"
    kind = CLASS_OF.get(action.verb)
    return _Step(
        what=explain_action(action),
        says=action.text if action.verb in MESSAGES else "",
        kind="message" if kind is None else kind.value.replace("_", " "),
        standing=standing,
    )


def _job(touched: TouchedJob, matter: ApprovalMatter) -> _Job:
    status = matter.jobs.get(JobId(touched.job))
    timing = next((each for each in matter.plan.timings if each.attempt.job == touched.job), None)
    fate = "is moved to other nodes" if touched.is_interrupted else "stays until it ends; the repair waits for it"
    if touched.is_interrupted and timing is not None:
        fate += f" ({timing.moment.value.replace('_', ' ')})"
    if not touched.is_interrupted:
        loss = "nothing"
    elif touched.lost_gpu_hours is None:
        loss = "not known: no checkpoint was seen"
    else:
        loss = f"{touched.lost_gpu_hours:.1f} GPU-hours expected"
    return _Job(
        job=touched.job,
        owner="not known" if status is None else status.user,
        team=touched.account,
        gpu_count=touched.gpu_count,
        fate=fate,
        loss=loss,
    )


# -- what an approval link shows --


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
    """Origin; `null` from browsers that were notified to send no referrer, as our pages tell them."""
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
    """Record the approval of the link's person and return the page that says so. Raises as `show_plan`, and
    FormRefused."""
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
        raise FormRefused(HTTPStatus.BAD_REQUEST, "the box was not ticked: roll back, read the plan, and tick it.")
