"""How many returned nodes may be on probation at once: what may still break must not be too much.

Which nodes those are, by what the scheduler shows and what we began. How long a probation lasts, and what ends it, is
`domain.returning`'s and the policy's.
"""

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import IncidentId, NodeName, is_rollout
from ops_pipelines.core.proof import Refusal, wait
from ops_pipelines.domain.guardrails.facts import Case
from ops_pipelines.domain.guardrails.ownership import marked_by_rollouts


def keeps_probation_cap(case: Case) -> Refusal | None:
    """Judge a return by how many other nodes are on probation: what may still break must not be too much."""
    cap = case.policy.blast_caps.max_on_probation_count
    if case.action.verb is not Verb.RESUME or is_rollout(case.action.incident):
        return None
    others = {name for name in _on_probation(case) if name != case.action.node and case.topology.knows(name)}
    if len(others) < cap:
        return None
    return wait("probation_cap", f"{len(others)} nodes are on probation; max_on_probation_count is {cap}")


def _on_probation(case: Case) -> frozenset[NodeName]:
    """Return the nodes in service as last choice, and those that we return, or have returned, to be that.

    The second for what the scheduler does not show yet, has refused or forgot: for no longer than a probation lasts. On
    a node that is drained the mark means nothing: it is left from a probation that did not end well. A node that soaks
    after an update was not broken.
    """
    nodes, durations = case.facts.nodes, case.policy.durations
    since = case.facts.taken_at - durations.probation - durations.reboot_limit
    watched = {name for name, node in nodes.items() if node.is_last_choice and not node.is_drained}
    marked = {_try_on(each) for each in case.facts.records if each.action.verb is Verb.PUT_LAST}
    ended_at = {
        each.action.node: each.begun_at
        for each in case.facts.records
        if each.action.verb in (Verb.PUT_BACK, Verb.DRAIN)
    }
    for record in case.facts.records:
        name, outcome = record.action.node, record.outcome
        if record.action.verb is not Verb.RESUME or name is None or name not in nodes or _try_on(record) not in marked:
            continue
        if outcome is None:
            watched.add(name)
        elif outcome.kind is OutcomeKind.DONE and outcome.finished_at > since:
            is_over = name in ended_at and ended_at[name] > record.begun_at
            watched |= set() if is_over else {name}
    return frozenset(watched) - marked_by_rollouts(case.facts.in_begun_waves, case.facts.records)


def _try_on(record: ActionRecord) -> tuple[IncidentId, NodeName | None, int]:
    return record.action.incident, record.action.node, record.action.try_number
