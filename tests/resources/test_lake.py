"""The lake on Parquet files: bytes, names, faults of disk and file, cleaning; local and in fsspec's memory store."""

import errno
import os
import random
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.sources import SO_FAR, LakeError
from ops_pipelines.lake import hours
from ops_pipelines.resources.lake import files as lake_files
from ops_pipelines.resources.lake.files import encode, write_table_atomically
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from tests.ports.lake_contract import LakeContract
from tests.ports.lake_samples import HOUR, TABLE, cells, gpu, many, table, watts
from tests.simulator.fake_clock import FakeClock

NEXT_HOUR = HOUR + timedelta(hours=1)
LATER = HOUR + timedelta(days=36500)
"""Long after any file of a test was written."""


class TestLocalLake(LakeContract):
    """On a path of this machine."""

    @pytest.fixture
    def lake(self, tmp_path: Path) -> ParquetLake:
        return ParquetLake(tmp_path / "lake")


class TestStoredLake(LakeContract):
    """In an object store by URL."""

    @pytest.fixture
    def lake(self) -> ParquetLake:
        return ParquetLake(f"memory://{uuid4().hex}")


@pytest.fixture(params=["path", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> ParquetLake:
    return ParquetLake(tmp_path / "lake" if request.param == "path" else f"memory://{uuid4().hex}/deep")


@pytest.fixture
def local(tmp_path: Path) -> ParquetLake:
    return ParquetLake(tmp_path / "lake")


def hour_directory(lake: ParquetLake) -> Path:
    return Path(lake.path_of_hour(TABLE, HOUR).path).parent


def names(lake: ParquetLake) -> list[str]:
    return sorted(path.name for path in hour_directory(lake).iterdir() if path.name != ".lock")


# -- bytes --


def as_bytes(lake: ParquetLake) -> bytes:
    return bytes(lake.path_of_hour(TABLE, HOUR).read_bytes())


@settings(max_examples=12, deadline=None)
@given(st.data(), st.randoms(use_true_random=False))
def test_an_hour_has_the_same_bytes_however_its_rows_came(data: st.DataObject, chance: random.Random) -> None:
    rows = many(["b", "a", "gpu-10"], range(0, 60, 15))
    parts = [rows.slice(number, 1) for number in range(rows.num_rows)]
    half = rows.drop_columns(["power_watts"])  # a source that lacks a column, and says the rest again
    chance.shuffle(parts)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        expected, found = ParquetLake(one), ParquetLake(other)
        expected.close_hour(TABLE, HOUR, filled=rows)

        while parts:
            count = data.draw(st.integers(1, len(parts)))
            some, parts = pa.concat_tables(parts[:count]), parts[count:]
            match data.draw(st.sampled_from(["cycle", "add", "close", "half"])):
                case "cycle":
                    at = HOUR + timedelta(seconds=chance.randrange(3600))
                    found.write_cycle(TABLE, some, at=at, part=chance.choice(["", "nvml", "x"]) + str(len(parts)))
                case "add":
                    found.add(TABLE, some)
                case "close":
                    found.close_hour(TABLE, HOUR, filled=some)
                case "half":
                    found.add(TABLE, half)
                    found.add(TABLE, some)
        found.close_hour(TABLE, HOUR)

        assert as_bytes(found) == as_bytes(expected)


def test_the_file_is_what_encode_says_across_row_groups(lake: ParquetLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_files, "ROWS_PER_SLICE", 5)
    monkeypatch.setattr(hours, "ROWS_PER_SLICE", 5)
    rows = many("cab", range(0, 60, 15))

    lake.close_hour(TABLE, HOUR, filled=rows)

    assert as_bytes(lake) == encode(hours.normalise(TABLE, rows))
    with lake.path_of_hour(TABLE, HOUR).open("rb") as file:
        footer = pq.read_metadata(file)
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [5, 5, 2]
    assert footer.row_group(0).column(0).compression == "ZSTD"
    assert b"2026" not in (footer.created_by or "").encode()


def test_a_table_written_by_itself_is_the_file_of_the_hour(lake: ParquetLake) -> None:
    rows = hours.normalise(TABLE, many("ab", (0, 15)))

    write_table_atomically(lake.path_of_hour(TABLE, HOUR), rows)

    assert lake.read_hour(TABLE, HOUR) == rows


# -- names --


def test_files_are_named_after_table_date_hour_and_cycle(local: ParquetLake) -> None:
    local.write_cycle(TABLE, table(gpu("a", 15)), at=HOUR + timedelta(seconds=15), part="nvml")
    local.write_cycle(TABLE, table(gpu("a", 0)), at=HOUR)

    assert hour_directory(local).relative_to(local.root.path).as_posix() == f"{TABLE}/date=2026-11-21/hour=07"
    assert names(local) == ["cycle=20261121T070000Z.parquet", "cycle=20261121T070015Z-nvml.parquet"]


def test_the_later_cycle_wins_and_what_was_added_wins_over_all(local: ParquetLake) -> None:
    local.write_cycle(TABLE, table(gpu("a", 0, power_watts=2.0)), at=HOUR + timedelta(seconds=15))
    local.write_cycle(TABLE, table(gpu("a", 0, power_watts=1.0)), at=HOUR, part="z")
    assert watts(local.read_hour(TABLE, HOUR)) == [("a", 0, 2.0)]

    local.add(TABLE, table(gpu("a", 0, power_watts=3.0)))

    assert watts(local.read_hour(TABLE, HOUR)) == [("a", 0, 3.0)]
    assert "cycle=added.parquet" in names(local)


def test_readers_pass_over_temporaries_strangers_and_cycles_of_a_closed_hour(local: ParquetLake) -> None:
    local.close_hour(TABLE, HOUR, filled=table(gpu("a", 0)))
    for name in (".tmp-1-ab-hour.parquet", "cycle=20261121T070000Z.parquet", "notes.txt", "cycle=x.parquet"):
        (hour_directory(local) / name).write_bytes(b"not parquet")
    (Path(local.root.path) / TABLE / "date=2026-13-99" / "hour=07").mkdir(parents=True)
    (Path(local.root.path) / TABLE / "date=2026-11-21" / "hour=25").mkdir(parents=True)
    (Path(local.root.path) / TABLE / "date=2026-11-21" / "hour=25" / "hour.parquet").touch()

    assert watts(local.read_hour(TABLE, HOUR)) == [("a", 0, None)]
    assert local.hours(TABLE) == [HOUR]


# -- stretches --


def test_a_stretch_is_half_open_sorted_by_key_and_has_the_columns_asked_for(lake: ParquetLake) -> None:
    lake.close_hour(TABLE, HOUR, filled=many("ba", (0, 3585)))
    lake.write_cycle(TABLE, many("ba", (3600, 3615)), at=NEXT_HOUR)

    found = lake.read(TABLE, start=HOUR + timedelta(seconds=3585), end=HOUR + timedelta(seconds=3615))
    few = lake.read(TABLE, start=HOUR, end=NEXT_HOUR, columns=["energy_joules", "node"])

    assert [(node, at) for node, at, _ in watts(found)] == [("a", 3585), ("a", 3600), ("b", 3585), ("b", 3600)]
    assert few.schema.names == ["energy_joules", "node"]
    assert cells(few) == [(0.0, "a"), (3585.0, "a"), (0.0, "b"), (3585.0, "b")]


def test_a_stretch_without_hours_has_no_rows_and_an_unknown_column_is_an_error(lake: ParquetLake) -> None:
    assert lake.read(TABLE, start=HOUR, end=NEXT_HOUR).num_rows == 0
    with pytest.raises(KeyError, match="no_such"):
        lake.read(TABLE, start=HOUR, end=NEXT_HOUR, columns=["no_such"])


def test_the_newest_time_is_that_of_a_row_and_none_without_rows(lake: ParquetLake) -> None:
    assert lake.newest_time(TABLE) is None
    lake.add(TABLE, many("ab", (0, 30)))
    lake.close_hour(TABLE, NEXT_HOUR)

    assert lake.newest_time(TABLE) == HOUR + timedelta(seconds=30)
    assert lake.hours(TABLE) == [HOUR, NEXT_HOUR]
    assert lake.open_hours(TABLE) == []


# -- hours that are not over --


def test_rows_added_to_an_hour_that_is_not_over_wait_for_its_close(tmp_path: Path) -> None:
    clock = FakeClock()
    lake = ParquetLake(tmp_path / "lake", clock=clock)
    cycle = "cycle=20261121T070015Z.parquet"

    clock.set_back(1.0)  # the node that reported this hour was ahead
    counts = [lake.add(TABLE, table(gpu("a", 0)))]
    clock.wait(2.0)
    counts.append(lake.add(TABLE, table(gpu("a", 0), gpu("b", 0))))
    lake.write_cycle(TABLE, table(gpu("a", 15)), at=HOUR + timedelta(seconds=15))

    assert counts == [{HOUR: 1}, {HOUR: 1}]
    assert names(lake) == [cycle, "cycle=added.parquet"]
    assert watts(lake.close_hour(TABLE, HOUR)) == [("a", 0, None), ("a", 15, None), ("b", 0, None)]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(3599, "cycle=added.parquet"), (3600, "hour.parquet"), (3601, "hour.parquet")]
)
def test_an_hour_gets_its_file_by_adding_once_it_is_over(tmp_path: Path, seconds: int, expected: str) -> None:
    clock = FakeClock()
    clock.wait(seconds)
    lake = ParquetLake(tmp_path / "lake", clock=clock)

    lake.add(TABLE, table(gpu("a", 0)))

    assert names(lake) == [expected]


# -- columns come and go --


def rewritten(lake: ParquetLake, rows: pa.Table) -> None:
    with lake.path_of_hour(TABLE, HOUR).open("wb") as file:
        pq.write_table(rows, file)


def test_a_column_that_came_since_is_null_in_an_old_file(lake: ParquetLake) -> None:
    lake.close_hour(TABLE, HOUR, filled=table(gpu("a", 0, power_watts=1.0)))
    rewritten(lake, lake.read(TABLE, start=HOUR, end=NEXT_HOUR, columns=["node", "device", "time", "power_watts"]))

    lake.add(TABLE, table(gpu("b", 0, gpu_model="H100")))

    assert cells(lake.read_hour(TABLE, HOUR), "node", "power_watts", "gpu_model") == [
        ("a", 1.0, None),
        ("b", None, "H100"),
    ]


def test_a_column_of_another_type_is_an_error_that_names_the_file(lake: ParquetLake) -> None:
    rows = table(gpu("a", 0, power_watts=1.0))
    lake.close_hour(TABLE, HOUR, filled=rows)
    rewritten(lake, rows.set_column(rows.schema.get_field_index("power_watts"), "power_watts", pa.array(["1"])))

    with pytest.raises(LakeError, match=r"hour\.parquet does not fit this version: .*power_watts is string there"):
        lake.read_hour(TABLE, HOUR)


def test_columns_of_a_newer_version_are_read_past_but_never_written_away(lake: ParquetLake) -> None:
    rows = table(gpu("a", 0))
    lake.close_hour(TABLE, HOUR, filled=rows)
    rewritten(lake, rows.append_column("from_the_future", pa.array([1])))

    assert watts(lake.read_hour(TABLE, HOUR)) == [("a", 0, None)]
    for deed in (lambda: lake.add(TABLE, rows), lambda: lake.close_hour(TABLE, HOUR, filled=rows)):
        with pytest.raises(LakeError, match="does not know \\(from_the_future\\)"):
            deed()


# -- faults --


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"not parquet at all", None])
def test_a_damaged_file_is_named_and_never_passed_over(lake: ParquetLake, damage: bytes | None) -> None:
    lake.close_hour(TABLE, HOUR, filled=many("ab", range(0, 3600, 15)))
    path = lake.path_of_hour(TABLE, HOUR)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)

    for deed in (
        lambda: lake.read_hour(TABLE, HOUR),
        lambda: lake.add(TABLE, table(gpu("a", 1))),
        lambda: lake.close_hour(TABLE, HOUR, filled=table(gpu("a", 1))),
        lambda: lake.newest_time(TABLE),
        lambda: lake.read(TABLE, start=HOUR, end=NEXT_HOUR),
    ):
        with pytest.raises(LakeError, match=r"date=2026-11-21/hour=07/hour\.parquet is damaged"):
            deed()


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=4), st.floats(0, 1))
def test_any_damage_ends_in_rows_or_in_an_error_that_names_the_file(change: bytes, where: float) -> None:
    whole = encode(hours.normalise(TABLE, many("ab", range(0, 3600, 300))))
    begin = int(where * (len(whole) - len(change)))
    with tempfile.TemporaryDirectory() as root:
        lake = ParquetLake(root)
        path = lake.path_of_hour(TABLE, HOUR)
        path.parent.mkdir(parents=True)
        path.write_bytes(whole[:begin] + change + whole[begin + len(change) :])
        try:
            lake.read_hour(TABLE, HOUR)
        except LakeError as problem:
            assert str(path) in str(problem)  # noqa: PT017 -- either end is right


@pytest.mark.parametrize(
    ("code", "advice"), [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "quota"), (errno.EIO, "hour=07")]
)
def test_a_disk_that_takes_no_more_leaves_the_old_rows_and_no_temporary(
    local: ParquetLake, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    local.close_hour(TABLE, HOUR, filled=table(gpu("a", 0)))
    before = as_bytes(local)

    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(LakeError, match=advice):
            local.add(TABLE, table(gpu("b", 0)))

    assert as_bytes(local) == before
    assert names(local) == ["hour.parquet"]
    assert local.add(TABLE, table(gpu("b", 0))) == {HOUR: 1}


def test_no_right_and_a_file_in_the_way_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lake").write_text("a file")
    with pytest.raises(LakeError, match="a file is where a directory must be"):
        ParquetLake(tmp_path / "lake").add(TABLE, table(gpu("a", 0)))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(LakeError, match="no right: give the lake's directory to the user that runs this"):
        ParquetLake(tmp_path / "other").add(TABLE, table(gpu("a", 0)))


def test_an_hour_that_another_holds_for_too_long_is_an_error(tmp_path: Path) -> None:
    holder, waiting = ParquetLake(tmp_path), ParquetLake(tmp_path, lock_wait_seconds=0.0)

    with holder.hold(TABLE, HOUR), pytest.raises(LakeError, match="is being changed by another process"):
        waiting.add(TABLE, table(gpu("a", 0)))

    assert waiting.add(TABLE, table(gpu("a", 0))) == {HOUR: 1}


# -- cleaning --


def aged(path: Path, age: timedelta, *, now: datetime) -> None:
    then = (now - age).timestamp()
    os.utime(path, (then, then))


@pytest.mark.parametrize(("age_seconds", "is_gone"), [(3599, False), (3600, True), (3601, True)])
def test_cycles_go_an_hour_after_their_hour_was_closed(local: ParquetLake, age_seconds: int, is_gone: bool) -> None:
    now = datetime(2026, 11, 22, tzinfo=UTC)
    local.write_cycle(TABLE, table(gpu("a", 0)), at=HOUR)
    local.close_hour(TABLE, HOUR)
    aged(hour_directory(local) / "hour.parquet", timedelta(seconds=age_seconds), now=now)

    cleaned = local.clean(now)

    assert cleaned.cycle_file_count == int(is_gone)
    assert names(local) == (["hour.parquet"] if is_gone else ["cycle=20261121T070000Z.parquet", "hour.parquet"])
    assert watts(local.read_hour(TABLE, HOUR)) == [("a", 0, None)]


def test_cycles_of_an_open_hour_stay_however_old(lake: ParquetLake) -> None:
    lake.write_cycle(TABLE, table(gpu("a", 0)), at=HOUR)

    assert lake.clean(LATER).cycle_file_count == 0
    assert lake.read_hour(TABLE, HOUR).num_rows == 1


@pytest.mark.parametrize(("age_seconds", "is_gone"), [(3599, False), (3600, True), (3601, True)])
def test_temporaries_go_when_they_are_an_hour_old(local: ParquetLake, age_seconds: int, is_gone: bool) -> None:
    now = datetime(2026, 11, 22, tzinfo=UTC)
    local.add(TABLE, table(gpu("a", 0)))
    left = hour_directory(local) / ".tmp-1-ab-hour.parquet"
    left.touch()
    aged(left, timedelta(seconds=age_seconds), now=now)

    assert local.clean(now).temporary_count == int(is_gone)
    assert left.exists() is not is_gone


def test_cleaning_in_a_store_keeps_what_came_while_the_hour_was_being_closed() -> None:
    lake = ParquetLake(f"memory://{uuid4().hex}")
    lake.close_hour(TABLE, HOUR, filled=table(gpu("a", 0)))
    late = lake.path_of_hour(TABLE, HOUR).parent / "cycle=20261121T070015Z.parquet"
    write_table_atomically(late, hours.normalise(TABLE, table(gpu("a", 15))))

    assert lake.clean(LATER).cycle_file_count == 1
    assert watts(lake.read_hour(TABLE, HOUR)) == [("a", 0, None), ("a", 15, None)]


def test_an_empty_lake_is_clean(lake: ParquetLake) -> None:
    assert lake.clean(LATER).cycle_file_count == 0


@pytest.fixture(autouse=True)
def _memory_store_is_emptied() -> Iterator[None]:
    yield
    import fsspec

    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]


# -- folding --


AN_HOUR_ON = HOUR + timedelta(minutes=50)


def every_15_seconds(lake: ParquetLake, count: int, *, part: str = "") -> None:
    for number in range(count):
        rows = table(gpu("a", 15.0 * number, power_watts=float(number)))
        lake.write_cycle(TABLE, rows, at=HOUR + timedelta(seconds=15 * number), part=part)


@pytest.mark.parametrize(("seconds", "count"), [(599, 12), (600, 12), (614, 12), (615, 11), (900, 1)])
def test_cycles_ten_minutes_old_are_one_file(local: ParquetLake, seconds: int, count: int) -> None:
    every_15_seconds(local, 12)
    before = local.read_hour(TABLE, HOUR)

    local.fold(HOUR + timedelta(seconds=seconds))

    assert len([name for name in names(local) if name.startswith("cycle=")]) == count
    assert local.read_hour(TABLE, HOUR) == before


def test_what_was_folded_is_folded_again_with_what_came_since(local: ParquetLake) -> None:
    every_15_seconds(local, 12)
    local.fold(AN_HOUR_ON)
    late = table(gpu("a", 15.0 * 13, power_watts=13.0))
    local.write_cycle(TABLE, late, at=HOUR + timedelta(seconds=15 * 13))

    local.fold(AN_HOUR_ON)

    assert [name for name in names(local) if name.startswith("cycle=")] == ["cycle=20261121T070315Z-folded.parquet"]
    assert len(watts(local.read_hour(TABLE, HOUR))) == 13


def test_parts_are_folded_apart_and_what_was_added_or_told_so_far_stays(local: ParquetLake) -> None:
    every_15_seconds(local, 3)
    every_15_seconds(local, 3, part="nvml")
    local.write_cycle(TABLE, table(gpu("b", 0)), at=HOUR, part=SO_FAR)
    local.add(TABLE, table(gpu("c", 0)))

    local.fold(AN_HOUR_ON)

    assert [name for name in names(local) if name.startswith("cycle=")] == [
        f"cycle=20261121T070000Z-{SO_FAR}.parquet",
        "cycle=20261121T070030Z-folded.parquet",
        "cycle=20261121T070030Z-nvml~folded.parquet",
        "cycle=added.parquet",
    ]


def test_cycle_written_again_after_it_was_folded_takes_nothing_away(local: ParquetLake) -> None:
    """A clock that was set back: the cycle of a time comes twice."""
    every_15_seconds(local, 4)
    local.fold(AN_HOUR_ON)

    local.write_cycle(TABLE, table(gpu("a", 45.0, power_watts=3.0)), at=HOUR + timedelta(seconds=45))

    assert len(watts(local.read_hour(TABLE, HOUR))) == 4


def test_who_dies_between_folding_and_removing_leaves_the_same_rows(local: ParquetLake, tmp_path: Path) -> None:
    every_15_seconds(local, 4)
    copies = {name: (hour_directory(local) / name).read_bytes() for name in names(local) if name.startswith("cycle=")}
    before = local.read_hour(TABLE, HOUR)
    local.fold(AN_HOUR_ON)

    for name, content in copies.items():
        (hour_directory(local) / name).write_bytes(content)

    assert local.read_hour(TABLE, HOUR) == before


def test_hour_has_the_same_bytes_whether_its_cycles_were_folded_or_not(tmp_path: Path) -> None:
    found = []
    for is_folded in (False, True):
        lake = ParquetLake(tmp_path / str(is_folded))
        every_15_seconds(lake, 8)
        if is_folded:
            lake.fold(AN_HOUR_ON)
        told = table(gpu("a", 0.0, power_watts=99.0))
        lake.close_hour(TABLE, HOUR, filled=told, retold={HOUR, HOUR + timedelta(seconds=105)})
        found.append(Path(lake.path_of_hour(TABLE, HOUR).path).read_bytes())

    assert found[0] == found[1]


def test_closed_hour_is_not_folded(local: ParquetLake) -> None:
    every_15_seconds(local, 4)
    local.close_hour(TABLE, HOUR)
    before = names(local)

    local.fold(AN_HOUR_ON)

    assert names(local) == before
