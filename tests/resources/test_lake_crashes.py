"""Processes that die or meet in the lake: readers see whole rows, old or new, and anyone who repeats ends the same."""

import shutil
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.resources.lake.files import day_file, read_rows
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from tests.forked import CONTEXT
from tests.ports.lake_samples import HOUR, TABLE, cells
from tests.resources.lake_processes import (
    add,
    add_many,
    clean,
    close_hour,
    close_many,
    closed_hour,
    nothing,
    open_hour,
    retain_days,
    two_hours,
    work_until_killed,
    write_cycle,
    write_within_limit,
)

Deed = Callable[[ParquetLake], None]
FEWEST_STEPS = 3


def run(target: Callable[..., None], *args: object) -> int | None:
    process = CONTEXT.Process(target=target, args=args)
    process.start()
    process.join()
    return process.exitcode


def files(root: Path) -> dict[str, bytes]:
    """Return the files that hold rows, by their path."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*.parquet"))}


def copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def rows_of(root: Path) -> list[tuple[object, ...]]:
    return cells(ParquetLake(root).read_hour(TABLE, HOUR), "node", "time", "power_watts", "gpu_model")


@pytest.mark.parametrize(
    ("prepare", "deed"),
    [
        (nothing, write_cycle),
        (open_hour, write_cycle),
        (closed_hour, write_cycle),
        (nothing, add),
        (open_hour, add),
        (closed_hour, add),
        (nothing, close_hour),
        (open_hour, close_hour),
        (closed_hour, close_hour),
        (closed_hour, clean),
    ],
)
def test_whoever_is_killed_leaves_old_or_new_rows_and_the_repeat_ends_the_same(
    tmp_path: Path, prepare: Deed, deed: Deed
) -> None:
    before, after, victim = tmp_path / "before", tmp_path / "after", tmp_path / "victim"
    before.mkdir()
    prepare(ParquetLake(before))
    copy(before, after)
    deed(ParquetLake(after))
    whole = (rows_of(before), rows_of(after))

    step = 0
    while True:
        step += 1
        copy(before, victim)
        ended = run(work_until_killed, deed, victim, step)
        seen = rows_of(victim)
        deed(ParquetLake(victim))

        assert ended in (0, -signal.SIGKILL)
        assert seen in whole, f"step {step}"
        assert rows_of(victim) == whole[1], f"step {step}"
        left = {name for name in files(victim) if "/.tmp-" not in name}
        assert left == set(files(after)), f"step {step}"
        assert all(files(victim)[name] == body for name, body in files(after).items()), f"step {step}"
        if ended == 0:
            break
    assert step > FEWEST_STEPS


def test_whoever_is_killed_while_old_days_are_let_go_loses_nothing(tmp_path: Path) -> None:
    before, after, victim = tmp_path / "before", tmp_path / "after", tmp_path / "victim"
    two_hours(ParquetLake(before))
    copy(before, after)
    retain_days(ParquetLake(after))
    expected = files(after)
    assert all("_5m/" in name or "_1h/" in name for name in expected)

    step = 0
    while True:
        step += 1
        copy(before, victim)
        ended = run(work_until_killed, retain_days, victim, step)
        lake = ParquetLake(victim)
        kept = {hour: lake.read_hour(TABLE, hour).num_rows for hour in lake.hours(TABLE)}
        for hour, count in {HOUR: 5, HOUR + timedelta(hours=1): 4}.items():
            assert kept.get(hour, count) == count, f"step {step}: an hour is there whole or not at all"
            if hour not in kept:
                for suffix in ("5m", "1h"):
                    path = day_file(lake.root, f"{TABLE}_{suffix}", HOUR.date())
                    counted = cells(read_rows(path, f"{TABLE}_{suffix}", refuse_unknown=True), "time", "sample_count")
                    of_hour = sum(int(str(n)) for at, n in counted if str(at)[:13] == str(hour)[:13])
                    assert of_hour == count, f"step {step}: what is gone is counted"
        retain_days(lake)

        assert {name: body for name, body in files(victim).items() if "/.tmp-" not in name} == expected, f"step {step}"
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert step > FEWEST_STEPS


@pytest.mark.parametrize("prepare", [nothing, open_hour, closed_hour])
def test_writers_at_once_lose_no_row_and_readers_see_no_half(tmp_path: Path, prepare: Deed) -> None:
    prepare(ParquetLake(tmp_path))
    count = 10
    deeds = [(add_many, 0), (add_many, 1), (close_many, 2), (close_many, 3)]
    processes = [CONTEXT.Process(target=deed, args=(tmp_path, number, count)) for deed, number in deeds]
    lake = ParquetLake(tmp_path)
    before = lake.read_hour(TABLE, HOUR).num_rows

    for process in processes:
        process.start()
    seen = [before]
    while any(process.is_alive() for process in processes):
        seen.append(lake.read_hour(TABLE, HOUR).num_rows)
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * len(processes)
    assert seen == sorted(seen)
    nodes = [str(node) for node, _ in cells(lake.read_hour(TABLE, HOUR), "node", "time")]
    assert len(nodes) == before + count * len(deeds)
    assert {name: nodes.count(name) for name in ("writer-0", "writer-1", "closer-2", "closer-3")} == dict.fromkeys(
        ("writer-0", "writer-1", "closer-2", "closer-3"), count
    )


def test_a_file_too_large_for_the_process_is_an_error_and_the_old_rows_stay(tmp_path: Path) -> None:
    closed_hour(ParquetLake(tmp_path))
    before = files(tmp_path)

    assert run(write_within_limit, tmp_path, 4096) == 0
    assert files(tmp_path) == before
