"""What is due: whether a run is worth starting now, and the key under which it is started once.

Pure, so that sensors hold no judgement of their own. A run that ended without an outcome is started again, at
growing distances, under a raised launch number.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.domain.action import Verb
from ops_pipelines.domain.correlation import WATCHED, is_clearing_due
from ops_pipelines.domain.identity import NodeName
from ops_pipelines.domain.incident import Incident, IncidentState
from ops_pipelines.domain.observation import NodeStatus, Observation
from ops_pipelines.domain.policy import Durations
from ops_pipelines.domain.verification import BOOT_TIME_JITTER, repaired_at
from ops_pipelines.ports.ledger import LedgerState

_RETRY_AT_MOST = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A run worth starting: its key, and why."""

    run_key: str
    reason: str
    evidence_after: int | None = None
    """The run tells of evidence above this; None if it is not about evidence."""


def due_remediation(
    state: LedgerState,
    conditions: Collection[Observation],
    *,
    recorded_through: int,
    retry_after: timedelta,
    now: datetime,
) -> Due | None:
    """Return the remediation run that is due, None if there is nothing to do.

    Evidence above `recorded_through` (for which no run was requested yet) is due at once, whether or not the reflex
    has decided on it, and so is the closing of an incident whose conditions are gone; a run that failed to see to it
    is repeated after `retry_after`. An incident that waits (for confirmation, budget, an approval, a
    witness) is looked at again after `retry_after`, then after twice that, and so on up to every 5 minutes; any
    change of it starts the count anew. One run covers every incident, so one key is enough.
    """
    turn = int(now.timestamp() / retry_after.total_seconds())
    seen_through = min(recorded_through, state.decided_through)
    if state.evidence_head > seen_through:
        return Due(
            run_key=f"observe:{seen_through}-{state.evidence_head}:{turn}",
            reason=f"{state.evidence_head - seen_through} new observations",
            evidence_after=seen_through,
        )
    for incident in state.incidents:
        if incident.state in (IncidentState.OPEN, IncidentState.ESCALATED) and is_clearing_due(
            incident, conditions, now=now
        ):
            seq = state.last_change_seq.get(incident.incident, 0)
            return Due(
                run_key=f"clear:{incident.incident}:{seq}:{turn}",
                reason=f"the conditions of {incident.incident} are gone",
            )
    candidates = []
    for incident in state.incidents:
        if incident.state not in (IncidentState.OPEN, IncidentState.ACTING) or _is_only_watched(incident, now=now):
            continue
        launch_number = _launch_number(now - last_touched_at(incident, state), retry_after)
        if launch_number > 0:
            seq = state.last_change_seq.get(incident.incident, 0)
            candidates.append((seq, incident.incident, launch_number))
    if not candidates:
        return None
    seq, name, launch_number = max(candidates)
    return Due(run_key=f"remediate:{name}:{seq}:{launch_number}", reason=f"{name} waits for its next step")


def _is_only_watched(incident: Incident, *, now: datetime) -> bool:
    """Return whether there is nothing to do about an incident but to wait for more, or to forget it in time."""
    return incident.is_watched and now - incident.last_seen_at <= WATCHED


def due_verification(
    state: LedgerState, nodes: Sequence[NodeStatus], *, durations: Durations, retry_after: timedelta, now: datetime
) -> Due | None:
    """Return the verification run that is due: a drained node of ours is back from its repair and has been quiet.

    A node that was told to restart is noticed by a boot time later than before.
    """
    by_name = {node.node: node for node in nodes}
    for incident in state.incidents:
        seq = state.last_change_seq.get(incident.incident, 0)
        elapsed = now - last_touched_at(incident, state)
        if incident.state is IncidentState.VERIFYING:
            records = tuple(record for record in state.records if record.action.incident == incident.incident)
            since = repaired_at(records) or incident.changed_at
            if now - since < durations.soak:
                continue
            launch_number = _launch_number(now - since - durations.soak, retry_after)
            return Due(
                run_key=f"verify:{incident.incident}:{seq}:{launch_number}",
                reason=f"{', '.join(sorted(incident.nodes))} is repaired and has been quiet long enough",
            )
        if incident.state is IncidentState.ACTING and _is_back(incident, state, by_name):
            return Due(
                run_key=f"verify:{incident.incident}:{seq}:{_launch_number(elapsed, retry_after)}",
                reason=f"{', '.join(sorted(incident.nodes))} is back from its restart",
            )
    return None


def last_touched_at(incident: Incident, state: LedgerState) -> datetime:
    """Return when an incident, or one of its actions, last changed."""
    times = [incident.changed_at]
    for record in state.records:
        if record.action.incident == incident.incident:
            times += [record.begun_at]
            times += [record.outcome.finished_at] if record.outcome is not None else []
    return max(times)


def _is_back(incident: Incident, state: LedgerState, nodes: Mapping[NodeName, NodeStatus]) -> bool:
    for record in state.records:
        if record.action.incident != incident.incident or record.outcome is not None:
            continue
        if record.action.verb not in (Verb.REBOOT, Verb.POWER_ON) or record.action.node is None:
            continue
        node = nodes.get(record.action.node)
        if node is None or not node.is_responding or node.booted_at is None:
            continue
        # Boot times come in whole seconds: compare with what was read before, or with the second of the command.
        before = record.booted_before
        since = record.begun_at.replace(microsecond=0) if before is None else before + BOOT_TIME_JITTER
        if node.booted_at > since:
            return True
    return False


def _launch_number(elapsed: timedelta, retry_after: timedelta) -> int:
    """Return 0 before the first retry is due, then 1, 2, 3... at 1, 2, 4... times `retry_after`, 5 min apart."""
    turns = elapsed / retry_after
    if turns < 1:
        return 0
    doublings = int(math.log2(turns))
    longest = max(1, int(math.log2(max(1.0, _RETRY_AT_MOST / retry_after))))
    if doublings <= longest:
        return doublings + 1
    beyond = elapsed - retry_after * 2**longest
    return longest + 1 + int(beyond / _RETRY_AT_MOST)
