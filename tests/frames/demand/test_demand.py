"""gpu_demand: what ran, what waited, what counts, each moment of a job once."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.lake.accounting import allocations_of
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.quotas.attempts import MOST_TASKS, read_tasks
from ops_pipelines.quotas.daily import demand_days, sum_days
from ops_pipelines.quotas.hourly import SCHEMA, DemandRules, HourlyDemand, read_demand
from ops_pipelines.quotas.spans import Counts, GpuTypes, find_reason, read_wait_reasons

START = datetime(2026, 3, 1, tzinfo=UTC)
H100, A100 = GpuType("h100"), GpuType("a100")
Cells = dict[str, object]


def at(hour: float) -> datetime:
    return START + timedelta(hours=hour)


def ran(job: str, begin: float, end: float | None, *, waited: float = 0.0, **others: object) -> Cells:
    """An attempt that ran in [begin, end) hours, after waiting for so many hours."""
    return {
        "job": job,
        "attempt": at(begin).isoformat(),
        "time": at(begin if end is None else end),
        "account": "a",
        "partition": "gpu",
        "state": "RUNNING" if end is None else "COMPLETED",
        "submitted_at": at(begin - waited),
        "eligible_at": at(begin - waited),
        "started_at": at(begin),
        "ended_at": None if end is None else at(end),
        "gpu_count": 8,
        "nodes": "n1",
        **others,
    }


def waits(job: str, since: float, until: float | None = None, **others: object) -> Cells:
    """A job that waits since an hour, or gave up at another."""
    state = "PENDING" if until is None else "CANCELLED"
    cells = ran(job, since, since, state=state, attempt="unstarted", started_at=None, nodes=None)
    return {**cells, "ended_at": None if until is None else at(until), **others}


def table(name: str, rows: Sequence[Cells]) -> pa.Table:
    return TABLES[name].from_rows(rows)


def demand(
    *rows: Cells,
    hours: int = 4,
    begin: int = 0,
    rules: DemandRules | None = None,
    allocations: pa.Table | None = None,
    idle: Sequence[Cells] = (),
) -> HourlyDemand:
    found = read_demand(
        table("job_accounting", rows),
        allocations=table("job_allocations", ()) if allocations is None else allocations,
        efficiency=table("gpu_efficiency", idle),
        start=at(begin),
        end=at(begin + hours),
        rules=rules,
    )
    assert found.table.schema == SCHEMA
    return found


def column(found: HourlyDemand, name: str, *, team: str = "a", kind: str = "") -> list[float]:
    rows = [row for row in found.table.to_pylist() if row["team"] == team and row["gpu_type"] == kind]
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    return [row[name] for row in rows]


def test_what_runs_is_weighed_by_its_time_within_the_hour() -> None:
    found = demand(ran("1", 0.5, 2.25), ran("2", -5, 0.25, gpu_count=4))

    assert column(found, "gpus_running_avg") == [5.0, 8.0, 2.0, 0.0]
    assert column(found, "jobs_running_avg") == [0.75, 1.0, 0.25, 0.0]
    assert column(found, "gpus_ran_last") == [8.0, 8.0, 0.0, 0.0]
    assert found.notes == ()


def test_an_attempt_that_ends_with_the_hour_ran_at_its_end_and_not_in_the_next() -> None:
    found = demand(ran("1", 0, 1), ran("2", 1, 2, gpu_count=2))

    assert column(found, "gpus_ran_last") == [8.0, 2.0, 0.0, 0.0]
    assert column(found, "gpus_running_avg") == [8.0, 2.0, 0.0, 0.0]


def test_a_job_waits_from_when_it_could_start_to_its_start() -> None:
    found = demand(
        ran("1", 2, 3, waited=1.5),
        # Submitted at 0, eligible at 1 only: its begin time.
        ran("2", 2, 3, waited=2, eligible_at=at(1), gpu_count=2),
        ran("3", 1, 3, waited=1, eligible_at=None, gpu_count=1),
    )

    assert column(found, "gpus_pending_avg") == [5.0, 10.0, 0.0, 0.0]
    assert column(found, "gpus_pending_max") == [9.0, 10.0, 0.0, 0.0]
    assert column(found, "gpus_demand_avg") == [5.0, 11.0, 11.0, 0.0]


def test_the_most_that_waits_at_once_is_exact() -> None:
    one, other = waits("1", 0.2, 0.6), waits("2", 0.6, 0.9, gpu_count=16)

    assert column(demand(one, other), "gpus_pending_max") == [16.0, 0.0, 0.0, 0.0]
    assert column(demand(one, {**other, "submitted_at": at(0.59), "eligible_at": at(0.59)}), "gpus_pending_max") == [
        24.0, 0.0, 0.0, 0.0,
    ]  # fmt: skip


def test_a_job_that_waits_still_and_one_that_gave_up() -> None:
    found = demand(waits("1", 1.5), waits("2", 0, 1.5, gpu_count=2))

    assert column(found, "gpus_pending_avg") == [2.0, 5.0, 8.0, 8.0]
    assert column(found, "gpus_running_avg") == [0.0] * 4


def test_a_requeued_job_waits_between_its_attempts_and_is_counted_once() -> None:
    found = demand(
        ran("1", 0, 1, state="REQUEUED"),
        ran("1", 1.5, 2.5, waited=9, state="NODE_FAIL"),
        # It became eligible two minutes after its end: the scheduler's own doing.
        ran("1", 3, 4, waited=0.5 - 2 / 60),
    )

    assert column(found, "gpus_running_avg") == [8.0, 4.0, 4.0, 8.0]
    assert column(found, "gpus_pending_avg") == [0.0, 4.0, 4.0, 0.0]


@pytest.mark.parametrize(("minutes", "pending"), [(2.99, 8.0), (3.0, 8.0), (3.01, 8.0 * (1 - 3.01 / 60))])
def test_a_requeued_job_that_somebody_held_waits_from_when_it_was_let_go(minutes: float, pending: float) -> None:
    second = ran("1", 2, 3, eligible_at=at(1 + minutes / 60), submitted_at=at(1))

    found = demand(ran("1", 0, 1, state="REQUEUED"), second)

    assert column(found, "gpus_pending_avg")[1] == pytest.approx(pending, abs=1e-6)


def test_a_requeued_job_that_waits_still_or_gave_up_is_counted_once() -> None:
    first = ran("1", 0, 1, state="REQUEUED")

    still, gave_up = demand(first, waits("1", 0)), demand(first, waits("1", 0, 2))

    assert column(still, "gpus_demand_avg") == [8.0] * 4
    assert column(gave_up, "gpus_demand_avg") == [8.0, 8.0, 0.0, 0.0]


def test_a_row_of_a_waiting_job_that_has_run_since_is_passed_over() -> None:
    old = waits("1", 0)

    over, running = demand(old, ran("1", 1, 2, waited=1)), demand(old, ran("1", 1, None, waited=1))

    assert column(over, "gpus_demand_avg") == [8.0, 8.0, 0.0, 0.0]
    assert column(running, "gpus_demand_avg") == [8.0] * 4
    assert over.notes == running.notes == ("1 row of waiting jobs passed over: later rows say that the jobs ran",)


def test_a_job_number_that_is_used_again_is_another_job() -> None:
    found = demand(ran("1", 0, 1), waits("1", 2))

    assert column(found, "gpus_demand_avg") == [8.0, 0.0, 8.0, 8.0]


def test_an_attempt_read_while_it_ran_and_again_after_its_end_is_one() -> None:
    found = demand(ran("1", 0, None), ran("1", 0, 1.5))

    assert column(found, "gpus_running_avg") == [8.0, 4.0, 0.0, 0.0]
    assert found.notes == ()


def test_of_an_attempt_told_with_two_ends_the_later_counts_and_it_is_told() -> None:
    found = demand(ran("1", 0, 1), ran("1", 0, 2))

    assert column(found, "gpus_running_avg") == [8.0, 8.0, 0.0, 0.0]
    assert found.notes == ("one attempt reported in two ways, the later end counted: 1",)


def test_of_two_attempts_at_once_the_later_start_counts_and_it_is_told() -> None:
    found = demand(ran("1", 0, 3, state="NODE_FAIL"), ran("1", 1, 2, gpu_count=4))

    assert column(found, "gpus_running_avg") == [8.0, 4.0, 0.0, 0.0]
    assert found.notes == ("two attempts at once, the earlier ended where the later starts: 1",)


def test_parts_of_a_heterogeneous_job_and_tasks_of_an_array_add_up() -> None:
    found = demand(ran("40+0", 0, 1), ran("40+1", 0, 1, gpu_count=4), ran("30_1", 0, 1, gpu_count=1))

    assert column(found, "gpus_running_avg")[0] == 13.0


def test_waiting_tasks_of_an_array_count_each_until_it_starts() -> None:
    found = demand(waits("30_[3-5]", 0, gpu_count=2), ran("30_4", 1, 2, waited=1, gpu_count=2))

    assert column(found, "gpus_pending_avg") == [6.0, 4.0, 4.0, 4.0]


def test_of_an_array_no_more_tasks_wait_than_it_lets_run_at_once() -> None:
    found = demand(waits("30_[0-9%3]", 0, gpu_count=2))

    assert column(found, "gpus_pending_avg") == [6.0] * 4
    assert found.notes == ("not counted: 56.0 GPU-hours of 7 waits (tasks beyond what their array lets run at once)",)


@pytest.mark.parametrize(
    ("text", "tasks", "limit", "is_whole"),
    [
        ("30_[3-5]", (3, 4, 5), 0, True),
        ("30_[1,4-6%2]", (1, 4, 5, 6), 2, True),
        ("30_[0-6:3]", (0, 3, 6), 0, True),
        ("30_[1,2,...]", (1, 2), 0, False),
        (f"30_[1-{MOST_TASKS}]", tuple(range(1, MOST_TASKS + 1)), 0, True),
        (f"30_[0-{MOST_TASKS}]", tuple(range(MOST_TASKS)), 0, False),
        ("30_[]", (), 0, False),
    ],
)
def test_array_notation(text: str, tasks: tuple[int, ...], limit: int, is_whole: bool) -> None:
    assert read_tasks(text) == ("30", tasks, limit, is_whole)


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        (None, True),
        ("Priority", True),
        ("AssocGrpGRES", True),
        ("QOSGrpGRES", True),
        ("AssocGrpGRESRunMinutes", True),
        ("ReqNodeNotAvail, UnavailableNodes:gpu003", True),
        ("AssocGrpGRESMinutes", False),
        ("Dependency", False),
        ("BeginTime", False),
        ("JobHeldUser", False),
        ("JobHeldAdmin", False),
        ("job requeued in held state", False),
        ("launch failed requeued held", False),
        ("PartitionConfig", False),
        ("AssocMaxWallDurationPerJobLimit", False),
        ("AssocMaxGRESPerJob", False),
        ("QOSMaxGRESPerJob", False),
        ("QOSMaxGRESPerUser", True),
        ("BadConstraints", False),
        ("DependencyNeverSatisfied", False),
    ],
)
def test_whether_a_wait_counts_is_told_by_its_reason(reason: str | None, counts: bool) -> None:
    found = demand(waits("1", 0, eligible_at=None, reason=reason))

    assert column(found, "gpus_pending_avg") == [8.0 if counts else 0.0] * 4
    assert [note.startswith("not counted: 32.0 GPU-hours of 1 wait (") for note in found.notes] == [True] * (not counts)


@pytest.mark.parametrize("reason", ["Dependency", "BeginTime"])
def test_a_job_counts_from_when_what_it_waited_for_was_there(reason: str) -> None:
    found = demand(ran("1", 3, 4, waited=3, eligible_at=at(2), reason=reason))

    assert column(found, "gpus_pending_avg") == [0.0, 0.0, 8.0, 0.0]


def test_a_reason_that_nobody_knows_counts_and_is_named() -> None:
    found = demand(waits("1", 0, reason="FullMoon"))

    assert column(found, "gpus_pending_avg") == [8.0] * 4
    assert found.notes == ("1 wait counted, though nobody knows the reason 'FullMoon': add it to wait_reasons",)


def test_each_reason_of_the_catalogue_is_reached() -> None:
    for row in read_wait_reasons():
        example = row.reason.replace("*", "X")
        assert find_reason(example) is row, row.reason
    assert {row.counts for row in read_wait_reasons()} == set(Counts)


@pytest.mark.parametrize(("gpus", "counts"), [(15, True), (16, True), (17, False)])
@pytest.mark.parametrize(
    "rules",
    [
        DemandRules(caps={(TeamName("a"), GpuType("")): 16.0}),
        DemandRules(installed={GpuType(""): 16.0}),
    ],
)
def test_who_asks_for_more_than_he_can_ever_have_is_named_and_not_counted(
    gpus: int, counts: bool, rules: DemandRules
) -> None:
    found = demand(waits("1", 0, gpu_count=gpus), rules=rules)

    assert column(found, "gpus_pending_avg") == [gpus if counts else 0.0] * 4
    assert ["asks for more than the 16 GPUs that a can ever have" in note for note in found.notes] == [True] * (
        not counts
    )


def test_types_come_from_the_nodes_held_and_the_partition_waited_for() -> None:
    types = GpuTypes(
        by_node={NodeName("n1"): H100, NodeName("n2"): H100, NodeName("n3"): A100}, by_partition={"gpu": H100}
    )

    found = demand(
        ran("1", 0, 1, nodes="n[1-3]", gpu_count=24),
        waits("2", 0, 1),
        ran("3", 0, 1, nodes="n9"),
        waits("4", 0, 1, partition="other", gpu_count=2),
        rules=DemandRules(types=types),
    )

    assert column(found, "gpus_running_avg", kind="h100")[0] == pytest.approx(16.0)
    assert column(found, "gpus_running_avg", kind="a100")[0] == pytest.approx(8.0)
    assert column(found, "gpus_pending_avg", kind="h100")[0] == 8.0
    assert column(found, "gpus_demand_avg", kind="")[0] == 10.0
    assert found.notes == (
        "8.0 GPU-hours ran of no known type: no type is reported for their nodes",
        "2.0 GPU-hours waited of no known type: no type is reported for their partition",
    )


def test_a_cluster_of_one_type_has_no_other_to_wait_for() -> None:
    types = GpuTypes(by_node={NodeName("n1"): H100})

    found = demand(ran("1", 1, 2, waited=1), rules=DemandRules(types=types))

    assert column(found, "gpus_demand_avg", kind="h100") == [8.0, 8.0, 0.0, 0.0]


def idle(gpus: float, *, hour: int = 0, **others: object) -> Cells:
    cells: Cells = {"node": "n1", "job": "1", "time": at(hour), "verdict": "idle", "rule": "idle_nothing_runs"}
    return {**cells, "account": "a", "gpu_count": gpus, "held_seconds": 3600.0, **others}


@pytest.mark.parametrize(("bound", "wanted"), [(0.0, 8.0), (0.25, 6.0), (0.5, 5.0), (1.0, 5.0)])
def test_waste_is_told_and_taken_off_up_to_a_bound(bound: float, wanted: float) -> None:
    found = demand(ran("1", 0, 1), idle=[idle(3)], rules=DemandRules(waste_bound_ratio=bound))

    assert column(found, "gpus_wasted_avg") == [3.0, 0.0, 0.0, 0.0]
    assert column(found, "gpus_demand_avg") == [wanted, 0.0, 0.0, 0.0]


def test_waste_is_never_more_than_ran_and_of_nobody_is_of_no_team() -> None:
    found = demand(
        ran("1", 0, 0.5),
        idle=[idle(6), idle(2, node="n2", account=None), idle(8, node="n3", job=""), idle(8, hour=9)],
    )

    assert column(found, "gpus_wasted_avg")[0] == 4.0
    assert found.notes == (
        "2.0 idle GPU-hours of rows without an account are in no team",
        "a: verdicts say 2.0 idle GPU-hours more than it ran; bounded by what ran",
    )


def test_of_a_row_that_is_half_idle_half_is_waste_and_other_verdicts_are_none() -> None:
    found = demand(ran("1", 0, 1), idle=[idle(8, rule="half_idle"), idle(8, node="n2", verdict="input_stalled")])

    assert column(found, "gpus_wasted_avg")[0] == 4.0


@pytest.mark.parametrize("bound", [-0.01, 1.01, float("nan")])
def test_a_bound_that_is_no_share_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="expected 0 to 1"):
        DemandRules(waste_bound_ratio=bound)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"ended_at": at(-0.001)}, "ends_before_it_starts"),
        ({"submitted_at": at(61 / 3600)}, "starts_before_submit"),
        ({"gpu_count": None}, "no_gpu_count"),
        ({"gpu_count": -1}, "negative_gpus"),
        ({"account": None}, "no_account"),
        ({"started_at": None}, "no_start"),
        ({"ended_at": None}, "no_end"),
        ({"state": "PENDING", "submitted_at": None, "eligible_at": None}, "no_times"),
    ],
)
def test_rows_that_cannot_be_are_refused_with_a_fixed_reason(wrong: Mapping[str, object], reason: str) -> None:
    found = demand(ran("1", 0, 1), {**ran("2", 0, 1), **wrong})

    (refused,) = found.refused
    assert (refused.record.split(",")[0], refused.reason, refused.into) == ("2", reason, "gpu_demand")
    assert found.notes == (f"1 row of 2 refused: 1 {reason}",)
    assert column(found, "gpus_demand_avg") == [8.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("wrong", [{"ended_at": at(0)}, {"submitted_at": at(60 / 3600)}, {"gpu_count": 0}])
def test_rows_that_can_just_be_are_believed(wrong: Mapping[str, object]) -> None:
    assert demand({**ran("2", 0, 1), **wrong}).refused == ()


def test_gpus_that_are_no_number_are_refused() -> None:
    rows = table("job_accounting", [ran("1", 0, 1)])
    place = rows.schema.get_field_index("gpu_count")
    rows = rows.set_column(place, "gpu_count", pa.array([float("nan")]))
    none = {name: table(f"job_{name}" if name == "allocations" else "gpu_efficiency", ()) for name in _BESIDE}

    found = read_demand(rows, **none, start=at(0), end=at(1))

    assert [each.reason for each in found.refused] == ["no_gpu_count"]


_BESIDE = ("allocations", "efficiency")


def test_what_runs_is_known_from_allocations_until_accounting_tells_its_end() -> None:
    attempts = table("job_accounting", [ran("1", 0.5, None, nodes="n[1-2]", gpu_count=16), ran("2", 0, 4)])
    held = allocations_of(attempts, start=at(0), end=at(4))

    found = demand(ran("2", 0, 4), allocations=held)

    assert column(found, "gpus_running_avg") == [16.0, 24.0, 24.0, 24.0]


def test_an_attempt_that_no_hour_shows_any_more_has_ended_unseen() -> None:
    lost = allocations_of(table("job_accounting", [ran("1", 0, None)]), start=at(0), end=at(2))
    other = allocations_of(table("job_accounting", [ran("2", 0, None)]), start=at(0), end=at(4))

    only_held = demand(allocations=pa.concat_tables([lost, other]))
    told_too = demand(ran("1", 0, None, waited=2), allocations=pa.concat_tables([lost, other]))

    assert column(only_held, "gpus_running_avg") == column(told_too, "gpus_running_avg") == [16.0, 16.0, 8.0, 8.0]
    unseen = "1 attempt without an end taken as ended after the last hour with allocations"
    assert told_too.notes[0] == only_held.notes[0] == unseen
    assert [each.partition(":")[0] for each in (only_held.notes[1], told_too.notes[1])] == [
        "2 attempts known from allocations alone",
        "1 attempt known from allocations alone",
    ]


@pytest.mark.parametrize(("begin", "end"), [(at(0), at(0)), (at(0.5), at(2)), (at(0), at(1.5)), (at(2), at(1))])
def test_a_stretch_of_no_whole_hours_is_refused(begin: datetime, end: datetime) -> None:
    empty = {name: table(name, ()) for name in ("job_accounting", "job_allocations", "gpu_efficiency")}

    with pytest.raises(ValueError, match="expected whole hours"):
        read_demand(
            empty["job_accounting"],
            allocations=empty["job_allocations"],
            efficiency=empty["gpu_efficiency"],
            start=begin,
            end=end,
        )


def test_without_rows_nothing_was_wanted() -> None:
    assert demand().table.num_rows == 0


# -- days --

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(("day", "hours"), [(date(2026, 3, 28), 24), (date(2026, 3, 29), 23), (date(2026, 10, 25), 25)])
def test_a_local_day_sums_all_of_its_hours(day: date, hours: int) -> None:
    begin, end = (
        datetime.combine(each, datetime.min.time(), BERLIN).astimezone(UTC) for each in (day, day + timedelta(days=1))
    )
    rows = table("job_accounting", [{**ran("1", 0, None), "started_at": begin, "submitted_at": begin}])
    found = read_demand(
        rows, allocations=table("job_allocations", ()), efficiency=table("gpu_efficiency", ()), start=begin, end=end
    )

    (row,) = sum_days(found.table, start=begin, end=end, zone=BERLIN).to_pylist()
    (kept,) = demand_days(found.table, start=begin, end=end, zone=BERLIN, gpu_type=GpuType(""))

    assert (row["day"], row["hour_count"], row["running_gpu_hours"]) == (day, hours, 8.0 * hours)
    assert (kept.day, kept.hour_count, kept.ran_last) == (day, hours, {"a": 8.0})


def test_days_at_the_edges_are_parts_and_types_stand_apart() -> None:
    types = GpuTypes(by_node={NodeName("n1"): H100, NodeName("n2"): A100})
    rules = DemandRules(types=types)
    found = demand(ran("1", 20, 30), ran("2", 20, 22, nodes="n2", account="b"), begin=20, hours=10, rules=rules)

    rows = sum_days(found.table, start=at(20), end=at(30), zone=ZoneInfo("UTC")).to_pylist()
    days = demand_days(found.table, start=at(20), end=at(30), zone=ZoneInfo("UTC"), gpu_type=H100)

    assert [(row["team"], row["gpu_type"], row["hour_count"], row["demand_gpu_hours"]) for row in rows] == [
        ("a", "h100", 4, 32.0),
        ("b", "a100", 4, 16.0),
        ("a", "h100", 6, 48.0),
        ("b", "a100", 6, 0.0),
    ]
    assert [list(day.hours) for day in days] == [["a"], ["a"]]
    assert [day.hour_count for day in days] == [4, 6]


# -- whatever the rows --

_HOURS = 6


@st.composite
def histories(draw: st.DrawFn) -> list[Cells]:
    """Rows of a few jobs, each with attempts one after the other, and perhaps a wait that continues."""
    rows: list[Cells] = []
    for number in range(draw(st.integers(1, 5))):
        team, gpus = draw(st.sampled_from("ab")), draw(st.integers(0, 16))
        fixed: Cells = {"account": team, "gpu_count": gpus}
        minute = submitted = draw(st.integers(-120, 300))
        for _ in range(draw(st.integers(0, 3))):
            begin = minute + draw(st.integers(0, 90))
            end = begin + draw(st.integers(0, 200))
            rows.append(ran(str(number), begin / 60, end / 60, waited=(begin - minute) / 60, state="REQUEUED", **fixed))
            minute = end
        if draw(st.booleans()):
            rows.append({**waits(str(number), submitted / 60), **fixed})
    return rows


def gpu_hours(found: HourlyDemand, name: str) -> float:
    return float(sum(found.table[name].to_pylist()))


def overlap(row: Cells, begin: int, end: int) -> float:
    started, ended = row["started_at"], row["ended_at"]
    assert isinstance(started, datetime)
    assert isinstance(ended, datetime)
    return max(0.0, (min(ended, at(end)) - max(started, at(begin))).total_seconds() / 3600)


@settings(max_examples=30, deadline=None)
@given(histories())
def test_gpu_hours_are_neither_lost_nor_made(rows: list[Cells]) -> None:
    found = demand(*rows, hours=_HOURS)

    expected = sum(
        overlap(row, 0, _HOURS) * float(str(row["gpu_count"])) for row in rows if row["started_at"] is not None
    )
    assert gpu_hours(found, "gpus_running_avg") == pytest.approx(expected, abs=1e-6)
    assert found.refused == ()


@settings(max_examples=30, deadline=None)
@given(histories(), st.integers(1, _HOURS - 1))
def test_a_stretch_cut_in_two_has_the_same_hours(rows: list[Cells], cut: int) -> None:
    whole = demand(*rows, hours=_HOURS)

    parts = [demand(*rows, hours=cut), demand(*rows, begin=cut, hours=_HOURS - cut)]

    order = [("team", "ascending"), ("gpu_type", "ascending"), ("time", "ascending")]
    assert pa.concat_tables([part.table for part in parts]).sort_by(order).equals(whole.table)


@settings(max_examples=30, deadline=None)
@given(st.data(), histories())
def test_the_order_of_rows_decides_nothing(data: st.DataObject, rows: list[Cells]) -> None:
    found = demand(*rows, hours=_HOURS)

    other = demand(*data.draw(st.permutations(rows)), hours=_HOURS)

    assert other.table.equals(found.table)
    assert other.notes == found.notes


@settings(max_examples=30, deadline=None)
@given(histories())
def test_a_job_never_wants_more_than_it_asked_for_and_a_requeued_one_wants_it_all_along(rows: list[Cells]) -> None:
    for number in {row["job"] for row in rows}:
        own = [row for row in rows if row["job"] == number]
        found = demand(*own, hours=_HOURS)

        gpus = float(str(own[0]["gpu_count"]))
        wanted = found.table["gpus_demand_avg"].to_pylist()
        assert all(amount <= gpus + 1e-9 for amount in wanted)
        begin = min(time for row in own for time in (row["submitted_at"],) if isinstance(time, datetime))
        last = max((row["ended_at"] for row in own if isinstance(row["ended_at"], datetime)), default=begin)
        is_waiting = any(row["state"] == "PENDING" for row in own)
        until = at(_HOURS) if is_waiting else last
        lasted = max(0.0, (min(until, at(_HOURS)) - max(begin, at(0))).total_seconds() / 3600)
        assert sum(wanted) == pytest.approx(lasted * gpus, abs=1e-6)
