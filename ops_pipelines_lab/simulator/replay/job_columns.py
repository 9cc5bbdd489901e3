"""What the jobs of a recorded day say of themselves: steps, loss, step time, lines. One column a job.

Steps follow exactly from when an attempt could make them; what kept it from it is in the attempt.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ops_pipelines_lab.simulator.replay.day import Canvas
from ops_pipelines_lab.simulator.replay.jobs import Attempt, line_times


def render_jobs(
    rng: Generator,
    canvas: Canvas,
    attempts: Sequence[Attempt],
    columns: Mapping[str, int],
    times: NDArray[np.int64],
) -> dict[str, NDArray[np.float32]]:
    """Return the matrices of the layer of jobs."""
    names = ("step_count", "loss", "step_seconds", "line_count")
    out = {name: np.full((len(times), len(columns)), np.nan, dtype=np.float32) for name in names}
    for attempt in attempts:
        first, end = canvas.row(attempt.started), canvas.row(attempt.end)
        if first >= end:
            continue
        rows, column, style = slice(first, end), columns[attempt.job], attempt.program.style
        seconds = (np.arange(first, end) * canvas.step_seconds).astype(np.float64)
        marks, work = progress(attempt)
        worked = np.interp(seconds, marks, work)
        if attempt.is_training and style.counts_steps:
            begun = max(0.0, -attempt.first_step) / style.step_seconds
            steps = np.floor(worked / style.step_seconds + begun)
            out["step_count"][rows, column] = steps
            done = steps >= 1
            out["loss"][rows, column] = np.where(done, _loss(rng, attempt, steps, seconds), np.nan)
            out["step_seconds"][rows, column] = np.where(done, _step_seconds(rng, attempt, seconds), np.nan)
        if style.logs:
            out["line_count"][rows, column] = _lines(rng, attempt, seconds, worked)
    return out


def progress(attempt: Attempt) -> tuple[list[float], list[float]]:
    """Return marks in time, and how many seconds of undisturbed work were done by each."""
    end = attempt.end
    begin = min(max(attempt.first_step, 0.0), end)
    stops = [(rest.began, rest.ended) for rest in attempt.rests if rest.ended > begin]
    stops += [(freeze.began, freeze.ended) for freeze in attempt.freezes]
    edges = {begin, end}
    for began, ended in stops + [(began, ended) for began, ended, _ in attempt.slowdowns]:
        edges |= {min(max(began, begin), end), min(max(ended, begin), end)}
    marks = sorted(edges)
    work = [0.0]
    for left, right in pairwise(marks):
        middle = (left + right) / 2
        pace = 0.0 if any(began <= middle < ended for began, ended in stops) else 1.0
        for began, ended, factor in attempt.slowdowns:
            if began <= middle < ended:
                pace *= factor
        work.append(work[-1] + pace * (right - left))
    return marks, work


def _step_seconds(rng: Generator, attempt: Attempt, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    style = attempt.program.style
    spread = 0.05 if style.is_uneven else 0.015
    lengths = style.step_seconds * (1 + spread * np.abs(rng.standard_normal(len(seconds))))
    for began, ended, factor in attempt.slowdowns:
        lengths[(seconds >= began) & (seconds < ended)] /= factor
    return lengths


def _loss(
    rng: Generator, attempt: Attempt, steps: NDArray[np.float64], seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return a falling curve with noise; small spikes pass within minutes, as in BLOOM's and OPT's logs."""
    floor, height = float(rng.uniform(1.4, 2.6)), float(rng.uniform(0.3, 6))
    loss = floor + height * np.exp(-steps / float(rng.uniform(800, 9000)))
    loss *= 1 + 0.008 * rng.standard_normal(len(steps))
    for _ in range(int(rng.poisson(len(steps) / 1500))):
        start = int(rng.integers(len(steps)))
        length = int(rng.integers(4, 30))
        bump = loss[start : start + length]
        bump *= 1 + float(rng.uniform(0.05, 0.3)) * np.exp(-np.arange(len(bump)) / 6)
    for began, how in attempt.loss_breaks:
        late = seconds >= began
        if how == "nan":
            loss[late] = np.inf  # what is no number where it was written; NaN is no sample
        else:
            loss[late] *= np.minimum(1 + (seconds[late] - began) / 40, 6)
    # Between steps the gauge is constant.
    same = np.concatenate(([False], steps[1:] == steps[:-1]))
    index = np.where(same, 0, np.arange(len(steps)))
    return loss[np.maximum.accumulate(index)]


def _lines(
    rng: Generator, attempt: Attempt, seconds: NDArray[np.float64], worked: NDArray[np.float64]
) -> NDArray[np.float64]:
    style = attempt.program.style
    counted = np.floor(worked / style.log_seconds) + float(rng.integers(20, 400))
    for rest in attempt.rests:
        if "log" in rest.signals:
            counted += np.searchsorted(line_times(rng, rest), seconds, side="right")
    return counted
