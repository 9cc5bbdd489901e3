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
from ops_pipelines.diagnose.correlate import WATCHED, is_clearing_due, is_renewal_due
from ops_pipelines.remediate.guardrails.consents import taken_nodes
from ops_pipelines.remediate.verbs import BOOT_TIME_JITTER
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
    """The run reports evidence above this; None if it is not about evidence."""


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
    change of it starts the count again. What was left waiting under other rules than now hold, since
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
        key = f"{incident.incident}:{state.last_change_seq.get(incident.incident, 0)}:{turn}"
        is_unanswered = incident.state in (IncidentState.OPEN, IncidentState.ESCALATED)
        if is_unanswered and is_clearing_due(incident, conditions, now=now):
            return Due(run_key=f"clear:{key}", reason=f"the conditions of {incident.incident} are gone")
        if is_renewal_due(incident, now=now):
            return Due(run_key=f"renew:{key}", reason=f"nodes of {incident.incident} broke again")
    candidates = []
    for incident in state.incidents:
        if incident.state not in (IncidentState.OPEN, IncidentState.ACTING) or _is_only_watched(incident, now=now):
            continue
        touched_at = last_touched_at(incident, state)
        since = touched_at if rules_changed_at is None else max(touched_at, rules_changed_at)
        launch_number = _launch_number(now - since, retry_after)
        if launch_number > 0 or since > touched_at:
            seq = state.last_change_seq.get(incident.incident, 0)
            # A key is remembered for good, and those of the count before may have been used up.
            under = f":{since:%Y%m%d%H%M%S}" if since > touched_at else ""
            candidates.append((seq, incident.incident, launch_number, under))
    if not candidates:
        return None
    seq, name, launch_number, under = max(candidates)
    why = "is asked again under changed rules" if under else "waits for its next step"
    return Due(run_key=f"remediate:{name}:{seq}:{launch_number}{under}", reason=f"{name} {why}")


def due_takeover(state: LedgerState, *, epoch: int, now: datetime) -> Due | None:
    """Return the run with which a new holder of the lease continues what its predecessor left; None if nothing is.

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

    A node that was ordered to restart is noticed by a boot time later than before. A node on probation is due when that
    is over, or when something that would end it badly has lasted; a job that was moved, at growing distances, until it
    is seen to continue.
    """
    look = _Look(
        state=state,
        nodes={node.node: node for node in nodes},
        conditions=conditions,
        durations=durations,
        retry_after=retry_after,
        now=now,
    )
    taken = taken_nodes(state.owned, state.records)
    found = [look.due_of(incident) for incident in state.incidents if not incident.nodes & taken.keys()]
    return due_together([due for due in found if due is not None], also="so is")


def due_together(found: Sequence[Due], *, also: str) -> Due | None:
    """Return the one run that sees to all of them; None if nothing is due.

    A key that stays the same for minutes must not hide what becomes due meanwhile.
    """
    if len(found) < 2:
        return found[0] if found else None
    keys = digest_of(*sorted(due.run_key for due in found))[:12]
    return Due(run_key=f"{found[0].run_key}+{keys}", reason=f"{found[0].reason}; {also} {len(found) - 1} more")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What is known when it is asked which node is to be looked at."""

    state: LedgerState
    nodes: Mapping[NodeName, NodeStatus]
    conditions: Collection[Observation]
    durations: Durations
    retry_after: timedelta
    now: datetime

    def due_of(self, incident: Incident) -> Due | None:
        names = ", ".join(sorted(incident.nodes))
        match incident.state:
            case IncidentState.VERIFYING:
                return self._due_to_verify(incident, names)
            case IncidentState.PROBATION:
                return self._due_on_probation(incident, names)
            case IncidentState.IN_REPAIR | IncidentState.ESCALATED:
                return self._due_to_follow(incident, since=incident.changed_at)
            case IncidentState.ACTING if _is_back(incident, self.state, self.nodes):
                since = self.now - last_touched_at(incident, self.state)
                return self._due("verify", incident, since, f"{names} is back from its restart")
        return None

    def _due(self, kind: str, incident: Incident, elapsed: timedelta, reason: str) -> Due:
        seq = self.state.last_change_seq.get(incident.incident, 0)
        number = _launch_number(elapsed, self.retry_after)
        return Due(run_key=f"{kind}:{incident.incident}:{seq}:{number}", reason=reason)

    def _due_to_verify(self, incident: Incident, names: str) -> Due | None:
        records = tuple(record for record in self.state.records if record.action.incident == incident.incident)
        quiet_for = self.now - repair_finished_at(incident, records)
        soaked_for = quiet_for - self.durations.soak
        if soaked_for >= timedelta(0):
            return self._due("verify", incident, soaked_for, f"{names} is repaired and has been quiet long enough")
        is_tested = any(
            each.action.verb is Verb.CHECK and each.action.try_number == incident.plan_count for each in records
        )
        if is_tested or quiet_for < _SETTLES:
            return None
        return self._due("test", incident, quiet_for - _SETTLES, f"{names} is repaired: its tests begin")

    def _due_on_probation(self, incident: Incident, names: str) -> Due | None:
        assert incident.returned_at is not None  # what is on probation was returned
        watched_for = self.now - incident.returned_at
        if watched_for >= self.durations.probation:
            over_for = watched_for - self.durations.probation
            return self._due("probation", incident, over_for, f"the probation of {names} is over")
        confirm = max(self.durations.confirm_unreachable_after, self.durations.confirm_gpu_missing_after)
        lasting = [
            self.now - each.observed_at - confirm
            for each in seen_by_ourselves(self.conditions)
            if each.node in incident.nodes and each.observed_at > incident.returned_at
        ]
        if lasting and max(lasting) >= timedelta(0):
            return self._due("relapse", incident, max(lasting), f"{names} shows trouble on probation")
        is_forgotten = any(each in self.nodes and not self.nodes[each].is_last_choice for each in incident.nodes)
        if is_forgotten and _launch_number(watched_for, self.retry_after) > 0:
            return self._due("mark", incident, watched_for, f"{names} is no last choice any more")
        return self._due_to_follow(incident, since=incident.returned_at)

    def _due_to_follow(self, incident: Incident, *, since: datetime) -> Due | None:
        is_open = any(each.progressed_at is None and not each.ended_as for each in incident.recoveries)
        if not is_open or _launch_number(self.now - since, self.retry_after) == 0:
            return None
        reason = f"a job that {incident.incident} moved is not yet seen to continue"
        return self._due("follow", incident, self.now - since, reason)


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
