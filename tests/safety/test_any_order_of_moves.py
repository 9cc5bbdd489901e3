"""The moves of the stories in any order that a search can think of; a failure shrinks to the fewest moves."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ops_pipelines.core.policy import DrainBudget, Mode
from tests.safety.moves import Move, MoveKind, make
from tests.safety.stage import Leases, Setting, Stage
from tests.safety.stories import INTERRUPTIONS, RAM_DISK

NODES = st.integers(0, 5)
NUMBERS = st.integers(0, 200)
BUDGETS = st.builds(
    DrainBudget,
    max_out_count=st.integers(1, 3),
    max_out_per_rack_count=st.integers(1, 2),
    min_in_service_ratio=st.sampled_from([0.0, 0.4, 0.7]),
    max_new_per_hour_count=st.sampled_from([1, 3, 12]),
)
SETTINGS = st.builds(
    Setting,
    node_count=st.integers(3, 5),
    job_count=st.integers(1, 2),
    has_session=st.booleans(),
    mode=st.sampled_from([Mode.AUTO, Mode.AUTO, Mode.AUTO, Mode.APPROVE]),
    budget=BUDGETS,
    untouchable=st.sampled_from([None, None, 0]),
    undeclared=st.sampled_from([None, None, 2]),
    leases=st.sampled_from(Leases),
)
TROUBLE = st.sampled_from([kind for kind in MoveKind if kind is not MoveKind.PASS])


class AnyOrder(RuleBasedStateMachine):
    """A stage on which anything may happen next."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(dir=RAM_DISK if RAM_DISK.is_dir() else None, prefix="safety-")
        self._stage: Stage | None = None

    @initialize(setting=SETTINGS)
    def begin(self, setting: Setting) -> None:
        self._stage = Stage(Path(self._directory.name), setting)

    @rule(node=NODES, number=NUMBERS)
    def something_breaks(self, node: int, number: int) -> None:
        self._make(Move(kind=MoveKind.BREAK, node=node, number=number))

    @rule(kind=TROUBLE, node=NODES, number=NUMBERS)
    def somebody_makes_trouble(self, kind: MoveKind, node: int, number: int) -> None:
        self._make(Move(kind=kind, node=node, number=number))

    @precondition(lambda self: self._stage is not None and self._stage.mischief.interruption is None)
    @rule(kind=st.sampled_from(INTERRUPTIONS), node=NODES, number=NUMBERS, during=st.integers(1, 40))
    def something_will_happen_in_the_middle(self, kind: MoveKind, node: int, number: int, during: int) -> None:
        self._make(Move(kind=kind, node=node, number=number, during=during))

    @rule(number=st.integers(1, 4))
    def a_pass_is_run(self, number: int) -> None:
        self._make(Move(kind=MoveKind.PASS, number=number))

    @rule(number=st.integers(4, 19))
    def time_passes_between_two_passes(self, number: int) -> None:
        self._make(Move(kind=MoveKind.WAIT, number=number))
        self._make(Move(kind=MoveKind.PASS, number=1))

    @invariant()
    def nothing_unsafe_was_done(self) -> None:
        if self._stage is not None:
            assert [str(violation) for violation in self._stage.judge.violations] == []
            assert self._stage.faults_at_the_end() == []

    def teardown(self) -> None:
        if self._stage is not None:
            self._stage.close()
        self._directory.cleanup()

    def _make(self, move: Move) -> None:
        assert self._stage is not None
        make(move, self._stage)


AnyOrder.TestCase.settings = settings(
    max_examples=16,
    stateful_step_count=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyOrder = AnyOrder.TestCase
