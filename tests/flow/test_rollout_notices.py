"""Notices of rollouts follow from what the ledger holds: what is reported when, when again, and what never twice."""

from dataclasses import replace
from datetime import datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.notes import Audience, Lane, Note, Severity, TellRules
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    OF_PEOPLE,
    Direction,
    NodeStage,
    Rollout,
    RolloutNode,
    RolloutState,
)
from ops_pipelines.rollouts.notices import RolloutSituation, is_still_asked, tell_teams
from ops_pipelines.rollouts.operator_notices import tell_operators
from tests.ports.ledger_samples import NOW
from tests.ports.rollout_samples import HOUR, NODES, RELEASE, node, rollout, rollout_plan

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
BY_DAY = TellRules(quiet_from=None)
NIGHT = NOW.replace(hour=23, minute=0)
STAYS = sorted(IN_HAND, key=lambda stage: stage.value)


def situation(
    present: Rollout | None = None, *nodes: RolloutNode, at: datetime = NOW, rules: TellRules = BY_DAY
) -> RolloutSituation:
    present = present or rollout(1)
    return RolloutSituation(
        rollout=present,
        nodes=nodes or tuple(replace(node(1, name), deadline=None) for name in NODES),
        release=RELEASE,
        plan=rollout_plan(present, made_at=present.created_at),
        told=(),
        limits=RolloutLimits(answer_limit=24 * HOUR),
        rules=rules,
        now=at,
    )


def facts(notes: tuple[Note, ...]) -> list[str]:
    return [each.key.split("/")[-1] for each in notes]


def of_people(state: RolloutState) -> Rollout:
    return replace(rollout(1, state=state), deadline=NOW + 24 * HOUR)


# -- the on-call --


@pytest.mark.parametrize("state", [each for each in RolloutState if each in OF_PEOPLE])
@pytest.mark.parametrize(
    ("passed", "times"),
    [(timedelta(0), 0), (DAY - SECOND, 0), (DAY, 1), (2 * DAY - SECOND, 1), (2 * DAY, 2), (9 * DAY, 9)],
)
def test_what_waits_for_people_is_told_again_each_time_the_limit_passes(
    state: RolloutState, passed: timedelta, times: int
) -> None:
    told = [each for each in facts(tell_operators(situation(of_people(state), at=NOW + passed))) if "asks" in each]

    is_told = times > 0 or state is not RolloutState.PAUSED
    assert [each.rpartition("-")[2] for each in told] == ([str(times)] if is_told else [])


@pytest.mark.parametrize("state", [each for each in RolloutState if each not in OF_PEOPLE])
def test_what_waits_for_nobody_asks_nothing(state: RolloutState) -> None:
    notes = tell_operators(situation(of_people(state), at=NOW + 5 * DAY))

    assert not [each for each in facts(notes) if "asks" in each]


def test_stuck_is_critical_and_waits_for_no_company_also_by_night() -> None:
    (note,) = tell_operators(situation(of_people(RolloutState.STUCK), at=NIGHT, rules=TellRules()))

    assert (note.severity, note.lane, note.ready_at) == (Severity.CRITICAL, Lane.AT_ONCE, NIGHT)


@pytest.mark.parametrize("state", [RolloutState.RUNNING, RolloutState.GOING_BACK, RolloutState.DONE])
def test_news_that_need_nobody_wait_for_the_morning(state: RolloutState) -> None:
    present = rollout(1, state=state)

    (by_night,) = tell_operators(situation(present, at=NIGHT, rules=TellRules()))
    (by_day,) = tell_operators(situation(present, at=NOW, rules=BY_DAY))

    assert by_night.ready_at.time() == time(7)
    assert by_day.ready_at == NOW + BY_DAY.group_window
    assert by_day.severity in (Severity.INFO, Severity.NOTICE)


@pytest.mark.parametrize("stage", STAYS)
@pytest.mark.parametrize(
    ("over", "is_told"), [(-HOUR, False), (10 * 60 * SECOND - SECOND, False), (10 * 60 * SECOND, True)]
)
@pytest.mark.parametrize("direction", list(Direction))
def test_node_beyond_its_deadline_is_told_once_when_passes_have_had_their_time(
    stage: NodeStage, over: timedelta, is_told: bool, direction: Direction
) -> None:
    stays = replace(node(1, "gpu001", stage=stage), direction=direction, deadline=NOW)

    told = [each for each in tell_operators(situation(rollout(1), stays, at=NOW + over)) if "overdue" in each.key]

    assert bool(told) is is_told
    assert all(each.severity is Severity.WARNING for each in told)


@pytest.mark.parametrize(
    ("stage", "passed", "is_told"),
    [
        (NodeStage.LOST, timedelta(0), True),
        (NodeStage.PULLED, timedelta(minutes=10) - SECOND, False),
        (NodeStage.PULLED, timedelta(minutes=10), True),
        (NodeStage.BACK, 99 * HOUR, False),
        (NodeStage.SOAKING, 99 * HOUR, False),
        (NodeStage.PENDING, 99 * HOUR, False),
    ],
)
def test_node_that_is_left_drained_pages(stage: NodeStage, passed: timedelta, is_told: bool) -> None:
    left = replace(node(1, "gpu001", stage=stage), deadline=None)

    pages = [
        each
        for each in tell_operators(situation(rollout(1), left, at=NOW + passed))
        if each.severity is Severity.CRITICAL
    ]

    assert [each.title.split(":")[0] for each in pages] == (["gpu001"] if is_told else [])


def test_lost_node_of_what_is_stuck_is_named_by_the_question_alone() -> None:
    lost = replace(node(1, "gpu001", stage=NodeStage.LOST), deadline=None, reason="the node is silent")

    (note,) = tell_operators(situation(of_people(RolloutState.STUCK), lost))

    assert "gpu001: the node is silent" in note.body


@pytest.mark.parametrize(("over", "is_told"), [(DAY - SECOND, False), (DAY, True)])
def test_rollout_that_is_a_day_later_than_foreseen_is_told(over: timedelta, is_told: bool) -> None:
    late = rollout(1)
    assert late.finishes_at is not None

    notes = tell_operators(situation(late, at=late.finishes_at + over))

    assert ("late" in facts(notes)) is is_told


@pytest.mark.parametrize(("passed", "is_told"), [(8 * DAY - SECOND, False), (8 * DAY, True)])
@pytest.mark.parametrize("state", [RolloutState.RUNNING, RolloutState.SOAKING])
def test_rollout_of_which_no_end_was_foreseen_is_late_when_a_week_has_passed_over_its_wave(
    state: RolloutState, passed: timedelta, is_told: bool
) -> None:
    endless = replace(rollout(1, state=state), finishes_at=None)

    notes = tell_operators(situation(endless, at=endless.since + passed))

    assert ("late" in facts(notes)) is is_told


@pytest.mark.parametrize("stage", [NodeStage.DRAINING, NodeStage.SOAKING])
@pytest.mark.parametrize(
    ("state", "passed", "is_told"),
    [
        (RolloutState.GOING_BACK, DAY - SECOND, False),
        (RolloutState.GOING_BACK, DAY, True),
        (RolloutState.GOING_BACK, DAY + SECOND, True),
        (RolloutState.ENDING, DAY - SECOND, False),
        (RolloutState.ENDING, DAY, True),
        (RolloutState.RUNNING, 2 * DAY, False),
        (RolloutState.SOAKING, 2 * DAY, False),
    ],
)
def test_what_ends_or_goes_back_for_longer_than_jobs_may_last_calls_somebody_once(
    state: RolloutState, passed: timedelta, is_told: bool, stage: NodeStage
) -> None:
    waits = replace(node(1, "gpu001", stage=stage), deadline=None, reason="waits for the end of job 42")
    present = rollout(1, state=state)

    first, again = (
        [each for each in tell_operators(situation(present, waits, at=present.since + each)) if "/lasts-" in each.key]
        for each in (passed, passed + DAY)
    )

    assert bool(first) is is_told
    assert all(each.severity is Severity.WARNING for each in first)
    assert {each.key for each in first} <= {each.key for each in again}
    if state is RolloutState.GOING_BACK and first:
        said = "gpu001: draining, waits for the end of job 42" if stage in IN_HAND else "not started yet: gpu001"
        assert said in first[0].body


def test_node_whose_deadline_lies_beyond_what_the_outbox_remembers_is_told_all_the_same() -> None:
    long = BY_DAY.kept_for + DAY
    stays = replace(node(1, "gpu001", stage=NodeStage.DRAINING), since=NOW, deadline=NOW + long)

    told = facts(tell_operators(situation(rollout(1), stays, at=NOW + long + HOUR)))

    assert [each for each in told if each.startswith("overdue")]


@pytest.mark.parametrize(
    ("reason", "is_resumed"),
    [("two nodes failed", True), ("two nodes failed; a part of it cannot be rolled back", False)],
)
def test_what_the_gate_stopped_and_cannot_go_back_is_only_ended(reason: str, is_resumed: bool) -> None:
    asks = replace(of_people(RolloutState.ASKING), reason=reason)

    (note,) = [each for each in tell_operators(situation(asks)) if "asks" in each.key]

    assert ("rollout resume" in note.body) is is_resumed
    assert "rollout abort" in note.body
    assert ("Nothing else ends it" in note.body) is not is_resumed


def test_only_the_newest_wave_that_is_over_is_told() -> None:
    told = facts(tell_operators(situation(replace(rollout(1), wave=3))))

    assert told == ["begun", "wave-2"]


def test_what_is_left_drained_is_named_when_it_is_over() -> None:
    left = replace(node(1, "gpu002", stage=NodeStage.PULLED), deadline=None)

    (note,) = tell_operators(situation(rollout(1, state=RolloutState.ABORTED), left))

    assert (note.severity, note.is_last) == (Severity.WARNING, True)
    assert "gpu002: drained by us" in note.body


# -- teams --


@pytest.mark.parametrize("state", list(RolloutState))
def test_team_hears_of_what_is_ahead_and_of_no_other(state: RolloutState) -> None:
    ahead = {
        RolloutState.AWAITING_YES,
        RolloutState.RUNNING,
        RolloutState.SOAKING,
        RolloutState.PAUSED,
        RolloutState.ASKING,
    }

    assert facts(tell_teams(situation(rollout(1, state=state)))) == (["announced"] if state in ahead else [])


def test_node_in_the_hands_of_what_goes_back_is_told_to_its_team() -> None:
    touched = node(1, "gpu002", stage=NodeStage.SOAKING)

    (note,) = tell_teams(situation(rollout(1, state=RolloutState.GOING_BACK), touched))

    assert (note.audience, note.recipient) == (Audience.TEAM, "ml")
    assert "of your nodes: gpu002" in note.body


@pytest.mark.parametrize(
    ("ahead", "announced", "is_reminded"),
    [
        (DAY + SECOND, 3 * DAY, False),
        (DAY, 3 * DAY, True),
        (DAY, DAY, True),
        (DAY, DAY - SECOND, False),
        (HOUR, HOUR, False),
        (-DAY, 3 * DAY, True),
    ],
)
def test_team_is_reminded_a_day_before_where_the_announcement_is_older(
    ahead: timedelta, announced: timedelta, is_reminded: bool
) -> None:
    present = replace(rollout(1), created_at=NOW - announced)
    waiting = tuple(replace(node(1, name, wave=2), deadline=None) for name in NODES)
    plan = rollout_plan(present)
    plan = replace(plan, teams=tuple(replace(each, first_at=NOW + ahead, last_at=NOW + 9 * DAY) for each in plan.teams))

    told = facts(tell_teams(replace(situation(present, *waiting), plan=plan)))

    assert ("reminder" in told) is is_reminded


@pytest.mark.parametrize("wave", [1, 2, 3])
def test_reminder_waits_until_the_teams_wave_is_the_next(wave: int) -> None:
    present = replace(rollout(1), created_at=NOW - 3 * DAY, wave=wave)
    waiting = tuple(replace(node(1, name, wave=3), deadline=None) for name in NODES)

    told = facts(tell_teams(situation(present, *waiting)))

    assert ("reminder" in told) is (wave >= 2)


def test_node_that_was_left_out_brings_no_reminder_forward() -> None:
    """It is in no wave: the team's first node comes with the third."""
    present = replace(rollout(1), created_at=NOW - 3 * DAY, wave=1)
    left_out, *waiting = (replace(node(1, name, wave=3), deadline=None) for name in NODES)
    left_out = replace(left_out, stage=NodeStage.SKIPPED, wave=None)

    assert "reminder" not in facts(tell_teams(situation(present, left_out, *waiting)))


def test_announcement_waits_for_the_morning_unless_the_node_would_be_gone_by_then() -> None:
    present = rollout(1)
    plan = rollout_plan(present)
    soon, late = (
        replace(plan, teams=tuple(replace(each, first_at=NIGHT + ahead) for each in plan.teams))
        for ahead in (HOUR, 3 * DAY)
    )
    by_night = situation(present, at=NIGHT, rules=TellRules())

    (at_once,) = tell_teams(replace(by_night, plan=soon))
    (in_the_morning,) = tell_teams(replace(by_night, plan=late))

    assert at_once.ready_at == NIGHT + TellRules().group_window
    assert in_the_morning.ready_at.time() == time(7)


def test_job_without_an_account_has_no_team_to_be_told() -> None:
    present = rollout(1)
    plan = rollout_plan(present)
    nameless = replace(plan, teams=tuple(replace(each, team="") for each in plan.teams))

    assert tell_teams(replace(situation(present), plan=nameless)) == ()


# -- laws --

SITUATIONS = st.builds(
    lambda state, stages, wave, passed: situation(
        replace(rollout(1, state=state), wave=wave),
        *(replace(node(1, name, stage=stage), wave=wave) for name, stage in zip(NODES, stages, strict=True)),
        at=NOW + timedelta(hours=passed),
    ),
    st.sampled_from(RolloutState),
    st.tuples(*(st.sampled_from(NodeStage) for _ in NODES)),
    st.integers(1, 3),
    st.integers(0, 24 * 80),
)


@given(SITUATIONS)
def test_every_fact_has_a_key_of_its_own_and_an_unchanged_world_says_nothing_new(seen: RolloutSituation) -> None:
    notes = (*tell_operators(seen), *tell_teams(seen))
    again = (*tell_operators(seen), *tell_teams(seen))

    keys = [each.key for each in notes]
    assert len(keys) == len(set(keys))
    assert keys == [each.key for each in again]
    assert all(each.thread == "ROLL-0001" and each.title and each.body for each in notes)
    assert all(each.is_last is (seen.rollout.state in FINAL) for each in notes)


@given(SITUATIONS)
def test_what_is_told_a_minute_later_is_known_by_the_same_key_or_new_by_a_deadline(seen: RolloutSituation) -> None:
    later = replace(seen, now=seen.now + timedelta(seconds=1))

    lost = {each.key for each in tell_operators(seen)} - {each.key for each in tell_operators(later)}

    assert all("asks-" in key for key in lost)


@given(SITUATIONS, st.sampled_from(RolloutState))
def test_question_holds_only_as_long_as_the_rollout_stays_where_it_asked(
    seen: RolloutSituation, state: RolloutState
) -> None:
    present = seen.rollout
    moved = replace(present, state=state, since=present.since + SECOND)

    for note in tell_operators(seen):
        assert is_still_asked(note, {"ROLL-0001": present})
        assert is_still_asked(note, {})
        assert is_still_asked(note, {"ROLL-0001": moved}) is ("/asks-" not in note.key)


def test_what_is_older_than_the_outbox_remembers_is_not_told_again() -> None:
    seen = situation(rollout(1), at=NOW + BY_DAY.kept_for)

    assert facts(tell_operators(seen)) == ["late"]
    assert tell_teams(seen) == ()
