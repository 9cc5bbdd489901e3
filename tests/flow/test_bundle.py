"""Evidence is kept before the first act and never in its way; what could not be kept or read is reported."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as enumerate_threads

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.fault import AtFault, Component, ComponentKind, Family, FirstAction, Hypothesis
from ops_pipelines.core.identity import IncidentId, JobId, NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.record import BundleError, Recalled, RecalledLine, SavedBundle
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.remediate import bundle
from ops_pipelines.remediate.bundle import (
    MARGIN,
    MAX_LINES,
    concerned_nodes,
    lines_file,
    reason_before,
    save_as_it_is,
    save_before_acting,
    window_of,
)
from ops_pipelines.remediate.carry_out import carry_out_drains
from ops_pipelines.resources.page_files import BundleFiles
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.domain.builders import GPU, NODE, NOW, after, ago, attempt, incident, job, xid
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.small_cluster import TRAINING


class Memory:
    """A lake that knows three lines and some samples."""

    def recall(
        self,
        *,
        nodes: Collection[NodeName],
        jobs: Collection[JobId],
        start: datetime,
        end: datetime,
        nearest_to: datetime,
        max_lines: int,
    ) -> Recalled:
        telemetry = TABLES["gpu_telemetry"].from_rows(
            {"time": start + timedelta(seconds=15 * step), "node": node, "device": "GPU-1", "driver_version": "570.1",
             "power_watts": 300.0 + step}
            for node in nodes
            for step in range(4)
        )  # fmt: skip
        line = RecalledLine(written_at=start, node=NodeName("gpu001"), job="", source="kernel_log", text="before it")
        return Recalled(lines=(line,), telemetry=telemetry, missing=("job_logs: none",))


class HungMemory(Memory):
    """A lake that answers when it is released."""

    def __init__(self) -> None:
        self.let_go = Event()

    def recall(self, **asked: object) -> Recalled:
        self.let_go.wait()
        return Recalled(lines=(), telemetry=None, missing=())


class BrokenMemory(Memory):
    def recall(self, **asked: object) -> Recalled:
        raise ZeroDivisionError("a fault of ours")


class FullDisk:
    """A store that cannot keep anything."""

    def save(
        self,
        incident: IncidentId,
        *,
        reason: str,
        at: datetime,
        documents: Mapping[str, object],
        files: Mapping[str, bytes],
        missing: Sequence[str],
    ) -> SavedBundle:
        raise BundleError("No space left on device")

    def of(self, incident: IncidentId) -> tuple[SavedBundle, ...]:
        return ()

    def tidy(self, now: datetime, *, keep: Collection[IncidentId]) -> int:
        return 0


@pytest.fixture
def autopilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallAutopilot:
    # A disk that is only busy passes for none that hangs: the tests of one that hangs are in a hurry again.
    monkeypatch.setattr(bundle, "PATIENCE_WITH_THE_DISK", bundle.PATIENCE_OF_A_RUN)
    await_threads()  # A look of an earlier test that came late would pass for one that hangs.
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.cluster = replace(autopilot.cluster, bundles=BundleFiles(tmp_path / "evidence"), recollection=Memory())
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.observe_and_decide()
    return autopilot


@pytest.fixture
def hung() -> Iterator[HungMemory]:
    memory = HungMemory()
    yield memory
    memory.let_go.set()
    await_threads()


def evidence_threads() -> list[Thread]:
    return [each for each in enumerate_threads() if each.name.startswith("evidence-")]


def await_threads() -> None:
    """Wait until anyone who was released has ended."""
    for each in evidence_threads():
        each.join(30)


def drain(autopilot: SmallAutopilot) -> None:
    carry_out_drains(autopilot._plans, autopilot.cluster, lease=autopilot.lease)


def kept(cluster: Cluster, of: IncidentId) -> tuple[SavedBundle, ...]:
    assert cluster.bundles is not None
    return cluster.bundles.of(of)


def test_evidence_is_kept_before_the_first_act_and_the_ledger_holds_its_digest(autopilot: SmallAutopilot) -> None:
    (plan,) = autopilot._plans

    drain(autopilot)

    incident = autopilot.incident()
    (bundle,) = kept(autopilot.cluster, incident.incident)
    (record,) = autopilot.cluster.ledger.records(incident.incident)
    assert record.action.verb is Verb.DRAIN
    assert bundle.saved_at <= record.begun_at
    assert bundle.reason == reason_before(plan.plan)
    assert incident.bundle == bundle.digest
    assert autopilot.cluster.ledger.verify_chain().problem == ""


def look(autopilot: SmallAutopilot) -> SavedBundle:
    """Keep the evidence of the one incident as a run does, and return the newest bundle."""
    scheduler = autopilot.cluster.scheduler
    save_as_it_is(autopilot.incidents(), autopilot.cluster, nodes=scheduler.read_nodes(), jobs=scheduler.read_jobs())
    return kept(autopilot.cluster, autopilot.incident().incident)[-1]


def test_before_an_act_what_is_at_hand_is_copied_and_the_rest_comes_with_the_next_run(
    autopilot: SmallAutopilot,
) -> None:
    drain(autopilot)
    autopilot.let_pass(1)

    (before,) = kept(autopilot.cluster, autopilot.incident().incident)
    assert set(before.files) == {"incident.json", "state.json", "plan.json", "lines.txt"}
    assert '"is_drained": false' in (Path(before.place) / "state.json").read_text()
    assert "lines and metrics around the event: nobody looks for them before an act" in before.missing
    bundle = look(autopilot)
    place = Path(bundle.place)
    assert bundle.reason == "opened"
    assert set(bundle.files) == {
        "incident.json", "state.json", "plan.json", "lines.txt", "telemetry.png", "telemetry.parquet",
    }  # fmt: skip
    lines = (place / "lines.txt").read_text()
    assert "fallen off the bus" in lines
    assert "before it" in lines
    assert '"driver": [\n   "570.1"\n  ]' in (place / "state.json").read_text()
    assert '"is_drained": true' in (place / "state.json").read_text()
    assert (place / "telemetry.png").read_bytes().startswith(b"\x89PNG")
    assert "job_logs: none" in bundle.missing


def test_plan_that_goes_on_keeps_its_first_picture(autopilot: SmallAutopilot) -> None:
    drain(autopilot)
    (before,) = kept(autopilot.cluster, autopilot.incident().incident)

    autopilot.act_and_verify()

    assert autopilot.incident().state is not IncidentState.OPEN
    assert kept(autopilot.cluster, autopilot.incident().incident) == (before,)


def test_evidence_that_cannot_be_kept_is_noted_in_the_ledger_and_stops_no_act(autopilot: SmallAutopilot) -> None:
    autopilot.cluster = replace(autopilot.cluster, bundles=FullDisk())

    drain(autopilot)

    assert autopilot.node("gpu001").is_drained
    assert autopilot.incident().note.endswith("; its evidence could not be kept: No space left on device")
    assert autopilot.incident().bundle is None


def test_drain_asks_the_lake_nothing(autopilot: SmallAutopilot, hung: HungMemory) -> None:
    autopilot.cluster = replace(autopilot.cluster, recollection=hung)

    drain(autopilot)

    (bundle,) = kept(autopilot.cluster, autopilot.incident().incident)
    assert autopilot.node("gpu001").is_drained
    assert evidence_threads() == []
    assert "fallen off the bus" in (Path(bundle.place) / "lines.txt").read_text()


def test_fault_of_ours_while_looking_around_is_said(autopilot: SmallAutopilot) -> None:
    autopilot.cluster = replace(autopilot.cluster, recollection=BrokenMemory())

    bundle = look(autopilot)

    assert "lines and metrics around the event: a fault of ours" in bundle.missing


class HungDisk(BundleFiles):
    """A store that hangs from a bundle on, until it is released."""

    def __init__(self, root: Path, *, hangs_at: int) -> None:
        super().__init__(root)
        self.let_go = Event()
        self.asked: list[IncidentId] = []
        self._hangs_at = hangs_at

    def save(self, incident: IncidentId, **given: object) -> SavedBundle:
        self.asked.append(incident)
        if len(self.asked) == self._hangs_at:
            self.let_go.wait()
        return super().save(incident, **given)  # type: ignore[arg-type]  # the same keywords


@pytest.fixture
def in_a_hurry(autopilot: SmallAutopilot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "PATIENCE_WITH_THE_DISK", timedelta(seconds=3))


@pytest.fixture
def hung_disk(tmp_path: Path, in_a_hurry: None) -> Iterator[HungDisk]:
    disk = HungDisk(tmp_path / "hung", hangs_at=3)
    yield disk
    disk.let_go.set()
    await_threads()


def test_storm_waits_no_longer_for_its_bundles_than_one_incident_may(
    autopilot: SmallAutopilot, hung_disk: HungDisk
) -> None:
    known, (plan,) = autopilot.incident(), autopilot._plans
    cluster = replace(autopilot.cluster, bundles=hung_disk)
    storm = [(replace(known, incident=IncidentId(f"INC-{number:04d}")), plan) for number in range(1, 5)]

    report = save_before_acting(storm, cluster, nodes={}, jobs={})
    again = save_before_acting(storm, cluster, nodes={}, jobs={})
    begun = [each.name for each in evidence_threads()].count("evidence-write")
    hung_disk.let_go.set()
    await_threads()
    after_it = save_before_acting(storm, cluster, nodes={}, jobs={})

    assert list(report.saved) == ["INC-0001", "INC-0002"]
    assert list(report.problems) == ["INC-0003", "INC-0004"]
    assert "the next run keeps it" in report.problems[IncidentId("INC-0003")]
    assert (list(again.saved), begun) == ([], 1)
    assert {each.startswith("the evidence directory does not answer") for each in again.problems.values()} == {True}
    assert list(after_it.saved) == [incident.incident for incident, _ in storm]
    assert hung_disk.asked[:3] == ["INC-0001", "INC-0002", "INC-0003"]
    assert len(hung_disk.asked) == 3 + 4  # nothing was written behind the back of who had given up


@pytest.mark.usefixtures("in_a_hurry")
def test_disk_that_hangs_holds_up_no_drain(autopilot: SmallAutopilot, tmp_path: Path) -> None:
    disk = HungDisk(tmp_path / "hung", hangs_at=1)
    autopilot.cluster = replace(autopilot.cluster, bundles=disk)

    drain(autopilot)
    disk.let_go.set()
    await_threads()

    assert autopilot.node("gpu001").is_drained
    assert "its evidence could not be kept: 1 at once took longer than 3 s" in autopilot.incident().note


def test_while_an_earlier_look_hangs_no_other_is_begun(
    autopilot: SmallAutopilot, hung: HungMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "PATIENCE_OF_A_RUN", timedelta(seconds=1))
    known = autopilot.incident()
    cluster = replace(autopilot.cluster, recollection=hung)

    def look_again() -> str:
        autopilot.let_pass(1)
        changed = replace(known, changed_at=cluster.clock.now())
        autopilot.let_pass(1)
        report = save_as_it_is([changed], cluster, nodes=(), jobs=())
        return " ".join(report.saved[known.incident].missing)

    said = [look_again() for _ in range(3)]
    begun = len(evidence_threads())
    hung.let_go.set()
    await_threads()
    said.append(look_again())

    assert begun == 1
    assert ["not read within 1 s" in each for each in said] == [True, False, False, False]
    assert ["the lake does not answer" in each for each in said] == [False, True, True, False]


@pytest.mark.parametrize("keeps", [True, False])
def test_cluster_without_a_lake_or_without_a_store_acts_all_the_same(autopilot: SmallAutopilot, keeps: bool) -> None:
    bundles = autopilot.cluster.bundles if keeps else None
    autopilot.cluster = replace(autopilot.cluster, bundles=bundles, recollection=None)

    drain(autopilot)

    assert autopilot.node("gpu001").is_drained
    assert (autopilot.incident().bundle is not None) is keeps


def test_first_picture_stays_and_later_ones_are_taken_when_the_incident_changed(autopilot: SmallAutopilot) -> None:
    cluster, first = autopilot.cluster, autopilot.incident()
    look = cluster.scheduler

    def keep() -> list[str]:
        report = save_as_it_is(autopilot.incidents(), cluster, nodes=look.read_nodes(), jobs=look.read_jobs())
        return [each.reason for each in report.saved.values()]

    assert keep() == ["opened"]
    autopilot.let_pass(60)
    assert keep() == []

    (opened,) = kept(cluster, first.incident)
    for seconds in (1, 2):
        autopilot.let_pass(seconds)
        later = replace(first, note=f"after {seconds} s", changed_at=cluster.clock.now())
        cluster.ledger.change_incident(later, actor="test", now=cluster.clock.now())

        autopilot.let_pass(1)
        assert keep() == ["changed"]
        assert [each.reason for each in kept(cluster, first.incident)] == ["opened", "changed"]
        assert kept(cluster, first.incident)[0] == opened


def test_incidents_that_are_over_are_left_alone(autopilot: SmallAutopilot) -> None:
    over = replace(autopilot.incident(), state=IncidentState.RESOLVED)

    assert save_as_it_is([over], autopilot.cluster, nodes=(), jobs=()).saved == {}


def test_message_without_a_look_at_the_scheduler_says_so(autopilot: SmallAutopilot) -> None:
    known, (plan,) = autopilot.incident(), autopilot._plans

    report = save_before_acting([(known, plan)], autopilot.cluster, nodes={}, jobs={})

    assert any(each.startswith("state of nodes and jobs") for each in report.saved[known.incident].missing)


def recalled(count: int) -> list[RecalledLine]:
    return [
        RecalledLine(written_at=after(second), node=NODE, job="", source="kernel_log", text=f"line {second}")
        for second in range(count)
    ]


@pytest.mark.parametrize("count", [MAX_LINES - 2, MAX_LINES - 1, MAX_LINES, 3 * MAX_LINES])
def test_lines_are_bounded_and_evidence_comes_first(count: int) -> None:
    body = lines_file(incident(xid(79, seconds_ago=7200)), recalled(count)).decode()

    head, *lines = body.splitlines()
    assert len(lines) == min(count + 1, MAX_LINES)
    assert sum(line.startswith("* ") for line in lines) == 1
    assert ("left out" in head) is (count + 1 > MAX_LINES)


def test_line_that_is_evidence_is_not_repeated_among_those_around_it() -> None:
    rests_on = incident()
    text = rests_on.findings[0].evidence[0].text
    same = RecalledLine(written_at=NOW, node=NODE, job="", source="lake", text=text)

    assert lines_file(rests_on, [same]).decode().count(text) == 1


@given(st.text(), st.text(max_size=20))
def test_no_line_can_steer_a_terminal_or_break_into_two(text: str, source: str) -> None:
    line = RecalledLine(written_at=NOW, node=NODE, job="42", source=source, text=text)

    body = lines_file(incident(), [line]).decode()

    assert len(body.splitlines()) == 3
    assert all(char.isprintable() or char == "\n" for char in body)


@pytest.mark.parametrize(
    ("last_seconds", "now_seconds", "expected_seconds"),
    [
        pytest.param(0, 0, 0, id="it has just happened"),
        pytest.param(0, 599, 599, id="ten minutes are not over"),
        pytest.param(0, 601, 600, id="ten minutes are over"),
        pytest.param(1200, 7200, 1800, id="evidence continued"),
        pytest.param(6000, 7200, 3000, id="no more than an hour"),
        pytest.param(0, -60, 0, id="a clock that is behind"),
    ],
)
def test_window_reaches_from_before_the_first_to_after_the_last_evidence(
    last_seconds: float, now_seconds: float, expected_seconds: float
) -> None:
    rests_on = incident(xid(79), xid(79, seconds_ago=-last_seconds))

    assert window_of(rests_on, now=after(now_seconds)) == (NOW - MARGIN, after(expected_seconds))


def test_culprits_come_before_victims_among_the_nodes_that_are_looked_at() -> None:
    hypothesis = Hypothesis(
        statement="a cable", culprits=(Component(kind=ComponentKind.GPU, name=GPU, node=NodeName("gpu009")),),
        at_fault=AtFault.GPU, family=Family.GPU, first_action=FirstAction.MONITOR, confidence=0.9,
        affected_nodes=frozenset({NodeName("gpu004")}), evidence_for=(), evidence_against=(), alternatives=(),
        settled_by="",
    )  # fmt: skip
    suffering = job("42", nodes=("gpu001", "gpu002"), started_at=ago(3600))
    rests_on = incident(hypothesis=hypothesis, victims=frozenset({attempt("42")}))

    assert concerned_nodes(rests_on, {suffering.job: suffering}) == ("gpu009", "gpu001", "gpu004", "gpu002")
