"""The ladder: which repair comes next, what counts as tried, what a relapse is, and that its table fits the code."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import Verb
from ops_pipelines.core.fault import FirstAction
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, Try, climb
from ops_pipelines.core.policy import Durations, LadderLimits
from ops_pipelines.diagnose.incidents import is_relapse
from ops_pipelines.remediate.ladder import RUNGS, Rung, count_tries, limit_of, next_repair, position_of, rung_of
from tests.domain.builders import GPU, NODE, NOW, OTHER_GPU, OTHER_NODE, action, ago, begun, incident, xid

LIMITS = LadderLimits()


def tried(*responses: Response) -> tuple[Try, ...]:
    return tuple(Try(response=each, ended_at=ago(60), why="it did not help") for each in responses)


def next_of(what: Incident, *records: Any, limits: LadderLimits = LIMITS) -> Response:
    return next_repair(what, records, limits=limits, now=NOW)


def test_every_rung_has_its_rule_and_every_limit_is_a_duration() -> None:
    assert set(RUNGS) == set(Rung)
    for rung in Rung:
        limit_of(rung, Durations())
    assert {rung_of(response) for response in REPAIRS} == set(list(Rung)[Rung.ISOLATE :])


@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        pytest.param((), Response.RESET_GPU, id="nothing tried"),
        pytest.param((Response.RESET_GPU,), Response.REBOOT_NODE, id="the reset did not help"),
        pytest.param((Response.REBOOT_NODE,), Response.POWER_CYCLE, id="the reboot did not help"),
        pytest.param((Response.RESET_GPU, Response.REBOOT_NODE), Response.POWER_CYCLE, id="neither helped"),
        pytest.param((Response.POWER_CYCLE,), Response.RETURN_TO_VENDOR, id="no command to install it again"),
        pytest.param((Response.RETURN_TO_VENDOR,), Response.RETURN_TO_VENDOR, id="it came back from repair"),
    ],
)
def test_the_next_repair_stands_above_what_did_not_help(tries: tuple[Response, ...], expected: Response) -> None:
    assert next_of(incident(xid(48), tries=tried(*tries))) is expected


def test_installing_anew_is_a_rung_where_the_operator_allows_it() -> None:
    what = incident(xid(79), tries=tried(Response.POWER_CYCLE))

    assert next_of(what, limits=replace(LIMITS, max_reimages_count=1)) is Response.REIMAGE


@pytest.mark.parametrize(
    ("seconds_ago", "expected"),
    [
        pytest.param(24 * 3600 - 1, Response.REBOOT_NODE, id="within the memory"),
        pytest.param(24 * 3600, Response.RESET_GPU, id="just forgotten"),
        pytest.param(24 * 3600 + 1, Response.RESET_GPU, id="long forgotten"),
    ],
)
def test_a_repair_of_the_same_node_for_another_cause_counts_for_a_day(seconds_ago: float, expected: Response) -> None:
    earlier = begun(action(Verb.RESET_GPU, on=NODE, gpu=GPU, incident="INC-0900"), seconds_ago=seconds_ago)

    assert next_of(incident(xid(48)), earlier) is expected


def test_a_repair_of_another_node_counts_for_nothing() -> None:
    elsewhere = begun(action(Verb.RESET_GPU, on=OTHER_NODE, gpu=GPU, incident="INC-0900"))

    assert next_of(incident(xid(48)), elsewhere) is Response.RESET_GPU


def test_all_gpus_of_one_plan_are_one_try() -> None:
    both = [begun(action(Verb.RESET_GPU, on=NODE, gpu=gpu)) for gpu in (GPU, OTHER_GPU)]

    assert count_tries(Response.RESET_GPU, NodeName(NODE), both, limits=LIMITS, now=NOW) == 1


def test_a_power_cycle_is_no_step_up_from_a_reboot_for_another_cause() -> None:
    earlier = begun(action(Verb.REBOOT, on=NODE, incident="INC-0900"), seconds_ago=3600)

    assert next_of(incident(xid(79)), earlier) is Response.RETURN_TO_VENDOR


@given(
    tries=st.lists(st.sampled_from(sorted(REPAIRS)), max_size=5),
    limits=st.builds(
        LadderLimits,
        max_gpu_resets_count=st.integers(0, 3),
        max_reboots_count=st.integers(0, 3),
        max_power_cycles_count=st.integers(0, 3),
        max_reimages_count=st.integers(0, 1),
    ),
    reboot_count=st.integers(0, 3),
)
def test_the_ladder_is_climbed_and_has_an_end(tries: list[Response], limits: LadderLimits, reboot_count: int) -> None:
    records = [begun(action(Verb.REBOOT, on=NODE, try_number=each)) for each in range(reboot_count)]
    what = incident(xid(48), tries=tried(*tries))

    chosen = [what.response]
    for _ in range(6):
        step = next_of(replace(what, response=chosen[-1]), *records, limits=limits)
        chosen.append(step)
        what = replace(what, tries=(*what.tries, *tried(step)))

    assert chosen == sorted(chosen)
    assert chosen[-1] is Response.RETURN_TO_VENDOR
    assert all(each not in tries for each in chosen[1:] if each is not Response.RETURN_TO_VENDOR)


def test_climbing_keeps_what_was_tried_and_forgets_the_plan() -> None:
    acting = incident(xid(48), state=IncidentState.ACTING, plan_count=1)

    higher = climb(acting, IncidentEvent.REPAIR_FAILED, why="no witness within 180 s", at=NOW)

    assert (higher.state, higher.plan) == (IncidentState.OPEN, None)
    assert [each.response for each in higher.tries] == [Response.RESET_GPU]
    assert "no witness within 180 s" in higher.note


ON_PROBATION = incident(xid(79, seconds_ago=7200), state=IncidentState.PROBATION, plan_count=1, returned_at=ago(3600))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"found_at": ago(3599)}, True, id="just after the return"),
        pytest.param({"found_at": ago(3600)}, False, id="at the return"),
        pytest.param({"found_at": ago(3601)}, False, id="late evidence of what was repaired"),
        pytest.param({"response": Response.PAGE, "first_action": FirstAction.RMA}, True, id="a part to be replaced"),
        pytest.param({"response": Response.NOTIFY_OWNER}, False, id="a program's own error"),
        pytest.param({"is_secondary": True}, False, id="damage of something else"),
        pytest.param({"is_lasting": True}, False, id="a condition is judged by how long it lasts"),
        pytest.param({"confidence": 0.6}, True, id="just believed"),
        pytest.param({"confidence": 0.59}, False, id="too weak"),
        pytest.param({"node": NodeName(OTHER_NODE)}, False, id="another node"),
    ],
)
def test_what_counts_against_a_node_on_probation(changes: dict[str, Any], expected: bool) -> None:
    seen = replace(xid(79), **{"found_at": ago(60), **changes})

    assert is_relapse(ON_PROBATION, seen) is expected


def test_nothing_is_a_relapse_of_a_node_that_is_not_on_probation() -> None:
    assert not is_relapse(replace(ON_PROBATION, state=IncidentState.VERIFYING), xid(79))


def test_the_position_is_the_highest_rung_begun() -> None:
    what = incident(xid(79))
    records = [begun(action(Verb.DRAIN, on=NODE)), begun(action(Verb.REBOOT, on=NODE))]

    assert position_of(what, []) is Rung.MONITOR
    assert position_of(what, records[:1]) is Rung.DRAIN
    assert position_of(what, records) is Rung.REBOOT
    assert position_of(replace(what, state=IncidentState.IN_REPAIR), records) is Rung.RETURN_TO_VENDOR
