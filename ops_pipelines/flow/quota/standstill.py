"""Why quotas stand still, and why they go back to what was agreed. Reads incidents and policy; moves nothing.

What stops quotas is trouble of the whole cluster: then nobody can tell what teams would have wanted. A broken node,
rack or switch, and whatever a rollout breaks, is lost supply (`supply`), and quotas go on.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from ops_pipelines.core.fault import ComponentKind
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import Topology
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.proposal import ProposalRecord, ProposalState, QuotaProposal
from ops_pipelines.diagnose.shared_cause import nodes_at
from ops_pipelines.teams.settings import QuotaFreeze, QuotaPolicy

OF_ALL = frozenset({ComponentKind.STORAGE, ComponentKind.FABRIC})
"""Parts that every node shares, whatever their number is."""
_MOST_OF_ALL = 0.5
"""# Assumption: a power feed, or a mass event, that has so large a share of the nodes is no part of the cluster. The
scheduler and accounting have no component of their own in incidents: when they fail, nodes look broken at once."""
_LONGEST_CAUSE = 160


def standstill(incidents: Iterable[Incident], *, topology: Topology, policy: QuotaPolicy, now: datetime) -> str:
    """Return why no quota moves now, in words; empty if quotas move."""
    freeze = policy.freeze_at(now)
    if freeze is not None:
        until = "until it is taken back" if freeze.ends_at is None else f"until {freeze.ends_at:%Y-%m-%d %H:%M} UTC"
        return f"the freeze {freeze.name} holds {until}"
    stopping = sorted(
        (each for each in incidents if is_of_whole_cluster(each, topology)), key=lambda each: each.opened_at
    )
    if not stopping:
        return ""
    first = stopping[0]
    cause = first.cause if len(first.cause) <= _LONGEST_CAUSE else f"{first.cause[:_LONGEST_CAUSE]}..."
    more = f", and {len(stopping) - 1} more" if len(stopping) > 1 else ""
    return f"{first.incident} is about the whole cluster: {cause}{more}"


def is_of_whole_cluster(incident: Incident, topology: Topology) -> bool:
    """Return whether an incident is of what all nodes share, or of most nodes at once.

    Counted are: shared storage, the fabric, a power feed of half the nodes or more, and as many nodes that look broken
    at once without a place in common. What is only watched, or the owner's own doing, never counts.
    """
    if not incident.is_open or incident.response < Response.PAGE:
        return False
    if incident.suspect is None:
        known = sum(topology.knows(node) for node in incident.nodes)
        return incident.is_mass_event and _is_most(known, topology)
    if incident.suspect.kind in OF_ALL:
        return True
    is_feed = incident.suspect.kind is ComponentKind.POWER_FEED
    return is_feed and _is_most(len(nodes_at(incident.suspect, topology)), topology)


def returns_to_contract(records: Sequence[ProposalRecord], *, policy: QuotaPolicy, now: datetime) -> str:
    """Return why quotas go back toward what was agreed: the freeze that ended; empty once they are there.

    They are there when a proposal made since then had steps to spare, and is applied or had nothing to set. A full way
    takes as many days as the step cap allows; after that, whatever is missing is left to demand.
    `records`: the newest proposals.
    """
    ended = _newest_ended(policy.freezes, now=now)
    if ended is None or ended.ends_at is None:
        return ""
    days = math.ceil(1 / policy.rebalance.step_cap_ratio - 1e-9)
    if now - ended.ends_at >= timedelta(days=days):
        return ""
    since = [each for each in records if each.proposal.made_at >= ended.ends_at]
    if any(_is_in(each) and _has_arrived(each.proposal) for each in since):
        return ""
    return f"the freeze {ended.name} ended on {ended.ends_at:%Y-%m-%d}"


def _newest_ended(freezes: Iterable[QuotaFreeze], *, now: datetime) -> QuotaFreeze | None:
    ended = [each for each in freezes if each.ends_at is not None and each.ends_at <= now]
    return max(ended, key=lambda each: each.ends_at or now, default=None)


def _is_in(record: ProposalRecord) -> bool:
    """Return whether limits are as proposed: what would set nothing is never applied, and soon overtaken."""
    waits = record.state in (ProposalState.PROPOSED, ProposalState.SUPERSEDED)
    return record.state is ProposalState.APPLIED or (waits and not record.proposal.changes_anything)


def _has_arrived(proposal: QuotaProposal) -> bool:
    """Return whether no type used up its step: rounded to whole GPUs, each that rises may lack part of one."""
    if proposal.frozen_because:
        return False
    for gpu_type, cap in proposal.step_caps:
        changes = [line.after - line.before for line in proposal.lines if line.gpu_type == gpu_type]
        rising_count = sum(change > 0 for change in changes)
        if any(changes) and sum(map(abs, changes)) / 2 > cap - max(1, rising_count):
            return False
    return True


def _is_most(count: int, topology: Topology) -> bool:
    return bool(topology.places) and count >= _MOST_OF_ALL * len(topology.places)
