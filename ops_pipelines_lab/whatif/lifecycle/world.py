"""The cluster at work: nodes, gangs, a queue that never empties, failures, and what is lost. Event by event.

Who rolls out (`controller`, `trials`) marks nodes and is notified of what happens; the world decides nothing. The same
seed gives the same jobs, in the same order, and the same background failures, with and without a rollout.
"""

import heapq
import random

from ops_pipelines_lab.whatif.lifecycle.scenario import Scenario, Site
from ops_pipelines_lab.whatif.lifecycle.work import Event, Job, Losses, Nobody, Node, Tells, Watcher, Work

DAY = 86_400.0
HORIZON_SECONDS = 60 * DAY
"""Failures are drawn up to here; nothing is played beyond."""


class World:
    """One cluster in one run."""

    def __init__(self, site: Site, scenario: Scenario, seed: int, *, gang_cap: int) -> None:
        self.site, self.scenario = site, scenario
        self.now = 0.0
        self.watcher: Watcher = Nobody()
        # Each stream is drawn in its own order, so that a rollout changes neither the jobs nor what breaks anyway.
        self._failures_random = random.Random(f"failures {seed}")
        self._release_random = random.Random(f"release {seed}")
        self._steps_random = random.Random(f"steps {seed}")
        self.hands_random = random.Random(f"hands {seed}")
        """For a rollout."""
        self._events: list[tuple[float, int, int, int, int]] = []
        self._count = 0
        self._is_halted = False
        self.nodes = self._make_nodes()
        self._work = Work(
            site,
            self.nodes,
            seed=seed,
            gang_cap=gang_cap,
            tells=Tells(ends_at=self._foresee_end, is_free=self._tell_free, run_over=self._record_run),
        )
        self._handlers = {
            Event.JOB_END.value: self._work.end_by_itself,
            Event.FAILURE.value: self._background,
            Event.BAD_FAILURE.value: self._bad_failure,
            Event.HANG.value: self._hang,
            Event.REPAIRED.value: self._repaired,
            Event.VISIT_END.value: self._visit_ends,
            Event.CALL.value: self._call,
        }
        for node in self.nodes:
            self._foresee_failures(node.number)

    @property
    def losses(self) -> Losses:
        """What was lost so far. What running jobs would do again is not lost yet."""
        return self._work.losses

    # -- what a rollout may do --

    def call_at(self, at: float, mark: int = 0) -> None:
        self._push(at, Event.CALL, mark, 0)

    def halt(self) -> None:
        """Let no more time pass in this play."""
        self._is_halted = True

    def drain(self, number: int) -> None:
        """Let no new job start on a node; its job continues."""
        if not self.nodes[number].is_drained:
            self._work.drain(self.nodes[number])

    def undrain(self, number: int) -> None:
        if self.nodes[number].is_drained:
            self._work.undrain(self.nodes[number])

    def set_cap(self, number: int, *, is_capped: bool) -> None:
        """Keep wide gangs off a node, or let them on it again."""
        self._work.set_cap(self.nodes[number], is_capped=is_capped)

    def kill(self, number: int) -> None:
        """End the job of a node: it returns to its last checkpoint."""
        self._work.kill(self.nodes[number])

    def is_free(self, number: int) -> bool:
        """Return whether a drained node can be visited."""
        node = self.nodes[number]
        return node.is_drained and node.job is None and not node.is_out

    def visit(self, number: int, seconds: float) -> None:
        """Take a free node out for a while."""
        node = self.nodes[number]
        node.is_out = True
        node.visit += 1
        self._push(self.now + seconds, Event.VISIT_END, number, node.visit)

    def end_visit(self, number: int) -> None:
        """Break a visit off: nothing is notified of its end."""
        node = self.nodes[number]
        node.is_out = False
        node.visit += 1

    def set_version(self, number: int, *, is_new: bool) -> None:
        """Say which version a node runs from now on."""
        node = self.nodes[number]
        node.epoch += 1
        node.is_updated = is_new
        node.updated_at = self.now
        node.is_measured, node.runs, node.worked_seconds = is_new, [], 0.0
        rate = self.scenario.extra_failures_per_node_day
        if is_new and rate > 0:
            self._push(self.now + self._release_random.expovariate(rate) * DAY, Event.BAD_FAILURE, number, node.epoch)
        if is_new and self.scenario.hangs_after_seconds > 0:
            self._push(self.now + self.scenario.hangs_after_seconds, Event.HANG, number, node.epoch)

    def comes_well(self, number: int) -> bool:
        """Return whether a node passes its tests with the new version."""
        scenario = self.scenario
        if not scenario.fails_update_ratio or (scenario.concerns_second_model and self.nodes[number].model == 0):
            return True
        return self._release_random.random() >= scenario.fails_update_ratio

    def past_runs(self, number: int) -> tuple[float, ...]:
        """Return what a node measured in its last runs before anything was changed."""
        return tuple(self._run_of(self.nodes[number]) for _ in range(self.site.runs_before))

    def past_failure_count(self) -> int:
        """Return how often something broke on one node within the days that are known of it."""
        at, count = self._steps_random.expovariate(self.site.failures_per_node_day), 0
        while at < self.site.past_days:
            count += 1
            at += self._steps_random.expovariate(self.site.failures_per_node_day)
        return count

    def worked_seconds(self, number: int) -> float:
        """Return how long a node was under jobs since it was updated."""
        node = self.nodes[number]
        return node.worked_seconds + (self.now - node.job.began_at if node.job is not None else 0.0)

    # -- time --

    def play(self, until: float) -> None:
        """Let time pass to `until`, or until somebody halts it; losses are counted up to there."""
        self._is_halted = False
        events, work, handlers, pop = self._events, self._work, self._handlers, heapq.heappop
        while events and events[0][0] <= until and not self._is_halted:
            at, _, kind, number, mark = pop(events)
            work.pass_to(at)
            self.now = at
            handlers[kind](number, mark)
        if not self._is_halted:
            work.pass_to(until)
            self.now = until

    def _background(self, number: int, mark: int) -> None:
        self._break(number)

    def _bad_failure(self, number: int, epoch: int) -> None:
        if self.nodes[number].epoch != epoch:
            return
        rate = self.scenario.extra_failures_per_node_day
        self._push(self.now + self._release_random.expovariate(rate) * DAY, Event.BAD_FAILURE, number, epoch)
        self._break(number)

    def _hang(self, number: int, epoch: int) -> None:
        if self.nodes[number].epoch != epoch:
            return
        next_at = self.now + self.site.repair_seconds + self.scenario.hangs_after_seconds
        self._push(next_at, Event.HANG, number, epoch)
        self._break(number)

    def _break(self, number: int) -> None:
        """Let a node fail, with its job; one that is out already has nothing to lose."""
        node = self.nodes[number]
        if node.is_out:
            return
        self._work.take_out(node)
        self._push(self.now + self.site.repair_seconds, Event.REPAIRED, number, 0)
        self.watcher.node_failed(number)
        self._work.fill(node.model)

    def _repaired(self, number: int, mark: int) -> None:
        self._work.bring_in(self.nodes[number])

    def _visit_ends(self, number: int, visit: int) -> None:
        node = self.nodes[number]
        if node.visit != visit:
            return
        node.is_out = False
        self.watcher.visit_ended(number)

    def _call(self, mark: int, unused: int) -> None:
        self.watcher.called(mark)

    # -- runs --

    def _foresee_end(self, at: float, key: int, attempt: int) -> None:
        self._push(at, Event.JOB_END, key, attempt)

    def _tell_free(self, number: int) -> None:
        self.watcher.node_free(number)

    def _record_run(self, job: Job) -> None:
        """Keep what measured nodes did in a run; one that was under way when they changed says nothing."""
        for number in job.nodes:
            node = self.nodes[number]
            if node.is_measured and job.began_at >= node.updated_at:
                slower = 1 + self.scenario.slowdown_ratio if node.is_updated else 1.0
                node.runs.append(self._run_of(node) * slower)

    def _run_of(self, node: Node) -> float:
        return node.factor * (1 + self.site.run_spread * self._steps_random.gauss(0, 1))

    # -- making it --

    def _make_nodes(self) -> list[Node]:
        site, first = self.site, self.site.node_count - self.site.second_model_count
        return [
            Node(
                number=number,
                model=int(number >= first),
                rack=number // site.nodes_per_rack,
                factor=1 + site.node_spread * self._steps_random.gauss(0, 1),
            )
            for number in range(site.node_count)
        ]

    def _foresee_failures(self, number: int) -> None:
        rate = self.site.failures_per_node_day
        at = self._failures_random.expovariate(rate) * DAY
        while at < HORIZON_SECONDS:
            self._push(at, Event.FAILURE, number, 0)
            at += self._failures_random.expovariate(rate) * DAY

    def _push(self, at: float, event: Event, number: int, mark: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, event.value, number, mark))
