"""The act of versions: a good release goes over the nodes in waves, a bad one stops by itself and rolls back.

Jobs run all the while, an operator has a node of their own, people pause and answer, and our code server is killed.
What must have come of it, what the judge goes by, and the jobs are `lab_rollout_judge`'s.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.rollout import FINAL, IN_HAND, NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines_lab.drills.lab_act import Act
from ops_pipelines_lab.drills.lab_configuration import BAD_RELEASE, GOOD_RELEASE, MODEL
from ops_pipelines_lab.drills.lab_rollout_judge import OPERATORS_REASON, Sight, Story, Work, demands_on, tell
from ops_pipelines_lab.drills.lab_stage import Demand, DrillError, LabView
from ops_pipelines_lab.drills.stack import CODE_SERVER

_STILL_SECONDS = 8.0
"""How long a pause is looked at: longer than a pass takes to come."""


class VersionsMove(Act):
    """Two releases, one after the other, over the nodes of one model."""

    fault = "a good and a bad release over 16 nodes"

    def __init__(self, view: LabView, name: str) -> None:
        super().__init__(view, name)
        places = view.stage.cluster.rules.topology.places
        members = tuple(sorted(node for node, place in places.items() if place.model == MODEL))
        self.sight = Sight(view=view, members=members)
        self.work = Work(view, members)
        self.story = Story()
        self._script: Iterator[None] = self._play_both()

    # -- what a drill calls --

    def submit(self) -> None:
        self.work.keep_going()

    def play(self) -> None:
        self.began_at = time.monotonic()
        self.did = self._break()

    def demands(self) -> Iterator[Demand]:
        good, bad = self.story.good, self.story.bad
        if good is None or bad is None:
            yield Demand(is_so=False, otherwise=f"it did not come to its end: {self.how_it_stands()}")
            return
        yield from demands_on(self.sight, self.story, good=good, bad=bad)
        yield from self.work.demands()
        self.did = tell(self.sight, good=good, bad=bad, jobs=self.work.accounted())

    @property
    def nodes(self) -> Sequence[NodeName]:  # type: ignore[override]  # what versions move on is not broken
        return ()

    def how_it_stands(self) -> str:
        return "; ".join(
            f"{each.rollout} {each.state.value} wave {each.wave}: {each.reason} "
            + ", ".join(
                f"{node.node} {node.stage.value}" for node in self.sight.nodes_of(each) if node.stage in IN_HAND
            )
            for each in self.sight.rollouts()
        )

    # -- the play --

    def _break(self) -> str:
        return f"two releases over {len(self.sight.members)} nodes under running jobs"

    def _go_on(self) -> None:
        self.work.keep_going()
        self._look_at_operators_node()
        next(self._script, None)

    def _is_over(self) -> bool:
        return self.story.bad is not None and self.story.bad.state in FINAL and self.work.is_over()

    def _play_both(self) -> Iterator[None]:
        yield from self._play_good()
        yield from self._play_bad()
        self.work.end()
        while not self.work.is_over():
            yield

    def _play_good(self) -> Iterator[None]:
        self._command("start", GOOD_RELEASE)
        yield from self._until(lambda good: good.wave >= 2)
        yield from self._let_an_operator_have(self._present().waves[-1].nodes[-1])
        yield from self._until(lambda good: good.wave >= 3 and bool(self._of(good, in_hand=True)))
        yield from self._pause_for_a_while()
        yield from self._until(lambda good: good.state is RolloutState.ASKING)
        self.story.was_asked = True
        self.view.say(f"{self.name}: it asks: {self._present().reason[:200]}")
        self._command("resume", self._present().rollout, "--reason", "jobs of the lab do not tell their steps")
        yield from self._until(lambda good: good.wave >= 4 and bool(self._of(good, in_hand=True)))
        self._kill_code_server()
        self._let_the_operator_return_it()
        yield from self._until(lambda good: good.state in FINAL)
        self.story.good = self._present()
        self.view.say(f"{self.name}: {GOOD_RELEASE} is {self._present().state.value}: {self._present().reason[:120]}")

    def _play_bad(self) -> Iterator[None]:
        self._command("start", BAD_RELEASE)
        yield from self._until(lambda bad: bad.release == BAD_RELEASE and bad.state in FINAL)
        self.story.bad = self._present()
        self.view.say(f"{self.name}: {BAD_RELEASE} is {self._present().state.value}: {self._present().stopped_because}")

    def _let_an_operator_have(self, node: NodeName) -> Iterator[None]:
        self.view.stage.slurm.drain_as_operator(node, reason=OPERATORS_REASON)
        self.story.operators_node = node
        self.view.say(f"{self.name}: an operator drained {node} ({OPERATORS_REASON})")
        yield

    def _let_the_operator_return_it(self) -> None:
        node = self.story.operators_node
        assert node is not None  # drained before
        self.story.operators_return_at = self.view.stage.cluster.clock.now()
        self.view.stage.slurm.return_as_operator(node)
        self.view.say(f"{self.name}: the operator returned {node}")

    def _look_at_operators_node(self) -> None:
        node, status = self.story.operators_node, None
        if node is not None and self.story.operators_return_at is None:
            status = self.view.nodes().get(node)
        if status is not None and status.is_drained:
            self.story.operators_reasons.add(status.reason)

    def _pause_for_a_while(self) -> Iterator[None]:
        rollout = self._present()
        self._command("pause", rollout.rollout, "--reason", "somebody watches a demo run")
        self.story.paused_at = self.view.stage.cluster.clock.now()
        self.story.waiting_in_pause = frozenset(
            each.node for each in self._of(self._present(), in_hand=False) if each.stage is NodeStage.PENDING
        )
        yield from self._until(lambda paused: not self._of(paused, in_hand=True))
        until = time.monotonic() + _STILL_SECONDS
        while time.monotonic() < until:
            yield
        self.story.resumed_at = self.view.stage.cluster.clock.now()
        self._command("resume", rollout.rollout, "--reason", "the demo run is over")

    def _kill_code_server(self) -> None:
        """Kill it with its runs, as systemd does, and start it again."""
        stack = self.view.stage.stack
        stack.kill(CODE_SERVER)
        run_count = stack.kill_run_workers()
        stack.start_code_server()
        self.story.was_killed = True
        in_hand = ", ".join(each.node for each in self._of(self._present(), in_hand=True))
        self.view.say(f"{self.name}: code server killed with {run_count} runs, {in_hand} in hand; started again")

    def _until(self, is_so: Callable[[Rollout], bool]) -> Iterator[None]:
        """Wait for a state of the newest rollout; raise DrillError if it is over without."""
        while not is_so(present := self._present()):
            self._note_kept_off(present)
            if present.state in FINAL:
                raise DrillError(f"{present.rollout} is {present.state.value} too early: {present.reason}")
            yield

    def _note_kept_off(self, rollout: Rollout) -> None:
        gangs = set(self.work.gangs)
        self.story.kept_off.update(node for job, off in rollout.kept_off.items() if job in gangs for node in off)

    def _present(self) -> Rollout:
        found = self.sight.rollouts()
        if not found:
            raise DrillError("no rollout is under way; `rollout start` reported that one is")
        return found[-1]

    def _of(self, rollout: Rollout, *, in_hand: bool) -> tuple[RolloutNode, ...]:
        return tuple(
            each
            for each in self.sight.nodes_of(rollout)
            if each.wave == rollout.wave and (each.stage in IN_HAND) is in_hand
        )

    def _command(self, *words: str) -> None:
        said = self.view.command("rollout", *words)
        self.view.say(f"{self.name}: rollout {' '.join(words)}: {' '.join(said.split())}")
