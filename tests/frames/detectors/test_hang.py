"""Hangs: found soon, blamed on the rank that differs or on nobody; and every pause that moves one thing is none."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.fault import ComponentKind
from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.observe.detectors.hang import (
    FAINT_PROVE_SECONDS,
    PROCESSES_GONE_SECONDS,
    STILL_SECONDS,
    detect_hangs,
)
from ops_pipelines.observe.panels.panel import LOOKBACK_SECONDS, Detection, Panel
from tests.frames.detectors.panels import STEP_SECONDS, rows_of
from tests.frames.detectors.training import LIVE_SIGNS, Training, beside

ONSET = 40
PAUSE = slice(ONSET, 80)
GONE_ROWS = PROCESSES_GONE_SECONDS // STEP_SECONDS


def hangs(panel: Panel) -> list[Detection]:
    return list(detect_hangs(panel))


def test_a_collective_that_never_ends_is_a_hang_of_the_job_and_of_no_node() -> None:
    panel = Training(rows=80).waits(PAUSE).build()

    (found,) = hangs(panel)

    assert (found.signal, found.node, found.gpu, found.job) == (Signal.JOB_HUNG, NO_NODE, None, "17")
    assert found.component is not None
    assert found.component.kind is ComponentKind.JOB
    assert found.began_at == panel.time(ONSET - 1)
    assert found.first_seen_at - found.began_at <= timedelta(seconds=STILL_SECONDS)
    assert found.last_seen_at == panel.time(79)
    assert "all ranks wait alike" in found.text


def test_the_rank_outside_the_collective_is_named() -> None:
    panel = Training(rows=80).waits(PAUSE).rank_is_gone(PAUSE, rank=13).build()

    (found,) = hangs(panel)

    assert (found.node, found.gpu, found.gpu_uuid) == ("n001", "0000:15:00", "GPU-0001-5")
    assert found.component is None
    assert "is not in the collective" in found.text


def test_a_node_whose_ranks_are_all_missing_is_named_even_of_two() -> None:
    training = Training(rows=80, nodes=2).waits(PAUSE)
    for rank in range(8, 16):
        training.rank_is_gone(PAUSE, rank=rank)

    (found,) = hangs(training.build())

    assert (found.node, found.gpu) == ("n001", None)


def test_of_several_nodes_that_differ_none_is_named_and_all_are_told() -> None:
    training = Training(rows=80).waits(PAUSE).rank_is_gone(PAUSE, rank=3).rank_is_gone(PAUSE, rank=20)

    (found,) = hangs(training.build())

    assert found.node == NO_NODE
    assert "n000, n002" in found.text


def test_a_gpu_that_gives_no_samples_any_more_is_named() -> None:
    training = Training(rows=80).waits(PAUSE)
    for name in ("utilisation_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "power_watts",
                 "sm_clock_hertz", "memory_used_bytes", "nvlink"):  # fmt: skip
        training.values[name][PAUSE, 9] = np.nan

    (found,) = hangs(training.build())

    assert (found.node, found.gpu) == ("n001", "0000:11:00")
    assert "no samples" in found.text


def test_a_rank_that_spins_at_other_power_than_its_peers_is_named() -> None:
    training = Training(rows=80).waits(PAUSE)
    training.values["power_watts"][PAUSE, 6] = 420

    (found,) = hangs(training.build())

    assert (found.node, found.gpu) == ("n000", "0000:16:00")


def test_a_rank_that_comes_to_differ_later_is_named_from_then_on() -> None:
    training = Training(rows=100).waits(slice(ONSET, 100)).rank_is_gone(slice(70, 100), rank=13)

    first, second = hangs(training.build())

    assert (first.node, second.node) == (NO_NODE, "n001")
    assert first.began_at == second.began_at
    assert first.last_seen_at < second.first_seen_at


@pytest.mark.parametrize("sign", LIVE_SIGNS)
@pytest.mark.parametrize("nodes", [1, 4])
def test_a_pause_in_which_one_sign_moves_is_no_hang(sign: str, nodes: int) -> None:
    panel = Training(rows=90, nodes=nodes).waits(PAUSE).lives(PAUSE, sign).build()

    assert hangs(panel) == []


@pytest.mark.parametrize("sign", LIVE_SIGNS)
def test_a_pause_whose_sign_stops_is_a_hang_from_then_on(sign: str) -> None:
    panel = Training(rows=90).waits(slice(ONSET, 90)).lives(slice(ONSET, 61), sign).build()

    (found,) = hangs(panel)

    assert panel.time(59) <= found.began_at <= panel.time(61)


@pytest.mark.parametrize(
    ("still_rows", "is_hang"),
    [(STILL_SECONDS // STEP_SECONDS - 1, False), (STILL_SECONDS // STEP_SECONDS, True), (20, True)],
)
def test_a_hang_is_said_when_all_was_still_for_so_long(still_rows: int, is_hang: bool) -> None:
    pause = slice(ONSET, ONSET + still_rows)
    training = Training(rows=90).waits(pause)
    training.values["lines"][:] = 0  # a job without lines: only rates are judged

    assert bool(hangs(training.build(measured=[name for name in training.values if name != "lines"]))) is is_hang


@pytest.mark.parametrize(("gap_rows", "is_hang"), [(5, False), (6, False), (7, True)])
def test_a_line_proves_life_for_ninety_seconds(gap_rows: int, is_hang: bool) -> None:
    end = ONSET + 8 * gap_rows
    training = Training(rows=end).waits(slice(ONSET, end))
    training.values["lines"][ONSET::gap_rows] = 1 / STEP_SECONDS

    assert bool(hangs(training.build())) is is_hang


def test_lines_alone_prove_nothing_for_ever() -> None:
    rows = ONSET + FAINT_PROVE_SECONDS // STEP_SECONDS + 4
    training = Training(rows=rows).waits(slice(ONSET, rows)).lives(slice(ONSET, rows), "log")

    (found,) = hangs(training.build())

    assert found.began_at == training.build().time(ONSET - 1)
    assert found.value is not None
    assert found.value >= FAINT_PROVE_SECONDS


def test_before_the_first_step_nothing_is_said() -> None:
    training = Training(rows=80).waits(slice(0, 80))
    training.values["cores"][:20] = 60  # compilation, then silence

    assert hangs(training.build()) == []


def test_a_job_that_holds_the_nodes_of_one_that_stepped_must_step_itself() -> None:
    panel = Training(rows=80).waits(slice(30, 80)).build()
    panel.held_by[:30] = -1

    assert hangs(panel) == []


def test_a_program_that_starts_anew_within_its_allocation_must_step_again() -> None:
    training = Training(rows=100).waits(PAUSE)
    panel = training.build()
    steps = panel.jobs.values["step_count"]
    steps[ONSET:] = 3  # resumed from an older checkpoint; no step since

    assert hangs(panel) == []


def test_a_job_that_ends_is_no_hang() -> None:
    training = Training(rows=80, held_rows=(0, ONSET)).waits(slice(ONSET, 80))

    assert hangs(training.build()) == []


@pytest.mark.parametrize("gone_rows", [GONE_ROWS - 1, GONE_ROWS, GONE_ROWS + 1])
def test_a_program_that_ended_is_waited_for(gone_rows: int) -> None:
    end = ONSET + gone_rows
    training = Training(rows=end, held_rows=(0, end)).waits(slice(ONSET, end))
    for name in ("utilisation_ratio", "sm_active_ratio", "memory_used_bytes"):
        training.values[name][ONSET:] = 0

    assert bool(hangs(training.build())) is (gone_rows >= GONE_ROWS)


@pytest.mark.parametrize(
    ("utilisation", "traffic", "ranks", "is_hang"),
    [
        (1.0, 1.8e11, 8, True),
        (1.0, 0.0, 8, True),
        (0.0, 1.8e11, 8, True),
        (0.0, 0.0, 8, False),
        (0.0, 1.8e11, 1, False),
    ],
)
def test_without_a_step_counter_ranks_that_spin_hang_and_others_if_they_worked_together(
    utilisation: float, traffic: float, ranks: int, is_hang: bool
) -> None:
    training = Training(rows=80, nodes=1, gpus=ranks).waits(PAUSE)
    training.values["utilisation_ratio"][PAUSE] = utilisation
    training.values["nvlink"][:ONSET] = traffic
    training.values["fabric"][:] = 0
    measured = [name for name in training.values if name not in {"steps", "lines", "step_seconds", "loss"}]

    assert bool(hangs(training.build(measured=measured))) is is_hang


def test_without_a_step_counter_five_minutes_of_work_must_have_been_seen() -> None:
    def found(worked_rows: int) -> bool:
        training = Training(rows=worked_rows + 20).waits(slice(worked_rows, None))
        return bool(
            hangs(training.build(measured=[name for name in training.values if name not in {"steps", "lines"}]))
        )

    assert [found(19), found(20), found(21)] == [False, True, True]


@pytest.mark.parametrize(
    ("measured", "is_hang"),
    [
        (["utilisation_ratio"], False),
        (["utilisation_ratio", "steps"], False),
        (["utilisation_ratio", "tensor_active_ratio"], False),
        (["utilisation_ratio", "tensor_active_ratio", "steps"], True),
        (["utilisation_ratio", "power_watts", "steps"], True),
        (["steps", "lines"], False),
        ([], False),
    ],
)
def test_fewer_than_two_kinds_of_signs_say_nothing(measured: list[str], is_hang: bool) -> None:
    panel = Training(rows=80).waits(PAUSE).build(measured=measured)

    assert bool(hangs(panel)) is is_hang


@pytest.mark.parametrize("blind", ["cores", "fabric", "lines", "tensor_active_ratio"])
def test_a_sign_that_nobody_reads_any_more_forbids_the_verdict(blind: str) -> None:
    training = Training(rows=80).waits(PAUSE)
    training.values[blind][ONSET - 2 :] = np.nan
    if blind == "tensor_active_ratio":
        training.values["dram_active_ratio"][ONSET - 2 :] = np.nan

    assert hangs(training.build()) == []


def test_one_silent_node_of_many_does_not_blind_us() -> None:
    training = Training(rows=80).waits(PAUSE)
    for name in ("cores", "fabric", "read", "written"):
        training.values[name][ONSET - 2 :, 3] = np.nan

    assert len(hangs(training.build())) == 1


def test_a_missed_scrape_does_not_hide_a_hang() -> None:
    training = Training(rows=80, nodes=1).waits(PAUSE)
    panel = training.build()
    for layer in (panel.gpus, panel.nodes):
        for matrix in layer.values.values():
            matrix[ONSET + 3] = np.nan

    (found,) = hangs(panel)

    assert found.first_seen_at <= panel.time(ONSET + 7)


def test_two_jobs_share_nothing() -> None:
    hung = Training(rows=80).waits(PAUSE).rank_is_gone(PAUSE, rank=13).build()
    well = Training(rows=80, seed=1).build()

    (found,) = hangs(beside(well, hung))

    assert (found.job, found.node) == ("17b", "n001b")


def test_a_hang_longer_than_the_look_back_is_still_said() -> None:
    rows = ONSET + 2 * LOOKBACK_SECONDS // STEP_SECONDS
    panel = Training(rows=rows, nodes=1).waits(slice(ONSET, rows)).build()

    (found,) = hangs(panel)

    assert found.last_seen_at == panel.time(rows - 1)


def said_at(panel: Panel, row: int) -> set[tuple[str, str | None, str | None]]:
    at = panel.time(row)
    return {(each.node, each.gpu, each.job) for each in hangs(panel) if each.first_seen_at <= at <= each.last_seen_at}


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_said_of_a_time_depends_on_the_look_back_alone(data: st.DataObject) -> None:
    lookback = LOOKBACK_SECONDS // STEP_SECONDS
    rows = lookback + 120
    begin = data.draw(st.integers(10, rows - 10))
    length = data.draw(st.integers(1, rows))
    training = Training(rows=rows, nodes=2, gpus=2, seed=data.draw(st.integers(0, 9))).waits(
        slice(begin, begin + length)
    )
    if data.draw(st.booleans()):
        training.rank_is_gone(slice(begin, begin + length), rank=1)
    sign = data.draw(st.sampled_from([None, *LIVE_SIGNS]))
    if sign is not None:
        training.lives(slice(begin, begin + length // 2), sign)
    panel = training.build()
    row = data.draw(st.integers(lookback, rows - 1))

    whole = said_at(panel, row)

    assert said_at(rows_of(panel, 0, row + 1), row) == whole
    assert said_at(rows_of(panel, row - lookback, row + 1), lookback) == whole
