"""Two writers of one checkpoint: judged on the lines that each save leaves, and watched all the time."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from ops_pipelines_lab.drills.daemon_processes import wait_until
from ops_pipelines_lab.drills.writer_watch import (
    WRITE_LOG_SUFFIX,
    TwoWritersError,
    Writer,
    WriterWatch,
    find_overlaps,
    read_writes,
)

NOBODY = 4_194_305
"""Above every pid that Linux gives."""


def line(at: int, *, restart: int = 0, node: str = "gpu001", pid: int = NOBODY) -> str:
    return f"{at} 7 {restart} {node} {pid}\n"


def overlaps_of(*lines: str) -> list[tuple[int, int]]:
    """Return the restart counts of each two writers that overlap."""
    return [
        (each.first.restart_count, each.second.restart_count) for each in find_overlaps(read_writes("".join(lines)))
    ]


# -- the judgement --


def test_log_without_a_line_has_no_writer() -> None:
    assert find_overlaps(read_writes("")) == ()


def test_one_writer_never_overlaps_itself() -> None:
    assert overlaps_of(line(1), line(2), line(9)) == []


def test_attempts_one_after_the_other_do_not_overlap() -> None:
    assert overlaps_of(line(1), line(5), line(6, restart=1), line(9, restart=1)) == []


@pytest.mark.parametrize(("began_at", "expected"), [(4, [(0, 1)]), (5, []), (6, [])])
def test_a_writer_may_begin_when_the_other_ends_and_not_before(began_at: int, expected: list[tuple[int, int]]) -> None:
    """The second begins just before, at, and just after the last write of the first."""
    assert overlaps_of(line(1), line(5), line(began_at, restart=1), line(9, restart=1)) == expected


def test_one_late_line_of_the_first_writer_is_an_overlap() -> None:
    (overlap,) = find_overlaps(read_writes(line(1) + line(3, restart=1) + line(4) + line(9, restart=1)))

    assert overlap.first == Writer(job="7", restart_count=0, node="gpu001", pid=NOBODY)
    assert overlap.second.restart_count == 1
    assert overlap.overlap_microseconds == 1


def test_one_line_of_a_second_writer_within_the_first_is_an_overlap() -> None:
    assert overlaps_of(line(1), line(3, restart=1), line(5)) == [(0, 1)]


def test_of_three_attempts_each_two_are_compared() -> None:
    first, second, third = [line(1), line(9)], [line(3, restart=1), line(4, restart=1)], [line(8, restart=2)]

    assert overlaps_of(*first, *second, *third) == [(0, 1), (0, 2)]


def test_order_of_lines_does_not_matter() -> None:
    lines = [line(1), line(5), line(4, restart=1), line(9, restart=1)]

    assert {tuple(overlaps_of(*each)) for each in permutations(lines)} == {((0, 1),)}


def test_two_processes_of_one_restart_count_are_two_writers() -> None:
    """A scheduler that lost its state starts an attempt under the restart count of the one before."""
    assert overlaps_of(line(1), line(5), line(3, node="gpu002")) == [(0, 0)]
    assert overlaps_of(line(1, pid=11), line(5, pid=11), line(3, pid=12)) == [(0, 0)]


def test_torn_last_line_is_passed_over() -> None:
    whole = line(1) + line(5)

    assert read_writes(whole + line(3, restart=1).rstrip("\n")) == read_writes(whole)


@pytest.mark.parametrize("bad", ["", "1 7 0 gpu001", "1 7 0 gpu001 2 3", "x 7 0 gpu001 2", "1 7 0 gpu001 1 7 0 gpu001"])
def test_line_that_is_no_write_is_named(bad: str) -> None:
    with pytest.raises(ValueError, match="line 2 of a write log"):
        read_writes(line(1) + bad + "\n" + line(2))


# -- the watch --


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / f"checkpoint{WRITE_LOG_SUFFIX}"


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that lives until the test is over."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def append(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.write("".join(lines))


def test_watch_is_content_with_one_writer_after_the_other(log: Path) -> None:
    watch = WriterWatch(log.parent)

    append(log, line(1), line(5))
    watch.look()
    append(log, line(6, restart=1), line(9, restart=1))
    watch.look()

    watch.refuse_two_writers()


def test_watch_remembers_two_writers_that_it_saw_once(log: Path) -> None:
    watch = WriterWatch(log.parent)

    append(log, line(1), line(5), line(4, restart=1))
    watch.look()
    append(log, line(6, restart=1))
    watch.look()

    with pytest.raises(TwoWritersError, match=r"restart 0 on gpu001 .* still wrote .* restart 1 on gpu001"):
        watch.refuse_two_writers()


def test_watch_compares_writers_across_its_looks(log: Path) -> None:
    watch = WriterWatch(log.parent)

    append(log, line(1), line(3, restart=1))
    watch.look()
    watch.refuse_two_writers()
    append(log, line(4))
    watch.look()

    with pytest.raises(TwoWritersError):
        watch.refuse_two_writers()


def test_watch_reads_a_line_once_it_is_whole(log: Path) -> None:
    watch = WriterWatch(log.parent)
    text = line(4, restart=1)

    append(log, line(1), line(5), text[:6])
    watch.look()
    watch.refuse_two_writers()
    append(log, text[6:])
    watch.look()

    with pytest.raises(TwoWritersError):
        watch.refuse_two_writers()


def test_watch_sees_a_writer_that_still_lives_when_the_next_one_writes(log: Path, sleeper: int) -> None:
    """It may be about to write: nothing but its end makes it safe."""
    watch = WriterWatch(log.parent)

    append(log, line(1, pid=sleeper))
    watch.look()
    watch.refuse_two_writers()
    append(log, line(5, restart=1))
    watch.look()

    with pytest.raises(TwoWritersError, match=rf"restart 0 on gpu001 \(pid {sleeper}\) lives while .* restart 1"):
        watch.refuse_two_writers()


def test_jobs_with_checkpoints_of_their_own_may_write_at_a_time(tmp_path: Path, sleeper: int) -> None:
    watch = WriterWatch(tmp_path)

    append(tmp_path / f"a{WRITE_LOG_SUFFIX}", line(1, pid=sleeper), line(5, pid=sleeper))
    append(tmp_path / f"b{WRITE_LOG_SUFFIX}", line(3, pid=os.getpid()), line(9, pid=os.getpid()))
    watch.look()

    watch.refuse_two_writers()


def test_watch_that_cannot_read_says_so(log: Path) -> None:
    watch = WriterWatch(log.parent)
    append(log, "what is this\n")

    watch.start()

    wait_until("the watch to give up", lambda: _has_refused(watch), timeout_seconds=60.0)
    watch.stop()
    with pytest.raises(TwoWritersError, match="cannot continue: line 1 of a write log is 'what is this'"):
        watch.refuse_two_writers()


def test_watch_looks_until_it_is_stopped_and_once_more(log: Path) -> None:
    watch = WriterWatch(log.parent)
    watch.start()
    wait_until("some looks", lambda: watch.look_count > 2, timeout_seconds=60.0)

    append(log, line(1), line(5), line(4, restart=1))
    watch.stop()
    watch.stop()

    with pytest.raises(TwoWritersError):
        watch.refuse_two_writers()


def _has_refused(watch: WriterWatch) -> bool:
    try:
        watch.refuse_two_writers()
    except TwoWritersError:
        return True
    return False
