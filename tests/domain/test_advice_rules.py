"""Each rule speaks at its threshold, is silent beside it, and is silenced by the evidence against it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.core.observation import Workload
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.efficiency.advice import Advice, AdviceKind, Confidence, NodeFailures, Saves
from ops_pipelines.efficiency.advice_on_holding import judge_gpu_type, judge_idle, judge_memory, judge_wall_time
from ops_pipelines.efficiency.advice_on_running import (
    FileGroup,
    best_interval_hours,
    judge_batch,
    judge_communication,
    judge_files,
    judge_input,
    judge_interval,
    judge_saving,
    judge_straggler,
    lost_ratio,
)
from ops_pipelines.teams.desk import AdviceSettings
from tests.domain.advice_facts import FAILURES, GIB, SINCE, UNTIL, attempt, outcome, used, work

SETTINGS = AdviceSettings()
SERVICE = frozenset({Workload.INFERENCE})
H100, L40S = GpuType("h100"), GpuType("l40s")


# -- idle allocation --


@pytest.mark.parametrize(
    ("hours", "said"),
    [(1.99, "it was idle for 1.99 h on end at most"), (2.0, "said"), (2.01, "said")],
)
def test_gpus_are_told_as_idle_from_two_hours_on_end(hours: float, said: str) -> None:
    assert outcome(judge_idle(work(idle_gpu_hours=100.0, longest_idle_hours=hours), SETTINGS)) == said


@pytest.mark.parametrize(("gain", "is_said"), [(7.99, False), (8.0, True), (8.01, True)])
def test_nothing_is_said_below_the_least_gain(gain: float, is_said: bool) -> None:
    found = judge_idle(work(idle_gpu_hours=gain, longest_idle_hours=5.0), SETTINGS)

    assert isinstance(found, Advice) is is_said


def test_the_gain_of_idle_gpus_is_what_was_idle() -> None:
    found = judge_idle(work(idle_gpu_hours=100.0, longest_idle_hours=5.0), SETTINGS)

    assert isinstance(found, Advice)
    assert (found.gain.low_gpu_hours, found.gain.expected_gpu_hours, found.measure) == (100.0, 100.0, 0.25)
    assert found.confidence is Confidence.HIGH


def test_of_half_idle_nodes_half_is_gained_and_fewer_gpus_are_advised() -> None:
    found = judge_idle(work(half_idle_gpu_hours=100.0, longest_idle_hours=5.0), SETTINGS)

    assert isinstance(found, Advice)
    assert (found.gain.low_gpu_hours, found.gain.expected_gpu_hours) == (0.0, 50.0)
    assert "as many GPUs as the program uses" in found.what_to_do


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"workloads": SERVICE}, "service"),
        ({"is_interactive": True}, "interactive"),
        ({"idle_gpu_hours": 0.0, "early_idle_gpu_hours": 50.0}, "younger than 15 minutes"),
    ],
)
def test_services_sessions_and_young_jobs_are_not_told_as_idle(changes: dict[str, object], why: str) -> None:
    idle = work(**{"idle_gpu_hours": 100.0, "longest_idle_hours": 5.0, **changes})

    assert why in outcome(judge_idle(idle, SETTINGS))


def test_jobs_that_were_never_idle_are_not_spoken_of() -> None:
    assert judge_idle(work(), SETTINGS) is None


# -- type of GPU --

LIGHT = AdviceSettings(lesser_types={H100: L40S})


def light(**changes: object) -> object:
    facts: dict[str, object] = {
        "gpu_type": H100,
        "device_memory_bytes": 80e9,
        "most_memory_used_ratio": 0.125,
        "mean_utilisation_ratio": 0.2,
        "gpu_counts": frozenset({1}),
    }
    return judge_gpu_type(work(**{**facts, **changes}), LIGHT)


@pytest.mark.parametrize(("busy", "is_said"), [(0.19, True), (0.2, True), (0.21, False)])
def test_a_lesser_type_is_advised_for_what_is_little_busy(busy: float, is_said: bool) -> None:
    assert isinstance(light(mean_utilisation_ratio=busy), Advice) is is_said


@pytest.mark.parametrize(("memory", "is_said"), [(0.124, True), (0.125, True), (0.126, False)])
def test_a_lesser_type_is_advised_for_what_needs_little_memory(memory: float, is_said: bool) -> None:
    assert isinstance(light(most_memory_used_ratio=memory), Advice) is is_said


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_counts": frozenset({1, 2})},
        {"gpu_type": L40S},
        {"gpu_type": GpuType("")},
        {"device_memory_bytes": None},
        {"mean_utilisation_ratio": None},
        {"workloads": SERVICE},
        {"is_interactive": True},
        {"idle_gpu_hours": 200.0},
        {"seen_gpu_hours": 199.0},
    ],
)
def test_no_lesser_type_is_advised_where_it_would_not_help_or_is_not_known(changes: dict[str, object]) -> None:
    assert not isinstance(light(**changes), Advice)


def test_without_lesser_types_nothing_is_said_of_types() -> None:
    assert judge_gpu_type(work(gpu_type=H100, mean_utilisation_ratio=0.0), SETTINGS) is None


# -- input --


@pytest.mark.parametrize(("hours", "said"), [(99.9, "nothing"), (100.0, "said"), (100.1, "said")])
def test_waiting_for_input_is_told_from_a_quarter_of_the_time(hours: float, said: str) -> None:
    assert outcome(judge_input(work(uses=used("input_stalled", hours, utilisation_ratio=0.5)), SETTINGS)) == said


def test_of_time_spent_waiting_for_input_the_part_without_kernels_is_gained() -> None:
    found = judge_input(work(uses=used("input_stalled", 200.0, utilisation_ratio=0.4)), SETTINGS)

    assert isinstance(found, Advice)
    assert found.gain.expected_gpu_hours == pytest.approx(120.0)
    assert found.gain.low_gpu_hours == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"workloads": SERVICE}, "service"),
        ({"is_interactive": True}, "interactive"),
        ({"uses": {}, "early_gpu_hours": {"input_stalled": 50.0}}, "first hour alone"),
        ({"seen_gpu_hours": 199.0}, "only 50% of what they held was measured"),
    ],
)
def test_warm_up_services_and_what_was_not_measured_are_no_input_stall(changes: dict[str, object], why: str) -> None:
    stalled = work(**{"uses": used("input_stalled", 180.0, utilisation_ratio=0.4), **changes})

    assert why in outcome(judge_input(stalled, SETTINGS))


@pytest.mark.parametrize(("seen", "is_said"), [(199.0, False), (200.0, True), (201.0, True)])
def test_half_of_what_was_held_must_have_been_measured(seen: float, is_said: bool) -> None:
    found = judge_input(work(uses=used("input_stalled", 150.0, utilisation_ratio=0.4), seen_gpu_hours=seen), SETTINGS)

    assert isinstance(found, Advice) is is_said


# -- communication --


@pytest.mark.parametrize(("hours", "said"), [(199.9, "nothing"), (200.0, "said"), (200.1, "said")])
def test_waiting_for_links_is_told_from_half_of_the_time(hours: float, said: str) -> None:
    assert outcome(judge_communication(work(uses=used("communication_bound", hours)), SETTINGS)) == said


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hung_gpu_hours": 151.0}, "an incident"),
        ({"straggler_gpu_hours": {"straggler_lags": 1.0}}, "one rank lagged"),
        ({"workloads": SERVICE}, "service"),
    ],
)
def test_hangs_and_stragglers_are_no_communication_bound_work(changes: dict[str, object], why: str) -> None:
    bound = work(**{"uses": used("communication_bound", 300.0), **changes})

    assert why in outcome(judge_communication(bound, SETTINGS))


# -- batch --


@pytest.mark.parametrize(("hours", "said"), [(199.9, "nothing"), (200.0, "said"), (200.1, "said")])
def test_small_kernels_are_told_from_half_of_the_time(hours: float, said: str) -> None:
    small = work(uses=used("small_kernels", hours, sm_active_ratio=0.2, memory_used_ratio=0.3))

    assert outcome(judge_batch(small, SETTINGS)) == said


@pytest.mark.parametrize(("memory", "is_said"), [(0.49, True), (0.5, True), (0.51, False)])
def test_no_larger_batch_is_advised_where_memory_is_in_use(memory: float, is_said: bool) -> None:
    small = work(uses=used("small_kernels", 300.0, sm_active_ratio=0.2, memory_used_ratio=memory))

    assert isinstance(judge_batch(small, SETTINGS), Advice) is is_said


def test_a_service_with_small_kernels_answers_quickly_and_is_left_alone() -> None:
    small = work(uses=used("small_kernels", 300.0, sm_active_ratio=0.2), workloads=SERVICE)

    assert "service" in outcome(judge_batch(small, SETTINGS))


# -- stragglers --


def lagging(hours: float, *, rule: str = "straggler_lags", gpus: int = 3) -> object:
    seen = frozenset(f"n1/GPU-{number}" for number in range(gpus))
    return judge_straggler(
        work(held_gpu_hours=1_000.0, seen_gpu_hours=1_000.0, straggler_gpu_hours={rule: hours}, straggler_gpus=seen),
        SETTINGS,
    )


@pytest.mark.parametrize(("hours", "is_said"), [(99.9, False), (100.0, True), (100.1, True)])
def test_a_lagging_rank_is_told_from_a_tenth_of_the_time(hours: float, is_said: bool) -> None:
    assert isinstance(lagging(hours), Advice) is is_said


@pytest.mark.parametrize("rule", ["straggler_slow_clock", "straggler_stuck", "straggler_holds_up"])
def test_a_part_that_is_slow_is_health_and_no_advice(rule: str) -> None:
    assert "that is health" in outcome(lagging(500.0, rule=rule))  # type: ignore[arg-type]  # a finding


@pytest.mark.parametrize(("gpus", "is_said"), [(1, False), (2, True), (3, True)])
def test_one_gpu_that_always_lags_is_the_part_and_not_the_program(gpus: int, is_said: bool) -> None:
    assert isinstance(lagging(500.0, gpus=gpus), Advice) is is_said


# -- host memory --


def with_memory(used_gib: float, *, count: int = 5, **changes: object) -> object:
    one = attempt(
        gpu_count=1, elapsed_hours=10.0, asked_memory_bytes=800.0 * GIB, used_memory_bytes=used_gib * GIB, **changes
    )
    return judge_memory(work(attempts=(one,) * count, host_memory_bytes_per_gpu=100.0 * GIB), SETTINGS)


@pytest.mark.parametrize(("used_gib", "is_said"), [(399.0, True), (400.0, True), (401.0, False)])
def test_memory_is_told_from_half_unneeded_on(used_gib: float, is_said: bool) -> None:
    assert isinstance(with_memory(used_gib), Advice) is is_said


@pytest.mark.parametrize(("count", "is_said"), [(4, False), (5, True), (6, True)])
def test_memory_is_judged_by_five_attempts(count: int, is_said: bool) -> None:
    assert isinstance(with_memory(50.0, count=count), Advice) is is_said


def test_the_gain_of_memory_is_the_gpus_that_it_blocked() -> None:
    found = with_memory(50.0)

    assert isinstance(found, Advice)
    assert found.gain.expected_gpu_hours == pytest.approx(
        5 * 7 * 10.0
    )  # 700 GiB beyond its share: 7 GPUs, 10 h, 5 times
    assert "60.0 GiB" in found.what_to_do


def test_one_attempt_that_ran_out_of_memory_silences_the_advice() -> None:
    assert "ran out of memory" in outcome(with_memory(50.0, state="OUT_OF_MEMORY"))  # type: ignore[arg-type]  # a finding


def test_memory_that_blocks_no_gpu_is_not_spoken_of() -> None:
    one = attempt(gpu_count=8, asked_memory_bytes=800.0 * GIB, used_memory_bytes=10.0 * GIB)
    found = judge_memory(work(attempts=(one,) * 5, host_memory_bytes_per_gpu=100.0 * GIB), SETTINGS)

    assert "too little to say" in outcome(found)


# -- time limits --


def limited(limit: float, *, count: int = 5, **changes: object) -> object:
    return judge_wall_time(work(attempts=(attempt(limit_hours=limit, waited_hours=5.0, **changes),) * count), SETTINGS)


@pytest.mark.parametrize(("limit", "is_said"), [(7.99, False), (8.0, True), (8.01, True)])
def test_a_time_limit_is_told_from_four_times_the_longest_attempt(limit: float, is_said: bool) -> None:
    assert isinstance(limited(limit), Advice) is is_said


@pytest.mark.parametrize(("count", "is_said"), [(4, False), (5, True), (6, True)])
def test_a_time_limit_is_judged_by_five_attempts(count: int, is_said: bool) -> None:
    assert isinstance(limited(48.0, count=count), Advice) is is_said


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"restart_count": 1}, "requeued"),
        ({"state": "NODE_FAIL"}, "requeued"),
        ({"state": "TIMEOUT"}, "ran into its limit"),
        ({"state": "FAILED"}, "ended well"),
    ],
)
def test_requeued_and_failed_attempts_say_nothing_of_the_time_needed(changes: dict[str, object], why: str) -> None:
    assert why in outcome(limited(48.0, **changes))  # type: ignore[arg-type]  # a finding


def test_jobs_that_did_not_wait_gain_nothing_by_a_shorter_limit() -> None:
    found = judge_wall_time(work(attempts=(attempt(limit_hours=48.0, waited_hours=0.0),) * 9), SETTINGS)

    assert "too little to say" in outcome(found)


# -- checkpoints --


def unsaved(**changes: object) -> object:
    saves = replace(
        Saves(has_lines=True, is_training=True, node_count=4, longest_hours=100.0),
        **changes,  # type: ignore[arg-type]  # names and types are those of Saves
    )
    return judge_saving(work(saves=saves, held_gpu_hours=3_200.0), SETTINGS, FAILURES)


@pytest.mark.parametrize(("hours", "said"), [(11.9, "nothing"), (12.0, "said"), (12.1, "said")])
def test_a_training_is_told_to_save_from_twelve_hours_on(hours: float, said: str) -> None:
    assert outcome(unsaved(longest_hours=hours)) == said  # type: ignore[arg-type]  # a finding


def test_the_gain_of_saving_is_half_an_attempt_for_each_failure() -> None:
    found = unsaved()

    assert isinstance(found, Advice)
    assert found.gain.expected_gpu_hours == pytest.approx(3_200 * 100 / (2 * 250))  # one failure in 250 h on 4 nodes


@pytest.mark.parametrize("changes", [{"save_count": 1}, {"has_lines": False}, {"is_training": False}])
def test_nothing_is_said_of_saving_where_it_is_seen_or_no_training_is(changes: dict[str, object]) -> None:
    assert unsaved(**changes) is None


@pytest.mark.parametrize(("count", "is_said"), [(2, False), (3, True), (4, True)])
def test_three_failures_are_needed_to_say_how_often_one_comes(count: int, is_said: bool) -> None:
    saves = Saves(has_lines=True, is_training=True, node_count=4, longest_hours=100.0)
    failures = NodeFailures(failure_count=count, node_hours=1_000.0 * count)

    found = judge_saving(work(saves=saves, held_gpu_hours=3_200.0), SETTINGS, failures)

    assert isinstance(found, Advice) is is_said


def test_the_best_interval_is_youngs() -> None:
    assert best_interval_hours(save_hours=0.1, between_failures_hours=20.0) == pytest.approx(2.0)
    best = lost_ratio(interval_hours=2.0, save_hours=0.1, between_failures_hours=20.0)
    assert best < lost_ratio(interval_hours=1.9, save_hours=0.1, between_failures_hours=20.0)
    assert best < lost_ratio(interval_hours=2.1, save_hours=0.1, between_failures_hours=20.0)


def saving_every(hours: float, *, count: int = 8, is_asynchronous: bool = False) -> object:
    # 50 nodes: one failure in 20 h; a save of 6 minutes: best every 2 h
    saves = Saves(
        has_lines=True,
        is_training=True,
        save_count=count + 1,
        intervals_hours=(hours,) * count,
        save_seconds=(360.0,) * count,
        node_count=50,
        longest_hours=60.0,
        is_asynchronous=is_asynchronous,
    )
    return judge_interval(work(saves=saves, held_gpu_hours=20_000.0), SETTINGS, FAILURES)


@pytest.mark.parametrize(
    ("hours", "is_said"), [(0.99, True), (1.0, True), (1.01, False), (3.99, False), (4.0, True), (4.01, True)]
)
def test_an_interval_is_told_from_half_or_double_the_best_on(hours: float, is_said: bool) -> None:
    assert isinstance(saving_every(hours), Advice) is is_said


def test_too_seldom_and_too_often_are_told_apart() -> None:
    seldom, often = saving_every(10.0), saving_every(0.2)

    assert isinstance(seldom, Advice)
    assert isinstance(often, Advice)
    assert seldom.what_to_do == "save every 2.0 h: more often than now"
    assert often.what_to_do == "save every 2.0 h: less often than now"


def test_saves_beside_the_training_are_never_too_many_but_may_be_too_few() -> None:
    assert "cost next to nothing" in outcome(saving_every(0.2, is_asynchronous=True))  # type: ignore[arg-type]  # a finding
    assert isinstance(saving_every(10.0, is_asynchronous=True), Advice)


@pytest.mark.parametrize(("count", "is_said"), [(3, False), (4, True), (5, True)])
def test_an_interval_is_judged_by_four_times_between_saves(count: int, is_said: bool) -> None:
    assert isinstance(saving_every(10.0, count=count), Advice) is is_said


# -- storage --


def files(**changes: object) -> FileGroup:
    made = FileGroup(
        team=TeamName("vision"),
        path="/data/imagenet",
        is_checkpoints=False,
        size_bytes=20 * 2**40,
        count=10,
        old_size_bytes=20 * 2**40,
        old_count=10,
        last_used_at=SINCE - timedelta(days=400),
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # names and types are those of FileGroup


@pytest.mark.parametrize(("tib", "is_said"), [(9.99, False), (10.0, True), (10.01, True)])
def test_unread_files_are_told_from_ten_tebibytes_on(tib: float, is_said: bool) -> None:
    found = judge_files(files(old_size_bytes=round(tib * 2**40)), SETTINGS, since=SINCE, until=UNTIL)

    assert isinstance(found, Advice) is is_said


def test_files_are_advised_upon_and_never_deleted() -> None:
    found = judge_files(files(), SETTINGS, since=SINCE, until=UNTIL)

    assert isinstance(found, Advice)
    assert found.kind is AdviceKind.UNUSED_DATASETS
    assert "yourself" in found.what_to_do
    assert found.gain.expected_gpu_hours == 0.0


def test_a_data_set_of_which_one_file_was_read_is_in_use() -> None:
    found = judge_files(files(old_count=9), SETTINGS, since=SINCE, until=UNTIL)

    assert outcome(found) == "a part of it was used"


def test_old_checkpoints_beside_new_ones_are_told() -> None:
    found = judge_files(files(old_count=9, is_checkpoints=True), SETTINGS, since=SINCE, until=UNTIL)

    assert isinstance(found, Advice)
    assert found.kind is AdviceKind.STALE_CHECKPOINTS


def test_files_whose_last_read_nobody_knows_are_not_called_unused() -> None:
    found = judge_files(files(unknown_count=1), SETTINGS, since=SINCE, until=UNTIL)

    assert "nobody knows when they were last read" in outcome(found)
