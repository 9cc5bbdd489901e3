"""Paths come from users: only regular files beneath a named root are looked at, wherever links lead."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ops_pipelines.resources.slurm.jobs import CheckpointFiles, parse_change_time


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "checkpoints"
    root.mkdir()
    (root / "last").write_text("42")
    (root / "step").mkdir()
    (tmp_path / "secret").write_text("x")
    (root / "link-in").symlink_to(root / "last")
    (root / "link-out").symlink_to(tmp_path / "secret")
    (root / "loop").symlink_to(root / "loop")
    return root


@pytest.mark.parametrize(
    ("name", "is_seen"),
    [
        ("last", True),
        ("link-in", True),
        ("link-out", False),
        ("../secret", False),
        ("loop", False),
        ("step", False),
        ("missing", False),
        ("x" * 5000, False),
    ],
)
def test_only_regular_files_beneath_the_root_are_seen(root: Path, name: str, is_seen: bool) -> None:
    path = f"{root}/{name}"

    times = CheckpointFiles([root]).read_times([path], timeout_seconds=5)

    assert set(times) == ({path} if is_seen else set())


@pytest.mark.parametrize(
    ("seconds", "changed_at"),
    [
        pytest.param(0.0, datetime(1970, 1, 1, tzinfo=UTC), id="epoch"),
        pytest.param(253_402_300_799.0, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), id="last second"),
        pytest.param(253_402_300_800.0, None, id="year 10000"),
        pytest.param(300_000_000_000.0, None, id="touch -d @300000000000"),
        pytest.param(-(10.0**11), None, id="before the year 1"),
        pytest.param(1e300, None, id="more than a time_t"),
    ],
)
def test_file_dated_beyond_all_calendars_is_unknown_and_stops_no_look(
    seconds: float, changed_at: datetime | None
) -> None:
    # Not by os.utime: file systems cut such times down, each at another year.
    assert parse_change_time(seconds) == changed_at


def test_root_is_no_prefix_of_text(root: Path) -> None:
    beside = root.parent / "checkpoints-of-others"
    beside.write_text("x")

    assert CheckpointFiles([root]).read_times([str(beside)], timeout_seconds=5) == {}


def test_without_roots_nothing_is_looked_at(root: Path) -> None:
    assert CheckpointFiles([]).read_times([str(root / "last")], timeout_seconds=5) == {}
