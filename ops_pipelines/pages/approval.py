"""The page on which one named person says yes to one plan: exactly what would be done, to whom, at what cost.

Showing it changes nothing. The form sends the field `CONFIRMATION` with the plan's name back to the same address; who
may do that, and what becomes of it, is the web process's business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.action import MESSAGES, Action, ActionRecord
from ops_pipelines.core.entries import Approval
from ops_pipelines.core.identity import JobId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import IncidentPlan, TouchedJob
from ops_pipelines.core.policy import Policy
from ops_pipelines.people.orders import LinkClaim
from ops_pipelines.remediate.guardrails.consents import CLASS_OF, needs_yes
from ops_pipelines.remediate.testimony import explain_action
from ops_pipelines.report.html import render

CONFIRMATION = "confirm"
"""The field of the form that says yes; its value is the plan's name. Without it nothing is approved."""


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
    """What else stands in the way of the plan, in words."""
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
        standing = "goes on by itself"
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
