"""One short story per guardrail that no fresh plan runs into: the plan in force is older than the world that it meets.

A call got no answer, a person stepped in, an answer was wrong for a moment, or a step had lost its object: what was
right when the plan was made would be unsafe now. The other guardrails have their `directed_stories`.
"""

from collections.abc import Mapping

from ops_pipelines.core.policy import ActionClass, Consent, LadderLimits
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.safety.deeds import give_up, hide_jobs_while_fencing, release_training, requeue_training, undeclare
from tests.safety.directed_stories import (
    MEND_CALLS,
    PASS,
    break_by,
    change,
    fail_call,
    lose_gpu,
    number_of,
    story_of,
    wait,
    waiting_plan,
)
from tests.safety.hostile_plans import WIDE
from tests.safety.lies import CheckLie, SchedulerLie, TelemetryLie
from tests.safety.moves import Move, MoveKind, lasting_seconds
from tests.safety.stage import Setting, Training
from tests.safety.stories import Story


def cut_off(node: int) -> Move:
    """Return the move by which a node cannot be reached for 20 s, and continues with its work."""
    moves = (break_by(FaultKind.NETWORK_PARTITION, node, course=number) for number in range(17))
    return max(moves, key=lasting_seconds)


IS_SEEN_SILENT = (wait(5), PASS, wait(6))
"""Time for the scheduler to miss a node, and for the program to believe it; the next pass makes the plan."""
ANSWERS_AGAIN = wait(15)
FAULT_ON_BUSY_NODE = lose_gpu(0)

OUTDATED_PLANS: Mapping[str, Story] = {
    # Being started, the power-off is no longer moot when the node answers: its call is repeated as soon as it may be.
    "answers_again": story_of(
        cut_off(3), *IS_SEEN_SILENT, fail_call("power_off"), PASS, ANSWERS_AGAIN, MEND_CALLS, PASS
    ),
    # What died with its node may be held although it keeps no checkpoint; it did not die.
    "requeueable": story_of(
        cut_off(0),
        *IS_SEEN_SILENT,
        fail_call("hold"),
        PASS,
        ANSWERS_AGAIN,
        MEND_CALLS,
        PASS,
        setting=Setting(budget=WIDE, training=Training.NEVER),
    ),
    # The power cycle counts as tried, and not one of its steps was started: the node answered before.
    "rung_order": story_of(
        Move(kind=MoveKind.BEND_CHECKS, number=number_of(CheckLie.FAILED)),
        cut_off(3),
        *IS_SEEN_SILENT,
        Move(kind=MoveKind.BEND_METRICS, number=number_of(TelemetryLie.SILENT)),
        PASS,
        ANSWERS_AGAIN,
        Move(kind=MoveKind.STRAIGHTEN_METRICS),
        PASS,
        wait(15),
        PASS,
        setting=Setting(budget=WIDE, ladder=LadderLimits(max_reimages_count=1)),
    ),
    "held_first": story_of(
        break_by(FaultKind.NODE_UNREACHABLE, 0),
        *IS_SEEN_SILENT,
        fail_call("power_off"),
        PASS,
        release_training,
        # Where a job that ends is shown as ending its hold no longer matters; here nobody can tell that it does.
        Move(kind=MoveKind.BEND_SCHEDULER, number=number_of(SchedulerLie.STRANGE_STATE)),
        MEND_CALLS,
        PASS,
    ),
    "consent": story_of(
        fail_call("reboot"),
        lose_gpu(3),
        PASS,
        change(ActionClass.REBOOT, Consent.FORBID),
        MEND_CALLS,
        wait(20),
        PASS,
    ),
    "known_node": waiting_plan(undeclare(0)),
    "same_attempt": waiting_plan(requeue_training),
    "known_job": story_of(
        FAULT_ON_BUSY_NODE, Move(kind=MoveKind.BEND_SCHEDULER, number=number_of(SchedulerLie.NO_JOBS), during=15), PASS
    ),
    # With no job listed the fence is moot; its processes take their time to end.
    "fenced_first": story_of(
        break_by(FaultKind.UNKILLABLE_PROCESS, 1), FAULT_ON_BUSY_NODE, hide_jobs_while_fencing, PASS
    ),
    # Too few nodes are left for the job to start again, or its second writer would be found as well.
    "silent_node": story_of(
        FAULT_ON_BUSY_NODE,
        Move(kind=MoveKind.BREAK, node=1, number=number_of(FaultKind.NODE_UNREACHABLE), during=18),
        PASS,
        wait(5),
        give_up(1),
        PASS,
        setting=Setting(budget=WIDE, node_count=3),
    ),
}

UNREACHABLE: Mapping[str, str] = {
    "off_first": (
        "a node is declared down after its power-off was witnessed, or had lost its object: then so has this, because "
        "the power was never cut (`is_moot`); a power-off that fails ends the plan"
    ),
}
"""Guardrails that no plan of the program's own meets, and what always comes before them."""
