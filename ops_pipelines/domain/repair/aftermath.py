"""What is done about nodes that break by themselves after a mass event: drained within the budget, and told of.

Nothing stronger, and nothing for the storm itself: that is a person's. Which nodes these are, `diagnosis.mass_event`
says.
"""

from dataclasses import dataclass, replace
from datetime import timedelta

from ops_pipelines.core.action import Action, ActionRecord, Verb
from ops_pipelines.core.identity import NodeName, PlanId, Topology
from ops_pipelines.core.incident import Incident, driving
from ops_pipelines.core.plan import BlastRadius
from ops_pipelines.core.policy import Policy
from ops_pipelines.diagnose.correlate import is_hard
from ops_pipelines.domain.guardrails.blast_radius import judge_proof, prove
from ops_pipelines.domain.guardrails.judge import Authority, ClusterFacts, Refusal, drain_reason, judge
from ops_pipelines.domain.repair.job_moves import ActionMaker

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
