"""The reflex: drains in the tick, through the same decision, guardrails and ledger as a run, and nothing stronger."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import OutcomeKind, Verb
from ops_pipelines.core.entries import EntryKind as Line
from ops_pipelines.core.entries import Evidence, LedgerConflict
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import Digest, NodeName, PciAddress
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import Observation, Signal
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import LogBatch, LogLine, SourceUnavailable
from ops_pipelines.diagnose.correlate import RENEWED_EVERY
from ops_pipelines.observe.intake import take_in_logs
from ops_pipelines.observe.rules import find
from ops_pipelines.people import orders
from ops_pipelines.remediate.reflex import Attention, Reaction, react
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.flow.fake_store import FakeLogs
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import TRAINING

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    return autopilot


def tick(autopilot: SmallAutopilot) -> Reaction | None:
    take_in_logs(autopilot.cluster)
    return react(autopilot.cluster, lease=autopilot.lease)


def break_gpu(autopilot: SmallAutopilot, node: str = "gpu001") -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=3)


def test_nothing_new_decides_nothing(autopilot: SmallAutopilot) -> None:
    assert tick(autopilot) is None
    assert autopilot.cluster.ledger.read_state(autopilot.clock.now()).head_seq == 0


def test_broken_node_is_drained_and_its_job_is_left_to_the_run(autopilot: SmallAutopilot) -> None:
    break_gpu(autopilot)

    reaction = tick(autopilot)

    assert autopilot.commands() == [EntryKind.DRAIN]
    assert not autopilot.job().is_held
    assert autopilot.messages.messages == []
    assert "drained gpu001" in str(reaction)
    (record,) = autopilot.cluster.ledger.records(autopilot.incident().incident)
    assert record.action.verb is Verb.DRAIN
    assert record.outcome is not None
    assert record.outcome.kind is OutcomeKind.DONE


@pytest.mark.parametrize("host", ["gpu001", "GPU001", "gpu001.site.example", "GPU001.SITE.EXAMPLE"])
def test_node_is_drained_however_its_kernel_log_names_it(autopilot: SmallAutopilot, host: str) -> None:
    log = FakeLogs(source="kernel_log")
    log.write("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.", node=host)
    autopilot.cluster = replace(autopilot.cluster, logs=(log,))

    tick(autopilot)

    assert autopilot.commands() == [EntryKind.DRAIN]
    assert autopilot.node("gpu001").is_drained


def test_second_tick_finds_nothing_left_to_do(autopilot: SmallAutopilot) -> None:
    break_gpu(autopilot)
    tick(autopilot)

    assert tick(autopilot) is None
    assert autopilot.commands() == [EntryKind.DRAIN]


def test_run_after_the_reflex_comes_to_the_end_that_it_would_have_come_to_alone(tmp_path: Path) -> None:
    ends = []
    for name in ("with", "without"):
        autopilot = SmallAutopilot(tmp_path / name, TRAINING, node_count=5)
        autopilot.let_pass(15)
        break_gpu(autopilot)
        if name == "with":
            tick(autopilot)
        autopilot.run_until(IncidentState.RESOLVED)
        records = autopilot.cluster.ledger.records(autopilot.incident().incident)
        ends.append(
            (
                autopilot.commands(),
                [(record.action.key, record.outcome.kind if record.outcome else None) for record in records],
                autopilot.job().nodes,
                len(autopilot.messages.messages),
            )
        )

    assert ends[0] == ends[1]


def test_decision_of_the_reflex_can_be_made_again_from_the_ledger(autopilot: SmallAutopilot) -> None:
    break_gpu(autopilot)
    tick(autopilot)

    (decision,) = [each for each in autopilot.cluster.ledger.entries(after=0, limit=99) if each.kind is Line.DECISION]

    digest = Digest(decision.body.split('"inputs":"')[1][:64])
    assert autopilot.cluster.ledger.load_snapshot(digest).observations != ()


@pytest.mark.parametrize("reason", ["observe", "approve", "paused", "no budget", "foreign drain", "untouchable"])
def test_guardrails_hold_the_reflex_as_they_hold_a_run(autopilot: SmallAutopilot, reason: str) -> None:
    policy = {
        "observe": replace(POLICY, mode=Mode.OBSERVE),
        "approve": replace(POLICY, mode=Mode.APPROVE),
        "no budget": replace(POLICY, drain_budget=replace(POLICY.drain_budget, max_out_count=0)),
        "untouchable": replace(POLICY, untouchable_nodes=frozenset({autopilot.node("gpu001").node})),
    }.get(reason, POLICY)
    autopilot.use_policy(policy)
    if reason == "paused":
        orders.pause(autopilot.cluster, actor="day-shift", reason="a test")
    if reason == "foreign drain":
        autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="rack 1 (day-shift)")
    before = autopilot.commands()
    break_gpu(autopilot)

    tick(autopilot)

    assert autopilot.commands() == before
    assert autopilot.incident().state is IncidentState.OPEN


def test_many_broken_nodes_at_once_are_not_drained_but_left_to_a_page(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=12)
    autopilot.let_pass(5)
    for number in range(1, POLICY.mass_event.min_node_count + 1):
        break_gpu(autopilot, f"gpu{number:03d}")

    tick(autopilot)

    assert autopilot.commands() == []
    assert [each.is_mass_event for each in autopilot.incidents() if each.is_open] == [True]


def test_silent_scheduler_leaves_the_evidence_undecided(autopilot: SmallAutopilot) -> None:
    class Silent:
        def read_nodes(self) -> object:
            raise SourceUnavailable("slurmctld did not answer")

    working = autopilot.cluster
    break_gpu(autopilot)
    autopilot.cluster = replace(working, scheduler=cast("Scheduler", Silent()))
    with pytest.raises(SourceUnavailable):
        tick(autopilot)
    autopilot.cluster = working

    assert tick(autopilot) is not None
    assert autopilot.node("gpu001").is_drained


class Overtaken:
    """A ledger on which somebody else writes before the first `times` decisions."""

    def __init__(self, ledger: Ledger, times: int) -> None:
        self._ledger = ledger
        self._times = times

    def __getattr__(self, name: str) -> object:
        return getattr(self._ledger, name)

    def record_decision(self, **values: object) -> int:
        if self._times > 0:
            self._times -= 1
            raise LedgerConflict("somebody else decided in between")
        return self._ledger.record_decision(**values)  # type: ignore[arg-type]  # passed on as they came


@pytest.mark.parametrize(("times", "is_drained"), [(0, True), (7, True), (8, False)])
def test_reflex_that_is_overtaken_decides_anew_and_at_last_leaves_it_to_the_next_tick(
    autopilot: SmallAutopilot, times: int, is_drained: bool
) -> None:
    break_gpu(autopilot)
    ledger = autopilot.cluster.ledger
    autopilot.cluster = replace(autopilot.cluster, ledger=cast("Ledger", Overtaken(ledger, times)))

    tick(autopilot)

    assert autopilot.node("gpu001").is_drained is is_drained
    tick(autopilot)
    assert autopilot.node("gpu001").is_drained


class CountedScheduler:
    """A scheduler that counts how often it is asked for its jobs."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.asked_count = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def read_jobs(self) -> object:
        self.asked_count += 1
        return self._scheduler.read_jobs()


def jobs_asked(autopilot: SmallAutopilot, *, overtaken: int) -> int:
    """Let the reflex drain a node, overtaken so often, and return how often the scheduler was asked for its jobs."""
    break_gpu(autopilot)
    counted = CountedScheduler(autopilot.cluster.scheduler)
    ledger = Overtaken(autopilot.cluster.ledger, overtaken)
    autopilot.cluster = replace(autopilot.cluster, ledger=cast("Ledger", ledger), scheduler=cast("Scheduler", counted))
    tick(autopilot)
    assert autopilot.node("gpu001").is_drained
    return counted.asked_count


def test_reflex_that_is_overtaken_asks_the_scheduler_no_more_often(tmp_path: Path) -> None:
    counts = []
    for overtaken in (0, 5):
        autopilot = SmallAutopilot(tmp_path / str(overtaken), TRAINING, node_count=5)
        autopilot.let_pass(15)
        counts.append(jobs_asked(autopilot, overtaken=overtaken))

    assert counts[0] == counts[1] > 0


def test_evidence_that_calls_for_no_repair_opens_its_incident_and_the_rest_is_left_to_the_run(
    autopilot: SmallAutopilot,
) -> None:
    autopilot.twin.inject(FaultKind.APPLICATION_XID31, "gpu001", gpu=0)

    reaction = tick(autopilot)

    assert reaction is not None
    assert (reaction.incident_count, reaction.drains) == (1, ())
    assert autopilot.commands() == []
    assert autopilot.owners_told() == []
    assert autopilot.incident().state is IncidentState.OPEN
    autopilot.run_until(IncidentState.RESOLVED)
    assert len(autopilot.owners_told()) == 1


CATALOGUE = read_catalogue()
FALLEN, APPLICATION, VICTIM = 79, 31, 45
"""A code that calls for a repair, one that calls for a message, and one that asks for nothing by itself."""


def evidence(*codes: int, gpu: str = "0000:1b:00") -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            seq=number,
            observation=Observation(
                signal=Signal.XID,
                node=NodeName("gpu001"),
                observed_at=NOW,
                source="kernel_log",
                position=str(number),
                code=code,
                gpu=PciAddress(gpu),
            ),
        )
        for number, code in enumerate(codes, start=1)
    )


def attention_after(*codes: int) -> Attention:
    """Return the attention of a tick that ends in 3 s and has decided on `codes` just now."""
    attention = Attention(ends_at=NOW + 3 * SECOND)
    attention.take_note([find(each.observation, CATALOGUE) for each in evidence(*codes)], now=NOW)
    return attention


def test_codes_mean_what_these_tests_say_of_them() -> None:
    answers = [find(each.observation, CATALOGUE).response for each in evidence(FALLEN, APPLICATION, VICTIM)]

    assert answers[0] in REPAIRS
    assert answers[1:] == [Response.NOTIFY_OWNER, Response.MONITOR]


def test_first_look_of_a_tick_decides_on_whatever_is_there() -> None:
    assert Attention(ends_at=NOW + SECOND).is_drawn(evidence(VICTIM), CATALOGUE, now=NOW)
    assert not Attention(ends_at=NOW + SECOND).is_drawn((), CATALOGUE, now=NOW)


@pytest.mark.parametrize(
    ("before", "new", "seconds", "is_drawn"),
    [
        pytest.param((), (FALLEN,), 0.0, True, id="a repair for the first time is decided on at once"),
        pytest.param((FALLEN,), (FALLEN,), 0.39, False, id="the same repair again waits"),
        pytest.param((FALLEN,), (FALLEN,), 0.4, True, id="but not long"),
        pytest.param((FALLEN,), (FALLEN,), 0.41, True, id="and longer is long enough"),
        pytest.param((), (APPLICATION,), 0.39, False, id="a message for the first time waits"),
        pytest.param((), (APPLICATION,), 0.4, True, id="no longer than a repair that was decided on"),
        pytest.param((APPLICATION,), (APPLICATION,), 2.0, False, id="a message that repeats is left to the next tick"),
        pytest.param((APPLICATION,), (APPLICATION,), 2.6, False, id="until the tick is about to end"),
        pytest.param((), (APPLICATION,), 0.0, False, id="in the middle of a tick there is time"),
        pytest.param((), (VICTIM,), 2.0, False, id="what asks for nothing does not matter by itself"),
        pytest.param((VICTIM,), (VICTIM,) * 99, 2.0, False, id="nor do a few of them"),
        pytest.param((VICTIM,), (VICTIM,) * 100, 2.0, True, id="a hundred are worth a snapshot"),
        pytest.param((VICTIM,), (VICTIM,) * 101, 0.39, False, id="twice a second"),
        pytest.param((VICTIM,), (VICTIM,) * 999, 0.0, False, id="up to a thousand"),
        pytest.param((VICTIM,), (VICTIM,) * 1_000, 0.0, True, id="which wait for nothing"),
    ],
)
def test_what_a_tick_decides_on_and_when(
    before: tuple[int, ...], new: tuple[int, ...], seconds: float, is_drawn: bool
) -> None:
    attention = attention_after(*before)

    assert attention.is_drawn(evidence(*new), CATALOGUE, now=NOW + seconds * SECOND) is is_drawn


@pytest.mark.parametrize(("left", "is_drawn"), [(0.41, False), (0.4, True), (0.39, True), (0.0, True)])
def test_what_could_not_be_decided_on_later_in_the_tick_is_decided_on_now(left: float, is_drawn: bool) -> None:
    attention = attention_after(VICTIM)
    attention.ends_at = NOW + left * SECOND

    assert attention.is_drawn(evidence(APPLICATION), CATALOGUE, now=NOW) is is_drawn


def test_same_code_on_another_gpu_is_not_the_same() -> None:
    assert attention_after(FALLEN).is_drawn(evidence(FALLEN, gpu="0000:2b:00"), CATALOGUE, now=NOW)


class Chatter:
    """A log in which one GPU says the same with every reading."""

    source = "chatter"

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        number = int(cursor or 0) + 1
        text = f"NVRM: Xid (PCI:0000:1b:00): {APPLICATION}, pid={number}, name=python3, MMU Fault"
        line = LogLine(node="gpu001", written_at=None, position=str(number), text=text)
        return LogBatch(lines=(line,), cursor=str(number))


def test_gpu_that_chatters_costs_a_tick_one_snapshot(autopilot: SmallAutopilot) -> None:
    autopilot.cluster = replace(autopilot.cluster, logs=(Chatter(),))
    attention = Attention(ends_at=autopilot.clock.now() + 5 * SECOND)
    for _ in range(15):
        take_in_logs(autopilot.cluster)
        react(autopilot.cluster, lease=autopilot.lease, attention=attention)
        autopilot.let_pass(0.25)

    lines = autopilot.cluster.ledger.entries(after=0, limit=99)
    state = autopilot.cluster.ledger.read_state(autopilot.clock.now())
    assert [each.kind for each in lines].count(Line.DECISION) == 1
    assert state.evidence_head - state.decided_through == 14
    tick(autopilot)
    state = autopilot.cluster.ledger.read_state(autopilot.clock.now())
    assert state.evidence_head == state.decided_through


def test_nodes_drained_before_the_mass_event_showed_are_touched_no_further(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=12)
    autopilot.let_pass(15)
    break_gpu(autopilot, "gpu001")
    tick(autopilot)
    autopilot.let_pass(1)
    for number in range(2, POLICY.mass_event.min_node_count + 3):
        break_gpu(autopilot, f"gpu{number:03d}")
    tick(autopilot)

    autopilot.run_for(60)

    assert autopilot.commands() == [EntryKind.DRAIN]
    assert len(autopilot.pages()) == 1


def storm_of(autopilot: SmallAutopilot) -> None:
    """Break as many nodes at once as make a mass event, and let a person have it."""
    for number in range(1, POLICY.mass_event.min_node_count + 1):
        break_gpu(autopilot, f"gpu{number:03d}")
    autopilot.run_for(15)
    assert [each.state for each in autopilot.incidents() if each.is_mass_event] == [IncidentState.ESCALATED]


def test_a_node_of_a_mass_event_that_breaks_anew_is_drained_and_the_page_renewed(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=12)
    autopilot.let_pass(5)
    storm_of(autopilot)
    autopilot.let_pass(RENEWED_EVERY.total_seconds())
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu002", gpu=5)

    tick(autopilot)
    at_once = autopilot.commands()
    autopilot.run_for(30)

    assert at_once == [EntryKind.DRAIN]
    assert autopilot.commands() == [EntryKind.DRAIN]
    assert autopilot.node("gpu002").is_drained
    _of_storm, renewed = autopilot.pages()
    assert "gpu002" in renewed.body
    assert "drained within the budget: gpu002" in renewed.body
    assert [each.state for each in autopilot.incidents() if each.is_mass_event] == [IncidentState.ESCALATED]


def test_many_nodes_that_break_anew_are_drained_to_the_budget_with_one_page(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=12)
    autopilot.let_pass(5)
    storm_of(autopilot)
    autopilot.let_pass(RENEWED_EVERY.total_seconds())
    for number in range(1, POLICY.mass_event.min_node_count + 1):
        autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, f"gpu{number:03d}", gpu=5)

    autopilot.run_for(60)

    assert autopilot.commands() == [EntryKind.DRAIN] * POLICY.drain_budget.max_out_count
    assert len(autopilot.pages()) == 2
    assert "left in service" in autopilot.pages()[-1].body
