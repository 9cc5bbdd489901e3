"""Our rollout in the simulated world: production's waves, choice of nodes, gate and tables, at the world's events; and
what came of it, as of a peer's.

Only the `hands` are simulated, and what happens is noticed by the next look of a sensor. Which scenario is played is
nowhere to be seen from here.
"""

import math
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.core.identity import Digest, PlanId, RolloutId
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.release import Change, Component, Release, ReleaseName
from ops_pipelines.core.rollout import (
    FINAL,
    OF_PEOPLE,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutState,
    is_canary,
)
from ops_pipelines.rollouts.candidates import draw_waves
from ops_pipelines.rollouts.course import next_rollout_state, next_turn
from ops_pipelines.rollouts.fleet import beginning, pulled_out, put_off, turning_round
from ops_pipelines.rollouts.gate.evidence import GateVerdict
from ops_pipelines.rollouts.gate.judge_wave import Looking, judge_wave, sought_in
from ops_pipelines_lab.whatif.lifecycle.hands import EPOCH, FleetSeen, GateRecord, Hands, time_of
from ops_pipelines_lab.whatif.lifecycle.work import MODELS
from ops_pipelines_lab.whatif.lifecycle.world import World


@dataclass(slots=True)
class RolloutResult:
    """Filled while it is played. Times are the world's, in seconds."""

    node_count: int
    began_at: float
    is_over: bool = False
    is_done: bool = False
    """Every node that could be updated is."""
    is_stopped: bool = False
    """Rolled back, waits for people, or goes no further."""
    has_asked: bool = False
    """Stopped because it could not decide."""
    is_back: bool = False
    """Every touched node runs its old version and works."""
    touched_count: int = 0
    """Nodes that were changed when it stopped, or that are being changed then."""
    upgraded_count: int = 0
    decided_at: float | None = None
    """When the canaries were found good, or it stopped on them."""
    watched_from: float | None = None
    """When the last canary worked again and all of them were looked at together; None: it was stopped before."""
    ended_at: float | None = None
    reason: str = ""
    """Why it stopped."""

    def note_stop(self, reason: str, *, at: float, touched_count: int, has_asked: bool = False) -> None:
        """It stops here; what was touched may still be rolled back."""
        self.is_stopped, self.has_asked, self.reason, self.touched_count = True, has_asked, reason, touched_count
        if self.decided_at is None:
            self.decided_at = at

    def close(self, *, at: float, is_done: bool, is_back: bool, upgraded_count: int) -> None:
        """Nothing happens any more."""
        self.is_over, self.ended_at = True, at
        self.is_done, self.is_back, self.upgraded_count = is_done, is_back, upgraded_count


_ALWAYS = WorkCalendar(windows=None)
_RUN = RolloutId("ROLL-0001")
_PASS, _LOOK, _LAST_LOOK = 0, 1, 2
_MOST_ROUNDS = 8
_ENDED = FINAL | OF_PEOPLE


class OurRollout:
    """One rollout under the policy that is asked about, from now on."""

    def __init__(self, world: World, policy: Policy) -> None:
        self._world, self._limits = world, policy.rollouts
        self._release = Release(
            name=ReleaseName("simulated"),
            about="",
            models=frozenset(MODELS),
            changes=(Change(component=Component.DRIVER, version="2", install=("install",), rollback=("install",)),),
        )
        self._fleet = FleetSeen(world)
        waves = draw_waves(self._fleet.values(), limits=policy.rollouts, now=time_of(world.now))
        self._rollout = Rollout(
            rollout=_RUN,
            release=self._release.name,
            release_digest=Digest(""),
            plan=PlanId("PLAN-simulated"),
            state=RolloutState.RUNNING,
            waves=waves,
            since=time_of(world.now),
            owner="autopilot",
            reason="",
            created_by="simulation",
            created_at=EPOCH,
        )
        self.outcome = RolloutResult(node_count=len(world.nodes), began_at=world.now)
        self._record = GateRecord(world)
        self._hands = Hands(
            world,
            self._record,
            {
                name: RolloutNode(rollout=_RUN, node=name, wave=wave.number, since=time_of(world.now))
                for wave in waves
                for name in wave.nodes
            },
            is_canary=lambda node: is_canary(node, self._rollout),
            job_end_limit=policy.rollouts.job_end_limit,
        )
        self._soak_began_at: float | None = None
        self._is_pass_due = False
        self._is_judging_due = False
        world.watcher = self
        self._wake()
        world.call_at(world.now + world.site.judge_every_seconds, _LOOK)

    @property
    def nodes(self) -> tuple[RolloutNode, ...]:
        """Every node as the rollout has it now."""
        return self._hands.nodes

    # -- what the world reports --

    def node_free(self, number: int) -> None:
        """Note that the next pass finds a node free that was drained."""
        self._wake()

    def node_failed(self, number: int) -> None:
        """Count what broke."""
        if self._record.note_failure(number, self._hands.stage_of(number)):
            self._is_judging_due = True
            self._wake()

    def called(self, mark: int) -> None:
        """Make the pass that is due."""
        if self.outcome.is_over:
            return
        if mark == _LOOK:
            self._is_judging_due = True
            self._world.call_at(self._world.now + self._world.site.judge_every_seconds, _LOOK)
        elif mark == _LAST_LOOK:
            self._is_judging_due = True
        else:
            self._is_pass_due = False
        self._advance()

    def visit_ended(self, number: int) -> None:
        """Bring a node back to work, or find that it is not well."""
        self._is_judging_due |= not self._hands.end_visit(number)
        self._wake()

    def _wake(self) -> None:
        """Ask for the sensor's next look."""
        if not self._is_pass_due:
            self._is_pass_due = True
            every = self._world.site.pass_every_seconds
            self._world.call_at((math.floor(self._world.now / every) + 1) * every, _PASS)

    # -- one pass --

    def _advance(self) -> None:
        verdict = self._verdict() if self._is_judging_due else None
        self._is_judging_due = False
        for _ in range(_MOST_ROUNDS):
            turn = next_turn(
                self._rollout,
                self.nodes,
                release=self._release,
                verdict=verdict,
                limits=self._limits,
            )
            if turn is None:
                break
            verdict = None
            self._take_turn(turn.event, turn.reason)
            if self._rollout.state in _ENDED:
                self._close()
                return
        self._begin()
        self._hands.go_on(is_called_back=self._rollout.state is RolloutState.GOING_BACK)

    def _take_turn(self, event: RolloutEvent, reason: str) -> None:
        rollout, now = self._rollout, self._world.now
        if event in (RolloutEvent.WAVE_GOOD, RolloutEvent.LAST_WAVE_GOOD):
            self._hands.wave_good(rollout.wave)
            if rollout.waves[rollout.wave - 1].is_deciding:
                self.outcome.decided_at = now
        self._soak_began_at = now if event is RolloutEvent.WAVE_UPDATED else None
        if event is RolloutEvent.WAVE_UPDATED:
            self._world.call_at(now + self._limits.soak_limit.total_seconds(), _LAST_LOOK)
            if rollout.waves[rollout.wave - 1].is_deciding:
                self.outcome.watched_from = now
        if event in (RolloutEvent.GATE_STOPPED, RolloutEvent.GATE_UNDECIDED):
            self.outcome.note_stop(
                reason,
                at=now,
                touched_count=self._hands.touched_count,
                has_asked=event is RolloutEvent.GATE_UNDECIDED,
            )
        self._rollout = replace(
            rollout,
            state=next_rollout_state(rollout.state, event),
            wave=rollout.wave + 1 if event is RolloutEvent.WAVE_GOOD else rollout.wave,
            since=self._time(),
            stopped_because=reason if event is RolloutEvent.GATE_STOPPED else rollout.stopped_because,
        )

    def _begin(self) -> None:
        everybody = self._concerned()
        first = beginning(
            self._rollout,
            everybody,
            fleet=self._fleet,
            calendar=_ALWAYS,
            limits=self._limits,
            visit_seconds=self._world.site.visit_seconds,
            now=self._time(),
        )
        turned = (*turning_round(self._rollout, everybody), *pulled_out(everybody, release=self._release))
        for each in (*turned, *first):
            self._hands.start(each)
        if not first and not turned:
            for node in put_off(
                self._rollout,
                everybody,
                fleet=self._fleet,
                calendar=_ALWAYS,
                limits=self._limits,
                visit_seconds=self._world.site.visit_seconds,
                now=self._time(),
            ):
                self._hands.keep(node)

    def _concerned(self) -> tuple[RolloutNode, ...]:
        """Return the nodes that may begin or turn round now: a thousand others would only be passed over."""
        if self._rollout.state is RolloutState.GOING_BACK:
            return self.nodes
        wave = self._rollout.wave
        return tuple(
            each
            for each in self.nodes
            if each.wave is not None and each.wave <= wave and each.stage is not NodeStage.UPDATED
        )

    def _time(self) -> datetime:
        return time_of(self._world.now)

    def _close(self) -> None:
        state = self._rollout.state
        self.outcome.close(
            at=self._world.now,
            is_done=state is RolloutState.DONE,
            is_back=state is RolloutState.WENT_BACK and self._hands.is_all_back,
            upgraded_count=sum(each.stage is NodeStage.UPDATED for each in self.nodes),
        )
        self._world.halt()

    def _verdict(self) -> GateVerdict | None:
        if not self._record.has_tried or self._rollout.state is RolloutState.GOING_BACK:
            return None
        wave = self._rollout.waves[self._rollout.wave - 1]
        return judge_wave(
            self._record.evidence(self.nodes, wave=wave.number, soak_began_at=self._soak_began_at),
            Looking(
                claims=self._release.claims,
                limits=self._limits,
                sought=sought_in(wave, self._rollout.waves, claims=self._release.claims, limits=self._limits),
                is_canary=wave.is_canary,
                is_updated=self._rollout.state is RolloutState.SOAKING,
            ),
        )
