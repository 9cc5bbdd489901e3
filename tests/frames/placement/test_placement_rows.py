"""Rows of the lake as placement reads them: who stood where, who waited since when, and what is not believed."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.efficiency.placement.rows import (
    ACCOUNTING_COLUMNS,
    ALLOCATION_COLUMNS,
    INVENTORY_COLUMNS,
    StaysRead,
    WaitsRead,
    elapsed_of,
    read_machines,
    read_stays,
    read_waits,
    traffic_of,
)
from ops_pipelines.lake.accounting import allocations_of
from ops_pipelines.lake.schema import TABLES

DAY = datetime(2026, 11, 20, tzinfo=UTC)
END = DAY + timedelta(days=1)
TOPOLOGY = Topology(
    places={NodeName(f"n{n}"): Place(rack="r1", nvlink_domain=f"n{n}", leaf_switch="s1") for n in (1, 2, 3)},
    gpus_per_node=8,
)


def at(hours: float) -> datetime:
    return DAY + timedelta(hours=hours)


def attempt(job: str, begin: float | None, end: float | None, **cells: object) -> Mapping[str, object]:
    began_at = None if begin is None else at(begin)
    return {
        "job": job, "attempt": "unstarted" if began_at is None else f"{began_at:%Y-%m-%dT%H:%M:%S}", "name": "train",
        "user": "ada", "account": "vision", "partition": "batch", "state": "COMPLETED", "submitted_at": at(-2),
        "eligible_at": at(-2), "started_at": began_at, "ended_at": None if end is None else at(end), "gpu_count": 16,
        "node_count": 2, "cpu_count": 32, "memory_bytes": 4e9, "nodes": "n[1-2]", "time_limit_seconds": 7200.0,
        "time": at(begin or 0),
        **cells,
    }  # fmt: skip


def accounting(*rows: Mapping[str, object]) -> pa.Table:
    return TABLES["job_accounting"].from_rows(rows).select(list(ACCOUNTING_COLUMNS))


def no_allocations() -> pa.Table:
    return TABLES["job_allocations"].from_rows(()).select(list(ALLOCATION_COLUMNS))


def stays_of(*rows: Mapping[str, object], allocations: pa.Table | None = None) -> StaysRead:
    held = no_allocations() if allocations is None else allocations
    return read_stays(accounting(*rows), held, topology=TOPOLOGY, since=DAY, until=END)


def waits_of(*rows: Mapping[str, object]) -> WaitsRead:
    return read_waits(accounting(*rows), start=DAY, end=END)


def test_an_attempt_holds_its_share_of_each_node() -> None:
    (stay,) = stays_of(attempt("1", 1, 3)).stays

    assert stay.gpus == {"n1": 8.0, "n2": 8.0}
    assert (stay.cpus_per_node, stay.memory_bytes_per_node, stay.time_limit_seconds) == (16.0, 2e9, 7200.0)
    assert (stay.began_at, stay.ended_at, stay.team, stay.user) == (at(1), at(3), "vision", "ada")


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"ended_at": at(0.5)}, "ends_before_it_starts"),
        ({"gpu_count": None}, "no_gpu_count"),
        ({"gpu_count": -1}, "negative_gpus"),
        ({"nodes": "None assigned"}, "no_nodes"),
        ({"nodes": "n[1-"}, "bad_host_list"),
        ({"nodes": "elsewhere1"}, "unknown_node"),
    ],
)
def test_a_row_that_cannot_be_is_kept_with_its_reason(cells: Mapping[str, object], reason: str) -> None:
    found = stays_of(attempt("1", 1, 3, **cells))

    assert found.stays == ()
    assert [(each.reason, each.record) for each in found.refused] == [
        (reason, "1, 2026-11-20T01:00:00, 2026-11-20T01:00:00Z")
    ]


def test_of_an_attempt_on_a_node_that_nobody_names_the_rest_is_believed() -> None:
    found = stays_of(attempt("1", 1, 3, nodes="n1,elsewhere1"))

    assert [stay.gpus for stay in found.stays] == [{"n1": 8.0}]
    assert [each.reason for each in found.refused] == ["unknown_node"]


@pytest.mark.parametrize(
    ("begin", "end", "is_there"), [(-3, 0, False), (-3, 0.1, True), (23.9, None, True), (24, 25, False)]
)
def test_only_who_held_nodes_within_the_window_is_read(begin: float, end: float | None, is_there: bool) -> None:
    assert bool(stays_of(attempt("1", begin, end, state="RUNNING")).stays) is is_there


def test_who_runs_is_known_from_its_hours_with_name_and_user() -> None:
    held = allocations_of(
        TABLES["job_accounting"].from_rows([attempt("1", 1, None, state="RUNNING")]), start=DAY, end=END
    )

    found = stays_of(allocations=held.select(list(ALLOCATION_COLUMNS)))

    assert [(stay.job, stay.name, stay.user, stay.gpus, stay.ended_at) for stay in found.stays] == [
        ("1", "train", "ada", {"n1": 8.0, "n2": 8.0}, None)
    ]
    assert "of 1 attempts only the hours are known" in found.notes[0]


def test_an_attempt_that_was_read_twice_holds_its_nodes_once() -> None:
    found = stays_of(attempt("1", 1, None, state="RUNNING"), attempt("1", 1, 3, time=at(3)))

    assert [(stay.job, stay.ended_at) for stay in found.stays] == [("1", at(3))]


def test_a_wait_is_from_eligible_to_start() -> None:
    (found,) = waits_of(attempt("1", 3, 4, eligible_at=at(1), reason="Resources")).waits

    assert (found.since, found.until, found.reason, found.is_for_room) == (at(1), at(3), "Resources", True)
    assert (found.gpu_count, found.node_count) == (16.0, 2)


def test_a_requeued_job_waits_again_from_the_end_before() -> None:
    found = waits_of(attempt("1", 1, 5, state="REQUEUED"), attempt("1", 8, 9))

    assert [(each.since, each.until) for each in found.waits] == [(at(-2), at(1)), (at(5), at(8))]


def test_who_waits_at_the_end_waits_still_and_a_wait_that_is_over_is_not_told_again() -> None:
    pending = {"state": "PENDING", "nodes": None}

    found = waits_of(
        attempt("1", None, None, **pending),
        attempt("2", None, None, **pending),
        attempt("2", 3, 4),
        attempt("3", 25, 26),
        attempt("4", None, None, **pending, submitted_at=at(24.5), eligible_at=None),
    )

    assert {each.job: each.until for each in found.waits} == {"1": None, "2": at(3), "3": None}


@pytest.mark.parametrize(("minutes", "is_refused"), [(0.9, False), (1.0, False), (1.1, True)])
def test_a_start_before_the_submission_is_refused_beyond_what_clocks_differ_by(
    minutes: float, is_refused: bool
) -> None:
    found = waits_of(attempt("1", 3, 4, eligible_at=at(3) + timedelta(minutes=minutes)))

    assert [each.reason for each in found.refused] == (["starts_before_submit"] if is_refused else [])
    assert all(each.seconds(END) == 0 for each in found.waits)


def test_who_gave_up_and_who_says_no_time_are_counted_in_words() -> None:
    found = waits_of(attempt("1", None, 4, state="CANCELLED"), attempt("2", 3, 4, submitted_at=None, eligible_at=None))

    assert found.waits == ()
    assert found.notes == (
        "of 1 jobs nobody reported since when they waited",
        "1 jobs were cancelled while they waited: they are in no number here",
    )


@pytest.mark.parametrize(
    ("reason", "is_for_room"),
    [
        (None, True),
        ("None", True),
        ("Priority", True),
        ("Resources", True),
        ("ReqNodeNotAvail, UnavailableNodes:n3", True),
        ("AssocGrpGRES", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("Dependency", False),
        ("JobHeldUser", False),
    ],
)
def test_only_who_waits_for_gpus_waits_for_room(reason: str | None, is_for_room: bool) -> None:
    assert [each.is_for_room for each in waits_of(attempt("1", 3, 4, reason=reason)).waits] == [is_for_room]


def test_machines_are_those_of_the_topology_as_the_newest_rows_have_them() -> None:
    row: Mapping[str, object] = {"node": "n1", "device": "", "kind": "node", "gpu_count": 8}
    inventory = TABLES["inventory"].from_rows(
        [
            {**row, "time": at(1), "cpu_count": 64, "memory_bytes": 1e12, "partitions": "batch, debug"},
            {**row, "time": at(2), "gpu_count": 0, "partitions": ""},
            {**row, "time": at(1), "node": "elsewhere1"},
            {**row, "time": at(1), "device": "GPU-1", "kind": "gpu", "gpu_count": 1},
        ]
    )

    found = read_machines(inventory.select(list(INVENTORY_COLUMNS)), topology=TOPOLOGY)

    assert [(each.node, each.gpu_count, each.cpu_count, each.partitions) for each in found.machines] == [
        ("n1", 8, 64, frozenset()),
        ("n2", 8, None, None),
        ("n3", 8, None, None),
    ]
    assert found.notes[0] == "the CPUs of 2 of 3 nodes are not known: they strand nothing there"


def test_only_runs_that_ended_by_themselves_before_the_end_tell_what_is_needed() -> None:
    rows = accounting(
        attempt("1", 1, 2, elapsed_seconds=3600.0),
        attempt("2", 1, 2, elapsed_seconds=1800.0, state="TIMEOUT"),
        attempt("3", 1, 25, elapsed_seconds=99.0),
        attempt("4", 1, 3, elapsed_seconds=7200.0),
        attempt("4", 1, 3, elapsed_seconds=7200.0),
    )

    assert elapsed_of(rows, until=END) == {("ada", "train"): [3600.0, 7200.0]}


def test_traffic_is_weighted_by_time_and_bound_where_most_of_it_waits() -> None:
    row: Mapping[str, object] = {"node": "n1", "time": DAY}
    rows = TABLES["gpu_efficiency"].from_rows(
        [
            {
                **row,
                "job": "1",
                "held_seconds": 3600.0,
                "fabric_bytes_per_second": 4e9,
                "verdict": "communication_bound",
            },
            {**row, "job": "1", "held_seconds": 1800.0, "fabric_bytes_per_second": 1e9, "verdict": "compute_bound"},
            {**row, "job": "2", "held_seconds": 1800.0, "verdict": "compute_bound"},
        ]
    )

    found = traffic_of(rows)

    assert set(found) == {"1"}
    assert (found["1"].bytes_per_second, found["1"].is_bound) == (3e9, True)
