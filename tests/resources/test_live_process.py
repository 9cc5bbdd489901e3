"""The live cycle's child: started once, kept by a line a tick, listened to, started again when it dies."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.sources import LiveNews
from ops_pipelines.live import Leash, _await
from ops_pipelines.resources.live_process import LiveProcess

TALKS = """
import os, sys
print(f"pid {os.getpid()}", flush=True)
for number, _ in enumerate(sys.stdin, 1):
    print(f"cycle {number} of {os.getpid()}", flush=True)
"""
HANGS = """
import sys, time
print("cycle 1", flush=True)
time.sleep(3600)
"""
PATIENCE = 200


class Stopwatch:
    """Has stopped until it is moved on."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def talker() -> Iterator[LiveProcess]:
    process = LiveProcess(None, command=(sys.executable, "-c", TALKS))
    yield process
    process.stop()


class SteppedClock:
    """A clock that moves by what is waited."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, 7, tzinfo=UTC)
        self.waits: list[float] = []

    def now(self) -> datetime:
        return self.time

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += timedelta(seconds=seconds)


def tend_until(process: LiveProcess, wanted: str) -> LiveNews:
    """Tend as a sensor does until the news say what is required."""
    pause = threading.Event()
    for _ in range(PATIENCE):
        news = process.tend()
        if wanted in news.note:
            return news
        pause.wait(0.05)
    raise AssertionError(f"never heard {wanted!r}; the last news: {news}")


def pid_in(note: str) -> int:
    return int(note.split(" (")[0].rsplit(" ", 1)[1])


def test_one_child_is_started_and_its_last_words_are_the_news(talker: LiveProcess) -> None:
    first = talker.tend()
    later = tend_until(talker, "cycle 3")

    assert (first.is_running, first.note) == (True, "started")
    assert later.is_running


def test_a_child_that_was_killed_is_started_again_and_why_is_told(talker: LiveProcess) -> None:
    talker.tend()
    pid = pid_in(tend_until(talker, "cycle").note)
    os.kill(pid, signal.SIGKILL)

    news = tend_until(talker, "started again")

    assert "exit code -9" in news.note
    assert pid_in(tend_until(talker, "cycle").note) != pid


def test_a_child_that_is_deaf_to_signals_ends_when_its_leash_is_cut(tmp_path: Path) -> None:
    end = tmp_path / "end"
    code = (
        "import pathlib, signal, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\n"
        "sys.stdin.read()\n"
        "pathlib.Path(sys.argv[1]).write_text('by itself')\n"
    )
    process = LiveProcess(None, command=(sys.executable, "-c", code, str(end)))
    process.tend()
    tend_until(process, "deaf")

    process.stop()

    assert end.read_text() == "by itself"  # killed, it would have written nothing


@pytest.fixture
def watch() -> Stopwatch:
    return Stopwatch()


@pytest.fixture
def hanger(watch: Stopwatch) -> Iterator[LiveProcess]:
    process = LiveProcess(None, command=(sys.executable, "-c", HANGS), silent_limit_seconds=10, monotonic=watch)
    yield process
    process.stop()


def test_a_child_that_says_nothing_for_too_long_is_killed_and_started_again(
    hanger: LiveProcess, watch: Stopwatch
) -> None:
    hanger.tend()
    tend_until(hanger, "cycle 1 (0 s ago)")
    watch.seconds += 9
    patient = hanger.tend()
    watch.seconds += 1

    killed = hanger.tend()
    again = hanger.tend()

    why = "it printed nothing for 10 s and was killed; its last words: cycle 1"
    assert patient == LiveNews(is_running=True, note="cycle 1 (9 s ago)")
    assert killed == LiveNews(is_running=False, note=why)
    assert again == LiveNews(is_running=True, note=f"started again: {why}")
    assert tend_until(hanger, "cycle 1").note == "cycle 1 (0 s ago)"


def test_a_child_that_never_said_a_word_is_given_its_time_from_its_start(watch: Stopwatch) -> None:
    command = (sys.executable, "-c", "import time; time.sleep(3600)")
    process = LiveProcess(None, command=command, silent_limit_seconds=10, monotonic=watch)
    try:
        process.tend()
        watch.seconds += 9
        patient = process.tend()
        watch.seconds += 1
        killed = process.tend()
    finally:
        process.stop()

    assert patient == LiveNews(is_running=True, note="nothing yet (9 s ago)")
    assert not killed.is_running
    assert killed.note.endswith("its last words: nothing yet")


def test_a_child_that_talks_is_never_too_silent(watch: Stopwatch) -> None:
    process = LiveProcess(None, command=(sys.executable, "-c", TALKS), silent_limit_seconds=10, monotonic=watch)
    try:
        process.tend()
        tend_until(process, "cycle")
        for _ in range(3):
            watch.seconds += 9
            tend_until(process, "(0 s ago)")
            assert process.tend().is_running
    finally:
        process.stop()


def test_a_long_wait_repeats_the_news(capsys: pytest.CaptureFixture[str]) -> None:
    clock = SteppedClock()

    _await(clock, clock.now() + timedelta(seconds=150), news="07:00:00: 12 samples")

    assert clock.waits == [60, 60, 30]
    assert capsys.readouterr().out.splitlines() == ["07:00:00: 12 samples"] * 2


def test_a_short_wait_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    clock = SteppedClock()

    _await(clock, clock.now() + timedelta(seconds=60), news="07:00:00: 12 samples")

    assert clock.waits == [60]
    assert capsys.readouterr().out == ""


def test_a_program_that_is_not_there_is_news_and_no_error() -> None:
    news = LiveProcess(None, command=("/nonexistent/program",)).tend()

    assert not news.is_running
    assert "cannot be started" in news.note


def test_the_leash_holds_while_somebody_pulls_and_tells_when_the_pipe_closes() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as pipe, os.fdopen(write_end, "w") as hand:
        leash = Leash(pipe)
        said: list[str] = []
        waiting = threading.Thread(target=lambda: said.append(leash.await_end(30.0)))
        waiting.start()
        hand.write("\n")
        hand.flush()
        hand.close()
        waiting.join()

    assert said == ["the code server is gone"]


def test_a_leash_that_nobody_pulls_ends_the_cycle() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as pipe, os.fdopen(write_end, "w"):
        assert Leash(pipe).await_end(0.05) == "nobody tended it for 0 s"
