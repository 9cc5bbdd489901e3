"""The nodes of one model as a scheduler sees them: who is idle, what waits, which job starts next.

First come, first served, with backfill: behind a gang that waits for room starts only what is over before its room is
there, or takes nodes that it will not need (Slurm: sched/backfill). Time is the world's.
"""

import math
from bisect import bisect_left, insort

from ops_pipelines_lab.whatif.lifecycle.jobs import Job, JobMix

QUEUE_LENGTH = 64
"""# Assumption: the queue never empties, and backfill looks this deep (Slurm's bf_max_job_test is 500)."""
_End = tuple[float, int, Job]


class Partition:
    """Idle nodes, the queue, and when running jobs end at the latest."""

    def __init__(self, mix: JobMix, *, gang_cap: int) -> None:
        self.idle: list[int] = []
        self.capped: set[int] = set()
        """Nodes that take no gang wider than the cap."""
        self._gang_cap = gang_cap
        self._mix = mix
        self._queue = [mix.draw() for _ in range(QUEUE_LENGTH)]
        self._ends: list[_End] = []

    def put_first(self, job: Job) -> None:
        """Put a job back that failed: before any other."""
        self._queue.insert(0, job)

    def ended(self, job: Job) -> None:
        """Forget a job that runs no more; its nodes are given back one by one."""
        del self._ends[bisect_left(self._ends, (job.ends_by, job.number, job))]

    def next_starts(self, now: float) -> list[tuple[Job, list[int]]]:
        """Return which jobs start now and where; they have left the queue, and their nodes are idle no more."""
        started: list[tuple[Job, list[int]]] = []
        queue, cap = self._queue, self._gang_cap
        aside = self._capped_first() if self.capped else 0
        while self.idle and queue[0].size <= len(self.idle) - (aside if queue[0].size > cap else 0):
            aside -= self._start(queue.pop(0), now, started, aside)
            if not queue:
                queue.append(self._mix.draw())
        if self.idle:
            self._fill_in(now, started, aside)
        while len(queue) < QUEUE_LENGTH:
            queue.append(self._mix.draw())
        return started

    def _fill_in(self, now: float, started: list[tuple[Job, list[int]]], aside: int) -> None:
        """Start what does not hold up the job in front, which waits for room."""
        queue, cap, front = self._queue, self._gang_cap, self._queue[0]
        is_front_wide = front.size > cap
        room, spare = self._room_for(front, aside if is_front_wide else 0)
        left, free, place = room - now, len(self.idle), 1
        while free:
            # Narrow jobs may take what the wide gang in front is kept off anyway.
            spare_narrow = spare + (aside if is_front_wide else 0)
            for at in range(place, len(queue)):
                job = queue[at]
                size = job.size
                if size > free or (job.limit_seconds > left and size > (spare if size > cap else spare_narrow)):
                    continue
                if size <= cap or size <= free - aside:
                    break
            else:
                return
            place = at
            del queue[place]
            of_capped = self._start(job, now, started, aside)
            aside, free = aside - of_capped, free - size
            if job.limit_seconds > left:
                spare -= size - (of_capped if is_front_wide else 0)

    def _start(self, job: Job, now: float, started: list[tuple[Job, list[int]]], aside: int) -> int:
        """Start a job on idle nodes; return how many of them are capped."""
        skipped, of_capped = (aside, 0) if job.size > self._gang_cap else (0, min(aside, job.size))
        job.nodes, job.began_at, job.capped_count = self.idle[skipped : skipped + job.size], now, of_capped
        del self.idle[skipped : skipped + job.size]
        insort(self._ends, (job.ends_by, job.number, job))
        started.append((job, job.nodes))
        return of_capped

    def _capped_first(self) -> int:
        """Put capped nodes in front, so that narrow jobs leave the others to gangs; return how many there are."""
        capped = [each for each in self.idle if each in self.capped]
        if capped:
            self.idle[:] = capped + [each for each in self.idle if each not in self.capped]
        return len(capped)

    def _room_for(self, job: Job, aside: int) -> tuple[float, int]:
        """Return when a job that waits has room, by the limits of those that run, and what is left over then."""
        size, have, is_wide = job.size, len(self.idle) - aside, job.size > self._gang_cap
        for at, _, running in self._ends:
            have += running.size - running.drained_count
            if is_wide:
                have -= running.capped_count
            if have >= size:
                return at, have - size
        return math.inf, 0
