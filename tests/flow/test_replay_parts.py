"""The parts of a replay: policies key by key, hours without decisions, what was learned, and the lake's evidence."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import Action, ActionRecord, Verb
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import IncidentId, NodeName, PciAddress
from ops_pipelines.core.incident import Incident, IncidentState, Try
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.policy import ActionClass, BlastCaps, Consent, DrainBudget, FreezeWindow, Mode, Policy
from ops_pipelines.core.proof import wait
from ops_pipelines.core.record import Chronicle, Decided
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.ledger.state import LedgerChronicle
from ops_pipelines.review.replay import compare_policies, replay
from ops_pipelines.review.replay_lake import hours_without_decisions
from ops_pipelines.review.replay_recorded import mark_counterfactual
from ops_pipelines.review.replay_result import (
    RECURS_WITHIN,
    Assessment,
    ComparedAct,
    Difference,
    History,
    Source,
    learn,
)
from ops_pipelines.review.replay_side import Side, Standing, courses_of
from tests.domain import builders
from tests.flow.fake_store import topology_of
from tests.simulator.fake_clock import BEGINNING as AT

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
GPU = PciAddress("0000:18:00")


# -- policies ---------------------------------------------------------------------------------------------------------


def test_policies_differ_by_the_keys_of_policy_yaml_in_their_units() -> None:
    then = Policy(mode=Mode.OBSERVE, untouchable_nodes=frozenset({NodeName("b"), NodeName("a")}))
    new = replace(
        then,
        mode=Mode.AUTO,
        drain_budget=DrainBudget(max_out_count=9),
        durations=replace(then.durations, soak=timedelta(seconds=90)),
        blast_caps=BlastCaps(max_out_per_leaf_count=3),
        untouchable_nodes=frozenset(),
        freeze_windows=(FreezeWindow(name="visit", begins_at=AT, ends_at=AT + HOUR),),
    )

    found = {each.key: (each.then, each.new) for each in compare_policies(then, new)}

    assert found["mode"] == ("observe", "auto")
    assert found["drain_budget.max_out_count"] == ("4", "9")
    assert found["durations.soak_seconds"] == ("300", "90")
    assert found["blast_caps.max_out_per_leaf_count"] == ("no limit", "3")
    assert found["untouchable_nodes"] == ("a, b", "none")
    assert found["freeze_windows[0].name"] == ("not set", "visit")
    assert compare_policies(then, then) == ()


# -- hours ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decided", "expected"),
    [
        pytest.param([], [(0.5, 3.5)], id="nothing was decided: all of it, in one piece"),
        pytest.param([1.0], [(0.5, 1), (2, 3.5)], id="at the first moment of an hour"),
        pytest.param([0.99], [(1, 3.5)], id="at the last moment of the hour before"),
        pytest.param([0.6, 1.5, 2.5, 3.2], [], id="in each hour"),
        pytest.param([3.9], [(0.5, 3)], id="after the end, in its hour"),
    ],
)
def test_hours_without_decisions_are_told(decided: list[float], expected: list[tuple[float, float]]) -> None:
    start = AT.replace(minute=0, second=0, microsecond=0)

    found = hours_without_decisions(
        [start + each * HOUR for each in decided], since=start + 0.5 * HOUR, until=start + 3.5 * HOUR
    )

    assert [((begin - start) / HOUR, (end - start) / HOUR) for begin, end in found] == expected


# -- what follows a divergence ----------------------------------------------------------------------------------------


def act(minutes: float, difference: Difference, *nodes: str, incident: str = "INC-0001") -> ComparedAct:
    return ComparedAct(
        at=AT + minutes * MINUTE, source=Source.LEDGER, difference=difference, incident=IncidentId(incident),
        verb=Verb.DRAIN, target="gpu001", nodes=frozenset(map(NodeName, nodes)), cause="", plan_then=None,
        plan_new=None, then_at=None, new_at=None, done_at=None, outcome="", why="", team="", lost_gpu_hours=None,
        is_counterfactual=False,
    )  # fmt: skip


def test_only_what_follows_the_first_divergence_of_its_node_is_counterfactual() -> None:
    rows = [
        act(0, Difference.SAME, "gpu001"),
        act(1, Difference.ONLY_NEW, "gpu001"),
        act(1, Difference.ONLY_THEN, "gpu001"),
        act(2, Difference.SAME, "gpu001"),
        act(3, Difference.SAME, "gpu002"),
        act(4, Difference.SAME, "gpu001", "gpu002"),
        act(5, Difference.ONLY_NEW, incident="INC-0009"),
        act(6, Difference.SAME, incident="INC-0009"),
    ]

    marked = mark_counterfactual(rows)

    assert [each.is_counterfactual for each in marked] == [False, False, False, True, False, True, False, True]


# -- what was held back and continued later
# ------------------------------------------------------------------------------


def test_a_plan_that_a_guardrail_lets_go_begins_what_policy_allows_and_the_rest_on_a_yes() -> None:
    asking = builders.policy(consents={ActionClass.REBOOT: Consent.APPROVE})
    seen = builders.observation(code=79, gpu=builders.GPU)
    free = courses_of(builders.snapshot(seen), builders.rules(asking))
    ((incident, course),) = free.by_incident.items()
    assert course.plan is not None
    refusal = wait("rack_budget", "somebody took the last place in between")
    course = replace(course, standing=Standing.HELD, once_free=course.begun, begun=(), refusal=refusal)
    held = replace(free, by_incident={incident: course})
    name, side = free.decision.plans[0].plan, Side()

    def verbs() -> set[Verb]:
        return {each.action.verb for each in side.begun.values()}

    side.take(held, held, at=AT)
    at_first = verbs()
    guardrail = side.go_on(name, at=AT + MINUTE)
    by_itself = verbs()
    side.use_yes(name)
    without_yes = verbs()
    side.approve(name, at=AT + 2 * MINUTE)
    side.use_yes(name)

    assert (at_first, guardrail) == (set(), "rack_budget")
    assert Verb.DRAIN in by_itself
    assert Verb.REBOOT not in by_itself
    assert without_yes == by_itself
    assert Verb.REBOOT in verbs()
    assert {each.at for each in side.begun.values() if each.action.verb is Verb.REBOOT} == {AT + 2 * MINUTE}


def test_what_the_policy_itself_held_back_never_goes_on_by_itself() -> None:
    observing = courses_of(
        builders.snapshot(builders.observation(code=79, gpu=builders.GPU)),
        builders.rules(builders.policy(Mode.OBSERVE)),
    )
    (course,) = observing.by_incident.values()
    assert course.plan is not None
    side = Side()

    side.take(observing, observing, at=AT)

    assert side.go_on(course.plan.plan, at=AT + MINUTE) is None
    assert side.begun == {}


# -- what was learned later -------------------------------------------------------------------------------------------


class Past:
    """A chronicle of acts and tests."""

    def __init__(self, *tests: tuple[Action, float, bool], records: Iterable[ActionRecord] = ()) -> None:
        self._tests = tests
        self._records = (
            *(ActionRecord(action=action, plan=None, begun_at=AT) for action, _, _ in tests),
            *records,
        )

    def records(self, incident: IncidentId) -> tuple[ActionRecord, ...]:
        return tuple(each for each in self._records if each.action.incident == incident)

    def checks(self, node: NodeName, *, limit: int) -> tuple[tuple[NodeCheck, bool], ...]:
        return tuple(
            (
                NodeCheck(
                    key=action.key, node=node, suite="quick", started_at=AT, finished_at=AT + minutes * MINUTE, tests=()
                ),
                is_well,
            )
            for action, minutes, is_well in self._tests
            if action.node == node
        )


def closed(note: str = "", *, minutes: float = 10, name: str = "INC-0001", **changes: object) -> Incident:
    at = AT + minutes * MINUTE
    return builders.incident(
        name=name, state=IncidentState.RESOLVED, opened_at=AT, changed_at=at, closed_at=at, note=note, **changes
    )


def verdict(incident: Incident, past: Past | None = None, *others: Incident) -> Assessment:
    lessons = learn([incident, *others], cast("Chronicle", past or Past()))
    return next(each.verdict for each in lessons if each.incident == incident.incident)


CHECK = Action(verb=Verb.CHECK, incident=IncidentId("INC-0001"), node=NodeName("gpu001"), suite="quick")
REBOOT = ActionRecord(
    action=Action(verb=Verb.REBOOT, incident=IncidentId("INC-0001"), node=NodeName("gpu001")),
    plan=None,
    begun_at=AT + 5 * MINUTE,
)


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        pytest.param(Past((CHECK, 4, True)), Assessment.FALSE_ALARM, id="well, and nothing was repaired"),
        pytest.param(Past((CHECK, 4, True), records=[REBOOT]), Assessment.FALSE_ALARM, id="well before the repair"),
        pytest.param(Past((CHECK, 5, True), records=[REBOOT]), Assessment.UNKNOWN, id="well at the repair"),
        pytest.param(Past((CHECK, 6, True), records=[REBOOT]), Assessment.UNKNOWN, id="well after the repair"),
        pytest.param(Past((CHECK, 6, False), records=[REBOOT]), Assessment.REAL, id="unwell after the repair"),
        pytest.param(
            Past((replace(CHECK, incident=IncidentId("INC-7")), 4, True)), Assessment.UNKNOWN, id="of another"
        ),
        pytest.param(Past(), Assessment.UNKNOWN, id="no test"),
    ],
)
def test_tests_on_the_node_tell_real_from_false(past: Past, expected: Assessment) -> None:
    assert verdict(closed(), past) is expected


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ("closed by ada: false alarm, the cable was being moved", Assessment.FALSE_ALARM),
        ("closed by ada: False-positive", Assessment.FALSE_ALARM),
        ("closed by ada: replaced the board", Assessment.UNKNOWN),
        ("false alarm of the exporter", Assessment.UNKNOWN),
        ("closed by false alarm: replaced the board", Assessment.UNKNOWN),
    ],
)
def test_a_persons_word_counts_when_they_close(note: str, expected: Assessment) -> None:
    assert verdict(closed(note)) is expected


def test_what_no_repair_helped_or_hands_mended_was_real() -> None:
    tried = Try(response=Response.RESET_GPU, ended_at=AT, why="no witness")

    assert verdict(closed(tries=(tried,))) is Assessment.REAL
    assert verdict(closed(mended_at=AT)) is Assessment.REAL
    assert verdict(closed()) is Assessment.UNKNOWN


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (timedelta(0), Assessment.UNKNOWN),
        (timedelta(seconds=1), Assessment.REAL),
        (RECURS_WITHIN, Assessment.REAL),
        (RECURS_WITHIN + timedelta(seconds=1), Assessment.UNKNOWN),
    ],
)
def test_the_same_trouble_again_within_a_day_says_that_it_was_real(after: timedelta, expected: Assessment) -> None:
    first = closed()
    assert first.closed_at is not None
    second = replace(closed(name="INC-0002"), opened_at=first.closed_at + after)

    assert verdict(first, None, second) is expected
    assert verdict(first, None, replace(second, nodes=frozenset({NodeName("gpu777")}))) is Assessment.UNKNOWN


# -- the lake ---------------------------------------------------------------------------------------------------------


def history(tmp_path: Path, *, mode: Mode) -> tuple[History, Rules]:
    """Return a ledger without a decision, and a lake in which a GPU fell off the bus half an hour after AT."""
    lake = ParquetLake(tmp_path / "lake")
    line = "kernel: NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."
    lake.add(
        "kernel_events",
        TABLES["kernel_events"].from_rows(
            [
                {
                    "source": "kernel_log", "position": "1", "time": AT + 30 * MINUTE, "node": "gpu002", "text": line,
                    "signature": None,
                }
            ]
        ),
    )  # fmt: skip
    lake.add(
        "gpu_telemetry",
        TABLES["gpu_telemetry"].from_rows(
            {
                "node": "gpu002", "device": "GPU-a", "time": AT + number * MINUTE, "pci_address": GPU,
                "temperature_celsius": 40.0,
            }
            for number in range(60)
        ),
    )  # fmt: skip
    budget = DrainBudget(max_out_count=2, max_out_per_rack_count=2, min_in_service_ratio=0.5)
    rules = Rules(
        policy=Policy(mode=mode, drain_budget=budget),
        topology=topology_of("gpu001", "gpu002", "gpu003", "gpu004"),
        catalogue=read_catalogue(),
    )
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    found = History(
        cluster="small", chronicle=LedgerChronicle(ledger), lake=lake, present=rules, release={}, step_seconds=60
    )
    return found, rules


def test_hours_that_nobody_decided_on_are_understood_from_the_lake_and_what_is_not_known_is_said(
    tmp_path: Path,
) -> None:
    past, rules = history(tmp_path, mode=Mode.OBSERVE)
    told: list[tuple[str, datetime]] = []

    found = replay(
        past, replace(rules.policy, mode=Mode.AUTO), proposed="new.yaml", since=AT, until=AT + HOUR,
        on_progress=lambda source, at: told.append((source, at)),
    )  # fmt: skip

    (stretch,) = found.stretches
    assert (stretch.source, stretch.since, stretch.until) == (Source.LAKE, AT, AT + HOUR)
    assert any("checkpoints" in each for each in stretch.unknown)
    assert any(each.startswith("job_allocations: no row") for each in stretch.unknown)
    assert "today's policy.yaml" in stretch.then
    drain = next(each for each in found.acts if each.verb is Verb.DRAIN)
    assert (drain.difference, drain.target, drain.incident) == (Difference.ONLY_NEW, "gpu002", "PAST-0001")
    assert timedelta(0) <= drain.at - (AT + 30 * MINUTE) <= 2 * MINUTE
    assert drain.why.startswith("mode: ")
    assert (found.lessons, found.reproduction.decision_count) == ((), 0)
    assert told == [("lake", AT + HOUR)]


def test_the_same_policy_does_the_same_on_the_lakes_evidence(tmp_path: Path) -> None:
    past, rules = history(tmp_path, mode=Mode.AUTO)

    found = replay(past, rules.policy, proposed="new.yaml", since=AT, until=AT + HOUR)

    assert {each.difference for each in found.acts} == {Difference.SAME}
    assert found.then == found.new
    assert (found.then.unknown_loss_count, found.understanding_difference_count) == (0, 0)


def test_an_incident_that_the_ledger_had_open_then_is_not_found_once_more(tmp_path: Path) -> None:
    past, rules = history(tmp_path, mode=Mode.AUTO)
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    before = AT - 2 * HOUR
    known = builders.incident(nodes=frozenset({NodeName("gpu002")}), opened_at=before, changed_at=before)
    ledger.record_decision(
        inputs=ledger.store("{}"), decided_through=0, expected_head=None, incidents=[known], plans=[], now=before
    )

    found = replay(past, rules.policy, proposed="new.yaml", since=AT, until=AT + HOUR)

    assert found.acts == ()


# -- the record -------------------------------------------------------------------------------------------------------


def test_refusals_are_part_of_the_record_and_new_guardrails_alone_are_worth_a_line(tmp_path: Path) -> None:
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    inputs = ledger.store("{}")

    def decide(*refusals: tuple[str, str], seconds: float) -> None:
        ledger.record_decision(
            inputs=inputs, decided_through=0, expected_head=None, incidents=[], plans=[],
            now=AT + timedelta(seconds=seconds),
            refusals=[(IncidentId("INC-0001"), wait(name, reason)) for name, reason in refusals],
        )  # fmt: skip

    decide(seconds=0)
    decide(("confirmation", "seen for 3 s"), seconds=1)
    decide(("confirmation", "seen for 6 s"), seconds=2)
    decide(("drain_budget", "2 are out"), seconds=3)
    decide(seconds=4)
    decide(seconds=5)

    events = LedgerChronicle(ledger).events(since=AT, until=AT + HOUR)
    lines = [each for each in events if isinstance(each, Decided)]
    assert [(each.at - AT).total_seconds() for each in lines] == [1, 3, 4]
    assert [[refusal.guardrail for _, refusal in each.refusals or ()] for each in lines] == [
        ["confirmation"], ["drain_budget"], [],
    ]  # fmt: skip
    assert ledger.verify_chain().problem == ""


def test_a_stretch_holds_the_lines_written_in_it(tmp_path: Path) -> None:
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    inputs = ledger.store("{}")
    for number in range(10):
        ledger.record_decision(
            inputs=inputs, decided_through=number + 1, expected_head=None, incidents=[], plans=[],
            now=AT + timedelta(seconds=number),
        )  # fmt: skip
    chronicle = LedgerChronicle(ledger)

    for since, until in [(0, 0), (0, 1), (1, 2), (2, 9), (3, 4), (5, 5), (9, 12), (4, 30), (-5, 3), (20, 30)]:
        found = chronicle.events(since=AT + timedelta(seconds=since), until=AT + timedelta(seconds=until))

        seconds = [(each.at - AT).total_seconds() for each in found]
        assert seconds == [number for number in range(10) if since <= number < until], (since, until)
