"""Stragglers: named with the evidence; patterns, pauses and GPUs that heat slows are none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.detectors.stragglers import CLOCK_BELOW_RATIO, detect_stragglers
from ops_pipelines.observe.panels.panel import LOOKBACK_SECONDS, Detection, Panel
from tests.frames.detectors.panels import STEP_SECONDS, rows_of
from tests.frames.detectors.training import Training

ONSET = 100
ROWS = 180


def slow(training: Training, ranks: list[int], *, rows: slice, by: float) -> Training:
    """Let ranks run at a lower clock: their kernels and so all steps take longer, the others wait spinning."""
    longer = 1 / (1 - by)
    others = [rank for rank in range(training.nodes * training.gpus) if rank not in ranks]
    training.values["sm_clock_hertz"][rows, ranks] *= 1 - by
    training.values["power_watts"][rows, ranks] *= 1 - 0.6 * by
    training.values["tensor_active_ratio"][rows, others] /= longer
    training.values["power_watts"][rows, others] *= 1 - 0.2 * by
    training.values["step_seconds"][rows] *= longer
    training.values["steps"][rows] /= longer
    return training


def stragglers(panel: Panel) -> list[Detection]:
    return list(detect_stragglers(panel))


def test_one_slow_gpu_is_named_with_its_evidence() -> None:
    onset = ONSET + 60  # the job's usual step is known by then
    panel = slow(Training(rows=ROWS + 60), [13], rows=slice(onset, None), by=0.25).build()

    (found,) = stragglers(panel)

    assert (found.signal, found.node, found.gpu, found.job) == (Signal.GPU_SLOW, "n001", "0000:15:00", "17")
    assert panel.time(onset) <= found.first_seen_at <= panel.time(onset + 24)
    for words in ("clock is", "peers wait", "step takes longer"):
        assert words in found.text


@pytest.mark.parametrize(
    ("by", "is_named"), [(CLOCK_BELOW_RATIO - 0.03, False), (CLOCK_BELOW_RATIO + 0.02, True), (0.4, True)]
)
def test_clocks_differ_a_little_in_every_cluster(by: float, is_named: bool) -> None:
    panel = slow(Training(rows=ROWS), [13], rows=slice(None), by=by).build()

    assert bool(stragglers(panel)) is is_named


def test_a_healthy_job_has_none() -> None:
    for seed in range(5):
        assert stragglers(Training(rows=ROWS, seed=seed).build()) == []


def test_a_node_whose_gpus_are_all_slow_is_named_as_a_node() -> None:
    panel = slow(Training(rows=ROWS), list(range(8, 16)), rows=slice(ONSET, None), by=0.25).build()

    (found,) = stragglers(panel)

    assert (found.node, found.gpu) == ("n001", None)


def test_two_slow_gpus_of_two_nodes_are_two_stragglers() -> None:
    panel = slow(Training(rows=ROWS), [3, 20], rows=slice(ONSET, None), by=0.25).build()

    assert [(found.node, found.gpu) for found in stragglers(panel)] == [("n000", "0000:13:00"), ("n002", "0000:14:00")]


@pytest.mark.parametrize("ranks", [[0, 8, 16, 24], list(range(16)), [7, 15, 23]])
def test_several_ranks_in_a_pattern_are_how_the_work_is_split(ranks: list[int]) -> None:
    training = Training(rows=ROWS)
    training.values["tensor_active_ratio"][:, ranks] *= 1.3
    training.values["sm_clock_hertz"][:, ranks] *= 0.85

    assert stragglers(training.build()) == []


def test_one_rank_that_was_apart_from_the_start_is_no_straggler() -> None:
    training = Training(rows=ROWS)
    training.values["tensor_active_ratio"][:, 31] *= 1.4

    assert stragglers(training.build()) == []


def test_a_rank_that_is_fed_late_is_named_once_the_step_grows_longer() -> None:
    training = Training(rows=ROWS + 60)
    training.values["tensor_active_ratio"][ONSET + 60 :, 5] *= 0.6
    training.values["step_seconds"][ONSET + 60 :] *= 1.5

    found = stragglers(training.build())

    assert {(each.node, each.gpu) for each in found} == {("n000", "0000:15:00")}
    assert "without work" in found[0].text


def test_beside_a_rank_with_a_low_clock_nobody_else_is_suspected() -> None:
    onset = ONSET + 60
    training = slow(Training(rows=ROWS + 80), [13], rows=slice(onset, None), by=0.25)
    training.values["tensor_active_ratio"][onset:, 29] *= 1.1

    assert {each.gpu for each in stragglers(training.build())} == {"0000:15:00"}


def test_a_rank_apart_while_the_step_stays_as_it_was_is_none() -> None:
    training = Training(rows=ROWS + 60)
    training.values["tensor_active_ratio"][ONSET + 60 :, 5] *= 0.6

    assert stragglers(training.build()) == []


def test_an_evaluation_on_one_rank_is_no_straggler() -> None:
    pause = slice(ONSET, ONSET + 40)
    training = Training(rows=ROWS).waits(pause).lives(pause, "gpu")
    training.values["sm_clock_hertz"][pause, 0] *= 0.8

    assert stragglers(training.build()) == []


@pytest.mark.parametrize("reason", [0x8, 0x20, 0x40, 0x80])
def test_who_says_that_heat_or_a_brake_slows_it_is_left_to_others(reason: int) -> None:
    panel = slow(Training(rows=ROWS), [13], rows=slice(ONSET, None), by=0.25).build()
    reasons = np.zeros((ROWS, 32))
    reasons[ONSET:, 13] = reason
    panel.gpus.values["clock_event_reasons"] = reasons  # type: ignore[index]  # a dict here

    assert stragglers(panel) == []


@pytest.mark.parametrize("nodes_and_gpus", [(1, 8), (1, 4), (4, 1)])
def test_small_jobs_have_peers_too(nodes_and_gpus: tuple[int, int]) -> None:
    nodes, gpus = nodes_and_gpus
    panel = slow(Training(rows=ROWS, nodes=nodes, gpus=gpus), [2], rows=slice(ONSET, None), by=0.25).build()

    assert len(stragglers(panel)) == 1


def test_three_gpus_are_too_few_to_tell_who_differs() -> None:
    panel = slow(Training(rows=ROWS, nodes=1, gpus=3), [2], rows=slice(ONSET, None), by=0.25).build()

    assert stragglers(panel) == []


@pytest.mark.parametrize("missing", ["sm_clock_hertz", "power_watts", "step_seconds", "sm_active_ratio"])
def test_it_is_named_without_any_one_of_the_quantities_or_not_at_all(missing: str) -> None:
    training = slow(Training(rows=ROWS + 60), [13], rows=slice(ONSET + 60, None), by=0.25)
    training.values[missing][:] = np.nan

    assert {found.gpu for found in stragglers(training.build())} == {"0000:15:00"}


def test_without_activity_nothing_is_said() -> None:
    training = slow(Training(rows=ROWS), [13], rows=slice(ONSET, None), by=0.25)
    training.values["tensor_active_ratio"][:] = np.nan

    assert stragglers(training.build()) == []


def said_at(panel: Panel, row: int) -> set[tuple[str, str | None]]:
    at = panel.time(row)
    return {(each.node, each.gpu) for each in stragglers(panel) if each.first_seen_at <= at <= each.last_seen_at}


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_what_is_said_of_a_time_depends_on_the_look_back_alone(data: st.DataObject) -> None:
    lookback = LOOKBACK_SECONDS // STEP_SECONDS
    rows = lookback + 100
    begin = data.draw(st.integers(0, rows - 1))
    training = Training(rows=rows, nodes=2, gpus=4, seed=data.draw(st.integers(0, 9)))
    slow(training, [data.draw(st.integers(0, 7))], rows=slice(begin, None), by=data.draw(st.sampled_from([0.15, 0.3])))
    panel = training.build()
    # Judged at whole minutes: just after one, what is reported is still of that one.
    row = data.draw(st.integers(lookback, rows - 1).filter(lambda row: panel.times[row] % 60 < STEP_SECONDS))

    whole = said_at(panel, row)

    assert said_at(rows_of(panel, 0, row + 1), row) == whole
    assert said_at(rows_of(panel, row - lookback, row + 1), lookback) == whole
