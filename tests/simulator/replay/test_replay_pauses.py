"""Every pause of a recorded day is one: no steps, and each signal that is stated to live really moves."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ops_pipelines_lab.simulator.replay.day import Day, Pause, PauseKind
from ops_pipelines_lab.simulator.replay.make import make_day, make_quiet_day

LONGEST_SILENCE_ROWS = 4


@cache
def day() -> Day:
    return make_quiet_day(21, node_count=64, hours=12)


@cache
def day_with_faults() -> Day:
    return make_day(22, node_count=64, hours=12, fault_count=16)


def rows_of(day: Day, pause: Pause) -> slice:
    """Return the rows whose whole time before them lies within the pause."""
    return slice(day.panel.row_of(pause.began_at) + 2, day.panel.row_of(pause.ended_at) + 1)


def holders(day: Day, pause: Pause, row: int) -> NDArray[np.intp]:
    column = next(index for index, part in enumerate(day.panel.jobs.parts) if part.device == pause.job)
    return np.flatnonzero(day.panel.held_by[row] == column)


def moved(day: Day, pause: Pause, signal: str) -> NDArray[np.bool_]:
    """Return for each row of a pause whether a signal moved on any node of the job, beyond what waiting nodes show."""
    panel, rows = day.panel, rows_of(day, pause)
    nodes = holders(day, pause, rows.start)

    def above(column: str, limit: float) -> NDArray[np.bool_]:
        return np.asarray(panel.nodes.rate(column)[rows, nodes].max(axis=1) > limit, dtype=np.bool_)

    if signal == "storage":
        return above("shared_read_bytes", 2e5) | above("shared_written_bytes", 2e5)
    if signal == "network":
        return above("fabric_bytes", 4e5)
    if signal == "cpu":
        # Waiting costs 1.1 cores a GPU, the system a third of a core.
        return above("cpu_busy_seconds", 9.3)
    if signal == "log":
        column = next(index for index, part in enumerate(panel.jobs.parts) if part.device == pause.job)
        return np.greater(panel.jobs.rate("line_count")[rows, column], 0)
    gpus = (8 * nodes[:, None] + np.arange(8)).ravel()
    tensor = panel.gpus.values["tensor_active_ratio"][rows, gpus]
    return np.asarray(np.nan_to_num(tensor).max(axis=1) > 0.002, dtype=np.bool_)


def long_pauses(day: Day) -> list[Pause]:
    panel = day.panel
    found = []
    for pause in day.pauses:
        rows = rows_of(day, pause)
        is_whole = not np.isnan(panel.nodes.values["fabric_bytes"][rows]).any()
        if rows.stop - rows.start >= 5 and is_whole and len(holders(day, pause, rows.start)):
            found.append(pause)
    return found


def test_every_live_signal_moves_and_is_never_silent_for_long() -> None:
    for recorded in (day(), day_with_faults()):
        checked = long_pauses(recorded)
        assert len(checked) > 30
        for pause in checked:
            for signal in pause.live_signals:
                lives = moved(recorded, pause, signal)
                assert lives.any(), (pause, signal)
                quiet = "".join("." if alive else "x" for alive in lives).split(".")
                assert max(len(stretch) for stretch in quiet) <= LONGEST_SILENCE_ROWS, (pause, signal, lives)


def test_a_job_makes_no_steps_in_its_pause() -> None:
    recorded = day()
    counted = 0
    for pause in long_pauses(recorded):
        column = next(index for index, part in enumerate(recorded.panel.jobs.parts) if part.device == pause.job)
        grown = recorded.panel.jobs.rate("step_count")[rows_of(recorded, pause), column]
        counted += int((~np.isnan(grown)).any())
        assert not (grown > 0).any(), pause
    assert counted > 20


def test_a_third_of_the_pauses_is_longer_than_two_minutes_and_none_longer_than_ten() -> None:
    lengths = np.array([(pause.ended_at - pause.began_at).total_seconds() for pause in day().pauses])

    assert lengths.min() >= 20
    assert lengths.max() <= 600.5
    assert 0.25 < (lengths > 120).mean() < 0.45


def test_most_pauses_have_only_one_live_signal_and_all_kinds_occur() -> None:
    pauses = day().pauses

    alone = np.mean([len(pause.live_signals) == 1 for pause in pauses])
    assert 0.45 < alone < 0.75
    assert all(pause.live_signals <= {"storage", "network", "cpu", "log", "gpu"} for pause in pauses)
    assert {pause.kind for pause in pauses} == set(PauseKind)
