"""What must never be done when a node is isolated: a part of it touched, or the first of many taken for the only one.

Rules like those of `rules`; that it is returned only after a test that can show the fault is `proven`'s.
"""

from collections.abc import Mapping

from ops_pipelines.core.action import Verb
from ops_pipelines.core.finding import ISOLATED_FOR, REPAIRS, Response
from ops_pipelines.core.observation import ALERT_SOURCE, Signal
from tests.safety.scene import Rule, Scene

_TOUCHES = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.REIMAGE, Verb.POWER_OFF})
_TAKES_OUT = _TOUCHES | {Verb.DRAIN, Verb.HOLD, Verb.RESERVE}
_OF_SWITCHES = frozenset({Signal.LINK_DOWN, Signal.LINK_FLAPS, Signal.LINK_ERRORS, Signal.NVLINK_ERRORS})


def _untouched_part(scene: Scene) -> str | None:
    """Judge what is done to a node whose plan says no more than to take it out of service."""
    node = scene.told_node
    if scene.command.verb not in _TOUCHES or scene.plan is None or scene.plan.response is not Response.ISOLATE:
        return None
    is_fence = scene.command.verb is Verb.POWER_OFF and node is not None and not node.is_responding
    return None if is_fence else "its plan isolates it and repairs nothing"


def _neighbours_first(scene: Scene) -> str | None:
    """Judge the drain of an isolation by what shows on one node, and may be about to show on all of a switch."""
    incident, plan = scene.incident, scene.plan
    if scene.command.verb is not Verb.DRAIN or incident is None or plan is None:
        return None
    if plan.response is not Response.ISOLATE or incident.plan_count > 1:
        return None
    if len(incident.nodes) != 1 or incident.suspect is not None:
        return f"it is one of {len(incident.nodes)} nodes, or a shared part is blamed"
    links = [each for each in incident.findings if not each.is_secondary and each.evidence[0].signal in _OF_SWITCHES]
    stood = scene.command.said_at - min((each.found_at for each in links), default=scene.command.said_at)
    window = scene.orders.policy.mass_event.window
    return (
        f"its link shows trouble for {stood}, others have {window} to show the same"
        if links and stood < window
        else None
    )


def _first_hand(scene: Scene) -> str | None:
    """Judge what takes a node or a job out of service by what is left of its cause without the alerts."""
    incident = scene.incident
    if scene.is_by_hand or incident is None or scene.command.verb not in _TAKES_OUT:
        return None
    own = [
        each
        for each in incident.findings
        if not each.is_secondary
        and (each.response in REPAIRS or each.first_action in ISOLATED_FOR)
        and any(told.source != ALERT_SOURCE for told in each.evidence)
    ]
    return None if own else f"nothing but alerts speaks of {', '.join(sorted(incident.nodes))}"


RULES_OF_ISOLATION: Mapping[str, Rule] = {
    "untouched_part": _untouched_part,
    "neighbours_first": _neighbours_first,
    "first_hand": _first_hand,
}
"""No guardrail keeps them: the planner does, and is made to err by `slips`."""
