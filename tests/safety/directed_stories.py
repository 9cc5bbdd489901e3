"""One short story per guardrail that the program's own planner runs into: no hostile plan, only a hostile world.

The guardrails that are not here stand behind the planner, which never proposes what they refuse; `outdated_plans` are
in force when the world has moved on, and meet them all the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from enum import Enum

from ops_pipelines.core.policy import ActionClass, BlastCaps, Consent, DrainBudget, LadderLimits, MassEvent, Mode
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.safety.deeds import Deed
from tests.safety.hostile_plans import WIDE
from tests.safety.lies import SchedulerLie, TelemetryLie
from tests.safety.move_kinds import CLASSES_OF_ACTS
from tests.safety.moves import FAILING, Lowered, Move, MoveKind
from tests.safety.stage import FREEZE, Leases, Setting, Training
from tests.safety.stories import Story

RENEWED, OUTDATED = 1, 4
"""Numbers of a pass that renews its lease first, and of one that does not."""


def number_of(choice: Enum) -> int:
    """Return the number by which a move chooses a fault or a lie."""
    return list(type(choice)).index(choice)


def pass_by(kind: MoveKind = MoveKind.PASS, *, lease: int = RENEWED) -> Move:
    return Move(kind=kind, number=lease)


def lose_gpu(node: int) -> Move:
    return Move(kind=MoveKind.BREAK, node=node, number=number_of(FaultKind.GPU_FELL_OFF_BUS))


def break_by(fault: FaultKind, node: int, *, course: int = 0) -> Move:
    """Return the move by which a fault happens; its number also chooses the GPU and the course."""
    return Move(kind=MoveKind.BREAK, node=node, number=number_of(fault) + course * len(FaultKind))


def wait(seconds: int) -> Move:
    return Move(kind=MoveKind.WAIT, number=seconds - 1)


def lower(what: Lowered, *, node: int = 0) -> Move:
    return Move(kind=MoveKind.LOWER_LIMITS, node=node, number=number_of(what))


def fail_call(name: str) -> Move:
    """Return the move after which calls of that name get no answer, and have no effect."""
    return Move(kind=MoveKind.FAIL_CALL, number=FAILING.index(name))


def change(kind: ActionClass, word: Consent) -> Move:
    number = CLASSES_OF_ACTS.index(kind) + list(Consent).index(word) * len(CLASSES_OF_ACTS)
    return Move(kind=MoveKind.CHANGE_CONSENTS, number=number)


def story_of(*moves: Move | Deed, setting: Setting | None = None) -> Story:
    return Story(setting=setting if setting is not None else Setting(budget=WIDE), moves=moves)


PASS = pass_by()
MEND_CALLS = Move(kind=MoveKind.MEND_CALLS)
TWO_BROKEN = (lose_gpu(2), lose_gpu(3), PASS, PASS)


def _two_broken(**limits: float) -> Story:
    values = {
        "max_out_count": 9,
        "max_out_per_rack_count": 9,
        "min_in_service_ratio": 0.0,
        "max_new_per_hour_count": 9,
        **limits,
    }
    budget = DrainBudget(**values)  # type: ignore[arg-type]  # counts are whole
    return story_of(*TWO_BROKEN, setting=Setting(budget=budget))


SAVING = Setting(budget=WIDE, training=Training.SLOW, node_count=5, caps=BlastCaps(max_out_per_partition_ratio=1.0))
"""Its training job saves 87 s after the beginning, and a fault that lets it continue is waited with until then."""
WORN_ROW = break_by(FaultKind.ROW_REMAP_WAITS, 0)
UNTIL_IT_SAVES = (wait(20), wait(20), wait(20), wait(20))


def waiting_plan(*meanwhile: Move | Deed) -> Story:
    """Return a story in which something changes while the plan in force waits for a checkpoint."""
    return story_of(WORN_ROW, PASS, *meanwhile, *UNTIL_IT_SAVES, PASS, PASS, PASS, setting=SAVING)


DIRECTED_STORIES: Mapping[str, Story] = {
    "mode": story_of(lose_gpu(3), PASS, setting=Setting(budget=WIDE, mode=Mode.OBSERVE)),
    "pause": story_of(Move(kind=MoveKind.PAUSE), lose_gpu(3), PASS),
    "approval": story_of(lose_gpu(3), PASS, setting=Setting(budget=WIDE, mode=Mode.APPROVE)),
    "fresh_telemetry": story_of(
        Move(kind=MoveKind.BEND_METRICS, number=number_of(TelemetryLie.SILENT)), lose_gpu(0), PASS
    ),
    "idle_node": story_of(lose_gpu(3), PASS, setting=Setting(budget=WIDE, has_session=True)),
    "hidden_work": story_of(
        Move(kind=MoveKind.BEND_SCHEDULER, number=number_of(SchedulerLie.NO_JOBS)), lose_gpu(0), PASS
    ),
    "our_drain": story_of(
        fail_call("reboot"),
        lose_gpu(3),
        PASS,
        Move(kind=MoveKind.FOREIGN_DRAIN, node=3),
        MEND_CALLS,
        wait(20),
        PASS,
    ),
    "foreign_drain": story_of(lose_gpu(3), Move(kind=MoveKind.FOREIGN_DRAIN, node=3, during=5), PASS),
    "max_out_count": _two_broken(max_out_count=1),
    "max_out_per_rack_count": _two_broken(max_out_per_rack_count=1),
    "min_in_service_ratio": _two_broken(min_in_service_ratio=0.7),
    "drain_rate": _two_broken(max_new_per_hour_count=1),
    "partition_cap": story_of(
        *TWO_BROKEN, setting=Setting(budget=WIDE, caps=BlastCaps(max_out_per_partition_ratio=0.25))
    ),
    "leaf_cap": story_of(*TWO_BROKEN, setting=Setting(budget=WIDE, caps=BlastCaps(max_out_per_leaf_count=1))),
    "freeze_window": story_of(lose_gpu(3), PASS, setting=Setting(budget=WIDE, freezes=(FREEZE,))),
    "nvlink_cap": story_of(
        *TWO_BROKEN,
        setting=Setting(budget=WIDE, caps=BlastCaps(max_out_per_nvlink_domain_count=1), nodes_per_domain_count=2),
    ),
    "untouchable": waiting_plan(lower(Lowered.UNTOUCHABLE)),
    "requeue_limit": waiting_plan(lower(Lowered.REQUEUES)),
    "hourly_loss": waiting_plan(lower(Lowered.HOURLY_LOSS)),
    "rung_exhausted": waiting_plan(lower(Lowered.TRIES)),
    "free_spares": waiting_plan(Move(kind=MoveKind.RESERVE_BY_OTHERS, node=2, number=199), wait(20)),
    "cool_down": story_of(
        lose_gpu(3),
        PASS,
        PASS,
        PASS,
        lose_gpu(3),
        PASS,
        PASS,
        setting=Setting(budget=WIDE, ladder=LadderLimits(max_reboots_count=2)),
    ),
    "min_serving": story_of(
        break_by(FaultKind.ROW_REMAP_WAITS, 2),
        break_by(FaultKind.ROW_REMAP_WAITS, 3),
        PASS,
        PASS,
        setting=replace(SAVING, node_count=6, replica_count=2, gpus_per_replica=2),
    ),
    "probation_cap": story_of(
        *TWO_BROKEN,
        PASS,
        PASS,
        PASS,
        setting=Setting(budget=WIDE, probation_seconds=600.0, caps=BlastCaps(max_on_probation_count=1)),
    ),
    "storm_brake": story_of(
        lose_gpu(2),
        PASS,
        wait(5),
        lose_gpu(3),
        PASS,
        wait(5),
        lose_gpu(4),
        PASS,
        setting=replace(
            SAVING,
            mass_event=MassEvent(min_node_count=2, window=timedelta(seconds=1), brake_window=timedelta(minutes=10)),
        ),
    ),
    "lease": story_of(
        pass_by(MoveKind.OTHER_PASS),
        lose_gpu(3),
        pass_by(lease=OUTDATED),
        setting=Setting(budget=WIDE, leases=Leases.HANDED_OVER),
    ),
}
