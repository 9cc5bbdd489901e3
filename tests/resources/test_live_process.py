"""The live cycle's child: started once, kept by a line a tick, listened to, started again when it dies."""

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from ops_pipelines.live import Leash
from ops_pipelines.ports.live_cycle import LiveNews
from ops_pipelines.resources.live_process import LiveProcess

TALKS = """
import os, sys
print(f"pid {os.getpid()}", flush=True)
for number, _ in enumerate(sys.stdin, 1):
    print(f"cycle {number} of {os.getpid()}", flush=True)
"""
PATIENCE = 200


@pytest.fixture
def talker() -> Iterator[LiveProcess]:
    process = LiveProcess(None, command=(sys.executable, "-c", TALKS))
    yield process
    process.stop()


def tend_until(process: LiveProcess, wanted: str) -> LiveNews:
    """Tend as a sensor does until the news say what is wanted."""
    pause = threading.Event()
    for _ in range(PATIENCE):
        news = process.tend()
        if wanted in news.note:
            return news
        pause.wait(0.05)
    raise AssertionError(f"never heard {wanted!r}; the last news: {news}")


def test_one_child_is_started_and_its_last_words_are_the_news(talker: LiveProcess) -> None:
    first = talker.tend()
    later = tend_until(talker, "cycle 3")

    assert (first.is_running, first.note) == (True, "started")
    assert later.is_running


def test_a_child_that_was_killed_is_started_again_and_why_is_told(talker: LiveProcess) -> None:
    talker.tend()
    pid = int(tend_until(talker, "cycle").note.rsplit(" ", 1)[1])
    os.kill(pid, signal.SIGKILL)

    news = tend_until(talker, "started again")

    assert "exit code -9" in news.note
    assert int(tend_until(talker, "cycle").note.rsplit(" ", 1)[1]) != pid


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
