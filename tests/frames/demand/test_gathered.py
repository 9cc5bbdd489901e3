"""What the scheduler says now beside the lake, and which rows of an hour are kept."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.quotas.attempts import in_microseconds
from ops_pipelines.quotas.daily import active_teams, known_days, known_hours, settle_rows
from ops_pipelines.quotas.hourly import NUMBERS, SCHEMA
from ops_pipelines.quotas.spans import partition_types

START = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NO_TYPE = GpuType("")


def row(team: str, hour: int, *, kind: str = "", wanted: float = 0.0) -> dict[str, object]:
    numbers = dict.fromkeys(NUMBERS, 0.0) | {
        "gpus_running_avg": wanted,
        "gpus_demand_avg": wanted,
        "gpus_ran_last": wanted,
    }
    return {"team": team, "gpu_type": kind, "time": START + hour * HOUR, **numbers}


def table(*rows: dict[str, object]) -> pa.Table:
    return TABLES["gpu_demand"].from_rows(rows)


def settled(
    *rows: dict[str, object], count: int, teams: tuple[str, ...] = (), begin: int = 0
) -> list[tuple[object, ...]]:
    found = settle_rows(
        table(*rows),
        begin=in_microseconds(START + begin * HOUR),
        count=count,
        teams=frozenset(map(TeamName, teams)),
        kinds=frozenset({NO_TYPE}),
    )
    assert found.schema == SCHEMA
    return [(each["team"], (each["time"] - START) // HOUR, each["gpus_demand_avg"]) for each in found.to_pylist()]


def test_a_declared_team_has_a_row_in_every_hour_though_it_wanted_nothing() -> None:
    assert settled(count=2, teams=("a",)) == [("a", 0, 0.0), ("a", 1, 0.0)]
    assert settled(row("a", 0, wanted=8), row("a", 1), count=2, teams=("a",)) == [("a", 0, 8.0), ("a", 1, 0.0)]


def test_who_is_not_declared_has_rows_only_where_it_wanted_something() -> None:
    assert settled(row("b", 0), row("b", 1, wanted=8), count=2) == [("b", 1, 8.0)]


def test_without_teams_and_without_rows_there_is_nothing() -> None:
    assert settled(count=3) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 64)), max_size=6), st.integers(1, 5))
def test_an_hour_is_the_same_whichever_hours_are_settled_with_it(wanted: list[tuple[str, float]], cut: int) -> None:
    # Every team that any attempt names has a row in each of the hours that were computed together.
    teams = sorted({team for team, _ in wanted})
    amounts = {(team, place): amount for place, (team, amount) in enumerate(wanted)}
    rows = [row(team, hour, wanted=amounts.get((team, hour), 0.0)) for team in teams for hour in range(6)]
    hours = [[each for each in rows if each["time"] == START + hour * HOUR] for hour in range(6)]

    together = settled(*rows, count=6, teams=("a", "z"))
    apart = [
        *settled(*(each for some in hours[:cut] for each in some), count=cut, teams=("a", "z")),
        *settled(*(each for some in hours[cut:] for each in some), count=6 - cut, teams=("a", "z"), begin=cut),
    ]

    assert sorted(apart) == sorted(together)


def test_teams_that_want_nothing_are_not_active() -> None:
    assert active_teams(table(row("a", 0, wanted=1), row("b", 0))) == {"a"}


def test_hours_that_nobody_computed_are_left_out_of_their_day() -> None:
    rows = table(row("a", 0, wanted=4), row("a", 1, wanted=8), row("a", 3, wanted=2), row("b", 3, wanted=1))

    days, known = known_days(rows, start=START, end=START + 24 * HOUR, zone=ZoneInfo("UTC"), gpu_type=NO_TYPE)

    assert known == {START, START + HOUR, START + 3 * HOUR}
    (day,) = days
    assert day.hours == {"a": (4.0, 8.0, 2.0), "b": (0.0, 0.0, 1.0)}
    assert day.ran_last == {"a": 2.0, "b": 1.0}


def test_a_day_of_which_no_hour_is_known_is_no_day() -> None:
    rows = table(row("a", 30, wanted=4))

    days, _ = known_days(rows, start=START, end=START + 48 * HOUR, zone=ZoneInfo("UTC"), gpu_type=NO_TYPE)

    assert [each.day.day for each in days] == [2]


def test_an_hour_in_which_only_another_type_was_wanted_is_known() -> None:
    rows = table(row("a", 0, kind="h100", wanted=4))

    days, known = known_days(rows, start=START, end=START + 2 * HOUR, zone=ZoneInfo("UTC"), gpu_type=GpuType("a100"))

    assert known == known_hours(rows, start=START, end=START + HOUR) == {START}
    assert [each.hours for each in days] == [{}]


@pytest.mark.parametrize(
    ("partitions", "found"),
    [
        (("gpu", "gpu"), {}),
        (("gpu,fast", "gpu"), {"fast": "h100"}),
        (("fast", None), {"fast": "h100"}),
        (("", "slow"), {"slow": "a100"}),
    ],
)
def test_a_partition_has_a_type_if_all_of_its_nodes_have_it(
    partitions: tuple[str | None, ...], found: dict[str, str]
) -> None:
    rows = pa.table({"node": ["n1", "n2"], "partitions": pa.array(partitions, pa.string())})
    by_node = {NodeName("n1"): GpuType("h100"), NodeName("n2"): GpuType("a100")}

    assert partition_types(rows, by_node) == found
