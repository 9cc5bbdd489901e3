"""What a person does by hand, through the same guardrails, ledger and witnesses as the autopilot.

Mode and pause do not bind a person; budgets, declared nodes and foreign drains do.
"""

from datetime import timedelta

from ops_pipelines.domain.action import Action, Verb
from ops_pipelines.domain.finding import Response
from ops_pipelines.domain.guardrails import drain_owner, drain_reason
from ops_pipelines.domain.identity import IncidentId, NodeName
from ops_pipelines.domain.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.domain.observation import NodeStatus
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.lease import Lease
from ops_pipelines.flow.perform import Progress, Stage, perform

_POLL_SECONDS = 0.2


class ByHandRefused(RuntimeError):
    """What the person asked for is not possible. The message says why and what to do; nothing was changed."""


def drain_by_hand(node: NodeName, cluster: Cluster, *, lease: Lease, actor: str, why: str) -> Incident:
    """Drain a node on a person's word and return the incident that owns the drain until `return_by_hand`."""
    status = _status(node, cluster)
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    if status.is_drained:
        owner = "us" if drain_owner(status, state.records) is not None else "someone else"
        raise ByHandRefused(f"{node} is already drained by {owner}: {status.reason}. Nothing was changed.")
    note = f"drained by hand by {actor}: {why}"
    incident = Incident(
        incident=IncidentId(f"INC-{state.incident_count + 1:04d}"),
        state=IncidentState.ESCALATED,
        response=Response.PAGE,
        nodes=frozenset({node}),
        gpus=frozenset(),
        victims=frozenset(),
        findings=(),
        opened_at=now,
        changed_at=now,
        note=note,
    )
    cluster.ledger.change_incident(incident, actor=actor, now=now)
    action = Action(
        verb=Verb.DRAIN, incident=incident.incident, node=node, text=drain_reason(incident.incident, f"{actor}: {why}")
    )
    progress = _until_settled(action, cluster, lease=lease, actor=actor)
    if progress.stage is not Stage.DONE:
        given_up = advance(
            incident, IncidentEvent.CLEARED, at=cluster.clock.now(), note=f"not drained: {progress.reason}"
        )
        cluster.ledger.change_incident(given_up, actor=actor, now=cluster.clock.now())
        raise ByHandRefused(f"{node} was not drained: {progress.reason}")
    return incident


def return_by_hand(node: NodeName, cluster: Cluster, *, lease: Lease, actor: str, why: str) -> tuple[Incident, ...]:
    """Return a node of ours to service on a person's word and close the incidents that a person had on it."""
    status = _status(node, cluster)
    state = cluster.ledger.read_state(cluster.clock.now())
    owned = [incident for incident in state.incidents if node in incident.nodes and incident.is_open]
    if not status.is_drained:
        raise ByHandRefused(f"{node} is not drained; there is nothing to return.")
    if drain_owner(status, state.records) is None:
        raise ByHandRefused(
            f"{node} is drained by someone else ({status.reason}); only whoever drained it returns it, with `scontrol`."
        )
    busy = [incident for incident in owned if incident.state is not IncidentState.ESCALATED]
    if busy:
        raise ByHandRefused(
            f"{busy[0].incident} is still {busy[0].state.value} on {node}; wait until it ends or is escalated."
        )
    if not owned:
        raise ByHandRefused(f"no open incident owns {node}; use `scontrol update nodename={node} state=resume`.")
    try_number = _next_try(owned[0], cluster)
    action = Action(verb=Verb.RESUME, incident=owned[0].incident, node=node, text=why, try_number=try_number)
    progress = _until_settled(action, cluster, lease=lease, actor=actor)
    if progress.stage is not Stage.DONE:
        raise ByHandRefused(f"{node} was not returned: {progress.reason}")
    now = cluster.clock.now()
    closed = []
    for incident in owned:
        done = advance(incident, IncidentEvent.RECOVERED, at=now, note=f"returned by hand by {actor}: {why}")
        cluster.ledger.change_incident(done, actor=actor, now=now)
        closed.append(done)
    return tuple(closed)


def _next_try(incident: Incident, cluster: Cluster) -> int:
    """Return a number that no return of this incident was tried under and failed; one under way is continued."""
    failed = [
        record.action.try_number
        for record in cluster.ledger.records(incident.incident)
        if record.action.verb is Verb.RESUME and record.outcome is not None
    ]
    return max([incident.plan_count, *failed]) + 1


def _status(node: NodeName, cluster: Cluster) -> NodeStatus:
    if not cluster.rules.topology.knows(node):
        raise ByHandRefused(f"{node} is not declared in cluster.yaml; only declared nodes are acted on.")
    for status in cluster.scheduler.read_nodes():
        if status.node == node:
            return status
    raise ByHandRefused(f"the scheduler does not know {node}; check its name in cluster.yaml.")


def _until_settled(action: Action, cluster: Cluster, *, lease: Lease, actor: str) -> Progress:
    give_up_at = cluster.clock.now() + cluster.rules.policy.durations.command_limit + timedelta(seconds=2)
    while True:
        progress = perform(action, cluster, plan=None, lease=lease, actor=actor)
        if progress.stage is not Stage.UNDER_WAY or cluster.clock.now() >= give_up_at:
            return progress
        cluster.clock.wait(_POLL_SECONDS)
