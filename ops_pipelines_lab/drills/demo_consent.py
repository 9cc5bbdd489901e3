"""The part of the demo in which a person is asked: no reboot without a yes, and the yes is given by link.

The demo's policy says `consents: {reboot: approve}`, so that the plans of other parts wait half-way. The person of this
part gets a link for each, opens it as a chat's preview would, and then sends the form of the page.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.entries import Approval
from ops_pipelines.core.identity import PlanId
from ops_pipelines.terminal.approval import CONFIRMATION
from ops_pipelines.terminal.incidents import read_incidents
from ops_pipelines.terminal.outlook import PlanStanding
from ops_pipelines_lab.drills.demo_evidence import Evidence, Injected, Part, expect
from ops_pipelines_lab.drills.demo_setup import ANSWERS_FILE
from ops_pipelines_lab.simulator.twin import Twin

PERSON = "operator of the demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One link, and what came of opening it and of its form."""

    plan: str
    opened_status: int
    is_approved_by_opening: bool
    form_status: int


def begin_asking(twin: Twin) -> Injected:
    """Break nothing: the other parts do."""
    return Injected(part="k", at=twin.now(), nodes=(), job=None)


def answer_what_waits(evidence: Evidence) -> None:
    """Give a yes by link to each plan that waits for one, as the person who was sent the link."""
    for plan in _waiting(evidence):
        try:
            said = evidence.call(("approval-link", plan, "--person", PERSON))
        except RuntimeError:
            continue  # It changed, or waits no more, since it was listed; the next look tells.
        link = next(word for word in said.split() if "/approve/" in word)
        opened = evidence.browse(link, None)
        is_approved = _yes_to(plan, _approvals(evidence)) is not None
        sent = evidence.browse(link, {CONFIRMATION: plan})
        answer = Answer(
            plan=plan, opened_status=opened.status, is_approved_by_opening=is_approved, form_status=sent.status
        )
        with (evidence.state / ANSWERS_FILE).open("a") as stream:
            stream.write(json.dumps(asdict(answer)) + "\n")


def _waiting(evidence: Evidence) -> tuple[PlanId, ...]:
    found = read_incidents(evidence.cluster, closed_within=None).incidents or ()
    plans = [each.plan for each in found if each.plan is not None]
    return tuple(plan.recorded.plan for plan in plans if plan.standing is PlanStanding.WAITS_FOR_APPROVAL)


def _approvals(evidence: Evidence) -> Sequence[Approval]:
    state = evidence.cluster.ledger.read_state(evidence.cluster.clock.now())
    return (*state.approvals, *state.past_approvals)


def _yes_to(plan: str | None, approvals: Sequence[Approval]) -> Approval | None:
    return next((each for each in approvals if each.plan == plan and each.link), None)


def _answers(evidence: Evidence) -> tuple[Answer, ...]:
    path = evidence.state / ANSWERS_FILE
    return tuple(Answer(**json.loads(line)) for line in path.read_text().splitlines()) if path.exists() else ()


def _reboots(evidence: Evidence) -> tuple[ActionRecord, ...]:
    ledger = evidence.cluster.ledger
    incidents = ledger.incidents_since(evidence.injected.at)
    records = [record for incident in incidents for record in ledger.records(incident.incident)]
    return tuple(record for record in records if record.action.verb is Verb.REBOOT)


def _asked_first(evidence: Evidence, *, reboot_count: int) -> tuple[str, ...]:
    answers, approvals, reboots = _answers(evidence), _approvals(evidence), _reboots(evidence)
    given = {record.action.key: _yes_to(record.plan, approvals) for record in reboots}
    unasked = [
        record.action.node or ""
        for record in reboots
        if (yes := given[record.action.key]) is None or yes.given_at > record.begun_at
    ]
    waiting = _waiting(evidence)
    return expect(
        (len(reboots) >= reboot_count, f"{len(reboots)} reboots begun, {reboot_count} expected"),
        (not waiting, f"{len(waiting)} plan(s) wait for a yes"),
        (not unasked, f"rebooted without a yes by link: {', '.join(unasked)}"),
        (not any(each.is_approved_by_opening for each in answers), "a link that was only opened approved its plan"),
        (
            all(each.opened_status == 200 for each in answers),
            f"links were answered {[a.opened_status for a in answers]}",
        ),
    )


def _tell_answers(evidence: Evidence) -> tuple[str, ...]:
    approvals, lines = _approvals(evidence), []
    for record in _reboots(evidence):
        yes = _yes_to(record.plan, approvals)
        if yes is not None:
            seconds = (record.begun_at - yes.given_at).total_seconds()
            said = f"opening its link approved nothing, its form did, in the name of {yes.actor!r}"
            lines.append(f"{record.plan}: {said}; {record.action.node} was rebooted {seconds:.0f} s later")
    return tuple(lines)


def consent_part(*, reboot_count: int) -> Part:
    """Return the part, beside parts that need so many reboots."""
    return Part(
        letter="k",
        title="policy.yaml wants a yes before a reboot: opening the link does nothing, its form approves",
        inject=begin_asking,
        differences=partial(_asked_first, reboot_count=reboot_count),
        limit_seconds=300.0,
        proceed=answer_what_waits,
        tell=_tell_answers,
    )
