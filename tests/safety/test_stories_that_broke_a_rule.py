"""The smallest stories in which the program once did something unsafe; each represents many seeds."""

from datetime import timedelta
from typing import Any

import pytest

from ops_pipelines.core.action import Verb
from ops_pipelines.core.policy import (
    ActionClass,
    BlastCaps,
    Consent,
    DrainBudget,
    FreezeWindow,
    LadderLimits,
    MassEvent,
)
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.safety.deeds import Deed, undeclare
from tests.safety.directed_stories import PASS, break_by, change, lose_gpu, lower, number_of, wait, waiting_plan
from tests.safety.hostile_plans import WIDE
from tests.safety.lies import CheckLie, Rumour, TelemetryLie
from tests.safety.moves import FAILING, LINGERS_SECONDS, Lowered, Move, MoveKind
from tests.safety.moves_of_alerts import ALERTS, Told
from tests.safety.moves_of_consent import Yes
from tests.safety.outdated_plans import OUTDATED_PLANS
from tests.safety.slips import alert, say, show_link
from tests.safety.stage import FREEZE, Setting, Training
from tests.safety.stories import Story, play
from tests.simulator.fake_clock import BEGINNING

ONE_MAY_BE_OUT = DrainBudget(
    max_out_count=1, max_out_per_rack_count=9, min_in_service_ratio=0.0, max_new_per_hour_count=9
)


@pytest.mark.parametrize("lie", [TelemetryLie.OLD, TelemetryLie.AHEAD, TelemetryLie.EMPTY])
def test_store_that_answers_without_a_fresh_sample_is_no_pair_of_eyes(lie: TelemetryLie) -> None:
    bend = Move(kind=MoveKind.BEND_METRICS, number=number_of(lie))

    verdict = play(Story(setting=Setting(budget=WIDE), moves=(bend, lose_gpu(0), PASS, PASS)))

    assert verdict.violations == ()


@pytest.mark.parametrize("during", range(4, 13))
def test_drain_by_hand_in_the_middle_of_a_pass_counts_in_the_budget(during: int) -> None:
    by_hand = Move(kind=MoveKind.DRAIN_BY_HAND, node=2, during=during)

    verdict = play(Story(setting=Setting(budget=ONE_MAY_BE_OUT), moves=(lose_gpu(3), by_hand, PASS)))

    assert verdict.violations == ()


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "the scheduler refuses the mark"])
def test_node_on_probation_counts_although_the_scheduler_does_not_know_it(is_marked: bool) -> None:
    refuse = Move(kind=MoveKind.FAIL_CALL, node=1, number=FAILING.index("put_last"))
    mend = Move(kind=MoveKind.MEND_CALLS)
    setting = Setting(budget=WIDE, probation_seconds=600.0, caps=BlastCaps(max_on_probation_count=1))

    verdict = play(Story(setting=setting, moves=(mend if is_marked else refuse, lose_gpu(2), lose_gpu(3), *[PASS] * 4)))

    assert verdict.violations == ()
    assert verdict.commands[Verb.RESUME] == 1


def test_owner_is_told_once_although_each_plan_has_its_notice() -> None:
    useless = break_by(FaultKind.UNCORRECTABLE_ECC, 2, course=1)
    story = Story(setting=Setting(budget=WIDE, has_session=True), moves=(useless, *[PASS] * 5))

    assert play(story).violations == ()


@pytest.mark.parametrize("node", [2, 3])
def test_reset_without_an_answer_that_helps_nothing_is_sent_once_more_at_most(node: int) -> None:
    lose = Move(kind=MoveKind.LOSE_ANSWER, node=node, number=2)
    begun = (lower(Lowered.PROBATION), PASS, lose, *[PASS, wait(12)] * 5)
    story = Story(setting=Setting(budget=WIDE), moves=(break_by(FaultKind.UNCORRECTABLE_ECC, node, course=1), *begun))

    verdict = play(story)

    assert verdict.violations == ()
    assert verdict.commands[Verb.RESET_GPU] <= 2


@pytest.mark.parametrize("where", [{"untouchable": 2}, {"undeclared": 2}])
def test_replica_that_hangs_on_a_node_left_to_people_is_not_counted_on(where: dict[str, Any]) -> None:
    """The scheduler calls it running; the other one is all that serves, and must not be held."""
    setting = Setting(node_count=5, replica_count=2, gpus_per_replica=2, **where)
    moves = (lose_gpu(2), PASS, wait(11), break_by(FaultKind.ROW_REMAP_WAITS, 3), PASS)

    verdict = play(Story(setting=setting, moves=moves))

    assert verdict.violations == ()
    assert verdict.commands[Verb.HOLD] == 0


@pytest.mark.parametrize("change", [lower(Lowered.UNTOUCHABLE), undeclare(0)], ids=["untouchable", "undeclared"])
def test_node_that_is_taken_out_of_our_hands_while_its_plan_waits_keeps_its_jobs(change: Move | Deed) -> None:
    """The plan waits for a checkpoint; by then nothing of the node is ours to touch, its jobs neither."""
    verdict = play(waiting_plan(change))

    assert verdict.violations == ()
    assert verdict.commands[Verb.HOLD] == verdict.commands[Verb.RESERVE] == 0


def test_spare_that_is_kept_for_a_moved_job_is_no_second_node_of_a_storm() -> None:
    """The judge once took it for one: it was chosen because nothing is wrong with it."""
    storm = MassEvent(min_node_count=2, window=timedelta(seconds=1), brake_window=timedelta(minutes=10))
    whole = BlastCaps(max_out_per_partition_ratio=1.0)
    setting = Setting(budget=WIDE, training=Training.UNTOLD, mass_event=storm, caps=whole)
    moves = (break_by(FaultKind.ROW_REMAP_WAITS, 0), PASS, wait(5), lose_gpu(3), PASS)

    verdict = play(Story(setting=setting, moves=moves))

    assert verdict.violations == ()
    assert (verdict.commands[Verb.RESERVE], verdict.commands[Verb.DRAIN]) == (1, 2)


@pytest.mark.parametrize(
    "deceive",
    [
        Move(kind=MoveKind.RUMOUR, node=2, number=number_of(Rumour.FORGED_FALL)),
        Move(kind=MoveKind.BEND_METRICS, node=2, number=number_of(TelemetryLie.HALF)),
    ],
    ids=["a forged line", "a series that the exporter lost"],
)
def test_last_replica_is_not_held_because_one_source_calls_it_dead(deceive: Move) -> None:
    setting = Setting(budget=WIDE, replica_count=1, gpus_per_replica=2)

    verdict = play(Story(setting=setting, moves=(PASS, deceive, PASS, wait(15), PASS, PASS)))

    assert verdict.violations == ()
    assert verdict.commands[Verb.HOLD] == 0


def test_replica_that_its_owner_cancelled_on_a_silent_node_is_no_loss_when_it_is_held() -> None:
    """The judge once took it for one that serves; the scheduler refuses the hold, for it ends with its node."""
    cancel = Move(kind=MoveKind.CANCEL, number=1)
    moves = (break_by(FaultKind.NODE_UNREACHABLE, 3), PASS, wait(6), PASS, wait(6), cancel, PASS, PASS)

    verdict = play(Story(setting=Setting(budget=WIDE, replica_count=2), moves=moves))

    assert verdict.violations == ()
    assert verdict.commands[Verb.HOLD] == 1


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["the job waits", "its owner has cancelled it"])
def test_silent_node_is_fenced_in_a_freeze_only_while_a_job_that_another_cause_holds_waits(is_cancelled: bool) -> None:
    """The judge once asked for the same cause; the program once did not ask whether anything waits."""
    visit = FreezeWindow(name="a visit", begins_at=BEGINNING + timedelta(seconds=30), ends_at=FREEZE.ends_at)
    cancel = (Move(kind=MoveKind.CANCEL),) if is_cancelled else ()
    falls_silent = (*cancel, break_by(FaultKind.NODE_UNREACHABLE, 1), wait(1))
    moves = (break_by(FaultKind.UNCORRECTABLE_ECC, 0), PASS, wait(7), *falls_silent, PASS, wait(7), PASS)

    verdict = play(Story(setting=Setting(node_count=5, freezes=(visit,)), moves=moves))

    assert verdict.violations == ()
    assert (verdict.commands[Verb.HOLD], verdict.commands[Verb.POWER_OFF]) == (1, not is_cancelled)


def test_broken_node_whose_drain_somebody_lifted_is_still_chosen_last() -> None:
    once = LadderLimits(max_gpu_resets_count=0, max_reboots_count=1, max_power_cycles_count=0, max_reimages_count=0)
    comes_back = break_by(FaultKind.UNCORRECTABLE_ECC, 3, course=4)
    lift = Move(kind=MoveKind.FOREIGN_RESUME, node=3)
    moves = (comes_back, PASS, PASS, wait(16), PASS, PASS, lift, PASS)

    verdict = play(Story(setting=Setting(budget=WIDE, ladder=once, probation_seconds=600.0), moves=moves))

    assert verdict.violations == ()
    assert (verdict.commands[Verb.PUT_LAST], verdict.commands[Verb.PUT_BACK]) == (1, 0)


def test_link_is_not_taken_for_old_because_an_alert_stands_since_yesterday() -> None:
    """The first link of a switch: the other nodes still have their time to show the same."""
    old = alert(Told.FIRES_SINCE_YESTERDAY, 3, name=ALERTS.index("NodeBondingDegraded"))
    moves = (old, PASS, show_link(3, seconds_ago=20), PASS, wait(10), PASS)

    verdict = play(Story(setting=Setting(budget=WIDE), moves=moves))

    assert verdict.violations == ()
    assert verdict.commands[Verb.DRAIN] == 0


@pytest.mark.parametrize("told", Told)
def test_alerts_alone_touch_nothing_whatever_they_say(told: Told) -> None:
    moves = [move for name in range(len(ALERTS)) for move in (alert(told, 3, name=name), wait(3))]

    verdict = play(Story(setting=Setting(budget=WIDE), moves=(*moves, PASS, wait(15), PASS)))

    assert verdict.violations == ()
    assert not verdict.commands


@pytest.mark.parametrize("word", [Consent.APPROVE, Consent.FORBID])
def test_job_of_a_silent_node_is_held_only_where_its_power_may_be_cut(word: Consent) -> None:
    """The power switch is its fence: held without it, nobody could let it go."""
    setting = Setting(budget=WIDE, consents={ActionClass.POWER: word})
    moves = (break_by(FaultKind.NODE_UNREACHABLE, 0), wait(5), PASS, wait(6), PASS, PASS)

    verdict = play(Story(setting=setting, moves=moves))

    assert verdict.violations == ()
    assert (verdict.commands[Verb.DRAIN], verdict.commands[Verb.HOLD]) == (1, 0)


@pytest.mark.parametrize(
    ("ways", "reboots"),
    [
        pytest.param((Yes.BY_LINK,), 1, id="a link"),
        pytest.param((Yes.LINK_FOR_LATER, Yes.BY_OLDEST_LINK), 1, id="a link that was kept for a while"),
        pytest.param((Yes.LINK_FOR_LATER,), 0, id="a link that nobody used"),
        pytest.param((Yes.LINK_FOR_LATER, *[wait(20)] * 2, Yes.BY_OLDEST_LINK), 0, id="an expired link"),
        pytest.param((Yes.FOR_A_MOMENT, wait(3)), 0, id="an approval that was over before anything was started on it"),
        pytest.param((Yes.FOR_LONG, Yes.FOR_LONG), 1, id="twice"),
    ],
)
def test_reboot_waits_for_a_yes_that_holds(ways: tuple[Yes | Move, ...], reboots: int) -> None:
    setting = Setting(budget=WIDE, consents={ActionClass.REBOOT: Consent.APPROVE})
    said = [say(each) if isinstance(each, Yes) else each for each in ways]

    verdict = play(Story(setting=setting, moves=(lose_gpu(3), PASS, *said, PASS)))

    assert verdict.violations == ()
    assert (verdict.commands[Verb.DRAIN], verdict.commands[Verb.REBOOT]) == (1, reboots)


@pytest.mark.parametrize(("lie", "climbs"), [(CheckLie.FAILED, True), (CheckLie.PASSED, False)])
def test_result_of_a_test_that_was_begun_before_tests_were_forbidden_counts(lie: CheckLie, climbs: bool) -> None:
    """What was started is read to its end: a test that fails is no less true for it, and the next rung follows."""
    is_late, comes = (Move(kind=MoveKind.BEND_CHECKS, number=number_of(each)) for each in (CheckLie.LOST, lie))
    moves = (is_late, lose_gpu(3), PASS, wait(5), PASS, change(ActionClass.CHECK, Consent.FORBID), comes, PASS, PASS)

    verdict = play(Story(setting=Setting(budget=WIDE), moves=moves))

    assert verdict.violations == ()
    assert (verdict.commands[Verb.CHECK], verdict.commands[Verb.POWER_OFF]) == (1, climbs)


def test_node_comes_back_untested_where_the_operator_wants_no_tests() -> None:
    """The judge once asked for one all the same."""
    setting = Setting(budget=WIDE, consents={ActionClass.CHECK: Consent.FORBID})

    verdict = play(Story(setting=setting, moves=(lose_gpu(3), PASS, PASS, wait(10), PASS)))

    assert verdict.violations == ()
    assert (verdict.commands[Verb.CHECK], verdict.commands[Verb.RESUME]) == (0, 1)


def test_repair_that_was_forbidden_before_it_was_sent_is_no_try_that_a_higher_rung_follows() -> None:
    verdict = play(OUTDATED_PLANS["consent"])

    assert verdict.violations == ()
    assert verdict.commands == {Verb.DRAIN: 1}


def test_rollout_that_waits_for_a_job_does_not_go_on_when_its_node_falls_silent_and_is_given_up() -> None:
    """The scheduler lists no job there any more; its processes may live."""
    begin, silent = Move(kind=MoveKind.ROLL_OUT, number=1), break_by(FaultKind.NODE_UNREACHABLE, 0)
    setting = Setting(budget=WIDE, slurmd_timeout_seconds=10.0, has_start_guard=True)

    verdict = play(Story(setting=setting, moves=(begin, PASS, silent, wait(18), PASS, wait(18), PASS, wait(18), PASS)))

    assert verdict.violations == ()


@pytest.mark.parametrize("has_start_guard", [True, False])
@pytest.mark.parametrize("late_by", range(len(LINGERS_SECONDS)))
@pytest.mark.parametrize("kind", [MoveKind.LATE_RUN, MoveKind.SUSPEND, MoveKind.LINGER])
def test_who_is_late_causes_no_second_writer_and_tells_of_the_schedulers(
    kind: MoveKind, late_by: int, has_start_guard: bool
) -> None:
    setting = Setting(budget=WIDE, slurmd_timeout_seconds=30.0, has_start_guard=has_start_guard)
    silent, late = break_by(FaultKind.NODE_UNREACHABLE, 0), Move(kind=kind, node=1, number=late_by)

    verdict = play(Story(setting=setting, moves=(PASS, silent, wait(4), late, PASS, wait(8), PASS, wait(18), PASS)))

    assert verdict.violations == ()
