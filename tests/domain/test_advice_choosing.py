"""What is reported is little, worth it, and not reported twice; what was reported is judged by the same measure
later."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.advice import (
    Advice,
    AdviceKind,
    Attempt,
    Followed,
    Gain,
    JobWork,
    NodeFailures,
    Said,
    Saves,
    UseHours,
    choose,
    judge_following,
    one_line,
    subject_of_jobs,
)
from ops_pipelines.efficiency.advice_on_holding import IdleAttempt, LadderStep, due_step, ending_command
from ops_pipelines.efficiency.evidence import judge, measure
from ops_pipelines.teams.desk import AdviceSettings, LadderSettings
from tests.domain.advice_facts import FAILURES, SINCE, UNTIL, advice, used, work

SETTINGS = AdviceSettings()
WEEK = timedelta(days=7)
MINUTE = timedelta(minutes=1)


def gaining(hours: float, subject: str, **changes: object) -> Advice:
    return advice(gain=Gain(expected_gpu_hours=hours), subject=subject, **changes)


def said(week_end_back: int, measure_then: float) -> Said:
    return Said(
        kind=AdviceKind.INPUT_STALL,
        team=TeamName("vision"),
        subject="ada/train_#",
        week_end=UNTIL - week_end_back * WEEK,
        measure=measure_then,
    )


def test_a_team_is_told_the_three_that_gain_most() -> None:
    found = choose([gaining(hours, f"s{hours}") for hours in (10, 40, 20, 30)], SETTINGS, said=(), week_end=UNTIL)

    assert [each.subject for each in found.chosen] == ["s40", "s30", "s20"]
    assert [each.why for each in found.withheld] == ["3 that gain more are sent to the team"]


def test_one_thing_is_said_of_one_job() -> None:
    other = gaining(30, "a", kind=AdviceKind.SMALL_BATCH)

    found = choose([gaining(20, "a"), other], SETTINGS, said=(), week_end=UNTIL)

    assert found.chosen == (other,)
    assert [each.kind for each in found.withheld] == [AdviceKind.INPUT_STALL]


def test_money_decides_before_hours_where_prices_are_stated() -> None:
    dear = gaining(10, "dear", gain_cents=Cents(9_000))
    cheap = gaining(20, "cheap", gain_cents=Cents(8_000))

    assert choose([cheap, dear], SETTINGS, said=(), week_end=UNTIL).chosen == (dear, cheap)


@pytest.mark.parametrize(("weeks", "is_said"), [(3, False), (4, False), (5, True)])
def test_the_same_is_not_said_again_within_four_weeks(weeks: int, is_said: bool) -> None:
    found = choose([advice()], SETTINGS, said=[said(weeks, 0.5)], week_end=UNTIL)

    assert bool(found.chosen) is is_said


@pytest.mark.parametrize(("now", "is_said"), [(0.49, False), (0.5, False), (0.51, True)])
def test_what_got_worse_by_a_quarter_is_said_again(now: float, is_said: bool) -> None:
    found = choose([advice(measure=now)], SETTINGS, said=[said(1, 0.4)], week_end=UNTIL)

    assert bool(found.chosen) is is_said


def test_a_week_that_is_looked_at_again_is_not_silenced_by_itself() -> None:
    assert choose([advice()], SETTINGS, said=[said(0, 0.5)], week_end=UNTIL).chosen


KINDS = st.sampled_from([AdviceKind.INPUT_STALL, AdviceKind.SMALL_BATCH, AdviceKind.STRAGGLER])
ADVICES = st.lists(
    st.builds(
        lambda team, subject, kind, hours: gaining(hours, subject, team=TeamName(team), kind=kind),
        st.sampled_from("abc"),
        st.sampled_from("uvwxyz"),
        KINDS,
        st.floats(0, 400),
    ),
    max_size=40,
    unique_by=lambda each: each.key,
)


@given(ADVICES, st.integers(1, 4))
def test_never_more_is_said_than_allowed_and_nothing_gets_lost(found: list[Advice], limit: int) -> None:
    choice = choose(found, AdviceSettings(per_team_count=limit), said=(), week_end=UNTIL)

    for team in "abc":
        of_team = [each for each in choice.chosen if each.team == team]
        assert len(of_team) <= limit
        assert len({each.subject for each in of_team}) == len(of_team)
    assert len(choice.chosen) + len(choice.withheld) == len(found)


@given(ADVICES, st.randoms())
def test_what_is_said_does_not_hang_on_the_order_of_what_was_found(found: list[Advice], chance: object) -> None:
    shuffled = sorted(found, key=lambda _: chance.random())  # type: ignore[attr-defined]  # a random.Random

    assert choose(shuffled, SETTINGS, said=(), week_end=UNTIL) == choose(found, SETTINGS, said=(), week_end=UNTIL)


RATIO = st.floats(0, 1)
HOURS = st.floats(0, 5_000)


@st.composite
def works(draw: st.DrawFn) -> JobWork:
    held = draw(st.floats(0.1, 5_000))
    seen = held * draw(RATIO)
    verdicts = ("input_stalled", "communication_bound", "small_kernels")
    attempt = Attempt(
        elapsed_hours=draw(HOURS),
        limit_hours=draw(st.none() | st.floats(0.1, 1e4)),
        state=draw(st.sampled_from(["COMPLETED", "TIMEOUT", "FAILED"])),
        gpu_count=draw(st.integers(0, 64)),
        asked_memory_bytes=draw(st.none() | st.floats(1, 1e13)),
        used_memory_bytes=draw(st.none() | st.floats(1, 1e13)),
        waited_hours=draw(HOURS),
    )
    return JobWork(
        team=TeamName("t"),
        subject="s",
        since=SINCE,
        until=UNTIL,
        held_gpu_hours=held,
        seen_gpu_hours=seen,
        uses={
            each: UseHours(gpu_hours=seen * draw(RATIO), utilisation_ratio=draw(st.none() | RATIO),
                           sm_active_ratio=draw(st.none() | RATIO), memory_used_ratio=draw(st.none() | RATIO))
            for each in verdicts
        },
        idle_gpu_hours=held * draw(RATIO),
        half_idle_gpu_hours=held * draw(RATIO),
        longest_idle_hours=draw(st.floats(0, 168)),
        straggler_gpu_hours={"straggler_lags": seen * draw(RATIO)},
        straggler_gpus=frozenset({"a", "b"}),
        attempts=(attempt,) * draw(st.integers(0, 7)),
        host_memory_bytes_per_gpu=draw(st.none() | st.floats(1e9, 1e12)),
        saves=Saves(
            has_lines=True,
            is_training=True,
            save_count=draw(st.integers(0, 1)),
            intervals_hours=(draw(st.floats(0.01, 100)),) * 4,
            save_seconds=(draw(st.floats(1, 3600)),),
            node_count=draw(st.integers(1, 500)),
            longest_hours=draw(HOURS),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "node_hours", "between"),
    [(0, 100.0, None), (1, 0.0, None), (2, 5e-324, None), (2, 0.99, None), (2, 1.0, 0.125), (1, 100.0, 25.0)],
)
def test_a_time_between_failures_needs_failures_and_time(failed: int, node_hours: float, between: float | None) -> None:
    assert NodeFailures(failure_count=failed, node_hours=node_hours).hours_between(4) == between


@given(works(), st.integers(0, 50), st.floats(0, 1e6))
def test_no_gain_is_above_what_the_jobs_held(one: JobWork, failed: int, node_hours: float) -> None:
    failures = NodeFailures(failure_count=failed, node_hours=node_hours)

    for found in judge([one], AdviceSettings(least_gain_gpu_hours=0.0), failures=failures):
        if isinstance(found, Advice):
            assert 0 <= found.gain.low_gpu_hours <= found.gain.expected_gpu_hours <= one.held_gpu_hours + 1e-6
            assert found.evidence


def test_jobs_that_held_nothing_are_passed_over() -> None:
    assert judge([work(held_gpu_hours=0.0, seen_gpu_hours=0.0)], SETTINGS, failures=FAILURES) == ()


# -- was it followed --


@pytest.mark.parametrize(
    ("after", "became"),
    [(0.19, Followed.FOLLOWED), (0.2, Followed.FOLLOWED), (0.21, Followed.NOT_FOLLOWED)],
)
def test_advice_is_followed_once_its_measure_fell_to_half(after: float, became: Followed) -> None:
    found = judge_following(
        measure_before=0.4, measure_after=after, expected_gpu_hours=100.0, held_before_gpu_hours=400.0,
        held_after_gpu_hours=800.0, settings=SETTINGS,
    )  # fmt: skip

    assert found.followed is became


def test_what_was_saved_is_the_part_of_the_waste_that_is_gone() -> None:
    found = judge_following(
        measure_before=0.4, measure_after=0.1, expected_gpu_hours=100.0, held_before_gpu_hours=400.0,
        held_after_gpu_hours=800.0, settings=SETTINGS,
    )  # fmt: skip

    assert found.saved_gpu_hours == pytest.approx(800 * 0.25 * 0.75)


def test_what_did_not_run_again_or_was_not_measured_saved_nothing() -> None:
    gone = judge_following(
        measure_before=0.4, measure_after=0.0, expected_gpu_hours=100.0, held_before_gpu_hours=400.0,
        held_after_gpu_hours=0.0, settings=SETTINGS,
    )  # fmt: skip
    dark = judge_following(
        measure_before=0.4, measure_after=None, expected_gpu_hours=100.0, held_before_gpu_hours=400.0,
        held_after_gpu_hours=800.0, settings=SETTINGS,
    )  # fmt: skip

    assert (gone.followed, gone.saved_gpu_hours) == (Followed.NOT_RUN_AGAIN, 0.0)
    assert (dark.followed, dark.saved_gpu_hours) == (Followed.UNKNOWN, 0.0)


def test_each_kind_of_use_is_measured_by_its_own_share() -> None:
    stalled = work(uses=used("input_stalled", 100.0), idle_gpu_hours=40.0)

    def of(kind: AdviceKind) -> float | None:
        return measure(kind, stalled, SETTINGS, failures=FAILURES)

    assert of(AdviceKind.INPUT_STALL) == 0.25
    assert of(AdviceKind.IDLE_ALLOCATION) == 0.1
    assert of(AdviceKind.SMALL_BATCH) == 0.0
    assert of(AdviceKind.NO_CHECKPOINTS) is None
    assert of(AdviceKind.UNUSED_DATASETS) is None


# -- the ladder --

ON = LadderSettings(is_on=True)
BOTH = frozenset({LadderStep.FIRST_WARNING, LadderStep.SECOND_WARNING})


def idle(**changes: object) -> IdleAttempt:
    return IdleAttempt(
        **{"job": "123", "started_at": SINCE, "idle_since": SINCE, "gpu_count": 8, **changes}  # type: ignore[arg-type]  # names and types are those of IdleAttempt
    )


@pytest.mark.parametrize(
    ("minutes", "told", "step"),
    [
        (59, frozenset(), None),
        (60, frozenset(), LadderStep.FIRST_WARNING),
        (61, frozenset(), LadderStep.FIRST_WARNING),
        (119, {LadderStep.FIRST_WARNING}, None),
        (120, {LadderStep.FIRST_WARNING}, LadderStep.SECOND_WARNING),
        (179, BOTH, None),
        (180, BOTH, LadderStep.ASK_TO_RELEASE),
        (181, BOTH, LadderStep.ASK_TO_RELEASE),
        (999, frozenset(), LadderStep.FIRST_WARNING),
        (999, frozenset(LadderStep), None),
    ],
)
def test_each_step_is_taken_once_at_its_time_and_none_is_passed_over(
    minutes: int, told: frozenset[LadderStep], step: LadderStep | None
) -> None:
    assert due_step(idle(), ON, told=frozenset(told), now=SINCE + minutes * MINUTE) is step


def test_the_ladder_is_off_unless_the_policy_turns_it_on() -> None:
    assert due_step(idle(), LadderSettings(), told=frozenset(), now=SINCE + WEEK) is None


def test_services_are_never_warned_and_sessions_never_asked_to_release() -> None:
    later = SINCE + WEEK

    assert due_step(idle(is_service=True), ON, told=frozenset(), now=later) is None
    assert due_step(idle(is_interactive=True), ON, told=frozenset(), now=later) is LadderStep.FIRST_WARNING
    assert due_step(idle(is_interactive=True), ON, told=BOTH, now=later) is None


@pytest.mark.parametrize("job", ["", "-1", "1; rm", "$(id)", "1\n2", "\uff11\uff12", "1_2_3", "1" * 13])
def test_only_ids_that_slurm_writes_stand_in_a_command(job: str) -> None:
    assert ending_command(job) is None


@pytest.mark.parametrize("job", ["1", "123", "30_1", "40+1"])
def test_ids_of_arrays_and_heterogeneous_jobs_stand_in_a_command(job: str) -> None:
    assert ending_command(job) == f"scancel {job}"


# -- names of users --


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("train_001", "ada/train_#"),
        ("train_2", "ada/train_#"),
        ("train", "ada/train"),
        ("llama-7b", "ada/llama-7b"),
        ("resnet50", "ada/resnet50"),
        ("", "ada/without a name"),
        ("a\nb\x1b[2J", "ada/a b [2J"),
    ],
)
def test_jobs_that_differ_in_a_number_at_the_end_are_one_subject(name: str, subject: str) -> None:
    assert subject_of_jobs("ada", name) == subject


def test_long_names_are_short_and_stay_distinct() -> None:
    first, second = subject_of_jobs("ada", "x" * 10_000 + "a"), subject_of_jobs("ada", "x" * 10_000 + "b")

    assert first != second
    assert len(first) < 160


@given(st.text(max_size=500))
def test_a_text_of_a_user_becomes_one_printable_line(text: str) -> None:
    line = one_line(text)

    assert line.isprintable()
    assert len(line) <= 160
