"""One node's way: which act comes next in each stage, what a stage waits for, and what is a failure of its own."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.action import Action, Outcome, OutcomeKind, Verb
from ops_pipelines.core.identity import ActionKey, RolloutId
from ops_pipelines.core.node_tests import CheckState, CheckVerdict
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.policy import Durations, RolloutLimits
from ops_pipelines.core.release import Activation, Component, Release
from ops_pipelines.core.rollout import IN_HAND, Direction, NodeEvent, NodeStage, RolloutNode, wanted_versions
from ops_pipelines.rollouts.course import next_direction, next_stage
from ops_pipelines.rollouts.engine import Act, Move, NodeFacts, Step, Wait, Way, deadline_of, is_read_due, next_move
from tests.domain.builders import NODE, NOW, after, ago, job
from tests.domain.lifecycle_fleet import change, one_way, release

FORWARD, BACK = Direction.FORWARD, Direction.BACK
OPENED = f"{NOW:%Y%m%dT%H%M%S}"
LIMITS = RolloutLimits(good_read_count=3, good_read_every=timedelta(seconds=30))
DRIVER_2 = release(change(activation=Activation.DRIVER_RELOAD))
TWO_STEPS = release(
    change(Component.DCGM, activation=Activation.LIVE, version="4"),
    change(Component.BIOS, activation=Activation.POWER_CYCLE, version="9"),
)
BEFORE = dict.fromkeys(Component, "1")
BROKEN = "INC-0007: Xid 79"
WELL = CheckVerdict(state=CheckState.WELL, faults=(), unknowns=(), proofs=("8 GPUs",), not_run=(), unjudged=())


def node(stage: NodeStage, **changes: Any) -> RolloutNode:
    values: dict[str, Any] = {
        "since": ago(60),
        "versions_before": BEFORE,
        "try_number": 2,
        "reason": "wave 1",
        **changes,
    }
    return RolloutNode(rollout=RolloutId("ROLL-0001"), node=NODE, wave=1, stage=stage, **values)


def outcome(kind: OutcomeKind = OutcomeKind.DONE) -> Outcome:
    return Outcome(kind=kind, witness="seen", finished_at=NOW)


def way(
    on: RolloutNode,
    *,
    of: Release = DRIVER_2,
    now: datetime = NOW,
    done: Mapping[ActionKey, Outcome | None] | None = None,
    jobs: tuple[JobStatus, ...] = (),
    versions: Mapping[Component, str] | None = None,
    trouble: str = "",
    closed: str = "",
    check: CheckVerdict | None = None,
    is_canary: bool = False,
    opened_at: datetime = NOW,
    **options: bool,
) -> Way:
    facts = NodeFacts(
        now=now, jobs=jobs, outcomes=done or {}, versions=versions, trouble=trouble, closed=closed, check=check
    )
    return Way(node=on, release=of, opened_at=opened_at, facts=facts, limits=LIMITS, is_canary=is_canary, **options)


def told(given: Way, **outcomes: OutcomeKind | None) -> Way:
    """Return a way on which these acts have an outcome; None: they are under way."""
    known = {given.act(Verb(verb)).key: None if kind is None else outcome(kind) for verb, kind in outcomes.items()}
    return replace(given, facts=replace(given.facts, outcomes=known))


def verb_of(move: Move) -> Verb:
    assert isinstance(move, Act), move
    return move.action.verb


def event_of(move: Move) -> NodeEvent:
    assert isinstance(move, Step), move
    return move.event


def played(
    on: RolloutNode, of: Release, *, is_canary: bool = False, most: int = 100
) -> tuple[list[Action], RolloutNode]:
    """Let every act succeed at once and every version be as requested, until the node is in hand no more."""
    acts: list[Action] = []
    done: dict[ActionKey, Outcome | None] = {}
    for _ in range(most):
        if on.stage not in IN_HAND:
            return acts, on
        present = way(on, of=of, done=done, versions=wanted_versions(on, of), check=WELL, is_canary=is_canary)
        move = next_move(present)
        match move:
            case Act():
                acts.append(move.action)
                done[move.action.key] = outcome()
            case Step():
                number = on.step + 1 if move.event is NodeEvent.NEXT_STEP else on.step
                stage = next_stage(on.stage, move.event, direction=on.direction)
                on = replace(
                    on, stage=stage, direction=next_direction(move.event, on.direction), step=number, good_reads=0
                )
            case Wait():
                assert move.good_reads == on.good_reads + 1
                on = replace(on, good_reads=move.good_reads)
    raise AssertionError(f"{on.stage} after {most} moves: {[each.verb for each in acts]}")


# -- the whole way --


def test_a_node_is_drained_installed_activated_tested_and_returned_step_by_step() -> None:
    acts, at_the_end = played(node(NodeStage.DRAINING), TWO_STEPS)

    assert [(each.verb, each.part, each.text) for each in acts[1:]] == [
        (Verb.INSTALL, f"{OPENED} 0 forward", "dcgm 4"),
        (Verb.INSTALL, f"{OPENED} 1 forward", "bios 9"),
        (Verb.POWER_OFF, f"{OPENED} 1 forward", "ROLL-0001: bios 9"),
        (Verb.POWER_ON, f"{OPENED} 1 forward", "ROLL-0001: bios 9"),
        (Verb.CHECK, OPENED, ""),
        (Verb.RESUME, "", ""),
    ]
    assert acts[0].verb is Verb.DRAIN
    assert at_the_end.stage is NodeStage.SOAKING


def test_the_way_back_takes_the_steps_from_the_last_to_the_first() -> None:
    acts, at_the_end = played(node(NodeStage.DRAINING, direction=BACK), TWO_STEPS)

    assert [(each.verb, each.part, each.text) for each in acts[1:-2]] == [
        (Verb.INSTALL, f"{OPENED} 0 back", "bios 1"),
        (Verb.POWER_OFF, f"{OPENED} 0 back", "ROLL-0001: bios 1"),
        (Verb.POWER_ON, f"{OPENED} 0 back", "ROLL-0001: bios 1"),
        (Verb.INSTALL, f"{OPENED} 1 back", "dcgm 1"),
    ]
    assert at_the_end.stage is NodeStage.BACK


@pytest.mark.parametrize(
    ("direction", "is_canary", "suite", "mark"),
    [
        (FORWARD, True, "release_canary", [Verb.PUT_LAST]),
        (FORWARD, False, "release", []),
        (BACK, True, "release", [Verb.PUT_BACK]),
        (BACK, False, "release", []),
    ],
)
def test_a_canary_is_tested_longer_and_chosen_last_until_it_goes_back(
    direction: Direction, is_canary: bool, suite: str, mark: list[Verb]
) -> None:
    acts, _ = played(node(NodeStage.DRAINING, direction=direction), DRIVER_2, is_canary=is_canary)

    assert [each.suite for each in acts if each.verb is Verb.CHECK] == [suite]
    assert [each.verb for each in acts][-len(mark) - 1 :] == [*mark, Verb.RESUME]


@pytest.mark.parametrize(
    ("activation", "verbs"),
    [
        (Activation.LIVE, []),
        (Activation.DRIVER_RELOAD, [Verb.RELOAD_DRIVER]),
        (Activation.REBOOT, [Verb.REBOOT]),
        (Activation.POWER_CYCLE, [Verb.POWER_OFF, Verb.POWER_ON]),
        (Activation.AC_CYCLE, [Verb.PAGE_HUMAN]),
    ],
)
def test_what_was_installed_is_activated_by_what_it_needs(activation: Activation, verbs: list[Verb]) -> None:
    acts, _ = played(node(NodeStage.ACTIVATING), release(change(activation=activation)))

    assert [each.verb for each in acts if each.verb not in (Verb.CHECK, Verb.RESUME)] == verbs


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(Component), st.sampled_from(Activation), st.sampled_from(["", "a"])),
        min_size=1,
        max_size=6,
        unique_by=lambda part: part[0],
    ),
    st.sampled_from(Direction),
    st.booleans(),
)
def test_every_way_comes_to_its_end_installs_each_step_once_and_repeats_no_act(parts, direction, is_canary) -> None:
    of = release(*(change(component, activation=kind, bundle=bundle) for component, kind, bundle in parts))

    acts, at_the_end = played(node(NodeStage.DRAINING, direction=direction), of, is_canary=is_canary)

    assert at_the_end.stage is (NodeStage.SOAKING if direction is FORWARD else NodeStage.BACK)
    assert at_the_end.step == len(of.steps) - 1
    assert len({each.key for each in acts}) == len(acts)
    installs = [each.part for each in acts if each.verb is Verb.INSTALL]
    assert installs == [f"{OPENED} {number} {direction.value}" for number in range(len(of.steps))]
    assert acts[0].verb is Verb.DRAIN
    assert acts[-1].verb is Verb.RESUME


def test_acts_of_another_pass_are_other_acts() -> None:
    first, _ = played(node(NodeStage.DRAINING, try_number=2), DRIVER_2)
    second, _ = played(node(NodeStage.DRAINING, try_number=3), DRIVER_2)

    assert not {each.key for each in first} & {each.key for each in second}


def test_what_nodes_kept_of_an_earlier_rollout_of_the_same_number_is_not_this_ones() -> None:
    """A fresh ledger begins at ROLL-0001 again: installations, tests and restarts have other keys than those before."""
    on = node(NodeStage.TESTING)
    before, now = way(on, opened_at=NOW - timedelta(days=1)), way(on)

    of_one, of_other = (
        {verb: each.act(verb, suite="release").key for verb in (Verb.INSTALL, Verb.REBOOT, Verb.PAGE_HUMAN, Verb.CHECK)}
        for each in (before, now)
    )

    assert not set(of_one.values()) & set(of_other.values())


# -- draining --


def test_jobs_are_waited_for_and_never_killed() -> None:
    drained = told(way(node(NodeStage.DRAINING, deadline=after(1)), jobs=(job(),)), drain=OutcomeKind.DONE)

    move = next_move(drained)

    assert isinstance(move, Wait)
    assert move.reason == "waits for the end of job 42"


@pytest.mark.parametrize(("seconds", "is_late"), [(-1.0, False), (0.0, True), (1.0, True)])
@pytest.mark.parametrize(("is_of_last_wave", "event"), [(False, NodeEvent.NOT_NOW), (True, NodeEvent.SKIP)])
def test_a_node_whose_jobs_outlast_the_limit_is_put_back_and_then_passed_over(
    seconds: float, is_late: bool, is_of_last_wave: bool, event: NodeEvent
) -> None:
    on = node(NodeStage.DRAINING, deadline=NOW)
    late = way(on, now=after(seconds), jobs=(job(),), is_of_last_wave=is_of_last_wave)

    first = next_move(told(late, drain=OutcomeKind.DONE))
    then = next_move(told(late, drain=OutcomeKind.DONE, resume=OutcomeKind.DONE))

    if not is_late:
        assert isinstance(first, Wait)
        return
    assert verb_of(first) is Verb.RESUME
    assert event_of(then) is event


def test_who_is_free_goes_on_although_that_was_only_seen_after_its_deadline() -> None:
    free = way(node(NodeStage.DRAINING, deadline=NOW), now=after(60))

    assert event_of(next_move(told(free, drain=OutcomeKind.DONE))) is NodeEvent.FREE


@pytest.mark.parametrize("resume", [None, OutcomeKind.DONE])
def test_who_is_being_put_back_is_not_installed_on_when_its_job_ends_meanwhile(resume: OutcomeKind | None) -> None:
    free = way(node(NodeStage.DRAINING, deadline=NOW), now=after(60))

    move = next_move(told(free, drain=OutcomeKind.DONE, resume=resume))

    if resume is None:
        assert verb_of(move) is Verb.RESUME
    else:
        assert event_of(move) is NodeEvent.NOT_NOW


@pytest.mark.parametrize("options", [{"trouble": BROKEN}, {"is_called_back": True}])
@pytest.mark.parametrize("is_of_last_wave", [True, False])
def test_who_breaks_or_is_called_back_while_it_only_drains_is_put_back_to_be_tried_again(
    options: dict[str, Any], is_of_last_wave: bool
) -> None:
    called = way(node(NodeStage.DRAINING), is_of_last_wave=is_of_last_wave, **options)

    assert event_of(next_move(called)) is NodeEvent.NOT_NOW
    assert verb_of(next_move(told(called, drain=None))) is Verb.DRAIN
    assert verb_of(next_move(told(called, drain=OutcomeKind.DONE))) is Verb.RESUME
    assert verb_of(next_move(told(called, drain=OutcomeKind.UNKNOWN))) is Verb.RESUME
    # A drain that nobody saw may be there, or land later: as any that failed it is looked into, not forgotten.
    assert event_of(next_move(told(called, drain=OutcomeKind.FAILED))) is NodeEvent.FAILED
    assert event_of(next_move(told(called, drain=OutcomeKind.DONE, resume=OutcomeKind.DONE))) is NodeEvent.NOT_NOW
    assert event_of(next_move(told(called, drain=OutcomeKind.DONE, resume=OutcomeKind.FAILED))) is NodeEvent.FAILED


@pytest.mark.parametrize(
    ("trouble", "jobs", "expected"),
    [
        (BROKEN, (job(),), Verb.RESUME),
        (BROKEN, (), NodeEvent.FREE),
        ("", (job(),), None),
        ("", (), NodeEvent.FREE),
    ],
)
def test_on_the_way_back_only_jobs_on_a_broken_node_give_it_out_of_hand(
    trouble: str, jobs: tuple[JobStatus, ...], expected: Verb | NodeEvent | None
) -> None:
    on = node(NodeStage.DRAINING, direction=BACK, deadline=ago(1))

    move = next_move(told(way(on, trouble=trouble, jobs=jobs), drain=OutcomeKind.DONE))

    match move:
        case Act():
            assert move.action.verb is expected
        case Step():
            assert move.event is expected
        case Wait():
            assert expected is None


def test_a_node_that_is_not_drained_yet_when_its_window_ends_waits_for_the_next() -> None:
    begun = way(node(NodeStage.DRAINING), closed="freeze holds")
    drained = told(begun, drain=OutcomeKind.DONE)

    waiting = next_move(begun)

    assert isinstance(waiting, Wait)
    assert waiting.reason == "freeze holds"
    assert event_of(next_move(drained)) is NodeEvent.FREE
    assert verb_of(next_move(way(node(NodeStage.DRAINING)))) is Verb.DRAIN
    assert verb_of(next_move(way(node(NodeStage.DRAINING, direction=BACK), closed="x"))) is Verb.DRAIN


def test_a_way_back_whose_drain_nobody_lets_begin_waits_for_that_and_is_not_lost() -> None:
    late = way(node(NodeStage.DRAINING, direction=BACK, deadline=NOW))

    assert verb_of(next_move(late)) is Verb.DRAIN
    assert verb_of(next_move(told(late, drain=None))) is Verb.DRAIN
    assert verb_of(next_move(replace(late, facts=replace(late.facts, now=ago(1))))) is Verb.DRAIN


# -- outcomes --


@pytest.mark.parametrize("kind", [OutcomeKind.FAILED, OutcomeKind.UNKNOWN])
@pytest.mark.parametrize(
    ("stage", "verb"),
    [
        (NodeStage.DRAINING, Verb.DRAIN),
        (NodeStage.INSTALLING, Verb.INSTALL),
        (NodeStage.ACTIVATING, Verb.RELOAD_DRIVER),
        (NodeStage.RETURNING, Verb.RESUME),
    ],
)
def test_an_act_that_did_not_come_well_fails_the_node_with_a_signature(
    stage: NodeStage, verb: Verb, kind: OutcomeKind
) -> None:
    begun = way(node(stage))
    known = {begun.act(verb).key: outcome(kind)}

    failed = next_move(replace(begun, facts=replace(begun.facts, outcomes=known)))

    assert isinstance(failed, Step)
    assert (failed.event, failed.reason) == (NodeEvent.FAILED, f"{verb.value.replace('_', ' ')}: seen")
    assert failed.failure == f"{stage.value}: {verb.value.replace('_', ' ')}: seen"


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (None, None),
        (WELL, NodeEvent.PASSED),
        (replace(WELL, state=CheckState.NOT_WELL, faults=("GPU 3 below its floor",)), NodeEvent.FAILED),
        (replace(WELL, state=CheckState.UNKNOWN, unknowns=("no dcgmi",)), NodeEvent.FAILED),
    ],
)
def test_only_a_node_that_is_proven_well_passes_its_tests(
    check: CheckVerdict | None, expected: NodeEvent | None
) -> None:
    testing = way(node(NodeStage.TESTING), check=check)
    suite = testing.act(Verb.CHECK, suite="release")
    move = next_move(replace(testing, facts=replace(testing.facts, outcomes={suite.key: outcome()})))

    assert (move.event if isinstance(move, Step) else None) is expected


# -- versions --


@pytest.mark.parametrize(
    ("reads", "seen", "expected"),
    [
        (0, None, None),
        (0, {Component.DRIVER: "2"}, 1),
        (1, {Component.DRIVER: "2"}, 2),
        (2, {Component.DRIVER: "2"}, NodeEvent.VERIFIED),
        (2, {Component.DRIVER: "1"}, 0),
        (2, {}, 0),
        (2, {Component.DRIVER: "2", Component.BIOS: "odd"}, NodeEvent.VERIFIED),
    ],
)
def test_a_version_runs_when_it_was_read_well_three_times_in_a_row(
    reads: int, seen: Mapping[Component, str] | None, expected: int | NodeEvent | None
) -> None:
    move = next_move(way(node(NodeStage.VERIFYING, good_reads=reads), versions=seen))

    if isinstance(move, Wait):
        assert move.good_reads == expected
    else:
        assert event_of(move) is expected


def test_each_step_is_verified_by_its_own_versions() -> None:
    seen = {Component.DCGM: "4", Component.BIOS: "1"}

    first = next_move(way(node(NodeStage.VERIFYING, good_reads=2), of=TWO_STEPS, versions=seen))
    second = next_move(way(node(NodeStage.VERIFYING, good_reads=2, step=1), of=TWO_STEPS, versions=seen))

    assert event_of(first) is NodeEvent.NEXT_STEP
    assert isinstance(second, Wait)
    assert second.reason == "bios runs 1, not 9"


@pytest.mark.parametrize(("seconds", "has_failed"), [(-1.0, False), (0.0, True), (1.0, True)])
def test_a_version_that_does_not_show_by_the_deadline_fails_the_node(seconds: float, has_failed: bool) -> None:
    on = node(NodeStage.VERIFYING, deadline=NOW)

    move = next_move(way(on, now=after(seconds), versions={Component.DRIVER: "1"}))

    assert isinstance(move, Step) is has_failed
    assert not isinstance(move, Step) or "driver runs 1, not 2" in move.reason


def test_a_version_that_shows_just_before_the_deadline_is_read_to_the_end() -> None:
    on = node(NodeStage.VERIFYING, deadline=NOW, good_reads=2)

    assert event_of(next_move(way(on, versions={Component.DRIVER: "2"}))) is NodeEvent.VERIFIED


@pytest.mark.parametrize(
    ("stage", "read_at", "is_due"),
    [
        (NodeStage.VERIFYING, None, True),
        (NodeStage.VERIFYING, ago(29.9), False),
        (NodeStage.VERIFYING, ago(30), True),
        (NodeStage.VERIFYING, ago(31), True),
        (NodeStage.TESTING, None, False),
        (NodeStage.SOAKING, ago(99), False),
    ],
)
def test_versions_are_read_every_half_minute_while_they_are_verified(
    stage: NodeStage, read_at: datetime | None, is_due: bool
) -> None:
    assert is_read_due(node(stage, read_at=read_at), limits=LIMITS, now=NOW) is is_due


def test_the_way_back_leads_to_what_ran_before_of_what_can_go_back() -> None:
    of = release(change(Component.DRIVER), change(Component.DCGM), one_way(Component.CPLD))
    known = {Component.DRIVER: "1", Component.CPLD: "1", Component.BIOS: "1"}

    assert wanted_versions(node(NodeStage.DRAINING, versions_before=known), of) == {
        Component.DRIVER: "2",
        Component.DCGM: "2",
        Component.CPLD: "2",
    }
    assert wanted_versions(node(NodeStage.DRAINING, direction=BACK, versions_before=known), of) == {
        Component.DRIVER: "1"
    }


# -- limits --


@pytest.mark.parametrize("stage", NodeStage)
def test_only_a_stage_in_hand_has_a_deadline(stage: NodeStage) -> None:
    deadline = deadline_of(stage, DRIVER_2.steps[0], limits=LIMITS, durations=Durations(), now=NOW)

    assert (deadline is not None) is (stage in IN_HAND)
    assert deadline is None or deadline > NOW


@pytest.mark.parametrize("activation", Activation)
def test_the_deadline_of_a_restart_is_longer_than_the_acts_in_it(activation: Activation) -> None:
    durations = Durations()
    step = release(change(activation=activation)).steps[0]
    acts = {
        Activation.LIVE: timedelta(0),
        Activation.DRIVER_RELOAD: durations.reset_limit,
        Activation.REBOOT: durations.reboot_limit,
        Activation.POWER_CYCLE: durations.fence_limit + durations.reboot_limit,
        Activation.AC_CYCLE: timedelta(0),
    }[activation]

    deadline = deadline_of(NodeStage.ACTIVATING, step, limits=LIMITS, durations=durations, now=NOW)

    assert deadline is not None
    assert deadline > NOW + acts


def test_a_stage_that_hands_must_do_waits_for_people() -> None:
    step = release(change(activation=Activation.AC_CYCLE)).steps[0]

    deadlines = [
        deadline_of(stage, step, limits=LIMITS, durations=Durations(), now=NOW)
        for stage in (NodeStage.ACTIVATING, NodeStage.VERIFYING)
    ]

    assert max(each for each in deadlines if each is not None) >= NOW + LIMITS.answer_limit
