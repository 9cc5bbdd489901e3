"""Plays a rollout once through, event by event: who is out when. Pure.

As the engine will carry it out: within the budgets that repair shares, inside windows, outside freezes, idle nodes
first. It rests on time limits of jobs; the engine takes whoever is really free.
"""

import heapq
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.rollout import PlannedVisit, Wave
from ops_pipelines.domain.lifecycle.fleet import FleetNode
from ops_pipelines.domain.lifecycle.planning.places import Places

HORIZON = timedelta(days=90)
"""What does not end by then is not foreseen to end."""
UNKNOWN_JOB_END = timedelta(hours=24)
"""# Assumption: a job without a time limit is over within a day, or its node is taken later."""
_SHORTEST_WORK = timedelta(hours=1)
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitTimes:
    """How long a node is foreseen to be out, and a wave to soak."""

    visit: timedelta
    """Install, activate, verify, gate, return."""
    canary_extra: timedelta
    """What the longer tests of a canary add."""
    deciding_soak: timedelta
    """Until the gate has decided, for the last canary wave."""


class Foresight:
    """The rollout played through: who is out, who is free when."""

    def __init__(
        self,
        candidates: Collection[FleetNode],
        *,
        places: Places,
        calendar: WorkCalendar,
        times: VisitTimes,
        job_end_limit: timedelta,
        now: datetime,
    ) -> None:
        self._nodes = {each.node: each for each in candidates}
        self._places = places
        self._calendar = calendar
        self._times = times
        self._job_end_limit = job_end_limit
        self._now = now
        self._ends_after = _work_ends(candidates, now=now)
        self.visits: list[PlannedVisit] = []
        self.stuck: tuple[NodeName, ...] = ()
        """Who had no place or no window when the play ended; empty: it was played to its end."""
        self.tries: list[PlannedVisit] = []
        """Visits that come to nothing: drained, and put back untouched when their jobs outlast the limit."""
        self.given_up: tuple[NodeName, ...] = ()
        """Who was drained in the wave that was played last, and put back: their jobs outlast the limit."""

    def play(self, wave: Wave, begins_at: datetime, *, put_off: Collection[NodeName] = ()) -> datetime | None:
        """Foresee the visits of one wave, and of nodes put off to it by those before.

        Returns when the last of them works again, None if it never does.
        """
        waiting = {name: self._nodes[name] for name in (*wave.nodes, *put_off)}
        given_up: list[NodeName] = []
        length = self._times.visit + (self._times.canary_extra if wave.is_canary else timedelta(0))
        out: list[tuple[datetime, NodeName]] = []
        at, latest = begins_at, begins_at
        while waiting:
            while out and out[0][0] <= at:
                self._places.give_back(self._nodes[heapq.heappop(out)[1]])
            opens_at = self._calendar.opens_at(at)
            if opens_at is None or opens_at > self._now + HORIZON:
                break
            if opens_at > at:
                at = opens_at
                continue
            closes_at = self._calendar.closes_at(at)
            for visit in self._taken(tuple(waiting.values()), wave, length, at=at, closes_at=closes_at):
                del waiting[visit.node]
                ends_at = visit.ends_at
                if visit.begins_at - at > self._job_end_limit:
                    ends_at = at + self._job_end_limit
                    given_up.append(visit.node)
                    self.tries.append(replace(visit, begins_at=ends_at, ends_at=ends_at))
                else:
                    self.visits.append(visit)
                heapq.heappush(out, (ends_at, visit.node))
                latest = max(latest, ends_at)
            if out:
                at = out[0][0]
            elif waiting and (closes_at is None or not any(map(self._places.has_room, waiting.values()))):
                break  # Nobody is out who would come back, and nothing else will change.
            elif closes_at is not None:
                at = closes_at
        self.stuck, self.given_up = tuple(sorted(waiting)), tuple(sorted(given_up))
        for _, name in out:
            self._places.give_back(self._nodes[name])
        return None if waiting else latest

    def why_stuck(self) -> str:
        """Return in words why nodes have no place or no time."""
        full = {self._places.why_full(self._nodes[name]) for name in self.stuck} - {""}
        if full:
            return f"no room in {', '.join(sorted(full))}: too many nodes are out there already"
        if self._calendar.windows is None:
            return f"freezes, or the ends of their jobs, leave none within {HORIZON.days} days"
        return f"no window that is known, up to {HORIZON.days} days ahead, is long enough behind the end of their jobs"

    def _taken(
        self,
        waiting: Sequence[FleetNode],
        wave: Wave,
        length: timedelta,
        *,
        at: datetime,
        closes_at: datetime | None,
    ) -> list[PlannedVisit]:
        """Return who begins at this moment, whoever is free soonest first; takes their places."""
        found: list[PlannedVisit] = []
        if self._places.left_count < 1:
            return found
        for free_at, name in sorted((self._free_at(each, at), each.node) for each in waiting):
            if self._places.left_count < 1 or (closes_at is not None and free_at + length > closes_at):
                break
            if self._places.has_room(self._nodes[name]):
                self._places.take(self._nodes[name])
                found.append(
                    PlannedVisit(
                        node=name, wave=wave.number, drained_at=at, begins_at=free_at, ends_at=free_at + length
                    )
                )
        return found

    def _free_at(self, node: FleetNode, at: datetime) -> datetime:
        """Return when a node that is drained at some time is free: its job's end, or that of whatever follows it."""
        if node.is_idle:
            return at
        known = node.free_at if node.free_at is not None else self._now + UNKNOWN_JOB_END
        if known >= at:
            return known
        place = bisect_left(self._ends_after, at - known)
        return known + self._ends_after[place] if place < len(self._ends_after) else at


def _work_ends(nodes: Collection[FleetNode], *, now: datetime) -> list[timedelta]:
    """Return how long after the end of a node's present work the work that follows ends, one piece after the other.

    # Assumption: pieces last as long as the present ones do, which are half over when they are looked at; from half as
    long to half as long again, evenly mixed, so that no node stays in step with the windows.
    """
    ends_at = [each.free_at for each in nodes if not each.is_idle and each.free_at is not None]
    left = [(at - now).total_seconds() for at in ends_at]
    usual = max(_SHORTEST_WORK, timedelta(seconds=2 * median(left))) if left else UNKNOWN_JOB_END
    ends = [timedelta(0)]
    while ends[-1] <= HORIZON + usual:
        ends.append(ends[-1] + usual * (0.5 + len(ends) * _GOLDEN % 1))
    return ends
