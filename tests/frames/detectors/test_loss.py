"""Losses that are no number any more or far above what they were; one bad batch is neither."""

import numpy as np
import pytest

from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.observe.detectors.stalls import (
    ABOVE_RATIO,
    BROKEN_SECONDS,
    LEAST_BASELINE_SAMPLES,
    SPIKE_SECONDS,
    detect_losses,
)
from ops_pipelines.observe.panels.panel import LOOKBACK_SECONDS, Detection, Panel
from tests.frames.detectors.panels import STEP_SECONDS, rows_of
from tests.frames.detectors.training import Training

ONSET = 100
BROKEN_ROWS, SPIKE_ROWS = BROKEN_SECONDS // STEP_SECONDS, SPIKE_SECONDS // STEP_SECONDS


def training(rows: int = 160) -> Training:
    return Training(rows=rows, nodes=1, gpus=1)


def losses(panel: Panel) -> list[Detection]:
    return list(detect_losses(panel))


def test_a_loss_that_is_no_number_is_the_jobs_own() -> None:
    job = training()
    job.values["loss"][ONSET:] = np.inf
    panel = job.build()

    (found,) = losses(panel)

    assert (found.signal, found.node, found.job) == (Signal.LOSS_NOT_FINITE, NO_NODE, "17")
    assert found.began_at == panel.time(ONSET)
    assert found.first_seen_at == panel.time(ONSET + BROKEN_ROWS - 1)


@pytest.mark.parametrize(("rows", "is_found"), [(BROKEN_ROWS - 1, False), (BROKEN_ROWS, True), (BROKEN_ROWS + 1, True)])
def test_one_bad_step_is_not_the_training(rows: int, is_found: bool) -> None:
    job = training()
    job.values["loss"][ONSET : ONSET + rows] = np.inf

    assert bool(losses(job.build())) is is_found


@pytest.mark.parametrize("loss", [np.inf, 8.0])
def test_a_gauge_that_keeps_one_bad_step_through_a_pause_says_nothing(loss: float) -> None:
    job = training()
    job.values["loss"][ONSET:] = loss
    job.values["steps"][ONSET:] = 0

    assert losses(job.build()) == []


def test_a_missing_sample_is_no_infinite_loss() -> None:
    job = training()
    job.values["loss"][ONSET:] = np.nan

    assert losses(job.build()) == []


def test_a_loss_far_above_what_it_was_is_a_spike() -> None:
    job = training()
    job.values["loss"][ONSET:] *= 2
    panel = job.build()

    (found,) = losses(panel)

    assert found.signal is Signal.LOSS_SPIKE
    assert found.began_at == panel.time(ONSET)
    assert found.value == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(("rows", "is_found"), [(SPIKE_ROWS - 1, False), (SPIKE_ROWS, True)])
def test_a_short_spike_passes(rows: int, is_found: bool) -> None:
    job = training()
    job.values["loss"][ONSET : ONSET + rows] *= 2

    assert bool(losses(job.build())) is is_found


@pytest.mark.parametrize(("above", "is_found"), [(ABOVE_RATIO - 0.05, False), (ABOVE_RATIO + 0.05, True)])
def test_a_small_rise_is_none(above: float, is_found: bool) -> None:
    job = training()
    job.values["loss"][ONSET:] *= 1 + above

    assert bool(losses(job.build())) is is_found


@pytest.mark.parametrize(("before", "is_found"), [(LEAST_BASELINE_SAMPLES - 1, False), (LEAST_BASELINE_SAMPLES, True)])
def test_without_enough_samples_before_nothing_is_a_spike(before: int, is_found: bool) -> None:
    job = training(rows=before + SPIKE_ROWS)
    job.values["loss"][before:] *= 2

    assert bool(losses(job.build())) is is_found


def test_a_noisy_loss_must_rise_beyond_its_noise() -> None:
    job = training()
    job.values["loss"] = job.noisy(2.0, 0.4, 1).clip(0.5)
    job.values["loss"][ONSET:] += 0.7

    assert losses(job.build()) == []


def test_a_loss_that_falls_is_well() -> None:
    job = training()
    job.values["loss"][:, 0] = 10 * np.exp(-np.arange(160) / 40) + 1.5

    assert losses(job.build()) == []


def test_another_job_on_the_nodes_has_a_loss_of_its_own() -> None:
    job = training()
    job.held_rows = (ONSET, None)
    job.values["loss"][ONSET:] *= 5

    assert losses(job.build()) == []


@pytest.mark.parametrize("row", [161, 180, 230, 290])
def test_what_is_said_of_a_time_depends_on_the_look_back_alone(row: int) -> None:
    job = training(rows=300)
    job.values["loss"][170:185] *= 3
    job.values["loss"][220:240] = np.inf
    panel = job.build()
    lookback = LOOKBACK_SECONDS // STEP_SECONDS

    def said(of: Panel, at: int) -> set[Signal]:
        return {each.signal for each in losses(of) if each.first_seen_at <= of.time(at) <= each.last_seen_at}

    assert said(rows_of(panel, 0, row + 1), row) == said(panel, row)
    assert said(rows_of(panel, row - lookback, row + 1), lookback) == said(panel, row)
