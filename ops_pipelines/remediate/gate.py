"""The gate between what was decided and what is done: plans proved, recorded, put in force, and ended.

What is recorded is what is carried out: of a plan that the ledger knows already its own words count. Nothing passes
that a check contradicts; that is a fault of ours, so a person is paged. The ledger asks for the proof once more in the
transaction that starts something (`resources.ledger.actions`).

Of an incident one plan is in force at most. What is then done is `carry_out`'s. When its plan is over, an incident is
proven, climbs, or is escalated: who waits for it (`carry_out`, `verify`, `probation`) says when.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Event

from ops_pipelines.core.action import MESSAGES, SOFT, Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerState
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import Digest, JobId
from ops_pipelines.core.incident import PAGED, Incident, IncidentEvent, IncidentState, advance, climb
from ops_pipelines.core.plan import IncidentPlan, Order, ProvedPlan, Snapshot
from ops_pipelines.core.proof import Proof, Refusal, wait, why_unproved
from ops_pipelines.remediate.bundle import BundleReport, give_time, note_with, save_before_acting
from ops_pipelines.remediate.by_hand import store_report
from ops_pipelines.remediate.decide import Decision
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
from ops_pipelines.remediate.guardrails.judge import judge
from ops_pipelines.remediate.judgement import FreshFacts, Lease, authority_of, read_facts, words_of
from ops_pipelines.remediate.perform import Progress, Stage, perform, send_once
from ops_pipelines.remediate.plan_proof import PROOFS, prove_plans, refuse_plans, with_proof
from ops_pipelines.remediate.verification import REPAIR_MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action of one plan and how far it came in this pass."""

    action: Action
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """How far one plan came in this pass."""

    plan: IncidentPlan
    steps: tuple[Step, ...]
    """Steps that were done, or on which it stopped."""
    stage: Stage
    reason: str


class PlanProgress:
    """One plan and how far it is: under way until it is settled for this pass."""

    def __init__(self, plan: IncidentPlan) -> None:
        self.plan = plan
        self._steps: list[Step] = []
        self._stage = Stage.UNDER_WAY
        self._reason = "begun"
        self._is_settled = False

    @property
    def is_under_way(self) -> bool:
        return not self._is_settled

    def add_step(self, action: Action, progress: Progress) -> None:
        """Note a step that was done, or on which the plan stopped."""
        self._steps.append(Step(action=action, progress=progress))

    def wait_for(self, reason: str) -> None:
        """Note what the plan waits for within this pass."""
        self._reason = reason

    def settle(self, stage: Stage, reason: str) -> None:
        """Leave the rest to the next pass, or to nobody."""
        self._stage, self._reason, self._is_settled = stage, reason, True

    def report(self) -> PlanReport:
        return PlanReport(plan=self.plan, steps=tuple(self._steps), stage=self._stage, reason=self._reason)


_PAGE = "proof"
PROOF_SECONDS = 10.0
"""# Assumption: a proof of 2,048 nodes takes hundredths of a second; one that takes so long is stuck."""


def prove_and_record(
    decision: Decision,
    snapshot: Snapshot,
    *,
    inputs: Digest,
    cluster: Cluster,
    expected_head: int | None,
    incidents: Collection[Incident],
    also: Sequence[IncidentPlan] = (),
) -> tuple[IncidentPlan, ...]:
    """Prove the plans of a decision and record it, all in one transaction; return the plans as they are recorded.

    `inputs` is where the snapshot is kept, `incidents` those of the decision that are to be written, `also` further
    plans to be proved. Raises LedgerConflict as `Ledger.record_decision` does.
    """
    ledger = cluster.ledger
    kept = tuple(ledger.plan(plan.plan) or plan for plan in decision.plans)
    to_prove = (*also, *kept)
    ledger.record_decision(
        inputs=inputs,
        decided_through=snapshot.evidence_through,
        expected_head=expected_head,
        incidents=incidents,
        plans=decision.plans,
        now=snapshot.taken_at,
        refusals=decision.refusals,
        proofs=_prove_in_time(to_prove, snapshot, cluster, inputs=inputs),
    )
    return kept


def unproved_in_force(incidents: Sequence[Incident], cluster: Cluster) -> tuple[IncidentPlan, ...]:
    """Return the plans in force that an older version of this program put there, without a proof that counts now."""
    found = []
    for incident in incidents:
        if incident.state is IncidentState.ACTING and incident.plan is not None:
            plan = cluster.ledger.plan(incident.plan)
            if plan is not None and _why_unproved(plan, cluster) is not None:
                found.append(plan)
    return tuple(found)


def why_not_passed(plan: IncidentPlan, cluster: Cluster) -> Refusal | None:
    """Return why a plan must not be put in force: it was not proved, not as it is, or not lately, or contradicted."""
    proof = cluster.ledger.proof(plan.plan)
    why = why_unproved(proof, content=cluster.ledger.content_of(plan), checks=PROOFS)
    if why is not None:
        return wait("proof", why)
    if proof is not None and proof.expires_at <= cluster.clock.now():
        return wait("proof", "its proof has expired; the next pass proves it again")
    if proof is not None and proof.rules != cluster.rules_digest:
        return wait("proof", "the rules have changed since it was proved; the next pass proves it again")
    return None


def as_proved(plan: IncidentPlan, cluster: Cluster) -> ProvedPlan | Refusal:
    """Return a plan as its steps may be ordered, or why they may not be."""
    ledger = cluster.ledger
    found = with_proof(plan, ledger.proof(plan.plan), content=ledger.content_of(plan))
    return wait("proof", found) if isinstance(found, str) else found


def tell_of_contradictions(plans: Sequence[IncidentPlan], cluster: Cluster, *, lease: Lease) -> None:
    """Page once about each plan that its own proof contradicts: the planner, or the proof, is wrong."""
    for plan in plans:
        if not _is_contradicted(plan, cluster):
            continue
        page = Action(
            verb=Verb.PAGE_HUMAN,
            incident=plan.incident,
            text=f"{plan.plan} of {plan.incident} is not started: {_why_unproved(plan, cluster)}. This is a fault of "
            "the autopilot: do what is needed by hand, and report it.",
            part=f"{_PAGE} {plan.plan}",
        )
        send_once(page, cluster, lease=lease)


def _prove_in_time(
    plans: Sequence[IncidentPlan], snapshot: Snapshot, cluster: Cluster, *, inputs: Digest
) -> tuple[Proof, ...]:
    """Return what the second opinion says; one that comes to no end lets nothing pass, and keeps nobody waiting."""
    contents = [cluster.ledger.content_of(plan) for plan in plans]
    found: list[tuple[Proof, ...]] = []
    faults: list[str] = []

    def prove(_: Event) -> None:
        try:
            found.append(prove_plans(plans, snapshot, cluster.rules, inputs=inputs, contents=contents))
        except Exception as problem:  # whatever it is, it is no proof
            faults.append(repr(problem))

    give_time(prove, task="prover", cluster=cluster, patience=timedelta(seconds=PROOF_SECONDS))
    if found:
        return found[0]
    why = f"the proof failed: {faults[0]}" if faults else f"the proof came to no end within {PROOF_SECONDS:g} s"
    return refuse_plans(plans, snapshot, inputs=inputs, contents=contents, why=why)


def _why_unproved(plan: IncidentPlan, cluster: Cluster) -> str | None:
    return why_unproved(cluster.ledger.proof(plan.plan), content=cluster.ledger.content_of(plan), checks=PROOFS)


def _is_contradicted(plan: IncidentPlan, cluster: Cluster) -> bool:
    proof = cluster.ledger.proof(plan.plan)
    return proof is not None and bool(proof.contradictions)


def put_in_force(plans: Sequence[PlanProgress], cluster: Cluster) -> tuple[list[PlanProgress], FreshFacts | None]:
    """Begin, in one transaction, every plan whose incident waits and whose first act is allowed; settle the others.

    Return those that are in force then, and what was read to judge the first acts: None where no plan waited, for then
    the cluster is not asked. Raises SourceError if the scheduler does not list its nodes and jobs, and LedgerConflict
    if an incident has changed meanwhile.
    """
    state = cluster.ledger.read_state(cluster.clock.now())
    present = {incident.incident: incident for incident in state.incidents}
    known = [(each, present[each.plan.incident]) for each in plans if each.plan.incident in present]
    waiting = [(each, incident) for each, incident in known if is_yet_to_begin(each, incident)]
    begun: dict[PlanProgress, Incident] = {}
    fresh: FreshFacts | None = None
    if waiting:
        verbs = frozenset(first_act(each.plan).verb for each, _ in waiting)
        facts = read_facts(verbs, cluster, state=state)
        fresh = FreshFacts(facts=facts, verbs=verbs)
        for each, incident in waiting:
            refusal = why_not_passed(each.plan, cluster) or _why_not_begun(each.plan, facts, state, cluster)
            if refusal is not None:
                each.settle(Stage.WAITING, words_of(refusal))
                continue
            begun[each] = _begin(each.plan, incident, cluster)
            # What this plan will drain is spent for the next one: together they stay within the budget.
            intended = ActionRecord(action=first_act(each.plan), plan=begun[each].plan, begun_at=facts.taken_at)
            facts = replace(facts, records=(*facts.records, intended))
        about_to_begin = [(incident, each.plan) for each, incident in begun.items()]
        evidence = save_before_acting(about_to_begin, cluster, nodes=facts.nodes, jobs=facts.jobs)
        begun = {each: _with_evidence(incident, evidence) for each, incident in begun.items()}
        cluster.ledger.change_incidents(begun.values(), actor=AUTOPILOT, now=cluster.clock.now())
    return [*begun, *(each for each, incident in known if is_in_force(each.plan, incident))], fresh


def is_in_force(plan: IncidentPlan, incident: Incident) -> bool:
    """Return whether the incident is being acted on by this very plan."""
    return incident.state is IncidentState.ACTING and incident.plan == plan.plan


def is_yet_to_begin(progress: PlanProgress, incident: Incident) -> bool:
    """Return whether a plan is yet to be put in force; settle if it never will be."""
    if incident.state is not IncidentState.OPEN and not is_in_force(progress.plan, incident):
        progress.settle(Stage.WAITING, f"the incident is {incident.state.value}; this plan is not in force")
    if incident.state is IncidentState.OPEN and not _is_of_now(progress.plan, incident):
        progress.settle(Stage.WAITING, "the incident calls for another plan by now")
    return incident.state is IncidentState.OPEN and progress.is_under_way


def _is_of_now(plan: IncidentPlan, incident: Incident) -> bool:
    """Return whether the plan was made for the incident as it is: for this response, and as its next try."""
    is_next_try = plan.actions[0].try_number == incident.plan_count + 1
    return incident.response is (plan.calls_for or plan.response) and is_next_try


def first_act(plan: IncidentPlan) -> Action:
    """Return the first act on the cluster: it decides whether the plan may begin.

    Messages need nobody's approval, and a plan continues without the room that it would keep free.
    """
    acts = [action for action in plan.actions if action.verb not in MESSAGES | SOFT]
    return acts[0] if acts else plan.actions[0]


def _why_not_begun(plan: IncidentPlan, facts: ClusterFacts, state: LedgerState, cluster: Cluster) -> Refusal | None:
    """Return why the guardrails do not allow the first act."""
    incident = next((each for each in state.incidents if each.incident == plan.incident), None)
    return judge(
        first_act(plan),
        facts,
        policy=cluster.rules.policy,
        topology=cluster.rules.topology,
        authority=authority_of(plan.plan, state, cluster.rules.policy, actor=AUTOPILOT),
        origin=frozenset() if incident is None else incident.nodes,
    )


def _begin(plan: IncidentPlan, incident: Incident, cluster: Cluster) -> Incident:
    """Return the incident as it is with this plan in force."""
    begun = advance(incident, IncidentEvent.PLAN_BEGUN, at=cluster.clock.now(), note=plan.reason)
    # The plan may stand above what the findings call for: from now on the incident is there, too.
    return replace(begun, plan=plan.plan, plan_count=incident.plan_count + 1, response=plan.response)


def _with_evidence(incident: Incident, evidence: BundleReport) -> Incident:
    """Return the incident with what the ledger keeps of its bundle; a plan continues without, and the note says so."""
    saved = evidence.saved.get(incident.incident)
    note = note_with(incident.note, evidence.problems.get(incident.incident))
    return replace(incident, bundle=None if saved is None else saved.digest, note=note)


def escalate(incident: Incident, cluster: Cluster, *, lease: Lease, why: str) -> bool:
    """Hand an incident to a person and return whether the page went out.

    The page comes first: where no channel takes it the incident stays as it is, and the next pass pages again.
    """
    held = sorted(held_jobs(cluster.ledger.records(incident.incident)))
    left = f" Still held, to be released by you: job {', '.join(held)}." if held else ""
    page = Action(
        verb=Verb.PAGE_HUMAN,
        incident=incident.incident,
        text=f"{incident.incident} needs you: {why}. Nothing more is done by itself.{left}",
        try_number=incident.plan_count + 1,
    )
    if perform(Order(action=page), cluster, lease=lease).stage is not Stage.DONE:
        return False
    now = cluster.clock.now()
    given_up = advance(incident, IncidentEvent.NEEDS_HUMAN, at=now, note=why)
    cluster.ledger.change_incident(given_up, actor=AUTOPILOT, now=now)
    return True


def held_jobs(records: Sequence[ActionRecord]) -> set[JobId]:
    """Return the jobs that we began to hold and have not been seen to release."""
    jobs: set[JobId] = set()
    for record in records:
        attempt = record.action.attempt
        if attempt is None:
            continue
        if record.action.verb is Verb.HOLD:
            jobs.add(attempt.job)
        elif (
            record.action.verb is Verb.RELEASE
            and record.outcome is not None
            and record.outcome.kind is OutcomeKind.DONE
        ):
            jobs.discard(attempt.job)
    return jobs


def end_plan(plan: IncidentPlan, incident: Incident, cluster: Cluster) -> str:
    """Let the incident continue after the last step of its plan: a repair is proven next, hands are waited for."""
    now = cluster.clock.now()
    repaired = REPAIR_MARKS & {action.verb for action in plan.actions}
    if plan.response is Response.RETURN_TO_VENDOR:
        event, note = IncidentEvent.QUEUED, "it waits for hands: `ops-pipelines repair list`"
    elif plan.response is Response.ISOLATE and any(action.verb is Verb.DRAIN for action in plan.actions):
        event, note = IncidentEvent.STEPS_DONE, "isolated; the node must prove itself before it is returned"
    elif repaired:
        event, note = IncidentEvent.STEPS_DONE, "repaired; the node must prove itself before it is returned"
    elif plan.response in REPAIRS or any(action.verb is Verb.PAGE_HUMAN for action in plan.actions):
        event, note = IncidentEvent.NEEDS_HUMAN, f"{PAGED}: {plan.reason}"
    else:
        event, note = IncidentEvent.NOTHING_TO_VERIFY, "the owner was notified; no node is at fault"
    after = advance(incident, event, at=now, note=note)
    if after.state is IncidentState.IN_REPAIR:
        # What the vendor is given is kept as it was on this day.
        after = replace(after, note=f"{note}; report {store_report(after, cluster)[:12]}")
    cluster.ledger.change_incident(after, actor=AUTOPILOT, now=now)
    return note


def climb_after(plan: IncidentPlan, cluster: Cluster, *, why: str) -> None:
    """Put the incident a rung higher, if the plan that failed is still in force: the next decision plans that rung."""
    incident = cluster.ledger.incident(plan.incident)
    if incident is not None and is_in_force(plan, incident):
        now = cluster.clock.now()
        higher = climb(incident, IncidentEvent.REPAIR_FAILED, why=why, at=now)
        cluster.ledger.change_incident(higher, actor=AUTOPILOT, now=now)


def plan_anew(incident: Incident, cluster: Cluster) -> str:
    """Supersede the plan in force, so that the jobs that it left are moved by the next one."""
    now = cluster.clock.now()
    note = "the fault has turned worse, or other replicas serve by now: its jobs are moved after all"
    superseded = advance(incident, IncidentEvent.SUPERSEDED, at=now, note=note)
    cluster.ledger.change_incident(superseded, actor=AUTOPILOT, now=now)
    return note
