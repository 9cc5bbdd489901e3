"""Moves: everything that can happen on a stage, as plain data that a seed, a test or a shrinking search can make.

A move means no particular harm by itself, and its numbers never fail to choose something.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.domain.identity import NodeName
from ops_pipelines.domain.incident import IncidentState
from ops_pipelines.domain.policy import LadderLimits
from ops_pipelines.flow import people
from ops_pipelines.flow.by_hand import ByHandRefused, drain_by_hand, return_by_hand
from ops_pipelines.flow.repairs import mark_repaired
from ops_pipelines.ports.ledger import LedgerConflict
from ops_pipelines.ports.source_error import SourceError
from ops_pipelines.simulator.adapters import SimulatedLogs, SimulatedScheduler
from ops_pipelines.simulator.commands import ImpossibleFaultError
from ops_pipelines.simulator.course import Course, Cure
from ops_pipelines.simulator.defects import HAVE_COURSES
from ops_pipelines.simulator.journal import EntryKind, FaultKind
from tests.safety.border import PROBLEMS, Crash
from tests.safety.lies import CheckLie, Rumour, SchedulerLie, TelemetryLie
from tests.safety.scene import PERSON
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
    RETURN_BY_HAND = "return_by_hand"
    REPAIR_DONE = "repair_done"
    """Somebody mends a node that waits for hands, and says so; or does only one of the two."""
    BEND_CHECKS = "bend_checks"
    STRAIGHTEN_CHECKS = "straighten_checks"
    FORGET_WEIGHTS = "forget_weights"
    """The scheduler restarts, and no node is last choice any more."""
    RESERVE_BY_OTHERS = "reserve_by_others"
    LOWER_LIMITS = "lower_limits"
    """The operator allows less from now on, whatever was planned before."""


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
    seconds = float(4 + move.number % 17) if kind in _LASTING else None
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
    """Say yes to the newest plan of an incident that waits, or late to one that another has taken the place of."""
    valid_for = timedelta(seconds=(2, 30, 3600)[move.number % 3])
    position = 1 if move.number % 7 == 0 else 0
    for plan in stage.waiting_plans()[position : position + 1]:
        _, approval = people.approve(plan, stage.desk, actor="day-shift", valid_for=valid_for)
        stage.orders.approved.setdefault(plan, []).append((approval.given_at, approval.expires_at))


def _drain_by_hand(stage: Stage, move: Move) -> None:
    person = stage.process(PERSON)
    try:
        drain_by_hand(stage.node(move.node), person.cluster, lease=person.lease, actor="day-shift", why="fan noise")
    except (ByHandRefused, SourceError, LedgerConflict):
        stage.failure_count += 1
    except Crash:
        stage.restart(PERSON)


def _return_by_hand(stage: Stage, move: Move) -> None:
    person = stage.process(PERSON)
    try:
        return_by_hand(stage.node(move.node), person.cluster, lease=person.lease, actor="day-shift", why="looks well")
    except (ByHandRefused, SourceError, LedgerConflict):
        stage.failure_count += 1
    except Crash:
        stage.restart(PERSON)


def _repair_done(stage: Stage, move: Move) -> None:
    now = stage.own_clock.now()
    present = stage.ledger.read_state(now).incidents
    waiting = [each for each in present if each.state is IncidentState.IN_REPAIR] or list(present)
    if not waiting:
        return
    incident = waiting[move.node % len(waiting)]
    is_mended, is_said = ((True, True), (True, True), (False, True), (True, False))[move.number % 4]
    if is_mended and incident.state is IncidentState.IN_REPAIR:
        for node in incident.nodes:
            with suppress(SourceError):
                stage.twin.repair_by_hand(node)
    if is_said:
        with suppress(ByHandRefused, LedgerConflict):
            mark_repaired(stage.desk, incident.incident, actor="technician", note="a new board", now=now)
            stage.orders.waiting_for_hands.discard(incident.incident)
            stage.orders.called_mended.update([incident.incident])


def _bend_checks(stage: Stage, move: Move) -> None:
    stage.mischief.checks = tuple(CheckLie)[move.number % len(CheckLie)]


def _straighten_checks(stage: Stage, move: Move) -> None:
    stage.mischief.checks = None


def _forget_weights(stage: Stage, move: Move) -> None:
    nodes = tuple(each.node for each in SimulatedScheduler(stage.twin).read_nodes())
    stage.twin.command(EntryKind.PUT_BACK, nodes=nodes)


def _reserve_by_others(stage: Stage, move: Move) -> None:
    until = stage.true_clock.now() + timedelta(seconds=10 + move.number % 200)
    with suppress(SourceError):
        stage.twin.command(
            EntryKind.RESERVE, nodes=(stage.node(move.node),), reservation=f"maintenance-{move.number}", until=until
        )


class Lowered(Enum):
    """What the operator lowers."""

    REQUEUES = "requeues"
    HOURLY_LOSS = "hourly_loss"
    TRIES = "tries"
    PROBATION = "probation"
    UNTOUCHABLE = "untouchable"


def _lower_limits(stage: Stage, move: Move) -> None:
    policy = stage.orders.policy
    match tuple(Lowered)[move.number % len(Lowered)]:
        case Lowered.REQUEUES:
            policy = replace(policy, recovery=replace(policy.recovery, max_requeues_count=0))
        case Lowered.HOURLY_LOSS:
            policy = replace(policy, blast_caps=replace(policy.blast_caps, max_gpu_hours_per_hour=0.01))
        case Lowered.TRIES:
            none = LadderLimits(
                max_gpu_resets_count=0, max_reboots_count=0, max_power_cycles_count=0, max_reimages_count=0
            )
            policy = replace(policy, ladder=none)
        case Lowered.PROBATION:
            policy = replace(policy, blast_caps=replace(policy.blast_caps, max_on_probation_count=1))
        case Lowered.UNTOUCHABLE:
            policy = replace(policy, untouchable_nodes=policy.untouchable_nodes | {stage.node(move.node)})
    stage.use_policy(policy)


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
    MoveKind.RETURN_BY_HAND: _return_by_hand,
    MoveKind.REPAIR_DONE: _repair_done,
    MoveKind.BEND_CHECKS: _bend_checks,
    MoveKind.STRAIGHTEN_CHECKS: _straighten_checks,
    MoveKind.FORGET_WEIGHTS: _forget_weights,
    MoveKind.RESERVE_BY_OTHERS: _reserve_by_others,
    MoveKind.LOWER_LIMITS: _lower_limits,
}
