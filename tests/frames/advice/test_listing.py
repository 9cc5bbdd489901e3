"""A listing of files from outside: what is believed, what is refused and why, and what belongs together."""

import io
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ops_pipelines.efficiency.advice_on_running import FileGroup
from ops_pipelines.efficiency.other_rows import COLUMNS, group_files, read_listing
from ops_pipelines.lake.quantities import WrongKind
from ops_pipelines.teams.desk import AdviceSettings

NOW = datetime(2026, 11, 23, tzinfo=UTC)
DAY = timedelta(days=1)
OLD = "2025-01-01T00:00:00Z"


def body(*rows: str) -> bytes:
    return "\n".join([",".join(COLUMNS), *rows]).encode()


def groups(*rows: str) -> tuple[FileGroup, ...]:
    return group_files(read_listing(body(*rows), name="l", now=NOW).files, AdviceSettings(), now=NOW)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (",ml,1,,", "path_missing"),
        ("/a,,1,,", "team_missing"),
        ("/a,ml,,,", "size_not_believed"),
        ("/a,ml,-1,,", "size_not_believed"),
        ("/a,ml,1e6,,", "size_not_believed"),
        (f"/a,ml,{2**60 + 1},,", "size_not_believed"),
        ("/a,ml,1,yesterday,", "time_not_readable"),
        ("/a,ml,1,2026-01-01T00:00:00,", "time_not_readable"),
        ("/a,ml,1,,99999999999999", "time_not_readable"),
        ("/a,ml,1,2026-11-23T00:00:01Z,", "time_ahead"),
    ],
)
def test_a_row_that_cannot_be_true_is_kept_with_its_reason(row: str, reason: str) -> None:
    found = read_listing(body(row, f"/b,ml,1,{OLD},{OLD}"), name="l", now=NOW)

    assert [each.reason for each in found.refused] == [reason]
    assert [each.path for each in found.files] == ["/b"]
    assert found.read == 2


@pytest.mark.parametrize(
    "row", [f"/a,ml,{2**60},,", "/a,ml,0,2026-11-23T00:00:00Z,", "/a,ml,1,1700000000,1700000000.5"]
)
def test_a_row_at_the_edge_is_believed(row: str) -> None:
    assert read_listing(body(row), name="l", now=NOW).refused == ()


def test_a_path_that_stands_there_twice_counts_once() -> None:
    found = read_listing(body("/a,ml,1,,", "/a,ml,2,,"), name="l", now=NOW)

    assert [each.reason for each in found.refused] == ["path_twice"]


@pytest.mark.parametrize("given", [b"", b"path,team\n/a,ml\n", b"PAR1 and no more", b"\x00\xff"])
def test_what_is_no_listing_is_refused_as_a_whole(given: bytes) -> None:
    with pytest.raises(WrongKind):
        read_listing(given, name="the listing", now=NOW)


def test_parquet_says_the_same_as_csv() -> None:
    at = datetime(2025, 1, 1, tzinfo=UTC)
    table = pa.table(
        {"path": ["/a"], "team": ["ml"], "bytes": [7], "last_read_at": pa.array([at], pa.timestamp("us", tz="UTC")),
         "last_written_at": pa.array([None], pa.timestamp("us", tz="UTC"))}
    )  # fmt: skip
    sink = io.BytesIO()
    pq.write_table(table, sink)

    assert read_listing(sink.getvalue(), name="l", now=NOW) == read_listing(body(f"/a,ml,7,{OLD},"), name="l", now=NOW)


def test_checkpoints_are_grouped_by_run_and_the_newest_is_never_old() -> None:
    (found,) = groups(
        f"/runs/a/checkpoint-100/model.pt,ml,5,{OLD},2025-01-01T00:00:00Z",
        f"/runs/a/checkpoint-200/model.pt,ml,7,{OLD},2025-01-02T00:00:00Z",
        f"/runs/a/checkpoint-200/optimizer.pt,ml,9,{OLD},2025-01-02T00:00:00Z",
    )

    assert (found.path, found.is_checkpoints, found.count) == ("/runs/a", True, 3)
    assert (found.old_count, found.old_size_bytes) == (1, 5)


@pytest.mark.parametrize(("days", "is_old"), [(179, False), (180, False), (181, True)])
def test_data_is_old_once_nobody_read_it_for_longer_than_the_limit(days: int, is_old: bool) -> None:
    (found,) = groups(f"/data/x/a,ml,5,{(NOW - days * DAY).isoformat()},{OLD}")

    assert bool(found.old_count) is is_old


def test_data_that_was_written_lately_is_not_old_and_without_a_read_time_not_known() -> None:
    fresh, unread = groups(f"/data/x/a,ml,5,{OLD},2026-11-01T00:00:00Z", f"/data/y/a,ml,5,,{OLD}")

    assert (fresh.old_count, fresh.unknown_count) == (0, 0)
    assert (unread.old_count, unread.unknown_count) == (0, 1)


def test_hostile_paths_are_one_short_printable_line() -> None:
    (found,) = groups('"/data/<b>\x1b[2J' + "z" * 10_000 + f'/a",ml,5,{OLD},{OLD}')

    assert found.path.isprintable()
    assert len(found.path) <= 160
