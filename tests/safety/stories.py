"""Stories: one seed gives one setting and one sequence of moves, always the same ones; playing it gives a verdict."""

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from ops_pipelines.core.action import Verb
from ops_pipelines.core.policy import (
    ActionClass,
    BlastCaps,
    Consent,
    DrainBudget,
    FreezeWindow,
    LadderLimits,
    MassEvent,
    Mode,
    RecoveryLimits,
)
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.versions import ReleaseTrouble
from tests.safety.deeds import Deed
from tests.safety.move_kinds import CLASSES_OF_ACTS, DRAWN_APART
from tests.safety.moves import Move, MoveKind, make
from tests.safety.stage import Leases, Setting, Stage, Training
from tests.scenarios.rollout_stage import bad_kernel
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import BEGINNING

RAM_DISK = Path("/dev/shm")
"""Where there is one, ledgers of stories are kept there: thousands of them would wear out a disk."""

WEIGHTS = {
    MoveKind.BREAK: 9,
    MoveKind.WAIT: 9,
    MoveKind.CRASH: 3,
    MoveKind.LOSE_ANSWER: 3,
    MoveKind.BEND_METRICS: 3,
    MoveKind.STRAIGHTEN_METRICS: 3,
    MoveKind.STRAIGHTEN_SCHEDULER: 3,
    MoveKind.STRAIGHTEN_CHECKS: 3,
    MoveKind.MEND_CALLS: 3,
    MoveKind.UNPAUSE: 3,
    MoveKind.APPROVE: 3,
    MoveKind.REPAIR_DONE: 3,
    MoveKind.LOWER_LIMITS: 1,
}
"""How often a move is drawn; 2 where nothing is."""
_FAULT_WEIGHTS = {
    FaultKind.GPU_FELL_OFF_BUS: 6,
    FaultKind.UNCORRECTABLE_ECC: 6,
    FaultKind.NODE_UNREACHABLE: 7,
    FaultKind.NETWORK_PARTITION: 1,
    FaultKind.APPLICATION_XID31: 1,
    FaultKind.ROW_REMAP_WAITS: 4,
    FaultKind.BOOT_HANGS: 1,
    FaultKind.HIDDEN_DEFECT: 1,
    FaultKind.UNKILLABLE_PROCESS: 2,
    FaultKind.RANK_STOPS: 1,
    FaultKind.LEAF_SWITCH_DOWN: 1,
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
    MoveKind.RESERVE_BY_OTHERS,
    MoveKind.FORGET_WEIGHTS,
    MoveKind.REPAIR_DONE,
)
"""What others do in the middle of a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What happens, in order."""

    setting: Setting
    moves: tuple[Move | Deed, ...]


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
    """Return the story of a seed: trouble, passes in between, and some at the end when the loudest trouble is over.

    One in three lasts longer: long enough to climb the ladder, to be repaired by hands, to relapse on probation.
    """
    rng = random.Random(seed)
    setting = _draw_setting(rng)
    is_long = rng.random() < 0.33
    moves = [_draw_break(rng, setting)]
    if rng.random() < 0.3:
        # What is hidden shows only after something else has broken.
        moves.insert(0, Move(kind=MoveKind.BREAK, node=moves[0].node, number=_number_of(rng, rng.choice(_BEHIND))))
    if rng.random() < 0.4:
        # Time for the scheduler to miss a silent node, and for the program to believe that it is silent.
        moves += [Move(kind=MoveKind.WAIT, number=4), Move(kind=MoveKind.PASS, number=1)]
        moves.append(Move(kind=MoveKind.WAIT, number=6))
    for _ in range(rng.randint(4, 7) if is_long else rng.randint(1, 4)):
        moves += [_draw_move(rng, setting) for _ in range(rng.choice((0, 1, 1, 2) if is_long else (1, 2, 3)))]
        if is_long:
            moves.append(Move(kind=MoveKind.WAIT, number=rng.choice((2, 6, 12, 19))))
        moves.append(Move(kind=MoveKind.PASS, number=rng.choice(_LEASE_HABITS)))
    moves += [Move(kind=kind) for kind in _STRAIGHTENING]
    for seconds in (0, 6):
        moves += [Move(kind=MoveKind.APPROVE, number=2), Move(kind=MoveKind.WAIT, number=seconds)]
        moves.append(Move(kind=MoveKind.PASS, number=1))
    if is_long:
        moves += [Move(kind=MoveKind.REPAIR_DONE), Move(kind=MoveKind.WAIT, number=9)]
        moves += [Move(kind=MoveKind.PASS, number=1), Move(kind=MoveKind.WAIT, number=19)]
        moves.append(Move(kind=MoveKind.PASS, number=1))
    moves = _with_alerts(_with_parts(moves, seed), seed)
    setting, moves = _with_slowness(setting, moves, seed)
    return _with_rollout(_with_consents(Story(setting=setting, moves=tuple(moves)), seed), seed)


def _with_parts(moves: list[Move], seed: int) -> list[Move]:
    """Return the moves of one story in three with parts that show something, drawn apart: all else stays as it was."""
    rng = random.Random(f"parts of {seed}")
    if rng.random() < 0.67:
        return moves
    for _ in range(rng.randint(1, 4)):
        shown = Move(kind=MoveKind.SHOW_PART, node=rng.randrange(6), number=rng.randrange(10_000))
        moves.insert(rng.randrange(len(moves)), shown)
    return [*moves, Move(kind=MoveKind.WAIT, number=19), Move(kind=MoveKind.PASS, number=1)]


def _with_alerts(moves: list[Move], seed: int) -> list[Move]:
    """Return the moves of one story in four with alerts, drawn apart; most of them say what is not so."""
    rng = random.Random(f"alerts of {seed}")
    if rng.random() < 0.75:
        return moves
    for _ in range(rng.randint(1, 4)):
        during = rng.randint(1, 40) if rng.random() < 0.25 else None
        told = Move(kind=MoveKind.ALERT, node=rng.randrange(6), number=rng.randrange(10_000), during=during)
        moves.insert(rng.randrange(len(moves)), told)
    return moves


def _with_slowness(setting: Setting, moves: list[Move], seed: int) -> tuple[Setting, list[Move]]:
    """Return one story in two with processes that stand still or come late, drawn apart.

    Meanwhile the scheduler gives silent nodes up at its limit; in half of them nothing guards what it starts then.
    """
    rng = random.Random(f"slowness of {seed}")
    if rng.random() < 0.5:
        return setting, moves
    for _ in range(rng.randint(1, 4)):
        # Most in the middle of a pass: between a reading and its verdict, a before-entry and its command.
        during = rng.randint(1, 60) if rng.random() < 0.75 else None
        linger = Move(kind=MoveKind.LINGER, node=rng.randrange(6), number=rng.randrange(10_000), during=during)
        moves.insert(rng.randrange(len(moves)), linger)
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice((MoveKind.LATE_RUN, MoveKind.SUSPEND))
        late = Move(kind=kind, node=rng.randrange(12), number=rng.randrange(10_000))
        moves.insert(rng.randrange(len(moves)), late)
    limit = rng.choice((10.0, 30.0, 60.0, 180.0, setting.slurmd_timeout_seconds))
    return replace(setting, slurmd_timeout_seconds=limit, has_start_guard=rng.random() < 0.5), moves


_WORDS = (Consent.AUTO, Consent.AUTO, Consent.APPROVE, Consent.APPROVE, Consent.FORBID)


def _with_consents(story: Story, seed: int) -> Story:
    """Return one story in three with a word of its own for some classes of acts, and people who approve, drawn apart.

    A policy that forbids every drain and allows something else is refused when it is read.
    """
    rng = random.Random(f"consents of {seed}")
    if rng.random() < 0.67:
        return story
    consents = {kind: rng.choice(_WORDS) for kind in CLASSES_OF_ACTS if rng.random() < 0.5}
    if consents.get(ActionClass.ISOLATE) is Consent.FORBID:
        consents[ActionClass.ISOLATE] = Consent.APPROVE
    moves = list(story.moves)
    for _ in range(rng.randint(1, 5)):
        kind = MoveKind.SAY_YES if rng.random() < 0.75 else MoveKind.CHANGE_CONSENTS
        # A policy is read when a run begins: what is changed meanwhile holds from the next one on.
        during = rng.randint(1, 40) if kind is MoveKind.SAY_YES and rng.random() < 0.25 else None
        move = Move(kind=kind, node=rng.randrange(6), number=rng.randrange(10_000), during=during)
        moves.insert(rng.randint(1, len(moves)), move)
    for seconds in (6, 12):
        moves += [Move(kind=MoveKind.SAY_YES, number=0), Move(kind=MoveKind.WAIT, number=seconds)]
        moves.append(Move(kind=MoveKind.PASS, number=1))
    return Story(setting=replace(story.setting, consents=consents), moves=tuple(moves))


def _with_rollout(story: Story, seed: int) -> Story:
    """Return one story in six with a rollout beside all the rest, and people who steer it, drawn apart."""
    rng = random.Random(f"rollout of {seed}")
    if rng.random() < 5 / 6:
        return story
    trouble = rng.choice((None, None, ReleaseTrouble.INSTALL_FAILS, ReleaseTrouble.LOSES_GPU, ReleaseTrouble.HANGS))
    setting = replace(
        story.setting,
        release_fault=None if trouble is None else bad_kernel(trouble, after_seconds=5.0),
        most_updated_count=rng.randint(1, 2),
    )
    moves = list(story.moves)
    begin, wait = Move(kind=MoveKind.ROLL_OUT, number=1), Move(kind=MoveKind.WAIT, number=2)
    # First where all is well yet: who is broken is passed over.
    first = [begin, Move(kind=MoveKind.PASS, number=1), wait] if rng.random() < 0.7 else []
    for _ in range(rng.randint(1, 4)):
        steer = Move(kind=MoveKind.ROLL_OUT, number=rng.randrange(10_000))
        moves.insert(rng.randint(0, len(moves)), steer)
    for _ in range(rng.randint(3, 8)):
        moves += [wait, Move(kind=MoveKind.PASS, number=1)]
    return Story(setting=setting, moves=(*first, *moves))


_BEHIND = (FaultKind.HIDDEN_DEFECT, FaultKind.BOOT_HANGS, FaultKind.UNKILLABLE_PROCESS)
_STRAIGHTENING = (
    MoveKind.STRAIGHTEN_METRICS,
    MoveKind.STRAIGHTEN_CHECKS,
    MoveKind.MEND_CALLS,
    MoveKind.UNPAUSE,
)


def _number_of(rng: random.Random, fault: FaultKind) -> int:
    """Return any number that chooses the fault; its multiple chooses GPU, duration and course."""
    return tuple(FaultKind).index(fault) + len(FaultKind) * rng.randrange(70)


def _draw_break(rng: random.Random, setting: Setting) -> Move:
    kind = rng.choices(tuple(_FAULT_WEIGHTS), tuple(_FAULT_WEIGHTS.values()))[0]
    # The first nodes are those that run jobs.
    node = rng.randrange(setting.node_count if rng.random() < 0.5 else 2)
    return Move(kind=MoveKind.BREAK, node=node, number=_number_of(rng, kind))


def _draw_setting(rng: random.Random) -> Setting:
    node_count = rng.randint(3, 6)
    return Setting(
        node_count=node_count,
        job_count=rng.randint(1, 2),
        has_session=rng.random() < 0.2,
        has_movable_session=rng.random() < 0.25,
        replica_count=rng.choice((0, 0, 0, 2, 3)),
        gpus_per_replica=rng.randint(1, 2),
        min_serving_count=rng.randint(1, 2),
        training=rng.choices(tuple(Training), (5, 3, 2, 1))[0],
        mode=rng.choices((Mode.AUTO, Mode.APPROVE, Mode.OBSERVE), (20, 4, 1))[0],
        budget=DrainBudget(
            max_out_count=rng.randint(1, 3),
            max_out_per_rack_count=rng.randint(1, 2),
            min_in_service_ratio=rng.choice((0.0, 0.4, 0.7)),
            max_new_per_hour_count=rng.choice((1, 3, 12)),
        ),
        caps=BlastCaps(
            max_out_per_partition_ratio=rng.choice((0.25, 0.5, 1.0)),
            max_out_per_leaf_count=rng.choice((None, None, 1, 2)),
            max_out_per_nvlink_domain_count=rng.choice((None, 1)),
            max_jobs_per_plan_count=rng.choice((1, 16)),
            max_gpu_hours_per_hour=rng.choice((0.45, 0.9, 10_000.0, 10_000.0)),
            max_on_probation_count=rng.randint(1, 2),
        ),
        ladder=_draw_ladder(rng),
        recovery=RecoveryLimits(
            max_requeues_count=rng.choice((0, 1, 1, 3)),
            interactive_notice=timedelta(seconds=rng.choice((4, 15))),
            checkpoint_wait=timedelta(seconds=rng.choice((30, 7200))),
        ),
        mass_event=MassEvent(
            min_node_count=rng.choice((2, 3, 6)),
            window=timedelta(seconds=rng.choice((10, 60))),
            brake_window=timedelta(seconds=rng.choice((0, 20, 600))),
        ),
        freezes=_draw_freezes(rng),
        probation_seconds=rng.choice((0.0, 8.0, 40.0)),
        nodes_per_domain_count=rng.choice((1, 2)),
        untouchable=rng.randrange(node_count) if rng.random() < 0.15 else None,
        undeclared=rng.randrange(node_count) if rng.random() < 0.15 else None,
        leases=rng.choice(tuple(Leases)),
        has_reflex=rng.random() < 0.6,
    )


def _draw_ladder(rng: random.Random) -> LadderLimits:
    return LadderLimits(
        max_gpu_resets_count=rng.randint(0, 2),
        max_reboots_count=rng.randint(0, 2),
        max_power_cycles_count=rng.randint(0, 2),
        max_reimages_count=rng.randint(0, 1),
        cool_down=timedelta(seconds=rng.choice((0, 0, 10, 300))),
    )


def _draw_freezes(rng: random.Random) -> tuple[FreezeWindow, ...]:
    if rng.random() < 0.8:
        return ()
    begins_at = BEGINNING + timedelta(seconds=rng.choice((0, 20, 30, 50)))
    ends_at = begins_at + timedelta(seconds=rng.choice((20, 40, 86_400)))
    return (FreezeWindow(name="a visit", begins_at=begins_at, ends_at=ends_at, allows_drains=rng.random() < 0.5),)


def _draw_move(rng: random.Random, setting: Setting) -> Move:
    node, number = rng.randrange(setting.node_count), rng.randrange(10_000)
    if rng.random() < 0.15:
        return Move(kind=rng.choice(INTERRUPTIONS), node=node, number=number, during=rng.randint(1, 40))
    kinds = [kind for kind in MoveKind if kind is not MoveKind.PASS and kind not in DRAWN_APART]
    kind = rng.choices(kinds, [WEIGHTS.get(kind, 2) for kind in kinds])[0]
    if kind is MoveKind.BREAK:
        return _draw_break(rng, setting)
    return Move(kind=kind, node=node, number=number)


def play(story: Story, *, seed: int = -1, dress: Callable[[SmallAutopilot], None] = lambda _: None) -> Verdict:
    """Play a story and return the verdict; an error that the program should not make is a violation too."""
    parent = RAM_DISK if RAM_DISK.is_dir() else Path(tempfile.gettempdir())
    directory = parent / f"safety-{os.getpid()}"
    shutil.rmtree(directory, ignore_errors=True)
    stage = Stage(directory, story.setting, dress=dress)
    found: list[str] = []
    rules: set[str] = set()
    made: Counter[MoveKind] = Counter()
    try:
        for move in story.moves:
            if isinstance(move, Move):
                make(move, stage)
                made[move.kind] += 1
            else:
                move(stage)
    except Exception as problem:  # whatever it is, it is the finding
        found.append(f"error: {type(problem).__name__}: {problem}")
        rules.add("error")
    ends = stage.faults_at_the_end()
    stage.close()
    shutil.rmtree(directory, ignore_errors=True)
    return Verdict(
        seed=seed,
        violations=(*(str(each) for each in stage.judge.violations), *found, *ends),
        broken_rules=stage.judge.broken_rules | rules | {each.split(":", 1)[0] for each in ends},
        moves=made,
        commands=stage.judge.watched,
        crash_count=stage.crash_count,
        failure_count=stage.failure_count,
    )
