"""A node is silent by one definition, on which both hang: what becomes of its jobs, and by what it is fenced."""

from dataclasses import replace

import pytest

from ops_pipelines.core.fault import FirstAction
from ops_pipelines.core.finding import Response
from ops_pipelines.core.incident import Incident, Try
from ops_pipelines.remediate.job_moves import is_silent
from ops_pipelines.remediate.repair_steps import Situation
from tests.domain.builders import ago, incident, job, node, unreachable, xid

MILD = replace(xid(48, seconds_ago=10), first_action=FirstAction.RESET_GPU_AT_JOB_END)
TRIED = (Try(response=Response.REBOOT_NODE, ended_at=ago(1), why="it did not help"),)


def silent_and_fenced_by_power(about: Incident, *, is_responding: bool, job_count: int = 1) -> tuple[bool, bool]:
    status = node(is_responding=is_responding)
    situation = Situation(
        incident=about,
        node=status,
        jobs=tuple(job(str(number)) for number in range(job_count)),
        timings=(),
        held=(),
        spares={},
        ended=frozenset(),
        is_foreign=False,
    )
    return is_silent(about, {status.node: status}), situation.is_fenced_by_power


@pytest.mark.parametrize(
    ("about", "is_responding", "expected"),
    [
        pytest.param(incident(unreachable()), False, (True, True), id="silent"),
        pytest.param(incident(unreachable()), True, (True, True), id="the finding is believed before any try"),
        pytest.param(incident(MILD), False, (False, False), id="silent for a moment, and not for that"),
        pytest.param(incident(MILD), True, (False, False), id="broken, and answering"),
        pytest.param(
            incident(unreachable(), response=Response.RETURN_TO_VENDOR), False, (True, True), id="power was cut before"
        ),
        pytest.param(
            incident(unreachable(), response=Response.RETURN_TO_VENDOR), True, (False, False), id="it answers again"
        ),
        pytest.param(
            incident(MILD, response=Response.POWER_CYCLE, tries=TRIED), True, (False, False), id="a rung of the ladder"
        ),
        pytest.param(
            incident(MILD, response=Response.POWER_CYCLE, tries=TRIED), False, (True, True), id="silent on that rung"
        ),
        pytest.param(
            incident(MILD, response=Response.REBOOT_NODE, tries=TRIED), False, (False, False), id="below that rung"
        ),
        pytest.param(
            incident(unreachable(), response=Response.REBOOT_NODE, tries=TRIED),
            False,
            (True, False),
            id="its jobs have ended, and its repair cuts no power",
        ),
    ],
)
def test_a_silent_node_is_what_calls_for_power_and_does_not_answer(
    about: Incident, is_responding: bool, expected: tuple[bool, bool]
) -> None:
    assert silent_and_fenced_by_power(about, is_responding=is_responding) == expected


def test_after_a_try_the_power_of_a_node_without_jobs_is_cut_by_the_repair() -> None:
    about = incident(MILD, response=Response.POWER_CYCLE, tries=TRIED)

    assert silent_and_fenced_by_power(about, is_responding=False, job_count=0) == (True, False)
    assert silent_and_fenced_by_power(incident(unreachable()), is_responding=False, job_count=0) == (True, True)


def test_silence_of_another_node_is_no_silence_of_this_one() -> None:
    about = incident(MILD, response=Response.POWER_CYCLE, tries=TRIED)
    other = node("gpu009", is_responding=False)

    assert not is_silent(about, {other.node: other})
