"""Moves of people: the operator, who approves, pauses and lowers limits, no matter who mends nodes, users, and other
admins.

What a person is known to have done is noted in the orders that the judge goes by. Moves like those of `moves`.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.action import Verb
from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.policy import LadderLimits
from ops_pipelines.core.sources import SourceError
from ops_pipelines.people import orders
from ops_pipelines.remediate.by_hand import ByHandRefused, drain_by_hand, mark_repaired, return_by_hand
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from ops_pipelines_lab.simulator.journal import EntryKind
from tests.safety.border import Crash
from tests.safety.move_kinds import Move, MoveKind
from tests.safety.scene import PERSON
from tests.safety.stage import Stage
from tests.simulator.small_cluster import TRAINING


def _foreign_drain(stage: Stage, move: Move) -> None:
    node = stage.node(move.node)
    before = _drain_shown(stage, node)
    stage.twin.command(EntryKind.DRAIN, nodes=(node,), reason="cable swap")
    _note_foreign_drain(stage, node, before=before)


def _imitate(stage: Stage, move: Move) -> None:
    """Drain again what we had drained, in our own words, as somebody who copies a reason does."""
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

    A node that is down keeps reason and time over a resume, so that its imitated drain leaves no trace. Nor does one
    in our words while we reboot the node: the scheduler itself dates a drain again then.
    """
    now = _drain_shown(stage, node)
    is_rebooted = any(
        each.action.verb is Verb.REBOOT and each.action.node == node and each.outcome is None
        for each in stage.ledger.read_state(stage.own_clock.now()).records
    )
    if now != before and not (is_rebooted and now[0] == before[0]):
        stage.orders.foreign_drains.add((node, *now))


def _foreign_resume(stage: Stage, move: Move) -> None:
    stage.twin.command(EntryKind.RESUME, nodes=(stage.node(move.node),))


def _cancel(stage: Stage, move: Move) -> None:
    jobs = SimulatedScheduler(stage.twin).read_jobs()
    with suppress(SourceError):
        stage.twin.command(EntryKind.CANCEL, job=jobs[move.number % len(jobs)].job if jobs else "1")


def _submit(stage: Stage, move: Move) -> None:
    stage.twin.submit(replace(TRAINING, name=f"late-{move.number}", gpus_per_node=1 + move.number % 2, node_count=1))


def _pause(stage: Stage, move: Move) -> None:
    orders.pause(stage.desk, actor="night-shift", reason="wait")


def _unpause(stage: Stage, move: Move) -> None:
    orders.resume_autopilot(stage.desk, actor="day-shift")


def _approve(stage: Stage, move: Move) -> None:
    """Approve the newest plan of an incident that waits, or late to one that another has taken the place of."""
    valid_for = timedelta(seconds=(2, 30, 3600)[move.number % 3])
    position = 1 if move.number % 7 == 0 else 0
    for plan in stage.waiting_plans()[position : position + 1]:
        _, approval = orders.approve(plan, stage.desk, actor="day-shift", valid_for=valid_for)
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


MOVES_OF_PEOPLE: Mapping[MoveKind, Callable[[Stage, Move], None]] = {
    MoveKind.FOREIGN_DRAIN: _foreign_drain,
    MoveKind.FOREIGN_RESUME: _foreign_resume,
    MoveKind.IMITATE: _imitate,
    MoveKind.CANCEL: _cancel,
    MoveKind.SUBMIT: _submit,
    MoveKind.PAUSE: _pause,
    MoveKind.UNPAUSE: _unpause,
    MoveKind.APPROVE: _approve,
    MoveKind.DRAIN_BY_HAND: _drain_by_hand,
    MoveKind.RETURN_BY_HAND: _return_by_hand,
    MoveKind.REPAIR_DONE: _repair_done,
    MoveKind.RESERVE_BY_OTHERS: _reserve_by_others,
    MoveKind.LOWER_LIMITS: _lower_limits,
}
