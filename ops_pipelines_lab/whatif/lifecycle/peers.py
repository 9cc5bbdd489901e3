"""Other ways to roll out, with the stop rules that they are published with: the same world, the same seeds.

Each knows of a node only whether it came well; none goes back (PEERS: of nine host-level systems one does). What a
project leaves to its user is set as its own example does, and in its favour where there is none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ops_pipelines_lab.whatif.lifecycle.outcome import Outcome
from ops_pipelines_lab.whatif.lifecycle.world import World

_BEGIN = -1
_QUARTER = 0.25
"""GPU Operator: maxUnavailable; NodeWright: the budget of its example."""
_EVICTED_AFTER_SECONDS = 300.0
"""GPU Operator: the drain's timeout; then the pods are gone."""
_LOCK_PERIOD_SECONDS = 3_600.0
"""Kured: every node looks for the lock this often."""
_GROWTH, _FAILED_BATCHES, _SAFE_RATIO = 2, 2, 0.5
"""NodeWright, deployment policy: the example of its exponential strategy. Its default stops at nothing."""


@dataclass(slots=True, kw_only=True)
class Course:
    """How far a peer is."""

    node_count: int
    pending_count: int
    out_count: int = 0
    failed_count: int = 0
    good_count: int = 0
    batch_size: int = 1
    batch_left_count: int = 1
    """Of the present batch: nodes that are not begun yet."""
    batch_failed_count: int = 0
    failed_batch_count: int = 0
    """In a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a peer goes on, and what it does to the job of a node that it takes."""

    places: Callable[[Course], int]
    """How many more nodes it begins now."""
    evicts_after_seconds: float | None
    """How long a job may go on; None: to its end."""
    has_stopped: Callable[[Course], str] | None = None
    """Why it goes no further; empty: it does. None: nothing stops it."""
    waits_for_lock: bool = False


def _next_batch(course: Course) -> int:
    """Return what is left of the batch; when all of it is in, the next is twice as large, or half."""
    if course.out_count == 0 and course.batch_left_count == 0:
        is_safe = course.good_count + course.failed_count >= _SAFE_RATIO * course.node_count
        if not course.batch_failed_count:
            course.batch_size, course.failed_batch_count = course.batch_size * _GROWTH, 0
        elif not is_safe:
            course.batch_size = max(1, course.batch_size // _GROWTH)
            course.failed_batch_count += 1
        course.batch_size = min(course.batch_size, max(1, int(_QUARTER * course.node_count)))
        course.batch_left_count, course.batch_failed_count = course.batch_size, 0
    return course.batch_left_count


def _quarter(course: Course) -> int:
    return int(_QUARTER * course.node_count) - course.out_count - course.failed_count


PEERS: Mapping[str, Rule] = {
    # Kured: whoever holds the lock reboots; a node that does not come back keeps it, for ever by default.
    "one_at_a_time": Rule(
        places=lambda course: 1 - course.out_count,
        has_stopped=lambda course: "the node that failed keeps the lock" if course.failed_count else "",
        evicts_after_seconds=0.0,
        waits_for_lock=True,
    ),
    # GPU Operator with maxParallelUpgrades: 0: a failed node stays unavailable and so takes a place.
    "flat_quarter": Rule(
        places=_quarter,
        has_stopped=lambda course: (
            "a quarter is unavailable" if course.failed_count >= int(_QUARTER * course.node_count) else ""
        ),
        evicts_after_seconds=_EVICTED_AFTER_SECONDS,
    ),
    # NodeWright, exponential strategy, with jobs that it waits for.
    "exponential_batches": Rule(
        places=_next_batch,
        has_stopped=lambda course: (
            f"{_FAILED_BATCHES} batches in a row failed" if course.failed_batch_count >= _FAILED_BATCHES else ""
        ),
        evicts_after_seconds=None,
    ),
    # Slurm: scontrol reboot ASAP of every node: each when its jobs are over, and nothing stops it.
    "all_at_once": Rule(
        places=lambda course: course.pending_count,
        evicts_after_seconds=None,
    ),
}


class PeerRollout:
    """A rollout by one rule, from now on, in whatever order the nodes come."""

    def __init__(self, world: World, rule: Rule) -> None:
        self._world, self._rule = world, rule
        count = len(world.nodes)
        self._pending = list(range(count))
        world.hands_random.shuffle(self._pending)
        self._waiting: set[int] = set()
        self._course = Course(node_count=count, pending_count=count)
        self._touched_count = 0
        self.outcome = Outcome(node_count=count, began_at=world.now)
        world.watcher = self
        self._begin()

    def node_free(self, number: int) -> None:
        """Update a node whose jobs are over."""
        if number in self._waiting and self._world.is_free(number):
            self._waiting.discard(number)
            self._touched_count += 1
            self._world.visit(number, self._world.site.visit_seconds)

    def node_failed(self, number: int) -> None:
        """Nobody looks."""

    def called(self, mark: int) -> None:
        """Begin, or end the job of a node whose time is over; marks are numbers of nodes."""
        if mark == _BEGIN:
            self._begin()
        elif mark in self._waiting:
            self._world.kill(mark)

    def visit_ended(self, number: int) -> None:
        """Bring a node back to work; one that is not well stays as it is."""
        world, course = self._world, self._course
        course.out_count -= 1
        world.set_version(number, is_new=True)
        if world.comes_well(number):
            course.good_count += 1
            world.undrain(number)
        else:
            course.failed_count += 1
            course.batch_failed_count += 1
        if self._rule.waits_for_lock and course.pending_count:
            world.call_at(
                world.now + world.hands_random.expovariate(course.pending_count / _LOCK_PERIOD_SECONDS), _BEGIN
            )
        else:
            self._begin()

    def _begin(self) -> None:
        course, world = self._course, self._world
        places = min(self._rule.places(course), course.pending_count)
        reason = self._rule.has_stopped(course) if self._rule.has_stopped is not None else ""
        if reason or (course.pending_count == course.out_count == 0):
            self._close(reason)
            return
        for _ in range(places):
            number = self._pending.pop()
            course.pending_count -= 1
            course.out_count += 1
            course.batch_left_count -= 1
            self._waiting.add(number)
            world.drain(number)
            if world.is_free(number):
                self.node_free(number)
            elif self._rule.evicts_after_seconds is not None:
                world.call_at(world.now + self._rule.evicts_after_seconds, number)

    def _close(self, reason: str) -> None:
        if reason:
            self.outcome.note_stop(reason, at=self._world.now, touched_count=self._touched_count)
        self.outcome.close(
            at=self._world.now,
            is_done=not reason,
            is_back=False,
            upgraded_count=self._course.good_count,
        )
        self._world.halt()
