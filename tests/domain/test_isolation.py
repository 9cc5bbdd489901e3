"""When a node is isolated: its own part, believed enough, seen by ourselves, and alone; all else pages as before."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import Action, Urgency, Verb
from ops_pipelines.core.fault import AtFault, Component, ComponentKind, Family, FirstAction
from ops_pipelines.core.finding import AT_ONCE, Finding, Hazard, Response
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import ALERT_SOURCE, DETECTOR_SOURCE, HISTORY_SOURCE, Checkpointing, Signal
from ops_pipelines.core.plan import IncidentPlan, Moment
from ops_pipelines.core.policy import LadderLimits
from ops_pipelines.core.proof import Refusal
from ops_pipelines.diagnose.hypothesis import diagnose
from ops_pipelines.observe.rules import find
from ops_pipelines.remediate.ladder import Rung, next_repair, position_of
from ops_pipelines.remediate.planning import ISOLATED_AT, isolation_for, may_be_shared, plan_remediation
from tests.domain.builders import (
    CATALOGUE,
    GPU,
    NODE,
    NOW,
    OTHER_NODE,
    action,
    begun,
    facts,
    foreign_node,
    incident,
    job,
    observation,
    policy,
    topology,
    unreachable,
    xid,
)

LINK = Component(kind=ComponentKind.LINK, name="mlx5_0", node=NodeName(NODE))
LONG = 3600.0
"""Seconds after which nothing waits for its neighbours any more."""


def seen(signal: Signal = Signal.LINK_DOWN, *, node: str = NODE, seconds_ago: float = LONG, **changes: Any) -> Finding:
    """Return the finding of a condition that a detector sees."""
    component = changes.pop("component", LINK if signal is Signal.LINK_DOWN else None)
    told = observation(signal, node=node, seconds_ago=seconds_ago, source=DETECTOR_SOURCE)
    return replace(find(replace(told, component=component, **changes), CATALOGUE))


def driver_asks(code: int) -> Finding:
    return find(observation(Signal.RECOVERY_ACTION, code=code, gpu=GPU, source="telemetry"), CATALOGUE)


def believed(*findings: Finding, **changes: Any) -> Incident:
    """Return an open incident with what is believed of it."""
    what = incident(*findings, **changes)
    return replace(what, hypothesis=diagnose(what, topology=topology()))


def sure_to(what: Incident, confidence: float) -> Incident:
    assert what.hypothesis is not None
    return replace(
        what,
        hypothesis=replace(what.hypothesis, confidence=confidence),
        findings=tuple(replace(each, confidence=confidence) for each in what.findings),
    )


# -- what it takes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        pytest.param(believed(seen()), Response.ISOLATE, id="a link of the node"),
        pytest.param(believed(seen(Signal.NVLINK_ERRORS, gpu=GPU)), Response.ISOLATE, id="a GPU's NVLink"),
        pytest.param(believed(seen(Signal.HOST_MEMORY)), Response.ISOLATE, id="the host"),
        pytest.param(believed(seen(Signal.GPU_SLOW, gpu=GPU)), Response.ISOLATE, id="a straggler"),
        pytest.param(believed(seen(Signal.JOB_HUNG, job=JobId("42"))), Response.ISOLATE, id="a hang with a culprit"),
        pytest.param(believed(driver_asks(3)), Response.ISOLATE, id="the driver asks for no peer-to-peer work"),
        pytest.param(believed(seen(Signal.ROW_REMAP, gpu=GPU, code=2)), Response.RETURN_TO_VENDOR, id="to be replaced"),
        pytest.param(believed(driver_asks(5)), None, id="the domain is to be recovered: many nodes"),
        pytest.param(believed(xid(54)), None, id="one line of one log"),
        pytest.param(believed(seen(Signal.INLET_HOT)), None, id="the room's"),
        pytest.param(believed(seen(Signal.DISK_FULL)), None, id="software to be put right"),
        pytest.param(believed(xid(79)), None, id="a repair is called for already"),
        pytest.param(believed(unreachable()), None, id="silent"),
        pytest.param(believed(seen(), seen(node=OTHER_NODE)), None, id="two nodes"),
        pytest.param(believed(seen(), nodes=frozenset()), None, id="no node"),
        pytest.param(
            believed(seen(), suspect=Component(kind=ComponentKind.LEAF_SWITCH, name="leaf1")), None, id="a switch"
        ),
        pytest.param(believed(replace(seen(), is_secondary=True)), None, id="damage of something else"),
        pytest.param(believed(seen(), response=Response.MONITOR), None, id="only watched"),
        pytest.param(believed(seen(), response=Response.PAGE_MASS_EVENT), None, id="a mass event"),
        pytest.param(incident(seen()), None, id="nothing is believed"),
    ],
)
def test_what_isolates_a_node(what: Incident, expected: Response | None) -> None:
    assert isolation_for(what) is expected


@pytest.mark.parametrize(
    ("confidence", "expected"),
    [
        pytest.param(0.849, None, id="just below"),
        pytest.param(ISOLATED_AT, Response.ISOLATE, id="at it"),
        pytest.param(0.851, Response.ISOLATE, id="just above"),
    ],
)
def test_it_must_be_believed_enough(confidence: float, expected: Response | None) -> None:
    assert isolation_for(sure_to(believed(seen()), confidence)) is expected


@pytest.mark.parametrize(
    ("signal", "source"),
    [
        pytest.param(Signal.LOG_SIGNATURE, "kernel_log", id="a program's words"),
        pytest.param(Signal.REPEATED, HISTORY_SOURCE, id="that it came often"),
        pytest.param(Signal.ALERT, ALERT_SOURCE, id="somebody else's alert"),
    ],
)
def test_what_is_second_hand_isolates_nothing_however_often_it_is_said(signal: Signal, source: str) -> None:
    words = [
        replace(
            seen(), rule=f"{signal.value}_{each}", is_lasting=False, confidence=0.9,
            evidence=(observation(signal, source=source, position=str(each)),),
        )
        for each in range(4)
    ]  # fmt: skip

    assert isolation_for(believed(*words)) is None
    assert isolation_for(believed(seen(), *words)) is Response.ISOLATE


@given(
    first_action=st.sampled_from(FirstAction),
    at_fault=st.sampled_from(AtFault),
    kind=st.sampled_from(ComponentKind),
    node=st.sampled_from([NODE, OTHER_NODE, None]),
    confidence=st.floats(0, 1),
    is_secondary=st.booleans(),
)
def test_nothing_but_a_nodes_own_part_is_ever_isolated(
    first_action: FirstAction, at_fault: AtFault, kind: ComponentKind, node: str | None, confidence: float,
    is_secondary: bool,
) -> None:  # fmt: skip
    part = Component(kind=kind, name="it", node=None if node is None else NodeName(node))
    finding = replace(
        seen(), first_action=first_action, at_fault=at_fault, component=part, confidence=confidence,
        is_secondary=is_secondary,
    )  # fmt: skip
    what = believed(finding)

    chosen = isolation_for(what)

    if chosen is not None:
        assert what.hypothesis is not None
        assert not is_secondary
        assert confidence >= ISOLATED_AT - 0.001
        assert first_action in {
            FirstAction.DRAIN_INSPECT, FirstAction.RMA, FirstAction.RESET_FABRIC, FirstAction.INVESTIGATE_FABRIC,
        }  # fmt: skip
        assert at_fault in {AtFault.GPU, AtFault.NODE, AtFault.FABRIC}
        assert {each.node for each in what.hypothesis.culprits} == {NodeName(NODE)}
        assert (chosen is Response.RETURN_TO_VENDOR) == (first_action is FirstAction.RMA)


@pytest.mark.parametrize(
    ("signal", "seconds", "waits"),
    [
        pytest.param(Signal.LINK_DOWN, 119, True, id="a switch would show within the window"),
        pytest.param(Signal.LINK_DOWN, 120, False, id="its neighbours stayed well"),
        pytest.param(Signal.LINK_DOWN, 121, False, id="long since"),
        pytest.param(Signal.GPU_HOT, 15 * 60 - 1, True, id="a rack heats up slowly"),
        pytest.param(Signal.GPU_HOT, 15 * 60, False, id="one hot node"),
        pytest.param(Signal.GPU_SLOW, 0, False, id="compared with its peers already"),
        pytest.param(Signal.JOB_HUNG, 0, False, id="differs from all the others"),
    ],
)
def test_what_may_be_the_first_of_many_waits_for_the_others(signal: Signal, seconds: float, waits: bool) -> None:
    found = may_be_shared(believed(seen(signal, seconds_ago=seconds)), facts(), policy=policy())

    assert isinstance(found, Refusal) == waits


@pytest.mark.parametrize("earlier", ["an alert", "another trouble"])
def test_what_stood_before_says_nothing_of_how_new_the_trouble_is_that_may_be_shared(earlier: str) -> None:
    """Anyone who can hand alerts in chooses their dates; a link may be the first of its switch on a node that was
    hot."""
    told = replace(observation(Signal.ALERT, seconds_ago=86_400, source=ALERT_SOURCE), signature="NodeBondingDegraded")
    old = find(told, CATALOGUE) if earlier == "an alert" else seen(Signal.GPU_HOT, seconds_ago=86_400)

    found = may_be_shared(believed(old, seen(seconds_ago=30)), facts(), policy=policy())

    assert isinstance(found, Refusal)
    assert found.reason.startswith("seen for 30 s; its own after 120 s")


def test_an_alert_confirms_no_condition_that_has_just_begun() -> None:
    told = replace(observation(Signal.ALERT, seconds_ago=86_400, source=ALERT_SOURCE), signature="NodeRAIDDegraded")
    slow = seen(Signal.GPU_SLOW, seconds_ago=1)

    found = plan_remediation(believed(find(told, CATALOGUE), slow), facts(), policy=policy(), topology=topology())

    assert isinstance(found, Refusal)
    assert found.reason.startswith("seen for 1 s")


# -- the plan ---------------------------------------------------------------------------------------------------------


HAZARDS = tuple(
    Hazard(family=family, first_action=first, ends_job_per_hour=rate, slowdown_ratio=0.0, source="of the test")
    for family, first, rate in ((None, None, 0.5), (Family.STALL, FirstAction.DRAIN_INSPECT, AT_ONCE))
)


def planned(what: Incident, **changes: Any) -> IncidentPlan:
    found = plan_remediation(what, facts(hazards=HAZARDS, **changes), policy=policy(), topology=topology())
    assert isinstance(found, IncidentPlan), found
    return found


def test_an_isolation_drains_moves_and_tells_and_touches_no_part() -> None:
    plan = planned(believed(seen(Signal.JOB_HUNG, job=JobId("42"))), jobs=[job("42")])

    assert (plan.response, plan.calls_for) == (Response.ISOLATE, Response.PAGE)
    assert [each.verb for each in plan.actions] == [
        Verb.DRAIN,
        Verb.NOTIFY_OWNER,
        Verb.RESERVE,
        Verb.HOLD,
        Verb.FENCE,
        Verb.EXCLUDE,
        Verb.UNRESERVE,
        Verb.RELEASE,
        Verb.PAGE_HUMAN,
    ]
    assert plan.actions[-1].urgency is Urgency.WHEN_READ
    assert "gpu001 is isolated" in plan.actions[-1].text
    assert "drain the node and look at it" in plan.actions[-1].text
    assert plan.rejected_alternatives[0].startswith("page alone")


def test_a_part_to_be_replaced_goes_to_the_repair_queue_at_once() -> None:
    plan = planned(believed(seen(Signal.ROW_REMAP, gpu=GPU, code=2)))

    assert (plan.response, plan.calls_for) == (Response.RETURN_TO_VENDOR, Response.PAGE)
    assert [each.verb for each in plan.actions] == [Verb.DRAIN, Verb.PAGE_HUMAN]
    assert plan.actions[-1].urgency is Urgency.AT_ONCE


@pytest.mark.parametrize(
    ("changes", "moment"),
    [
        pytest.param({}, Moment.NOW, id="may be moved"),
        pytest.param({"is_requeueable": False}, Moment.NEVER, id="may not be requeued"),
        pytest.param({"checkpointing": Checkpointing.NO}, Moment.NEVER, id="keeps no checkpoint"),
    ],
)
def test_a_hung_job_is_moved_by_the_same_rules_as_any_other(changes: dict[str, Any], moment: Moment) -> None:
    plan = planned(believed(seen(Signal.JOB_HUNG, job=JobId("42"))), jobs=[job("42", **changes)])

    assert [each.moment for each in plan.timings] == [moment]
    assert (Verb.HOLD in {each.verb for each in plan.actions}) == (moment is Moment.NOW)


def test_that_one_job_hangs_says_nothing_of_its_neighbour_on_the_node() -> None:
    both = [job("42", gpu_count=4), job("43", gpu_count=4)]

    plan = planned(believed(seen(Signal.JOB_HUNG, job=JobId("42"))), jobs=both)

    moments = {each.attempt.job: each for each in plan.timings}
    assert moments[JobId("42")].reason.startswith("it is dead or hangs")
    assert not moments[JobId("43")].reason.startswith("it is dead or hangs")


def test_a_node_that_somebody_else_drained_is_left_to_them() -> None:
    plan = planned(believed(seen()), nodes=[foreign_node()])

    assert [each.verb for each in plan.actions] == [Verb.PAGE_HUMAN]
    assert plan.actions[0].urgency is Urgency.AT_ONCE


@pytest.mark.parametrize("seconds", [59, 60, 61])
def test_a_condition_must_last_before_a_node_is_isolated_for_it(seconds: float) -> None:
    young = believed(seen(Signal.HOST_MEMORY, seconds_ago=seconds))

    found = plan_remediation(young, facts(), policy=policy(), topology=topology())

    assert isinstance(found, Refusal) == (seconds < 60)


# -- the ladder -------------------------------------------------------------------------------------------------------


def _isolation(name: str, *, hours_ago: float, verbs: tuple[Verb, ...]) -> list[Any]:
    def of(verb: Verb) -> Action:
        return action(verb, on=NODE, incident=name)

    return [begun(of(verb), seconds_ago=hours_ago * 3600) for verb in verbs]


RETURNED = (Verb.DRAIN, Verb.CHECK, Verb.RESUME)


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        pytest.param([], Response.ISOLATE, id="never"),
        pytest.param([(1, RETURNED)], Response.ISOLATE, id="once"),
        pytest.param([(1, RETURNED), (2, RETURNED)], Response.RETURN_TO_VENDOR, id="twice today"),
        pytest.param([(1, RETURNED), (25, RETURNED)], Response.ISOLATE, id="the other one yesterday"),
        pytest.param([(1, RETURNED), (2, (*RETURNED, Verb.REBOOT))], Response.ISOLATE, id="the other was a reboot"),
        pytest.param([(1, RETURNED), (2, (Verb.DRAIN, Verb.RESUME))], Response.ISOLATE, id="the other by hand"),
    ],
)
def test_what_tests_found_nothing_of_twice_in_a_day_needs_hands(
    earlier: list[tuple[float, tuple[Verb, ...]]], expected: Response
) -> None:
    records = [
        record
        for number, (hours_ago, verbs) in enumerate(earlier)
        for record in _isolation(f"INC-09{number:02d}", hours_ago=hours_ago, verbs=verbs)
    ]
    what = incident(seen(), response=Response.ISOLATE)

    assert next_repair(what, records, limits=LadderLimits(), now=NOW) is expected


def test_an_isolated_node_stands_on_its_own_rung_and_a_stronger_finding_climbs_from_there() -> None:
    isolated = believed(seen(), response=Response.ISOLATE, state=IncidentState.VERIFYING, plan_count=1)
    drained = [begun(action(Verb.DRAIN, on=NODE))]

    assert position_of(isolated, drained) is Rung.ISOLATE
    assert position_of(isolated, []) is Rung.MONITOR
    assert next_repair(
        replace(isolated, response=Response.REBOOT_NODE), drained, limits=LadderLimits(), now=NOW
    ) is Response.REBOOT_NODE  # fmt: skip


def test_the_wait_for_neighbours_is_no_longer_than_the_window_of_the_policy() -> None:
    patient = policy(mass_event=replace(policy().mass_event, window=timedelta(seconds=300)))

    assert may_be_shared(believed(seen(seconds_ago=299)), facts(), policy=patient) is not None
    assert may_be_shared(believed(seen(seconds_ago=300)), facts(), policy=patient) is None


@pytest.mark.parametrize(("seconds_ago", "waits"), [(0.0, True), (59.0, True), (60.0, False)])
def test_page_about_a_line_of_a_log_waits_a_minute_for_what_our_own_sources_see(
    seconds_ago: float, waits: bool
) -> None:
    said = observation(Signal.LOG_SIGNATURE, seconds_ago=seconds_ago)
    what = believed(replace(seen(seconds_ago=seconds_ago), is_lasting=False, evidence=(said,)))

    plan = plan_remediation(what, facts(), policy=policy(), topology=topology())

    assert what.response is Response.PAGE
    if waits:
        assert isinstance(plan, Refusal)
        assert "our own sources may show the same" in plan.reason
    else:
        assert isinstance(plan, IncidentPlan)
        assert [each.verb for each in plan.actions] == [Verb.PAGE_HUMAN]
