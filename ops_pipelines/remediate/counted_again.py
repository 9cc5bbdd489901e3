"""Counts what a plan touches once more, from the snapshot that it was made from, and compares with what was stored.

By the planner's own means (`guardrails.blast_radius`): this finds what was changed afterwards. The second opinion, by
other means, is `plan_proof`'s.
"""

from dataclasses import replace

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, ActionRecord, Verb
from ops_pipelines.core.plan import BlastRadius, IncidentPlan, Rules, Snapshot
from ops_pipelines.remediate.decide import cluster_facts, decide
from ops_pipelines.remediate.guardrails.blast_radius import prove
from ops_pipelines.remediate.guardrails.facts import ClusterFacts


def re_prove(plan: IncidentPlan, snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return what a stored proof says otherwise than the facts that its plan was made from, and limits it breaks."""
    found = prove_again(plan, snapshot, rules)
    problems = [f"it breaks a limit: {broken}" for broken in found.violations]
    if plan.proof is None:
        touches = any(action.verb in DESTRUCTIVE_VERBS for action in plan.actions)
        return (*(["no proof is stored with it, although it touches the cluster"] if touches else []), *problems)
    for name in BlastRadius.__dataclass_fields__:
        stored, present = getattr(plan.proof, name), getattr(found, name)
        if stored != present:
            problems.append(f"{name.replace('_', ' ')}: stored {_shown(stored)}; computed anew {_shown(present)}")
    return tuple(problems)


def prove_again(plan: IncidentPlan, snapshot: Snapshot, rules: Rules) -> BlastRadius:
    """Return the proof of a plan anew, from the snapshot that it was made from.

    The drains of plans that were made before it in the same decision count as begun, as they did then.
    """
    facts = facts_behind(plan, snapshot, rules)
    return prove(plan.actions, plan.timings, facts, policy=rules.policy, topology=rules.topology)


def facts_behind(plan: IncidentPlan, snapshot: Snapshot, rules: Rules) -> ClusterFacts:
    """Return the facts on which a plan was judged when it was made."""
    facts = cluster_facts(snapshot, rules)
    earlier = [each for each in decide(snapshot, rules).plans if each.incident < plan.incident]
    drains = tuple(
        ActionRecord(action=action, plan=each.plan, begun_at=snapshot.taken_at)
        for each in earlier
        for action in each.actions
        if action.verb is Verb.DRAIN
    )
    return replace(facts, records=(*facts.records, *drains))


def _shown(value: object) -> str:
    text = "; ".join(str(each) for each in value) if isinstance(value, tuple) else str(value)
    return text or "none"
