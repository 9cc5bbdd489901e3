"""One run under the autopilot: faults strike, evidence appears after its measured delay, the production code decides.

What the decision code does not see decides nothing: a fault that shows nothing is met by the job's own launcher, which
starts it again on the same nodes, and by people, who come when they were called or when it has failed too often.
People, spares and the times to schedule and to start are the same as the peers'.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

import numpy as np
from numpy.random import Generator

from ops_pipelines.domain.action import Verb
from ops_pipelines.domain.decision import Decision, Rules
from ops_pipelines.domain.guardrails.refusal import Patience
from ops_pipelines.domain.identity import NodeName
from ops_pipelines.domain.incident import IncidentEvent
from ops_pipelines.domain.observation import NO_NODE, Observation
from ops_pipelines.domain.policy import Mode
from ops_pipelines.domain.repair.remediation import IncidentPlan
from ops_pipelines.domain.steps.timing import Moment
from ops_pipelines.whatif import peers
from ops_pipelines.whatif.autopilot import EPOCH, JOB, new_autopilot
from ops_pipelines.whatif.checkpoints import best_regime
from ops_pipelines.whatif.clock_of_work import Cause, WorkClock
from ops_pipelines.whatif.draws import Duration, Exponential, Fixed
from ops_pipelines.whatif.evidence import observe
from ops_pipelines.whatif.fault_mix import Group, Scenario, Silent
from ops_pipelines.whatif.measured import NOTHING, Measured, Verdict
from ops_pipelines.whatif.run_result import RunResult, result_of
from ops_pipelines.whatif.trace import Strike, strikes

_UNSEEN_CRASH = Fixed(30.0)
"""A job whose end nothing explains is over after Slurm's KillWait."""
_WATCHDOG = 600.0
"""NCCL's: a hang that nobody ends ends by itself (ByteRobust, arXiv 2509.16293)."""
_UNSEEN_CORRUPTION, _UNSEEN_SLOWNESS = Fixed(3600.0), Fixed(4 * 3600.0)
"""Assumption, as the peers': until somebody looks at the curves."""
_LOOKS_AGAIN = 15.0
_LOOKS_FOR = 180.0
"""How long a decision that waits for confirmation is asked again before the job is left to its launcher."""
_FAILURES_UNTIL_OWNER_IS_TOLD = 3
_LOOK_AT_NAMED = Fixed(300.0)
"""Assumption: a person who is told the part and why needs five minutes to agree."""
_ON_THE_JOBS_PATH = frozenset({Verb.DRAIN, Verb.RESERVE, Verb.HOLD, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE})


class _Kind(Enum):
    EVIDENCE = "evidence"
    PERSON = "person"
    REPAIRED = "repaired"


@dataclass(slots=True, kw_only=True)
class _Trouble:
    """One fault that is somewhere in the job."""

    strike: Strike
    node: NodeName
    fault_class: str
    until_next: float = math.inf
    """Running time until it strikes again."""
    failures: int = 1
    is_person_called: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Entry:
    """Something that happens at a time of day, whether the job runs or not."""

    at: float
    number: int
    kind: _Kind
    node: NodeName
    trouble: "_Trouble | None" = None
    verdict: Verdict | None = None


def play_autopilot(rules: Rules, scenario: Scenario, measured: Measured, seed: int) -> RunResult:
    """Return one run under the production decision with these rules. Equal arguments give equal results."""
    return _Run(rules, scenario, measured, seed).play()


class _Run:
    def __init__(self, rules: Rules, scenario: Scenario, measured: Measured, seed: int) -> None:
        self._scenario = scenario
        self._measured = measured
        self._random: Generator = np.random.default_rng([seed, 3])
        regime = best_regime(scenario.mtbf_seconds)
        self._clock = WorkClock(horizon_seconds=scenario.days * 86_400, regime=regime)
        names = list(rules.topology.places)
        self._job_nodes = names[: scenario.node_count]
        self._spares = deque(names[scenario.node_count :])
        self._topology = rules.topology
        self._mode = rules.policy.mode
        self._autopilot = new_autopilot(
            rules,
            job_node_count=scenario.node_count,
            restart_seconds=self._draw(peers.START),
            queue_seconds=self._draw(peers.STANDBY),
            checkpoint_seconds=regime.interval_seconds,
        )
        self._strikes = strikes(scenario, seed)
        self._troubles: list[_Trouble] = []
        self._calendar: list[tuple[float, int, _Entry]] = []
        self._numbers = 0
        self._interruptions = self._humans = self._wrong_drains = 0
        per_day = sum(rate for _, rate in measured.false_isolations) * scenario.node_count
        self._false_gap = Exponential(86_400 / per_day) if per_day else None
        self._is_job_up = True

    def play(self) -> RunResult:
        clock = self._clock
        strike = next(self._strikes)
        until_strike = strike.gap_seconds
        until_false = self._until_false()
        while not clock.is_over:
            until_repeat = min((each.until_next for each in self._troubles), default=math.inf)
            until_entry = self._calendar[0][0] - clock.now if self._calendar else math.inf
            step = min(until_strike, until_false, until_repeat, max(0.0, until_entry))
            clock.run(step, slowdown_ratio=self._slowdown())
            until_strike -= step
            until_false -= step
            for each in self._troubles:
                each.until_next -= step
            if clock.is_over:
                break
            if until_entry <= step:
                self._meet(heapq.heappop(self._calendar)[2])
            elif until_repeat <= step:
                self._strike_again(min(self._troubles, key=lambda each: each.until_next))
            elif until_false <= step:
                until_false = self._until_false()
                self._raise_false_alarm()
            else:
                self._be_struck(strike)
                strike = next(self._strikes)
                until_strike = strike.gap_seconds
        return result_of(clock, interruptions=self._interruptions, humans=self._humans, wrong_drains=self._wrong_drains)

    def _draw(self, duration: Duration) -> float:
        return duration.draw(self._random)

    def _now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._clock.now)

    def _slowdown(self) -> float:
        is_slow = any(each.strike.kind.silent is Silent.SLOWS for each in self._troubles)
        return self._scenario.slow_ratio if is_slow else 0.0

    def _until_false(self) -> float:
        return math.inf if self._false_gap is None else self._draw(self._false_gap)

    def _enter(self, after: float, kind: _Kind, **what: object) -> None:
        self._numbers += 1
        entry = _Entry(at=self._clock.now + after, number=self._numbers, kind=kind, **what)  # type: ignore[arg-type]
        heapq.heappush(self._calendar, (entry.at, entry.number, entry))

    # -- what happens --

    def _be_struck(self, strike: Strike) -> None:
        if strike.kind.group is Group.PLANNED:
            self._stop_as_planned()
            return
        node = self._job_nodes[min(int(strike.seat * len(self._job_nodes)), len(self._job_nodes) - 1)]
        trouble = _Trouble(strike=strike, node=node, fault_class=self._class_of(strike))
        self._fail(trouble)

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
        """Half of the planned stops wait for an unplanned one, as in the peer that the yardstick calls ours."""
        if self._random.random() < 0.5:
            return
        self._interruptions += 1
        self._start_again(peers.STANDBY)

    def _fail(self, trouble: _Trouble) -> None:
        """A fault shows its effect on the job, and its evidence after a while."""
        self._interruptions += 1
        fault = trouble.fault_class
        verdict = Verdict(rule=NOTHING, kind="", is_culprit_named=False)
        if fault != NOTHING:
            verdict = self._measured.verdict_on(fault, self._random)
        is_seen = verdict.rule != NOTHING
        seconds = self._draw(self._measured.delays[fault]) if is_seen else 0.0
        if trouble.strike.kind.silent is not None:
            unseen = _UNSEEN_SLOWNESS if trouble.strike.kind.silent is Silent.SLOWS else _UNSEEN_CORRUPTION
            if trouble not in self._troubles:
                self._troubles.append(trouble)
            self._enter(
                seconds if is_seen else self._draw(unseen), _Kind.EVIDENCE, node=trouble.node, trouble=trouble,
                verdict=verdict,
            )  # fmt: skip
            return
        self._clock.die()
        if trouble.strike.kind.ends_node:
            status = self._autopilot.nodes[trouble.node]
            self._autopilot.set_responding(status.node, is_responding=False)
        if not is_seen:
            self._clock.stand(Cause.DETECT, _WATCHDOG if trouble.strike.is_hang else self._draw(_UNSEEN_CRASH))
            self._leave_to_launcher(trouble)
            return
        self._clock.stand(Cause.DETECT, seconds)
        if self._answer(trouble, verdict):
            return
        if trouble.strike.is_hang:
            self._clock.stand(Cause.DETECT, max(0.0, _WATCHDOG - seconds))
        self._leave_to_launcher(trouble)

    def _leave_to_launcher(self, trouble: _Trouble) -> None:
        """Nobody moved the job: it is started again where it was."""
        if trouble.strike.persists:
            trouble.until_next = self._draw(Exponential(self._scenario.repeat_seconds))
            if trouble not in self._troubles:
                self._troubles.append(trouble)
        elif trouble in self._troubles:
            self._troubles.remove(trouble)
        if trouble.failures >= _FAILURES_UNTIL_OWNER_IS_TOLD and not trouble.is_person_called:
            loop = observe("job_crash_loop", node=NO_NODE, job=JOB, at=self._now(), number=self._next_number())
            self._autopilot.decide((loop,), now=self._now())
            self._call(trouble, _hard_to_find(trouble))
        self._start_again(peers.STANDBY)

    def _strike_again(self, trouble: _Trouble) -> None:
        trouble.failures += 1
        trouble.until_next = math.inf
        self._fail(trouble)

    def _raise_false_alarm(self) -> None:
        rates = np.array([rate for _, rate in self._measured.false_isolations])
        rule = self._measured.false_isolations[int(self._random.choice(len(rates), p=rates / rates.sum()))][0]
        node = self._job_nodes[int(self._random.integers(len(self._job_nodes)))]
        seen = observe(rule, node=node, job=JOB, at=self._now(), number=self._next_number())
        if self._carry_out(self._decide((seen,)), trouble=None):
            self._interruptions += 1

    def _meet(self, entry: _Entry) -> None:
        match entry.kind:
            case _Kind.REPAIRED:
                self._autopilot.forget(entry.node, now=self._now())
                self._spares.append(entry.node)
            case _Kind.PERSON if entry.trouble is not None:
                self._person_looks(entry.trouble)
            case _Kind.EVIDENCE if entry.trouble is not None and entry.verdict is not None:
                self._notice_silent(entry.trouble, entry.verdict)

    def _notice_silent(self, trouble: _Trouble, verdict: Verdict) -> None:
        if trouble not in self._troubles:
            return
        if verdict.rule != NOTHING and self._answer(trouble, verdict):
            return
        if not trouble.is_person_called:
            self._call(trouble, _LOOK_AT_NAMED if verdict.is_culprit_named else peers.FIND_HANG_BY_HAND)

    def _person_looks(self, trouble: _Trouble) -> None:
        """A person has found the part, or not: what still troubles the job is taken out of it."""
        self._humans += 1
        trouble.is_person_called = False
        if trouble not in self._troubles:
            return
        if self._random.random() >= peers.FIXED_BY_HAND_RATIO:
            self._call(trouble, _hard_to_find(trouble))
            return
        if trouble.strike.kind.silent is Silent.CORRUPTS:
            self._clock.lose(self._clock.run_seconds)
            self._clock.run_seconds = 0.0
        else:
            self._clock.die()
        self._interruptions += 1
        self._remove(trouble)
        if trouble.strike.kind.group is not Group.SOFTWARE:
            self._evict(trouble.node)
        self._start_again(peers.STANDBY)

    def _call(self, trouble: _Trouble, look: Duration) -> None:
        if trouble.is_person_called:
            return
        trouble.is_person_called = True
        self._enter(self._draw(peers.ACKNOWLEDGE) + self._draw(look), _Kind.PERSON, node=trouble.node, trouble=trouble)

    # -- what the production code makes of it --

    def _answer(self, trouble: _Trouble, verdict: Verdict) -> bool:
        """Show the evidence and do what is decided; return whether the job was moved off a part."""
        waited = 0.0
        decision = self._decide(self._evidence(trouble, verdict))
        while True:
            if self._carry_out(decision, trouble=trouble, verdict=verdict):
                return True
            may_pass = any(refusal.patience is Patience.WAIT for _, refusal in decision.refusals)
            if not may_pass or waited >= _LOOKS_FOR or trouble.strike.kind.silent is not None:
                return False
            self._clock.stand(Cause.DETECT, _LOOKS_AGAIN)
            waited += _LOOKS_AGAIN
            decision = self._decide(())

    def _evidence(self, trouble: _Trouble, verdict: Verdict) -> tuple[Observation, ...]:
        at = self._now()
        if trouble.fault_class == "leaf_switch":
            leaf = self._topology.places[trouble.node].leaf_switch
            nodes = [name for name in self._job_nodes if self._topology.places[name].leaf_switch == leaf]
        elif verdict.is_culprit_named and trouble.strike.kind.group is not Group.SOFTWARE:
            nodes = [trouble.node]
        elif verdict.kind in ("application", "stall") or trouble.strike.kind.group is Group.SOFTWARE:
            nodes = [NO_NODE]
        else:
            nodes = [self._job_nodes[int(self._random.integers(len(self._job_nodes)))]]
        seen = [observe(verdict.rule, node=name, job=JOB, at=at, number=self._next_number()) for name in nodes]
        if trouble.strike.kind.ends_node and verdict.rule != "node_unreachable":
            seen.append(observe("node_unreachable", node=trouble.node, job=JOB, at=at, number=self._next_number()))
        return tuple(seen)

    def _decide(self, seen: Sequence[Observation]) -> Decision:
        saved = self._clock.run_seconds - self._clock.regime.saved_seconds(self._clock.run_seconds)
        self._autopilot.checkpointed_at = self._now() - timedelta(seconds=saved)
        return self._autopilot.decide(seen, now=self._now())

    def _carry_out(self, decision: Decision, *, trouble: _Trouble | None, verdict: Verdict | None = None) -> bool:
        has_moved = False
        for plan in decision.plans:
            # What was done for one of them may have ended another.
            if plan.incident in self._autopilot.incidents:
                has_moved |= self._do(plan, trouble, verdict)
        return has_moved

    def _do(self, plan: IncidentPlan, trouble: _Trouble | None, verdict: Verdict | None) -> bool:
        verbs = [action.verb for action in plan.actions]
        is_moving = Verb.RELEASE in verbs
        if Verb.DRAIN in verbs and self._mode is Mode.OBSERVE:
            # The plan is shown and nothing is done: whoever looks finds the part named.
            if trouble is not None:
                self._call(trouble, _LOOK_AT_NAMED)
            return False
        self._autopilot.begin(plan, now=self._now())
        if Verb.DRAIN in verbs and self._mode is Mode.APPROVE:
            self._humans += 1
            is_alive = trouble is None or trouble.strike.kind.silent is not None
            waiting = self._draw(peers.ACKNOWLEDGE)
            if is_alive:
                self._clock.run(waiting, slowdown_ratio=self._slowdown())
            else:
                self._clock.stand(Cause.HUMAN, waiting)
        if is_moving and (trouble is None or trouble.strike.kind.silent is not None):
            self._wait_for_moment(plan)
        drained: list[NodeName] = []
        is_on_path = is_moving
        for action in plan.actions:
            began = self._now()
            if is_on_path and (action.verb in _ON_THE_JOBS_PATH or action.verb is Verb.POWER_OFF):
                self._clock.stand(Cause.LOCALISE, self._latency(action.verb))
            is_on_path = is_on_path and action.verb is not Verb.RELEASE
            self._autopilot.note(action, plan, begun_at=began, ended_at=self._now())
            if action.verb is Verb.DRAIN and action.node is not None:
                drained.append(action.node)
        if Verb.PAGE_HUMAN in verbs and trouble is not None:
            is_named = verdict is not None and verdict.is_culprit_named
            self._call(trouble, _LOOK_AT_NAMED if is_named else _hard_to_find(trouble))
        self._autopilot.end(plan.incident, self._ending(verbs), now=self._now())
        if not is_moving:
            return False
        for node in drained:
            self._wrong_drains += trouble is None or node != trouble.node
            self._evict(node)
        self._start_again(peers.STANDBY)
        if trouble is not None and trouble.node in drained:
            self._remove(trouble)
            return True
        return False

    def _ending(self, verbs: Sequence[Verb]) -> IncidentEvent:
        if Verb.DRAIN in verbs:
            return IncidentEvent.STEPS_DONE
        return IncidentEvent.NEEDS_HUMAN if Verb.PAGE_HUMAN in verbs else IncidentEvent.NOTHING_TO_VERIFY

    def _wait_for_moment(self, plan: IncidentPlan) -> None:
        """The job is alive: it runs on until the moment that the plan chose, and is stopped there."""
        if any(timing.moment is Moment.NEXT_CHECKPOINT for timing in plan.timings):
            ahead = self._clock.regime.next_durable_seconds(self._clock.run_seconds) - self._clock.run_seconds
            self._clock.run(ahead, slowdown_ratio=self._slowdown())
        self._clock.die()

    def _latency(self, verb: Verb) -> float:
        known = self._measured.latencies.get(verb.value)
        return 0.0 if known is None else self._draw(known)

    # -- nodes --

    def _evict(self, node: NodeName) -> None:
        """A node leaves the job; a spare takes its place, once there is one."""
        if node not in self._job_nodes:
            return
        while not self._spares:
            back = [entry for _, _, entry in self._calendar if entry.kind is _Kind.REPAIRED]
            if not back:
                break
            first = min(back, key=lambda each: each.at)
            self._clock.stand(Cause.SPARE_WAIT, first.at - self._clock.now)
            self._calendar = [each for each in self._calendar if each[2] is not first]
            heapq.heapify(self._calendar)
            self._meet(first)
            if self._clock.is_over:
                return
        spare = self._spares.popleft()
        self._job_nodes[self._job_nodes.index(node)] = spare
        self._autopilot.swap(node, spare)
        self._enter(self._draw(Exponential(self._scenario.repair_hours * 3600)), _Kind.REPAIRED, node=node)

    def _remove(self, trouble: _Trouble) -> None:
        if trouble in self._troubles:
            self._troubles.remove(trouble)

    def _start_again(self, schedule: Duration) -> None:
        self._clock.stand(Cause.SCHEDULE, self._draw(schedule))
        self._clock.stand(Cause.START, self._draw(peers.START))
        self._clock.run_seconds = 0.0
        self._autopilot.settle_job(now=self._now())
        self._autopilot.job_started_at = self._now()

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers


def _hard_to_find(trouble: _Trouble) -> Duration:
    is_hard = trouble.strike.is_hang or trouble.strike.kind.silent is Silent.CORRUPTS
    return peers.FIND_HANG_BY_HAND if is_hard else peers.FIND_BY_HAND
