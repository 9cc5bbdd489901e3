"""When a job is interrupted: by least expected loss, within rules that no arithmetic outweighs."""

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.fault import Family, FirstAction
from ops_pipelines.core.finding import UNKNOWN_HAZARD, Finding, Hazard, Response
from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import Checkpointing, JobStatus, Observation, Signal, Workload
from ops_pipelines.core.plan import JobTiming, Moment, RestartCosts
from ops_pipelines.core.policy import RecoveryLimits
from ops_pipelines.remediate.timing import choose_moment, hazard_of, is_moment
from tests.domain.builders import GPU, NODE, NOW, OTHER_GPU, after, ago, job

HOUR = timedelta(hours=1)
MINUTE = 60.0
LIMITS = RecoveryLimits()


def hazard(per_hour: float = 0.5, *, slowdown: float = 0.0, **named: Any) -> Hazard:
    family, action = named.get("family"), named.get("first_action")
    return Hazard(
        family=family, first_action=action, ends_job_per_hour=per_hour, slowdown_ratio=slowdown, source="test"
    )


def trainer(*, age_minutes: float | None = 30.0, **changes: Any) -> JobStatus:
    """Return a training of 8 GPUs, ten hours old, that saves hourly and has two days left."""
    checkpointed_at = None if age_minutes is None else ago(age_minutes * MINUTE)
    defaults = job(
        started_at=ago(36_000), checkpointed_at=checkpointed_at, checkpoint_every=HOUR, ends_by=after(172_800)
    )
    return replace(defaults, **changes)


def choose(work: JobStatus | None = None, per_hour: float = 0.5, **changes: Any) -> JobTiming:
    defaults: dict[str, Any] = {
        "hazard": hazard(per_hour),
        "costs": RestartCosts(),
        "has_room": True,
        "limits": LIMITS,
        "moved_count": 0,
        "is_still_serving": True,
        "noticed_at": None,
        "now": NOW,
    }
    return choose_moment(work or trainer(), **{**defaults, **changes})


def loss(timing: JobTiming, moment: Moment) -> float:
    return next(each.lost_gpu_hours for each in timing.options if each.moment is moment)


# -- moments by cost ------------------------------------------------------------------------------------------------


def test_one_minute_and_fifty_five_minutes_of_unsaved_work_are_treated_differently() -> None:
    assert choose(trainer(age_minutes=1)).moment is Moment.NOW
    assert choose(trainer(age_minutes=55)).moment is Moment.NEXT_CHECKPOINT


def test_the_moment_changes_once_between_a_fresh_and_an_old_checkpoint() -> None:
    moments = [choose(trainer(age_minutes=age)).moment for age in range(1, 56)]

    assert moments == sorted(moments, key=lambda moment: moment is Moment.NEXT_CHECKPOINT)
    assert set(moments) == {Moment.NOW, Moment.NEXT_CHECKPOINT}


def test_a_mild_fault_waits_for_the_end_of_a_job_that_is_near() -> None:
    assert choose(trainer(ends_by=after(3_600)), per_hour=0.05).moment is Moment.JOB_END
    assert choose(trainer(ends_by=after(172_800)), per_hour=0.05).moment is Moment.NEXT_CHECKPOINT


def test_a_job_that_is_dead_is_moved_at_once_however_old_its_checkpoint() -> None:
    timing = choose(trainer(age_minutes=55), per_hour=math.inf)

    assert [each.moment for each in timing.options] == [Moment.NOW]
    assert timing.moment is Moment.NOW


def test_moving_now_costs_the_unsaved_work_the_restart_and_the_queue() -> None:
    timing = choose(trainer(age_minutes=30), costs=RestartCosts(restart_seconds=240, queue_seconds=60))

    assert loss(timing, Moment.NOW) == pytest.approx(8 * (1_800 + 300) / 3_600)


def test_without_room_the_longer_queue_counts() -> None:
    here, nowhere = choose(), choose(has_room=False)

    assert loss(nowhere, Moment.NOW) - loss(here, Moment.NOW) == pytest.approx(8 * (3_600 - 60) / 3_600)


def test_waiting_under_no_danger_costs_the_move_alone_if_the_checkpoint_comes() -> None:
    timing = choose(trainer(age_minutes=30), per_hour=0.0)

    assert loss(timing, Moment.JOB_END) == 0
    assert loss(timing, Moment.NEXT_CHECKPOINT) > 8 * 360 / 3_600


def test_slowness_is_paid_for_as_long_as_the_job_waits() -> None:
    even, slow = (choose(hazard=hazard(0.0, slowdown=ratio)) for ratio in (0.0, 0.1))

    assert loss(slow, Moment.JOB_END) == pytest.approx(8 * 0.1 * 172_800 / 3_600)
    assert loss(slow, Moment.NOW) == loss(even, Moment.NOW)
    assert slow.moment is Moment.NEXT_CHECKPOINT


def test_without_a_time_limit_a_job_is_taken_to_last_as_others_of_its_age() -> None:
    timing = choose(trainer(ends_by=None), hazard=hazard(0.0, slowdown=0.1))

    assert loss(timing, Moment.JOB_END) == pytest.approx(8 * 0.1 * 10 * (0.2 + 1 + 5) / 3)


def test_an_unknown_checkpoint_counts_as_the_whole_attempt_and_is_not_waited_for() -> None:
    timing = choose(trainer(age_minutes=None, checkpoint_every=None))

    assert {each.moment for each in timing.options} == {Moment.NOW, Moment.JOB_END}
    assert loss(timing, Moment.NOW) == pytest.approx(8 * (36_000 + 360) / 3_600)
    assert "at most" in next(each.why for each in timing.options if each.moment is Moment.NOW)


@pytest.mark.parametrize(("wait_minutes", "is_offered"), [(29, False), (30, True), (31, True)])
def test_a_checkpoint_is_waited_for_within_the_limit_only(wait_minutes: float, is_offered: bool) -> None:
    limits = replace(LIMITS, checkpoint_wait=timedelta(minutes=wait_minutes))

    timing = choose(trainer(age_minutes=30), limits=limits)

    assert any(each.moment is Moment.NEXT_CHECKPOINT for each in timing.options) is is_offered
    assert timing.until is None or timing.until <= NOW + limits.checkpoint_wait


def test_equals_are_decided_for_what_disturbs_least() -> None:
    assert choose(trainer(gpu_count=0), per_hour=0.0).moment is Moment.JOB_END


# -- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_hour", [0.02, math.inf])
@pytest.mark.parametrize(
    ("changes", "says"),
    [({"is_requeueable": False}, "may not be requeued"), ({"checkpointing": Checkpointing.NO}, "no checkpoints")],
)
def test_what_would_be_lost_for_good_is_never_interrupted(per_hour: float, changes: dict[str, Any], says: str) -> None:
    timing = choose(trainer(**changes), per_hour=per_hour)

    assert timing.moment is Moment.NEVER
    assert says in timing.reason


@pytest.mark.parametrize(("moved_count", "may_move"), [(2, True), (3, False), (4, False)])
def test_a_job_that_was_moved_too_often_is_left_to_its_owner(moved_count: int, may_move: bool) -> None:
    assert (choose(moved_count=moved_count).moment is not Moment.NEVER) is may_move


def test_an_interactive_session_is_given_notice_and_time_to_save() -> None:
    session = trainer(workload=Workload.INTERACTIVE, checkpointing=Checkpointing.NO)

    fresh, told = choose(session), choose(session, noticed_at=ago(600))

    assert (fresh.moment, fresh.until) == (Moment.AFTER_NOTICE, NOW + LIMITS.interactive_notice)
    assert told.until == ago(600) + LIMITS.interactive_notice
    assert choose(replace(session, is_requeueable=False)).moment is Moment.NEVER


@pytest.mark.parametrize("per_hour", [0.5, math.inf])
def test_a_replica_is_moved_only_while_the_minimum_serves(per_hour: float) -> None:
    replica = trainer(workload=Workload.INFERENCE, service="chat", checkpointing=Checkpointing.NO)

    moved, kept = (choose(replica, per_hour=per_hour, is_still_serving=serves) for serves in (True, False))

    assert moved.moment is Moment.NOW
    assert loss(moved, Moment.NOW) == pytest.approx(8 * 360 / 3_600)
    assert kept.moment is Moment.JOB_END
    assert "minimum serves no more" in kept.reason
    assert "chat" in kept.reason


# -- is it the moment -----------------------------------------------------------------------------------------------


def waiting(**changes: Any) -> JobTiming:
    return replace(choose(trainer(age_minutes=55)), **changes)


@pytest.mark.parametrize(
    ("checkpointed_at", "is_it"),
    [(ago(3_300), False), (ago(3_299), True), (NOW, True), (after(1), False), (None, False)],
)
def test_the_next_checkpoint_is_newer_than_the_known_one_and_not_of_the_future(
    checkpointed_at: datetime | None, is_it: bool
) -> None:
    running = trainer(checkpointed_at=checkpointed_at)

    assert is_moment(waiting(), running, noticed_at=None, now=NOW) is is_it


@pytest.mark.parametrize(("checkpointed_at", "is_it"), [(ago(1), False), (NOW, False), (after(1), True)])
def test_where_none_was_known_only_one_since_the_decision_counts(checkpointed_at: datetime, is_it: bool) -> None:
    running = trainer(checkpointed_at=checkpointed_at)

    assert is_moment(waiting(checkpointed_at=None), running, noticed_at=None, now=after(1)) is is_it


@pytest.mark.parametrize(("late_seconds", "is_it"), [(-1, False), (0, True), (1, True)])
def test_a_wait_for_a_checkpoint_has_an_end(late_seconds: float, is_it: bool) -> None:
    timing = waiting(until=after(60))

    assert is_moment(timing, trainer(age_minutes=55), noticed_at=None, now=after(60 + late_seconds)) is is_it


@pytest.mark.parametrize(
    ("noticed_at", "now", "is_it"),
    [
        (None, after(90_000), False),
        (NOW, after(899), False),
        (NOW, after(900), True),
        (after(300), after(1_199), False),
        (after(300), after(1_200), True),
    ],
)
def test_a_session_has_its_time_from_when_its_owner_was_told(
    noticed_at: datetime | None, now: datetime, is_it: bool
) -> None:
    session = trainer(workload=Workload.INTERACTIVE)

    assert is_moment(choose(session), session, noticed_at=noticed_at, now=now) is is_it


@pytest.mark.parametrize("moment", [Moment.JOB_END, Moment.NEVER])
@pytest.mark.parametrize("is_gone", [False, True])
def test_what_is_not_interrupted_has_no_moment(moment: Moment, is_gone: bool) -> None:
    found = None if is_gone else trainer()

    assert not is_moment(waiting(moment=moment), found, noticed_at=NOW, now=after(900_000))


def test_an_attempt_that_is_over_is_waited_for_no_longer() -> None:
    assert is_moment(waiting(), None, noticed_at=None, now=NOW)
    assert is_moment(waiting(), trainer(started_at=ago(5)), noticed_at=None, now=NOW)


# -- hazards of an incident -----------------------------------------------------------------------------------------

DEAD = hazard(math.inf, family=Family.GPU, first_action=FirstAction.REBOOT_NODE)
MILD = hazard(0.05, family=Family.GPU, first_action=FirstAction.RESET_GPU_AT_JOB_END)
HOT = hazard(0.1, family=Family.HEAT)
ANY_RESET = hazard(0.3, first_action=FirstAction.RESET_GPU)
ANY_FAULT = hazard(0.7)
TABLE = (ANY_FAULT, DEAD, MILD, HOT, ANY_RESET)


def finding(family: Family, action: FirstAction, **changes: Any) -> Finding:
    seen = Observation(signal=Signal.XID, node=NODE, observed_at=NOW, source="kernel", position="1")
    return replace(
        Finding(
            rule="rule",
            response=Response.RESET_GPU,
            node=NODE,
            gpu=GPU,
            found_at=NOW,
            is_lasting=False,
            is_driver_verdict=False,
            evidence=(seen,),
            explanation="",
            source="test",
            family=family,
            first_action=action,
        ),
        **changes,
    )


@pytest.mark.parametrize(
    ("family", "action", "expected"),
    [
        (Family.GPU, FirstAction.REBOOT_NODE, DEAD),
        (Family.HEAT, FirstAction.RESET_GPU, ANY_RESET),
        (Family.HEAT, FirstAction.REBOOT_NODE, HOT),
        (Family.DISK, FirstAction.REBOOT_NODE, ANY_FAULT),
    ],
)
def test_the_row_that_names_most_of_a_fault_is_taken(family: Family, action: FirstAction, expected: Hazard) -> None:
    assert hazard_of([finding(family, action)], TABLE) is expected


def test_the_worst_of_an_incident_counts_and_damage_does_not() -> None:
    mild = finding(Family.GPU, FirstAction.RESET_GPU_AT_JOB_END)
    dead = finding(Family.GPU, FirstAction.REBOOT_NODE, gpu=OTHER_GPU)

    assert hazard_of([mild, dead], TABLE) is DEAD
    assert hazard_of([mild, replace(dead, is_secondary=True)], TABLE) is MILD


def test_what_is_only_watched_foretells_nothing() -> None:
    watched = finding(Family.HEAT, FirstAction.MONITOR, response=Response.MONITOR)

    assert hazard_of([watched], TABLE) is ANY_FAULT
    assert hazard_of([], TABLE) is ANY_FAULT
    assert hazard_of([], ()) is UNKNOWN_HAZARD


def test_a_repetition_says_nothing_of_the_job_that_runs_now() -> None:
    often = Observation(signal=Signal.REPEATED, node=NODE, observed_at=NOW, source="history", position="1")

    assert hazard_of([finding(Family.GPU, FirstAction.REBOOT_NODE, evidence=(often,))], TABLE) is ANY_FAULT


@pytest.mark.parametrize(
    ("table_says_at", "gpu", "expected"),
    [(ago(1), GPU, MILD), (NOW, GPU, MILD), (after(1), GPU, DEAD), (ago(1), OTHER_GPU, DEAD), (ago(1), None, DEAD)],
)
def test_the_drivers_word_outranks_what_was_found_before_on_its_gpu(
    table_says_at: datetime, gpu: Any, expected: Hazard
) -> None:
    verdict = finding(Family.GPU, FirstAction.RESET_GPU_AT_JOB_END, is_driver_verdict=True)
    table = finding(Family.GPU, FirstAction.REBOOT_NODE, found_at=table_says_at, gpu=gpu)

    assert hazard_of([table, verdict], TABLE) is expected
    assert hazard_of([verdict, table], TABLE) is expected


# -- whatever is reported
# -----------------------------------------------------------------------------------------------

TIMES = st.none() | st.floats(-1e7, 1e7).map(ago)
JOBS = st.builds(
    trainer,
    job=st.just(JobId("1")),
    started_at=TIMES,
    checkpointed_at=TIMES,
    ends_by=TIMES,
    checkpoint_every=st.none() | st.timedeltas(),
    checkpointing=st.sampled_from(Checkpointing),
    workload=st.sampled_from(Workload),
    is_requeueable=st.booleans(),
    gpu_count=st.integers(-1, 100_000),
)
NUMBERS = st.floats(-1, 1e5) | st.sampled_from([math.nan, math.inf, 1e-300])


@given(
    work=JOBS,
    per_hour=NUMBERS,
    slowdown=st.floats(-1, 2) | st.just(math.nan),
    restart=st.floats(-1e3, 1e6),
    room=st.booleans(),
    serves=st.booleans(),
)
def test_a_moment_is_chosen_whatever_is_told(
    work: JobStatus, per_hour: float, slowdown: float, restart: float, room: bool, serves: bool
) -> None:
    timing = choose(
        work,
        hazard=hazard(per_hour, slowdown=slowdown),
        costs=RestartCosts(restart_seconds=restart),
        has_room=room,
        is_still_serving=serves,
    )

    costs = [each.lost_gpu_hours for each in timing.options]
    assert all(cost >= 0 for cost in costs)
    assert costs == sorted(costs)
    assert not timing.options or timing.options[0].moment is timing.moment
    assert (timing.until is not None) == (timing.moment in (Moment.NEXT_CHECKPOINT, Moment.AFTER_NOTICE))
    assert timing.until is None or timing.until >= NOW


@given(age_minutes=st.floats(0, 55), per_hour=st.floats(1e5, 1e7))
def test_waiting_under_certain_death_costs_a_move_and_that_nobody_looked(age_minutes: float, per_hour: float) -> None:
    timing = choose(trainer(age_minutes=age_minutes), per_hour=per_hour)

    assert timing.moment is Moment.NOW
    for moment in (Moment.JOB_END, Moment.NEXT_CHECKPOINT):
        assert loss(timing, moment) == pytest.approx(loss(timing, Moment.NOW) + 8 * 90 / 3_600, rel=1e-2)


@given(age_minutes=st.floats(0, 55))
def test_without_danger_or_slowness_a_job_is_left_alone(age_minutes: float) -> None:
    assert choose(trainer(age_minutes=age_minutes), per_hour=0.0).moment is Moment.JOB_END
