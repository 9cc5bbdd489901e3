"""What is due: whether a run is worth starting now, and the key under which it is started once.

Pure, so that sensors hold no judgement of their own. A run that ended without an outcome is started again, at
growing distances, under a raised launch number.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import Verb
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.identity import NodeName, digest_of
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import NodeStatus, Observation, seen_by_ourselves
from ops_pipelines.core.policy import Durations
from ops_pipelines.diagnose.closing import WATCHED, is_clearing_due
from ops_pipelines.diagnose.correlate import is_renewal_due
from ops_pipelines.remediate.guardrails.consents import taken_nodes
from ops_pipelines.remediate.testimony import BOOT_TIME_JITTER
from ops_pipelines.remediate.verification import repair_finished_at

_RETRY_AT_MOST = timedelta(minutes=5)
_SETTLES = timedelta(seconds=5)
"""So long after its repair a node's tests begin: the scheduler reaches it then."""


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
    rules_changed_at: datetime | None = None,
) -> Due | None:
    """Return the remediation run that is due, None if there is nothing to do.

    Evidence above `recorded_through` (for which no run was requested yet) is due at once, whether or not the reflex
    has decided on it, and so is the closing of an incident whose conditions are gone; a run that failed to see to it
    is repeated after `retry_after`. An incident that waits (for confirmation, budget, an approval, a
    witness) is looked at again after `retry_after`, then after twice that, and so on up to every 5 minutes; any
    change of it starts the count anew. What was left waiting under other rules than now hold, since
    `rules_changed_at`, is looked at at once, and then as if it had just come. One run covers every incident, so one key
    is enough.
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
        if is_renewal_due(incident, now=now):
            seq = state.last_change_seq.get(incident.incident, 0)
            return Due(
                run_key=f"renew:{incident.incident}:{seq}:{turn}",
                reason=f"nodes of {incident.incident} broke anew",
            )
    candidates = []
    for incident in state.incidents:
        if incident.state not in (IncidentState.OPEN, IncidentState.ACTING) or _is_only_watched(incident, now=now):
            continue
        touched_at = last_touched_at(incident, state)
        is_asked_anew = rules_changed_at is not None and rules_changed_at > touched_at
        since = rules_changed_at if is_asked_anew and rules_changed_at is not None else touched_at
        launch_number = _launch_number(now - since, retry_after)
        if launch_number > 0 or is_asked_anew:
            seq = state.last_change_seq.get(incident.incident, 0)
            # A key is remembered for good, and those of the count before may have been used up.
            under = f":{since:%Y%m%d%H%M%S}" if is_asked_anew else ""
            candidates.append((seq, incident.incident, launch_number, under))
    if not candidates:
        return None
    seq, name, launch_number, under = max(candidates)
    why = "is asked anew under changed rules" if under else "waits for its next step"
    return Due(run_key=f"remediate:{name}:{seq}:{launch_number}{under}", reason=f"{name} {why}")


def due_takeover(state: LedgerState, *, epoch: int, now: datetime) -> Due | None:
    """Return the run with which a new holder of the lease goes on with what its predecessor left; None if nothing is.

    Due at once, however short a time ago a pass was made: that pass may have ended in its middle.
    """
    left = [
        incident.incident
        for incident in state.incidents
        if incident.state in (IncidentState.OPEN, IncidentState.ACTING) and not _is_only_watched(incident, now=now)
    ]
    if not left:
        return None
    more = "" if len(left) == 1 else f" and {len(left) - 1} more"
    return Due(run_key=f"takeover:{epoch}", reason=f"the lease is new here: {left[0]}{more} may be half-way")


def under_epoch(due: Due, epoch: int) -> Due:
    """Return what is due under a key of this epoch: a key is started once, and may have been for who is gone."""
    return replace(due, run_key=f"{due.run_key}@{epoch}")


def epoch_of_key(run_key: str) -> int | None:
    """Return the epoch of a key; None if it has none."""
    epoch = run_key.rpartition("@")[2]
    return int(epoch) if epoch.isdecimal() and "@" in run_key else None


def _is_only_watched(incident: Incident, *, now: datetime) -> bool:
    """Return whether there is nothing to do about an incident but to wait for more, or to forget it in time."""
    return incident.is_watched and now - incident.last_seen_at <= WATCHED


def due_verification(
    state: LedgerState,
    nodes: Sequence[NodeStatus],
    conditions: Collection[Observation] = (),
    *,
    durations: Durations,
    retry_after: timedelta,
    now: datetime,
) -> Due | None:
    """Return the verification run that is due: a drained node of ours is back from its repair and has been quiet.

    A node that was told to restart is noticed by a boot time later than before. A node on probation is due when that
    is over, or when something that would end it badly has lasted; a job that was moved, at growing distances, until it
    is seen to go on.
    """
    by_name = {node.node: node for node in nodes}
    taken = taken_nodes(state.owned, state.records)
    found = [
        due
        for incident in state.incidents
        if not incident.nodes & taken.keys()
        and (
            due := _due_of(incident, state, by_name, conditions, durations=durations, retry_after=retry_after, now=now)
        )
        is not None
    ]
    if len(found) < 2:
        return found[0] if found else None
    # One run sees to all of them. A key that stays the same for minutes must not hide what becomes due meanwhile.
    keys = digest_of(*sorted(due.run_key for due in found))[:12]
    return Due(run_key=f"{found[0].run_key}+{keys}", reason=f"{found[0].reason}; so is {len(found) - 1} more")


def _due_of(
    incident: Incident,
    state: LedgerState,
    nodes: Mapping[NodeName, NodeStatus],
    conditions: Collection[Observation],
    *,
    durations: Durations,
    retry_after: timedelta,
    now: datetime,
) -> Due | None:
    seq = state.last_change_seq.get(incident.incident, 0)
    names = ", ".join(sorted(incident.nodes))
    match incident.state:
        case IncidentState.VERIFYING:
            records = tuple(record for record in state.records if record.action.incident == incident.incident)
            quiet_for = now - repair_finished_at(incident, records)
            if quiet_for >= durations.soak:
                number = _launch_number(quiet_for - durations.soak, retry_after)
                return Due(
                    run_key=f"verify:{incident.incident}:{seq}:{number}",
                    reason=f"{names} is repaired and has been quiet long enough",
                )
            is_tested = any(
                each.action.verb is Verb.CHECK and each.action.try_number == incident.plan_count for each in records
            )
            if is_tested or quiet_for < _SETTLES:
                return None
            number = _launch_number(quiet_for - _SETTLES, retry_after)
            return Due(
                run_key=f"test:{incident.incident}:{seq}:{number}", reason=f"{names} is repaired: its tests begin"
            )
        case IncidentState.PROBATION:
            return _due_on_probation(
                incident, nodes, conditions, seq=seq, durations=durations, retry_after=retry_after, now=now
            )
        case IncidentState.IN_REPAIR | IncidentState.ESCALATED:
            return _due_to_follow(incident, since=incident.changed_at, seq=seq, retry_after=retry_after, now=now)
        case IncidentState.ACTING if _is_back(incident, state, nodes):
            number = _launch_number(now - last_touched_at(incident, state), retry_after)
            return Due(run_key=f"verify:{incident.incident}:{seq}:{number}", reason=f"{names} is back from its restart")
    return None


def _due_on_probation(
    incident: Incident,
    nodes: Mapping[NodeName, NodeStatus],
    conditions: Collection[Observation],
    *,
    seq: int,
    durations: Durations,
    retry_after: timedelta,
    now: datetime,
) -> Due | None:
    assert incident.returned_at is not None  # the caller has looked
    over_for = now - incident.returned_at - durations.probation
    name = ", ".join(sorted(incident.nodes))
    if over_for >= timedelta(0):
        number = _launch_number(over_for, retry_after)
        return Due(run_key=f"probation:{incident.incident}:{seq}:{number}", reason=f"the probation of {name} is over")
    confirm = max(durations.confirm_unreachable_after, durations.confirm_gpu_missing_after)
    lasting = [
        now - each.observed_at - confirm
        for each in seen_by_ourselves(conditions)
        if each.node in incident.nodes and each.observed_at > incident.returned_at
    ]
    if lasting and max(lasting) >= timedelta(0):
        number = _launch_number(max(lasting), retry_after)
        return Due(run_key=f"relapse:{incident.incident}:{seq}:{number}", reason=f"{name} shows trouble on probation")
    number = _launch_number(now - incident.returned_at, retry_after)
    if number > 0 and any(each in nodes and not nodes[each].is_last_choice for each in incident.nodes):
        return Due(run_key=f"mark:{incident.incident}:{seq}:{number}", reason=f"{name} is no last choice any more")
    return _due_to_follow(incident, since=incident.returned_at, seq=seq, retry_after=retry_after, now=now)


def _due_to_follow(
    incident: Incident, *, since: datetime, seq: int, retry_after: timedelta, now: datetime
) -> Due | None:
    number = _launch_number(now - since, retry_after)
    if number == 0 or not any(each.progressed_at is None and not each.ended_as for each in incident.recoveries):
        return None
    return Due(
        run_key=f"follow:{incident.incident}:{seq}:{number}",
        reason=f"a job that {incident.incident} moved is not yet seen to go on",
    )


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
