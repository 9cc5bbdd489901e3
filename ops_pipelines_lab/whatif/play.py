"""One run under the autopilot: faults strike, evidence appears after its measured delay, the production code decides.

What the decision code does not see decides nothing: a job that dies is put back into the queue by its own launcher and
gets the nodes that it had, but for those drained meanwhile. Evidence, decision and acts take the time that they were
measured to take; people come when they were called, or when the launcher has given up. Spares, repairs, people, and
the times to schedule and to start are the peers'. Which nodes the job holds, which wait as spares, and which are away
for repair is counted here: none is created or lost.
"""

import heapq
import math
from collections import deque
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from itertools import count, groupby

import numpy as np
from numpy.random import Generator

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import NO_NODE, Observation, Signal
from ops_pipelines.core.plan import Rules
from ops_pipelines_lab.whatif import peers
from ops_pipelines_lab.whatif.autopilot import EPOCH, JOB, new_autopilot, observe
from ops_pipelines_lab.whatif.carrying_out import CarryingOut
from ops_pipelines_lab.whatif.fault_mix import Entry, Event, Group, Scenario, Silent, Strike, Trouble, strikes
from ops_pipelines_lab.whatif.measured import NOTHING, Classification, Duration, Exponential, Fixed, Measured, Sign
from ops_pipelines_lab.whatif.training import Cause, RunResult, Training, Wait, WorkClock, best_regime, result_of


class NodePool:
    """Nodes by where they are. A seat of the job that no spare could fill stays vacant: then the job cannot start."""

    def __init__(self, names: Sequence[NodeName], *, job_node_count: int) -> None:
        self.job_nodes: list[NodeName] = list(names[:job_node_count])
        self._spares = deque(names[job_node_count:])
        self._away: set[NodeName] = set()
        self._seat_count = job_node_count

    @property
    def vacant_count(self) -> int:
        """Seats of the job without a node."""
        return self._seat_count - len(self.job_nodes)

    @property
    def spare_count(self) -> int:
        return len(self._spares)

    @property
    def away_count(self) -> int:
        return len(self._away)

    def holds(self, node: NodeName) -> bool:
        return node in self.job_nodes

    def at(self, seat: float) -> NodeName:
        """Return the job's node at a place from 0 to 1."""
        return self.job_nodes[min(int(seat * len(self.job_nodes)), len(self.job_nodes) - 1)]

    def send_away(self, nodes: Collection[NodeName]) -> tuple[NodeName, ...]:
        """Take nodes out of the job, to be repaired; return the spares that took their places."""
        for node in nodes:
            self.job_nodes.remove(node)
            self._away.add(node)
        return self._fill()

    def take_back(self, node: NodeName) -> tuple[NodeName, ...]:
        """A node is repaired: it is a spare, or takes a vacant seat at once; return who took a seat."""
        self._away.remove(node)
        self._spares.append(node)
        return self._fill()

    def _fill(self) -> tuple[NodeName, ...]:
        taken: list[NodeName] = []
        while self.vacant_count and self._spares:
            spare = self._spares.popleft()
            self.job_nodes.append(spare)
            taken.append(spare)
        return tuple(taken)


_LAUNCHER_NOTICES = Fixed(30.0)
"""A job whose process died is over after Slurm's KillWait; then its launcher puts it back into the queue by itself."""
_WATCHDOG = Fixed(600.0)
"""NCCL's: a hang that nobody ends ends by itself (ByteRobust, arXiv 2509.16293)."""
_NODE_GIVEN_UP = Fixed(300.0)
"""SlurmdTimeout: then the scheduler itself starts the job without the node."""
_CORRUPTION_NOTICED, _SLOWNESS_NOTICED = Fixed(3600.0), Fixed(4 * 3600.0)
"""Assumption, as the peers': until somebody looks at the curves."""
_PASSED = Fixed(3600.0)
"""Assumption: what did not come again within an hour of the restart is cleared by the reader of the list."""
_RESTARTS_BY_LAUNCHER = 2
"""So often the launcher starts a job that fails again from the same cause, then it leaves it to people: as often as the
yardstick lets its `ours_target` try."""
_PLANNED_MERGED_RATIO = 0.5
"""The share of planned stops that waits for an unplanned one, as in the yardstick's `ours_target`."""


def play_autopilot(rules: Rules, scenario: Scenario, measured: Measured, seed: int) -> RunResult:
    """Return one run under the production decision with these rules. Equal arguments give equal results."""
    return _Run(rules, scenario, measured, seed).play()


class _Run:
    def __init__(self, rules: Rules, scenario: Scenario, measured: Measured, seed: int) -> None:
        self._scenario = scenario
        self._measured = measured
        self._random: Generator = np.random.default_rng([seed, 3])
        self._places = rules.topology.places
        regime = best_regime(scenario.mtbf_seconds)
        self._clock = WorkClock(horizon_seconds=scenario.days * 86_400, regime=regime)
        self._job = Training(clock=self._clock)
        self._pool = NodePool(list(rules.topology.places), job_node_count=scenario.node_count)
        self._autopilot = new_autopilot(
            rules,
            job_node_count=scenario.node_count,
            restart_seconds=self._draw(peers.START),
            queue_seconds=self._draw(peers.STANDBY),
            checkpoint_seconds=regime.interval_seconds,
        )
        self._strikes = strikes(scenario, seed)
        self._troubles: list[Trouble] = []
        self._calendar: list[tuple[float, int, Entry]] = []
        self._numbers = count()
        self._human_count = 0
        per_day = sum(rate for _, rate in measured.false_isolations) * scenario.node_count
        self._false_gap = Exponential(86_400 / per_day) if per_day else None
        self._acts = CarryingOut(self._autopilot, measured, self._random, world=self)

    def play(self) -> RunResult:
        clock, job = self._clock, self._job
        strike = next(self._strikes)
        until_strike = strike.gap_seconds
        until_false = self._until_false()
        while not clock.is_over():
            until_entry = max(0.0, self._calendar[0][0] - clock.now) if self._calendar else math.inf
            until_repeat = min((each.until_next for each in self._troubles), default=math.inf)
            is_running = job.is_running()
            until_hazard = min(until_strike, until_false, until_repeat) if is_running else job.until_change
            step = min(until_entry, until_hazard)
            if job.pass_time(step, slowdown_ratio=self._slowdown()):
                self._autopilot.settle_job(now=self.now())
            if is_running:
                until_strike -= step
                until_false -= step
                for each in self._troubles:
                    each.until_next -= step
            if clock.is_over():
                break
            if until_entry <= until_hazard:
                self._meet(heapq.heappop(self._calendar)[2])
            elif not is_running:
                continue
            elif until_repeat <= step:
                self._strike_again(min(self._troubles, key=lambda each: each.until_next))
            elif until_false <= step:
                until_false = self._until_false()
                self._raise_false_alarm()
            else:
                self._be_struck(strike)
                strike = next(self._strikes)
                until_strike = strike.gap_seconds
        return result_of(
            clock,
            interruptions=job.interruption_count,
            humans=self._human_count,
            wrong_drains=self._acts.wrong_drain_count,
            held_back=self._acts.held_back,
        )

    # -- what the carrying out of plans asks of the world --

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._clock.now)

    def enter(self, after: float, event: Event, **what: object) -> None:
        """Let something happen after so many seconds."""
        entry = Entry(at=self._clock.now + after, event=event, **what)  # type: ignore[arg-type]  # checked by Entry
        heapq.heappush(self._calendar, (entry.at, next(self._numbers), entry))

    def troubled(self, node: NodeName) -> bool:
        return any(each.node == node for each in self._troubles)

    def holds(self, node: NodeName) -> bool:
        return self._pool.holds(node)

    def checkpointed_at(self) -> datetime:
        return EPOCH + timedelta(seconds=self._job.saved_at)

    def call(self, trouble: Trouble | None, look: Duration) -> None:
        """Call a person, who acknowledges and looks; nobody is called twice for one trouble."""
        if trouble is None:
            self._human_count += 1
        elif not trouble.is_person_called and not trouble.is_over:
            self._human_count += 1
            trouble.is_person_called = True
            self.enter(self._draw(peers.ACKNOWLEDGE) + self._draw(look), Event.PERSON, trouble=trouble)

    def search_by_hand(self, trouble: Trouble) -> Duration:
        is_hard = trouble.strike.is_hang or trouble.strike.kind.silent is Silent.CORRUPTS
        return peers.FIND_HANG_BY_HAND if is_hard else peers.FIND_BY_HAND

    def start_elsewhere(self, trouble: Trouble | None, nodes: tuple[NodeName, ...], *, held_seconds: float) -> None:
        """The job is stopped, if it worked, and starts again without these nodes and without whatever is drained."""
        others = [(node,) for node in sorted(self._autopilot.drained() - set(nodes))]
        self._send_away([nodes, *others])
        self._job.crash([Wait(Cause.LOCALISE, held_seconds), *self._start(trouble)])
        self._autopilot.job_started_at = self.now()

    # -- what strikes --

    def _draw(self, duration: Duration) -> float:
        return duration.draw(self._random)

    def _slowdown(self) -> float:
        is_slow = any(each.strike.kind.silent is Silent.SLOWS for each in self._troubles)
        return self._scenario.slow_ratio if is_slow else 0.0

    def _until_false(self) -> float:
        return math.inf if self._false_gap is None else self._draw(self._false_gap)

    def _be_struck(self, strike: Strike) -> None:
        kind = strike.kind
        if kind.group is Group.PLANNED:
            self._stop_as_planned()
            return
        fault = self._class_of(strike)
        trouble = Trouble(
            strike=strike,
            node=None if kind.group is Group.SOFTWARE else self._pool.at(strike.seat),
            fault_class=fault,
            verdict=Classification.none() if fault == NOTHING else self._measured.verdict_on(fault, self._random),
            is_wide=kind.group is Group.NETWORK and self._random.random() < self._scenario.wide_network_ratio,
        )
        self._troubles.append(trouble)
        if kind.silent is None:
            self._fail(trouble)
        else:
            self._begin_silently(trouble)

    def _class_of(self, strike: Strike) -> str:
        if strike.is_hang:
            return "hang_of_program" if strike.kind.group is Group.SOFTWARE else "hang_one_rank"
        at = float(self._random.random())
        for name, share in strike.kind.shows_as:
            if at < share:
                return name
            at -= share
        return NOTHING

    def _stop_as_planned(self) -> None:
        if self._random.random() < _PLANNED_MERGED_RATIO:
            return
        self._send_away([(node,) for node in sorted(self._autopilot.drained())])
        self._job.stop_saved(self._start(None))
        self._autopilot.job_started_at = self.now()

    def _begin_silently(self, trouble: Trouble) -> None:
        is_slow = trouble.strike.kind.silent is Silent.SLOWS
        if not is_slow:
            self._job.begin_to_corrupt()
        self.enter(self._draw(_SLOWNESS_NOTICED if is_slow else _CORRUPTION_NOTICED), Event.NOTICED, trouble=trouble)
        self._show(trouble)

    def _fail(self, trouble: Trouble) -> None:
        """A fault stops the job; its evidence comes after a while, and the launcher does not wait for it."""
        kind = trouble.strike.kind
        trouble.until_next = (
            self._draw(Exponential(self._scenario.repeat_seconds)) if trouble.strike.persists else math.inf
        )
        self._job.crash([Wait(Cause.DETECT, math.inf)])
        noticed = _WATCHDOG if trouble.strike.is_hang else _LAUNCHER_NOTICES
        after = self._draw(_NODE_GIVEN_UP if kind.ends_node else noticed)
        self.enter(after, Event.LAUNCH, trouble=trouble, stop=self._job.stop_count)
        self._show(trouble)

    def _strike_again(self, trouble: Trouble) -> None:
        trouble.failure_count += 1
        self._fail(trouble)

    def _start(self, trouble: Trouble | None) -> list[Wait]:
        is_wide = trouble is not None and trouble.is_wide
        return [
            *([Wait(Cause.SPARE_WAIT, math.inf)] if self._pool.vacant_count else []),
            Wait(Cause.SCHEDULE, self._draw(peers.RESCHEDULE if is_wide else peers.STANDBY)),
            Wait(Cause.START, self._draw(peers.START)),
        ]

    # -- what is seen of it --

    def _show(self, trouble: Trouble) -> None:
        """What the diagnosis made of such a fault reaches the decision, sign by sign, as late as in one case."""
        verdict = trouble.verdict
        if verdict.rule != NOTHING:
            case = self._measured.case_of(trouble.fault_class, verdict, self._random)
            where = self._where(trouble)
            for after, signs in groupby(case.signs, key=lambda each: each.after_seconds):
                told = tuple(each for each in signs if not after or not self._is_of_standing(each, trouble))
                self.enter(case.seconds + after, Event.EVIDENCE, trouble=trouble, signs=told, nodes=where)
        if trouble.strike.kind.ends_node and trouble.node is not None and verdict.rule != _UNREACHABLE.rule:
            # A node that is dead falls silent, whatever was stated of it before.
            silent = self._draw(self._measured.delays["node_down"])
            self.enter(silent, Event.EVIDENCE, trouble=trouble, signs=(_UNREACHABLE,), nodes=(trouble.node,))

    def _where(self, trouble: Trouble) -> tuple[NodeName, ...]:
        """Return where it is seen: on the node at fault only if the diagnosis was measured to name it."""
        if trouble.node is None:
            return (NO_NODE,)
        if trouble.is_of_switch:
            return tuple(self._below_switch_of(trouble.node))
        if trouble.verdict.is_culprit_named:
            return (trouble.node,)
        if trouble.verdict.kind in ("application", "stall"):
            return (NO_NODE,)
        return (self._pool.at(float(self._random.random())),)

    @staticmethod
    def _is_of_standing(sign: Sign, trouble: Trouble) -> bool:
        """Return whether a sign showed only because nobody started the job again: here its launcher does."""
        return sign.rule == Signal.JOB_HUNG.value and not trouble.strike.is_hang

    def _see(self, trouble: Trouble, signs: Sequence[Sign], nodes: Sequence[NodeName]) -> None:
        if trouble.is_over or not signs or self._acts.is_moving(trouble):
            return
        if trouble.node is not None and any(each.rule == _UNREACHABLE.rule for each in signs):
            self._autopilot.set_responding(trouble.node, is_responding=False)
        seen = tuple(self._observe(each, node) for each in signs for node in nodes)
        self._acts.decide(seen, about=trouble)

    def _observe(self, sign: Sign, node: NodeName) -> Observation:
        number = next(self._numbers)
        return observe(sign.rule, node=node, job=JOB, at=self.now(), number=number, code=sign.code)

    def _below_switch_of(self, node: NodeName) -> list[NodeName]:
        leaf = self._places[node].leaf_switch
        return [name for name in self._pool.job_nodes if self._places[name].leaf_switch == leaf]

    def _raise_false_alarm(self) -> None:
        rates = np.array([rate for _, rate in self._measured.false_isolations])
        rule = self._measured.false_isolations[int(self._random.choice(len(rates), p=rates / rates.sum()))][0]
        sign = Sign(rule=rule, code=None, after_seconds=0.0)
        self._acts.decide((self._observe(sign, self._pool.at(float(self._random.random()))),), about=None)

    # -- what happens at a time of day --

    def _meet(self, entry: Entry) -> None:
        match entry:
            case Entry(event=Event.REPAIRED):
                self._take_back(entry.nodes)
            case Entry(event=Event.EVIDENCE, trouble=Trouble() as trouble):
                self._see(trouble, entry.signs, entry.nodes)
            case Entry(event=Event.LAUNCH, trouble=Trouble() as trouble):
                if entry.stop == self._job.stop_count:
                    self._launch(trouble)
            case Entry(event=Event.PASSED, trouble=Trouble() as trouble):
                if not trouble.is_over and not self._acts.is_moving(trouble):
                    self._clear(trouble)
            case Entry(event=Event.NOTICED, trouble=Trouble() as trouble):
                self.call(trouble, self.search_by_hand(trouble))
            case Entry(event=Event.PERSON, trouble=Trouble() as trouble):
                self._person_looks(trouble)
            case _:
                self._acts.go_on(entry)

    def _launch(self, trouble: Trouble) -> None:
        """The job returns to the queue: a node that is dead, or was drained meanwhile, is not given to it again."""
        kind = trouble.strike.kind
        dead = (trouble.node,) if kind.ends_node and trouble.node is not None else ()
        self.start_elsewhere(trouble, dead, held_seconds=0.0)
        if trouble.failure_count > _RESTARTS_BY_LAUNCHER and not trouble.is_over:
            self._job.crash([Wait(Cause.HUMAN, math.inf)])
            self.call(trouble, self.search_by_hand(trouble))
        if not trouble.recurs and not trouble.is_over:
            self.enter(self._draw(_PASSED), Event.PASSED, trouble=trouble)

    def _person_looks(self, trouble: Trouble) -> None:
        """A person has found the part, or not: what still troubles the job is taken out of it."""
        trouble.is_person_called = False
        if trouble.is_over:
            return
        if self._random.random() >= peers.FIXED_BY_HAND_RATIO:
            self.call(trouble, self.search_by_hand(trouble))
            return
        self._clear(trouble)
        if trouble.recurs:
            nodes = () if trouble.node is None else (trouble.node,)
            self.start_elsewhere(trouble, nodes, held_seconds=0.0)

    def _clear(self, trouble: Trouble) -> None:
        """Somebody has seen to it: nothing of it is left, and nothing waits for it any more."""
        if trouble.node is not None:
            self._autopilot.forget(trouble.node, now=self.now())
        self._end(trouble)

    def _end(self, trouble: Trouble) -> None:
        trouble.is_over = True
        if trouble in self._troubles:
            self._troubles.remove(trouble)
        if trouble.strike.kind.silent is Silent.CORRUPTS:
            self._job.roll_back()
            if any(each.strike.kind.silent is Silent.CORRUPTS for each in self._troubles):
                self._job.begin_to_corrupt()

    def _send_away(self, groups: Sequence[tuple[NodeName, ...]]) -> None:
        """Take nodes out of the job; those of one group are repaired together."""
        for group in groups:
            leaving = tuple(node for node in group if self._pool.holds(node))
            if not leaving:
                continue
            for each in [each for each in self._troubles if each.node in leaving and not each.is_of_switch]:
                self._end(each)
            for node in leaving:
                self._autopilot.leave(node)
            for spare in self._pool.send_away(leaving):
                self._autopilot.join(spare)
            self.enter(self._draw(Exponential(self._scenario.repair_hours * 3600)), Event.REPAIRED, nodes=leaving)

    def _take_back(self, nodes: tuple[NodeName, ...]) -> None:
        for node in nodes:
            self._autopilot.return_node(node, now=self.now())
            for seated in self._pool.take_back(node):
                self._autopilot.join(seated)
        if not self._pool.vacant_count and self._job.lift(Cause.SPARE_WAIT):
            self._autopilot.settle_job(now=self.now())


_UNREACHABLE = Sign(rule=Signal.NODE_UNREACHABLE.value, code=None, after_seconds=0.0)
