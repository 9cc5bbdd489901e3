"""The report on one incident: its milestones, its events, what it cost, who waited, and what is left to do."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.action import ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.entries import Entry
from ops_pipelines.core.fault import AtFault, Family, FirstAction, Hypothesis
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import ActionKey, IncidentId, JobAttempt, NodeName, listed
from ops_pipelines.core.incident import Incident, IncidentState, Recovery
from ops_pipelines.core.node_tests import NodeCheck, TestResult, TestRun
from ops_pipelines.core.notes import Audience, KeptNote, Lane, Note, NoteState, Severity
from ops_pipelines.core.policy import Mode
from ops_pipelines.people import orders
from ops_pipelines.report.document import to_json
from ops_pipelines.report.numbers import span_words
from ops_pipelines.review.chain import Chain, gpu_hours_words, read_chain
from ops_pipelines.review.cost import (
    MilestoneKind,
    RecentRemediation,
    cost_of,
    milestones_of,
    recent_remediation,
    victims_of,
)
from ops_pipelines.review.follow_ups import Urgency, follow_ups_of
from ops_pipelines.review.incident_report import IncidentReport, report_on
from ops_pipelines.review.timeline import EventKind, EventLane, timeline_of
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.domain.builders import NODE, NOW, action, after, attempt, incident, xid
from tests.ports.ledger_samples import fill
from tests.scenarios.ladder_stage import WATCHFUL, Stage, node_of
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.scenarios.test_moving_jobs import aged
from tests.simulator.small_cluster import TRAINING

NO_CHAIN = Chain(lines=(), changes=(), plans=(), approvals=(), refusals=(), resent=(), decisions=())
NO_SAVINGS = RecentRemediation(savings=(), uncounted_job_count=0, recoveries=(), plans=())
OLD = attempt(started_at=after(-7200))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A bad row under two jobs: after an approval one is moved at once, one after its next checkpoint; the GPU is
    reset."""
    stage = Stage(
        tmp_path_factory.mktemp("story"), aged("fresh", 1), aged("old", 59), policy=replace(WATCHFUL, mode=Mode.APPROVE)
    )
    stage.reach(stage.twin.began_at + timedelta(seconds=7200))
    stage.remap_row(node_of(stage, "fresh"), 0)
    stage.run_once()
    stage.let_pass(20)
    orders.approve(stage._plans[-1].plan, stage.cluster, actor="day-shift", valid_for=timedelta(hours=2))
    stage.run_until(IncidentState.RESOLVED)
    return stage


@pytest.fixture(scope="module")
def report(stage: Stage) -> IncidentReport:
    return report_on(stage.incident(), stage.cluster)


# -- a whole incident -------------------------------------------------------------------------------------------------


def test_report_tells_the_milestones_of_a_repair_in_their_order(report: IncidentReport) -> None:
    kinds = [each.kind for each in report.milestones]

    assert kinds[:5] == [
        MilestoneKind.BEGAN,
        MilestoneKind.NOTICED,
        MilestoneKind.DECIDED,
        MilestoneKind.APPROVED,
        MilestoneKind.DRAINED,
    ]
    assert {MilestoneKind.MOVED, MilestoneKind.RUNNING, MilestoneKind.REPAIRED} <= set(kinds)
    assert kinds[-2:] == [MilestoneKind.RETURNED, MilestoneKind.CLOSED]
    assert [each.number for each in report.milestones] == list(range(1, len(kinds) + 1))


def test_what_milestones_took_adds_up_to_the_life_of_the_incident(report: IncidentReport) -> None:
    assert report.closed_at is not None
    lasted = (report.closed_at - report.began_at).total_seconds()

    assert sum(each.took_seconds for each in report.milestones) == pytest.approx(lasted)
    assert report.milestones[-1].since_began_seconds == pytest.approx(lasted)


def test_report_holds_every_act_with_its_witness_and_every_line_of_the_chain(
    stage: Stage, report: IncidentReport
) -> None:
    name = stage.incident().incident
    records = stage.cluster.ledger.records(name)
    acts = [each for each in report.events if each.verb]
    lines = [each for each in stage.cluster.ledger.entries(after=0, limit=1000) if each.incident == name]

    assert sorted(each.verb for each in acts) == sorted(record.action.verb.value for record in records)
    assert all(each.detail for each in acts)
    assert {line.seq for line in lines} <= {line.seq for line in report.lines}
    assert [each.kind for each in report.lines][:3] == ["decision", "incident", "plan"]
    assert list(report.events) == sorted(report.events, key=lambda each: each.at)


def test_report_says_who_said_yes_who_owns_the_jobs_and_who_waited_for_whom(report: IncidentReport) -> None:
    waits = {each.who: each for each in report.waits}

    assert [each.actor for each in report.approvals] == ["day-shift"]
    assert {each.user for each in report.victims} == {"research-train"}
    assert {each.account for each in report.victims} == {"research"}
    assert waits[report.plans[0].plan].waited_for == "the approval of day-shift"
    assert waits[report.plans[0].plan].seconds == pytest.approx(20, abs=1)
    assert waits["moving job 1002"].waited_for == "its next checkpoint"
    assert any(each.kind is EventKind.APPROVED and each.lane is EventLane.PEOPLE for each in report.events)


def test_costs_are_what_the_recoveries_say_and_savings_what_time_saved_counts(
    stage: Stage, report: IncidentReport
) -> None:
    recoveries = stage.incident().recoveries
    work = sum((each.held_at - (each.checkpointed_at or each.held_at)).total_seconds() for each in recoveries)
    stood = sum(((each.resumed_at or each.held_at) - each.held_at).total_seconds() for each in recoveries)
    saved = recent_remediation(stage.cluster.ledger, now=stage.clock.now(), back=timedelta(days=1)).savings

    assert report.cost.by_fault == 0
    assert report.cost.by_our_acts == pytest.approx(work / 3600)
    assert report.cost.waiting == pytest.approx(stood / 3600)
    assert report.cost.saved == pytest.approx(sum(each.saved_gpu_hours for each in saved))
    assert 0 < report.cost.out_of_service < 2 * 120 / 3600


def test_report_is_json_with_plain_values(report: IncidentReport) -> None:
    told = to_json(report)

    assert '"state": "resolved"' in told
    assert '"urgency": "review"' in told


def test_incident_that_waits_for_a_yes_asks_for_it_first(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=4, policy=replace(POLICY, mode=Mode.APPROVE))
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.run_for(9)

    waiting = report_on(autopilot.incident(), autopilot.cluster)
    autopilot.use_policy(replace(POLICY, mode=Mode.OBSERVE))
    observing = report_on(autopilot.incident(), autopilot.cluster)

    plan = waiting.plans[-1].plan
    assert waiting.is_open
    assert waiting.follow_ups[0].urgency is Urgency.NOW
    assert waiting.follow_ups[0].command == f"ops-pipelines approve {plan}"
    assert waiting.standing == f"{plan} waits for somebody's yes."
    assert "Nothing was done by us." in waiting.headline
    assert (observing.follow_ups, observing.standing) == ((), "Nothing is done by us: the mode is observe.")


def test_report_asks_no_system(stage: Stage) -> None:
    class Unreachable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was asked; a report is written when everything else is down")

    alone = Unreachable()
    deaf = replace(stage.cluster, scheduler=alone, fleet=alone, telemetry=alone, notifier=alone)  # type: ignore[arg-type]  # on purpose

    assert report_on(stage.incident(), deaf).state == "resolved"


def test_inputs_of_a_decision_that_are_gone_cost_the_owners_and_not_the_report(stage: Stage) -> None:
    class Forgetful:
        def __getattr__(self, name: str) -> object:
            return getattr(stage.cluster.ledger, name)

        def load_snapshot(self, digest: str) -> object:
            from ops_pipelines.core.entries import LedgerError

            raise LedgerError("it does not fit this program")

    told = report_on(stage.incident(), replace(stage.cluster, ledger=Forgetful()))  # type: ignore[arg-type]  # all else is the ledger's

    assert [each.user for each in told.victims] == ["", ""]
    assert told.not_known
    assert told.cost.by_our_acts > 0


# -- the chain --------------------------------------------------------------------------------------------------------


def test_chain_is_read_whatever_stands_in_it(stage: Stage) -> None:
    """Lines of other versions say less, and never make the reading fail."""

    class Rewritten:
        def __init__(self, body: str) -> None:
            self.body = body

        def __getattr__(self, name: str) -> object:
            return getattr(stage.cluster.ledger, name)

        def entries_about(self, incident: IncidentId) -> tuple[Entry, ...]:
            lines = stage.cluster.ledger.entries_about(incident)
            return tuple(replace(each, body=self.body) for each in lines)

    for body in ("", "{", "[]", "null", "{}", '{"action": 3, "refusal": [], "state": 1, "expires_at": "never"}'):
        chain = read_chain(stage.incident(), Rewritten(body))  # type: ignore[arg-type]  # all else is the ledger's
        assert chain.lines
        assert chain.plans == ()


def test_every_kind_of_line_is_told(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=1)
    ledger = autopilot.cluster.ledger
    fill(ledger)
    second = next(each for each in ledger.incidents_since(NOW - timedelta(days=9999)) if each.incident == "INC-0002")

    report = report_on(second, autopilot.cluster)

    kinds = {each.kind for each in report.lines}
    assert {"decision", "incident", "plan", "action_begun", "action_resent", "action_sent", "action_refused"} <= kinds
    assert [each.guardrail for each in report.refusals] == ["drain_budget"]
    assert EventKind.SENT_AGAIN in {each.kind for each in report.events}
    assert EventKind.UNDER_WAY in {each.kind for each in report.events}


# -- cost -------------------------------------------------------------------------------------------------------------


def held(what: JobAttempt, *, at: datetime, has_ended: bool = False) -> ActionRecord:
    return ActionRecord(
        action=replace(action(Verb.HOLD, of=what), has_ended=has_ended),
        plan=None,
        begun_at=at,
        attempt_nodes=frozenset({NODE}),
        gpu_count=8,
        outcome=Outcome(kind=OutcomeKind.DONE, witness="held", finished_at=at),
    )


def drained(at: datetime) -> ActionRecord:
    return ActionRecord(
        action=action(Verb.DRAIN, on=NODE),
        plan=None,
        begun_at=at,
        outcome=Outcome(kind=OutcomeKind.DONE, witness="flag", finished_at=at),
    )


def moved(**changes: object) -> Recovery:
    values = {
        "attempt": OLD, "gpu_count": 8, "held_at": after(60), "checkpointed_at": after(-3600), "resumed_at": after(960),
    }  # fmt: skip
    return Recovery(**(values | changes))  # type: ignore[arg-type]  # as given


def costs(what: Incident, *records: ActionRecord, now: datetime) -> tuple[float, float, float, float]:
    victims = victims_of(what, records, {}, now=now)
    cost = cost_of(what, records, victims, (), NO_SAVINGS, gpus_per_node=8, now=now)
    return cost.by_fault, cost.by_our_acts, cost.waiting, cost.out_of_service


@pytest.mark.parametrize(
    ("has_ended", "expected"),
    [
        # Checkpoint an hour before the fault, held a minute after it, running again 15 minutes later: 8 GPUs.
        (True, (8 * 3600 / 3600, 0.0, 8 * 960 / 3600)),
        (False, (0.0, 8 * 3660 / 3600, 8 * 900 / 3600)),
    ],
)
def test_work_is_lost_to_whoever_ended_the_job(has_ended: bool, expected: tuple[float, float, float]) -> None:
    known = incident(xid(79), recoveries=(moved(),))

    found = costs(known, held(OLD, at=after(60), has_ended=has_ended), now=after(2000))

    assert found[:3] == pytest.approx(expected)


def test_capacity_is_out_from_the_drain_to_the_return_less_what_a_job_still_did_there() -> None:
    known = incident(xid(79), recoveries=(moved(held_at=after(610)),), returned_at=after(3610))

    alone = costs(known, drained(after(10)), now=after(9000))
    with_job = costs(known, drained(after(10)), held(OLD, at=after(610)), now=after(9000))
    never = costs(known, now=after(9000))

    assert alone[3] == pytest.approx(8 * 3600 / 3600)
    assert with_job[3] == pytest.approx(8 * 3000 / 3600)
    assert never[3] == 0


def test_unknown_checkpoint_is_not_counted_and_said_so() -> None:
    known = incident(xid(79), recoveries=(moved(checkpointed_at=None),))
    records = (held(OLD, at=after(60)),)
    victims = victims_of(known, records, {}, now=after(2000))

    cost = cost_of(known, records, victims, (), NO_SAVINGS, gpus_per_node=8, now=after(2000))

    assert victims[0].lost_by_us_gpu_hours is None
    assert cost.by_our_acts == 0
    assert cost.not_counted[0] == "the lost work of job 42: the age of its checkpoint is not known"


def test_job_that_waits_costs_more_with_every_minute_until_the_incident_is_closed() -> None:
    waiting = incident(xid(79), recoveries=(moved(resumed_at=None),))
    closed = replace(waiting, state=IncidentState.RESOLVED, closed_at=after(660))

    early, late = (costs(waiting, held(OLD, at=after(60)), now=after(at))[2] for at in (360, 660))

    assert (early, late) == pytest.approx((8 * 300 / 3600, 8 * 600 / 3600))
    assert costs(closed, held(OLD, at=after(60)), now=after(99_999))[2] == pytest.approx(late)


OFFSETS = st.integers(min_value=-100_000, max_value=100_000)


@given(
    jobs=st.lists(st.tuples(OFFSETS, OFFSETS, st.none() | OFFSETS, st.none() | OFFSETS, st.booleans()), max_size=5),
    drained_at=OFFSETS,
    returned_at=st.none() | OFFSETS,
)
@settings(max_examples=60, deadline=None)
def test_whatever_the_clocks_say_no_cost_is_below_nothing_and_the_parts_make_the_sum(
    jobs: list[tuple[int, int, int | None, int | None, bool]], drained_at: int, returned_at: int | None
) -> None:
    recoveries, records = [], [drained(after(drained_at))]
    for number, (held_at, started_at, saved_at, resumed_at, has_ended) in enumerate(jobs):
        name = attempt(str(number), started_at=after(started_at))
        recoveries.append(
            moved(
                attempt=name,
                held_at=after(held_at),
                checkpointed_at=None if saved_at is None else after(saved_at),
                resumed_at=None if resumed_at is None else after(resumed_at),
            )
        )
        records.append(held(name, at=after(held_at), has_ended=has_ended))
    known = incident(
        xid(79),
        recoveries=tuple(recoveries),
        returned_at=None if returned_at is None else after(returned_at),
    )

    victims = victims_of(known, records, {}, now=after(50))
    cost = cost_of(known, records, victims, (), NO_SAVINGS, gpus_per_node=8, now=after(50))
    milestones = milestones_of(known, NO_CHAIN, records)

    assert min(cost.by_fault, cost.by_our_acts, cost.waiting, cost.out_of_service) >= 0
    assert cost.lost == pytest.approx(cost.by_fault + cost.by_our_acts + cost.waiting)
    assert all(each.took_seconds >= 0 for each in milestones)
    assert sum(each.took_seconds for each in milestones) == pytest.approx(milestones[-1].since_began_seconds)
    assert milestones[0].kind is MilestoneKind.BEGAN


# -- what is left to do -----------------------------------------------------------------------------------------------


def todo(
    what: Incident,
    *records: ActionRecord,
    checks: Iterable[tuple[NodeCheck, bool]] = (),
    earlier: Iterable[Incident] = (),
    chain: Chain = NO_CHAIN,
) -> str:
    found = follow_ups_of(what, chain, records, tuple(checks), tuple(earlier), waiting_plan=None)
    return " | ".join(f"{each.urgency.value}: {each.what}" for each in found)


def check_at(seconds: float) -> NodeCheck:
    return NodeCheck(
        key=ActionKey("0" * 32),
        node=NODE,
        suite="quick",
        started_at=after(seconds - 5),
        finished_at=after(seconds),
        tests=(TestRun(test="nvml", result=TestResult.PASSED, said="all well"),),
    )


def test_incident_that_healed_leaves_nothing_to_do() -> None:
    assert todo(incident(xid(79), state=IncidentState.RESOLVED, closed_at=after(60))) == ""


def test_escalated_incident_waits_for_a_person_and_says_what_is_asked() -> None:
    assert todo(incident(xid(79), state=IncidentState.ESCALATED, note="the reboot failed")) == "now: the reboot failed"


def test_node_in_repair_waits_for_hands_and_a_part() -> None:
    found = todo(incident(xid(79), state=IncidentState.IN_REPAIR, response=Response.RETURN_TO_VENDOR))

    assert found == "now: mend gpu001, then say so | soon: have the part replaced: gpu001"


def test_part_to_replace_is_named_where_the_fault_asks_for_it() -> None:
    asked = Hypothesis(
        statement="a row could not be remapped", culprits=(), at_fault=AtFault.GPU, family=Family.MEMORY,
        first_action=FirstAction.RMA, confidence=0.9, affected_nodes=frozenset(), evidence_for=(), evidence_against=(),
        alternatives=(), settled_by="",
    )  # fmt: skip

    assert "have the part replaced" in todo(incident(xid(79), hypothesis=asked))
    assert todo(incident(xid(79), hypothesis=replace(asked, first_action=FirstAction.REBOOT_NODE))) == ""


def test_second_repair_of_a_node_within_a_quarter_makes_it_a_repeated_offender() -> None:
    before = incident(
        xid(79), name="INC-0000", response=Response.REBOOT_NODE, state=IncidentState.RESOLVED, opened_at=after(-86_400)
    )
    merged = replace(before, state=IncidentState.MERGED)
    elsewhere = replace(before, nodes=frozenset({NodeName("gpu009")}))

    assert "gpu001 is a repeated offender" in todo(incident(xid(79)), earlier=[before])
    assert todo(incident(xid(79)), earlier=[merged, elsewhere]) == ""


def test_node_that_tested_well_before_anything_was_mended_may_have_been_taken_out_wrongly() -> None:
    reset = replace(
        drained(after(40)), action=action(Verb.REBOOT, on=NODE), begun_at=after(30)
    )  # witnessed at 40 s, 30 s after the drain

    def doubt(tested_at: float) -> bool:
        known = incident(xid(79), bundle="0" * 64)
        return "was it wrong" in todo(known, drained(after(10)), reset, checks=[(check_at(tested_at), True)])

    assert [doubt(at) for at in (9, 10, 39, 40, 41)] == [False, True, True, False, False]


def test_act_of_which_nobody_knows_is_the_first_thing_to_look_at() -> None:
    unknown = replace(
        drained(after(10)), outcome=Outcome(kind=OutcomeKind.UNKNOWN, witness="no answer", finished_at=after(20))
    )

    assert todo(incident(xid(79)), unknown) == "now: look whether this happened: drain gpu001"


def test_detection_is_called_slow_against_five_alike_and_never_against_fewer() -> None:
    def seen(number: int, seconds: float) -> Incident:
        finding = replace(xid(79), found_at=NOW)
        return incident(finding, name=f"INC-10{number:02d}", opened_at=after(seconds), nodes=frozenset())

    def is_slow(seconds: float, *, alike: int) -> bool:
        known = replace(seen(0, seconds), incident=incident().incident)
        return "later than usual" in todo(known, earlier=[seen(number, 40) for number in range(1, alike + 1)])

    assert [is_slow(seconds, alike=5) for seconds in (60, 80, 81)] == [False, False, True]
    assert not is_slow(600, alike=4)


# -- messages ---------------------------------------------------------------------------------------------------------


def kept(state: NoteState, **changes: object) -> KeptNote:
    note = Note(
        key="k", audience=Audience.OWNER, recipient="ada", thread="INC-0001", subject="INC-0001", title="moved",
        body="", line="job 42 was moved", severity=Severity.NOTICE, lane=Lane.AT_ONCE, likeness="x", made_at=after(30),
        ready_at=after(30),
    )  # fmt: skip
    values = {
        "note": note, "state": state, "batch": None, "attempt_count": 1, "next_at": after(30),
        "sent_at": after(40) if state is NoteState.SENT else None, "receipt": "", "problem": "refused",
    }  # fmt: skip
    return KeptNote(**(values | changes))  # type: ignore[arg-type]  # as given


def test_messages_are_events_and_one_that_no_channel_took_is_left_to_do() -> None:
    states = (NoteState.SENT, NoteState.WAITING, NoteState.UNDELIVERABLE)
    notes = [kept(each) for each in states]

    events = [each for each in timeline_of(incident(), NO_CHAIN, (), (), notes) if each.lane is EventLane.PEOPLE]
    found = follow_ups_of(incident(), NO_CHAIN, (), (), (), waiting_plan=None, notes=notes)

    told = {each.kind: each for each in events}
    assert set(told) == {EventKind.TOLD, EventKind.UNDER_WAY, EventKind.FAILED}
    assert (told[EventKind.TOLD].at, told[EventKind.UNDER_WAY].at) == (after(40), after(30))
    assert told[EventKind.TOLD].what == "message to owner ada: moved"
    assert [each.what for each in found] == ["tell ada yourself: no channel took the message"]


# -- other kinds of incidents -----------------------------------------------------------------------------------------


def test_mass_merged_and_planless_incidents_have_reports_too(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=1)
    mass = incident(
        xid(79),
        response=Response.PAGE_MASS_EVENT,
        nodes=frozenset(NodeName(f"gpu{number:03d}") for number in range(1, 41)),
        note="40 nodes at once",
    )
    merged = incident(xid(79), state=IncidentState.MERGED, closed_at=after(60), note="part of INC-0009")
    bare = replace(incident(nodes=frozenset(), victims=frozenset(), note="nobody knows"), findings=())

    told = [report_on(each, autopilot.cluster) for each in (mass, merged, bare)]

    assert "and 36 more" in told[0].headline
    assert told[1].headline.endswith("It was part of INC-0009.")
    assert told[2].headline.startswith("The cluster: nobody knows")
    assert all(each.cost.lost == 0 and each.plans == () for each in told)


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.4, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (90_061, "1 d 1 h"), (-5, "-5 s")],
)
def test_spans_are_told_in_their_two_largest_units(seconds: float, words: str) -> None:
    assert span_words(seconds) == words


@pytest.mark.parametrize(
    ("hours", "words"),
    [(0, "0"), (0.004, "under 0.01"), (0.005, "0.01"), (0.5, "0.50"), (1, "1.0"), (99.94, "99.9"), (1234.5, "1,234")],
)
def test_gpu_hours_are_told_as_exactly_as_a_person_compares_them(hours: float, words: str) -> None:
    assert gpu_hours_words(hours) == words


def test_names_are_cut_after_four() -> None:
    assert listed(["a", "b", "c", "d"]) == "a, b, c, d"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c, d and 1 more"
