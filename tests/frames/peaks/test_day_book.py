"""Hours of a day to rows: peak, mean, hours near the peak, what is reported by too few hours; GPUs, and what is out."""

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from ops_pipelines.capacity.model import Resource
from ops_pipelines.capacity.peak_days import DayBook, put_gpus, put_stranded
from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.core.periods import HOUR, day_begins, first_hour
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.efficiency.placement.standing import Absence, Away, Machine, Stay
from ops_pipelines.lake.schema import TABLES

NO_TYPE = GpuType("")
DAY = date(2026, 11, 20)


def book_of(day: date = DAY, zone: str = "UTC") -> DayBook:
    own = ZoneInfo(zone)
    return DayBook(
        day=day,
        start=first_hour(day, zone=own),
        end=first_hour(day + timedelta(days=1), zone=own),
        begins_at=day_begins(day, zone=own),
        zone=zone,
    )


def demand(
    book: DayBook, wanted: Mapping[tuple[str, str], Mapping[int, tuple[float, float, float, float]]]
) -> pa.Table:
    """(requested, ran, idle, waited) by team and type, and hour."""
    return TABLES["gpu_demand"].from_rows(
        {
            "team": team,
            "gpu_type": kind,
            "time": book.start + hour * HOUR,
            "gpus_demand_avg": each[0],
            "gpus_running_avg": each[1],
            "gpus_wasted_avg": each[2],
            "gpus_pending_avg": each[3],
        }
        for (team, kind), hours in wanted.items()
        for hour, each in hours.items()
    )


def rows_of(book: DayBook) -> dict[tuple[object, object, object], dict[str, object]]:
    return {(row["resource"], row["gpu_type"], row["name"]): row for row in book.close()}


def test_day_is_its_highest_hour_its_mean_and_how_long_it_was_near() -> None:
    book = book_of()
    for hour in range(24):
        book.put(Resource.RACK_WATTS, {"r1": {11: 90.0, 12: 100.0, 13: 89.9}.get(hour, 10.0)}, hour=hour)
    book.limit(Resource.RACK_WATTS, {"r1": 200.0})

    (row,) = book.close()

    assert (row["peak"], row["near_peak_hours"], row["hour_count"]) == (100.0, 2.0, 24)
    assert row["mean"] == pytest.approx((21 * 10.0 + 279.9) / 24)
    assert (row["limit"], row["unit"], row["time"], row["zone"]) == (200.0, "W", book.begins_at, "UTC")


def test_day_without_anything_has_no_hours_near_its_peak() -> None:
    book = book_of()
    for hour in range(24):
        book.put(Resource.GPUS_OUT, {"broken": 0.0}, hour=hour)

    (row,) = book.close()

    assert (row["peak"], row["mean"], row["near_peak_hours"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("day", "hours", "told"),
    [
        (DAY, 17, False),
        (DAY, 18, True),
        (date(2026, 3, 29), 17, False),
        (date(2026, 3, 29), 18, True),
        (date(2026, 10, 25), 18, False),
        (date(2026, 10, 25), 19, True),
    ],
)
def test_series_is_told_with_three_quarters_of_the_hours_of_its_day(day: date, hours: int, told: bool) -> None:
    book = book_of(day, "Europe/Berlin")
    for hour in range(hours):
        book.put(Resource.RACK_WATTS, {"r1": 1.0}, hour=hour)

    assert len(book.close()) == told
    assert len(book.notes) == (not told)


@pytest.mark.parametrize(
    ("day", "zone", "count"),
    [
        (DAY, "UTC", 24),
        (date(2026, 3, 29), "Europe/Berlin", 23),
        (date(2026, 10, 25), "Europe/Berlin", 25),
        (DAY, "Asia/Kolkata", 24),
    ],
)
def test_hours_of_a_day_are_those_that_begin_in_it(day: date, zone: str, count: int) -> None:
    book = book_of(day, zone)

    assert len(book.hours) == count
    assert [book.place_of(each) for each in (book.start - HOUR, book.start, book.end - HOUR, book.end)] == [
        None,
        0,
        count - 1,
        None,
    ]


def test_teams_and_all_of_them_have_peaks_of_their_own() -> None:
    book = book_of()
    calm = dict.fromkeys(range(24), (4.0, 4.0, 1.0, 0.0))
    rows = demand(
        book,
        {("a", ""): calm | {3: (20.0, 8.0, 2.0, 12.0)}, ("b", ""): calm | {4: (16.0, 16.0, 0.0, 0.0)}},
    )

    put_gpus(book, rows, caps={(TeamName("a"), NO_TYPE): 8.0})

    found = rows_of(book)
    one, both = found["gpus", "", "a"], found["gpus", "", ""]
    assert (one["peak"], one["limit"], one["censored_hours"]) == (20.0, 8.0, 1)
    assert one["waiting_mean"] == pytest.approx(0.5)
    assert one["idle_mean"] == pytest.approx(25 / 24)
    assert one["running_mean"] == pytest.approx(100 / 24)
    assert found["gpus", "", "b"]["limit"] is None
    assert (both["peak"], both["limit"], both["censored_hours"]) == (24.0, None, 1)


@pytest.mark.parametrize(("ran", "hours"), [(7.83, 0), (7.84, 24), (8.0, 24)])
def test_team_stands_at_its_cap_from_98_percent_on(ran: float, hours: int) -> None:
    book = book_of()
    put_gpus(
        book,
        demand(book, {("a", ""): dict.fromkeys(range(24), (ran, ran, 0.0, 0.0))}),
        caps={(TeamName("a"), NO_TYPE): 8.0},
    )

    assert rows_of(book)["gpus", "", "a"]["censored_hours"] == hours


def test_team_without_a_row_wanted_nothing_in_an_hour_that_is_known_and_unknown_hours_are_said() -> None:
    book = book_of()
    one = dict.fromkeys(range(20), (4.0, 4.0, 0.0, 0.0))
    put_gpus(book, demand(book, {("a", "h100"): one, ("b", "h100"): {3: (6.0, 6.0, 0.0, 0.0)}}), caps={})

    found = rows_of(book)

    assert found["gpus", "h100", "b"]["hour_count"] == 20
    assert found["gpus", "h100", "b"]["mean"] == pytest.approx(0.3)
    assert book.notes == ["gpus: 4 of 24 hours of gpu_demand are not known"]


def test_jobs_without_an_account_are_not_taken_for_all_teams_together() -> None:
    book = book_of()
    hours = dict.fromkeys(range(24), (4.0, 4.0, 0.0, 0.0))
    put_gpus(book, demand(book, {("", ""): hours, ("a", ""): hours}), caps={})

    peaks = {name: row["peak"] for (_, _, name), row in rows_of(book).items()}
    assert peaks == {"": 8.0, "a": 4.0, "unknown team": 4.0}


def test_no_hour_of_demand_gives_no_rows_and_a_note() -> None:
    book = book_of()
    put_gpus(book, demand(book, {}), caps={})

    assert book.close() == []
    assert book.notes == ["gpus: no hour of gpu_demand is known; materialise it there"]


def at(hours: float) -> datetime:
    return book_of().start + timedelta(hours=hours)


def machine(name: str) -> Machine:
    return Machine(node=NodeName(name), place=Place(rack="r", nvlink_domain=name, leaf_switch="l"), gpu_count=8)


def stay(node: str, gpus: float, since: float, until: float | None) -> Stay:
    return Stay(
        job=f"{node}-{since}", name="", user="", team=TeamName("a"), partition="p", began_at=at(since),
        ended_at=None if until is None else at(until), gpus={NodeName(node): gpus},
    )  # fmt: skip


def test_free_gpus_of_nodes_that_are_held_in_part_are_in_pieces() -> None:
    book = book_of()
    put_stranded(
        book,
        [machine("n1"), machine("n2"), machine("n3")],
        [stay("n1", 6, 2, 4.5), stay("n2", 8, 0, None), stay("n3", 4, 0, None)],
        absences=[Absence(node=NodeName("n3"), why=Away.DRAINED, since=at(1), until=None)],
        type_of={NodeName("n1"): GpuType("h100"), NodeName("n2"): GpuType("h100"), NodeName("n3"): GpuType("a100")},
        known=range(24),
    )

    found = rows_of(book)

    one, other = found["gpus_stranded", "h100", ""], found["gpus_stranded", "a100", ""]
    assert (one["peak"], one["mean"]) == (2.0, pytest.approx(5 / 24))
    # Of a node that is drained the ledger knows.
    assert (other["peak"], other["mean"]) == (4.0, pytest.approx(4 / 24))
