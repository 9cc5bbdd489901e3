"""Moves: everything that can happen on a stage, done to it; those of people stand in `moves_of_people`."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.observation import DETECTOR_SOURCE, Observation, Signal
from ops_pipelines_lab.simulator.adapters import SimulatedLogs, SimulatedScheduler
from ops_pipelines_lab.simulator.commands import ImpossibleFaultError
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.faults import HAVE_COURSES
from ops_pipelines_lab.simulator.hardware import slot_address
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.safety.border import PROBLEMS
from tests.safety.lies import CheckLie, Rumour, SchedulerLie, TelemetryLie
from tests.safety.move_kinds import Move, MoveKind
from tests.safety.moves_of_alerts import tell
from tests.safety.moves_of_consent import MOVES_OF_CONSENT
from tests.safety.moves_of_people import MOVES_OF_PEOPLE, Lowered
from tests.safety.moves_of_rollouts import MOVES_OF_ROLLOUTS
from tests.safety.stage import Stage

__all__ = ["COURSES", "FAILING", "LONGEST_JUMP_SECONDS", "Lowered", "Move", "MoveKind", "lasting_seconds", "make"]

LONGEST_JUMP_SECONDS = 7200
LINGERS_SECONDS = (3, 14, 16, 29, 31, 60, 180, 600)
"""On both sides of what a lease and a reading of the cluster last, and far beyond."""
FAILING = (
    "read_nodes",
    "read_jobs",
    "inspect",
    "power_state",
    "drain",
    "hold",
    "exclude",
    "release",
    "resume",
    "reboot",
    "power_off",
    "power_on",
    "reset_gpu",
    "reimage",
    "start_check",
    "read_check",
    "put_last",
    "put_back",
    "reserve",
    "unreserve",
)
"""Calls that can be made to fail."""
_FAULTS = tuple(FaultKind)
_OF_NODES = frozenset(
    {
        FaultKind.NODE_UNREACHABLE,
        FaultKind.NETWORK_PARTITION,
        FaultKind.LEAF_SWITCH_DOWN,
        FaultKind.BOOT_HANGS,
        FaultKind.HIDDEN_DEFECT,
    }
)
_LASTING = frozenset({FaultKind.NETWORK_PARTITION, FaultKind.LEAF_SWITCH_DOWN})
COURSES: tuple[Course | None, ...] = (
    None,
    Course(cure=Cure.POWER_CYCLE),
    Course(cure=Cure.REPLACEMENT),
    Course(cure=Cure.REPLACEMENT, returns_after_load_seconds=6.0),
    Course(cure=Cure.POWER_CYCLE, returns_after_seconds=14.0),
    Course(cure=Cure.REIMAGE, found_by=("nvml", "dcgm_diag_r2", "dcgm_diag_r3"), failing_check_count=2),
    None,
)
"""How a fault ends, beside what its kind says."""


def make(move: Move, stage: Stage) -> None:
    """Do one move, now or in the middle of the next pass."""
    if move.during is not None:
        stage.mischief.calls_to_interruption = move.during
        stage.mischief.interruption = lambda: make(replace(move, during=None), stage)
        return
    _MAKERS[move.kind](stage, move)


def _pass(stage: Stage, move: Move) -> None:
    stage.run_pass("first", renews_lease=move.number % 4 != 0)


def _other_pass(stage: Stage, move: Move) -> None:
    stage.run_pass("second", renews_lease=move.number % 4 != 0)


def _wait(stage: Stage, move: Move) -> None:
    stage.true_clock.wait(float(1 + move.number % 20))


def _break(stage: Stage, move: Move) -> None:
    kind = _FAULTS[move.number % len(_FAULTS)]
    seconds = float(lasting_seconds(move)) if kind in _LASTING else None
    course = COURSES[move.number // len(_FAULTS) % len(COURSES)] if kind in HAVE_COURSES else None
    if kind is FaultKind.HIDDEN_DEFECT:
        course = None  # It is one anyway, until it is replaced.
    with suppress(ImpossibleFaultError):
        stage.twin.inject(
            kind,
            stage.node(move.node),
            gpu=None if kind in _OF_NODES else move.number % 2,
            seconds=seconds,
            course=course,
        )


def lasting_seconds(move: Move) -> int:
    """Return how long a fault lasts that ends by itself: 4 to 20 s."""
    return 4 + move.number % 17


def _bend_metrics(stage: Stage, move: Move) -> None:
    stage.mischief.telemetry = tuple(TelemetryLie)[move.number % len(TelemetryLie)]
    stage.mischief.about = stage.node(move.node)


def _straighten_metrics(stage: Stage, move: Move) -> None:
    stage.mischief.telemetry = None


def _bend_scheduler(stage: Stage, move: Move) -> None:
    truth = SimulatedScheduler(stage.twin)
    stage.mischief.yesterday_nodes, stage.mischief.yesterday_jobs = truth.read_nodes(), truth.read_jobs()
    stage.mischief.scheduler = tuple(SchedulerLie)[move.number % len(SchedulerLie)]
    stage.mischief.about = stage.node(move.node)
    stage.mischief.has_denied_jobs |= stage.mischief.scheduler is SchedulerLie.NO_JOBS


def _straighten_scheduler(stage: Stage, move: Move) -> None:
    stage.mischief.scheduler = None


def _fail_call(stage: Stage, move: Move) -> None:
    stage.mischief.failing[FAILING[move.number % len(FAILING)]] = PROBLEMS[move.node % len(PROBLEMS)]


def _mend_calls(stage: Stage, move: Move) -> None:
    stage.mischief.failing.clear()


def _lose_answer(stage: Stage, move: Move) -> None:
    stage.mischief.lost_answer_count = 1 + move.number % 3


def _rumour(stage: Stage, move: Move) -> None:
    lines = SimulatedLogs(stage.twin).read_new(None, max_lines=10_000).lines
    stage.mischief.rumours.plant(
        tuple(Rumour)[move.number % len(Rumour)],
        node=stage.node(move.node),
        now=stage.true_clock.now(),
        newest=lines[-1] if lines else None,
    )


def _jump(stage: Stage, move: Move) -> None:
    """Set the clock of the processes forward or back, by seconds or by hours, or right again."""
    size = (5, 40, 400, LONGEST_JUMP_SECONDS)[move.number % 4]
    stage.own_clock.ahead = timedelta(seconds=(-size, size, 0)[move.node % 3])


def _linger(stage: Stage, move: Move) -> None:
    """Let a process stand still; then its lease is lost, taken by another that acts, or was kept for it all the while.

    Its code server continues while a run has stopped, so that its lease alone does not tell it how long that was.
    """
    _stand_still("first", stage, move)


def _stand_still(process: str, stage: Stage, move: Move) -> None:
    seconds = LINGERS_SECONDS[move.number % len(LINGERS_SECONDS)]
    is_kept = move.node % 3 == 0
    stage.let_pass(seconds, keeps_lease_of=process if is_kept else None)
    if move.node % 3 == 1:
        stage.run_pass("first" if process == "second" else "second")


def _late_run(stage: Stage, move: Move) -> None:
    seconds = LINGERS_SECONDS[move.number % len(LINGERS_SECONDS)]
    stage.run_pass("first" if move.node % 3 else "second", starts_after_seconds=seconds)


def _suspend(stage: Stage, move: Move) -> None:
    def suspend(process: str) -> None:
        stage.suspension_count += 1
        _stand_still(process, stage, move)

    stage.mischief.begins_to_suspension = 1 + move.node % 4
    stage.mischief.suspension = suspend


def _crash(stage: Stage, move: Move) -> None:
    stage.mischief.steps_to_crash = 1 + move.number % 40


def _bend_checks(stage: Stage, move: Move) -> None:
    stage.mischief.checks = tuple(CheckLie)[move.number % len(CheckLie)]


def _straighten_checks(stage: Stage, move: Move) -> None:
    stage.mischief.checks = None


def _forget_weights(stage: Stage, move: Move) -> None:
    nodes = tuple(each.node for each in SimulatedScheduler(stage.twin).read_nodes())
    stage.twin.command(EntryKind.PUT_BACK, nodes=nodes)


def _show_part(stage: Stage, move: Move) -> None:
    """Let the detectors show one more part, since up to a minute and a half; every fifth time none of any any more."""
    signal, kind, code = _PARTS[move.number % len(_PARTS)]
    node, now = stage.node(move.node), stage.own_clock.now()
    if signal is None:
        stage.shown.clear()
    else:
        jobs = [each.job for each in SimulatedScheduler(stage.twin).read_jobs() if node in each.nodes]
        is_hang = signal is Signal.JOB_HUNG
        stage.shown[node, signal] = Observation(
            signal=signal,
            node=node,
            observed_at=now - timedelta(seconds=move.number % 91),
            source=DETECTOR_SOURCE,
            position=f"{signal.value}/{node}/{now.isoformat()}",
            code=code,
            gpu=slot_address(move.number % 2) if kind is ComponentKind.GPU else None,
            component=Component(kind=kind, name="mlx5_0", node=node) if kind is ComponentKind.LINK else None,
            job=jobs[0] if is_hang and jobs else None,
            text=f"{signal.value} on {node}",
        )
    stage.ledger.take_in_conditions(source=DETECTOR_SOURCE, present=tuple(stage.shown.values()), now=now)


_PARTS: tuple[tuple[Signal | None, ComponentKind, int | None], ...] = (
    (Signal.LINK_DOWN, ComponentKind.LINK, None),
    (Signal.JOB_HUNG, ComponentKind.NODE, None),
    (Signal.GPU_SLOW, ComponentKind.GPU, None),
    (Signal.ROW_REMAP, ComponentKind.GPU, 2),
    (None, ComponentKind.NODE, None),
)


_MAKERS: Mapping[MoveKind, Callable[[Stage, Move], None]] = {
    MoveKind.PASS: _pass,
    MoveKind.OTHER_PASS: _other_pass,
    MoveKind.WAIT: _wait,
    MoveKind.BREAK: _break,
    MoveKind.BEND_METRICS: _bend_metrics,
    MoveKind.STRAIGHTEN_METRICS: _straighten_metrics,
    MoveKind.BEND_SCHEDULER: _bend_scheduler,
    MoveKind.STRAIGHTEN_SCHEDULER: _straighten_scheduler,
    MoveKind.FAIL_CALL: _fail_call,
    MoveKind.MEND_CALLS: _mend_calls,
    MoveKind.LOSE_ANSWER: _lose_answer,
    MoveKind.RUMOUR: _rumour,
    MoveKind.JUMP: _jump,
    MoveKind.CRASH: _crash,
    MoveKind.LINGER: _linger,
    MoveKind.LATE_RUN: _late_run,
    MoveKind.SUSPEND: _suspend,
    MoveKind.BEND_CHECKS: _bend_checks,
    MoveKind.STRAIGHTEN_CHECKS: _straighten_checks,
    MoveKind.FORGET_WEIGHTS: _forget_weights,
    MoveKind.SHOW_PART: _show_part,
    MoveKind.ALERT: tell,
    **MOVES_OF_PEOPLE,
    **MOVES_OF_CONSENT,
    **MOVES_OF_ROLLOUTS,
}
