"""The repair queue: which nodes wait for hands, the report that goes with each, and a person's word that one is mended.

The report is `domain.returning.repair_report`'s. That a mended node is well is proven like after any repair of ours
(`flow.nodes.verify`): a person's word does not return a node.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import Digest, IncidentId
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.observation import NodeInspection
from ops_pipelines.core.record import BundleError, SavedBundle
from ops_pipelines.domain.returning.repair_report import RepairReport, queued_at, write_report
from ops_pipelines.domain.returning.repair_text import as_markdown
from ops_pipelines.flow.acts.witnesses import inspect_node
from ops_pipelines.flow.hands.by_hand import ByHandRefused

HISTORY = timedelta(days=90)
"""Assumption: what failed a quarter of a year ago is worth telling, and so many incidents are read at once."""
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
    """Keep what the vendor is told of a node that is put into the queue, and return its digest. No node is asked."""
    now = cluster.clock.now()
    earlier = cluster.ledger.incidents_since(min(now, incident.opened_at) - HISTORY)
    report = _write(incident, cluster, earlier=earlier, inspection=None, now=now)
    return cluster.ledger.store(as_markdown(report))


def mark_repaired(cluster: Cluster, incident: IncidentId, *, actor: str, note: str, now: datetime) -> Incident:
    """Record a person's word that a node is mended: it must prove itself, and the ladder begins anew.

    The tests that follow are asked for under a new number, so that those of before are never taken for them. Raises
    ByHandRefused if the incident is unknown, does not wait for hands, or nothing is said of what was done.
    """
    said = note.strip()
    if not said:
        raise ByHandRefused("nothing is said of what was done; name the part and the serial of the new one")
    known = _find(incident, cluster)
    if known.state is not IncidentState.IN_REPAIR:
        raise ByHandRefused(
            f"{incident} is {known.state.value}; only what is in the repair queue can be called mended "
            "(`ops-pipelines repair list`)"
        )
    mended = replace(
        advance(known, IncidentEvent.REPAIRED, at=now, note=f"mended, says {actor}: {said}"),
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
