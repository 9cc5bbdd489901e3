"""Who was in service where, and what happened to whom, from rows as the lake has them."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from ops_pipelines.core.fault import AtFault, ComponentKind, Family, FirstAction
from ops_pipelines.core.finding import Catalogue, CodeRule, Response
from ops_pipelines.core.identity import NodeName, PciAddress
from ops_pipelines.diagnose.lemons import LemonSignal, Trouble
from ops_pipelines.diagnose.trouble_rows import (
    AFTER_END,
    BEFORE_END,
    Attendance,
    count_single_node_jobs,
    failed_job_troubles,
    failures_of,
    incident_troubles,
    of_kind,
    read_attendance,
    xid_troubles,
)
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.past_states import read_seatings
from ops_pipelines.observe.repeated import BURST, PartKey
from tests.domain.builders import incident

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DAY, HOUR, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(seconds=1)
PCI = PciAddress("0000:1b:00")
OLD, NEW = "0323712057131", "0323812000001"


def gpu_key(serial: str) -> PartKey:
    return PartKey(kind="gpu", name=serial)


def inventory(at: datetime, *gpus: tuple[str, str, str | None], driver: str = "570.1") -> pa.Table:
    """Return an inventory of (node, UUID, serial), each at the same PCI address."""
    rows: list[dict[str, object]] = [
        {
            "node": node,
            "device": uuid,
            "time": at,
            "kind": "gpu",
            "uuid": uuid,
            "serial": serial,
            "pci_address": PCI,
            "model": "H100",
            "driver_version": driver,
        }
        for node, uuid, serial in gpus
    ]
    nodes = [
        {"node": node, "device": "", "time": at, "kind": "node", "rack": f"r-{node}"}
        for node in {each[0] for each in gpus}
    ]
    return TABLES["inventory"].from_rows([*rows, *nodes])


def swapped() -> Attendance:
    """Return four days of two nodes; on the third, n1 has another GPU."""
    days = [NOW - day * DAY for day in (3, 2, 1, 0)]
    return read_attendance(
        {
            at: inventory(
                at, ("n1", "GPU-old", OLD) if at < NOW - DAY else ("n1", "GPU-new", NEW), ("n2", "GPU-b", None)
            )
            for at in days
        }
    )


def test_a_part_is_in_service_until_the_inventory_that_does_not_show_it() -> None:
    stays = {(each.part, each.node): (each.since, each.until) for each in swapped().stays}

    assert stays[gpu_key(OLD), NodeName("n1")] == (NOW - 3 * DAY, NOW - DAY)
    assert stays[gpu_key(NEW), NodeName("n1")] == (NOW - DAY, None)
    assert stays[gpu_key("GPU-b"), NodeName("n2")] == (NOW - 3 * DAY, None)
    assert stays[PartKey(kind="node", name="n1"), NodeName("n1")] == (NOW - 3 * DAY, None)


@pytest.mark.parametrize(("at", "serial"), [(NOW - DAY - SECOND, OLD), (NOW - DAY, NEW), (NOW + DAY, NEW)])
def test_the_lineage_tells_who_stood_there(at: datetime, serial: str) -> None:
    assert swapped().lineage.gpu(node=NodeName("n1"), pci=PCI, uuid=None, at=at) == gpu_key(serial)


def test_an_inventory_without_rows_takes_nobody_out_of_service() -> None:
    full = {NOW - day * DAY: inventory(NOW - day * DAY, ("n1", "GPU-old", OLD)) for day in (3, 1)}

    attendance = read_attendance({**full, NOW - 2 * DAY: inventory(NOW)})

    assert {(each.since, each.until) for each in attendance.stays} == {(NOW - 3 * DAY, None)}
    assert read_attendance({}).stays == ()


def test_a_serial_that_two_gpus_bear_is_their_boards() -> None:
    attendance = read_attendance({NOW: inventory(NOW, ("n1", "GPU-a", "1650123"), ("n2", "GPU-b", "1650123"))})

    assert {each.part.name for each in attendance.stays if each.part.kind == "gpu"} == {"GPU-a", "GPU-b"}


def test_a_new_driver_cuts_the_columns_and_not_the_stay() -> None:
    attendance = read_attendance(
        {
            NOW - DAY: inventory(NOW - DAY, ("n1", "GPU-old", OLD), driver="570.1"),
            NOW: inventory(NOW, ("n1", "GPU-old", OLD), driver="575.2"),
        }
    )

    assert len([each for each in attendance.stays if each.part == gpu_key(OLD)]) == 1
    service, places = of_kind(attendance, ComponentKind.GPU)
    assert [str(service.labels["driver"][place]) for place in places[gpu_key(OLD)]] == ["570.1", "575.2"]
    assert set(service.labels["batch"]) == {"2012-W37"}
    assert set(service.labels["rack"]) == {"r-n1"}


def test_a_failure_belongs_to_the_stretch_that_it_fell_into() -> None:
    attendance = swapped()
    service, places = of_kind(attendance, ComponentKind.GPU)
    seen = [
        Trouble(signal=LemonSignal.TICKETS, node=NodeName("n1"), at=NOW - 2 * DAY, gpu=gpu_key(OLD)),
        Trouble(signal=LemonSignal.TICKETS, node=NodeName("n1"), at=NOW - 9 * DAY, gpu=gpu_key(OLD)),
        Trouble(signal=LemonSignal.TICKETS, node=NodeName("n1"), at=NOW, gpu=gpu_key("never seen")),
        Trouble(signal=LemonSignal.TICKETS, node=NodeName("n1"), at=NOW),
    ]

    found = failures_of(seen, service, places, kind=ComponentKind.GPU)

    assert found.stretch.tolist() == places[gpu_key(OLD)]


CATALOGUE = Catalogue(
    xids={
        code: CodeRule(
            code=code,
            mnemonic=f"CODE_{code}",
            meaning="",
            at_fault=at_fault,
            family=Family.GPU,
            first_action=FirstAction.MONITOR,
            is_secondary=code == 45,
        )
        for code, at_fault in {31: AtFault.APPLICATION, 45: AtFault.GPU, 79: AtFault.GPU}.items()
    }
)


def events(*listed: tuple[timedelta, int, str]) -> pa.Table:
    return TABLES["kernel_events"].from_rows(
        {
            "source": "kernel",
            "position": str(place),
            "time": NOW + after,
            "node": "n1",
            "code": code,
            "pci_address": PCI,
            "text": f"NVRM: {word} (PCI:{PCI}): {code}, GPU has fallen off the bus.",
        }
        for place, (after, code, word) in enumerate(listed)
    )


def test_xids_of_programs_and_of_victims_count_against_nobody() -> None:
    seen = events((HOUR, 79, "Xid"), (2 * HOUR, 31, "Xid"), (3 * HOUR, 45, "Xid"), (4 * HOUR, 999, "Xid"))

    (found,) = xid_troubles(seen, swapped().lineage, CATALOGUE)

    assert found == Trouble(signal=LemonSignal.XIDS, node=NodeName("n1"), at=NOW + HOUR, gpu=gpu_key(NEW))
    assert xid_troubles(events((HOUR, 79, "SXid")), swapped().lineage, CATALOGUE) == ()
    assert xid_troubles(events(), swapped().lineage, CATALOGUE) == ()


@pytest.mark.parametrize(("gap", "count"), [(BURST, 1), (BURST + SECOND, 2)])
def test_a_burst_of_lines_is_one_event(gap: timedelta, count: int) -> None:
    seen = events((HOUR, 79, "Xid"), (HOUR + gap, 79, "Xid"))

    assert len(xid_troubles(seen, swapped().lineage, CATALOGUE)) == count


def test_an_incident_is_a_ticket_against_its_culprit_and_its_gpu() -> None:
    one = incident(nodes=frozenset({NodeName("n1")}), gpus=frozenset({PCI}), opened_at=NOW - 2 * DAY)

    (found,) = incident_troubles([one], {}, swapped().lineage)

    assert found == Trouble(signal=LemonSignal.TICKETS, node=NodeName("n1"), at=NOW - 2 * DAY, gpu=gpu_key(OLD))


def test_a_mass_event_is_nobodys_own_trouble() -> None:
    mass = incident(response=Response.PAGE_MASS_EVENT)

    assert incident_troubles([mass], {}, swapped().lineage) == ()


def attempts(*listed: tuple[str, str | None, int]) -> pa.Table:
    """Return attempts that ended now: state, nodes, how many."""
    return TABLES["job_accounting"].from_rows(
        {
            "job": str(place),
            "attempt": "x",
            "time": NOW,
            "state": state,
            "nodes": nodes,
            "node_count": node_count,
            "ended_at": NOW,
        }
        for place, (state, nodes, node_count) in enumerate(listed)
    )


@pytest.mark.parametrize(
    ("after", "is_blamed"),
    [
        (-BEFORE_END - SECOND, False),
        (-BEFORE_END, True),
        (timedelta(0), True),
        (AFTER_END, True),
        (AFTER_END + SECOND, False),
    ],
)
def test_of_a_failed_jobs_nodes_only_the_one_in_trouble_is_blamed(after: timedelta, is_blamed: bool) -> None:
    own = Trouble(signal=LemonSignal.XIDS, node=NodeName("n1"), at=NOW + after)

    found = failed_job_troubles(attempts(("NODE_FAIL", "n[1-4]", 4), ("FAILED", "n1", 1)), [own])

    assert [(each.signal, each.node) for each in found] == (
        [(LemonSignal.MULTI_NODE_FAILURES, "n1")] if is_blamed else []
    )


def test_a_failed_single_node_job_counts_in_number_and_in_rate() -> None:
    own = Trouble(signal=LemonSignal.XIDS, node=NodeName("n1"), at=NOW)
    ended = attempts(("NODE_FAIL", "n1", 1), ("COMPLETED", "n1", 1), ("NODE_FAIL", "n[1", 1), ("NODE_FAIL", None, 1))

    found = failed_job_troubles(ended, [own])

    assert [each.signal for each in found] == [LemonSignal.SINGLE_NODE_FAILURES, LemonSignal.FAILURE_RATE]
    assert count_single_node_jobs(ended)[NodeName("n1")] == 2
    assert count_single_node_jobs(attempts()) == {}
    assert failed_job_troubles(attempts(), [own]) == ()


def test_seatings_of_some_nodes_are_those_of_all_and_a_node_that_left_has_left() -> None:
    def rows(*nodes: str) -> pa.Table:
        return TABLES["inventory"].from_rows(
            {
                "node": node,
                "device": f"GPU-{node}",
                "time": NOW,
                "kind": "gpu",
                "uuid": f"GPU-{node}",
                "pci_address": PCI,
            }
            for node in nodes
        )

    inventories = {
        NOW: rows("gpu001", "gpu002"), NOW + HOUR: rows("gpu001", "gpu002"), NOW + 2 * HOUR: rows(),
        NOW + 3 * HOUR: rows("gpu002"),
    }  # fmt: skip

    seatings = read_seatings(inventories, nodes=[NodeName("gpu001")])

    assert seatings == tuple(each for each in read_attendance(inventories).lineage.seatings if each.node == "gpu001")
    assert [(each.since, each.until) for each in seatings] == [(NOW, NOW + 3 * HOUR)]
    assert read_seatings(inventories, nodes=()) == ()
