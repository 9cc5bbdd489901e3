"""Lets nodes of a rollout start on their way, there or back, as far as there is room; what is in the way puts them off.

Who may start is `domain.lifecycle.beginnings`', who finds room `planning.places`'. Here nodes are asked what they run,
for that is where the way back leads, and the beginning is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Component, Reversibility
from ops_pipelines.core.rollout import IN_HAND, LEFT, Direction, NodeEvent, RolloutNode
from ops_pipelines.domain.lifecycle.beginnings import Beginning, in_hand, pulled_out, put_off, ready, turning_round
from ops_pipelines.domain.lifecycle.fleet import FleetNode
from ops_pipelines.domain.lifecycle.planning.places import Places, pick
from ops_pipelines.domain.lifecycle.way import Step
from ops_pipelines.flow.lifecycle.errand import Errand, Surroundings
from ops_pipelines.flow.lifecycle.fleet_view import read_versions
from ops_pipelines.flow.lifecycle.node_pass import after_step


def begin_nodes(errand: Errand, nodes: dict[NodeName, RolloutNode], around: Surroundings) -> bool:
    """Let nodes start on their way, there or back; return whether any did.

    Who was pulled out goes back in every state: that only brings to an end what was begun.
    """
    if not around.may_act:
        return False
    cluster, rollout = errand.cluster, errand.rollout
    now = cluster.clock.now()
    everybody = tuple(nodes.values())
    first, fleet, versions = _who_begins(errand, everybody, around, now=now)
    starting = (*turning_round(rollout, everybody), *pulled_out(everybody, release=errand.release), *first)
    changed = [_begun(nodes[each.node], each, errand, versions.get(each.node, {}), now=now) for each in starting]
    if not first:
        changed += put_off(
            rollout,
            everybody,
            fleet=fleet,
            calendar=around.calendar,
            limits=cluster.rules.policy.rollouts,
            visit_seconds=around.visit_seconds,
            now=now,
            why_full=_places(everybody, fleet, errand).why_full,
        )
    if not changed:
        return False
    cluster.ledger.change_rollout(None, changed, actor=AUTOPILOT, now=now)
    nodes |= {each.node: each for each in changed}
    return any(each.stage in IN_HAND for each in changed)


def _who_begins(
    errand: Errand, nodes: Sequence[RolloutNode], around: Surroundings, *, now: datetime
) -> tuple[tuple[Beginning, ...], Mapping[NodeName, FleetNode], Mapping[NodeName, Mapping[Component, str]]]:
    """Return who begins, with the fleet and what runs on them. A node that does not tell has no way back: not begun."""
    fleet = dict(around.fleet)
    versions: dict[NodeName, Mapping[Component, str]] = {}
    needed = {change.component for change in errand.release.changes if change.reversibility is not Reversibility.NO}
    while True:
        waiting = ready(
            errand.rollout,
            nodes,
            fleet=fleet,
            calendar=around.calendar,
            visit_seconds=around.visit_seconds,
            now=now,
        )
        first = _with_room(waiting, nodes, fleet, errand)
        asked = [each.node for each in first if each.event is NodeEvent.BEGIN and each.node not in versions]
        if not asked:
            return first, fleet, versions
        answers = read_versions(asked, errand.cluster)
        for name in asked:
            versions[name] = answers.get(name, {})
            missing = ", ".join(sorted(each.value for each in needed - versions[name].keys()))
            if missing:
                why_not = f"it does not tell which {missing} it runs, so that there is no way back"
                fleet[name] = replace(fleet[name], why_not=why_not)


def _with_room(
    waiting: Sequence[Beginning],
    nodes: Sequence[RolloutNode],
    fleet: Mapping[NodeName, FleetNode],
    errand: Errand,
) -> tuple[Beginning, ...]:
    """Return who of those that are ready finds room in every budget: who would be refused takes no place of another.

    A node that nobody declares any more has no place to find: on its way back it is lost in words, not waited for.
    """
    if not waiting:
        return ()
    places = _places(nodes, fleet, errand)
    chosen = frozenset(pick((fleet[each.node] for each in waiting if each.node in fleet), places))
    return tuple(each for each in waiting if each.node in chosen or each.node not in fleet)


def _places(nodes: Sequence[RolloutNode], fleet: Mapping[NodeName, FleetNode], errand: Errand) -> Places:
    begun = {each.node for each in nodes if each.stage in IN_HAND}
    left_out = {each.node for each in nodes if each.stage in LEFT}
    return Places(
        fleet.values(),
        policy=errand.cluster.rules.policy,
        in_hand=begun,
        waiting=begun - in_hand(nodes, fleet),
        left_out=left_out,
    )


def _begun(
    node: RolloutNode, start: Beginning, errand: Errand, versions: Mapping[Component, str], *, now: datetime
) -> RolloutNode:
    """Return a node at the beginning of a pass of its own: its acts are new ones, its way starts at the first step.

    `versions` are what runs there now: where the way back leads.
    """
    is_back = start.event is NodeEvent.GO_BACK
    components = {change.component for change in errand.release.changes}
    before = {each: version for each, version in versions.items() if each in components}
    after = after_step(
        replace(node, direction=Direction.BACK if is_back else Direction.FORWARD),
        Step(event=start.event, reason=start.reason),
        errand.release,
        errand.cluster,
        now=now,
    )
    return replace(
        after,
        step=0,
        try_number=node.try_number + 1,
        versions_before=node.versions_before or before,
    )
