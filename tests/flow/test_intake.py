"""Evidence is taken in once, conditions when they begin, and a source that fails loses nothing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import Outcome, OutcomeKind, Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import NodeStatus, Signal
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import LogBatch, LogLine, Logs, Sample, SourceNonsense, SourceUnavailable
from ops_pipelines.observe.intake import Intake, OurDoing, restarts_of, take_in_conditions, take_in_logs, wait_for_lines
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.domain import builders
from tests.scenarios.small_autopilot import SmallAutopilot


class BrokenLogs:
    source = "broken"

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        raise SourceNonsense("the cursor cannot be read")


class NoTelemetry:
    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        raise SourceUnavailable("prometheus did not answer")


class NoScheduler:
    def read_nodes(self) -> tuple[NodeStatus, ...]:
        raise SourceUnavailable("slurmctld did not answer")


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, node_count=3)
    autopilot.let_pass(5)
    return autopilot


def conditions(autopilot: SmallAutopilot) -> set[tuple[Signal, str]]:
    return {(each.signal, each.node) for each in autopilot.cluster.ledger.conditions()}


def test_log_line_becomes_evidence_once(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)

    counts = [take_in_logs(autopilot.cluster).new_count for _ in range(3)]

    assert counts == [3, 0, 0]  # Xid 48, 63, 154


def test_broken_log_does_not_keep_the_others_from_being_read(autopilot: SmallAutopilot) -> None:
    logs: tuple[Logs, ...] = (BrokenLogs(), *autopilot.cluster.logs)
    autopilot.cluster = replace(autopilot.cluster, logs=logs)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)

    taken = take_in_logs(autopilot.cluster)

    assert taken.new_count == 3
    assert taken.failures == ("the cursor cannot be read",)
    assert autopilot.cluster.ledger.cursor("broken") is None


class GrowsAtGlance(BrokenLogs):
    def __init__(self, number: int) -> None:
        self.glances = number

    def has_grown(self) -> bool:
        self.glances -= 1
        return self.glances == 0


@pytest.mark.parametrize(
    ("logs", "waited"),
    [
        pytest.param((), [0.2], id="nothing to glance at"),
        pytest.param((BrokenLogs(),), [0.2], id="cannot be glanced at"),
        pytest.param((BrokenLogs(), GrowsAtGlance(1)), [0.05], id="has grown"),
        pytest.param((GrowsAtGlance(3), GrowsAtGlance(2)), [0.05] * 2, id="one has"),
        pytest.param((GrowsAtGlance(9),), [0.05] * 4, id="none has"),
    ],
)
def test_what_grew_ends_the_wait_for_lines(autopilot: SmallAutopilot, logs: tuple[Logs, ...], waited: object) -> None:
    waits: list[float] = []
    cluster = replace(autopilot.cluster, logs=logs)

    is_over = wait_for_lines(cluster, 0.2, wait=waits.append)

    assert (is_over, [round(each, 6) for each in waits]) == (False, waited)


def test_who_waits_no_more_glances_no_more(autopilot: SmallAutopilot) -> None:
    logs = GrowsAtGlance(1)

    assert wait_for_lines(replace(autopilot.cluster, logs=(logs,)), 0.2, wait=lambda _: True)
    assert logs.glances == 1


class Flood:
    """A log of as many lines as are asked for; its cursor is how many were read."""

    source = "flood"

    def __init__(self, count: int) -> None:
        self._lines = [
            LogLine(
                node=f"gpu00{number % 3 + 1}",
                written_at=None,
                position=f"{number:06d}",
                text=f"NVRM: Xid (PCI:0000:1b:00): 45, pid={number}, Ch 00000001",
            )
            for number in range(count)
        ]
        self.most_read = 0

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        start = int(cursor or 0)
        lines = tuple(self._lines[start : start + max_lines])
        self.most_read = max(self.most_read, len(lines))
        return LogBatch(lines=lines, cursor=str(start + len(lines)))


class Crashing:
    """A ledger under which the process dies, before or after what it took in was committed."""

    def __init__(self, ledger: Ledger, *, is_committed: bool) -> None:
        self._ledger = ledger
        self._is_committed = is_committed

    def __getattr__(self, name: str) -> object:
        return getattr(self._ledger, name)

    def take_in(self, **values: object) -> int:
        if self._is_committed:
            self._ledger.take_in(**values)  # type: ignore[arg-type]  # passed on as they came
        raise KeyboardInterrupt


def positions(autopilot: SmallAutopilot) -> list[str]:
    kept = autopilot.cluster.ledger.evidence_after(0, limit=1_000_000)
    return [each.observation.position for each in kept]


def test_flood_is_taken_in_by_bounded_parts_in_order_and_nothing_is_lost(autopilot: SmallAutopilot) -> None:
    flood = Flood(12_345)
    autopilot.cluster = replace(autopilot.cluster, logs=(flood,))

    passes: list[Intake] = []
    while not passes or passes[-1].is_more_waiting:
        passes.append(take_in_logs(autopilot.cluster))

    assert [each.new_count for each in passes] == [4_000] * 3 + [345]
    assert flood.most_read == 4_000
    assert positions(autopilot) == [f"{number:06d}" for number in range(12_345)]


@pytest.mark.parametrize(("count", "is_more"), [(0, False), (3_999, False), (4_000, True), (4_001, True)])
def test_log_that_gave_as_much_as_was_asked_for_may_have_more(
    autopilot: SmallAutopilot, count: int, is_more: bool
) -> None:
    autopilot.cluster = replace(autopilot.cluster, logs=(Flood(count),))

    assert take_in_logs(autopilot.cluster).is_more_waiting is is_more


@pytest.mark.parametrize(("counts", "is_pouring"), [((399,), False), ((400,), True), ((), False)])
def test_logs_that_pour_are_looked_at_again_without_delay(
    autopilot: SmallAutopilot, counts: tuple[int, ...], is_pouring: bool
) -> None:
    autopilot.cluster = replace(autopilot.cluster, logs=tuple(Flood(count) for count in counts))

    assert take_in_logs(autopilot.cluster).is_pouring is is_pouring


@pytest.mark.parametrize("is_committed", [False, True])
def test_crash_in_a_flood_neither_loses_nor_doubles_a_line(autopilot: SmallAutopilot, is_committed: bool) -> None:
    working = replace(autopilot.cluster, logs=(Flood(4_100),))
    take_in_logs(working)
    autopilot.cluster = replace(working, ledger=cast("Ledger", Crashing(working.ledger, is_committed=is_committed)))
    with pytest.raises(KeyboardInterrupt):
        take_in_logs(autopilot.cluster)
    autopilot.cluster = working

    while take_in_logs(autopilot.cluster).new_count:
        pass

    assert positions(autopilot) == [f"{number:06d}" for number in range(4_100)]


def test_condition_is_evidence_when_it_begins_and_forgotten_when_it_ends(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.NETWORK_PARTITION, "gpu001", seconds=10)
    autopilot.let_pass(5)

    counts = [take_in_conditions(autopilot.cluster).new_count for _ in range(2)]
    during = conditions(autopilot)
    autopilot.let_pass(20)
    after = take_in_conditions(autopilot.cluster).new_count

    assert (Signal.NODE_UNREACHABLE, "gpu001") in during
    assert counts == [len(during), 0]
    assert after == 0
    assert conditions(autopilot) == set()


def test_source_that_fails_neither_begins_nor_ends_its_conditions(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")
    autopilot.let_pass(5)
    take_in_conditions(autopilot.cluster)
    before = conditions(autopilot)
    autopilot.cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", NoScheduler()), telemetry=NoTelemetry())
    autopilot.let_pass(60)

    taken = take_in_conditions(autopilot.cluster)

    assert (taken.nodes, taken.gpu_telemetry) == (None, None)
    assert len(taken.failures) == 2
    assert conditions(autopilot) == before


def test_node_that_somebody_else_drained_is_not_watched(autopilot: SmallAutopilot) -> None:
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="rack 1 (day-shift)")
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")
    autopilot.let_pass(30)

    assert take_in_conditions(autopilot.cluster).new_count == 0


def test_node_that_we_drained_is_watched(autopilot: SmallAutopilot) -> None:
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="ops_pipelines INC-0001: a test")
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")
    autopilot.let_pass(5)

    take_in_conditions(autopilot.cluster)

    assert (Signal.NODE_UNREACHABLE, "gpu001") in conditions(autopilot)


ENDED = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("signal", "newest", "is_ours"),
    [
        (Signal.GPU_MISSING, ENDED - timedelta(seconds=1), True),
        (Signal.GPU_MISSING, ENDED, True),
        (Signal.GPU_MISSING, ENDED + timedelta(seconds=1), False),
        (Signal.TELEMETRY_STALE, None, True),
        (Signal.NODE_UNREACHABLE, ENDED, False),
        (Signal.ECC_UNCORRECTABLE, ENDED, False),
    ],
)
def test_what_is_missing_because_we_restart_it_is_no_evidence_until_samples_come_again(
    signal: Signal, newest: datetime | None, is_ours: bool
) -> None:
    doing = OurDoing(changing=frozenset(), restarts={NodeName("gpu001"): ENDED})

    assert doing.explains(builders.observation(signal, node="gpu001"), newest=newest) is is_ours
    assert not doing.explains(builders.observation(signal, node="gpu002"), newest=newest)


@pytest.mark.parametrize(
    ("verb", "outcome", "seconds_later", "is_ours"),
    [
        (Verb.RESET_GPU, None, 0, True),
        (Verb.REBOOT, None, 3600, True),
        (Verb.RESET_GPU, OutcomeKind.DONE, 119, True),
        (Verb.RESET_GPU, OutcomeKind.DONE, 120, False),
        (Verb.RESET_GPU, OutcomeKind.FAILED, 1, False),
        (Verb.DRAIN, None, 0, False),
    ],
)
def test_our_own_restarts_explain_for_as_long_as_samples_may_be_late(
    verb: Verb, outcome: OutcomeKind | None, seconds_later: float, is_ours: bool
) -> None:
    over = None if outcome is None else Outcome(kind=outcome, witness="seen", finished_at=ENDED)
    gpu = builders.GPU if verb is Verb.RESET_GPU else None
    record = replace(builders.begun(builders.action(verb, on="gpu001", gpu=gpu)), outcome=over)

    found = restarts_of([record], now=ENDED + timedelta(seconds=seconds_later), late_by=timedelta(seconds=120))

    assert bool(found) is is_ours
