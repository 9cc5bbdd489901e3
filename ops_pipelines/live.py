"""The live cycle's process: one cycle a grid step, for as long as somebody holds its leash. Never acts.

Started by the code server (`resources.live_process`). By hand: `python -m ops_pipelines.live --cycles 1`.
"""

import argparse
import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ops_pipelines.core.sources import LakeError

if TYPE_CHECKING:
    from ops_pipelines.clock import Clock
    from ops_pipelines.core.cluster import Observatory

UNTENDED_LIMIT_SECONDS = 60.0
"""Longer than a code server under load takes between two turns of a sensor."""
SAY_EVERY_SECONDS = 60.0
_FOLD_EVERY_SECONDS, _TIDY_EVERY_SECONDS = 600, 3600


class Leash:
    """Somebody's word that the cycle is requested: lines on a pipe, none for too long or its end means no."""

    def __init__(self, pipe: TextIO) -> None:
        self._pulled = threading.Condition()
        self._pull_count = 0
        self._is_cut = False
        threading.Thread(target=self._watch, args=(pipe,), daemon=True, name="leash").start()

    def _watch(self, pipe: TextIO) -> None:
        for _ in pipe:
            with self._pulled:
                self._pull_count += 1
                self._pulled.notify_all()
        with self._pulled:
            self._is_cut = True
            self._pulled.notify_all()

    def await_end(self, limit_seconds: float) -> str:
        """Return why the cycle must end, when it must."""
        with self._pulled:
            while not self._is_cut:
                seen = self._pull_count
                if not self._pulled.wait(limit_seconds) and self._pull_count == seen:
                    return f"nobody tended it for {limit_seconds:.0f} s"
            return "the code server is gone"


def main(argv: Sequence[str] | None = None) -> int:
    """Run cycles until the leash is cut, or so many as were asked for."""
    parser = argparse.ArgumentParser(prog="python -m ops_pipelines.live", description=__doc__)
    parser.add_argument("--cluster", type=Path, default=Path(os.environ.get("OPS_PIPELINES_CLUSTER", "cluster.yaml")))
    parser.add_argument("--cycles", type=int, default=None, help="end after so many cycles, without a leash")
    parser.add_argument("--untended-seconds", type=float, default=UNTENDED_LIMIT_SECONDS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.cycles is None:
        leash = Leash(sys.stdin)
        threading.Thread(
            target=_end_with, args=(leash, options.untended_seconds), daemon=True, name="end-with-leash"
        ).start()
    _run(options.cluster, cycle_count=options.cycles)
    return 0


def _end_with(leash: Leash, limit_seconds: float) -> None:
    why = leash.await_end(limit_seconds)
    sys.stderr.write(f"live cycle ends: {why}\n")
    # At once, in the middle of whatever it does: every write of the lake appears whole or not at all.
    os._exit(0)


def _run(cluster_file: Path, *, cycle_count: int | None) -> None:
    from ops_pipelines.observe.live_cycle import begin_window, next_grid_time, run_cycle, settling_time
    from ops_pipelines.wiring import open_cluster, open_observatory

    observatory = open_observatory(cluster_file.resolve())
    done: datetime | None = None
    window, trouble = begin_window(observatory, before=next_grid_time(observatory, after=None))
    if trouble is not None:
        _say(trouble)
    news = "no cycle yet"
    while cycle_count is None or cycle_count > 0:
        at = next_grid_time(observatory, after=done)
        _await(observatory.clock, at + settling_time(observatory.step), news=news)
        # Opened once, and asked for again: each cycle works by the rules that hold then.
        news = str(run_cycle(observatory, open_cluster(cluster_file.resolve()), at=at, window=window))
        _say(news)
        if done is not None:
            _tidy(observatory, at=at, done=done)
        _give_back_memory()
        done = at
        cycle_count = None if cycle_count is None else cycle_count - 1


def _give_back_memory() -> None:
    """Return to the system what the cycle has freed: glibc keeps it between what lives on."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Other C libraries have none.
    if trim is not None:
        trim(0)


def _await(clock: "Clock", time: datetime, *, news: str) -> None:
    """Wait, and repeat the news now and then: who says nothing for minutes is taken for hung, and killed."""
    while (left_seconds := (time - clock.now()).total_seconds()) > 0:
        clock.wait(min(left_seconds, SAY_EVERY_SECONDS))
        if left_seconds > SAY_EVERY_SECONDS:
            _say(news)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _tidy(observatory: "Observatory", *, at: datetime, done: datetime) -> None:
    """Put old cycles together, and each hour remove what readers no longer open; what fails now is done the next time.

    `at` is the cycle that was done now, `done` the one before.
    """
    now = observatory.clock.now()
    try:
        if at.timestamp() // _FOLD_EVERY_SECONDS != done.timestamp() // _FOLD_EVERY_SECONDS:
            observatory.lake.fold(now)
        if at.timestamp() // _TIDY_EVERY_SECONDS != done.timestamp() // _TIDY_EVERY_SECONDS:
            observatory.lake.tidy(now)
    except LakeError as problem:
        sys.stderr.write(f"live cycle cannot tidy the lake: {problem}\n")


if __name__ == "__main__":
    sys.exit(main())
