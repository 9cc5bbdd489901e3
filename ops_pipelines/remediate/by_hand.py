"""What a person does by hand, through the same guardrails and ledger; and the queue of nodes that wait for repair.

Mode and pause do not bind a person; budgets, declared nodes and foreign drains do.

The report is `remediate.repair_report`'s. That a repaired node is well is proven like after any repair of ours
(`remediate.verify`): a person's word does not return a node.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerConflict, LedgerState
from ops_pipelines.core.identity import Digest, IncidentId, NodeName, is_rollout
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance, handed_to_people
from ops_pipelines.core.observation import NodeInspection, NodeStatus
from ops_pipelines.core.plan import Order
from ops_pipelines.core.policy import RequestRefused
from ops_pipelines.core.record import BundleError, SavedBundle
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.guardrails.consents import taken_nodes
from ops_pipelines.remediate.guardrails.facts import drain_owner, drain_reason
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.perform import Progress, Stage, perform
from ops_pipelines.remediate.repair_report import RepairReport, as_markdown, queued_at, write_report
from ops_pipelines.remediate.verbs import inspect_node

# -- what a person does by hand, through the same guardrails --


_POLL_SECONDS = 0.2


class ByHandRefused(RequestRefused):
    """What the person asked for was not done, or is not known to be. The message says why and what to do next."""


def drain_by_hand(node: NodeName, cluster: Cluster, *, lease: Lease, actor: str, why: str) -> Incident:
    """Drain a node on a person's word and return the incident that owns the drain until `return_by_hand`.

    Asked again after it was cut short, it continues the incident that it opened then: a drain has one owner. A drain
    that may still take effect stays owned, by a person: only what provably was never done is closed.
    """
    status = _status(node, cluster)
    state = cluster.ledger.read_state(cluster.clock.now())
    _refuse_where_taken(node, state)
    incident = _cut_short_drain(node, state)
    if incident is None:
        if status.is_drained:
            raise ByHandRefused(f"{node} is already drained {_by_whom(status, state)}. Nothing was changed.")
        incident = _open(node, cluster, state, actor=actor, why=why)
    action = Action(
        verb=Verb.DRAIN,
        incident=incident.incident,
        node=node,
        text=drain_reason(incident.incident, f"{actor}: {why}"),
        try_number=_next_try(Verb.DRAIN, incident, cluster),
    )
    progress = _until_settled(action, cluster, lease=lease, actor=actor)
    if progress.stage is Stage.DONE:
        return incident
    now = cluster.clock.now()
    if all(_was_refused(record) for record in cluster.ledger.records(incident.incident)):
        given_up = advance(incident, IncidentEvent.CLEARED, at=now, note=f"not drained: {progress.reason}")
        cluster.ledger.change_incident(given_up, actor=actor, now=now)
        raise ByHandRefused(f"{node} was not drained: {progress.reason}")
    note = f"{_asked_for(actor, why)}; whether it took effect is not known: {progress.reason}"
    cluster.ledger.change_incident(replace(incident, note=note, changed_at=now), actor=actor, now=now)
    raise ByHandRefused(
        f"{node} may or may not be drained: {progress.reason}. {incident.incident} stays yours: look at the node, then "
        f"drain it again, return it, or end it with `ops-pipelines close {incident.incident}`."
    )


def return_by_hand(node: NodeName, cluster: Cluster, *, lease: Lease, actor: str, why: str) -> tuple[Incident, ...]:
    """Return a node of ours to service on a person's word and close the incidents that a person had on it.

    Asked again after it was cut short, it takes note of the return that it sent then.
    """
    status = _status(node, cluster)
    state = cluster.ledger.read_state(cluster.clock.now())
    _refuse_where_taken(node, state)
    owned = [incident for incident in state.incidents if node in incident.nodes and incident.is_open]
    cut_short = None if status.is_drained else _cut_short_return(node, owned, state)
    if not status.is_drained and cut_short is None:
        raise ByHandRefused(f"{node} is not drained; there is nothing to return.")
    if status.is_drained and drain_owner(status, state.records) is None:
        raise ByHandRefused(
            f"{node} is drained by someone else ({status.reason}); only who drained it returns it, with `scontrol`."
        )
    busy = [incident for incident in owned if incident.state is not IncidentState.ESCALATED]
    if busy:
        raise ByHandRefused(
            f"{busy[0].incident} is still {busy[0].state.value} on {node}; wait until it ends or is escalated."
        )
    if not owned:
        raise ByHandRefused(f"no open incident owns {node}; use `scontrol update nodename={node} state=resume`.")
    action = cut_short or Action(
        verb=Verb.RESUME,
        incident=owned[0].incident,
        node=node,
        text=why,
        try_number=_next_try(Verb.RESUME, owned[0], cluster),
    )
    progress = _until_settled(action, cluster, lease=lease, actor=actor)
    if progress.stage is not Stage.DONE:
        raise ByHandRefused(f"{node} was not returned: {progress.reason}")
    _put_back(action, state, cluster, lease=lease, actor=actor)
    now = cluster.clock.now()
    closed = []
    for incident in owned:
        done = advance(incident, IncidentEvent.RECOVERED, at=now, note=f"returned by hand by {actor}: {why}")
        cluster.ledger.change_incident(done, actor=actor, now=now)
        closed.append(done)
    return tuple(closed)


def _refuse_where_taken(node: NodeName, state: LedgerState) -> None:
    """Refuse where a rollout has the node: it gives it back by itself. One that waits for its drain has nothing."""
    rollout = taken_nodes(state.owned, state.records).get(node)
    if rollout is not None:
        raise ByHandRefused(
            f"{node} is being updated by {rollout}, which returns it; `ops-pipelines rollout status {rollout}` says "
            f"how far it is, `ops-pipelines rollout pause {rollout}` lets it begin no other."
        )


def _put_back(resume: Action, state: LedgerState, cluster: Cluster, *, lease: Lease, actor: str) -> None:
    """Let a returned node be chosen like any other, if a probation of ours made it last choice and did not end.

    Where that fails the node is back all the same; the next pass of the autopilot puts it back.
    """
    marks = [
        each
        for each in state.records
        if each.action.verb is Verb.PUT_LAST
        and each.action.node == resume.node
        and not is_rollout(each.action.incident)
    ]
    if not marks:
        return
    put_back = replace(resume, verb=Verb.PUT_BACK, text="")
    with suppress(SourceError, LedgerConflict):
        _until_settled(put_back, cluster, lease=lease, actor=actor)


def _open(node: NodeName, cluster: Cluster, state: LedgerState, *, actor: str, why: str) -> Incident:
    now = cluster.clock.now()
    incident = handed_to_people(number=state.incident_count + 1, note=_asked_for(actor, why), now=now)
    incident = replace(incident, nodes=frozenset({node}))
    cluster.ledger.change_incident(incident, actor=actor, now=now)
    return incident


def _asked_for(actor: str, why: str) -> str:
    return f"drained by hand by {actor}: {why}"


def _cut_short_drain(node: NodeName, state: LedgerState) -> Incident | None:
    """Return the incident of a drain by hand of which nobody knows that it was done, None if there is none."""
    done = {
        record.action.incident
        for record in state.records
        if record.action.verb is Verb.DRAIN and record.outcome is not None and record.outcome.kind is OutcomeKind.DONE
    }
    begun = [
        incident
        for incident in state.incidents
        # Of the incidents on a node, only what a person opened has no findings.
        if incident.nodes == {node} and not incident.findings and incident.state is IncidentState.ESCALATED
    ]
    return next((incident for incident in begun if incident.incident not in done), None)


def _cut_short_return(node: NodeName, owned: Sequence[Incident], state: LedgerState) -> Action | None:
    """Return the return that a person's command sent before it was cut short, None if there is none."""
    mine = {incident.incident for incident in owned if incident.state is IncidentState.ESCALATED}
    return next(
        (
            record.action
            for record in state.records
            if record.action.verb is Verb.RESUME
            and record.action.node == node
            and record.action.incident in mine
            and (record.outcome is None or record.outcome.kind is OutcomeKind.DONE)
        ),
        None,
    )


def _by_whom(status: NodeStatus, state: LedgerState) -> str:
    owner = drain_owner(status, state.records)
    incident = next((each for each in state.incidents if each.incident == owner), None)
    if incident is None:
        return f"by {'someone else' if owner is None else owner} ({status.reason})"
    return f"by {owner}, which is {incident.state.value} ({incident.note})"


def _was_refused(record: ActionRecord) -> bool:
    """Return whether a command was answered no, and never accepted: then it has no effect."""
    outcome = record.outcome
    return record.sent_at is None and outcome is not None and outcome.kind is OutcomeKind.FAILED


def _next_try(verb: Verb, incident: Incident, cluster: Cluster) -> int:
    """Return a number that no such act of this incident has ended under; one under way is continued."""
    ended = [
        record.action.try_number
        for record in cluster.ledger.records(incident.incident)
        if record.action.verb is verb and record.outcome is not None
    ]
    return max([incident.plan_count, *ended]) + 1


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
        progress = perform(Order(action=action), cluster, lease=lease, actor=actor)
        if progress.stage is not Stage.UNDER_WAY or cluster.clock.now() >= give_up_at:
            return progress
        cluster.clock.wait(_POLL_SECONDS)


# -- the repair queue --


HISTORY = timedelta(days=90)
"""Assumption: what failed a quarter of a year ago is worth reporting, and so many incidents are read at once."""
_CHECKS_TOLD = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRepair:
    """One node in the repair queue."""

    incident: Incident
    since: datetime
    age: timedelta
    report: RepairReport


def queue_of(cluster: Cluster) -> tuple[WaitingRepair, ...]:
    """Return every node that waits for hands, the longest waiting first. No node is asked: most of them are silent."""
    now = cluster.clock.now()
    waiting = [each for each in cluster.ledger.read_state(now).incidents if each.state is IncidentState.IN_REPAIR]
    earlier = cluster.ledger.incidents_since(now - HISTORY) if waiting else ()
    return tuple(
        WaitingRepair(
            incident=each,
            since=queued_at(each),
            age=max(timedelta(0), now - queued_at(each)),
            report=_write(each, cluster, earlier=earlier, inspection=None, now=now),
        )
        for each in sorted(waiting, key=queued_at)
        if len(each.nodes) == 1
    )


def report_for(cluster: Cluster, incident: IncidentId) -> RepairReport:
    """Return the report on the node of an incident, whatever its state; the node is asked once how it sees itself.

    Raises ByHandRefused if there is no such incident, or it is not about one node.
    """
    known = _find(incident, cluster)
    if len(known.nodes) != 1:
        raise ByHandRefused(f"{incident} is about {len(known.nodes)} nodes; a repair report is about one node")
    now = cluster.clock.now()
    earlier = cluster.ledger.incidents_since(min(now, known.opened_at) - HISTORY)
    (node,) = known.nodes
    return _write(known, cluster, earlier=earlier, inspection=inspect_node(node, cluster), now=now)


def store_report(incident: Incident, cluster: Cluster) -> Digest:
    """Keep the report on a node that is put into the queue, and return its digest. No node is asked."""
    now = cluster.clock.now()
    earlier = cluster.ledger.incidents_since(min(now, incident.opened_at) - HISTORY)
    report = _write(incident, cluster, earlier=earlier, inspection=None, now=now)
    return cluster.ledger.store(as_markdown(report))


def mark_repaired(cluster: Cluster, incident: IncidentId, *, actor: str, note: str, now: datetime) -> Incident:
    """Record a person's word that a node is repaired: it must prove itself, and the ladder begins again.

    The tests that follow are asked for under a new number, so that those of before are never taken for them. Raises
    ByHandRefused if the incident is unknown, does not wait for hands, or nothing is stated of what was done.
    """
    said = note.strip()
    if not said:
        raise ByHandRefused("nothing is stated of what was done; name the part and the serial of the new one")
    known = _find(incident, cluster)
    if known.state is not IncidentState.IN_REPAIR:
        raise ByHandRefused(
            f"{incident} is {known.state.value}; only what is in the repair queue can be called repaired "
            "(`ops-pipelines repair list`)"
        )
    mended = replace(
        advance(known, IncidentEvent.REPAIRED, at=now, note=f"repaired, says {actor}: {said}"),
        tries=(),
        mended_at=now,
        plan_count=known.plan_count + 1,
        returned_at=None,
        quiet_since=None,
    )
    cluster.ledger.change_incident(mended, actor=actor, now=now)
    return mended


def _find(incident: IncidentId, cluster: Cluster) -> Incident:
    known = cluster.ledger.incident(incident)
    if known is None:
        raise ByHandRefused(f"there is no incident {incident}; `ops-pipelines repair list` lists what waits for hands")
    return known


def _write(
    incident: Incident,
    cluster: Cluster,
    *,
    earlier: tuple[Incident, ...],
    inspection: NodeInspection | None,
    now: datetime,
) -> RepairReport:
    (node,) = incident.nodes
    bundles: tuple[SavedBundle, ...] = ()
    if cluster.bundles is not None:
        with suppress(BundleError):
            bundles = cluster.bundles.of(incident.incident)
    return write_report(
        incident,
        records=cluster.ledger.records(incident.incident),
        checks=tuple(check for check, _ in cluster.ledger.checks(node, limit=_CHECKS_TOLD)),
        inspection=inspection,
        earlier=earlier,
        gates=cluster.rules.catalogue.gates,
        driver_versions=_driver_versions(bundles),
        is_evidence_kept=bool(bundles) or incident.bundle is not None,
        now=now,
    )


def _driver_versions(bundles: tuple[SavedBundle, ...]) -> tuple[str, ...]:
    """Return the versions of the driver that the newest bundle which names any names."""
    for bundle in reversed(bundles):
        with suppress(ValueError, KeyError, TypeError):
            named = json.loads(bundle.manifest)["versions"]["driver"]
            if named:
                return tuple(str(each) for each in named)
    return ()
