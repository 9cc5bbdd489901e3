"""Rows of daily_peaks to series: what is carried, joined, replaced, summed, refused; and a note for each."""

import math
from datetime import date
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.capacity.model import Resource, SeriesKey
from ops_pipelines.capacity.peak_history import PeakHistory, ResourceHistory, read_history
from ops_pipelines.core.proposal import GpuType
from tests.frames.peaks.days_told import day, every, history, table_of, told


def gpus(found: PeakHistory) -> ResourceHistory:
    of_gpus = found.of(Resource.GPUS)
    assert of_gpus is not None
    return of_gpus


def key(name: str, *, resource: str = "gpus", gpu_type: str = "") -> SeriesKey:
    return SeriesKey(resource=resource, gpu_type=GpuType(gpu_type), name=name)


def column(found: ResourceHistory, name: str) -> list[float]:
    place = [each.name for each in found.keys].index(name)
    return [float(each) for each in found.series.gpus[:, place]]


def test_days_become_series_in_the_order_of_their_keys_and_nothing_is_said() -> None:
    rows = told("b", {0: 4.0, 1: 9.0}) + told("a", {0: 1.0, 1: 2.0}) + told("", {0: 5.0, 1: 10.0})

    found = history(rows, days=2)

    assert [each.resource for each in found.resources] == [Resource.GPUS]
    assert found.notes == ()
    of_gpus = gpus(found)
    assert of_gpus.keys == (key("a"), key("b"))
    assert of_gpus.series.first_day == day(0)
    assert (column(of_gpus, "a"), column(of_gpus, "b")) == ([1.0, 2.0], [4.0, 9.0])
    assert of_gpus.sums == (key(""),)
    assert of_gpus.members == ((0, 1),)
    assert of_gpus.summed is not None
    assert of_gpus.summed[:, 0].tolist() == [5.0, 10.0]
    assert of_gpus.notes == {}


def test_no_rows_give_no_resources() -> None:
    found = history([], days=9)

    assert (found.resources, found.notes) == ((), ())


def test_rows_of_until_and_later_are_not_looked_at() -> None:
    found = history(told("a", every(range(9))), days=5)

    assert gpus(found).series.day_count == 5


@pytest.mark.parametrize(("gap", "is_carried"), [(13, True), (14, True), (15, False)])
def test_short_gap_is_carried_and_a_series_begins_anew_after_a_long_one(gap: int, is_carried: bool) -> None:
    rows = told("a", every(range(5), 8.0)) + told("a", every(range(5 + gap, 30))) + told("b", every(range(30)))

    found = gpus(history(rows, days=30))

    if is_carried:
        assert column(found, "a")[4 : 5 + gap] == [8.0] * (gap + 1)
        assert f"{gap} days from {day(5)} on carried from the day before" in found.notes[key("a")]
    else:
        assert all(math.isnan(each) for each in column(found, "a")[: 5 + gap])
        assert f"{gap} days are missing from {day(5)} on; it begins after them" in found.notes[key("a")]


def test_team_that_ended_wants_nothing_and_that_is_said() -> None:
    found = gpus(history(told("a", every(range(10))) + told("b", every(range(30))), days=30))

    assert column(found, "a")[9:12] == [16.0, 0.0, 0.0]
    assert found.notes[key("a")] == (f"no hours from {day(10)} on; taken as no demand",)


@pytest.mark.parametrize(("silent", "last"), [(14, 9.0), (15, 0.0)])
def test_meter_that_falls_silent_is_carried_as_long_as_a_gap(silent: int, last: float) -> None:
    rows = told("r1", every(range(30 - silent), 9.0), resource="rack_watts")
    rows += told("r2", every(range(30), 7.0), resource="rack_watts")

    found = history(rows, days=30).of(Resource.RACK_WATTS)

    assert found is not None
    assert column(found, "r1")[-1] == last


@pytest.mark.parametrize(("silent", "day_count"), [(0, 30), (1, 30), (14, 30), (15, 15)])
def test_days_before_until_of_which_nothing_is_known_are_carried_or_end_the_series(silent: int, day_count: int) -> None:
    found = history(told("a", every(range(30 - silent))), days=30)

    assert gpus(found).series.day_count == day_count
    missing = "1 day" if silent == 1 else f"{silent} days"
    words = f"{missing} from {day(30 - silent)} on are missing altogether: materialise daily_peaks there"
    assert found.notes == ((words,) if silent else ())
    assert (key("a") in gpus(found).notes) == bool(silent)


def test_holiday_is_as_the_same_weekday_a_week_before_unless_it_was_higher() -> None:
    peaks = every(range(21), 16.0) | {8: 2.0, 9: 40.0}
    rows = told("a", peaks) + told("", peaks)

    found = gpus(history(rows, days=21, holidays=(day(8), day(9), day(3))))

    assert column(found, "a")[8:10] == [16.0, 40.0]
    assert found.summed is not None
    assert found.summed[8:10, 0].tolist() == [16.0, 40.0]
    assert found.notes[key("a")] == (f"holiday {day(8)} taken as the same weekday a week before",)


def test_bytes_stay_where_they_are_on_a_holiday() -> None:
    rows = told("/data", dict(enumerate(map(float, range(20, 5, -1)))), resource="storage_bytes")

    found = history(rows, days=15, holidays=(day(8),)).of(Resource.STORAGE_BYTES)

    assert found is not None
    assert column(found, "/data") == [float(each) for each in range(20, 5, -1)]


def test_sum_that_a_day_lacks_is_that_of_the_peaks_and_a_carried_day_carries_it() -> None:
    ones = every([0, 1, 3, 4], 10.0)
    rows = told("a", ones) + told("b", ones) + told("", {0: 15.0, 3: 14.0})

    found = gpus(history(rows, days=5))

    assert found.summed is not None
    # The members are the same on day 1 as on day 0: nothing says that their sum is not.
    assert found.summed[:, 0].tolist() == [15.0, 15.0, 15.0, 14.0, 14.0]

    found = gpus(history(told("a", {0: 10.0, 1: 12.0}) + told("b", {0: 10.0, 1: 9.0}) + told("", {0: 15.0}), days=2))

    assert found.summed is not None
    assert found.summed[:, 0].tolist() == [15.0, 21.0]
    assert any(f"1 day from {day(1)} on taken as the sum of the teams' peaks" in each for each in found.notes[key("")])


def test_types_have_sums_of_their_own() -> None:
    rows = told("a", every(range(3)), gpu_type="a100") + told("a", every(range(3), 8.0), gpu_type="h100")

    found = gpus(history(rows, days=3))

    assert found.sums == (key("", gpu_type="a100"), key("", gpu_type="h100"))
    assert found.members == ((0,), (1,))
    assert found.series.names == ("a100/a", "h100/a")


def test_team_that_looks_renamed_is_named_for_a_person() -> None:
    found = gpus(history(told("old", every(range(20))) + told("new", every(range(21, 60))), days=60))

    assert any("begins where old ends, and is of its size" in each for each in found.notes[key("new")])


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"peak": -1.0, "mean": -2.0}, "has a peak below 0; expected 0 or more"),
        ({"peak": math.nan}, "has no peak; expected a number of 0 or more"),
        ({"peak": None}, "has no peak; expected a number of 0 or more"),
        ({"peak": math.inf}, "has a peak without end or beyond 1e+24; expected a number"),
        ({"mean": 17.0}, "has a mean above its peak; expected none higher"),
        ({"limit": -5.0}, "has a limit below 0; expected 0 or more"),
        ({"hour_count": 17}, "is reported by less than three quarters of the hours"),
        ({"zone": "Mars/Olympus"}, "names no time zone"),
    ],
)
def test_row_that_cannot_be_true_is_left_out_and_named(cells: dict[str, object], words: str) -> None:
    rows = told("a", every([0, 2, 3])) + [{**row, **cells} for row in told("a", {1: 16.0})]

    found = gpus(history(rows, days=4))

    assert any(each.startswith("1 row left out") and words in each for each in found.notes[key("a")])
    assert column(found, "a") == [16.0] * 4


def test_day_counts_from_three_quarters_of_its_hours_on() -> None:
    assert gpus(history(told("a", every(range(3)), hour_count=18), days=3)).notes == {}


def test_series_of_which_no_row_is_believed_and_strange_resources_are_named_among_all() -> None:
    rows = told("a", every(range(3))) + told("b", every(range(2), -1.0)) + told("x", {0: 1.0}, resource="moon")

    found = history(rows, days=3)

    assert gpus(found).keys == (key("a"),)
    assert any(each.startswith("gpus b: 2 rows left out, the first of 2026-01-05") for each in found.notes)
    assert any(each.startswith("moon x: 1 row left out") for each in found.notes)


def test_day_that_is_told_twice_counts_once_and_two_that_differ_count_not_at_all() -> None:
    rows = told("a", every(range(5))) + told("a", {1: 16.0}) + told("a", {3: 20.0})

    found = gpus(history(rows, days=5))

    assert column(found, "a") == [16.0] * 5
    said = found.notes[key("a")]
    assert any("1 row left out, the first of 2026-01-06: tell a day again" in each for each in said)
    assert any("2 rows left out, the first of 2026-01-08: tell one day differently" in each for each in said)


def test_days_of_another_zone_are_joined_by_their_local_date_and_that_of_now_goes_before() -> None:
    rows = told("a", every(range(5), 8.0), zone="Asia/Shanghai") + told("a", every(range(4, 9)), zone="UTC")

    found = history(rows, days=9)

    assert column(gpus(found), "a") == [8.0] * 4 + [16.0] * 5
    assert found.notes == (
        f"days from {day(0)} to {day(3)} were reported in Asia/Shanghai, not in UTC; joined by their local date",
    )
    assert any("of another time zone, where UTC reports the same day" in each for each in gpus(found).notes[key("a")])


def test_days_on_which_the_clock_is_changed_follow_each_other() -> None:
    rows = told("a", every(range(120)), zone="Europe/Berlin")

    found = history(rows, days=120, zone="Europe/Berlin")

    assert gpus(found).series.day_count == 120
    assert found.notes == ()


def test_cap_is_that_of_the_newest_row_and_limits_of_meters_the_last_that_was_told() -> None:
    rows = told("a", every(range(3)), limit=64.0) + told("b", every(range(2)), limit=32.0) + told("b", {2: 16.0})
    rows += told("r1", every(range(2)), resource="rack_watts", limit=900.0)
    rows += told("r1", {2: 16.0}, resource="rack_watts")

    found = history(rows, days=3)

    assert gpus(found).series.cap_gpus.tolist() == [64.0, math.inf]
    assert gpus(found).limits == {key("a"): 64.0}
    racks = found.of(Resource.RACK_WATTS)
    assert racks is not None
    assert racks.limits == {key("r1", resource="rack_watts"): 900.0}
    assert racks.series.cap_gpus.tolist() == [math.inf]


def test_censored_days_are_named() -> None:
    found = gpus(history(told("a", every(range(5)), censored_hours=6, limit=16.0), days=5))

    assert found.notes[key("a")] == (
        "censored: at its cap in 30 hours on 5 of the last 91 days; more may have been requested",
    )


@pytest.mark.parametrize(
    ("cells", "ratio"),
    [
        ({"running_mean": 10.0, "idle_mean": 2.0, "waiting_mean": 3.0}, 0.2),
        ({"idle_mean": 2.0, "waiting_mean": 2.0}, 0.25),
        ({"running_mean": 0.0, "idle_mean": 0.0, "waiting_mean": 0.0}, None),
        ({}, None),
    ],
)
def test_share_of_idle_gpus_is_of_those_that_ran(cells: dict[str, float], ratio: float | None) -> None:
    found = gpus(history([{**row, **cells} for row in told("a", every(range(5)))], days=5))

    assert found.idle_ratio.get(key("a")) == (None if ratio is None else pytest.approx(ratio))


def test_means_of_what_supply_is_drawn_from_are_the_newest_365() -> None:
    rows = told("broken", {number: float(number) for number in range(400)}, resource="gpus_out")

    found = history(rows, days=400).of(Resource.GPUS_OUT)

    assert found is not None
    means = found.means[key("broken", resource="gpus_out")]
    assert (len(means), means[0], means[-1]) == (365, 17.5, 199.5)
    assert gpus(history(told("a", every(range(3))), days=3)).means == {}


def test_rows_of_all_teams_without_any_team_are_refused() -> None:
    with pytest.raises(ValueError, match="of no team; expected rows of teams beside them"):
        history(told("", every(range(3))), days=3)


def test_rows_without_a_column_are_refused_by_its_name() -> None:
    with pytest.raises(KeyError, match="zone"):
        read_history(table_of([]).drop_columns(["zone"]), until=day(1), zone=ZoneInfo("UTC"))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", ""]), st.integers(0, 60), st.floats(allow_nan=True, allow_infinity=True)),
        max_size=60,
    )
)
def test_whatever_is_told_gives_series_that_a_forecast_takes(rows: list[tuple[str, int, float]]) -> None:
    listed = [row for name, number, peak in rows for row in told(name, {number: peak}, mean=0.0)]
    listed += told("c", every(range(60), 3.0))

    found = gpus(history(listed, days=60, holidays=(date(2026, 1, 20),)))

    assert len(found.keys) == len(found.series.names)
    assert found.summed is not None
    assert found.summed.shape == (found.series.day_count, len(found.sums))
    known = ~np.isnan(found.summed)
    assert (known[1:] >= known[:-1]).all()


def test_same_rows_in_another_order_give_the_same_history() -> None:
    rows = told("a", every(range(9))) + told("b", every(range(3, 9))) + told("a", {4: 2.0}) + told("", every(range(4)))

    one, other = gpus(history(rows, days=9)), gpus(history(rows[::-1], days=9))

    assert (one.keys, one.notes, one.limits) == (other.keys, other.notes, other.limits)
    np.testing.assert_array_equal(one.series.gpus, other.series.gpus)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({"hour_count": 10**18}, "has a hour_count above 25"),
        ({"hour_count": 26}, "has a hour_count above 25"),
        ({"near_peak_hours": 1e18}, "has a near_peak_hours above 25"),
        ({"peak": 1.1e7, "mean": 1.0}, "has a peak beyond 1e+07 GPUs"),
    ],
)
def test_more_than_a_day_or_a_cluster_can_have_is_left_out_and_said(cells: dict[str, object], says: str) -> None:
    wrong = [{**each, **cells} for each in told("a", {3: 8.0})]

    found = gpus(history([*told("a", every((0, 1, 2, 4, 5))), *wrong], days=6))

    assert any(says in each for each in found.notes[key("a")]), found.notes


@pytest.mark.parametrize(("above", "is_said"), [(6, False), (7, True)])
def test_a_week_in_which_all_teams_wanted_more_than_the_known_ones_is_said(above: int, is_said: bool) -> None:
    whole = told("", every(range(40 - above), 8.0)) + told("", every(range(40 - above, 40), 9.0))

    found = gpus(history(told("a", every(range(40), 8.0)) + whole, days=40))

    said = [each for each in found.notes.get(key(""), ()) if "rows of teams are missing" in each]
    assert bool(said) is is_said
    assert all(each.startswith(f"{above} days from {day(40 - above)} on") for each in said)
