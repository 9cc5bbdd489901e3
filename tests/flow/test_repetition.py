"""What repeats on one part is reported once a burst, of the part and not of its place, and becomes one incident."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.cluster import HOUR
from ops_pipelines.core.fault import AtFault, FirstAction
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import GpuUuid, JobId, NodeName, PciAddress
from ops_pipelines.core.incident import IncidentEvent, IncidentState, advance
from ops_pipelines.core.observation import JobState, Observation, Signal
from ops_pipelines.core.sources import LakeError
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.repeated import (
    BURST,
    EVERY,
    Hold,
    Lineage,
    RepetitionWatch,
    Seating,
    count_repetitions,
    tell_repetitions,
)
from ops_pipelines.remediate.decide import decide
from ops_pipelines.remediate.snapshot import take_snapshot
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from tests.flow.test_window import job, window_of
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import BEGINNING as NOW

CATALOGUE = read_catalogue()
PCI = PciAddress("0000:18:00")
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def xid(code: int, *, at: datetime, node: str = "gpu001", of: str = "") -> Observation:
    return Observation(
        signal=Signal.XID, node=NodeName(node), observed_at=at, source="log", position=f"{code} {node} {at} {of}",
        code=code, gpu=PCI, job=JobId(of) if of else None, text=f"NVRM: Xid (PCI:{PCI}): {code}",
    )  # fmt: skip


def hold(name: str, *nodes: str, start: datetime, end: datetime | None) -> Hold:
    return Hold(job=JobId(name), nodes=frozenset(map(NodeName, nodes)), started_at=start, ended_at=end)


class History:
    """A ledger, a lake with inventories, and the count over both."""

    def __init__(self, directory: Path) -> None:
        self.autopilot = SmallAutopilot(directory, node_count=3)
        self.lake = ParquetLake(directory / "lake")
        self.watch = RepetitionWatch()
        self.holds: list[Hold] = []

    def seat(self, uuid: str, *, node: str = "gpu001", hours_ago: Sequence[int]) -> None:
        hour = NOW.replace(minute=0, second=0, microsecond=0)
        for back in hours_ago:
            row = {
                "node": node, "device": uuid, "time": hour - back * HOUR, "kind": "gpu", "uuid": uuid,
                "pci_address": PCI, "serial": None,
            }  # fmt: skip
            self.lake.add("inventory", TABLES["inventory"].from_rows([row]))

    def happen(self, *observations: Observation) -> None:
        self.autopilot.cluster.ledger.take_in(
            source="log", observations=observations, rejected=(), cursor=None, now=NOW
        )

    def count(self, at: datetime = NOW) -> int:
        return tell_repetitions(self.watch, self.lake, self.autopilot.cluster, holds=self.holds, at=at)

    @property
    def told(self) -> list[Observation]:
        evidence = self.autopilot.cluster.ledger.evidence_after(0, limit=1000)
        return [each.observation for each in evidence if each.observation.signal is Signal.REPEATED]


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


def test_a_hardware_xid_that_comes_back_on_one_gpu_is_told_once_with_its_part(history: History) -> None:
    history.seat("GPU-a", hours_ago=range(30))
    history.happen(xid(48, at=NOW - 5 * HOUR), xid(48, at=NOW - HOUR))

    counts = [history.count(NOW + number * EVERY) for number in range(3)]

    assert counts == [1, 0, 0]
    (told,) = history.told
    assert (told.node, told.gpu, told.gpu_uuid, told.signature, told.value) == ("gpu001", PCI, "GPU-a", "xid_48", 2)
    assert told.observed_at == NOW - HOUR
    assert "2 times within 24 h" in told.text


def test_a_process_that_was_started_anew_tells_nothing_twice_and_a_new_burst_is_news(history: History) -> None:
    history.seat("GPU-a", hours_ago=range(30))
    history.happen(xid(48, at=NOW - 5 * HOUR), xid(48, at=NOW - HOUR))
    history.count()
    history.watch = RepetitionWatch()
    again = history.count(NOW + SECOND)
    history.happen(xid(48, at=NOW - HOUR + BURST), xid(48, at=NOW + MINUTE))
    after_a_burst = history.count(NOW + 2 * MINUTE)

    assert (again, after_a_burst) == (0, 1)
    assert [each.observed_at for each in history.told] == [NOW - HOUR, NOW + MINUTE]


@pytest.mark.parametrize(
    ("ago", "is_told"),
    [(24 * HOUR - SECOND, True), (24 * HOUR, True), (24 * HOUR + SECOND, False)],
    ids=["less than a day", "a day", "a second more"],
)
def test_what_is_too_long_ago_does_not_count(history: History, ago: timedelta, is_told: bool) -> None:
    history.seat("GPU-a", hours_ago=[*range(25), 26, 28, 48, 72])
    history.happen(xid(48, at=NOW - ago), xid(48, at=NOW - SECOND), xid(74, at=NOW - HOUR))

    assert history.count() == is_told


def test_it_is_counted_once_a_minute(history: History) -> None:
    history.seat("GPU-a", hours_ago=range(30))
    history.count()
    history.happen(xid(48, at=NOW - 5 * HOUR), xid(48, at=NOW - HOUR))

    assert [history.count(NOW + EVERY - SECOND), history.count(NOW + EVERY)] == [0, 1]


def test_a_gpu_that_no_inventory_names_is_blamed_for_nothing(history: History) -> None:
    history.happen(xid(48, at=NOW - 5 * HOUR), xid(48, at=NOW - HOUR))

    assert history.count() == 0


def test_a_part_takes_its_past_along_and_a_new_one_has_none(history: History) -> None:
    history.seat("GPU-a", node="gpu001", hours_ago=[24, 18, 12])
    history.seat("GPU-b", node="gpu001", hours_ago=[6, 5, 4, 3, 2, 1, 0])
    history.seat("GPU-a", node="gpu002", hours_ago=[6, 5, 4, 3, 2, 1, 0])
    history.happen(
        xid(48, at=NOW - 15 * HOUR),
        xid(48, at=NOW - 2 * HOUR),
        xid(48, at=NOW - HOUR, node="gpu002"),
    )

    assert history.count() == 1
    assert [(each.node, each.gpu_uuid) for each in history.told] == [("gpu002", "GPU-a")]


@pytest.mark.parametrize(
    ("holders", "is_told"),
    [
        pytest.param(("11", "12"), True, id="two programs"),
        pytest.param(("11", "11"), False, id="one program"),
        pytest.param(("11", None), False, id="one that nobody knows"),
    ],
)
def test_a_programs_xid_blames_the_gpu_when_different_programs_meet_it(
    history: History, holders: tuple[str, str | None], is_told: bool
) -> None:
    history.seat("GPU-a", hours_ago=range(30))
    times = (NOW - 5 * HOUR, NOW - HOUR)
    history.holds = [
        hold(name, "gpu001", "gpu002", start=at - HOUR, end=at - SECOND)
        for name, at in zip(holders, times, strict=True)
        if name is not None
    ]
    history.happen(*(xid(31, at=at) for at in times))

    assert history.count() == is_told


def test_a_node_that_several_jobs_share_names_no_program(history: History) -> None:
    history.seat("GPU-a", hours_ago=range(30))
    history.holds = [hold(name, "gpu001", start=NOW - 9 * HOUR, end=None) for name in ("11", "12")]
    history.happen(xid(31, at=NOW - 5 * HOUR), xid(31, at=NOW - HOUR))

    assert history.count() == 0


def test_a_repetition_becomes_one_incident_and_opens_no_second_one_when_that_is_closed(history: History) -> None:
    cluster = history.autopilot.cluster
    history.seat("GPU-a", hours_ago=range(30))
    history.holds = [
        hold("11", "gpu001", start=NOW - 6 * HOUR, end=NOW - 4 * HOUR),
        hold("12", "gpu001", start=NOW - 2 * HOUR, end=NOW - HOUR),
    ]
    history.happen(xid(31, at=NOW - 5 * HOUR), xid(31, at=NOW - HOUR))
    history.count()
    opened = []
    for number in range(3):
        snapshot = take_snapshot(cluster).snapshot
        decision = decide(snapshot, cluster.rules)
        closed = [
            advance(each, IncidentEvent.NEEDS_HUMAN, at=NOW, note="looked at")
            for each in decision.incidents
            if each.state is IncidentState.OPEN
        ]
        cluster.ledger.record_decision(
            inputs=cluster.ledger.store_snapshot(snapshot), decided_through=snapshot.evidence_through,
            expected_head=None, incidents=decision.incidents, plans=(), now=NOW,
        )  # fmt: skip
        cluster.ledger.change_incidents(closed, actor="ada", now=NOW)
        cluster.ledger.change_incidents(
            [advance(each, IncidentEvent.CLEARED, at=NOW, note="reseated") for each in closed], actor="ada", now=NOW
        )
        opened.append([(sorted(each.nodes), each.response) for each in decision.incidents])
        history.count(NOW + (number + 1) * EVERY)
        history.watch = RepetitionWatch()

    assert opened == [[(["gpu001"], Response.PAGE)], [], []]
    (incident,) = cluster.ledger.incidents_since(NOW - HOUR)
    (finding,) = incident.findings
    assert finding.rule == "repeated_xid_31"
    assert (finding.at_fault, finding.first_action) == (AtFault.GPU, FirstAction.DRAIN_INSPECT)
    assert finding.gpu == PCI
    assert "NVSentinel" in finding.source


def test_a_lake_that_cannot_be_read_is_an_error_and_is_asked_again_in_a_minute(history: History) -> None:
    class Damaged(ParquetLake):
        def read_hour(self, table: str, hour: datetime) -> object:
            raise LakeError("cannot read inventory: not a Parquet file")

    history.seat("GPU-a", hours_ago=range(30))
    history.happen(xid(48, at=NOW - 5 * HOUR), xid(48, at=NOW - HOUR))
    whole, history.lake = history.lake, Damaged(history.autopilot.directory / "lake")

    with pytest.raises(LakeError):
        history.count()
    history.lake = whole

    assert [history.count(NOW + SECOND), history.count(NOW + EVERY)] == [0, 1]


def test_the_window_remembers_for_a_day_who_held_a_node() -> None:
    window = window_of()
    first = job("7", "gpu001", started=NOW)
    window.note_jobs([first], at=NOW + MINUTE)
    window.note_jobs([job("7", "gpu002", started=NOW + 2 * MINUTE)], at=NOW + 3 * MINUTE)
    window.note_jobs([], at=NOW + 9 * MINUTE)
    window.note_jobs([job("8", "gpu003", started=NOW, state=JobState.PENDING)], at=NOW + 10 * HOUR)

    holds = {(each.job, *each.nodes, each.ended_at) for each in window.holds}

    assert holds == {("7", "gpu001", NOW + 2 * MINUTE), ("7", "gpu002", NOW + 9 * MINUTE)}
    window.note_jobs([], at=NOW + 2 * MINUTE + 24 * HOUR)
    assert [sorted(each.nodes) for each in window.holds] == [["gpu002"]]


SEATINGS = Lineage(
    seatings=tuple(
        Seating(node=NodeName(node), pci=PCI, since=NOW - 100 * HOUR, until=None, uuid=GpuUuid(f"GPU-{node}"))
        for node in ("gpu001", "gpu002")
    )
)
OBSERVATIONS = st.builds(
    lambda code, node, minutes, of: xid(code, node=node, at=NOW - minutes * MINUTE, of=of),
    st.sampled_from([31, 48, 79, 74]),
    st.sampled_from(["gpu001", "gpu002"]),
    st.integers(0, 600),
    st.sampled_from(["", "11", "12", "13_1"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(OBSERVATIONS, max_size=12), st.data())
def test_neither_order_nor_duplicates_change_what_is_told(observations: list[Observation], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations([*observations, *observations[:3]]))
    holds = [hold("20", "gpu001", start=NOW - 3 * HOUR, end=None), hold("21", "gpu002", start=NOW - 8 * HOUR, end=None)]

    told, again = (
        [
            each.observation()
            for each in count_repetitions(listed, CATALOGUE, lineage=SEATINGS, holds=listed_holds, at=NOW)
        ]
        for listed, listed_holds in ((observations, holds), (shuffled, holds[::-1]))
    )

    assert again == told
    assert len({each.position for each in told}) == len(told)


def test_a_repetition_of_a_rule_that_the_catalogue_lost_calls_for_nothing(history: History) -> None:
    history.seat("GPU-a", hours_ago=range(30))
    history.happen(xid(48, at=NOW - 5 * HOUR), xid(48, at=NOW - HOUR))
    history.count()
    cluster = history.autopilot.cluster
    poorer = replace(cluster.rules.catalogue, xids={})

    findings = decide(take_snapshot(cluster).snapshot, replace(cluster.rules, catalogue=poorer)).findings

    assert [each.response for each in findings if each.rule == "repeated_unknown"] == [Response.MONITOR]
