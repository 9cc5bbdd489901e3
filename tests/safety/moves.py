"""Moves: everything that can happen on a stage, as plain data that a seed, a test or a shrinking search can make.

A move means no particular harm by itself, and its numbers never fail to choose something.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.domain.identity import NodeName
from ops_pipelines.flow import people
from ops_pipelines.flow.by_hand import ByHandRefused, drain_by_hand
from ops_pipelines.ports.ledger import LedgerConflict
from ops_pipelines.ports.source_error import SourceError
from ops_pipelines.simulator.adapters import SimulatedLogs, SimulatedScheduler
from ops_pipelines.simulator.commands import ImpossibleFaultError
from ops_pipelines.simulator.journal import EntryKind, FaultKind
from tests.safety.border import PROBLEMS, Crash
from tests.safety.lies import Rumour, SchedulerLie, TelemetryLie
from tests.safety.rules import PERSON
from tests.safety.stage import Stage
from tests.simulator.small_cluster import TRAINING

LONGEST_JUMP_SECONDS = 7200


class MoveKind(Enum):
    """What can be done on a stage."""

    PASS = "pass"
    OTHER_PASS = "other_pass"
    WAIT = "wait"
    BREAK = "break"
    BEND_METRICS = "bend_metrics"
    STRAIGHTEN_METRICS = "straighten_metrics"
    BEND_SCHEDULER = "bend_scheduler"
    STRAIGHTEN_SCHEDULER = "straighten_scheduler"
    FAIL_CALL = "fail_call"
    MEND_CALLS = "mend_calls"
    LOSE_ANSWER = "lose_answer"
    RUMOUR = "rumour"
    FOREIGN_DRAIN = "foreign_drain"
    FOREIGN_RESUME = "foreign_resume"
    IMITATE = "imitate"
    CANCEL = "cancel"
    SUBMIT = "submit"
    JUMP = "jump"
    CRASH = "crash"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    APPROVE = "approve"
    DRAIN_BY_HAND = "drain_by_hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One thing that somebody does; what the numbers choose depends on the kind."""

    kind: MoveKind
    node: int = 0
    number: int = 0
    during: int | None = None
    """Done in the middle of the next pass, before its so-manieth question; None: at once."""


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
)
"""Calls that can be made to fail."""
_FAULTS = tuple(FaultKind)


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
    is_of_node = kind in (FaultKind.NODE_UNREACHABLE, FaultKind.NETWORK_PARTITION)
    seconds = float(4 + move.number % 17) if kind is FaultKind.NETWORK_PARTITION else None
    with suppress(ImpossibleFaultError):
        stage.twin.inject(kind, stage.node(move.node), gpu=None if is_of_node else move.number % 2, seconds=seconds)


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


def _foreign_drain(stage: Stage, move: Move) -> None:
    node = stage.node(move.node)
    before = _drain_shown(stage, node)
    stage.twin.command(EntryKind.DRAIN, nodes=(node,), reason="cable swap")
    _note_foreign_drain(stage, node, before=before)


def _imitate(stage: Stage, move: Move) -> None:
    """Drain anew what we had drained, in our own words, as somebody who copies a reason does."""
    node = stage.node(move.node)
    before = _drain_shown(stage, node)
    stage.twin.command(EntryKind.RESUME, nodes=(node,))
    stage.true_clock.wait(0.5)
    stage.twin.command(EntryKind.DRAIN, nodes=(node,), reason=before[0] or "ops_pipelines INC-0001: Xid 79")
    _note_foreign_drain(stage, node, before=before)


def _drain_shown(stage: Stage, node: NodeName) -> tuple[str | None, datetime | None]:
    shown = next(each for each in SimulatedScheduler(stage.twin).read_nodes() if each.node == node)
    return shown.reason, shown.reason_set_at


def _note_foreign_drain(stage: Stage, node: NodeName, *, before: tuple[str | None, datetime | None]) -> None:
    """Note whose drain it is now; one that shows as ours to the letter and to the second is nobody's to tell apart.

    A node that is down keeps reason and time over a resume, so that its imitated drain leaves no trace.
    """
    now = _drain_shown(stage, node)
    if now != before:
        stage.orders.foreign_drains.add((node, *now))


def _foreign_resume(stage: Stage, move: Move) -> None:
    stage.twin.command(EntryKind.RESUME, nodes=(stage.node(move.node),))


def _cancel(stage: Stage, move: Move) -> None:
    jobs = SimulatedScheduler(stage.twin).read_jobs()
    with suppress(SourceError):
        stage.twin.command(EntryKind.CANCEL, job=jobs[move.number % len(jobs)].job if jobs else "1")


def _submit(stage: Stage, move: Move) -> None:
    stage.twin.submit(replace(TRAINING, name=f"late-{move.number}", gpus_per_node=1 + move.number % 2, node_count=1))


def _jump(stage: Stage, move: Move) -> None:
    """Set the clock of the processes forward or back, by seconds or by hours, or right again."""
    size = (5, 40, 400, LONGEST_JUMP_SECONDS)[move.number % 4]
    stage.own_clock.ahead = timedelta(seconds=(-size, size, 0)[move.node % 3])


def _crash(stage: Stage, move: Move) -> None:
    stage.mischief.steps_to_crash = 1 + move.number % 40


def _pause(stage: Stage, move: Move) -> None:
    people.pause(stage.desk, actor="night-shift", reason="wait")


def _unpause(stage: Stage, move: Move) -> None:
    people.resume_autopilot(stage.desk, actor="day-shift")


def _approve(stage: Stage, move: Move) -> None:
    valid_for = timedelta(seconds=(2, 30, 3600)[move.number % 3])
    for plan in stage.waiting_plans()[:1]:
        _, approval = people.approve(plan, stage.desk, actor="day-shift", valid_for=valid_for)
        stage.orders.approved[plan] = (approval.given_at, approval.expires_at)


def _drain_by_hand(stage: Stage, move: Move) -> None:
    person = stage.process(PERSON)
    try:
        drain_by_hand(stage.node(move.node), person.cluster, lease=person.lease, actor="day-shift", why="fan noise")
    except (ByHandRefused, SourceError, LedgerConflict):
        stage.failure_count += 1
    except Crash:
        stage.restart(PERSON)


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
    MoveKind.FOREIGN_DRAIN: _foreign_drain,
    MoveKind.FOREIGN_RESUME: _foreign_resume,
    MoveKind.IMITATE: _imitate,
    MoveKind.CANCEL: _cancel,
    MoveKind.SUBMIT: _submit,
    MoveKind.JUMP: _jump,
    MoveKind.CRASH: _crash,
    MoveKind.PAUSE: _pause,
    MoveKind.UNPAUSE: _unpause,
    MoveKind.APPROVE: _approve,
    MoveKind.DRAIN_BY_HAND: _drain_by_hand,
}
