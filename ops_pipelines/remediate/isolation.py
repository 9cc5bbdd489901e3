"""When a node is isolated, what is left of a repair that is forbidden in part, and what follows a mass event.

Isolation is drain, move, test: it takes a job off a bad part at once, where a page alone would leave it there until
somebody comes. Which acts it takes is `repair_steps`', which rung it is `ladder`'s, whether the node is well
again `returning.verification`'s. Where any of this does not hold, a person is paged as before.

Plans whose footprints do not meet are carried out side by side. Every budget is counted once more inside the
transaction that begins an act: here is only who goes first, so that a plan does not fail for another's half-done work.

Nothing is begun that could not be brought to its end: a job is held only where everything up to its release is allowed.
Whose yes each act needs is `guardrails.consents`'; what a repair consists of is `repair_steps`'.

Nothing stronger, and nothing for the storm itself: that is a person's. Which nodes these are, `diagnose.shared_cause`
says.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.action import JOB_VERBS, Action, ActionRecord, Verb
from ops_pipelines.core.fault import AtFault, ComponentKind, Family, FirstAction
from ops_pipelines.core.finding import ISOLATED_FOR, Finding, Response
from ops_pipelines.core.identity import IncidentId, JobId, NodeName, PlanId, Topology
from ops_pipelines.core.incident import Incident, driving
from ops_pipelines.core.observation import Signal
from ops_pipelines.core.plan import BlastRadius, IncidentPlan, Moment
from ops_pipelines.core.policy import ActionClass, Consent, Policy
from ops_pipelines.core.proof import Authority, Patience, Refusal
from ops_pipelines.diagnose.correlate import is_hard
from ops_pipelines.diagnose.explanation import spreads_within
from ops_pipelines.diagnose.hypothesis import confidence_of
from ops_pipelines.diagnose.incidents import isolates
from ops_pipelines.remediate.guardrails.blast_radius import judge_proof, prove
from ops_pipelines.remediate.guardrails.consents import CLASS_OF, needs_yes
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, drain_reason
from ops_pipelines.remediate.guardrails.judge import judge
from ops_pipelines.remediate.job_moves import MOVED, ActionMaker
from ops_pipelines.remediate.repair_steps import Situation

# -- when a node is isolated --


ISOLATED_AT = 0.85
"""How sure we must be that it is this node's own part. Assumption: what a detector alone is sure of that compares a
part with its peers, and more than one line of one log is."""

_PARTS_OF_A_NODE = frozenset({ComponentKind.GPU, ComponentKind.LINK, ComponentKind.DISK, ComponentKind.NODE})
_OWN_FAULTS = frozenset({AtFault.GPU, AtFault.NODE, AtFault.FABRIC})
"""At fault where a node's own part is; a link of one node alone is its own, whatever the other end is called."""
_SECOND_HAND = frozenset({Signal.LOG_SIGNATURE, Signal.REPEATED, Signal.ALERT})
_SPREADING = frozenset({Family.FABRIC, Family.NVLINK, Family.HEAT, Family.POWER, Family.SILENCE})
"""Trouble that a switch, a rack or a feed gives many nodes one after the other. A part that lags behind its peers, or a
rank that differs from all others, was compared with them already."""


def isolation_for(incident: Incident) -> Response | None:
    """Return what takes the node of an incident out of service that calls for a page; None: a person is paged as ever.

    ISOLATE, or RETURN_TO_VENDOR where the part must be replaced: no test can prove that one well.
    """
    belief = incident.hypothesis
    if belief is None or belief.confidence < ISOLATED_AT or not is_of_own_part(incident):
        return None
    shown = seen_at_first_hand(incident)
    calling = [each for each in shown if isolates(each) and each.node in incident.nodes and not _is_of_domain(each)]
    # What anybody may write into a log adds to what is believed, and takes no node out of service.
    if not any(each.first_action is belief.first_action for each in calling):
        return None
    if round(confidence_of(shown), 3) < ISOLATED_AT:
        return None
    return Response.RETURN_TO_VENDOR if belief.first_action is FirstAction.RMA else Response.ISOLATE


def is_of_own_part(incident: Incident) -> bool:
    """Return whether an incident calls for a page about one node's own part, and for eyes or hands on it.

    Whether that is believed enough to take the node out is not asked here.
    """
    belief = incident.hypothesis
    if (
        incident.response is not Response.PAGE
        or belief is None
        or incident.suspect is not None
        or len(incident.nodes) != 1
        or belief.first_action not in ISOLATED_FOR
        or belief.at_fault not in _OWN_FAULTS
    ):
        return False
    is_own = all(part.kind in _PARTS_OF_A_NODE and part.node in incident.nodes for part in belief.culprits)
    return bool(belief.culprits) and is_own


def _is_of_domain(finding: Finding) -> bool:
    """Return whether the driver asks for the NVLink domain to be recovered (IMEX), which spans many nodes."""
    return finding.is_driver_verdict and finding.first_action is FirstAction.RESET_FABRIC


def seen_at_first_hand(incident: Incident) -> tuple[Finding, ...]:
    """Return the findings that speak for an isolation: neither damage, nor words, history or alerts."""
    return tuple(each for each in incident.findings if not each.is_secondary and not is_second_hand(each))


def is_second_hand(finding: Finding) -> bool:
    """Return whether a finding rests on words, on history or on an alert alone.

    Users choose what their programs write and how often they fail; that something came often is a person's to judge,
    since no test of today settles it; and an alert is what another's rules made of what we may not have seen.
    """
    return all(each.signal in _SECOND_HAND for each in finding.evidence)


def may_be_shared(incident: Incident, facts: ClusterFacts, *, policy: Policy) -> Refusal | None:
    """Return why an isolation waits: its neighbours may be about to show the same, and then it is no node's own.

    A link that is down may be the first of a whole switch, a hot GPU the first of a rack. What is touched is gathered
    no more, so nothing is touched before the others have had their time.
    """
    began_at: dict[Family, datetime] = {}
    for each in seen_at_first_hand(incident):
        # An alert that stands since yesterday, or another trouble of the node, says nothing of how new this one is.
        if isolates(each):
            began_at[each.family] = min(began_at.get(each.family, each.found_at), each.found_at)
    ages = [(facts.taken_at - at, _window_of(family, policy)) for family, at in began_at.items()]
    waits = [(stood, window) for stood, window in ages if stood < window]
    if not waits:
        return None
    stood, window = max(waits, key=lambda each: each[1] - each[0])
    return Refusal(
        guardrail="confirmation",
        reason=f"seen for {stood.total_seconds():.0f} s; its own after {window.total_seconds():.0f} s, if its "
        "neighbours stay well",
        patience=Patience.WAIT,
    )


def _window_of(family: Family, policy: Policy) -> timedelta:
    if family not in _SPREADING:
        return timedelta(0)
    return spreads_within(family, policy.mass_event)


# -- what the rest of a plan needs for itself --


class Budget(Enum):
    """What plans draw on together."""

    NODES_OUT = "nodes out of service"
    LOST_WORK = "GPU-hours lost by holds"


_DRAWN_BY: Mapping[Verb, Budget] = {Verb.DRAIN: Budget.NODES_OUT, Verb.HOLD: Budget.LOST_WORK}
"""An act that takes nodes or work away -> the budget; a repair is limited on its own node alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What the rest of one plan needs for itself."""

    incident: IncidentId
    nodes: frozenset[NodeName]
    jobs: frozenset[JobId]
    budgets: frozenset[Budget]

    def why_it_meets(self, other: "Footprint") -> str | None:
        """Return what two plans both need, in words; None where nothing keeps them from going on side by side."""
        if self.incident == other.incident:
            return f"both are of {self.incident}"
        shared = [*sorted(self.nodes & other.nodes), *(f"job {each}" for each in sorted(self.jobs & other.jobs))]
        shared += sorted(each.value for each in self.budgets & other.budgets)
        return None if not shared else f"{', '.join(shared)} is also {other.incident}'s"


def footprint_of(
    plan: IncidentPlan, incident_nodes: Collection[NodeName], records: Collection[ActionRecord]
) -> Footprint:
    """Return what the rest of a plan needs; `records` are what was begun, for whichever incident."""
    own = [each for each in records if each.action.incident == plan.incident]
    begun = {each.action.key for each in own}
    nodes = set(incident_nodes)
    for action in plan.actions:
        nodes.update(action.spares)
        nodes.update(() if action.node is None else (action.node,))
    for record in own:
        nodes |= record.attempt_nodes
    return Footprint(
        incident=plan.incident,
        nodes=frozenset(nodes),
        jobs=frozenset(each.attempt.job for each in plan.actions if each.attempt is not None),
        budgets=frozenset(
            _DRAWN_BY[each.verb]
            for each in plan.actions
            if each.verb in _DRAWN_BY and each.key not in begun and not each.has_ended
        ),
    )


# -- what is left of a repair where policy.yaml forbids a part of it --


_GIVES_BACK = frozenset({Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE, Verb.UNRESERVE})


def within_consents(situation: Situation, policy: Policy) -> Situation:
    """Return the repair with every job left running that may not be moved, or could not be let go on a silent node.

    What an earlier plan holds is still owed its release.
    """
    forbidden = next((kind for kind in _needed_to_move(situation) if _is_forbidden(kind, policy)), None)
    if forbidden is None:
        return situation
    reason = policy.says_of(forbidden)
    staying = (
        replace(each, moment=Moment.JOB_END, until=None, reason=reason) if each.moment in MOVED else each
        for each in situation.timings
    )
    return replace(situation, timings=tuple(staying), spares={})


def drain_first(actions: Sequence[Action], policy: Policy) -> tuple[Action, ...]:
    """Return the acts with the drain before the holds, where it needs nobody's yes and a hold does.

    Otherwise the jobs of a silent node are held first, because a drain may have to wait for budget; a yes takes longer.
    """
    drains = tuple(each for each in actions if each.verb is Verb.DRAIN)
    waits = any(each.verb is Verb.HOLD and needs_yes(each, policy, among=actions) for each in actions)
    if not waits or any(needs_yes(each, policy) for each in drains):
        return tuple(actions)
    return (*drains, *(each for each in actions if each.verb is not Verb.DRAIN))


def up_to_forbidden(actions: Sequence[Action], situation: Situation, policy: Policy) -> tuple[Action, ...]:
    """Return the acts before the first forbidden one, and a page that names it in place of the rest.

    Only where they take the node out of service: a broken node that goes on taking work is not better for having had
    a job moved off it. What an earlier plan holds on a silent node stays held, and the page says so.
    """
    number = next((index for index, each in enumerate(actions) if is_forbidden(each, policy)), None)
    if number is None:
        return tuple(actions)
    before = list(actions[:number])
    let_go = {each.attempt for each in before if each.verb is Verb.RELEASE}
    kept = [
        each for each in before if each.verb not in JOB_VERBS or each.attempt in let_go or _is_of_staying(each, before)
    ]
    if not any(each.verb is Verb.DRAIN for each in kept) and not situation.is_foreign:
        kept = []
    forbidden = actions[number]
    owed = [attempt.job for attempt in situation.held if attempt not in let_go]
    still_held = f" Still held by an earlier plan, to be released by you: job {', '.join(owed)}." if owed else ""
    done = "It is drained; " if any(each.verb is Verb.DRAIN for each in kept) else ""
    asked = f"{forbidden.verb.value.replace('_', ' ')} of {forbidden.target}"
    text = (
        f"{situation.node.node}: {situation.incident.cause}. {done}{policy.says_of(CLASS_OF[forbidden.verb])}, "
        f"so {asked} is left to you.{still_held}"
    )
    return (*kept, ActionMaker(situation.incident).page(text))


def is_forbidden(action: Action, policy: Policy) -> bool:
    """Return whether a plan must not hold this act: what gives back is never forbidden, nor are messages."""
    kind = None if action.verb in _GIVES_BACK else CLASS_OF.get(action.verb)
    return kind is not None and _is_forbidden(kind, policy)


def _is_of_staying(action: Action, before: Sequence[Action]) -> bool:
    """Return whether an act on a job is a word to the owner of one that is not moved: that stays true."""
    return action.verb is Verb.NOTIFY_OWNER and not any(
        each.verb is Verb.HOLD and each.attempt == action.attempt for each in before
    )


def _needed_to_move(situation: Situation) -> tuple[ActionClass, ...]:
    return (ActionClass.MOVE_JOBS, ActionClass.POWER) if situation.is_fenced_by_power else (ActionClass.MOVE_JOBS,)


def _is_forbidden(kind: ActionClass, policy: Policy) -> bool:
    return policy.consent_to(kind) is Consent.FORBID


# -- what is done about nodes that break by themselves after a mass event --


_NAMED_COUNT = 8
_BURST = timedelta(seconds=10)
"""What a driver says of one fault comes within that."""
_INTENDED = PlanId("intended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Drains that may be begun now, one page, and what that touches."""

    actions: tuple[Action, ...]
    effects: tuple[str, ...]
    proof: BlastRadius | None


def answer_struck(incident: Incident, facts: ClusterFacts, *, policy: Policy, topology: Topology) -> Answer:
    """Return the answer to the struck nodes of a mass event, by the time of what struck each last.

    Only what needs nobody's yes is drained: whoever is paged learns which nodes stay in service, and why.
    """
    act = ActionMaker(incident)
    drains: list[Action] = []
    left: dict[NodeName, str] = {}
    said = {node: _fault_of(incident, node) for node in incident.renewed}
    now_facts = facts
    for node in sorted(incident.renewed, key=lambda name: (said[name][0], name)):
        status = facts.nodes.get(node)
        if status is not None and status.is_drained:
            continue
        drain = act.on_node(Verb.DRAIN, node, drain_reason(incident.incident, said[node][1]))
        refusal = _why_not(drain, drains, now_facts, facts, policy=policy, topology=topology)
        if refusal is not None:
            left[node] = f"{refusal.guardrail}: {refusal.reason}"
            continue
        drains.append(drain)
        intended = ActionRecord(action=drain, plan=_INTENDED, begun_at=facts.taken_at)
        now_facts = replace(now_facts, records=(*now_facts.records, intended))
    page = act.page(_page_text(incident, drains, left, {node: why for node, (_, why) in said.items()}))
    effects = tuple(f"{drain.node} takes no new jobs; what runs there goes on" for drain in drains[:_NAMED_COUNT])
    return Answer(
        # The first drain is the reflex's. The page waits for no other: one that must wait is not to keep it back.
        actions=(*drains[:1], page, *drains[1:]),
        effects=effects or ("nothing is touched",),
        proof=prove(tuple(drains), (), facts, policy=policy, topology=topology) if drains else None,
    )


def _why_not(
    drain: Action,
    before: list[Action],
    facts_then: ClusterFacts,
    facts: ClusterFacts,
    *,
    policy: Policy,
    topology: Topology,
) -> Refusal | None:
    refusal = judge(drain, facts_then, policy=policy, topology=topology, authority=Authority.AUTOPILOT)
    return refusal or judge_proof(prove((*before, drain), (), facts, policy=policy, topology=topology))


def _fault_of(incident: Incident, node: NodeName) -> tuple[float, str]:
    """Return when the newest hard fault of a node was seen, for sorting, and what it was: the fault before the wish."""
    hard = [each for each in incident.findings if each.node == node and is_hard(each)]
    if not hard:
        return 0.0, "a hard fault"
    newest_at = max(each.last_at or each.found_at for each in hard)
    burst = [each for each in hard if newest_at - (each.last_at or each.found_at) <= _BURST]
    return newest_at.timestamp(), driving(burst).explanation.partition("; ")[0]


def _page_text(incident: Incident, drains: list[Action], left: dict[NodeName, str], said: dict[NodeName, str]) -> str:
    drained = [drain.node for drain in drains if drain.node is not None]
    kinds = sorted({said[node] for node in incident.renewed})
    more = f" and {len(kinds) - _NAMED_COUNT} more kinds" if len(kinds) > _NAMED_COUNT else ""
    sentences = [
        f"{incident.incident}, a mass event that you have: {len(incident.renewed)} of its nodes broke anew "
        f"({_names(sorted(incident.renewed))}): {', '.join(kinds[:_NAMED_COUNT])}{more}",
        f"drained within the budget: {_names(drained)}" if drained else "no node was drained",
    ]
    if left:
        why = sorted(set(left.values()))[0]
        sentences.append(
            f"left in service, where jobs may start on them: {_names(sorted(left))} ({why}); drain them by hand, or "
            "make room"
        )
    return ". ".join(sentences) + ". Nothing stronger is done by itself."


def _names(nodes: list[NodeName]) -> str:
    more = f" and {len(nodes) - _NAMED_COUNT} more" if len(nodes) > _NAMED_COUNT else ""
    return ", ".join(nodes[:_NAMED_COUNT]) + more
