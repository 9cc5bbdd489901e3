"""Two passes over the rollouts at once, as when somebody launches one past its lane while a run is under way.

Such a run has no lane that holds it back and no lease of its own: it uses the one that is held. What keeps it harmless
is the ledger, where each stage is compared with what is stored and each act begins once.
"""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ops_pipelines.core.rollout import RolloutState
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.rollouts.cycle import CycleReport, advance_rollouts
from ops_pipelines_lab.simulator.journal import EntryKind
from ops_pipelines_lab.simulator.versions import ReleaseTrouble
from tests.scenarios.killed_at_every_step import READS_OF_LEDGER, Watched, end_of
from tests.scenarios.rollout_stage import LIMITS, ROLLOUT_POLICY, RolloutStage, bad_kernel, quick_judge_of
from tests.scenarios.small_autopilot import COMMANDS

ONE_AT_A_TIME = replace(ROLLOUT_POLICY, rollouts=replace(LIMITS, max_out_count=1, canary_counts=(1,)))
"""So that nodes have one order, no matter who begins them."""
HARMLESS_AGAIN = frozenset({EntryKind.BOOK, EntryKind.UNRESERVE, EntryKind.DRAIN, EntryKind.START_CHECK})
"""What a pass that was overtaken between its before-entry and its command may say once more: nothing comes of it. Tests
begin once under their key."""


class TwoPasses:
    """A stage on which somebody else does a whole pass just before every `every`th step of a pass."""

    def __init__(self, stage: RolloutStage, *, every: int) -> None:
        self._stage = stage
        self._every = every
        self._step_count = 0
        self._other = copy.copy(stage)
        self._other.restart()
        self._other.lease = Lease(holder="run:by-hand", given=None)
        self.most_out = 0
        self.other_count = 0
        cluster = stage.cluster
        stage.cluster = replace(
            cluster,
            ledger=self._watched(cluster.ledger, reads=READS_OF_LEDGER),
            scheduler=self._watched(cluster.scheduler),
            fleet=self._watched(cluster.fleet),
        )

    def _watched(self, port: object, **options: Any) -> Any:
        return cast("Any", Watched(port, self._before, **options))

    def _before(self, _step: str, _subject: str) -> None:
        self._step_count += 1
        if self._step_count % self._every == 0:
            self.other_count += 1
            _pass_of(self._other)
            self._look()

    def _look(self) -> None:
        self.most_out = max(self.most_out, len(self._other.drained()))

    def run(self) -> None:
        """Continue until the rollout is over, and settled."""
        _run(self._stage, look=self._look)


def _pass_of(stage: RolloutStage) -> CycleReport:
    return advance_rollouts(stage.cluster, lease=stage.lease, judging=quick_judge_of)


def _run(stage: RolloutStage, *, look: Callable[[], object] = lambda: None) -> None:
    over = (RolloutState.DONE, RolloutState.ASKING)
    passes_left = 120
    while stage.rollout().state not in over and passes_left:
        _pass_of(stage)
        look()
        stage.let_pass(3)
        passes_left -= 1
    for _ in range(2):
        _pass_of(stage)
        stage.let_pass(3)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(
    ("trouble", "end"),
    [(None, RolloutState.DONE), (ReleaseTrouble.INSTALL_FAILS, RolloutState.ASKING)],
    ids=["good", "bad"],
)
def test_second_pass_in_the_middle_of_one_changes_no_end_and_sends_nothing_twice(
    tmp_path: Path, trouble: ReleaseTrouble | None, end: RolloutState, every: int
) -> None:
    faults = () if trouble is None else (bad_kernel(trouble),)
    alone, both = (
        RolloutStage(tmp_path / name, node_count=2, policy=ONE_AT_A_TIME, release_faults=faults)
        for name in ("alone", "both")
    )
    alone.start()
    both.start()
    two = TwoPasses(both, every=every)

    _run(alone)
    two.run()

    assert both.rollout().state is end, both.words()
    assert two.other_count > 5
    assert two.most_out == 1
    assert _told(both) == _told(alone)
    assert _end(both) == _end(alone)


def _told(stage: RolloutStage) -> Counter[tuple[object, ...]]:
    """Return how often each node was reported what would harm it the second time."""
    told = Counter[tuple[object, ...]]()
    for entry in stage.received(*(each for each in COMMANDS if each not in HARMLESS_AGAIN)):
        told[(entry.kind, entry.nodes, entry.install and entry.install.key)] += 1
    return told


def _end(stage: RolloutStage) -> dict[str, object]:
    """Return an end without what each counts for itself: commands, of which `_told` has those that matter."""
    return {name: value for name, value in end_of(stage).items() if name != "commands"}
