"""Stories: one seed gives one setting and one sequence of moves, always the same ones; playing it gives a verdict."""

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ops_pipelines.domain.action import Verb
from ops_pipelines.domain.policy import DrainBudget, Mode
from ops_pipelines.simulator.journal import FaultKind
from tests.safety.moves import Move, MoveKind, make
from tests.safety.stage import Leases, Setting, Stage
from tests.scenarios.small_autopilot import SmallAutopilot

RAM_DISK = Path("/dev/shm")
"""Where there is one, ledgers of stories are kept there: thousands of them would wear out a disk."""

WEIGHTS = {
    MoveKind.BREAK: 9,
    MoveKind.WAIT: 9,
    MoveKind.OTHER_PASS: 2,
    MoveKind.CRASH: 3,
    MoveKind.LOSE_ANSWER: 3,
    MoveKind.BEND_METRICS: 3,
    MoveKind.STRAIGHTEN_METRICS: 3,
    MoveKind.STRAIGHTEN_SCHEDULER: 3,
    MoveKind.MEND_CALLS: 3,
    MoveKind.UNPAUSE: 3,
    MoveKind.APPROVE: 3,
}
"""How often a move is drawn; 2 where nothing stands."""
_FAULT_WEIGHTS = {
    FaultKind.GPU_FELL_OFF_BUS: 3,
    FaultKind.UNCORRECTABLE_ECC: 3,
    FaultKind.NODE_UNREACHABLE: 5,
    FaultKind.NETWORK_PARTITION: 1,
    FaultKind.APPLICATION_XID31: 1,
}
_LEASE_HABITS = (1, 2, 3, 1, 2, 3, 4)
"""Numbers of passes: one in seven does not renew its lease first."""
INTERRUPTIONS = (
    MoveKind.OTHER_PASS,
    MoveKind.FOREIGN_DRAIN,
    MoveKind.FOREIGN_RESUME,
    MoveKind.PAUSE,
    MoveKind.DRAIN_BY_HAND,
    MoveKind.BREAK,
    MoveKind.CANCEL,
    MoveKind.BEND_METRICS,
)
"""What others do in the middle of a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What happens, in order."""

    setting: Setting
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one story. It travels between processes, so it holds plain values."""

    seed: int
    violations: tuple[str, ...]
    broken_rules: frozenset[str]
    moves: Counter[MoveKind]
    commands: Counter[Verb]
    crash_count: int
    failure_count: int


def draw_story(seed: int) -> Story:
    """Return the story of a seed: trouble, passes in between, and some at the end when the loudest trouble is over."""
    rng = random.Random(seed)
    setting = _draw_setting(rng)
    moves = [_draw_break(rng, setting)]
    if rng.random() < 0.5:
        # Time for the scheduler to miss a silent node, and for the program to believe that it is silent.
        moves += [Move(kind=MoveKind.WAIT, number=4), Move(kind=MoveKind.PASS, number=1)]
        moves.append(Move(kind=MoveKind.WAIT, number=6))
    for _ in range(rng.randint(2, 5)):
        moves += [_draw_move(rng, setting) for _ in range(rng.randint(1, 3))]
        moves.append(Move(kind=MoveKind.PASS, number=rng.choice(_LEASE_HABITS)))
    moves += [Move(kind=MoveKind.STRAIGHTEN_METRICS), Move(kind=MoveKind.MEND_CALLS), Move(kind=MoveKind.UNPAUSE)]
    for seconds in (0, 6):
        moves += [Move(kind=MoveKind.APPROVE, number=2), Move(kind=MoveKind.WAIT, number=seconds)]
        moves.append(Move(kind=MoveKind.PASS, number=1))
    return Story(setting=setting, moves=tuple(moves))


def _draw_break(rng: random.Random, setting: Setting) -> Move:
    kind = rng.choices(tuple(_FAULT_WEIGHTS), tuple(_FAULT_WEIGHTS.values()))[0]
    return Move(
        kind=MoveKind.BREAK,
        node=rng.randrange(setting.node_count),
        # Any number that chooses the fault; its multiple chooses GPU and duration.
        number=tuple(FaultKind).index(kind) + len(FaultKind) * rng.randrange(50),
    )


def _draw_setting(rng: random.Random) -> Setting:
    node_count = rng.randint(3, 6)
    return Setting(
        node_count=node_count,
        job_count=rng.randint(1, 2),
        has_session=rng.random() < 0.4,
        mode=rng.choices((Mode.AUTO, Mode.APPROVE, Mode.OBSERVE), (20, 3, 1))[0],
        budget=DrainBudget(
            max_out_count=rng.randint(1, 3),
            max_out_per_rack_count=rng.randint(1, 2),
            min_in_service_ratio=rng.choice((0.0, 0.4, 0.7)),
            max_new_per_hour_count=rng.choice((1, 3, 12)),
        ),
        untouchable=rng.randrange(node_count) if rng.random() < 0.2 else None,
        undeclared=rng.randrange(node_count) if rng.random() < 0.2 else None,
        leases=rng.choice(tuple(Leases)),
        has_reflex=rng.random() < 0.7,
    )


def _draw_move(rng: random.Random, setting: Setting) -> Move:
    node, number = rng.randrange(setting.node_count), rng.randrange(10_000)
    if rng.random() < 0.15:
        return Move(kind=rng.choice(INTERRUPTIONS), node=node, number=number, during=rng.randint(1, 40))
    kinds = [kind for kind in MoveKind if kind is not MoveKind.PASS]
    kind = rng.choices(kinds, [WEIGHTS.get(kind, 2) for kind in kinds])[0]
    if kind is MoveKind.BREAK:
        return _draw_break(rng, setting)
    return Move(kind=kind, node=node, number=number)


def play(story: Story, *, seed: int = -1, dress: Callable[[SmallAutopilot], None] = lambda _: None) -> Verdict:
    """Play a story and return the verdict; an error that the program should not make is a violation too."""
    parent = RAM_DISK if RAM_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(dir=parent, prefix="safety-") as directory:
        stage = Stage(Path(directory), story.setting, dress=dress)
        found: list[str] = []
        rules: set[str] = set()
        made: Counter[MoveKind] = Counter()
        try:
            for move in story.moves:
                make(move, stage)
                made[move.kind] += 1
        except Exception as problem:  # whatever it is, it is the finding
            found.append(f"error: {type(problem).__name__}: {problem}")
            rules.add("error")
        ends = stage.faults_at_the_end()
        stage.close()
    return Verdict(
        seed=seed,
        violations=(*(str(each) for each in stage.judge.violations), *found, *ends),
        broken_rules=stage.judge.broken_rules | rules | {each.split(":", 1)[0] for each in ends},
        moves=made,
        commands=stage.judge.watched,
        crash_count=stage.crash_count,
        failure_count=stage.failure_count,
    )
