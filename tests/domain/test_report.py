"""The shift in numbers and lines: what needs a person comes first, and nothing is counted twice."""

from collections.abc import Mapping
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.finding import Response
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobState, NodeState, NodeStatus
from ops_pipelines.review.shift import ShiftReport, node_word, write_shift_report
from tests.domain.builders import (
    NODE,
    NOW,
    OTHER_NODE,
    action,
    ago,
    attempt,
    begun,
    ended,
    foreign_node,
    gpu_missing,
    held_job,
    incident,
    job,
    node,
    node_names,
    our_node,
    xid,
)

SINCE = ago(8 * 3600)
DRAIN = action(Verb.DRAIN, on=NODE)
REBOOT = action(Verb.REBOOT, on=NODE)
RELEASE = action(Verb.RELEASE, of=attempt("42"))


def report(
    *incidents: Incident, records: Mapping[str, list[ActionRecord]] | None = None, nodes: list[NodeStatus] | None = None
) -> ShiftReport:
    return write_shift_report(incidents, records or {}, nodes or [], [], since=SINCE, until=NOW)


def named(number: int, state: IncidentState, response: Response = Response.REBOOT_NODE) -> Incident:
    is_closed = state in (IncidentState.RESOLVED, IncidentState.MERGED)
    return incident(
        xid(79, seconds_ago=600),
        name=f"INC-{number:04d}",
        state=state,
        response=response,
        closed_at=ago(60) if is_closed else None,
    )


def test_a_quiet_shift_is_all_empty() -> None:
    quiet = report()

    assert (quiet.needs_human, quiet.under_way, quiet.healed, quiet.told_owner) == ((), (), (), ())
    assert (quiet.merged_count, quiet.cleared_count, quiet.failed_action_count) == (0, 0, 0)
    assert quiet.mean_time_to_heal is None
    assert (quiet.since, quiet.until) == (SINCE, NOW)


def test_every_incident_stands_in_its_section() -> None:
    done = {"INC-0005": [ended(DRAIN), ended(RELEASE), ended(REBOOT)]}

    shift = report(
        named(1, IncidentState.ESCALATED),
        named(2, IncidentState.OPEN),
        named(3, IncidentState.ACTING),
        named(4, IncidentState.VERIFYING),
        named(5, IncidentState.RESOLVED),
        named(6, IncidentState.RESOLVED),
        named(7, IncidentState.RESOLVED, Response.NOTIFY_OWNER),
        named(8, IncidentState.MERGED),
        named(9, IncidentState.RESOLVED, Response.PAGE),
        records=done,
    )

    assert [line.incident for line in shift.needs_human] == ["INC-0001"]
    assert [line.incident for line in shift.under_way] == ["INC-0002", "INC-0003", "INC-0004"]
    assert [line.incident for line in shift.healed] == ["INC-0005"]
    assert [line.incident for line in shift.told_owner] == ["INC-0007"]
    assert (shift.merged_count, shift.cleared_count) == (1, 2)
    assert shift.healed[0].did == "drain, release, reboot"
    assert shift.healed[0].jobs_moved_count == 1


@given(st.lists(st.tuples(st.sampled_from(IncidentState), st.sampled_from(Response), st.booleans()), max_size=12))
def test_no_incident_is_lost_or_counted_twice(kinds: list[tuple[IncidentState, Response, bool]]) -> None:
    incidents = [named(number, state, response) for number, (state, response, _) in enumerate(kinds)]
    records = {
        str(each.incident): [ended(DRAIN)]
        for each, (_, _, has_acted) in zip(incidents, kinds, strict=True)
        if has_acted
    }

    shift = report(*incidents, records=records)

    lines = (*shift.needs_human, *shift.under_way, *shift.healed, *shift.told_owner)
    assert len({line.incident for line in lines}) == len(lines)
    assert len(lines) + shift.merged_count + shift.cleared_count == len(incidents)


def test_actions_are_counted_by_verb_and_failures_apart() -> None:
    records = {
        "INC-0001": [ended(DRAIN), ended(REBOOT, OutcomeKind.FAILED), begun(RELEASE)],
        "INC-0002": [ended(action(Verb.DRAIN, on=OTHER_NODE)), ended(REBOOT, OutcomeKind.UNKNOWN)],
    }

    shift = report(records=records)

    assert shift.action_count_by_verb == {"drain": 2}
    assert shift.failed_action_count == 2


def test_the_time_to_heal_is_the_mean_over_the_healed() -> None:
    quick = incident(xid(79, seconds_ago=120), name="INC-0001", state=IncidentState.RESOLVED, closed_at=NOW)
    slow = incident(xid(79, seconds_ago=360), name="INC-0002", state=IncidentState.RESOLVED, closed_at=NOW)
    cleared = incident(gpu_missing(seconds_ago=9000), name="INC-0003", state=IncidentState.RESOLVED, closed_at=NOW)

    shift = report(quick, slow, cleared, records={"INC-0001": [ended(REBOOT)], "INC-0002": [ended(REBOOT)]})

    assert shift.mean_time_to_heal == timedelta(seconds=240)


@pytest.mark.parametrize(
    ("names", "where"),
    [
        pytest.param(node_names(1), "gpu001", id="one"),
        pytest.param(node_names(4), "gpu001, gpu002, gpu003, gpu004", id="four are all named"),
        pytest.param(node_names(5), "gpu001, gpu002, gpu003, gpu004 and 1 more", id="five are not"),
    ],
)
def test_a_line_says_where(names: tuple[str, ...], where: str) -> None:
    (line,) = report(incident(xid(79), nodes=frozenset(names))).under_way

    assert line.where == where


def test_a_line_of_a_job_names_the_job() -> None:
    at_fault = incident(xid(31), nodes=frozenset(), victims=frozenset({attempt("42"), attempt("43")}))

    (line,) = report(at_fault).under_way

    assert line.where == "job 42, job 43"


def test_a_line_of_nothing_is_nowhere() -> None:
    (line,) = report(incident(xid(31), nodes=frozenset())).under_way

    assert line.where == "nowhere"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(IncidentState.OPEN, timedelta(seconds=600), id="still open, until now"),
        pytest.param(IncidentState.RESOLVED, timedelta(seconds=540), id="closed a minute ago"),
    ],
)
def test_a_line_says_how_long_it_was_open(state: IncidentState, expected: timedelta) -> None:
    shift = report(named(1, state), records={"INC-0001": [ended(REBOOT)]})

    (line,) = (*shift.under_way, *shift.healed)
    assert line.open_for == expected


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (node(), "idle"),
        (node(state=NodeState.MIXED), "mixed"),
        (our_node(), "drained"),
        (foreign_node(), "drained"),
        (our_node(state=NodeState.DOWN), "down"),
        (our_node(state=NodeState.DOWN, is_responding=False), "unreachable"),
        (node(state=NodeState.UNKNOWN), "unknown"),
    ],
)
def test_a_node_is_counted_under_one_word(status: NodeStatus, word: str) -> None:
    assert node_word(status) == word
    assert report(nodes=[status, status]).nodes_by_state == {word: 2}


def test_jobs_are_counted_while_they_wait_or_run() -> None:
    jobs = [job("1"), job("2"), held_job("3"), job("4", state=JobState.COMPLETED), job("5", state=JobState.COMPLETING)]

    shift = write_shift_report([], {}, [], jobs, since=SINCE, until=NOW)

    assert shift.jobs_by_state == {"pending": 1, "running": 2}
