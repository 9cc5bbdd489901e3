"""What every lake must do. A subclass provides the fixture `lake`, an empty one."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from ops_pipelines.core.sources import Lake
from ops_pipelines.lake.schema import TABLES
from tests.ports.lake_samples import HOUR, TABLE, cells, gpu, many, table, watts

QUARTER_MINUTE = timedelta(seconds=15)
NEXT_HOUR = HOUR + timedelta(hours=1)


class LakeContract:
    """The port's contract, on any implementation."""

    # -- an open hour --

    def test_cycles_of_an_open_hour_are_read_as_one_sorted_table(self, lake: Lake) -> None:
        lake.write_cycle(TABLE, table(gpu("b", 15, power_watts=2.0), gpu("a", 15)), at=HOUR + QUARTER_MINUTE)
        lake.write_cycle(TABLE, table(gpu("a", 0, power_watts=1.0)), at=HOUR)

        rows = lake.read_hour(TABLE, HOUR)

        assert watts(rows) == [("a", 0, 1.0), ("a", 15, None), ("b", 15, 2.0)]
        assert isinstance(rows, pa.Table)
        assert rows.schema.equals(TABLES[TABLE].arrow())

    def test_the_same_cycle_written_again_replaces_the_file(self, lake: Lake) -> None:
        lake.write_cycle(TABLE, table(gpu("a", 0, power_watts=1.0), gpu("b", 0, power_watts=1.0)), at=HOUR)
        lake.write_cycle(TABLE, table(gpu("a", 0, power_watts=2.0)), at=HOUR)

        assert watts(lake.read_hour(TABLE, HOUR)) == [("a", 0, 2.0)]

    def test_parts_of_one_cycle_fill_the_cells_of_the_same_row(self, lake: Lake) -> None:
        lake.write_cycle(TABLE, table(gpu("a", 0, power_watts=1.0)), at=HOUR, part="prometheus")
        lake.write_cycle(TABLE, table(gpu("a", 0, gpu_model="H100")), at=HOUR, part="nvml")

        rows = lake.read_hour(TABLE, HOUR)

        assert cells(rows, "node", "power_watts", "gpu_model") == [("a", 1.0, "H100")]

    def test_rows_of_a_cycle_go_to_the_hour_of_their_own_time(self, lake: Lake) -> None:
        lake.write_cycle(TABLE, table(gpu("a", 3599), gpu("a", 3600), gpu("a", 3601)), at=NEXT_HOUR)

        assert watts(lake.read_hour(TABLE, HOUR)) == [("a", 3599, None)]
        assert watts(lake.read_hour(TABLE, NEXT_HOUR)) == [("a", 3600, None), ("a", 3601, None)]

    def test_an_hour_that_is_not_there_has_no_rows(self, lake: Lake) -> None:
        rows = lake.read_hour(TABLE, HOUR)

        assert isinstance(rows, pa.Table)
        assert rows.equals(TABLES[TABLE].arrow().empty_table())

    # -- closing --

    def test_closing_keeps_what_was_there_overlaid_by_what_was_filled_in(self, lake: Lake) -> None:
        lake.write_cycle(TABLE, table(gpu("a", 0, power_watts=1.0, gpu_model="H100"), gpu("b", 0)), at=HOUR)

        closed = lake.close_hour(TABLE, HOUR, filled=table(gpu("a", 0, power_watts=9.0), gpu("a", 15)))

        assert cells(closed, "node", "power_watts", "gpu_model") == [
            ("a", 9.0, "H100"),
            ("a", None, None),
            ("b", None, None),
        ]
        assert isinstance(closed, pa.Table)
        assert closed.equals(lake.read_hour(TABLE, HOUR))

    def test_closing_again_changes_nothing(self, lake: Lake) -> None:
        filled = many("ab", range(0, 60, 15))
        lake.write_cycle(TABLE, table(gpu("a", 0)), at=HOUR)
        first = lake.close_hour(TABLE, HOUR, filled=filled)

        assert lake.close_hour(TABLE, HOUR) == first
        assert lake.close_hour(TABLE, HOUR, filled=filled) == first

    def test_closing_an_hour_without_rows_gives_no_rows(self, lake: Lake) -> None:
        assert lake.close_hour(TABLE, HOUR).num_rows == 0
        assert lake.read_hour(TABLE, HOUR).num_rows == 0

    def test_a_cycle_that_comes_after_the_close_is_merged(self, lake: Lake) -> None:
        lake.close_hour(TABLE, HOUR, filled=table(gpu("a", 0, power_watts=1.0, gpu_model="H100")))

        lake.write_cycle(TABLE, table(gpu("a", 0, power_watts=2.0), gpu("a", 15, power_watts=3.0)), at=HOUR)

        assert watts(lake.read_hour(TABLE, HOUR)) == [("a", 0, 2.0), ("a", 15, 3.0)]

    def test_rows_of_another_hour_cannot_be_filled_in(self, lake: Lake) -> None:
        with pytest.raises(ValueError, match="do not belong to the hour"):
            lake.close_hour(TABLE, HOUR, filled=table(gpu("a", 3600)))
        with pytest.raises(ValueError, match="do not belong to the hour"):
            lake.close_hour(TABLE, HOUR, filled=table(gpu("a", -0.000001)))

    # -- adding --

    def test_added_rows_are_counted_per_hour_and_only_once(self, lake: Lake) -> None:
        rows = table(gpu("a", 0, power_watts=1.0), gpu("a", 3600), gpu("b", 3600))

        assert lake.add(TABLE, rows) == {HOUR: 1, NEXT_HOUR: 2}
        assert lake.add(TABLE, rows) == {HOUR: 0, NEXT_HOUR: 0}
        assert lake.add(TABLE, table(gpu("a", 0, temperature_celsius=3.0), gpu("c", 0))) == {HOUR: 1}
        assert cells(lake.read_hour(TABLE, HOUR), "node", "power_watts", "temperature_celsius") == [
            ("a", 1.0, 3.0),
            ("c", None, None),
        ]

    def test_rows_added_to_an_open_hour_are_there_before_and_after_its_close(self, lake: Lake) -> None:
        lake.write_cycle(TABLE, table(gpu("a", 0, power_watts=1.0)), at=HOUR)

        added = lake.add(TABLE, table(gpu("a", 0, gpu_model="H100"), gpu("b", 0)))
        added_again = lake.add(TABLE, table(gpu("b", 0), gpu("c", 0)))
        lake.write_cycle(TABLE, table(gpu("a", 15)), at=HOUR + QUARTER_MINUTE)

        expected = [("a", 1.0, "H100"), ("a", None, None), ("b", None, None), ("c", None, None)]
        assert (added, added_again) == ({HOUR: 1}, {HOUR: 1})
        assert cells(lake.read_hour(TABLE, HOUR), "node", "power_watts", "gpu_model") == expected
        assert cells(lake.close_hour(TABLE, HOUR), "node", "power_watts", "gpu_model") == expected

    def test_nothing_added_is_nothing_done(self, lake: Lake) -> None:
        assert lake.add(TABLE, table()) == {}

    def test_tables_of_records_are_kept_as_well(self, lake: Lake) -> None:
        rows = TABLES["rejected_rows"].from_rows(
            [{"source": "f", "record": f"line {n}", "time": HOUR, "reason": "no_time", "text": "é\n"} for n in (2, 10)]
        )

        lake.add("rejected_rows", rows)

        assert cells(lake.read_hour("rejected_rows", HOUR), "record") == [("line 10",), ("line 2",)]

    # -- what is refused --

    @pytest.mark.parametrize("name", ["", "..", "gpu_telemetry/..", "gpu_telemetry_5m", "/etc", "nothing"])
    def test_a_name_that_is_no_table_is_refused(self, lake: Lake, name: str) -> None:
        for deed in (lake.read_hour, lake.close_hour):
            with pytest.raises(ValueError, match="is no table of the lake"):
                deed(name, HOUR)
        with pytest.raises(ValueError, match="is no table of the lake"):
            lake.write_cycle(name, table(), at=HOUR)
        with pytest.raises(ValueError, match="is no table of the lake"):
            lake.add(name, table())

    def test_a_part_with_odd_characters_stays_in_its_hour(self, lake: Lake) -> None:
        lake.write_cycle(TABLE, table(gpu("a", 0)), at=HOUR, part="../../etc/passwd é")

        assert watts(lake.read_hour(TABLE, HOUR)) == [("a", 0, None)]

    @pytest.mark.parametrize(
        "hour", [datetime(2026, 11, 21, 7), HOUR + timedelta(seconds=1), HOUR - timedelta(microseconds=1)]
    )
    def test_a_time_that_starts_no_hour_in_utc_is_refused(self, lake: Lake, hour: datetime) -> None:
        with pytest.raises(ValueError, match="is no start of an hour"):
            lake.read_hour(TABLE, hour)

    def test_an_hour_is_the_same_in_any_time_zone(self, lake: Lake) -> None:
        lake.add(TABLE, table(gpu("a", 0)))

        abroad = HOUR.astimezone(datetime.strptime("+0530", "%z").tzinfo)
        with pytest.raises(ValueError, match="is no start of an hour"):
            lake.read_hour(TABLE, abroad + timedelta(minutes=30))
        assert lake.read_hour(TABLE, abroad).num_rows == 1
        assert abroad.astimezone(UTC) == HOUR

    def test_a_cycle_is_at_a_whole_second_with_a_time_zone(self, lake: Lake) -> None:
        for at in (HOUR + timedelta(microseconds=1), HOUR.replace(tzinfo=None)):
            with pytest.raises(ValueError, match="is no cycle"):
                lake.write_cycle(TABLE, table(), at=at)
