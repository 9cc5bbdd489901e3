"""A node that falls silent while its plan waits for a job: it is fenced before the scheduler gives it up.

Whoever was told to restart falls silent, too; so only silence counts that nothing of ours explains. Many at once are no
fault of nodes: then nothing is done here.
"""

from dataclasses import replace

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerState
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.observation import Observation, Signal
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.sources import SourceError
from ops_pipelines.domain.guardrails.ownership import taken_nodes

_RESTARTS = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.POWER_ON, Verb.REIMAGE})


def is_shared_silence(conditions: tuple[Observation, ...], state: LedgerState, policy: Policy) -> bool:
    """Return whether so many nodes are silent that it is no fault of each: a switch, a feed, or our own eyes.

    A node that a rollout has is silent because it restarts.
    """
    silent = {each.node for each in conditions if each.signal is Signal.NODE_UNREACHABLE}
    silent -= taken_nodes(state.owned, state.records).keys()
    wide = {node for each in state.incidents if each.suspect is not None or each.is_mass_event for node in each.nodes}
    return len(silent) >= policy.mass_event.min_node_count or bool(silent & wide)


def plan_anew_where_silent(cluster: Cluster) -> int:
    """Supersede the plans of nodes that fell silent by themselves, and return how many: the next plan fences them."""
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    acting = [each for each in state.incidents if _may_be_silent(each, state)]
    if not acting:
        return 0
    conditions = cluster.ledger.conditions()
    policy = cluster.rules.policy
    since = {each.node: each.observed_at for each in conditions if each.signal is Signal.NODE_UNREACHABLE}
    silent = [each for each in acting if each.nodes & since.keys()]
    if not silent or is_shared_silence(conditions, state, policy):
        return 0
    try:
        answering = {each.node for each in cluster.scheduler.read_nodes() if each.is_responding}
    except SourceError:
        return 0
    count = 0
    for incident in silent:
        (node,) = incident.nodes
        if node in answering or now - since[node] < policy.durations.confirm_unreachable_after:
            continue
        note = f"{node} fell silent while its jobs were left running: it is fenced"
        superseded = advance(incident, IncidentEvent.SUPERSEDED, at=now, note=note)
        cluster.ledger.change_incident(replace(superseded, response=Response.POWER_CYCLE), actor=AUTOPILOT, now=now)
        count += 1
    return count


def _may_be_silent(incident: Incident, state: LedgerState) -> bool:
    """Return whether a plan waits that would not cut the power, and has told nobody to restart."""
    if incident.state is not IncidentState.ACTING or incident.response not in REPAIRS or len(incident.nodes) != 1:
        return False
    if incident.response >= Response.POWER_CYCLE:
        return False
    return not any(
        record.action.verb in _RESTARTS and record.action.incident == incident.incident and record.plan == incident.plan
        for record in state.records
    )
